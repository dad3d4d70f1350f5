"""The word counts of a corpus, with what its documents remember of queries: what lexical scores are computed from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64, Int64, first_uses, numbers_of, term_rows
from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation import InnerProducts, Links, draw_keywords
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.lexical.memory import memory_rows
from reranker.text.rows import combine, select_columns, stack_rows, used_columns
from reranker.text.vocabulary import Vocabulary

RowNumbers = Int64
"""Row numbers of documents in the corpus, (n,)."""


LexicalQueries = tuple[sp.csr_matrix, ...]
"""Word counts of queries in the corpus's columns, (n_queries, m) float32 each.

One matrix: texts, to which field weights do not apply. As many as the corpus has fields: documents used as queries.
"""


N_FOLDS = 5


_BLOCK = 2**16


class RememberedQueries(NamedTuple):
    """Queries with the documents that they are relevant to, as `reranker.lexical.memory.memory_rows` takes them.

    ``counts`` are (n_queries, N_TERM_IDS) float32, the words of the queries ``ids``; ``pairs`` are (m,) int64 rows of
    them and (m,) int64 row numbers of documents, and ``weights`` (m,) float64 their weights.
    """

    ids: tuple[str, ...]
    counts: sp.csr_matrix
    pairs: tuple[Int64, Int64]
    weights: Float64

    @classmethod
    def of(
        cls,
        relevant: Links,
        weights: Float64,
        row_of: Mapping[str, int],
        counts_of: Callable[[Sequence[str]], sp.csr_matrix],
    ) -> RememberedQueries:
        """Return what documents, numbered by ``row_of``, are remembered by: (query id, document id) of weight > 0."""
        rows = numbers_of(relevant.ids, row_of)[relevant.target]
        known = (rows >= 0) & (weights > 0)
        asked = relevant.source[known]
        ids = tuple(relevant.ids[number] for number in asked[first_uses(asked)])
        place = numbers_of(relevant.ids, {query: number for number, query in enumerate(ids)})
        pairs = (place[asked].astype(np.int64), rows[known].astype(np.int64))
        return cls(ids, counts_of(ids), pairs, weights[known])

    def rows(self, n_documents: int, chosen: slice | Int64 = slice(None)) -> sp.csr_matrix:
        """Return `memory_rows` of some of the pairs, all if not given, (n_documents, N_TERM_IDS) float32."""
        queries, documents = self.pairs
        return memory_rows(self.counts, (queries[chosen], documents[chosen]), n_documents, self.weights[chosen])

    def folds(self, rng: np.random.Generator) -> Int64:
        """Return a number below `N_FOLDS` for each query, (n_queries,) int64; queries of equal words have the same."""
        counts = self.counts
        groups: dict[tuple[bytes, bytes], int] = {}
        spans = zip(counts.indptr[:-1].tolist(), counts.indptr[1:].tolist(), strict=True)
        keys = [(counts.indices[start:end].tobytes(), counts.data[start:end].tobytes()) for start, end in spans]
        group = np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)
        return rng.permutation(len(groups))[group] % N_FOLDS


class LexicalCorpus:
    """The word counts of all documents by field, over the words in use.

    It is made from counts of any width, as `field_counts` returns them. ``fields`` are (n_documents, m) float32 over
    the m words that occur, ``columns`` (m,) int64 the term id of each column, and ``document_frequency`` (m,) int64 the
    documents that hold the word in any field.

    With a memory (see `remembering`) that is the last field, ``texts`` is the corpus without it, of the same columns,
    ``fold_of`` numbers the queries that it is made of, by id, and ``without`` has, for each fold, the corpus that
    remembers only the other folds. `InputError` is raised if there is no document or no word, `ShapeMismatch` if the
    fields have different numbers of documents.
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
        self.document_frequency = self._holding(self.fields)
        self.texts = self
        self.fold_of: Mapping[str, int] = {}
        self.without: tuple[LexicalCorpus, ...] = ()

    def _holding(self, fields: Sequence[sp.csr_matrix]) -> Int64:
        """Return in how many documents each word stands in any of the fields."""
        together = sum(fields[1:], start=fields[0]).tocsr()
        return np.bincount(together.indices, minlength=len(self.columns)).astype(np.int64)

    def remembering(self, remembered: RememberedQueries, rng: np.random.Generator) -> LexicalCorpus:
        """Return the corpus with one more field, the queries a document is relevant to; ``rng`` draws their folds."""
        folds = remembered.folds(rng)
        of_pairs = folds[remembered.pairs[0]]
        corpus = LexicalCorpus([*map(self.by_term, self.fields), remembered.rows(self.n_documents)])
        texts = corpus.fields[:-1]
        # As in a model's vocabulary a word of no text counts as standing in one.
        unlisted = corpus._holding(texts) == 0

        def of(fields: tuple[sp.csr_matrix, ...]) -> LexicalCorpus:
            other = copy.copy(corpus)
            other.fields, other.document_frequency = fields, corpus._holding(fields) + unlisted
            return other

        corpus.texts = of(texts)
        corpus.texts.texts = corpus.texts
        corpus.document_frequency += unlisted
        corpus.fold_of = dict(zip(remembered.ids, folds.tolist(), strict=True))
        kept = (remembered.rows(self.n_documents, np.flatnonzero(of_pairs != fold)) for fold in range(N_FOLDS))
        corpus.without = tuple([of((*texts, select_columns(rows, corpus.columns))) for rows in kept])
        return corpus

    @property
    def main_field(self) -> int:
        """Number of the text field with the most words, whose weight is 1 in every setting."""
        return int(np.argmax([field.data.sum() for field in self.texts.fields]))

    @property
    def mean_lengths(self) -> tuple[float, ...]:
        """Mean number of words of each field; of a memory over the documents that have one."""
        n = [self.n_documents] * len(self.fields)
        if self.fold_of:
            n[-1] = max(int(np.count_nonzero(np.diff(self.fields[-1].indptr))), 1)
        return tuple(float(field.sum(dtype=np.float64)) / number for field, number in zip(self.fields, n, strict=True))

    def rows(self, settings: LexicalSettings) -> LexicalRows:
        """Return what makes rows of counts over these words, with the frequencies of these documents."""
        return LexicalRows(settings, self.document_frequency.__getitem__, self.n_documents)

    def scorer(self, queries: LexicalQueries, documents: RowNumbers, settings: LexicalSettings) -> InnerProducts:
        """Return the lexical scores of all queries against some documents of the corpus."""
        rows = self.rows(settings)
        return InnerProducts(
            query_rows=rows.queries(queries),
            document_rows=rows.documents([field[documents] for field in self.fields]),
        )

    def text_queries(self, counts: sp.csr_matrix) -> LexicalQueries:
        """Return queries from the word counts of their texts; words of no document are left out (they match none)."""
        return (select_columns(counts, self.columns),)

    def document_queries(self, rows: RowNumbers) -> LexicalQueries:
        """Return documents of the corpus, by row number, as queries."""
        return tuple(field[rows] for field in self.fields)

    def keyword_queries(
        self, rows: RowNumbers, ids: Sequence[str], n_words: int, seed: int, vocabulary: Vocabulary
    ) -> LexicalQueries:
        """Return some words of documents, by row number and id, as queries: see `draw_keywords`."""
        blocks = (slice(start, start + _BLOCK) for start in range(0, max(len(rows), 1), _BLOCK))
        drawn = (draw_keywords(self.counts(rows[at]), ids[at], n_words, seed, vocabulary) for at in blocks)
        return (stack_rows([self.text_queries(counts)[0] for counts in drawn]),)

    def counts(self, rows: RowNumbers) -> sp.csr_matrix:
        """Return the word counts of whole documents, all fields together, (n, N_TERM_IDS) float32 by term id."""
        return self.by_term(combine([field[rows] for field in self.fields], [1.0] * len(self.fields)))

    def by_term(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return counts in the corpus's columns by term id."""
        return term_rows(counts.data, self.columns[counts.indices].astype(np.int32), counts.indptr)
