"""What operators see: metrics for Prometheus, and JSON log lines; neither has anything of a request's content."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, Literal, NamedTuple, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.samples import Sample

from reranker.records import ReasonKind

F = TypeVar("F", Counter, Histogram)
Among = Literal["livesum", "livemin", "livemax"]
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_AT_START: Mapping[str, tuple[str, ...]] = {
    "seconds": ("/search",),
    "stages": ("wait", "candidates", "query", "vectors", "score", "order", "page"),
    "fallbacks": tuple(kind.value for kind in ReasonKind),
    "refused": (
        "unauthorized",
        "forbidden",
        "too_slow",
        "too_large",
        "unsupported_encoding",
        "overloaded",
        "headers_too_large",
        "stopping",
        "unavailable",
        "not_allowed",
        "invalid",
        "bad_host",
        "broken_body",
        "too_many_events",
    ),
    "swaps": ("done", "refused"),
    "shadows": ("scored", "fallback", "failed", "skipped"),
    "documents": ("ids", "texts"),
}
"""Labels that are shown from the start, at 0: a rate misses the increment that a series begins with."""


SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that names the folder of the figures of several processes, read as the library is imported."""


def forget_process(folder: str, pid: int) -> None:
    """Take a process that has ended out of what is true at the moment; what it has counted remains."""
    multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


class Latency(NamedTuple):
    """How long a stage took, milliseconds; None above the longest time that is told apart, or where ``n`` is 0."""

    stage: str
    n: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return below which value a share of observations lies, by (upper bound, n up to it); None if unknown."""
    wanted = share * buckets[-1][1]
    lower = before = 0.0
    for upper, n in buckets:
        if n >= wanted and n > before:
            return None if math.isinf(upper) else lower + (upper - lower) * (wanted - before) / (n - before)
        lower, before = upper, n
    return None


class Metrics:
    """The service's figures, in a registry of their own; of several processes, those of all of them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, buckets=_BUCKETS, registry=registry)
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        self._version: tuple[str, str] | None = None
        self.requests = counter("ssi_requests", "Requests by route and status.", ("path", "method", "status"))
        self.seconds = histogram("ssi_request_seconds", "Time from the first byte to the answer.", ("path",))
        self.stages = histogram("ssi_stage_seconds", "Time by stage of a request.", ("stage",))
        self.searches = counter("ssi_searches", "Answered searches by mode.", ("mode",))
        text = "Searches answered in the engine's order for want of the model's."
        self.fallbacks = counter("ssi_fallbacks", text, ("cause",))
        self.refused = counter("ssi_refused", "Requests refused by the guard.", ("cause",))
        self.swaps = counter("ssi_swaps", "Models loaded while serving, and refused ones.", ("result",))
        self.engine_failures = counter("ssi_engine_failures", "Requests that the engine did not answer.")
        self.shadows = counter("ssi_shadows", "Searches scored in the shadow.", ("result",))
        self.documents = counter("ssi_documents", "Documents scored by the rerank routes.", ("given_as",))
        text = "1 for the version that is served, 0 for one that was."
        self.version = gauge("ssi_version", text, ("model", "encoder"), multiprocess_mode="livemax")
        text = "When the served model was loaded, Unix time."
        self.loaded = gauge("ssi_model_loaded_seconds", text, multiprocess_mode="livemax")
        text = "Processes of this service that run."
        self.processes = gauge("ssi_processes", text, multiprocess_mode="livesum")
        self.processes.set(1)
        for name, labels in _AT_START.items():
            for label in labels:
                self.child(getattr(self, name), label)

    def child(self, figure: F, *labels: str) -> F:
        """Return the figure for these labels, made once."""
        key = (id(figure), *labels)
        if key not in self._children:
            self._children[key] = figure.labels(*labels)
        return cast("F", self._children[key])

    def watch(self, name: str, text: str, value: Callable[[], float], among: Among = "livesum") -> None:
        """Show a value that is read when figures are collected; ``among`` processes, as `prometheus_client` says."""
        self._watched.append((Gauge(name, text, registry=self.registry, multiprocess_mode=among), value))

    def refresh(self) -> None:
        """Read the values that are watched, for the figures that another process collects."""
        for gauge, value in self._watched:
            gauge.set(value())

    def note_stages(self, timings_ms: Mapping[str, float]) -> None:
        """Take the times of one request's stages."""
        for stage, value in timings_ms.items():
            self.child(self.stages, stage).observe(value / 1000.0)

    def note_version(self, model_id: str, encoder_id: str, loaded: float) -> None:
        """Show another version as the served one."""
        labels = (model_id[:12], encoder_id[:12])
        if self._version is not None:
            self.version.labels(*self._version).set(0)
        self._version = labels
        self.version.labels(*labels).set(1)
        self.loaded.set(loaded)

    def latencies(self) -> list[Latency]:
        """Return how long searches took since the start, as a whole and by stage."""
        found = []
        for figure, label in ((self.seconds, "path"), (self.stages, "stage")):
            buckets: dict[str, list[tuple[float, float]]] = {}
            for sample in self._samples(figure):
                if sample.name.endswith("_bucket"):
                    bounds = buckets.setdefault(sample.labels[label], [])
                    bounds.append((float(sample.labels["le"]), sample.value))
            for name, ascending in buckets.items():
                if label == "stage" or name in _AT_START["seconds"]:
                    values = (quantile(ascending, share) for share in (0.5, 0.95, 0.99))
                    times = (None if value is None else round(1000.0 * value, 3) for value in values)
                    found.append(Latency(name, int(ascending[-1][1]), *times))
        return found

    def counts(self, figure: Counter) -> dict[str, int]:
        """Return a counter's values by its one label."""
        samples = self._samples(figure)
        return {next(iter(s.labels.values())): int(s.value) for s in samples if s.name.endswith("_total")}

    def n_processes(self) -> int:
        """Return how many processes of this service run."""
        return int(sum(sample.value for sample in self._samples(self.processes)))

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format; other processes' watched values are of their last look."""
        self.refresh()
        return generate_latest(self._of_all())

    def _of_all(self) -> CollectorRegistry:
        """Return the registry that has the figures of all processes."""
        if SHARED not in os.environ:
            return self.registry
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry

    def _samples(self, figure: Counter | Gauge | Histogram) -> Sequence[Sample]:
        (name,) = {family.name for family in figure.collect()}
        return [sample for family in self._of_all().collect() if family.name == name for sample in family.samples]


OWN_LOGS = "reranker"


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON line; of exceptions the class and place, of libraries the text without values."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        own = record.name.partition(".")[0] == OWN_LOGS
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage() if own else str(record.msg) if record.args else record.name,
        }
        entry.update(getattr(record, "ssi", {}))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)[-8:]
            entry["error"] = type(error).__name__
            entry["at"] = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        return json.dumps(entry, ensure_ascii=True, default=str)


def configure_logs(stream: IO[str] | None = None, level: str = "INFO") -> None:
    """Send log records, as JSON lines, to a stream (standard error): of libraries, no more than warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OWN_LOGS).setLevel(level)
    # Where it finds a handler, Elasticsearch's client writes out every request and answer before it asks for the level.
    logging.getLogger("elastic_transport.node").propagate = False
