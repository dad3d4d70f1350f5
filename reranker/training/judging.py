"""The stage that compares the model with lexical baselines, on validation queries that chose nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reranker.arrays import Float32
from reranker.baselines.comparison import (
    SystemComparison,
    compare_systems,
    encoded_corpus,
    experiment_of,
    lexical_task,
    remembering,
    tuning_task,
)
from reranker.baselines.fitted import REMEMBERING, fit_baselines
from reranker.lexical.tuning import TunedLexical
from reranker.models.ranking_model import RankingModel
from reranker.training.context import keywords_of
from reranker.training.learning import LearnedPart
from reranker.training.lexical_choice import LexicalChoice
from reranker.training.run import Division, TrainingRun

BASELINES: Final = ("tfidf", "bm25")
"""Systems that a model is compared with; one with a memory also with `REMEMBERING`."""


def compared(
    run: TrainingRun,
    lexical: LexicalChoice,
    division: Division,
    learned: LearnedPart,
    forms: Mapping[str, TunedLexical] | None,
    model: RankingModel,
    given: Float32 | None = None,
) -> SystemComparison:
    """Return the model compared with tuned lexical baselines on the validation queries that judge.

    Queries of links are whole documents, or keywords where only those were trained on. The baselines are tuned on the
    training side; ``forms`` that were tuned on such queries, for the lexical part, are not tuned a second time.
    ``given`` is what the model's vector field stores of each document, (n_documents, K) float32.
    """
    run.listener.say("comparing with the lexical baselines")
    side, train, pool, seed = division.judging, division.split.train, division.split.pool, run.config.seed
    data, rng = lexical.reading.data, run.streams.named("comparison")
    names: tuple[str, ...] = BASELINES
    n_words, asked = None, () if side.texts is not None else side.query_ids
    corpus = encoded_corpus(model, data.ids, data.counts, asked, given)
    if side.texts is not None:
        task, tuning = side.task(pool, [], ()), train.task(pool, [], ())
        if model.encoder.memory is not None:
            known = train.preferences
            corpus = remembering(model, corpus, known.links, known.remembered, train.texts or {}, rng)
            names = (*BASELINES, REMEMBERING)
    else:
        links, schedule = train.links(), learned.schedule
        task, tuning = side.task(pool, links, set(corpus.query_row_of)), tuning_task(links, corpus.ids, pool)
        n_words = keywords_of(schedule) if schedule.keyword_share == 1 else None
    # The tuning queries, of which there may be one for each document, are not kept while the systems are evaluated.
    baselines = fit_baselines(
        names, corpus.lexical, lexical_task(model, corpus, tuning, train.texts, n_words, seed), rng, known=forms
    )
    experiment = experiment_of(model, corpus, task, side.texts, n_words, seed)
    return compare_systems(experiment.model, baselines, experiment.evaluation, rng)
