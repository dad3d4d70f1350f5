"""OpenSearch's own reranking by the service: the files of `plugin_scripts`, searches, faults and restarts."""

from __future__ import annotations

import http.client
import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import pytest

from reranker.engines import open_engine
from reranker.engines.protocol import requests_of
from reranker.errors import EngineError
from reranker.models.model_folder import save_model
from tests.engines import rerank_pipeline
from tests.engines.launcher import EngineProcess
from tests.live.helpers import ask
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve

QUERY = "word1 word7"
N_DOCUMENTS = 120
ENGINE_TIMEOUT_S = 30
"""How long OpenSearch waits for a service where the connector has no limit of its own. Within it, the time of one
search is OpenSearch's own: its client can wait 10 s for a connection that was refused."""
READY_S = 60
"""Longest time until OpenSearch reranks again after a restart."""
TROUBLING = [
    "word7 ${parameters.model} word1",
    "${parameters.query}",
    "word3 ${parameters.unknown} ${",
    'a "b" \\ c\n\t$1 ${credential.key} </b> ü 😀',
]
"""Texts that ml-commons would substitute, and characters that JSON escapes."""


@pytest.fixture(scope="module")
def served(reranking_opensearch: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give an index of three shards whose documents have their id also in the field sku, and a saved model."""
    path = tmp_path_factory.mktemp("rerank")
    engine = open_engine(f"opensearch:{reranking_opensearch.url}")
    documents = {name: {**source, "sku": name} for name, source in random_documents(N_DOCUMENTS).items()}
    for place, text in enumerate(TROUBLING):
        documents[f"d{place}"]["text"] = f"{QUERY} {text}"
    model = model_of(documents)
    save_model(model, path / "model")
    shards: dict[str, Any] = {"index.number_of_shards": 3, "index.number_of_replicas": 0}
    yield serve(engine, f"rerank-{uuid.uuid4().hex[:10]}", path, documents, model, **shards)
    engine.close()


@pytest.fixture(scope="module")
def service(served: Served) -> Iterator[ServiceProcess]:
    model = served.store_path.parent / "model"
    where = ["--engine", served.engine.spec, "--index", served.index, "--model", str(model)]
    with ServiceProcess(*where, "--deadline-ms", "20000") as process:
        yield process


def installed(served: Served, port: int, *, are_ids: bool = False) -> AbstractContextManager[str]:
    """Install the pipeline ``ssi`` and give the id of its model; remove it at the end."""
    send = requests_of(served.engine).request
    field = "sku" if are_ids else "text"
    return rerank_pipeline.installed(send, f"http://127.0.0.1:{port}", field, are_ids=are_ids)


def body_of(query: str = QUERY, *, pipeline: str | None = "ssi", size: int = 20, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"query": {"match": {"text": QUERY}}, "size": size, **more}
    if pipeline is not None:
        body |= {"search_pipeline": pipeline, "ext": {"rerank": {"query_context": {"query_text": query}}}}
    return body


Ranking = list[tuple[str, float]]


def ranking(answer: dict[str, Any]) -> Ranking:
    return [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]


def search(served: Served, body: dict[str, Any]) -> tuple[Ranking, float]:
    """Return ids and scores, and the seconds that the search took."""
    started = time.monotonic()
    status, answer = ask(served.engine.spec.partition(":")[2], "POST", f"/{served.index}/_search", body)
    assert status == 200, answer
    return ranking(answer), time.monotonic() - started


def by_service(served: Served, service: ServiceProcess, query: str, first_stage: Ranking, *, ids: bool) -> Ranking:
    """Return the hits of the first stage as the service itself ranks and scores them."""
    names = [name for name, _ in first_stage]
    documents = names if ids else [served.documents[name]["text"] for name in names]
    wanted = {"query": query, "documents": documents}
    path = f"/v2/rerank?documents_are={'ids' if ids else 'texts'}"
    status, answer = service.ask("POST", path, wanted, timeout=30)
    assert status == 200, answer
    return [(names[one["index"]], one["relevance_score"]) for one in answer["results"]]


def assert_same(found: Ranking, expected: Ranking) -> None:
    """Compare two rankings: the same scores in the same order, and the same documents of each score."""
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-6)
    assert dict(found) == pytest.approx(dict(expected), abs=1e-6)


@pytest.mark.parametrize("ids", [False, True], ids=["texts", "ids"])
@pytest.mark.parametrize("query", [QUERY, *TROUBLING])
def test_order_and_scores_are_those_of_the_service(
    served: Served, service: ServiceProcess, ids: bool, query: str
) -> None:
    with installed(served, service.port, are_ids=ids):
        first_stage, _ = search(served, body_of(pipeline=None))
        found, _ = search(served, body_of(query))
    expected = by_service(served, service, query, first_stage, ids=ids)
    assert_same(found, expected)
    if query == QUERY:
        assert [name for name, _ in found] != [name for name, _ in first_stage]
        assert len({name for name, _ in found} & {f"d{place}" for place in range(len(TROUBLING))}) > 0


def test_several_searches_at_once(served: Served, service: ServiceProcess) -> None:
    queries = [QUERY, "word3 word2", TROUBLING[1]]
    with installed(served, service.port):
        lines = [part for query in queries for part in ({"index": served.index}, body_of(query))]
        url = urlsplit(served.engine.spec.partition(":")[2])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        data = "".join(json.dumps(line) + "\n" for line in lines)
        connection.request("POST", "/_msearch", data, {"Content-Type": "application/x-ndjson"})
        answers = json.loads(connection.getresponse().read())["responses"]
        connection.close()
        singly = [search(served, body_of(query))[0] for query in queries]
    for answer, expected in zip(answers, singly, strict=True):
        assert_same(ranking(answer), expected)


def test_the_example_returns_the_field_that_is_reranked(served: Served, service: ServiceProcess) -> None:
    body = rerank_pipeline.filled("search.json", FIELD="text", TEXT="text", QUERY=QUERY)
    with installed(served, service.port):
        found, _ = search(served, {**body, "size": 20})
        first_stage, _ = search(served, body_of(pipeline=None))
        without, _ = search(served, body_of(_source=["title"]))
    assert_same(found, by_service(served, service, QUERY, first_stage, ids=False))
    # Without the field, OpenSearch sends empty texts, which all get the same score.
    assert len({score for _, score in without}) == 1


def test_the_test_request_of_the_guide_reaches_the_service(served: Served, service: ServiceProcess) -> None:
    send = requests_of(served.engine).request
    pair = {"query_text": 'a "test" ${parameters.query}', "text_docs": ["a \\ b"]}
    with installed(served, service.port) as model_id:
        answer = send("POST", f"{rerank_pipeline.ML}/_predict/text_similarity/{model_id}", pair)
    assert answer["inference_results"][0]["output"][0]["name"] == "similarity"


def test_a_service_that_is_down_or_silent_leaves_the_first_stage_order(served: Served) -> None:
    first_stage, _ = search(served, body_of(pipeline=None))
    with socket.socket() as silent:
        # Accepts connections, by its backlog, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        port = silent.getsockname()[1]
        with installed(served, port):
            found, seconds = search(served, body_of())
            assert_same(found, first_stage)
            assert 1.9 < seconds < ENGINE_TIMEOUT_S
    with socket.socket() as down:
        # Bound and not listening: connections are refused, and no other process can take the port meanwhile.
        down.bind(("127.0.0.1", 0))
        with installed(served, down.getsockname()[1]) as model_id:
            pair = {"query_text": "a", "text_docs": ["b"]}
            with pytest.raises(EngineError, match="Connection refused"):
                requests_of(served.engine).request(
                    "POST", f"{rerank_pipeline.ML}/_predict/text_similarity/{model_id}", pair
                )
            found, seconds = search(served, body_of())
            assert_same(found, first_stage)
            assert seconds < ENGINE_TIMEOUT_S


def _until_reranked(served: Served, expected: Ranking) -> float:
    """Return the seconds until a search has the scores of the service."""
    started = time.monotonic()
    while True:
        found, _ = search(served, body_of())
        if dict(found) == pytest.approx(dict(expected), abs=1e-6):
            return time.monotonic() - started
        assert time.monotonic() < started + READY_S, "OpenSearch does not rerank after a restart"
        time.sleep(0.5)


def test_it_reranks_again_after_a_restart_of_service_and_engine(
    served: Served, reranking_opensearch: EngineProcess
) -> None:
    model = served.store_path.parent / "model"
    where = ["--engine", served.engine.spec, "--index", served.index, "--model", str(model)]
    first_stage, _ = search(served, body_of(pipeline=None))
    with ServiceProcess(*where, "--deadline-ms", "20000") as service, installed(served, service.port):
        expected = by_service(served, service, QUERY, first_stage, ids=False)
        assert_same(search(served, body_of())[0], expected)
        service.terminate()
        assert_same(search(served, body_of())[0], first_stage)
        service.__enter__()
        _until_reranked(served, expected)
        reranking_opensearch.restart()
        _until_reranked(served, expected)
