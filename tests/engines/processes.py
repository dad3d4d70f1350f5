"""Process groups of engines, found, signalled and never left behind; and the little HTTP that a start needs."""

from __future__ import annotations

import atexit
import base64
import contextlib
import http.client
import json
import os
import pwd
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Protocol
from urllib.parse import unquote, urlsplit

import psutil  # type: ignore[import-untyped,unused-ignore]

RUN_PREFIX = "ssi-engine-"
_OWNER_FILE = "owner.json"


class Stoppable(Protocol):
    """Anything to be stopped when this Python process ends."""

    def stop(self) -> None:
        """Stop it; harmless when it is stopped already."""


_running: list[Stoppable] = []


def engine_user() -> pwd.struct_passwd | None:
    """Return the account that runs the engines when we are root, which they refuse; None when we are not root.

    It is ``nobody``, or the account named by SSI_ENGINE_USER.
    """
    if os.geteuid() != 0:
        return None
    return pwd.getpwnam(os.environ.get("SSI_ENGINE_USER", "nobody"))


def group_members(group: int) -> list[psutil.Process]:
    """Return the living processes of a process group; zombies do not count."""
    return [process for process in psutil.process_iter() if _is_living_member(process, group)]


def _is_living_member(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


def end_group(group: int, grace_s: float) -> None:
    """Ask every process of a group to end, and kill what is left after ``grace_s`` seconds (0 kills at once).

    Returns when the group has no living process. A paused group is woken before it is asked.
    """
    if grace_s > 0:
        signal_group(group, signal.SIGTERM)
        signal_group(group, signal.SIGCONT)
        if _wait_for_end(group, grace_s):
            return
    signal_group(group, signal.SIGKILL)
    if not _wait_for_end(group, 30.0):
        raise TimeoutError(f"processes of group {group} survived SIGKILL for 30 s: {group_members(group)}")


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group; a group that has ended is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def pause_group(group: int) -> None:
    """Freeze every process of a group by SIGSTOP, and return when all their threads stand still."""
    signal_group(group, signal.SIGSTOP)
    if not _wait_until(lambda: all(map(_stands_still, group_members(group))), 30.0):
        raise TimeoutError(f"processes of group {group} went on for 30 s after SIGSTOP: {group_members(group)}")


def _stands_still(process: psutil.Process) -> bool:
    """Say whether a process is stopped; on Linux each of its threads, which stop one after the other."""
    states = [_thread_state(path) for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
    if states:
        return set(states) <= {"T", "t", ""}
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return True


def _thread_state(stat: Path) -> str:
    """Return the state letter of a thread, which follows its name in parentheses; empty if it is gone."""
    try:
        return stat.read_text(encoding="utf-8", errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def _wait_for_end(group: int, limit_s: float) -> bool:
    return _wait_until(lambda: not group_members(group), limit_s)


def _wait_until(is_true: Callable[[], bool], limit_s: float) -> bool:
    """Return True as soon as the condition holds, False if it does not within ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def stop_at_exit(engine: Stoppable) -> None:
    """Stop the engine when this process exits, also by SIGTERM or SIGHUP unless those are handled or ignored."""
    if not _running:
        atexit.register(_stop_all, os.getpid())
        _exit_on_signals()
    _running.append(engine)


def forget(engine: Stoppable) -> None:
    """Undo ``stop_at_exit``."""
    if engine in _running:
        _running.remove(engine)


def _stop_all(owner: int) -> None:
    if os.getpid() != owner:
        return
    for engine in list(_running):
        engine.stop()


def _exit_on_signals() -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def create_run_folder(name: str) -> Path:
    """Return a new folder for one engine, marked as ours; folders of dead owners are removed first."""
    sweep_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{RUN_PREFIX}{name}-"))
    record_owner(folder, group=None)
    return folder


def record_owner(folder: Path, group: int | None) -> None:
    """Write which process owns the folder and which group runs in it."""
    owner = psutil.Process()
    record = {"pid": owner.pid, "started": owner.create_time(), "group": group}
    (folder / _OWNER_FILE).write_text(json.dumps(record), encoding="utf-8")


def sweep_abandoned() -> None:
    """End the engines whose owner was killed before it could stop them, and remove their folders."""
    for mark in Path(tempfile.gettempdir()).glob(f"{RUN_PREFIX}*/{_OWNER_FILE}"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if mark.stat().st_uid == os.geteuid():
                _sweep(mark)


def _sweep(mark: Path) -> None:
    record = json.loads(mark.read_text(encoding="utf-8"))
    if _is_alive(record["pid"], record["started"]):
        return
    group = record["group"]
    if group is not None and any(_mentions(process, mark.parent) for process in group_members(group)):
        end_group(group, grace_s=0)
    shutil.rmtree(mark.parent, ignore_errors=True)


def _is_alive(pid: int, started: float) -> bool:
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) < 2.0)
    except psutil.Error:
        return False


def _mentions(process: psutil.Process, folder: Path) -> bool:
    """Say whether a process was started from the folder, so that a reused group number is left alone."""
    try:
        return any(str(folder) in argument for argument in process.cmdline())
    except psutil.Error:
        return False


LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(
    url: str, headers: Mapping[str, str] | None = None, limit_s: float = 5.0, authority: str | None = None
) -> bool:
    """Say whether an engine at the address has a usable cluster, and says so within ``limit_s`` seconds.

    Asks ``_cluster/health``, not ``/``: the test flavour of Elasticsearch has no root route. A name and a password in
    the address are sent as basic authentication. ``authority`` (PEM) signs the certificate of an https address.
    """
    parts = urlsplit(url)
    sent = dict(headers or {})
    if parts.username:
        sent |= basic_authorization(unquote(parts.username), unquote(parts.password or ""))
    connection = http.client.HTTPConnection(parts.hostname or LOOPBACK, parts.port, timeout=limit_s)
    if parts.scheme == "https":
        context = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection(
            parts.hostname or LOOPBACK, parts.port, timeout=limit_s, context=context
        )
    try:
        connection.request("GET", f"{parts.path}/_cluster/health?wait_for_status=yellow&timeout=2s", headers=sent)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def basic_authorization(name: str, password: str) -> dict[str, str]:
    """Return the header of HTTP basic authentication."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
