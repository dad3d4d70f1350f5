"""HTTP between a client, `ssi serve --proxy` and an engine: streams, breaks, bodies of every form, and no desync.

The engine is Elasticsearch behind a server that can answer in its place: paths below ``/test`` are answered by a test.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from tests.live.callers import Site, unordered
from tests.live.pages import until
from tests.live.service_process import ServiceProcess
from tests.served import model_of, random_documents, serve
from tests.unit.service.test_proxy import BODY
from tests.unit.service.upstream import Arrived, Reply, Upstream, passing_to, running_upstream

MIB = 1024 * 1024
HOST = "127.0.0.1"
JSON = {"Content-Type": "application/json"}
MOST_AT_ONCE = 512
"""Requests that the service passes on at the same time."""


@dataclass
class Line:
    """The service and both of its ends."""

    process: ServiceProcess
    hop: Upstream
    index: str
    own: Site
    """The engine itself."""
    ours: Site
    passing: Callable[[Arrived], Reply]

    @property
    def seen(self) -> list[Arrived]:
        """Requests for paths of a test."""
        return [one for one in self.hop.requests if "/test" in one.target or "smuggled" in one.target]

    def answer(self, reply: Callable[[Arrived], Reply]) -> None:
        """Answer requests for paths of a test from now on, and forget earlier requests."""
        self.hop.requests.clear()
        self.hop.broken.clear()
        self.hop.reply = lambda request: reply(request) if "/test" in request.target else self.passing(request)

    def raw(self, data: bytes) -> socket.socket:
        """Return a connection over which bytes were sent as they are."""
        connection = socket.create_connection((HOST, self.process.port), timeout=30)
        connection.sendall(data)
        return connection

    def is_well(self) -> bool:
        """Return whether a search is reranked and a request passed on."""
        found = self.ours.ask("POST", f"/{self.index}/_search", BODY)
        return found.headers.get("x-ssi-reranked") == "true" and self.ours.ask("GET", "/test/_mapping").status == 200


@pytest.fixture(scope="module")
def running(elasticsearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder, index, documents = tmp_path_factory.mktemp("line"), f"line-{uuid.uuid4().hex[:10]}", random_documents(60)
    with running_upstream() as hop, closing(open_engine(f"elasticsearch:{elasticsearch_url}")) as engine:
        hop.reply = passing_to(elasticsearch_url)
        served = serve(engine, index, folder, documents, model_of(documents))
        save_model(served.model, folder / "model")
        spec = ["--engine", f"elasticsearch:{hop.url}", "--index", index, "--model", str(folder / "model")]
        try:
            with ServiceProcess(*spec, "--proxy", "--deadline-ms", "20000") as process:
                ours = Site(f"http://{HOST}:{process.port}")
                yield Line(process, hop, index, Site(elasticsearch_url), ours, passing_to(elasticsearch_url))
        finally:
            engine.delete_index(index)


@pytest.fixture
def line(running: Line) -> Iterator[Line]:
    running.answer(lambda request: Reply(200, b'{"test": 1}'))
    yield running
    running.answer(lambda request: Reply(200, b'{"test": 1}'))
    until(running.is_well, "the service goes on")


def head(method: str, path: str, *more: str) -> bytes:
    """Return the head of a request."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {HOST}", *more, "", ""]).encode()


def answer_on(connection: socket.socket, method: str = "GET") -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return the next answer on a connection."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    return response.status, response.headers, response.read()


# --- answers


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [20, 3 * MIB])
def test_an_answer_that_breaks_off_is_no_whole_answer(line: Line, chunked: bool, size: int) -> None:
    line.answer(lambda request: Reply(200, b"x" * size, cut=True, chunked=chunked))
    with closing(http.client.HTTPConnection(HOST, line.process.port, timeout=30)) as connection:
        connection.request("GET", "/test/_mapping")
        if size < MIB:  # nothing of it was sent yet
            assert connection.getresponse().status == 502
            return
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            connection.getresponse().read()


def test_the_head_of_an_answer_keeps_its_length_and_has_no_body(line: Line) -> None:
    with closing(http.client.HTTPConnection(HOST, line.process.port, timeout=30)) as connection:
        for path, status in (
            (f"/{line.index}/_doc/d1", 200),
            (f"/{line.index}/_doc/none", 404),
            (f"/{line.index}", 200),
        ):
            own = line.own.ask("HEAD", path)
            connection.request("HEAD", path)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, b"")
            # Without a length of the engine's, the server adds that of the body, which is none.
            assert answer.getheader("content-length") == own.headers.get("content-length", "0")
        line.answer(lambda request: Reply(200, b"", length=12_345_678))
        connection.request("HEAD", "/test/_doc/a")
        answer = connection.getresponse()
        assert (answer.getheader("content-length"), answer.read()) == ("12345678", b"")
        connection.request("GET", f"/{line.index}/_count")
        assert connection.getresponse().read().startswith(b'{"count":60'), "no byte of a body is in between"


def test_long_answers_are_streamed_and_take_no_memory(line: Line) -> None:
    content = hashlib.shake_256(b"seed").digest(20 * MIB)
    whole, n = hashlib.sha256(content).hexdigest(), 8
    line.answer(
        lambda request: Reply(
            200, content, {"Content-Type": "application/octet-stream"}, chunked="odd" in request.target
        )
    )
    line.ours.ask("GET", "/test/_mapping")
    before, most = line.process.rss, 0
    with ExitStack() as opened:
        answers = []
        for place in range(n):
            connection = http.client.HTTPConnection(HOST, line.process.port, timeout=60)
            opened.callback(connection.close)
            connection.request("GET", "/test/_mapping" if place % 2 else "/test/_odd")
            answers.append(connection.getresponse())
        # The clients read in turn, so that all answers are under way at the same time.
        digests = [hashlib.sha256() for _ in answers]
        for _ in range(20):
            for answer, digest in zip(answers, digests, strict=True):
                digest.update(answer.read(MIB))
            most = max(most, line.process.rss)
        assert [digest.hexdigest() for digest in digests] == [whole] * n
        assert all(answer.read() == b"" for answer in answers)
    assert most - before < 64 * MIB, f"{(most - before) / MIB:.0f} MiB for answers of {n * 20} MiB"


def test_a_client_that_hangs_up_ends_the_answer_of_the_engine(line: Line) -> None:
    line.answer(lambda request: Reply(200, b"x" * (200 * MIB)))
    connection = line.raw(head("GET", "/test/_mapping"))
    assert connection.recv(1000)
    connection.close()
    until(lambda: [one.target for one in line.hop.broken] == ["/test/_mapping"], "the end of the engine's request")


def test_hanging_up_takes_no_place_from_others(line: Line) -> None:
    """More clients than are passed on at the same time break off their bodies, and the next one is answered."""
    for _ in range(MOST_AT_ONCE + 20):
        connection = line.raw(head("POST", "/test/_count", "Content-Length: 100") + b'{"query"')
        connection.close()
    until(lambda: line.ours.ask("POST", "/test/_count", {}).status == 200, "an answer")
    until(line.is_well, "searches are answered")
    assert {one.target for one in line.seen if one.body == b'{"query"'} == set(), "no part is taken for the whole"


def test_an_answer_under_way_is_finished_before_the_service_ends(line: Line) -> None:
    content = b"y" * (30 * MIB)
    line.answer(lambda request: Reply(200, content))
    with ServiceProcess(*line.process.options) as process:
        connection = socket.create_connection((HOST, process.port), timeout=60)
        connection.sendall(head("GET", "/test/_mapping"))
        response = http.client.HTTPResponse(connection)
        response.begin()
        begun, ended = response.read(MIB), threading.Event()

        def stop() -> None:
            process.terminate()
            ended.set()

        stopping = threading.Thread(target=stop)
        stopping.start()
        until(lambda: "draining" in process.log, "it is about to end")
        assert not ended.wait(2.0), "it waits for the answer"
        assert begun + response.read() == content
        connection.close()
        stopping.join()
        assert ended.is_set()


# --- bodies


@pytest.mark.parametrize("api", ["_search", "_count"])
def test_a_client_that_waits_for_leave_gets_it(line: Line, api: str) -> None:
    body = json.dumps({"query": BODY["query"]}).encode()
    connection = line.raw(head("POST", f"/{line.index}/{api}", "Expect: 100-continue", *_headers(body)))
    with closing(connection):
        with connection.makefile("rb") as file:
            assert file.readline() == b"HTTP/1.1 100 Continue\r\n" and file.readline() == b"\r\n"
        connection.sendall(body)
        status, _, content = answer_on(connection, "POST")
        assert status == 200 and json.loads(content).keys() & {"count", "hits"}
    assert not any("expect" in one.headers for one in line.hop.requests)


def _headers(body: bytes) -> list[str]:
    return ["Content-Type: application/json", f"Content-Length: {len(body)}"]


@pytest.mark.parametrize("n", [1, 7, 100_000])
def test_bodies_in_chunks_are_read_and_passed_on(line: Line, n: int) -> None:
    body = json.dumps({**BODY, "size": 60}).encode()

    def pieces(content: bytes) -> Iterator[bytes]:
        yield from (content[start : start + n] for start in range(0, len(content), n))

    own = line.own.ask("POST", f"/{line.index}/_search", body)
    with closing(http.client.HTTPConnection(HOST, line.process.port, timeout=30)) as connection:
        connection.request("POST", f"/{line.index}/_search", pieces(body), JSON, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.getheader("x-ssi-reranked") == "true" and unordered(json.load(answer)) == unordered(own.value)
        for path in ("/test/_count", "/test/_search", "/test/_msearch"):
            connection.request("POST", path, pieces(body), JSON, encode_chunked=True)
            assert connection.getresponse().read() == b'{"test": 1}'
            assert line.seen[-1].body == body
        long = b"[" + b"1," * 300_000 + b"1]"
        connection.request("POST", "/test/_search", (long[:100_000], long[100_000:]), JSON, encode_chunked=True)
        assert connection.getresponse().read() == b'{"test": 1}'
        assert line.seen[-1].body == long, "more than is read"


def test_compression_both_ways(line: Line) -> None:
    body = json.dumps({**BODY, "size": 60}).encode()
    both = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    own = line.own.ask("POST", f"/{line.index}/_search", body)
    ours = line.ours.ask("POST", f"/{line.index}/_search", gzip.compress(body), both)
    assert ours.headers["x-ssi-reranked"] == "true"
    plain = gzip.decompress(ours.content) if ours.headers.get("content-encoding") == "gzip" else ours.content
    assert unordered(json.loads(plain)) == unordered(own.value)
    for path in (f"/{line.index}/_search?sort=_doc&filter_path=hits", f"/{line.index}/_mget"):
        sent = gzip.compress(json.dumps({"ids": ["d1", "d2"]}).encode() if "_mget" in path else body)
        told, back = (site.ask("POST", path, sent, both) for site in (line.own, line.ours))
        assert back.headers["content-encoding"] == told.headers["content-encoding"] == "gzip"
        assert gzip.decompress(back.content) == gzip.decompress(told.content)


def test_too_long_headers_are_refused(line: Line) -> None:
    answers = []
    for value in ("x" * 65_536, "x" * 20_000):
        with closing(line.raw(head("GET", "/test/_mapping", f"X-Long: {value}"))) as connection:
            answers.append(answer_on(connection)[0])
    assert answers == [431, 431] and not line.seen


def test_a_connection_is_kept_after_every_kind_of_answer(line: Line) -> None:
    line.answer(
        lambda request: Reply(404 if "none" in request.target else 200, b"{}", chunked="chunks" in request.target)
    )
    asked: list[tuple[str, str, Any, int]] = [
        ("POST", f"/{line.index}/_search", BODY, 200),
        ("GET", "/test/_mapping", None, 200),
        ("GET", "/test/_chunks", None, 200),
        ("HEAD", "/test/_mapping", None, 200),
        ("GET", "/test/_doc/none", None, 404),
        ("POST", f"/{line.index}/_search", {"query": {"none": {}}}, 400),
        ("POST", "/test/_msearch", {}, 200),
        ("POST", "/test/_bulk", None, 403),
        ("DELETE", f"/{line.index}", None, 403),
        ("GET", "/health", None, 200),
        ("POST", "/test/_count", {}, 200),
    ]
    with closing(http.client.HTTPConnection(HOST, line.process.port, timeout=30)) as connection:
        connection.connect()
        socket_used = connection.sock
        for method, path, body, status in asked:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), JSON)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status, (method, path)
            assert connection.sock is socket_used, (method, path)


@pytest.mark.parametrize("api", ["_search", "_count"])
def test_a_body_that_does_not_come_is_given_up(line: Line, api: str) -> None:
    with closing(line.raw(head("POST", f"/test/{api}", "Content-Length: 100") + b'{"query"')) as connection:
        status, _, content = answer_on(connection, "POST")
    assert status == 408, content
    assert json.loads(content)["status"] == 408 and not line.seen
    assert line.process.ask("GET", "/ready")[0] == 200


BROKEN = [b"zz\r\n{}\r\n0\r\n\r\n", b"5\r\n{}\r\n0\r\n\r\n", b"-1\r\n{}\r\n", b"fffffffffffffffff\r\n{}"]


@pytest.mark.parametrize("body", BROKEN)
@pytest.mark.parametrize("api", ["_search", "_count"])
def test_a_body_with_bad_chunks_is_told_so(line: Line, api: str, body: bytes) -> None:
    with closing(line.raw(head("POST", f"/test/{api}", "Transfer-Encoding: chunked") + body)) as connection:
        status, _, content = answer_on(connection, "POST")
    assert status == 400 and not line.seen, content


# --- requests within requests

SMUGGLED = b"GET /test/smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED) + 2, b"{}" + SMUGGLED)
TWICE = [
    ("both, the length first", ["Content-Length: 2", "Transfer-Encoding: chunked"], CHUNK),
    ("both, the encoding first", ["Transfer-Encoding: chunked", "Content-Length: 2"], CHUNK),
    ("both, a length that is longer", ["Content-Length: 5000", "Transfer-Encoding: chunked"], CHUNK),
    ("both, no chunk", ["Content-Length: 2", "Transfer-Encoding: chunked"], b"0\r\n\r\n"),
    ("two lengths", ["Content-Length: 2", "Content-Length: 60"], b"{}" + SMUGGLED),
    ("a list of lengths", ["Content-Length: 2, 60"], b"{}" + SMUGGLED),
    ("a length with a sign", ["Content-Length: +2"], b"{}" + SMUGGLED),
    ("an encoding that is no last one", ["Content-Length: 2", "Transfer-Encoding: chunked, identity"], CHUNK),
    ("an encoding with a tabulator", ["Content-Length: 2", "Transfer-Encoding:\tchunked"], CHUNK),
    ("an encoding with another name", ["Content-Length: 2", "Transfer-Encoding: xchunked"], CHUNK),
    ("a name with a space", ["Content-Length: 2", "Transfer-Encoding : chunked"], CHUNK),
    ("a name with an underscore", ["Content-Length: 2", "Transfer_Encoding: chunked"], b"{}"),
    ("the encoding named by Connection", ["Content-Length: 2", "Connection: content-length"], b"{}"),
    ("only a line feed", ["Content-Length: 2", "X-A: a\nTransfer-Encoding: chunked"], CHUNK),
    ("a folded line", ["Content-Length: 2", "X-A: a\r\n Transfer-Encoding: chunked"], b"{}"),
]


@pytest.mark.parametrize(("headers", "body"), [case[1:] for case in TWICE], ids=[case[0] for case in TWICE])
@pytest.mark.parametrize("api", ["_search", "_count"])
def test_no_request_is_smuggled_in_the_body_of_another(line: Line, api: str, headers: list[str], body: bytes) -> None:
    with closing(line.raw(head("POST", f"/test/{api}", *headers, "X-First: yes") + body)) as connection:
        status, _, _ = answer_on(connection, "POST")
        until(line.is_well, "nothing is left on a connection to the engine")
    assert status in (200, 400)
    first = [one for one in line.seen if one.headers.get("x-first") == "yes"]
    assert len(first) == (status == 200) and all(one.target == f"/test/{api}" for one in first)
    assert all(one.body in (b"{}", b"", b"{}" + SMUGGLED) for one in first)
    assert not [one for one in line.hop.requests if one.target == "/test/smuggled"]
    assert not [one for one in first if {"content-length", "transfer-encoding"} <= one.headers.keys()]


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:1/test/_mapping",
        "http://evil.example/test/_mapping",
        "//evil.example/test/_mapping",
        "/test/_mapping%0d%0aX-A:%20b",
        "/test/_mapping?a=%0d%0aX-A:b",
        "/test/../_mapping",
        "/test/%2e%2e/_mapping",
        "/test/_mapping;a=b",
        "/test/_mapping?a=b?c=d#e",
        "/@evil.example/_mapping",
        "/test/_mapping/\\..",
    ],
)
def test_a_target_reaches_the_engine_alone_and_as_it_came(line: Line, target: str) -> None:
    line.hop.reply = lambda request: Reply(200, b"{}")
    try:
        before = len(line.hop.requests)
        with closing(line.raw(head("GET", target, "X-First: yes"))) as connection:
            status = answer_on(connection)[0]
        arrived = [one for one in line.hop.requests[before:] if one.headers.get("x-first") == "yes"]
        assert len(arrived) == (status == 200) and all("x-a" not in one.headers for one in arrived)
        path = target.removeprefix("http://127.0.0.1:1").removeprefix("http://evil.example").partition("#")[0]
        assert [one.target for one in arrived] in ([], [path]), (status, arrived)
        assert status in (200, 400, 403, 404), status
    finally:
        line.answer(lambda request: Reply())
