"""The work of requests: a bounded number at the same time, each within its deadline, on the event loop or in threads.

Work that mostly waits for the engine runs on the event loop, other work and that of embedded engines in a thread.
Further requests wait in one queue for a place, within their deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from reranker.deadline import Deadline
from reranker.engines.event_loop import in_greenlet
from reranker.engines.wire import request_deadline
from reranker.service.http import ServiceError

T = TypeVar("T")
GRACE_S = 0.05
"""Seconds after the deadline until which a result is still awaited; its own deadline should end the work before."""
MOST_ON_LOOP = 1000
"""Largest number of documents whose work runs on the event loop: more would keep other requests waiting."""


class Places:
    """A fixed number of places. Requests wait for a free one in the order in which they came, within their deadline."""

    def __init__(self, n: int) -> None:
        self._free = asyncio.Semaphore(n)
        self.busy = 0
        """Occupied places."""
        self.waiting = 0
        """Requests waiting for a place."""

    async def take(self, deadline: Deadline) -> None:
        """Take a place, which `release` gives back. Raises `ServiceError` 503 if none becomes free in time."""
        self.waiting += 1
        try:
            async with asyncio.timeout(deadline.timeout_s()):
                await self._free.acquire()
        except TimeoutError:
            message = "the service is too busy to answer in time"
            raise ServiceError(503, message, kind="overloaded", retry_after_s=1.0) from None
        finally:
            self.waiting -= 1
        self.busy += 1

    def release(self) -> None:
        """Give a place back."""
        self.busy -= 1
        self._free.release()

    @asynccontextmanager
    async def place(self, deadline: Deadline) -> AsyncIterator[None]:
        """Hold a place; raises the error of `take`."""
        await self.take(deadline)
        try:
            yield
        finally:
            self.release()


class Work(Places):
    """Runs the work of requests, of which ``n`` have a place at the same time."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._pool = ThreadPoolExecutor(n, thread_name_prefix="ssi-work")

    async def on_loop(self, deadline: Deadline, function: Callable[[], T]) -> T:
        """Return the result of ``function``, whose requests the event loop sends (`in_greenlet`).

        All its requests to an engine end at the deadline, at the latest. Raises `ServiceError` 503 after the deadline.
        """
        async with self.place(deadline):
            return await self.without_place(deadline, function)

    async def without_place(self, deadline: Deadline, function: Callable[[], T]) -> T:
        """Return the result of ``function`` as `on_loop`, but without waiting for a place.

        For the service's own searches: behind those of others they would be late, and the engine would seem to fail.
        """
        try:
            async with _late_after(deadline) as limit:
                return await in_greenlet(lambda: _bounded(deadline, function))
        except TimeoutError as error:
            raise (_too_late() if limit.expired() else error) from None

    async def in_thread(self, deadline: Deadline, function: Callable[[], T]) -> T:
        """Return the result of ``function``, which runs in a thread; else as `on_loop`.

        A thread that is late keeps its place until it ends, so that no work queues up behind it.
        """
        await self.take(deadline)
        try:
            context = contextvars.copy_context()
            work = asyncio.get_running_loop().run_in_executor(self._pool, context.run, _bounded, deadline, function)
        except RuntimeError:
            self.release()
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0) from None
        work.add_done_callback(self._ended)
        try:
            async with _late_after(deadline) as limit:
                return await asyncio.shield(work)
        except TimeoutError as error:
            raise (_too_late() if limit.expired() else error) from None

    def _ended(self, work: asyncio.Future[T]) -> None:
        self.release()
        if not work.cancelled():
            work.exception()  # nobody else may look at it any more

    def close(self) -> None:
        """Refuse new work in threads; they end when their current work does."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _late_after(deadline: Deadline) -> asyncio.Timeout:
    left_s = deadline.timeout_s()
    return asyncio.timeout(None if left_s is None else left_s + GRACE_S)


def _too_late() -> ServiceError:
    return ServiceError(503, "the deadline has passed", kind="deadline", retry_after_s=1.0)


def _bounded(deadline: Deadline, function: Callable[[], T]) -> T:
    """Return the result of ``function``, whose requests to an engine are bounded by the deadline. In a context copy."""
    request_deadline.set(deadline)
    return function()
