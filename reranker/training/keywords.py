"""Keyword queries: documents cut to some of their words, the tf-idf rows then divided by their new length (A21)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Bool, Int64
from reranker.training.config import Schedule


def cut_to_keywords(rows: sp.csr_matrix, n_words: int, rng: np.random.Generator) -> sp.csr_matrix:
    """Return each row with ``n_words`` of its words, uniform without replacement (all if fewer), at unit length.

    All rows are drawn at once; `keyword_rows` draws the same distribution row by row, from other numbers.

    Source: spec T3, A21.
    """
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    order = np.lexsort((rng.random(rows.nnz), row))
    place = np.arange(rows.nnz) - rows.indptr[row]  # the sort leaves rows where they are
    return _unit_part(rows, np.sort(order[place < n_words]), np.minimum(np.diff(rows.indptr), n_words))


def keyword_rows(rows: sp.csr_matrix, n_words: int, rng: np.random.Generator) -> sp.csr_matrix:
    """Return the same, one permutation a row: the keyword queries of validation."""
    places = [np.empty(0, np.int64)]
    for start, stop in zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True):
        places.append(np.sort(rng.permutation(stop - start)[:n_words]) + start)
    return _unit_part(rows, np.concatenate(places), np.array([len(chosen) for chosen in places[1:]], np.int64))


def as_trained(rows: sp.csr_matrix, documents: Bool, schedule: Schedule, rng: np.random.Generator) -> sp.csr_matrix:
    """Return query rows as a training step draws them: a share of those that are documents cut to some random words.

    Rows are (n, any) float32, ``documents`` (n,) bool; the schedule has the share and the least and most words.
    """
    cut = documents & (rng.random(rows.shape[0]) < schedule.keyword_share)
    n_words = np.where(cut, rng.integers(schedule.keyword_min, schedule.keyword_max + 1, rows.shape[0]), 0)
    parts, places = [], []
    for n in np.unique(n_words).tolist():
        chosen = np.flatnonzero(n_words == n)
        parts.append(cut_to_keywords(rows[chosen], n, rng) if n else rows[chosen])
        places.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    drawn: sp.csr_matrix = sp.vstack(parts, format="csr")[order]
    return drawn


def _unit_part(rows: sp.csr_matrix, places: Int64, lengths: Int64) -> sp.csr_matrix:
    """Return rows of the values at ``places``, so many a row, at unit length."""
    row = np.repeat(np.arange(rows.shape[0]), lengths)
    data = rows.data[places]
    length = np.sqrt(np.bincount(row, data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_matrix(((data / length[row]).astype(np.float32), rows.indices[places], indptr), shape=rows.shape)
