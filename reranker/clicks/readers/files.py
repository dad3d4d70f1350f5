"""A log file of any form to batches of rows, with the place each batch ends at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from reranker.clicks.parts import clock
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.readers.blocks import NOTHING_READ, Block, Place, read_blocks
from reranker.clicks.readers.json_lines import JsonLinesReader
from reranker.clicks.readers.metarank import MetarankReader
from reranker.clicks.readers.rows import Rows
from reranker.clicks.readers.samples import PrivateSink
from reranker.clicks.readers.shapes import unwrapped
from reranker.clicks.readers.ubi import UbiReader
from reranker.clicks.readers.values import Values
from reranker.clicks.readers.whole import looks_whole, read_whole
from reranker.errors import ConfigError
from reranker.formats.lines import MAX_LINE_BYTES, READ_ERRORS, open_content
from reranker.formats.parquet import is_parquet, read_rows
from reranker.formats.rejects import RecordError, RejectSink, StrictSink

FORMATS: Final = ("auto", "ubi", "json-lines", "metarank")
"""Forms of log files; ``auto`` looks at the first lines."""
BATCH_ROWS = 20_000
_PEEK_BYTES, _PEEK_LINES = 256 * 1024, 50
_OWN_KEYS = {"results", "clicks"}
_UBI_KEYS = {"action_name", "actionName", "user_query", "userQuery", "query_response_id", "client_id", "clientId"}


class LineReader(Protocol):
    """What makes rows of one form's lines."""

    def take(self, line: bytes) -> None:
        """Take one line; `RecordError` for a bad one."""
        ...

    def take_value(self, value: Any) -> None:
        """Take one line as decoded JSON; `RecordError` for a bad one."""
        ...


_READERS: dict[str, Any] = {"ubi": UbiReader, "json-lines": JsonLinesReader, "metarank": MetarankReader}


@dataclass
class ReadCounts:
    """What became of the records of a log: ``good + skipped + bad`` is their number.

    Parameters
    ----------
    good : int
        Records that gave rows.
    skipped : int
        Records that say nothing of searches: actions of the bulk API, Metarank's items and users.
    bad : int
        Records that went to the reject sink.
    notes : Counter
        Spellings and oddities met (``camel_case``, ``wrapped``, ``impossible_time``), with how often.
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
    """Rows of a file.

    Parameters
    ----------
    tables : dict
        Table → column → values.
    place : Place or None
        How far the file is dealt with once they are kept; None while that cannot be said (Parquet, JSON documents).
    notes : Counter
        Spellings and oddities met in them.
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
    hashed: bool = True,
    now_ms: int | None = None,
) -> Iterator[FileBatch]:
    """Yield the rows of a log file in batches.

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
    hashed : bool
        The places have the hash of the content up to there.
    now_ms : int or None
        The time it is said to be; later times cannot be true. None asks the clock.

    Raises
    ------
    InputError
        Where the file cannot be read, or at the first bad line if ``rejects`` is None.
    """
    if format not in FORMATS:
        raise ConfigError(f"the format is {format!r}: choose one of {', '.join(FORMATS)}", value=format)
    state = _State(
        Rows(Values(privacy, clock(now_ms))), PrivateSink(rejects or StrictSink(path)), counts or ReadCounts(), format
    )
    if is_parquet(path):
        for number, value in read_rows(path, [], state.sink):
            state.take_value(number + 1, value)
            if len(state.rows) >= BATCH_ROWS:
                yield state.batch()
        yield state.batch()
        return
    state.look_at(head := peek_content(path))
    whole = read_whole(path) if looks_whole(head) else None
    if whole is not None:
        for number, row in enumerate(whole, start=1):
            state.take_line(number, number - 1, bytes(row))
            if len(state.rows) >= BATCH_ROWS:
                yield state.batch()
        yield state.batch()
        return
    state.place = start or NOTHING_READ
    for block in read_blocks(path, state.sink, start=start, hashed=hashed):
        state.take_block(block)
        if len(state.rows) >= BATCH_ROWS:
            yield state.batch()
    yield state.batch()


class _State:
    """One file being read: its rows, what happened to its records, and how far it is dealt with."""

    def __init__(self, rows: Rows, sink: PrivateSink, counts: ReadCounts, format: str) -> None:
        self.rows, self.sink, self.counts = rows, sink, counts
        self.place: Place | None = None
        self._n_bad = 0
        self._reader: LineReader | None = None if format == "auto" else _READERS[format](rows)

    def look_at(self, head: bytes) -> None:
        """Choose the form by the first lines, unless it was told."""
        if self._reader is None:
            self._reader = _READERS[form_of_lines(head)](self.rows)

    def take_block(self, block: Block) -> None:
        """Take the lines of a block; one that is not ended and cannot be read is left for when the file has grown."""
        take, limit = self._lines().take, MAX_LINE_BYTES
        n_taken, n_skipped = 0, self.rows.n_skipped
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
        self._count(n_taken, self.rows.n_skipped - n_skipped)
        if not (block.is_cut and is_bad):
            self.place = block.end

    def take_line(self, number: int, offset: int, line: bytes) -> None:
        """Take one row of a JSON document."""
        self.take_block(Block([line], number, offset, Place(), False))
        self.place = None

    def take_value(self, number: int, value: dict[str, Any]) -> None:
        """Take one row of a Parquet file."""
        if self._reader is None:
            self._reader = _READERS[form_of(value) or "ubi"](self.rows)
        n_skipped, n_taken = self.rows.n_skipped, 0
        try:
            self._reader.take_value(value)
            n_taken = 1
        except RecordError as error:
            self.sink.reject(number, number - 1, error.message, kind=error.kind)
        self._count(n_taken, self.rows.n_skipped - n_skipped)

    def batch(self) -> FileBatch:
        """Return what was gathered."""
        self._count(0, 0)
        tables, notes = self.rows.take()
        self.counts.notes.update(notes)
        return FileBatch(tables, self.place, notes)

    def _lines(self) -> LineReader:
        if self._reader is None:
            self._reader = UbiReader(self.rows)
        return self._reader

    def _count(self, n_taken: int, n_skipped: int) -> None:
        self.counts.good += n_taken - n_skipped
        self.counts.skipped += n_skipped
        self.counts.bad += self.sink.count - self._n_bad
        self._n_bad = self.sink.count


def peek_content(path: str | os.PathLike[str]) -> bytes:
    """Return the beginning of a regular file's content, or nothing of what would lose it or cannot be read so far."""
    if not os.path.isfile(path):
        return b""
    with closing(open_content(path)) as stream:
        try:
            return stream.read(_PEEK_BYTES)
        except READ_ERRORS:
            return b""


def form_of_lines(head: bytes) -> str:
    """Return the form of a file by the first of its lines that tells one; UBI where none does."""
    for line in head.split(b"\n")[:_PEEK_LINES]:
        try:
            inner = unwrapped(msgspec.json.decode(line[line.find(b"{") :]))
        except (ValueError, RecursionError, RecordError):
            continue
        found = form_of(inner[0]) if inner else ""
        if found:
            return found
    return "ubi"


def form_of(value: Any) -> str:
    """Return the form of a record, or an empty string."""
    if not isinstance(value, dict):
        return ""
    if value.get("event") in ("ranking", "interaction", "item", "user"):
        return "metarank"
    if "query_id" in value and not value.keys() & {"action_name", "user_query"} and value.keys() & _OWN_KEYS:
        return "json-lines"
    return "ubi" if value.keys() & _UBI_KEYS else ""
