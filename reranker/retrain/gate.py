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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.clicks.propensities import Propensities
from reranker.clicks.schema import Impression
from reranker.config import check_ranges
from reranker.engines.bodies import candidate_body, fill_template
from reranker.engines.protocol import Engine
from reranker.engines.vectors import QueryVectors
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation import evaluate_run
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.progress import Progress, no_progress
from reranker.records import Hit
from reranker.rerank.candidates import encode_query, score_vectors
from reranker.rerank.ranking import blend, default_template, final_order, kept_in_place, preference_of, why_not
from reranker.rerank.signals import Signal, added
from reranker.text.rows import stack_rows


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What a model must show to go live."""

    margin: float = 0.0
    """The lower bound of the difference (candidate - live) in nDCG must be above it."""
    confidence: float = 0.95
    """Of each one-sided bound."""
    tolerance: float = 0.01
    """How far the clicks' reciprocal rank (its lower bound) and the nDCG of judged queries (its mean) may fall."""
    max_weight: float = 10.0
    """Most that a click may count, in clicks at the best examined rank."""
    min_clusters: float = 30.0
    """Least effective number of people (or sessions), or of judged queries where there are no clicks."""
    measured_weights: bool = False
    """The propensities come from lists shown in random order. Only then may the live order be no better than random."""
    resamples: int = 1_999
    n_changes: int = 20
    """Queries listed that lost most, and that gained most."""

    def __post_init__(self) -> None:
        check_ranges(
            self, margin="[0, 1)", confidence="[0.5, 1)", tolerance="[0, 1)", max_weight="[1, inf)",
            min_clusters="[2, inf)", resamples="[100, inf)", n_changes="[0, inf)",
        )  # fmt: skip


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


MAX_GROUPS = 5_000
"""More clusters than this are joined at random into so many groups, which are independent as well."""

_BATCH_CELLS = 500_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with two one-sided bounds."""

    estimate: float
    """Sum of the numerators / sum of the denominators."""
    lower: float
    upper: float
    """Each is passed by the true value with probability 1 - confidence."""
    standard_error: float
    n_clusters: int
    """Clusters with a denominator above 0."""
    n_effective: float
    """Kish's effective number of clusters, (sum D)² / sum D²: n_clusters where all weigh the same, 1 where a single one
    has all the weight."""
    n_differing: int
    """Clusters whose numerator is not 0."""


def ratio_interval(
    numerator: Float64,
    denominator: Float64,
    cluster: Int64,
    rng: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 1_999,
) -> Interval:
    """Return the interval of R = sum(numerator) / sum(denominator) by a bootstrap over clusters.

    Clusters are drawn with replacement. Each bound is the more cautious of two: the percentile bound, the quantile of
    R* itself; and the studentised one, R - s * (quantile of t* = (R* - R) / s*), s* the linearised standard error of
    the resample. Where few clusters carry most of the weight, the first is too narrow for values skewed to one side
    and the second for those skewed to the other, or for values that are nearly all 0.

    All three arrays are (n,), one value an observation, and denominators at least 0; ``confidence`` is that of each
    bound by itself.

    `ShapeMismatch` if the lengths differ; `ConfigError` if the confidence is not between 0.5 and 1.

    Source: Efron and Tibshirani 1993, ch. 12 (bootstrap-t); Cochran 1977, ch. 6 (error of a ratio); Kish 1965.
    """
    if not numerator.shape == denominator.shape == cluster.shape or numerator.ndim != 1:
        raise ShapeMismatch(
            f"numerators, denominators and clusters have shapes {numerator.shape}, {denominator.shape} and "
            f"{cluster.shape}: one value an observation in each"
        )
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is {confidence}: it must be at least 0.5 and below 1")
    numbers = np.unique(cluster, return_inverse=True)[1]
    N, D = sums_by(numbers, numerator), sums_by(numbers, denominator)
    N, D = N[D > 0], D[D > 0]
    if not len(D):
        return Interval(0.0, 0.0, 0.0, 0.0, 0, 0.0, 0)
    sizes = (len(D), float(D.sum() ** 2 / (D @ D)), int(np.count_nonzero(N)))
    if len(D) > MAX_GROUPS:
        group = rng.permutation(len(D)) % MAX_GROUPS
        N, D = sums_by(group, N), sums_by(group, D)
    estimate = float(N.sum() / D.sum())
    residual = N - estimate * D  # of sum 0: a resample's ratio of these is its distance from the estimate
    error = float(_ratio(_moments(residual, D).sum(axis=0))[1])
    if error == 0:
        return Interval(estimate, estimate, estimate, 0.0, *sizes)
    gap, t = _resampled(residual, D, rng, resamples)
    # "higher" and "lower" keep infinite t* (resamples of a single value) whole instead of interpolating between them.
    high, low = np.quantile(t, confidence, method="higher"), np.quantile(t, 1 - confidence, method="lower")
    lower = estimate + min(-error * float(high), float(np.quantile(gap, 1 - confidence)))
    upper = estimate + max(-error * float(low), float(np.quantile(gap, confidence)))
    return Interval(estimate, lower, upper, error, *sizes)


def clusters_needed(interval: Interval, margin: float, confidence: float = 0.95, power: float = 0.8) -> int | None:
    """Return how many clusters would show the estimated difference to be above the margin; None where it is not.

    K (z_confidence + z_power)² s² / (estimate - margin)²: the usual normal approximation.
    """
    from scipy import stats

    gap = interval.estimate - margin
    if gap <= 0:
        return None
    z = float(stats.norm.ppf(confidence) + stats.norm.ppf(power))
    return max(1, int(np.ceil(interval.n_clusters * (z * interval.standard_error / gap) ** 2)))


def sums_by(group: Int64, values: Float64, n: int = 0) -> Float64:
    """Return (max(n, largest group + 1),) sums of the values of each group."""
    sums: Float64 = np.bincount(group, values, minlength=n).astype(np.float64, copy=False)
    return sums


def _moments(N: Float64, D: Float64) -> Float64:
    """Return (n, 6): 1, N, D, N², N D and D² of each cluster; their sums say ratio and error."""
    return np.column_stack([np.ones(len(D)), N, D, N * N, N * D, D * D])


def _ratio(sums: Float64) -> tuple[Float64, Float64]:
    """Return R = N/D and its linearised error, sqrt(K/(K-1) sum (N_k - R D_k)²) / D, of sums (..., 6)."""
    n, N, D, NN, ND, DD = np.moveaxis(sums, -1, 0)
    R = N / D
    squares = np.maximum(NN - 2 * R * ND + R * R * DD, 0.0)
    return R, np.sqrt(squares * n / np.maximum(n - 1, 1)) / D


def _resampled(residual: Float64, D: Float64, rng: np.random.Generator, resamples: int) -> tuple[Float64, Float64]:
    """Return R* - R and (R* - R) / s* of each resample; the latter 0 where R* is R, infinite where s* is 0."""
    moments, n = _moments(residual, D), len(D)
    batch = max(1, _BATCH_CELLS // n)
    parts = []
    for first in range(0, resamples, batch):
        rows = min(batch, resamples - first)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        parts.append(np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n) @ moments)
    sums = np.concatenate(parts)
    gap, error = _ratio(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        return gap, np.where(gap == 0, 0.0, gap / error)


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
        self.query = [shown.query[int(i)] for i in kept]
        self.cluster = _cluster_numbers([shown.cluster[int(i)] for i in kept])
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
class Verdict:
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


def kept(measured: Measured, config: GateConfig) -> Check:
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
) -> Verdict:
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
        checks.append(kept(on_judgements, config))
    return Verdict(
        all(check.passed for check in checks), tuple(checks), tuple(measured), losers, winners, judged_losers,
        lists.n, lists.n_clicks, lists.n_gone,
    )  # fmt: skip


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
    name: str, sums: tuple[Float64, Float64, Float64], cluster: Int64, rng: np.random.Generator, config: GateConfig,
    compared: tuple[str, str] = ("live", "new"),
) -> Measured:  # fmt: skip
    """Return the measure of (candidate, live, best) sums per impression or query, of the orders ``compared``."""
    new, old, denominator = sums
    interval = ratio_interval(
        new - old, denominator, cluster, rng, confidence=config.confidence, resamples=config.resamples
    )
    total = denominator.sum()
    return Measured(name, float(old.sum() / total), float(new.sum() / total), interval, compared)


def _by_judgements(judged: JudgedQueries | None, rng: np.random.Generator, config: GateConfig) -> Verdict:
    if judged is None or not len(judged.query):
        nothing = Check("enough", False, "there is neither a click nor a judged query to compare the models on")
        return Verdict(False, (nothing,), ())
    measured, losers, winners = _judged(judged, rng, config)
    checks = [enough(measured.difference, "judged queries", config)]
    if checks[0].passed:
        checks.append(better(measured, config))
    return Verdict(all(check.passed for check in checks), tuple(checks), (measured,), losers, winners, losers)


def _judged(
    judged: JudgedQueries, rng: np.random.Generator, config: GateConfig
) -> tuple[Measured, tuple[QueryChange, ...], tuple[QueryChange, ...]]:
    ones = np.ones(len(judged.query))
    sums = judged.candidate, judged.live, ones
    measured = _compared("judgements", sums, np.arange(len(ones)), rng, config)
    return measured, *query_changes(judged.query, judged.live, judged.candidate, ones, config.n_changes)


MEASURE, DEPTH = "nDCG@10", 10
MAX_IDS = 1_000
"""Documents of one request; a query shown with more of them takes several."""
BATCH = 512
TOP = 3
LIVE, NEW = 0, 1
"""Places of the models in a `RankedList`."""


class ServedModel(NamedTuple):
    """What is or would be served: a model (None: the engine's own order) and its weight beside the engine's score.

    ``signals`` count with both.
    """

    model: RankingModel | None
    alpha: float = 0.0
    signals: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class RankedList:
    """The documents of one query that the engine still finds, and their ranks.

    ``documents`` are in first-stage order; ``ranks``, (n_models, n) int64, are the 1-based ranks in each model's order
    of just these documents.
    """

    documents: tuple[str, ...]
    ranks: Int64

    def top(self, number: int, depth: int = TOP) -> list[str]:
        """Return the first documents of one model's order."""
        return [self.documents[place] for place in np.argsort(self.ranks[number])[:depth].tolist()]


@dataclass(frozen=True)
class Comparison:
    """What the comparison gives.

    ``lists`` hold the shown documents of each query of the newest slice, ranked by the live model, the new one and
    those of the study; ``differences`` are of nDCG, new - live, of every query whose value changed; ``study`` gives
    numbers of preferences learned from, with the difference in nDCG to the live model.

    ``changes`` say how the new order differs from the live one: of the ``queries`` with at least two documents, the
    share in which any document moves (``reordered``) and in which another one is first (``new_first``), and the mean
    share of the first three documents that stay among the first three (``mean_overlap``).
    """

    verdict: Verdict
    lists: Mapping[str, RankedList]
    differences: tuple[float, ...]
    changes: Mapping[str, float]
    study: Sequence[tuple[int, Interval]] = ()


def compare(
    scores: ServingScores,
    newest: Sequence[Impression],
    propensities: Propensities | None,
    judged: Mapping[str, Mapping[str, float]],
    config: GateConfig,
    *,
    window: int,
    seed: int,
    study: Sequence[int] = (),
) -> Comparison:
    """Return the verdict on the second model of ``scores`` against the first.

    Its models are the live one, the new one, then one for each number of preferences in ``study``. ``judged`` gives
    query text → document id → grade, ``window`` the hits reranked for a judged query; ``seed`` draws the resamples.
    """
    shown: dict[str, dict[str, None]] = {}
    for impression in newest:
        shown.setdefault(impression.query, {}).update(dict.fromkeys(hit.document for hit in impression.shown))
    lists = scores.rank_shown(shown)
    by_rank = None if propensities is None else propensities.by_rank
    config = weighing(config, propensities)
    on_judgements = _judged_queries(scores.rank_window(judged, window), judged) if judged else None

    def verdict_on(number: int, judgements: JudgedQueries | None, settings: GateConfig) -> Verdict:
        served = [_shown_scores(newest, lists, which) for which in (LIVE, number)]
        rng = np.random.default_rng([seed, 2])
        return decide(shown_lists(newest, *served), judgements, by_rank, rng, settings)

    # All queries for the picture; the verdict keeps those that changed most.
    n = config.n_changes
    whole = verdict_on(NEW, on_judgements, replace(config, n_changes=len(shown) + len(judged)))
    points = []
    for place, preferences in enumerate(study):
        measured = verdict_on(NEW + 1 + place, None, config).measured
        if measured:
            points.append((preferences, measured[0].difference))
    verdict = replace(whole, losers=whole.losers[:n], winners=whole.winners[:n], judged_losers=whole.judged_losers[:n])
    differences = tuple(change.candidate - change.live for change in (*whole.losers, *whole.winners))
    return Comparison(verdict, lists, differences, _changes(lists), points)


def weighing(config: GateConfig, propensities: Propensities | None) -> GateConfig:
    """Return the gate's settings with whether the propensities were measured."""
    return replace(config, measured_weights=propensities is not None and propensities.method == "randomised")


def _shown_scores(newest: Sequence[Impression], lists: Mapping[str, RankedList], number: int) -> list[list[float]]:
    """Return a score for each shown document of each impression: its rank, negative; NaN where it is gone."""
    by_query = {
        query: dict(zip(ranked.documents, (-ranked.ranks[number]).tolist(), strict=True))
        for query, ranked in lists.items()
    }
    return [
        [float(by_query[impression.query].get(shown.document, np.nan)) for shown in impression.shown]
        for impression in newest
    ]


def _judged_queries(lists: Mapping[str, RankedList], judged: Mapping[str, Mapping[str, float]]) -> JudgedQueries:
    """Return nDCG@10 of the judged queries by the live and by the new order."""
    names = {query: str(number) for number, query in enumerate(judged)}
    qrels = {names[query]: dict(grades) for query, grades in judged.items()}
    values = []
    for number in (LIVE, NEW):
        run = {names[query]: ranked.top(number, DEPTH) for query, ranked in lists.items()}
        by_name = evaluate_run(qrels, run, [MEASURE])[MEASURE]
        values.append(np.array([by_name[names[query]] for query in judged]))
    return JudgedQueries(tuple(judged), values[0], values[1])


def _changes(lists: Mapping[str, RankedList]) -> dict[str, float]:
    compared = [ranked for ranked in lists.values() if len(ranked.documents) > 1]
    if not compared:
        return {"queries": 0, "reordered": 0.0, "new_first": 0.0, "mean_overlap": 1.0}
    reordered = [bool((ranked.ranks[LIVE] != ranked.ranks[NEW]).any()) for ranked in compared]
    first = [ranked.top(LIVE, 1) != ranked.top(NEW, 1) for ranked in compared]
    overlap = []
    for ranked in compared:
        depth = min(TOP, len(ranked.documents))
        overlap.append(len({*ranked.top(LIVE, depth)} & {*ranked.top(NEW, depth)}) / depth)
    shares: dict[str, list[Any]] = {"reordered": reordered, "new_first": first, "mean_overlap": overlap}
    return {"queries": len(compared), **{name: float(np.mean(values)) for name, values in shares.items()}}


class EncodedPool:
    """Vectors and words of documents by id, encoded once; about 4 N bytes and 8 bytes a word each."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._row_of: dict[str, int] = {}
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._parts: list[tuple[Float32, sp.csr_matrix, Bool]] = []

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, documents: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take over (id, source) of documents; those known already are passed over."""
        for identifier, source in documents:
            if identifier not in self._row_of:
                self._row_of[identifier] = len(self._row_of)
                self._waiting[identifier] = source
        if len(self._waiting) >= BATCH:
            self._encode()

    def _encode(self) -> None:
        encoded = self._encoder.encode(list(self._waiting.values()), list(self._waiting))
        self._parts.append((encoded.vectors, encoded.rows, encoded.has_text))
        self._waiting = {}

    def finish(self) -> None:
        """Encode what waits and put all together; to be called before `score`."""
        if self._waiting:
            self._encode()
        if self._parts:
            vectors, rows, has_text = zip(*self._parts, strict=True)
            self._parts = [(np.ascontiguousarray(np.concatenate(vectors)), stack_rows(rows), np.concatenate(has_text))]

    def score(self, query: QueryVectors, documents: Sequence[str]) -> Float64:
        """Return f(q, d) of some documents, (n,) float64; NaN for one without text."""
        scores = np.full(len(documents), np.nan)
        if not self._parts:
            return scores
        ((vectors, rows, has_text),) = self._parts
        places = np.array([self._row_of[document] for document in documents], dtype=np.int64)
        known = np.flatnonzero(has_text[places])
        scores[known] = score_vectors(query, places[known], vectors, rows)
        scores[~np.isfinite(scores)] = np.nan
        return scores


@dataclass
class ServingScores:
    """Ranks documents as some models would be served, over one index.

    `ConfigError` if the body's hits are not reranked, or are found by other means than its ``query``.
    """

    engine: Engine
    index: str
    """Index or alias."""
    models: Sequence[ServedModel]
    """At least one is no engine's own order; all are searched by one body, so their text fields must be the same where
    none is given."""
    body: Mapping[str, Any] | None = None
    """The team's search body with ``{{query}}`` in it; None searches the models' own text fields."""
    progress: Progress = no_progress
    """Gets the queries that `rank_shown` has scored."""
    pools: dict[str, EncodedPool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        models = [served.model for served in self.models if served.model is not None]
        self.template = dict(self.body) if self.body is not None else default_template(models[-1].encoder.view)
        check_body(self.template)
        for model in models:
            self.pools.setdefault(model.encoder_id, EncodedPool(model.encoder))
        self._fields = sorted({spec.path for model in models for spec in model.encoder.view.fields})
        requests = [signal.request() for served in self.models for signal in served.signals]
        self._doc_values = list({request["field"]: request for request in requests}.values())

    def rank_shown(self, shown: Mapping[str, Iterable[str]]) -> dict[str, RankedList]:
        """Return, for each query, the documents shown for it that the body still finds, ranked by all models."""
        return self._ranked(
            shown, lambda query: self._search_among(query, list(dict.fromkeys(shown[query]))), self.progress
        )

    def rank_window(self, queries: Iterable[str], window: int) -> dict[str, RankedList]:
        """Return, for each query, the engine's first ``window`` documents, ranked by all models."""
        return self._ranked(queries, lambda query: self._search(self.template, query, window), no_progress)

    def _ranked(
        self, queries: Iterable[str], search: Callable[[str], Sequence[Hit]], progress: Progress
    ) -> dict[str, RankedList]:
        texts = list(dict.fromkeys(queries))
        first_stages = {}
        for number, query in enumerate(texts):
            first_stages[query] = self._first_stage(query, search(query))
            progress(number + 1, len(texts))
        for pool in self.pools.values():
            pool.finish()
        return {
            query: RankedList(
                stage[0], np.stack([self._ranks(number, query, *stage) for number in range(len(self.models))])
            )
            for query, stage in first_stages.items()
        }

    def _search_among(self, query: str, documents: list[str]) -> Sequence[Hit]:
        hits: list[Hit] = []
        for first in range(0, len(documents), MAX_IDS):
            part = documents[first : first + MAX_IDS]
            hits += self._search(among(self.template, part), query, len(part))
        if len(documents) > MAX_IDS:
            hits.sort(key=lambda hit: -(hit.score or 0.0))
        return hits

    def _search(self, template: Mapping[str, Any], query: str, size: int) -> Sequence[Hit]:
        body = candidate_body(fill_template(template, query), size, self._fields, answers=False)
        if self._doc_values:
            body["docvalue_fields"] = self._doc_values
        return self.engine.search(self.index, body, preference=preference_of(query)).hits

    def _first_stage(self, query: str, hits: Sequence[Hit]) -> tuple[tuple[str, ...], Float64, Bool, Float64]:
        """Return ids in the engine's order, its scores, which must not move, and what each model's signals add."""
        first = {hit.id: hit for hit in reversed(hits)}
        once = [hit for hit in hits if first[hit.id] is hit]
        for pool in self.pools.values():
            pool.add((hit.id, hit.source) for hit in once)
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in once], dtype=np.float64)
        kept = kept_in_place(once, fill_template(self.template, query), 0)
        signals = np.array([added(served.signals, once) for served in self.models])
        return tuple(hit.id for hit in once), lexical, kept, signals

    def _ranks(
        self, number: int, query: str, ids: tuple[str, ...], lexical: Float64, kept: Bool, signals: Float64
    ) -> Int64:
        """Return the 1-based rank of each document in the order of one of the models."""
        n, served = len(ids), self.models[number]
        order = np.arange(n, dtype=np.int64)
        if served.model is not None and n:
            encoded = encode_query(served.model, query)
            if not encoded.is_empty:
                scores = self.pools[served.model.encoder_id].score(encoded.vectors, ids)
                order = final_order(blend(scores, lexical, served.alpha, encoded.scale, signals[number]), kept)
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.arange(1, n + 1)
        return ranks


def among(template: Mapping[str, Any], documents: Sequence[str]) -> dict[str, Any]:
    """Return the body restricted to some documents; the scores stay those of its query (pure)."""
    query = template.get("query") or {"match_all": {}}
    return {**template, "query": {"bool": {"must": [query], "filter": [{"ids": {"values": list(documents)}}]}}}


def check_body(template: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a body whose shown documents cannot be scored one by one."""
    reason = why_not(template)
    if reason:
        raise ConfigError(f"{reason}: such a search is not reranked, so there is no model to retrain for it")
    others = sorted({"knn", "retriever", "rank"} & set(template))
    if others:
        raise ConfigError(
            f"the body finds documents by {', '.join(others)}: retraining scores the shown documents by the body's "
            "`query` alone; give a body with a `query` only (--body)"
        )
