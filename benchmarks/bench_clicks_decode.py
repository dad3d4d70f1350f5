"""How long a million lines of a click log take to be decoded, beside `json.loads` alone on the same lines.

    python benchmarks/bench_clicks_decode.py [--lines 1000000] [--turns 3] [--ubi FILE ...] [--json FILE]

The lines are events of UBI 1.3: made here, as a shop's site logs them (``made``), and the events of the files given
with --ubi, repeated (``real``). ``json.loads`` has the lines in memory and throws the result away; ``read_file`` reads
the file, checks each value, hashes and redacts, and gives columns; ``import`` writes them to a click log as well. All
three take turns in one process; the best turn of each counts, as the machine may have other work.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from reranker.clicks.importing import import_files, read_file
from reranker.clicks.log import ClickLog
from reranker.clicks.privacy import Pseudonymiser

AT_ONCE = 50_000
FIRST_MS = 1_760_000_000_000
AGENTS = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
]


def made_lines(n_lines: int) -> Iterator[bytes]:
    """Yield events as a shop's site logs them: nine impressions and a click a query, three queries a session."""
    rng = np.random.default_rng(0)
    for number in range(n_lines):
        query, place = divmod(number, 10)
        session = query // 3
        ordinal = place + 1 if place < 9 else int(rng.integers(1, 10))
        moment = np.datetime64(FIRST_MS + 400 * number, "ms")
        yield (
            json.dumps(
                {
                    "application": "shop",
                    "action_name": "impression" if place < 9 else "click",
                    "query_id": f"{query:08x}-7f3a-4c1e-9d2b-{query * 7919 % 2**48:012x}",
                    "session_id": f"SESSION-{session:08x}-51fd-4b6e",
                    "client_id": f"CLIENT-{session // 4:08x}-0c44-47aa",
                    "timestamp": f"{moment}Z",
                    "message_type": "INFO",
                    "message": f"shown at {ordinal}",
                    "user_query": f"wireless headphones {query % 5000}",
                    "event_attributes": {
                        "object": {
                            "object_id": f"B{(query % 5000) * 31 + ordinal:09d}",
                            "object_id_field": "product_id",
                            "description": "Over-ear headphones, foldable, with microphone, 30 hours of playing",
                        },
                        "position": {"ordinal": ordinal, "xy": {"x": 120, "y": 88 * ordinal}},
                        "browser": AGENTS[session % 2 if session % 50 else 2],
                        "ip": f"192.0.{session % 250}.{session % 199}",
                    },
                }
            ).encode()
            + b"\n"
        )


def real_lines(paths: list[Path], n_lines: int) -> Iterator[bytes]:
    """Yield the events of files, over and over."""
    events = []
    for path in paths:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
            events += [line for line in lines if b'"action_name"' in line]
    yield from itertools.islice(itertools.cycle(events), n_lines)


def json_seconds(path: Path) -> float:
    """Return the CPU seconds of `json.loads` alone."""
    seconds = 0.0
    with open(path, "rb") as lines:
        while held := list(itertools.islice(lines, AT_ONCE)):
            started = time.process_time()
            for line in held:
                json.loads(line)
            seconds += time.process_time() - started
    return seconds


def read_seconds(path: Path) -> float:
    """Return the CPU seconds of reading the file to columns."""
    started = time.process_time()
    for _ in read_file(path, Pseudonymiser(bytes(32))):
        pass
    return time.process_time() - started


def import_seconds(path: Path) -> float:
    """Return the CPU seconds of bringing the file into a new click log."""
    with tempfile.TemporaryDirectory() as folder:
        log = ClickLog(Path(folder) / "log", create=True)
        started = time.process_time()
        import_files(log, [path], Pseudonymiser(bytes(32)))
        return time.process_time() - started


def measure(lines: Iterator[bytes], turns: int) -> dict[str, Any]:
    """Return the best times of a number of turns."""
    kinds: dict[str, Callable[[Path], float]] = {
        "json.loads": json_seconds,
        "read_log": read_seconds,
        "import": import_seconds,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.ndjson"
        with open(path, "wb") as file:
            file.writelines(lines)
        best = dict.fromkeys(kinds, float("inf"))
        for _ in range(turns):
            for name, run in kinds.items():
                best[name] = min(best[name], run(path))
        result: dict[str, Any] = {"bytes": path.stat().st_size}
    result |= {f"{name}_s": round(seconds, 2) for name, seconds in best.items()}
    result |= {f"{name}_ratio": round(best[name] / best["json.loads"], 3) for name in ("read_log", "import")}
    return result


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ubi", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    results: dict[str, Any] = {"lines": options.lines}
    results["made"] = measure(made_lines(options.lines), options.turns)
    if options.ubi:
        results["real"] = measure(real_lines(options.ubi, options.lines), options.turns)
    results["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    for name in ("made", "real"):
        if name in results:
            found = results[name]
            print(
                f"{name}: json.loads {found['json.loads_s']:.1f} s, read_log {found['read_log_s']:.1f} s "
                f"({found['read_log_ratio']:.2f} times), import {found['import_s']:.1f} s "
                f"({found['import_ratio']:.2f} times) for {options.lines:,} lines of {found['bytes']:,} bytes"
            )
    print(f"peak memory {results['peak_mib']} MiB")
    if options.json:
        write_results(options.json, results)


if __name__ == "__main__":
    main()
