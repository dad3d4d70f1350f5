"""Elasticsearch 8 and 9, through the official client of version 8."""

from __future__ import annotations

import base64
from urllib.parse import urlsplit

from reranker.engines.rest import RestEngine
from reranker.engines.rest_client import DeadlinePool, Dialect, NoReplyError, Reply, RestClient
from reranker.engines.settings import EngineSettings
from reranker.errors import MissingExtra

DIALECT = Dialect(
    kind="elasticsearch",
    product_header=True,
    shard_doc_pit=True,
    vector_type="dense_vector",
    vector_module="",
    sparse_types=(("sparse_vector", ""), ("rank_features", "mapper-extras")),
    default_dims=4096,
)


def authorization(settings: EngineSettings) -> dict[str, str]:
    """Return the header that carries the credentials, if there are any."""
    if settings.api_key is not None:
        return {"authorization": f"ApiKey {settings.api_key}"}
    if settings.user is not None:
        pair = f"{settings.user}:{settings.password}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}
    return {}


class ElasticsearchTransport:
    """A connection of the `elasticsearch` client."""

    def __init__(self, url: str, settings: EngineSettings) -> None:
        try:
            from elastic_transport import NodeConfig
            from elasticsearch import Elasticsearch
        except ImportError:
            raise MissingExtra("elasticsearch", "all") from None
        split = urlsplit(url)
        secure = split.scheme == "https"
        config = NodeConfig(
            scheme=split.scheme,
            host=split.hostname or "",
            port=split.port or 9200,
            path_prefix=split.path,
            headers=authorization(settings),
            connections_per_node=settings.connections,
            request_timeout=settings.read_timeout_s,
            ca_certs=settings.ca_file if secure else None,
            verify_certs=settings.verify if secure else None,
            ssl_show_warn=False,
        )
        client = Elasticsearch([config], max_retries=0, retry_on_status=(), retry_on_timeout=False)
        self._node = client.transport.node_pool.get()
        self._node.pool = DeadlinePool(self._node.pool, settings.connect_timeout_s)  # type: ignore[attr-defined]

    def send(self, method: str, target: str, body: bytes | None, content_type: str, timeout_s: float) -> Reply:
        """Return the answer to one request."""
        from elastic_transport import ConnectionTimeout, HttpHeaders, TlsError, TransportError

        headers = HttpHeaders({"accept": "application/json"})
        if body is not None:
            headers["content-type"] = content_type
        try:
            answer = self._node.perform_request(method, target, body, headers, timeout_s)
        except ConnectionTimeout as error:
            raise NoReplyError(str(error), timed_out=True) from error
        except (TransportError, OSError, ValueError) as error:
            raise NoReplyError(str(error), tls=isinstance(error, TlsError)) from error
        return Reply(answer.meta.status, {n.lower(): v for n, v in answer.meta.headers.items()}, answer.body)

    def close(self) -> None:
        """Close the connections."""
        self._node.close()


def elasticsearch_engine(url: str, settings: EngineSettings) -> RestEngine:
    """Return the engine at a URL without credentials.

    Raises
    ------
    MissingExtra
        The client is not installed.
    """
    spec = f"elasticsearch:{url}"
    return RestEngine(RestClient(DIALECT, ElasticsearchTransport(url, settings), spec, settings))
