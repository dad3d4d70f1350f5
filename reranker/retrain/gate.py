"""Whether a new model goes live: both models on what people clicked, and on what judges said.

The clicks were made on the live model's order, which puts its own favourites where people look: counted plainly, a
click log finds every other model worse. A click at shown rank r therefore counts 1/p(r), p(r) the chance that a person
looks there (Joachims, Swaminathan, Schnabel 2017), and is asked at which rank either model would have put the document
among those shown. With w the weights and λ the discount, a model's value is ::

    RR   = sum w / rank       / sum w                      over clicks
    nDCG = sum w / log2(1 + rank) / sum of the same in the order of w, the best that is possible

Both are additive over clicks, so that weighting makes them unbiased (the reciprocal rank of the *first* click is not),
and both are divided once, over all impressions. Dividing within each impression would cancel the weights wherever there
is one click, and bring the bias back; not dividing would leave a figure in units of p(1), which no click log tells.

Documents never shown are unknown, and both models rank the shown ones only, on the ranks at which they were shown.
Documents of equal score share their places' mean discount, which is what a random order of them has in the long run.

Weights that are too steep favour any change whatever. Click rates by rank, taken for propensities, are the worst case:
they credit all of the live order's merit to where people look, so that it seems no better than a random order, and a
worse model with a little merit seems better. Two comparisons with a random order of each list (exact, by its mean)
guard against that: the new model must beat it, and so must the live one, or the weights are not believed.

Ranks are those of serving: blended, as `reranker.rerank` blends. Each distinct query is sent once, as the team's body
with a filter on the documents that were shown for it: the scores are those of the body alone, since a filter adds
nothing. Documents are encoded from their stored text, once a document and encoder, so a model is scored before its
vectors are in any index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.clicks.schema import Impression
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.retrain.settings import GateConfig
from reranker.retrain.statistics import Interval, clusters_needed, ratio_interval, sums_by


@dataclass(frozen=True)
class ShownLists:
    """Whole impressions, and how both models score what was shown.

    Rows are the shown documents of all impressions one after the other; those of impression i are
    ``indptr[i]:indptr[i + 1]``.
    """

    indptr: Int64
    rank: Int64
    """(n_rows,) int64: 1-based place at which the document was shown; none twice in an impression."""
    clicked: Bool
    live: Float64
    candidate: Float64
    """(n_rows,) float64: Scores as they would be served, bigger is better. NaN in both: the document is gone, and is
    left out."""
    query: Sequence[str]
    cluster: Sequence[str]
    """Who searched: all impressions of a user (or session) carry the same value. Empty: nobody else's."""

    def __post_init__(self) -> None:
        n, rows = len(self.indptr) - 1, len(self.rank)
        lengths = {len(self.clicked), len(self.live), len(self.candidate)}
        if n < 0 or lengths != {rows} or self.indptr[-1] != rows or {len(self.query), len(self.cluster)} != {n}:
            raise ShapeMismatch(
                f"shown lists of {rows} ranks, {sorted(lengths)} clicks and scores, {len(self.query)} queries and "
                f"{len(self.cluster)} clusters do not fit an indptr of {n + 1}: one value a row, and one an impression"
            )
        if rows and self.rank.min() < 1:
            raise InputError(f"a document was shown at rank {self.rank.min()}: ranks count from 1")
        if np.any(np.isnan(self.live) != np.isnan(self.candidate)) or np.any(np.isinf([self.live, self.candidate])):
            raise InputError(
                "a shown document has a finite score by one model and none by the other: score the same documents "
                "with both, and give NaN in both for a document that is gone"
            )


@dataclass(frozen=True)
class JudgedQueries:
    """nDCG (or another measure) of judged queries by both models: ``query`` n str; ``live``, ``candidate`` (n,)."""

    query: Sequence[str]
    live: Float64
    candidate: Float64

    def __post_init__(self) -> None:
        if not len(self.query) == len(self.live) == len(self.candidate):
            raise ShapeMismatch(
                f"{len(self.query)} judged queries have {len(self.live)} live and {len(self.candidate)} new values: "
                f"give one each"
            )
        if not (np.isfinite(self.live).all() and np.isfinite(self.candidate).all()):
            raise InputError("a judged query has a value that is not finite: leave it out for both models")


def shown_lists(
    impressions: Sequence[Impression], live: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]
) -> ShownLists:
    """Return the arrays of impressions and of the scores of their shown documents, in the order shown.

    Impressions without a click are left out: they add 0 to numerators and denominators alike. An impression's cluster
    is its user, else its session.

    `ShapeMismatch` if an impression and its scores differ in length.
    """
    if not len(impressions) == len(live) == len(candidate):
        raise ShapeMismatch(f"{len(impressions)} impressions, {len(live)} and {len(candidate)} lists of scores")
    rows: list[tuple[int, bool, float, float]] = []
    lengths, queries, clusters = [0], [], []
    for impression, old, new in zip(impressions, live, candidate, strict=True):
        if not len(impression.shown) == len(old) == len(new):
            raise ShapeMismatch(
                f"impression {impression.query_id!r} has {len(impression.shown)} documents, {len(old)} live and "
                f"{len(new)} new scores: give one score a shown document"
            )
        if not impression.clicked:
            continue
        rows += [(d.rank, d.clicked, float(a), float(b)) for d, a, b in zip(impression.shown, old, new, strict=True)]
        lengths.append(len(impression.shown))
        queries.append(impression.query)
        user, session = impression.user, impression.session
        clusters.append(f"user {user}" if user else f"session {session}" if session else "")
    columns: Any = zip(*rows, strict=True) if rows else ((), (), (), ())
    types: tuple[Any, ...] = (np.int64, np.bool_, np.float64, np.float64)
    rank, clicked, by_live, by_new = (np.array(column, dtype=kind) for column, kind in zip(columns, types, strict=True))
    indptr = np.cumsum(lengths, dtype=np.int64)
    return ShownLists(indptr, rank, clicked, by_live, by_new, tuple(queries), tuple(clusters))


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
        judged_within_tolerance, self.owner = np.unique(owner[rows], return_inverse=True)
        self.n, self.rank = len(judged_within_tolerance), shown.rank[rows]
        twice = np.flatnonzero((np.diff(self.owner) == 0) & (np.diff(self.rank) == 0))
        if len(twice):
            query = shown.query[int(judged_within_tolerance[self.owner[twice[0]]])]
            raise InputError(f"query {query!r} shows two documents at rank {self.rank[twice[0]]}: give one a rank")
        self.live, self.candidate = shown.live[rows], shown.candidate[rows]
        clicked = shown.clicked[rows]
        self.n_clicks = int(clicked.sum())
        self.weight = np.where(clicked, click_weights(self.rank, propensities, max_weight), 0.0)
        self.whole_weight = np.where(clicked, click_weights(self.rank, propensities, np.inf), 0.0)
        self.query = [shown.query[int(i)] for i in judged_within_tolerance]
        self.cluster = _cluster_numbers([shown.cluster[int(i)] for i in judged_within_tolerance])
        self.reciprocal, self.discount = 1.0 / self.rank, 1.0 / np.log2(1.0 + self.rank)

    def per_impression(self, rows: Float64) -> Float64:
        """Return (n,) sums of (n_rows,) values."""
        return sums_by(self.owner, rows, self.n)

    def gains(self, scores: Float64, places: Float64, weight: Float64 | None = None) -> Float64:
        """Return, per impression, the weighted sum of what ``places`` are worth, taken in the order of the scores."""
        weight = self.weight if weight is None else weight
        order = np.lexsort((-scores, self.owner))
        new = np.ones(len(order), dtype=bool)  # first of documents of equal score
        new[1:] = (np.diff(self.owner) != 0) | (np.diff(scores[order]) != 0)
        tied = np.cumsum(new) - 1
        shared = sums_by(tied, places) / np.bincount(tied)
        return self.per_impression(weight[order] * shared[tied])

    @property
    def ideal(self) -> Float64:
        """Per impression, the best weighted sum of discounts."""
        return self.gains(self.weight, self.discount)


def click_weights(rank: Int64, propensities: Sequence[float] | None, max_weight: float) -> Float64:
    """Return min(max p / p(rank), max_weight): clicks count in units of one at the best examined rank.

    `ConfigError` if a propensity is not finite and positive.
    """
    if propensities is None:
        return np.ones(len(rank))
    p = np.asarray(propensities, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not np.all(np.isfinite(p) & (p > 0)):
        raise ConfigError(
            f"propensities are {list(propensities)}: give one or more finite values above 0, rank 1 first"
        )
    weights: Float64 = np.minimum(p.max() / p[np.minimum(rank, len(p)) - 1], max_weight)
    return weights


def _cluster_numbers(clusters: Sequence[str]) -> Int64:
    """Return a number for each cluster; an empty name is a cluster of its own."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(name or f"\0{place}", len(numbers)) for place, name in enumerate(clusters)], dtype=np.int64
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure of both models; ``difference`` is of candidate - live.

    ``compared`` names whose values ``live`` and ``candidate`` are, where one of the orders compared is a random one.
    """

    name: str
    live: float
    candidate: float
    difference: Interval
    compared: tuple[str, str] = ("live", "new")


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of going live, in a sentence with its numbers."""

    name: str
    passed: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A query's nDCG by both models; the ``share`` of all queries add up to the difference of the whole slice."""

    query: str
    n_impressions: int
    live: float
    candidate: float
    share: float


@dataclass(frozen=True)
class GateVerdict:
    """What the gate says and why."""

    promoted: bool
    """True where every check passed."""
    checks: tuple[Check, ...]
    measured: tuple[Measured, ...]
    """``clicks nDCG``, ``clicks RR``, ``clicks nDCG, new over random``, ``clicks nDCG, live over random`` and
    ``judgements``: those that could be."""
    losers: tuple[QueryChange, ...] = ()
    winners: tuple[QueryChange, ...] = ()
    """Those that changed most, worst (best) first: of the clicks where there are any, else of the judgements."""
    judged_losers: tuple[QueryChange, ...] = ()
    """Judged queries that lost most."""
    n_impressions: int = 0
    n_clicks: int = 0
    n_gone: int = 0
    """Impressions and clicks compared; shown documents left out since neither model has them."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of the checks that failed; of all, where none did."""
        return tuple(check.sentence for check in self.checks if check.passed == self.promoted)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {**asdict(self), "reasons": list(self.reasons)}


def enough(interval: Interval, what: str, config: GateConfig) -> Check:
    """Return whether enough clusters carry the weight."""
    passed = interval.n_effective >= config.min_clusters
    sentence = f"{interval.n_clusters:,} {what}, worth {interval.n_effective:.1f} that weigh the same"
    if not passed:
        needed = np.ceil(config.min_clusters * interval.n_clusters / max(interval.n_effective, 1.0))
        sentence += f", are too few: {config.min_clusters:g} are needed, about {needed:,.0f} of the kind in this log"
    return Check("enough", passed, sentence)


def better(measured: Measured, config: GateConfig) -> Check:
    """Return whether the difference's lower bound is above the margin."""
    change, passed = measured.difference, measured.difference.lower > config.margin
    sentence = f"{_named(measured, config)}, and must change by more than {config.margin:+.4f}"
    needed = None if passed else clusters_needed(change, config.margin, config.confidence)
    if not change.n_differing:
        sentence = f"{measured.name}: {measured.live:.4f} by both models, nothing that was clicked changes its place"
    elif needed is not None and needed > change.n_clusters:
        sentence += f"; about {needed:,} people or queries would tell, {change.n_clusters:,} are here"
    return Check("better", passed, sentence)


def not_worse(measured: Measured, config: GateConfig) -> Check:
    """Return whether the difference's lower bound is within the tolerance."""
    passed = measured.difference.lower >= -config.tolerance
    return Check("not worse", passed, f"{_named(measured, config)}, and may fall by {config.tolerance:g} at most")


def judged_within_tolerance(measured: Measured, config: GateConfig) -> Check:
    """Return whether the mean over the judged queries is within the tolerance."""
    change = measured.difference
    sentence = (
        f"{measured.name}: {measured.live:.4f} to {measured.candidate:.4f} over {change.n_clusters} queries "
        f"(± {change.standard_error:.4f}), and may fall by {config.tolerance:g} at most"
    )
    return Check("judgements", change.estimate >= -config.tolerance, sentence)


def above_random(measured: Measured) -> Check:
    """Return whether the candidate is above a random order of the shown documents."""
    bound = measured.difference.lower
    sentence = (
        f"the new model is above a random order of what was shown by at least {bound:.4f} nDCG, and must be above"
    )
    return Check("above random", bound > 0, sentence)


def believable(measured: Measured, config: GateConfig) -> Check:
    """Return whether the weights leave the live order better than a random one (measured ones: not worse)."""
    change = measured.difference
    sentence = (
        f"by the weighted clicks the live order has nDCG {measured.candidate:.4f} and a random one {measured.live:.4f}"
    )
    if config.measured_weights and change.upper >= 0:
        return Check("believable", True, f"{sentence}; it may not be worse than that")
    if not config.measured_weights and change.lower > 0:
        return Check("believable", True, f"{sentence}; it must be better than that")
    sentence += (
        ", which says that propensities fall too steeply with rank: any change would look better than it is; estimate "
        "them from lists shown in random order"
    )
    return Check("believable", False, sentence)


def _named(measured: Measured, config: GateConfig) -> str:
    change = measured.difference
    return (
        f"{measured.name}: {measured.live:.4f} to {measured.candidate:.4f}, a change of {change.estimate:+.4f}, at "
        f"least {change.lower:+.4f} with {config.confidence:.0%} confidence"
    )


def query_changes(
    query: Sequence[str], live: Float64, candidate: Float64, denominator: Float64, n: int
) -> tuple[tuple[QueryChange, ...], tuple[QueryChange, ...]]:
    """Return the queries that lost most, and those that gained most; each text once, ties by text."""
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
) -> GateVerdict:
    """Return whether the candidate goes live in place of the live model.

    With clicks: enough people; the lower bound of the difference in nDCG above the margin, that in RR above
    - tolerance; the random-order checks; and judged queries, where given, not worse by more than the tolerance on
    average (they are the queries that the team chose to protect, not a sample). Without a single click: the lower
    bound of the judged difference above the margin.

    Source: Joachims, Swaminathan, Schnabel 2017 (weights); Agarwal et al. 2019 (additive measures); Swaminathan,
    Joachims 2015 (dividing by the sum of the weights).

    `ConfigError` if propensities are not finite and positive; `InputError` if an impression shows two documents at one
    rank.

    The ``clicks`` are of the newest slice, which neither model was trained on. ``propensities`` are p(1), p(2), ..., up
    to a factor; the last one holds for deeper ranks. None: all clicks count alike, which favours the live model.
    ``rng`` draws the resamples: people for the clicks, queries for the judgements.
    """
    config = config or GateConfig()
    lists = ClickedLists(clicks, propensities, config.max_weight) if clicks is not None else None
    if lists is None or not lists.n_clicks:
        return _by_judgements(judged, rng, config)
    ideal, weight = lists.ideal, lists.per_impression(lists.weight)
    gains = {name: lists.gains(getattr(lists, name), lists.discount) for name in ("live", "candidate")}
    # The mean over all orders of a list: equal scores share all its places.
    gains["random"] = lists.gains(np.zeros(len(lists.rank)), lists.discount)
    live_rr, new_rr = (lists.gains(scores, lists.reciprocal) for scores in (lists.live, lists.candidate))

    cluster = lists.cluster
    ndcg = _compared("clicks nDCG", (gains["candidate"], gains["live"], ideal), cluster, rng, config)
    rr = _compared("clicks RR", (new_rr, live_rr, weight), cluster, rng, config)
    sums = gains["candidate"], gains["random"], ideal
    new_over_random = _compared("clicks nDCG, new over random", sums, cluster, rng, config, ("random", "new"))
    live_over_random = merit_of_live(lists, rng, config)
    checks = [enough(ndcg.difference, "people (or sessions) with clicks", config)]
    if checks[0].passed:
        checks += [better(ndcg, config), not_worse(rr, config)]
        checks += [above_random(new_over_random), believable(live_over_random, config)]
    measured = [ndcg, rr, new_over_random, live_over_random]
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
    """Return how far the live order is above a random one by the weights, which `believable` judges.

    The weights are as they were given: clipped, ones too steep by far may seem to leave the live order some merit.
    """
    whole = lists.whole_weight
    live, random, ideal = (
        lists.gains(scores, lists.discount, whole) for scores in (lists.live, np.zeros(len(lists.rank)), whole)
    )
    sums = live, random, ideal
    return _compared("clicks nDCG, live over random", sums, lists.cluster, rng, config, ("random", "live"))


def _compared(
    name: str,
    sums: tuple[Float64, Float64, Float64],
    cluster: Int64,
    rng: np.random.Generator,
    config: GateConfig,
    compared: tuple[str, str] = ("live", "new"),
) -> Measured:
    """Return the measure of (candidate, live, best) sums per impression or query, of the orders ``compared``."""
    new, old, denominator = sums
    interval = ratio_interval(
        new - old, denominator, cluster, rng, confidence=config.confidence, resamples=config.resamples
    )
    total = denominator.sum()
    return Measured(name, float(old.sum() / total), float(new.sum() / total), interval, compared)


def _by_judgements(judged: JudgedQueries | None, rng: np.random.Generator, config: GateConfig) -> GateVerdict:
    if judged is None or not len(judged.query):
        nothing = Check("enough", False, "there is neither a click nor a judged query to compare the models on")
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
"""Places of the models in a `RankedList`."""
