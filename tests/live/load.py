"""HTTP clients for tests under load: quick ones, slow ones, and the times they saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOST = "127.0.0.1"
MOST_WAITING = 400
"""Clients of an open loop that wait at the same time. This process may not be allowed to open more connections."""


@dataclass(slots=True)
class Reply:
    """One answer: status (0 where the connection broke), headers, body, seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    @property
    def value(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)


@dataclass(slots=True)
class Tally:
    """What clients saw."""

    replies: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    good_seconds: list[float] = field(default_factory=list)
    without_retry_after: int = 0
    lag_s: float = 0.0

    def add(self, reply: Reply) -> None:
        """Count an answer."""
        self.replies[reply.status] += 1
        self.seconds.append(reply.seconds)
        if reply.status == 200:
            self.good_seconds.append(reply.seconds)
        elif reply.status in (429, 503) and "retry-after" not in reply.headers:
            self.without_retry_after += 1

    def p(self, percent: float) -> float:
        """Return a percentile of the seconds of good answers."""
        return float(np.percentile(self.good_seconds, percent)) if self.good_seconds else float("nan")


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: bytes | None = None, method: str = "", timeout: float = 30.0) -> Reply:
        """Return the answer to one request; a broken connection is status 0."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                method = method or ("GET" if body is None else "POST")
                status, headers, content = await self._on_some_connection(method, path, body)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            self.close()
            return Reply(0, {}, b"", time.perf_counter() - started)
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(status, headers, content, time.perf_counter() - started)

    async def _on_some_connection(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask; where a connection kept from before was closed meanwhile, ask on a new one, as every client does."""
        kept = self._writer is not None
        try:
            return await self._exchange(method, path, body)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            begun = isinstance(error, asyncio.IncompleteReadError) and error.partial
            if not kept or begun:
                raise
        self.close()
        return await self._exchange(method, path, body)

    async def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        assert self._reader is not None
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"\r\n" + (body or b""))
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        parts = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in parts}
        content = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return int(lines[0].split()[1]), headers, content

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._reader = self._writer = None


Bodies = Callable[[int], bytes]
"""Returns the body of the n-th request."""


async def closed_loop(
    port: int,
    path: str,
    bodies: Bodies,
    *,
    clients: int,
    seconds: float,
    on_reply: Callable[[int, Reply], None] | None = None,
    fast: bool = False,
) -> Tally:
    """Return what ``clients`` saw that each ask as soon as they have their answer."""
    tally, end, counter = Tally(), time.perf_counter() + seconds, iter(range(10**9))

    async def run() -> None:
        client = Client(port)
        while time.perf_counter() < end:
            number = next(counter)
            reply = await client.ask(path, bodies(number))
            tally.add(reply)
            if on_reply is not None:
                on_reply(number, reply)
            if reply.status in (0, 429, 503) and not fast:
                await asyncio.sleep(0.01)
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    return tally


async def open_loop(port: int, path: str, bodies: Bodies, *, rate: float, seconds: float) -> Tally:
    """Return what clients saw that come at ``rate`` a second, however long the others wait.

    Of those that come while `MOST_WAITING` others wait, none asks.
    """
    tally, idle, tasks = Tally(), list[Client](), set[asyncio.Task[None]]()

    async def one(number: int) -> None:
        client = idle.pop() if idle else Client(port)
        tally.add(await client.ask(path, bodies(number)))
        idle.append(client)

    started, n = time.perf_counter(), 0
    while (now := time.perf_counter() - started) < seconds:
        while n < now * rate:
            n += 1
            if len(tasks) < MOST_WAITING:
                task = asyncio.create_task(one(n))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        before = time.perf_counter()
        await asyncio.sleep(0.002)
        # How long this client itself was kept from its work: what it saw of others is wrong by as much.
        tally.lag_s = max(tally.lag_s, time.perf_counter() - before - 0.002)
    if tasks:
        await asyncio.wait(tasks, timeout=30)
    for client in idle:
        client.close()
    return tally


async def slow_connection(port: int, head: bytes, drip: bytes, every_s: float = 1.0, limit_s: float = 40.0) -> float:
    """Send ``head`` at once and ``drip`` a byte at a time; return the seconds until the server closed it."""
    started = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return time.perf_counter() - started
    ended = asyncio.create_task(reader.read(-1))
    try:
        writer.write(head)
        for place in range(10**6):
            done, _ = await asyncio.wait({ended}, timeout=every_s)
            if done or time.perf_counter() - started > limit_s:
                break
            writer.write(drip[place % len(drip) :][:1])
    except OSError:
        return time.perf_counter() - started
    finally:
        ended.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await ended
        writer.close()
    return time.perf_counter() - started
