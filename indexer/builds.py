"""`ssi index`: a document file into an index that is made where it is missing, or rebuilt behind its alias.

A checkpoint says durably how far a load has come. It is written after the engine's acknowledgement, never ahead of it,
and names the input by the SHA-256 of all its bytes before the offset, so that a resumed run notices a file that was
changed behind its back; one that only grew goes on. Refusals are written as they happen, some of them for lines further
on than the last checkpoint; a resumed run meets those lines again, so it first takes their entries out of the file.

A rebuild fills a new concrete index and swaps the alias at the end, without downtime.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import Action, BulkEvents, BulkItem, BulkReport, BulkWriter, Stopped, WriteOptions
from indexer.encoding import ENCODE_BATCH, VersionEncoder
from indexer.versions import register, with_version
from reranker.config import instant
from reranker.engines.protocol import Engine, IndexInfo, WriteOp
from reranker.engines.vectors import FIELD_PREFIX
from reranker.errors import EngineError, GateRefused, InputError, PreflightRefused
from reranker.files import write_file
from reranker.formats import DocumentLine, RejectLog, is_parquet, open_content, open_error, peek_bytes, read_documents
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, Say, no_progress, silent
from reranker.releases import ControlRecord, forget_control, read_control, update_control
from reranker.text.view import TextView, nearest_paths, paths_of


@dataclass(frozen=True, slots=True)
class LoadOptions(WriteOptions):
    """How a file is loaded."""

    version_field: str | None = None
    """Field whose value (a whole number, or an ISO 8601 time) is the external version: none overwrites a newer one."""
    id_field: str | None = None
    """Where the ids stand, see `reranker.formats.read_documents`."""
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
    kinds: Mapping[str, int]

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
    """Return the whole number of at least 0, or the time in ms since 1970, in a field; `InputError` for others."""
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
    it was when called again. A document sent twice is stored once. ``version``, entered already, adds the fields of a
    version. ``progress`` gets the documents dealt with, and how many there are, estimated from the bytes, or None;
    ``notice`` and ``sleep`` are those of `BulkEvents` and `BulkWriter`. `InputError` where the file cannot be read, or
    was changed since.
    """
    return _Load(engine, index, path, version, options or LoadOptions(), progress).run(notice, sleep)


class _Load:
    """One run; of a document, the local store gets the row of the line that the engine holds."""

    def __init__(
        self, engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions,
        progress: Progress,
    ) -> None:  # fmt: skip
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

        A write sent again is superseded by itself: the engine is asked which text it holds of those superseded.
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
    """Write a checkpoint whole, or leave the old one: at a crash, and with `OSError` where it cannot be written."""
    write_file(path, json.dumps({"format": FORMAT_VERSION, **asdict(checkpoint)}).encode(), private=True)


def load_checkpoint(path: Path, source_id: str) -> Checkpoint | None:
    """Return the checkpoint of a run, None where there is none; `InputError` if it is damaged or of another run."""
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
    """SHA-256 over the first bytes of a file, decompressed, or, if ``whole`` (for Parquet), over all of it."""

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
        """Return the digest of the bytes before ``offset``, never moving back; `InputError` if the file was cut."""
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


def source_id(engine: Engine, index: str, path: Path, version: VersionEncoder | None, options: LoadOptions) -> str:
    """Return what a load reads and what it writes where: another load never goes on from its checkpoint."""
    encoder_id = version.encoder_id if version else ""
    names = [str(path.resolve()), engine.spec, index, encoder_id, options.version_field or ""]
    names += [f"id: {options.id_field}"] * (options.id_field is not None)
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


_KEPT_SETTINGS = (
    "index.analysis.", "index.mapping.", "index.number_of_shards", "index.number_of_replicas", "index.similarity.",
    "index.knn",
)  # fmt: skip
_MAX_PATHS = 10_000
_NUMBERED = re.compile(r"-(\d{6,})$")


def index_mapping(text_paths: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``mappings`` object of a new index.

    Fields of the text view are mapped as text (dots lead into objects), ``properties`` as given; all others are left
    to the engine, with guessing of dates and numbers in strings switched off: with it, one document whose ``code``
    looks like a date makes the engine refuse the next one whose ``code`` does not.
    """
    texts: dict[str, Any] = {}
    for path in text_paths:
        *objects, leaf = path.split(".")
        inner: dict[str, Any] | None = texts
        for name in objects:
            # None: a text field is above this path already, and the engine sees its text there.
            inner = None if inner is None else inner.setdefault(name, {"properties": {}}).get("properties")
        if inner is not None:
            inner.setdefault(leaf, {"type": "text"})
    return {"date_detection": False, "numeric_detection": False, "properties": {**texts, **properties}}


def rebuilt(old: IndexInfo, properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the mapping and the settings of a rebuild; fields of any version give way to those of the new one."""
    kept = {name: value for name, value in old.properties.items() if not name.startswith(FIELD_PREFIX)}
    settings = {name: value for name, value in old.settings.items() if name.startswith(_KEPT_SETTINGS)}
    return {**old.mapping, "properties": {**kept, **properties}}, settings


def check_fields(path: Path, view: TextView, id_field: str | None = None, notice: Say | None = None) -> None:
    """Raise `InputError` for a field of a model's view that no document of the file has, most likely misspelt.

    With ``notice``, for an index that holds other documents, it is said. The file is read until all are seen.
    """
    paths = set[str]()
    missing = [spec.path for spec in view.fields]
    for document in read_documents(path, rejects=RejectLog(), duplicates="keep", id_field=id_field):
        here = set(paths_of(document.source))
        missing = [name for name in missing if name not in here]
        if not missing:
            return
        paths |= here if len(paths) < _MAX_PATHS else set()
    if not paths or (view.is_default and len(missing) < len(view.fields)):
        return
    message = (
        f"no document of {str(path)!r} has the field {missing[0]!r}, which the model reads: the nearest of "
        f"their fields are {nearest_paths(missing[0], paths)}; name the field so in the documents, or train a "
        "model with --fields of these"
    )
    if notice is None:
        raise InputError(message, field=missing[0])
    notice(message)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What is built, besides the documents."""

    routes: tuple[str, ...] = ("fetch",)
    """Fields written for the model, see `reranker.engines.vectors.version_fields`."""
    store_path: Path | None = None
    """Local store of route *beside*."""
    rebuild: bool = False
    """Fill a new concrete index and swap the alias at the end."""
    load: LoadOptions = field(default_factory=LoadOptions)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build_index` did."""

    index: str
    """Name users search."""
    concrete: str
    """The index written to."""
    retired: tuple[str, ...]
    """Indexes taken from the alias by a rebuild; `ssi gc` deletes them."""
    live: bool
    """True where the model's release is now the live one."""
    load: LoadReport

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        about = {"index": self.index, "concrete": self.concrete, "retired": self.retired, "live": self.live}
        return {**about, **self.load.to_json()}


def build_index(
    engine: Engine,
    index: str,
    path: Path,
    model: RankingModel | None,
    options: BuildOptions | None = None,
    *,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> BuildReport:
    """Return the report of sending a document file to an index (or alias), made where it is missing.

    A new index is called ``<index>-000001`` and reached by the alias ``<index>``, so that it can be rebuilt later
    without downtime. With a model, its vectors are stored beside the documents, and its release is registered, and made
    live where none was and every document has its vector.

    `InputError` for a name behind which several indexes stand, an unreadable file, or, of an index that is new, empty
    or rebuilt, a field of the model that no document has. `GateRefused` where a rebuild is not possible or its result
    incomplete: the alias stays where it was. `PreflightRefused` where the index wants a routing with each document,
    which a file does not say. `EngineError` where the engine refuses. A stop is in ``load.bulk.stopped``.
    """
    build = _Build(engine, index, path, model, options or BuildOptions())
    return build.rebuild(progress, notice) if build.options.rebuild else build.fill(progress, notice)


class _Build:
    def __init__(
        self, engine: Engine, index: str, path: Path, model: RankingModel | None, options: BuildOptions
    ) -> None:
        self.engine, self.index, self.path, self.model, self.options = engine, index, path, model, options
        self.version: VersionEncoder | None = None
        self.properties: dict[str, Any] = {}
        # Settings that the routes need from the start.
        self.settings: dict[str, str] = {}
        if model is not None:
            capabilities = engine.capabilities()
            self.version = VersionEncoder(model.encoder, options.routes, options.store_path, capabilities)
            self.properties = self.version.properties(capabilities)
            self.settings = self.version.settings

    def fill(self, progress: Progress, notice: Say) -> BuildReport:
        names = self.engine.index_names(self.index)
        self._check_fields(notice if any(map(self.engine.count, names)) else None)
        concrete = self._ensure_index()
        load = self._load(concrete, progress, notice)
        live = False
        if self.model is not None and load.bulk.stopped is None:
            covered = with_version(self.engine, concrete, self.model.encoder_id)
            complete = 0 < self.engine.count(concrete) <= covered
            live = register(self.engine, self.index, self.model, promote=None if complete else False)
        return BuildReport(self.index, concrete, (), live, load)

    def rebuild(self, progress: Progress, notice: Say) -> BuildReport:
        engine, index = self.engine, self.index
        old = engine.index_names(index)
        if old == (index,):
            raise GateRefused(
                f"{index!r} is an index, not an alias, and an index cannot be swapped for another in one step: build "
                f"under a new name ({index}-next), let readers use that alias, or re-vectorise in place with "
                "`ssi revectorize`",
                index=index,
            )
        self._check_fields(None)
        concrete = self._rebuild_target(old)
        load = self._load(concrete, progress, notice)
        if load.bulk.stopped is not None:
            return BuildReport(index, concrete, (), False, load)
        self._check_complete(concrete, old, load)
        # All is noted before the swap: a process killed after it would leave an index that nobody knows of, and whoever
        # serves the alias must never see the new index with the old one's live version.
        before = read_control(engine, index)
        known = before.without_live() if self.model is None else before

        def succeeding(record: ControlRecord) -> ControlRecord:
            kept = known.with_retired(old).without_leftovers((record.key,))
            same = ("uuid", "key", "moved", "seq_no", "primary_term")
            return replace(kept, progress={}, **{name: getattr(record, name) for name in same})

        update_control(engine, concrete, succeeding)
        live = self.model is not None and register(engine, concrete, self.model, promote=True)
        engine.swap_alias(index, concrete, old)
        if before.key not in old:
            forget_control(engine, [before.key])
        return BuildReport(index, concrete, tuple(name for name in old if name != concrete), live, load)

    def _check_fields(self, notice: Say | None) -> None:
        if self.model is not None:
            check_fields(self.path, self.model.encoder.view, self.options.load.id_field, notice)

    def _new_index(self, concrete: str) -> None:
        view = self.model.encoder.view if self.model else TextView()
        mapping = index_mapping([spec.path for spec in view.fields], self.properties)
        self.engine.create_index(concrete, mapping, self.settings or None)

    def _add_fields(self, concrete: str) -> str:
        if self.properties:
            self.engine.put_properties(concrete, self.properties)
        return concrete

    def _ensure_index(self) -> str:
        """Return the concrete index to write to, made with its alias where it is missing, with the version's fields."""
        engine, index = self.engine, self.index
        names = engine.index_names(index)
        if len(names) > 1:
            raise InputError(
                f"{index!r} stands for {len(names)} indexes ({', '.join(names)}) on {engine.spec}: name one index or "
                "an alias of one",
                index=index,
            )
        if names:
            return self._add_fields(names[0])
        concrete = f"{index}-000001"
        if not engine.index_names(concrete):
            self._new_index(concrete)
        elif engine.count(concrete):
            raise InputError(
                f"the index {concrete!r} exists with documents, but no alias {index!r} points to it: point the alias "
                "to it or choose another --index",
                index=concrete,
            )
        else:
            self._add_fields(concrete)
        engine.swap_alias(index, concrete)
        return concrete

    def _rebuild_target(self, old: Sequence[str]) -> str:
        """Return the index to fill: that of an interrupted rebuild, or a new one, noted before it is made."""
        engine = self.engine

        def noted(record: ControlRecord) -> ControlRecord:
            # A rebuild killed after its swap is finished now.
            record = record.without_leftovers(old)
            name = self._name_to_fill(old, record)
            others = (other for other in record.building if other != name)
            return replace(record.with_retired(others), building=(name,))

        (concrete,) = update_control(engine, self.index, noted).building
        if engine.index_names(concrete):
            return self._add_fields(concrete)
        if old:
            mapping, settings = rebuilt(engine.index_info(old[-1]), self.properties)
            engine.create_index(concrete, mapping, None if engine.in_process else {**settings, **self.settings})
        else:
            self._new_index(concrete)
        return concrete

    def _name_to_fill(self, old: Sequence[str], record: ControlRecord) -> str:
        """Return the last unfinished index whose load goes on, or else a new name; others hold outdated documents."""
        engine, load = self.engine, self.options.load
        for name in reversed(() if load.restart else record.building):
            source = source_id(engine, name, self.path, self.version, load)
            if checkpoint_path(load.state_path or state_dir(), source).exists():
                return name
        known = [*old, *record.building, *record.retired]
        number = max((int(match.group(1)) for name in known if (match := _NUMBERED.search(name))), default=0) + 1
        while engine.index_names(f"{self.index}-{number:06d}"):
            number += 1
        return f"{self.index}-{number:06d}"

    def _load(self, concrete: str, progress: Progress, notice: Say) -> LoadReport:
        if (self.engine.index_info(concrete).mapping.get("_routing") or {}).get("required"):
            reason = (
                f"{concrete}: routing is required, and a document file states none: write the documents with your own "
                "program, then give them vectors by `ssi revectorize`, which keeps each document's routing"
            )
            raise PreflightRefused(self.index, [reason])
        with self.version or nullcontext() as version:
            load = load_documents(
                self.engine, concrete, self.path, version, options=self.options.load, progress=progress, notice=notice
            )
        if load.bulk.stopped is None:
            self.engine.refresh(concrete)
        return load

    def _check_complete(self, concrete: str, old: Sequence[str], load: LoadReport) -> None:
        """Raise `GateRefused` unless the new index holds what was loaded, and anything at all if the old one did."""
        n_new = self.engine.count(concrete)
        n_old = sum(self.engine.count(name) for name in old)
        if n_new == 0 and n_old > 0:
            raise GateRefused(
                f"the rebuild {concrete!r} is empty and the index it would replace has {n_old} documents: the alias "
                f"stays; look into the reject file ({load.bulk.rejected} rejected, {load.unreadable} unreadable lines)"
            )
        # Where a file may hold several versions of a document, writes do not count documents.
        one_write_each = self.options.load.version_field is None and load.bulk.superseded == 0
        if one_write_each and n_new < load.bulk.indexed:
            raise GateRefused(
                f"the rebuild {concrete!r} holds {n_new} documents of {load.bulk.indexed} acknowledged ones: the alias "
                "stays; run the same command again with --restart"
            )
