"""State of a running service that all routes share: work, circuit breaker, versions, metrics and background jobs."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request
from starlette.types import Receive

from reranker.deadline import Deadline
from reranker.engines.protocol import Engine, HasConnections, requests_of
from reranker.engines.wire import own_rights, quoted
from reranker.errors import ConfigError, EngineError, EngineUnavailable, IndexMissing
from reranker.rerank import RerankedPage
from reranker.service.auth import ApiKeys
from reranker.service.forward import Forwarder
from reranker.service.http import ErrorShape, ServiceError, next_piece, of_error, too_slow
from reranker.service.modes import MODES, SearchCall, SearchMode, Shadow, rerank
from reranker.service.serving import GoldenQuery, ModelFolders, Serving, Versions, Watcher, drawn_queries
from reranker.service.settings import ServiceSettings
from reranker.service.sink import EventRates, ImpressionSink
from reranker.service.telemetry import BodyShapes, Metrics
from reranker.service.work import MOST_ON_LOOP, Places, Work

_log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_S = 1.0
"""Longest pause, in seconds, between two health checks while searches fail."""
NARROWING = frozenset({"filter", "index_routing", "search_routing"})
"""Options of an alias by which it shows less than the index behind it."""
NAMES_S = 1.0
"""Seconds for which the concrete indexes behind an alias are kept."""
DOUBT_S = 0.2
"""Seconds to wait before a health check that a failed client search has triggered."""
BODY_WITHOUT_MODEL = {"query": {"ids": {"values": ["{{query}}"]}}}
"""Body of health-check searches if the service has neither a body nor a model that names the text fields."""


class Breaker:
    """A circuit breaker for requests to the engine.

    It opens after ``failures`` consecutive failures; calls then fail immediately. After ``pause_s`` it is half open:
    one call per ``pause_s`` goes through, and the first that succeeds closes the breaker.

    Only what no client can cause counts as a failure: a failed connection, or any failure of a ``probe``, a health
    check whose search is known to be valid. If a client's search times out or makes the engine fail, the cause is not
    clear; ``on_doubt`` is called to trigger a health check.

    Parameters
    ----------
    failures : int
        Consecutive failures that open the breaker.
    pause_s : float
        Seconds for which it stays open.
    now : Callable
        Returns monotonic seconds.
    on_failure : Callable, optional
        Called for every failure that counts.
    on_doubt : Callable, optional
        Called for every failure of unclear cause.
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
        """True while the breaker is open or half open."""
        return self._opened is not None

    def call(self, function: Callable[[], T], *, probe: bool = False) -> T:
        """Return the result of ``function``, and count its success or failure.

        An engine error that is an answer (such as a rejected body) counts as success, because the engine is reachable.
        Other exceptions are not counted. Raises `EngineUnavailable` immediately while the breaker is open.
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
        """Raise `EngineUnavailable` if the breaker is open; ``entering`` claims the only call of a half-open one."""
        with self._lock:
            if self._opened is None:
                return
            left_s = max(self._opened + self._pause_s, self._probe_until) - self._now()
            if left_s > 0:
                wait_s = max(left_s, 0.05)
                raise EngineUnavailable(
                    f"the engine has failed repeatedly; no requests are sent to it for {wait_s:.1f} s: try again then",
                    error_type="breaker_open",
                    retry_after_s=wait_s,
                )
            if entering:
                self._probe_until = self._now() + self._pause_s

    def _leave(self) -> None:
        """Allow another trial call while the breaker is half open."""
        with self._lock:
            self._probe_until = 0.0

    def _doubt(self) -> None:
        self._leave()
        if self._on_doubt is not None:
            self._on_doubt()

    def _failure(self, probe: bool = False) -> None:
        """Count a failure. A failed probe counts as half of the limit, so that two in a row open the breaker."""
        with self._lock:
            self._failed += (self._limit + 1) // 2 if probe else 1
            if self._opened is not None or self._failed >= self._limit:
                self._opened, self._probe_until = self._now(), 0.0
        if self._on_failure is not None:
            self._on_failure()

    def _success(self) -> None:
        with self._lock:
            self._failed, self._opened, self._probe_until = 0, None, 0.0


class WakeSignal:
    """An event that any thread sets and one coroutine waits for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the waiting coroutine, or the next one that waits."""
        loop = self._loop
        if loop is None or loop.is_closed():
            self._event.set()
        else:
            loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        """Return whether the event was set within ``timeout_s`` seconds, and clear it."""
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return False
        self._event.clear()
        return True


class IndexNames:
    """Concrete indexes that the service's index is another name of; read from the engine at most once a second.

    They are those behind an alias. An alias with a filter or a routing is no other name of an index: it shows less.

    Parameters
    ----------
    engine : Engine
        The engine that has the index.
    index : str
        Name of the index or alias.
    now : Callable
        Returns monotonic seconds.
    """

    def __init__(self, engine: Engine, index: str, now: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._index, self._now = engine, index, now
        self._known: tuple[float, tuple[str, ...]] = (-math.inf, ())

    def read(self, timeout_s: float | None) -> tuple[str, ...]:
        """Return the names, sorted; empty if there are none. The engine has ``timeout_s`` to answer."""
        read_s, names = self._known
        if self._now() - read_s >= NAMES_S:
            try:
                with own_rights():
                    answer = requests_of(self._engine).request(
                        "GET", f"/{quoted(self._index)}/_alias", timeout_s=timeout_s
                    )
            except IndexMissing:
                answer = {}
            about = [one.get("aliases", {}).get(self._index, {}) for one in answer.values()]
            names = () if any(one.keys() & NARROWING for one in about) else tuple(sorted(answer))
            self._known = (self._now(), names)
        return names


class ServiceState:
    """State of a service. Without a usable model it answers searches in the engine's order and reports why.

    Parameters
    ----------
    settings : ServiceSettings
        Settings of the service.
    engine : Engine
        The engine that is searched; closed by `close`.
    folders : ModelFolders
        Model folders with the versions.
    store : Path, optional
        Vector store of route *beside*. None: the indexer's default location.
    sink : ImpressionSink, optional
        Log of impressions and events. None: nothing is logged.
    golden : Sequence[GoldenQuery], optional
        Queries that a version must score before it goes live. None: words of its vocabulary.

    Raises
    ------
    ConfigError
        If the key file cannot be used.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        engine: Engine,
        folders: ModelFolders,
        store: Path | None = None,
        sink: ImpressionSink | None = None,
        golden: Sequence[GoldenQuery] | None = None,
    ) -> None:
        self.settings, self.engine, self.sink = settings, engine, sink
        self.keys = None if settings.api_keys is None else ApiKeys.read(settings.api_keys)
        self.versions = Versions(settings, folders, store)
        self.metrics = Metrics()
        self.shapes_seen = BodyShapes()
        self.shapes: dict[str, ErrorShape] = {}
        """Format of error answers, by path."""
        self.forwarder: Forwarder | None = None
        """Passes requests on to the engine, if it is proxied."""
        self.own: set[str] = set()
        """Path templates of the service's routes."""
        self.index_names = IndexNames(engine, settings.index)
        self.modes: dict[str, SearchMode] = dict(MODES)
        self.work = Work(settings.limits.at_once)
        self._is_awaitable = isinstance(engine, HasConnections) and engine.is_awaitable
        self.large_bodies = Places(settings.limits.large_at_once)
        """Concurrency limit for large bodies: each needs many times its size while it is decoded and encoded."""
        self.doubt = WakeSignal()
        """Set when a client's search fails and the engine's health is unclear."""
        self.breaker = Breaker(
            settings.breaker_failures,
            settings.breaker_pause_s,
            on_failure=self.metrics.engine_failures.inc,
            on_doubt=self.doubt.set,
        )
        self.event_rates = EventRates(settings.events_per_second)
        self.shadow = Shadow(self._scored_in_shadow, settings.deadline_s, self.metrics, self.record)
        self.watcher = Watcher(self.versions, self.metrics, golden)
        self.large: set[str] = set()
        """Paths whose bodies may have ``limits.max_body_bytes``; on others ``limits.max_search_bytes`` applies."""
        self.public: set[str] = set()
        """Paths that need no key: exact ones, or prefixes that end in ``/``."""
        self.draining = False
        self.problem: ServiceError | None = None
        """Why searches cannot be answered; None if they can."""
        self.answered = 0
        """Searches answered since the last health check."""
        self.admitted = 0
        """Requests running or waiting."""
        self.buffered_bytes = 0
        """Bytes of request bodies in memory."""
        self._watch_figures()

    @property
    def serving(self) -> Serving:
        """The version that answers: read it once per request and pass it on."""
        return self.versions.current

    @property
    def unwritten(self) -> int:
        """Impressions and events that are queued but not yet written."""
        return 0 if self.sink is None else self.sink.waiting

    async def run(self, deadline: Deadline, function: Callable[[], T], n_documents: int = 0) -> T:
        """Return the result of ``function``, which queries the engine; raise `ServiceError` 503 if it is late.

        It runs on the event loop, or in a thread if an event loop cannot send the requests to this engine, or if it
        reads more than `MOST_ON_LOOP` documents.
        """
        run = self.work.on_loop if self._is_awaitable and n_documents <= MOST_ON_LOOP else self.work.in_thread
        return await run(deadline, function)

    def depth(self, first: int, size: int) -> int:
        """Return the number of hits that a search reads which skips ``first`` hits and shows ``size``."""
        return max(first + size, self.settings.rerank.window)

    async def _scored_in_shadow(self, call: SearchCall) -> RerankedPage:
        search = partial(self.ask_engine, lambda: rerank(self.versions, call))
        outcome = await self.run(call.deadline, search, self.depth(*call.page))
        return outcome.page

    def ask_engine(self, function: Callable[[], T], *, probe: bool = False) -> T:
        """Return the result of ``function``, which queries the engine; fail immediately while the breaker is open.

        A timeout or an error status counts against the engine only for a ``probe``, a search of the health check.
        """
        return self.breaker.call(function, probe=probe)

    def refuse(self, kind: str) -> None:
        """Count a refused request under a reason from a bounded set."""
        self.metrics.child(self.metrics.refused, kind).inc()

    def body_limit(self, path: str) -> int:
        """Return the largest body, in bytes, that a path accepts."""
        limits = self.settings.limits
        return limits.max_body_bytes if path in self.large else min(limits.max_search_bytes, limits.max_body_bytes)

    def shape_of(self, path: str) -> ErrorShape | None:
        """Return the format of a path's error answers; None: this service's own."""
        return self.shapes.get(path)

    def check_queue(self) -> None:
        """Raise `ServiceError` 503 if as many requests run and wait as may."""
        limits = self.settings.limits
        if self.admitted >= limits.at_once + limits.max_waiting:
            raise ServiceError(503, "too many requests at once", kind="overloaded", retry_after_s=1.0)

    def check_buffered(self) -> None:
        """Raise `ServiceError` 503 if the bodies in memory are too large."""
        if self.buffered_bytes > self.settings.limits.max_buffered_bytes:
            raise ServiceError(503, "too many large requests at the same time", retry_after_s=1.0)

    async def read_body(self, receive: Receive, most: int) -> tuple[bytes, bool]:
        """Return the first ``most`` bytes of a body or somewhat more, and whether they are all of it.

        The bytes are counted as held, but not after an error. Raises `ServiceError` 400 if the body
        breaks off, 408 if it does not arrive in time, and the errors of `check_buffered`.
        """
        pieces: list[bytes] = []
        held, more, limit_s = 0, True, self.settings.limits.receive_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while more and held <= most:
                    piece, more = await next_piece(receive)
                    held += len(piece)
                    self.hold(len(piece))
                    if held <= most:
                        self.check_buffered()
                    pieces.append(piece)
        except BaseException as error:
            self.hold(-held)
            if isinstance(error, TimeoutError):
                raise too_slow(limit_s) from None
            raise
        return b"".join(pieces), not more

    def hold(self, n_bytes: int) -> None:
        """Count bytes of request bodies that are allocated, or released (negative)."""
        self.buffered_bytes += n_bytes

    def record(self, row: Mapping[str, Any]) -> None:
        """Log the row of an answered search, if impressions are logged."""
        if self.sink is not None:
            self.sink.record(row)

    def search(self) -> None:
        """Run a search as a client would; raises the error that a client would get."""
        serving = self.serving
        query = next((drawn.query for drawn in drawn_queries(serving)), "ssi")
        body = self.settings.default_body or (BODY_WITHOUT_MODEL if serving.model is None else None)
        serving.reranker.search(query, body, size=1)

    async def check_searches(self) -> None:
        """Check whether searches can be answered: a client's was since the last check, or a health-check search is."""
        answered, self.answered = self.answered, 0
        error: Exception | None = None
        if not answered:
            try:
                run = self.work.without_place if self._is_awaitable else self.work.in_thread
                await run(Deadline(self.settings.deadline_s), lambda: self.ask_engine(self.search, probe=True))
            except Exception as failure:
                error = failure
        self.note_searches(error)

    def note_searches(self, error: Exception | None) -> None:
        """Record why searches cannot be answered (None: they can), and log a change."""
        problem = None if error is None else of_error(error)
        kind, before = (other.kind if other else "" for other in (problem, self.problem))
        if kind != before:
            entry = {"answered": problem is None, **({"cause": kind} if kind else {})}
            _log.log(logging.INFO if problem is None else logging.ERROR, "searches", extra={"ssi": entry})
        self.problem = problem

    async def keep_checking(self) -> None:
        """Check searches every ``poll_s`` seconds; sooner while they fail, or after a client's search failed."""
        while True:
            pause_s = self.settings.poll_s
            if await self.doubt.wait(pause_s if self.problem is None else min(pause_s, RETRY_S)):
                await asyncio.sleep(DOUBT_S)
            await self.check_searches()
            self.metrics.refresh()

    def close(self) -> None:
        """Stop all threads, write the rows queued in the sink, and close the engine."""
        self.watcher.close()
        self.work.close()
        self.shadow.close()
        if self.sink is not None:
            self.sink.close(2.0)
        self.engine.close()

    def _watch_figures(self) -> None:
        watch, work = self.metrics.watch, self.work
        watch("ssi_waiting", "Requests waiting for others.", lambda: work.waiting)
        watch("ssi_busy", "Requests whose work is running.", lambda: work.busy)
        watch("ssi_admitted", "Requests running or waiting.", lambda: self.admitted)
        watch("ssi_buffered_bytes", "Bytes of request bodies in memory.", lambda: self.buffered_bytes)
        watch(
            "ssi_searchable",
            "1 while searches of clients or of the health check are answered.",
            lambda: float(self.problem is None),
            "livemin",
        )
        watch(
            "ssi_breaker_open",
            "1 while the circuit breaker of the engine is open.",
            lambda: float(self.breaker.is_open),
            "livemax",
        )
        watch("ssi_sink_waiting", "Impressions not yet written.", lambda: self.unwritten)
        watch("ssi_sink_dropped", "Impressions dropped since the start.", lambda: self.sink.dropped if self.sink else 0)


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
) -> ServiceState:
    """Return the state of a service after a first search.

    Raises `ConfigError` if the key file cannot be used, or no model folder is given.
    """
    path = models if model is None else model
    if path is None:
        raise ConfigError("no model folder is given: give a model folder, or a folder of model folders")
    folders = ModelFolders(engine, settings.index, path, single=model is not None)
    state = ServiceState(settings, engine, folders, store, sink, golden)
    serving = state.serving
    state.metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
    # The first search also compiles code and reads files into the page cache, so that no client has to wait for that.
    try:
        state.search()
    except Exception as error:
        state.note_searches(error)
    state.metrics.refresh()
    return state
