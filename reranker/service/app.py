"""The application: routes behind the guard.

How a part of the service plugs in: it gives a `Part`, and `create_app` includes it. Its router is made by
``APIRouter(route_class=JsonRoute)`` (bodies are parsed once, strictly, to a bounded depth), and its routes get

- **the state** by ``state: Annotated[ServiceState, Depends(service_of)]``. ``serving = state.serving`` is the version
  that answers: taken once a request, passed on, never asked for twice. ``state.version(model_id)`` gives another one.
- **the context** by ``context: Annotated[RequestContext, Depends(context_of)]``: ``context.deadline`` (``left_s``,
  ``left_ms``), ``context.request_id``, ``context.notes`` (short values of bounded kind that the access log adds).
- **work** by ``await state.run(context, function)``: anything that takes more than a millisecond goes into a thread,
  within the deadline; a function that asks the engine is wrapped, ``state.run(context, lambda:
  state.ask_engine(function))``, so that an engine that is down costs nothing.
- **authentication** without doing anything: the guard has checked the key before a route is called. What browsers must
  reach without a key is named in `Part.public` (exact paths, or prefixes that end in ``/``). The role ``events`` opens
  ``POST /events`` alone, ``search`` all but ``/admin``, ``admin`` everything.
- **errors** by raising `ServiceError` (status, message without anything of the request, kind, ``retry_after_s``) or any
  error of `reranker.errors`; a path that speaks another family's language gives its shape in `Part.shapes`, which the
  guard uses too (413, 429, 503, ...). Pass ``responses=COMMON_RESPONSES`` (or the family's own) to routes.
- **figures** by ``state.metrics``: ``note_stages({"encode": ms})``, ``documents.labels("id").inc(n)``; further ones are
  made with ``prometheus_client`` on ``state.metrics.registry``. No label comes from a request's content.
- **impressions**: ``state.sink`` (a `reranker.service.records.RecordSink`) takes a `SearchRecord` for each search.
- **a mode of searching** (interleaving): ``Part.modes = {"interleave": function}``, a `reranker.service.modes
  .SearchMode`; `mode_of` chooses it for every session that is neither shadow nor control.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from reranker.errors import ConfigError
from reranker.service import operations, rerank_api, search
from reranker.service.errors import ErrorShape, install_handlers
from reranker.service.guard import Guard
from reranker.service.json_route import JsonRoute
from reranker.service.modes import SearchMode
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the service.

    Parameters
    ----------
    router : APIRouter
        With ``route_class=JsonRoute``.
    shapes : mapping of path to ErrorShape
        Paths whose errors have another shape.
    public : tuple of str
        Paths that need no key: exact ones, or prefixes that end in ``/`` (``/`` itself is the exact path).
    modes : mapping of str to SearchMode
        Ways to carry out a search.
    """

    router: APIRouter
    shapes: Mapping[str, ErrorShape] = field(default_factory=dict)
    public: tuple[str, ...] = ()
    modes: Mapping[str, SearchMode] = field(default_factory=dict)


def own_parts() -> tuple[Part, ...]:
    """Return the parts that every service has."""
    return Part(search.router), Part(operations.router), Part(rerank_api.router, rerank_api.ERROR_SHAPES)


def create_app(settings: ServiceSettings, state: ServiceState, parts: Iterable[Part] = ()) -> FastAPI:
    """Return the application.

    Parameters
    ----------
    settings : ServiceSettings
    state : ServiceState
    parts : iterable of Part
        Besides `own_parts`.

    Raises
    ------
    ConfigError
        If a route reads bodies by another way than `JsonRoute`.
    """
    app = FastAPI(
        title="ssi-reranker", version="1", docs_url=None, redoc_url=None, redirect_slashes=False,
        description="Search with reranking in front of Elasticsearch, OpenSearch or an embedded engine.",
    )  # fmt: skip
    app.state.service = state
    for part in (*own_parts(), *parts):
        for route in part.router.routes:
            if isinstance(route, APIRoute) and not isinstance(route, JsonRoute):
                raise ConfigError(f"route {route.path!r} is not made by a router with route_class=JsonRoute")
        app.include_router(part.router)
        state.shapes.add(part.shapes)
        state.public.update(part.public)
        state.modes.update(part.modes)
    install_handlers(app, state.shapes)
    app.add_middleware(Guard, state=state)
    if state.keys is not None:
        _ask_for_keys(app)
    return app


def _ask_for_keys(app: FastAPI) -> None:
    """Say in the OpenAPI description that a key is needed."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["key"] = {"type": "http", "scheme": "bearer"}
        schema["security"] = [{"key": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


__all__ = ["Part", "create_app", "own_parts"]
