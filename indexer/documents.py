"""A document file into an index: read, encode, send, checkpoint, account.

A checkpoint says durably how far a load has come. It is written after the engine's acknowledgement, never ahead of it,
and names the input by the SHA-256 of all its bytes before the offset, so that a resumed run notices a file that was
changed behind its back; one that only grew goes on. Refusals are written as they happen, some of them for lines further
on than the last checkpoint; a resumed run meets those lines again, so it first takes their entries out of the file.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import Action, BulkEvents, BulkItem, BulkReport, BulkWriter, Stopped, WriteOptions
from indexer.encoding import ENCODE_BATCH, VersionEncoder
from reranker.config import instant
from reranker.engines.base import Engine, WriteOp
from reranker.errors import EngineError, InputError
from reranker.files import write_file
from reranker.formats import DocumentLine, RejectLog, is_parquet, open_content, open_error, peek_bytes, read_documents
from reranker.progress import Progress, Say, no_progress, silent


@dataclass(frozen=True, slots=True)
class LoadOptions(WriteOptions):
    """How a file is loaded."""

    version_field: str | None = None
    """Field whose value (a whole number, or an ISO 8601 time) is the document's external version: an older version
    never overwrites a newer one."""
    restart: bool = False
    """Forget an earlier, interrupted run."""
    state_path: Path | None = None
    """Folder of checkpoints; None for `state_dir`."""
    checkpoint_s: float = 1.0
    """Least time between two checkpoints, seconds."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did; the counts of a resumed run include those before the interruption."""

    bulk: BulkReport
    """The account of the documents that could be read."""
    read_before: int
    """Of these, how many an interrupted run had settled."""
    unreadable: int
    """Lines refused before that, by the reader."""
    resumed_at: int
    """Line where this run went on; 0 for a whole one."""
    seconds: float
    """Wall time of this run."""
    kinds: Mapping[str, int]
    """Refusals by kind."""

    @property
    def documents_per_s(self) -> float:
        """Documents settled a second, by this run."""
        return (self.bulk.read - self.bulk.pending - self.read_before) / max(self.seconds, 1e-9)

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


def external_version(source: Mapping[str, Any], name: str) -> int:
    """Return a document's external version: a whole number of at least 0, or a time as milliseconds since 1970.

    Raises
    ------
    InputError
        Where the field is missing or is neither.
    """
    value: Any = source
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str):
        with suppress(ValueError):
            return max(0, round(instant(value).timestamp() * 1000))
    message = f"version field {name!r} is {value!r:.60}: give a whole number of at least 0 or an ISO 8601 time in it"
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
    """Return the account of sending a file's documents (JSON lines, plain or gzipped, or Parquet) to an existing index.

    Every line ends up stored, superseded, rejected with its reason, or pending; a stopped or killed run goes on where
    it was when called again. The ids are the documents' own, so a document sent twice is stored once. ``version``,
    entered already, adds the fields of a version. ``progress`` gets the documents dealt with, and how many there are,
    estimated from the bytes, or None; ``notice`` and ``sleep`` are those of `BulkEvents` and `BulkWriter`.

    Raises
    ------
    InputError
        Where the file cannot be read, or was changed since the interrupted run.
    """
    return _Load(engine, index, path, version, options or LoadOptions(), progress).run(notice, sleep)


def load_was_interrupted(
    engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions
) -> bool:
    """Return True where `load_documents` with these arguments would go on, False where it would begin."""
    name = source_id(engine, index, path, version, options.version_field)
    return not options.restart and checkpoint_path(options.state_path or state_dir(), name).exists()


class _Load:
    """One run; of a document, the local store gets the row of the line that the engine holds."""

    def __init__(
        self, engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions,
        progress: Progress,
    ) -> None:  # fmt: skip
        self.engine, self.index, self.path = engine, index, path
        self.version, self.options, self.progress = version, options, progress
        parquet = is_parquet(path)
        self.source_id = source_id(engine, index, path, version, options.version_field)
        self.checkpoint_file = checkpoint_path(options.state_path or state_dir(), self.source_id)
        self.prefix = PrefixHash(path, whole=parquet)
        packed = parquet or peek_bytes(path, 2) == b"\x1f\x8b"
        self.total_bytes = None if packed else path.stat().st_size
        self.stored_lines: list[int] = []
        self.superseded: list[BulkItem] = []
        self.last_checkpoint = time.monotonic()
        # With the documents stored and superseded up to it: the report also counts those of a request under way.
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
                    self.engine, self.index, rng=np.random.default_rng(options.seed), limits=options.limits,
                    policy=options.policy, events=BulkEvents(self._settled, self._acked, notice), sleep=sleep,
                )  # fmt: skip
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
                return LoadReport(report, counts.get("read", 0), self.rejects.unreadable, start.line, seconds, kinds)

    def _start(self) -> Checkpoint:
        """Return where to go on; the beginning where the index, or the local store, was made anew since."""
        beginning = Checkpoint(self.source_id, 0, 0, self.prefix.at(0))
        if self.options.restart:
            self.checkpoint_file.unlink(missing_ok=True)
        checkpoint = load_checkpoint(self.checkpoint_file, self.source_id) or beginning
        if checkpoint.counts.get("indexed") or checkpoint.counts.get("superseded"):
            self.engine.refresh(self.index)
            lacks_store = self.version is not None and self.version.has_store and not self.version.store_exists
            if lacks_store or not self.engine.count(self.index):
                return beginning
        return checkpoint

    def _items(self, start: Checkpoint) -> Iterator[BulkItem]:
        """Yield the writes; lines before the checkpoint are read again for their ids, and skipped."""
        duplicates: Any = "keep" if self.options.version_field else "reject"
        documents = read_documents(self.path, rejects=self.rejects, duplicates=duplicates)
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

    def _settled(self, item: BulkItem, action: Action, reason: str) -> None:
        if action is Action.REJECT:
            self.rejects.reject_write(item.line, item.offset, reason, item.op.id)
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
        # Publishing a store costs more than a checkpoint: ten times less often.
        pause = self.options.checkpoint_s * (10.0 if self.version is not None and self.version.has_store else 1.0)
        now = time.monotonic()
        if now - self.last_checkpoint >= pause:
            self.last_checkpoint = now
            self._checkpoint(*self.last_acked)

    def _fill_store(self) -> None:
        """Put into the local store what the engine holds of the writes settled since the last time.

        A write that goes again, because its answer was lost or the process was killed, is superseded by itself: so
        the engine is asked which text it holds of those superseded.
        """
        if self.version is None or not self.version.has_store:
            return
        lines, version = self.stored_lines, self.version
        if self.superseded:
            ids = [item.op.id for item in self.superseded]
            held = self.engine.get(self.index, ids, source=version.text_paths)
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
        """Store first, then the claim that it is stored."""
        if self.version is not None:
            self.version.publish()
        counts = {"indexed": indexed, "superseded": superseded, **self.rejects.before(item.end)}
        counts["read"] = counts["indexed"] + counts["superseded"] + counts["rejected"]
        checkpoint = Checkpoint(self.source_id, item.end, item.line, self.prefix.at(item.end), counts)
        save_checkpoint(self.checkpoint_file, checkpoint)


_BLOCK = 1 << 20
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before ``offset`` is settled."""

    source_id: str
    """What the run reads and where it writes, see `source_id`."""
    offset: int
    """Byte of the decompressed input where the run goes on; the row for Parquet."""
    line: int
    """Lines (rows) before it."""
    prefix_sha256: str
    """SHA-256 of the input before the offset, see `PrefixHash`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Documents settled so far, by outcome."""


def state_dir() -> Path:
    """Return the folder of checkpoints: ``$SSI_STATE_DIR``, ``$XDG_STATE_HOME/ssi`` or ``~/.local/state/ssi``."""
    if own := os.environ.get("SSI_STATE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ssi"


def checkpoint_path(folder: Path, source_id: str) -> Path:
    """Return the file of a run's checkpoint."""
    return folder / f"checkpoint-{hashlib.sha256(source_id.encode()).hexdigest()[:24]}.json"


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that a crash at any moment leaves the old or the new one.

    Raises
    ------
    OSError
        Where it cannot be written (a full disk); the old one stays.
    """
    write_file(path, json.dumps({"format": FORMAT_VERSION, **asdict(checkpoint)}).encode(), private=True)


def load_checkpoint(path: Path, source_id: str) -> Checkpoint | None:
    """Return the checkpoint of a run, None where there is none.

    Raises
    ------
    InputError
        If the file is damaged or of another run.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("format") != FORMAT_VERSION:
            raise ValueError("unknown format")
        checkpoint = Checkpoint(**value)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"checkpoint {str(path)!r} cannot be read ({error}): delete it, or run with --restart, to begin again"
        raise InputError(message, path=str(path)) from error
    if checkpoint.source_id != source_id:
        raise InputError(f"checkpoint {str(path)!r} belongs to another run: delete it, or run with --restart")
    return checkpoint


class PrefixHash:
    """SHA-256 over the first bytes of a file (decompressed, as the readers count), extended as a run goes on.

    With ``whole``, for Parquet, which cannot be appended to, the hash is that of the whole file whatever the row.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self._path, self._whole = path, whole
        self._hash, self._at = hashlib.sha256(), 0
        try:
            self.file = path.open("rb") if whole else open_content(path)
            while whole and (block := self.file.read(_BLOCK)):
                self._hash.update(block)
        except OSError as error:
            raise open_error(path, error) from error

    def at(self, offset: int) -> str:
        """Return the digest of the bytes before ``offset``, which never moves back.

        Raises
        ------
        InputError
            If the file ends before the offset: it was cut meanwhile.
        """
        if self._whole:
            return self._hash.hexdigest()
        while self._at < offset:
            try:
                block = self.file.read(min(_BLOCK, offset - self._at))
            except (OSError, EOFError) as error:
                raise open_error(self._path, error) from error
            if not block:
                raise InputError(
                    f"the file {str(self._path)!r} ends before byte {offset}, where this run should go on: it was "
                    "changed since; begin again with --restart",
                    path=str(self._path),
                )
            self._hash.update(block)
            self._at += len(block)
        return self._hash.hexdigest()


def check_unchanged(checkpoint: Checkpoint, prefix: PrefixHash, path: Path) -> None:
    """Raise `InputError` unless the file still begins as it did when the checkpoint was written."""
    if prefix.at(checkpoint.offset) != checkpoint.prefix_sha256:
        message = (
            f"the file {str(path)!r} was changed before byte {checkpoint.offset} (line {checkpoint.line}) since the "
            "interrupted run: begin again with --restart"
        )
        raise InputError(message, path=str(path), offset=checkpoint.offset)


def source_id(engine: Engine, index: str, path: Path, version: VersionEncoder | None, version_field: str | None) -> str:
    """Return what a load reads and what it writes where: another load never goes on from its checkpoint."""
    names = [str(path.resolve()), engine.spec, index, version.encoder_id if version else "", version_field or ""]
    if version is not None:
        names += [*version.routes, "" if version.store_path is None else str(version.store_path.resolve())]
    return "\n".join(names)


class RunRejects:
    """Writes refusals, and knows how many lie before a place in the input; each is listed once, whenever a run dies.

    The run goes on at ``start_offset``: entries from there on are removed from the reject file (None only counts), and
    the reader's refusals before it are not repeated. ``unreadable`` and ``rejected`` count those, from the checkpoint.
    """

    def __init__(self, path: Path | None, start_offset: int, unreadable: int = 0, rejected: int = 0) -> None:
        kept = _drop_entries(path, start_offset) if path is not None else 0
        self.log = RejectLog(path, keep_bytes=kept)
        self._start_offset = start_offset
        self._before = {"unreadable": unreadable, "rejected": rejected}
        self._ahead: list[tuple[int, str]] = []

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Take a refusal of the reader (a `reranker.formats.RejectSink`)."""
        if offset >= self._start_offset:
            self._ahead.append((offset, "unreadable"))
            self.log.reject(line, offset, reason, sample, kind=kind)

    def reject_write(self, line: int, offset: int, reason: str, identifier: str) -> None:
        """Take a refusal of a document that could be read."""
        head = reason.split(":", 1)[0]
        self._ahead.append((offset, "rejected"))
        self.log.reject(line, offset, reason, identifier, kind=head if head.isidentifier() else "not_acceptable")

    def before(self, offset: int) -> dict[str, int]:
        """Return the refusals of lines before ``offset`` by class; ``offset`` never moves back."""
        for place, name in self._ahead:
            self._before[name] += place < offset
        self._ahead = [(place, name) for place, name in self._ahead if place >= offset]
        return dict(self._before)

    @property
    def unreadable(self) -> int:
        """Lines refused by the reader so far."""
        return self._before["unreadable"] + sum(name == "unreadable" for _, name in self._ahead)


def _drop_entries(path: Path, start_offset: int) -> int:
    """Remove the entries from ``start_offset`` on, and a torn last line; return the length of what remains."""
    if start_offset == 0 or not path.exists():
        return 0
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if _offset_of(line) < start_offset]
    write_file(path, kept, private=True)
    return sum(map(len, kept))


def _offset_of(line: bytes) -> float:
    """Return the place in the input that an entry of a reject file is about; infinite for a torn line."""
    try:
        return int(json.loads(line)["offset"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
