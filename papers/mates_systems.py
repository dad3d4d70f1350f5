"""Systems trained on mates (parallel texts of two languages), and systems of retrieval across languages.

Projections and topic models (spec B07 to B14), S2Net and PSI (M21 to M26), translated queries and mixtures (B15, B16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from zlib import crc32

import numpy as np
import scipy.sparse as sp

from papers.bilingual import BESIDE, ONCE
from papers.fitting import Option, dimensions, remembered, s2net_option, sgd_option, some, tuned
from papers.methods.lexical import OnView
from papers.methods.projection import Activation, Projection
from papers.methods.projections import (
    REDUCED,
    HdlrSettings,
    Mates,
    fit_cca,
    fit_cl_lsi,
    fit_hdlr,
    fit_lsa,
    fit_opca,
    fit_pca,
    random_start,
)
from papers.methods.s2net import S2NetSettings
from papers.methods.singular_vectors import singular_vectors
from papers.methods.topics import TopicModel, TopicSettings, fit_topic_model, rows_to_one
from papers.methods.translation import fit_translated_likelihood
from papers.methods.word_pairs import Bilinear, Mix
from papers.plain_sgd import PlainData
from papers.registry import FitInput, Fitted, System
from papers.study import Study, Texts
from reranker.arrays import Float64
from reranker.errors import TrainingError
from reranker.models.scorers import Scorer

NOISES = (1e-5, 1e-4, 1e-3)
"""Values of OPCA's g."""
RIDGES = (1e-4, 1e-3, 1e-2)
"""Values of CCA's r."""
SLACKS = (0.1, 1.0)
"""Values of HDLR's g."""
SMOOTHINGS = (0.2, 0.4, 0.6)
"""Values of lambda of the translated likelihood."""
COUPLINGS = (0.02, 0.1)
"""Values of CPLSA's eps."""
MOST_TOPICS = 100
"""Largest number of topics: one costs as much in each of dozens of iterations as a projection's dimension in total."""
HDLR_PAIRS = 2_500
"""Number of similar pairs, and of dissimilar ones (spec B14)."""
GAMMAS = (10.0, 20.0)
"""Values of S2Net's gamma; the paper uses 10 and finds larger ones equivalent."""
BETAS = (1e-7, 1e-6, 1e-5)
"""Weights of the pull towards the start; the loss is a mean over pairs, and entries are of the size 1 / sqrt(D)."""
SCALES = (5.0, 10.0)
"""Scale of PSI's start: with these, a margin of 1 is about a tenth of the spread of its scores."""
DEVIATIONS = (0.1, 1.0)
"""Standard deviations of a random start; 1 is the paper's. On translated queries only the first is used (A10)."""
VIEW = "texts-ibm"
"""Translation used by LSI, PSI and the mixtures: whole texts by the table of IBM model 1."""
N_SPREAD = 2_000
"""Number of random pairs from which the spread of a scorer's values is estimated."""


def mates_of(study: Study) -> tuple[Texts, Texts]:
    """Return the training mates.

    Raises
    ------
    TrainingError
        If there are none.
    """
    if study.mates is None or not len(study.mates[0]):
        raise TrainingError("there are no mates to train on: give a corpus with the same ids in two languages")
    return study.mates


def dimensions_of(job: FitInput) -> tuple[int, ...]:
    """Return the numbers of dimensions to try, the largest first."""
    left, right = mates_of(job.study)
    return dimensions(job.budget.n_dims, max(1, min(*left.rows.shape, *right.rows.shape) - 1))


def start_of(kind: str, study: Study, n_dims: int) -> Projection:
    """Return a projection of the mates with untuned settings: ``cl-lsi``, ``opca``, ``cca`` or ``pca``.

    It depends only on the study and these arguments, and is cached for all systems that start from it.

    Source: spec 2.7, M24.
    """

    def make() -> Projection:
        if kind in ("opca", "cca"):
            return Sides.of(study, n_dims).fit(kind, n_dims)
        x, y = (side.rows for side in mates_of(study))
        rng = np.random.default_rng([study.seed, 7])
        if kind == "cl-lsi":
            return fit_cl_lsi(x, y, n_dims, rng=rng)
        # Each side is decomposed by itself: the two spaces are unrelated until they are trained.
        return Projection(fit_pca(x, n_dims, rng=rng).A, fit_pca(y, n_dims, rng=rng).A)

    return remembered(study, (kind, n_dims), make)


@dataclass(frozen=True, eq=False)
class Sides:
    """The mates in the space of each side's first singular vectors, in which OPCA and CCA are solved.

    `fit_opca` and `fit_cca` do the same for word rows; here the vectors are computed once for all settings.
    """

    words: tuple[Float64, Float64]
    """Singular vectors of each side, (n_words of the side, r) float64."""
    rows: tuple[sp.csr_matrix, sp.csr_matrix]
    """Texts of each side in their space, (n_pairs, r) float32."""

    @classmethod
    def of(cls, study: Study, n_dims: int) -> Sides:
        """Return the mates of a study, cached by study and size."""
        size = max(REDUCED, 2 * n_dims)

        def make() -> Sides:
            rng = np.random.default_rng([study.seed, 7])
            x, y = (side.rows for side in mates_of(study))
            left, right = (singular_vectors(rows, size, rng, fewer=True).words for rows in (x, y))
            reduced = (sp.csr_matrix(np.asarray(rows, dtype=np.float32)) for rows in (x @ left, y @ right))
            return cls((left, right), (next(reduced), next(reduced)))

        return remembered(study, ("sides", size), make)

    def fit(self, kind: str, n_dims: int, **settings: Any) -> Projection:
        """Return OPCA or CCA over the words."""
        size = max(side.shape[1] for side in self.rows)
        solve = fit_opca if kind == "opca" else fit_cca
        rng = np.random.default_rng(0)  # reduced texts are solved exactly, without a random start
        inner = solve(*self.rows, n_dims, rng=rng, reduced=size, **settings)
        A, B = (words @ side for words, side in zip(self.words, (inner.A, inner.B), strict=True))
        return Projection(np.ascontiguousarray(A, dtype=np.float32), np.ascontiguousarray(B, dtype=np.float32))


def _cut(job: FitInput, fits: Iterable[tuple[str, float, Projection]]) -> Fitted:
    """Return the best of several projections and numbers of dimensions; each projection is computed once."""
    sizes = dimensions_of(job)
    return tuned(
        job,
        (
            ({"dimensions": size, name: value}, partial(projection.first, size))
            for name, value, projection in fits
            for size in sizes
        ),
        counted=True,
    )


def _fixed_projection(job: FitInput, kind: str) -> Fitted:
    """Return CL-LSI, or PCA of each language by itself, which does not use that texts are mates."""
    size = dimensions_of(job)[0]
    return _cut(job, [("rank", size, start_of(kind, job.study, size))])


def _regularised_projection(job: FitInput, kind: str, setting: str, values: Sequence[float]) -> Fitted:
    """Return OPCA with tuned noise, or CCA with a tuned ridge."""
    size = dimensions_of(job)[0]
    sides = Sides.of(job.study, size)
    tried = some(values, job.budget.grid)
    return _cut(job, ((setting, value, sides.fit(kind, size, **{setting: value})) for value in tried))


def _topics(job: FitInput, kind: Literal["plsa", "jplsa", "cplsa"]) -> Fitted:
    """Return a topic model of the mates' counts; the slack of CPLSA is tuned.

    PLSA is trained on pairs joined to one text, as CL-LSI is; afterwards each side has its own words. Trained on single
    texts, each topic would contain words of only one language.
    """
    left, right = (side.counts for side in mates_of(job.study))
    n_topics, n_iterations = min(job.budget.n_dims, MOST_TOPICS), job.budget.n_iterations

    def fit(slack: float) -> TopicModel:
        settings = TopicSettings(n_topics=n_topics, n_iterations=n_iterations, slack=slack)
        if kind != "plsa":
            return fit_topic_model((left, right), settings, rng=job.rng, coupled=kind == "cplsa")
        phi = fit_topic_model([sp.hstack([left, right], format="csr")], settings, rng=job.rng).phi_q
        cut = left.shape[1]
        sides = rows_to_one(phi[:, :cut]), rows_to_one(phi[:, cut:])
        return TopicModel(*sides, settings.similarity, settings.topic_prior, settings.n_fold_in)

    slacks = some(COUPLINGS, job.budget.grid) if kind == "cplsa" else (0.0,)
    chosen = {"topics": n_topics, "iterations": n_iterations}
    options = (({**chosen, "slack": slack} if slack else chosen, partial(fit, slack)) for slack in slacks)
    return tuned(job, options, "counts", "counts", counted=True)


def _hdlr(job: FitInput) -> Fitted:
    """Return HDLR from the space of OPCA, trained on a sample of mates and as many wrong pairs; the slack is tuned."""
    left, right = mates_of(job.study)
    n = min(HDLR_PAIRS, len(left))
    start = start_of("opca", job.study, dimensions_of(job)[-1])
    sample = np.sort(job.rng.choice(len(left), n, replace=False))
    rows = left.rows[np.concatenate([sample, sample])], right.rows[np.concatenate([sample, np.roll(sample, 1)])]
    similar = np.arange(2 * n) < n

    def option(slack: float) -> Option:
        settings = HdlrSettings(slack=slack, n_sweeps=2)
        chosen = {"dimensions": start.n_dims, "pairs": 2 * n, "slack": slack, "passes": settings.n_sweeps}
        return chosen, lambda: fit_hdlr(start, *rows, similar, settings, rng=job.rng)

    return tuned(job, map(option, some(SLACKS, job.budget.grid)), counted=True)


def _likelihood(job: FitInput) -> Fitted:
    """Return the likelihood of each text as a translation of the other, with tuned smoothing (ours)."""
    left, right = (side.counts for side in mates_of(job.study))
    lambdas = some(SMOOTHINGS, job.budget.grid)
    options = (({"lambda": lam}, partial(fit_translated_likelihood, left, right, lam=lam)) for lam in lambdas)
    return tuned(job, options, "counts", "counts", counted=True)


def _s2net(
    job: FitInput,
    start: str = "opca",
    loss: Literal["logistic", "squared"] = "logistic",
    betas: tuple[float, ...] = (0.0,),
    activation: Activation = "linear",
) -> Fitted:
    """Return S2Net from a start, with early stopping on validation.

    Gamma and beta are chosen by the result after a quarter of the iterations; the best are then trained in full. The
    two languages have different words, so there are two matrices: the two parts of the paper's one matrix over the
    words of both.
    """
    left, right = mates_of(job.study)
    data = Mates(left.rows, right.rows)
    size, n_iterations = dimensions_of(job)[0], job.budget.n_iterations
    if start == "random":
        origin = random_start((left.rows.shape[1], right.rows.shape[1]), size, rng=job.rng)
    else:
        origin = start_of(start, job.study, size)
    origin = Projection(origin.A, origin.B, activation)

    def option(gamma: float, beta: float, iterations: int) -> Option:
        settings = S2NetSettings(loss=loss, gamma=gamma, beta=beta, max_iterations=iterations)
        said = {"start": start, "dimensions": size, "gamma": gamma, "beta": beta, "iterations at most": iterations}
        return s2net_option(job, data, origin, settings, said)

    gammas = some(GAMMAS, 1 if loss == "squared" else job.budget.grid)
    points = [(gamma, beta) for gamma in gammas for beta in some(betas, job.budget.grid)]
    if len(points) == 1:
        return tuned(job, [option(*points[0], n_iterations)], counted=True)
    tried = tuned(job, [option(*point, max(1, n_iterations // 4)) for point in points], counted=True)
    best = option(tried.settings["gamma"], tried.settings["beta"], n_iterations)
    return tuned(job, [best], counted=True).saying({"settings tried": len(points)})


def _psi(job: FitInput, starts: Iterable[tuple[dict[str, Any], Bilinear | None, float]]) -> Fitted:
    """Return U^T V with the best start and rate; a start is (settings, scorer or None, deviation of random values)."""
    data = job.study.plain_data()
    budget = job.budget

    def options() -> Iterator[Option]:
        for chosen, start, deviation in starts:
            size = budget.n_dims if start is None else start.n_dims
            for rate in some(budget.rates, budget.grid):
                said = {**chosen, "dimensions": size, "rate": rate, "steps at most": budget.n_steps}
                settings = {"n_dims": size, "rate": rate, "init_std": deviation, "rng": job.rng, "start": start}
                yield sgd_option(job, "no_identity", data, said, **settings)

    return tuned(job, options(), counted=True)


def _psi_from_projection(job: FitInput, kind: str) -> Fitted:
    """Return U^T V started from a projection of the mates, with tuned scale and rate.

    A projection is scored by a cosine and U^T V by an inner product. The start's columns are therefore scaled so that
    training documents have vectors of about the length ``scale`` ** .5.
    """
    projection = start_of(kind, job.study, dimensions_of(job)[0])
    scales = some(SCALES, job.budget.grid)
    return _psi(
        job, (({"start": kind, "scale": scale}, as_bilinear(projection, job.study, scale), 0.0) for scale in scales)
    )


def as_bilinear(projection: Projection, study: Study, scale: float) -> Bilinear:
    """Return U^T V of a projection, scaled so that mates of mean length score ``scale`` for a cosine of 1."""
    sides = []
    for matrix, texts in zip((projection.A, projection.B), mates_of(study), strict=True):
        length = float(np.linalg.norm(texts.rows @ matrix, axis=1).mean()) or 1.0
        sides.append(np.ascontiguousarray(matrix * np.float32(np.sqrt(scale) / length)))
    return Bilinear(sides[0], sides[1], 0.0)


def _psi_from_random(job: FitInput) -> Fitted:
    """Return U^T V from a random start (M26), with tuned deviation and rate."""
    deviations = some(DEVIATIONS, job.budget.grid)
    return _psi(job, (({"start": "random", "deviation": deviation}, None, deviation) for deviation in deviations))


def _translated_tfidf(job: FitInput, view: str) -> Fitted:
    """Return TF-IDF between the translated query and the document (B15a, B15b), without tuning."""
    return Fitted(Bilinear.lexical(), view, settings={"translation": view})


def _translated_lsi(job: FitInput) -> Fitted:
    """Return LSI of the documents for translated queries (B15c), with a tuned number of dimensions."""
    rows = job.study.background().rows
    sizes = dimensions(job.budget.n_dims, min(rows.shape) - 1)
    projection = fit_lsa(rows, sizes[0], rng=job.rng)
    options = (({"dimensions": size, "translation": VIEW}, partial(projection.first, size)) for size in sizes)
    return tuned(job, options, VIEW, counted=True)


def _translated_psi(job: FitInput) -> Fitted:
    """Return PSI trained on English queries (the pages' mates) and applied to translated ones (B15d)."""
    study, budget = job.study, job.budget
    queries = study.documents.view(ONCE)[study.own]
    data = PlainData(queries, study.documents.rows, study.relevant, study.own, study.known)
    deviation = DEVIATIONS[0]

    def option(rate: float) -> Option:
        chosen = {"dimensions": budget.n_dims, "rate": rate, "deviation": deviation, "translation": VIEW}
        return sgd_option(job, "low_rank", data, chosen, rate=rate, init_std=deviation, rng=job.rng, view=VIEW)

    return tuned(job, map(option, some(budget.rates, budget.grid)), VIEW, counted=True)


def _mix(job: FitInput, first: str, second: str) -> Fitted:
    """Return alpha f / s_f + (1 - alpha) g / s_g of two systems, with tuned alpha (B15c, B16).

    s is the standard deviation of a system's scores on random validation pairs, so that alpha means the same for scores
    of any scale; the papers mix the scores without scaling. The rows hold the query and its translation, and each
    system reads its own part.
    """
    parts = [part(job, name) for name in (first, second)]
    n_own = job.study.queries.rows.shape[1]
    n_all = n_own + job.study.documents.rows.shape[1]
    seen = [OnView(fitted.scorer, *((0, n_own) if fitted.query_view == "rows" else (n_own, n_all))) for fitted in parts]
    spreads = [_spread(job, scorer) for scorer in seen]

    def option(alpha: float) -> Option:
        weights = (alpha / spreads[0], (1.0 - alpha) / spreads[1])
        return {"first": first, "second": second, "alpha": alpha}, lambda: Mix(tuple(seen), weights)

    return tuned(job, map(option, some([step / 10 for step in range(11)], job.budget.grid)), BESIDE, counted=True)


def part(job: FitInput, name: str) -> Fitted:
    """Return a system of the same study and budget as if fitted by itself; it is fitted once and cached."""

    def make() -> Fitted:
        rng = np.random.default_rng([job.study.seed, crc32(name.encode())])
        return PARTS[name].fit(FitInput(job.study, job.budget, job.loss, rng, job.progress))

    return remembered(job.study, (name, job.budget, job.loss), make)


def fitted_once(system: System) -> System:
    """Return the same system with a cached fit, so that mixtures of the same study do not fit it again."""
    return replace(system, fit=partial(part, name=system.name)) if system.name in PARTS else system


def _spread(job: FitInput, scorer: Scorer) -> float:
    """Return the standard deviation of the scores of random validation pairs, or 1 if all are equal."""
    trial = job.study.valid
    rng = np.random.default_rng([job.study.seed, N_SPREAD])
    queries = trial.queries.view(BESIDE)[rng.integers(0, len(trial.queries), N_SPREAD)]
    documents = job.study.documents.rows[trial.pool[rng.integers(0, len(trial.pool), N_SPREAD)]]
    return float(np.std(scorer.score_pairs(queries, documents))) or 1.0


_MATES = frozenset({"mates"})
_TRANSLATED = frozenset({"mates", VIEW})
_TFIDF = "translated-tfidf-ibm"

_PROJECTIONS: tuple[System, ...] = tuple(
    System(name, ids, title, fit, _MATES)
    for name, ids, title, fit in (
        ("cl-lsi", ("B07",), "CL-LSI", partial(_fixed_projection, kind="cl-lsi")),
        ("mates-opca", ("B08",), "OPCA", partial(_regularised_projection, kind="opca", setting="noise", values=NOISES)),
        ("mates-cca", ("B09",), "CCA", partial(_regularised_projection, kind="cca", setting="ridge", values=RIDGES)),
        ("mates-pca", ("B10",), "PCA of each language", partial(_fixed_projection, kind="pca")),
        ("mates-plsa", ("B11",), "PLSA of joined pairs", partial(_topics, kind="plsa")),
        ("mates-jplsa", ("B12",), "JPLSA", partial(_topics, kind="jplsa")),
        ("mates-cplsa", ("B13",), "CPLSA", partial(_topics, kind="cplsa")),
        ("mates-hdlr", ("B14",), "HDLR", _hdlr),
        ("translated-likelihood", ("B15b", "B19"), "likelihood of translation (ours)", _likelihood),
    )
)
_S2NETS: tuple[System, ...] = tuple(
    System(name, ids, title, fit, _MATES)
    for name, ids, title, fit in (
        ("mates-s2net", ("M21", "M24", "M25"), "S2Net from OPCA", _s2net),
        ("mates-s2net-cl-lsi", ("M24",), "S2Net from CL-LSI", partial(_s2net, start="cl-lsi")),
        ("mates-s2net-pca", ("M24",), "S2Net from PCA", partial(_s2net, start="pca")),
        ("mates-s2net-random", ("M24",), "S2Net from random", partial(_s2net, start="random")),
        ("mates-s2net-squared", ("M22",), "S2Net, squared loss", partial(_s2net, loss="squared")),
        ("mates-s2net-beta", ("M23",), "S2Net, pulled to its start", partial(_s2net, betas=BETAS)),
        ("mates-s2net-sigmoid", ("M25",), "S2Net, sigmoid", partial(_s2net, activation="sigmoid")),
    )
)
_PSIS: tuple[System, ...] = (
    System("psi-cross", ("M26", "M07"), "PSI across languages", _psi_from_random),
    System("psi-cross-cl-lsi", ("M26",), "PSI from CL-LSI", partial(_psi_from_projection, kind="cl-lsi"), _MATES),
    System("psi-cross-cca", ("M26",), "PSI from CCA", partial(_psi_from_projection, kind="cca"), _MATES),
)
_ALONE: tuple[System, ...] = tuple(
    System(name, (id_,), title, fit, _TRANSLATED)
    for name, id_, title, fit in (
        (_TFIDF, "B15a", "TFIDF, texts translated (IBM 1)", partial(_translated_tfidf, view=VIEW)),
        (
            "translated-tfidf-dice",
            "B15a",
            "TFIDF, texts translated (DICE)",
            partial(_translated_tfidf, view="texts-dice"),
        ),
        (
            "word-translated-tfidf-ibm",
            "B15b",
            "TFIDF, words translated (IBM 1)",
            partial(_translated_tfidf, view="words-ibm"),
        ),
        (
            "word-translated-tfidf-dice",
            "B15b",
            "TFIDF, words translated (DICE)",
            partial(_translated_tfidf, view="words-dice"),
        ),
        ("translated-lsi", "B15c", "LSI, texts translated", _translated_lsi),
        ("translated-psi", "B15d", "PSI, texts translated", _translated_psi),
    )
)
_MIXES: tuple[System, ...] = tuple(
    System(name, (id_,), title, partial(_mix, first=first, second=second), _TRANSLATED)
    for name, id_, title, first, second in (
        ("translated-lsi-tfidf", "B15c", "LSI + TFIDF, texts translated", "translated-lsi", _TFIDF),
        ("cl-lsi-tfidf", "B16a", "CL-LSI + TFIDF of translated texts", "cl-lsi", _TFIDF),
        ("psi-cross-tfidf", "B16b", "PSI across + TFIDF of translated texts", "psi-cross", _TFIDF),
        ("psi-cross-psi", "B16c", "PSI across + PSI of translated texts", "psi-cross", "translated-psi"),
    )
)
PARTS: dict[str, System] = {system.name: system for system in (*_ALONE, *_PSIS, *_PROJECTIONS)}
"""Systems that mixtures combine."""
MATES_SYSTEMS: tuple[System, ...] = (*_PROJECTIONS, *_S2NETS, *_PSIS)
CROSS_SYSTEMS: tuple[System, ...] = (*_ALONE, *_MIXES)
SYSTEMS: tuple[System, ...] = (*MATES_SYSTEMS, *CROSS_SYSTEMS)
