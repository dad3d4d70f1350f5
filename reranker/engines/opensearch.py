"""OpenSearch 2 and 3, through the official client."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from reranker.engines.elasticsearch import authorization
from reranker.engines.rest import RestEngine
from reranker.engines.rest_client import DeadlinePool, Dialect, NoReplyError, Reply, RestClient
from reranker.engines.settings import EngineSettings
from reranker.errors import MissingExtra

DIALECT = Dialect(
    kind="opensearch",
    product_header=False,
    shard_doc_pit=False,
    vector_type="knn_vector",
    vector_module="opensearch-knn",
    sparse_types=(("rank_features", "mapper-extras"),),
    default_dims=16000,
)

_EVERY_STATUS = range(300, 600)
"""Statuses the client is told not to raise for: it would lose the headers of the answer."""


class OpenSearchTransport:
    """A connection of the `opensearch-py` client."""

    def __init__(self, url: str, settings: EngineSettings) -> None:
        try:
            from opensearchpy import OpenSearch, Urllib3HttpConnection
        except ImportError:
            raise MissingExtra("opensearchpy", "all") from None

        class QuietConnection(Urllib3HttpConnection):  # type: ignore[misc]
            """Says nothing of failures: they come back as errors, and the log is the caller's."""

            def log_request_fail(self, *args: Any, **kwargs: Any) -> None:
                """Do nothing."""

        split = urlsplit(url)
        secure = split.scheme == "https"
        client = OpenSearch(
            hosts=[{"host": split.hostname, "port": split.port, "url_prefix": split.path.strip("/")}],
            headers=authorization(settings),
            use_ssl=secure,
            **(
                {"verify_certs": settings.verify, "ca_certs": settings.ca_file, "ssl_show_warn": False}
                if secure
                else {}
            ),
            pool_maxsize=settings.connections,
            timeout=settings.read_timeout_s,
            max_retries=0,
            connection_class=QuietConnection,
        )
        self._connection = client.transport.get_connection()
        self._connection.pool = DeadlinePool(self._connection.pool, settings.connect_timeout_s)

    def send(self, method: str, target: str, body: bytes | None, content_type: str, timeout_s: float) -> Reply:
        """Return the answer to one request."""
        from opensearchpy.exceptions import ConnectionTimeout, OpenSearchException, SSLError

        headers = {"accept": "application/json"}
        if body is not None:
            headers["content-type"] = content_type
        try:
            status, answer_headers, text = self._connection.perform_request(
                method, target, None, body, timeout=timeout_s, ignore=_EVERY_STATUS, headers=headers
            )
        except ConnectionTimeout as error:
            raise NoReplyError(str(error.info), timed_out=True) from error
        except SSLError as error:
            raise NoReplyError(str(error.info), tls=True) from error
        except OpenSearchException as error:
            info = getattr(error, "info", error)
            raise NoReplyError(str(info), timed_out="Timeout" in type(info).__name__) from error
        except (OSError, ValueError) as error:
            raise NoReplyError(str(error)) from error
        names = {name.lower(): value for name, value in answer_headers.items()}
        return Reply(status, names, text.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()


def opensearch_engine(url: str, settings: EngineSettings) -> RestEngine:
    """Return the engine at a URL without credentials.

    Raises
    ------
    MissingExtra
        The client is not installed.
    """
    spec = f"opensearch:{url}"
    return RestEngine(RestClient(DIALECT, OpenSearchTransport(url, settings), spec, settings))
