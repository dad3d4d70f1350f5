"""Route ``/admin/status``: the state of the service, for the page ``/operate``. It needs a key with role ``admin``.

It only reads: `ssi promote`, `ssi rollback`, `ssi drift` and `ssi clicks doctor` are commands.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from indexer.versions import list_versions
from reranker.errors import ArtifactError, RerankerError
from reranker.models.manifest import describe_model
from reranker.releases import read_control
from reranker.service.http import Context, ErrorBody, JsonRoute, ServiceError, error_responses, of_error
from reranker.service.proxy import FORWARDED
from reranker.service.search import encode
from reranker.service.state import ServiceState, State

NO_STORE = {"Cache-Control": "no-store"}

router = APIRouter(route_class=JsonRoute, tags=["operations"])


class Status(BaseModel):
    """State of the search service. In a part that could not be read, ``unknown`` gives the reason and the remedy."""

    index: str
    served: Annotated[dict[str, Any], Field(description="The version of the process that answers.")]
    versions: Annotated[dict[str, Any], Field(description="Versions of the index: the live one and the previous one.")]
    searches: Annotated[dict[str, Any], Field(description="Latency and fallbacks of all processes since the start.")]
    shapes: Annotated[
        dict[str, Any], Field(description="Search bodies by shape, with the origin of alpha, of the answering process.")
    ]


@router.get(
    "/admin/status", operation_id="status", response_model=Status, responses=error_responses(ErrorBody, 404, 409)
)
async def status(state: State, context: Context) -> Response:
    """Return the state of the service."""
    serving = state.serving
    try:
        versions = await state.work.in_thread(context.deadline, lambda: state.ask_engine(lambda: _versions(state)))
    except (ServiceError, RerankerError) as error:
        versions = {"unknown": f"{of_error(error).message}: check the engine, then reload"}
    values = {
        "index": state.settings.index,
        "served": {
            "model_id": serving.model_id,
            "since": datetime.fromtimestamp(serving.loaded, UTC).isoformat(timespec="seconds"),
            "problem": serving.problem,
            "process": os.getpid(),
            "processes": state.metrics.n_processes(),
        },
        "versions": versions,
        "searches": _searches(state),
        "shapes": {**state.shapes_seen.to_json(), "window": state.settings.rerank.window},
    }
    return Response(encode(values), media_type="application/json", headers=NO_STORE)


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
    previous = record.previous[-1] if record.previous else ""
    return {"versions": rows[::-1], "previous": previous, "one_folder": folders.single}


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
