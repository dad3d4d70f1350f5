"""Projections and topic models of mates: CL-LSI, OPCA, CCA, PCA, PLSA, JPLSA, CPLSA and HDLR (spec B07-B14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.choosing import Option, choose, dimensions, some
from papers.metric_learning import HdlrSettings, fit_hdlr
from papers.projections import REDUCED, fit_cca, fit_cl_lsi, fit_opca, fit_pca
from papers.remembering import remembered
from papers.study import Study, Texts
from papers.system import Fitted, Job, System
from papers.topic import TopicModel
from papers.topics import TopicSettings, fit_cplsa, fit_jplsa, fit_plsa
from papers.translated_likelihood import fit_translated_likelihood
from reranker.baselines.lexical import singular_vectors
from reranker.errors import TrainingError
from reranker.models.projection import Projection

Doubles = npt.NDArray[np.float64]

NOISES = (1e-5, 1e-4, 1e-3)
"""OPCA's g."""
RIDGES = (1e-4, 1e-3, 1e-2)
"""CCA's r."""
SLACKS = (0.1, 1.0)
"""HDLR's g."""
SMOOTHINGS = (0.2, 0.4, 0.6)
"""Lambda of the translated likelihood."""
COUPLINGS = (0.02, 0.1)
"""CPLSA's eps."""
MOST_TOPICS = 100
"""A topic more costs as much in each of dozens of iterations as a dimension of a projection does once."""
HDLR_PAIRS = 2_500
"""Similar pairs, and as many dissimilar ones (spec B14)."""


def mates_of(study: Study) -> tuple[Texts, Texts]:
    """Return the training mates.

    Raises
    ------
    TrainingError
        If there is none.
    """
    if study.mates is None or not len(study.mates[0]):
        raise TrainingError("there are no mates to learn from: give a corpus with the same ids in two languages")
    return study.mates


def dimensions_of(job: Job) -> tuple[int, ...]:
    """Return the numbers of dimensions to try, the greatest first."""
    left, right = mates_of(job.study)
    return dimensions(job.budget.n_dims, max(1, min(*left.rows.shape, *right.rows.shape) - 1))


def start_of(kind: str, study: Study, n_dims: int) -> Projection:
    """Return a projection of the mates by its untuned settings: ``cl-lsi``, ``opca``, ``cca`` or ``pca``.

    It depends on the study and these arguments alone, and is made once for all systems that start from it.
    """
    x, y = (side.rows for side in mates_of(study))
    rng = np.random.default_rng([study.seed, 7])
    if kind in ("opca", "cca"):
        return remembered(study, (kind, n_dims), lambda: Sides.of(study, n_dims).fit(kind, n_dims))
    if kind == "pca":
        return remembered(study, (kind, n_dims), lambda: _each(x, y, n_dims, rng))
    return remembered(study, (kind, n_dims), lambda: fit_cl_lsi(x, y, n_dims, rng=rng))


def _each(x: sp.csr_matrix, y: sp.csr_matrix, n_dims: int, rng: np.random.Generator) -> Projection:
    """Return the PCA of each language alone."""
    return Projection(fit_pca(x, n_dims, rng=rng).A, fit_pca(y, n_dims, rng=rng).A)


@dataclass(frozen=True, eq=False)
class Sides:
    """The mates in the space of each side's first singular vectors, in which OPCA and CCA are solved.

    Solving there is what `fit_opca` and `fit_cca` do with the words themselves; here the vectors are found once for
    all settings that are tried.

    Parameters
    ----------
    words : (matrix, matrix)
        (n_words of the side, r) float64: the vectors.
    rows : (csr_matrix, csr_matrix)
        (n_pairs, r) float32: the texts in their space.
    """

    words: tuple[Doubles, Doubles]
    rows: tuple[sp.csr_matrix, sp.csr_matrix]

    @classmethod
    def of(cls, study: Study, n_dims: int) -> Sides:
        """Return the mates of a study; made once for a study and size."""
        size = max(REDUCED, 2 * n_dims)

        def make() -> Sides:
            rng = np.random.default_rng([study.seed, 7])
            x, y = (side.rows for side in mates_of(study))
            left, right = (singular_vectors(rows, size, rng, fewer=True).words for rows in (x, y))
            return cls((left, right), (_dense(x @ left), _dense(y @ right)))

        return remembered(study, ("sides", size), make)

    def fit(self, kind: str, n_dims: int, **settings: Any) -> Projection:
        """Return OPCA or CCA over the words."""
        size = max(side.shape[1] for side in self.rows)
        rng = np.random.default_rng(0)  # the vectors of the reduced texts need no start
        if kind == "opca":
            inner = fit_opca(*self.rows, n_dims, rng=rng, reduced=size, **settings)
        else:
            inner = fit_cca(*self.rows, n_dims, rng=rng, reduced=size, **settings)
        A, B = (words @ side for words, side in zip(self.words, (inner.A, inner.B), strict=True))
        return Projection(np.ascontiguousarray(A, dtype=np.float32), np.ascontiguousarray(B, dtype=np.float32))


def _dense(rows: Doubles) -> sp.csr_matrix:
    """Return dense texts as the fits take them."""
    return sp.csr_matrix(np.asarray(rows, dtype=np.float32))


def _cut(job: Job, fits: Callable[[int], Iterator[tuple[str, float, Projection]]]) -> Fitted:
    """Return the best of several projections and numbers of their dimensions, each decomposed once."""
    sizes = dimensions_of(job)

    def options() -> Iterator[Option]:
        for name, value, projection in fits(sizes[0]):
            for size in sizes:
                yield {"dimensions": size, name: value}, lambda p=projection, s=size: p.first(s)  # type: ignore[misc]

    return choose(job, options())


def fit_cl_lsi_system(job: Job) -> Fitted:
    """Return CL-LSI with its number of dimensions tuned."""

    def fits(size: int) -> Iterator[tuple[str, float, Projection]]:
        yield "rank", size, start_of("cl-lsi", job.study, size)

    return _cut(job, fits)


def fit_pca_system(job: Job) -> Fitted:
    """Return PCA of each language alone, its number of dimensions tuned: it does not know that texts are mates."""

    def fits(size: int) -> Iterator[tuple[str, float, Projection]]:
        yield "rank", size, start_of("pca", job.study, size)

    return _cut(job, fits)


def fit_opca_system(job: Job) -> Fitted:
    """Return OPCA with its noise and number of dimensions tuned."""

    def fits(size: int) -> Iterator[tuple[str, float, Projection]]:
        sides = Sides.of(job.study, size)
        for noise in some(NOISES, job.budget.grid):
            yield "noise", noise, sides.fit("opca", size, noise=noise)

    return _cut(job, fits)


def fit_cca_system(job: Job) -> Fitted:
    """Return CCA with its ridge and number of dimensions tuned."""

    def fits(size: int) -> Iterator[tuple[str, float, Projection]]:
        sides = Sides.of(job.study, size)
        for ridge in some(RIDGES, job.budget.grid):
            yield "ridge", ridge, sides.fit("cca", size, ridge=ridge)

    return _cut(job, fits)


def _topics(job: Job, fit: Callable[[TopicSettings], TopicModel], slacks: Sequence[float] = (0.0,)) -> Fitted:
    """Return the topic model of the best slack, over counts."""
    n_topics = min(job.budget.n_dims, MOST_TOPICS)

    def option(slack: float) -> Option:
        settings = TopicSettings(n_topics=n_topics, n_iterations=job.budget.n_iterations, slack=slack)
        said = {"topics": n_topics, "iterations": settings.n_iterations}
        return ({**said, "slack": slack} if slack else said), lambda: fit(settings)

    return choose(job, map(option, slacks), "counts", "counts")


def fit_plsa_system(job: Job) -> Fitted:
    """Return PLSA of the mates, each pair joined to one text as CL-LSI takes it; each side then has its own words.

    Of single texts, a topic would hold words of one language alone.
    """
    left, right = (side.counts for side in mates_of(job.study))
    cut = left.shape[1]

    def fit(settings: TopicSettings) -> TopicModel:
        phi = fit_plsa(sp.hstack([left, right], format="csr"), settings, rng=job.rng).phi_q
        sides = _to_one(phi[:, :cut]), _to_one(phi[:, cut:])
        return TopicModel(*sides, settings.similarity, settings.topic_prior, settings.n_fold_in)

    return _topics(job, fit)


def _to_one(rows: Doubles) -> Doubles:
    """Return rows divided by their sums; uniform where a topic has no word of a language."""
    total = rows.sum(axis=1, keepdims=True)
    return np.where(total > 0.0, rows / np.where(total > 0.0, total, 1.0), 1.0 / rows.shape[1])


def fit_jplsa_system(job: Job) -> Fitted:
    """Return JPLSA of the mates."""
    left, right = (side.counts for side in mates_of(job.study))
    return _topics(job, lambda settings: fit_jplsa(left, right, settings, rng=job.rng))


def fit_cplsa_system(job: Job) -> Fitted:
    """Return CPLSA of the mates with its slack tuned."""
    left, right = (side.counts for side in mates_of(job.study))
    slacks = some(COUPLINGS, job.budget.grid)
    return _topics(job, lambda settings: fit_cplsa(left, right, settings, rng=job.rng), slacks)


def fit_hdlr_system(job: Job) -> Fitted:
    """Return HDLR from the space of OPCA on a sample of mates and of as many wrong pairs, its slack tuned."""
    left, right = mates_of(job.study)
    n = min(HDLR_PAIRS, len(left))
    start = start_of("opca", job.study, dimensions_of(job)[-1])
    chosen = np.sort(job.rng.choice(len(left), n, replace=False))
    rows = left.rows[np.concatenate([chosen, chosen])], right.rows[np.concatenate([chosen, np.roll(chosen, 1)])]
    similar = np.arange(2 * n) < n

    def option(slack: float) -> Option:
        settings = HdlrSettings(slack=slack, n_sweeps=2)
        said = {"dimensions": start.n_dims, "pairs": 2 * n, "slack": slack, "passes": settings.n_sweeps}
        return said, lambda: fit_hdlr(start, *rows, similar, settings, rng=job.rng)

    return choose(job, map(option, some(SLACKS, job.budget.grid)))


def fit_likelihood_system(job: Job) -> Fitted:
    """Return the likelihood of each text as a translation of the other, its smoothing tuned (ours)."""
    left, right = (side.counts for side in mates_of(job.study))

    def option(lam: float) -> Option:
        return {"lambda": lam}, lambda: fit_translated_likelihood(left, right, lam=lam)

    return choose(job, map(option, some(SMOOTHINGS, job.budget.grid)), "counts", "counts")


MATES = frozenset({"mates"})

SYSTEMS: tuple[System, ...] = (
    System("cl-lsi", ("B07",), "CL-LSI", fit_cl_lsi_system, MATES),
    System("mates-opca", ("B08",), "OPCA", fit_opca_system, MATES),
    System("mates-cca", ("B09",), "CCA", fit_cca_system, MATES),
    System("mates-pca", ("B10",), "PCA of each language", fit_pca_system, MATES),
    System("mates-plsa", ("B11",), "PLSA of joined pairs", fit_plsa_system, MATES),
    System("mates-jplsa", ("B12",), "JPLSA", fit_jplsa_system, MATES),
    System("mates-cplsa", ("B13",), "CPLSA", fit_cplsa_system, MATES),
    System("mates-hdlr", ("B14",), "HDLR", fit_hdlr_system, MATES),
    System("translated-likelihood", ("B15b", "B19"), "likelihood of translation (ours)", fit_likelihood_system, MATES),
)
