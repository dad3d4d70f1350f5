"""ROC and AUC of pooled pairs, Kendall's tau of two orders, and the tests that go with them (spec E09, E10, E11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.evaluation.measures import PairedTest, paired_test

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Roc:
    """A receiver operating characteristic: what a filter lets through at each threshold.

    Parameters
    ----------
    false_positive_rate, true_positive_rate : (n,) float64
        Share of the negatives, and of the positives, with a score of at least the threshold; from (0, 0) to (1, 1).
    thresholds : (n,) float64
        Falling, from infinity through every distinct score.
    """

    false_positive_rate: Values
    true_positive_rate: Values
    thresholds: Values

    @property
    def area(self) -> float:
        """Area under the straight lines between the points, which is `auc`."""
        heights = (self.true_positive_rate[1:] + self.true_positive_rate[:-1]) / 2
        return float((np.diff(self.false_positive_rate) * heights).sum())


def roc_curve(scores: Scores, positive: Flags) -> Roc:
    """Return the ROC of scores, equal scores passing together.

    Parameters
    ----------
    scores : (n,) float
        Of all test pairs, pooled over queries.
    positive : (n,) bool
        Whether each is relevant.

    Raises
    ------
    InputError
        If positives or negatives are missing, or a score is NaN.
    ShapeMismatch
        If there is not one label a score.

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


def auc(scores: Scores, positive: Flags) -> float:
    """Return the share of (positive, negative) pairs in the right order, ties counted half: the area under the ROC.

    By the sum of ranks (Mann-Whitney): (R - n_pos (n_pos + 1) / 2) / (n_pos n_neg), R the positives' ranks together.

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


def auc_paired_test(
    first: Scores,
    second: Scores,
    positive: Flags,
    *,
    rng: np.random.Generator,
    n_subsets: int = 50,
    share: float = 0.5,
) -> PairedTest:
    """Return the paired t-test of two systems' AUC over random subsets of the test pairs.

    The subsets are drawn without replacement, the same for both systems, each keeping ``share`` of the positives and
    of the negatives (at least one of each). They overlap, so the values are not independent and p is smaller than it
    should be: it says that the difference is stable on these pairs, not that it holds for others.

    Parameters
    ----------
    first, second : (n,) float
        Scores of both systems for the same pairs.
    positive : (n,) bool
    rng : Generator
        Draws the subsets.
    n_subsets : int
        At least 2.
    share : float
        Above 0 and below 1; the source prints none.

    Raises
    ------
    ConfigError
        For a number or share outside of these ranges.
    InputError, ShapeMismatch
        As in `roc_curve`.

    Source: S2Net, Table 2 (paired t-test over 50 random subsets); spec E11.
    """
    if n_subsets < 2 or not 0.0 < share < 1.0:
        raise ConfigError(f"{n_subsets} subsets of a share of {share!r}: draw at least 2, of a share between 0 and 1")
    _checked(first, positive)
    _checked(second, positive)
    groups = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    values = np.empty((2, n_subsets))
    for subset in range(n_subsets):
        chosen = np.concatenate([rng.choice(one, max(1, round(share * len(one))), replace=False) for one in groups])
        values[:, subset] = [auc(scores[chosen], positive[chosen]) for scores in (first, second)]
    return paired_test(values[0], values[1])


def kendall_tau(first: Scores, second: Scores) -> float:
    """Return (concordant - discordant) / (n (n - 1) / 2) of two scorings of the same things; a tie is neither.

    This is tau-a. scipy computes tau-b, (c - d) / sqrt((n0 - n1)(n0 - n2)) with n0 all pairs and n1, n2 those tied in
    either scoring; here the root is taken out again.

    Raises
    ------
    InputError
        For fewer than two things, or a score that is NaN.
    ShapeMismatch
        If the scorings differ in length.

    Source: spec 4.2, E10.
    """
    from scipy import stats

    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch(f"scorings of shapes {first.shape} and {second.shape}: score the same things twice")
    n = len(first)
    if n < 2 or np.isnan(first).any() or np.isnan(second).any():
        raise InputError(f"Kendall's tau needs two or more things with numbers for scores; got {n}, or NaN among them")
    all_pairs = n * (n - 1) / 2
    untied = [all_pairs - _tied_pairs(scores) for scores in (first, second)]
    if not all(untied):
        return 0.0
    tau_b = float(stats.kendalltau(first, second).statistic)
    return tau_b * float(np.sqrt(untied[0]) * np.sqrt(untied[1])) / all_pairs


def _tied_pairs(scores: Scores) -> float:
    """Return the number of pairs with equal scores."""
    _, times = np.unique(scores, return_counts=True)
    return float((times * (times - 1) / 2).sum())


def _checked(scores: Scores, positive: Flags) -> tuple[int, int]:
    """Return the numbers of positives and negatives."""
    if scores.shape != positive.shape or scores.ndim != 1:
        raise ShapeMismatch(f"{scores.shape} scores and {positive.shape} labels: give one label a score")
    if np.isnan(scores).any():
        raise InputError("a score is NaN: it has no place in an order; train or encode again")
    n_positive = int(positive.sum())
    if not 0 < n_positive < len(positive):
        raise InputError(
            f"{n_positive} of {len(positive)} pairs are relevant: ROC and AUC compare relevant pairs with others"
        )
    return n_positive, len(positive) - n_positive
