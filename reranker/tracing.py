"""Spans of OpenTelemetry. Without the library `opentelemetry`, or without a tracer provider, they do nothing.

Spans go to the tracer provider of the process, which an application sets, or `ssi serve` by the variables ``OTEL_*``
(`reranker.service.telemetry.configure_tracing`). Names and attributes follow the semantic conventions of OpenTelemetry
where these have one; own attributes start with ``ssi.``. Of an error, only its class is recorded, because its message
could quote a query.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Literal

QUERIES_VARIABLE = "SSI_TRACE_QUERIES"
"""Environment variable: ``true`` adds query texts to spans."""
TRACE_HEADERS = ("traceparent", "tracestate")
"""HTTP headers of the W3C recommendation Trace Context."""

SpanKind = Literal["internal", "server", "client"]
Attributes = Mapping[str, str | bool | int | float]


@cache
def _api() -> Any:
    """Return the module `opentelemetry.trace`, or None if it is not installed. It is imported by the first span."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace


@cache
def _tracer() -> Any:
    """Return the tracer of this project; the library must be installed."""
    return _api().get_tracer("reranker")


def is_traced() -> bool:
    """Return whether this process has a tracer provider. Without one, a span costs about 20 µs and goes nowhere."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


class Span:
    """A running span; every method does nothing if there is no tracer."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def note(self, attributes: Attributes) -> None:
        """Set attributes."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def note_query(self, query: str) -> None:
        """Set ``ssi.query`` to a query text if `QUERIES_VARIABLE` allows it."""
        if self._span is not None and os.environ.get(QUERIES_VARIABLE, "").lower() == "true":
            self._span.set_attribute("ssi.query", query)

    def rename(self, name: str) -> None:
        """Replace the name."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, error_type: str) -> None:
        """Mark the operation as failed; ``error_type`` is an error's class or a status, never a message."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", error_type)
            self._span.set_status(StatusCode.ERROR)


_UNTRACED = nullcontext(Span())


def traced(
    name: str,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = "internal",
    caller: Mapping[str, str] | None = None,
) -> AbstractContextManager[Span]:
    """Run the block in a span, which is the parent of the spans started in it.

    Parameters
    ----------
    name : str
        Name of the operation, one of a few.
    attributes : mapping, optional
        Attributes known at the start, which a sampler can use.
    kind : str
        Role in a trace: a request that this process answers (``server``), one that it sends (``client``), or neither.
    caller : mapping of str to str, optional
        `TRACE_HEADERS` of a request: its trace is continued. None: the current span is the parent.
    """
    return _in_span(name, attributes, kind, caller) if is_traced() else _UNTRACED


@contextmanager
def _in_span(
    name: str, attributes: Attributes | None, kind: SpanKind, caller: Mapping[str, str] | None
) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind as Kind

    context = None if caller is None else _propagator().extract(caller)
    with _tracer().start_as_current_span(
        name,
        context,
        Kind[kind.upper()],
        attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        span = Span(started)
        try:
            yield span
        except Exception as error:
            span.fail(type(error).__name__)
            raise


def trace_headers() -> dict[str, str]:
    """Return the `TRACE_HEADERS` by which a request continues the current trace; none without a trace."""
    headers: dict[str, str] = {}
    if _api() is not None:
        _propagator().inject(headers)
    return headers


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
