"""The second stage of the class ``cubic``: from U^T V + I to f = (Uq).(Vd o (1 + Yd)) + a q.d (spec 2.5, M18)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.methods.word_pairs import Polynomial
from papers.plain_kernels import Triples
from papers.plain_sgd import Learner, PlainShape, start_learner
from reranker.errors import TrainingError
from reranker.kernels.serving import embed, row_dots
from reranker.models.bilinear import Bilinear
from reranker.models.forms import DocumentForm
from reranker.training.config import Schedule
from reranker.training.context import Float32, as_asked, csr_of
from reranker.training.problem import Problem
from reranker.training.trainer import CHUNKS, Epoch, steps_of

MAX_TRIALS = 32
"""Candidates scored a step at most: their products with q are made for a whole block at once."""
_BLOCK = 2_000
_RATE = 0.5
"""Share of the first stage's rate: U and V are trained already."""
Evaluate = Callable[[Float32, Float32, Float32], float]
Int64s = npt.NDArray[np.int64]


class Cubic(NamedTuple):
    """U, V, Y of the best epoch, its number (0: the start, Y = 0), its validation MAP, and the learning curve."""

    U: Float32
    V: Float32
    Y: Float32
    best_epoch: int
    best_map: float | None
    history: list[Epoch]


def fit_cubic(
    problem: Problem,
    schedule: Schedule,
    start: tuple[Float32, Float32],
    *,
    patience: int,
    rng: np.random.Generator,
    evaluate: Evaluate | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Cubic:
    """Return U, V and Y learned from Y = 0 and a trained U^T V + I, the best of all epochs on validation.

    Steps are those of `fit_plain` for the shape ``cubic``, at half the first stage's rate falling to 0. Of
    ``max_trials`` candidates (32 at most) the first that violates the margin is the negative. There is no dropout
    and no cap on row norms: what overfits is stopped by validation, the start included.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule
        Of the first stage; its epochs are the most that are made.
    start : (U, V), (n_rows, N) float32
        Of the margin's scale. Not changed.
    patience : int
        Epochs without a better validation MAP until it stops.
    rng : Generator
    evaluate : callable, optional
        (U, V, Y) -> validation MAP; without it the last epoch is taken.
    progress : callable, optional
        (steps done, steps in all).

    Source
    ------
    spec 2.5: update of k = 3, shared; A11.
    """
    U, V = start
    a = schedule.margin_identity
    shape = PlainShape("cubic", identity=a, n_words=len(U))
    widths = (problem.n_columns, problem.n_columns)
    learner = start_learner(shape, widths, U.shape[1], 0.0, rng, Bilinear(U, V, a))
    steps = _Steps(problem, schedule, learner, rng)
    Y = np.zeros_like(V)
    best = Cubic(U, V, Y, 0, None if evaluate is None else evaluate(U, V, Y), [])
    n_steps, spent = steps_of(problem), 0.0
    for epoch in range(schedule.epochs):
        if evaluate is not None and epoch - best.best_epoch >= patience:
            break
        started = time.perf_counter()
        stats = np.zeros(2)
        for block in range(0, n_steps, _BLOCK):
            at = epoch + block / n_steps
            rate = _RATE * schedule.rate_start * (1 - at / schedule.epochs)
            if block % (n_steps // CHUNKS + 1) < _BLOCK:
                steps.renew()
            stats += steps.make(min(_BLOCK, n_steps - block), rate)
            if progress is not None:
                progress(epoch * n_steps + block, schedule.epochs * n_steps)
        spent += time.perf_counter() - started
        if not np.isfinite(stats).all() or not steps.is_finite():
            break  # diverged: the best epoch so far stands
        new = steps.tables()
        value = None if evaluate is None else evaluate(*new)
        hinge = float(stats[1] / max(stats[0], 1.0))
        line = Epoch(epoch + 1, float(stats[0] / n_steps), float(steps.n_trials), hinge, value, rate, spent)
        best = best._replace(history=[*best.history, line])
        if value is None or best.best_map is None or value > best.best_map:
            U, V, Y = (table.copy() for table in new)
            best = Cubic(U, V, Y, epoch + 1, value, best.history)
    return best


class _Steps:
    """Blocks of tuples with violating negatives, and the learner that they move."""

    def __init__(self, problem: Problem, schedule: Schedule, learner: Learner, rng: np.random.Generator) -> None:
        self.n_trials = min(schedule.max_trials, MAX_TRIALS)
        self._problem, self._schedule, self._learner, self._rng = problem, schedule, learner, rng
        self._q = csr_of(problem.queries, problem.n_columns)
        self._d = csr_of(problem.documents, problem.n_columns)
        known = problem.candidates
        rows = np.repeat(np.arange(len(known.known_indptr) - 1), np.diff(known.known_indptr))
        self._known: Int64s = np.sort(rows * np.int64(self._d.shape[0]) + known.known)
        self._vectors: Float32 = np.empty((0, 0), np.float32)

    def tables(self) -> tuple[Float32, Float32, Float32]:
        """Return U, V and Y as they are."""
        scorer = self._learner.scorer()
        if not isinstance(scorer, Polynomial):
            raise TrainingError(f"the cubic stage made a {type(scorer).__name__}: this is a defect, please report it")
        V, Y = scorer.factors
        return scorer.U, V, Y

    def is_finite(self) -> bool:
        """Return whether no table holds NaN or infinity."""
        learner = self._learner
        return all(bool(np.isfinite(getattr(learner, name)).all()) for name in ("U", "T"))

    def renew(self) -> None:
        """Compute all documents' vectors anew, from which candidates are screened."""
        _, V, Y = self.tables()
        self._vectors = DocumentForm("cubic", V, Y).vectors(self._d)

    def make(self, n: int, rate: float) -> npt.NDArray[np.float64]:
        """Make n steps; return how many moved the model, and the sum of their hinges."""
        tuples = self._draw(n)
        query, positive = self._problem.tuples.query[tuples], self._problem.tuples.document[tuples]
        are_documents = query < self._problem.n_document_queries
        rows = as_asked(self._q[query], are_documents, self._schedule, self._rng)
        negatives = self._violating(tuples, query, positive, rows)
        found = np.flatnonzero(negatives >= 0)
        if not len(found):
            return np.zeros(2)
        rows = rows[found].sorted_indices()
        triples = Triples(np.arange(len(found)), positive[found], negatives[found])
        queries = type(self._problem.queries)(rows.indptr.astype(np.int64), rows.indices, rows.data)
        stats: npt.NDArray[np.float64] = self._learner.steps(queries, self._problem.documents, triples, rate)
        return stats

    def _draw(self, n: int) -> Int64s:
        tuples = self._problem.tuples
        drawn = self._rng.integers(len(tuples.query), size=n)
        if len(tuples.keep):
            drawn = np.where(self._rng.random(n) < tuples.keep[drawn], drawn, tuples.alias[drawn])
        return drawn

    def _violating(self, tuples: Int64s, query: Int64s, positive: Int64s, rows: sp.csr_matrix) -> Int64s:
        """Return the first candidate of each tuple that is less than 1 below d+, -1 where there is none."""
        candidates, usable = self._candidates(tuples, query, positive)
        n, m = candidates.shape
        U = self.tables()[0]
        vectors = embed(rows.indptr, rows.indices, rows.data, U)
        flat = candidates.ravel()
        repeated, others = rows[np.repeat(np.arange(n), m)], self._d[flat]
        a = self._schedule.margin_identity
        scores = np.einsum("ij,ikj->ik", vectors, self._vectors[flat].reshape(n, m, -1))
        scores += a * _dots(repeated, others).reshape(n, m)
        better = np.einsum("ij,ij->i", vectors, self._vectors[positive]) + a * _dots(rows, self._d[positive])
        violates = usable & (scores > better[:, None] - 1)
        first = violates.argmax(axis=1)
        return np.where(violates.any(axis=1), candidates[np.arange(n), first], -1)

    def _candidates(self, tuples: Int64s, query: Int64s, positive: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return candidates of each tuple, (n, m), and which may be taken; stated worse ones in their share."""
        pool, stated = self._problem.candidates.pool, self._problem.tuples
        found = pool[self._rng.integers(len(pool), size=(len(tuples), self.n_trials))]
        keys = query[:, None] * np.int64(self._d.shape[0]) + found
        places = np.minimum(np.searchsorted(self._known, keys), max(len(self._known) - 1, 0))
        usable = self._known[places] != keys if len(self._known) else np.ones(found.shape, dtype=bool)
        first, counts = stated.worse_indptr[tuples], np.diff(stated.worse_indptr)[tuples]
        by_worse = np.flatnonzero((counts > 0) & (self._rng.random(len(tuples)) < self._schedule.worse_share))
        if len(by_worse):
            offsets = self._rng.integers(counts[by_worse][:, None], size=(len(by_worse), self.n_trials))
            found[by_worse] = stated.worse[first[by_worse][:, None] + offsets]
            usable[by_worse] = True
        return found, usable & (found != positive[:, None])


def _dots(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    dots: Float32 = row_dots((left.indptr, left.indices, left.data), (right.indptr, right.indices, right.data))
    return dots
