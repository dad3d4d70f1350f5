"""The plan for larger sites: its queues against known formulas, its figures against those that they follow from."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scale_plan import RESULTS, lognormal, of_documents, of_impressions, times_in_system

from tests.seeds import seeded_rng

N = 200_000


def erlang_c(n: int, load: float) -> float:
    """Return the probability that all n servers are busy, each for ``load`` of the time."""
    offered = n * load
    busy = offered**n / math.factorial(n) / (1 - load)
    return busy / (sum(offered**k / math.factorial(k) for k in range(n)) + busy)


@pytest.mark.parametrize(("n", "load"), [(1, 0.5), (2, 0.6), (4, 0.7)])
def test_waits_are_those_of_exponential_queues(n: int, load: float) -> None:
    """The mean time in M/M/n is 1 + C / (n (1 - load)) mean services."""
    rng = seeded_rng(1)
    arrivals, services = np.cumsum(rng.exponential(1 / (n * load), N)), rng.exponential(1.0, N)
    spent = times_in_system(arrivals, services, None, n)[N // 10 :]
    assert spent.mean() == pytest.approx(1 + erlang_c(n, load) / (n * (1 - load)), rel=0.03)


def test_processes_with_queues_of_their_own_wait_as_single_ones() -> None:
    rng = seeded_rng(2)
    arrivals, services = np.cumsum(rng.exponential(1 / 2, N)), rng.exponential(1.0, N)
    spent = times_in_system(arrivals, services, rng.integers(0, 4, N), 4)[N // 10 :]
    assert spent.mean() == pytest.approx(2, rel=0.03)


def test_searches_far_apart_wait_for_nothing() -> None:
    services = np.array([3.0, 1.0, 2.0])
    assert times_in_system(np.array([0.0, 10.0, 20.0]), services, None, 1).tolist() == services.tolist()
    assert times_in_system(np.array([0.0, 1.0, 2.0]), services, None, 1).tolist() == [3.0, 3.0, 4.0]


def test_draws_have_the_percentiles_that_were_asked_for() -> None:
    drawn = lognormal(14.0, 30.0, N, seeded_rng(3))
    assert np.percentile(drawn, (50, 99)) == pytest.approx([14.0, 30.0], rel=0.02)


def test_what_was_measured_is_not_extrapolated() -> None:
    engines = json.loads((RESULTS / "scale_index.json").read_text())["engines"]
    million = of_documents(engines)[0]
    assert million["measured"]
    assert million["fetch"]["hours"] * 3600 == pytest.approx(max(e["rows"][-1]["fetch_s"] for e in engines.values()))
    pairs = json.loads((RESULTS / "click_pairs.json").read_text())
    ten_million, _, billion = of_impressions(pairs, 100.0)
    assert ten_million["pairs, hours"] * 3600 == pytest.approx(pairs["impressions"]["10000000"]["duckdb"]["seconds"])
    assert billion["pairs, hours"] >= 100 * ten_million["pairs, hours"]
    assert not billion["measured"]
