"""Polynomial semantic indexing: documents as products of embeddings (spec 2.5: M17, M18, M19, M20).

All low-rank forms are (query vector).(document vector) + a q.d, so a document's vector is computed once, and an engine
that serves `Bilinear` serves them too: index ``embed_documents(rows)`` in the place of Vd, query by ``embed_queries``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.checks import check_embedding, check_finite_rows
from reranker.kernels.serving import embed
from reranker.models.base import Scores, product_matrix, product_pairs

Floats = npt.NDArray[np.float32]
_ORACLE_WORDS = 200


@dataclass(frozen=True, eq=False)
class Polynomial:
    """Scores f(q, d) = (Uq).c(d) + a q.d with c(d) = E1 d o (1 + E2 d o (1 + E3 d o ...)); o is element by element.

    This is the sum, over all degrees up to k, of sum_l (Uq)_l (E1 d)_l ... (E_{k-1} d)_l with embeddings shared by all
    degrees, + a q.d. Two factors, V and Y, are PSI of degree 3 with shared U and V: c(d) = Vd o (1 + Yd) (M18); one
    factor is `Bilinear` (degree 2); more are M20.

    Parameters
    ----------
    U : (n_query_words, N) float32
        Row = word.
    factors : tuple of (n_document_words, N) float32
        E1, E2, ...; at least one.
    identity : float
        a.

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If there is no factor, a value is NaN or infinite, or a is negative.

    Source
    ------
    spec 2.5 (f3_LR and its general degree); A11 for sharing.
    """

    U: Floats
    factors: tuple[Floats, ...]
    identity: float = 1.0

    def __post_init__(self) -> None:
        if not self.factors:
            raise InputError("a polynomial of no document factor ranks nothing: give one (degree 2) or more")
        _check_tables((self.U, *self.factors), self.identity)

    @property
    def degree(self) -> int:
        """k: words of a query and a document that one product joins."""
        return len(self.factors) + 1

    def embed_queries(self, q_rows: sp.csr_matrix) -> Floats:
        """Return Uq of each row, (n, N) float32."""
        return _embed(q_rows, self.U)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Floats:
        """Return c(d) of each row, (n, N) float32."""
        first, *others = (_embed(d_rows, factor) for factor in self.factors)
        tail = np.ones_like(first)
        for other in reversed(others):
            tail = 1 + other * tail
        vectors: Floats = first * tail
        return vectors

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of every query with every document.

        Parameters
        ----------
        q_rows, d_rows : csr_matrix, (n_queries, any) and (n_documents, any) float32
        d_vectors : (n_documents, N) float32, optional
            What `embed_documents` returned, where it is known already.

        Returns
        -------
        (n_queries, n_documents) float32

        Raises
        ------
        ShapeMismatch
            If ``d_vectors`` does not hold one vector of N dimensions for each document.
        """
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_matrix(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32; arguments as in `score_matrix`."""
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_pairs(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)


@dataclass(frozen=True, eq=False)
class SeparateCubic:
    """Scores f(q, d) = sum_l (Uq)_l (Vd)_l (Yd)_l + (U2 q).(V2 d) + a q.d.

    The cubic and the quadratic part have embeddings of their own (spec M19). The cached document
    vector is [Vd o Yd, V2 d], 2 N numbers; the query's is [Uq, U2 q].

    Parameters
    ----------
    U, V, Y, U2, V2 : (n_words, N) float32
        Row = word.
    identity : float
        a.

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If a value is NaN or infinite, or a is negative.

    Source
    ------
    spec 2.5, the option "separate"; A11.
    """

    U: Floats
    V: Floats
    Y: Floats
    U2: Floats
    V2: Floats
    identity: float = 1.0

    def __post_init__(self) -> None:
        _check_tables((self.U, self.V, self.Y, self.U2, self.V2), self.identity)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Floats:
        """Return [Uq, U2 q] of each row, (n, 2 N) float32."""
        return np.hstack([_embed(q_rows, self.U), _embed(q_rows, self.U2)])

    def embed_documents(self, d_rows: sp.csr_matrix) -> Floats:
        """Return [Vd o Yd, V2 d] of each row, (n, 2 N) float32."""
        return np.hstack([_embed(d_rows, self.V) * _embed(d_rows, self.Y), _embed(d_rows, self.V2)])

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of every query with every document.

        Parameters
        ----------
        q_rows, d_rows : csr_matrix, (n_queries, any) and (n_documents, any) float32
        d_vectors : (n_documents, 2 N) float32, optional
            What `embed_documents` returned, where it is known already.

        Returns
        -------
        (n_queries, n_documents) float32

        Raises
        ------
        ShapeMismatch
            If ``d_vectors`` does not hold one vector of 2 N dimensions for each document.
        """
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_matrix(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, d_vectors: Floats | None = None) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32; arguments as in `score_matrix`."""
        vectors = self.embed_documents(d_rows) if d_vectors is None else d_vectors
        return product_pairs(self.embed_queries(q_rows), vectors, q_rows, d_rows, self.identity)


@dataclass(frozen=True, eq=False)
class FullPolynomial:
    """Scores f(q, d) = sum_ijk W3_ijk q_i d_j d_k + q^T W2 d, with a weight for each combination of words (M17).

    For vocabularies of at most 200 words: what the low-rank forms are checked against.

    Parameters
    ----------
    W2 : (D_q, D) float32
        Weights of degree 2.
    W3 : (D_q, D, D) float32, optional
        Weights of degree 3; None for degree 2 alone.

    Raises
    ------
    InputError
        If the vocabulary is too large or a weight is not finite.
    ShapeMismatch
        If the shapes differ.

    Source
    ------
    spec 2.5, f2 and f3.
    """

    W2: Floats
    W3: Floats | None = None

    def __post_init__(self) -> None:
        if self.W2.ndim != 2 or max(self.W2.shape) > _ORACLE_WORDS:
            raise InputError(
                f"a weight for each pair of words of shape {self.W2.shape} is not for here: this form is for at most "
                f"{_ORACLE_WORDS} words; use Polynomial"
            )
        if self.W3 is not None and self.W3.shape != (*self.W2.shape, self.W2.shape[1]):
            raise ShapeMismatch(
                f"W3 of shape {self.W3.shape} does not fit W2 of {self.W2.shape}: (D_q, D, D) is needed"
            )
        if not np.isfinite(self.W2).all() or (self.W3 is not None and not np.isfinite(self.W3).all()):
            raise InputError("a weight is NaN or infinite; training diverged: train again with a smaller rate")

    @classmethod
    def from_factors(cls, U: Floats, V: Floats, Y: Floats, identity: float = 1.0) -> FullPolynomial:
        """Return the weights W2 = U V^T + a I and W3_ijk = sum_l U_il V_jl Y_kl (rows = words) of a shared cubic."""
        W2 = U @ V.T + np.float32(identity) * np.eye(len(U), len(V), dtype=np.float32)
        return cls(W2.astype(np.float32), np.einsum("il,jl,kl->ijk", U, V, Y).astype(np.float32))

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        q, d = q_rows.toarray(), d_rows.toarray()
        scores = q @ self.W2 @ d.T
        if self.W3 is not None:
            scores = scores + np.einsum("ijk,ai,bj,bk->ab", self.W3, q, d, d, optimize=True)
        return np.asarray(scores, np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        if q_rows.shape[0] != d_rows.shape[0]:
            raise ShapeMismatch(f"{q_rows.shape[0]} queries cannot be paired with {d_rows.shape[0]} documents")
        q, d = q_rows.toarray(), d_rows.toarray()
        scores = np.einsum("ai,ij,aj->a", q, self.W2, d, optimize=True)
        if self.W3 is not None:
            scores = scores + np.einsum("ijk,ai,aj,ak->a", self.W3, q, d, d, optimize=True)
        return np.asarray(scores, np.float32)


def _embed(rows: sp.csr_matrix, table: Floats) -> Floats:
    return embed(rows.indptr, rows.indices, rows.data, table)


def _check_tables(tables: tuple[Floats, ...], identity: float) -> None:
    """Refuse tables that do not fit each other and weights of exact matching that are not usable."""
    for number, table in enumerate(tables):
        check_embedding(table)
        check_finite_rows(table, f"embedding {number}")
    dims = {table.shape[1] for table in tables}
    if len(dims) > 1:
        raise ShapeMismatch(f"embeddings of {sorted(dims)} dimensions cannot be multiplied; all must have the same")
    if not (np.isfinite(identity) and identity >= 0):
        raise InputError(f"identity weight {identity!r} is not usable; it must be finite and not negative")
