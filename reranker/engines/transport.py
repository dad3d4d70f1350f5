"""One HTTP exchange through an official client's connection: bytes out, bytes in, no retry, one deadline.

The clients' own `perform_request` would decode, log, retry, and in the case of OpenSearch throw away the headers of an
error (``Retry-After`` among them). So their connection objects are used directly: they bring TLS, authentication and
connection reuse; what an answer means is decided in `reranker.engines.rest_errors`, once for both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import urllib3

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class NoReplyError(Exception):
    """No whole answer came.

    Parameters
    ----------
    reason : str
        What happened, without credentials.
    timed_out : bool
        The time limit passed.
    tls : bool
        The certificates do not fit: trying again cannot help.
    """

    def __init__(self, reason: str, *, timed_out: bool = False, tls: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.timed_out = timed_out
        self.tls = tls


class Transport(Protocol):
    """A connection to one engine."""

    def send(self, method: str, target: str, body: bytes | None, content_type: str, timeout_s: float) -> Reply:
        """Return the answer to one request, whatever its status; `NoReplyError` where none came in time."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class DeadlinePool:
    """A urllib3 pool whose ``urlopen`` keeps one deadline for connecting, waiting and reading the whole body.

    urllib3's own read timeout starts anew with each packet, so an engine that drips bytes holds a caller for ever.
    Only the headers are outside the deadline: while they drip, each byte may take up to the limit.

    Parameters
    ----------
    pool : urllib3 connection pool
    connect_timeout_s : float
        Seconds allowed for opening a connection.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool, connect_timeout_s: float) -> None:
        self._pool = pool
        self._connect_timeout_s = connect_timeout_s

    def urlopen(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        retries: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> WholeResponse:
        """Return the answer with its whole body; redirects are not followed (they would carry the credentials)."""
        import urllib3

        end = time.monotonic() + timeout
        response = self._pool.urlopen(
            method,
            url,
            body=body,
            retries=retries,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(self._connect_timeout_s, timeout), read=timeout),
            pool_timeout=timeout,  # type: ignore[arg-type]
            redirect=False,
            preload_content=False,
        )
        try:
            data = self._read(response, end, url)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        # Warning headers are deprecations addressed to whoever wrote the query; a client would print them.
        kept = urllib3.HTTPHeaderDict({n: v for n, v in response.headers.items() if n.lower() != "warning"})
        return WholeResponse(response.status, kept, data)

    def _read(self, response: urllib3.BaseHTTPResponse, end: float, url: str) -> bytes:
        import urllib3

        parts: list[bytes] = []
        while True:
            left = end - time.monotonic()
            if left <= 0:
                raise urllib3.exceptions.ReadTimeoutError(self._pool, url, "the answer took longer than allowed")
            connection = response.connection
            sock = getattr(connection, "sock", None)
            if sock is not None:
                sock.settimeout(left)
            part = response.read1(_CHUNK_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)

    def close(self) -> None:
        """Close the pool."""
        self._pool.close()


@dataclass(frozen=True, slots=True)
class WholeResponse:
    """What both clients read of a urllib3 response."""

    status: int
    headers: urllib3.HTTPHeaderDict
    data: bytes
