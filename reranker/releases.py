"""Releases: one small record for each served index, in the index ``ssi-control`` of the same engine.

A release is a model with its encoder, whose vectors it scores, and its calibration. The record of an index lists the
releases and names the live one. Promotion and rollback are one write each, conditional on ``if_seq_no``, so that
concurrent changes are detected. The user's own index is never changed here.

A record belongs to the concrete index, whose documents have the vectors. It is the same for all aliases of that index.
Only an alias of several indexes has its own record.
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
from reranker.engines.protocol import Engine, WriteOp, WriteResult, ensure_index, refresh_if_allowed
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
from reranker.progress import Say, silent
from reranker.records import StoredDocument

CONTROL_INDEX = "ssi-control"
"""Name of the index that holds the records."""
FORMAT_VERSION = 1
LEAST_DIGITS = 6
"""Minimum number of digits of a model id that identify a version."""
_MAPPING: dict[str, Any] = {"dynamic": False, "properties": {}}
_SETTINGS = {"index.number_of_shards": "1", "index.auto_expand_replicas": "0-1"}
_ATTEMPTS = 10
CARRIED_FROM = "carried_from"
"""Key of a calibration's entry that names the index or model for which it was fitted, if not for this release."""


@dataclass(frozen=True, slots=True)
class Release:
    """A model that can be served with an index."""

    model_id: str
    """Hash of the whole model."""
    encoder_id: str
    """Hash of the document side of the model. The fields in the index are named after its first 12 digits."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Blend weights by body and window, as written by `ssi calibrate`; empty before the first calibration. An entry
    with the key `CARRIED_FROM` was fitted for another index or model."""
    created: str = ""
    """UTC time of registration, ISO 8601."""
    view: Mapping[str, Any] = field(default_factory=dict)
    """Text view of the encoder (`reranker.text.view.TextView.to_json`); empty if an older program registered it."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """The record of a served index."""

    index: str
    """Name of the index or alias that the user gave."""
    releases: tuple[Release, ...] = ()
    """Releases, oldest first; at most one per model."""
    live: str | None = None
    """Model id of the live release, which services load."""
    previous: tuple[str, ...] = ()
    """Model ids of earlier live releases, newest last."""
    progress: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Progress of `revectorize` and `sync` by version."""
    building: tuple[str, ...] = ()
    """Concrete indexes of unfinished rebuilds, which the alias does not point to yet."""
    retired: tuple[str, ...] = ()
    """Concrete indexes that a rebuild has replaced behind the alias; `ssi gc` deletes them."""
    uuid: str = ""
    """The engine's UUID of the concrete index; empty if the name is an alias of several indexes, or does not exist."""
    key: str = ""
    """Id of the record's document: the concrete index, or the name for an alias of several indexes or a missing one."""
    moved: tuple[str, ...] = ()
    """Ids of documents in which older programs stored the record; the next write deletes them."""
    seq_no: int = -1
    primary_term: int = -1
    """Version of the document that was read; -1 if the record is not stored yet."""

    def calibration(self, model_id: str) -> Mapping[str, Any]:
        """Return the calibration in the release of a model; empty if there is none."""
        return next((release.calibration for release in self.releases if release.model_id == model_id), {})

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.index)

    def release(self, model_id: str) -> Release:
        """Return the release of a model id, or of a unique prefix of 6 digits or more.

        Raises `InputError`, which lists the releases, if there is none or more than one.
        """
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

    def with_calibration(self, model_id: str, carried: Mapping[str, Any]) -> ControlRecord:
        """Return a record in which the release of a model has the calibration ``carried``, unless it has its own."""
        release = self.release(model_id)
        return self if release.calibration else self.with_release(replace(release, calibration=dict(carried)))

    def with_release(self, release: Release) -> ControlRecord:
        """Return a record with the release added. A release of the same model is replaced in its place."""
        by_model = {each.model_id: each for each in (*self.releases, release)}
        return replace(self, releases=tuple(by_model.values()))

    def with_live(self, model_id: str) -> ControlRecord:
        """Return a record in which this release is live, and the previous one is stored for a rollback."""
        release = self.release(model_id)
        if release.model_id == self.live:
            return self
        return replace(self.without_live(), live=release.model_id)

    def without_live(self) -> ControlRecord:
        """Return a record without a live release. The previous one is stored for a rollback."""
        return self if self.live is None else replace(self, live=None, previous=(*self.previous, self.live))

    def with_retired(self, names: Iterable[str]) -> ControlRecord:
        """Return a record in which these indexes are listed as replaced."""
        return replace(self, retired=tuple(dict.fromkeys((*self.retired, *names))))

    def without_leftovers(self, names: Collection[str]) -> ControlRecord:
        """Return a record without these indexes in ``building`` and ``retired``, because they are served or deleted."""
        building = tuple(name for name in self.building if name not in names)
        return replace(self, building=building, retired=tuple(name for name in self.retired if name not in names))


def utc_now() -> str:
    """Return the current time in the format of records: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_control(engine: Engine, index: str) -> ControlRecord:
    """Return the record of an index, given its name or an alias; an empty record if nothing is registered.

    If the index was rebuilt or restored since, the record has no live release and no progress. Its releases must be
    promoted again. Records that older programs stored under aliases are merged: the record of the given name determines
    the live release, and the live releases of the others are stored for a rollback.

    Raises `EngineError` if the engine does not answer, and `InputError` for a record of a newer format or of another
    project.
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
    """Merge the records ``others`` of the same index into an empty record. That of the given name has precedence."""
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
            # An index that is a member of an alias of several indexes keeps its own record.
            moved=(*record.moved, other.key) if record.uuid else (),
        )
    return record


def records_over(engine: Engine, names: Collection[str], *, within: bool = False, but: str = "") -> list[ControlRecord]:
    """Return the stored records of all names that point to any of these indexes, except the record of key ``but``.

    With ``within``, names that also point to other indexes are left out.
    """
    try:
        keys = {document.id for batch in engine.scan(CONTROL_INDEX, source=False) for document in batch} - {but}
        documents = engine.get(CONTROL_INDEX, sorted(keys)) if keys else []
    except IndexMissing:
        return []
    records = []
    for document in filter(None, documents):
        try:
            behind = set(engine.index_names(document.id))
        except EngineAuthError:  # a user without access to an index has no record for it
            continue
        if behind & set(names) and (not within or behind <= set(names)):
            records.append(_parse(document.id, document))
    return records


def carried_over(calibration: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return a calibration for another release; each entry names its origin, unless it was carried over before."""
    entries = ((key, entry) for key, entry in calibration.items() if isinstance(entry, Mapping))
    return {key: {CARRIED_FROM: origin, **entry} for key, entry in entries}


def origins_of(calibration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the indexes and models for which carried entries of a calibration were fitted; empty if there are none."""
    entries = [entry for entry in calibration.values() if isinstance(entry, Mapping)]
    return tuple(sorted({str(entry[CARRIED_FROM]) for entry in entries if CARRIED_FROM in entry}))


def calibration_of_former_index(engine: Engine, record: ControlRecord, model_id: str) -> dict[str, Any]:
    """Return the calibration that a model has for a former index of the same name; empty if none is needed or found.

    After a rollover, the alias points to another concrete index, which has another record. The model, the bodies and
    the windows are the same, and so are the entries; each names the former index. Only records with the same given
    name count, because documents of other names may be others. If there are several, the newest one is used.
    """
    if record.calibration(model_id):
        return {}
    for former in former_records(engine, record):
        if calibration := former.calibration(model_id):
            return carried_over(calibration, f"index {former.key}")
    return {}


def former_records(engine: Engine, record: ControlRecord) -> list[ControlRecord]:
    """Return the records of other indexes that were written under the same given name, newest first."""
    try:
        refresh_if_allowed(engine, CONTROL_INDEX)
        found = [document for batch in engine.scan(CONTROL_INDEX) for document in batch]
    except IndexMissing:
        return []
    former = [
        document
        for document in found
        if document.id != record.key
        and document.source.get("format") == FORMAT_VERSION
        and document.source.get("index") == record.index
    ]
    former.sort(key=lambda document: str(document.source.get("written")), reverse=True)
    return [_parse(document.id, document) for document in former]


def delete_control_if_empty(engine: Engine, notice: Say = silent) -> None:
    """Delete the index of the records if it has none left. Without the right to do so, ``notice`` is called."""
    if not engine.index_names(CONTROL_INDEX):
        return
    refresh_if_allowed(engine, CONTROL_INDEX)
    if engine.count(CONTROL_INDEX):
        return
    try:
        engine.delete_index(CONTROL_INDEX)
    except EngineAuthError as error:
        notice(f"the empty index {CONTROL_INDEX!r} stays, because it could not be deleted: {error.message}")


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
        # All keys are required, because a missing one would be read as empty.
        itemgetter("releases", "live", "previous", "progress", "building", "retired")(value)
        return msgspec.convert({**value, **place}, ControlRecord)
    except (KeyError, msgspec.ValidationError) as error:
        raise InputError(
            f"the record of {index!r} in {CONTROL_INDEX!r} is not readable ({error!r}): delete this document and "
            "register the versions again with `ssi revectorize`",
            index=index,
        ) from error


def write_control(engine: Engine, record: ControlRecord) -> ControlRecord:
    """Write the record, conditional on the version that was read, and return it with its new version.

    Raises `VersionConflict` if the stored record was changed since; read it again. Raises `EngineError` if the engine
    refuses the request or does not answer. If the record was written, but a document of ``moved`` could not be deleted,
    the message says so.
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
        message = f"the record of {record.index!r} was changed by another process meanwhile: read it again"
        raise VersionConflict(message, status=409, error_type=result.error_type)
    _check(result, f"the record of {record.index!r} could not be written")
    _check_deleted(deleted)
    return replace(record, moved=(), seq_no=result.seq_no, primary_term=result.primary_term)


def forget_control(engine: Engine, keys: Iterable[str]) -> None:
    """Delete records of deleted indexes, or of names that are now aliases of one index.

    Raises `EngineError` if this fails.
    """
    ops = [WriteOp("delete", key) for key in keys]
    if ops and engine.index_names(CONTROL_INDEX):
        # A retry is safe, because deleting a missing record is no error.
        attempts = attempts_of(engine, f"the deletion of records in {CONTROL_INDEX!r}")
        _check_deleted(retried(lambda: engine.bulk(CONTROL_INDEX, ops), attempts))


def _check_deleted(results: Iterable[WriteResult]) -> None:
    """Raise `EngineRejected` for the first record that could not be deleted. A missing record (404) is no error."""
    for result in results:
        if result.status != 404:
            _check(result, f"the old record {result.id!r} could not be deleted", " and delete this document of it")


def _check(result: WriteResult, fault: str, remedy: str = "") -> None:
    if result.status >= 300:
        cause = f"{result.status} {result.error_type}: {result.reason}"
        message = f"{fault}: {cause}; check the rights on the index {CONTROL_INDEX!r}{remedy}"
        raise EngineRejected(message, status=result.status, error_type=result.error_type)


def update_control(engine: Engine, index: str, change: Callable[[ControlRecord], ControlRecord]) -> ControlRecord:
    """Apply ``change`` to the record of an index, write it, and return it. An unchanged record is not written.

    After a version conflict, the record is read and ``change`` applied again. With an engine that was opened with
    retries, transient failures are retried. If the response to a write was lost, the record is read. If it has the
    content that was sent, the write was successful and is not repeated.
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
    """Return a record without its version and document ids, for comparing contents."""
    return replace(record, key=record.index, moved=(), seq_no=-1, primary_term=-1)


def default_store(model_dir: Path, engine_spec: str, index: str) -> Path:
    """Return the default folder of the vector store of an index: ``<model_dir>.stores/<key>``.

    The key consists of the index name and a hash of the engine (its spec without credentials) and the index, so that a
    model can serve several indexes. The folder is next to the model folder and not in it, because publishing a model
    replaces its folder.
    """
    key = hashlib.sha256(f"{absolute_spec(engine_spec)}\n{index}".encode()).hexdigest()[:12]
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in index)[:60]
    model_dir = model_dir.resolve()
    return model_dir.parent / f"{model_dir.name}.stores" / f"{name}-{key}"


RETRAIN_FOLDER = ".retrain"
"""Folder for the state of retrainings, next to the model folders."""
