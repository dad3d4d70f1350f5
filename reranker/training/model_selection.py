"""Choosing a model class by validation, and comparing the model with tuned lexical baselines.

The rule of ``auto``: the class with the fewest parameters that is not significantly worse than the one with the best
validation MAP (paired t-test over validation queries, p < .01).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from reranker.artifacts import RankingModel
from reranker.baselines.comparison import Comparison, compare_systems
from reranker.baselines.experiment import (
    lexical_task,
    link_experiment,
    read_corpus,
    remembering,
    text_experiment,
    text_task,
    tuning_task,
)
from reranker.baselines.tuning import REMEMBERING, TunedLexical, fit_baselines
from reranker.evaluation.measures import paired_test
from reranker.formats import IgnoringSink
from reranker.models.model_classes import AUTO, MODEL_CLASSES
from reranker.training.config import Schedule
from reranker.training.context import TrainedParameters, TrainingContext
from reranker.training.training_set import Split

BASELINES = ("tfidf", "bm25")
"""What a model is compared with; one with a memory also with `REMEMBERING`."""
LEVEL: Final = 0.01
RULE: Final = f"the fewest parameters among those not worse than the best at p < {LEVEL:g} (paired t-test of AP)"


def choose(context: TrainingContext) -> tuple[TrainedParameters, dict[str, Any]]:
    """Return the class that ``auto`` takes, and what its model keeps of the choice (no times: equal runs, equal bytes).

    Each class may make at most as many passes over the preferences as the schedule has epochs, from its own start;
    that of ``cubic`` is where ``low_rank`` ended. ``s2net`` looks at as many pairs of a query and a document.
    """
    tried = [context.learn(name) for name in MODEL_CLASSES]
    chosen, why = simplest(tried)
    first = tried[0]
    context.say(f"{'class':<10} {'MAP':>6} {'parameters':>12} {'seconds':>8} {'- ' + first.name:>9} {'p':>8}")
    rows = []
    for each in tried:
        test = paired_test(each.values, first.values)
        row = {
            "class": each.name,
            "map": float(each.values.mean()),
            "parameters": each.n_parameters,
            "difference": test.difference,
            "p": test.p_t_test,
        }
        rows.append(row)
        beside = f"{row['difference']:>+9.4f} {row['p']:>8.2g}" if each is not first else ""
        line = f"{each.name:<10} {row['map']:>6.4f} {each.n_parameters:>12,} {each.seconds:>8.1f} {beside}"
        context.say(line.rstrip())
    context.say(why)
    return chosen, {"tried": rows, "chosen": chosen.name, "why": why, "rule": RULE}


def simplest(tried: Sequence[TrainedParameters]) -> tuple[TrainedParameters, str]:
    """Return the class of the fewest parameters that is not significantly worse than the best, and why."""
    best = max(tried, key=lambda each: each.values.mean())
    for each in sorted(tried, key=lambda each: each.n_parameters):
        test = paired_test(each.values, best.values)
        if each is best:
            break
        if test.p_t_test >= LEVEL:
            return each, (
                f"{AUTO} takes {each.name}: {test.difference:+.4f} MAP against the best, {best.name}, cannot be told "
                f"from none (p = {test.p_t_test:.3f}), with fewer parameters. Rule: {RULE}."
            )
    return best, (f"{AUTO} takes {best.name}: the best, and every class with fewer parameters is worse. Rule: {RULE}.")


def compare_on_validation(
    model: RankingModel, documents: Path, split: Split, schedule: Schedule, seed: int, rng: np.random.Generator,
    known: Mapping[str, TunedLexical] | None = None,
) -> Comparison:  # fmt: skip
    """Return the model beside tuned lexical baselines on the validation queries.

    Queries of links are whole documents, or keywords where only those were trained on. The baselines are tuned on the
    training side, but for those of ``known``: the forms of a lexical part that was tuned on such queries alone.
    """
    side, train = split.valid, split.train
    names: tuple[str, ...] = BASELINES
    if side.texts is not None:
        task = side.task(split.pool, [], ())
        corpus = read_corpus(documents, model, (), IgnoringSink())
        if model.encoder.memory is not None:
            relevant = ((p.query, p.better, p.remembered) for p in train.preferences)
            corpus = remembering(model, corpus, relevant, train.texts or {}, rng)
            names = (*BASELINES, REMEMBERING)
        experiment = text_experiment(model, corpus, task, side.texts)
        tuning = text_task(model, corpus, train.task(split.pool, [], ()), train.texts or {})
    else:
        links = train.links()
        corpus = read_corpus(documents, model, {*side.query_ids, *train.query_ids}, IgnoringSink())
        task = side.task(split.pool, links, set(corpus.sources))
        words = (schedule.keyword_min + schedule.keyword_max) // 2 if schedule.keyword_share == 1 else None
        experiment = link_experiment(model, corpus, task, words, seed)
        tuning = lexical_task(model, corpus, tuning_task(links, links, corpus.ids, split.pool), words, seed)
    baselines = fit_baselines(names, corpus.lexical, tuning, rng, known=known)
    return compare_systems(experiment.model, baselines, experiment.evaluation, rng)
