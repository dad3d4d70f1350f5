"""Keyword queries: documents cut to some of their words, the rows then divided by their new length (A21)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Bool, Int64, offsets_of
from reranker.text.tfidf import row_of, stack_rows
from reranker.training.config import Schedule
from reranker.training.problem import TwoRows


def cut_to_keywords(rows: TwoRows, n_words: int, rng: np.random.Generator) -> TwoRows:
    """Return each row with ``n_words`` of its words, uniform without replacement (all if fewer), at unit length.

    Source: spec T3, A21.
    """
    pattern = rows.learned
    row = row_of(pattern)
    order = np.lexsort((rng.random(pattern.nnz), row))
    place = np.arange(pattern.nnz) - pattern.indptr[row]  # the sort leaves rows where they are
    places = np.sort(order[place < n_words])
    lengths = np.minimum(np.diff(pattern.indptr), n_words)
    return TwoRows(
        _part(rows.learned, places, lengths, rows.learned.data**2),
        _part(rows.lexical, places, lengths, rows.squares.data),
        _part(rows.squares, places, lengths, rows.squares.data, squared=True),
    )


def as_trained(rows: TwoRows, documents: Bool, schedule: Schedule, rng: np.random.Generator) -> TwoRows:
    """Return query rows as a training step draws them: a share of those that are documents cut to some random words.

    ``documents`` (n,) bool says which are; the schedule has the share and the least and most words.
    """
    n = rows.learned.shape[0]
    cut = documents & (rng.random(n) < schedule.keyword_share)
    n_words = np.where(cut, rng.integers(schedule.keyword_min, schedule.keyword_max + 1, n), 0)
    parts: list[TwoRows] = []
    places: list[Int64] = []
    for number in np.unique(n_words).tolist():
        chosen = np.flatnonzero(n_words == number)
        some = rows.part(chosen)
        parts.append(cut_to_keywords(some, number, rng) if number else some)
        places.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    return TwoRows(*(stack_rows(part) for part in zip(*parts, strict=True))).part(order)


def _part(
    rows: sp.csr_matrix, places: Int64, lengths: AnyInt, squares: np.ndarray, squared: bool = False
) -> sp.csr_matrix:
    """Return rows of the values at ``places``, so many a row, divided by the root (or the sum) of their squares."""
    row = np.repeat(np.arange(rows.shape[0]), lengths)
    sums = np.bincount(row, squares[places].astype(np.float64), minlength=rows.shape[0])
    sums[sums == 0] = 1.0
    data = rows.data[places] / (sums if squared else np.sqrt(sums))[row]
    return sp.csr_matrix((data.astype(np.float32), rows.indices[places], offsets_of(lengths)), shape=rows.shape)
