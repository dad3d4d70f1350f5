"""The models that are trained: U^T V + I, and q.d only; and training that starts from such models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from reranker.arrays import Float32
from reranker.errors import ConfigError, TrainingError
from reranker.models.ranking_model import RankingModel
from reranker.training.config import IDENTITY_SCALE, KEPT_NAMES, Schedule, TrainConfig
from reranker.training.context import ShortQueries, TrainedParameters, TrainingContext
from reranker.training.trainer import Trainer, TrainingCheckpoint, TrainResult


def words_only() -> TrainedParameters:
    """Return q.d without a learned part: no rows, one dimension (engines cannot map a vector of none)."""
    nothing = np.zeros((0, 1), np.float32)
    result = TrainResult(nothing, nothing, 0, None)
    return TrainedParameters(nothing, nothing, result, scale=0.0)


def fit_low_rank(context: TrainingContext, first: TrainedParameters | None = None) -> TrainedParameters:
    """Return U^T V + I by SGD, with a U for short queries if the schedule has one.

    Given the ``first`` run, on the training side, the model is trained for as many epochs, with its weights.
    """
    learned = _fit(context, first)
    if not context.schedule.short_apart or not learned.scale:
        return learned
    return replace(learned, short=_fit_short(context, learned, first.short if first else None))


SHORT_EPOCHS = 60
SHORT_STEPS = 500_000
"""Steps of an epoch of short queries at most."""
SHORT_RATE = 0.2
SHORT_IDENTITY = 1.0
"""Weight of q.d relative to the margin for short queries."""


def _fit_short(context: TrainingContext, learned: TrainedParameters, first: ShortQueries | None) -> ShortQueries | None:
    """Return the U of queries of a few words, trained from U with V fixed; None if nothing can validate it.

    The vectors of documents were learned with whole documents as queries and do not change. Each step draws other words
    of a query, so that the last epoch is the best one. Two copies of U learn at the same time and are averaged
    (`Trainer`), which takes less time on two cores. Hard negatives are looked up once: with V fixed they hardly change.
    If short queries learn nothing, the result is U itself, at the scale that is best for them.
    """
    validators = context.short_validators
    if not validators and first is None:
        return None
    V = learned.result.V
    schedule = replace(
        context.schedule,
        epochs=SHORT_EPOCHS,
        keyword_share=1.0,
        query_dropout=0.0,
        freeze_documents=True,
        rate_start=SHORT_RATE,
        identity_scale=SHORT_IDENTITY,
        max_steps=SHORT_STEPS,
    )
    trainer = trainer_of(context, schedule, None, context.checkpoint_of(short=True), halves=True)
    trainer.progress = partial(context.progress, "training short queries")
    trainer.look_ups = frozenset({0})
    try:
        U = trainer.run(learned.result.U.copy(), V).U
    except TrainingError as error:
        context.say(f"short queries use the U of all queries: {error}")
        return None
    if first is not None:
        scale = first.scale
    else:
        scale = context.best_scale(U, V, SHORT_IDENTITY, validators)[1]
    # V is served multiplied by the root of learned.scale / a: U is multiplied by the rest of the scale.
    factor = np.float32(scale / SHORT_IDENTITY / np.sqrt(learned.scale / context.schedule.identity_scale))
    return ShortQueries(np.ascontiguousarray(U * factor), scale)


def _fit(context: TrainingContext, first: TrainedParameters | None) -> TrainedParameters:
    schedule = context.schedule
    if first is not None and first.result.best_epoch < schedule.epochs:
        schedule = replace(schedule, epochs=max(first.result.best_epoch, 1))

    def evaluate(U: Float32, V: Float32) -> float:
        return context.best_scale(U, V, schedule.identity_scale)[0]

    checkpoint = context.checkpoint_of(short=False)
    trainer = trainer_of(context, schedule, evaluate if context.validators else None, checkpoint)
    trainer.progress = partial(context.progress, "training")
    result = trainer.run(*context.start(schedule))
    scale = first.scale if first else context.best_scale(result.U, result.V, schedule.identity_scale)[1]
    # The model is served as scale UᵀV + I, divided by the margin's a. Each side takes the root of the factor, so that
    # rows of both keep similar lengths. If V is frozen it must stay that of the base, and U takes the whole factor.
    a = schedule.identity_scale
    v_factor = np.float32(1 / np.sqrt(a) if schedule.freeze_documents else np.sqrt(scale / a))
    u_factor = v_factor * np.float32(scale) if schedule.freeze_documents else v_factor
    U = np.ascontiguousarray(result.U * u_factor)
    V = np.ascontiguousarray(result.V * v_factor)
    return TrainedParameters(U, V, result, scale=scale)


def trainer_of(
    context: TrainingContext,
    schedule: Schedule,
    evaluate: Callable[[Float32, Float32], float] | None = None,
    checkpoint: TrainingCheckpoint | None = None,
    *,
    halves: bool = False,
) -> Trainer:
    """Return the SGD of the context's problem by a schedule, from the context's random numbers."""
    return Trainer(
        context.problem,
        schedule,
        context.fresh_rng(),
        halves=halves,
        evaluate=evaluate,
        nearest=context.nearest,
        checkpoint=checkpoint,
        say=context.say,
    )


def warm_start(base: RankingModel, schedule: Schedule, of_texts: bool) -> tuple[Float32, Float32]:
    """Return U (for texts that of short queries) and V of a (UᵀV + I) from a served UᵀV + I: times the root of a."""
    factor = np.float32(np.sqrt(schedule.identity_scale))
    U = np.array(base.U_short if of_texts and base.U_short is not None else base.U, dtype=np.float32) * factor
    return U, np.array(base.encoder.V, np.float32) * factor


def config_from(base: RankingModel, config: TrainConfig) -> TrainConfig:
    """Return the settings with dim of the model to start from; `ConfigError` if it does not fit."""
    if not base.identity:
        raise ConfigError("the model to start from does not have q.d in its score: train without that model")
    if not base.has_shared_vocabulary:
        raise ConfigError("the model to start from has two vocabularies: start from one trained on documents and links")
    n_rows, dim = base.U.shape
    if config.query_side_only and not n_rows and base.word_encoder is None:
        raise ConfigError(
            "the model to start from is a lexical score, which has no query side to train: train both sides, or start "
            "from a model with a learned part or with given vectors"
        )
    return replace(config, dim=dim)


def identity_scale_of(base: RankingModel, *, query_side_only: bool, asks_texts: bool) -> float:
    """Return the weight of q.d that a model to start from was trained with; `IDENTITY_SCALE` if that is unknown.

    With another one its rows would exceed the cap on their norm. ``asks_texts``: the queries of training are texts, not
    documents.
    """
    identity: float = base.training.get("schedule", {}).get(KEPT_NAMES["identity_scale"]) or IDENTITY_SCALE
    keeps_memory = query_side_only if base.encoder.short_lexical is None else asks_texts
    if keeps_memory:
        identity /= base.training.get("memory_factor", 1.0)  # U is trained with the rows that have a memory
    return identity
