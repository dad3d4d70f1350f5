"""Margin ranking SGD in numpy: the definition that the compiled kernel must agree with, draw for draw."""

from __future__ import annotations

import math

import numpy as np

from reranker.arrays import Float32, Float64, Int32, Int64, UInt64
from reranker.kernels.rows import Rows
from reranker.kernels.sgd import MAX_DROPPED_QUERY, LexicalValues, NegativePool, Parameters, StepConfig, Tuples

_MASK = (1 << 64) - 1
_Sparse = tuple[Int32, Float32]


class _Draws:
    """The random numbers of the kernels: xorshift64*, its state kept in a uint64 array of one."""

    def __init__(self, state: UInt64) -> None:
        self._state = state

    def below(self, n: int) -> int:
        """Draw a whole number from 0 to n - 1."""
        x = int(self._state[0])
        x ^= x >> 12
        x = (x ^ (x << 25)) & _MASK
        x ^= x >> 27
        self._state[0] = x
        high = ((x * 0x2545F4914F6CDD1D) & _MASK) >> 32
        return (high * int(n)) >> 32

    def chance(self, share: float) -> bool:
        """Return True with probability ``share``; draws nothing where it is 0."""
        return share > 0 and bool(self.below(16777216) < np.float32(share) * np.float32(16777216))


def sgd_steps(  # noqa: PLR0917 - arrays of one loop
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
    """Return (violating steps, candidates tried, sum of hinge losses) of SGD steps that change U, V and the cache.

    One step draws a tuple (q, d+) and a negative d-. With f(q, d) = (Uq').(Vd') + a q.d and, where 1 - f(q, d+) +
    f(q, d-) > 0, ::

        U += rate (V d'+ - V d'-) q'ᵀ        V += rate (U q') (d'+ - d'-)ᵀ        (both from the old values)

    q and d are the rows of the lexical part, q' and d' those that U and V read; both have weights for the same words.

    *Screened* negatives: candidates are scored with the cached Vd first, N multiplications each; the first one that
    violates the margin there and, computed anew, also in truth is used. The more candidates it took, the higher d+
    already stands: the step is weighted by log(1 + size / tried) / log(1 + size), as in WARP; size is that of the pool,
    or of the tuple's worse documents where they are the candidates. Not screened: one candidate, weight 1 (spec 2.1).

    With V frozen (``config.freeze_documents``) only U moves.

    Parameters
    ----------
    queries, documents : Rows
        q' and d'; ids from ``len(U)`` on have no learned part and count in q.d only.
    lexical : LexicalValues
        q and d at the same words.
    tuples : Tuples
        Drawn uniformly, or as their alias table says. Where documents are stated to be worse, they are the candidates
        in a share ``config.stated_negative_ratio`` of the steps.
    negatives : NegativePool
        Pool of negatives; a query's known documents are drawn again, not tried. In a share ``config.nearest_share`` of
        the steps without stated worse documents, the candidates are those looked up for the query.
    parameters : Parameters
        Changed in place.
    config : StepConfig
        Scalars.
    state : (1,) uint64
        State of the random numbers, not 0; changed in place.
    first_step, n_steps : int
        The rate falls linearly from step 0 to ``config.n_total``.

    Returns
    -------
    (3,) float64

    Notes
    -----
    Source: spec 2.1 and 2.2 M06 (update), WARP: Weston, Bengio, Usunier 2011.
    """
    draws = _Draws(state)
    stats = np.zeros(3)
    for step in range(first_step, first_step + n_steps):
        stats += _step(queries, documents, lexical, tuples, negatives, parameters, config, draws, step)
    return stats


def _step(  # noqa: PLR0917 - arrays of one loop
    queries: Rows,
    documents: Rows,
    lexical: LexicalValues,
    tuples: Tuples,
    negatives: NegativePool,
    parameters: Parameters,
    config: StepConfig,
    draws: _Draws,
    step: int,
) -> Float64:
    """Make one step and return its share of the statistics."""
    U, V, cache = parameters
    t = _draw_tuple(tuples, draws)
    query, positive = int(tuples.query[t]), int(tuples.document[t])
    q, same_words = _draw_query(queries, lexical, query, config, draws)
    if len(q[0]) == 0:
        return np.zeros(3)
    thin_q = _thin(q, float(config.query_dropout) if len(q[0]) > MAX_DROPPED_QUERY else 0.0, draws)
    Uq = _project(U, thin_q)
    d_positive = _row(documents, positive)
    V_positive = _document(V, cache, positive, d_positive, config)
    f_positive = config.identity * _lexical(same_words, documents, lexical, positive) + Uq @ V_positive
    worse = tuples.worse[tuples.worse_indptr[t] : tuples.worse_indptr[t + 1]]
    stated = len(worse) > 0 and draws.chance(float(config.stated_negative_ratio))
    known = negatives.known[negatives.known_indptr[query] : negatives.known_indptr[query + 1]]
    row = negatives.list_of[query] if negatives.nearest.shape[1] else -1
    nearest = negatives.nearest[row] if row >= 0 else np.array([-1])
    near = not stated and nearest[0] >= 0 and draws.chance(float(config.nearest_share))
    source = worse if stated else nearest if near else negatives.pool
    tried = n_draws = 0
    while tried < config.max_trials and n_draws < 4 * config.max_trials + 16:
        n_draws += 1
        negative = int(source[draws.below(len(source))])
        if negative == positive or (not stated and _holds(known, negative)):
            continue
        tried += 1
        rest = 1 - f_positive + config.identity * _lexical(same_words, documents, lexical, negative)
        if config.hard_negatives and rest + Uq @ cache[negative] <= 0:
            continue
        d_negative = _row(documents, negative)
        V_negative = _document(V, cache, negative, d_negative, config)
        hinge = float(rest + Uq @ V_negative)
        if hinge > 0:
            rate = _rate(config, step, float(tuples.weight[t]), tried, len(source))
            difference = V_positive - V_negative
            _add_outer(U, thin_q, difference, rate, float(config.max_norm))
            if not config.freeze_documents:
                _add_outer(V, _difference(d_positive, d_negative), Uq, rate, float(config.max_norm))
            return np.array([1.0, tried, hinge])
    return np.array([0.0, tried, 0.0])


def _draw_tuple(tuples: Tuples, draws: _Draws) -> int:
    """Draw a tuple, by the alias method where they are not equally frequent (Walker 1977)."""
    t = draws.below(len(tuples.query))
    return t if not len(tuples.keep) or draws.chance(float(tuples.keep[t])) else int(tuples.alias[t])


def _document(V: Float32, cache: Float32, number: int, row: _Sparse, config: StepConfig) -> Float32:
    """Return Vd of a row; the cache takes it over, or is exact already."""
    if not config.freeze_documents:
        cache[number] = _project(V, row)
    kept: Float32 = cache[number].copy()
    return kept


def _rate(config: StepConfig, step: int, weight: float, tried: int, size: int) -> float:
    """Return the step's length: the falling rate, the tuple's weight, and the estimated rank where it is screened."""
    start, end = float(config.rate_start), float(config.rate_end)
    rate = (start + (end - start) * step / config.n_total) * weight
    return rate * math.log(1 + size / tried) / math.log(1 + size) if config.hard_negatives else rate


def _row(rows: Rows, number: int) -> _Sparse:
    span = slice(rows.indptr[number], rows.indptr[number + 1])
    return rows.indices[span], rows.data[span]


def _holds(known: Int64, document: int) -> bool:
    place = int(np.searchsorted(known, document))
    return place < len(known) and int(known[place]) == document


def _draw_query(
    queries: Rows, lexical: LexicalValues, number: int, config: StepConfig, draws: _Draws
) -> tuple[_Sparse, _Sparse]:
    """Return q' and q of a query, or of some of its words, both divided by their new lengths (spec A21)."""
    indices, data = _row(queries, number)
    span = slice(queries.indptr[number], queries.indptr[number + 1])
    weights, squares = lexical.queries[span], lexical.squares[span]
    if number >= config.whole_from or not (len(indices) and draws.chance(float(config.keyword_share))):
        return (indices, data), (indices, weights)
    wanted = config.keyword_min + draws.below(config.keyword_max - config.keyword_min + 1)
    wanted = min(len(indices), wanted)
    order = np.arange(len(indices))
    for place in range(wanted):
        other = place + draws.below(len(indices) - place)
        order[[place, other]] = order[[other, place]]
    chosen = order[:wanted]
    length, lexical_length = float(np.sqrt(data[chosen] @ data[chosen])), float(np.sqrt(squares[chosen].sum()))
    learned = (data[chosen] / (length or 1.0)).astype(np.float32)
    return (indices[chosen], learned), (indices[chosen], (weights[chosen] / (lexical_length or 1.0)).astype(np.float32))


def _thin(row: _Sparse, share: float, draws: _Draws) -> _Sparse:
    """Return the row with each word left out with probability ``share``, the others scaled up."""
    kept = np.array([not draws.chance(share) for _ in row[0]], dtype=bool)
    return row[0][kept], (row[1][kept] * np.float32(1 / (1 - share))).astype(np.float32)


def _project(E: Float32, row: _Sparse) -> Float32:
    """Return the sum of the rows of E that the words of a row have."""
    learned = row[0] < len(E)
    projected: Float32 = row[1][learned] @ E[row[0][learned]]
    return projected


def _lexical(q: _Sparse, documents: Rows, lexical: LexicalValues, number: int) -> np.float32:
    """Return q.d."""
    span = slice(documents.indptr[number], documents.indptr[number + 1])
    weights = dict(zip(q[0].tolist(), q[1].tolist(), strict=True))
    words = zip(documents.indices[span].tolist(), lexical.documents[span].tolist(), strict=True)
    return np.float32(sum(weights.get(i, 0.0) * weight for i, weight in words))


def _difference(left: _Sparse, right: _Sparse) -> _Sparse:
    """Return left - right."""
    indices, places = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    values = np.zeros(len(indices), np.float32)
    np.add.at(values, places, np.concatenate([left[1], -right[1]]))
    return indices.astype(np.int32), values


def _add_outer(E: Float32, row: _Sparse, x: Float32, rate: float, max_norm: float) -> None:
    """Add rate * weight * x to E's row of each word, and shorten rows longer than max_norm (0: no limit)."""
    for i, weight in zip(row[0].tolist(), row[1].tolist(), strict=True):
        if i >= len(E) or weight == 0:
            continue
        E[i] += np.float32(rate * weight) * x
        length = float(np.linalg.norm(E[i]))
        if 0 < max_norm < length:
            E[i] *= np.float32(max_norm / length)
