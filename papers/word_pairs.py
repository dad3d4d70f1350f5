"""f(q, d) = q^T W d with a weight for each pair of words: diagonal, full and hashed W (spec M02 to M04, M09, M10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.plain_kernels import PRIME, dense_pairs, hash_expand, hash_pairs
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import inner_products
from reranker.kernels.sgd import Rows
from reranker.models.base import Scores

Floats = npt.NDArray[np.float32]
_BLOCK_VALUES = 2**24


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Scores f(q, d) = sum_i w_i q_i d_i: a weight for each word both texts hold (spec M02).

    Parameters
    ----------
    w : (D,) float32
        Weight of each word; all 1 is the tf-idf score.

    Raises
    ------
    InputError
        If a weight is NaN or infinite.
    """

    w: Floats

    def __post_init__(self) -> None:
        _check_weights(self.w, 1)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        return inner_products(self._weighted(q_rows), d_rows)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        return _row_sums(self._weighted(q_rows), d_rows)

    def _weighted(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        _check_width(rows, len(self.w), "queries")
        return sp.csr_matrix((rows.data * self.w[rows.indices], rows.indices, rows.indptr), shape=rows.shape)


@dataclass(frozen=True, eq=False)
class DenseWordPairs:
    """Scores f(q, d) = q^T W d (spec M03; with a diagonal of zeros M04).

    Parameters
    ----------
    W : (D_q, D_d) float32
        Weight of query word i with document word j; the identity is the tf-idf score.

    Raises
    ------
    InputError
        If a weight is NaN or infinite.
    """

    W: Floats

    def __post_init__(self) -> None:
        _check_weights(self.W, 2)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        self._check(q_rows, d_rows)
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for start, stop in _blocks(q_rows.shape[0], self.W.shape[1]):
            out[start:stop] = (d_rows @ (q_rows[start:stop] @ self.W).T).T
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        self._check(q_rows, d_rows)
        _check_pairs(q_rows, d_rows)
        scores: Scores = dense_pairs(self.W, _kernel_rows(q_rows), _kernel_rows(d_rows))
        return scores

    def _check(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
        _check_width(q_rows, self.W.shape[0], "queries")
        _check_width(d_rows, self.W.shape[1], "documents")


@dataclass(frozen=True, eq=False)
class HashKernel:
    """Scores f(q, d) = sum over word pairs of q_s d_t w[h(s, t)], + a q.d, with h(s, t) = (s P + t) mod H.

    Pairs of words share weights at random (spec M09). The diagonal (M10) is added either as a tuned mixture,
    ``Mix((kernel, Bilinear.lexical()), (alpha, 1 - alpha))``, or by ``identity``, which training then knows of.

    Parameters
    ----------
    w : (H,) float32
        The shared weights.
    prime : int
        P.
    identity : float
        a; 0 lets the two sides have vocabularies of their own.

    Raises
    ------
    InputError
        If there is no weight, a weight is NaN or infinite, or P is not positive.
    """

    w: Floats
    prime: int = PRIME
    identity: float = 0.0

    def __post_init__(self) -> None:
        _check_weights(self.w, 1)
        if not len(self.w) or not 0 < self.prime < 2**32:
            raise InputError(
                f"a hash kernel of {len(self.w)} weights and P = {self.prime} cannot hash: give at least one weight "
                f"and a prime below 2**32"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        columns, places = np.unique(d_rows.indices, return_inverse=True)
        narrow = sp.csr_matrix((d_rows.data, places, d_rows.indptr), shape=(d_rows.shape[0], len(columns)))
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for start, stop in _blocks(q_rows.shape[0], len(columns)):
            met = hash_expand(_kernel_rows(q_rows[start:stop]), columns.astype(np.int64), self.w, self.prime)
            out[start:stop] = (narrow @ met.T).T
        if self.identity:
            out += np.float32(self.identity) * inner_products(q_rows, d_rows)
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        _check_pairs(q_rows, d_rows)
        out: Scores = hash_pairs(self.w, _kernel_rows(q_rows), _kernel_rows(d_rows), self.prime)
        if self.identity:
            out += np.float32(self.identity) * _row_sums(q_rows, d_rows)
        return out


def _kernel_rows(rows: sp.csr_matrix) -> Rows:
    """Return rows as the kernels take them."""
    return Rows(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32, copy=False),
        rows.data.astype(np.float32, copy=False),
    )


def _blocks(n_rows: int, width: int) -> list[tuple[int, int]]:
    """Return (start, stop) of blocks of rows whose dense copies stay below `_BLOCK_VALUES` values."""
    size = max(1, _BLOCK_VALUES // max(width, 1))
    return [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _row_sums(left: sp.csr_matrix, right: sp.csr_matrix) -> Scores:
    """Return the dot product of row r of both sides."""
    _check_pairs(left, right)
    products: Scores = np.asarray(left.multiply(right).sum(axis=1), np.float32).ravel()
    return products


def _check_pairs(q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
    if q_rows.shape[0] != d_rows.shape[0]:
        raise ShapeMismatch(
            f"{q_rows.shape[0]} queries cannot be paired with {d_rows.shape[0]} documents: give one document a query"
        )


def _check_width(rows: sp.csr_matrix, width: int, side: str) -> None:
    if rows.shape[1] != width:
        raise ShapeMismatch(
            f"rows of {rows.shape[1]} words as {side} do not fit weights for {width} words: use the vocabulary of the "
            f"model"
        )


def _check_weights(weights: Floats, n_axes: int) -> None:
    if weights.ndim != n_axes or weights.dtype != np.float32:
        raise ShapeMismatch(
            f"weights of dtype {weights.dtype} and shape {weights.shape} were given; they must be float32 with "
            f"{n_axes} axes: use numpy.asarray(weights, dtype=numpy.float32)"
        )
    if not np.isfinite(weights).all():
        raise InputError("a weight is NaN or infinite; training diverged: train again with a smaller rate")
