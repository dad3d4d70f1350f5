"""The model of a training compared with the search that a team has: one number on the same held-out queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.baselines.comparison import HEADLINE, MODEL
from reranker.engines.bodies import candidate_body, fill_template
from reranker.engines.protocol import Engine
from reranker.evaluation import evaluate_run
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
    by_default: bool
    """Whether the body is the default one, because no search body was given."""

    def sentence(self) -> str:
        """Return the comparison in one sentence."""
        whose = "BM25 over the model's text fields" if self.by_default else "your search body"
        return (
            f"{whose} in the engine has MAP {self.engine:.4f} (first {DEPTH:,} hits), the model over all documents "
            f"{self.model:.4f}, on {self.n_queries:,} held-out queries"
        )


def own_search(
    engine: Engine, index: str, body: Mapping[str, Any] | None, model: RankingModel, report: TrainingReport
) -> OwnSearch | None:
    """Return the comparison on the queries of the report's own comparison.

    None if the report has none, or if its queries are pages, which are too long to search for. Raises `EngineError` if
    the engine does not answer or refuses the body.
    """
    comparison, texts = report.comparison, report.evidence.valid.texts
    if comparison is None or texts is None:
        return None
    names = comparison.task.query_ids[:MAX_QUERIES]
    template = default_template(model.encoder.view) if body is None else body
    relevant, left_out = comparison.task.relevant(), comparison.task.excluded

    def documents(pairs: sp.csr_matrix, row: int) -> set[str]:
        places = pairs.indices[pairs.indptr[row] : pairs.indptr[row + 1]].tolist()
        return {comparison.task.document_ids[place] for place in places}

    qrels: dict[str, dict[str, float]] = {}
    run: dict[str, list[str]] = {}
    for row, name in enumerate(names):
        qrels[name] = dict.fromkeys(documents(relevant, row), 1.0)
        request = candidate_body(fill_template(template, texts[name]), DEPTH, answers=False)
        not_ranked = documents(left_out, row)
        hits = engine.search(index, request).hits
        run[name] = [found for found in dict.fromkeys(hit.id for hit in hits) if found not in not_ranked]
    values = evaluate_run(qrels, run, (HEADLINE,))[HEADLINE]
    of_model = comparison.systems[MODEL].values[HEADLINE][: len(names)]
    of_engine = float(np.mean([values[name] for name in names]))
    return OwnSearch(len(names), of_engine, float(np.mean(of_model)), by_default=body is None)
