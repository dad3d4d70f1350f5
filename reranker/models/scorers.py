"""Scoring functions: f(q, d) = (Uq).(Vd) + a q.d, or any other `Scorer`.

`tests/contract/test_scorers.py` completes the contract. The learned part of the score of one document for one query is
a sum over word pairs, sum_ij q_i W_ij d_j with W_ij = U_i . V_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Float32, Float64
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import check_embedding, check_finite_rows, dots, embed_rows
from reranker.text.rows import inner_products


@runtime_checkable
class Scorer(Protocol):
    """A function f(q, d) of tf-idf rows; larger is better. Immutable: equal inputs give equal scores.

    Rows are ``scipy.sparse.csr_matrix`` float32 with strictly increasing ids in each row, 2**31 - 1 columns wide.
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""


class VectorScorer:
    """Scorer (query vector).(document vector) + a q.d, for models whose document vectors can be stored."""

    identity: float

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each query, (n, N) float32."""
        raise NotImplementedError

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each document, (n, N) float32."""
        raise NotImplementedError

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Float32 | None = None) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32.

        ``d_vectors``, (n_documents, N), are the document vectors if they are known (cached, or read from an engine).
        `ShapeMismatch` is raised if they are not one vector of N dimensions for each document.
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

    def _vectors(
        self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Float32 | None
    ) -> tuple[Float32, Float32]:
        """Return the vectors of both sides; raises `ShapeMismatch` for vectors of other documents or another model."""
        if d_vectors is None:
            d_vectors = self.embed_documents(d_rows)
        q_vectors = self.embed_queries(q_rows)
        if d_vectors.shape != (d_rows.shape[0], q_vectors.shape[1]):
            raise ShapeMismatch(
                f"{len(d_vectors)} document vectors of shape {d_vectors.shape[1:]} for {d_rows.shape[0]} documents and "
                f"a model of {q_vectors.shape[1]} dimensions: encode the documents with this model"
            )
        return q_vectors, d_vectors


@dataclass(frozen=True, eq=False)
class LinearScorer(VectorScorer):
    """Float32 score f(q, d) = (Uq).(Vd) + a q.d.

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or U has not as many columns as V.
    InputError
        If a value is not finite, or ``identity`` is below 0.
    """

    U: Float32
    """Query word vectors, (n_query_words, N) float32; words with higher numbers have no learned part.

    A tied U is the same array as V.
    """
    V: Float32
    """Document word vectors, (n_document_words, N) float32; words with higher numbers have no learned part."""
    identity: float = 1.0
    """a >= 0: the weight of exact word matching, q.d."""

    def __post_init__(self) -> None:
        check_embedding(self.V)
        check_embedding(self.U)
        if self.U.shape[1] != self.n_dims:
            raise ShapeMismatch(
                f"U has {self.U.shape[1]} dimensions and V {self.n_dims}; both must map into the same space"
            )
        if not (np.isfinite(self.identity) and self.identity >= 0):
            raise InputError(f"identity weight {self.identity!r} is not usable; it must be finite and not negative")
        check_finite_rows(self.V, "V")
        if not self.is_tied:
            check_finite_rows(self.U, "U")

    @property
    def n_dims(self) -> int:
        """N, the number of dimensions of a vector."""
        return int(self.V.shape[1])

    @property
    def is_tied(self) -> bool:
        """Whether U and V are the same array."""
        return self.U is self.V

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return Uq of each query, (n, N) float32."""
        return embed_rows(q_rows, self.U)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return Vd of each document, (n, N) float32."""
        return embed_rows(d_rows, self.V)


def pair_weights(U: Float32, V: Float32, q_ids: AnyInt, d_ids: AnyInt) -> Float64:
    """Return U_i . V_j for each pair of word ids, (n_q, n_d) float64; 0 for words without a learned row."""
    weights: Float64 = word_rows(q_ids, U) @ word_rows(d_ids, V).T
    return weights


def word_rows(ids: AnyInt, table: Float32) -> Float64:
    """Return the learned rows of words, (n, N) float64; 0 for words without one."""
    rows = np.zeros((len(ids), table.shape[1]))
    known = ids < len(table)
    rows[known] = table[ids[known]]
    return rows


def unit(vectors: Float32) -> Float32:
    """Return each row divided by its length, (n, k) float32; a row of zeros stays 0."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    length[length == 0.0] = 1.0
    return np.asarray(vectors / length, dtype=np.float32)
