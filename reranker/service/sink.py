"""Where impressions and events go, as OpenSearch User Behavior Insights (UBI 1.3) has them.

A thread of its own writes them, from a queue of bounded length; what does not fit, or is refused for longer than the
retries last, is dropped and counted. What UBI has no field for goes into ``query_attributes`` under names that begin
with ``ssi_``, as texts; lists are joined by spaces.

Source: UBI schema 1.3.0; the limits of lengths are those of the plugin's mapping.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from reranker.deadline import Deadline
from reranker.engines.protocol import Engine, WriteOp, ensure_index
from reranker.engines.wire import changed_texts
from reranker.errors import EngineError, EngineRejected, IndexMissing, InputError, RerankerError
from reranker.service.modes import SearchCall, SearchOutcome
from reranker.service.settings import ServiceSettings

_log = logging.getLogger(__name__)


QUERIES_INDEX, EVENTS_INDEX = "ubi_queries", "ubi_events"
_ID = {"type": "keyword", "ignore_above": 100}
_LONG = {"type": "keyword", "ignore_above": 256}

QUERIES_MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {
        "timestamp": {"type": "date", "format": "strict_date_time||epoch_millis"},
        "query_id": _ID,
        "query": {"type": "text"},
        "query_response_id": _ID,
        "query_response_hit_ids": {"type": "keyword"},
        "user_query": _LONG,
        "client_id": _ID,
        "session_id": _ID,
        "application": _ID,
    },
}
"""Mapping of ``ubi_queries`` where the plugin has not made it. ``query_attributes`` are kept, not searched."""

EVENTS_MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {
        "timestamp": {"type": "date", "format": "strict_date_time||epoch_millis"},
        "application": _LONG,
        "action_name": _ID,
        "client_id": _ID,
        "session_id": _ID,
        "user_id": _ID,
        "query_id": _ID,
        "user_query": _LONG,
        "message_type": _ID,
        "message": {"type": "keyword", "ignore_above": 1024},
        "event_attributes": {
            "properties": {
                "position": {"properties": {"ordinal": {"type": "integer"}}},
                "object": {"properties": {"object_id": _LONG, "object_id_field": _ID}},
            }
        },
    },
}
"""Mapping of ``ubi_events`` where the plugin has not made it."""


def stamp(time: datetime) -> str:
    """Return a time in the form ``strict_date_time``: UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def query_row(
    call: SearchCall, outcome: SearchOutcome, mode: str, query_id: str, settings: ServiceSettings, took_ms: float
) -> dict[str, Any]:
    """Return the row of ``ubi_queries`` of a search that was answered just now; absent values are left out.

    The row has the kind of reason why the page is not reranked (`reranker.records.ReasonKind`), never its text.
    """
    page, serving = outcome.page, outcome.serving
    first = page.hits[0].rank - 1 if page.hits else call.first
    attributes: dict[str, str] = {
        "ssi_index": settings.index,
        "ssi_model": serving.model_id,
        "ssi_encoder": serving.encoder_id,
        "ssi_route": settings.route,
        "ssi_mode": mode,
        "ssi_reranked": str(page.reranked).lower(),
        "ssi_fallback": str(page.fallback).lower(),
        "ssi_cause": page.cause,
        "ssi_first": str(first or ""),
        "ssi_total": str(page.total),
        "ssi_first_stage_ranks": " ".join(str(hit.first_stage_rank) for hit in page.hits),
        "ssi_teams": " ".join(outcome.teams),
        "ssi_versions": " ".join(outcome.versions),
        "ssi_took_ms": f"{took_ms:.1f}",
        "randomised": "true" if outcome.randomised else "",
        "session_id": call.session_id or "",
    }
    row = {
        "timestamp": stamp(datetime.now(UTC)),
        "query_id": query_id,
        "user_query": call.query,
        "client_id": call.client_id,
        "session_id": call.session_id,
        "application": settings.application,
        "query_response_id": str(uuid.uuid5(uuid.NAMESPACE_OID, query_id)),
        "query_response_hit_ids": [hit.id for hit in page.hits],
        "object_id_field": "_id",
        "query_attributes": {name: text for name, text in attributes.items() if text},
    }
    return {name: value for name, value in row.items() if value is not None}


CAPACITY = 10_000
BATCH = 500
NEWEST_BYTES, NEWEST_SEARCHES = 8 * 1024 * 1024, 5_000
"""What is read back of a file, and of an engine."""
MAX_HITS = 10_000
"""Hits of one search at most, as engines have it."""
PAUSE_S = 0.2
"""Rows are collected for so long, or until a batch is full."""
RETRIES_S = (0.2, 1.0, 3.0)

Row = tuple[str, Mapping[str, Any]]
"""Name of the index a row belongs to, and the row."""


class Writer(Protocol):
    """Keeps rows."""

    def write(self, rows: Sequence[Row]) -> int:
        """Keep rows and return how many were refused for good; `RerankerError` or `OSError`: give them again."""

    def newest(self) -> bytes:
        """Return the newest rows as JSON lines, a bounded number; `RerankerError` if they cannot be read back."""

    def close(self) -> None:
        """Let go of what it holds."""


class FileWriter:
    """Appends JSON lines to a file that only its owner reads; `InputError` if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"the sink {str(path)!r} cannot be written: {error.strerror}", path=str(path)) from error
        self._path = path
        self._file = os.fdopen(number, "ab", buffering=0)
        self._cut = _ends_within_a_line(path)

    def write(self, rows: Sequence[Row]) -> int:
        """Append the rows in one write; a line that was cut before, by a full disk or a kill, is left to itself."""
        lines = b"".join(_encode(row) + b"\n" for _, row in rows)
        if self._cut:
            lines = b"\n" + lines
        self._cut = True
        written = self._file.write(lines)
        while written is not None and written < len(lines):  # a signal may cut a write short
            lines = lines[written:]
            written = self._file.write(lines)
        self._cut = False
        return 0

    def newest(self) -> bytes:
        """Return the whole lines at the end of the file."""
        if not self._path.is_file():
            raise InputError(f"the sink {str(self._path)!r} is no file, and cannot be read back: let it be one")
        try:
            with self._path.open("rb") as file:
                first = max(file.seek(0, os.SEEK_END) - NEWEST_BYTES, 0)
                file.seek(first)
                content = file.read(NEWEST_BYTES)
        except OSError as error:
            raise InputError(f"the sink {str(self._path)!r} cannot be read back: {error.strerror}") from error
        return content[content.find(b"\n") + 1 :] if first else content

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    """Return True where a file's last line has no end; False for what is no file, such as a pipe."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        # It may be written and not be read.
        return False


class EngineWriter:
    """Writes into ``ubi_queries`` and ``ubi_events`` of an engine, which are made where they are missing.

    The row of a search has its query id as id, and every event one of its own, so that a batch sent twice is kept once.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready: set[str] = set()

    def write(self, rows: Sequence[Row]) -> int:
        """Send the rows, one bulk request an index."""
        refused = 0
        for index, mapping in ((QUERIES_INDEX, QUERIES_MAPPING), (EVENTS_INDEX, EVENTS_MAPPING)):
            chosen = [row for name, row in rows if name == index]
            if not chosen:
                continue
            if index not in self._ready:
                ensure_index(self._engine, index, mapping, None)
                self._ready.add(index)
            key = "query_id" if index == QUERIES_INDEX else "event_id"
            ops = [WriteOp("index", str(row[key]), dict(row)) for row in chosen]
            try:
                results = self._engine.bulk(index, ops)
            except IndexMissing:
                # Its owner deleted it: made again with the next try.
                self._ready.discard(index)
                raise
            if any(result.status in (429, 503) for result in results):
                raise EngineRejected("the engine has no room for impressions now", status=429)
            refused += sum(result.status >= 300 for result in results)
        return refused

    def newest(self) -> bytes:
        """Return the newest searches, and the events of these."""
        rows: list[Mapping[str, Any]] = []
        try:
            rows += self._newest_searches()
            ids = [row["query_id"] for row in rows]
            for first in range(0, len(ids), 1_000):
                of_these = {"terms": {"query_id": ids[first : first + 1_000]}}
                rows += self._found({"size": MAX_HITS, "query": of_these}, EVENTS_INDEX)
        except IndexMissing:  # nobody has searched, or done anything, yet
            pass
        return b"".join(_encode(row) + b"\n" for row in rows)

    def _newest_searches(self) -> Sequence[Mapping[str, Any]]:
        if self._engine.in_process:  # it does not sort, and has its documents by age
            stored = (document.source for batch in self._engine.scan(QUERIES_INDEX) for document in batch)
            return deque(stored, NEWEST_SEARCHES)
        by_time = [{"timestamp": {"order": "desc", "unmapped_type": "date"}}]
        return self._found({"size": NEWEST_SEARCHES, "sort": by_time}, QUERIES_INDEX)

    def _found(self, body: Mapping[str, Any], index: str) -> list[Mapping[str, Any]]:
        return [hit.source for hit in self._engine.search(index, body).hits]

    def close(self) -> None:
        """Leave the engine to its owner."""


def _encode(row: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(row)
    except UnicodeEncodeError:
        # A lone surrogate, which UTF-8 cannot hold: replaced, so that the row is kept.
        whole = changed_texts(row, lambda text: text.encode("utf-8", "replace").decode(), names=True)
        return msgspec.json.encode(whole)


LEAST_BURST = 100.0
"""Events that may come at once however low the rate: as many as one request may have."""
BURST_S = 10.0
"""Seconds of the allowed rate that may come at once."""
SESSION_SHARE = 0.1
"""Share of an address' rate that one session may send."""
KEPT_RATES = 10_000
"""Addresses and sessions whose rates are known; of more, those that were quiet longest are forgotten."""


class EventRates:
    """Limits events by address and by session: a token bucket each, for ``per_second`` events of an address.

    0 sets no limit. ``now`` gives monotonic seconds. Used on the event loop only.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """(kind, name) -> events left, and when that was so."""

    def wait_s(self, address: str, sessions: Mapping[str, int]) -> float:
        """Take events of one address, counted by session, and return 0; or take none, and return the seconds to wait.

        Events without a session (``""``) count for their address alone.
        """
        if self._per_second == 0:
            return 0.0
        wanted = {("address", address): (sum(sessions.values()), self._per_second)}
        wanted |= {("session", name): (n, self._per_second * SESSION_SHARE) for name, n in sessions.items() if name}
        now = self._now()
        left = {key: self._left(key, rate, now) - n for key, (n, rate) in wanted.items()}
        wait_s = max(-left[key] / rate for key, (_, rate) in wanted.items())
        if wait_s > 0:
            return wait_s
        for key, n in left.items():
            self._buckets[key] = (n, now)
            self._buckets.move_to_end(key)
        while len(self._buckets) > KEPT_RATES:
            self._buckets.popitem(last=False)
        return 0.0

    def _left(self, key: tuple[str, str], rate: float, now: float) -> float:
        most = max(rate * BURST_S, LEAST_BURST)
        left, since = self._buckets.get(key, (most, now))
        return min(left + (now - since) * rate, most)


class ImpressionSink:
    """Hands rows, at most ``capacity`` at once, to a writer's thread; a full sink drops and counts, never blocks."""

    def __init__(self, writer: Writer, capacity: int = CAPACITY, sleep: Callable[[float], None] = time.sleep) -> None:
        self._writer, self._sleep = writer, sleep
        self._queue: queue.Queue[Row] = queue.Queue(capacity)
        self.dropped = 0
        """Rows dropped since the start."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssi-sink", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows taken and not yet written."""
        return self._queue.unfinished_tasks

    def record(self, row: Mapping[str, Any]) -> None:
        """Take the row of one search, or drop it."""
        self._take([(QUERIES_INDEX, row)])

    def events(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Take events of UBI, or drop all of them and return False: a client that sends them again doubles none."""
        return self._take([(EVENTS_INDEX, {**row, "event_id": str(uuid.uuid4())}) for row in rows])

    def _take(self, rows: Sequence[Row]) -> bool:
        with self._lock:
            room = 0 if self._closing.is_set() else self._queue.maxsize - self._queue.qsize()
            if room >= len(rows):
                # Others only take out meanwhile.
                for row in rows:
                    self._queue.put_nowait(row)
                return True
        self._drop(len(rows))
        return False

    def _drop(self, number: int) -> None:
        with self._lock:
            self.dropped += number

    def newest(self) -> bytes:
        """Return the newest rows that were written, as JSON lines; errors as of the writer."""
        return self._writer.newest()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for this long at most, and stop."""
        self._closing.set()
        self._thread.join(timeout_s)
        left = self.waiting
        if left:
            self._drop(left)
            _log.warning("impressions are lost", extra={"ssi": {"rows": left}})
        if not self._thread.is_alive():
            self._writer.close()

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            rows = self._batch()
            if rows:
                try:
                    self._write(rows)
                except Exception as error:
                    # The thread must outlive whatever a row does to its writer.
                    self._lose(rows, error)
                for _ in rows:
                    self._queue.task_done()

    def _batch(self) -> list[Row]:
        rows: list[Row] = []
        deadline = Deadline(PAUSE_S)
        while len(rows) < BATCH:
            try:
                rows.append(self._queue.get(timeout=deadline.timeout_s()))
            except queue.Empty:
                break
        return rows

    def _write(self, rows: Sequence[Row]) -> None:
        for pause in (*RETRIES_S, None):
            try:
                refused = self._writer.write(rows)
            except (RerankerError, OSError) as error:
                if pause is None or (self._closing.is_set() and not isinstance(error, EngineError)):
                    self._lose(rows, error)
                    return
                self._sleep(pause)
            else:
                self._drop(refused)
                return

    def _lose(self, rows: Sequence[Row], error: Exception) -> None:
        self._drop(len(rows))
        entry = {"rows": len(rows), "error": type(error).__name__}
        _log.warning("impressions could not be written", extra={"ssi": entry})


def open_sink(spec: str, engine: Engine) -> ImpressionSink | None:
    """Return the sink of ``engine``, ``none``, or a file's name; `InputError` if the file cannot be written."""
    if spec == "none":
        return None
    return ImpressionSink(EngineWriter(engine) if spec == "engine" else FileWriter(Path(spec)))
