"""Candidates from doc values: the same pages as from stored fields, which are read wherever doc values do not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reranker.deadline import Deadline
from reranker.engines.protocol import Capabilities, Engine, SearchesDocValues
from reranker.engines.vectors import DocValueFields, doc_value_fields, field_name
from reranker.errors import EngineAuthError, EngineRejected, EngineUnavailable
from reranker.records import Hit, SearchAnswer
from reranker.rerank import Reranker, RerankSettings
from reranker.rerank.candidates import needs_no_stored_fields
from reranker.rerank.doc_values import LONGEST_PAUSE, READ_AGAIN_S, DocValueSearch
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve

BODY = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}}}
QUERY = "word3 word11 word0"
ENCODER = "0123456789ab" * 5


class DocValuesEngine:
    """The engine in memory, with searches by doc values as a server runs them; it counts both kinds of searches."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.n_by_doc_values = 0
        self.bodies: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def capabilities(self) -> Capabilities:
        return replace(self._inner.capabilities(), doc_value_hits=True)

    def search(self, index: str, body: Mapping[str, Any], **options: Any) -> SearchAnswer:
        self.bodies.append(body)
        return self._inner.search(index, body, **options)

    def search_doc_values(self, index: str, body: Mapping[str, Any], id_field: str, **options: Any) -> SearchAnswer:
        self.n_by_doc_values += 1
        if self.error is not None:
            raise self.error
        assert not body["_source"] or set(body["_source"]) <= set(body["docvalue_fields"])
        names = [id_field, *body["docvalue_fields"]]
        stripped = {name: value for name, value in body.items() if name != "docvalue_fields"}
        answer = self._inner.search(index, {**stripped, "_source": names}, **options)
        hits = []
        for hit in answer.hits:
            fields = {name: [value] for name, value in hit.source.items()}
            identifier = hit.source.get(id_field, "")
            hits.append(Hit(identifier, hit.index, hit.score, {}, fields, {"_index": hit.index, "_id": identifier}))
        raw = {**answer.raw, "_shards": {"total": 2, "failed": self.failed}}
        return replace(answer, hits=tuple(hits), raw=raw, ids_are_values=True)

    def field_mappings(self, index: str, prefix: str, **options: Any) -> dict[str, dict[str, Mapping[str, Any]]]:
        return {
            name: {field: how for field, how in self.index_info(name).properties.items() if field.startswith(prefix)}
            for name in self.index_names(index)
        }


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    documents = random_documents(80)
    engine = memory_engine()
    yield serve(DocValuesEngine(engine), "docs", tmp_path, documents, model_of(documents))
    engine.close()


def reranker_of(served: Served, route: str, engine: Engine | None = None, **settings: Any) -> Reranker:
    store = served.store if route == "beside" else None
    options = RerankSettings(deadline_ms=None, alpha=0.5, window=30, one_request_bytes=0, **settings)
    head = (engine or served.engine, served.index, served.model)
    return Reranker(*head, route=route, store=store, settings=options)  # type: ignore[arg-type]


def engine_of(served: Served) -> DocValuesEngine:
    engine = served.engine
    assert isinstance(engine, DocValuesEngine)
    assert isinstance(engine, SearchesDocValues)
    return engine


@pytest.mark.parametrize("route", ["beside", "fetch"])
@pytest.mark.parametrize("change", [{}, {"_source": ["title"]}, {"docvalue_fields": ["tag"]}, {"fields": ["title"]}])
def test_pages_are_those_of_stored_fields(served: Served, route: str, change: dict[str, Any]) -> None:
    engine, body = engine_of(served), {**BODY, **change}
    stored = reranker_of(served, route, engine._inner).search(QUERY, body, size=40)
    page = reranker_of(served, route).search(QUERY, body, size=40)
    assert engine.n_by_doc_values == 1
    assert page.hits == stored.hits
    assert page.reranked
    assert page.n_encoded == 0
    assert [body["size"] for body in engine.bodies] == [40]


@pytest.mark.parametrize("route", ["beside", "fetch"])
def test_a_document_without_an_id_among_its_doc_values_repeats_the_search(served: Served, route: str) -> None:
    engine, reranker = engine_of(served), reranker_of(served, route)
    found = reranker.search(QUERY, BODY).hits[0].id
    served.put({found: served.documents[found]}, vectors=False)
    page = reranker.search(QUERY, BODY)
    assert page.hits == reranker_of(served, route, engine._inner).search(QUERY, BODY).hits
    assert page.n_encoded == (route == "fetch")
    assert page.reranked
    by_doc_values = reranker._candidates.doc_values
    assert by_doc_values is not None
    assert by_doc_values.n_repeated == 1


def test_a_copy_with_the_id_of_its_original_repeats_the_search(served: Served) -> None:
    engine, reranker = engine_of(served), reranker_of(served, "beside")
    found = reranker.search(QUERY, BODY).hits[0]
    (stored,) = engine.get("docs", [found.id])
    assert stored is not None
    served.put({"copy": stored.source}, vectors=False)
    page = reranker.search(QUERY, BODY, size=30)
    assert {found.id, "copy"} <= {hit.id for hit in page.hits}


def test_a_copy_does_not_show_an_original_that_the_search_excludes(served: Served) -> None:
    """A copy claims the id of a document that the search must not find; only the copy is shown."""
    engine, reranker = engine_of(served), reranker_of(served, "beside")
    found = reranker.search(QUERY, BODY).hits[0]
    (stored,) = engine.get("docs", [found.id])
    assert stored is not None
    engine.put_properties("docs", {"seen_by": {"type": "keyword"}})
    served.put({"copy": {**stored.source, "seen_by": "all"}}, vectors=False)
    body = {"query": {"bool": {"must": [BODY["query"]], "filter": [{"term": {"seen_by": "all"}}]}}}
    before = engine.n_by_doc_values
    page = reranker.search(QUERY, body)
    assert [hit.id for hit in page.hits] == ["copy"]
    assert page.hits[0].source["seen_by"] == "all"
    assert engine.n_by_doc_values == before + 1


@pytest.mark.parametrize(
    ("fault", "repeated"),
    [
        (EngineRejected("no", status=400), True),
        (EngineUnavailable("a processor failed", status=500), True),
        (EngineUnavailable("away", status=None), False),
        (EngineUnavailable("later", status=503), False),
    ],
)
def test_a_refused_search_is_repeated_and_an_engine_that_is_away_is_not(
    served: Served, fault: EngineUnavailable, repeated: bool
) -> None:
    engine = engine_of(served)
    engine.error = fault
    if repeated:
        assert reranker_of(served, "fetch").search(QUERY, BODY).reranked
    else:
        with pytest.raises(EngineUnavailable):
            reranker_of(served, "fetch").search(QUERY, BODY)


def test_a_failed_shard_repeats_the_search(served: Served) -> None:
    engine = engine_of(served)
    engine.failed = 1
    assert reranker_of(served, "fetch").search(QUERY, BODY).reranked
    assert len(engine.bodies) == 2  # the candidates and the page


def test_searches_by_stored_fields_between_failures_double() -> None:
    """A search that had to be repeated is followed by 1, 2, 4, ... by stored fields, until one succeeds."""
    engine = Answering([""])
    search = DocValueSearch(engine, "docs", ENCODER)
    tried = [at for at in range(20) if ask(search, engine) is not None]
    assert tried == [0, 2, 5, 10, 19]
    engine.ids = ["1"]
    for _ in range(LONGEST_PAUSE):
        ask(search, engine)
    assert search.search({}, (), "p", Deadline()) is not None
    engine.ids = [""]
    assert [ask(search, engine) is not None for _ in range(4)] == [True, False, True, False]


def test_a_mapping_without_the_fields_is_read_again_after_a_minute() -> None:
    clock = [0.0]
    engine = Answering(["1"])
    search = DocValueSearch(engine, "docs", ENCODER, ("vec",), lambda: clock[0])
    assert ask(search, engine) is None
    engine.mapping[field_name(ENCODER, "vec")] = {"type": "binary", "doc_values": True}
    clock[0] = READ_AGAIN_S - 1
    assert ask(search, engine) is None
    assert engine.n_read == 1
    clock[0] = READ_AGAIN_S
    assert ask(search, engine) is not None
    assert ask(search, engine) is not None
    assert engine.n_read == 2


def test_without_the_right_to_read_the_mapping_stored_fields_are_read() -> None:
    engine = Answering(["1"])
    engine.read_error = EngineAuthError("no", status=403)
    assert DocValueSearch(engine, "docs", ENCODER).search({}, (), "p", Deadline()) is None
    assert engine.n_searches == 0


class Answering:
    """An engine that returns hits with given ids, and one mapping."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.mapping: dict[str, Mapping[str, Any]] = {field_name(ENCODER, "id"): {"type": "keyword"}}
        self.n_read = self.n_searches = 0
        self.read_error: Exception | None = None

    def search_doc_values(self, index: str, body: Mapping[str, Any], id_field: str, **options: Any) -> SearchAnswer:
        self.n_searches += 1
        return SearchAnswer(tuple(Hit(identifier, index, 1.0) for identifier in self.ids), 1)

    def field_mappings(self, index: str, prefix: str, **options: Any) -> dict[str, dict[str, Mapping[str, Any]]]:
        self.n_read += 1
        if self.read_error is not None:
            raise self.read_error
        return {index: self.mapping}


def ask(search: DocValueSearch, engine: Answering) -> bool | None:
    """Search once; return whether the engine was asked by doc values, None if not."""
    before = engine.n_searches
    search.search({}, (), "p", Deadline())
    return True if engine.n_searches > before else None


def test_fields_with_doc_values() -> None:
    names = {part: field_name(ENCODER, part) for part in ("id", "vec", "terms")}
    packed = {names[part]: {"type": "binary", "doc_values": True} for part in ("vec", "terms")}
    mapping = {names["id"]: {"type": "keyword", "index": False}, **packed}
    needed = ("vec", "terms")
    assert doc_value_fields(mapping, ENCODER, needed) == DocValueFields(names["id"], (names["vec"], names["terms"]))
    assert doc_value_fields(mapping, ENCODER) == DocValueFields(names["id"], ())
    assert doc_value_fields({**mapping, names["vec"]: {"type": "binary"}}, ENCODER, needed) is None
    assert doc_value_fields({**mapping, names["id"]: {"type": "text"}}, ENCODER) is None
    assert doc_value_fields(packed, ENCODER) is None


@pytest.mark.parametrize(
    ("change", "possible"),
    [
        ({}, True),
        ({"_source": ["title"], "stored_fields": ["title"]}, True),
        ({"_source": False}, False),
        ({"collapse": {"field": "tag"}}, False),
        ({"search_pipeline": "mine"}, False),
        ({"knn": {"field": "v"}}, False),
        ({"query": {"hybrid": {"queries": []}}}, False),
        ({"query": {"bool": {"must": [{"nested": {"inner_hits": {}}}]}}}, False),
    ],
)
def test_bodies_whose_candidates_need_stored_fields(change: dict[str, Any], possible: bool) -> None:
    assert needs_no_stored_fields({**BODY, **change}) is possible
