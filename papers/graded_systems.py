"""Rankers fitted on graded judgements: every system of the papers that T7 compares, and the course's machines.

Rankers that learn at most a number or two from grades: TF-IDF, BM25, language model, LSI, mixtures, expansion.

What graded systems learn from: judged pairs, with random negatives where none were judged, or pairs from clicks.

Projections and topics of judged corpora: PCA and PLSA without labels, OPCA, CCA, JPLSA, CPLSA and HDLR with them.

SSI and S2Net learned from preferences within a query: judged documents over lesser ones, or clicked ones.

Support vector machines on the course's features, and on features and the scores of other rankers together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.methods.lexical import JelinekMercer, QueryExpansion, fit_language_model, fit_okapi, mixture
from papers.methods.projections import HdlrSettings, fit_cca, fit_hdlr, fit_lsa, fit_opca, fit_pca, random_start
from papers.methods.ranking_svm import (
    CourseFeatures,
    LinearRanker,
    PreferencePairs,
    fit_features,
    fit_pair_svm,
    fit_pointwise_svm,
    pair_weights,
    preference_pairs,
    with_pagerank,
)
from papers.methods.rows import tfidf_rows
from papers.methods.topics import TopicModel, TopicSettings, fit_cplsa, fit_jplsa, fit_plsa
from papers.methods.word_pairs import Mix
from papers.plain_sgd import PlainData, PlainReport, PlainShape, PreferenceSampler, fit_plain
from papers.pseudo_queries import PSEUDO
from papers.study import Preferences, Study, Texts
from papers.system import Fitted, Job, System, trained
from reranker.errors import ConfigError, TrainingError
from reranker.kernels.product_sgd import Triples
from reranker.models.base import Scorer, Scores
from reranker.models.bilinear import Bilinear
from reranker.models.projection import Projection
from reranker.training.s2net import GradedPairs, S2NetSettings, fit_s2net

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


LEXICAL: tuple[System, ...] = (
    System("graded-tfidf", ("M01", "B01"), "TF-IDF", fit_tfidf),
    System("graded-expansion", ("B02",), "TF-IDF, query expansion", fit_expansion),
    System("graded-bm25", ("B20",), "BM25, tuned", fit_bm25),
    System("graded-likelihood", ("B19",), "language model, Jelinek-Mercer", fit_likelihood),
    System("graded-lsi", ("B03",), "LSI", fit_lsi),
    System("graded-lsi-tfidf", ("B04",), "α LSI + (1 - α) TF-IDF", fit_lsi_tfidf),
)


NEGATIVES = 4
"""Random documents beside each relevant one, where the judgements list relevant documents alone."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Judged pairs of a study's training queries and documents, ordered by query.

    Parameters
    ----------
    query, document : (n,) int64
    grade : (n,) float64
    """

    query: Ids
    document: Ids
    grade: Doubles

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.query)


def judged_pairs(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> Judged:
    """Return the training judgements; with random documents of grade 0 where no document was judged not relevant.

    Those are drawn uniformly from the documents without a judgement for the query, ``negatives`` for each judgement.

    Raises
    ------
    TrainingError
        If there is no judgement.
    """
    if study.judged is None or not study.judged.nnz:
        raise TrainingError("no judgement to learn from: graded systems need judged documents of training queries")
    query = np.repeat(np.arange(study.judged.shape[0]), np.diff(study.judged.indptr)).astype(np.int64)
    document, grade = study.judged.indices.astype(np.int64), study.judged.data.astype(np.float64)
    if (grade == 0).any() or not negatives:
        return Judged(query, document, grade)
    drawn_query, drawn = _unjudged(study, query, document, rng, negatives)
    query, document = np.concatenate([query, drawn_query]), np.concatenate([document, drawn])
    grade = np.concatenate([grade, np.zeros(len(drawn))])
    order = np.argsort(query, kind="stable")
    return Judged(query[order], document[order], grade[order])


def training_preferences(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> Preferences:
    """Return the pairs from clicks where the study has them; otherwise every judged document over each lesser one.

    Pairs of judgements weigh so that every query weighs the same.

    Raises
    ------
    TrainingError
        If there is no pair.
    """
    if study.preferences is not None:
        if not len(study.preferences):
            raise TrainingError("the clicks state no pair: there is nothing to learn from")
        return study.preferences
    judged = judged_pairs(study, rng, negatives)
    pairs = preference_pairs(judged.grade, judged.query)
    if not len(pairs):
        raise TrainingError("no training query has documents of two different grades: there is no preference to learn")
    query = judged.query[pairs.better]
    weight = 1.0 / np.bincount(query, minlength=len(study.queries))[query]
    return Preferences(query, judged.document[pairs.better], judged.document[pairs.worse], weight)


def triples(preferences: Preferences) -> Triples:
    """Return the pairs as plain SGD takes them."""
    return Triples(preferences.query, preferences.better, preferences.worse)


def relevant_pairs(study: Study) -> tuple[Ids, Ids]:
    """Return query and document of the relevant training pairs, all that OPCA, CCA, JPLSA and CPLSA see (spec T7).

    Raises
    ------
    TrainingError
        If there are fewer than two.
    """
    query, document = study.relevant.nonzero()
    if len(query) < 2:
        raise TrainingError(f"{len(query)} relevant training pairs: projections of pairs need at least 2")
    return query.astype(np.int64), document.astype(np.int64)


def _unjudged(study: Study, query: Ids, document: Ids, rng: np.random.Generator, negatives: int) -> tuple[Ids, Ids]:
    """Return random pairs without a judgement, ``negatives`` a judged pair of the query (fewer if there are fewer)."""
    queries: list[Ids] = []
    drawn: list[Ids] = []
    n_documents = len(study.documents)
    for row in np.unique(query):
        free = np.setdiff1d(np.arange(n_documents), document[query == row], assume_unique=True)
        wanted = min(len(free), negatives * int((query == row).sum()))
        drawn.append(rng.choice(free, wanted, replace=False).astype(np.int64))
        queries.append(np.full(wanted, row, dtype=np.int64))
    return np.concatenate(queries), np.concatenate(drawn)


HDLR_PAIRS = 5_000
"""Judged pairs that HDLR learns from, at most (spec B14)."""
NOISES = (1e-2, 1e-3)
RIDGES = (1e-2, 1e-1)
SLACKS = (1.0, 0.1, 10.0)
TOPICS_PER_DIM = 0.5
"""Topics for each dimension of the budget: a topic costs an iteration of EM what a dimension costs only once."""


@lru_cache(maxsize=2)
def all_texts_pca(study: Study, n_dims: int, query_view: str = "rows") -> Projection:
    """Return PCA of all training queries and documents, without labels: baseline, and start of S2Net and HDLR.

    Kept for the last studies, as several systems begin with it; equal arguments give equal results.

    Source: spec B10, T7.
    """
    rows = sp.vstack([study.queries.view(query_view), study.background().rows], format="csr")
    return fit_pca(rows, max(1, min(n_dims, min(rows.shape) - 1)), rng=np.random.default_rng(study.seed))


def fit_graded_pca(job: Job) -> Fitted:
    """Return PCA, its dimensions chosen on validation (spec B10)."""
    whole = all_texts_pca(job.study, job.budget.n_dims)
    n, scorer, value = best_of(dimensions(whole.n_dims), whole.first, job.validate())
    return Fitted(scorer, settings={"dimensions": n, "validation": value})


def fit_graded_opca(job: Job) -> Fitted:
    """Return OPCA of the relevant pairs, noise and dimensions chosen on validation (spec B08, T7)."""
    queries, documents = _pair_rows(job.study)
    n_dims = most_dims(job, queries)

    def build(noise: float) -> Projection:
        reduced = min(2 * n_dims, *queries.shape)
        return fit_opca(queries, documents, n_dims, rng=job.rng, noise=noise, shared=True, reduced=reduced)

    return _cut(job, NOISES[: job.budget.grid], build, "noise")


def fit_graded_cca(job: Job) -> Fitted:
    """Return CCA of the relevant pairs, ridge and dimensions chosen on validation (spec B09, T7)."""
    queries, documents = _pair_rows(job.study)
    n_dims = max(1, min(most_dims(job, queries), _query_rank(job.study)))

    def build(ridge: float) -> Projection:
        return fit_cca(queries, documents, n_dims, rng=job.rng, ridge=ridge, reduced=min(2 * n_dims, *queries.shape))

    return _cut(job, RIDGES[: job.budget.grid], build, "ridge")


def fit_graded_hdlr(job: Job) -> Fitted:
    """Return the metric learned from relevant and other judged pairs, from PCA, its slack by validation (spec B14)."""
    judged = judged_pairs(job.study, job.rng)
    similar = judged.grade >= job.study.valid.task.relevant_from
    if similar.all() or not similar.any():
        raise TrainingError("all judged pairs are relevant, or none is: a metric needs pairs of both kinds")
    chosen = np.arange(len(judged))
    if len(chosen) > HDLR_PAIRS:
        chosen = np.sort(job.rng.choice(len(judged), HDLR_PAIRS, replace=False))
    start = all_texts_pca(job.study, job.budget.n_dims)
    queries = job.study.queries.rows[judged.query[chosen]]
    documents = job.study.documents.rows[judged.document[chosen]]
    seed = int(job.rng.integers(2**31))

    def build(slack: float) -> Projection:
        rng = np.random.default_rng(seed)
        return fit_hdlr(start, queries, documents, similar[chosen], HdlrSettings(slack=slack), rng=rng)

    slack, scorer, value = best_of(SLACKS[: job.budget.grid], build, job.validate())
    return Fitted(scorer, settings={"slack": slack, "pairs": len(chosen), "validation": value})


def fit_graded_plsa(job: Job) -> Fitted:
    """Return PLSA of all training queries and documents, without labels (spec B11, T7)."""
    study = job.study
    counts = sp.vstack([study.queries.counts, study.background().counts], format="csr")
    return _topics(job, lambda settings: fit_plsa(counts, settings, rng=job.rng))


def fit_graded_pair_plsa(job: Job, *, coupled: bool) -> Fitted:
    """Return JPLSA or CPLSA of the relevant pairs (spec B12, B13, T7)."""
    query, document = relevant_pairs(job.study)
    queries, documents = job.study.queries.counts[query], job.study.documents.counts[document]
    fit = fit_cplsa if coupled else fit_jplsa
    return _topics(job, lambda settings: fit(queries, documents, settings, rng=job.rng))


def _topics(job: Job, fit: Callable[[TopicSettings], TopicModel]) -> Fitted:
    """Return a topic model over counts, compared by the cosine (spec A33), its topics by validation."""
    most = max(2, round(TOPICS_PER_DIM * job.budget.n_dims))
    n_iterations = job.budget.n_iterations

    def build(n_topics: int) -> TopicModel:
        return fit(TopicSettings(n_topics=n_topics, n_iterations=n_iterations, similarity="cosine"))

    numbers = tuple(dict.fromkeys(max(2, n) for n in dimensions(most)))[: job.budget.grid]
    n_topics, scorer, loss = best_of(numbers, build, job.validate("counts", "counts"))
    settings = {"topics": n_topics, "iterations": n_iterations, "validation": loss}
    return Fitted(scorer, "counts", "counts", settings)


def _cut(job: Job, values: tuple[float, ...], build: Callable[[float], Projection], name: str) -> Fitted:
    """Return the projection of the best value and number of dimensions."""
    made = {value: build(value) for value in values}
    points = [(value, n) for value in values for n in dimensions(made[value].n_dims)]
    (value, n), scorer, loss = best_of(points, lambda one: made[one[0]].first(one[1]), job.validate())
    return Fitted(scorer, settings={name: value, "dimensions": n, "validation": loss})


def _pair_rows(study: Study) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return the rows of the relevant training pairs."""
    query, document = relevant_pairs(study)
    return study.queries.rows[query], study.documents.rows[document]


def _query_rank(study: Study) -> int:
    """Return how many dimensions the queries of the relevant pairs have: few queries carry no more (CCA's limit)."""
    rows = study.queries.rows[np.unique(relevant_pairs(study)[0])]
    return int(np.linalg.matrix_rank((rows @ rows.T).toarray()))


PROJECTIONS: tuple[System, ...] = (
    System("graded-pca", ("B10",), "PCA", fit_graded_pca),
    System("graded-opca", ("B08",), "OPCA", fit_graded_opca, frozenset({"judged"})),
    System("graded-cca", ("B09",), "CCA", fit_graded_cca, frozenset({"judged"})),
    System("graded-plsa", ("B11",), "PLSA", fit_graded_plsa),
    System("graded-jplsa", ("B12",), "JPLSA", partial(fit_graded_pair_plsa, coupled=False), frozenset({"judged"})),
    System("graded-cplsa", ("B13",), "CPLSA", partial(fit_graded_pair_plsa, coupled=True), frozenset({"judged"})),
    System("graded-hdlr", ("B14",), "HDLR", fit_graded_hdlr, frozenset({"judged"})),
)


SMALL_START = 0.1
"""Deviation of a random start that leaves q.d audible (spec A10)."""
PULLS = (1e-4, 1e-3, 1e-5)
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

    betas = PULLS[: job.budget.grid] if pull else (0.0,)
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

LEARNED: tuple[System, ...] = (
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


Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

COSTS = (0.1, 0.01, 1.0)
"""C of the machines: greater ones take liblinear long on features that overlap, and change little."""
MOST_PAIRS = 20_000
"""Pairs, or preferences, that a machine learns from, drawn at random where there are more."""


@dataclass(frozen=True, eq=False)
class FeatureSum:
    """Scores w.((x(q, d) - mean) / scale) + b over the course's features and the scores of other rankers.

    Parameters
    ----------
    features : CourseFeatures
    ranker : LinearRanker
        w, over the nine features and then the rankers in their order.
    parts : tuple of (Scorer, bool)
        Further rankers, and whether each takes counts (otherwise tf-idf rows).

    Queries and documents are word counts; without links, PageRank (f8) is the same for all.
    """

    features: CourseFeatures
    ranker: LinearRanker
    parts: tuple[tuple[Scorer, bool], ...] = ()

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the sum for every query and document, (n_queries, n_documents) float32."""
        total = np.full((q_rows.shape[0], d_rows.shape[0]), self.ranker.bias)
        weights = self.ranker.weights / self.ranker.scale
        for weight, mean, matrix in zip(weights, self.ranker.mean, self._matrices(q_rows, d_rows), strict=True):
            total += weight * (matrix - mean)
        return total.astype(np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return the sum for query r and document r, (n,) float32."""
        return self.ranker.scores(pair_features(self.features, self.parts, q_rows, d_rows)).astype(np.float32)

    def _matrices(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Iterator[Doubles]:
        yield from self.features.matrices(q_rows, with_pagerank(d_rows, np.zeros(d_rows.shape[0])))
        for scorer, by_counts in self.parts:
            sides = (q_rows, d_rows) if by_counts else _weighted(self.features, q_rows, d_rows)
            yield scorer.score_matrix(*sides).astype(np.float64)


def pair_features(
    features: CourseFeatures, parts: tuple[tuple[Scorer, bool], ...], q_counts: sp.csr_matrix, d_counts: sp.csr_matrix
) -> Doubles:
    """Return features and further scores of query r with document r, (n, 9 + parts) float64."""
    columns = [features.pairs(q_counts, with_pagerank(d_counts, np.zeros(d_counts.shape[0])))]
    for scorer, by_counts in parts:
        sides = (q_counts, d_counts) if by_counts else _weighted(features, q_counts, d_counts)
        columns.append(scorer.score_pairs(*sides).astype(np.float64)[:, None])
    return np.hstack(columns)


@lru_cache(maxsize=2)
def study_features(study: Study) -> CourseFeatures:
    """Return the features over a study's documents (spec B23); kept for the last studies."""
    return fit_features(study.documents.counts)


def fit_pointwise(job: Job) -> Fitted:
    """Return the machine that tells relevant pairs from others, both kinds weighing the same (spec B22, B23)."""
    study = job.study
    judged = judged_pairs(study, job.rng)
    chosen = _some(len(judged), job.rng)
    relevant = judged.grade[chosen] >= study.valid.task.relevant_from
    if relevant.all() or not relevant.any():
        raise TrainingError("all judged pairs are relevant, or none is: a machine needs pairs of both kinds")
    table = _table(study, judged.query[chosen], judged.document[chosen])
    seed = int(job.rng.integers(2**31))

    def machine(C: float) -> LinearRanker:
        return fit_pointwise_svm(table, relevant, rng=np.random.default_rng(seed), C=C, balanced=True)

    return _tuned(job, machine)


def fit_pairwise(job: Job) -> Fitted:
    """Return the ranking machine on preferences, of grades or of clicks (spec B23, B24)."""
    preferences = job.study.preferences
    if preferences is None:
        return _fit_judged_pairs(job, weighted=False)
    chosen = _some(len(preferences), job.rng)
    query = preferences.query[chosen]
    better = _table(job.study, query, preferences.better[chosen])
    worse = _table(job.study, query, preferences.worse[chosen])
    n = len(chosen)
    pairs = PreferencePairs(np.arange(n), np.arange(n, 2 * n))
    return _tuned(job, _pair_machine(job, np.vstack([better, worse]), pairs, preferences.weight[chosen]))


def fit_weighted_pairwise(job: Job) -> Fitted:
    """Return RSVM-IR, errors weighed by grades and by query (spec B25)."""
    return _fit_judged_pairs(job, weighted=True)


def fit_combination(job: Job) -> Fitted:
    """Return a ranking machine on the course's features and the scores of BM25, LSI and SSI.

    The parts are fitted on the training queries. The machine learns on the validation queries, where the parts are
    what they are for new queries: on their own training queries it would trust SSI too much.
    """
    study = job.study
    fitted = [fit_bm25(job), fit_lsi(job), fit_graded_ssi(job, shape="low_rank", start="lsi")]
    parts = tuple((one.scorer, one.query_view == "counts") for one in fitted)
    grades = study.valid.task.grades
    query = np.repeat(np.arange(grades.shape[0]), np.diff(grades.indptr)).astype(np.int64)
    column, grade = grades.indices.astype(np.int64), grades.data.astype(np.float64)
    if (grade > 0).all():
        query, column, grade = _with_unjudged(query, column, grade, grades.shape[1], job.rng)
    features = study_features(study)
    documents = study.documents.counts[study.valid.pool[column]]
    table = pair_features(features, parts, study.valid.queries.counts[query], documents)
    pairs = preference_pairs(grade, query)
    if not len(pairs):
        raise TrainingError("no validation query has documents of two grades: there is nothing to combine the parts by")
    chosen = _some(len(pairs), job.rng)
    weight = 1.0 / np.bincount(query[pairs.better])[query[pairs.better]][chosen]
    weight *= len(weight) / weight.sum()
    kept = PreferencePairs(pairs.better[chosen], pairs.worse[chosen])
    ranker, settled = _settled(lambda: fit_pair_svm(table, kept, weight, rng=job.rng, C=COSTS[0]))
    settings = {
        "parts": ["features", "bm25", "lsi", "ssi"], "weights": ranker.weights.round(4).tolist(), "C": COSTS[0],
        "settled": settled,
    }  # fmt: skip
    return Fitted(FeatureSum(features, ranker, parts), "counts", "counts", settings)


def _fit_judged_pairs(job: Job, *, weighted: bool) -> Fitted:
    """Return the machine on every judged document over each lesser one."""
    judged = judged_pairs(job.study, job.rng)
    pairs = preference_pairs(judged.grade, judged.query)
    weight = pair_weights(pairs, judged.grade, judged.query) if weighted else np.ones(len(pairs))
    useful = np.flatnonzero(weight > 0)
    if not len(useful):
        raise TrainingError("no training query has documents of two different grades: there is no preference to learn")
    chosen = useful[_some(len(useful), job.rng)]
    table = _table(job.study, judged.query, judged.document)
    kept = PreferencePairs(pairs.better[chosen], pairs.worse[chosen])
    return _tuned(job, _pair_machine(job, table, kept, weight[chosen] / weight[chosen].mean()))


def _pair_machine(job: Job, table: Doubles, pairs: PreferencePairs, weight: Doubles) -> Callable[[float], LinearRanker]:
    """Return C -> machine, every C from the same draw."""
    seed = int(job.rng.integers(2**31))
    return lambda C: fit_pair_svm(table, pairs, weight, rng=np.random.default_rng(seed), C=C)


def _tuned(job: Job, machine: Callable[[float], LinearRanker]) -> Fitted:
    """Return the machine of the best C on validation."""
    features = study_features(job.study)
    settled: dict[float, bool] = {}

    def build(C: float) -> FeatureSum:
        ranker, settled[C] = _settled(lambda: machine(C))
        return FeatureSum(features, ranker)

    C, scorer, value = best_of(COSTS[: min(2, job.budget.grid)], build, job.validate("counts", "counts"))
    settings = {
        "C": C, "weights": scorer.ranker.weights.round(4).tolist(), "settled": settled[C], "validation": value
    }  # fmt: skip
    return Fitted(scorer, "counts", "counts", settings)


def _settled(fit: Callable[[], LinearRanker]) -> tuple[LinearRanker, bool]:
    """Return a machine, and whether it settled: that it did not belongs into the results, not between the bars."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ranker = fit()
    late = [one for one in found if one.category.__name__ == "ConvergenceWarning"]
    for one in found:
        if one not in late:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return ranker, not late


def _table(study: Study, query: Ids, document: Ids) -> Doubles:
    """Return the course's features of training pairs."""
    return pair_features(study_features(study), (), study.queries.counts[query], study.documents.counts[document])


def _weighted(
    features: CourseFeatures, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix
) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return the tf-idf rows of counts."""
    return tfidf_rows(q_counts, features.idf), tfidf_rows(d_counts, features.idf)


def _some(n: int, rng: np.random.Generator) -> Ids:
    """Return all numbers below n, or `MOST_PAIRS` of them."""
    return np.arange(n) if n <= MOST_PAIRS else np.sort(rng.choice(n, MOST_PAIRS, replace=False))


def _with_unjudged(
    query: Ids, column: Ids, grade: Doubles, n_documents: int, rng: np.random.Generator
) -> tuple[Ids, Ids, Doubles]:
    """Return the pairs and four times as many random ones of grade 0, none of them judged."""
    more = np.repeat(query, 4)
    drawn = rng.integers(n_documents, size=len(more))
    fresh = ~np.isin(more * n_documents + drawn, query * n_documents + column)
    return (
        np.concatenate([query, more[fresh]]),
        np.concatenate([column, drawn[fresh]]),
        np.concatenate([grade, np.zeros(int(fresh.sum()))]),
    )


_FEATURES = frozenset({"judged", "scikit-learn"})

MACHINES: tuple[System, ...] = (
    System("graded-pointwise-svm", ("B22", "B23"), "pointwise SVM on features", fit_pointwise, _FEATURES),
    System("graded-ranking-svm", ("B23", "B24"), "ranking SVM on features", fit_pairwise, frozenset({"scikit-learn"})),
    System("graded-rsvm-ir", ("B23", "B25"), "RSVM-IR on features", fit_weighted_pairwise, _FEATURES),
    System(
        "graded-combination",
        ("B24",),
        "ranking SVM on features, BM25, LSI, SSI",
        fit_combination,
        _FEATURES,
    ),
)


SYSTEMS: tuple[System, ...] = (
    *LEXICAL,
    *PROJECTIONS,
    *LEARNED,
    *MACHINES,
)
"""All of them, simplest first."""

BY_NAME = {system.name: system for system in SYSTEMS}
