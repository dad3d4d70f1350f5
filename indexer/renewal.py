"""`ssi revectorize` and `ssi sync`: from a name and a model to renewed indexes, with the control record kept up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from indexer.builds import register
from indexer.encoding import VersionEncoder, present_routes
from indexer.preflight import Plan, preflight
from indexer.revectorize import Renewer, RenewOptions, RenewReport
from reranker.artifacts import RankingModel
from reranker.engines.base import Engine
from reranker.errors import EngineError, EngineOverloaded, EngineUnavailable
from reranker.formats import RejectLog
from reranker.progress import Progress, Say, no_progress, silent
from reranker.releases import read_control, update_control, utc_now

OVERLAP = timedelta(minutes=5)
"""How far an incremental sync looks back before the last one began: clocks differ, and writes take time to show."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is renewed.

    Parameters
    ----------
    engine : Engine
        The engine.
    index : str
        Index or alias; several indexes behind an alias are renewed one after the other.
    model : RankingModel
        Whose encoder makes the vectors.
    routes : tuple of str
        Fields wanted; routes that the index has already are kept up too.
    store_path : Path or None
        Local store.
    """

    engine: Engine
    index: str
    model: RankingModel
    routes: tuple[str, ...] = ("fetch",)
    store_path: Path | None = None

    def version(self) -> VersionEncoder:
        """Return the encoder with the routes wanted and those the index has."""
        encoder = self.model.encoder
        present: list[str] = []
        for name in self.engine.index_names(self.index):
            present += present_routes(self.engine.index_info(name).properties, encoder.encoder_id)
        routes = tuple(dict.fromkeys((*self.routes, *present)))
        return VersionEncoder(encoder, routes, self.store_path, self.engine.capabilities())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a renewal did, with the engine's error if it stopped early."""

    report: RenewReport
    error: EngineError | None = None


def plan_revectorize(target: Target) -> Plan:
    """Return what `revectorize` would do, and why not; nothing is written."""
    return preflight(target.engine, target.index, target.version())


def revectorize(
    target: Target,
    options: RenewOptions | None = None,
    *,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> Outcome:
    """Return the outcome of writing the model's fields beside every document of an existing index.

    Afterwards the release is registered, not promoted: nothing changes for searchers before `ssi promote`.

    Parameters
    ----------
    target : Target
        Engine, index, model.
    options, progress, notice
        See `RenewOptions` and `BulkEvents`.

    Raises
    ------
    PreflightRefused
        With all reasons, before the first write.
    EngineError
        Where reading fails. A write that stopped is told by ``error``.
    """
    version = target.version()
    preflight(target.engine, target.index, version).check()
    return _renew(target, version, options or RenewOptions(), progress, notice, {})


def sync(
    target: Target,
    options: RenewOptions | None = None,
    *,
    updated_field: str | None = None,
    verify: bool = False,
    progress: Progress = no_progress,
    notice: Say = silent,
) -> Outcome:
    """Return the outcome of renewing documents whose vector is missing or stale.

    Parameters
    ----------
    target : Target
        Engine, index, model.
    options, progress, notice
        As in `revectorize`.
    updated_field : str or None
        Date field that the index's owner sets on every change: only documents changed since the last sync (less
        `OVERLAP`) and those without a vector are read. None reads every text.
    verify : bool
        Read every text even with ``updated_field``.

    Raises
    ------
    PreflightRefused, EngineError
        As `revectorize`.
    """
    version = target.version()
    preflight(target.engine, target.index, version).check()
    settings: dict[str, Any] = {}
    if updated_field is not None and not verify:
        progress_of = read_control(target.engine, target.index).progress.get(version.encoder_id, {})
        since = progress_of.get("synced_to")
        if since:
            settings = {"first": changed_since(updated_field, str(since), version.src_field), "verify": False}
    return _renew(target, version, options or RenewOptions(), progress, notice, settings)


def follow(
    run: Callable[[], Outcome], interval_s: float, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Outcome]:
    """Yield the outcome of one sync after another, for ever, ``interval_s`` seconds apart.

    An engine that is away or overloaded ends one sync, told by ``error``, and not the loop; every other error does.

    Parameters
    ----------
    run : callable
        One sync.
    interval_s : float
        Pause between two, seconds.
    sleep : callable
        Time.
    """
    while True:
        try:
            outcome = run()
        except (EngineUnavailable, EngineOverloaded) as error:
            outcome = Outcome(RenewReport(stopped=str(error)), error)
        if outcome.error is not None and not isinstance(outcome.error, EngineUnavailable | EngineOverloaded):
            raise outcome.error
        yield outcome
        sleep(interval_s)


def changed_since(updated_field: str, since: str, src_field: str) -> dict[str, Any]:
    """Return the query for documents changed since a time (ISO 8601, less `OVERLAP`) or without a vector (pure)."""
    start = datetime.fromisoformat(since)
    start = (start if start.tzinfo else start.replace(tzinfo=UTC)) - OVERLAP
    changed = {"range": {updated_field: {"gte": int(start.timestamp() * 1000), "format": "epoch_millis"}}}
    missing = {"bool": {"must_not": [{"exists": {"field": src_field}}]}}
    return {"bool": {"should": [changed, missing], "minimum_should_match": 1}}


def _renew(
    target: Target,
    version: VersionEncoder,
    options: RenewOptions,
    progress: Progress,
    notice: Say,
    settings: Mapping[str, Any],
) -> Outcome:
    """Add the fields, renew each index, keep the record."""
    engine, index = target.engine, target.index
    started = utc_now()
    total = RenewReport()
    error: EngineError | None = None
    force = _adds_routes(target, version)
    # Until a forced pass is through, no route counts as written: a killed run begins it again.
    written = [] if force else list(version.routes)
    _note(target, version, {"state": "running", "started": started, "routes": written})
    with version, RejectLog(options.reject_path) as rejects:
        for name in engine.index_names(index):
            engine.put_properties(name, version.properties(engine.capabilities()))
            renewer = Renewer(engine, name, version, options, progress=progress, notice=notice)
            report = renewer.run(force=force, rejects=rejects, **settings)
            total = _sum(total, report)
            error = renewer.error
            if error is not None:
                break
    if error is None:
        register(engine, index, target.model, promote=False)
        done = {"synced_to": started, "routes": list(version.routes), "stale": total.stale}
        _note(target, version, {"state": "complete", "finished": utc_now(), "documents": total.documents, **done})
    return Outcome(total, error)


def _adds_routes(target: Target, version: VersionEncoder) -> bool:
    """Return True if documents with a current hash still lack fields of a route that is wanted now."""
    progress = read_control(target.engine, target.index).progress.get(version.encoder_id, {})
    written = progress.get("routes")
    if written is not None:
        return not set(version.routes) <= set(written)
    names = target.engine.index_names(target.index)
    properties = [target.engine.index_info(name).properties for name in names]
    has_hash = any(version.src_field in each for each in properties)
    complete = all(set(version.routes) - {"beside"} <= set(present_routes(p, version.encoder_id)) for p in properties)
    return has_hash and not complete


def _note(target: Target, version: VersionEncoder, values: Mapping[str, Any]) -> None:
    """Merge progress of the version into the control record."""
    key = version.encoder_id
    update_control(target.engine, target.index, lambda r: r.with_progress(key, {**r.progress.get(key, {}), **values}))


def _sum(a: RenewReport, b: RenewReport) -> RenewReport:
    """Return the sums of two reports; passes are the greater number."""
    numbers = [f.name for f in fields(RenewReport) if f.name not in ("passes", "stopped")]
    values = {name: getattr(a, name) + getattr(b, name) for name in numbers}
    return replace(b, **values, passes=max(a.passes, b.passes))
