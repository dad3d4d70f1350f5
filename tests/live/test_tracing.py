"""A search of a real engine through the official clients is one trace, with a client span for each request."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from reranker.engines import open_engine
from reranker.rerank import Reranker, RerankSettings
from tests.served import model_of, random_documents, serve
from tests.unit.test_tracing import attributes, exported

__all__ = ["exported"]


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_requests_of_a_search_are_below_their_stages(
    kind: str, exported: InMemorySpanExporter, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    documents, index = random_documents(40), f"traced-{uuid.uuid4().hex[:10]}"
    engine = open_engine(f"{kind}:{request.getfixturevalue(f'{kind}_url')}")
    model = model_of(documents)
    serve(engine, index, tmp_path / "store", documents, model)
    settings = RerankSettings(deadline_ms=20_000.0, one_request_bytes=0)
    reranker = Reranker(engine, index, model, settings=settings)
    reranker.search("word3 word5")
    exported.clear()
    page: Any = reranker.search("word3 word5")
    spans = exported.get_finished_spans()
    engine.delete_index(index)
    engine.close()
    assert page.reranked and len({span.context.trace_id for span in spans if span.context}) == 1
    requests = [span for span in spans if span.kind is SpanKind.CLIENT]
    name_of = {span.context.span_id: span.name for span in spans if span.context}
    below = [(span.name, name_of[span.parent.span_id]) for span in requests if span.parent]
    assert below == [(f"search {index}", "candidates"), (f"search {index}", "page")]
    for span in requests:
        noted = attributes(span)
        assert (noted["db.system.name"], noted["db.response.status_code"]) == (kind, "200")
        assert "word3" not in span.to_json()
