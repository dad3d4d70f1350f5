"""Work in bounded time: threads, and a circuit breaker around an engine that may not answer."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from reranker.deadline import Deadline
from reranker.errors import EngineError, EngineUnavailable
from reranker.service.http import ServiceError

T = TypeVar("T")
GRACE_S = 0.05
"""Seconds past the deadline before a thread's answer is no longer waited for: its own deadline should end it."""
LEAST_SHARE = 0.5
"""Share of the deadline that must be left for work to begin: a search begun later would end in nothing."""
NEWEST = 0.05
"""Weight of the newest work in the mean of how long work takes."""


class Breaker:
    """A circuit breaker. Counts failures in a row; open after ``failures`` of them, half open after ``pause_s``.

    Open: calls fail at once. Half open: one call goes through; if it succeeds the breaker closes, else the pause
    begins anew. One that has not ended ``pause_s`` later is no longer waited for: another goes through.

    ``now`` gives monotonic seconds; ``on_failure`` is called with every failure of the engine.
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
        self._probe_until = 0.0

    @property
    def is_open(self) -> bool:
        """True while calls fail at once or one is tried."""
        return self._opened is not None

    def call(self, function: Callable[[], T], *, fair: bool = True) -> T:
        """Return what ``function`` returns, and count how it went.

        Only an engine that does not answer counts as a failure; any other error of the engine is an answer. Errors of
        other kinds, such as a version that cannot be loaded, say nothing of it; nor does silence in too little time
        (``fair`` is False).

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
                self._probe_until = 0.0
            raise
        self._success()
        return value

    def check(self) -> None:
        """Raise `EngineUnavailable` if a call would fail at once."""
        with self._lock:
            self._refuse_while_open()

    def _refuse_while_open(self) -> None:
        if self._opened is None:
            return
        left_s = max(self._opened + self._pause_s, self._probe_until) - self._now()
        if left_s > 0:
            wait_s = max(left_s, 0.05)
            raise EngineUnavailable(
                f"the engine did not answer before and is left alone for {wait_s:.1f} s more: try again then",
                error_type="breaker_open",
                retry_after_s=wait_s,
            )

    def _enter(self) -> None:
        with self._lock:
            self._refuse_while_open()
            if self._opened is not None:
                self._probe_until = self._now() + self._pause_s

    def _failure(self, fair: bool) -> None:
        with self._lock:
            self._failed += fair
            if self._opened is not None or self._failed >= self._limit:
                self._opened, self._probe_until = self._now(), 0.0
        if fair and self._on_failure is not None:
            self._on_failure()

    def _success(self) -> None:
        with self._lock:
            self._failed, self._opened, self._probe_until = 0, None, 0.0


class Workers:
    """A fixed number of threads; whoever finds them busy waits, within the deadline."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._pool = ThreadPoolExecutor(n, thread_name_prefix="ssi-work")
        self._free: asyncio.Semaphore | None = None
        self._mean_s = 0.0
        self.waiting = 0
        self.busy = 0

    @property
    def expected_wait_s(self) -> float:
        """Seconds that one more request would wait for a thread, by how long work took lately."""
        return self.waiting * self._mean_s / self._n

    async def run(self, deadline: Deadline, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in a thread.

        Raises
        ------
        ServiceError
            503 where no thread becomes free in time, or the function does not end by the deadline.
        """
        free = self._free = self._free or asyncio.Semaphore(self._n)
        await self._wait(free, deadline)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            work = loop.run_in_executor(self._pool, contextvars.copy_context().run, function)
        except RuntimeError:
            free.release()
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0) from None
        self.busy += 1

        def done(work: asyncio.Future[T]) -> None:
            # Also where nobody waits for it any more: asyncio would log the words of an outcome never taken.
            if not work.cancelled():
                work.exception()
            self.busy -= 1
            self._mean_s += NEWEST * (loop.time() - started - self._mean_s)
            free.release()

        # A thread that is late keeps its place until it ends: nothing piles up behind it.
        work.add_done_callback(done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), deadline.left_s + GRACE_S)
        except TimeoutError:
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0) from None

    async def _wait(self, free: asyncio.Semaphore, deadline: Deadline) -> None:
        patience_s = deadline.left_s - LEAST_SHARE * (deadline.limit_s or 0.0)
        if not free.locked():
            await free.acquire()
            return
        self.waiting += 1
        try:
            await asyncio.wait_for(free.acquire(), max(patience_s, 0.0))
        except TimeoutError:
            raise ServiceError(
                503, "the service is too busy to answer in time", kind="overloaded", retry_after_s=1.0
            ) from None
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Let no new work begin; threads end when theirs does."""
        self._pool.shutdown(wait=False, cancel_futures=True)
