"""Shown lists as arrays by rank, the weights of their clicks, and what an order of the shown documents is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError, InputError
from reranker.retrain.gate_input import ShownLists
from reranker.retrain.resampling import Values, sums_by


class ClickedLists:
    """Shown lists with at least one click, by rank, without documents that are gone; the sums are per impression.

    ``weight`` of a click is clipped, ``whole_weight`` is not; both are 0 where nothing was clicked.
    """

    def __init__(self, shown: ShownLists, propensities: Sequence[float] | None, max_weight: float) -> None:
        n = len(shown.indptr) - 1
        owner = np.repeat(np.arange(n), np.diff(shown.indptr))
        here = ~np.isnan(shown.live)
        self.n_gone = int(len(here) - here.sum())
        here &= np.bincount(owner[here & shown.clicked], minlength=n)[owner] > 0
        rows = np.flatnonzero(here)
        rows = rows[np.lexsort((shown.rank[rows], owner[rows]))]
        kept, self.owner = np.unique(owner[rows], return_inverse=True)
        self.n, self.rank = len(kept), shown.rank[rows]
        twice = np.flatnonzero((np.diff(self.owner) == 0) & (np.diff(self.rank) == 0))
        if len(twice):
            query = shown.query[int(kept[self.owner[twice[0]]])]
            raise InputError(f"query {query!r} shows two documents at rank {self.rank[twice[0]]}: give one a rank")
        self.live, self.candidate = shown.live[rows], shown.candidate[rows]
        clicked = shown.clicked[rows]
        self.n_clicks = int(clicked.sum())
        self.weight = np.where(clicked, click_weights(self.rank, propensities, max_weight), 0.0)
        self.whole_weight = np.where(clicked, click_weights(self.rank, propensities, np.inf), 0.0)
        self.is_weighted = propensities is not None
        self.query = [shown.query[int(i)] for i in kept]
        self.cluster = _cluster_numbers([shown.cluster[int(i)] for i in kept])
        self.reciprocal, self.discount = 1.0 / self.rank, 1.0 / np.log2(1.0 + self.rank)

    def per_impression(self, rows: Values) -> Values:
        """Return (n,) sums of (n_rows,) values."""
        return sums_by(self.owner, rows, self.n)

    def gains(self, scores: Values, places: Values, weight: Values | None = None) -> Values:
        """Return, per impression, the weighted sum of what ``places`` are worth, taken in the order of the scores."""
        weight = self.weight if weight is None else weight
        order = np.lexsort((-scores, self.owner))
        new = np.ones(len(order), dtype=bool)  # first of documents of equal score
        new[1:] = (np.diff(self.owner) != 0) | (np.diff(scores[order]) != 0)
        tied = np.cumsum(new) - 1
        shared = sums_by(tied, places) / np.bincount(tied)
        return self.per_impression(weight[order] * shared[tied])

    @property
    def ideal(self) -> Values:
        """Per impression, the best weighted sum of discounts."""
        return self.gains(self.weight, self.discount)


def click_weights(rank: npt.NDArray[np.int64], propensities: Sequence[float] | None, max_weight: float) -> Values:
    """Return min(max p / p(rank), max_weight): clicks count in units of one at the best examined rank.

    Raises
    ------
    ConfigError
        If a propensity is not finite and positive.
    """
    if propensities is None:
        return np.ones(len(rank))
    p = np.asarray(propensities, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not np.all(np.isfinite(p) & (p > 0)):
        raise ConfigError(
            f"propensities are {list(propensities)}: give one or more finite values above 0, rank 1 first"
        )
    weights: Values = np.minimum(p.max() / p[np.minimum(rank, len(p)) - 1], max_weight)
    return weights


def _cluster_numbers(clusters: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return a number for each cluster; an empty name is a cluster of its own."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(name or f"\0{place}", len(numbers)) for place, name in enumerate(clusters)], dtype=np.int64
    )
