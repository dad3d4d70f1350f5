"""Linear rankers on the course's features of query and document (B23): SVMs (B22, B24, B25) and ListNet (B26)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from papers.methods.lexical import JelinekMercer, fit_language_model
from papers.methods.rows import all_products, binary, check_counts, idf_of, pair_products, tfidf_rows
from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.errors import ConfigError, InputError, MissingExtra, ShapeMismatch, TrainingError
from reranker.evaluation import ndcg_gain
from reranker.models.scorers import Scorer
from reranker.text.rows import row_of, with_data


@dataclass(frozen=True, eq=False)
class CourseFeatures:
    """Nine features of a query and a document, both given as word counts.

    ====  =================================================  =================
    f     formula, t over the distinct words of the query    name
    ====  =================================================  =================
    f1    sum over t in both of log t^d                      log_tf
    f2    sum of log(1 + t^d / L)                            log_share
    f3    sum over t in both of log idf(t)                   log_idf
    f4    sum over t in both of log(|C| / t^c)               log_rarity
    f5    sum of log(1 + (t^d / L) idf(t))                   log_share_idf
    f6    sum of log(1 + (t^d / L) (|C| / t^c))              log_share_rarity
    f7    cosine of tf-idf rows                              cosine
    f8    PageRank of d                                      pagerank
    f9    log P(q|d), Jelinek-Mercer                         language_model
    ====  =================================================  =================

    t^d and t^c are counts of t in the document and in the collection, |C| is the collection's length in tokens, and L
    is the document's length |d| (with ``literal``: |C|, as printed on the slides). Words whose logarithm would be that
    of 0 are left out (idf(t) = 0 in f3: a word of every document; t^c = 0: a word outside of the collection).

    Documents have one more column than queries. It holds the PageRank, so that f8 stays with its document in every
    selection of rows. `with_pagerank` adds it.

    Raises
    ------
    ConfigError
        For a language model with lam = 0, whose scores are not finite.

    Source: COURSE, features for learning to rank; spec B23, A27.
    """

    idf: Float64
    """ln(N_docs / df) of each word, (D,) float64."""
    collection_counts: Float64
    """t^c, (D,) float64."""
    language_model: JelinekMercer
    """Language model of f9, with lam above 0."""
    literal: bool = False
    """Whether t^d is divided by |C| in f2, f5 and f6."""

    def __post_init__(self) -> None:
        if self.language_model.lam == 0.0:
            raise ConfigError("the language model has lam = 0 and scores of -inf: use a lam above 0 for features")

    def pairs(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> Float64:
        """Return the features of query r with document r, (n, 9) float64; documents have D + 1 columns."""
        queries, documents, prior = self._sides(q_counts, d_counts)
        words = binary(queries)
        columns = [pair_products(words, part) for part in self._word_parts(documents)]
        columns.append(pair_products(*(tfidf_rows(side, self.idf).astype(np.float64) for side in (queries, documents))))
        columns += [prior, self.language_model.score_pairs(queries, documents).astype(np.float64)]
        return np.column_stack(columns)

    def matrices(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> Iterator[Float64]:
        """Yield each feature of every query with every document, f1 to f9: (n_queries, n_documents) float64."""
        queries, documents, prior = self._sides(q_counts, d_counts)
        words = binary(queries)
        for part in self._word_parts(documents):
            yield all_products(words, part)
        yield all_products(*(tfidf_rows(side, self.idf).astype(np.float64) for side in (queries, documents)))
        yield np.repeat(prior[None, :], queries.shape[0], axis=0)
        yield self.language_model.score_matrix(queries, documents).astype(np.float64)

    def _word_parts(self, documents: sp.csr_matrix) -> Iterator[sp.csr_matrix]:
        """Yield the contribution of each word of a document to f1 .. f6, (n_documents, D) float64."""
        size = self.collection_counts.sum()
        words, tf = documents.indices, documents.data
        lengths = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        share = tf / (size if self.literal else lengths[row_of(documents)])
        idf, known = self.idf[words], self.collection_counts[words] > 0
        rarity = np.divide(size, self.collection_counts[words], out=np.ones(len(words)), where=known)
        yield with_data(documents, np.log(tf))
        yield with_data(documents, np.log1p(share))
        yield with_data(documents, np.log(idf, out=np.zeros(len(words)), where=idf > 0))
        yield with_data(documents, np.log(rarity))
        yield with_data(documents, np.log1p(share * idf))
        yield with_data(documents, np.log1p(np.where(known, share * rarity, 0.0)))

    def _sides(self, q_counts: sp.csr_matrix, d_counts: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix, Float64]:
        """Return query counts, document counts and PageRanks."""
        n_words = len(self.idf)
        if q_counts.shape[1] != n_words or d_counts.shape[1] != n_words + 1:
            raise ShapeMismatch(
                f"queries have {q_counts.shape[1]:,} columns and documents {d_counts.shape[1]:,}: features need "
                f"{n_words:,} words, and one more column for documents (add it with with_pagerank)"
            )
        documents = check_counts(d_counts[:, :n_words].tocsr(), "d_counts")
        prior: Float64 = d_counts[:, n_words].toarray().ravel().astype(np.float64)
        return check_counts(q_counts, "q_counts"), documents, prior


def fit_features(d_counts: sp.csr_matrix, lam: float = 0.5, literal: bool = False) -> CourseFeatures:
    """Return the features over a collection of count rows, (n_documents, D), without the column of PageRank.

    Raises
    ------
    TrainingError
        If the collection has no word.
    """
    counts = check_counts(d_counts, "d_counts")
    per_word = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    return CourseFeatures(idf_of(counts), per_word, fit_language_model(counts, lam), literal)


def with_pagerank(d_counts: sp.csr_matrix, ranks: Float64) -> sp.csr_matrix:
    """Return the documents' counts with their PageRanks in an additional column, (n_documents, D + 1) float64.

    Raises
    ------
    ShapeMismatch
        If the number of PageRanks is not the number of documents.
    """
    if ranks.shape != (d_counts.shape[0],):
        raise ShapeMismatch(f"{ranks.shape} PageRanks for {d_counts.shape[0]:,} documents: give one per document")
    rows: sp.csr_matrix = sp.hstack([d_counts.astype(np.float64), sp.csr_matrix(ranks[:, None])], format="csr")
    return rows


Pairs = tuple[Int64, Int64]
"""Better and worse row of each pair, (n_pairs,) int64."""


def preference_pairs(grades: Float64, queries: Int64) -> Pairs:
    """Return all pairs of rows of one query in which the first has the higher grade.

    ``grades`` and ``queries``, (n,), are those of the rows in any order. Pairs are ordered by query, then by the better
    and the worse row.

    Raises
    ------
    ShapeMismatch
        If the numbers of queries and grades differ.
    InputError
        If a grade is not finite.

    Source: spec B24; A26 (+1 when the first is preferred).
    """
    if grades.shape != queries.shape or grades.ndim != 1:
        raise ShapeMismatch(f"{grades.shape} grades and {queries.shape} queries: give one of each per row")
    if not np.isfinite(grades).all():
        raise InputError("a grade is NaN or infinite: grades must be comparable; leave unjudged documents out")
    none = np.empty(0, np.int64)
    better, worse = [none], [none]
    for rows in _groups(queries):
        first, second = np.nonzero(grades[rows][:, None] > grades[rows][None, :])
        better.append(rows[first])
        worse.append(rows[second])
    return np.concatenate(better), np.concatenate(worse)


def svm_pair_weights(pairs: Pairs, grades: Float64, queries: Int64) -> Float64:
    """Return tau * mu of each pair, (n_pairs,) float64.

    mu of a query is the largest number of pairs of any query divided by the query's own number, so that all queries
    have the same weight. tau of two grades a > b is the average loss of NDCG@1, over the queries with both grades, if a
    document of grade a and one of grade b are exchanged in the ideal ranking. Only the first document counts. If a is
    the query's highest grade and m documents have it, the exchanged one is first with probability 1/m, and the loss is
    (1 - G(b) / G(a)) / m with the gain G(g) = 2**g - 1. If a is not the highest grade, the loss is 0.

    Raises
    ------
    InputError
        If a grade is below 0, so that its gain is negative.

    Source: spec B25 (the values are not printed; tau and mu follow the common reading). The average over draws is
    computed exactly.
    """
    if grades.size and grades.min() < 0:
        raise InputError(f"grade {grades.min():g} is below 0: gains 2**grade - 1 start at grade 0")
    tau: dict[tuple[float, float], list[float]] = {}
    for rows in _groups(queries):
        held, times = np.unique(grades[rows], return_counts=True)
        for high in range(1, len(held)):
            for low in range(high):
                best = high == len(held) - 1
                loss = (1.0 - ndcg_gain(held[low]) / ndcg_gain(held[high])) / times[high] if best else 0.0
                tau.setdefault((float(held[high]), float(held[low])), []).append(loss)
    mean = {grades_: float(np.mean(losses)) for grades_, losses in tau.items()}
    grades_of_pairs = zip(*(grades[rows].tolist() for rows in pairs), strict=True)
    by_type = np.array([mean[grades_] for grades_ in grades_of_pairs], dtype=np.float64)
    _, query, n_pairs = np.unique(queries[pairs[0]], return_inverse=True, return_counts=True)
    mu = n_pairs.max(initial=0) / n_pairs[query]
    return np.asarray(by_type * mu, dtype=np.float64)


def _groups(queries: Int64) -> list[Int64]:
    """Return the rows of each query, ascending; queries are ascending."""
    order = np.argsort(queries, kind="stable")
    _, starts = np.unique(queries[order], return_index=True)
    return [part for part in np.split(order, starts[1:]) if len(part)]


_MAX_ITERATIONS = 10_000


@dataclass(frozen=True, eq=False)
class LinearRanker:
    """Score w.((x - mean) / scale) + b of feature vectors x."""

    weights: Float64
    mean: Float64
    scale: Float64
    """w; mean and standard deviation of each feature in training (1 for a constant feature); (n_features,) float64."""
    bias: float = 0.0
    """b; 0 for pairwise SVMs, because it cannot change a ranking."""

    def scores(self, features: Float64) -> Float64:
        """Return the score of each row of features, (n,) float64; larger is better."""
        return np.asarray((features - self.mean) / self.scale @ self.weights + self.bias, dtype=np.float64)

    def matrix(self, features: Iterable[Float64], shape: tuple[int, int]) -> Float32:
        """Return the scores of queries with documents, of the given shape, float32; each feature is such a matrix."""
        total = np.full(shape, self.bias)
        for weight, mean, feature in zip(self.weights / self.scale, self.mean, features, strict=True):
            total += weight * (feature - mean)
        return total.astype(np.float32)


@dataclass(frozen=True, eq=False)
class FeatureSum:
    """Score w.((x(q, d) - mean) / scale) + b over the course's features and the scores of other rankers.

    Queries are (n, D) word counts. Documents are (n, D + 1) with their PageRank in the last column, or (n, D) without
    it; f8 is then the same for all.
    """

    features: CourseFeatures
    ranker: LinearRanker
    """Weights of the nine features, followed by those of the other rankers."""
    parts: tuple[tuple[Scorer, bool], ...] = ()
    """Other rankers, each with whether it takes counts (True) or tf-idf rows."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the sum for every query and document, (n_queries, n_documents) float32."""

        def matrices() -> Iterator[Float64]:
            yield from self.features.matrices(q_rows, _with_prior(self.features, d_rows))
            for scorer, *sides in _part_rows(self.features, self.parts, q_rows, d_rows):
                yield scorer.score_matrix(*sides).astype(np.float64)

        return self.ranker.matrix(matrices(), (q_rows.shape[0], d_rows.shape[0]))

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the sum for query r and document r, (n,) float32."""
        return self.ranker.scores(pair_features(self.features, self.parts, q_rows, d_rows)).astype(np.float32)


def pair_features(
    features: CourseFeatures, parts: tuple[tuple[Scorer, bool], ...], q_counts: sp.csr_matrix, d_counts: sp.csr_matrix
) -> Float64:
    """Return features and scores of other rankers for query r with document r, (n, 9 + parts) float64."""
    columns = [features.pairs(q_counts, _with_prior(features, d_counts))]
    for scorer, *sides in _part_rows(features, parts, q_counts, d_counts):
        columns.append(scorer.score_pairs(*sides).astype(np.float64)[:, None])
    return np.hstack(columns)


def _with_prior(features: CourseFeatures, d_counts: sp.csr_matrix) -> sp.csr_matrix:
    """Return the documents with a column of PageRanks, which is 0 if they have none."""
    has_prior = d_counts.shape[1] > len(features.idf)
    return d_counts if has_prior else with_pagerank(d_counts, np.zeros(d_counts.shape[0]))


def _part_rows(
    features: CourseFeatures, parts: tuple[tuple[Scorer, bool], ...], q_counts: sp.csr_matrix, d_counts: sp.csr_matrix
) -> Iterator[tuple[Any, sp.csr_matrix, sp.csr_matrix]]:
    """Yield each other ranker with its input rows over D words: counts, or their tf-idf rows."""
    for scorer, by_counts in parts:
        if by_counts:
            yield scorer, q_counts, d_counts
        else:
            yield scorer, tfidf_rows(q_counts, features.idf), tfidf_rows(d_counts, features.idf)


def fit_pointwise_svm(
    features: Float64, relevant: Bool, *, rng: np.random.Generator, C: float = 1.0, balanced: bool = False
) -> LinearRanker:
    """Return the SVM that separates relevant pairs from others; its real-valued output is the score.

    min 1/2 w.w + C sum_i xi_i with y_i (w.x_i + b) >= 1 - xi_i, xi_i >= 0, y_i = +1 for relevant and -1 for not;
    scikit-learn's ``LinearSVC`` (liblinear) on standardised features. liblinear also penalises b, min
    1/2 (w.w + b**2) + ..., which hardly matters with more than a few pairs. It stops after 10,000 iterations, with a
    warning of scikit-learn; it converges faster with a smaller C.

    If few pairs are relevant and the classes overlap, it is cheapest to call everything irrelevant: w is then almost 0,
    and the ranking is meaningless. ``balanced`` is for such data.

    Parameters
    ----------
    features, relevant : (n, n_features) float64, (n,) bool
    rng : Generator
        Draws the order in which liblinear visits the pairs; the optimum does not depend on it.
    C : float
        Weight of an error, above 0.
    balanced : bool
        Whether errors are weighted so that both classes count the same: C n / (2 n_class).

    Raises
    ------
    TrainingError
        If all pairs are relevant, or none is.
    InputError, ShapeMismatch
        If a feature is not finite, or the number of labels is not the number of rows.
    ConfigError
        If C is not above 0.
    MissingExtra
        If scikit-learn is not installed.

    Source: spec B22.
    """
    _check_features(features, C)
    if relevant.shape != (len(features),):
        raise ShapeMismatch(f"{relevant.shape} labels for {len(features):,} pairs: give one per pair")
    if relevant.all() or not relevant.any():
        raise TrainingError(
            f"{int(relevant.sum()):,} of {len(relevant):,} pairs are relevant: an SVM needs pairs of both classes"
        )
    mean, scale = _standard(features)
    labels = np.where(relevant, 1.0, -1.0)
    machine = _machine(C, rng, fit_intercept=True, class_weight="balanced" if balanced else None)
    machine.fit((features - mean) / scale, labels)
    return LinearRanker(machine.coef_[0].astype(np.float64), mean, scale, float(machine.intercept_[0]))


def fit_pair_svm(
    features: Float64, pairs: Pairs, weights: Float64, *, rng: np.random.Generator, C: float = 1.0
) -> LinearRanker:
    """Return the SVM trained on weighted differences of documents of the same query.

    min 1/2 w.w + C sum_l c_l xi_l with y_l w.(x_i - x_j) >= 1 - xi_l, where y = +1 if i is preferred, and the same pair
    in reverse has y = -1. With c_l = 1, an error counts the same at every rank, and a query by its number of pairs.
    RSVM-IR has c_l = tau_k(l) mu_q(l) of `svm_pair_weights`. Preferences may also come from clicks.

    ``pairs`` are the better and the worse rows of ``features``. ``weights``, (n_pairs,) float64, are the costs c_l of
    errors. Pairs of weight 0 are left out; every pair is learned in both directions.

    Raises
    ------
    TrainingError
        If no pair has a weight above 0.
    InputError, ShapeMismatch, ConfigError, MissingExtra
        As in `fit_pointwise_svm`.

    Source: spec B24, A26; B25.
    """
    _check_features(features, C)
    kept = weights > 0
    if not kept.any():
        raise TrainingError(
            f"{len(weights):,} pairs of unequal grades within a query, {int(kept.sum())} of them of weight above 0: "
            f"a ranking SVM needs a query with documents of two grades"
        )
    mean, scale = _standard(features)
    better, worse = (features[rows[kept]] for rows in pairs)
    difference = (better - worse) / scale
    weight = weights[kept]
    # Without b, a pair and its reverse have the same slack. Each pair is therefore given once, with twice its weight,
    # and every second one reversed, because the library needs both labels.
    if len(difference) == 1:
        difference, weight = np.repeat(difference, 2, axis=0), weight.repeat(2) / 2
    labels = np.where(np.arange(len(difference)) % 2, -1.0, 1.0)
    machine = _machine(C, rng, fit_intercept=False)
    machine.fit(difference * labels[:, None], labels, sample_weight=2 * weight)
    return LinearRanker(machine.coef_[0].astype(np.float64), mean, scale)


def fit_listnet(features: Float64, grades: Float64, queries: Int64, *, penalty: float = 0.01) -> LinearRanker:
    """Return the linear ranker trained by ListNet's loss on whole lists of documents.

    min over w of the mean over queries of cross entropy(P(grades), P(w.x)) + penalty / 2 w.w, where
    P(s)_j = exp(s_j) / sum_i exp(s_i) is the probability that document j is first. Features are standardised. The loss
    is convex; L-BFGS starts from w = 0. Queries whose grades are all equal teach nothing and are left out.

    Parameters
    ----------
    features : (n, n_features) float64
    grades, queries : (n,) float64, (n,) int64
        Grade and query of each row.
    penalty : float
        Weight of the norm of w, above 0.

    Raises
    ------
    TrainingError
        If no query has documents of two grades.
    InputError, ShapeMismatch, ConfigError
        As in `fit_pointwise_svm`, for the penalty instead of C.

    Source: Cao, Qin, Liu, Tsai, Li: Learning to rank, from pairwise approach to listwise approach (ICML 2007), top-one
    probabilities; spec B26.
    """
    from scipy.optimize import minimize

    _check_features(features, penalty, "penalty")
    if not grades.shape == queries.shape == (len(features),):
        raise ShapeMismatch(f"{grades.shape} grades and {queries.shape} queries for {len(features):,} rows of features")
    lists = [rows for rows in _groups(queries) if np.ptp(grades[rows]) > 0]
    if not lists:
        raise TrainingError("no query has documents of different grades: ListNet needs lists with an order")
    rows = np.concatenate(lists)
    sizes = np.array([len(one) for one in lists])
    starts = np.cumsum(sizes) - sizes
    mean, scale = _standard(features)
    x = (features[rows] - mean) / scale
    target, _ = _first_probability(grades[rows], starts, sizes)

    def loss(w: Float64) -> tuple[float, Float64]:
        scores = x @ w
        probability, log_sums = _first_probability(scores, starts, sizes)
        value = float(target @ (log_sums - scores)) / len(lists) + penalty / 2 * float(w @ w)
        return value, x.T @ (probability - target) / len(lists) + penalty * w

    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": _MAX_ITERATIONS})
    return LinearRanker(np.asarray(found.x, dtype=np.float64), mean, scale)


def _first_probability(scores: Float64, starts: Int64, sizes: Int64) -> tuple[Float64, Float64]:
    """Return exp(s_j) / sum_i exp(s_i) of each list, and the logarithm of the sum, (n,) float64 each."""
    highest = np.repeat(np.maximum.reduceat(scores, starts), sizes)
    shares = np.exp(scores - highest)
    sums = np.repeat(np.add.reduceat(shares, starts), sizes)
    return shares / sums, np.log(sums) + highest


def _machine(C: float, rng: np.random.Generator, **settings: Any) -> Any:
    """Return scikit-learn's linear SVM with the hinge loss of the sources."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise MissingExtra("scikit-learn", "papers") from error
    seed = int(rng.integers(2**31))
    return LinearSVC(C=C, loss="hinge", dual=True, tol=1e-4, max_iter=_MAX_ITERATIONS, random_state=seed, **settings)


def _standard(features: Float64) -> tuple[Float64, Float64]:
    """Return mean and standard deviation of each feature; 1 as deviation of a constant feature."""
    scale = features.std(axis=0)
    flat = scale <= 1e-12 * np.abs(features).max(axis=0)
    return features.mean(axis=0), np.where(flat, 1.0, scale)


def _check_features(features: Float64, weight: float, name: str = "C") -> None:
    """Raise an error for features, or a weight of errors or of the norm, that no ranker can use."""
    if features.ndim != 2 or not features.size:
        raise ShapeMismatch(f"features of shape {features.shape}: give one row per pair and one column per feature")
    if not np.isfinite(features).all():
        raise InputError("features hold NaN or infinity, which an SVM or ListNet cannot use; check the logarithms")
    if not (np.isfinite(weight) and weight > 0):
        raise ConfigError(f"{name} is {weight!r}: it must be finite and above 0")
