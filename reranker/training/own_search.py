"""The model of a training compared with BM25 in the engine: one number on the same held-out queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.baselines.comparison import HEADLINE
from reranker.engines.bodies import candidate_body, fill_template
from reranker.engines.protocol import Engine
from reranker.evaluation import RankingTask, evaluate_run
from reranker.models.ranking_model import RankingModel
from reranker.rerank.ranking import default_template
from reranker.training.train import TrainingReport

DEPTH: Final = 1000
"""Hits of the engine that are judged; documents after them count as not found."""
MAX_QUERIES: Final = 1000
"""Number of held-out queries that the engine is asked for."""


class OwnSearch(NamedTuple):
    """Mean average precision of the engine's order and of the model, on the same queries."""

    n_queries: int
    engine: float
    model: float

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        return (
            f"BM25 over the model's text fields in the engine has MAP {self.engine:.4f} (first {DEPTH:,} hits), the "
            f"model {self.model:.4f}, on {self.n_queries:,} held-out queries and the same documents"
        )


def own_search(engine: Engine, index: str, model: RankingModel, report: TrainingReport) -> OwnSearch | None:
    """Return the comparison on the queries that chose the form of the model, and on the documents ranked for them.

    The engine searches the model's text fields by BM25. None if the queries are pages, which are too long to search
    for. Raises `EngineError` if the engine does not answer or refuses the body.
    """
    valid, train, form = report.evidence.valid, report.evidence.train, report.form
    if train.texts is None or valid.texts is None:
        return None
    texts = {**train.texts, **valid.texts}
    template = default_template(model.encoder.view)
    values: list[float] = []
    for task in form.tasks:
        values += _values(
            engine, index, template, texts, task, MAX_QUERIES - len(values), judged_only=valid.judged_only
        )
    n, of_model = len(values), form.values[form.form]
    return OwnSearch(n, float(np.mean(values)), float(np.mean(of_model[:n])))


def _values(
    engine: Engine,
    index: str,
    template: Mapping[str, Any],
    texts: Mapping[str, str],
    task: RankingTask,
    n: int,
    *,
    judged_only: bool,
) -> list[float]:
    """Return the average precision of the engine's order of the task's documents, for its first ``n`` queries."""
    columns = {document: column for column, document in enumerate(task.document_ids)}
    relevant = task.relevant()
    qrels: dict[str, dict[str, float]] = {}
    run: dict[str, list[str]] = {}
    for row, name in enumerate(task.query_ids[:n]):
        qrels[name] = {task.document_ids[column]: 1.0 for column in relevant[row].indices.tolist()}
        ranked = set(task.grades[row].indices.tolist() if judged_only else columns.values())
        ranked -= set(task.excluded[row].indices.tolist())
        hits = engine.search(index, candidate_body(fill_template(template, texts[name]), DEPTH, answers=False)).hits
        run[name] = [found for found in dict.fromkeys(hit.id for hit in hits) if columns.get(found) in ranked]
    values = evaluate_run(qrels, run, (HEADLINE,))[HEADLINE] if qrels else {}
    return [values[name] for name in qrels]
