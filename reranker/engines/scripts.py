"""What can be put into an engine so that it reranks by itself, as requests: what it takes, and why not the rest.

The contents are the files of the package `plugin_scripts`; here they are filled in, put in order and sent.
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
"""What is said of requests to engines that the tests of this project cannot run."""
_INFERENCE_LICENCES = ("enterprise", "trial")
_CUSTOM_SERVICE = (8, 19)
_RERANK_PROCESSOR = (2, 12)
TRUSTED: Final = "plugins.ml_commons.trusted_connector_endpoints_regex"
"""Cluster setting of OpenSearch: addresses that connectors may call."""
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,60}$")


State = Literal["done", "not possible", "absent", "refused"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is wanted; `ConfigError` for a name or an address that no engine takes."""

    encoder_id: str | None = None
    """Whose fields the stored scripts read; None: no scripts."""
    service: str | None = None
    """Address of `ssi serve` as the engine sees it, ``http://ssi:8080``; None: no engine-native reranking."""
    name: str = "ssi"
    """Of endpoint, model and pipeline."""
    text_field: str = "text"
    """Field whose text is sent to the service."""
    id_field: str | None = None
    """Field of ``_source`` with the document's id, sent instead of the text."""
    key: str = field(default="none", repr=False)
    """The service's API key."""
    trusted: tuple[str, ...] = ()
    """Addresses (patterns) that OpenSearch trusts already and goes on trusting."""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ConfigError(f"name {self.name!r:.80} is not legal: a-z, 0-9, '-' and '_', at most 61 of them")
        if self.service is not None and not re.match(r"^https?://[^/?#@\s\"]+(/[^?#\s\"]*)?$", self.service):
            raise ConfigError(
                f"service {self.service!r:.80} is not legal: write http://HOST:PORT, without a user or a password"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """One request, or the reason why it cannot be sent."""

    what: str
    """In words."""
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    params: Mapping[str, str] | None = None
    """Of the URL."""
    why_not: str = ""
    """Empty where the engine at hand can take it."""
    note: str = ""
    """What else to know, such as `NOT_RUN`."""
    gives: str = ""
    of: str = ""
    """The answer's value ``of`` fills in ``@<gives>@`` of the steps after it."""

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
    """What became of a step: ``detail`` is the reason where it was not possible or refused."""

    step: Step
    state: State
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        step = self.step
        return {"what": step.what, "state": self.state, "detail": self.detail, "note": step.note}


def _template(path: str, setup: Setup) -> dict[str, Any]:
    """Return a JSON file of `plugin_scripts`, its places filled in after parsing; those without a value stay."""
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


def install_steps(setup: Setup, capabilities: Capabilities, licence: str) -> list[Step]:
    """Return what to send to the engine at hand, in order; ``licence`` is its type (``basic``), or empty for none."""
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


def _script_steps(encoder_id: str, capabilities: Capabilities) -> list[Step]:
    """Return the requests that store both scripts for the fields of an encoder."""
    why_not = "" if capabilities.painless else "the engine runs no painless scripts"
    if why_not and capabilities.kind == "elasticsearch":
        why_not += "; route inside does without them"
    fields = script_fields(encoder_id, capabilities)
    note = NOT_RUN if capabilities.kind == "elasticsearch" else ""
    return [
        Step(
            f"stored script {identifier}",
            "PUT",
            f"/_scripts/{identifier}",
            {"script": {"lang": "painless", "source": script_source(name, fields)}},
            why_not=why_not,
            note=note,
        )
        for name, identifier in script_ids(encoder_id).items()
    ]


def _elasticsearch_steps(setup: Setup, capabilities: Capabilities, licence: str) -> list[Step]:
    numbers = version_numbers(capabilities.version)
    if capabilities.modules is not None and "x-pack-inference" not in capabilities.modules:
        why_not = "this build has no inference API (module x-pack-inference)"
    elif numbers and numbers < _CUSTOM_SERVICE:
        why_not = f"version {capabilities.version} has no 'custom' inference service; it came with 8.19"
    elif licence not in _INFERENCE_LICENCES:
        why_not = (
            f"the licence is {licence or 'unknown'}, reranking by inference endpoints needs enterprise: "
            "use route inside, or `ssi serve` before the engine"
        )
    else:
        why_not = ""
    path = f"/_inference/rerank/{quote(setup.name)}"
    body = _template("elasticsearch/inference_custom.json", setup)
    return [Step(f"inference endpoint {setup.name}", "PUT", path, body, why_not=why_not, note=NOT_RUN)]


def _opensearch_steps(setup: Setup, capabilities: Capabilities) -> list[Step]:
    modules, numbers = capabilities.modules, version_numbers(capabilities.version)
    missing = [] if modules is None else [n for n in ("opensearch-ml", "opensearch-neural-search") if n not in modules]
    why_not = f"the engine lacks the plugin {missing[0]}" if missing else ""
    if not why_not and numbers and numbers < _RERANK_PROCESSOR:
        why_not = f"version {capabilities.version} has no rerank processor; it came with 2.12"
    settings = _template("opensearch/cluster_settings.json", setup)
    own = settings["persistent"][TRUSTED]
    settings["persistent"][TRUSTED] = list(dict.fromkeys([*setup.trusted, *own]))
    trust = Step("trusted address of the service", "PUT", "/_cluster/settings", settings, None, why_not, NOT_RUN)
    files = [
        ("connector", "POST", "/_plugins/_ml/connectors/_create", "connector", None, "CONNECTOR", "connector_id"),
        ("remote model", "POST", "/_plugins/_ml/models/_register", "model", {"deploy": "true"}, "MODEL", "model_id"),
        (f"search pipeline {setup.name}", "PUT", f"/_search/pipeline/{setup.name}", "pipeline", None, "", ""),
    ]
    return [trust] + [
        Step(what, method, path, _template(f"opensearch/{file}.json", setup), params, why_not, NOT_RUN, gives, of)
        for what, method, path, file, params, gives, of in files
    ]


def remove_steps(setup: Setup, capabilities: Capabilities) -> list[Step]:
    """Return what takes the scripts, the endpoint or the pipeline out again; what is not there is passed over.

    Connector, remote model and cluster setting of OpenSearch stay: ids are the engine's, the setting may have users.
    """
    return [
        Step(step.what, "DELETE", step.path, note=NOT_RUN if step.path.startswith("/_inference") else "")
        for step in install_steps(setup, capabilities, "")
        if step.method == "PUT" and step.path != "/_cluster/settings"
    ]


def example_search(setup: Setup, capabilities: Capabilities) -> dict[str, Any]:
    """Return a search body that uses what was put in; ``{{query}}`` stands for the text of the query."""
    return _template(f"{capabilities.kind}/search.json", setup)


def requests_of(engine: Engine) -> TakesRequests:
    """Return the engine as one that takes any request; `Unsupported` for an embedded engine."""
    if not isinstance(engine, TakesRequests):
        kind = engine.capabilities().kind
        raise Unsupported(
            f"{kind} takes no requests (scripts, pipelines, a proxy's): name Elasticsearch or OpenSearch",
            engine=kind,
        )
    return engine


def _answer_if_allowed(engine: Engine, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the answer to a GET request; empty where a role may not ask or the engine does not know it."""
    try:
        return requests_of(engine).request("GET", path, params=params)
    except EngineUnavailable:
        raise
    except EngineError:
        return {}


def licence_of(engine: Engine) -> str:
    """Return the type of the engine's licence, "" where it has none or a role may not ask.

    An engine that has just started has none (404) until its master has written one: its queued tasks are waited for.
    """
    if engine.capabilities().kind != "elasticsearch":
        return ""
    licence = _answer_if_allowed(engine, "/_license").get("license")
    if licence is None:
        _answer_if_allowed(engine, "/_cluster/health", {"wait_for_events": "languid", "timeout": "30s"})
        licence = _answer_if_allowed(engine, "/_license").get("license")
    return str(licence.get("type", "")) if isinstance(licence, dict) else ""


def trusted_of(engine: Engine) -> tuple[str, ...]:
    """Return the addresses that OpenSearch lets connectors call now; none where there are no connectors."""
    if engine.capabilities().kind != "opensearch":
        return ()
    shown = {"include_defaults": "true", "flat_settings": "true"}
    answer = _answer_if_allowed(engine, "/_cluster/settings", shown)
    for part in ("transient", "persistent", "defaults"):
        value = answer.get(part, {}).get(TRUSTED)
        if isinstance(value, list):
            return tuple(map(str, value))
    return ()


def carry_out(engine: Engine, steps: Sequence[Step]) -> list[Done]:
    """Return what became of each step; after a refusal, the steps that need its answer are not sent.

    `EngineUnavailable` or `EngineAuthError` if the engine does not answer, or does not know who asks.
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
            broken = f"it builds on: {step.what}" if step.gives else ""
            continue
        if step.gives:
            known[step.gives] = str(answer.get(step.of, ""))
        done.append(Done(step, "done"))
    return done
