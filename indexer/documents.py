"""A document file into an index: read, encode, send, checkpoint, account.

The rows of a load that go into the local store: those of the documents that the engine holds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import (
    Action,
    BulkEvents,
    BulkItem,
    BulkLimits,
    BulkReport,
    BulkWriter,
    RetryPolicy,
    Stopped,
    external_version,
    stop_error,
)
from indexer.encoding import ENCODE_BATCH, VersionEncoder
from indexer.progress import (
    Checkpoint,
    PrefixHash,
    RunRejects,
    check_unchanged,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    source_id,
    state_dir,
    still_there,
)
from reranker.engines.base import Engine, WriteOp
from reranker.errors import EngineError, InputError
from reranker.formats import DocumentLine, read_documents
from reranker.formats.parquet import is_parquet


class StoreRows:
    """Keeps apart what became of each line, since a file may hold several versions of a document.

    Parameters
    ----------
    engine, index : Engine, str
        Where the documents go.
    version : VersionEncoder or None
        Entered already, its rows waiting by line; None: there is no store.
    """

    def __init__(self, engine: Engine, index: str, version: VersionEncoder | None) -> None:
        self._engine, self._index = engine, index
        self._version = version if version is not None and version.has_store else None
        self._stored: list[int] = []
        self._superseded: list[BulkItem] = []

    def settled(self, item: BulkItem, action: Action) -> None:
        """Note what became of a write."""
        if self._version is None:
            return
        if action is Action.OK:
            self._stored.append(item.line)
        elif action is Action.SUPERSEDED:
            self._superseded.append(item)
        else:
            self._version.dropped(item.line)

    def fill(self) -> None:
        """Put into the store what the engine holds of the writes settled since the last time.

        Raises
        ------
        EngineError
            Where the engine does not tell what superseded a write.
        """
        if self._version is None:
            return
        held = _held_by_engine(self._engine, self._index, self._version, self._superseded)
        self._version.stored([*self._stored, *(item.line for item in held)])
        for item in self._superseded:
            self._version.dropped(item.line)
        self._stored, self._superseded = [], []


def _held_by_engine(engine: Engine, index: str, version: VersionEncoder, items: Sequence[BulkItem]) -> list[BulkItem]:
    """Return which of the writes that were superseded have the text that the engine holds.

    A write that goes again, because its answer was lost or the process was killed, is superseded by itself.
    """
    if not items:
        return []
    held = engine.get(index, [item.op.id for item in items], source=version.text_paths)
    return [
        item
        for item, document in zip(items, held, strict=True)
        if document is not None and version.source_hash(document.source) == version.source_hash(item.op.source or {})
    ]


Progress = Callable[[int, int | None], None]
"""``(done, total)``: documents dealt with, and how many there are, estimated from the bytes; None where unknown."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a file is loaded.

    Parameters
    ----------
    version_field : str or None
        Field whose value (a whole number, or an ISO 8601 time) is the document's external version: an older version
        never overwrites a newer one.
    reject_path : Path or None
        Reject file.
    restart : bool
        Forget an earlier, interrupted run.
    state_path : Path or None
        Folder of checkpoints; None for `indexer.progress.state_dir`.
    checkpoint_s : float
        Least time between two checkpoints, seconds.
    limits, policy : BulkLimits, RetryPolicy
        Of the bulk loop.
    seed : int
        Of the jitter.
    """

    version_field: str | None = None
    reject_path: Path | None = None
    restart: bool = False
    state_path: Path | None = None
    checkpoint_s: float = 1.0
    limits: BulkLimits = field(default_factory=BulkLimits)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did; the counts of a resumed run include those before the interruption.

    Parameters
    ----------
    bulk : BulkReport
        The account of the documents that could be read.
    read_before : int
        Of these, how many an interrupted run had settled.
    unreadable : int
        Lines refused before that, by the reader.
    resumed_at : int
        Line where this run went on; 0 for a whole one.
    seconds : float
        Wall time of this run.
    kinds : mapping
        Refusals by kind.
    """

    bulk: BulkReport
    read_before: int
    unreadable: int
    resumed_at: int
    seconds: float
    kinds: Mapping[str, int]

    @property
    def documents_per_s(self) -> float:
        """Documents settled a second, by this run."""
        done = self.bulk.read - self.bulk.pending - self.read_before
        return done / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            **self.bulk.to_json(),
            "unreadable": self.unreadable,
            "resumed_at_line": self.resumed_at,
            "seconds": round(self.seconds, 3),
            "documents_per_s": round(self.documents_per_s, 1),
            "rejects_by_kind": dict(self.kinds),
        }


def load_documents(
    engine: Engine,
    index: str,
    path: Path,
    version: VersionEncoder | None = None,
    *,
    options: LoadOptions | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> LoadReport:
    """Return the account of sending a file's documents to an existing index.

    Every line ends up stored, superseded, rejected with its reason, or pending; a stopped or killed run goes on where
    it was when called again. The ids are the documents' own, so a document sent twice is stored once.

    Parameters
    ----------
    engine, index : Engine, str
        Where to; the index exists.
    path : Path
        JSON lines (plain or gzipped) or Parquet.
    version : VersionEncoder or None
        Entered already; adds the fields of a version. None sends the documents as they are.
    options, progress, notice, sleep
        See `LoadOptions` and `BulkEvents`.

    Raises
    ------
    InputError
        Where the file cannot be read, or was changed since the interrupted run.
    """
    run = _Load(engine, index, path, version, options or LoadOptions(), progress)
    return run.run(notice, sleep)


def load_was_interrupted(
    engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions
) -> bool:
    """Return True where `load_documents` with these arguments would go on, False where it would begin."""
    name = source_id(engine, index, path, version, options.version_field)
    return not options.restart and checkpoint_path(options.state_path or state_dir(), name).exists()


class _Load:
    def __init__(
        self,
        engine: Engine,
        index: str,
        path: Path,
        version: VersionEncoder | None,
        options: LoadOptions,
        progress: Progress | None,
    ) -> None:
        self.engine, self.index, self.path = engine, index, path
        self.version, self.options, self.progress = version, options, progress
        parquet = is_parquet(path)
        self.source_id = source_id(engine, index, path, version, options.version_field)
        self.checkpoint_file = checkpoint_path(options.state_path or state_dir(), self.source_id)
        self.prefix = PrefixHash(path, whole=parquet)
        self.total_bytes = None if parquet or _is_gzip(path) else path.stat().st_size
        self.store_rows = StoreRows(engine, index, version)
        self.last_checkpoint = time.monotonic()
        # With the documents stored and superseded up to it: the report also counts those of a request under way.
        self.last_acked: tuple[BulkItem, int, int] | None = None

    def run(self, notice: Callable[[str], None] | None, sleep: Callable[[float], None]) -> LoadReport:
        started = time.monotonic()
        start = self._start()
        with ExitStack() as stack:
            stack.enter_context(closing(self.prefix))
            check_unchanged(start, self.prefix, self.path)
            counts = start.counts
            self.rejects = RunRejects(
                self.options.reject_path, start.offset, counts.get("unreadable", 0), counts.get("rejected", 0)
            )
            stack.enter_context(closing(self.rejects))
            events = BulkEvents(settled=self._settled, acked=self._acked, notice=notice)
            writer = BulkWriter(
                self.engine, self.index, rng=np.random.default_rng(self.options.seed), limits=self.options.limits,
                policy=self.options.policy, events=events, sleep=sleep,
            )  # fmt: skip
            self.report = writer.report
            for name in ("read", "indexed", "superseded", "rejected"):
                setattr(writer.report, name, counts.get(name, 0))
            report = writer.write(self._items(start))
            self._finish(report)
            seconds = time.monotonic() - started
            return LoadReport(report, counts.get("read", 0), self.rejects.unreadable, start.line, seconds,
                              dict(self.rejects.log.kinds))  # fmt: skip

    def _start(self) -> Checkpoint:
        if self.options.restart:
            self.checkpoint_file.unlink(missing_ok=True)
        found = load_checkpoint(self.checkpoint_file, self.source_id)
        if found is None or not still_there(self.engine, self.index, self.version, found):
            found = Checkpoint(self.source_id, 0, 0, self.prefix.at(0))
        return found

    def _items(self, start: Checkpoint) -> Iterator[BulkItem]:
        """Yield the writes; lines before the checkpoint are read again for their ids, and skipped."""
        duplicates: Any = "keep" if self.options.version_field else "reject"
        documents = read_documents(self.path, rejects=self.rejects, duplicates=duplicates)
        rest = itertools.dropwhile(lambda document: document.offset < start.offset, documents)
        for batch in _batched(rest, ENCODE_BATCH):
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

    def _settled(self, item: BulkItem, action: Action, reason: str) -> None:
        if action is Action.REJECT:
            self.rejects.reject_write(item.line, item.offset, reason, item.op.id)
        self.store_rows.settled(item, action)

    def _acked(self, item: BulkItem) -> None:
        try:
            self.store_rows.fill()
        except EngineError as error:
            raise Stopped(stop_error(self.index, self.report, error)) from error
        self.last_acked = (item, self.report.indexed, self.report.superseded)
        if self.progress:
            total = None if self.total_bytes is None else round(self.total_bytes * item.line / max(item.end, 1))
            self.progress(item.line, total)
        # Publishing a store costs more than a checkpoint: ten times less often.
        pause = self.options.checkpoint_s * (10.0 if self.version is not None and self.version.has_store else 1.0)
        now = time.monotonic()
        if now - self.last_checkpoint >= pause:
            self.last_checkpoint = now
            self._checkpoint(*self.last_acked)

    def _checkpoint(self, item: BulkItem, indexed: int, superseded: int) -> None:
        """Store first, then the claim that it is stored."""
        if self.version is not None:
            self.version.publish()
        refused = self.rejects.before(item.end)
        counts = {"indexed": indexed, "superseded": superseded, **refused}
        counts["read"] = counts["indexed"] + counts["superseded"] + counts["rejected"]
        save_checkpoint(
            self.checkpoint_file, Checkpoint(self.source_id, item.end, item.line, self.prefix.at(item.end), counts)
        )

    def _finish(self, report: BulkReport) -> None:
        if report.stopped is None:
            self.store_rows.fill()
        if self.version is not None:
            self.version.publish()
        if report.stopped is None:
            self.checkpoint_file.unlink(missing_ok=True)
        elif self.last_acked is not None:
            self._checkpoint(*self.last_acked)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _batched(documents: Iterable[DocumentLine], n: int) -> Iterator[list[DocumentLine]]:
    iterator = iter(documents)
    while batch := list(itertools.islice(iterator, n)):
        yield batch
