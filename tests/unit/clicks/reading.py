"""Log files written and read in tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reranker.clicks.importing import ReadCounts, read_file
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.schema import TABLES
from tests.unit.formats.collect import CollectingSink

PRIVACY = Pseudonymiser(bytes(range(32)))
NOW_MS = 1_780_000_000_000
"""2026-05-28: the time it is in tests."""
NOON = "2026-03-01T12:00:00.250Z"
NOON_MS = 1_772_366_400_250


def event(action: str = "click", document: Any = "d1", **more: Any) -> dict[str, Any]:
    """Return an event of UBI 1.3."""
    row = {
        "action_name": action,
        "query_id": "q1",
        "client_id": "client",
        "session_id": "session",
        "timestamp": NOON,
        "application": "shop",
        "event_attributes": {"object": {"object_id": document}, "position": {"ordinal": 2}},
    }
    return {**row, **more}


def query(query_id: Any = "q1", text: str = "red shoes", **more: Any) -> dict[str, Any]:
    """Return a query of UBI 1.3."""
    row = {
        "query_id": query_id,
        "user_query": text,
        "client_id": "client",
        "application": "shop",
        "timestamp": NOON,
        "query_response_id": "r1",
        "query_response_hit_ids": ["d1", "d2"],
    }
    return {**row, **more}


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    """Write a file of lines: bytes as they are, all else as JSON."""
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in data))
    return path


def read_log(paths: Iterable[Path | str], privacy: Pseudonymiser, **options: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of log files in batches of table -> column -> values."""
    for path in paths:
        for batch in read_file(path, privacy, **options):
            if batch.tables:
                yield batch.tables


class Read:
    """What was read of files: rows as dictionaries, counts and refused records."""

    def __init__(self, *paths: Path, **options: Any) -> None:
        self.sink = CollectingSink()
        self.counts = ReadCounts()
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in (*TABLES, "people")}
        options = {"now_ms": NOW_MS, **options}
        for batch in read_log(paths, PRIVACY, rejects=self.sink, counts=self.counts, **options):
            for name, columns in batch.items():
                rows = zip(*columns.values(), strict=True)
                self.tables[name] += [dict(zip(columns, row, strict=True)) for row in rows]
        self.queries, self.hits, self.events = (self.tables[name] for name in ("queries", "hits", "events"))

    @property
    def shown(self) -> list[tuple[str, int, str]]:
        """The hits as (query id, position, document)."""
        return [(row["query_id"], row["position"], row["document"]) for row in self.hits]
