"""Systems trained on graded judgments or on preferences from clicks, compared in T7 (spec B01-B25, M01-M24)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Literal

import numpy as np
import scipy.sparse as sp

from papers.corpora import PSEUDO
from papers.fitting import Option, best_of, dimensions, s2net_option, sgd_option, tuned
from papers.methods.lexical import QueryExpansion, fit_language_model, fit_okapi, mixture
from papers.methods.product_sgd import Triples
from papers.methods.projection import Projection
from papers.methods.projections import HdlrSettings, fit_cca, fit_hdlr, fit_lsa, fit_opca, fit_pca, random_start
from papers.methods.ranking_svm import (
    CourseFeatures,
    FeatureSum,
    LinearRanker,
    Pairs,
    fit_features,
    fit_listnet,
    fit_pair_svm,
    fit_pointwise_svm,
    pair_features,
    preference_pairs,
    svm_pair_weights,
)
from papers.methods.s2net import GradedPairs, S2NetSettings
from papers.methods.topics import TopicModel, TopicSettings, fit_topic_model
from papers.methods.word_pairs import Bilinear
from papers.plain_sgd import PlainData, PlainShape, PreferenceSampler
from papers.registry import FitInput, Fitted, System
from papers.study import StatedPairs, Study, Texts
from reranker.arrays import Float64, Int64
from reranker.errors import TrainingError

K1, B = (1.2, 0.4, 0.8, 2.0, 4.0), (0.75, 0.0, 0.3, 0.5, 1.0)
LAMBDAS = (0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Without 0, which gives scores of -inf, and without 1, which makes all scores equal."""
ALPHAS = (0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
BETAS, FEEDBACK = (0.0, 0.25, 0.5, 1.0, 2.0), (5, 1, 10, 20)
NEGATIVES = 4
"""Number of random documents per relevant one, if the judgments list only relevant documents."""
HDLR_PAIRS = 5_000
"""Largest number of judged pairs that HDLR is trained on (spec B14)."""
NOISES = (1e-2, 1e-3)
RIDGES = (1e-2, 1e-1)
SLACKS = (1.0, 0.1, 10.0)
TOPICS_PER_DIM = 0.5
"""Topics per dimension of the budget: a topic costs as much in each iteration of EM as a dimension costs in total."""
SMALL_START = 0.1
"""Standard deviation of a random start at which q.d still matters (spec A10)."""
PULLS = (1e-4, 1e-3, 1e-5)
"""Weights of S2Net's pull towards its start; its loss is a mean of about 1 or less."""
PENALTIES = (0.01, 0.001, 0.1)
"""Weights of the norm in ListNet's loss."""
COSTS = (0.1, 0.01, 1.0)
"""Values of C of the SVMs; with larger ones liblinear is slow on overlapping features, and results change little."""
MOST_PAIRS = 20_000
"""Largest number of pairs or preferences that an SVM is trained on; of more, a random sample is used."""


@dataclass(frozen=True, eq=False)
class JudgedPairs:
    """Judged pairs of a study's training queries and documents, ordered by query."""

    query: Int64
    document: Int64
    grade: Float64

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.query)


def judged_pairs(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> JudgedPairs:
    """Return the training judgments, with random documents of grade 0 if none was judged not relevant.

    The random documents are drawn uniformly from those without a judgment for the query, ``negatives`` per judgment.

    Raises
    ------
    TrainingError
        If there is no judgment.
    """
    if study.judged is None or not study.judged.nnz:
        raise TrainingError("no judgment to train on: graded systems need judged documents of training queries")
    query = np.repeat(np.arange(study.judged.shape[0]), np.diff(study.judged.indptr)).astype(np.int64)
    document, grade = study.judged.indices.astype(np.int64), study.judged.data.astype(np.float64)
    if (grade == 0).any() or not negatives:
        return JudgedPairs(query, document, grade)
    queries, documents = [query], [document]
    for row in np.unique(query):
        judged = document[query == row]
        free = np.setdiff1d(np.arange(len(study.documents)), judged, assume_unique=True)
        wanted = min(len(free), negatives * len(judged))
        documents.append(rng.choice(free, wanted, replace=False).astype(np.int64))
        queries.append(np.full(wanted, row, dtype=np.int64))
    query, document = np.concatenate(queries), np.concatenate(documents)
    grade = np.concatenate([grade, np.zeros(len(query) - len(grade))])
    order = np.argsort(query, kind="stable")
    return JudgedPairs(query[order], document[order], grade[order])


def training_preferences(study: Study, rng: np.random.Generator, negatives: int = NEGATIVES) -> StatedPairs:
    """Return the pairs from clicks if the study has them; otherwise each judged document over each of a lower grade.

    Pairs from judgments are weighted so that all queries have the same total weight.

    Raises
    ------
    TrainingError
        If there is no pair.
    """
    if study.preferences is not None:
        if not len(study.preferences):
            raise TrainingError("the clicks give no pair: there is nothing to train on")
        return study.preferences
    judged = judged_pairs(study, rng, negatives)
    better, worse = preference_pairs(judged.grade, judged.query)
    if not len(better):
        raise TrainingError("no training query has documents of different grades: there is no preference to train on")
    query = judged.query[better]
    weight = 1.0 / np.bincount(query, minlength=len(study.queries))[query]
    return StatedPairs(query, judged.document[better], judged.document[worse], weight)


def relevant_pairs(study: Study) -> tuple[Int64, Int64]:
    """Return query and document of the relevant training pairs, the only input of OPCA, CCA, JPLSA and CPLSA (spec T7).

    Raises
    ------
    TrainingError
        If there are fewer than two.
    """
    query, document = study.relevant.nonzero()
    if len(query) < 2:
        raise TrainingError(f"{len(query)} relevant training pairs: projections of pairs need at least 2")
    return query.astype(np.int64), document.astype(np.int64)


def most_dims(job: FitInput, rows: sp.csr_matrix) -> int:
    """Return the budget's number of dimensions, or the largest that rows and words allow."""
    return max(1, min(job.budget.n_dims, min(rows.shape) - 1))


def _tfidf(job: FitInput) -> Fitted:
    """Return the cosine of tf-idf rows (spec B01, M01)."""
    return Fitted(Bilinear.lexical())


def _bm25(job: FitInput) -> Fitted:
    """Return BM25 with k1 and then b chosen on validation (spec B20)."""
    plain = fit_okapi(job.study.documents.counts)
    validate = job.validate("counts", "counts")
    k1, tuned_k1, _ = best_of(K1[: job.budget.grid], lambda k1: replace(plain, k1=k1), validate)
    options = (({"k1": k1, "b": b}, partial(replace, tuned_k1, b=b)) for b in B[: job.budget.grid])
    return tuned(job, options, "counts", "counts")


def _likelihood(job: FitInput) -> Fitted:
    """Return query likelihood with lambda chosen on validation (spec B19).

    Scores are per word and relative to the collection. This keeps the ranking of each query and makes scores of
    different queries comparable, which filtering needs.
    """
    plain = fit_language_model(job.study.documents.counts, per_word=True)
    options = (({"lambda": lam}, partial(replace, plain, lam=lam)) for lam in LAMBDAS[: job.budget.grid])
    return tuned(job, options, "counts", "counts")


def _expansion(job: FitInput) -> Fitted:
    """Return TF-IDF of the query expanded by its best documents, with beta and E chosen on validation (spec B02)."""
    pool = job.study.documents.rows
    points = [(beta, n) for beta, n in product(BETAS, FEEDBACK) if beta or n == FEEDBACK[0]][: job.budget.grid]
    return tuned(job, (({"beta": beta, "E": n}, partial(QueryExpansion, pool, beta, n)) for beta, n in points))


def _first_columns(job: FitInput, whole: Projection) -> Fitted:
    """Return the projection reduced to the number of dimensions that is best on validation."""
    return tuned(job, (({"dimensions": n}, partial(whole.first, n)) for n in dimensions(whole.n_dims)))


def _lsi(job: FitInput) -> Fitted:
    """Return LSI of the documents (spec B03)."""
    return _first_columns(job, _lsi_of(job))


def _lsi_tfidf(job: FitInput) -> Fitted:
    """Return alpha LSI + (1 - alpha) TF-IDF, dimensions and alpha chosen on validation (spec B04)."""
    whole, tfidf = _lsi_of(job), Bilinear.lexical()
    cuts = [whole.first(n) for n in dimensions(whole.n_dims)]
    points = product(cuts, ALPHAS[: job.budget.grid])
    options = (
        ({"dimensions": cut.n_dims, "alpha": alpha}, partial(mixture, cut, tfidf, alpha)) for cut, alpha in points
    )
    return tuned(job, options)


def _lsi_of(job: FitInput) -> Projection:
    texts = job.study.background()
    return _texts_lsi(texts, most_dims(job, texts.rows))


@lru_cache(maxsize=2)
def _texts_lsi(texts: Texts, n_dims: int) -> Projection:
    """Return LSI of texts, cached for the last ones, because studies of one collection share their documents."""
    return fit_lsa(texts.rows, n_dims, rng=np.random.default_rng(0))


@lru_cache(maxsize=2)
def all_texts_pca(study: Study, n_dims: int, query_view: str = "rows") -> Projection:
    """Return PCA of all training queries and documents, without labels: a baseline, and the start of S2Net and HDLR.

    It is cached for the last studies, because several systems start from it; equal arguments give equal results.

    Source: spec B10, T7.
    """
    rows = sp.vstack([study.queries.view(query_view), study.background().rows], format="csr")
    return fit_pca(rows, max(1, min(n_dims, min(rows.shape) - 1)), rng=np.random.default_rng(study.seed))


def _pca(job: FitInput) -> Fitted:
    """Return PCA, its dimensions chosen on validation (spec B10)."""
    return _first_columns(job, all_texts_pca(job.study, job.budget.n_dims))


def _pair_projection(job: FitInput, kind: Literal["opca", "cca"]) -> Fitted:
    """Return OPCA or CCA of the relevant pairs; noise or ridge, and dimensions, by validation (spec B08, B09, T7)."""
    query, document = relevant_pairs(job.study)
    queries, documents = job.study.queries.rows[query], job.study.documents.rows[document]
    n_dims = most_dims(job, queries)
    if kind == "opca":
        name, values = "noise", NOISES[: job.budget.grid]
        fit: Callable[..., Projection] = partial(fit_opca, shared=True)
    else:
        name, values = "ridge", RIDGES[: job.budget.grid]
        fit = fit_cca
        # With few queries, the rank of their rows limits the number of dimensions of CCA.
        rows = job.study.queries.rows[np.unique(query)]
        n_dims = max(1, min(n_dims, int(np.linalg.matrix_rank((rows @ rows.T).toarray()))))
    reduced = min(2 * n_dims, *queries.shape)
    made = [fit(queries, documents, n_dims, rng=job.rng, reduced=reduced, **{name: value}) for value in values]
    options = (
        ({name: value, "dimensions": n}, partial(projection.first, n))
        for value, projection in zip(values, made, strict=True)
        for n in dimensions(projection.n_dims)
    )
    return tuned(job, options)


def _hdlr(job: FitInput) -> Fitted:
    """Return the metric trained on relevant and other judged pairs, from PCA; slack by validation (spec B14)."""
    judged = judged_pairs(job.study, job.rng)
    similar = judged.grade >= job.study.valid.task.relevant_from
    if similar.all() or not similar.any():
        raise TrainingError("all judged pairs are relevant, or none is: a metric needs pairs of both kinds")
    chosen = _sample(len(judged), HDLR_PAIRS, job.rng)
    start = all_texts_pca(job.study, job.budget.n_dims)
    queries = job.study.queries.rows[judged.query[chosen]]
    documents = job.study.documents.rows[judged.document[chosen]]
    seed = int(job.rng.integers(2**31))

    def build(slack: float) -> Projection:
        rng = np.random.default_rng(seed)
        return fit_hdlr(start, queries, documents, similar[chosen], HdlrSettings(slack=slack), rng=rng)

    slacks = SLACKS[: job.budget.grid]
    return tuned(job, (({"slack": slack, "pairs": len(chosen)}, partial(build, slack)) for slack in slacks))


def _topics(job: FitInput, kind: Literal["plsa", "jplsa", "cplsa"]) -> Fitted:
    """Return a topic model over counts, compared by the cosine (spec A33); the number of topics by validation.

    PLSA is trained on all training queries and documents, without labels; JPLSA and CPLSA on the relevant pairs (spec
    B11 to B13, T7).
    """
    study = job.study
    n_iterations = job.budget.n_iterations
    if kind == "plsa":
        texts = [sp.vstack([study.queries.counts, study.background().counts], format="csr")]
    else:
        query, document = relevant_pairs(study)
        texts = [study.queries.counts[query], study.documents.counts[document]]

    def build(n_topics: int) -> TopicModel:
        settings = TopicSettings(n_topics=n_topics, n_iterations=n_iterations, similarity="cosine")
        return fit_topic_model(texts, settings, rng=job.rng, coupled=kind == "cplsa")

    most = max(2, round(TOPICS_PER_DIM * job.budget.n_dims))
    numbers = tuple(dict.fromkeys(max(2, n) for n in dimensions(most)))[: job.budget.grid]
    options = (({"topics": n, "iterations": n_iterations}, partial(build, n)) for n in numbers)
    return tuned(job, options, "counts", "counts")


def _ssi(job: FitInput, shape: str, start: Literal["random", "pca"] = "random") -> Fitted:
    """Return the best model of plain SGD on the training preferences over the budget's rates (spec 2.1, M02, M06, M10).

    Embeddings start as N(0, .1), or as the words' PCA vectors times .1.
    """
    study = job.study
    preferences = training_preferences(study, job.rng)
    triples = Triples(preferences.query, preferences.better, preferences.worse)
    sampler = PreferenceSampler(triples, preferences.weight)
    data = PlainData(study.queries.rows, study.documents.rows, sp.csr_matrix(study.relevant.shape), study.own)
    plain = PlainShape(shape, identity=1.0 if shape == "hash" else None, n_slots=job.budget.n_slots)
    n_dims = most_dims(job, study.documents.rows)
    origin = None
    if start == "pca":
        words = np.ascontiguousarray(np.float32(SMALL_START) * all_texts_pca(study, n_dims).A)
        origin = Bilinear(words, words.copy(), 1.0)
        n_dims = origin.n_dims
    seed = int(job.rng.integers(2**31))

    def option(rate: float) -> Option:
        return sgd_option(
            job,
            plain,
            data,
            {"rate": rate, "pairs": len(preferences), "dimensions": n_dims},
            rate=rate,
            init_std=SMALL_START,
            rng=np.random.default_rng(seed),
            n_dims=n_dims,
            start=origin,
            sampler=sampler,
        )

    return tuned(job, map(option, job.budget.rates[: job.budget.grid]))


def _s2net(
    job: FitInput,
    loss: Literal["logistic", "squared"] = "logistic",
    start: Literal["pca", "random"] = "pca",
    pulls: tuple[float, ...] = (0.0,),
    query_view: str = "rows",
) -> Fitted:
    """Return S2Net on the judged pairs: L-BFGS from PCA of all texts, with early stopping (spec M21 to M24, R04, T7).

    ``pulls`` are the weights of the pull towards the start to try (M23).
    """
    study = job.study
    data = graded_pairs(study, job.rng, query_view)
    if start == "pca":
        origin = all_texts_pca(study, job.budget.n_dims, query_view)
    else:
        width = data.d_rows.shape[1]
        origin = random_start((width, width), most_dims(job, study.documents.rows), rng=job.rng, tied=True)
    plain = S2NetSettings(loss=loss, max_iterations=job.budget.n_iterations)

    def option(beta: float) -> Option:
        said = {"beta": beta, "dimensions": origin.n_dims, "pairs": len(data.better)}
        return s2net_option(job, data, origin, replace(plain, beta=beta), said, query_view)

    return tuned(job, map(option, pulls[: job.budget.grid]), query_view)


def _s2net_tfidf(job: FitInput) -> Fitted:
    """Return alpha S2Net + (1 - alpha) TF-IDF with alpha chosen on validation; both are cosines."""
    learned, tfidf = _s2net(job), Bilinear.lexical()
    alphas = ALPHAS[: job.budget.grid]
    settings = learned.settings
    return tuned(
        job, (({**settings, "alpha": alpha}, partial(mixture, learned.scorer, tfidf, alpha)) for alpha in alphas)
    )


def graded_pairs(study: Study, rng: np.random.Generator, query_view: str = "rows") -> GradedPairs:
    """Return the judged pairs as input of S2Net, with only the judged documents."""
    judged = judged_pairs(study, rng)
    used, document = np.unique(judged.document, return_inverse=True)
    queries, documents = study.queries.view(query_view), study.documents.rows[used]
    return GradedPairs(queries, documents, judged.query, document.astype(np.int64), judged.grade)


@lru_cache(maxsize=2)
def study_features(study: Study) -> CourseFeatures:
    """Return the features over a study's documents (spec B23), cached for the last studies."""
    return fit_features(study.documents.counts)


def _pointwise(job: FitInput) -> Fitted:
    """Return the SVM that separates relevant pairs from others, with equal weight of both classes (spec B22, B23)."""
    study = job.study
    judged = judged_pairs(study, job.rng)
    chosen = _sample(len(judged), MOST_PAIRS, job.rng)
    relevant = judged.grade[chosen] >= study.valid.task.relevant_from
    if relevant.all() or not relevant.any():
        raise TrainingError("all judged pairs are relevant, or none is: an SVM needs pairs of both kinds")
    table = _table(study, judged.query[chosen], judged.document[chosen])
    seed = int(job.rng.integers(2**31))
    return _tuned_machine(
        job, lambda C: fit_pointwise_svm(table, relevant, rng=np.random.default_rng(seed), C=C, balanced=True)
    )


def _pairwise(job: FitInput, weighted: bool = False) -> Fitted:
    """Return the ranking SVM on preferences from clicks, or on each judged document over each of a lower grade.

    ``weighted`` is RSVM-IR, which uses only judgments and weights errors by grades and by query (spec B23 to B25).
    """
    study = job.study
    if study.preferences is not None and not weighted:
        preferences = study.preferences
        chosen = _sample(len(preferences), MOST_PAIRS, job.rng)
        query, n = preferences.query[chosen], len(chosen)
        sides = (_table(study, query, side[chosen]) for side in (preferences.better, preferences.worse))
        pairs = np.arange(n), np.arange(n, 2 * n)
        return _tuned_machine(job, _pair_machine(job, np.vstack([*sides]), pairs, preferences.weight[chosen]))
    judged = judged_pairs(study, job.rng)
    pairs = preference_pairs(judged.grade, judged.query)
    weight = svm_pair_weights(pairs, judged.grade, judged.query) if weighted else np.ones(len(pairs[0]))
    useful = np.flatnonzero(weight > 0)
    if not len(useful):
        raise TrainingError("no training query has documents of different grades: there is no preference to train on")
    chosen = useful[_sample(len(useful), MOST_PAIRS, job.rng)]
    table = _table(study, judged.query, judged.document)
    kept = pairs[0][chosen], pairs[1][chosen]
    return _tuned_machine(job, _pair_machine(job, table, kept, weight[chosen] / weight[chosen].mean()))


def _listnet(job: FitInput) -> Fitted:
    """Return ListNet on the judged lists, its penalty chosen on validation (spec B26)."""
    judged = judged_pairs(job.study, job.rng)
    table = _table(job.study, judged.query, judged.document)
    features = study_features(job.study)

    def build(penalty: float) -> FeatureSum:
        return FeatureSum(features, fit_listnet(table, judged.grade, judged.query, penalty=penalty))

    penalties = PENALTIES[: job.budget.grid]
    penalty, scorer, value = best_of(penalties, build, job.validate("counts", "counts"))
    settings = {"penalty": penalty, "weights": scorer.ranker.weights.round(4).tolist(), "validation": value}
    return Fitted(scorer, "counts", "counts", settings)


def _combination(job: FitInput) -> Fitted:
    """Return a ranking SVM on the course's features and the scores of BM25, LSI and SSI.

    The parts are fitted on the training queries. The SVM is trained on the validation queries, because there the parts
    score as for new queries; on their own training queries it would give SSI too much weight.
    """
    study = job.study
    fitted = [_bm25(job), _lsi(job), _ssi(job, "low_rank", "pca")]
    parts = tuple((part.scorer, part.query_view == "counts") for part in fitted)
    grades = study.valid.task.grades
    query = np.repeat(np.arange(grades.shape[0]), np.diff(grades.indptr)).astype(np.int64)
    column, grade = grades.indices.astype(np.int64), grades.data.astype(np.float64)
    if (grade > 0).all():
        query, column, grade = _with_unjudged(query, column, grade, grades.shape[1], job.rng)
    features = study_features(study)
    documents = study.documents.counts[study.valid.pool[column]]
    table = pair_features(features, parts, study.valid.queries.counts[query], documents)
    better, worse = preference_pairs(grade, query)
    if not len(better):
        raise TrainingError("no validation query has documents of two grades: the parts cannot be combined")
    chosen = _sample(len(better), MOST_PAIRS, job.rng)
    weight = 1.0 / np.bincount(query[better])[query[better]][chosen]
    weight *= len(weight) / weight.sum()
    kept = better[chosen], worse[chosen]
    ranker, settled = _settled(lambda: fit_pair_svm(table, kept, weight, rng=job.rng, C=COSTS[0]))
    settings = {
        "parts": ["features", "bm25", "lsi", "ssi"],
        "weights": ranker.weights.round(4).tolist(),
        "C": COSTS[0],
        "settled": settled,
    }
    return Fitted(FeatureSum(features, ranker, parts), "counts", "counts", settings)


def _pair_machine(job: FitInput, table: Float64, pairs: Pairs, weight: Float64) -> Callable[[float], LinearRanker]:
    """Return the function from C to the SVM, with the same random draw for every C."""
    seed = int(job.rng.integers(2**31))
    return lambda C: fit_pair_svm(table, pairs, weight, rng=np.random.default_rng(seed), C=C)


def _tuned_machine(job: FitInput, machine: Callable[[float], LinearRanker]) -> Fitted:
    """Return the SVM with the best C on validation."""
    features = study_features(job.study)
    settled: dict[float, bool] = {}

    def build(C: float) -> FeatureSum:
        ranker, settled[C] = _settled(lambda: machine(C))
        return FeatureSum(features, ranker)

    C, scorer, value = best_of(COSTS[: min(2, job.budget.grid)], build, job.validate("counts", "counts"))
    weights = scorer.ranker.weights.round(4).tolist()
    settings = {"C": C, "weights": weights, "settled": settled[C], "validation": value}
    return Fitted(scorer, "counts", "counts", settings)


def _settled(fit: Callable[[], LinearRanker]) -> tuple[LinearRanker, bool]:
    """Return an SVM and whether it converged, which is recorded in the results instead of printing a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranker = fit()
    late = [warning for warning in caught if warning.category.__name__ == "ConvergenceWarning"]
    for warning in caught:
        if warning not in late:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return ranker, not late


def _table(study: Study, query: Int64, document: Int64) -> Float64:
    """Return the course's features of training pairs."""
    return pair_features(study_features(study), (), study.queries.counts[query], study.documents.counts[document])


def _sample(n: int, most: int, rng: np.random.Generator) -> Int64:
    """Return all numbers below n, or ``most`` of them drawn at random, ascending."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


def _with_unjudged(
    query: Int64, column: Int64, grade: Float64, n_documents: int, rng: np.random.Generator
) -> tuple[Int64, Int64, Float64]:
    """Return the pairs, and up to four times as many random unjudged ones with grade 0."""
    more = np.repeat(query, 4)
    drawn = rng.integers(n_documents, size=len(more))
    fresh = ~np.isin(more * n_documents + drawn, query * n_documents + column)
    return (
        np.concatenate([query, more[fresh]]),
        np.concatenate([column, drawn[fresh]]),
        np.concatenate([grade, np.zeros(int(fresh.sum()))]),
    )


_JUDGED = frozenset({"judged"})
_MACHINES = frozenset({"scikit-learn"})

SYSTEMS: tuple[System, ...] = (
    System("graded-tfidf", ("M01", "B01"), "TF-IDF", _tfidf),
    System("graded-expansion", ("B02",), "TF-IDF, query expansion", _expansion),
    System("graded-bm25", ("B20",), "BM25, tuned", _bm25),
    System("graded-likelihood", ("B19",), "language model, Jelinek-Mercer", _likelihood),
    System("graded-lsi", ("B03",), "LSI", _lsi),
    System("graded-lsi-tfidf", ("B04",), "α LSI + (1 - α) TF-IDF", _lsi_tfidf),
    System("graded-pca", ("B10",), "PCA", _pca),
    System("graded-opca", ("B08",), "OPCA", partial(_pair_projection, kind="opca"), _JUDGED),
    System("graded-cca", ("B09",), "CCA", partial(_pair_projection, kind="cca"), _JUDGED),
    System("graded-plsa", ("B11",), "PLSA", partial(_topics, kind="plsa")),
    System("graded-jplsa", ("B12",), "JPLSA", partial(_topics, kind="jplsa"), _JUDGED),
    System("graded-cplsa", ("B13",), "CPLSA", partial(_topics, kind="cplsa"), _JUDGED),
    System("graded-hdlr", ("B14",), "HDLR", _hdlr, _JUDGED),
    System("graded-diagonal", ("M02",), "SSI, diagonal", partial(_ssi, shape="diagonal")),
    System("graded-ssi", ("M06",), "SSI, UᵀV + I", partial(_ssi, shape="low_rank")),
    System("graded-ssi-pca", ("M06",), "SSI, UᵀV + I from PCA", partial(_ssi, shape="low_rank", start="pca")),
    System("graded-ssi-tied", ("M05",), "SSI, UᵀU + I", partial(_ssi, shape="tied")),
    System("graded-hash", ("M10", "B06"), "hash kernel + I", partial(_ssi, shape="hash")),
    System("graded-s2net", ("M21",), "S2Net", _s2net, _JUDGED),
    System("graded-s2net-squared", ("M22",), "S2Net, squared loss", partial(_s2net, loss="squared"), _JUDGED),
    System("graded-s2net-pull", ("M23",), "S2Net, regularised", partial(_s2net, pulls=PULLS), _JUDGED),
    System("graded-s2net-random", ("M24",), "S2Net, random start", partial(_s2net, start="random"), _JUDGED),
    System("graded-s2net-tfidf", ("M21",), "α S2Net + (1 - α) TF-IDF", _s2net_tfidf, _JUDGED),
    System(
        "graded-s2net-pseudo",
        ("M21",),
        "S2Net, pseudo-document queries",
        partial(_s2net, query_view=PSEUDO),
        _JUDGED | {PSEUDO},
    ),
    System("graded-pointwise-svm", ("B22", "B23"), "pointwise SVM on features", _pointwise, _JUDGED | _MACHINES),
    System("graded-ranking-svm", ("B23", "B24"), "ranking SVM on features", _pairwise, _MACHINES),
    System(
        "graded-rsvm-ir", ("B23", "B25"), "RSVM-IR on features", partial(_pairwise, weighted=True), _JUDGED | _MACHINES
    ),
    System("graded-listnet", ("B23", "B26"), "ListNet on features", _listnet, _JUDGED),
    System(
        "graded-combination", ("B24",), "ranking SVM on features, BM25, LSI, SSI", _combination, _JUDGED | _MACHINES
    ),
)
BY_NAME = {system.name: system for system in SYSTEMS}
