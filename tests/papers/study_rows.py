"""Small random rows for the models of the papers, and pairs of texts in two made-up languages."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def random_rows(rng: np.random.Generator, n: int, n_words: int, density: float = 0.3) -> sp.csr_matrix:
    """Return rows of unit length (0 where a row drew no word), float32."""
    dense = rng.random((n, n_words)) * (rng.random((n, n_words)) < density)
    length = np.linalg.norm(dense, axis=1, keepdims=True)
    length[length == 0] = 1
    return sp.csr_matrix((dense / length).astype(np.float32))


def translated(rng: np.random.Generator, rows: sp.csr_matrix, n_others: int = 3) -> sp.csr_matrix:
    """Return the rows in another language: word i becomes word (i + 1) mod n, with words of no meaning added."""
    n, n_words = rows.shape
    order = (np.arange(n_words) + 1) % n_words
    moved = sp.csr_matrix((rows.data, order[rows.indices], rows.indptr), shape=rows.shape)
    noise = random_rows(rng, n, n_others) * np.float32(0.5)
    return sp.csr_matrix(sp.hstack([moved, noise]), dtype=np.float32)


def random_counts(rng: np.random.Generator, n: int, n_words: int) -> sp.csr_matrix:
    """Return word counts with at least one word a text, float32."""
    counts = rng.poisson(0.7, (n, n_words))
    counts[:, 0] += 1
    return sp.csr_matrix(counts.astype(np.float32))
