"""The race of trial runs: what is varied, what is kept, and what stands in the report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from reranker.errors import TrainingError
from reranker.records import Pair
from reranker.training import (
    DocumentSource,
    Listener,
    TrainConfig,
    cores,
    from_links,
    from_pairs,
    learning,
    linear,
    train_model,
)
from reranker.training import race as module
from reranker.training.config import Schedule, schedule_of
from reranker.training.context import SCALES, TrainingContext, Validator
from reranker.training.problem import Problem
from reranker.training.race import RUNGS, Outcome, Trial, race, schedule_like, trials_best
from reranker.training.trainer import NegativeMiner, Trainer
from reranker.training.training_set import TrainingSet
from tests.seeds import seeded_rng
from tests.unit.training.synthetic import Said, corpus_of, problem_of, synonyms, write_documents

NONE = np.zeros((1, 1), np.float32)
STATED: dict[str, Any] = {"identity_scale": 5.0, "stated_negative_ratio": 0.25, "rate": 0.07, "document_dropout": 0.1}


def pairs() -> TrainingSet:
    """Return preferences with documents stated to be worse."""
    ids = [document["id"] for document in synonyms()[0]]
    return from_pairs(Pair(f"en{k % 12}x0", ids[k], ids[-1 - k]) for k in range(60))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("race") / "docs.jsonl", synonyms()[0])


@pytest.fixture(scope="module")
def problem(path: Path) -> Problem:
    return problem_of(corpus_of(path, pairs()), pairs())


class Race:
    """A race whose runs are worth what ``value`` says of their settings and epochs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, problem: Problem, config: TrainConfig, **changes: Any) -> None:
        self.shown: list[tuple[int, int | None]] = []
        self.runs: list[tuple[dict[str, float], int]] = []
        self.said = Said()
        self.value: Any = lambda settings, epochs: 0.5
        schedule = schedule_of(config, queries_are_texts=True, unseen_documents=False)
        self.before = schedule
        self.long = module.FINAL_EPOCHS
        self.context = TrainingContext(
            config,
            schedule,
            problem,
            NegativeMiner(problem, seeded_rng()),
            [cast(Validator, None)],
            seeded_rng(),
            lambda _: (NONE, NONE),
            1,
            {},
            None,
            self.said,
            lambda _title, done, total: self.shown.append((done, total)),
        )
        for name, value in changes.items():
            setattr(self.context, name, value)
        monkeypatch.setattr(module, "_try", self._try)

    def _try(
        self,
        _context: TrainingContext,
        settings: Mapping[str, float],
        epochs: int,
        leader: object,
        _go_on: object,
        *,
        leads: bool,
    ) -> Outcome:
        assert (leader is not None) == (epochs == (self.context.config.epochs or self.long))
        self.runs.append((dict(settings), epochs))
        return Outcome(self.value(settings, epochs), 1.0, epochs)

    def __call__(self) -> list[Trial]:
        return race(self.context)


def varied(trials: Sequence[Trial]) -> set[str]:
    return {name for trial in trials for name in trial.settings}


@pytest.mark.parametrize("name", list(STATED))
def test_what_is_stated_is_not_varied(monkeypatch: pytest.MonkeyPatch, problem: Problem, name: str) -> None:
    run = Race(monkeypatch, problem, TrainConfig(**{name: STATED[name]}))
    assert varied(run()) == {"nearest_share", *STATED} - {name}
    assert getattr(run.context.schedule, "rate_start" if name == "rate" else name) == STATED[name]


def test_where_all_is_stated_only_the_negatives_are_left(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    run = Race(monkeypatch, problem, TrainConfig(**STATED, epochs=4))
    assert varied(run()) == {"nearest_share"}
    assert run.context.schedule == replace(run.before, nearest_share=0.5, epochs=4)
    assert Race(monkeypatch, problem, TrainConfig(**STATED), nearest=None)() == []


def test_what_has_no_effect_is_not_varied(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    none_worse = replace(problem, tuples=problem.tuples._replace(worse=np.empty(0, np.int64)))
    assert "stated_negative_ratio" not in varied(Race(monkeypatch, none_worse, TrainConfig())())
    assert "nearest_share" not in varied(Race(monkeypatch, problem, TrainConfig(), nearest=None)())


def test_nothing_is_tried_without_validation(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    run = Race(monkeypatch, problem, TrainConfig(), validators=[])
    assert run() == []
    assert run.context.schedule == run.before
    assert not run.runs and not run.shown and not run.said.messages


def test_of_equals_the_earlier_is_kept(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    run = Race(monkeypatch, problem, TrainConfig())
    trials = run()
    first = {name: values[0] for rung in RUNGS for name, values in rung.varied.items()}
    first["identity_scale"] = max(RUNGS[0].varied["identity_scale"])  # the heaviest lexical part of those that tie
    expected = {"rate_start" if name == "rate" else name: value for name, value in first.items()}
    assert {name: getattr(run.context.schedule, name) for name in expected} == expected
    assert trials_best(trials) is trials[0]
    kept = [trial.settings for trial in trials if trial.rung == 1 and trial.kept]
    assert kept == [{"identity_scale": max(RUNGS[0].varied["identity_scale"])}]


def test_keyword_queries_have_more_epochs(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    run = Race(monkeypatch, problem, TrainConfig())
    run.context.schedule = replace(run.context.schedule, keyword_share=1.0)
    run.long = module.KEYWORD_EPOCHS
    run()
    assert run.context.schedule.epochs == module.KEYWORD_EPOCHS
    assert {epochs for _, epochs in run.runs} == {RUNGS[0].epochs, module.KEYWORD_EPOCHS}


def test_the_best_of_each_rung_goes_on(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    best = {name: values[0] for rung in RUNGS[:-1] for name, values in rung.varied.items()}
    best |= {name: RUNGS[number].varied[name][-1] for number, name in ((0, "identity_scale"), (1, "document_dropout"))}
    run = Race(monkeypatch, problem, TrainConfig())
    best["rate"] = RUNGS[-1].varied["rate"][-1]
    run.value = lambda settings, epochs: 0.1 + sum(best[name] == value for name, value in settings.items()) / 10
    trials = run()
    schedule = run.context.schedule
    changes: dict[str, Any] = {"rate_start" if name == "rate" else name: value for name, value in best.items()}
    assert schedule == replace(run.before, **changes, epochs=module.FINAL_EPOCHS)
    assert trials_best(trials).settings == best
    for number, rung in enumerate(RUNGS, 1):
        here = [trial for trial in trials if trial.rung == number]
        assert sum(trial.kept for trial in here) == 1
        assert max(trial.map for trial in here) == max(trial.map for trial in here if trial.kept)
        assert {trial.epochs for trial in here} == {rung.epochs}
    assert f"margin_identity {best['identity_scale']:g}, nearest_share" in run.said
    assert schedule_like(run.context, trials[0]).identity_scale == RUNGS[0].varied["identity_scale"][0]


@pytest.mark.parametrize(
    ("third", "fast", "expected"),
    [(0.01, 0.01, (54.0, 0.05)), (0.03, 0.0, (18.0, 0.05)), (0.02, 0.04, (54.0, 0.1))],
    ids=["a tie", "a third is better", "the higher rate is better"],
)
def test_long_runs_settle_the_identity_scale_or_the_rate(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, third: float, fast: float, expected: tuple[float, float]
) -> None:
    """Short runs say a is 54; long ones a third of it, or the higher rate: that counts if it is more than chance."""
    run = Race(monkeypatch, problem, TrainConfig())

    def value(settings: Mapping[str, float], epochs: int) -> float:
        if epochs < module.FINAL_EPOCHS:
            return 0.3 + settings["identity_scale"] / 1000
        return 0.3 * (1 + third * (settings["identity_scale"] == 18) + fast * (settings.get("rate") == 0.1))

    run.value = value
    run()
    assert (run.context.schedule.identity_scale, run.context.schedule.rate_start) == expected


def test_no_run_is_made_twice_and_progress_is_complete(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    for config in (TrainConfig(), TrainConfig(rate=0.1), TrainConfig(**STATED), TrainConfig(identity_scale=2.0)):
        run = Race(monkeypatch, problem, config)
        trials = run()
        done, totals = zip(*run.shown, strict=True)
        assert list(done) == sorted(done)
        assert set(totals) == {done[-1]} == {sum(trial.epochs for trial in trials)}
        with_defaults = [
            (
                epochs,
                tuple(
                    {
                        **{"rate": run.before.rate_start},
                        **{n: getattr(run.before, n, None) for n in STATED},
                        "nearest_share": run.before.nearest_share,
                        **settings,
                    }.items()
                ),
            )
            for settings, epochs in run.runs
        ]
        keys = [(epochs, frozenset((n, v) for n, v in items if v is not None)) for epochs, items in with_defaults]
        assert len(keys) == len(set(keys)) <= len(trials)


def test_a_setting_that_diverges_is_the_worst(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    real, (rate, identity) = linear.trainer_of, (RUNGS[-1].varied["rate"][-1], RUNGS[0].varied["identity_scale"][0])

    def trainer_of(context: TrainingContext, schedule: Schedule, **options: Any) -> Trainer:
        trainer = real(context, schedule, **options)
        if schedule.rate_start == rate or schedule.identity_scale == identity:
            monkeypatch.setattr(trainer, "run", diverging)
        return trainer

    def diverging(_U: Any, _V: Any) -> None:
        raise TrainingError("training diverges")

    monkeypatch.setattr(module, "trainer_of", trainer_of)
    _, report = train_model(
        DocumentSource(path), from_links(synonyms()[1]), TrainConfig(dim=8, epochs=1), compare=False
    )
    bad = [t for t in report.trials if t.settings.get("rate") == rate or t.settings["identity_scale"] == identity]
    assert bad and all((t.map, t.scale) == (0.0, 0.0) for t in bad)
    assert not any(t.kept for t in bad)
    assert min(t.map for t in report.trials if t not in bad) > 0
    assert report.valid_map > report.lexical_map + 0.2


@pytest.mark.parametrize("all_steps", [False, True])
def test_a_training_like_the_best_trial_ends_where_that_did(
    monkeypatch: pytest.MonkeyPatch, path: Path, all_steps: bool
) -> None:
    """It has the epochs of the trial: with fewer and longer ones, hard negatives would be looked up less often."""
    monkeypatch.setattr(module, "RACE_STEPS", 400)
    monkeypatch.setattr(module, "LONG_STEPS", 10**9 if all_steps else 0)
    monkeypatch.setattr(learning, "TIE", -100.0)  # no long run is better than that
    said = Said()
    _, report = train_model(
        DocumentSource(path), from_links(synonyms()[1]), TrainConfig(dim=8), compare=False, listener=Listener(said)
    )
    best = trials_best(report.trials)
    assert "the long run was not better" in said
    assert max(line.map or 0.0 for line in report.result.history) == best.map


def test_equal_seeds_try_the_same_and_the_report_has_it(path: Path) -> None:
    links, said = from_links(synonyms()[1]), Said()
    shown: list[tuple[str, int, int | None]] = []
    listener = Listener(said, lambda title, done, total: shown.append((title, done, total)))
    reports = [
        train_model(
            DocumentSource(path),
            links,
            TrainConfig(dim=8, epochs=1, document_dropout=0.0),
            compare=False,
            listener=listener,
        )[1]
        for _ in range(2)
    ]
    assert reports[0].trials == reports[1].trials
    assert varied(reports[0].trials) == {"identity_scale", "nearest_share", "rate"}
    assert all(0 < trial.map <= 1 and 0 <= trial.scale <= max(SCALES) for trial in reports[0].trials)
    assert f"of {len(reports[0].trials)} trial runs the best had" in said
    tried = [(done, total) for title, done, total in shown if title == "trying settings"]
    assert tried[-1][0] == tried[-1][1]


def test_runs_beside_each_other_find_what_one_after_the_other_does(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    links, config = from_links(synonyms()[1]), TrainConfig(dim=8, epochs=1)
    trials: list[Sequence[Trial]] = []
    at_once: list[int] = []

    def pool_of(n: int, thread_name_prefix: str) -> ThreadPoolExecutor:
        at_once.append(n)
        return ThreadPoolExecutor(n, thread_name_prefix)

    for mb in (0, 400):
        monkeypatch.setattr(cores, "RUNS_MB", mb)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        monkeypatch.setattr(cores, "ThreadPoolExecutor", pool_of)
        trials.append(train_model(DocumentSource(path), links, config, compare=False)[1].trials)
        at_once.append(0)
    assert trials[0] == trials[1]
    end = at_once.index(0)
    assert set(at_once[:end]) == {1} and max(at_once[end:]) == 4


def test_a_race_that_is_left_stops_its_runs(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    """The first run fails; what is at work beside it ends at its next report, and what waits never begins."""
    run, began = Race(monkeypatch, problem, TrainConfig()), Event()
    ended: list[bool] = []
    monkeypatch.setattr(os, "cpu_count", lambda: 2)

    def attempt(
        _context: Any, settings: Mapping[str, float], _epochs: int, _leader: Any, go_on: Any, *, leads: bool
    ) -> None:
        if settings["identity_scale"] == RUNGS[0].varied["identity_scale"][0]:
            assert began.wait(10)
            raise ValueError("the disk is gone")
        began.set()
        stopped = False
        while not stopped:
            try:
                go_on()
            except cores.RunStopped:
                stopped = True
        ended.append(True)

    monkeypatch.setattr(module, "_try", attempt)
    with pytest.raises(ValueError, match="the disk is gone"):
        run()
    assert 1 <= len(ended) < 3


def left() -> None:
    raise cores.RunStopped


def test_a_run_ends_at_its_next_report_when_the_race_is_left(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    run = Race(monkeypatch, problem, TrainConfig())
    monkeypatch.undo()
    start = replace(run.context, start=lambda _: (NONE.copy(), NONE.copy()), n_words=1)
    with pytest.raises(cores.RunStopped):
        module._try(start, {"identity_scale": 2.0}, 1, None, lambda *_: left(), leads=False)


def test_a_curve_waits_for_an_epoch_and_knows_the_best_until_then() -> None:
    curve = module._Curve()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(curve.at, 2)
        for value in (0.1, 0.4, 0.3, 0.5):
            curve.add(value)
        assert asked.result(10) == 0.4
        assert curve.at(0) == 0.1
        later = pool.submit(curve.at, 9)
        curve.end()
        assert later.result(10) == 0.5
    failed = module._Curve()
    failed.end()
    assert failed.at(5) == 0.0


def test_a_run_behind_the_leader_gives_up_at_a_milestone(monkeypatch: pytest.MonkeyPatch, problem: Problem) -> None:
    curves = {
        54.0: [0.1 * n for n in range(16)],
        18.0: [0.05 * n for n in range(16)],
        6.0: [0.101 * n for n in range(16)],
        2.0: [0.11 * n for n in range(16)],
    }
    run = Race(monkeypatch, problem, TrainConfig())

    class Run:
        def __init__(self, schedule: Schedule, evaluate: Any) -> None:
            self.values, self.evaluate = curves[schedule.identity_scale], evaluate

        def run(self, *_: Any) -> None:
            for _value in self.values:
                self.evaluate(NONE, NONE)

    monkeypatch.undo()
    at = {identity: iter(curve) for identity, curve in curves.items()}
    monkeypatch.setattr(module, "trainer_of", lambda _context, schedule, evaluate, **_: Run(schedule, evaluate))
    monkeypatch.setattr(module, "_best_scale", lambda _context, schedule, *_: (next(at[schedule.identity_scale]), 1.0))
    leader = module._Curve()
    on = (run.context, leader, lambda *_: None)

    def tried(identity: float, leads: bool) -> Outcome:
        return module._try(on[0], {"identity_scale": identity}, 15, on[1], on[2], leads=leads)

    leading, behind, hardly_ahead, ahead = (tried(identity, identity == 54.0) for identity in curves)
    assert (leading.epochs, leading.map) == (15, curves[54.0][15])
    first, second = (round(15 * share) for share in module.MILESTONES)
    assert (behind.epochs, behind.map) == (first, curves[18.0][first])
    assert (hardly_ahead.epochs, hardly_ahead.map) == (second, curves[6.0][second])
    assert (ahead.epochs, ahead.map) == (15, curves[2.0][15])


def test_the_best_long_run_is_the_training(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The model is the same, whether the run of the race is taken or made once more."""
    links, config = from_links(synonyms()[1]), TrainConfig(dim=8, epochs=3)
    taken, _ = train_model(DocumentSource(path), links, config, compare=False)
    monkeypatch.setattr(module, "_is_kept", lambda _context: False)
    again, _ = train_model(DocumentSource(path), links, config, compare=False)
    assert taken.model_id == again.model_id
    assert taken.U.any()
