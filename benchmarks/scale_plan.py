"""What sites of other sizes need, computed from what was measured, and the tail of latency of n processes, simulated.

    python benchmarks/scale_plan.py --json benchmarks/results/scale_plan.json

Every figure follows from the kept results (scale_index, click_pairs, service) and from the assumptions named here:
nothing is measured anew. ``measured`` says whether a size was; the others are extrapolated by the laws of those
results. Of the two engines the larger figure counts.

The simulation draws Poisson arrivals. A search takes the engine's time, which is nobody's queue here, and the rest of
its time of one process, which does one thing at once; both are lognormal with the measured medians, as far apart from
their 99th percentiles as the whole search of a million documents is. ``one queue``: a search goes to the process that
is free first. ``at random``: each process has a queue of its own, and the one that gets a search is drawn, as where the
system shares a port. ``killed``: one of the processes has ended. Processes on one machine also share its cores, which
the simulation knows nothing of: what two processes gave beside one is printed with it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from provenance import write_results

RESULTS = Path(__file__).parent / "results"
CACHE_GB = 32
"""Of an engine's node, memory for the system's file cache: half of 64 GB."""
PEAK = 4.0
"""Searches a second in the busiest hour to the mean of the month."""
LOAD = 0.6
"""Share of a process's searches a second that is planned with."""
MONTH_S = 30 * 24 * 3600.0
N_SEARCHES, WARM = 200_000, 20_000
Z99 = 2.3263478740408408
"""The normal quantile of .99."""

Times = npt.NDArray[np.float64]


def times_in_system(arrivals: Times, services: Times, at: npt.NDArray[np.int64] | None, n: int) -> Times:
    """Return the seconds that each search spends, waiting and served, first come first served, (n_searches,).

    ``arrivals`` and ``services`` (n_searches,) are seconds, the former ascending. ``at`` (n_searches,) says to which of
    the ``n`` processes each goes; None: to the one that is free first, of equals any, which are alike.
    """
    free = [0.0] * n
    ended = np.empty(len(arrivals))
    for number, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        if at is None:
            ended[number] = max(arrival, free[0]) + service
            heapq.heapreplace(free, ended[number])
        else:
            process = int(at[number])
            ended[number] = free[process] = max(arrival, free[process]) + service
    return ended - arrivals


def lognormal(p50: float, p99: float, n: int, rng: np.random.Generator) -> Times:
    """Return n draws of the lognormal distribution with this median and this 99th percentile."""
    return np.exp(math.log(p50) + math.log(p99 / p50) / Z99 * rng.standard_normal(n))


def tails(search: Mapping[str, float], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return p50 and p99 by number of processes, load, and way of sharing, given ``search``'s p50, p99 and engine's."""
    rows = []
    spread, engine = search["p99_ms"] / search["p50_ms"], search["engine_ms"] / 1e3
    own = search["p50_ms"] / 1e3 - engine
    services, elsewhere = (lognormal(p50, p50 * spread, N_SEARCHES, rng) for p50 in (own, engine))
    for n in (1, 2, 4, 8):
        for load in (0.3, 0.6, 0.8, 0.9):
            arrivals = np.cumsum(rng.exponential(services.mean() / (n * load), N_SEARCHES))
            row: dict[str, Any] = {"processes": n, "load": load, "searches/s": n * load / float(services.mean())}
            ways = {"one queue": (None, n), "at random": (rng.integers(0, n, N_SEARCHES), n)}
            if n > 1 and n * load < n - 1:
                ways["killed"] = (None, n - 1)
            for name, (at, running) in ways.items():
                spent = 1e3 * (elsewhere + times_in_system(arrivals, services, at, running))[WARM:]
                p50, p99 = np.percentile(spent, (50, 99)).tolist()
                row[name] = {"p50_ms": p50, "p99_ms": p99}
            rows.append(row)
    return rows


def of_documents(engines: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what numbers of documents take: hours of one sender, gigabytes, and nodes whose cache holds the index."""
    rows = []
    for documents in (10**6, 10**7, 10**8):
        row: dict[str, Any] = {"documents": documents}
        for way in ("plain", "fetch"):
            largest = [(e["rows"][-1], e["laws"][f"{way}_s"]["exponent"]) for e in engines.values()]
            seconds = max(of[f"{way}_s"] * (documents / of["documents"]) ** max(law, 1.0) for of, law in largest)
            gb = max(of[f"{way} bytes a document"] for of, _ in largest) * documents / 1e9
            row[way] = {"hours": seconds / 3600, "GB": gb, "nodes": 2 * math.ceil(gb / CACHE_GB)}
        row["measured"] = any(of["documents"] == documents for e in engines.values() for of in e["rows"])
        rows.append(row)
    return rows


def of_impressions(pairs: Mapping[str, Any], searches_s: float) -> list[dict[str, Any]]:
    """Return what impressions a month take: the log, its pairs on one machine, and processes for the busiest hour."""
    measured = {int(n): of["duckdb"]["seconds"] for n, of in pairs["impressions"].items()}
    largest = max(measured)
    exponent = np.polyfit(np.log(list(measured)), np.log(list(measured.values())), 1)[0]
    log_bytes = pairs["impressions"][str(largest)]["bytes"] / largest
    rows = []
    for impressions in (10**7, 10**8, 10**9):
        seconds = measured[largest] * (impressions / largest) ** max(exponent, 1.0)
        peak = PEAK * impressions / MONTH_S
        rows.append(
            {
                "impressions": impressions,
                "log GB": log_bytes * impressions / 1e9,
                "pairs, hours": seconds / 3600,
                "searches/s": peak,
                "processes": math.ceil(peak / (LOAD * searches_s)),
                "measured": impressions in measured,
            }
        )
    return rows


def main() -> None:
    """Compute the tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    kept = {
        name: json.loads((RESULTS / f"{name}.json").read_text()) for name in ("scale_index", "click_pairs", "service")
    }
    engines, rng = kept["scale_index"]["engines"], np.random.default_rng(options.seed)
    workers = next(row for row in kept["service"]["workers"]["rows"] if row["what"] == "searches")
    beside = max((e["rows"][-1]["search"]["beside"] for e in engines.values()), key=lambda of: of["p50_ms"])
    search = {name: beside[name] for name in ("p50_ms", "p99_ms")}
    search["engine_ms"] = beside["p50_laps_ms"]["candidates"]
    results = {
        "seed": options.seed,
        "documents": of_documents(engines),
        "impressions": of_impressions(kept["click_pairs"], workers["one"]),
        "search": search,
        "processes": {"two to one, measured": workers["ratio"], "two to one, simulated": 2.0},
        "tails": tails(search, rng),
    }
    for name in ("documents", "impressions", "tails"):
        for row in results[name]:
            print(f"{name}: {json.dumps(row)}")
    if options.json is not None:
        write_results(options.json, results)


if __name__ == "__main__":
    main()
