"""Preferences by clicks over expected clicks: known answers, algebra, and what chance must not be taken for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.clicks.preferred import LEAST_SLOPE, preferences
from reranker.errors import ShapeMismatch
from tests.seeds import seeded_rng

N_QUERIES, N_SHOWN = 200, 10


def clicks_of(spread: float, slope: float = 0.5, examined: float = 30.0) -> tuple[dict[str, Any], Any]:
    """Return counts of clicks and the true ln g; ``spread`` is the variance of g, 0: the scores say all."""
    rng = seeded_rng(4)
    query = np.repeat(np.arange(N_QUERIES), N_SHOWN)
    score = rng.normal(size=len(query)) * 3.0
    g = rng.gamma(1 / spread, spread, len(query)) if spread else np.ones(len(query))
    e = rng.uniform(0.2, 2.0, len(query)) * examined
    clicks = rng.poisson(e * 0.1 * np.exp(slope * score / 3.0) * g).astype(float)
    return {"query": query, "clicks": clicks, "examined": e, "score": score}, np.log(g)


def test_the_parameters_and_the_preferences_of_simulated_clicks_are_found() -> None:
    given_clicks, truth = clicks_of(spread=0.5)
    found = preferences(**given_clicks)
    assert found.slope == pytest.approx(0.5 / 3.0, rel=0.15)
    assert 1.0 <= found.prior_clicks <= 4.0
    assert np.corrcoef(found.values, truth)[0, 1] > 0.6
    # The order by score and preference is nearer to the true attraction than that by the score or by the click rate.
    query, score = given_clicks["query"], given_clicks["score"]
    attraction = truth + 0.5 * score / 3.0
    rate = (given_clicks["clicks"] + 0.2) / (given_clicks["examined"] + 2.0)
    agreement = [
        np.mean([np.corrcoef(attraction[query == one], order[query == one])[0, 1] for one in range(N_QUERIES)])
        for order in (score + found.values, score, rate)
    ]
    assert agreement[0] > max(agreement[1:]) + 0.02


def test_clicks_that_the_scores_predict_give_no_preference() -> None:
    given_clicks, _ = clicks_of(spread=0.0)
    found = preferences(**given_clicks)
    assert found.prior_clicks > 50 and np.abs(found.values).max() < 1.0


def test_the_value_is_the_logarithm_of_clicks_over_expected_clicks() -> None:
    found = preferences(**clicks_of(spread=0.5)[0])
    query, clicks = np.zeros(2, np.int64), np.array([9.0, 1.0])
    even = {"query": query, "clicks": clicks, "examined": np.full(2, 10.0), "score": np.zeros(2)}
    two = preferences(**even)
    k = two.prior_clicks
    assert math.isfinite(k) and math.isfinite(found.prior_clicks)
    assert two.slope == LEAST_SLOPE
    assert two.values == pytest.approx(np.log((clicks + k) / (5.0 + k)) / LEAST_SLOPE)


def test_rows_that_say_nothing_have_no_preference() -> None:
    given_clicks, _ = clicks_of(spread=0.5)
    given_clicks["clicks"][:10] = 0.0  # a query without a click
    given_clicks["score"][15] = np.nan  # a deleted document
    given_clicks["examined"][25] = 0.0
    with_a_single_one = {
        "query": np.append(given_clicks["query"], N_QUERIES),  # a query with one document
        "clicks": np.append(given_clicks["clicks"], 5.0),
        "examined": np.append(given_clicks["examined"], 5.0),
        "score": np.append(given_clicks["score"], 1.0),
    }
    values = preferences(**with_a_single_one).values
    assert not values[:10].any() and not values[[15, 25, -1]].any()
    assert np.count_nonzero(values) > 1900
    nothing = np.zeros(0)
    assert preferences(np.zeros(0, np.int64), nothing, nothing, nothing).values.shape == (0,)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.floats(0, 1e3), st.floats(-1e4, 1e4)), max_size=40))
def test_every_count_gives_finite_preferences_in_the_order_of_the_clicks(
    rows: list[tuple[int, int, float, float]],
) -> None:
    q, c, e, s = (np.array(column, float) for column in (zip(*rows, strict=True) if rows else ((), (), (), ())))
    found = preferences(q.astype(np.int64), c, e, s)
    assert np.isfinite(found.values).all() and np.isfinite(found.slope)
    again = preferences(q.astype(np.int64), c, e, s)
    assert np.array_equal(found.values, again.values)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="one value per row"):
        preferences(np.zeros(2, np.int64), np.zeros(2), np.zeros(2), np.zeros(3))
