"""Calibration: fits alpha, the weight of the model relative to the engine's score, for an index, a body and a window.

`fit_boost` fits the weight of impacts in the same way, for an index, a body and a mode.

It uses queries with known answers, from judgments or from links. In addition to alpha it fits the weights of signals,
which are numeric fields of the documents, by coordinate search on a grid. The engine is asked only once per query,
however many values are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.config import IMPACT_BOOST, ImpactMode, parse_keywords
from reranker.engines.boosts import ScoreBoost, boosts_of
from reranker.engines.protocol import Engine
from reranker.engines.stored_ids import NO_CHECK, IdCheck
from reranker.engines.vectors import QueryVectors
from reranker.errors import InputError
from reranker.evaluation import PairedTest, evaluate_run, paired_test, standard_error
from reranker.formats import RejectSink, read_documents
from reranker.models.ranking_model import Encoder
from reranker.models.training_queries import MAX_TRAINING_QUERIES, TrainingQueries
from reranker.progress import Progress
from reranker.records import Reason, ReasonKind, is_relevant
from reranker.releases import ControlRecord, update_control, utc_now
from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration import Calibration, Probability, body_hash, signature_of, window_scale
from reranker.rerank.ranking import blend, final_order
from reranker.rerank.search import Reranker
from reranker.rerank.signals import Signal
from reranker.tables import at_least_one, read_judgements, read_links, read_queries
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer

T = TypeVar("T")
TITLE_WORDS = 12
"""Number of words of a title that form a query."""
MAX_QUERY_KEYWORDS = 100
"""Maximum number of random words in a query, because engines reject queries of a thousand clauses."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A query with its judgments."""

    query: str
    grades: Mapping[str, float]
    """Grade by document id; a document is relevant if its grade is above 0."""
    excluded: frozenset[str] = frozenset()
    """Documents that are removed from the ranking: the document from which the query was generated."""


def topics_of_qrels(
    qrels: Path,
    queries: Path,
    rejects: RejectSink | None = None,
    check: IdCheck = NO_CHECK,
) -> list[Topic]:
    """Return the queries that have at least one relevant document, in the order of the query file.

    Judgments whose query has no text, or whose document is unknown by ``check``, are left out.

    Raises `InputError` if there is no such query, or if a file cannot be read or all of its lines were rejected.
    """
    grades = at_least_one("judgments", qrels, rejects, lambda: read_judgements(qrels, rejects))
    asked = at_least_one("queries", queries, rejects, lambda: list(read_queries(queries, rejects=rejects)))
    known = check.known("judgments", grades, {query.id for query in asked})
    topics = [
        Topic(query.text, known[query.id])
        for query in asked
        if any(is_relevant(grade) for grade in known.get(query.id, {}).values())
    ]
    if not topics:
        raise InputError(
            f"no query of {str(queries)!r} has a relevant document in {str(qrels)!r}: the query ids of both files must "
            "match, and relevant documents must have a grade above 0 and be in the index"
        )
    return topics


def topics_of_links(
    links: Path,
    documents: Path,
    encoder: Encoder,
    queries: str,
    seed: int,
    rejects: RejectSink | None = None,
    id_field: str | None = None,
    check: IdCheck = NO_CHECK,
) -> list[Topic]:
    """Return one topic per linking document: a short query generated from it, with the linked documents as answers.

    Parameters
    ----------
    links, documents
        Files of links and of documents.
    encoder
        Its text view selects the fields of a document. Its analyzer, without stemming, splits them into words.
    queries
        How to generate queries: ``title`` (the first words of the first non-empty field) or ``keywords:K`` (K random
        words).
    seed
        Seed for choosing random words.
    rejects
        Receives invalid records.
    id_field
        Field with the document id.
    check
        Links whose source is no document of the file, or whose target is unknown by this check, are left out.

    Raises
    ------
    ConfigError
        For another value of ``queries``.
    InputError
        If no link to a known document starts at a document of the file.
    """
    n_words = parse_keywords(queries, ("title",), MAX_QUERY_KEYWORDS)
    targets: dict[str, dict[str, float]] = {}
    for link in at_least_one("links", links, rejects, lambda: list(read_links(links, rejects=rejects))):
        if link.source != link.target:
            targets.setdefault(link.source, {})[link.target] = 1.0
    config = encoder.analyzer.config
    # Engines search for whole words, so the query must not be stemmed.
    analyzer = make_analyzer(AnalyzerConfig() if config.kind == "engine" else replace(config, stemmer=None))
    texts: dict[str, str] = {}
    for document in read_documents(documents, rejects=rejects, id_field=id_field):
        if document.id in targets:
            fields_of = encoder.view.texts(document.source)
            texts[document.id] = _query_text(analyzer, fields_of, n_words, seed, document.id)
    known = check.known("links", targets, texts)
    topics = [
        Topic(text, known[source], frozenset([source])) for source, text in texts.items() if text and known[source]
    ]
    if not topics:
        raise InputError(
            f"no link of {str(links)!r} leads from a document of {str(documents)!r} with text to a document of the "
            "index: check that the ids match"
        )
    return topics


def _query_text(analyzer: Analyzer, texts: Sequence[str], n_words: int | None, seed: int, name: str) -> str:
    tokens = analyzer.tokens(list(texts))
    if n_words is None:
        return " ".join(next((words[:TITLE_WORDS] for words in tokens if words), []))
    words = sorted({word for field in tokens for word in field})
    if len(words) > n_words:
        rng = np.random.default_rng([seed, *name.encode("utf-8", "surrogatepass")])
        words = [words[place] for place in rng.choice(len(words), size=n_words, replace=False)]
    return " ".join(words)


MIN_HELD_OUT: Final = 30
"""Number of queries without training queries from which only these are used for fitting."""


@dataclass(frozen=True, slots=True)
class FittingTopics:
    """The topics that alpha is fitted to, and how many of the given ones the model has learned from."""

    topics: list[Topic]
    """The given topics that the model has not learned from; all of them if those are too few, or it is unknown."""
    n_given: int
    """Number of given topics."""
    n_learned: int | None
    """Number of given topics that the model has learned from. None: unknown."""

    @property
    def held_out(self) -> bool | None:
        """True if the model has learned from none of the topics; None: unknown."""
        return None if self.n_learned is None else len(self.topics) == self.n_given - self.n_learned

    def sentence(self) -> str:
        """Return which topics are used, and what follows for the fit."""
        if self.n_learned is None:
            return (
                "it is unknown whether the model was trained on these queries, because it does not contain a list of "
                "its training queries (it was trained by an earlier version, from such a model, or on more than "
                f"{MAX_TRAINING_QUERIES:,} queries). If it was, alpha and the gain are too high. Train the model "
                "again, or calibrate on queries that it was not trained on"
            )
        n_others = self.n_given - self.n_learned
        if self.held_out:
            return f"{n_others:,} of {self.n_given:,} queries are used: the model was not trained on them"
        return (
            f"the model was trained on {self.n_learned:,} of the {self.n_given:,} queries, and the other {n_others:,} "
            f"are too few (at least {MIN_HELD_OUT} are needed), so all queries are used. The fit is on training "
            "queries: alpha and the gain are too high, and say little about new queries. Give more queries that the "
            "model was not trained on"
        )


def topics_to_fit(topics: Sequence[Topic], known: TrainingQueries | None) -> FittingTopics:
    """Return the topics that the model has not learned from; all topics if fewer than `MIN_HELD_OUT` would remain.

    The model has learned from a topic if its query text, or the document that it was generated from, is among the
    training queries. ``known`` are these; None: they are unknown.
    """
    if known is None:
        return FittingTopics(list(topics), len(topics), None)
    learned = known.have_texts([topic.query for topic in topics])
    sources = [(place, document) for place, topic in enumerate(topics) for document in topic.excluded]
    are_known = known.have_documents([document for _, document in sources])
    learned[[place for (place, _), is_known in zip(sources, are_known, strict=True) if is_known]] = True
    n_learned = int(learned.sum())
    others = [topic for topic, is_known in zip(topics, learned, strict=True) if not is_known]
    kept = others if len(others) >= MIN_HELD_OUT or not n_learned else list(topics)
    return FittingTopics(kept, len(topics), n_learned)


def sample(population: Sequence[T], limit: int, seed: int) -> list[T]:
    """Return at most ``limit`` randomly sampled elements, in their original order."""
    if len(population) <= limit:
        return list(population)
    places = np.random.default_rng(seed).choice(len(population), size=limit, replace=False)
    return [population[place] for place in np.sort(places).tolist()]


ALPHAS: Final[tuple[float, ...]] = (0.0, *(2.0**k / (1.0 + 2.0**k) for k in np.arange(-6, 6.5, 0.5).tolist()), 1.0)
"""The grid of alphas. The odds alpha / (1 - alpha) increase by factors of √2, with both ends added. A boost can scale
the engine's score by any factor, so equal steps of alpha itself could miss the optimum."""
N_FOLDS: Final = 5
MAX_ZERO_SHARE: Final = 0.2
MAX_EQUAL_SCORES: Final = 0.5
"""Share of queries without different engine scores from which a warning is given."""
MAX_MISSING: Final = 0.5
"""Share of candidates without a number from which a warning is given."""


WEIGHTS: Final[tuple[float, ...]] = (0.0, *(2.0**k for k in range(-8, 2)))
"""The grid of signal weights. BM25 / c(q) and f are of the order of 1."""
SIGNAL_ERRORS: Final = 2.0
"""Number of standard errors by which the gain of a signal's weight is reduced before comparing. Several signals are
tried: with one standard error, every seventh signal without information would be selected (random numbers in the shop
of benchmarks/signals.py); with two, every fiftieth."""
MAX_ROUNDS: Final = 4
"""Maximum number of rounds over alpha and the weights. Most fits converge after two."""
Point = tuple[float, ...]
"""Alpha, followed by the weight of each signal."""


class Gain(NamedTuple):
    """Improvement of one fit over another in cross-validation."""

    mean: float
    """Difference of the means of the measure."""
    error: float
    """Standard error of the difference."""
    p: float
    """p value of a paired t-test."""

    @classmethod
    def of(cls, held_out: Float64, other: Float64) -> Gain:
        """Return the gain of values, (n_topics,) float64, over those of the other fit, (n_topics,) float64."""
        test = paired_test(held_out, other)
        return cls(test.difference, test.standard_error, test.p_t_test)

    def to_json(self) -> dict[str, float | None]:
        """Return JSON-compatible values; an undefined p is null."""
        return {**self._asdict(), "p": None if math.isnan(self.p) else self.p}


COMPARED: Final = ("AP", "nDCG@10")
"""Measures by which orders are compared."""


class OrderComparison(NamedTuple):
    """Four orders of the calibration's queries.

    ``engine`` is the engine's order with the body that is calibrated, ``weights`` its order with the model's field
    weights (`weighted_template`), ``words`` the candidates of ``engine`` by the model's word matches q·d only, without
    the learned part, and ``model`` the blended order with the alpha and weights fitted on the other folds.
    """

    means: Mapping[str, Mapping[str, float]]
    """Means by order and measure."""
    differences: Mapping[tuple[str, str], Mapping[str, PairedTest]]
    """Tests of the first order minus the second, by measure."""

    @classmethod
    def of(cls, fit: Fit, topics: Sequence[Topic], weighted: Mapping[str, Sequence[str]]) -> OrderComparison:
        """Return the comparison on the topics of a fit; ``weighted`` is the `engine_run` with the field weights."""
        qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
        runs = {
            "engine": fit.runs["engine"],
            "weights": weighted,
            "words": fit.runs["words"],
            "model": fit.runs["model"],
        }
        values = {order: {measure: _values(qrels, run, measure) for measure in COMPARED} for order, run in runs.items()}
        pairs = (
            ("weights", "engine"),
            ("words", "engine"),
            ("words", "weights"),
            ("model", "engine"),
            ("model", "weights"),
        )
        return cls(
            {order: {measure: float(of.mean()) for measure, of in values[order].items()} for order in values},
            {
                (first, second): {one: paired_test(values[first][one], values[second][one]) for one in COMPARED}
                for first, second in pairs
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; ``interval`` is half the width of the 95 % confidence interval."""
        return {
            "means": self.means,
            "differences": {
                f"{first} - {second}": {
                    measure: {
                        "difference": test.difference,
                        "interval": test.interval,
                        "p": None if math.isnan(test.p_t_test) else test.p_t_test,
                    }
                    for measure, test in tests.items()
                }
                for (first, second), tests in self.differences.items()
            },
        }


@dataclass(frozen=True, slots=True)
class FittedSignal:
    """A signal with its fitted weight."""

    signal: Signal
    gain: Gain
    """Improvement over the same fit without this signal."""
    missing: float
    """Share of candidates without a number in this field, 0 to 1."""

    def to_json(self) -> dict[str, Any]:
        """Return the values that a release stores."""
        return {**self.signal.to_json(), "gain": self.gain.to_json(), "missing": self.missing}


class FittedProbability(NamedTuple):
    """A fitted probability of relevance as a function of f, with its error."""

    probability: Probability
    error: float
    """Calibration error in cross-validation: mean difference between predicted probability and observed share of
    relevant candidates, over ten bins with equal numbers of candidates."""
    share: float
    """Share of all candidates that are relevant."""

    def to_json(self) -> dict[str, float]:
        """Return JSON-compatible values."""
        return {**self.probability._asdict(), "error": self.error, "share": self.share}


@dataclass(frozen=True, slots=True)
class Fit:
    """Result of `fit_alpha`."""

    alpha: float
    """The best alpha over all queries."""
    window_alpha: float
    """The best alpha if the engine's scores are divided by the highest one of the window, for similar bodies."""
    measure: str
    """The measure that is maximised: ``nDCG@10`` (judgments) or ``AP`` (links)."""
    n_queries: int
    engine: float
    """Mean of the measure in the engine's order."""
    fitted: float
    """Mean of the measure with ``alpha`` and the signals."""
    model: float
    """Mean of the measure with the model's score only."""
    held_out: float
    """Cross-validated mean (5 folds): each query is ranked with the alpha and weights fitted on the other folds. It is
    the value to expect on new queries, unless the model was trained on these."""
    held_out_error: float
    """Standard error of ``held_out``."""
    gain: float
    """``held_out`` - ``engine``."""
    gain_error: float
    """Standard error of ``gain``."""
    gain_p: float
    """p value of a paired t-test of ``gain``."""
    ceiling: float
    """Mean of the measure if the candidates were perfectly ordered: the upper bound for any reranker of this window."""
    zero_share: float
    """Share of candidates with q·d = 0. They matched words that the model's text view or analyzer does not cover."""
    n_fallbacks: int
    """Number of queries that cannot be reranked."""
    curve: tuple[tuple[float, float], ...]
    """Pairs (alpha, mean of the measure), without signals."""
    errors: tuple[float, ...]
    """Standard error of the gain over the engine for each point of ``curve``."""
    signals: tuple[FittedSignal, ...] = ()
    """All signals that were tried, including those with weight 0."""
    signals_gain: Gain | None = None
    """Improvement from all signals together over alpha without signals."""
    probability: FittedProbability | None = None
    """Probability of relevance as a function of f, if requested."""
    n_equal_scores: int = 0
    """Number of queries with several candidates to which the engine gave no two different scores that are finite."""
    runs: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Ids of each topic, best first, in the orders ``engine``, ``words`` and ``model`` of `OrderComparison`.

    Not part of the JSON.
    """
    held_out_from_training: bool | None = None
    """True if the model was trained on none of the queries, False if it was trained on some; None: unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; signals and probability only if requested. A p of NaN is null."""
        wanted = ("signals", "signals_gain", "probability", "runs")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in wanted}
        values["gain_p"] = None if math.isnan(self.gain_p) else self.gain_p
        if self.signals_gain is not None:
            values["signals"] = [signal.to_json() for signal in self.signals]
            values["signals_gain"] = self.signals_gain.to_json()
        if self.probability is not None:
            values["probability"] = self.probability.to_json()
        return values

    def weighted(self) -> tuple[Signal, ...]:
        """Return the signals with a weight above 0."""
        return tuple(found.signal for found in self.signals if found.signal.weight)


class TopicWindow(NamedTuple):
    """The candidates of one topic with the components of their scores."""

    ids: list[str]
    model: Float64
    """(n,) float64: f(q, d)."""
    words: Float64
    """(n,) float64: q·d, the word matches; NaN if the candidate has no f(q, d)."""
    lexical: Float64
    """(n,) float64: the engine's score."""
    scale: float
    """c(q)."""
    kept: Bool
    """(n,) bool: candidates that must not move."""
    signals: Float64
    """(n_signals, n) float64: raw numbers, NaN if missing, until `Rankings.make_knots` replaces them by s(x)."""
    is_empty: bool
    """Whether the query is empty for the model."""
    excluded: frozenset[str]
    """Ids that are removed from the ranking."""

    def ranked(self, point: Point) -> list[str]:
        """Return the ids in final order, without duplicates."""
        added = np.array(point[1:]) @ self.signals
        scores = blend(self.model, self.lexical, point[0], self.scale, added)
        if self.is_empty:
            scores[:] = np.nan
        return self.answers([self.ids[place] for place in final_order(scores, self.kept).tolist()])

    def answers(self, ranked: Sequence[str]) -> list[str]:
        """Return the ids that are not excluded, without duplicates."""
        return list(dict.fromkeys(document for document in ranked if document not in self.excluded))


@dataclass(slots=True)
class Rankings:
    """The windows of all topics, which are named ``"0"``, ``"1"``, ... by their positions, with statistics."""

    signals: tuple[Signal, ...]
    missing: tuple[float, ...] = ()
    """Share of the candidates without a number, for each signal."""
    windows: list[TopicWindow] = field(default_factory=list)
    perfect: dict[str, list[str]] = field(default_factory=dict)
    n_zero: int = 0
    n_scored: int = 0
    n_fallbacks: int = 0
    n_equal_scores: int = 0
    """Number of topics with several candidates to which the engine gave no two different scores."""

    def run(self, point: Point) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, with this alpha and these weights."""
        return {str(number): window.ranked(point) for number, window in enumerate(self.windows)}

    def run_of_words(self) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, by the word matches q·d only."""
        point = (1.0, *(0.0 for _ in self.signals))
        return {
            str(number): window._replace(model=window.words).ranked(point) for number, window in enumerate(self.windows)
        }

    def make_knots(self) -> None:
        """Fit each signal's quantile knots on all candidates, then replace raw values by s(x)."""
        numbers = np.concatenate([window.signals for window in self.windows], axis=1)
        self.missing = tuple(np.isnan(numbers).mean(axis=1).tolist())
        self.signals = tuple(signal.with_knots(row) for signal, row in zip(self.signals, numbers, strict=True))
        self.windows = [
            window._replace(
                signals=np.array([one.shares(row) for one, row in zip(self.signals, window.signals, strict=True)])
            )
            for window in self.windows
        ]


def rank_topics(
    reranker: Reranker,
    topics: Sequence[Topic],
    body: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    signals: tuple[Signal, ...] = (),
) -> Rankings:
    """Ask the engine once per topic and return the candidates, which can then be ranked with any alpha and weights.

    ``signals`` must have their kinds set (`signals.typed`). Their knots are fitted here on all candidates. Raises
    `InputError` for a signal for which no candidate has a number.
    """
    rankings = Rankings(signals)
    for number, topic in enumerate(topics):
        _rank_topic(reranker, topic, str(number), body, rankings)
        if progress is not None:
            progress(number + 1, len(topics))
    if signals:
        rankings.make_knots()
    return rankings


def engine_run(
    reranker: Reranker, topics: Sequence[Topic], body: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, list[str]]:
    """Return the ids of each topic in the engine's own order of a body template, down to the window of the reranker."""
    off = Reason(ReasonKind.SWITCHED_OFF, "the engine's order is measured")
    return run_of(pages_of(reranker, topics, body, progress, off), topics)


def pages_of(
    reranker: Reranker,
    topics: Sequence[Topic],
    body: Mapping[str, Any],
    progress: Progress | None,
    off: Reason | None = None,
) -> list[RerankedPage]:
    """Return a page of ids for each topic, down to the window of the reranker."""
    pages = []
    for number, topic in enumerate(topics):
        shown = {**body, "_source": False}
        pages.append(reranker.search(topic.query, shown, size=reranker.settings.window, from_=0, off=off))
        if progress is not None:
            progress(number + 1, len(topics))
    return pages


def run_of(pages: Sequence[RerankedPage], topics: Sequence[Topic]) -> dict[str, list[str]]:
    """Return the ids of each topic, best first, without duplicates and excluded ones."""
    ids = (dict.fromkeys(hit.id for hit in page.hits) for page in pages)
    return {
        str(number): [one for one in found if one not in topic.excluded]
        for number, (found, topic) in enumerate(zip(ids, topics, strict=True))
    }


def _rank_topic(
    reranker: Reranker, topic: Topic, name: str, body: Mapping[str, Any] | None, rankings: Rankings
) -> None:
    window, query, kept = reranker.score_window(topic.query, body, rankings.signals)
    ids = [hit.id for hit in window.hits]
    numbers = np.array([signal.numbers(window.hits) for signal in rankings.signals]).reshape(
        len(rankings.signals), len(ids)
    )
    words_alone = QueryVectors(np.zeros_like(query.vectors.vector), query.vectors.ids, query.vectors.weights, 1.0)
    same_words = window.vectors.score(words_alone)
    candidates = TopicWindow(
        ids, window.model, same_words, window.lexical, query.scale, kept, numbers, query.is_empty, topic.excluded
    )
    rankings.windows.append(candidates)
    best = sorted(ids, key=lambda document: -topic.grades.get(document, 0.0))
    rankings.perfect[name] = candidates.answers(best)
    if query.is_empty or window.n_unscored > reranker.settings.max_unscored * max(len(ids), 1):
        rankings.n_fallbacks += 1
    scores = window.lexical[np.isfinite(window.lexical)]
    rankings.n_equal_scores += int(len(ids) > 1 and len(np.unique(scores)) < 2)
    rankings.n_zero += int((same_words == 0).sum())
    rankings.n_scored += int((~np.isnan(same_words)).sum())


class BlendSearch:
    """Search for the best alpha and weights. The measure of each topic at each point is computed once and cached."""

    def __init__(self, rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], measure: str) -> None:
        self._rankings, self._qrels, self._measure = rankings, qrels, measure
        self._known: dict[Point, Float64] = {}

    def values(self, point: Point) -> Float64:
        """Return the measure of each topic at a point, (n_topics,) float64."""
        if point not in self._known:
            self._known[point] = _values(self._qrels, self._rankings.run(point), self._measure)
        return self._known[point]

    def best(self, topics: Bool) -> Point:
        """Return the best point for the topics of a mask, (n_topics,) bool, by coordinate search.

        It optimises alpha (`_best`) and then each signal's weight (`_surest`) with all other coordinates fixed, and
        repeats until none changes.
        """
        point: Point = (0.0,) * (1 + len(self._rankings.signals))
        for _ in range(MAX_ROUNDS):
            before = point
            for place in range(len(point)):
                points = [changed(point, place, value) for value in (WEIGHTS if place else ALPHAS)]
                rows = np.stack([self.values(one)[topics] for one in points])
                point = points[_surest(rows) if place else _best(rows)]
            if point == before or len(point) == 1:
                break
        return point

    def held_out(self, seed: int, without: int | None = None) -> Float64:
        """Return each topic's cross-validated value, (n_topics,) float64: at the best point of the other folds.

        ``seed`` assigns the folds. ``without`` is the number of a signal that is set to 0 in the points found, with the
        other coordinates unchanged.
        """

        def fitted(others: Bool) -> Float64:
            point = self.best(others)
            return self.values(point if without is None else changed(point, without + 1, 0.0))

        return _by_parts(len(self._rankings.windows), seed, fitted)

    def held_out_run(self, seed: int) -> dict[str, list[str]]:
        """Return the ids of each topic, best first, at the best point of the other folds; ``seed`` as in `held_out`."""
        windows, part = self._rankings.windows, _parts(len(self._rankings.windows), seed)
        points = [self.best(part != fold) for fold in range(N_FOLDS)]
        return {str(number): window.ranked(points[part[number]]) for number, window in enumerate(windows)}


def changed(point: Point, place: int, value: float) -> Point:
    """Return a copy of the point with one value changed."""
    return (*point[:place], value, *point[place + 1 :])


def fit_alpha(
    reranker: Reranker,
    topics: Sequence[Topic],
    measure: str,
    body: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    signals: tuple[Signal, ...] = (),
    probability: bool = False,
) -> Fit:
    """Return the alpha with the largest mean measure, with an estimate of its gain on new queries.

    If several alphas have the same mean, the smallest wins, which is closest to the engine's order. If the gain over
    the engine's order is at most one standard error, alpha is 0, because a gain that small is found by chance and is as
    often lost on other queries.

    Parameters
    ----------
    reranker
        The reranker to calibrate.
    topics
        Queries with judgments, at least 2 * `N_FOLDS`.
    measure
        A measure of `reranker.evaluation`.
    body
        The search body template; None: the default one.
    seed
        Seed for assigning the folds of the cross-validation.
    progress
        Called after each query.
    signals
        Signals (`signals.typed`) whose weights are fitted together with alpha, by a stricter rule (`SIGNAL_ERRORS`).
    probability
        Also fit the probability of relevance as a function of f. Candidates without a judgment count as not relevant.

    Raises
    ------
    InputError
        If there are too few topics, or if no candidate has a number for a signal.
    EngineError
        If the engine does not answer.
    """
    if len(topics) < 2 * N_FOLDS:
        raise InputError(f"{len(topics)} queries are too few to fit alpha: at least {2 * N_FOLDS} are needed")
    rankings = rank_topics(reranker, topics, body, progress, signals)
    qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
    search = BlendSearch(rankings, qrels, measure)
    nothing = (0.0,) * len(signals)
    values = np.stack([search.values((alpha, *nothing)) for alpha in ALPHAS])
    means = values.mean(axis=1)
    best = search.best(np.ones(len(topics), dtype=bool))
    held_out = search.held_out(seed)
    test = paired_test(held_out, values[0])
    return Fit(
        alpha=best[0],
        window_alpha=_window_alpha(rankings, qrels, measure, best[1:]),
        measure=measure,
        n_queries=len(topics),
        engine=float(means[0]),
        fitted=float(search.values(best).mean()),
        model=float(means[-1]),
        held_out=float(held_out.mean()),
        held_out_error=standard_error(held_out),
        gain=test.difference,
        gain_error=test.standard_error,
        gain_p=test.p_t_test,
        ceiling=float(_values(qrels, rankings.perfect, measure).mean()),
        zero_share=rankings.n_zero / rankings.n_scored if rankings.n_scored else 0.0,
        n_fallbacks=rankings.n_fallbacks,
        n_equal_scores=rankings.n_equal_scores,
        curve=tuple(zip(ALPHAS, means.tolist(), strict=True)),
        errors=tuple(standard_error(gains) for gains in values - values[0]),
        signals=tuple(
            FittedSignal(
                replace(signal, weight=best[place + 1]),
                Gain.of(held_out, search.held_out(seed, without=place)),
                rankings.missing[place],
            )
            for place, signal in enumerate(rankings.signals)
        ),
        signals_gain=Gain.of(held_out, cross_validated(values, seed)) if signals else None,
        probability=fit_probability(rankings, qrels, seed) if probability else None,
        runs={
            "engine": rankings.run((0.0, *nothing)),
            "words": rankings.run_of_words(),
            "model": search.held_out_run(seed),
        },
    )


def _window_alpha(
    rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], measure: str, weights: Sequence[float]
) -> float:
    """Return the best alpha for scores that are divided by the highest one of the window, with the signals' weights."""
    windows = [window._replace(scale=window_scale(window.lexical, window.scale)) for window in rankings.windows]
    search = BlendSearch(replace(rankings, windows=windows), qrels, measure)
    return ALPHAS[_best(np.stack([search.values((alpha, *weights)) for alpha in ALPHAS]))]


def fit_probability(rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], seed: int) -> FittedProbability:
    """Return the probability of relevance as a function of f, fitted on all candidates that have an f.

    Raises `InputError` if f does not separate relevant candidates from others.
    """
    scores, relevant, topics = [], [], []
    for number, window in enumerate(rankings.windows):
        grades = qrels[str(number)]
        known = np.isfinite(window.model) & np.array([name not in window.excluded for name in window.ids], dtype=bool)
        scores.append(window.model[known])
        relevant.append(np.array([is_relevant(grades.get(name, 0.0)) for name in window.ids], dtype=np.float64)[known])
        topics.append(np.full(known.sum(), number))
    f, y, topic = np.concatenate(scores), np.concatenate(relevant), np.concatenate(topics)
    predicted = np.empty(len(f))
    part = (np.random.default_rng(seed).permutation(len(rankings.windows)) % N_FOLDS)[topic]
    for fold in range(N_FOLDS):
        predicted[part == fold] = _logistic(f[part != fold], y[part != fold]).of(f[part == fold])
    bins = np.array_split(np.argsort(predicted, kind="stable"), min(10, len(predicted)))
    error = float(np.mean([abs(predicted[places].mean() - y[places].mean()) for places in bins]))
    return FittedProbability(_logistic(f, y), error, float(y.mean()))


def _logistic(f: Float64, relevant: Float64) -> Probability:
    """Return the logistic regression of ``relevant``, (n,) float64 of 0 and 1, on f, (n,) float64, by Newton's method.

    One relevant and one irrelevant candidate are added at the mean of f (Platt 1999), so that the slope stays finite.
    """
    middle, spread = (float(f.mean()), float(f.std())) if len(f) else (0.0, 0.0)
    if not 0 < relevant.sum() < len(relevant) or spread == 0:
        raise InputError(
            "a probability of relevance cannot be fitted: some candidates must be relevant and others not, and "
            "their scores must differ. Calibrate on other queries, or omit --probability"
        )
    x = np.stack([np.append((f - middle) / spread, [0.0, 0.0]), np.ones(len(f) + 2)])
    y, weights = np.append(relevant, [0.0, 1.0]), np.zeros(2)
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-(weights @ x)))
        step = np.linalg.solve((x * (p * (1 - p))) @ x.T + 1e-6 * np.eye(2), x @ (y - p) - 1e-6 * weights)
        weights += np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    if weights[0] <= 0:
        raise InputError(
            "a probability of relevance cannot be fitted: the model's score does not increase with relevance on these "
            "queries. Train on more data, or omit --probability"
        )
    return Probability(float(weights[0] / spread), float(weights[1] - weights[0] * middle / spread))


def _values(qrels: Mapping[str, Mapping[str, float]], run: Mapping[str, Sequence[str]], measure: str) -> Float64:
    """Return the measure of each topic, (n,) float64."""
    depth = int(measure.partition("@")[2]) if "@" in measure else None
    cut = {name: ids[:depth] for name, ids in run.items()}
    values = evaluate_run(qrels, cut, [measure])[measure]
    return np.array([values[str(number)] for number in range(len(qrels))])


def _best(values: Float64) -> int:
    """Return the best row of (n_alphas, n_topics) values; the first if its gain is at most one standard error."""
    best = int(np.argmax(values.mean(axis=1)))
    gains = values[best] - values[0]
    return best if gains.mean() > standard_error(gains) else 0


def _surest(values: Float64) -> int:
    """Return the row of (n_weights, n_topics) values with the largest gain over the first, less its standard errors.

    `SIGNAL_ERRORS` standard errors are subtracted. Returns the first row if no other has a positive result. Of equal
    rows, the one with the smallest weight wins.
    """
    bounds = [gains.mean() - SIGNAL_ERRORS * standard_error(gains) for gains in values - values[0]]
    return int(np.argmax(bounds))


def cross_validated(values: Float64, seed: int) -> Float64:
    """Return each topic's value, (n_topics,) float64, with the alpha that is best for the topics of the other folds.

    ``values`` is (n_alphas, n_topics) float64; its first row belongs to the engine's order.
    """
    return _by_parts(values.shape[1], seed, lambda others: values[_best(values[:, others])])


def _parts(n_topics: int, seed: int) -> Int64:
    """Return the number of the fold of each topic, (n_topics,) int64."""
    return np.random.default_rng(seed).permutation(n_topics) % N_FOLDS


def _by_parts(n_topics: int, seed: int, fitted: Callable[[Bool], Float64]) -> Float64:
    """Return each topic's cross-validated value, (n_topics,) float64, by a fit to the topics of the other folds.

    ``fitted`` takes a mask of topics, (n_topics,) bool, and returns the values of all topics by the best fit for these.
    """
    part = _parts(n_topics, seed)
    held_out = np.empty(n_topics)
    for fold in range(N_FOLDS):
        inside = part == fold
        held_out[inside] = fitted(~inside)[inside]
    return held_out


def keep_in_release(
    engine: Engine, index: str, model_id: str, template: Mapping[str, Any], window: int, fit: Fit
) -> ControlRecord:
    """Store the fit for a body and a window in the model's release; return the stored record.

    Raises `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "alpha": fit.alpha,
        "window_alpha": fit.window_alpha,
        "clauses": sorted(signature_of(template)),
        "measure": fit.measure,
        "queries": fit.n_queries,
        "engine": round(fit.engine, 6),
        "held_out": round(fit.held_out, 6),
        "fitted": utc_now(),
        **({} if fit.held_out_from_training is None else {"held_out_from_training": fit.held_out_from_training}),
        **({"signals": [signal.to_json() for signal in signals]} if (signals := fit.weighted()) else {}),
        **({"probability": list(fit.probability.probability)} if fit.probability else {}),
    }

    return _keep_entry(engine, index, model_id, Calibration.key(body_hash(template), window), entry)


def _keep_entry(engine: Engine, index: str, model_id: str, key: str, entry: Mapping[str, Any]) -> ControlRecord:
    def change(record: ControlRecord) -> ControlRecord:
        release = record.release(model_id)
        return record.with_release(replace(release, calibration={**release.calibration, key: entry}))

    return update_control(engine, index, change)


BOOSTS: Final = (IMPACT_BOOST, 0.5, 1.0, 2.0, 4.0, 16.0, 32.0)
"""The grid of boosts of impacts. The default is the first, so that another one must gain more than a standard error."""


@dataclass(frozen=True, slots=True)
class BoostFit:
    """Result of `fit_boost`."""

    boost: float
    """The best boost over all queries."""
    mode: ImpactMode
    measure: str
    """The measure that is maximised: ``nDCG@10`` (judgments) or ``AP`` (links)."""
    n_queries: int
    engine: float
    """Mean of the measure in the engine's order of the body, without impacts."""
    default: float
    """Mean of the measure with `IMPACT_BOOST`."""
    fitted: float
    """Mean of the measure with ``boost``."""
    held_out: float
    """Cross-validated mean (5 folds): each query is ranked with the boost fitted on the other folds."""
    held_out_error: float
    """Standard error of ``held_out``."""
    gain: Gain
    """``held_out`` - ``engine``."""
    gain_over_default: Gain
    """``held_out`` - ``default``."""
    curve: tuple[tuple[float, float], ...]
    """Pairs (boost, mean of the measure), in the order of the boosts."""
    n_fallbacks: int
    """Number of queries that got the engine's own order with some boost."""
    held_out_from_training: bool | None = None
    """True if the model was trained on none of the queries, False if it was trained on some; None: unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "gain": self.gain.to_json(), "gain_over_default": self.gain_over_default.to_json()}


def fit_boost(
    reranker: Reranker,
    topics: Sequence[Topic],
    measure: str,
    template: Mapping[str, Any],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> BoostFit:
    """Return the boost of impacts with the largest mean measure, with an estimate of its gain on new queries.

    The engine is asked once per query without impacts, and once for each boost of `BOOSTS`. If the gain over the
    default boost is at most one standard error, the default is returned.

    Parameters
    ----------
    reranker
        A reranker of route *impacts*. Its mode and window are used.
    topics
        Queries with judgments, at least 2 * `N_FOLDS`.
    measure
        A measure of `reranker.evaluation`.
    template
        The search body template.
    seed
        Seed for assigning the folds of the cross-validation.
    progress
        Called after each query; each boost is another pass.

    Raises
    ------
    InputError
        If there are too few topics, or if impacts can be added to the search of none.
    EngineError
        If the engine does not answer.
    """
    if len(topics) < 2 * N_FOLDS:
        raise InputError(f"{len(topics)} queries are too few to fit a boost: at least {2 * N_FOLDS} are needed")
    qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
    engine = _values(qrels, engine_run(reranker, topics, template, progress), measure)
    rows: list[Float64] = []
    without: dict[int, Reason] = {}
    for boost in BOOSTS:
        settings = replace(reranker.settings, boost=boost)
        boosted = Reranker(reranker.engine, reranker.index, reranker.model, route="impacts", settings=settings)
        pages = pages_of(boosted, topics, template, progress)
        without |= {number: page.reason for number, page in enumerate(pages) if page.reason is not None}
        if len(without) == len(topics):
            raise InputError(f"impacts cannot be added to the search of any query: {without[0]}")
        rows.append(_values(qrels, run_of(pages, topics), measure))
    values = np.stack(rows)
    best, held_out = _best(values), cross_validated(values, seed)
    means = values.mean(axis=1).tolist()
    return BoostFit(
        boost=BOOSTS[best],
        mode=reranker.settings.mode,
        measure=measure,
        n_queries=len(topics),
        engine=float(engine.mean()),
        default=means[0],
        fitted=means[best],
        held_out=float(held_out.mean()),
        held_out_error=standard_error(held_out),
        gain=Gain.of(held_out, engine),
        gain_over_default=Gain.of(held_out, values[0]),
        curve=tuple(sorted(zip(BOOSTS, means, strict=True))),
        n_fallbacks=len(without),
    )


def keep_boost(engine: Engine, index: str, model_id: str, template: Mapping[str, Any], fit: BoostFit) -> ControlRecord:
    """Store the boost for a body and a mode in the model's release; return the stored record.

    Raises `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "boost": fit.boost,
        "measure": fit.measure,
        "queries": fit.n_queries,
        "engine": round(fit.engine, 6),
        "held_out": round(fit.held_out, 6),
        "fitted": utc_now(),
        **({} if fit.held_out_from_training is None else {"held_out_from_training": fit.held_out_from_training}),
    }
    return _keep_entry(engine, index, model_id, Calibration.key(body_hash(template), fit.mode), entry)


def warnings_of_boost(fit: BoostFit) -> list[str]:
    """Return warnings about a fitted boost for its user."""
    warnings = []
    if not math.isnan(fit.gain.p) and (fit.gain.mean <= 0 or fit.gain.p > 0.05):
        warnings.append(_insignificant(fit.gain.mean, fit.gain.p))
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries got the engine's own order, without impacts")
    return warnings


def _insignificant(gain: float, p: float) -> str:
    return f"the cross-validated gain ({gain:+.4f}) is not significant (p = {p:.2g}). Calibrate on more queries"


MAX_MODEL_WEIGHT: Final = 0.9
"""Alpha above which boosts in the body hardly change the order, because the engine's score has the weight 1 - alpha."""


def lost_boosts(fit: Fit, body: Mapping[str, Any]) -> list[ScoreBoost]:
    """Return the boosts of a search body that hardly change the order, because the engine's score has a small weight.

    Boosts are left out if all their fields are signals with a weight.
    """
    if fit.alpha <= MAX_MODEL_WEIGHT:
        return []
    kept = {signal.field for signal in fit.weighted()}
    return [boost for boost in boosts_of(body) if not (boost.fields and kept.issuperset(boost.fields))]


def _warning_of_boosts(fit: Fit, boosts: Sequence[ScoreBoost]) -> str:
    names = ", ".join(
        f"{boost.clause} ({', '.join(boost.fields)})" if boost.fields else boost.clause for boost in boosts
    )
    known = {found.signal.field for found in fit.signals}
    fields = list(dict.fromkeys(field for boost in boosts for field in boost.fields if field not in known))
    signals = f"Fit numbers, dates and booleans as signals (--signals {','.join(fields)}), or set" if fields else "Set"
    return (
        f"the engine's score has a weight of only {1.0 - fit.alpha:.2g}, so these boosts of the body hardly change the "
        f"order: {names}. {signals} a minimum for the engine's score when you search or serve: --alpha "
        f"{MAX_MODEL_WEIGHT:g} gives it the weight {1.0 - MAX_MODEL_WEIGHT:g}"
    )


def warnings_of(fit: Fit, body: Mapping[str, Any] | None = None) -> list[str]:
    """Return warnings about a fit for its user. ``body`` is the search body template; None: the default one."""
    warnings = []
    if boosts := lost_boosts(fit, body or {}):
        warnings.append(_warning_of_boosts(fit, boosts))
    if fit.zero_share > MAX_ZERO_SHARE:
        warnings.append(
            f"{fit.zero_share:.0%} of the engine's hits share no word with the query from the model's point of view "
            "(q·d = 0): the text view or the analyzer differs from what the body searches. Train with the same fields, "
            "or with `engine:INDEX/FIELD` as the analyzer"
        )
    doubtful = [one for one in fit.signals if not one.signal.weight or one.missing > MAX_MISSING]
    warnings += [_warning_of(found) for found in doubtful]
    if fit.alpha == 0.0:
        order = "the order of engine and signals" if fit.weighted() else "the engine's order"
        warnings.append(
            f"no weight of the model gains more than a standard error over the engine's order on {fit.n_queries:,} "
            f"queries, so alpha is 0 ({order}). Calibrate on more queries, or train on more data"
        )
    elif not math.isnan(fit.gain_p) and (fit.gain <= 0 or fit.gain_p > 0.05):
        warnings.append(_insignificant(fit.gain, fit.gain_p))
    if fit.n_equal_scores > MAX_EQUAL_SCORES * fit.n_queries:
        warnings.append(
            f"the engine gave all candidates of {fit.n_equal_scores:,} of {fit.n_queries:,} queries the same score, or "
            "none that is a finite number, so its order there says nothing about relevance. Give a --body that scores "
            "by the query text"
        )
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries could not be reranked")
    return warnings


def _warning_of(found: FittedSignal) -> str:
    name = f"signal {found.signal.field!r}"
    if found.signal.weight:
        return f"{name}: {found.missing:.0%} of the candidates have no number in this field; they get the middle value"
    way = "lower" if found.signal.lower else "higher"
    return (
        f"{name}: no weight gains more than {SIGNAL_ERRORS:g} standard errors, so it is not used. Leave it out, "
        f"or try {found.signal.field}:{'higher' if found.signal.lower else 'lower'} if {way} is not better"
    )
