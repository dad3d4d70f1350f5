"""The versions of an index: list them, register one, make one live, go back to the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reranker.engines.protocol import Engine
from reranker.engines.vectors import FIELD_PREFIX, ID_DIGITS, field_name
from reranker.errors import GateRefused, InputError
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, no_progress
from reranker.releases import ControlRecord, Release, read_control, update_control, utc_now
from reranker.text.view import TextView

RUNNING = "running"
"""State of a version in the record while its vectors are being written; a killed writer leaves it."""


@dataclass(frozen=True, slots=True)
class VersionState:
    """One version of an index."""

    model_id: str | None
    """None for fields that no release is registered for."""
    encoder_id: str
    """Whole id, or its first 12 digits where only fields are there."""
    live: bool
    documents: int
    with_vector: int
    """Documents in the index, and those that carry the version's hash."""
    stale: int | None = None
    """Of these, how many have another text by now; None where it was not counted, or cannot be: an older program
    registered the version, and did not note which fields it reads."""
    calibrated: bool = False
    """A calibration is registered."""
    created: str = ""
    state: str = ""
    """When registered; what `revectorize` and `sync` noted last."""


def list_versions(
    engine: Engine, index: str, *, count_stale: bool = True, progress: Progress = no_progress
) -> list[VersionState]:
    """Return the versions of an index: registered releases, oldest first, then fields without a release.

    Counting stale documents reads all texts, told by ``progress``. `InputError` where the index does not exist.
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
            created=release.created,
            state=str(record.progress.get(release.encoder_id, {}).get("state", "")),
        )
        for release in record.releases
    ]
    registered = {release.encoder_id[:ID_DIGITS] for release in record.releases}
    others = {head: count for head, count in counts.items() if count and head not in registered}
    return states + [VersionState(None, head, False, documents, count) for head, count in others.items()]


def existing_indexes(engine: Engine, index: str) -> tuple[str, ...]:
    """Return the concrete indexes behind a name; `InputError` where there is none."""
    names = engine.index_names(index)
    if not names:
        raise InputError(f"there is no index {index!r} on {engine.spec}: check the name", index=index)
    return names


def field_heads(engine: Engine, index: str) -> list[str]:
    """Return the 12-digit heads of all encoders with fields in the mapping of an index, sorted."""
    heads = set()
    for name in engine.index_names(index):
        for key in engine.index_info(name).properties:
            parts = key.split("_")
            if key.startswith(FIELD_PREFIX) and len(parts) >= 3 and len(parts[1]) == ID_DIGITS:
                heads.add(parts[1])
    return sorted(heads)


def with_version(engine: Engine, index: str, encoder_id: str) -> int:
    """Return how many documents carry the hash of an encoder's version."""
    return engine.count(index, {"exists": {"field": field_name(encoder_id, "src")}})


def stale_documents(
    engine: Engine, index: str, views: Mapping[str, TextView], progress: Progress = no_progress
) -> dict[str, int]:
    """Return how many documents have a vector of another text than they have now, by encoder id, as `sync` sees it."""
    heads = set(field_heads(engine, index)) if views else set()
    counts = dict.fromkeys(views, 0)
    hashes = {field_name(key, "src"): (key, view) for key, view in views.items() if key[:ID_DIGITS] in heads}
    if not hashes:
        return counts
    paths = {spec.path for _, view in hashes.values() for spec in view.fields}
    n_read, total = 0, engine.count(index)
    for batch in engine.scan(index, source=sorted({*paths, *hashes})):
        for document in batch:
            for name, (key, view) in hashes.items():
                digest = document.source.get(name)
                counts[key] += digest is not None and digest != view.source_hash(document.source)
        n_read += len(batch)
        progress(n_read, total)
    return counts


def _views(releases: Sequence[Release]) -> dict[str, TextView]:
    """Return the text views by encoder id; left out are encoders whose view the record does not know."""
    return {release.encoder_id: TextView.from_json(release.view) for release in releases if release.view}


def register(engine: Engine, index: str, model: RankingModel, *, promote: bool | None = None) -> bool:
    """Register the model's release and return whether it is the live one now; a calibration that is there is kept.

    ``promote`` says whether to make it live; None only where no release is.
    """
    model_id, encoder_id = model.model_id, model.encoder_id

    def change(record: ControlRecord) -> ControlRecord:
        known = next((r for r in record.releases if r.model_id == model_id), None)
        release = known or Release(model_id, encoder_id, {}, utc_now())
        record = record.with_release(replace(release, view=model.encoder.view.to_json()))
        wanted = record.live is None if promote is None else promote
        return record.with_live(model_id) if wanted else record

    return update_control(engine, index, change).live == model_id


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
    """Return the record after making a version live: one write, guarded by the version of the record.

    ``version`` is a model id, or its first 6 digits and more. Every text is read, to see whether the vectors are of it,
    unless it was ``renewed`` just now; ``progress`` gets the documents read. ``check`` gets the record that is about to
    be changed, and raises where that must not be; nothing is written then.

    `InputError`: an unknown index or version. `GateRefused` where documents lack its vector, or have changed since it
    was made, unless ``force``: nothing is changed.
    """
    existing_indexes(engine, index)
    release = read_control(engine, index).release(version)
    if not force:
        _check_vectors(engine, index, release, None if renewed else progress)

    def change(record: ControlRecord) -> ControlRecord:
        if check is not None:
            check(record)
        return record.with_live(release.model_id)

    return update_control(engine, index, change)


def rollback(engine: Engine, index: str, *, force: bool = False, progress: Progress = no_progress) -> ControlRecord:
    """Return the record after making the previously live version live again, checked as by `promote`.

    `InputError`: an unknown index. `GateRefused`: none was live, `ssi gc` emptied its fields, or documents changed.
    """

    def change(record: ControlRecord) -> ControlRecord:
        if not record.previous:
            raise GateRefused(f"index {index!r} has no earlier live version to go back to: see `ssi versions`")
        return replace(record, live=record.previous[-1], previous=record.previous[:-1])

    existing_indexes(engine, index)
    goal = change(read_control(engine, index))
    if not force:
        _check_vectors(engine, index, goal.release(goal.live or ""), progress)
    # A write whose answer was lost, and which another followed, is not repeated: it would go back twice.
    return update_control(engine, index, lambda record: record if record.live == goal.live else change(record))


def _check_vectors(engine: Engine, index: str, release: Release, progress: Progress | None) -> None:
    """Raise `GateRefused` where documents lack a version's vector; and, unless ``progress`` is None, have changed."""
    engine.refresh(index)
    documents, n_covered = engine.count(index), with_version(engine, index, release.encoder_id)
    if n_covered < documents:
        message = (
            f"{documents - n_covered} of {documents} documents of {index!r} have no vector of version "
            f"{release.model_id[:12]}: run `ssi sync` with its model first, or promote with --force (such documents "
            "are encoded at query time, or keep their place)"
        )
        raise GateRefused(message, index=index, missing=documents - n_covered)
    views = {} if progress is None else _views([release])
    n_stale = stale_documents(engine, index, views, progress or no_progress).get(release.encoder_id, 0)
    if n_stale:
        message = (
            f"{n_stale} documents of {index!r} have changed since version {release.model_id[:12]} made their vectors: "
            "run `ssi sync` with its model first, or go on with --force (they are scored by the text they had)"
        )
        raise GateRefused(message, index=index, stale=n_stale)
