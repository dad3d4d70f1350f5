"""Connection classes for both official clients that enforce one deadline over a whole request.

A client's own timeout applies to each packet, so that an answer that arrives slowly has no limit. A request sent
`within` an `Exchange` waits for a free connection, connects, sends and reads before the deadline of that exchange;
without an exchange, the client's own timeout bounds all of these together. `DeadlineNode` is a node class for the
Elasticsearch client (``node_class=``), `DeadlineConnection` a connection class for the OpenSearch client
(``connection_class=``).
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
import urllib3
from elastic_transport import NodeConfig, Urllib3HttpNode
from opensearchpy import Urllib3HttpConnection
from urllib3.exceptions import ProtocolError, ReadTimeoutError, SSLError

from reranker.deadline import Deadline
from reranker.engines.http1 import BoundedResponse, DirectConnection
from reranker.engines.settings import EngineSettings
from reranker.engines.wire import caller_rights, while_waiting


@dataclass(slots=True)
class Exchange:
    """One request and the answer that its connection received."""

    deadline: Deadline
    """Deadline of the whole exchange."""
    connect_timeout_s: float
    """Seconds for opening a connection, at most the time left."""
    target: str = ""
    """Path and query of the request. Answers to requests that a client sends on its own (sniffing) are ignored."""
    reply: urllib3.BaseHTTPResponse | None = None
    """The complete answer, whatever its status."""
    error: Exception | None = None
    """urllib3's error if there is no complete answer."""


LONGEST_WAIT_S = 60.0
"""Seconds for which a request without a time limit waits for a free connection."""
_ENCODED = re.compile(r"/(?:[A-Za-z0-9/?&=._~:,*+-]|%[0-9A-F]{2})*")
"""A path with parameters that needs no further encoding."""
_WITHOUT_SECRETS = frozenset({"accept-encoding", "connection", "content-type", "user-agent"})
_exchange: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


@contextlib.contextmanager
def within(exchange: Exchange) -> Iterator[None]:
    """Apply an exchange to the requests that are sent in this context."""
    token = _exchange.set(exchange)
    try:
        yield
    finally:
        _exchange.reset(token)


class DeadlinePool:
    """A connection pool that reads whole answers before a deadline. It follows no redirects and never retries.

    It replaces the urllib3 pool of a node or a connection, which call its `urlopen` and `close`.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool, origin: str = "") -> None:
        """Wrap a pool; an HTTP proxy is sent ``origin`` (scheme, host, port) before each path."""
        # Requests through an HTTP proxy have other first lines, and begin with a request of their own for TLS.
        self._is_direct = isinstance(pool, urllib3.HTTPConnectionPool) and pool.proxy is None and not origin
        mixed = (DirectConnection,) if self._is_direct else ()
        pool.ConnectionCls = type("Connection", (*mixed, pool.ConnectionCls), {"response_class": BoundedResponse})
        self._pool, self._origin = pool, origin
        self._free = threading.Semaphore(pool.pool.maxsize if pool.pool is not None else 1)

    def urlopen(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Any = None,
        **_: Any,
    ) -> urllib3.BaseHTTPResponse:
        """Return the complete answer to a request; raises urllib3's errors."""
        exchange = _exchange.get() or _of_timeout(self._pool.timeout if timeout is None else timeout)
        is_the_request = url.endswith(exchange.target)
        try:
            reply = self._read_whole(exchange, method, url, body, headers)
        except Exception as error:
            if is_the_request:
                exchange.reply, exchange.error = None, error
            raise
        if is_the_request:
            exchange.reply, exchange.error = reply, None
        return reply

    def _read_whole(
        self, exchange: Exchange, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> urllib3.BaseHTTPResponse:
        pool, deadline = self._pool, exchange.deadline
        left_s = deadline.timeout_s()
        if not self._free.acquire(timeout=LONGEST_WAIT_S if left_s is None else left_s):
            raise ReadTimeoutError(pool, url, "all connections were in use")
        try:
            left_s = deadline.timeout_s()
            if self._is_direct and _ENCODED.fullmatch(url):
                # urllib3 has no public way to borrow a connection of a pool.
                conn = pool._get_conn()
                if not conn.is_closed:
                    return self._over(conn, method, url, body, headers, left_s)
                pool._put_conn(conn)
            connect_s = exchange.connect_timeout_s if left_s is None else min(exchange.connect_timeout_s, left_s)
            limit = urllib3.Timeout(total=left_s, connect=connect_s, read=left_s)
            return pool.urlopen(
                method,
                f"{self._origin}{url}",
                body=body,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                timeout=limit,
            )
        finally:
            self._free.release()

    def _over(
        self,
        conn: Any,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        left_s: float | None,
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer over an open connection of the pool; raises urllib3's errors.

        This leaves out urllib3's own steps (retries, redirects, encoding of the URL), which take as long as reading the
        answer.
        """
        try:
            conn.timeout = left_s
            # An engine that closes the connection may have sent an answer before.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                conn.request(method, url, body=body, headers=headers)
            if (work := while_waiting.get()) is not None:
                token = while_waiting.set(None)
                try:
                    work()
                finally:
                    while_waiting.reset(token)
            answer: urllib3.BaseHTTPResponse = conn.getresponse()
            return answer
        except BaseException as error:
            conn.close()
            if isinstance(error, TimeoutError):
                raise ReadTimeoutError(self._pool, url, f"the answer took longer than {left_s} s") from error
            if isinstance(error, ssl.SSLError):
                raise SSLError(error) from error
            if isinstance(error, OSError | http.client.HTTPException):
                raise ProtocolError("Connection aborted.", error) from error
            raise
        finally:
            self._pool._put_conn(conn)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


def _of_timeout(timeout: Any) -> Exchange:
    """Return an exchange for a client's own timeout: seconds, a `urllib3.Timeout`, or None for no limit."""
    limit_s = timeout.total or timeout.read_timeout if isinstance(timeout, urllib3.Timeout) else timeout
    limit_s = limit_s if isinstance(limit_s, int | float) else None
    return Exchange(Deadline(limit_s), float("inf") if limit_s is None else limit_s)


class DeadlineNode(Urllib3HttpNode):
    """A node of the Elasticsearch client that reads whole answers before a deadline.

    A subclass sets ``settings`` if an HTTP proxy is used, which the client's own node does not support, and
    ``client_headers`` for `send`.
    """

    settings: EngineSettings | None = None
    client_headers: Mapping[str, str] = {}
    """Headers that the client adds to those of its node, in lower case."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.pool = _pool_of(self.base_url, self.settings, self.pool)  # type: ignore[assignment]
        self._own_headers = {**self.headers, **self.client_headers}

    def send(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Send a request as the client would; its answer is in the `Exchange`. Raises urllib3's errors."""
        url, given = f"{self.path_prefix}{target}", _with_rights(self._own_headers, headers)
        self.pool.urlopen(method, url, body=body, headers=given)


class DeadlineConnection(Urllib3HttpConnection):
    """A connection of the OpenSearch client that reads whole answers before a deadline.

    A subclass sets ``settings`` if an HTTP proxy is used.
    """

    settings: EngineSettings | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.pool = _pool_of(self.host, self.settings, self.pool)

    def send(self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Send a request as the client would; its answer is in the `Exchange`. Raises urllib3's errors."""
        url, given = f"{self.url_prefix}{target}", _with_rights(self.headers, headers)
        if callable(self.http_auth) and caller_rights.get() is None:
            given |= self.http_auth(method, f"{self.host}{url}", body)
        self.pool.urlopen(method, url, body=body, headers=given)


def _with_rights(own: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request, with the credentials of its caller if it is made for one.

    Any of the program's own headers may hold credentials, so that only those of `_WITHOUT_SECRETS` stay then.
    """
    rights = caller_rights.get()
    if rights is None:
        return {**own, **headers}
    return {**{name: own[name] for name in own if name.lower() in _WITHOUT_SECRETS}, **headers, **rights}


def _pool_of(url: str, settings: EngineSettings | None, pool: urllib3.HTTPConnectionPool) -> DeadlinePool:
    """Return the pool for a node's URL: through the HTTP proxy of the settings if there is one, else ``pool``."""
    if settings is None or settings.proxy is None:
        return DeadlinePool(pool)
    security: dict[str, Any] = {}
    if url.startswith("https:"):
        security = {"cert_reqs": "CERT_REQUIRED", "ca_certs": settings.ca_file or certifi.where()}
        if not settings.verify:
            security = {"cert_reqs": "CERT_NONE"}
    proxy = urlsplit(settings.proxy)
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else None
    address = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
    greeting = urllib3.make_headers(proxy_basic_auth=login)
    manager = urllib3.ProxyManager(address, maxsize=settings.connections, proxy_headers=greeting, **security)
    # A proxy gets absolute URLs for plain HTTP; for HTTPS it opens a tunnel.
    origin = urlsplit(url)._replace(path="").geturl() if url.startswith("http:") else ""
    return DeadlinePool(manager.connection_from_url(url), origin)
