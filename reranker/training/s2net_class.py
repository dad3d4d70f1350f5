"""The model class ``s2net``: q.d plus the cosine of texts by one projection, trained by S2Net from LSI of the texts."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64, Int64
from reranker.errors import TrainingError
from reranker.kernels.singular_vectors import singular_vectors
from reranker.models.scorers import DocumentForm, Projection, Scorer
from reranker.progress import Progress, no_progress
from reranker.training.config import Schedule
from reranker.training.context import TrainedParameters, TrainingContext, values_by
from reranker.training.problem import Problem, as_trained, csr_of, two_rows
from reranker.training.s2net import GradedPairs, S2NetSettings, fit_s2net
from reranker.training.trainer import Epoch, TrainResult

MAX_WORDS = 20_000
"""Largest number of words with a row, the most frequent; L-BFGS stores about twenty copies of the matrix in float64."""
MAX_TEXTS = 20_000
"""Largest number of documents from whose words the start is computed."""
NEGATIVES = 30
"""Number of documents with which the relevant ones of a query are compared."""
_DRAWN = 200
"""Number of random candidates for a query's negatives; half of the negatives are those nearest by the start."""
ITERATIONS = (20, 100)
"""Smallest and largest number of iterations of L-BFGS."""
IDENTITIES = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Weights a of q.d, compared with the cosine's 1, that are tried on validation."""


def fit_s2net_class(context: TrainingContext, first: TrainedParameters | None) -> TrainedParameters:
    """Return the parameters of one projection, trained from LSI of the texts and scored by its cosine."""
    rng = context.fresh_rng()
    start = start_of_texts(context.problem, context.n_rows, context.config.dim, rng)
    identities: tuple[float, ...] = IDENTITIES if first is None else (first.identity,)
    if not context.config.identity:
        identities = (0.0,)
    n = iterations_of(context.schedule) if first is None else max(first.result.best_epoch, 1)

    def evaluate(A: Float32, a: float) -> float:
        values = values_by(context.validators, A, DocumentForm("unit", A), identity=a)
        return float(np.mean([of_queries.mean() for of_queries in values]))

    result, identity = fit_siamese(
        context.problem,
        context.schedule,
        start,
        S2NetSettings(max_iterations=n),
        rng=rng,
        identities=identities,
        evaluate=evaluate if context.validators else None,
        progress=context.progress_of("s2net"),
    )
    return TrainedParameters("s2net", result.U, result.V, result, identity=identity)


def iterations_of(schedule: Schedule) -> int:
    """Return how many iterations process as many pairs as the epochs of SGD: epochs x candidates / negatives."""
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
    settings: S2NetSettings,
    *,
    rng: np.random.Generator,
    identities: tuple[float, ...] = IDENTITIES,
    evaluate: Callable[[Float32, float], float] | None = None,
    progress: Progress = no_progress,
) -> tuple[TrainResult, float]:
    """Return the projection A that L-BFGS reaches from the start, and the weight a of q.d in the score.

    Each relevant document of a query is compared with the stated worse ones and with `NEGATIVES` other documents. Half
    of these are random; the other half are those of 200 random ones that the start ranks highest. Queries that are
    documents are used as whole texts and, if the schedule trains on keywords, a second time as keyword queries. Weights
    of preferences are ignored.

    Parameters
    ----------
    problem, schedule
        The training data, and how it is used.
    start : array
        A0 of the most frequent words, (n_words, N) float32.
    settings : S2NetSettings
        Settings of the optimiser.
    rng : numpy.random.Generator
        Draws negatives and keywords.
    identities : tuple of float
        Values of a to try.
    evaluate : callable, optional
        Returns the validation MAP of (A, a). It is called at the start, every five iterations and at the last one, and
        chooses A and a. Without it the last A and the middle value of a are returned.
    progress : Progress
        Receives the number of iterations done.

    Notes
    -----
    Source: spec 2.7, M21 (logistic loss, early stopping), M23 (beta).
    """
    data = _pairs(problem, schedule, start, rng)
    begun, history = time.perf_counter(), list[Epoch]()
    a = _best(start, identities, evaluate)

    def note(iteration: int, loss: float, value: float | None) -> None:
        reached = None if value is None else -value
        history.append(Epoch(iteration, 0.0, NEGATIVES, loss, reached, 0.0, time.perf_counter() - begun))
        progress(iteration, settings.max_iterations)

    def validate(scorer: Scorer) -> float:
        return -evaluate(scorer.A, a) if evaluate is not None and isinstance(scorer, Projection) else 0.0

    fitted = fit_s2net(
        data,
        Projection(start, start),
        settings,
        validate=None if evaluate is None else validate,
        progress=note,
    )
    if evaluate is None:
        return TrainResult(fitted.A, fitted.A, len(history), None, history), a
    a = _best(fitted.A, identities, evaluate)
    measured = [line for line in history if line.map is not None]
    best = max(measured, key=lambda line: line.map or 0.0, default=None)
    # The last iteration is validated after the search and has no history entry; the start is iteration 0.
    number = 0 if np.array_equal(fitted.A, start) else best.number if best is not None else len(history)
    return TrainResult(fitted.A, fitted.A, number, evaluate(fitted.A, a), history), a


def _best(A: Float32, tried: tuple[float, ...], evaluate: Callable[[Float32, float], float] | None) -> float:
    """Return the weight of q.d with the best validation MAP, on ties the smallest; the middle one if not validated."""
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
    own = np.split(np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))[:-1])
    query: list[Int64] = []
    document: list[Int64] = []
    grade: list[Float64] = []
    for number, (row, of_query) in enumerate(zip(asked.tolist(), own, strict=True)):
        better = np.unique(tuples.document[of_query])
        others = _negatives(problem, row, q_vectors[number], d_vectors, rng)
        worse = [tuples.worse[tuples.worse_indptr[t] : tuples.worse_indptr[t + 1]] for t in of_query]
        negative = np.setdiff1d(np.concatenate([others, *worse]), better)
        document.append(np.concatenate([better, negative]))
        query.append(np.full(len(better) + len(negative), number, dtype=np.int64))
        grade.append(np.repeat([1.0, 0.0], [len(better), len(negative)]))
    parts = [np.concatenate(one) for one in (query, document, grade)]
    rows = q_rows[asked]
    if schedule.keyword_share:
        cut = as_trained(two_rows(rows, None), asked < problem.n_document_queries, schedule, rng).learned
        rows = sp.vstack([rows, cut], format="csr")
        parts = [np.concatenate([parts[0], parts[0] + len(asked)]), np.tile(parts[1], 2), np.tile(parts[2], 2)]
    return GradedPairs(rows, d_rows, parts[0].astype(np.int64), parts[1].astype(np.int64), parts[2].astype(np.float64))


def _negatives(problem: Problem, query: int, q_vector: Float32, d_vectors: Float32, rng: np.random.Generator) -> Int64:
    """Return negatives of a query: half are the nearest of some random documents, half are random."""
    pool, known = problem.negatives.pool, problem.negatives
    drawn = np.unique(pool[rng.integers(len(pool), size=min(_DRAWN, 2 * len(pool)))])
    own = known.known[known.known_indptr[query] : known.known_indptr[query + 1]]
    drawn = np.setdiff1d(drawn, own, assume_unique=True)
    nearest = drawn[np.argsort(-(d_vectors[drawn] @ q_vector), kind="stable")]
    rest = rng.permutation(nearest[NEGATIVES // 2 :])
    chosen: Int64 = np.concatenate([nearest[: NEGATIVES // 2], rest[: NEGATIVES // 2]])
    return chosen
