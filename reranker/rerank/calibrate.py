"""Fits alpha, how much the model counts beside the engine's own score, to an index, a body and a window.

It takes queries with known answers, from judgements or from links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from reranker.arrays import Float64
from reranker.artifacts import Encoder
from reranker.engines.base import Engine
from reranker.engines.vectors import QueryVectors
from reranker.errors import ConfigError, InputError
from reranker.evaluation import evaluate_run, paired_test, standard_error
from reranker.formats import RejectSink, read_documents, read_links, read_qrels, read_queries
from reranker.progress import Progress
from reranker.releases import ControlRecord, update_control, utc_now
from reranker.rerank.ranking import Calibration, blend, final_order
from reranker.rerank.reranker import Reranker
from reranker.text.analyzers import Analyzer, AnalyzerConfig, make_analyzer

TITLE_WORDS = 12
"""Words of a title that make a query; engines refuse queries of a thousand clauses."""


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
    links: Path, documents: Path, encoder: Encoder, queries: str, seed: int, rejects: RejectSink | None = None
) -> list[Topic]:
    """Return one topic a linking document: a short query made of it, the documents it links to as answers.

    The encoder's text view reads the documents; its analyzer, without stemming, cuts them into words. ``queries`` is
    ``title`` (the first words of the first field that has any) or ``keywords:K`` (K random words). `ConfigError` for
    another value of ``queries``; `InputError` if no link starts at a document of the file.
    """
    n_words = parse_link_queries(queries)
    targets: dict[str, dict[str, float]] = {}
    for link in read_links(links, rejects=rejects):
        if link.source != link.target:
            targets.setdefault(link.source, {})[link.target] = 1.0
    config = encoder.analyzer.config
    # An engine is asked for whole words.
    analyzer = make_analyzer(AnalyzerConfig() if config.kind == "engine" else replace(config, stemmer=None))
    topics = []
    for document in read_documents(documents, rejects=rejects):
        if document.id in targets:
            text = _query_text(analyzer, encoder.view.texts(document.source), n_words, seed, document.id)
            if text:
                topics.append(Topic(text, targets[document.id], frozenset([document.id])))
    if not topics:
        raise InputError(
            f"no link of {str(links)!r} starts at a document of {str(documents)!r} with text: check that the ids match"
        )
    return topics


def parse_link_queries(text: str) -> int | None:
    """Return None for ``title``, K for ``keywords:K``; `ConfigError` for anything else."""
    if text == "title":
        return None
    kind, _, number = text.partition(":")
    if kind == "keywords" and number.isdecimal() and 0 < int(number) <= 100:
        return int(number)
    raise ConfigError(f"--queries {text!r} is not legal: write title, or keywords:K with K from 1 to 100")


def _query_text(analyzer: Analyzer, texts: Sequence[str], n_words: int | None, seed: int, name: str) -> str:
    tokens = analyzer.tokens(list(texts))
    if n_words is None:
        return " ".join(next((words[:TITLE_WORDS] for words in tokens if words), []))
    words = sorted({word for field in tokens for word in field})
    if len(words) > n_words:
        rng = np.random.default_rng([seed, *name.encode("utf-8", "surrogatepass")])
        words = [words[place] for place in rng.choice(len(words), size=n_words, replace=False)]
    return " ".join(words)


def sample(topics: Sequence[Topic], limit: int, seed: int) -> list[Topic]:
    """Return at most ``limit`` topics, drawn at random, in their order."""
    if len(topics) <= limit:
        return list(topics)
    places = np.random.default_rng(seed).choice(len(topics), size=limit, replace=False)
    return [topics[place] for place in np.sort(places).tolist()]


ALPHAS: Final[tuple[float, ...]] = (0.0, *(2.0**k / (1.0 + 2.0**k) for k in np.arange(-6, 6.5, 0.5).tolist()), 1.0)
"""The alphas tried: the odds alpha / (1 - alpha) in steps of a factor √2, and both ends. The engine's score may be
scaled by any boost, so equal steps of alpha itself would miss it."""
N_FOLDS: Final = 5
MAX_ZERO_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_alpha` found: the best ``alpha`` over all queries, and means of the measure that it makes largest.

    The measure is ``nDCG@10`` (judgements) or ``AP`` (links); ``engine``, ``fitted`` and ``model`` are its means in the
    engine's own order, with alpha, and for the model alone; ``curve`` is (alpha, mean), and ``errors`` are the standard
    errors of what each of these gains over the engine. ``held_out`` is the mean of
    queries that had no part in choosing their alpha (cross-validated in 5 parts), what to expect; ``gain`` is that less
    the engine's, ``gain_p`` the p of a paired t-test. ``ceiling`` is the mean if the candidates were ordered perfectly:
    no reranker of this window does better. ``zero_share`` of the candidates have q·d = 0: they were found by words that
    the model's text view or analyzer does not see. ``n_fallbacks`` queries cannot be reranked.
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

    def to_json(self) -> dict[str, Any]:
        """Return the fit as JSON values; a p that is not a number is null."""
        values = asdict(self)
        return values | {"gain_p": None if math.isnan(self.gain_p) else self.gain_p}


@dataclass(slots=True)
class Rankings:
    """The ids of every query by alpha, and counts on the way."""

    by_alpha: dict[float, dict[str, list[str]]]
    perfect: dict[str, list[str]]
    n_zero: int = 0
    n_scored: int = 0
    n_fallbacks: int = 0


def rank_topics(
    reranker: Reranker, topics: Sequence[Topic], body: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> Rankings:
    """Ask the engine once a topic and return the candidates' order for every alpha.

    Topics are named by their place, ``"0"``, ``"1"``, ....
    """
    rankings = Rankings({alpha: {} for alpha in ALPHAS}, {})
    for number, topic in enumerate(topics):
        _rank_topic(reranker, topic, str(number), body, rankings)
        if progress is not None:
            progress(number + 1, len(topics))
    return rankings


def _rank_topic(
    reranker: Reranker, topic: Topic, name: str, body: Mapping[str, Any] | None, rankings: Rankings
) -> None:
    window, query, kept = reranker.score_window(topic.query, body)
    ids = [hit.id for hit in window.hits]

    def answers(ranked: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(document for document in ranked if document not in topic.excluded))

    rankings.perfect[name] = answers(sorted(ids, key=lambda document: -topic.grades.get(document, 0.0)))
    if query.is_empty or window.n_unscored > reranker.settings.max_unscored * max(len(ids), 1):
        rankings.n_fallbacks += 1
    words_alone = QueryVectors(np.zeros_like(query.vectors.vector), query.vectors.ids, query.vectors.weights, 1.0)
    same_words = window.vectors.score(words_alone)
    rankings.n_zero += int((same_words == 0).sum())
    rankings.n_scored += int((~np.isnan(same_words)).sum())
    for alpha, ranking_of in rankings.by_alpha.items():
        scores = blend(window.model, window.lexical, alpha, query.scale)
        if query.is_empty:
            scores[:] = np.nan
        ranking_of[name] = answers([ids[place] for place in final_order(scores, kept).tolist()])


def fit_alpha(
    reranker: Reranker, topics: Sequence[Topic], measure: str, body: Mapping[str, Any] | None = None, *,
    seed: int = 0, progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """Return the alpha with the largest mean measure, and what it is worth on queries it was not chosen on.

    Of equal means the smallest alpha wins, which stays nearest to the engine's order. Where it gains no more than a
    standard error over that order alpha is 0: so little is found by chance, and as often lost on other queries.

    ``measure`` is one of `reranker.evaluation`; ``seed`` draws the parts of the cross-validation. `InputError`
    if there are fewer topics than 2 * `N_FOLDS`; `EngineError` if the engine does not answer.
    """
    if len(topics) < 2 * N_FOLDS:
        raise InputError(f"{len(topics)} queries are too few to fit alpha on: at least {2 * N_FOLDS} are needed")
    rankings = rank_topics(reranker, topics, body, progress)
    qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
    values = np.stack([_values(qrels, rankings.by_alpha[alpha], measure) for alpha in ALPHAS])
    means = values.mean(axis=1)
    best = _best(values)
    held_out = cross_validated(values, seed)
    test = paired_test(held_out, values[0])
    return Fit(
        alpha=ALPHAS[best], measure=measure, n_queries=len(topics),
        engine=float(means[0]), fitted=float(means[best]), model=float(means[-1]),
        held_out=float(held_out.mean()), held_out_error=standard_error(held_out),
        gain=test.difference, gain_error=test.standard_error, gain_p=test.p_t_test,
        ceiling=float(_values(qrels, rankings.perfect, measure).mean()),
        zero_share=rankings.n_zero / rankings.n_scored if rankings.n_scored else 0.0,
        n_fallbacks=rankings.n_fallbacks,
        curve=tuple(zip(ALPHAS, means.tolist(), strict=True)),
        errors=tuple(standard_error(gains) for gains in values - values[0]),
    )  # fmt: skip


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


def cross_validated(values: Float64, seed: int) -> Float64:
    """Return each topic's value under the alpha that is best for the topics of the other parts, (n_topics,) float64.

    ``values`` are (n_alphas, n_topics) float64, those of the engine's order first.
    """
    n_topics = values.shape[1]
    part = np.random.default_rng(seed).permutation(n_topics) % N_FOLDS
    held_out = np.empty(n_topics)
    for fold in range(N_FOLDS):
        inside = part == fold
        held_out[inside] = values[_best(values[:, ~inside]), inside]
    return held_out


def keep_in_release(
    engine: Engine, index: str, model_id: str, template_hash: str, window: int, fit: Fit
) -> ControlRecord:
    """Write the fitted alpha into the model's release and return the stored record.

    `InputError` if the model has no release for the index; `EngineError` if the record cannot be written.
    """
    entry = {
        "alpha": fit.alpha, "measure": fit.measure, "queries": fit.n_queries,
        "engine": round(fit.engine, 6), "held_out": round(fit.held_out, 6), "fitted": utc_now(),
    }  # fmt: skip

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
    if fit.alpha == 0.0:
        warnings.append(
            f"no weight of the model gains more than a standard error over the engine alone on {fit.n_queries:,} "
            "queries: alpha is 0, the engine's order; calibrate on more queries, or train on more"
        )
    elif not math.isnan(fit.gain_p) and (fit.gain <= 0 or fit.gain_p > 0.05):
        warnings.append(
            f"the gain on held-out queries ({fit.gain:+.4f}) is not significant (p = {fit.gain_p:.2g}): "
            "calibrate on more queries"
        )
    if fit.n_fallbacks:
        warnings.append(f"{fit.n_fallbacks} of {fit.n_queries} queries could not be reranked")
    return warnings
