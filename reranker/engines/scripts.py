"""Requests that install reranking in an engine itself (stored scripts, endpoints, pipelines), and what prevents them.

The contents are the files of the package `plugin_scripts`; this module fills them in and sends the
requests in order.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final, Literal
from urllib.parse import quote

from reranker.engines.protocol import Capabilities, Engine, TakesRequests, requests_of, version_numbers
from reranker.engines.vectors import field_prefix, script_fields, script_source
from reranker.engines.wire import changed_texts
from reranker.errors import ConfigError, EngineError, EngineRejected, EngineUnavailable

NOT_RUN: Final = "written from the documentation, never run on this engine version"
"""Note on requests to engines that this project's tests cannot run; they check only the form of the request."""
PREDICT_NOTE: Final = (
    "every role that searches needs cluster:admin/opensearch/ml/predict; without it, and while the service does not "
    "answer, OpenSearch returns the first-stage order without an error"
)
"""Note on the test request: the failures that OpenSearch does not report at search time."""
_INFERENCE_LICENCES = ("enterprise", "trial")
_CUSTOM_SERVICE = (8, 19)
_RERANK_PROCESSOR = (2, 12)
_RERANK_RUN = (2, 19)
"""Version of OpenSearch whose own reranking the tests run."""
_ML = "/_plugins/_ml/"
_DESCRIPTION = "Reranks by the service at "
"""Beginning of the descriptions of connector and model in `plugin_scripts`."""
_ATTEMPTS, _PAUSE_S = 40, 0.25
"""How often, and at which interval, a step is repeated until the engine has reached its state."""
TRUSTED: Final = "plugins.ml_commons.trusted_connector_endpoints_regex"
"""Cluster setting of OpenSearch with the addresses that connectors may call."""
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,60}$")


State = Literal["done", "not possible", "absent", "refused"]


@dataclass(frozen=True, slots=True)
class Installed:
    """State of OpenSearch before the installation. A field is None if the role may not read it."""

    trusted: tuple[str, ...] | None = ()
    """Addresses (patterns) that connectors may call, and that stay trusted."""
    models: tuple[str, ...] | None = ()
    """Ids of the remote models of earlier installations by the same name."""
    connectors: tuple[str, ...] | None = ()
    """Ids of their connectors."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Names and addresses of what is installed. `ConfigError` for one that no engine accepts."""

    encoder_id: str | None = None
    """Encoder whose fields the stored scripts read; None: no scripts."""
    service: str | None = None
    """Address of `ssi serve` as seen from the engine, ``http://ssi:8080``; None: no engine-native reranking."""
    name: str = "ssi"
    """Name of endpoint, model and pipeline."""
    text_field: str = "text"
    """Field whose text is sent to the service."""
    id_field: str | None = None
    """Field of ``_source`` with the document's id, which is sent instead of the text; None: the text is sent."""
    key: str = field(default="none", repr=False)
    """The service's API key."""
    timeout_s: int = 2
    """Seconds after which OpenSearch stops waiting for the service and keeps the first-stage order."""
    installed: Installed = field(default_factory=Installed)
    """State of OpenSearch before the installation."""

    def __post_init__(self) -> None:
        if self.timeout_s < 1:
            raise ConfigError(f"timeout {self.timeout_s!r} is invalid: OpenSearch takes whole seconds, at least 1")
        for name in (self.text_field, self.id_field or ""):
            if "," in name:
                raise ConfigError(
                    f"field {name!r:.80} is invalid: name one field. OpenSearch joins the texts of several fields "
                    "without a space; with --id-field, the service reads all fields of the model"
                )
        if not _NAME.match(self.name):
            raise ConfigError(
                f"name {self.name!r:.80} is invalid: it must have at most 61 characters of a-z, 0-9, '-' and '_', and "
                "start with a letter or digit"
            )
        if self.service is not None and not re.match(r"^https?://[^/?#@\s\"]+(/[^?#\s\"]*)?$", self.service):
            raise ConfigError(
                f"service {self.service!r:.80} is invalid: write http://HOST:PORT, without a user or a password"
            )


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One request, or the reason why it cannot be sent."""

    what: str
    """Description of what the request creates."""
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str] | None = None
    """URL parameters."""
    why_not: str = ""
    """Why this engine cannot accept the request; empty if it can."""
    note: str = ""
    """Additional information, such as `NOT_RUN`."""
    gives: str = ""
    """Placeholder ``@<gives>@`` of later steps that this step's answer fills in; empty: none."""
    of: str = ""
    """Key of the value in the answer."""
    until: tuple[str, str, tuple[str, ...]] | None = None
    """Path, key and accepted values: the request is repeated until a GET of the path answers one of the values."""
    asks_service: bool = False
    """Whether an error status can be that of the service, which the engine passes on."""

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON."""
        return {
            "what": self.what,
            "method": self.method,
            "path": self.path,
            "params": dict(self.params or {}),
            "body": self.body,
            "possible": not self.why_not,
            "why_not": self.why_not,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step."""

    step: InstallStep
    state: State
    detail: str = ""
    """Reason, if the step was not possible or was refused."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        step = self.step
        return {"what": step.what, "state": self.state, "detail": self.detail, "note": step.note}


def _template(path: str, setup: Setup) -> dict[str, Any]:
    """Return a JSON file of `plugin_scripts` with its placeholders filled in; those without a value are kept."""
    service = (setup.service or "").rstrip("/")
    values = {
        "NAME": setup.name,
        "SERVICE": service,
        "SERVICE_REGEX": re.escape(service).replace("/", "\\/"),
        "KEY": setup.key,
        "FIELD": setup.id_field or setup.text_field,
        "TEXT": setup.text_field,
        "DOCUMENTS": "ids" if setup.id_field else "texts",
    }
    text = resources.files("plugin_scripts").joinpath(path).read_text("utf-8")
    filled: dict[str, Any] = _fill(json.loads(text), values)
    return filled


def _connector(setup: Setup) -> dict[str, Any]:
    """Return the body of the connector, whose script escapes the texts that ml-commons would substitute."""
    body = _template("opensearch/connector.json", setup)
    body["client_config"]["read_timeout"] = setup.timeout_s
    script = resources.files("plugin_scripts").joinpath("opensearch/request.painless").read_text("utf-8")
    body["actions"][0]["pre_process_function"] = script
    return body


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    def filled(text: str) -> str:
        return re.sub(r"@([A-Z_]+)@", lambda place: values.get(place[1], place[0]), text)

    return changed_texts(value, filled, names=True)


def install_steps(setup: Setup, capabilities: Capabilities, licence: str) -> list[InstallStep]:
    """Return the requests that install the setup in the engine, in order.

    ``licence`` is the type of the engine's licence (``basic``), or empty if it has none.
    """
    steps = _script_steps(setup.encoder_id, capabilities) if setup.encoder_id else []
    if setup.service is not None:
        if capabilities.kind == "elasticsearch":
            steps += _elasticsearch_steps(setup, capabilities, licence)
        else:
            steps += _opensearch_steps(setup, capabilities)
    return steps


def script_ids(encoder_id: str) -> dict[Literal["model", "blend"], str]:
    """Return the ids of the stored scripts: ``{"model": "ssi_<12 hex>_model", "blend": ...}``."""
    prefix = field_prefix(encoder_id)
    return {"model": f"{prefix}model", "blend": f"{prefix}blend"}


def _script_steps(encoder_id: str, capabilities: Capabilities) -> list[InstallStep]:
    """Return the requests that store both scripts for the fields of an encoder."""
    why_not = "" if capabilities.painless else "the engine does not run painless scripts"
    if why_not and capabilities.kind == "elasticsearch":
        why_not += "; route inside does not need them"
    fields = script_fields(encoder_id, capabilities)
    note = NOT_RUN if capabilities.kind == "elasticsearch" else ""
    return [
        InstallStep(
            f"stored script {identifier}",
            "PUT",
            f"/_scripts/{identifier}",
            {"script": {"lang": "painless", "source": script_source(name, fields)}},
            why_not=why_not,
            note=note,
        )
        for name, identifier in script_ids(encoder_id).items()
    ]


def _elasticsearch_steps(setup: Setup, capabilities: Capabilities, licence: str) -> list[InstallStep]:
    numbers = version_numbers(capabilities.version)
    if capabilities.modules is not None and "x-pack-inference" not in capabilities.modules:
        why_not = "this build has no inference API (module x-pack-inference)"
    elif numbers and numbers < _CUSTOM_SERVICE:
        why_not = f"version {capabilities.version} has no 'custom' inference service; it needs 8.19"
    elif licence not in _INFERENCE_LICENCES:
        why_not = (
            f"the licence is {licence or 'unknown'}, but reranking with inference endpoints needs enterprise: use "
            "route inside, or `ssi serve` in front of the engine"
        )
    else:
        why_not = ""
    path = f"/_inference/rerank/{quote(setup.name)}"
    body = _template("elasticsearch/inference_custom.json", setup)
    return [InstallStep(f"inference endpoint {setup.name}", "PUT", path, body, why_not=why_not, note=NOT_RUN)]


def _opensearch_steps(setup: Setup, capabilities: Capabilities) -> list[InstallStep]:
    """Return the requests that install connector, model and pipeline, remove earlier ones, and test the result."""
    numbers = version_numbers(capabilities.version)
    why_not = _why_no_rerank(capabilities)
    note = "" if numbers[:2] == _RERANK_RUN else NOT_RUN
    found = setup.installed
    settings = _template("opensearch/cluster_settings.json", setup)
    own = settings["persistent"][TRUSTED]
    settings["persistent"][TRUSTED] = list(dict.fromkeys([*(found.trusted or ()), *own]))
    why_not_trusted = why_not
    if not why_not and found.trusted is None:
        why_not_trusted = (
            "the role may not read the cluster settings, so that writing them would remove the addresses that other "
            f"connectors rely on: use a role with cluster:monitor/state, or add {own[0]} to {TRUSTED} yourself"
        )
    steps = [
        InstallStep("trusted address of the service", "PUT", "/_cluster/settings", settings, why_not=why_not_trusted),
        InstallStep(
            "connector", "POST", f"{_ML}connectors/_create", _connector(setup), gives="CONNECTOR", of="connector_id"
        ),
        InstallStep(
            "remote model",
            "POST",
            f"{_ML}models/_register",
            _template("opensearch/model.json", setup),
            {"deploy": "true"},
            gives="MODEL",
            of="model_id",
        ),
        # The earlier model is removed only after the pipeline has left it.
        InstallStep(
            f"search pipeline {setup.name}",
            "PUT",
            f"/_search/pipeline/{setup.name}",
            _template("opensearch/pipeline.json", setup),
            gives="PIPELINE",
            of="acknowledged",
        ),
        *(step for step in _removal_steps(found) if not why_not),
        InstallStep(
            "test request to the service",
            "POST",
            f"{_ML}_predict/text_similarity/@MODEL@",
            {"query_text": 'a "test" ${parameters.query}', "text_docs": ["a \\ b"]},
            note=PREDICT_NOTE,
            asks_service=True,
        ),
    ]
    return [
        replace(step, why_not=step.why_not or why_not, note="; ".join(filter(None, (step.note, note))))
        for step in steps
    ]


def _why_no_rerank(capabilities: Capabilities) -> str:
    """Return why an OpenSearch cannot rerank by a service; empty if it can."""
    modules, numbers = capabilities.modules, version_numbers(capabilities.version)
    missing = [] if modules is None else [n for n in ("opensearch-ml", "opensearch-neural-search") if n not in modules]
    if missing:
        return f"the engine does not have the plugin {missing[0]}"
    if numbers and numbers < _RERANK_PROCESSOR:
        return f"version {capabilities.version} has no rerank processor; it needs 2.12"
    # A role that may not read the modules has no known capabilities.
    if modules is not None and not capabilities.painless:
        return "the engine does not run painless scripts, of which the connector needs one"
    return ""


def _removal_steps(found: Installed) -> list[InstallStep]:
    """Return the requests that remove the models and connectors of earlier installations."""
    if found.models is None or found.connectors is None:
        why_not = (
            "the role may not search them: use a role with cluster:admin/opensearch/ml/models/search and "
            "cluster:admin/opensearch/ml/connectors/search"
        )
        return [InstallStep("earlier models and connectors", "POST", f"{_ML}models/_search", why_not=why_not)]
    steps = []
    for model in found.models:
        path = f"{_ML}models/{quote(model, safe='')}"
        # A deployed model cannot be deleted, and a deployment that has just begun undoes an undeployment.
        states = (path, "model_state", ("UNDEPLOYED", "REGISTERED", "DEPLOY_FAILED"))
        steps.append(InstallStep(f"undeployment of earlier model {model}", "POST", f"{path}/_undeploy", until=states))
        steps.append(InstallStep(f"removal of earlier model {model}", "DELETE", path))
    for connector in found.connectors:
        path = f"{_ML}connectors/{quote(connector, safe='')}"
        steps.append(InstallStep(f"removal of earlier connector {connector}", "DELETE", path))
    return steps


def remove_steps(setup: Setup, capabilities: Capabilities) -> list[InstallStep]:
    """Return the requests that remove scripts, endpoint, pipeline, models and connectors; missing ones are skipped.

    The trusted address of OpenSearch stays in the cluster settings, because other connectors may rely on it.
    """
    steps = [
        InstallStep(step.what, "DELETE", step.path, note=NOT_RUN if step.path.startswith("/_inference") else "")
        for step in install_steps(setup, capabilities, "")
        if step.method == "PUT" and step.path != "/_cluster/settings"
    ]
    if setup.service is not None and capabilities.kind == "opensearch" and not _why_no_rerank(capabilities):
        steps += _removal_steps(setup.installed)
    return steps


def example_search(setup: Setup, capabilities: Capabilities) -> dict[str, Any]:
    """Return an example search body that uses what was installed, with ``{{query}}`` for the query text."""
    return _template(f"{capabilities.kind}/search.json", setup)


def _answer_if_allowed(
    engine: Engine,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """Return the answer to a request that reads; None if the role may not send it, empty if there is none."""
    try:
        return requests_of(engine).request(method, path, body, params)
    except EngineUnavailable:
        raise
    except EngineError as error:
        if error.status == 401:
            raise
        return None if error.status == 403 else {}


def licence_of(engine: Engine) -> str:
    """Return the type of the engine's licence; "" if it has none, or the role may not read it.

    A newly started engine has no licence (404) until its master has written one, so this waits for its queued tasks.
    """
    if engine.capabilities().kind != "elasticsearch":
        return ""
    licence = (_answer_if_allowed(engine, "GET", "/_license") or {}).get("license")
    if licence is None:
        waiting = {"wait_for_events": "languid", "timeout": "30s"}
        _answer_if_allowed(engine, "GET", "/_cluster/health", params=waiting)
        licence = (_answer_if_allowed(engine, "GET", "/_license") or {}).get("license")
    return str(licence.get("type", "")) if isinstance(licence, dict) else ""


def installed_in(engine: Engine, name: str) -> Installed:
    """Return what OpenSearch has of earlier installations by a name, and the addresses that it trusts.

    Models and connectors are found by their name and description. All is empty for Elasticsearch.
    """
    if engine.capabilities().kind != "opensearch":
        return Installed()
    return Installed(_trusted(engine), _ids_of(engine, "models", name), _ids_of(engine, "connectors", name))


def _trusted(engine: Engine) -> tuple[str, ...] | None:
    """Return the addresses that connectors may call; None if the role may not read the settings."""
    shown = {"include_defaults": "true", "flat_settings": "true"}
    answer = _answer_if_allowed(engine, "GET", "/_cluster/settings", params=shown)
    if answer is None:
        return None
    for part in ("transient", "persistent", "defaults"):
        value = answer.get(part, {}).get(TRUSTED)
        if isinstance(value, list):
            return tuple(map(str, value))
    return ()


def _ids_of(engine: Engine, what: Literal["models", "connectors"], name: str) -> tuple[str, ...] | None:
    """Return the sorted ids of models or connectors of earlier installations; None if the role may not search them."""
    query = {"size": 1000, "query": {"term": {"name.keyword": name}}, "_source": ["name", "description"]}
    answer = _answer_if_allowed(engine, "POST", f"{_ML}{what}/_search", query)
    if answer is None:
        return None
    hits = answer.get("hits", {}).get("hits", [])
    return tuple(sorted(str(hit["_id"]) for hit in hits if _is_ours(hit.get("_source", {}), name)))


def _is_ours(source: Mapping[str, Any], name: str) -> bool:
    return source.get("name") == name and str(source.get("description", "")).startswith(_DESCRIPTION)


def carry_out_steps(engine: Engine, steps: Sequence[InstallStep]) -> list[Done]:
    """Send the steps and return their results; after a refusal, steps that need its answer are not sent.

    Raises `EngineUnavailable` or `EngineAuthError` if the engine does not answer, or rejects the credentials.
    """
    target, known = requests_of(engine), dict[str, str]()
    done: list[Done] = []
    broken = ""
    for planned in steps:
        step = replace(planned, path=_fill(planned.path, known), body=_fill(planned.body, known))
        if step.why_not or broken:
            done.append(Done(step, "not possible", step.why_not or broken))
            continue
        try:
            answer = _sent(target, step)
        except EngineError as error:
            of_service = step.asks_service and error.status is not None
            if not of_service and (isinstance(error, EngineUnavailable) or error.status == 401):
                raise
            done.append(Done(step, "absent") if _is_absent(step, error) else Done(step, "refused", str(error)))
            broken = f"it depends on: {step.what}" if step.gives else ""
            continue
        if step.gives:
            known[step.gives] = str(answer.get(step.of, ""))
        done.append(Done(step, "done"))
    return done


def _sent(target: TakesRequests, step: InstallStep) -> dict[str, Any]:
    """Send a step and return the answer. A step with `InstallStep.until` is repeated until that state, or 10 s."""
    answer = target.request(step.method, step.path, step.body, step.params)
    if step.until is None:
        return answer
    path, key, values = step.until
    for _ in range(_ATTEMPTS):
        state = target.request("GET", path).get(key)
        if state in values:
            return answer
        time.sleep(_PAUSE_S)
        answer = target.request(step.method, step.path, step.body, step.params)
    raise EngineRejected(f"{key} of {path} is still {state!r} after {_ATTEMPTS * _PAUSE_S:g} s; run the command again")


def _is_absent(step: InstallStep, error: EngineError) -> bool:
    """Return whether a refused removal means that there was nothing to remove.

    Engines without an API answer 400 or 405 to its removals. Models and connectors are removed by ids that a search
    found, so their API exists, and a 400 says that they are in use.
    """
    statuses = (404,) if step.path.startswith(_ML) else (400, 404, 405)
    return (step.method == "DELETE" or step.until is not None) and error.status in statuses
