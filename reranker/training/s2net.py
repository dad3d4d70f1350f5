"""S2Net: a siamese projection learned from similar pairs by L-BFGS (spec 2.7, M21-M25)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.sparse as sp
from scipy.special import expit

from reranker.errors import ConfigError, ShapeMismatch, TrainingError
from reranker.models.base import Scorer
from reranker.models.projection import Projection
from reranker.training.s2net_loss import (
    Array,
    GradedPairs,
    Mates,
    Terms,
    graded_logistic,
    graded_squared,
    mates_logistic,
    mates_squared,
)

Doubles = npt.NDArray[np.float64]
LOSSES: tuple[str, ...] = ("logistic", "squared")


@dataclass(frozen=True, slots=True)
class S2NetSettings:
    """Settings of the training.

    Parameters
    ----------
    loss : "logistic" or "squared"
        ln(1 + exp(-gamma (sim+ - sim-))), or 1/2 (y - sim)^2 (M22).
    gamma : float
        > 0; large values make the loss a count of wrong orders.
    beta : float
        >= 0, the weight of (beta / 2) |A - A0|^2, the pull towards the start (M23); 0 leaves it to early stopping.
    max_iterations : int
        Of L-BFGS; about 80 were needed at k = 1000.
    every, patience : int
        Validate every so many iterations; stop after so many validations without a better value.
    memory : int
        Pairs of vectors that L-BFGS keeps, each as large as the matrices in float64.
    block : int
        Rows of the matrix of cosines made at a time.
    dtype : "float32" or "float64"
        Of the products; the optimiser itself always works in float64.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    loss: Literal["logistic", "squared"] = "logistic"
    gamma: float = 10.0
    beta: float = 0.0
    max_iterations: int = 100
    every: int = 5
    patience: int = 3
    memory: int = 8
    block: int = 1_024
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if self.loss not in LOSSES or self.dtype not in ("float32", "float64"):
            raise ConfigError(
                f"loss {self.loss!r} in {self.dtype!r} is not known; "
                f"losses are {', '.join(LOSSES)}, in float32 or float64"
            )
        if not (0.0 < self.gamma < np.inf and 0.0 <= self.beta < np.inf):
            raise ConfigError(f"gamma {self.gamma} must be above 0, beta {self.beta} at least 0, and both finite")
        if min(self.max_iterations, self.every, self.patience, self.memory, self.block) < 1:
            raise ConfigError(f"{self} has a count below 1; iterations, periods and sizes start at 1")


Progress = Callable[[int, float, float | None], None]


def fit_s2net(
    data: Mates | GradedPairs,
    start: Projection,
    settings: S2NetSettings | None = None,
    *,
    validate: Callable[[Scorer], float] | None = None,
    progress: Progress | None = None,
) -> Projection:
    """Return the projection that L-BFGS reaches from the start, or its best one on validation.

    A start whose sides share one array (`Projection.is_tied`) is trained as one matrix, the siamese network of the
    paper; any other as two (M25). The start's activation is kept. Deterministic: the same start gives the same result.

    Parameters
    ----------
    data : Mates or GradedPairs
        What is more similar than what.
    start : Projection
        A0 (and B0), for example of `reranker.training.s2net_starts`, as wide as the rows' words.
    settings : S2NetSettings, optional
    validate : callable, optional
        Lower is better (for example 1 - MRR); called with the start, every few iterations and with the last one.
    progress : callable, optional
        Called after each iteration with its number, the loss and the validation value (None where not taken).

    Raises
    ------
    ShapeMismatch
        If the start does not fit the rows.
    TrainingError
        If the loss is not finite.

    Source
    ------
    spec 2.7: M21 (logistic, early stopping), M22 (squared), M23 (beta), M25 (two matrices, sigmoid); A01, A30.
    """
    objective = S2NetObjective(data, start, settings or S2NetSettings())
    watch = _Watch(objective, validate, progress)
    outcome = scipy.optimize.minimize(
        objective,
        objective.start,
        jac=True,
        method="L-BFGS-B",
        callback=watch,
        # Slopes of a mean over n^2 pairs are tiny: only the loss itself (or validation) ends the search.
        options={"maxiter": objective.settings.max_iterations, "maxcor": objective.settings.memory,
                 "maxfun": 20 * objective.settings.max_iterations, "gtol": 0.0, "ftol": 1e-9},
    )  # fmt: skip
    return watch.result(outcome.x)


class S2NetObjective:
    """The loss and its gradient as a function of all entries of the matrices, one after the other.

    Parameters
    ----------
    data : Mates or GradedPairs
    origin : Projection
        A0 and B0.
    settings : S2NetSettings

    Raises
    ------
    ShapeMismatch
        If the matrices do not have one row for each word.
    """

    def __init__(self, data: Mates | GradedPairs, origin: Projection, settings: S2NetSettings) -> None:
        widths = (data.q_rows.shape[1], data.d_rows.shape[1])
        if (len(origin.A), len(origin.B)) != widths:
            raise ShapeMismatch(
                f"a start over {len(origin.A)} and {len(origin.B)} words does not fit rows of {widths[0]} and "
                f"{widths[1]}; make it from the same rows"
            )
        self.data, self.origin, self.settings = data, origin, settings
        sides = (origin.A,) if origin.is_tied else (origin.A, origin.B)
        self.start: Doubles = np.concatenate([side.ravel() for side in sides]).astype(np.float64)
        self._dtype = np.dtype(settings.dtype)
        self._q, self._d = (rows.astype(self._dtype) for rows in (data.q_rows, data.d_rows))

    def __call__(self, theta: Doubles) -> tuple[float, Doubles]:
        """Return the loss at theta and its gradient, as long as theta.

        Raises
        ------
        TrainingError
            If the loss is not finite.
        """
        A, B = self._matrices(theta)
        X, back_x = self._forward(self._q, A)
        Z, back_z = self._forward(self._d, B)
        loss, dX, dZ = self._terms(X, Z)
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

    def projection(self, theta: Doubles) -> Projection:
        """Return the scorer of the matrices in theta."""
        A, B = (np.ascontiguousarray(matrix, dtype=np.float32) for matrix in self._matrices(theta))
        return Projection(A, A if self.origin.is_tied else B, self.origin.activation)

    def _matrices(self, theta: Doubles) -> tuple[Array, Array]:
        k = self.origin.n_dims
        cut = len(self.origin.A) * k
        A = theta[:cut].reshape(-1, k).astype(self._dtype)
        return A, A if self.origin.is_tied else theta[cut:].reshape(-1, k).astype(self._dtype)

    def _forward(self, rows: sp.csr_matrix, matrix: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Return the unit vectors of the rows and the map that leads a gradient back to rows @ matrix.

        For x^ = x / |x|: dL/dx = (dL/dx^ - (dL/dx^ . x^) x^) / |x|; the sigmoid adds its slope s (1 - s).
        """
        linear = rows @ matrix
        outer = linear
        if self.origin.activation == "sigmoid":
            outer = np.where(linear.any(axis=1, keepdims=True), expit(linear), 0).astype(self._dtype)
        length = np.linalg.norm(outer, axis=1, keepdims=True).astype(self._dtype)
        length[length == 0] = 1
        hat = outer / length

        def back(gradient: Array) -> Array:
            along = np.einsum("ij,ij->i", gradient, hat)[:, None]
            inner = (gradient - along * hat) / length
            return np.asarray(inner * outer * (1 - outer) if self.origin.activation == "sigmoid" else inner)

        return hat, back

    def _terms(self, X: Array, Z: Array) -> Terms:
        data, settings = self.data, self.settings
        if isinstance(data, Mates):
            if settings.loss == "squared":
                return mates_squared(X, Z)
            return mates_logistic(X, Z, settings.gamma, settings.block)
        return graded_squared(X, Z, data) if settings.loss == "squared" else graded_logistic(X, Z, data, settings.gamma)


class _Watch:
    """Validates, remembers the best matrices and ends the search when patience does."""

    def __init__(
        self, objective: S2NetObjective, validate: Callable[[Scorer], float] | None, progress: Progress | None
    ) -> None:
        self._objective, self._validate, self._progress = objective, validate, progress
        self._iteration, self._failures, self._judged_at = 0, 0, 0
        self._best, self._best_value = objective.start, np.inf
        if validate is not None:
            self._best_value = validate(objective.projection(objective.start))

    def __call__(self, intermediate_result: scipy.optimize.OptimizeResult) -> None:
        """Take note of one iteration (scipy passes its state by this name); stop where patience ends."""
        self._iteration += 1
        value = None
        if self._validate is not None and self._iteration % self._objective.settings.every == 0:
            value = self._judge(self._validate, intermediate_result.x)
        if self._progress is not None:
            self._progress(self._iteration, float(intermediate_result.fun), value)
        if self._failures >= self._objective.settings.patience:
            raise StopIteration

    def result(self, last: Doubles) -> Projection:
        """Return the best projection seen, the last one where nothing was validated."""
        if self._validate is None:
            return self._objective.projection(last)
        if self._judged_at < self._iteration:
            self._judge(self._validate, last)
        return self._objective.projection(self._best)

    def _judge(self, validate: Callable[[Scorer], float], theta: Doubles) -> float:
        value = float(validate(self._objective.projection(theta)))
        self._judged_at = self._iteration
        if value < self._best_value:
            self._best, self._best_value, self._failures = theta.copy(), value, 0
        else:
            self._failures += 1
        return value
