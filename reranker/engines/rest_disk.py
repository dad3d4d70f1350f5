"""Disk space of an engine over HTTP."""

from __future__ import annotations

from typing import Any

from reranker.engines.base import DiskUsage
from reranker.engines.rest_client import RestClient
from reranker.engines.wire import quoted


def ask_disk(client: RestClient, index: str) -> DiskUsage:
    """Return the size of an index and the space of the data nodes.

    The node with the least free share counts: engines block an index when one node is nearly full.

    Raises
    ------
    EngineError
        Where the engine does not tell (a role without ``monitor``).
    """
    stats = client.call("GET", f"/{quoted(index)}/_stats/store")
    index_bytes = int(_at(stats, "_all", "total", "store", "size_in_bytes"))
    nodes = client.call("GET", "/_nodes/stats/fs").get("nodes") or {}
    spaces = [
        (int(_at(node, "fs", "total", "available_in_bytes")), int(_at(node, "fs", "total", "total_in_bytes")))
        for node in nodes.values()
        if "data" in node.get("roles", ["data"])
    ]
    spaces = [space for space in spaces if space[1] > 0]
    if not spaces:
        return DiskUsage(index_bytes, None, None)
    free, total = min(spaces, key=lambda space: space[0] / space[1])
    return DiskUsage(index_bytes, free, total)


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value or 0
