"""All that the routes share: settings, engine, the served version, threads, figures, the sink."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from reranker.engines.base import Engine
from reranker.errors import ArtifactError, InputError
from reranker.service.auth import ApiKeys
from reranker.service.breaker import Breaker
from reranker.service.context import Deadline, RequestContext
from reranker.service.errors import ErrorShapes, ServiceError
from reranker.service.metrics import Metrics
from reranker.service.modes import MODES, SearchMode
from reranker.service.records import RecordSink, SearchRecord
from reranker.service.serving import Serving, Versions
from reranker.service.settings import ServiceSettings
from reranker.service.shadow import Shadow
from reranker.service.watch import Watcher
from reranker.service.workers import Workers

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
        fair = deadline is None or deadline.left_s >= FAIR_SHARE * deadline.limit_s
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
