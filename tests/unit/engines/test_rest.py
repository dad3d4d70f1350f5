"""The wire: how capabilities are asked for, how documents and views are read, how tokens find their text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import DiskUsage, Engine, ReadsByWrites, version_numbers
from reranker.engines.rest import BATCH_UNITS, RestEngine, bulk_body, bulk_results, pieces, units
from reranker.engines.wire import json_bytes, json_value
from reranker.errors import EngineAuthError, EngineUnavailable
from tests.engines.scripted import ScriptedServer, json_answer, whole


@pytest.fixture(params=["elasticsearch", "opensearch"])
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    with ScriptedServer(request.param) as running:
        yield running


@pytest.fixture
def engine(server: ScriptedServer) -> Iterator[Engine]:
    opened = open_engine(server.spec, EngineSettings(read_timeout_s=5))
    yield opened
    opened.close()


def _nodes(version: str, modules: list[str], limit: int = 1000) -> dict[str, Any]:
    node = {
        "version": version,
        "modules": [{"name": name} for name in modules],
        "plugins": [],
        "http": {"max_content_length_in_bytes": limit},
    }
    return {"nodes": {"x": node}}


def test_capabilities_by_module(server: ScriptedServer, engine: Engine) -> None:
    modules = ["lang-painless", "mapper-extras"]
    server.script("/_nodes/_local", lambda s, r: json_answer(200, _nodes("8.19.2", modules)))
    able = engine.capabilities()
    assert (able.version, able.max_bulk_bytes) == ("8.19.2", 1000)
    assert able.sparse_terms == {"elasticsearch": "sparse_vector", "opensearch": "rank_features"}[server.product]


def test_the_node_with_the_least_free_share_counts(server: ScriptedServer, engine: Engine) -> None:
    def node(free: int, total: int, *roles: str) -> dict[str, Any]:
        return {"roles": roles, "fs": {"total": {"available_in_bytes": free, "total_in_bytes": total}}}

    nodes = {
        "roomy": node(40, 50, "data"),
        "tight": node(100, 10_000, "data", "master"),
        "half": node(50, 100, "data"),
        "master": node(1, 1000, "master"),
        "unknown": node(0, 0, "data"),
    }
    store = {"_all": {"total": {"store": {"size_in_bytes": 7}}}}
    for shown, usage in ((nodes, DiskUsage(7, 100, 10_000)), ({}, DiskUsage(7, None, None))):
        server.script("/docs/_stats/store", lambda s, r: json_answer(200, store))
        server.script("/_nodes/stats/fs", lambda s, r, shown=shown: json_answer(200, {"nodes": shown}))  # type: ignore[misc]
        assert isinstance(engine, RestEngine) and engine.disk_usage("docs") == usage


def test_capabilities_without_modules(server: ScriptedServer, engine: Engine) -> None:
    server.script("/_nodes/_local", lambda s, r: json_answer(200, _nodes("8.10.0", [])))
    able = engine.capabilities()
    assert able.sparse_terms == ""


def test_capabilities_step_by_step(server: ScriptedServer, engine: Engine) -> None:
    server.script("/_nodes/_local", whole(403))
    stats = {"nodes": {"versions": ["8.19.0", "8.9.0"], "plugins": []}}
    server.script("/_cluster/stats", lambda s, r: json_answer(200, stats))
    able = engine.capabilities()
    assert able.version == "8.9.0"


def test_capabilities_of_the_root_come_last(server: ScriptedServer, engine: Engine) -> None:
    server.script("/_nodes/_local", whole(403))
    server.script("/_cluster/stats", whole(403))
    server.script("/", lambda s, r: json_answer(200, {"version": {"number": "8.1.0"}}))
    assert engine.capabilities().version == "8.1.0"


def test_a_role_that_may_ask_nothing_still_works(server: ScriptedServer, engine: Engine) -> None:
    for path, status in (("/_nodes/_local", 403), ("/_cluster/stats", 403), ("/", 405)):
        server.script(path, whole(status))
    able = engine.capabilities()
    assert (able.kind, able.version, able.sparse_terms) == (server.product, "", "")
    assert engine.count("docs") == 0


def test_wrong_credentials_are_not_a_small_role(server: ScriptedServer, engine: Engine) -> None:
    server.script("/_nodes/_local", whole(401))
    with pytest.raises(EngineAuthError):
        engine.capabilities()
    assert len(server.requests) == 1


def test_versions_are_numbers() -> None:
    assert version_numbers("8.9.1") < version_numbers("8.19.0-SNAPSHOT") < version_numbers("10.0.0")
    assert version_numbers("") == ()


def test_a_view_that_is_lost_is_said(server: ScriptedServer, engine: Engine) -> None:
    hits = [{"_id": str(n), "_index": "docs", "_seq_no": n, "_primary_term": 1, "sort": [n]} for n in range(2)]
    page = {"_scroll_id": "s", "pit_id": "p", "hits": {"total": {"value": 5, "relation": "eq"}, "hits": hits}}
    server.script("_pit", lambda s, r: json_answer(200, {"id": "p"}))
    server.script("/_search", lambda s, r: json_answer(200, page), whole(404, "search_context_missing_exception"))
    server.script("/_search/scroll", whole(404, "search_context_missing_exception"))
    scan = engine.scan("docs", batch_size=2)
    assert [document.id for document in next(scan)] == ["0", "1"]
    with pytest.raises(EngineUnavailable, match="snapshot"):
        next(scan)


def test_documents_that_do_not_add_up(server: ScriptedServer, engine: Engine) -> None:
    empty = {"_scroll_id": "s", "pit_id": "p", "hits": {"total": {"value": 5, "relation": "eq"}, "hits": []}}
    server.script("_pit", lambda s, r: json_answer(200, {"id": "p"}))
    server.script("/_search", lambda s, r: json_answer(200, empty))
    with pytest.raises(EngineUnavailable, match="0 documents of 5"):
        list(engine.scan("docs"))


def test_a_shard_that_did_not_answer_is_said(server: ScriptedServer, engine: Engine) -> None:
    hits = {"total": {"value": 0, "relation": "eq"}, "hits": []}
    part = {"_scroll_id": "s", "pit_id": "p", "_shards": {"total": 2, "failed": 1}, "hits": hits}
    server.script("_pit", lambda s, r: json_answer(200, {"id": "p"}))
    server.script("/_search", lambda s, r: json_answer(200, part), lambda s, r: json_answer(200, part))
    with pytest.raises(EngineUnavailable, match="shards did not answer"):
        list(engine.scan("docs"))
    assert engine.search("docs", {}).timed_out


@pytest.mark.parametrize("lacking", [{}, {"_scroll_id": "s", "id": "p", "pit_id": "p", "hits": {}}])
def test_a_scan_that_is_answered_by_something_else_is_said(
    server: ScriptedServer, engine: Engine, lacking: dict[str, Any]
) -> None:
    for path in ("_pit", "/_search"):
        server.script(path, lambda s, r: json_answer(200, lacking))
    with pytest.raises(EngineUnavailable, match="it has no"):
        list(engine.scan("docs"))


def test_documents_are_read_from_a_write_on(server: ScriptedServer, engine: Engine) -> None:
    def page(*writes: int) -> dict[str, Any]:
        hits = [{"_id": str(n), "_index": "docs", "_seq_no": n, "_primary_term": 1, "sort": [n, 1]} for n in writes]
        total = {"total": {"value": 3, "relation": "eq"}} if writes[0] == 7 else {}
        return {"_scroll_id": "s", "id": "p", "pit_id": "p", "hits": {**total, "hits": hits}}

    last = [page(9), {"_scroll_id": "s", "hits": {"hits": []}}]
    server.script("_pit", lambda s, r: json_answer(200, {"id": "p"}))
    server.script("/_search", lambda s, r: json_answer(200, page(7, 8)), lambda s, r: json_answer(200, page(9)))
    server.script("/_search/scroll", *(lambda s, r, one=one: json_answer(200, one) for one in last))
    assert isinstance(engine, ReadsByWrites)
    assert [d.seq_no for batch in engine.scan_writes("docs", 7, batch_size=2) for d in batch] == [7, 8, 9]
    first, *rest = [json_value(r.body) for r in server.requests if r.path.endswith("/_search")]
    assert (first["query"], first["sort"]) == ({"range": {"_seq_no": {"gte": 7}}}, [{"_seq_no": "asc"}])
    if server.product == "elasticsearch":
        assert [(one["sort"], one["search_after"], one["track_total_hits"]) for one in rest] == [
            ([{"_seq_no": "asc"}], [8, 1], False)
        ]
    views = [r.path for r in server.requests if r.method == "DELETE"]
    assert views == ["/_pit" if server.product == "elasticsearch" else "/_search/scroll"]


def test_a_role_without_a_point_in_time_scrolls() -> None:
    empty = {"_scroll_id": "s", "hits": {"total": {"value": 0, "relation": "eq"}, "hits": []}}
    with ScriptedServer("elasticsearch") as server:
        server.script("_pit", whole(403))
        server.script("/_search", lambda s, r: json_answer(200, empty))
        assert list(open_engine(server.spec, EngineSettings()).scan("docs")) == []
        assert [request.params.get("scroll") for request in server.requests if request.path.endswith("/_search")] == [
            "10m"
        ]


def test_ids_travel_in_bodies_and_names_are_quoted(server: ScriptedServer, engine: Engine) -> None:
    server.script("_mget", lambda s, r: json_answer(200, {"docs": [{"_id": "../x", "_index": "d", "found": False}]}))
    none = {"hits": {"total": {"value": 0, "relation": "eq"}, "hits": []}}
    server.script("_search", lambda s, r: json_answer(200, none))
    assert engine.get("dôcs", ["../x"]) == [None]
    assert {request.path.split("/")[1] for request in server.requests} == {"dôcs"}


def test_a_get_that_names_others(server: ScriptedServer, engine: Engine) -> None:
    server.script("_mget", lambda s, r: json_answer(200, {"docs": [{"_id": "b", "_index": "d", "found": True}]}))
    with pytest.raises(EngineUnavailable):
        engine.get("docs", ["a"])


def test_tokens_whose_offsets_lie_go_one_text_at_a_time(server: ScriptedServer, engine: Engine) -> None:
    def tokens(*names: str, start: int) -> Any:
        told = [{"token": name, "start_offset": start, "end_offset": start + 1} for name in names]
        return lambda s, r: json_answer(200, {"tokens": told})

    field = {"docs": {"mappings": {"t": {"mapping": {"t": {"type": "text"}}}}}}
    server.script("field/t", lambda s, r: json_answer(200, field))
    server.script("_analyze", tokens("a", "b", start=99), tokens("a", start=0), tokens("b", start=0))
    assert engine.analyze("docs", "t", ["aa", "bb"]) == [["a"], ["b"]]


@given(st.text(alphabet="ab \n\U0001d4b3", max_size=40).map(lambda text: text * 500))
def test_pieces_of_a_long_text(text: str) -> None:
    cut = list(pieces(text))
    assert "".join(cut) == text
    assert all(units(piece) <= BATCH_UNITS for piece in cut)


def test_bulk_bodies() -> None:
    ops = [
        WriteOp("index", "a", {"x": "é\n"}, routing="r", version=4),
        WriteOp("index", "", {}),
        WriteOp("update", "b", {"y": 1}, if_seq_no=2, if_primary_term=1),
        WriteOp("index", "nan", {"y": float("nan")}),
        WriteOp("delete", "c"),
    ]
    data, sent, refused = bulk_body(ops)
    assert data.decode().splitlines() == [
        '{"index":{"_id":"a","routing":"r","version":4,"version_type":"external"}}',
        '{"x":"é\\n"}',
        '{"update":{"_id":"b","if_seq_no":2,"if_primary_term":1}}',
        '{"doc":{"y":1}}',
        '{"delete":{"_id":"c"}}',
    ]
    assert sent == [0, 2, 4]
    assert {place: result.status for place, result in refused.items()} == {1: 400, 3: 400}
    assert bulk_body([]) == (b"", [], {})


@pytest.mark.parametrize(
    "items",
    [
        None,
        {},
        [],
        [{"index": {"_id": "a", "status": 200}}, {"index": {"_id": "b", "status": 200}}],
        [{"delete": {"_id": "a", "status": 200}}],
        [{"index": {"_id": "A", "status": 200}}],
        [{"index": {"_id": "a"}}],
        [{"index": {"_id": "a", "status": "200"}}],
        [{"index": None}],
        ["a"],
    ],
)
def test_answers_that_do_not_fit_the_request(items: Any) -> None:
    with pytest.raises(ValueError, match=r"item|list"):
        bulk_results([WriteOp("index", "a", {})], {"items": items})


def test_json_is_strict_out_and_patient_in() -> None:
    for value in (float("nan"), float("inf"), "\ud800", {"a": ["\udfff"]}):
        with pytest.raises(ValueError):
            json_bytes(value)
    with pytest.raises(TypeError):
        json_bytes({"a": b"bytes"})
    assert json_value(b'{"a":"\\ud800"}') == {"a": "\ud800"}
    for text in (b"", b"{", b"{} x", b"\xff"):
        with pytest.raises(ValueError):
            json_value(text)
    with pytest.raises(ValueError, match=r"deep|recursion|nest"):
        json_value(b"[" * 100_000 + b"]" * 100_000)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**60), 2**60)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
        max_leaves=8,
    )
)
def test_json_round_trip(value: Any) -> None:
    assert json_value(json_bytes(value)) == value
