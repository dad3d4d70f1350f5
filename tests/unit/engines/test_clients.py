"""Official clients: those made from settings, and those that a user has made, end in the same answers and errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from reranker.deadline import Deadline
from reranker.engines import EngineSettings, open_engine
from reranker.engines.wire import caller_rights, json_bytes, passed_headers, request_deadline, while_waiting
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
from tests.engines.on_loop import OnLoop
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


def test_an_answer_is_read_before_one_deadline(server: ScriptedServer) -> None:
    def drip(_: ScriptedServer, request: Request) -> Answer:
        time.sleep(1.5)
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", drip)
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=0.3))
    started = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"within 0\.3 s") as caught:
        engine.count("shop")
    assert caught.value.timed_out and time.monotonic() - started < 1.4
    engine.close()


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


def test_a_request_for_a_caller_has_its_credentials_and_none_of_the_programs(server: ScriptedServer) -> None:
    settings = EngineSettings(user="service", password="secret", headers={"X-Gateway": "key"})
    heard: list[dict[str, str]] = []

    def hear(_: ScriptedServer, request: Request) -> Answer:
        heard.append({name.lower(): value for name, value in request.headers.items()})
        return json_answer(200, {"count": 3})

    server.script("/shop/_count", hear, hear, hear, hear)
    engine = open_engine(server.spec, settings)
    with OnLoop(engine) as on_loop:
        for rights in ({"authorization": "Bearer caller"}, {}):
            token = caller_rights.set(rights)
            engine.count("shop")
            on_loop.count("shop")
            caller_rights.reset(token)
    engine.close()
    assert [headers.get("authorization") for headers in heard] == ["Bearer caller", "Bearer caller", None, None]
    assert not any("x-gateway" in headers for headers in heard)


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

    server.script("/shop/_count", answer)
    engine = open_engine(server.spec, EngineSettings())
    token = while_waiting.set(work)
    try:
        assert engine.count("shop") == 3
    finally:
        while_waiting.reset(token)
    assert in_time == [True, True]
    engine.close()


def test_a_request_of_the_work_does_not_start_the_work_again(server: ScriptedServer) -> None:
    """With a model whose texts the engine analyzes, the work sends a request itself."""
    engine, n_started = open_engine(server.spec, EngineSettings()), 0
    server.script("/shop/_count", *[lambda *_: json_answer(200, {"count": 2})] * 2)

    def work() -> None:
        nonlocal n_started
        n_started += 1
        assert engine.count("shop") == 2

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


def test_a_request_is_as_the_official_client_sends_it(server: ScriptedServer) -> None:
    login, body = ("me", "secret"), {"query": {"match_all": dict[str, str]()}}
    server.script("/_search", *[lambda s, r: json_answer(200, {"hits": {"hits": []}})] * 2)
    auth = {"basic_auth": login} if kind_of(server) == "elasticsearch" else {"http_auth": login}
    client = client_of(kind_of(server), f"{url_of(server)}/prefix", headers={"X-Team": "shop"}, **auth)
    settings = EngineSettings(user="me", password="secret", headers={"X-Team": "shop"})
    for engine in (open_engine(f"{server.spec}/prefix", settings), open_engine(client)):
        engine.search("shop", body, preference="a b")
        engine.close()
    own, official = server.requests
    assert (own.method, own.path, own.params, own.body) == (
        official.method,
        official.path,
        official.params,
        official.body,
    )
    for name in ("authorization", "x-team", "accept", "content-type"):
        assert own.headers[name] == official.headers[name], name
    assert own.path == "/prefix/shop/_search" and own.params == {"preference": "a b"}
    client.close()


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
