"""Ratings of clicks, for tests of what is computed from them."""

from __future__ import annotations

from reranker.clicks.pairs import Rating


def rating(
    query: str, document: str, people: int, clicks: int, examined: float | None = None, freshness: float = 1.0
) -> Rating:
    """Return the rating of a document that was shown to some people, by default all of whom examined it.

    Each of them counts ``freshness``, from 0 to 1, in the recent numbers.
    """
    seen = float(people) if examined is None else examined
    return Rating(query, document, people, clicks, seen, freshness * clicks, freshness * seen)
