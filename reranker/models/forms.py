"""How a document's words make the vector that a query's meets: c(d) = Vd o t(d), o element by element.

Only t differs between model classes, so that an index, a store and an engine serve them all alike: c(d) is computed
once, when a document is indexed.

================== ================= ========================== ===========================================
form               t(d)              query's vector             spec
================== ================= ========================== ===========================================
``linear``         1                 Uq                         M05 - M08, `reranker.models.bilinear`
``cubic``          1 + Yd            Uq                         M18, shared: `Polynomial`
``cubic_separate`` [Yd, 1]           Uq, U = [U1, U2]           M19, V = [V1, V2]: `SeparateCubic`
``unit``           1 / abs(Vd)       Uq / abs(Uq)               M21, LSI, OPCA, CCA: `Projection`, a cosine
================== ================= ========================== ===========================================

For one document and one query the learned part is a sum over pairs of words in every form, sum_ij q_i W_ij d_j with
W_ij = (U_i / m) . (V_j o t(d)), m = abs(Uq) for ``unit`` and else 1. W depends on j's companions in d (and, for
``unit``, on i's in q) unless the form is ``linear``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64
from reranker.errors import ConfigError, ShapeMismatch
from reranker.kernels.checks import check_embedding, check_finite_rows
from reranker.kernels.rows import embed_rows
from reranker.models.base import VectorScorer, word_rows
from reranker.models.model_classes import names_where

LINEAR: Final = "linear"
_SHORTEST = 1e-12
"""Vectors that are shorter count as 0: they have no direction that rounding leaves alone."""


@dataclass(frozen=True, slots=True)
class Form:
    """The formula of one form.

    ``bound`` of (V, Y, length of d) is a length that c(d) does not exceed; ``gate`` is t of (Vd, Yd), (n, N) each as
    wide as it is, None for 1. V has ``factor_share`` columns for one of Y, 0 where there is no Y. With ``unit_queries``
    a query's vector is of length 1.
    """

    bound: Callable[[Float32, Float32, float], float]
    gate: Callable[[Float32, Float32], Float32] | None = None
    factor_share: int = 0
    unit_queries: bool = False


def _inverse_lengths(vectors: Float32, _: Float32) -> Float32:
    """Return 1 / length of each row, (n, 1); 1 for rows (nearly) of length 0."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    inverse: Float32 = np.divide(1.0, lengths, out=np.ones_like(lengths), where=lengths > _SHORTEST).astype(np.float32)
    return inverse


def _largest(table: Float32) -> float:
    """Return the largest singular value."""
    if not table.size:
        return 0.0
    E = table.astype(np.float64)
    return float(np.sqrt(max(np.linalg.eigvalsh(E.T @ E)[-1], 0.0)))


def _product_bound(V: Float32, Y: Float32) -> float:
    """Return a bound of abs(Vd o Yd) over all rows d of length 1."""
    longest = [float(np.linalg.norm(table.astype(np.float64), axis=0).max(initial=0.0)) for table in (V, Y)]
    return min(_largest(V) * longest[1], _largest(Y) * longest[0])


def _cubic_bound(V: Float32, Y: Float32, length: float) -> float:
    return _largest(V) * length + _product_bound(V, Y) * length**2


def _separate_bound(V: Float32, Y: Float32, length: float) -> float:
    n = Y.shape[1]
    return float(np.hypot(_product_bound(V[:, :n], Y) * length**2, _largest(V[:, n:]) * length))


FORMS: Final[dict[str, Form]] = {
    LINEAR: Form(lambda V, _, length: _largest(V) * length),
    "cubic": Form(_cubic_bound, lambda _, Yd: 1 + Yd, factor_share=1),
    "cubic_separate": Form(_separate_bound, lambda _, Yd: np.hstack([Yd, np.ones_like(Yd)]), factor_share=2),
    "unit": Form(lambda V, Y, length: 1.0, _inverse_lengths, unit_queries=True),
}
"""Formulas by name; a model's manifest and its encoder id hold the name."""


def form_of(name: str) -> Form:
    """Return a formula by its name.

    Raises
    ------
    ConfigError
        If it is not one of `FORMS`.
    """
    if name not in FORMS:
        raise ConfigError(
            f"the document form {name[:40]!r} is not known here (known: {', '.join(FORMS)}): install the version of "
            f"the program that wrote the model, or a later one",
            value=name[:40],
        )
    return FORMS[name]


def check_linear(name: str, what: str) -> None:
    """Raise `ConfigError` where a form other than ``linear`` has no such thing as ``what``.

    W_ij of the other forms is a matter of the whole document; explanations of search results have it.
    """
    if name != LINEAR:
        raise ConfigError(
            f"{what} is the same in every document for the form 'linear' alone, and this model's is {name!r}: see the "
            f"pairs of a document with `ssi search --explain`, or train with --model-class "
            f"{names_where(lambda each: each.form == LINEAR and each.has_vectors)}",
            form=name,
        )


@dataclass(frozen=True, eq=False)
class DocumentForm:
    """The document side of a model as a formula, ``name`` of `FORMS`, and its tables.

    ``V`` is (n_words, N) float32, a row a word; words past the last row have no learned part. The cubic forms have
    ``Y``, (n_words, N or N / 2) float32, with a row for each of V's.

    Raises
    ------
    ConfigError
        For an unknown form.
    ShapeMismatch
        If a table is no C-contiguous float32 matrix, or Y is missing, too much, or does not fit V.
    InputError
        If a value is NaN or infinite.
    """

    name: str
    V: Float32
    Y: Float32 | None = None

    def __post_init__(self) -> None:
        share = form_of(self.name).factor_share
        check_embedding(self.V)
        check_finite_rows(self.V, "V")
        if (self.Y is not None) != bool(share):
            raise ShapeMismatch(
                f"the form {self.name!r} {'needs' if share else 'has no'} table Y: give it to cubic forms, and to them "
                f"alone"
            )
        if self.Y is None:
            return
        check_embedding(self.Y)
        check_finite_rows(self.Y, "Y")
        n_words, n_dims = self.V.shape
        if self.Y.shape != (n_words, n_dims // share) or n_dims % share:
            raise ShapeMismatch(
                f"Y of shape {self.Y.shape} does not fit V of {self.V.shape} in the form {self.name!r}: one row a "
                f"word and {n_dims} / {share} columns are needed"
            )

    def vectors(self, rows: sp.csr_matrix) -> Float32:
        """Return c(d) of each row, (n, N) float32."""
        Vd = embed_rows(rows, self.V)
        gate = self._gate(Vd, rows)
        vectors: Float32 = Vd if gate is None else np.where(Vd == 0, np.float32(0), Vd * gate)
        return vectors

    def word_vectors(self, row: sp.csr_matrix) -> Float64:
        """Return what each word of one document adds to c(d) for d_j = 1: V_j o t(d), (n_words, N); 0 if unlearned."""
        words = word_rows(row.indices, self.V)
        gate = self._gate(embed_rows(row, self.V), row)
        return words if gate is None else words * gate.astype(np.float64)

    def bound(self, reach: float) -> float:
        """Return a length that no c(d) of a row of length ``reach`` or less exceeds.

        With s the largest singular value and m the longest column of a table: abs(Vd) <= s(V) abs(d), and
        abs(Vd o Yd) <= min(s(V) m(Y), s(Y) m(V)) abs(d)^2. A unit vector has length 1 at most.
        """
        Y = self.V[:, :0] if self.Y is None else self.Y
        return FORMS[self.name].bound(self.V, Y, reach)

    def _gate(self, Vd: Float32, rows: sp.csr_matrix) -> Float32 | None:
        gate = FORMS[self.name].gate
        if gate is None:
            return None
        return gate(Vd, Vd[:, :0] if self.Y is None else embed_rows(rows, self.Y))


def query_vectors(name: str, U: Float32, q_rows: sp.csr_matrix) -> Float32:
    """Return the vector of each query in the form ``name``, (n, N) float32."""
    vectors = embed_rows(q_rows, U)
    if form_of(name).unit_queries:
        vectors = np.ascontiguousarray(vectors * _inverse_lengths(vectors, vectors))
    return vectors


def weights_in(documents: DocumentForm, U: Float32, query: sp.csr_matrix, document: sp.csr_matrix) -> Float64:
    """Return W_ij of each word of one query with each word of one document, as they count in this very document.

    sum_ij q_i W_ij d_j is the learned part of f(q, d), in every form. The result is (n_q, n_d) float64 for a query of
    n_q words and a document of n_d, one row each, and 0 where a word has no learned row.
    """
    left = word_rows(query.indices, U)
    if form_of(documents.name).unit_queries:
        vectors = embed_rows(query, U)
        left = left * _inverse_lengths(vectors, vectors).astype(np.float64)
    weights: Float64 = left @ documents.word_vectors(document).T
    return weights


@dataclass(frozen=True, eq=False)
class FormScorer(VectorScorer):
    """Float32 f(q, d) = (query vector).(c(d)) + a q.d of any form.

    ``U`` is (n_query_words, N) float32, the very V of ``documents`` where it is tied to it; a >= 0 is ``identity``.

    Raises
    ------
    ShapeMismatch
        If U is no C-contiguous float32 matrix as wide as V.
    InputError
        If a value is NaN or infinite, or a is not usable.
    """

    U: Float32
    documents: DocumentForm
    identity: float = 1.0

    def __post_init__(self) -> None:
        check_embedding(self.U)
        check_finite_rows(self.U, "U")
        if self.U.shape[1] != self.n_dims:
            raise ShapeMismatch(
                f"U has {self.U.shape[1]} dimensions and V {self.n_dims}; both must map into the same space"
            )
        self._check_identity()

    @property
    def n_dims(self) -> int:
        """N, the dimensions of a vector."""
        return int(self.documents.V.shape[1])

    @property
    def is_tied(self) -> bool:
        """True where U and V are one array."""
        return self.U is self.documents.V

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each query, (n, N) float32."""
        return query_vectors(self.documents.name, self.U, q_rows)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return c(d) of each document, (n, N) float32."""
        return self.documents.vectors(d_rows)
