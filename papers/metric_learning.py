"""HDLR: a Mahalanobis metric learned from similar and dissimilar pairs, within the span of a start (spec B14)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.models.projection import Projection

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HdlrSettings:
    """Settings of information-theoretic metric learning.

    Parameters
    ----------
    slack : float
        g > 0: how firmly the bounds hold; small values leave the start alone.
    upper, lower : float or None
        Bounds of squared distance for similar and for dissimilar pairs; None for the 5th and the 95th percentile of
        the distances under the start.
    n_sweeps : int
        Passes over all pairs, each in a new random order.
    """

    slack: float = 1.0
    upper: float | None = None
    lower: float | None = None
    n_sweeps: int = 5


def fit_hdlr(
    start: Projection,
    x_rows: sp.csr_matrix,
    y_rows: sp.csr_matrix,
    similar: npt.NDArray[np.bool_],
    settings: HdlrSettings | None = None,
    *,
    rng: np.random.Generator,
) -> Projection:
    """Return the start's space under the metric learned by ITML: A0 L and B0 L with M = L L^T.

    The squared distance of a pair is p = z^T M z, z = A0^T x - B0^T y, and M starts as I. For samples of thousands of
    pairs: a pass costs k^2 a pair.

    Parameters
    ----------
    start : Projection
        A0 and B0, linear.
    x_rows, y_rows : csr_matrix (n_pairs, n_words of the side)
        Row l of both is one pair.
    similar : (n_pairs,) bool
        Whether the pair belongs together.
    settings : HdlrSettings, optional
    rng : Generator
        Orders the pairs.

    Raises
    ------
    ShapeMismatch
        If there is not one row on each side and one label for every pair.
    InputError
        If no pair differs under the start.
    ConfigError
        If the start is not linear, or a setting is not above 0.

    Source
    ------
    spec B14.
    """
    chosen = settings or HdlrSettings()
    if start.activation != "linear":
        raise ConfigError(f"a metric cannot be learned over a {start.activation} activation; start from a linear one")
    if not (x_rows.shape[0] == y_rows.shape[0] == len(similar)):
        raise ShapeMismatch(
            f"{x_rows.shape[0]} and {y_rows.shape[0]} rows with {len(similar)} labels do not pair; give one of each"
        )
    differences = np.asarray(x_rows @ start.A - y_rows @ start.B, dtype=np.float64)
    distances = np.einsum("ij,ij->i", differences, differences)
    if not distances.any():
        raise InputError("no pair differs under the start, so there is no distance to learn; give other pairs or start")
    upper = float(np.percentile(distances, 5)) if chosen.upper is None else chosen.upper
    lower = float(np.percentile(distances, 95)) if chosen.lower is None else chosen.lower
    if min(upper, lower, chosen.slack) <= 0.0 or chosen.n_sweeps < 1:
        raise ConfigError(
            f"bounds {upper:g} and {lower:g}, slack {chosen.slack:g} and {chosen.n_sweeps} passes cannot be used; "
            "all must be above 0 (set upper where equal pairs make its percentile 0)"
        )
    metric = learn_metric(differences, similar, np.where(similar, upper, lower), chosen.slack, chosen.n_sweeps, rng)
    factor = np.linalg.cholesky(metric)
    A = np.ascontiguousarray(start.A @ factor, dtype=np.float32)
    B = A if start.is_tied else np.ascontiguousarray(start.B @ factor, dtype=np.float32)
    return Projection(A, B)


def learn_metric(
    differences: Doubles,
    similar: npt.NDArray[np.bool_],
    bounds: Doubles,
    slack: float,
    n_sweeps: int,
    rng: np.random.Generator,
) -> Doubles:
    """Return M, (k, k) float64, by cyclic Bregman projections onto the pairs' bounds.

    With s = +1 for similar pairs and -1 for others, p = z^T M z:
    al = min(l, s/2 (1/p - g/xi)), be = s al / (1 - s al p), xi = g xi / (g + s al xi), l = l - al,
    M += be M z z^T M; l starts at 0, xi at the pair's bound.

    Source
    ------
    spec B14 (the ITML algorithm).
    """
    n, k = differences.shape
    metric = np.eye(k)
    signs = np.where(similar, 1.0, -1.0)
    multipliers, targets = np.zeros(n), bounds.astype(np.float64)
    for _ in range(n_sweeps):
        for pair in rng.permutation(n):
            z, s = differences[pair], signs[pair]
            projected = metric @ z
            p = float(z @ projected)
            if p <= 0.0:
                continue  # equal texts: no metric can move them apart
            al = min(multipliers[pair], s / 2 * (1 / p - slack / targets[pair]))
            be = s * al / (1 - s * al * p)
            targets[pair] *= slack / (slack + s * al * targets[pair])
            multipliers[pair] -= al
            metric += be * np.outer(projected, projected)
    return (metric + metric.T) / 2
