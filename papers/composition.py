"""Scorers made of scorers: rows mapped to other features first, and weighted sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.feature_map import FeatureMap
from reranker.errors import InputError
from reranker.models.base import Scorer, Scores
from reranker.models.bilinear import Bilinear


@dataclass(frozen=True, eq=False)
class Mapped:
    """Scores f(g(q), h(d)) of another scorer f and feature maps g and h (spec 2.4: CFH is a map before any model).

    Parameters
    ----------
    inner : Scorer
        f, over the mapped rows.
    query_map, document_map : FeatureMap
        g and h.
    """

    inner: Scorer
    query_map: FeatureMap
    document_map: FeatureMap

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        return self.inner.score_matrix(self.query_map.rows(q_rows), self.document_map.rows(d_rows))

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of query r with document r, (n_pairs,) float32."""
        return self.inner.score_pairs(self.query_map.rows(q_rows), self.document_map.rows(d_rows))

    def folded(self) -> Bilinear:
        """Return the same scores as a `Bilinear` over the unmapped words, which engines serve.

        With g(q) = G^T q, (U G^T q).(V H^T d) has the word tables G U and H V; they need D N numbers where the map
        needed F N.

        Raises
        ------
        InputError
            If the inner scorer is not a `Bilinear` without identity: q'.d' of mapped rows is no exact word match.
        """
        if not isinstance(self.inner, Bilinear) or self.inner.identity:
            raise InputError(
                f"a mapped {type(self.inner).__name__} cannot be folded into word tables: only a Bilinear with "
                f"identity 0 can; score it through this object"
            )
        U = self.query_map.word_table(self.inner.U)
        tied = self.inner.is_tied and self.query_map is self.document_map
        return Bilinear(U, U if tied else self.document_map.word_table(self.inner.V), 0.0)


@dataclass(frozen=True, eq=False)
class Mix:
    """Scores the weighted sum of scorers over the same rows.

    Parameters
    ----------
    parts : tuple of Scorer
        At least one.
    weights : tuple of float
        One each, finite; a part with the weight 0 is left out, whatever it scores. (alpha, 1 - alpha) is the mixture
        of spec B04, B16 and M10, (1, mu) that of M14.

    Raises
    ------
    InputError
        If there is no part, not one weight each, or a weight is not finite.
    """

    parts: tuple[Scorer, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.weights) or not np.isfinite(self.weights).all():
            raise InputError(
                f"weights {self.weights} do not fit a mixture of {len(self.parts)} scorers: give one finite weight each"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        total = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for part, weight in zip(self.parts, self.weights, strict=True):
            if weight:
                total += np.float32(weight) * part.score_matrix(q_rows, d_rows)
        return total

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of query r with document r, (n_pairs,) float32."""
        total = np.zeros(q_rows.shape[0], np.float32)
        for part, weight in zip(self.parts, self.weights, strict=True):
            if weight:
                total += np.float32(weight) * part.score_pairs(q_rows, d_rows)
        return total
