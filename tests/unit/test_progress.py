"""Progress of a run of several stages: the share never falls, and the remaining time changes smoothly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from reranker.progress import RunProgress

EXPECTED = {"reading": 2.0, "tuning": 16.0, "learning": 40.0, "judging": 10.0}
TICK_S = 0.1
Real = tuple[float, tuple[str, ...]]
"""Real duration of a stage, and the titles that it counts, each for an equal part of it."""
RUN: dict[str, Real] = {
    "reading": (1.0, ()),
    "tuning": (24.0, ()),
    "learning": (35.0, ("trying settings", "training")),
    "judging": (14.0, ("folds",)),
}


class Clock:
    """A clock that is set by the test."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def run_of(stages: dict[str, Real], progress: RunProgress, clock: Clock) -> Iterator[str]:
    """Simulate a run; yield the name of the stage at each tick."""
    progress.expect(EXPECTED)
    for stage, (seconds, titles) in stages.items():
        progress.begin(stage)
        n_ticks = round(seconds / TICK_S)
        for tick in range(n_ticks):
            clock.now += TICK_S
            if titles and tick % 40 == 39:  # counts are rare
                done = (tick + 1) / n_ticks * len(titles)
                place = min(int(done), len(titles) - 1)
                progress.update(titles[place], round(100 * (done - place)), 100)
            yield stage
    progress.end()


def test_the_share_never_falls_and_ends_at_1() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    shares = [progress.share() for _ in run_of(RUN, progress, clock)]
    assert all(after >= before for before, after in itertools.pairwise(shares))
    assert shares[0] < 0.03 and 0.9 < shares[-1] < 1
    assert progress.share() == 1 and progress.seconds_left() == 0


def test_the_share_moves_while_a_stage_counts_nothing() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    of_stage = [progress.share() for stage in run_of(RUN, progress, clock) if stage == "tuning"]
    assert all(after > before for before, after in itertools.pairwise(of_stage))


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_the_remaining_time_does_not_jump(factor: float) -> None:
    clock = Clock()
    progress = RunProgress(clock)
    stages = {name: (factor * seconds, titles) for name, (seconds, titles) in RUN.items()}
    total = sum(seconds for seconds, _ in stages.values())
    left = [progress.seconds_left() for _ in run_of(stages, progress, clock)]
    known = [seconds for seconds in left if seconds is not None]
    assert len(known) > 0.9 * len(left)
    changes = [after - before for before, after in itertools.pairwise(known)]
    assert max(map(abs, changes)) < 0.02 * total
    # After half of the run, the estimate is within a fifth of the run.
    half = len(left) // 2
    real = [total - TICK_S * (tick + 1) for tick in range(len(left))]
    off = [abs(estimate - remaining) for estimate, remaining in zip(known[-half:], real[-half:], strict=True)]
    assert max(off) < 0.2 * total


def test_a_count_fills_a_part_of_its_stage() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    progress.expect({"learning": 3.0, "judging": 1.0})
    progress.begin("learning")
    clock.now += 1
    progress.update("training", 50, 100)
    assert progress.stage == "learning: training" and progress.share() == pytest.approx(0.75 * 0.4)
    progress.update("training short queries", 100, 100)  # of the rest, 0.6, this is the share 0.8
    assert progress.share() == pytest.approx(0.75 * (0.4 + 0.8 * 0.6))
    progress.begin("judging")
    assert progress.stage == "judging" and progress.share() == pytest.approx(0.75)


def test_many_titles_never_fill_more_than_their_stage() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    progress.expect({"learning": 3.0, "judging": 1.0})
    progress.begin("learning")
    for number in range(100):
        clock.now += 1
        progress.update(f"class {number}", 1, 1)
    assert progress.share() == pytest.approx(0.75)


def test_an_unexpected_stage_takes_no_share() -> None:
    clock = Clock()
    progress = RunProgress(clock)
    progress.expect({"learning": 1.0})
    progress.begin("checking")
    clock.now += 5
    assert progress.share() == 0 and progress.seconds_left() is None
