"""Requests to Elasticsearch and OpenSearch, and their errors.

`EngineClient` returns JSON objects or raises one of our errors. Its requests go over `HttpConnections`, with the
credentials and headers of `EngineSettings`. They can also go through an official client that the user has created, with
its nodes, sniffing, credentials and instrumentation; it cannot be used on an event loop.

Nothing is retried here. Each request through a user's Elasticsearch client disables its retries. The OpenSearch client
has no such option, so that a user's client keeps its own ``max_retries``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import aiohttp
import elastic_transport
import elasticsearch
import opensearchpy
from elastic_transport.client_utils import basic_auth_to_header
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch, OpenSearchWarning

from reranker.engines.connections import LONGEST_ON_LOOP, AnswerTooLongError, HttpConnections, Reply
from reranker.engines.dialects import ELASTICSEARCH, OPENSEARCH, Dialect
from reranker.engines.event_loop import is_on_loop, result_of
from reranker.engines.retry import VIEW_LOST, Attempts, Retries, retried
from reranker.engines.settings import EngineSettings
from reranker.engines.wire import caller_rights, json_bytes, passed_headers, request_deadline, while_waiting
from reranker.errors import (
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    MissingExtra,
    RequestTooLarge,
    VersionConflict,
)
from reranker.tracing import Attributes, is_traced, trace_headers, traced

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
PRODUCT_HEADER = "x-elastic-product"
BLOCKED = "cluster_block_exception"
CLOSED = "index_closed_exception"
"""Error type of an index that is blocked: with status 403 by its owner, with 429 because the disk is nearly full."""
STATUS_CLASSES: dict[int, tuple[type[EngineError], str]] = {
    401: (EngineAuthError, "set SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or SSI_ENGINE_API_KEY, to valid credentials"),
    403: (EngineAuthError, "use credentials whose role allows this"),
    404: (EngineRejected, "check the name and the engine's version"),
    408: (EngineUnavailable, "try again, or allow more time"),
    409: (VersionConflict, "read the document again, then decide"),
    413: (RequestTooLarge, "send less in one request"),
    429: (EngineOverloaded, "send less, or later"),
}
"""Status → error class and remedy. Any other 5xx status is `EngineUnavailable`, any other status `EngineRejected`."""
_LONGEST_REASON = 600
_COMPATIBLE = {
    kind: f"application/vnd.elasticsearch+{kind.partition('/')[2]}; compatible-with={elasticsearch.__version__[0]}"
    for kind in (JSON, NDJSON)
}
"""Content types of the Elasticsearch client's requests."""


def spec_of(client: Elasticsearch | OpenSearch) -> str:
    """Return the spec of a client's first node without credentials, for messages and files."""
    if isinstance(client, Elasticsearch):
        return f"elasticsearch:{next(iter(client.transport.node_pool.all())).base_url}"
    connection = client.transport.seed_connections[0]
    return f"opensearch:{connection.host}{connection.url_prefix}"


Sign = Callable[[str, str, bytes | None], Mapping[str, str]]
"""``sign(method, url, body)`` returns the headers that sign a request."""


def _own_headers(settings: EngineSettings) -> dict[str, str]:
    """Return the headers of every request of the program itself, with its credentials."""
    headers = {"user-agent": "ssi-reranker", **{name.lower(): value for name, value in settings.headers.items()}}
    if settings.api_key is not None:
        headers["authorization"] = f"ApiKey {settings.api_key}"
    elif settings.user is not None:
        headers["authorization"] = basic_auth_to_header((settings.user, settings.password or ""))
    return headers


def _signer(dialect: Dialect, settings: EngineSettings) -> Sign | None:
    """Return what signs requests for AWS (version 4), or None if they are not signed."""
    if settings.aws_region is None:
        return None
    if dialect is ELASTICSEARCH:
        raise ConfigError("requests to Elasticsearch cannot be signed for AWS: use the spec opensearch:URL")
    try:
        from botocore.session import Session
    except ImportError as error:
        raise MissingExtra(error.name or "botocore", "aws") from error
    credentials = Session().get_credentials()
    if credentials is None:
        raise ConfigError(
            f"requests must be signed for AWS region {settings.aws_region}, but no AWS credentials were found: set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a profile, or give the machine a role"
        )
    sign: Sign = opensearchpy.Urllib3AWSV4SignerAuth(credentials, settings.aws_region, settings.aws_service)
    return sign


class EngineClient:
    """Sends requests to one engine.

    Parameters
    ----------
    spec : str
        Kind and URL of the engine, without credentials.
    settings : EngineSettings
        Credentials, time limits, TLS and HTTP proxy.
    retries : Retries, optional
        Retry policy for repeatable requests without a time limit of their own; None: no retries.
    client : Elasticsearch or OpenSearch, optional
        A user's client, through which requests go; `close` leaves it open. None: they go over `HttpConnections`.
    """

    def __init__(
        self,
        spec: str,
        settings: EngineSettings,
        retries: Retries | None = None,
        client: Elasticsearch | OpenSearch | None = None,
    ) -> None:
        self.kind, _, url = spec.partition(":")
        self.dialect = ELASTICSEARCH if self.kind == "elasticsearch" else OPENSEARCH
        self.spec, self.retries = spec, retries
        self.connections = HttpConnections(url, settings)
        self._client, self._settings = client, settings
        self._headers = _own_headers(settings)
        self._sign = None if client is not None else _signer(self.dialect, settings)

    @property
    def is_awaitable(self) -> bool:
        """Whether an event loop can send its requests (`reranker.engines.event_loop`)."""
        return self._client is None

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        repeatable: bool = False,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request.

        Parameters
        ----------
        method, path : str
            HTTP method and path.
        body : Mapping or bytes, optional
            JSON object, or lines of JSON already encoded.
        params : Mapping[str, str], optional
            URL parameters.
        timeout_s : float, optional
            Seconds for the whole request; None: the settings' limit.
        repeatable : bool
            Whether the request may be sent again, as every GET may.

        Raises
        ------
        EngineError
            The class given by `STATUS_CLASSES`.
        """
        if timeout_s is None and (repeatable or method == "GET"):
            return self.retried(f"{method} {path}", lambda: self._call(method, path, body, params, None))
        return self._call(method, path, body, params, timeout_s)

    def retried(self, request: str, function: Callable[[], T]) -> T:
        """Return the result of ``function``, which may be called again after a temporary failure.

        It is called once within the deadline of a user's request.
        """
        retries = self.retries if request_deadline.get() is None else None
        return retried(function, Attempts(retries, f"{self.kind}: {request}"))

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        params: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> dict[str, Any]:
        request = f"{method} {path}"
        reply = self._reply(method, path, body, params, timeout_s)
        try:
            value = reply.json()
        except ValueError as error:
            raise self.unusable(request, f"incomplete JSON: {error!s:.120}") from None
        if not isinstance(value, dict):
            raise self.unusable(request, f"JSON, but not an object: {value!r:.60}")
        self._check_product(reply)
        return value

    def exists(self, path: str) -> bool:
        """Return whether a HEAD request succeeds; False for 404, other errors are raised."""
        try:
            self.retried(f"HEAD {path}", lambda: self._reply("HEAD", path))
        except EngineError as error:
            if error.status != 404:
                raise
            return False
        return True

    def unusable(self, request: str, why: str) -> EngineUnavailable:
        """Return the error for an answer with a success status but unusable content."""
        message = (
            f"{self.kind} answered {request} with an unusable body ({why}); the request may or may not have been "
            "executed: send it again"
        )
        return EngineUnavailable(message, engine=self.kind, status=200, error_type="unusable_answer")

    def close(self) -> None:
        """Close the connections of synchronous code."""
        self.connections.close()

    def _reply(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Return the answer to one request if its status is 2xx, else raise its error."""
        request = f"{method} {path}"
        try:
            data = json_bytes(body, escape=True) if isinstance(body, Mapping) else body
        except (ValueError, TypeError) as error:
            message = f"the body for {request} cannot be encoded as JSON ({error}): use finite numbers and plain text"
            raise EngineRejected(message, engine=self.kind, error_type="not_json") from None
        limit_s = self._limit_s() if timeout_s is None else timeout_s
        if limit_s <= 0:
            raise self._no_reply(None, request, limit_s)
        target = f"{path}?{urlencode(params)}" if params else path
        headers = {"accept": JSON, **(passed_headers.get() or {})}
        headers |= {} if data is None else {"content-type": NDJSON if isinstance(body, bytes) else JSON}
        name, attributes = self._span_of(method, path) if is_traced() else ("", {})
        with traced(name, attributes, kind="client") as span:
            reply = self._exchanged(method, target, data, headers | trace_headers(), limit_s)
            span.note({"db.response.status_code": str(reply.status)})
            if reply.status >= 400:
                span.fail(str(reply.status))
        if self.retries is not None:
            self.retries.answered = True
        if not 200 <= reply.status < 300:
            failure = _error_of(reply, self.kind, request)
            if isinstance(failure, IndexMissing):
                # A 404 of another product does not mean that the index is missing.
                self._check_product(reply)
            raise failure
        return reply

    def _limit_s(self) -> float:
        """Return the timeout of a request that was given none, in seconds."""
        deadline, limit_s = request_deadline.get(), self._settings.read_timeout_s
        return limit_s if deadline is None else min(limit_s, deadline.left_s)

    def _span_of(self, method: str, path: str) -> tuple[str, Attributes]:
        """Return name and attributes of a request's span, by OpenTelemetry's conventions for database clients.

        The operation is the API in the path (``search`` of ``/shop/_search``), or the method of a path without one. The
        URL has no parameters, because they can contain the query text.
        """
        parts = path.strip("/").split("/")
        operation = next((part[1:] for part in parts if part.startswith("_")), method)
        url = urlsplit(self.spec.partition(":")[2])
        attributes: dict[str, str | bool | int | float] = {
            "db.system.name": self.kind,
            "db.operation.name": operation,
            "http.request.method": method,
            "url.full": f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}{path}",
            "server.address": url.hostname or "",
            "server.port": url.port or (443 if url.scheme == "https" else 80),
        }
        if parts[0] and not parts[0].startswith("_"):
            attributes["db.collection.name"] = parts[0]
        return f"{operation} {attributes.get('db.collection.name', '')}".rstrip(), attributes

    def _exchanged(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        """Return the answer to a request, of any status."""
        if self._client is not None:
            return self._by_client(self._client, method, target, data, headers, limit_s)
        work = while_waiting.get()
        token = while_waiting.set(None)  # requests of that work do not start it again
        try:
            given = self._all_headers(method, target, data, headers)
            most = LONGEST_ON_LOOP if is_on_loop() else math.inf
            sent = self.connections.reply(method, target, data, given, limit_s, most)
            reply = result_of(sent, work)
        except AnswerTooLongError as error:
            raise self.unusable(f"{method} {target.partition('?')[0]}", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_reply(error, f"{method} {target.partition('?')[0]}", limit_s) from error
        finally:
            while_waiting.reset(token)
        if said := reply.headers.get("warning"):
            is_elastic = self.dialect is ELASTICSEARCH
            warnings.warn(said, elasticsearch.ElasticsearchWarning if is_elastic else OpenSearchWarning, stacklevel=2)
        return reply

    def _all_headers(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return the headers of a request, with the credentials of its caller if it is made for one."""
        if self.dialect is ELASTICSEARCH:
            # As Elastic's client does: a newer server then answers in the format of the client's version.
            headers = {name: _COMPATIBLE.get(value, value) for name, value in headers.items()}
        rights = caller_rights.get()
        if rights is not None:
            # Any other header of the program may hold its credentials.
            return {"user-agent": self._headers["user-agent"], **headers, **rights}
        signed = {} if self._sign is None else self._sign(method, self.connections.url + target, data)
        return {**self._headers, **headers, **signed}

    def _by_client(
        self,
        client: Elasticsearch | OpenSearch,
        method: str,
        target: str,
        data: bytes | None,
        headers: Mapping[str, str],
        limit_s: float,
    ) -> Reply:
        """Return the answer to a request that a user's client sends."""
        if caller_rights.get() is not None:
            raise ConfigError("a client of your own has its own credentials, and cannot ask for a caller")
        try:
            if isinstance(client, Elasticsearch):
                client = client.options(request_timeout=limit_s, max_retries=0, retry_on_timeout=False)
                answer = client.perform_request(method, target, headers=headers, body=data)
                return Reply(answer.meta.status, answer.meta.headers, None, answer.body)
            value = client.transport.perform_request(method, target, body=data, timeout=limit_s, headers=headers)
            return Reply(404 if value is False else 200, {}, None, value)
        except (
            elastic_transport.TransportError,
            elastic_transport.ApiError,
            opensearchpy.OpenSearchException,
        ) as error:
            return self._of_error(error, f"{method} {target.partition('?')[0]}", limit_s)

    def _of_error(self, error: Exception, request: str, limit_s: float) -> Reply:
        """Return the answer that a user's client raised as an error, or raise our error."""
        if isinstance(error, elastic_transport.ApiError):
            return Reply(error.meta.status, error.meta.headers, None, error.body)
        if isinstance(error, opensearchpy.TransportError) and isinstance(error.status_code, int):
            return Reply(error.status_code, {}, None, error.info)
        if isinstance(error, elastic_transport.SerializationError | opensearchpy.SerializationError):
            raise self.unusable(request, f"incomplete JSON: {error!s:.120}") from None
        raise self._no_reply(error, request, limit_s) from error

    def _no_reply(self, error: Exception | None, request: str, limit_s: float) -> EngineError:
        """Return the error for a request without a complete answer; ``error`` is None if it was too late to send it."""
        if error is None or isinstance(error, _LATE):
            message = f"{self.spec} did not answer {request} within {limit_s:g} s: allow more time, or request less"
            return EngineUnavailable(message, engine=self.kind, status=None, timed_out=True)
        unreached = isinstance(error, aiohttp.ClientConnectorError)
        data = {"engine": self.kind, "status": None, "timed_out": False, "unreached": unreached}
        if isinstance(error, aiohttp.ClientSSLError | elastic_transport.TlsError | opensearchpy.SSLError):
            remedy = "set SSI_ENGINE_CA_FILE to the certificate of the authority that signed it"
            return EngineRejected(
                f"cannot establish a TLS connection to {self.spec} ({error}): {remedy}", error_type="tls", **data
            )
        message = f"no answer from {self.spec} to {request} ({error}): check that it is running and the URL is right"
        return EngineUnavailable(message, **data)

    def _check_product(self, reply: Reply) -> None:
        """Raise `EngineRejected` if the other product answered; skipped if the client does not show headers."""
        if not reply.headers:
            return
        sent, product = reply.headers.get(PRODUCT_HEADER) == "Elasticsearch", self.dialect.least.product
        if sent == bool(product):
            return
        other = "opensearch" if product else "elasticsearch"
        message = (
            f"{self.spec} is not {self.kind}: its answer {'does not have' if not sent else 'has'} the header "
            f"{PRODUCT_HEADER}; write the spec as {other}:URL if {other} runs there"
        )
        raise EngineRejected(message, engine=self.kind, status=reply.status, error_type="unsupported_product")


_LATE = (TimeoutError, elastic_transport.ConnectionTimeout, opensearchpy.ConnectionTimeout)


def _error_of(reply: Reply, engine: str, request: str) -> EngineError:
    """Return the error for an answer with status 300 or above."""
    error_type, reason = _type_and_reason(reply)
    cls, remedy = _class_and_remedy(reply.status, error_type)
    cause = f"{error_type}: {reason}" if error_type and reason else error_type or reason or "no reason given"
    message = f"{engine} answered {reply.status} to {request}: {cause[:_LONGEST_REASON]}; {remedy}"
    wait_s = retry_after_s(reply.headers)
    return cls(
        message,
        engine=engine,
        status=reply.status,
        error_type=error_type,
        engine_reason=reason[:_LONGEST_REASON],
        retry_after_s=wait_s,
    )


_BY_TYPE: dict[str, tuple[type[EngineError], str]] = {
    "index_not_found_exception": (IndexMissing, "check the index or alias name, or create it first"),
    VIEW_LOST: (
        EngineUnavailable,
        "the engine closed the snapshot (point in time or scroll) being read: start again",
    ),
    CLOSED: (EngineRejected, "the index is closed: open it with POST /INDEX/_open, or name another one"),
}
"""Error type → class of the error, and remedy."""


def _class_and_remedy(status: int, error_type: str) -> tuple[type[EngineError], str]:
    if error_type in _BY_TYPE:
        return _BY_TYPE[error_type]
    if error_type == BLOCKED and status == 403:
        return EngineRejected, "the index is blocked by its owner: lift its index.blocks.* settings"
    if error_type == BLOCKED and status == 429:
        remedy = "the engine blocked writes to the index, most likely because its disk is nearly full: free disk space"
        return EngineOverloaded, remedy
    if status >= 500:
        return EngineUnavailable, "try again later, or see the engine's log"
    return STATUS_CLASSES.get(status, (EngineRejected, "change the request"))


def _type_and_reason(reply: Reply) -> tuple[str, str]:
    """Return the engine's error type and reason, or "" and the beginning of a body that is not JSON."""
    try:
        body = reply.json()
    except ValueError:
        return "", reply.text
    error: Any = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return "", str(error)
    causes = error.get("root_cause") or [error]
    cause = causes[0] if isinstance(causes, list) and isinstance(causes[0], Mapping) else error
    error_type = str(error.get("type") or "")
    # "all shards failed" and "validation failed" are not informative; the root cause is.
    reason = str(cause.get("reason") or error.get("reason") or "")
    if error_type == "search_phase_execution_exception" and cause.get("type"):
        error_type = str(cause["type"])
    return error_type, reason


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (seconds or an HTTP date), or None."""
    text = headers.get("retry-after", "").strip()
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError):
        when = parsedate_to_datetime(text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, (when - datetime.now(UTC)).total_seconds())
    return None
