"""Retraining over real engines: killed anywhere, two at once, without touching a document, from the engine's own log.

``SSI_KILLS`` says how often the process is killed (6 unless it is set).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from indexer.encoding import present_routes
from indexer.renewal import Target, sync
from indexer.versions import promote, with_version
from reranker.cli.main import main
from reranker.clicks.log import ClickLog
from reranker.engines import open_engine
from reranker.engines.protocol import Engine, WriteOp
from reranker.engines.vectors import field_name
from reranker.models.model_folder import load_model
from reranker.releases import forget_control, read_control
from reranker.rerank import Reranker, RerankSettings
from reranker.retrain.loop import Retraining
from tests.live.helpers import ROOT, kill, result_of
from tests.seeds import seeded_rng
from tests.unit.retrain.shop import Shop, Tables

KILLS = int(os.environ.get("SSI_KILLS", "6"))


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    opened = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    yield opened
    opened.close()


@pytest.fixture
def shop(engine: Engine, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, engine, f"shop-{uuid.uuid4().hex[:10]}")
    try:
        yield made.fill()
    finally:
        for name in engine.index_names(made.index):
            engine.delete_index(name)
            forget_control(engine, [name])


def child(shop: Shop, log: Path, models: Path | None = None) -> subprocess.Popen[str]:
    """Start a retraining and return when it has begun."""
    process = held(shop, log, models)
    begin(process)
    return process


def begin(*processes: subprocess.Popen[str]) -> None:
    """Let processes that are `held` begin."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()


def held(shop: Shop, log: Path, models: Path | None = None) -> subprocess.Popen[str]:
    """Start a retraining that waits, when it is ready, for `begin`."""
    arguments = [shop.engine.spec, shop.index, str(log), str(models or shop.models)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.retraining_child", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def check_live(shop: Shop, allowed: set[str]) -> str:
    """Return the live model, which every document has vectors of and which reranks."""
    live = read_control(shop.engine, shop.index).live_release
    assert live is not None
    assert live.model_id in allowed
    shop.engine.refresh(shop.index)
    assert with_version(shop.engine, shop.index, live.encoder_id) == shop.engine.count(shop.index)
    model = load_model(shop.models / live.model_id[:12])
    settings = RerankSettings(window=50, deadline_ms=None)
    page = Reranker(shop.engine, shop.index, model, settings=settings).search(shop.queries[0])
    assert page.reranked
    assert page.n_encoded == 0
    return live.model_id


def test_killed_anywhere_the_live_version_stays_and_the_end_is_the_same(shop: Shop, tmp_path: Path) -> None:
    log = shop.log(tmp_path / "log", impressions=3000)
    started = time.monotonic()
    expected = Retraining(shop.engine, shop.index, log, shop.settings(dry_run=True)).run().candidate
    seconds = time.monotonic() - started + len(shop.documents) / 60
    shutil.rmtree(shop.models / expected[:12])
    rng = seeded_rng(17)
    met = []
    for _ in range(KILLS):
        process = child(shop, log.folder)
        time.sleep(rng.uniform(0.0, 1.2 * seconds))
        met.append(kill(process))
        if check_live(shop, {shop.base.model_id, expected}) == expected:
            break
    assert met[0]
    result = result_of(child(shop, log.folder))
    assert result["outcome"] in ("promoted", "refused")  # refused: it had gone live before the last kill
    assert result["candidate"] == expected
    assert check_live(shop, {expected}) == expected


def test_an_index_with_impacts_gets_them_of_the_new_version(shop: Shop, tmp_path: Path) -> None:
    target = Target(shop.engine, shop.index, shop.with_impacts().base, ("fetch", "impacts"))
    assert sync(target).written == len(shop.documents)
    promote(shop.engine, shop.index, shop.base.model_id, force=True)
    log = shop.log(tmp_path / "log")
    result = Retraining(shop.engine, shop.index, log, shop.settings()).run()
    assert result.outcome == "promoted"
    check_live(shop, {result.candidate})
    (name,) = shop.engine.index_names(shop.index)
    properties = shop.engine.index_info(name).properties
    assert present_routes(properties, result.encoder) == ("fetch", "impacts")
    n_written = shop.engine.count(shop.index, {"exists": {"field": field_name(result.encoder, "impacts_hash")}})
    assert n_written == len(shop.documents)


def test_two_at_once_on_one_machine(shop: Shop, tmp_path: Path) -> None:
    log = shop.log(tmp_path / "log", impressions=3000)
    first, second = held(shop, log.folder), held(shop, log.folder)
    begin(first, second)
    results = [result_of(first), result_of(second)]
    refused = [one for one in results if one["outcome"] == "error"]
    assert len(refused) == 1
    assert refused[0]["code"] == 7
    assert "another `ssi retrain`" in refused[0]["message"]
    assert [one["outcome"] for one in results if one not in refused] == ["promoted"]


def test_two_at_once_on_two_machines(shop: Shop, tmp_path: Path) -> None:
    """They share no lock: both train, the control record lets one of them promote."""
    log = shop.log(tmp_path / "log", impressions=3000)
    shutil.copytree(shop.models, tmp_path / "other models")
    processes = [held(shop, log.folder), held(shop, log.folder, tmp_path / "other models")]
    begin(*processes)
    results = [result_of(one) for one in processes]
    outcomes = sorted(one["outcome"] for one in results)
    assert outcomes in (["error", "promoted"], ["promoted", "refused"])
    for one in results:
        assert one.get("code", 7) == 7
    assert len(read_control(shop.engine, shop.index).previous) == 1


def test_the_query_side_alone_leaves_every_document_as_it_is(shop: Shop, tmp_path: Path) -> None:
    log = shop.log(tmp_path / "log")
    ids = list(shop.documents)
    before = shop.engine.get(shop.index, ids)
    result = Retraining(shop.engine, shop.index, log, shop.settings(query_side_only=True)).run()
    assert result.outcome == "promoted"
    assert shop.engine.get(shop.index, ids) == before
    assert check_live(shop, {result.candidate}) == result.candidate


def ubi(tables: Tables) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a log as documents of the UBI indexes."""
    shown: dict[str, list[str]] = {}
    for query, document in zip(tables["hits"]["query_id"], tables["hits"]["document"], strict=True):
        shown.setdefault(query, []).append(document)
    columns = ("query_id", "query", "user", "time")
    queries = [
        {
            "query_id": name,
            "user_query": text,
            "client_id": user,
            "timestamp": time_ms,
            "query_response_hit_ids": shown[name],
            "application": "shop",
        }
        for name, text, user, time_ms in zip(*(tables["queries"][one] for one in columns), strict=True)
    ]
    of_event = ("query_id", "action", "document", "ordinal", "user", "time")
    events = [
        {
            "query_id": name,
            "action_name": action,
            "client_id": user,
            "timestamp": time_ms,
            "application": "shop",
            "event_attributes": {"object": {"object_id": document}, "position": {"ordinal": ordinal}},
        }
        for name, action, document, ordinal, user, time_ms in zip(
            *(tables["events"][one] for one in of_event), strict=True
        )
        if action == "click"
    ]
    return queries, events


def test_the_log_of_the_engine_itself(shop: Shop, tmp_path: Path) -> None:
    """The whole command: UBI's indexes to a live model."""
    engine = shop.engine
    tables = shop.clicks(shop.shown(shop.base), 2500, 1, 300, answers=True)
    names = [f"{shop.index}-queries", f"{shop.index}-events"]
    try:
        for name, documents in zip(names, ubi(tables), strict=True):
            engine.create_index(name, {"properties": {"timestamp": {"type": "date"}}})
            for first in range(0, len(documents), 1000):
                engine.bulk(
                    name,
                    [
                        WriteOp("index", str(first + place), source)
                        for place, source in enumerate(documents[first : first + 1000])
                    ],
                )
            engine.refresh(name)
        imported = CliRunner().invoke(
            main,
            [
                *("clicks", "import", "--engine", engine.spec, "--log", str(tmp_path / "kept")),
                *("--queries-index", names[0], "--events-index", names[1]),
            ],
            catch_exceptions=False,
        )
        assert imported.exit_code == 0, imported.stderr
        result = CliRunner().invoke(
            main,
            [
                "retrain",
                "--engine",
                engine.spec,
                "--index",
                shop.index,
                "--models",
                str(shop.models),
                "--clicks",
                str(tmp_path / "kept"),
                "--json",
                "--report",
                str(tmp_path / "report.html"),
            ],
            catch_exceptions=False,
        )
        assert result.exit_code == 0, result.stderr
        answer = json.loads(result.stdout)
        assert answer["outcome"] == "promoted"
        assert ClickLog(tmp_path / "kept").counts()["queries"] == 2500
        assert check_live(shop, {answer["candidate"]}) == answer["candidate"]
    finally:
        for name in names:
            if engine.index_names(name):
                engine.delete_index(name)


def test_a_document_written_meanwhile_is_not_lost(shop: Shop, tmp_path: Path) -> None:
    """Its owner changes documents while the vectors are written: the newest text is there and has its vector."""
    log = shop.log(tmp_path / "log")
    process = child(shop, log.folder)
    changed = 0
    while process.poll() is None:
        source = {**shop.documents["d000"], "text": f"thing0 wish0 changed{changed}"}
        shop.engine.bulk(shop.index, [WriteOp("update", "d000", {"text": source["text"]})])
        changed += 1
        time.sleep(0.2)
    result = result_of(process)
    stored = shop.engine.get(shop.index, ["d000"])[0]
    assert stored is not None
    assert stored.source["text"] == f"thing0 wish0 changed{changed - 1}"
    assert result["outcome"] in ("promoted", "refused")
