"""What is tuned and measured where documents are graded: NDCG within a query, AUC of all pairs pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from papers.curves import auc
from papers.graded import dcg
from papers.study import Study, Trial, TrialScores
from papers.system import Fitted
from reranker.evaluation.protocols import RankingTask, TestTuples
from reranker.evaluation.ranking import evaluate
from reranker.models.base import Scores

Values = npt.NDArray[np.float64]

CUTS = (1, 3, 5, 10)
NDCG = tuple(f"nDCG@{k}" for k in CUTS)
WTA = "WTA"
AUC = "AUC"
RANK_LOSS = "rank loss"
PAIR_SCORE, PAIR_GRADE = "pair score", "pair grade"
MEASURES = (*NDCG, WTA, "AP")
DCG = "DCG@5"
"""What the paired test of NDCG compares (spec E11)."""

_NONE = TestTuples(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def ranking_loss(study: Study, trial: Trial, fitted: Fitted) -> float:
    """Return 1 - mean nDCG@10 of a trial's queries; infinite if a score is not finite.

    Source: spec E08 (T7b).
    """
    scores = _Passed(fitted.scores(study, trial))
    if not scores.finite():
        return float("inf")
    return 1.0 - evaluate(trial.task, scores, _NONE, ("nDCG@10",)).mean("nDCG@10")


def filter_loss(study: Study, trial: Trial, fitted: Fitted) -> float:
    """Return 1 - AUC of a trial's judged pairs, pooled over queries; infinite if a score is not finite.

    Source: spec E09 (T7a).
    """
    scores = _Passed(fitted.scores(study, trial))
    if not scores.finite():
        return float("inf")
    return 1.0 - auc(scores.judged(trial.task), trial.task.grades.data >= trial.task.relevant_from)


def graded_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return the measures of graded rankings.

    A value a query: nDCG@1, 3, 5 and 10, DCG@5, WTA, AP, rank loss in per cent. A value a judged pair: its score and
    its grade, in the order of the task's judgements. One value: AUC of those pairs, pooled over queries, where some
    are relevant and some are not.

    Source: spec E02, E07, E08, E09.
    """
    scores = _Passed(fitted.scores(study, trial))
    found = evaluate(trial.task, scores, trial.tuples, (*NDCG, "P@1", "AP"))
    values = {name: found.values["P@1" if name == WTA else name] for name in MEASURES}
    values[DCG] = values["nDCG@5"] * ideal_dcg(trial.task, 5)
    values[RANK_LOSS] = found.query_rank_losses()
    pairs, grades = scores.judged(trial.task).astype(np.float64), trial.task.grades.data.astype(np.float64)
    positive = grades >= trial.task.relevant_from
    if positive.any() and not positive.all():
        values |= {PAIR_SCORE: pairs, PAIR_GRADE: grades, AUC: np.array([auc(pairs, positive)])}
    return values


def ideal_dcg(task: RankingTask, k: int) -> Values:
    """Return the DCG@k of each query's best possible order, (n_queries,)."""
    rows = np.split(task.grades.data, task.grades.indptr[1:-1])
    return np.array([dcg(np.sort(row)[::-1].tolist(), k) for row in rows])


@dataclass(frozen=True, eq=False)
class _Passed:
    """Scores of a trial made once: whole for the ranking, and those of the judged pairs."""

    source: TrialScores
    _made: list[Scores] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and number of documents."""
        return self.source.shape

    def block(self, start: int, stop: int) -> Scores:
        """Return a copy of the scores of queries ``start`` to ``stop - 1``."""
        return self._all()[start:stop].copy()

    def finite(self) -> bool:
        """Return whether all scores can be ordered."""
        return bool(np.isfinite(self._all()).all())

    def judged(self, task: RankingTask) -> Scores:
        """Return the score of each judged pair, in the order of the task's grades."""
        rows = np.repeat(np.arange(task.grades.shape[0]), np.diff(task.grades.indptr))
        scores: Scores = self._all()[rows, task.grades.indices]
        return scores

    def _all(self) -> Scores:
        if not self._made:
            self._made.append(self.source.block(0, self.shape[0]))
        return self._made[0]
