"""The leading singular vectors of sparse rows, by the solver that suits their size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla

from reranker.arrays import Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch

GRAM_LIMIT = 6_000
"""Shorter side up to which a dense Gram matrix (288 MB) is decomposed where many of its vectors are wanted."""
GRAM_SHARE = 0.1
"""Share of the shorter side from which on the dense solver is the faster one."""
MAX_GRAM_WORDS = 20_000_000
"""Columns that dense vectors over words may have."""
RANK_TOLERANCE = 1e-5
"""A singular value below this share of the largest counts as 0: the Gram matrix resolves squares, 1e-10 of them."""


class SingularVectors(NamedTuple):
    """The first right singular vectors of X (less its column means where ``centred``): X = P S Q^T.

    ``values`` (k,) are S, falling; ``words`` (n_words, k) Q, orthonormal, largest entries positive; both float64.
    """

    values: Float64
    words: Float64


def singular_vectors(
    rows: sp.csr_matrix, n_dims: int, rng: np.random.Generator, *, centred: bool = False, fewer: bool = False
) -> SingularVectors:
    """Return the first ``n_dims`` right singular vectors of sparse rows, (n_rows, n_words).

    Either an exact eigen-decomposition of the Gram matrix of the shorter side (LAPACK), where that side is below 6,000
    and more than a tenth of its vectors are wanted; or ARPACK with a start drawn from ``rng``. Both give the same
    answer for the same seed. ``centred`` subtracts the mean row first, without storing the dense result; ``fewer``
    returns fewer vectors where the rank is lower, instead of refusing. `ConfigError` is raised if ``n_dims`` is below 1
    or above the rank (unless ``fewer``), `InputError` if a value is NaN or infinite, `ShapeMismatch` if the rows are as
    wide as an open vocabulary.
    """
    if rows.shape[1] > MAX_GRAM_WORDS:
        raise ShapeMismatch(
            f"rows {rows.shape[1]:,} columns wide are those of an open vocabulary; keep the columns of a vocabulary of "
            f"at most {MAX_GRAM_WORDS:,} words"
        )
    shorter = min(rows.shape)
    if n_dims < 1 or (n_dims > shorter and not fewer):
        raise ConfigError(
            f"{n_dims} dimensions of {rows.shape[0]} texts over {rows.shape[1]} words cannot be had; "
            f"ask for 1 to {shorter}"
        )
    if not np.isfinite(rows.data).all():
        raise InputError("a row holds NaN or infinity; make the tf-idf rows again")
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
            f"{n_dims} dimensions cannot be had: the rows have rank {int(kept.sum())}; ask for at most as many"
        )
    return SingularVectors(values[kept], _signed(words[:, kept]))


def _by_gram(rows: sp.csr_matrix, mean: Float64, n_dims: int) -> tuple[Float64, Float64]:
    """Return values (falling) and vectors from the eigenvectors of X X^T or X^T X, whichever is smaller."""
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
    """Return values (falling) and vectors by the implicitly restarted Lanczos method."""
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
    """Return the columns with the sign that makes their entry of largest magnitude positive."""
    largest = words[np.abs(words).argmax(axis=0), np.arange(words.shape[1])]
    return np.asarray(words * np.where(largest < 0.0, -1.0, 1.0), dtype=np.float64)
