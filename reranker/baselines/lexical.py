"""TF-IDF (spec B01), BM25 (B20) and LSI (B03, B04) over the word counts of documents and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from reranker.arrays import N_TERM_IDS, AnyFloat, AnyInt, Float32, Float64, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation.ranking import InnerProducts
from reranker.models.projection import unit
from reranker.text.tfidf import row_of, select_columns, unit_rows, used_columns, with_data

Rows = Int64
"""Row numbers of documents in the corpus, (n,)."""

LexicalQueries = tuple[sp.csr_matrix, ...]
"""Word counts of queries in the corpus's columns, (n_queries, m) float32 each.

One matrix: texts, to which field weights do not apply. As many as the corpus has fields: documents used as queries.
"""


class LexicalCorpus:
    """The word counts of all documents by field, over the words in use.

    It is made from counts of any width, as `field_counts` returns them. ``fields`` are (n_documents, m) float32 over
    the m words that occur, ``columns`` (m,) int64 the term id of each column, and ``document_frequency`` (m,) int64 the
    documents that hold the word in any field.

    Raises
    ------
    InputError
        If there is no document or no word.
    ShapeMismatch
        If the fields have different numbers of documents.
    """

    def __init__(self, fields: Sequence[sp.csr_matrix]) -> None:
        if not fields or len({field.shape[0] for field in fields}) != 1:
            raise ShapeMismatch(
                f"fields of {[field.shape[0] for field in fields]} documents: give one row a document in each field"
            )
        self.columns = used_columns(fields)
        self.fields = tuple(select_columns(field, self.columns) for field in fields)
        self.n_documents = int(fields[0].shape[0])
        if self.n_documents == 0 or len(self.columns) == 0:
            raise InputError(
                f"{self.n_documents} documents with {len(self.columns)} words: a lexical baseline needs at least one "
                f"document with a word; check the field names of the text view"
            )
        together = sum(self.fields[1:], start=self.fields[0]).tocsr()
        self.document_frequency = np.bincount(together.indices, minlength=len(self.columns)).astype(np.int64)

    @property
    def main_field(self) -> int:
        """Number of the field with the most words, whose weight is 1 in every setting."""
        return int(np.argmax([field.data.sum() for field in self.fields]))

    def text_queries(self, counts: sp.csr_matrix) -> LexicalQueries:
        """Return queries from the word counts of their texts; words of no document are left out (they match none)."""
        return (select_columns(counts, self.columns),)

    def document_queries(self, rows: Rows) -> LexicalQueries:
        """Return documents of the corpus, by row number, as queries."""
        return tuple(field[rows] for field in self.fields)

    def counts(self, rows: Rows) -> sp.csr_matrix:
        """Return the word counts of whole documents, all fields together, (n, N_TERM_IDS) float32 by term id."""
        total = weighted_sum([field[rows] for field in self.fields], [1.0] * len(self.fields))
        total.sort_indices()
        indices = self.columns[total.indices].astype(np.int32)
        return sp.csr_matrix((total.data, indices, total.indptr), shape=(len(rows), N_TERM_IDS))


def weighted_sum(fields: Sequence[sp.csr_matrix], weights: Sequence[float]) -> sp.csr_matrix:
    """Return sum over k of weight_k * field_k, without the words whose sum is 0.

    Raises
    ------
    ShapeMismatch
        If the numbers of fields and weights differ.
    """
    if len(fields) != len(weights):
        raise ShapeMismatch(f"{len(weights)} weights for {len(fields)} fields: give one a field, in their order")
    parts = [np.float32(weight) * field for field, weight in zip(fields, weights, strict=True) if weight]
    total = sum(parts[1:], start=parts[0]).tocsr() if parts else fields[0] * np.float32(0)
    total.eliminate_zeros()
    return total


@dataclass(frozen=True, slots=True)
class TfIdfSettings:
    """Weights of the fields, in field order.

    ``document_weights`` are beta_k of d = sum_k beta_k d_k, with d_k the unit row of field k; d is not made unit length
    again. ``query_weights`` are the same for documents used as queries, where it is made unit length. Their best values
    are often others: a linking document names its targets' titles in its text, not in its own title.
    """

    document_weights: tuple[float, ...]
    query_weights: tuple[float, ...]


FIELD_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
"""Document weights to try; BM25 levels off later and has its own."""
QUERY_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)


class TfIdfBaseline:
    """Scores q . d of tf-idf rows w_i = g(tf_i) ln(N_docs / df_i), df over all fields together.

    idf is taken from the documents of the corpus, and g(tf) is 1 + ln tf (``log``) or tf (``raw``).

    Raises
    ------
    ConfigError
        For another ``tf``.
    """

    def __init__(self, corpus: LexicalCorpus, tf: str = "log") -> None:
        if tf not in ("log", "raw"):
            raise ConfigError(f"tf is {tf!r}: choose log (1 + ln tf) or raw", value=tf)
        self.corpus = corpus
        self.tf = tf
        self.idf = np.log(corpus.n_documents / corpus.document_frequency).astype(np.float32)
        self._fields = tuple(unit_rows(self._weighted(field)) for field in corpus.fields)

    def document_rows(self, documents: Rows, weights: tuple[float, ...]) -> sp.csr_matrix:
        """Return d of some documents, (n, m) float32."""
        return weighted_sum([field[documents] for field in self._fields], weights)

    def query_rows(self, queries: LexicalQueries, weights: tuple[float, ...]) -> sp.csr_matrix:
        """Return q of some queries, (n, m) float32, unit length or empty."""
        parts = [unit_rows(self._weighted(field)) for field in queries]
        rows = parts[0] if len(parts) == 1 else weighted_sum(parts, weights)
        return unit_rows(rows)

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: TfIdfSettings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        return InnerProducts(
            query_rows=self.query_rows(queries, settings.query_weights),
            document_rows=self.document_rows(documents, settings.document_weights),
        )

    def _weighted(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return g(tf) idf of the stored counts."""
        tf = counts.data if self.tf == "raw" else 1 + np.log(counts.data)
        return with_data(counts, tf * self.idf[counts.indices])


_QUERY_TF: dict[str, Callable[[Float32], Float32]] = {
    "raw": lambda tf: tf,
    "log": lambda tf: np.log2(1 + tf),
    "once": np.ones_like,
}
QUERY_TF = tuple(_QUERY_TF)
"""How often a word counts that a query holds tf times: tf (as in Lucene), log2(1 + tf), or once."""


@dataclass(frozen=True, slots=True)
class Bm25Settings:
    """Parameters of BM25.

    ``document_weights`` are beta_k of the fields, tf = sum_k beta_k tf_k and len = sum_k beta_k len_k, and
    ``query_weights`` the same for documents used as queries. ``k1`` >= 0 is where the counting of a word levels off,
    ``b`` from 0 to 1 how much length counts, and ``query_tf`` one of `QUERY_TF`; `ConfigError` is raised for other
    values.
    """

    document_weights: tuple[float, ...]
    query_weights: tuple[float, ...]
    k1: float = 1.2
    b: float = 0.75
    query_tf: str = "raw"

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1):
            raise ConfigError(f"k1 is {self.k1!r} and b {self.b!r}: k1 must be at least 0 and b from 0 to 1")
        if self.query_tf not in QUERY_TF:
            raise ConfigError(f"query_tf is {self.query_tf!r}: choose one of {', '.join(QUERY_TF)}")


def bm25_idf(n_documents: int, document_frequency: AnyInt) -> Float64:
    """Return ln(1 + (N_docs - df + 1/2) / (df + 1/2)) of each word, (m,) float64."""
    return np.log1p((n_documents - document_frequency + 0.5) / (document_frequency + 0.5))


def bm25_weights(
    counts: sp.csr_matrix, idf: AnyFloat, lengths: Float64, mean_length: float, k1: float, b: float
) -> sp.csr_matrix:
    """Return the weight of each counted word, idf * tf (k1 + 1) / (tf + k1 (1 - b + b len / mean len)), float64.

    ``counts`` are tf of n documents, ``idf`` (m,) is from `bm25_idf`, and ``lengths`` (n,) float64 are the documents',
    their mean that of the collection. Source: spec B20.
    """
    norm = k1 * (1 - b + b * lengths / mean_length)
    tf = counts.data.astype(np.float64)
    return with_data(counts, idf[counts.indices] * (k1 + 1) * tf / (tf + norm[row_of(counts)]))


BM25_GRID: Mapping[str, Sequence[Any]] = {
    "k1": (0.6, 1.2, 2.4, 5.0, 10.0, 20.0, 40.0),
    "b": (0.0, 0.25, 0.5, 0.75, 1.0),
    "query_tf": QUERY_TF,
}
"""Settings to try."""
BM25_FIELD_WEIGHTS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)


class Bm25Baseline:
    """Scores sum over words of qtf times `bm25_weights`, over the weighted sum of the fields.

    df is over all fields together; idf and mean length are those of all documents: Lucene's formula (which leaves out
    the constant factor k1 + 1), with exact lengths in place of Lucene's one-byte ones.
    """

    def __init__(self, corpus: LexicalCorpus) -> None:
        self.corpus = corpus
        self.idf = bm25_idf(corpus.n_documents, corpus.document_frequency).astype(np.float32)
        self._lengths = [np.asarray(field.sum(axis=1), dtype=np.float64).ravel() for field in corpus.fields]

    def document_rows(self, documents: Rows, settings: Bm25Settings) -> sp.csr_matrix:
        """Return the weight of each word in some documents, (n, m) float32."""
        weights = settings.document_weights
        counts = weighted_sum([field[documents] for field in self.corpus.fields], weights)
        lengths = np.sum([w * length for w, length in zip(weights, self._lengths, strict=True)], axis=0)
        mean = float(lengths.mean()) or 1.0
        return bm25_weights(counts, self.idf, lengths[documents], mean, settings.k1, settings.b).astype(np.float32)

    def query_rows(self, queries: LexicalQueries, settings: Bm25Settings) -> sp.csr_matrix:
        """Return how often each word of a query counts, (n, m) float32."""
        counts = queries[0] if len(queries) == 1 else weighted_sum(queries, settings.query_weights)
        return with_data(counts, _QUERY_TF[settings.query_tf](counts.data).astype(np.float32))

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: Bm25Settings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        return InnerProducts(
            query_rows=self.query_rows(queries, settings), document_rows=self.document_rows(documents, settings)
        )


MAX_WORDS = 30_000
"""Words that the decomposition sees, the most frequent ones (spec B03)."""


@dataclass(frozen=True, slots=True)
class LsiSettings:
    """Weights of a mixture alpha * LSI + (1 - alpha) * TF-IDF.

    ``tfidf`` is of the rows that are decomposed, projected, and used by the TF-IDF part.
    """

    tfidf: TfIdfSettings
    alpha: float = 0.5


class LsiBaseline:
    """Scores by the cosine in the space of the first singular vectors of the tf-idf rows of all documents.

    X = P S Q^T, x -> Q^T x for queries and documents alike (Q: the words' vectors); the rows of X are of unit length.
    The decomposition is scipy's ARPACK with a start drawn from ``rng``, so it is the same for the same seed.

    Raises
    ------
    ConfigError
        If so many dimensions cannot be had: at least 1, and below the numbers of documents and words.
    """

    def __init__(
        self, tfidf: TfIdfBaseline, document_weights: tuple[float, ...], n_dimensions: int, rng: np.random.Generator
    ) -> None:
        self.tfidf = tfidf
        corpus = tfidf.corpus
        frequency = corpus.document_frequency
        # Words of one document only would each ask for a dimension of their own; nothing can be learned about them.
        frequent = np.lexsort((np.arange(len(frequency)), -frequency))[:MAX_WORDS]
        self._words = np.sort(frequent[frequency[frequent] >= min(2, corpus.n_documents)])
        limit = min(corpus.n_documents, len(self._words)) - 1
        if not 1 <= n_dimensions <= limit:
            raise ConfigError(
                f"lsi:{n_dimensions} cannot be had: the corpus of {corpus.n_documents:,} documents and "
                f"{len(self._words):,} words in two or more of them allows 1 to {max(limit, 0)} dimensions"
            )
        rows = unit_rows(tfidf.document_rows(np.arange(corpus.n_documents), document_weights))[:, self._words]
        start = rng.standard_normal(min(rows.shape)).astype(np.float32)
        _, _, vectors = svds(rows.tocsr(), k=n_dimensions, v0=start)
        self.word_vectors: Float32 = np.ascontiguousarray(vectors.T, dtype=np.float32)

    def project(self, rows: sp.csr_matrix) -> Float32:
        """Return the unit vectors of tf-idf rows, (n, n_dimensions) float32; 0 for a row without known words."""
        return unit(np.asarray(rows[:, self._words] @ self.word_vectors, dtype=np.float32))

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: LsiSettings) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        query_rows = self.tfidf.query_rows(queries, settings.tfidf.query_weights)
        document_rows = self.tfidf.document_rows(documents, settings.tfidf.document_weights)
        mixed = settings.alpha < 1.0
        return InnerProducts(
            query_vectors=self.project(query_rows) * np.float32(settings.alpha),
            document_vectors=self.project(document_rows),
            query_rows=query_rows if mixed else None,
            document_rows=document_rows if mixed else None,
            row_weight=1.0 - settings.alpha,
        )
