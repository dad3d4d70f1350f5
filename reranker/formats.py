"""Streaming readers of input files: lines, documents, ids and Parquet. `reranker.tables` reads the tables.

All readers accept a plain or gzipped file of any size, and have one line in memory at a time. gzip is detected from the
content, not from the name. Documents and pairs can also be in Parquet, which is read in batches of
rows. Text is UTF-8. An invalid line is reported to the `RejectSink` with its number, byte offset and reason. Without a
sink, the first invalid line raises `reranker.errors.InputError`. A file that cannot be read, or whose gzip stream is
damaged, always raises it, after the records before the damage have been yielded.

The module also contains a strict JSON parser, the rules for ids, and a compact set of ids.
"""

from __future__ import annotations

import datetime
import gzip
import io
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, Protocol, TypeVar, cast

import numpy as np

from reranker.accounts import MAX_SAMPLES, InputAccount, LeftOut
from reranker.arrays import UInt64
from reranker.errors import ConfigError, InputError
from reranker.records import MAX_ID_BYTES, Document

MAX_SAMPLE_CHARS = 200
MAX_LINE_BYTES = 2 * 1024 * 1024
"""Longest line of tables and logs; documents have their own limit."""

_Path = str | os.PathLike[str]
_Record = TypeVar("_Record")
_BLOCK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"
_FOREIGN = {
    b"\xff\xfe": ("UTF-16 text", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"PK\x03\x04": ("a zip archive", "unpack it, or pack it with gzip"),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "decompress it, or compress it with gzip"),
    b"BZh": ("bzip2-compressed", "decompress it, or compress it with gzip"),
    b"\xfd7zXZ": ("xz-compressed", "decompress it, or compress it with gzip"),
    _PARQUET_MAGIC: ("Parquet", "only documents and pairs can come in Parquet; give a text file here"),
}


COMMENT = "comment"
JUDGED_AGAIN = "judged_again"
HARMLESS = {COMMENT: "comment lines", JUDGED_AGAIN: "judged again with another grade: the last grade counts"}
"""Kinds of records that are left out of sound input too -> their reason in accounts."""


class RecordError(InputError):
    """A line or row is invalid. Readers catch this error and report the record with its position."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason, kind=kind)

    @property
    def kind(self) -> str:
        """Kind of the fault in one word, used as key of counts."""
        return str(self.data["kind"])


class RejectSink(Protocol):
    """A receiver of rejected records."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Receive one rejected record.

        Parameters
        ----------
        line : int
            1-based line or row.
        offset : int
            Byte offset of the line in the decompressed stream, or the 0-based row of a Parquet file.
        reason : str
            Message for people.
        sample : str or bytes
            The beginning of the record; at most `MAX_SAMPLE_CHARS` characters are kept.
        kind : str
            Kind of the fault in one word, used as key of counts.
        """
        ...


class RejectLog(AbstractContextManager["RejectLog"]):
    """Counts rejected records and, if it has a path, writes them to a file of JSON lines.

    A record is ``{"line", "offset", "kind", "reason", "sample"}``. It is written without buffering, so that it is not
    lost if the process is killed. Use the log as a context manager, or call `close`.

    Parameters
    ----------
    path : path, optional
        File, readable only by its owner. It is created, or truncated to ``keep_bytes``. None: records are only counted,
        for example in the second pass over a file.
    keep_bytes : int
        Number of bytes of an existing file to keep. A resumed run passes its `n_bytes` at the checkpoint.

    Raises
    ------
    InputError
        If the file cannot be written.
    """

    def __init__(self, path: _Path | None = None, *, keep_bytes: int = 0) -> None:
        self.path = None if path is None else Path(path)
        self.kinds: Counter[str] = Counter()
        self.n_accepted = 0
        self._first = ""
        self.last = ""
        """Line and reason of the last rejected record."""
        self._samples: dict[str, list[str]] = {}
        self.n_bytes = 0
        self._fd: int | None = None
        if self.path is not None:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.ftruncate(self._fd, min(keep_bytes, os.fstat(self._fd).st_size))
                self.n_bytes = os.lseek(self._fd, 0, os.SEEK_END)
            except (OSError, ValueError) as error:
                self.close()
                raise self._unwritable(error) from error

    @property
    def count(self) -> int:
        """Number of rejected records of this run, without those of a kind in `HARMLESS`."""
        return sum(n for kind, n in self.kinds.items() if kind not in HARMLESS)

    def accept(self, n: int = 1) -> None:
        """Count ``n`` records that were read."""
        self.n_accepted += n

    def account(self, kind: str = "records") -> InputAccount:
        """Return the account of the records read with this log, by kinds of faults. Samples are line numbers."""
        left_out = (
            LeftOut(HARMLESS.get(name, name), n, tuple(self._samples[name]), name not in HARMLESS)
            for name, n in sorted(self.kinds.items())
        )
        return InputAccount(kind, self.n_accepted, tuple(left_out))

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Count and write a rejected record. Raises `InputError` if the file cannot be written (full disk)."""
        self.kinds[kind] += 1
        samples = self._samples.setdefault(kind, [])
        if len(samples) < MAX_SAMPLES:
            samples.append(f"line {line}")
        if kind not in HARMLESS:
            self.last = f"line {line}: {reason}"
            self._first = self._first or f"; first: {self.last}"
        if self._fd is None:
            return
        record = {"line": line, "offset": offset, "kind": kind, "reason": reason, "sample": _printable(sample)}
        data = json.dumps(record).encode("ascii") + b"\n"
        try:
            while data:
                n_written = os.write(self._fd, data)
                self.n_bytes += n_written
                data = data[n_written:]
        except OSError as error:
            raise self._unwritable(error) from error

    def summary(self) -> str:
        """Return a message of one line: number and kinds of the rejected records, their file, and the first one."""
        if not self.count:
            return "no record was refused"
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.kinds.most_common() if kind not in HARMLESS)
        place = f"; see {self.path}" if self.path else ""
        return f"{self.count:,} records were refused ({kinds}){place}{self._first}"

    def close(self) -> None:
        """Close the file. The counts can still be read."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unwritable(self, error: Exception) -> InputError:
        message = f"the reject file {self.path} cannot be written ({error})"
        return InputError(f"{message}: free the disk or name another file", path=str(self.path))


class StrictSink:
    """A sink that raises an error at the first rejected record of the file ``path``. It is the default of readers."""

    def __init__(self, path: _Path) -> None:
        self._path = os.fspath(path)

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Raise `InputError` with the position of the record and the reason."""
        message = f"{self._path}, line {line} (byte {offset}): {reason}"
        data = {"path": self._path, "line": line, "offset": offset, "kind": kind, "sample": _printable(sample)}
        raise InputError(message, **data) from None


def _printable(sample: str | bytes) -> str:
    if isinstance(sample, bytes):
        sample = sample[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
    return sample[:MAX_SAMPLE_CHARS]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file."""

    number: int
    """1-based number."""
    offset: int
    """Byte offset of its start in the decompressed stream."""
    end_offset: int
    """Byte offset of the next line in the decompressed stream."""
    data: bytes
    """Content without the line feed."""


def read_lines(
    path: _Path,
    *,
    rejects: RejectSink | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Line]:
    """Yield the non-blank lines of a plain or gzipped file (or pipe). Only one line is in memory at a time.

    A UTF-8 byte order mark is removed from the first line. Lines with more than ``max_line_bytes``, without the line
    feed, are rejected and never completely in memory. Raises `InputError` if the file cannot be opened or read, or has
    another format.
    """
    sink = rejects or StrictSink(path)
    with closing(open_content(path)) as stream:
        offset = number = 0
        while data := _readline(stream, max_line_bytes + 2, path, number):
            number += 1
            end = offset + len(data)
            if len(data) - (2 if data.endswith(b"\r\n") else data.endswith(b"\n")) > max_line_bytes:
                end += _skip_line(stream, data, path, number)
                reason = f"the line has {end - offset} bytes: at most {max_line_bytes} are accepted"
                sink.reject(number, offset, reason, data[:800], kind="line_too_long")
                data = b""
            data = data.rstrip(b"\r\n")
            if offset == 0:
                data = data.removeprefix(_BOM)
            if data and not data.isspace():
                # No reference is kept here, so that a line of 100 MB is not in memory twice during its processing.
                handed = [Line(number, offset, end, data)]
                del data
                yield handed.pop()
            offset = end


def read_records(
    path: _Path,
    parse: Callable[[Line], _Record],
    *,
    rejects: RejectSink | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[_Record]:
    """Yield the result of ``parse`` for each line of `read_lines`. A line is rejected if it raises `RecordError`."""
    sink = rejects or StrictSink(path)
    for line in read_lines(path, rejects=sink, max_line_bytes=max_line_bytes):
        try:
            record = parse(line)
        except RecordError as error:
            sink.reject(line.number, line.offset, error.message, line.data[:800], kind=error.kind)
            continue
        del line  # so that a document of 100 MB is not in memory twice during its processing
        if isinstance(sink, RejectLog):
            sink.accept()
        yield record


def decoded(data: bytes) -> str:
    """Decode a line. Raises `RecordError` if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise RecordError("not_utf8", f"{byte}, which is not UTF-8 there ({error.reason})") from None


def open_error(path: _Path, error: Exception) -> InputError:
    """Return the error, with its remedy, for a file that cannot be opened."""
    name = os.fspath(path)
    if isinstance(error, FileNotFoundError):
        reason, remedy = "does not exist", "check the spelling and the current directory"
    elif isinstance(error, IsADirectoryError):
        reason, remedy = "is a directory", "name one file"
    elif isinstance(error, PermissionError):
        reason, remedy = "may not be read by this user", "change its permissions"
    else:
        reason, remedy = f"cannot be read ({error})", "check the path and the disk"
    return InputError(f"the file {name!r} {reason}: {remedy}", path=name)


READ_ERRORS = (EOFError, OSError, zlib.error)
"""Errors that can occur while the content of a file is read."""


def read_error(path: _Path, error: Exception, line: int) -> InputError:
    """Return the error, with its remedy, for a file that cannot be read beyond a line."""
    if not isinstance(error, EOFError | gzip.BadGzipFile | zlib.error):
        return open_error(path, error)
    name = os.fspath(path)
    message = f"the gzip stream of {name!r} is damaged or cut short after line {line} ({error})"
    return InputError(f"{message}: fetch or write the file again", path=name, line=line)


def peek_bytes(path: _Path, n: int = 4) -> bytes:
    """Return the first ``n`` bytes of a regular file; b"" for a pipe or a device, where reading consumes them."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(n)
    except (OSError, ValueError) as error:
        raise open_error(path, error) from error


def open_content(path: _Path) -> BinaryIO:
    """Open a plain or gzipped file, detected by magic bytes. Raises `InputError` if it cannot be opened.

    If the lines end with CR only, as in files of old spreadsheets, each CR is read as LF; offsets stay the same.
    Errors during reading are converted by `read_error`.
    """
    try:
        # The caller or the wrapper closes the file.
        raw = cast(io.BufferedReader, open(path, "rb", buffering=_BLOCK))
        head = raw.peek(8)
        magic = head[:8]
    except (OSError, ValueError) as error:
        raise open_error(path, error) from error
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, io.BufferedReader(_GzipStream(raw), _BLOCK))
    name = os.fspath(path)
    problem = next((kind for start, kind in _FOREIGN.items() if magic.startswith(start)), None)
    if name.endswith(".gz") and magic:
        problem = (f"named .gz but begins with {magic[:2].hex(' ')}, not 1f 8b", "compress it with gzip, or rename it")
    if problem is not None:
        raw.close()
        raise InputError(f"the file {name!r} is {problem[0]}: {problem[1]}", path=name)
    if _ends_lines_with_cr(head):
        return cast(BinaryIO, io.BufferedReader(_CarriageReturns(raw), _BLOCK))
    return raw


def _ends_lines_with_cr(head: bytes) -> bool:
    """Return whether lines end with CR only, given the first bytes of a file. The last byte may belong to CRLF."""
    return b"\n" not in head and b"\r" in head[:-1]


class _CarriageReturns(io.RawIOBase):
    """The content of a file whose lines end with CR: each one is replaced by LF."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._file.read1(len(view)).replace(b"\r", b"\n")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._file.close()


class _GzipStream(io.RawIOBase):
    """The content of a gzip file. It decompresses in small pieces, so that everything before a damage can be read."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._content = gzip.GzipFile(fileobj=packed, mode="rb")
        self._has_cr: bool | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._content.read1(len(view))
        if self._has_cr is None:
            self._has_cr = _ends_lines_with_cr(data)
        if self._has_cr:
            data = data.replace(b"\r", b"\n")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._content.close()
        self._packed.close()


def _readline(stream: BinaryIO, limit: int, path: _Path, line: int) -> bytes:
    try:
        return stream.readline(limit)
    except READ_ERRORS as error:
        raise read_error(path, error, line) from error


def _skip_line(stream: BinaryIO, data: bytes, path: _Path, line: int) -> int:
    """Skip the rest of a line that starts with ``data``. Return the number of skipped bytes."""
    n_skipped = 0
    while data and not data.endswith(b"\n"):
        data = _readline(stream, _BLOCK, path, line)
        n_skipped += len(data)
    return n_skipped


MAX_DEPTH = 100
"""Maximum nesting depth of arrays and objects in a line."""


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse the JSON object of a line. Raises `RecordError`, which names the violated rule.

    The parser of the standard library is used with hooks for stricter rules. It refuses values that are not objects,
    NaN and Infinity, numbers that exceed a double, integers of more than 4,300 digits, lone surrogates, and nesting
    deeper than `MAX_DEPTH`. It also refuses duplicate keys in an object. orjson and msgspec accept these, and only some
    engines do.
    """
    text = decoded(data)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RecordError("not_json", f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise RecordError("too_deep", f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise RecordError("number_too_long", "an integer has more than 4,300 digits: write it as a string") from None
    if not isinstance(value, dict):
        raise RecordError("not_object", f"a {type(value).__name__} at the top: each line must be one JSON object")
    # A line with few brackets cannot be nested too deeply, so most lines need no traversal.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise RecordError("too_deep", f"nested deeper than {MAX_DEPTH} levels")
    if b"\\ud" in data or b"\\uD" in data:
        _refuse_surrogates(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RecordError("duplicate_key", f"the key {twice[:100]!r} is given twice in one object: keep one")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RecordError("not_finite", f"{name} is not JSON: leave the value out or write null")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RecordError("not_finite", f"the number {text[:40]} does not fit a double: write it as a string")
    return value


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether arrays and objects are nested deeper than ``limit``. Works level by level, without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        below = (item.values() if isinstance(item, dict) else item for item in level)
        level = [child for children in below for child in children if isinstance(child, dict | list)]
    return bool(level)


def _refuse_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(error.object[error.start]):04x}"
        raise RecordError("lone_surrogate", f"the lone surrogate {escape} is no character: remove it") from None


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)


MAX_DOCUMENT_BYTES = 100 * 1024 * 1024
"""Maximum bytes of a line in a document file: the maximum size of a request that both engines accept."""
ID_FIELDS = ("id", "_id")
_MAX_RECENT = 2**17


def check_id(value: object, what: str = "id") -> str:
    """Return a valid id as str. Raises `RecordError` unless it is a string of 1 to 512 UTF-8 bytes, or an integer."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024:
        return str(value)
    if not isinstance(value, str):
        raise RecordError("id_type", f"the {what} is {type(value).__name__}: it must be a string or a whole number")
    try:
        n_bytes = len(value.encode())
    except UnicodeEncodeError:
        reason = f"the {what} {value!r} has a lone surrogate: it must be valid Unicode"
        raise RecordError("id_surrogate", reason) from None
    if n_bytes == 0:
        raise RecordError("id_empty", f"the {what} is empty: it must have 1 to {MAX_ID_BYTES} bytes")
    if n_bytes > MAX_ID_BYTES:
        reason = f"the {what} has {n_bytes} bytes of UTF-8: at most {MAX_ID_BYTES} are accepted by the search engines"
        raise RecordError("id_too_long", f"{reason}; use a hash of it")
    return value


def id_key(id_: str) -> int:
    """Return the 64-bit BLAKE2b hash of an id."""
    return int.from_bytes(blake2b(id_.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class SeenIds:
    """A set of ids with 8 bytes per id.

    It stores 64-bit BLAKE2b hashes in sorted arrays that double in size. With n ids, the probability that two different
    ids are confused is n²/2⁶⁵: 3 in a million for ten million ids.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._runs: list[UInt64] = []

    def add(self, id_: str) -> bool:
        """Add an id. Return whether it is new."""
        key = id_key(id_)
        if key in self._recent:
            return False
        for run in self._runs:
            place = int(run.searchsorted(np.uint64(key)))
            if place < len(run) and run[place] == key:
                return False
        self._recent.add(key)
        if len(self._recent) >= _MAX_RECENT:
            self._flush()
        return True

    def _flush(self) -> None:
        run = np.sort(np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent)))
        while self._runs and len(self._runs[-1]) <= len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)
        self._recent = set()


@dataclass(frozen=True, slots=True)
class DocumentLine(Document):
    """A document with its position in the file."""

    line: int = 0
    """1-based line, or row of a Parquet file."""
    offset: int = 0
    end_offset: int = 0
    """Byte offsets of the line and of the next line in the decompressed stream; for Parquet, 0-based row numbers."""


def read_documents(
    path: _Path,
    *,
    rejects: RejectSink | None = None,
    duplicates: Literal["reject", "keep"] = "reject",
    max_line_bytes: int = MAX_DOCUMENT_BYTES,
    id_field: str | None = None,
) -> Iterator[DocumentLine]:
    """Yield the documents of a file in order. Only one document (or one batch of Parquet rows) is in memory at a time.

    A document is a JSON object with an id under ``id`` or ``_id``, which is removed from the source. The id has 1 to
    512 bytes, or is an integer, which is converted to its digits. Documents without text are yielded too. The format,
    JSON lines or Parquet, is detected from the content.

    Parameters
    ----------
    path : path
        The file.
    rejects : RejectSink, optional
        Receives every line that is not a valid document. None: the first one raises `InputError`.
    id_field : str, optional
        Path of the id, such as ``product.sku``. The id then stays in the source.
    duplicates : {"reject", "keep"}
        Treatment of later documents with the same id. ``reject`` sends them to ``rejects`` (kind ``duplicate_id``), and
        needs 8 bytes per document. ``keep`` yields all of them, for a destination that keeps only one.

    Raises
    ------
    InputError
        If the file is missing, damaged, or of another format.
    """
    if duplicates not in ("reject", "keep"):
        raise ConfigError(f"duplicates is {duplicates!r}: choose one of reject, keep", value=duplicates)
    sink = rejects or StrictSink(path)
    seen = SeenIds() if duplicates == "reject" else None
    if is_parquet(path):
        columns = ID_FIELDS if id_field is None else (id_field.partition(".")[0],)
        yield from read_rows(
            path, [columns], lambda row, value: _document(value, id_field, seen, row + 1, row, row + 1), sink
        )
        return
    yield from read_records(
        path,
        lambda line: _document(parse_json(line.data), id_field, seen, line.number, line.offset, line.end_offset),
        rejects=sink,
        max_line_bytes=max_line_bytes,
    )


def _document(
    value: dict[str, Any], id_field: str | None, seen: SeenIds | None, line: int, offset: int, end_offset: int
) -> DocumentLine:
    names = ID_FIELDS if id_field is None else (id_field,)
    given = [(name, found) for name in names if (found := _value_at(value, name)) is not None]
    ids = [check_id(found, name) for name, found in given]
    if not ids:
        keys = ", ".join(repr(str(name)[:40]) for name in list(value)[:5]) or "none"
        wanted = " or ".join(map(repr, names))
        remedy = "" if id_field else "; name another with --id-field"
        reason = f"no id: a document needs the key {wanted}, and this one's keys are {keys}{remedy}"
        raise RecordError("id_missing", reason)
    if len(set(ids)) > 1:
        raise RecordError("id_ambiguous", f"'id' is {ids[0]!r} and '_id' is {ids[1]!r}: keep one of them")
    if seen is not None and not seen.add(ids[0]):
        raise RecordError("duplicate_id", f"the id {ids[0]!r} was given before: the first document counts")
    for name in ID_FIELDS if id_field is None else ("_id",):  # no engine takes a source with _id
        value.pop(name, None)
    return DocumentLine(ids[0], value, line, offset, end_offset)


def _value_at(value: dict[str, Any], path: str) -> Any:
    """Return the value at a path of keys separated by dots, or None. A key that itself contains dots is tried first."""
    if path in value:
        return value[path]
    head, _, rest = path.partition(".")
    inner = value.get(head)
    return _value_at(inner, rest) if rest and isinstance(inner, dict) else None


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
MAX_GRADE = 1e6
"""Largest grade of a judgment, positive or negative: larger ones do not keep their differences as float32."""


class Link(NamedTuple):
    """A link: the document ``source`` refers to the document ``target``."""

    source: str
    target: str


class Query(NamedTuple):
    """A query: id and text, which is not empty."""

    id: str
    text: str


class Judgement(NamedTuple):
    """A judgment: the relevance ``grade`` of a document for a query. It is finite, and higher is better."""

    query_id: str
    document_id: str
    grade: float


def read_ids(path: _Path, *, rejects: RejectSink | None = None) -> Iterator[str]:
    """Yield the ids of a file with one id per line."""
    return read_records(path, lambda line: check_id(decoded(line.data)), rejects=rejects)


def parse_grade(text: str) -> float:
    """Return the grade that a text states. Raises `RecordError` for one that is no number or is too large."""
    grade = parse_number(text, "grade")
    if abs(grade) > MAX_GRADE:
        raise RecordError("grade", f"the grade is {text[:40]}: it must be from {-MAX_GRADE:,.0f} to {MAX_GRADE:,.0f}")
    return grade


def parse_number(text: str, what: str) -> float:
    """Return a finite decimal number. Raises `RecordError`; ``what`` names the number in its message."""
    # `float` would also accept "nan", "1_000" and digits of other scripts.
    value = float(text) if NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(value):
        raise RecordError("number", f"the {what} is {text[:40]!r}: it must be a finite decimal number")
    return value


_BATCH_ROWS = 512
_Row = dict[str, Any]


def is_parquet(path: _Path) -> bool:
    """Return whether a file starts with Parquet's magic bytes. Raises `InputError` if it cannot be opened."""
    return peek_bytes(path, 4) == _PARQUET_MAGIC


def read_rows(
    path: _Path,
    required: Sequence[Sequence[str]],
    parse: Callable[[int, _Row], _Record],
    rejects: RejectSink,
) -> Iterator[_Record]:
    """Yield the result of ``parse`` for each row of a Parquet file. A row is rejected if it raises `RecordError`.

    ``parse`` gets the 0-based row number and the row as a JSON-like object. ``required`` lists, for each required
    column, its possible names. Dates, times and decimals are converted to strings (ISO 8601), and nulls to None. A row
    with a value that JSON does not support (NaN, Infinity, bytes, text that is not UTF-8) is rejected. Its line is the
    1-based row, and its offset the 0-based one. The same holds for dates outside of the years 1 to 9999, and for other
    values that Python has no type for. Raises `InputError` for a damaged file, a missing column, two columns of one
    name, or an unknown time zone.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        _check_columns(path, file.schema_arrow, "")
        for choices in required:
            if not set(choices) & set(names):
                wanted = " or ".join(map(repr, choices))
                message = f"the Parquet file {os.fspath(path)!r} has no column {wanted}"
                remedy = f"its columns are {', '.join(names)[:500]}: rename one"
                raise InputError(f"{message}; {remedy}", path=os.fspath(path))
        first = 0
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], use_threads=False):
                yield from _batch_rows(batch, first, parse, rejects)
                first += batch.num_rows


def arrow() -> Any:
    """Return pyarrow with its modules for computing and Parquet. It is imported late because it loads numpy."""
    import pyarrow.compute
    import pyarrow.parquet

    return pyarrow


@contextmanager
def open_parquet(path: _Path) -> Iterator[Any]:
    """Yield a ``pyarrow.parquet.ParquetFile``. If its pages have checksums, they are verified.

    Raises `InputError` if the file is damaged, also when this is detected within the block.
    """
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error


def _check_columns(path: _Path, columns: Any, within: str) -> None:
    """Raise `InputError` for two columns of one name or an unknown time zone, also within the columns of a struct.

    ``columns`` is a schema of Arrow, or a type with inner columns; ``within`` is the path of its column.
    """
    pa = arrow()
    is_schema = isinstance(columns, pa.Schema)
    fields = [columns.field(number) for number in range(len(columns.names) if is_schema else columns.num_fields)]
    counts = Counter(each.name for each in fields)
    for each in fields:
        name = f"{within}{each.name}"
        if counts[each.name] > 1:
            message = f"the Parquet file {os.fspath(path)!r} has {counts[each.name]} columns {name!r}"
            raise InputError(f"{message}: rename or drop all but one", path=os.fspath(path))
        if pa.types.is_timestamp(each.type) and not _is_known_zone(each.type):
            message = f"the column {name!r} of the Parquet file {os.fspath(path)!r} has the time zone {each.type.tz!r}"
            raise InputError(f"{message}, which is not known here: convert the column to UTC", path=os.fspath(path))
        _check_columns(path, each.type, f"{name}.")


def _is_known_zone(type_: Any) -> bool:
    """Return whether times of a type of Arrow can be converted, so that its time zone is known."""
    pa = arrow()
    try:
        pa.scalar(0, type_).as_py()
    except (LookupError, OSError, ValueError, pa.ArrowException):
        return False
    return True


def _batch_rows(
    batch: Any, first: int, parse: Callable[[int, _Row], _Record], rejects: RejectSink
) -> Iterator[_Record]:
    for row, values in enumerate(_python_rows(batch), start=first):
        value = None
        try:
            if isinstance(values, RecordError):
                raise values
            value = {name: _plain(item) for name, item in values.items()}
            record = parse(row, value)
        except RecordError as error:
            rejects.reject(row + 1, row, error.message, "" if value is None else str(value)[:800], kind=error.kind)
            continue
        if isinstance(rejects, RejectLog):
            rejects.accept()
        yield record


def _python_rows(batch: Any) -> list[_Row | RecordError]:
    """Return the rows of a batch as Python values, or the error for a row with a value that cannot be converted."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):
        # One such value makes the whole conversion fail, so it is located by bisection.
        if batch.num_rows == 1:
            return [_unconvertible(batch)]
        half = batch.num_rows // 2
        return _python_rows(batch.slice(0, half)) + _python_rows(batch.slice(half))


def _unconvertible(row: Any) -> RecordError:
    """Return the error for the first value of a row (a batch of one) that cannot be converted."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            column.to_pylist()
        except UnicodeDecodeError as error:
            return RecordError("not_utf8", f"a text of the column {name!r} is not UTF-8 ({error})")
        except (ValueError, OverflowError) as error:
            value = f"a value of the column {name!r}, of type {column.type}, cannot be converted ({str(error)[:100]})"
            return RecordError("out_of_range", f"{value}: dates must be in the years 1 to 9999; correct or drop it")
    return RecordError("out_of_range", "the row cannot be converted: check its values")


def _plain(value: Any) -> Any:
    """Convert a Parquet value to a JSON value."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RecordError("not_finite", f"a value is {value}: JSON has no such number; write null")
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise RecordError(
        "not_json", f"a value is {type(value).__name__}: JSON cannot carry it; drop or convert the column"
    )


def _damaged(path: _Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
        return open_error(path, error)
    message = f"the Parquet file {os.fspath(path)!r} is damaged or cut short ({str(error)[:200]})"
    return InputError(f"{message}: write it again", path=os.fspath(path))
