"""Fits alpha, how much the model counts beside the engine's own score, to an index, a body and a window.

It takes queries with known answers, from judgements or from links. Beside alpha it fits the weights of signals, numbers
of the documents, one after another on a grid: the engine is asked once a query, whatever is tried. Alpha alone is the
fit without signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from reranker.arrays import Bool, Float64
from reranker.config import parse_keywords
from reranker.engines.protocol import Engine
from reranker.engines.vectors import QueryVectors
from reranker.errors import InputError
from reranker.evaluation import evaluate_run, paired_test, standard_error
from reranker.formats import RejectSink, read_documents, read_links, read_qrels, read_queries
from reranker.models.ranking_model import Encoder
from reranker.progress import Progress
from reranker.releases import ControlRecord, update_control, utc_now
from reranker.rerank.calibration import Calibration, Probability
from reranker.rerank.ranking import blend, final_order
from reranker.rerank.search import Reranker
from reranker.rerank.signals import Signal
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer

T = TypeVar("T")
TITLE_WORDS = 12
"""Words of a title that make a query."""
MAX_QUERY_KEYWORDS = 100
"""Most random words that make a query: engines refuse queries of a thousand clauses."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A query and what is known of its answers: grades by document id, relevant above 0.

    ``excluded`` documents are left out of the ranking: the one the query was made from.
    """

    query: str
    grades: Mapping[str, float]
    excluded: frozenset[str] = frozenset()


def topics_of_qrels(qrels: Path, queries: Path, rejects: RejectSink | None = None) -> list[Topic]:
    """Return the queries that have at least one relevant document, in the order of the query file.

    `InputError` if no query has one, or a file cannot be read.
    """
    grades: dict[str, dict[str, float]] = {}
    for judgement in read_qrels(qrels, rejects=rejects):
        grades.setdefault(judgement.query_id, {})[judgement.document_id] = judgement.grade
    topics = [
        Topic(query.text, grades[query.id])
        for query in read_queries(queries, rejects=rejects)
        if any(grade > 0 for grade in grades.get(query.id, {}).values())
    ]
    if not topics:
        raise InputError(
            f"no query of {str(queries)!r} has a relevant document in {str(qrels)!r}: the query ids of both files must "
            "be the same, and relevant documents have a grade above 0"
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
) -> list[Topic]:
    """Return one topic a linking document: a short query made of it, the documents it links to as answers.

    The encoder's text view reads the documents; its analyzer, without stemming, cuts them into words. ``queries`` is
    ``title`` (the first words of the first field that has any) or ``keywords:K`` (K random words). `ConfigError` for
    another value of ``queries``; `InputError` if no link starts at a document of the file.
    """
    n_words = parse_keywords(queries, ("title",), MAX_QUERY_KEYWORDS)
    targets: dict[str, dict[str, float]] = {}
    for link in read_links(links, rejects=rejects):
        if link.source != link.target:
            targets.setdefault(link.source, {})[link.target] = 1.0
    config = encoder.analyzer.config
    # An engine is asked for whole words.
    analyzer = make_analyzer(AnalyzerConfig() if config.kind == "engine" else replace(config, stemmer=None))
    topics = []
    for document in read_documents(documents, rejects=rejects, id_field=id_field):
        if document.id in targets:
            text = _query_text(analyzer, encoder.view.texts(document.source), n_words, seed, document.id)
            if text:
                topics.append(Topic(text, targets[document.id], frozenset([document.id])))
    if not topics:
        raise InputError(
            f"no link of {str(links)!r} starts at a document of {str(documents)!r} with text: check that the ids match"
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


def sample(population: Sequence[T], limit: int, seed: int) -> list[T]:
    """Return at most ``limit`` of some things, drawn at random, in their order."""
    if len(population) <= limit:
        return list(population)
    places = np.random.default_rng(seed).choice(len(population), size=limit, replace=False)
    return [population[place] for place in np.sort(places).tolist()]


ALPHAS: Final[tuple[float, ...]] = (0.0, *(2.0**k / (1.0 + 2.0**k) for k in np.arange(-6, 6.5, 0.5).tolist()), 1.0)
"""The alphas tried: the odds alpha / (1 - alpha) in steps of a factor √2, and both ends. The engine's score may be
scaled by any boost, so equal steps of alpha itself would miss it."""
N_FOLDS: Final = 5
MAX_ZERO_SHARE: Final = 0.2
MAX_MISSING: Final = 0.5
"""Share of the candidates without a number from which on the reader of a fit is told."""


WEIGHTS: Final[tuple[float, ...]] = (0.0, *(2.0**k for k in range(-8, 2)))
"""The weights of a signal tried. BM25 / c(q) and f are of the order of 1."""
SIGNAL_ERRORS: Final = 2.0
"""Standard errors that are taken from what a signal's weight gains: signals are several, and with one of them every
seventh that carries nothing would count (of draws of noise in the shop of benchmarks/signals.py), with two every
fiftieth."""
MAX_ROUNDS: Final = 4
"""Rounds over alpha and the weights; most fits rest after two."""
Point = tuple[float, ...]
"""Alpha and the weight of each signal."""


class Gain(NamedTuple):
    """What one fit is worth above another on held-out queries.

    It is the difference of the means of the measure, with its standard error and the p of a paired t-test.
    """

    mean: float
    error: float
    p: float

    @classmethod
    def of(cls, held_out: Float64, other: Float64) -> Gain:
        """Return the gain of values, (n_topics,) float64, above those of the other fit."""
        test = paired_test(held_out, other)
        return cls(test.difference, test.standard_error, test.p_t_test)

    def to_json(self) -> dict[str, float | None]:
        """Return JSON values; a p that is not a number is null."""
        return {**self._asdict(), "p": None if math.isnan(self.p) else self.p}


@dataclass(frozen=True, slots=True)
class FittedSignal:
    """A signal with its weight, and ``gain``, what it adds to the others: the same fits less this signal.

    ``missing`` is the share of candidates without a number.
    """

    signal: Signal
    gain: Gain
    missing: float

    def to_json(self) -> dict[str, Any]:
        """Return what a release keeps of it."""
        return {**self.signal.to_json(), "gain": self.gain.to_json(), "missing": self.missing}


class FittedProbability(NamedTuple):
    """The probability of relevance by f, and how far it is off.

    ``error`` is the mean difference of what it says and the share that is relevant, in ten bins of equally many
    candidates, on held-out queries; ``share`` of all are relevant.
    """

    probability: Probability
    error: float
    share: float

    def to_json(self) -> dict[str, float]:
        """Return JSON values."""
        return {**self.probability._asdict(), "error": self.error, "share": self.share}


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_alpha` found: the best ``alpha`` over all queries, and means of the measure that it makes largest.

    The measure is ``nDCG@10`` (judgements) or ``AP`` (links); ``engine``, ``fitted`` and ``model`` are its means in the
    engine's own order, with alpha and the signals, and for the model alone; ``curve`` is (alpha, mean) without signals,
    and ``errors`` are the standard errors of what each of these gains over the engine. ``held_out`` is the mean of
    queries that had no part in choosing their alpha and weights (cross-validated in 5 parts), what to expect; ``gain``
    is that less the engine's, ``gain_p`` the p of a paired t-test. ``ceiling`` is the mean if the candidates were
    ordered perfectly: no reranker of this window does better. ``zero_share`` of the candidates have q·d = 0: they were
    found by words that the model's text view or analyzer does not see. ``n_fallbacks`` queries cannot be reranked.
    ``signals`` are all that were tried, those of weight 0 too, and ``signals_gain`` what they are worth together above
    alpha alone. ``probability`` is that of relevance by f, where it was wanted.
    """

    alpha: float
    measure: str
    n_queries: int
    engine: float
    fitted: float
    model: float
    held_out: float
    held_out_error: float
    gain: float
    gain_error: float
    gain_p: float
    ceiling: float
    zero_share: float
    n_fallbacks: int
    curve: tuple[tuple[float, float], ...]
    errors: tuple[float, ...]
    signals: tuple[FittedSignal, ...] = ()
    signals_gain: Gain | None = None
    probability: FittedProbability | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fit as JSON values, with signals and probability only where wanted; a p of NaN is null."""
        wanted = ("signals", "signals_gain", "probability")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in wanted}
        values["gain_p"] = None if math.isnan(self.gain_p) else self.gain_p
        if self.signals_gain is not None:
            values["signals"] = [signal.to_json() for signal in self.signals]
            values["signals_gain"] = self.signals_gain.to_json()
        if self.probability is not None:
            values["probability"] = self.probability.to_json()
        return values

    def weighted(self) -> tuple[Signal, ...]:
        """Return the signals that count."""
        return tuple(found.signal for found in self.signals if found.signal.weight)


class TopicWindow(NamedTuple):
    """The candidates of a topic: ids, the parts of their scores, (n,) float64, and the ids that are left out."""

    ids: list[str]
    model: Float64
    lexical: Float64
    scale: float
    kept: Bool
    signals: Float64
    """(n_signals, n) float64: first the numbers, NaN where there is none, and s of them once all windows are there."""
    is_empty: bool
    excluded: frozenset[str]

    def ranked(self, point: Point) -> list[str]:
        """Return the ids in final order, each once."""
        added = np.array(point[1:]) @ self.signals
        scores = blend(self.model, self.lexical, point[0], self.scale, added)
        if self.is_empty:
            scores[:] = np.nan
        return self.answers([self.ids[place] for place in final_order(scores, self.kept).tolist()])

    def answers(self, ranked: Sequence[str]) -> list[str]:
        """Return the ids that count, each once."""
        return list(dict.fromkeys(document for document in ranked if document not in self.excluded))


@dataclass(slots=True)
class Rankings:
    """The windows of some topics, named ``"0"``, ``"1"``, ... by their places, with counts on the way."""

    signals: tuple[Signal, ...]
    missing: tuple[float, ...] = ()
    """Share of the candidates without a number, of each signal."""
    windows: list[TopicWindow] = field(default_factory=list)
    perfect: dict[str, list[str]] = field(default_factory=dict)
    n_zero: int = 0
    n_scored: int = 0
    n_fallbacks: int = 0

    def run(self, point: Point) -> dict[str, list[str]]:
        """Return the ids of every topic, best first, with this alpha and these weights."""
        return {str(number): window.ranked(point) for number, window in enumerate(self.windows)}

    def make_knots(self) -> None:
        """Give the signals their knots, of all candidates, and the windows s in the place of the numbers."""
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
    """Ask the engine once a topic and return the candidates, to be ordered by any alpha and weights of the signals.

    ``signals`` have their kinds (`signals.typed`); the knots are made here, of all candidates. `InputError` for one
    that no candidate has a number of.
    """
    rankings = Rankings(signals)
    for number, topic in enumerate(topics):
        _rank_topic(reranker, topic, str(number), body, rankings)
        if progress is not None:
            progress(number + 1, len(topics))
    if signals:
        rankings.make_knots()
    return rankings


def _rank_topic(
    reranker: Reranker, topic: Topic, name: str, body: Mapping[str, Any] | None, rankings: Rankings
) -> None:
    window, query, kept = reranker.score_window(topic.query, body, rankings.signals)
    ids = [hit.id for hit in window.hits]
    numbers = np.array([signal.numbers(window.hits) for signal in rankings.signals]).reshape(
        len(rankings.signals), len(ids)
    )
    candidates = TopicWindow(
        ids, window.model, window.lexical, query.scale, kept, numbers, query.is_empty, topic.excluded
    )
    rankings.windows.append(candidates)
    best = sorted(ids, key=lambda document: -topic.grades.get(document, 0.0))
    rankings.perfect[name] = candidates.answers(best)
    if query.is_empty or window.n_unscored > reranker.settings.max_unscored * max(len(ids), 1):
        rankings.n_fallbacks += 1
    words_alone = QueryVectors(np.zeros_like(query.vectors.vector), query.vectors.ids, query.vectors.weights, 1.0)
    same_words = window.vectors.score(words_alone)
    rankings.n_zero += int((same_words == 0).sum())
    rankings.n_scored += int((~np.isnan(same_words)).sum())


class BlendSearch:
    """The measure of each topic by alpha and weights, each computed once, and the best of them for some topics."""

    def __init__(self, rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], measure: str) -> None:
        self._rankings, self._qrels, self._measure = rankings, qrels, measure
        self._known: dict[Point, Float64] = {}

    def values(self, point: Point) -> Float64:
        """Return the measure of each topic, (n_topics,) float64."""
        if point not in self._known:
            self._known[point] = _values(self._qrels, self._rankings.run(point), self._measure)
        return self._known[point]

    def best(self, topics: Bool) -> Point:
        """Return the point that is best for the topics of a mask, (n_topics,) bool, by coordinates.

        Alpha first, by `_best`, then each signal's weight, by `_surest`, each with the others held, until none moves.
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
        """Return each topic's value at the point that is best for the topics of the other parts, (n_topics,) float64.

        ``seed`` draws the parts; the signal of number ``without`` is left out of the points found, the others held.
        """

        def fitted(others: Bool) -> Float64:
            point = self.best(others)
            return self.values(point if without is None else changed(point, without + 1, 0.0))

        return _by_parts(len(self._rankings.windows), seed, fitted)


def changed(point: Point, place: int, value: float) -> Point:
    """Return the point with one value changed."""
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
    """Return the alpha with the largest mean measure, and what it is worth on queries it was not chosen on.

    Of equal means the smallest alpha wins, which stays nearest to the engine's order. Where it gains no more than a
    standard error over that order alpha is 0: so little is found by chance, and as often lost on other queries. The
    weights of ``signals`` (`signals.typed`) are found with it, by a stricter rule (`SIGNAL_ERRORS`). With
    ``probability``, f of the candidates and their judgements say how likely a candidate is relevant; one without a
    judgement is not.

    ``measure`` is one of `reranker.evaluation`; ``seed`` draws the parts of the cross-validation. `InputError`
    if there are fewer topics than 2 * `N_FOLDS`, or no candidate has a number of a signal; `EngineError` if the engine
    does not answer.
    """
    if len(topics) < 2 * N_FOLDS:
        raise InputError(f"{len(topics)} queries are too few to fit alpha on: at least {2 * N_FOLDS} are needed")
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
    )


def fit_probability(rankings: Rankings, qrels: Mapping[str, Mapping[str, float]], seed: int) -> FittedProbability:
    """Return the probability of relevance by f, of all candidates that count and have an f.

    `InputError` if f does not tell relevant candidates from others.
    """
    scores, relevant, topics = [], [], []
    for number, window in enumerate(rankings.windows):
        grades = qrels[str(number)]
        known = np.isfinite(window.model) & np.array([name not in window.excluded for name in window.ids], dtype=bool)
        scores.append(window.model[known])
        relevant.append(np.array([grades.get(name, 0.0) > 0 for name in window.ids], dtype=np.float64)[known])
        topics.append(np.full(known.sum(), number))
    f, y, topic = np.concatenate(scores), np.concatenate(relevant), np.concatenate(topics)
    told = np.empty(len(f))
    part = (np.random.default_rng(seed).permutation(len(rankings.windows)) % N_FOLDS)[topic]
    for fold in range(N_FOLDS):
        told[part == fold] = _logistic(f[part != fold], y[part != fold]).of(f[part == fold])
    bins = np.array_split(np.argsort(told, kind="stable"), min(10, len(told)))
    error = float(np.mean([abs(told[places].mean() - y[places].mean()) for places in bins]))
    return FittedProbability(_logistic(f, y), error, float(y.mean()))


def _logistic(f: Float64, relevant: Float64) -> Probability:
    """Return the logistic regression of ``relevant``, (n,) float64 of 0 and 1, on f, (n,) float64, by Newton's steps.

    One relevant and one other candidate are added in the mean (Platt 1999), so that no slope is infinite.
    """
    middle, spread = (float(f.mean()), float(f.std())) if len(f) else (0.0, 0.0)
    if not 0 < relevant.sum() < len(relevant) or spread == 0:
        raise InputError(
            "a probability of relevance cannot be fitted: among the candidates some must be relevant, some not, and "
            "their scores must differ; calibrate on other queries, or leave out --probability"
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
            "a probability of relevance cannot be fitted: the model's score does not rise with relevance on these "
            "queries; train on more, or leave out --probability"
        )
    return Probability(float(weights[0] / spread), float(weights[1] - weights[0] * middle / spread))


def _values(qrels: Mapping[str, Mapping[str, float]], run: Mapping[str, Sequence[str]], measure: str) -> Float64:
    """Return the measure of each topic, (n,) float64."""
    depth = int(measure.partition("@")[2]) if "@" in measure else None
    cut = {name: ids[:depth] for name, ids in run.items()}
    values = evaluate_run(qrels, cut, [measure])[measure]
    return np.array([values[str(number)] for number in range(len(qrels))])


def _best(values: Float64) -> int:
    """Return the row of (n_alphas, n_topics) values to take: the best, the first where that gains next to nothing."""
    best = int(np.argmax(values.mean(axis=1)))
    gains = values[best] - values[0]
    return best if gains.mean() > standard_error(gains) else 0


def _surest(values: Float64) -> int:
    """Return the row of (n_weights, n_topics) values that gains most over the first, less `SIGNAL_ERRORS` of its own.

    The first where no row gains more than these standard errors; of equal ones the smallest weight.
    """
    bounds = [gains.mean() - SIGNAL_ERRORS * standard_error(gains) for gains in values - values[0]]
    return int(np.argmax(bounds))


def cross_validated(values: Float64, seed: int) -> Float64:
    """Return each topic's value under the alpha that is best for the topics of the other parts, (n_topics,) float64.

    ``values`` are (n_alphas, n_topics) float64, those of the engine's order first.
    """
    return _by_parts(values.shape[1], seed, lambda others: values[_best(values[:, others])])


def _by_parts(n_topics: int, seed: int, fitted: Callable[[Bool], Float64]) -> Float64:
    """Return each topic's value, fitted to the topics of the other parts, (n_topics,) float64.

    ``fitted`` takes a mask of topics, (n_topics,) bool, and returns the values of all by what is best for these.
    """
    part = np.random.default_rng(seed).permutation(n_topics) % N_FOLDS
    held_out = np.empty(n_topics)
    for fold in range(N_FOLDS):
        inside = part == fold
        held_out[inside] = fitted(~inside)[inside]
    return held_out


def keep_in_release(
    engine: Engine, index: str, model_id: str, template_hash: str, window: int, fit: Fit
) -> ControlRecord:
    """Write the fitted alpha, and the signals that count, into the model's release and return the stored record.

    `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "alpha": fit.alpha,
        "measure": fit.measure,
        "queries": fit.n_queries,
        "engine": round(fit.engine, 6),
        "held_out": round(fit.held_out, 6),
        "fitted": utc_now(),
        **({"signals": [signal.to_json() for signal in signals]} if (signals := fit.weighted()) else {}),
        **({"probability": list(fit.probability.probability)} if fit.probability else {}),
    }

    def change(record: ControlRecord) -> ControlRecord:
        release = record.release(model_id)
        kept = {**release.calibration, Calibration.key(template_hash, window): entry}
        return record.with_release(replace(release, calibration=kept))

    return update_control(engine, index, change)


def warnings_of(fit: Fit) -> list[str]:
    """Return what the reader of a fit should worry about."""
    warnings = []
    if fit.zero_share > MAX_ZERO_SHARE:
        warnings.append(
            f"{fit.zero_share:.0%} of the engine's hits share no word with the query as the model sees both (q·d = 0): "
            "the text view or the analyzer differs from what the body searches; train with the same fields, or with "
            "`engine:INDEX/FIELD` as the analyzer"
        )
    doubtful = [one for one in fit.signals if not one.signal.weight or one.missing > MAX_MISSING]
    warnings += [_warning_of(found) for found in doubtful]
    if fit.alpha == 0.0:
        order = "the order of engine and signals" if fit.weighted() else "the engine's order"
        warnings.append(
            f"no weight of the model gains more than a standard error over the engine alone on {fit.n_queries:,} "
            f"queries: alpha is 0, {order}; calibrate on more queries, or train on more"
        )
    elif not math.isnan(fit.gain_p) and (fit.gain <= 0 or fit.gain_p > 0.05):
        warnings.append(
            f"the gain on held-out queries ({fit.gain:+.4f}) is not significant (p = {fit.gain_p:.2g}): "
            "calibrate on more queries"
        )
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries could not be reranked")
    return warnings


def _warning_of(found: FittedSignal) -> str:
    name = f"signal {found.signal.field!r}"
    if found.signal.weight:
        return f"{name}: {found.missing:.0%} of the candidates have no number there; they count as the middle"
    way = "lower" if found.signal.lower else "higher"
    return (
        f"{name}: no weight gains more than {SIGNAL_ERRORS:g} standard errors, so it does not count; leave it out, or "
        f"say {found.signal.field}:{'higher' if found.signal.lower else 'lower'} if {way} is not the better way"
    )
