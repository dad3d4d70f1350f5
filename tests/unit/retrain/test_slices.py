"""The newest slice: never learned from, a share of the impressions, and whole moments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.errors import ConfigError, NothingToLearn
from reranker.retrain.history import cutoff_of
from reranker.retrain.settings import RetrainSettings


def times(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_share_is_the_newest_impressions_in_any_order() -> None:
    assert cutoff_of(times(5, 1, 4, 2, 3), 0.2) == 5
    assert cutoff_of(times(5, 1, 4, 2, 3), 0.4) == 4
    assert cutoff_of(times(5, 1, 4, 2, 3), 0.41) == 3


def test_impressions_of_one_moment_stay_together() -> None:
    assert cutoff_of(times(1, 2, 3, 3, 3), 0.2) == 3


@pytest.mark.parametrize(
    ("values", "newest"), [((), 0.2), ((7,), 0.2), ((7, 7, 7), 0.2), ((0, 1, 2), 0.7), ((1, 2), 0.9)]
)
def test_nothing_to_learn_from_is_told(values: tuple[int, ...], newest: float) -> None:
    with pytest.raises(NothingToLearn):
        cutoff_of(times(*values), newest)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_illegal_slices_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="newest"):
        RetrainSettings(Path("models"), newest=share)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.floats(0.01, 0.99))
def test_both_sides_hold_something_and_the_share_is_reached(values: list[int], share: float) -> None:
    array = times(*values)
    try:
        cutoff = cutoff_of(array, share)
    except NothingToLearn:
        ordered = sorted(values)
        k = max(1, int(np.ceil(share * len(values))))
        assert ordered[len(values) - k] == ordered[0]
        return
    newer = int((array >= cutoff).sum())
    assert 0 < newer < len(values)
    assert newer >= share * len(values)
    assert int((array > cutoff).sum()) < share * len(values) or newer == 1
