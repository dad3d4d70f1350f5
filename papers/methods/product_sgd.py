"""Margin ranking SGD on products of embeddings, compiled by numba; the reference is `tests.reference.plain_sgd`.

All low-rank models of the papers are trained by these steps. A step costs N (nnz(q) + nnz(d+) + nnz(d-)) operations for
each of the document's embeddings. All functions release the GIL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from reranker.arrays import Int64

OPTIONS: dict[str, Any] = {  # without nnan and ninf: a NaN must stay visible
    "fastmath": {"reassoc", "nsz", "contract", "arcp"},
    "cache": True,
    "nogil": True,
    "boundscheck": False,
}
INLINED: dict[str, Any] = {**OPTIONS, "inline": "always"}
"""Options of functions that kernels call.

Inlining makes results reproducible: a function by itself may be other machine code if it was read from the cache.
"""
ZERO = np.float32(0)
ONE = np.float32(1)


class Triples(NamedTuple):
    """Training steps in their order, as row numbers, (n,) int64 each."""

    query: Int64
    positive: Int64
    """The document that should rank higher."""
    negative: Int64


class Combination(NamedTuple):
    """How the document's embeddings give the vector c(d) in f(q, d) = (Uq).c(d) + a q.d.

    The document table T holds ``n_factors`` embeddings E1, E2, ... side by side, with one row per word.

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


@njit(**INLINED)
def width(rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the largest word number plus 1."""
    top = -1
    for p in range(rows.indices.shape[0]):
        top = max(top, rows.indices[p])
    return top + 1


@njit(**INLINED)
def scatter(dense, rows, row, factor):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Set dense[i] = factor * weight for the words of a row."""
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        dense[rows.indices[p]] = factor * rows.data[p]


@njit(**INLINED)
def gather(dense, rows, row):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the inner product of a dense vector and a row."""
    total = ZERO
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        total += dense[rows.indices[p]] * rows.data[p]
    return total


@njit(**INLINED)
def project_row(E, rows, row, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Set out to the sum of weight * E[word]; words beyond E's rows have no learned part."""
    n_rows, n_dims = E.shape
    out[:] = ZERO
    p, stop = rows.indptr[row], rows.indptr[row + 1]
    while p + 4 <= stop and rows.indices[p + 3] < n_rows:  # one pass over out for four rows of E
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


@njit(**INLINED)
def add_outer_row(E, rows, row, x, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Add rate * weight * x to E[word] for the words of a row."""
    n_rows, n_dims = E.shape
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        i, factor = rows.indices[p], rate * rows.data[p]
        if i < n_rows:
            for k in range(n_dims):
                E[i, k] += factor * x[k]


@njit(**INLINED)
def combine_factors(p, n_factors, separate, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Set out to c(d); see `Combination`."""
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


@njit(**INLINED)
def factor_slope(p, u, n_factors, separate, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
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
def low_rank_steps(U, T, queries, documents, triples, rate, combination, identity, lexical=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, PLR0913, PLR0917
    """Run the steps of `tests.reference.plain_sgd`; ``lexical`` (n,) float32 is added to each f(q, d+) - f(q, d-)."""
    rate, identity = np.float32(rate), np.float32(identity)
    n_factors, separate = combination.n_factors, combination.separate
    stats = np.zeros(2, np.float64)
    dense = np.zeros(max(width(queries), width(documents)), np.float32)
    u, cp, cn = (np.empty(U.shape[1], np.float32), np.empty(U.shape[1], np.float32), np.empty(U.shape[1], np.float32))
    p, n, g = (np.empty(T.shape[1], np.float32), np.empty(T.shape[1], np.float32), np.empty(T.shape[1], np.float32))
    h = np.empty(T.shape[1], np.float32)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        project_row(U, queries, query, u)
        project_row(T, documents, positive, p)
        project_row(T, documents, negative, n)
        combine_factors(p, n_factors, separate, cp)
        combine_factors(n, n_factors, separate, cn)
        hinge = ONE
        for k in range(u.shape[0]):
            cp[k] -= cn[k]
            hinge -= u[k] * cp[k]
        if lexical is not None:
            hinge -= lexical[step]
        if identity != 0:
            scatter(dense, queries, query, identity)
            hinge -= gather(dense, documents, positive) - gather(dense, documents, negative)
            scatter(dense, queries, query, ZERO)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            factor_slope(p, u, n_factors, separate, g)
            factor_slope(n, u, n_factors, separate, h)
            add_outer_row(U, queries, query, cp, rate)
            add_outer_row(T, documents, positive, g, rate)
            add_outer_row(T, documents, negative, h, -rate)
    return stats
