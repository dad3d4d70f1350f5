"""Progress of long work: told to a callback, so that the same code runs under a bar, a log or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int | None], None]
"""Called with (done, total); the total is None where it is not known."""

TitledProgress = Callable[[str, int, int | None], None]
"""Called with (title of the part of the work, done, total)."""

Say = Callable[[str], None]
"""Called with one line for people."""


def no_progress(*_: object) -> None:
    """Ignore progress, or a line for people."""


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Note how many seconds a step took, once it has ended well."""
    started = time.monotonic()
    yield
    seconds[step] = time.monotonic() - started


no_titled_progress = silent = no_progress
