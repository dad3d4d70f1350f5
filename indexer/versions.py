"""The versions of an index: listing, registration, promotion, and rollback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reranker.engines.impacts import IMPACTS_ALIAS
from reranker.engines.language import property_type
from reranker.engines.protocol import Engine
from reranker.engines.vectors import FIELD_PREFIX, ID_DIGITS, field_name, field_prefix
from reranker.errors import GateRefused, InputError
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, no_progress
from reranker.releases import (
    ControlRecord,
    Release,
    calibration_of_former_index,
    origins_of,
    read_control,
    update_control,
    utc_now,
)
from reranker.text.view import TextView

RUNNING = "running"
"""State of a version in the record while its vectors are being written. It remains if the process is killed."""
COMPLETE = "complete"
"""State of a version in the record after every document got its vector."""
IMPACTS_OF = "impacts_of"
"""Key of a version's progress in the record: id of the model whose impacts all documents have."""
OUTDATED = "outdated"
"""State of a complete version if documents have been added or changed since, so that `ssi sync` is needed."""


@dataclass(frozen=True, slots=True)
class VersionState:
    """One version of an index."""

    model_id: str | None
    """Model id; None for fields without a registered release."""
    encoder_id: str
    """Encoder id; only its first 12 digits if there are only fields."""
    live: bool
    documents: int
    """Number of documents in the index."""
    with_vector: int
    """Number of documents with the version's hash."""
    stale: int | None = None
    """Number of these whose text has changed; None if not counted, or if unknown because an older program registered
    the version without recording which fields it reads."""
    calibrated: bool = False
    """Whether a calibration is registered."""
    calibrated_from: tuple[str, ...] = ()
    """The former indexes and models for which it was fitted, if it was carried over."""
    created: str = ""
    """Time of registration."""
    state: str = ""
    """State last recorded by `revectorize` or `sync`; `OUTDATED` if it was complete, but documents changed since."""


def list_versions(
    engine: Engine, index: str, *, count_stale: bool = True, progress: Progress = no_progress
) -> list[VersionState]:
    """Return the versions of an index: registered releases, oldest first, then fields without a release.

    Counting stale documents reads all texts and calls ``progress``. Raises `InputError` if the index does not exist.
    """
    existing_indexes(engine, index)
    record = read_control(engine, index)
    documents = engine.count(index)
    counts = {head: with_version(engine, index, head) for head in field_heads(engine, index)}
    stale = stale_documents(engine, index, _views(record.releases), progress) if count_stale else {}
    states = [
        VersionState(
            model_id=release.model_id,
            encoder_id=release.encoder_id,
            live=release.model_id == record.live,
            documents=documents,
            with_vector=counts.get(release.encoder_id[:ID_DIGITS], 0),
            stale=stale.get(release.encoder_id),
            calibrated=bool(release.calibration),
            calibrated_from=origins_of(release.calibration),
            created=release.created,
            state=_state(
                str(record.progress.get(release.encoder_id, {}).get("state", "")),
                documents - counts.get(release.encoder_id[:ID_DIGITS], 0),
                stale.get(release.encoder_id, 0),
            ),
        )
        for release in record.releases
    ]
    registered = {release.encoder_id[:ID_DIGITS] for release in record.releases}
    others = {head: count for head, count in counts.items() if count and head not in registered}
    return states + [VersionState(None, head, False, documents, count) for head, count in others.items()]


def _state(recorded: str, n_missing: int, n_stale: int) -> str:
    """Return the recorded state of a version, or `OUTDATED` if it is no longer complete."""
    return OUTDATED if recorded == COMPLETE and (n_missing or n_stale) else recorded


def existing_indexes(engine: Engine, index: str) -> tuple[str, ...]:
    """Return the concrete indexes behind a name. Raises `InputError` if there are none."""
    names = engine.index_names(index)
    if not names:
        raise InputError(f"there is no index {index!r} on {engine.spec}: check the name", index=index)
    return names


def field_heads(engine: Engine, index: str) -> list[str]:
    """Return the sorted id prefixes (12 digits) of all encoders with fields in the mapping of an index."""
    heads = set()
    for name in engine.index_names(index):
        for key in engine.index_info(name).properties:
            parts = key.split("_")
            if key.startswith(FIELD_PREFIX) and len(parts) >= 3 and len(parts[1]) == ID_DIGITS:
                heads.add(parts[1])
    return sorted(heads)


def live_mapping(engine: Engine, index: str) -> dict[str, Any]:
    """Return ``{"properties": ...}`` with the fields of the live version, as mapped in the index, for a new mapping.

    Raises `InputError` if the index does not exist, or no version is live.
    """
    names = existing_indexes(engine, index)
    release = read_control(engine, index).live_release
    if release is None:
        raise InputError(f"no version of {index!r} is live, so there are no fields to copy: promote one", index=index)
    prefix = field_prefix(release.encoder_id)
    found = {key: value for name in names for key, value in engine.index_info(name).properties.items()}
    ours = {key: found[key] for key in sorted(found) if key.startswith(prefix)}
    if property_type(ours.get(f"{prefix}impacts", {})) == "sparse_vector":
        ours[IMPACTS_ALIAS] = {"type": "alias", "path": f"{prefix}impacts"}
    return {"properties": ours}


def with_version(engine: Engine, index: str, encoder_id: str) -> int:
    """Return how many documents have the hash of an encoder's version."""
    return engine.count(index, {"exists": {"field": field_name(encoder_id, "src")}})


def stale_documents(
    engine: Engine, index: str, views: Mapping[str, TextView], progress: Progress = no_progress
) -> dict[str, int]:
    """Return how many documents have a vector of an outdated text, by encoder id, as `sync` determines it."""
    heads = set(field_heads(engine, index)) if views else set()
    counts = dict.fromkeys(views, 0)
    hashes = {field_name(key, "src"): (key, view) for key, view in views.items() if key[:ID_DIGITS] in heads}
    if not hashes:
        return counts
    paths = {path for _, view in hashes.values() for path in view.source_fields}
    n_read, total = 0, engine.count(index)
    for batch in engine.scan(index, source=sorted({*paths, *hashes})):
        for document in batch:
            for name, (key, view) in hashes.items():
                digest = document.source.get(name)
                counts[key] += digest is not None and digest != _hash_of(view, document.source)
        n_read += len(batch)
        progress(n_read, total)
    return counts


def _hash_of(view: TextView, source: Mapping[str, Any]) -> str | None:
    """Return the hash of what a view reads of a document; None if its vector is none any more."""
    try:
        return view.source_hash(source)
    except InputError:
        return None


def _views(releases: Sequence[Release]) -> dict[str, TextView]:
    """Return the text views by encoder id, without encoders whose view is not in the record."""
    return {release.encoder_id: TextView.from_json(release.view) for release in releases if release.view}


def register(engine: Engine, index: str, model: RankingModel, *, promote: bool | None = None) -> bool:
    """Register the model's release and return whether it is now live; an existing calibration is kept.

    A release without a calibration gets the one that the model has for a former index of the same name.
    ``promote``: whether to make it live; None: only if no release is live.
    """
    model_id, encoder_id = model.model_id, model.encoder_id
    carried = calibration_of_former_index(engine, read_control(engine, index), model_id)

    def change(record: ControlRecord) -> ControlRecord:
        known = next((r for r in record.releases if r.model_id == model_id), None)
        release = known or Release(model_id, encoder_id, {}, utc_now())
        record = record.with_release(replace(release, view=model.encoder.view.to_json()))
        record = record.with_calibration(model_id, carried)
        wanted = record.live is None if promote is None else promote
        return record.with_live(model_id) if wanted else record

    is_live = update_control(engine, index, change).live == model_id
    if is_live:
        point_impacts_alias(engine, index)
    return is_live


def promote(
    engine: Engine,
    index: str,
    version: str,
    *,
    force: bool = False,
    renewed: bool = False,
    check: Callable[[ControlRecord], None] | None = None,
    progress: Progress = no_progress,
) -> ControlRecord:
    """Make a version live, in one write on condition that the record has not changed, and return the new record.

    A version without a calibration gets the one that it has for a former index of the same name.

    Parameters
    ----------
    engine, index
        The index.
    version
        A model id, or at least its first 6 digits.
    force
        Promote even if documents have no vector or an outdated one.
    renewed
        The vectors were renewed just now, so the texts need not be read. Otherwise every text is read, to find outdated
        vectors.
    check
        Called with the record that is about to be changed; if it raises, nothing is written.
    progress
        Called with the number of documents read.

    Raises
    ------
    InputError
        For an unknown index or version.
    GateRefused
        If documents have no vector of the version, or have changed since, unless ``force``; nothing is changed then.
    """
    existing_indexes(engine, index)
    before = read_control(engine, index)
    release = before.release(version)
    if not force:
        _check_vectors(engine, index, release, None if renewed else progress)
    carried = calibration_of_former_index(engine, before, release.model_id)

    def change(record: ControlRecord) -> ControlRecord:
        if check is not None:
            check(record)
        return record.with_calibration(release.model_id, carried).with_live(release.model_id)

    record = update_control(engine, index, change)
    # After the record: if this fails, the old impacts are served, and the same command finishes it.
    point_impacts_alias(engine, index)
    return record


def rollback(engine: Engine, index: str, *, force: bool = False, progress: Progress = no_progress) -> ControlRecord:
    """Make the previously live version live again, with the checks of `promote`, and return the new record.

    Raises
    ------
    InputError
        For an unknown index.
    GateRefused
        If there is no previous version, `ssi gc` removed its fields, or documents changed.
    """

    def change(record: ControlRecord) -> ControlRecord:
        if not record.previous:
            raise GateRefused(f"index {index!r} has no earlier live version to roll back to: see `ssi versions`")
        return replace(record, live=record.previous[-1], previous=record.previous[:-1])

    existing_indexes(engine, index)
    goal = change(read_control(engine, index))
    if not force:
        _check_vectors(engine, index, goal.release(goal.live or ""), progress)
    # If the response to this write was lost and another write followed, it must not be repeated: it would roll back
    # twice.
    record = update_control(engine, index, lambda record: record if record.live == goal.live else change(record))
    point_impacts_alias(engine, index)
    return record


def _check_impacts(engine: Engine, index: str, release: Release) -> None:
    """Raise `GateRefused` if the impacts in the index are those of another model with the same document side."""
    present = read_control(engine, index).progress.get(release.encoder_id, {}).get(IMPACTS_OF)
    if present is not None and present != release.model_id:
        message = (
            f"the impacts in {index!r} are those of model {present[:12]}, which has the same document vectors as "
            f"{release.model_id[:12]} and another query side: run `ssi sync` with the model first, or use --force (the "
            "index keeps the other impacts)"
        )
        raise GateRefused(message, index=index, impacts_of=present)


def point_impacts_alias(engine: Engine, index: str) -> None:
    """Point the field alias `IMPACTS_ALIAS` to the impacts of the live version.

    It exists in indexes with such impacts on an engine that can search by an alias of them; others stay as they are.
    Raises `InputError` if a field of that name is no alias.
    """
    release = read_control(engine, index).live_release
    if release is None:
        return
    field = field_name(release.encoder_id, "impacts")
    for name in engine.index_names(index):
        properties = engine.index_info(name).properties
        present = properties.get(IMPACTS_ALIAS)
        if present is not None and property_type(present) != "alias":
            raise InputError(
                f"index {name!r} has a field {IMPACTS_ALIAS!r} that is no alias, and this name is needed for one: "
                "rename the field",
                index=name,
            )
        can_alias = property_type(properties.get(field, {})) == "sparse_vector"
        if can_alias and (present is None or present.get("path") != field):
            engine.put_properties(name, {IMPACTS_ALIAS: {"type": "alias", "path": field}})


def _check_vectors(engine: Engine, index: str, release: Release, progress: Progress | None) -> None:
    """Raise `GateRefused` if documents have no vector of a version or, unless ``progress`` is None, have changed."""
    engine.refresh(index)
    _check_impacts(engine, index, release)
    documents, n_covered = engine.count(index), with_version(engine, index, release.encoder_id)
    if n_covered < documents:
        message = (
            f"{documents - n_covered} of {documents} documents of {index!r} have no vector of version "
            f"{release.model_id[:12]}: run `ssi sync` with its model first, or promote with --force (such documents "
            "are encoded at query time, or keep their rank)"
        )
        raise GateRefused(message, index=index, missing=documents - n_covered)
    views = {} if progress is None else _views([release])
    n_stale = stale_documents(engine, index, views, progress or no_progress).get(release.encoder_id, 0)
    if n_stale:
        message = (
            f"{n_stale} documents of {index!r} have changed since their vectors were computed for version "
            f"{release.model_id[:12]}: run `ssi sync` with its model first, or use --force (old texts are scored)"
        )
        raise GateRefused(message, index=index, stale=n_stale)
