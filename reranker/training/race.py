"""How to train, found on validation: short runs of many settings, longer ones of the best (successive halving).

Nothing here is set for a corpus. Each run is complete, with its rate falling to 0, so that a short one says what a long
one of the same settings would do better than the first epochs of a long one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from reranker.models.scorers import LINEAR, DocumentForm
from reranker.training.config import Schedule, TrainConfig
from reranker.training.context import TrainingContext
from reranker.training.linear import trainer_of

AXES: Mapping[str, Sequence[float]] = {
    "identity_scale": (2.0, 6.0, 16.0),
    "rate": (0.05, 0.15),
    "document_dropout": (0.0, 0.5),
}
"""Values of the first rung, each with each; a setting that is stated has that value alone."""
RUNGS: Sequence[tuple[int, int]] = ((1, 4), (4, 1))
"""(epochs, settings kept) of each rung."""
RACE_STEPS = 30_000
"""Steps of an epoch of the race at most."""


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

    def to_json(self) -> dict[str, Any]:
        """Return the trial as a manifest keeps it."""
        return {**asdict(self), "settings": dict(self.settings)}


def race(context: TrainingContext, config: TrainConfig) -> list[Trial]:
    """Set the context's schedule to the best settings found, and return what was tried, rung by rung.

    Settings that the user has stated are not varied. Nothing is tried where there is no validation, for the papers'
    recipe, or where all is stated. Among equals the earlier settings are kept. ``auto`` and the classes without SGD
    take the settings that are best for U and V.
    """
    candidates = _candidates(config)
    if config.recipe == "paper" or not context.validators or len(candidates) < 2:
        return []
    trials: list[Trial] = []
    total = sum(epochs * n for (epochs, _), n in zip(RUNGS, _sizes(len(candidates)), strict=True))
    done = 0
    for rung, (epochs, n_kept) in enumerate(RUNGS, 1):
        tried = []
        for candidate in candidates:
            context.progress("trying settings", done, total)
            tried.append(_try(context, config, candidate, epochs))
            done += epochs
        order = sorted(range(len(tried)), key=lambda number: (-tried[number][0], number))
        kept = set(order[:n_kept])
        trials += [
            Trial(rung, candidate, epochs, value, scale, number in kept)
            for number, (candidate, (value, scale)) in enumerate(zip(candidates, tried, strict=True))
        ]
        candidates = [candidates[number] for number in order[:n_kept]]
    context.progress("trying settings", total, total)
    context.schedule = _with(context.schedule, candidates[0])
    named = ", ".join(f"{name} {value:g}" for name, value in candidates[0].items())
    context.say(f"of {len(trials)} short runs the best had {named}: validation MAP {trials_best(trials).map:.4f}")
    return trials


def trials_best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest value, the earlier of equals."""
    return max(trials, key=lambda trial: trial.map)


def _candidates(config: TrainConfig) -> list[dict[str, float]]:
    points: list[dict[str, float]] = [{}]
    for name, values in AXES.items():
        if getattr(config, name) is None and not (name == "identity_scale" and not config.identity):
            points = [{**point, name: value} for point in points for value in values]
    return points


def _sizes(n: int) -> list[int]:
    return [n, *(min(n, kept) for _, kept in RUNGS[:-1])]


def _with(schedule: Schedule, settings: Mapping[str, float]) -> Schedule:
    changes = {"rate_start" if name == "rate" else name: value for name, value in settings.items()}
    return replace(schedule, **changes)  # type: ignore[arg-type]


def _try(
    context: TrainingContext, config: TrainConfig, settings: Mapping[str, float], epochs: int
) -> tuple[float, float]:
    """Return (validation MAP, weight of the learned part) of a complete run of so many epochs."""
    schedule = replace(_with(context.schedule, settings), epochs=epochs)
    name = "tied" if config.learned_class == "tied" else "low_rank"
    result = trainer_of(context, schedule, max_steps=RACE_STEPS).run(*context.start(name == "tied"))
    value, scale = context.best_scale(result.U, DocumentForm(LINEAR, result.V), schedule.identity_scale)
    return (value if np.isfinite(value) else 0.0), scale
