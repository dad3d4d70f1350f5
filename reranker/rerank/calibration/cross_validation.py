"""Cross-validation: the choice of the best of several values, and the gain of that choice on the other topics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.errors import InputError
from reranker.evaluation import paired_test, standard_error

N_FOLDS: Final = 5
"""Number of parts of the topics; each part is ranked with the value that is best for the others."""
SIGNAL_ERRORS: Final = 2.0
"""Number of standard errors by which the gain of a signal's weight is reduced before comparing. Several signals are
tried: with one standard error, every seventh signal without information would be selected (random numbers in the shop
of benchmarks/signals.py); with two, every fiftieth."""


class Gain(NamedTuple):
    """Improvement of one fit over another in cross-validation."""

    mean: float
    """Difference of the means of the measure."""
    error: float
    """Standard error of the difference."""
    p: float
    """p value of a paired t-test."""

    @classmethod
    def of(cls, held_out: Float64, other: Float64) -> Gain:
        """Return the gain of values, (n_topics,) float64, over those of the other fit, (n_topics,) float64."""
        test = paired_test(held_out, other)
        return cls(test.difference, test.standard_error, test.p_t_test)

    def to_json(self) -> dict[str, float | None]:
        """Return JSON-compatible values; an undefined p is null."""
        return {**self._asdict(), "p": None if math.isnan(self.p) else self.p}


def check_number_of_topics(n_topics: int, fitted: str) -> None:
    """Raise `InputError` if there are fewer than two topics for each fold; ``fitted`` is the name of the value."""
    if n_topics < 2 * N_FOLDS:
        raise InputError(f"{n_topics} queries are too few to fit {fitted}: at least {2 * N_FOLDS} are needed")


def best_row(values: Float64) -> int:
    """Return the best row of (n_tried, n_topics) values; the first if its gain is at most one standard error."""
    best = int(np.argmax(values.mean(axis=1)))
    gains = values[best] - values[0]
    return best if gains.mean() > standard_error(gains) else 0


def surest_row(values: Float64) -> int:
    """Return the row of (n_tried, n_topics) values with the largest gain over the first, less its standard errors.

    `SIGNAL_ERRORS` standard errors are subtracted. Returns the first row if no other has a positive result. Of equal
    rows, the one with the smallest weight wins.
    """
    bounds = [gains.mean() - SIGNAL_ERRORS * standard_error(gains) for gains in values - values[0]]
    return int(np.argmax(bounds))


def cross_validated(values: Float64, seed: int) -> Float64:
    """Return each topic's value, (n_topics,) float64, in the row that is best for the topics of the other folds.

    ``values`` is (n_tried, n_topics) float64; the first row is taken unless another one gains enough (`best_row`).
    """
    return held_out_values(values.shape[1], seed, lambda others: values[best_row(values[:, others])])


def held_out_values(n_topics: int, seed: int, fitted: Callable[[Bool], Float64]) -> Float64:
    """Return each topic's cross-validated value, (n_topics,) float64, by a fit to the topics of the other folds.

    ``fitted`` takes a mask of topics, (n_topics,) bool, and returns the values of all topics by the best fit for these.
    """
    part = fold_of_topics(n_topics, seed)
    held_out = np.empty(n_topics)
    for fold in range(N_FOLDS):
        inside = part == fold
        held_out[inside] = fitted(~inside)[inside]
    return held_out


def fold_of_topics(n_topics: int, seed: int) -> Int64:
    """Return the number of the fold of each topic, (n_topics,) int64."""
    return np.random.default_rng(seed).permutation(n_topics) % N_FOLDS
