"""A log file of any form to batches of rows, with the place in the file that each batch ends at."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from io import BufferedReader
from typing import Any, BinaryIO, Final, NamedTuple, cast

import msgspec

from reranker.clicks.forms import (
    JsonLinesReader,
    LineReader,
    MetarankReader,
    PrivateSink,
    Rows,
    UbiReader,
    Values,
    unwrapped,
)
from reranker.clicks.log import clock
from reranker.clicks.privacy import Pseudonymiser
from reranker.errors import ConfigError, InputError
from reranker.formats.lines import (
    MAX_LINE_BYTES,
    READ_ERRORS,
    RecordError,
    RejectSink,
    StrictSink,
    open_content,
    read_error,
)
from reranker.formats.parquet import is_parquet, read_rows

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


NOTHING_READ = Place(digest=sha256().hexdigest())


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
    with closing(_open(path)) as stream:
        content = _Content(stream, path)
        for offset in sorted(places):
            if not content.read_to(offset):
                break
            if content.place().digest in places[offset]:
                furthest = content.place()
        # The last of the places may be one of another file, beyond the furthest of this one.
        return furthest, furthest is not None and furthest.offset == content.place().offset and not content.read(1)


def whole_place(path: str | os.PathLike[str]) -> Place:
    """Return the place at the end of a file (or of a gzipped file's content, or of Parquet's bytes)."""
    with closing(_open(path)) as stream:
        content = _Content(stream, path)
        content.read_to(None)
        return content.place()


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    if is_parquet(path):
        return open(path, "rb")
    return open_content(path)


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
    pieces: list[bytes] = []
    left = MAX_DOCUMENT_BYTES
    with closing(open_content(path)) as stream:
        try:
            while data := stream.read(4 * BLOCK_BYTES):
                left -= len(data)
                if left < 0:
                    return None
                pieces.append(data)
        except READ_ERRORS as error:
            raise read_error(path, error, 0) from error
    content = b"".join(pieces).removeprefix(b"\xef\xbb\xbf")
    del pieces
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

    `InputError` where the file cannot be read, or at the first bad line if ``rejects`` is None.

    Parameters
    ----------
    path : path-like
        JSON lines (plain or gzipped), a JSON document (an array of rows, or the answer to a search), or Parquet.
    privacy : Pseudonymiser
        Makes the hashes of users, sessions and networks.
    format : str
        One of `FORMATS`.
    rejects : RejectSink or None
        Gets each bad line, with its shape in the place of its content; None raises at the first.
    counts : ReadCounts or None
        Is added to.
    start : Place or None
        Where to go on: the ``place`` of the last batch that was kept. Files without places begin anew.
    now_ms : int or None
        The time it is said to be; later times cannot be true. None asks the clock.
    """
    if format not in FORMATS:
        raise ConfigError(f"the format is {format!r}: choose one of {', '.join(FORMATS)}", value=format)
    rows, sink = Rows(Values(privacy, clock(now_ms))), PrivateSink(rejects or StrictSink(path))
    state = _State(rows, sink, counts or ReadCounts(), None if format == "auto" else _READERS[format](rows))
    for _ in state.take_file(path, start):
        if len(rows) >= BATCH_ROWS:
            yield state.batch()
    yield state.batch()


class _State:
    """One file being read: its rows, what happened to its records, and how far it is dealt with."""

    def __init__(self, rows: Rows, sink: PrivateSink, counts: ReadCounts, reader: LineReader | None) -> None:
        self.rows, self.sink, self.counts, self._reader = rows, sink, counts, reader
        self.place: Place | None = None
        self._n_bad = self._n_skipped = 0

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
        self.place = start or NOTHING_READ
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
        n_skipped, n_bad = self.rows.n_skipped, self.sink.count
        self.counts.good += n_taken - (n_skipped - self._n_skipped)
        self.counts.skipped += n_skipped - self._n_skipped
        self.counts.bad += n_bad - self._n_bad
        self._n_skipped, self._n_bad = n_skipped, n_bad


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
    """Return the form of a record, or an empty string."""
    if not isinstance(value, dict):
        return ""
    if value.get("event") in ("ranking", "interaction", "item", "user"):
        return "metarank"
    if "query_id" in value and not value.keys() & {"action_name", "user_query"} and value.keys() & _OWN_KEYS:
        return "json-lines"
    return "ubi" if value.keys() & _UBI_KEYS else ""
