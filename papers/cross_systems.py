"""Retrieval across languages: queries translated by a table learned on the mates, and mixtures (spec B15, B16)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from zlib import crc32

import numpy as np

from papers.bilingual_studies import BESIDE, ONCE
from papers.choosing import Option, choose, dimensions, some
from papers.composition import Mix
from papers.mates_systems import PSIS
from papers.mixtures import OnView
from papers.plain_sgd import PlainData, PlainReport, fit_plain
from papers.projection_systems import SYSTEMS as PROJECTIONS
from papers.projections import fit_lsa
from papers.remembering import remembered
from papers.system import Fitted, Job, System
from reranker.baselines.tuning import TENTHS
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear

VIEW = "texts-ibm"
"""The translation that LSI, PSI and the mixtures take: whole texts with the table of IBM model 1."""
N_SPREAD = 2_000
"""Random pairs that show how far a scorer's values spread."""
DEVIATIONS = (0.1,)
"""Standard deviation of PSI's random start on unit rows (A10)."""


def fit_translated_tfidf(job: Job, view: str) -> Fitted:
    """Return TF-IDF between the translated query and the document (B15a, B15b): nothing is tuned."""
    return Fitted(Bilinear.lexical(), view, settings={"translation": view})


def fit_translated_lsi(job: Job) -> Fitted:
    """Return LSI of the documents on translated queries (B15c), its number of dimensions tuned."""
    rows = job.study.background().rows
    sizes = dimensions(job.budget.n_dims, min(rows.shape) - 1)
    projection = fit_lsa(rows, sizes[0], rng=job.rng)

    def option(size: int) -> Option:
        return {"dimensions": size, "translation": VIEW}, lambda: projection.first(size)

    return choose(job, map(option, sizes), VIEW)


def fit_translated_psi(job: Job) -> Fitted:
    """Return PSI learned on English queries, the mates of the pages, and asked with translated ones (B15d)."""
    study, budget = job.study, job.budget
    queries = study.documents.view(ONCE)[study.own]
    data = PlainData(queries, study.documents.rows, study.relevant, study.own, study.known)

    def report(at: PlainReport) -> None:
        job.progress("steps", at.step, at.n_steps)

    def option(rate: float, deviation: float) -> Option:
        def make() -> Scorer:
            return fit_plain("low_rank", data, n_dims=budget.n_dims, rate=rate, n_steps=budget.n_steps,
                             init_std=deviation, rng=job.rng, validate=job.validate(VIEW), every=budget.every,
                             patience=budget.patience, progress=report)  # fmt: skip

        return {"dimensions": budget.n_dims, "rate": rate, "deviation": deviation, "translation": VIEW}, make

    rates = some(budget.rates, budget.grid)
    return choose(job, [option(rate, deviation) for rate in rates for deviation in DEVIATIONS], VIEW)


def fit_mix(job: Job, first: str, second: str) -> Fitted:
    """Return alpha f / s_f + (1 - alpha) g / s_g of two systems, alpha tuned (B15c, B16).

    s is the standard deviation of a system's scores of random validation pairs, so that alpha says the same for scores
    of any scale; the papers mix the scores as they are. The query stands beside its translation, and each system reads
    its own part.
    """
    parts = [part(job, name) for name in (first, second)]
    n_own = job.study.queries.rows.shape[1]
    n_all = n_own + job.study.documents.rows.shape[1]
    seen = [OnView(fitted.scorer, *((0, n_own) if fitted.query_view == "rows" else (n_own, n_all))) for fitted in parts]
    spreads = [_spread(job, scorer) for scorer in seen]

    def option(alpha: float) -> Option:
        weights = (alpha / spreads[0], (1.0 - alpha) / spreads[1])
        return {"first": first, "second": second, "alpha": alpha}, lambda: Mix(tuple(seen), weights)

    return choose(job, map(option, some(TENTHS, job.budget.grid)), BESIDE)


def part(job: Job, name: str) -> Fitted:
    """Return a system of the same study and budget, as it would be fitted by itself; fitted once for all that ask."""

    def make() -> Fitted:
        rng = np.random.default_rng([job.study.seed, crc32(name.encode())])
        return PARTS[name].fit(Job(job.study, job.budget, job.loss, rng, job.progress))

    return remembered(job.study, (name, job.budget, job.loss), make)


def fitted_once(system: System) -> System:
    """Return the same system, which mixtures of the same study do not fit again."""
    return replace(system, fit=partial(part, name=system.name)) if system.name in PARTS else system


def _spread(job: Job, scorer: Scorer) -> float:
    """Return the standard deviation of the scores of random pairs of the validation trial, 1 if all are alike."""
    trial = job.study.valid
    rng = np.random.default_rng([job.study.seed, N_SPREAD])
    queries = trial.queries.view(BESIDE)[rng.integers(0, len(trial.queries), N_SPREAD)]
    documents = job.study.documents.rows[trial.pool[rng.integers(0, len(trial.pool), N_SPREAD)]]
    return float(np.std(scorer.score_pairs(queries, documents))) or 1.0


_NEEDS = frozenset({"mates", VIEW})
_TFIDF = "translated-tfidf-ibm"
_ALONE: tuple[System, ...] = (
    System(_TFIDF, ("B15a",), "TFIDF, texts translated (IBM 1)", partial(fit_translated_tfidf, view=VIEW), _NEEDS),
    System("translated-tfidf-dice", ("B15a",), "TFIDF, texts translated (DICE)",
           partial(fit_translated_tfidf, view="texts-dice"), _NEEDS),
    System("word-translated-tfidf-ibm", ("B15b",), "TFIDF, words translated (IBM 1)",
           partial(fit_translated_tfidf, view="words-ibm"), _NEEDS),
    System("word-translated-tfidf-dice", ("B15b",), "TFIDF, words translated (DICE)",
           partial(fit_translated_tfidf, view="words-dice"), _NEEDS),
    System("translated-lsi", ("B15c",), "LSI, texts translated", fit_translated_lsi, _NEEDS),
    System("translated-psi", ("B15d",), "PSI, texts translated", fit_translated_psi, _NEEDS),
)  # fmt: skip

PARTS: dict[str, System] = {one.name: one for one in (*_ALONE, *PSIS, *PROJECTIONS)}
"""What mixtures are made of."""

_MIXES: tuple[System, ...] = tuple(
    System(name, (identifier,), title, partial(fit_mix, first=first, second=second), _NEEDS)
    for name, identifier, title, first, second in (
        ("translated-lsi-tfidf", "B15c", "LSI + TFIDF, texts translated", "translated-lsi", _TFIDF),
        ("cl-lsi-tfidf", "B16a", "CL-LSI + TFIDF of translated texts", "cl-lsi", _TFIDF),
        ("psi-cross-tfidf", "B16b", "PSI across + TFIDF of translated texts", "psi-cross", _TFIDF),
        ("psi-cross-psi", "B16c", "PSI across + PSI of translated texts", "psi-cross", "translated-psi"),
    )
)

SYSTEMS: tuple[System, ...] = (*_ALONE, *_MIXES)
