"""How often each document of each query was shown at each rank and clicked there: what propensities are made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from reranker.clicks.schema import Impression

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_SHOWN = 50
"""Showings that a rank needs to have a propensity of its own; deeper ranks take that of the last that has."""
MAX_RANKS = 100


@dataclass(frozen=True)
class ClickCounts:
    """How often each document of each query was shown at each rank, and clicked there; one entry a combination.

    Parameters
    ----------
    item : (m,) int64
        Number of (query text, document).
    rank : (m,) int64
        From 1.
    shown, clicked : (m,) int64
    randomised : (m,) bool
        Showings in shuffled lists are counted apart.
    """

    item: Ints
    rank: Ints
    shown: Ints
    clicked: Ints
    randomised: Bools

    def __len__(self) -> int:
        """Return the number of combinations."""
        return len(self.item)

    def only(self, chosen: Bools) -> ClickCounts:
        """Return some of the entries."""
        return ClickCounts(
            self.item[chosen], self.rank[chosen], self.shown[chosen], self.clicked[chosen], self.randomised[chosen]
        )

    def by_rank(self) -> tuple[Ints, Ints]:
        """Return (shown, clicked) by rank, both (deepest rank,)."""
        deepest = int(self.rank.max(initial=0))
        shown, clicked = np.zeros(deepest, np.int64), np.zeros(deepest, np.int64)
        np.add.at(shown, self.rank - 1, self.shown)
        np.add.at(clicked, self.rank - 1, self.clicked)
        return shown, clicked


def count_clicks(impressions: Iterable[Impression]) -> ClickCounts:
    """Return the counts of result lists, from which every propensity is computed."""
    counts: dict[tuple[str, str, int, bool], list[int]] = {}
    for impression in impressions:
        for one in impression.shown:
            entry = counts.setdefault((impression.query, one.document, one.rank, impression.randomised), [0, 0])
            entry[0] += 1
            entry[1] += one.clicked
    items: dict[tuple[str, str], int] = {}
    numbers = [items.setdefault(key[:2], len(items)) for key in counts]
    values = np.array(list(counts.values()), dtype=np.int64).reshape(-1, 2)
    return ClickCounts(
        np.array(numbers, dtype=np.int64),
        np.array([key[2] for key in counts], dtype=np.int64),
        values[:, 0],
        values[:, 1],
        np.array([key[3] for key in counts], dtype=bool),
    )


def click_rate_by_rank(counts: ClickCounts) -> Floats:
    """Return clicks / showings by rank; NaN for a rank at which nothing was shown."""
    shown, clicked = counts.by_rank()
    with np.errstate(invalid="ignore"):
        return np.asarray(clicked / shown, dtype=np.float64)


def ranks_with_enough(shown: Ints) -> int:
    """Return how many ranks from 1 on were shown often enough, without a gap."""
    enough = shown[:MAX_RANKS] >= MIN_SHOWN
    return len(enough) if enough.all() else int(np.argmin(enough))


def comparable_ranks(counts: ClickCounts) -> int:
    """Return how many ranks from 1 on have enough showings and documents in common with others.

    Documents that were never clicked tell no rank from another, and do not count.
    """
    liked = counts.only(np.isin(counts.item, counts.item[counts.clicked > 0]))
    return min(_linked_ranks(liked), ranks_with_enough(liked.by_rank()[0]))


def _linked_ranks(counts: ClickCounts) -> int:
    """Return how many ranks from 1 on are linked, without a gap, by documents seen at several ranks."""
    kept = counts.only(counts.rank <= MAX_RANKS)
    if not len(kept):
        return 0
    order = np.lexsort((kept.rank, kept.item))
    item, rank, shown = kept.item[order], kept.rank[order] - 1, kept.shown[order]
    # Showings that two neighbouring ranks of one document have in common; equal ranks (shuffled and not) link nothing.
    same = (item[1:] == item[:-1]) & (rank[1:] != rank[:-1])
    common = np.minimum(shown[1:], shown[:-1])[same]
    n = int(rank.max()) + 1
    links = sp.csr_matrix((common, (rank[:-1][same], rank[1:][same])), shape=(n, n))
    _, group = connected_components(links >= MIN_SHOWN, directed=False)
    linked = group == group[0]
    return n if linked.all() else int(np.argmin(linked))
