"""A server in the place of an engine: it keeps every request as it arrived, and answers what a test tells it to."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from multidict import CIMultiDict

OF_CONNECTION = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length"})
"""Headers that are not passed on by `passing_to`."""


@dataclass(frozen=True)
class Arrived:
    """One request as it arrived."""

    method: str
    target: str
    """Path and parameters, undecoded."""
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes


@dataclass
class Reply:
    """What is answered: by default an empty list of hits."""

    status: int = 200
    content: bytes = b'{"took":1,"hits":{"total":{"value":0,"relation":"eq"},"max_score":null,"hits":[]}}'
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    """A multi-dictionary may have a name several times."""
    length: int | None = None
    """The content length in the answer to a HEAD request; None: that of the content."""
    cut: bool = False
    """Whether the connection ends after half of the content."""
    chunked: bool = False
    """Whether the content is sent in chunks, without its length."""


@dataclass
class Upstream:
    """A running server."""

    url: str
    requests: list[Arrived] = field(default_factory=list)
    broken: list[Arrived] = field(default_factory=list)
    """Requests whose body or answer was broken off by the other side."""
    n_connections: int = 0
    """Connections that were opened so far."""
    reply: Callable[[Arrived], Reply] = lambda request: Reply()

    def answer(self, status: int = 200, value: Any = None, **headers: str) -> None:
        """Answer everything with a status and a JSON value from now on."""
        content = json.dumps(value).encode()
        self.reply = lambda request: Reply(status, content, {"Content-Type": "application/json", **headers})


def passing_to(url: str, tls: ssl.SSLContext | None = None) -> Callable[[Arrived], Reply]:
    """Return a ``reply`` that passes every request on to an engine, which ``tls`` trusts if it is reached by TLS."""
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    host, port = parts.hostname, parts.port

    def reply(request: Arrived) -> Reply:
        connection = (
            http.client.HTTPConnection(host, port, timeout=60)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=60, context=tls)
        )
        with closing(connection):
            headers = {name: value for name, value in request.headers.items() if name not in OF_CONNECTION}
            connection.request(request.method, request.target, request.body or None, headers)
            answer = connection.getresponse()
            kept = CIMultiDict(
                (name, value) for name, value in answer.getheaders() if name.lower() not in OF_CONNECTION
            )
            length = answer.headers.get("content-length")
            return Reply(answer.status, answer.read(), kept, None if length is None else int(length))

    return reply


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


@contextmanager
def running_upstream() -> Iterator[Upstream]:  # noqa: C901 - a class, not a decision
    """Yield a server on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            upstream.n_connections += 1

        def answer(self) -> None:
            names = {name.lower(): value for name, value in self.headers.items()}
            body = b""
            try:
                length = int(names.get("content-length", 0))
                body = self._chunks() if "transfer-encoding" in names else self.rfile.read(length)
                is_whole = "transfer-encoding" in names or len(body) == length
            except (OSError, ValueError):
                is_whole = False
            request = Arrived(self.command, self.path, names, body)
            if not is_whole:
                upstream.broken.append(request)
                self.close_connection = True
                return
            upstream.requests.append(request)
            try:
                self._send(upstream.reply(request))
            except OSError:
                upstream.broken.append(request)
                self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - names of http.server

        def _send(self, reply: Reply) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.chunked:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                told = reply.length if self.command == "HEAD" and reply.length is not None else len(reply.content)
                self.send_header("Content-Length", str(told))
            self.end_headers()
            content = reply.content[: len(reply.content) // 2] if reply.cut else reply.content
            if self.command != "HEAD":
                self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content) if reply.chunked else content)
            if reply.chunked and not reply.cut:
                self.wfile.write(b"0\r\n\r\n")
            if reply.cut:
                self.close_connection = True

        def _chunks(self) -> bytes:
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    upstream = Upstream(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield upstream
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
