"""Deadlines: the time limit of a request or a wait, and the time spent in each stage, which is also a span."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from reranker.errors import FallbackError
from reranker.records import ReasonKind
from reranker.tracing import traced


class Deadline:
    """The time limit of a request or a wait, which starts when the instance is created.

    Parameters
    ----------
    limit_s : float, optional
        Time limit in seconds; None: no limit.
    now : callable
        Clock, in seconds.

    Attributes
    ----------
    reserved_s : float
        Seconds at the end of the time limit that count as passed, see `reserving`.
    stages_ms : dict of str to float
        Milliseconds by stage, as recorded by `stage`.
    """

    def __init__(self, limit_s: float | None = None, now: Callable[[], float] = time.perf_counter) -> None:
        self.limit_s, self.now = limit_s, now
        self.reserved_s = 0.0
        self.started = now()
        self.stages_ms: dict[str, float] = {}
        self._ended = [self.started]  # end of the last stage, shared with deadlines of `reserving`

    @property
    def spent_s(self) -> float:
        """Seconds since the creation."""
        return self.now() - self.started

    @property
    def left_s(self) -> float:
        """Remaining seconds, 0 or more; infinite without a limit."""
        return math.inf if self.limit_s is None else max(self.limit_s - self.reserved_s - self.spent_s, 0.0)

    @property
    def left_ms(self) -> float:
        """Remaining milliseconds, 0 or more; infinite without a limit."""
        return self.left_s * 1000.0

    @property
    def passed(self) -> bool:
        """True if no time is left."""
        return self.left_s == 0.0

    def timeout_s(self, at_least: float = 0.001) -> float | None:
        """Return the timeout for a request to an engine in seconds, ``at_least`` or more; None without a limit."""
        return None if self.limit_s is None else max(self.left_s, at_least)

    def reserving(self, seconds: float) -> Deadline:
        """Return a deadline that passes earlier by these seconds; stages are noted in both."""
        other = copy.copy(self)
        other.reserved_s = seconds
        return other

    def check(self, doing: str) -> None:
        """Raise `FallbackError` if the deadline has passed. ``doing`` names the current step in the message."""
        if self.passed and self.limit_s is not None:
            reserved = (
                f" (less {self.reserved_s * 1000.0:.0f} ms for the engine's own answer)" if self.reserved_s else ""
            )
            message = f"the deadline of {self.limit_s * 1000.0:g} ms{reserved} passed while {doing}"
            raise FallbackError(ReasonKind.DEADLINE, message)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Run the block as the stage ``name``, in a span; the time since the last stage is added, even if it fails."""
        return _Stage(self, name)

    def _end_stage(self, name: str) -> None:
        now = self.now()
        self.stages_ms[name] = self.stages_ms.get(name, 0.0) + (now - self._ended[0]) * 1000.0
        self._ended[0] = now


class _Stage:
    """One run of a stage. A class, because a search has many stages and a generator takes several times as long."""

    __slots__ = ("_deadline", "_name", "_span")

    def __init__(self, deadline: Deadline, name: str) -> None:
        self._deadline, self._name, self._span = deadline, name, traced(name)

    def __enter__(self) -> None:
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            self._deadline._end_stage(self._name)
