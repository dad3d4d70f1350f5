"""The mapping of an index that this project creates. Pure.

Text fields of the model's view are mapped as text; all other fields are left to the engine, with guessing of dates
and numbers in strings switched off: with it, one document whose ``code`` looks like a date makes the engine refuse the
next one whose ``code`` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reranker.engines.base import IndexInfo

SSI_PREFIX = "ssi_"
_KEPT_SETTINGS = (
    "index.analysis.", "index.number_of_shards", "index.number_of_replicas", "index.similarity.", "index.knn",
)  # fmt: skip


def index_mapping(text_paths: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``mappings`` object of a new index.

    Parameters
    ----------
    text_paths : sequence of str
        Fields of the text view; dots lead into objects.
    properties : mapping
        Fields of the version (and of anything else wanted), by name.
    """
    result: dict[str, Any] = {}
    for path in text_paths:
        _put(result, path.split("."))
    return {"date_detection": False, "numeric_detection": False, "properties": {**result, **properties}}


def _put(properties: dict[str, Any], parts: list[str]) -> None:
    for name in parts[:-1]:
        inner = properties.setdefault(name, {"properties": {}})
        if "properties" not in inner:
            return  # a text field is above this path already: the engine sees its text there
        properties = inner["properties"]
    properties.setdefault(parts[-1], {"type": "text"})


def rebuilt_mapping(old: IndexInfo, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping of a rebuild: the old one's, without fields of any version, with those of the new one."""
    kept = {name: value for name, value in old.properties.items() if not name.startswith(SSI_PREFIX)}
    return {**old.mapping, "properties": {**kept, **properties}}


def rebuilt_settings(old: IndexInfo) -> dict[str, str]:
    """Return the settings a rebuild carries over: shards, replicas, analysis, similarity, vector search."""
    return {name: value for name, value in old.settings.items() if name.startswith(_KEPT_SETTINGS)}


def n_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields a mapping counts against ``index.mapping.total_fields.limit``: leaves, objects, copies."""
    total = 0
    for definition in properties.values():
        total += 1
        for inner in ("properties", "fields"):
            children = definition.get(inner)
            if isinstance(children, Mapping):
                total += n_fields(children)
    return total
