"""The papers' plain SGD on weights of words and of word pairs, compiled by numba, and the hash of word pairs.

A step costs nnz(q) (nnz(d+) + nnz(d-)); no dense outer product is computed. All functions release the GIL. Low-rank
models are trained by `papers.methods.product_sgd`, except those with products of query words. `best_columns` finds
the largest values of sparse rows.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from papers.methods.product_sgd import (
    ONE,
    OPTIONS,
    ZERO,
    add_outer_row,
    combine_factors,
    factor_slope,
    gather,
    project_row,
    scatter,
    width,
)


@njit(**OPTIONS)
def diagonal_steps(w, queries, documents, triples, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Run the steps of `tests.reference.plain_sgd.diagonal_steps`."""
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
    """Return the scores of `tests.reference.plain_sgd.dense_pairs`."""
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
    """Run the steps of `tests.reference.plain_sgd.dense_steps`."""
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
def _block_score(W, queries, query, documents, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the sum over blocks p of q_p^T W d_p; block p has the columns p F to p F + F - 1, ascending."""
    n_features = W.shape[0]
    total = ZERO
    first, stop = documents.indptr[document], documents.indptr[document + 1]
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        block = queries.indices[p] // n_features
        low, high = block * n_features, block * n_features + n_features
        while first < stop and documents.indices[first] < low:
            first += 1
        row = W[queries.indices[p] - low]
        inner = ZERO
        r = first
        while r < stop and documents.indices[r] < high:
            inner += row[documents.indices[r] - low] * documents.data[r]
            r += 1
        total += queries.data[p] * inner
    return total


@njit(**OPTIONS)
def block_pairs(W, queries, documents):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the scores of `tests.reference.plain_sgd.block_pairs`."""
    out = np.empty(queries.indptr.shape[0] - 1, np.float32)
    for row in range(out.shape[0]):
        out[row] = _block_score(W, queries, row, documents, row)
    return out


@njit(**OPTIONS)
def _block_add(W, queries, query, documents, document, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add rate times the sum over blocks p of q_p d_p^T to W."""
    n_features = W.shape[0]
    first, stop = documents.indptr[document], documents.indptr[document + 1]
    for p in range(queries.indptr[query], queries.indptr[query + 1]):
        block = queries.indices[p] // n_features
        low, high = block * n_features, block * n_features + n_features
        while first < stop and documents.indices[first] < low:
            first += 1
        factor = rate * queries.data[p]
        row = W[queries.indices[p] - low]
        r = first
        while r < stop and documents.indices[r] < high:
            row[documents.indices[r] - low] += factor * documents.data[r]
            r += 1


@njit(**OPTIONS)
def block_steps(W, queries, documents, triples, rate):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Run the steps of `tests.reference.plain_sgd.block_steps`."""
    rate = np.float32(rate)
    stats = np.zeros(2, np.float64)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        hinge = ONE - _block_score(W, queries, query, documents, positive)
        hinge += _block_score(W, queries, query, documents, negative)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            _block_add(W, queries, query, documents, positive, rate)
            _block_add(W, queries, query, documents, negative, -rate)
    return stats


@njit(**OPTIONS)
def _first_slot(s, prime, n_slots):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return s P mod H, so that a division is needed only per query word, not per pair."""
    return np.uint64(s) * prime % n_slots


@njit(**OPTIONS)
def _slot(first, t, n_slots):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return (first + t) mod H; a division is rarely needed, because there are fewer words than slots."""
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
    """Run the steps of `tests.reference.plain_sgd.hash_steps`."""
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
    """Return the scores of `tests.reference.plain_sgd.hash_pairs`."""
    out = np.empty(queries.indptr.shape[0] - 1, np.float32)
    for row in range(out.shape[0]):
        out[row] = _hash_score(w, queries, row, documents, row, np.uint64(prime))
    return out


@njit(**OPTIONS)
def hash_expand(queries, columns, w, prime):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the rows of `tests.reference.plain_sgd.hash_expand`."""
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


@njit(**OPTIONS)
def query_polynomial_steps(T, V, queries, documents, triples, rate, n_factors, identity):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Run the steps of `tests.reference.plain_sgd.query_polynomial_steps`."""
    rate, identity = np.float32(rate), np.float32(identity)
    stats = np.zeros(2, np.float64)
    dense = np.zeros(max(width(queries), width(documents)), np.float32)
    n_dims = V.shape[1]
    e, delta, other = np.empty(n_dims, np.float32), np.empty(n_dims, np.float32), np.empty(n_dims, np.float32)
    p, g = np.empty(T.shape[1], np.float32), np.empty(T.shape[1], np.float32)
    for step in range(triples.query.shape[0]):
        query, positive, negative = triples.query[step], triples.positive[step], triples.negative[step]
        project_row(T, queries, query, p)
        project_row(V, documents, positive, delta)
        project_row(V, documents, negative, other)
        combine_factors(p, n_factors, False, e)
        hinge = ONE
        for k in range(n_dims):
            delta[k] -= other[k]
            hinge -= e[k] * delta[k]
        if identity != 0:
            scatter(dense, queries, query, identity)
            hinge -= gather(dense, documents, positive) - gather(dense, documents, negative)
            scatter(dense, queries, query, ZERO)
        if not hinge <= 0:  # a NaN must reach the sum
            stats[0] += 1
            stats[1] += hinge
            factor_slope(p, delta, n_factors, False, g)
            add_outer_row(T, queries, query, g, rate)
            add_outer_row(V, documents, positive, e, rate)
            add_outer_row(V, documents, negative, e, -rate)
    return stats


PRIME = 2**31 - 1
"""P in the hash of word pairs, (s P + t) mod H; for word numbers below 2**31 the products fit into 64 bits."""


@njit(cache=True, nogil=True)
def best_columns(indptr, indices, values, k):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the columns of `tests.reference.row_best.best_columns` in one pass, keeping the k best of a row sorted."""
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
