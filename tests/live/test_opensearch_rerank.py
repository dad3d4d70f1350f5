"""OpenSearch's own reranking by the service: what `ssi scripts` installs, searches, faults, restarts and removal."""

from __future__ import annotations

import http.client
import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
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


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


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


def options(served: Served, port: int, *more: str) -> list[str]:
    return ["--engine", served.engine.spec, "--service", f"http://127.0.0.1:{port}", "--json", *more]


@contextmanager
def installed(served: Served, port: int, *more: str) -> Iterator[list[dict[str, Any]]]:
    """Install the pipeline ``ssi`` and give the result of each step; remove it at the end."""
    result = run("scripts", "install", *options(served, port, *more))
    try:
        yield json.loads(result.stdout)
    finally:
        removed = run("scripts", "remove", *options(served, port, *more))
        assert {one["state"] for one in json.loads(removed.stdout)} == {"done"}, removed.stdout


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
    with installed(served, service.port, *(["--id-field", "sku"] if ids else [])) as steps:
        assert {one["state"] for one in steps} == {"done"}, steps
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


def test_the_printed_search_returns_the_field_that_is_reranked(served: Served, service: ServiceProcess) -> None:
    shown = run("scripts", "show", *options(served, service.port, "--field", "text"))
    body = json.loads(shown.stdout)["searches"]["reranked by the service"]
    body = json.loads(json.dumps(body).replace("{{query}}", QUERY))
    with installed(served, service.port, "--field", "text"):
        found, _ = search(served, {**body, "size": 20})
        first_stage, _ = search(served, body_of(pipeline=None))
        without, _ = search(served, body_of(_source=["title"]))
    assert_same(found, by_service(served, service, QUERY, first_stage, ids=False))
    # Without the field, OpenSearch sends empty texts, which all get the same score.
    assert len({score for _, score in without}) == 1


def test_installing_again_leaves_one_model(served: Served, service: ServiceProcess) -> None:
    url = served.engine.spec.partition(":")[2]
    everything = {"query": {"term": {"name.keyword": "ssi"}}}

    def count(what: str) -> int:
        return int(ask(url, "POST", f"/_plugins/_ml/{what}/_search", everything)[1]["hits"]["total"]["value"])

    with installed(served, service.port):
        again = run("scripts", "install", *options(served, service.port))
        assert {one["state"] for one in json.loads(again.stdout)} == {"done"}, again.stdout
        assert (count("models"), count("connectors")) == (1, 1)
        assert len({score for _, score in search(served, body_of())[0]}) > 1
    assert (count("models"), count("connectors")) == (0, 0)
    removed = run("scripts", "remove", *options(served, service.port))
    assert {one["state"] for one in json.loads(removed.stdout)} == {"absent"}


def test_a_service_that_is_down_or_silent_leaves_the_first_stage_order(served: Served) -> None:
    first_stage, _ = search(served, body_of(pipeline=None))
    with socket.socket() as silent:
        # Accepts connections, by its backlog, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        port = silent.getsockname()[1]
        with installed(served, port, "--timeout", "1") as steps:
            assert [one["what"] for one in steps if one["state"] == "refused"] == ["test request to the service"]
            found, seconds = search(served, body_of())
            assert_same(found, first_stage)
            assert 0.9 < seconds < ENGINE_TIMEOUT_S
    with socket.socket() as down:
        # Bound and not listening: connections are refused, and no other process can take the port meanwhile.
        down.bind(("127.0.0.1", 0))
        with installed(served, down.getsockname()[1], "--timeout", "1") as steps:
            test_request = steps[-1]
            assert test_request["state"] == "refused" and "Connection refused" in test_request["detail"]
            assert "cluster:admin/opensearch/ml/predict" in test_request["note"]
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
