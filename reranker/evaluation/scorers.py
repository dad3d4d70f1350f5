"""Scores of blocks of queries against all documents of a pool, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation.compact import compact_columns

Floats = npt.NDArray[np.float32]


class BlockScorer(Protocol):
    """Anything that can score consecutive queries against every document of one pool."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and number of documents."""

    def block(self, start: int, stop: int) -> Floats:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32, writable."""


@dataclass(frozen=True)
class InnerProducts:
    """Scores s(q, d) = u_q . v_d + a * (x_q . y_d), of dense vectors, sparse rows, or both.

    TF-IDF and BM25 are the sparse part alone, LSI and embeddings the dense part alone, the learned model
    (Uq).(Vd) + a q.d and mixtures both.

    Parameters
    ----------
    query_vectors, document_vectors : (n_queries, N) and (n_documents, N) float32, or both None
        u and v.
    query_rows, document_rows : csr_matrix with equally many columns, or both None
        x and y; columns may be as many as they like (they are renumbered).
    row_weight : float
        a.

    Raises
    ------
    ShapeMismatch
        If the parts do not fit each other.
    InputError
        If a value is not finite, or no part is given.
    """

    query_vectors: Floats | None = None
    document_vectors: Floats | None = None
    query_rows: sp.csr_matrix | None = None
    document_rows: sp.csr_matrix | None = None
    row_weight: float = 1.0
    shape: tuple[int, int] = field(init=False)
    _rows: sp.csr_matrix | None = field(init=False, repr=False)
    _postings: sp.csr_matrix | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shapes = set()
        if self.query_vectors is not None and self.document_vectors is not None:
            shapes.add((_checked(self.query_vectors, "query_vectors"), len(self.document_vectors)))
            _checked(self.document_vectors, "document_vectors")
            if self.query_vectors.shape[1] != self.document_vectors.shape[1]:
                raise ShapeMismatch(
                    f"query vectors have {self.query_vectors.shape[1]} dimensions and document vectors "
                    f"{self.document_vectors.shape[1]}: both must come from the same model"
                )
        rows = postings = None
        if self.query_rows is not None and self.document_rows is not None:
            shapes.add((self.query_rows.shape[0], self.document_rows.shape[0]))
            rows, documents = compact_columns(self.query_rows, self.document_rows)
            _checked(rows.data, "query_rows")
            _checked(documents.data, "document_rows")
            postings = documents.T.tocsr()
        if len(shapes) != 1:
            raise ShapeMismatch(
                f"vectors and rows must describe the same queries and documents, got (queries, documents) = "
                f"{sorted(shapes) or 'nothing'}: give vectors, rows, or both for the same ids"
            )
        object.__setattr__(self, "shape", shapes.pop())
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_postings", postings)

    def block(self, start: int, stop: int) -> Floats:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32."""
        scores: Floats | None = None
        if self.query_vectors is not None and self.document_vectors is not None:
            scores = np.asarray(self.query_vectors[start:stop] @ self.document_vectors.T, dtype=np.float32)
        if self._rows is not None and self._postings is not None:
            products = self._rows[start:stop] @ self._postings
            if scores is None:
                dense: Floats = products.toarray()
                return dense if self.row_weight == 1.0 else dense * np.float32(self.row_weight)
            _add_sparse(scores, products, self.row_weight)
        if scores is None:
            raise ShapeMismatch("a scorer needs vectors or rows")
        return scores


def _add_sparse(scores: Floats, products: sp.csr_matrix, weight: float) -> None:
    """Add weight * products to the dense scores in place, a row at a time."""
    for row in range(scores.shape[0]):
        span = slice(products.indptr[row], products.indptr[row + 1])
        scores[row, products.indices[span]] += np.float32(weight) * products.data[span]


def _checked(values: Floats, name: str) -> int:
    """Return the number of rows; refuse values that are not finite (they cannot be ordered)."""
    if not np.isfinite(values).all():
        raise InputError(f"{name} holds NaN or infinity: scores must be finite to be ranked; train or encode again")
    return len(values)
