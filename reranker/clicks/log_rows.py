"""Rows of a click log that are collected before they are written, whatever format they come from."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from reranker.clicks.log import PEOPLE, STORED
from reranker.clicks.values import Id, Values


class QueryRow(NamedTuple):
    """A row of the table ``queries`` of a click log, see `reranker.clicks.schema.TABLES`."""

    query_id: str
    query: str
    session: str
    user: str
    network: str
    time: int | None
    application: str
    agent: str
    randomised: bool


class EventRow(NamedTuple):
    """A row of the table ``events`` of a click log, see `reranker.clicks.schema.TABLES`."""

    query_id: str
    action: str
    document: str
    ordinal: int | None
    time: int | None
    dwell: float | None
    session: str
    user: str
    network: str
    query: str
    application: str
    agent: str


class HitRow(NamedTuple):
    """A returned document, with the time of its query."""

    query_id: str
    position: int
    document: str
    time: int | None


class LogRows:
    """Rows collected by a reader of any format; ``values`` converts the logged values."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.queries: list[QueryRow] = []
        self.hits: list[HitRow] = []
        self.events: list[EventRow] = []
        self._people: dict[tuple[str, str], int | None] = {}
        self.n_skipped = 0

    def __len__(self) -> int:
        return len(self.queries) + len(self.hits) + len(self.events)

    def add_hits(self, query_id: str, documents: list[str], time: int | None, first: int = 0) -> None:
        """Add a result list in the order in which it was returned; ``first`` hits of previous pages come before it."""
        placed = enumerate(documents, start=first + 1)
        self.hits += [HitRow(query_id, place, document, time) for place, document in placed]

    def user(self, client: Id | None, user: Id | None, time: int | None) -> str:
        """Return the hash of the client, or of the user if there is no client; the link between both is stored."""
        values = self.values
        if client is None or client == "":
            return values.user(user)
        hashed = values.user(client)
        if user is not None and user not in ("", client):
            pair = (values.user(user), hashed)
            known = self._people.get(pair)
            self._people[pair] = max(known or 0, time or 0) or None
        return hashed

    def take(self) -> tuple[dict[str, dict[str, list[Any]]], Counter[str]]:
        """Return the rows as a batch together with the notes about them, and start an empty batch."""
        tables: dict[str, list[Any]] = {
            "queries": self.queries,
            "hits": self.hits,
            "events": self.events,
            PEOPLE: [(*pair, time) for pair, time in self._people.items()],
        }
        batch = {
            name: dict(zip(STORED[name], map(list, zip(*rows, strict=True)), strict=True))
            for name, rows in tables.items()
            if rows
        }
        notes, self.values.notes = self.values.notes, Counter()
        self.queries, self.hits, self.events, self._people = [], [], [], {}
        return batch, notes
