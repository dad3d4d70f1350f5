"""The limits of the HTTP server for slow and for many clients, over an application of a few lines."""

from __future__ import annotations

import asyncio
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from reranker.service import server
from reranker.service.server import BoundedProtocol, listen, most_connections

ASK = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LARGE = 64 * 1024 * 1024
"""Bytes of an answer that no socket buffer takes in."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Site:
    """A running server, whose answers have some bytes; ``refused`` counts what it refused."""

    def __init__(self, n_bytes: int) -> None:
        self.refused: Counter[str] = Counter()
        self.answered = asyncio.Event()
        self.port = 0
        self._n_bytes = n_bytes

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        length = str(self._n_bytes).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"x" * self._n_bytes})
        self.answered.set()

    async def connect(self) -> Connection:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def running(most: int = 10, n_bytes: int = 2) -> AsyncIterator[Site]:
    site, listener = Site(n_bytes), listen("127.0.0.1", 0)
    site.port = listener.getsockname()[1]

    def note(_: Any, kind: str) -> None:
        site.refused[kind] += 1

    protocol = type("Protocol", (BoundedProtocol,), {"most": most, "note_refused": note})
    uvicorn_server = server._Server(
        uvicorn.Config(site, http=protocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[listener]))
    try:
        yield site
    finally:
        uvicorn_server.should_exit = True
        await serving


async def answer(connection: Connection) -> tuple[int, str, bytes]:
    """Send a request; return status, headers and body of the answer."""
    reader, writer = connection
    writer.write(ASK)
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.partition("content-length: ")[2].split()[0])
    return int(head.split()[1]), head, await reader.readexactly(length)


def test_more_connections_than_may_be_open_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REFUSED_S", 60.0)

    async def run() -> None:
        async with running(most=2) as site:
            first, second = await site.connect(), await site.connect()
            assert (await answer(first))[0] == (await answer(second))[0] == 200
            more = [await site.connect() for _ in range(5)]
            for connection in more:
                status, head, body = await answer(connection)
                assert status == 503 and "retry-after: 1\r\n" in head and "connection: close\r\n" in head
                assert json.loads(body)["error"]["type"] == "overloaded"
            assert site.refused == {"overloaded": 5}
            assert (await answer(first))[0] == 200
            second[1].close()
            await second[1].wait_closed()
            async with asyncio.timeout(10):  # those that were refused do not count, although they are open
                while (await answer(await site.connect()))[0] != 200:
                    await asyncio.sleep(0.01)
            for _, writer in more:
                writer.close()

    asyncio.run(run())


def test_a_connection_whose_client_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 0.1)

    async def run() -> None:
        async with running(n_bytes=LARGE) as site:
            reader, writer = await site.connect()
            writer.write(ASK)
            async with asyncio.timeout(10):
                await site.answered.wait()
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await reader.readexactly(LARGE)
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127"])
def test_a_connection_that_sends_no_whole_headers_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.1)

    async def run() -> None:
        async with running() as site:
            reader, writer = await site.connect()
            writer.write(sent)
            async with asyncio.timeout(10):
                try:
                    assert await reader.read() == b""
                except ConnectionError:
                    pass  # an aborted connection may be reset
            writer.close()

    asyncio.run(run())


def test_headers_without_end_are_refused() -> None:
    async def run() -> None:
        async with running() as site:
            reader, writer = await site.connect()
            writer.write(b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"y" * (8 * server.LONGEST_HEAD))
            assert b" 431 " in await reader.readline() and site.refused == {"headers_too_large": 1}
            async with asyncio.timeout(10):
                await reader.read()  # until the server closes the connection
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("limits", "connections", "raised"),
    [
        ((1024, 1024), 512, 1024),
        ((1024, 4096), 2048, 4096),
        ((1024, resource.RLIM_INFINITY), server.MAX_CONNECTIONS, 2 * server.MAX_CONNECTIONS),
        ((100_000, 200_000), server.MAX_CONNECTIONS, None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), server.MAX_CONNECTIONS, None),
    ],
)
def test_connections_leave_files_for_requests_to_the_engine(
    limits: tuple[int, int], connections: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, value: set_to.append(value))
    assert most_connections() == connections
    assert set_to == ([] if raised is None else [(raised, limits[1])])
