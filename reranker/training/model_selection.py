"""What validation says of a trained model: how much its learned part counts, and whether it beats the baselines.

Mean average precision on validation queries, after every epoch.

Keyword queries made of document rows: some of their words at unit length (spec A21).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.artifacts import RankingModel
from reranker.baselines.comparison import Comparison, compare_systems
from reranker.baselines.experiment import (
    lexical_task,
    link_experiment,
    read_corpus,
    text_experiment,
    text_task,
    tuning_task,
)
from reranker.baselines.tuning import fit_baselines
from reranker.evaluation.protocols import RankingTask, draw_tuples
from reranker.evaluation.ranking import InnerProducts, evaluate
from reranker.formats import IgnoringSink
from reranker.kernels.serving import embed
from reranker.training.config import Schedule
from reranker.training.keywords import keyword_rows
from reranker.training.problem import QuerySet, TrainingCorpus
from reranker.training.trainer import TrainResult
from reranker.training.training_set import Split

BASELINES = ("tfidf", "bm25")
"""What a model is compared with."""
MAX_QUERIES = 1_000
MAX_DOCUMENTS = 20_000
_ROWS = 100
_LAST = np.float32(-1e30)  # finite, and below every score
Float32 = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


class Validator:
    """MAP of U and V on a ranking task; the lexical part of the scores is computed once.

    At most 1,000 queries are drawn, and of a pool of more than 20,000 documents the judged ones and a random rest: the
    lexical scores then take at most 80 MB.

    Parameters
    ----------
    task : RankingTask
        Validation queries and pool.
    queries : csr_matrix, (n_queries, any)
        q of the task's queries, in its order.
    documents : csr_matrix, (n_documents, any)
        d of the task's pool, in its order.
    identity : float
        a, the weight of q.d.
    rng : Generator
        Draws the queries.
    judged_only : bool
        Rank the documents that have a grade for the query, and no others.
    """

    def __init__(
        self,
        task: RankingTask,
        queries: sp.csr_matrix,
        documents: sp.csr_matrix,
        identity: float,
        rng: np.random.Generator,
        judged_only: bool = False,
    ) -> None:
        if len(task.query_ids) > MAX_QUERIES:
            rows = np.sort(rng.choice(len(task.query_ids), MAX_QUERIES, replace=False))
            task, queries = task.rows(rows), queries[rows]
        if len(task.document_ids) > MAX_DOCUMENTS:
            judged = np.unique(task.grades.indices).astype(np.int64)
            others = np.setdiff1d(np.arange(len(task.document_ids)), judged, assume_unique=True)
            chosen = rng.choice(others, min(len(others), max(0, MAX_DOCUMENTS - len(judged))), replace=False)
            columns = np.sort(np.concatenate([judged, chosen]))
            task, documents = task.columns(columns), documents[columns]
        self.task = task
        self.queries, self.documents = queries, documents
        lexical = InnerProducts(query_rows=queries, document_rows=documents)
        self._identity = np.float32(identity)
        self._lexical = lexical.block(0, len(task.query_ids))
        self._left_out = _without_grade(task) if judged_only else None
        self._tuples = draw_tuples(task, np.random.default_rng(0), n_tuples=0)

    def __call__(self, U: Float32, V: Float32, scale: float = 1.0) -> float:
        """Return the MAP of scale * (Uq).(Vd) + a q.d."""
        return float(self.values(_embedded(self.queries, U), _embedded(self.documents, V), scale).mean())

    def values(
        self, q_vectors: Float32, d_vectors: Float32, scale: float = 1.0, identity: float | None = None
    ) -> Values:
        """Return the AP of each query by scale * (query vector).(document vector) + a q.d, (n_queries,) float64.

        Parameters
        ----------
        q_vectors, d_vectors : (n_queries, N) and (n_documents, N) float32
            Of ``queries`` and ``documents``, by any model.
        scale : float
        identity : float, optional
            Another a than the validator's.
        """
        a = self._identity if identity is None else np.float32(identity)
        scores = q_vectors @ d_vectors.T
        scores *= np.float32(scale)
        for first in range(0, len(scores), _ROWS):  # in strips: no second block of all scores
            scores[first : first + _ROWS] += a * self._lexical[first : first + _ROWS]
        return self._average_precisions(scores)

    @property
    def lexical(self) -> float:
        """MAP of q.d alone."""
        return float(self.lexical_values.mean())

    @property
    def lexical_values(self) -> Values:
        """AP of each query by q.d alone, (n_queries,) float64."""
        return self._average_precisions(self._lexical.copy())

    def _average_precisions(self, scores: Float32) -> Values:
        if self._left_out is not None:
            scores[self._left_out] = _LAST
        return evaluate(self.task, _Dense(scores), self._tuples, measures=("AP",)).values["AP"]


def _without_grade(task: RankingTask) -> npt.NDArray[np.bool_]:
    """Return which documents have no grade for a query, (n_queries, n_documents) bool."""
    unknown = np.ones(task.grades.shape, dtype=bool)
    rows = np.repeat(np.arange(len(task.query_ids)), np.diff(task.grades.indptr))
    unknown[rows, task.grades.indices] = False
    return unknown


class _Dense:
    """A block of scores that is already there."""

    def __init__(self, scores: Float32) -> None:
        self._scores = scores
        self.shape = (int(scores.shape[0]), int(scores.shape[1]))

    def block(self, start: int, stop: int) -> Float32:
        """Return the scores of some queries."""
        return self._scores[start:stop]


def _embedded(rows: sp.csr_matrix, E: Float32) -> Float32:
    return embed(rows.indptr, rows.indices, rows.data, E)


VALIDATION_WORDS = 5
"""Words of a validation query where training mixes documents and 1 to 10 words."""


SCALES = (0.0, 0.25, 0.5, 0.7, 1.0)
"""Weights of the learned part that are tried on validation; 0 leaves the lexical score alone."""


def best_scale(validators: list[Validator], result: TrainResult, a: float) -> tuple[float, float]:
    """Return the weight of the learned part with the best validation MAP, 1 among equals, and that MAP."""
    if not a:
        return 1.0, float(np.mean([one(result.U, result.V) for one in validators]))
    values = {scale: float(np.mean([one(result.U, result.V, scale) for one in validators])) for scale in SCALES}
    best = max(values.values())
    scale = 1.0 if values[1.0] == best else next(scale for scale in SCALES if values[scale] == best)
    return scale, best


def validators_of(
    split: Split,
    data: TrainingCorpus,
    queries: QuerySet,
    documents: sp.csr_matrix,
    schedule: Schedule,
    rng: np.random.Generator,
) -> list[Validator]:
    """Return what validation measures: whole queries, keyword queries, or both, as the model is trained."""
    are_links = split.valid.texts is None
    known = split.train.links() if are_links else []
    task = split.valid.task(split.pool, known, set(data.query_row_of) if are_links else ())
    rows = queries.rows[[queries.row_of[one] for one in task.query_ids]]
    pool = documents[[data.row_of[one] for one in task.document_ids]]
    share = schedule.keyword_share if are_links else 0.0
    kinds = []
    if share < 1:
        kinds.append(rows)
    if share > 0:
        words = VALIDATION_WORDS if share < 1 else (schedule.keyword_min + schedule.keyword_max) // 2
        kinds.append(keyword_rows(rows, words, rng))
    a, judged_only = schedule.identity_scale, split.valid.judged_only
    return [Validator(task, kind, pool, a, rng, judged_only) for kind in kinds]


def compare_on_validation(
    model: RankingModel,
    documents: Path,
    split: Split,
    schedule: Schedule,
    seed: int,
    rng: np.random.Generator,
) -> Comparison:
    """Return the model beside tuned lexical baselines on the validation queries.

    Queries of links are whole documents, or keywords where only those were trained on. The baselines are tuned on the
    training side.
    """
    side, train = split.valid, split.train
    if side.texts is not None:
        task = side.task(split.pool, [], ())
        corpus = read_corpus(documents, model, (), IgnoringSink())
        experiment = text_experiment(model, corpus, task, side.texts)
        tuning = text_task(model, corpus, train.task(split.pool, [], ()), train.texts or {})
    else:
        known = train.links()
        wanted = {*side.query_ids, *train.query_ids}
        corpus = read_corpus(documents, model, wanted, IgnoringSink())
        task = side.task(split.pool, known, set(corpus.sources))
        words = (schedule.keyword_min + schedule.keyword_max) // 2 if schedule.keyword_share == 1 else None
        experiment = link_experiment(model, corpus, task, words, seed)
        tuned = tuning_task(known, known, corpus.ids, split.pool)
        tuning = lexical_task(model, corpus, tuned, words, seed)
    baselines = fit_baselines(BASELINES, corpus.lexical, tuning, rng)
    return compare_systems(experiment.model, baselines, experiment.evaluation, rng)
