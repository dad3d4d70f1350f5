"""What is done with a search: reranked, left in the engine's order, scored in the shadow, or what another part adds."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reranker.engines.base import Deadline
from reranker.errors import ArtifactError, InputError, RerankerError
from reranker.rerank import RerankedPage
from reranker.service.http import ServiceError
from reranker.service.serving import Serving, Versions
from reranker.service.settings import ServiceSettings
from reranker.service.sink import SearchRecord
from reranker.service.telemetry import Metrics

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search, checked.

    ``body`` is the template to fill, None searches the model's text fields; ``size`` and ``first`` are the page, None
    takes the body's; ``version`` was asked for by name, None is the live one; ``off`` asks not to be reranked.
    """

    query: str
    body: Mapping[str, Any] | None
    size: int | None
    first: int | None
    explain: bool
    session_id: str | None
    client_id: str | None
    version: str | None
    off: bool
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What a mode made of a search.

    ``serving`` is the version that made the page; ``teams`` say whose version put each hit there, ``versions`` are the
    model ids of the teams: both empty where there are none.
    """

    page: RerankedPage
    serving: Serving
    teams: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


SearchMode = Callable[[Versions, SearchCall], SearchOutcome]
"""Carries out a search in a thread, in time; raises `EngineError` where the engine's first answer is missing."""


def version_of(versions: Versions, model_id: str | None) -> Serving:
    """Return the served version, or the one named; may read files: call it in a thread.

    `ServiceError` 404 if the named version is not known or cannot be used.
    """
    if model_id is None:
        return versions.current
    try:
        return versions.get(model_id)
    except (ArtifactError, InputError, OSError) as error:
        _log.warning("version", extra={"ssi": {"result": "not served", "reason": type(error).__name__}})
        raise ServiceError(404, "this version is not one that the service can load", kind="no_version") from error


def rerank(versions: Versions, call: SearchCall, off: str = "") -> SearchOutcome:
    """Return the page in the model's order; in the engine's where ``off`` says why."""
    serving = version_of(versions, call.version)
    page = serving.reranker.search(
        call.query, call.body, size=call.size, from_=call.first, explain=call.explain and not off,
        deadline_ms=call.deadline.left_ms, off=off,
    )  # fmt: skip
    return SearchOutcome(page, serving)


MODES: Mapping[str, SearchMode] = {
    "rerank": rerank,
    "off": partial(rerank, off="reranking is switched off for this request"),
    "control": partial(rerank, off="this session is of the control group"),
    "shadow": partial(rerank, off="the model is scored in the shadow"),
}
"""Modes of every service; routers add theirs to ``ServiceState.modes``."""


def mode_of(settings: ServiceSettings, modes: Container[str], call: SearchCall) -> str:
    """Return the mode of a search: the request's wish, then the control group, then how the service was started."""
    if call.off:
        return "off"
    if call.version is not None:
        return "rerank"
    if settings.shadow:
        return "shadow"
    if not in_share(call.session_id or call.query, settings.percent, settings.salt):
        return "control"
    return "interleave" if "interleave" in modes else "rerank"


def in_share(session: str, percent: float, salt: str) -> bool:
    """Return whether a session is among the ``percent`` of all sessions: the same answer for it every time."""
    digest = hashlib.blake2b(f"{salt}\n{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < percent / 100.0 * 2.0**64


MAX_WAITING = 32
"""Searches that may wait to be scored; the rest are counted and only logged as shown."""


class Shadow:
    """One thread that reranks what was answered in the engine's order, to see what reranking would have done.

    ``search`` carries out a search in the model's order, each within ``deadline_s`` seconds; ``log`` takes the record,
    with ``shadow_ids`` filled as far as it could be scored.
    """

    def __init__(
        self,
        search: Callable[[SearchCall], RerankedPage],
        deadline_s: float,
        metrics: Metrics,
        log: Callable[[SearchRecord], None],
    ) -> None:
        self._search, self._deadline_s, self._metrics, self._record = search, deadline_s, metrics, log
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, call: SearchCall, record: SearchRecord) -> None:
        """Score a search later, or log it without where too many wait."""
        with self._lock:
            full = self._waiting >= MAX_WAITING
            if not full:
                self._waiting += 1
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="ssi-shadow")
        if full or self._pool is None:
            self._metrics.shadows.labels("skipped").inc()
            self._record(record)
            return
        scoring = self._pool.submit(self._score, call, record)
        scoring.add_done_callback(lambda scoring: self._record(record) if scoring.cancelled() else None)

    def _score(self, call: SearchCall, record: SearchRecord) -> None:
        result = "failed"
        try:
            page = self._search(replace(call, deadline=Deadline(self._deadline_s), explain=False))
            result = "fallback" if page.fallback else "scored"
            record = replace(record, shadow_ids=tuple(hit.id for hit in page.hits))
            moved = sum(hit.id != other for hit, other in zip(record.hits, record.shadow_ids, strict=False))
            entry = {"query_id": record.query_id, "moved": moved, "of": len(record.hits), "result": result}
            _log.info("shadow", extra={"ssi": entry})
        except RerankerError as error:
            _log.warning("shadow", extra={"ssi": {"query_id": record.query_id, "error": type(error).__name__}})
        finally:
            with self._lock:
                self._waiting -= 1
            self._metrics.shadows.labels(result).inc()
            self._record(record)

    def close(self) -> None:
        """Log what waits only as shown."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
