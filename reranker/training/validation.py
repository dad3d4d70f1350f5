"""Mean average precision on validation queries: what training stops by and model classes are compared by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Float64
from reranker.evaluation.protocols import RankingTask
from reranker.evaluation.ranking import DEPTH, InnerProducts
from reranker.kernels.lexical import Judged, blended_average_precision
from reranker.models.scorers import DocumentForm, query_vectors
from reranker.text.rows import row_of
from reranker.training.config import Schedule
from reranker.training.problem import QuerySet, TrainingCorpus, TwoRows, cut_to_keywords
from reranker.training.training_set import Split

MAX_QUERIES = 1_000
MAX_DOCUMENTS = 20_000
VALIDATION_WORDS = 5
"""Words of a validation query where training mixes documents and 1 to 10 words."""


class Validator:
    """AP of any model on a ranking task; the lexical part of the scores is computed once.

    At most 1,000 queries are drawn, and of a pool of more than 20,000 documents the judged ones and a random rest: the
    lexical scores then take at most 80 MB. ``queries`` and ``documents`` are those of the task, in its order, and
    ``identity`` is a, the weight of q.d; ``judged_only`` ranks the documents that have a grade for the query, and no
    others. Kept as ``queries`` and ``documents`` are the rows that U and V read.
    """

    def __init__(
        self,
        task: RankingTask,
        queries: TwoRows,
        documents: TwoRows,
        identity: float,
        rng: np.random.Generator,
        judged_only: bool = False,
    ) -> None:
        self.task, rows, columns = task.sample(rng, MAX_QUERIES, MAX_DOCUMENTS)
        task, self.queries, self.documents = self.task, queries.learned[rows], documents.learned[columns]
        self._identity = np.float32(identity)
        lexical = InnerProducts(query_rows=queries.lexical[rows], document_rows=documents.lexical[columns])
        self._lexical = lexical.block(0, len(task.query_ids))
        relevant = task.relevant()
        left_out = task.excluded
        if judged_only:
            unknown = np.ones(task.grades.shape, dtype=bool)
            unknown[row_of(task.grades), task.grades.indices] = False
            left_out = sp.csr_matrix(unknown)
        self._judged = Judged(relevant.indptr, relevant.indices, left_out.indptr, left_out.indices)

    def values(
        self, q_vectors: Float32, d_vectors: Float32, scales: Sequence[float] = (1.0,), identity: float | None = None
    ) -> Float64:
        """Return the AP of each query by scale * (query vector).(document vector) + a q.d, (n_scales, n_queries).

        The vectors are of ``queries`` and ``documents``, (n, N) float32, by any model; ``identity`` is another a than
        the validator's. The values are float64.
        """
        a = self._identity if identity is None else np.float32(identity)
        learned = q_vectors @ d_vectors.T
        return np.stack([
            blended_average_precision(learned, self._lexical, np.float32(scale), a, self._judged, DEPTH)
            for scale in scales
        ])  # fmt: skip

    @property
    def lexical(self) -> Float64:
        """AP of each query by q.d alone, (n_queries,) float64."""
        nothing = np.zeros_like(self._lexical)
        one = np.float32(1)
        values: Float64 = blended_average_precision(nothing, self._lexical, one, one, self._judged, DEPTH)
        return values


def values_by(
    validators: Sequence[Validator],
    U: Float32,
    documents: DocumentForm,
    scales: Sequence[float] = (1.0,),
    identity: float | None = None,
) -> list[Float64]:
    """Return the AP of each query of each validator by a model's tables; arguments as in `Validator.values`."""
    return [
        validator.values(
            query_vectors(documents.name, U, validator.queries),
            documents.vectors(validator.documents),
            scales,
            identity,
        )
        for validator in validators
    ]


def validators_of(
    split: Split,
    data: TrainingCorpus,
    queries: QuerySet,
    documents: TwoRows,
    schedule: Schedule,
    rng: np.random.Generator,
) -> list[Validator]:
    """Return what validation measures: whole queries, keyword queries, or both, as the model is trained."""
    are_links = split.valid.texts is None
    known = split.train.links() if are_links else []
    task = split.valid.task(split.pool, known, set(data.query_row_of) if are_links else ())
    rows = queries.rows.part(np.array([queries.row_of[query] for query in task.query_ids], np.int64))
    pool = documents.part(np.array([data.row_of[document] for document in task.document_ids], np.int64))
    share = schedule.keyword_share if are_links else 0.0
    kinds = []
    if share < 1:
        kinds.append(rows)
    if share > 0:
        kinds.append(cut_to_keywords(rows, keywords_of(schedule), rng))
    return [Validator(task, kind, pool, schedule.identity_scale, rng, split.valid.judged_only) for kind in kinds]


def keywords_of(schedule: Schedule) -> int:
    """Return how many words a keyword query of validation has."""
    if schedule.keyword_share < 1:
        return VALIDATION_WORDS
    return (schedule.keyword_min + schedule.keyword_max) // 2
