"""Runs the application on granian, in this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from typing import NoReturn

from fastapi import FastAPI

from reranker.deadline import Deadline
from reranker.errors import ConfigError
from reranker.service.settings import ServiceSettings
from reranker.service.state import ServiceState

_log = logging.getLogger(__name__)
HEADER_TIMEOUT_MS = 6000
"""A connection that has not sent its headers by then, or sends nothing after an answer, is closed."""
HTTP_BUFFER_BYTES = 128 * 1024
BACKLOG = 1024
MAX_CONNECTIONS = 4096
"""Idle and slow connections cost little and must not keep others out."""
STOP_S = 1.0
"""Seconds that connections have to close after the last request in work."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that alone listens at this address: the server's own shares its port, and half of the requests.

    Raises
    ------
    ConfigError
        If another process listens there, or the address is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # For the connections of a service that has just ended.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on ({error.strerror}): end what listens there, or choose another --port"
        ) from error
    listener.setblocking(False)
    return listener


def run_server(app: FastAPI, state: ServiceState, settings: ServiceSettings) -> None:
    """Serve until SIGTERM or SIGINT; then answer what is in work, refuse the rest, and return within ten seconds.

    SIGHUP looks for another live version at once. Errors as `listen`.
    """
    # What lives as long as the service need not be looked through by every collection.
    gc.collect()
    gc.freeze()
    asyncio.run(_serve(app, state, settings))


def end_process() -> NoReturn:
    """End this process with status 0, all that was buffered written.

    The server's native threads may still be ending; one that asks for the interpreter while that is being taken down
    aborts the process, and with it the status of a service that stopped as it should.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _serve(app: FastAPI, state: ServiceState, settings: ServiceSettings) -> None:
    from granian import net
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    listener = listen(settings.host, settings.port)
    server = Server(
        app, settings.host, settings.port,
        interface=Interfaces.ASGINL, http=HTTPModes.http1, websockets=False, backlog=BACKLOG,
        backpressure=MAX_CONNECTIONS, log_enabled=False,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS, max_buffer_size=HTTP_BUFFER_BYTES),
        ssl_cert=settings.tls_cert, ssl_key=settings.tls_key,
    )  # fmt: skip
    # In place of the socket that it would make, which shares its port.
    holder = net.SocketHolder(listener.detach(), False, BACKLOG)  # type: ignore[attr-defined, call-arg]
    vars(server).update(_shd=holder, _init_shared_socket=lambda: None)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, state.watcher.reload)
    state.watcher.start()
    looking = asyncio.create_task(state.keep_looking())
    serving = asyncio.create_task(server.serve())
    where = f"{'https' if settings.tls_cert else 'http'}://{settings.host}:{settings.port}"
    _log.info("listening", extra={"ssi": {"at": where, "model": state.serving.model_id[:12]}})
    ended = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        await _drain(state, settings)
        server.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait({serving}, timeout=STOP_S)
    finally:
        looking.cancel()
        ended.cancel()
        state.close()
    _log.info("stopped", extra={"ssi": {}})


async def _drain(state: ServiceState, settings: ServiceSettings) -> None:
    """Refuse new requests; wait for those in work, and for the engine to take what they have left to log."""
    state.draining = True
    deadline = Deadline(settings.drain_s)
    _log.info("draining", extra={"ssi": {"in_work": state.admitted}})
    while (state.admitted or state.unwritten) and not deadline.passed:
        await asyncio.sleep(0.02)
