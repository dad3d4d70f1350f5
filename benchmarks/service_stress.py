"""The service under stress, at full length, with the figures that it is to reach.

    python benchmarks/service_stress.py [--elasticsearch URL] [--only slow,oversize,...] [--json FILE]

What is done (by ``tests/live/service_drivers.py``), on Elasticsearch with 300 documents, window 200, 30 for swaps:

- ``slow``: 300 connections that send a header byte a second and 300 that send a body byte a second
- ``oversize``: bodies of 300 MB, 100,000 levels, 1,000,000 candidates, and seven other kinds of too much
- ``overload``: 60 s of ten times what the service can answer, in an open loop; then SIGTERM under load
- ``swaps``: 200 versions promoted one after the other under 32 connections, every 4th damaged, every 5th made for
  other vectors; each answer's scores are computed again with the version it names
- ``engine``: an engine process stopped by SIGSTOP for 30 s and let go on

Clients, service and engine share this machine: where it is busy with other work the times say little, and the load
average is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reranker.engines import WriteOp, open_engine
from reranker.models.model_folder import save_model
from reranker.releases import CONTROL_INDEX
from tests.engines.launcher import EngineProcess
from tests.live import service_drivers as drivers
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of, random_documents, serve

Goals = dict[str, tuple[Any, str, bool]]
"""What was measured, the goal in words, and whether it was reached."""


def options(served: Served, models: Path, *more: str, spec: str = "") -> list[str]:
    """Return the options of ``ssi serve``."""
    return [
        "--engine",
        spec or served.engine.spec,
        "--index",
        served.index,
        "--models",
        str(models),
        "--log-level",
        "warning",
        *more,
    ]


def slow(served: Served, models: Path, given: argparse.Namespace) -> Goals:
    """Send headers and bodies slowly."""
    with ServiceProcess(*options(served, models)) as service:
        found = drivers.slow_clients(service, given.slow, limit_s=30.0)
    ratio = found["p99_during_s"] / found["p99_before_s"]
    return {
        "connections": (found["connections"], "600", found["connections"] >= 600),
        "closed after at most, s": (found["longest_open_s"], "10", found["longest_open_s"] <= 10),
        "failures of a good client": (found["good_failures"], "0", found["good_failures"] == 0),
        "its p99, ms": (found["p99_during_s"] * 1000, "", True),
        "its p99 to that before": (ratio, "2", ratio <= 2),
        "file descriptors left": (found["fds_left"], "2", abs(found["fds_left"]) <= 2),
    }


def oversize(served: Served, models: Path, given: argparse.Namespace) -> Goals:
    """Send ten kinds of too much."""
    goals: Goals = {}
    with ServiceProcess(*options(served, models)) as service:
        for name, row in drivers.oversize(service, given.megabytes).items():
            value = f"{row['status']:.0f} in {row['seconds'] * 1000:.0f} ms, {row['grown_bytes'] / 1e6:+.0f} MB"
            refused = row["status"] in (400, 413, 415, 422, 431)
            goals[name] = (value, "4xx, 1 s, +64 MB", refused and row["seconds"] <= 1 and row["grown_bytes"] <= 64e6)
    return goals


def overload(served: Served, models: Path, given: argparse.Namespace) -> Goals:
    """Ask ten times too often, and end the service under load."""
    with ServiceProcess(*options(served, models)) as service:
        found = drivers.overload(service, 10.0, given.seconds, clients=16)
    with ServiceProcess(*options(served, models)) as service:
        end = drivers.stop_under_load(service, clients=16)
    other = set(found["replies"]) - {200, 429, 503}
    after = found["p99_after_s"] / found["p99_normal_s"]
    return {
        "capacity, searches/s": (found["capacity_per_s"], "", True),
        "answers": (found["replies"], "200, 429, 503", not other),
        "longest answer, s": (found["longest_s"], "2 (twice the deadline)", found["longest_s"] <= 2),
        "the client itself was late by, s": (found["client_lag_s"], ".5", found["client_lag_s"] <= 0.5),
        "good answers to capacity": (found["goodput_share"], ".8", found["goodput_share"] >= 0.8),
        "without Retry-After": (found["without_retry_after"], "0", found["without_retry_after"] == 0),
        "p99 2 s after it to that before": (after, "1.5", after <= 1.5),
        "answers 2 s after it": (found["replies_after"], "200", set(found["replies_after"]) == {200}),
        "SIGTERM: exit status": (end["exit_status"], "0", end["exit_status"] == 0),
        "SIGTERM: seconds": (end["seconds"], "10", end["seconds"] <= 10),
        "SIGTERM: requests in flight": (end["in_flight"], "", True),
        "SIGTERM: of these failed": (end["in_flight_failed"], "0", end["in_flight_failed"] == 0),
    }


def swaps(served: Served, models: Path, given: argparse.Namespace) -> Goals:
    """Promote versions under load."""
    candidates = drivers.Candidates(served, models)
    with ServiceProcess(*options(served, models, *drivers.SWAP_OPTIONS)) as service:
        found = drivers.hot_swaps(service, served, candidates, given.swaps, given.connections, given.swap_pause)
        refused = service.log.count('"result": "refused"')
    ratio = found["p99_swapping_s"] / found["p99_steady_s"]
    wanted = sum(number % 4 == 0 or number % 5 == 0 for number in range(1, given.swaps + 1))
    return {
        "promotions": (given.swaps, "200", given.swaps >= 200),
        "requests": (found["requests"], "20,000", found["requests"] >= 20_000),
        "versions that answered": (found["versions_seen"], "", True),
        "refused versions": (refused, str(wanted), refused == wanted),
        "failed requests": (found["failed"], "0", found["failed"] == 0),
        "answers not of exactly one sound version": (found["wrong_answers"], "0", found["wrong_answers"] == 0),
        "answers in the engine's order": (found["fallbacks"], "0", found["fallbacks"] == 0),
        "p99 to that without swaps": (ratio, "2", ratio <= 2),
        "memory after to before": (found["rss_ratio"], "1.1", found["rss_ratio"] <= 1.1),
    }


def engine(served: Served, models: Path, given: argparse.Namespace) -> Goals:
    """Stop the engine, and let it go on."""
    with EngineProcess("elasticsearch", heap="512m") as process, tempfile.TemporaryDirectory() as folder:
        spec, own = f"elasticsearch:{process.url}", Path(folder)
        documents = served.documents
        there = serve(open_engine(spec), "docs", own, documents, model_of(documents))
        save_model(there.model, own / "models" / "first")
        drivers.promote(there.engine, "docs", there.model.model_id, there.model.encoder_id)
        with ServiceProcess(*options(there, own / "models")) as service:
            found = drivers.engine_stops(service, process.pause, process.resume, given.pause, 1.0)
        there.engine.close()
    replies = set(found["replies"])
    return {
        "answers while it stood": (found["replies"], "200, 503", replies <= {200, 503}),
        "longest answer past the deadline, ms": (
            found["over_deadline_s"] * 1000,
            "100",
            found["over_deadline_s"] <= 0.1,
        ),
        "requests that waited for it": (found["slow_answers"], "", True),
        "of it a second": (found["slow_answers"] / given.pause, "1.5", found["slow_answers"] / given.pause <= 1.5),
        "without Retry-After": (found["without_retry_after"], "0", found["without_retry_after"] == 0),
        "first good answer after, s": (found["first_good_after_s"], "5", found["first_good_after_s"] <= 5),
        "threads left": (found["threads_left"], "2", abs(found["threads_left"]) <= 2),
        "file descriptors left": (found["fds_left"], "2", abs(found["fds_left"]) <= 2),
    }


PARTS: dict[str, Callable[[Served, Path, argparse.Namespace], Goals]] = {
    "slow": slow,
    "oversize": oversize,
    "overload": overload,
    "swaps": swaps,
    "engine": engine,
}


def show(value: Any) -> str:
    """Return a figure as it is printed."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run the parts and print one table each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--elasticsearch", default=os.environ.get("SSI_TEST_ELASTICSEARCH_URL", ""), metavar="URL")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by commas")
    parser.add_argument("--slow", type=int, default=300, help="slow connections of each kind")
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--swaps", type=int, default=200)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--swap-pause", type=float, default=0.2, help="seconds that a version answers")
    parser.add_argument("--pause", type=float, default=30.0, help="seconds that the engine stands still")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "service_stress.json")
    given = parser.parse_args()
    result: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "parts": {}}
    if given.json.is_file():
        result["parts"] = json.loads(given.json.read_text())["parts"]
    documents, index = random_documents(300), f"stress-{uuid.uuid4().hex[:8]}"
    search_engine = open_engine(f"elasticsearch:{given.elasticsearch}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        served = serve(search_engine, index, path / "store", documents, model_of(documents))
        try:
            for name in given.only.split(","):
                models = path / f"models-{name}"
                save_model(served.model, models / "first")
                drivers.promote(search_engine, index, served.model.model_id, served.model.encoder_id)
                load = os.getloadavg()[0]
                goals = PARTS[name](served, models, given)
                report(name, goals, load)
                rows = {what: {"value": show(v), "goal": goal, "reached": ok} for what, (v, goal, ok) in goals.items()}
                result["parts"][name] = {"load_before": round(load, 1), "figures": rows}
        finally:
            search_engine.delete_index(index)
            search_engine.bulk(CONTROL_INDEX, [WriteOp("delete", index)])
            search_engine.close()
    given.json.parent.mkdir(exist_ok=True)
    write_results(given.json, result)


def report(name: str, goals: Goals, load: float) -> None:
    """Print one part."""
    print(f"\n{name} (load average before: {load:.1f})")
    for what, (value, goal, reached) in goals.items():
        mark = "" if not goal else "reached" if reached else "MISSED"
        print(f"  {what:45}{show(value):>45}  {goal:22}{mark}")


if __name__ == "__main__":
    main()
