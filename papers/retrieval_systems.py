"""Systems of word pairs: every W of SSI, hash kernels, correlated feature hashing, and PSI (spec M01 to M20).

How systems are fitted: plain SGD with rate and start chosen on validation, and small sweeps.

Baselines of retrieval as systems: expansion, LSI, PCA, PLSA, Boolean, language model, BM25, PageRank (spec 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.correlated import learn_mix, tune_mix
from papers.methods.inverted_file import BooleanScorer, VectorSpace
from papers.methods.lexical import Okapi, QueryExpansion, fit_language_model, fit_okapi, mixture
from papers.methods.projections import fit_lsa, fit_pca
from papers.methods.rows import pair_products
from papers.methods.topics import Similarity, TopicSettings, fit_plsa
from papers.methods.word_pairs import FeatureMap, Mapped, Mix, correlated_map, dice_neighbours, identity_map, top_n_map
from papers.plain_sgd import LOW_RANK, PlainData, PlainReport, PlainShape, fit_plain
from papers.retrieval_studies import BIGRAMS, PRIOR
from papers.study import Texts
from papers.system import Fitted, Job, System, some, trained
from reranker.errors import ConfigError, TrainingError
from reranker.models.base import Scorer, Scores
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Projection

STARTS = (0.1, 1.0)
"""Standard deviations of the embeddings' start: a small one, and the papers' (A10)."""
PROBE_SHARE = 10
"""Rate and start are chosen by fits of a tenth of the steps."""


@dataclass(frozen=True)
class PlainSystem:
    """Plain SGD of one shape, as a system fits it.

    Parameters
    ----------
    shape : callable
        Job -> what to learn.
    data : callable
        Job -> training links, mapped or not.
    view : str
        The view of queries and documents that it scores.
    starts : tuple of float
        Deviations of the start to try; of no effect on shapes without embeddings.
    finish : callable
        Job, scorer -> the system's scorer, and what was chosen for it.
    """

    shape: Callable[[Job], PlainShape]
    data: Callable[[Job], PlainData] = lambda job: job.study.plain_data()
    view: str = "rows"
    starts: tuple[float, ...] = STARTS
    finish: Callable[[Job, Scorer], tuple[Scorer, dict[str, Any]]] = lambda _, scorer: (scorer, {})

    def __call__(self, job: Job) -> Fitted:
        """Return the fitted system."""
        shape, data = self.shape(job), self.data(job)
        scorer, settings = tuned_plain(job, shape, data, view=self.view, starts=self.starts)
        finished, more = self.finish(job, scorer)
        return Fitted(finished, self.view, self.view, {**settings, **more})


def tuned_plain(
    job: Job,
    shape: PlainShape,
    data: PlainData,
    *,
    view: str = "rows",
    starts: Sequence[float] = STARTS,
    rates: Sequence[float] = (),
    steps: int | None = None,
) -> tuple[Scorer, dict[str, Any]]:
    """Return the scorer that plain SGD learns with the rate and the start that are best on validation.

    All pairs of them are tried with a tenth of the steps and the same tuples; the best is fitted with all steps, and
    stops early by the budget's patience. Where it diverges, the next best is.

    Parameters
    ----------
    job : Job
    shape : PlainShape
    data : PlainData
    view : str
        That the data's rows are of.
    starts, rates : sequence of float
        To try; the rates of the budget if none are given.
    steps : int, optional
        Most steps, if fewer than the budget's.
    """
    budget = job.budget
    n_steps = min(budget.n_steps, steps or budget.n_steps)
    tried = list(product(rates or budget.rates, starts if shape.name in LOW_RANK else (1.0,)))[: max(1, budget.grid)]
    seed = int(job.rng.integers(2**62))
    validate = job.validate(view, view)

    def fit(rate: float, start: float, n: int, what: str) -> tuple[Scorer, int]:
        seen = [0]

        def report(state: PlainReport) -> None:
            seen[0] = state.step
            job.progress(what, state.step, n)

        scorer = fit_plain(
            shape,
            data,
            n_dims=budget.n_dims,
            rate=rate,
            n_steps=n,
            init_std=start,
            rng=np.random.default_rng(seed),
            validate=validate,
            every=min(budget.every, n),
            patience=budget.patience,
            progress=report,
        )
        return scorer, seen[0]

    def probe(rate: float, start: float) -> float:
        try:
            return validate(
                fit(rate, start, max(1, n_steps // PROBE_SHARE), f"trying rate {rate:g}, start {start:g}")[0]
            )
        except TrainingError:  # it diverged: others may not
            return math.inf

    losses = [probe(*one) if len(tried) > 1 else 0.0 for one in tried]
    failures: list[TrainingError] = []
    order = [tried[place] for place in np.argsort(losses, kind="stable")]
    found = next(trained(order, lambda one: fit(one[0], one[1], n_steps, ""), failures), None)
    if found is None:
        raise failures[0]
    (rate, start), (scorer, done) = found
    settings: dict[str, Any] = {"rate": rate, "steps": done, "most_steps": n_steps}
    if shape.name in LOW_RANK:
        settings |= {"dims": budget.n_dims, "start": start}
    settings["validation"] = validate(scorer)
    return scorer, settings


def best_of(
    candidates: Iterable[tuple[dict[str, Any], Scorer]], loss: Callable[[Scorer], float]
) -> tuple[Scorer, dict[str, Any]]:
    """Return the scorer with the least loss and its settings; of equals the first.

    Raises
    ------
    ConfigError
        If there is none.
    """
    best: tuple[float, Scorer, dict[str, Any]] | None = None
    for settings, scorer in candidates:
        value = loss(scorer)
        if best is None or value < best[0]:
            best = value, scorer, settings
    if best is None:
        raise ConfigError("there is no setting to try: give a grid of at least 1")
    return best[1], {**best[2], "validation": best[0]}


def spread(low: float, high: float, n: int) -> tuple[float, ...]:
    """Return at most ``n`` values from low to high, both of them among them, evenly spaced and rounded."""
    return tuple(round(float(value), 4) for value in np.linspace(low, high, max(2, n)))


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


WORD_PAIRS: tuple[System, ...] = (
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

BASELINES: tuple[System, ...] = (
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

SYSTEMS = (*WORD_PAIRS, *BASELINES)
