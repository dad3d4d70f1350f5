"""The first stage by impacts on real engines: what it finds, under whose conditions, and that pages stay whole."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.build import BuildOptions, build_index
from indexer.encoding import present_routes
from indexer.load import LoadOptions
from indexer.renewal import Target, sync
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.rerank import RerankedPage, Reranker, RerankSettings
from tests.served import (
    Served,
    model_of,
    random_documents,
    reading_vectors,
    serve,
    with_mean_vector,
    with_vectors,
)

BODY: dict[str, Any] = {"query": {"match": {"text": "{{query}}"}}, "_source": ["title", "tag"]}
QUERY = "word41 word37"


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    kind = str(request.param)
    opened = open_engine(f"{kind}:{request.getfixturevalue(f'{kind}_url')}")
    yield opened
    opened.close()


@pytest.fixture(
    scope="module",
    params=[(1, False), (3, False), (3, True)],
    ids=lambda case: f"{case[0]} shards" + ", given vectors" * case[1],
)
def served(
    request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    n_shards, given = request.param
    documents = random_documents(300)
    model = model_of(documents)
    if given:
        documents, model = with_vectors(documents), reading_vectors(model)
    model = with_mean_vector(model, documents)
    index = f"stage-{uuid.uuid4().hex[:10]}"
    settings = {"index.number_of_shards": n_shards, "index.number_of_replicas": 0}
    path = tmp_path_factory.mktemp("stage")
    try:
        served = serve(engine, index, path, documents, model, **settings)
        sync(Target(engine, index, model, routes=("fetch", "impacts")))
        engine.refresh(index)
        yield served
    finally:
        engine.delete_index(index)


def reranker_of(served: Served, route: Any = "fetch", **settings: Any) -> Reranker:
    options = {"window": 20, "deadline_ms": None, "alpha": 0.7, "retrieve": "impacts"} | settings
    store = served.store if route == "beside" else None
    return Reranker(
        served.engine, served.index, served.model, route=route, store=store, settings=RerankSettings(**options)
    )


def words_of(served: Served, name: str) -> set[str]:
    return set(served.documents[name]["text"].split())


def test_the_index_has_the_fields(served: Served) -> None:
    properties = served.engine.index_info(served.index).properties
    assert present_routes(properties, served.model.encoder_id) == ("fetch", "impacts")


def test_documents_without_a_word_of_the_query_are_found(served: Served) -> None:
    plain = reranker_of(served, retrieve="bm25").search(QUERY, BODY, size=100)
    page = reranker_of(served).search(QUERY, BODY, size=100)
    assert page.reranked
    assert "found only by their impacts" in " ".join(page.notices)
    asked = set(QUERY.split())
    assert all(words_of(served, hit.id) & asked for hit in plain.hits)
    strangers = [hit for hit in page.hits if not words_of(served, hit.id) & asked]
    assert strangers
    assert {hit.first_stage_score for hit in strangers} == {0.0}
    assert all(set(hit.source) == {"title", "tag"} for hit in page.hits)
    assert page.n_candidates > plain.n_candidates


@pytest.mark.parametrize("route", ["beside", "fetch"])
def test_every_route_scores_what_was_found_alike(served: Served, route: str) -> None:
    truth = {hit.id: hit.score for hit in reranker_of(served, "beside").search(QUERY, BODY, size=40).hits}
    page = reranker_of(served, route).search(QUERY, BODY, size=40, explain=True)
    assert page.reranked
    assert not page.n_encoded
    found = {hit.id: hit.score for hit in page.hits}
    assert len(found.keys() & truth.keys()) >= 39
    for name in found.keys() & truth.keys():
        assert found[name] == pytest.approx(truth[name], abs=5e-3)
    for hit, explanation in zip(page.hits, page.explanations, strict=True):
        assert sum(row.value for row in explanation.contributions) == pytest.approx(hit.score, abs=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        {"query": {"bool": {"must": [{"match": {"text": "{{query}}"}}], "filter": [{"term": {"tag": "x"}}]}}},
        {"query": {"bool": {"must": [{"match": {"text": "{{query}}"}}, {"term": {"tag": "x"}}]}}},
        {"query": {"bool": {"must": [{"match": {"text": "{{query}}"}}], "must_not": [{"term": {"tag": "y"}}]}}},
        {"query": {"match": {"text": "{{query}}"}}, "post_filter": {"term": {"tag": "x"}}},
    ],
)
def test_the_teams_conditions_hold_for_what_impacts_find(served: Served, body: dict[str, Any]) -> None:
    page = reranker_of(served).search(QUERY, {**body, "_source": ["tag"]}, size=60)
    assert page.reranked
    assert "found only by their impacts" in " ".join(page.notices)
    assert {hit.source["tag"] for hit in page.hits} == {"x"}


def all_ids(pages: list[RerankedPage]) -> list[str]:
    return [hit.id for page in pages for hit in page.hits]


def test_pages_are_one_permutation_also_past_the_window(served: Served) -> None:
    query = "word1 word3"
    reranker = reranker_of(served)
    whole = reranker.search(query, BODY, size=300)
    assert whole.total > 100
    ids = [hit.id for hit in whole.hits]
    assert len(set(ids)) == len(ids) >= whole.total
    pages = [reranker.search(query, BODY, size=25, from_=first) for first in range(0, 300, 25)]
    assert all_ids(pages) == ids
    bm25 = reranker_of(served, retrieve="bm25").search(query, BODY, size=300)
    assert {hit.id for hit in bm25.hits} <= set(ids)


def test_a_query_without_learned_words_is_searched_by_words(served: Served) -> None:
    page = reranker_of(served).search("neverseen1 word2", {"query": {"match": {"text": "{{query}}"}}}, size=5)
    assert page.reranked
    none = reranker_of(served).search("neverseen1", {"query": {"match": {"text": "{{query}}"}}}, size=5)
    assert none.hits == ()


def test_where_the_field_is_missing_words_alone_are_searched_and_it_is_said(engine: Engine, tmp_path: Path) -> None:
    documents = random_documents(30)
    index = f"stage-{uuid.uuid4().hex[:10]}"
    served = serve(engine, index, tmp_path, documents, model_of(documents))
    try:
        page = reranker_of(served).search("word1 word3", BODY)
        assert page.reranked
        assert any("--routes impacts" in notice for notice in page.notices)
    finally:
        engine.delete_index(index)


def test_an_index_made_by_us_can_be_searched_by_impacts_and_rebuilt(engine: Engine, tmp_path: Path) -> None:
    documents = random_documents(60)
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"id": name, **source}) + "\n" for name, source in documents.items()))
    model = with_mean_vector(model_of(documents), documents)
    index = f"stage-{uuid.uuid4().hex[:10]}"
    load = LoadOptions(state_path=tmp_path / "state")
    try:
        # First without impacts, which the rebuild adds.
        build_index(engine, index, path, model, BuildOptions(("fetch",), load=load))
        report = build_index(engine, index, path, model, BuildOptions(("fetch", "impacts"), rebuild=True, load=load))
        assert engine.count(report.concrete) == 60
        settings = RerankSettings(window=10, deadline_ms=None, retrieve="impacts")
        reranker = Reranker(engine, index, model, settings=settings)
        reranker.check()
        page = reranker.search(QUERY, BODY)
        assert page.reranked
        assert "found only by their impacts" in " ".join(page.notices)
    finally:
        for name in [*engine.index_names(index), f"{index}-000001"]:
            if engine.index_names(name):
                engine.delete_index(name)
