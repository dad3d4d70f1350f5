"""Garbage collection: removes the fields of versions that are no longer needed, and deletes retired indexes.

A partial update cannot remove a field. So the whole document is written again without it, on condition that it still
has the version that was read. If an ingest pipeline would run on such a write, a partial update, which runs no
pipeline, sets the fields to null instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from indexer.bulk import Action, BulkEvents, BulkItem, BulkWriter, guarded_write
from indexer.encoding import nothing
from indexer.preflight import PIPELINES, mapping_reasons, version_reasons
from indexer.versions import RUNNING, existing_indexes, field_heads, with_version
from reranker.engines.protocol import Engine, refresh_if_allowed
from reranker.engines.vectors import FIELD_PREFIX, ID_DIGITS, field_name, field_prefix
from reranker.errors import EngineError, GateRefused, PreflightRefused
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import StoredDocument
from reranker.releases import (
    CONTROL_INDEX,
    ControlRecord,
    delete_control_if_empty,
    forget_control,
    former_records,
    read_control,
    records_over,
    update_control,
)

MAX_PASSES = 20


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """Plan of what `collect` would remove."""

    index: str
    concrete: tuple[str, ...]
    """Indexes behind the name, whose documents are rewritten."""
    keep: tuple[str, ...]
    """Id prefixes (12 digits) of encoders that are kept."""
    drop: tuple[str, ...]
    """Id prefixes of encoders whose fields are removed."""
    documents: int
    """Number of documents with such fields."""
    indexes: tuple[str, ...]
    """Concrete indexes that are deleted."""
    unfinished: tuple[str, ...]
    """Indexes of interrupted rebuilds, and id prefixes of versions from an interrupted `revectorize`; they are removed
    only on request."""
    mapping_entries: tuple[str, ...]
    """Names of fields that stay in the mapping. No engine can remove them, only a rebuild."""


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """Result of a collection: what was removed, and the engine's error if it stopped early."""

    plan: GarbagePlan
    emptied: int
    """Number of documents whose fields were removed."""
    deleted: tuple[str, ...]
    """Deleted indexes."""
    error: EngineError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        stopped = None if self.error is None else str(self.error)
        return {**asdict(self.plan), "emptied": self.emptied, "deleted": self.deleted, "stopped": stopped}


def plan_collection(
    engine: Engine, index: str, *, keep: int = 1, unfinished: bool = False, everything: bool = False
) -> GarbagePlan:
    """Return what `collect` would remove; nothing is written.

    Parameters
    ----------
    engine, index
        The index or alias.
    keep
        Number of previous live versions to keep for a rollback, in addition to the live version. Versions that other
        records of the same indexes keep are also kept.
    unfinished
        Also remove indexes of interrupted rebuilds and fields of an interrupted `revectorize`.
    everything
        Remove all versions in this name's record, for `uninstall`.

    Raises
    ------
    InputError
        If the index does not exist.
    PreflightRefused
        If no version is live, or rewriting is not safe.
    """
    names = existing_indexes(engine, index)
    record = read_control(engine, index)
    if everything:
        record, unfinished = _emptied(record), True
    elif record.live is None:
        raise PreflightRefused(index, ["no version is live, so none can be called old: promote a version first"])
    heads = _kept_heads(engine, names, record, keep)
    running = {key[:ID_DIGITS] for key, entry in record.progress.items() if entry.get("state") == RUNNING} - heads
    stay = heads if unfinished else heads | running
    old = [head for head in field_heads(engine, index) if head not in stay]
    counts = {head: with_version(engine, index, head) for head in old}
    registered = {r.encoder_id[:ID_DIGITS] for r in record.releases} - stay
    drop = tuple(sorted({head for head in old if counts[head]} | registered))
    documents = engine.count(index, _with_any(drop)) if any(counts.values()) else 0
    if documents:
        reasons = [
            reason
            for name in names
            for reason in (*mapping_reasons(engine.index_info(name), {}), *version_reasons(engine, name))
        ]
        if reasons:
            raise PreflightRefused(index, reasons)
    replaced, half_built = _unserved(engine, record.retired), _unserved(engine, record.building)
    prefixes = tuple(field_prefix(head) for head in old)
    entries = {key for name in names for key in engine.index_info(name).properties if key.startswith(prefixes)}
    indexes, left = ((*replaced, *half_built), ()) if unfinished else (replaced, (*half_built, *sorted(running)))
    return GarbagePlan(index, names, tuple(sorted(heads)), drop, documents, indexes, left, tuple(sorted(entries)))


def _kept_heads(engine: Engine, names: Sequence[str], record: ControlRecord, keep: int) -> set[str]:
    """Return the id prefixes of the encoders that this record, and every other record of the same indexes, keeps."""
    return {
        release.encoder_id[:ID_DIGITS]
        for each in (record, *_others(engine, names, record))
        for release in each.releases
        if release.model_id in _kept_models(each, keep)
    }


def _others(engine: Engine, names: Sequence[str], record: ControlRecord) -> list[ControlRecord]:
    """Return the other records of the same indexes, including those written a moment ago."""
    if not engine.index_names(CONTROL_INDEX):  # the last `uninstall` deleted it
        return []
    refresh_if_allowed(engine, CONTROL_INDEX)
    return records_over(engine, names, but=record.key)


def _kept_models(record: ControlRecord, keep: int) -> set[str]:
    """Return the live model, the ``keep`` previous live models, and all models registered later (not promoted yet)."""
    earlier = dict.fromkeys(model for model in reversed(record.previous) if model != record.live)
    kept = {record.live or "", *list(earlier)[:keep]}
    order = [r.model_id for r in record.releases]
    start = order.index(record.live) if record.live in order else 0
    return kept | {model for model in order[start:] if model not in record.previous}


def _unserved(engine: Engine, names: Sequence[str]) -> tuple[str, ...]:
    """Return the indexes that exist and have no alias."""
    return tuple(name for name in names if engine.index_names(name) == (name,) and not engine.index_info(name).aliases)


def collect(
    engine: Engine,
    plan: GarbagePlan,
    *,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> GarbageReport:
    """Execute a plan and return a report: releases are unregistered, fields removed, retired indexes deleted.

    Releases are unregistered first, so that nobody can promote a version whose fields are being removed.

    Raises
    ------
    GateRefused
        If one of the plan's versions has become live since; nothing is changed then.
    EngineError
        If reading or deleting fails.
    """
    if engine.index_names(CONTROL_INDEX):
        engine.refresh(CONTROL_INDEX)
    _forget(engine, plan)
    emptied = 0

    def settled(_: BulkItem, action: Action, *__: str) -> None:
        nonlocal emptied
        if action is Action.OK:
            emptied += 1
            progress(emptied, plan.documents)

    events = BulkEvents(settled=settled, notice=notice)
    if plan.drop:
        for name in plan.concrete:
            if (error := _empty(engine, name, plan.drop, rng, events)) is not None:
                return GarbageReport(plan, emptied, (), error)
    # Check again, because an alias may have been added since the plan was made.
    deleted = _unserved(engine, plan.indexes)
    for name in deleted:
        engine.delete_index(name)
    forget_control(engine, deleted)
    gone = {name for name in plan.indexes if not engine.index_names(name)}
    update_control(engine, plan.index, lambda record: record.without_leftovers(gone))
    return GarbageReport(plan, emptied, deleted)


def uninstall(
    engine: Engine,
    plan: GarbagePlan,
    *,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> GarbageReport:
    """Execute a plan for ``everything`` like `collect`, and delete the record last; if it stops early, run it again.

    Afterwards the changes are visible to searches, and the index of the records is deleted if it is empty.
    """
    record = update_control(engine, plan.index, _emptied)
    report = collect(engine, plan, rng=rng, progress=progress, notice=notice)
    if report.error is None:
        forget_control(engine, [record.key])
        for emptied in plan.concrete:
            refresh_if_allowed(engine, emptied)
        delete_control_if_empty(engine, notice)
    return report


def former_indexes(engine: Engine, index: str) -> tuple[str, ...]:
    """Return the existing indexes that were once behind this name and have a record of their own."""
    former = former_records(engine, read_control(engine, index))
    return tuple(record.key for record in former if engine.index_names(record.key))


def _emptied(record: ControlRecord) -> ControlRecord:
    return replace(record, releases=(), live=None, previous=(), progress={})


def _with_any(heads: Sequence[str]) -> dict[str, Any]:
    """Return the query for documents that have the fields of any of these versions."""
    return {"bool": {"should": [{"exists": {"field": field_name(head, "src")}} for head in heads]}}


def _empty(
    engine: Engine, name: str, heads: Sequence[str], rng: np.random.Generator, events: BulkEvents
) -> EngineError | None:
    """Remove the fields of all these versions from the documents of an index, each of which is written once.

    Returns the error that stopped it, or None.
    """
    prefixes = tuple(map(field_prefix, heads))
    settings = engine.index_info(name).settings
    has_pipeline = any(settings.get(key, "_none") != "_none" for key in PIPELINES)
    query = _with_any(heads)

    for _ in range(MAX_PASSES):
        engine.refresh(name)
        writer = BulkWriter(engine, name, rng=rng, events=events)
        documents = (document for batch in engine.scan(name, query=query, source=True) for document in batch)
        report = writer.write(_without(document, prefixes, has_pipeline) for document in documents)
        if report.stopped is not None or not report.superseded:
            return report.stopped
    return None


def _without(document: StoredDocument, prefixes: tuple[str, ...], has_pipeline: bool) -> BulkItem:
    ours = {name: nothing(name) for name in document.source if name.startswith(prefixes)}
    rest = {name: value for name, value in document.source.items() if name not in ours}
    return guarded_write("update", document, ours) if has_pipeline else guarded_write("index", document, rest)


def _forget(engine: Engine, plan: GarbagePlan) -> None:
    """Unregister the dropped releases. Raises `GateRefused` if one of them is now live under any name."""
    gone = set(plan.drop)

    def change(record: ControlRecord) -> ControlRecord:
        releases = tuple(r for r in record.releases if r.encoder_id[:ID_DIGITS] not in gone)
        models = {r.model_id for r in releases}
        live = [r.live_release for r in (record, *_others(engine, plan.concrete, record))]
        if lost := [r.model_id[:ID_DIGITS] for r in live if r is not None and r.encoder_id[:ID_DIGITS] in gone]:
            raise GateRefused(
                f"version {lost[0]} of {plan.index!r} became live after `ssi gc` made its plan: nothing was removed; "
                "run it again",
                index=plan.index,
            )
        return replace(
            record,
            releases=releases,
            previous=tuple(model for model in record.previous if model in models),
            progress={key: value for key, value in record.progress.items() if key[:ID_DIGITS] not in gone},
        )

    update_control(engine, plan.index, change)


def remaining_note(plan: GarbagePlan) -> str:
    """Return what `collect` cannot remove, and the command that does; empty if nothing remains."""
    if not plan.mapping_entries:
        return ""
    return (
        f"{len(plan.mapping_entries)} fields ({FIELD_PREFIX}...) stay in the mapping, without values, because no "
        f"engine can remove a field from a mapping. To remove them: ssi index FILE --index {plan.index} --rebuild"
    )
