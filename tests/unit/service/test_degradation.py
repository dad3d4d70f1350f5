"""Whatever the engine does, ``/search`` answers with a permutation of its hits, its own page, or an error."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reranker.errors import EngineError, EngineOverloaded, EngineRejected, EngineUnavailable
from reranker.models.model_folder import save_model
from reranker.records import SearchAnswer
from reranker.rerank import RerankSettings
from reranker.service.app import create_app
from reranker.service.search import encode
from reranker.service.settings import ServiceSettings
from reranker.service.state import open_state
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, random_documents, serve
from tests.unit.rerank.test_degradation import TEXTS, Whole, is_own, odd_answer
from tests.unit.rerank.test_reranker import Spy

EXAMPLES = int(os.environ.get("SSI_EXAMPLES", "10000")) // 40
QUERIES = [text for text in TEXTS if "\ud800" not in text]
ERRORS = (EngineUnavailable("down"), EngineOverloaded("busy"), EngineRejected("no", error_type="x"), EngineError("?"))


class Scripted(Spy):
    """An engine with scripted answers: a list for the requests of reranking, and one for its own page."""

    def __init__(self, served: Served) -> None:
        super().__init__(served.engine)
        self.answers: list[SearchAnswer | Exception] = []
        self.own: SearchAnswer | Exception | None = None
        self.n = 0

    def tell(self, answers: list[SearchAnswer | Exception], own: SearchAnswer | Exception | None = None) -> None:
        self.answers, self.own, self.n = answers, own, 0

    def search(self, index: str, body: Any, **options: Any) -> SearchAnswer:
        if is_own(body) and self.own is not None:
            if isinstance(self.own, Exception):
                raise self.own
            return self.own
        if not self.answers or is_own(body):
            return super().search(index, body, **options)
        answer = self.answers[min(self.n, len(self.answers) - 1)]
        self.n += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


class Service:
    """A service over a scripted engine; plain, so that a failure prints little."""

    def __init__(self, served: Served, engine: Scripted, client: TestClient, whole: Whole) -> None:
        self.served, self.engine, self.client, self.whole = served, engine, client, whole


@pytest.fixture(scope="module", params=["fetch", "beside"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path, documents = tmp_path_factory.mktemp("service"), random_documents(40)
    served = serve(memory_engine(), "docs", path, documents, model_of(documents))
    save_model(served.model, path / "model")
    engine: Any = Scripted(served)
    options = ServiceSettings(
        index="docs",
        route=request.param,
        breaker_failures=10**9,
        rerank=RerankSettings(window=8, deadline_ms=20_000.0, alpha=0.5),
    )
    state = open_state(engine, options, model=path / "model", store=served.store_path)
    names = sorted(documents)
    fields = [f"ssi_{served.model.encoder_id[:12]}_{part}" for part in ("vec", "terms")]
    found = served.engine.get("docs", names, source=fields)
    whole = Whole(names, fields, [dict(one.source) for one in found if one is not None])
    with TestClient(create_app(options, state), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield Service(served, engine, client, whole)
    served.engine.close()


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), query=st.sampled_from(QUERIES), size=st.integers(1, 20))
def test_the_answer_is_a_permutation_of_the_engines_or_its_own_page_or_an_error(
    service: Service, seed: int, query: str, size: int
) -> None:
    rng = random.Random(seed)
    first: SearchAnswer | Exception = odd_answer(rng, service.whole, service.whole.fields)
    if rng.random() < 0.2:
        first = rng.choice(ERRORS)
    later: list[SearchAnswer | Exception] = [odd_answer(rng, service.whole, ["title", "text"]) for _ in range(2)]
    if rng.random() < 0.3:
        later[rng.randrange(2)] = rng.choice((*ERRORS, ZeroDivisionError("scorer")))
    page: SearchAnswer | Exception = odd_answer(rng, service.whole, ["title", "text"], raw=True)
    if rng.random() < 0.2:
        page = rng.choice(ERRORS)
    request = {"query": query, "size": size, "explain": rng.random() < 0.5}
    answers = []
    for _ in range(2):
        service.engine.tell([first, *later], page)
        answers.append(service.client.post("/search", json=request))
    answer, again = answers
    assert answer.status_code == again.status_code
    if answer.status_code != 200:
        expected: dict[type[Exception], int] = {EngineRejected: 400, EngineOverloaded: 429, EngineError: 502}
        causes = [error for error in (first, page) if isinstance(error, Exception)]
        assert answer.status_code in {expected.get(type(error), 503) for error in causes}
        assert (answer.status_code in (429, 503)) == ("retry-after" in answer.headers)
        return
    value, repeated = answer.json(), again.json()
    shown = [hit["id"] for hit in value["hits"]]
    assert shown == [hit["id"] for hit in repeated["hits"]]
    ranks = [hit["first_stage_rank"] for hit in value["hits"]]
    assert value["fallback"] == bool(value["reason"]) == (not value["reranked"])
    if value["fallback"]:
        assert isinstance(page, SearchAnswer)
        own: list[Any] = [
            (hit.id, hit.index, {name: value for name, value in hit.source.items() if not name.startswith("ssi_")})
            for hit in page.hits
        ]
        assert [(hit["id"], hit["index"], hit["source"]) for hit in value["hits"]] == finite(own)
        assert ranks == list(range(1, len(ranks) + 1))
    else:
        assert isinstance(first, SearchAnswer)
        candidates = [hit.id for hit in first.hits]
        assert len(shown) == min(size, len(candidates))
        assert len(set(ranks)) == len(ranks) and shown == [candidates[rank - 1] for rank in ranks]


def finite(own: list[Any]) -> list[Any]:
    """Return hits as JSON gives them back: NaN is null."""
    values: list[Any] = json.loads(encode({"own": own}))["own"]
    return [tuple(each) for each in values]


def test_a_scorer_that_raises_is_told_by_its_class_alone(service: Service) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError("canary")

    service.engine.tell([])
    good = service.client.post("/search", json={"query": "word3 word11"}).json()
    assert good["reranked"]
    hits = service.served.engine.search("docs", {"query": {"match_all": {}}, "size": 5})
    spoiled = SearchAnswer(tuple(type(hit)(hit.id, hit.index, hit.score, {"ssi_x": Broken()}) for hit in hits.hits), 5)
    service.engine.tell([spoiled, ZeroDivisionError("canary")], hits)
    answer = service.client.post("/search", json={"query": "word3"})
    assert answer.status_code == 200
    assert answer.json()["fallback"] and "canary" not in answer.text
    service.engine.tell([])
