"""Support vector machines on the course's features, and on features and the scores of other rankers together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.features import CourseFeatures, fit_features, with_pagerank
from papers.graded_learned import fit_graded_ssi
from papers.graded_lexical import best_of, fit_bm25, fit_lsi
from papers.graded_training import judged_pairs
from papers.preference_pairs import PreferencePairs, pair_weights, preference_pairs
from papers.ranking_svm import LinearRanker, fit_pair_svm, fit_pointwise_svm
from papers.study import Study
from papers.study_rows import tfidf_rows
from papers.system import Fitted, Job, System
from reranker.errors import TrainingError
from reranker.models.base import Scorer, Scores

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


_JUDGED = frozenset({"judged", "scikit-learn"})

SYSTEMS: tuple[System, ...] = (
    System("graded-pointwise-svm", ("B22", "B23"), "pointwise SVM on features", fit_pointwise, _JUDGED),
    System("graded-ranking-svm", ("B23", "B24"), "ranking SVM on features", fit_pairwise, frozenset({"scikit-learn"})),
    System("graded-rsvm-ir", ("B23", "B25"), "RSVM-IR on features", fit_weighted_pairwise, _JUDGED),
    System("graded-combination", ("B24",), "ranking SVM on features, BM25, LSI, SSI", fit_combination, _JUDGED),
)
