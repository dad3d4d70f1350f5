"""Texts that belong together (mates) and S2Net's losses over them, every other pairing being wrong (spec M21, M22)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyFloat
from reranker.errors import ShapeMismatch, TrainingError
from reranker.training.s2net import S2NetSettings, Terms, logistic


@dataclass(frozen=True, eq=False)
class Mates:
    """Pairs that belong together; every other pairing of the rows is negative.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows.
    TrainingError
        If there are fewer than two pairs: no negative.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix
    """csr_matrix (n, n_words of the side) float32: Row i of both is one pair."""

    def __post_init__(self) -> None:
        if self.q_rows.shape[0] != self.d_rows.shape[0]:
            raise ShapeMismatch(
                f"{self.q_rows.shape[0]} and {self.d_rows.shape[0]} rows do not pair; give row i of both"
            )
        if self.q_rows.shape[0] < 2:
            raise TrainingError("one pair has no negative to learn from; give two pairs or more")

    def terms(self, X: AnyFloat, Z: AnyFloat, settings: S2NetSettings) -> Terms:
        """Return (loss, dL/dX, dL/dZ) of the unit vectors of both sides, as if they were free."""
        if settings.loss == "squared":
            return mates_squared(X, Z)
        return mates_logistic(X, Z, settings.gamma, settings.block)


def mates_logistic(X: AnyFloat, Z: AnyFloat, gamma: float, block: int) -> Terms:
    """Return the mean logistic loss of each pair (i, i) against all (i, j) and all (j, i), j != i.

    With C = X Z^T, s_ij = -gamma / (1 + exp(gamma (C_ii - C_ij))) and t_ij the same with C_jj: dL/dC_ij = -(s + t)_ij
    off the diagonal, dL/dC_ii = sum_j s_ij + sum_j t_ji, over 2 n (n - 1) terms. C is made in row blocks.
    """
    n = len(X)
    own = np.einsum("ij,ij->i", X, Z)
    own_slope = np.zeros(n)
    total = 0.0
    dX, dZ = np.empty_like(X), np.zeros_like(Z)
    for start in range(0, n, block):
        rows = np.arange(start, min(n, start + block))
        C = X[rows] @ Z.T
        slopes = np.zeros_like(C)
        for by_row in (True, False):
            loss, slope = logistic((own[rows, None] if by_row else own[None, :]) - C, gamma)
            loss[rows - start, rows] = 0
            slope[rows - start, rows] = 0
            total += float(loss.sum(dtype=np.float64))
            slopes -= slope
            if by_row:
                own_slope[rows] += slope.sum(axis=1, dtype=np.float64)
            else:
                own_slope += slope.sum(axis=0, dtype=np.float64)
        dX[rows] = slopes @ Z
        dZ += slopes.T @ X[rows]
    diagonal = own_slope.astype(X.dtype)[:, None]
    n_terms = 2.0 * n * (n - 1)
    scale = X.dtype.type(1.0 / n_terms)
    return total / n_terms, (dX + diagonal * Z) * scale, (dZ + diagonal * X) * scale


def mates_squared(X: AnyFloat, Z: AnyFloat) -> Terms:
    """Return the mean of 1/2 (y - C_ij)^2 over all n^2 pairings, y = 1 for mates and 0 for all others.

    sum C_ij^2 = <X^T X, Z^T Z>, so C itself is never made and the cost is linear in the pairs.
    """
    n = len(X)
    gram_x, gram_z = X.T @ X, Z.T @ Z
    own = np.einsum("ij,ij->i", X, Z)
    loss = (float(np.sum(gram_x * gram_z)) - 2.0 * float(own.sum()) + n) / (2.0 * n * n)
    scale = X.dtype.type(1.0 / (n * n))
    return loss, (X @ gram_z - Z) * scale, (Z @ gram_x - X) * scale
