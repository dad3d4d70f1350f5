"""What helm makes of the chart: valid manifests, hardened containers, and commands that the program accepts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.cli.serve import _settings
from reranker.engines import EngineSettings
from reranker.service.settings import ServiceSettings
from tests.docs import chart

# The first of these tests builds helm.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BODY = '{"query": {"match": {"title": "{{query}}"}}}'
EVERYTHING: dict[str, Any] = {
    "fullnameOverride": "a-name-of-sixty-characters-which-is-cut-at-the-forty-third-xy",
    "image": {"repository": "registry.example:5000/ssi", "tag": "1", "pullSecrets": ["registry"]},
    "engine": {
        "spec": "opensearch:https://search.example:9200",
        "existingSecret": "reader",
        "jobsExistingSecret": "writer",
        "caConfigMap": "authorities",
    },
    "body": BODY,
    "namedBodies": {"blog": BODY},
    "settings": {
        "serve": {"route": "impacts", "window": 100, "deadline_ms": 1e3, "page": ["title=name", "facts=brand"]},
        "sync": {"routes": ["fetch", "impacts"], "max_docs_per_second": 0.5, "updated_field": 'a "quoted" field'},
        "import": {"since": "2026-11-01", "queries_index": "logged_queries"},
        "retrain": {"window": 100, "query_side_only": True, "margin": 0.01},
        "engine": {"read_timeout_s": 30, "verify": True},
    },
    "extraEnv": [{"name": "SSI_ENGINE_CONNECT_TIMEOUT", "value": "3"}],
    "ingress": {"enabled": True, "hosts": ["search.example", "*.search.example"], "tlsSecret": "certificate"},
    "autoscaling": {"enabled": True},
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {"matchLabels": {"app": "shop"}}}],
        "engine": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "enginePorts": [9200, 9201],
    },
    "metrics": {"serviceMonitor": True, "labels": {"release": "prometheus"}, "existingSecret": "prometheus-key"},
    "sync": {"timeZone": "Europe/Berlin"},
    "retrain": {"enabled": True, "warmStart": "base", "timeZone": "Europe/Berlin", "storageClass": "fast"},
    "serviceAccount": {"annotations": {"a": "b"}},
    "service": {"annotations": {"a": "b"}, "type": "LoadBalancer"},
    "models": {"storageClass": "shared", "accessModes": ["ReadWriteMany"]},
    "podLabels": {"team": "search"},
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "search", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "without keys, one model": {
        "apiKeys": {"required": False},
        "metrics": {"annotations": True},
        "models": {"single": "model", "existingClaim": "models"},
        "engine": {"existingSecret": "key", "apiKeyKey": "key"},
        "serviceAccount": {"existingName": "search"},
        "disruptionBudget": {"enabled": False},
    },
    "retraining without a retention period": {
        "retrain": {"enabled": True, "keepDays": 0, "existingClaim": "clicks", "acceptedStatuses": []},
        "sync": {"enabled": False},
    },
}
SCRATCH = {"/data", "/tmp"}  # noqa: S108
ALWAYS = {"ConfigMap", "Deployment", "Service"}
OPTIONAL = {
    "ServiceAccount",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "Ingress",
    "HorizontalPodAutoscaler",
    "NetworkPolicy",
    "ServiceMonitor",
    "CronJob",
}


def helm(*arguments: str, values: dict[str, Any], folder: Path = chart.CHART) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, for Kubernetes 1.33, with these values."""
    command = [chart.helm_program(), *arguments, str(folder), "--kube-version", "1.33.0", "-f", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)


@cache
def rendered(case: str) -> str:
    """Return the manifests of a case."""
    done = helm("template", "release", "--namespace", "search", values=CASES[case])
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifests(case: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered(case)) if one]


def pods(case: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name of the object, pod template) of all objects with pods."""
    for one in manifests(case):
        if one["kind"] == "Deployment":
            yield one["metadata"]["name"], one["spec"]["template"]
        if one["kind"] == "CronJob":
            yield one["metadata"]["name"], one["spec"]["jobTemplate"]["spec"]["template"]


def containers(case: str) -> Iterator[dict[str, Any]]:
    for _, pod in pods(case):
        yield from (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])


@pytest.mark.parametrize("case", CASES)
def test_the_chart_has_no_findings_and_the_same_bytes_twice(case: str) -> None:
    done = helm("lint", "--strict", values=CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\[(WARNING|ERROR)\]", done.stdout)
    assert helm("template", "release", "--namespace", "search", values=CASES[case]).stdout == rendered(case)


@pytest.mark.parametrize("case", CASES)
def test_the_manifests_have_only_fields_of_kubernetes(case: str) -> None:
    done = subprocess.run([chart.manifest_checker()], input=rendered(case), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}
    assert {kind for kind, state in kinds.items() if state == "unchecked"} <= {"ServiceMonitor"}
    assert kinds.keys() >= ALWAYS
    if case == "everything":
        assert kinds.keys() == ALWAYS | OPTIONAL


def test_an_unknown_field_is_found() -> None:
    planted = rendered("defaults").replace("replicas:", "replcas:")
    done = subprocess.run([chart.manifest_checker()], input=planted, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'unknown field "spec.replcas"' in done.stdout


@pytest.mark.parametrize("case", CASES)
def test_every_container_is_hardened_and_has_resources(case: str) -> None:
    for container in containers(case):
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys() and container["resources"]["limits"]
        writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
        assert SCRATCH <= writable <= SCRATCH | {"/models", "/clicks"}
        assert ("/models" in writable) == (container["name"] in ("import", "expire", "retrain"))
    for _, pod in pods(case):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["automountServiceAccountToken"] is False
        # A Service named ssi-serve would set SSI_SERVE_PORT, an option of `ssi serve`.
        assert spec["enableServiceLinks"] is False
        mounted = {one["name"] for each in containers(case) for one in each["volumeMounts"]}
        assert {volume["name"] for volume in spec["volumes"]} <= mounted


@pytest.mark.parametrize("case", CASES)
def test_names_fit_and_selectors_find_only_the_service(case: str) -> None:
    for one in manifests(case):
        # A CronJob adds eleven characters to the names of its jobs.
        assert len(one["metadata"]["name"]) <= (52 if one["kind"] == "CronJob" else 63)
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", one["metadata"]["name"])
    selector = next(one["spec"]["selector"] for one in manifests(case) if one["kind"] == "Service")
    found = [name for name, pod in pods(case) if selector.items() <= pod["metadata"]["labels"].items()]
    assert found == [one["metadata"]["name"] for one in manifests(case) if one["kind"] == "Deployment"]


@pytest.mark.parametrize("case", CASES)
def test_every_environment_variable_is_one_of_the_program(case: str) -> None:
    known = set(re.findall(r"`(SSI_ENGINE_\w+)`", (chart.ROOT / "docs" / "reference.md").read_text("utf-8")))
    known |= {"HOME", "OMP_NUM_THREADS", "NUMBA_CACHE_DIR", "SSI_STATE_DIR"}
    for container in containers(case):
        names = [variable["name"] for variable in container["env"]]
        assert set(names) <= known and len(names) == len(set(names))


def placed(case: str, folder: Path) -> dict[str, str]:
    """Write the files that the containers of a case see under a folder, and return path there → path here."""
    (config,) = (one for one in manifests(case) if one["kind"] == "ConfigMap")
    places = {path: str(folder / path.strip("/")) for path in ("/etc/ssi-keys", "/etc/ssi", "/models", "/clicks")}
    for place in places.values():
        Path(place).mkdir(parents=True)
    for name, text in config["data"].items():
        (Path(places["/etc/ssi"]) / name).write_text(text.replace("/etc/ssi/", f"{places['/etc/ssi']}/"))
    (Path(places["/etc/ssi-keys"]) / "keys.txt").write_text("")
    for name in ("model", "base"):
        (Path(places["/models"]) / name).mkdir()
    return places


def parsed(arguments: list[str], places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options that the program reads from the arguments of a container and its configuration file."""
    for there, here in places.items():
        arguments = [re.sub(rf"^{there}(?=/|$)", here, argument) for argument in arguments]
    at = 2 if arguments[0] == "--config" else 0
    name = " ".join(arguments[at : at + (2 if arguments[at] == "clicks" else 1)])
    seen: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(chart.command_of(name), "callback", lambda **options: seen.append(options))
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, (arguments, result.output)
    return seen[0]


@pytest.mark.parametrize("case", CASES)
def test_the_program_accepts_the_commands_and_the_configuration(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = placed(case, tmp_path)
    names = set()
    for container in containers(case):
        arguments = [str(argument) for argument in container["args"]]
        if container.get("command") == ["sh", "/etc/ssi/sync.sh"]:
            arguments += ["--model", "/models/model"]
        options = parsed(arguments, places, monkeypatch)
        names.add(container["name"])
        if container["name"] == "ssi":
            settings = _settings(options)
            assert settings.host == "0.0.0.0" and settings.without_keys == ("--without-keys" in arguments)
            assert (settings.rerank.window == 100) == (case == "everything")
            assert set(settings.bodies) == ({"blog"} if case == "everything" else set())
    (script,) = re.findall(r"^ssi (.*) >", (chart.CHART / "files" / "sync.sh").read_text("utf-8"), re.MULTILINE)
    assert parsed(script.split(), places, monkeypatch)["index"] == "shop"
    table = tomllib.loads((tmp_path / "etc/ssi/ssi.toml").read_text("utf-8")).get("engine", {})
    EngineSettings.from_environment({}, table)
    if case == "everything":
        assert names == {"ssi", "sync", "import", "expire", "retrain"}


def test_an_option_that_the_program_does_not_have_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = placed("defaults", tmp_path)
    with pytest.raises(AssertionError, match="threads was removed"):
        parsed(["--config", "/etc/ssi/ssi.toml", "serve", "--threads", "8"], places, monkeypatch)
    file = tmp_path / "etc/ssi/ssi.toml"
    file.write_text(file.read_text().replace("[serve]", "[serve]\nthreads = 8"))
    with pytest.raises(AssertionError, match=r"threads.* was removed"):
        parsed(["--config", "/etc/ssi/ssi.toml", "serve", "--models", "/models"], places, monkeypatch)


def test_a_pod_is_killed_only_after_the_service_has_drained() -> None:
    ((_, pod),) = ((name, pod) for name, pod in pods("defaults") if pod["spec"]["containers"][0]["name"] == "ssi")
    (container,) = pod["spec"]["containers"]
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert pod["spec"]["terminationGracePeriodSeconds"] >= int(seconds) + ServiceSettings("demo").drain_s + 5
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}


def test_a_change_of_the_configuration_restarts_the_pods() -> None:
    changed = helm("template", "release", values={"settings": {"serve": {"window": 50}}}).stdout
    sums = [set(re.findall(r"checksum/config: (\w+)", text)) for text in (rendered("defaults"), changed)]
    assert [len(one) for one in sums] == [1, 1] and sums[0] != sums[1]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": "two"}, "replicas"),
        ({"service": {"port": 70000}}, "port"),
        ({"networkPolicy": {"enginePorts": [0]}}, "enginePorts"),
        ({"engine": {"spec": "solr:http://search:8983"}}, "spec"),
        ({"engine": {"spec": "elasticsearch:https://user:secret@search:9200"}}, "spec"),
        ({"engine": {"spec": "tantivy:/data/index"}}, "spec"),
        ({"settings": {"serve": {"route": "beside"}}}, "route"),
        ({"settings": {"serve": {"windw": 100}}}, "windw"),
        ({"settings": {"serve": {"window": 0}}}, "window"),
        ({"settings": {"serve": {"port": 9000}}}, "port"),
        ({"settings": {"engine": {"password": "secret"}}}, "password"),
        ({"settings": {"retrain": {"margin": 1.0}}}, "margin"),
        ({"apiKeys": {"existingSecret": ""}}, "existingSecret"),
        ({"metrics": {"annotations": True}}, "required"),
        ({"ingress": {"enabled": True}}, "hosts"),
        ({"retrain": {"enabled": True}, "models": {"single": "model"}}, "single"),
        ({"retrain": {"acceptedStatuses": [1]}}, "acceptedStatuses"),
        ({"models": {"single": "../etc"}}, "single"),
        ({"sync": {"schedule": "often"}}, "schedule"),
        ({"terminationGracePeriodSeconds": 20, "preStopSeconds": 10}, "terminationGracePeriodSeconds"),
        ({"autoscaling": {"enabled": True, "maxReplicas": 1}}, "maxReplicas"),
        ({"body": "{"}, "JSON"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], named: str) -> None:
    done = helm("template", "release", values=values)
    assert done.returncode != 0
    assert named in done.stderr, done.stderr
    assert "secret@" not in done.stderr


def test_the_guide_installs_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = chart.GUIDE.read_text("utf-8")
    (values,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    (release,) = re.findall(r"helm upgrade --install (\S+) docker/chart", guide)
    done = helm("template", release, values=yaml.safe_load(values))
    assert done.returncode == 0, done.stderr
    named = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(done.stdout) if one}
    assert set(re.findall(r"deployment/([\w-]+)", guide)) == {name for kind, name in named if kind == "Deployment"}
    (pod,) = re.findall(r"<<'EOF'\n(.*?)^EOF", guide, re.DOTALL | re.MULTILINE)
    checked = subprocess.run([chart.manifest_checker()], input=pod, capture_output=True, text=True, check=False)
    assert checked.stdout == "valid Pod\n"
    config, models = yaml.safe_load(pod)["spec"]["volumes"]
    assert ("ConfigMap", config["configMap"]["name"]) in named
    assert ("PersistentVolumeClaim", models["persistentVolumeClaim"]["claimName"]) in named
    created = set(re.findall(r"create secret generic (\S+)", guide))
    assert created == {"ssi-api-keys", *re.findall(r"Secret: (ssi-\S+)", values)}
    commands = re.findall(r"-- ssi (.*)", guide)
    places = placed("defaults", tmp_path)
    for command in commands:
        assert parsed(["--config", "/etc/ssi/ssi.toml", *command.split()], places, monkeypatch)
    assert len(commands) == 2


@pytest.mark.parametrize("case", CASES)
def test_the_notes_name_the_service_and_what_is_missing(case: str, tmp_path: Path) -> None:
    # helm prints notes only when it installs into a cluster.
    copy = shutil.copytree(chart.CHART, tmp_path / "chart")
    text = (copy / "templates" / "NOTES.txt").read_text("utf-8")
    wrapped = f'{{{{ define "notes" }}}}{text}{{{{ end }}}}kind: Notes\ntext: {{{{ include "notes" . | quote }}}}\n'
    (copy / "templates" / "notes.yaml").write_text(wrapped, encoding="utf-8")
    arguments = ("template", "release", "--namespace", "search", "--show-only", "templates/notes.yaml")
    done = helm(*arguments, values=CASES[case], folder=copy)
    assert done.returncode == 0, done.stderr
    notes = yaml.safe_load(done.stdout)["text"]
    (service,) = (one["metadata"]["name"] for one in manifests(case) if one["kind"] == "Service")
    assert f"http://{service}.search:80" in notes and f"service/{service} 8080:80" in notes
    assert ("ssi-api-keys" in notes) == (case != "without keys, one model")
    assert (f"{service}-models" in notes) == (case != "without keys, one model")
    assert ("https://search.example" in notes) == (case == "everything")
