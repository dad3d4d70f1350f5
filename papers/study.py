"""The data that systems are fitted and measured on: texts over the most frequent words, queries with judgments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp

from papers.methods.rows import idf_of, tfidf_rows
from papers.plain_sgd import PlainData
from reranker.arrays import Float32, Float64, Int64
from reranker.errors import ShapeMismatch
from reranker.evaluation import RankingTask, TestTuples
from reranker.models.scorers import Scorer
from reranker.text.rows import select_columns
from reranker.text.tfidf import count_rows
from reranker.text.vocabulary import Vocabulary, VocabularyBuilder


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of one language as sparse rows over a vocabulary; word 0 is the most frequent, other words are left out."""

    counts: sp.csr_matrix
    """Word counts, (n, D) float32, with sorted ids."""
    rows: sp.csr_matrix
    """Tf-idf rows of unit length, (n, D) float32 (spec 1.1)."""
    words: tuple[str, ...]
    """The vocabulary."""
    idf: Float64
    """idf of the texts from which the vocabulary was built, (D,) float64."""
    more: Mapping[str, sp.csr_matrix] = field(default_factory=dict)
    """Further views of the same texts by name, for instance their 2-grams or a translation."""

    def __post_init__(self) -> None:
        if self.counts.shape != self.rows.shape or self.rows.shape[1] != len(self.words):
            raise ShapeMismatch(
                f"counts {self.counts.shape}, rows {self.rows.shape} and {len(self.words):,} words do not fit each "
                f"other"
            )

    def __len__(self) -> int:
        """Return the number of texts."""
        return int(self.rows.shape[0])

    def take(self, rows: Int64) -> Texts:
        """Return the texts with the given row numbers, in that order."""
        more = {name: view[rows] for name, view in self.more.items()}
        return Texts(self.counts[rows], self.rows[rows], self.words, self.idf, more)

    def with_view(self, name: str, rows: sp.csr_matrix) -> Texts:
        """Return the same texts with another view."""
        return replace(self, more={**self.more, name: rows})

    def view(self, name: str) -> sp.csr_matrix:
        """Return the view of this name: ``rows``, ``counts``, or one of ``more``.

        Raises
        ------
        ShapeMismatch
            If there is no such view.
        """
        if name == "rows":
            return self.rows
        if name == "counts":
            return self.counts
        if name not in self.more:
            raise ShapeMismatch(f"these texts have no view {name!r}: choose rows, counts {', '.join(self.more)}")
        return self.more[name]


def study_vocabulary(tokens: Sequence[Sequence[str]], n_words: int | None) -> Vocabulary:
    """Return the ``n_words`` words (None: all) with the highest document frequency, in that order (spec R02)."""
    builder = VocabularyBuilder()
    builder.add(tokens)
    return builder.build(max_words=n_words)


def study_texts(tokens: Sequence[Sequence[str]], vocabulary: Vocabulary, idf: Float64 | None = None) -> Texts:
    """Return tokenised texts as study rows.

    ``idf``, (D,) float64, can be that of other texts over the same words, for instance of the documents for their
    queries. By default it is computed from these texts.
    """
    counts = select_columns(count_rows(vocabulary, tokens), np.arange(len(vocabulary), dtype=np.int64))
    idf = idf_of(counts) if idf is None else idf
    return Texts(counts, tfidf_rows(counts, idf), tuple(vocabulary.words), idf)


def link_matrix(
    links: Iterable[tuple[str, str]], row_of: Mapping[str, int], column_of: Mapping[str, int], n_rows: int | None = None
) -> sp.csr_matrix:
    """Return a matrix with 1 where a query is linked to a document, (n_rows, n_documents) float32.

    n_rows is the number of queries by default.
    """
    places = [(row_of[query], column_of[document]) for query, document in links]
    rows, columns = (np.array([place[side] for place in places], np.int64) for side in range(2))
    shape = (len(row_of) if n_rows is None else n_rows, len(column_of))
    matrix = sp.csr_matrix((np.ones(len(places), np.float32), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


@dataclass(frozen=True, eq=False)
class StudyTrial:
    """Queries with judgments, on which systems are tuned or measured."""

    queries: Texts
    """Queries in the order of the task's rows."""
    pool: Int64
    """Row of `Study.documents` for each column of the task, (n_pool,) int64."""
    task: RankingTask
    """Judgments, and the excluded pairs."""
    tuples: TestTuples
    """Test tuples, drawn once and the same for all systems (spec E01)."""
    reversed: sp.csr_matrix | None = None
    """Relevant pairs whose reverse was trained on, (n_queries, n_pool) bool; only if queries are documents."""
    groups: tuple[str, ...] = ()
    """Group of each query; values of one group are averaged to one value (`papers.results.averaged`)."""

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.pool))
        if self.task.grades.shape != shape:
            raise ShapeMismatch(
                f"a task of {self.task.grades.shape} does not fit {shape[0]} queries and {shape[1]} documents"
            )


@dataclass(frozen=True, eq=False)
class StatedPairs:
    """Preferences between documents for a query, as derived from clicks."""

    query: Int64
    better: Int64
    worse: Int64
    """Rows of `Study.queries` (``query``) and of `Study.documents` (``better``, ``worse``), (n,) int64 each."""
    weight: Float64
    """Weight of each pair, (n,) float64, above 0."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.query)


@dataclass(frozen=True, eq=False)
class Study:
    """All data that a system may use, and the trials on which it is tuned and measured."""

    name: str
    """Name of the split or variant in files and tables: ``N100``, ``split-3``."""
    seed: int
    """Seed of all random draws of the fits."""
    documents: Texts
    """All documents, of the training data and of the pools."""
    queries: Texts
    """Training queries."""
    relevant: sp.csr_matrix
    """Grades above 0 of the training judgments, (n_queries, n_documents) float32."""
    own: Int64
    """Row of the document that is the query itself, -1 for none, (n_queries,) int64."""
    valid: StudyTrial
    test: StudyTrial
    """Trials: ``valid`` for tuning, ``test`` for the one measurement."""
    known: sp.csr_matrix | None = None
    """Pairs that are never drawn as negatives, besides the relevant ones, (n_queries, n_documents) (spec A17)."""
    keywords: int | None = None
    """Number of random words that training queries are reduced to, drawn again at each step (spec A21)."""
    mates: tuple[Texts, Texts] | None = None
    """Parallel training texts, row by row: in the language of the queries, and in that of the documents."""
    judged: sp.csr_matrix | None = None
    """All training judgments, (n_queries, n_documents) float32; 0 is stored for a document judged not relevant."""
    links: sp.csr_matrix | None = None
    """Training links among the documents, (n_documents, n_documents), for PageRank."""
    train_documents: Int64 | None = None
    """Rows of the documents that may be used without labels, (n,) int64; None for all."""
    preferences: StatedPairs | None = None
    """Training pairs derived from clicks."""
    n_dims: int | None = None
    """N of embeddings, factors and topics, instead of the budget's (T12)."""

    def plain_data(self, query_view: str = "rows", document_view: str = "rows") -> PlainData:
        """Return the training links as input of plain SGD; only over the training documents, if these are given."""
        queries, documents = self.queries.view(query_view), self.documents.view(document_view)
        rows = self.train_documents
        if rows is None:
            return PlainData(queries, documents, self.relevant, self.own, self.known, self.keywords)
        place = np.full(len(self.documents) + 1, -1, np.int64)  # the last entry is for queries that are no document
        place[rows] = np.arange(len(rows))
        known = None if self.known is None else self.known[:, rows]
        return PlainData(queries, documents[rows], self.relevant[:, rows], place[self.own], known, self.keywords)

    def background(self) -> Texts:
        """Return the documents that may be used without labels."""
        return self.documents if self.train_documents is None else self.documents.take(self.train_documents)


@dataclass(frozen=True)
class TrialScores:
    """Scores of one trial by one scorer, computed in blocks; the input of `reranker.evaluation.evaluate`."""

    scorer: Scorer
    queries: sp.csr_matrix
    documents: sp.csr_matrix
    """Rows of the trial's queries and documents, in the views that the scorer was fitted on."""

    @property
    def shape(self) -> tuple[int, int]:
        """(number of queries, number of documents)."""
        return int(self.queries.shape[0]), int(self.documents.shape[0])

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32."""
        scores = self.scorer.score_matrix(self.queries[start:stop], self.documents)
        return np.array(scores, dtype=np.float32)
