"""Several processes of one service, each whole: they share one socket, and whoever dies is replaced."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from reranker.service.copies import SHARED_FOLDER, WorkFolder
from reranker.service.telemetry import SHARED, forget_process

_log = logging.getLogger(__name__)
SHARED_SOCKET = "SSI_SERVE_SOCKET"
"""Environment variable by which a process is told the number of the socket that it inherits, and who started it."""
LOOK_S = 0.1
LEAST_LIFE_S = 1.0
"""Between the end of a process and the start of another in its place."""
KILL_S = 5.0
"""What processes have beyond their own time to end."""


class SharedSocket(NamedTuple):
    """What all processes listen on, and the process that has started them: its end is theirs."""

    listener: socket.socket
    parent: int


def inherited_socket() -> SharedSocket | None:
    """Return what this process shares with others; None where it was not started by `run_processes`."""
    number, _, parent = os.environ.get(SHARED_SOCKET, "").partition(" ")
    return SharedSocket(socket.socket(fileno=int(number)), int(parent)) if number else None


def run_processes(n: int, listener: socket.socket, command: Sequence[str], drain_s: float) -> int:
    """Run a command ``n`` times at once until SIGTERM or SIGINT, and return the exit status.

    One that was killed, or ended without an error, is started again; one that ends with an error ends them all. Signals
    go to all of them; whoever has not ended `KILL_S` after ``drain_s`` is killed.
    """
    with WorkFolder() as work:
        processes = _Processes(n, listener, command, drain_s, work.path)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, processes.forward)
        try:
            while processes.look():
                time.sleep(LOOK_S)
        finally:
            processes.kill()
    return processes.status


class _Processes:
    """What is running, what is to be started and when (monotonic seconds), and when all must have ended."""

    def __init__(self, n: int, listener: socket.socket, command: Sequence[str], drain_s: float, work: Path) -> None:
        self.listener, self.command, self.drain_s, self.figures = listener, command, drain_s, str(work / "figures")
        os.mkdir(self.figures, 0o700)
        shared = {SHARED_SOCKET: f"{listener.fileno()} {os.getpid()}", SHARED: self.figures, SHARED_FOLDER: str(work)}
        self.environment = {**os.environ, **shared}
        self.running: list[subprocess.Popen[bytes]] = []
        self.starts = [0.0] * n
        self.ends_at: float | None = None
        self.status = 0

    def forward(self, number: int, _frame: FrameType | None = None) -> None:
        """Hand a signal on; but for SIGHUP, nothing is started any more."""
        if number != signal.SIGHUP and self.ends_at is None:
            self.starts, self.ends_at = [], time.monotonic() + self.drain_s + KILL_S
        for process in self.running:
            process.send_signal(number)

    def look(self) -> bool:
        """Start what is to be started and take note of what has ended; False where nothing is left to wait for."""
        now = time.monotonic()
        for due in [due for due in self.starts if due <= now]:
            self.starts.remove(due)
            self.running.append(
                subprocess.Popen(self.command, env=self.environment, pass_fds=[self.listener.fileno()])  # noqa: S603 - its own command line
            )
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
        """Kill what has not ended."""
        for process in self.running:
            process.kill()
            process.wait()
