"""All that the routes share: settings, engine, the served version, threads, figures, the sink.

What is known of a request besides its content: when it must be answered, who sent it, and where the state is.

What is done with a search: reranked, in the shadow, as control, or by whatever a router adds.

Scores searches that were already answered, to see what reranking would have done; never in anyone's way.

Work in threads, bounded in number, each within its request's deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from fastapi import Request

from reranker.deadline import Deadline
from reranker.engines.base import Engine
from reranker.errors import ArtifactError, InputError, RerankerError
from reranker.rerank import RerankedPage
from reranker.service.auth import ApiKeys
from reranker.service.breaker import Breaker
from reranker.service.http import ErrorShapes, ServiceError
from reranker.service.metrics import Metrics
from reranker.service.serving import Serving, Versions, Watcher
from reranker.service.settings import ServiceSettings
from reranker.service.sink import RecordSink, SearchRecord

CONTEXT_KEY = "ssi.context"
"""Where the guard puts the context into the ASGI scope."""


@dataclass(slots=True)
class RequestContext:
    """One request, as the guard saw it.

    Parameters
    ----------
    request_id : str
        Sent back as ``X-Request-Id`` and written into the log.
    deadline : Deadline
    key_name : str
        Name of the API key, "" where none is asked for.
    notes : dict
        What the access log adds; short values of a bounded kind, never a query or a document.
    """

    request_id: str
    deadline: Deadline
    key_name: str = ""
    notes: dict[str, str | int | float | bool] = field(default_factory=dict)


async def context_of(request: Request) -> RequestContext:
    """Return the context of a request (a FastAPI dependency; `async` spares it a thread)."""
    return cast("RequestContext", request.scope[CONTEXT_KEY])


async def service_of(request: Request) -> ServiceState:
    """Return the state of the service (a FastAPI dependency, and the ``state_getter`` of every router)."""
    return cast("ServiceState", request.app.state.service)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """One search, checked.

    Parameters
    ----------
    query : str
    body : mapping or None
        The template to fill; None searches the model's text fields.
    size, first : int or None
        The page; None takes the body's.
    explain : bool
    session_id, client_id : str or None
    version : str or None
        Version asked for by name; None: the live one.
    off : bool
        This request asked not to be reranked.
    deadline : Deadline
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

    Parameters
    ----------
    page : RerankedPage
    serving : Serving
        The version that made it.
    teams : tuple of str
        Whose version put each hit of the page there; empty where there are no teams.
    versions : tuple of str
        Model ids of the teams.
    """

    page: RerankedPage
    serving: Serving
    teams: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


class SearchMode(Protocol):
    """Carries out a search in a thread, in time; raises `EngineError` where the engine's first answer is missing."""

    def __call__(self, state: ServiceState, call: SearchCall) -> SearchOutcome:
        """Return the page."""
        ...


def rerank(state: ServiceState, call: SearchCall) -> SearchOutcome:
    """Return the page in the model's order."""
    serving = state.version(call.version)
    page = serving.reranker.search(
        call.query, call.body, size=call.size, from_=call.first, explain=call.explain,
        deadline_ms=call.deadline.left_ms,
    )  # fmt: skip
    return SearchOutcome(page, serving)


def _engine_order(reason: str) -> SearchMode:
    def mode(state: ServiceState, call: SearchCall) -> SearchOutcome:
        serving = state.version(call.version)
        page = serving.reranker.search(
            call.query, call.body, size=call.size, from_=call.first, deadline_ms=call.deadline.left_ms, off=reason
        )
        return SearchOutcome(page, serving)

    return mode


MODES: Mapping[str, SearchMode] = {
    "rerank": rerank,
    "off": _engine_order("reranking is switched off for this request"),
    "control": _engine_order("this session is of the control group"),
    "shadow": _engine_order("the model is scored in the shadow"),
}
"""Modes of every service; routers add theirs to ``ServiceState.modes``."""


def mode_of(state: ServiceState, call: SearchCall) -> str:
    """Return the mode of a search: the request's wish, then the control group, then how the service was started."""
    if call.off:
        return "off"
    if call.version is not None:
        return "rerank"
    if state.settings.shadow:
        return "shadow"
    if not in_share(call.session_id or call.query, state.settings.percent, state.settings.salt):
        return "control"
    return "interleave" if "interleave" in state.modes else "rerank"


def in_share(session: str, percent: float, salt: str) -> bool:
    """Return whether a session is among the ``percent`` of all sessions: the same answer for it every time."""
    digest = hashlib.blake2b(f"{salt}\n{session}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < percent / 100.0 * 2.0**64


MAX_WAITING = 32
"""Searches that may wait to be scored; the rest are counted and only logged as shown."""


class Shadow:
    """One thread that reranks what was answered in the engine's order.

    Parameters
    ----------
    state : ServiceState
    on_page : callable
        Told of the model's order: ``on_page(record)`` with ``shadow_ids`` filled, as far as it could be.
    """

    def __init__(self, state: ServiceState, on_page: Callable[[SearchRecord], None]) -> None:
        self._state, self._on_page = state, on_page
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
            self._state.metrics.shadows.labels("skipped").inc()
            self._on_page(record)
            return
        self._pool.submit(self._score, call, record).add_done_callback(partial(self._note_cancelled, record))

    def _note_cancelled(self, record: SearchRecord, scoring: Future[None]) -> None:
        if scoring.cancelled():
            self._on_page(record)

    def _score(self, call: SearchCall, record: SearchRecord) -> None:
        state, result = self._state, "failed"
        try:
            late = replace(call, deadline=Deadline(state.settings.deadline_s), explain=False)
            page = state.ask_engine(lambda: rerank(state, late)).page
            result = "fallback" if page.fallback else "scored"
            record = replace(record, shadow_ids=tuple(hit.id for hit in page.hits))
            moved = sum(a.id != b for a, b in zip(record.hits, record.shadow_ids, strict=False))
            entry = {"query_id": record.query_id, "moved": moved, "of": len(record.hits), "result": result}
            _log.info("shadow", extra={"ssi": entry})
        except RerankerError as error:
            _log.warning("shadow", extra={"ssi": {"query_id": record.query_id, "error": type(error).__name__}})
        finally:
            with self._lock:
                self._waiting -= 1
            state.metrics.shadows.labels(result).inc()
            self._on_page(record)

    def close(self) -> None:
        """Log what waits only as shown."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


GRACE_S = 0.05
"""Seconds past the deadline before a thread's answer is no longer waited for: its own deadline should end it."""
LEAST_SHARE = 0.5
"""Share of the deadline that must be left for work to begin: a search begun later would end in nothing."""
NEWEST = 0.05
"""Weight of the newest work in the mean of how long work takes."""


class Workers:
    """A fixed number of threads; whoever finds them busy waits, within the deadline.

    Parameters
    ----------
    n : int
        Threads.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._pool = ThreadPoolExecutor(n, thread_name_prefix="ssi-work")
        self._free: asyncio.Semaphore | None = None
        self._mean_s = 0.0
        self.waiting = 0
        self.busy = 0

    @property
    def expected_wait_s(self) -> float:
        """Seconds that one more request would wait for a thread, by how long work took lately."""
        return self.waiting * self._mean_s / self._n

    async def run(self, deadline: Deadline, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in a thread.

        Raises
        ------
        ServiceError
            503 where no thread becomes free in time, or the function does not end by the deadline.
        """
        free = self._free = self._free or asyncio.Semaphore(self._n)
        await self._wait(free, deadline)
        loop = asyncio.get_running_loop()
        self.busy += 1
        started = loop.time()
        work = loop.run_in_executor(self._pool, contextvars.copy_context().run, function)

        def done(_: object) -> None:
            self.busy -= 1
            self._mean_s += NEWEST * (loop.time() - started - self._mean_s)
            free.release()

        # A thread that is late keeps its place until it ends: nothing piles up behind it.
        work.add_done_callback(done)
        try:
            return await asyncio.wait_for(asyncio.shield(work), deadline.left_s + GRACE_S)
        except TimeoutError:
            work.add_done_callback(_look_away)
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0) from None

    async def _wait(self, free: asyncio.Semaphore, deadline: Deadline) -> None:
        patience_s = deadline.left_s - LEAST_SHARE * (deadline.limit_s or 0.0)
        if not free.locked():
            await free.acquire()
            return
        self.waiting += 1
        try:
            await asyncio.wait_for(free.acquire(), max(patience_s, 0.0))
        except TimeoutError:
            raise ServiceError(
                503, "the service is too busy to answer in time", kind="overloaded", retry_after_s=1.0
            ) from None
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Let no new work begin; threads end when theirs does."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _look_away(work: asyncio.Future[T]) -> None:
    """Take the outcome of work nobody waits for, so that it is not reported as forgotten."""
    if not work.cancelled():
        work.exception()


_log = logging.getLogger(__name__)
T = TypeVar("T")
FAIR_SHARE = 0.5
"""Share of the deadline that an engine must have had for its silence to count."""
ALWAYS_OPEN = frozenset({"/health", "/ready"})
"""Asked without a key, also while everything else is refused."""


class ServiceState:
    """What lives as long as the service.

    Parameters
    ----------
    settings : ServiceSettings
    engine : Engine
    versions : Versions
    metrics : Metrics
    sink : RecordSink or None
        Takes impressions; None logs none.
    keys : ApiKeys or None
        None: no key is asked for.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        engine: Engine,
        versions: Versions,
        *,
        metrics: Metrics | None = None,
        sink: RecordSink | None = None,
        keys: ApiKeys | None = None,
    ) -> None:
        self.settings, self.engine, self.versions = settings, engine, versions
        self.metrics = metrics or Metrics()
        self.sink, self.keys = sink, keys
        self.shapes = ErrorShapes()
        self.modes: dict[str, SearchMode] = dict(MODES)
        self.workers = Workers(settings.limits.workers)
        self.breaker = Breaker(
            settings.breaker_failures, settings.breaker_pause_s, on_failure=self.metrics.engine_failures.inc
        )
        self.shadow = Shadow(self, self._take)
        self.public: set[str] = set(ALWAYS_OPEN)
        self.watcher: Watcher | None = None
        self.draining = False
        self.admitted = 0
        self.buffered_bytes = 0
        self._watch_figures()

    @property
    def serving(self) -> Serving:
        """The version that answers: take it once a request and pass it on."""
        return self.versions.current

    def version(self, model_id: str | None) -> Serving:
        """Return the served version, or the one named; may read files: call it in `run`.

        Raises
        ------
        ServiceError
            404 if the named version is not known or cannot be used.
        """
        if model_id is None:
            return self.serving
        try:
            return self.versions.get(model_id)
        except (ArtifactError, InputError, OSError) as error:
            _log.warning("version", extra={"ssi": {"result": "not served", "reason": type(error).__name__}})
            raise ServiceError(404, "this version is not one that the service can load", kind="no_version") from error

    async def run(self, context: RequestContext, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in a thread, within the request's deadline; `ServiceError` 503 past it."""
        return await self.workers.run(context.deadline, function)

    def ask_engine(self, function: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return what ``function``, which asks the engine, returns; fails at once while the engine is left alone.

        With a deadline of which little is left, the engine's silence is not held against it.
        """
        fair = deadline is None or deadline.left_s >= FAIR_SHARE * (deadline.limit_s or 0.0)
        return self.breaker.call(function, fair=fair)

    def is_public(self, path: str) -> bool:
        """Return whether a path is open to callers without a key."""
        return path in self.public or any(
            path.startswith(prefix) for prefix in self.public if prefix != "/" and prefix.endswith("/")
        )

    def reload(self) -> None:
        """Look for another live version now."""
        if self.watcher is not None:
            self.watcher.reload()

    def _take(self, record: SearchRecord) -> None:
        if self.sink is not None:
            self.sink.record(record)

    def close(self) -> None:
        """End threads, write what the sink holds, close the engine."""
        if self.watcher is not None:
            self.watcher.close()
        self.workers.close()
        self.shadow.close()
        if self.sink is not None:
            self.sink.close(2.0)
        self.engine.close()

    def _watch_figures(self) -> None:
        watch, workers = self.metrics.watch, self.workers
        watch("ssi_waiting", "Requests that wait for a thread.", lambda: workers.waiting)
        watch("ssi_busy", "Threads at work.", lambda: workers.busy)
        watch("ssi_admitted", "Requests in work or waiting for a thread.", lambda: self.admitted)
        watch("ssi_buffered_bytes", "Request bodies in memory.", lambda: self.buffered_bytes)
        watch("ssi_breaker_open", "1 while the engine is left alone.", lambda: float(self.breaker.is_open))
        watch("ssi_sink_waiting", "Impressions not yet written.", lambda: self.sink.waiting if self.sink else 0)
        watch("ssi_sink_dropped", "Impressions dropped since the start.", lambda: self.sink.dropped if self.sink else 0)
