"""The gate: compares a new model with the live model on clicks and on judged queries, and decides on promotion.

The clicks were made on the live model's order, which puts its own favourites where people look. Unweighted, a click log
makes every other model look worse. So a click at displayed rank r counts 1/p(r), where p(r) is the probability that
rank r is examined (Joachims, Swaminathan, Schnabel 2017). Both models rank the documents that were shown, and a click
is credited at the rank that each model gives to its document. With w the weights, a model's value is ::

    RR   = sum w / rank       / sum w                      over clicks
    nDCG = sum w / log2(1 + rank) / sum of the same in the order of w, the best possible order

Both are sums over clicks, so that weighting makes them unbiased (the reciprocal rank of the *first* click is not such a
sum). Both are divided once, over all impressions. Dividing within each impression would cancel the weights of
impressions with one click and bring the bias back. Without division, the value would be in units of p(1), which is
unknown.

Nothing is known about documents that were never shown. So both models rank only the shown documents, on the ranks at
which they were shown. Documents with equal scores share the mean discount of their ranks, which is the expected value
for a random order.

Weights that are too steep favour any change. The worst case is to use click rates by rank as propensities. They
attribute all merit of the live order to position bias, so that it seems no better than a random order, and a worse
model with a little merit seems better. Two comparisons with a random order of each list (exact, by its mean) guard
against this: the new model must be better than random, and so must the live one. Otherwise the weights are not trusted,
unless the new model is also better by the clicks on lists that were shown in random order, which need no weights.

Ranks are those of serving, blended as in `reranker.rerank`. Each distinct query is sent once, as the team's body with a
filter on the documents that were shown for it. A filter does not change scores, so they are those of the body.
Documents are encoded from their stored text, once per document and encoder, so that a model can be evaluated before its
vectors are in any index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.clicks.propensities import Propensities
from reranker.clicks.schema import Impression
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation import half_interval
from reranker.retrain.settings import GateConfig
from reranker.retrain.statistics import Interval, clusters_needed, detectable, ratio_interval, sums_by

POWER = 0.8
"""Probability with which a gain is shown, in the sentences about what a log can show."""


def weighing(config: GateConfig, propensities: Propensities | None) -> GateConfig:
    """Return the gate's settings with ``measured_weights`` set according to the method of the propensities."""
    return replace(config, measured_weights=propensities is not None and propensities.method == "randomised")


@dataclass(frozen=True)
class ShownLists:
    """Impressions with the scores of both models for the shown documents.

    Rows are the shown documents of all impressions, concatenated. The rows of impression i are
    ``indptr[i]:indptr[i + 1]``.
    """

    indptr: Int64
    """(n + 1,) int64: Row offsets of the impressions."""
    rank: Int64
    """(n_rows,) int64: Rank at which the document was shown, from 1; unique within an impression."""
    clicked: Bool
    """(n_rows,) bool: Whether the document was clicked."""
    live: Float64
    """(n_rows,) float64: Scores of the live model as served; higher is better. NaN (in both) for a deleted document,
    which is ignored."""
    candidate: Float64
    """(n_rows,) float64: Scores of the new model, like ``live``."""
    query: Sequence[str]
    """Query text of each impression."""
    cluster: Sequence[str]
    """User (or session) of each impression, the unit of resampling; empty: a cluster of its own."""
    randomised: Bool | None = None
    """(n,) bool: Whether the list was shown in random order; None: none was."""

    def __post_init__(self) -> None:
        n, rows = len(self.indptr) - 1, len(self.rank)
        lengths = {len(self.clicked), len(self.live), len(self.candidate)}
        if n < 0 or lengths != {rows} or self.indptr[-1] != rows or {len(self.query), len(self.cluster)} != {n}:
            raise ShapeMismatch(
                f"shown lists of {rows} ranks, {sorted(lengths)} clicks and scores, {len(self.query)} queries and "
                f"{len(self.cluster)} clusters do not fit an indptr of {n + 1}: give one value per row or impression"
            )
        if rows and self.rank.min() < 1:
            raise InputError(f"a document was shown at rank {self.rank.min()}: ranks count from 1")
        if np.any(np.isnan(self.live) != np.isnan(self.candidate)) or np.any(np.isinf([self.live, self.candidate])):
            raise InputError(
                "a shown document has a finite score by only one of the models: score the same documents "
                "with both, and give NaN in both for a deleted document"
            )


@dataclass(frozen=True)
class JudgedQueries:
    """nDCG (or another measure) of judged queries by both models."""

    query: Sequence[str]
    """(n,) str: Query texts."""
    live: Float64
    """(n,) float64: Values of the live model."""
    candidate: Float64
    """(n,) float64: Values of the new model."""

    def __post_init__(self) -> None:
        if not len(self.query) == len(self.live) == len(self.candidate):
            raise ShapeMismatch(
                f"{len(self.query)} judged queries have {len(self.live)} live and {len(self.candidate)} new values: "
                f"give one value per query"
            )
        if not (np.isfinite(self.live).all() and np.isfinite(self.candidate).all()):
            raise InputError("a judged query has a value that is not finite: remove the query for both models")


def shown_lists(
    impressions: Sequence[Impression], live: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]
) -> ShownLists:
    """Return impressions and the scores of their shown documents as arrays.

    ``live`` and ``candidate`` have one list of scores per impression, in the order shown. Impressions without a click
    are dropped, because they add 0 to numerators and denominators. The cluster of an impression is its user, else its
    session.

    Raises `ShapeMismatch` if an impression and its scores differ in length.
    """
    if not len(impressions) == len(live) == len(candidate):
        raise ShapeMismatch(f"{len(impressions)} impressions, {len(live)} and {len(candidate)} lists of scores")
    rows: list[tuple[int, bool, float, float]] = []
    lengths, queries, clusters, randomised = [0], [], [], []
    for impression, old, new in zip(impressions, live, candidate, strict=True):
        if not len(impression.shown) == len(old) == len(new):
            raise ShapeMismatch(
                f"impression {impression.query_id!r} has {len(impression.shown)} documents, {len(old)} live and "
                f"{len(new)} new scores: give one score per shown document"
            )
        if not impression.clicked:
            continue
        rows += [(d.rank, d.clicked, float(a), float(b)) for d, a, b in zip(impression.shown, old, new, strict=True)]
        lengths.append(len(impression.shown))
        queries.append(impression.query)
        randomised.append(impression.randomised)
        user, session = impression.user, impression.session
        clusters.append(f"user {user}" if user else f"session {session}" if session else "")
    columns: Any = zip(*rows, strict=True) if rows else ((), (), (), ())
    types: tuple[Any, ...] = (np.int64, np.bool_, np.float64, np.float64)
    rank, clicked, by_live, by_new = (np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True))
    indptr = np.cumsum(lengths, dtype=np.int64)
    shuffled = np.array(randomised, dtype=bool)
    return ShownLists(indptr, rank, clicked, by_live, by_new, tuple(queries), tuple(clusters), shuffled)


class ClickedLists:
    """Impressions with at least one click. Rows are sorted by displayed rank; deleted documents are dropped.

    Sums are per impression. ``weight`` of a click is clipped, ``whole_weight`` is not; both are 0 without a click.
    ``unbiased_weight`` is 1 for clicks on lists that were shown in random order, where every document is as often at
    every rank, and 0 for all others.
    """

    def __init__(self, shown: ShownLists, propensities: Sequence[float] | None, max_weight: float) -> None:
        n = len(shown.indptr) - 1
        owner = np.repeat(np.arange(n), np.diff(shown.indptr))
        here = ~np.isnan(shown.live)
        self.n_gone = int(len(here) - here.sum())
        here &= np.bincount(owner[here & shown.clicked], minlength=n)[owner] > 0
        rows = np.flatnonzero(here)
        rows = rows[np.lexsort((shown.rank[rows], owner[rows]))]
        judged_within_tolerance, self.owner = np.unique(owner[rows], return_inverse=True)
        self.n, self.rank = len(judged_within_tolerance), shown.rank[rows]
        twice = np.flatnonzero((np.diff(self.owner) == 0) & (np.diff(self.rank) == 0))
        if len(twice):
            query = shown.query[int(judged_within_tolerance[self.owner[twice[0]]])]
            raise InputError(f"query {query!r} shows two documents at rank {self.rank[twice[0]]}: ranks must be unique")
        self.live, self.candidate = shown.live[rows], shown.candidate[rows]
        clicked = shown.clicked[rows]
        self.n_clicks = int(clicked.sum())
        self.weight = np.where(clicked, click_weights(self.rank, propensities, max_weight), 0.0)
        self.whole_weight = np.where(clicked, click_weights(self.rank, propensities, np.inf), 0.0)
        shuffled = np.zeros(n, bool) if shown.randomised is None else shown.randomised
        self.unbiased_weight = (clicked & shuffled[owner[rows]]).astype(np.float64)
        self.query = [shown.query[int(i)] for i in judged_within_tolerance]
        self.cluster = _cluster_numbers([shown.cluster[int(i)] for i in judged_within_tolerance])
        self.reciprocal, self.discount = 1.0 / self.rank, 1.0 / np.log2(1.0 + self.rank)

    def per_impression(self, rows: Float64) -> Float64:
        """Return the sums of (n_rows,) values over each impression, (n,)."""
        return sums_by(self.owner, rows, self.n)

    def gains(self, scores: Float64, places: Float64, weight: Float64 | None = None) -> Float64:
        """Return for each impression the sum of weight times value, with ``places`` assigned in order of scores."""
        weight = self.weight if weight is None else weight
        order = np.lexsort((-scores, self.owner))
        new = np.ones(len(order), dtype=bool)  # True at the first of several documents with equal scores
        new[1:] = (np.diff(self.owner) != 0) | (np.diff(scores[order]) != 0)
        tied = np.cumsum(new) - 1
        shared = sums_by(tied, places) / np.bincount(tied)
        return self.per_impression(weight[order] * shared[tied])

    @property
    def ideal(self) -> Float64:
        """Return for each impression the largest possible weighted sum of discounts, (n,)."""
        return self.gains(self.weight, self.discount)


def click_weights(rank: Int64, propensities: Sequence[float] | None, max_weight: float) -> Float64:
    """Return min(max p / p(rank), max_weight), the weights of clicks relative to a click at the most examined rank.

    Raises `ConfigError` if a propensity is not finite and positive.
    """
    if propensities is None:
        return np.ones(len(rank))
    p = np.asarray(propensities, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not np.all(np.isfinite(p) & (p > 0)):
        raise ConfigError(
            f"propensities are {list(propensities)}: give one or more finite values above 0, beginning with rank 1"
        )
    weights: Float64 = np.minimum(p.max() / p[np.minimum(rank, len(p)) - 1], max_weight)
    return weights


def _cluster_numbers(clusters: Sequence[str]) -> Int64:
    """Return the number of each row's cluster; every empty name is a cluster of its own."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(name or f"\0{place}", len(numbers)) for place, name in enumerate(clusters)], dtype=np.int64
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure for two orders, with an interval for their difference."""

    name: str
    live: float
    candidate: float
    difference: Interval
    """Interval of candidate - live."""
    compared: tuple[str, str] = ("live", "new")
    """Names of the orders to which ``live`` and ``candidate`` belong; one of them may be ``random``."""


@dataclass(frozen=True, slots=True)
class Check:
    """One condition for promotion. ``sentence`` describes the result with its numbers."""

    name: str
    passed: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A query's nDCG by both models."""

    query: str
    n_impressions: int
    live: float
    candidate: float
    share: float
    """This query's contribution to the total difference."""


@dataclass(frozen=True)
class GateVerdict:
    """Decision of the gate, with its reasons."""

    promoted: bool
    """True if every check passed."""
    checks: tuple[Check, ...]
    measured: tuple[Measured, ...]
    """The available ones of ``clicks nDCG``, ``clicks RR``, ``clicks nDCG, new over random``, ``clicks nDCG, live over
    random`` and ``judgements``."""
    losers: tuple[QueryChange, ...] = ()
    """Queries with the largest losses, worst first: of the clicks if there are any, else of the judgments."""
    winners: tuple[QueryChange, ...] = ()
    """Queries with the largest gains, best first, from the same source."""
    judged_losers: tuple[QueryChange, ...] = ()
    """Judged queries with the largest losses."""
    n_impressions: int = 0
    """Number of impressions compared."""
    n_clicks: int = 0
    """Number of clicks compared."""
    n_gone: int = 0
    """Number of shown documents that were ignored because they were deleted."""

    def with_check(self, check: Check) -> GateVerdict:
        """Return the verdict with one more condition."""
        return replace(self, promoted=self.promoted and check.passed, checks=(*self.checks, check))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences of the failed checks; of all checks if none failed."""
        return tuple(check.sentence for check in self.checks if check.passed == self.promoted)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-compatible values."""
        return {**asdict(self), "reasons": list(self.reasons)}


def enough(interval: Interval, what: str, config: GateConfig) -> Check:
    """Check that the effective number of clusters is large enough."""
    passed = interval.n_effective >= config.min_clusters
    sentence = f"{interval.n_clusters:,} {what}, equivalent to {interval.n_effective:.1f} with equal weight"
    if not passed:
        needed = np.ceil(config.min_clusters * interval.n_clusters / max(interval.n_effective, 1.0))
        sentence += f", are too few: {config.min_clusters:g} are needed, about {needed:,.0f} like those in this log"
    return Check("enough", passed, sentence)


def better(measured: Measured, config: GateConfig, days: float | None = None) -> Check:
    """Check that the lower bound of the difference is above the margin.

    If it is not, the sentence says which gain these clicks would show, and how long a log would show the gain that was
    found, given the length of this one in days.
    """
    change, passed = measured.difference, measured.difference.lower > config.margin
    sentence = f"{_named(measured, config)}; required: more than {config.margin:+.4f}"
    needed = None if passed else clusters_needed(change, config.margin, config.confidence, POWER)
    if not change.n_differing:
        sentence = f"{measured.name}: {measured.live:.4f} by both models, which rank all clicked documents the same"
    elif not passed:
        least = config.margin + detectable(change, config.confidence, POWER)
        sentence += f"; a gain of {least:+.4f} would be shown with probability {POWER:.0%}"
        if needed is not None and needed > change.n_clusters:
            sentence += f"; about {needed:,} people or queries are needed to show it, the log has {change.n_clusters:,}"
            if days:
                sentence += f" (about {needed * days / change.n_clusters:,.1f} days like these {days:,.1f})"
    return Check("better", passed, sentence)


def not_worse(measured: Measured, config: GateConfig) -> Check:
    """Check that the lower bound of the difference is within the tolerance."""
    passed = measured.difference.lower >= -config.tolerance
    return Check("not worse", passed, f"{_named(measured, config)}; allowed: a drop of at most {config.tolerance:g}")


def judged_within_tolerance(measured: Measured, config: GateConfig) -> Check:
    """Check that the mean over the judged queries is within the tolerance."""
    change = measured.difference
    interval = half_interval(change.standard_error, change.n_clusters)
    sentence = (
        f"{measured.name}: {measured.live:.4f} to {measured.candidate:.4f} over {change.n_clusters} queries "
        f"(difference ± {interval:.4f}, 95 % confidence); allowed: a drop of at most {config.tolerance:g}"
    )
    return Check("judgements", change.estimate >= -config.tolerance, sentence)


def newest_within_tolerance(measured: Sequence[Measured], config: GateConfig) -> Check:
    """Check that clicks nDCG, the first of the measures, has not fallen in the newest slice by more than the tolerance.

    Earlier periods outweigh it where preferences are judged on them too, and people may have changed their minds.
    """
    if not measured:
        return Check("newest", True, "the newest slice has no click")
    change = measured[0].difference.estimate
    sentence = f"in the newest slice, clicks nDCG changes by {change:+.4f}; allowed: a drop of at most"
    return Check("newest", change >= -config.tolerance, f"{sentence} {config.tolerance:g}")


def above_random(measured: Measured) -> Check:
    """Check that the new model is better than a random order of the shown documents."""
    bound = measured.difference.lower
    sentence = f"the new model beats a random order of the shown documents by at least {bound:.4f} nDCG; required: > 0"
    return Check("above random", bound > 0, sentence)


def believable(measured: Measured, config: GateConfig, unbiased: Measured | None = None) -> Check:
    """Check that by the weights the live order is better than a random one (for measured propensities: not worse).

    If it is not, the new model must be better on the lists that were shown in random order, where clicks need no
    weights. One standard error is enough there, because the weighted clicks must show the gain too.
    """
    change = measured.difference
    sentence = (
        f"by the weighted clicks, nDCG is {measured.candidate:.4f} for the live order "
        f"and {measured.live:.4f} for a random one"
    )
    if config.measured_weights and change.upper >= 0:
        return Check("believable", True, f"{sentence}; required: not worse than random")
    if not config.measured_weights and change.lower > 0:
        return Check("believable", True, f"{sentence}; required: better than random")
    if unbiased is not None and unbiased.difference.estimate > unbiased.difference.standard_error:
        sentence += (
            f"; {_named(unbiased, config)}, where clicks need no weights; required: more than a standard error, "
            f"{unbiased.difference.standard_error:.4f}"
        )
        return Check("believable", True, sentence)
    sentence += (
        ", so these clicks cannot tell orders apart: either nearly all documents of a first page are as attractive, or "
        "the propensities fall too steeply with rank; lists shown in random order tell which (--explore of `ssi serve`)"
    )
    return Check("believable", False, sentence)


def _named(measured: Measured, config: GateConfig) -> str:
    change = measured.difference
    return (
        f"{measured.name}: {measured.live:.4f} to {measured.candidate:.4f}, a change of {change.estimate:+.4f}, at "
        f"least {change.lower:+.4f} with {100 * config.confidence:.4g} % confidence"
    )


def query_changes(
    query: Sequence[str], live: Float64, candidate: Float64, denominator: Float64, n: int
) -> tuple[tuple[QueryChange, ...], tuple[QueryChange, ...]]:
    """Return the queries with the largest losses and those with the largest gains; each text once, ties by text."""
    texts, number = np.unique(np.asarray(query, dtype=object).astype(str), return_inverse=True)
    count = np.bincount(number)
    old, new, whole = (sums_by(number, values) for values in (live, candidate, denominator))
    share = (new - old) / whole.sum()
    order = np.argsort(share, kind="stable")

    def change(i: int) -> QueryChange:
        return QueryChange(
            str(texts[i]), int(count[i]), float(old[i] / whole[i]), float(new[i] / whole[i]), float(share[i])
        )

    losers = [change(i) for i in order[:n].tolist() if share[i] < 0]
    winners = [change(i) for i in np.argsort(-share, kind="stable")[:n].tolist() if share[i] > 0]
    return tuple(losers), tuple(winners)


def decide(
    clicks: ShownLists | None,
    judged: JudgedQueries | None,
    propensities: Sequence[float] | None,
    rng: np.random.Generator,
    config: GateConfig | None = None,
    *,
    refreshes: bool = False,
    days: float | None = None,
) -> GateVerdict:
    """Decide whether the new model replaces the live model.

    With clicks, these conditions must hold: enough people; the lower bound of the difference in nDCG above the margin,
    and that of the difference in RR above - tolerance; the comparisons with random order; and the mean of the judged
    queries, if given, not worse by more than the tolerance (they are the queries that the team chose to protect, not a
    sample). Without any click, the lower bound of the judged difference must be above the margin.

    Parameters
    ----------
    clicks
        The newest slice of the log, on which neither model was trained.
    judged
        Values of judged queries.
    propensities
        p(1), p(2), ..., up to a factor; the last one applies to deeper ranks. None: all clicks have equal weight, which
        favours the live model.
    rng
        Draws the resamples: of people for the clicks, of queries for the judgments.
    config
        Limits and confidence.
    refreshes
        Whether the new model only renews the preferences that the live model has for repeated queries. Then nDCG need
        not rise: the lower bound of the difference must be above - tolerance.
    days
        Length of the newest slice in days, for saying how long a log would have to be; None: unknown.

    Raises
    ------
    ConfigError
        If propensities are not finite and positive.
    InputError
        If an impression shows two documents at one rank.

    Notes
    -----
    Source: Joachims, Swaminathan, Schnabel 2017 (weights); Agarwal et al. 2019 (additive measures); Swaminathan,
    Joachims 2015 (dividing by the sum of the weights).
    """
    config = config or GateConfig()
    lists = ClickedLists(clicks, propensities, config.max_weight) if clicks is not None else None
    if lists is None or not lists.n_clicks:
        return _by_judgements(judged, rng, config)
    ideal, weight = lists.ideal, lists.per_impression(lists.weight)
    gains = {name: lists.gains(getattr(lists, name), lists.discount) for name in ("live", "candidate")}
    # The mean over all orders of a list: with equal scores, documents share the mean discount of all ranks.
    gains["random"] = lists.gains(np.zeros(len(lists.rank)), lists.discount)
    live_rr, new_rr = (lists.gains(scores, lists.reciprocal) for scores in (lists.live, lists.candidate))

    cluster = lists.cluster
    ndcg = _compared("clicks nDCG", (gains["candidate"], gains["live"], ideal), cluster, rng, config)
    rr = _compared("clicks RR", (new_rr, live_rr, weight), cluster, rng, config)
    sums = gains["candidate"], gains["random"], ideal
    new_over_random = _compared("clicks nDCG, new over random", sums, cluster, rng, config, ("random", "new"))
    live_over_random = merit_of_live(lists, rng, config)
    unbiased = _on_shuffled(lists, rng, config)
    checks = [enough(ndcg.difference, "people (or sessions) with clicks", config)]
    if checks[0].passed:
        gain = not_worse(ndcg, config) if refreshes else better(ndcg, config, days)
        checks += [gain, not_worse(rr, config)]
        checks += [above_random(new_over_random), believable(live_over_random, config, unbiased)]
    measured = [ndcg, rr, *([] if unbiased is None else [unbiased]), new_over_random, live_over_random]
    losers, winners = query_changes(lists.query, gains["live"], gains["candidate"], ideal, config.n_changes)
    judged_losers: tuple[QueryChange, ...] = ()
    if judged is not None and len(judged.query):
        on_judgements, judged_losers, _ = _judged(judged, rng, config)
        measured.append(on_judgements)
        checks.append(judged_within_tolerance(on_judgements, config))
    return GateVerdict(
        all(check.passed for check in checks),
        tuple(checks),
        tuple(measured),
        losers,
        winners,
        judged_losers,
        lists.n,
        lists.n_clicks,
        lists.n_gone,
    )


def merit_of_live(lists: ClickedLists, rng: np.random.Generator, config: GateConfig) -> Measured:
    """Return the lead of the live order over a random one by the weights, which `believable` checks.

    The weights are those given, not clipped. Clipping weights that are far too steep can leave the live order some
    merit.
    """
    whole = lists.whole_weight
    live, random, ideal = (
        lists.gains(scores, lists.discount, whole) for scores in (lists.live, np.zeros(len(lists.rank)), whole)
    )
    sums = live, random, ideal
    return _compared("clicks nDCG, live over random", sums, lists.cluster, rng, config, ("random", "live"))


def _on_shuffled(lists: ClickedLists, rng: np.random.Generator, config: GateConfig) -> Measured | None:
    """Return the comparison on lists that were shown in random order; None if they have no click."""
    weight = lists.unbiased_weight
    if not weight.any():
        return None
    sums = [lists.gains(scores, lists.discount, weight) for scores in (lists.candidate, lists.live, weight)]
    return _compared("clicks nDCG, shuffled lists", (sums[0], sums[1], sums[2]), lists.cluster, rng, config)


def _compared(
    name: str,
    sums: tuple[Float64, Float64, Float64],
    cluster: Int64,
    rng: np.random.Generator,
    config: GateConfig,
    compared: tuple[str, str] = ("live", "new"),
) -> Measured:
    """Return the measure of two orders from their (candidate, live, best) sums per impression or query."""
    new, old, denominator = sums
    interval = ratio_interval(
        new - old, denominator, cluster, rng, confidence=config.confidence, resamples=config.resamples
    )
    total = denominator.sum()
    return Measured(name, float(old.sum() / total), float(new.sum() / total), interval, compared)


def _by_judgements(judged: JudgedQueries | None, rng: np.random.Generator, config: GateConfig) -> GateVerdict:
    if judged is None or not len(judged.query):
        nothing = Check("enough", False, "there are neither clicks nor judged queries for comparing the models")
        return GateVerdict(False, (nothing,), ())
    measured, losers, winners = _judged(judged, rng, config)
    checks = [enough(measured.difference, "judged queries", config)]
    if checks[0].passed:
        checks.append(better(measured, config))
    return GateVerdict(all(check.passed for check in checks), tuple(checks), (measured,), losers, winners, losers)


def _judged(
    judged: JudgedQueries, rng: np.random.Generator, config: GateConfig
) -> tuple[Measured, tuple[QueryChange, ...], tuple[QueryChange, ...]]:
    ones = np.ones(len(judged.query))
    sums = judged.candidate, judged.live, ones
    measured = _compared("judgements", sums, np.arange(len(ones)), rng, config)
    return measured, *query_changes(judged.query, judged.live, judged.candidate, ones, config.n_changes)


MEASURE, DEPTH = "nDCG@10", 10


LIVE, NEW = 0, 1
"""Positions of the models in a `RankedList`."""
