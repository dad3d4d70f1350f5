"""Reranked searches on real engines: what a team's body may ask for, and an engine that stops answering."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import pytest

from reranker.cli.calibrate import _accepted_weights
from reranker.config import RouteName
from reranker.engines import EngineSettings, open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine, WriteOp
from reranker.errors import EngineUnavailable
from reranker.rerank import Reranker, RerankSettings
from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration.alpha import fit_alpha
from reranker.rerank.calibration.comparison import OrderComparison
from reranker.rerank.calibration.rankings import engine_run
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.doc_values import DocValueSearch
from reranker.rerank.stems import unstemmed_fields
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.recipes import EngineKind
from tests.served import BM25, Served, model_of, random_documents, serve

BODY: dict[str, Any] = {
    "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}}
}
QUERY = "word3 word11"
PAUSE_S = float(os.environ.get("SSI_PAUSE_S", "6"))
DEADLINE_MS, GRACE_S = 400.0, float(os.environ.get("SSI_GRACE_S", "0.6"))  # two cores serve engines and clients
"""The grace is 100 ms and what a busy test machine takes to wake a thread."""


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine: Engine = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    index = f"search-{uuid.uuid4().hex[:10]}"
    documents = random_documents(80)
    try:
        yield serve(engine, index, tmp_path_factory.mktemp("store"), documents, model_of(documents))
    finally:
        engine.delete_index(index)
        engine.close()


def reranker_of(served: Served, **settings: Any) -> Reranker:
    options = RerankSettings(**({"window": 30, "deadline_ms": None, "alpha": 0.7} | settings))
    return Reranker(served.engine, served.index, served.model, settings=options)


def test_the_body_with_the_field_weights_is_measured_as_the_engine_answers_it(served: Served) -> None:
    model = model_of(served.documents, lexical=BM25)
    reranker = Reranker(
        served.engine, served.index, model, settings=RerankSettings(window=30, deadline_ms=None, alpha=0.7)
    )
    filtered = {"query": {"bool": {"must": [BODY["query"]], "filter": [{"term": {"tag": "x"}}]}}}
    topics = [Topic(f"word{n} word{n + 1}", {f"d{n}": 1.0, f"d{n + 20}": 1.0}) for n in range(20)]
    body = _accepted_weights(reranker, model.encoder, filtered, topics[0])
    kind = "combined_fields" if served.engine.spec.startswith("elasticsearch") else "cross_fields"
    assert body is not None and kind in str(body) and "title^2" in str(body)
    run = engine_run(reranker, topics, body)
    for number, topic in enumerate(topics):
        asked = {**fill_template(body, topic.query), "size": 30}
        hits = served.engine.search(served.index, asked, preference="_local").hits
        assert run[str(number)] == [hit.id for hit in hits]
        assert {served.documents[hit.id]["tag"] for hit in hits} <= {"x"}
    compared = OrderComparison.of(fit_alpha(reranker, topics, "nDCG@10", filtered), topics, run)
    assert compared.means.keys() == {"engine", "weights", "words", "model"}
    assert all(test.n == 20 for tests in compared.differences.values() for test in tests.values())


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_candidates_from_doc_values_are_those_from_stored_fields(
    served: Served, route: RouteName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document that nobody has encoded has no doc values, so that the search is repeated."""

    def opened() -> Reranker:
        store = served.store if route == "beside" else None
        options = RerankSettings(window=30, deadline_ms=None, alpha=0.7, one_request_bytes=0)
        return Reranker(served.engine, served.index, served.model, route=route, store=store, settings=options)

    by_doc_values, by_stored_fields = opened(), opened()
    monkeypatch.setattr(DocValueSearch, "_read", lambda *_: None)
    stored = by_stored_fields.search(QUERY, BODY)
    monkeypatch.undo()
    page = by_doc_values.search(QUERY, BODY)
    search = by_doc_values._candidates.doc_values
    assert search is not None and search._fields is not None
    assert (page.hits, page.n_encoded, search.n_repeated) == (stored.hits, 0, 0)
    assert page.hits[0].source == served.documents[page.hits[0].id]

    first = page.hits[0].id
    served.put({first: served.documents[first]}, vectors=False)
    try:
        again = by_doc_values.search(QUERY, BODY)
        assert [hit.id for hit in again.hits] == [hit.id for hit in page.hits]
        assert (again.n_encoded, search.n_repeated) == (int(route == "fetch"), 1)
    finally:
        served.put({first: served.documents[first]})


@pytest.mark.parametrize("part", ["query", "post_filter"])
def test_a_copy_does_not_show_an_original_that_the_search_excludes(served: Served, part: str) -> None:
    """A copy has the fields of its original, the id among them, and other conditions than the original satisfies."""
    options = RerankSettings(window=30, deadline_ms=None, alpha=0.7, one_request_bytes=0)
    reranker = Reranker(served.engine, served.index, served.model, route="fetch", settings=options)
    found = reranker.search(QUERY, BODY).hits[0].id
    (stored,) = served.engine.get(served.index, [found])
    assert stored is not None
    served.put({"copy": {**stored.source, "tag": "copied"}}, vectors=False)
    try:
        only: dict[str, Any] = {"term": {"tag": "copied"}}
        body = {**BODY, "post_filter": only}
        if part == "query":
            body = {"query": {"bool": {"must": [BODY["query"]], "filter": [only]}}}
        page = reranker.search(QUERY, body)
        search = reranker._candidates.doc_values
        assert search is not None and search.n_repeated == 1
        assert [(hit.id, hit.source["tag"]) for hit in page.hits] == [("copy", "copied")]
        assert page.reranked
    finally:
        served.engine.bulk(served.index, [WriteOp("delete", "copy")])
        served.engine.refresh(served.index)


def test_highlights_fields_and_aggregations_arrive(served: Served) -> None:
    body = {
        **BODY,
        "highlight": {"fields": {"text": {}}},
        "fields": ["tag"],
        "_source": {"excludes": ["text"]},
        "aggs": {"tags": {"terms": {"field": "tag"}}},
    }
    reranker = reranker_of(served)
    plain, page = reranker.search(QUERY, BODY), reranker.search(QUERY, body)
    assert [hit.id for hit in page.hits] == [hit.id for hit in plain.hits]
    assert page.reranked
    for hit in page.hits:
        document = served.documents[hit.id]
        assert hit.source == {"title": document["title"], "tag": document["tag"]}
        assert hit.raw["fields"] == {"tag": [document["tag"]]}
        assert ("highlight" in hit.raw) == bool({"word3", "word11"} & set(document["text"].split()))
    counts = {bucket["key"]: bucket["doc_count"] for bucket in page.raw["aggregations"]["tags"]["buckets"]}
    assert sum(counts.values()) == page.total
    assert page.to_json()["aggregations"] == page.raw["aggregations"]


def test_inner_hits_of_nested_queries_arrive(served: Served) -> None:
    index = f"{served.index}-nested"
    nested = {"type": "nested", "properties": {"note": {"type": "text"}}}
    mapping = {"properties": {"title": {"type": "text"}, "text": {"type": "text"}, "parts": nested}}
    served.engine.create_index(index, mapping)
    inside = Served(served.engine, index, served.model, {}, served.store_path.parent / "nested-store")
    try:
        inside.put(
            {
                f"n{i}": {"title": f"word{i}", "text": "word3", "parts": [{"note": "red"}, {"note": f"word{i}"}]}
                for i in range(5)
            }
        )
        query = {"nested": {"path": "parts", "query": {"match": {"parts.note": "red"}}, "inner_hits": {}}}
        body = {"query": {"bool": {"must": [{"match": {"text": "{{query}}"}}, query]}}}
        page = reranker_of(inside).search("word3 word4", body)
        assert page.reranked
        assert len(page.hits) == 5
        assert all(hit.raw["inner_hits"]["parts"]["hits"]["hits"][0]["_source"] == {"note": "red"} for hit in page.hits)
        assert page.hits[0].id == "n4"
    finally:
        served.engine.delete_index(index)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sort": ["tag", "_score"]}, "sorts by tag"),
        ({"collapse": {"field": "tag"}}, "collapses"),
        ({"size": 0}, "size: 0"),
        ({"sort": [{"_score": "desc"}, {"tag": "asc"}], "search_after": [1.0, "x"]}, "search_after"),
    ],
)
def test_what_is_not_reranked_comes_as_the_engine_has_it(served: Served, change: dict[str, Any], reason: str) -> None:
    page = reranker_of(served).search(QUERY, {**BODY, **change})
    filled = {"query": {"multi_match": {**BODY["query"]["multi_match"], "query": QUERY}}}
    answer = served.engine.search(served.index, {**filled, **change})
    assert page.cause == "not_rerankable" and reason in str(page.reason)
    assert not page.fallback
    assert [hit.id for hit in page.hits] == [hit.id for hit in answer.hits]


def test_an_alias_over_two_indexes_serves_both(served: Served, tmp_path: Path) -> None:
    """The same id in two indexes is two documents: each is shown with its own text."""
    second = serve(
        served.engine, f"{served.index}-second", tmp_path, {"d1": {"title": QUERY, "text": ""}}, served.model
    )
    alias = f"{served.index}-alias"
    try:
        served.engine.swap_alias(alias, served.index)
        served.engine.swap_alias(alias, second.index)
        both = Served(served.engine, alias, served.model, {}, served.store_path)
        page = reranker_of(both).search(QUERY, BODY, size=60)
        assert page.reranked
        for hit in page.hits:
            expected = second.documents if hit.index == second.index else served.documents
            assert hit.source["title"] == expected[hit.id]["title"]
        assert {hit.index for hit in page.hits} == {served.index, second.index}
    finally:
        served.engine.delete_index(second.index)


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def process(request: pytest.FixtureRequest, launchable: Callable[[EngineKind], None]) -> Iterator[EngineProcess]:
    kind: EngineKind = request.param
    launchable(kind)
    with EngineProcess(kind, heap="512m", java_options=QUICK_START) as engine:
        yield engine


def _first_answer(reranker: Reranker, limit_s: float = 30.0) -> RerankedPage:
    """Return the first answer within the deadline."""
    until = time.monotonic() + limit_s
    while True:
        try:
            return reranker.search(QUERY, BODY)
        except EngineUnavailable:
            if time.monotonic() > until:
                raise


def test_a_stopped_engine_holds_no_search_past_its_deadline(process: EngineProcess, tmp_path: Path) -> None:
    """SIGSTOP under search load: answers or errors in time, no thread or socket left, and service right afterwards."""
    engine = open_engine(f"{process.kind}:{process.url}", EngineSettings())
    documents = random_documents(60)
    served = serve(engine, "stopped", tmp_path, documents, model_of(documents))
    reranker = reranker_of(served, deadline_ms=DEADLINE_MS)
    # A new engine's first answers are slow: they are not what is measured here.
    assert reranker_of(served, deadline_ms=60_000).search(QUERY, BODY).hits
    assert _first_answer(reranker).hits
    before = psutil.Process().num_fds(), threading.active_count()
    slowest, errors, done, stop = [0.0], [0], [0], threading.Event()

    def load() -> None:
        while not stop.is_set():
            started = time.monotonic()
            try:
                reranker.search(QUERY, BODY)
                done[0] += 1
            except EngineUnavailable:
                errors[0] += 1
            slowest[0] = max(slowest[0], time.monotonic() - started)

    workers = [threading.Thread(target=load) for _ in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(1.0)
    slowest[0] = 0.0
    process.pause()
    time.sleep(PAUSE_S)
    process.resume()
    resumed = time.monotonic()
    answered, limit = done[0], resumed + 5.0
    while done[0] == answered and time.monotonic() < limit:
        time.sleep(0.02)
    back_s = time.monotonic() - resumed
    stop.set()
    for worker in workers:
        worker.join(timeout=5)
        assert not worker.is_alive()
    assert errors[0] >= 4
    assert slowest[0] <= DEADLINE_MS / 1000 + GRACE_S
    assert back_s < 5.0
    after = psutil.Process().num_fds(), threading.active_count()
    assert after[0] - before[0] <= 4 + 2  # a pooled connection a worker, and two
    assert after[1] - before[1] <= 2
    engine.close()


def test_fields_without_stems_are_told_from_those_with_stems(served: Served) -> None:
    """The engine's own analyzers decide. The test distribution of Elasticsearch contains none with stems."""
    engine, index = served.engine, f"stems-{uuid.uuid4().hex[:10]}"
    has_stems = engine.spec.startswith("opensearch")
    english = {"type": "text", "analyzer": "english" if has_stems else "standard"}
    title = {"type": "text", "fields": {"english": english, "raw": {"type": "keyword"}}}
    engine.create_index(index, {"properties": {"title": title, "text": english}})
    roots = ("paint", "connect", "plant", "print", "clean", "walk")
    documents = [{"title": f"{root}ing and {root}s", "text": f"{root}ed"} for root in roots]
    try:
        engine.bulk(index, [WriteOp("index", str(n), document) for n, document in enumerate(documents)])
        engine.refresh(index)
        encoder = model_of(dict(zip("abcdef", documents, strict=True)), stemmer="english").encoder
        for fields, with_stems, without in (
            (["title^2", "title.raw", "text"], {"title"}, {"title", "text"}),
            (["title", "title.english", "text"], set(), {"title", "text"}),
            (["title.english"], set(), {"title.english"}),
        ):
            body = {"query": {"multi_match": {"query": "{{query}}", "fields": fields}}}
            found = unstemmed_fields(engine, index, encoder, body)
            assert found.keys() == (with_stems if has_stems else without), fields
    finally:
        engine.delete_index(index)
