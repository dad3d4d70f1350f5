"""What lives as long as the service and is shared by all routes: settings, engine, versions, threads, metrics, sink."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Request

from reranker.deadline import Deadline
from reranker.engines.base import Engine
from reranker.errors import ConfigError
from reranker.service.auth import ApiKeys
from reranker.service.http import ErrorShape, RequestContext, ServiceError, of_error
from reranker.service.modes import MODES, SearchMode, Shadow, rerank
from reranker.service.serving import GoldenQuery, ModelFolders, Serving, Versions, Watcher, drawn_queries
from reranker.service.settings import ServiceSettings
from reranker.service.sink import ImpressionSink, SearchRecord
from reranker.service.telemetry import Metrics
from reranker.service.workers import Breaker, Workers

_log = logging.getLogger(__name__)
T = TypeVar("T")
FAIR_SHARE = 0.5
"""Share of the deadline that an engine must have had for its silence to count."""
LOOK_AGAIN_S = 1.0
"""Seconds from a search of the service's own that was not answered to the next one, at most."""
BODY_WITHOUT_MODEL = {"query": {"ids": {"values": ["{{query}}"]}}}
"""Of the service's own searches, where it has no body and no model that knows the text fields."""


class ServiceState:
    """The state of a service; without a usable model it answers in the engine's order, and says so.

    ``store`` is that of route *beside* (None: where the indexer puts it); ``sink`` takes impressions (None: nobody);
    ``golden`` is what a version must score before it is swapped in (None: queries of its own words).

    Raises
    ------
    ConfigError
        If the key file cannot be used.
    """

    def __init__(
        self, settings: ServiceSettings, engine: Engine, folders: ModelFolders, store: Path | None = None,
        sink: ImpressionSink | None = None, golden: Sequence[GoldenQuery] | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.engine, self.sink = settings, engine, sink
        self.keys = None if settings.api_keys is None else ApiKeys.read(settings.api_keys)
        self.versions = Versions(settings, folders, store)
        self.metrics = Metrics()
        self.shapes: dict[str, ErrorShape] = {}
        self.modes: dict[str, SearchMode] = dict(MODES)
        self.workers = Workers(settings.limits.workers)
        self.breaker = Breaker(
            settings.breaker_failures, settings.breaker_pause_s, on_failure=self.metrics.engine_failures.inc
        )
        self.shadow = Shadow(
            lambda call: self.ask_engine(lambda: rerank(self.versions, call)).page,
            settings.deadline_s, self.metrics, self.record,
        )  # fmt: skip
        self.watcher = Watcher(self.versions, self.metrics, golden)
        self.public: set[str] = set()
        """Paths that need no key: exact ones, or prefixes that end in ``/``."""
        self.draining = False
        self.problem: ServiceError | None = None
        """Why searches cannot be answered; None where they can."""
        self.answered = 0
        """Searches answered since the last look."""
        self.admitted = 0
        self.buffered_bytes = 0
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
        return await self.workers.run(context.deadline, function)

    def ask_engine(self, function: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return what ``function``, which asks the engine, returns; fails at once while the engine is left alone.

        With a deadline of which little is left, the engine's silence is not held against it.
        """
        fair = deadline is None or deadline.left_s >= FAIR_SHARE * (deadline.limit_s or 0.0)
        return self.breaker.call(function, fair=fair)

    def record(self, search: SearchRecord) -> None:
        """Log an answered search, where impressions are logged."""
        if self.sink is not None:
            self.sink.record(search)

    def search(self) -> None:
        """Search as a caller would; raises what a caller would get."""
        serving = self.serving
        query = next((drawn.query for drawn in drawn_queries(serving)), "ssi")
        body = self.settings.body or (BODY_WITHOUT_MODEL if serving.model is None else None)
        serving.reranker.search(query, body, size=1)

    async def look(self) -> None:
        """Find out whether searches can be answered: others' were since the last look, or the service's own is.

        The own one takes a thread, the breaker and a connection like any other, so that it misses what they miss.
        """
        answered, self.answered = self.answered, 0
        error: Exception | None = None
        if not answered:
            try:
                await self.workers.run(Deadline(self.settings.deadline_s), lambda: self.ask_engine(self.search))
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
        """Look every ``poll_s`` seconds, sooner while searches cannot be answered."""
        while True:
            pause_s = self.settings.poll_s
            await asyncio.sleep(pause_s if self.problem is None else min(pause_s, LOOK_AGAIN_S))
            await self.look()

    def close(self) -> None:
        """End threads, write what the sink holds, close the engine."""
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
        watch("ssi_searchable", "1 while searches are answered, others' or the service's own.",
              lambda: float(self.problem is None))  # fmt: skip
        watch("ssi_breaker_open", "1 while the engine is left alone.", lambda: float(self.breaker.is_open))
        watch("ssi_sink_waiting", "Impressions not yet written.", lambda: self.unwritten)
        watch("ssi_sink_dropped", "Impressions dropped since the start.", lambda: self.sink.dropped if self.sink else 0)


async def service_of(request: Request) -> ServiceState:
    """Return the state of the service (a FastAPI dependency)."""
    return cast("ServiceState", request.app.state.service)


State = Annotated[ServiceState, Depends(service_of)]


def open_state(
    engine: Engine, settings: ServiceSettings, *, model: Path | None = None, models: Path | None = None,
    store: Path | None = None, sink: ImpressionSink | None = None, golden: Sequence[GoldenQuery] | None = None,
) -> ServiceState:  # fmt: skip
    """Return the state of a service that has searched once.

    ``model`` is one model folder; ``models`` a folder of them, of which the control record names the live one.

    Raises
    ------
    ConfigError
        If the key file cannot be used, or neither ``model`` nor ``models`` is given.
    """
    path = models if model is None else model
    if path is None:
        raise ConfigError("neither a model folder nor a folder of model folders is given: give one of them")
    folders = ModelFolders(engine, settings.index, path, single=model is not None)
    state = ServiceState(settings, engine, folders, store, sink, golden)
    serving = state.serving
    state.metrics.note_version(serving.model_id, serving.encoder_id, serving.loaded)
    # Also so that the first caller does not wait for compiled code and cold files.
    try:
        state.search()
    except Exception as error:
        state.note_searches(error)
    return state
