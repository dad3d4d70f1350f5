"""A version's fields beside the documents of an existing index, while its owner keeps writing.

Every write is a partial update of our own fields, made for exactly the document that was read (``if_seq_no``,
``if_primary_term``, its routing). If somebody changed the document meanwhile the engine says 409, and it is read again.
At the end a pass over the whole index, after a refresh, compares each stored ``_src`` with the stored text, and goes
on until a pass finds nothing to do. Since what is current is skipped, a killed run simply runs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexer.bulk import Action, BulkEvents, BulkItem, BulkLimits, BulkWriter, RetryPolicy
from indexer.encoding import ENCODE_BATCH, VersionEncoder
from reranker.engines.base import Engine, WriteOp
from reranker.errors import EngineError
from reranker.formats import RejectLog
from reranker.progress import Progress, Say, no_progress, silent
from reranker.records import StoredDocument

MAX_RETRIED_IDS = 1000
"""Conflicting documents read again by id; more of them wait for the next whole pass."""
_GONE = "document_missing_exception"


@dataclass(frozen=True, slots=True)
class RenewOptions:
    """How documents are renewed.

    Parameters
    ----------
    max_docs_per_s : float or None
        Speed limit, so that the engine keeps answering searches.
    max_passes : int
        Whole passes at most; a writer that never rests would keep us for ever.
    reject_path : Path or None
        Where documents go that the engine refuses to update.
    limits, policy : BulkLimits, RetryPolicy
        Of the bulk loop.
    seed : int
        Of the jitter.
    """

    max_docs_per_s: float | None = None
    max_passes: int = 20
    reject_path: Path | None = None
    limits: BulkLimits = field(default_factory=BulkLimits)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    seed: int = 0


@dataclass(slots=True)
class RenewReport:
    """What renewing did.

    Parameters
    ----------
    documents : int
        Seen by the last pass.
    written : int
        Updates the engine stored.
    conflicts : int
        Updates refused because somebody wrote first (409); read again.
    gone : int
        Documents deleted between reading and writing.
    rejected : int
        Documents the engine refuses to update.
    stored_only : int
        Documents that only the local store lacked.
    passes : int
        Whole passes.
    stale : int
        Documents still missing or stale after the last pass; 0 unless a writer is faster than we are.
    seconds : float
        Wall time.
    stopped : str or None
        Why it stopped before the end.
    """

    documents: int = 0
    written: int = 0
    conflicts: int = 0
    gone: int = 0
    rejected: int = 0
    stored_only: int = 0
    passes: int = 0
    stale: int = 0
    seconds: float = 0.0
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


class Renewer:
    """Finds documents whose fields of a version are missing or stale, and writes them.

    Parameters
    ----------
    engine, index : Engine, str
        The index (or alias).
    version : VersionEncoder
        Entered already; its fields are in the mapping.
    options, progress, notice
        See `RenewOptions`; progress counts documents.
    sleep, clock : callable
        Time.
    """

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
        self.error: EngineError | None = None
        self._progress, self._notice, self._sleep, self._clock = progress, notice, sleep, clock
        self._rng = np.random.default_rng(self.options.seed)
        self._refused: set[str] = set()
        self._force = False
        self._again: list[str] = []
        self._sent = 0
        self._stored: list[str] = []
        self._log = RejectLog(None)
        self._started = clock()

    def run(
        self, *, first: Mapping[str, Any] | None = None, verify: bool = True, force: bool = False,
        rejects: RejectLog | None = None,
    ) -> RenewReport:  # fmt: skip
        """Return the report of renewing until nothing is left to do.

        Parameters
        ----------
        first : mapping or None
            Query of the first pass; None for those without the version's fields.
        verify : bool
            Go over the whole index afterwards, until a pass finds every document current.
        force : bool
            Begin with writing every document, also current ones: fields of another route are added.
        rejects : RejectLog or None
            Opened already, for several indexes; None opens the file of the options.
        """
        missing = {"bool": {"must_not": [{"exists": {"field": self.version.src_field}}]}}
        with RejectLog(self.options.reject_path) if rejects is None else nullcontext(rejects) as log:
            self._log = log
            self.engine.refresh(self.index)
            self._force = force
            clean = self.renew_matching(None if force else first or missing)
            self._force = False
            # Too many to be read again by id: nothing but a whole pass finds them.
            verify = verify or len(self._again) > MAX_RETRIED_IDS
            while verify and self.error is None and self.report.passes < self.options.max_passes:
                self.engine.refresh(self.index)
                self.report.passes += 1
                clean = self.renew_matching(None)
                if clean:
                    break
        self.version.publish()
        if not clean and self.error is None:
            self.report.stale = len(self._again)
        self.report.seconds = self._clock() - self._started
        self.report.stopped = None if self.error is None else str(self.error)
        return self.report

    def renew_matching(self, query: Mapping[str, Any] | None) -> bool:
        """Renew what matches, reading conflicting documents again by id; return whether nothing had to be written."""
        clean = self._pass(query)
        for _ in range(self.options.max_passes):
            if self.error is not None or not 0 < len(self._again) <= MAX_RETRIED_IDS:
                break
            ids = list(dict.fromkeys(self._again))
            self.engine.refresh(self.index)
            self._pass({"ids": {"values": ids}})
        return clean

    def _pass(self, query: Mapping[str, Any] | None) -> bool:
        self._again = []
        before = self.report.written + self.report.conflicts + self.report.gone
        events = BulkEvents(settled=self._settled, acked=self._acked, notice=self._notice)
        writer = BulkWriter(
            self.engine, self.index, rng=self._rng, limits=self.options.limits, policy=self.options.policy,
            events=events, sleep=self._sleep, clock=self._clock,
        )  # fmt: skip
        outcome = writer.write(self._updates(query))
        self._acked(None)
        self.error = outcome.stopped
        return self.report.written + self.report.conflicts + self.report.gone == before

    def _updates(self, query: Mapping[str, Any] | None) -> Iterator[BulkItem]:
        total = None if query is None or "ids" not in query else 0
        total = self.engine.count(self.index, query) if total is None else total
        seen = 0
        for batch in self.engine.scan(
            self.index, query=query, source=self.version.read_fields, batch_size=ENCODE_BATCH
        ):
            yield from self._updates_of(batch)
            seen += len(batch)
            if total:
                self._progress(seen, total)
        if query is None:
            self.report.documents = seen

    def _updates_of(self, batch: Sequence[StoredDocument]) -> Iterator[BulkItem]:
        """Yield the writes that a batch of stored documents needs."""
        current: list[StoredDocument] = []
        hashes: list[str] = []
        stale: list[StoredDocument] = []
        for document in batch:
            digest = self.version.source_hash(document.source)
            if document.source.get(self.version.src_field) == digest and not self._force:
                current.append(document)
                hashes.append(digest)
            elif document.id in self._refused:
                continue
            elif (clearing := self.version.must_clear(document.source)) is not None:
                yield BulkItem(_update(document, clearing))
                self._again.append(document.id)
            else:
                stale.append(document)
        if self.version.has_store and current:
            lacking = [current[k] for k in self.version.unknown_to_store([d.id for d in current], hashes)]
            self.version.store_only([d.id for d in lacking], [d.source for d in lacking])
            self.report.stored_only += len(lacking)
        if stale:
            updates = self.version.update_fields([d.id for d in stale], [d.source for d in stale])
            for document, fields in zip(stale, updates, strict=True):
                yield BulkItem(_update(document, fields))
            self._throttle(len(stale))

    def _throttle(self, n: int) -> None:
        self._sent += n
        rate = self.options.max_docs_per_s
        if rate:
            ahead = self._sent / rate - (self._clock() - self._started)
            if ahead > 0:
                self._sleep(ahead)

    def _settled(self, item: BulkItem, action: Action, reason: str) -> None:
        identifier = item.op.id
        if action is Action.OK:
            self.report.written += 1
            self._stored.append(identifier)
            return
        self.version.dropped(identifier)
        if action is Action.SUPERSEDED:
            self.report.conflicts += 1
            self._again.append(identifier)
        elif reason.startswith(_GONE):
            self.report.gone += 1
            self.version.delete([identifier])
        else:
            self.report.rejected += 1
            self._refused.add(identifier)
            self._log.reject(0, 0, reason, identifier, kind="update_refused")

    def _acked(self, _: BulkItem | None) -> None:
        if self._stored:
            self.version.stored(self._stored)
            self._stored = []


def _update(document: StoredDocument, fields: Mapping[str, Any]) -> WriteOp:
    return WriteOp(
        "update", document.id, fields, routing=document.routing, if_seq_no=document.seq_no,
        if_primary_term=document.primary_term,
    )  # fmt: skip
