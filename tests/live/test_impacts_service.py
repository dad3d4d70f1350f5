"""`ssi serve --route impacts` before real engines: the engine's own answers, to bodies with one clause more."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from indexer.build import BuildOptions, build_index
from reranker.config import IMPACT_BOOST
from reranker.engines import open_engine
from reranker.engines.impacts import with_impacts
from reranker.engines.protocol import Engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.rerank.impacts import ServedImpacts
from tests.contract.test_impacts import model_with_impacts
from tests.contract.test_indexer import write_file
from tests.live.service_process import ServiceProcess
from tests.served import random_documents


class Served(NamedTuple):
    engine: Engine
    name: str
    model: RankingModel
    port: int


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    folder, index = tmp_path_factory.mktemp("impacts"), f"by-impacts-{uuid.uuid4().hex[:10]}"
    documents = random_documents(120)
    model = model_with_impacts(documents)
    save_model(model, folder / "model")
    try:
        build_index(
            engine, index, write_file(folder / "docs.jsonl", documents), model, BuildOptions(routes=("impacts",))
        )
        options = ["--engine", engine.spec, "--index", index, "--model", str(folder / "model"), "--proxy"]
        with ServiceProcess(*options, "--route", "impacts", "--deadline-ms", "20000") as process:
            yield Served(engine, index, model, process.port)
    finally:
        engine.delete_index(f"{index}-000001")
        engine.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))


def through_the_proxy(served: Served, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the answer to a search, and whether the service says that it is reranked."""
    request = Request(
        f"http://127.0.0.1:{served.port}/{served.name}/_search",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as answer:  # noqa: S310
        return json.load(answer), answer.headers["X-SSI-Reranked"]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"from": 4, "size": 3},
        {"aggs": {"tags": {"terms": {"field": "tag.keyword"}}}},
        {"highlight": {"fields": {"text": {}}}},
        {"_source": ["title"]},
        {"post_filter": {"term": {"tag.keyword": "x"}}},
    ],
)
def test_the_answer_is_the_engines_own(served: Served, parts: dict[str, Any]) -> None:
    body = {"query": {"match": {"text": "word3 word17"}}, **parts}
    answer, reranked = through_the_proxy(served, body)
    clause = ServedImpacts.of_index(served.engine, served.name, served.model).clause("word3 word17", IMPACT_BOOST)
    expected = dict(served.engine.search(served.name, with_impacts(body, clause, "find")).raw)
    assert reranked == "true"
    assert answer["hits"]["total"] == expected["hits"]["total"]
    assert answer["hits"]["max_score"] == expected["hits"]["max_score"]
    assert answer.get("aggregations") == expected.get("aggregations")
    pairs = list(zip(answer["hits"]["hits"], expected["hits"]["hits"], strict=True))
    assert pairs
    for ours, own in pairs:
        assert (ours["_id"], ours["_score"], ours.get("highlight")) == (own["_id"], own["_score"], own.get("highlight"))
        assert not any(name.startswith("ssi_") for name in ours.get("_source", {}))


def test_the_service_explains_a_hit_by_its_impacts(served: Served) -> None:
    asked = json.dumps({"query": "word3 word17", "explain": True}).encode()
    address = f"http://127.0.0.1:{served.port}/search"
    with urlopen(Request(address, asked, {"Content-Type": "application/json"})) as answer:
        page = json.load(answer)
    assert page["reranked"] and page["hits"]
    for hit in page["hits"]:
        *words, others, own = hit["explanation"]
        assert {row["kind"] for row in words} <= {"impact"}
        assert all(row["value"] == pytest.approx(IMPACT_BOOST * row["weight"]) for row in words)
        assert own["kind"] == "engine"
        assert own["value"] + sum(row["value"] for row in words) == pytest.approx(hit["score"], rel=1e-5)
        assert others["value"] == pytest.approx(0.0, abs=1e-5 * hit["score"])


def test_a_search_that_scores_do_not_order_is_the_bodys_own(served: Served) -> None:
    body = {"query": {"match": {"text": "word3"}}, "sort": ["tag.keyword"]}
    answer, reranked = through_the_proxy(served, body)
    assert reranked == "false"
    assert answer["hits"]["total"] == served.engine.search(served.name, body).raw["hits"]["total"]
