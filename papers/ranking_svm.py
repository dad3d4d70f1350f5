"""Support vector machines that rank: pointwise, pairwise, and pairwise with weights (spec B22, B24, B25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.features import CourseFeatures
from papers.preference_pairs import PreferencePairs, pair_weights, preference_pairs
from papers.study_rows import Doubles, Floats
from reranker.errors import ConfigError, InputError, MissingExtra, ShapeMismatch, TrainingError

Ids = npt.NDArray[np.int64]

_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class LinearRanker:
    """Scores w.((x - mean) / scale) + b of feature vectors x.

    Parameters
    ----------
    weights, mean, scale : (n_features,) float64
        w; mean and deviation of each feature in training (1 for a feature that never changed).
    bias : float
        b, 0 for pairwise machines: it cannot change an order.
    """

    weights: Doubles
    mean: Doubles
    scale: Doubles
    bias: float = 0.0

    def scores(self, features: Doubles) -> Doubles:
        """Return the score of each row of features, (n,) float64; greater is better."""
        return np.asarray((features - self.mean) / self.scale @ self.weights + self.bias, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class FeatureRanker:
    """Scores word counts by a linear ranker over the course's features.

    Parameters
    ----------
    features : CourseFeatures
        x(q, d); queries are (n, D) counts, documents (n, D + 1) with their PageRank in the last column.
    ranker : LinearRanker
        Trained on these features.
    """

    features: CourseFeatures
    ranker: LinearRanker

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        total = np.full((q_rows.shape[0], d_rows.shape[0]), self.ranker.bias)
        weights = self.ranker.weights / self.ranker.scale
        for weight, mean, feature in zip(
            weights, self.ranker.mean, self.features.matrices(q_rows, d_rows), strict=True
        ):
            total += weight * (feature - mean)
        return total.astype(np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of query r with document r, (n,) float32."""
        return self.ranker.scores(self.features.pairs(q_rows, d_rows)).astype(np.float32)


def fit_pointwise_svm(
    features: Doubles,
    relevant: npt.NDArray[np.bool_],
    *,
    rng: np.random.Generator,
    C: float = 1.0,
    balanced: bool = False,
) -> LinearRanker:
    """Return the machine that tells relevant pairs from others, used by its real-valued output.

    min 1/2 w.w + C sum_i xi_i with y_i (w.x_i + b) >= 1 - xi_i, xi_i >= 0, y_i = +1 for relevant and -1 for not;
    scikit-learn's ``LinearSVC`` (liblinear) on standardised features. liblinear penalises b as well, min
    1/2 (w.w + b**2) + ...: with more than a few pairs the errors outweigh that. It stops after 10,000 rounds at the
    latest, and scikit-learn then warns; a smaller C settles sooner.

    Where few pairs are relevant and the kinds overlap, calling everything irrelevant costs least: w is then almost 0,
    and the order means nothing. ``balanced`` is for such data.

    Parameters
    ----------
    features : (n, n_features) float64
    relevant : (n,) bool
    rng : Generator
        Draws the order in which liblinear visits the pairs; the optimum does not depend on it.
    C : float
        Above 0: weight of an error.
    balanced : bool
        Weigh errors so that both kinds count the same: C n / (2 n_kind).

    Raises
    ------
    TrainingError
        If all pairs are relevant, or none is.
    InputError, ShapeMismatch
        For features that are not finite, or not one label a row.
    ConfigError
        For C that is not above 0.
    MissingExtra
        Without scikit-learn.

    Source: spec B22.
    """
    _check_features(features, C)
    if relevant.shape != (len(features),):
        raise ShapeMismatch(f"{relevant.shape} labels for {len(features):,} pairs: give one a pair")
    if relevant.all() or not relevant.any():
        raise TrainingError(
            f"{int(relevant.sum()):,} of {len(relevant):,} pairs are relevant: a machine needs pairs of both kinds"
        )
    mean, scale = _standard(features)
    labels = np.where(relevant, 1.0, -1.0)
    machine = _machine(C, rng, fit_intercept=True, class_weight="balanced" if balanced else None)
    machine.fit((features - mean) / scale, labels)
    return LinearRanker(machine.coef_[0].astype(np.float64), mean, scale, float(machine.intercept_[0]))


def fit_ranking_svm(
    features: Doubles, grades: Doubles, queries: Ids, *, rng: np.random.Generator, C: float = 1.0
) -> LinearRanker:
    """Return the machine trained on differences of documents of the same query.

    min 1/2 w.w + C sum_l xi_l with y_l w.(x_i - x_j) >= 1 - xi_l: y = +1 when i is preferred (has the greater grade),
    and the same pair the other way round with y = -1. An error counts the same at every rank, and a query by its
    number of pairs; `fit_weighted_ranking_svm` weighs both.

    Parameters
    ----------
    features : (n, n_features) float64
    grades : (n,) float64
        Greater is better.
    queries : (n,) int64
        Query of each row.
    rng, C
        As in `fit_pointwise_svm`.

    Raises
    ------
    TrainingError
        If no query has documents of two grades.
    InputError, ShapeMismatch, ConfigError, MissingExtra
        As in `fit_pointwise_svm`.

    Source: spec B24, A26.
    """
    pairs = preference_pairs(grades, queries)
    return fit_pair_svm(features, pairs, np.ones(len(pairs)), rng=rng, C=C)


def fit_weighted_ranking_svm(
    features: Doubles, grades: Doubles, queries: Ids, *, rng: np.random.Generator, C: float = 1.0
) -> LinearRanker:
    """Return RSVM-IR: the ranking machine with the error of pair l weighed by tau of its grades and mu of its query.

    min 1/2 w.w + C sum_l tau_k(l) mu_q(l) xi_l with the constraints of `fit_ranking_svm`; `pair_weights` says how tau
    and mu are found. Parameters and errors as in `fit_ranking_svm`; pairs whose weight is 0 are left out.

    Raises
    ------
    TrainingError
        If no query has documents of two grades, or every pair has the weight 0.
    InputError, ShapeMismatch, ConfigError, MissingExtra
        As in `fit_pointwise_svm`.

    Source: spec B25.
    """
    pairs = preference_pairs(grades, queries)
    return fit_pair_svm(features, pairs, pair_weights(pairs, grades, queries), rng=rng, C=C)


def fit_pair_svm(
    features: Doubles, pairs: PreferencePairs, weights: Doubles, *, rng: np.random.Generator, C: float = 1.0
) -> LinearRanker:
    """Return the machine trained on given preferences, such as those of clicks, with a weight each.

    Pairs of weight 0 are left out; both ways round of a pair are learned. Other parameters as in `fit_ranking_svm`.

    Parameters
    ----------
    features : (n, n_features) float64
    pairs : PreferencePairs
        Rows of ``features`` over other rows.
    weights : (n_pairs,) float64
        How much an error costs, times C.

    Raises
    ------
    TrainingError
        If no pair has a weight above 0.
    InputError, ShapeMismatch, ConfigError, MissingExtra
        As in `fit_pointwise_svm`.
    """
    _check_features(features, C)
    kept = weights > 0
    if not kept.any():
        raise TrainingError(
            f"{len(weights):,} pairs of unequal grades within a query, {int(kept.sum())} of them with a weight: "
            f"a ranking machine needs a query with documents of two grades"
        )
    mean, scale = _standard(features)
    difference = (features[pairs.better[kept]] - features[pairs.worse[kept]]) / scale
    weight = weights[kept]
    # Without b, a pair and the same pair the other way round have the same slack: each pair is given once, with twice
    # its weight, and every second one turned round, as the library wants both labels.
    if len(difference) == 1:
        difference, weight = np.repeat(difference, 2, axis=0), weight.repeat(2) / 2
    labels = np.where(np.arange(len(difference)) % 2, -1.0, 1.0)
    machine = _machine(C, rng, fit_intercept=False)
    machine.fit(difference * labels[:, None], labels, sample_weight=2 * weight)
    return LinearRanker(machine.coef_[0].astype(np.float64), mean, scale)


def _machine(C: float, rng: np.random.Generator, **settings: Any) -> Any:
    """Return scikit-learn's linear support vector machine with the hinge of the sources."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise MissingExtra("scikit-learn", "papers") from error
    seed = int(rng.integers(2**31))
    return LinearSVC(C=C, loss="hinge", dual=True, tol=1e-4, max_iter=_MAX_ITERATIONS, random_state=seed, **settings)


def _standard(features: Doubles) -> tuple[Doubles, Doubles]:
    """Return mean and deviation of each feature; 1 for one that does not change."""
    scale = features.std(axis=0)
    flat = scale <= 1e-12 * np.abs(features).max(axis=0)
    return features.mean(axis=0), np.where(flat, 1.0, scale)


def _check_features(features: Doubles, C: float) -> None:
    """Refuse features that no machine can use."""
    if features.ndim != 2 or not features.size:
        raise ShapeMismatch(f"features of shape {features.shape}: give one row a pair and one column a feature")
    if not np.isfinite(features).all():
        raise InputError("features hold NaN or infinity: a machine needs finite numbers; check the logarithms")
    if not (np.isfinite(C) and C > 0):
        raise ConfigError(f"C is {C!r}: the weight of an error is finite and above 0")
