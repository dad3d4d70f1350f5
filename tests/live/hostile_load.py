"""What an attacker sends to the service, and what everybody else sees meanwhile: figures for ``test_attack.py``.

Every client has an address of its own (127.0.0.2 and up, all of them this machine), since the service tells clients
without a key apart by their address.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.live.service_process import ServiceProcess

HOST = "127.0.0.1"
ATTACKER, VICTIM = "127.0.0.2", "127.0.1.{}"
PROMPT_S = 0.02
"""Seconds between two requests for ``/health`` or ``/ready``."""

Sent = tuple[str, bytes]
"""Path and body of a request."""


@dataclass(slots=True)
class Seen:
    """Answers that one group of clients got: number by status (0: none), and seconds of each."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """Answers by the name of what was sent, and the status."""
    bodies: list[bytes] = field(default_factory=list)
    """Bodies of the answers that were not 200, the first twenty."""

    @property
    def success(self) -> float:
        """Share of the answers that were 200."""
        return self.statuses[200] / max(sum(self.statuses.values()), 1)

    @property
    def longest_s(self) -> float:
        """Seconds of the slowest answer."""
        return max(self.seconds, default=0.0)

    def add(self, status: int, seconds: float, content: bytes = b"", kind: str = "") -> None:
        """Count one answer."""
        self.statuses[status] += 1
        self.seconds.append(seconds)
        if kind:
            self.kinds[f"{kind}: {status}"] += 1
        if status != 200 and len(self.bodies) < 20:
            self.bodies.append(content[:300])


class Caller:
    """One keep-alive connection from an address of its own."""

    def __init__(self, port: int, address: str) -> None:
        self._port, self._address = port, address
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> tuple[int, bytes, float]:
        """Return status (0: no answer), content and seconds of one request."""
        started, kept = time.perf_counter(), self._streams is not None
        try:
            async with asyncio.timeout(timeout_s):
                status, content = await self._exchange(path, body)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            if kept and not isinstance(error, TimeoutError):  # an idle connection that the service had closed
                return await self.ask(path, body, timeout_s)
            return 0, b"", time.perf_counter() - started
        return status, content, time.perf_counter() - started

    async def _exchange(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port, local_addr=(self._address, 0))
        reader, writer = self._streams
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + (body or b""))
        with contextlib.suppress(ConnectionError):  # the service may have answered before it read all
            await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.partition(": ")[::2] for line in lines[1:] if line)
        if headers.get("transfer-encoding") == "chunked":
            content = await _chunks(reader)
        else:
            content = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), content

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readuntil(b"\r\n")
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


async def steady(
    port: int, address: str, requests: Callable[[int], Sent], until: asyncio.Event, pause_s: float, seen: Seen
) -> None:
    """Ask one request after the other, ``pause_s`` between them."""
    caller = Caller(port, address)
    for number in itertools.count():
        if until.is_set():
            break
        path, body = requests(number)
        status, content, seconds = await caller.ask(path, body or None)
        seen.add(status, seconds, content)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(until.wait(), pause_s)
    caller.close()


async def at_rate(
    port: int, address: str, requests: Sequence[tuple[str, Sent]], rate: float, seconds: float, seen: Seen
) -> None:
    """Send requests, named ones in turn, ``rate`` a second, however long the answers take."""
    idle: list[Caller] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(kind: str, sent: Sent) -> None:
        caller = idle.pop() if idle else Caller(port, address)
        status, content, taken = await caller.ask(*sent)
        seen.add(status, taken, content, kind)
        idle.append(caller)

    started = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(started + number / rate - time.perf_counter(), 0.0))
        task = asyncio.create_task(one(*requests[number % len(requests)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=30)
    for caller in idle:
        caller.close()


@dataclass(slots=True)
class Attack:
    """What was seen during an attack."""

    attacker: Seen
    victims: Seen
    health: Seen
    """Of ``/ready`` or ``/health``, asked all the time."""
    lag_s: float
    """Longest time that this process was kept from its own work: what it saw of others is wrong by as much."""


def attack_at_rate(
    service: ServiceProcess,
    requests: Sequence[tuple[str, Sent]],
    victim: Callable[[int], Sent],
    *,
    seconds: float,
    rate: float = 40.0,
    n_victims: int = 10,
) -> Attack:
    """Let one client send ``requests`` at a rate, while victims search and ``/ready`` is asked."""

    async def run() -> Attack:
        found, over = Attack(Seen(), Seen(), Seen(), 0.0), asyncio.Event()
        others = [
            asyncio.create_task(steady(service.port, VICTIM.format(n + 1), victim, over, 0.2, found.victims))
            for n in range(n_victims)
        ]
        others.append(
            asyncio.create_task(steady(service.port, HOST, lambda _: ("/ready", b""), over, 0.1, found.health))
        )
        others.append(asyncio.create_task(_lag(over, found)))
        await asyncio.sleep(0.5)
        await at_rate(service.port, ATTACKER, requests, rate, seconds, found.attacker)
        over.set()
        await asyncio.gather(*others)
        return found

    return asyncio.run(run())


def attack_without_pause(
    service: ServiceProcess, requests: Sequence[tuple[str, Sent]], *, seconds: float, n_senders: int = 4
) -> Attack:
    """Let senders of one address send ``requests`` as fast as they are answered, while ``/health`` is asked."""

    async def run() -> Attack:
        found, over = Attack(Seen(), Seen(), Seen(), 0.0), asyncio.Event()
        turns, end = itertools.cycle(requests), time.perf_counter() + seconds

        async def send() -> None:
            caller = Caller(service.port, ATTACKER)
            while time.perf_counter() < end:
                kind, sent = next(turns)
                status, content, taken = await caller.ask(*sent)
                found.attacker.add(status, taken, content, kind)
                if status in (0, 429, 503):
                    await asyncio.sleep(0.02)
            caller.close()

        others = [
            asyncio.create_task(steady(service.port, HOST, lambda _: ("/health", b""), over, PROMPT_S, found.health)),
            asyncio.create_task(_lag(over, found)),
        ]
        await asyncio.gather(*(send() for _ in range(n_senders)))
        over.set()
        await asyncio.gather(*others)
        return found

    return asyncio.run(run())


async def _lag(over: asyncio.Event, found: Attack) -> None:
    while not over.is_set():
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        found.lag_s = max(found.lag_s, time.perf_counter() - before - 0.01)


def raw_status(port: int, data: bytes, host: str = HOST) -> tuple[int, Any]:
    """Send bytes as they are; return the status (0: none came) and the JSON of the answer."""
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(data)
        response = http.client.HTTPResponse(connection)
        try:
            response.begin()
            return response.status, json.loads(response.read() or b"null")
        except (http.client.HTTPException, OSError):
            return 0, None


def words(number: int, n: int = 2, n_words: int = 60) -> str:
    """Return words of `random_documents`, others for every number."""
    return " ".join(f"word{(number * 7 + 11 * place) % n_words}" for place in range(n))


def cycled(values: Sequence[Any]) -> Iterator[Any]:
    """Return the values again and again."""
    return itertools.cycle(values)
