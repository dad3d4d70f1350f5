"""HTTP/1.1 of the connections to an engine: requests leave in one piece, and ordinary answers are read directly.

`http.client` reads headers by the parser of e-mail messages, and urllib3 copies them several times. For the two
requests of a search this takes more processor time than all scores. `DirectConnection` reads an answer of the ordinary
form itself: well-formed headers in ASCII, and a body with a length or in chunks. Every other answer, malformed ones
included, is read by `http.client` from its first byte.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import urllib3
from urllib3.connection import HTTPConnection

from reranker.deadline import Deadline

READ_BYTES = 64 * 1024
"""Buffer of an answer that is being read: each read of the socket costs several system calls."""
LONGEST_BODY = 64 * 1024 * 1024
"""Longest body, in bytes, that is read directly."""
SENT_AT_ONCE = 64 * 1024
"""Longest body, in bytes, that is copied behind its headers, to be sent together with them."""
MOST_HEADERS = 100
"""Largest number of headers of an ordinary answer; `http.client` refuses more."""
_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests state a length even without a body."""
_REQUEST = re.compile(
    r"[A-Z]+ [\x21-\x7e]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
)
_ANSWER = re.compile(
    rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\t\x20-\x7e]*)?\r\n((?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e]*\r\n)*)\r\n"
)
_FOLD = re.compile(r"\r\n[ \t]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,7})\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}")


class _ReadBefore(io.RawIOBase):
    """Reads the bytes already received, and then the socket before a deadline; its own timeout is for each packet."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase, deadline: Deadline, begun: bytes) -> None:
        self._sock, self._raw, self._deadline, self._begun = sock, raw, deadline, begun

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._begun:
            part, self._begun = self._begun[: len(buffer)], self._begun[len(buffer) :]
            buffer[: len(part)] = part
            return len(part)
        _allow(self._sock, self._deadline)
        return self._raw.readinto(buffer)  # type: ignore[no-any-return, unused-ignore]

    def close(self) -> None:
        self._raw.close()
        super().close()


class BoundedResponse(http.client.HTTPResponse):
    """An answer that `http.client` reads before one deadline, by default the timeout of the socket.

    ``begun`` are bytes of it that were already received.
    """

    def __init__(
        self, sock: socket.socket, *options: Any, deadline: Deadline | None = None, begun: bytes = b"", **named: Any
    ) -> None:
        super().__init__(sock, *options, **named)
        raw = _ReadBefore(sock, self.fp.detach(), deadline or Deadline(sock.gettimeout()), begun)
        self.fp = io.BufferedReader(raw, READ_BYTES)


class _Head(NamedTuple):
    """Status line and headers of an ordinary answer."""

    status: int
    headers: urllib3.HTTPHeaderDict
    length: int | None
    """Bytes of the body; None: it comes in chunks."""
    end: int
    """Position of the body's first byte."""


class DirectConnection(HTTPConnection):
    """Sends a request in one piece and reads an ordinary answer directly; for connections without an HTTP proxy.

    It is mixed into the connection class of a urllib3 pool, which opens and closes it.
    """

    _asked: tuple[str, str] | None = None
    """Method and target of the request that is not answered yet."""

    def request(  # type: ignore[override]
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, **_: Any
    ) -> None:
        """Send a request; `ValueError` if its parts contain control characters."""
        head = self._head_of(method, url, body, headers or {})
        if self.sock is None:
            self.connect()
        else:
            self.sock.settimeout(self.timeout)
        self._asked = method, url
        if body is None or len(body) <= SENT_AT_ONCE:
            self.sock.sendall(head + (body or b""))
        else:
            self.sock.sendall(head)
            self.sock.sendall(body)

    def _head_of(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Return request line and headers, with those that `http.client` and urllib3 add."""
        given = {name.lower() for name in headers}
        lines = dict(headers)
        if "host" not in given:
            host = f"[{self.host}]" if ":" in self.host else self.host
            lines["Host"] = host if self.port == self.default_port else f"{host}:{self.port}"
        if "accept-encoding" not in given:
            lines["Accept-Encoding"] = "identity"
        if "content-length" not in given and (body is not None or method in _WITH_LENGTH):
            lines["Content-Length"] = str(len(body or b""))
        text = "".join([name + ": " + value + "\r\n" for name, value in lines.items()])
        head = f"{method} {url} HTTP/1.1\r\n{text}\r\n"
        # A line break in one of the parts would begin another header.
        if _REQUEST.fullmatch(head) is None or head.count("\n") != len(lines) + 2:
            raise ValueError(f"a header, the method or the URL of a {method:.10} request contains control characters")
        return head.encode("latin-1")

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        """Return the complete answer; raises errors of the socket, `http.client` and urllib3."""
        if self._asked is None:
            raise http.client.ResponseNotReady
        (method, url), self._asked = self._asked, None
        # Each packet could be in time by itself.
        deadline, received = Deadline(self.timeout if isinstance(self.timeout, int | float) else None), bytearray()
        self._receive(deadline, received)
        head = _head_in(received) if method != "HEAD" else None
        content = None if head is None else self._body(head, deadline, received)
        if head is None or not content:
            return self._by_http_client(method, url, deadline, bytes(received))
        if "close" in head.headers.get("connection", "").lower():
            self.close()
        return urllib3.HTTPResponse(content, head.headers, head.status, 11, request_method=method, request_url=url)

    def _receive(self, deadline: Deadline, received: bytearray) -> bool:
        """Append bytes of the answer; return False if the other side has closed the connection."""
        _allow(self.sock, deadline)
        part = self.sock.recv(READ_BYTES)
        received += part
        return bool(part)

    def _body(self, head: _Head, deadline: Deadline, received: bytearray) -> bytes | None:
        """Return the body; None if it is not ordinary. ``received`` then has all bytes of the answer so far."""
        if head.length is None:
            return self._chunks(head.end, deadline, received)
        end = head.end + head.length
        while len(received) < end:
            if not self._receive(deadline, received):
                return None
        return bytes(memoryview(received)[head.end :]) if len(received) == end else None

    def _chunks(self, start: int, deadline: Deadline, received: bytearray) -> bytes | None:
        """Return the content of all chunks, the first of which begins at ``start``; None as `_body`."""
        parts: list[bytes] = []
        while len(received) <= LONGEST_BODY:
            line = _CHUNK.match(received, start)
            if line is None:
                if len(received) > start + 9 or not self._receive(deadline, received):
                    return None
                continue
            first = line.end()
            end = first + int(line[1], 16)
            while len(received) < end + 2:
                if not self._receive(deadline, received):
                    return None
            if received[end : end + 2] != b"\r\n":
                return None
            if end == first:
                return b"".join(parts) if len(received) == end + 2 else None
            parts.append(bytes(memoryview(received)[first:end]))
            start = end + 2
        return None

    def _by_http_client(self, method: str, url: str, deadline: Deadline, begun: bytes) -> urllib3.HTTPResponse:
        """Return an answer as `http.client` and urllib3 read it, from its first byte."""
        answer = BoundedResponse(self.sock, method=method, deadline=deadline, begun=begun)
        answer.begin()
        headers = urllib3.HTTPHeaderDict((name, _FOLD.sub(" ", value)) for name, value in answer.msg.items())
        whole = urllib3.HTTPResponse(
            answer,
            headers,
            answer.status,
            answer.version,
            original_response=answer,
            request_method=method,
            request_url=url,
        )
        if answer.will_close:
            self.close()
        return whole


def _allow(sock: socket.socket, deadline: Deadline) -> None:
    """Set the timeout of a socket to the time left; `TimeoutError` if there is none."""
    if deadline.passed:
        raise TimeoutError("the answer took longer than allowed")
    sock.settimeout(deadline.timeout_s())


def _head_in(received: bytearray) -> _Head | None:
    """Return status line and headers of an answer; None if they are not all there, or not ordinary."""
    found = _ANSWER.match(received)
    if found is None:
        return None
    headers, lines = urllib3.HTTPHeaderDict(), found[2].decode("ascii").split("\r\n")
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        headers.add(name, value.lstrip(" \t"))
    status, length = int(found[1]), headers.get("content-length")
    coding = headers.get("transfer-encoding", "" if length is not None else "close").lower()
    ordinary = status not in (204, 304) and len(lines) <= MOST_HEADERS and "content-encoding" not in headers
    if ordinary and length is None and coding == "chunked":
        return _Head(status, headers, None, found.end())
    if ordinary and length is not None and not coding and _LENGTH.fullmatch(length) and int(length) <= LONGEST_BODY:
        return _Head(status, headers, int(length), found.end())
    return None
