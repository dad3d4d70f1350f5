"""The papers' plain SGD: one random tuple per step, constant rate, early stopping on validation (spec 2.1 to 2.5).

`PlainShape` defines the model and `PlainData` the training data. A sampler draws the tuples (q, d+, d-), and
`fit_plain` trains the model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from papers import plain_kernels
from papers.methods.product_sgd import Combination, Triples, low_rank_steps
from papers.methods.word_pairs import (
    Bilinear,
    BlockPairs,
    DenseWordPairs,
    Diagonal,
    FeatureMap,
    FullPolynomial,
    HashKernel,
    Mapped,
    Polynomial,
    QueryPolynomial,
    SeparateCubic,
    kernel_rows,
)
from papers.plain_kernels import PRIME
from reranker.arrays import Bool, Float32, Float64, Int64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.kernels.rows import Rows
from reranker.models.scorers import Scorer
from reranker.training.problem import cut_to_keywords, two_rows

SHAPES = {
    "diagonal": "M02, W = diag(w), from 1",
    "full": "M03, a weight for each pair of words, from the identity: the margin ranking perceptron B05",
    "zero_diagonal": "M04, the same with W_ii = 0, from 0",
    "blocks": "M13, one W for all blocks of columns, from the identity: correlated feature hashing as printed",
    "hash": "M09, pairs share H weights, from 0; with an identity M10 trained jointly",
    "tied": "M05, U^T U + I",
    "low_rank": "M06, U^T V + I; M08 with n_words",
    "no_identity": "M07, U^T V; M26 with two vocabularies",
    "cubic": "M18, degree 3, shared U and V",
    "cubic_separate": "M19, degree 3, U2 and V2 of its own for degree 2",
    "polynomial": "M20, any degree, shared",
    "query_polynomial": "any degree, shared, with products of query words instead of document words",
    "full_cubic": "M17, a weight for each word with each pair of words, for at most 200 words",
}
"""Names for `PlainShape`, with descriptions."""

_WITHOUT_IDENTITY = ("hash", "no_identity")
_ONE_VOCABULARY = ("diagonal", "zero_diagonal", "blocks", "tied")
LOW_RANK = ("tied", "low_rank", "no_identity", "cubic", "cubic_separate", "polynomial", "query_polynomial")
"""Models made of embeddings."""


@dataclass(frozen=True, slots=True)
class PlainShape:
    """Definition of the model to train.

    Raises
    ------
    ConfigError
        If a value is invalid.
    """

    name: str
    """Key of `SHAPES`."""
    identity: float | None = None
    """a, the weight of q.d in the score; None: 1, or 0 for "hash" and "no_identity".

    It is ignored by "diagonal", "full", "zero_diagonal", "blocks" and "full_cubic", whose weights include exact
    matches.
    """
    n_words: int | None = None
    """Number of the most frequent words that have embeddings (M08); None: all words."""
    n_slots: int = 1_000_000
    """H of "hash": the number of weights."""
    prime: int = PRIME
    """P of "hash"."""
    degree: int = 2
    """k of "polynomial" and "query_polynomial", at least 2."""
    n_blocks: int = 1
    """Number of blocks of columns of "blocks"."""

    def __post_init__(self) -> None:
        if self.name not in SHAPES:
            raise ConfigError(f"the shape {self.name!r} does not exist; choose one of {', '.join(SHAPES)}")
        if self.n_words is not None and (self.name not in LOW_RANK or self.n_words < 0):
            raise ConfigError(
                f"n_words {self.n_words} does not fit the shape {self.name}: give 0 or more to {', '.join(LOW_RANK)}"
            )
        if min(self.n_slots, self.n_blocks) < 1 or self.degree < 2 or not 0 < self.prime < 2**32:
            raise ConfigError(
                f"n_slots {self.n_slots}, n_blocks {self.n_blocks}, prime {self.prime}, degree {self.degree} are "
                f"invalid: slots and blocks must be at least 1, the prime below 2**32 and the degree at least 2"
            )

    @property
    def exact_weight(self) -> float:
        """The weight of q.d in the score."""
        default = 0.0 if self.name in _WITHOUT_IDENTITY else 1.0
        return default if self.identity is None else self.identity

    def check_widths(self, query: int, document: int) -> None:
        """Check that a model that matches words with themselves has one vocabulary.

        Raises
        ------
        ConfigError
            If the widths differ and the shape has a diagonal or an identity.
        """
        joined = self.name in _ONE_VOCABULARY or (self.name in (*LOW_RANK, "hash") and self.exact_weight != 0)
        if joined and query != document:
            raise ConfigError(
                f"the shape {self.name} matches words with themselves, but queries have {query} words and documents "
                f"{document}: use one vocabulary, or no_identity"
            )


_REDRAWS = 64


@dataclass(frozen=True, eq=False)
class PlainData:
    """Texts, and the documents that are relevant to each query.

    Raises
    ------
    ShapeMismatch
        If the sizes do not fit each other.
    ConfigError
        If ``keywords`` is below 1.
    """

    q_rows: sp.csr_matrix
    """Queries, (n_queries, D_q) float32, with sorted indices."""
    d_rows: sp.csr_matrix
    """Documents, (n_documents, D_d) float32."""
    relevant: sp.csr_matrix
    """Training links: not 0 if the document is relevant to the query, (n_queries, n_documents)."""
    own: Int64
    """Row of the query's own text among the documents, which is never drawn; -1 for none; (n_queries,) int64."""
    known: sp.csr_matrix | None = None
    """Further documents that are never drawn as negatives: validation and test links (spec A17)."""
    keywords: int | None = None
    """Number of words that each query is reduced to at each step, drawn without replacement, of unit length (A21)."""
    feature_map: FeatureMap | None = None
    """Map applied to query and document rows before the model; None for none."""

    def __post_init__(self) -> None:
        shape = (self.q_rows.shape[0], self.d_rows.shape[0])
        for name, matrix in (("relevant", self.relevant), ("known", self.known)):
            if matrix is not None and matrix.shape != shape:
                raise ShapeMismatch(
                    f"{name} has the shape {matrix.shape} for {shape[0]} queries and {shape[1]} documents: give one "
                    f"row per query and one column per document"
                )
        if self.own.shape != shape[:1] or self.own.max(initial=-1) >= shape[1]:
            raise ShapeMismatch(
                f"own texts of shape {self.own.shape} up to {self.own.max(initial=-1)} do not fit {shape[0]} queries "
                f"and {shape[1]} documents: give each query the row of a document, or -1"
            )
        if self.keywords is not None and self.keywords < 1:
            raise ConfigError(f"queries cannot have {self.keywords} keywords; give 1 or more, or None")

    def mapped(self, feature_map: FeatureMap) -> PlainData:
        """Return the same data for a model over mapped rows."""
        return replace(self, feature_map=feature_map)

    def features(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return rows of queries or documents after the feature map."""
        return rows if self.feature_map is None else self.feature_map.rows(rows)


class TripleSampler:
    """Draws tuples (query, relevant document, other document).

    The negative is uniform over the documents that are neither related to the query nor its own text. Links of queries
    without such a document are never drawn.

    Raises
    ------
    TrainingError
        If no tuple can be drawn.

    Source: spec R09, A17.
    """

    def __init__(self, data: PlainData) -> None:
        self._n_documents = data.d_rows.shape[0]
        links = sp.coo_matrix(data.relevant)
        excluded = [_keys(data.relevant, self._n_documents)]
        if data.known is not None:
            excluded.append(_keys(data.known, self._n_documents))
        has_own = np.flatnonzero(data.own >= 0)
        excluded.append(has_own * np.int64(self._n_documents) + data.own[has_own])
        self._excluded: Int64 = np.unique(np.concatenate(excluded))
        taken = np.bincount(self._excluded // max(self._n_documents, 1), minlength=data.q_rows.shape[0])
        usable = (links.data != 0) & (taken[links.row] < self._n_documents)
        order = np.lexsort((links.col[usable], links.row[usable]))
        self._query: Int64 = links.row[usable][order].astype(np.int64)
        self._document: Int64 = links.col[usable][order].astype(np.int64)
        if not len(self._query):
            raise TrainingError(
                f"no tuple can be drawn from {links.nnz} links: a query needs a relevant document and another one that "
                f"is neither relevant nor its own text"
            )

    @property
    def n_links(self) -> int:
        """Number of links that tuples are drawn from."""
        return len(self._query)

    def draw(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n tuples, uniform over links."""
        links = rng.integers(self.n_links, size=n)
        query = self._query[links]
        negative = rng.integers(self._n_documents, size=len(query))
        again = np.flatnonzero(self._is_excluded(query, negative))
        for _ in range(_REDRAWS):
            if not len(again):
                break
            negative[again] = rng.integers(self._n_documents, size=len(again))
            again = again[self._is_excluded(query[again], negative[again])]
        for place in again:  # nearly every document is related to the query: draw from a list of the others
            first = int(query[place]) * self._n_documents
            low, high = np.searchsorted(self._excluded, [first, first + self._n_documents])
            left = np.setdiff1d(np.arange(self._n_documents), self._excluded[low:high] - first, assume_unique=True)
            negative[place] = rng.choice(left)
        return Triples(query, self._document[links], negative)

    def _is_excluded(self, query: Int64, document: Int64) -> Bool:
        keys = query * np.int64(self._n_documents) + document
        places = np.minimum(np.searchsorted(self._excluded, keys), len(self._excluded) - 1)
        return np.asarray(self._excluded[places] == keys)


@dataclass(frozen=True, eq=False)
class PreferenceSampler:
    """Draws from given tuples, in which a document was judged or clicked in preference to another for the same query.

    Raises
    ------
    TrainingError
        If there is no pair, or none with a weight above 0.
    ShapeMismatch
        If the number of weights is not the number of pairs.

    Source: spec 2.1 (tuples), 2.7 and T14 (preferences within a query).
    """

    pairs: Triples
    """Query, better and worse document of each pair."""
    weights: Float64 | None = None
    """Weights proportional to the probability of each pair, (n_pairs,) float64; uniform if not given."""

    def __post_init__(self) -> None:
        n_pairs = len(self.pairs.query)
        if self.weights is not None and self.weights.shape != (n_pairs,):
            raise ShapeMismatch(f"{self.weights.shape} weights for {n_pairs:,} pairs: give one per pair")
        total = float(n_pairs) if self.weights is None else float(self.weights.sum())
        if not (total > 0 and np.isfinite(total)) or (self.weights is not None and self.weights.min() < 0):
            raise TrainingError(
                f"{n_pairs:,} pairs have a total weight of {total:g}: training needs a pair with a finite weight "
                f"above 0, and none below 0"
            )

    def draw(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n random tuples."""
        if self.weights is None:
            chosen = rng.integers(len(self.pairs.query), size=n)
        else:
            upto = np.cumsum(self.weights)
            # "right": a draw on the border of two pairs selects the second, so a pair of weight 0 is never drawn.
            chosen = np.searchsorted(upto, rng.random(n) * upto[-1], side="right")
            chosen = np.minimum(chosen, np.flatnonzero(self.weights)[-1])  # if the product was rounded up
        return Triples(*(part[chosen] for part in self.pairs))


def _keys(matrix: sp.csr_matrix, n_documents: int) -> Int64:
    """Return query * n_documents + document for the values that are not 0."""
    query, document = matrix.nonzero()
    return np.asarray(query.astype(np.int64) * np.int64(n_documents) + document)


@dataclass(frozen=True, eq=False)
class LearnedTables:
    """Parameters that training changes in place."""

    tables: tuple[Float32, ...]
    """The parameters; the tied model has the same table twice."""
    kernel: Callable[..., Float64]
    """``kernel(*tables, queries, documents, triples, rate, *settings)`` runs steps in place.

    It returns (number of active steps, sum of hinge losses).
    """
    settings: tuple[Any, ...]
    """Further arguments of the kernel."""
    scorer_of: Callable[..., Scorer]
    """Function from the tables to a scorer, which may share their memory."""


def start_learner(
    shape: PlainShape,
    widths: tuple[int, int],
    n_dims: int,
    init_std: float,
    rng: np.random.Generator,
    start: Scorer | None = None,
) -> LearnedTables:
    """Return the initial parameters: W = I, 0 or 1 according to `SHAPES`, embeddings ~ N(0, init_std).

    Parameters
    ----------
    widths : tuple of int
        D_q and D_d.
    start : Scorer, optional
        Parameters to start from, which are copied: a scorer of the same shape. A `Bilinear` may also give U and the
        first factor of shapes with more factors; the other factors are drawn.

    Raises
    ------
    ConfigError
        If ``start`` is of another kind, ``n_dims`` is below 1, or the vocabularies do not fit the shape.
    ShapeMismatch
        If ``start`` has other words or dimensions.
    """
    shape.check_widths(*widths)
    if shape.name in LOW_RANK:
        if n_dims < 1 or not init_std >= 0:
            raise ConfigError(
                f"embeddings of {n_dims} dimensions with deviation {init_std} are not possible: give at least 1 "
                f"dimension and a deviation of at least 0"
            )
        build = _query_polynomial if shape.name == "query_polynomial" else _low_rank
        return build(shape, widths, n_dims, init_std, rng, start)
    identity = shape.exact_weight
    if shape.name == "diagonal":
        w = _copied(start, Diagonal, "w", np.ones(widths[0], np.float32))
        return LearnedTables((w,), plain_kernels.diagonal_steps, (), Diagonal)
    if shape.name == "hash":
        w = _copied(start, HashKernel, "w", np.zeros(shape.n_slots, np.float32))
        hashed = partial(HashKernel, prime=shape.prime, identity=identity)
        return LearnedTables((w,), plain_kernels.hash_steps, (shape.prime, identity), hashed)
    if shape.name == "full_cubic":
        FullPolynomial(np.zeros(widths, np.float32))  # raises for too large a vocabulary before W3 is allocated
        W2 = _copied(start, FullPolynomial, "W2", np.eye(*widths, dtype=np.float32))
        W3 = np.zeros((*widths, widths[1]), np.float32)
        return LearnedTables((W2, W3), full_polynomial_steps, (), FullPolynomial)
    if shape.name == "blocks":
        W = _copied(start, BlockPairs, "W", np.eye(widths[0] // shape.n_blocks, dtype=np.float32))
        return LearnedTables((W,), plain_kernels.block_steps, (), BlockPairs)
    keep_diagonal = shape.name == "full"
    W = np.eye(*widths, dtype=np.float32) if keep_diagonal else np.zeros(widths, np.float32)
    W = _copied(start, DenseWordPairs, "W", W)
    return LearnedTables((W,), plain_kernels.dense_steps, (keep_diagonal,), DenseWordPairs)


def _low_rank(
    shape: PlainShape,
    widths: tuple[int, int],
    n_dims: int,
    init_std: float,
    rng: np.random.Generator,
    start: Scorer | None,
) -> LearnedTables:
    """Return the initial embeddings."""
    n_factors = {"cubic": 2, "polynomial": shape.degree - 1}.get(shape.name, 1)
    combination = Combination(n_factors, shape.name == "cubic_separate")
    n_query, n_document = (width if shape.n_words is None else min(width, shape.n_words) for width in widths)
    query_share, document_share = (2, 3) if combination.separate else (1, n_factors)  # columns per dimension
    U = T = _normal(rng, n_query, query_share * n_dims, init_std)
    if shape.name == "tied":
        if start is not None:
            U = T = _copied(start, Bilinear, "U", U)
    else:
        T = _normal(rng, n_document, document_share * n_dims, init_std)
        if start is not None:
            _copy_tables(start, combination, U, T)

    def scorer(U: Float32, T: Float32) -> Scorer:
        if combination.separate:
            (U1, U2), (V1, V2, Y) = _split(U, 2), _split(T, 3)
            return SeparateCubic(U1, V1, Y, U2, V2, shape.exact_weight)
        if n_factors == 1:
            return Bilinear(U, T, shape.exact_weight)
        return Polynomial(U, _split(T, n_factors), shape.exact_weight)

    return LearnedTables((U, T), low_rank_steps, (combination, shape.exact_weight), scorer)


def _query_polynomial(
    shape: PlainShape,
    widths: tuple[int, int],
    n_dims: int,
    init_std: float,
    rng: np.random.Generator,
    start: Scorer | None,
) -> LearnedTables:
    """Return the initial embeddings of a model with products of query words: T of the query, V of the document."""
    n_factors = shape.degree - 1
    n_query, n_document = (width if shape.n_words is None else min(width, shape.n_words) for width in widths)
    T = _normal(rng, n_query, n_factors * n_dims, init_std)
    V = _normal(rng, n_document, n_dims, init_std)
    if start is not None:
        V = _copied(start, QueryPolynomial, "V", V)
        given = np.hstack(cast(QueryPolynomial, start).factors)
        if given.shape != T.shape:
            raise ShapeMismatch(f"factors of shape {given.shape} do not fit {T.shape}: use the same degree and words")
        T[:] = given

    def scorer(T: Float32, V: Float32) -> Scorer:
        return QueryPolynomial(_split(T, n_factors), V, shape.exact_weight)

    settings = (n_factors, shape.exact_weight)
    return LearnedTables((T, V), plain_kernels.query_polynomial_steps, settings, scorer)


def _copy_tables(start: Scorer, combination: Combination, U: Float32, T: Float32) -> None:
    """Copy the embeddings of a scorer into U and the first columns of T."""
    if isinstance(start, Bilinear) and not combination.separate:
        given_U, given_T = start.U, start.V
    elif isinstance(start, Polynomial) and not combination.separate:
        given_U, given_T = start.U, np.hstack(start.factors)
    elif isinstance(start, SeparateCubic) and combination.separate:
        given_U, given_T = np.hstack([start.U, start.U2]), np.hstack([start.V, start.V2, start.Y])
    else:
        raise ConfigError(f"a {type(start).__name__} cannot start this shape; give a scorer of the same shape, or none")
    if given_U.shape != U.shape or len(given_T) != len(T) or given_T.shape[1] > T.shape[1]:
        raise ShapeMismatch(
            f"a start of shapes {given_U.shape} and {given_T.shape} does not fit embeddings of {U.shape} and "
            f"{T.shape}: use the same words and dimensions"
        )
    U[:] = given_U
    T[:, : given_T.shape[1]] = given_T


def _copied(start: Scorer | None, kind: type, name: str, default: Float32) -> Float32:
    """Return a copy of the start's parameters, or the default."""
    if start is None:
        return default
    if not isinstance(start, kind):
        raise ConfigError(
            f"a {type(start).__name__} cannot start a {kind.__name__}; give one of the same kind, or none"
        )
    given: Float32 = getattr(start, name)
    if given.shape != default.shape:
        raise ShapeMismatch(
            f"a start of shape {given.shape} does not fit parameters of shape {default.shape}; give another, or none"
        )
    return given.copy()


def _normal(rng: np.random.Generator, n_rows: int, n_columns: int, init_std: float) -> Float32:
    return rng.standard_normal((n_rows, n_columns), dtype=np.float32) * np.float32(init_std)


def _split(table: Float32, n: int) -> tuple[Float32, ...]:
    return tuple(np.ascontiguousarray(part) for part in np.split(table, n, axis=1))


_CHUNK = 20_000
Validate = Callable[[Scorer], float]


def fit_plain(  # noqa: PLR0913 - one keyword per setting of the papers
    shape: str | PlainShape,
    data: PlainData,
    *,
    n_dims: int = 100,
    rate: float = 0.1,
    n_steps: int = 1_000_000,
    init_std: float = 1.0,
    rng: np.random.Generator,
    validate: Validate | None = None,
    every: int = 100_000,
    patience: int = 5,
    progress: Callable[[int], None] | None = None,
    start: Scorer | None = None,
    sampler: TripleSampler | PreferenceSampler | None = None,
) -> Scorer:
    """Return the scorer, over the rows of ``data``, trained by plain SGD on max(0, 1 - f(q, d+) + f(q, d-)).

    Each step draws a tuple (by default a uniform link, and a uniform negative among documents not related to the
    query). If its hinge loss is positive, all parameters move by ``rate`` times the gradient at their old values.
    There is no decay.

    Parameters
    ----------
    shape : str or PlainShape
        The model: a name of `SHAPES`, or a shape with settings.
    n_dims, n_steps : int
        N of the embeddings, and the largest number of steps.
    rate : float
        Learning rate, above 0, constant.
    init_std : float
        Standard deviation of the initial embeddings: 1 in the papers. With 1 / sqrt(N) or less, q.d still matters at
        the start (A10).
    rng : Generator
        Draws the start and the tuples; equal generator states give equal scorers.
    validate : callable, optional
        Returns a value of a scorer to minimize (rank loss). With it the best scorer seen is returned, including the
        start; without it the last one.
    every, patience : int
        Number of steps between validations (or reports), and of validations without a new best before training stops.
    progress : callable, optional
        Called after each ``every`` steps with the total number of steps.
    start : Scorer, optional
        Parameters to start from, see `start_learner`.
    sampler : Sampler, optional
        Draws the tuples, for instance a `PreferenceSampler` of judged or clicked pairs; default: links of ``data``.

    Raises
    ------
    ConfigError
        If a setting is invalid.
    TrainingError
        If no tuple can be drawn, or the parameters diverge.

    Source: spec 2.1 to 2.5.
    """
    if not (rate > 0 and math.isfinite(rate)) or n_steps < 1 or every < 1 or patience < 1:
        raise ConfigError(
            f"rate {rate}, n_steps {n_steps}, every {every}, patience {patience} are invalid: all must be above 0"
        )
    shape = PlainShape(shape) if isinstance(shape, str) else shape
    widths = data.features(data.q_rows[:0]).shape[1], data.features(data.d_rows[:0]).shape[1]
    learner = start_learner(shape, widths, n_dims, init_std, rng, start)
    run = _Run(data, learner, rate, rng, sampler or TripleSampler(data))
    best, least, waited = None, math.inf, 0
    while True:
        if validate is not None:
            current = run.scorer()
            value = float(validate(run.over_rows(current)))
            waited += 1
            if best is None or value < least:
                best, least, waited = copy.deepcopy(current), value, 0
        if progress is not None and run.step:
            progress(run.step)
        if run.step >= n_steps or waited >= patience:
            return run.over_rows(run.scorer() if best is None else best)
        run.advance(min(every, n_steps - run.step))


@dataclass(eq=False)
class _Run:
    """State of one training."""

    data: PlainData
    learner: LearnedTables
    rate: float
    rng: np.random.Generator
    sampler: TripleSampler | PreferenceSampler
    step: int = 0

    def __post_init__(self) -> None:
        data = self.data
        self._documents = kernel_rows(data.features(data.d_rows))
        self._queries = None if data.keywords is not None else kernel_rows(data.features(data.q_rows))

    def advance(self, n_steps: int) -> None:
        """Run steps."""
        stats = np.zeros(2)
        for start in range(0, n_steps, _CHUNK):
            triples = self.sampler.draw(min(_CHUNK, n_steps - start), self.rng)
            queries = self._queries
            if queries is None:
                queries, triples = self._cut(triples)
            stats += self.learner.kernel(
                *self.learner.tables, queries, self._documents, triples, self.rate, *self.learner.settings
            )
        self.step += n_steps
        if not np.isfinite(stats).all():
            raise TrainingError(
                f"training diverged within {self.step:,} steps at the rate {self.rate}: lower it, or init_std"
            )

    def scorer(self) -> Scorer:
        """Return the scorer of the current parameters, sharing their memory."""
        try:
            return self.learner.scorer_of(*self.learner.tables)
        except InputError as error:
            raise TrainingError(f"training diverged at the rate {self.rate}: give a smaller one ({error})") from error

    def over_rows(self, scorer: Scorer) -> Scorer:
        """Return a scorer over the rows of the data, before the feature map."""
        return scorer if self.data.feature_map is None else Mapped(scorer, self.data.feature_map)

    def _cut(self, triples: Triples) -> tuple[Rows, Triples]:
        """Return the tuples' queries, each newly reduced to keywords, and the tuples with their new row numbers."""
        rows = cut_to_keywords(two_rows(self.data.q_rows[triples.query], None), self.data.keywords or 1, self.rng)
        numbered = triples._replace(query=np.arange(len(triples.query)))
        return kernel_rows(self.data.features(rows.learned)), numbered


def full_polynomial_steps(
    W2: Float32, W3: Float32, queries: Rows, documents: Rows, triples: Triples, rate: float
) -> Float64:
    """Run steps on f(q, d) = sum_ijk W3_ijk q_i d_j d_k + q^T W2 d; return (active steps, sum of hinges) (spec M17).

    W2, (D_q, D), and W3, (D_q, D, D), float32, change in place: W2 += rate q delta^T, and
    W3_ijk += rate q_i (d+_j d+_k - d-_j d-_k). For small vocabularies; not compiled.
    """
    stats = np.zeros(2)
    q_dense, d_dense = (
        sp.csr_matrix(
            (rows.data.astype(np.float64), rows.indices, rows.indptr), (len(rows.indptr) - 1, width)
        ).toarray()
        for rows, width in zip((queries, documents), W2.shape, strict=True)
    )
    for query, positive, negative in zip(*triples, strict=True):
        q, better, worse = q_dense[query], d_dense[positive], d_dense[negative]
        delta, pairs = better - worse, np.outer(better, better) - np.outer(worse, worse)
        hinge = 1.0 - float(q @ W2 @ delta) - float(q @ np.tensordot(W3, pairs, 2))
        if not hinge <= 0:  # a NaN must reach the sum
            stats += (1.0, hinge)
            W2 += (rate * np.outer(q, delta)).astype(np.float32)
            W3 += (rate * np.multiply.outer(q, pairs)).astype(np.float32)
    return stats
