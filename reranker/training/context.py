"""The problem and the validation of a run, and what the training of U and V ends with.

Training stops when the mean average precision of the validation queries stops improving.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64
from reranker.cores import on_cores
from reranker.evaluation import DEPTH, InnerProducts, RankingTask, draw_tuples, evaluate
from reranker.kernels.rows import embed_rows
from reranker.lexical.kernel import Judged, blended_average_precision
from reranker.progress import Say, TitledProgress
from reranker.text.rows import row_of
from reranker.training.config import Schedule, TrainConfig, kept_settings
from reranker.training.problem import Problem, QuerySet, TwoRows, cut_to_keywords
from reranker.training.reading import TrainingCorpus
from reranker.training.trainer import NegativeMiner, TrainingCheckpoint, TrainResult, checkpoint_of
from reranker.training.training_set import Split

MAX_QUERIES = 1_000
MAX_DOCUMENTS = 20_000
N_BEST = 100
"""Documents of the highest lexical score among which scores are compared."""
VALIDATION_WORDS = 5
"""Words of a short validation query; training draws 1 to 10 words."""


class Validator:
    """Average precision of any model on a ranking task. The lexical part of the scores is computed once.

    At most 1,000 queries are sampled. A pool of more than 20,000 documents is reduced to the judged ones and a random
    sample of the others, so that the lexical scores take at most 80 MB.

    Parameters
    ----------
    task : RankingTask
        Queries, pool and grades.
    queries, documents : TwoRows
        Rows of the task's queries and documents, in its order.
    identity : float
        a, the weight of q.d.
    rng : numpy.random.Generator
        Draws the samples.
    judged_only : bool
        Rank only the documents that have a grade for the query.
    is_short : bool
        The queries are short: they use the U of short queries, if the model has one.
    given : array, optional
        What the vector field stores of each document, (n_documents, K) float32, in the task's order.

    Attributes
    ----------
    task : RankingTask
        The task of the sample.
    queries, documents : scipy.sparse.csr_matrix
        The rows of the sampled queries and documents that U and V read.
    lexical_scores : array
        q.d of the sampled queries and documents, (n_queries, n_documents) float32.
    given : array or None
        The given vectors of the sampled documents.
    """

    def __init__(
        self,
        task: RankingTask,
        queries: TwoRows,
        documents: TwoRows,
        identity: float,
        rng: np.random.Generator,
        judged_only: bool = False,
        is_short: bool = False,
        given: Float32 | None = None,
    ) -> None:
        self.is_short = is_short
        self.task, rows, columns = task.sample(rng, MAX_QUERIES, MAX_DOCUMENTS)
        task, self.queries, self.documents = self.task, queries.learned[rows], documents.learned[columns]
        self.given = None if given is None else given[columns]
        self._identity = np.float32(identity)
        self._asked, self._columns = queries.lexical[rows], columns
        self.lexical_scores = self.scores_of(documents)
        relevant = task.relevant()
        left_out = task.excluded
        if judged_only:
            unknown = np.ones(task.grades.shape, dtype=bool)
            unknown[row_of(task.grades), task.grades.indices] = False
            left_out = sp.csr_matrix(unknown)
        self._left_out = left_out
        self._judged = Judged(relevant.indptr, relevant.indices, left_out.indptr, left_out.indices)

    def scores_of(self, documents: TwoRows) -> Float32:
        """Return q.d of the sampled queries and documents, (n_queries, n_documents), by other rows of the documents.

        ``documents`` are in the order of the task that was given.
        """
        rows = documents.lexical[self._columns]
        return InnerProducts(query_rows=self._asked, document_rows=rows).block(0, self._asked.shape[0])

    def learned_scores(self, U: Float32, V: Float32) -> Float32:
        """Return (Uq').(Vd') of the sampled queries and documents, (n_queries, n_documents) float32."""
        scores: Float32 = embed_rows(self.queries, U) @ embed_rows(self.documents, V).T
        return scores

    def values(
        self, q_vectors: Float32, d_vectors: Float32, scales: Sequence[float] = (1.0,), identity: float | None = None
    ) -> Float64:
        """Return the AP of each query by scale * (query vector).(document vector) + a q.d.

        The result is (n_scales, n_queries) float64. The vectors, (n, N) float32, are of ``queries`` and ``documents``;
        ``identity`` replaces a.
        """
        a = self._identity if identity is None else np.float32(identity)
        learned = q_vectors @ d_vectors.T
        judged, depth, lexical = self._judged, DEPTH, self.lexical_scores
        by_scale = [
            partial[Float64](blended_average_precision, learned, lexical, np.float32(scale), a, judged, depth)
            for scale in scales
        ]
        return np.stack(on_cores(by_scale))

    def values_with(self, added: Float32, identity: float) -> Float64:
        """Return the AP of each query, (n_queries,) float64, by ``added``, (n_queries, n_documents), + identity q.d."""
        one, a = np.float32(1), np.float32(identity)
        values: Float64 = blended_average_precision(added, self.lexical_scores, one, a, self._judged, DEPTH)
        return values

    def spread(self, added: Float32, identity: float) -> float:
        """Return `spread_of` of identity q.d and ``added``, (n_queries, n_documents)."""
        return identity * spread_of(self.lexical_scores, added)

    def measured(self, added: Float32, identity: float) -> dict[str, Float64]:
        """Return AP and nDCG@10 of each query, both (n_queries,) float64, by scores as in `values_with`."""
        scores = added + np.float32(identity) * self.lexical_scores
        task = replace(self.task, excluded=self._left_out)
        no_tuples = draw_tuples(task, np.random.default_rng(0), n_tuples=0)
        gains = evaluate(task, KnownScores(scores), no_tuples, ("nDCG@10",), depth=10)
        return {"AP": self.values_with(added, identity), **gains.values}

    @property
    def lexical(self) -> Float64:
        """AP of each query by q.d only, (n_queries,) float64."""
        nothing = np.zeros_like(self.lexical_scores)
        one = np.float32(1)
        values: Float64 = blended_average_precision(nothing, self.lexical_scores, one, one, self._judged, DEPTH)
        return values


def spread_of(lexical: Float32, added: Float32) -> float:
    """Return the ratio of two standard deviations among the best documents of a query, the median of the queries.

    They are those of ``lexical`` and of ``added``, both (n_queries, n_documents), over the `N_BEST` documents of the
    highest lexical score above 0. The ratio is 0 if no query has such documents.
    """
    ratios = []
    for first, other in zip(lexical, added, strict=True):
        best = np.argpartition(-first, min(N_BEST, len(first) - 1))[:N_BEST]
        best = best[first[best] > 0]
        if len(best) > 1 and other[best].std() > 0:
            ratios.append(float(first[best].std() / other[best].std()))
    return float(np.median(ratios)) if ratios else 0.0


class KnownScores(NamedTuple):
    """Scores that are there already, as `evaluate` asks for them."""

    values: Float32

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and documents."""
        return self.values.shape[0], self.values.shape[1]

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of the queries from ``start`` to ``stop``, (n, n_documents) float32."""
        return self.values[start:stop]


def values_by(
    validators: Sequence[Validator],
    U: Float32,
    V: Float32,
    scales: Sequence[float] = (1.0,),
    identity: float | None = None,
) -> list[Float64]:
    """Return the AP of each query of each validator by U and V; arguments as in `Validator.values`."""
    return [
        validator.values(embed_rows(validator.queries, U), embed_rows(validator.documents, V), scales, identity)
        for validator in validators
    ]


class ShortRows(NamedTuple):
    """Lexical rows of their own for short queries."""

    queries: QuerySet
    documents: TwoRows
    weight: float = 0.0
    """Weight of these rows of documents in the score of other queries."""


def validators_of(
    split: Split,
    data: TrainingCorpus,
    queries: QuerySet,
    documents: TwoRows,
    schedule: Schedule,
    rng: np.random.Generator,
    given: Float32 | None = None,
    short: ShortRows | None = None,
) -> list[Validator]:
    """Return one validator for each kind of query that the model is trained on: whole queries, keyword queries.

    All have the same sample of queries and documents, so that a query has a value of each kind.

    ``given`` is what the vector field stores of each document of the corpus, (n_documents, K) float32. ``short`` are
    other rows, for keyword queries; whole queries add them with their weight.
    """
    are_links = split.valid.texts is None
    known = split.train.links() if are_links else ()
    task = split.valid.task(split.pool, known, set(data.query_row_of) if are_links else ())
    places = np.array([data.row_of[document] for document in task.document_ids], np.int64)
    of_pool = None if given is None else given[places]

    def rows_of(queries: QuerySet) -> TwoRows:
        return queries.rows.part(np.array([queries.row_of[query] for query in task.query_ids], np.int64))

    share = schedule.keyword_share if are_links else 0.0
    kinds = []
    if share < 1:
        kinds.append((rows_of(queries), documents.part(places), False))
    if share > 0:
        asked, ranked = (queries, documents) if short is None else (short.queries, short.documents)
        words = cut_to_keywords(rows_of(asked), VALIDATION_WORDS, rng)
        kinds.append((words, ranked.part(places), share < 1))
    a, judged_only = schedule.identity_scale, split.valid.judged_only
    validators = [
        Validator(task, asked, pool, a, copy.deepcopy(rng), judged_only, is_short, of_pool)
        for asked, pool, is_short in kinds
    ]
    if share < 1 and short is not None and short.weight:
        of_memory = validators[0].scores_of(short.documents.part(places))
        validators[0].lexical_scores += np.float32(short.weight) * of_memory
    return validators


SCALES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.125, 1.4, 2.0, 2.8, 0.0)
"""Weights of the learned part that are tried on validation; with 0 only the lexical score counts."""


class ShortQueries(NamedTuple):
    """The query side for short queries."""

    U: Float32
    """(n_rows, N) float32, as it is served."""
    scale: float
    """Weight of the learned part that validation chose."""


@dataclass(frozen=True, eq=False)
class TrainedParameters:
    """The learned part of a model."""

    U: Float32
    """(n_rows, N) float32: query side, as it is served."""
    V: Float32
    """(n_rows, N) float32: document side, as it is served."""
    result: TrainResult
    """The learning curve; its U and V are in the scale of the margin."""
    scale: float = 1.0
    """Weight of the learned part that validation chose."""
    short: ShortQueries | None = None
    """The query side for short queries, if there is one."""

    @property
    def has_learned(self) -> bool:
        """False if validation preferred q.d only: another run on everything would change nothing."""
        return self.scale > 0 and self.result.best_epoch > 0

    def values_by(self, validators: Sequence[Validator]) -> Float64:
        """Return AP of each query of all validators, (n,) float64."""
        parts = [np.empty(0)]
        for validator in validators:
            U = self.short.U if validator.is_short and self.short is not None else self.U
            parts.append(values_by([validator], U, self.V, identity=1.0)[0][0])
        return np.concatenate(parts)


@dataclass(eq=False)
class TrainingContext:
    """One problem, ready to be learned."""

    config: TrainConfig
    schedule: Schedule
    problem: Problem
    nearest: NegativeMiner
    """Finds hard negatives."""
    validators: list[Validator]
    """Validation that training stops by; empty when all the preferences are trained on."""
    rng: np.random.Generator
    """Never drawn from: each run works with a copy, so that it does not depend on the runs before."""
    start: Callable[[Schedule], tuple[Float32, Float32]]
    """Returns U and V before the first step, given the schedule."""
    fingerprint: Mapping[str, Any]
    """Settings and data, except the schedule, that a checkpoint must agree with."""
    checkpoint: Path | None
    """Folder for the state of the run; None: the state is not kept."""
    say: Say
    progress: TitledProgress
    short_validators: Sequence[Validator] = ()
    """Validation of the U of short queries, where it is learned separately."""

    def fresh_rng(self) -> np.random.Generator:
        """Return a copy of the generator, in its first state."""
        return copy.deepcopy(self.rng)

    def best_scale(
        self, U: Float32, V: Float32, identity: float, validators: Sequence[Validator] | None = None
    ) -> tuple[float, float]:
        """Return the highest validation MAP over `SCALES` of the learned part, and its scale.

        Among equals the first scale is returned. ``validators`` replace the context's. If short queries have a U of
        their own, they have a scale of their own as well: MAP is then the mean over the kinds of queries, each at its
        best scale, and the scale is that of the first kind, the whole queries.
        """
        values = values_by(self.validators if validators is None else validators, U, V, SCALES, identity)
        maps = np.stack([of_queries.mean(axis=1) for of_queries in values])
        if not self.schedule.short_apart:
            maps = maps.mean(axis=0, keepdims=True)
        return float(maps.max(axis=1).mean()), SCALES[int(np.argmax(maps[0]))]

    def checkpoint_of(self, *, short: bool) -> TrainingCheckpoint | None:
        """Return the checkpoint of U and V, or of the U of short queries; None: the state is not kept."""
        if self.checkpoint is None:
            return None
        settings = {"schedule": kept_settings(self.schedule), "halves": short}
        return TrainingCheckpoint(checkpoint_of(self.checkpoint, short=short), {**self.fingerprint, **settings})
