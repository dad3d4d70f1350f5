"""Systems learned from mates: S2Net by its losses, starts and options, and PSI across languages (M21-M26).

The projections and topic models that they are compared with are in `papers.projection_systems`; all of them
together are `SYSTEMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import scipy.sparse as sp

from papers.choosing import Option, choose, some
from papers.plain_sgd import PlainData, PlainReport, fit_plain
from papers.projection_systems import MATES, dimensions_of, mates_of, start_of
from papers.projection_systems import SYSTEMS as PROJECTIONS
from papers.s2net_starts import random_start
from papers.study import Study
from papers.system import Fitted, Job, System
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Activation, Projection
from reranker.training.s2net import Mates, S2NetSettings, fit_s2net

GAMMAS = (10.0, 20.0)
"""S2Net's gamma; the paper has 10 and finds larger ones alike."""
BETAS = (1e-7, 1e-6, 1e-5)
"""Weights of the pull towards the start; the loss is a mean over pairs, its entries are of the size of 1 / sqrt(D)."""
SCALES = (5.0, 10.0)
"""Length of the start's word vectors for PSI: a margin of 1 is then a tenth or so of the spread of its scores."""
DEVIATIONS = (0.1, 1.0)
"""Standard deviations of a random start; 1 is the paper's."""


def _s2net(
    job: Job,
    start: str,
    loss: Literal["logistic", "squared"] = "logistic",
    betas: tuple[float, ...] = (0.0,),
    activation: Activation = "linear",
) -> Fitted:
    """Return S2Net from a start, early stopping on validation.

    Gamma and beta are chosen by what a quarter of the iterations reaches; then all are made with the best. The two
    languages have words of their own, so there are two matrices: the two parts of the paper's one matrix over all
    words of both.
    """
    left, right = mates_of(job.study)
    data = Mates(left.rows, right.rows)
    size, n_iterations = dimensions_of(job)[0], job.budget.n_iterations
    origin = _start(job.study, start, size, job.rng).with_activation(activation)

    def option(gamma: float, beta: float, iterations: int) -> Option:
        settings = S2NetSettings(loss=loss, gamma=gamma, beta=beta, max_iterations=iterations)
        said = {"start": start, "dimensions": size, "gamma": gamma, "beta": beta, "iterations at most": iterations}
        return said, lambda: fit_s2net(
            data,
            origin,
            settings,
            validate=job.validate(),
            progress=lambda done, _, __: job.progress("iterations", done, settings.max_iterations),
        )

    gammas = some(GAMMAS, 1 if loss == "squared" else job.budget.grid)
    points = [(gamma, beta) for gamma in gammas for beta in some(betas, job.budget.grid)]
    if len(points) == 1:
        return choose(job, [option(*points[0], n_iterations)])
    tried = choose(job, [option(*point, max(1, n_iterations // 4)) for point in points])
    best = option(tried.settings["gamma"], tried.settings["beta"], n_iterations)
    return choose(job, [best]).saying({"settings tried": len(points)})


def _start(study: Study, kind: str, n_dims: int, rng: np.random.Generator) -> Projection:
    """Return A0 and B0 of a kind."""
    if kind == "random":
        left, right = mates_of(study)
        return random_start((left.rows.shape[1], right.rows.shape[1]), n_dims, rng=rng)
    return start_of(kind, study, n_dims)


def training_links(study: Study) -> PlainData:
    """Return the training links; documents that must not be looked at are left out, also as negatives."""
    if study.train_documents is None:
        return study.plain_data()
    kept = study.train_documents
    column = np.full(len(study.documents), -1, np.int64)
    column[kept] = np.arange(len(kept))
    own = np.where(study.own >= 0, column[study.own], -1)
    known = None if study.known is None else sp.csr_matrix(study.known[:, kept])
    return PlainData(study.queries.rows, study.documents.rows[kept], sp.csr_matrix(study.relevant[:, kept]), own, known)


def _psi(job: Job, options: Callable[[], Iterator[tuple[dict[str, object], Scorer | None, float]]]) -> Fitted:
    """Return U^T V of the best start and rate; ``options`` yields settings, a start and a deviation of the draw."""
    data = training_links(job.study)
    budget = job.budget

    def fitted(start: Scorer | None, deviation: float, rate: float, size: int) -> Scorer:
        def report(at: PlainReport) -> None:
            job.progress("steps", at.step, at.n_steps)

        return fit_plain("no_identity", data, n_dims=size, rate=rate, n_steps=budget.n_steps, init_std=deviation,
                         rng=job.rng, validate=job.validate(), every=budget.every, patience=budget.patience,
                         progress=report, start=start)  # fmt: skip

    def tried() -> Iterator[Option]:
        for said, start, deviation in options():
            size = start.n_dims if isinstance(start, Bilinear) else budget.n_dims
            for rate in some(budget.rates, budget.grid):
                make = partial(fitted, start, deviation, rate, size)
                yield {**said, "dimensions": size, "rate": rate, "steps at most": budget.n_steps}, make

    return choose(job, tried())


def fit_psi_from_start(job: Job, kind: str = "cl-lsi") -> Fitted:
    """Return U^T V started from a projection of the mates; scale and rate tuned.

    A projection is scored by a cosine, U^T V by an inner product: the start's columns are scaled so that training
    documents have vectors of about the length ``scale`` ** .5.
    """
    projection = start_of(kind, job.study, dimensions_of(job)[0])

    def options() -> Iterator[tuple[dict[str, object], Scorer | None, float]]:
        for scale in some(SCALES, job.budget.grid):
            yield {"start": kind, "scale": scale}, as_bilinear(projection, job.study, scale), 0.0

    return _psi(job, options)


def as_bilinear(projection: Projection, study: Study, scale: float) -> Bilinear:
    """Return U^T V of a projection, scaled so that mates of mean length have the score ``scale`` for a cosine of 1."""
    sides = []
    for matrix, texts in zip((projection.A, projection.B), mates_of(study), strict=True):
        length = float(np.linalg.norm(texts.rows @ matrix, axis=1).mean()) or 1.0
        sides.append(np.ascontiguousarray(matrix * np.float32(np.sqrt(scale) / length)))
    return Bilinear(sides[0], sides[1], 0.0)


def fit_psi_from_random(job: Job) -> Fitted:
    """Return U^T V from a random start (M26); its deviation and the rate tuned."""

    def options() -> Iterator[tuple[dict[str, object], Scorer | None, float]]:
        for deviation in some(DEVIATIONS, job.budget.grid):
            yield {"start": "random", "deviation": deviation}, None, deviation

    return _psi(job, options)


S2NETS: tuple[System, ...] = (
    System("mates-s2net", ("M21", "M24", "M25"), "S2Net from OPCA", partial(_s2net, start="opca"), MATES),
    System("mates-s2net-cl-lsi", ("M24",), "S2Net from CL-LSI", partial(_s2net, start="cl-lsi"), MATES),
    System("mates-s2net-pca", ("M24",), "S2Net from PCA", partial(_s2net, start="pca"), MATES),
    System("mates-s2net-random", ("M24",), "S2Net from random", partial(_s2net, start="random"), MATES),
    System(
        "mates-s2net-squared", ("M22",), "S2Net, squared loss", partial(_s2net, start="opca", loss="squared"), MATES
    ),
    System(
        "mates-s2net-beta", ("M23",), "S2Net, pulled to its start", partial(_s2net, start="opca", betas=BETAS), MATES
    ),
    System(
        "mates-s2net-sigmoid", ("M25",), "S2Net, sigmoid", partial(_s2net, start="opca", activation="sigmoid"), MATES
    ),
)

PSIS: tuple[System, ...] = (
    System("psi-cross", ("M26", "M07"), "PSI across languages", fit_psi_from_random),
    System("psi-cross-cl-lsi", ("M26",), "PSI from CL-LSI", fit_psi_from_start, MATES),
    System("psi-cross-cca", ("M26",), "PSI from CCA", partial(fit_psi_from_start, kind="cca"), MATES),
)

SYSTEMS: tuple[System, ...] = (*PROJECTIONS, *S2NETS, *PSIS)
