"""The papers' retrieval protocol: 1,000 queries, each against its own documents and 10,000 random ones (spec E04)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.errors import ConfigError
from reranker.evaluation.protocols import RankingTask

N_QUERIES = 1_000
N_RANDOM = 10_000


def sample_pools(
    task: RankingTask, rng: np.random.Generator, n_queries: int = N_QUERIES, n_random: int = N_RANDOM
) -> RankingTask:
    """Return the task of some queries, each ranking its judged documents and random others.

    The queries are drawn from those with a relevant document (all, if there are no more), and keep their order. The
    database of a query is its judged documents and ``n_random`` documents drawn from the rest of the pool without
    what the task leaves out for it (the query itself, its training links); all of them, if there are no more. It is
    drawn once: hand the result to every system.

    All other documents become excluded pairs, 5 bytes each: n_queries * (pool - n_random) of them, 0.5 GB for 1,000
    queries over 100,000 documents.

    Parameters
    ----------
    task : RankingTask
        Over the whole pool.
    rng : Generator
        Draws queries and documents.
    n_queries, n_random : int
        At least 1, and at least 0.

    Raises
    ------
    ConfigError
        For numbers below these.

    Source: SSI and PSI, retrieval with 1,000 test queries and 10,000 documents; spec 4.2, E04, A18.
    """
    if n_queries < 1 or n_random < 0:
        raise ConfigError(
            f"{n_queries} queries and {n_random} random documents: draw at least 1 query, and 0 documents"
        )
    usable = np.flatnonzero(np.diff(task.relevant().indptr) > 0)
    chosen = usable if len(usable) <= n_queries else np.sort(rng.choice(usable, n_queries, replace=False))
    smaller = task.rows(chosen)
    out = [_left_out(smaller, row, rng, n_random) for row in range(len(chosen))]
    indptr = np.concatenate(([0], np.cumsum([len(one) for one in out])))
    indices = np.concatenate([np.empty(0, np.int32), *out])
    excluded = sp.csr_matrix((np.ones(len(indices), dtype=bool), indices, indptr), shape=smaller.excluded.shape)
    return RankingTask(
        smaller.query_ids, smaller.document_ids, smaller.grades, excluded, task.dropped, task.relevant_from
    )


def _left_out(
    task: RankingTask, row: int, rng: np.random.Generator, n_random: int
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the documents that take no part for a query, ascending."""
    parts = (task.grades, task.excluded)
    judged, known = (matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]] for matrix in parts)
    out = np.ones(len(task.document_ids), dtype=bool)
    out[judged] = out[known] = False
    free = np.flatnonzero(out)
    out[known] = True
    out[free if len(free) <= n_random else rng.choice(free, n_random, replace=False)] = False
    return np.flatnonzero(out).astype(np.int32)
