"""A plain or gzipped text file as a stream of lines with their places; strict JSON; and what becomes of bad lines.

A record that breaks a rule is counted, kept with its place and reason, and never stops a run.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol, TypeVar, cast

from reranker.errors import InputError

MAX_SAMPLE_CHARS = 200
MAX_LINE_BYTES = 2 * 1024 * 1024
"""Longest line of tables and logs; documents have their own limit."""

_Record = TypeVar("_Record")
_BLOCK = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_FOREIGN = {
    b"\xff\xfe": ("UTF-16 text", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
    b"PK\x03\x04": ("a zip archive", "unpack it, or pack it with gzip"),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "decompress it, or compress it with gzip"),
    b"BZh": ("bzip2-compressed", "decompress it, or compress it with gzip"),
    b"\xfd7zXZ": ("xz-compressed", "decompress it, or compress it with gzip"),
    b"PAR1": ("Parquet", "only documents and pairs can come in Parquet; give a text file here"),
}


class RecordError(InputError):
    """A line or row that breaks a rule; raised by parsers and caught by readers, which know its place.

    ``kind`` is one word for counting, the same for all records of this fault (``duplicate_id``).
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason, kind=kind)

    @property
    def kind(self) -> str:
        """One word for counting."""
        return str(self.data["kind"])


class RejectSink(Protocol):
    """Whatever takes refused records."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Take one refused record, with a word for counting.

        ``line`` is the 1-based line or row, ``offset`` the byte of the decompressed stream where it begins, or the
        0-based row of Parquet. Of ``sample``, the beginning of the record, `MAX_SAMPLE_CHARS` characters are kept.
        """
        ...


class RejectLog(AbstractContextManager["RejectLog"]):
    """Counts refused records and, with a path, writes each to a file of JSON lines.

    A record is ``{"line", "offset", "kind", "reason", "sample"}`` and is handed to the operating system at once, so
    that it outlives the process. Use it as a context manager, or call `close`.

    `InputError` where the file cannot be written.

    Parameters
    ----------
    path : path-like or None
        The reject file, readable by its owner only, made or emptied when the log is; None only counts, as readers need
        that go through a file for the second time.
    keep_bytes : int
        With a run that resumes: how much of an existing file is kept (its `n_bytes` at the checkpoint).
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, keep_bytes: int = 0) -> None:
        self.path = None if path is None else Path(path)
        self.kinds: Counter[str] = Counter()
        self._first = ""
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
        """Number of refused records of this run."""
        return self.kinds.total()

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Count one refused record and write it.

        `InputError` where the file cannot be written (a full disk).
        """
        self.kinds[kind] += 1
        self._first = self._first or f"; first: line {line}: {reason}"
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
        """Return one line for people: how many records were refused, of which kinds, where they are, and the first."""
        if not self.count:
            return "no record was refused"
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in self.kinds.most_common())
        place = f"; see {self.path}" if self.path else ""
        return f"{self.count:,} records were refused ({kinds}){place}{self._first}"

    def close(self) -> None:
        """Close the file; the counts stay readable."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unwritable(self, error: Exception) -> InputError:
        message = f"the reject file {self.path} cannot be written ({error})"
        return InputError(f"{message}: free the disk or name another file", path=str(self.path))


class StrictSink:
    """Raises at the first refused record: what readers use where no sink is given.

    ``path`` is the file being read, for the message.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Raise `InputError` with the record's place and reason."""
        message = f"{self._path}, line {line} (byte {offset}): {reason}"
        data = {"path": self._path, "line": line, "offset": offset, "kind": kind, "sample": _printable(sample)}
        raise InputError(message, **data) from None


def _printable(sample: str | bytes) -> str:
    if isinstance(sample, bytes):
        sample = sample[: 4 * MAX_SAMPLE_CHARS].decode("utf-8", "replace")
    return sample[:MAX_SAMPLE_CHARS]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file.

    ``number`` is 1-based; ``offset`` and ``end_offset`` are the bytes of the decompressed stream where it begins and
    where the next line begins; ``data`` is its content without line end (LF or CR LF).
    """

    number: int
    offset: int
    end_offset: int
    data: bytes


def read_lines(
    path: str | os.PathLike[str],
    *,
    rejects: RejectSink | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Line]:
    """Yield the lines of a plain or gzipped file (or pipe) that are not blank, holding one at a time.

    A UTF-8 byte order mark at the beginning of the file is no part of its first line. A line longer than
    ``max_line_bytes``, its end not counted, is rejected without being held.

    `InputError` where the file cannot be opened or read on, or is of another kind.
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
                # Handed over whole: a line of 100 MB is not held here as well while it is dealt with.
                handed = [Line(number, offset, end, data)]
                del data
                yield handed.pop()
            offset = end


def read_records(
    path: str | os.PathLike[str],
    parse: Callable[[Line], _Record],
    *,
    rejects: RejectSink | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[_Record]:
    """Yield what ``parse`` makes of each line of a file; lines that it refuses by a `RecordError` are rejected.

    The other parameters, and the errors, are those of `read_lines`.
    """
    sink = rejects or StrictSink(path)
    for line in read_lines(path, rejects=sink, max_line_bytes=max_line_bytes):
        try:
            record = parse(line)
        except RecordError as error:
            sink.reject(line.number, line.offset, error.message, line.data[:800], kind=error.kind)
            continue
        del line  # a document of 100 MB is not held twice while it is dealt with
        yield record


def decoded(data: bytes) -> str:
    """Return the text of a line; raises `RecordError` where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise RecordError("not_utf8", f"{byte}, which is not UTF-8 there ({error.reason})") from None


def open_error(path: str | os.PathLike[str], error: Exception) -> InputError:
    """Return the error for a file that cannot be opened, with its remedy."""
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
"""What reading the content of a file may raise."""


def read_error(path: str | os.PathLike[str], error: Exception, line: int) -> InputError:
    """Return the error for a file that cannot be read on after a line, with its remedy."""
    if not isinstance(error, EOFError | gzip.BadGzipFile | zlib.error):
        return open_error(path, error)
    name = os.fspath(path)
    message = f"the gzip stream of {name!r} is damaged or cut short after line {line} ({error})"
    return InputError(f"{message}: fetch or write the file again", path=name, line=line)


def peek_bytes(path: str | os.PathLike[str], n: int = 4) -> bytes:
    """Return the first ``n`` bytes of a regular file, or b"" of anything that would lose them by being read."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as file:
            return file.read(n)
    except (OSError, ValueError) as error:
        raise open_error(path, error) from error


def open_content(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a plain or gzipped file for reading its content; gzip is told by its two magic bytes.

    `InputError` where it cannot be opened or is of another kind. Reading on may raise what `read_error` explains.
    """
    try:
        # Closed by the caller's `closing`, or by the wrapper around it.
        raw = cast(io.BufferedReader, open(path, "rb", buffering=_BLOCK))
        magic = raw.peek(8)[:8]
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
    return raw


class _GzipStream(io.RawIOBase):
    """The content of a gzip file, a piece at a time, so that all before a damaged place can be read."""

    def __init__(self, packed: io.BufferedReader) -> None:
        self._packed = packed
        self._content = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        data = self._content.read1(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._content.close()
        self._packed.close()


def _readline(stream: BinaryIO, limit: int, path: str | os.PathLike[str], line: int) -> bytes:
    try:
        return stream.readline(limit)
    except READ_ERRORS as error:
        raise read_error(path, error, line) from error


def _skip_line(stream: BinaryIO, data: bytes, path: str | os.PathLike[str], line: int) -> int:
    """Read to the end of a line that began with ``data`` and return the number of bytes skipped."""
    n_skipped = 0
    while data and not data.endswith(b"\n"):
        data = _readline(stream, _BLOCK, path, line)
        n_skipped += len(data)
    return n_skipped


MAX_DEPTH = 100
"""Deepest nesting of arrays and objects accepted in one line."""


def parse_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a line holds.

    Stricter than the standard library: refuses NaN and Infinity, numbers too large for a double, integers of more
    than 4,300 digits, a key given twice in one object (engines refuse it or keep either), lone surrogate escapes,
    nesting deeper than `MAX_DEPTH`, and any value but an object. The standard library's parser is used for its hooks;
    faster ones (orjson, msgspec) keep the last of two equal keys silently.

    Raises
    ------
    RecordError
        Naming the rule broken.
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
    # As many brackets as levels are needed at least, so most lines need no walk.
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
    """Return whether arrays and objects nest deeper than ``limit``; walks level by level, so no recursion."""
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
