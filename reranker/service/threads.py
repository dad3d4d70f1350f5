"""The threads that compute answers, shared fairly among clients.

A client is an API key, or an address where no key is asked for. Slow requests of one client can hold every thread for
as long as the deadline allows, so no client gets them all: one thread stays free for others, and while others have
asked lately, a client holds at most half of the threads. A client whose requests take long gets no more than an equal
share then, down to a quarter: its searches keep the engine from answering others as well. A thread that becomes free
goes to the client that holds the fewest.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from reranker.deadline import Deadline
from reranker.service.http import ServiceError

T = TypeVar("T")
GRACE_S = 0.05
"""Seconds past the deadline before a thread's answer is no longer waited for: its own deadline should end it."""
LEAST_SHARE = 0.5
"""Share of the deadline that must be left for work to begin: a search begun later would end in nothing."""
NEWEST = 0.05
"""Weight of the newest work in the mean of how long a client's work takes."""
SLOW = 0.25
"""Share of the deadline: a client whose requests take longer is slow."""
MEMORY_S = 2.0
"""Seconds of work over which the measure of slowness forgets."""
GIVEN_UP = 0.9
"""Share of the deadline after which work counts as given up: the engine may still be at it."""
LINGERS = 2.0
"""Work that was given up counts as running for that many times as long as it took."""
RECENT_S = 5.0
"""Seconds that a client counts as present after its last request."""
OWN: Final = ""
"""Name of the client that is the service itself, for its own searches; it does not count as another client."""


@dataclass(slots=True, eq=False)
class _Client:
    """One client: the places that it holds, the requests that wait for one, and how long its work takes."""

    name: str
    queue: deque[asyncio.Future[None]] = field(default_factory=deque)
    running: int = 0
    lingering: int = 0
    """Requests given up lately, which the engine may still be computing."""
    mean_s: float = 0.0
    """Mean seconds of its work."""
    weighted_s: float = 0.0
    """Mean seconds of its work, each weighted by its own length: many quick requests do not hide slow ones."""
    limit_s: float = float("inf")
    """The deadline of its newest request, seconds."""
    seen_s: float = 0.0
    """When it asked last, on the clock of `Places`."""
    started: int = 0
    """Number of its newest request that got a place: the client that was served longest ago goes first."""


class Places:
    """A fixed number of places, shared fairly among clients. Requests that find none wait, within their deadline.

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
        """Places taken."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(len(client.queue) for client in self._clients.values())

    def expected_wait_s(self, name: str) -> float:
        """Return the seconds that one more request of a client would wait for a place, by how long work took lately.

        Of every other client at most as many requests go first as the client itself has waiting.
        """
        client = self._clients.get(name)
        if client is None or not client.queue:
            return 0.0
        own = len(client.queue)
        ahead_s = sum(min(len(other.queue), own) * other.mean_s for other in self._clients.values())
        return max(ahead_s / self._n, own * client.mean_s / max(self._most(client), 1))

    @asynccontextmanager
    async def place(self, deadline: Deadline, client: str) -> AsyncIterator[None]:
        """Hold a place for a client; `ServiceError` 503 where none becomes free in time."""
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
        """Keep how long a request held its place."""
        client.mean_s += NEWEST * (taken_s - client.mean_s)
        client.weighted_s += -math.expm1(-taken_s / MEMORY_S) * (taken_s - client.weighted_s)

    async def _wait(self, client: _Client, deadline: Deadline) -> None:
        """Wait for a place for a client, within the part of the deadline after which work would end in nothing."""
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
        """Return the record of a client, which is present from now on; forget those that are gone."""
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
        """Return how many places a client may hold now."""
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
        """Give free places to clients that wait: first to those that hold the fewest."""
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
        """Let work that was given up count no longer."""
        client.lingering -= 1
        self._start()

    def _release(self, client: _Client) -> None:
        client.running -= 1
        self.busy -= 1
        self._start()


class Threads(Places):
    """A fixed number of threads, each of which is a place.

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
        """Return what ``function`` returns in a thread; `ServiceError` 503 where that takes too long."""
        holder = await self._take(deadline, client)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            work = loop.run_in_executor(self._pool, contextvars.copy_context().run, function)
        except RuntimeError:
            self._release(holder)
            raise ServiceError(503, "the service is stopping", kind="stopping", retry_after_s=1.0) from None

        def done(work: asyncio.Future[T]) -> None:
            # Also where nobody waits for it any more: asyncio would log the words of an outcome never taken.
            if not work.cancelled():
                work.exception()
            taken_s = loop.time() - started_s
            self._note(holder, taken_s)
            if deadline.spent_s >= GIVEN_UP * (deadline.limit_s or float("inf")):
                holder.lingering += 1
                loop.call_later(LINGERS * taken_s, self._forget, holder)
            self._release(holder)

        # A thread that is late keeps its place until it ends: nothing piles up behind it.
        work.add_done_callback(done)
        await asyncio.wait((work,), timeout=deadline.left_s + GRACE_S)
        if not work.done():
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0)
        return work.result()

    def close(self) -> None:
        """Let no new work begin; threads end when theirs does."""
        self._pool.shutdown(wait=False, cancel_futures=True)
