"""How much less the lower ranks are looked at, and what a click there therefore weighs.

A click says that a document was looked at *and* liked. The examination propensity p_k is the probability that rank k
is looked at, relative to the rank looked at most; a click at rank k stands for 1 / p_k likings (inverse propensity
scoring, Joachims, Swaminathan, Schnabel 2017). Four ways to find p_k, by what the log holds:

- ``randomised``: some lists were shuffled and marked so. Every document is at every rank equally often, so click rates
  by rank show examination alone. The only way that assumes nothing of the readers.
- ``em``: the position-based model, P(click) = p_rank * liking(query, document), by expectation maximisation (Wang,
  Golbandi, Bendersky, Metzler, Najork 2018, with a liking of its own for each query and document in the place of their
  regression). It needs documents that were seen often, at several ranks for the same query.
- ``harvest``: the same model, by an equation that holds however rarely each document was seen (Agarwal, Zaitsev, Wang,
  Li, Najork, Joachims 2019).
- ``rate``: the click rate by rank itself. Better documents stand higher, so it takes part of their merit for bias: it
  gives too much to clicks on low ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from reranker.arrays import Bool, Float64, Int64
from reranker.clicks.pairs import LogFiles, PairConfig, Resources, Task, prepared, sql_text
from reranker.clicks.schema import Impression
from reranker.errors import ConfigError, InputError

MIN_SHOWN = 50
"""Showings that a rank needs to have a propensity of its own; deeper ranks take that of the last that has."""
MAX_RANKS = 100
MIN_RANDOMISED_CLICKS = 400
"""Clicks at each rank of shuffled lists from which ``auto`` trusts them alone: a standard error of 5 %."""
_PRIOR_IMPRESSIONS = 0.1
_MAX_ITERATIONS = 2_000
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ClickCounts:
    """How often each document of each query was shown at each rank, and clicked there; one entry a combination."""

    item: Int64
    """(m,) int64: Number of (query text, document)."""
    rank: Int64
    """(m,) int64: From 1."""
    shown: Int64
    clicked: Int64
    randomised: Bool
    """(m,) bool: Showings in shuffled lists are counted apart."""

    def __len__(self) -> int:
        return len(self.item)

    def only(self, chosen: Bool) -> ClickCounts:
        """Return some of the entries."""
        return ClickCounts(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def by_rank(self) -> tuple[Int64, Int64]:
        """Return (shown, clicked) by rank, both (deepest rank,)."""
        shown, clicked = (np.bincount(self.rank - 1, of).astype(np.int64) for of in (self.shown, self.clicked))
        return shown, clicked


def count_clicks(impressions: Iterable[Impression]) -> ClickCounts:
    """Return the counts of result lists, from which every propensity is computed."""
    counts: dict[tuple[str, str, int, bool], list[int]] = {}
    for impression in impressions:
        for shown in impression.shown:
            entry = counts.setdefault((impression.query, shown.document, shown.rank, impression.randomised), [0, 0])
            entry[0] += 1
            entry[1] += shown.clicked
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


def ranks_with_enough(shown: Int64) -> int:
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


def count_log(log: LogFiles) -> ClickCounts:
    """Return how often each document of each query was shown at each rank and clicked there, robots left out.

    The same as `count_clicks` of the log's impressions; errors as in `reranker.clicks.pairs.make_pairs`.
    """
    with prepared(Task(log, PairConfig(), "impressions"), Resources()) as connection:
        counted = connection.execute(sql_text("click_counts")).fetchnumpy()
    names = ("item", "rank", "shown", "clicked")
    item, rank, shown, clicked = (np.asarray(counted[name], dtype=np.int64) for name in names)
    return ClickCounts(item, rank, shown, clicked, np.asarray(counted["randomised"], dtype=bool))


def fit_harvest(counts: ClickCounts, n_ranks: int) -> Float64:
    """Return p (n_ranks,), up to a factor, of P(click) = p_rank * liking(query, document); sparse logs do no harm.

    Solves, for every rank k over documents i shown N_ik times and clicked C_ik times there, by proportional fitting
    (each rank's clicks over its expected ones, in turn) ::

        sum_i C_ik = sum_i (sum_k' C_ik') N_ik p_k / (sum_k' N_ik' p_k')

    Its two sides have equal means at the true p whatever the likings are, which need not be estimated.

    It is the conditional likelihood of Poisson counts. Source: Agarwal et al. 2019 (intervention harvesting).
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

    Likings have a prior too weak to matter. Where documents were seen only a few times each, so many likings to find
    bend the propensities: `fit_harvest` does not mind.

    On clicks that follow a cascade, p_k is about the share of the readers who come as far as rank k, averaged over
    lists: where that depends much on what stands above, no number for a rank is right.

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
        # Of the showings without a click: looked at but not liked, and liked but not looked at.
        looked = clicks_of_rank + np.bincount(rank, missed * t * (1 - g) / nothing, minlength=n_ranks)
        liked = clicks_of_item + np.bincount(item, missed * g * (1 - t) / nothing)
        mean = float(liked.sum() / of_item.sum())
        gamma = (liked + _PRIOR_IMPRESSIONS * mean) / (of_item + _PRIOR_IMPRESSIONS)
        new = np.maximum(looked / of_rank, 1e-9)
        if _settled(theta / theta[0], new / new[0]):
            return new
        theta = new
    return theta


def _settled(before: Float64, after: Float64) -> bool:
    return bool((np.abs(after - before) < _TOLERANCE * before).all())


@dataclass(frozen=True)
class Propensities:
    """Examination by rank, relative to the rank that is looked at most (the first, as a rule).

    `InputError` for an empty list or a value outside of (0, 1].
    """

    by_rank: tuple[float, ...]
    """p_1, p_2, ...; above 0, at most 1. Deeper ranks have the last one."""
    method: str = "given"
    """How it was found, a key of `METHODS`, or ``given``."""
    n: int = 0
    """Result lists it rests on."""

    def __post_init__(self) -> None:
        if not self.by_rank or not all(0 < p <= 1 for p in self.by_rank):
            raise InputError(f"propensities {self.by_rank}: give at least one, each a number above 0 and at most 1")

    def to_json(self) -> dict[str, Any]:
        """Return the propensities as JSON has them."""
        return {"by_rank": list(self.by_rank), "method": self.method, "n": self.n}

    @classmethod
    def from_json(cls, value: Any) -> Propensities:
        """Return the propensities that `to_json` wrote, or of a list of numbers; `InputError` for anything else."""
        table: dict[str, Any] = {"by_rank": value} if isinstance(value, list) else value
        try:
            return cls(
                tuple(float(p) for p in table["by_rank"]), str(table.get("method", "given")), int(table.get("n", 0))
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{str(value)[:80]!r} are no propensities: give a JSON object with by_rank, a list of numbers, as "
                f"`ssi clicks propensities --out` writes it"
            ) from error


def _by_rate(counts: ClickCounts, method: str = "rate") -> Propensities:
    """Return click rates by rank, divided by the highest; a rank without a click counts as half a click."""
    shown, clicked = counts.by_rank()
    n_ranks = ranks_with_enough(shown)
    if n_ranks == 0 or clicked[0] == 0:
        seen, taken = (int(shown[0]), int(clicked[0])) if len(shown) else (0, 0)
        raise InputError(
            f"rank 1 was shown {seen} times and clicked {taken} times: propensities need at least {MIN_SHOWN} "
            f"showings and a click there; give a longer log"
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
    """Return the fit of the ranks before the first without a link to rank 1: documents seen at several ranks."""
    n_ranks = comparable_ranks(counts)
    if n_ranks < 2:
        raise InputError(
            f"documents were not seen at several ranks for the same query (or rank 1 was shown fewer than {MIN_SHOWN} "
            f"times), so that a document's merit and its rank cannot be told apart: use --method randomised (shuffle "
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
"""Ways to find propensities, by name."""


def estimate_propensities(counts: ClickCounts, method: str = "auto") -> Propensities:
    """Return propensities by a method of `METHODS`, or by the soundest that the log allows (``auto``).

    ``auto`` takes randomised lists where each of their ranks has at least 400 clicks. Fewer say more together with the
    lists that were not shuffled: then, and wherever else the order of results has changed, it harvests, else it takes
    click rates.

    `ConfigError` for an unknown method; `InputError` if the log does not hold what the method needs: lists marked as
    shuffled, an order of results that changed (so that merit and rank can be told apart), or enough showings and a
    click at rank 1.
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
