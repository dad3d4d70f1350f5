"""Progress of long work: told to a callback, so that the same code runs under a bar, a log or nothing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int | None], None]
"""Called with (done, total); the total is None where it is not known."""

TitledProgress = Callable[[str, int, int | None], None]
"""Called with (title of the part of the work, done, total)."""

Say = Callable[[str], None]
"""Called with one line for people."""


def no_progress(done: int, total: int | None) -> None:
    """Ignore progress."""


def no_titled_progress(title: str, done: int, total: int | None) -> None:
    """Ignore progress."""


def silent(text: str) -> None:
    """Ignore a line for people."""
