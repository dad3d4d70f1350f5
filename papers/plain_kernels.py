"""Kernels of the plain SGD.

What the compiled kernels of the plain SGD share: options of numba, products of a dense vector with sparse rows.

The low-rank steps of the plain SGD compiled by numba: N (nnz(q) + nnz(d+) + nnz(d-)) a step and factor.

The papers' plain SGD compiled by numba: the same steps as `tests.reference.plain_sgd`, on sparse rows.

A step costs nnz(q) (nnz(d+) + nnz(d-)) for word-pair weights and N (nnz(q) + nnz(d+) + nnz(d-)) for embeddings; no
dense outer product is formed. All functions release the GIL.

Arguments of the plain SGD kernels, and the hash of word pairs: the same for both implementations.

The best columns of sparse rows.

The best columns of sparse rows compiled by numba: same results as `row_best_reference`, without a sort.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

OPTIONS: dict[str, Any] = {  # no nnan or ninf: a NaN must stay visible
    "fastmath": {"reassoc", "nsz", "contract", "arcp"},
    "cache": True,
    "nogil": True,
    "boundscheck": False,
}
ZERO = np.float32(0)
ONE = np.float32(1)


@njit(**OPTIONS)
def width(rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the greatest word number + 1."""
    top = -1
    for p in range(rows.indices.shape[0]):
        top = max(top, rows.indices[p])
    return top + 1


@njit(**OPTIONS)
def scatter(dense, rows, row, factor):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set dense[i] = factor * weight of the row's words."""
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        dense[rows.indices[p]] = factor * rows.data[p]


@njit(**OPTIONS)
def gather(dense, rows, row):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the dot product of a dense vector and a row."""
    total = ZERO
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        total += dense[rows.indices[p]] * rows.data[p]
    return total


@njit(**OPTIONS)
def _project(E, rows, row, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set out to the sum of weight * E[word]; words past E's rows have no learned part."""
    n_rows, n_dims = E.shape
    out[:] = ZERO
    p, stop = rows.indptr[row], rows.indptr[row + 1]
    while p + 4 <= stop and rows.indices[p + 3] < n_rows:  # four rows at a time: one pass over out for four of E
        i0, i1, i2, i3 = rows.indices[p], rows.indices[p + 1], rows.indices[p + 2], rows.indices[p + 3]
        v0, v1, v2, v3 = rows.data[p], rows.data[p + 1], rows.data[p + 2], rows.data[p + 3]
        for k in range(n_dims):
            out[k] += v0 * E[i0, k] + v1 * E[i1, k] + v2 * E[i2, k] + v3 * E[i3, k]
        p += 4
    while p < stop and rows.indices[p] < n_rows:  # indices ascend
        i, value = rows.indices[p], rows.data[p]
        for k in range(n_dims):
            out[k] += value * E[i, k]
        p += 1


@njit(**OPTIONS)
def _add_outer(E, rows, row, x, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add rate * weight * x to E[word] of the row's words."""
    n_rows, n_dims = E.shape
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        i, factor = rows.indices[p], rate * rows.data[p]
        if i < n_rows:
            for k in range(n_dims):
                E[i, k] += factor * x[k]


@njit(**OPTIONS)
def _combine(p, n_factors, separate, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set out to c(d); see `plain_sgd_types.Combination`."""
    if separate:
        n_dims = out.shape[0] // 2
        for k in range(n_dims):
            out[k] = p[k] * p[2 * n_dims + k]
            out[n_dims + k] = p[n_dims + k]
        return
    n_dims = out.shape[0]
    for k in range(n_dims):
        tail = ONE
        for j in range(n_factors - 1, 0, -1):
            tail = ONE + p[j * n_dims + k] * tail
        out[k] = p[k] * tail


@njit(**OPTIONS)
def _slope(p, u, n_factors, separate, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set out to the gradient of u.c(d) with respect to p."""
    if separate:
        n_dims = u.shape[0] // 2
        for k in range(n_dims):
            out[k] = u[k] * p[2 * n_dims + k]
            out[n_dims + k] = u[n_dims + k]
            out[2 * n_dims + k] = u[k] * p[k]
        return
    n_dims = u.shape[0]
    for k in range(n_dims):
        before = u[k]
        for j in range(n_factors):
            out[j * n_dims + k] = before
            before *= p[j * n_dims + k]
        after = ONE
        for j in range(n_factors - 1, -1, -1):
            out[j * n_dims + k] *= after
            after = ONE + p[j * n_dims + k] * after


@njit(**OPTIONS)
def low_rank_steps(U, T, queries, documents, triples, rate, combination, identity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Make the steps of `plain_sgd_reference.low_rank_steps`."""
    rate, identity = np.float32(rate), np.float32(identity)
    n_factors, separate = combination.n_factors, combination.separate
    stats = np.zeros(2, np.float64)
    dense = np.zeros(max(width(queries), width(documents)), np.float32)
    u, cp, cn = (np.empty(U.shape[1], np.float32), np.empty(U.shape[1], np.float32), np.empty(U.shape[1], np.float32))
    p, n, g = (np.empty(T.shape[1], np.float32), np.empty(T.shape[1], np.float32), np.empty(T.shape[1], np.float32))
    h = np.empty(T.shape[1], np.float32)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        _project(U, queries, query, u)
        _project(T, documents, positive, p)
        _project(T, documents, negative, n)
        _combine(p, n_factors, separate, cp)
        _combine(n, n_factors, separate, cn)
        hinge = ONE
        for k in range(u.shape[0]):
            cp[k] -= cn[k]
            hinge -= u[k] * cp[k]
        if identity != 0:
            scatter(dense, queries, query, identity)
            hinge -= gather(dense, documents, positive) - gather(dense, documents, negative)
            scatter(dense, queries, query, ZERO)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            _slope(p, u, n_factors, separate, g)
            _slope(n, u, n_factors, separate, h)
            _add_outer(U, queries, query, cp, rate)
            _add_outer(T, documents, positive, g, rate)
            _add_outer(T, documents, negative, h, -rate)
    return stats


__all__ = [
    "dense_pairs",
    "dense_steps",
    "diagonal_steps",
    "hash_expand",
    "hash_pairs",
    "hash_steps",
    "low_rank_steps",
]


@njit(**OPTIONS)
def diagonal_steps(w, queries, documents, triples, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Make the steps of `plain_sgd_reference.diagonal_steps`."""
    rate = np.float32(rate)
    stats = np.zeros(2, np.float64)
    dense = np.zeros(w.shape[0], np.float32)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        scatter(dense, queries, query, ONE)
        hinge = ONE
        for p in range(documents.indptr[positive], documents.indptr[positive + 1]):
            i = documents.indices[p]
            hinge -= dense[i] * w[i] * documents.data[p]
        for p in range(documents.indptr[negative], documents.indptr[negative + 1]):
            i = documents.indices[p]
            hinge += dense[i] * w[i] * documents.data[p]
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            for p in range(documents.indptr[positive], documents.indptr[positive + 1]):
                i = documents.indices[p]
                w[i] += rate * dense[i] * documents.data[p]
            for p in range(documents.indptr[negative], documents.indptr[negative + 1]):
                i = documents.indices[p]
                w[i] -= rate * dense[i] * documents.data[p]
        scatter(dense, queries, query, ZERO)
    return stats


@njit(**OPTIONS)
def _dense_score(W, queries, query, documents, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return q^T W d."""
    total = ZERO
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        row = W[queries.indices[p]]
        total += queries.data[p] * gather(row, documents, document)
    return total


@njit(**OPTIONS)
def dense_pairs(W, queries, documents):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what `plain_sgd_reference.dense_pairs` does."""
    out = np.empty(queries.indptr.shape[0] - 1, np.float32)
    for row in range(out.shape[0]):
        out[row] = _dense_score(W, queries, row, documents, row)
    return out


@njit(**OPTIONS)
def _dense_add(W, queries, query, documents, document, rate, keep_diagonal):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add rate q d^T to W."""
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        s = queries.indices[p]
        factor = rate * queries.data[p]
        for r in range(documents.indptr[document], documents.indptr[document + 1]):
            t = documents.indices[r]
            if keep_diagonal or s != t:
                W[s, t] += factor * documents.data[r]


@njit(**OPTIONS)
def dense_steps(W, queries, documents, triples, rate, keep_diagonal):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Make the steps of `plain_sgd_reference.dense_steps`."""
    rate = np.float32(rate)
    stats = np.zeros(2, np.float64)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        hinge = ONE - _dense_score(W, queries, query, documents, positive)
        hinge += _dense_score(W, queries, query, documents, negative)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            _dense_add(W, queries, query, documents, positive, rate, keep_diagonal)
            _dense_add(W, queries, query, documents, negative, -rate, keep_diagonal)
    return stats


@njit(**OPTIONS)
def _first_slot(s, prime, n_slots):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return s P mod H: one division a query word, not one a pair."""
    return np.uint64(s) * prime % n_slots


@njit(**OPTIONS)
def _slot(first, t, n_slots):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return (first + t) mod H; seldom a division, as words are fewer than slots."""
    slot = first + np.uint64(t)
    return slot if slot < n_slots else slot % n_slots


@njit(**OPTIONS)
def _hash_score(w, queries, query, documents, document, prime):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the sum over word pairs of q_s d_t w[h(s, t)]."""
    n_slots = np.uint64(w.shape[0])
    total = ZERO
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        inner = ZERO
        first = _first_slot(queries.indices[p], prime, n_slots)
        for r in range(documents.indptr[document], documents.indptr[document + 1]):
            inner += documents.data[r] * w[_slot(first, documents.indices[r], n_slots)]
        total += queries.data[p] * inner
    return total


@njit(**OPTIONS)
def _hash_add(w, queries, query, documents, document, prime, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add rate q_s d_t to w[h(s, t)] for every pair of words."""
    n_slots = np.uint64(w.shape[0])
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        factor = rate * queries.data[p]
        first = _first_slot(queries.indices[p], prime, n_slots)
        for r in range(documents.indptr[document], documents.indptr[document + 1]):
            w[_slot(first, documents.indices[r], n_slots)] += factor * documents.data[r]


@njit(**OPTIONS)
def hash_steps(w, queries, documents, triples, rate, prime, identity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Make the steps of `plain_sgd_reference.hash_steps`."""
    rate, identity, prime = np.float32(rate), np.float32(identity), np.uint64(prime)
    stats = np.zeros(2, np.float64)
    dense = np.zeros(max(width(queries), width(documents)), np.float32)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        hinge = ONE - _hash_score(w, queries, query, documents, positive, prime)
        hinge += _hash_score(w, queries, query, documents, negative, prime)
        if identity != 0:
            scatter(dense, queries, query, identity)
            hinge -= gather(dense, documents, positive) - gather(dense, documents, negative)
            scatter(dense, queries, query, ZERO)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            _hash_add(w, queries, query, documents, positive, prime, rate)
            _hash_add(w, queries, query, documents, negative, prime, -rate)
    return stats


@njit(**OPTIONS)
def hash_pairs(w, queries, documents, prime):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what `plain_sgd_reference.hash_pairs` does."""
    out = np.empty(queries.indptr.shape[0] - 1, np.float32)
    for row in range(out.shape[0]):
        out[row] = _hash_score(w, queries, row, documents, row, np.uint64(prime))
    return out


@njit(**OPTIONS)
def hash_expand(queries, columns, w, prime):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what `plain_sgd_reference.hash_expand` does."""
    n_slots, prime = np.uint64(w.shape[0]), np.uint64(prime)
    n_rows = queries.indptr.shape[0] - 1
    out = np.zeros((n_rows, columns.shape[0]), np.float32)
    for row in range(n_rows):
        for p in range(queries.indptr[row], queries.indptr[row + 1]):
            weight = queries.data[p]
            first = _first_slot(queries.indices[p], prime, n_slots)
            for c in range(columns.shape[0]):
                out[row, c] += weight * w[_slot(first, columns[c], n_slots)]
    return out


Int64 = npt.NDArray[np.int64]

PRIME = 2**31 - 1
"""P of the pair hash (s P + t) mod H; products of word numbers below 2**31 stay inside 64 bits."""


class Triples(NamedTuple):
    """Steps to make, in this order: rows of the query, of the document to rank higher and of the one to rank lower.

    All (n,) int64.
    """

    query: Int64
    positive: Int64
    negative: Int64


class Combination(NamedTuple):
    """How the document's embeddings make the vector c(d) that meets Uq: f(q, d) = (Uq).c(d) + a q.d.

    The document table T holds ``n_factors`` embeddings E1, E2, ... side by side, one row a word.

    ==========================  ==============================================  ================
    Spec                        c(d)                                            columns of T
    ==========================  ==============================================  ================
    M05, M06, M07, M08          E1 d                                            N
    M18                         E1 d o (1 + E2 d)                               2 N
    M20                         E1 d o (1 + E2 d o (1 + E3 d o (...)))          ``n_factors`` N
    M19 (``separate``)          [E1 d o E2 d, F d], T = [E1, F, E2]             3 N, and U 2 N
    ==========================  ==============================================  ================
    """

    n_factors: int = 1
    separate: bool = False

    def document_columns(self, n_dims: int) -> int:
        """Return the columns of T for N dimensions."""
        return 3 * n_dims if self.separate else self.n_factors * n_dims

    def query_columns(self, n_dims: int) -> int:
        """Return the columns of U for N dimensions."""
        return 2 * n_dims if self.separate else n_dims


def pair_hash(s: Int64, t: Int64, prime: int, n_slots: int) -> Int64:
    """Return the slot of word pairs, h(s, t) = (s P + t) mod H.

    With P > D and H >= D P + D + 1 no two pairs of words 0..D-1 share a slot.

    Parameters
    ----------
    s, t : int64
        Words of the query and of the document; broadcast against each other.
    prime : int
        P.
    n_slots : int
        H.

    Returns
    -------
    int64, the broadcast shape

    Notes
    -----
    Source: spec 2.3, M09.
    """
    slots: Int64 = (np.asarray(s, np.int64) * np.int64(prime) + np.asarray(t, np.int64)) % np.int64(n_slots)
    return slots


@njit(cache=True, nogil=True)
def best_columns(indptr, indices, values, k):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return what `row_best_reference.best_columns` does: each row is gone through once, its k best kept in order."""
    n_rows = indptr.shape[0] - 1
    best = np.full((n_rows, k), -1, np.int32)
    kept = np.empty(k, np.float64)
    for row in range(n_rows):
        n = 0
        for p in range(indptr[row], indptr[row + 1]):
            column, value = indices[p], values[p]
            if n == k and (value < kept[k - 1] or (value == kept[k - 1] and column > best[row, k - 1])):
                continue
            place = n if n < k else k - 1
            while place > 0 and (
                value > kept[place - 1] or (value == kept[place - 1] and column < best[row, place - 1])
            ):
                kept[place], best[row, place] = kept[place - 1], best[row, place - 1]
                place -= 1
            kept[place], best[row, place] = value, column
            n = min(n + 1, k)
    return best
