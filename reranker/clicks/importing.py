"""Log files into a click log: each line once, however often the import is run, stopped or killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reranker.clicks.log import ClickLog, LogTransaction
from reranker.clicks.privacy import Pseudonymiser
from reranker.clicks.readers.files import Place, ReadCounts, read_file, resume_place, whole_place
from reranker.clicks.storage import Source
from reranker.errors import InputError
from reranker.formats.rejects import RejectSink

FILE = "file"


@dataclass
class ImportReport:
    """What an import did.

    Parameters
    ----------
    rows : dict
        Rows added, by table.
    read : ReadCounts
        What became of the records read now.
    known : list of str
        Files whose content was in the log already.
    resumed : list of str
        Files of which a part was in the log already.
    """

    rows: dict[str, int] = field(default_factory=dict)
    read: ReadCounts = field(default_factory=ReadCounts)
    known: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)

    def add(self, rows: dict[str, int]) -> None:
        """Count rows that were added."""
        for name, count in rows.items():
            self.rows[name] = self.rows.get(name, 0) + count

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
    progress: Callable[[int, int | None], None] | None = None,
) -> ImportReport:
    """Bring log files into a click log and return what was done.

    A file is known by its content: one that was imported is passed over, under any name and compression; one that has
    grown is read from where it ended. After a kill the import is run again and goes on. A last line without its end
    that cannot be read is rejected and read again when the file has grown. A file without one readable line can be
    brought again: its form may have been another than was said.

    Parameters
    ----------
    log : ClickLog
    paths : sequence of path-like
    privacy : Pseudonymiser
        The hashes of the log (`ClickLog.privacy`).
    format, rejects, now_ms
        As in `reranker.clicks.readers.files.read_file`.
    progress : callable or None
        ``progress(records, None)`` is called now and then.

    Raises
    ------
    InputError
        Where a file cannot be read, the log is being changed by another process or has another key.
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
    progress: Callable[[int, int | None], None] | None,
) -> None:
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or device, which cannot be read again after a kill"
        raise InputError(f"{str(path)!r} is {kind}: name a file", path=str(path))
    start, is_all = resume_place(path, _places(transaction))
    if is_all:
        report.known.append(str(path))
        return
    is_resumed = start is not None and start.offset > 0
    if is_resumed:
        report.resumed.append(str(path))
    source = Source(path.name, FILE)
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
                _commit(transaction, source, place)
            if progress is not None:
                progress(report.read.total, None)
        if is_resumed or read.good + read.skipped > n_readable or read.bad == n_bad:
            _commit(transaction, source, place or whole_place(path))
    finally:
        report.add(transaction.added)


def _commit(transaction: LogTransaction, source: Source, place: Place) -> None:
    source.offset, source.lines, source.digest = place
    transaction.commit(source)


def _places(transaction: LogTransaction) -> dict[int, set[str]]:
    """Return what is known of files: offset → hashes of the content before it."""
    found: dict[int, set[str]] = {}
    for one in transaction.sources(FILE):
        found.setdefault(one.offset, set()).add(one.digest)
    return found
