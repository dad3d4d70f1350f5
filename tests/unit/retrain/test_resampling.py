"""Intervals over clusters: by hand, against the textbook, and how often they hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.errors import ConfigError, ShapeMismatch
from reranker.retrain.statistics import Interval, clusters_needed, ratio_interval, sums_by
from tests.seeds import seeded_rng


def interval(
    numerator: list[float], denominator: list[float], cluster: list[int], seed: int = 0, resamples: int = 999
) -> Interval:
    return ratio_interval(
        np.array(numerator),
        np.array(denominator),
        np.array(cluster, dtype=np.int64),
        np.random.default_rng(seed),
        resamples=resamples,
    )


def test_ratio_and_error_by_hand() -> None:
    found = interval([1.0, 1.0, 0.0, 3.0], [1.0, 1.0, 2.0, 4.0], [7, 7, 8, 9])
    # Clusters (2, 2), (0, 2), (3, 4): R = 5/8, residuals 2 - 10/8, -10/8, 3 - 20/8.
    residuals = np.array([0.75, -1.25, 0.5])
    assert found.estimate == pytest.approx(5 / 8)
    assert found.standard_error == pytest.approx(np.sqrt(residuals @ residuals * 3 / 2) / 8)
    assert (found.n_clusters, found.n_differing) == (3, 2)
    assert found.n_effective == pytest.approx(64 / 24)


def test_equal_denominators_give_mean_and_its_standard_error() -> None:
    rng = seeded_rng()
    values = rng.normal(0.3, 1.0, 400)
    found = interval(values.tolist(), [1.0] * 400, list(range(400)))
    error = values.std(ddof=1) / 20
    assert found.standard_error == pytest.approx(error)
    assert found.lower == pytest.approx(values.mean() - 1.65 * error, abs=0.25 * error)
    assert found.upper == pytest.approx(values.mean() + 1.65 * error, abs=0.25 * error)
    assert found.n_effective == pytest.approx(400)


def test_observations_of_one_person_are_not_independent() -> None:
    rng = seeded_rng(1)
    of_person = np.repeat(rng.normal(size=40), 25)
    together = interval(of_person.tolist(), [1.0] * 1_000, np.repeat(np.arange(40), 25).tolist())
    apart = interval(of_person.tolist(), [1.0] * 1_000, list(range(1_000)))
    assert together.standard_error > 4 * apart.standard_error
    assert together.upper - together.lower > 4 * (apart.upper - apart.lower)


@pytest.mark.parametrize(("draw", "n"), [("normal", 30), ("pareto", 60), ("mostly zero", 150), ("left", 60)])
def test_bounds_are_passed_as_seldom_as_stated(draw: str, n: int) -> None:
    """One-sided 95 % bounds are passed in 5 % of 300 samples each, give or take; heavy tails cost some of it."""
    rng = seeded_rng(2)
    passed = np.zeros(2)
    for _ in range(300):
        weight = rng.pareto(3, n) + 0.2
        if draw == "normal":
            values = rng.normal(size=n)
        elif draw == "mostly zero":
            values = rng.choice([-1.0, 1.0], n) * (rng.random(n) < 0.05)
        else:
            values = (1 - rng.exponential(size=n)) * (1.0 if draw == "left" else -1.0)
        found = ratio_interval(values * weight, weight, np.arange(n), rng, resamples=199)
        passed += [found.lower > 0, found.upper < 0]
    # 5 % and three binomial standard errors.
    assert (passed / 300 < 0.09).all(), passed
    assert passed.sum() > 0


def test_nothing_differs() -> None:
    found = interval([0.0] * 50, [1.0] * 50, list(range(50)))
    assert (found.estimate, found.lower, found.upper, found.standard_error, found.n_differing) == (0, 0, 0, 0, 0)


def test_one_cluster_that_differs_shows_nothing() -> None:
    for n in (20, 200, 2_000):
        found = interval([5.0] + [0.0] * (n - 1), [1.0] * n, list(range(n)))
        assert found.lower <= 0


def test_a_single_cluster_and_none_at_all() -> None:
    assert interval([1.0, 2.0], [2.0, 2.0], [3, 3]).n_clusters == 1
    assert interval([], [], []).n_clusters == 0
    assert interval([0.0], [0.0], [1]).n_effective == 0


def test_many_clusters_are_joined_without_moving_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded_rng(3)
    values, weight = rng.normal(0.1, 1, 4_000), rng.pareto(3, 4_000) + 0.1
    arguments = (values * weight, weight, np.arange(4_000))
    whole = ratio_interval(*arguments, np.random.default_rng(1))
    monkeypatch.setattr("reranker.retrain.statistics.MAX_GROUPS", 500)
    joined = ratio_interval(*arguments, np.random.default_rng(1))
    assert joined.estimate == pytest.approx(whole.estimate)
    assert (joined.n_clusters, joined.n_effective) == (whole.n_clusters, whole.n_effective)
    assert joined.standard_error == pytest.approx(whole.standard_error, rel=0.15)
    assert joined.lower == pytest.approx(whole.lower, abs=0.5 * whole.standard_error)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0.01, 5) | st.just(0.0), st.integers(0, 6)), max_size=30),
    st.floats(0.01, 100),
)
def test_order_and_units_do_not_matter(rows: list[tuple[float, float, int]], factor: float) -> None:
    numerator, denominator, cluster = ([row[k] for row in rows] for k in range(3))
    first = interval(numerator, denominator, [int(c) for c in cluster], resamples=20)
    other = interval(
        [n * factor for n in numerator[::-1]],
        [d * factor for d in denominator[::-1]],
        [int(c) for c in cluster[::-1]],
        resamples=20,
    )
    assert other.estimate == pytest.approx(first.estimate, rel=1e-6, abs=1e-9)
    assert other.standard_error == pytest.approx(first.standard_error, rel=1e-3, abs=1e-6)
    assert other.n_effective == pytest.approx(first.n_effective, rel=1e-6)
    assert first.lower <= first.estimate + 1e-9 or first.n_clusters < 3
    assert 0 <= first.n_effective <= first.n_clusters + 1e-9


def test_clusters_needed_for_a_difference_to_show() -> None:
    # (1.645 + 0.842)² 0.01² / 0.01² clusters of a hundred that are there.
    seen = Interval(0.01, -0.006, 0.02, 0.01, 100, 100.0, 50)
    assert clusters_needed(seen, 0.0) == int(np.ceil(100 * 2.4865**2))
    assert clusters_needed(seen, 0.01) is None
    assert clusters_needed(Interval(-0.01, -0.02, 0.0, 0.005, 100, 100.0, 50), 0.0) is None


def test_sums_by_group() -> None:
    assert sums_by(np.array([0, 2, 0]), np.array([1.0, 2.0, 4.0]), 4).tolist() == [5, 0, 2, 0]
    assert sums_by(np.array([], dtype=np.int64), np.array([]), 2).tolist() == [0, 0]


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(ShapeMismatch, match="one value per observation"):
        ratio_interval(np.zeros(2), np.ones(3), np.zeros(3, np.int64), np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"confidence is 1\.5"):
        ratio_interval(np.zeros(2), np.ones(2), np.zeros(2, np.int64), np.random.default_rng(0), confidence=1.5)
