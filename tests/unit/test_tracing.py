"""Spans: their names, parents and attributes, what continues a trace, and that they never quote a query by default."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from reranker.engines import EngineSettings, open_engine
from reranker.errors import EngineError, EngineUnavailable
from reranker.rerank import RerankSettings
from reranker.service.telemetry import configure_tracing
from reranker.tracing import QUERIES_VARIABLE, traced
from tests.engines.scripted import Answer, Request, ScriptedServer, json_answer
from tests.services import client_of, service_over, small_index
from tests.unit.rerank.test_reranker import Spy

SECRET = "word3 secretword"
TRACE_ID, CALLER_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{CALLER_ID}-01"
_EXPORTER = InMemorySpanExporter()


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """Return the exporter of this process's provider, which can be set only once."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        trace.set_tracer_provider(provider)
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()


def named(exported: InMemorySpanExporter, name: str) -> ReadableSpan:
    """Return the span of this name; those of the service's own health check, which no request caused, do not count."""
    spans = exported.get_finished_spans()
    traces = {span.context.trace_id for span in spans if span.context and span.kind is SpanKind.SERVER}
    found = [span for span in spans if span.name == name and span.context]
    (span,) = [span for span in found if not traces or span.context.trace_id in traces]
    return span


def parent_of(exported: InMemorySpanExporter, span: ReadableSpan) -> str:
    """Return the name of a span's parent, "" for none of this process."""
    ids = {one.context.span_id: one.name for one in exported.get_finished_spans() if one.context}
    return "" if span.parent is None else ids.get(span.parent.span_id, "")


def everything(exported: InMemorySpanExporter) -> str:
    return " ".join(span.to_json() for span in exported.get_finished_spans())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_search_of_the_service_is_one_trace_that_continues_its_callers(
    exported: InMemorySpanExporter, tmp_path: Path
) -> None:
    patient = RerankSettings(deadline_ms=20_000.0, one_request_bytes=0)
    state = service_over(small_index(tmp_path), tmp_path, rerank=patient)
    with client_of(state) as client:
        assert client.get("/health").status_code == 200
        assert not [span for span in exported.get_finished_spans() if span.kind is SpanKind.SERVER]
        answer = client.post("/search?q=inurl", json={"query": SECRET}, headers={"traceparent": TRACEPARENT})
    assert answer.status_code == 200 and answer.json()["reranked"]
    server = named(exported, "POST /search")
    assert server.kind is SpanKind.SERVER and server.parent is not None and server.context is not None
    assert f"{server.context.trace_id:032x}" == TRACE_ID and f"{server.parent.span_id:016x}" == CALLER_ID
    noted = attributes(server)
    assert noted["http.request.method"] == "POST" and noted["http.route"] == noted["url.path"] == "/search"
    assert noted["http.response.status_code"] == 200 and noted["url.scheme"] == "http"
    search = named(exported, "search")
    assert parent_of(exported, search) == "POST /search"
    assert search.context is not None
    of_search = search.context.span_id
    stages = [one.name for one in exported.get_finished_spans() if one.parent and one.parent.span_id == of_search]
    assert stages == ["candidates", "query", "vectors", "score", "order", "page"]
    assert set(stages) == answer.json()["timings_ms"].keys()
    assert attributes(search)["ssi.reranked"] is True and attributes(search)["ssi.candidates"] > 0
    text = everything(exported)
    assert "secretword" not in text and "inurl" not in text


def test_query_texts_are_added_by_the_explicit_setting_only(
    exported: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUERIES_VARIABLE, "true")
    state = service_over(small_index(tmp_path), tmp_path)
    with client_of(state) as client:
        client.post("/search", json={"query": SECRET})
        client.post("/v1/rerank", json={"query": SECRET, "documents": ["word3", "word5"], "model": "m"})
    assert attributes(named(exported, "search"))["ssi.query"] == SECRET
    rerank = named(exported, "rerank")
    assert attributes(rerank)["ssi.query"] == SECRET and attributes(rerank)["ssi.documents"] == 2
    assert parent_of(exported, rerank) == "POST /v1/rerank"
    assert parent_of(exported, named(exported, "encode")) == "rerank"


class Quoting(Spy):
    """An engine that cannot search, and quotes the query in its error."""

    is_down = False

    def search(self, index: str, body: Any, **options: Any) -> Any:
        if self.is_down:
            raise EngineUnavailable(f"cannot parse [{SECRET}]", engine="elasticsearch", status=None)
        return super().search(index, body, **options)


def test_a_failure_is_marked_by_its_class_and_without_its_message(
    exported: InMemorySpanExporter, tmp_path: Path
) -> None:
    served = small_index(tmp_path)
    engine: Any = Quoting(served.engine)
    state = service_over(replace(served, engine=engine), tmp_path)
    with client_of(state) as client:
        engine.is_down = True
        assert client.post("/search", json={"query": SECRET}).status_code == 503
    for name in ("candidates", "search"):
        span = named(exported, name)
        assert span.status.status_code is StatusCode.ERROR and not span.status.description and not span.events
        assert attributes(span)["error.type"] == "EngineUnavailable"
    server = named(exported, "POST /search")
    assert server.status.status_code is StatusCode.ERROR and attributes(server)["error.type"] == "503"
    assert "secretword" not in everything(exported)


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_a_request_to_the_engine_is_one_client_span_which_the_engine_can_continue(
    exported: InMemorySpanExporter, kind: str
) -> None:
    heard: list[dict[str, str]] = []

    def hear(_: ScriptedServer, request: Request) -> Answer:
        heard.append({name.lower(): value for name, value in request.headers.items()})
        return json_answer(200, {"count": 3})

    with ScriptedServer(kind) as server:
        server.script("/shop/_count", hear)
        engine = open_engine(server.spec, EngineSettings())
        exported.clear()
        with traced("first stage"):
            engine.count("shop", {"match": {"title": SECRET}})
        port = int(server.spec.rpartition(":")[2].strip("/"))
        engine.close()
    (span, _) = exported.get_finished_spans()
    assert span.name == "count shop" and span.kind is SpanKind.CLIENT and span.context is not None
    assert parent_of(exported, span) == "first stage"
    noted = attributes(span)
    assert noted == {
        "db.system.name": kind,
        "db.operation.name": "count",
        "db.collection.name": "shop",
        "db.response.status_code": "200",
        "http.request.method": "POST",
        "url.full": f"http://127.0.0.1:{port}/shop/_count",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert heard[0]["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-0")


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_an_error_of_the_engine_is_its_status_without_its_reason(exported: InMemorySpanExporter, kind: str) -> None:
    def refuse(_: ScriptedServer, request: Request) -> Answer:
        reason = f"Failed to parse query [{SECRET}"
        return json_answer(400, {"error": {"type": "query_shard_exception", "reason": reason}, "status": 400})

    with ScriptedServer(kind) as server:
        server.script("/shop/_search", refuse)
        engine: Any = open_engine(server.spec, EngineSettings())
        exported.clear()
        with pytest.raises(EngineError, match="secretword"):
            engine.request("GET", "/shop/_search", None, {"q": SECRET}, 5.0)
        engine.close()
    (span,) = exported.get_finished_spans()
    assert span.name == "search shop" and span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == attributes(span)["db.response.status_code"] == "400"
    assert "secretword" not in everything(exported)


def test_a_request_without_an_answer_is_an_error(exported: InMemorySpanExporter) -> None:
    engine = open_engine("opensearch:http://127.0.0.1:9", EngineSettings())
    with pytest.raises(EngineUnavailable):
        engine.count("shop")
    spans = [span for span in exported.get_finished_spans() if span.name == "count shop"]
    assert {attributes(span)["error.type"] for span in spans} == {"EngineUnavailable"}
    engine.close()


def test_nothing_is_imported_by_a_service_that_sends_no_spans() -> None:
    """The Elasticsearch client imports the API by itself; the SDK and the exporter are ours."""
    program = (
        "import sys; from reranker.service.telemetry import configure_tracing, finish_tracing\n"
        "assert not configure_tracing({}) and not configure_tracing({'OTEL_TRACES_EXPORTER': 'none'})\n"
        "assert not configure_tracing({'OTEL_EXPORTER_OTLP_ENDPOINT': 'x', 'OTEL_SDK_DISABLED': 'true'})\n"
        "finish_tracing()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')], 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_the_library_spans_do_nothing_and_the_export_names_its_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from reranker.deadline import Deadline\n"
        "from reranker.errors import MissingExtra\n"
        "from reranker.service.telemetry import configure_tracing\n"
        "from reranker.tracing import trace_headers\n"
        "deadline = Deadline()\n"
        "with deadline.stage('score'): assert trace_headers() == {}\n"
        "assert deadline.stages_ms['score'] > 0\n"
        "try: configure_tracing({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://localhost:4318'})\n"
        "except MissingExtra as error: assert '[telemetry]' in str(error)\n"
        "else: raise AssertionError('no error')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "'zipkin'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "4318"),
    ],
)
def test_an_export_that_is_not_supported_is_refused(environment: dict[str, str], message: str) -> None:
    program = (
        "from reranker.errors import ConfigError\nfrom reranker.service.telemetry import configure_tracing\n"
        f"try: configure_tracing({environment!r})\n"
        f"except ConfigError as error: assert {message!r} in str(error)\n"
        "else: raise AssertionError('accepted')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_provider_that_the_process_has_set_stays(exported: InMemorySpanExporter) -> None:
    provider = trace.get_tracer_provider()
    assert configure_tracing({"OTEL_TRACES_EXPORTER": "console"})
    assert trace.get_tracer_provider() is provider


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Give the address of a receiver of OTLP, and the list of what it gets: path and body of each request."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.path.encode() + self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing to the log of the tests."""

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_spans_are_sent_by_otlp_when_the_standard_variable_says_where() -> None:
    program = (
        "from reranker.deadline import Deadline\n"
        "from reranker.service.telemetry import configure_tracing, finish_tracing\n"
        "assert configure_tracing()\n"
        "with Deadline().stage('vectors'): pass\n"
        "finish_tracing()\n"
    )
    with collector() as (address, bodies):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address}
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)
    (body,) = bodies
    assert body.startswith(b"/v1/traces") and b"vectors" in body and b"service.name" in body and b"ssi" in body


def test_an_unknown_method_does_not_name_a_span(exported: InMemorySpanExporter, tmp_path: Path) -> None:
    with client_of(service_over(small_index(tmp_path), tmp_path)) as client:
        client.request("WORD3", "/search")
    (server,) = [span for span in exported.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert attributes(server)["http.request.method"] == "_OTHER" and "WORD3" not in server.to_json()


def test_a_stage_that_fails_is_timed_too(exported: InMemorySpanExporter) -> None:
    from reranker.deadline import Deadline

    deadline = Deadline()
    with pytest.raises(ZeroDivisionError), deadline.stage("score"):
        json.dumps(1 / 0)
    assert deadline.stages_ms["score"] > 0 and attributes(named(exported, "score"))["error.type"] == "ZeroDivisionError"


def test_without_a_provider_no_span_is_started(exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced("seen"):
        pass
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    with traced("unseen") as span:
        span.note({"ssi.index": "docs"})
        span.fail("EngineUnavailable")
    assert [one.name for one in exported.get_finished_spans()] == ["seen"]
