"""What rows come in: answers of searches, documents as they are stored, bulk files, other cases of keys."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from reranker.formats.rejects import RecordError

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ACTION_LINES = {"index", "create", "update", "delete"}
_CONTAINERS = ("event_attributes", "query_attributes", "query_response", "position", "object", "ordinal")
_MAX_LEVELS = 4


def unwrapped(value: Any) -> list[Any] | None:
    """Return the rows in a decoded line: itself, its ``_source``, or those of a search answer; None for bulk actions.

    Raises
    ------
    RecordError
        For what is no object.
    """
    if not isinstance(value, dict):
        raise RecordError("not_object", f"a {type(value).__name__} at the top: each line must be one JSON object")
    source = value.get("_source")
    if isinstance(source, dict):
        return [source]
    hits = value.get("hits")
    if isinstance(hits, dict) and isinstance(hits.get("hits"), list):
        return [one.get("_source") if isinstance(one, dict) and "_source" in one else one for one in hits["hits"]]
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in _ACTION_LINES and isinstance(inner, dict):
            return None
    return [value]


def not_readable(error: Exception) -> RecordError:
    """Return what is wrong with a line that could not be decoded; never repeats its values."""
    if isinstance(error, msgspec.ValidationError):
        return RecordError("wrong_type", f"a value of another type: {error}")
    if isinstance(error, RecursionError):
        return RecordError("too_deep", "nested too deep to be read")
    if isinstance(error, UnicodeDecodeError):
        return RecordError("not_utf8", f"a text is not UTF-8 (byte 0x{error.object[error.start]:02x})")
    return RecordError("not_json", f"not JSON: {error}")


def is_camel(value: dict[str, Any]) -> bool:
    """Return whether keys of a row are in camelCase."""
    return any(_HUMP.search(key) for key in value)


def snake(value: Any, level: int = 0) -> Any:
    """Return a row with its keys in snake_case and flat keys (``a.b``) unfolded."""
    if not isinstance(value, dict) or level > _MAX_LEVELS:
        return value
    found: dict[str, Any] = {}
    for key, item in value.items():
        name, rest = _plain_name(key)
        new = item
        if name in _CONTAINERS:
            new = _parsed(item) if isinstance(item, str) else item
            new = snake({rest: new} if rest else new, level + 1)
        elif rest:
            name = f"{name}.{rest}"
        there = found.get(name)
        if isinstance(there, dict) and isinstance(new, dict):
            there.update(new)
        elif there is None:
            found[name] = new
    return found


@lru_cache(4096)
def _plain_name(key: str) -> tuple[str, str]:
    """Return the snake_case of a key up to its first dot, and the rest."""
    name, _, rest = _HUMP.sub("_", key).lower().partition(".")
    return name, rest


def _parsed(text: str) -> Any:
    """Return the object that a column of text holds, or the text."""
    if not text.startswith("{"):
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
