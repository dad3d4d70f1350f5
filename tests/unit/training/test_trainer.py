"""The training loop: best state, early stop, divergence, halves, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reranker.arrays import Float32
from reranker.errors import TrainingError
from reranker.kernels.rows import embed_rows
from reranker.kernels.sgd import Parameters, average_changed, sgd_steps
from reranker.training.config import Schedule
from reranker.training.problem import Problem
from reranker.training.trainer import Trainer, TrainingCheckpoint, TrainResult, start_parameters, steps_of
from reranker.training.training_set import from_links
from tests.unit.training.synthetic import Said, corpus_of, problem_of, schedule, synonyms, write_documents

DIM = 8


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    documents, links = synonyms()
    evidence = from_links(links)
    corpus = corpus_of(write_documents(tmp_path_factory.mktemp("synonyms") / "docs.jsonl", documents), evidence)
    return problem_of(corpus, evidence)


def start(problem: Problem, numbers: Schedule) -> tuple[Float32, Float32]:
    return start_parameters(numbers, problem.n_columns, DIM, np.random.default_rng(1))


def train(problem: Problem, numbers: Schedule, seed: int = 2, **options: Any) -> TrainResult:
    trainer = Trainer(problem, numbers, np.random.default_rng(seed), **options)
    return trainer.run(*start(problem, numbers))


def loss(problem: Problem, result: TrainResult) -> float:
    """Return the share of tuples whose margin a random document violates."""
    import scipy.sparse as sp

    shape = (-1, problem.n_columns)
    queries, documents = (
        sp.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(rows.indptr) - 1, shape[1]))
        for rows in (problem.queries, problem.documents)
    )
    scores = 3 * np.asarray((queries @ documents.T).todense()) + (queries @ result.U) @ (documents @ result.V).T
    negatives = np.random.default_rng(0).choice(problem.negatives.pool, len(problem.tuples.query))
    gained = scores[problem.tuples.query, problem.tuples.document]
    return float(np.mean(1 - gained + scores[problem.tuples.query, negatives] > 0))


class Planned:
    """Validation that gives planned values, the first one to the start, and keeps what it was asked about."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self.seen: list[tuple[Float32, Float32]] = []

    def __call__(self, U: Float32, V: Float32) -> float:
        self.seen.append((U.copy(), V.copy()))
        return self.values[len(self.seen) - 1]


def test_training_lowers_the_loss(problem: Problem) -> None:
    numbers = schedule(epochs=3, only_whole=True)
    untrained = TrainResult(*start(problem, numbers), 0, None)
    result = train(problem, numbers)
    assert loss(problem, result) < 0.5 * loss(problem, untrained)
    assert [line.number for line in result.history] == [1, 2, 3]
    assert result.history[-1].violating < result.history[0].violating <= 1


def test_the_best_state_is_returned(problem: Problem) -> None:
    plan = Planned([0.1, 0.3, 0.5, 0.4, 0.45])
    result = train(problem, schedule(epochs=4), evaluate=plan)
    assert (result.best_epoch, result.best_map) == (2, 0.5)
    assert np.array_equal(result.U, plan.seen[2][0])
    assert np.array_equal(result.V, plan.seen[2][1])
    assert not np.array_equal(result.U, plan.seen[4][0])


def test_the_start_is_returned_if_nothing_is_better(problem: Problem) -> None:
    plan = Planned([0.5] * 9)
    result = train(problem, schedule(epochs=8), evaluate=plan)
    assert (result.best_epoch, len(result.history)) == (0, 5)
    assert not result.V.any()


def test_it_stops_after_patience_epochs_without_a_better_value(problem: Problem) -> None:
    plan = Planned([0.1, 0.2, 0.1, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.9])
    result = train(problem, schedule(epochs=20), evaluate=plan)
    assert (result.best_epoch, len(result.history)) == (3, 8)


def test_without_validation_the_last_state_is_returned(problem: Problem) -> None:
    result = train(problem, schedule(epochs=2))
    assert (result.best_epoch, result.best_map) == (2, None)


def test_equal_seeds_give_equal_bytes(problem: Problem) -> None:
    one, two, other = (train(problem, schedule(epochs=2), seed=seed) for seed in (2, 2, 3))
    assert one.U.tobytes() + one.V.tobytes() == two.U.tobytes() + two.V.tobytes()
    assert one.U.tobytes() != other.U.tobytes()


def trainer_in_halves(problem: Problem, epochs: int, rate: float = 0.1, **options: Any) -> Trainer:
    numbers = replace(schedule(epochs=epochs), freeze_documents=True, max_norm=0.0, rate_start=rate)
    return Trainer(problem, numbers, np.random.default_rng(3), halves=True, **options)


def in_halves(problem: Problem, epochs: int, rate: float = 0.1, **options: Any) -> TrainResult:
    """Train U in halves, with documents that were learned before."""
    learned = train(problem, schedule(epochs=1))
    return trainer_in_halves(problem, epochs, rate, **options).run(learned.U.copy(), learned.V)


def test_halves_are_averaged_after_each_quarter_of_an_epoch(problem: Problem) -> None:
    learned = train(problem, schedule(epochs=1))
    numbers = replace(schedule(epochs=1), freeze_documents=True)
    trainer = Trainer(problem, numbers, np.random.default_rng(3), halves=True)
    states, expected = [state.copy() for state in trainer.states], learned.U.copy()
    arrays = (problem.queries, problem.documents, problem.lexical, problem.tuples, problem.negatives)
    vectors = embed_rows(problem.documents, learned.V)
    for start_of_quarter in range(0, 5_000, 1_250):
        tables = [expected.copy(), expected.copy()]
        for half, (table, state) in enumerate(zip(tables, states, strict=True)):
            first = start_of_quarter + half * 625
            sgd_steps(*arrays, Parameters(table, learned.V, vectors), trainer._config(), state, first, 625)
        changed = [(table != expected).any(axis=1) for table in tables]
        assert (changed[0] & changed[1]).any()
        average_changed(*tables, expected)
    assert np.array_equal(trainer.run(learned.U.copy(), learned.V).U, expected)


def test_halves_learn_as_well_as_the_whole(problem: Problem) -> None:
    learned, numbers = train(problem, schedule(epochs=1)), replace(schedule(epochs=3), freeze_documents=True)
    untrained, _ = start(problem, numbers)
    whole, halves = (
        Trainer(problem, numbers, np.random.default_rng(3), halves=halves).run(untrained.copy(), learned.V)
        for halves in (False, True)
    )
    before = loss(problem, TrainResult(untrained, learned.V, 0, None))
    assert loss(problem, whole) < 0.5 * before
    assert loss(problem, halves) < loss(problem, whole) + 0.1 * before


@pytest.mark.usefixtures("every_epoch")
def test_halves_that_were_stopped_go_on_to_the_same_bytes(problem: Problem, tmp_path: Path) -> None:
    whole = in_halves(problem, 3)
    checkpoint = TrainingCheckpoint(tmp_path / "run", {"run": 1})
    with pytest.raises(Stop):
        in_halves(problem, 3, checkpoint=checkpoint, progress=stopping_at(8_750))
    assert in_halves(problem, 3, checkpoint=checkpoint).U.tobytes() == whole.U.tobytes()


def test_halves_that_diverge_go_on_from_before(problem: Problem) -> None:
    said = Said()
    result = in_halves(problem, 2, rate=1e37, say=said)
    assert result.halvings > 0
    assert np.isfinite(result.U).all()


def test_after_a_diverged_epoch_both_halves_begin_where_it_began(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = train(problem, schedule(epochs=1))
    drawn, again = trainer_in_halves(problem, 1), trainer_in_halves(problem, 1)
    drawn.run(learned.U.copy(), learned.V)
    again.states, again.rate_factor = drawn.states, 0.5
    expected = again.run(learned.U.copy(), learned.V)
    verdicts = iter([False])
    monkeypatch.setattr("reranker.training.trainer.is_finite", lambda _: next(verdicts, True))
    result = trainer_in_halves(problem, 1).run(learned.U.copy(), learned.V)
    assert result.halvings == 1
    assert np.array_equal(result.U, expected.U)


def test_halves_need_fixed_documents(problem: Problem) -> None:
    with pytest.raises(ValueError, match="halves learn from fixed documents"):
        Trainer(problem, schedule(epochs=1), np.random.default_rng(3), halves=True)


def test_steps_of_an_epoch(problem: Problem) -> None:
    assert steps_of(problem) == 5_000
    many = np.arange(1_200_000) // 10
    assert steps_of(replace(problem, tuples=problem.tuples._replace(query=many[:7_000]))) == 7_000
    assert steps_of(replace(problem, tuples=problem.tuples._replace(query=many))) == 1_000_000
    assert steps_of(replace(problem, tuples=problem.tuples._replace(query=many[:120_000] // 10))) == 10 * 1_200


def test_progress_reaches_the_end(problem: Problem) -> None:
    seen: list[tuple[int, int | None]] = []
    train(problem, schedule(epochs=2), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (10_000, 10_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def uncapped(rate: float, epochs: int = 2) -> Schedule:
    return replace(schedule(epochs=epochs, only_whole=True), max_norm=0.0, rate_start=rate)


def test_a_huge_rate_is_noticed_halved_and_said(problem: Problem) -> None:
    said = Said()
    result = train(problem, uncapped(DIVERGING), say=said)
    assert 1 <= result.halvings <= 6
    assert "diverged; going on from before it with half the rate" in said
    assert f"({DIVERGING / 2:.3g})" in said
    assert result.history[-1].rate == DIVERGING / 2**result.halvings
    assert np.isfinite(result.U).all()
    assert np.isfinite(result.V).all()
    assert len(result.history) == 2


def test_a_hopeless_rate_is_an_error(problem: Problem) -> None:
    said = Said()
    with pytest.raises(TrainingError, match=r"diverges in epoch 1 even at a rate of .*: check the weights"):
        train(problem, uncapped(1e30), say=said)
    assert len(said.messages) == 6


def test_a_diverged_epoch_is_not_kept(problem: Problem) -> None:
    plan = Planned([0.1, 0.2, 0.3, 0.4])
    train(problem, uncapped(DIVERGING), evaluate=plan)
    assert len(plan.seen) == 3  # the start and two whole epochs
    assert all(np.isfinite(U).all() for U, _ in plan.seen)


DIVERGING = 8.0


class Stop(Exception):
    """Raised in the middle of a run."""


def stopping_at(step: int) -> Callable[[int, int | None], None]:
    def progress(done: int, _: int | None) -> None:
        if done == step:
            raise Stop

    return progress


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the state after each epoch, however short it is."""
    monkeypatch.setattr("reranker.training.trainer.CHECKPOINT_SECONDS", 0.0)


@pytest.mark.usefixtures("every_epoch")
def test_a_run_stopped_anywhere_goes_on_to_the_same_bytes(problem: Problem, tmp_path: Path) -> None:
    numbers = schedule(epochs=4)
    values = [0.1, 0.4, 0.3, 0.35, 0.2]
    whole = train(problem, numbers, evaluate=Planned(values))
    for stop in range(1_250, 20_001, 3_750):
        checkpoint = TrainingCheckpoint(tmp_path / str(stop), {"run": 1})
        said = Said()
        with pytest.raises(Stop):
            train(problem, numbers, evaluate=Planned(values), checkpoint=checkpoint, progress=stopping_at(stop))
        done = (stop - 1) // 5_000
        plan = Planned([values[0], *values[done + 1 :]])
        result = train(problem, numbers, evaluate=plan, checkpoint=checkpoint, say=said)
        assert ("going on after epoch" in said) == (done > 0)
        assert (result.best_epoch, result.best_map) == (whole.best_epoch, whole.best_map)
        assert result.U.tobytes() == whole.U.tobytes()
        assert result.V.tobytes() == whole.V.tobytes()
        assert [replace(line, seconds=0) for line in result.history] == [
            replace(line, seconds=0) for line in whole.history
        ]


def test_short_epochs_share_a_checkpoint(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.0, 4.0, 9.9, 10.0, 10.0])  # an epoch asks once, or twice if it writes
    monkeypatch.setattr("reranker.training.trainer.time", SimpleNamespace(monotonic=now.__next__, perf_counter=int))
    checkpoint = TrainingCheckpoint(tmp_path / "run", {"run": 1})
    written: list[int] = []
    monkeypatch.setattr(checkpoint, "write", lambda epoch, *_: written.append(epoch))
    train(problem, schedule(epochs=4), checkpoint=checkpoint)
    assert written == [1, 4]


def test_a_run_that_slowed_down_goes_on_to_the_same_bytes(problem: Problem, tmp_path: Path) -> None:
    numbers = uncapped(DIVERGING, epochs=3)
    whole = train(problem, numbers)
    checkpoint = TrainingCheckpoint(tmp_path / "run", {"run": 1})
    with pytest.raises(Stop):
        train(problem, numbers, checkpoint=checkpoint, progress=stopping_at(7_500))
    result = train(problem, numbers, checkpoint=checkpoint)
    assert result.halvings == whole.halvings > 0
    assert result.U.tobytes() == whole.U.tobytes()


@pytest.mark.parametrize(
    ("values", "taken"),
    [
        ([0.1, 0.4, 0.3, 0.3995, 0.2], 3),  # almost as good as the best, and later
        ([0.1, 0.4, 0.3995, 0.3975, 0.2], 2),  # what is compared is the best of all, not the one before
        ([0.1, 0.0999, 0.0999, 0.05, 0.02], 0),  # nothing is learned that is not better than the start
        ([0.1, 0.0999, 0.2, 0.1, 0.1], 2),
    ],
)
def test_of_almost_equal_epochs_the_last_is_taken(problem: Problem, values: list[float], taken: int) -> None:
    result = train(problem, schedule(epochs=4), evaluate=Planned(values))
    assert (result.best_epoch, result.best_map) == (taken, values[taken])


def test_a_finished_run_is_taken_as_it_is(problem: Problem, tmp_path: Path) -> None:
    checkpoint = TrainingCheckpoint(tmp_path / "run", {"run": 1})
    first = train(problem, schedule(epochs=2), checkpoint=checkpoint)
    again = train(problem, schedule(epochs=2), checkpoint=checkpoint, progress=stopping_at(1_250))
    assert first.U.tobytes() == again.U.tobytes()
