"""Finding the mate of a text among all texts of the other side: top-1 accuracy and MRR in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch

Ranks = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

CELLS = 1 << 24
"""Scores held at a time (64 MB)."""


class MatrixScorer(Protocol):
    """The part of a scorer that is needed here."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return f of every query with every document, (n_queries, n_documents) float32."""


@dataclass(frozen=True, eq=False)
class MateRanks:
    """The rank of every text's mate, from both sides.

    Parameters
    ----------
    forward : (n,) int64
        Rank, from 1, of document i for query i among all documents.
    backward : (n,) int64
        Rank of query i for document i among all queries.
    """

    forward: Ranks
    backward: Ranks

    @property
    def accuracy(self) -> float:
        """Share of texts whose best candidate is their mate, the mean of both directions (spec E06, T6)."""
        return float((np.mean(self.forward == 1) + np.mean(self.backward == 1)) / 2)

    @property
    def mrr(self) -> float:
        """Mean of 1 / rank of the mate, the mean of both directions (spec E05, A24)."""
        return float((np.mean(1.0 / self.forward) + np.mean(1.0 / self.backward)) / 2)

    @property
    def hits(self) -> npt.NDArray[np.float64]:
        """1 where the mate came first, else 0, forward then backward, (2n,): what a test of accuracy compares."""
        return np.concatenate((self.forward == 1, self.backward == 1)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class UnpairedTest:
    """The difference of two means of independent samples.

    Parameters
    ----------
    difference : float
        Mean of first minus mean of second.
    p : float
        Two-sided p of Student's t-test with pooled variance.
    p_corrected : float
        p times the number of comparisons, at most 1 (Bonferroni).
    """

    difference: float
    p: float
    p_corrected: float


def mate_ranks(scorer: MatrixScorer, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, cells: int = CELLS) -> MateRanks:
    """Return the ranks of all mates, row i of both sides being a pair; equal scores are ordered by row.

    Parameters
    ----------
    scorer : MatrixScorer
    q_rows, d_rows : csr_matrix (n, words of the side)
    cells : int
        Scores held at a time; more pairs than its root are scored in blocks, each twice.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows, or none.
    InputError
        If a score is NaN or infinite.

    Source
    ------
    spec T5, T6, E05, E06.
    """
    n = q_rows.shape[0]
    if n != d_rows.shape[0] or n == 0:
        raise ShapeMismatch(f"{n} and {d_rows.shape[0]} rows are not mates; give one or more, row i of both a pair")
    if n * n <= cells:
        scores = _finite(scorer.score_matrix(q_rows, d_rows))
        return MateRanks(_ranks(scores, 0), _ranks(scores.T, 0))
    step = max(1, cells // n)
    forward, backward = np.empty(n, np.int64), np.empty(n, np.int64)
    for start in range(0, n, step):
        block = slice(start, min(n, start + step))
        forward[block] = _ranks(_finite(scorer.score_matrix(q_rows[block], d_rows)), start)
        backward[block] = _ranks(_finite(scorer.score_matrix(q_rows, d_rows[block])).T, start)
    return MateRanks(forward, backward)


def _finite(scores: Floats) -> Floats:
    if not np.isfinite(scores).all():
        raise InputError("a score is NaN or infinite: such scores cannot be ranked; train again with a smaller step")
    return scores


def _ranks(scores: Floats, start: int) -> Ranks:
    """Return the rank of column start + r in each row r: 1 + those above it + those equal to it and before it."""
    own = start + np.arange(len(scores))
    mates = scores[np.arange(len(scores)), own][:, None]
    before = (scores == mates) & (np.arange(scores.shape[1]) < own[:, None])
    return np.asarray(1 + (scores > mates).sum(axis=1) + before.sum(axis=1), dtype=np.int64)


def unpaired_test(
    first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], n_comparisons: int = 1
) -> UnpairedTest:
    """Return the unpaired t-test of two samples, corrected for several comparisons.

    Parameters
    ----------
    first, second : (n,), (m,) float64
        For example `MateRanks.hits` of two systems.
    n_comparisons : int
        Pairs of systems that are compared.

    Raises
    ------
    InputError
        If a sample has fewer than two values or there is no comparison.

    Source
    ------
    spec 4.2: T6's accuracies by the unpaired t-test with Bonferroni's correction (E11).
    """
    from scipy import stats

    if min(len(first), len(second)) < 2 or n_comparisons < 1:
        raise InputError(
            f"samples of {len(first)} and {len(second)} values in {n_comparisons} comparisons cannot be tested; "
            "two values each and one comparison are the least"
        )
    difference = float(np.mean(first) - np.mean(second))
    if np.ptp(first) == 0.0 and np.ptp(second) == 0.0:
        p = 1.0 if difference == 0.0 else 0.0  # no spread at all: t is 0 or infinite
    else:
        p = float(stats.ttest_ind(first, second).pvalue)
    return UnpairedTest(difference, p, min(1.0, p * n_comparisons))
