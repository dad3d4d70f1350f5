"""What is tuned and measured where relevance is a link: rank loss on validation tuples; AP, P@10, RR on the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from papers.keeping import Values
from papers.study import Study, Trial, TrialScores
from papers.system import Fitted
from reranker.evaluation.protocols import RankingTask, TestTuples
from reranker.evaluation.ranking import evaluate

RANK_LOSS = "rank loss"
MEASURES = ("AP", "P@10", "RR")
COLUMNS = (RANK_LOSS, "AP", "P@10")
"""What the papers' tables show."""
ONE_WAY = "AP, one way"
"""Average precision of the links whose reverse was not trained on."""
_CHUNK = 10_000
_NO_TUPLES = TestTuples(*(np.empty(0, np.int64) for _ in range(3)))


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
    return _of_links(trial, fitted.scores(study, trial))


def retrieval_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return `links_measure`, and where documents are queries the AP of links whose reverse was not trained on.

    Links that are the reverse of one trained on take no part in the latter: a symmetric model has learned them, one
    that tells queries from documents has not. NaN for queries without another link.
    """
    scores = fitted.scores(study, trial)
    values = _of_links(trial, scores)
    if trial.reversed is not None:
        task = without_pairs(trial.task, trial.reversed)
        new = evaluate(task, scores, _NO_TUPLES, ("AP",))
        values[ONE_WAY] = np.where(np.diff(task.relevant().indptr) > 0, new.values["AP"], np.nan)
    return values


def without_pairs(task: RankingTask, pairs: sp.csr_matrix) -> RankingTask:
    """Return a task in which some pairs, (n_queries, n_documents) bool, are neither judged nor ranked."""
    judged = task.grades.tocoo()
    left = ~np.asarray(pairs[judged.row, judged.col]).ravel()
    # Judgements of 0 stay: no product of matrices would keep them.
    kept = sp.csr_matrix((judged.data[left], (judged.row[left], judged.col[left])), shape=judged.shape)
    excluded = sp.csr_matrix(task.excluded + pairs)
    for matrix in (kept, excluded):
        matrix.sort_indices()
    return replace(task, grades=kept, excluded=excluded)


def _of_links(trial: Trial, scores: TrialScores) -> dict[str, Values]:
    """Return the measures of a trial, one a query."""
    found = evaluate(trial.task, scores, trial.tuples, MEASURES)
    return {**found.values, RANK_LOSS: found.query_rank_losses()}
