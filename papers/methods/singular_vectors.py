"""The leading singular vectors of sparse rows, computed by the solver that suits their size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from reranker.arrays import Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch

GRAM_LIMIT = 6_000
"""Length of the shorter side up to which a dense Gram matrix (288 MB) may be decomposed."""
GRAM_SHARE = 0.1
"""Wanted share of the vectors of the shorter side from which on the dense solver is faster."""
MAX_GRAM_WORDS = 20_000_000
"""Largest number of columns for dense vectors over words."""
RANK_TOLERANCE = 1e-5
"""A singular value below this share of the largest counts as 0: the Gram matrix resolves its square only to 1e-10."""


class SingularVectors(NamedTuple):
    """The first right singular vectors of X = P S Q^T; if ``centred``, of X minus its column means."""

    values: Float64
    """S, (k,) float64, decreasing."""
    words: Float64
    """Q, (n_words, k) float64, orthonormal; the entry of largest magnitude of each column is positive."""


def singular_vectors(
    rows: sp.csr_matrix, n_dims: int, rng: np.random.Generator, *, centred: bool = False, fewer: bool = False
) -> SingularVectors:
    """Return the first ``n_dims`` right singular vectors of sparse rows, (n_rows, n_words).

    If the shorter side is at most 6,000 and at least a tenth of its vectors are wanted, the Gram matrix of that side is
    decomposed exactly (LAPACK). Otherwise ARPACK is used with a start vector drawn from ``rng``. Either solver returns
    the same result for the same seed.

    Parameters
    ----------
    rows : csr_matrix
        The rows X.
    n_dims : int
        Number of vectors.
    rng : numpy.random.Generator
        Draws ARPACK's start vector.
    centred : bool
        Subtract the mean row; the dense result is not stored.
    fewer : bool
        Return fewer vectors, instead of raising an error, if the rank is lower.

    Raises
    ------
    ConfigError
        If ``n_dims`` is below 1, or above the rank (unless ``fewer``).
    InputError
        If a value is NaN or infinite.
    ShapeMismatch
        If the rows have the width of an open vocabulary.
    """
    if rows.shape[1] > MAX_GRAM_WORDS:
        raise ShapeMismatch(
            f"rows of {rows.shape[1]:,} columns have the width of an open vocabulary; keep the columns of a "
            f"vocabulary of at most {MAX_GRAM_WORDS:,} words"
        )
    shorter = min(rows.shape)
    if n_dims < 1 or (n_dims > shorter and not fewer):
        raise ConfigError(
            f"{n_dims} dimensions are not possible for {rows.shape[0]} texts over {rows.shape[1]} words: "
            f"ask for 1 to {shorter}"
        )
    if not np.isfinite(rows.data).all():
        raise InputError("a row holds NaN or infinity; compute the tf-idf rows again")
    wanted = min(n_dims, shorter)
    exact = rows.astype(np.float64).tocsr()
    mean = np.asarray(exact.mean(axis=0)).ravel() if centred else np.zeros(rows.shape[1])
    if shorter <= GRAM_LIMIT and (wanted >= GRAM_SHARE * shorter or shorter <= 64):
        values, words = _by_gram(exact, mean, wanted)
    else:
        values, words = _by_arpack(exact, mean, wanted, rng)
    kept = values > RANK_TOLERANCE * values[0]
    if (not kept.all() and not fewer) or values[0] == 0.0:
        raise ConfigError(
            f"{n_dims} dimensions are not possible: the rows have rank {int(kept.sum())}; ask for at most that number"
        )
    return SingularVectors(values[kept], _signed(words[:, kept]))


def _by_gram(rows: sp.csr_matrix, mean: Float64, n_dims: int) -> tuple[Float64, Float64]:
    """Return values (decreasing) and vectors from the eigenvectors of the smaller of X X^T and X^T X."""
    n, n_words = rows.shape
    by_words = n_words <= n
    gram = np.asarray((rows.T @ rows if by_words else rows @ rows.T).todense())
    if by_words:
        gram -= n * np.outer(mean, mean)
    else:
        across = rows @ mean
        gram += mean @ mean - across[:, None] - across[None, :]
    order = len(gram)
    squares, vectors = scipy.linalg.eigh(gram, subset_by_index=[order - n_dims, order - 1], overwrite_a=True)
    values = np.sqrt(np.maximum(squares[::-1], 0.0))
    vectors = vectors[:, ::-1]
    if by_words:
        return values, vectors
    words = rows.T @ vectors - np.outer(mean, vectors.sum(axis=0))
    return values, np.divide(words, values, out=np.zeros_like(words), where=values > 0.0)


def _by_arpack(rows: sp.csr_matrix, mean: Float64, n_dims: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Return values (decreasing) and vectors by the implicitly restarted Lanczos method."""
    ones = np.ones(rows.shape[0])
    centred = spla.LinearOperator(
        rows.shape,
        matvec=lambda v: rows @ v.ravel() - ones * (mean @ v.ravel()),
        rmatvec=lambda u: rows.T @ u.ravel() - mean * u.sum(),
        matmat=lambda v: rows @ v - np.outer(ones, mean @ v),
        rmatmat=lambda u: rows.T @ u - np.outer(mean, u.sum(axis=0)),
        dtype=np.float64,
    )
    operator = centred if mean.any() else rows
    _, values, words = spla.svds(operator, k=n_dims, v0=rng.standard_normal(min(rows.shape)))
    order = np.argsort(-values, kind="stable")
    return np.asarray(values, dtype=np.float64)[order], np.asarray(words).T[:, order]


def _signed(words: Float64) -> Float64:
    """Return the columns with signs such that the entry of largest magnitude of each is positive."""
    largest = words[np.abs(words).argmax(axis=0), np.arange(words.shape[1])]
    return np.asarray(words * np.where(largest < 0.0, -1.0, 1.0), dtype=np.float64)
