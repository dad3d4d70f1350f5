"""Alpha: fits the weight of the model relative to the engine's score, for an index, a body and a window.

In addition to alpha, the weights of signals are fitted, which are numeric fields of the documents, by coordinate search
on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from reranker.arrays import Bool, Float64
from reranker.engines.protocol import Engine
from reranker.evaluation import paired_test, standard_error
from reranker.progress import Progress
from reranker.releases import ControlRecord
from reranker.rerank.calibration.bodies import signature_of
from reranker.rerank.calibration.cross_validation import (
    N_FOLDS,
    Gain,
    best_row,
    check_number_of_topics,
    cross_validated,
    fold_of_topics,
    held_out_values,
    surest_row,
)
from reranker.rerank.calibration.kept import keep_entry, window_scale
from reranker.rerank.calibration.probability import FittedProbability, fit_probability
from reranker.rerank.calibration.rankings import Point, Rankings, rank_topics, values_of_run
from reranker.rerank.calibration.topics import Topic, qrels_of
from reranker.rerank.search import Reranker
from reranker.rerank.signals import Signal

ALPHAS: Final[tuple[float, ...]] = (0.0, *(2.0**k / (1.0 + 2.0**k) for k in np.arange(-6, 6.5, 0.5).tolist()), 1.0)
"""The grid of alphas. The odds alpha / (1 - alpha) increase by factors of √2, with both ends added. A boost can scale
the engine's score by any factor, so equal steps of alpha itself could miss the optimum."""
WEIGHTS: Final[tuple[float, ...]] = (0.0, *(2.0**k for k in range(-8, 2)))
"""The grid of signal weights. BM25 / c(q) and f are of the order of 1."""
MAX_ROUNDS: Final = 4
"""Maximum number of rounds over alpha and the weights. Most fits converge after two."""


@dataclass(frozen=True, slots=True)
class FittedSignal:
    """A signal with its fitted weight."""

    signal: Signal
    gain: Gain
    """Improvement over the same fit without this signal."""
    missing: float
    """Share of candidates without a number in this field, 0 to 1."""

    def to_json(self) -> dict[str, Any]:
        """Return the values that a release stores."""
        return {**self.signal.to_json(), "gain": self.gain.to_json(), "missing": self.missing}


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of `fit_alpha`."""

    alpha: float
    """The best alpha over all queries."""
    window_alpha: float
    """The best alpha if the engine's scores are divided by the highest one of the window, for similar bodies."""
    measure: str
    """The measure that is maximised: ``nDCG@10`` (judgments) or ``AP`` (links)."""
    n_queries: int
    engine: float
    """Mean of the measure in the engine's order."""
    fitted: float
    """Mean of the measure with ``alpha`` and the signals."""
    model: float
    """Mean of the measure with the model's score only."""
    held_out: float
    """Cross-validated mean (5 folds): each query is ranked with the alpha and weights fitted on the other folds. It is
    the value to expect on new queries, unless the model was trained on these."""
    held_out_error: float
    """Standard error of ``held_out``."""
    gain: float
    """``held_out`` - ``engine``."""
    gain_error: float
    """Standard error of ``gain``."""
    gain_p: float
    """p value of a paired t-test of ``gain``."""
    ceiling: float
    """Mean of the measure if the candidates were perfectly ordered: the upper bound for any reranker of this window."""
    zero_share: float
    """Share of candidates with q·d = 0. They matched words that the model's text view or analyzer does not cover."""
    n_fallbacks: int
    """Number of queries that cannot be reranked."""
    curve: tuple[tuple[float, float], ...]
    """Pairs (alpha, mean of the measure), without signals."""
    errors: tuple[float, ...]
    """Standard error of the gain over the engine for each point of ``curve``."""
    signals: tuple[FittedSignal, ...] = ()
    """All signals that were tried, including those with weight 0."""
    signals_gain: Gain | None = None
    """Improvement from all signals together over alpha without signals."""
    probability: FittedProbability | None = None
    """Probability of relevance as a function of f, if requested."""
    n_equal_scores: int = 0
    """Number of queries with several candidates to which the engine gave no two different scores that are finite."""
    runs: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Ids of each topic, best first, in the orders ``engine``, ``words`` and ``model`` of `OrderComparison`.

    Not part of the JSON.
    """
    held_out_from_training: bool | None = None
    """True if the model was trained on none of the queries, False if it was trained on some; None: unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; signals and probability only if requested. A p of NaN is null."""
        wanted = ("signals", "signals_gain", "probability", "runs")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in wanted}
        values["gain_p"] = None if math.isnan(self.gain_p) else self.gain_p
        if self.signals_gain is not None:
            values["signals"] = [signal.to_json() for signal in self.signals]
            values["signals_gain"] = self.signals_gain.to_json()
        if self.probability is not None:
            values["probability"] = self.probability.to_json()
        return values

    def gain_over_engine(self) -> Gain:
        """Return ``gain`` with its error and p value."""
        return Gain(self.gain, self.gain_error, self.gain_p)

    def weighted(self) -> tuple[Signal, ...]:
        """Return the signals with a weight above 0."""
        return tuple(found.signal for found in self.signals if found.signal.weight)


class BlendSearch:
    """Search for the best alpha and weights. The measure of each topic at each point is computed once and cached."""

    def __init__(self, rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], measure: str) -> None:
        self._rankings, self._qrels, self._measure = rankings, qrels, measure
        self._known: dict[Point, Float64] = {}

    def values(self, point: Point) -> Float64:
        """Return the measure of each topic at a point, (n_topics,) float64."""
        if point not in self._known:
            self._known[point] = values_of_run(self._qrels, self._rankings.run(point), self._measure)
        return self._known[point]

    def values_by_alpha(self, weights: Sequence[float]) -> Float64:
        """Return the measure of each topic with each of `ALPHAS` and these weights, (n_alphas, n_topics) float64."""
        return np.stack([self.values((alpha, *weights)) for alpha in ALPHAS])

    def best(self, topics: Bool) -> Point:
        """Return the best point for the topics of a mask, (n_topics,) bool, by coordinate search.

        It optimises alpha (`best_row`) and then each signal's weight (`surest_row`) with all other coordinates fixed,
        and repeats until none changes.
        """
        point: Point = (0.0,) * (1 + len(self._rankings.signals))
        for _ in range(MAX_ROUNDS):
            before = point
            for place in range(len(point)):
                points = [changed(point, place, value) for value in (WEIGHTS if place else ALPHAS)]
                rows = np.stack([self.values(one)[topics] for one in points])
                point = points[surest_row(rows) if place else best_row(rows)]
            if point == before or len(point) == 1:
                break
        return point

    def held_out(self, seed: int, without: int | None = None) -> Float64:
        """Return each topic's cross-validated value, (n_topics,) float64: at the best point of the other folds.

        ``seed`` assigns the folds. ``without`` is the number of a signal that is set to 0 in the points found, with the
        other coordinates unchanged.
        """

        def fitted(others: Bool) -> Float64:
            point = self.best(others)
            return self.values(point if without is None else changed(point, without + 1, 0.0))

        return held_out_values(len(self._rankings.windows), seed, fitted)

    def held_out_run(self, seed: int) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, at the best point of the other folds; ``seed`` as in `held_out`."""
        windows, part = self._rankings.windows, fold_of_topics(len(self._rankings.windows), seed)
        points = [self.best(part != fold) for fold in range(N_FOLDS)]
        return {str(number): window.ranked(points[part[number]]) for number, window in enumerate(windows)}


def changed(point: Point, place: int, value: float) -> Point:
    """Return a copy of the point with one value changed."""
    return (*point[:place], value, *point[place + 1 :])


def fit_alpha(
    reranker: Reranker,
    topics: Sequence[Topic],
    measure: str,
    body: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    signals: tuple[Signal, ...] = (),
    probability: bool = False,
) -> Fit:
    """Return the alpha with the largest mean measure, with an estimate of its gain on new queries.

    If several alphas have the same mean, the smallest wins, which is closest to the engine's order. If the gain over
    the engine's order is at most one standard error, alpha is 0, because a gain that small is found by chance and is as
    often lost on other queries.

    Parameters
    ----------
    reranker
        The reranker to calibrate.
    topics
        Queries with judgments, at least 2 * `N_FOLDS`.
    measure
        A measure of `reranker.evaluation`.
    body
        The search body template; None: the default one.
    seed
        Seed for assigning the folds of the cross-validation.
    progress
        Called after each query.
    signals
        Signals (`signals.typed`) whose weights are fitted together with alpha, by a stricter rule (`SIGNAL_ERRORS`).
    probability
        Also fit the probability of relevance as a function of f. Candidates without a judgment count as not relevant.

    Raises
    ------
    InputError
        If there are too few topics, or if no candidate has a number for a signal.
    EngineError
        If the engine does not answer.
    """
    check_number_of_topics(len(topics), "alpha")
    rankings = rank_topics(reranker, topics, body, progress, signals)
    qrels = qrels_of(topics)
    search = BlendSearch(rankings, qrels, measure)
    nothing = (0.0,) * len(signals)
    values = search.values_by_alpha(nothing)
    means = values.mean(axis=1)
    best = search.best(np.ones(len(topics), dtype=bool))
    held_out = search.held_out(seed)
    test = paired_test(held_out, values[0])
    return Fit(
        alpha=best[0],
        window_alpha=_window_alpha(rankings, qrels, measure, best[1:]),
        measure=measure,
        n_queries=len(topics),
        engine=float(means[0]),
        fitted=float(search.values(best).mean()),
        model=float(means[-1]),
        held_out=float(held_out.mean()),
        held_out_error=standard_error(held_out),
        gain=test.difference,
        gain_error=test.standard_error,
        gain_p=test.p_t_test,
        ceiling=float(values_of_run(qrels, rankings.perfect, measure).mean()),
        zero_share=rankings.n_zero / rankings.n_scored if rankings.n_scored else 0.0,
        n_fallbacks=rankings.n_fallbacks,
        n_equal_scores=rankings.n_equal_scores,
        curve=tuple(zip(ALPHAS, means.tolist(), strict=True)),
        errors=tuple(standard_error(gains) for gains in values - values[0]),
        signals=tuple(
            FittedSignal(
                replace(signal, weight=best[place + 1]),
                Gain.of(held_out, search.held_out(seed, without=place)),
                rankings.missing[place],
            )
            for place, signal in enumerate(rankings.signals)
        ),
        signals_gain=Gain.of(held_out, cross_validated(values, seed)) if signals else None,
        probability=fit_probability(rankings, qrels, seed) if probability else None,
        runs={
            "engine": rankings.run((0.0, *nothing)),
            "words": rankings.run_of_words(),
            "model": search.held_out_run(seed),
        },
    )


def _window_alpha(
    rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], measure: str, weights: Sequence[float]
) -> float:
    """Return the best alpha for scores that are divided by the highest one of the window, with the signals' weights."""
    windows = [window._replace(scale=window_scale(window.lexical, window.scale)) for window in rankings.windows]
    search = BlendSearch(replace(rankings, windows=windows), qrels, measure)
    return ALPHAS[best_row(search.values_by_alpha(weights))]


def keep_in_release(
    engine: Engine, index: str, model_id: str, template: Mapping[str, Any], window: int, fit: Fit
) -> ControlRecord:
    """Store the fit for a body and a window in the model's release; return the stored record.

    Raises `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "alpha": fit.alpha,
        "window_alpha": fit.window_alpha,
        "clauses": sorted(signature_of(template)),
        "measure": fit.measure,
        "queries": fit.n_queries,
        "engine": round(fit.engine, 6),
        "held_out": round(fit.held_out, 6),
        **({} if fit.held_out_from_training is None else {"held_out_from_training": fit.held_out_from_training}),
        **({"signals": [signal.to_json() for signal in signals]} if (signals := fit.weighted()) else {}),
        **({"probability": list(fit.probability.probability)} if fit.probability else {}),
    }
    return keep_entry(engine, index, model_id, template, window, entry)
