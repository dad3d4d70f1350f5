"""`ssi scripts` on real engines: what is installed scores as `ssi search` does, and is gone after removal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.engines.vectors import unmapped
from reranker.models.model_folder import save_model
from reranker.releases import Release, update_control
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from tests.live.helpers import ask
from tests.served import Served, model_of, random_documents, serve

BODY = {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}}}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.fixture
def served(opensearch_url: str, tmp_path: Path) -> Iterator[Served]:
    engine = open_engine(f"opensearch:{opensearch_url}")
    documents = random_documents(100)
    index = f"scripts-{uuid.uuid4().hex[:10]}"
    model = model_of(documents, seed=uuid.uuid4().int % 1000)
    save_model(model, tmp_path / "model")
    try:
        shards: dict[str, Any] = {"index.number_of_shards": 3, "index.number_of_replicas": 0}
        yield serve(engine, index, tmp_path, documents, model, ("fetch", "inside"), **shards)
    finally:
        engine.delete_index(index)
        engine.close()


def test_opensearch_reranks_by_the_stored_script(served: Served, opensearch_url: str, tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    common = ["--engine", served.engine.spec, "--model", str(tmp_path / "model"), "--json"]
    installed = run("scripts", "install", *common)
    assert installed.exit_code == 0, installed.stderr
    assert {one["state"] for one in json.loads(installed.stdout)} == {"done"}
    query = "word3 word11"
    version, key = served.model.model_id, Calibration.key(body_hash(BODY), 20)
    update_control(
        served.engine,
        served.index,
        lambda record: record.with_release(Release(version, served.model.encoder_id, {key: {"alpha": 0.7}})),
    )
    assert run("scripts", "show", *common, "--query", query).exit_code == 2
    shown = run(
        "scripts",
        "show",
        *common,
        "--index",
        served.index,
        "--query",
        query,
        "--body",
        str(tmp_path / "body.json"),
        "--window",
        "20",
    )
    body: dict[str, Any] = json.loads(shown.stdout)["searches"]["reranked by the stored script"]
    answer = served.engine.search(served.index, {**body, "size": 20, "_source": False})
    settings = RerankSettings(window=20, alpha=0.7, deadline_ms=None)
    page = Reranker(served.engine, served.index, served.model, settings=settings).search(query, BODY, size=20)
    assert [hit.id for hit in answer.hits] == [hit.id for hit in page.hits]
    scores = unmapped(np.array([hit.score for hit in answer.hits], dtype=np.float64))
    assert scores.tolist() == pytest.approx([hit.score for hit in page.hits], abs=1e-4)
    removed = run("scripts", "remove", *common)
    assert {one["state"] for one in json.loads(removed.stdout)} == {"done"}
    name = f"ssi_{served.model.encoder_id[:12]}_blend"
    assert ask(opensearch_url, "GET", f"/_scripts/{name}")[0] == 404
    again = run("scripts", "remove", *common)
    assert {one["state"] for one in json.loads(again.stdout)} == {"absent"}


def test_an_engine_that_can_take_nothing_says_why(elasticsearch_url: str, tmp_path: Path) -> None:
    model = model_of(random_documents(20))
    save_model(model, tmp_path / "model")
    common = ["--engine", f"elasticsearch:{elasticsearch_url}", "--model", str(tmp_path / "model")]
    result = run("scripts", "install", *common, "--service", "http://ssi:8080", "--json")
    told = json.loads(result.stdout)
    capable = open_engine(f"elasticsearch:{elasticsearch_url}").capabilities()
    if capable.painless:
        pytest.skip("this Elasticsearch runs scripts")
    assert result.exit_code == 7
    assert {one["state"] for one in told} == {"not possible"}
    assert all(one["note"] == "written from the documentation, never run on this engine version" for one in told)
    shown = run("scripts", "show", *common, "--service", "http://ssi:8080", "--json")
    assert json.loads(shown.stdout)["licence"] == "basic"


def test_missing_fields_are_refused_with_the_command_that_writes_them(
    elasticsearch_url: str, opensearch_url: str, tmp_path: Path
) -> None:
    documents = random_documents(30)
    model = model_of(documents)
    save_model(model, tmp_path / "model")
    for spec in (f"elasticsearch:{elasticsearch_url}", f"opensearch:{opensearch_url}"):
        engine = open_engine(spec)
        index = f"scripts-{uuid.uuid4().hex[:10]}"
        serve(engine, index, tmp_path, documents, model, ("fetch",))
        common = ["--engine", spec, "--index", index, "--model", str(tmp_path / "model")]
        try:
            refused = run("search", "word1", *common, "--route", "inside")
            assert refused.exit_code == 5
            assert f"ssi revectorize --engine {spec} --index {index} --model DIR --routes inside" in refused.stderr
            refused = run("search", "word1", *common, "--retrieve", "impacts")
            assert refused.exit_code == 5
            assert "--routes impacts" in refused.stderr
            written = run("revectorize", *common, "--routes", "inside", "--rejects", str(tmp_path / "rejects"))
            assert written.exit_code == 0, written.stderr
            found = run("search", "word1", *common, "--route", "inside", "--json")
            assert found.exit_code == 0, found.stderr
            assert json.loads(found.stdout)["reranked"]
        finally:
            engine.delete_index(index)
            engine.close()
