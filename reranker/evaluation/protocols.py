"""Ranking tasks: which documents each query must rank, which of them are relevant, and which do not take part.

Link tasks (spec T1-T3): the query is the source of a link, its relevant documents are the targets of its test links.
The query itself and its other known links (train, validation) do not take part (spec A18), so no system is punished
for ranking a document that is linked, too. A query can also be a few random words of its document (spec T3, A21).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Int64, offsets_of
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.text.rows import Vocabulary, hashed_id

Link = tuple[str, str]
N_TUPLES = 100_000


@dataclass(frozen=True)
class RankingTask:
    """Queries, a pool of documents, judgements, and the pairs that do not take part."""

    query_ids: tuple[str, ...]
    """One a row."""
    document_ids: tuple[str, ...]
    """The pool, ascending; ties in the scores are broken by this order, that is by (-score, id)."""
    grades: sp.csr_matrix
    """(n_queries, n_documents) float32; stored values are judgements (also 0)."""
    excluded: sp.csr_matrix
    """(n_queries, n_documents) bool; stored values are pairs left out of the ranking, never a judged one."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What could not be used of the input, by reason."""
    relevant_from: float = 1.0
    """Least grade that counts as relevant."""

    def __post_init__(self) -> None:
        if not self.query_ids:
            reasons = ", ".join(f"{reason}: {number:,}" for reason, number in self.dropped.items())
            raise InputError(
                f"no query is left to rank for ({reasons or 'the input is empty'}): "
                f"at least one link or judgement must name a known query and a document of the pool",
                dropped=dict(self.dropped),
            )

    def relevant(self) -> sp.csr_matrix:
        """Return the judgements that count as relevant, (n_queries, n_documents) bool, sorted indices."""
        mask = self.grades.data >= self.relevant_from
        columns = self.grades.indices[mask]
        indptr = offsets_of(mask)[self.grades.indptr]
        return sp.csr_matrix((np.ones(len(columns), dtype=bool), columns, indptr), shape=self.grades.shape)

    def rows(self, chosen: Int64) -> RankingTask:
        """Return the task of some of the queries, in the order of ``chosen``."""
        return replace(
            self,
            query_ids=tuple(self.query_ids[row] for row in chosen),
            grades=self.grades[chosen],
            excluded=self.excluded[chosen],
        )

    def columns(self, chosen: Int64) -> RankingTask:
        """Return the task of ranking some of the documents; ``chosen`` must ascend."""
        return replace(
            self,
            document_ids=tuple(self.document_ids[column] for column in chosen),
            grades=self.grades[:, chosen],
            excluded=self.excluded[:, chosen],
        )

    def sample(
        self, rng: np.random.Generator, max_queries: int, max_documents: int
    ) -> tuple[RankingTask, slice | Int64, slice | Int64]:
        """Return the task of some random queries and, of a large pool, its judged documents with a random rest.

        With it, which rows and columns were chosen; both ascend.
        """
        task: RankingTask = self
        rows: slice | Int64 = slice(None)
        columns: slice | Int64 = slice(None)
        if len(task.query_ids) > max_queries:
            rows = np.sort(rng.choice(len(task.query_ids), max_queries, replace=False))
            task = task.rows(rows)
        if len(task.document_ids) > max_documents:
            judged = np.unique(task.grades.indices).astype(np.int64)
            others = np.setdiff1d(np.arange(len(task.document_ids)), judged, assume_unique=True)
            chosen = rng.choice(others, min(len(others), max(0, max_documents - len(judged))), replace=False)
            columns = np.sort(np.concatenate([judged, chosen]))
            task = task.columns(columns)
        return task, rows, columns


def link_task(
    links: Iterable[Link], known: Iterable[Link], pool: Collection[str], query_ids: Collection[str] | None = None
) -> RankingTask:
    """Return the task of finding the targets of test links.

    Each target of a test link is relevant to its source, grade 1; repeated links count once, links from a document to
    itself not at all. Links in ``known`` are what the systems may have seen: their targets do not take part in the
    ranking of their source, and a link in both lists is no test link. ``query_ids`` are the documents with a text (the
    pool if not given); links from others are dropped.

    `InputError` if no test link remains.
    """
    place = {document: number for number, document in enumerate(sorted(set(pool)))}
    sources = set(place if query_ids is None else query_ids)
    dropped: dict[str, int] = {}
    seen = set(known)
    kept: dict[str, dict[int, float]] = {}
    for source, target in dict.fromkeys(links):
        if reason := _link_problem(source, target, sources, place, seen):
            _count(dropped, reason, 1)
        else:
            kept.setdefault(source, {})[place[target]] = 1.0
    excluded: dict[str, dict[int, float]] = {query: {place[query]: 1.0} if query in place else {} for query in kept}
    for source, target in seen:
        if source in kept and target in place:
            excluded[source][place[target]] = 1.0
    return _task(place, kept, excluded, dropped)


def qrels_task(
    qrels: Mapping[str, Mapping[str, float]],
    query_ids: Collection[str],
    pool: Collection[str],
    known: Iterable[Link] = (),
    relevant_from: float = 1.0,
) -> RankingTask:
    """Return the task of ranking the pool for queries with judgements.

    Bigger grades are better; unjudged documents take part and count as not relevant. Queries must have a text (be among
    ``query_ids``); those without a relevant document stay (their measures are 0). Pairs in ``known`` do not take part.

    `InputError` if no judgement remains.
    """
    place = {document: number for number, document in enumerate(sorted(set(pool)))}
    left_out: dict[str, dict[int, float]] = {}
    for query, document in known:
        if document in place:
            left_out.setdefault(query, {})[place[document]] = 1.0
    texts = set(query_ids)
    dropped: dict[str, int] = {}
    kept: dict[str, dict[int, float]] = {}
    for query, judged in qrels.items():
        out = left_out.get(query, {})
        usable = {place[d]: grade for d, grade in judged.items() if d in place and place[d] not in out}
        unknown = sum(document not in place for document in judged)
        _count(dropped, "judged document not in the pool", unknown)
        _count(dropped, "judgement of a known pair", len(judged) - unknown - len(usable))
        if query not in texts:
            _count(dropped, "judged query without a text", 1)
        elif usable:
            kept[query] = usable
    return _task(place, kept, left_out, dropped, relevant_from)


def _task(
    place: Mapping[str, int],
    grades: Mapping[str, Mapping[int, float]],
    excluded: Mapping[str, Mapping[int, float]],
    dropped: Mapping[str, int],
    relevant_from: float = 1.0,
) -> RankingTask:
    """Return the task of the queries that have grades; documents are named by their places in the pool."""
    queries = tuple(sorted(grades))
    shape = (len(queries), len(place))
    judged = _matrix([grades[query] for query in queries], shape)
    left_out = _matrix([excluded.get(query, {}) for query in queries], shape).astype(bool)
    return RankingTask(queries, tuple(place), judged, left_out, dropped, relevant_from)


@dataclass(frozen=True, slots=True)
class TestTuples:
    """Test tuples (q, d+, d-) as three equally long arrays of row and document numbers, ordered by query."""

    __test__ = False  # not a test class, whatever its name makes pytest believe

    query: Int64
    positive: Int64
    negative: Int64


def draw_tuples(task: RankingTask, rng: np.random.Generator, n_tuples: int = N_TUPLES) -> TestTuples:
    """Return random test tuples: query uniform, then one of its relevant documents, then any other document.

    The negative is uniform over the pool without the query's relevant and excluded documents (spec 4.2, A17). Queries
    with no relevant document or no possible negative are not drawn. All systems are asked the same tuples.
    """
    relevant = task.relevant()
    forbidden = (relevant + task.excluded).tocsr()
    forbidden.sort_indices()
    n_documents = len(task.document_ids)
    positives = np.diff(relevant.indptr).astype(np.int64)
    allowed = n_documents - np.diff(forbidden.indptr).astype(np.int64)
    possible = np.flatnonzero((positives > 0) & (allowed > 0))
    if len(possible) == 0:
        empty = np.empty(0, dtype=np.int64)
        return TestTuples(empty, empty, empty)
    query = np.sort(possible[rng.integers(0, len(possible), n_tuples)])
    positive = relevant.indices[relevant.indptr[query] + rng.integers(0, positives[query])].astype(np.int64)
    negative = rng.integers(0, allowed[query])
    starts = np.searchsorted(query, np.arange(len(task.query_ids) + 1))
    for row in np.unique(query):
        # The r-th allowed document is r plus the number of forbidden ones at or before it.
        taken = forbidden.indices[forbidden.indptr[row] : forbidden.indptr[row + 1]].astype(np.int64)
        span = slice(starts[row], starts[row + 1])
        negative[span] += np.searchsorted(taken - np.arange(len(taken)), negative[span], side="right")
    return TestTuples(query, positive, negative)


def without_reverse(task: RankingTask, links: Iterable[Link]) -> RankingTask:
    """Return the task without the relevant pairs (s, t) whose reverse (t, s) is among the links.

    Such pairs take no part in the ranking at all; queries left without a relevant document are dropped.
    """
    reversed_links = {(target, source) for source, target in links}
    grades = task.grades.tolil(copy=True)
    removed: list[dict[int, float]] = [{} for _ in task.query_ids]
    for row, query in enumerate(task.query_ids):
        kept = [
            (document, grade)
            for document, grade in zip(grades.rows[row], grades.data[row], strict=True)
            if (query, task.document_ids[document]) not in reversed_links
        ]
        removed[row] = {document: 1.0 for document in set(grades.rows[row]) - {document for document, _ in kept}}
        grades.rows[row] = [document for document, _ in kept]
        grades.data[row] = [grade for _, grade in kept]
    shape = task.grades.shape
    smaller = grades.tocsr()
    excluded = (task.excluded + _matrix(removed, shape).astype(bool)).tocsr()
    excluded.sort_indices()
    chosen = np.flatnonzero(np.diff(smaller.indptr) > 0)
    dropped = {**task.dropped, "reverse is a known link": int(sum(map(len, removed)))}
    return replace(task, grades=smaller, excluded=excluded, dropped=dropped).rows(chosen)


def _link_problem(source: str, target: str, sources: set[str], place: Mapping[str, int], known: set[Link]) -> str:
    """Return why a test link cannot be used, or an empty string."""
    if source not in sources:
        return "source is no known document"
    if target not in place:
        return "target not in the pool"
    if source == target:
        return "link to itself"
    return "also a known link" if (source, target) in known else ""


def _matrix(rows: Sequence[Mapping[int, float]], shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a CSR matrix with sorted indices, explicit zeros kept."""
    columns = [sorted(row) for row in rows]
    values = [row[column] for row, order in zip(rows, columns, strict=True) for column in order]
    indptr = offsets_of([len(order) for order in columns])
    indices = np.fromiter((column for order in columns for column in order), dtype=np.int32, count=int(indptr[-1]))
    return sp.csr_matrix((np.array(values, dtype=np.float32), indices, indptr), shape=shape)


def _count(counts: dict[str, int], reason: str, number: int) -> None:
    if number:
        counts[reason] = counts.get(reason, 0) + number


def parse_queries(text: str) -> int | None:
    """Return None for ``document``, K for ``keywords:K``.

    `ConfigError` for anything else.
    """
    if text == "document":
        return None
    kind, _, number = text.partition(":")
    if kind == "keywords" and number.isdecimal() and int(number) > 0:
        return int(number)
    raise ConfigError(f"--queries {text!r} is not legal: write document, or keywords:K with K a number above 0")


def draw_keywords(
    counts: sp.csr_matrix, query_ids: Sequence[str], n_words: int, seed: int, vocabulary: Vocabulary
) -> sp.csr_matrix:
    """Return the counts with only ``n_words`` random distinct words left in each row, all if there are fewer.

    ``counts`` are word counts of documents, (n, N_TERM_IDS) float32, numbered by ``vocabulary``. The words keep theirs,
    so that their tf-idf is that in the document, up to the length of the row (A21). The draw depends on the seed (0 or
    more), the query's id and the words alone: other queries, another vocabulary or another model change nothing, and
    every system gets the same words.
    """
    if counts.shape[0] != len(query_ids):
        raise ShapeMismatch(f"{len(query_ids)} query ids for {counts.shape[0]} rows: give one id a row")
    keys = np.array([hashed_id(word) for word in vocabulary.words], dtype=np.int64)
    kept: list[Int64] = []
    for row, query in enumerate(query_ids):
        places = np.arange(counts.indptr[row], counts.indptr[row + 1], dtype=np.int64)
        if len(places) > n_words:
            # An order of the words that no vocabulary has a say in; unlisted words are numbered by it already.
            ids = counts.indices[places].astype(np.int64)
            listed = ids < len(keys)
            ids[listed] = keys[ids[listed]]
            order = np.argsort(ids, kind="stable")
            places = places[np.sort(order[_rng(seed, query).choice(len(places), n_words, replace=False)])]
        kept.append(places)
    chosen = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    indptr = offsets_of([len(places) for places in kept])
    return sp.csr_matrix((counts.data[chosen], counts.indices[chosen], indptr), shape=counts.shape)


def _rng(seed: int, query: str) -> np.random.Generator:
    digest = blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "little")])
