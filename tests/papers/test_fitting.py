"""Rate and start are chosen on validation by short fits, and what is tuned by grids is the least loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from papers.fitting import best_of, dimensions, s2net_option, some, tuned, tuned_plain, values_between
from papers.measures import links_loss
from papers.methods.projection import Projection
from papers.methods.projections import Mates
from papers.methods.s2net import S2NetSettings
from papers.methods.word_pairs import Bilinear
from papers.plain_sgd import PlainShape, fit_plain
from papers.registry import Budget, FitInput
from reranker.errors import ConfigError, TrainingError
from reranker.models.scorers import Scorer
from tests.papers.test_runner import study_of


def job_of(**budget: Any) -> FitInput:
    settings = Budget(n_dims=2, n_steps=100, every=20, patience=9, rates=(0.1, 0.03), **budget)
    return FitInput(study_of(), settings, links_loss, np.random.default_rng(0), lambda *_: None)


def test_all_rates_and_starts_are_tried_with_a_tenth_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[float, float, int]] = []

    def counted(*args: Any, **settings: Any) -> Scorer:
        calls.append((settings["rate"], settings["init_std"], settings["n_steps"]))
        return fit_plain(*args, **settings)

    monkeypatch.setattr("papers.fitting.fit_plain", counted)
    job = job_of()
    _, settings = tuned_plain(job, PlainShape("low_rank"), job.study.plain_data())
    assert calls[:4] == [(0.1, 0.1, 10), (0.1, 1.0, 10), (0.03, 0.1, 10), (0.03, 1.0, 10)]
    assert calls[4] == (settings["rate"], settings["start"], 100) and len(calls) == 5
    calls.clear()
    job = job_of(grid=1)
    tuned_plain(job, PlainShape("low_rank"), job.study.plain_data())
    assert calls == [(0.1, 0.1, 100)], "a single setting needs no trial"
    calls.clear()
    job = job_of()
    _, settings = tuned_plain(job, PlainShape("diagonal"), job.study.plain_data())
    assert [call[0] for call in calls[:2]] == [0.1, 0.03] and "start" not in settings


def test_settings_that_diverge_give_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[float, int]] = []

    def diverging(*args: Any, **settings: Any) -> Scorer:
        calls.append((settings["rate"], settings["n_steps"]))
        # One rate diverges at once, the other with the smaller start only after many steps.
        if settings["rate"] == 0.1 or (settings["init_std"], settings["n_steps"]) == (0.1, 100):
            raise TrainingError("diverged")
        return fit_plain(*args, **settings)

    monkeypatch.setattr("papers.fitting.fit_plain", diverging)
    job = job_of()
    _, settings = tuned_plain(job, PlainShape("low_rank"), job.study.plain_data())
    assert (settings["rate"], settings["start"]) == (0.03, 1.0)
    job = job_of(grid=1)
    with pytest.raises(TrainingError, match="diverged"):
        tuned_plain(job, PlainShape("low_rank"), job.study.plain_data())


def test_the_best_setting_on_validation_is_taken() -> None:
    job = job_of()
    seen: dict[int, float] = {}

    def loss(study: Any, trial: Any, fitted: Any) -> float:
        seen[id(fitted.scorer)] = links_loss(study, trial, fitted)
        return seen[id(fitted.scorer)]

    _, settings = tuned_plain(replace(job, loss=loss), PlainShape("low_rank"), job.study.plain_data())
    assert settings["validation"] <= 0.5 and settings["steps"] <= settings["most_steps"] == 100


@pytest.mark.parametrize(("losses", "kept", "made"), [((3.0, 1.0, 2.0, 1.0), 20, 60), ((1.0, 2.0, 2.0, 3.0), 0, 60)])
def test_the_kept_step_is_that_of_the_best_validation_and_0_the_start(
    losses: tuple[float, ...], kept: int, made: int
) -> None:
    """Training goes on for three validations after the best one; the scorer is that of the kept step."""
    job = job_of(grid=1)
    rows = job.study.valid.queries.rows
    given = iter((*losses, 9.0))
    seen: list[Any] = []

    def loss(study: Any, trial: Any, fitted: Any) -> float:
        seen.append(fitted.scorer.score_pairs(rows, rows))
        return next(given)

    budget = replace(job.budget, n_steps=60)
    job = replace(job, loss=loss, budget=budget)
    scorer, settings = tuned_plain(job, PlainShape("low_rank"), job.study.plain_data())
    assert (settings["kept step"], settings["steps"]) == (kept, made)
    np.testing.assert_array_equal(scorer.score_pairs(rows, rows), seen[kept // 20])
    assert not np.array_equal(seen[0], seen[1])


def test_the_least_loss_wins_and_the_first_of_equals() -> None:
    scorers = [Bilinear.lexical() for _ in range(3)]
    losses = {id(scorer): value for scorer, value in zip(scorers, (0.3, 0.1, 0.1), strict=True)}
    number, scorer, loss = best_of(range(3), scorers.__getitem__, lambda one: losses[id(one)])
    assert scorer is scorers[1] and (number, loss) == (1, 0.1)
    with pytest.raises(ConfigError, match="no setting"):
        best_of([], lambda point: point, lambda _: 0.0)
    assert best_of([0.0, 0.4, 0.6], lambda value: value, lambda value: abs(value - 0.5))[0] == 0.4
    with pytest.raises(TrainingError, match="a number"):
        best_of([1.0], lambda value: value, lambda _: float("nan"))


def test_spread_holds_both_ends() -> None:
    assert values_between(0.0, 1.0, 11) == tuple(step / 10 for step in range(11))
    assert values_between(0.0, 1.0, 1) == (0.0, 1.0)


def test_the_setting_of_least_loss_is_chosen_and_the_first_of_equal_ones() -> None:
    losses = {"a": 0.5, "b": 0.2, "c": 0.2, "d": float("nan")}
    scorers: dict[str, Scorer] = {name: Bilinear.lexical() for name in losses}
    by_scorer = {id(scorer): losses[name] for name, scorer in scorers.items()}
    job = replace(job_of(), loss=lambda study, trial, fitted: by_scorer[id(fitted.scorer)])
    options = [({"name": name}, lambda name=name: scorers[name]) for name in losses]
    chosen = tuned(job, options, counted=True)
    assert chosen.settings == {"name": "b", "validation loss": 0.2, "settings tried": 4}
    with pytest.raises(TrainingError, match="none of 1 settings"):
        tuned(job, [({"name": "d"}, lambda: scorers["d"])])


def test_grids_are_cut_evenly() -> None:
    assert some((1, 2, 3), 5) == (1, 2, 3)
    assert some(range(11), 3) == (0, 5, 10)
    assert some((1, 2, 3), 1) == (2,)
    assert dimensions(500, 10_000) == (500, 250, 125)
    assert dimensions(500, 3) == (3, 1)
    assert dimensions(8) == (8, 4, 2)
    assert dimensions(1) == (1,)


@pytest.mark.parametrize(
    ("values", "kept"), [([3.0, 2.0, 1.0, 1.5], 4), ([1.0, 2.0, 1.0, 1.5], 0), ([3.0, 2.0, 2.0, 1.5], 5)]
)
def test_the_iteration_kept_is_the_first_of_the_least_value_and_0_the_untrained_start(
    values: list[float], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = iter(values)
    start = Projection(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))

    def fit(
        data: Mates,
        start: Projection,
        settings: S2NetSettings,
        validate: Callable[[Scorer], float],
        progress: Callable[[int, float, float | None], None],
    ) -> Projection:
        validate(start)
        for iteration in range(1, 6):
            progress(iteration, 0.5, validate(start) if iteration in (2, 4) else None)
        validate(start)  # the last one, which progress does not see
        return start

    monkeypatch.setattr("papers.fitting.fit_s2net", fit)
    seen: list[int] = []
    job = replace(
        job_of(), loss=lambda *_: next(validated), progress=lambda what, iteration, most: seen.append(iteration)
    )
    rows = sp.csr_matrix(np.eye(2, dtype=np.float32))
    settings, make = s2net_option(job, Mates(rows, rows), start, S2NetSettings(max_iterations=5), {"gamma": 10.0})
    assert make() is start
    assert settings == {"gamma": 10.0, "iteration kept": kept}
    assert seen == [1, 2, 3, 4, 5]
