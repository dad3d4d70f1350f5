"""Further readers of simulated result lists, and simulated logs as counts and as tables.

- `Cascade`: goes down the list and stops at the first click (Craswell, Zoeter, Taylor, Ramsey 2008).
- `DynamicBayesian`: goes down the list, may be satisfied by what was clicked, and may give up at any rank (Chapelle,
  Zhang 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from papers.click_simulator import EMPTY, SimulatedLog
from reranker.arrays import Bool, Float64
from reranker.clicks.propensities import ClickCounts
from reranker.clicks.schema import CLICK, IMPRESSION, TABLES
from reranker.errors import ConfigError


@dataclass(frozen=True)
class Cascade:
    """Looks at one document after the other and stops at the first click."""

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (looked at, clicked), both (n, k); at most one click a list."""
        return DynamicBayesian(satisfaction=1.0, continuation=1.0).examine(attraction, rng)


@dataclass(frozen=True)
class DynamicBayesian:
    """Goes down the list: after a click stops with ``satisfaction``, else goes on with ``continuation``.

    Satisfaction 1 and continuation 1 make it the cascade.

    Raises
    ------
    ConfigError
        For a probability outside of 0 to 1.
    """

    satisfaction: float = 0.5
    continuation: float = 0.9

    def __post_init__(self) -> None:
        for name in ("satisfaction", "continuation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be a probability from 0 to 1")

    def examine(self, attraction: Float64, rng: np.random.Generator) -> tuple[Bool, Bool]:
        """Return (looked at, clicked), both (n, k)."""
        n, k = attraction.shape
        looked, clicked = np.zeros((n, k), dtype=bool), np.zeros((n, k), dtype=bool)
        going = np.ones(n, dtype=bool)
        for rank in range(k):
            looked[:, rank] = going
            clicked[:, rank] = going & (rng.random(n) < attraction[:, rank])
            satisfied = clicked[:, rank] & (rng.random(n) < self.satisfaction)
            going = going & ~satisfied & (rng.random(n) < self.continuation)
        return looked, clicked


def counts_of(log: SimulatedLog) -> ClickCounts:
    """Return how often each document of each query was shown at each rank and clicked."""
    rows, ranks = np.nonzero(log.shown != EMPTY)
    document = log.shown[rows, ranks]
    item = log.query[rows] * (int(document.max()) + 1) + document
    key = (item * log.shown.shape[1] + ranks) * 2 + log.randomised[rows]
    keys, number = np.unique(key, return_inverse=True)
    clicked = np.bincount(number, log.clicked[rows, ranks]).astype(np.int64)
    cell = keys // 2
    return ClickCounts(
        cell // log.shown.shape[1], cell % log.shown.shape[1] + 1, np.bincount(number), clicked, keys % 2 == 1
    )


def tables_of(
    log: SimulatedLog, queries: Sequence[str], documents: Sequence[str], *, impressions: bool = True
) -> dict[str, dict[str, list[Any]]]:
    """Return the log as the tables of `reranker.clicks.schema`, table -> column -> values.

    Hits stand in ``hits``; events are the clicks and, unless ``impressions`` is False, one ``impression`` a shown
    document (ordinal = rank).
    """
    rows, ranks = np.nonzero(log.shown != EMPTY)
    names = [documents[one] for one in log.shown[rows, ranks].tolist()]
    ids = [f"q{row}" for row in range(len(log))]
    of_hit = [ids[row] for row in rows.tolist()]
    users = [f"u{one}" for one in log.user.tolist()]
    texts = [queries[one] for one in log.query.tolist()]
    there: dict[str, list[Any]] = {
        "query_id": ids,
        "query": texts,
        "session": [f"s{one}" for one in users],
        "user": users,
        "time": log.time.tolist(),
        "randomised": log.randomised.tolist(),
    }
    clicks = np.flatnonzero(log.clicked[rows, ranks])
    seen = np.arange(len(rows)) if impressions else np.arange(0)
    chosen = np.concatenate([seen, clicks])
    owner, ordinal = rows[chosen], ranks[chosen] + 1
    is_click = np.arange(len(chosen)) >= len(seen)
    who = [users[row] for row in owner.tolist()]
    events: dict[str, list[Any]] = {
        "query_id": [ids[row] for row in owner.tolist()],
        "action": [CLICK if one else IMPRESSION for one in is_click.tolist()],
        "document": [names[one] for one in chosen.tolist()],
        "ordinal": ordinal.tolist(),
        "time": (log.time[owner] + np.where(is_click, 1000 * ordinal, 0)).tolist(),
        "session": [f"s{one}" for one in who],
        "user": who,
        "query": [texts[row] for row in owner.tolist()],
    }
    hits: dict[str, list[Any]] = {"query_id": of_hit, "position": (ranks + 1).tolist(), "document": names}
    return {
        "queries": _filled("queries", there, len(log)),
        "hits": _filled("hits", hits, len(rows)),
        "events": _filled("events", events, len(chosen)),
    }


def _filled(table: str, columns: dict[str, list[Any]], n: int) -> dict[str, list[Any]]:
    """Return all columns of a table in order, those not given being empty."""
    empty = {"string": "", "bool": False}
    return {name: columns.get(name, [empty.get(kind)] * n) for name, kind in TABLES[table].items()}
