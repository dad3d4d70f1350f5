"""The gate's answer: what was measured, the conditions of going live, and the queries that changed most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reranker.retrain.gate_input import GateConfig
from reranker.retrain.resampling import Interval, Values, clusters_needed, sums_by


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure of both models; ``difference`` is of candidate - live."""

    name: str
    live: float
    candidate: float
    difference: Interval


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
    """What the gate says and why.

    Parameters
    ----------
    promoted : bool
        True where every check passed.
    checks : tuple of Check
    measured : tuple of Measured
        ``clicks nDCG``, ``clicks RR``, ``clicks nDCG, new over random``, ``clicks nDCG, live over random`` and
        ``judgements``: those that could be. In the third and fourth, ``live`` is the random order's value.
    losers, winners : tuple of QueryChange
        Those that changed most, worst (best) first: of the clicks where there are any, else of the judgements.
    judged_losers : tuple of QueryChange
        Judged queries that lost most.
    n_impressions, n_clicks, n_gone : int
        Impressions and clicks compared; shown documents left out since neither model has them.
    """

    promoted: bool
    checks: tuple[Check, ...]
    measured: tuple[Measured, ...]
    losers: tuple[QueryChange, ...] = ()
    winners: tuple[QueryChange, ...] = ()
    judged_losers: tuple[QueryChange, ...] = ()
    n_impressions: int = 0
    n_clicks: int = 0
    n_gone: int = 0

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of the checks that failed; of all, where none did."""
        return tuple(one.sentence for one in self.checks if one.passed == self.promoted)

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
    query: Sequence[str], live: Values, candidate: Values, denominator: Values, n: int
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
