"""Systems of word pairs: every W of SSI, hash kernels, correlated feature hashing, and PSI (spec M01 to M20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from papers.choosing import some
from papers.composition import Mapped, Mix
from papers.correlated import learn_mix, tune_mix
from papers.feature_map import FeatureMap, correlated_map, dice_neighbours, identity_map, top_n_map
from papers.fitting import PlainSystem, spread, tuned_plain
from papers.plain_sgd import PlainData, PlainShape
from papers.retrieval_studies import BIGRAMS
from papers.system import Fitted, Job, System
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear

DENSE_WORDS = 15_000
"""Words that a full W joins: 0.9 GB a copy. Rarer words keep what W starts from: the identity, or a diagonal of 0."""
FREQUENT = 30_000
"""F of correlated feature hashing, and n of the restricted model, where the vocabulary has twice as many words."""
ORACLE_WORDS, ORACLE_STEPS = 20, 10_000
"""The full polynomial has a weight for each three words, and a readable implementation only."""
MUS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Weights of neighbours tried on validation, beside the one that is learned (spec 2.4)."""
SMALLER = "words without weights of their own are matched exactly"
UNSEEN = "words without weights of their own do not count: their diagonal is 0, too"


def frequent_words(n_words: int) -> int:
    """Return F and n: 30,000 as in the papers, of smaller vocabularies a third."""
    return FREQUENT if n_words >= 2 * FREQUENT else max(1, n_words // 3)


def _n_words(job: Job) -> int:
    return len(job.study.documents.words)


def _lexical(job: Job) -> Fitted:
    return Fitted(Bilinear.lexical())


def _shape(name: str, **settings: Any) -> PlainSystem:
    return PlainSystem(lambda _: PlainShape(name, **settings))


def _rest_map(n_words: int, first: int) -> FeatureMap:
    """Return the map that keeps the words from ``first`` on."""
    whole = identity_map(n_words).matrix.tocsr()
    keep = whole.copy()
    keep.data[:first] = 0.0
    keep.eliminate_zeros()
    return FeatureMap(keep)


def _dense(name: str) -> PlainSystem:
    """Return W over pairs of the most frequent words; others are matched exactly, unless the diagonal is forced to 0.

    Their part of W is that of the start: the identity (M03), or 0 (M04).
    """

    def data(job: Job) -> PlainData:
        words = top_n_map(_n_words(job), min(DENSE_WORDS, _n_words(job)))
        return job.study.plain_data().mapped(words, words)

    def finish(job: Job, scorer: Scorer) -> tuple[Scorer, dict[str, Any]]:
        if _n_words(job) <= DENSE_WORDS:
            return scorer, {}
        if name == "zero_diagonal":
            return scorer, {"words": DENSE_WORDS, "note": UNSEEN}
        rest = _rest_map(_n_words(job), DENSE_WORDS)
        exact = Mapped(Bilinear.lexical(), rest, rest)
        return Mix((scorer, exact), (1.0, 1.0)), {"words": DENSE_WORDS, "note": SMALLER}

    return PlainSystem(lambda _: PlainShape(name), data, finish=finish)


def _restricted(job: Job) -> PlainShape:
    return PlainShape("low_rank", n_words=frequent_words(_n_words(job)))


def _slots(job: Job, thirds: int) -> int:
    """Return H: 1, 3 and 6 million where the budget says 3 million."""
    return max(1, job.budget.n_slots * thirds // 3)


def _hash(thirds: int, mixed: bool = False, identity: float = 0.0) -> PlainSystem:
    """Return hash kernels; ``mixed`` adds the diagonal as the papers do for LSI (A15)."""

    def shape(job: Job) -> PlainShape:
        return PlainShape("hash", n_slots=_slots(job, thirds), identity=identity)

    def finish(job: Job, scorer: Scorer) -> tuple[Scorer, dict[str, Any]]:
        settings: dict[str, Any] = {"slots": _slots(job, thirds)}
        if not mixed:
            return scorer, settings
        weights = [(alpha, 1.0 - alpha) for alpha in spread(0.0, 1.0, min(job.budget.grid, 11))]
        mix = tune_mix(scorer, Bilinear.lexical(), weights, job.validate())
        return mix, {**settings, "alpha": mix.weights[0]}

    return PlainSystem(shape, finish=finish)


def _neighbours(job: Job, view: str, k: int) -> npt.NDArray[np.int32]:
    """Return S_1 .. S_k of each column of a view, among the frequent words (M11)."""
    documents = job.study.background()
    words = documents.counts
    rows = documents.view(view)
    return dice_neighbours(rows, frequent_words(_n_words(job)), k, None if view == "rows" else words)


def _correlated(k: int, shape: str) -> PlainSystem:
    """Return correlated feature hashing of words alone, over F features (M12, M13)."""

    def features(job: Job) -> int:
        n = frequent_words(_n_words(job))
        return min(n, DENSE_WORDS) if shape == "full" else n

    def data(job: Job) -> PlainData:
        n = features(job)
        found = dice_neighbours(job.study.background().counts, n, k)
        words = correlated_map(found, n)
        return job.study.plain_data().mapped(words, words)

    def finish(job: Job, scorer: Scorer) -> tuple[Scorer, dict[str, Any]]:
        return scorer, {"features": features(job), "neighbours": k}

    return PlainSystem(lambda _: PlainShape(shape), data, finish=finish)


def _more_rates(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Return several rates with one more, a third of the least: words that share a neighbour make rows longer."""
    return rates if len(rates) < 2 else (*rates, min(rates) / 3)


def _correlated_system(k: int, shape: str) -> Any:
    """Return the fit of `_correlated` with rates for longer rows."""
    plain = _correlated(k, shape)

    def fit(job: Job) -> Fitted:
        return plain(replace(job, budget=replace(job.budget, rates=_more_rates(job.budget.rates))))

    return fit


def _mix(words: bool, bigrams: bool, k: int = 5) -> Any:
    """Return the papers' mixture of a restricted model and neighbours of what it leaves out (M14, M15, M16)."""
    view = BIGRAMS if bigrams else "rows"

    def fit(job: Job) -> Fitted:
        budget, n = job.budget, frequent_words(_n_words(job))
        data = job.study.plain_data(view, view)
        width = data.d_rows.shape[1]
        replaced = np.zeros(width, np.bool_)
        if words:
            replaced[n : _n_words(job)] = True
        replaced[_n_words(job) :] = True
        kept, others = top_n_map(width, _n_words(job)), correlated_map(_neighbours(job, view, k), n, replaced)
        shape = PlainShape("low_rank", n_words=n)
        frequent, first = tuned_plain(job, shape, data.mapped(kept, kept), view=view)
        rates = _more_rates(budget.rates)
        rare, second = tuned_plain(job, PlainShape("no_identity"), data.mapped(others, others), view=view, rates=rates)
        mix = learn_mix(frequent, rare, data, rng=job.rng, n_steps=max(2, min(20_000, budget.n_steps)))
        validate = job.validate(view, view)
        grid = tune_mix(frequent, rare, [(1.0, mu) for mu in some(MUS, budget.grid)], validate)
        settings = {
            "rate": first["rate"],
            "start": first["start"],
            "rate of neighbours": second["rate"],
            "start of neighbours": second["start"],
            "dims": budget.n_dims,
            "features": n,
            "neighbours": k,
            "mu": mix.weights[1],
            "mu by grid": grid.weights[1],
            "validation": validate(mix),
        }
        return Fitted(mix, view, view, settings)

    return fit


def _full_polynomial(job: Job) -> Fitted:
    """Return all products of up to three of the most frequent words (M17), an oracle: W3 has D^3 weights."""
    n = min(ORACLE_WORDS, _n_words(job))
    words = top_n_map(_n_words(job), n)
    data = job.study.plain_data().mapped(words, words)
    scorer, settings = tuned_plain(job, PlainShape("full_cubic"), data, rates=job.budget.rates[:1], steps=ORACLE_STEPS)
    return Fitted(scorer, settings={**settings, "words": n})


SYSTEMS: tuple[System, ...] = (
    System("tf-idf", ("M01", "B01"), "TF-IDF", _lexical),
    System("diagonal", ("M02",), "diag(w)", _shape("diagonal")),
    System("margin-ranking-perceptron", ("M03", "B05"), "margin ranking perceptron (full W)", _dense("full")),
    System("zero-diagonal", ("M04",), "full W, zero diagonal", _dense("zero_diagonal")),
    System("utu-plus-i", ("M05",), "UᵀU + I", _shape("tied")),
    System("utv-plus-i", ("M06",), "UᵀV + I (PSI k = 2)", _shape("low_rank")),
    System("utv", ("M07",), "UᵀV", _shape("no_identity")),
    System("restricted-utv-plus-i", ("M08",), "(UᵀV)ₙ + I", PlainSystem(_restricted)),
    System("hash-kernels-1m", ("M09", "B06"), "hash kernels, H/3", _hash(1)),
    System("hash-kernels-3m", ("M09", "B06"), "hash kernels, H", _hash(3)),
    System("hash-kernels-6m", ("M09", "B06"), "hash kernels, 2H", _hash(6)),
    System("hash-kernels-diagonal-1m", ("M10", "B06"), "hash kernels + diagonal, H/3", _hash(1, mixed=True)),
    System("hash-kernels-diagonal-3m", ("M10", "B06"), "hash kernels + diagonal, H", _hash(3, mixed=True)),
    System("hash-kernels-diagonal-6m", ("M10", "B06"), "hash kernels + diagonal, 2H", _hash(6, mixed=True)),
    System("hash-kernels-joint-3m", ("M10",), "hash kernels + I, learned jointly, H", _hash(3, identity=1.0)),
    System("cfh-1-full", ("M11", "M12"), "CFH k = 1, full W", _correlated_system(1, "full")),
    System("cfh-1", ("M11", "M12"), "CFH k = 1, UᵀV + I", _correlated_system(1, "low_rank")),
    System("cfh-5", ("M11", "M13"), "CFH k = 5, UᵀV + I", _correlated_system(5, "low_rank")),
    System("cfh-1-grams", ("M14",), "(UᵀV)ₙ + I with CFH (1-grams)", _mix(True, False)),
    System("cfh-2-grams", ("M15",), "(UᵀV)ₙ + I with CFH (2-grams)", _mix(False, True), frozenset({BIGRAMS})),
    System("cfh-1-2-grams", ("M16",), "(UᵀV)ₙ + I with CFH (1- and 2-grams)", _mix(True, True), frozenset({BIGRAMS})),
    System("full-polynomial", ("M17",), "full polynomial of degree 3, 20 words", _full_polynomial),
    System("psi-3", ("M18",), "PSI k = 3", _shape("cubic")),
    System("psi-3-separate", ("M19",), "PSI k = 3, separate U and V", _shape("cubic_separate")),
    System("psi-4", ("M20",), "PSI k = 4", _shape("polynomial", degree=4)),
)
