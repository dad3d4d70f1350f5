"""The rerank routes: the shapes of each family, texts and ids, errors as its clients read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from reranker.errors import ArtifactError, EngineUnavailable
from reranker.rerank import RerankSettings
from reranker.service.app import all_parts
from reranker.service.auth import new_key
from reranker.service.rerank_api import ERROR_SHAPES, Item, relevance, score_items
from reranker.service.settings import Limits
from reranker.service.state import ServiceState
from tests.served import Served
from tests.services import client_of, service_over, small_index

QUERY = "word1 word7 word12 word3"
PATIENT = RerankSettings(deadline_ms=30_000)
"""What is tested is not how fast a busy machine is."""
TEXTS = ["word1 word2", "word7 word12 word3", "zzz", "word30", "word1"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return small_index(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def state(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceState]:
    state = service_over(served, tmp_path_factory.mktemp("model"), route="beside", rerank=PATIENT)
    yield state
    state.work.close()


@pytest.fixture(scope="module")
def client(state: ServiceState) -> TestClient:
    return client_of(state)


def expected_order(served: Served, texts: list[str]) -> tuple[list[int], list[float]]:
    found = score_items(served.model, QUERY, [Item(source={"text": text}) for text in texts])
    return found.order.tolist(), relevance(found.scores)[found.order].tolist()


@pytest.mark.parametrize("version", ["1", "2"])
def test_cohere(client: TestClient, served: Served, version: str) -> None:
    body = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS, "max_tokens_per_doc": 4096, "priority": 0}
    answer = client.post(f"/v{version}/rerank", json=body)
    assert answer.status_code == 200
    values = answer.json()
    order, scores = expected_order(served, TEXTS)
    assert [one["index"] for one in values["results"]] == order
    assert [one["relevance_score"] for one in values["results"]] == pytest.approx(scores)
    assert all(set(one) == {"index", "relevance_score"} for one in values["results"])
    assert values["meta"]["api_version"] == {"version": version, "is_deprecated": False, "is_experimental": False}
    assert values["meta"]["model_id"] == answer.headers["x-ssi-model"] == served.model.model_id
    assert (values["meta"]["fallback"], answer.headers["x-ssi-fallback"]) == (False, "0")
    assert re.fullmatch(r"[0-9a-f-]{36}", values["id"])


def test_jina(client: TestClient, served: Served) -> None:
    body = {"model": "jina-reranker-v2-base-multilingual", "query": QUERY, "documents": TEXTS, "top_n": 2}
    values = client.post("/v1/rerank", json=body).json()
    order, scores = expected_order(served, TEXTS)
    assert values["results"] == [
        {"index": place, "relevance_score": pytest.approx(score), "document": {"text": TEXTS[place]}}
        for place, score in zip(order[:2], scores[:2], strict=True)
    ]
    assert values["model"] == body["model"] and values["usage"] == {"total_tokens": 0}
    assert client.post("/v1/rerank", json={**body, "return_documents": False}).json()["results"][0].keys() == {
        "index",
        "relevance_score",
    }


def test_text_embeddings_inference(client: TestClient, served: Served) -> None:
    body = {"query": QUERY, "texts": TEXTS, "truncate": True, "truncation_direction": "right", "raw_scores": False}
    values = client.post("/rerank", json=body).json()
    order, scores = expected_order(served, TEXTS)
    expected = [{"index": place, "score": pytest.approx(score)} for place, score in zip(order, scores, strict=True)]
    assert values == expected
    raw = client.post("/rerank", json={**body, "raw_scores": True, "return_text": True, "model": "x", "top_n": 3})
    assert [set(one) for one in raw.json()] == [{"index", "score", "text"}] * 3
    for one, score in zip(raw.json(), scores, strict=False):
        assert one["text"] == TEXTS[one["index"]]
        assert 1 / (1 + np.exp(-one["score"])) == pytest.approx(score)


def test_whoever_posts_to_the_root_shows_a_key_and_gets_what_rerank_answers(served: Served, tmp_path: Path) -> None:
    (key, line), (events_key, second) = new_key("shop", "search"), new_key("site", "events")
    (tmp_path / "keys").write_text(f"{line}\n{second}\n")
    state = service_over(served, tmp_path, route="beside", rerank=PATIENT, api_keys=tmp_path / "keys")
    client = client_of(state, *all_parts())
    body = {"query": QUERY, "texts": TEXTS, "return_text": True, "top_n": 3}
    for shown, status in ((None, 401), ("wrong", 401), (events_key, 403), (key, 200)):
        headers = {} if shown is None else {"Authorization": f"Bearer {shown}"}
        answers = [client.post(f"/{name}", json=body, headers=headers) for name in ("", "rerank")]
        assert [answer.status_code for answer in answers] == [status, status]
        assert answers[0].json() == answers[1].json()
    assert [one["index"] for one in answers[0].json()] == expected_order(served, TEXTS)[0][:3]
    # The page is read without a key.
    assert "<html" in client.get("/", headers={"accept": "text/html"}).text
    assert client.head("/").status_code == 405
    state.work.close()


def test_some_builds_of_elasticsearch_call_the_texts_documents(client: TestClient) -> None:
    """Its `hugging_face` service, whose answer's items may hold no other field than these."""
    sent = {"query": QUERY, "return_text": False, "top_n": 5}
    values = client.post("/rerank", json={**sent, "documents": TEXTS}).json()
    assert values == client.post("/rerank", json={**sent, "texts": TEXTS}).json()
    assert all(set(one) == {"index", "score"} for one in values)


@pytest.mark.parametrize(
    ("url", "change"),
    [
        ("/v2/rerank", {"documents_are": "ids"}),
        ("/v2/rerank?documents_are=ids", {}),
        ("/v2/rerank", {"model": "ssi:ids"}),
        ("/v2/rerank", {"documents": [{"id": f"d{place}"} for place in range(30)]}),
        ("/v2/rerank?documents_are=ids", {"documents_are": "texts"}),
        ("/v1/rerank", {"model": "ssi:ids"}),
        ("/rerank?documents_are=ids", {"texts": [f"d{place}" for place in range(30)]}),
    ],
)
def test_ids_score_as_the_documents_do(client: TestClient, served: Served, url: str, change: dict[str, Any]) -> None:
    ids = [f"d{place}" for place in range(30)]
    found = score_items(served.model, QUERY, [Item(source=served.documents[name]) for name in ids])
    values = client.post(url, json={"query": QUERY, "documents": ids, **change}).json()
    results = values if isinstance(values, list) else values["results"]
    assert [one["index"] for one in results] == found.order.tolist()
    scores = [one.get("relevance_score", one.get("score")) for one in results]
    assert scores == pytest.approx(relevance(found.scores)[found.order].tolist(), abs=1e-6)


def test_texts_may_be_asked_for_though_the_model_name_says_ids(client: TestClient) -> None:
    body = {"query": QUERY, "documents": ["word1", "d1"], "model": "ssi:ids", "documents_are": "texts"}
    assert client.post("/v2/rerank", json=body).json()["meta"]["fallback"] is False


def test_documents_come_back_as_they_were_given(client: TestClient) -> None:
    documents = ["word1", {"title": "word7", "text": "x", "price": 3}, {"id": "d3"}]
    body = {"query": QUERY, "documents": documents, "return_documents": True}
    results = client.post("/v1/rerank", json=body).json()["results"]
    given = {0: {"text": "word1"}, 1: documents[1], 2: documents[2]}
    assert {one["index"]: one["document"] for one in results} == given


def test_rank_fields_choose_what_of_an_object_is_read(client: TestClient) -> None:
    documents = [{"title": "word1 word7 word12", "text": "zzz"}, {"title": "zzz", "text": "word1 word7 word12"}]
    best = {}
    for field in ("title", "text"):
        body = {"query": "word1 word7 word12", "documents": documents, "rank_fields": [field]}
        best[field] = [
            one["relevance_score"]
            for one in sorted(client.post("/v1/rerank", json=body).json()["results"], key=lambda one: one["index"])
        ]
    assert best["title"][1] == 0.5 and best["text"][0] == 0.5
    assert best["title"][0] != 0.5 and best["text"][1] != 0.5


def test_no_score_is_written_as_an_integer_or_with_more_than_18_characters(client: TestClient) -> None:
    for path, name in (("/v2/rerank", "documents"), ("/rerank", "texts")):
        for query in (QUERY, ""):
            text = client.post(path, json={"query": query, name: [*TEXTS, "", *TEXTS * 3]}).text
            written = re.findall(r'"(?:relevance_)?score":([^,}]+)', text)
            assert len(written) == 21
            assert all(re.fullmatch(r"[01]\.\d+(e-\d+)?", one) and len(one) <= 18 for one in written), written


def test_a_thousand_ids_in_one_request(client: TestClient) -> None:
    ids = [f"d{place % 80}" for place in range(1000)]
    values = client.post("/v2/rerank", json={"query": QUERY, "documents": ids, "model": "ssi:ids"}).json()
    assert sorted(one["index"] for one in values["results"]) == list(range(1000))
    # Equal documents stand in the order given.
    assert [one["index"] % 80 for one in values["results"]][:2] == [values["results"][0]["index"] % 80] * 2
    firsts = [one["index"] for one in values["results"] if one["index"] % 80 == 0]
    assert firsts == sorted(firsts)


BAD: list[tuple[dict[str, Any], int]] = [
    ({"query": QUERY}, 422),
    ({"query": 3, "documents": ["x"], "texts": ["x"]}, 422),
    ({"query": QUERY, "documents": [], "texts": []}, 422),
    ({"query": QUERY, "documents": "x", "texts": "x"}, 422),
    ({"query": QUERY, "documents": [3], "texts": [3]}, 422),
    ({"query": QUERY, "documents": ["x"], "texts": ["x"], "top_n": 0}, 422),
    ({"query": QUERY, "documents": ["x"], "texts": ["x"], "documents_are": "pictures"}, 422),
    ({"query": "x" * 10_001, "documents": ["x"], "texts": ["x"]}, 422),
]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/"])
@pytest.mark.parametrize(("body", "status"), BAD)
def test_what_cannot_be_used_is_refused_in_the_family_s_words(
    client: TestClient, path: str, body: dict[str, Any], status: int
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status
    assert_error(path, answer.json())
    assert QUERY not in answer.text


def assert_error(path: str, values: dict[str, Any]) -> None:
    if path == "/v1/rerank":
        assert set(values) == {"message", "detail"} and values["message"] == values["detail"] != ""
    elif path == "/v2/rerank":
        assert set(values) == {"message"} and values["message"]
    else:
        assert set(values) == {"error", "error_type"} and values["error"]


@pytest.mark.parametrize("path", sorted(ERROR_SHAPES))
@pytest.mark.parametrize(
    ("status", "kind", "name"),
    [
        (422, "invalid", "Validation"),
        (413, "too_large", "Validation"),
        (429, "overloaded", "Overloaded"),
        (503, "overloaded", "Overloaded"),
        (503, "unavailable", "Unhealthy"),
        (500, "internal", "Backend"),
    ],
)
def test_error_shapes(path: str, status: int, kind: str, name: str) -> None:
    values = dict(ERROR_SHAPES[path](status, kind, "why"))
    assert_error(path, values)
    assert values.get("error_type", name) == name


def test_errors_of_the_guard_have_the_family_s_shape(client: TestClient) -> None:
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/"):
        answer = client.post(path, content=b"{", headers={"content-encoding": "gzip"})
        assert answer.status_code == 415
        assert_error(path, answer.json())


def test_more_documents_than_allowed(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, route="beside", rerank=PATIENT, limits=Limits(max_documents=3))
    client = client_of(state)
    assert client.post("/v2/rerank", json={"query": QUERY, "documents": ["x"] * 3}).status_code == 200
    answer = client.post("/v2/rerank", json={"query": QUERY, "documents": ["x"] * 4})
    assert answer.status_code == 413 and "at most 3 are allowed" in answer.json()["message"]
    state.work.close()


def test_a_fallback_says_so_everywhere_it_can(client: TestClient) -> None:
    body = {"query": "", "documents": TEXTS, "texts": TEXTS}
    answer = client.post("/v2/rerank", json=body)
    values = answer.json()
    assert [one["index"] for one in values["results"]] == [0, 1, 2, 3, 4]
    assert values["meta"]["fallback"] and values["meta"]["warnings"][0].startswith("the query has no word")
    for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/"):
        assert client.post(path, json=body).headers["x-ssi-fallback"] == "1"
    assert 'ssi_fallbacks_total{cause="empty_query"}' in client.get("/metrics").text


@pytest.mark.parametrize("route", ["beside", "fetch"])
def test_with_the_engine_down_texts_are_ranked_and_ids_keep_their_order(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    state = service_over(served, tmp_path, route=route, rerank=PATIENT)
    client = client_of(state)

    def down(*_: object, **__: object) -> None:
        raise EngineUnavailable("down", engine="memory")

    monkeypatch.setattr(served.engine, "search", down)
    texts = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    assert texts["meta"]["fallback"] is False
    ids = client.post("/v2/rerank", json={"query": QUERY, "documents": ["d1", "d2", "d3"], "model": "ssi:ids"}).json()
    assert ids["meta"]["fallback"] is (route == "fetch")
    if route == "fetch":
        assert [one["index"] for one in ids["results"]] == [0, 1, 2]
    state.work.close()


def test_without_a_model_the_order_given_comes_back(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, route="fetch", rerank=PATIENT)
    state.versions.current = state.versions._without_model(ArtifactError("none"))
    client = client_of(state)
    answer = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS})
    assert answer.json()["meta"]["warnings"] == ["no model is loaded"]
    assert answer.headers["x-ssi-model"] == ""
    assert client.post("/embed", json={"inputs": "x"}).status_code == 503
    assert client.get("/info").json()["error_type"] == "Unhealthy"
    state.work.close()


def test_embed_gives_the_vectors_of_both_sides(client: TestClient, served: Served) -> None:
    model = served.model
    documents = ["word1 word2", "word7", "zzz"]
    sent = {"inputs": documents, "normalize": False}
    found = np.array(client.post("/embed", json=sent).json())
    assert found == pytest.approx(model.encoder.encode([{"text": text} for text in documents]).vectors)
    queries = np.array(client.post("/embed", json={**sent, "prompt_name": "query"}).json())
    assert queries == pytest.approx(model.encode_queries(documents).vectors)
    unit = np.array(client.post("/embed", json={"inputs": documents}).json())
    assert np.linalg.norm(unit, axis=1) == pytest.approx([1.0, 1.0, 0.0])
    assert np.array(client.post("/embed", json={"inputs": "word7"}).json()) == pytest.approx(unit[1:2])


def test_info(client: TestClient, served: Served) -> None:
    values = client.get("/info").json()
    assert values["model_sha"] == served.model.model_id and "reranker" in values["model_type"]
    assert values["n_dims"] == served.model.encoder.n_dims


def test_the_openapi_description_names_every_route_and_its_errors(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    models = {"/v1/rerank": "JinaError", "/v2/rerank": "CohereError", "/rerank": "TextsError", "/": "TextsError"}
    for path, model in models.items():
        responses = paths[path]["post"]["responses"]
        assert {"200", "413", "422", "429", "503"} <= set(responses)
        for status in ("413", "422", "503"):
            assert responses[status]["content"]["application/json"]["schema"]["$ref"].endswith(f"/{model}")


def test_unknown_fields_and_lone_surrogates(client: TestClient) -> None:
    body = json.dumps({"query": "word1", "documents": ["a\ud800b", "word1"], "whatever": {"x": [1]}})
    answer = client.post("/v2/rerank", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400)
    assert client.post("/v2/rerank", json={"query": "word1", "documents": ["x"], "whatever": 1}).status_code == 200


@pytest.mark.parametrize("side", ["query", "document"])
def test_embed_reads_as_much_of_a_text_as_info_says_in_one_batch_or_many(
    client: TestClient, served: Served, side: str
) -> None:
    most = served.model.encoder.view.max_chars
    whole = "word7 " * (most // 6)
    texts = [whole, whole + "word3 " * most, *["word1 word2"] * 250]
    found = client.post("/embed", json={"inputs": texts, "prompt_name": side}).json()
    assert len(found) == 252 and found[0] == pytest.approx(found[1], abs=1e-5)
    one = client.post("/embed", json={"inputs": "word1 word2", "prompt_name": side}).json()
    assert np.array(found[2:]) == pytest.approx(np.repeat(one, 250, axis=0))
