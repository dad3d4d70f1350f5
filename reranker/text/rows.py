"""Functions on sparse rows (CSR): combine, select, normalise, multiply."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Bool, Float32, Int32, Int64, offsets_of, term_rows
from reranker.errors import ShapeMismatch

_ROW_SHIFT = 31
"""Position of the row number in a sortable key of a stored value: row << _ROW_SHIFT | word."""


NARROW = 1_000_000
"""Largest number of columns for which arrays with an item per column are made; they then take a few MB."""


def combine(rows: Sequence[sp.csr_matrix[np.float32]], weights: Sequence[float]) -> sp.csr_matrix[np.float32]:
    """Return d = Σ_k weight_k · row_k, ``(n, N_TERM_IDS) float32``; the sum is not normalised.

    ``rows`` are the rows of each field. `ShapeMismatch` is raised if the numbers of fields, weights or rows differ.
    """
    if not rows or len(rows) != len(weights) or len({field.shape for field in rows}) != 1:
        shapes = [field.shape for field in rows]
        raise ShapeMismatch(
            f"fields of shapes {shapes} with {len(weights)} weights: give equal shapes, one weight per field"
        )
    n = rows[0].shape[0]
    if len(rows) == 1:
        return term_rows(rows[0].data * np.float32(weights[0]), rows[0].indices, rows[0].indptr)
    keys = np.concatenate([keys_of(field) for field in rows])
    scaled = [field.data.astype(np.float64) * weight for field, weight in zip(rows, weights, strict=True)]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(np.concatenate(scaled)[order], first) if len(first) else np.zeros(0)
    return rows_of_keys(keys[first], sums.astype(np.float32), n)


def row_of(rows: sp.csr_matrix) -> Int64:
    """Return the row number of each stored value."""
    if len(rows.indptr) == 2:  # one text, such as the query of a search
        return np.zeros(int(rows.indptr[1] - rows.indptr[0]), dtype=np.int64)
    return np.repeat(np.arange(rows.shape[0], dtype=np.int64), np.diff(rows.indptr))


def keys_of(rows: sp.csr_matrix) -> Int64:
    """Return the sortable key of each stored value, row << 31 | word."""
    return row_of(rows) << _ROW_SHIFT | rows.indices


def rows_of_keys(keys: Int64, data: Float32, n: int) -> sp.csr_matrix[np.float32]:
    """Return n rows from values and their ascending `keys_of`."""
    indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) << _ROW_SHIFT).astype(np.int32)
    return term_rows(data, (keys & N_TERM_IDS).astype(np.int32), indptr)


def mirrored(rows: sp.csr_matrix) -> sp.csr_matrix[np.float32]:
    """Return rows in which word i has the number ``N_TERM_IDS - 1 - i``; applied twice, it changes nothing.

    Two rows of a document that are mirrored to each other can be stored as one: their numbers differ, except that one
    may meet the number of an unlisted word, as two unlisted words may meet.
    """
    places: Any = slice(None, None, -1)
    if len(rows.indptr) != 2:
        row = row_of(rows)
        places = rows.indptr[:-1].astype(np.int64)[row] + rows.indptr[1:][row] - 1 - np.arange(rows.nnz)
    data = np.ascontiguousarray(rows.data[places])
    return term_rows(data, np.int32(N_TERM_IDS - 1) - rows.indices[places], rows.indptr)


def with_data(rows: sp.csr_matrix, data: AnyArray) -> sp.csr_matrix:
    """Return rows with the same words and other values."""
    changed = copy.copy(rows)  # scipy's constructor takes ten times as long
    changed.data = data
    return changed


def keep_values(rows: sp.csr_matrix, kept: Bool) -> sp.csr_matrix:
    """Return the rows with only those stored values for which ``kept``, (nnz,) bool, is true."""
    indptr = offsets_of(kept)[rows.indptr].astype(rows.indptr.dtype)
    return sp.csr_matrix((rows.data[kept], rows.indices[kept], indptr), shape=rows.shape)


def unit_rows(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows divided by their Euclidean lengths, float32; an empty row stays empty."""
    row = row_of(rows)
    length = np.sqrt(np.bincount(row, rows.data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    return with_data(rows, (rows.data / length[row]).astype(np.float32))


def stack_rows(parts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return the matrices stacked vertically."""
    if not parts:
        return sp.csr_matrix((0, N_TERM_IDS), dtype=np.float32)  # type: ignore[arg-type]
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return sp.csr_matrix((data, indices, offsets_of(lengths)), shape=(len(lengths), parts[0].shape[1]))


def used_columns(matrices: Sequence[sp.csr_matrix]) -> Int64:
    """Return the sorted distinct columns with a stored value in any of the matrices, (m,) int64."""
    if not matrices:
        return np.empty(0, dtype=np.int64)
    low, high = np.zeros(NARROW, bool), []
    for matrix in matrices:
        is_low = matrix.indices < NARROW
        low[matrix.indices[is_low]] = True
        high.append(np.unique(matrix.indices[~is_low]).astype(np.int64))
    return np.concatenate([np.flatnonzero(low), np.unique(np.concatenate(high))])


def select_columns(matrix: sp.csr_matrix, columns: Int64) -> sp.csr_matrix:
    """Return the matrix restricted to ``columns`` and renumbered: new column j is old column ``columns[j]``.

    ``columns`` are ascending and distinct, as `used_columns` returns them. Values in other columns are left out. The
    result is float32; its indices are sorted if those of the input were.
    """
    if len(columns) == 0:
        return sp.csr_matrix(np.empty((matrix.shape[0], 0), dtype=np.float32))
    places = _places_of(columns, matrix.indices)
    known, shape = places >= 0, (matrix.shape[0], len(columns))
    if known.all():
        # The usual case: there is nothing to leave out, and no memory is needed for that.
        return sp.csr_matrix((matrix.data.astype(np.float32), places, matrix.indptr.copy()), shape=shape)
    return sp.csr_matrix(
        (matrix.data[known].astype(np.float32), places[known], offsets_of(known)[matrix.indptr]), shape=shape
    )


def _places_of(columns: Int64, wanted: AnyInt) -> Int32:
    """Return the place of each wanted column among the ascending ``columns``, (n,) int32; -1 for other columns.

    Most words of documents have low ids. A table of these is several times as fast as a binary search.
    """
    low = columns[columns < NARROW]
    end = 1 + int(low.max(initial=-1))
    table = np.full(end + 1, -1, np.int32)  # the last item is that of all columns from ``end`` on
    table[low] = np.arange(len(low), dtype=np.int32)
    places: Int32 = table[np.minimum(wanted, end)]
    high = np.flatnonzero(wanted >= NARROW)
    found = np.searchsorted(columns, wanted[high])
    is_known = columns[np.minimum(found, len(columns) - 1)] == wanted[high]
    places[high] = np.where(is_known, found, -1)
    return places


def compact_columns(*matrices: sp.csr_matrix) -> list[sp.csr_matrix]:
    """Return the matrices with their columns renumbered to those used in any of them, in the same order.

    Inner products between rows are unchanged: compact(A) compact(B)^T = A B^T. Matrices with at most `NARROW` columns
    are returned unchanged.
    """
    if all(matrix.shape[1] <= NARROW for matrix in matrices):
        return list(matrices)
    columns = used_columns(matrices)
    return [select_columns(matrix, columns) for matrix in matrices]


def inner_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return all inner products of rows of both, (n, m) float32; raises `ShapeMismatch` if their widths differ."""
    if left.shape[1] != right.shape[1]:
        raise ShapeMismatch(
            f"rows of {left.shape[1]} and {right.shape[1]} columns have no dot product; use one vocabulary"
        )
    left, right = compact_columns(left, right)
    products: Float32 = (left @ right.T).toarray()
    return products


def _without_zeros(rows: sp.csr_matrix) -> sp.csr_matrix:
    return rows if rows.data.all() else keep_values(rows, rows.data != 0)
