"""From a model that is there to the parameters of a run, and back to a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from reranker.artifacts import RankingModel
from reranker.errors import ConfigError
from reranker.models.forms import LINEAR
from reranker.training.config import Schedule, TrainConfig
from reranker.training.trainer import TrainResult

Float32 = npt.NDArray[np.float32]


def config_from(base: RankingModel, config: TrainConfig) -> TrainConfig:
    """Return the settings with those that the model to start from has decided: dim, tied, max_rows.

    Raises
    ------
    ConfigError
        If the model does not fit the settings, or its form cannot be trained on.
    """
    check_trainable(base)
    if bool(base.identity) != config.identity:
        has, option = ("has", "--identity") if base.identity else ("does not have", "--no-identity")
        raise ConfigError(f"the model to start from {has} q.d in its score: train with {option}, or without that model")
    if not base.has_shared_vocabulary:
        raise ConfigError("the model to start from has two vocabularies: start from one trained on documents and links")
    if config.query_side_only and base.scorer.is_tied:
        raise ConfigError(
            "the model to start from is tied (U = V), so that its query side cannot be trained alone: train both "
            "sides, or start from an untied model"
        )
    if config.model_class not in ("low_rank", "tied"):
        raise ConfigError(
            f"model_class is {config.model_class!r}, and training goes on from low_rank and tied models alone: leave "
            f"model_class out, or the model to start from",
            value=config.model_class,
        )
    n_rows, dim = base.U.shape
    tied = base.scorer.is_tied
    return replace(config, dim=dim, tied=tied, model_class="tied" if tied else "low_rank", max_rows=n_rows)


def check_trainable(base: RankingModel) -> None:
    """Raise `ConfigError` for a model that training cannot start from.

    Steps change Vd as a sum of the words' rows; in the other forms a document's vector is no such sum.
    """
    form = base.encoder.form
    if form != LINEAR:
        raise ConfigError(
            f"the model to start from has the document form {form!r}, and training (of the query side alone, too) goes "
            f"on from linear models only: train anew on all the evidence, or retrain from a base of --model-class "
            f"low_rank or tied",
            form=form,
        )


def warm_start(base: RankingModel, schedule: Schedule) -> tuple[Float32, Float32]:
    """Return U and V of the margin's scale, a (UᵀV + I), from a served model's UᵀV + I: both times the root of a."""
    factor = np.float32(np.sqrt(schedule.margin_identity or 1.0))
    U = np.array(base.U, dtype=np.float32) * factor
    return (U, U) if base.scorer.is_tied else (U, np.array(base.encoder.V, np.float32) * factor)


def served_parameters(result: TrainResult, schedule: Schedule, scale: float) -> tuple[Float32, Float32]:
    """Return U and V of the model served, scale UᵀV + I: the margin's a divided out.

    Both sides take a half of the change, so that their rows stay of one length. Where V was frozen it is that of the
    model started from, and U takes the whole of the scale.
    """
    a = schedule.margin_identity or 1.0
    if schedule.freeze_documents:
        root = np.float32(1 / np.sqrt(a))
        return np.ascontiguousarray(result.U * (root * np.float32(scale))), np.ascontiguousarray(result.V * root)
    factor = np.float32(np.sqrt(scale / a))
    U = np.ascontiguousarray(result.U * factor)
    return U, U if result.U is result.V else np.ascontiguousarray(result.V * factor)
