"""Documents by id on real engines: a thousand in a request, the same scores whichever way the vectors come."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from reranker.engines import open_engine
from reranker.rerank import RerankSettings
from reranker.service.rerank_api import Item, relevance, score_items
from tests.served import Served, model_of, random_documents, reading_vectors, serve, with_vectors
from tests.services import client_of, service_over

QUERY = "word1 word7 word12 word3"
N = 1000
PATIENT = RerankSettings(deadline_ms=30_000)
"""What is tested is not how fast a busy machine is."""


@pytest.fixture(
    scope="module",
    params=itertools.product(["elasticsearch", "opensearch"], [False, True]),
    ids=lambda case: case[0] + ", given vectors" * case[1],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    kind, given = request.param
    engine = open_engine(f"{kind}:{request.getfixturevalue(f'{kind}_url')}")
    index = f"by-id-{uuid.uuid4().hex[:10]}"
    documents = random_documents(N)
    model = model_of(documents)
    if given:
        documents, model = with_vectors(documents), reading_vectors(model)
    try:
        yield serve(engine, index, tmp_path_factory.mktemp("store"), documents, model)
    finally:
        engine.delete_index(index)
        engine.close()


def ask(client: TestClient, ids: list[str]) -> dict[str, Any]:
    """Return the answer to a request by id."""
    body = {"query": QUERY, "documents": ids, "model": "ssi:ids"}
    answer = client.post("/v2/rerank", json=body)
    assert answer.status_code == 200
    values: dict[str, Any] = answer.json()
    return values


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_a_thousand_documents_by_id(served: Served, tmp_path: Path, route: str) -> None:
    state = service_over(served, tmp_path, route=route, rerank=PATIENT)
    ids = list(served.documents)
    found = score_items(served.model, QUERY, [Item(source=served.documents[name]) for name in ids])
    values = ask(client_of(state), ids)
    assert values["meta"]["fallback"] is False and values["meta"]["unscored"] == 0
    expected = relevance(found.scores)
    assert len(values["results"]) == N
    for place, one in enumerate(values["results"]):
        assert one["relevance_score"] == pytest.approx(expected[one["index"]], abs=1e-5)
        assert expected[one["index"]] == pytest.approx(expected[found.order[place]], abs=2e-5)
    state.work.close()


@pytest.mark.parametrize("route", ["fetch", "beside"])
def test_a_document_written_since_is_encoded_and_an_unknown_one_comes_last(
    served: Served, tmp_path: Path, route: str
) -> None:
    name = f"new-{route}"
    source = {"title": "word1", "text": "word7 word12", "embedding": [2.0, -1.0, 0.5, 3.0, 0.0]}
    served.put({name: source}, vectors=False)
    state = service_over(served, tmp_path, route=route, rerank=PATIENT)
    values = ask(client_of(state), ["d1", name, "nowhere", "d2", "d3", "d4"])
    assert values["meta"]["unscored"] == 1 and not values["meta"]["fallback"]
    assert values["results"][-1] == {"index": 2, "relevance_score": 0.0}
    scores = {one["index"]: one["relevance_score"] for one in values["results"]}
    direct = score_items(served.model, QUERY, [Item(source=source)])
    assert scores[1] == pytest.approx(float(relevance(direct.scores)[0]), abs=1e-6)
    state.work.close()
