"""What every model class of one run learns from, what each of them ends with, and which of them is taken.

The rule of ``auto``: the class with the fewest parameters that is not significantly worse than the one with the best
validation MAP (paired t-test over validation queries, p < .01).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Float32, Float64
from reranker.evaluation.measures import paired_test
from reranker.models.model_classes import AUTO, MODEL_CLASSES
from reranker.models.scorers import DocumentForm
from reranker.progress import Progress, Say, TitledProgress
from reranker.training.config import Schedule, TrainConfig, kept_settings
from reranker.training.nearest import NearestDocuments
from reranker.training.problem import Problem
from reranker.training.trainer import Checkpoint, TrainResult, checkpoint_of
from reranker.training.validation import Validator, values_by

SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.125, 1.4, 2.0, 2.8, 0.0)
"""Weights of the learned part that are tried on validation; 0 leaves the lexical score alone."""
LEVEL: Final = 0.01
RULE: Final = f"the fewest parameters among those not worse than the best at p < {LEVEL:g} (paired t-test of AP)"


class ShortQueries(NamedTuple):
    """U of short queries as it is served, what it reached on validation, and how it came about."""

    U: Float32
    map: float
    scale: float
    epochs: int
    identity: float


@dataclass(frozen=True, eq=False)
class TrainedParameters:
    """A model class as it was learned.

    ``U``, ``V`` and ``Y``, the second table of forms that have one, are (n_rows, N) float32 as they are served, U and V
    one array where they are tied; ``result`` is the learning curve, its U and V of the margin's scale. ``identity`` is
    a of the model that is served, ``scale`` the weight of the learned part that validation chose, and ``more_epochs``
    are those of a second stage that starts where ``result`` ended. ``short`` is the query side of short queries, where
    there is one. ``values`` (n,) float64 are AP of each validation
    query, those of all validators one after the other; none in the second run.
    """

    name: str
    U: Float32
    V: Float32
    result: TrainResult
    Y: Float32 | None = None
    identity: float = 1.0
    scale: float = 1.0
    more_epochs: int = 0
    values: Float64 = field(default_factory=lambda: np.empty(0))
    seconds: float = 0.0
    short: ShortQueries | None = None

    @property
    def documents(self) -> DocumentForm:
        """The document side, in the form of its class."""
        return DocumentForm(MODEL_CLASSES[self.name].form, self.V, self.Y)

    @property
    def n_parameters(self) -> int:
        """Numbers that were learned."""
        tables = (self.U, *(() if self.U is self.V else (self.V,)), *(() if self.Y is None else (self.Y,)))
        return sum(int(table.size) for table in tables)

    @property
    def has_learned(self) -> bool:
        """False where validation preferred q.d alone: a second run on everything would change nothing."""
        return self.scale > 0 and (self.result.best_epoch > 0 or self.more_epochs > 0)

    def values_by(self, validators: Sequence[Validator]) -> Float64:
        """Return AP of each query of all validators, (n,) float64."""
        parts = values_by(validators, self.U, self.documents, identity=self.identity)
        return np.concatenate([values[0] for values in parts]) if parts else np.empty(0)


@dataclass(eq=False)
class TrainingContext:
    """One problem, ready for any class.

    ``validators`` are what a class stops by, ``short_validators`` U of short queries, where it is learned apart; there
    are none in the second run on all the preferences. Each class works with a copy of ``rng``: what it
    learns does not depend on which others were tried before. ``start`` returns U and V at the start (tied or not, by a
    schedule), ``n_words`` is D, the most frequent words first, and ``fingerprint`` is of the run but for its schedule,
    for checkpoints.
    """

    config: TrainConfig
    schedule: Schedule
    problem: Problem
    nearest: NearestDocuments | None
    validators: list[Validator]
    rng: np.random.Generator
    start: Callable[[bool, Schedule], tuple[Float32, Float32]]
    n_words: int
    fingerprint: Mapping[str, Any]
    checkpoint: Path | None
    say: Say
    progress: TitledProgress
    short_validators: Sequence[Validator] = ()
    done: dict[str, TrainedParameters] = field(default_factory=dict)

    def learn(self, name: str, first: TrainedParameters | None = None) -> TrainedParameters:
        """Return a class learned, once, with its validation values and the seconds it took.

        Given what the first run ended with, this one, on all the preferences, makes as many epochs and takes over its
        weights.
        """
        if name not in self.done:
            started = time.perf_counter()
            learned = MODEL_CLASSES[name].load_fit()(self, first)
            values, seconds = learned.values_by(self.validators), time.perf_counter() - started
            self.done[name] = replace(learned, values=values, seconds=seconds)
        return self.done[name]

    @property
    def n_rows(self) -> int:
        """Words that have learned rows."""
        return self.n_words if self.config.max_rows is None else min(self.config.max_rows, self.n_words)

    def fresh_rng(self) -> np.random.Generator:
        """Return a generator in the state of the run's beginning."""
        return copy.deepcopy(self.rng)

    def valid_map(self, U: Float32, documents: DocumentForm, identity: float) -> float:
        """Return the mean of the validators' MAP of tables; ``identity`` is a."""
        return float(np.mean([each.mean() for each in values_by(self.validators, U, documents, identity=identity)]))

    def best_scale(
        self, U: Float32, documents: DocumentForm, identity: float, validators: Sequence[Validator] | None = None
    ) -> tuple[float, float]:
        """Return the highest validation MAP over `SCALES` of the learned part, and its scale, the first among equals.

        By the context's validators, or others. Without q.d (``identity`` 0) the scale is 1.
        """
        scales = SCALES if identity else (1.0,)
        values = values_by(self.validators if validators is None else validators, U, documents, scales, identity)
        maps = np.mean([of_queries.mean(axis=1) for of_queries in values], axis=0)
        best = int(np.argmax(maps))
        return float(maps[best]), scales[best]

    def checkpoint_of(self, name: str) -> Checkpoint | None:
        """Return where a class keeps its state."""
        if self.checkpoint is None:
            return None
        settings = {**self.fingerprint, "schedule": kept_settings(self.schedule), "class": name}
        return Checkpoint(checkpoint_of(self.checkpoint, name), settings)

    def progress_of(self, name: str) -> Progress:
        """Return the progress callback of a class."""
        title = "training" if name == self.config.learned_class else f"training {name}"
        return partial(self.progress, title)


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
