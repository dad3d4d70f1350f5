"""Standard errors and paired tests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from reranker.errors import ShapeMismatch
from reranker.evaluation import paired_test, standard_error
from tests.seeds import seeded_rng


def test_standard_error_by_hand() -> None:
    assert standard_error(np.array([1.0, 2.0, 3.0])) == pytest.approx(1 / np.sqrt(3))
    assert standard_error(np.array([1.0])) == 0.0


def test_t_test_by_the_formula() -> None:
    from scipy import stats

    rng = seeded_rng()
    a, b = rng.random(30), rng.random(30)
    result = paired_test(a, b)
    t = (a - b).mean() / standard_error(a - b)
    assert result.difference == pytest.approx((a - b).mean())
    assert result.p_t_test == pytest.approx(2 * stats.t.sf(abs(t), 29))
    assert result.p_randomisation is None
    assert result.n == 30


def test_randomisation_test_equals_all_exchanges() -> None:
    """With 8 queries scipy makes all 256 exchanges; the p is the exact share."""
    difference = np.array([0.3, 0.1, -0.05, 0.2, 0.25, 0.02, 0.15, -0.1])
    sums = np.array([np.dot(signs, difference) for signs in itertools.product([-1, 1], repeat=8)])
    exact = 2 * min(np.mean(sums >= difference.sum() - 1e-12), np.mean(sums <= difference.sum() + 1e-12))
    result = paired_test(difference + 0.5, np.full(8, 0.5), np.random.default_rng(0))
    assert result.p_randomisation == pytest.approx(exact, abs=1e-9)


def test_queries_without_a_difference_change_neither_answer_nor_sign() -> None:
    rng = seeded_rng(1)
    a, b = rng.random(200), rng.random(200)
    a[:150] = b[:150]
    result = paired_test(a, b, np.random.default_rng(0))
    assert result.p_randomisation == pytest.approx(result.p_t_test, abs=0.03)
    assert paired_test(b, a).difference == pytest.approx(-result.difference)


def test_p_values_of_the_same_system_are_spread() -> None:
    """Under the null hypothesis one test in ten has p < .1."""
    rng = seeded_rng(2)
    found = [paired_test(*rng.normal(size=(2, 40))).p_t_test for _ in range(400)]
    assert np.mean(np.array(found) < 0.1) == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("values", [np.zeros(5), np.array([0.5]), np.empty(0)])
def test_nothing_to_tell_apart(values: np.ndarray) -> None:
    result = paired_test(values, values, np.random.default_rng(0))
    assert (result.difference, result.p_t_test, result.p_randomisation) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("n", [2, 10])
def test_a_constant_difference_is_as_certain_as_its_queries_are_many(n: int) -> None:
    result = paired_test(np.ones(n), np.zeros(n), np.random.default_rng(0))
    assert result.p_t_test == pytest.approx(2.0 ** (1 - n))
    assert result.p_randomisation == pytest.approx(2.0 ** (1 - n))


def test_one_query_that_differs_shows_nothing() -> None:
    first = np.zeros(20)
    first[3] = 0.5
    result = paired_test(first, np.zeros(20), np.random.default_rng(0))
    assert result.p_randomisation == 1.0
    assert result.p_t_test > 0.3


def test_different_queries_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="one value per query"):
        paired_test(np.zeros(3), np.zeros(4))
