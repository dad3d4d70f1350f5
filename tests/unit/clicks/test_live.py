"""The rows of an engine's UBI indexes, one run after the other; `tests/live/test_clicks_live.py` asks real engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from reranker.clicks.importing import LiveSource, import_live
from reranker.clicks.log import ClickLog
from reranker.clicks.schema import DAY_MS
from reranker.records import Hit, StoredDocument
from tests.unit.clicks.reading import NOW_MS, PRIVACY, event
from tests.unit.clicks.test_log import ids


def ago(days: float) -> str:
    """Return the time a number of days ago."""
    return datetime.fromtimestamp((NOW_MS - days * DAY_MS) / 1000, UTC).isoformat()


class Index:
    """An engine with one index of events, asked for ranges of their times only."""

    spec = "test:index"

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, dict[str, Any]]] = {}

    def send(self, number: int, days: float) -> None:
        row = event(query_id=f"q{number}", timestamp=ago(days))
        self.rows[f"{number}"] = (round(NOW_MS - days * DAY_MS), row)

    def _within(self, query: Mapping[str, Any]) -> list[tuple[int, str]]:
        if "range" not in query:
            return []
        limits = query["range"]["timestamp"]
        return sorted(
            (time, name) for name, (time, _) in self.rows.items() if limits["gte"] <= time < limits.get("lt", 2**62)
        )

    def search(self, index: str, body: Mapping[str, Any]) -> Any:
        found = self._within(body["query"])[:1]
        return SimpleNamespace(hits=[Hit(name, index, None, raw={"sort": [time]}) for time, name in found])

    def scan(self, index: str, *, query: Mapping[str, Any], batch_size: int) -> Iterator[list[StoredDocument]]:
        del batch_size
        yield [StoredDocument(name, index, self.rows[name][1], 0, 1) for _, name in self._within(query)]


def bring(log: ClickLog, engine: Any, now_ms: int, **times: str) -> list[str]:
    """Run an import and return the query ids of all events of the log."""
    import_live(log, engine, LiveSource("events", "events", **times), PRIVACY, now_ms=now_ms)
    return ids(log, "events")


def test_a_run_from_a_later_time_leaves_no_gap(tmp_path: Path) -> None:
    log, index = ClickLog(tmp_path / "log", create=True), Index()
    index.send(1, 20)
    assert bring(log, index, NOW_MS - 15 * DAY_MS) == ["q1"]
    index.send(2, 10)
    index.send(3, 1)
    bring(log, index, NOW_MS, since=ago(5))
    assert bring(log, index, NOW_MS) == ["q1", "q2", "q3"]
