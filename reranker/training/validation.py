"""Mean average precision on validation queries, after every epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.evaluation.protocols import RankingTask, draw_tuples
from reranker.evaluation.ranking import evaluate
from reranker.evaluation.scorers import InnerProducts
from reranker.kernels import embed

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
