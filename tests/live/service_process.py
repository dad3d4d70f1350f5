"""``ssi serve`` in a process of its own, as operators run it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil  # type: ignore[import-untyped, unused-ignore]

from tests.engines.processes import free_port
from tests.live.helpers import ROOT


class ServiceProcess:
    """Starts the service and ends it with the context; its log is in ``log``.

    Parameters
    ----------
    *options : str
        Of ``ssi serve``, without ``--port``.
    ready_s : float
        Seconds to wait for ``/ready``.
    tls : Path or None
        Certificate to trust; None speaks plain HTTP.
    settings : mapping or None
        Fields of `ServiceSettings` that are no options, such as ``poll_s``.
    """

    def __init__(
        self,
        *options: str,
        ready_s: float = 60.0,
        tls: Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._tls = tls
        self._settings = settings
        self.port = free_port()
        self.options, self._ready_s = options, ready_s
        self._file = tempfile.NamedTemporaryFile(prefix="ssi-service-", suffix=".log", delete=False)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        module = ["reranker"]
        if self._settings is not None:
            module = ["tests.live.serving_child", json.dumps(self._settings)]
        command = [sys.executable, "-m", *module, "serve"]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), *self.options],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=self._file,
            stderr=self._file,
            start_new_session=True,
        )
        end = time.monotonic() + self._ready_s
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready")[0] == 200:
                    return self
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        self._end()
        raise AssertionError(f"the service did not become ready:\n{self.log[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        Path(self._file.name).unlink(missing_ok=True)

    @property
    def process(self) -> psutil.Process:
        """The process."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def log(self) -> str:
        """All that the service wrote."""
        return Path(self._file.name).read_text(encoding="utf-8")

    @property
    def rss(self) -> int:
        """Bytes of memory in use."""
        return int(self.process.memory_info().rss)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout: float = 10.0
    ) -> tuple[int, Any]:
        """Return status and JSON of one request (text where it is none)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if self._tls is not None:
            context = ssl.create_default_context(cafile=str(self._tls))
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            # A body that is refused is not read to its end.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers.get("content-type", "").startswith("application/json")
            return response.status, json.loads(content) if is_json else content.decode()
        finally:
            connection.close()

    @property
    def figures(self) -> str:
        """The text of ``/metrics``."""
        return str(self.ask("GET", "/metrics")[1])

    def figure(self, name: str) -> float:
        """Return the sum of a figure of ``/metrics`` over its labels."""
        lines = self.figures.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split(" ")[0] == name)

    def terminate(self, timeout_s: float = 15.0) -> tuple[int, float]:
        """Send SIGTERM and return exit status and seconds until the end."""
        assert self._process is not None
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(timeout_s)
        return status, time.monotonic() - started

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._file.close()
