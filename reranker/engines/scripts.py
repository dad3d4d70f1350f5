"""Requests that install reranking in an engine itself (stored scripts, endpoints, pipelines), and what prevents them.

The contents are the files of the package `plugin_scripts`; this module fills them in and sends the
requests in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Final, Literal
from urllib.parse import quote

from reranker.engines.protocol import Capabilities, Engine, TakesRequests, version_numbers
from reranker.engines.vectors import field_prefix, script_fields, script_source
from reranker.engines.wire import changed_texts
from reranker.errors import ConfigError, EngineError, EngineUnavailable, Unsupported

NOT_RUN: Final = "checked against recorded shapes, not run"
"""Note on requests to engines that this project's tests cannot run."""
_INFERENCE_LICENCES = ("enterprise", "trial")
_CUSTOM_SERVICE = (8, 19)
_RERANK_PROCESSOR = (2, 12)
TRUSTED: Final = "plugins.ml_commons.trusted_connector_endpoints_regex"
"""Cluster setting of OpenSearch with the addresses that connectors may call."""
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,60}$")


State = Literal["done", "not possible", "absent", "refused"]


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
    trusted: tuple[str, ...] = ()
    """Addresses (patterns) that OpenSearch already trusts, and that stay trusted."""

    def __post_init__(self) -> None:
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
    modules, numbers = capabilities.modules, version_numbers(capabilities.version)
    missing = [] if modules is None else [n for n in ("opensearch-ml", "opensearch-neural-search") if n not in modules]
    why_not = f"the engine does not have the plugin {missing[0]}" if missing else ""
    if not why_not and numbers and numbers < _RERANK_PROCESSOR:
        why_not = f"version {capabilities.version} has no rerank processor; it needs 2.12"
    settings = _template("opensearch/cluster_settings.json", setup)
    own = settings["persistent"][TRUSTED]
    settings["persistent"][TRUSTED] = list(dict.fromkeys([*setup.trusted, *own]))
    trust = InstallStep("trusted address of the service", "PUT", "/_cluster/settings", settings, None, why_not, NOT_RUN)
    files = [
        ("connector", "POST", "/_plugins/_ml/connectors/_create", "connector", None, "CONNECTOR", "connector_id"),
        ("remote model", "POST", "/_plugins/_ml/models/_register", "model", {"deploy": "true"}, "MODEL", "model_id"),
        (f"search pipeline {setup.name}", "PUT", f"/_search/pipeline/{setup.name}", "pipeline", None, "", ""),
    ]
    return [trust] + [
        InstallStep(
            what, method, path, _template(f"opensearch/{file}.json", setup), params, why_not, NOT_RUN, gives, of
        )
        for what, method, path, file, params, gives, of in files
    ]


def remove_steps(setup: Setup, capabilities: Capabilities) -> list[InstallStep]:
    """Return the requests that remove scripts, endpoint and pipeline; missing ones are skipped.

    Connector, remote model and cluster setting of OpenSearch are kept: the engine assigns the ids of the former, and
    others may rely on the latter.
    """
    return [
        InstallStep(step.what, "DELETE", step.path, note=NOT_RUN if step.path.startswith("/_inference") else "")
        for step in install_steps(setup, capabilities, "")
        if step.method == "PUT" and step.path != "/_cluster/settings"
    ]


def example_search(setup: Setup, capabilities: Capabilities) -> dict[str, Any]:
    """Return an example search body that uses what was installed, with ``{{query}}`` for the query text."""
    return _template(f"{capabilities.kind}/search.json", setup)


def requests_of(engine: Engine) -> TakesRequests:
    """Return the engine as one that accepts any request of its API. `Unsupported` for an embedded engine."""
    if not isinstance(engine, TakesRequests):
        kind = engine.capabilities().kind
        raise Unsupported(
            f"{kind} does not accept API requests (scripts, pipelines, proxied searches): use Elasticsearch or "
            "OpenSearch",
            engine=kind,
        )
    return engine


def _answer_if_allowed(engine: Engine, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the answer to a GET request; empty if the role may not send it, or the engine does not know it."""
    try:
        return requests_of(engine).request("GET", path, params=params)
    except EngineUnavailable:
        raise
    except EngineError:
        return {}


def licence_of(engine: Engine) -> str:
    """Return the type of the engine's licence; "" if it has none, or the role may not read it.

    A newly started engine has no licence (404) until its master has written one, so this waits for its queued tasks.
    """
    if engine.capabilities().kind != "elasticsearch":
        return ""
    licence = _answer_if_allowed(engine, "/_license").get("license")
    if licence is None:
        _answer_if_allowed(engine, "/_cluster/health", {"wait_for_events": "languid", "timeout": "30s"})
        licence = _answer_if_allowed(engine, "/_license").get("license")
    return str(licence.get("type", "")) if isinstance(licence, dict) else ""


def trusted_of(engine: Engine) -> tuple[str, ...]:
    """Return the addresses that OpenSearch currently lets connectors call; empty for Elasticsearch."""
    if engine.capabilities().kind != "opensearch":
        return ()
    shown = {"include_defaults": "true", "flat_settings": "true"}
    answer = _answer_if_allowed(engine, "/_cluster/settings", shown)
    for part in ("transient", "persistent", "defaults"):
        value = answer.get(part, {}).get(TRUSTED)
        if isinstance(value, list):
            return tuple(map(str, value))
    return ()


def carry_out_steps(engine: Engine, steps: Sequence[InstallStep]) -> list[Done]:
    """Send the steps and return their results; after a refusal, steps that need its answer are not sent.

    Raises `EngineUnavailable` or `EngineAuthError` if the engine does not answer, or rejects the credentials.
    """
    target, known = requests_of(engine), dict[str, str]()
    done: list[Done] = []
    broken = ""
    for planned in steps:
        step = replace(planned, body=_fill(planned.body, known)) if planned.body is not None else planned
        if step.why_not or broken:
            done.append(Done(step, "not possible", step.why_not or broken))
            continue
        try:
            answer = target.request(step.method, step.path, step.body, step.params)
        except EngineError as error:
            if isinstance(error, EngineUnavailable) or error.status == 401:
                raise
            absent = step.method == "DELETE" and error.status in (400, 404, 405)
            done.append(Done(step, "absent") if absent else Done(step, "refused", str(error)))
            broken = f"it depends on: {step.what}" if step.gives else ""
            continue
        if step.gives:
            known[step.gives] = str(answer.get(step.of, ""))
        done.append(Done(step, "done"))
    return done
