"""BM25 and tf-idf as sparse rows: the inner product of a query row and a document row is the lexical score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import AnyArray, AnyInt, Float32, Float64
from reranker.errors import ConfigError, ShapeMismatch
from reranker.text.rows import _without_zeros, combine, row_of, unit_rows, with_data

LEXICAL_FORMS: Final = ("tfidf", "bm25")


_QUERY_TF: Final[Mapping[str, Callable[[Float64], Float64]]] = {
    "raw": lambda tf: tf,
    "sqrt": np.sqrt,
    "log": lambda tf: np.log2(1 + tf),
    "once": np.ones_like,
}


QUERY_TF: Final = tuple(_QUERY_TF)
"""Names of the functions g(tf) by which a query counts a word that it holds tf times.

``raw`` is tf (as in Lucene), ``sqrt`` its square root, ``log`` is log2(1 + tf), and ``once`` is 1.
"""


_SHORTEST = 1e-6
"""Lower bound of the length norm: the norm of an empty field at b = 1 would be 0, and counts are divided by it."""


@dataclass(frozen=True, slots=True)
class LexicalSettings:
    """The form of the lexical score and its parameters.

    Tuples have one value per field, in the order of the view. The memory of queries of a model (`QueryMemory`), if
    there is one, is the last field; its query weight and its coverage are 0.

    Raises
    ------
    ConfigError
        If the form or ``query_tf`` is unknown, the tuples have different lengths, or a value is out of range.
    """

    form: str
    """``tfidf`` or ``bm25``."""
    field_weights: tuple[float, ...]
    """Weights of the fields of a document: each at least 0, and at least one above 0.

    beta_k in d = sum_k beta_k d_k (tfidf); w_k in tf = sum_k w_k tf_k / B_k (bm25).
    """
    query_weights: tuple[float, ...]
    """Weights of the fields of a document that is used as a query. A text query counts as one field of weight 1."""
    k1: float = 1.2
    """Saturation of the word frequency: the larger, the later repeated words stop counting. Above 0 (bm25)."""
    b: tuple[float, ...] = ()
    """Length normalization of each field, from 0 to 1: B_k = 1 - b_k + b_k len_k / mean len_k (bm25)."""
    mean_lengths: tuple[float, ...] = ()
    """Mean number of words of each field in the corpus on which the settings were chosen (bm25)."""
    query_tf: str = "raw"
    """How a query counts repeated words: one of `QUERY_TF` (bm25)."""
    factor: float = 1.0
    """Factor above 0 by which all document rows are multiplied.

    It brings the scores of all corpora and settings to one scale.
    """
    coverage: tuple[float, ...] = ()
    """c_k, at least 0: what a field adds to the score if the query holds all of its words once. Empty: no coverage."""

    def __post_init__(self) -> None:
        if self.form not in LEXICAL_FORMS:
            raise ConfigError(f"the lexical form is {self.form!r}: choose one of {', '.join(LEXICAL_FORMS)}")
        if self.query_tf not in QUERY_TF:
            raise ConfigError(f"query_tf is {self.query_tf!r}: choose one of {', '.join(QUERY_TF)}")
        self._check_fields()
        if not any(self.field_weights):
            raise ConfigError(f"field_weights is {self.field_weights}: at least one field needs a weight above 0")
        if any(value > 1 for value in self.b):
            raise ConfigError(f"b is {self.b}: each must be between 0 and 1")
        for name, value in {"k1": self.k1, "factor": self.factor}.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}: it must be finite and above 0")

    def _check_fields(self) -> None:
        n_fields = len(self.field_weights)
        values_of = {"field_weights": self.field_weights, "query_weights": self.query_weights}
        if self.form == "bm25":
            values_of |= {"b": self.b, "mean_lengths": self.mean_lengths}
            values_of |= {"coverage": self.coverage} if self.coverage else {}
        for name, values in values_of.items():
            if len(values) != n_fields or not n_fields:
                raise ConfigError(f"{name} has {len(values)} values for {n_fields} fields: give one per field")
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise ConfigError(f"{name} is {values}: each must be finite and at least 0")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as stored in a manifest; equal numbers of different types are stored alike."""
        numbers = {k: list(map(float, v)) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if not self.coverage:
            del numbers["coverage"]  # encoders without coverage keep the id that they had before the setting existed
        return {**numbers, "k1": float(self.k1), "factor": float(self.factor)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LexicalSettings:
        """Return the settings stored in a manifest."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in kept.items()}
        return cls(**values)


def bm25_idf(n_documents: int, document_frequency: AnyArray) -> Float64:
    """Return the BM25 idf ln(1 + (N - df + 1/2) / (df + 1/2)) of each word, (m,) float64."""
    return np.log1p((n_documents - document_frequency + 0.5) / (document_frequency + 0.5))


def length_norms(lengths: Float64, mean_length: float, b: float) -> Float64:
    """Return the length norm 1 - b + b len / mean len of each document, (n,) float64; word counts are divided by it."""
    return np.maximum(1 - b + b * (lengths / (mean_length or 1.0)), _SHORTEST)


def bm25_weights(tf: Float64, idf: Float64, k1: float) -> Float64:
    """Return idf (k1 + 1) tf / (k1 + tf), float64, of ``tf`` already divided by `length_norms`. Source: spec B20."""
    return idf * (k1 + 1) * tf / (k1 + tf)


def cover_rates(coverage: float, idf_sums: Float64) -> Float32:
    """Return c / `LexicalRows.idf_sums` of one field for each document, (n,) float32; 0 if the sum of idf is 0."""
    return np.divide(coverage, idf_sums, out=np.zeros(len(idf_sums)), where=idf_sums > 0).astype(np.float32)


class LexicalRows:
    """Encoder of word counts as rows whose inner product is the lexical score.

    ======  =====================================================  ============================================
    form    document's weight of word i                            query's weight of word i
    ======  =====================================================  ============================================
    tfidf   sum_k beta_k unit((1 + ln tf_k,i) idf_i)               unit of the same sum over its own fields
    bm25    idf_i ((k1 + 1) tf_i / (k1 + tf_i) + cover_i)          g(tf_i) / sqrt(sum_j (g(tf_j) idf_j)^2)
    ======  =====================================================  ============================================

    idf is ln(N / df) for tfidf and ln(1 + (N - df + 1/2) / (df + 1/2)) for bm25. N is the number of documents; df is
    the number of documents that hold the word. A word that occurs in every document does not distinguish documents and
    is left out.

    cover_i is the sum, over the fields k that hold word i, of c_k / (sum of the idf of the different words of field k).
    Before the query is divided by its length, a query that holds all words of field k once therefore gets c_k from the
    field, and a query that holds some of them gets their share of the idf. cover_i is 0 without ``coverage``.

    Document rows are multiplied by ``factor``. The divisor of a query depends only on the query: it changes no ranking,
    and makes the scores of short and long queries comparable.

    Parameters
    ----------
    settings : LexicalSettings
        Form and parameters of the score.
    frequency_of : callable
        Returns the document frequencies of word numbers, (n,) -> (n,).
    n_documents : int
        Number of documents N of the corpus.

    Notes
    -----
    Word counts are (n, any) float32 matrices of one shape, with ascending ids in each row.
    Source: spec B01, B20; Robertson, Zaragoza, Taylor 2004 (one saturation over all fields).
    """

    def __init__(self, settings: LexicalSettings, frequency_of: Callable[[AnyInt], AnyInt], n_documents: int) -> None:
        self.settings = settings
        self._frequency_of = frequency_of
        self._n_documents = n_documents

    def documents(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of documents, (n, N_TERM_IDS) float32, from the word counts of each field."""
        s = self.settings
        if len(counts) != len(s.field_weights):
            raise ShapeMismatch(
                f"counts of {len(counts)} fields for {len(s.field_weights)} weights: give one weight per field"
            )
        if s.form == "tfidf":
            rows = combine([self._unit(field) for field in counts], s.field_weights)
            return with_data(rows, rows.data * np.float32(s.factor))
        parts = []
        for part, b, mean in zip(counts, s.b, s.mean_lengths, strict=True):
            norm = length_norms(np.asarray(part.sum(axis=1), dtype=np.float64).ravel(), mean, b)
            parts.append(with_data(part, (part.data / norm[row_of(part)]).astype(np.float32)))
        rows = combine(parts, s.field_weights)
        idf = self.idf_of(rows.indices) * s.factor
        weights = bm25_weights(rows.data.astype(np.float64), idf, s.k1)
        if s.coverage:
            fields = zip(counts, s.coverage, strict=True)
            covers = [with_data(field, cover_rates(c, self.idf_sums(field))[row_of(field)]) for field, c in fields]
            weights += combine(covers, [1.0] * len(covers)).data * idf  # both sums are over the same words
        return _without_zeros(with_data(rows, weights.astype(np.float32)))

    def queries(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of queries, (n, N_TERM_IDS) float32.

        ``counts`` is one matrix for text queries. For documents used as queries it is one matrix per
        field, without the memory.
        """
        weights = (1.0,) if len(counts) == 1 else self.settings.query_weights[: len(counts)]
        if self.settings.form == "tfidf":
            return unit_rows(combine([self._unit(field) for field in counts], weights))
        rows = _without_zeros(combine(list(counts), weights))  # mode "once" must not count words of fields of weight 0
        g = _QUERY_TF[self.settings.query_tf](rows.data.astype(np.float64))
        idf = self.idf_of(rows.indices)
        row = row_of(rows)
        length = np.sqrt(np.bincount(row, (g * idf) ** 2, minlength=rows.shape[0]))
        length[length == 0] = 1.0
        weighted = np.where(idf > 0, g / length[row], 0.0)
        return _without_zeros(with_data(rows, weighted.astype(np.float32)))

    def single_words(self, ids: AnyInt) -> Float64:
        """Return the weight that a document consisting only of that word gives it, (n,) float64.

        The weight is for a field of weight 1, mean length and no coverage.
        """
        return self.settings.factor * (self.idf_of(ids) if self.settings.form == "bm25" else np.ones(len(ids)))

    def squares(self, query_rows: sp.csr_matrix) -> Float32:
        """Return the contribution of each value of query rows to the squared length of its query, (nnz,) float32.

        A query is divided by that length. The row of a query that keeps only some of the words is the row's values
        divided by the square root of the sum of their contributions.
        """
        data = query_rows.data.astype(np.float64)
        if self.settings.form == "bm25":
            data *= self.idf_of(query_rows.indices)
        return (data**2).astype(np.float32)

    def idf_of(self, ids: AnyInt) -> Float64:
        """Return the idf of word numbers, (n,) float64; 0 for words that occur in every document."""
        frequency = np.asarray(self._frequency_of(ids), dtype=np.float64)
        if self.settings.form == "tfidf":
            return np.log(self._n_documents / frequency)
        idf = bm25_idf(self._n_documents, frequency)
        idf[frequency >= self._n_documents] = 0.0
        return idf

    def idf_sums(self, counts: sp.csr_matrix) -> Float64:
        """Return the sum of the idf of the different words of each row, (n,) float64."""
        sums = np.bincount(row_of(counts), self.idf_of(counts.indices), minlength=counts.shape[0])
        return sums.astype(np.float64)

    def _unit(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        weights = (1 + np.log(counts.data)) * self.idf_of(counts.indices)
        return unit_rows(_without_zeros(with_data(counts, weights.astype(np.float32))))


def weigh_words(rows: sp.csr_matrix, weights: Float32) -> sp.csr_matrix:
    """Return query rows multiplied by the learned weights of their words, ``weights`` (n_words,) float32.

    Words with numbers from n_words on have weight 1. Source: spec M02.
    """
    known = rows.indices < len(weights)
    data = rows.data.copy()
    data[known] *= weights[rows.indices[known]]
    return with_data(rows, data)
