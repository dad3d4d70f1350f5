"""Rows of a click log as they are read, gathered until they make a batch.

What rows come in: answers of searches, documents as they are stored, bulk files, other cases of keys.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from reranker.clicks.readers.values import Values
from reranker.clicks.schema import EVENTS, HITS, QUERIES
from reranker.clicks.storage import PEOPLE
from reranker.formats.rejects import RecordError

QueryRow: TypeAlias = tuple[str, str, str, str, str, int | None, str, str, bool]
"""The columns of `reranker.clicks.schema.QUERIES`."""
EventRow: TypeAlias = tuple[str, str, str, int | None, int | None, float | None, str, str, str, str, str, str]
"""The columns of `reranker.clicks.schema.EVENTS`."""

_COLUMNS = {
    "queries": tuple(QUERIES),
    "hits": (*HITS, "query_time"),
    "events": tuple(EVENTS),
    PEOPLE: ("alias", "user", "time"),
}


class Rows:
    """What the readers of all formats fill.

    Parameters
    ----------
    values : Values
        What turns logged values into those of the schema.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        self.queries: list[QueryRow] = []
        self.hits: list[tuple[str, int, str, int | None]] = []
        self.events: list[EventRow] = []
        self._people: dict[tuple[str, str], int | None] = {}
        self.n_skipped = 0

    def __len__(self) -> int:
        return len(self.queries) + len(self.hits) + len(self.events)

    def add_hits(self, query_id: str, documents: list[str], time: int | None, first: int = 0) -> None:
        """Add a returned list of documents, in its order, after the ``first`` ones of earlier pages."""
        self.hits += [(query_id, place, document, time) for place, document in enumerate(documents, start=first + 1)]

    def user(self, client: str | int | None, user: str | int | None, time: int | None) -> str:
        """Return the hash of whom a row is of: the client where it is named, else the user.

        Queries of UBI name the client alone, and an impression must have one user; who is logged in is kept beside,
        so that all of a person's clients can be forgotten.
        """
        values = self.values
        if client is None or client == "":
            return values.person("user", user)
        found = values.person("user", client)
        if user is not None and user not in ("", client):
            pair = (values.person("user", user), found)
            known = self._people.get(pair)
            self._people[pair] = max(known or 0, time or 0) or None
        return found

    def take(self) -> tuple[dict[str, dict[str, list[Any]]], Counter[str]]:
        """Return the rows as a batch with the notes made of them, and begin anew."""
        tables: dict[str, list[Any]] = {
            "queries": self.queries,
            "hits": self.hits,
            "events": self.events,
            PEOPLE: [(*pair, time) for pair, time in self._people.items()],
        }
        batch = {
            name: dict(zip(_COLUMNS[name], map(list, zip(*rows, strict=True)), strict=True))
            for name, rows in tables.items()
            if rows
        }
        notes, self.values.notes = self.values.notes, Counter()
        self.queries, self.hits, self.events, self._people = [], [], [], {}
        return batch, notes


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
