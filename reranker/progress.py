"""Callbacks for the progress of long work, so that the same code works with a progress bar, a log or no output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
