"""The documents of an index as a file to train on; a reading that was stopped goes on where it was.

A document's place in a view (``_shard_doc``) means nothing in the next view, whose copies and segments are others. The
number of its last write (``_seq_no``) stays, so documents are read in that order: those written or changed later come
after all that was read before. A reading that goes on therefore lacks nothing, and has too much only what was deleted
meanwhile: where it has as many documents as the new view, it has the same.
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

from reranker.engines.protocol import Engine, ReadsByWrites, refresh_if_allowed
from reranker.errors import ConfigError, EngineAuthError, NothingToLearn
from reranker.files import make_durable, replacing, write_file
from reranker.progress import Progress, Say, no_progress
from reranker.records import StoredDocument
from reranker.text.view import TextView

BATCH = 500
NOTE_EVERY_S = 5.0
"""Seconds between two notes of how far a reading is: what a stopped one reads again at most."""


class _Line(NamedTuple):
    """Where a document's line is in the unsorted file; of one document, lines are ordered by age."""

    id: str
    held_by: str
    """Its index, with its routing if it has one: the same id may be on several shards."""
    at: int
    n_bytes: int


def export_documents(
    engine: Engine, index: str, view: TextView, path: Path, progress: Progress = no_progress, say: Say = no_progress
) -> int:
    """Write the text fields of all documents of an index as JSON lines and return their number.

    Engines scan in an order of their own, and training depends on the order of its documents: the lines are sorted by
    id (their places in a first, unsorted file are held in memory, about 150 bytes a document). An id that several
    indexes of an alias hold is written once, with the text that sorts first.

    A reading of the same engine, indexes and fields that was stopped goes on (`ReadsByWrites`; others begin anew). The
    file holds what the index has then: documents changed meanwhile are read again, and where some were deleted, or what
    was kept is damaged or of other fields or indexes, ``say`` tells so and all is read anew.

    `NothingToLearn` if the index is empty; `EngineError` if it cannot be read; `ConfigError` if another process is
    writing the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    refresh_if_allowed(engine, index)
    fields = [spec.path for spec in view.fields]
    with _unsorted(path) as (file, note):
        reading = Reading(file, note, _identity(engine, index, fields))
        reading.resume(say)
        if not reading.read(engine, index, fields, progress):
            say("documents were deleted or changed while the index was read: all are read again")
            reading.clear()
            reading.read(engine, index, fields, progress)
        if not reading.lines:
            note.unlink(missing_ok=True)
            raise NothingToLearn(f"index {index!r} on {engine.spec} holds no document: fill it with `ssi index`")
        n_documents = _write_sorted(file, reading.lines, path)
        note.unlink(missing_ok=True)
    return n_documents


def forget_documents(path: Path) -> None:
    """Remove a file of `export_documents`, and what a stopped reading kept for it."""
    for each in (path, *_beside(path)):
        each.unlink(missing_ok=True)


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f".{path.name}.unsorted"), path.with_name(f".{path.name}.reading.json")


@contextmanager
def _unsorted(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield the locked file of lines in the order of reading, and where the note on it is; without a note it goes."""
    unsorted, note = _beside(path)
    unsorted.touch()
    with unsorted.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is writing {str(path)!r}: wait for its end, or name another") from None
        try:
            yield file, note
        finally:
            if not note.exists():
                unsorted.unlink(missing_ok=True)


def _identity(engine: Engine, index: str, fields: Sequence[str]) -> dict[str, Any] | None:
    """Return what must be the same for a reading to go on; None where none can."""
    if not isinstance(engine, ReadsByWrites):
        return None
    try:
        return {"engine": engine.spec, "indexes": engine.index_uuids(index), "fields": list(fields)}
    except EngineAuthError:
        return None  # a role that may not ask which index it reads


class Reading:
    """What was read of an index so far: ``lines`` of a file, and the write up to which all is there.

    ``identity`` are the engine, indexes and fields, or None where a reading cannot go on.
    """

    def __init__(self, file: IO[bytes], note: Path, identity: dict[str, Any] | None) -> None:
        self._file, self._note, self._identity = file, note, identity
        self.lines: list[_Line] = []
        self._seq_no, self._hash = 0, hashlib.sha256()

    def clear(self) -> None:
        """Begin anew."""
        self._note.unlink(missing_ok=True)
        self.lines, self._seq_no, self._hash = [], 0, hashlib.sha256()
        self._cut(0)

    def _cut(self, n_bytes: int) -> None:
        """End the file after this many bytes, and write on from there."""
        self._file.truncate(n_bytes)
        self._file.seek(n_bytes)

    def read(self, engine: Engine, index: str, fields: Sequence[str], progress: Progress) -> bool:
        """Read the rest, and leave in ``lines`` the newest of each document.

        False: what was kept is not what the index has; documents were deleted since.
        """
        begin, total = self._file.tell(), engine.count(index)
        # Counted before the view is made: what is changed in between counts here and is read again, so that the numbers
        # differ and all is read anew.
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
        """Make what was read durable, and then say so."""
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
        """Take over what a stopped reading noted; where it does not fit or is damaged, say so and begin anew."""
        if not self._note.exists():
            self._cut(0)
            return
        content = self._note.read_bytes()
        try:
            why = self._take_over(json.loads(content))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"is damaged ({error!s:.80})"
        if why:
            say(f"what a stopped reading kept in {self._file.name} {why}: all documents are read again")
            self.clear()
        else:
            say(f"a reading that was stopped goes on after {len(self.lines):,} documents")

    def _take_over(self, note: Mapping[str, Any]) -> str:
        """Read the lines that the note vouches for; return why they cannot be used, or ""."""
        if note["of"] != self._identity:
            return "is of another engine, index or fields"
        n_bytes, seq_no = int(note["bytes"]), int(note["seq_no"])
        self._file.seek(0)
        while self._file.tell() < n_bytes and (line := self._file.readline()):
            head, _, text = line.partition(b"\t")
            self._hash.update(line)
            at = self._file.tell() - len(text)
            self.lines.append(_Line(json.loads(text)["id"], intern(head.decode()), at, len(text)))
        found = {"bytes": self._file.tell(), "documents": len(self.lines), "sha256": self._hash.hexdigest()}
        if seq_no < 0 or any(note[name] != value for name, value in found.items()):
            return "is damaged (its content is not what was noted)"
        self._seq_no = seq_no
        self._cut(n_bytes)
        return ""


def _write_sorted(unsorted: IO[bytes], lines: Sequence[_Line], path: Path) -> int:
    """Copy sorted lines, one an id, and return their number."""
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
