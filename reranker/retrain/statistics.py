"""Ratios of sums over clusters: estimates, bootstrap intervals, and the number of clusters that a difference needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError, ShapeMismatch

MAX_GROUPS = 5_000
"""Maximum number of clusters. More are merged at random into this many groups, which are independent as well."""


_BATCH_CELLS = 500_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with a lower and an upper one-sided bound."""

    estimate: float
    """Sum of the numerators / sum of the denominators."""
    lower: float
    """The true value is below it with probability 1 - confidence."""
    upper: float
    """The true value is above it with probability 1 - confidence."""
    standard_error: float
    n_clusters: int
    """Number of clusters with a denominator above 0."""
    n_effective: float
    """Kish's effective number of clusters, (sum D)² / sum D²: n_clusters if all have equal weight, 1 if a single one
    has all the weight."""
    n_differing: int
    """Number of clusters whose numerator is not 0."""


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

    Clusters are drawn with replacement. Each bound is the more conservative of two: the percentile bound, a quantile of
    R*; and the studentised bound, R - s * (quantile of t* = (R* - R) / s*), where s* is the linearised standard error
    of the resample. If few clusters carry most of the weight, the first is too narrow for values skewed to one side,
    and the second for values skewed to the other side or nearly all 0.

    Parameters
    ----------
    numerator, denominator, cluster
        (n,) each, one value per observation; denominators are at least 0.
    rng
        Draws the resamples.
    confidence
        Confidence of each bound.
    resamples
        Number of resamples.

    Raises
    ------
    ShapeMismatch
        If the lengths differ.
    ConfigError
        If the confidence is not at least 0.5 and below 1.

    Notes
    -----
    Source: Efron and Tibshirani 1993, ch. 12 (bootstrap-t); Cochran 1977, ch. 6 (error of a ratio); Kish 1965.
    """
    if not numerator.shape == denominator.shape == cluster.shape or numerator.ndim != 1:
        raise ShapeMismatch(
            f"numerators, denominators and clusters have shapes {numerator.shape}, {denominator.shape} and "
            f"{cluster.shape}: give one value per observation in each"
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
    residual = N - estimate * D  # sums to 0, so the ratio of a resample's residuals is R* - R
    error = float(_ratio(_moments(residual, D).sum(axis=0))[1])
    if error == 0:
        return Interval(estimate, estimate, estimate, 0.0, *sizes)
    gap, t = _resampled(residual, D, rng, resamples)
    # "higher" and "lower" do not interpolate, because t* may be infinite (for resamples of a single value).
    high, low = np.quantile(t, confidence, method="higher"), np.quantile(t, 1 - confidence, method="lower")
    lower = estimate + min(-error * float(high), float(np.quantile(gap, 1 - confidence)))
    upper = estimate + max(-error * float(low), float(np.quantile(gap, confidence)))
    return Interval(estimate, lower, upper, error, *sizes)


def clusters_needed(interval: Interval, margin: float, confidence: float = 0.95, power: float = 0.8) -> int | None:
    """Return how many clusters would show that the difference is above the margin; None if the estimate is not.

    K (z_confidence + z_power)² s² / (estimate - margin)²: the usual normal approximation.
    """
    from scipy import stats

    gap = interval.estimate - margin
    if gap <= 0:
        return None
    z = float(stats.norm.ppf(confidence) + stats.norm.ppf(power))
    return max(1, int(np.ceil(interval.n_clusters * (z * interval.standard_error / gap) ** 2)))


def detectable(interval: Interval, confidence: float, power: float) -> float:
    """Return the difference whose lower bound is above 0 with probability ``power``: (z_confidence + z_power) s."""
    from scipy import stats

    return float(stats.norm.ppf(confidence) + stats.norm.ppf(power)) * interval.standard_error


def sums_by(group: Int64, values: Float64, n: int = 0) -> Float64:
    """Return the sums of the values of each group, (max(n, largest group + 1),)."""
    sums: Float64 = np.bincount(group, values, minlength=n).astype(np.float64, copy=False)
    return sums


def _moments(N: Float64, D: Float64) -> Float64:
    """Return (n, 6): 1, N, D, N², N D and D² of each cluster. Their sums determine the ratio and its error."""
    return np.column_stack([np.ones(len(D)), N, D, N * N, N * D, D * D])


def _ratio(sums: Float64) -> tuple[Float64, Float64]:
    """Return R = N/D and its linearised error, sqrt(K/(K-1) sum (N_k - R D_k)²) / D, from sums (..., 6)."""
    n, N, D, NN, ND, DD = np.moveaxis(sums, -1, 0)
    R = N / D
    squares = np.maximum(NN - 2 * R * ND + R * R * DD, 0.0)
    return R, np.sqrt(squares * n / np.maximum(n - 1, 1)) / D


def _resampled(residual: Float64, D: Float64, rng: np.random.Generator, resamples: int) -> tuple[Float64, Float64]:
    """Return R* - R and (R* - R) / s* of each resample; the latter is 0 if R* is R, and infinite if s* is 0."""
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
