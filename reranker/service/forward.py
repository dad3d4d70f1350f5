"""Requests of callers that go to the engine as they came, and the engine's answers that go back the same way.

Such a request carries the caller's own credentials and none of the service's, so that the engine decides who may ask
what. Method, path, parameters and body are passed on byte by byte, and the answer's status, headers and body come back
unchanged, piece by piece. Only headers that belong to one connection are left out, and those by which a proxy states
who its client is (`STATED_BY_PROXIES`): an engine may trust them, and anybody can send them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import aiohttp
from multidict import CIMultiDict
from starlette.types import Message, Scope, Send

from reranker.engines.connections import (
    LONGEST_ON_LOOP,
    AnswerTooLongError,
    ConnectionBrokenError,
    HttpConnections,
    read_at_most,
)
from reranker.engines.protocol import Engine, HasConnections
from reranker.errors import Unsupported
from reranker.service.http import ServiceError

CREDENTIALS: Final = ("authorization", "es-security-runas-user")
"""Headers of a caller that say who it is, to both engines."""
OF_CONNECTION: Final = frozenset(
    {
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to one connection (RFC 9110, 7.6.1)."""
STATED_BY_PROXIES: Final = ("forwarded", "x-forwarded-", "x-proxy-", "x-real-ip", "x-client-cert", "x-ssl-client-")
"""Beginnings of the headers by which a proxy states who its client is."""
READING_APIS: Final[Mapping[str, frozenset[str]]] = {
    "POST": frozenset(
        {
            "_analyze",
            "_async_search",
            "_count",
            "_eql/search",
            "_explain/{id}",
            "_field_caps",
            "_knn_search",
            "_mget",
            "_msearch",
            "_msearch/template",
            "_mtermvectors",
            "_pit",
            "_query",
            "_rank_eval",
            "_render/template",
            "_search",
            "_search/point_in_time",
            "_search/scroll",
            "_search/template",
            "_search_shards",
            "_sql",
            "_sql/close",
            "_sql/translate",
            "_terms_enum",
            "_termvectors",
            "_termvectors/{id}",
            "_validate/query",
        }
    ),
    # They end what a reading request has begun.
    "DELETE": frozenset(
        {
            "_async_search/{id}",
            "_pit",
            "_search/point_in_time",
            "_search/point_in_time/_all",
            "_search/scroll",
            "_search/scroll/{id}",
        }
    ),
}
"""APIs that read although their method is not GET or HEAD, by method."""
ALL: Final = "_all"
"""Name of all indexes, where a path names an index."""
PIECE_BYTES: Final = 64 * 1024
"""Bytes of an answer that are in memory at a time."""
MOST_AT_ONCE: Final = 512
"""Requests that are passed on at the same time; further ones are answered with 503."""


class EngineAnswer(NamedTuple):
    """An answer of the engine that was read as a whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    content: bytes


class Forwarder:
    """Passes requests on to one engine.

    Parameters
    ----------
    connections : HttpConnections
        The connections to the engine.
    also : iterable of str
        Names of more headers of callers that are passed on although a proxy may set them.
    """

    def __init__(self, connections: HttpConnections, also: Iterable[str] = ()) -> None:
        self._connections = connections
        settings = connections.settings
        self._limits = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.read_timeout_s
        )
        self._also = frozenset(name.lower() for name in also)
        self.n_running = 0
        """Requests that are being passed on."""

    def rights_of(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the headers that say who the caller is, for the requests that are made for it."""
        named = {*CREDENTIALS, *self._also}
        decoded = ((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
        return {name: value for name, value in decoded if name in named}

    async def pass_on(
        self,
        scope: Scope,
        body: bytes | AsyncIterator[bytes],
        send: Send,
        *,
        extra: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Pass a request on, and its answer back as it comes; ``extra`` headers are added to the answer.

        Raises `ServiceError` as long as no part of an answer was sent: 503 if the engine does not answer, 502 if its
        answer breaks off.
        """
        async with self._asked(scope, body) as answer:
            headers = [*_answer_headers(answer), *(extra or {}).items()]
            start: Message | None = {"type": "http.response.start", "status": answer.status, "headers": headers}
            # Small pieces are sent together: a network that waits for a confirmation of each would add 40 ms.
            held = bytearray()
            try:
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    held += piece
                    if len(held) >= PIECE_BYTES:
                        if start is not None:
                            await send(start)
                            start = None
                        await send({"type": "http.response.body", "body": bytes(held), "more_body": True})
                        held.clear()
            except (aiohttp.ClientError, TimeoutError) as error:
                if start is None:
                    raise
                raise _broken_off() from error
            if start is not None:
                await send(start)
            await send({"type": "http.response.body", "body": bytes(held), "more_body": False})

    async def ask(self, scope: Scope, body: bytes) -> EngineAnswer:
        """Return the answer to a request with another body; raises as `pass_on`, and 502 for an endless answer."""
        async with self._asked(scope, body, plain=True) as answer:
            try:
                content = await read_at_most(answer, LONGEST_ON_LOOP)
            except AnswerTooLongError as error:
                raise ServiceError(502, "the search engine's answer is too large", kind="engine_error") from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _broken_off() from error
            return EngineAnswer(answer.status, _answer_headers(answer), content)

    @asynccontextmanager
    async def _asked(
        self, scope: Scope, body: bytes | AsyncIterator[bytes], *, plain: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the head of its answer; an answer that is not read to its end is given up."""
        if self.n_running >= MOST_AT_ONCE:
            raise ServiceError(503, "too many requests at once", kind="too_many", retry_after_s=1.0)
        self.n_running += 1
        faults: list[ServiceError] = []
        try:
            try:
                answer = await self._sent(scope, body if isinstance(body, bytes) else _noting(body, faults), plain)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if faults:
                    raise faults[0] from error
                late = isinstance(error, TimeoutError)
                message = "the search engine does not answer in time" if late else "the search engine is unavailable"
                raise ServiceError(
                    503, f"{message}: try again later", kind="engine_unavailable", retry_after_s=1.0
                ) from error
            try:
                yield answer
            finally:
                answer.close()  # only ends a connection whose answer was not read to its end
        finally:
            self.n_running -= 1

    async def _sent(self, scope: Scope, body: bytes | AsyncIterator[bytes], plain: bool) -> aiohttp.ClientResponse:
        query, method = scope.get("query_string", b""), scope["method"]
        target = (raw_path(scope) + (b"?" + query if query else b"")).decode("latin-1")
        sent = method, target, body or None, self._headers(scope["headers"], plain), self._limits
        try:
            return await self._connections.ask(*sent)
        except ConnectionBrokenError:
            # The engine may just have closed a connection that was idle: a request that only reads is sent once more.
            if not isinstance(body, bytes) or not is_reading(method, raw_path(scope)):
                raise
            return await self._connections.ask(*sent)

    def _headers(self, given: Iterable[tuple[bytes, bytes]], plain: bool) -> CIMultiDict[str]:
        """Return the headers of a request; a ``plain`` one has another body, and wants an answer without encoding."""
        headers: CIMultiDict[str] = CIMultiDict()
        named = {token.strip().lower() for name, value in given if name == b"connection" for token in value.split(b",")}
        for raw, value in given:
            name = raw.decode("latin-1").lower()
            if name in OF_CONNECTION or raw.lower() in named or name == "expect":
                continue
            if name.startswith(STATED_BY_PROXIES) and name not in self._also:
                continue
            if plain and name in ("content-length", "content-encoding", "accept-encoding"):
                continue
            headers.add(name, value.decode("latin-1"))
        return headers


async def _noting(body: AsyncIterator[bytes], faults: list[ServiceError]) -> AsyncIterator[bytes]:
    """Yield a body, and note the error that ends it: aiohttp would say that the engine's connection is broken."""
    try:
        async for piece in body:
            yield piece
    except ServiceError as error:
        faults.append(error)
        raise


def _broken_off() -> ServiceError:
    return ServiceError(502, "the search engine's answer breaks off", kind="engine_error")


def _answer_headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, except those of its connection."""
    return [(name.lower(), value) for name, value in answer.raw_headers if name.decode().lower() not in OF_CONNECTION]


def raw_path(scope: Scope) -> bytes:
    """Return the path of a request as it was sent, without parameters."""
    path: bytes = scope.get("raw_path") or scope["path"].encode("latin-1", "replace")
    return path.partition(b"?")[0]


def api_of(path: bytes) -> tuple[bytes, str]:
    """Return (index, API) of a path as it was sent: ``/shop/_search/template`` gives (``shop``, ``_search/template``).

    Each part is decoded by itself, as the engines do, so that an encoded ``/`` does not begin another part. The index
    is empty, or not decoded where it names several. The API is empty for a path without one.
    """
    parts = path.lstrip(b"/").split(b"/")
    decoded = [unquote_to_bytes(part).decode("utf-8", "replace") for part in parts]
    start = next((place for place, part in enumerate(decoded) if part.startswith("_") and part != ALL), None)
    if start is None or start > 1:
        return parts[0], ""
    api = "/".join(decoded[start:])
    return parts[0] if start else b"", api if len(parts[start:]) == len(api.split("/")) else ""


def is_reading(method: str, path: bytes) -> bool:
    """Return whether a request only reads: GET and HEAD, and the listed APIs of POST and DELETE."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return True
    api, listed = api_of(path)[1], READING_APIS.get(method, frozenset())
    return api in listed or f"{api.rpartition('/')[0]}/{{id}}" in listed


def is_engine_path(path: str) -> bool:
    """Return whether a path has the form ``/_api…``, ``/index`` or ``/index/_api…``."""
    first, *more = path[1:].split("/")
    return first.startswith("_") or (bool(first) and (not more or more[0].startswith("_")))


def connections_of(engine: Engine) -> HttpConnections:
    """Return the connections to an engine. `Unsupported` for an embedded engine."""
    if not isinstance(engine, HasConnections):
        kind = engine.capabilities().kind
        raise Unsupported(f"{kind} has no clients of its own: --proxy needs Elasticsearch or OpenSearch", engine=kind)
    return engine.connections


async def answers_anybody(connections: HttpConnections) -> bool | None:
    """Return whether an engine answers a search without credentials; None if it does not answer at all."""
    forwarder = Forwarder(connections)
    scope: dict[str, Any] = {
        "method": "GET",
        "path": "/_search",
        "raw_path": b"/_search",
        "query_string": b"size=0",
        "headers": [],
    }
    try:
        with suppress(ServiceError):
            return (await forwarder.ask(scope, b"")).status < 400
        return None
    finally:
        await connections.close_own()
