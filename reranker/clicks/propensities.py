"""Examination propensities: how often users examine each rank, from which the weight of a click follows.

A click means that a document was examined *and* found attractive. The examination propensity p_k is the probability
that rank k is examined, relative to the rank examined most. A click at rank k counts as 1 / p_k clicks (inverse
propensity scoring, Joachims, Swaminathan, Schnabel 2017). There are four methods for estimating p_k, depending on the
log:

- ``randomised``: some lists were shuffled and marked as such. Every document is at every rank equally often, so the
  click rate by rank measures examination only. This is the only method without assumptions about users.
- ``em``: the position-based model, P(click) = p_rank * attraction(query, document), by expectation maximisation (Wang,
  Golbandi, Bendersky, Metzler, Najork 2018, with a separate attraction for each query and document instead of their
  regression). It needs documents that were seen often, at several ranks for the same query.
- ``harvest``: the same model, estimated by an equation that holds however rarely each document was seen (Agarwal,
  Zaitsev, Wang, Li, Najork, Joachims 2019).
- ``rate``: the click rate by rank itself. Better documents are ranked higher, so this method takes part of their merit
  for position bias and gives too much weight to clicks on low ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from reranker.arrays import Bool, Float64, Int64
from reranker.clicks.pairs import ImpressionTable, LogFiles, impression_table
from reranker.errors import ConfigError, InputError

MIN_SHOWN = 50
"""Minimum impressions of a rank for a propensity of its own. Deeper ranks have the propensity of the last such rank."""
MAX_RANKS = 100
MIN_RANDOMISED_CLICKS = 400
"""Clicks needed at each rank of shuffled lists for ``auto`` to use only them: a standard error of 5 %."""
_PRIOR_IMPRESSIONS = 0.1
_MAX_ITERATIONS = 2_000
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ClickCounts:
    """Impressions and clicks of each document of each query at each rank. All arrays have one entry per combination."""

    item: Int64
    """(m,) int64: Number of the pair (query text, document)."""
    rank: Int64
    """(m,) int64: Displayed rank, from 1."""
    shown: Int64
    """(m,) int64: Number of impressions."""
    clicked: Int64
    """(m,) int64: Number of clicked impressions."""
    randomised: Bool
    """(m,) bool: Whether the lists were shuffled. Shuffled and other lists have separate entries."""

    def __len__(self) -> int:
        return len(self.item)

    def only(self, chosen: Bool) -> ClickCounts:
        """Return a subset of the entries."""
        return ClickCounts(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def by_rank(self) -> tuple[Int64, Int64]:
        """Return (shown, clicked) by rank, both (deepest rank,)."""
        shown, clicked = (np.bincount(self.rank - 1, of).astype(np.int64) for of in (self.shown, self.clicked))
        return shown, clicked


def ranks_with_enough(shown: Int64) -> int:
    """Return the number of consecutive ranks, from 1, that have at least `MIN_SHOWN` impressions."""
    enough = shown[:MAX_RANKS] >= MIN_SHOWN
    return len(enough) if enough.all() else int(np.argmin(enough))


def comparable_ranks(counts: ClickCounts) -> int:
    """Return the number of ranks, from 1, with enough impressions and with documents in common with other ranks.

    Documents that were never clicked do not distinguish ranks, and are ignored.
    """
    liked = counts.only(np.isin(counts.item, counts.item[counts.clicked > 0]))
    return min(_linked_ranks(liked), ranks_with_enough(liked.by_rank()[0]))


def _linked_ranks(counts: ClickCounts) -> int:
    """Return the number of consecutive ranks, from 1, that are linked by documents seen at several ranks."""
    kept = counts.only(counts.rank <= MAX_RANKS)
    if not len(kept):
        return 0
    order = np.lexsort((kept.rank, kept.item))
    item, rank, shown = kept.item[order], kept.rank[order] - 1, kept.shown[order]
    # Impressions that neighbouring ranks of a document have in common. Equal ranks (shuffled and not) are not a link.
    same = (item[1:] == item[:-1]) & (rank[1:] != rank[:-1])
    common = np.minimum(shown[1:], shown[:-1])[same]
    n = int(rank.max()) + 1
    links = sp.csr_matrix((common, (rank[:-1][same], rank[1:][same])), shape=(n, n))
    _, group = connected_components(links >= MIN_SHOWN, directed=False)
    linked = group == group[0]
    return n if linked.all() else int(np.argmin(linked))


def count_log(log: LogFiles) -> ClickCounts:
    """Return the impressions and clicks of each document of each query at each rank, without robots.

    Errors are as in `reranker.clicks.pairs.make_pairs`.
    """
    with impression_table(log) as table:
        return counts_before(table)


def counts_before(table: ImpressionTable, until: int | None = None) -> ClickCounts:
    """Return the counts of the lists before a time in milliseconds; None: of all."""
    counted = table.click_counts(until)
    names = ("item", "rank", "shown", "clicked")
    item, rank, shown, clicked = (np.asarray(counted[name], dtype=np.int64) for name in names)
    return ClickCounts(item, rank, shown, clicked, np.asarray(counted["randomised"], dtype=bool))


def fit_harvest(counts: ClickCounts, n_ranks: int) -> Float64:
    """Return p (n_ranks,), up to a factor, of P(click) = p_rank * attraction(query, document). Robust to sparse logs.

    It solves the following equation for every rank k, over documents i shown N_ik times and clicked C_ik times there.
    The method is proportional fitting, which multiplies each rank in turn by its clicks over its expected clicks ::

        sum_i C_ik = sum_i (sum_k' C_ik') N_ik p_k / (sum_k' N_ik' p_k')

    At the true p both sides have equal means for all attractions, so the attractions need not be estimated.

    The solution maximises the conditional likelihood of Poisson counts. Source: Agarwal et al. 2019 (intervention
    harvesting).
    """
    _, item = np.unique(counts.item, return_inverse=True)
    clicks_of_item = np.bincount(item, counts.clicked)
    useful = clicks_of_item[item] > 0
    item, rank, shown = item[useful], counts.rank[useful] - 1, counts.shown[useful].astype(np.float64)
    clicks_of_rank = np.maximum(np.bincount(rank, counts.clicked[useful], minlength=n_ranks), 0.5)
    theta = np.ones(n_ranks)
    for _ in range(_MAX_ITERATIONS):
        liking = clicks_of_item / np.maximum(np.bincount(item, shown * theta[rank], len(clicks_of_item)), 1e-12)
        expected = np.bincount(rank, shown * liking[item], minlength=n_ranks)
        new = clicks_of_rank / np.maximum(expected, 1e-12)
        new /= new[0]
        if _settled(theta, new):
            return new
        theta = new
    return theta


def fit_expectation_maximisation(counts: ClickCounts, n_ranks: int) -> Float64:
    """Return p (n_ranks,), up to a factor, of the same model by expectation maximisation.

    The prior of the attractions is too weak to matter. If documents were seen only a few times each, the large number
    of attractions to estimate biases the propensities; `fit_harvest` is not affected.

    On clicks that follow a cascade model, p_k is approximately the share of users who reach rank k, averaged over
    lists. If that depends strongly on the documents above, no single number for a rank is correct.

    Source: Wang et al. 2018, section 4; Chuklin, Markov, de Rijke 2015, section 4.2.2 (EM of the position-based model).
    """
    _, item = np.unique(counts.item, return_inverse=True)
    rank = counts.rank - 1
    shown, clicked = counts.shown.astype(np.float64), counts.clicked.astype(np.float64)
    missed = shown - clicked
    of_item = np.bincount(item, shown)
    of_rank = np.bincount(rank, shown, minlength=n_ranks)
    clicks_of_item, clicks_of_rank = np.bincount(item, clicked), np.bincount(rank, clicked, minlength=n_ranks)
    theta = np.maximum(clicks_of_rank, 0.5) / of_rank
    theta = theta / theta.max() * 0.9
    gamma = np.full(len(of_item), 0.5)
    for _ in range(_MAX_ITERATIONS):
        t, g = theta[rank], gamma[item]
        nothing = np.maximum(1 - t * g, 1e-12)
        # Impressions without a click: examined but not attractive, and attractive but not examined.
        examined = clicks_of_rank + np.bincount(rank, missed * t * (1 - g) / nothing, minlength=n_ranks)
        liked = clicks_of_item + np.bincount(item, missed * g * (1 - t) / nothing)
        mean = float(liked.sum() / of_item.sum())
        gamma = (liked + _PRIOR_IMPRESSIONS * mean) / (of_item + _PRIOR_IMPRESSIONS)
        new = np.maximum(examined / of_rank, 1e-9)
        if _settled(theta / theta[0], new / new[0]):
            return new
        theta = new
    return theta


def _settled(before: Float64, after: Float64) -> bool:
    return bool((np.abs(after - before) < _TOLERANCE * before).all())


@dataclass(frozen=True)
class Propensities:
    """Examination probabilities by rank, relative to the rank that is examined most (usually the first).

    Raises `InputError` for an empty list or a value outside of (0, 1].
    """

    by_rank: tuple[float, ...]
    """p_1, p_2, ..., each in (0, 1]. Deeper ranks have the last value."""
    method: str = "given"
    """Estimation method, a key of `METHODS`, or ``given``."""
    n: int = 0
    """Number of result lists from which they were estimated."""

    def __post_init__(self) -> None:
        if not self.by_rank or not all(0 < p <= 1 for p in self.by_rank):
            raise InputError(f"propensities {self.by_rank}: give at least one, each a number above 0 and at most 1")

    def to_json(self) -> dict[str, Any]:
        """Return the propensities as JSON-compatible values."""
        return {"by_rank": list(self.by_rank), "method": self.method, "n": self.n}

    @classmethod
    def from_json(cls, value: Any) -> Propensities:
        """Return the propensities from the output of `to_json` or a list of numbers. Raises `InputError` otherwise."""
        table: dict[str, Any] = {"by_rank": value} if isinstance(value, list) else value
        try:
            return cls(
                tuple(float(p) for p in table["by_rank"]), str(table.get("method", "given")), int(table.get("n", 0))
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{str(value)[:80]!r} are not propensities: give a JSON object with by_rank, a list of numbers, as "
                f"`ssi clicks propensities --out` writes it"
            ) from error


def _by_rate(counts: ClickCounts, method: str = "rate") -> Propensities:
    """Return click rates by rank, divided by the highest; a rank without a click counts as half a click."""
    shown, clicked = counts.by_rank()
    n_ranks = ranks_with_enough(shown)
    if n_ranks == 0 or clicked[0] == 0:
        seen, taken = (int(shown[0]), int(clicked[0])) if len(shown) else (0, 0)
        raise InputError(
            f"rank 1 was shown {seen} times and clicked {taken} times, but propensities need at least {MIN_SHOWN} "
            f"impressions and a click there: give a longer log"
        )
    rate = np.maximum(clicked[:n_ranks], 0.5) / shown[:n_ranks]
    return Propensities(tuple((rate / rate.max()).tolist()), method, int(shown[0]))


def _from_randomised(counts: ClickCounts) -> Propensities:
    if not counts.randomised.any():
        raise InputError(
            "no result list is marked as randomised: shuffle the results of a small share of searches and log "
            "randomised = true with them, or use --method harvest, em or rate"
        )
    return _by_rate(counts.only(counts.randomised), "randomised")


def _by_model(method: str, fit: Callable[[ClickCounts, int], Float64], counts: ClickCounts) -> Propensities:
    """Return the model's estimate for the ranks that documents seen at several ranks link to rank 1 without a gap."""
    n_ranks = comparable_ranks(counts)
    if n_ranks < 2:
        raise InputError(
            f"documents were not seen at several ranks for the same query (or rank 1 was shown fewer than {MIN_SHOWN} "
            f"times), so the effects of document and rank cannot be separated: use --method randomised (shuffle "
            f"a share of the results), or --method rate"
        )
    kept = counts.only(counts.rank <= n_ranks)
    theta = fit(kept, n_ranks)
    return Propensities(tuple((theta / theta.max()).tolist()), method, int(kept.shown[kept.rank == 1].sum()))


METHODS: dict[str, Callable[[ClickCounts], Propensities]] = {
    "randomised": _from_randomised,
    "harvest": partial(_by_model, "harvest", fit_harvest),
    "em": partial(_by_model, "em", fit_expectation_maximisation),
    "rate": _by_rate,
}
"""Estimation methods by name."""


def estimate_propensities(counts: ClickCounts, method: str = "auto") -> Propensities:
    """Return propensities by a method of `METHODS`, or by the most reliable one that the log allows (``auto``).

    ``auto`` uses randomised lists only if each of their ranks has at least 400 clicks. With fewer clicks, all lists
    together are more reliable: it uses ``harvest`` if the order of results has changed, otherwise ``rate``.

    Raises
    ------
    ConfigError
        For an unknown method.
    InputError
        If the log does not contain what the method needs: lists marked as shuffled, a result order that changed (so
        that the effects of document and rank can be separated), or enough impressions and a click at rank 1.
    """
    if method not in ("auto", *METHODS):
        raise ConfigError(f"method is {method!r}: choose auto, {', '.join(METHODS)}", value=method)
    if method == "auto":
        shown, clicked = counts.only(counts.randomised).by_rank()
        n_ranks = ranks_with_enough(shown)
        if n_ranks and int(clicked[:n_ranks].min()) >= MIN_RANDOMISED_CLICKS:
            method = "randomised"
        else:
            method = "harvest" if comparable_ranks(counts) >= 2 else "rate"
    return METHODS[method](counts)
