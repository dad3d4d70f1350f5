"""The lines of a log file in blocks: far fewer steps a line than one line at a time, and places to go on from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from io import BufferedReader
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from reranker.errors import InputError
from reranker.formats.lines import MAX_LINE_BYTES, READ_ERRORS, open_content, read_error
from reranker.formats.parquet import is_parquet

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from reranker.formats import RejectSink

BLOCK_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class Place(NamedTuple):
    """How far a file was read: content bytes, lines, and the SHA-256 of the content up to there."""

    offset: int = 0
    lines: int = 0
    digest: str = ""


NOTHING_READ = Place(digest=sha256().hexdigest())


class Block(NamedTuple):
    """Lines that stand together.

    Parameters
    ----------
    lines : list of bytes
        Without line feeds; blank ones included, so that the numbers are right.
    number : int
        1-based number of the first one.
    offset : int
        Byte of the content where it begins.
    end : Place
        Where to go on after the block.
    is_cut : bool
        The last line of the file, without a line end: it may still be being written.
    """

    lines: list[bytes]
    number: int
    offset: int
    end: Place
    is_cut: bool = False

    def place_of(self, index: int) -> tuple[int, int]:
        """Return the number and the byte offset of one of the lines."""
        return self.number + index, self.offset + sum(map(len, self.lines[:index])) + index


def read_blocks(
    path: str | os.PathLike[str],
    rejects: RejectSink,
    *,
    start: Place | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    hashed: bool = True,
) -> Iterator[Block]:
    """Yield the lines of a plain or gzipped file in blocks of about a megabyte.

    Lines longer than ``max_line_bytes`` go to ``rejects`` without being held; what stands in their place is blank.
    Without ``hashed`` the places have no hash, which makes reading a little faster.
    """
    place = start or Place()
    with closing(open_content(path)) as stream:
        content = skip_known(stream, path, place)
        yield from _Blocks(stream, path, rejects, place, content if hashed else None, max_line_bytes)


def skip_known(stream: BinaryIO, path: str | os.PathLike[str], place: Place) -> Hash:
    """Read the part of a file that was dealt with before and return its hash, to go on with.

    Raises
    ------
    InputError
        Where the file is shorter than that, or its content is another.
    """
    hashed = sha256()
    left = place.offset
    while left:
        data = _read(stream, min(left, BLOCK_BYTES), path, 0)
        if not data:
            break
        hashed.update(data)
        left -= len(data)
    if left or (place.digest and hashed.hexdigest() != place.digest):
        message = f"the file {os.fspath(path)!r} is not the one that was read before: its beginning has changed"
        raise InputError(f"{message}; start again", path=os.fspath(path))
    return hashed


def resume_place(path: str | os.PathLike[str], places: dict[int, set[str]]) -> tuple[Place | None, bool]:
    """Return the furthest place up to which a file has a known content, and whether that is all of it.

    Parameters
    ----------
    path : path-like
        Plain or gzipped, whose content counts, or Parquet, whose bytes count.
    places : dict
        Offset → hashes of the content before it.
    """
    furthest: Place | None = None
    hashed, at, n_lines = sha256(), 0, 0
    with closing(_open(path)) as stream:
        for offset in sorted(places):
            while at < offset and (data := _read(stream, min(offset - at, BLOCK_BYTES), path, n_lines)):
                hashed.update(data)
                at += len(data)
                n_lines += data.count(b"\n")
            if at < offset:
                return furthest, furthest is not None and furthest.offset == at
            if hashed.hexdigest() in places[offset]:
                furthest = Place(offset, n_lines, hashed.hexdigest())
        # The last of the places may be one of another file, beyond the furthest of this one.
        return furthest, furthest is not None and furthest.offset == at and not _read(stream, 1, path, n_lines)


def whole_place(path: str | os.PathLike[str]) -> Place:
    """Return the place at the end of a file (or of a gzipped file's content, or of Parquet's bytes)."""
    hashed, at, n_lines = sha256(), 0, 0
    with closing(_open(path)) as stream:
        while data := _read(stream, BLOCK_BYTES, path, n_lines):
            hashed.update(data)
            at += len(data)
            n_lines += data.count(b"\n")
    return Place(at, n_lines, hashed.hexdigest())


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    if is_parquet(path):
        return open(path, "rb")
    return open_content(path)


class _Blocks:
    """The state of reading a file in blocks."""

    def __init__(
        self,
        stream: BinaryIO,
        path: str | os.PathLike[str],
        rejects: RejectSink,
        place: Place,
        hashed: Hash | None,
        limit: int,
    ) -> None:
        self._stream, self._path, self._rejects, self._hash, self._limit = stream, path, rejects, hashed, limit
        self._offset, self._lines = place.offset, place.lines

    def __iter__(self) -> Iterator[Block]:
        tail = b""
        while data := _read(self._stream, BLOCK_BYTES, self._path, self._lines):
            data = tail + data
            end = data.rfind(b"\n")
            if end >= 0:
                tail = data[end + 1 :]
                yield self._block(data[: end + 1])
            else:
                tail = data
            if len(tail) > self._limit + 1:
                tail = self._skip_line(tail)
        end = tail.rfind(b"\n") + 1
        for rest in (tail[:end], tail[end:]):
            if rest:
                yield self._block(rest)

    def _block(self, data: bytes) -> Block:
        """Return a block of whole lines, or of the one line that has no end."""
        is_cut = not data.endswith(b"\n")
        if not is_cut and self._hash is not None:
            self._hash.update(data)
        offset, number = self._offset, self._lines + 1
        lines = (data if is_cut else data[:-1]).split(b"\n")
        if offset == 0:
            # Blanks keep the offsets of the other lines right.
            lines[0] = b"   " + lines[0][3:] if lines[0].startswith(_BOM) else lines[0]
        if is_cut:
            return Block(lines, number, offset, Place(offset + len(data), self._lines, self._digest(data)), True)
        self._offset += len(data)
        self._lines += len(lines)
        return Block(lines, number, offset, Place(self._offset, self._lines, self._digest()))

    def _digest(self, rest: bytes = b"") -> str:
        if self._hash is None:
            return ""
        whole = self._hash.copy()
        whole.update(rest)
        return whole.hexdigest()

    def _skip_line(self, tail: bytes) -> bytes:
        """Reject a line that is too long, read to its end, and return what was read of the next."""
        sample, n_bytes = tail[:800], 0
        while True:
            end = tail.find(b"\n")
            part = tail if end < 0 else tail[: end + 1]
            if self._hash is not None:
                self._hash.update(part)
            n_bytes += len(part)
            if end >= 0:
                tail = tail[end + 1 :]
                break
            tail = _read(self._stream, BLOCK_BYTES, self._path, self._lines)
            if not tail:
                break
        self._lines += 1
        reason = f"the line has {n_bytes} bytes: at most {self._limit} are accepted"
        self._rejects.reject(self._lines, self._offset, reason, sample, kind="line_too_long")
        self._offset += n_bytes
        return tail


def _read(stream: BinaryIO, n_bytes: int, path: str | os.PathLike[str], line: int) -> bytes:
    """Return what comes next: one read of the file at most, so that all before a damaged place is had."""
    try:
        return cast(BufferedReader, stream).read1(n_bytes)
    except READ_ERRORS as error:
        raise read_error(path, error, line) from error
