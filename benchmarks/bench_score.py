"""Time to score 1,000 candidates beside the engine, in process, on one core, against the time to read their bytes.

    python benchmarks/bench_score.py [--json FILE]

For stores of 100,000 documents (larger than the caches) and of 7,000, rows of about 54 and 120 terms, N = 100, queries
of 3 to 200 words, 1,000 candidates anywhere in the store: `score_rows` as the reranker calls it, the
reference kernel, and a plain read (a sum) of the very same bytes. Figures are milliseconds, p50 and p99 of 400 calls;
each call has other candidates. Target: p50 <= 0.5 ms.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numba as nb
import numpy as np
import numpy.typing as npt

from reranker.kernels.rows import score_rows
from tests.reference import rows as reference

N_DIMS, N_WORDS, N_CANDIDATES, N_CALLS = 100, 30_000, 1000, 400
Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32]]
Query = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.float32], float]


@nb.njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator, unused-ignore]
def read_rows(
    cand_rows: npt.NDArray[np.int64],
    V_docs: npt.NDArray[np.float32],
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    data: npt.NDArray[np.float32],
) -> float:
    """Return the sum of every number of the candidates' rows: the least that any scoring must read."""
    total, ids = np.float32(0), np.int32(0)
    for row in cand_rows:
        for k in range(V_docs.shape[1]):
            total += V_docs[row, k]
        for p in range(indptr[row], indptr[row + 1]):
            total += data[p]
        for p in range(indptr[row], indptr[row + 1]):
            ids += indices[p]
    return float(total) + ids


def make_store(n_documents: int, n_terms: int, rng: np.random.Generator) -> Arrays:
    """Return vectors and CSR rows with word ids that fall off as those of texts do, 1 in 50 of them hashed."""
    lengths = rng.integers(n_terms // 2, n_terms * 3 // 2, n_documents)
    ids = (N_WORDS * rng.random(lengths.sum()) ** 3).astype(np.int64)
    ids = np.where(rng.random(len(ids)) < 0.02, 2**30 + rng.integers(0, 2**29, len(ids)), ids)
    keys = np.unique(np.repeat(np.arange(n_documents) << 31, lengths) | ids)
    indptr = np.searchsorted(keys, np.arange(n_documents + 1) << 31)
    vectors = rng.normal(size=(n_documents, N_DIMS)).astype(np.float32)
    return vectors, indptr, (keys & 2**31 - 1).astype(np.int32), rng.random(len(keys)).astype(np.float32)


def make_query(n_words: int, rng: np.random.Generator) -> Query:
    """Return the query's part of score_rows' arguments."""
    ids = np.unique(np.append((N_WORDS * rng.random(n_words) ** 3).astype(np.int32), 2**30 + 5)).astype(np.int32)
    return rng.normal(size=N_DIMS).astype(np.float32), ids, rng.random(len(ids)).astype(np.float32), 1.0


def percentiles(call: Callable[[int], object], n_calls: int) -> tuple[float, float]:
    """Return p50 and p99 of the call's time in milliseconds, after one call to warm up."""
    call(0)
    times = []
    for i in range(n_calls):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return float(p50), float(p99)


def measure(store: Arrays, n_terms: int, n_words: int) -> dict[str, Any]:
    """Return the figures of one store and query length."""
    rng = np.random.default_rng(1)
    indptr = store[1]
    n_documents = len(indptr) - 1
    queries = [make_query(n_words, rng) for _ in range(N_CALLS)]
    candidates = [rng.integers(0, n_documents, N_CANDIDATES) for _ in range(N_CALLS)]
    ours = percentiles(lambda i: score_rows(*queries[i], candidates[i], *store), N_CALLS)
    read = percentiles(lambda i: read_rows(candidates[i], *store), N_CALLS)
    slow = percentiles(lambda i: reference.score_rows(*queries[i], candidates[i], *store), 3)
    n_bytes = np.mean([(np.diff(indptr)[rows] * 8 + 4 * N_DIMS).sum() for rows in candidates[:20]])
    return {
        "documents": n_documents,
        "terms": n_terms,
        "query words": n_words,
        "MB read": n_bytes / 1e6,
        "score p50 ms": ours[0],
        "score p99 ms": ours[1],
        "read p50 ms": read[0],
        "read p99 ms": read[1],
        "score/read": ours[0] / read[0],
        "reference p50 ms": slow[0],
    }


def main() -> None:
    """Print one line a case, and write them all as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"N = {N_DIMS}, {N_CANDIDATES} candidates; {machine}")
    results = []
    for n_documents in (100_000, 7_000):
        for n_terms in (54, 120):
            store = make_store(n_documents, n_terms, np.random.default_rng(0))
            for n_words in (3, 10, 54, 200):
                figures = measure(store, n_terms, n_words)
                results.append(figures)
                print("  ".join(f"{key} {value:.3g}" for key, value in figures.items()), flush=True)
    if options.json:
        write_results(options.json, {"machine": machine, "n_candidates": N_CANDIDATES, "results": results})


if __name__ == "__main__":
    main()
