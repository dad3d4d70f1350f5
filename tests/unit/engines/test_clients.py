"""Official clients: those made from settings, and those that a user has made, end in the same answers and errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from reranker.deadline import Deadline
from reranker.engines import EngineSettings, open_engine
from reranker.engines.clients import CLIENT_SPANS
from reranker.engines.deadlines import DeadlineConnection, DeadlineNode, DeadlinePool, Exchange, within
from reranker.engines.wire import json_bytes, passed_headers, request_deadline, while_waiting
from reranker.errors import (
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    VersionConflict,
)
from tests.engines.scripted import Answer, Request, ScriptedServer, json_answer

KINDS = ("elasticsearch", "opensearch")


def client_of(kind: str, url: str, **options: Any) -> Elasticsearch | OpenSearch:
    if kind == "elasticsearch":
        return Elasticsearch(url, **options)
    return OpenSearch([url], **options)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    with ScriptedServer(request.param) as server:
        yield server


def url_of(server: ScriptedServer) -> str:
    return server.spec.partition(":")[2]


def kind_of(server: ScriptedServer) -> str:
    return server.spec.partition(":")[0]


def test_a_users_client_carries_the_requests_and_stays_the_users(server: ScriptedServer) -> None:
    heard: list[Request] = []

    def hear(_: ScriptedServer, request: Request) -> Answer:
        heard.append(request)
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", hear, hear)
    client = client_of(kind_of(server), url_of(server), headers={"x-tenant": "shop"})
    engine = open_engine(client)
    assert engine.spec == server.spec and engine.count("shop", {"match_all": {}}) == 3
    assert {name.lower(): value for name, value in heard[0].headers.items()}["x-tenant"] == "shop"
    engine.close()
    assert open_engine(client).count("shop") == 3, "closing an engine does not close the client"
    client.close()


@pytest.mark.parametrize(
    ("status", "error", "cls"),
    [
        (401, {"type": "security_exception", "reason": "who"}, EngineAuthError),
        (404, {"type": "index_not_found_exception", "reason": "no such index"}, IndexMissing),
        (400, {"type": "parsing_exception", "reason": "what"}, EngineRejected),
        (409, {"type": "version_conflict_engine_exception", "reason": "late"}, VersionConflict),
        (429, {"type": "circuit_breaking_exception", "reason": "heap"}, EngineOverloaded),
        (503, {"type": "no_shard_available_action_exception", "reason": "gone"}, EngineUnavailable),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_errors_are_the_same_by_either_client(
    server: ScriptedServer, status: int, error: dict[str, str], cls: type[EngineError], own: bool
) -> None:
    asked: list[int] = []

    def answer(_: ScriptedServer, request: Request) -> Answer:
        asked.append(1)
        return json_answer(status, {"error": error, "status": status})

    server.script("/shop/_count", answer)
    client = client_of(kind_of(server), url_of(server), max_retries=0)
    engine = open_engine(client if own else server.spec, EngineSettings())
    with pytest.raises(cls) as caught:
        engine.count("shop")
    assert caught.value.status == status and caught.value.error_type == error["type"]
    assert error["reason"] in str(caught.value) and len(asked) == 1
    client.close()


def test_the_client_made_from_a_spec_retries_nothing(server: ScriptedServer) -> None:
    asked: list[int] = []

    def answer(_: ScriptedServer, request: Request) -> Answer:
        asked.append(1)
        return json_answer(503, {"error": {"type": "x", "reason": "down"}})

    server.script("/shop/_count", answer)
    engine = open_engine(server.spec, EngineSettings())
    with pytest.raises(EngineUnavailable):
        engine.count("shop")
    assert len(asked) == 1
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_there_is_told_by_either_client(kind: str) -> None:
    client = client_of(kind, "http://127.0.0.1:9", max_retries=0)
    for engine in (open_engine(client), open_engine(f"{kind}:http://127.0.0.1:9", EngineSettings())):
        with pytest.raises(EngineUnavailable, match="check that it is running") as caught:
            engine.count("shop")
        assert caught.value.is_connection_failure and not caught.value.timed_out
    client.close()


def test_a_users_client_with_our_connections_reads_before_one_deadline(server: ScriptedServer) -> None:
    def drip(_: ScriptedServer, request: Request) -> Answer:
        time.sleep(1.5)
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", drip)
    chosen: dict[str, Any] = {"node_class": DeadlineNode, "request_timeout": 60}
    if kind_of(server) == "opensearch":
        chosen = {"connection_class": DeadlineConnection, "timeout": 60}
    client = client_of(kind_of(server), url_of(server), **chosen, max_retries=0)
    engine = open_engine(client, EngineSettings(read_timeout_s=0.3))
    started = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"within 0\.3 s") as caught:
        engine.count("shop")
    assert caught.value.timed_out and time.monotonic() - started < 1.4
    client.close()


def test_headers_of_the_request_at_hand_reach_the_engine(server: ScriptedServer) -> None:
    heard: list[dict[str, str]] = []

    def hear(_: ScriptedServer, request: Request) -> Answer:
        heard.append({name.lower(): value for name, value in request.headers.items()})
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", hear, hear)
    engine = open_engine(server.spec, EngineSettings())
    token = passed_headers.set({"x-opaque-id": "shop-1", "traceparent": "00-ab-cd-01"})
    engine.count("shop")
    passed_headers.reset(token)
    engine.count("shop")
    assert (heard[0]["x-opaque-id"], heard[0]["traceparent"]) == ("shop-1", "00-ab-cd-01")
    assert "x-opaque-id" not in heard[1]
    engine.close()


def test_work_is_done_while_the_engine_works(server: ScriptedServer) -> None:
    """The engine answers only when the work is done, which begins only when the engine has the request."""
    asked, worked, in_time = threading.Event(), threading.Event(), []

    def work() -> None:
        in_time.append(asked.wait(10.0))
        worked.set()

    def answer(_: ScriptedServer, request: Request) -> Answer:
        asked.set()
        in_time.append(worked.wait(10.0))
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", lambda *_: json_answer(200, {"count": 2}), answer)
    engine = open_engine(server.spec, EngineSettings())
    token = while_waiting.set(work)
    try:
        assert engine.count("shop") == 2 and not in_time, "not while a connection is opened"
        assert engine.count("shop") == 3
    finally:
        while_waiting.reset(token)
    assert in_time == [True, True]
    engine.close()


def test_a_request_of_the_work_does_not_start_the_work_again(server: ScriptedServer) -> None:
    """With a model whose texts the engine analyzes, the work took one connection after the other, for ever."""
    engine, n_started, both = open_engine(server.spec, EngineSettings(connections=2)), 0, threading.Barrier(2)

    def together(_: ScriptedServer, request: Request) -> Answer:
        both.wait(10.0)
        return json_answer(200, {"count": 2})

    def at_once(_: ScriptedServer, request: Request) -> Answer:
        return json_answer(200, {"count": 2})

    server.script("/shop/_count", together, together, at_once, at_once)

    def work() -> None:
        nonlocal n_started
        n_started += 1
        assert engine.count("shop") == 2

    # Two connections are opened, so that the request of the work goes over an open one as well.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(engine.count, ["shop"] * 2))
    token = while_waiting.set(work)
    try:
        assert engine.count("shop") == 2
        assert n_started == 1 and while_waiting.get() is work
    finally:
        while_waiting.reset(token)
    engine.close()


def test_the_deadline_of_a_request_bounds_the_engines_requests_without_a_timeout(server: ScriptedServer) -> None:
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=60.0))
    now = [0.0]
    token = request_deadline.set(Deadline(5.0, now=lambda: now[0]))
    try:
        server.script("/shop/_count", lambda *_: json_answer(200, {"count": 2}))
        assert engine.count("shop") == 2
        now[0] = 5.0
        with pytest.raises(EngineUnavailable) as late:
            engine.count("shop")
        assert late.value.timed_out
    finally:
        request_deadline.reset(token)
    engine.close()


def test_elasticsearch_is_not_signed_for_aws() -> None:
    with pytest.raises(ConfigError, match="opensearch:URL"):
        open_engine("elasticsearch:http://127.0.0.1:9200", EngineSettings(aws_region="eu-central-1"))


class Pool:
    """Stands for urllib3's pool; answers by path, or fails."""

    def __init__(self) -> None:
        self.ConnectionCls = object
        self.pool = None
        self.timeout = None
        self.urls: list[str] = []

    def urlopen(self, method: str, url: str, **_: Any) -> Any:
        self.urls.append(url)
        if url.endswith("/_count"):
            raise ProtocolError("reset")
        return url


def test_what_a_client_sends_on_its_way_is_not_taken_for_the_answer() -> None:
    """Elasticsearch's and OpenSearch's clients sniff nodes before a request, or after it has failed."""
    pool: Any = DeadlinePool(Pool())  # type: ignore[arg-type]
    exchange = Exchange(Deadline(1.0), 1.0, "/shop/_count")
    with within(exchange):
        pool.urlopen("GET", "/_nodes/_all/http")
        assert exchange.reply is None
        with pytest.raises(ProtocolError):
            pool.urlopen("POST", "/prefix/shop/_count")
        pool.urlopen("GET", "/_nodes/_all/http")
    assert exchange.reply is None and isinstance(exchange.error, ProtocolError)


def test_no_request_waits_for_a_connection_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.engines.deadlines.LONGEST_WAIT_S", 0.01)
    pool: Any = DeadlinePool(Pool())  # type: ignore[arg-type]
    assert pool._free.acquire(timeout=1.0)  # the only connection is in use
    with pytest.raises(ReadTimeoutError, match="in use"):
        pool.urlopen("GET", "/shop/_search")
    pool._free.release()
    assert pool.urlopen("GET", "/shop/_search") == "/shop/_search"


def test_an_http_proxy_gets_whole_urls() -> None:
    plain = Pool()
    pool: Any = DeadlinePool(plain, "http://engine:9200")  # type: ignore[arg-type]
    with within(Exchange(Deadline(1.0), 1.0, "/shop/_search")):
        pool.urlopen("POST", "/shop/_search")
    assert plain.urls == ["http://engine:9200/shop/_search"]


def test_a_request_sent_directly_is_that_of_the_client(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client's own spans enabled, requests go through all of the client."""
    settings = EngineSettings(user="me", password="secret", headers={"X-Team": "shop"})
    server.script("/_search", *[lambda s, r: json_answer(200, {"hits": {"hits": []}})] * 2)
    for enabled in (None, "true"):
        if enabled is not None:
            monkeypatch.setenv(CLIENT_SPANS, enabled)
        engine = open_engine(f"{server.spec}/prefix", settings)
        engine.search("shop", {"query": {"match_all": {}}}, preference="a b")
        engine.close()
    direct, by_client = server.requests
    by_client.headers.pop("x-elastic-client-meta", None)
    assert direct == by_client
    assert direct.headers["x-team"] == "shop" and direct.headers["authorization"].startswith("Basic ")
    assert direct.path == "/prefix/shop/_search" and direct.params == {"preference": "a b"}


def test_a_warning_of_the_engine_is_a_warning_of_python(server: ScriptedServer) -> None:
    text = '299 Elasticsearch-8.19.0-abc "[field] is deprecated"'
    server.script("/_search", lambda s, r: json_answer(200, {"hits": {"hits": []}}, Warning=text))
    engine = open_engine(server.spec, EngineSettings())
    with pytest.warns(Warning, match="is deprecated"):
        engine.search("shop", {})
    engine.close()


def test_half_an_emoji_is_sent_escaped_in_a_request_and_refused_in_a_document() -> None:
    value = {"query": "red \ud83d", "\ud83d": "é😀"}
    assert json.loads(json_bytes(value, escape=True)) == value
    assert json_bytes({"query": "é😀"}, escape=True) == json_bytes({"query": "é😀"})
    with pytest.raises(ValueError, match="surrogates"):
        json_bytes(value)
