"""What every model can do (`tests/contract/test_scorers.py` is the rest of the contract); models made of vectors."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Float32, Float64
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import dots, inner_products


@runtime_checkable
class Scorer(Protocol):
    """A function f(q, d) over tf-idf rows; greater is better. Immutable: equal inputs give equal scores.

    Rows are ``scipy.sparse.csr_matrix`` float32 with strictly increasing ids in each row, 2**31 - 1 columns wide.
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        ...

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        ...


class VectorScorer:
    """Scores (query vector).(document vector) + a q.d, for models whose document vectors can be kept."""

    identity: float

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each query, (n, N) float32."""
        raise NotImplementedError

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each document, (n, N) float32."""
        raise NotImplementedError

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Float32 | None = None) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32.

        ``d_vectors`` (n_documents, N) are the documents' vectors where they are known: cached, or read back from an
        engine.

        Raises
        ------
        ShapeMismatch
            If ``d_vectors`` does not hold one vector of N dimensions for each document.
        """
        q_vectors, d_vectors = self._vectors(q_rows, d_rows, d_vectors)
        scores: Float32 = q_vectors @ d_vectors.T
        if self.identity:
            scores += np.float32(self.identity) * inner_products(q_rows, d_rows)
        return scores

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Float32 | None = None) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32; arguments and errors as in `score_matrix`."""
        q_vectors, d_vectors = self._vectors(q_rows, d_rows, d_vectors)
        same_words = dots(q_rows, d_rows)
        scores: Float32 = np.einsum("ij,ij->i", q_vectors, d_vectors) + np.float32(self.identity) * same_words
        return scores

    def _check_identity(self) -> None:
        if not (np.isfinite(self.identity) and self.identity >= 0):
            raise InputError(f"identity weight {self.identity!r} is not usable; it must be finite and not negative")

    def _vectors(
        self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Float32 | None
    ) -> tuple[Float32, Float32]:
        """Return the vectors of both sides; refuse vectors kept of other documents or by another model."""
        if d_vectors is None:
            d_vectors = self.embed_documents(d_rows)
        q_vectors = self.embed_queries(q_rows)
        if d_vectors.shape != (d_rows.shape[0], q_vectors.shape[1]):
            raise ShapeMismatch(
                f"{len(d_vectors)} document vectors for {d_rows.shape[0]} documents, each of shape "
                f"{d_vectors.shape[1:]} for a model of {q_vectors.shape[1]} dimensions: encode the documents with this "
                f"model"
            )
        return q_vectors, d_vectors


def word_rows(ids: AnyInt, table: Float32) -> Float64:
    """Return the learned rows of words, (n, N) float64; 0 for those that have none."""
    rows = np.zeros((len(ids), table.shape[1]))
    known = ids < len(table)
    rows[known] = table[ids[known]]
    return rows
