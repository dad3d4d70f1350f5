"""Hyperparameter search of the training: short trial runs of many, longer runs of the best (successive halving).

No setting here was chosen for a corpus. In each run the rate falls to 0, so that a short run predicts a long one of the
same settings better than the first epochs of the long one would. Short runs still favour settings that learn fast, a
high rate and a large identity scale. These two are decided last, by runs as long as the training that follows.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from reranker.arrays import Float32
from reranker.errors import TrainingError
from reranker.models.model_classes import MODEL_CLASSES
from reranker.models.scorers import LINEAR, DocumentForm
from reranker.progress import silent
from reranker.training.config import KEPT_NAMES, Schedule
from reranker.training.context import TrainingContext
from reranker.training.linear import trainer_of
from reranker.training.trainer import steps_of


class Rung(NamedTuple):
    """One round of the search: every setting kept so far, with each value of the settings that are varied."""

    epochs: int
    """Epochs of each run. Runs of `FINAL_EPOCHS` stop by validation."""
    varied: Mapping[str, Sequence[float]]
    """Name of a setting to its values."""
    n_kept: int = 1
    """Settings that the next round goes on with."""
    relative: bool = False
    """The values are factors of the value kept so far."""


FINAL_EPOCHS = 15
RUNGS = (
    Rung(1, {"identity_scale": (2.0, 6.0, 18.0, 54.0)}, 2),
    Rung(3, {"nearest_share": (0.5, 0.0)}),
    Rung(3, {"stated_negative_ratio": (0.0, 0.5)}),
    Rung(6, {"document_dropout": (0.0, 0.3)}),
    Rung(FINAL_EPOCHS, {"identity_scale": (1.0, 1 / 3)}, relative=True),
    Rung(FINAL_EPOCHS, {"rate": (0.05, 0.02, 0.1)}),
)
"""The rounds, coarse before fine. Hard negatives are judged by longer runs: one epoch does not show their value."""
RACE_STEPS = 30_000
"""Steps of an epoch of the race at most."""
RACE_MB = 400
"""Memory for the tables of concurrent runs, in MB; a single run may take more."""
TIE = 0.015
"""Relative difference of validation MAP that two runs may have by chance."""


@dataclass(frozen=True)
class Trial:
    """A trial run."""

    rung: int
    """Number of its round, from 1."""
    settings: Mapping[str, float]
    epochs: int
    map: float
    """Validation MAP."""
    scale: float
    """Weight of the learned part at which it was reached."""
    kept: bool
    """True if the next round went on with its settings."""


def race(context: TrainingContext) -> list[Trial]:
    """Set the context's schedule to the best settings found, and return the trial runs, round by round.

    Settings that the user has given are not varied. Nothing is tried without validation, with the recipe ``paper``, for
    a class without vectors, or if all settings are given. ``auto`` and classes without SGD use the settings found for
    U and V.
    """
    schedule, long = context.schedule, context.config.epochs or FINAL_EPOCHS
    rungs = [
        rung._replace(varied=_open(context, rung.varied), epochs=long if rung.epochs == FINAL_EPOCHS else rung.epochs)
        for rung in RUNGS
    ]
    model_class = MODEL_CLASSES.get(context.config.learned_class)  # None: the class is chosen
    learns = context.config.recipe != "paper" and (model_class is None or model_class.has_vectors)
    if not learns or not context.validators or not any(rung.varied for rung in rungs):
        return []
    trials: list[Trial] = []
    known: dict[tuple[int, frozenset[tuple[str, float]]], tuple[float, float]] = {}
    kept: list[dict[str, float]] = [{}]
    planned, total = _planned(rungs)
    done = 0
    for number, rung in planned:
        candidates = _candidates(kept, rung)
        keys = [(rung.epochs, _changed(schedule, settings)) for settings in candidates]
        new = {key: settings for key, settings in zip(keys, candidates, strict=True) if key not in known}
        runs = _try_all(context, list(new.values()), rung.epochs, stops=rung.epochs == long)
        for key, result in zip(new, runs, strict=True):
            context.progress("trying settings", done, total)
            known[key] = result
            done += rung.epochs
        done += rung.epochs * (len(keys) - len(new))
        tried = [known[key] for key in keys]
        order = _in_order(candidates, tried)
        trials += [
            Trial(number, settings, rung.epochs, *result, place in order[: rung.n_kept])
            for place, (settings, result) in enumerate(zip(candidates, tried, strict=True))
        ]
        kept = [candidates[place] for place in order[: rung.n_kept]]
    context.progress("trying settings", total, total)
    context.schedule = replace(schedule, **_changes(kept[0]), epochs=long)
    named = ", ".join(f"{KEPT_NAMES.get(name, name)} {value:g}" for name, value in kept[0].items())
    context.say(f"of {len(trials)} trial runs the best had {named}: validation MAP {trials_best(trials).map:.4f}")
    return trials


def _candidates(kept: Sequence[dict[str, float]], rung: Rung) -> list[dict[str, float]]:
    candidates = list(kept)
    for name, values in rung.varied.items():
        candidates = [
            {**settings, name: settings[name] * value if rung.relative else value}
            for settings in candidates
            for value in values
        ]
    return candidates


def _in_order(candidates: Sequence[Mapping[str, float]], tried: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the candidates, the best first; among equals the earlier.

    The first place goes to the candidate with the largest a, and among these the earliest, of all that learned
    something and are within `TIE` of the best. With a larger lexical part the learned part is a smaller correction,
    which gains more from longer training; the values of a round begin with the most cautious one.
    """
    order = sorted(range(len(tried)), key=lambda place: (-tried[place][0], place))
    least = (1 - TIE) * tried[order[0]][0]
    tied = [place for place in order if tried[place][0] >= least and tried[place][1] > 0] or order[:1]
    first = min(tied, key=lambda place: (-candidates[place].get("identity_scale", 0.0), place))
    return [first, *(place for place in order if place != first)]


def _planned(rungs: Sequence[Rung]) -> tuple[list[tuple[int, Rung]], int]:
    """Return the rounds that have anything to decide, with their numbers, and the epochs of all their runs."""
    planned, n_kept, longest, total = list[tuple[int, Rung]](), 1, 0, 0
    for number, rung in enumerate(rungs, 1):
        if rung.varied or (n_kept > 1 and rung.epochs > longest):
            n = n_kept * math.prod(len(values) for values in rung.varied.values())
            total, longest, n_kept = total + n * rung.epochs, rung.epochs, min(n, rung.n_kept)
            planned.append((number, rung))
    return planned, total


def trials_best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest value, the earlier of equals."""
    return max(trials, key=lambda trial: trial.map)


def schedule_like(context: TrainingContext, trial: Trial) -> Schedule:
    """Return the schedule of a trial."""
    n_steps = steps_of(context.problem)
    epochs = max(1, round(trial.epochs * min(n_steps, RACE_STEPS) / n_steps))
    return replace(context.schedule, **_changes(trial.settings), epochs=epochs)


def _open(context: TrainingContext, varied: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return the settings that may be varied: those that the user has not given and that have an effect."""
    config, open_settings = context.config, {}
    for name, values in varied.items():
        without_effect = {
            "identity_scale": not config.identity,
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
) -> Iterator[tuple[float, float]]:
    """Yield the result of `_try` for each setting, in order.

    The runs share nothing and use one core each. As many run at the same time as fit into `RACE_MB`. Closing the
    generator stops them all.
    """
    documents, n_rows = len(context.problem.documents.indptr) - 1, context.n_rows
    mb_of_run = 4 * context.config.dim * (documents + 6 * n_rows) / 2**20  # Vd; U and V, those of before, and the best
    n_at_once = max(1, min(len(some), os.cpu_count() or 1, int(RACE_MB / max(mb_of_run, 1))))
    stopped = threading.Event()
    with ThreadPoolExecutor(n_at_once, thread_name_prefix="ssi-race") as pool:
        runs = [pool.submit(_try, context, settings, epochs, stopped, stops=stops) for settings in some]
        try:
            for run in runs:
                yield run.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


class _Stopped(Exception):
    """The race was abandoned before this run ended."""


def _try(
    context: TrainingContext, settings: Mapping[str, float], epochs: int, stopped: threading.Event, *, stops: bool
) -> tuple[float, float]:
    """Return (validation MAP, weight of the learned part) of a run; with ``stops`` those of its best epoch."""
    schedule = replace(context.schedule, **_changes(settings), epochs=epochs)

    def best_scale(U: Float32, V: Float32) -> tuple[float, float]:
        return context.best_scale(U, DocumentForm(LINEAR, V), schedule.identity_scale)

    evaluate = (lambda U, V: best_scale(U, V)[0]) if stops else None

    def go_on(done: int, total: int | None) -> None:
        if stopped.is_set():
            raise _Stopped

    trainer = trainer_of(context, schedule, evaluate=evaluate, max_steps=RACE_STEPS)
    trainer.say, trainer.progress = silent, go_on
    try:
        result = trainer.run(*context.start(context.config.learned_class == "tied", schedule))
    except TrainingError:  # it diverged at every rate
        return 0.0, 0.0
    return best_scale(result.U, result.V)
