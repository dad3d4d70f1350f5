"""A model whose texts are analyzed by the engine: every command and route answers, also many at the same time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reranker.cli.main import main
from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.releases import forget_control
from reranker.text.analyzers import AnalyzerConfig, make_analyzer
from tests.live.service_process import ServiceProcess
from tests.unit.retrain.shop import Shop

N_AT_ONCE = 40
"""Requests at the same time: more than connections to the engine (16)."""


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with closing(open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")) as engine:
        name = uuid.uuid4().hex[:10]
        words = f"words-{name}"
        engine.create_index(words, {"properties": {"text": {"type": "text", "analyzer": "standard"}}})
        analyzer = make_analyzer(
            AnalyzerConfig(kind="engine", engine_field=f"{words}/text"),
            lambda texts: engine.analyze(words, "text", texts),
        )
        shop = Shop(tmp_path_factory.mktemp("shop"), engine, f"shop-{name}")
        shop.base = replace(shop.base, encoder=replace(shop.base.encoder, analyzer=analyzer))
        shop.base_path = shop.models / shop.base.model_id[:12]
        save_model(shop.base, shop.base_path)
        try:
            yield shop.fill()
        finally:
            engine.delete_index(words)
            for index in engine.index_names(shop.index):
                engine.delete_index(index)
                forget_control(engine, [index])


def test_every_route_of_the_service_answers_many_requests_at_once(shop: Shop) -> None:
    options = ["--engine", shop.engine.spec, "--index", shop.index, "--model", str(shop.base_path), "--proxy"]
    body = {"query": {"match": {"text": shop.queries[0]}}}
    ids = list(shop.documents)[:20]
    texts = [str(shop.documents[name]["text"]) for name in ids]
    requests: list[tuple[str, Any]] = [
        ("/search", {"query": shop.queries[0], "explain": True}),
        (f"/{shop.index}/_search", body),
        ("/v2/rerank", {"query": shop.queries[0], "documents": ids, "model": "ssi:ids"}),
        ("/v2/rerank", {"query": shop.queries[0], "documents": texts}),
    ]
    with ServiceProcess(*options, "--deadline-ms", "30000") as process, ThreadPoolExecutor(N_AT_ONCE) as pool:
        for path, request in requests:
            waiting = [pool.submit(process.ask, "POST", path, request, timeout=60.0) for _ in range(N_AT_ONCE)]
            answers = [each.result() for each in waiting]
            assert {status for status, _ in answers} == {200}, (path, answers[0])
            plain = [without_times(answer) for _, answer in answers]
            assert all(answer == plain[0] for answer in plain)
            if path == "/search":
                assert plain[0]["reranked"] and not plain[0]["fallback"], plain[0]["reason"]
            if path == "/v2/rerank":
                assert not plain[0]["meta"]["fallback"]
        status, ready = process.ask("GET", "/ready")
        assert status == 200 and not ready.get("degraded")


def without_times(answer: Any) -> Any:
    """Return an answer without ids and times, which differ from request to request."""
    return {name: value for name, value in answer.items() if name not in ("id", "query_id", "timings_ms", "took")}


def test_an_analyzer_that_does_not_answer_is_a_fallback_within_the_deadline(shop: Shop) -> None:
    engine: Any = shop.engine
    words = str(shop.base.encoder.analyzer.config.engine_field).partition("/")[0]
    options = ["--engine", shop.engine.spec, "--index", shop.index, "--model", str(shop.base_path), "--proxy"]
    with ServiceProcess(*options, "--deadline-ms", "30000") as process:
        engine.request("POST", f"/{words}/_close")
        try:
            status, answer = process.ask("POST", "/search", {"query": shop.queries[1]})
            assert (
                status == 200 and answer["fallback"] and answer["hits"] and all(hit["source"] for hit in answer["hits"])
            )
        finally:
            engine.request("POST", f"/{words}/_open")
            engine.request("GET", f"/_cluster/health/{words}", None, {"wait_for_status": "yellow"})
        assert process.ask("POST", "/search", {"query": shop.queries[1]})[1]["reranked"]


def test_the_commands_answer(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSI_STATE_DIR", str(tmp_path / "state"))
    where = ["--engine", shop.engine.spec, "--index", shop.index]

    def run(*words: str) -> Any:
        result = CliRunner().invoke(main, [*words, *where], catch_exceptions=False)
        assert result.exit_code in (0, 7), (words, result.output)
        return json.loads(result.stdout)

    model = ["--model", str(shop.base_path)]
    page = run("search", shop.queries[0], *model, "--json", "--explain")
    assert page["reranked"] and page["hits"]
    ids = list(shop.documents)
    queries = [f"q{n}\t{query}\n" for n, query in enumerate(shop.queries)]
    (tmp_path / "queries.tsv").write_text("".join(queries), encoding="utf-8")
    judged = [f"q{n}\t{ids[(n // 12) + 6 * k]}\t1\n" for n in range(len(shop.queries)) for k in range(3)]
    (tmp_path / "qrels.tsv").write_text("".join(judged), encoding="utf-8")
    judgments = ["--qrels", str(tmp_path / "qrels.tsv"), "--query-file", str(tmp_path / "queries.tsv")]
    fitted = run("calibrate", *model, *judgments, "--dry-run", "--json")
    assert fitted["n_queries"] == len(shop.queries)
    log = shop.log(tmp_path / "log", impressions=600)
    options = ["--models", str(shop.models)]
    result = run("retrain", "--clicks", str(log.folder), *options, "--dry-run", "--json")
    assert result["candidate"]
