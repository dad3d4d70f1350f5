"""Work in threads, bounded in number, each within its request's deadline."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from reranker.service.context import Deadline
from reranker.service.errors import ServiceError

T = TypeVar("T")
GRACE_S = 0.05
"""Seconds past the deadline before a thread's answer is no longer waited for: its own deadline should end it."""
LEAST_SHARE = 0.5
"""Share of the deadline that must be left for work to begin: a search begun later would end in nothing."""
NEWEST = 0.05
"""Weight of the newest work in the mean of how long work takes."""


class Workers:
    """A fixed number of threads; whoever finds them busy waits, within the deadline.

    Parameters
    ----------
    n : int
        Threads.
    """

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
        self.busy += 1
        started = loop.time()
        work = loop.run_in_executor(self._pool, contextvars.copy_context().run, function)

        def done(_: object) -> None:
            self.busy -= 1
            self._mean_s += NEWEST * (loop.time() - started - self._mean_s)
            free.release()

        # A thread that is late keeps its place until it ends: nothing piles up behind it.
        work.add_done_callback(done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), deadline.left_s + GRACE_S)
        except TimeoutError:
            work.add_done_callback(_look_away)
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0) from None

    async def _wait(self, free: asyncio.Semaphore, deadline: Deadline) -> None:
        patience_s = deadline.left_s - LEAST_SHARE * deadline.limit_s
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


def _look_away(work: asyncio.Future[T]) -> None:
    """Take the outcome of work nobody waits for, so that it is not reported as forgotten."""
    if not work.cancelled():
        work.exception()
