"""The scorer of models of any form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.checks import check_embedding, check_finite_rows
from reranker.models.base import Scores
from reranker.models.cached_product import product_matrix, product_pairs
from reranker.models.forms import DocumentForm, Floats, query_vectors


@dataclass(frozen=True, eq=False)
class FormScorer:
    """Scores f(q, d) = (query vector).(c(d)) + a q.d of any form.

    Parameters
    ----------
    U : (n_query_words, N) float32
        Row = word.
    documents : DocumentForm
        The other side; its very V where U is tied to it.
    identity : float
        a >= 0.

    Raises
    ------
    ShapeMismatch
        If U is no C-contiguous float32 matrix as wide as V.
    InputError
        If a value is NaN or infinite, or a is not usable.
    """

    U: Floats
    documents: DocumentForm
    identity: float = 1.0

    def __post_init__(self) -> None:
        check_embedding(self.U)
        check_finite_rows(self.U, "U")
        if self.U.shape[1] != self.n_dims:
            raise ShapeMismatch(
                f"U has {self.U.shape[1]} dimensions and V {self.n_dims}; both must map into the same space"
            )
        if not (np.isfinite(self.identity) and self.identity >= 0):
            raise InputError(f"identity weight {self.identity!r} is not usable; it must be finite and not negative")

    @property
    def n_dims(self) -> int:
        """N, the dimensions of a vector."""
        return int(self.documents.V.shape[1])

    @property
    def is_tied(self) -> bool:
        """True where U and V are one array."""
        return self.U is self.documents.V

    def embed_queries(self, q_rows: sp.csr_matrix) -> Floats:
        """Return the vector of each query, (n, N) float32."""
        return query_vectors(self.documents.name, self.U, q_rows)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Floats:
        """Return c(d) of each document, (n, N) float32."""
        return self.documents.vectors(d_rows)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32.

        ``d_vectors`` is c(d) of the documents, (n_documents, N), where it is known already.
        """
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_matrix(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32; arguments as in `score_matrix`."""
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_pairs(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)
