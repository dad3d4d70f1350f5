"""The sink of impressions: nobody waits for it, nothing is lost silently, and what it writes can be learned from."""

from __future__ import annotations

import asyncio
import json
import resource
import stat
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reranker.clicks.importing import open_logs
from reranker.clicks.pairs import PairConfig, impressions, make_pairs
from reranker.deadline import Deadline
from reranker.engines.protocol import WriteOp, WriteResult
from reranker.errors import EngineRejected, EngineUnavailable, InputError
from reranker.records import RankedHit
from reranker.rerank import RerankedPage
from reranker.service.modes import SearchCall, SearchOutcome
from reranker.service.server import _drain
from reranker.service.settings import ServiceSettings
from reranker.service.sink import (
    EVENTS_INDEX,
    QUERIES_INDEX,
    EngineWriter,
    FileWriter,
    ImpressionSink,
    Row,
    open_sink,
    query_row,
    stamp,
)
from tests.engines.memory import memory_engine
from tests.services import client_of, service_over, small_index


def row(
    number: int = 0, *, query: str = "red shoes", first: int = 0, versions: tuple[str, ...] = (), asked: str = ""
) -> dict[str, Any]:
    """Return the row of a search, ``first`` hits standing before its page."""
    hits = tuple(RankedHit(f"d{i}", "docs-000001", first + i + 1, 0.0, 10 - i) for i in range(5))
    page = RerankedPage(query, hits, 50, True, True, asked=asked)
    serving: Any = SimpleNamespace(model_id="a" * 64, encoder_id="b" * 64)
    call = SearchCall(query, None, None, first, False, "s1", "c1", None, False, Deadline())
    settings = ServiceSettings("docs", application="shop")
    outcome = SearchOutcome(page, serving, versions=versions)
    return query_row(call, outcome, "rerank", f"q{number}", settings, 12.34)


def is_written(sink: ImpressionSink, timeout_s: float) -> bool:
    """Wait until everything taken so far is written or dropped; return whether that was reached in time."""
    end = time.monotonic() + timeout_s
    while sink.waiting and time.monotonic() < end:
        time.sleep(0.01)
    return not sink.waiting


class Slow:
    """A writer that waits until it may go on, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.gate, self.failures = threading.Event(), failures
        self.rows: list[Row] = []
        self.calls = 0

    def write(self, rows: Sequence[Row]) -> int:
        self.gate.wait(60)
        self.calls += 1
        if self.calls <= self.failures:
            raise EngineUnavailable("gone", status=None)
        self.rows.extend(rows)
        return 0

    def newest(self) -> bytes:
        return b""

    def close(self) -> None:
        self.rows.append(("closed", {}))


def test_a_row_of_ubi() -> None:
    assert stamp(datetime(2026, 11, 20, 12, 0, 1, 234_567, UTC)) == "2026-11-20T12:00:01.234Z"
    logged = row(first=10, versions=("m", "n"))
    assert logged["query_response_hit_ids"] == ["d0", "d1", "d2", "d3", "d4"]
    attributes = logged["query_attributes"]
    assert attributes["ssi_first_stage_ranks"] == "10 9 8 7 6"
    assert attributes["ssi_versions"] == "m n" and attributes["ssi_took_ms"] == "12.3"
    assert attributes["ssi_first"] == "10"
    assert all(isinstance(value, str) for value in attributes.values())
    assert "ssi_cause" not in attributes


def test_the_words_of_a_query_with_a_syntax_are_logged() -> None:
    assert "ssi_words" not in row()["query_attributes"]
    logged = row(query="red -boots", asked="red")
    assert (logged["user_query"], logged["query_attributes"]["ssi_words"]) == ("red -boots", "red")


def test_a_full_sink_drops_and_counts_and_nobody_waits() -> None:
    writer = Slow()
    sink = ImpressionSink(writer, capacity=10)
    for number in range(1_000):
        sink.record(row(number))
    assert writer.calls == 0  # all were taken or dropped while the writer stood still
    taken = sink.waiting
    assert 10 <= taken <= 1_000 - sink.dropped
    assert sink.dropped + taken == 1_000
    writer.gate.set()
    sink.close(10.0)
    assert len(writer.rows) == taken + 1
    assert writer.rows[-1][0] == "closed"
    sink.record(row())
    assert sink.dropped == 1_000 - taken + 1


def test_events_that_do_not_all_fit_are_refused_together(tmp_path: Path) -> None:
    from reranker.service.app import all_parts

    writer = Slow()
    sink = ImpressionSink(writer, capacity=5)
    client = client_of(service_over(small_index(tmp_path / "index", n=5), tmp_path, sink=sink), *all_parts())
    event = {"action_name": "click", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}
    answer = client.post("/events", json={"events": [event] * 6})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "none of the 6 events was queued" in answer.json()["error"]["message"]
    assert (sink.waiting, sink.dropped) == (0, 6)
    assert client.post("/events", json={"events": [event] * 5}).json() == {"status": "taken", "events": 5}
    writer.gate.set()
    sink.close(10.0)
    assert sum(name == EVENTS_INDEX for name, _ in writer.rows) == 5
    assert not sink.events([{}]) and sink.dropped == 7, "closed"


def test_rows_are_tried_again_and_given_up_in_the_end() -> None:
    pauses: list[float] = []
    for failures, written in ((2, 1), (9, 0)):
        writer = Slow(failures)
        writer.gate.set()
        sink = ImpressionSink(writer, sleep=pauses.append)
        sink.record(row())
        assert is_written(sink, 10.0)
        assert (len(writer.rows), sink.dropped) == (written, 1 - written)
        sink.close(5.0)
    assert pauses == [0.2, 1.0, 0.2, 1.0, 3.0]


def test_a_row_that_its_writer_cannot_bear_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Slow()
    writer.gate.set()
    sink = ImpressionSink(writer)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "write", lambda rows: 1 // 0)
        sink.record(row())
        assert is_written(sink, 10.0)
    sink.record(row())
    assert is_written(sink, 10.0)
    assert (len(writer.rows), sink.dropped) == (1, 1)
    sink.close(5.0)


def test_a_file_is_for_its_owner_alone_and_survives_odd_text(tmp_path: Path) -> None:
    sink = open_sink(str(tmp_path / "log.ndjson"), memory_engine())
    assert sink is not None
    sink.record(row(query="lone \ud800 surrogate\nand a line"))
    sink.close(5.0)
    path = tmp_path / "log.ndjson"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["user_query"] == "lone ? surrogate\nand a line"
    with pytest.raises(InputError, match="cannot be written"):
        FileWriter(tmp_path / "no" / "such" / "folder")


def test_a_line_that_a_full_disk_cut_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "ubi.ndjson"
    rows = [(QUERIES_INDEX, row(number)) for number in range(3)]
    writer = FileWriter(path)
    writer.write(rows[:1])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(OSError):
            writer.write(rows[1:2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write(rows[1:2])
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"query_id": "cut by a ki')
    writer = FileWriter(path)
    writer.write(rows[2:])
    writer.write(rows[:1])
    writer.close()
    whole = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["query_id"] for line in whole] == ["q0", "q1", "q2", "q0"]


def test_a_batch_that_comes_twice_is_kept_once() -> None:
    engine = memory_engine()
    writer = EngineWriter(engine)
    rows: list[Row] = [(QUERIES_INDEX, row(n)) for n in range(3)]
    rows += [(EVENTS_INDEX, {"event_id": "e1", "action_name": "click", "query_id": "q1"})]
    assert writer.write(rows) == writer.write(rows) == 0
    for index, n in ((QUERIES_INDEX, 3), (EVENTS_INDEX, 1)):
        engine.refresh(index)
        assert engine.count(index) == n


@pytest.mark.parametrize("status", [429, 503])
def test_rows_that_the_engine_has_no_room_for_now_are_sent_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = memory_engine()
    take, calls = engine.bulk, 0

    def busy(index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        nonlocal calls
        calls += 1
        results = take(index, ops[1:] if calls == 1 else ops)
        return [WriteResult(ops[0].id, status, "busy"), *results] if calls == 1 else results

    monkeypatch.setattr(engine, "bulk", busy)
    writer = EngineWriter(engine)
    rows: list[Row] = [(QUERIES_INDEX, row(n)) for n in range(3)]
    with pytest.raises(EngineRejected, match="too busy"):
        writer.write(rows)
    calls = 0
    sink = ImpressionSink(writer, sleep=lambda _: None)
    for n in range(3):
        sink.record(row(n))
    assert is_written(sink, 30.0) and sink.dropped == 0
    sink.close(10.0)
    engine.refresh(QUERIES_INDEX)
    assert engine.count(QUERIES_INDEX) == 3


def test_an_index_that_was_deleted_meanwhile_is_made_again() -> None:
    engine = memory_engine()
    sink = ImpressionSink(EngineWriter(engine), sleep=lambda _: None)
    sink.record(row(0))
    assert is_written(sink, 30.0)
    engine.delete_index(QUERIES_INDEX)
    sink.record(row(1))
    assert is_written(sink, 30.0) and sink.dropped == 0
    assert [one.id for batch in engine.scan(QUERIES_INDEX) for one in batch] == ["q1"]
    sink.close(10.0)


def test_a_search_and_a_click_become_a_preference(tmp_path: Path) -> None:
    served = small_index(tmp_path / "index")
    path = tmp_path / "log.ndjson"
    from reranker.service.app import all_parts

    state = service_over(served, tmp_path, sink=open_sink(str(path), served.engine))
    client = client_of(state, *all_parts())
    for first in (0, 10):
        body = {"query": "word3 word11", "session": "s", "client_id": "c", "from": first}
        answer = client.post("/search", json=body).json()
        chosen = answer["hits"][3]
        assert chosen["rank"] == first + 4
        event = {
            "action_name": "click",
            "query_id": answer["query_id"],
            "client_id": "c",
            "session_id": "s",
            "event_attributes": {"object": {"object_id": chosen["id"]}, "position": {"ordinal": chosen["rank"]}},
        }
        assert client.post("/events", json={"events": [event]}).json() == {"status": "taken", "events": 1}
    state.close()
    log = open_logs([path])
    shown = sorted(impressions(log, PairConfig()), key=lambda one: one.shown[0].rank)
    assert [one.shown[0].rank for one in shown] == [1, 11]
    assert [[hit.rank for hit in one.clicked] for one in shown] == [[4], [14]]
    pairs = list(make_pairs(log, PairConfig()).pairs())
    assert len(pairs) == 6
    assert {pair.query for pair in pairs} == {"word3 word11"}


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"action_name": "click", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}, 202),
        ({"action_name": "click", "query_id": "q", "event_attributes": {"object": {"object_id": ""}}}, 422),
        ({"action_name": "click", "query_id": "q", "event_attributes": {}}, 422),
        ({"action_name": "", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}, 422),
        ({"action_name": "x" * 101, "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}, 422),
        ({"action_name": "click", "event_attributes": {"object": {"object_id": "d"}}}, 422),
        (
            {
                "action_name": "click",
                "query_id": "q",
                "event_attributes": {"object": {"object_id": "d"}, "position": {"ordinal": 0}},
            },
            422,
        ),
    ],
)
def test_events_are_checked(event: dict[str, Any], status: int, tmp_path: Path) -> None:
    from reranker.service.app import all_parts

    writer = Slow()
    writer.gate.set()
    state = service_over(small_index(tmp_path / "index", n=5), tmp_path, sink=ImpressionSink(writer))
    client = client_of(state, *all_parts())
    assert client.post("/events", json={"events": [event]}).status_code == status
    assert client.post("/events", json={"events": []}).status_code == 422
    assert client.post("/events", json={"events": [event] * 101}).status_code == 422
    state.close()
    assert sum(name == EVENTS_INDEX for name, _ in writer.rows) == (status == 202)


def test_a_service_that_stops_waits_for_what_it_has_to_write(tmp_path: Path) -> None:
    writer = Slow()
    state = service_over(small_index(tmp_path / "index", n=5), tmp_path, sink=ImpressionSink(writer))
    client_of(state).post("/search", json={"query": "word1"})
    assert state.unwritten == 1
    later = threading.Timer(0.3, writer.gate.set)
    later.start()
    asyncio.run(_drain(state, state.settings))
    later.join()
    assert (state.unwritten, len(writer.rows)) == (0, 1)
    state.close()


def test_without_a_sink_events_are_refused(tmp_path: Path) -> None:
    from reranker.service.app import all_parts

    state = service_over(small_index(tmp_path / "index", n=5), tmp_path)
    event = {"action_name": "click", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}
    answer = client_of(state, *all_parts()).post("/events", json={"events": [event]})
    assert answer.status_code == 503
    assert "--sink" in answer.json()["error"]["message"]


def test_the_page_is_served_with_a_strict_policy(tmp_path: Path) -> None:
    from reranker.service.app import FILES, all_parts

    client = client_of(service_over(small_index(tmp_path / "index", n=5), tmp_path), *all_parts())
    for path in FILES:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    page = client.get("/").text
    assert "<script>" not in page
    assert "onclick" not in page
    assert client.get("/page/../../settings.py").status_code == 404
