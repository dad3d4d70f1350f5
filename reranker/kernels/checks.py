"""Checks at the border of the serving kernels: a kernel indexes raw memory, so its arguments are checked once here."""

from __future__ import annotations

import numpy as np

from reranker.arrays import AnyInt, Float32, Int64
from reranker.errors import InputError, ShapeMismatch

_CHECKED_ROWS = 1 << 14


def check_rows(indptr: AnyInt, indices: AnyInt, data: Float32, *, ends_only: bool = False) -> None:
    """Refuse CSR arrays whose lengths or row bounds do not fit each other.

    With ``ends_only`` not every row's bounds are looked at: for a store of millions of rows of which a kernel reads,
    and checks, a few.

    Raises
    ------
    ShapeMismatch
        If ``indptr`` is empty, decreases, does not run from 0 to ``len(indices)``, or ``data`` has another length.
    """
    fits = len(indptr) > 0 and indptr[0] == 0 and indptr[-1] == len(indices) and len(indices) == len(data)
    if not fits or not (ends_only or bool((indptr[1:] >= indptr[:-1]).all())):
        raise ShapeMismatch(
            f"CSR arrays of lengths indptr {len(indptr)}, indices {len(indices)}, data {len(data)} do not "
            f"fit: indptr must rise from 0 to the length of indices, and data be as long; use scipy.sparse.csr_matrix"
        )


def check_embedding(E: Float32) -> None:
    """Refuse an embedding table that is not a C-contiguous float32 matrix.

    Raises
    ------
    ShapeMismatch
        If ``E`` has another type, rank or memory order.
    """
    if E.ndim != 2 or E.dtype != np.float32 or not E.flags.c_contiguous:
        raise ShapeMismatch(
            f"an embedding table of dtype {E.dtype}, shape {E.shape} was given; it must be a C-contiguous float32 "
            f"matrix with one row a word: use numpy.ascontiguousarray(E, dtype=numpy.float32)"
        )


def check_candidates(cand_rows: Int64, n_documents: int) -> None:
    """Refuse row numbers outside of the store.

    Raises
    ------
    InputError
        If a row is negative (an id that the store does not hold) or past the end.
    """
    if len(cand_rows) == 0:
        return
    low, high = int(cand_rows.min()), int(cand_rows.max())
    if low < 0 or high >= n_documents:
        raise InputError(
            f"candidate row {low if low < 0 else high} is outside of the store's 0..{n_documents - 1}; "
            f"leave out candidates that the store does not hold before scoring",
            row=low if low < 0 else high,
        )


def check_query(q_vec: Float32, q_ids: AnyInt, q_weights: Float32, V_docs: Float32) -> None:
    """Refuse a query whose vector or terms do not fit the store.

    Raises
    ------
    ShapeMismatch
        If dimensions differ, or the query has not one weight a term.
    InputError
        If the query vector or a weight is NaN or infinite, or the ids are not strictly increasing.
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


def check_row_pairs(left: tuple[AnyInt, AnyInt, Float32], right: tuple[AnyInt, AnyInt, Float32]) -> None:
    """Refuse two CSR triples of unequal numbers of rows.

    Raises
    ------
    ShapeMismatch
        If a triple is not CSR or the numbers of rows differ.
    """
    check_rows(*left)
    check_rows(*right)
    if len(left[0]) != len(right[0]):
        raise ShapeMismatch(
            f"{len(left[0]) - 1} rows cannot be paired with {len(right[0]) - 1}: give one row on the right for each "
            f"on the left"
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
