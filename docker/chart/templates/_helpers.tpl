{{/* Name of the objects. Names of CronJobs have at most 52 characters, and the longest suffix nine. */}}
{{- define "ssi.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 43 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 43 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 43 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ssi.instance" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ssi.labels" -}}
{{ include "ssi.instance" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | quote }}
{{- end -}}

{{- define "ssi.account" -}}
{{- .Values.serviceAccount.existingName | default (include "ssi.fullname" .) -}}
{{- end -}}

{{- define "ssi.modelsClaim" -}}
{{- .Values.models.existingClaim | default (printf "%s-models" (include "ssi.fullname" .)) -}}
{{- end -}}

{{- define "ssi.clicksClaim" -}}
{{- .Values.retrain.existingClaim | default (printf "%s-clicks" (include "ssi.fullname" .)) -}}
{{- end -}}

{{/* Metadata of a pod. Takes (root, component, annotations). */}}
{{- define "ssi.podMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "ssi.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # The program reads its configuration when it starts.
  checksum/config: {{ include "ssi.files" $root | sha256sum }}
  {{- with merge (dict) (index . 2) $root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the pods of the service and of the CronJobs have in common. */}}
{{- define "ssi.pod" -}}
serviceAccountName: {{ include "ssi.account" . }}
automountServiceAccountToken: false
# Variables of other Services, such as SSI_SERVE_PORT, would be read as options of ssi.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What all containers have in common. Takes (root, secret with the credentials of the engine). */}}
{{- define "ssi.container" -}}
{{- $root := index . 0 -}}
{{- $secret := index . 1 -}}
{{- $engine := $root.Values.engine -}}
image: {{ printf "%s:%s" $root.Values.image.repository (default $root.Chart.AppVersion $root.Values.image.tag) | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
workingDir: /data
securityContext:
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
env:
  # Libraries write their caches there.
  - {name: HOME, value: /data}
  - {name: OMP_NUM_THREADS, value: "1"}
  - {name: NUMBA_CACHE_DIR, value: /data/.numba}
  - {name: SSI_STATE_DIR, value: /data/.state}
  {{- if $engine.caConfigMap }}
  - {name: SSI_ENGINE_CA_FILE, value: {{ printf "/etc/ssi-ca/%s" $engine.caKey | quote }}}
  {{- end }}
  {{- if and $secret $engine.apiKeyKey }}
  - name: SSI_ENGINE_API_KEY
    valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $engine.apiKeyKey | quote }}}}
  {{- else if $secret }}
  - name: SSI_ENGINE_USER
    valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $engine.userKey | quote }}}}
  - name: SSI_ENGINE_PASSWORD
    valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ $engine.passwordKey | quote }}}}
  {{- end }}
  {{- with $root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "ssi.mounts" -}}
- {name: config, mountPath: /etc/ssi, readOnly: true}
- {name: data, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if .Values.engine.caConfigMap }}
- {name: ca, mountPath: /etc/ssi-ca, readOnly: true}
{{- end }}
{{- end -}}

{{/* Volumes of all pods. Takes (root, maximum size of temporary files). */}}
{{- define "ssi.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ include "ssi.fullname" $root }}-config}
- name: data
  emptyDir: {sizeLimit: {{ index . 1 | quote }}}
- name: tmp
  emptyDir: {sizeLimit: {{ index . 1 | quote }}}
- name: models
  persistentVolumeClaim: {claimName: {{ include "ssi.modelsClaim" $root | quote }}}
{{- if $root.Values.engine.caConfigMap }}
- name: ca
  configMap: {name: {{ $root.Values.engine.caConfigMap | quote }}}
{{- end }}
{{- end -}}

{{/* A table of the configuration file. JSON of texts, numbers, booleans and lists is TOML. Takes (name, values). */}}
{{- define "ssi.table" -}}
{{- with index . 1 }}
[{{ index $ 0 }}]
{{- range $key, $value := . }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{ end }}
{{- end -}}

{{/* The configuration file. Takes (defaults, options of the service that the chart gives, settings). */}}
{{- define "ssi.toml" -}}
{{- $settings := index . 2 -}}
{{- include "ssi.table" (list "default" (index . 0)) -}}
{{- include "ssi.table" (list "engine" $settings.engine) -}}
{{- include "ssi.table" (list "serve" (merge (index . 1) $settings.serve)) -}}
{{- include "ssi.table" (list "sync" $settings.sync) -}}
{{- include "ssi.table" (list "clicks.import" $settings.import) -}}
{{- include "ssi.table" (list "retrain" $settings.retrain) -}}
{{- end -}}

{{/* Data of the ConfigMap. */}}
{{- define "ssi.files" -}}
{{- $default := dict "engine" .Values.engine.spec "index" .Values.index -}}
{{- $serve := dict -}}
{{- if .Values.body -}}
{{- $_ := mustFromJson .Values.body -}}
{{- $_ := set $default "body" "body.json" -}}
{{- end -}}
{{- if .Values.namedBodies -}}
{{- $named := list -}}
{{- range $name, $body := .Values.namedBodies -}}
{{- $_ := mustFromJson $body -}}
{{- $named = append $named (printf "%s=/etc/ssi/body-%s.json" $name $name) -}}
{{- end -}}
{{- $_ := set $serve "named_body" $named -}}
{{- end -}}
ssi.toml: |
  {{- include "ssi.toml" (list $default $serve .Values.settings) | trim | nindent 2 }}
{{- if .Values.body }}
body.json: {{ .Values.body | quote }}
{{- end }}
{{- range $name, $body := .Values.namedBodies }}
body-{{ $name }}.json: {{ $body | quote }}
{{- end }}
{{- range tuple "accept.sh" "sync.sh" "live_model.py" }}
{{ . }}: |
  {{- $.Files.Get (printf "files/%s" .) | trim | nindent 2 }}
{{- end }}
{{- end -}}
