"""TF-IDF (spec B01), BM25 (B20) and LSI (B03, B04) over the word counts of documents and queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds

from reranker.arrays import N_TERM_IDS, Float32, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation.ranking import InnerProducts
from reranker.models.projection import unit
from reranker.text.lexical import LexicalRows, LexicalSettings
from reranker.text.tfidf import combine, select_columns, unit_rows, used_columns

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

    def rows(self, settings: LexicalSettings) -> LexicalRows:
        """Return what makes rows of counts over these words, with the frequencies of these documents."""
        return LexicalRows(settings, self.document_frequency.__getitem__, self.n_documents)

    def scorer(self, queries: LexicalQueries, documents: Rows, settings: LexicalSettings) -> InnerProducts:
        """Return the lexical scores of all queries against some documents of the corpus."""
        rows = self.rows(settings)
        return InnerProducts(
            query_rows=rows.queries(queries),
            document_rows=rows.documents([field[documents] for field in self.fields]),
        )

    def text_queries(self, counts: sp.csr_matrix) -> LexicalQueries:
        """Return queries from the word counts of their texts; words of no document are left out (they match none)."""
        return (select_columns(counts, self.columns),)

    def document_queries(self, rows: Rows) -> LexicalQueries:
        """Return documents of the corpus, by row number, as queries."""
        return tuple(field[rows] for field in self.fields)

    def counts(self, rows: Rows) -> sp.csr_matrix:
        """Return the word counts of whole documents, all fields together, (n, N_TERM_IDS) float32 by term id."""
        total = combine([field[rows] for field in self.fields], [1.0] * len(self.fields))
        indices = self.columns[total.indices].astype(np.int32)
        return sp.csr_matrix((total.data, indices, total.indptr), shape=(len(rows), N_TERM_IDS))


MAX_WORDS = 30_000
"""Words that the decomposition sees, the most frequent ones (spec B03)."""


class LsiBaseline:
    """Scores alpha * cosine + (1 - alpha) * TF-IDF, the cosine in the space of the first singular vectors of all rows.

    X = P S Q^T, x -> Q^T x for queries and documents alike (Q: the words' vectors); the rows of X are the documents' of
    the ``settings`` (of the form tfidf) made unit length. The decomposition is scipy's ARPACK with a start drawn from
    ``rng``, so it is the same for the same seed.

    Raises
    ------
    ConfigError
        If so many dimensions cannot be had: at least 1, and below the numbers of documents and words.
    """

    def __init__(
        self, corpus: LexicalCorpus, settings: LexicalSettings, n_dimensions: int, rng: np.random.Generator
    ) -> None:
        self.corpus = corpus
        self.settings = settings
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
        rows = select_columns(unit_rows(corpus.rows(settings).documents(corpus.fields)), self._words)
        start = rng.standard_normal(min(rows.shape)).astype(np.float32)
        _, _, vectors = svds(rows, k=n_dimensions, v0=start)
        self.word_vectors: Float32 = np.ascontiguousarray(vectors.T, dtype=np.float32)

    def project(self, rows: sp.csr_matrix) -> Float32:
        """Return the unit vectors of tf-idf rows, (n, n_dimensions) float32; 0 for a row without known words."""
        return unit(np.asarray(select_columns(rows, self._words) @ self.word_vectors, dtype=np.float32))

    def scorer(self, queries: LexicalQueries, documents: Rows, alpha: float) -> InnerProducts:
        """Return the scores of all queries against some documents of the corpus."""
        rows = self.corpus.rows(self.settings)
        query_rows = rows.queries(queries)
        document_rows = rows.documents([field[documents] for field in self.corpus.fields])
        mixed = alpha < 1.0
        return InnerProducts(
            query_vectors=self.project(query_rows) * np.float32(alpha),
            document_vectors=self.project(document_rows),
            query_rows=query_rows if mixed else None,
            document_rows=document_rows if mixed else None,
            row_weight=1.0 - alpha,
        )
