"""`DirectConnection` reads the same answers as `http.client` and urllib3, whatever the other side sends."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import random
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from urllib3.connection import HTTPConnection

from reranker.engines.http1 import DirectConnection

BODY = b'{"hits":{"total":{"value":2}}}'
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
ORDINARY = LENGTH % (len(BODY), BODY)
CHUNKS = b"HTTP/1.1 200 OK\r\nX-elastic-product: Elasticsearch\r\nTransfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(BODY, mtime=0)
ANSWERS: dict[str, bytes] = {
    "ordinary": ORDINARY,
    "chunks": CHUNKS + b"a\r\n0123456789\r\n14\r\n01234567890123456789\r\n0\r\n\r\n",
    "chunks with options": CHUNKS + b"5;a=b\r\n01234\r\n0\r\n\r\n",
    "chunks with a trailer": CHUNKS + b"5\r\n01234\r\n0\r\nX-Sum: 1\r\n\r\n",
    "a broken chunk size": CHUNKS + b"5x\r\n01234\r\n0\r\n\r\n",
    "a negative chunk size": CHUNKS + b"-5\r\n01234\r\n0\r\n\r\n",
    "a chunk that is too short": CHUNKS + b"9\r\n01234\r\n0\r\n\r\n",
    "chunks without an end": CHUNKS + b"5\r\n01234\r\n",
    "no body": LENGTH % (0, b""),
    "no chunks": CHUNKS + b"0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "an answer until the end": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a first answer": b"HTTP/1.1 100 Continue\r\n\r\n" + ORDINARY,
    "an error": b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}",
    "a header twice": b"HTTP/1.1 200 OK\r\nWarning: a\r\nwarning: b\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}}",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + CHUNKS[17:] + b"1\r\n{\r\n0\r\n\r\n",
    "the length of all chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n" + CHUNKS[17:] + b"1\r\n{\r\n0\r\n\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 2\r\n\r\n{}",
    "only line feeds": ORDINARY.replace(b"\r\n", b"\n"),
    "Latin letters": "HTTP/1.1 200 OK\r\nA: é\r\nContent-Length: 2\r\n\r\n{}".encode("latin-1"),
    "a header without a colon": b"HTTP/1.1 200 OK\r\nA b\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 2\r\n\r\n{}",
    "a name with a space": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: 2a\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "a long length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}",
    "a body cut short": LENGTH % (len(BODY) + 1, BODY),
    "a body with more": LENGTH % (len(BODY) - 1, BODY),
    "closing": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    "gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(PACKED), PACKED),
    "broken gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
    "half of the headers": ORDINARY[:30],
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"Content-Length: 2\r\n\r\n{}",
    "a long header": b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
}


class Direct(DirectConnection):
    """`DirectConnection` as `DeadlinePool` mixes it into a connection class."""


def outcome(kind: type[HTTPConnection], pieces: Sequence[bytes], method: str = "POST") -> Any:
    """Return status, headers and body of an answer, and whether the connection is closed; or the class of the error."""
    near, far = socket.socketpair()
    connection = kind("engine", 9200, timeout=5.0)
    connection.sock = near

    def answer() -> None:
        far.recv(65_536)
        # The reader may close the connection before it has read everything.
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                far.sendall(piece)
            far.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        connection.request(method, "/shop/_search", body=b"{}", headers={"accept": "application/json"})
        response = connection.getresponse()
        headers = sorted((name, " ".join(value.split())) for name, value in response.headers.items())
        return response.status, headers, response.data, connection.sock is None
    except Exception as error:
        return type(error)
    finally:
        thread.join()
        connection.close()
        near.close()
        far.close()


def split(whole: bytes, rng: random.Random) -> list[bytes]:
    """Return an answer in up to four pieces."""
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randrange(4)))
    return [whole[first:last] for first, last in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_as_http_client_reads_it(name: str) -> None:
    whole = ANSWERS[name]
    expected = outcome(HTTPConnection, [whole])
    for pieces in ([whole], [whole[:40], whole[40:]], [bytes([byte]) for byte in whole[:400]] + [whole[400:]]):
        assert outcome(Direct, pieces) == expected


def test_answers_with_random_faults_are_read_as_http_client_reads_them() -> None:
    rng = random.Random(5)
    for _ in range(600):
        whole = bytearray(rng.choice([ANSWERS["chunks"], ORDINARY, ANSWERS["closing"], ANSWERS["a header twice"]]))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(whole))
            new = rng.choice([b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\x00", b"\xe9", b"9", b"a", b"0\r\n\r\n"])
            whole[place : place + rng.randrange(2)] = new
        assert outcome(Direct, split(bytes(whole), rng)) == outcome(HTTPConnection, [bytes(whole)]), bytes(whole)


def test_a_head_request_has_no_body() -> None:
    assert outcome(Direct, [ORDINARY[: -len(BODY)]], "HEAD") == outcome(
        HTTPConnection, [ORDINARY[: -len(BODY)]], "HEAD"
    )


def sent(method: str, url: str, body: bytes | None, headers: dict[str, str], host: str = "engine") -> tuple[Any, ...]:
    """Return what a request sends: its first line, its headers and its body."""
    near, far = socket.socketpair()
    connection = Direct(host, 9200, timeout=5.0)
    connection.sock = near
    received = bytearray()

    def read() -> None:
        while part := far.recv(65_536):
            received.extend(part)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        connection.request(method, url, body=body, headers=headers)
    finally:
        near.close()
        thread.join()
        far.close()
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return first, {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}, rest


def test_a_request_is_sent_with_its_length_and_host() -> None:
    first, headers, body = sent("POST", "/shop/_search?q=1", b"{}", {"accept": "application/json"})
    assert (first, body) == ("POST /shop/_search?q=1 HTTP/1.1", b"{}")
    assert headers == {
        "host": "engine:9200",
        "accept-encoding": "identity",
        "content-length": "2",
        "accept": "application/json",
    }
    assert sent("GET", "/", None, {}, "::1")[1]["host"] == "[::1]:9200"
    assert "content-length" not in sent("GET", "/", None, {})[1]
    assert sent("POST", "/", None, {})[1]["content-length"] == "0"
    assert sent("GET", "/", None, {"Host": "other", "Accept-Encoding": "gzip"})[1]["accept-encoding"] == "gzip"
    long = b"x" * 200_000
    assert sent("POST", "/_bulk", long, {})[2] == long


@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("POST", "/a", {"x-opaque-id": "a\r\nX-Other: b"}),
        ("POST", "/a", {"x-opaque-id": "a\nb"}),
        ("POST", "/a", {"x-a: b\r\nx-b": "c"}),
        ("POST", "/a", {"x a": "c"}),
        ("POST", "/a HTTP/1.1\r\nX-Other: b\r\n\r\n", {}),
        ("POST", "/a b", {}),
        ("POST /b", "/a", {}),
        ("POST", "/a", {"x-a": "\u20ac"}),
    ],
)
def test_nothing_is_sent_if_a_part_could_begin_another_header(method: str, url: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        sent(method, url, b"{}", headers)


def test_a_request_must_come_before_its_answer() -> None:
    with pytest.raises(http.client.ResponseNotReady):
        Direct("engine", 9200).getresponse()
