"""What is tuned and measured where relevance is a link: rank loss on validation tuples; AP, P@10, RR on the test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reranker.evaluation.ranking import evaluate
from reranker.systems.keeping import Values
from reranker.systems.study import Study, Trial
from reranker.systems.system import Fitted

RANK_LOSS = "rank loss"
MEASURES = ("AP", "P@10", "RR")
COLUMNS = (RANK_LOSS, "AP", "P@10")
"""What the papers' tables show."""
_CHUNK = 10_000


def links_loss(study: Study, trial: Trial, fitted: Fitted) -> float:
    """Return the share of a trial's tuples in the wrong order, ties counted half; infinite if a score is NaN.

    Source: spec E01, A05 (tuned on validation).
    """
    queries = trial.queries.view(fitted.query_view)
    documents = study.documents.view(fitted.document_view)[trial.pool]
    tuples = trial.tuples
    wrong = 0.0
    for start in range(0, len(tuples.query), _CHUNK):
        span = slice(start, start + _CHUNK)
        q_rows = queries[tuples.query[span]]
        better = fitted.scorer.score_pairs(q_rows, documents[tuples.positive[span]])
        worse = fitted.scorer.score_pairs(q_rows, documents[tuples.negative[span]])
        if np.isnan(better).any() or np.isnan(worse).any():
            return float("inf")
        wrong += float((better < worse).sum()) + 0.5 * float((better == worse).sum())
    return wrong / max(len(tuples.query), 1)


def links_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return AP, P@10 and RR of each query, and its rank loss in per cent (NaN where no tuple was drawn).

    The mean over queries of the rank loss is that of `SystemScores.rank_loss` up to the chance by which one query has
    more tuples than another.

    Source: spec E01 to E05.
    """
    scores = evaluate(trial.task, fitted.scores(study, trial), trial.tuples, MEASURES)
    return {**scores.values, RANK_LOSS: scores.query_rank_losses()}
