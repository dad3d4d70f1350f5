"""A TCP proxy that spoils connections: delay, jitter, slices of one byte, a slow line, early ends of three kinds.

Each connection draws its fault from a seeded generator, so that a seed names one sequence of faults.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType

import numpy as np

FAULTS = ("none", "latency", "slices", "slow", "limit", "half_close", "reset")
HEALTHY_AFTER = 12
"""Connections after which the line is good: a test must end."""


class FaultyProxy:
    """Passes connections on to an address, with faults towards the client.

    Parameters
    ----------
    host, port : str, int
        Where to.
    rng : numpy.random.Generator
        Draws the faults.
    """

    def __init__(self, host: str, port: int, rng: np.random.Generator) -> None:
        self._target = (host, port)
        self._rng = rng
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open = True
        self.drawn: list[str] = []

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._server.close()

    def _accept(self) -> None:
        while self._open:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _draw(self) -> tuple[str, int]:
        with self._lock:
            name = str(self._rng.choice(FAULTS)) if len(self.drawn) < HEALTHY_AFTER else "none"
            self.drawn.append(name)
            return name, int(self._rng.integers(50, 2000))

    def _serve(self, client: socket.socket) -> None:
        fault, limit = self._draw()
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            sent = 0
            while data := server.recv(65536):
                if fault in ("limit", "half_close", "reset") and sent + len(data) > limit:
                    client.sendall(data[: max(0, limit - sent)])
                    _end(client, fault)
                    return
                _send(client, data, fault)
                sent += len(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _send(client: socket.socket, data: bytes, fault: str) -> None:
    if fault == "latency":
        time.sleep(0.05)
    if fault == "slices":
        for place in range(min(len(data), 300)):
            client.sendall(data[place : place + 1])
        data = data[300:]
    if fault == "slow":
        for place in range(0, len(data), 4096):
            client.sendall(data[place : place + 4096])
            time.sleep(0.01)
        return
    client.sendall(data)


def _end(client: socket.socket, fault: str) -> None:
    if fault == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif fault == "half_close":
        client.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
