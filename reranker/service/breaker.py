"""A circuit breaker: an engine that does not answer is left alone for a while, then tried with one request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from reranker.errors import EngineError, EngineUnavailable

T = TypeVar("T")


class Breaker:
    """Counts failures in a row; open after ``failures`` of them, half open after ``pause_s``.

    Open: calls fail at once. Half open: one call goes through; if it succeeds the breaker closes, else the pause
    begins anew.

    Parameters
    ----------
    failures : int
    pause_s : float
        Seconds.
    now : callable
        Monotonic seconds.
    on_failure : callable or None
        Told of every failure of the engine.
    """

    def __init__(
        self,
        failures: int,
        pause_s: float,
        now: Callable[[], float] = time.monotonic,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self._limit, self._pause_s, self._now = failures, pause_s, now
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._failed = 0
        self._opened: float | None = None
        self._probing = False

    @property
    def is_open(self) -> bool:
        """True while calls fail at once or one is tried."""
        return self._opened is not None

    def call(self, function: Callable[[], T], *, fair: bool = True) -> T:
        """Return what ``function`` returns, and count how it went.

        Only an engine that does not answer counts as a failure; any other error of the engine is an answer. Errors of
        other kinds, such as a version that cannot be loaded, say nothing of it.

        Parameters
        ----------
        function : callable
        fair : bool
            False where the engine is given so little time that its silence says nothing of it.

        Raises
        ------
        EngineUnavailable
            At once where the breaker is open; ``retry_after_s`` says when it will try again.
        """
        self._enter()
        try:
            value = function()
        except EngineUnavailable:
            self._failure(fair)
            raise
        except EngineError:
            self._success()
            raise
        except BaseException:
            with self._lock:
                self._probing = False
            raise
        self._success()
        return value

    def check(self) -> None:
        """Raise `EngineUnavailable` if a call would fail at once."""
        with self._lock:
            wait_s = self._wait_s()
        if wait_s > 0:
            raise _open_error(wait_s)

    def _wait_s(self) -> float:
        if self._opened is None:
            return 0.0
        left = self._opened + self._pause_s - self._now()
        return max(left, 0.05) if left > 0 or self._probing else 0.0

    def _enter(self) -> None:
        with self._lock:
            wait_s = self._wait_s()
            if wait_s <= 0:
                self._probing = self._opened is not None
        if wait_s > 0:
            raise _open_error(wait_s)

    def _failure(self, fair: bool) -> None:
        with self._lock:
            self._failed += fair
            if self._opened is not None or self._failed >= self._limit:
                self._opened, self._probing = self._now(), False
        if fair and self._on_failure is not None:
            self._on_failure()

    def _success(self) -> None:
        with self._lock:
            self._failed, self._opened, self._probing = 0, None, False


def _open_error(wait_s: float) -> EngineUnavailable:
    return EngineUnavailable(
        f"the engine did not answer before and is left alone for {wait_s:.1f} s more: try again then",
        error_type="breaker_open",
        retry_after_s=wait_s,
    )
