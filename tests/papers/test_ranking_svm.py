"""Machines that rank: known optima, the weights of RSVM-IR by hand, scorers over counts."""

# Tests carry the ids of the checklist of the papers' systems.
# ruff: noqa: N802

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from papers.methods.ranking_svm import (
    FeatureSum,
    LinearRanker,
    fit_features,
    fit_listnet,
    fit_pair_svm,
    fit_pointwise_svm,
    preference_pairs,
    svm_pair_weights,
    with_pagerank,
)
from reranker.arrays import Float64, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError

QUERIES = np.array([0, 0, 0, 1, 1, 1, 1])
GRADES = np.array([2.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0])


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def fit_ranking_svm(
    features: Float64, grades: Float64, queries: Int64, *, C: float = 1.0, weighted: bool = False
) -> LinearRanker:
    """Return the machine of all pairs of unequal grades within a query (B24), ``weighted`` by B25."""
    pairs = preference_pairs(grades, queries)
    weights = svm_pair_weights(pairs, grades, queries) if weighted else np.ones(len(pairs[0]))
    return fit_pair_svm(features, pairs, weights, rng=rng(), C=C)


def test_B22_a_margin_that_is_known() -> None:
    # Standardised, the features are -1 and +1: the widest margin has w = 1 and b = 0.
    ranker = fit_pointwise_svm(np.array([[3.0], [7.0]]), np.array([False, True]), rng=rng(), C=10.0)
    assert ranker.weights == pytest.approx([1.0], abs=1e-3) and ranker.bias == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_allclose(ranker.scores(np.array([[3.0], [5.0], [9.0]])), [-1, 0, 2], atol=1e-2)


def test_B22_slack_bounds_the_weight() -> None:
    # Two points at -1 and +1 and C = .1: the dual's alphas are at most C, so w = .1 * (1 + 1) and no more.
    ranker = fit_pointwise_svm(np.array([[3.0], [7.0]]), np.array([False, True]), rng=rng(), C=0.1)
    assert ranker.weights == pytest.approx([0.2], abs=1e-3)


def test_B22_rare_relevant_pairs_need_balance() -> None:
    # 1 relevant pair at 1 against 9 others, half of them at 1 as well: with C = .01 all alphas are at the bound, so w
    # is C times the sum of weight * y * x. Plain: against the relevant side; balanced: 5 for it and 1/1.8 against.
    features = np.array([[1.0]] + [[1.0]] * 4 + [[0.0]] * 5)
    relevant = np.arange(10) == 0
    plain = fit_pointwise_svm(features, relevant, rng=rng(), C=0.01)
    balanced = fit_pointwise_svm(features, relevant, rng=rng(), C=0.01, balanced=True)
    x = (features.ravel() - 0.5) / 0.5
    assert plain.weights[0] == pytest.approx(0.01 * (x[0] - x[1:].sum()), abs=1e-3)
    assert balanced.weights[0] == pytest.approx(0.01 * (5 * x[0] - x[1:].sum() / 1.8), abs=1e-3)


def test_B24_one_pair_is_enough() -> None:
    # The differences are 1 / scale = 2 apart and C = 1 is ample: w = 1/2 gives the margin of 1.
    ranker = fit_ranking_svm(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), np.zeros(2, np.int64))
    assert ranker.weights == pytest.approx([0.5], abs=1e-3)


def test_B22_says_no_when_there_is_nothing_to_tell_apart() -> None:
    with pytest.raises(TrainingError, match="pairs of both classes"):
        fit_pointwise_svm(np.ones((3, 2)), np.ones(3, np.bool_), rng=rng())


def test_B24_pairs_of_unequal_grades_within_a_query() -> None:
    pairs = preference_pairs(GRADES, QUERIES)
    assert list(zip(*(rows.tolist() for rows in pairs), strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 2),
        (3, 5),
        (3, 6),
        (4, 5),
        (4, 6),
    ]


def test_B24_the_preferred_document_has_the_greater_score() -> None:
    # Feature 0 orders documents within a query but starts elsewhere in each; feature 1 is noise between queries.
    features = np.array([[3.0, 0], [2, 0], [1, 0], [-7, 5], [-7, 5], [-8, 5], [-8, 5]])
    ranker = fit_ranking_svm(features, GRADES, QUERIES, C=100.0)
    scores = ranker.scores(features)
    better, worse = preference_pairs(GRADES, QUERIES)
    margins = scores[better] - scores[worse]
    # Hard margin: the least difference of feature 0 within a query is 1, so w per unit of it is 1.
    assert margins.min() == pytest.approx(1.0, abs=1e-2)
    assert ranker.weights[0] / ranker.scale[0] == pytest.approx(1.0, abs=1e-2)
    assert ranker.weights[1] == pytest.approx(0.0, abs=1e-6)
    reversed_ = fit_ranking_svm(features, -GRADES, QUERIES, C=100.0)
    np.testing.assert_allclose(reversed_.weights, -ranker.weights, atol=1e-3)


def test_B25_weights_by_hand() -> None:
    # mu: 3 and 4 pairs -> 4/3 and 1. tau(2, 0) = 1 and tau(2, 1) = 1 - 1/3 in query 0 alone. tau(1, 0): nothing is
    # lost in query 0, where 2 is best; in query 1, one of two documents is drawn: 1/2; the mean is 1/4.
    pairs = preference_pairs(GRADES, QUERIES)
    expected = np.array([2 / 3 * 4 / 3, 4 / 3, 0.25 * 4 / 3, 0.25, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(svm_pair_weights(pairs, GRADES, QUERIES), expected)


def test_B25_heavier_pairs_win_where_pairs_disagree() -> None:
    # Two queries want feature 0 to rise, with one pair each; one query wants it to fall, with four pairs.
    features = np.array([[1.0], [0.0], [1.0], [0.0], [0.0], [0.0], [1.0], [1.0]])
    grades = np.array([1.0, 0, 1, 0, 1, 1, 0, 0])
    queries = np.array([0, 0, 1, 1, 2, 2, 2, 2])
    plain = fit_ranking_svm(features, grades, queries, C=0.01)
    weighted = fit_ranking_svm(features, grades, queries, C=0.01, weighted=True)
    assert plain.weights[0] < 0 < weighted.weights[0]
    # All alphas are at C: w = C * sum of weight * y * difference, both ways round; features have deviation 1/2.
    assert plain.weights[0] == pytest.approx(0.01 * 2 * 2 * (2 - 4), rel=1e-3)
    tau = np.mean([1, 1, 0.5])
    assert weighted.weights[0] == pytest.approx(0.01 * 2 * 2 * tau * (4 + 4 - 4), rel=1e-3)


def test_B26_listnet_of_one_list_by_hand() -> None:
    # Two documents, grades 1 and 0, x = +1 and -1 after standardising: P(first) = sigmoid(2 w) shall be sigmoid(1).
    # The optimum has 2 (sigmoid(2 w) - sigmoid(1)) + penalty w = 0.
    ranker = fit_listnet(np.array([[1.0], [0.0]]), np.array([1.0, 0.0]), np.zeros(2, np.int64), penalty=1e-9)
    assert ranker.weights == pytest.approx([0.5], abs=1e-4)
    heavy = fit_listnet(np.array([[1.0], [0.0]]), np.array([1.0, 0.0]), np.zeros(2, np.int64), penalty=0.5)
    w = heavy.weights[0]
    sigmoid = 1 / (1 + np.exp(-np.array([2 * w, 1.0])))
    assert 2 * (sigmoid[0] - sigmoid[1]) + 0.5 * w == pytest.approx(0, abs=1e-4) and 0 < w < 0.5


def test_B26_listnet_orders_lists_by_the_feature_that_orders_them() -> None:
    # Feature 0 orders documents within a query but starts elsewhere in each; feature 1 is noise between queries.
    features = np.array([[3.0, 0], [2, 0], [1, 0], [-7, 5], [-7, 5], [-8, 5], [-8, 5]])
    ranker = fit_listnet(features, GRADES, QUERIES, penalty=1e-4)
    scores = ranker.scores(features)
    better, worse = preference_pairs(GRADES, QUERIES)
    assert (scores[better] > scores[worse]).all()
    assert ranker.weights[1] == pytest.approx(0.0, abs=1e-6)
    with_even = fit_listnet(
        np.vstack([features, [[9, 9], [5, 5]]]), np.append(GRADES, [1, 1]), np.append(QUERIES, [7, 7]), penalty=1e-4
    )
    # A query of equal grades teaches nothing; it only changes mean and scale.
    slopes = [one.weights[0] / one.scale[0] for one in (ranker, with_even)]
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-2)


def test_B26_lists_without_an_order_are_refused() -> None:
    with pytest.raises(TrainingError, match="documents of different grades"):
        fit_listnet(np.ones((3, 2)), np.ones(3), np.zeros(3, np.int64))
    with pytest.raises(ConfigError, match=r"penalty is 0\.0: it must be finite and above 0"):
        fit_listnet(np.ones((2, 1)), np.array([0.0, 1]), np.zeros(2, np.int64), penalty=0.0)
    with pytest.raises(ShapeMismatch, match="for 2 rows of features"):
        fit_listnet(np.ones((2, 1)), np.ones(3), np.zeros(3, np.int64))


def test_B22_B24_rankers_score_counts() -> None:
    counts = sp.csr_matrix(np.array([[1, 4, 0], [2, 0, 1], [1, 0, 3]], np.float32))
    documents = with_pagerank(counts, np.array([0.5, 0.3, 0.2]))
    queries = sp.csr_matrix(np.array([[0, 1, 0], [0, 0, 1], [1, 1, 0]], np.float32))
    features = fit_features(counts)
    matrices = list(features.matrices(queries, documents))
    rows = np.stack([one.ravel() for one in matrices], axis=1)
    ranker = fit_pointwise_svm(rows, np.eye(3, dtype=bool).ravel(), rng=rng())
    scorer = FeatureSum(features, ranker)
    expected = ranker.scores(rows).reshape(3, 3)
    np.testing.assert_allclose(scorer.score_matrix(queries, documents), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scorer.score_pairs(queries, documents), np.diag(expected), rtol=1e-4, atol=1e-5)


def test_the_same_seed_gives_the_same_machine() -> None:
    features = np.random.default_rng(0).normal(size=(7, 3))
    first, second = (fit_ranking_svm(features, GRADES, QUERIES) for _ in range(2))
    np.testing.assert_array_equal(first.weights, second.weights)


def test_what_no_machine_can_use_is_refused() -> None:
    features = np.ones((7, 2))
    with pytest.raises(TrainingError, match="two grades"):
        fit_ranking_svm(features, np.ones(7), QUERIES)
    with pytest.raises(ConfigError, match="C is 0"):
        fit_ranking_svm(features, GRADES, QUERIES, C=0.0)
    with pytest.raises(InputError, match="NaN or infinity, which an SVM or ListNet cannot use"):
        fit_ranking_svm(features * np.nan, GRADES, QUERIES)
    with pytest.raises(InputError, match="comparable"):
        preference_pairs(GRADES * np.nan, QUERIES)
    with pytest.raises(InputError, match="below 0"):
        fit_ranking_svm(features, GRADES - 1, QUERIES, weighted=True)
    with pytest.raises(ShapeMismatch, match="one of each"):
        preference_pairs(GRADES, QUERIES[:3])
    with pytest.raises(ShapeMismatch, match="one per pair"):
        fit_pointwise_svm(features, np.ones(3, np.bool_), rng=rng())
    with pytest.raises(ShapeMismatch, match="one row per pair"):
        fit_pointwise_svm(np.ones(7), np.ones(7, np.bool_), rng=rng())
    assert LinearRanker(np.ones(1), np.zeros(1), np.ones(1)).bias == 0.0


def test_given_pairs_are_learned_by_their_weights() -> None:
    features = np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 0.0], [0.0, 9.0]])
    # The first feature is preferred three times and refused once, by other differences; row 3 has the weight 0.
    pairs = np.array([0, 1, 2, 3]), np.array([2, 2, 0, 2])
    machine = fit_pair_svm(features, pairs, np.array([3.0, 3.0, 1.0, 0.0]), rng=np.random.default_rng(0))
    other = fit_pair_svm(features, pairs, np.array([1.0, 1.0, 9.0, 0.0]), rng=np.random.default_rng(0))
    assert machine.weights[0] > 0 > other.weights[0]
    np.testing.assert_allclose([machine.weights[1], other.weights[1]], 0, atol=1e-9)
