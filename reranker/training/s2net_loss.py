"""Losses of S2Net on unit vectors, and their gradients (spec 2.7).

Every function takes the unit vectors of both sides and returns (loss, dL/dX, dL/dZ) as if the vectors were free;
`reranker.training.s2net` leads the gradient back through the normalisation to the matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch, TrainingError

Array = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]
Terms = tuple[float, Array, Array]


@dataclass(frozen=True, eq=False)
class Mates:
    """Pairs that belong together; every other pairing of the rows is negative.

    Parameters
    ----------
    q_rows, d_rows : csr_matrix (n, n_words of the side) float32
        Row i of both is one pair.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows.
    TrainingError
        If there are fewer than two pairs: no negative.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix

    def __post_init__(self) -> None:
        if self.q_rows.shape[0] != self.d_rows.shape[0]:
            raise ShapeMismatch(
                f"{self.q_rows.shape[0]} and {self.d_rows.shape[0]} rows do not pair; give row i of both"
            )
        if self.q_rows.shape[0] < 2:
            raise TrainingError("one pair has no negative to learn from; give two pairs or more")


@dataclass(frozen=True, eq=False)
class GradedPairs:
    """Judged documents of queries: within a query, each document of a higher grade against each of a lower one.

    Parameters
    ----------
    q_rows, d_rows : csr_matrix (n_queries, n_words), (n_documents, n_words) float32
    query, document : (m,) int64
        Rows of the judged pairs.
    grade : (m,) float64
        At least 0.

    Raises
    ------
    ShapeMismatch
        If the three lists have different lengths.
    InputError
        If a row does not exist or a grade is negative or not finite.
    TrainingError
        If no query has two documents of different grades.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix
    query: Ids
    document: Ids
    grade: npt.NDArray[np.float64]
    better: Ids = field(init=False, repr=False)
    worse: Ids = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.query) == len(self.document) == len(self.grade):
            raise ShapeMismatch(
                f"{len(self.query)} queries, {len(self.document)} documents and {len(self.grade)} grades do not fit; "
                "give one of each for every judged pair"
            )
        for name, ids, rows in (("query", self.query, self.q_rows), ("document", self.document, self.d_rows)):
            if len(ids) and not (0 <= ids.min() and ids.max() < rows.shape[0]):
                raise InputError(f"a judged {name} is not one of the {rows.shape[0]} rows; number them from 0")
        if not (np.isfinite(self.grade).all() and bool((self.grade >= 0).all())):
            raise InputError("a grade is negative, NaN or infinite; grades are 0 or more")
        better, worse = _preferences(self.query, self.grade)
        if len(better) == 0:
            raise TrainingError("no query has documents of two different grades; there is no preference to learn")
        object.__setattr__(self, "better", better)
        object.__setattr__(self, "worse", worse)


def _preferences(query: Ids, grade: npt.NDArray[np.float64]) -> tuple[Ids, Ids]:
    """Return the judged pairs (positions in the lists) of every preference within a query."""
    order = np.argsort(query, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(query[order])) + 1) if len(order) else []
    better, worse = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for group in groups:
        first, second = np.nonzero(grade[group][:, None] > grade[group][None, :])
        better.append(group[first])
        worse.append(group[second])
    return np.concatenate(better).astype(np.int64), np.concatenate(worse).astype(np.int64)


def logistic(delta: Array, gamma: float) -> tuple[Array, Array]:
    """Return ln(1 + exp(-gamma delta)) and its slope -gamma / (1 + exp(+gamma delta)), without overflow.

    Source
    ------
    spec 2.7 and A01: the paper's appendix prints the slope with the wrong sign in the exponent.
    """
    scaled = delta * delta.dtype.type(gamma)
    # In place: these arrays are blocks of n columns, and memory traffic is what they cost.
    small = np.abs(scaled)
    np.negative(small, out=small)
    np.exp(small, out=small)
    loss = np.log1p(small)
    loss -= np.minimum(scaled, 0)
    slope = np.where(scaled >= 0, small, small.dtype.type(1))
    small += 1
    slope /= small
    slope *= -gamma
    return loss, slope


def mates_logistic(X: Array, Z: Array, gamma: float, block: int) -> Terms:
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


def mates_squared(X: Array, Z: Array) -> Terms:
    """Return the mean of 1/2 (y - C_ij)^2 over all n^2 pairings, y = 1 for mates and 0 for all others.

    sum C_ij^2 = <X^T X, Z^T Z>, so C itself is never made and the cost is linear in the pairs.
    """
    n = len(X)
    gram_x, gram_z = X.T @ X, Z.T @ Z
    own = np.einsum("ij,ij->i", X, Z)
    loss = (float(np.sum(gram_x * gram_z)) - 2.0 * float(own.sum()) + n) / (2.0 * n * n)
    scale = X.dtype.type(1.0 / (n * n))
    return loss, (X @ gram_z - Z) * scale, (Z @ gram_x - X) * scale


def graded_logistic(X: Array, Z: Array, data: GradedPairs, gamma: float) -> Terms:
    """Return the mean logistic loss over all preferences within queries."""
    cosine = np.einsum("ij,ij->i", X[data.query], Z[data.document])
    loss, slope = logistic(cosine[data.better] - cosine[data.worse], gamma)
    m, n_pairs = len(cosine), len(slope)
    by_entry = np.bincount(data.better, slope, m) - np.bincount(data.worse, slope, m)
    return float(loss.mean(dtype=np.float64)), *_through_entries(X, Z, data, by_entry / n_pairs)


def graded_squared(X: Array, Z: Array, data: GradedPairs) -> Terms:
    """Return the mean of 1/2 (y - cosine)^2 over the judged pairs, y = grade / greatest grade."""
    target = data.grade / data.grade.max()
    error = np.einsum("ij,ij->i", X[data.query], Z[data.document]) - target
    return float(np.mean(error**2) / 2.0), *_through_entries(X, Z, data, error / len(error))


def _through_entries(X: Array, Z: Array, data: GradedPairs, slope: Array) -> tuple[Array, Array]:
    """Return dL/dX = R Z and dL/dZ = R^T X for the sparse R that holds each judged pair's slope."""
    R = sp.csr_matrix((slope.astype(X.dtype), (data.query, data.document)), shape=(len(X), len(Z)))
    return R @ Z, R.T @ X
