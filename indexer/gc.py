"""Old versions out of an index: their fields are taken from every document, and retired indexes are deleted.

A partial update cannot remove a field, so the document is written anew without it, over exactly the version read.
Where a pipeline would run over such a write, the fields are set to null instead, by a partial update, which runs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indexer.builds import SSI_PREFIX
from indexer.bulk import Action, BulkEvents, BulkItem, BulkReport, BulkWriter
from indexer.encoding import nothing
from indexer.preflight import mapping_reasons, version_reasons
from indexer.versions import field_heads, with_version
from reranker.engines.base import Engine, WriteOp
from reranker.engines.fields import ID_DIGITS, field_name, field_prefix
from reranker.errors import EngineError, PreflightRefused
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import StoredDocument
from reranker.releases import ControlRecord, read_control, update_control

MAX_PASSES = 20
_PIPELINES = ("index.default_pipeline", "index.final_pipeline")


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """What `collect` would remove.

    Parameters
    ----------
    index : str
        The served index.
    keep : tuple of str
        Heads (12 digits) of encoders that stay.
    drop : tuple of str
        Heads of encoders whose fields are removed.
    documents : int
        Documents that carry them (a document with two versions counts twice).
    indexes : tuple of str
        Concrete indexes that are deleted.
    unfinished : tuple of str
        Indexes of interrupted rebuilds; deleted only when asked for.
    mapping_entries : tuple of str
        Names of fields that remain in the mapping, which no engine can take out: a rebuild does.
    """

    index: str
    keep: tuple[str, ...]
    drop: tuple[str, ...]
    documents: int
    indexes: tuple[str, ...]
    unfinished: tuple[str, ...]
    mapping_entries: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {name: list(v) if isinstance(v := getattr(self, name), tuple) else v for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What was removed, and the engine's error if it stopped early."""

    plan: GarbagePlan
    emptied: int
    deleted: tuple[str, ...]
    error: EngineError | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        stopped = None if self.error is None else str(self.error)
        return {**self.plan.to_json(), "emptied": self.emptied, "deleted": list(self.deleted), "stopped": stopped}


def plan_collection(engine: Engine, index: str, *, keep: int = 1, unfinished: bool = False) -> GarbagePlan:
    """Return what `collect` would remove; nothing is written.

    Parameters
    ----------
    engine, index : Engine, str
        The served index.
    keep : int
        How many earlier live versions stay beside the live one, for a rollback.
    unfinished : bool
        Also delete the indexes of interrupted rebuilds.

    Raises
    ------
    PreflightRefused
        Where nothing is live (everything would be garbage), or documents cannot be rewritten safely.
    """
    record = read_control(engine, index)
    if record.live is None:
        raise PreflightRefused(index, ["no version is live, so none can be told to be old: promote one first"])
    kept = _kept_models(record, keep)
    heads = {r.encoder_id[:ID_DIGITS] for r in record.releases if r.model_id in kept}
    old = [head for head in field_heads(engine, index) if head not in heads]
    counts = {head: with_version(engine, index, head) for head in old}
    registered = {r.encoder_id[:ID_DIGITS] for r in record.releases} - heads
    drop = tuple(sorted({head for head in old if counts[head]} | registered))
    documents = sum(counts.values())
    if documents:
        _check_rewritable(engine, index)
    aliased = set(engine.index_names(index))
    there = [name for name in record.retired if name not in aliased and engine.index_names(name)]
    half = [name for name in record.building if name not in aliased and engine.index_names(name)]
    entries = [
        name
        for concrete in aliased
        for name in engine.index_info(concrete).properties
        if any(name.startswith(field_prefix(head)) for head in old)
    ]
    return GarbagePlan(
        index, tuple(sorted(heads)), drop, documents, (*there, *(half if unfinished else ())),
        () if unfinished else tuple(half), tuple(sorted(set(entries))),
    )  # fmt: skip


def _kept_models(record: ControlRecord, keep: int) -> set[str]:
    """Return the live model, the ``keep`` live before it, and all registered after it (not promoted yet)."""
    earlier = dict.fromkeys(model for model in reversed(record.previous) if model != record.live)
    kept = {record.live or "", *list(earlier)[:keep]}
    order = [r.model_id for r in record.releases]
    start = order.index(record.live) if record.live in order else 0
    return kept | {model for model in order[start:] if model not in record.previous}


def _check_rewritable(engine: Engine, index: str) -> None:
    reasons = []
    for name in engine.index_names(index):
        reasons += mapping_reasons(engine.index_info(name), {}, {})
        reasons += version_reasons(engine, name)
    if reasons:
        raise PreflightRefused(index, reasons)


def collect(
    engine: Engine,
    plan: GarbagePlan,
    *,
    rng: np.random.Generator,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> GarbageReport:
    """Return the report of carrying out a plan: fields emptied, releases forgotten, retired indexes deleted.

    Parameters
    ----------
    engine : Engine
        The engine.
    plan : GarbagePlan
        Of `plan_collection`.
    rng : numpy.random.Generator
        Jitter of the bulk loop.
    progress, notice
        Callbacks of documents done, and of waits.

    Raises
    ------
    EngineError
        Where reading or deleting fails.
    """
    emptied = 0
    for head in plan.drop:
        for name in engine.index_names(plan.index):
            before = emptied
            done, error = _empty(
                engine, name, head, rng, lambda done, before=before: progress(before + done, plan.documents), notice
            )
            emptied += done
            if error is not None:
                return GarbageReport(plan, emptied, (), error)
    deleted = []
    for name in plan.indexes:
        # Asked again: an alias may have come to it since the plan was made.
        if engine.index_names(name) and not engine.index_info(name).aliases:
            engine.delete_index(name)
            deleted.append(name)
    _forget(engine, plan)
    return GarbageReport(plan, emptied, tuple(deleted))


def _empty(
    engine: Engine,
    name: str,
    head: str,
    rng: np.random.Generator,
    progress: Callable[[int], None],
    notice: Say,
) -> tuple[int, EngineError | None]:
    """Take one version's fields from all documents of an index; return how many, and what stopped it."""
    settings = engine.index_info(name).settings
    piped = any(settings.get(key, "_none") != "_none" for key in _PIPELINES)
    query = {"exists": {"field": field_name(head, "src")}}
    done = 0

    def settled(_: BulkItem, action: Action, __: str) -> None:
        nonlocal done
        done += action is Action.OK
        progress(done)

    events = BulkEvents(settled=settled, notice=notice)
    for _ in range(MAX_PASSES):
        engine.refresh(name)
        writer = BulkWriter(engine, name, rng=rng, events=events)
        report: BulkReport = writer.write(_rewrites(engine, name, query, head, piped))
        if report.stopped is not None or not report.superseded:
            return done, report.stopped
    return done, None


def _rewrites(engine: Engine, name: str, query: dict[str, Any], head: str, piped: bool) -> Iterator[BulkItem]:
    for batch in engine.scan(name, query=query, source=True):
        for document in batch:
            yield BulkItem(_without(document, field_prefix(head), piped))


def _without(document: StoredDocument, prefix: str, piped: bool) -> WriteOp:
    """Return the write that takes the fields of one version from a document."""
    ours = [name for name in document.source if name.startswith(prefix)]
    rest = {name: value for name, value in document.source.items() if name not in ours}
    return WriteOp(
        "update" if piped else "index", document.id, {name: nothing(name) for name in ours} if piped else rest,
        routing=document.routing, if_seq_no=document.seq_no, if_primary_term=document.primary_term,
    )  # fmt: skip


def _forget(engine: Engine, plan: GarbagePlan) -> None:
    """Take the dropped releases and deleted indexes out of the record."""
    gone = set(plan.drop)

    def change(record: ControlRecord) -> ControlRecord:
        releases = tuple(r for r in record.releases if r.encoder_id[:ID_DIGITS] not in gone)
        models = {r.model_id for r in releases}
        return replace(
            record,
            releases=releases,
            previous=tuple(model for model in record.previous if model in models),
            progress={key: value for key, value in record.progress.items() if key[:ID_DIGITS] not in gone},
            retired=_still_there(engine, record.retired),
            building=_still_there(engine, record.building),
        )

    update_control(engine, plan.index, change)


def _still_there(engine: Engine, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if engine.index_names(name))


def remaining_note(plan: GarbagePlan) -> str:
    """Return what `collect` cannot do, and which command does it; empty if nothing remains."""
    if not plan.mapping_entries:
        return ""
    return (
        f"{len(plan.mapping_entries)} fields ({SSI_PREFIX}...) stay in the mapping, without values: no engine can take "
        f"a field out of a mapping. A rebuild does: ssi index FILE --index {plan.index} --rebuild"
    )
