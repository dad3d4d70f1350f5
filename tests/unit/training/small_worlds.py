"""Small made-up worlds in which it is known what a ranking model has to learn."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from papers.plain_sgd import PlainData, TripleSampler
from reranker.models.scorers import Scorer


def csr(rows: list[list[float]]) -> sp.csr_matrix:
    """Return dense rows as the tests' csr_matrix float32."""
    matrix = sp.csr_matrix(np.array(rows, np.float32))
    matrix.sort_indices()
    return matrix


def unit_rows(words: list[list[int]], n_words: int) -> sp.csr_matrix:
    """Return rows of unit length with equal weights of the listed words."""
    dense = np.zeros((len(words), n_words), np.float32)
    for row, listed in enumerate(words):
        dense[row, listed] = 1.0 / np.sqrt(len(listed))
    return csr(dense.tolist())


def translated(rng: np.random.Generator, n: int = 60, n_query: int = 20, n_document: int = 20) -> PlainData:
    """Return texts of three words whose one relevant document holds a fixed translation of each word.

    No text is relevant by sharing words, so exact matching is of no use and W must be learned.
    """
    translation = rng.permutation(n_document)[:n_query] if n_document >= n_query else np.arange(n_query) % n_document
    words = [sorted(rng.choice(n_query, 3, replace=False).tolist()) for _ in range(n)]
    q_rows = unit_rows(words, n_query)
    d_rows = unit_rows([sorted({int(translation[word]) for word in row}) for row in words], n_document)
    own = np.full(n, -1, np.int64)
    return PlainData(q_rows, d_rows, sp.csr_matrix(sp.eye_array(n, format="csr")), own)


def rank_loss(scorer: Scorer, data: PlainData, n: int = 2_000) -> float:
    """Return the share of tuples in the wrong order, ties counted half."""
    triples = TripleSampler(data).draw(n, np.random.default_rng(7))
    q_rows = data.q_rows[triples.query]
    better = scorer.score_pairs(q_rows, data.d_rows[triples.positive])
    worse = scorer.score_pairs(q_rows, data.d_rows[triples.negative])
    return float(np.mean((better < worse) + 0.5 * (better == worse)))
