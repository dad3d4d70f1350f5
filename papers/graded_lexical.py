"""Rankers that learn at most a number or two from grades: TF-IDF, BM25, language model, LSI, mixtures, expansion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from papers.choosing import trained
from papers.expansion import QueryExpansion
from papers.language_model import JelinekMercer, fit_language_model
from papers.mixtures import mixture
from papers.okapi import fit_okapi
from papers.projections import fit_lsa
from papers.study import Texts
from papers.system import Fitted, Job, System
from reranker.errors import ConfigError, TrainingError
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Projection

P = TypeVar("P")
S = TypeVar("S", bound=Scorer)

K1, B = (1.2, 0.4, 0.8, 2.0, 4.0), (0.75, 0.0, 0.3, 0.5, 1.0)
LAMBDAS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Without 0, whose scores are -inf, and 1, whose scores are all the same."""
ALPHAS = (0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
BETAS, FEEDBACK = (0.0, 0.25, 0.5, 1.0, 2.0), (5, 1, 10, 20)


def best_of(points: Sequence[P], build: Callable[[P], S], loss: Callable[[S], float]) -> tuple[P, S, float]:
    """Return the point whose scorer has the least loss (the first of equals), that scorer, and the loss.

    A point that cannot be trained, such as a rate at which it diverges, gives way to the others.
    """
    best: tuple[P, S, float] | None = None
    failures: list[TrainingError] = []
    for point, scorer in trained(points, build, failures):
        value = loss(scorer)
        if best is None or value < best[2]:
            best = point, scorer, value
    if best is None and failures:
        raise failures[0]
    if best is None:
        raise ConfigError("there is nothing to try: give at least one setting")
    return best


def fit_tfidf(job: Job, query_view: str = "rows") -> Fitted:
    """Return the cosine of tf-idf rows (spec B01, M01)."""
    return Fitted(Bilinear.lexical(), query_view)


def fit_bm25(job: Job) -> Fitted:
    """Return BM25 with k1 and then b chosen on validation (spec B20)."""
    plain = fit_okapi(job.study.documents.counts)
    loss = job.validate("counts", "counts")
    k1 = best_of(K1[: job.budget.grid], lambda k1: replace(plain, k1=k1), loss)[0]
    b, scorer, value = best_of(B[: job.budget.grid], lambda b: replace(plain, k1=k1, b=b), loss)
    return Fitted(scorer, "counts", "counts", {"k1": k1, "b": b, "validation": value})


def fit_likelihood(job: Job) -> Fitted:
    """Return query likelihood with lambda chosen on validation (spec B19).

    Scores are per word and relative to the collection: the order of a query's documents is the same, and scores of
    different queries can be compared, as a filter does.
    """
    plain = fit_language_model(job.study.documents.counts, per_word=True)

    def build(lam: float) -> JelinekMercer:
        return replace(plain, lam=lam)

    lam, scorer, value = best_of(LAMBDAS[: job.budget.grid], build, job.validate("counts", "counts"))
    return Fitted(scorer, "counts", "counts", {"lambda": lam, "validation": value})


def fit_expansion(job: Job) -> Fitted:
    """Return TF-IDF of the query with its best documents added, beta and E chosen on validation (spec B02)."""
    pool = job.study.documents.rows
    points = [(beta, n) for beta, n in product(BETAS, FEEDBACK) if beta or n == FEEDBACK[0]][: job.budget.grid]
    (beta, n), scorer, value = best_of(points, lambda one: QueryExpansion(pool, one[0], one[1]), job.validate())
    return Fitted(scorer, settings={"beta": beta, "E": n, "validation": value})


def fit_lsi(job: Job) -> Fitted:
    """Return LSI of the documents, its dimensions chosen on validation (spec B03)."""
    n_dims, scorer, value = _lsi(job)
    return Fitted(scorer, settings={"dimensions": n_dims, "validation": value})


def fit_lsi_tfidf(job: Job) -> Fitted:
    """Return alpha LSI + (1 - alpha) TF-IDF, dimensions and alpha chosen on validation (spec B04)."""
    whole = _lsi_of(job)
    loss = job.validate()
    points = [(n, alpha) for n in dimensions(whole.n_dims) for alpha in ALPHAS[: job.budget.grid]]
    tfidf = Bilinear.lexical()
    cuts = {n: whole.first(n) for n in dimensions(whole.n_dims)}
    (n, alpha), scorer, value = best_of(points, lambda one: mixture(cuts[one[0]], tfidf, one[1]), loss)
    return Fitted(scorer, settings={"dimensions": n, "alpha": alpha, "validation": value})


def dimensions(n_dims: int) -> tuple[int, ...]:
    """Return the dimensions to try: all, a half, a quarter."""
    return tuple(dict.fromkeys(max(1, n_dims // part) for part in (1, 2, 4)))


def most_dims(job: Job, rows: sp.csr_matrix) -> int:
    """Return the budget's dimensions, or as many as rows and words can have."""
    return max(1, min(job.budget.n_dims, min(rows.shape) - 1))


def _lsi(job: Job) -> tuple[int, Projection, float]:
    """Return the LSI of the best number of dimensions."""
    whole = _lsi_of(job)
    return best_of(dimensions(whole.n_dims), whole.first, job.validate())


def _lsi_of(job: Job) -> Projection:
    texts = job.study.background()
    return _texts_lsi(texts, most_dims(job, texts.rows))


@lru_cache(maxsize=2)
def _texts_lsi(texts: Texts, n_dims: int) -> Projection:
    """Return LSI of texts; kept for the last ones, as studies of one collection share their documents."""
    return fit_lsa(texts.rows, n_dims, rng=np.random.default_rng(0))


SYSTEMS: tuple[System, ...] = (
    System("graded-tfidf", ("M01", "B01"), "TF-IDF", fit_tfidf),
    System("graded-expansion", ("B02",), "TF-IDF, query expansion", fit_expansion),
    System("graded-bm25", ("B20",), "BM25, tuned", fit_bm25),
    System("graded-likelihood", ("B19",), "language model, Jelinek-Mercer", fit_likelihood),
    System("graded-lsi", ("B03",), "LSI", fit_lsi),
    System("graded-lsi-tfidf", ("B04",), "α LSI + (1 - α) TF-IDF", fit_lsi_tfidf),
)
