"""How to train, found on validation: short runs of many settings, longer ones of the best (successive halving).

Nothing here is set for a corpus. Each run is complete, with its rate falling to 0, so that a short one says what a long
one of the same settings would do better than the first epochs of a long one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from reranker.errors import TrainingError
from reranker.models.model_classes import MODEL_CLASSES
from reranker.models.scorers import LINEAR, DocumentForm
from reranker.training.config import KEPT_NAMES, Schedule
from reranker.training.context import TrainingContext
from reranker.training.linear import trainer_of
from reranker.training.trainer import steps_of


class Rung(NamedTuple):
    """Complete runs of so many epochs: every setting kept so far with each value of the settings that are varied."""

    epochs: int
    varied: Mapping[str, Sequence[float]]
    n_kept: int


RUNGS = (
    Rung(1, {"identity_scale": (2.0, 6.0, 18.0, 54.0)}, 2),
    Rung(3, {"nearest_share": (0.5, 0.0)}, 1),
    Rung(3, {"stated_negative_ratio": (0.0, 0.5)}, 1),
    Rung(6, {"rate": (0.05, 0.02, 0.1)}, 1),
    Rung(6, {"document_dropout": (0.0, 0.3)}, 1),
)
"""What is varied, coarse before fine. One epoch does not tell well drawn negatives from random ones, so they are
compared by longer runs."""
RACE_STEPS = 30_000
"""Steps of an epoch of the race at most."""
FINAL_EPOCHS = 15
TIE = 0.015
"""Share of a validation MAP by which two short runs differ by chance."""


@dataclass(frozen=True)
class Trial:
    """One run of the race: its settings, what it reached on validation, and whether it went on.

    ``scale`` is the weight of the learned part that reached ``map``.
    """

    rung: int
    settings: Mapping[str, float]
    epochs: int
    map: float
    scale: float
    kept: bool


def race(context: TrainingContext) -> list[Trial]:
    """Set the context's schedule to the best settings found, and return what was tried, rung by rung.

    Settings that the user has stated are not varied. Nothing is tried where there is no validation, for the papers'
    recipe, for a class without vectors, or where all is stated. Among equals the earlier settings are kept. ``auto``
    and the classes without SGD take the settings that are best for U and V.
    """
    rungs = [rung._replace(varied=_open(context, rung.varied)) for rung in RUNGS]
    model_class = MODEL_CLASSES.get(context.config.learned_class)  # None: the class is chosen
    learns = context.config.recipe != "paper" and (model_class is None or model_class.has_vectors)
    if not learns or not context.validators or not any(rung.varied for rung in rungs):
        return []
    trials: list[Trial] = []
    known: dict[tuple[int, frozenset[tuple[str, float]]], tuple[float, float]] = {}
    kept: list[dict[str, float]] = [{}]
    schedule = context.schedule
    done, longest, total = 0, 0, _epochs_of(rungs)
    for number, rung in enumerate(rungs, 1):
        candidates = kept
        for name, values in rung.varied.items():
            candidates = [{**settings, name: value} for settings in candidates for value in values]
        if candidates == kept and rung.epochs <= longest:
            continue  # nothing to vary, nor longer runs
        longest = rung.epochs
        tried = []
        for settings in candidates:
            context.progress("trying settings", done, total)
            changes = [(name, value) for name, value in _changes(settings).items() if value != getattr(schedule, name)]
            key = (rung.epochs, frozenset(changes))
            if key not in known:
                known[key] = _try(context, settings, rung.epochs)
            done += rung.epochs
            tried.append(known[key])
        order = _in_order(candidates, tried)
        trials += [
            Trial(number, settings, rung.epochs, *result, place in order[: rung.n_kept])
            for place, (settings, result) in enumerate(zip(candidates, tried, strict=True))
        ]
        kept = [candidates[place] for place in order[: rung.n_kept]]
    context.progress("trying settings", total, total)
    epochs = context.config.epochs or FINAL_EPOCHS
    context.schedule = replace(context.schedule, **_changes(kept[0]), epochs=epochs)
    named = ", ".join(f"{KEPT_NAMES.get(name, name)} {value:g}" for name, value in kept[0].items())
    context.say(f"of {len(trials)} short runs the best had {named}: validation MAP {trials_best(trials).map:.4f}")
    return trials


def _in_order(candidates: Sequence[Mapping[str, float]], tried: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the candidates, the best first; among equals the earlier.

    First of all stands the one with the largest a of those that learned something and cannot be told from the best
    (`TIE`): what is learned beside a heavier lexical part is the smaller correction, and gains more from longer
    training.
    """
    order = sorted(range(len(tried)), key=lambda place: (-tried[place][0], place))
    least = (1 - TIE) * tried[order[0]][0]
    tied = [place for place in order if tried[place][0] >= least and tried[place][1] > 0] or order[:1]
    first = max(tied, key=lambda place: candidates[place].get("identity_scale", 0.0))
    return [first, *(place for place in order if place != first)]


def _epochs_of(rungs: Sequence[Rung]) -> int:
    """Return how many epochs all runs make together."""
    n_kept, longest, total = 1, 0, 0
    for rung in rungs:
        n = n_kept * math.prod(len(values) for values in rung.varied.values())
        if rung.varied or rung.epochs > longest:
            total, longest, n_kept = total + n * rung.epochs, rung.epochs, min(n, rung.n_kept)
    return total


def trials_best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest value, the earlier of equals."""
    return max(trials, key=lambda trial: trial.map)


def schedule_like(context: TrainingContext, trial: Trial) -> Schedule:
    """Return the schedule of a trial."""
    n_steps = steps_of(context.problem)
    epochs = max(1, round(trial.epochs * min(n_steps, RACE_STEPS) / n_steps))
    return replace(context.schedule, **_changes(trial.settings), epochs=epochs)


def _open(context: TrainingContext, varied: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return what may be varied: not what is stated, nor what has no effect."""
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


def _try(context: TrainingContext, settings: Mapping[str, float], epochs: int) -> tuple[float, float]:
    """Return (validation MAP, weight of the learned part) of a complete run of so many epochs."""
    schedule = replace(context.schedule, **_changes(settings), epochs=epochs)
    tied = context.config.learned_class == "tied"
    try:
        result = trainer_of(context, schedule, max_steps=RACE_STEPS).run(*context.start(tied, schedule))
    except TrainingError:  # it diverged at every rate: these settings are the worst
        return 0.0, 0.0
    return context.best_scale(result.U, DocumentForm(LINEAR, result.V), schedule.identity_scale)
