"""What each fault of an engine becomes: an error class, with both clients, in one call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.connections import LONGEST_ON_LOOP
from reranker.engines.protocol import Engine
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
    VersionConflict,
)
from tests.engines.on_loop import OnLoop
from tests.engines.scripted import FAULTS, Answer, ScriptedServer, json_answer, whole

OPS = [WriteOp("index", f"d{number}", {"text": f"text {number}"}) for number in range(4)]

ERRORS: dict[str, type[EngineError]] = {
    "all_429_retry_after": EngineOverloaded,
    "all_429_block": EngineOverloaded,
    "all_400": EngineRejected,
    "all_401": EngineAuthError,
    "all_403": EngineAuthError,
    "all_404": IndexMissing,
    "all_408": EngineUnavailable,
    "all_413": RequestTooLarge,
    "all_500": EngineUnavailable,
    "all_502_html": EngineUnavailable,
    "all_503": EngineUnavailable,
    "all_504": EngineUnavailable,
    "ok_html": EngineUnavailable,
    "cut_json": EngineUnavailable,
    "half_closed_body": EngineUnavailable,
    "reset_after_half": EngineUnavailable,
    "reset_at_once": EngineUnavailable,
    "hang": EngineUnavailable,
    "hang_after_apply": EngineUnavailable,
    "drip": EngineUnavailable,
    "missing_items": EngineUnavailable,
    "wrong_order": EngineUnavailable,
    "json_array": EngineUnavailable,
    "json_null_items": EngineUnavailable,
}
STATUSES: dict[str, list[int]] = {
    "item_429": [429, 201, 201, 429],
    "item_503": [201, 503, 201, 503],
    "item_400": [201, 201, 400, 201],
    "item_mix": [201, 429, 503, 201],
    "item_409": [409, 201, 409, 201],
    "item_403": [201, 403, 201, 403],
    "item_block_429": [429, 429, 429, 429],
}


@pytest.fixture(params=["elasticsearch", "opensearch"])
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    with ScriptedServer(request.param, hang_s=1.5) as running:
        yield running


@pytest.fixture(params=["command", "event loop"])
def engine(server: ScriptedServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return an engine as commands use it, and as a service does."""
    opened: Any = open_engine(server.spec, EngineSettings(read_timeout_s=0.6, connect_timeout_s=0.6))
    if request.param == "command":
        yield opened
    else:
        with OnLoop(opened) as on_loop:
            yield on_loop
    opened.close()


def test_every_fault_is_covered() -> None:
    assert set(FAULTS) == set(ERRORS) | set(STATUSES) | {"missing_product"}


@pytest.mark.parametrize("fault", sorted(ERRORS))
def test_an_answer_for_the_whole_request_is_one_error_after_one_call(
    fault: str, server: ScriptedServer, engine: Engine
) -> None:
    server.script("_bulk", FAULTS[fault])
    started = time.monotonic()
    with pytest.raises(EngineError) as caught:
        engine.bulk("docs", OPS)
    assert type(caught.value) is ERRORS[fault]
    assert server.calls("_bulk") == 1
    assert time.monotonic() - started < 1.4
    assert server.product in str(caught.value)


@pytest.mark.parametrize("fault", sorted(STATUSES))
def test_items_keep_their_own_status(fault: str, server: ScriptedServer, engine: Engine) -> None:
    server.script("_bulk", FAULTS[fault])
    results = engine.bulk("docs", OPS)
    assert [result.id for result in results] == [op.id for op in OPS]
    assert [result.status for result in results] == STATUSES[fault]
    assert all(bool(result.error_type) == (result.status >= 300) for result in results)


def test_a_missing_product_header_matters_to_elasticsearch_alone(server: ScriptedServer, engine: Engine) -> None:
    server.script("_bulk", FAULTS["missing_product"])
    if server.product == "opensearch":
        assert [result.status for result in engine.bulk("docs", OPS)] == [201] * 4
        return
    with pytest.raises(EngineRejected, match="opensearch:URL") as caught:
        engine.bulk("docs", OPS)
    assert caught.value.error_type == "unsupported_product"


def test_a_client_of_opensearch_notices_elasticsearch() -> None:
    with ScriptedServer("elasticsearch") as server:
        engine = open_engine(f"opensearch:{server.url}", EngineSettings())
        with pytest.raises(EngineRejected, match="elasticsearch:URL"):
            engine.bulk("docs", OPS)


@pytest.mark.parametrize(
    ("header", "low", "high"), [("7", 7, 7), ("0.5", 0.5, 0.5), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), ("-3", 0, 0)]
)
def test_retry_after_is_kept(header: str, low: float, high: float, server: ScriptedServer, engine: Engine) -> None:
    server.script("_bulk", whole(429, retry_after=header))
    with pytest.raises(EngineOverloaded) as caught:
        engine.bulk("docs", OPS)
    assert caught.value.retry_after_s is not None
    assert low <= caught.value.retry_after_s <= high


@pytest.mark.parametrize("header", [None, "soon"])
def test_no_retry_after_is_none(header: str | None, server: ScriptedServer, engine: Engine) -> None:
    server.script("_bulk", whole(503, retry_after=header))
    with pytest.raises(EngineUnavailable) as caught:
        engine.bulk("docs", OPS)
    assert caught.value.retry_after_s is None


def test_a_blocked_index_is_no_lack_of_rights(server: ScriptedServer, engine: Engine) -> None:
    server.script("_bulk", whole(403, "cluster_block_exception"))
    with pytest.raises(EngineRejected, match=r"index\.blocks") as caught:
        engine.bulk("docs", OPS)
    assert caught.value.status == 403


def test_a_conflict_of_the_whole_request(server: ScriptedServer, engine: Engine) -> None:
    server.script("_refresh", whole(409))
    with pytest.raises(VersionConflict):
        engine.refresh("docs")


def test_a_redirect_is_not_followed(server: ScriptedServer, engine: Engine) -> None:
    server.script("_refresh", lambda s, r: Answer(302, b"", {"Location": "http://127.0.0.1:1/"}))
    with pytest.raises(EngineRejected):
        engine.refresh("docs")
    assert server.calls("_refresh") == 1


def test_nothing_listens() -> None:
    with ScriptedServer() as server:
        url = server.url
    engine = open_engine(f"elasticsearch:{url}", EngineSettings(connect_timeout_s=0.5))
    with pytest.raises(EngineUnavailable, match="check that it is running") as caught:
        engine.search("docs", {})
    assert caught.value.status is None


@pytest.mark.parametrize("fault", ["hang", "drip", "drip_headers"])
def test_a_search_keeps_its_own_deadline(fault: str, server: ScriptedServer) -> None:
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=30))
    body = b'{"hits": {"hits": []}}'
    answer = Answer(200, body, mode=fault, seconds=1.5 if fault == "hang" else 0.1)
    server.script("_search", lambda s, r: answer)
    started = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"within 0\.3 s"):
        engine.search("docs", {}, timeout_s=0.3)
    assert time.monotonic() - started < 1.2


def test_an_answer_out_of_time_gives_its_connection_back(server: ScriptedServer) -> None:
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=1))
    endless = Answer(200, b" " * (1 << 27))
    for _ in range(4):
        server.script("_search", lambda s, r: endless)
        with pytest.raises(EngineUnavailable, match=r"within 0\.05 s"):
            engine.search("docs", {}, timeout_s=0.05)
    assert engine.count("docs") == 0


def test_an_endless_answer_does_not_fill_the_memory_of_a_service(server: ScriptedServer) -> None:
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=60))
    long = Answer(200, b'{"hits": {"hits": []}, "x": "' + b" " * (LONGEST_ON_LOOP + 1) + b'"}')
    server.script("_search", lambda s, r: long, lambda s, r: long)
    with OnLoop(engine) as on_loop, pytest.raises(EngineUnavailable, match="more than 67108864 bytes"):
        on_loop.search("docs", {})
    assert not engine.search("docs", {}).hits, "a command reads it"
    engine.close()


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_another_engines_missing_index_is_not_called_missing(kind: str) -> None:
    runs = {"elasticsearch": "opensearch", "opensearch": "elasticsearch"}[kind]
    with ScriptedServer(runs) as server:
        server.script("_search", whole(404, "index_not_found_exception"))
        with pytest.raises(EngineRejected, match=f"{runs}:URL"):
            open_engine(f"{kind}:{server.url}", EngineSettings()).search("docs", {})


@pytest.mark.parametrize(
    "answer",
    [{}, {"hits": None}, {"hits": {"hits": None}}, {"hits": {"hits": [{"_id": "a"}]}}, {"hits": {"hits": [7]}}],
)
def test_a_search_answer_without_usable_hits(answer: object, server: ScriptedServer, engine: Engine) -> None:
    server.script("_search", lambda s, r: json_answer(200, answer))
    with pytest.raises(EngineUnavailable):
        engine.search("docs", {})


def test_failed_shards_make_an_answer_partial(server: ScriptedServer, engine: Engine) -> None:
    hit = {"_id": "a", "_index": "docs", "_score": 1.0}
    total = {"value": 1, "relation": "eq"}
    answer = {"_shards": {"total": 2, "failed": 1}, "timed_out": False, "hits": {"total": total, "hits": [hit]}}
    server.script("_search", lambda s, r: json_answer(200, answer))
    assert engine.search("docs", {}).timed_out


def test_failed_shards_spoil_a_count_and_a_refresh(server: ScriptedServer, engine: Engine) -> None:
    server.script("_count", lambda s, r: json_answer(200, {"count": 3, "_shards": {"total": 2, "failed": 1}}))
    server.script("_refresh", lambda s, r: json_answer(200, {"_shards": {"total": 2, "failed": 1}}))
    with pytest.raises(EngineUnavailable):
        engine.count("docs")
    with pytest.raises(EngineUnavailable):
        engine.refresh("docs")


def test_a_bulk_to_an_index_that_vanished_sends_nothing(server: ScriptedServer, engine: Engine) -> None:
    engine.bulk("docs", OPS)
    server.script("/docs", whole(404, "index_not_found_exception"))
    with pytest.raises(IndexMissing):
        engine.bulk("docs", OPS)
    assert server.calls("_bulk") == 1


def test_a_bulk_through_an_alias_requires_it(server: ScriptedServer, engine: Engine) -> None:
    server.script("index.uuid", lambda s, r: json_answer(200, {"docs-000001": {"settings": {}}}))
    engine.bulk("docs", OPS)
    assert [r.params.get("require_alias") for r in server.requests if r.path.endswith("_bulk")] == ["true"]


def test_credentials_reach_the_engine_and_nothing_else(
    server: ScriptedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "s3cr3t-canary"
    settings = EngineSettings(user="me", password=secret)
    engine = open_engine(server.spec, settings)
    server.script("_search", whole(401), whole(500), FAULTS["reset_at_once"])
    texts = [repr(settings), str(settings), engine.spec]
    for _ in range(3):
        with pytest.raises(EngineError) as caught:
            engine.search("docs", {})
        texts += [str(caught.value), repr(caught.value.data)]
    assert server.requests[0].headers["authorization"].startswith("Basic ")
    captured = capfd.readouterr()
    assert secret not in "".join(texts) + captured.out + captured.err
    assert captured.err == ""


def test_an_api_key_reaches_the_engine(server: ScriptedServer) -> None:
    engine = open_engine(server.spec, EngineSettings(api_key="a2V5"))
    engine.count("docs")
    assert server.requests[0].headers["authorization"] == "ApiKey a2V5"


@pytest.mark.parametrize("fault", ["reset_at_once", "reset_after_half", "half_closed_body", "hang", "drip", "all_503"])
def test_a_fault_of_an_open_connection_costs_only_its_own_request(
    fault: str, server: ScriptedServer, engine: Engine
) -> None:
    server.script("_search", lambda s, r: json_answer(200, {"hits": {"hits": []}}), FAULTS[fault])
    engine.search("docs", {})
    with pytest.raises(EngineUnavailable):
        engine.search("docs", {})
    assert engine.count("docs") == 0
    with pytest.raises(EngineRejected):
        engine.request("GET", "/not scripted/é")  # type: ignore[attr-defined]
    assert server.requests[-1].path == "/not scripted/é"
