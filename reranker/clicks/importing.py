"""Imports into a click log: each line of a file, or document of an engine's UBI indexes, once, however often they run.

A run over an index reads a day of timestamps after the other, each over one view of it (a point in time). How far it
came and which documents it has are committed together with the rows. As documents come late, the next run begins two
days before the end of the last one and passes over what it has; a document more than two days late is not seen.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from reranker.clicks.forms import PrivateSink, Rows, UbiReader, Values
from reranker.clicks.log import DAY_MS, ClickLog, LogTransaction, Source, damaged
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.reading import BATCH_ROWS, Place, ReadCounts, read_file, resume_place, whole_place
from reranker.config import milliseconds
from reranker.engines.base import Engine
from reranker.errors import ConfigError, InputError
from reranker.files import replacing
from reranker.formats.lines import RecordError, RejectSink, StrictSink
from reranker.progress import Progress, no_progress
from reranker.records import StoredDocument

FILE = "file"


@dataclass
class ImportReport:
    """What an import did.

    ``rows`` are those added, by table; ``read`` says what became of the records read now; of the files ``known`` the
    whole content was in the log already, of those ``resumed`` a part.
    """

    rows: Counter[str] = field(default_factory=Counter)
    read: ReadCounts = field(default_factory=ReadCounts)
    known: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        read = {"good": self.read.good, "skipped": self.read.skipped, "bad": self.read.bad}
        return {"rows": self.rows, "records": read, "notes": dict(sorted(self.read.notes.items())),
                "known": self.known, "resumed": self.resumed}  # fmt: skip


def import_files(
    log: ClickLog,
    paths: Sequence[str | os.PathLike[str]],
    privacy: Pseudonymiser,
    *,
    format: str = "auto",
    rejects: RejectSink | None = None,
    now_ms: int | None = None,
    progress: Progress = no_progress,
) -> ImportReport:
    """Bring log files into a click log and return what was done.

    A file is known by its content: one that was imported is passed over, under any name and compression; one that has
    grown is read from where it ended. After a kill the import is run again and goes on. A last line without its end
    that cannot be read is rejected and read again when the file has grown. A file without one readable line can be
    brought again: its form may have been another than was said.

    ``privacy`` are the hashes of the log (`ClickLog.privacy`); ``format``, ``rejects`` and ``now_ms`` are as in
    `reranker.clicks.reading.read_file`; ``progress(records, None)`` is called now and then.

    `InputError` where a file cannot be read, the log is being changed by another process or has another key.
    """
    report = ImportReport()
    for path in paths:
        with log.transaction(now_ms) as transaction:
            transaction.use_key(privacy)
            _import_file(transaction, Path(path), privacy, report, format, rejects, progress)
    return report


def _import_file(
    transaction: LogTransaction,
    path: Path,
    privacy: Pseudonymiser,
    report: ImportReport,
    format: str,
    rejects: RejectSink | None,
    progress: Progress,
) -> None:
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or device, which cannot be read again after a kill"
        raise InputError(f"{str(path)!r} is {kind}: name a file", path=str(path))
    places: dict[int, set[str]] = {}
    for imported in transaction.sources(FILE):
        places.setdefault(imported.offset, set()).add(imported.digest)
    start, is_all = resume_place(path, places)
    if is_all:
        report.known.append(str(path))
        return
    is_resumed = start is not None and start.offset > 0
    if is_resumed:
        report.resumed.append(str(path))
    source = Source(path.name, FILE)

    def commit(place: Place) -> None:
        source.offset, source.lines, source.digest = place
        transaction.commit(source)

    batches = read_file(
        path, privacy, format=format, rejects=rejects, counts=report.read, start=start, now_ms=transaction.now_ms
    )
    place: Place | None = None
    read, n_readable, n_bad = report.read, report.read.good + report.read.skipped, report.read.bad
    try:
        for batch in batches:
            transaction.note(batch.notes)
            place = batch.place
            if transaction.put(batch.tables) and place is not None:
                commit(place)
            progress(report.read.total, None)
        if is_resumed or read.good + read.skipped > n_readable or read.bad == n_bad:
            commit(place or whole_place(path))
    finally:
        report.rows.update(transaction.added)


def open_logs(
    paths: Sequence[str | os.PathLike[str]], *, format: str = "auto", rejects: RejectSink | None = None
) -> ClickLog:
    """Return a click log: the folder of one as it is, or raw files brought into a temporary one.

    The temporary log can be entered by its owner only and is removed when the object is. Its hashes are the same
    every time (`Pseudonymiser.repeatable`), so that the same files give the same results to the last bit.

    ``format`` and ``rejects`` are as in `reranker.clicks.reading.read_file`.

    `InputError` where a file cannot be read, or a folder and files are named together.
    """
    places = [Path(path) for path in paths]
    folders = [place for place in places if place.is_dir()]
    if folders and len(places) > 1:
        raise InputError(f"{str(folders[0])!r} is a folder: name one click log, or raw files", path=str(folders[0]))
    if folders:
        return ClickLog(folders[0])
    if not places:
        raise InputError("no log was named: give the folder of a click log, or raw log files")
    temporary = tempfile.TemporaryDirectory(prefix="ssi-clicks-")
    log = ClickLog(Path(temporary.name) / "log", create=True)
    log._keep = temporary
    weakref.finalize(log, temporary.cleanup)
    import_files(log, places, Pseudonymiser.repeatable(), format=format, rejects=rejects)
    return log


INDEX = "index"
OVERLAP_MS = 2 * DAY_MS
SCAN_BATCH = 1000
_UNDATED_DAY = 2**31 - 1
_SEEN = np.dtype([("key", "<u8"), ("day", "<i4")])


@dataclass(frozen=True)
class LiveSource:
    """Which documents of an engine are read.

    `ConfigError` for a time that cannot be read, or an empty range.
    """

    queries: str = "ubi_queries"
    events: str = "ubi_events"
    """The indexes, aliases or data streams of UBI."""
    since: str | None = None
    until: str | None = None
    """ISO 8601 (UTC where no zone is given): the first moment, and the first one after the last. Where a log holds rows
    of the index already, reading goes on where it ended, also if ``since`` is later."""

    def __post_init__(self) -> None:
        first, end = self.range_ms
        if first is not None and end is not None and first >= end:
            raise ConfigError(f"--since {self.since} is not before --until {self.until}: nothing lies between them")

    @property
    def range_ms(self) -> tuple[int | None, int | None]:
        """First millisecond since 1970 and the first one after the last, as far as they are given."""
        return milliseconds("since", self.since), milliseconds("until", self.until)


class Cursor(msgspec.Struct, forbid_unknown_fields=True):
    """Where reading an index goes on: ``since`` is where the first run began, ``start`` where the next one begins."""

    since: int | None = None
    start: int | None = None
    seen: str = ""


def import_live(
    log: ClickLog,
    engine: Engine,
    source: LiveSource,
    privacy: Pseudonymiser,
    *,
    rejects: RejectSink | None = None,
    now_ms: int | None = None,
    progress: Progress = no_progress,
) -> ImportReport:
    """Bring the rows of an engine's UBI indexes into a click log and return what was done.

    Parameters as in `import_files`; ``rejects`` gets bad documents, whose line is their number in this run.

    `EngineError` where the engine does not answer (what was committed stays, and the next run goes on from there);
    `InputError` where ``since`` is before the beginning of the first run.
    """
    report = ImportReport()
    for index in dict.fromkeys((source.queries, source.events)):
        with log.transaction(now_ms) as transaction:
            transaction.use_key(privacy)
            rows = Rows(Values(privacy, transaction.now_ms))
            sink = PrivateSink(rejects or StrictSink(f"{engine.spec}/{index}"))
            try:
                _IndexImport(transaction, engine, index, rows, sink, report, progress).run(*source.range_ms)
            finally:
                report.rows.update(transaction.added)
    return report


class _IndexImport:
    """The import of one index.

    Which of its documents of the last days were read is kept as 64-bit hashes of their ids with their days.
    """

    def __init__(
        self, transaction: LogTransaction, engine: Engine, index: str, rows: Rows, sink: PrivateSink,
        report: ImportReport, progress: Progress,
    ) -> None:  # fmt: skip
        self.transaction, self.engine, self.index, self.rows = transaction, engine, index, rows
        self.sink, self.report, self.progress = sink, report, progress
        self.reader = UbiReader(rows)
        name = f"{engine.spec}/{index}"
        self.source = next(iter(transaction.sources(INDEX, name)), None) or Source(name, INDEX)
        self.cursor = msgspec.json.decode(self.source.cursor, type=Cursor) if self.source.cursor else Cursor()
        self.seen: npt.NDArray[Any] = np.zeros(0, dtype=_SEEN)
        if self.cursor.seen:
            path = transaction.folder / self.cursor.seen
            try:
                self.seen = np.load(path, allow_pickle=False).astype(_SEEN)
            except (OSError, ValueError, EOFError, TypeError) as error:
                raise damaged(path, str(error)) from error
        self.keys = set(self.seen["key"].tolist())
        self.new: list[tuple[int, int]] = []
        self.n_read = 0

    def run(self, since: int | None, until: int | None) -> None:
        """Read all that is not there yet."""
        if self.source.cursor and (since or 0) < (self.cursor.since or 0):
            moment = datetime.fromtimestamp((self.cursor.since or 0) / 1000, UTC).isoformat()
            raise InputError(
                f"the log holds {self.source.name} from {moment} on, and earlier rows were asked for: "
                f"begin a new click log for them, or leave --since at that time"
            )
        if not self.source.cursor:
            self.cursor.since = since
        # Also with a later ``since``: what lies before it would never be read.
        start = (self.cursor.since if self.cursor.start is None else self.cursor.start) or 0
        self._slice({"bool": {"must_not": [{"exists": {"field": "timestamp"}}]}}, None)
        while (first := self._first(start, until)) is not None:
            next_day = (first // DAY_MS + 1) * DAY_MS
            if next_day > self.transaction.now_ms + DAY_MS:
                # Clocks that are ahead: these stay remembered, as every run reads them.
                self._slice(_between(first, until), None)
                break
            start = next_day if until is None else min(next_day, until)
            self._slice(_between(first, start), first // DAY_MS)
            self._commit(min(start, self.transaction.now_ms))
        self._commit(min(until or self.transaction.now_ms, self.transaction.now_ms))

    def _first(self, start: int, until: int | None) -> int | None:
        """Return the first timestamp from ``start`` on."""
        body = {
            "size": 1,
            "_source": False,
            "query": _between(start, until),
            "sort": [{"timestamp": {"order": "asc", "unmapped_type": "date"}}],
        }
        hits = self.engine.search(self.index, body).hits
        return int(hits[0].raw["sort"][0]) if hits else None

    def _slice(self, query: Mapping[str, Any], day: int | None) -> None:
        for batch in self.engine.scan(self.index, query=query, batch_size=SCAN_BATCH):
            for document in batch:
                name = f"{document.index}\0{document.id}".encode("utf-8", "surrogatepass")
                key = int.from_bytes(blake2b(name, digest_size=8).digest(), "little")
                if key in self.keys:
                    continue
                self.keys.add(key)
                self.new.append((key, _UNDATED_DAY if day is None else day))
                self._take(document)
                if len(self.rows) >= BATCH_ROWS and self._put():
                    self._commit(None)
                if self.n_read % SCAN_BATCH == 0:
                    self.progress(self.n_read, None)
        self._put()

    def _take(self, document: StoredDocument) -> None:
        self.n_read += 1
        n_skipped = self.rows.n_skipped
        try:
            self.reader.take_value(document.source)
        except RecordError as error:
            self.sink.reject(self.n_read, 0, f"document {document.id!r:.80}: {error.message}", kind=error.kind)
            self.report.read.bad += 1
            return
        self.report.read.skipped += self.rows.n_skipped - n_skipped
        self.report.read.good += n_skipped == self.rows.n_skipped

    def _put(self) -> bool:
        batch, notes = self.rows.take()
        self.report.read.notes.update(notes)
        self.transaction.note(notes)
        return self.transaction.put(batch)

    def _commit(self, done: int | None) -> None:
        """Keep what was read; ``done`` is the moment up to which all was, None where that has not moved."""
        if done is not None:
            self.cursor.start = max(self.cursor.start or 0, done - OVERLAP_MS, self.cursor.since or 0)
        old = self.cursor.seen
        name = blake2b(self.source.name.encode("utf-8"), digest_size=6).hexdigest()
        self.cursor.seen = f"seen-{name}-{self.transaction.next_number():08d}.npy"
        both = np.concatenate([self.seen, np.array(self.new, dtype=_SEEN)])
        kept = both[both["day"] >= (self.cursor.start or 0) // DAY_MS]
        with replacing(self.transaction.folder / self.cursor.seen, private=True) as file:
            np.save(file, np.sort(kept, order="key"), allow_pickle=False)
        self.source.cursor = msgspec.json.encode(self.cursor).decode()
        self.transaction.commit(self.source)
        if old:
            (self.transaction.folder / old).unlink(missing_ok=True)


def _between(first: int, end: int | None) -> dict[str, Any]:
    limits: dict[str, Any] = {"gte": first, "format": "epoch_millis"}
    if end is not None:
        limits["lt"] = end
    return {"range": {"timestamp": limits}}
