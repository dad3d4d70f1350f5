"""Measures of rankings and scores (ranks of mates, ROC and AUC, Kendall's tau), and tests (spec E05 to E11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation import PairedTest, ndcg_gain, paired_test

Ranks = Int64

CELLS = 1 << 24
"""Number of scores in memory at a time (64 MB)."""


class MatrixScorer(Protocol):
    """The part of a scorer that is needed here."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""


@dataclass(frozen=True, eq=False)
class MateRanks:
    """The rank of every text's mate, in both directions."""

    forward: Ranks
    """Rank, from 1, of document i for query i among all documents, (n,) int64."""
    backward: Ranks
    """Rank of query i for document i among all queries, (n,) int64."""

    @property
    def mrr(self) -> float:
        """Mean of 1 / rank of the mate, averaged over both directions (spec E05, A24)."""
        return float((np.mean(1.0 / self.forward) + np.mean(1.0 / self.backward)) / 2)


@dataclass(frozen=True, slots=True)
class UnpairedTest:
    """Unpaired t-test of two means of independent samples."""

    difference: float
    """Mean of the first sample minus mean of the second."""
    p: float
    """Two-sided p of Student's t-test with pooled variance."""
    p_corrected: float
    """p times the number of comparisons, at most 1 (Bonferroni)."""


def mate_ranks(scorer: MatrixScorer, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix, cells: int = CELLS) -> MateRanks:
    """Return the ranks of all mates; row i of both sides is a pair, and ties are ordered by row.

    Parameters
    ----------
    q_rows, d_rows : csr_matrix (n, words of the side)
    cells : int
        Number of scores in memory at a time; more pairs than its square root are scored in blocks, each twice.

    Raises
    ------
    ShapeMismatch
        If the sides have different numbers of rows, or none.
    InputError
        If a score is NaN or infinite.

    Source: spec T5, T6, E05, E06.
    """
    n = q_rows.shape[0]
    if n != d_rows.shape[0] or n == 0:
        raise ShapeMismatch(f"{n} and {d_rows.shape[0]} rows are not mates: give equal numbers of rows, at least one")
    if n * n <= cells:
        return ranks_of(scorer.score_matrix(q_rows, d_rows))
    step = max(1, cells // n)
    forward, backward = np.empty(n, np.int64), np.empty(n, np.int64)
    for start in range(0, n, step):
        block = slice(start, min(n, start + step))
        forward[block] = _ranks(_finite(scorer.score_matrix(q_rows[block], d_rows)), start)
        backward[block] = _ranks(_finite(scorer.score_matrix(q_rows, d_rows[block])).T, start)
    return MateRanks(forward, backward)


def ranks_of(scores: Float32) -> MateRanks:
    """Return the ranks of all mates from the scores of all pairs, (n, n) float32; errors as in `mate_ranks`."""
    return MateRanks(_ranks(_finite(scores), 0), _ranks(scores.T, 0))


def _finite(scores: Float32) -> Float32:
    if not np.isfinite(scores).all():
        raise InputError("a score is NaN or infinite: such scores cannot be ranked; train again with a smaller step")
    return scores


def _ranks(scores: Float32, start: int) -> Ranks:
    """Return, for row r, the rank of column start + r: 1 + the number of higher scores and of equal ones before it."""
    own = start + np.arange(len(scores))
    mates = scores[np.arange(len(scores)), own][:, None]
    before = (scores == mates) & (np.arange(scores.shape[1]) < own[:, None])
    return np.asarray(1 + (scores > mates).sum(axis=1) + before.sum(axis=1), dtype=np.int64)


def unpaired_test(first: Float64, second: Float64, n_comparisons: int = 1) -> UnpairedTest:
    """Return the unpaired t-test of two samples, (n,) and (m,) float64, corrected for ``n_comparisons`` tests.

    Raises
    ------
    InputError
        If a sample has fewer than two values or there is no comparison.

    Source: spec 4.2: T6's accuracies by the unpaired t-test with Bonferroni's correction (E11).
    """
    from scipy import stats

    if min(len(first), len(second)) < 2 or n_comparisons < 1:
        raise InputError(
            f"samples of {len(first)} and {len(second)} values in {n_comparisons} comparisons cannot be tested: "
            "give at least two values each and one comparison"
        )
    difference = float(np.mean(first) - np.mean(second))
    if np.ptp(first) == 0.0 and np.ptp(second) == 0.0:
        p = 1.0 if difference == 0.0 else 0.0  # without any spread, t is 0 or infinite
    else:
        p = float(stats.ttest_ind(first, second).pvalue)
    return UnpairedTest(difference, p, min(1.0, p * n_comparisons))


def dcg(grades: Sequence[float], k: int) -> float:
    """Return sum_{j=1..k} (2**grade_j - 1) / log2(j + 1) of the grades of one ranking, best first.

    S2Net's paired t-test of NDCG compares its values per query (with `paired_test`).

    Raises
    ------
    ConfigError
        If k is below 1.
    InputError
        If a grade is not finite.

    Source: spec 4.2, E08 and E11.
    """
    if k < 1:
        raise ConfigError(f"k is {k}: it must be at least 1")
    kept = list(grades)[:k]
    if not np.isfinite(kept).all():
        raise InputError(f"grades {kept} are not all finite: give unjudged documents the grade 0")
    gains = np.array([ndcg_gain(grade) for grade in kept])
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


Scores = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Roc:
    """A receiver operating characteristic: the rates of accepted pairs at each threshold."""

    false_positive_rate: Float64
    true_positive_rate: Float64
    """Shares of negatives, and of positives, with a score of at least the threshold, (n,), from (0, 0) to (1, 1)."""
    thresholds: Float64
    """Thresholds, (n,) float64, decreasing from infinity through every distinct score."""

    @property
    def area(self) -> float:
        """Area under the straight lines between the points; equal to `auc`."""
        heights = (self.true_positive_rate[1:] + self.true_positive_rate[:-1]) / 2
        return float((np.diff(self.false_positive_rate) * heights).sum())


def roc_curve(scores: Scores, positive: Bool) -> Roc:
    """Return the ROC of scores, (n,), of all test pairs pooled over queries; equal scores share a threshold.

    Raises
    ------
    InputError
        If positives or negatives are missing, or a score is NaN.
    ShapeMismatch
        If the number of labels is not the number of scores.

    Source: spec 4.2 (ROC over all test pairs pooled), E09.
    """
    n_positive, n_negative = _checked(scores, positive)
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    last = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(scores) - 1)
    passed = np.cumsum(positive[order])[last]
    return Roc(
        false_positive_rate=np.concatenate(([0.0], (last + 1 - passed) / n_negative)),
        true_positive_rate=np.concatenate(([0.0], passed / n_positive)),
        thresholds=np.concatenate(([np.inf], falling[last].astype(np.float64))),
    )


def auc(scores: Scores, positive: Bool) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties counted half: the area under the ROC.

    It is computed from the sum of ranks (Mann-Whitney): (R - n_pos (n_pos + 1) / 2) / (n_pos n_neg), where R is the sum
    of the positives' ranks.

    Raises
    ------
    InputError, ShapeMismatch
        As in `roc_curve`.

    Source: spec 4.2, E09.
    """
    from scipy import stats

    n_positive, n_negative = _checked(scores, positive)
    ranks = stats.rankdata(scores)
    above = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2
    return above / (n_positive * n_negative)


N_SUBSETS = 50
"""Number of subsets of the test pairs in the paired test of AUC (S2Net, note 4)."""


def disjoint_subsets(positive: Bool, n_subsets: int, rng: np.random.Generator) -> list[Int64]:
    """Return a random division of pairs into subsets, as ascending row numbers; each pair is in exactly one subset.

    ``positive``, (n,) bool, tells the relevant pairs. Relevant pairs and others are divided separately, each as evenly
    as possible, so that every subset has an AUC. If there are fewer than ``n_subsets`` pairs of a kind, there are only
    as many subsets as pairs of that kind.
    """
    kinds = [rng.permutation(np.flatnonzero(kind)).astype(np.int64) for kind in (positive, ~positive)]
    n = min(n_subsets, *(len(kind) for kind in kinds))
    return [np.sort(np.concatenate(parts)) for parts in zip(*(np.array_split(kind, n) for kind in kinds), strict=True)]


def auc_paired_test(
    first: Scores, second: Scores, positive: Bool, *, rng: np.random.Generator, n_subsets: int = N_SUBSETS
) -> PairedTest:
    """Return the paired t-test of two systems' AUC over disjoint random subsets of the test pairs.

    The subsets are those of `disjoint_subsets`, the same for both systems. The difference is the mean over subsets.

    Raises
    ------
    ConfigError
        For fewer than 2 subsets.
    InputError, ShapeMismatch
        As in `roc_curve`; also if there are fewer than 2 relevant pairs or fewer than 2 others.

    Source: S2Net, note 4 ("we randomly split the data into 50 subsets"); spec E11.
    """
    if n_subsets < 2:
        raise ConfigError(f"{n_subsets} subsets: give at least 2, because a t-test needs two values")
    n_positive, n_negative = _checked(first, positive)
    _checked(second, positive)
    if min(n_positive, n_negative) < 2:
        raise InputError(
            f"{n_positive} relevant and {n_negative} other pairs cannot be divided into 2 subsets with both: give at "
            f"least 2 of each"
        )
    subsets = disjoint_subsets(positive, n_subsets, rng)
    values = [[auc(scores[rows], positive[rows]) for rows in subsets] for scores in (first, second)]
    return paired_test(np.array(values[0]), np.array(values[1]))


def kendall_tau(first: Scores, second: Scores) -> float:
    """Return (concordant - discordant) / (n (n - 1) / 2) of two scorings of the same items; ties count as neither.

    This is tau-a by its definition; it needs memory for n**2 signs.

    Raises
    ------
    InputError
        For fewer than two items, or a score that is NaN.
    ShapeMismatch
        If the scorings differ in length.

    Source: spec 4.2, E10.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch(f"scorings of shapes {first.shape} and {second.shape}: score the same items twice")
    n = len(first)
    if n < 2 or np.isnan(first).any() or np.isnan(second).any():
        raise InputError(f"Kendall's tau needs two or more items with numbers as scores; got {n}, or NaN among them")
    one, other = (np.sign(scores[:, None] - scores) for scores in (first, second))
    return float((one * other).sum()) / (n * (n - 1))


def _checked(scores: Scores, positive: Bool) -> tuple[int, int]:
    """Return the numbers of positives and negatives after checking scores and labels."""
    if scores.shape != positive.shape or scores.ndim != 1:
        raise ShapeMismatch(f"{scores.shape} scores and {positive.shape} labels: give one label per score")
    if np.isnan(scores).any():
        raise InputError("a score is NaN and cannot be ranked; train or encode again")
    n_positive = int(positive.sum())
    if not 0 < n_positive < len(positive):
        raise InputError(
            f"{n_positive} of {len(positive)} pairs are relevant: ROC and AUC compare relevant pairs with others"
        )
    return n_positive, len(positive) - n_positive
