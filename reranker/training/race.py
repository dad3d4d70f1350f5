"""Hyperparameter search of the training: short trial runs of many, longer runs of the best (successive halving).

No setting here was chosen for a corpus. In each run the rate falls to 0, so that a short run predicts a long one of the
same settings better than the first epochs of the long one would. Short runs still favour settings that learn fast, a
high rate and a large identity scale. These two are decided last, by runs as long as the training that follows. The
first of these is the leader; another gives up at a milestone where it is behind. The best of them is the training
itself, unless an epoch has more than `LONG_STEPS` steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from reranker.arrays import Float32
from reranker.errors import TrainingError
from reranker.progress import silent
from reranker.training.config import KEPT_NAMES, Schedule
from reranker.training.context import TrainingContext
from reranker.training.cores import RUNS_MB, GoOn, on_cores
from reranker.training.linear import trainer_of
from reranker.training.trainer import TrainResult, steps_of


class Rung(NamedTuple):
    """One round of the search: the settings kept so far, with another value of one setting at a time."""

    epochs: int
    """Epochs of each run. `FINAL_EPOCHS` marks a round of long runs, which have the epochs of the training."""
    varied: Mapping[str, Sequence[float]]
    """Name of a setting to its values. Each value is tried with the first values of the other settings."""
    relative: frozenset[str] = frozenset()
    """Settings whose values are factors of the value kept so far."""


FINAL_EPOCHS = 10
KEYWORD_EPOCHS = 30
"""Epochs of a long run if all queries are keywords: each epoch draws other words of a document."""
RUNGS = (
    Rung(3, {"identity_scale": (2.0, 6.0, 18.0, 54.0)}),
    Rung(3, {"nearest_share": (0.5, 0.0), "stated_negative_ratio": (0.0, 0.5), "document_dropout": (0.0, 0.3)}),
    Rung(
        FINAL_EPOCHS,
        {"identity_scale": (1.0, 1 / 3), "rate": (0.05, 0.1)},
        relative=frozenset({"identity_scale"}),
    ),
)
"""The rounds. Short runs have three epochs, because one does not show the value of hard negatives. They all have the
same number, so that no round repeats the run that the round before has kept. The second round keeps one change at most:
its runs are made at the same time."""
TIE = 0.015
"""Relative difference of validation MAP that two runs may have by chance."""
MILESTONES: Mapping[float, float] = {0.4: 0.0, 0.7: TIE}
"""Share of the epochs to the lead over the first long run that a long run must have there, or it gives up.

In the end it must be ahead by more than `TIE` to be chosen.
"""
RACE_STEPS = 20_000
"""Steps of an epoch of a short run at most."""
LONG_STEPS = 100_000
"""Steps of an epoch up to which the best long run is the training itself; with more, long runs have `RACE_STEPS`."""


@dataclass(frozen=True)
class Trial:
    """A trial run."""

    rung: int
    """Number of its round, from 1."""
    settings: Mapping[str, float]
    epochs: int
    """Epochs that it made; fewer than its round has if it gave up."""
    map: float
    """Validation MAP."""
    scale: float
    """Weight of the learned part at which it was reached."""
    kept: bool
    """True if the next round went on with its settings."""


class Outcome(NamedTuple):
    """The end of a trial run."""

    map: float
    """Validation MAP."""
    scale: float
    """Weight of the learned part at which it was reached."""
    epochs: int
    """Epochs that the run made."""
    result: TrainResult | None = None
    """U and V; None: they are not kept."""


class _Curve:
    """The best validation MAP of a run so far, by epoch; another thread may wait for an epoch."""

    def __init__(self) -> None:
        self._best: list[float] = []
        self._has_ended = False
        self._changed = threading.Condition()

    def add(self, value: float) -> None:
        """Add the value of the next epoch; the first one is that of epoch 0."""
        with self._changed:
            self._best.append(max([value, *self._best[-1:]]))
            self._changed.notify_all()

    def end(self) -> None:
        """State that there are no more epochs."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def at(self, epoch: int) -> float:
        """Return the best value up to an epoch, when it is known; 0 if the run ended without any."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or len(self._best) > epoch)
            return (self._best[: epoch + 1] or [0.0])[-1]


def race(context: TrainingContext) -> list[Trial]:
    """Set the context's schedule to the best settings found, and return the trial runs, round by round.

    Settings that the user has given are not varied. Nothing is tried without validation, or if all settings are given.
    """
    schedule = context.schedule
    long = context.config.epochs or (KEYWORD_EPOCHS if schedule.keyword_share == 1 else FINAL_EPOCHS)
    rungs = [
        rung._replace(varied=_open(context, rung.varied), epochs=long if rung.epochs == FINAL_EPOCHS else rung.epochs)
        for rung in RUNGS
    ]
    if not context.validators or not any(rung.varied for rung in rungs):
        return []
    trials: list[Trial] = []
    known: dict[tuple[int, frozenset[tuple[str, float]]], Outcome] = {}
    kept: dict[str, float] = {}
    planned = [(number, rung) for number, rung in enumerate(rungs, 1) if rung.varied]
    total = sum(rung.epochs * (1 + sum(len(values) - 1 for values in rung.varied.values())) for _, rung in planned)
    done = 0
    for number, rung in planned:
        candidates = _candidates(kept, rung)
        keys = [(rung.epochs, _changed(schedule, settings)) for settings in candidates]
        new = {key: settings for key, settings in zip(keys, candidates, strict=True) if key not in known}
        runs = _try_all(context, list(new.values()), rung.epochs, stops=rung.epochs == long)
        for key, outcome in zip(new, runs, strict=True):
            context.progress("trying settings", done, total)
            known[key] = outcome
            done += rung.epochs
        done += rung.epochs * (len(keys) - len(new))
        tried = [known[key] for key in keys]
        best = _best(candidates, tried)
        trials += [
            Trial(number, settings, each.epochs, each.map, each.scale, place == best)
            for place, (settings, each) in enumerate(zip(candidates, tried, strict=True))
        ]
        kept, context.finished = candidates[best], tried[best].result
    context.progress("trying settings", total, total)
    context.schedule = replace(schedule, **_changes(kept), epochs=long)
    named = ", ".join(f"{KEPT_NAMES.get(name, name)} {value:g}" for name, value in kept.items())
    context.say(f"of {len(trials)} trial runs the best had {named}: validation MAP {trials_best(trials).map:.4f}")
    return trials


def _candidates(kept: Mapping[str, float], rung: Rung) -> list[dict[str, float]]:
    """Return the settings of a round's runs: the first values of all that is varied, then each other value."""

    def value_of(name: str, value: float) -> float:
        return kept[name] * value if name in rung.relative else value

    first = {**kept, **{name: value_of(name, values[0]) for name, values in rung.varied.items()}}
    others = [{**first, name: value_of(name, value)} for name, values in rung.varied.items() for value in values[1:]]
    return [first, *others]


def _best(candidates: Sequence[Mapping[str, float]], tried: Sequence[Outcome]) -> int:
    """Return the place of the best candidate.

    It is the one with the largest a, and among these the earliest, of all that learned something and are within `TIE`
    of the highest MAP. With a larger lexical part the learned part is a smaller correction, which gains more from
    longer training; the values of a round begin with the most cautious one.
    """
    highest = max(range(len(tried)), key=lambda place: tried[place].map)
    least = (1 - TIE) * tried[highest].map
    tied = [place for place, each in enumerate(tried) if each.map >= least and each.scale > 0] or [highest]
    return min(tied, key=lambda place: (-candidates[place].get("identity_scale", 0.0), place))


def trials_best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest value, the earlier of equals."""
    return max(trials, key=lambda trial: trial.map)


def schedule_like(context: TrainingContext, trial: Trial) -> Schedule:
    """Return the schedule with which the training repeats a trial. The race must have ended.

    The epochs are those of the trial: fewer and longer ones would look up hard negatives less often.
    """
    is_long = trial.rung == len(RUNGS)
    return _schedule(context, trial.settings, context.schedule.epochs if is_long else trial.epochs, is_long=is_long)


def _schedule(context: TrainingContext, settings: Mapping[str, float], epochs: int, *, is_long: bool) -> Schedule:
    """Return the schedule of a trial run."""
    is_training = is_long and steps_of(context.problem) <= LONG_STEPS
    max_steps = None if is_training else RACE_STEPS
    return replace(context.schedule, **_changes(settings), epochs=epochs, max_steps=max_steps)


def _open(context: TrainingContext, varied: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return the settings that may be varied: those that the user has not given and that have an effect."""
    config, open_settings = context.config, {}
    for name, values in varied.items():
        without_effect = {
            "nearest_share": context.nearest is None,
            "stated_negative_ratio": not len(context.problem.tuples.worse),
        }.get(name, False)
        if getattr(config, name, None) is None and not without_effect:
            open_settings[name] = values
    return open_settings


def _changes(settings: Mapping[str, float]) -> dict[str, Any]:
    """Return settings by the schedule's names."""
    return {"rate_start" if name == "rate" else name: value for name, value in settings.items()}


def _changed(schedule: Schedule, settings: Mapping[str, float]) -> frozenset[tuple[str, float]]:
    """Return the settings that differ from the schedule, by its names."""
    return frozenset((name, value) for name, value in _changes(settings).items() if value != getattr(schedule, name))


def _try_all(
    context: TrainingContext, some: Sequence[Mapping[str, float]], epochs: int, *, stops: bool
) -> Iterator[Outcome]:
    """Yield the result of `_try` for each setting, in order; see `on_cores`.

    With ``stops``, the first one is the leader, which the others compare themselves with.
    """
    leader = _Curve() if stops else None
    runs = [partial(_try, context, settings, epochs, leader, leads=place == 0) for place, settings in enumerate(some)]
    try:
        yield from on_cores(runs, context.mb_of_run)
    finally:
        if leader is not None:
            leader.end()


class _GaveUp(Exception):
    """The run is behind the leader; ``best`` is its outcome."""

    def __init__(self, best: Outcome) -> None:
        super().__init__()
        self.best = best


class _LongRun:
    """Validation of a run as long as the training; ``best`` is its best epoch so far.

    The run that ``leads`` adds its values to the leader's curve; others give up at a milestone where they are behind.
    """

    def __init__(self, context: TrainingContext, schedule: Schedule, leader: _Curve, *, leads: bool) -> None:
        self._context, self._schedule, self._leader, self._leads = context, schedule, leader, leads
        self._milestones = {round(share * schedule.epochs): ahead for share, ahead in MILESTONES.items()}
        self.best = Outcome(0.0, 0.0, -1)

    def __call__(self, U: Float32, V: Float32) -> float:
        """Return the validation MAP of an epoch, the first time that of epoch 0; `_GaveUp` ends the run."""
        value, scale = _best_scale(self._context, self._schedule, U, V)
        done = self.best.epochs + 1
        is_better = done == 0 or value > self.best.map
        self.best = Outcome(value, scale, done) if is_better else self.best._replace(epochs=done)
        if self._leads:
            self._leader.add(value)
        elif done in self._milestones and self.best.map < (1 + self._milestones[done]) * self._leader.at(done):
            raise _GaveUp(self.best)
        return value


def _try(
    context: TrainingContext,
    settings: Mapping[str, float],
    epochs: int,
    leader: _Curve | None,
    go_on: GoOn,
    *,
    leads: bool,
) -> Outcome:
    """Return the outcome of a run: of its last epoch, or with a ``leader`` of its best one."""
    schedule = _schedule(context, settings, epochs, is_long=leader is not None)
    long = None if leader is None else _LongRun(context, schedule, leader, leads=leads)
    trainer = trainer_of(context, schedule, evaluate=long)
    trainer.say, trainer.progress = silent, go_on
    try:
        result = trainer.run(*context.start(schedule))
    except _GaveUp as behind:
        return behind.best
    except TrainingError:  # it diverged at every rate
        return Outcome(0.0, 0.0, epochs)
    finally:
        if leader is not None and leads:
            leader.end()
    if long is None:
        return Outcome(*_best_scale(context, schedule, result.U, result.V), epochs)
    return long.best._replace(result=result if _is_kept(context) else None)


def _best_scale(context: TrainingContext, schedule: Schedule, U: Float32, V: Float32) -> tuple[float, float]:
    return context.best_scale(U, V, schedule.identity_scale)


def _is_kept(context: TrainingContext) -> bool:
    """Return whether the results of long runs are kept: they are the training's own, and fit into `RUNS_MB`."""
    n_results = 1 + sum(len(values) - 1 for values in RUNGS[-1].varied.values())
    mb = n_results * 4 * context.config.dim * 2 * context.n_rows / 2**20
    return steps_of(context.problem) <= LONG_STEPS and mb <= RUNS_MB
