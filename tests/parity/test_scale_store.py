"""The benchmark of a store larger than memory, small: what it asks for, and what it measures."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scale_store import asked, call_times, forget_pages, write_store

N = 2_000


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_window_has_each_document_once(skew: float) -> None:
    windows = list(asked(N, 30, 50, skew))
    assert all(len(set(window)) == len(window) == 50 for window in windows)
    assert windows == list(asked(N, 30, 50, skew))
    shared = [len(set(one) & set(next_)) for one, next_ in pairwise(windows)]
    assert sum(shared) / len(shared) == pytest.approx(50 * 50 / N, abs=0.8) if not skew else sum(shared) > 5 * 29


def test_calls_are_timed_on_a_store_that_is_made_once(tmp_path: Path) -> None:
    n_bytes = write_store(tmp_path / "store", N)
    assert n_bytes == write_store(tmp_path / "store", N) > N * (200 + 60 * 8)
    forget_pages(tmp_path / "store")
    figures = call_times(tmp_path / "store", 5, 50, 0.0)
    assert 0 < figures["p50 ms"] <= figures["p99 ms"]
    assert figures["KB a call"] >= 0
