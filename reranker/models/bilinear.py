"""f(q, d) = (Uq).(Vd) + a q.d, the model family of spec 2.2: M01, M05, M06, M07 and M08 are its special cases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Float32, Float64
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.checks import check_embedding, check_finite_rows
from reranker.kernels.rows import embed_rows
from reranker.models.base import VectorScorer, word_rows


@dataclass(frozen=True, eq=False)
class Bilinear(VectorScorer):
    """Scores f(q, d) = (Uq).(Vd) + a q.d.

    ====  ==============================================
    id    as
    ====  ==============================================
    M01   ``Bilinear.lexical()``: U and V without rows
    M05   ``Bilinear(U, U)``: tied
    M06   ``Bilinear(U, V)``
    M07   ``Bilinear(U, V, identity=0.0)``
    M08   ``Bilinear(U, V).restricted(n)``
    ====  ==============================================

    Raises
    ------
    ShapeMismatch
        If U or V is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If a value is NaN or infinite, or the identity's weight is negative or not finite.

    Source
    ------
    spec 2.2 and 2.1; storage by rows as in its last paragraph.
    """

    U: Float32
    """(n_query_words, N) float32: Row = word of the query side. Words past the last row have no learned part."""
    V: Float32
    """(n_document_words, N) float32: The same for documents; the very same array for a tied model."""
    identity: float = 1.0
    """a >= 0, the weight of exact word matching."""

    def __post_init__(self) -> None:
        check_embedding(self.U)
        check_embedding(self.V)
        if self.U.shape[1] != self.V.shape[1]:
            raise ShapeMismatch(
                f"U has {self.U.shape[1]} dimensions and V {self.V.shape[1]}; both must map into the same space"
            )
        self._check_identity()
        check_finite_rows(self.U, "U")
        if not self.is_tied:
            check_finite_rows(self.V, "V")

    @classmethod
    def lexical(cls) -> Bilinear:
        """Return M01: q.d alone, the tf-idf score."""
        none = np.zeros((0, 0), np.float32)
        return cls(none, none)

    @property
    def n_dims(self) -> int:
        """N, the dimensions of Uq and Vd."""
        return int(self.V.shape[1])

    @property
    def is_tied(self) -> bool:
        """True where U and V are one array."""
        return self.U is self.V

    def restricted(self, n_words: int) -> Bilinear:
        """Return the model in which words past the ``n_words`` most frequent count by exact matching alone (M08)."""
        if n_words < 0:
            raise InputError(f"a restriction to {n_words} words is not possible; give 0 (no learned part) or more")
        U = self.U[:n_words]
        return Bilinear(U, U if self.is_tied else self.V[:n_words], self.identity)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return Uq of each row, (n, N) float32."""
        return embed_rows(q_rows, self.U)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return Vd of each row, (n, N) float32."""
        return embed_rows(d_rows, self.V)


def pair_weights(U: Float32, V: Float32, q_ids: AnyInt, d_ids: AnyInt) -> Float64:
    """Return U_i . V_j of every pair of words, (n_q, n_d) float64; 0 where a word has no learned row.

    Words of the query side and of the document side are given by their ids; U and V are as in `Bilinear`.
    """
    weights: Float64 = word_rows(q_ids, U) @ word_rows(d_ids, V).T
    return weights
