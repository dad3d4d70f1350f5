"""Baselines of retrieval as systems: expansion, LSI, PCA, PLSA, Boolean, language model, BM25, PageRank (spec 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from papers.boolean import BooleanScorer
from papers.expansion import QueryExpansion
from papers.fitting import best_of, spread
from papers.language_model import fit_language_model
from papers.mixtures import mixture
from papers.okapi import Okapi, fit_okapi
from papers.projections import fit_lsa, fit_pca
from papers.retrieval_studies import PRIOR
from papers.study import Texts
from papers.study_rows import pair_products
from papers.system import Fitted, Job, System
from papers.topic import Similarity
from papers.topics import TopicSettings, fit_plsa
from papers.vector_space import VectorSpace
from reranker.models.base import Scorer, Scores
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Projection

FACTORS = (1.0, 0.5, 2.0, 5.0)
"""Dimensions of LSI tried, as parts of the budget's N, in this order: baselines are given their best."""
MAX_FACTORS = 1_000
LSI_WORDS = 30_000
"""Words that LSI sees, the most frequent ones, also where others are matched by the full vocabulary (spec B03)."""
FEEDBACK = (5, 10, 20)
BETAS = (0.1, 0.3, 0.5, 1.0)
K1S, BS = (0.5, 1.2, 2.0, 4.0), (0.0, 0.3, 0.5, 0.75, 1.0)
PRIOR_WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


def _query_expansion(job: Job) -> Fitted:
    """Return blind feedback with E and beta chosen on validation (B02)."""
    study, lexical = job.study, Bilinear.lexical()
    pool = study.documents.rows[study.valid.pool]
    queries = study.valid.queries
    tried = [(0, 0.0), *product(FEEDBACK, BETAS)][: max(1, job.budget.grid)]
    losses = []
    for number, (n_feedback, beta) in enumerate(tried):
        job.progress("trying feedback", number, len(tried))
        expanded = QueryExpansion(pool, beta, max(1, n_feedback)).expanded(queries.rows).astype(np.float32)
        # Expanded once a query: the tuples ask for each query many times.
        texts = Texts(queries.counts, expanded, queries.words, queries.idf)
        losses.append(job.loss(study, replace(study.valid, queries=texts), Fitted(lexical)))
    n_feedback, beta = tried[int(np.argmin(losses))]
    test_pool = study.documents.rows[study.test.pool]
    settings = {"feedback": n_feedback, "beta": beta, "validation": min(losses)}
    return Fitted(QueryExpansion(test_pool, beta, max(1, n_feedback)), settings=settings)


def _projections(job: Job, centred: bool) -> Iterator[tuple[dict[str, Any], Projection]]:
    """Yield LSI or PCA of several dimensions, all from one decomposition."""
    rows = job.study.background().rows if centred else _lsi_rows(job)
    limit = min(*rows.shape, MAX_FACTORS + 1) - 1
    sizes = (max(1, min(limit, round(share * job.budget.n_dims))) for share in FACTORS)
    dims = list(dict.fromkeys(sizes))[: job.budget.grid]
    job.progress(f"{max(dims)} singular vectors", 0, None)
    whole = (fit_pca if centred else fit_lsa)(rows, max(dims), rng=job.rng).A
    for n_dims in dims:
        matrix = np.ascontiguousarray(whole[:, :n_dims])
        yield {"dims": n_dims}, Projection(matrix, matrix)


def _lsi_rows(job: Job) -> sp.csr_matrix:
    """Return the rows that LSI decomposes; words past their last column are none of a projection's."""
    return job.study.background().rows[:, :LSI_WORDS]


def _lsi(job: Job) -> Fitted:
    scorer, settings = best_of(_projections(job, centred=False), job.validate())
    return Fitted(scorer, settings=settings)


def lsi_of_size(job: Job) -> Fitted:
    """Return LSI of the budget's N, or as many dimensions as there are: for the study by N, where none is chosen."""
    rows = _lsi_rows(job)
    n_dims = max(1, min(job.budget.n_dims, min(rows.shape) - 1))
    projection = fit_lsa(rows, n_dims, rng=job.rng)
    return Fitted(projection, settings={"dims": n_dims, "validation": job.validate()(projection)})


def _pca(job: Job) -> Fitted:
    scorer, settings = best_of(_projections(job, centred=True), job.validate())
    return Fitted(scorer, settings=settings)


def _lsi_tf_idf(job: Job) -> Fitted:
    """Return alpha LSI + (1 - alpha) TF-IDF, N chosen at an alpha of 1/2, then alpha (B04)."""
    lexical, loss = Bilinear.lexical(), job.validate()
    halves = [(settings, one, mixture(one, lexical, 0.5)) for settings, one in _projections(job, centred=False)]
    best, dims = best_of(((settings, half) for settings, _, half in halves), loss)
    projection = next(one for _, one, half in halves if half is best)
    alphas = spread(0.0, 1.0, min(job.budget.grid, 11))
    scorer, settings = best_of((({"alpha": one}, mixture(projection, lexical, one)) for one in alphas), loss)
    return Fitted(scorer, settings={"dims": dims["dims"], **settings})


def _plsa(job: Job) -> Fitted:
    """Return PLSA with the likeness of mixtures that is better on validation (B11)."""
    settings = TopicSettings(n_topics=job.budget.n_dims, n_iterations=job.budget.n_iterations)
    total = settings.n_iterations
    counts = job.study.background().counts
    model = fit_plsa(counts, settings, rng=job.rng, progress=lambda done, _: job.progress("EM", done, total))
    names: tuple[Similarity, ...] = ("cosine", "jensen_shannon")
    candidates = [({"topics": settings.n_topics, "similarity": one}, replace(model, similarity=one)) for one in names]
    scorer, chosen = best_of(candidates, job.validate("counts", "counts"))
    return Fitted(scorer, "counts", "counts", chosen)


def _boolean(operator: Any) -> Any:
    return lambda _: Fitted(BooleanScorer(operator), "counts", "counts")


def _jelinek_mercer(job: Job) -> Fitted:
    """Return query likelihood with lambda swept; 0 is left out, for it gives -inf (B19)."""
    model = fit_language_model(job.study.background().counts)
    n = max(2, min(job.budget.grid, 20))
    candidates = [({"lambda": lam}, replace(model, lam=lam)) for lam in spread(1.0 / n, 1.0, n)]
    scorer, settings = best_of(candidates, job.validate("counts", "counts"))
    return Fitted(scorer, "counts", "counts", settings)


def _tuned_okapi(job: Job) -> tuple[Okapi, dict[str, Any]]:
    """Return BM25 with k1 and b of a grid."""
    start = fit_okapi(job.study.background().counts)
    grid = list(product(K1S, BS))
    grid = grid if job.budget.grid >= 5 else [(start.k1, start.b), *grid][: job.budget.grid]
    candidates = [({"k1": k1, "b": b}, replace(start, k1=k1, b=b)) for k1, b in grid]
    _, settings = best_of(candidates, job.validate("counts", "counts"))
    return replace(start, k1=settings["k1"], b=settings["b"]), settings


def _bm25(job: Job) -> Fitted:
    scorer, settings = _tuned_okapi(job)
    return Fitted(scorer, "counts", "counts", settings)


@dataclass(frozen=True, eq=False)
class PriorMix:
    """Scores f(q, d) + weight * p(d), the prior p in a last column of the documents' rows that f does not see.

    Parameters
    ----------
    scorer : Scorer or None
        f; None for the prior alone.
    weight : float
    """

    scorer: Scorer | None
    weight: float

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        if self.scorer is not None:
            out += self.scorer.score_matrix(q_rows[:, :-1], d_rows[:, :-1])
        out += np.float32(self.weight) * (q_rows[:, -1:] @ d_rows[:, -1:].T).toarray()
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the score of query r with document r, (n_pairs,) float32."""
        prior = pair_products(q_rows[:, -1:], d_rows[:, -1:]).astype(np.float32) * np.float32(self.weight)
        if self.scorer is None:
            return np.asarray(prior, np.float32)
        return np.asarray(self.scorer.score_pairs(q_rows[:, :-1], d_rows[:, :-1]) + prior, np.float32)


def _pagerank(job: Job) -> Fitted:
    """Return the order by PageRank alone, the same for every query (B21)."""
    return Fitted(PriorMix(None, 1.0), PRIOR, PRIOR)


def _bm25_pagerank(job: Job) -> Fitted:
    """Return BM25 + w ln(1 + N pi), w chosen on validation (B21)."""
    okapi, settings = _tuned_okapi(job)
    candidates = [({"weight": weight}, PriorMix(okapi, weight)) for weight in PRIOR_WEIGHTS[: max(2, job.budget.grid)]]
    scorer, chosen = best_of(candidates, job.validate(PRIOR, PRIOR))
    return Fitted(scorer, PRIOR, PRIOR, {**settings, **chosen})


_LINKED = frozenset({"links", PRIOR})

SYSTEMS: tuple[System, ...] = (
    System("query-expansion", ("B02",), "query expansion", _query_expansion),
    System("lsi", ("B03",), "LSI", _lsi),
    System("lsi-tf-idf", ("B04",), "α LSI + (1 − α) TF-IDF", _lsi_tf_idf),
    System("pca", ("B10",), "PCA", _pca),
    System("plsa", ("B11",), "PLSA", _plsa),
    System("boolean-and", ("B17",), "Boolean, AND", _boolean("AND")),
    System("boolean-or", ("B17",), "Boolean, OR", _boolean("OR")),
    System("vector-space", ("B18",), "vector space, inverted file", lambda _: Fitted(VectorSpace())),
    System("jelinek-mercer", ("B19",), "language model, Jelinek-Mercer", _jelinek_mercer),
    System("bm25", ("B20",), "BM25", _bm25),
    System("pagerank", ("B21",), "PageRank alone", _pagerank, _LINKED),
    System("bm25-pagerank", ("B20", "B21"), "BM25 + w PageRank", _bm25_pagerank, _LINKED),
)
