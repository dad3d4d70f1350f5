"""Sparse rows of words: counts, unit length, rows one below the other, and the columns in use.

A row is one of a ``csr_matrix``. Rows over the open vocabulary are `N_TERM_IDS` columns wide, so everything here costs
what is stored, whatever the width: scipy's own stacking, column indexing and products allocate arrays of that width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, Int64, offsets_of
from reranker.text.analyzers import Analyzer
from reranker.text.view import TextView
from reranker.text.vocabulary import Vocabulary

ROW_SHIFT = 31
"""A sortable number of a stored value: row << ROW_SHIFT | term id."""
NARROW = 1_000_000
"""Columns that scipy's work arrays may have: a few MB."""
_BATCH = 2_048


def row_of(rows: sp.csr_matrix) -> Int64:
    """Return the row number of each stored value."""
    return np.repeat(np.arange(rows.shape[0], dtype=np.int64), np.diff(rows.indptr))


def with_data(rows: sp.csr_matrix, data: AnyArray) -> sp.csr_matrix:
    """Return rows with the same words and other values."""
    return sp.csr_matrix((data, rows.indices, rows.indptr), shape=rows.shape)


def unit_rows(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows divided by their Euclidean lengths, float32; an empty row stays empty."""
    row = row_of(rows)
    length = np.sqrt(np.bincount(row, rows.data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    return with_data(rows, (rows.data / length[row]).astype(np.float32))


def stack_rows(parts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return the matrices one below the other."""
    if not parts:
        return sp.csr_matrix((0, N_TERM_IDS), dtype=np.float32)  # type: ignore[arg-type]
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return sp.csr_matrix((data, indices, offsets_of(lengths)), shape=(len(lengths), parts[0].shape[1]))


def used_columns(matrices: Sequence[sp.csr_matrix]) -> Int64:
    """Return the sorted distinct columns that hold a stored value in any of the matrices, (m,) int64."""
    if not matrices:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.concatenate([np.unique(matrix.indices) for matrix in matrices])).astype(np.int64)


def select_columns(matrix: sp.csr_matrix, columns: Int64) -> sp.csr_matrix:
    """Return the matrix restricted to ``columns`` and renumbered: new column j is old column ``columns[j]``.

    ``columns`` ascend and are distinct, as `used_columns` returns them; values in others are left out. The result is
    float32, with sorted indices if the input's were.
    """
    if len(columns) == 0:
        return sp.csr_matrix(np.empty((matrix.shape[0], 0), dtype=np.float32))
    places = np.searchsorted(columns, matrix.indices)
    known = columns[np.minimum(places, len(columns) - 1)] == matrix.indices
    return sp.csr_matrix(
        (matrix.data[known].astype(np.float32), places[known].astype(np.int32), offsets_of(known)[matrix.indptr]),
        shape=(matrix.shape[0], len(columns)),
    )


def compact_columns(*matrices: sp.csr_matrix) -> list[sp.csr_matrix]:
    """Return the matrices with their columns renumbered to those in use in any of them, in the same order.

    Inner products between rows are unchanged: compact(A) compact(B)^T = A B^T. Matrices narrow enough to be worked
    with as they are (at most `NARROW` columns) are returned unchanged.
    """
    if all(matrix.shape[1] <= NARROW for matrix in matrices):
        return list(matrices)
    columns = used_columns(matrices)
    return [select_columns(matrix, columns) for matrix in matrices]


def count_rows(vocabulary: Vocabulary, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix:
    """Return how often each word stands in each text, (n, N_TERM_IDS) float32, ids ascending in each row.

    Words that the vocabulary does not list have hashed ids and are counted, too.
    """
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    keys = np.repeat(np.arange(len(tokens), dtype=np.int64) << ROW_SHIFT, lengths)
    keys |= vocabulary.ids(list(chain.from_iterable(tokens)))
    distinct, counts = np.unique(keys, return_counts=True)
    indptr = np.searchsorted(distinct, np.arange(len(tokens) + 1, dtype=np.int64) << ROW_SHIFT)
    indices = (distinct & N_TERM_IDS).astype(np.int32)
    return sp.csr_matrix((counts.astype(np.float32), indices, indptr), shape=(len(tokens), N_TERM_IDS))


def field_counts(
    vocabulary: Vocabulary, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
) -> list[sp.csr_matrix]:
    """Return the word counts of each field of the view: one (n, N_TERM_IDS) matrix a field, in field order."""
    parts: list[list[sp.csr_matrix]] = [[] for _ in view.fields]
    for start in range(0, len(sources), _BATCH):
        texts = [view.texts(source) for source in sources[start : start + _BATCH]]
        for field, part in enumerate(parts):
            part.append(count_rows(vocabulary, analyzer.tokens([text[field] for text in texts])))
    return [stack_rows(part) for part in parts]
