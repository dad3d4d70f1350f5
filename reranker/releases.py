"""What is served where: one small record a served index, kept in the index ``ssi-control`` of the same engine.

A release is a model together with the encoder whose vectors it scores and the calibration that blends them. The
record of an index lists its releases and names the live one; promoting and rolling back are one write each, guarded by
``if_seq_no``, so two people cannot overwrite each other unseen. The team's own index is never touched.

A record belongs to the concrete index, whose documents carry the vectors: whatever alias is named, it is the same one.
Only a name that stands for several indexes has a record of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from reranker.engines import absolute_spec
from reranker.engines.protocol import Engine, WriteOp, WriteResult, ensure_index
from reranker.engines.retry import attempts_of, retried
from reranker.errors import (
    EngineAuthError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    InputError,
    VersionConflict,
)
from reranker.files import write_file
from reranker.records import StoredDocument

CONTROL_INDEX = "ssi-control"
"""Name of the index that holds the records."""
FORMAT_VERSION = 1
LEAST_DIGITS = 6
"""Digits of a model id that name a version."""
_MAPPING: dict[str, Any] = {"dynamic": False, "properties": {}}
_SETTINGS = {"index.number_of_shards": "1", "index.auto_expand_replicas": "0-1"}
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Release:
    """A model that can be served over an index."""

    model_id: str
    """Hash of the whole artifact."""
    encoder_id: str
    """Hash of its document side; its first 12 digits name the fields of the index."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Blend weights by body and window, as `ssi calibrate` writes them; empty before that."""
    created: str = ""
    """UTC time of registration, ISO 8601."""
    view: Mapping[str, Any] = field(default_factory=dict)
    """Text view of the encoder (`reranker.text.view.TextView.to_json`); empty where an older program registered it."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """All that is known of one served index."""

    index: str
    """Index or alias, as users name it."""
    releases: tuple[Release, ...] = ()
    """Oldest first; at most one a model."""
    live: str | None = None
    """Model id of the release that servers load."""
    previous: tuple[str, ...] = ()
    """Model ids that were live before, newest last."""
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What `revectorize` and `sync` have done for a version."""
    building: tuple[str, ...] = ()
    """Concrete indexes that a rebuild has begun and not yet put behind the alias."""
    retired: tuple[str, ...] = ()
    """Concrete indexes that a rebuild has taken from the alias; `ssi gc` deletes them."""
    uuid: str = ""
    """The engine's identity of the concrete index; empty where the name stands for several, or for none yet."""
    key: str = ""
    """Document that keeps the record: the concrete index, or the name where that stands for several, or for none."""
    moved: tuple[str, ...] = ()
    """Documents that kept it under other names; the next write deletes them."""
    seq_no: int = -1
    primary_term: int = -1
    """Version read; -1 for a record not stored yet."""

    def calibration(self, model_id: str) -> Mapping[str, Any]:
        """Return the calibration that the release of a model keeps; an empty one where there is none."""
        return next((release.calibration for release in self.releases if release.model_id == model_id), {})

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.index)

    def release(self, model_id: str) -> Release:
        """Return a release by its model's id or a unique beginning of 6 digits or more; `InputError` lists them."""
        beginning = [r for r in self.releases if r.model_id.startswith(model_id)]
        matching = [r for r in beginning if r.model_id == model_id] or beginning
        if len(matching) == 1 and len(model_id) >= LEAST_DIGITS:
            return matching[0]
        known = ", ".join(r.model_id[:12] for r in self.releases) or "none"
        if not matching:
            fault = f"is no version of index {self.index!r}"
            remedy = "register one with `ssi index` or `ssi revectorize`"
        else:
            fault = f"does not name one version of index {self.index!r}"
            remedy = f"give {LEAST_DIGITS} digits or more, as many as tell it from the others"
        message = f"{model_id!r} {fault}; registered: {known}: {remedy}"
        raise InputError(message, index=self.index, version=model_id)

    @property
    def live_release(self) -> Release | None:
        """The live release, or None."""
        return None if self.live is None else self.release(self.live)

    def with_release(self, release: Release) -> ControlRecord:
        """Return the record with the release added, or replaced in its place where its model is registered already."""
        by_model = {each.model_id: each for each in (*self.releases, release)}
        return replace(self, releases=tuple(by_model.values()))

    def with_live(self, model_id: str) -> ControlRecord:
        """Return the record with this release live and the one before remembered for a rollback."""
        release = self.release(model_id)
        if release.model_id == self.live:
            return self
        return replace(self.without_live(), live=release.model_id)

    def without_live(self) -> ControlRecord:
        """Return the record with nothing live; what was is remembered for a rollback."""
        return self if self.live is None else replace(self, live=None, previous=(*self.previous, self.live))

    def with_retired(self, names: Iterable[str]) -> ControlRecord:
        """Return the record with these indexes noted as replaced."""
        return replace(self, retired=tuple(dict.fromkeys((*self.retired, *names))))

    def without_leftovers(self, names: Collection[str]) -> ControlRecord:
        """Return the record with none of these indexes noted as unfinished or replaced: they are served, or gone."""
        building = tuple(name for name in self.building if name not in names)
        return replace(self, building=building, retired=tuple(name for name in self.retired if name not in names))


def utc_now() -> str:
    """Return the time as records keep it: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_control(engine: Engine, index: str) -> ControlRecord:
    """Return the record of an index, by its own name or an alias; an empty one where nothing was registered yet.

    After an index was rebuilt or restored, no release is live and none is renewed: its releases wait to be promoted.
    Records that older programs kept under an alias are taken over; that of the name asked for says what is live, the
    others' live versions can be rolled back to. `EngineError` where the engine does not answer, `InputError` for a
    record of a newer format or of another project.
    """
    uuids = engine.index_uuids(index)
    (key, uuid), *others = uuids.items() or ((index, ""),)
    if others:
        key, uuid = index, ""
    try:
        stored = engine.get(CONTROL_INDEX, [key])[0]
    except IndexMissing:
        return ControlRecord(index, uuid=uuid, key=key)
    if stored is None:
        return _taken_over(ControlRecord(index, uuid=uuid, key=key), records_over(engine, uuids, within=True))
    record = _parse(index, stored)
    if uuid and record.uuid not in ("", uuid):
        record = replace(record.without_live(), progress={})
    return replace(record, uuid=uuid)


def _taken_over(record: ControlRecord, others: Collection[ControlRecord]) -> ControlRecord:
    """Return an empty record with what others say of the same index; first that of the name asked for (pure)."""
    for other in sorted(others, key=lambda other: (other.key != record.index, other.key)):
        known = {release.model_id for release in record.releases}
        added = tuple(release for release in other.releases if release.model_id not in known)
        lived = (other.live,) if other.live and record.live not in (None, other.live) else ()
        record = replace(
            record.with_retired(other.retired),
            releases=(*record.releases, *added),
            live=record.live or other.live,
            previous=(*other.previous, *record.previous, *lived),
            progress={**other.progress, **record.progress},
            building=tuple(dict.fromkeys((*record.building, *other.building))),
            # A member of an alias of several keeps its own.
            moved=(*record.moved, other.key) if record.uuid else (),
        )
    return record


def records_over(engine: Engine, names: Collection[str], *, within: bool = False, but: str = "") -> list[ControlRecord]:
    """Return all stored records of names for any of these indexes (``within``: no others), but that of key ``but``."""
    try:
        keys = {document.id for batch in engine.scan(CONTROL_INDEX, source=False) for document in batch} - {but}
        documents = engine.get(CONTROL_INDEX, sorted(keys)) if keys else []
    except IndexMissing:
        return []
    records = []
    for document in filter(None, documents):
        try:
            behind = set(engine.index_names(document.id))
        except EngineAuthError:  # whoever may not look at an index has nothing of his behind its name
            continue
        if behind & set(names) and (not within or behind <= set(names)):
            records.append(_parse(document.id, document))
    return records


def _parse(index: str, stored: StoredDocument) -> ControlRecord:
    value = stored.source
    if value.get("format") != FORMAT_VERSION:
        raise InputError(
            f"the record of {index!r} in {CONTROL_INDEX!r} has format {value.get('format')!r}; this version of the "
            f"program reads format {FORMAT_VERSION}: update the program",
            index=index,
        )
    place = {"index": index, "key": stored.id, "seq_no": stored.seq_no, "primary_term": stored.primary_term}
    try:
        # All must be there: what is lacking would be taken for empty.
        itemgetter("releases", "live", "previous", "progress", "building", "retired")(value)
        return msgspec.convert({**value, **place}, ControlRecord)
    except (KeyError, msgspec.ValidationError) as error:
        raise InputError(
            f"the record of {index!r} in {CONTROL_INDEX!r} is not readable ({error!r}): delete this document and "
            "register the versions again with `ssi revectorize`",
            index=index,
        ) from error


def write_control(engine: Engine, record: ControlRecord) -> ControlRecord:
    """Store the record over exactly the version it was read as, and return it with its new version.

    `VersionConflict` where somebody else changed it since; read it again. `EngineError` where the engine refuses or
    does not answer. The record may be written and one of ``moved`` not deleted; the message says so.
    """
    kept_apart = ("seq_no", "primary_term", "key", "moved")
    fields = {name: value for name, value in asdict(record).items() if name not in kept_apart}
    lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
    source = {"format": FORMAT_VERSION, **fields, **lists, "written": utc_now()}
    if record.seq_no < 0:
        ensure_index(engine, CONTROL_INDEX, _MAPPING, None if engine.in_process else _SETTINGS)
        op = WriteOp("create", record.key, source)
    else:
        op = WriteOp("index", record.key, source, if_seq_no=record.seq_no, if_primary_term=record.primary_term)
    result, *deleted = engine.bulk(CONTROL_INDEX, [op, *(WriteOp("delete", name) for name in record.moved)])
    if result.status == 409:
        message = f"the record of {record.index!r} was changed by somebody else meanwhile: read it again"
        raise VersionConflict(message, status=409, error_type=result.error_type)
    _check(result, f"the record of {record.index!r} could not be written")
    _check_deleted(deleted)
    return replace(record, moved=(), seq_no=result.seq_no, primary_term=result.primary_term)


def forget_control(engine: Engine, keys: Iterable[str]) -> None:
    """Delete records of indexes that are gone, or of names of one index now; `EngineError` where that fails."""
    ops = [WriteOp("delete", key) for key in keys]
    if ops and engine.index_names(CONTROL_INDEX):
        # Deleted a second time, a record is missing, which is no error.
        attempts = attempts_of(engine, f"the deletion of records in {CONTROL_INDEX!r}")
        _check_deleted(retried(lambda: engine.bulk(CONTROL_INDEX, ops), attempts))


def _check_deleted(results: Iterable[WriteResult]) -> None:
    """Raise `EngineRejected` at the first record that stayed; one that was not there (404) is gone as it should be."""
    for result in results:
        if result.status != 404:
            _check(result, f"the old record {result.id!r} could not be deleted", " and delete this document of it")


def _check(result: WriteResult, fault: str, remedy: str = "") -> None:
    if result.status >= 300:
        cause = f"{result.status} {result.error_type}: {result.reason}"
        message = f"{fault}: {cause}; check the rights on the index {CONTROL_INDEX!r}{remedy}"
        raise EngineRejected(message, status=result.status, error_type=result.error_type)


def update_control(engine: Engine, index: str, change: Callable[[ControlRecord], ControlRecord]) -> ControlRecord:
    """Return the stored record after ``change``, made again on a conflict; an equal record is not written.

    An engine that was opened with retries is asked again after a failure that passes. If the answer to a write was
    lost, the record is read: where it has the content that was sent, the write was carried out, and is not repeated.
    """
    attempts = attempts_of(engine, f"the change of the record of {index!r} in {CONTROL_INDEX!r}")
    conflicts = 0
    unanswered: list[ControlRecord] = []
    while True:
        record = read_control(engine, index)
        if sent := next((each for each in unanswered if _content(each) == _content(record)), None):
            forget_control(engine, sent.moved)
            return record
        changed = change(record)
        if changed == record:
            return record
        try:
            return write_control(engine, changed)
        except VersionConflict:
            conflicts += 1
            if conflicts == _ATTEMPTS:
                raise
        except (EngineUnavailable, EngineOverloaded) as error:
            attempts.wait(error)
            unanswered.append(changed)


def _content(record: ControlRecord) -> ControlRecord:
    """Return a record without its version and its place."""
    return replace(record, key=record.index, moved=(), seq_no=-1, primary_term=-1)


def default_store(model_dir: Path, engine_spec: str, index: str) -> Path:
    """Return where the vector store of an index lies unless told otherwise: ``<model_dir>.stores/<key>``.

    The key is the index name and a hash of engine (its spec without credentials) and index, so that one model serves
    several indexes. It lies beside the model folder, not in it: publishing a model replaces its folder.
    """
    key = hashlib.sha256(f"{absolute_spec(engine_spec)}\n{index}".encode()).hexdigest()[:12]
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in index)[:60]
    model_dir = model_dir.resolve()
    return model_dir.parent / f"{model_dir.name}.stores" / f"{name}-{key}"


RETRAIN_FOLDER = ".retrain"
"""Folder of what retrainings keep, beside the model folders."""
GATES = "gates.json"
KEPT_GATES = 10


@dataclass(frozen=True, slots=True)
class GateNote:
    """What one retraining came to: no query, so that it may be kept when clicks are forgotten.

    ``finished`` is UTC, ISO 8601; ``candidate`` and ``live_before`` are model ids; ``measured`` has by name the values
    of the live and the new model, and the difference with its bounds; ``report`` is where the HTML report was written.
    """

    index: str
    finished: str
    outcome: str
    reason: str
    candidate: str
    live_before: str | None = None
    measured: tuple[Mapping[str, str | float], ...] = ()
    impressions: int = 0
    people: int = 0
    report: str | None = None


def note_gate(folder: Path, note: GateNote) -> None:
    """Keep what a retraining came to in its work folder, with the last few before it."""
    try:
        before = _notes_in(folder / GATES)
    except InputError:  # a retraining does not fail for what is only looked at
        before = []
    write_file(folder / GATES, msgspec.json.encode([*before, note][-KEPT_GATES:]))


def last_gates(models: Path, index: str) -> list[GateNote]:
    """Return what retrainings of an index into a folder of models came to, newest first; `InputError` if damaged."""
    files = sorted(models.glob(f"{RETRAIN_FOLDER}/*/{GATES}"))
    notes = (note for path in files for note in _notes_in(path) if note.index == index)
    return sorted(notes, key=lambda note: note.finished, reverse=True)


def _notes_in(path: Path) -> list[GateNote]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[GateNote]) if path.exists() else []
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({type(error).__name__}): delete it", path=str(path)) from error
