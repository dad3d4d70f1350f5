"""Cosines of projected texts: `Projection`, with the matrices of LSI, CL-LSI, PCA, OPCA, CCA, HDLR and S2Net."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import expit

from reranker.arrays import Float32
from reranker.errors import ConfigError, ShapeMismatch
from reranker.kernels.rows import check_embedding, check_finite_rows, embed_rows
from reranker.models.scorers import VectorScorer, unit

Activation = Literal["linear", "sigmoid"]
ACTIVATIONS: tuple[str, ...] = ("linear", "sigmoid")


@dataclass(frozen=True, eq=False)
class Projection(VectorScorer):
    """Scorer f(q, d) = g(q).h(d) / (|g(q)| |h(d)|), with g(q) = s(A^T q) and h(d) = s(B^T d).

    LSI, CL-LSI, PCA, OPCA, CCA, HDLR and S2Net differ only in A and B. Both sides are embedded as unit vectors, so the
    score is an inner product, which every engine route can serve. A text without known words (A^T q = 0) has the
    vector 0 and scores 0.

    Raises
    ------
    ShapeMismatch
        If A or B is not a C-contiguous float32 matrix, or their numbers of columns differ.
    InputError
        If a value is NaN or infinite.
    ConfigError
        If the activation is unknown.

    Notes
    -----
    Source: spec 2.7 (similarity of S2Net), B03, B07-B10.
    """

    A: Float32
    """Query side, (n_query_words, k) float32, one row per word. Words with higher numbers are skipped."""
    B: Float32
    """Document side, (n_document_words, k) float32; the same array as A if both sides share one matrix."""
    activation: Activation = "linear"
    """s: ``linear`` is the identity, ``sigmoid`` is 1 / (1 + exp(-x)) (an option of S2Net, spec M25)."""
    identity: float = field(default=0.0, init=False, repr=False)

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
        """k, the number of dimensions of the space."""
        return int(self.A.shape[1])

    @property
    def is_tied(self) -> bool:
        """Whether A and B are the same array."""
        return self.A is self.B

    def first(self, n_dims: int) -> Projection:
        """Return the projection on the first (strongest, T12) ``n_dims`` columns; `ConfigError` if there are fewer."""
        if not 1 <= n_dims <= self.n_dims:
            raise ConfigError(f"the projection has {self.n_dims} dimensions, not {n_dims}; ask for 1 to {self.n_dims}")
        A = np.ascontiguousarray(self.A[:, :n_dims])
        return Projection(A, A if self.is_tied else np.ascontiguousarray(self.B[:, :n_dims]), self.activation)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return g(q) / |g(q)| of each row, (n, k) float32."""
        return self._embed(q_rows, self.A)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return h(d) / |h(d)| of each row, (n, k) float32."""
        return self._embed(d_rows, self.B)

    def _embed(self, rows: sp.csr_matrix, matrix: Float32) -> Float32:
        vectors = embed_rows(rows, matrix)
        if self.activation == "sigmoid":
            # s(0) = 1/2 in every dimension would make all texts without known words alike, so they keep the vector 0.
            vectors = np.where(vectors.any(axis=1, keepdims=True), expit(vectors), np.float32(0.0))
        return unit(vectors)
