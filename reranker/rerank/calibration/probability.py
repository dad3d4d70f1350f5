"""Probability: fits the probability that a candidate is relevant, as a function of the model's score f."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from reranker.arrays import Float64
from reranker.errors import InputError
from reranker.records import is_relevant
from reranker.rerank.calibration.cross_validation import N_FOLDS, fold_of_topics
from reranker.rerank.calibration.kept import Probability
from reranker.rerank.calibration.rankings import Rankings


class FittedProbability(NamedTuple):
    """A fitted probability of relevance as a function of f, with its error."""

    probability: Probability
    error: float
    """Calibration error in cross-validation: mean difference between predicted probability and observed share of
    relevant candidates, over ten bins with equal numbers of candidates."""
    share: float
    """Share of all candidates that are relevant."""

    def to_json(self) -> dict[str, float]:
        """Return JSON-compatible values."""
        return {**self.probability._asdict(), "error": self.error, "share": self.share}


def fit_probability(rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], seed: int) -> FittedProbability:
    """Return the probability of relevance as a function of f, fitted on all candidates that have an f.

    Raises `InputError` if f does not separate relevant candidates from others.
    """
    scores, relevant, topics = [], [], []
    for number, window in enumerate(rankings.windows):
        grades = qrels[str(number)]
        known = np.isfinite(window.model) & np.array([name not in window.excluded for name in window.ids], dtype=bool)
        scores.append(window.model[known])
        relevant.append(np.array([is_relevant(grades.get(name, 0.0)) for name in window.ids], dtype=np.float64)[known])
        topics.append(np.full(known.sum(), number))
    f, y, topic = np.concatenate(scores), np.concatenate(relevant), np.concatenate(topics)
    predicted = np.empty(len(f))
    part = fold_of_topics(len(rankings.windows), seed)[topic]
    for fold in range(N_FOLDS):
        predicted[part == fold] = _logistic(f[part != fold], y[part != fold]).of(f[part == fold])
    bins = np.array_split(np.argsort(predicted, kind="stable"), min(10, len(predicted)))
    error = float(np.mean([abs(predicted[places].mean() - y[places].mean()) for places in bins]))
    return FittedProbability(_logistic(f, y), error, float(y.mean()))


def _logistic(f: Float64, relevant: Float64) -> Probability:
    """Return the logistic regression of ``relevant``, (n,) float64 of 0 and 1, on f, (n,) float64, by Newton's method.

    One relevant and one irrelevant candidate are added at the mean of f (Platt 1999), so that the slope stays finite.
    """
    middle, spread = (float(f.mean()), float(f.std())) if len(f) else (0.0, 0.0)
    if not 0 < relevant.sum() < len(relevant) or spread == 0:
        raise InputError(
            "a probability of relevance cannot be fitted: some candidates must be relevant and others not, and "
            "their scores must differ. Calibrate on other queries, or omit --probability"
        )
    x = np.stack([np.append((f - middle) / spread, [0.0, 0.0]), np.ones(len(f) + 2)])
    y, weights = np.append(relevant, [0.0, 1.0]), np.zeros(2)
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-(weights @ x)))
        step = np.linalg.solve((x * (p * (1 - p))) @ x.T + 1e-6 * np.eye(2), x @ (y - p) - 1e-6 * weights)
        weights += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    if weights[0] <= 0:
        raise InputError(
            "a probability of relevance cannot be fitted: the model's score does not increase with relevance on these "
            "queries. Train on more data, or omit --probability"
        )
    return Probability(float(weights[0] / spread), float(weights[1] - weights[0] * middle / spread))
