"""Import of log files and of an engine's UBI indexes into a click log. Repeated imports add each record only once.

A log file of any format becomes batches of rows. Each batch carries the position in the file at which it ends. A file
is identified by its content up to that position, and a later import continues there.

An import from an index reads one day of timestamps at a time, each over a point in time of the index. How far it came
and which documents it has read are committed together with the rows. As documents may arrive late, the next run begins
two days before the end of the last one and skips documents that it has read already. A document that arrives more than
two days late is not read.
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

from reranker.clicks.log import ClickLog, LogTransaction, Source, clock, damaged
from reranker.clicks.privacy import PrivateSink, Pseudonymiser
from reranker.clicks.readers import JsonLinesReader, LineReader, LogRows, MetarankReader, UbiReader, unwrapped
from reranker.clicks.schema import DAY_MS
from reranker.clicks.values import Values
from reranker.config import milliseconds
from reranker.engines.protocol import Engine
from reranker.errors import ConfigError, InputError
from reranker.files import replacing
from reranker.formats import (
    MAX_LINE_BYTES,
    READ_ERRORS,
    RecordError,
    RejectLog,
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
"""Formats of log files; ``auto`` detects the format from the first lines."""
_BOM = b"\xef\xbb\xbf"
_PEEK_BYTES, _PEEK_LINES = 256 * 1024, 50


class Place(NamedTuple):
    """A position up to which a file was read."""

    offset: int = 0
    """Number of bytes of (decompressed) content."""
    lines: int = 0
    """Number of lines."""
    digest: str = ""
    """SHA-256 of the content up to ``offset``, in hexadecimal."""


_NOTHING_READ = Place(digest=sha256().hexdigest())


class Block(NamedTuple):
    """Consecutive lines of a file."""

    lines: list[bytes]
    """Lines without their line feeds. Blank lines are included, so that line numbers stay correct."""
    number: int
    """Number of the first line, from 1."""
    offset: int
    """Byte of the content at which the first line begins."""
    end: Place
    """Position after the block, at which reading continues."""
    is_cut: bool = False
    """Whether this is the last line of the file and has no line end, so that it may still be being written."""


def read_blocks(
    path: str | os.PathLike[str],
    rejects: RejectSink,
    *,
    start: Place | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Block]:
    """Yield the lines of a plain or gzipped file in blocks of about a megabyte.

    Lines longer than ``max_line_bytes`` are rejected without being held in memory and replaced by blank lines. Raises
    `InputError` if the file cannot be read, or if its beginning is not the content that ``start`` identifies.
    """
    with closing(open_content(path)) as stream:
        content = _Content(stream, path)
        if start is not None and not (content.read_to(start.offset) and start.digest in ("", content.place().digest)):
            message = f"the file {os.fspath(path)!r} is not the one that was read before: its beginning has changed"
            raise InputError(f"{message}; import it from the start", path=os.fspath(path))
        yield from content.blocks(rejects, max_line_bytes)


def resume_place(path: str | os.PathLike[str], places: dict[int, set[str]]) -> tuple[Place | None, bool]:
    """Return the furthest known position of a file, and whether the file ends there.

    ``places`` maps offsets to the hashes of the content before them. The decompressed content of plain and gzipped
    files is hashed, and the raw bytes of Parquet files.
    """
    furthest: Place | None = None
    with _content_of(path) as content:
        for offset in sorted(places):
            if not content.read_to(offset):
                break
            if content.place().digest in places[offset]:
                furthest = content.place()
        # The last known offset may be one of another, longer file.
        return furthest, furthest is not None and furthest.offset == content.place().offset and not content.read(1)


def whole_place(path: str | os.PathLike[str]) -> Place:
    """Return the position at the end of a file's content (of gzip: decompressed; of Parquet: raw bytes)."""
    with _content_of(path) as content:
        content.read_to(None)
        return content.place()


@contextmanager
def _content_of(path: str | os.PathLike[str]) -> Iterator[_Content]:
    with open(path, "rb") if is_parquet(path) else closing(open_content(path)) as stream:
        yield _Content(stream, path)


class _Content:
    """The content of an open file, and how far it was read."""

    def __init__(self, stream: BinaryIO, path: str | os.PathLike[str]) -> None:
        self._stream, self._path, self._hash = stream, path, sha256()
        self._offset = self._lines = 0

    def place(self, rest: bytes = b"") -> Place:
        """Return the current position, plus ``rest``: bytes of a line without an end."""
        whole = self._hash.copy()
        whole.update(rest)
        return Place(self._offset + len(rest), self._lines, whole.hexdigest())

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes. It makes at most one read of the file, to get everything before damaged data."""
        try:
            return cast(BufferedReader, self._stream).read1(n_bytes)
        except READ_ERRORS as error:
            raise read_error(self._path, error, self._lines) from error

    def read_to(self, end: int | None) -> bool:
        """Read up to an offset, or to the end of the file; return whether the content is that long."""
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
        """Yield the rest of the content in blocks of lines."""
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
        """Read a line that is too long to its end, reject it, and return the bytes already read of the next line."""
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
    """Return whether a file may be one JSON document: its first line opens an array or a search response."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    line, _, rest = start.partition(b"\n")
    if start.startswith(b"["):
        return line.strip() == b"[" or line[1:].lstrip()[:1] == b"{"
    return start.startswith(b"{") and (line.strip() == b"{" or (not rest and b'"hits"' in line[:4000]))


def _read_whole(path: str | os.PathLike[str]) -> list[msgspec.Raw] | None:
    """Return the rows of a JSON document, undecoded; None if the file is not one or is larger than 256 MiB."""
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
    """Counts of the records of a log. ``good + skipped + bad`` is the number of records."""

    good: int = 0
    """Records that gave rows."""
    skipped: int = 0
    """Records that are not about searches: actions of the bulk API, Metarank's items and users."""
    bad: int = 0
    """Records that were rejected."""
    notes: Counter[str] = field(default_factory=Counter)
    """Number of unusual spellings and values by kind (``camel_case``, ``wrapped``, ``impossible_time``)."""

    @property
    def total(self) -> int:
        """Number of records."""
        return self.good + self.skipped + self.bad


class FileBatch(NamedTuple):
    """A batch of rows of a file."""

    tables: dict[str, dict[str, list[Any]]]
    """Table → column → values."""
    place: Place | None
    """Position in the file up to which everything is in this or earlier batches; None if unknown (Parquet, JSON)."""
    notes: Counter[str]
    """Number of unusual spellings and values in these rows by kind."""


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

    The file holds JSON lines (plain or gzipped), a JSON document (an array of rows, or a search response), or Parquet.

    Parameters
    ----------
    path
        The file.
    privacy
        Hashes for ids of people.
    format
        One of `FORMATS`.
    rejects
        Receives each bad line, with its content masked (`PrivateSink`); None: raise at the first one.
    counts
        Counters to which this file is added.
    start
        Position at which to continue: ``place`` of the last batch that was stored. Files without positions are read
        from the beginning.
    now_ms
        Current time in milliseconds since 1970, so that later times are rejected as impossible; None: the clock.

    Raises
    ------
    InputError
        If the file cannot be read, or at the first bad line if ``rejects`` is None.
    ConfigError
        If ``format`` is unknown.
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
    """The import of one file: its rows, the counts of its records, and the position reached."""

    def __init__(self, rows: LogRows, sink: PrivateSink, counts: ReadCounts, reader: LineReader | None) -> None:
        self.rows, self.sink, self.counts, self._reader = rows, sink, counts, reader
        self.place: Place | None = None

    def take_file(self, path: str | os.PathLike[str], start: Place | None) -> Iterator[None]:
        """Read a file step by step, one block of lines or one row each; detect its format if it is not known yet."""
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
        """Read the lines of a block. An incomplete last line that cannot be decoded is left for a later import."""
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
                # There may be many bad lines, so each offset is computed from the previous one.
                offset += sum(map(len, block.lines[counted:index])) + index - counted
                counted, is_bad = index, True
                kind = "cut_line" if block.is_cut else error.kind
                self.sink.reject(block.number + index, offset, error.message, line[:800], kind=kind)
        self._count(n_taken)
        if not (block.is_cut and is_bad):
            self.place = block.end

    def _take_value(self, reader: LineReader, number: int, value: dict[str, Any]) -> None:
        """Read one row of a Parquet file."""
        n_taken = 0
        try:
            reader.take_value(value)
            n_taken = 1
        except RecordError as error:
            self.sink.reject(number + 1, number, error.message, kind=error.kind)
        self._count(n_taken)

    def batch(self) -> FileBatch:
        """Return the rows gathered since the last batch."""
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
    """Return the beginning of a regular file's content; empty if reading would consume it (a pipe) or fails."""
    if not os.path.isfile(path):
        return b""
    with closing(open_content(path)) as stream:
        try:
            return stream.read(_PEEK_BYTES)
        except READ_ERRORS:
            return b""


def _form_of_lines(head: bytes) -> str:
    """Return the format of a file by its first line that is characteristic of one; ``ubi`` if there is none."""
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
    """Result of an import."""

    rows: Counter[str] = field(default_factory=Counter)
    """Number of rows added, by table."""
    read: ReadCounts = field(default_factory=ReadCounts)
    """Counts of the records read in this import."""
    known: list[str] = field(default_factory=list)
    """Files whose whole content was in the log already."""
    resumed: list[str] = field(default_factory=list)
    """Files of which a part was in the log already."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
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
    """Import log files into a click log and return a report.

    A file is identified by its content. A file that was imported before is skipped, whatever its name and compression.
    A file that has grown is read from where it ended. If the process is killed, run the import again: it continues.
    An incomplete last line that cannot be decoded is rejected, and is read again when the file has grown. A file
    without any readable line can be imported again, because the given format may have been wrong.

    Parameters
    ----------
    log
        The click log to add to.
    paths
        The files, in order.
    privacy
        The hashes of the log (`ClickLog.privacy`).
    format, rejects, now_ms
        As in `read_file`.
    progress
        Called from time to time as ``progress(records, None)``.

    Raises
    ------
    InputError
        If a file cannot be read, another process is changing the log, or the log was made with another key.
    """
    report = ImportReport()
    for path in paths:
        with log.transaction(now_ms) as transaction:
            transaction.use_key(privacy)
            _import_file(transaction, Path(path), privacy, report, format, rejects, progress)
    _accept(rejects, report.read)
    return report


def _accept(rejects: RejectSink | None, read: ReadCounts) -> None:
    if isinstance(rejects, RejectLog):
        rejects.accept(read.good + read.skipped)


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
        raise InputError(f"{str(path)!r} is {kind}: give a regular file", path=str(path))
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
    """Return a click log: an existing one, given by its folder, or a temporary one into which raw files are imported.

    Only its owner can read the temporary log, and it is removed together with the returned object. Its hashes are the
    same every time (`Pseudonymiser.repeatable`), so that the same files give bitwise equal results.

    ``format`` and ``rejects`` are as in `read_file`. Raises `InputError` if a file cannot be read, or if a folder is
    given together with other paths.
    """
    places = [Path(path) for path in paths]
    folders = [place for place in places if place.is_dir()]
    if folders and len(places) > 1:
        raise InputError(f"{str(folders[0])!r} is a folder: give one click log, or raw files", path=str(folders[0]))
    if folders:
        return ClickLog(folders[0])
    if not places:
        raise InputError("no log was given: name the folder of a click log, or raw log files")
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
    """Indexes and time range to import from an engine.

    Raises `ConfigError` for a time that cannot be parsed, or for an empty range.
    """

    queries: str = "ubi_queries"
    """Index, alias, or data stream of the queries."""
    events: str = "ubi_events"
    """Index, alias, or data stream of the events."""
    since: str | None = None
    """Start of the range, inclusive: ISO 8601, UTC if no zone is given. If the log already holds rows of the index, the
    import continues where the last one ended, even if ``since`` is later."""
    until: str | None = None
    """End of the range, exclusive, in the same format."""

    def __post_init__(self) -> None:
        first, end = self.range_ms
        if first is not None and end is not None and first >= end:
            raise ConfigError(f"--since {self.since} is not before --until {self.until}: the time range is empty")

    @property
    def range_ms(self) -> tuple[int | None, int | None]:
        """Bounds of the range, [first, last), in milliseconds since 1970; None where not given."""
        return milliseconds("since", self.since), milliseconds("until", self.until)


class Cursor(msgspec.Struct, forbid_unknown_fields=True):
    """State of the import from one index, stored in the log."""

    since: int | None = None
    """Start of the first run in milliseconds since 1970; None: unbounded."""
    start: int | None = None
    """Start of the next run in milliseconds since 1970."""
    seen: str = ""
    """File in the log with the documents that were read in the last days."""


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
    """Import the rows of an engine's UBI indexes into a click log and return a report.

    Parameters are as in `import_files`. ``rejects`` receives bad documents; their line is the number of the document in
    this run.

    Raises
    ------
    EngineError
        If the engine does not answer. What was committed stays, and the next run continues from there.
    InputError
        If ``since`` is before the beginning of the first run.
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
    _accept(rejects, report.read)
    return report


class _IndexImport:
    """The import of one index.

    The documents read in the last days are remembered as 64-bit hashes of their ids, with their days.
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
        """Read all documents that are not in the log yet."""
        if self.source.cursor and (since or 0) < (self.cursor.since or 0):
            moment = datetime.fromtimestamp((self.cursor.since or 0) / 1000, UTC).isoformat()
            raise InputError(
                f"the log holds {self.source.name} from {moment} on, but earlier rows were requested: "
                f"start a new click log for them, or do not set --since before that time"
            )
        if not self.source.cursor:
            self.cursor.since = since
        # Continue there even with a later ``since``: the rows before it would otherwise never be read.
        start = (self.cursor.since if self.cursor.start is None else self.cursor.start) or 0
        self._slice({"bool": {"must_not": [{"exists": {"field": "timestamp"}}]}}, None)
        while (first := self._first(start, until)) is not None:
            next_day = (first // DAY_MS + 1) * DAY_MS
            if next_day > self.transaction.now_ms + DAY_MS:
                # Times in the future, from wrong clocks. They stay remembered, because every run reads them again.
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
        """Store what was read; ``done`` is the time up to which everything was read, None if it has not advanced."""
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
