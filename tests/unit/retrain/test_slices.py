"""The newest slice: never learned from, whole moments, a share or days."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.clicks.log import DAY_MS
from reranker.errors import ConfigError, NothingToLearn
from reranker.retrain.learning import cutoff_of
from reranker.retrain.settings import Newest


def times(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_share_is_the_newest_impressions_in_any_order() -> None:
    assert cutoff_of(times(5, 1, 4, 2, 3), Newest(0.2)) == 5
    assert cutoff_of(times(5, 1, 4, 2, 3), Newest(0.4)) == 4
    assert cutoff_of(times(5, 1, 4, 2, 3), Newest(0.41)) == 3


def test_impressions_of_one_moment_stay_together() -> None:
    assert cutoff_of(times(1, 2, 3, 3, 3), Newest(0.2)) == 3


def test_days_count_back_from_the_last_impression() -> None:
    day = [number * DAY_MS for number in range(10)]
    assert [t for t in day if t >= cutoff_of(times(*day), Newest.parse("3d"))] == day[-3:]
    assert [t for t in day if t >= cutoff_of(times(*day), Newest.parse("0.5d"))] == day[-1:]


@pytest.mark.parametrize(
    ("values", "newest"), [((), "0.2"), ((7,), "0.2"), ((7, 7, 7), "0.2"), ((0, 1, 2), "1d"), ((1, 2), "0.9")]
)
def test_nothing_to_learn_from_is_told(values: tuple[int, ...], newest: str) -> None:
    with pytest.raises(NothingToLearn):
        cutoff_of(times(*values), Newest.parse(newest))


@pytest.mark.parametrize("text", ["0", "1", "-0.1", "0d", "-1d", "3 days", "", "nan", "infd", "1e3d"])
def test_illegal_slices_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="newest slice"):
        Newest.parse(text)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.floats(0.01, 0.99))
def test_both_sides_hold_something_and_the_share_is_reached(values: list[int], share: float) -> None:
    array = times(*values)
    try:
        cutoff = cutoff_of(array, Newest(share))
    except NothingToLearn:
        ordered = sorted(values)
        k = max(1, int(np.ceil(share * len(values))))
        assert ordered[len(values) - k] == ordered[0]
        return
    newer = int((array >= cutoff).sum())
    assert 0 < newer < len(values)
    assert newer >= share * len(values)
    assert int((array > cutoff).sum()) < share * len(values) or newer == 1
