"""Worker threads that compute answers, shared fairly among clients.

A client is an API key, or an address if no key is required. Slow requests of one client could occupy every thread for
as long as the deadline allows. Therefore one thread always stays free for other clients, and while others have sent
requests recently, a client gets at most half of the threads. A client whose requests are slow then gets an equal share
at most, but at least a quarter, because its searches slow down the engine for others as well. A free thread goes to the
client that occupies the fewest.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from reranker.deadline import Deadline
from reranker.engines.wire import request_deadline
from reranker.service.http import ServiceError

T = TypeVar("T")
GRACE_S = 0.05
"""Seconds after the deadline until which a thread's answer is still awaited; its own deadline should end it before."""
LEAST_SHARE = 0.5
"""Share of the deadline that must be left when work starts; work started later could not finish in time."""
NEWEST = 0.05
"""Weight of the newest work in the moving average of a client's durations."""
SLOW = 0.25
"""Share of the deadline above which the average duration makes a client slow."""
MEMORY_S = 2.0
"""Time constant, in seconds of work, of the duration-weighted average that measures slowness."""
GIVEN_UP = 0.9
"""Share of the deadline after which work counts as abandoned: the engine may still be computing it."""
LINGERS = 2.0
"""Abandoned work counts as running for this many times its duration."""
RECENT_S = 5.0
"""Seconds for which a client counts as active after its last request."""
LONGEST_TIMER_S = 86_400.0
"""Longest timer, in seconds, of work without a deadline."""
OWN: Final = ""
"""Name of the service itself as a client, for health checks; it does not count as another client."""


@dataclass(slots=True, eq=False)
class _Client:
    """One client: the places that it occupies, its waiting requests, and the duration of its work."""

    name: str
    queue: deque[asyncio.Future[None]] = field(default_factory=deque)
    running: int = 0
    lingering: int = 0
    """Recently abandoned requests that the engine may still be computing."""
    mean_s: float = 0.0
    """Moving average of the duration of its work, seconds."""
    weighted_s: float = 0.0
    """The same, each duration weighted by itself, so that many quick requests do not hide slow ones."""
    limit_s: float = float("inf")
    """Deadline of its newest request, seconds."""
    seen_s: float = 0.0
    """Time of its last request, on the clock of `Places`."""
    started: int = 0
    """Sequence number of its newest request that got a place; on a tie, the client served longest ago goes first."""


class Places:
    """A fixed number of places, shared fairly among clients. Requests wait for a free place, within their deadline.

    Parameters
    ----------
    n : int
        Number of places.
    now : callable
        Returns monotonic seconds.
    """

    def __init__(self, n: int, now: Callable[[], float] = time.monotonic) -> None:
        self._n, self._now = n, now
        self._clients: dict[str, _Client] = {}
        self._n_started = 0
        self._swept_s = now()
        self.busy = 0
        """Occupied places."""

    @property
    def waiting(self) -> int:
        """Requests waiting for a place."""
        return sum(len(client.queue) for client in self._clients.values())

    def expected_wait_s(self, name: str) -> float:
        """Return the expected wait, in seconds, of a further request of a client, from recent durations.

        At most as many requests of every other client go first as the client itself has waiting.
        """
        client = self._clients.get(name)
        if client is None or not client.queue:
            return 0.0
        own = len(client.queue)
        ahead_s = sum(min(len(other.queue), own) * other.mean_s for other in self._clients.values())
        return max(ahead_s / self._n, own * client.mean_s / max(self._most(client), 1))

    @asynccontextmanager
    async def place(self, deadline: Deadline, client: str) -> AsyncIterator[None]:
        """Hold a place for a client. Raises `ServiceError` 503 if none becomes free in time."""
        holder = await self._take(deadline, client)
        started_s = self._now()
        try:
            yield
        finally:
            self._note(holder, self._now() - started_s)
            self._release(holder)

    async def _take(self, deadline: Deadline, name: str) -> _Client:
        client = self._client(name)
        client.limit_s = deadline.limit_s or float("inf")
        await self._wait(client, deadline)
        return client

    def _note(self, client: _Client, taken_s: float) -> None:
        """Update the averages with the time for which a request held its place."""
        client.mean_s += NEWEST * (taken_s - client.mean_s)
        client.weighted_s += -math.expm1(-taken_s / MEMORY_S) * (taken_s - client.weighted_s)

    async def _wait(self, client: _Client, deadline: Deadline) -> None:
        """Wait for a place for a client, but only while enough of the deadline is left to finish the work."""
        patience_s = deadline.left_s - LEAST_SHARE * (deadline.limit_s or 0.0)
        turn = asyncio.get_running_loop().create_future()
        client.queue.append(turn)
        self._start()
        if turn.done():
            return
        try:
            await asyncio.wait((turn,), timeout=max(patience_s, 0.0))
        except BaseException:
            self._give_up(client, turn)
            raise
        if not turn.done():
            self._give_up(client, turn)
            raise ServiceError(503, "the service is too busy to answer in time", kind="overloaded", retry_after_s=1.0)

    def _give_up(self, client: _Client, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._release(client)
        else:
            client.queue.remove(turn)

    def _client(self, name: str) -> _Client:
        """Return the record of a client and mark it as active; delete records of inactive clients."""
        now_s = self._now()
        if now_s - self._swept_s > RECENT_S:
            self._swept_s = now_s
            self._clients = {
                other.name: other
                for other in self._clients.values()
                if other.running or other.queue or other.lingering or now_s - other.seen_s <= RECENT_S
            }
        client = self._clients.setdefault(name, _Client(name))
        client.seen_s = now_s
        return client

    def _most(self, client: _Client) -> int:
        """Return the number of places that a client may hold now."""
        if self._n <= 2:
            return self._n
        since_s = self._now() - RECENT_S
        others = (other for other in self._clients.values() if other is not client and other.name != OWN)
        n_others = sum(bool(other.running or other.queue or other.seen_s >= since_s) for other in others)
        if not n_others:
            return self._n - 1
        most = self._n // 2
        if client.weighted_s > SLOW * client.limit_s:
            most = min(most, max(math.ceil(self._n / (n_others + 1)), self._n // 4))
        return max(most - client.lingering, 0)

    def _start(self) -> None:
        """Give free places to waiting clients, first to those that hold the fewest."""
        while self.busy < self._n:
            ready = [one for one in self._clients.values() if one.queue and one.running < self._most(one)]
            if not ready:
                return
            client = min(ready, key=lambda one: (one.running, one.started))
            self._n_started += 1
            client.started = self._n_started
            client.running += 1
            self.busy += 1
            client.queue.popleft().set_result(None)

    def _forget(self, client: _Client) -> None:
        """Stop counting a request that was abandoned."""
        client.lingering -= 1
        self._start()

    def _release(self, client: _Client) -> None:
        client.running -= 1
        self.busy -= 1
        self._start()


class Threads(Places):
    """A fixed number of worker threads, each of which is a place.

    Parameters
    ----------
    n : int
        Number of threads.
    now : callable
        Returns monotonic seconds.
    """

    def __init__(self, n: int, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(n, now)
        self._pool = ThreadPoolExecutor(n, thread_name_prefix="ssi-work")

    async def run(self, deadline: Deadline, function: Callable[[], T], client: str = OWN) -> T:
        """Run ``function`` in a thread and return its result. Raises `ServiceError` 503 if it takes too long.

        All its requests to an engine end at the deadline, at the latest.
        """
        holder = await self._take(deadline, client)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        answer: asyncio.Future[T] = loop.create_future()

        def late() -> None:
            if not answer.done():
                message = "the deadline has passed"
                answer.set_exception(ServiceError(503, message, kind="deadline", retry_after_s=1.0))

        def done(work: Future[T]) -> None:
            """Release the place and set the answer, unless it is late or nobody waits for it any more."""
            timer.cancel()
            taken_s = loop.time() - started_s
            self._note(holder, taken_s)
            if deadline.spent_s >= GIVEN_UP * (deadline.limit_s or float("inf")):
                holder.lingering += 1
                loop.call_later(LINGERS * taken_s, self._forget, holder)
            self._release(holder)
            error = None if work.cancelled() else work.exception()
            if answer.done() or work.cancelled():
                answer.cancel()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(work.result())

        # A late thread keeps its place until it ends, so that no work queues up behind it.
        timer = loop.call_later(min(deadline.left_s + GRACE_S, LONGEST_TIMER_S), late)
        try:
            work = self._pool.submit(contextvars.copy_context().run, _bounded, deadline, function)
        except RuntimeError:
            timer.cancel()
            self._release(holder)
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0) from None
        work.add_done_callback(lambda work: _call_in(loop, done, work))
        return await answer

    def close(self) -> None:
        """Refuse new work; threads end when their current work does."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _bounded(deadline: Deadline, function: Callable[[], T]) -> T:
    """Return the result of ``function``, whose requests to an engine are bounded by the deadline. In a context copy."""
    request_deadline.set(deadline)
    return function()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[Future[T]], None], work: Future[T]) -> None:
    """Call ``function`` with the finished work in a loop's thread; do nothing if the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, work)
