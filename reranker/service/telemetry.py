"""Metrics for Prometheus, JSON log lines, the export of spans, and counts of body shapes.

They contain no query text and no field values, except spans if ``SSI_TRACE_QUERIES`` is ``true``.

Of a search body, only the names of its scoring clauses and fields are shown (`BodyShapes`).
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, Literal, NamedTuple, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.samples import Sample

from reranker.errors import ConfigError, MissingExtra
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
        "not_forwarded",
        "invalid",
        "bad_host",
        "broken_body",
        "too_many_events",
    ),
    "alphas": ("given", "calibrated", "nearest", "default"),
    "swaps": ("done", "refused"),
    "shadows": ("scored", "fallback", "failed", "skipped"),
    "documents": ("ids", "texts"),
}
"""Labels exported from the start with value 0, because a rate misses the first increment of a new series."""


SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder of multi-process metrics; prometheus_client reads it when it is imported."""


def forget_process(folder: str, pid: int) -> None:
    """Remove the gauges of a process that has ended; its counters stay."""
    multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]


class Latency(NamedTuple):
    """Latency quantiles of one stage, in milliseconds.

    A quantile is None above the largest bucket, or if ``n`` is 0.
    """

    stage: str
    n: int
    """Number of observations."""
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of a histogram given as (upper bound, cumulative count), interpolated; None if unknown."""
    wanted = share * buckets[-1][1]
    lower = before = 0.0
    for upper, n in buckets:
        if n >= wanted and n > before:
            return None if math.isinf(upper) else lower + (upper - lower) * (wanted - before) / (n - before)
        lower, before = upper, n
    return None


MAX_RAW = 200
"""Latencies that are kept one by one; with more of them, a quantile is interpolated in a histogram."""
SEARCH_ROUTES = ("/search", "/{index}/_search", "/{index}/_msearch", "/_msearch")
"""Routes whose latencies are shown to operators: searches, and those of the proxy."""
QUARTER_S = 900.0
QUARTERS = 96


class Timings:
    """Latencies of one kind: each of them while there are few, and counts by bucket."""

    def __init__(self) -> None:
        self.n = 0
        self._raw: list[float] = []
        self._counts = [0] * (len(_BUCKETS) + 1)

    def note(self, seconds: float) -> None:
        """Add a latency."""
        self.n += 1
        self._counts[bisect.bisect_left(_BUCKETS, seconds)] += 1
        if len(self._raw) < MAX_RAW:
            self._raw.append(seconds)

    def quantile_s(self, share: float) -> float | None:
        """Return a quantile in seconds: one of the latencies (nearest rank) while all of them are kept.

        With more than `MAX_RAW` latencies, it is interpolated, and None above the largest bucket.
        """
        if not self.n:
            return None
        if self.n <= MAX_RAW:
            return sorted(self._raw)[max(math.ceil(share * self.n), 1) - 1]
        return quantile([*zip((*_BUCKETS, math.inf), itertools.accumulate(self._counts), strict=True)], share)


@dataclass(slots=True)
class QuarterHour:
    """Searches of this process within 15 minutes."""

    number: int
    """Quarter hours since the clock's start."""
    searches: int = 0
    fallbacks: int = 0
    clicks: int = 0
    latency: Timings = field(default_factory=Timings)


class DayHistory:
    """Searches, fallbacks, clicks and latency of the last 24 hours by `QuarterHour`, in bounded memory.

    ``now`` is a clock in seconds that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._quarters: deque[QuarterHour] = deque(maxlen=QUARTERS)

    def _current(self) -> QuarterHour:
        number = int(self._now() // QUARTER_S)
        if not self._quarters or self._quarters[-1].number != number:
            self._quarters.append(QuarterHour(number))
        return self._quarters[-1]

    def note_search(self, seconds: float, *, fallback: bool) -> None:
        """Add an answered search."""
        quarter = self._current()
        quarter.searches += 1
        quarter.fallbacks += fallback
        quarter.latency.note(seconds)

    def note_clicks(self, n: int) -> None:
        """Add reported clicks."""
        self._current().clicks += n

    def to_json(self) -> list[dict[str, Any]]:
        """Return the quarter hours with a search or a click, oldest first; ``ago`` counts them back from now."""
        number = int(self._now() // QUARTER_S)
        rows = []
        for one in list(self._quarters):
            if number - one.number < QUARTERS:
                times = {f"p{round(100 * share)}_ms": one.latency.quantile_s(share) for share in (0.5, 0.95)}
                rows.append(
                    {
                        "ago": number - one.number,
                        "searches": one.searches,
                        "fallbacks": one.fallbacks,
                        "clicks": one.clicks,
                        **{name: None if s is None else round(1000.0 * s, 3) for name, s in times.items()},
                    }
                )
        return rows


class Metrics:
    """Metrics of the service, in their own registry. With several processes, exports combine all of them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, buckets=_BUCKETS, registry=registry)
        self._children: dict[tuple[object, ...], Counter | Histogram] = {}
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        self._version: tuple[str, str] | None = None
        self._timed: dict[str, tuple[Histogram, Timings]] = {}
        self.day = DayHistory()
        self.requests = counter("ssi_requests", "Requests by route and status.", ("path", "method", "status"))
        self.seconds = histogram("ssi_request_seconds", "Time from the first byte to the answer.", ("path",))
        self.stages = histogram("ssi_stage_seconds", "Time by stage of a request.", ("stage",))
        self.searches = counter("ssi_searches", "Answered searches by mode.", ("mode",))
        text = "Searches answered in the engine's order because they could not be reranked."
        self.fallbacks = counter("ssi_fallbacks", text, ("cause",))
        text = "Reranked searches by the origin of alpha, the weight of the model."
        self.alphas = counter("ssi_alphas", text, ("origin",))
        text = "Candidates that had no current vector and were encoded from their text."
        self.encoded = counter("ssi_encoded_candidates", text)
        self.refused = counter("ssi_refused", "Requests refused by admission control.", ("cause",))
        self.swaps = counter("ssi_swaps", "Versions that went live while serving, or were refused.", ("result",))
        self.engine_failures = counter("ssi_engine_failures", "Requests that the engine did not answer.")
        self.shadows = counter("ssi_shadows", "Searches scored in shadow mode.", ("result",))
        self.documents = counter("ssi_documents", "Documents scored by the rerank routes.", ("given_as",))
        text = "1 for the version that is served, 0 for earlier ones."
        self.version = gauge("ssi_version", text, ("model", "encoder"), multiprocess_mode="livemax")
        text = "Unix time at which the served model was loaded."
        self.loaded = gauge("ssi_model_loaded_seconds", text, multiprocess_mode="livemax")
        text = "Running processes of this service."
        self.processes = gauge("ssi_processes", text, multiprocess_mode="livesum")
        self.processes.set(1)
        for name, labels in _AT_START.items():
            for label in labels:
                self.child(getattr(self, name), label)

    def child(self, figure: F, *labels: str) -> F:
        """Return the metric for these labels, which is created once."""
        key = (id(figure), *labels)
        if key not in self._children:
            self._children[key] = figure.labels(*labels)
        return cast("F", self._children[key])

    def watch(self, name: str, text: str, value: Callable[[], float], among: Among = "livesum") -> None:
        """Export a value that is read at collection; ``among`` is the multi-process mode of `prometheus_client`."""
        self._watched.append((Gauge(name, text, registry=self.registry, multiprocess_mode=among), value))

    def refresh(self) -> None:
        """Read the watched values, so that another process that collects the metrics can export them."""
        for gauge, value in self._watched:
            gauge.set(value())

    def note_stages(self, timings_ms: Mapping[str, float]) -> None:
        """Record the stage timings of one request."""
        for stage, value in timings_ms.items():
            self._note_time(self.stages, stage, value / 1000.0)

    def note_request(self, route: str, seconds: float) -> None:
        """Record the time of a request to a route."""
        self._note_time(self.seconds, route, seconds)

    def _note_time(self, figure: Histogram, label: str, seconds: float) -> None:
        timed = self._timed.get(label)
        if timed is None:
            timed = self._timed[label] = self.child(figure, label), Timings()
        timed[0].observe(seconds)
        timed[1].note(seconds)

    def note_version(self, model_id: str, encoder_id: str, loaded: float) -> None:
        """Export another version as the served one."""
        labels = (model_id[:12], encoder_id[:12])
        if self._version is not None:
            self.version.labels(*self._version).set(0)
        self._version = labels
        self.version.labels(*labels).set(1)
        self.loaded.set(loaded)

    def latencies(self) -> list[Latency]:
        """Return the latency of searches since the start, by route and by stage.

        The quantiles of at most `MAX_RAW` latencies are exact, if all are of this process.
        """
        found = []
        for figure, label in ((self.seconds, "path"), (self.stages, "stage")):
            buckets: dict[str, list[tuple[float, float]]] = {}
            for sample in self._samples(figure):
                if sample.name.endswith("_bucket"):
                    bounds = buckets.setdefault(sample.labels[label], [])
                    bounds.append((float(sample.labels["le"]), sample.value))
            for name, ascending in buckets.items():
                if label == "stage" or name in SEARCH_ROUTES:
                    n, own = int(ascending[-1][1]), self._timed.get(name)
                    values = [
                        own[1].quantile_s(share) if own is not None and own[1].n == n else quantile(ascending, share)
                        for share in (0.5, 0.95, 0.99)
                    ]
                    found.append(Latency(name, n, *(None if one is None else round(1000.0 * one, 3) for one in values)))
        return found

    def counts(self, figure: Counter) -> dict[str, int]:
        """Return the values of a counter by its single label."""
        samples = self._samples(figure)
        return {next(iter(s.labels.values())): int(s.value) for s in samples if s.name.endswith("_total")}

    def n_processes(self) -> int:
        """Return the number of running processes of this service."""
        return int(sum(sample.value for sample in self._samples(self.processes)))

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format; other processes' gauges are of their last `refresh`."""
        self.refresh()
        return generate_latest(self._of_all())

    def _of_all(self) -> CollectorRegistry:
        """Return a registry with the metrics of all processes."""
        if SHARED not in os.environ:
            return self.registry
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry

    def _samples(self, figure: Counter | Gauge | Histogram) -> Sequence[Sample]:
        (name,) = {family.name for family in figure.collect()}
        return [sample for family in self._of_all().collect() if family.name == name for sample in family.samples]


MAX_SHAPES = 100
"""Body shapes that a process remembers. Clients can send any number of them."""
MAX_CLAUSES = 8
"""Clauses of a body shape that are shown."""
_PLAIN_CLAUSE = re.compile(r"[A-Za-z_]{1,40}:[\w.*@-]{1,60}")
"""A clause with a field name. Anything else could contain text of a request and is shown only as a question mark."""


@dataclass(slots=True)
class BodyShape:
    """The scoring clauses of search bodies that differ only in boosts, values and filters, and how often they came."""

    name: str
    """Eight hexadecimal digits that identify the shape."""
    clauses: str
    """Clauses and fields, such as ``match:text, match:title``; at most `MAX_CLAUSES`. No query text."""
    origins: dict[str, int] = field(default_factory=dict)
    """Searches by the origin of alpha."""


class BodyShapes:
    """Counts of searches by body shape. The memory is bounded: at most `MAX_SHAPES` shapes are kept apart."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: dict[str, BodyShape] = {}
        self._others = 0

    def note(self, clauses: frozenset[str], origin: str) -> BodyShape | None:
        """Count a search; return its shape if this is the first search of the shape without its own calibration.

        ``clauses`` is `signature_of` its body, and ``origin`` the origin of its alpha. Shapes above the limit are
        counted together and never returned.
        """
        ordered = sorted(clauses)
        name = hashlib.blake2b("\n".join(ordered).encode("utf-8", "replace"), digest_size=4).hexdigest()
        with self._lock:
            shape = self._shapes.get(name)
            if shape is None and len(self._shapes) >= MAX_SHAPES:
                self._others += 1
                return None
            if shape is None:
                shape = self._shapes[name] = BodyShape(name, _shown(ordered))
            is_first = origin in _NOT_OWN and not any(one in shape.origins for one in _NOT_OWN)
            shape.origins[origin] = shape.origins.get(origin, 0) + 1
            return shape if is_first else None

    def to_json(self) -> dict[str, Any]:
        """Return the shapes, the most frequent first, and the number of searches with ``others``."""
        with self._lock:
            rows = [
                {
                    "shape": one.name,
                    "clauses": one.clauses,
                    "searches": sum(one.origins.values()),
                    "origins": {**one.origins},
                }
                for one in self._shapes.values()
            ]
            others = self._others
        return {"shapes": sorted(rows, key=lambda row: (-row["searches"], row["shape"])), "others": others}


_NOT_OWN = ("nearest", "default")
"""Origins of an alpha that was not fitted to the body and the window."""


def _shown(clauses: Sequence[str]) -> str:
    shown = [clause if _PLAIN_CLAUSE.fullmatch(clause) else "?" for clause in clauses[:MAX_CLAUSES]]
    more = len(clauses) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


OWN_LOGS = "reranker"


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON line.

    Exceptions are reduced to class and position, and messages of libraries to their text without arguments, because
    both could contain parts of a request.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line."""
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
    """Send log records as JSON lines to a stream (default: standard error); of libraries, only warnings and errors."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OWN_LOGS).setLevel(level)
    # If this logger has a handler, Elasticsearch's client formats every request and answer before checking the level.
    logging.getLogger("elastic_transport.node").propagate = False


SERVICE_NAME = "ssi"
"""Name of this service in traces if neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES has one."""
_ASKING = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables that turn on the export of spans."""


def configure_tracing(environment: Mapping[str, str] = os.environ) -> bool:
    """Send this process's spans by OTLP over HTTP, as the variables ``OTEL_*`` say; return whether they are sent.

    Nothing is sent, and no library is imported, unless one of `_ASKING` is set. A tracer provider that is already
    set (by ``opentelemetry-instrument``) stays.

    Raises
    ------
    MissingExtra
        If spans are to be sent, but the extra ``telemetry`` is not installed.
    ConfigError
        For another exporter than ``otlp`` and ``none``, or another protocol than ``http/protobuf``.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() or "otlp"
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or exporter == "none" or not any(environment.get(name) for name in _ASKING):
        return False
    if _sdk_provider() is not None:
        return True
    if exporter != "otlp":
        raise ConfigError(f"OTEL_TRACES_EXPORTER is {exporter!r}: spans are sent by 'otlp', or not at all by 'none'")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(name) or "http/protobuf"
        if protocol != "http/protobuf":
            raise ConfigError(
                f"{name} is {protocol!r}: spans are sent by 'http/protobuf'; set it to that, and the endpoint to the "
                "collector's HTTP port (4318)"
            )
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtra(error.name or "opentelemetry", "telemetry") from error
    resource = Resource.create()
    if str(resource.attributes.get("service.name")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


def finish_tracing(timeout_s: float = 2.0) -> None:
    """Send the spans that are still waiting, for at most ``timeout_s``. Does nothing if none are sent."""
    provider = _sdk_provider()
    if provider is not None:
        # The exporter repeats a failed request for longer than a service may take to stop, whatever its timeout.
        sending = threading.Thread(target=provider.force_flush, daemon=True)
        sending.start()
        sending.join(timeout_s)


def _sdk_provider() -> Any:
    """Return the tracer provider of the SDK that the process has set, or None. Imports nothing."""
    sdk, api = sys.modules.get("opentelemetry.sdk.trace"), sys.modules.get("opentelemetry.trace")
    if sdk is None or api is None:
        return None
    provider = api.get_tracer_provider()
    return provider if isinstance(provider, sdk.TracerProvider) else None
