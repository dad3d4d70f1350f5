"""Log of impressions and events in the format of OpenSearch User Behavior Insights (UBI 1.3).

A background thread writes them from a queue of bounded length. Rows that do not fit into the queue, or are still
refused after the last retry, are dropped and counted. Values for which UBI has no field are stored in
``query_attributes`` as texts, under names that begin with ``ssi_``; lists are joined by spaces.

Source: UBI schema 1.3.0; the limits of lengths are those of the plugin's mapping.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections import OrderedDict
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
"""Mapping of ``ubi_queries``, used if the plugin has not created it. ``query_attributes`` are stored, not searched."""

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
"""Mapping of ``ubi_events``, used if the plugin has not created it."""


def stamp(time: datetime) -> str:
    """Return a time in the format ``strict_date_time``: UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def query_row(
    call: SearchCall, outcome: SearchOutcome, mode: str, query_id: str, settings: ServiceSettings, took_ms: float
) -> dict[str, Any]:
    """Return the row of ``ubi_queries`` for a search that was just answered; absent values are omitted.

    If the page is not reranked, the row has the kind of the reason (`reranker.records.ReasonKind`), never its text.
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
        "ssi_words": page.asked,
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
"""Rows that may wait in the queue."""
BATCH = 500
"""Rows written at a time."""
PAUSE_S = 0.2
"""Seconds for which rows are collected, unless a batch fills up earlier."""
RETRIES_S = (0.2, 1.0, 3.0)
"""Seconds to wait before each retry."""

Row = tuple[str, Mapping[str, Any]]
"""(name of the index that the row belongs to, the row)."""


class Writer(Protocol):
    """Stores rows."""

    def write(self, rows: Sequence[Row]) -> int:
        """Store rows; return how many were refused permanently. `RerankerError` or `OSError` means: retry them all."""

    def close(self) -> None:
        """Release all resources."""


class FileWriter:
    """Appends JSON lines to a file readable by its owner only. Raises `InputError` if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"the sink {str(path)!r} cannot be written: {error.strerror}", path=str(path)) from error
        self._path = path
        self._file = os.fdopen(number, "ab", buffering=0)
        self._cut = _ends_within_a_line(path)

    def write(self, rows: Sequence[Row]) -> int:
        """Append the rows in one write, on a new line if the last write was interrupted (full disk, killed process)."""
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

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_within_a_line(path: Path) -> bool:
    """Return whether a file's last line is incomplete; False if it is not a regular file, such as a pipe."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        # The file may be writable but not readable.
        return False


class EngineWriter:
    """Writes into the indexes ``ubi_queries`` and ``ubi_events`` of an engine, which are created if missing.

    The document id of a search is its query id, and every event has its own id, so that a batch sent twice is stored
    once.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready: set[str] = set()

    def write(self, rows: Sequence[Row]) -> int:
        """Send the rows, one bulk request per index."""
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
                # Its owner deleted the index; the next retry creates it again.
                self._ready.discard(index)
                raise
            if any(result.status in (429, 503) for result in results):
                raise EngineRejected("the engine is too busy to store impressions", status=429)
            refused += sum(result.status >= 300 for result in results)
        return refused

    def close(self) -> None:
        """Do nothing: the engine is closed by its owner."""


def _encode(row: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(row)
    except UnicodeEncodeError:
        # A lone surrogate cannot be encoded in UTF-8. It is replaced, so that the row is not lost.
        whole = changed_texts(row, lambda text: text.encode("utf-8", "replace").decode(), names=True)
        return msgspec.json.encode(whole)


LEAST_BURST = 100.0
"""Least size of a burst, in events, however low the rate: one request may have this many."""
BURST_S = 10.0
"""Size of a burst, in seconds of the allowed rate."""
SESSION_SHARE = 0.1
"""Share of an address's rate that one session may send."""
KEPT_RATES = 10_000
"""Addresses and sessions that are tracked; beyond that the least recently active ones are forgotten."""


class EventRates:
    """Rate limit for events by address and by session, with one token bucket each. Used on the event loop only.

    Parameters
    ----------
    per_second : float
        Events per second from one address; 0 sets no limit.
    now : Callable
        Returns monotonic seconds.
    """

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._now = per_second, now
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """(kind, name) -> (events left, time of that count in monotonic seconds)."""

    def wait_s(self, address: str, sessions: Mapping[str, int]) -> float:
        """Accept events of one address and return 0, or reject all of them and return the seconds to wait.

        ``sessions`` has the number of events per session. Events without a session (``""``) count for their address
        only.
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
    """Queue of at most ``capacity`` rows for a writer's thread. A full sink drops and counts rows; it never blocks."""

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
        """Rows queued but not yet written."""
        return self._queue.unfinished_tasks

    def record(self, row: Mapping[str, Any]) -> None:
        """Queue the row of a search, or drop it if the queue is full."""
        self._take([(QUERIES_INDEX, row)])

    def events(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Queue UBI events, or drop all of them and return False, so that a client that retries sends no duplicates."""
        return self._take([(EVENTS_INDEX, {**row, "event_id": str(uuid.uuid4())}) for row in rows])

    def _take(self, rows: Sequence[Row]) -> bool:
        with self._lock:
            room = 0 if self._closing.is_set() else self._queue.maxsize - self._queue.qsize()
            if room >= len(rows):
                # Other threads only remove rows at the same time.
                for row in rows:
                    self._queue.put_nowait(row)
                return True
        self._drop(len(rows))
        return False

    def _drop(self, number: int) -> None:
        with self._lock:
            self.dropped += number

    def close(self, timeout_s: float) -> None:
        """Write the queued rows for at most ``timeout_s`` seconds, then stop."""
        self._closing.set()
        self._thread.join(timeout_s)
        left = self.waiting
        if left:
            self._drop(left)
            _log.warning("impressions were lost at shutdown", extra={"ssi": {"rows": left}})
        if not self._thread.is_alive():
            self._writer.close()

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            rows = self._batch()
            if rows:
                try:
                    self._write(rows)
                except Exception as error:
                    # The thread must survive any error that a row causes in the writer.
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
    """Return the sink for ``engine``, ``none`` or a file name. Raises `InputError` if the file cannot be written."""
    if spec == "none":
        return None
    return ImpressionSink(EngineWriter(engine) if spec == "engine" else FileWriter(Path(spec)))
