"""Embedding, scoring and inner products of tf-idf rows by numba, in float32; the reference is `tests.reference.rows`.

Rows are 2**31 - 1 columns wide; scipy's own products would allocate arrays of that width. Scoring is bound by memory:
candidates lie anywhere in the store, so each row is prefetched while others are scored. Kernels access raw memory,
so their arguments are checked before they are called.

Large inputs are shared among the cores by rows, which do not depend on one another.

Types are declared, so machine code is compiled once per machine: at the first import, in about 10 s. It is cached next
to this file or in the user's cache directory, and no request waits for a compiler. Sums are reassociated for SIMD in an
order that depends only on lengths, so equal inputs give equal bits in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

import numba as nb
import numpy as np
import scipy.sparse as sp
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic

from reranker.arrays import AnyArray, AnyInt, Float32, Int32, Int64
from reranker.cores import bounds_of, in_parts, n_cores
from reranker.errors import InputError, ShapeMismatch

Table: TypeAlias = tuple[AnyArray, AnyArray, np.uint32, np.uint32, np.int64]

_FASTMATH = {"reassoc", "nsz", "contract", "arcp"}  # without nnan and ninf: a NaN must stay visible
_INTS = nb.types.Array(nb.int32, 1, "C", readonly=True)
_LONGS = nb.types.Array(nb.int64, 1, "C", readonly=True)
_FLOATS = nb.types.Array(nb.float32, 1, "C", readonly=True)
_MATRIX = nb.types.Array(nb.float32, 2, "C", readonly=True)
_OUT = nb.types.Array(nb.float32, 2, "C")
_BYTES = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_TABLE = nb.types.Tuple((nb.int32[::1], nb.float32[::1], nb.uint32, nb.uint32, nb.int64))
_LINE = 16  # values of 4 bytes in a cache line
_AHEAD = 2  # candidates between prefetching a row and reading it
_ASKED_TERMS = 1024  # prefetched terms of a row; the processor's own prefetching covers the rest
_CHECKED_ROWS = 1 << 14
_VALUES_A_CORE = 1 << 18  # values of a sparse matrix for each thread, or scores, at least


class Rows(NamedTuple):
    """Sparse rows in CSR form."""

    indptr: Int64
    """Start of each row, and the end of the last, (n + 1,) int64."""
    indices: Int32
    """Word ids, (nnz,) int32, ascending in each row."""
    data: Float32
    """Weights, (nnz,) float32."""


def compiled(
    signatures: list[object], fastmath: Collection[str] = _FASTMATH
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return numba's decorator, with the cache on disk if a directory for it is writable."""
    options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath)}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel: Callable[..., Any]
        try:
            kernel = nb.njit(signatures, cache=True, **options)(function)
        except RuntimeError:  # numba found no writable cache directory (a read-only container): compile in each process
            kernel = nb.njit(signatures, cache=False, **options)(function)
        return kernel

    return decorate


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _prefetch(_typing: Any, array: Any, place: Any) -> Any:
    """Prefetch ``array[place]`` without waiting; places outside of the array are harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, int32, int32, int32])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(ask, [address, int32(0), int32(3), int32(1)])  # for reading, keep in cache, data
        return context.get_dummy_value()

    return nb.void(array, nb.intp), generate


@compiled([nb.void(_LONGS, _INTS, _FLOATS, _MATRIX, _OUT)])
def _embed(indptr: AnyArray, indices: AnyArray, data: AnyArray, E: AnyArray, out: AnyArray) -> None:
    n_words, n_dims = E.shape
    for row in range(len(out)):
        for place in range(indptr[row], indptr[row + 1]):
            word = indices[place]
            if 0 <= word < n_words:
                weight = data[place]
                for k in range(n_dims):
                    out[row, k] += weight * E[word, k]


@compiled([nb.int64(_BYTES, _LONGS, nb.int64, nb.int64, nb.uint32[::1], nb.uint8[::1], nb.uint8[::1], nb.int64[::1])])
def split_packed(
    data: AnyArray,
    starts: AnyArray,
    width: int,
    scale_bytes: int,
    ids: AnyArray,
    values: AnyArray,
    scales: AnyArray,
    indptr: AnyArray,
) -> int:
    """Split rows packed by `reranker.kernels.packing` into arrays; return the number of the first damaged row, or n.

    Parameters
    ----------
    data : array
        The packed rows one after the other, uint8.
    starts : array
        Start of each row, and the end of the last, (n + 1,) int64.
    width : int
        Bytes of a value.
    scale_bytes : int
        Bytes of a row's scale.
    ids, values : array
        Receive word ids (uint32) and the bytes of the values, row after row; large enough for all of ``data``.
    scales : array
        Receives the bytes of the scales, row after row.
    indptr : array
        Receives the start of each row in ``ids``, and the end of the last, (n + 1,) int64.
    """
    n = len(starts) - 1
    indptr[0] = 0
    for row in range(n):
        at, end, place = starts[row], starts[row + 1], indptr[row]
        if end - at < 9:
            return row
        n_short, n_long = np.int64(0), np.int64(0)
        for k in range(4):
            n_short |= np.int64(data[at + 1 + k]) << (8 * k)
            n_long |= np.int64(data[at + 5 + k]) << (8 * k)
        n_terms = n_short + n_long
        at += 9
        if end - at != 2 * n_short + 4 * n_long + scale_bytes + width * n_terms:
            return row
        for k in range(n_short):
            ids[place + k] = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            at += 2
        for k in range(n_short, n_terms):
            low = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            high = np.uint32(data[at + 2]) | np.uint32(data[at + 3]) << np.uint32(8)
            ids[place + k] = low | high << np.uint32(16)
            at += 4
        for k in range(scale_bytes):
            scales[row * scale_bytes + k] = data[at + k]
        at += scale_bytes
        for k in range(width * n_terms):
            values[width * place + k] = data[at + k]
        indptr[row + 1] = place + n_terms
    return n


@compiled([_TABLE(_INTS, _FLOATS, nb.int64, nb.uint32)])
def _fill_table(q_ids: AnyArray, q_weights: AnyArray, bits: int, multiplier: np.uint32) -> Table:
    """Return a hash table (linear probing) of the query's words, and the largest distance of a word from its slot."""
    size = 1 << bits
    shift = np.uint32(32 - bits)
    keys = np.full(size + len(q_ids), -1, np.int32)  # room at the end, so that probing need not wrap around
    weights = np.zeros(len(keys), np.float32)
    reach = np.int64(0)
    for k in range(len(q_ids)):
        home = np.int64(np.uint32(np.uint32(q_ids[k]) * multiplier) >> shift)
        slot = home
        while keys[slot] != -1:
            slot += 1
        keys[slot] = q_ids[k]
        weights[slot] = q_weights[k]
        reach = max(reach, np.int64(slot - home))
    return keys, weights, multiplier, shift, reach


@compiled([_TABLE(_INTS, _FLOATS)])
def _query_table(q_ids: AnyArray, q_weights: AnyArray) -> Table:
    """Return a table without collisions (no branch to mispredict) if a few attempts give one, else the last one."""
    bits = 4
    while (1 << bits) < 4 * len(q_ids):
        bits += 1
    multiplier = np.uint32(2654435769)  # 2**32 / golden ratio
    table: Table = _fill_table(q_ids, q_weights, bits, multiplier)
    for attempt in range(16):
        if table[4] == 0:
            break
        multiplier = np.uint32(np.uint32(multiplier * np.uint32(1664525)) + np.uint32(2027808484))  # stays odd
        table = _fill_table(q_ids, q_weights, bits + attempt // 4, multiplier)
    return table


@compiled(
    [
        nb.boolean(_FLOATS, _INTS, _FLOATS, nb.float32, _LONGS, _MATRIX, indptr, _INTS, _FLOATS, nb.float32[::1])
        for indptr in (_INTS, _LONGS)
    ]
)
def _score_rows(  # noqa: PLR0913, PLR0917
    q_vec: AnyArray,
    q_ids: AnyArray,
    q_weights: AnyArray,
    a: np.float32,
    cand_rows: AnyArray,
    V_docs: AnyArray,
    indptr: AnyArray,
    indices: AnyArray,
    data: AnyArray,
    out: AnyArray,
) -> bool:
    keys, weights, multiplier, shift, reach = _query_table(q_ids, q_weights)
    n_dims, flat_vectors = V_docs.shape[1], V_docs.reshape(-1)
    for place in range(len(cand_rows)):
        if place + 2 * _AHEAD < len(cand_rows):
            _prefetch(indptr, cand_rows[place + 2 * _AHEAD])
        if place + _AHEAD < len(cand_rows):
            row = cand_rows[place + _AHEAD]
            for k in range(row * n_dims, (row + 1) * n_dims, _LINE):
                _prefetch(flat_vectors, k)
            for p in range(indptr[row], min(indptr[row + 1], indptr[row] + _ASKED_TERMS), _LINE):
                _prefetch(indices, p)
                _prefetch(data, p)
        row = cand_rows[place]
        start, end = indptr[row], indptr[row + 1]
        if start < 0 or end < start or end > len(indices):
            return False
        learned = np.float32(0)
        for k in range(n_dims):
            learned += q_vec[k] * V_docs[row, k]
        same_words = np.float32(0)
        for step in range(reach + 1):
            for p in range(start, end):
                slot = np.int64(np.uint32(np.uint32(indices[p]) * multiplier) >> shift) + step
                same_words += weights[slot] * data[p] if keys[slot] == indices[p] else np.float32(0)
        out[place] = learned + a * same_words
    return True


@compiled([nb.void(_LONGS, _INTS, _FLOATS, _LONGS, _INTS, _FLOATS, nb.float32[::1])])
def _row_dots(
    left_ptr: AnyArray,
    left_ids: AnyArray,
    left_data: AnyArray,
    right_ptr: AnyArray,
    right_ids: AnyArray,
    right_data: AnyArray,
    out: AnyArray,
) -> None:
    for row in range(len(out)):
        i, j = left_ptr[row], right_ptr[row]
        total = np.float32(0)
        while i < left_ptr[row + 1] and j < right_ptr[row + 1]:
            if left_ids[i] == right_ids[j]:
                total += left_data[i] * right_data[j]
                i += 1
                j += 1
            elif left_ids[i] < right_ids[j]:
                i += 1
            else:
                j += 1
        out[row] = total


@compiled([nb.void(_LONGS, _INTS, _FLOATS, _LONGS, _INTS, _FLOATS, _OUT)], fastmath=())
def _products(
    indptr: AnyArray,
    words: AnyArray,
    values: AnyArray,
    list_ptr: AnyArray,
    documents: AnyArray,
    weights: AnyArray,
    out: AnyArray,
) -> None:
    for row in range(len(out)):
        scores = out[row]
        for place in range(indptr[row], indptr[row + 1]):
            value, first, end = values[place], list_ptr[words[place]], list_ptr[words[place] + 1]
            of_word, weighted = documents[first:end], weights[first:end]
            for p in range(len(of_word)):
                # An unsigned index skips the check for negative (from the end) indices: three times as fast.
                scores[np.uint32(of_word[p])] += value * weighted[p]


@nb.njit(nogil=True, inline="always")
def _is_lower(value: float, place: int, other: float, other_place: int) -> bool:
    """Return whether the first value is left out before the other: it is lower, or equal and later in its row."""
    return value < other or (value == other and place > other_place)


@compiled([nb.void(_MATRIX, nb.int32[:, ::1])], fastmath=())
def _highest(scores: AnyArray, out: AnyArray) -> None:
    n = out.shape[1]
    heap = np.empty(n, np.float32)
    for row in range(len(scores)):
        values, places = scores[row], out[row]
        n_kept = 0
        for column in range(len(values)):
            value = values[column]
            if n_kept < n:
                n_kept += 1
                child = n_kept - 1
                while child > 0 and _is_lower(value, column, heap[(child - 1) // 2], places[(child - 1) // 2]):
                    heap[child], places[child] = heap[(child - 1) // 2], places[(child - 1) // 2]
                    child = (child - 1) // 2
                heap[child], places[child] = value, column
            elif value > heap[0]:
                place = 0
                while True:
                    child = 2 * place + 1
                    if child >= n:
                        break
                    if child + 1 < n and _is_lower(heap[child + 1], places[child + 1], heap[child], places[child]):
                        child += 1
                    if not _is_lower(heap[child], places[child], value, column):
                        break
                    heap[place], places[place] = heap[child], places[child]
                    place = child
                heap[place], places[place] = value, column
        places.sort()


def highest_places(scores: Float32, n: int) -> Int32:
    """Return the places of the n highest values of each row, ascending, (n_rows, n) int32; no value may be NaN.

    Of equal values the first ones are taken. It is about six times as fast as `numpy.argpartition`: few values of a row
    are higher than the lowest one that is kept so far.
    """
    out = np.empty((len(scores), min(n, scores.shape[1])), np.int32)
    if out.size:
        values = np.ascontiguousarray(scores, np.float32)
        bounds = bounds_of(len(values), _n_parts(values.size))
        in_parts(lambda first, last: _highest(values[first:last], out[first:last]), bounds)
    return out


def embed_rows(rows: sp.csr_matrix | Rows, E: Float32) -> Float32:
    """Return the embedding of each row, (n_rows, N) float32; see `tests.reference.rows.embed_rows`."""
    check_rows(rows.indptr, rows.indices, rows.data)
    check_embedding(E)
    out = np.zeros((len(rows.indptr) - 1, E.shape[1]), np.float32)
    indptr, indices, data = _arrays(rows)
    in_parts(
        lambda first, last: _embed(indptr[first : last + 1], indices, data, E, out[first:last]),
        _bounds(indptr, len(data)),
    )
    return out


def score_rows(  # noqa: PLR0913, PLR0917 - every route passes flat arrays
    q_vec: Float32,
    q_ids: AnyInt,
    q_weights: Float32,
    a: float,
    cand_rows: Int64,
    V_docs: Float32,
    indptr: AnyInt,
    indices: AnyInt,
    data: Float32,
) -> Float32:
    """Return the score of each candidate, (n_candidates,) float32; see `tests.reference.rows.score_rows`."""
    check_rows(indptr, indices, data, ends_only=True)
    check_embedding(V_docs)
    check_query(q_vec, q_ids, q_weights, V_docs)
    check_candidates(cand_rows, min(len(V_docs), len(indptr) - 1))
    out = np.empty(len(cand_rows), np.float32)
    rows = np.ascontiguousarray(cand_rows, np.int64)
    query = (_floats(q_vec), _ids(q_ids), _floats(q_weights), np.float32(a))
    # A store's pointers, in millions, are not converted; there is machine code for both types that occur.
    pointers = np.ascontiguousarray(indptr, np.int32 if indptr.dtype == np.int32 else np.int64)
    if not _score_rows(*query, rows, V_docs, pointers, _ids(indices), _floats(data), out):
        raise InputError("the store's row pointers are damaged (they decrease or exceed the data); rebuild the store")
    return out


def dense_products(rows: sp.csr_matrix, postings: sp.csr_matrix) -> Float32:
    """Return the product of rows and postings (words by documents), (n_rows, n_documents) float32, dense.

    Each sum is computed in the order of the row's words, as scipy's product of the two computes it, bit for bit.
    """
    for part in (rows, postings):
        check_rows(part.indptr, part.indices, part.data)
    n_words, n_documents = postings.shape
    for ids, n in ((rows.indices, n_words), (postings.indices, n_documents)):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < n:
            raise ShapeMismatch(f"ids from {ids.min()} to {ids.max()} do not fit {n} columns; build both from one task")
    out = np.zeros((rows.shape[0], n_documents), np.float32)
    (indptr, words, values), lists = _arrays(rows), _arrays(postings)
    in_parts(
        lambda first, last: _products(indptr[first : last + 1], words, values, *lists, out[first:last]),
        _bounds(indptr, out.size),
    )
    return out


def dots(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the inner product of row r of both, (n_rows,) float32; see `tests.reference.rows.dots`."""
    check_row_pairs(left, right)
    out = np.empty(len(left.indptr) - 1, np.float32)
    _row_dots(*_arrays(left), *_arrays(right), out)
    return out


def check_rows(indptr: AnyInt, indices: AnyInt, data: Float32, *, ends_only: bool = False) -> None:
    """Raise `ShapeMismatch` unless ``indptr`` rises from 0 to ``len(indices)`` and ``data`` has that length.

    With ``ends_only`` only the ends of ``indptr`` are checked: the kernel checks the few of a store's millions of rows
    that it reads.
    """
    fits = len(indptr) > 0 and indptr[0] == 0 and indptr[-1] == len(indices) and len(indices) == len(data)
    if not fits or not (ends_only or bool((indptr[1:] >= indptr[:-1]).all())):
        raise ShapeMismatch(
            f"CSR arrays of lengths indptr {len(indptr)}, indices {len(indices)}, data {len(data)} do not "
            f"fit: indptr must rise from 0 to the length of indices, and data have that length; use "
            f"scipy.sparse.csr_matrix"
        )


def check_embedding(E: Float32) -> None:
    """Raise `ShapeMismatch` if an embedding table is not a C-contiguous float32 matrix."""
    if E.ndim != 2 or E.dtype != np.float32 or not E.flags.c_contiguous:
        raise ShapeMismatch(
            f"an embedding table of dtype {E.dtype} and shape {E.shape} was given; it must be a C-contiguous float32 "
            f"matrix with one row per word: use numpy.ascontiguousarray(E, dtype=numpy.float32)"
        )


def check_candidates(cand_rows: Int64, n_documents: int) -> None:
    """Raise `InputError` for a row number below 0 (an id that is not in the store) or beyond the last row."""
    if len(cand_rows) == 0:
        return
    low, high = int(cand_rows.min()), int(cand_rows.max())
    if low < 0 or high >= n_documents:
        raise InputError(
            f"candidate row {low if low < 0 else high} is outside of the store's 0..{n_documents - 1}; "
            f"leave out candidates that are not in the store before scoring",
            row=low if low < 0 else high,
        )


def check_query(q_vec: Float32, q_ids: AnyInt, q_weights: Float32, V_docs: Float32) -> None:
    """Check a query's arrays.

    Raises `ShapeMismatch` for the wrong number of dimensions, `InputError` for NaN, infinity or ids out of order.
    """
    if q_vec.shape != (V_docs.shape[1],) or q_ids.shape != q_weights.shape:
        raise ShapeMismatch(
            f"query vector {q_vec.shape}, terms {q_ids.shape} and weights {q_weights.shape} do not fit document "
            f"vectors of {V_docs.shape[1]} dimensions; encode the query with the model that made the vectors"
        )
    if not (np.isfinite(q_vec).all() and np.isfinite(q_weights).all()):
        raise InputError("the query vector or a query weight is NaN or infinite; check the model with `ssi versions`")
    if len(q_ids) > 1 and not bool((q_ids[1:] > q_ids[:-1]).all()):
        raise InputError("query term ids must be strictly increasing; sort and sum the row (csr.sum_duplicates())")


def check_row_pairs(left: sp.csr_matrix, right: sp.csr_matrix) -> None:
    """Raise `ShapeMismatch` if a matrix is not CSR or the numbers of rows differ."""
    for rows in (left, right):
        check_rows(rows.indptr, rows.indices, rows.data)
    if len(left.indptr) != len(right.indptr):
        raise ShapeMismatch(
            f"{len(left.indptr) - 1} rows cannot be paired with {len(right.indptr) - 1}: give one row on the right for "
            f"each on the left"
        )


def check_finite_rows(E: Float32, name: str) -> None:
    """Raise `InputError` for the first row of ``E`` with a NaN or infinite value; reads a memory map in pieces."""
    for start in range(0, len(E), _CHECKED_ROWS):
        good = np.isfinite(E[start : start + _CHECKED_ROWS]).all(axis=1)
        if not good.all():
            word = start + int(np.argmin(good))
            raise InputError(
                f"{name} holds NaN or infinity in the row of word {word}; training diverged or the file is damaged: "
                f"train again with a smaller step",
                word=word,
            )


def _arrays(rows: sp.csr_matrix | Rows) -> tuple[Int64, AnyInt, Float32]:
    return np.ascontiguousarray(rows.indptr, np.int64), _ids(rows.indices), _floats(rows.data)


def _n_parts(n_values: int) -> int:
    # A search has few values, and asking for the number of cores would take longer than its kernels.
    return 1 if n_values < _VALUES_A_CORE else min(n_cores(), 1 + n_values // _VALUES_A_CORE)


def _bounds(indptr: Int64, n_values: int) -> list[int]:
    """Return the bounds of parts of the rows that have equally many words."""
    n_parts, n_rows = _n_parts(n_values), len(indptr) - 1
    if n_parts == 1:
        return [0, n_rows]
    inner = np.linspace(0, indptr[-1], 1 + n_parts)[1:-1]
    return [0, *np.searchsorted(indptr[:-1], inner).tolist(), n_rows]


def _ids(indices: AnyInt) -> AnyInt:
    return np.ascontiguousarray(indices, np.int32)


def _floats(values: Float32) -> Float32:
    return np.ascontiguousarray(values, np.float32)
