"""Scoring functions: f(q, d) = (query vector).(document vector) + a q.d, or any other `Scorer`.

`tests/contract/test_scorers.py` completes the contract. The vector of a document is computed from its words in one of
a few forms, c(d) = Vd o t(d), element by element. Model classes differ only in t, so an index, a store and an engine
can serve all of them in the same way: c(d) is computed once, when the document is indexed.

================== ================= ========================== ===========================================
form               t(d)              query vector               spec
================== ================= ========================== ===========================================
``linear``         1                 Uq                         M05 - M08: `Bilinear`
``cubic``          1 + Yd            Uq                         M18, shared: `Polynomial`
``cubic_separate`` [Yd, 1]           Uq, U = [U1, U2]           M19, V = [V1, V2]: `SeparateCubic`
``unit``           1 / abs(Vd)       Uq / abs(Uq)               M21, LSI, OPCA, CCA: `Projection`, a cosine
================== ================= ========================== ===========================================

In every form the learned part of the score of one document for one query is a sum over word pairs,
sum_ij q_i W_ij d_j with W_ij = (U_i / m) . (V_j o t(d)), where m = abs(Uq) for ``unit`` and 1 otherwise. W depends on
the other words of d (and, for ``unit``, of q), except in the ``linear`` form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyInt, Float32, Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.kernels.rows import check_embedding, check_finite_rows, dots, embed_rows
from reranker.text.rows import inner_products

LINEAR: Final = "linear"
_SHORTEST = 1e-12
"""Vectors shorter than this count as 0: rounding would change their direction."""


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


@dataclass(frozen=True, slots=True)
class Form:
    """Formula of one document form."""

    bound: Callable[[Float32, Float32, float], float]
    """Upper bound of the length of c(d), from V, Y and the length of d."""
    gate: Callable[[Float32, Float32], Float32] | None = None
    """t(d) from Vd and Yd, (n, N) each, or (n, width of Yd) for Yd; None for t = 1."""
    factor_share: int = 0
    """Number of columns of V for each column of Y; 0 if the form has no Y."""
    unit_queries: bool = False
    """Whether query vectors are divided by their length."""


def _inverse_lengths(vectors: Float32, _: Float32) -> Float32:
    """Return 1 / length of each row, (n, 1); 1 for rows of (nearly) length 0."""
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
    """Return an upper bound of abs(Vd o Yd) over all rows d of length 1."""
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
"""Forms by name; the name is part of a model's manifest and encoder id."""


def form_of(name: str) -> Form:
    """Return a form by name; raises `ConfigError` if it is not in `FORMS`."""
    if name not in FORMS:
        raise ConfigError(
            f"the document form {name[:40]!r} is not known here (known: {', '.join(FORMS)}): install the version of "
            f"the program that wrote the model, or a later one",
            value=name[:40],
        )
    return FORMS[name]


@dataclass(frozen=True, eq=False)
class DocumentForm:
    """Document side of a model: a form and its tables.

    Raises
    ------
    ConfigError
        If the form is unknown.
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or Y is missing, superfluous or does not fit V.
    InputError
        If a value is NaN or infinite.
    """

    name: str
    """Key of `FORMS`."""
    V: Float32
    """Word vectors, (n_words, N) float32; words with higher numbers have no learned part."""
    Y: Float32 | None = None
    """Second table of the cubic forms, (n_words, N or N / 2) float32."""

    def __post_init__(self) -> None:
        share = form_of(self.name).factor_share
        check_embedding(self.V)
        check_finite_rows(self.V, "V")
        if (self.Y is not None) != bool(share):
            raise ShapeMismatch(
                f"the form {self.name!r} {'needs' if share else 'has no'} table Y: give it to cubic forms, and "
                f"only to them"
            )
        if self.Y is None:
            return
        check_embedding(self.Y)
        check_finite_rows(self.Y, "Y")
        n_words, n_dims = self.V.shape
        if self.Y.shape != (n_words, n_dims // share) or n_dims % share:
            raise ShapeMismatch(
                f"Y of shape {self.Y.shape} does not fit V of {self.V.shape} in the form {self.name!r}: one row per "
                f"word and {n_dims} / {share} columns are needed"
            )

    def vectors(self, rows: sp.csr_matrix) -> Float32:
        """Return c(d) of each row, (n, N) float32."""
        Vd = embed_rows(rows, self.V)
        gate = self._gate(Vd, rows)
        vectors: Float32 = Vd if gate is None else np.where(Vd == 0, np.float32(0), Vd * gate)
        return vectors

    def word_vectors(self, row: sp.csr_matrix) -> Float64:
        """Return the contribution V_j o t(d) of each word of one document to c(d), (n_words, N); 0 if not learned."""
        words = word_rows(row.indices, self.V)
        gate = self._gate(embed_rows(row, self.V), row)
        return words if gate is None else words * gate.astype(np.float64)

    def bound(self, reach: float) -> float:
        """Return an upper bound of the length of c(d) over rows d of at most the length ``reach``.

        With s the largest singular value and m the longest column of a table: abs(Vd) <= s(V) abs(d), and
        abs(Vd o Yd) <= min(s(V) m(Y), s(Y) m(V)) abs(d)^2. A unit vector has at most length 1.
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
    """Return W_ij of each query word i and document word j in that document, (n_q, n_d); 0 if not learned."""
    left = word_rows(query.indices, U)
    if form_of(documents.name).unit_queries:
        vectors = embed_rows(query, U)
        left = left * _inverse_lengths(vectors, vectors).astype(np.float64)
    weights: Float64 = left @ documents.word_vectors(document).T
    return weights


@dataclass(frozen=True, eq=False)
class FormScorer(VectorScorer):
    """Float32 score f(q, d) = (query vector).(c(d)) + a q.d of any form.

    Raises
    ------
    ShapeMismatch
        If U is not a C-contiguous float32 matrix with as many columns as V.
    InputError
        If a value is not finite, or ``identity`` is below 0.
    """

    U: Float32
    """Query word vectors, (n_query_words, N) float32; words with higher numbers have no learned part.

    A tied U is the same array as ``documents.V``.
    """
    documents: DocumentForm
    identity: float = 1.0
    """a >= 0: the weight of exact word matching, q.d."""

    def __post_init__(self) -> None:
        check_embedding(self.U)
        if self.U.shape[1] != self.n_dims:
            raise ShapeMismatch(
                f"U has {self.U.shape[1]} dimensions and V {self.n_dims}; both must map into the same space"
            )
        if not (np.isfinite(self.identity) and self.identity >= 0):
            raise InputError(f"identity weight {self.identity!r} is not usable; it must be finite and not negative")
        if not self.is_tied:
            check_finite_rows(self.U, "U")

    @property
    def n_dims(self) -> int:
        """N, the number of dimensions of a vector."""
        return int(self.documents.V.shape[1])

    @property
    def is_tied(self) -> bool:
        """Whether U and V are the same array."""
        return self.U is self.documents.V

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return the vector of each query, (n, N) float32."""
        return query_vectors(self.documents.name, self.U, q_rows)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return c(d) of each document, (n, N) float32."""
        return self.documents.vectors(d_rows)


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
