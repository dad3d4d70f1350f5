"""ROC, AUC and Kendall's tau by hand and by definition."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.rank_measures import auc, auc_paired_test, disjoint_subsets, kendall_tau, roc_curve
from reranker.errors import ConfigError, InputError, ShapeMismatch

SCORES = np.array([0.9, 0.8, 0.8, 0.4, 0.2])
POSITIVE = np.array([True, True, False, False, True])


def test_E09_roc_and_auc_by_hand() -> None:
    # Pairs in order: .9 beats both; .8 ties one and beats one; .2 loses both: (2 + 1.5 + 0) / 6.
    assert auc(SCORES, POSITIVE) == pytest.approx(3.5 / 6)
    roc = roc_curve(SCORES, POSITIVE)
    np.testing.assert_allclose(roc.thresholds, [np.inf, 0.9, 0.8, 0.4, 0.2])
    np.testing.assert_allclose(roc.true_positive_rate, [0, 1 / 3, 2 / 3, 2 / 3, 1])
    np.testing.assert_allclose(roc.false_positive_rate, [0, 0, 0.5, 1, 1])
    assert roc.area == pytest.approx(3.5 / 6)


def test_E09_ends() -> None:
    assert auc(np.array([3.0, 2, 1]), np.array([True, False, False])) == 1.0
    assert auc(np.array([1.0, 2, 3]), np.array([True, False, False])) == 0.0
    assert auc(np.ones(4), np.array([True, False, False, True])) == 0.5
    rng = np.random.default_rng(1)
    assert auc(rng.random(4000), rng.random(4000) < 0.3) == pytest.approx(0.5, abs=0.03)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_E09_auc_is_the_share_of_pairs_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 5, 12).astype(np.float64)
    positive = np.append(rng.random(10) < 0.5, [True, False])
    difference = scores[positive][:, None] - scores[~positive][None, :]
    expected = ((difference > 0) + 0.5 * (difference == 0)).mean()
    assert auc(scores, positive) == pytest.approx(expected)
    assert roc_curve(scores, positive).area == pytest.approx(expected)


def test_scores_of_infinity_have_a_place() -> None:
    scores = np.array([-np.inf, -np.inf, 1.0])
    positive = np.array([True, False, True])
    assert auc(scores, positive) == 0.75
    assert roc_curve(scores, positive).area == 0.75


def test_E10_kendall_by_hand() -> None:
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([10.0, 20, 30])) == pytest.approx(1.0)
    assert kendall_tau(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1.0)
    # Pairs of 1 2 3 4 against 1 3 2 4: five in order, one not.
    assert kendall_tau(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(4 / 6)
    assert kendall_tau(np.ones(3), np.array([1.0, 2, 3])) == 0.0


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_E10_kendall_with_ties_is_its_definition(seed: int) -> None:
    first, second = np.random.default_rng(seed).integers(0, 4, (2, 9)).astype(np.float64)
    signs = np.sign(first[:, None] - first) * np.sign(second[:, None] - second)
    assert kendall_tau(first, second) == pytest.approx(signs[np.triu_indices(9, 1)].sum() / 36, abs=1e-12)


def test_E11_auc_over_subsets_tells_a_good_system_from_noise() -> None:
    rng = np.random.default_rng(2)
    positive = rng.random(4_000) < 0.4
    good, noise = positive + rng.normal(size=4_000), rng.normal(size=4_000)
    test = auc_paired_test(good, noise, positive, rng=np.random.default_rng(3))
    assert test.n == 50 and test.p_t_test < 0.01
    assert test.difference == pytest.approx(auc(good, positive) - auc(noise, positive), abs=0.03)
    same = auc_paired_test(good, good, positive, rng=np.random.default_rng(3))
    assert same.difference == 0.0 and same.p_t_test == 1.0
    turned = auc_paired_test(noise, good, positive, rng=np.random.default_rng(3))
    assert turned.difference == pytest.approx(-test.difference)


def test_E11_subsets_of_test_pairs_are_disjoint_and_complete() -> None:
    positive = np.arange(400) % 4 == 0
    subsets = disjoint_subsets(positive, 50, np.random.default_rng(5))
    assert [len(rows) for rows in subsets] == [8] * 50
    assert [int(positive[rows].sum()) for rows in subsets] == [2] * 50
    np.testing.assert_array_equal(np.sort(np.concatenate(subsets)), np.arange(400))
    assert len(disjoint_subsets(np.arange(400) < 7, 50, np.random.default_rng(5))) == 7


def test_E11_auc_test_by_hand() -> None:
    # Each of two subsets has one relevant pair and one other: AUC 1 and 1 for the first system, 0 and 1/2 for the
    # second, however the pairs are divided. Differences 1 and 1/2: mean 3/4, t = 3 with 1 degree of freedom.
    positive = np.array([True, True, False, False])
    first, second = np.array([5.0, 5.0, 1.0, 1.0]), np.array([0.0, 2.0, 2.0, 2.0])
    test = auc_paired_test(first, second, positive, rng=np.random.default_rng(0), n_subsets=2)
    assert test.n == 2 and test.difference == pytest.approx(0.75)
    assert test.standard_error == pytest.approx(0.25)
    assert test.p_t_test == pytest.approx(2 * (0.5 - np.arctan(3.0) / np.pi))


def test_E11_the_p_value_of_equally_good_systems_is_uniform() -> None:
    # Two systems of the same quality on 300 drawn sets of pairs: about one of twenty tests has p < .05. Overlapping
    # halves found a difference in more than half of the sets.
    below = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        positive = np.arange(500) < 200
        one, other = (positive + rng.normal(size=500) for _ in range(2))
        below += auc_paired_test(one, other, positive, rng=rng).p_t_test < 0.05
    assert 4 <= below <= 30


def test_what_has_no_curve_is_refused() -> None:
    with pytest.raises(InputError, match="3 of 3 pairs are relevant"):
        auc(np.arange(3.0), np.ones(3, np.bool_))
    with pytest.raises(InputError, match="NaN"):
        roc_curve(np.array([np.nan, 1.0]), np.array([True, False]))
    with pytest.raises(ShapeMismatch, match="one label per score"):
        auc(np.arange(3.0), np.ones(2, np.bool_))
    with pytest.raises(ShapeMismatch, match="the same items"):
        kendall_tau(np.arange(3.0), np.arange(2.0))
    with pytest.raises(InputError, match="two or more"):
        kendall_tau(np.arange(1.0), np.arange(1.0))
    with pytest.raises(ConfigError, match="1 subsets"):
        auc_paired_test(SCORES, SCORES, POSITIVE, rng=np.random.default_rng(0), n_subsets=1)
    with pytest.raises(InputError, match="1 relevant and 4 other pairs"):
        auc_paired_test(SCORES, SCORES, np.arange(5) == 0, rng=np.random.default_rng(0))
