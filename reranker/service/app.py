"""The HTTP application and its admission control.

A part of the service plugs in as a `ServicePart`, which `create_app` includes. Rules for its routes:

- The router is ``APIRouter(route_class=JsonRoute)``. Routes take ``state: State`` and ``context: Context``.
- A route reads its body with `reranker.service.http.body_of`, which validates the body while decoding it.
- ``serving = state.serving`` is the version that answers. A route reads it once per request and passes it on, because
  a rollout may replace it between two reads.
- What queries the engine runs within the deadline: ``state.run(context.deadline, lambda: state.ask_engine(function))``.
  The circuit breaker then fails it immediately while the engine is down. Work that takes more than a few milliseconds
  itself runs by ``state.work.in_thread``.
- `AdmissionControl` has checked size, rate, key and queue before a request reaches its route.
- A route raises errors: a `ServiceError`, whose message must not contain anything from the request, or any error of
  `reranker.errors`. Pass ``responses=COMMON_RESPONSES`` (or those of the API family) to each route.
- Metrics go into ``state.metrics``; no label may come from the content of a request. Searches go into ``state.record``.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reranker.deadline import Deadline
from reranker.engines.bodies import variables_of
from reranker.engines.protocol import HasConnections
from reranker.engines.wire import PASSED_HEADERS, passed_headers
from reranker.errors import ConfigError, EngineUnavailable
from reranker.figures import page_style
from reranker.service import operate, rerank_api, search
from reranker.service.auth import may, presented_key
from reranker.service.forward import Forwarder, connections_of
from reranker.service.http import (
    COMMON_RESPONSES,
    CONTEXT_KEY,
    LIMITS_KEY,
    READING,
    Context,
    ErrorShape,
    JsonRoute,
    RequestBody,
    RequestContext,
    ServiceError,
    body_schemas,
    error_response,
    install_handlers,
)
from reranker.service.modes import INTERLEAVE, Interleaving, SearchMode
from reranker.service.proxy import EngineProxy
from reranker.service.settings import LARGE_BODY, ServiceSettings
from reranker.service.state import ServiceState, State
from reranker.tracing import Attributes, traced

_access = logging.getLogger("reranker.service.access")
ALWAYS_OPEN = frozenset({"/health", "/ready"})
"""Paths that need no key and are answered even while all other requests are refused."""
NOT_QUEUED = ALWAYS_OPEN | {"/metrics"}
HTTP_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
"""Methods that spans name; OpenTelemetry's conventions have ``_OTHER`` for what else a client may send."""
_METHODS = READING | {"POST", "OPTIONS"}
_PROCESS = f"{secrets.token_hex(6)}-"
_NUMBERS = itertools.count(1)
_PASSED_VALUE = re.compile(rb"^[\x21-\x7e]{1,512}$")
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@]+))(?::[0-9]{0,5})?")
_REQUEST_ID = re.compile(rb"^[\w.:-]{1,100}$", re.ASCII)


class AdmissionControl:
    """ASGI middleware that reads the whole body, within limits of size and time, before the application is called.

    Checks, in this order: size of the headers (431), draining (503), host (403), key (401, 403), content encoding
    (415), announced length (413), queue (503), then the body as it arrives (400, 413, 408, 503).

    Requests for the engine go to ``proxy``, which reads their bodies itself. They need no key of the service: the
    engine decides about them.
    """

    def __init__(self, app: ASGIApp, state: ServiceState, proxy: EngineProxy | None = None) -> None:
        self._app, self._state, self._proxy = app, state, proxy
        self._limits = state.settings.limits
        self._hosts = state.settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name: value for name, value in scope["headers"]}
        context = RequestContext(_request_id(headers), Deadline(self._state.settings.deadline_s))
        scope[CONTEXT_KEY], scope[LIMITS_KEY] = context, self._limits
        started, status = time.perf_counter(), 0
        # A context variable belongs to this request only, and is copied into the work that queries the engine.
        passed_headers.set(_passed(headers))

        async def noting(message: Message) -> None:
            """Send a message; remember its status and add the request id."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", context.request_id.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            if scope["path"] in NOT_QUEUED:
                await self._admit(scope, receive, noting, headers)
                return
            method = scope["method"] if scope["method"] in HTTP_METHODS else "HTTP"
            with traced(method, _attributes_of(scope), kind="server", caller=passed_headers.get()) as span:
                await self._admit(scope, receive, noting, headers)
                route = getattr(scope.get("route"), "path", None)
                span.note({"http.response.status_code": status, "ssi.request_id": context.request_id})
                if route is not None:
                    span.note({"http.route": route})
                    span.rename(f"{method} {route}")
                if status >= 500:
                    span.fail(str(status))
        finally:
            self._note(scope, context, status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        held = 0
        context: RequestContext = scope[CONTEXT_KEY]
        try:
            try:
                self._check(scope, headers)
                if self._proxy is not None and self._proxy.takes(scope):
                    await self._proxy(scope, receive, send)
                    return
                self._check_own(scope, headers)
                body = await self._body(receive, self._state.body_limit(scope["path"]))
                held = len(body)
                self._check_queue(scope["path"])
                # The time that the client needed to send the body does not count against the service's deadline.
                context.deadline = Deadline(self._state.settings.deadline_s)
            except ServiceError as error:
                await self._refuse(scope, receive, send, error)
                return
            self._state.admitted += 1
            try:
                if held <= LARGE_BODY:
                    await self._app(scope, _replay(body, receive), send)
                    return
                async with AsyncExitStack() as places:
                    try:
                        await places.enter_async_context(self._state.large_bodies.place(context.deadline))
                    except ServiceError as error:
                        await self._refuse(scope, receive, send, error)
                        return
                    again = _replay(body, receive)
                    del body
                    await self._app(scope, again, send)
            finally:
                self._state.admitted -= 1
        finally:
            self._state.hold(-held)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise `ServiceError` if no request with these headers is allowed now."""
        path, limits = scope["path"], self._limits
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("query_string", b""))
        if size > limits.max_header_bytes:
            raise ServiceError(431, f"the headers have more than {limits.max_header_bytes} bytes")
        if self._state.draining and path not in ALWAYS_OPEN:
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0)
        self._check_host(headers)

    def _check_own(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise `ServiceError` if a request to the service itself needs another key, or its body is not allowed."""
        path = scope["path"]
        self._check_key(scope, headers)
        if headers.get(b"content-encoding", b"").strip().lower() not in (b"", b"identity"):
            raise ServiceError(415, "the body is compressed: send it without Content-Encoding")
        length = headers.get(b"content-length", b"0")
        most = self._state.body_limit(path)
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        self._check_queue(path)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Raise `ServiceError` 403 if Host or Origin is not one of the service's allowed hosts."""
        if self._hosts is None:
            return
        origin = headers.get(b"origin")
        for name in (headers.get(b"host"), None if origin is None else origin.partition(b"://")[2]):
            if name is not None and _host_name(name) not in self._hosts:
                raise ServiceError(
                    403,
                    "the Host or Origin of this request is not an allowed host: add it with --allowed-host",
                    kind="bad_host",
                )

    def _check_key(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path, keys = scope["path"], self._state.keys
        if keys is None:
            if path.startswith("/admin"):
                raise ServiceError(403, "start the service with --api-keys to use /admin")
            return
        if _is_open(scope["method"], path, self._state.public):
            return
        shown = presented_key(headers)
        key = keys.find(shown) if shown is not None else None
        if key is None:
            message = "an API key is needed: Authorization: Bearer KEY"
            raise ServiceError(401, message if shown is None else "this API key is not in the service's key file")
        if not may(key.role, path):
            raise ServiceError(403, "the role of this API key does not allow this request")
        scope[CONTEXT_KEY].key_name = key.name

    def _check_queue(self, path: str) -> None:
        """Raise the errors of `ServiceState.check_queue`, but for paths that are always answered."""
        if path not in NOT_QUEUED:
            self._state.check_queue()

    async def _body(self, receive: Receive, most: int) -> bytes:
        """Return the whole body. If it is refused, release the bytes counted for it."""
        body, is_whole = await self._state.read_body(receive, most)
        if not is_whole or len(body) > most:
            self._state.hold(-len(body))
            raise _too_large(most)
        return body

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, error: ServiceError) -> None:
        metrics, path = self._state.metrics, scope["path"]
        metrics.child(metrics.refused, error.kind).inc()
        headers = {"Connection": "close", **(error.headers or {})}
        if error.status_code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.kind == "overloaded" or scope.get("http_version", "1.1").startswith("2"):
            # When the service is busy the connection stays open, because a reconnect costs both sides more.
            del headers["Connection"]
        response = error_response(self._state.shape_of(path), error.status_code, error.kind, error.message, headers)
        await response(scope, receive, send)

    def _note(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        """Count and log a request under its route template, never under the path that the client sent."""
        route = getattr(scope.get("route"), "path", "other")
        metrics, method = self._state.metrics, scope["method"]
        method = method if method in _METHODS else "other"
        metrics.child(metrics.requests, route, method, str(status)).inc()
        if route not in NOT_QUEUED:
            metrics.note_request(route, seconds)
            entry: dict[str, Any] = {
                "request_id": context.request_id,
                "route": route,
                "method": method,
                "status": status,
                "ms": round(seconds * 1000.0, 2),
                **context.notes,
            }
            if context.key_name:
                entry["key"] = context.key_name
            _access.info("request", extra={"ssi": entry})


def _attributes_of(scope: Scope) -> Attributes:
    """Return the attributes of a request's span. They contain neither the client nor the URL's parameters."""
    host, port = scope.get("server") or ("", 0)
    method = scope["method"] if scope["method"] in HTTP_METHODS else "_OTHER"
    attributes = {"http.request.method": method, "url.scheme": scope["scheme"], "url.path": scope["path"]}
    return {**attributes, "server.address": host, "server.port": port or 0}


def _too_large(most: int) -> ServiceError:
    return ServiceError(
        413,
        f"the body is larger than the {most} bytes that this route accepts: send less, or several requests",
    )


def _host_name(value: bytes) -> str:
    """Return a host in lower case without port and brackets, or "" if the value is not a host."""
    found = _HOST.fullmatch(value.decode("latin-1").strip().lower())
    return "" if found is None else found["address"] or found["name"]


def _is_open(method: str, path: str, public: Iterable[str]) -> bool:
    """Return whether a request needs no key.

    A public path is open to `READING` methods only. It is listed exactly, or by a prefix that ends in ``/``.
    """
    return path in ALWAYS_OPEN or any(
        method in READING and (path == name or (name != "/" and name.endswith("/") and path.startswith(name)))
        for name in public
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the request id that the client sent if it is valid, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.match(given):
        return given.decode("ascii")
    return f"{_PROCESS}{next(_NUMBERS):x}"


def _passed(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return the headers that are forwarded to the engine; long or unprintable values are dropped."""
    values = {name: headers.get(name.encode(), b"") for name in PASSED_HEADERS}
    return {name: value.decode("ascii") for name, value in values.items() if _PASSED_VALUE.match(value)}


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that first yields a body already read, then the original messages."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return given.pop() if given else await receive()

    return again


operations_router = APIRouter(route_class=JsonRoute, tags=["operations"])


class Health(BaseModel):
    """Answer of the liveness check: the process responds."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Answer of the readiness check: searches can be answered."""

    status: Literal["ready"] = "ready"
    model_id: str
    encoder_id: str
    degraded: str
    """Why hits are returned in the engine's order instead of reranked; empty if they are reranked."""
    calibrated: bool
    """Whether the weight of the model was given or fitted by `ssi calibrate`. If not, searches use 0.5."""


class Version(BaseModel):
    """A version that a request can name."""

    model_id: str
    live: bool
    """Whether requests without a version are answered by this one."""


class VersionList(BaseModel):
    """The versions whose model folders the service has."""

    versions: list[Version]


class Reload(BaseModel):
    """Answer of a reload request: a poll for a newer version is in progress."""

    status: Literal["looking"] = "looking"
    model_id: str


@operations_router.get("/health", operation_id="health", responses=COMMON_RESPONSES)
async def health() -> Health:
    """Report that the process responds; depends on nothing else."""
    return Health()


@operations_router.get("/ready", operation_id="ready", responses=COMMON_RESPONSES)
async def ready(state: State) -> Ready:
    """Report whether searches can be answered.

    Answers 503 while the service is stopping, and while the engine does not answer or its circuit breaker is open.
    """
    if state.draining:
        raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0)
    try:
        state.breaker.check()
    except EngineUnavailable as error:
        raise ServiceError(
            503, "the search engine does not answer", kind="engine_unavailable", retry_after_s=error.retry_after_s
        ) from None
    if state.problem is not None:
        raise ServiceError(503, state.problem.message, kind=state.problem.kind, retry_after_s=1.0)
    serving = state.serving
    return Ready(
        model_id=serving.model_id,
        encoder_id=serving.encoder_id,
        degraded=serving.problem,
        calibrated=serving.is_calibrated,
    )


@operations_router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={**COMMON_RESPONSES, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(state: State) -> Response:
    """Return all metrics in the Prometheus text format."""
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@operations_router.get("/versions", operation_id="versions", responses=COMMON_RESPONSES)
async def versions(state: State, context: Context) -> VersionList:
    """List the versions that a request can name."""
    known = await state.work.in_thread(context.deadline, state.versions.folders.known)
    live = state.serving.model_id
    return VersionList(versions=[Version(model_id=model_id, live=model_id == live) for model_id in known])


@operations_router.post("/admin/reload", operation_id="reload", status_code=202, responses=COMMON_RESPONSES)
async def reload(state: State) -> Reload:
    """Poll for another live version now instead of at the next interval. Needs a key with role ``admin``."""
    state.watcher.reload()
    return Reload(model_id=state.serving.model_id)


JAVASCRIPT = "text/javascript; charset=utf-8"
PAGES = {"/": ("Search", "search"), "/docs": ("API", "docs"), "/operate": ("Operation", "operate")}
"""Path -> (title, base name of its body and script in ``static``)."""
FILES = {
    **dict.fromkeys(PAGES, "text/html; charset=utf-8"),
    **{f"/page/{name}.js": JAVASCRIPT for name in ("page", "rows", *(name for _, name in PAGES.values()))},
    "/page/icon.svg": "image/svg+xml",
    "/page/style.css": "text/css; charset=utf-8",
}
"""Path -> content type of the file served there."""
HEADERS = {
    # Only files of this origin and images of documents are loaded, and no other site may embed the pages: markup in a
    # document's text can therefore never run as a script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' https:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


page_router = APIRouter(route_class=JsonRoute, tags=["page"])


def page_file(path: str) -> str:
    """Return the content of the file served under a path of `FILES`."""
    static = resources.files("reranker.service").joinpath("static")
    if path == "/page/style.css":
        return page_style()
    if path not in PAGES:
        return static.joinpath(path.rpartition("/")[2]).read_text(encoding="utf-8")
    title, name = PAGES[path]
    page = Template(static.joinpath("page.html").read_text(encoding="utf-8"))
    body = static.joinpath(f"{name}.html").read_text(encoding="utf-8")
    return page.substitute(title=title, script=f"{name}.js", body=body)


async def file(request: Request) -> Response:
    """Return one of the files of the pages."""
    path = request.url.path
    return Response(page_file(path), media_type=FILES[path], headers=HEADERS)


CONFIG = "/page/config.json"


async def page_config(state: State) -> Response:
    """Return the fields that the page shows of a hit, and the variables of the search body, used as filters."""
    settings = state.settings
    known = {"own_body": settings.body is not None, "variables": list(variables_of(settings.body or {}))}
    return Response(search.encode({**settings.page, **known}), media_type="application/json", headers=HEADERS)


page_router.add_api_route(CONFIG, page_config, include_in_schema=False, responses=COMMON_RESPONSES)
for _path in FILES:
    page_router.add_api_route(_path, file, include_in_schema=False, responses=COMMON_RESPONSES)


@dataclass(frozen=True, slots=True)
class ServicePart:
    """A part of the service that `create_app` includes."""

    router: APIRouter
    shapes: Mapping[str, ErrorShape] = field(default_factory=dict)
    """Path -> format of its error answers; used by admission control as well."""
    public: tuple[str, ...] = ()
    """Paths that can be read (`READING`) without a key: exact paths, or prefixes that end in ``/``. ``/`` is exact."""
    large: tuple[str, ...] = ()
    """Paths whose bodies may have up to ``max_body_bytes``."""
    modes: Mapping[str, SearchMode] = field(default_factory=dict)
    """Name -> search mode that a request can choose."""


OWN_PARTS = (
    ServicePart(search.router),
    ServicePart(operations_router),
    ServicePart(rerank_api.router, rerank_api.ERROR_SHAPES, large=rerank_api.LARGE),
)
"""The parts that every service has."""


def all_parts(challenger: str | None = None) -> tuple[ServicePart, ...]:
    """Return the parts that `ssi serve` offers in addition to `OWN_PARTS`.

    Parameters
    ----------
    challenger : str, optional
        Version whose hits are interleaved with those of the live version.
    """
    modes = {} if challenger is None else {INTERLEAVE: Interleaving(challenger)}
    page = ServicePart(page_router, public=(CONFIG, *FILES))
    return ServicePart(search.events_router, modes=modes), page, ServicePart(operate.router)


def create_app(settings: ServiceSettings, state: ServiceState, parts: Iterable[ServicePart] = ()) -> FastAPI:
    """Return the application with `OWN_PARTS` and the given parts.

    Raises `ConfigError` if a route is not a `JsonRoute`, since it would read bodies without the service's checks.
    """
    app = FastAPI(
        title="ssi-reranker",
        version="1",
        lifespan=_open,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        description="Search with reranking in front of Elasticsearch, OpenSearch or an embedded engine.",
        # FastAPI's own spans and log records contain the URL's parameters and error messages, which can quote a query.
        # `AdmissionControl` creates the span of a request.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service = state
    kinds: list[type[RequestBody]] = []
    for part in (*OWN_PARTS, *parts):
        for route in part.router.routes:
            if isinstance(route, JsonRoute):
                kinds += [] if route.body_kind is None else [route.body_kind]
            elif isinstance(route, APIRoute):
                raise ConfigError(
                    f"route {route.path!r} reads its body without checks: create its router with route_class=JsonRoute"
                )
        app.include_router(part.router)
        state.shapes.update(part.shapes)
        state.public.update(part.public)
        state.large.update(part.large)
        state.modes.update(part.modes)
        state.own.update(str(getattr(route, "path", "")) for route in part.router.routes)
    for mode in state.modes:
        state.metrics.searches.labels(mode)
    install_handlers(app, state.shape_of)
    proxy = None
    if settings.proxy:
        state.forwarder = Forwarder(connections_of(state.engine), settings.caller_headers)
        proxy = EngineProxy(state, state.forwarder)
    app.add_middleware(AdmissionControl, state=state, proxy=proxy)
    _describe(app, kinds, state.keys is not None)
    return app


@asynccontextmanager
async def _open(app: FastAPI) -> AsyncIterator[None]:
    """Close the connections to the engine, which belong to the event loop, when the application ends."""
    yield
    engine = app.state.service.engine
    if isinstance(engine, HasConnections):
        await engine.connections.close_own()


def _describe(app: FastAPI, kinds: Iterable[type[RequestBody]], keys: bool) -> None:
    """Add the schemas of the request bodies, and the API key if one is needed, to the OpenAPI description."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        components = schema.setdefault("components", {})
        components.setdefault("schemas", {}).update(body_schemas(kinds))
        if keys:
            components.setdefault("securitySchemes", {})["key"] = {"type": "http", "scheme": "bearer"}
            schema["security"] = [{"key": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
