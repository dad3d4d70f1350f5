"""Projections and topics of judged corpora: PCA and PLSA without labels, OPCA, CCA, JPLSA, CPLSA and HDLR with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import scipy.sparse as sp

from papers.graded_lexical import best_of, dimensions, most_dims
from papers.graded_training import judged_pairs, relevant_pairs
from papers.metric_learning import HdlrSettings, fit_hdlr
from papers.projections import fit_cca, fit_opca, fit_pca
from papers.study import Study
from papers.system import Fitted, Job, System
from papers.topic import TopicModel
from papers.topics import TopicSettings, fit_cplsa, fit_jplsa, fit_plsa
from reranker.errors import TrainingError
from reranker.models.projection import Projection

HDLR_PAIRS = 5_000
"""Judged pairs that HDLR learns from, at most (spec B14)."""
NOISES = (1e-2, 1e-3)
RIDGES = (1e-2, 1e-1)
SLACKS = (1.0, 0.1, 10.0)
TOPICS_PER_DIM = 0.5
"""Topics for each dimension of the budget: a topic costs an iteration of EM what a dimension costs only once."""


@lru_cache(maxsize=2)
def all_texts_pca(study: Study, n_dims: int, query_view: str = "rows") -> Projection:
    """Return PCA of all training queries and documents, without labels: baseline, and start of S2Net and HDLR.

    Kept for the last studies, as several systems begin with it; equal arguments give equal results.

    Source: spec B10, T7.
    """
    rows = sp.vstack([study.queries.view(query_view), study.background().rows], format="csr")
    return fit_pca(rows, max(1, min(n_dims, min(rows.shape) - 1)), rng=np.random.default_rng(study.seed))


def fit_graded_pca(job: Job) -> Fitted:
    """Return PCA, its dimensions chosen on validation (spec B10)."""
    whole = all_texts_pca(job.study, job.budget.n_dims)
    n, scorer, value = best_of(dimensions(whole.n_dims), whole.first, job.validate())
    return Fitted(scorer, settings={"dimensions": n, "validation": value})


def fit_graded_opca(job: Job) -> Fitted:
    """Return OPCA of the relevant pairs, noise and dimensions chosen on validation (spec B08, T7)."""
    queries, documents = _pair_rows(job.study)
    n_dims = most_dims(job, queries)

    def build(noise: float) -> Projection:
        reduced = min(2 * n_dims, *queries.shape)
        return fit_opca(queries, documents, n_dims, rng=job.rng, noise=noise, shared=True, reduced=reduced)

    return _cut(job, NOISES[: job.budget.grid], build, "noise")


def fit_graded_cca(job: Job) -> Fitted:
    """Return CCA of the relevant pairs, ridge and dimensions chosen on validation (spec B09, T7)."""
    queries, documents = _pair_rows(job.study)
    n_dims = max(1, min(most_dims(job, queries), _query_rank(job.study)))

    def build(ridge: float) -> Projection:
        return fit_cca(queries, documents, n_dims, rng=job.rng, ridge=ridge, reduced=min(2 * n_dims, *queries.shape))

    return _cut(job, RIDGES[: job.budget.grid], build, "ridge")


def fit_graded_hdlr(job: Job) -> Fitted:
    """Return the metric learned from relevant and other judged pairs, from PCA, its slack by validation (spec B14)."""
    judged = judged_pairs(job.study, job.rng)
    similar = judged.grade >= job.study.valid.task.relevant_from
    if similar.all() or not similar.any():
        raise TrainingError("all judged pairs are relevant, or none is: a metric needs pairs of both kinds")
    chosen = np.arange(len(judged))
    if len(chosen) > HDLR_PAIRS:
        chosen = np.sort(job.rng.choice(len(judged), HDLR_PAIRS, replace=False))
    start = all_texts_pca(job.study, job.budget.n_dims)
    queries = job.study.queries.rows[judged.query[chosen]]
    documents = job.study.documents.rows[judged.document[chosen]]
    seed = int(job.rng.integers(2**31))

    def build(slack: float) -> Projection:
        rng = np.random.default_rng(seed)
        return fit_hdlr(start, queries, documents, similar[chosen], HdlrSettings(slack=slack), rng=rng)

    slack, scorer, value = best_of(SLACKS[: job.budget.grid], build, job.validate())
    return Fitted(scorer, settings={"slack": slack, "pairs": len(chosen), "validation": value})


def fit_graded_plsa(job: Job) -> Fitted:
    """Return PLSA of all training queries and documents, without labels (spec B11, T7)."""
    study = job.study
    counts = sp.vstack([study.queries.counts, study.background().counts], format="csr")
    return _topics(job, lambda settings: fit_plsa(counts, settings, rng=job.rng))


def fit_graded_pair_plsa(job: Job, *, coupled: bool) -> Fitted:
    """Return JPLSA or CPLSA of the relevant pairs (spec B12, B13, T7)."""
    query, document = relevant_pairs(job.study)
    queries, documents = job.study.queries.counts[query], job.study.documents.counts[document]
    fit = fit_cplsa if coupled else fit_jplsa
    return _topics(job, lambda settings: fit(queries, documents, settings, rng=job.rng))


def _topics(job: Job, fit: Callable[[TopicSettings], TopicModel]) -> Fitted:
    """Return a topic model over counts, compared by the cosine (spec A33), its topics by validation."""
    most = max(2, round(TOPICS_PER_DIM * job.budget.n_dims))
    n_iterations = job.budget.n_iterations

    def build(n_topics: int) -> TopicModel:
        return fit(TopicSettings(n_topics=n_topics, n_iterations=n_iterations, similarity="cosine"))

    numbers = tuple(dict.fromkeys(max(2, n) for n in dimensions(most)))[: job.budget.grid]
    n_topics, scorer, loss = best_of(numbers, build, job.validate("counts", "counts"))
    settings = {"topics": n_topics, "iterations": n_iterations, "validation": loss}
    return Fitted(scorer, "counts", "counts", settings)


def _cut(job: Job, values: tuple[float, ...], build: Callable[[float], Projection], name: str) -> Fitted:
    """Return the projection of the best value and number of dimensions."""
    made = {value: build(value) for value in values}
    points = [(value, n) for value in values for n in dimensions(made[value].n_dims)]
    (value, n), scorer, loss = best_of(points, lambda one: made[one[0]].first(one[1]), job.validate())
    return Fitted(scorer, settings={name: value, "dimensions": n, "validation": loss})


def _pair_rows(study: Study) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return the rows of the relevant training pairs."""
    query, document = relevant_pairs(study)
    return study.queries.rows[query], study.documents.rows[document]


def _query_rank(study: Study) -> int:
    """Return how many dimensions the queries of the relevant pairs have: few queries carry no more (CCA's limit)."""
    rows = study.queries.rows[np.unique(relevant_pairs(study)[0])]
    return int(np.linalg.matrix_rank((rows @ rows.T).toarray()))


SYSTEMS: tuple[System, ...] = (
    System("graded-pca", ("B10",), "PCA", fit_graded_pca),
    System("graded-opca", ("B08",), "OPCA", fit_graded_opca, frozenset({"judged"})),
    System("graded-cca", ("B09",), "CCA", fit_graded_cca, frozenset({"judged"})),
    System("graded-plsa", ("B11",), "PLSA", fit_graded_plsa),
    System("graded-jplsa", ("B12",), "JPLSA", partial(fit_graded_pair_plsa, coupled=False), frozenset({"judged"})),
    System("graded-cplsa", ("B13",), "CPLSA", partial(fit_graded_pair_plsa, coupled=True), frozenset({"judged"})),
    System("graded-hdlr", ("B14",), "HDLR", fit_graded_hdlr, frozenset({"judged"})),
)
