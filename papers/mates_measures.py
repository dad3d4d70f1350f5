"""What is tuned and measured where a text's mate is looked for: its rank among all candidates, one way or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.keeping import Values
from papers.links import RANK_LOSS
from papers.mates import CELLS, MateRanks, Ranks, mate_ranks
from papers.study import Study, Trial
from papers.system import Fitted
from reranker.evaluation.ranking import evaluate
from reranker.models.base import Scores

TOP, RECIPROCAL = "top-1", "MRR"
FORWARD, BACKWARD = " forward", " backward"
BOTH_WAYS = (TOP, RECIPROCAL)
"""Columns of T6: the mean of both directions."""
ONE_WAY = (RANK_LOSS, RECIPROCAL, TOP)
"""Columns of T5."""


def mates_loss(study: Study, trial: Trial, fitted: Fitted) -> float:
    """Return 1 - MRR of a trial whose row i and column i are mates, the mean of both directions."""
    return 1.0 - _ranks(study, trial, fitted).mrr


def mates_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return whether the mate came first and the reciprocal of its rank: by pair the mean of both directions, and each.

    Source: spec T6, E05, E06.
    """
    ranks = _ranks(study, trial, fitted)
    values: dict[str, Values] = {}
    for name in BOTH_WAYS:
        forward, backward = (_values(name, of) for of in (ranks.forward, ranks.backward))
        values[name] = (forward + backward) / 2
        values[name + FORWARD], values[name + BACKWARD] = forward, backward
    return values


def one_way_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return rank loss in per cent, reciprocal rank and whether the mate came first, of each query.

    Source: spec T5, E01.
    """
    scores = evaluate(trial.task, fitted.scores(study, trial), trial.tuples, ("RR", "P@1"), depth=len(trial.pool))
    losses = scores.query_rank_losses()
    return {RANK_LOSS: losses, RECIPROCAL: scores.values["RR"], TOP: scores.values["P@1"]}


def valid_measure(study: Study, trial: Trial, fitted: Fitted) -> Mapping[str, Values]:
    """Return what `mates_measure` does, of the validation trial instead (T12: figure 2 is of the development set)."""
    return mates_measure(study, study.valid, fitted)


def hits(values: Mapping[str, Values]) -> Values:
    """Return 1 where the mate came first, forward then backward: what the paper's unpaired test compares."""
    return np.concatenate([values[TOP + FORWARD], values[TOP + BACKWARD]])


@dataclass(frozen=True, eq=False)
class _Known:
    """Scores that are there already."""

    scores: Scores

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return them."""
        return self.scores


def _ranks(study: Study, trial: Trial, fitted: Fitted) -> MateRanks:
    """Return the ranks of all mates; both directions from one matrix where it fits into memory."""
    scores = fitted.scores(study, trial)
    n = len(trial.queries)
    whole = n * n <= CELLS
    scorer = _Known(scores.block(0, n)) if whole else scores.scorer
    return mate_ranks(scorer, scores.queries, scores.documents)


def _values(name: str, ranks: Ranks) -> Values:
    """Return whether each rank is the first, or its reciprocal."""
    return np.asarray(ranks == 1 if name == TOP else 1.0 / ranks, dtype=np.float64)
