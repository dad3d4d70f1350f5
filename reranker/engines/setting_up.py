"""Sends the requests of `reranker.engines.setup` to an engine, and tells what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from reranker.engines.base import Engine, TakesRequests
from reranker.engines.setup import TRUSTED, Step, fill
from reranker.errors import EngineAuthError, EngineError, EngineUnavailable, Unsupported

State = Literal["done", "not possible", "absent", "refused"]


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


def requests_of(engine: Engine) -> TakesRequests:
    """Return the engine as one that takes any request.

    Raises
    ------
    Unsupported
        For an embedded engine.
    """
    if not isinstance(engine, TakesRequests):
        kind = engine.capabilities().kind
        raise Unsupported(f"{kind} takes no scripts and pipelines: name Elasticsearch or OpenSearch", engine=kind)
    return engine


def licence_of(engine: Engine) -> str:
    """Return the type of the engine's licence, "" where it has none or a role may not ask."""
    if engine.capabilities().kind != "elasticsearch":
        return ""
    try:
        answer = requests_of(engine).request("GET", "/_license")
    except EngineUnavailable:
        raise
    except EngineError:
        return ""
    licence = answer.get("license")
    return str(licence.get("type", "")) if isinstance(licence, dict) else ""


def trusted_of(engine: Engine) -> tuple[str, ...]:
    """Return the addresses that OpenSearch lets connectors call now; none where there are no connectors."""
    if engine.capabilities().kind != "opensearch":
        return ()
    try:
        shown = {"include_defaults": "true", "flat_settings": "true"}
        answer = requests_of(engine).request("GET", "/_cluster/settings", params=shown)
    except EngineUnavailable:
        raise
    except EngineError:
        return ()
    for part in ("transient", "persistent", "defaults"):
        value = answer.get(part, {}).get(TRUSTED)
        if isinstance(value, list):
            return tuple(map(str, value))
    return ()


def carry_out(engine: Engine, steps: Sequence[Step]) -> list[Done]:
    """Return what became of each step; after a refusal, the steps that need its answer are not sent.

    Raises
    ------
    EngineUnavailable, EngineAuthError
        If the engine does not answer, or does not know who asks.
    """
    target, known = requests_of(engine), dict[str, str]()
    done: list[Done] = []
    broken = ""
    for planned in steps:
        step = replace(planned, body=fill(planned.body, known)) if planned.body is not None else planned
        if step.why_not or broken:
            done.append(Done(step, "not possible", step.why_not or broken))
            continue
        result = _send(target, step)
        if isinstance(result, Done):
            done.append(result)
            broken = f"it builds on: {step.what}" if step.gives and result.state != "done" else ""
            continue
        if step.gives:
            known[step.gives] = str(result.get(step.of, ""))
        done.append(Done(step, "done"))
    return done


def _send(target: TakesRequests, step: Step) -> dict[str, Any] | Done:
    try:
        return target.request(step.method, step.path, step.body, step.params)
    except EngineUnavailable:
        raise
    except EngineAuthError as error:
        if error.status == 401:
            raise
        return Done(step, "refused", str(error))
    except EngineError as error:
        if step.method == "DELETE" and error.status in (400, 404, 405):
            return Done(step, "absent")
        return Done(step, "refused", str(error))
