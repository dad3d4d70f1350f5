"""JSON over HTTP to an engine: sends one request, returns the decoded answer or raises the error it stands for.

There is one deadline for connecting, waiting and reading the whole answer. A request is sent again only by a client
with `Retries`, and only if the caller says that it may be. What differs between Elasticsearch and OpenSearch, and what
a version of either can do, is data.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlencode, urlsplit

import certifi
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

from reranker.engines.base import (
    Capabilities,
    Deadline,
    EngineSettings,
    SourceFilter,
    json_bytes,
    json_value,
    version_numbers,
)
from reranker.engines.retry import VIEW_LOST, Attempts, Retries, retried
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

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
PRODUCT_HEADER = "x-elastic-product"
BLOCKED = "cluster_block_exception"
"""An index closed for writing: with status 403 by its owner, with 429 because the disk is nearly full."""
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
_LONGEST_REASON = 600


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the engines that speak the same wire; a version ``()`` stands for all versions."""

    least: Capabilities
    """What every version can do: all that is known where a role may not ask."""
    shard_doc_pit: bool
    """A point in time can be read in the order of ``_shard_doc``; otherwise scans use a scroll."""
    whole_source: SourceFilter
    """The ``_source`` option that brings whole documents."""
    vector_type: str
    vector_module: str
    """Type of a stored vector, and the module or plugin that brings it ("": always there)."""
    sparse_types: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Types for words with weights, best first, with the module each needs and its first version."""
    max_dims: tuple[tuple[tuple[int, ...], int], ...]
    """First version → most numbers of a vector, newest first."""
    rescore_script: tuple[int, ...] | None
    """First version whose ``rescore`` may be a script itself; None: none."""

    def capabilities(
        self, version: str, modules: set[str] | None = None, max_bulk_bytes: int | None = None
    ) -> Capabilities:
        """Return what a version with these modules and plugins can do; None counts as the full distribution's."""
        numbers = version_numbers(version)

        def has(module: str) -> bool:
            return not module or modules is None or module in modules

        sparse = [name for name, module, since in self.sparse_types if has(module) and numbers >= since]
        return replace(
            self.least,
            version=version,
            dense_vector=self.vector_type if has(self.vector_module) else "",
            sparse_terms=sparse[0] if sparse else "",
            painless=has("lang-painless"),
            rescore_script=self.rescore_script is not None and numbers >= self.rescore_script,
            max_bulk_bytes=max_bulk_bytes or self.least.max_bulk_bytes,
            max_dims=next(dims for since, dims in self.max_dims if numbers >= since),
            modules=None if modules is None else frozenset(modules),
        )


ELASTICSEARCH = Dialect(
    least=Capabilities(
        "elasticsearch", vector_product="dotProduct(params.u, '@VECTOR@')", hnsw=True, product="Elasticsearch"
    ),
    shard_doc_pit=True,
    # Since 9.2, true leaves vectors out: a document written anew from what was read would lose them.
    whole_source=("*",),
    vector_type="dense_vector",
    vector_module="",
    sparse_types=(("sparse_vector", "", (8, 11)), ("rank_features", "mapper-extras", ())),
    max_dims=(((8, 11), 4096), ((), 2048)),
    rescore_script=(9, 2),
)
OPENSEARCH = Dialect(
    least=Capabilities("opensearch", vector_product="innerProduct(params.u, doc['@VECTOR@'])", hnsw=True),
    shard_doc_pit=False,
    whole_source=True,
    vector_type="knn_vector",
    vector_module="opensearch-knn",
    sparse_types=(("rank_features", "mapper-extras", ()),),
    max_dims=(((), 16000),),
    rescore_script=None,
)


def scripts_allowed(settings: Mapping[str, Any]) -> bool:
    """Return True where a node's ``script.*`` settings let a search carry a scoring script; absent, all is allowed."""
    types, contexts = (_listed(settings.get(name)) for name in ("allowed_types", "allowed_contexts"))
    return (not types or bool({"both", "inline"} & types)) and (not contexts or "score" in contexts)


def _listed(value: Any) -> set[str]:
    items = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return {str(item).strip() for item in items} - {""}


class _ReadBefore(io.RawIOBase):
    """What comes from a socket, headers and body, before one deadline: the socket's own limit is for each packet."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._raw, self._deadline = sock, sock.makefile("rb", buffering=0), Deadline(sock.gettimeout())

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline.passed:
            raise TimeoutError("the answer took longer than allowed")
        self._sock.settimeout(self._deadline.timeout_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *options: Any, **named: Any) -> None:
        super().__init__(sock, *options, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_ReadBefore(sock))


class RestClient:
    """One engine's wire; the URL has no credentials and no trailing slash.

    Requests that may be sent twice are retried where there are ``retries``, unless the call sets its own time limit.
    """

    def __init__(self, dialect: Dialect, url: str, settings: EngineSettings, retries: Retries | None = None) -> None:
        self.dialect, self.retries = dialect, retries
        self.kind = dialect.least.kind
        self.spec = f"{self.kind}:{url}"
        self._settings = settings
        self._headers = {"accept": JSON, "user-agent": "ssi-reranker"} | _authorization(settings) | {**settings.headers}
        self._sign = None if settings.aws_region is None else _signer(settings.aws_region, settings.aws_service)
        self._prefix = urlsplit(url).path
        self._origin = url.removesuffix(self._prefix)
        self._pool = _pool(url, settings)
        self._free = threading.Semaphore(settings.connections)

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
        """Return the JSON object that answers a request in ``timeout_s`` (None: the settings'), or `STATUS_CLASSES`.

        A request that is ``repeatable``, as every GET is, may be sent again.
        """
        if timeout_s is None and (repeatable or method == "GET"):
            return self.retried(f"{method} {path}", lambda: self._call(method, path, body, params, None))
        return self._call(method, path, body, params, timeout_s)

    def retried(self, request: str, function: Callable[[], T]) -> T:
        """Return what ``function``, which may run twice, returns; failures that pass are retried."""
        return retried(function, Attempts(self.retries, f"{self.kind}: {request}"))

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
            value = json_value(reply.data)
        except ValueError as error:
            raise self.unusable(request, f"no whole JSON: {error!s:.120}") from None
        if not isinstance(value, dict):
            raise self.unusable(request, f"JSON, but no object: {value!r:.60}")
        self._check_product(reply)
        return value

    def exists(self, path: str) -> bool:
        """Return whether a HEAD request finds something; errors other than 404 are raised."""
        try:
            self.retried(f"HEAD {path}", lambda: self._reply("HEAD", path))
        except EngineError as error:
            if error.status != 404:
                raise
            return False
        return True

    def unusable(self, request: str, why: str) -> EngineUnavailable:
        """Return the error for an answer with a good status that cannot be trusted."""
        message = (
            f"{self.kind} answered {request} with something unusable ({why}): what was sent may or may not "
            "have been done; send it again"
        )
        return EngineUnavailable(message, engine=self.kind, status=200, error_type="unusable_answer")

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    def _reply(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer to one request if its status is good."""
        request = f"{method} {path}"
        try:
            data = json_bytes(body) if isinstance(body, Mapping) else body
        except (ValueError, TypeError) as error:
            message = f"the body for {request} cannot be written as JSON ({error}): use finite numbers and plain text"
            raise EngineRejected(message, engine=self.kind, error_type="not_json") from None
        limit_s = self._settings.read_timeout_s if timeout_s is None else timeout_s
        if limit_s <= 0:
            raise self._no_reply(None, request, limit_s)
        target = f"{self._prefix}{path}?{urlencode(params)}" if params else self._prefix + path
        content = {} if data is None else {"content-type": NDJSON if isinstance(body, bytes) else JSON}
        headers = self._headers | content
        if self._sign is not None:
            headers = self._sign(method, self._origin + target, data, headers)
        if self._pool.proxy is not None and self._origin.startswith("http:"):
            target = self._origin + target
        try:
            reply = self._read_whole(method, target, data, headers, limit_s)
        except (HTTPError, OSError, ValueError) as error:
            raise self._no_reply(error, request, limit_s) from error
        if self.retries is not None:
            self.retries.answered = True
        if not 200 <= reply.status < 300:
            failure = _error_of(reply, self.kind, request)
            if isinstance(failure, IndexMissing):
                # Where another engine runs, its index is not missing.
                self._check_product(reply)
            raise failure
        return reply

    def _no_reply(self, error: Exception | None, request: str, limit_s: float) -> EngineError:
        """Return the error for an exchange without a whole answer; None: there was no time for one."""
        late = isinstance(error, (ConnectTimeoutError, ReadTimeoutError)) and not isinstance(error, NewConnectionError)
        if error is None or late:
            message = f"{self.spec} did not answer {request} within {limit_s:g} s: allow more time, or ask for less"
            return EngineUnavailable(message, engine=self.kind, status=None, timed_out=True)
        unreached = isinstance(error, NewConnectionError)
        data = {"engine": self.kind, "status": None, "timed_out": False, "unreached": unreached}
        if isinstance(error, SSLError):
            remedy = "set SSI_ENGINE_CA_FILE to the certificate that signs it"
            return EngineRejected(f"no secure connection to {self.spec} ({error}): {remedy}", error_type="tls", **data)
        message = f"no answer from {self.spec} to {request} ({error}): check that it runs and that the URL is right"
        return EngineUnavailable(message, **data)

    def _read_whole(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str], limit_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer before one deadline, waiting for a connection included. Credentials follow no redirect."""
        deadline = Deadline(limit_s)
        if not self._free.acquire(timeout=limit_s):
            raise ReadTimeoutError(self._pool, target, "all connections were in use")
        try:
            left_s = max(deadline.left_s, 0.001)
            return self._pool.urlopen(
                method,
                target,
                body=data,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,  # a proxy gets whole URLs
                timeout=urllib3.Timeout(
                    total=left_s, connect=min(self._settings.connect_timeout_s, left_s), read=left_s
                ),
            )
        finally:
            self._free.release()

    def _check_product(self, reply: urllib3.BaseHTTPResponse) -> None:
        sent, product = reply.headers.get(PRODUCT_HEADER) == "Elasticsearch", self.dialect.least.product
        if sent == bool(product):
            return
        other = "opensearch" if product else "elasticsearch"
        message = (
            f"{self.spec} is not {self.kind}: its answer {'lacks' if not sent else 'has'} the header "
            f"{PRODUCT_HEADER}; write the spec as {other}:URL if that is what runs there"
        )
        raise EngineRejected(message, engine=self.kind, status=reply.status, error_type="unsupported_product")


def _pool(url: str, settings: EngineSettings) -> urllib3.HTTPConnectionPool:
    security: dict[str, Any] = {}
    if url.startswith("https:"):
        security = {"cert_reqs": "CERT_REQUIRED", "ca_certs": settings.ca_file or certifi.where()}
        if not settings.verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            security = {"cert_reqs": "CERT_NONE"}
    if settings.proxy is None:
        pool = urllib3.connection_from_url(url, maxsize=settings.connections, **security)
    else:
        proxy = urlsplit(settings.proxy)
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else None
        address = proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl()
        greeting = urllib3.make_headers(proxy_basic_auth=login)
        manager = urllib3.ProxyManager(address, maxsize=settings.connections, proxy_headers=greeting, **security)
        pool = manager.connection_from_url(url)
    pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": _Response})
    return pool


def _signer(region: str, service: str) -> Callable[[str, str, bytes | None, Mapping[str, str]], dict[str, str]]:
    """Return a function that adds AWS's signature, version 4, to the headers of (method, URL, body, headers)."""
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.session import Session
    except ImportError as error:
        raise MissingExtra(error.name or "botocore", "aws") from error
    credentials = Session().get_credentials()
    if credentials is None:
        raise ConfigError(
            f"the engine's requests are to be signed for {region}, and there are no credentials of AWS: set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or give the machine a role"
        )

    def sign(method: str, url: str, data: bytes | None, headers: Mapping[str, str]) -> dict[str, str]:
        digest = hashlib.sha256(data or b"").hexdigest()
        request = AWSRequest(method, url, data=data, headers={**headers, "x-amz-content-sha256": digest})
        # Asked each time: credentials of a role change while we run.
        SigV4Auth(credentials.get_frozen_credentials(), service, region).add_auth(request)
        return dict(request.headers.items())

    return sign


def _authorization(settings: EngineSettings) -> dict[str, str]:
    if settings.api_key is not None:
        return {"authorization": f"ApiKey {settings.api_key}"}
    if settings.user is not None:
        pair = f"{settings.user}:{settings.password}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    return {}


def _error_of(reply: urllib3.BaseHTTPResponse, engine: str, request: str) -> EngineError:
    """Return the error that an answer of status 300 and above stands for."""
    error_type, reason = _type_and_reason(reply)
    cls, remedy = _class_and_remedy(reply.status, error_type)
    cause = f"{error_type}: {reason}" if error_type and reason else error_type or reason or "no reason given"
    message = f"{engine} answered {reply.status} to {request}: {cause[:_LONGEST_REASON]}; {remedy}"
    wait_s = retry_after_s(reply.headers)
    return cls(message, engine=engine, status=reply.status, error_type=error_type, retry_after_s=wait_s)


def _class_and_remedy(status: int, error_type: str) -> tuple[type[EngineError], str]:
    if error_type == "index_not_found_exception":
        return IndexMissing, "check the index or alias name, or create it first"
    if error_type == VIEW_LOST:
        return EngineUnavailable, "the engine dropped the view it was reading from: start again"
    if error_type == BLOCKED and status == 403:
        return EngineRejected, "the index is closed for this by its owner: lift its index.blocks.* settings"
    if error_type == BLOCKED and status == 429:
        remedy = "the engine closed the index for writing, most likely for want of disk space: free some"
        return EngineOverloaded, remedy
    if status >= 500:
        return EngineUnavailable, "try again later, or see the engine's log"
    return STATUS_CLASSES.get(status, (EngineRejected, "change the request"))


def _type_and_reason(reply: urllib3.BaseHTTPResponse) -> tuple[str, str]:
    """Return the engine's own name of the error and its reason, or the beginning of a body that is no JSON."""
    try:
        body = json_value(reply.data)
    except ValueError:
        return "", reply.data[:200].decode("utf-8", "replace").strip()
    error: Any = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return "", str(error)
    causes = error.get("root_cause") or [error]
    cause = causes[0] if isinstance(causes, list) and isinstance(causes[0], Mapping) else error
    error_type = str(error.get("type") or "")
    # "all shards failed" and "validation failed" tell nothing; the root cause does.
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
