"""`ssi serve --proxy` against the engine's own ``_search``: whole HTTP requests, in one run with alternating turns.

    python benchmarks/bench_proxy.py --engine SPEC [--docs FILE] [--window 100] [--turns 8]
        [--workers 1] [--json FILE]

The same documents are indexed twice, as in `bench_search`: as they are, for the engine's own requests, and with the
fields of route *fetch*. One body (three words of a document, ten hits with their ``_source``) goes to the engine, to
the engine asking for the whole window, and to a service of each route *fetch* and *beside*. Connections, 1 and 8, ask
without pause, each in a thread, for a second a turn; engine, services and clients share the cores.

Figures are p50 in milliseconds, searches a second, and their ratios to the engine's own of ten hits and of the window;
for services also the processor time of a search, ms, in all of their processes.
The model is random: latency does not depend on what it has learned.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from bench_search import BODY, Sources, fill, queries_of, random_model
from provenance import write_results

from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.formats import read_documents
from reranker.models.model_folder import save_model
from tests.live.service_process import ServiceProcess

TURN_S = 1.0
WARM_UP_TURNS = 6
"""Turns before the measured ones: an engine that has just been started still compiles its code."""
CONNECTIONS = (1, 8)
OWN = "engine, 10 hits"
PASSED_ON = "proxy, passed on"
"""Searches of another index through the proxy, which the engine answers."""


def ask(url: str, path: str, bodies: list[bytes], seconds: float, expected: str | None) -> list[float]:
    """Return the milliseconds of requests one after the other, over one connection, for some seconds.

    ``expected`` is what the header that says whether an answer was reranked must be.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        connection.request("POST", path, bodies[len(times) % len(bodies)], {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200 or answer.headers.get("X-SSI-Reranked") != expected:
            raise SystemExit(f"{path}: {answer.status}, reranked: {answer.headers.get('X-SSI-Reranked')}")
        times.append((time.perf_counter() - started) * 1000.0)
    connection.close()
    return times


def cpu_s(service: ServiceProcess | None) -> float:
    """Return the processor time that a service has spent in all of its processes, in seconds; 0 for the engine."""
    if service is None:
        return 0.0
    times = [one.cpu_times() for one in (service.process, *service.process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def measure(
    ways: dict[str, tuple[str, str, int, ServiceProcess | None]], queries: list[str], turns: int
) -> dict[str, Any]:
    """Return the figures of each way, (URL, index, hits, service), by connections."""
    bodies = {
        name: [json.dumps({**fill_template(BODY, query), "size": size}).encode() for query in queries]
        for name, (_, _, size, _) in ways.items()
    }
    figures: dict[str, Any] = {}
    for n in CONNECTIONS:
        times: dict[str, list[float]] = {name: [] for name in ways}
        spent_s = dict.fromkeys(ways, 0.0)
        with ThreadPoolExecutor(n) as pool:
            for turn in range(-WARM_UP_TURNS, turns):
                for name, (url, index, _, service) in ways.items():
                    own = [bodies[name][(i * 37 + turn * 11) % len(queries) :] + bodies[name] for i in range(n)]
                    before_s = cpu_s(service)
                    said = None if service is None else "false" if name == PASSED_ON else "true"
                    work = partial(ask, url, f"/{index}/_search", seconds=TURN_S, expected=said)
                    done = pool.map(lambda some, work=work: work(some), own)
                    found = [value for part in done for value in part]
                    if turn >= 0:
                        times[name] += found
                        spent_s[name] += cpu_s(service) - before_s
        rows = {
            name: {
                "p50_ms": float(np.median(values)),
                "p99_ms": float(np.percentile(values, 99)),
                "searches_s": len(values) / (turns * TURN_S),
            }
            for name, values in times.items()
        }
        for name, row in rows.items():
            if spent_s[name]:
                row["processor_ms"] = spent_s[name] / len(times[name]) * 1000.0
            for other, short in ((OWN, "10 hits"), ("engine, window", "window")):
                row[f"p50 / engine's, {short}"] = row["p50_ms"] / rows[other]["p50_ms"]
                row[f"searches / engine's, {short}"] = row["searches_s"] / rows[other]["searches_s"]
            print(f"{n} connection(s), {name}: " + ", ".join(f"{key} {value:.2f}" for key, value in row.items()))
        figures[str(n)] = rows
    return figures


def run(spec: str, sources: Sources, window: int, turns: int, n_queries: int, workers: int) -> dict[str, Any]:
    """Return the figures of one engine; what was made in it is removed."""
    engine, stem, model = open_engine(spec), f"bench-{uuid.uuid4().hex[:8]}", random_model(sources)
    plain, full = f"{stem}-plain", f"{stem}-full"
    with tempfile.TemporaryDirectory() as folder:
        try:
            fill(engine, plain, full, sources, model, Path(folder) / "store")
            save_model(model, Path(folder) / "model")
            options = ["--engine", spec, "--index", full, "--model", f"{folder}/model", "--window", str(window)]
            options += ["--deadline-ms", "60000", "--alpha", ".5", "--proxy", "--log-level", "error"]
            options += ["--workers", str(workers)]
            beside = ServiceProcess(*options, "--route", "beside", "--store", f"{folder}/store")
            with ServiceProcess(*options) as fetch, beside:
                url = spec.partition(":")[2]
                ways = {
                    OWN: (url, plain, 10, None),
                    "engine, window": (url, plain, window, None),
                    "proxy, fetch": (f"http://127.0.0.1:{fetch.port}", full, 10, fetch),
                    "proxy, beside": (f"http://127.0.0.1:{beside.port}", full, 10, beside),
                    PASSED_ON: (f"http://127.0.0.1:{fetch.port}", plain, 10, fetch),
                }
                return measure(ways, list(queries_of(sources, n_queries)), turns)
        finally:
            for index in (plain, full):
                if engine.index_names(index):
                    engine.delete_index(index)
            engine.close()


def main() -> None:
    """Measure each engine and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--engine", action="append", required=True, help="spec of a server; may be given several times")
    parser.add_argument("--docs", type=Path, default=data / "cppdocs" / "docs_en.jsonl.gz")
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--turns", type=int, default=8, help="seconds for each way and number of connections")
    parser.add_argument("--workers", type=int, default=1, help="processes of each service")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "proxy.json")
    options = parser.parse_args()
    sources: Sources = {document.id: dict(document.source) for document in read_documents(options.docs)}
    result: dict[str, Any] = {
        "documents": len(sources),
        "window": options.window,
        "workers": options.workers,
        "engines": {},
    }
    for spec in options.engine:
        figures = run(spec, sources, options.window, options.turns, options.queries, options.workers)
        result["engines"][spec.partition(":")[0]] = figures
        write_results(options.json, result)


if __name__ == "__main__":
    main()
