"""Operator routes under ``/admin``: status, promote, roll back, measure drift. They need a key with role ``admin``.

Work that takes longer than a request may take (`Job`) is started by one request; a later request reports its result.
Queries are shown only if enough people searched for them (`reranker.clicks.doctor.LEAST_PEOPLE`).
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from fastapi import APIRouter, Response
from msgspec import Meta
from pydantic import BaseModel, Field

from indexer.drift import measure_drift
from indexer.versions import list_versions, promote, rollback
from reranker.clicks.doctor import LEAST_PEOPLE, examine, query_losses
from reranker.clicks.importing import open_logs
from reranker.clicks.pairs import Resources
from reranker.errors import ArtifactError, RerankerError
from reranker.files import write_file
from reranker.formats import RejectLog
from reranker.models.manifest import describe_model
from reranker.releases import ControlRecord, last_gates, read_control
from reranker.service.http import (
    Context,
    ErrorBody,
    JsonRoute,
    RequestBody,
    RequestContext,
    ServiceError,
    body_of,
    error_responses,
    of_error,
)
from reranker.service.proxy import FORWARDED
from reranker.service.search import encode
from reranker.service.state import ServiceState, State

_log = logging.getLogger(__name__)
FRESH_S = 60.0
"""Seconds for which click statistics are reused before the log is read again."""
LISTED = 10
"""Queries shown in each list."""
MAX_RANKS = 20
NO_STORE = {"Cache-Control": "no-store"}
RESPONSES = error_responses(ErrorBody, 404, 409)
MODEL_ID = "^[0-9a-f]{6,64}$"
ONE_FOLDER = "this service always serves one model folder: start it with --models to change versions"

router = APIRouter(route_class=JsonRoute, tags=["operations"])


class Status(BaseModel):
    """State of the search service. In a part that could not be read, ``unknown`` gives the reason and the remedy."""

    index: str
    served: Annotated[dict[str, Any], Field(description="The version of the process that answers.")]
    versions: Annotated[dict[str, Any], Field(description="Versions of the index: the live one and the previous one.")]
    change: Annotated[dict[str, Any], Field(description="Result of the last promotion or rollback started here.")]
    searches: Annotated[dict[str, Any], Field(description="Latency and fallbacks of all processes since the start.")]
    shapes: Annotated[
        dict[str, Any], Field(description="Search bodies by shape, with the origin of alpha, of the answering process.")
    ]
    clicks: Annotated[dict[str, Any], Field(description="Click rate by rank, and the doctor's findings in the log.")]
    queries: Annotated[dict[str, Any], Field(description="Queries with the greatest losses.")]
    drift: Annotated[dict[str, Any], Field(description="How far the index has moved from the served model.")]
    gates: Annotated[dict[str, Any], Field(description="Results of the last retrainings.")]


class Begun(BaseModel):
    """The work has started; ``/admin/status`` reports its result."""

    status: Literal["begun"] = "begun"


class Promotion(RequestBody):
    """The version to make live."""

    version: Annotated[str, Meta(pattern=MODEL_ID, description="A model id, or a prefix of it.")]
    force: Annotated[
        bool, Meta(description="Promote even if documents have no vector of this version, or have changed since.")
    ] = False


class Rollback(RequestBody):
    """Make the previously live version live again."""

    force: Annotated[
        bool, Meta(description="Roll back even if documents have no vector of that version, or have changed since.")
    ] = False


@router.get("/admin/status", operation_id="status", response_model=Status, responses=RESPONSES)
async def status(state: State, context: Context) -> Response:
    """Return the state of the service; slow parts show their last result while they are measured again.

    The state of the change is read before the versions. A change that ends in between is reported as running, so that
    the page polls again and does not keep the versions from before the change.
    """
    change, serving = _ended(state, "version"), state.serving
    try:
        versions = await state.run(context, lambda: state.ask_engine(lambda: _versions(state)))
    except (ServiceError, RerankerError) as error:
        versions = {"unknown": f"{of_error(error).message}: check the engine, then reload"}
    clicks, queries = _clicks(state)
    values = {
        "index": state.settings.index,
        "served": {
            "model_id": serving.model_id,
            "since": _moment(serving.loaded),
            "problem": serving.problem,
            "process": os.getpid(),
            "processes": state.metrics.n_processes(),
        },
        "versions": versions,
        "change": change,
        "searches": _searches(state),
        "shapes": {**state.shapes_seen.to_json(), "window": state.settings.rerank.window},
        "clicks": clicks,
        "queries": queries,
        "drift": _drift(state),
        "gates": await state.run(context, lambda: _gates(state)),
    }
    return Response(encode(values), media_type="application/json", headers=NO_STORE)


@router.post("/admin/promote", operation_id="promote", status_code=202, responses=RESPONSES)
async def promote_version(wanted: Annotated[Promotion, body_of(Promotion)], state: State, context: Context) -> Begun:
    """Make a version live, as `ssi promote` does; this service then serves it."""

    def change() -> ControlRecord:
        state.versions.folders.folder_of(wanted.version)  # refuse to promote a version that no folder here can serve
        return promote(state.engine, state.settings.index, wanted.version, force=wanted.force)

    return _begin_change(state, context, "promote", change)


@router.post("/admin/rollback", operation_id="rollback", status_code=202, responses=RESPONSES)
async def roll_back(wanted: Annotated[Rollback, body_of(Rollback)], state: State, context: Context) -> Begun:
    """Make the previously live version live again, as `ssi rollback` does."""
    change = partial(rollback, state.engine, state.settings.index, force=wanted.force)
    return _begin_change(state, context, "rollback", change)


@router.post("/admin/drift", operation_id="drift", status_code=202, responses=RESPONSES)
async def drift(state: State) -> Begun:
    """Measure how far the index has moved from the served model, as `ssi drift` does. Reads all texts once."""
    model = state.serving.model
    if model is None:
        raise ServiceError(409, "no model is loaded: see /ready for the reason", kind="no_model")

    def measure() -> dict[str, Any]:
        measured = measure_drift(state.engine, state.settings.index, model.encoder, rng=np.random.default_rng(0))
        return {**measured.to_json(), "model_id": model.model_id}

    return _begin(state, "drift", lambda: state.ask_engine(measure))


@router.get(
    "/admin/report/{model_id}",
    operation_id="report",
    response_class=Response,
    responses={**RESPONSES, 200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def report(model_id: str, state: State, context: Context) -> Response:
    """Return the newest retraining report of a model, if it lies in the folder of the models."""
    content = await state.run(context, lambda: _report(state, model_id))
    headers = {**NO_STORE, "Content-Disposition": "attachment", "Content-Security-Policy": "sandbox"}
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)


def _begin(state: ServiceState, name: str, work: Callable[[], Any]) -> Begun:
    if not state.jobs[name].start(work):
        raise ServiceError(409, "this job is already running: see /admin/status")
    return Begun()


def _begin_change(
    state: ServiceState, context: RequestContext, what: str, change: Callable[[], ControlRecord]
) -> Begun:
    if state.versions.folders.single:
        raise ServiceError(409, ONE_FOLDER)

    def work() -> str:
        live = state.ask_engine(change).live or ""
        _log.info(what, extra={"ssi": {"model": live[:12], "key": context.key_name}})
        state.watcher.reload()
        return live

    return _begin(state, "version", work)


def _versions(state: ServiceState) -> dict[str, Any]:
    index, folders = state.settings.index, state.versions.folders
    record, known = read_control(state.engine, index), folders.known()
    rows = [
        {
            **asdict(version),
            "is_here": version.model_id in known,
            "figures": _figures(known.get(version.model_id or "")),
        }
        for version in list_versions(state.engine, index, count_stale=False)
    ]
    return {
        "versions": rows[::-1],
        "previous": record.previous[-1] if record.previous else "",
        "fixed": ONE_FOLDER * folders.single,
    }


def _figures(folder: Path | None) -> dict[str, float]:
    try:
        manifest = {} if folder is None else describe_model(folder)
    except ArtifactError:  # replaced or damaged since it was listed
        manifest = {}
    validation = manifest.get("metrics", {}).get("validation") or {}
    return {
        name: validation[key] for name, key in (("MAP", "map"), ("words alone", "lexical_map")) if key in validation
    }


def _searches(state: ServiceState) -> dict[str, Any]:
    metrics = state.metrics
    return {
        "latency": [latency._asdict() for latency in metrics.latencies()],
        "searches": sum(metrics.counts(metrics.searches).values()),
        "forwarded": metrics.counts(metrics.searches).get(FORWARDED, 0),
        "day": metrics.day.to_json(),
        "fallbacks": {cause: n for cause, n in metrics.counts(metrics.fallbacks).items() if n},
    }


def _clicks(state: ServiceState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the last click statistics and query losses; start reading them again if they are old."""
    sink, job = state.sink, state.jobs["clicks"]
    if sink is None:
        none = {"unknown": "this service does not log clicks: start it with --sink engine or --sink FILE"}
        return none, none
    if time.time() - job.ended > FRESH_S:
        job.start(lambda: _read_clicks(state.ask_engine(sink.newest)))
    ended = _ended(state, "clicks")
    clicks, queries = ({**ended, **(job.value or {}).get(name, {})} for name in ("clicks", "queries"))
    return clicks, queries


def _read_clicks(rows: bytes) -> dict[str, Any]:
    if not rows:
        none = {"unknown": "no search has been logged yet: search, then reload"}
        return {"clicks": none, "queries": none}
    modest = Resources(threads=1)
    with tempfile.TemporaryDirectory(prefix="ssi-operate-") as folder, RejectLog(None) as rejects:
        path, with_hits = Path(folder) / "rows.ndjson", Path(folder) / "with_hits.ndjson"
        write_file(path, rows, private=True)
        log = open_logs([path], format="ubi", rejects=rejects)
        found_some, n_empty, is_own = _of_the_doctor(rows)
        diagnosed = log
        if n_empty and found_some:
            write_file(with_hits, found_some, private=True)
            diagnosed = open_logs([with_hits], format="ubi", rejects=rejects)
        diagnosis = examine(diagnosed, resources=modest)
        losses = query_losses(log, list(_engine_ranks(rows)), resources=modest)
    found = [finding for finding in diagnosis.findings if finding.severity != "ok"]
    if is_own:
        # This service logs the documents' ids, whatever they look like.
        found = [finding for finding in found if finding.code != "lucene_ids"]
    clicks = {
        "searches": int(diagnosis.numbers["searches"]) + (n_empty if diagnosed is not log else 0),
        "without_hits": n_empty,
        "rates": [{**asdict(rate), "rate": rate.rate} for rate in diagnosis.rates[:MAX_RANKS]],
        "findings": [{"severity": finding.severity, "sentence": finding.sentence} for finding in found],
    }
    unclicked = sorted(losses, key=lambda one: (-one.without_click, one.query))
    moved = sorted((one for one in losses if one.lost > 0), key=lambda one: (-one.lost, one.query))
    queries = {
        "least_people": LEAST_PEOPLE,
        "unclicked": [asdict(one) for one in unclicked[:LISTED] if one.without_click],
        "moved": [asdict(one) for one in moved[:LISTED]],
    }
    if not losses:
        why = f"no query was searched by {LEAST_PEOPLE} people (identified by session or client id)"
        queries = {"unknown": f"{why}: send such an id with each search, and wait for more searches"}
    return {"clicks": clicks, "queries": queries}


def _of_the_doctor(rows: bytes) -> tuple[bytes, int, bool]:
    """Return the rows that the doctor examines, the number of searches left out, and whether all are of this service.

    A search of this service that found nothing is left out: its list is known to be empty. In the log of another
    program, an empty list means that the documents were not logged.
    """
    kept, n_empty, is_own = [], 0, True
    for line in rows.splitlines(keepends=True):
        try:
            row = msgspec.json.decode(line)
            is_search = "action_name" not in row
            own = is_search and "ssi_mode" in row.get("query_attributes", {})
        except (ValueError, TypeError, AttributeError, RecursionError):
            row, is_search, own = {}, False, False
        is_own &= own or not is_search
        if own and not row.get("query_response_hit_ids"):
            n_empty += 1
        else:
            kept.append(line)
    return b"".join(kept), n_empty, is_own


def _engine_ranks(rows: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield (query id, document id, rank in the engine's order) for the searches among logged rows."""
    for line in rows.splitlines():
        try:
            row = msgspec.json.decode(line)
            ranks = row["query_attributes"]["ssi_first_stage_ranks"].split()
            shown = row["query_response_hit_ids"]
            yield from (
                (str(row["query_id"]), str(one), max(int(rank), 1)) for one, rank in zip(shown, ranks, strict=True)
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # an event, a truncated line, or a search logged by another program


def _drift(state: ServiceState) -> dict[str, Any]:
    job = state.jobs["drift"]
    if not job.ended and not job.is_running:
        return {"unknown": "not measured since the service started: start a measurement, which reads all texts once"}
    return {**_ended(state, "drift"), **(job.value or {})}


def _gates(state: ServiceState) -> dict[str, Any]:
    folders = state.versions.folders
    if folders.single:
        return {"unknown": "this service has one model folder, not those of `ssi retrain`: start it with --models"}
    try:
        notes = last_gates(folders.path, state.settings.index)
    except RerankerError as error:
        return {"unknown": error.message}
    if not notes:
        why = f"no retraining of index {state.settings.index!r} has finished in {str(folders.path)!r}"
        return {"unknown": f"{why}: run `ssi retrain --models {folders.path}`"}
    return {
        "gates": [{**asdict(note), "report": _report_path(folders.path, note.report) is not None} for note in notes]
    }


def _report_path(models: Path, report: str | None) -> Path | None:
    """Return the path of a report if it lies in the folder of the models; no other file may be served."""
    try:
        path = Path(report or "").resolve()
        inside = path.suffix == ".html" and path.is_relative_to(models.resolve())
        return path if inside and path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # not a valid path: too long, with a NUL, or a loop of links
        return None


def _report(state: ServiceState, model_id: str) -> bytes:
    folders = state.versions.folders
    notes = [] if folders.single else last_gates(folders.path, state.settings.index)
    of_model = (_report_path(folders.path, note.report) for note in notes if note.candidate == model_id)
    path = next(filter(None, of_model), None)
    if path is None:
        raise ServiceError(404, "the folder of the models has no report of this model")
    return path.read_bytes()


def _ended(state: ServiceState, name: str) -> Mapping[str, Any]:
    """Return whether a job is running, and how its last run ended."""
    job = state.jobs[name]
    ended: dict[str, Any] = {"working": job.is_running, "ended": _moment(job.ended) if job.ended else ""}
    if name == "version":
        return {**ended, "live": job.value or "", "problem": job.problem}
    return {**ended, "unknown": job.problem} if job.problem else ended


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
