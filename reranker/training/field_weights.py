"""Weights of the fields, learned by the margin ranking loss alone, before the word pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from reranker.arrays import Float64, Int64
from reranker.kernels.rows import dots

N_DRAWN = 10
N_TUPLES = 50_000
_SMOOTH = 0.1
_LARGEST = 20.0
_SMALLEST = 0.01  # a view takes no weight of 0: its words would be unknown to the model


def learn_field_weights(
    queries: sp.csr_matrix,
    fields: Sequence[sp.csr_matrix],
    tuples: tuple[Int64, Int64],
    pool: Int64,
    stated: Sequence[float | None],
    rng: np.random.Generator,
) -> tuple[float, ...]:
    """Return the weight of each field: those stated, and for the others (None) the minimum of the ranking loss.

    With x_k(q, d) = q.d_k, the weights minimise the mean over drawn tuples of the margin ranking loss of sum_k w_k x_k,
    at w >= 0: a convex problem of as many unknowns as fields. The negatives are hard ones: of 10 drawn documents the
    one that shares most with the query, since an arbitrary one shares nothing and teaches nothing.

    Queries and the unit rows of each field are N_TERM_IDS wide; ``tuples`` are rows of queries and of documents
    relevant to them, ``pool`` document rows that negatives are drawn from, all (n,) int64.

    If no weight is stated, the field that most often shares words with the query (that of the long texts) gets weight 1
    and the others are relative to it; at least .01, at most 20. Stated weights are returned as they are.
    """
    free = [number for number, weight in enumerate(stated) if weight is None]
    if not free or len(fields) == 1:
        return tuple(1.0 if weight is None else weight for weight in stated)
    chosen = rng.integers(0, len(tuples[0]), min(N_TUPLES, max(len(tuples[0]), 2_000)))
    query, positive = tuples[0][chosen], tuples[1][chosen]
    gained = _products(queries, fields, query, positive)
    lost = _hard_negatives(queries, fields, query, pool, rng)
    weights = _minimise(gained - lost, stated, free)
    return tuple(
        max(round(float(weight), 4), _SMALLEST) if given is None else given
        for weight, given in zip(weights, stated, strict=True)
    )


def _products(queries: sp.csr_matrix, fields: Sequence[sp.csr_matrix], query: Int64, document: Int64) -> Float64:
    """Return q.d_k of each pair and field, (n, n_fields)."""
    rows = queries[query]
    return np.stack([dots(rows, field[document]).astype(np.float64) for field in fields], axis=1)


def _hard_negatives(
    queries: sp.csr_matrix,
    fields: Sequence[sp.csr_matrix],
    query: Int64,
    pool: Int64,
    rng: np.random.Generator,
) -> Float64:
    """Return the products of the drawn document that has most in common with each query."""
    best = np.full((len(query), len(fields)), -1.0)
    for _ in range(N_DRAWN):
        products = _products(queries, fields, query, pool[rng.integers(0, len(pool), len(query))])
        better = products.sum(axis=1) > best.sum(axis=1)
        best[better] = products[better]
    return best


def _minimise(difference: Float64, stated: Sequence[float | None], free: Sequence[int]) -> Float64:
    """Return the weights with the least mean smoothed hinge; a scale is fitted along and divided out."""
    fixed = np.array([0.0 if weight is None else weight for weight in stated])
    has_fixed = bool(np.any(fixed > 0))

    def expand(x: Float64) -> Float64:
        weights = fixed * x[-1] if has_fixed else fixed.copy()
        weights[list(free)] = x[: len(free)]
        return weights

    def loss(x: Float64) -> tuple[float, Float64]:
        weights = expand(x)
        slack = 1.0 - difference @ weights
        value = _SMOOTH * np.logaddexp(0.0, slack / _SMOOTH)
        slope = -1.0 / (1.0 + np.exp(-np.clip(slack / _SMOOTH, -500, 500)))
        gradient = (slope[:, None] * difference).mean(axis=0)
        parts = [gradient[list(free)]]
        if has_fixed:
            parts.append(np.array([gradient @ fixed]))
        return float(value.mean()), np.concatenate(parts)

    n = len(free) + has_fixed
    minimum = minimize(loss, np.ones(n), jac=True, method="L-BFGS-B", bounds=[(1e-6, 1e3)] * n)
    weights = expand(minimum.x)
    # The field that most often has words in common with the query, that of the long texts, gets weight 1.
    scale = minimum.x[-1] if has_fixed else weights[np.argmax((np.abs(difference) > 0).mean(axis=0))]
    relative: Float64 = np.minimum(weights / max(scale, 1e-9), _LARGEST)
    return relative
