"""What lives as long as the service and is shared by all routes: settings, engine, versions, threads, metrics, sink."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Request

from reranker.deadline import Deadline
from reranker.engines.base import Engine
from reranker.errors import ConfigError, RerankerError
from reranker.service.auth import ApiKeys
from reranker.service.http import ErrorShape, RequestContext
from reranker.service.modes import MODES, SearchMode, Shadow, rerank
from reranker.service.serving import GoldenQuery, ModelFolders, Serving, Versions, Watcher, drawn_queries
from reranker.service.settings import ServiceSettings
from reranker.service.sink import RecordSink, SearchRecord
from reranker.service.telemetry import Metrics
from reranker.service.workers import Breaker, Workers

_log = logging.getLogger(__name__)
T = TypeVar("T")
FAIR_SHARE = 0.5
"""Share of the deadline that an engine must have had for its silence to count."""
WARM_UP_MS = 5000.0


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
        sink: RecordSink | None = None, golden: Sequence[GoldenQuery] | None = None,
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
        self.admitted = 0
        self.buffered_bytes = 0
        self._watch_figures()

    @property
    def serving(self) -> Serving:
        """The version that answers: take it once a request and pass it on."""
        return self.versions.current

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
        watch("ssi_breaker_open", "1 while the engine is left alone.", lambda: float(self.breaker.is_open))
        watch("ssi_sink_waiting", "Impressions not yet written.", lambda: self.sink.waiting if self.sink else 0)
        watch("ssi_sink_dropped", "Impressions dropped since the start.", lambda: self.sink.dropped if self.sink else 0)


async def service_of(request: Request) -> ServiceState:
    """Return the state of the service (a FastAPI dependency)."""
    return cast("ServiceState", request.app.state.service)


State = Annotated[ServiceState, Depends(service_of)]


def open_state(
    engine: Engine, settings: ServiceSettings, *, model: Path | None = None, models: Path | None = None,
    store: Path | None = None, sink: RecordSink | None = None, golden: Sequence[GoldenQuery] | None = None,
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
    # So that the first caller does not wait for compiled code and cold files.
    for query in drawn_queries(serving)[:1]:
        try:
            serving.reranker.search(query.query, settings.body, size=1, deadline_ms=WARM_UP_MS)
        except RerankerError as error:
            _log.warning("the engine does not answer yet", extra={"ssi": {"error": type(error).__name__}})
    return state
