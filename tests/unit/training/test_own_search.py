"""BM25 in the engine on the held-out queries, compared with the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine, WriteOp
from reranker.evaluation import evaluate_run, qrels_task
from reranker.models.ranking_model import RankingModel
from reranker.rerank.ranking import default_template
from reranker.training.own_search import own_search
from tests.engines.memory import memory_engine
from tests.served import TEXT_FIELDS, model_of, random_documents

TEXTS = {"q1": "word3 word11", "q2": "word7", "q3": "nothing at all"}
QRELS = {"q1": {"d1": 2.0, "d5": 1.0, "d9": 0.0}, "q2": {"d2": 1.0}, "q3": {"d3": 1.0}}


def report_of(texts: dict[str, str] | None, judged_only: bool = False) -> Any:
    """Return a report of a form that was measured in two parts, on 30 documents."""
    parts = [{name: QRELS[name] for name in names} for names in (("q1", "q2"), ("q3",))]
    tasks = tuple(qrels_task(part, list(TEXTS), list(random_documents(30))) for part in parts)
    form = SimpleNamespace(form="model", values={"model": np.array([0.5, 0.25, 0.0])}, tasks=tasks)
    side = SimpleNamespace(texts=texts, judged_only=judged_only)
    return SimpleNamespace(form=form, evidence=SimpleNamespace(train=side, valid=side))


def searched(engine: Engine, model: RankingModel, text: str) -> list[str]:
    """Return the ids that the engine finds by BM25 over the model's text fields, best first."""
    body = fill_template(default_template(model.encoder.view), text)
    return [hit.id for hit in engine.search("docs", {**body, "size": 100}).hits]


def test_the_map_is_that_of_the_engines_hits_on_the_same_queries() -> None:
    documents, engine = random_documents(30), memory_engine()
    engine.create_index("docs", {"properties": TEXT_FIELDS})
    engine.bulk("docs", [WriteOp("index", name, source) for name, source in documents.items()])
    model = model_of(documents)
    found = own_search(engine, "docs", model, report_of(TEXTS))
    run = {name: searched(engine, model, text) for name, text in TEXTS.items()}
    expected = np.mean(list(evaluate_run(QRELS, run, ("AP",))["AP"].values()))
    assert found is not None and found.n_queries == 3
    assert found.engine == pytest.approx(expected) and found.model == 0.25
    assert (
        "BM25 over the model's text fields" in found.sentence() and "0.2500, on 3 held-out queries" in found.sentence()
    )
    assert own_search(engine, "docs", model, report_of(None)) is None, "pages are no queries"


def test_only_the_documents_that_the_model_ranked_count() -> None:
    documents, engine = random_documents(40), memory_engine()
    model = model_of(documents)
    engine.create_index("docs", {"properties": TEXT_FIELDS})
    engine.bulk("docs", [WriteOp("index", name, source) for name, source in documents.items()])

    def expected(ranked: dict[str, set[str]]) -> float:
        hits = {name: searched(engine, model, text) for name, text in TEXTS.items()}
        run = {name: [found for found in hits[name] if found in ranked[name]] for name in TEXTS}
        return float(np.mean(list(evaluate_run(QRELS, run, ("AP",))["AP"].values())))

    everywhere = own_search(engine, "docs", model, report_of(TEXTS))
    assert everywhere is not None
    assert everywhere.engine == pytest.approx(expected({name: set(random_documents(30)) for name in TEXTS}))
    judged = own_search(engine, "docs", model, report_of(TEXTS, judged_only=True))
    assert judged is not None and judged.engine == pytest.approx(expected({q: set(QRELS[q]) for q in TEXTS}))
    assert judged.engine > everywhere.engine
