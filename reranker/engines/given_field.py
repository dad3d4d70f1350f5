"""The field of an index with the vectors that a text encoder has computed of the documents: can it be read, and mapped.

Vectors are read from ``_source``, where they are the numbers that were sent, also if the engine searches them in a
quantised form (``int8_hnsw``, ``bbq_hnsw``). Elasticsearch 9.2 and later do not keep vectors in ``_source``, but return
them if the field is named, which all reads do.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from reranker.engines.protocol import Engine, IndexInfo
from reranker.errors import ConfigError, EngineAuthError

_NUMBERS: Final = frozenset({"float", "double", "half_float", "scaled_float", "long", "integer", "short", "byte"})
_VECTORS: Final = frozenset({"dense_vector", "knn_vector"})
_COARSE: Final = frozenset({"byte", "bit", "binary"})
"""Values of ``element_type`` and ``data_type`` that keep less than the numbers of the text encoder."""
_OFF: Final = (False, "false")


def given_field_problem(info: IndexInfo, path: str) -> str:
    """Return why the vectors of a field cannot be read from an index, with the remedy; empty if they can.

    A field that is not in the mapping may be in the documents all the same.
    """
    return _of_source(info, path) or _of_type(info, path)


def check_given_field(engine: Engine, index: str, path: str) -> None:
    """Raise `ConfigError` if the vectors of a field cannot be read from an index; "" as ``path`` is never a problem.

    A role that may not read mappings passes: then the documents decide.
    """
    if not path:
        return
    try:
        problems = [given_field_problem(engine.index_info(name), path) for name in engine.index_names(index)]
    except EngineAuthError:
        return
    for problem in filter(None, problems):
        raise ConfigError(problem, field=path, index=index)


def given_field_mapping(path: str) -> dict[str, Any]:
    """Return ``properties`` that map a field of vectors at the least cost: its numbers are only kept in ``_source``.

    Dynamic mapping would index each number (OpenSearch), or build a graph of the vectors (Elasticsearch).
    """
    *objects, leaf = path.split(".")
    properties: dict[str, Any] = {leaf: {"type": "float", "index": False, "doc_values": False}}
    for name in reversed(objects):
        properties = {name: {"properties": properties}}
    return properties


def has_field(properties: Mapping[str, Any], path: str) -> bool:
    """Return whether a mapping has a field, or something on the way to it that cannot have fields."""
    return _definition(properties, path) is not None


def _definition(properties: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """Return the mapping of a field, or of what is on the way to it and cannot have fields; None if there is none."""
    found: Mapping[str, Any] = {"properties": properties}
    for name in path.split("."):
        inside = found.get("properties")
        is_open = found.get("type", "object") in ("object", "nested") and found.get("enabled") not in _OFF
        if not isinstance(inside, Mapping) and not is_open:
            return found
        if name not in (inside or {}):
            return None
        found = (inside or {})[name]
    return found


def _of_type(info: IndexInfo, path: str) -> str:
    definition = _definition(info.properties, path) or {}
    kind = definition.get("type", "object" if "properties" in definition else "")
    element = str(definition.get("element_type", definition.get("data_type", "float"))).lower()
    field = f"the field {path!r} of index {info.name!r}"
    remedy = "Name a field with one list of numbers for each document in --vector-field"
    if kind in _VECTORS and element in _COARSE:
        return (
            f"{field} is a {kind} of {element} elements, which do not have the values that the text encoder computed. "
            f"Add a field of float elements (its index may be quantised, as in int8_hnsw), write the encoder's vectors "
            "to it, and name it in --vector-field"
        )
    if kind == "alias":
        return f"{field} is an alias of {definition.get('path')!r}: name that field in --vector-field"
    if kind == "semantic_text":
        return (
            f"{field} is semantic_text, whose vectors are of parts of the text and are not in _source. Write one "
            "vector for each document to a dense_vector field, and name it in --vector-field"
        )
    if not kind or kind in _NUMBERS | _VECTORS or definition.get("enabled") in _OFF:
        return ""
    return f"{field} has the type {kind}, which is not that of vectors. {remedy}"


def _of_source(info: IndexInfo, path: str) -> str:
    source = info.mapping.get("_source") or {}
    if source.get("enabled", True) in _OFF or source.get("mode") == "disabled":
        why = "its mapping disables _source"
    elif any(_matches(path, pattern) for pattern in source.get("excludes") or ()):
        why = f"its mapping excludes the field from _source ({', '.join(source['excludes'])})"
    elif source.get("includes") and not any(_matches(path, pattern) for pattern in source["includes"]):
        why = f"its mapping includes only other fields in _source ({', '.join(source['includes'])})"
    else:
        return ""
    return (
        f"index {info.name!r} does not return the field {path!r}: {why}. The vectors are read from _source, so create "
        "an index that keeps the field in it and write the documents again, or train with --docs on a file that has "
        "the vectors"
    )


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern of ``_source`` names a field or an object around it."""
    parts = path.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))
