"""What every model class of one run learns from, and what each of them ends with.

From a model that is there to the parameters of a run, and back to a model.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.artifacts import RankingModel
from reranker.errors import ConfigError
from reranker.kernels.sgd import Rows
from reranker.models.forms import LINEAR, DocumentForm, query_vectors
from reranker.training.config import Schedule, TrainConfig
from reranker.training.model_selection import Validator, Values
from reranker.training.problem import Problem
from reranker.training.trainer import Checkpoint, TrainResult

Float32 = npt.NDArray[np.float32]
Start = Callable[[bool], tuple[Float32, Float32]]


@dataclass(frozen=True, eq=False)
class TrainedParameters:
    """A model class as it was learned.

    Parameters
    ----------
    name : str
        Of `reranker.training.config.MODEL_CLASSES`.
    U, V : (n_rows, N) float32
        As they are served; one array where they are tied.
    result : TrainResult
        The learning curve; its U and V are of the margin's scale.
    form : str
        Of `reranker.models.forms.FORMS`.
    Y : (n_rows, N) float32, optional
    identity : float
        a of the model that is served.
    scale : float
        Weight of the learned part that validation chose.
    more_epochs : int
        Epochs of a second stage that starts where ``result`` ended.
    values : (n,) float64
        AP of each validation query, those of all validators one after the other; empty in the second run.
    seconds : float
    """

    name: str
    U: Float32
    V: Float32
    result: TrainResult
    form: str = LINEAR
    Y: Float32 | None = None
    identity: float = 1.0
    scale: float = 1.0
    more_epochs: int = 0
    values: Values = field(default_factory=lambda: np.empty(0))
    seconds: float = 0.0

    @property
    def n_parameters(self) -> int:
        """Numbers that were learned."""
        tables = (self.U, *(() if self.U is self.V else (self.V,)), *(() if self.Y is None else (self.Y,)))
        return sum(int(table.size) for table in tables)

    @property
    def has_learned(self) -> bool:
        """False where validation preferred q.d alone: a second run on everything would change nothing."""
        return self.scale > 0 and (self.result.best_epoch > 0 or self.more_epochs > 0)

    def values_by(self, validators: Sequence[Validator]) -> Values:
        """Return AP of each query of all validators, (n,) float64."""
        documents = DocumentForm(self.form, self.V, self.Y)
        parts = []
        for one in validators:
            q_vectors = query_vectors(self.form, self.U, one.queries)
            parts.append(one.values(q_vectors, documents.vectors(one.documents), identity=self.identity))
        return np.concatenate(parts) if parts else np.empty(0)


@dataclass(eq=False)
class TrainingContext:
    """One problem, ready for any class.

    Parameters
    ----------
    config, schedule
        Settings, and the numbers they come to.
    problem : Problem
    validators : list of Validator
        What a class stops by; none in the second run on all the evidence.
    rng : Generator
        Each class works with a copy: what it learns does not depend on which others were tried before.
    start : callable
        (tied) -> U and V at the start.
    n_words : int
        D: words of the vocabulary, the most frequent first.
    fingerprint : mapping
        Of the run, for checkpoints.
    checkpoint : Path or None
    say, progress : callable
        As those of `reranker.training.train.Listener`.
    """

    config: TrainConfig
    schedule: Schedule
    problem: Problem
    validators: list[Validator]
    rng: np.random.Generator
    start: Start
    n_words: int
    fingerprint: Mapping[str, Any]
    checkpoint: Path | None
    say: Callable[[str], None]
    progress: Callable[[str, int, int | None], None]
    done: dict[str, TrainedParameters] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """Words that have learned rows."""
        return self.n_words if self.config.max_rows is None else min(self.config.max_rows, self.n_words)

    def fresh_rng(self) -> np.random.Generator:
        """Return a generator in the state of the run's beginning."""
        return copy.deepcopy(self.rng)

    def kept(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of a class; that of ``low_rank`` has the run's own name."""
        if self.checkpoint is None:
            return None
        return Checkpoint(checkpoint_of(self.checkpoint, name), {**self.fingerprint, "class": name})

    def bar(self, name: str) -> Callable[[int, int | None], None]:
        """Return who is told how far a class has come."""
        title = "training" if name == self.config.learned_class else f"training {name}"
        return lambda done, total: self.progress(title, done, total)

    def measured(self, learned: TrainedParameters, started: float) -> TrainedParameters:
        """Return what was learned with its validation values and the seconds since ``started``."""
        return replace(learned, values=learned.values_by(self.validators), seconds=time.perf_counter() - started)


def checkpoint_of(folder: Path, name: str) -> Path:
    """Return the folder of a class's state beside (or, for ``low_rank``, at) a run's."""
    return folder if name == "low_rank" else folder.with_name(f"{folder.name}-{name}")


def csr_of(rows: Rows, n_columns: int) -> sp.csr_matrix:
    """Return kernel rows as a matrix of ``n_columns`` columns; words from there on are left out."""
    kept = rows.indices < n_columns
    places = np.concatenate([[0], np.cumsum(kept)])[rows.indptr]
    return sp.csr_matrix((rows.data[kept], rows.indices[kept], places), shape=(len(rows.indptr) - 1, n_columns))


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
    factor = np.float32(np.sqrt(schedule.identity_scale or 1.0))
    U = np.array(base.U, dtype=np.float32) * factor
    return (U, U) if base.scorer.is_tied else (U, np.array(base.encoder.V, np.float32) * factor)


def served_parameters(result: TrainResult, schedule: Schedule, scale: float) -> tuple[Float32, Float32]:
    """Return U and V of the model served, scale UᵀV + I: the margin's a divided out.

    Both sides take a half of the change, so that their rows stay of one length. Where V was frozen it is that of the
    model started from, and U takes the whole of the scale.
    """
    a = schedule.identity_scale or 1.0
    if schedule.freeze_documents:
        root = np.float32(1 / np.sqrt(a))
        return np.ascontiguousarray(result.U * (root * np.float32(scale))), np.ascontiguousarray(result.V * root)
    factor = np.float32(np.sqrt(scale / a))
    U = np.ascontiguousarray(result.U * factor)
    return U, U if result.U is result.V else np.ascontiguousarray(result.V * factor)
