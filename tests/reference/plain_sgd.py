"""The papers' plain SGD in numpy, on dense vectors: the definition that the compiled kernels must agree with.

Every step takes one triple (q, d+, d-). Where the hinge 1 - f(q, d+) + f(q, d-) is positive, theta += rate (df(q, d+) /
dtheta - df(q, d-) / dtheta), all factors from the old values; else nothing moves (spec 2.1). With delta = d+ - d-.
"""

from __future__ import annotations

import numpy as np

from papers.methods.product_sgd import Combination, Triples
from reranker.arrays import Float32, Float64, Int64
from reranker.kernels.rows import Rows


def diagonal_steps(w: Float32, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = sum_i w_i q_i d_i.

    w_i += rate q_i delta_i (spec M02).

    Parameters
    ----------
    w : (D,) float32
        Changed in place.
    queries, documents : Rows
        Ids below D.
    triples : Triples
        Steps.
    rate : float
        lambda.
    """
    stats = np.zeros(2)
    for q, positive, negative in dense_triples(queries, documents, triples, len(w), len(w)):
        delta = positive - negative
        hinge = 1.0 - float((q * w) @ delta)
        if counted(stats, hinge):
            w += (rate * q * delta).astype(np.float32)
    return stats


def dense_steps(
    W: Float32, queries: Rows, documents: Rows, triples: Triples, rate: float, keep_diagonal: bool
) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = q^T W d.

    W += rate q delta^T (spec M03); without the diagonal W_ii is left alone (M04: start with W_ii = 0).

    Parameters
    ----------
    W : (D_q, D_d) float32
        Changed in place.
    queries, documents : Rows
        Ids below D_q and D_d.
    triples : Triples
        Steps.
    rate : float
        lambda.
    keep_diagonal : bool
        True learns W_ii as any other entry.
    """
    stats = np.zeros(2)
    for q, positive, negative in dense_triples(queries, documents, triples, *W.shape):
        delta = positive - negative
        hinge = 1.0 - float(q @ W @ delta)
        if counted(stats, hinge):
            change = rate * np.outer(q, delta)
            if not keep_diagonal:
                np.fill_diagonal(change, 0.0)
            W += change.astype(np.float32)
    return stats


def block_steps(W: Float32, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = sum_p q_p^T W d_p, block p of F columns (spec M13).

    W += rate sum_p q_p delta_p^T.
    """
    stats = np.zeros(2)
    n_features = len(W)
    width = n_features * (1 + max(int(rows.indices.max(initial=0)) // n_features for rows in (queries, documents)))
    for q, positive, negative in dense_triples(queries, documents, triples, width, width):
        blocks = [part.reshape(-1, n_features) for part in (q, positive - negative)]
        hinge = 1.0 - float(np.einsum("pi,ij,pj->", blocks[0], W, blocks[1]))
        if counted(stats, hinge):
            W += (rate * np.einsum("pi,pj->ij", *blocks)).astype(np.float32)
    return stats


def block_pairs(W: Float32, queries: Rows, documents: Rows) -> Float32:
    """Return sum_p q_p^T W d_p of query r with document r, (n,) float32."""
    n_features = len(W)
    scores = np.zeros(len(queries.indptr) - 1)
    for row in range(len(scores)):
        for p in range(queries.indptr[row], queries.indptr[row + 1]):
            for r in range(documents.indptr[row], documents.indptr[row + 1]):
                (first, i), (second, j) = (
                    divmod(int(x), n_features) for x in (queries.indices[p], documents.indices[r])
                )
                scores[row] += (first == second) * float(queries.data[p]) * float(documents.data[r]) * float(W[i, j])
    return scores.astype(np.float32)


def hash_steps(
    w: Float32, queries: Rows, documents: Rows, triples: Triples, rate: float, prime: int, identity: float
) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = sum_st q_s d_t w[h(s, t)] + a q.d.

    w[h(s, t)] += rate q_s delta_t (spec M09).

    Parameters
    ----------
    w : (H,) float32
        Changed in place.
    queries, documents : Rows
        Any ids below 2**31.
    triples : Triples
        Steps.
    rate : float
        lambda.
    prime : int
        P of `pair_hash`.
    identity : float
        a, the weight of exact matching; 0 allows two vocabularies.
    """
    width = _width(queries, documents)
    words = np.arange(width)
    slots = pair_hash(words[:, None], words[None, :], prime, len(w))
    stats = np.zeros(2)
    for q, positive, negative in dense_triples(queries, documents, triples, width, width):
        delta = positive - negative
        hinge = 1.0 - float(q @ w[slots] @ delta) - identity * float(q @ delta)
        if counted(stats, hinge):
            change = np.bincount(slots.ravel(), rate * np.outer(q, delta).ravel(), minlength=len(w))
            w += change.astype(np.float32)
    return stats


def low_rank_steps(  # noqa: PLR0917 - as the compiled one
    U: Float32,
    T: Float32,
    queries: Rows,
    documents: Rows,
    triples: Triples,
    rate: float,
    combination: Combination,
    identity: float,
    lexical: Float32 | None = None,
) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = (Uq).c(d) + a q.d.

    With c = E1 d this is U += rate (V delta) q^T, V += rate (Uq) delta^T (spec M05 to M08; M05 where T is U); with
    c = E1 d o (1 + E2 d) the update of spec 2.5 (M18); and so on, see `Combination`.

    Parameters
    ----------
    U : (n_query_words, any) float32
        Row = word, changed in place. Words past the last row have no learned part.
    T : (n_document_words, any) float32
        The document's embeddings side by side, changed in place; U itself for the tied model.
    queries, documents : Rows
        q and d.
    triples : Triples
        Steps.
    rate : float
        lambda.
    combination : Combination
        c(d).
    identity : float
        a; 0 allows two vocabularies.
    lexical : (n,) float32, optional
        A part of each step's f(q, d+) - f(q, d-) that no step changes.
    """
    width = max(_width(queries, documents), len(U), len(T))
    stats = np.zeros(2)
    for step, (q, positive, negative) in enumerate(dense_triples(queries, documents, triples, width, width)):
        u = q[: len(U)] @ U
        p, n = positive[: len(T)] @ T, negative[: len(T)] @ T
        c = document_vector(p, combination) - document_vector(n, combination)
        hinge = 1.0 - float(u @ c) - identity * float(q @ (positive - negative))
        if lexical is not None:
            hinge -= float(lexical[step])
        if counted(stats, hinge):
            g, h = _slope(p, u, combination), _slope(n, u, combination)
            U += (rate * np.outer(q[: len(U)], c)).astype(np.float32)
            T += (rate * (np.outer(positive[: len(T)], g) - np.outer(negative[: len(T)], h))).astype(np.float32)
    return stats


def query_polynomial_steps(
    T: Float32,
    V: Float32,
    queries: Rows,
    documents: Rows,
    triples: Triples,
    rate: float,
    n_factors: int,
    identity: float,
) -> Float64:
    """Return (active steps, sum of hinges) of steps on f(q, d) = e(q).(Vd) + a q.d (spec 2.5, pairs of query words).

    e(q) = U q o (1 + Y q) for two factors, T = [U, Y]; both tables change in place.
    """
    width = max(_width(queries, documents), len(T), len(V))
    stats, combination = np.zeros(2), Combination(n_factors)
    for q, positive, negative in dense_triples(queries, documents, triples, width, width):
        p, delta = q[: len(T)] @ T, (positive - negative)[: len(V)] @ V
        e = document_vector(p, combination)
        hinge = 1.0 - float(e @ delta) - identity * float(q @ (positive - negative))
        if counted(stats, hinge):
            g = _slope(p, delta, combination)
            T += (rate * np.outer(q[: len(T)], g)).astype(np.float32)
            V += (rate * np.outer((positive - negative)[: len(V)], e)).astype(np.float32)
    return stats


def document_vector(p: Float64, combination: Combination) -> Float64:
    """Return c(d) from the row's embeddings p = T^T d; see `Combination`."""
    if combination.separate:
        first, quadratic, second = np.split(p, 3)
        return np.concatenate([first * second, quadratic])
    factors = np.split(p, combination.n_factors)
    tail = np.ones_like(factors[0])
    for factor in factors[:0:-1]:
        tail = 1.0 + factor * tail
    return factors[0] * tail


def dense_pairs(W: Float32, queries: Rows, documents: Rows) -> Float32:
    """Return q^T W d of query r with document r, (n_pairs,) float32."""
    pairs = range(len(queries.indptr) - 1)
    scores = [dense_row(queries, row, len(W)) @ W @ dense_row(documents, row, W.shape[1]) for row in pairs]
    return np.array(scores, np.float32)


def hash_pairs(w: Float32, queries: Rows, documents: Rows, prime: int) -> Float32:
    """Return the sum over word pairs of q_s d_t w[h(s, t)] of query r with document r, (n_pairs,) float32."""
    out = np.zeros(len(queries.indptr) - 1, np.float32)
    for row in range(len(out)):
        (s, q), (t, d) = (
            (one.indices[one.indptr[row] : one.indptr[row + 1]], one.data[one.indptr[row] : one.indptr[row + 1]])
            for one in (queries, documents)
        )
        out[row] = q @ w[pair_hash(s.astype(np.int64)[:, None], t.astype(np.int64)[None, :], prime, len(w))] @ d
    return out


def hash_expand(queries: Rows, columns: Int64, w: Float32, prime: int) -> Float32:
    """Return v with v_rc = sum_s q_s w[h(s, columns_c)], (n_queries, n_columns) float32: what a document's words meet.

    Source: spec 2.6, first row of its table, for the hash kernel.
    """
    out = np.zeros((len(queries.indptr) - 1, len(columns)), np.float32)
    for row in range(len(out)):
        for place in range(queries.indptr[row], queries.indptr[row + 1]):
            slots = pair_hash(np.int64(queries.indices[place]), columns, prime, len(w))  # type: ignore[arg-type]
            out[row] += queries.data[place] * w[slots]
    return out


def _slope(p: Float64, u: Float64, combination: Combination) -> Float64:
    """Return the gradient of u.c(d) with respect to p."""
    if combination.separate:
        first, _, second = np.split(p, 3)
        u_cubic, u_quadratic = np.split(u, 2)
        return np.concatenate([u_cubic * second, u_quadratic, u_cubic * first])
    factors = np.split(p, combination.n_factors)
    slopes = []
    for j in range(len(factors)):
        before = np.prod(factors[:j], axis=0) if j else np.ones_like(u)
        after = np.ones_like(u)
        for factor in factors[:j:-1]:
            after = 1.0 + factor * after
        slopes.append(u * before * after)
    return np.concatenate(slopes)


def _width(*rows: Rows) -> int:
    """Return the greatest word number + 1."""
    return max(int(one.indices.max(initial=-1)) + 1 for one in rows)


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


def dense_triples(
    queries: Rows, documents: Rows, triples: Triples, q_width: int, d_width: int
) -> list[tuple[Float64, Float64, Float64]]:
    """Return (q, d+, d-) as dense vectors."""
    return [
        (
            dense_row(queries, q, q_width),
            dense_row(documents, positive, d_width),
            dense_row(documents, negative, d_width),
        )
        for q, positive, negative in zip(*triples, strict=True)
    ]


def counted(stats: Float64, hinge: float) -> bool:
    """Add a step to the statistics; return True where it is to be made."""
    if hinge <= 0:
        return False
    stats += (1.0, hinge)
    return True


def dense_row(rows: Rows, row: int, width: int) -> Float64:
    """Return one row as a dense vector."""
    out = np.zeros(width)
    places = slice(rows.indptr[row], rows.indptr[row + 1])
    out[rows.indices[places]] = rows.data[places]
    return out
