"""Speed of the compiled training kernel on one core; part of ``bench_training.py``.

Every step changes U and V: a tuple of 8 query and 54 + 54 document words takes 2N(8 + 54 + 54) multiply-adds (project,
update). Its rows of U and V are read once and written back once from beyond the first-level cache, which they overflow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from reranker.kernels.rows import Rows
from reranker.kernels.sgd import (
    LexicalValues,
    NegativePool,
    Parameters,
    StepConfig,
    Tuples,
    sgd_steps,
)

QUERY_WORDS, DOCUMENT_WORDS, N_DOCUMENTS = 8, 54, 2_000


def kernel_problem(
    n_words: int, zipf: bool, dim: int
) -> tuple[Rows, Rows, LexicalValues, Tuples, NegativePool, Parameters]:
    """Return random rows of fixed lengths, their words drawn uniformly or by Zipf's law."""
    rng = np.random.default_rng(0)
    law = 1.0 / np.arange(1, n_words + 1)

    def rows(length: int) -> Rows:
        words = [rng.choice(n_words, length, False, law / law.sum() if zipf else None) for _ in range(N_DOCUMENTS)]
        indices = np.sort(np.array(words, np.int32), axis=1).ravel()
        indptr = np.arange(N_DOCUMENTS + 1, dtype=np.int64) * length
        return Rows(indptr, indices, rng.random(len(indices), np.float32))

    queries, documents, n = rows(QUERY_WORDS), rows(DOCUMENT_WORDS), 20_000
    none = np.zeros(0, np.int64)
    q, d = rng.integers(0, N_DOCUMENTS, (2, n))
    tuples = Tuples(q, d, np.ones(n, np.float32), np.zeros(n + 1, np.int64), none)
    negatives = NegativePool(np.arange(N_DOCUMENTS), np.zeros(N_DOCUMENTS + 1, np.int64), none)
    U, V = (rng.standard_normal((2, n_words, dim)) * 0.01).astype(np.float32)
    # Two arrays, as in training: parts of one array would be one allocation.
    return (
        queries,
        documents,
        LexicalValues(queries.data, queries.data**2, documents.data),
        tuples,
        negatives,
        Parameters(U.copy(), V.copy(), np.zeros((N_DOCUMENTS, dim), "f4")),
    )


def kernel_run(n_words: int, zipf: bool, dim: int, n: int, screened: bool) -> Callable[[], float]:
    """Return a call that gives the tuples/s of one stretch of steps, all of which violate the margin."""
    *arrays, parameters = kernel_problem(n_words, zipf, dim)
    config = StepConfig.of(
        rate_start=1e-6,
        rate_end=1e-6,
        n_total=10**9,
        identity=1e-3,
        max_norm=3 if screened else 0,
        max_trials=100 if screened else 1,
        hard_negatives=screened,
        keyword_share=0,
        keyword_min=1,
        keyword_max=1,
        query_dropout=0,
        stated_negative_ratio=0,
        n_columns=n_words,
        whole_from=10**9,
        freeze_documents=False,
    )
    state = np.array([7], np.uint64)

    def run() -> float:
        started = time.perf_counter()
        stats = sgd_steps(*arrays, parameters, config, state, 0, n)
        seconds = time.perf_counter() - started
        if stats[0] < 0.99 * n:  # a query's only candidate may be its positive
            raise RuntimeError(f"{stats[0]} of {n} steps changed the model: the figure would flatter")
        return n / seconds

    return run


def per_second(amount: float, call: Callable[[], object]) -> Callable[[], float]:
    """Return a call that gives the amount by the seconds that ``call`` takes."""

    def run() -> float:
        started = time.perf_counter()
        call()
        return amount / (time.perf_counter() - started)

    return run


def numpy_step(n_words: int, dim: int) -> Callable[[], None]:
    """Return 200 times the same step in numpy: gather, product, outer product added."""
    queries, documents, *_, (U, V, _) = kernel_problem(n_words, True, dim)
    ids = [part.indices.reshape(N_DOCUMENTS, -1) for part in (queries, documents)]
    data = [part.data.reshape(N_DOCUMENTS, -1) for part in (queries, documents)]

    def run() -> None:
        for one in range(200):
            q, p, n = ids[0][one], ids[1][one], ids[1][one + 1]
            x, y, z = data[0][one], data[1][one], data[1][one + 1]
            Uq, difference = np.dot(x, U[q]), np.dot(y, V[p]) - np.dot(z, V[n])
            U[q] += np.float32(1e-6) * np.outer(x, difference)
            V[p] += np.float32(1e-6) * np.outer(y, Uq)
            V[n] -= np.float32(1e-6) * np.outer(z, Uq)

    return run


def kernel(dim: int, n: int, rounds: int) -> dict[str, Any]:
    """Return the best of several rounds of every measurement, each round running all of them in turn."""
    rng = np.random.default_rng(0)
    source = rng.random(16_000_000, np.float32)
    target = np.empty_like(source)
    block, vector = rng.random((108, dim), np.float32), rng.random(dim, np.float32)
    macs = 2 * dim * (QUERY_WORDS + 2 * DOCUMENT_WORDS)
    runs: dict[str, Callable[[], float]] = {
        "uniform": kernel_run(30_000, False, dim, n, False),
        "zipf": kernel_run(30_000, True, dim, n, False),
        "in_cache": kernel_run(300, False, dim, n, False),
        "zipf, screened, capped": kernel_run(30_000, True, dim, n, True),
        "copy_bytes": per_second(2.0 * source.nbytes, lambda: np.copyto(target, source)),
        "dot_memory": per_second(len(source), lambda: np.dot(source, target)),
        "dot_cache": per_second(1000.0 * block.size, lambda: [np.dot(block, vector) for _ in range(1000)]),
        "numpy": per_second(200.0, numpy_step(30_000, dim)),
    }
    best = dict.fromkeys(runs, 0.0)
    for turn in range(rounds + 1):
        for name, run in runs.items():
            best[name] = max(best[name], run() if turn else 0.0 * run())
    figures: dict[str, Any] = {}
    for name in ("uniform", "zipf", "in_cache", "zipf, screened, capped", "numpy"):
        figures[name] = {
            "tuples_per_s": best[name],
            "mac_per_s": best[name] * macs,
            "row_bytes_per_s": best[name] * macs * 4,  # each row is read once and written back once
        }
    figures["copy_bytes_per_s"] = best["copy_bytes"]
    figures["dot_memory_mac_per_s"], figures["dot_cache_mac_per_s"] = best["dot_memory"], best["dot_cache"]
    figures["uniform_traffic_over_copy"] = best["uniform"] * macs * 4 / best["copy_bytes"]
    print(json.dumps(figures, indent=1), flush=True)
    return figures
