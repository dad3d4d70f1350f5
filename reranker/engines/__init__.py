"""Search engines behind one protocol: `open_engine` turns a spec such as ``tantivy:./index`` into an engine."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from reranker.engines.protocol import Capabilities, Engine, IndexInfo, WriteOp, WriteResult
from reranker.engines.retry import Retries
from reranker.engines.settings import EngineSettings
from reranker.errors import ConfigError

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch
    from opensearchpy import OpenSearch

__all__ = ["Capabilities", "Engine", "EngineSettings", "IndexInfo", "WriteOp", "WriteResult", "open_engine"]


def open_engine(
    engine: str | Elasticsearch | OpenSearch, settings: EngineSettings | None = None, retries: Retries | None = None
) -> Engine:
    """Return the engine for a spec or a client.

    Parameters
    ----------
    engine : str, Elasticsearch or OpenSearch
        A spec (``tantivy:PATH``, ``elasticsearch:URL`` or ``opensearch:URL``), or an official client that you have
        created, with its nodes, sniffing, credentials, TLS, compression and instrumentation. You close your own client.
        Its requests are bounded by the client's own timeouts, which apply per packet.
    settings : EngineSettings, optional
        Credentials and time limits; None: from the environment (`EngineSettings.from_environment`). With a client of
        your own, only the time limits are used.
    retries : Retries, optional
        Retry policy for repeatable HTTP requests after temporary failures; None: no retries.

    Raises
    ------
    ConfigError
        If the kind of the spec is unknown, or its URL is missing or contains credentials.
    """
    if not isinstance(engine, str):
        from reranker.engines.clients import EngineClient, spec_of
        from reranker.engines.rest import RestEngine

        own = settings or EngineSettings()
        return RestEngine(EngineClient(spec_of(engine), own, retries, engine))
    spec = engine
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in ("tantivy", "elasticsearch", "opensearch"):
        # The spec is not quoted in full, because it may contain a password.
        raise ConfigError(
            f"engine spec starts with {kind[:20]!r}; valid specs are tantivy:PATH, elasticsearch:URL, opensearch:URL, "
            "for example elasticsearch:http://127.0.0.1:9200"
        )
    if kind != "tantivy":
        from reranker.engines.clients import EngineClient
        from reranker.engines.rest import RestEngine

        settings = settings or EngineSettings.from_environment()
        return RestEngine(EngineClient(f"{kind}:{_checked_url(kind, rest)}", settings, retries))
    if not rest:
        raise ConfigError("engine spec 'tantivy:' names no folder: write 'tantivy:PATH', for example tantivy:./index")
    from reranker.engines.language import WEIGHTED_WORDS
    from reranker.engines.local import LocalEngine
    from reranker.engines.tantivy import TantivyCatalogue

    capabilities = Capabilities("tantivy", sparse_terms=WEIGHTED_WORDS)
    return LocalEngine(spec, TantivyCatalogue(Path(rest).expanduser()), capabilities)


def absolute_spec(spec: str, folder: Path = Path()) -> str:
    """Return a spec with the path of an embedded engine made absolute from ``folder``; a URL is returned unchanged."""
    kind, _, place = spec.partition(":")
    return f"{kind}:{(folder / place).resolve()}" if kind == "tantivy" and place else spec


def _checked_url(kind: str, url: str) -> str:
    """Return the URL of an engine, or of an Elastic Cloud id, without a trailing slash; `ConfigError` if invalid."""
    try:
        split = urlsplit(_of_cloud_id(url) or url)
        port = split.port
    except ValueError as error:
        raise ConfigError(f"engine URL is invalid ({error}): write {kind}:http://HOST:PORT") from None
    if split.username is not None or split.password is not None:
        raise ConfigError(
            f"the {kind} URL for host {split.hostname!r} contains credentials, which would be visible in logs and "
            "process lists: set SSI_ENGINE_USER and SSI_ENGINE_PASSWORD (or SSI_ENGINE_API_KEY) and remove them from "
            "the URL"
        )
    if split.scheme not in ("http", "https") or not split.hostname or split.query or split.fragment:
        raise ConfigError(
            f"engine URL {url!r} is invalid: write {kind}:http://HOST:PORT or {kind}:https://HOST:PORT"
            f"{', or elasticsearch:CLOUD_ID' if kind == 'elasticsearch' else ''}"
        )
    default = 443 if split.scheme == "https" else 9200
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{split.scheme}://{host}:{port or default}{split.path.rstrip('/')}"


def _of_cloud_id(text: str) -> str:
    """Return the URL of an Elastic Cloud id (``NAME:BASE64``, encoding ``HOST[:PORT]$CLUSTER$KIBANA``), else ""."""
    name, _, coded = text.partition(":")
    try:
        host, cluster = base64.b64decode(coded, validate=True).decode("ascii").split("$")[:2]
    except ValueError:
        return ""
    domain, _, port = host.partition(":")
    cluster, _, own_port = cluster.partition(":")
    return f"https://{cluster}.{domain}:{own_port or port or 443}" if name and domain and cluster else ""
