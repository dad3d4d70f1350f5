"""UBI indexes of real engines into a click log: late documents, odd times, kills, nothing twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reranker.clicks import importing
from reranker.clicks.importing import ImportReport, LiveSource, import_live
from reranker.clicks.log import ClickLog
from reranker.clicks.schema import DAY_MS
from reranker.engines import WriteOp, open_engine
from reranker.engines.protocol import Engine
from reranker.errors import IndexMissing, InputError
from tests.unit.clicks.reading import NOW_MS, PRIVACY, event, query
from tests.unit.clicks.test_log import ids
from tests.unit.formats.collect import CollectingSink

MAPPING = {"dynamic": False, "properties": {"timestamp": {"type": "date"}, "query_id": {"type": "keyword"}}}


def ago(days: float) -> str:
    """Return the time a number of days ago."""
    return datetime.fromtimestamp((NOW_MS - days * DAY_MS) / 1000, UTC).isoformat().replace("+00:00", "Z")


class Site:
    """Two UBI indexes of an engine, and a click log that is fed from them."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        name = f"clicks-{uuid.uuid4().hex[:10]}"
        self.source = LiveSource(f"{name}-queries", f"{name}-events")
        for index in (self.source.queries, self.source.events):
            engine.create_index(index, MAPPING)
        self.log = ClickLog(folder / "log", create=True)
        self.n_sent = 0

    def send(self, *rows: dict[str, Any]) -> None:
        for index in (self.source.queries, self.source.events):
            ops = [
                WriteOp("index", f"{self.n_sent + n}", row)
                for n, row in enumerate(rows)
                if ("action_name" in row) == (index == self.source.events)
            ]
            results = self.engine.bulk(index, ops) if ops else []
            assert all(result.status == 201 for result in results)
            self.engine.refresh(index)
        self.n_sent += len(rows)

    def bring(self, *, now_ms: int = NOW_MS, **times: str) -> ImportReport:
        source = LiveSource(self.source.queries, self.source.events, **times)
        self.sink = CollectingSink()
        return import_live(self.log, self.engine, source, PRIVACY, rejects=self.sink, now_ms=now_ms)

    def close(self) -> None:
        for index in (self.source.queries, self.source.events):
            self.engine.delete_index(index)
        self.engine.close()


@pytest.fixture(params=["elasticsearch", "opensearch"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    url = request.getfixturevalue(f"{request.param}_url")
    found = Site(open_engine(f"{request.param}:{url}"), tmp_path)
    yield found
    found.close()


def clicked(number: int, days: float) -> dict[str, Any]:
    return event(query_id=f"q{number}", timestamp=ago(days))


def test_each_document_comes_once_also_when_it_comes_late(site: Site) -> None:
    site.send(query("q0", timestamp=ago(5)), *(clicked(n, 5 - n / 2) for n in range(10)))
    report = site.bring()
    assert (report.rows["queries"], report.rows["hits"], report.rows["events"]) == (1, 2, 10)
    assert (report.read.good, report.read.bad) == (11, 0)
    assert sum(site.bring().rows.values()) == 0
    site.send(clicked(20, 1.5), clicked(21, 0))
    assert site.bring(now_ms=NOW_MS + DAY_MS).rows["events"] == 2
    for day in range(2, 8):
        assert sum(site.bring(now_ms=NOW_MS + day * DAY_MS).rows.values()) == 0
    assert ids(site.log, "events") == sorted([f"q{n}" for n in range(10)] + ["q20", "q21"])
    assert len(list(site.log.folder.glob("seen-*.npy"))) == 2


def test_undated_and_future_documents_come_once_too(site: Site) -> None:
    site.send(
        event(query_id="none", timestamp=None),
        event(query_id="2099", timestamp="2099-01-01T00:00:00Z"),
        clicked(1, -0.5),
        clicked(2, 400),
    )
    for day in range(6):
        site.bring(now_ms=NOW_MS + day * DAY_MS)
    assert ids(site.log, "events") == ["2099", "none", "q1", "q2"]
    assert site.log.manifest.notes["impossible_time"] == 1


def test_a_range_of_time(site: Site) -> None:
    site.send(*(clicked(n, n) for n in range(10)))
    site.bring(since=ago(6), until=ago(3))
    assert ids(site.log, "events") == ["q4", "q5", "q6"]
    site.bring(since=ago(6))
    assert ids(site.log, "events") == [f"q{n}" for n in range(7)]
    with pytest.raises(InputError, match="earlier rows were requested"):
        site.bring(since=ago(8))


def test_bad_documents_are_counted_and_the_others_come(site: Site) -> None:
    site.send(clicked(1, 1), {**clicked(2, 1), "event_attributes": [1]}, query("q3", timestamp=ago(1), user_query=5))
    report = site.bring()
    assert (report.rows["events"], report.read.bad) == (1, 2)
    assert sorted(site.sink.kinds) == ["wrong_type", "wrong_type"]


def test_after_a_failure_in_the_middle_nothing_is_missing_or_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.clicks.log.SPILL_ROWS", 40)
    monkeypatch.setattr("reranker.clicks.importing.BATCH_ROWS", 20)
    monkeypatch.setattr("reranker.clicks.importing.SCAN_BATCH", 25)
    site.send(*(clicked(n, 3.5 - n // 100) for n in range(300)))
    take, left = importing._IndexImport._take, [130]

    def failing(self: Any, document: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ConnectionError("gone")
        take(self, document)

    monkeypatch.setattr("reranker.clicks.importing._IndexImport._take", failing)
    with pytest.raises(ConnectionError):
        site.bring()
    n_first = site.log.counts()["events"]
    assert 100 <= n_first < 130
    assert site.bring().rows["events"] == 300 - n_first
    assert ids(site.log, "events") == sorted(f"q{n}" for n in range(300))


def test_a_missing_index_is_told(site: Site) -> None:
    with pytest.raises(IndexMissing):
        import_live(site.log, site.engine, LiveSource("absent-index", "absent-index"), PRIVACY)
