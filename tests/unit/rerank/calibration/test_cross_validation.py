"""Cross-validation: no query sees its own value, and a small gain decides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from reranker.rerank.calibration.cross_validation import best_row, cross_validated, surest_row
from tests.seeds import seeded_rng


def test_held_out_values_never_see_their_own_query() -> None:
    """The only query that prefers alpha 1 must be judged by the alpha of the others."""
    values = np.tile(np.array([[0.6], [0.5]]), (1, 50))
    values[:, 7] = 0.0, 10.0
    assert cross_validated(values, seed=0)[7] == 0.0
    fold = np.random.default_rng(0).permutation(50) % 5 == 0
    values = np.where(fold, [[0.0], [1.0]], [[0.6], [0.5]])
    assert not cross_validated(values, seed=0)[fold].any(), "nor the other queries of its part"
    constant = np.random.default_rng(0).random(50)
    np.testing.assert_array_equal(cross_validated(np.stack([constant, constant]), 0), constant)


def test_a_gain_below_its_standard_error_leaves_the_engine_s_order() -> None:
    rng = np.random.default_rng(1)
    engine = rng.random(40)
    noise = rng.normal(0.0, 1.0, 40)
    for gain, alpha in ((0.5, 0), (2.0, 1)):  # of a standard error
        better = engine + (noise - noise.mean()) + gain * noise.std(ddof=1) / np.sqrt(40)
        values = np.stack([engine, better])
        assert best_row(values) == alpha
    assert cross_validated(np.stack([engine, engine + 0.1]), seed=0) == pytest.approx(engine + 0.1)


def test_the_surest_weight_is_taken() -> None:
    rng = seeded_rng(4)
    noise = rng.normal(size=(3, 100))
    noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, ddof=1, keepdims=True)  # error: .1
    engine = rng.random(100)
    assert surest_row(np.stack([engine, engine + 0.19 + noise[0], engine + 0.15 + noise[1]])) == 0
    assert surest_row(np.stack([engine, engine + 0.3 + noise[0], engine + 0.31 + 2 * noise[1]])) == 1
    assert surest_row(np.stack([engine, engine, engine])) == 0
