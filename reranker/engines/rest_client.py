"""JSON over HTTP to an engine: sends one request, returns the decoded answer or raises the error it stands for.

One HTTP exchange through an official client's connection: bytes out, bytes in, no retry, one deadline.

The clients' own `perform_request` would decode, log, retry, and in the case of OpenSearch throw away the headers of an
error (``Retry-After`` among them). So their connection objects are used directly: they bring TLS, authentication and
connection reuse; what an answer means is decided in `reranker.engines.rest_client`, once for both.

What an HTTP answer of an engine means: one table from status to error class, for both engines and all calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from reranker.deadline import Deadline
from reranker.engines.settings import EngineSettings
from reranker.engines.wire import decode, encode
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
    VersionConflict,
)

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

        deadline = Deadline(timeout)
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
            data = self._read(response, deadline, url)
        except BaseException:
            response.close()
            raise
        response.release_conn()
        # Warning headers are deprecations addressed to whoever wrote the query; a client would print them.
        kept = urllib3.HTTPHeaderDict({n: v for n, v in response.headers.items() if n.lower() != "warning"})
        return WholeResponse(response.status, kept, data)

    def _read(self, response: urllib3.BaseHTTPResponse, deadline: Deadline, url: str) -> bytes:
        import urllib3

        parts: list[bytes] = []
        while True:
            if deadline.passed:
                raise urllib3.exceptions.ReadTimeoutError(self._pool, url, "the answer took longer than allowed")
            connection = response.connection
            sock = getattr(connection, "sock", None)
            if sock is not None:
                sock.settimeout(deadline.timeout_s())
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


_LONGEST_REASON = 600

STATUS_CLASSES: dict[int, tuple[type[EngineError], str]] = {
    401: (EngineAuthError, "set SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or SSI_ENGINE_API_KEY, to valid credentials"),
    403: (EngineAuthError, "use credentials whose role may do this"),
    404: (EngineRejected, "check the name and the engine's version"),
    408: (EngineUnavailable, "try again, or allow more time"),
    409: (VersionConflict, "read the document again and decide anew"),
    413: (RequestTooLarge, "send less in one request"),
    429: (EngineOverloaded, "send less, or later"),
}
"""Status → class and remedy. Not listed: 5xx is `EngineUnavailable`, everything else `EngineRejected`."""

BLOCKED = "cluster_block_exception"
"""An index closed for writing: with status 403 by its owner, with 429 because the disk is nearly full."""


def error_of(reply: Reply, engine: str, request: str) -> EngineError:
    """Return the error that an answer of status 300 and above stands for.

    Parameters
    ----------
    reply : Reply
    engine : str
        Kind of engine, for the message and ``data``.
    request : str
        Method and path, for the message.
    """
    kind, reason = _told(reply)
    cls, remedy = _class(reply.status, kind)
    told = f"{kind}: {reason}" if kind and reason else kind or reason or "no reason given"
    return cls(
        f"{engine} answered {reply.status} to {request}: {told[:_LONGEST_REASON]}; {remedy}",
        engine=engine,
        status=reply.status,
        error_type=kind,
        retry_after_s=retry_after_s(reply.headers),
    )


def _class(status: int, kind: str) -> tuple[type[EngineError], str]:
    if kind == "index_not_found_exception":
        return IndexMissing, "check the index or alias name, or create it first"
    if kind == "search_context_missing_exception":
        return EngineUnavailable, "the engine dropped the view it was reading from: start again"
    if kind == BLOCKED and status == 403:
        return EngineRejected, "the index is closed for this by its owner: lift its index.blocks.* settings"
    if kind == BLOCKED and status == 429:
        return (
            EngineOverloaded,
            "the engine closed the index for writing, most likely for want of disk space: free some",
        )
    if status >= 500:
        return EngineUnavailable, "try again later, or see the engine's log"
    return STATUS_CLASSES.get(status, (EngineRejected, "change the request"))


def _told(reply: Reply) -> tuple[str, str]:
    """Return the engine's own name of the error and its reason, or parts of a body that is no JSON."""
    try:
        body = decode(reply.body)
    except ValueError:
        return "", reply.body[:200].decode("utf-8", "replace").strip()
    error: Any = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return "", str(error)
    causes = error.get("root_cause") or [error]
    cause = causes[0] if isinstance(causes, list) and isinstance(causes[0], Mapping) else error
    kind = str(error.get("type") or "")
    # "all shards failed" and "validation failed" tell nothing; the root cause does.
    reason = str(cause.get("reason") or error.get("reason") or "")
    if kind == "search_phase_execution_exception" and cause.get("type"):
        kind = str(cause["type"])
    return kind, reason


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (seconds or an HTTP date), or None."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def no_reply(error: NoReplyError, spec: str, engine: str, request: str, timeout_s: float) -> EngineError:
    """Return the error for an exchange without a whole answer."""
    data = {"engine": engine, "status": None, "timed_out": error.timed_out}
    if error.tls:
        return EngineRejected(
            f"no secure connection to {spec} ({error.reason}): set SSI_ENGINE_CA_FILE to the certificate that signs it",
            error_type="tls",
            **data,
        )
    if error.timed_out:
        message = f"{spec} did not answer {request} within {timeout_s:g} s: allow more time, or ask for less"
    else:
        message = f"no answer from {spec} to {request} ({error.reason}): check that it runs and that the URL is right"
    return EngineUnavailable(message, **data)


def unusable(engine: str, request: str, why: str, **data: object) -> EngineUnavailable:
    """Return the error for an answer with a good status that cannot be trusted."""
    return EngineUnavailable(
        f"{engine} answered {request} with something unusable ({why}): what was sent may or may not have been done; "
        "send it again",
        engine=engine,
        status=200,
        error_type="unusable_answer",
        **data,
    )


JSON = "application/json"
NDJSON = "application/x-ndjson"
PRODUCT_HEADER = "x-elastic-product"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the engines that speak the same wire.

    Parameters
    ----------
    kind : str
        ``elasticsearch`` or ``opensearch``.
    product_header : bool
        Good answers carry ``X-Elastic-Product`` (True) or never do (False).
    shard_doc_pit : bool
        A point in time can be read in the order of ``_shard_doc``; otherwise scans use a scroll.
    vector_type, vector_module : str
        Type of a stored vector, and the module or plugin that brings it ("": always there).
    sparse_types : tuple of (str, str)
        Types for words with weights, best first, with the module each needs.
    default_dims : int
        Most dimensions of a vector.
    """

    kind: str
    product_header: bool
    shard_doc_pit: bool
    vector_type: str
    vector_module: str
    sparse_types: tuple[tuple[str, str], ...]
    default_dims: int


class RestClient:
    """One engine's wire.

    Parameters
    ----------
    dialect : Dialect
    transport : Transport
    spec : str
        Engine spec without credentials.
    settings : EngineSettings
    """

    def __init__(self, dialect: Dialect, transport: Transport, spec: str, settings: EngineSettings) -> None:
        self.dialect = dialect
        self.spec = spec
        self._transport = transport
        self._settings = settings

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request.

        Raises
        ------
        EngineError
            By the table of `reranker.engines.rest_client`.
        """
        try:
            data = None if body is None else encode(body)
        except (ValueError, TypeError) as error:
            raise EngineRejected(
                f"the body for {method} {path} cannot be written as JSON ({error}): use finite numbers and plain text",
                engine=self.dialect.kind,
                error_type="not_json",
            ) from None
        return self.send(method, path, data, JSON, params=params, timeout_s=timeout_s)

    def send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request whose body is already bytes; errors as in `call`."""
        reply = self._exchange(method, path, data, content_type, params, timeout_s)
        request = f"{method} {path}"
        if not 200 <= reply.status < 300:
            raise error_of(reply, self.dialect.kind, request)
        try:
            value = decode(reply.body)
        except ValueError as error:
            raise unusable(self.dialect.kind, request, f"no whole JSON: {error!s:.120}") from None
        if not isinstance(value, dict):
            raise unusable(self.dialect.kind, request, f"JSON, but no object: {value!r:.60}")
        self._check_product(reply)
        return value

    def exists(self, path: str) -> bool:
        """Return whether a HEAD request finds something; errors other than 404 are raised."""
        reply = self._exchange("HEAD", path, None, JSON, None, None)
        if reply.status == 404:
            return False
        if not 200 <= reply.status < 300:
            raise error_of(reply, self.dialect.kind, f"HEAD {path}")
        return True

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        content_type: str,
        params: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> Reply:
        limit = self._settings.read_timeout_s if timeout_s is None else timeout_s
        if limit <= 0:
            raise no_reply(NoReplyError("no time left", timed_out=True), self.spec, self.dialect.kind, path, limit)
        target = f"{path}?{urlencode(params)}" if params else path
        try:
            return self._transport.send(method, target, data, content_type, limit)
        except NoReplyError as error:
            raise no_reply(error, self.spec, self.dialect.kind, f"{method} {path}", limit) from error

    def _check_product(self, reply: Reply) -> None:
        sent = reply.headers.get(PRODUCT_HEADER, "") == "Elasticsearch"
        if sent == self.dialect.product_header:
            return
        other = "opensearch" if self.dialect.product_header else "elasticsearch"
        raise EngineRejected(
            f"{self.spec} is not {self.dialect.kind}: its answer {'lacks' if not sent else 'has'} the header "
            f"{PRODUCT_HEADER}; write the spec as {other}:URL if that is what runs there",
            engine=self.dialect.kind,
            status=reply.status,
            error_type="unsupported_product",
        )
