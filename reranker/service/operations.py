"""What operators and their machines ask: health, readiness, figures, versions, reload."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from reranker.errors import EngineUnavailable
from reranker.service.context import RequestContext, context_of, service_of
from reranker.service.errors import COMMON_RESPONSES, ServiceError
from reranker.service.json_route import JsonRoute
from reranker.service.state import ServiceState

router = APIRouter(route_class=JsonRoute, tags=["operations"])
State = Annotated[ServiceState, Depends(service_of)]


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Searches can be answered; ``degraded`` says why they come in the engine's order, empty where they do not."""

    status: Literal["ready"] = "ready"
    model_id: str
    encoder_id: str
    degraded: str


class Version(BaseModel):
    """A version that can be asked for by name."""

    model_id: str
    live: bool


class VersionList(BaseModel):
    """The versions whose model folders the service has."""

    versions: list[Version]


class Reload(BaseModel):
    """The look for another version has begun."""

    status: Literal["looking"] = "looking"
    model_id: str


@router.get("/health", operation_id="health", responses=COMMON_RESPONSES)
async def health() -> Health:
    """Say that the process answers; asks nothing else."""
    return Health()


@router.get("/ready", operation_id="ready", responses=COMMON_RESPONSES)
async def ready(state: State) -> Ready:
    """Say whether searches can be answered: 503 while stopping, or while the engine is left alone."""
    if state.draining:
        raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0)
    try:
        state.breaker.check()
    except EngineUnavailable as error:
        raise ServiceError(
            503, "the search engine does not answer", kind="engine_unavailable", retry_after_s=error.retry_after_s
        ) from None
    serving = state.serving
    return Ready(model_id=serving.model_id, encoder_id=serving.encoder_id, degraded=serving.problem)


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={**COMMON_RESPONSES, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(state: State) -> Response:
    """Return all figures in Prometheus' text format."""
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/versions", operation_id="versions", responses=COMMON_RESPONSES)
async def versions(state: State, context: Annotated[RequestContext, Depends(context_of)]) -> VersionList:
    """List the versions that can be asked for by name."""
    known = await state.run(context, state.versions.source.known)
    live = state.serving.model_id
    return VersionList(versions=[Version(model_id=one, live=one == live) for one in known])


@router.post("/admin/reload", operation_id="reload", status_code=202, responses=COMMON_RESPONSES)
async def reload(state: State) -> Reload:
    """Look for another live version now rather than at the next poll; needs a key of role ``admin``."""
    state.reload()
    return Reload(model_id=state.serving.model_id)
