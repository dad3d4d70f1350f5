"""The engine's own order of the held-out queries, measured beside the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reranker.baselines.comparison import MODEL
from reranker.engines.protocol import WriteOp
from reranker.evaluation import evaluate_run, qrels_task
from reranker.training.own_search import own_search
from tests.engines.memory import memory_engine
from tests.served import TEXT_FIELDS, model_of, random_documents

TEXTS = {"q1": "word3 word11", "q2": "word7", "q3": "nothing at all"}
QRELS = {"q1": {"d1": 2.0, "d5": 1.0, "d9": 0.0}, "q2": {"d2": 1.0}, "q3": {"d3": 1.0}}
BODY = {"query": {"match": {"text": "{{query}}"}}, "size": 1, "from": 3, "aggs": {"x": {"terms": {"field": "tag"}}}}


def report_of(texts: dict[str, str] | None) -> Any:
    task = qrels_task(QRELS, list(TEXTS), list(random_documents(30)))
    systems = {MODEL: SimpleNamespace(values={"AP": np.array([0.5, 0.25, 0.0])})}
    evidence = SimpleNamespace(valid=SimpleNamespace(texts=texts))
    return SimpleNamespace(comparison=SimpleNamespace(task=task, systems=systems), evidence=evidence)


def test_the_map_is_that_of_the_engines_hits_on_the_same_queries() -> None:
    documents, engine = random_documents(30), memory_engine()
    engine.create_index("docs", {"properties": TEXT_FIELDS})
    engine.bulk("docs", [WriteOp("index", name, source) for name, source in documents.items()])
    model = model_of(documents)
    found = own_search(engine, "docs", BODY, model, report_of(TEXTS))
    run = {
        name: [hit.id for hit in engine.search("docs", {"query": {"match": {"text": text}}, "size": 30}).hits]
        for name, text in TEXTS.items()
    }
    expected = np.mean(list(evaluate_run(QRELS, run, ("AP",))["AP"].values()))
    assert found is not None and found.n_queries == 3 and not found.by_default
    assert found.engine == pytest.approx(expected) and found.model == 0.25
    assert "your search body" in found.sentence() and "0.2500, on 3 held-out queries" in found.sentence()
    default = own_search(engine, "docs", None, model, report_of(TEXTS))
    assert default is not None and default.by_default and default.engine != found.engine
    assert own_search(engine, "docs", BODY, model, report_of(None)) is None, "pages are no queries"
    without = report_of(TEXTS)
    without.comparison = None
    assert own_search(engine, "docs", BODY, model, without) is None
