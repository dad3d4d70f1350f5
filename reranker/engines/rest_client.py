"""JSON over HTTP to an engine: sends one request, returns the decoded answer or raises the error it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from reranker.engines.rest_errors import error_of, no_reply, unusable
from reranker.engines.settings import EngineSettings
from reranker.engines.transport import NoReplyError, Reply, Transport
from reranker.engines.wire import decode, encode
from reranker.errors import EngineRejected

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
            By the table of `reranker.engines.rest_errors`.
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
