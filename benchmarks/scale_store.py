"""Route *beside* from a store larger than the memory that is left for its files: scoring a window of documents.

    python benchmarks/scale_store.py [--documents 1000000] [--shares 1.25,0.5,0.25,0.1] [--window 200] [--calls 300]
                                     [--skews 0,1] [--work FOLDER] [--json FILE]

A made store (vectors of 100 dimensions in float16, 60 words a document) is opened by a new process for each share.
Besides ``--base-mb`` it may use so many times the store's bytes, the pages of its files included: a memory cgroup holds
it to that, and nothing of the files is in memory before. Each call scores a window as the reranker does: ids to
vectors and words, and these to scores. Documents are drawn by their popularity, document k in proportion to k**-skew,
the popular ones anywhere in the files; evenly (skew 0) is the worst case, where a page is asked for twice by chance
alone.

Figures are milliseconds of a call, p50 and p99, and bytes read from the disk a call, after as many calls that are not
counted; ``first`` is the slowest of the first ten. Memory cgroups, version 1 or 2, can be made by root alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from provenance import write_results

from reranker.arrays import N_TERM_IDS
from reranker.engines.vectors import QueryVectors
from reranker.rerank.candidates import LocalStore
from reranker.store import DATA, StoreWriter, VectorStore

DIMS, N_WORDS, WORDS, BATCH = 100, 60, 100_000, 5_000
CGROUPS = Path("/sys/fs/cgroup")


def write_store(folder: Path, n: int) -> int:
    """Write the store unless it is there; return its bytes."""
    if not (folder / DATA).is_file():
        rng = np.random.default_rng(0)
        with StoreWriter(folder, "0" * 64, DIMS, quantisation="float16") as writer:
            for first in range(0, n, BATCH):
                size = min(BATCH, n - first)
                words = np.sort(rng.integers(0, WORDS - N_WORDS, (size, N_WORDS)), axis=1) + np.arange(N_WORDS)
                rows = sp.csr_matrix(
                    (
                        rng.random(size * N_WORDS, dtype=np.float32),
                        words.ravel().astype(np.int32),
                        np.arange(size + 1, dtype=np.int64) * N_WORDS,
                    ),
                    shape=(size, N_TERM_IDS),
                )
                vectors = rng.normal(scale=0.1, size=(size, DIMS)).astype(np.float32)
                writer.add([id_of(number) for number in range(first, first + size)], vectors, rows, [""] * size)
            writer.publish()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def id_of(number: int) -> str:
    """Return the id of a document."""
    return f"doc-{number:010d}"


def forget_pages(folder: Path) -> None:
    """Let the system drop the pages of the store's files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def memory_of(limit: int) -> Iterator[Path]:
    """Make a cgroup of so many bytes, pages of files included, and remove it."""
    is_first_version = (CGROUPS / "memory").is_dir()
    group = (CGROUPS / "memory" if is_first_version else CGROUPS) / f"ssi-store-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_first_version else "memory.max")).write_text(str(limit))
    except OSError as error:
        raise SystemExit(
            f"a memory cgroup could not be made at {group} ({error.strerror}): run this as root"
        ) from error
    try:
        yield group
    finally:
        group.rmdir()


def asked(n: int, calls: int, window: int, skew: float) -> Iterator[list[str]]:
    """Yield the ids of each window, each document once in a window."""
    rng = np.random.default_rng(1)
    order = rng.permutation(n)
    shares = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -skew)
    for _ in range(calls):
        drawn = np.searchsorted(shares, rng.random(3 * window) * shares[-1])
        _, first = np.unique(drawn, return_index=True)
        yield [id_of(int(order[min(drawn[place], n - 1)])) for place in np.sort(first)[:window]]


def call_times(folder: Path, calls: int, window: int, skew: float) -> dict[str, Any]:
    """Return what the calls of this process took."""
    store = VectorStore.open(folder)
    route = LocalStore(store)
    rng = np.random.default_rng(2)
    words = np.sort(rng.choice(WORDS, 3, replace=False)).astype(np.int32)
    query = QueryVectors(rng.normal(size=DIMS).astype(np.float32), words, np.ones(3, np.float32), 1.0)
    seconds, began = list[float](), 0
    for number, ids in enumerate(asked(len(store), 2 * calls, window, skew)):
        if number == calls:
            began = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        started = time.perf_counter()
        route.vectors_of(ids).score(query)
        seconds.append(time.perf_counter() - started)
    kb = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - began) / 2
    p50, p99 = np.percentile(1000 * np.array(seconds[calls:]), [50, 99])
    return {
        "p50 ms": round(float(p50), 3),
        "p99 ms": round(float(p99), 3),
        "first ms": round(1000 * max(seconds[:10]), 1),
        "KB a call": round(kb / calls, 1),
    }


def measured(folder: Path, limit: int, skew: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return `call_times` of a process of its own, in a cgroup of so many bytes."""
    forget_pages(folder)
    with memory_of(limit) as group:
        command = [sys.executable, __file__, "--child", str(folder), "--calls", str(options.calls)]
        command += ["--window", str(options.window), "--skew", str(skew)]

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--shares", default="1.25,0.5,0.25,0.1", metavar="LIST", help="memory, of the store's bytes")
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--skews", default="0,1", metavar="LIST")
    parser.add_argument("--base-mb", type=int, default=160, help="what the process needs without the store")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep the store there")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--skew", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(call_times(options.child, options.calls, options.window, options.skew)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.work or Path(scratch)) / f"store-{options.documents}"
        n_bytes = write_store(folder, options.documents)
        rows: list[dict[str, Any]] = []
        asking = {"window": options.window, "base_mb": options.base_mb}
        figures = {"documents": options.documents, "bytes": n_bytes, **asking, "rows": rows}
        for skew, share in product(map(float, options.skews.split(",")), map(float, options.shares.split(","))):
            limit = int(share * n_bytes) + options.base_mb * 2**20
            row = {"skew": skew, "memory": share, **measured(folder, limit, skew, options)}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.json is not None:
                write_results(options.json, figures)


if __name__ == "__main__":
    main()
