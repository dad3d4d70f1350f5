"""What every engine promises, whichever it is."""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from opensearchpy import OpenSearch

from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.engines.protocol import Engine, SearchesDocValues, WriteResult
from reranker.engines.stored_ids import stored_ids
from reranker.errors import EngineRejected, IndexMissing, Unsupported
from tests.engines.memory import memory_engine

MAPPING: dict[str, Any] = {
    "properties": {
        "title": {"type": "text"},
        "text": {"type": "text"},
        "tag": {"type": "keyword"},
        "year": {"type": "integer"},
        "packed": {"type": "binary"},
        "author": {"properties": {"name": {"type": "text", "fields": {"raw": {"type": "keyword"}}}}},
    }
}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "a": {"title": "red apple", "text": "a sweet red fruit", "tag": "fruit", "year": 2001, "packed": "AQID"},
    "b": {"title": "green apple", "text": "a sour fruit", "tag": ["fruit", "sour"], "year": 2002},
    "c": {"title": "red car", "text": "a fast machine, red as an apple", "tag": "machine", "year": 2002},
    "d": {"title": "Tree", "text": "it bears fruit", "author": [{"name": "Ann Oak"}, {"name": "Bob Elm"}]},
    "e": {"title": "nothing", "text": "", "author": {"name": "Ann Elm"}},
}
KINDS = ("memory", "tantivy", "elasticsearch", "opensearch", "elasticsearch client", "opensearch client")
"""An engine by its spec, or by an official client that its user has made."""


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if request.param == "memory":
        opened: Engine = memory_engine()
    elif request.param == "tantivy":
        opened = open_engine(f"tantivy:{tmp_path_factory.mktemp('engine') / 'new'}")
    else:
        kind, _, client = request.param.partition(" ")
        url = request.getfixturevalue(f"{kind}_url")
        opened = open_engine(client_of(kind, url) if client else f"{kind}:{url}", EngineSettings(read_timeout_s=60))
    yield opened
    opened.close()


def client_of(kind: str, url: str) -> Elasticsearch | OpenSearch:
    """Return a client as its users make it: with several nodes (one, by two names), its retries, and compression."""
    if kind == "elasticsearch":
        return Elasticsearch([url, url.replace("127.0.0.1", "localhost")], request_timeout=60, http_compress=True)
    return OpenSearch([url, url], timeout=60, http_compress=True)


@pytest.fixture
def new_name(engine: Engine) -> Iterator[Callable[[str], str]]:
    """Give names that nobody else uses, and delete the indexes so called."""
    stem = f"contract-{uuid.uuid4().hex[:12]}"
    names: list[str] = []

    def make(part: str = "docs") -> str:
        names.append(f"{stem}-{part}")
        return names[-1]

    yield make
    for name in names:
        if engine.index_names(name) == (name,):
            engine.delete_index(name)


@pytest.fixture
def empty(engine: Engine, new_name: Callable[[str], str]) -> str:
    """Give a new index without documents."""
    name = new_name("empty")
    engine.create_index(name, MAPPING, {"number_of_shards": 1, "number_of_replicas": 0})
    return name


@pytest.fixture
def index(engine: Engine, empty: str) -> str:
    """Give an index that holds `DOCUMENTS`, searchable."""
    results = engine.bulk(empty, [WriteOp("index", name, source) for name, source in DOCUMENTS.items()])
    assert [result.status for result in results] == [201] * len(DOCUMENTS)
    engine.refresh(empty)
    return empty


@pytest.fixture(scope="module")
def library(engine: Engine) -> Iterator[str]:
    """Give an index that holds `DOCUMENTS`, shared by tests that only read."""
    name = f"contract-{uuid.uuid4().hex[:12]}-library"
    engine.create_index(name, MAPPING, {"number_of_shards": 1, "number_of_replicas": 0})
    engine.bulk(name, [WriteOp("index", one, source) for one, source in DOCUMENTS.items()])
    engine.refresh(name)
    yield name
    engine.delete_index(name)


@pytest.fixture(scope="module")
def shelf(engine: Engine) -> Iterator[str]:
    """Give an index shared by tests that write under ids of their own."""
    name = f"contract-{uuid.uuid4().hex[:12]}-shelf"
    engine.create_index(name, MAPPING, {"number_of_shards": 1, "number_of_replicas": 0})
    yield name
    engine.delete_index(name)


def _ids(engine: Engine, index: str, query: dict[str, Any], **body: Any) -> list[str]:
    return [hit.id for hit in engine.search(index, {"query": query, **body}).hits]


def _write(engine: Engine, index: str, *ops: WriteOp) -> list[WriteResult]:
    return engine.bulk(index, ops)


def _status(engine: Engine, index: str, op: WriteOp) -> int:
    (result,) = engine.bulk(index, [op])
    assert result.id == op.id
    assert bool(result.error_type) == (result.status >= 300 and not (op.action == "delete" and result.status == 404))
    return result.status


# --- what it is


def test_it_is_an_engine_and_says_what_it_can(engine: Engine) -> None:
    assert isinstance(engine, Engine)
    able = engine.capabilities()
    assert able.kind == engine.spec.partition(":")[0]
    assert able.max_bulk_bytes >= 1 << 20
    if able.kind in ("elasticsearch", "opensearch"):
        assert int(able.version.split(".")[0]) >= 1
    assert engine.capabilities() is able


# --- indexes


def test_an_index_is_told_back(engine: Engine, empty: str) -> None:
    info = engine.index_info(empty)
    assert info.name == empty
    assert info.properties["title"]["type"] == "text"
    assert info.properties["packed"] == {"type": "binary"}
    assert info.mapping["properties"] == info.properties
    assert info.settings["index.number_of_shards"] == "1"
    assert info.aliases == ()
    assert info.data_stream is None


def test_names_lead_to_concrete_indexes(engine: Engine, empty: str, new_name: Callable[[str], str]) -> None:
    alias = new_name("alias")
    assert engine.index_names(empty) == (empty,)
    assert engine.index_names(alias) == ()
    engine.swap_alias(alias, empty)
    assert engine.index_names(alias) == (empty,)
    assert engine.index_info(alias).name == empty
    assert engine.index_info(empty).aliases == (alias,)


def test_an_index_is_created_once(engine: Engine, empty: str) -> None:
    with pytest.raises(EngineRejected, match=r"already"):
        engine.create_index(empty, MAPPING)


def test_a_deleted_index_is_gone(engine: Engine, index: str) -> None:
    engine.delete_index(index)
    assert engine.index_names(index) == ()
    with pytest.raises(IndexMissing):
        engine.delete_index(index)


def test_an_index_made_again_is_empty(engine: Engine, index: str) -> None:
    engine.delete_index(index)
    engine.create_index(index, MAPPING)
    engine.refresh(index)
    assert engine.count(index) == 0
    assert engine.get(index, ["a"]) == [None]


def test_an_alias_cannot_be_deleted_as_an_index(engine: Engine, empty: str, new_name: Callable[[str], str]) -> None:
    alias = new_name("alias")
    engine.swap_alias(alias, empty)
    with pytest.raises(EngineRejected):
        engine.delete_index(alias)
    assert engine.index_names(empty) == (empty,)


@pytest.mark.parametrize("name", ["", "a*", "a,b", "a/b", "../x", "_all", "-x", "a b", "a#b", "x" * 256])
def test_a_name_stands_for_one_thing(name: str, engine: Engine) -> None:
    with pytest.raises(EngineRejected, match="is invalid"):
        engine.index_names(name)
    with pytest.raises(EngineRejected, match="is invalid"):
        engine.search(name, {})


CALLS_ON_NOTHING: dict[str, Callable[[Engine, str], Any]] = {
    "search": lambda engine, name: engine.search(name, {}),
    "count": lambda engine, name: engine.count(name),
    "bulk": lambda engine, name: engine.bulk(name, [WriteOp("index", "a", {})]),
    "get": lambda engine, name: engine.get(name, ["a"]),
    "scan": lambda engine, name: list(engine.scan(name)),
    "index_info": lambda engine, name: engine.index_info(name),
    "put_properties": lambda engine, name: engine.put_properties(name, {"x": {"type": "keyword"}}),
    "refresh": lambda engine, name: engine.refresh(name),
    "analyze": lambda engine, name: engine.analyze(name, "title", ["x"]),
    "swap_alias": lambda engine, name: engine.swap_alias(f"{name}-alias", name),
    "delete_index": lambda engine, name: engine.delete_index(name),
}


@pytest.mark.parametrize("call", CALLS_ON_NOTHING)
def test_a_missing_index_is_said_and_never_made(call: str, engine: Engine, new_name: Callable[[str], str]) -> None:
    name = new_name("typo")
    with pytest.raises(IndexMissing, match=name) as caught:
        CALLS_ON_NOTHING[call](engine, name)
    assert caught.value.status == 404
    assert engine.index_names(name) == ()


def test_a_bulk_does_not_bring_back_an_index(engine: Engine, index: str) -> None:
    engine.delete_index(index)
    with pytest.raises(IndexMissing):
        engine.bulk(index, [WriteOp("index", "a", {})])
    assert engine.index_names(index) == ()


def test_fields_are_added(engine: Engine, index: str) -> None:
    engine.put_properties(index, {"added": {"type": "keyword"}})
    engine.put_properties(index, {"added": {"type": "keyword"}, "tag": {"type": "keyword"}})
    assert engine.index_info(index).properties["added"]["type"] == "keyword"
    assert engine.index_info(index).properties["title"] == {"type": "text"}
    _write(engine, index, WriteOp("update", "a", {"added": "now"}))
    engine.refresh(index)
    assert _ids(engine, index, {"term": {"added": "now"}}) == ["a"]


def test_a_field_never_changes_its_type(engine: Engine, index: str) -> None:
    with pytest.raises(EngineRejected, match="tag"):
        engine.put_properties(index, {"tag": {"type": "text"}, "other": {"type": "keyword"}})
    assert engine.index_info(index).properties["tag"] == {"type": "keyword"}
    assert "other" not in engine.index_info(index).properties


# --- aliases


def test_an_alias_moves_in_one_step(engine: Engine, new_name: Callable[[str], str]) -> None:
    alias, names = new_name("alias"), [new_name("one"), new_name("two")]
    for number, name in enumerate(names):
        engine.create_index(name, MAPPING, {"number_of_shards": 1, "number_of_replicas": 0})
        engine.bulk(name, [WriteOp("index", f"{number}-{one}", {"title": "word"}) for one in range(3)])
        engine.refresh(name)
    engine.swap_alias(alias, names[0])
    seen: list[set[str]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append({hit.id[0] for hit in engine.search(alias, {}).hits})

    reader = threading.Thread(target=read)
    reader.start()
    for swap in range(10):
        old, new = names[swap % 2], names[1 - swap % 2]
        engine.swap_alias(alias, new, remove=[old])
        assert engine.index_names(alias) == (new,)
    stop.set()
    reader.join()
    assert seen
    assert all(len(indexes) == 1 for indexes in seen)


def test_a_swap_that_cannot_be_done_changes_nothing(engine: Engine, empty: str, new_name: Callable[[str], str]) -> None:
    alias, other = new_name("alias"), new_name("other")
    engine.create_index(other, MAPPING)
    engine.swap_alias(alias, empty)
    with pytest.raises(EngineRejected):
        engine.swap_alias(alias, empty, remove=[other])
    with pytest.raises(IndexMissing):
        engine.swap_alias(alias, other, remove=[f"{other}-missing"])
    assert engine.index_names(alias) == (empty,)


def test_an_alias_of_two_indexes(engine: Engine, index: str, new_name: Callable[[str], str]) -> None:
    alias, other = new_name("alias"), new_name("other")
    engine.create_index(other, MAPPING)
    engine.bulk(other, [WriteOp("index", "z", {"title": "apple"})])
    engine.refresh(other)
    engine.swap_alias(alias, index)
    engine.swap_alias(alias, other)
    assert engine.index_names(alias) == tuple(sorted([index, other]))
    assert sorted(_ids(engine, alias, {"match": {"title": "apple"}})) == ["a", "b", "z"]
    assert engine.count(alias) == len(DOCUMENTS) + 1
    assert sorted(document.id for batch in engine.scan(alias) for document in batch) == [*"abcdez"]
    with pytest.raises(EngineRejected):
        engine.index_info(alias)


def test_writes_through_an_alias(engine: Engine, empty: str, new_name: Callable[[str], str]) -> None:
    alias = new_name("alias")
    engine.swap_alias(alias, empty)
    assert _status(engine, alias, WriteOp("index", "a", {"title": "x"})) == 201
    (document,) = engine.get(alias, ["a"])
    assert document is not None
    assert document.index == empty


# --- writes


def test_results_come_in_order_with_their_numbers(engine: Engine, empty: str) -> None:
    ops = [WriteOp("index", str(number % 7), {"title": f"number {number}"}) for number in range(20)]
    results = engine.bulk(empty, ops)
    assert [result.id for result in results] == [op.id for op in ops]
    assert [result.status for result in results] == [201] * 7 + [200] * 13
    assert [result.seq_no for result in results] == list(range(20))
    assert {result.primary_term for result in results} == {1}
    documents = engine.get(empty, [str(number) for number in range(7)])
    assert [document and document.source["title"] for document in documents] == [
        f"number {number}" for number in (14, 15, 16, 17, 18, 19, 13)
    ]


def test_no_operations_no_results(engine: Engine, empty: str) -> None:
    assert engine.bulk(empty, []) == []


def test_create_only_where_nothing_is(engine: Engine, index: str) -> None:
    assert _status(engine, index, WriteOp("create", "a", {"title": "x"})) == 409
    assert _status(engine, index, WriteOp("create", "new", {"title": "x"})) == 201
    _status(engine, index, WriteOp("delete", "new"))
    assert _status(engine, index, WriteOp("create", "new", {"title": "y"})) == 201


def test_update_merges(engine: Engine, index: str) -> None:
    change = {"tag": "tree", "author": {"born": "1900"}, "title": "An oak"}
    _status(engine, index, WriteOp("index", "x", {"title": "oak", "year": 1, "author": {"name": "Ann"}}))
    assert _status(engine, index, WriteOp("update", "x", change)) == 200
    (document,) = engine.get(index, ["x"])
    assert document is not None
    assert document.source == {"title": "An oak", "year": 1, "tag": "tree", "author": {"name": "Ann", "born": "1900"}}
    engine.refresh(index)
    assert _ids(engine, index, {"match": {"title": "an"}}) == ["x"]


def test_update_that_changes_nothing_keeps_the_number(engine: Engine, index: str) -> None:
    (before,) = engine.get(index, ["a"])
    (result,) = engine.bulk(index, [WriteOp("update", "a", {"year": 2001})])
    assert before is not None
    assert (result.status, result.seq_no) == (200, before.seq_no)


def test_update_of_nothing_is_404(engine: Engine, index: str) -> None:
    (result,) = engine.bulk(index, [WriteOp("update", "absent", {"year": 1})])
    assert (result.status, result.error_type) == (404, "document_missing_exception")
    assert engine.get(index, ["absent"]) == [None]


def test_delete(engine: Engine, index: str) -> None:
    assert _status(engine, index, WriteOp("delete", "a")) == 200
    assert _status(engine, index, WriteOp("delete", "a")) == 404
    assert engine.get(index, ["a"]) == [None]
    engine.refresh(index)
    assert engine.count(index) == len(DOCUMENTS) - 1
    assert "a" not in _ids(engine, index, {"match": {"title": "apple"}})


def test_a_write_over_exactly_what_was_read(engine: Engine, index: str) -> None:
    (read,) = engine.get(index, ["a"])
    assert read is not None

    def guarded(action: Any, **source: Any) -> WriteOp:
        return WriteOp(action, "a", source or None, if_seq_no=read.seq_no, if_primary_term=read.primary_term)

    (first,) = engine.bulk(index, [guarded("update", year=1)])
    assert first.status == 200
    assert first.seq_no > read.seq_no
    for late in (guarded("update", year=2), guarded("index", year=3), guarded("delete")):
        (result,) = engine.bulk(index, [late])
        assert (result.status, result.error_type) == (409, "version_conflict_engine_exception")
    (after,) = engine.get(index, ["a"])
    assert after is not None
    assert (after.source["year"], after.seq_no) == (1, first.seq_no)


def test_a_guarded_write_needs_the_document(engine: Engine, index: str) -> None:
    guarded = WriteOp("index", "absent", {"year": 1}, if_seq_no=0, if_primary_term=1)
    assert _status(engine, index, guarded) == 409


def test_external_versions_keep_the_newest(engine: Engine, empty: str) -> None:
    def at(version: int) -> WriteOp:
        return WriteOp("index", "v", {"year": version}, version=version)

    assert [_status(engine, empty, at(version)) for version in (5, 3, 5, 9)] == [201, 409, 409, 200]
    assert _status(engine, empty, WriteOp("delete", "v", version=8)) == 409
    assert _status(engine, empty, WriteOp("delete", "v", version=12)) == 200
    assert _status(engine, empty, at(11)) == 409
    assert _status(engine, empty, at(13)) == 201
    (document,) = engine.get(empty, ["v"])
    assert document is not None
    assert document.source == {"year": 13}


def test_many_writers_count_together(engine: Engine, index: str) -> None:
    """Four threads of five increments each, every one retried until it went through unseen by the others."""

    def increment() -> None:
        for _ in range(5):
            while True:
                (read,) = engine.get(index, ["a"])
                assert read is not None
                more = {"year": read.source["year"] + 1}
                op = WriteOp("update", "a", more, if_seq_no=read.seq_no, if_primary_term=read.primary_term)
                if engine.bulk(index, [op])[0].status == 200:
                    break

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (document,) = engine.get(index, ["a"])
    assert document is not None
    assert document.source["year"] == 2001 + 20


BAD_OPS = {
    "empty id": WriteOp("index", "", {"title": "x"}),
    "513 byte id": WriteOp("index", "é" * 256 + "x", {"title": "x"}),
    "surrogate id": WriteOp("index", "\ud800", {"title": "x"}),
    "nan": WriteOp("index", "p", {"year": float("nan")}),
    "infinity": WriteOp("index", "p", {"unmapped": float("-inf")}),
    "surrogate text": WriteOp("index", "p", {"title": "\ud800"}),
    "text for a number": WriteOp("index", "p", {"year": "many"}),
    "number too large": WriteOp("index", "p", {"year": 2**31}),
    "object for a text": WriteOp("index", "p", {"title": {"en": "x"}}),
    "text for an object": WriteOp("index", "p", {"author": "Ann"}),
    "keyword of 40,000 bytes": WriteOp("index", "p", {"tag": "k" * 40_000}),
    "30 levels": WriteOp("index", "p", eval('{"n":' * 30 + "1" + "}" * 30)),  # noqa: S307 - a literal
    "create with a version": WriteOp("create", "p", {"title": "x"}, version=3),
    "half a guard": WriteOp("index", "p", {"title": "x"}, if_seq_no=3),
    "two types at once": WriteOp("index", "p", {"new": [1, 2.5]}),
    "value and object": WriteOp("index", "p", {"new": [1, {"a": 2}]}),
    "no source": WriteOp("index", "p"),
}


@pytest.mark.parametrize("case", BAD_OPS)
def test_one_bad_operation_leaves_the_others_alone(case: str, engine: Engine, shelf: str) -> None:
    good = [WriteOp("index", f"{case} {place}", {"title": "x"}) for place in ("before", "after")]
    results = engine.bulk(shelf, [good[0], BAD_OPS[case], good[1]])
    # Elasticsearch 9.5 widens a new field that holds whole and broken numbers: then the document is there, once.
    taken = case == "two types at once" and results[1].status == 201
    assert [result.status for result in results] == [201, 201 if taken else 400, 201]
    assert taken or (results[1].error_type and results[1].reason)
    assert results[1].id == BAD_OPS[case].id
    found = engine.get(shelf, [good[0].id, good[1].id, "p"])
    assert [document is not None for document in found] == [True, True, taken]
    engine.refresh(shelf)
    assert engine.count(shelf, {"ids": {"values": ["p"]}}) == taken
    if taken:
        engine.bulk(shelf, [WriteOp("delete", "p")])


GOOD_IDS = [
    "../../_search",
    "a/b?c#d",
    "%2e%2e",
    "日本語",
    "x" * 512,
    "é" * 256,
    'quo"te',
    "tab\tnew\nline",
    "NUL\0",
    " ",
]


def test_odd_ids_are_ids(engine: Engine, empty: str) -> None:
    results = engine.bulk(empty, [WriteOp("index", name, {"title": "odd"}) for name in GOOD_IDS])
    assert [result.status for result in results] == [201] * len(GOOD_IDS)
    engine.refresh(empty)
    found = engine.get(empty, GOOD_IDS)
    assert [document and document.id for document in found] == GOOD_IDS
    assert sorted(_ids(engine, empty, {"match": {"title": "odd"}}, size=50)) == sorted(GOOD_IDS)
    assert sorted(_ids(engine, empty, {"ids": {"values": GOOD_IDS}}, size=50)) == sorted(GOOD_IDS)


def test_a_source_comes_back_as_it_went(engine: Engine, empty: str) -> None:
    source = {
        "title": "Ünïcödé \U0001f600 \u2028",
        "tag": ["a", "b"],
        "year": None,
        "author": {"name": "x"},
        "deep": {"list": [1, 2], "objects": [{"a": True}, {"b": "x"}], "empty": {}, "none": []},
        "big": 2**53 + 1,
        "small": 1e-30,
    }
    _write(engine, empty, WriteOp("index", "s", source))
    (document,) = engine.get(empty, ["s"])
    assert document is not None
    assert document.source == source


def test_a_mapping_can_be_strict(engine: Engine, new_name: Callable[[str], str]) -> None:
    name = new_name("strict")
    engine.create_index(name, {**MAPPING, "dynamic": "strict"})
    assert _status(engine, name, WriteOp("index", "a", {"title": "x", "year": 1})) == 201
    (result,) = engine.bulk(name, [WriteOp("index", "b", {"unknown": 1})])
    assert (result.status, result.error_type) == (400, "strict_dynamic_mapping_exception")


def test_a_mapping_can_ignore_unknown_fields(engine: Engine, new_name: Callable[[str], str]) -> None:
    name = new_name("fixed")
    engine.create_index(name, {**MAPPING, "dynamic": False})
    assert _status(engine, name, WriteOp("index", "a", {"unknown": "word"})) == 201
    engine.refresh(name)
    assert "unknown" not in engine.index_info(name).properties
    assert _ids(engine, name, {"match": {"unknown": "word"}}) == []
    (document,) = engine.get(name, ["a"])
    assert document is not None
    assert document.source == {"unknown": "word"}


def test_unknown_fields_are_mapped(engine: Engine, empty: str) -> None:
    _write(engine, empty, WriteOp("index", "a", {"label": "New Words", "n": {"count": 3}, "on": True}))
    engine.refresh(empty)
    properties = engine.index_info(empty).properties
    assert properties["label"]["type"] == "text"
    assert properties["n"]["properties"]["count"]["type"] == "long"
    assert _ids(engine, empty, {"match": {"label": "words"}}) == ["a"]
    assert _ids(engine, empty, {"term": {"label.keyword": "New Words"}}) == ["a"]
    assert _ids(engine, empty, {"term": {"n.count": 3}}) == ["a"]
    assert _ids(engine, empty, {"term": {"on": True}}) == ["a"]


def test_routing_is_kept(engine: Engine, new_name: Callable[[str], str]) -> None:
    name = new_name("routed")
    engine.create_index(name, {**MAPPING, "_routing": {"required": True}}, {"number_of_shards": 3})
    assert _status(engine, name, WriteOp("index", "plain", {"title": "x"})) == 400
    ids = [f"r{number}" for number in range(6)]
    ops = [WriteOp("index", one, {"title": "x"}, routing=f"way {one}") for one in ids]
    assert [result.status for result in engine.bulk(name, ops)] == [201] * 6
    engine.refresh(name)
    documents = engine.get(name, [*ids, "absent"])
    assert [document and document.routing for document in documents] == [*(op.routing for op in ops), None]
    scanned = {document.id: document for batch in engine.scan(name) for document in batch}
    for document in scanned.values():
        guard = {"if_seq_no": document.seq_no, "if_primary_term": document.primary_term}
        op = WriteOp("update", document.id, {"year": 1}, routing=document.routing, **guard)
        assert _status(engine, name, op) == 200
    assert set(scanned) == set(ids)


def test_ids_are_looked_up_whatever_the_routing(engine: Engine, new_name: Callable[[str], str]) -> None:
    name, other, alias = new_name("routed"), new_name("other"), new_name("both")
    for each in (name, other):
        engine.create_index(each, {**MAPPING, "_routing": {"required": True}}, {"number_of_shards": 3})
        ids = [f"{number} {each[-5:]}" for number in range(6)] + ["in both"]
        engine.bulk(each, [WriteOp("index", one, {"title": "x"}, routing=f"way {one}") for one in ids])
        engine.refresh(each)
        engine.swap_alias(alias, each)
    assert stored_ids(engine, name, ["0 outed", "5 outed", "0 other", "absent", ""]) == (
        frozenset({"0 outed", "5 outed"}),
        "",
    )
    wanted = ["in both", "3 outed", "3 other", "absent", "x" * 600, "\ud800"]
    assert stored_ids(engine, alias, wanted) == (frozenset({"in both", "3 outed", "3 other"}), "")
    assert stored_ids(engine, alias, []) == (frozenset(), "")


# --- reads


def test_get_is_in_order_and_at_once(engine: Engine, index: str) -> None:
    _write(engine, index, WriteOp("index", "fresh", {"title": "unrefreshed"}))
    documents = engine.get(index, ["c", "absent", "fresh", "a", "c"])
    assert [document and document.id for document in documents] == ["c", None, "fresh", "a", "c"]
    assert documents[0] is not None
    assert documents[0].source == DOCUMENTS["c"]
    assert documents[0].index == index
    assert documents[0].routing is None
    assert engine.get(index, []) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (True, DOCUMENTS["d"]),
        (False, {}),
        (["title"], {"title": "Tree"}),
        (["author.name"], {"author": [{"name": "Ann Oak"}, {"name": "Bob Elm"}]}),
        (["t*"], {"title": "Tree", "text": "it bears fruit"}),
        (["absent"], {}),
    ],
)
def test_parts_of_a_source(source: Any, expected: Any, engine: Engine, library: str) -> None:
    (document,) = engine.get(library, ["d"], source=source)
    assert document is not None
    assert document.source == expected
    scanned = {one.id: one.source for batch in engine.scan(library, source=source) for one in batch}
    assert scanned["d"] == expected
    (hit,) = engine.search(library, {"query": {"ids": {"values": ["d"]}}, "_source": source}).hits
    assert hit.source == expected


def test_scan_sees_everything_once(engine: Engine, empty: str) -> None:
    ids = [f"n{number:03}" for number in range(257)]
    engine.bulk(empty, [WriteOp("index", name, {"title": name}) for name in ids])
    engine.refresh(empty)
    for size in (1000, 257, 100):
        batches = list(engine.scan(empty, batch_size=size))
        assert max(map(len, batches)) <= size
        assert sorted(document.id for batch in batches for document in batch) == ids
    documents = [document for batch in batches for document in batch]
    assert all(document.source == {"title": document.id} for document in documents)
    assert sorted(document.seq_no for document in documents) == list(range(257))


def test_scan_of_nothing(engine: Engine, empty: str) -> None:
    assert list(engine.scan(empty)) == []


def test_scan_of_a_query(engine: Engine, library: str) -> None:
    query = {"bool": {"must_not": [{"exists": {"field": "tag"}}]}}
    assert sorted(one.id for batch in engine.scan(library, query=query, batch_size=1) for one in batch) == ["d", "e"]


def test_scan_keeps_one_view_under_writes(engine: Engine, empty: str) -> None:
    ids = [f"n{number:03}" for number in range(60)]
    engine.bulk(empty, [WriteOp("index", name, {"year": 0}) for name in ids])
    engine.refresh(empty)
    seen = []
    for number, batch in enumerate(engine.scan(empty, batch_size=10)):
        seen += batch
        rewritten = [WriteOp("update", name, {"year": number + 1}) for name in ids]
        engine.bulk(empty, [*rewritten, WriteOp("index", f"x{number}", {"year": 0})])
        engine.refresh(empty)
    assert sorted(document.id for document in seen) == ids
    assert {document.source["year"] for document in seen} == {0}
    # What was read in the first batch was written since: its guard no longer holds.
    stale = WriteOp("update", seen[0].id, {"year": 9}, if_seq_no=seen[0].seq_no, if_primary_term=seen[0].primary_term)
    assert _status(engine, empty, stale) == 409


def test_a_scan_given_up_early_harms_nothing(engine: Engine, library: str) -> None:
    scan = engine.scan(library, batch_size=1)
    next(scan)
    del scan
    assert engine.count(library) == len(DOCUMENTS)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_a_size(size: int, engine: Engine, library: str) -> None:
    with pytest.raises(EngineRejected, match="batch_size"):
        list(engine.scan(library, batch_size=size))


# --- search


QUERIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "match": ({"match": {"title": "apple"}}, ["a", "b"]),
    "match with options": ({"match": {"title": {"query": "red apple", "operator": "and"}}}, ["a"]),
    "match most": ({"match": {"text": {"query": "sweet red fruit", "minimum_should_match": 2}}}, ["a"]),
    "match share": ({"match": {"text": {"query": "sweet red sour", "minimum_should_match": "67%"}}}, ["a"]),
    "case": ({"match": {"title": "TREE"}}, ["d"]),
    "nested": ({"match": {"author.name": "oak"}}, ["d"]),
    "keyword match": ({"match": {"tag": "fruit"}}, ["a", "b"]),
    "unknown field": ({"match": {"absent": "apple"}}, []),
    "no words": ({"match": {"title": "..."}}, []),
    "multi": ({"multi_match": {"query": "red", "fields": ["title^3", "text"]}}, ["a", "c"]),
    "most fields": ({"multi_match": {"query": "red", "fields": ["title", "text"], "type": "most_fields"}}, ["a", "c"]),
    "term": ({"term": {"tag": "sour"}}, ["b"]),
    "term on text": ({"term": {"title": "apple"}}, ["a", "b"]),
    "term is not analysed": ({"term": {"title": "Tree"}}, []),
    "term number": ({"term": {"year": {"value": 2002}}}, ["b", "c"]),
    "terms": ({"terms": {"tag": ["sour", "machine"]}}, ["b", "c"]),
    "terms empty": ({"terms": {"tag": []}}, []),
    "terms on text": ({"terms": {"title": ["tree", "car"]}}, ["c", "d"]),
    "subfield": ({"term": {"author.name.raw": "Bob Elm"}}, ["d"]),
    "ids": ({"ids": {"values": ["c", "a", "absent"]}}, ["a", "c"]),
    "exists": ({"exists": {"field": "year"}}, ["a", "b", "c"]),
    "exists object": ({"exists": {"field": "author"}}, ["d", "e"]),
    "all": ({"match_all": {}}, ["a", "b", "c", "d", "e"]),
    "none": ({"match_none": {}}, []),
    "bool must": ({"bool": {"must": [{"match": {"title": "red"}}, {"term": {"tag": "fruit"}}]}}, ["a"]),
    "bool one clause": ({"bool": {"must": {"match": {"title": "red"}}}}, ["a", "c"]),
    "bool filter": ({"bool": {"filter": [{"term": {"year": 2002}}]}}, ["b", "c"]),
    "bool should": ({"bool": {"should": [{"term": {"tag": "sour"}}, {"match": {"title": "tree"}}]}}, ["b", "d"]),
    "bool should is optional": (
        {"bool": {"filter": [{"term": {"tag": "fruit"}}], "should": [{"match": {"title": "red"}}]}},
        ["a", "b"],
    ),
    "bool two of three": (
        {
            "bool": {
                "should": [{"term": {"year": 2002}}, {"term": {"tag": "fruit"}}, {"match": {"title": "car"}}],
                "minimum_should_match": 2,
            }
        },
        ["b", "c"],
    ),
    "bool not": ({"bool": {"must_not": [{"term": {"tag": "fruit"}}]}}, ["c", "d", "e"]),
    "bool nested": (
        {"bool": {"must": [{"bool": {"should": [{"match": {"title": "red"}}, {"match": {"title": "tree"}}]}}]}},
        ["a", "c", "d"],
    ),
    "bool empty": ({"bool": {}}, ["a", "b", "c", "d", "e"]),
    "boost 0": ({"match": {"title": {"query": "apple", "boost": 0}}}, ["a", "b"]),
}


@pytest.mark.parametrize("case", QUERIES)
def test_what_matches(case: str, engine: Engine, library: str) -> None:
    query, expected = QUERIES[case]
    answer = engine.search(library, {"query": query})
    assert sorted(hit.id for hit in answer.hits) == expected
    assert answer.total == len(expected)
    assert answer.total_is_exact
    assert not answer.timed_out
    assert engine.count(library, query) == len(expected)


def test_bm25_orders(engine: Engine, library: str) -> None:
    assert _ids(engine, library, {"match": {"text": "sweet fruit"}})[0] == "a"
    assert _ids(engine, library, {"multi_match": {"query": "apple red", "fields": ["title^3", "text"]}})[0] == "a"
    scores = [hit.score for hit in engine.search(library, {"query": {"match": {"text": "fruit"}}}).hits]
    assert None not in scores
    assert scores == sorted(scores, key=lambda score: -(score or 0))
    assert scores[0] != scores[-1]


def test_a_boost_is_a_factor(engine: Engine, library: str) -> None:
    def score(query: dict[str, Any]) -> float:
        return engine.search(library, {"query": query}).hits[0].score or 0.0

    plain = score({"match": {"title": "tree"}})
    assert plain > 0
    assert score({"match": {"title": {"query": "tree", "boost": 2.5}}}) == pytest.approx(2.5 * plain, rel=1e-5)
    assert score({"multi_match": {"query": "tree", "fields": ["title^2.5"]}}) == pytest.approx(2.5 * plain, rel=1e-5)
    must = {"bool": {"must": [{"match": {"title": "tree"}}], "boost": 2.5}}
    assert score(must) == pytest.approx(2.5 * plain, rel=1e-5)
    twice = {"bool": {"should": [{"match": {"title": "tree"}}, {"match": {"title": "tree"}}]}}
    assert score(twice) == pytest.approx(2 * plain, rel=1e-5)
    assert score({"match": {"title": "tree tree"}}) == pytest.approx(2 * plain, rel=1e-5)
    filtered = {"bool": {"must": [{"match": {"title": "tree"}}], "filter": [{"ids": {"values": ["d"]}}]}}
    assert score(filtered) == pytest.approx(plain, rel=1e-5)


def test_best_and_most_fields(engine: Engine, library: str) -> None:
    def scores(**more: Any) -> dict[str, float]:
        query = {"multi_match": {"query": "red", "fields": ["title", "text"], **more}}
        return {hit.id: hit.score or 0.0 for hit in engine.search(library, {"query": query}).hits}

    title = {hit.id: hit.score or 0.0 for hit in engine.search(library, {"query": {"match": {"title": "red"}}}).hits}
    text = {hit.id: hit.score or 0.0 for hit in engine.search(library, {"query": {"match": {"text": "red"}}}).hits}
    assert scores() == pytest.approx({one: max(title[one], text[one]) for one in title}, rel=1e-5)
    assert scores(type="most_fields") == pytest.approx({one: title[one] + text[one] for one in title}, rel=1e-5)
    tie = {one: max(title[one], text[one]) + 0.3 * min(title[one], text[one]) for one in title}
    assert scores(tie_breaker=0.3) == pytest.approx(tie, rel=1e-5)


def test_pages_continue(engine: Engine, empty: str) -> None:
    engine.bulk(empty, [WriteOp("index", f"n{number:02}", {"title": "same words"}) for number in range(40)])
    engine.refresh(empty)
    query = {"match": {"title": "same"}}
    whole = _ids(engine, empty, query, size=40)
    assert len(set(whole)) == 40
    pages = [_ids(engine, empty, query, size=7, **{"from": start}) for start in range(0, 40, 7)]
    assert [one for page in pages for one in page] == whole
    assert _ids(engine, empty, query, size=7) == whole[:7]
    assert _ids(engine, empty, query, **{"from": 40}) == []


def test_equal_scores_come_in_the_same_order_twice(engine: Engine, empty: str) -> None:
    for start in range(0, 30, 10):
        ops = [WriteOp("index", f"n{number:02}", {"title": "same"}) for number in range(start, start + 10)]
        engine.bulk(empty, ops)
        engine.refresh(empty)
    orders = {
        tuple(hit.id for hit in engine.search(empty, {"size": size}, preference="me").hits[:5])
        for size in (5, 10, 30, 5, 30)
    }
    assert len(orders) == 1


def test_the_parts_of_a_hit(engine: Engine, library: str) -> None:
    body = {"query": {"match": {"title": "tree"}}, "_source": {"excludes": ["text"]}, "fields": ["title"], "size": 1}
    answer = engine.search(library, body)
    (hit,) = answer.hits
    assert (hit.id, hit.index) == ("d", library)
    assert hit.source == {"title": "Tree", "author": DOCUMENTS["d"]["author"]}
    assert hit.fields == {"title": ["Tree"]}
    assert hit.raw["_id"] == "d"
    assert answer.raw["hits"]["hits"][0] == hit.raw
    assert answer.raw["hits"]["max_score"] == pytest.approx(hit.score)


def test_doc_values_come_without_the_source(engine: Engine, new_name: Callable[[str], str]) -> None:
    properties = {name: {"type": name} for name in ("long", "double", "boolean", "date", "text", "keyword")}
    index = new_name("values")
    engine.create_index(index, {"properties": {**properties, "shop": {"properties": {"price": {"type": "double"}}}}})
    full = {"long": [7, -3], "double": 0.5, "boolean": True, "date": "2020-01-02T00:00:00Z", "shop": {"price": -1}}
    ops = [WriteOp("index", "a", full), WriteOp("index", "b", {"date": "1969-12", "long": "12"})]
    assert {result.status for result in engine.bulk(index, ops)} == {201}
    engine.refresh(index)
    names = ["long", "double", "boolean", "shop.price", "unmapped"]
    wanted = [*names, {"field": "date", "format": "epoch_millis"}]
    answer = engine.search(index, {"query": {"match_all": {}}, "docvalue_fields": wanted, "_source": False})
    found = {hit.id: dict(hit.fields) for hit in answer.hits}
    date = ["1577923200000"]
    assert found["a"] == {"long": [-3, 7], "double": [0.5], "boolean": [True], "shop.price": [-1.0], "date": date}
    assert found["b"] == {"long": [12], "date": ["-2678400000"]}
    with pytest.raises(EngineRejected):
        engine.search(index, {"query": {"match_all": {}}, "docvalue_fields": ["text"]})


def test_hits_come_from_doc_values_without_stored_fields(engine: Engine, new_name: Callable[[str], str]) -> None:
    assert isinstance(engine, SearchesDocValues) == engine.capabilities().doc_value_hits
    if not isinstance(engine, SearchesDocValues):
        return
    first, second = new_name("values-1"), new_name("values-2")
    mapping = {
        "name": {"type": "keyword", "index": False},
        "packed": {"type": "binary", "doc_values": True},
        "title": {"type": "text"},
    }
    engine.create_index(first, {"properties": mapping})
    engine.create_index(second, {"properties": {"title": {"type": "text"}}})
    packed = base64.b64encode(bytes(range(200))).decode()
    whole = {"title": "red", "name": "a", "packed": packed}
    engine.bulk(first, [WriteOp("index", "a", whole), WriteOp("index", "b", {"title": "red red"})])
    engine.bulk(second, [WriteOp("index", "c", {"title": "red"})])
    engine.swap_alias(alias := new_name("both"), first)
    engine.swap_alias(alias, second)
    for index in (first, second):
        engine.refresh(index)
    body = {"query": {"match": {"title": "red"}}, "docvalue_fields": ["packed"]}
    answer = engine.search_doc_values(alias, body, "name", preference="p", timeout_s=60.0)
    found = {(hit.index, hit.id): hit for hit in answer.hits}
    assert found.keys() == {(first, "a"), (first, ""), (second, "")}
    fields = found[first, "a"].fields
    assert fields.keys() == {"name", "packed"}
    # OpenSearch returns binary doc values without padding.
    assert [text.rstrip("=") for text in fields["packed"]] == [packed.rstrip("=")]
    assert found[first, "a"].raw.keys() == {"_index", "_id", "_score"}
    assert found[first, "a"].source == {}
    plain = engine.search(alias, body)
    assert [hit.score for hit in plain.hits] == [hit.score for hit in answer.hits]
    assert engine.field_mappings(alias, "pack") == {first: {"packed": mapping["packed"]}, second: {}}


def test_no_hits_but_a_total(engine: Engine, library: str) -> None:
    answer = engine.search(library, {"size": 0})
    assert answer.hits == ()
    assert answer.total == len(DOCUMENTS)


def test_a_total_may_be_a_lower_bound(engine: Engine, library: str) -> None:
    answer = engine.search(library, {"query": {"match_all": {}}, "track_total_hits": 3})
    assert (answer.total, answer.total_is_exact) == (3, False)


def test_writes_show_after_a_refresh(engine: Engine, index: str) -> None:
    _write(engine, index, WriteOp("index", "late", {"title": "latecomer"}), WriteOp("delete", "a"))
    engine.refresh(index)
    assert _ids(engine, index, {"match": {"title": "latecomer"}}) == ["late"]
    assert engine.count(index) == len(DOCUMENTS)


BAD_BODIES: dict[str, dict[str, Any]] = {
    "unknown clause": {"query": {"matsch": {"title": "x"}}},
    "unknown part": {"qeury": {"match_all": {}}},
    "two clauses": {"query": {"match": {"title": "x"}, "term": {"tag": "y"}}},
    "no object": {"query": "apple"},
    "unknown option": {"query": {"match": {"title": {"query": "x", "colour": 1}}}},
    "unknown type": {"query": {"multi_match": {"query": "x", "fields": ["title"], "type": "bestest"}}},
    "unknown operator": {"query": {"match": {"title": {"query": "x", "operator": "xor"}}}},
    "not a number": {"query": {"term": {"year": "many"}}},
    "negative size": {"size": -2},
    "too deep a page": {"from": 9_995, "size": 10},
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_body_that_cannot_be_run_is_refused(case: str, engine: Engine, library: str) -> None:
    with pytest.raises(EngineRejected) as caught:
        engine.search(library, BAD_BODIES[case])
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"query": {"fuzzy": {"title": "x"}}}, "fuzzy"),
        ({"aggs": {"n": {"terms": {"field": "tag"}}}}, "aggs"),
        ({"highlight": {"fields": {"title": {}}}}, "highlight"),
        ({"sort": [{"year": "asc"}]}, "year"),
        ({"query": {"match": {"title": {"query": "x", "fuzziness": 1}}}}, "fuzziness"),
        ({"query": {"multi_match": {"query": "x", "fields": ["ti*"]}}}, "ti"),
        ({"query": {"multi_match": {"query": "x", "fields": ["title"], "type": "phrase"}}}, "phrase"),
    ],
)
def test_the_embedded_engines_name_what_they_cannot(
    body: dict[str, Any], named: str, engine: Engine, library: str
) -> None:
    if engine.capabilities().kind in ("elasticsearch", "opensearch"):
        engine.search(library, body)
        return
    with pytest.raises(Unsupported, match=named):
        engine.search(library, body)


# --- analysis


def test_words_of_texts(engine: Engine, library: str) -> None:
    texts = ["Red Apple, red.", "", "it's 3.14 \U0001d4b3x", "a\nb\tc", "日本 ひ カナ", "", "Ärger-Maß foo_bar"]
    tokens = engine.analyze(library, "title", texts)
    assert tokens[0] == ["red", "apple", "red"]
    assert tokens[1] == tokens[5] == []
    assert tokens[2][:2] == ["it's", "3.14"]
    assert tokens[3] == ["a", "b", "c"]
    assert tokens[4] == ["日", "本", "ひ", "カナ"]
    assert tokens[6] == ["ärger", "maß", "foo_bar"]
    assert engine.analyze(library, "title", []) == []
    assert engine.analyze(library, "tag", ["Red Apple"]) == [["Red Apple"]]


def test_words_of_a_long_text(engine: Engine, library: str) -> None:
    text = " ".join(f"word{number}" for number in range(12_000))
    one, two = engine.analyze(library, "text", [text, "end"])
    assert one == text.split()
    assert two == ["end"]


def test_words_of_an_unknown_field(engine: Engine, library: str) -> None:
    with pytest.raises(EngineRejected, match="absent"):
        engine.analyze(library, "absent", ["x"])
