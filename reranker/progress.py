"""Callbacks for the progress of long work, so that the same code works with a progress bar, a log or no output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Progress = Callable[[int, int | None], None]
"""Callback with (done, total). The total is None if it is unknown."""

TitledProgress = Callable[[str, int, int | None], None]
"""Callback with (title of the stage, done, total)."""

Say = Callable[[str], None]
"""Callback with a message of one line."""


def no_progress(*_: object) -> None:
    """Ignore progress or a message."""


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Record the duration of a step in seconds, if it ends without an error."""
    started = time.monotonic()
    yield
    seconds[step] = time.monotonic() - started


no_titled_progress = silent = no_progress


class RunProgress:
    """Share of a run of several stages that is done, and the time that is left.

    Each stage has an expected duration. Within a stage, the share follows the counts that the stage reports, and
    between two counts the clock: a stage that counts rarely, or never, does not stand still. The share never falls.

    Attributes
    ----------
    stage : str
        Name of the current stage, followed by the title of its last count, if there is one.
    """

    _LINEAR = 0.75
    """Part of a stage that the clock fills at the expected speed. It approaches the end more and more slowly."""
    _TITLE = 0.8
    """Part of the rest of a stage that one title fills, because another title may follow."""
    _CALM = 0.2
    """Time over which changes of the remaining time are smoothed, relative to the elapsed time."""
    _LEAST = 0.05
    """Share from which the remaining time is estimated."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.stage = ""
        self._clock = clock
        self._expected: dict[str, float] = {}
        self._ended = self._ended_s = 0.0  # expected and real seconds of the stages that have ended
        self._share = 0.0
        self._started = self._stage_started = clock()
        self._name = self._title = ""
        self._title_begins, self._counted, self._counted_at = 0.0, 0.0, self._started
        self._left: float | None = None
        self._left_at = self._started

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Set the stages, in order, and their expected duration. Only the ratios of the durations matter in the end."""
        self._expected = dict(seconds)

    def begin(self, stage: str) -> None:
        """Begin a stage. A stage that is not expected takes no part of the run."""
        now = self._clock()
        self._end_stage(now)
        self.stage = self._name = stage
        self._title = ""
        self._title_begins, self._counted, self._counted_at = 0.0, 0.0, now

    def update(self, title: str, done: int, total: int | None) -> None:
        """Report a count of the current stage; several titles of a stage follow one another."""
        if title != self._title:
            self._title, self._title_begins = title, self._counted
        self.stage = f"{self._name}: {title}" if self._name else title
        if total:
            rest = 1.0 - self._title_begins
            self._counted = max(self._counted, self._title_begins + self._TITLE * rest * min(done / total, 1.0))
            self._counted_at = self._clock()

    def end(self) -> None:
        """End the run: the share is 1."""
        self._end_stage(self._clock())
        self.stage, self._share = "done", 1.0

    def share(self) -> float:
        """Return the share of the run that is done, from 0 to 1."""
        total = sum(self._expected.values())
        if total:
            done = self._ended + self._expected.get(self._name, 0.0) * self._within(self._clock())
            self._share = max(self._share, min(done / total, 1.0))
        return self._share

    def seconds_left(self) -> float | None:
        """Return the estimated time to the end of the run, smoothed; None while too little is done."""
        share, now = self.share(), self._clock()
        if share < self._LEAST:
            return None
        elapsed = now - self._started
        estimate = elapsed * (1.0 - share) / share
        if self._left is None or share == 1.0:
            self._left = estimate
        else:
            passed = now - self._left_at
            predicted = max(self._left - passed, 0.0)
            self._left = predicted + (estimate - predicted) * -math.expm1(-passed / (self._CALM * elapsed + 1.0))
        self._left_at = now
        return self._left

    def _end_stage(self, now: float) -> None:
        expected = self._expected.get(self._name, 0.0)
        self._ended += expected
        self._ended_s += (now - self._stage_started) if expected else 0.0
        self._name, self._stage_started = "", now

    def _within(self, now: float) -> float:
        """Return the share of the current stage that is done."""
        expected, passed = self._expected.get(self._name, 0.0), self._counted_at - self._stage_started
        if self._counted and passed > 0:
            speed = self._counted / passed
        else:  # by the stages before; the longer they took, the more they count
            speed = (self._ended + 10.0) / (self._ended_s + 10.0) / max(expected, 1e-9)
        rest = max(1.0 - self._counted, 1e-9)  # many titles fill a stage
        x = (now - self._counted_at) * speed / rest
        tail = 1.0 - self._LINEAR
        return self._counted + rest * (x if x <= self._LINEAR else 1.0 - tail * math.exp((self._LINEAR - x) / tail))
