"""The HTTP server of the service: uvicorn on an event loop of uvloop, with limits for slow clients."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Final, NoReturn

import uvicorn
import uvloop
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reranker.deadline import Deadline
from reranker.errors import ConfigError
from reranker.progress import no_progress
from reranker.service.http import error_response
from reranker.service.processes import SharedSocket
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState
from reranker.service.telemetry import finish_tracing

_log = logging.getLogger(__name__)
HEADERS_S: Final = 6.0
"""Seconds after which a connection is closed that has not sent all headers of a request."""
UNREAD_S: Final = 30.0
"""Seconds after which a connection is closed whose client does not read what was sent."""
IDLE_S: Final = 6
"""Seconds after which a connection without a request is closed."""
REFUSED_S: Final = 1.0
"""Seconds for which what a client sends is thrown away after its request was refused, so that it reads the answer."""
LONGEST_HEAD: Final = 128 * 1024
"""Largest request line with headers, in bytes, that is read in several pieces; the service itself accepts less."""
BACKLOG: Final = 1024
MAX_CONNECTIONS: Final = 4096
"""High, because idle and slow connections cost little and must not keep other clients out."""
FILES_A_CONNECTION: Final = 2
"""Open files for each connection: its own, and one for a request to the engine."""
PARENT_S: Final = 1.0
"""Seconds between two checks whether the parent process is still running."""
COLLECTED_OBJECTS: Final = 20_000
"""Objects after which the youngest are searched for garbage. A search creates a few thousand, most of them in use."""
STOP_S: Final = 1
"""Seconds that connections have to close after the last running request."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address exclusively.

    Raises `ConfigError` if another process listens there, or the address is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # The port may still have connections of a service that has just stopped.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}): stop the process that uses this port, or choose "
            "another --port"
        ) from error
    listener.setblocking(False)
    return listener


def most_connections() -> int:
    """Return how many connections the open files of this process allow, at most `MAX_CONNECTIONS`.

    The limit of open files is raised as far as the process itself may raise it.
    """
    wanted = FILES_A_CONNECTION * MAX_CONNECTIONS
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < wanted:
        files = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // FILES_A_CONNECTION)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 of one connection, which must send the headers of a request in time, and read its answer."""

    most = MAX_CONNECTIONS
    """Number of connections that may be open. Requests on further ones are answered with 503."""
    note_refused: Callable[[str], None] = no_progress
    """Called with the kind of error of each request that is refused here."""
    _timer: asyncio.TimerHandle | None = None
    _n_head = 0
    """Bytes of the headers that are not complete."""
    _in_head = True
    """Whether headers are awaited, not a body."""
    _served = False
    """Whether a request of this connection was accepted."""
    _is_refused = False
    """Whether a request was refused, so that all else that comes is thrown away."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._limit(HEADERS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._unlimit()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin with the headers of a request."""
        self._in_head, self._n_head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Begin with the body of a request."""
        self._in_head = False
        self._unlimit()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._is_refused:  # closing the connection at once would make the client lose the answer
            return
        if not self._served and len(self.connections) > self.most:
            self._refuse(503, "overloaded", "too many connections are open", "retry-after: 1\r\n")
            self.connections.discard(self)  # else those that are refused would keep others out
            return
        self._served = True
        self._n_head += len(data)
        super().data_received(data)
        if not self._in_head or self._is_refused:
            return
        if self._n_head > LONGEST_HEAD:
            self._refuse(431, "headers_too_large", f"the headers have more than {LONGEST_HEAD} bytes")
        elif self._timer is None:
            self._limit(HEADERS_S)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not well-formed HTTP."""
        self._refuse(400, "bad_request", "the request is not well-formed HTTP")

    def _refuse(self, status: int, kind: str, message: str, more: str = "") -> None:
        """Answer a request that no application can answer, and close the connection soon."""
        self.note_refused(kind)
        body = error_response(None, status, kind, message).body
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        end = f"content-length: {len(body)}\r\nconnection: close\r\n{more}\r\n"
        self.transport.write((head + end).encode("ascii") + bytes(body))
        self._is_refused = True
        self._limit(REFUSED_S)

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        self._limit(UNREAD_S)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Write more, because the client has read."""
        self._unlimit()
        super().resume_writing()

    def _limit(self, seconds: float) -> None:
        """Close the connection in some seconds, unless `_unlimit` is called before."""
        self._unlimit()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _unlimit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Server(uvicorn.Server):
    """uvicorn's server without its handlers of signals: a signal drains the service before the server stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(
    app: FastAPI, state: ServiceState, settings: ServiceSettings, shared: SharedSocket | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; then finish running requests, refuse new ones, and return within ten seconds.

    SIGHUP polls for another live version at once. With ``shared``, the process serves on the socket that it shares with
    the other processes of the service. Raises the errors of `listen`.
    """
    # The objects of a model need not be looked at by every garbage collection: without this, the slowest of a hundred
    # searches took three times as long, and each a quarter more.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS, *gc.get_threshold()[1:])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(app, state, settings, shared))


def end_process() -> NoReturn:
    """End this process with status 0 after sending all spans and flushing all buffers.

    It does not wait for threads whose work is late.
    """
    finish_tracing()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(app: FastAPI, state: ServiceState, settings: ServiceSettings, shared: SharedSocket | None) -> None:
    listener = listen(settings.host, settings.port) if shared is None else shared.listener
    protocol = type("Protocol", (BoundedProtocol,), {"most": most_connections(), "note_refused": state.refuse})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    server = _Server(config)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, state.watcher.reload)
    state.watcher.start()
    checking = asyncio.create_task(state.keep_checking())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    where = f"{'https' if settings.tls_cert else 'http'}://{settings.host}:{settings.port}"
    _log.info("listening", extra={"ssi": {"at": where, "model": state.serving.model_id[:12]}})
    ended = asyncio.create_task(_until_stopped(stop, None if shared is None else shared.parent))
    try:
        async with app.router.lifespan_context(app):
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            await _drain(state, settings)
            server.should_exit = True
            await serving
    finally:
        checking.cancel()
        ended.cancel()
        state.close()
    _log.info("stopped", extra={"ssi": {}})


async def _until_stopped(stop: asyncio.Event, parent: int | None) -> None:
    """Wait for the stop signal, or for the end of the parent process."""
    while not stop.is_set() and parent in (None, os.getppid()):
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else PARENT_S)


async def _drain(state: ServiceState, settings: ServiceSettings) -> None:
    """Refuse new requests; wait until running requests have ended and their log entries are written to the engine."""
    state.draining = True
    deadline = Deadline(settings.drain_s)
    _log.info("draining", extra={"ssi": {"in_work": state.admitted}})
    forwarder = state.forwarder
    while (state.admitted or state.unwritten or (forwarder and forwarder.n_running)) and not deadline.passed:
        await asyncio.sleep(0.02)
