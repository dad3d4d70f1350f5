"""Evaluation: ranking tasks, full rankings in blocks of queries, measures, and TREC run and qrels files.

ir_measures computes all measures; this module converts the data. Definitions:

- relevant: a document whose grade is above 0 (`reranker.records.RELEVANT_FROM`). ``relevant_from`` is another least
  grade. Unjudged documents are not relevant.
- ``AP``: (1 / number of relevant documents) * sum over relevant ranks r of precision at r. Rankings are cut at rank
  1,000, and a relevant document after that counts 0. Its precision would have been less than (number of relevant
  documents) / 1000. For a query with one such document among m relevant ones, the cut costs less than 1/1000.
- ``P@10``, ``RR`` (1 / rank of the first relevant document), ``nDCG@10`` with the gain 2**grade - 1 and the discount
  log2(1 + rank). The gains of a query with a grade above 20 are multiplied by a factor, which does not change nDCG.
- A query whose ranking is missing or empty has the default of the measure, 0.
- Only ranks are passed to ir_measures, not scores. Therefore its rule for ties never applies.
- Standard errors and paired tests are over queries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp

from reranker.arrays import (
    AnyArray,
    Bool,
    Float32,
    Float64,
    Int32,
    Int64,
    are_among,
    distinct,
    first_uses,
    numbers_of,
    offsets_of,
    pair_keys,
)
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.kernels.rows import dense_products
from reranker.records import RELEVANT_FROM
from reranker.text.rows import compact_columns, keep_values, row_of, with_data
from reranker.text.vocabulary import Vocabulary, hashed_id

if TYPE_CHECKING:
    from ir_measures import Measure


IdPair = tuple[str, str]
Document = TypeVar("Document")
N_TUPLES = 100_000


@dataclass(frozen=True, eq=False)
class Links:
    """Links as columns, with 8 bytes per link. Iteration yields pairs of ids."""

    ids: Sequence[str]
    """Distinct ids."""
    source: Int32
    """Number of the source in ``ids`` for each link, (n,)."""
    target: Int32
    """Number of the target in ``ids`` for each link, (n,)."""

    @classmethod
    def of(cls, links: Iterable[IdPair]) -> Links:
        """Convert links to columns. Ids are numbered in order of their first occurrence."""
        if isinstance(links, Links):
            return links
        number: dict[str, int] = {}
        numbers = np.fromiter((number.setdefault(id_, len(number)) for link in links for id_ in link), np.int32)
        return cls(tuple(number), numbers[::2].copy(), numbers[1::2].copy())

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[IdPair]:
        return ((self.ids[source], self.ids[target]) for source, target in zip(self.source, self.target, strict=True))

    def part(self, chosen: Bool | Int64) -> Links:
        """Return the chosen links."""
        return Links(self.ids, self.source[chosen], self.target[chosen])

    def distinct(self) -> Links:
        """Return each link once, in order of the first occurrence."""
        return self.part(first_uses(pair_keys(self.source, self.target, len(self.ids))))

    def numbered(self, source_of: Mapping[str, int], target_of: Mapping[str, int]) -> tuple[Int32, Int32]:
        """Return sources and targets as numbers of these mappings; -1 for an id without a number."""
        return numbers_of(self.ids, source_of)[self.source], numbers_of(self.ids, target_of)[self.target]


@dataclass(frozen=True)
class RankingTask:
    """A ranking task: queries, a pool of documents, judgments, and excluded pairs."""

    query_ids: tuple[str, ...]
    """Ids of the queries, one per row."""
    document_ids: tuple[str, ...]
    """The pool, in ascending order, which breaks ties: rankings are sorted by (-score, id)."""
    grades: sp.csr_matrix
    """Grades, (n_queries, n_documents) float32. All stored values are judgments, including stored zeros."""
    excluded: sp.csr_matrix
    """Pairs that are left out of the ranking, (n_queries, n_documents) bool; none of them is judged."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of unused input records."""
    relevant_from: float = RELEVANT_FROM
    """Minimum grade of a relevant document."""

    def __post_init__(self) -> None:
        if not self.query_ids:
            reasons = ", ".join(f"{reason}: {number:,}" for reason, number in self.dropped.items())
            raise InputError(
                f"no query is left to rank for ({reasons or 'the input is empty'}): "
                f"at least one link or judgement must name a known query and a document of the pool",
                dropped=dict(self.dropped),
            )

    def relevant(self) -> sp.csr_matrix:
        """Return the relevant documents, (n_queries, n_documents) bool with sorted indices."""
        relevant = keep_values(self.grades, self.grades.data >= self.relevant_from)
        return with_data(relevant, np.ones(relevant.nnz, dtype=bool))

    def rows(self, chosen: Int64) -> RankingTask:
        """Return the task with only the chosen queries, in the order of ``chosen``."""
        ids = tuple(self.query_ids[row] for row in chosen)
        return replace(self, query_ids=ids, grades=self.grades[chosen], excluded=self.excluded[chosen])

    def columns(self, chosen: Int64) -> RankingTask:
        """Return the task with only the chosen documents. ``chosen`` must be ascending."""
        ids = tuple(self.document_ids[column] for column in chosen)
        return replace(self, document_ids=ids, grades=self.grades[:, chosen], excluded=self.excluded[:, chosen])

    def sample(
        self, rng: np.random.Generator, max_queries: int, max_documents: int
    ) -> tuple[RankingTask, slice | Int64, slice | Int64]:
        """Return a task with random queries and documents, and the chosen numbers of both, ascending.

        The documents are the judged ones, and a random sample of the others.
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
    links: Iterable[IdPair], known: Iterable[IdPair], pool: Collection[str], query_ids: Collection[str] | None = None
) -> RankingTask:
    """Return the task of finding the targets of test links (spec T1-T3).

    The target of a test link is relevant for its source, with grade 1. Repeated links count once, and links from a
    document to itself are dropped. ``known`` are links that the systems may have seen (training, validation); a test
    link that is also known is dropped. The query itself and the targets of its known links are excluded from its
    ranking (spec A18), so that ranking another linked document is no error. ``query_ids`` are the documents with a text
    (default: the pool); links from other documents are dropped. Raises `InputError` if no test link remains.
    """
    place = {document: number for number, document in enumerate(sorted(set(pool)))}
    asked = Links.of(links).distinct()
    number_of = {asked.ids[number]: int(number) for number in distinct(asked.source)}
    source, target = asked.numbered(number_of, place)
    known_source, known_target = Links.of(known).numbered(number_of, place)
    takes_part = (known_source >= 0) & (known_target >= 0)
    known_source, known_target = known_source[takes_part], known_target[takes_part]
    seen = pair_keys(known_source, known_target, len(place))
    with_text = set(place if query_ids is None else query_ids)
    sources = np.array([id_ in with_text for id_ in asked.ids], bool)
    left, dropped = np.ones(len(asked), bool), dict[str, int]()
    for reason, is_wrong in (
        ("source is no known document", ~sources[source]),
        ("target not in the pool", target < 0),
        ("link to itself", source == asked.target),
        ("also a known link", are_among(pair_keys(source, target, len(place)), seen)),
    ):
        _count(dropped, reason, int(np.count_nonzero(left & is_wrong)))
        left &= ~is_wrong
    queries = sorted(asked.ids[number] for number in distinct(source[left]))
    row_of = numbers_of(asked.ids, {query: row for row, query in enumerate(queries)})
    itself = pair_keys(np.arange(len(queries)), numbers_of(queries, place), len(place))[[q in place for q in queries]]
    grades = np.sort(pair_keys(row_of[source[left]], target[left], len(place)))
    is_kept = row_of[known_source] >= 0
    del seen
    excluded = pair_keys(row_of[known_source[is_kept]], known_target[is_kept], len(place))
    ones = np.ones(len(grades), np.float32)
    return _task(place, queries, (grades, ones), distinct(np.append(itself, excluded)), dropped)


def qrels_task(
    qrels: Mapping[str, Mapping[str, float]],
    query_ids: Collection[str],
    pool: Collection[str],
    known: Iterable[IdPair] = (),
    relevant_from: float = RELEVANT_FROM,
) -> RankingTask:
    """Return the task of ranking the pool for judged queries. Raises `InputError` if no query remains.

    Higher grades are better. Unjudged documents are ranked too and are not relevant. Queries without a text (not in
    ``query_ids``) are dropped. Queries without a relevant document stay, with the value 0. Pairs in ``known`` are
    excluded.
    """
    place = {document: number for number, document in enumerate(sorted(set(pool)))}
    left_out: dict[str, set[int]] = {}
    for query, document in known:
        if document in place:
            left_out.setdefault(query, set()).add(place[document])
    texts = set(query_ids)
    dropped: dict[str, int] = {}
    kept: dict[str, dict[int, float]] = {}
    for query, judged in qrels.items():
        out = left_out.get(query, ())
        usable = {place[d]: grade for d, grade in judged.items() if d in place and place[d] not in out}
        unknown = sum(document not in place for document in judged)
        _count(dropped, "judged document not in the pool", unknown)
        _count(dropped, "judgement of a known pair", len(judged) - unknown - len(usable))
        if query not in texts:
            _count(dropped, "judged query without a text", 1)
        elif usable:
            kept[query] = usable
    queries = sorted(kept)
    places, excluded = (
        np.array([row * len(place) + d for row, query in enumerate(queries) for d in sorted(of.get(query, ()))], int)
        for of in (kept, left_out)
    )
    values = np.array([kept[query][d] for query in queries for d in sorted(kept[query])], np.float32)
    return _task(place, queries, (places, values), excluded, dropped, relevant_from)


def _task(
    place: Mapping[str, int],
    queries: Sequence[str],
    grades: tuple[Int64, Float32],
    excluded: Int64,
    dropped: Mapping[str, int],
    relevant_from: float = RELEVANT_FROM,
) -> RankingTask:
    """Build a task from sorted ids. Grades and excluded pairs are at positions row * (size of the pool) + column."""
    shape = (len(queries), len(place))
    judged, unranked = _matrix(*grades, shape), _matrix(excluded, np.ones(len(excluded), bool), shape)
    return RankingTask(tuple(queries), tuple(place), judged, unranked, dropped, relevant_from)


@dataclass(frozen=True, slots=True)
class TestTuples:
    """Test tuples (q, d+, d-) as three arrays of the same length, sorted by query."""

    __test__ = False  # because of its name, pytest would collect it as a test class

    query: Int64
    """Row of the query."""
    positive: Int64
    """Column of the relevant document d+."""
    negative: Int64
    """Column of the other document d-."""


def draw_tuples(task: RankingTask, rng: np.random.Generator, n_tuples: int = N_TUPLES) -> TestTuples:
    """Draw random test tuples: a uniform query, then one of its relevant documents, then another document.

    The negative is uniform over the pool without the query's relevant and excluded documents (spec 4.2, A17). Queries
    without a relevant document or a possible negative are not drawn. All systems are evaluated on the same tuples.
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
        # The number of the r-th allowed document is r plus the number of forbidden ones at or before it.
        taken = forbidden.indices[forbidden.indptr[row] : forbidden.indptr[row + 1]].astype(np.int64)
        span = slice(starts[row], starts[row + 1])
        negative[span] += np.searchsorted(taken - np.arange(len(taken)), negative[span], side="right")
    return TestTuples(query, positive, negative)


def without_reverse(task: RankingTask, links: Iterable[IdPair]) -> RankingTask:
    """Return the task without judgments (s, t) whose reverse is a link, and without queries that then have none."""
    numbers = [{id_: number for number, id_ in enumerate(ids)} for ids in (task.document_ids, task.query_ids)]
    column, row = Links.of(links).numbered(*numbers)
    backwards = pair_keys(row, column, len(task.document_ids))[(row >= 0) & (column >= 0)]
    removed = are_among(pair_keys(row_of(task.grades), task.grades.indices, len(task.document_ids)), backwards)
    grades, left_out = keep_values(task.grades, ~removed), keep_values(task.grades, removed)
    excluded = (task.excluded + with_data(left_out, np.ones(left_out.nnz, dtype=bool))).tocsr()
    excluded.sort_indices()
    chosen = np.flatnonzero(np.diff(grades.indptr) > 0)
    dropped = {**task.dropped, "reverse is a known link": left_out.nnz}
    return replace(task, grades=grades, excluded=excluded, dropped=dropped).rows(chosen)


def _matrix(places: Int64, values: AnyArray, shape: tuple[int, int]) -> sp.csr_matrix:
    """Return a CSR matrix of values at ascending positions row * n_columns + column. Explicit zeros are kept."""
    indptr = np.searchsorted(places, np.arange(shape[0] + 1) * shape[1])
    return sp.csr_matrix((values, (places % max(1, shape[1])).astype(np.int32), indptr), shape=shape)


def _count(counts: dict[str, int], reason: str, number: int) -> None:
    if number:
        counts[reason] = counts.get(reason, 0) + number


def draw_keywords(
    counts: sp.csr_matrix, query_ids: Sequence[str], n_words: int, seed: int, vocabulary: Vocabulary
) -> sp.csr_matrix:
    """Keep the counts of only ``n_words`` random distinct words of each row (T3), or of all if there are fewer.

    ``counts`` are word counts of documents, (n, N_TERM_IDS) float32, numbered by ``vocabulary``. The chosen words keep
    their counts, so that their tf-idf is that in the document, except for the norm of the row (A21). Bigrams are not
    chosen. The choice depends only on the seed (0 or more), the query's id and its words. It does not depend on other
    queries, the vocabulary or the model, so that all systems get the same words.
    """
    if counts.shape[0] != len(query_ids):
        raise ShapeMismatch(f"{len(query_ids)} query ids for {counts.shape[0]} rows: give one id a row")
    keys = np.array([hashed_id(word) for word in vocabulary.words], dtype=np.int64)
    kept: list[Int64] = []
    for row, query in enumerate(query_ids):
        places = np.arange(counts.indptr[row], counts.indptr[row + 1], dtype=np.int64)
        places = places[~vocabulary.is_bigram(counts.indices[places])]
        if len(places) > n_words:
            # Sort by the hash of the words, so that the order does not depend on the vocabulary. Words outside of the
            # vocabulary are numbered by their hash already.
            ids = counts.indices[places].astype(np.int64)
            listed = ids < len(keys)
            ids[listed] = keys[ids[listed]]
            order = np.argsort(ids, kind="stable")
            digest = blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            rng = np.random.default_rng([seed, int.from_bytes(digest, "little")])
            places = places[np.sort(order[rng.choice(len(places), n_words, replace=False)])]
        kept.append(places)
    chosen = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    indptr = offsets_of([len(places) for places in kept])
    return sp.csr_matrix((counts.data[chosen], counts.indices[chosen], indptr), shape=counts.shape)


MEASURES: tuple[str, ...] = ("AP", "P@10", "RR", "nDCG@10")
"""Measures that `ssi evaluate` prints."""

_FAMILIES = frozenset({"AP", "P", "RR", "nDCG", "R", "Rprec", "Success"})
# ir_measures needs integer gains. nDCG does not depend on a factor of a query's gains, so those of fractional grades
# (means of several judges) are multiplied by this factor, and those above the largest gain are made smaller.
_GAIN_SCALE = 1000
_MAX_EXPONENT = 20.0
_MAX_GAIN = 2**20
"""Largest integer gain: trec_eval keeps one counter for each integer up to it."""
RESAMPLES = 1_999
_BATCH_BYTES = 2**25


def ndcg_gain(grade: float) -> float:
    """Return the gain 2**grade - 1 of a grade; 0 for grades at or below 0."""
    return float(2.0 ** max(grade, 0.0) - 1.0)


def ndcg_gains(judged: Mapping[Document, float]) -> dict[Document, float]:
    """Return document -> gain of a query's documents: 2**grade - 1, or 0 for grades at or below 0.

    If the largest grade is above 20, all gains are multiplied by 2**(20 - largest grade), so that they fit a number.
    nDCG does not depend on this factor.
    """
    largest = max(judged.values(), default=0.0)
    if largest <= _MAX_EXPONENT:
        return {document: ndcg_gain(grade) for document, grade in judged.items()}
    shift = _MAX_EXPONENT - largest
    return {document: 2.0 ** (max(grade, 0.0) + shift) - 2.0**shift for document, grade in judged.items()}


def evaluate_run(
    qrels: Mapping[str, Mapping[str, float]],
    run: Mapping[str, Sequence[str]],
    measures: Iterable[str] = MEASURES,
    relevant_from: float = RELEVANT_FROM,
) -> dict[str, dict[str, float]]:
    """Return measure -> query -> value for every judged query.

    Parameters
    ----------
    qrels : mapping
        Query id -> document id -> grade. Higher is better; unjudged documents are not relevant.
    run : mapping
        Query id -> distinct document ids, best first. Queries without judgments are ignored.
    measures : sequence of str
        Names of ir_measures of the families AP, P, RR, nDCG, R, Rprec, Success (``P@5``, ``R@100``).

    Raises
    ------
    ConfigError
        For an unknown measure, or one of another family.
    InputError
        For a grade that is not finite.
    """
    names = tuple(measures)
    binary, graded = _judgements(qrels, relevant_from)
    scored = {query: _as_scores(run.get(query, ())) for query in qrels}
    scored = {query: ranking for query, ranking in scored.items() if ranking}
    from ir_measures import iter_calc  # imported late, because the import takes a second

    values: dict[str, dict[str, float]] = {name: {} for name in names}
    gains = [name for name in names if _parsed(name).NAME == "nDCG"]
    others = [name for name in names if name not in gains]
    for chosen, judged in ((others, binary), (gains, graded)):
        parsed = {_parsed(name): name for name in chosen}
        for metric in iter_calc(list(parsed), judged, scored) if chosen else ():
            values[parsed[metric.measure]][metric.query_id] = float(metric.value)
        for name in chosen:
            for query in judged:
                # ir_measures leaves out judged queries that are not in the run; their value is the default.
                values[name].setdefault(query, float(_parsed(name).DEFAULT))
    return values


def evaluate_ranking(
    ranked: Int32, grades: sp.csr_matrix, measures: Iterable[str] = MEASURES, relevant_from: float = RELEVANT_FROM
) -> dict[str, Float64]:
    """Return measure -> values, (n_queries,) float64, for rankings and judgments in arrays.

    ``ranked``, (n_queries, depth) int32, contains document numbers, best first, and -1 after the end of a shorter
    ranking. Stored values of ``grades``, (n_queries, n_documents), are judgments, including stored zeros; other
    documents are unjudged. Documents after the last judged one are cut off before the measures are computed. The
    supported families do not depend on them, and this removes most of a ranking of 1,000 documents.
    """
    names = tuple(measures)
    qrels: dict[str, dict[str, float]] = {}
    run: dict[str, list[str]] = {}
    for query in range(grades.shape[0]):
        span = slice(grades.indptr[query], grades.indptr[query + 1])
        documents = grades.indices[span]
        # Lists of Python's numbers, because numpy's numbers take several times as long to become texts.
        qrels[str(query)] = dict(zip(map(str, documents.tolist()), grades.data[span].tolist(), strict=True))
        judged = np.flatnonzero(np.isin(ranked[query], documents))
        run[str(query)] = list(map(str, ranked[query, : judged[-1] + 1].tolist())) if len(judged) else []
    values = evaluate_run(qrels, run, names, relevant_from)
    return {
        name: np.array([values[name][str(query)] for query in range(grades.shape[0])], dtype=np.float64)
        for name in names
    }


def _judgements(
    qrels: Mapping[str, Mapping[str, float]], relevant_from: float
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return the judgments as binary relevance and as integer gains."""
    grades = {grade for judged in qrels.values() for grade in judged.values()}
    for grade in grades:
        if not np.isfinite(grade):
            raise InputError(f"grade {grade!r} cannot be used: grades are finite, such as 0 to 3", grade=grade)
    binary = {q: {d: int(grade >= relevant_from) for d, grade in judged.items()} for q, judged in qrels.items()}
    if all(float(grade).is_integer() and grade <= _MAX_EXPONENT for grade in grades):
        gain_of = {grade: round(ndcg_gain(grade)) for grade in grades}
        return binary, {q: {d: gain_of[grade] for d, grade in judged.items()} for q, judged in qrels.items()}
    return binary, {query: _integer_gains(judged) for query, judged in qrels.items()}


def _integer_gains(judged: Mapping[str, float]) -> dict[str, int]:
    """Return document -> gain of a query, multiplied by a factor so that rounding to integers changes it little."""
    gains = ndcg_gains(judged)
    largest = max(gains.values(), default=0.0)
    scale = min(_GAIN_SCALE / min(largest, 1.0), _MAX_GAIN / largest) if largest else 1.0
    return {document: round(scale * gain) for document, gain in gains.items()}


def _as_scores(ranking: Sequence[str]) -> dict[str, float]:
    """Return document -> strictly descending score, so that every tool sees exactly this order."""
    scores = dict(zip(ranking, map(float, range(len(ranking), 0, -1)), strict=True))
    if len(scores) != len(ranking):
        raise InputError("a ranking names a document twice: a run lists each document once; remove the repetition")
    return scores


@lru_cache(maxsize=64)
def _parsed(name: str) -> Measure:
    from ir_measures import parse_measure

    try:
        measure: Measure = parse_measure(name)
    except (ValueError, NameError, SyntaxError, KeyError) as error:
        raise ConfigError(f"measure {name!r} is not known: use names such as {', '.join(MEASURES)}, R@100") from error
    if measure.NAME not in _FAMILIES:
        raise ConfigError(f"measure {name!r} is not offered: use one of {', '.join(sorted(_FAMILIES))}, with @k")
    return measure


@dataclass(frozen=True, slots=True)
class PairedTest:
    """The paired comparison of two systems on the same queries."""

    difference: float
    """Mean difference, first minus second."""
    standard_error: float
    """Standard error of the mean difference over queries."""
    p_t_test: float
    """Two-sided p of the paired t-test."""
    p_randomisation: float | None
    """Two-sided p of Fisher's randomisation test: twice the share of random exchanges of the two systems, query by
    query, whose mean difference is at least as extreme (1,999 exchanges and the observed values). None if the test was
    not requested."""
    n: int
    """Number of queries compared."""

    @property
    def interval(self) -> float:
        """Half the width of the 95 % confidence interval of the difference; 0 for fewer than two queries."""
        return half_interval(self.standard_error, self.n)


def half_interval(error: float, n: int) -> float:
    """Return half the width of the 95 % confidence interval of a mean over ``n`` queries (Student).

    ``error`` is the standard error of the mean. Commands print the result after ±.
    """
    from scipy import stats

    return error * float(stats.t.ppf(0.975, max(n - 1, 1)))


def standard_error(values: Float64) -> float:
    """Return the standard error s / sqrt(n) of the mean, where s divides by n - 1; 0 for n < 2. Source: spec A04."""
    return 0.0 if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def paired_test(first: Float64, second: Float64, rng: np.random.Generator | None = None) -> PairedTest:
    """Return the mean difference and the p-values of scipy's paired t-test and Fisher's randomisation test.

    ``first`` and ``second``, (n,) float64, have one value per query, in the same order. ``rng`` draws the exchanges of
    the randomisation test, which is skipped without it. Raises `ShapeMismatch` if the lengths differ.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch(f"paired values have shapes {first.shape} and {second.shape}: one value per query in each")
    difference = first - second
    mean = float(difference.mean()) if len(difference) else 0.0
    if len(difference) < 2 or not np.any(difference):
        # Identical systems (or nothing to compare): no test can distinguish them.
        return PairedTest(mean, 0.0, 1.0, None if rng is None else 1.0, len(difference))
    from scipy import stats

    # For a constant difference, t is infinite even with few queries. Then return the p-value under the assumption that
    # all exchanges of the systems are equally likely.
    constant = np.ptp(difference) == 0.0
    p = 2.0 ** (1 - len(difference)) if constant else stats.ttest_1samp(difference, 0.0).pvalue
    p_randomisation = None if rng is None else _randomisation(difference, rng)
    return PairedTest(mean, standard_error(difference), float(p), p_randomisation, len(difference))


def _randomisation(difference: Float64, rng: np.random.Generator) -> float:
    """Return the two-sided p-value from random sign flips."""
    from scipy import stats

    # Exchanging the systems of a query flips the sign of its difference; queries with equal values change nothing.
    moved = difference[difference != 0.0]
    if len(moved) < 2:
        return 1.0  # exchanging one query gives a mean just as far out
    result = stats.permutation_test(
        (moved,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH_BYTES // (8 * len(moved))),
        rng=rng,
    )
    return float(result.pvalue)


DEPTH = 1_000
"""Depth at which rankings are cut, as in TREC runs."""
_BLOCK_BYTES = 2**25


class BlockScorer(Protocol):
    """A scorer of consecutive queries against all documents of a pool."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and number of documents."""

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32, writable."""


@dataclass(frozen=True)
class InnerProducts:
    """The scores s(q, d) = u_q . v_d + a * (x_q . y_d) of dense vectors, sparse rows, or both.

    TF-IDF and BM25 use only the sparse part, LSI only the dense part, and learned models both. Raises `ShapeMismatch`
    if the parts do not fit each other, and `InputError` if a value is not finite or no part is given.
    """

    query_vectors: Float32 | None = None
    document_vectors: Float32 | None = None
    """u and v, (n_queries, N) and (n_documents, N) float32, or both None."""
    query_rows: sp.csr_matrix | None = None
    document_rows: sp.csr_matrix | None = None
    """x and y, with the same number of columns, which are renumbered internally; or both None."""
    row_weight: float = 1.0
    """a."""
    shape: tuple[int, int] = field(init=False)
    _rows: sp.csr_matrix | None = field(init=False, repr=False)
    _postings: sp.csr_matrix | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shapes = set()
        if self.query_vectors is not None and self.document_vectors is not None:
            shapes.add((_checked(self.query_vectors, "query_vectors"), len(self.document_vectors)))
            _checked(self.document_vectors, "document_vectors")
            if self.query_vectors.shape[1] != self.document_vectors.shape[1]:
                raise ShapeMismatch(
                    f"query vectors have {self.query_vectors.shape[1]} dimensions and document vectors "
                    f"{self.document_vectors.shape[1]}: both must come from the same model"
                )
        rows = postings = None
        if self.query_rows is not None and self.document_rows is not None:
            shapes.add((self.query_rows.shape[0], self.document_rows.shape[0]))
            rows, documents = compact_columns(self.query_rows, self.document_rows)
            _checked(rows.data, "query_rows")
            _checked(documents.data, "document_rows")
            postings = documents.T.tocsr()
        if len(shapes) != 1:
            raise ShapeMismatch(
                f"vectors and rows must describe the same queries and documents, got (queries, documents) = "
                f"{sorted(shapes) or 'nothing'}: give vectors, rows, or both for the same ids"
            )
        object.__setattr__(self, "shape", shapes.pop())
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_postings", postings)

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of queries ``start`` to ``stop - 1``, (stop - start, n_documents) float32."""
        scores: Float32 | None = None
        if self.query_vectors is not None and self.document_vectors is not None:
            scores = np.asarray(self.query_vectors[start:stop] @ self.document_vectors.T, dtype=np.float32)
        if self._rows is not None and self._postings is not None:
            of_rows = dense_products(self._rows[start:stop], self._postings)
            if self.row_weight != 1.0:
                of_rows *= np.float32(self.row_weight)
            if scores is None:
                return of_rows
            scores += of_rows
        if scores is None:
            raise ShapeMismatch("a scorer needs vectors or rows")
        return scores


def _checked(values: Float32, name: str) -> int:
    """Return the number of rows. Raises `InputError` for values that are not finite, because they cannot be sorted."""
    if not np.isfinite(values).all():
        raise InputError(f"{name} holds NaN or infinity: scores must be finite to be ranked; train or encode again")
    return len(values)


@dataclass(frozen=True)
class SystemScores:
    """The results of a system: one value per query for each measure."""

    values: Mapping[str, Float64]
    """Measure -> values of the rankings, which are cut at `DEPTH`."""
    tuple_losses: Float64
    tuple_counts: Float64
    """For each query, the sum of the losses of its test tuples in the full ranking (1 wrong order, 1/2 tie, 0 right
    order), and the number of its tuples, (n_queries,) float64."""

    def mean(self, measure: str) -> float:
        """Return the mean over queries of a measure."""
        return float(self.values[measure].mean())

    def standard_error(self, measure: str) -> float:
        """Return the standard error of `mean`."""
        return standard_error(self.values[measure])

    def rank_loss(self) -> float:
        """Return the percentage of test tuples in the wrong order, where a tie counts half. Source: spec 4.2."""
        n_tuples = self.tuple_counts.sum()
        return float(100.0 * self.tuple_losses.sum() / n_tuples) if n_tuples else 0.0

    def rank_loss_standard_error(self) -> float:
        """Return the standard error of `rank_loss` in per cent.

        Tuples of one query are not independent. Therefore the error is that of a ratio of two sums over queries:
        sqrt(Q / (Q - 1) * sum_q (l_q - L n_q)^2) / sum_q n_q, with the losses l_q and the number of tuples n_q of query
        q.
        """
        drawn = self.tuple_counts > 0
        n_queries = int(drawn.sum())
        if n_queries < 2:
            return 0.0
        residuals = self.tuple_losses - self.rank_loss() / 100.0 * self.tuple_counts
        spread = np.sqrt(n_queries / (n_queries - 1) * np.square(residuals[drawn]).sum())
        return float(100.0 * spread / self.tuple_counts.sum())

    def query_rank_losses(self) -> Float64:
        """Return the percentage of wrong tuples of each query; NaN for queries without tuples."""
        losses = np.full(len(self.tuple_losses), np.nan)
        np.divide(100.0 * self.tuple_losses, self.tuple_counts, out=losses, where=self.tuple_counts > 0)
        return losses


def top_documents(scores: Float32, depth: int) -> tuple[Int32, Float32]:
    """Return the best documents of each row and their scores, sorted by (-score, number), both (n, ``depth``).

    The scores, (n, n_documents), are -inf for excluded documents. Rankings that are shorter than ``depth`` are padded
    with -1 (documents, int32) and -inf (scores, float32).
    """
    n, n_documents = scores.shape
    n_kept = min(depth, n_documents)
    documents = np.full((n, depth), -1, dtype=np.int32)
    best = np.full((n, depth), -np.inf, dtype=np.float32)
    for row in range(n):
        line = scores[row]
        least = np.partition(line, n_documents - n_kept)[n_documents - n_kept]
        # Of equal scores at the cut, the smallest numbers are chosen, which argpartition does not guarantee.
        above = np.flatnonzero(line > least)
        chosen = np.concatenate([above, np.flatnonzero(line == least)[: n_kept - len(above)]])
        chosen = chosen[np.argsort(-line[chosen], kind="stable")]
        chosen = chosen[line[chosen] > -np.inf]
        documents[row, : len(chosen)] = chosen
        best[row, : len(chosen)] = line[chosen]
    return documents, best


def evaluate(
    task: RankingTask,
    scorer: BlockScorer,
    tuples: TestTuples,
    measures: Iterable[str] = MEASURES,
    on_block: Callable[[int, Int32, Float32], None] | None = None,
    depth: int = DEPTH,
) -> SystemScores:
    """Rank all documents for every query of a task, and return the measures and the rank loss of the system.

    The rows and columns of the scorer are the queries and the pool of the task, in its order. The memory depends on the
    block size (about 32 MB of scores), not on the number of queries. ``on_block`` receives the first query and the
    `top_documents` of each block, cut at rank ``depth``, for example to write a run file.

    Raises `ShapeMismatch` if the scorer does not have the task's queries and pool, and `InputError` if a score is not
    finite.
    """
    n_queries, n_documents = len(task.query_ids), len(task.document_ids)
    if scorer.shape != (n_queries, n_documents):
        raise ShapeMismatch(
            f"the scorer is for {scorer.shape} (queries, documents), the task has {(n_queries, n_documents)}: "
            f"build it from the rows of the task's own query and document ids"
        )
    names = tuple(measures)
    losses = np.zeros(len(tuples.query))
    parts: list[dict[str, Float64]] = []
    step = max(1, min(n_queries, _BLOCK_BYTES // (4 * max(1, n_documents))))
    for start in range(0, n_queries, step):
        stop = min(start + step, n_queries)
        scores = scorer.block(start, stop)
        _check_finite(scores, task, start)
        span = slice(*np.searchsorted(tuples.query, [start, stop]))
        rows = tuples.query[span] - start
        positive, negative = scores[rows, tuples.positive[span]], scores[rows, tuples.negative[span]]
        losses[span] = np.where(positive < negative, 1.0, np.where(positive == negative, 0.5, 0.0))
        excluded = task.excluded[start:stop]
        scores[row_of(excluded), excluded.indices] = -np.inf
        documents, best = top_documents(scores, depth)
        parts.append(evaluate_ranking(documents, task.grades[start:stop], names, task.relevant_from))
        if on_block is not None:
            on_block(start, documents, best)
    return SystemScores(
        {name: np.concatenate([part[name] for part in parts]) for name in names},
        np.bincount(tuples.query, weights=losses, minlength=n_queries).astype(np.float64),
        np.bincount(tuples.query, minlength=n_queries).astype(np.float64),
    )


def _check_finite(scores: Float32, task: RankingTask, start: int) -> None:
    """Raise `InputError`, with the query and the document, for a score that is not finite."""
    finite = np.isfinite(scores)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise InputError(
            f"the score of query {task.query_ids[start + row]!r} and document {task.document_ids[column]!r} is "
            f"{float(scores[row, column])}: scores must be finite to be ranked; check the model's vectors"
        )


# A run line is ``query Q0 document rank score tag``, and a qrels line ``query 0 document grade``. Tools that read runs
# sort by score and break ties in different ways. Therefore scores are written strictly decreasing, so that all tools
# see our order, (-score, id). A tied score is lowered by a step of 2**-22 of the query's largest absolute score. The
# format does not allow white space in ids, so it is written as ``%XX`` in both kinds of files.
_STEP = 2.0**-22


def token(identifier: str) -> str:
    """Return an id with its white space replaced by ``%XX``."""
    if not any(character.isspace() for character in identifier):
        return identifier
    return "".join(quote(c, safe="") if c.isspace() else c for c in identifier)


def strictly_decreasing(scores: Float32) -> Float64:
    """Return non-increasing scores with ties lowered by the smallest step, so that they are strictly decreasing."""
    values = scores.astype(np.float64)
    if len(values) == 0:
        return values
    step = max(float(np.abs(values).max()), 1e-6) * _STEP
    # v_i = min(s_i, v_{i-1} - step) for all i at once: subtracting i * step turns it into a running minimum.
    ramp = step * np.arange(len(values))
    lowered: Float64 = np.minimum.accumulate(values + ramp) - ramp
    return lowered


class RunWriter(AbstractContextManager["RunWriter"]):
    """Writes the rankings of a system to a TREC run file while they are computed. The tag is the system's name."""

    def __init__(self, path: Path, task: RankingTask, system: str) -> None:
        self._queries = [token(query) for query in task.query_ids]
        self._documents = [token(document) for document in task.document_ids]
        self._system = token(system)
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, first_query: int, documents: Int32, scores: Float32) -> None:
        """Append the rankings (`top_documents`) of consecutive queries, from row ``first_query`` of the task on."""
        for query, ranked, values in zip(self._queries[first_query:], documents, scores, strict=False):
            length = int(np.count_nonzero(ranked >= 0))
            numbers = strictly_decreasing(values[:length]).tolist()
            self._file.writelines(
                f"{query} Q0 {self._documents[document]} {rank} {score:.10g} {self._system}\n"
                for rank, (document, score) in enumerate(zip(ranked[:length].tolist(), numbers, strict=True), 1)
            )


def write_qrels(path: Path, task: RankingTask) -> None:
    """Write the judgments of a task as TREC qrels: query, 0, document, grade."""
    documents = [token(document) for document in task.document_ids]
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row, query in enumerate(task.query_ids):
            span = slice(task.grades.indptr[row], task.grades.indptr[row + 1])
            for document, grade in zip(task.grades.indices[span], task.grades.data[span], strict=True):
                file.write(f"{token(query)} 0 {documents[document]} {grade:g}\n")
