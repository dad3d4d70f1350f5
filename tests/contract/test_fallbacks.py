"""A fallback is exactly the engine's own answer to the client's body, or an error: on every route and API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from fastapi.testclient import TestClient

from reranker.engines import Engine, open_engine
from reranker.engines.bodies import fill_template
from reranker.errors import EngineRejected, EngineUnavailable
from reranker.models.model_folder import save_model
from reranker.records import SearchAnswer
from reranker.rerank import RerankSettings
from reranker.service.app import all_parts, create_app
from reranker.service.settings import ServiceSettings
from reranker.service.state import open_state
from tests.served import Served, model_of, random_documents, serve

TEXT = "word3 word11"
CLAUSE = {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}
BODIES: Mapping[str, dict[str, Any]] = {
    "plain": {"query": CLAUSE},
    "second page": {"query": CLAUSE, "from": 7, "size": 7},
    "highlights": {"query": CLAUSE, "highlight": {"fields": {"text": {}, "title": {}}}, "size": 5},
    "fields": {"query": CLAUSE, "_source": False, "fields": ["tag"], "docvalue_fields": ["tag"]},
    "some of the source": {"query": CLAUSE, "_source": ["title", "tag"], "size": 3},
    "aggregations": {"query": CLAUSE, "aggs": {"tags": {"terms": {"field": "tag"}}}, "track_total_hits": True},
    "filtered": {"query": {"bool": {"must": [CLAUSE], "filter": [{"term": {"tag": "x"}}]}}, "version": True},
    "named": {"query": {"bool": {"should": [{"match": {"text": {"query": "{{query}}", "_name": "words"}}}]}}},
}
WITHOUT_VECTORS = ("d58", "d59")
"""Documents that are encoded from their text during a search, which takes a request more."""
FAULTS = {
    "late": EngineUnavailable("late", timed_out=True),
    "refused": EngineRejected("no", status=400, error_type="illegal_argument_exception"),
    "cut": EngineUnavailable("cut", status=200),
}


class Failing:
    """An engine to which something happens before the n-th request that reranking sends for a search, from 0."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.n = engine, 0
        self.tell({})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def tell(self, own: Mapping[str, Any], at: int = -1, event: Callable[[], None] = lambda: None) -> None:
        """Set the body that is always answered, the number of the request (-1: none), and what happens before it."""
        self._own, self._at, self._event, self.n = own, at, event, 0

    def search(self, index: str, body: Mapping[str, Any], **named: Any) -> SearchAnswer:
        self._count(body)
        return self._engine.search(index, body, **named)

    def search_doc_values(self, index: str, body: Mapping[str, Any], *rest: Any, **named: Any) -> SearchAnswer:
        self._count(body)
        engine: Any = self._engine
        answer: SearchAnswer = engine.search_doc_values(index, body, *rest, **named)
        return answer

    def _count(self, body: Mapping[str, Any]) -> None:
        if {**self._own, "from": self._own.get("from", 0), "size": self._own.get("size", 10)} == body:
            return
        self.n += 1
        if self.n - 1 == self._at:
            self._event()


class Site:
    """A service over a real engine that can be told to fail."""

    def __init__(self, served: Served, failing: Failing, client: TestClient) -> None:
        self.served, self.failing, self.client = served, failing, client

    def own_answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's own answer to a filled body."""
        engine: Any = self.served.engine
        answer: dict[str, Any] = engine.request("POST", f"/{self.served.index}/_search", body)
        return answer


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with closing(open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")) as engine:
        yield engine


@pytest.fixture(scope="module", params=["fetch", "beside"])
def site(engine: Engine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, index, documents = tmp_path_factory.mktemp("site"), f"own-{uuid.uuid4().hex[:10]}", random_documents(60)
    first = {name: source for name, source in documents.items() if name not in WITHOUT_VECTORS}
    served = serve(engine, index, folder, first, model_of(documents))
    served.put({name: documents[name] for name in WITHOUT_VECTORS}, vectors=False)
    save_model(served.model, folder / "model")
    failing: Any = Failing(engine)
    options = ServiceSettings(
        index=index,
        route=request.param,
        proxy=True,
        bodies=BODIES,
        breaker_failures=10**9,
        rerank=RerankSettings(window=30, deadline_ms=60_000.0, alpha=0.5),
    )
    store = served.store_path if request.param == "beside" else None
    state = open_state(failing, options, model=folder / "model", store=store)
    try:
        with TestClient(create_app(options, state, all_parts()), base_url="http://127.0.0.1") as client:
            yield Site(served, failing, client)
    finally:
        engine.delete_index(index)


def own_form(answer: Mapping[str, Any]) -> str:
    """Return an answer as text, without ``took`` and the fields of this project."""
    hits = answer["hits"]["hits"]
    shown = [
        {**hit, "_source": {k: v for k, v in hit["_source"].items() if not k.startswith("ssi_")}}
        if "_source" in hit
        else hit
        for hit in hits
    ]
    return json.dumps({**answer, "took": 0, "hits": {**answer["hits"], "hits": shown}})


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", BODIES)
def test_whichever_request_fails_the_page_is_the_engines_own(site: Site, name: str, fault: str) -> None:
    template = BODIES[name]
    body = fill_template(template, TEXT)
    own = site.own_answer(body)

    def fail() -> None:
        raise FAULTS[fault]

    n_fallbacks = 0
    for fail_at in range(-1, 20):
        site.failing.tell(body, fail_at, fail)
        answer = site.client.post(f"/{site.served.index}/_search", json=body)
        assert answer.status_code == 200
        reranked = answer.headers["x-ssi-reranked"] == "true"
        if not reranked:
            n_fallbacks += 1
            assert own_form(answer.json()) == own_form(own), fail_at
        else:
            assert all(hit.get("_source") or template.get("_source") is False for hit in answer.json()["hits"]["hits"])
        site.failing.tell(body, fail_at, fail)
        page = site.client.post("/search", json={"query": TEXT, "body": name}).json()
        if page["fallback"]:
            expected = [(hit["_id"], hit["_score"], hit.get("highlight")) for hit in own["hits"]["hits"]]
            assert [(hit["id"], hit["score"], hit.get("highlight")) for hit in page["hits"]] == expected
            assert page["reason"] and page["total"] == own["hits"]["total"]["value"]
            assert page.get("aggregations") == own.get("aggregations")
        if fail_at >= site.failing.n:
            break
    assert fail_at < 19
    # A failure of a request by doc values leads to other requests of reranking first.
    assert n_fallbacks >= 1


def test_a_document_deleted_during_the_search_is_not_shown_without_content(site: Site) -> None:
    body = fill_template(BODIES["highlights"], TEXT)
    doomed = site.own_answer(body)["hits"]["hits"][0]["_id"]
    source = random_documents(60)[doomed]
    engine: Any = site.served.engine
    index, all_found = site.served.index, False

    def delete() -> None:
        engine.request("DELETE", f"/{index}/_doc/{doomed}", None, {"refresh": "true"})

    for at in range(20):
        try:
            site.failing.tell(body, at, delete)
            answer = site.client.post(f"/{index}/_search", json=body).json()
            all_found = at >= site.failing.n
        finally:
            site.served.put({doomed: source}, vectors=doomed not in WITHOUT_VECTORS)
        assert answer["hits"]["hits"] and all(hit["_source"] for hit in answer["hits"]["hits"])
        if all_found:
            break
    assert all_found


def test_one_maximum_of_the_scores_on_all_pages_of_the_window(site: Site) -> None:
    site.failing.tell({})
    pages = []
    for first in range(0, 30, 5):
        body = {**fill_template(BODIES["plain"], TEXT), "from": first, "size": 5}
        pages.append(site.client.post(f"/{site.served.index}/_search", json=body).json()["hits"])
    assert {page["max_score"] for page in pages} == {pages[0]["hits"][0]["_score"]}
    past = {**fill_template(BODIES["plain"], TEXT), "from": 30, "size": 5}
    assert own_form(site.client.post(f"/{site.served.index}/_search", json=past).json()) == own_form(
        site.own_answer(past)
    )
