"""What lives as long as the service and is shared by all routes, threads and the engine's circuit breaker included."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request

from reranker.deadline import Deadline
from reranker.engines.protocol import Engine
from reranker.errors import ConfigError, EngineError, EngineUnavailable, RerankerError
from reranker.service.auth import ApiKeys
from reranker.service.copies import WorkFolder
from reranker.service.gate import CheckedBody, check_body
from reranker.service.http import ErrorShape, RequestContext, ServiceError, of_error
from reranker.service.modes import MODES, SearchMode, Shadow, rerank
from reranker.service.serving import GoldenQuery, ModelFolders, Serving, Versions, Watcher, drawn_queries
from reranker.service.settings import ServiceSettings
from reranker.service.sink import EventRates, ImpressionSink
from reranker.service.telemetry import Metrics
from reranker.service.threads import Places, Threads

_log = logging.getLogger(__name__)
T = TypeVar("T")
LOOK_AGAIN_S = 1.0
"""Seconds from a search of the service's own that was not answered to the next one, at most."""
DOUBT_S = 0.2
"""Seconds between two searches of the service's own, at least, where callers' searches raise doubts."""
BODY_WITHOUT_MODEL = {"query": {"ids": {"values": ["{{query}}"]}}}
"""Of the service's own searches, where it has no body and no model that knows the text fields."""


class Breaker:
    """A circuit breaker. Counts failures in a row; open after ``failures`` of them, half open after ``pause_s``.

    Open: calls fail at once. Half open: one call goes through, another ``pause_s`` later; if it succeeds the breaker
    closes.

    Only what no caller can bring about counts as a failure: a connection that fails, and any failure of a ``probe``,
    the service's own search, which is known to be good. A caller's search that takes too long or makes the engine fail
    says nothing for sure: ``on_doubt`` is called, so that a probe finds out. ``now`` gives monotonic seconds;
    ``on_failure`` is called with every failure that counts.
    """

    def __init__(
        self,
        failures: int,
        pause_s: float,
        now: Callable[[], float] = time.monotonic,
        on_failure: Callable[[], None] | None = None,
        on_doubt: Callable[[], None] | None = None,
    ) -> None:
        self._limit, self._pause_s, self._now = failures, pause_s, now
        self._on_failure, self._on_doubt = on_failure, on_doubt
        self._lock = threading.Lock()
        self._failed = 0
        self._opened: float | None = None
        self._probe_until = 0.0

    @property
    def is_open(self) -> bool:
        """True while calls fail at once or one is tried."""
        return self._opened is not None

    def call(self, function: Callable[[], T], *, probe: bool = False) -> T:
        """Return the result of ``function``, and count how it went.

        An error of the engine that is an answer (a refused body, say) shows that the engine is there; errors of other
        kinds show nothing. `EngineUnavailable` at once where the breaker is open.
        """
        self.check(entering=True)
        try:
            value = function()
        except EngineUnavailable as error:
            if probe or error.is_connection_failure:
                self._failure(probe)
            else:
                self._doubt()
            raise
        except EngineError:
            self._success()
            raise
        except BaseException:
            self._leave()
            raise
        self._success()
        return value

    def check(self, *, entering: bool = False) -> None:
        """Raise `EngineUnavailable` if a call would fail at once; one that is ``entering`` keeps others out."""
        with self._lock:
            if self._opened is None:
                return
            left_s = max(self._opened + self._pause_s, self._probe_until) - self._now()
            if left_s > 0:
                wait_s = max(left_s, 0.05)
                raise EngineUnavailable(
                    f"the engine did not answer before and is left alone for {wait_s:.1f} s more: try again then",
                    error_type="breaker_open",
                    retry_after_s=wait_s,
                )
            if entering:
                self._probe_until = self._now() + self._pause_s

    def _leave(self) -> None:
        """Let another call be the one that is tried while the breaker is half open."""
        with self._lock:
            self._probe_until = 0.0

    def _doubt(self) -> None:
        self._leave()
        if self._on_doubt is not None:
            self._on_doubt()

    def _failure(self, probe: bool = False) -> None:
        """Count a failure; two of the service's own searches in a row are enough to open the breaker."""
        with self._lock:
            self._failed += (self._limit + 1) // 2 if probe else 1
            if self._opened is not None or self._failed >= self._limit:
                self._opened, self._probe_until = self._now(), 0.0
        if self._on_failure is not None:
            self._on_failure()

    def _success(self) -> None:
        with self._lock:
            self._failed, self._opened, self._probe_until = 0, None, 0.0


class Signal:
    """An event that any thread sets and one coroutine waits for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the coroutine that waits, or the next one that will."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._event.set()
        else:
            loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        """Return whether it was set within ``timeout_s`` seconds; it is unset then."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Job:
    """Work that takes longer than a request may, in a thread of its own, once at a time; its last end is kept.

    ``value`` is what it returned, None where it failed: then ``problem`` says why; ``ended`` is Unix time, 0 before.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_running = False
        self.value: Any = None
        self.problem, self.ended = "", 0.0

    def start(self, function: Callable[[], Any]) -> bool:
        """Begin, unless it is at work; return whether it has begun."""
        with self._lock:
            if self.is_running:
                return False
            self.is_running = True
        threading.Thread(target=self._run, args=(function,), name="ssi-job", daemon=True).start()
        return True

    def _run(self, function: Callable[[], Any]) -> None:
        value, problem = None, ""
        try:
            value = function()
        except RerankerError as error:
            # An engine's own words can repeat a query.
            problem = of_error(error).message if isinstance(error, EngineError) else error.message
        except Exception as error:
            problem = of_error(error).message
        with self._lock:
            self.value, self.problem, self.ended, self.is_running = value, problem, time.time(), False


class ServiceState:
    """The state of a service; without a usable model it answers in the engine's order, and says so.

    ``store`` is that of route *beside* (None: where the indexer puts it); ``golden`` is what a version must score
    before it is swapped in (None: queries of its own words); ``work`` is the folder for private copies of model and
    store (None: one of this state, which `close` removes). `ConfigError` if the key file cannot be used.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        engine: Engine,
        folders: ModelFolders,
        store: Path | None = None,
        sink: ImpressionSink | None = None,
        golden: Sequence[GoldenQuery] | None = None,
        work: WorkFolder | None = None,
    ) -> None:
        self.settings, self.engine, self.sink = settings, engine, sink
        self.keys = None if settings.api_keys is None else ApiKeys.read(settings.api_keys)
        self.work = WorkFolder() if work is None else work
        self.versions = Versions(settings, folders, store, self.work if settings.verify else None)
        self.metrics = Metrics()
        self.shapes: dict[str, ErrorShape] = {}
        self.modes: dict[str, SearchMode] = dict(MODES)
        self.threads = Threads(settings.limits.threads)
        self.large_bodies = Places(settings.limits.large_at_once)
        """Requests with large bodies in work: each takes many times its bytes while it is decoded and encoded."""
        self.doubt = Signal()
        """Set where a caller's search leaves it open whether the engine is well."""
        self.breaker = Breaker(
            settings.breaker_failures,
            settings.breaker_pause_s,
            on_failure=self.metrics.engine_failures.inc,
            on_doubt=self.doubt.set,
        )
        self.event_rates = EventRates(settings.events_per_second)
        self.shadow = Shadow(
            lambda call: self.ask_engine(lambda: rerank(self.versions, call)).page,
            settings.deadline_s,
            self.metrics,
            self.record,
        )
        self.watcher = Watcher(self.versions, self.metrics, golden)
        self.jobs: dict[str, Job] = defaultdict(Job)
        self.large: set[str] = set()
        """Paths whose bodies may have ``limits.max_body_bytes``; others have ``limits.max_search_bytes``."""
        self.public: set[str] = set()
        """Paths that need no key: exact ones, or prefixes that end in ``/``."""
        self.draining = False
        self.problem: ServiceError | None = None
        """Why searches cannot be answered; None where they can."""
        self.answered = 0
        """Searches answered since the last look."""
        self.admitted = 0
        self.admitted_of: Counter[str] = Counter()
        """Requests in work or waiting, by client."""
        self.buffered_bytes = 0
        self.buffered_of: Counter[str] = Counter()
        """Bytes of request bodies in memory, by client."""
        self._watch_figures()

    @property
    def serving(self) -> Serving:
        """The version that answers: take it once a request and pass it on."""
        return self.versions.current

    @property
    def unwritten(self) -> int:
        """Impressions and events taken and not yet written."""
        return 0 if self.sink is None else self.sink.waiting

    async def run(self, context: RequestContext, function: Callable[[], T]) -> T:
        """Return what ``function`` returns in a thread, within the request's deadline; `ServiceError` 503 past it."""
        return await self.threads.run(context.deadline, function, context.client)

    def ask_engine(self, function: Callable[[], T], *, probe: bool = False) -> T:
        """Return the result of ``function``, which asks the engine; fails at once while the engine is left alone.

        Only a ``probe``, the service's own search, tells by a timeout or an error status that the engine is not well.
        """
        return self.breaker.call(function, probe=probe)

    def checked(self, body: Any) -> CheckedBody:
        """Return a search body from outside that has passed `check_body`; a refusal is counted."""
        try:
            return check_body(body, self.settings.index)
        except ServiceError as error:
            self.refuse(error.kind)
            raise

    def refuse(self, kind: str) -> None:
        """Count a request that was refused, by a bounded name of the reason."""
        self.metrics.child(self.metrics.refused, kind).inc()

    def body_limit(self, path: str) -> int:
        """Return the largest body that a path takes, in bytes."""
        limits = self.settings.limits
        return limits.max_body_bytes if path in self.large else min(limits.max_search_bytes, limits.max_body_bytes)

    def admit(self, client: str, number: int) -> None:
        """Count requests of a client that begin (1) or end (-1)."""
        self.admitted += number
        _count(self.admitted_of, client, number)

    def hold(self, client: str, n_bytes: int) -> None:
        """Count bytes of a client's bodies that are held from now on, or given back (below 0)."""
        self.buffered_bytes += n_bytes
        _count(self.buffered_of, client, n_bytes)

    def record(self, row: Mapping[str, Any]) -> None:
        """Log the row of an answered search, where impressions are logged."""
        if self.sink is not None:
            self.sink.record(row)

    def search(self) -> None:
        """Search as a caller would; raises what a caller would get."""
        serving = self.serving
        query = next((drawn.query for drawn in drawn_queries(serving)), "ssi")
        body = self.settings.default_body or (BODY_WITHOUT_MODEL if serving.model is None else None)
        serving.reranker.search(query, body, size=1)

    async def look(self) -> None:
        """Find out whether searches can be answered: others' were since the last look, or the service's own is."""
        answered, self.answered = self.answered, 0
        error: Exception | None = None
        if not answered:
            try:
                await self.threads.run(
                    Deadline(self.settings.deadline_s), lambda: self.ask_engine(self.search, probe=True)
                )
            except Exception as failure:
                error = failure
        self.note_searches(error)

    def note_searches(self, error: Exception | None) -> None:
        """Keep why searches cannot be answered (None: they can), and log where that has changed."""
        problem = None if error is None else of_error(error)
        kind, before = (other.kind if other else "" for other in (problem, self.problem))
        if kind != before:
            entry = {"answered": problem is None, **({"cause": kind} if kind else {})}
            _log.log(logging.INFO if problem is None else logging.ERROR, "searches", extra={"ssi": entry})
        self.problem = problem

    async def keep_looking(self) -> None:
        """Look every ``poll_s`` seconds; sooner while searches cannot be answered, or where a caller's search fails."""
        while True:
            pause_s = self.settings.poll_s
            if await self.doubt.wait(pause_s if self.problem is None else min(pause_s, LOOK_AGAIN_S)):
                await asyncio.sleep(DOUBT_S)
            await self.look()
            self.metrics.refresh()

    def close(self) -> None:
        """End threads, write what the sink holds, close the engine."""
        self.watcher.close()
        self.work.close()
        self.threads.close()
        self.shadow.close()
        if self.sink is not None:
            self.sink.close(2.0)
        self.engine.close()

    def _watch_figures(self) -> None:
        watch, threads = self.metrics.watch, self.threads
        watch("ssi_waiting", "Requests that wait for a thread.", lambda: threads.waiting)
        watch("ssi_busy", "Threads at work.", lambda: threads.busy)
        watch("ssi_admitted", "Requests in work or waiting for a thread.", lambda: self.admitted)
        watch("ssi_buffered_bytes", "Request bodies in memory.", lambda: self.buffered_bytes)
        watch(
            "ssi_searchable",
            "1 while searches are answered, others' or the service's own.",
            lambda: float(self.problem is None),
            "livemin",
        )
        watch("ssi_breaker_open", "1 while the engine is left alone.", lambda: float(self.breaker.is_open), "livemax")
        watch("ssi_sink_waiting", "Impressions not yet written.", lambda: self.unwritten)
        watch("ssi_sink_dropped", "Impressions dropped since the start.", lambda: self.sink.dropped if self.sink else 0)


def _count(of: Counter[str], client: str, number: int) -> None:
    """Add to a client's count, and forget a client that has none left: addresses are many."""
    of[client] += number
    if not of[client]:
        del of[client]


async def service_of(request: Request) -> ServiceState:
    """Return the state of the service (a FastAPI dependency)."""
    return cast("ServiceState", request.app.state.service)


State = Annotated[ServiceState, Depends(service_of)]


def open_state(
    engine: Engine,
    settings: ServiceSettings,
    *,
    model: Path | None = None,
    models: Path | None = None,
    store: Path | None = None,
    sink: ImpressionSink | None = None,
    golden: Sequence[GoldenQuery] | None = None,
    work: WorkFolder | None = None,
) -> ServiceState:
    """Return the state of a service that has searched once; `ConfigError` for a bad key file, or no model folder."""
    path = models if model is None else model
    if path is None:
        raise ConfigError("neither a model folder nor a folder of model folders is given: give one of them")
    folders = ModelFolders(engine, settings.index, path, single=model is not None)
    state = ServiceState(settings, engine, folders, store, sink, golden, work)
    serving = state.serving
    state.metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
    # Also so that the first caller does not wait for compiled code and cold files.
    try:
        state.search()
    except Exception as error:
        state.note_searches(error)
    state.metrics.refresh()
    return state
