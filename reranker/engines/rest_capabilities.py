"""What an engine over HTTP can do, found by asking it: versions and modules first, less where a role may not ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reranker.engines.base import Capabilities, version_numbers
from reranker.engines.rest_client import Dialect, RestClient
from reranker.errors import EngineAuthError, EngineRejected

_NODE_PARTS = (
    "nodes.*.version,nodes.*.modules.name,nodes.*.plugins.name,nodes.*.http.max_content_length_in_bytes,"
    "nodes.*.settings.script"
)
_STATS_PARTS = "nodes.versions,nodes.plugins.name"


def ask_capabilities(client: RestClient) -> Capabilities:
    """Return what the engine at hand can do.

    Asked in turn until one is allowed and there: ``_nodes/_local`` (version, modules, limits), ``_cluster/stats``
    (version), ``/`` (version; some builds have no such route, so it is never the first). A role that may ask none of
    them gets the cautious answer: no version, no native vectors, no scripts. Searching and writing need none of it.
    """
    for ask in (_from_nodes, _from_stats, _from_root):
        try:
            return ask(client)
        except (EngineAuthError, EngineRejected) as error:
            if error.status == 401 or error.error_type in ("unsupported_product", "tls"):
                raise
    return Capabilities(client.dialect.kind)


def _from_nodes(client: RestClient) -> Capabilities:
    answer = client.call("GET", "/_nodes/_local", params={"filter_path": _NODE_PARTS})
    nodes = list(answer.get("nodes", {}).values())
    if not nodes:
        raise EngineRejected("the engine named no node", status=404)
    modules = {item["name"] for part in ("modules", "plugins") for item in nodes[0].get(part, [])}
    limit = nodes[0].get("http", {}).get("max_content_length_in_bytes")
    found = describe(client.dialect, str(nodes[0].get("version", "")), modules, limit)
    return found if scripts_allowed(nodes[0].get("settings", {}).get("script", {})) else replace(found, painless=False)


def scripts_allowed(settings: Mapping[str, Any]) -> bool:
    """Return True where a node's ``script.*`` settings let a search carry its own scoring script.

    Parameters
    ----------
    settings : mapping
        ``allowed_types`` (``inline``, ``stored``, ``both``, ``none``) and ``allowed_contexts``; absent: everything.
    """
    types, contexts = (_listed(settings.get(name)) for name in ("allowed_types", "allowed_contexts"))
    return (not types or bool({"both", "inline"} & types)) and (not contexts or "score" in contexts)


def _listed(value: Any) -> set[str]:
    items = value if isinstance(value, list) else str(value or "").strip("[]").split(",")
    return {str(item).strip() for item in items} - {""}


def _from_stats(client: RestClient) -> Capabilities:
    answer = client.call("GET", "/_cluster/stats", params={"filter_path": _STATS_PARTS})
    versions = answer.get("nodes", {}).get("versions", [])
    # The oldest node decides what the cluster can do.
    return describe(client.dialect, min(versions, key=version_numbers, default=""), None, None)


def _from_root(client: RestClient) -> Capabilities:
    answer: Mapping[str, Any] = client.call("GET", "/")
    return describe(client.dialect, str(answer.get("version", {}).get("number", "")), None, None)


def describe(dialect: Dialect, version: str, modules: set[str] | None, max_bulk_bytes: int | None) -> Capabilities:
    """Return capabilities by version and modules; modules None (not told) count as the full distribution's.

    Parameters
    ----------
    dialect : Dialect
    version : str
    modules : set of str or None
        Names of modules and plugins.
    max_bulk_bytes : int or None
        ``http.max_content_length``.
    """

    def there(module: str) -> bool:
        return not module or modules is None or module in modules

    numbers = version_numbers(version)
    sparse = (name for name, module in dialect.sparse_types if there(module) and _known(dialect, name, numbers))
    return Capabilities(
        kind=dialect.kind,
        version=version,
        dense_vector=dialect.vector_type if there(dialect.vector_module) else "",
        sparse_terms=next(sparse, ""),
        painless=there("lang-painless"),
        max_bulk_bytes=max_bulk_bytes or 100 * 1024 * 1024,
        max_dims=_max_dims(dialect, numbers),
        modules=None if modules is None else frozenset(modules),
    )


def _known(dialect: Dialect, name: str, numbers: tuple[int, ...]) -> bool:
    """Elasticsearch 8.0 to 8.10 refuse the type ``sparse_vector``."""
    return not (dialect.kind == "elasticsearch" and name == "sparse_vector" and numbers < (8, 11))


def _max_dims(dialect: Dialect, numbers: tuple[int, ...]) -> int:
    """Elasticsearch took 2,048 dimensions before 8.11."""
    return 2048 if dialect.kind == "elasticsearch" and numbers < (8, 11) else dialect.default_dims
