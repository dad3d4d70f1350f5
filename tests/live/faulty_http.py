"""An HTTP proxy that spoils answers of an engine: refusals, resets, answers cut in half, lost or short of items.

Unlike `tests.live.faulty_proxy`, which spoils connections, it reads whole requests, so that it knows whether the engine
carried a request out before the answer was spoilt. Each request draws its fault from a seeded generator.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import numpy as np

FAULTS = ("429", "503", "reset before", "reset in the middle", "cut in half", "lost", "missing items")
"""The first three happen before the engine gets the request, the others after it carried the request out."""
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed, which is what these tests are about."""


class FaultyHttp:
    """Passes requests on to an address, and spoils a share of the answers.

    Parameters
    ----------
    host, port : str, int
        Address of the engine.
    rng : numpy.random.Generator
        Draws the faults.
    share : float
        Share of requests with a fault, below a third; three times as many of bulk requests.
    """

    def __init__(self, host: str, port: int, rng: np.random.Generator, share: float) -> None:
        self.target = (host, port)
        self.share = share
        self.injected: Counter[str] = Counter()
        self.requests = 0
        self.held_path = ""
        """Requests of this path wait in the proxy until `released` is set."""
        self.held, self.released = threading.Event(), threading.Event()
        self._rng, self._lock = rng, threading.Lock()
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def draw(self, path: str) -> str:
        """Return the fault of the next request, "" for none."""
        with self._lock:
            self.requests += 1
            is_bulk = path.endswith("/_bulk")
            # Bulk requests are few, so more of them are spoilt; only their answers have items that can be missing.
            if self._rng.random() >= self.share * (3 if is_bulk else 1):
                return ""
            fault = str(self._rng.choice(FAULTS if is_bulk else FAULTS[:-1]))
            self.injected[fault] += 1
            return fault

    def __enter__(self) -> FaultyHttp:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(proxy: FaultyHttp) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - a class, not a decision
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            if path == proxy.held_path:
                proxy.held.set()
                proxy.released.wait(120)
            fault = proxy.draw(path)
            if fault in ("429", "503"):
                self._refuse(int(fault))
                return
            if fault == "reset before":
                self._reset()
                return
            status, headers, answer = self._ask(body)
            if fault == "missing items":
                answer = _without_half_of_the_items(answer)
            if fault == "lost":
                self._reset()
                return
            self._answer(status, headers, answer, fault)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _handle  # noqa: N815

        def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(*proxy.target, timeout=60)
            with contextlib.closing(connection):
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
                connection.request(self.command, self.path, body or None, headers)
                reply = connection.getresponse()
                kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in HOP]
                return reply.status, kept, reply.read()

        def _refuse(self, status: int) -> None:
            kind = "es_rejected_execution_exception" if status == 429 else "unavailable_shards_exception"
            cause = {"type": kind, "reason": "injected"}
            body = json.dumps({"error": {"root_cause": [cause], **cause}, "status": status}).encode()
            headers = [("Content-Type", "application/json"), ("X-Elastic-Product", "Elasticsearch")]
            self._answer(status, [*headers, *([("Retry-After", "0.2")] if status == 429 else [])], body, "")

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                cut = fault in ("cut in half", "reset in the middle")
                self.wfile.write(body[: len(body) // 2] if cut else body)
            self.wfile.flush()
            if fault == "cut in half":
                self.close_connection = True
            if fault == "reset in the middle":
                self._reset()

        def _reset(self) -> None:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def log_message(self, format: str, *args: object) -> None:
            """Be silent."""

    return Handler


def _without_half_of_the_items(answer: bytes) -> bytes:
    value = json.loads(answer)
    value["items"] = value.get("items", [])[::2]
    return json.dumps(value).encode()
