"""Resumable loading of a document file into an index, with vectors."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import Action, BulkEvents, BulkItem, BulkReport, BulkWriter, Stopped, WriteOptions
from indexer.checkpoint import (
    LoadCheckpoint,
    PrefixHash,
    RunRejects,
    check_unchanged,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    state_dir,
)
from indexer.encoding import ENCODE_BATCH, VersionEncoder
from reranker.accounts import InputAccount, LeftOut, merged
from reranker.config import instant
from reranker.engines.protocol import Engine, WriteOp
from reranker.errors import EngineError, InputError
from reranker.formats import DocumentLine, is_parquet, peek_bytes, read_documents
from reranker.progress import Progress, Say, no_progress, silent


@dataclass(frozen=True, slots=True)
class LoadOptions(WriteOptions):
    """Options of a load."""

    version_field: str | None = None
    """Field with the external version (an integer, or an ISO 8601 time), so that no document overwrites a newer one."""
    id_field: str | None = None
    """Field with the ids, see `reranker.formats.read_documents`."""
    restart: bool = False
    """Discard the checkpoint of an earlier, interrupted run."""
    state_path: Path | None = None
    """Folder of checkpoints; None: `state_dir`."""
    checkpoint_s: float = 1.0
    """Minimum time between two checkpoints, in seconds."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Result of a load. The counts of a resumed run include those before the interruption."""

    bulk: BulkReport
    """The account of the readable documents."""
    read_before: int
    """Number of them that an interrupted run had settled before."""
    unreadable: int
    """Number of lines rejected by the reader."""
    resumed_at: int
    """Line at which this run was resumed; 0 if it was not."""
    seconds: float
    """Duration of this run in seconds."""
    kinds: Mapping[str, int]
    """Number of unreadable lines by kind of error."""
    left_out: tuple[LeftOut, ...] = ()
    """Lines and documents that were rejected in this run, by kind of error."""

    @property
    def account(self) -> InputAccount:
        """Account of the file. Documents that were not settled before an early stop are in neither part."""
        n_before = self.bulk.rejected + self.unreadable - sum(part.count for part in self.left_out)
        others = (
            LeftOut("older than the stored version", self.bulk.superseded),
            LeftOut("rejected before an interruption", max(n_before, 0)),
        )
        return InputAccount("documents", self.bulk.indexed, merged((*self.left_out, *others)))

    @property
    def documents_per_s(self) -> float:
        """Documents settled per second by this run."""
        return (self.bulk.read - self.bulk.pending - self.read_before) / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        return {
            **self.bulk.to_json(),
            "unreadable": self.unreadable,
            "resumed_at_line": self.resumed_at,
            "seconds": round(self.seconds, 3),
            "documents_per_s": round(self.documents_per_s, 1),
            "rejects_by_kind": dict(self.kinds),
        }


def external_version(source: Mapping[str, Any], name: str) -> int:
    """Return the integer of at least 0, or the time in milliseconds since 1970, in a field.

    Raises `InputError` for other values.
    """
    value: Any = source
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            return max(0, round(instant(value).timestamp() * 1000))
    message = f"version field {name!r} is {value!r:.60}: it must be an integer of at least 0 or an ISO 8601 time"
    raise InputError(message, field=name)


def load_documents(
    engine: Engine,
    index: str,
    path: Path,
    version: VersionEncoder | None = None,
    *,
    options: LoadOptions | None = None,
    progress: Progress = no_progress,
    notice: Say = silent,
    sleep: Callable[[float], None] = time.sleep,
) -> LoadReport:
    """Send the documents of a file (JSON lines, plain or gzipped, or Parquet) to an existing index; return a report.

    Every line is stored, superseded, rejected with a reason, or pending at the end. A stopped or killed run is resumed
    when it is called again. A document sent twice is stored once.

    Parameters
    ----------
    engine, index, path
        The index and the file.
    version
        Adds the fields of a version; its context must have been entered. None: no vectors.
    options
        Options of the load.
    progress
        Called with the number of documents handled and the total number, estimated from the bytes, or None.
    notice, sleep
        As in `BulkEvents` and `BulkWriter`.

    Raises
    ------
    InputError
        If the file cannot be read, or has changed since the interrupted run.
    """
    return _Load(engine, index, path, version, options or LoadOptions(), progress).run(notice, sleep)


class _Load:
    """One run. The local store gets the row of the line that the engine has stored for a document."""

    def __init__(
        self,
        engine: Engine,
        index: str,
        path: Path,
        version: VersionEncoder | None,
        options: LoadOptions,
        progress: Progress,
    ) -> None:
        self.engine, self.index, self.path = engine, index, path
        self.version, self.options, self.progress = version, options, progress
        parquet = is_parquet(path)
        self.source_id = source_id(engine, index, path, version, options)
        self.checkpoint_file = checkpoint_path(options.state_path or state_dir(), self.source_id)
        self.prefix = PrefixHash(path, whole=parquet)
        packed = parquet or peek_bytes(path, 2) == b"\x1f\x8b"
        self.total_bytes = None if packed else path.stat().st_size
        self.stored_lines: list[int] = []
        self.superseded: list[BulkItem] = []
        self.last_checkpoint = time.monotonic()
        # The item with the numbers of stored and superseded documents up to it. The report also counts later ones.
        self.last_acked: tuple[BulkItem, int, int] | None = None

    def run(self, notice: Say, sleep: Callable[[float], None]) -> LoadReport:
        started = time.monotonic()
        start = self._start()
        options, counts = self.options, start.counts
        with closing(self.prefix.file):
            check_unchanged(start, self.prefix, self.path)
            refused = (counts.get("unreadable", 0), counts.get("rejected", 0))
            self.rejects = RunRejects(options.reject_path, start.offset, *refused)
            with closing(self.rejects.log):
                writer = BulkWriter(
                    self.engine,
                    self.index,
                    rng=np.random.default_rng(options.seed),
                    limits=options.limits,
                    policy=options.policy,
                    events=BulkEvents(self._settled, self._acked, notice),
                    sleep=sleep,
                )
                self.report = report = writer.report
                for name in ("read", "indexed", "superseded", "rejected"):
                    setattr(report, name, counts.get(name, 0))
                writer.write(self._items(start))
                if report.stopped is None:
                    self._fill_store()
                if self.version is not None:
                    self.version.publish()
                if report.stopped is None:
                    self.checkpoint_file.unlink(missing_ok=True)
                elif self.last_acked is not None:
                    self._checkpoint(*self.last_acked)
                seconds, kinds = time.monotonic() - started, dict(self.rejects.log.kinds)
                left_out = self.rejects.log.account().left_out
                return LoadReport(
                    report, counts.get("read", 0), self.rejects.unreadable, start.line, seconds, kinds, left_out
                )

    def _start(self) -> LoadCheckpoint:
        """Return the checkpoint for resuming, or the start if the index or the local store was rebuilt since."""
        beginning = LoadCheckpoint(self.source_id, 0, 0, self.prefix.at(0))
        if self.options.restart:
            self.checkpoint_file.unlink(missing_ok=True)
        checkpoint = load_checkpoint(self.checkpoint_file, self.source_id) or beginning
        if checkpoint.counts.get("indexed") or checkpoint.counts.get("superseded"):
            self.engine.refresh(self.index)
            lacks_store = self.version is not None and self.version.has_store and not self.version.store_exists
            if lacks_store or not self.engine.count(self.index):
                return beginning
        return checkpoint

    def _items(self, start: LoadCheckpoint) -> Iterator[BulkItem]:
        """Yield the writes; lines before the checkpoint are read again only for their ids."""
        duplicates: Any = "keep" if self.options.version_field else "reject"
        id_field = self.options.id_field
        documents = read_documents(self.path, rejects=self.rejects, duplicates=duplicates, id_field=id_field)
        rest = itertools.dropwhile(lambda document: document.offset < start.offset, documents)
        while batch := list(itertools.islice(rest, ENCODE_BATCH)):
            yield from self._encoded(batch)

    def _encoded(self, batch: list[DocumentLine]) -> Iterator[BulkItem]:
        extra: Iterable[Mapping[str, Any]] = itertools.repeat({})
        if self.version is not None:
            lines = [d.line for d in batch]
            extra = self.version.fields([d.id for d in batch], [d.source for d in batch], lines)
        for document, fields in zip(batch, extra, strict=False):
            number = None
            if self.options.version_field is not None:
                try:
                    number = external_version(document.source, self.options.version_field)
                except InputError as error:
                    self.rejects.reject(document.line, document.offset, str(error), document.id, kind="version")
                    if self.version is not None:
                        self.version.dropped(document.line)
                    continue
            op = WriteOp("index", document.id, {**document.source, **fields}, version=number)
            yield BulkItem(op, document.line, document.offset, document.end_offset)

    def _settled(self, item: BulkItem, action: Action, reason: str, error_type: str) -> None:
        if action is Action.REJECT:
            self.rejects.reject_write(item.line, item.offset, reason, item.op.id, error_type)
        if self.version is None or not self.version.has_store:
            return
        if action is Action.OK:
            self.stored_lines.append(item.line)
        elif action is Action.SUPERSEDED:
            self.superseded.append(item)
        else:
            self.version.dropped(item.line)

    def _acked(self, item: BulkItem) -> None:
        try:
            self._fill_store()
        except EngineError as error:
            raise Stopped(error) from error
        self.last_acked = (item, self.report.indexed, self.report.superseded)
        total = None if self.total_bytes is None else round(self.total_bytes * item.line / max(item.end, 1))
        self.progress(item.line, total)
        # Publishing a store costs more than a checkpoint, so it happens ten times less often.
        pause = self.options.checkpoint_s * (10.0 if self.version is not None and self.version.has_store else 1.0)
        now = time.monotonic()
        if now - self.last_checkpoint >= pause:
            self.last_checkpoint = now
            self._checkpoint(*self.last_acked)

    def _fill_store(self) -> None:
        """Write to the local store the rows of the settled writes since the last call that the engine has stored.

        A write that was sent again is superseded by itself, so the engine is asked for the text of superseded
        documents.
        """
        if self.version is None or not self.version.has_store:
            return
        lines, version = self.stored_lines, self.version
        if self.superseded:
            ids = [item.op.id for item in self.superseded]
            held = self.engine.get(self.index, ids, source=version.encoder.view.source_fields)
            lines += [
                item.line
                for item, document in zip(self.superseded, held, strict=True)
                if document is not None
                and version.source_hash(document.source) == version.source_hash(item.op.source or {})
            ]
        version.stored(lines)
        for item in self.superseded:
            version.dropped(item.line)
        self.stored_lines, self.superseded = [], []

    def _checkpoint(self, item: BulkItem, indexed: int, superseded: int) -> None:
        """Publish the store, then write the checkpoint that claims it."""
        if self.version is not None:
            self.version.publish()
        counts = {"indexed": indexed, "superseded": superseded, **self.rejects.before(item.end)}
        counts["read"] = counts["indexed"] + counts["superseded"] + counts["rejected"]
        checkpoint = LoadCheckpoint(self.source_id, item.end, item.line, self.prefix.at(item.end), counts)
        save_checkpoint(self.checkpoint_file, checkpoint)


def source_id(engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions) -> str:
    """Return the identity of what a load reads and where it writes; a load resumes only a checkpoint with the same."""
    encoder_id = version.encoder_id if version else ""
    names = [str(path.resolve()), engine.spec, index, encoder_id, options.version_field or ""]
    names += [f"id: {options.id_field}"] * (options.id_field is not None)
    if version is not None:
        names += [*version.routes, "" if version.store_path is None else str(version.store_path.resolve())]
    return "\n".join(names)
