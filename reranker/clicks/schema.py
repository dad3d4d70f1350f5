"""The common schema of click logs: three tables, and the impressions that are joined from them.

``queries``, ``hits`` and ``events`` hold the logged records, one row each, in any order and possibly with duplicates.
An `Impression` is one shown result list with the actions on its documents.

Ids of people (``session``, ``user``, ``network``) are keyed hashes (`reranker.clicks.privacy`) or empty, never the
logged values. Times are milliseconds since 1970 in UTC; None if the time is missing or impossible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

DAY_MS: Final = 86_400_000
"""Milliseconds of a day."""
ColumnType = Literal["string", "int32", "int64", "double", "bool"]

TABLES: dict[str, dict[str, ColumnType]] = {
    # One row per logged query. ``agent`` is the name of a known robot, or empty; ``randomised`` marks shuffled results.
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
    # One row per returned document; ``position`` counts from 1 within the logged response.
    "hits": {"query_id": "string", "position": "int32", "document": "string"},
    # One row per event. ``ordinal`` is the position as logged (from 0 or from 1), or null; ``dwell`` is in seconds.
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
"""Columns of the tables of a click log, in order. Strings are never null (empty instead); numbers may be null."""

IMPRESSION, CLICK, CART, PURCHASE = "impression", "click", "add_to_cart", "purchase"
"""Actions that the pipeline interprets. Readers map other spellings to them and keep all other actions unchanged."""


def pyarrow_module() -> Any:
    """Return the module pyarrow. It is imported late because it loads numpy (see `reranker.formats.arrow`)."""
    from reranker import formats

    return formats.arrow()


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """One document of a shown list and the actions on it."""

    document: str
    rank: int
    """Displayed rank from 1 in the whole ranking: the second page continues the count of the first."""
    clicked: bool = False
    """True also for a document that was bought or put into the cart."""
    carted: bool = False
    purchased: bool = False
    time: int | None = None
    """Time of the last click, cart, or purchase, in milliseconds since 1970."""
    dwell: float | None = None
    """Longest dwell time of its clicks in seconds; None if not logged."""


@dataclass(frozen=True, slots=True)
class Impression:
    """One shown result list."""

    query_id: str
    query: str
    """Query text, redacted; runs of white space are replaced by one space."""
    shown: tuple[ShownDocument, ...]
    """Shown documents, sorted by rank. Each rank and each document occurs at most once."""
    session: str = ""
    """Keyed hash of the session id, or empty."""
    user: str = ""
    """Keyed hash of the user or client id, or empty."""
    network: str = ""
    """Keyed hash of the network address, or empty."""
    time: int | None = None
    """Time of the query, in milliseconds since 1970."""
    application: str = ""
    randomised: bool = False
    """Whether the order was random, so that the click rate by rank measures examination only."""

    @property
    def clicked(self) -> tuple[ShownDocument, ...]:
        """The shown documents that were clicked, by rank."""
        return tuple(shown for shown in self.shown if shown.clicked)
