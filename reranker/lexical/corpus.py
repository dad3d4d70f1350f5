"""The word counts of a corpus, including the query memory of its documents: the input of lexical scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float64, Int64, first_uses, numbers_of, term_rows
from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation import InnerProducts, Links, draw_keywords
from reranker.lexical.bm25 import LexicalRows, LexicalSettings
from reranker.lexical.memory import WordRarity, largest_words, memory_rows
from reranker.text.rows import combine, select_columns, stack_rows, used_columns
from reranker.text.vocabulary import Vocabulary

RowNumbers = Int64
"""Row numbers of documents in the corpus, (n,)."""


LexicalQueries = tuple[sp.csr_matrix, ...]
"""Word counts of queries in the corpus's columns, (n_queries, m) float32 each.

A text query is one matrix; field weights do not apply to it. Documents used as queries have one matrix per field.
"""


N_FOLDS = 5
"""Number of folds into which the queries of a memory are split."""


_BLOCK = 2**14  # documents whose rows are made at a time


_REMEMBERED_BLOCK = 2**11  # documents whose memory is made at a time, before it is cut


class RememberedQueries(NamedTuple):
    """Queries with the documents that they are relevant to: the input of `reranker.lexical.memory.memory_rows`."""

    ids: tuple[str, ...]
    """Query ids."""
    counts: sp.csr_matrix
    """Word counts of each query, (n_queries, N_TERM_IDS) float32."""
    pairs: tuple[Int64, Int64]
    """Rows of ``counts``, (m,) int64, and row numbers of the relevant documents, (m,) int64."""
    weights: Float64
    """Weight of each pair, (m,) float64."""
    most_words: int | None = None
    """Largest number of words of a document's memory, see `largest_words`; None: all."""

    @classmethod
    def of(
        cls,
        relevant: Links,
        weights: Float64,
        row_of: Mapping[str, int],
        counts_of: Callable[[Sequence[str]], sp.csr_matrix],
    ) -> RememberedQueries:
        """Return the pairs (query id, document id) of weight above 0 whose document is numbered in ``row_of``."""
        rows = numbers_of(relevant.ids, row_of)[relevant.target]
        known = (rows >= 0) & (weights > 0)
        asked = relevant.source[known]
        ids = tuple(relevant.ids[number] for number in asked[first_uses(asked)])
        place = numbers_of(relevant.ids, {query: number for number, query in enumerate(ids)})
        pairs = (place[asked].astype(np.int64), rows[known].astype(np.int64))
        return cls(ids, counts_of(ids), pairs, weights[known])

    def rows(self, n_documents: int, chosen: slice | Int64 = slice(None)) -> sp.csr_matrix:
        """Return `memory_rows` of the chosen pairs (default: all), (n_documents, N_TERM_IDS) float32."""
        queries, documents = self.pairs
        queries, documents, weights = queries[chosen], documents[chosen], self.weights[chosen]
        if self.most_words is None:
            return memory_rows(self.counts, (queries, documents), n_documents, weights)
        # Made at once, the rows of all documents would need many times the memory of those that are cut.
        order = np.argsort(documents, kind="stable")
        sorted_documents, rarity = documents[order], WordRarity.of(self.counts)
        blocks = []
        for at in _blocks(n_documents, _REMEMBERED_BLOCK):
            part = order[slice(*np.searchsorted(sorted_documents, (at.start, at.stop)))]
            asked, place = np.unique(queries[part], return_inverse=True)
            n = min(at.stop, n_documents) - at.start
            rows = memory_rows(self.counts[asked], (place, documents[part] - at.start), n, weights[part])
            blocks.append(largest_words(rows, rarity, self.most_words))
        return stack_rows(blocks)

    def of_documents(self, rows: RowNumbers) -> RememberedQueries:
        """Return the pairs whose document is one of some rows."""
        chosen = np.isin(self.pairs[1], rows)
        return self._replace(pairs=(self.pairs[0][chosen], self.pairs[1][chosen]), weights=self.weights[chosen])

    def folds(self, rng: np.random.Generator) -> Int64:
        """Return a fold number below `N_FOLDS` for each query, (n_queries,) int64; equal queries get the same fold."""
        counts = self.counts
        groups: dict[tuple[bytes, bytes], int] = {}
        spans = zip(counts.indptr[:-1].tolist(), counts.indptr[1:].tolist(), strict=True)
        keys = [(counts.indices[start:end].tobytes(), counts.data[start:end].tobytes()) for start, end in spans]
        group = np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)
        return rng.permutation(len(groups))[group] % N_FOLDS


class LexicalCorpus:
    """The word counts of all documents by field, over the words that occur.

    Parameters
    ----------
    fields : sequence of csr_matrix
        Word counts of each field, (n_documents, any) float32, as `field_counts` returns them.

    Attributes
    ----------
    fields : tuple of csr_matrix
        Word counts, (n_documents, m) float32 over the m words that occur. A memory (see `remembering`) comes last.
    columns : array
        Term id of each column, (m,) int64.
    document_frequency : array
        Number of documents that hold each word in any field, (m,) int64.
    fold_of : mapping
        Fold number of each query of the memory, by id.
    without : tuple of LexicalCorpus
        For each fold, the corpus whose memory holds only the queries of the other folds; empty without a memory.

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
                f"fields of {[field.shape[0] for field in fields]} documents: give one row per document in each field"
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
        self._texts: LexicalCorpus | None = None
        self.fold_of: Mapping[str, int] = {}
        self.without: tuple[LexicalCorpus, ...] = ()

    def _holding(self, fields: Sequence[sp.csr_matrix]) -> Int64:
        """Return the number of documents that hold each word in any of the fields, (m,) int64."""
        together = sum(fields[1:], start=fields[0]).tocsr()
        return np.bincount(together.indices, minlength=len(self.columns)).astype(np.int64)

    def remembering(self, remembered: RememberedQueries, rng: np.random.Generator) -> LexicalCorpus:
        """Return the corpus with one more field, the memory of the queries; ``rng`` draws their folds."""
        folds = remembered.folds(rng)
        of_pairs = folds[remembered.pairs[0]]
        corpus = LexicalCorpus([*map(self.by_term, self.fields), remembered.rows(self.n_documents)])
        texts = corpus.fields[:-1]
        # As in a model's vocabulary, a word that occurs in no text has document frequency 1.
        unlisted = corpus._holding(texts) == 0

        def of(fields: tuple[sp.csr_matrix, ...]) -> LexicalCorpus:
            other = copy.copy(corpus)
            other.fields, other.document_frequency = fields, corpus._holding(fields) + unlisted
            return other

        corpus._texts = of(texts)
        corpus.document_frequency += unlisted
        corpus.fold_of = dict(zip(remembered.ids, folds.tolist(), strict=True))
        kept = (remembered.rows(self.n_documents, np.flatnonzero(of_pairs != fold)) for fold in range(N_FOLDS))
        corpus.without = tuple([of((*texts, select_columns(rows, corpus.columns))) for rows in kept])
        return corpus

    @property
    def texts(self) -> LexicalCorpus:
        """The corpus without its memory, with the same columns."""
        return self if self._texts is None else self._texts

    @property
    def main_field(self) -> int:
        """Index of the text field with the most words; its weight is 1 in every setting."""
        return int(np.argmax([field.data.sum() for field in self.texts.fields]))

    @property
    def mean_lengths(self) -> tuple[float, ...]:
        """Mean number of words of each field; the mean of a memory is over the documents that have one."""
        n = [self.n_documents] * len(self.fields)
        if self.fold_of:
            n[-1] = max(int(np.count_nonzero(np.diff(self.fields[-1].indptr))), 1)
        return tuple(float(field.sum(dtype=np.float64)) / number for field, number in zip(self.fields, n, strict=True))

    def rows(self, settings: LexicalSettings) -> LexicalRows:
        """Return the encoder of word counts over the corpus's columns, with its document frequencies."""
        return LexicalRows(settings, self.document_frequency.__getitem__, self.n_documents)

    def scorer(self, queries: LexicalQueries, documents: RowNumbers, settings: LexicalSettings) -> InnerProducts:
        """Return the lexical scores of all queries against the given documents of the corpus."""
        rows = self.rows(settings)
        # Made at once, the rows of all documents would need many times their own memory.
        blocks = _blocks(len(documents), _BLOCK)
        of_blocks = [rows.documents([field[documents[at]] for field in self.fields]) for at in blocks]
        return InnerProducts(query_rows=rows.queries(queries), document_rows=stack_rows(of_blocks))

    def text_queries(self, counts: sp.csr_matrix) -> LexicalQueries:
        """Return queries from the word counts of their texts; words that no document holds are left out."""
        return (select_columns(counts, self.columns),)

    def document_queries(self, rows: RowNumbers) -> LexicalQueries:
        """Return documents of the corpus, given by row number, as queries."""
        return tuple(field[rows] for field in self.fields)

    def keyword_queries(
        self, rows: RowNumbers, ids: Sequence[str], n_words: int, seed: int, vocabulary: Vocabulary
    ) -> LexicalQueries:
        """Return queries of ``n_words`` random words of documents, given by row number and id; see `draw_keywords`."""
        blocks = _blocks(len(rows), _BLOCK)
        drawn = (draw_keywords(self.counts(rows[at]), ids[at], n_words, seed, vocabulary) for at in blocks)
        return (stack_rows([self.text_queries(counts)[0] for counts in drawn]),)

    def counts(self, rows: RowNumbers) -> sp.csr_matrix:
        """Return the word counts of whole documents, summed over all fields, (n, N_TERM_IDS) float32 by term id."""
        return self.by_term(combine([field[rows] for field in self.fields], [1.0] * len(self.fields)))

    def by_term(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        """Return counts in the corpus's columns as counts by term id."""
        return term_rows(counts.data, self.columns[counts.indices].astype(np.int32), counts.indptr)


def _blocks(n: int, size: int) -> Iterator[slice]:
    """Return the slices that divide ``n`` documents into blocks; one slice if ``n`` is 0."""
    return (slice(start, start + size) for start in range(0, max(n, 1), size))
