"""Imports into a click log: each line of a file, or document of an engine's UBI indexes, once, however often they run.

A log file of any form becomes batches of rows, each with the place in the file that it ends at: a file is known by its
content up to there, and reading goes on where it ended.

A run over an index reads a day of timestamps after the other, each over one view of it (a point in time). How far it
came and which documents it has are committed together with the rows. As documents come late, the next run begins two
days before the end of the last one and passes over what it has; a document more than two days late is not seen.
"""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from reranker.clicks.forms import (
    JsonLinesReader,
    LineReader,
    LogRows,
    MetarankReader,
    PrivateSink,
    UbiReader,
    Values,
    unwrapped,
)
from reranker.clicks.log import DAY_MS, ClickLog, LogTransaction, Source, clock, damaged
from reranker.clicks.privacy import Pseudonymiser
from reranker.config import milliseconds
from reranker.engines.protocol import Engine
from reranker.errors import ConfigError, InputError
from reranker.files import replacing
from reranker.formats import (
    MAX_LINE_BYTES,
    READ_ERRORS,
    RecordError,
    RejectSink,
    StrictSink,
    is_parquet,
    open_content,
    read_error,
    read_rows,
)
from reranker.progress import Progress, no_progress
from reranker.records import StoredDocument

BLOCK_BYTES = 1024 * 1024
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
BATCH_ROWS = 20_000
FORMATS: Final = ("auto", "ubi", "json-lines", "metarank")
"""Forms of log files; ``auto`` looks at the first lines."""
_BOM = b"\xef\xbb\xbf"
_PEEK_BYTES, _PEEK_LINES = 256 * 1024, 50


class Place(NamedTuple):
    """How far a file was read: content bytes, lines, and the SHA-256 of the content up to there."""

    offset: int = 0
    lines: int = 0
    digest: str = ""


_NOTHING_READ = Place(digest=sha256().hexdigest())


class Block(NamedTuple):
    """Lines that stand together, without line feeds; blank ones included, so that the numbers are right.

    ``number`` is that of the first one, from 1, and ``offset`` the byte of the content where it begins; ``end`` is
    where to go on after the block. ``is_cut``: it is the last line of the file, without a line end, and may still be
    being written.
    """

    lines: list[bytes]
    number: int
    offset: int
    end: Place
    is_cut: bool = False


def read_blocks(
    path: str | os.PathLike[str],
    rejects: RejectSink,
    *,
    start: Place | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Block]:
    """Yield the lines of a plain or gzipped file in blocks of about a megabyte.

    Lines longer than ``max_line_bytes`` go to ``rejects`` without being held; what stands in their place is blank.
    """
    with closing(open_content(path)) as stream:
        content = _Content(stream, path)
        if start is not None and not (content.read_to(start.offset) and start.digest in ("", content.place().digest)):
            message = f"the file {os.fspath(path)!r} is not the one that was read before: its beginning has changed"
            raise InputError(f"{message}; start again", path=os.fspath(path))
        yield from content.blocks(rejects, max_line_bytes)


def resume_place(path: str | os.PathLike[str], places: dict[int, set[str]]) -> tuple[Place | None, bool]:
    """Return the furthest place up to which a file has a known content, and whether that is all of it.

    ``places`` are offsets → hashes of the content before them: the content of plain and gzipped files counts, the
    bytes of Parquet.
    """
    furthest: Place | None = None
    with _content_of(path) as content:
        for offset in sorted(places):
            if not content.read_to(offset):
                break
            if content.place().digest in places[offset]:
                furthest = content.place()
        # The last of the places may be one of another file, beyond the furthest of this one.
        return furthest, furthest is not None and furthest.offset == content.place().offset and not content.read(1)


def whole_place(path: str | os.PathLike[str]) -> Place:
    """Return the place at the end of a file (or of a gzipped file's content, or of Parquet's bytes)."""
    with _content_of(path) as content:
        content.read_to(None)
        return content.place()


@contextmanager
def _content_of(path: str | os.PathLike[str]) -> Iterator[_Content]:
    with open(path, "rb") if is_parquet(path) else closing(open_content(path)) as stream:
        yield _Content(stream, path)


class _Content:
    """The content of a file, and how far it was read."""

    def __init__(self, stream: BinaryIO, path: str | os.PathLike[str]) -> None:
        self._stream, self._path, self._hash = stream, path, sha256()
        self._offset = self._lines = 0

    def place(self, rest: bytes = b"") -> Place:
        """Return how far the content was read, with some more bytes of a line without end."""
        whole = self._hash.copy()
        whole.update(rest)
        return Place(self._offset + len(rest), self._lines, whole.hexdigest())

    def read(self, n_bytes: int) -> bytes:
        """Return what comes next: one read of the file at most, so that all before a damaged place is had."""
        try:
            return cast(BufferedReader, self._stream).read1(n_bytes)
        except READ_ERRORS as error:
            raise read_error(self._path, error, self._lines) from error

    def read_to(self, end: int | None) -> bool:
        """Read on to an offset, or to the end of the file; return whether the content is so long."""
        left = math.inf if end is None else end - self._offset
        while left and (data := self.read(int(min(left, BLOCK_BYTES)))):
            self._passed(data, data.count(b"\n"))
            left -= len(data)
        return left == 0

    def _passed(self, data: bytes, n_lines: int) -> None:
        self._hash.update(data)
        self._offset += len(data)
        self._lines += n_lines

    def blocks(self, rejects: RejectSink, limit: int) -> Iterator[Block]:
        """Yield what follows in blocks of lines."""
        tail = b""
        while data := self.read(BLOCK_BYTES):
            data = tail + data
            end = data.rfind(b"\n")
            if end >= 0:
                tail = data[end + 1 :]
                yield self._block(data[: end + 1])
            else:
                tail = data
            if len(tail) > limit + 1:
                tail = self._skip_line(tail, rejects, limit)
        end = tail.rfind(b"\n") + 1
        for rest in (tail[:end], tail[end:]):
            if rest:
                yield self._block(rest)

    def _block(self, data: bytes) -> Block:
        """Return a block of whole lines, or of the one line that has no end."""
        is_cut = not data.endswith(b"\n")
        offset, number = self._offset, self._lines + 1
        lines = (data if is_cut else data[:-1]).split(b"\n")
        if offset == 0 and lines[0].startswith(_BOM):
            lines[0] = b"   " + lines[0][3:]  # blanks keep the offsets of the other lines right
        if not is_cut:
            self._passed(data, len(lines))
        return Block(lines, number, offset, self.place(data if is_cut else b""), is_cut)

    def _skip_line(self, tail: bytes, rejects: RejectSink, limit: int) -> bytes:
        """Reject a line that is too long, read to its end, and return what was read of the next."""
        sample, offset, number = tail[:800], self._offset, self._lines + 1
        while tail:
            part, end, tail = tail.partition(b"\n")
            self._passed(part + end, 0)
            if end:
                break
            tail = self.read(BLOCK_BYTES)
        self._lines = number
        reason = f"the line has {self._offset - offset} bytes: at most {limit} are accepted"
        rejects.reject(number, offset, reason, sample, kind="line_too_long")
        return tail


class _Hits(msgspec.Struct):
    hits: list[msgspec.Raw]


class _Answer(msgspec.Struct):
    hits: _Hits


def _looks_whole(head: bytes) -> bool:
    """Return whether a file may be one JSON document: its first line opens an array or an answer."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    line, _, rest = start.partition(b"\n")
    if start.startswith(b"["):
        return line.strip() == b"[" or line[1:].lstrip()[:1] == b"{"
    return start.startswith(b"{") and (line.strip() == b"{" or (not rest and b'"hits"' in line[:4000]))


def _read_whole(path: str | os.PathLike[str]) -> list[msgspec.Raw] | None:
    """Return the rows of a JSON document, each as it stands; None where the file is none, or more than 256 MiB."""
    content = bytearray()
    with closing(open_content(path)) as stream:
        try:
            while len(content) <= MAX_DOCUMENT_BYTES and (data := stream.read(4 * BLOCK_BYTES)):
                content += data
        except READ_ERRORS as error:
            raise read_error(path, error, 0) from error
    if len(content) > MAX_DOCUMENT_BYTES:
        return None
    content = content.removeprefix(_BOM)
    try:
        if content.lstrip()[:1] == b"[":
            return msgspec.json.decode(content, type=list[msgspec.Raw])
        return msgspec.json.decode(content, type=_Answer).hits.hits
    except (ValueError, RecursionError):
        return None


_OWN_KEYS = {"results", "clicks"}
_UBI_KEYS = {"action_name", "actionName", "user_query", "userQuery", "query_response_id", "client_id", "clientId"}
_READERS: dict[str, type[LineReader]] = {"ubi": UbiReader, "json-lines": JsonLinesReader, "metarank": MetarankReader}


@dataclass
class ReadCounts:
    """What became of the records of a log: ``good + skipped + bad`` is their number.

    Those ``good`` gave rows, those ``skipped`` say nothing of searches (actions of the bulk API, Metarank's items and
    users), and those ``bad`` went to the reject sink. ``notes`` are spellings and oddities met (``camel_case``,
    ``wrapped``, ``impossible_time``), with how often.
    """

    good: int = 0
    skipped: int = 0
    bad: int = 0
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Number of records."""
        return self.good + self.skipped + self.bad


class FileBatch(NamedTuple):
    """Rows of a file, table → column → values, and the spellings and oddities met in them.

    ``place`` is how far the file is dealt with once they are kept; None while that cannot be said (Parquet, JSON
    documents).
    """

    tables: dict[str, dict[str, list[Any]]]
    place: Place | None
    notes: Counter[str]


def read_file(
    path: str | os.PathLike[str],
    privacy: Pseudonymiser,
    *,
    format: str = "auto",
    rejects: RejectSink | None = None,
    counts: ReadCounts | None = None,
    start: Place | None = None,
    now_ms: int | None = None,
) -> Iterator[FileBatch]:
    """Yield the rows of a log file in batches.

    The file holds JSON lines (plain or gzipped), a JSON document (an array of rows, or the answer to a search), or
    Parquet, in one of the `FORMATS`. ``rejects`` gets each bad line, with its shape in the place of its content;
    ``counts`` are added to. Reading goes on at ``start``, the ``place`` of the last batch that was kept; files without
    places begin anew. ``now_ms`` is the time it is said to be, and later times cannot be true; None asks the clock.

    `InputError` where the file cannot be read, or at the first bad line if ``rejects`` is None.
    """
    if format not in FORMATS:
        raise ConfigError(f"the format is {format!r}: choose one of {', '.join(FORMATS)}", value=format)
    rows, sink = LogRows(Values(privacy, clock(now_ms))), PrivateSink(rejects or StrictSink(path))
    state = _FileImport(rows, sink, counts or ReadCounts(), None if format == "auto" else _READERS[format](rows))
    for _ in state.take_file(path, start):
        if len(rows) >= BATCH_ROWS:
            yield state.batch()
    yield state.batch()


class _FileImport:
    """One file being read: its rows, what happened to its records, and how far it is dealt with."""

    def __init__(self, rows: LogRows, sink: PrivateSink, counts: ReadCounts, reader: LineReader | None) -> None:
        self.rows, self.sink, self.counts, self._reader = rows, sink, counts, reader
        self.place: Place | None = None

    def take_file(self, path: str | os.PathLike[str], start: Place | None) -> Iterator[None]:
        """Take a file a block of lines, or a row, a step; its form is told by its first lines, unless it is known."""
        if is_parquet(path):
            for number, value in read_rows(path, [], lambda row, value: (row, value), self.sink):
                reader = self._reader = self._reader or _READERS[_form_of(value) or "ubi"](self.rows)
                self._take_value(reader, number, value)
                yield
            return
        head = _peek_content(path)
        reader = self._reader or _READERS[_form_of_lines(head)](self.rows)
        whole = _read_whole(path) if _looks_whole(head) else None
        if whole is not None:
            for number, row in enumerate(whole):
                self._take_block(reader, Block([bytes(row)], number + 1, number, Place(), False))
                self.place = None
                yield
            return
        self.place = start or _NOTHING_READ
        for block in read_blocks(path, self.sink, start=start):
            self._take_block(reader, block)
            yield

    def _take_block(self, reader: LineReader, block: Block) -> None:
        """Take the lines of a block; one that is not ended and cannot be read is left for when the file has grown."""
        take, limit = reader.take, MAX_LINE_BYTES
        n_taken = 0
        offset, counted = block.offset, 0
        is_bad = False
        for index, line in enumerate(block.lines):
            if not line:
                continue
            try:
                if len(line) > limit and len(line.rstrip(b"\r")) > limit:
                    raise RecordError("line_too_long", f"the line has {len(line)} bytes: at most {limit} are accepted")
                take(line)
                n_taken += 1
            except RecordError as error:
                if line.isspace():
                    continue
                # Bad lines may be many, so their offsets are counted on from the one before.
                offset += sum(map(len, block.lines[counted:index])) + index - counted
                counted, is_bad = index, True
                kind = "cut_line" if block.is_cut else error.kind
                self.sink.reject(block.number + index, offset, error.message, line[:800], kind=kind)
        self._count(n_taken)
        if not (block.is_cut and is_bad):
            self.place = block.end

    def _take_value(self, reader: LineReader, number: int, value: dict[str, Any]) -> None:
        """Take one row of a Parquet file."""
        n_taken = 0
        try:
            reader.take_value(value)
            n_taken = 1
        except RecordError as error:
            self.sink.reject(number + 1, number, error.message, kind=error.kind)
        self._count(n_taken)

    def batch(self) -> FileBatch:
        """Return what was gathered."""
        self._count(0)
        tables, notes = self.rows.take()
        self.counts.notes.update(notes)
        return FileBatch(tables, self.place, notes)

    def _count(self, n_taken: int) -> None:
        self.counts.good += n_taken - self.rows.n_skipped
        self.counts.skipped += self.rows.n_skipped
        self.counts.bad += self.sink.count
        self.rows.n_skipped = self.sink.count = 0


def _peek_content(path: str | os.PathLike[str]) -> bytes:
    """Return the beginning of a regular file's content, or nothing of what would lose it or cannot be read so far."""
    if not os.path.isfile(path):
        return b""
    with closing(open_content(path)) as stream:
        try:
            return stream.read(_PEEK_BYTES)
        except READ_ERRORS:
            return b""


def _form_of_lines(head: bytes) -> str:
    """Return the form of a file by the first of its lines that tells one; UBI where none does."""
    for line in head.split(b"\n")[:_PEEK_LINES]:
        try:
            inner = unwrapped(msgspec.json.decode(line[line.find(b"{") :]))
        except (ValueError, RecursionError, RecordError):
            continue
        form = _form_of(inner[0]) if inner else ""
        if form:
            return form
    return "ubi"


def _form_of(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    if value.get("event") in ("ranking", "interaction", "item", "user"):
        return "metarank"
    if "query_id" in value and not value.keys() & {"action_name", "user_query"} and value.keys() & _OWN_KEYS:
        return "json-lines"
    return "ubi" if value.keys() & _UBI_KEYS else ""


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
        return {
            "rows": self.rows,
            "records": read,
            "notes": dict(sorted(self.read.notes.items())),
            "known": self.known,
            "resumed": self.resumed,
        }


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
    `read_file`; ``progress(records, None)`` is called now and then.

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

    ``format`` and ``rejects`` are as in `read_file`.

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
            rows = LogRows(Values(privacy, transaction.now_ms))
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
        self,
        transaction: LogTransaction,
        engine: Engine,
        index: str,
        rows: LogRows,
        sink: PrivateSink,
        report: ImportReport,
        progress: Progress,
    ) -> None:
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
