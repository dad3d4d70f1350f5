"""The one form every click log is brought into: three tables and, joined from them, impressions.

``queries``, ``hits`` and ``events`` hold what was logged, a row each, with duplicates, in any order. An `Impression` is
one shown result list with what was done on it.

Ids of people (``session``, ``user``, ``network``) are keyed hashes (`reranker.clicks.privacy`) or empty, never the
logged values. Times are milliseconds since 1970 in UTC; None where there is none or it cannot be true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ColumnType = Literal["string", "int32", "int64", "double", "bool"]

TABLES: dict[str, dict[str, ColumnType]] = {
    # One row a logged query. ``agent`` is the name of a known robot, or empty; ``randomised`` marks shuffled results.
    "queries": {
        "query_id": "string",
        "query": "string",
        "session": "string",
        "user": "string",
        "network": "string",
        "time": "int64",
        "application": "string",
        "agent": "string",
        "randomised": "bool",
    },
    # One row a returned document; ``position`` counts from 1 within the logged response.
    "hits": {"query_id": "string", "position": "int32", "document": "string"},
    # One row an event. ``ordinal`` is the position as logged (from 0 or from 1), null where none; ``dwell`` in seconds.
    "events": {
        "query_id": "string",
        "action": "string",
        "document": "string",
        "ordinal": "int32",
        "time": "int64",
        "dwell": "double",
        "session": "string",
        "user": "string",
        "network": "string",
        "query": "string",
        "application": "string",
        "agent": "string",
    },
}
"""Columns of the tables of a click log, in order. Strings are never null (empty instead); numbers may be."""

IMPRESSION, CLICK, CART, PURCHASE = "impression", "click", "add_to_cart", "purchase"
"""Actions that have a meaning here; the readers map other spellings to them and keep all others as they are."""


def arrow() -> Any:
    """Return the module pyarrow, see `reranker.formats.arrow`, which is imported late: it needs numpy."""
    from reranker import formats

    return formats.arrow("clicks")


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """One document of a shown list and what was done with it."""

    document: str
    rank: int
    """1-based place in the whole ranking (paging counts on)."""
    clicked: bool = False
    carted: bool = False
    purchased: bool = False
    """A document that was bought or put into the cart counts as clicked."""
    time: int | None = None
    """Milliseconds, of the last click, cart or purchase."""
    dwell: float | None = None
    """Longest dwell time of its clicks in seconds, where logged."""


@dataclass(frozen=True, slots=True)
class Impression:
    """One shown result list."""

    query_id: str
    query: str
    """The text typed, redacted; runs of white space are one space."""
    shown: tuple[ShownDocument, ...]
    """By rank; no rank and no document twice."""
    session: str = ""
    user: str = ""
    network: str = ""
    """Keyed hashes, or empty."""
    time: int | None = None
    """Milliseconds, of the query."""
    application: str = ""
    randomised: bool = False
    """The order was random, so that clicks by rank show examination alone."""

    @property
    def clicked(self) -> tuple[ShownDocument, ...]:
        """The shown documents that were clicked, by rank."""
        return tuple(shown for shown in self.shown if shown.clicked)
