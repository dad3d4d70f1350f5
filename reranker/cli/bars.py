"""One progress bar at a time on standard error, for work in several stages."""

from __future__ import annotations

from contextlib import AbstractContextManager

from reranker.cli.common import Update, progress

_UNITS = {"training": "steps", "scoring shown documents": "queries"}


class Bars:
    """Shows a bar for each stage, opened when the stage first reports and closed when another does.

    Parameters
    ----------
    unit : str
        What is counted in stages that `_UNITS` does not name.
    """

    def __init__(self, unit: str = "documents") -> None:
        self._unit = unit
        self._title = ""
        self._bar: AbstractContextManager[Update] | None = None
        self._update: Update = lambda _done, _total: None

    def update(self, title: str, done: int, total: int | None) -> None:
        """Show that a stage has come so far."""
        if title != self._title:
            self._close()
            self._title = title
            self._bar = progress(title, total, _UNITS.get(title, self._unit))
            self._update = self._bar.__enter__()
        self._update(done, total)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar, self._title = None, ""

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
