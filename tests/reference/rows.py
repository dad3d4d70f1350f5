"""The kernels over rows in plain numpy and scipy: the definition that `reranker.kernels.rows` must agree with.

Sums run in float64 and are rounded once to float32. Rows are CSR arrays (``indptr``, ``indices``, ``data``) with
strictly increasing ids in each row.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Float32, Int64
from reranker.kernels.rows import check_candidates, check_embedding, check_query, check_row_pairs, check_rows


def embed_rows(rows: sp.csr_matrix, E: Float32) -> Float32:
    """Return the embedding of each row: out[r] = sum_i x_ri E[i].

    A word without a row in ``E`` (id >= len(E): beyond the restricted model, or outside of the vocabulary) has no
    learned part and is skipped.

    Parameters
    ----------
    rows : (n_rows, N_TERM_IDS) float32
    E : (n_words, N) float32
        U or V, row = word, C-contiguous.

    Returns
    -------
    (n_rows, N) float32

    Raises
    ------
    ShapeMismatch
        If the arrays do not fit each other.

    Source
    ------
    spec 2.2: Uq = sum over supp(q) of q_i U[:, i]; M08 for the skipped words.
    """
    check_rows(rows.indptr, rows.indices, rows.data)
    check_embedding(E)
    known = rows.indices < len(E)
    kept = np.concatenate(([0], np.cumsum(known)))[rows.indptr]
    known_part = sp.csr_matrix(
        (rows.data[known].astype(np.float64), rows.indices[known].astype(np.int64), kept), shape=(rows.shape[0], len(E))
    )
    return np.asarray(known_part @ E.astype(np.float64), dtype=np.float32)


def score_rows(  # noqa: PLR0917 - every route hands over flat arrays
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
    """Return the score of each candidate: f(q, d) = (Uq).(Vd) + a q.d.

    Parameters
    ----------
    q_vec : (N,) float32
        Uq.
    q_ids, q_weights : (n_terms,) int32 and float32
        The query's row, ids strictly increasing.
    a : float
        Weight of the identity part.
    cand_rows : (n_candidates,) int64
        Row of each candidate in the store; any order, repeats allowed.
    V_docs : (n_documents, N) float32
        Vd of every document.
    indptr, indices, data : arrays
        The documents' tf-idf rows, CSR.

    Returns
    -------
    (n_candidates,) float32

    Raises
    ------
    ShapeMismatch
        If dimensions or lengths do not fit.
    InputError
        If a candidate row is outside of the store, or the query is not finite.

    Source
    ------
    spec 2.2, M06 (a = 1) and M07 (a = 0).
    """
    check_rows(indptr, indices, data, ends_only=True)
    check_query(q_vec, q_ids, q_weights, V_docs)
    check_candidates(cand_rows, min(len(V_docs), len(indptr) - 1))
    scores = V_docs[cand_rows].astype(np.float64) @ q_vec.astype(np.float64)
    for place, row in enumerate(cand_rows):
        start, end = indptr[row], indptr[row + 1]
        _, in_query, in_document = np.intersect1d(q_ids, indices[start:end], assume_unique=True, return_indices=True)
        scores[place] += a * np.dot(q_weights[in_query].astype(np.float64), data[start:end][in_document])
    return scores.astype(np.float32)


def dots(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the dot product of row r of ``left`` with row r of ``right``.

    Returns
    -------
    (n_rows,) float32

    Raises
    ------
    ShapeMismatch
        If the numbers of rows differ or a matrix is not CSR.
    """
    check_row_pairs(left, right)
    sums = np.zeros(left.shape[0])
    for row in range(len(sums)):
        q, d = left[row], right[row]
        _, in_q, in_d = np.intersect1d(q.indices, d.indices, assume_unique=True, return_indices=True)
        sums[row] = np.dot(q.data[in_q].astype(np.float64), d.data[in_d])
    return sums.astype(np.float32)
