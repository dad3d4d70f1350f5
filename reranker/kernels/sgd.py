"""Margin ranking SGD compiled by numba; it takes the steps of `tests.reference.sgd` with the same random draws.

All functions release the GIL, so that several threads can run `sgd_steps`, each on a U of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numba import njit

from reranker.arrays import Float32, Float64, Int32, Int64, UInt64
from reranker.kernels.rows import Rows


class Tuples(NamedTuple):
    """Preferences to train on: for query ``query[t]``, document ``document[t]`` should rank above other documents."""

    query: Int64
    """Query rows, (n,) int64."""
    document: Int64
    """Document rows, (n,) int64."""
    weight: Float32
    """Factor of the step, (n,) float32, above 0."""
    worse_indptr: Int64
    """The documents stated to be worse in tuple t are at ``worse_indptr[t]:worse_indptr[t + 1]`` of ``worse``."""
    worse: Int64
    """Document rows, int64."""
    keep: Float32 = np.empty(0, np.float32)
    """Acceptance probabilities of an alias table (`alias_table`), (n,) float32; empty: tuples are drawn uniformly.

    A drawn tuple t is replaced by ``alias[t]`` with probability 1 - ``keep[t]``.
    """
    alias: Int64 = np.empty(0, np.int64)
    """Replacement of each tuple, (n,) int64."""


class LexicalValues(NamedTuple):
    """Weights of the lexical rows q and d, at the words of the learned rows that U and V read."""

    queries: Float32
    """Weights in q, float32, aligned with ``data`` of the query `Rows`."""
    squares: Float32
    """Contribution of each query value to the squared length of the query, float32.

    A query that keeps only some of its words is divided by the root of the sum of their contributions.
    """
    documents: Float32
    """Weights in d, float32, aligned with ``data`` of the document `Rows`."""


class NegativePool(NamedTuple):
    """Documents from which negatives are drawn."""

    pool: Int64
    """Document rows, int64."""
    known_indptr: Int64
    """The documents never used as negatives of query q are at ``known_indptr[q]:known_indptr[q + 1]`` of ``known``."""
    known: Int64
    """Document rows, int64, ascending for each query."""
    nearest: Int32 = np.empty((0, 0), np.int32)
    """Documents that ranked high for a query, none of them known, (n_lists, k) int32.

    -1 in the first column: none were retrieved for the query. Shape (0, 0): none for any query.
    """
    list_of: Int32 = np.empty(0, np.int32)
    """Row of ``nearest`` for each query, (n_queries,) int32; -1: the query has none. Empty without ``nearest``."""


class Parameters(NamedTuple):
    """Trained parameters, changed in place; all float32."""

    U: Float32
    """(n_rows, N)."""
    V: Float32
    """(n_rows, N); the same array as U if tied."""
    cache: Float32
    """Vd of each document, slightly outdated, (n_documents, N)."""


class StepConfig(NamedTuple):
    """Scalars of the SGD loop; see `reranker.training.config.TrainConfig` for those not described here."""

    rate_start: np.float32
    rate_end: np.float32
    n_total: int
    identity: np.float32
    max_norm: np.float32
    max_trials: int
    hard_negatives: bool
    keyword_share: np.float32
    keyword_min: int
    keyword_max: int
    query_dropout: np.float32
    stated_negative_ratio: np.float32
    n_columns: int
    whole_from: int
    """Queries from this row on are never reduced to keywords."""
    freeze_documents: bool
    """V is not changed, and the cache is exact."""
    nearest_share: np.float32 = np.float32(0)

    @classmethod
    def of(cls, **numbers: Any) -> StepConfig:
        """Return the scalars with the given values by name, converted to their types; other names are ignored."""
        kinds = get_type_hints(cls)
        return cls(**{name: kind(numbers[name]) for name, kind in kinds.items() if name in numbers})


MAX_DROPPED_QUERY = 10
"""Query dropout does not apply to queries of at most this number of words: too little would be left of them."""


_OPTIONS: dict[str, Any] = {"fastmath": True, "cache": True, "nogil": True, "boundscheck": False}
# Inlined into their callers: a function by itself may be other machine code if it was read from the cache.
_INLINED: dict[str, Any] = {**_OPTIONS, "inline": "always"}
_ZERO = np.float32(0)
_ONE = np.float32(1)


@njit(**_INLINED)
def _below(state, n):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Draw a whole number from 0 to n - 1 (xorshift64*, upper 32 bits)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    high = (x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32)
    return np.int64((high * np.uint64(n)) >> np.uint64(32))


@njit(**_INLINED)
def _chance(state, share):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return True with probability ``share``; makes no random draw if it is 0."""
    if share <= 0:
        return False
    return _below(state, 16777216) < share * np.float32(16777216)


@njit(**_INLINED)
def _project(E, indices, data, n, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, C901
    """Set out to the sum of data[p] * E[indices[p]]; ids beyond E's rows have no learned part."""
    n_rows, n_dims = E.shape
    for k in range(n_dims):
        out[k] = _ZERO
    p = 0
    while p + 4 <= n:  # one pass over out for four rows of E
        i0, i1, i2, i3 = indices[p], indices[p + 1], indices[p + 2], indices[p + 3]
        v0, v1, v2, v3 = data[p], data[p + 1], data[p + 2], data[p + 3]
        if i0 >= n_rows:
            i0, v0 = 0, _ZERO
        if i1 >= n_rows:
            i1, v1 = 0, _ZERO
        if i2 >= n_rows:
            i2, v2 = 0, _ZERO
        if i3 >= n_rows:
            i3, v3 = 0, _ZERO
        if n_rows > 0:
            for k in range(n_dims):
                out[k] += v0 * E[i0, k] + v1 * E[i1, k] + v2 * E[i2, k] + v3 * E[i3, k]
        p += 4
    while p < n:
        i0 = indices[p]
        if i0 < n_rows:
            for k in range(n_dims):
                out[k] += data[p] * E[i0, k]
        p += 1


@njit(**_INLINED)
def _add_outer(E, indices, data, n, x, rate, max_norm):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Add rate * data[p] * x to E[indices[p]], and scale rows longer than max_norm down to it (0: no limit)."""
    n_rows, n_dims = E.shape
    limit = max_norm * max_norm
    for p in range(n):
        i = indices[p]
        if i >= n_rows or data[p] == 0:
            continue
        s = rate * data[p]
        if max_norm <= 0:
            for k in range(n_dims):
                E[i, k] += s * x[k]
            continue
        squared = _ZERO
        for k in range(n_dims):
            value = E[i, k] + s * x[k]
            E[i, k] = value
            squared += value * value
        if squared > limit:
            shrink = max_norm / np.sqrt(squared)
            for k in range(n_dims):
                E[i, k] *= shrink


@njit(**_INLINED)
def _difference(ai, av, n_a, bi, bv, n_b, oi, ov):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Write a - b of two sorted sparse rows to (oi, ov) and return its length."""
    p = r = m = 0
    while p < n_a or r < n_b:
        if r >= n_b or (p < n_a and ai[p] < bi[r]):
            oi[m], ov[m] = ai[p], av[p]
            p += 1
        elif p >= n_a or bi[r] < ai[p]:
            oi[m], ov[m] = bi[r], -bv[r]
            r += 1
        else:
            oi[m], ov[m] = ai[p], av[p] - bv[r]
            p += 1
            r += 1
        m += 1
    return m


@njit(**_INLINED)
def _is_known(known, start, stop, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return whether a sorted range of ``known`` contains the document."""
    last = stop
    while start < stop:
        middle = (start + stop) >> 1
        if known[middle] < document:
            start = middle + 1
        else:
            stop = middle
    return start < last and known[start] == document


@njit(**_INLINED)
def _thin(indices, data, start, stop, share, state, oi, ov):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Copy a row, dropping each word with probability ``share`` and scaling up the others; return its length."""
    n = 0
    scale = _ONE / (_ONE - share)
    for p in range(start, stop):
        if _chance(state, share):
            continue
        oi[n], ov[n] = indices[p], data[p] * scale
        n += 1
    return n


@njit(**_INLINED)
def _draw_query(queries, lexical, row, config, state, order, oi, ov, ol):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, PLR0913, PLR0917
    """Copy a query row, or some of its words at unit length (a keyword query); return the number of words."""
    start = queries.indptr[row]
    n = queries.indptr[row + 1] - start
    if row >= config.whole_from or not (n > 0 and _chance(state, config.keyword_share)):
        for p in range(n):
            oi[p], ov[p] = queries.indices[start + p], queries.data[start + p]
            ol[p] = lexical.queries[start + p]
        return n
    wanted = config.keyword_min + _below(state, config.keyword_max - config.keyword_min + 1)
    wanted = min(n, wanted)
    for p in range(n):
        order[p] = p
    squared = lexical_squared = _ZERO
    for p in range(wanted):  # the first steps of a Fisher-Yates shuffle
        other = p + _below(state, n - p)
        order[p], order[other] = order[other], order[p]
        place = start + order[p]
        oi[p], ov[p], ol[p] = queries.indices[place], queries.data[place], lexical.queries[place]
        squared += ov[p] * ov[p]
        lexical_squared += lexical.squares[place]
    scale = _ONE / np.sqrt(squared) if squared > 0 else _ZERO
    lexical_scale = _ONE / np.sqrt(lexical_squared) if lexical_squared > 0 else _ZERO
    for p in range(wanted):
        ov[p] *= scale
        ol[p] *= lexical_scale
    return wanted


@njit(**_INLINED)
def _embed(V, cache, rows, row, config, oi, ov, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Set out to Vd and (oi, ov) to the row; return its length (0 if V is frozen)."""
    if config.freeze_documents:
        for k in range(out.shape[0]):
            out[k] = cache[row, k]
        return 0
    start, n = rows.indptr[row], rows.indptr[row + 1] - rows.indptr[row]
    for p in range(n):
        oi[p], ov[p] = rows.indices[start + p], rows.data[start + p]
    _project(V, oi, ov, n, out)
    cache[row] = out
    return n


@njit(**_INLINED)
def _lexical(dense, rows, weights, document):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return q.d for the query scattered into ``dense``."""
    total = _ZERO
    start, stop = rows.indptr[document], rows.indptr[document + 1]
    words, values = rows.indices[start:stop], weights[start:stop]
    for p in range(stop - start):
        # An unsigned index skips the check for negative (from the end) indices.
        total += dense[np.uint32(words[p])] * values[p]
    return total


@njit(**_INLINED)
def _dot(x, y):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    total = _ZERO
    for k in range(x.shape[0]):
        total += x[k] * y[k]
    return total


@njit(**_INLINED)
def _longest(indptr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the length of the longest row, at least 1."""
    longest = 1
    for r in range(indptr.shape[0] - 1):
        longest = max(longest, indptr[r + 1] - indptr[r])
    return longest


@njit(**_OPTIONS)
def sgd_steps(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917 - one loop: its work arrays are allocated once
    queries: Rows,
    documents: Rows,
    lexical: LexicalValues,
    tuples: Tuples,
    negatives: NegativePool,
    parameters: Parameters,
    config: StepConfig,
    state: UInt64,
    first_step: int,
    n_steps: int,
) -> Float64:
    """Return (violating steps, candidates tried, sum of hinge losses); see `tests.reference.sgd.sgd_steps`."""
    U, V, cache = parameters
    n_dims = U.shape[1]
    longest_query, longest = _longest(queries.indptr), _longest(documents.indptr)
    order = np.empty(longest_query, np.int32)
    qi, qv = np.empty(longest_query, np.int32), np.empty(longest_query, np.float32)
    ql = np.empty(longest_query, np.float32)
    ti, tv = np.empty(longest_query, np.int32), np.empty(longest_query, np.float32)
    pi, pv = np.empty(longest, np.int32), np.empty(longest, np.float32)
    ni, nv = np.empty(longest, np.int32), np.empty(longest, np.float32)
    di, dv = np.empty(2 * longest, np.int32), np.empty(2 * longest, np.float32)
    Uq, Vp, Vn = np.empty(n_dims, np.float32), np.empty(n_dims, np.float32), np.empty(n_dims, np.float32)
    dense = np.zeros(config.n_columns, np.float32)
    n_pool, n_nearest = negatives.pool.shape[0], negatives.nearest.shape[1]
    stats = np.zeros(3, np.float64)
    for step in range(first_step, first_step + n_steps):
        t = _below(state, tuples.query.shape[0])
        if tuples.keep.shape[0] > 0 and not _chance(state, tuples.keep[t]):
            t = tuples.alias[t]
        query, positive = tuples.query[t], tuples.document[t]
        n_q = _draw_query(queries, lexical, query, config, state, order, qi, qv, ql)
        if n_q == 0:
            continue
        dropout = config.query_dropout if n_q > MAX_DROPPED_QUERY else _ZERO
        n_t = _thin(qi, qv, 0, n_q, dropout, state, ti, tv)
        _project(U, ti, tv, n_t, Uq)
        for p in range(n_q):
            dense[qi[p]] = ql[p]
        n_p = _embed(V, cache, documents, positive, config, pi, pv, Vp)
        f_positive = config.identity * _lexical(dense, documents, lexical.documents, positive) + _dot(Uq, Vp)
        w0, w1 = tuples.worse_indptr[t], tuples.worse_indptr[t + 1]
        stated = w1 > w0 and _chance(state, config.stated_negative_ratio)
        row = np.int64(negatives.list_of[query]) if n_nearest > 0 else -1
        near = not stated and row >= 0 and negatives.nearest[row, 0] >= 0 and _chance(state, config.nearest_share)
        size = w1 - w0 if stated else n_nearest if near else n_pool
        tried = draws = n_n = 0
        hinge = _ZERO
        while tried < config.max_trials and draws < 4 * config.max_trials + 16:
            draws += 1
            place = _below(state, size)
            if stated:
                negative = tuples.worse[w0 + place]
            else:
                negative = negatives.nearest[row, place] if near else negatives.pool[place]
            if negative == positive:
                continue
            k0, k1 = negatives.known_indptr[query], negatives.known_indptr[query + 1]
            if not stated and _is_known(negatives.known, k0, k1, negative):
                continue
            tried += 1
            same_words = config.identity * _lexical(dense, documents, lexical.documents, negative)
            if config.hard_negatives and _ONE - f_positive + same_words + _dot(Uq, cache[negative]) <= 0:
                continue
            n_n = _embed(V, cache, documents, negative, config, ni, nv, Vn)
            hinge = _ONE - f_positive + same_words + _dot(Uq, Vn)
            if hinge > 0:
                break
        for p in range(n_q):
            dense[qi[p]] = _ZERO
        stats[1] += tried
        if hinge <= 0:
            continue
        stats[0] += 1
        stats[2] += hinge
        progress = np.float32(step / config.n_total)
        rate = (config.rate_start + (config.rate_end - config.rate_start) * progress) * tuples.weight[t]
        if config.hard_negatives:
            rate = np.float32(rate * np.log(1.0 + size / tried) / np.log(1.0 + size))
        for k in range(n_dims):
            Vp[k] -= Vn[k]
        _add_outer(U, ti, tv, n_t, Vp, rate, config.max_norm)
        if not config.freeze_documents:
            n_d = _difference(pi, pv, n_p, ni, nv, n_n, di, dv)
            _add_outer(V, di, dv, n_d, Uq, rate, config.max_norm)
    return stats


@njit(cache=True, nogil=True, boundscheck=False)
def average_changed(first: Float32, second: Float32, before: Float32) -> None:
    """Average two changed copies of a table, ``before``; all three, (n_rows, N) float32, become the average in place.

    A row that both copies changed becomes the mean of the two. A row that only one copy changed becomes that copy's
    row: the mean would halve what is learned about rare words, which occur in the queries of one copy only.
    """
    n_rows, n_dims = first.shape
    for row in range(n_rows):
        by_first = by_second = False
        for k in range(n_dims):
            by_first |= first[row, k] != before[row, k]
            by_second |= second[row, k] != before[row, k]
        if not (by_first or by_second):
            continue
        for k in range(n_dims):
            value = first[row, k] if by_first else second[row, k]
            if by_first and by_second:
                value = np.float32(0.5) * (first[row, k] + second[row, k])
            first[row, k] = second[row, k] = before[row, k] = value
