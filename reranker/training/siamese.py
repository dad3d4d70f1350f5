"""The class ``s2net`` from any evidence: one matrix for queries and documents, learned from preferences (spec 2.7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.baselines.decomposition import singular_vectors
from reranker.errors import TrainingError
from reranker.models.base import Scorer
from reranker.models.projection import Projection
from reranker.training.config import Schedule
from reranker.training.problem import Problem
from reranker.training.s2net import S2NetSettings, fit_s2net
from reranker.training.s2net_loss import GradedPairs
from reranker.training.trainer import Epoch
from reranker.training.workshop import Float32, as_asked, csr_of

MAX_WORDS = 20_000
"""Words with a row at most, the most frequent: L-BFGS keeps some twenty copies of the matrix in float64."""
MAX_TEXTS = 20_000
"""Documents whose words the start is made from."""
NEGATIVES = 30
"""Documents that a query's relevant ones are compared with."""
_DRAWN = 200
"""Candidates of a query's negatives: half of them are the ones that the start takes for nearest."""
ITERATIONS = (20, 100)
IDENTITIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Weights a of q.d beside the cosine that are tried on validation."""
Evaluate = Callable[[Float32, float], float]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SiameseSettings:
    """How it is learned: beta of `S2NetSettings` (the pull to the start), and iterations at most."""

    beta: float = 0.0
    max_iterations: int = 60


class Siamese(NamedTuple):
    """A, the weight a of q.d, the iteration it is of, its validation MAP, and the learning curve."""

    A: Float32
    identity: float
    best_iteration: int
    best_map: float | None
    history: list[Epoch]


def iterations_of(schedule: Schedule) -> int:
    """Return the iterations that look at as many pairs as the epochs of SGD: epochs x candidates / negatives."""
    return int(np.clip(schedule.epochs * schedule.max_trials // NEGATIVES, *ITERATIONS))


def start_of_texts(problem: Problem, n_rows: int, n_dims: int, rng: np.random.Generator) -> Float32:
    """Return LSI of the documents' texts: the first right singular vectors, (n_words, n_dims or fewer) float32."""
    rows = csr_of(problem.documents, min(n_rows, MAX_WORDS))
    if rows.shape[0] > MAX_TEXTS:
        rows = rows[np.sort(rng.choice(rows.shape[0], MAX_TEXTS, replace=False))]
    n = min(n_dims, min(rows.shape) - 1)
    if n < 1:
        raise TrainingError(
            f"{rows.shape[0]} documents of {rows.shape[1]} words with learned rows have no dimensions to start from: "
            f"give more documents, or another --model-class"
        )
    return np.ascontiguousarray(singular_vectors(rows, n, rng, fewer=True).words, dtype=np.float32)


def fit_siamese(
    problem: Problem,
    schedule: Schedule,
    start: Float32,
    settings: SiameseSettings,
    *,
    rng: np.random.Generator,
    identities: tuple[float, ...] = IDENTITIES,
    evaluate: Evaluate | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Siamese:
    """Return the projection A that L-BFGS reaches from the start, and the weight a of q.d beside its cosine.

    A query's relevant documents are each compared with the stated worse ones and `NEGATIVES` others, half random,
    half those of 200 random ones that the start puts highest. Queries that are documents are asked whole, and once
    more cut to words where the schedule trains on keywords. Weights of preferences are not used.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule
    start : (n_words, N) float32
        A0, of the most frequent words.
    settings : SiameseSettings
    rng : Generator
    identities : tuple of float
        Weights a to choose from on validation; without one, the middle one is taken.
    evaluate : callable, optional
        (A, a) -> validation MAP, at the start, every five iterations and the last; without it the last A is taken.
    progress : callable, optional
        (iterations done, at most).

    Source
    ------
    spec 2.7: M21 (logistic loss, early stopping), M23 (beta).
    """
    data = _pairs(problem, schedule, start, rng)
    begun, history = time.perf_counter(), list[Epoch]()
    a = _best(start, identities, evaluate)

    def told(iteration: int, loss: float, value: float | None) -> None:
        reached = None if value is None else -value
        history.append(Epoch(iteration, 0.0, NEGATIVES, loss, reached, 0.0, time.perf_counter() - begun))
        if progress is not None:
            progress(iteration, settings.max_iterations)

    def judge(scorer: Scorer) -> float:
        return -evaluate(scorer.A, a) if evaluate is not None and isinstance(scorer, Projection) else 0.0

    fitted = fit_s2net(
        data, Projection(start, start), S2NetSettings(beta=settings.beta, max_iterations=settings.max_iterations),
        validate=None if evaluate is None else judge, progress=told,
    )  # fmt: skip
    if evaluate is None:
        return Siamese(fitted.A, a, len(history), None, history)
    a = _best(fitted.A, identities, evaluate)
    measured = [line for line in history if line.map is not None]
    best = max(measured, key=lambda line: line.map or 0.0, default=None)
    # The last iteration is judged after the search, without a line of its own; the start is iteration 0.
    number = 0 if np.array_equal(fitted.A, start) else best.number if best is not None else len(history)
    return Siamese(fitted.A, a, number, evaluate(fitted.A, a), history)


def _best(A: Float32, tried: tuple[float, ...], evaluate: Evaluate | None) -> float:
    """Return the weight of q.d with the best validation MAP, the smallest among equals; the middle one without."""
    if evaluate is None:
        return tried[len(tried) // 2]
    values = [evaluate(A, a) for a in tried]
    return tried[int(np.argmax(values))]


def _pairs(problem: Problem, schedule: Schedule, start: Float32, rng: np.random.Generator) -> GradedPairs:
    """Return each query's relevant documents with grade 1 and its negatives with grade 0."""
    q_rows, d_rows = (csr_of(rows, len(start)) for rows in (problem.queries, problem.documents))
    tuples = problem.tuples
    asked, place = np.unique(tuples.query, return_inverse=True)
    projection = Projection(start, start)
    q_vectors, d_vectors = projection.embed_queries(q_rows[asked]), projection.embed_documents(d_rows)
    relevant = [np.unique(tuples.document[one]) for one in _groups(place, len(asked))]
    query: list[Int64s] = []
    document: list[Int64s] = []
    grade: list[npt.NDArray[np.float64]] = []
    for number, (row, better) in enumerate(zip(asked.tolist(), relevant, strict=True)):
        others = _negatives(problem, row, q_vectors[number], d_vectors, rng)
        stated = np.flatnonzero(place == number) if len(tuples.worse) else ()
        worse = [tuples.worse[tuples.worse_indptr[t] : tuples.worse_indptr[t + 1]] for t in stated]
        negative = np.setdiff1d(np.concatenate([others, *worse]), better)
        document.append(np.concatenate([better, negative]))
        query.append(np.full(len(better) + len(negative), number, dtype=np.int64))
        grade.append(np.repeat([1.0, 0.0], [len(better), len(negative)]))
    parts = [np.concatenate(one) for one in (query, document, grade)]
    rows = q_rows[asked]
    if schedule.keyword_share:
        cut = as_asked(rows, asked < problem.n_document_queries, schedule, rng)
        rows = sp.vstack([rows, cut], format="csr")
        parts = [np.concatenate([parts[0], parts[0] + len(asked)]), np.tile(parts[1], 2), np.tile(parts[2], 2)]
    return GradedPairs(rows, d_rows, parts[0].astype(np.int64), parts[1].astype(np.int64), parts[2].astype(np.float64))


def _groups(place: npt.NDArray[np.integer], n: int) -> list[Int64s]:
    """Return the positions of each number in ``place``."""
    order = np.argsort(place, kind="stable")
    groups: list[Int64s] = np.split(order, np.cumsum(np.bincount(place, minlength=n))[:-1])
    return groups


def _negatives(problem: Problem, query: int, q_vector: Float32, d_vectors: Float32, rng: np.random.Generator) -> Int64s:
    """Return documents that are not known to belong to a query: half the nearest of some random ones, half random."""
    pool, known = problem.candidates.pool, problem.candidates
    drawn = np.unique(pool[rng.integers(len(pool), size=min(_DRAWN, 2 * len(pool)))])
    own = known.known[known.known_indptr[query] : known.known_indptr[query + 1]]
    drawn = np.setdiff1d(drawn, own, assume_unique=True)
    nearest = drawn[np.argsort(-(d_vectors[drawn] @ q_vector), kind="stable")]
    rest = rng.permutation(nearest[NEGATIVES // 2 :])
    chosen: Int64s = np.concatenate([nearest[: NEGATIVES // 2], rest[: NEGATIVES // 2]])
    return chosen
