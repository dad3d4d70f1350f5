"""Several processes of one service. Each serves requests on a shared socket; one that dies is restarted."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
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

    A process that was killed, or ended with status 0, is restarted; one that ends with an error stops all others. If
    there are as many processes as cores, each keeps to a core of its own (Linux). The threads of a process take turns
    anyway; without this, a search would change the core with the thread, and find nothing in that core's caches.
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


class _Due(NamedTuple):
    """The start of a process."""

    at: float
    """Monotonic seconds."""
    core: int | None
    """The core that the process keeps to; None: it may use all of them."""


class _Processes:
    """The running processes, each with its core, the due starts, and the time at which all are killed."""

    def __init__(self, n: int, listener: socket.socket, command: Sequence[str], drain_s: float, figures: str) -> None:
        self.listener, self.command, self.drain_s, self.figures = listener, command, drain_s, figures
        shared = {SHARED_SOCKET: f"{listener.fileno()} {os.getpid()}", SHARED: self.figures}
        self.environment = {**os.environ, **shared}
        self.running: dict[subprocess.Popen[bytes], int | None] = {}
        self.starts = [_Due(0.0, core) for core in _cores_of(n)]
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
        for due in [due for due in self.starts if due.at <= now]:
            self.starts.remove(due)
            process = subprocess.Popen(self.command, env=self.environment, pass_fds=[self.listener.fileno()])  # noqa: S603 - its own command line
            self.running[process] = due.core
            if due.core is not None:
                with suppress(OSError):  # where this is forbidden, the process may use all cores
                    os.sched_setaffinity(process.pid, {due.core})
        for process in [process for process in self.running if process.poll() is not None]:
            self._ended(process, self.running.pop(process), now)
        return bool(self.starts or self.running) and (self.ends_at is None or now < self.ends_at)

    def _ended(self, process: subprocess.Popen[bytes], core: int | None, now: float) -> None:
        forget_process(self.figures, process.pid)
        if self.ends_at is None:
            _log.error("process ended", extra={"ssi": {"pid": process.pid, "status": process.returncode}})
            self.starts.append(_Due(now + LEAST_LIFE_S, core))
        if process.returncode > 0:
            self.status = self.status or process.returncode
            self.forward(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for process in self.running:
            process.kill()
            process.wait()


def _cores_of(n: int) -> list[int | None]:
    """Return the core of each of ``n`` processes; None for all if there are not as many cores as processes."""
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    return [*cores] if n == len(cores) else [None] * n
