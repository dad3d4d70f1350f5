"""Systems of retrieval by links: word-pair models of SSI and PSI (spec M01 to M20), and baselines (spec 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from papers.fitting import Option, best_of, learn_mix, some, tuned, tuned_plain, values_between
from papers.methods import word_pairs
from papers.methods.boolean_query import RarestPairs
from papers.methods.inverted_file import BooleanScorer, CourseWeights, VectorSpace, Weighting
from papers.methods.lexical import Okapi, QueryExpansion, fit_language_model, fit_okapi, mixture
from papers.methods.projections import fit_lsa, fit_pca
from papers.methods.rows import ProductScorer, pair_products
from papers.methods.topics import SIMILARITIES, TopicSettings, fit_topic_model
from papers.methods.word_pairs import Bilinear, Mix, correlated_map, dice_neighbours, ordered_map, top_n_map
from papers.plain_sgd import PlainData, PlainShape
from papers.registry import KEPT_STEP, FitInput, Fitted, System
from papers.retrieval_studies import ANCHORS, BIGRAMS, PRIOR
from papers.study import Texts
from reranker.arrays import Float32
from reranker.models.scorers import Scorer

DENSE_WORDS = 15_000
"""Number of words in a full W (0.9 GB per copy). Rarer words keep the initial W: the identity, or a 0 diagonal."""
FREQUENT = 30_000
"""F of correlated feature hashing, and n of the restricted model, if the vocabulary has at least twice that size."""
ORACLE_WORDS, ORACLE_STEPS = 20, 10_000
"""Limits of the full polynomial, which has a weight for each three words and only a plain implementation."""
MUS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Weights of neighbours tried on validation, besides the learned one (spec 2.4)."""
SMALLER = "words without weights of their own are matched exactly"
UNSEEN = "words without weights of their own do not count: their diagonal is 0 as well"
FACTORS = (1.0, 0.5, 2.0, 5.0)
"""Numbers of dimensions of LSI to try, as multiples of the budget's N, in this order: baselines get the best one."""
MAX_FACTORS = 1_000
LSI_WORDS = 30_000
"""Number of the most frequent words that LSI uses, even if systems use the full vocabulary otherwise (spec B03)."""
FEEDBACK = (5, 10, 20)
BETAS = (0.1, 0.3, 0.5, 1.0)
K1S, BS = (0.5, 1.2, 2.0, 4.0), (0.0, 0.3, 0.5, 0.75, 1.0)
ANCHOR_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Counts of a word in a linking document, as a multiple of one in the document itself."""
PRIOR_WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

Fit = Callable[[FitInput], Fitted]


def n_frequent_words(n_words: int) -> int:
    """Return F and n: 30,000 as in the papers, or a third of a smaller vocabulary."""
    return FREQUENT if n_words >= 2 * FREQUENT else max(1, n_words // 3)


def _n_words(job: FitInput) -> int:
    return len(job.study.documents.words)


def _more_rates(rates: tuple[float, ...]) -> tuple[float, ...]:
    """Return the rates and a third of the smallest: words that share a neighbour make rows longer."""
    return rates if len(rates) < 2 else (*rates, min(rates) / 3)


def _learned(name: str, **settings: Any) -> Fit:
    """Return the fit of a model by plain SGD on all words."""

    def fit(job: FitInput) -> Fitted:
        scorer, chosen = tuned_plain(job, PlainShape(name, **settings), job.study.plain_data())
        return Fitted(scorer, settings=chosen)

    return fit


def _diagonal(job: FitInput) -> Fitted:
    """Return diag(w), with smaller rates tried as well: all weights move at every step, and most steps are noise."""
    rates = job.budget.rates
    rates = rates if len(rates) < 2 else (*rates, min(rates) / 10, min(rates) / 100)
    scorer, chosen = tuned_plain(job, PlainShape("diagonal"), job.study.plain_data(), rates=rates)
    return Fitted(scorer, settings=chosen)


def _polynomial(job: FitInput) -> Fitted:
    """Return PSI of the budget's degree (M20)."""
    degree = job.budget.degree
    return _learned("polynomial", degree=degree)(job).saying({"degree": degree})


def _dense(name: str) -> Fit:
    """Return W over pairs of the most frequent words.

    Other words keep the initial W: the identity, so that they are matched exactly (M03), or 0 (M04).
    """

    def fit(job: FitInput) -> Fitted:
        n_words = _n_words(job)
        words = top_n_map(n_words, min(DENSE_WORDS, n_words))
        scorer, settings = tuned_plain(job, PlainShape(name), job.study.plain_data().mapped(words))
        if n_words <= DENSE_WORDS:
            return Fitted(scorer, settings=settings)
        settings |= {"words": DENSE_WORDS, "note": UNSEEN if name == "zero_diagonal" else SMALLER}
        if name != "zero_diagonal":
            rest = word_pairs.identity_map(n_words).matrix.tocsr().copy()
            rest.data[:DENSE_WORDS] = 0.0
            rest.eliminate_zeros()
            exact = word_pairs.Mapped(Bilinear.lexical(), word_pairs.FeatureMap(rest))
            scorer = Mix((scorer, exact), (1.0, 1.0))
        return Fitted(scorer, settings=settings)

    return fit


def _restricted(job: FitInput) -> Fitted:
    return _learned("low_rank", n_words=n_frequent_words(_n_words(job)))(job)


def _hash(thirds: int, mixed: bool = False, identity: float = 0.0) -> Fit:
    """Return hash kernels of 1, 3 or 6 thirds of the budget's slots; ``mixed`` adds the diagonal as for LSI (A15)."""

    def fit(job: FitInput) -> Fitted:
        n_slots = max(1, job.budget.n_slots * thirds // 3)
        shape = PlainShape("hash", n_slots=n_slots, identity=identity)
        scorer, settings = tuned_plain(job, shape, job.study.plain_data())
        settings["slots"] = n_slots
        if mixed:
            alphas = values_between(0.0, 1.0, min(job.budget.grid, 11))
            kernel, exact = scorer, Bilinear.lexical()
            alpha, scorer, _ = best_of(alphas, lambda alpha: Mix((kernel, exact), (alpha, 1.0 - alpha)), job.validate())
            settings["alpha"] = alpha
        return Fitted(scorer, settings=settings)

    return fit


def _correlated(k: int, shape: str) -> Fit:
    """Return correlated feature hashing of single words, over F features (M12, M13)."""

    def fit(job: FitInput) -> Fitted:
        n = n_frequent_words(_n_words(job))
        n = min(n, DENSE_WORDS) if shape == "full" else n
        words = correlated_map(dice_neighbours(job.study.background().counts, n, k), n)
        data = job.study.plain_data().mapped(words)
        scorer, settings = tuned_plain(job, PlainShape(shape), data, rates=_more_rates(job.budget.rates))
        return Fitted(scorer, settings={**settings, "features": n, "neighbours": k})

    return fit


def _correlated_as_printed(k: int) -> Fit:
    """Return correlated feature hashing by equations 6 and 7: only neighbours of the same order meet (M13, A12)."""

    def fit(job: FitInput) -> Fitted:
        n = min(n_frequent_words(_n_words(job)), DENSE_WORDS)
        words = ordered_map(dice_neighbours(job.study.background().counts, n, k), n)
        data = job.study.plain_data().mapped(words)
        rates = _more_rates(job.budget.rates)
        scorer, settings = tuned_plain(job, PlainShape("blocks", n_blocks=k), data, rates=rates)
        return Fitted(scorer, settings={**settings, "features": n, "neighbours": k})

    return fit


def _neighbour_mix(words: bool, bigrams: bool, k: int = 5) -> Fit:
    """Return the papers' mixture of a restricted model and of neighbours of the words it leaves out (M14, M15, M16)."""
    view = BIGRAMS if bigrams else "rows"

    def fit(job: FitInput) -> Fitted:
        budget, n_words, n = job.budget, _n_words(job), n_frequent_words(_n_words(job))
        data = job.study.plain_data(view, view)
        width = data.d_rows.shape[1]
        replaced = np.zeros(width, np.bool_)
        replaced[n:n_words] = words
        replaced[n_words:] = True
        background = job.study.background()
        columns = dice_neighbours(background.view(view), n, k, None if view == "rows" else background.counts)
        kept, others = top_n_map(width, n_words), correlated_map(columns, n, replaced)
        shape = PlainShape("low_rank", n_words=n)
        frequent, first = tuned_plain(job, shape, data.mapped(kept), view=view)
        rates = _more_rates(budget.rates)
        rare, second = tuned_plain(job, PlainShape("no_identity"), data.mapped(others), view=view, rates=rates)
        mix = learn_mix(frequent, rare, data, rng=job.rng, n_steps=max(2, min(20_000, budget.n_steps)))
        validate = job.validate(view, view)
        by_grid, _, _ = best_of(some(MUS, budget.grid), lambda mu: Mix((frequent, rare), (1.0, mu)), validate)
        settings = {
            "rate": first["rate"],
            "start": first["start"],
            "rate of neighbours": second["rate"],
            "start of neighbours": second["start"],
            KEPT_STEP: first[KEPT_STEP],
            f"{KEPT_STEP} of neighbours": second[KEPT_STEP],
            "dims": budget.n_dims,
            "features": n,
            "neighbours": k,
            "mu": mix.weights[1],
            "mu by grid": by_grid,
            "validation": validate(mix),
        }
        return Fitted(mix, view, view, settings)

    return fit


def _full_polynomial(job: FitInput) -> Fitted:
    """Return all products of up to three of the most frequent words (M17), for comparison only: W3 has D^3 weights."""
    n = min(ORACLE_WORDS, _n_words(job))
    words = top_n_map(_n_words(job), n)
    data: PlainData = job.study.plain_data().mapped(words)
    scorer, settings = tuned_plain(job, PlainShape("full_cubic"), data, rates=job.budget.rates[:1], steps=ORACLE_STEPS)
    return Fitted(scorer, settings={**settings, "words": n})


def _query_expansion(job: FitInput) -> Fitted:
    """Return blind feedback with E and beta chosen on validation (B02)."""
    study, lexical = job.study, Bilinear.lexical()
    pool, test_pool = (study.documents.rows[trial.pool] for trial in (study.valid, study.test))
    queries = study.valid.queries
    points = [(0, 0.0), *product(FEEDBACK, BETAS)][: max(1, job.budget.grid)]

    def expanded(point: tuple[int, float]) -> Texts:
        # Each query is expanded once, because many tuples have the same query.
        job.progress("trying feedback", points.index(point), len(points))
        rows = QueryExpansion(pool, point[1], max(1, point[0])).expanded(queries.rows).astype(np.float32)
        return Texts(queries.counts, rows, queries.words, queries.idf)

    def loss(texts: Texts) -> float:
        return job.loss(study, replace(study.valid, queries=texts), Fitted(lexical))

    (n_feedback, beta), _, value = best_of(points, expanded, loss)
    settings = {"feedback": n_feedback, "beta": beta, "validation": value}
    return Fitted(QueryExpansion(test_pool, beta, max(1, n_feedback)), settings=settings)


def _lsi_rows(job: FitInput) -> sp.csr_matrix:
    """Return the rows that LSI decomposes; later words have no part in its projection."""
    return job.study.background().rows[:, :LSI_WORDS]


def _projections(job: FitInput, centred: bool = False) -> Iterator[Option]:
    """Yield LSI, or PCA if ``centred``, with several numbers of dimensions, all from one decomposition."""
    rows = job.study.background().rows if centred else _lsi_rows(job)
    limit = min(*rows.shape, MAX_FACTORS + 1) - 1
    sizes = (max(1, min(limit, round(share * job.budget.n_dims))) for share in FACTORS)
    dims = list(dict.fromkeys(sizes))[: job.budget.grid]
    job.progress(f"{max(dims)} singular vectors", 0, None)
    whole = (fit_pca if centred else fit_lsa)(rows, max(dims), rng=job.rng)
    return (({"dims": n_dims}, partial(whole.first, n_dims)) for n_dims in dims)


def _lsi(job: FitInput) -> Fitted:
    return tuned(job, _projections(job))


def _pca(job: FitInput) -> Fitted:
    return tuned(job, _projections(job, centred=True))


def lsi_of_size(job: FitInput) -> Fitted:
    """Return LSI of the budget's N, or of the largest possible number of dimensions, for the study by N."""
    rows = _lsi_rows(job)
    n_dims = max(1, min(job.budget.n_dims, min(rows.shape) - 1))
    projection = fit_lsa(rows, n_dims, rng=job.rng)
    return Fitted(projection, settings={"dims": n_dims, "validation": job.validate()(projection)})


def _lsi_tf_idf(job: FitInput) -> Fitted:
    """Return alpha LSI + (1 - alpha) TF-IDF; N is chosen at alpha = 1/2, and then alpha (B04)."""
    lexical, validate = Bilinear.lexical(), job.validate()
    (dims, make), _, _ = best_of(_projections(job), lambda option: mixture(option[1](), lexical, 0.5), validate)
    projection = make()
    alphas = values_between(0.0, 1.0, min(job.budget.grid, 11))
    return tuned(job, (({**dims, "alpha": a}, partial(mixture, projection, lexical, a)) for a in alphas))


def _plsa(job: FitInput) -> Fitted:
    """Return PLSA with the similarity of topic mixtures that is better on validation (B11)."""
    settings = TopicSettings(n_topics=job.budget.n_dims, n_iterations=job.budget.n_iterations)
    total = settings.n_iterations
    counts = job.study.background().counts
    model = fit_topic_model([counts], settings, rng=job.rng, progress=lambda done, _: job.progress("EM", done, total))
    options = (
        ({"topics": settings.n_topics, "similarity": name}, partial(replace, model, similarity=name))
        for name in SIMILARITIES
    )
    return tuned(job, options, "counts", "counts")


def _boolean(operator: Literal["AND", "OR"]) -> Fit:
    return lambda _: Fitted(BooleanScorer(operator), "counts", "counts")


def _weights(weights: Weighting, cosine: bool) -> Fit:
    """Return the course's weights without training (spec 1.1)."""
    return lambda job: Fitted(CourseWeights(weights, cosine, job.study.documents.idf), "counts", "counts")


def _boolean_pairs(job: FitInput) -> Fitted:
    return Fitted(RarestPairs(job.study.documents.idf), "counts", "counts")


def _jelinek_mercer(job: FitInput) -> Fitted:
    """Return query likelihood with lambda chosen on a grid; 0 is left out because it gives -inf (B19)."""
    model = fit_language_model(job.study.background().counts)
    n = max(2, min(job.budget.grid, 20))
    options = (({"lambda": lam}, partial(replace, model, lam=lam)) for lam in values_between(1.0 / n, 1.0, n))
    return tuned(job, options, "counts", "counts")


def _bm25(job: FitInput) -> Fitted:
    """Return BM25 with k1 and b chosen on a grid (B20)."""
    start: Okapi = fit_okapi(job.study.background().counts)
    grid = list(product(K1S, BS))
    grid = grid if job.budget.grid >= 5 else [(start.k1, start.b), *grid][: job.budget.grid]
    options = (({"k1": k1, "b": b}, partial(replace, start, k1=k1, b=b)) for k1, b in grid)
    return tuned(job, options, "counts", "counts")


@dataclass(frozen=True, eq=False)
class PriorMix:
    """Score f(q, d) + weight * p(d); the prior p is the last column of the documents' rows, which f does not use."""

    scorer: Scorer | None
    """f; None for only the prior."""
    weight: float

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        if self.scorer is not None:
            out += self.scorer.score_matrix(q_rows[:, :-1], d_rows[:, :-1])
        out += np.float32(self.weight) * (q_rows[:, -1:] @ d_rows[:, -1:].T).toarray()
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n_pairs,) float32."""
        prior = pair_products(q_rows[:, -1:], d_rows[:, -1:]).astype(np.float32) * np.float32(self.weight)
        if self.scorer is None:
            return np.asarray(prior, np.float32)
        return np.asarray(self.scorer.score_pairs(q_rows[:, :-1], d_rows[:, :-1]) + prior, np.float32)


def _pagerank(job: FitInput) -> Fitted:
    """Return the ranking by PageRank only, the same for every query (B21)."""
    return Fitted(PriorMix(None, 1.0), PRIOR, PRIOR)


def _bm25_pagerank(job: FitInput) -> Fitted:
    """Return BM25 + w ln(1 + N pi), with w chosen on validation (B21)."""
    bm25 = _bm25(job)
    weights = PRIOR_WEIGHTS[: max(2, job.budget.grid)]
    options = (({**bm25.settings, "weight": weight}, partial(PriorMix, bm25.scorer, weight)) for weight in weights)
    return tuned(job, options, PRIOR, PRIOR)


@dataclass(frozen=True, eq=False)
class AnchorTexts(ProductScorer):
    """Score of a scorer f over documents' counts plus ``weight`` times those of the documents that link to them.

    Documents have 2 D columns (`papers.retrieval_studies.with_anchors`), queries D.
    """

    scorer: ProductScorer
    """f, over D columns."""
    weight: float

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the two rows of f's product."""
        return self.scorer.sides(q_rows, weighted_anchors(d_rows, self.weight))

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        return self.scorer.score_matrix(q_rows, weighted_anchors(d_rows, self.weight))

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n_pairs,) float32."""
        return self.scorer.score_pairs(q_rows, weighted_anchors(d_rows, self.weight))


def weighted_anchors(d_rows: sp.csr_matrix, weight: float) -> sp.csr_matrix:
    """Return the first half of the columns plus ``weight`` times the second, (n, D)."""
    half = d_rows.shape[1] // 2
    return sp.csr_matrix(d_rows[:, :half] + np.float32(weight) * d_rows[:, half:])


def _bm25_anchors(job: FitInput) -> Fitted:
    """Return BM25 over texts and anchor texts; their weight is chosen on validation, and then k1 and b again.

    One value is changed at a time, because rows with the texts of all linking documents are long.
    """
    rows = job.study.background().view(ANCHORS)
    plain = _bm25(job).settings
    validate, n = job.validate("counts", ANCHORS), max(2, job.budget.grid)

    def build(weight: float, k1: float, b: float) -> AnchorTexts:
        return AnchorTexts(fit_okapi(weighted_anchors(rows, weight), k1, b), weight)

    weight, _, _ = best_of(ANCHOR_WEIGHTS[:n], lambda value: build(value, plain["k1"], plain["b"]), validate)
    k1, _, _ = best_of((plain["k1"], *K1S)[:n], lambda value: build(weight, value, plain["b"]), validate)
    options = (({"weight": weight, "k1": k1, "b": b}, partial(build, weight, k1, b)) for b in (plain["b"], *BS)[:n])
    return tuned(job, options, "counts", ANCHORS)


_LINKED = frozenset({"links", PRIOR})
_BIGRAMS = frozenset({BIGRAMS})

SYSTEMS: tuple[System, ...] = (
    System("tf-idf", ("M01", "B01"), "TF-IDF", lambda _: Fitted(Bilinear.lexical())),
    System("diagonal", ("M02",), "diag(w)", _diagonal),
    System("margin-ranking-perceptron", ("M03", "B05"), "margin ranking perceptron (full W)", _dense("full")),
    System("zero-diagonal", ("M04",), "full W, zero diagonal", _dense("zero_diagonal")),
    System("utu-plus-i", ("M05",), "UᵀU + I", _learned("tied")),
    System("utv-plus-i", ("M06",), "UᵀV + I (PSI k = 2)", _learned("low_rank")),
    System("utv", ("M07",), "UᵀV", _learned("no_identity")),
    System("restricted-utv-plus-i", ("M08",), "(UᵀV)ₙ + I", _restricted),
    System("hash-kernels-1m", ("M09", "B06"), "hash kernels, H/3", _hash(1)),
    System("hash-kernels-3m", ("M09", "B06"), "hash kernels, H", _hash(3)),
    System("hash-kernels-6m", ("M09", "B06"), "hash kernels, 2H", _hash(6)),
    System("hash-kernels-diagonal-1m", ("M10", "B06"), "hash kernels + diagonal, H/3", _hash(1, mixed=True)),
    System("hash-kernels-diagonal-3m", ("M10", "B06"), "hash kernels + diagonal, H", _hash(3, mixed=True)),
    System("hash-kernels-diagonal-6m", ("M10", "B06"), "hash kernels + diagonal, 2H", _hash(6, mixed=True)),
    System("hash-kernels-joint-3m", ("M10",), "hash kernels + I, learned jointly, H", _hash(3, identity=1.0)),
    System("cfh-1-full", ("M11", "M12"), "CFH k = 1, full W", _correlated(1, "full")),
    System("cfh-1", ("M11", "M12"), "CFH k = 1, UᵀV + I", _correlated(1, "low_rank")),
    System("cfh-5", ("M11", "M13"), "CFH k = 5, UᵀV + I", _correlated(5, "low_rank")),
    System("cfh-5-full", ("M13",), "CFH k = 5, full W", _correlated(5, "full")),
    System("cfh-5-printed", ("M13",), "CFH k = 5, full W, as printed (6, 7)", _correlated_as_printed(5)),
    System("cfh-1-grams", ("M14",), "(UᵀV)ₙ + I with CFH (1-grams)", _neighbour_mix(True, False)),
    System("cfh-2-grams", ("M15",), "(UᵀV)ₙ + I with CFH (2-grams)", _neighbour_mix(False, True), _BIGRAMS),
    System("cfh-1-2-grams", ("M16",), "(UᵀV)ₙ + I with CFH (1- and 2-grams)", _neighbour_mix(True, True), _BIGRAMS),
    System("full-polynomial", ("M17",), "full polynomial of degree 3, 20 words", _full_polynomial),
    System("psi-3", ("M18",), "PSI k = 3", _learned("cubic")),
    System("psi-3-separate", ("M19",), "PSI k = 3, separate U and V", _learned("cubic_separate")),
    System("psi-4", ("M20",), "PSI k = 4", _learned("polynomial", degree=4)),
    System("psi-k", ("M20",), "PSI, k by --degree", _polynomial),
    System("psi-3-query", ("M18",), "PSI k = 3, pairs of query words", _learned("query_polynomial", degree=3)),
    System("query-expansion", ("B02",), "query expansion", _query_expansion),
    System("lsi", ("B03",), "LSI", _lsi),
    System("lsi-tf-idf", ("B04",), "α LSI + (1 − α) TF-IDF", _lsi_tf_idf),
    System("pca", ("B10",), "PCA", _pca),
    System("plsa", ("B11",), "PLSA", _plsa),
    System("boolean-and", ("B17",), "Boolean, AND", _boolean("AND")),
    System("boolean-or", ("B17",), "Boolean, OR", _boolean("OR")),
    System("boolean-pairs", ("B17",), "Boolean, two of the three rarest words", _boolean_pairs),
    System("vector-space", ("B18",), "vector space, inverted file", lambda _: Fitted(VectorSpace())),
    System("presence", ("B18",), "presence of words, cosine", _weights("presence", True)),
    System("presence-product", ("B18",), "presence of words, inner product", _weights("presence", False)),
    System("occurrences", ("B18",), "occurrences of words, cosine", _weights("occurrences", True)),
    System("length-normalised", ("B18",), "tf / Σ tf, inner product", _weights("share", False)),
    System("length-normalised-idf", ("B18",), "tf / Σ tf × idf, inner product", _weights("share-idf", False)),
    System("jelinek-mercer", ("B19",), "language model, Jelinek-Mercer", _jelinek_mercer),
    System("bm25", ("B20",), "BM25", _bm25),
    System("pagerank", ("B21",), "PageRank only", _pagerank, _LINKED),
    System("bm25-pagerank", ("B20", "B21"), "BM25 + w PageRank", _bm25_pagerank, _LINKED),
    System("bm25-anchors", ("B20",), "BM25, anchor texts", _bm25_anchors, frozenset({"links", ANCHORS})),
)
