"""SSI and S2Net learned from preferences within a query: judged documents over lesser ones, or clicked ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import scipy.sparse as sp

from papers.composition import Mix
from papers.graded_lexical import ALPHAS, best_of, most_dims
from papers.graded_projections import all_texts_pca
from papers.graded_training import judged_pairs, training_preferences, triples
from papers.mixtures import mixture
from papers.plain_sgd import PlainData, PlainReport, PlainShape, PreferenceSampler, fit_plain
from papers.pseudo_queries import PSEUDO
from papers.s2net_starts import random_start
from papers.study import Study
from papers.system import Fitted, Job, System
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Projection
from reranker.training.s2net import GradedPairs, S2NetSettings, fit_s2net

SMALL_START = 0.1
"""Deviation of a random start that leaves q.d audible (spec A10)."""
BETAS = (1e-4, 1e-3, 1e-5)
"""Weights of S2Net's pull towards its start; its loss is a mean of about 1 or less."""

Start = Callable[[Job, int], Scorer | None]


def fit_graded_ssi(job: Job, *, shape: str, start: str = "random") -> Fitted:
    """Return the best of plain SGD over the training preferences at the budget's rates (spec 2.1, M02, M06, M10).

    Parameters
    ----------
    job : Job
    shape : str
        Of `papers.plain_sgd`.
    start : "random" or "lsi"
        Embeddings start as N(0, .1), or as the words' PCA vectors, all texts' main directions, times .1.
    """
    study = job.study
    preferences = training_preferences(study, job.rng)
    sampler = PreferenceSampler(triples(preferences), preferences.weight)
    data = PlainData(study.queries.rows, study.documents.rows, sp.csr_matrix(study.relevant.shape), study.own)
    chosen = PlainShape(shape, identity=1.0 if shape == "hash" else None, n_slots=job.budget.n_slots)
    n_dims = most_dims(job, study.documents.rows)
    origin = _from_pca(study, n_dims) if start == "lsi" else None
    n_dims = n_dims if origin is None else origin.n_dims
    seed = int(job.rng.integers(2**31))

    def build(rate: float) -> Scorer:
        return fit_plain(
            chosen,
            data,
            n_dims=n_dims,
            rate=rate,
            n_steps=job.budget.n_steps,
            init_std=SMALL_START,
            rng=np.random.default_rng(seed),
            validate=job.validate(),
            every=job.budget.every,
            patience=job.budget.patience,
            progress=partial(_report, job),
            start=origin,
            sampler=sampler,
        )

    rate, scorer, value = best_of(job.budget.rates[: job.budget.grid], build, job.validate())
    settings = {"rate": rate, "pairs": len(preferences), "dimensions": n_dims, "validation": value}
    return Fitted(scorer, settings=settings)


def fit_graded_s2net(
    job: Job, *, loss: str = "logistic", start: str = "pca", pull: bool = False, query_view: str = "rows"
) -> Fitted:
    """Return S2Net on the judged pairs: L-BFGS from PCA of all texts, stopped early (spec M21 to M24, T7).

    Parameters
    ----------
    job : Job
    loss : "logistic" or "squared"
    start : "pca" or "random"
    pull : bool
        Try weights of the pull towards the start, too (M23).
    query_view : str
        ``rows``, or ``pseudo-documents`` (R04).
    """
    study = job.study
    data = graded_pairs(study, job.rng, query_view)
    if start == "pca":
        origin = all_texts_pca(study, job.budget.n_dims, query_view)
    else:
        width = data.d_rows.shape[1]
        origin = random_start((width, width), most_dims(job, study.documents.rows), rng=job.rng, tied=True)
    plain = S2NetSettings(loss="squared" if loss == "squared" else "logistic", max_iterations=job.budget.n_iterations)
    validate = job.validate(query_view)

    def build(beta: float) -> Projection:
        return fit_s2net(
            data,
            origin,
            replace(plain, beta=beta),
            validate=validate,
            progress=lambda step, value, _: job.progress(f"loss {value:.4f}", step, plain.max_iterations),
        )

    betas = BETAS[: job.budget.grid] if pull else (0.0,)
    beta, scorer, value = best_of(betas, build, validate)
    settings = {"beta": beta, "dimensions": origin.n_dims, "pairs": len(data.better), "validation": value}
    return Fitted(scorer, query_view, settings=settings)


def fit_s2net_tfidf(job: Job) -> Fitted:
    """Return alpha S2Net + (1 - alpha) TF-IDF, alpha chosen on validation: both are cosines."""
    learned = fit_graded_s2net(job)
    tfidf = Bilinear.lexical()

    def build(alpha: float) -> Mix:
        return mixture(learned.scorer, tfidf, alpha)

    alpha, scorer, value = best_of(ALPHAS[: job.budget.grid], build, job.validate())
    return Fitted(scorer, settings={**learned.settings, "alpha": alpha, "validation": value})


def graded_pairs(study: Study, rng: np.random.Generator, query_view: str = "rows") -> GradedPairs:
    """Return the judged pairs as S2Net takes them, with the judged documents alone."""
    judged = judged_pairs(study, rng)
    used, document = np.unique(judged.document, return_inverse=True)
    return GradedPairs(
        study.queries.view(query_view),
        study.documents.rows[used],
        judged.query,
        document.astype(np.int64),
        judged.grade,
    )


def _from_pca(study: Study, n_dims: int) -> Bilinear:
    """Return U = V = .1 times the PCA vectors of the words, with the identity."""
    words = np.ascontiguousarray(np.float32(SMALL_START) * all_texts_pca(study, n_dims).A)
    return Bilinear(words, words.copy(), 1.0)


def _report(job: Job, report: PlainReport) -> None:
    job.progress(f"validation {report.validation:.4f}", report.step, report.n_steps)


_JUDGED = frozenset({"judged"})

SYSTEMS: tuple[System, ...] = (
    System("graded-diagonal", ("M02",), "SSI, diagonal", partial(fit_graded_ssi, shape="diagonal")),
    System("graded-ssi", ("M06",), "SSI, UᵀV + I", partial(fit_graded_ssi, shape="low_rank")),
    System("graded-ssi-pca", ("M06",), "SSI, UᵀV + I from PCA", partial(fit_graded_ssi, shape="low_rank", start="lsi")),
    System("graded-ssi-tied", ("M05",), "SSI, UᵀU + I", partial(fit_graded_ssi, shape="tied")),
    System("graded-hash", ("M10", "B06"), "hash kernel + I", partial(fit_graded_ssi, shape="hash")),
    System("graded-s2net", ("M21",), "S2Net", fit_graded_s2net, _JUDGED),
    System("graded-s2net-squared", ("M22",), "S2Net, squared loss", partial(fit_graded_s2net, loss="squared"), _JUDGED),
    System("graded-s2net-pull", ("M23",), "S2Net, regularised", partial(fit_graded_s2net, pull=True), _JUDGED),
    System("graded-s2net-random", ("M24",), "S2Net, random start", partial(fit_graded_s2net, start="random"), _JUDGED),
    System("graded-s2net-tfidf", ("M21",), "α S2Net + (1 - α) TF-IDF", fit_s2net_tfidf, _JUDGED),
    System(
        "graded-s2net-pseudo", ("M21",), "S2Net, pseudo-document queries",
        partial(fit_graded_s2net, query_view=PSEUDO), _JUDGED | {PSEUDO},
    ),
)  # fmt: skip
