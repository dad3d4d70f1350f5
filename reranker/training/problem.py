"""Documents, queries and preferences as the arrays that the kernels of training read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.accounts import UNKNOWN_DOCUMENT, UNKNOWN_QUERY, LeftOut, merged
from reranker.arrays import AnyInt, Bool, Float32, Float64, Int64, distinct, numbers_of, offsets_of, pair_keys
from reranker.errors import TrainingError
from reranker.kernels.rows import Rows
from reranker.kernels.sgd import LexicalValues, NegativePool, Tuples
from reranker.lexical.bm25 import LexicalRows, weigh_words
from reranker.text.rows import combine, keys_of, row_of, rows_of_keys, stack_rows, with_data
from reranker.text.tfidf import TfIdf, count_rows
from reranker.training.reading import TrainingCorpus
from reranker.training.training_set import Preferences, TrainingSet

_BLOCK = 2**14
MIN_NEGATIVES = 200
"""Documents named by preferences below which negatives are drawn from all documents."""


class TwoRows(NamedTuple):
    """Rows of the same words with two weights each: one for the learned part, one for the lexical part.

    All matrices are (n, N_TERM_IDS) float32 with one pattern, in which a weight may be 0.
    """

    learned: sp.csr_matrix
    """Learned rows, the input of U or V."""
    lexical: sp.csr_matrix
    """Lexical rows."""
    squares: sp.csr_matrix
    """Contribution of each word to the squared length of its query.

    A query that keeps only some of its words is divided by the root of the sum of their contributions.
    """

    def part(self, rows: Int64) -> TwoRows:
        """Return the rows of some row numbers."""
        return TwoRows(self.learned[rows], self.lexical[rows], self.squares[rows])


def in_blocks(n: int, rows_of: Callable[[slice], TwoRows]) -> TwoRows:
    """Return n rows, computed in blocks: the computation needs several times the memory of its result."""
    parts = [rows_of(slice(start, start + _BLOCK)) for start in range(0, max(n, 1), _BLOCK)]
    if len(parts) == 1:
        return parts[0]
    learned = stack_rows([part.learned for part in parts])

    def values(number: int) -> sp.csr_matrix:
        return with_data(learned, np.concatenate([part[number].data for part in parts]))

    return TwoRows(learned, learned if parts[0].lexical is parts[0].learned else values(1), values(2))


def two_rows(learned: sp.csr_matrix, lexical: sp.csr_matrix | None, squares: Float32 | None = None) -> TwoRows:
    """Return both rows over the words of either.

    Without ``lexical`` both parts use the learned rows. ``squares`` belong to the values of ``lexical``, and are their
    squares if not given.
    """
    if lexical is None:
        return TwoRows(learned, learned, with_data(learned, learned.data**2))
    squared = with_data(lexical, lexical.data**2 if squares is None else squares)
    keys = [keys_of(rows) for rows in (learned, lexical)]
    union = distinct(np.concatenate(keys))
    both = rows_of_keys(union, np.zeros(len(union), np.float32), learned.shape[0])

    def spread(rows: sp.csr_matrix, places: Int64) -> sp.csr_matrix:
        data = np.zeros(len(union), np.float32)
        data[np.searchsorted(union, places)] = rows.data
        return with_data(both, data)

    return TwoRows(spread(learned, keys[0]), spread(lexical, keys[1]), spread(squared, keys[1]))


@dataclass(frozen=True)
class QuerySet:
    """Rows of all queries: those that are documents first, then those that are texts."""

    row_of: Mapping[str, int]
    """Query id to row, of the queries that are trained and validated on."""
    rows: TwoRows
    linked: Mapping[str, int] = field(default_factory=dict)
    """Document id to row, of documents that are trained on as queries where the other queries are texts."""

    def weighed(self, weights: Float32 | None) -> QuerySet:
        """Return the queries with the words of their lexical rows weighed (`weigh_words`); None: unchanged."""
        if weights is None:
            return self
        return replace(self, rows=self.rows._replace(lexical=weigh_words(self.rows.lexical, weights)))


@dataclass(frozen=True)
class Problem:
    """The arrays of one training run, see `reranker.kernels.sgd`.

    Words that the vocabulary does not list are numbered from D on, so that a dense scratch array of ``n_columns``
    holds a query.
    """

    queries: Rows
    """Learned rows of the queries, the input of U."""
    documents: Rows
    """Learned rows of the documents, the input of V."""
    lexical: LexicalValues
    """q and d, at the same words."""
    tuples: Tuples
    """Queries with their relevant documents."""
    negatives: NegativePool
    """Documents that negatives are drawn from."""
    n_columns: int
    """Words in all, those that are not listed included."""
    n_document_queries: int
    """Queries from this row on are texts."""
    dropped: Mapping[str, int]
    """Preferences that could not be used, by reason."""


def query_set(corpus: TrainingCorpus, evidence: Sequence[TrainingSet], lexical: LexicalRows | None) -> QuerySet:
    """Return the rows of the queries of all evidence: documents, or texts.

    U reads a document as one text; in the lexical part its fields have weights. Without ``lexical`` both parts use the
    rows that U reads.
    """
    texts: dict[str, str] = {}
    for part in evidence:
        texts.update(part.texts or {})
    documents = in_blocks(
        len(corpus.query_documents),
        lambda block: _query_rows(
            corpus.tfidf, [field[corpus.query_documents[block]] for field in corpus.counts], lexical
        ),
    )
    if not texts:
        return QuerySet(corpus.query_row_of, documents)
    ids = list(texts)
    counts = count_rows(corpus.tfidf.vocabulary, corpus.analyzer.tokens([texts[query] for query in ids]))
    rows = _query_rows(corpus.tfidf, [counts], lexical)
    linked: Mapping[str, int] = corpus.query_row_of if any(part.linked for part in evidence) else {}
    if linked:
        rows = TwoRows(*(stack_rows(pair) for pair in zip(documents, rows, strict=True)))
    return QuerySet({query: row for row, query in enumerate(ids, len(linked))}, rows, linked)


def _query_rows(tfidf: TfIdf, counts: Sequence[sp.csr_matrix], lexical: LexicalRows | None) -> TwoRows:
    learned = tfidf.rows_of_counts(combine(counts, [1.0] * len(counts)))
    if lexical is None:
        return two_rows(learned, None)
    rows = lexical.queries(counts)
    return two_rows(learned, rows, lexical.squares(rows))


def build_problem(
    corpus: TrainingCorpus,
    queries: QuerySet,
    documents: TwoRows,
    evidence: TrainingSet,
    held_out: Collection[str],
    *,
    known_negatives: bool = False,
) -> Problem:
    """Return the arrays of a run.

    A preference of twice the weight is drawn twice as often, with steps of the same length. So weights need no scale,
    and a large one does not make a run diverge.

    Negatives are drawn from all documents except those held out. With ``known_negatives`` they are drawn only from
    documents that a preference names, if these are at least `MIN_NEGATIVES`: nothing is known yet about a new document,
    and it must not be learned as worse than all others. A query's relevant documents, and the query itself if it is a
    document, are never negatives.

    `TrainingError` is raised if no preference can be used, or fewer than two documents can be negatives.
    """
    usable, dropped = usable_part(corpus, queries, evidence)
    if not len(usable.query):
        reasons = "; ".join(f"{count} x {reason}" for reason, count in dropped.items()) or "there are none"
        raise TrainingError(f"no preference is left to learn from ({reasons}): ids must be those of the documents")
    n_documents = documents.learned.shape[0]
    document_queries = queries.row_of if evidence.texts is None else queries.linked
    own = numbers_of([*document_queries], corpus.row_of)
    may_be_negative, named = np.ones(n_documents, bool), np.zeros(n_documents, bool)
    for names, chosen in ((held_out, may_be_negative), (evidence.document_queries, named)):
        rows = numbers_of([*names], corpus.row_of)
        chosen[rows[rows >= 0]] = chosen is named
    for part in (evidence.preferences, evidence.linked):
        rows = numbers_of(part.links.ids, corpus.row_of)
        used = rows[distinct(np.concatenate([part.links.target, part.worse]))]
        named[used[used >= 0]] = True
    if known_negatives and np.count_nonzero(named & may_be_negative) >= MIN_NEGATIVES:
        may_be_negative &= named
    pool = np.flatnonzero(may_be_negative)
    if len(pool) < 2:
        raise TrainingError(f"{len(pool)} documents to learn from: at least 2 are needed")
    n_words, asked = len(corpus.tfidf.vocabulary), queries.rows
    compact_queries, compact_documents, n_columns = _compact(asked.learned, documents.learned, n_words)
    itself = pair_keys(np.array([*document_queries.values()], np.int64), own, n_documents)
    known: Int64 = distinct(np.concatenate([pair_keys(usable.query, usable.document, n_documents), itself]))
    first_known = np.searchsorted(known, np.arange(asked.learned.shape[0] + 1) * n_documents)
    return Problem(
        compact_queries,
        compact_documents,
        LexicalValues(asked.lexical.data, asked.squares.data, documents.lexical.data),
        usable,
        NegativePool(pool, first_known, known % n_documents),
        n_columns,
        len(document_queries),
        dropped,
    )


def usable_part(corpus: TrainingCorpus, queries: QuerySet, evidence: TrainingSet) -> tuple[Tuples, dict[str, int]]:
    """Return the usable preferences as row numbers of queries and documents, and counts of the others by reason."""
    columns = []
    dropped: list[LeftOut] = []
    for stated, query_of in ((evidence.preferences, queries.row_of), (evidence.linked, queries.linked)):
        query, better, is_usable, left_out = _usable(corpus, queries, evidence, stated, query_of)
        dropped += left_out
        preferences = stated.part(is_usable)
        worse = numbers_of(preferences.links.ids, corpus.row_of)[preferences.worse]
        n_worse = np.diff(offsets_of(worse >= 0)[offsets_of(preferences.n_worse)])
        columns.append((query[is_usable], better[is_usable], n_worse, worse[worse >= 0], preferences.weight))
    query, better, n_worse, worse, weight = map(np.concatenate, zip(*columns, strict=True))
    ones, rows = np.ones(len(query), np.float32), [part.astype(np.int64) for part in (query, better, worse)]
    counts = {part.reason: part.count for part in merged(dropped)}
    return Tuples(rows[0], rows[1], ones, offsets_of(n_worse), rows[2], *alias_table(weight)), counts


def unusable_part(corpus: TrainingCorpus, queries: QuerySet, evidence: TrainingSet) -> tuple[LeftOut, ...]:
    """Return the preferences that cannot be used, by reason, including those whose query has no text."""
    sides = ((evidence.preferences, queries.row_of), (evidence.linked, queries.linked))
    return merged(
        (*evidence.left_out, *(part for side in sides for part in _usable(corpus, queries, evidence, *side)[3]))
    )


def _usable(
    corpus: TrainingCorpus,
    queries: QuerySet,
    evidence: TrainingSet,
    stated: Preferences,
    query_of: Mapping[str, int],
) -> tuple[AnyInt, AnyInt, Bool, list[LeftOut]]:
    """Return the rows of queries and better documents, which preferences are usable, and the others by reason."""
    words = np.append(np.diff(queries.rows.learned.indptr), 0)  # the last is of unknown queries, -1
    query, better = stated.links.numbered(query_of, corpus.row_of)
    is_usable = np.ones(len(query), bool)
    left_out: list[LeftOut] = []
    for reason, holds, column in (
        (UNKNOWN_QUERY, query < 0, stated.links.source),
        (UNKNOWN_DOCUMENT, better < 0, stated.links.target),
        ("query without a known word", words[query] == 0, stated.links.source),
        (
            "a weight that is not finite and above 0",
            ~((stated.weight > 0) & (stated.weight < np.inf)),
            stated.links.source,
        ),
    ):
        fails = is_usable & holds
        left_out.append(evidence.left_out_of(stated, reason, fails, column))
        is_usable &= ~holds
    if evidence.unit == "pairs":
        left_out.append(evidence.without_worse(stated, is_usable, numbers_of(stated.links.ids, corpus.row_of) >= 0))
    return query, better, is_usable, left_out


def alias_table(weights: Float64) -> tuple[Float32, Int64]:
    """Return (keep, alias) that draw numbers by weight in constant time; both are empty if all weights are equal.

    With i uniform, take i with probability keep[i], else alias[i].

    Source: Walker 1977; Vose 1991 (construction).
    """
    if not len(weights) or np.ptp(weights) == 0:
        return np.empty(0, np.float32), np.empty(0, np.int64)
    keep = weights * (len(weights) / weights.sum())
    alias = np.arange(len(weights), dtype=np.int64)
    small, large = (np.flatnonzero(part).tolist() for part in (keep < 1, keep >= 1))
    while small and large:
        less, more = small.pop(), large[-1]
        alias[less] = more
        keep[more] -= 1 - keep[less]
        if keep[more] < 1:
            small.append(large.pop())
    keep[small + large] = 1.0  # the rest is 1 except for rounding
    return keep.astype(np.float32), alias


def _compact(queries: sp.csr_matrix, documents: sp.csr_matrix, n_words: int) -> tuple[Rows, Rows, int]:
    """Return both with unknown words numbered from ``n_words`` on, and the number of columns."""
    unknown = np.unique(np.concatenate([part.indices[part.indices >= n_words] for part in (queries, documents)]))

    def rows(matrix: sp.csr_matrix) -> Rows:
        indices = matrix.indices.astype(np.int32, copy=len(unknown) > 0)
        beyond = np.flatnonzero(indices >= n_words)
        indices[beyond] = n_words + np.searchsorted(unknown, indices[beyond])
        return Rows(matrix.indptr.astype(np.int64), indices, matrix.data.astype(np.float32, copy=False))

    return rows(queries), rows(documents), n_words + len(unknown)


def csr_of(rows: Rows, n_columns: int) -> sp.csr_matrix:
    """Return kernel rows as a matrix of ``n_columns`` columns; words from there on are left out."""
    kept = rows.indices < n_columns
    indptr = offsets_of(kept)[rows.indptr]
    return sp.csr_matrix((rows.data[kept], rows.indices[kept], indptr), shape=(len(rows.indptr) - 1, n_columns))


# Keyword queries: documents cut to some of their words, the rows then divided by their new length (A21).


def cut_to_keywords(rows: TwoRows, n_words: int, rng: np.random.Generator) -> TwoRows:
    """Return each row with ``n_words`` of its words, uniform without replacement (all if fewer), at unit length.

    Source: spec T3, A21.
    """
    pattern = rows.learned
    row = row_of(pattern)
    order = np.lexsort((rng.random(pattern.nnz), row))
    place = np.arange(pattern.nnz) - pattern.indptr[row]  # the sort leaves rows where they are
    places = np.sort(order[place < n_words])
    lengths = np.minimum(np.diff(pattern.indptr), n_words)
    return TwoRows(
        _part(rows.learned, places, lengths, rows.learned.data**2),
        _part(rows.lexical, places, lengths, rows.squares.data),
        _part(rows.squares, places, lengths, rows.squares.data, squared=True),
    )


def _part(
    rows: sp.csr_matrix, places: Int64, lengths: AnyInt, squares: np.ndarray, squared: bool = False
) -> sp.csr_matrix:
    """Return rows of the values at ``places``, ``lengths`` a row, divided by the root (or the sum) of their squares."""
    row = np.repeat(np.arange(rows.shape[0]), lengths)
    sums = np.bincount(row, squares[places].astype(np.float64), minlength=rows.shape[0])
    sums[sums == 0] = 1.0
    data = rows.data[places] / (sums if squared else np.sqrt(sums))[row]
    return sp.csr_matrix((data.astype(np.float32), rows.indices[places], offsets_of(lengths)), shape=rows.shape)
