"""What validation says of a trained model: how much its learned part counts, and whether it beats the baselines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from reranker.artifacts import RankingModel
from reranker.baselines.comparison import Comparison, compare_with_baselines
from reranker.experiment import lexical_task, link_experiment, read_corpus, text_experiment, text_task, tuning_task
from reranker.training.config import Schedule
from reranker.training.corpus import TrainingCorpus
from reranker.training.evidence import Split
from reranker.training.keywords import VALIDATION_WORDS, keyword_rows
from reranker.training.problem import QuerySet
from reranker.training.trainer import TrainResult
from reranker.training.validation import Validator

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
    a, judged_only = schedule.margin_identity, split.valid.judged_only
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
        corpus = read_corpus(documents, model, (), Silent())
        experiment = text_experiment(model, corpus, task, side.texts)
        tuning = text_task(model, corpus, train.task(split.pool, [], ()), train.texts or {})
    else:
        known = train.links()
        wanted = {*side.query_ids, *train.query_ids}
        corpus = read_corpus(documents, model, wanted, Silent())
        task = side.task(split.pool, known, set(corpus.sources))
        words = (schedule.keyword_min + schedule.keyword_max) // 2 if schedule.keyword_share == 1 else None
        experiment = link_experiment(model, corpus, task, words, seed)
        tuned = tuning_task(known, known, corpus.ids, split.pool)
        tuning = lexical_task(model, corpus, tuned, words, seed)
    return compare_with_baselines(experiment.model, corpus.lexical, experiment.evaluation, tuning, rng)


class Silent:
    """A reject sink that forgets: the lines were reported when the words were read."""

    def reject(self, line: int, offset: int, reason: str, sample: str | bytes = "", *, kind: str = "other") -> None:
        """Do nothing."""
