"""Search for the parameters of the lexical score: form, k1, b, field weights, coverage and weight of the query memory.

Settings are compared by their mean average precision (MAP) on training or validation queries.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.stats import qmc

from reranker.arrays import Bool, Float32, Float64, Int64, offsets_of
from reranker.cores import bounds_of, in_parts, n_cores, on_cores
from reranker.evaluation import DEPTH, InnerProducts, RankingTask, draw_tuples, evaluate, standard_error
from reranker.kernels.rows import dense_products, dots, highest_places
from reranker.lexical.bm25 import QUERY_TF, LexicalSettings, cover_rates, length_norms
from reranker.lexical.corpus import LexicalCorpus, LexicalQueries, RowNumbers
from reranker.lexical.kernel import (
    Judged,
    Postings,
    RankedPlaces,
    average_precision,
    candidate_precision,
    collect_places,
    collect_postings,
    posting_weights,
)
from reranker.text.rows import row_of, used_columns

TENTHS: tuple[float, ...] = tuple(step / 10 for step in range(11))
"""0, 0.1, ..., 1."""
COVERING = "bm25 with coverage"
"""Name under which `tune_lexical` returns bm25 with coverage: fields also count by their covered share of the idf."""
MAX_QUERIES = 500
"""Number of queries of a task that settings are scored on; twice as many with a memory."""
MAX_DOCUMENTS = 20_000
"""Number of documents that these queries are ranked over."""
_WEIGHTS = (0.01, 1000.0)  # bounds of a field's weight
_BLOCKS = (100, 200, 350)  # numbers of queries after which settings that are surely worse are given up
_SURELY = 2.0  # standard errors of the paired difference by which they are
_FEW_QUERIES, _FEW_DOCUMENTS = 100, 10_000  # of the rough comparison that decides where the search continues
_N_STARTS = 32  # Sobol points
_N_SEARCHED = 3  # starting points from which a pattern search goes on
_ROUGH = (1.0, 0.5)  # step sizes of a rough search, as fractions of the axis's step
_FRACTIONS = (1.0, 0.5, 0.25, 0.125)  # those of a search on all queries and documents
_N_SWEEPS = 3  # passes over all axes with one step size
_GAIN = 1e-5  # least improvement of MAP for a move
_GAP = 0.25  # mean score of relevant documents minus that of random ones, after scaling by ``factor``
_LEAST_GAP = 1e-6  # scores are of the size of an idf; a smaller gap is rounding
_N_PAIRS = 5_000  # (relevant, random) pairs by which the gap is measured
_WORDS_A_CORE = 10_000  # query words per thread; with fewer, starting the thread takes longer than the ranking
_POSTINGS_A_CORE = 50_000  # postings per thread that are weighted
_SHARED_A_CORE = 50_000  # words that queries share with their candidates, per thread
N_CANDIDATES = 200
"""Documents of the highest scores that a search of settings ranks for each query."""
_SCORED_AT_ONCE = 64  # queries whose scores of all documents are in memory
_LACKING = 10.0  # penalty for each point of MAP below the floor
_CAUTION = 0.5
"""MAP that a parameter costs if it is one step (a factor of 3, or .25 for b) from its usual value, times the number of
training queries.

A distance of two steps costs four times as much. So one step costs .008 MAP with 60 training queries, .0005 with 1,000.
"""
_COVERAGE_STEPS = 2.0  # squared steps that the coverage of a field counts, whatever its value
TITLE_WEIGHT = 2.0
"""Usual weight of the field with the fewest words, relative to 1 of the others."""


@dataclass(frozen=True)
class LexicalTask:
    """A ranking task whose queries are word counts of a corpus."""

    task: RankingTask
    queries: LexicalQueries
    documents: RowNumbers
    """Rows of the task's documents in the corpus, (n,) int64."""

    def sample(
        self, rng: np.random.Generator, max_queries: int = MAX_QUERIES, max_documents: int = MAX_DOCUMENTS
    ) -> LexicalTask:
        """Return the task of at most ``max_queries`` queries over at most ``max_documents`` documents.

        Of a large pool the judged documents are kept, and random other ones. All baselines get the same sample.
        """
        task, rows, columns = self.task.sample(rng, max_queries, max_documents)
        return LexicalTask(task, tuple(field[rows] for field in self.queries), self.documents[columns])

    def part(self, rows: RowNumbers) -> LexicalTask:
        """Return the task restricted to the given queries."""
        return LexicalTask(self.task.rows(rows), tuple(field[rows] for field in self.queries), self.documents)

    def mean_ap(self, scorer: InnerProducts) -> float:
        """Return the mean average precision of a scorer."""
        no_tuples = draw_tuples(self.task, np.random.default_rng(0), n_tuples=0)
        return evaluate(self.task, scorer, no_tuples, measures=("AP",)).mean("AP")


@dataclass(frozen=True)
class TunedLexical:
    """Tuned settings of a lexical score."""

    settings: LexicalSettings
    value: float | None = None
    """Mean of ``values`` (MAP) in tuning, less the penalty for missing the floor and `_CAUTION`; None if not tuned."""
    notes: tuple[str, ...] = ()
    """Messages for the user, such as parameters that ended at a bound of the search."""
    values: tuple[float, ...] = ()
    """MAP of each task."""


def tune_lexical(
    corpus: LexicalCorpus,
    tasks: Sequence[LexicalTask],
    rng: np.random.Generator,
    forms: Sequence[str] = ("bm25", "tfidf"),
    stated: Sequence[float | None] | None = None,
    *,
    with_coverage: bool = False,
    start: LexicalSettings | None = None,
    floor: float = 0.0,
) -> dict[str, TunedLexical]:
    """Return the best settings found for each form; `best_lexical` picks the best of them.

    All parameters are searched jointly: k1 and weights on a logarithmic scale, b from 0 to 1, and ``query_tf``. The
    objective is the mean of the tasks' MAP, on at most 500 queries per task (1,000 with a memory), less `_CAUTION` for
    the distance from the usual settings, which counts where training queries are few. The usual setting and 32
    scrambled Sobol points, or ``start`` in their place, are tried on 100 queries and 10,000 documents per task. A
    pattern search continues from the best three there, and from the best of its results on all queries. It changes one
    parameter at a time and halves its steps when no step improves the value. Queries are read in blocks, and a point
    that is surely worse is given up after a block. On ties the earlier point stays. The field with the most words has
    weight 1; a field that never occurs has weight 0, and so has a field whose weight falls to the lower bound.

    `COVERING` continues from the best bm25 and searches all parameters and ``coverage`` jointly. It starts without
    coverage, and from the best three of 32 Sobol points of the coverage and ``query_tf``. It is never worse than bm25
    on the tuning queries.

    If the corpus has a memory, each query is scored against documents whose memory excludes the query's own fold
    (`LexicalCorpus.without`). The memory's weight and b are searched with the other parameters.

    ``factor`` is chosen so that the mean score of relevant documents is .25 above that of random ones (up to 5,000
    pairs). It is 1 if they do not score higher, and without tasks.

    Parameters
    ----------
    corpus : LexicalCorpus
        Word counts of the documents.
    tasks : sequence of LexicalTask
        The tasks that the score must serve, for instance texts and whole documents as queries. Without tasks nothing is
        tuned: all weights are 1, k1 is 1.2 and b is .75.
    rng : numpy.random.Generator
        Draws queries, Sobol points and pairs; every form is searched with the same draws.
    forms : sequence of str
        Forms to tune, of `reranker.lexical.bm25.LEXICAL_FORMS`.
    stated : sequence of float or None, optional
        Fixed weights of document fields; a field with None is searched. Only their ratios matter: they are divided by
        the main field's weight, which is 1 if not given.
    with_coverage : bool
        Whether `COVERING` is tuned after bm25.
    start : LexicalSettings, optional
        Settings of the text fields to start from; with a memory, combined with several weights of it.
    floor : float
        MAP that the first task must reach. Each point of MAP below it is subtracted `_LACKING` times.
    """
    given = (*(stated or ()), *(None,) * len(corpus.fields))[: len(corpus.fields)]
    unit = given[corpus.main_field] or 1.0
    weights = tuple(None if each is None else each / unit for each in given)
    seed = int(rng.integers(2**63))
    if not tasks or not forms:
        return {form: TunedLexical(_plain(corpus, form, weights)) for form in forms}
    draws = np.random.default_rng(seed)
    n_queries = float(np.mean([len(task.task.query_ids) for task in tasks]))
    samples = [task.sample(draws, MAX_QUERIES * (2 if corpus.without else 1)) for task in tasks]
    bounds = _Bounds(floor, n_queries)

    def tuned(form: str) -> dict[str, TunedLexical]:
        covers = with_coverage and form == "bm25"
        known = start if start is None or form in (start.form, "tfidf") else None  # tfidf has no k1 and b to start from
        return _tuned(corpus, samples, form, weights, covers, known, bounds, np.random.default_rng(seed))

    # The forms are independent of one another, so the results do not depend on the number of cores.
    with ThreadPoolExecutor(n_cores()) as cores:
        others = [cores.submit(tuned, form) for form in forms[1:]]
        parts = [tuned(forms[0]), *(other.result() for other in others)]
    return {name: each for part in parts for name, each in part.items()}


def best_lexical(tuned: Mapping[str, TunedLexical]) -> TunedLexical:
    """Return the settings with the highest value; on ties those of the earlier form."""
    return max(tuned.values(), key=lambda each: each.value or 0.0)


def _plain(corpus: LexicalCorpus, form: str, stated: _Stated = ()) -> LexicalSettings:
    """Return the settings used if nothing is tuned."""
    means = corpus.mean_lengths
    used = tuple(float(mean > 0) for mean in means)
    weights = tuple(
        used if each is None else each for used, each in zip(used, stated or (None,) * len(used), strict=True)
    )
    n_texts = len(corpus.texts.fields)
    asking = (*used[:n_texts], *(0.0 for _ in used[n_texts:]))  # a memory is no part of queries
    if form == "tfidf":
        return LexicalSettings(form, weights, asking)
    return LexicalSettings(form, weights, asking, b=(0.75,) * len(means), mean_lengths=means)


_Stated = tuple[float | None, ...]
"""Weight of each field as given by the user, None for fields to be searched; empty if no weights were given."""


class LexicalMeasure:
    """Average precision of a task's queries by one form of the lexical score, fast for many settings in a row.

    The values equal those of `reranker.evaluation.evaluate` with `LexicalCorpus.scorer`, 1,000 ranks deep, with ties.
    """

    def __init__(self, corpus: LexicalCorpus, task: LexicalTask, form: str) -> None:
        self.corpus = corpus
        self.task = task
        self.n_queries = len(task.task.query_ids)
        self._relevant = task.task.relevant()
        self._plain = _plain(corpus, form)
        # The cached functions are not methods: with a reference to this object, they would keep it and its postings in
        # memory until the garbage collector runs.
        self._query_rows = lru_cache(maxsize=8)(partial(_query_rows, corpus, task.queries, self._plain))
        fields = [field[task.documents] for field in corpus.fields]
        self._statistics = _Statistics(
            corpus.rows(self._plain).idf_of(np.arange(len(corpus.columns))),
            [np.asarray(field.sum(axis=1), dtype=np.float64).ravel() for field in fields],
            [corpus.rows(self._plain).idf_sums(field) for field in fields],
        )
        if form == "tfidf":
            alone = [tuple(row) for row in np.eye(len(fields)).tolist()]
            fields = [corpus.rows(LexicalSettings(form, weights, weights)).documents(fields) for weights in alone]
        self._take(_postings(fields, used_columns(task.queries), len(corpus.columns)), None)

    def _take(self, postings: Postings, candidates: RankedPlaces | None) -> None:
        self._postings, self._candidates = postings, candidates
        self._weights = lru_cache(maxsize=2)(partial(_weights_of_postings, postings, self._statistics))

    def among(self, some: Sequence[LexicalSettings]) -> LexicalMeasure:
        """Return the measure that ranks only the candidates of each query, which is several times as fast.

        These are its relevant documents and, for each of the given settings, the `N_CANDIDATES` of the highest scores.
        The values are not below the exact ones, and as near as the ranking is to that of the settings.
        """
        rows, postings = self._query_rows(self._plain.query_weights, self._plain.query_tf), self._postings
        relevant: Bool = self._relevant.toarray() > 0
        chosen = relevant.copy()

        def by_queries(part: Callable[[int, int], Any]) -> list[Any]:
            return in_parts(part, bounds_of(self.n_queries, min(n_cores(), self.n_queries) or 1))

        def add_highest(first: int, last: int) -> None:
            for settings in some:
                chosen[first:last] |= self._highest(settings, first, last)

        by_queries(add_highest)
        found = collect_places(rows.indptr, rows.indices, postings, chosen, relevant, by_queries)
        used = np.zeros(len(postings.documents), bool)
        used[found.postings] = True
        number_of = offsets_of(used)
        few = Postings(number_of[postings.offsets], postings.documents[used], postings.parts[:, used])
        other = copy.copy(self)
        other._take(few, found._replace(postings=number_of.astype(np.int32)[found.postings]))
        return other

    def _highest(self, settings: LexicalSettings, first: int, last: int) -> Bool:
        """Return whether a document is among the `N_CANDIDATES` of the highest scores of some queries in a row.

        The result is (``last`` - ``first``, n_documents).
        """
        rows = self._query_rows(settings.query_weights, settings.query_tf)[first:last]
        excluded, n_documents = self.task.task.excluded[first:last], len(self.task.documents)
        highest = np.zeros((rows.shape[0], n_documents), bool)
        n = min(N_CANDIDATES, n_documents)
        lists, n_words = self._postings, len(self.corpus.columns)
        weighted = sp.csr_matrix(
            (self._weights(settings), lists.documents, lists.offsets), shape=(n_words, n_documents)
        )
        for start in range(0, rows.shape[0], _SCORED_AT_ONCE):
            part = slice(start, start + _SCORED_AT_ONCE)
            scores, out = dense_products(rows[part], weighted), excluded[part]
            scores[row_of(out), out.indices] = -np.inf
            np.put_along_axis(highest[part], highest_places(scores, n), True, axis=1)
            highest[part][scores == -np.inf] = False
        return highest

    def values(self, settings: LexicalSettings, chosen: RowNumbers | None = None) -> Float64:
        """Return the average precision of the ``chosen`` queries (default: all), (n,) float64."""
        rows, weights = self._query_rows(settings.query_weights, settings.query_tf), self._weights(settings)
        if self._candidates is not None:
            return self._values_among(self._candidates, rows, weights, chosen)
        relevant, excluded = self._relevant, self.task.task.excluded
        if chosen is not None:
            rows, relevant, excluded = rows[chosen], relevant[chosen], excluded[chosen]
        n_documents = len(self.task.documents)

        def part(first: int, last: int) -> Float64:
            chosen = slice(first, last + 1)
            judged = Judged(relevant.indptr[chosen], relevant.indices, excluded.indptr[chosen], excluded.indices)
            values: Float64 = average_precision(
                rows.indptr[chosen], rows.indices, rows.data, self._postings, weights, judged, n_documents, DEPTH
            )
            return values

        # Queries are independent of one another, so the values do not depend on the number of cores.
        n_parts = min(n_cores(), 1 + len(rows.data) // _WORDS_A_CORE)
        return np.concatenate(in_parts(part, bounds_of(rows.shape[0], n_parts)))

    def _values_among(
        self, candidates: RankedPlaces, rows: sp.csr_matrix, weights: Float32, chosen: RowNumbers | None
    ) -> Float64:
        asked, n_words = np.arange(self.n_queries) if chosen is None else chosen, len(self.corpus.columns)

        def part(first: int, last: int) -> Float64:
            values: Float64 = candidate_precision(
                rows.indptr, rows.indices, rows.data, candidates, weights, asked[first:last], n_words, DEPTH
            )
            return values

        places = candidates.queries[asked + 1], candidates.queries[asked]
        n_shared = int((candidates.offsets[places[0]] - candidates.offsets[places[1]]).sum())
        n_parts = min(n_cores(), 1 + n_shared // _SHARED_A_CORE)
        return np.concatenate(in_parts(part, bounds_of(len(asked), n_parts)))

    def gap(self, settings: LexicalSettings, n_pairs: int, rng: np.random.Generator) -> float:
        """Return the mean score of random relevant documents minus that of random other documents.

        The result is at least two standard deviations of the other documents' scores. If relevant documents hardly
        score higher, the differences are chance, and scaling must not amplify them.
        """
        pairs = draw_tuples(self.task.task, rng, n_pairs)
        if not len(pairs.query):
            return 0.0
        queries = self._query_rows(settings.query_weights, settings.query_tf)[pairs.query]
        rows = self.corpus.rows(settings)
        scores = [
            dots(queries, rows.documents([field[self.task.documents[places]] for field in self.corpus.fields]))
            for places in (pairs.positive, pairs.negative)
        ]
        relevant, others = (values.astype(np.float64) for values in scores)
        return max(float(relevant.mean() - others.mean()), 2 * float(others.std()))


class _Statistics(NamedTuple):
    """Statistics of the documents, on which the weights of postings depend."""

    idf: Float64
    """Inverse document frequency of each word, (m,) float64."""
    lengths: list[Float64]
    """Words of each document, (n_documents,) float64 for each field."""
    idf_sums: list[Float64]
    """Sum of the idf of each document's words, (n_documents,) float64 for each field."""


def _query_rows(
    corpus: LexicalCorpus,
    queries: LexicalQueries,
    plain: LexicalSettings,
    query_weights: tuple[float, ...],
    query_tf: str,
) -> sp.csr_matrix:
    return corpus.rows(replace(plain, query_weights=query_weights, query_tf=query_tf)).queries(queries)


def _weights_of_postings(postings: Postings, statistics: _Statistics, settings: LexicalSettings) -> Float32:
    """Return the weight of every posting, equal to `LexicalRows.documents`."""
    if settings.form == "bm25":
        idf = statistics.idf * settings.factor
        fields = zip(statistics.lengths, settings.mean_lengths, settings.b, strict=True)
        norms = np.array([length_norms(*field) for field in fields])
        covered = zip(settings.coverage, statistics.idf_sums, strict=True) if settings.coverage else ()
        covers = np.array([cover_rates(*field) for field in covered], np.float32).reshape(-1, norms.shape[1])
        of_fields = np.array(settings.field_weights)

        weights: Float32 = np.empty(len(postings.documents), np.float32)

        def part(first: int, last: int) -> None:
            posting_weights(postings, norms, covers, of_fields, idf, settings.k1, (first, last), weights)

        n_parts = min(n_cores(), 1 + len(weights) // _POSTINGS_A_CORE)
        inner = np.searchsorted(postings.offsets, bounds_of(len(weights), n_parts)[1:-1]).tolist()
        in_parts(part, [0, *inner, len(idf)])
        return weights
    total = np.zeros(len(postings.documents))
    for weight, part_of in zip(settings.field_weights, postings.parts, strict=True):
        total += part_of.astype(np.float64) * weight
    return total.astype(np.float32) * np.float32(settings.factor)


def _measure(corpus: LexicalCorpus, task: LexicalTask, form: str) -> LexicalMeasure | FoldedMeasure:
    return (FoldedMeasure if corpus.without else LexicalMeasure)(corpus, task, form)


class FoldedMeasure:
    """`LexicalMeasure` of a corpus with a memory: a query is scored against documents without its own fold."""

    def __init__(self, corpus: LexicalCorpus, task: LexicalTask, form: str) -> None:
        folds = np.array([corpus.fold_of.get(query, len(corpus.without)) for query in task.task.query_ids])
        asked = (*corpus.without, corpus)
        self.n_queries = len(folds)
        present = np.unique(folds)
        rows_of = [np.flatnonzero(folds == fold) for fold in present]
        measures = on_cores(
            [
                partial(LexicalMeasure, asked[fold], task.part(rows), form)
                for fold, rows in zip(present, rows_of, strict=True)
            ]
        )
        self._parts = list(zip(rows_of, measures, strict=True))

    def values(self, settings: LexicalSettings, chosen: RowNumbers | None = None) -> Float64:
        """Return the average precision of the ``chosen`` queries (default: all), (n,) float64."""
        values = np.zeros(self.n_queries)

        def part(rows: Int64, measure: LexicalMeasure) -> None:
            places = np.flatnonzero(np.isin(rows, chosen)) if chosen is not None else np.arange(len(rows))
            if len(places):
                values[rows[places]] = measure.values(settings, places)

        on_cores([partial(part, *each) for each in self._parts])
        return values if chosen is None else values[chosen]

    def among(self, some: Sequence[LexicalSettings]) -> FoldedMeasure:
        """Return the measure that ranks only candidates, see `LexicalMeasure.among`."""
        other = copy.copy(self)
        measures = on_cores([partial(measure.among, some) for _, measure in self._parts])
        other._parts = [(rows, measure) for (rows, _), measure in zip(self._parts, measures, strict=True)]
        return other

    def gap(self, settings: LexicalSettings, n_pairs: int, rng: np.random.Generator) -> float:
        """Return the mean of `LexicalMeasure.gap` over the folds."""
        return float(np.mean([part.gap(settings, n_pairs // len(self._parts), rng) for _, part in self._parts]))


def _postings(fields: Sequence[sp.csr_matrix], words: Int64, n_words: int) -> Postings:
    """Return the postings of the given words in each field; the lists of other words are empty."""
    asked = np.zeros(n_words, dtype=bool)
    asked[words] = True
    # Encoded rows have a column for every term id; those of the corpus's words come first.
    counts = sp.hstack([field[:, :n_words] for field in fields], format="csr")
    collected: Postings = collect_postings(counts.indptr, counts.indices, counts.data, asked, len(fields))
    return collected


class _Axis(NamedTuple):
    """One searched parameter: of one field, or of all fields (k1, field 0).

    Bounds are logarithms of the values, except those of b.
    """

    name: str
    field: int
    low: float
    high: float
    start_low: float
    """Lower bound of the Sobol points."""
    start_high: float
    step: float
    """Largest step of the pattern search."""

    def value(self, x: float) -> float:
        """Return the parameter value at position x, to 4 significant digits; a weight at its lower bound is 0."""
        if self.name == "b":
            return round(x, 4)
        return 0.0 if self.is_weight and x <= self.low else float(f"{math.exp(x):.4g}")

    def place(self, settings: LexicalSettings) -> float:
        """Return the position of the settings' value on the axis."""
        value = settings.k1 if self.name == "k1" else getattr(settings, self.name)[self.field]
        if self.name == "b":
            return float(value)
        return min(max(math.log(value), self.low), self.high) if value else self.low

    def usual(self, weights: Sequence[float]) -> float:
        """Return the position of the usual value, given the usual weights of all fields; 1 for a query weight."""
        if self.name == "field_weights":
            return math.log(weights[self.field])
        return {"k1": math.log(1.2), "b": 0.75}.get(self.name, 0.0)

    @property
    def is_weight(self) -> bool:
        """Whether the parameter is a weight or coverage of a field; the value 0 disables it."""
        return self.name.endswith("weights") or self.name == "coverage"


_Point = tuple[tuple[float, ...], str]
"""Position on each axis, and ``query_tf``."""


def _logarithmic(name: str, field: int, bounds: tuple[float, float], starts: tuple[float, float]) -> _Axis:
    low, high = map(math.log, bounds)
    start_low, start_high = (min(max(math.log(start), low), high) for start in starts)
    return _Axis(name, field, low, high, start_low, start_high, step=math.log(3))


def usual_weights(lengths: Sequence[float]) -> tuple[float, ...]:
    """Return the usual weight of each text field, given its mean number of words.

    It is `TITLE_WEIGHT` for the field with the fewest words, 1 for the others, and 0 for a field without a word.
    """
    filled = [place for place, length in enumerate(lengths) if length > 0]
    shortest = min(filled, key=lengths.__getitem__) if len(filled) > 1 else -1
    return tuple(TITLE_WEIGHT if place == shortest else float(length > 0) for place, length in enumerate(lengths))


def _squared_steps(axis: _Axis, x: float, weights: Sequence[float], remembers: bool) -> float:
    """Return how far a parameter is from its usual value, in squared steps.

    It is 0 for parameters without a usual value: query weights, weight and b of a memory (whose field is not in
    ``weights``), and k1 if there is a memory.
    """
    if axis.name == "coverage":
        return _COVERAGE_STEPS if x > axis.low else 0.0
    if axis.name == "query_weights" or axis.field >= len(weights) or (axis.name == "k1" and remembers):
        return 0.0
    return ((x - axis.usual(weights)) / axis.step) ** 2


def _axes(plain: LexicalSettings, main: int, stated: _Stated, whole_documents: bool) -> list[_Axis]:
    """Return the parameters to search; query weights of fields only if documents are queries."""
    used = [field for field, there in enumerate(plain.mean_lengths or plain.query_weights) if there]
    others = [field for field in used if field != main]
    axes = []
    if plain.form == "bm25":
        axes.append(_logarithmic("k1", 0, (0.05, 500.0), (0.3, 60.0)))
        axes += [_Axis("b", field, 0.0, 1.0, 0.0, 1.0, 0.25) for field in used]
    free = [field for field in others if stated[field] is None]
    axes += [_logarithmic("field_weights", field, _WEIGHTS, (0.3, 60.0)) for field in free]
    if whole_documents:
        axes += [_logarithmic("query_weights", field, _WEIGHTS, (0.03, 2.0)) for field in others]
    return axes


def _coverage_axes(plain: LexicalSettings) -> list[_Axis]:
    """Return the coverage axis of each text field that has words and may have a weight."""
    weights = zip(plain.field_weights, plain.query_weights, strict=True)
    used = [field for field, (weight, asks) in enumerate(weights) if weight and asks]
    return [_logarithmic("coverage", field, (0.01, 10_000.0), (0.3, 1000.0)) for field in used]


def _settings(plain: LexicalSettings, axes: Sequence[_Axis], point: _Point) -> LexicalSettings:
    places, query_tf = point
    lists = {name: list(getattr(plain, name)) for name in ("field_weights", "query_weights", "b")}
    lists["coverage"] = [0.0] * len(plain.field_weights)
    changes: dict[str, Any] = {"query_tf": query_tf}
    for axis, x in zip(axes, places, strict=True):
        if axis.name == "k1":
            changes["k1"] = axis.value(x)
        else:
            lists[axis.name][axis.field] = axis.value(x)
    changes |= {name: tuple(values) for name, values in lists.items()}
    if not any(changes["coverage"]):
        changes["coverage"] = ()
    return replace(plain, **changes)


class _Bounds(NamedTuple):
    """Limits of a search, so that it stays near sensible settings."""

    floor: float
    """MAP that the first task must reach."""
    n_queries: float
    """Number of training queries, before the tasks were sampled; the mean over the tasks."""


def _tuned(
    corpus: LexicalCorpus,
    tasks: Sequence[LexicalTask],
    form: str,
    stated: _Stated,
    with_coverage: bool,
    start: LexicalSettings | None,
    bounds: _Bounds,
    rng: np.random.Generator,
) -> dict[str, TunedLexical]:
    """Return the best settings of one form, and of `COVERING` if asked for."""
    plain = _plain(corpus, form, stated)
    pure = _axes(plain, corpus.main_field, stated, any(len(task.queries) > 1 for task in tasks))
    covering = _coverage_axes(plain) if with_coverage else []
    axes = pure + covering
    measures = [_measure(corpus, task, form) for task in tasks]
    small = [_measure(corpus, task.sample(rng, _FEW_QUERIES, _FEW_DOCUMENTS), form) for task in tasks]
    modes = QUERY_TF if form == "bm25" else (plain.query_tf,)

    def settings_of(point: _Point) -> LexicalSettings:
        return _settings(plain, axes, point)

    weights, remembers = usual_weights(corpus.texts.mean_lengths), bool(corpus.without)

    def cost_of(point: _Point) -> float:
        squared = [_squared_steps(axis, x, weights, remembers) for axis, x in zip(axes, point[0], strict=True)]
        return _CAUTION / max(bounds.n_queries, 1) * sum(squared)

    contest, rough = (_Contest(each, settings_of, cost_of, bounds.floor, rng) for each in (measures, small))

    def searched(along: Sequence[_Axis], starts: Sequence[_Point], known: Sequence[_Point] = ()) -> _Point:
        starts = rough.ranked(starts)[:_N_SEARCHED]
        nearby = rough.among(starts, rng)
        searches = [partial(_pattern_search, along, modes, start, nearby.is_better, _ROUGH) for start in starts]
        best = contest.ranked([*known, *on_cores(searches)])[0]
        nearby = contest.among([best], rng)
        return contest.ranked([best, _pattern_search(along, modes, best, nearby.is_better, _FRACTIONS)])[0]

    def measured(best: _Point) -> TunedLexical:
        settings = _settings(plain, axes, best)
        n_pairs = _N_PAIRS // len(tasks)
        gap = float(np.mean([measure.gap(settings, n_pairs, rng) for measure in measures]))
        if gap > _LEAST_GAP:
            settings = replace(settings, factor=_GAP / gap)
        means = tuple(float(measure.values(settings).mean()) for measure in measures)
        return TunedLexical(settings, contest.valued(means) - cost_of(best), _notes(axes, best), means)

    others = [] if start is None else list(_beside_memory(plain, start)) if corpus.without else [start]
    none = tuple(axis.low for axis in covering)
    usual = tuple(axis.usual((*weights, 1.0)) for axis in pure)
    best = searched(pure, [((*places, *none), mode) for places, mode in _starts(pure, usual, modes, rng, others)])
    tuned = {form: measured(best)}
    if covering:
        starts = [((*best[0][: len(pure)], *places), mode) for places, mode in _points(covering, modes, rng)]
        known = [(tuple(axis.place(one) for axis in axes), one.query_tf) for one in others if one.coverage]
        tuned[COVERING] = measured(searched(axes, starts, [best, *known]))
    return tuned


_REMEMBERED = ((2.0, None), (2.0, 20.0), (6.0, 20.0), (20.0, 20.0))
"""Weights of a memory, and k1 (None: that of the text fields), with which a search begins.

A memory needs a larger k1 than texts do, and steps along one axis at a time hardly reach both.
"""


_B_REMEMBERED = 0.25  # b of a memory with which a search begins


def _beside_memory(plain: LexicalSettings, texts: LexicalSettings) -> Iterator[LexicalSettings]:
    """Yield the settings of the text fields, combined with several weights of a memory."""
    for weight, k1 in _REMEMBERED:
        yield replace(
            plain,
            k1=k1 or texts.k1,
            b=(*texts.b, _B_REMEMBERED),
            field_weights=(*texts.field_weights, weight),
            query_tf=texts.query_tf,
        )


def _starts(
    axes: Sequence[_Axis],
    usual: tuple[float, ...],
    modes: Sequence[str],
    rng: np.random.Generator,
    others: Iterable[LexicalSettings] = (),
) -> list[_Point]:
    """Return the starting points: the usual setting with the given settings, or with Sobol points if none are given."""
    starts = [(usual, modes[0])]
    starts += [(tuple(axis.place(settings) for axis in axes), settings.query_tf) for settings in others]
    if len(starts) == 1:
        starts += _points(axes, modes, rng)
    return starts


def _points(axes: Sequence[_Axis], modes: Sequence[str], rng: np.random.Generator) -> list[_Point]:
    """Return Sobol points over the starting ranges of the axes and over the modes."""
    if not axes:
        return []
    low = np.array([*(axis.start_low for axis in axes), 0.0])
    span = np.array([*(axis.start_high for axis in axes), 1.0]) - low
    points = low + span * qmc.Sobol(len(low), rng=rng).random(_N_STARTS)
    return [(tuple(places), modes[int(share * len(modes))]) for *places, share in points.tolist()]


class _Contest:
    """Comparisons of points by their average precision on the tuning queries, which are read block by block.

    A point is given up after a block if its paired difference to the other point is below 0 by more than `_SURELY`
    standard errors; all compared points see the same queries in the same order.
    """

    def __init__(
        self,
        measures: Sequence[LexicalMeasure | FoldedMeasure],
        settings_of: Callable[[_Point], LexicalSettings],
        cost_of: Callable[[_Point], float],
        floor: float,
        rng: np.random.Generator,
    ) -> None:
        self._measures, self._settings_of, self._cost_of, self._floor = measures, settings_of, cost_of, floor
        self._known: dict[_Point, tuple[threading.Lock, list[list[Float64]]]] = {}
        self._blocks: list[list[RowNumbers]] = []
        for measure in measures:
            order = rng.permutation(measure.n_queries)
            self._blocks.append([np.sort(block) for block in np.split(order, _BLOCKS) if len(block)])
        self._n_blocks = max(len(blocks) for blocks in self._blocks)

    def among(self, points: Sequence[_Point], rng: np.random.Generator) -> _Contest:
        """Return the contest in which only the candidates of each query at the given points are ranked.

        The floor is raised by what the mean of the first task at the first point is higher among candidates.
        """
        some = [self._settings_of(point) for point in points]
        calls = [partial[LexicalMeasure | FoldedMeasure](measure.among, some) for measure in self._measures]
        few = _Contest(on_cores(calls), self._settings_of, self._cost_of, self._floor, rng)
        if self._floor > 0:
            few._floor += few._means(points[0], few._n_blocks)[0] - self._means(points[0], self._n_blocks)[0]
        return few

    def valued(self, means: Sequence[float]) -> float:
        """Return the value of the mean average precision of each task: their mean, less the penalty of the floor."""
        return float(np.mean(means)) - _LACKING * max(0.0, self._floor - means[0])

    def value(self, point: _Point) -> float:
        """Return the value of a point on all queries, less the cost of its distance from the usual settings."""
        return self.valued(self._means(point, self._n_blocks)) - self._cost_of(point)

    def ranked(self, points: Sequence[_Point]) -> list[_Point]:
        """Return the points by their values, the highest first; of equals, the earlier point comes first."""
        values = on_cores([partial(self.value, point) for point in points])
        return [points[place] for place in sorted(range(len(points)), key=lambda place: -values[place])]

    def is_better(self, other: _Point, point: _Point) -> bool:
        """Return whether the other point is better on all queries."""
        misses_floor = self._floor > 0 and self._means(point, self._n_blocks)[0] < self._floor
        if not misses_floor:  # then the penalty can only be the other point's
            for n_blocks in range(1, self._n_blocks):
                if self._is_surely_worse(other, point, n_blocks):
                    return False
        return self.value(other) > self.value(point) + _GAIN

    def _is_surely_worse(self, other: _Point, point: _Point, n_blocks: int) -> bool:
        both = zip(self._values(other, n_blocks), self._values(point, n_blocks), strict=True)
        gains = [after - before for after, before in both]
        mean = np.mean([gain.mean() for gain in gains]) - self._cost_of(other) + self._cost_of(point)
        error = math.sqrt(sum(standard_error(gain) ** 2 for gain in gains)) / len(gains)
        return bool(mean + _SURELY * error < 0)

    def _means(self, point: _Point, n_blocks: int) -> list[float]:
        return [float(values.mean()) for values in self._values(point, n_blocks)]

    def _values(self, point: _Point, n_blocks: int) -> list[Float64]:
        """Return the average precision of the first blocks of each task's queries; each block is measured once."""
        settings = self._settings_of(point)
        lock, known = self._known.setdefault(point, (threading.Lock(), [[] for _ in self._measures]))
        with lock:  # a search on another core may have come to the same point
            for parts, measure, blocks in zip(known, self._measures, self._blocks, strict=True):
                parts += [measure.values(settings, block) for block in blocks[len(parts) : n_blocks]]
        return [np.concatenate(parts[:n_blocks]) for parts in known]


def _pattern_search(
    axes: Sequence[_Axis],
    modes: Sequence[str],
    start: _Point,
    is_better: Callable[[_Point, _Point], bool],
    fractions: Sequence[float],
) -> _Point:
    """Return the best point found by steps along one axis at a time; ``fractions`` are the successive step sizes.

    ``is_better`` tells whether its first point is better than its second by more than a rounding error.
    """
    point = start
    for fraction in fractions:
        for _ in range(_N_SWEEPS):
            before = point
            for number, axis in enumerate(axes):
                point = _along(axis, number, fraction * axis.step, point, is_better)
            for other in _jumps(axes, modes, point):
                if other != point and is_better(other, point):
                    point = other
            if point == before:
                break
    return point


def _along(axis: _Axis, number: int, step: float, point: _Point, is_better: Callable[[_Point, _Point], bool]) -> _Point:
    """Return the point after steps up for as long as they improve the value, or else after steps down."""
    for signed in (step, -step):
        start = point
        while True:
            other = _moved(point, number, min(max(point[0][number] + signed, axis.low), axis.high))
            if other == point or not is_better(other, point):
                break
            point = other
        if point != start:
            break
    return point


def _jumps(axes: Sequence[_Axis], modes: Sequence[str], point: _Point) -> Iterator[_Point]:
    """Yield points that small steps do not reach: another ``query_tf``, and fields left out."""
    yield from ((point[0], mode) for mode in modes if mode != point[1])
    yield from (_moved(point, number, axis.low) for number, axis in enumerate(axes) if axis.is_weight)


def _moved(point: _Point, number: int, x: float) -> _Point:
    return (*point[0][:number], x, *point[0][number + 1 :]), point[1]


def _notes(axes: Sequence[_Axis], point: _Point) -> tuple[str, ...]:
    """Return a sentence for each parameter that ended at a bound of the search that is not a natural limit."""
    notes = []
    for axis, x in zip(axes, point[0], strict=True):
        at_low = x <= axis.low and not axis.is_weight
        if axis.name != "b" and (at_low or x >= axis.high):
            whose = f" of field {axis.field + 1}" if axis.is_weight else ""
            notes.append(f"{axis.name}{whose} ended at {axis.value(x):g}, the bound of the search")
    return tuple(notes)
