"""Properties of a mapping as Elasticsearch writes them: made, merged and nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reranker.engines.wire import Json
from reranker.errors import EngineRejected


def dynamic_property(value: Json) -> dict[str, Any]:
    """Return the property that dynamic mapping makes for a value: Elasticsearch's rules, without date detection."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "long"}
    if isinstance(value, float):
        return {"type": "float"}
    return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def merge_properties(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``old`` with the fields of ``new`` added; a field that is there keeps its definition.

    Raises
    ------
    EngineRejected
        A field given another type than it has.
    """
    merged = dict(old)
    for name, added in new.items():
        there = merged.get(name)
        path = f"{prefix}{name}"
        if there is None:
            merged[name] = dict(added)
        elif "properties" in added and "properties" in there:
            merged[name] = {
                **there,
                "properties": merge_properties(there["properties"], added["properties"], f"{path}."),
            }
        elif property_type(there) != property_type(added):
            raise EngineRejected(
                f"field {path!r} has type {property_type(there)!r} and cannot become {property_type(added)!r}: "
                "a field's type never changes; use another name or a new index",
                status=400,
                error_type="illegal_argument_exception",
            )
    return merged


def property_type(definition: Mapping[str, Any]) -> str:
    """Return the type of a property; an object may leave it out."""
    return str(definition.get("type", "object"))


def nest_properties(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties by dotted path as nested ``properties`` objects."""
    nested: dict[str, Any] = {}
    for path, definition in flat.items():
        *parents, last = path.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {"properties": {}})["properties"]
        level[last] = definition
    return nested
