"""S2Net (spec 2.7, M21-M25): a siamese projection trained on similar pairs by L-BFGS.

Training pairs give the loss of unit vectors and its gradient with respect to these vectors; `S2NetObjective` propagates
the gradient through the normalisation to the matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from scipy.special import expit

from papers.methods.projection import Projection
from reranker.arrays import AnyFloat, Float64, Int64
from reranker.config import check_ranges
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.models.scorers import Scorer

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
