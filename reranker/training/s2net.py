"""S2Net (spec 2.7, M21-M25): a siamese projection trained on similar pairs by L-BFGS, and the class ``s2net``.

Training pairs give the loss of unit vectors and its gradient with respect to these vectors; `S2NetObjective` propagates
the gradient through the normalisation to the matrices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from scipy.special import expit

from reranker.arrays import AnyFloat, Float32, Float64, Int64
from reranker.config import check_ranges
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.kernels.singular_vectors import singular_vectors
from reranker.models.scorers import DocumentForm, Projection, Scorer
from reranker.progress import Progress, no_progress
from reranker.training.config import Schedule
from reranker.training.context import TrainedParameters, TrainingContext, values_by
from reranker.training.problem import Problem, as_trained, csr_of, two_rows
from reranker.training.trainer import Epoch, TrainResult

Terms = tuple[float, AnyFloat, AnyFloat]
LOSSES: tuple[str, ...] = ("logistic", "squared")
Validate = Callable[[Scorer], float]


class TrainingPairs(Protocol):
    """Training data: rows of queries and documents, and the loss of their unit vectors."""

    @property
    def q_rows(self) -> sp.csr_matrix: ...  # noqa: D102

    @property
    def d_rows(self) -> sp.csr_matrix: ...  # noqa: D102

    def terms(self, X: AnyFloat, Z: AnyFloat, settings: S2NetSettings) -> Terms:
        """Return (loss, dL/dX, dL/dZ) of the unit vectors of both sides, treating them as free variables."""


@dataclass(frozen=True, eq=False)
class GradedPairs:
    """Judged documents of queries; each document is preferred to every document of the same query with a lower grade.

    Raises
    ------
    ShapeMismatch
        If the three lists have different lengths.
    InputError
        If a row does not exist, or a grade is negative or not finite.
    TrainingError
        If no query has two documents of different grades.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix
    query: Int64
    document: Int64
    """Rows of the judged pairs, (m,) int64; so is ``query``."""
    grade: Float64
    """Grades of the pairs, (m,) float64, at least 0."""
    better: Int64 = field(init=False, repr=False)
    worse: Int64 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.query) == len(self.document) == len(self.grade):
            raise ShapeMismatch(
                f"{len(self.query)} queries, {len(self.document)} documents and {len(self.grade)} grades do not fit; "
                "give one of each for every judged pair"
            )
        for name, ids, rows in (("query", self.query, self.q_rows), ("document", self.document, self.d_rows)):
            if len(ids) and not (0 <= ids.min() and ids.max() < rows.shape[0]):
                raise InputError(f"a judged {name} is not one of the {rows.shape[0]} rows; number them from 0")
        if not (np.isfinite(self.grade).all() and bool((self.grade >= 0).all())):
            raise InputError("a grade is negative, NaN or infinite; grades are 0 or more")
        better, worse = _preferences(self.query, self.grade)
        if len(better) == 0:
            raise TrainingError("no query has documents of two different grades; there is no preference to learn from")
        object.__setattr__(self, "better", better)
        object.__setattr__(self, "worse", worse)

    def terms(self, X: AnyFloat, Z: AnyFloat, settings: S2NetSettings) -> Terms:
        """Return the mean logistic loss over all preferences, or the mean of 1/2 (y - cosine)^2 over the judged pairs.

        y = grade / largest grade. The gradients are dL/dX = R Z and dL/dZ = R^T X, where the sparse R holds the
        derivative for each pair's cosine.
        """
        cosine = np.einsum("ij,ij->i", X[self.query], Z[self.document])
        if settings.loss == "squared":
            error = cosine - self.grade / self.grade.max()
            loss, slope = float(np.mean(error**2) / 2.0), error / len(error)
        else:
            losses, slopes = logistic(cosine[self.better] - cosine[self.worse], settings.gamma)
            m, loss = len(cosine), float(losses.mean(dtype=np.float64))
            slope = (np.bincount(self.better, slopes, m) - np.bincount(self.worse, slopes, m)) / len(slopes)
        R = sp.csr_matrix((slope.astype(X.dtype), (self.query, self.document)), shape=(len(X), len(Z)))
        return loss, R @ Z, R.T @ X


def _preferences(query: Int64, grade: Float64) -> tuple[Int64, Int64]:
    """Return the preferences within queries as positions of the better and the worse judged pair."""
    order = np.argsort(query, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(query[order])) + 1) if len(order) else []
    better, worse = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for group in groups:
        first, second = np.nonzero(grade[group][:, None] > grade[group][None, :])
        better.append(group[first])
        worse.append(group[second])
    return np.concatenate(better).astype(np.int64), np.concatenate(worse).astype(np.int64)


def logistic(delta: AnyFloat, gamma: float) -> tuple[AnyFloat, AnyFloat]:
    """Return ln(1 + exp(-gamma delta)) and its derivative -gamma / (1 + exp(+gamma delta)), without overflow.

    Source: spec 2.7 and A01; the paper's appendix prints the derivative with the wrong sign in the exponent.
    """
    scaled = delta * delta.dtype.type(gamma)
    # In place: these arrays are blocks of n columns, and their cost is memory traffic.
    small = np.abs(scaled)
    np.negative(small, out=small)
    np.exp(small, out=small)
    loss = np.log1p(small)
    loss -= np.minimum(scaled, 0)
    slope = np.where(scaled >= 0, small, small.dtype.type(1))
    small += 1
    slope /= small
    slope *= -gamma
    return loss, slope


@dataclass(frozen=True, slots=True)
class S2NetSettings:
    """Settings of the training; raises `ConfigError` for a value out of range."""

    loss: Literal["logistic", "squared"] = "logistic"
    """``logistic``: ln(1 + exp(-gamma (sim+ - sim-))), or ``squared``: 1/2 (y - sim)^2 (M22)."""
    gamma: float = 10.0
    """Above 0; with large values the loss approaches the number of wrongly ordered pairs."""
    beta: float = 0.0
    """Weight, at least 0, of (beta / 2) |A - A0|^2, which keeps A near the start (M23); 0: only early stopping does."""
    max_iterations: int = 100
    """Largest number of iterations of L-BFGS; about 80 were needed at k = 1000."""
    every: int = 5
    """Number of iterations between validations."""
    patience: int = 3
    """Training stops after this number of validations without a better value."""
    memory: int = 8
    """Number of vector pairs that L-BFGS stores, each as large as the matrices in float64."""
    block: int = 1_024
    """Number of rows of the cosine matrix computed at a time."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the products, ``float32`` or ``float64``; the optimiser itself always uses float64."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES or self.dtype not in ("float32", "float64"):
            raise ConfigError(
                f"loss {self.loss!r} in {self.dtype!r} is not known; "
                f"losses are {', '.join(LOSSES)}, in float32 or float64"
            )
        counts = dict.fromkeys(("max_iterations", "every", "patience", "memory", "block"), "[1, inf)")
        check_ranges(self, gamma="(0, inf)", beta="[0, inf)", **counts)


def fit_s2net(
    data: TrainingPairs,
    start: Projection,
    settings: S2NetSettings | None = None,
    *,
    validate: Validate | None = None,
    progress: Callable[[int, float, float | None], None] | None = None,
) -> Projection:
    """Return the projection that L-BFGS reaches from the start or, with ``validate``, the best one on validation.

    If both sides of the start share one array (`Projection.is_tied`), one matrix is trained, the siamese network of the
    paper; otherwise two are (M25). The activation of the start is kept.

    Parameters
    ----------
    data : TrainingPairs
        Rows and loss.
    start : Projection
        A0 (and B0), with one row for each column of the rows.
    settings : S2NetSettings, optional
        Settings of the training.
    validate : callable, optional
        Returns a value of a scorer, smaller is better; called with the start, every few iterations, and with the last.
    progress : callable, optional
        Called after each iteration with its number, the loss, and the validation value (None if not validated).

    Raises
    ------
    ShapeMismatch
        If the start does not fit the rows.
    TrainingError
        If the loss is not finite.

    Notes
    -----
    Source: spec 2.7, M21 (logistic, early stopping), M22 (squared), M23 (beta), M25 (two matrices, sigmoid); A01, A30.
    """
    settings = settings or S2NetSettings()
    objective = S2NetObjective(data, start, settings)
    best, best_iteration, iteration = objective.start, 0, 0
    best_value = np.inf if validate is None else validate(objective.projection(best))

    def judge(theta: Float64) -> float | None:
        nonlocal best, best_iteration, best_value
        if validate is None:
            return None
        value = float(validate(objective.projection(theta)))
        if value < best_value:
            best, best_iteration, best_value = theta.copy(), iteration, value
        return value

    def watch(intermediate_result: scipy.optimize.OptimizeResult) -> None:
        """Record one iteration (scipy passes its state by this name); stop when patience is exhausted."""
        nonlocal iteration
        iteration += 1
        value = judge(intermediate_result.x) if iteration % settings.every == 0 else None
        if progress is not None:
            progress(iteration, float(intermediate_result.fun), value)
        if validate is not None and iteration - best_iteration >= settings.every * settings.patience:
            raise StopIteration

    outcome = scipy.optimize.minimize(
        objective,
        objective.start,
        jac=True,
        method="L-BFGS-B",
        callback=watch,
        # Gradients of a mean over n^2 pairs are tiny: only the loss itself (or validation) ends the search.
        options={
            "maxiter": settings.max_iterations,
            "maxcor": settings.memory,
            "maxfun": 20 * settings.max_iterations,
            "gtol": 0.0,
            "ftol": 1e-9,
        },
    )
    if validate is None:
        return objective.projection(outcome.x)
    if iteration % settings.every:
        judge(outcome.x)
    return objective.projection(best)


class S2NetObjective:
    """The loss and its gradient with respect to the matrices; `ShapeMismatch` if A0 and B0 do not fit the data."""

    def __init__(self, data: TrainingPairs, origin: Projection, settings: S2NetSettings) -> None:
        widths = (data.q_rows.shape[1], data.d_rows.shape[1])
        if (len(origin.A), len(origin.B)) != widths:
            raise ShapeMismatch(
                f"a start over {len(origin.A)} and {len(origin.B)} words does not fit rows of {widths[0]} and "
                f"{widths[1]}; compute it from the same rows"
            )
        self.data, self.origin, self.settings = data, origin, settings
        sides = (origin.A,) if origin.is_tied else (origin.A, origin.B)
        self.start: Float64 = np.concatenate([side.ravel() for side in sides]).astype(np.float64)
        self._dtype = np.dtype(settings.dtype)
        self._q, self._d = (rows.astype(self._dtype) for rows in (data.q_rows, data.d_rows))

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
        """Return the loss at theta and its gradient, of theta's shape; `TrainingError` if the loss is not finite."""
        A, B = self._matrices(theta)
        X, back_x = self._forward(self._q, A)
        Z, back_z = self._forward(self._d, B)
        loss, dX, dZ = self.data.terms(X, Z, self.settings)
        if not np.isfinite(loss):
            raise TrainingError("the loss of S2Net is not finite; scale the start down or lower gamma")
        grad_a, grad_b = self._q.T @ back_x(dX), self._d.T @ back_z(dZ)
        parts = (grad_a + grad_b,) if self.origin.is_tied else (grad_a, grad_b)
        gradient = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
        if self.settings.beta:
            away = theta - self.start
            loss += self.settings.beta / 2.0 * float(away @ away)
            gradient += self.settings.beta * away
        return loss, gradient

    def projection(self, theta: Float64) -> Projection:
        """Return the scorer of the matrices in theta."""
        A, B = (np.ascontiguousarray(matrix, dtype=np.float32) for matrix in self._matrices(theta))
        return Projection(A, A if self.origin.is_tied else B, self.origin.activation)

    def _matrices(self, theta: Float64) -> tuple[AnyFloat, AnyFloat]:
        k = self.origin.n_dims
        cut = len(self.origin.A) * k
        A = theta[:cut].reshape(-1, k).astype(self._dtype)
        return A, A if self.origin.is_tied else theta[cut:].reshape(-1, k).astype(self._dtype)

    def _forward(self, rows: sp.csr_matrix, matrix: AnyFloat) -> tuple[AnyFloat, Callable[[AnyFloat], AnyFloat]]:
        """Return the unit vectors of the rows, and the function from their gradient to that of rows @ matrix.

        For x^ = x / |x|: dL/dx = (dL/dx^ - (dL/dx^ . x^) x^) / |x|; the sigmoid adds its derivative s (1 - s).
        """
        linear = rows @ matrix
        outer = linear
        if self.origin.activation == "sigmoid":
            outer = np.where(linear.any(axis=1, keepdims=True), expit(linear), 0).astype(self._dtype)
        length = np.linalg.norm(outer, axis=1, keepdims=True).astype(self._dtype)
        length[length == 0] = 1
        hat = outer / length

        def back(gradient: AnyFloat) -> AnyFloat:
            along = np.einsum("ij,ij->i", gradient, hat)[:, None]
            inner = (gradient - along * hat) / length
            return np.asarray(inner * outer * (1 - outer) if self.origin.activation == "sigmoid" else inner)

        return hat, back


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
