"""BM25 and tf-idf as rows whose inner product is the lexical score: settings, document rows, query rows."""

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
"""How often a word counts that a query holds tf times: tf (as in Lucene), its root, log2(1 + tf), or once."""


_SHORTEST = 1e-6
"""The length factor of an empty field at b = 1: no division by 0."""


@dataclass(frozen=True, slots=True)
class LexicalSettings:
    """Which lexical score, and its parameters; weights and lengths are one a field, in the view's order.

    A model with a memory of queries (`QueryMemory`) has it as its last field, of query weight and coverage 0.
    `ConfigError` is raised for an unknown form or ``query_tf``, numbers of fields that differ, or a value out of range.
    """

    form: str
    """{'tfidf', 'bm25'}."""
    field_weights: tuple[float, ...]
    """At least 0, one above it: beta_k of d = sum_k beta_k d_k (tfidf), w_k of tf = sum_k w_k tf_k / B_k (bm25)."""
    query_weights: tuple[float, ...]
    """The same for the fields of a document that is used as a query; a text is one field of weight 1."""
    k1: float = 1.2
    """Above 0: where the counting of a word levels off (bm25)."""
    b: tuple[float, ...] = ()
    """From 0 to 1: how much the length of each field counts, B_k = 1 - b_k + b_k len_k / mean len_k (bm25)."""
    mean_lengths: tuple[float, ...] = ()
    """Mean number of words of each field, as it was when the settings were chosen (bm25)."""
    query_tf: str = "raw"
    """One of `QUERY_TF` (bm25)."""
    factor: float = 1.0
    """Above 0, of all document rows: one scale for every corpus and every setting."""
    coverage: tuple[float, ...] = ()
    """c_k, at least 0: what a field adds all of whose words the query holds once; empty for none (bm25)."""

    def __post_init__(self) -> None:
        if self.form not in LEXICAL_FORMS:
            raise ConfigError(f"the lexical form is {self.form!r}: choose one of {', '.join(LEXICAL_FORMS)}")
        if self.query_tf not in QUERY_TF:
            raise ConfigError(f"query_tf is {self.query_tf!r}: choose one of {', '.join(QUERY_TF)}")
        self._check_fields()
        if not any(self.field_weights):
            raise ConfigError(f"field_weights is {self.field_weights}: one field at least needs a weight above 0")
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
                raise ConfigError(f"{name} has {len(values)} values for {n_fields} fields: give one a field")
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise ConfigError(f"{name} is {values}: each must be finite and at least 0")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a manifest keeps them, the same for equal numbers of any type."""
        numbers = {k: list(map(float, v)) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if not self.coverage:
            del numbers["coverage"]  # encoders made before there was any keep their ids
        return {**numbers, "k1": float(self.k1), "factor": float(self.factor)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LexicalSettings:
        """Return the settings that a manifest keeps."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in kept.items()}
        return cls(**values)


def bm25_idf(n_documents: int, document_frequency: AnyArray) -> Float64:
    """Return ln(1 + (N - df + 1/2) / (df + 1/2)) of each word, (m,) float64."""
    return np.log1p((n_documents - document_frequency + 0.5) / (document_frequency + 0.5))


def length_norms(lengths: Float64, mean_length: float, b: float) -> Float64:
    """Return 1 - b + b len / mean len of each document, (n,) float64, by which its counts are divided."""
    return np.maximum(1 - b + b * (lengths / (mean_length or 1.0)), _SHORTEST)


def bm25_weights(tf: Float64, idf: Float64, k1: float) -> Float64:
    """Return idf (k1 + 1) tf / (k1 + tf), float64, of tf divided by `length_norms` already. Source: spec B20."""
    return idf * (k1 + 1) * tf / (k1 + tf)


def cover_rates(coverage: float, idf_sums: Float64) -> Float32:
    """Return c / `LexicalRows.idf_sums` of a field of each document, (n,) float32; 0 without words that have an idf."""
    return np.divide(coverage, idf_sums, out=np.zeros(len(idf_sums)), where=idf_sums > 0).astype(np.float32)


class LexicalRows:
    """Word counts to the rows whose inner product is the lexical score.

    ======  =====================================================  ============================================
    form    document's weight of word i                            query's weight of word i
    ======  =====================================================  ============================================
    tfidf   sum_k beta_k unit((1 + ln tf_k,i) idf_i)               unit of the same sum over its own fields
    bm25    idf_i ((k1 + 1) tf_i / (k1 + tf_i) + cover_i)          g(tf_i) / sqrt(sum_j (g(tf_j) idf_j)^2)
    ======  =====================================================  ============================================

    idf is ln(N / df) for tfidf, ln(1 + (N - df + 1/2) / (df + 1/2)) for bm25, N documents of which df hold the word.
    cover_i is the sum of c_k / (sum of the idf of the different words of field k) over the fields k that hold word i:
    a query that holds all words of a field once has c_k from it before it is divided, and one that holds some of them
    the same part of it as of their idf. It is 0 without ``coverage``.
    Document rows are multiplied by ``factor``. What a query is divided by depends on the query alone: it changes no
    ranking, and makes the scores of short and long queries alike in size. A word that stands in every document tells
    none apart and is left out.

    ``frequency_of`` returns the document frequencies of word numbers, (n,) -> (n,); counts are (n, any) float32
    matrices of one shape, ids ascending in each row.

    Source: spec B01, B20; Robertson, Zaragoza, Taylor 2004 (one saturation over all fields).
    """

    def __init__(self, settings: LexicalSettings, frequency_of: Callable[[AnyInt], AnyInt], n_documents: int) -> None:
        self.settings = settings
        self._frequency_of = frequency_of
        self._n_documents = n_documents

    def documents(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of documents, (n, N_TERM_IDS) float32, given the word counts of each field."""
        s = self.settings
        if len(counts) != len(s.field_weights):
            raise ShapeMismatch(f"counts of {len(counts)} fields for {len(s.field_weights)} weights: give one a field")
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
            weights += combine(covers, [1.0] * len(covers)).data * idf  # the words of both sums are those of any field
        return _without_zeros(with_data(rows, weights.astype(np.float32)))

    def queries(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of queries: texts (one matrix), or documents (the counts of each field but a memory)."""
        weights = (1.0,) if len(counts) == 1 else self.settings.query_weights[: len(counts)]
        if self.settings.form == "tfidf":
            return unit_rows(combine([self._unit(field) for field in counts], weights))
        rows = _without_zeros(combine(list(counts), weights))  # a word of fields of weight 0 is not there even once
        g = _QUERY_TF[self.settings.query_tf](rows.data.astype(np.float64))
        idf = self.idf_of(rows.indices)
        length = np.sqrt(np.bincount(row_of(rows), (g * idf) ** 2, minlength=rows.shape[0]))
        length[length == 0] = 1.0
        weighted = np.where(idf > 0, g / length[row_of(rows)], 0.0)
        return _without_zeros(with_data(rows, weighted.astype(np.float32)))

    def single_words(self, ids: AnyInt) -> Float64:
        """Return the weight of each word in a document of it alone, of weight 1, mean length, no coverage, (n,)."""
        return self.settings.factor * (self.idf_of(ids) if self.settings.form == "bm25" else np.ones(len(ids)))

    def squares(self, query_rows: sp.csr_matrix) -> Float32:
        """Return what each value of query rows adds to the squared length by which a query is divided, (nnz,) float32.

        A query of some of a row's words is the row's values divided by the root of the sum of these.
        """
        data = query_rows.data.astype(np.float64)
        if self.settings.form == "bm25":
            data *= self.idf_of(query_rows.indices)
        return (data**2).astype(np.float32)

    def idf_of(self, ids: AnyInt) -> Float64:
        """Return idf of word numbers, (n,) float64; 0 for words that stand in every document."""
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
    """Return query rows times the weights of their words, (n_words,) float32; later words have 1. Source: spec M02."""
    known = rows.indices < len(weights)
    data = rows.data.copy()
    data[known] *= weights[rows.indices[known]]
    return with_data(rows, data)
