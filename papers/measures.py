"""Losses to tune by and measures to report, for links, mates and graded judgments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from papers.methods.rows import InnerProduct, ProductScorer
from papers.rank_measures import CELLS, MateRanks, Ranks, auc, dcg, kendall_tau, mate_ranks, ranks_of
from papers.registry import Fitted
from papers.study import Study, StudyTrial, TrialScores
from reranker.arrays import Float32, Float64
from reranker.evaluation import RankingTask, TestTuples, evaluate
from reranker.models.scorers import Scorer
from reranker.text.rows import row_of

RANK_LOSS = "rank loss"
MEASURES = ("AP", "P@10", "RR")
COLUMNS = (RANK_LOSS, "AP", "P@10")
"""Columns of the papers' tables."""
ONE_WAY = "AP, one way"
"""Average precision on the links whose reverse was not trained on."""
_CHUNK = 10_000
_NO_TUPLES = TestTuples(*(np.empty(0, np.int64) for _ in range(3)))


def links_loss(study: Study, trial: StudyTrial, fitted: Fitted) -> float:
    """Return the share of a trial's tuples in the wrong order, with ties counted half; infinite if a score is NaN.

    Source: spec E01, A05 (tuned on validation).
    """
    queries = trial.queries.view(fitted.query_view)
    documents = study.documents.view(fitted.document_view)[trial.pool]
    scorer: Scorer = fitted.scorer
    if isinstance(scorer, ProductScorer):
        # Weigh each text once. A tuple repeats texts: 100,000 tuples have 27 times as many documents as cppdocs.
        queries, documents = scorer.sides(queries, documents)
        scorer = InnerProduct()
    tuples = trial.tuples
    wrong = 0.0
    for start in range(0, len(tuples.query), _CHUNK):
        span = slice(start, start + _CHUNK)
        q_rows = queries[tuples.query[span]]
        better = scorer.score_pairs(q_rows, documents[tuples.positive[span]])
        worse = scorer.score_pairs(q_rows, documents[tuples.negative[span]])
        if np.isnan(better).any() or np.isnan(worse).any():
            return float("inf")
        wrong += float((better < worse).sum()) + 0.5 * float((better == worse).sum())
    return wrong / max(len(tuples.query), 1)


def links_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return AP, P@10 and RR of each query, and its rank loss in per cent (NaN if no tuple was drawn for it).

    The mean of the rank loss over queries equals `SystemScores.rank_loss`, except for chance differences in the number
    of tuples per query.

    Source: spec E01 to E05.
    """
    return _of_links(trial, fitted.scores(study, trial))


def retrieval_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return `links_measure` and, if documents are queries, the AP on links whose reverse was not trained on.

    The reversed links are excluded from the latter: a symmetric model has learned them; a model that distinguishes
    queries from documents has not. Queries without another link have NaN.
    """
    scores = fitted.scores(study, trial)
    values = _of_links(trial, scores)
    if trial.reversed is not None:
        task = without_pairs(trial.task, trial.reversed)
        new = evaluate(task, scores, _NO_TUPLES, ("AP",))
        values[ONE_WAY] = np.where(np.diff(task.relevant().indptr) > 0, new.values["AP"], np.nan)
    return values


def without_pairs(task: RankingTask, pairs: sp.csr_matrix) -> RankingTask:
    """Return the task without the given pairs, (n_queries, n_documents) bool: they are neither judged nor ranked."""
    judged = task.grades.tocoo()
    left = ~np.asarray(pairs[judged.row, judged.col]).ravel()
    # Judgments of 0 must stay, and products of sparse matrices would drop them.
    kept = sp.csr_matrix((judged.data[left], (judged.row[left], judged.col[left])), shape=judged.shape)
    excluded = sp.csr_matrix(task.excluded + pairs)
    for matrix in (kept, excluded):
        matrix.sort_indices()
    return replace(task, grades=kept, excluded=excluded)


def _of_links(trial: StudyTrial, scores: TrialScores) -> dict[str, Float64]:
    """Return the measures of a trial, one value per query."""
    found = evaluate(trial.task, scores, trial.tuples, MEASURES)
    return {**found.values, RANK_LOSS: found.query_rank_losses()}


TOP, RECIPROCAL = "top-1", "MRR"
FORWARD, BACKWARD = " forward", " backward"
BOTH_WAYS = (TOP, RECIPROCAL)
"""Columns of T6: the mean over both directions."""
ONE_DIRECTION = (RANK_LOSS, RECIPROCAL, TOP)
"""Columns of T5."""


def mates_loss(study: Study, trial: StudyTrial, fitted: Fitted) -> float:
    """Return 1 - MRR of a trial whose row i and column i are mates; the mean over both directions."""
    return 1.0 - _ranks(study, trial, fitted).mrr


def mates_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return top-1 accuracy and reciprocal rank of each pair: the mean over both directions, and each direction.

    Source: spec T6, E05, E06.
    """
    ranks = _ranks(study, trial, fitted)
    values: dict[str, Float64] = {}
    for name in BOTH_WAYS:
        forward, backward = (_values(name, of) for of in (ranks.forward, ranks.backward))
        values[name] = (forward + backward) / 2
        values[name + FORWARD], values[name + BACKWARD] = forward, backward
    return values


def one_way_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return, for each query, rank loss in per cent, reciprocal rank, and whether the mate is first.

    Source: spec T5, E01.
    """
    scores = evaluate(trial.task, fitted.scores(study, trial), trial.tuples, ("RR", "P@1"), depth=len(trial.pool))
    losses = scores.query_rank_losses()
    return {RANK_LOSS: losses, RECIPROCAL: scores.values["RR"], TOP: scores.values["P@1"]}


def valid_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return `mates_measure` of the validation trial (T12: figure 2 shows the development set)."""
    return mates_measure(study, study.valid, fitted)


def hits(values: Mapping[str, Float64]) -> Float64:
    """Return 1 where the mate is first, forward then backward: the values of the paper's unpaired test."""
    return np.concatenate([values[TOP + FORWARD], values[TOP + BACKWARD]])


def _ranks(study: Study, trial: StudyTrial, fitted: Fitted) -> MateRanks:
    """Return the ranks of all mates; both directions share one matrix if it fits into memory."""
    scores = fitted.scores(study, trial)
    n = len(trial.queries)
    if n * n <= CELLS:
        return ranks_of(scores.block(0, n))
    return mate_ranks(scores.scorer, scores.queries, scores.documents)


def _values(name: str, ranks: Ranks) -> Float64:
    """Return whether each rank is 1, or its reciprocal."""
    return np.asarray(ranks == 1 if name == TOP else 1.0 / ranks, dtype=np.float64)


NDCG = tuple(f"nDCG@{k}" for k in (1, 3, 5, 10))
WTA = "WTA"
AUC = "AUC"
TAU = "Kendall's tau"
PAIR_SCORE, PAIR_GRADE = "pair score", "pair grade"
GRADED_MEASURES = (*NDCG, WTA, "AP")
DCG = "DCG@5"
"""Measure of the paired test of NDCG (spec E11)."""


def ranking_loss(study: Study, trial: StudyTrial, fitted: Fitted) -> float:
    """Return 1 - mean nDCG@10 of a trial's queries; infinite if a score is not finite.

    Source: spec E08 (T7b).
    """
    made = _made(study, trial, fitted)
    if not np.isfinite(made.scores).all():
        return float("inf")
    return 1.0 - evaluate(trial.task, made, _NO_TUPLES, ("nDCG@10",)).mean("nDCG@10")


def filter_loss(study: Study, trial: StudyTrial, fitted: Fitted) -> float:
    """Return 1 - AUC of a trial's judged pairs, pooled over queries; infinite if a score is not finite.

    Source: spec E09 (T7a).
    """
    made = _made(study, trial, fitted)
    if not np.isfinite(made.scores).all():
        return float("inf")
    return 1.0 - auc(made.judged(trial.task), trial.task.grades.data >= trial.task.relevant_from)


def graded_measure(study: Study, trial: StudyTrial, fitted: Fitted) -> Mapping[str, Float64]:
    """Return the measures of graded rankings.

    One value per query: nDCG@1, 3, 5 and 10, DCG@5, WTA, AP, Kendall's tau of scores and grades, and rank loss in per
    cent. One value per judged pair: its score and its grade, in the order of the task's judgments. One value in total:
    the AUC of those pairs, pooled over queries, if some are relevant and some are not.

    Source: spec E02, E07, E08, E09, E10.
    """
    made = _made(study, trial, fitted)
    found = evaluate(trial.task, made, trial.tuples, (*NDCG, "P@1", "AP"))
    values = {name: found.values["P@1" if name == WTA else name] for name in GRADED_MEASURES}
    values[DCG] = values["nDCG@5"] * ideal_dcg(trial.task, 5)
    values[RANK_LOSS] = found.query_rank_losses()
    pairs, grades = made.judged(trial.task).astype(np.float64), trial.task.grades.data.astype(np.float64)
    values[TAU] = grade_agreement(trial.task, pairs)
    positive = grades >= trial.task.relevant_from
    if positive.any() and not positive.all():
        values |= {PAIR_SCORE: pairs, PAIR_GRADE: grades, AUC: np.array([auc(pairs, positive)])}
    return values


def grade_agreement(task: RankingTask, pairs: Float64) -> Float64:
    """Return Kendall's tau of the scores and the grades of each query's judged documents, (n_queries,) float64.

    ``pairs`` are the scores in the order of the task's grades. Documents of equal grades or equal scores count as
    neither concordant nor discordant, so a perfect ranking of tied grades has a tau below 1. A query whose grades are
    all equal has no order to agree with: NaN.

    Source: spec E10.
    """
    rows = zip(
        np.split(pairs, task.grades.indptr[1:-1]), np.split(task.grades.data, task.grades.indptr[1:-1]), strict=True
    )
    return np.array([kendall_tau(scores, grades) if len(np.unique(grades)) > 1 else np.nan for scores, grades in rows])


def ideal_dcg(task: RankingTask, k: int) -> Float64:
    """Return the DCG@k of each query's ideal ranking, (n_queries,)."""
    rows = np.split(task.grades.data, task.grades.indptr[1:-1])
    return np.array([dcg(np.sort(row)[::-1].tolist(), k) for row in rows])


@dataclass(frozen=True, eq=False)
class _Made:
    """Scores of a trial, computed once: for the ranking, and of the judged pairs."""

    scores: Float32

    @property
    def shape(self) -> tuple[int, int]:
        """(number of queries, number of documents)."""
        return len(self.scores), self.scores.shape[1]

    def block(self, start: int, stop: int) -> Float32:
        """Return a copy of the scores of queries ``start`` to ``stop - 1``."""
        return self.scores[start:stop].copy()

    def judged(self, task: RankingTask) -> Float32:
        """Return the score of each judged pair, in the order of the task's grades."""
        return self.scores[row_of(task.grades), task.grades.indices]


def _made(study: Study, trial: StudyTrial, fitted: Fitted) -> _Made:
    return _Made(fitted.scores(study, trial).block(0, len(trial.queries)))
