"""Types of arrays for the whole project, and helpers for rows of words, concatenated runs and numbered ids."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
AnyFloat = npt.NDArray[np.floating[Any]]
AnyInt = npt.NDArray[np.integer[Any]]
AnyArray = npt.NDArray[Any]
_Ints = TypeVar("_Ints", Int32, Int64)


N_TERM_IDS = 2**31 - 1
"""Number of columns of a row of words, the maximum for int32. Known words start at 0, hashed words at 2**30."""


MOST_COPIED = 1024
"""Largest number of rows of matrices that are copied from an empty one."""


def term_rows(data: Float32, indices: Int32, indptr: Int32) -> sp.csr_matrix[np.float32]:
    """Return rows of words from sorted CSR arrays, without scipy's check, which is slow for 2**31 columns."""
    n = len(indptr) - 1
    if n > MOST_COPIED or indices.dtype != np.int32 or indptr.dtype != np.int32:
        return _built_rows(data, indices, indptr)
    # Every request builds a few small matrices. scipy's constructor takes several times the time of a shallow copy.
    rows = copy.copy(_empty_rows(n))
    rows.data, rows.indices, rows.indptr = data, indices, indptr
    return rows


def _built_rows(data: Float32, indices: Int32, indptr: Int32) -> sp.csr_matrix[np.float32]:
    rows = sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, N_TERM_IDS), copy=False)
    rows.has_sorted_indices = rows.has_canonical_format = True
    return rows


@lru_cache(maxsize=64)
def _empty_rows(n: int) -> sp.csr_matrix[np.float32]:
    return _built_rows(np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(n + 1, np.int32))


def offsets_of(lengths: AnyArray | list[int]) -> Int64:
    """Return the start of each of n concatenated runs, and the end of the last one, (n + 1,) int64."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def numbers_of(ids: Sequence[str], number_of: Mapping[str, int]) -> Int32:
    """Return the number of each id, (n,) int32; -1 for an id without a number."""
    return np.fromiter((number_of.get(id_, -1) for id_ in ids), np.int32, len(ids))


def pair_keys(first: AnyInt, second: AnyInt, n_second: int) -> Int64:
    """Return one number for each pair, first * n_second + second, (n,) int64."""
    return first.astype(np.int64) * n_second + second


def first_uses(values: AnyInt) -> Int64:
    """Return the position of the first occurrence of each value, ascending."""
    return np.sort(np.unique(values, return_index=True)[1])


def distinct(values: _Ints) -> _Ints:
    """Return the distinct values, ascending. np.unique would need a hash table with 60 bytes per value."""
    ordered = np.sort(values)
    first: _Ints = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return first


def are_among(values: AnyInt, others: AnyInt) -> Bool:
    """Return for each value whether it is among ``others``, (n,) bool."""
    ordered = np.sort(others)
    return np.searchsorted(ordered, values, side="right") > np.searchsorted(ordered, values)
