"""A reading of all documents of a real index: killed, it goes on, to the same bytes; no view is left open."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.engines import open_engine
from reranker.engines.protocol import Engine, WriteOp
from reranker.engines.rest import RestEngine
from reranker.engines.retry import Retries
from reranker.retrain import documents
from reranker.retrain.documents import export_documents
from tests.live.helpers import ROOT, ask, kill
from tests.live.reading_child import VIEW

N = 8000


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def engine(request: pytest.FixtureRequest) -> Iterator[RestEngine]:
    opened = open_engine(f"{request.param}:{request.getfixturevalue(f'{request.param}_url')}")
    assert isinstance(opened, RestEngine)
    yield opened
    opened.close()


@pytest.fixture
def index(engine: Engine) -> Iterator[str]:
    """Give an alias of two indexes, one of three shards, whose ids overlap."""
    alias = f"read-{uuid.uuid4().hex[:8]}"
    for number, shards in ((0, 3), (1, 1)):
        name = f"{alias}-{number}"
        engine.create_index(
            name,
            {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}},
            {"number_of_shards": shards, "number_of_replicas": 0},
        )
        first = number * N // 4
        rows = [(f"d{row}", {"title": f"t{row} {number}", "text": "ü ☃", "other": row}) for row in range(N)]
        engine.bulk(name, [WriteOp("index", one, source) for one, source in rows[first : first + N * 3 // 4]])
        # Holes in the numbers of writes, and documents whose last write is not their first.
        engine.bulk(name, [WriteOp("index", one, {"title": "again"}) for one, _ in rows[first : first + 1000 : 7]])
        ask(_url(engine), "POST", "/_aliases", {"actions": [{"add": {"index": name, "alias": alias}}]})
    engine.refresh(alias)
    yield alias
    for name in engine.index_names(alias):
        engine.delete_index(name)


def _url(engine: Engine) -> str:
    return engine.spec.partition(":")[2]


def open_views(engine: Engine, index: str) -> int:
    """Return how many views (scrolls and points in time) of an index are open."""
    _, answer = ask(_url(engine), "GET", f"/{index}/_stats/search")
    return sum(_contexts(one) for one in answer["indices"].values())


def _contexts(stats: dict[str, Any]) -> int:
    search = stats["total"]["search"]
    return int(search["open_contexts"]) + int(search.get("point_in_time_current", 0))


def killed_at_half(engine: Engine, index: str, path: Path) -> int:
    """Kill a process that reads as soon as it has half of the documents; return how many it had."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.live.reading_child", engine.spec, index, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    done = next((int(line) for line in process.stdout if int(line) >= engine.count(index) // 2), 0)
    assert done and kill(process), process.communicate()[1]
    process.communicate()
    assert not path.exists()
    return done


def test_a_killed_reading_goes_on_to_the_same_bytes(engine: Engine, index: str, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    assert export_documents(engine, index, VIEW, whole) == N
    read: list[int] = []
    said: list[str] = []
    done = killed_at_half(engine, index, resumed)
    assert export_documents(engine, index, VIEW, resumed, lambda n, _: read.append(n), said.append) == N
    assert said == [f"an interrupted export continues after {done:,} documents"]
    assert read[0] > done, "it goes on, and does not begin anew"
    assert resumed.read_bytes() == whole.read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["resumed.jsonl", "whole.jsonl"]


def test_a_killed_reading_goes_on_in_an_index_that_was_written_to(engine: Engine, index: str, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    killed_at_half(engine, index, resumed)
    name = f"{index}-0"
    engine.bulk(name, [WriteOp("index", f"d{row}", {"title": "changed"}) for row in range(0, 900, 9)])
    engine.bulk(name, [WriteOp("index", f"new{row}", {"title": "new"}) for row in range(50)])
    ask(_url(engine), "POST", f"/{name}/_forcemerge?max_num_segments=1")  # places in a view become others
    said: list[str] = []
    assert export_documents(engine, index, VIEW, resumed, say=said.append) == N + 50
    assert len(said) == 1
    export_documents(engine, index, VIEW, whole)
    assert resumed.read_bytes() == whole.read_bytes()


def test_after_deletions_a_killed_reading_begins_anew(engine: Engine, index: str, tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    killed_at_half(engine, index, path)
    engine.bulk(f"{index}-0", [WriteOp("delete", "d1000")])
    said: list[str] = []
    assert export_documents(engine, index, VIEW, path, say=said.append) == N - 1
    assert "continues" in said[0] and "all are read again" in said[1]
    assert "d1000" not in {json.loads(line)["id"] for line in path.read_text().splitlines()}


def test_a_reading_that_fails_gives_its_view_back(
    engine: Engine, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, _: int | None) -> None:
        if done > N // 2:
            raise Stop

    monkeypatch.setattr(documents, "NOTE_EVERY_S", 0)
    before = open_views(engine, index)
    with pytest.raises(Stop):
        export_documents(engine, index, VIEW, tmp_path / "docs.jsonl", stop)
    assert open_views(engine, index) == before
    assert export_documents(engine, index, VIEW, tmp_path / "docs.jsonl") == N
    assert open_views(engine, index) == before


def test_a_scan_whose_view_the_engine_lost_reads_each_document_once(engine: Engine, index: str) -> None:
    """Closing an index ends every view of it; meanwhile documents are changed, made and deleted."""
    retries = Retries(rng=random.Random(1), notice=lambda _: None, sleep=lambda _: None)
    patient = open_engine(engine.spec, retries=retries)
    name = f"{index}-0"
    before = {(d.index, d.id) for batch in engine.scan(index, source=False) for d in batch}
    found: list[tuple[str, str]] = []
    for number, batch in enumerate(patient.scan(index, source=False, batch_size=500)):
        found += [(document.index, document.id) for document in batch]
        if number in (1, 4):
            change = [WriteOp("index", one, {"title": "changed"}) for _, one in found[number::9]]
            engine.bulk(name, [*change, WriteOp("index", f"new{number}", {}), WriteOp("delete", f"d{5990 + number}")])
            for action in ("_close", "_open"):
                ask(_url(engine), "POST", f"/{name}/{action}?wait_for_active_shards=1")
    patient.close()
    after = {(d.index, d.id) for batch in engine.scan(index, source=False) for d in batch}
    assert retries.count >= 2
    assert len(found) == len(set(found)), "a document was read twice"
    assert after - set(found) == set(), "a document was lost"
    assert set(found) <= before | after
