"""Admission control: nothing reaches a route before its size, pace, key and place in the queue are checked."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from reranker.engines.base import Deadline
from reranker.service.auth import may, presented_key
from reranker.service.http import CONTEXT_KEY, LIMITS_KEY, RequestContext, ServiceError, error_response
from reranker.service.state import ServiceState

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_access = logging.getLogger("reranker.service.access")
ALWAYS_OPEN = frozenset({"/health", "/ready"})
"""Asked without a key, also while everything else is refused."""
NOT_QUEUED = ALWAYS_OPEN | {"/metrics"}
LONGEST_WAIT = 0.25
"""Share of the deadline that a request may be expected to wait for a thread."""
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
_PROCESS = f"{secrets.token_hex(6)}-"
_NUMBERS = itertools.count(1)
_REQUEST_ID = re.compile(rb"^[\w.:-]{1,100}$", re.ASCII)


class GoneError(Exception):
    """The client hung up."""


class AdmissionControl:
    """ASGI middleware: bodies are read whole, within bytes and seconds, before the application sees the request.

    In this order: headers too large (431), draining (503), key (401, 403), encoding (415), announced length (413),
    queue (429), then the body as it comes (413, 408, 503).
    """

    def __init__(self, app: App, state: ServiceState) -> None:
        self._app, self._state = app, state
        self._limits = state.settings.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
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

        async def noting(message: Message) -> None:
            """Send a message; note the status and add the request's id."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", context.request_id.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._admit(scope, receive, noting, headers)
        except GoneError:
            status = 499
        finally:
            self._note(scope, context, status, time.perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        held = 0
        try:
            try:
                self._check(scope, headers)
                body = await self._body(receive, headers)
                held = len(body)
                self._check_queue(scope["path"])
                # The time that the client took to send is not the service's.
                scope[CONTEXT_KEY].deadline = Deadline(self._state.settings.deadline_s)
            except ServiceError as error:
                await self._refuse(scope, receive, send, error)
                return
            self._state.admitted += 1
            try:
                await self._app(scope, _replay(body, receive), send)
            finally:
                self._state.admitted -= 1
        finally:
            self._state.buffered_bytes -= held

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise `ServiceError` for what the request's head alone forbids."""
        path, limits = scope["path"], self._limits
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope.get("query_string", b""))
        if size > limits.max_header_bytes:
            raise ServiceError(431, f"the headers have more than {limits.max_header_bytes} bytes")
        if self._state.draining and path not in ALWAYS_OPEN:
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0)
        self._check_key(scope, headers)
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise ServiceError(415, "compressed request bodies are not taken")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > limits.max_body_bytes:
            raise self._too_large()
        self._check_queue(path)

    def _check_key(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path, keys = scope["path"], self._state.keys
        if keys is None:
            if path.startswith("/admin"):
                raise ServiceError(403, "start the service with --api-keys to use /admin")
            return
        if _is_open(path, self._state.public):
            return
        shown = presented_key(headers)
        key = keys.find(shown) if shown is not None else None
        if key is None:
            message = "an API key is needed: Authorization: Bearer KEY"
            raise ServiceError(401, message if shown is None else "this API key is not one of the service's")
        if not may(key.role, path):
            raise ServiceError(403, "this API key may not do that")
        scope[CONTEXT_KEY].key_name = key.name

    def _check_queue(self, path: str) -> None:
        """Raise `ServiceError` if a request would find no room, or wait for its thread too long to be answered."""
        state, limits = self._state, self._limits
        wait_s = state.workers.expected_wait_s
        full = state.admitted >= limits.workers + limits.max_waiting
        if (full or wait_s > LONGEST_WAIT * state.settings.deadline_s) and path not in NOT_QUEUED:
            raise ServiceError(429, "too many requests at once", retry_after_s=max(wait_s, 1.0))

    def _too_large(self) -> ServiceError:
        return ServiceError(413, f"the body has more than {self._limits.max_body_bytes} bytes")

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        """Return the whole body; what is held of a refused one is given back."""
        chunks: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._limits.receive_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise GoneError
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    held += len(chunk)
                    self._state.buffered_bytes += len(chunk)
                    if held > self._limits.max_body_bytes:
                        raise self._too_large()
                    if self._state.buffered_bytes > self._limits.max_buffered_bytes:
                        raise ServiceError(503, "too many large requests at once", retry_after_s=1.0)
                    chunks.append(chunk)
        except TimeoutError:
            self._state.buffered_bytes -= held
            raise ServiceError(408, f"the body did not come within {self._limits.receive_timeout_s:g} s") from None
        except BaseException:
            self._state.buffered_bytes -= held
            raise
        return b"".join(chunks) if len(chunks) != 1 else chunks[0]

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, error: ServiceError) -> None:
        metrics, path = self._state.metrics, scope["path"]
        metrics.child(metrics.refused, error.kind).inc()
        headers = {"Connection": "close", **(error.headers or {})}
        if error.status_code == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if error.status_code == 429 or scope.get("http_version", "1.1").startswith("2"):
            # A refusal for want of room leaves the connection open: opening another costs both sides more.
            del headers["Connection"]
        shapes = self._state.shapes
        response = error_response(shapes, path, error.status_code, error.kind, error.message, headers)
        await response(scope, receive, send)

    def _note(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        """Count and log a request, by its route and never by its path as sent."""
        route = getattr(scope.get("route"), "path", "other")
        metrics, method = self._state.metrics, scope["method"]
        method = method if method in _METHODS else "other"
        metrics.child(metrics.requests, route, method, str(status)).inc()
        if route not in NOT_QUEUED:
            metrics.child(metrics.seconds, route).observe(seconds)
            entry: dict[str, Any] = {
                "request_id": context.request_id, "route": route, "method": method, "status": status,
                "ms": round(seconds * 1000.0, 2), **context.notes,
            }  # fmt: skip
            if context.key_name:
                entry["key"] = context.key_name
            _access.info("request", extra={"ssi": entry})


def _is_open(path: str, public: Iterable[str]) -> bool:
    """Return whether a path is open to callers without a key: named itself, or by a prefix that ends in ``/``."""
    return path in ALWAYS_OPEN or any(
        path == name or (name != "/" and name.endswith("/") and path.startswith(name)) for name in public
    )


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the id that the caller sent, if it is one, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.match(given):
        return given.decode("ascii")
    return f"{_PROCESS}{next(_NUMBERS):x}"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives a body already read, then whatever comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
