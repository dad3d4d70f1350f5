"""HTTP connections to one engine, by aiohttp, and the answers that come over them."""

from __future__ import annotations

import asyncio
import atexit
import math
import re
import ssl
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import certifi
from yarl import URL

from reranker.engines.event_loop import result_of
from reranker.engines.settings import EngineSettings
from reranker.engines.wire import json_value

LONGEST_HEADER: Final = 64 * 1024
"""Longest header of an answer, in bytes."""
LONGEST_ON_LOOP: Final = 64 * 1024 * 1024
"""Longest answer, in bytes, that the event loop of a service reads: its memory is for many requests."""
_ENCODED = re.compile(r"[\x21-\x7e]*")
"""A path with parameters that needs no further encoding."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the engine."""

    status: int
    headers: Mapping[str, str]
    data: bytes | None = None
    """The body; None if a user's client has read it."""
    value: Any = None
    """The body as decoded by a user's client, if ``data`` is None."""

    def json(self) -> Any:
        """Return the decoded answer. `ValueError` if it is not a complete JSON text."""
        if self.data is not None:
            return json_value(self.data)
        if isinstance(self.value, str | bytes | None):
            raise ValueError("not JSON")
        return self.value

    @property
    def text(self) -> str:
        """The first 200 characters of an answer that is not JSON."""
        if self.data is not None:
            return self.data[:200].decode("utf-8", "replace").strip()
        return str(self.value or "")[:200].strip()


class AnswerTooLongError(aiohttp.ClientPayloadError):
    """The answer is longer than it may be."""


class ConnectionBrokenError(aiohttp.ClientConnectionError):
    """The connection broke before the answer began; the request may have been executed."""


async def _never_again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once. aiohttp would send one of an idempotent method again if its connection breaks."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionBrokenError(str(error)) from error


class HttpConnections:
    """The connections to one engine. Each event loop has its own; they stay open for further requests.

    Parameters
    ----------
    url : str
        URL of the engine; its path, if it has one, comes before every path.
    settings : EngineSettings
        Time limits, TLS and HTTP proxy. Credentials and headers are not used.
    """

    def __init__(self, url: str, settings: EngineSettings) -> None:
        self.url, self.settings = url.rstrip("/"), settings
        self._proxy, self._login = _proxy_of(settings)
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    async def reply(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        limit_s: float | None,
        most: float = math.inf,
    ) -> Reply:
        """Return the answer to a request, of any status.

        Raises `TimeoutError` if it does not arrive within ``limit_s`` seconds, `AnswerTooLongError` if it has more than
        ``most`` bytes, else aiohttp's errors.
        """
        limits = aiohttp.ClientTimeout(total=limit_s, sock_connect=self.settings.connect_timeout_s)
        async with await self.ask(method, target, body, headers, limits) as answer:
            return Reply(answer.status, answer.headers, await read_at_most(answer, most))

    async def ask(
        self, method: str, target: str, body: Any, headers: Mapping[str, str], limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Return an answer whose body is still to be read. ``target`` is path and parameters."""
        return await self._session().request(
            method,
            URL(self.url + target, encoded=_ENCODED.fullmatch(target) is not None),
            data=body,
            headers=headers,
            timeout=limits,
            allow_redirects=False,
            proxy=self._proxy,
            proxy_auth=self._login,
        )

    async def close_own(self) -> None:
        """Close the connections of the running event loop."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()

    def close(self) -> None:
        """Close the connections of synchronous code."""
        if self._sessions:
            result_of(self.close_own())

    def __del__(self) -> None:
        for loop, session in self._sessions.items():
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(session.close(), loop)

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            self._sessions[loop] = self._new_session()
            _open.add(self)
        return self._sessions[loop]

    def _new_session(self) -> aiohttp.ClientSession:
        """Return a session, which belongs to the running event loop."""
        settings = self.settings
        context: ssl.SSLContext | bool = False
        if settings.verify:
            context = ssl.create_default_context(cafile=settings.ca_file)
            if settings.ca_file is None:
                context.load_verify_locations(certifi.where())  # small images have no authorities of their own
        return aiohttp.ClientSession(
            # Callers limit the number of their requests.
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(_never_again,),
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
        )


async def read_at_most(answer: aiohttp.ClientResponse, most: float) -> bytes:
    """Return the body of an answer; `AnswerTooLongError` if it has more than ``most`` bytes."""
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > most:
            raise AnswerTooLongError(f"the answer has more than {most} bytes")
    return bytes(content)


def _proxy_of(settings: EngineSettings) -> tuple[str | None, aiohttp.BasicAuth | None]:
    """Return the URL of the HTTP proxy without credentials, which messages may contain, and the credentials."""
    if settings.proxy is None:
        return None, None
    url = URL(settings.proxy)
    login = None if url.user is None else aiohttp.BasicAuth(url.user, url.password or "")
    return str(url.with_user(None)), login


_open: weakref.WeakSet[HttpConnections] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what nobody has closed, before the event loop of synchronous code ends with the process."""
    for connections in list(_open):
        connections.close()
