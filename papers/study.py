"""What systems are fitted on and measured by: texts over the most frequent words, and queries with judgements."""

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
    """Texts of one language as study rows: word 0 is the most frequent, other words are left out."""

    counts: sp.csr_matrix
    """csr_matrix, (n, D) float32: How often each word stands in each text; sorted ids."""
    rows: sp.csr_matrix
    """csr_matrix, (n, D) float32: tf-idf at unit length (spec 1.1)."""
    words: tuple[str, ...]
    """The vocabulary."""
    idf: Float64
    """(D,) float64: Of the texts that the vocabulary was made of."""
    more: Mapping[str, sp.csr_matrix] = field(default_factory=dict)
    """Further views of the same texts by name, such as their 2-grams or a translation."""

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
        """Return some of the texts, in the order of ``rows``."""
        more = {name: view[rows] for name, view in self.more.items()}
        return Texts(self.counts[rows], self.rows[rows], self.words, self.idf, more)

    def with_view(self, name: str, rows: sp.csr_matrix) -> Texts:
        """Return the same texts with a further view."""
        return replace(self, more={**self.more, name: rows})

    def view(self, name: str) -> sp.csr_matrix:
        """Return ``rows``, ``counts``, or a further view.

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
            raise ShapeMismatch(f"these texts have no view {name!r}: there are rows, counts {', '.join(self.more)}")
        return self.more[name]


def study_vocabulary(tokens: Sequence[Sequence[str]], n_words: int | None) -> Vocabulary:
    """Return the ``n_words`` words of the most texts, all if None, most frequent first (spec R02)."""
    builder = VocabularyBuilder()
    builder.add(tokens)
    return builder.build(max_words=n_words)


def study_texts(tokens: Sequence[Sequence[str]], vocabulary: Vocabulary, idf: Float64 | None = None) -> Texts:
    """Return tokenised texts as study rows.

    ``idf``, (D,) float64, is that of other texts over the same words, such as the documents' for their queries; of
    these texts if not given.
    """
    counts = select_columns(count_rows(vocabulary, tokens), np.arange(len(vocabulary), dtype=np.int64))
    idf = idf_of(counts) if idf is None else idf
    return Texts(counts, tfidf_rows(counts, idf), tuple(vocabulary.words), idf)


def link_matrix(
    links: Iterable[tuple[str, str]], row_of: Mapping[str, int], column_of: Mapping[str, int], n_rows: int | None = None
) -> sp.csr_matrix:
    """Return 1 where a query is linked to a document, (n_rows, n_documents) float32; a row a query if not said."""
    places = [(row_of[query], column_of[document]) for query, document in links]
    rows, columns = (np.array([place[side] for place in places], np.int64) for side in range(2))
    shape = (len(row_of) if n_rows is None else n_rows, len(column_of))
    matrix = sp.csr_matrix((np.ones(len(places), np.float32), (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


@dataclass(frozen=True, eq=False)
class StudyTrial:
    """Queries with judgements: what systems are tuned or measured on."""

    queries: Texts
    """One a row of the task."""
    pool: Int64
    """(n_pool,) int64: Row of `Study.documents` of each column of the task."""
    task: RankingTask
    """Judgements, and the pairs left out."""
    tuples: TestTuples
    """Drawn once, the same for all systems (spec E01)."""
    reversed: sp.csr_matrix | None = None
    """csr_matrix, (n_queries, n_pool) bool, optional: Relevant pairs whose reverse was trained on, where queries are
    documents."""
    groups: tuple[str, ...] = ()
    """Of each query, where values of one group are to count as one (`papers.results.averaged`)."""

    def __post_init__(self) -> None:
        shape = (len(self.queries), len(self.pool))
        if self.task.grades.shape != shape:
            raise ShapeMismatch(
                f"a task of {self.task.grades.shape} does not fit {shape[0]} queries and {shape[1]} documents"
            )


@dataclass(frozen=True, eq=False)
class StatedPairs:
    """Documents over others for the same query, as clicks state them."""

    query: Int64
    better: Int64
    worse: Int64
    """(n,) int64: Rows of `Study.queries` and `Study.documents`."""
    weight: Float64
    """(n,) float64: Above 0."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.query)


@dataclass(frozen=True, eq=False)
class Study:
    """Everything a system may look at, and what it is measured on."""

    name: str
    """Of the split or variant, as files and tables name it: ``N100``, ``split-3``."""
    seed: int
    """All random draws of the fits come from it."""
    documents: Texts
    """All documents, of training and of the pools."""
    queries: Texts
    """Training queries."""
    relevant: sp.csr_matrix
    """csr_matrix, (n_queries, n_documents) float32: Grade of each training judgement above 0."""
    own: Int64
    """(n_queries,) int64: The document that is the query itself, -1 for none."""
    valid: StudyTrial
    test: StudyTrial
    """To tune on; to measure on, once."""
    known: sp.csr_matrix | None = None
    """csr_matrix, (n_queries, n_documents), optional: Pairs that are never drawn as negatives besides the relevant ones
    (spec A17)."""
    keywords: int | None = None
    """Training queries are cut to so many random words, anew at each step (spec A21)."""
    mates: tuple[Texts, Texts] | None = None
    """(Texts, Texts), optional: Training texts of the queries' language and of the documents' that say the same, row by
    row."""
    judged: sp.csr_matrix | None = None
    """csr_matrix, (n_queries, n_documents) float32, optional: All training judgements; 0 is stored where a document was
    judged and found not relevant."""
    links: sp.csr_matrix | None = None
    """csr_matrix, (n_documents, n_documents), optional: Training links among the documents, for PageRank."""
    train_documents: Int64 | None = None
    """(n,) int64, optional: Rows of the documents that may be looked at without labels; all if None."""
    preferences: StatedPairs | None = None
    """Training pairs from clicks."""
    n_dims: int | None = None
    """N of embeddings, factors and topics in the place of the budget's (T12)."""

    def plain_data(self, query_view: str = "rows", document_view: str = "rows") -> PlainData:
        """Return the training links as plain SGD takes them: over the documents of training alone, where it is said."""
        queries, documents = self.queries.view(query_view), self.documents.view(document_view)
        rows = self.train_documents
        if rows is None:
            return PlainData(queries, documents, self.relevant, self.own, self.known, self.keywords)
        place = np.full(len(self.documents) + 1, -1, np.int64)  # the last is that of queries without a document
        place[rows] = np.arange(len(rows))
        known = None if self.known is None else self.known[:, rows]
        return PlainData(queries, documents[rows], self.relevant[:, rows], place[self.own], known, self.keywords)

    def background(self) -> Texts:
        """Return the documents that may be looked at without labels."""
        return self.documents if self.train_documents is None else self.documents.take(self.train_documents)


@dataclass(frozen=True)
class TrialScores:
    """Scores of one trial by one scorer, block by block: what `reranker.evaluation.evaluate` takes."""

    scorer: Scorer
    queries: sp.csr_matrix
    documents: sp.csr_matrix
    """csr_matrix: The views of the trial's queries and pool that the scorer was fitted on."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and number of documents."""
        return int(self.queries.shape[0]), int(self.documents.shape[0])

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32."""
        scores = self.scorer.score_matrix(self.queries[start:stop], self.documents)
        return np.array(scores, dtype=np.float32)
