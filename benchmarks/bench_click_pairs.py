"""How long a click log takes to become pairs, and how much memory, beside a plain scan of its files.

    python benchmarks/bench_click_pairs.py [--impressions 100000 1000000 10000000] [--memory 1200] [--threads N]
        [--folder DIR] [--json FILE]

The log is made here, as `ssi clicks import` would keep it: ten hits a query, query ids of 32 characters, three queries
a session, a sixth of the sessions without a user, clicks by position (half of the queries have one), dwell times, a
hundredth of the lines twice, a robot among ten thousand people. Each run is a process of its own, whose memory is
sampled; the time of ``duckdb`` is from opening the log to the sorted Parquet file and does not hold the start of
Python. ``scan`` reads all columns of the same files with pyarrow and does nothing with them. With --folder the logs are
kept there and used again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil  # type: ignore[import-untyped, unused-ignore]
import pyarrow as pa
import pyarrow.parquet as pq
from provenance import write_results

from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import PairConfig, Resources, make_pairs
from reranker.clicks.schema import TABLES

N_HITS, POOL, AT_ONCE, A_DAY = 10, 30, 50_000, 100_000
JOBS = ("scan", "duckdb")
FIRST_MS, DAY_MS = 1_760_000_000_000, 86_400_000
Ints = npt.NDArray[np.int64]
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def hex_ids(numbers: Ints, salt: int, width: int) -> pa.Array:
    """Return ids of ``width`` hexadecimal digits: a mixed number, repeated to the width."""
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    shifts = np.uint64(4) * (np.arange(width, dtype=np.uint64) % np.uint64(16))
    digits = _HEX[((mixed[:, None] >> shifts) & np.uint64(15)).astype(np.uint8)]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def batches(n_impressions: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the rows of the log, ``AT_ONCE`` queries at a time."""
    rng = np.random.default_rng(0)
    n_texts, n_sessions = max(n_impressions // 20, 100), max(n_impressions // 3, 1)
    words = pa.array([f"word{number:05d}" for number in range(20_000)])
    for start in range(0, n_impressions, AT_ONCE):
        number = np.arange(start, min(start + AT_ONCE, n_impressions))
        n = len(number)
        text = (n_texts * rng.random(n) ** 3).astype(np.int64)
        session = rng.integers(0, n_sessions, n)
        user = np.where(session % 6 == 0, -1, session // 7)
        when = FIRST_MS + number // A_DAY * DAY_MS + rng.integers(0, DAY_MS, n)
        first, second = words.take(pa.array(text % 20_000)), words.take(pa.array(text * 7 // 3 % 20_000))
        people = {
            "session": hex_ids(session, 1, 20),
            "user": pa.compute.if_else(pa.array(user >= 0), hex_ids(user, 2, 20), ""),
            "network": hex_ids(session % 5_000, 3, 20),
            "agent": pa.compute.if_else(pa.array(session % 10_000 == 9), "crawler", ""),
        }
        queries = {
            "query_id": hex_ids(number, 4, 32),
            "query": pa.compute.binary_join_element_wise(first, second, " "),
            "time": pa.array(when),
            "application": pa.array(["shop"] * n),
            **people,
        }
        yield {**_shown(rng, number, text, queries), "queries": _with_repeats(rng, queries)}


def _shown(rng: np.random.Generator, number: Ints, text: Ints, queries: dict[str, Any]) -> dict[str, Any]:
    """Return the hits of queries, and clicks on them by position and by how good the document is."""
    n = len(number)
    row, rank = np.repeat(np.arange(n), N_HITS), np.tile(np.arange(1, N_HITS + 1), n)
    document = text[row] * POOL + (rank * 7 + rng.integers(0, 3, n)[row]) % POOL
    clicked = np.flatnonzero(rng.random(n * N_HITS) < 0.4 / rank * (0.2 + document % 7 / 6))
    of = pa.array(row[clicked])
    documents = hex_ids(document, 5, 10)
    hits = {"query_id": queries["query_id"].take(pa.array(row)), "position": pa.array(rank), "document": documents}
    events = {
        name: queries[name].take(of) for name in ("query_id", "session", "user", "network", "agent", "application")
    }
    kind = rng.random(len(clicked))
    events |= {
        "action": pa.array(np.where(kind < 0.97, "click", np.where(kind < 0.99, "add_to_cart", "purchase"))),
        "document": documents.take(pa.array(clicked)),
        "ordinal": pa.array(rank[clicked]),
        "time": pa.array(queries["time"].to_numpy()[row[clicked]] + rng.integers(2_000, 300_000, len(clicked))),
        "dwell": pa.array(rng.exponential(40.0, len(clicked))),
    }
    return {"hits": hits, "events": _with_repeats(rng, events)}


def _with_repeats(rng: np.random.Generator, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the rows, a hundredth of them twice."""
    n = len(next(iter(columns.values())))
    order = pa.array(np.sort(np.concatenate([np.arange(n), rng.integers(0, n, n // 100)])))
    return {name: column.take(order) for name, column in columns.items()}


def make_log(folder: Path, n_impressions: int) -> ClickLog:
    """Return the log in a folder, made if it is not there."""
    log = ClickLog(folder, create=True)
    log.add(batches(n_impressions), f"made-{n_impressions}")
    return log


def scan(log: ClickLog) -> int:
    """Read every column that pairs need of every file, and return the number of rows."""
    rows = 0
    for table, columns in TABLES.items():
        for path in log.files(table):
            rows += pq.read_table(path, columns=list(columns), partitioning=None).num_rows
    return rows


def child(job: str, folder: Path, memory_mb: int, threads: int | None, work: Path) -> dict[str, Any]:
    """Do one job in this process, and return its figures."""
    log = ClickLog(folder)
    resources = Resources(threads=threads, memory_mb=memory_mb)
    started, cpu = time.perf_counter(), time.process_time()
    if job == "scan":
        counts = {"rows": scan(log)}
    else:
        with make_pairs(log, PairConfig(), resources=resources) as table:
            table.write(work / "pairs.parquet")
            counts = table.counts
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "cpu_s": time.process_time() - cpu,
        "own_peak_mb": peak_mb,
        "counts": counts,
    }


def measure(job: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one job in a process of its own, and return its figures with its peak memory."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as work:
        command = [
            sys.executable,
            __file__,
            "--child",
            job,
            "--folder",
            str(folder),
            "--work",
            work,
            "--memory",
            str(arguments.memory),
        ]
        command += ["--threads", str(arguments.threads)] if arguments.threads else []
        environment = {**os.environ, "TMPDIR": work}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(process.pid, peak), daemon=True)
        watcher.start()
        output, errors = process.communicate()
        watcher.join()
    if process.returncode:
        return {"error": last_message(errors) or f"exit {process.returncode}"}
    return {**json.loads(output.splitlines()[-1]), "peak_mb": peak[0] / 2**20}


def last_message(errors: str) -> str:
    """Return the last exception told on stderr, its lines joined, without the stack: at most the last 2,000 characters.

    Without an exception, all of stderr is taken.
    """
    lines = errors.rpartition("Traceback (most recent call last):")[2].splitlines()
    if len(lines) < len(errors.splitlines()):
        # Frames are indented and stand before the message.
        lines = list(itertools.dropwhile(lambda line: line[:1] in ("", " "), lines))
    return " ".join(line for line in map(str.strip, lines) if line)[-2_000:]


def _watch(pid: int, peak: list[int]) -> None:
    """Keep the largest resident memory of a process."""
    try:
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.05)
    except psutil.NoSuchProcess:
        return


def table_line(n: int, job: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{n:>12,}  {job:<8}  {found['error']}"
    counts = found["counts"]
    what = f"{counts['rows']:,} rows" if "rows" in counts else f"{counts['pairs']:,} pairs"
    speed = f"{found['s_per_million']:>9.1f} s a million{found['of_scan']:>7.1f} x scan"
    return f"{n:>12,}  {job:<8}{found['seconds']:>9.1f} s{found['peak_mb']:>9,.0f} MB{speed}  {what}"


def growth(results: dict[str, dict[str, Any]], job: str, key: str) -> list[float]:
    """Return the exponents between neighbouring sizes: 1 is linear."""
    points = [(int(n), found[job][key]) for n, found in results.items() if job in found and key in found[job]]
    return [
        math.log(second[1] / first[1]) / math.log(second[0] / first[0]) for first, second in itertools.pairwise(points)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impressions", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--memory", type=int, default=1200, help="MB, of DuckDB")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        found = child(arguments.child, arguments.folder, arguments.memory, arguments.threads, arguments.work)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as temporary:
        arguments.folder = arguments.folder or Path(temporary)
        report = compare(arguments)
    if arguments.json:
        write_results(arguments.json, report)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return, and print, the figures of all sizes and jobs."""
    results: dict[str, dict[str, Any]] = {}
    for n in arguments.impressions:
        folder = arguments.folder / f"clicks-{n}"
        started = time.perf_counter()
        log = make_log(folder, n)
        size = sum(path.stat().st_size for table in TABLES for path in log.files(table))
        made_s = time.perf_counter() - started
        print(f"{n:>12,}  impressions: {size / 2**20:,.0f} MB of Parquet, made in {made_s:.0f} s", flush=True)
        results[str(n)] = {"bytes": size}
        for job in JOBS:
            found = results[str(n)][job] = measure(job, folder, arguments)
            if "seconds" in found:
                found["s_per_million"] = found["seconds"] / n * 1e6
                found["of_scan"] = found["seconds"] / results[str(n)]["scan"].get("seconds", math.nan)
            print(table_line(n, job, results[str(n)][job]), flush=True)
    exponents = {job: {key: growth(results, job, key) for key in ("seconds", "peak_mb")} for job in JOBS}
    for job, of in exponents.items():
        if of["seconds"]:
            print(f"{job}: time grows like n^{of['seconds'][-1]:.2f}, memory like n^{of['peak_mb'][-1]:.2f}")
    return {
        "memory_mb": arguments.memory,
        "cores": os.cpu_count(),
        "threads": arguments.threads,
        "load_at_end": os.getloadavg()[0],
        "impressions": results,
        "growth": exponents,
    }


if __name__ == "__main__":
    main()
