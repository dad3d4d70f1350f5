"""`ssi revectorize` and `ssi sync`: write a version's fields to the documents of an index that its owner keeps writing.

Every write is a partial update of our own fields, on condition that the document is still the one that was read
(``if_seq_no``, ``if_primary_term``, its routing). If somebody changed the document in the meantime, the engine returns
409, and the document is read again. At the end, a pass over the whole index, after a refresh, compares each stored
``_src`` with the stored text, and is repeated until nothing is left to do. Current documents are skipped, so a killed
run can simply be run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import Account, Action, BulkEvents, BulkItem, BulkWriter, WriteOptions, guarded_write
from indexer.encoding import ENCODE_BATCH, VersionEncoder, present_routes
from indexer.preflight import preflight
from indexer.versions import COMPLETE, IMPACTS_OF, RUNNING, register, stale_documents
from reranker.engines.language import mapped_leaves, property_type
from reranker.engines.protocol import Engine, refresh_if_allowed
from reranker.errors import EngineError, EngineOverloaded, EngineUnavailable, InputError, Unsupported
from reranker.formats import RejectLog
from reranker.models.ranking_model import RankingModel
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import StoredDocument
from reranker.releases import ControlRecord, read_control, update_control, utc_now

MAX_RETRIED_IDS = 1000
"""Maximum number of conflicting documents that are read again by id; more wait for the next full pass."""
OVERLAP = timedelta(minutes=5)
"""How far an incremental sync goes back before the largest date of the last one, because writes may be delayed."""
DATES = ("date", "date_nanos")
"""Types of fields by which changed documents are found."""
SEEN = "seen"
"""Key of a version's progress: field → largest date in it (milliseconds since 1970) when it was last synced by it."""
_GONE = "document_missing_exception"


@dataclass(frozen=True, slots=True)
class RenewOptions(WriteOptions):
    """Options for renewing documents."""

    max_docs_per_s: float | None = None
    """Rate limit in documents per second, so that the engine keeps serving searches; None: no limit."""
    max_passes: int = 20
    """Maximum number of full passes; a client that never stops writing would otherwise keep the run going forever."""


@dataclass(slots=True)
class RenewReport(Account):
    """Result of a renewal."""

    documents: int = 0
    """Documents read by the last pass."""
    written: int = 0
    """Updates stored by the engine."""
    conflicts: int = 0
    """Updates that failed because somebody changed the document first (409); it was read again."""
    gone: int = 0
    """Documents deleted between reading and writing."""
    rejected: int = 0
    """Documents whose update the engine rejected."""
    other_impacts: int = 0
    """Documents of an unchanged text that were written because their impacts changed."""
    stored_only: int = 0
    """Documents that were missing only in the local store."""
    passes: int = 0
    """Number of full passes."""
    stale: int = 0
    """Documents still missing or stale after the last pass; 0 unless a client writes faster than this run."""
    seconds: float = 0.0
    stopped: EngineError | None = None

    @property
    def idle(self) -> bool:
        """Return True if nothing had to be done."""
        return not (self.written or self.conflicts or self.gone or self.rejected or self.stored_only or self.stale)

    def __add__(self, later: RenewReport) -> RenewReport:
        """Return the sum of two reports; passes are the maximum of both."""
        numbers = [item.name for item in fields(self) if item.name not in ("passes", "stopped")]
        sums = {name: getattr(self, name) + getattr(later, name) for name in numbers}
        return replace(later, **sums, passes=max(self.passes, later.passes))


@dataclass(frozen=True, slots=True)
class Target:
    """The index to renew and the model to renew it with."""

    engine: Engine
    index: str
    """Index or alias; several indexes behind an alias are renewed one after another."""
    model: RankingModel
    """The model whose encoder computes the vectors."""
    routes: tuple[str, ...] = ("fetch",)
    """Requested routes; routes that the index already has are updated too."""
    store_path: Path | None = None

    def version(self) -> VersionEncoder:
        """Return the encoder for the requested routes and those that the index has."""
        encoder_id = self.model.encoder_id
        present: list[str] = []
        for name in self.engine.index_names(self.index):
            present += present_routes(self.engine.index_info(name).properties, encoder_id)
        routes = tuple(dict.fromkeys((*self.routes, *present)))
        version = VersionEncoder.of_model(self.model, routes, self.store_path, self.engine.capabilities())
        version.has_these_impacts = self.progress().get(IMPACTS_OF) == self.model.model_id
        return version

    def progress(self) -> Mapping[str, Any]:
        """Return the state that earlier renewals of the version stored in the control record."""
        return read_control(self.engine, self.index).progress.get(self.model.encoder_id, {})

    def note(self, **values: Any) -> None:
        """Merge values into the version's state in the control record."""
        key = self.model.encoder_id

        def change(record: ControlRecord) -> ControlRecord:
            return replace(record, progress={**record.progress, key: {**record.progress.get(key, {}), **values}})

        update_control(self.engine, self.index, change)


def sync(
    target: Target,
    options: RenewOptions | None = None,
    *,
    updated_field: str | None = None,
    verify: bool = False,
    progress: Progress = no_progress,
    notice: Say = silent,
    advise: Say = silent,
) -> RenewReport:
    """Write the model's fields where they are missing or stale, and return a report; an early stop is in ``stopped``.

    Afterwards the release is registered, but not promoted, so nothing changes for users before `ssi promote`.

    Parameters
    ----------
    target
        The index and the model.
    options
        Options for renewing documents.
    updated_field
        Date field that the index's owner sets on every change. Only documents whose date is after the largest one of
        the last sync (minus `OVERLAP`), and those without a date or a vector are read, unless ``verify``. None: every
        text is read.
    verify
        Check every document.
    progress, notice
        Called with the number of documents, and with messages.
    advise
        Called with notes on the fit of the model to the texts, before the first write.

    Raises
    ------
    PreflightRefused
        With all reasons, before the first write.
    InputError
        If ``updated_field`` is not mapped as a date in every index behind the name.
    EngineError
        If reading fails.
    """
    engine, index, version = target.engine, target.index, target.version()
    if updated_field is not None:
        check_updated_field(engine, index, updated_field)
    plan = preflight(engine, index, version)
    plan.check()
    for note in plan.text_notes:
        advise(note)
    options = options or RenewOptions()
    seen = _seen_until(target, updated_field, advise)
    since = target.progress().get(SEEN, {}).get(updated_field)
    first = None
    if updated_field is not None and since is not None and not verify:
        first = changed_since(updated_field, since, version.src_field)
    started = utc_now()
    total = RenewReport()
    force = _adds_routes(target, version)
    # Until a forced pass is complete, no route counts as written, so that a killed run starts it again.
    impacts_of = target.model.model_id if "impacts" in version.routes else None
    if not version.has_these_impacts:
        target.note(**{IMPACTS_OF: None})
    target.note(state=RUNNING, started=started, routes=[] if force else list(version.routes))
    with version, RejectLog(options.reject_path) as rejects:
        for name in engine.index_names(index):
            engine.put_properties(name, version.properties(engine.capabilities()))
            renewer = Renewer(engine, name, version, options, progress=progress, notice=notice)
            total += renewer.run(first=first, verify=first is None, force=force, rejects=rejects)
            if total.stopped is not None:
                break
    if total.stopped is None:
        register(engine, index, target.model, promote=False)
        target.note(
            state=COMPLETE,
            finished=utc_now(),
            documents=total.documents,
            routes=list(version.routes),
            stale=total.stale,
            **{IMPACTS_OF: None if total.rejected or total.stale else impacts_of},
            # A document that was not written must be read again.
            **({} if total.rejected or total.stale else {SEEN: seen}),
        )
    return total


def check_updated_field(engine: Engine, index: str, path: str) -> None:
    """Raise unless changed documents can be found by a date field, which each index behind a name must have.

    An engine finds no document by a field that is not mapped, and does not report it as an error.
    """
    if engine.in_process:
        raise Unsupported(
            f"{engine.spec} cannot search by dates, which --updated-field {path} needs: omit it, and every text is read"
        )
    for name in engine.index_names(index):
        info = engine.index_info(name)
        types = {leaf: property_type(definition) for leaf, definition in mapped_leaves(info.properties)}
        types |= {leaf: property_type(definition) for leaf, definition in (info.mapping.get("runtime") or {}).items()}
        named = {leaf: other.get("path") for leaf, other in mapped_leaves(info.properties) if types[leaf] == "alias"}
        types |= {leaf: types.get(str(other), "alias") for leaf, other in named.items()}
        if types.get(path) in DATES:
            continue
        dates = ", ".join(sorted(leaf for leaf, kind in types.items() if kind in DATES)) or "none"
        fault = f"has the type {types[path]!r}" if path in types else "is not in the mapping"
        raise InputError(
            f"--updated-field {path!r} {fault} of index {name!r}, and must be a date there (date fields: {dates}): "
            "name a date field that is set on every change, or omit --updated-field",
            index=name,
            field=path,
        )


def _seen_until(target: Target, updated_field: str | None, advise: Say) -> dict[str, int]:
    """Return the largest dates in the index by field, with that of ``updated_field`` as it is now.

    Dates in the future of the engine's clock are left out, because one wrong date would hide all later changes. If no
    document has a date, the field is left out, and every text is read.
    """
    engine, index = target.engine, target.index
    seen: dict[str, int] = dict(target.progress().get(SEEN, {}))
    if updated_field is None:
        return seen
    refresh_if_allowed(engine, index)
    largest = {"largest": {"max": {"field": updated_field}}}
    until_now = {"past": {"filter": {"range": {updated_field: {"lte": "now"}}}, "aggs": largest}}
    answer = engine.search(index, {"size": 0, "track_total_hits": False, "aggs": until_now})
    if answer.timed_out:
        raise EngineUnavailable(f"{engine.spec} did not return the largest {updated_field} of all shards of {index!r}")
    value = answer.raw["aggregations"]["past"]["largest"]["value"]
    if value is None:
        advise(f"no document of {index!r} has a past date in {updated_field!r}, so every text is read")
        return {field: date for field, date in seen.items() if field != updated_field}
    return {**seen, updated_field: int(value)}


def outdated_documents(target: Target, progress: Progress = no_progress) -> dict[str, int]:
    """Return how many documents `sync` would write: ``missing`` their vector, and ``stale`` ones with another text.

    Every text is read; nothing is written. If a requested route is new, every document counts as missing.
    """
    engine, index, encoder = target.engine, target.index, target.model.encoder
    version = target.version()
    if _adds_routes(target, version):
        return {"missing": engine.count(index), "stale": 0}
    stale = stale_documents(engine, index, {encoder.encoder_id: encoder.view}, progress)
    return {"missing": engine.count(index, _without(version.src_field)), "stale": stale[encoder.encoder_id]}


def follow(
    run: Callable[[], RenewReport], interval_s: float, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[RenewReport]:
    """Run syncs (``run``) forever, ``interval_s`` seconds apart, and yield the report of each.

    If the engine is unreachable or overloaded, only the current sync ends, with ``stopped`` set. Other errors end the
    loop.
    """
    while True:
        try:
            report = run()
        except (EngineUnavailable, EngineOverloaded) as error:
            report = RenewReport(stopped=error)
        if report.stopped is not None and not isinstance(report.stopped, EngineUnavailable | EngineOverloaded):
            raise report.stopped
        yield report
        sleep(interval_s)


def changed_since(updated_field: str, since_ms: int, src_field: str) -> dict[str, Any]:
    """Return the query for documents changed since a time (minus `OVERLAP`), or without a date or a vector (pure)."""
    start_ms = since_ms - OVERLAP // timedelta(milliseconds=1)
    changed = {"range": {updated_field: {"gte": start_ms, "format": "epoch_millis"}}}
    either = [changed, _without(updated_field), _without(src_field)]
    return {"bool": {"should": either, "minimum_should_match": 1}}


def _without(field: str) -> dict[str, Any]:
    return {"bool": {"must_not": [{"exists": {"field": field}}]}}


def _adds_routes(target: Target, version: VersionEncoder) -> bool:
    """Return True if documents with a current hash have no fields of a route that is now requested."""
    written = target.progress().get("routes")
    if written is not None:
        return not set(version.routes) <= set(written)
    names = target.engine.index_names(target.index)
    mappings = [target.engine.index_info(name).properties for name in names]
    has_hash = any(version.src_field in properties for properties in mappings)
    wanted = set(version.routes) - {"beside"}
    return has_hash and not all(wanted <= set(present_routes(each, version.encoder_id)) for each in mappings)


class Renewer:
    """Writes the missing or stale fields of a version in one index. The version must be entered and mapped already."""

    def __init__(
        self,
        engine: Engine,
        index: str,
        version: VersionEncoder,
        options: RenewOptions | None = None,
        *,
        progress: Progress = no_progress,
        notice: Say = silent,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.index, self.version = engine, index, version
        self.options = options or RenewOptions()
        self.report = RenewReport()
        self._progress, self._notice, self._sleep, self._clock = progress, notice, sleep, clock
        self._rng = np.random.default_rng(self.options.seed)
        self._refused: set[str] = set()
        self._force = False
        self._conflicting: list[str] = []
        self._n_sent = 0
        self._stored: list[str] = []
        self._rejects = RejectLog(None)
        self._started = clock()

    def run(
        self,
        *,
        first: Mapping[str, Any] | None = None,
        verify: bool = True,
        force: bool = False,
        rejects: RejectLog | None = None,
    ) -> RenewReport:
        """Renew until nothing is left to do, and return a report.

        Parameters
        ----------
        first
            Query of the first pass; None: documents without the version's fields.
        verify
            Go over the whole index afterwards, until a pass finds all documents current.
        force
            Begin with all documents, because fields of another route are added.
        rejects
            Receives the documents whose update the engine rejects.
        """
        report = self.report
        self._rejects = rejects or self._rejects
        self.engine.refresh(self.index)
        self._force = force
        clean = self._renew_matching(None if force else first or _without(self.version.src_field))
        self._force = False
        # There are too many to read again by id, so only a full pass finds them.
        verify = verify or len(self._conflicting) > MAX_RETRIED_IDS
        while verify and report.stopped is None and report.passes < self.options.max_passes:
            self.engine.refresh(self.index)
            report.passes += 1
            clean = self._renew_matching(None)
            if clean:
                break
        self.version.publish()
        if not clean and report.stopped is None:
            report.stale = len(self._conflicting)
        report.seconds = self._clock() - self._started
        return report

    def _renew_matching(self, query: Mapping[str, Any] | None) -> bool:
        """Renew matching documents, reading conflicting ones again by id; return whether nothing had to be written."""
        clean = self._pass(query)
        for _ in range(self.options.max_passes):
            if self.report.stopped is not None or not 0 < len(self._conflicting) <= MAX_RETRIED_IDS:
                break
            ids = list(dict.fromkeys(self._conflicting))
            self.engine.refresh(self.index)
            self._pass({"ids": {"values": ids}})
        return clean

    def _pass(self, query: Mapping[str, Any] | None) -> bool:
        self._conflicting = []
        report = self.report
        before = report.written + report.conflicts + report.gone
        writer = BulkWriter(
            self.engine,
            self.index,
            rng=self._rng,
            limits=self.options.limits,
            policy=self.options.policy,
            events=BulkEvents(self._settled, self._acked, self._notice),
            sleep=self._sleep,
            clock=self._clock,
        )
        report.stopped = writer.write(self._updates(query)).stopped
        self._acked(None)
        return report.written + report.conflicts + report.gone == before

    def _updates(self, query: Mapping[str, Any] | None) -> Iterator[BulkItem]:
        again = query is not None and "ids" in query
        total = 0 if again else self.engine.count(self.index, query)
        n_seen = 0
        if total:
            self._progress(0, total)
        paths = self.version.read_fields
        for batch in self.engine.scan(self.index, query=query, source=paths, batch_size=ENCODE_BATCH):
            yield from self._updates_of(batch)
            n_seen += len(batch)
            if total:
                self._progress(n_seen, total)
        if not again:
            self.report.documents = n_seen

    def _hash_of(self, document: StoredDocument) -> str:
        """Return the hash of what the version reads of a document; `InputError` names one whose vector is none."""
        try:
            return self.version.source_hash(document.source)
        except InputError as error:
            raise InputError(f"document {document.id!r}: {error.message}", **error.data) from error

    def _updates_of(self, batch: Sequence[StoredDocument]) -> Iterator[BulkItem]:
        current: list[StoredDocument] = []
        hashes: list[str] = []
        stale: list[StoredDocument] = []
        for document in batch:
            digest = self._hash_of(document)
            if self.version.is_current(document, digest) and not self._force:
                current.append(document)
                hashes.append(digest)
            else:
                stale.append(document)
        changed = self.version.changed_impacts(current)
        self.report.other_impacts += len(changed)
        for place in reversed(changed):
            hashes.pop(place)
            stale.append(current.pop(place))
        stale = [document for document in stale if document.id not in self._refused]
        if self.version.has_store and current:
            missing = [current[k] for k in self.version.unknown_to_store([d.id for d in current], hashes)]
            self.version.store_only([d.id for d in missing], [d.source for d in missing])
            self.report.stored_only += len(missing)
        if stale:
            updates = self.version.update_fields([d.id for d in stale], [d.source for d in stale])
            for document, values in zip(stale, updates, strict=True):
                yield guarded_write("update", document, values)
            self._n_sent += len(stale)
            if self.options.max_docs_per_s:
                ahead = self._n_sent / self.options.max_docs_per_s - (self._clock() - self._started)
                if ahead > 0:
                    self._sleep(ahead)

    def _settled(self, item: BulkItem, action: Action, reason: str, error_type: str) -> None:
        identifier = item.op.id
        if action is Action.OK:
            self.report.written += 1
            self._stored.append(identifier)
            return
        self.version.dropped(identifier)
        if action is Action.SUPERSEDED:
            self.report.conflicts += 1
            self._conflicting.append(identifier)
        elif error_type == _GONE:
            self.report.gone += 1
            self.version.delete([identifier])
        else:
            self.report.rejected += 1
            self._refused.add(identifier)
            self._rejects.reject(0, 0, reason, identifier, kind="update_refused")

    def _acked(self, _: BulkItem | None) -> None:
        if self._stored:
            self.version.stored(self._stored)
            self._stored = []
