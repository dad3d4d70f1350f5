"""Export of the documents of an index to a file for training. An interrupted export can be resumed.

A document's position in a point in time (``_shard_doc``) has no meaning in the next one, which has other shard copies
and segments. The number of its last write (``_seq_no``) is stable, so documents are read in that order, and documents
written or changed later come after all that were read. A resumed export therefore misses nothing. It can only contain
too much, namely documents deleted in the meantime. So if it has as many documents as the new point in time, it has the
same ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import IO, Any, NamedTuple

from reranker.engines.given_field import check_given_field
from reranker.engines.protocol import Engine, ReadsByWrites, refresh_if_allowed
from reranker.errors import ConfigError, EngineAuthError, NothingToLearn
from reranker.files import make_durable, replacing, write_file
from reranker.progress import Progress, Say, no_progress
from reranker.records import StoredDocument
from reranker.text.view import TextView

BATCH = 500
NOTE_EVERY_S = 5.0
"""Seconds between two saved positions, so that an interrupted export repeats at most this much reading."""


class _Line(NamedTuple):
    """Location of a document's line in the unsorted file. Lines of the same document are ordered by age."""

    id: str
    held_by: str
    """Its index, followed by its routing value if it has one, because several shards may contain the same id."""
    at: int
    """Offset of the line in bytes."""
    n_bytes: int
    """Length of the line in bytes."""


def export_documents(
    engine: Engine, index: str, view: TextView, path: Path, progress: Progress = no_progress, say: Say = no_progress
) -> int:
    """Write the text fields of all documents of an index as JSON lines and return the number of lines.

    The lines are sorted by id, because the scan order is engine-specific and training depends on the order of
    documents. Their offsets in a first, unsorted file are held in memory, about 150 bytes per document. An id that
    several indexes of an alias contain is written once, with the text that sorts first.

    An interrupted export of the same engine, indexes and fields is resumed if the engine is a `ReadsByWrites`; other
    engines start again. The file has the index's content at the end of the export: documents changed in the meantime
    are read again. If documents were deleted, or the saved part is damaged or belongs to other fields or indexes, all
    documents are read again, and a message is passed to ``say``.

    Raises
    ------
    NothingToLearn
        If the index is empty.
    EngineError
        If the index cannot be read.
    ConfigError
        If another process is writing the same file, or the index does not return the vectors that the view reads.
    """
    check_given_field(engine, index, view.vector)
    path.parent.mkdir(parents=True, exist_ok=True)
    refresh_if_allowed(engine, index)
    fields = view.source_fields
    with _unsorted(path) as (file, note):
        reading = Reading(file, note, _identity(engine, index, fields))
        reading.resume(say)
        if not reading.read(engine, index, fields, progress):
            say("documents were deleted or changed while the index was read: all are read again")
            reading.clear()
            reading.read(engine, index, fields, progress)
        if not reading.lines:
            note.unlink(missing_ok=True)
            raise NothingToLearn(f"index {index!r} on {engine.spec} contains no documents: fill it with `ssi index`")
        n_documents = _write_sorted(file, reading.lines, path)
        note.unlink(missing_ok=True)
    return n_documents


def forget_documents(path: Path) -> None:
    """Remove a file of `export_documents` and the files of an interrupted export."""
    for each in (path, *_beside(path)):
        each.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.unsorted"), path.with_name(f".{path.name}.reading.json")


@contextmanager
def _unsorted(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield the locked file of lines in reading order and the path of its saved position."""
    unsorted, note = _beside(path)
    unsorted.touch()
    with unsorted.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is writing {str(path)!r}: wait until it has finished") from None
        try:
            yield file, note
        finally:
            if not note.exists():
                unsorted.unlink(missing_ok=True)


def _identity(engine: Engine, index: str, fields: Sequence[str]) -> dict[str, Any] | None:
    """Return values that must be equal for resuming an export; None if it cannot be resumed."""
    if not isinstance(engine, ReadsByWrites):
        return None
    try:
        return {"engine": engine.spec, "indexes": engine.index_uuids(index), "fields": list(fields)}
    except EngineAuthError:
        return None  # a role without permission to look up the indexes behind the name


class Reading:
    """An export in progress: ``lines`` of a file, and the write number up to which it is complete.

    ``identity`` contains the engine, indexes and fields; None if the export cannot be resumed.
    """

    def __init__(self, file: IO[bytes], note: Path, identity: dict[str, Any] | None) -> None:
        self._file, self._note, self._identity = file, note, identity
        self.lines: list[_Line] = []
        self._seq_no, self._hash = 0, hashlib.sha256()

    def clear(self) -> None:
        """Discard everything that was read."""
        self._note.unlink(missing_ok=True)
        self.lines, self._seq_no, self._hash = [], 0, hashlib.sha256()
        self._cut(0)

    def _cut(self, n_bytes: int) -> None:
        """Truncate the file to this many bytes and continue writing there."""
        self._file.truncate(n_bytes)
        self._file.seek(n_bytes)

    def read(self, engine: Engine, index: str, fields: Sequence[str], progress: Progress) -> bool:
        """Read the remaining documents; afterwards, ``lines`` contains the newest line of each document.

        Returns False if the saved part does not match the index because documents were deleted since.
        """
        begin, total = self._file.tell(), engine.count(index)
        # Count before opening the point in time. A document changed in between is counted here and read again, so the
        # numbers differ and everything is read again.
        older = engine.count(index, {"range": {"_seq_no": {"lt": self._seq_no}}}) if begin else 0
        noted = time.monotonic()
        for batch in self._batches(engine, index, fields):
            self._add(batch)
            if self._identity is not None and time.monotonic() - noted >= NOTE_EVERY_S:
                self._take_note()
                noted = time.monotonic()
            progress(len(self.lines), total)
        self._file.flush()
        self.lines.sort()
        self.lines = [list(of_one)[-1] for _, of_one in groupby(self.lines, key=itemgetter(0, 1))]
        return sum(line.at < begin for line in self.lines) == older

    def _batches(self, engine: Engine, index: str, fields: Sequence[str]) -> Iterator[list[StoredDocument]]:
        if self._identity is None or not isinstance(engine, ReadsByWrites):
            return engine.scan(index, source=fields, batch_size=BATCH)
        return engine.scan_writes(index, self._seq_no, source=fields, batch_size=BATCH)

    def _add(self, batch: Sequence[StoredDocument]) -> None:
        for document in batch:
            source = {name: value for name, value in document.source.items() if name not in ("id", "_id")}
            text = json.dumps({"id": document.id, **dict(sorted(source.items()))}).encode("ascii") + b"\n"
            index = document.index if document.routing is None else json.dumps([document.index, document.routing])
            head = index.encode() + b"\t"
            self.lines.append(_Line(document.id, intern(index), self._file.tell() + len(head), len(text)))
            self._file.write(head + text)
            self._hash.update(head + text)
        self._seq_no = batch[-1].seq_no

    def _take_note(self) -> None:
        """Flush the lines to disk, then save the position."""
        make_durable(self._file)
        note = {
            "of": self._identity,
            "seq_no": self._seq_no,
            "bytes": self._file.tell(),
            "documents": len(self.lines),
            "sha256": self._hash.hexdigest(),
        }
        write_file(self._note, json.dumps(note).encode("ascii"))

    def resume(self, say: Say) -> None:
        """Load the lines of an interrupted export; if they are damaged or do not match, report it and start again."""
        if not self._note.exists():
            self._cut(0)
            return
        content = self._note.read_bytes()
        try:
            why = self._take_over(json.loads(content))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"is damaged ({error!s:.80})"
        if why:
            say(f"the saved part of an interrupted export, {self._file.name}, {why}: all documents are read again")
            self.clear()
        else:
            say(f"an interrupted export continues after {len(self.lines):,} documents")

    def _take_over(self, note: Mapping[str, Any]) -> str:
        """Load the lines described by the saved position; return the reason if they cannot be used, else ""."""
        if note["of"] != self._identity:
            return "belongs to another engine, index or fields"
        n_bytes, seq_no = int(note["bytes"]), int(note["seq_no"])
        self._file.seek(0)
        while self._file.tell() < n_bytes and (line := self._file.readline()):
            head, _, text = line.partition(b"\t")
            self._hash.update(line)
            at = self._file.tell() - len(text)
            self.lines.append(_Line(json.loads(text)["id"], intern(head.decode()), at, len(text)))
        found = {"bytes": self._file.tell(), "documents": len(self.lines), "sha256": self._hash.hexdigest()}
        if seq_no < 0 or any(note[name] != value for name, value in found.items()):
            return "is damaged (its content does not match its checksum)"
        self._seq_no = seq_no
        self._cut(n_bytes)
        return ""


def _write_sorted(unsorted: IO[bytes], lines: Sequence[_Line], path: Path) -> int:
    """Copy the lines sorted, one per id, and return their number."""
    written = 0
    with replacing(path) as target:
        for _, of_id in groupby(lines, key=itemgetter(0)):
            copies = []
            for line in of_id:
                unsorted.seek(line.at)
                copies.append(unsorted.read(line.n_bytes))
            target.write(min(copies))
            written += 1
    return written
