"""f(q, d) = cosine of A^T q and B^T d: LSI, CL-LSI, PCA, OPCA, CCA, HDLR and S2Net differ only in A and B."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from reranker.arrays import Float32
from reranker.errors import ConfigError, ShapeMismatch
from reranker.kernels.rows import check_embedding, check_finite_rows, embed_rows

Activation = Literal["linear", "sigmoid"]
ACTIVATIONS: tuple[str, ...] = ("linear", "sigmoid")


@dataclass(frozen=True, eq=False)
class Projection:
    """Scores f(q, d) = g(q).h(d) / (|g(q)| |h(d)|), with g(q) = s(A^T q) and h(d) = s(B^T d).

    Both sides are embedded as unit vectors, so the score is an inner product that any engine route can serve. A text
    of which no word is known (A^T q = 0) has the vector 0 and scores 0.

    Raises
    ------
    ShapeMismatch
        If A or B is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If a value is NaN or infinite.
    ConfigError
        If the activation is not one of the two.

    Source
    ------
    spec 2.7 (similarity of S2Net), B03, B07-B10.
    """

    A: Float32
    """(n_query_words, k) float32: Row = word of the query side. Words past the last row are skipped."""
    B: Float32
    """(n_document_words, k) float32: The same for documents; the very same array where both sides share one matrix."""
    activation: Activation = "linear"
    """"linear" or "sigmoid": s: the identity, or 1 / (1 + exp(-x)) (an option of S2Net, spec M25)."""

    def __post_init__(self) -> None:
        check_embedding(self.A)
        check_embedding(self.B)
        if self.A.shape[1] != self.B.shape[1]:
            raise ShapeMismatch(
                f"A has {self.A.shape[1]} dimensions and B {self.B.shape[1]}; both must map into the same space"
            )
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}; choose one")
        check_finite_rows(self.A, "A")
        if not self.is_tied:
            check_finite_rows(self.B, "B")

    @property
    def n_dims(self) -> int:
        """k, the dimensions of the space."""
        return int(self.A.shape[1])

    @property
    def is_tied(self) -> bool:
        """True where A and B are one array."""
        return self.A is self.B

    def with_activation(self, activation: Activation) -> Projection:
        """Return the same matrices under another activation."""
        return Projection(self.A, self.B, activation)

    def first(self, n_dims: int) -> Projection:
        """Return the projection on the first ``n_dims`` columns, the strongest ones of an eigenproblem (T12).

        Raises
        ------
        ConfigError
            If there are fewer columns.
        """
        if not 1 <= n_dims <= self.n_dims:
            raise ConfigError(f"{n_dims} of {self.n_dims} dimensions cannot be had; ask for 1 to {self.n_dims}")
        A = np.ascontiguousarray(self.A[:, :n_dims])
        return Projection(A, A if self.is_tied else np.ascontiguousarray(self.B[:, :n_dims]), self.activation)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return g(q) / |g(q)| of each row, (n, k) float32."""
        return self._embed(q_rows, self.A)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return h(d) / |h(d)| of each row, (n, k) float32."""
        return self._embed(d_rows, self.B)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the cosine of every query with every document, (n_queries, n_documents) float32."""
        return np.asarray(self.embed_queries(q_rows) @ self.embed_documents(d_rows).T, dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the cosine of query r with document r, (n_pairs,) float32.

        Raises
        ------
        ShapeMismatch
            If there are not as many documents as queries.
        """
        if q_rows.shape[0] != d_rows.shape[0]:
            raise ShapeMismatch(f"{q_rows.shape[0]} queries cannot be paired with {d_rows.shape[0]} documents")
        return np.asarray(np.einsum("ij,ij->i", self.embed_queries(q_rows), self.embed_documents(d_rows)), np.float32)

    def _embed(self, rows: sp.csr_matrix, matrix: Float32) -> Float32:
        vectors = embed_rows(rows, matrix)
        if self.activation == "sigmoid":
            # s(0) = 1/2 in every dimension would make texts without known words all alike: they stay 0.
            vectors = np.where(vectors.any(axis=1, keepdims=True), expit(vectors), np.float32(0.0))
        return unit(vectors)


def unit(vectors: Float32) -> Float32:
    """Return each row divided by its length, (n, k) float32; a row of zeros stays 0."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    length[length == 0.0] = 1.0
    return np.asarray(vectors / length, dtype=np.float32)
