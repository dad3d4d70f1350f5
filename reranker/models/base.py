"""The one thing that every model can do; `tests/contract/test_scorers.py` is the rest of the contract.

(query vector).(document vector) + a q.d: the scores of every model whose document vectors can be kept.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ShapeMismatch
from reranker.kernels.rows import inner_products
from reranker.kernels.serving import row_dots

Scores = npt.NDArray[np.float32]


@runtime_checkable
class Scorer(Protocol):
    """A function f(q, d) over tf-idf rows; greater is better. Immutable: equal inputs give equal scores.

    Rows are ``scipy.sparse.csr_matrix`` float32 with strictly increasing ids in each row, 2**31 - 1 columns wide.
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        ...

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        ...


def product_matrix(
    q_vectors: Scores, d_vectors: Scores, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, identity: float
) -> Scores:
    """Return (query vector).(document vector) + a q.d of every query with every document.

    Parameters
    ----------
    q_vectors : (n_queries, N) float32
        As the model embeds ``q_rows``.
    d_vectors : (n_documents, N) float32
        As it embeds ``d_rows``: computed now, or kept since.
    q_rows, d_rows : csr_matrix, (n_queries, any) and (n_documents, any) float32
        q and d.
    identity : float
        a.

    Returns
    -------
    (n_queries, n_documents) float32

    Raises
    ------
    ShapeMismatch
        If there is not one document vector of N dimensions for each document.
    """
    _check_vectors(q_vectors, d_vectors, d_rows)
    scores: Scores = q_vectors @ d_vectors.T
    if identity:
        scores += np.float32(identity) * inner_products(q_rows, d_rows)
    return scores


def product_pairs(
    q_vectors: Scores, d_vectors: Scores, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, identity: float
) -> Scores:
    """Return the same of query r with document r, (n_pairs,) float32; arguments and errors as in `product_matrix`."""
    _check_vectors(q_vectors, d_vectors, d_rows)
    q, d = ((rows.indptr, rows.indices, rows.data) for rows in (q_rows, d_rows))
    same_words = row_dots(q, d)
    scores: Scores = np.einsum("ij,ij->i", q_vectors, d_vectors) + np.float32(identity) * same_words
    return scores


def _check_vectors(q_vectors: Scores, d_vectors: Scores, d_rows: sp.csr_matrix) -> None:
    """Refuse vectors kept of other documents or by another model."""
    if d_vectors.shape != (d_rows.shape[0], q_vectors.shape[1]):
        raise ShapeMismatch(
            f"{len(d_vectors)} document vectors for {d_rows.shape[0]} documents, each of shape {d_vectors.shape[1:]} "
            f"for a model of {q_vectors.shape[1]} dimensions: encode the documents with this model"
        )
