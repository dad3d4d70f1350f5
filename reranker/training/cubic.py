"""The model class ``cubic``: f = (Uq).(Vd o (1 + Yd)) + a q.d, trained from a U^T V + I model (spec 2.5, M18)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.kernels.product_sgd import Combination, Triples, low_rank_steps
from reranker.kernels.rows import Rows, dots, embed_rows
from reranker.models.scorers import DocumentForm
from reranker.progress import Progress
from reranker.text.rows import with_data
from reranker.training.config import Schedule
from reranker.training.context import TrainedParameters, TrainingContext
from reranker.training.problem import Problem, TwoRows, as_trained, csr_of
from reranker.training.trainer import CHUNKS, Epoch, is_finite, steps_of

MAX_TRIALS = 32
"""Largest number of candidates scored per step; their products with q are computed for a whole block at once."""
_BLOCK = 2_000  # steps
_RATE = 0.5
"""Learning rate as a share of the first stage's, because U and V are trained already."""


def fit_cubic(context: TrainingContext, first: TrainedParameters | None) -> TrainedParameters:
    """Return a model of degree 3, trained from the end of ``low_rank`` and Y = 0; the best epoch on validation is kept.

    The steps are those of `low_rank_steps` on (Uq).(Vd o (1 + Yd)) + a q.d. The learning rate starts at half the first
    stage's and falls to 0. The negative is the first of ``max_trials`` candidates (at most 32) that violates the
    margin. There is no dropout and no limit on row norms: validation stops overfitting, and may choose the start.

    Source: spec 2.5 (update of k = 3, shared); A11.
    """
    result, schedule = context.learn("low_rank", first).result, context.schedule
    if first is not None:
        schedule = replace(schedule, epochs=first.more_epochs)
    a, n_steps = schedule.identity_scale, steps_of(context.problem)

    def evaluate(U: Float32, V: Float32, Y: Float32) -> float | None:
        return context.best_scale(U, DocumentForm("cubic", V, Y), a)[0] if context.validators else None

    best = (result.U, result.V, np.zeros_like(result.V))
    best_epoch, best_map, spent = 0, evaluate(*best), 0.0
    steps = _Steps(context.problem, schedule, result.U, result.V, context.fresh_rng())
    history = list(result.history)
    for epoch in range(schedule.epochs):
        if best_map is not None and epoch - best_epoch >= context.config.patience:
            break
        started = time.perf_counter()
        made = steps.epoch(epoch, n_steps, context.progress_of("cubic"))
        if made is None:
            break  # diverged: keep the best epoch so far
        (n_violating, hinges), rate = made
        spent += time.perf_counter() - started
        tables = (steps.U.copy(), *steps.factors())
        value = evaluate(*tables)
        hinge = float(hinges / max(n_violating, 1.0))
        history.append(Epoch(epoch + 1, float(n_violating / n_steps), float(steps.n_trials), hinge, value, rate, spent))
        if value is None or best_map is None or value > best_map:
            best, best_epoch, best_map = tables, epoch + 1, value
    U, V, Y = best
    scale = first.scale if first else context.best_scale(U, DocumentForm("cubic", V, Y), a)[1]
    factor = np.float32(np.sqrt(scale / (a or 1.0)))
    U, V = np.ascontiguousarray(U * factor), np.ascontiguousarray(V * factor)
    identity = context.config.identity * 1.0
    return TrainedParameters("cubic", U, V, replace(result, history=history), Y, identity, scale, best_epoch)


class _Steps:
    """U and T = [V, Y], trained in blocks of tuples with margin-violating negatives."""

    def __init__(self, problem: Problem, schedule: Schedule, U: Float32, V: Float32, rng: np.random.Generator) -> None:
        self.n_trials = min(schedule.max_trials, MAX_TRIALS)
        self.problem, self.schedule, self.rng = problem, schedule, rng
        # These draws have no effect but keep the later ones: models of a seed stay the same. The signs of Y = 0 matter,
        # too.
        rng.standard_normal(U.shape, dtype=np.float32)
        self.T = rng.standard_normal((len(V), 2 * V.shape[1]), dtype=np.float32) * np.float32(0)
        self.T[:, : V.shape[1]] = V
        self.U: Float32 = U.copy()
        q, self._d = (csr_of(rows, problem.n_columns) for rows in (problem.queries, problem.documents))
        self._q = TwoRows(q, with_data(q, problem.lexical.queries), with_data(q, problem.lexical.squares))
        self._lexical = with_data(self._d, problem.lexical.documents)
        known = problem.negatives
        rows = np.repeat(np.arange(len(known.known_indptr) - 1), np.diff(known.known_indptr))
        self._known: Int64 = np.sort(rows * np.int64(self._d.shape[0]) + known.known)
        self._vectors: Float32 = np.empty((0, 0), np.float32)

    def factors(self) -> tuple[Float32, Float32]:
        """Return copies of the current V and Y."""
        V, Y = np.hsplit(self.T, 2)
        return np.ascontiguousarray(V), np.ascontiguousarray(Y)

    def epoch(self, number: int, n_steps: int, progress: Progress) -> tuple[Float64, float] | None:
        """Run the steps of an epoch.

        Returns ((number of steps that changed the model, sum of hinge losses), last rate), or None if training
        diverged.
        """
        stats, rate = np.zeros(2), 0.0
        for block in range(0, n_steps, _BLOCK):
            rate = _RATE * self.schedule.rate_start * (1 - (number + block / n_steps) / self.schedule.epochs)
            if block % (n_steps // CHUNKS + 1) < _BLOCK:
                if not (is_finite(self.U) and is_finite(self.T)):
                    return None
                self._vectors = DocumentForm("cubic", *self.factors()).vectors(self._d)
            stats += self._make(min(_BLOCK, n_steps - block), rate)
            if not np.isfinite(stats).all():
                return None
            progress(number * n_steps + block, self.schedule.epochs * n_steps)
        return (stats, rate) if is_finite(self.U) and is_finite(self.T) else None

    def _make(self, n: int, rate: float) -> Float64:
        """Run n steps; return the number of steps that changed the model, and the sum of their hinge losses."""
        tuples = self._draw(n)
        query, positive = self.problem.tuples.query[tuples], self.problem.tuples.document[tuples]
        rows = as_trained(self._q.part(query), query < self.problem.n_document_queries, self.schedule, self.rng)
        negatives = self._hard_negatives(tuples, query, positive, rows)
        violating = np.flatnonzero(negatives >= 0)
        if not len(violating):
            return np.zeros(2)
        rows, positive, negative = rows.part(violating), positive[violating], negatives[violating]
        learned = rows.learned
        lexical = dots(rows.lexical, self._lexical[positive]) - dots(rows.lexical, self._lexical[negative])
        stats: Float64 = low_rank_steps(
            self.U,
            self.T,
            Rows(learned.indptr.astype(np.int64), learned.indices, learned.data),
            self.problem.documents,
            Triples(np.arange(len(violating)), positive, negative),
            rate,
            Combination(2),
            0.0,
            np.float32(self.schedule.identity_scale) * lexical,
        )
        return stats

    def _draw(self, n: int) -> Int64:
        tuples = self.problem.tuples
        drawn = self.rng.integers(len(tuples.query), size=n)
        if len(tuples.keep):
            drawn = np.where(self.rng.random(n) < tuples.keep[drawn], drawn, tuples.alias[drawn])
        return drawn

    def _hard_negatives(self, tuples: Int64, query: Int64, positive: Int64, rows: TwoRows) -> Int64:
        """Return the first candidate of each tuple whose score is less than 1 below that of d+, or -1 without one."""
        candidates, usable = self._candidates(tuples, query, positive)
        n, m = candidates.shape
        vectors = embed_rows(rows.learned, self.U)
        flat = candidates.ravel()
        repeated, others = rows.lexical[np.repeat(np.arange(n), m)], self._lexical[flat]
        a = self.schedule.identity_scale
        scores = np.einsum("ij,ikj->ik", vectors, self._vectors[flat].reshape(n, m, -1))
        scores += a * dots(repeated, others).reshape(n, m)
        better = np.einsum("ij,ij->i", vectors, self._vectors[positive]) + a * dots(
            rows.lexical, self._lexical[positive]
        )
        violates = usable & (scores > better[:, None] - 1)
        return np.where(violates.any(axis=1), candidates[np.arange(n), violates.argmax(axis=1)], -1)

    def _candidates(self, tuples: Int64, query: Int64, positive: Int64) -> tuple[Int64, Bool]:
        """Return candidates of each tuple, (n, m), and which are usable; a share of them are stated worse documents."""
        pool, stated = self.problem.negatives.pool, self.problem.tuples
        candidates = pool[self.rng.integers(len(pool), size=(len(tuples), self.n_trials))]
        keys = query[:, None] * np.int64(self._d.shape[0]) + candidates
        places = np.minimum(np.searchsorted(self._known, keys), max(len(self._known) - 1, 0))
        usable = self._known[places] != keys if len(self._known) else np.ones(candidates.shape, dtype=bool)
        first, counts = stated.worse_indptr[tuples], np.diff(stated.worse_indptr)[tuples]
        by_worse = np.flatnonzero((counts > 0) & (self.rng.random(len(tuples)) < self.schedule.stated_negative_ratio))
        if len(by_worse):
            offsets = self.rng.integers(counts[by_worse][:, None], size=(len(by_worse), self.n_trials))
            candidates[by_worse] = stated.worse[first[by_worse][:, None] + offsets]
            usable[by_worse] = True
        return candidates, usable & (candidates != positive[:, None])
