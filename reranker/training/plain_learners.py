"""The learners of the plain SGD: how each shape starts, steps and becomes a scorer (spec 2.2 to 2.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError, ShapeMismatch
from reranker.kernels import plain_sgd
from reranker.kernels.plain_sgd_reference import full_polynomial_steps
from reranker.kernels.plain_sgd_types import Combination, Triples
from reranker.kernels.sgd_types import Rows
from reranker.models.base import Scorer
from reranker.models.bilinear import Bilinear
from reranker.models.polynomial import FullPolynomial, Polynomial, SeparateCubic
from reranker.models.word_pairs import DenseWordPairs, Diagonal, HashKernel
from reranker.training.plain_shapes import LOW_RANK, PlainShape

Floats = npt.NDArray[np.float32]
Stats = npt.NDArray[np.float64]


class Learner(Protocol):
    """Parameters that steps change."""

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        """Make steps; return (active steps, sum of hinges)."""
        ...

    def scorer(self) -> Scorer:
        """Return the scorer of the parameters as they are; it may share their memory."""
        ...


@dataclass(frozen=True, eq=False)
class _DiagonalLearner:
    w: Floats

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        stats: Stats = plain_sgd.diagonal_steps(self.w, queries, documents, triples, rate)
        return stats

    def scorer(self) -> Scorer:
        return Diagonal(self.w)


@dataclass(frozen=True, eq=False)
class _DenseLearner:
    W: Floats
    keep_diagonal: bool

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        stats: Stats = plain_sgd.dense_steps(self.W, queries, documents, triples, rate, self.keep_diagonal)
        return stats

    def scorer(self) -> Scorer:
        return DenseWordPairs(self.W)


@dataclass(frozen=True, eq=False)
class _HashLearner:
    w: Floats
    prime: int
    identity: float

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        stats: Stats = plain_sgd.hash_steps(self.w, queries, documents, triples, rate, self.prime, self.identity)
        return stats

    def scorer(self) -> Scorer:
        return HashKernel(self.w, self.prime, self.identity)


@dataclass(frozen=True, eq=False)
class _FullCubicLearner:
    W2: Floats
    W3: Floats

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        return full_polynomial_steps(self.W2, self.W3, queries, documents, triples, rate)

    def scorer(self) -> Scorer:
        return FullPolynomial(self.W2, self.W3)


@dataclass(frozen=True, eq=False)
class _LowRankLearner:
    U: Floats
    T: Floats
    combination: Combination
    identity: float

    def steps(self, queries: Rows, documents: Rows, triples: Triples, rate: float) -> Stats:
        stats: Stats = plain_sgd.low_rank_steps(
            self.U, self.T, queries, documents, triples, rate, self.combination, self.identity
        )
        return stats

    def scorer(self) -> Scorer:
        if self.combination.separate:
            (U, U2), (V, V2, Y) = _split(self.U, 2), _split(self.T, 3)
            return SeparateCubic(U, V, Y, U2, V2, self.identity)
        if self.combination.n_factors == 1:
            return Bilinear(self.U, self.T, self.identity)
        return Polynomial(self.U, _split(self.T, self.combination.n_factors), self.identity)


def start_learner(
    shape: PlainShape,
    widths: tuple[int, int],
    n_dims: int,
    init_std: float,
    rng: np.random.Generator,
    start: Scorer | None = None,
) -> Learner:
    """Return a shape at its start: W = I, 0 or 1 as `SHAPES` says, embeddings ~ N(0, init_std).

    Parameters
    ----------
    shape : PlainShape
        What to learn.
    widths : tuple of int
        D_q and D_d.
    n_dims : int
        N of embeddings.
    init_std : float
        Standard deviation of their start.
    rng : Generator
        Draws them.
    start : Scorer, optional
        Parameters to start from, copied: a scorer of the same shape; a `Bilinear` gives U and the first factor of
        shapes with more of them, the others are drawn.

    Raises
    ------
    ConfigError
        If ``start`` is of another kind, N is below 1, or the vocabularies do not fit the shape.
    ShapeMismatch
        If ``start`` has other words or dimensions.
    """
    shape.check_widths(*widths)
    if shape.name in LOW_RANK:
        if n_dims < 1 or not init_std >= 0:
            raise ConfigError(f"{n_dims} dimensions from a deviation of {init_std} cannot be learned: give 1 or more")
        return _low_rank(shape, widths, n_dims, init_std, rng, start)
    if shape.name == "diagonal":
        return _DiagonalLearner(_copied(start, Diagonal, "w", np.ones(widths[0], np.float32)))
    if shape.name == "hash":
        w = _copied(start, HashKernel, "w", np.zeros(shape.n_slots, np.float32))
        return _HashLearner(w, shape.prime, shape.exact_weight)
    if shape.name == "full_cubic":
        FullPolynomial(np.zeros(widths, np.float32))  # refuses a vocabulary that is too large before W3 is made
        W2 = _copied(start, FullPolynomial, "W2", np.eye(*widths, dtype=np.float32))
        return _FullCubicLearner(W2, np.zeros((*widths, widths[1]), np.float32))
    keep = shape.name == "full"
    W = np.eye(*widths, dtype=np.float32) if keep else np.zeros(widths, np.float32)
    return _DenseLearner(_copied(start, DenseWordPairs, "W", W), keep)


def _low_rank(
    shape: PlainShape,
    widths: tuple[int, int],
    n_dims: int,
    init_std: float,
    rng: np.random.Generator,
    start: Scorer | None,
) -> _LowRankLearner:
    """Return embeddings at their start."""
    n_factors = {"cubic": 2, "polynomial": shape.degree - 1}.get(shape.name, 1)
    combination = Combination(n_factors, shape.name == "cubic_separate")
    n_query, n_document = (width if shape.n_words is None else min(width, shape.n_words) for width in widths)
    U = _normal(rng, n_query, combination.query_columns(n_dims), init_std)
    if shape.name == "tied":
        if start is not None:
            U = _copied(start, Bilinear, "U", U)
        return _LowRankLearner(U, U, combination, shape.exact_weight)
    T = _normal(rng, n_document, combination.document_columns(n_dims), init_std)
    if start is not None:
        given_U, given_T = _tables(start, combination)
        if given_U.shape != U.shape or len(given_T) != len(T) or given_T.shape[1] > T.shape[1]:
            raise ShapeMismatch(
                f"a start of shapes {given_U.shape} and {given_T.shape} does not fit embeddings of {U.shape} and "
                f"{T.shape}: use the same words and dimensions"
            )
        U[:] = given_U
        T[:, : given_T.shape[1]] = given_T
    return _LowRankLearner(U, T, combination, shape.exact_weight)


def _tables(start: Scorer, combination: Combination) -> tuple[Floats, Floats]:
    """Return U and the first columns of T that a scorer gives."""
    if isinstance(start, Bilinear) and not combination.separate:
        return start.U, start.V
    if isinstance(start, Polynomial) and not combination.separate:
        return start.U, np.hstack(start.factors)
    if isinstance(start, SeparateCubic) and combination.separate:
        return np.hstack([start.U, start.U2]), np.hstack([start.V, start.V2, start.Y])
    raise ConfigError(f"a {type(start).__name__} cannot start this shape; give a scorer of the same shape, or none")


def _copied(start: Scorer | None, kind: type, name: str, default: Floats) -> Floats:
    """Return a copy of the start's parameters, or the default."""
    if start is None:
        return default
    if not isinstance(start, kind):
        raise ConfigError(
            f"a {type(start).__name__} cannot start a {kind.__name__}; give one of the same kind, or none"
        )
    given: Floats = getattr(start, name)
    if given.shape != default.shape:
        raise ShapeMismatch(f"a start of shape {given.shape} does not fit parameters of {default.shape}; train anew")
    return given.copy()


def _normal(rng: np.random.Generator, n_rows: int, n_columns: int, init_std: float) -> Floats:
    return rng.standard_normal((n_rows, n_columns), dtype=np.float32) * np.float32(init_std)


def _split(table: Floats, n: int) -> tuple[Floats, ...]:
    return tuple(np.ascontiguousarray(part) for part in np.split(table, n, axis=1))
