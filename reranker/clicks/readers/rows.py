"""Rows of a click log as they are read, gathered until they make a batch."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

from reranker.clicks.batches import PEOPLE
from reranker.clicks.readers.values import Values
from reranker.clicks.schema import EVENTS, HITS, QUERIES

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
