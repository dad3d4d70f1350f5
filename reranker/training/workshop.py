"""What every model class of one run learns from, and what each of them ends with."""

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

from reranker.kernels.sgd_types import Rows
from reranker.models.forms import LINEAR, DocumentForm, query_vectors
from reranker.training.checkpoint import Checkpoint
from reranker.training.config import Schedule, TrainConfig
from reranker.training.plain_tuples import cut_to_keywords
from reranker.training.problem import Problem
from reranker.training.trainer import TrainResult
from reranker.training.validation import Validator, Values

Float32 = npt.NDArray[np.float32]
Start = Callable[[bool], tuple[Float32, Float32]]


@dataclass(frozen=True, eq=False)
class Learned:
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
class Workshop:
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
    done: dict[str, Learned] = field(default_factory=dict)

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

    def measured(self, learned: Learned, started: float) -> Learned:
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


def as_asked(
    rows: sp.csr_matrix, documents: npt.NDArray[np.bool_], schedule: Schedule, rng: np.random.Generator
) -> sp.csr_matrix:
    """Return query rows as training asks them: a share of those that are documents cut to some random words.

    Parameters
    ----------
    rows : csr_matrix, (n, any) float32
    documents : (n,) bool
        Which are documents.
    schedule : Schedule
        ``keyword_share``, and least and most words.
    rng : Generator
    """
    cut = documents & (rng.random(rows.shape[0]) < schedule.keyword_share)
    wanted = np.where(cut, rng.integers(schedule.keyword_min, schedule.keyword_max + 1, rows.shape[0]), 0)
    parts, places = [], []
    for n in np.unique(wanted).tolist():
        chosen = np.flatnonzero(wanted == n)
        parts.append(cut_to_keywords(rows[chosen], n, rng) if n else rows[chosen])
        places.append(chosen)
    order = np.argsort(np.concatenate(places), kind="stable")
    asked: sp.csr_matrix = sp.vstack(parts, format="csr")[order]
    return asked
