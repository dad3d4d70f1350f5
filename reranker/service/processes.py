"""Several processes of one service. Each serves requests on a shared socket; one that dies is restarted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from reranker.service.telemetry import SHARED, forget_process

_log = logging.getLogger(__name__)
SHARED_SOCKET = "SSI_SERVE_SOCKET"
"""Environment variable with the file descriptor of the inherited socket and the id of the parent process."""
POLL_S = 0.1
"""Seconds between two checks of the processes."""
LEAST_LIFE_S = 1.0
"""Seconds between the end of a process and its restart."""
KILL_S = 5.0
"""Seconds beyond the drain time after which processes are killed."""


class SharedSocket(NamedTuple):
    """The socket on which all processes listen, and their parent process: they stop when it ends."""

    listener: socket.socket
    parent: int


def inherited_socket() -> SharedSocket | None:
    """Return the socket inherited from the parent, or None if `run_processes` did not start this process."""
    number, _, parent = os.environ.get(SHARED_SOCKET, "").partition(" ")
    return SharedSocket(socket.socket(fileno=int(number)), int(parent)) if number else None


def run_processes(n: int, listener: socket.socket, command: Sequence[str], drain_s: float) -> int:
    """Run ``n`` processes of a command until SIGTERM or SIGINT, and return the exit status.

    A process that was killed, or ended with status 0, is restarted; one that ends with an error stops all others.
    Signals are forwarded to all of them. Processes still running `KILL_S` after ``drain_s`` are killed.
    """
    with tempfile.TemporaryDirectory(prefix="ssi-figures-") as figures:
        processes = _Processes(n, listener, command, drain_s, figures)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, processes.forward)
        try:
            while processes.poll():
                time.sleep(POLL_S)
        finally:
            processes.kill()
    return processes.status


class _Processes:
    """The running processes, the times at which others are due to start, and that at which all are killed."""

    def __init__(self, n: int, listener: socket.socket, command: Sequence[str], drain_s: float, figures: str) -> None:
        self.listener, self.command, self.drain_s, self.figures = listener, command, drain_s, figures
        shared = {SHARED_SOCKET: f"{listener.fileno()} {os.getpid()}", SHARED: self.figures}
        self.environment = {**os.environ, **shared}
        self.running: list[subprocess.Popen[bytes]] = []
        self.starts = [0.0] * n
        self.ends_at: float | None = None
        self.status = 0

    def forward(self, number: int, _frame: FrameType | None = None) -> None:
        """Forward a signal; any signal other than SIGHUP also stops restarts."""
        if number != signal.SIGHUP and self.ends_at is None:
            self.starts, self.ends_at = [], time.monotonic() + self.drain_s + KILL_S
        for process in self.running:
            process.send_signal(number)

    def poll(self) -> bool:
        """Start the processes that are due and handle those that ended; return False if there are none to wait for."""
        now = time.monotonic()
        for due in [due for due in self.starts if due <= now]:
            self.starts.remove(due)
            process = subprocess.Popen(self.command, env=self.environment, pass_fds=[self.listener.fileno()])  # noqa: S603 - its own command line
            self.running.append(process)
        for process in [process for process in self.running if process.poll() is not None]:
            self.running.remove(process)
            self._ended(process, now)
        return bool(self.starts or self.running) and (self.ends_at is None or now < self.ends_at)

    def _ended(self, process: subprocess.Popen[bytes], now: float) -> None:
        forget_process(self.figures, process.pid)
        if self.ends_at is None:
            _log.error("process ended", extra={"ssi": {"pid": process.pid, "status": process.returncode}})
            self.starts.append(now + LEAST_LIFE_S)
        if process.returncode > 0:
            self.status = self.status or process.returncode
            self.forward(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for process in self.running:
            process.kill()
            process.wait()
