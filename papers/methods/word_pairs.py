"""Scorers over word pairs: q^T W d in all its forms, polynomials, linear maps of rows, and mixtures (M02 to M20).

All low-rank forms are (query vector).(document vector) + a q.d. The vector of a document is therefore computed once,
and an engine that serves `Bilinear` can serve all of them, with ``embed_documents(rows)`` and ``embed_queries(rows)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from papers.methods.rows import ChangedRows, binary, check_pairs, pair_products
from papers.plain_kernels import PRIME, best_columns, block_pairs, dense_pairs, hash_expand, hash_pairs
from reranker.arrays import Bool, Float32, Int32
from reranker.errors import InputError, ShapeMismatch
from reranker.kernels.rows import Rows, check_embedding, check_finite_rows, embed_rows
from reranker.models.scorers import LinearScorer, Scorer, VectorScorer
from reranker.text.rows import inner_products

_BLOCK_VALUES = 2**24


class Bilinear(LinearScorer):
    """Score f(q, d) = (Uq).(Vd) + a q.d; errors as in `LinearScorer`.

    M01 is ``Bilinear.lexical()``, M05 (tied) ``Bilinear(U, U)``, M06 ``Bilinear(U, V)``, M07 ``identity=0.0`` and M08
    ``restricted(n)``. Like U, ``V`` is (n_document_words, N) float32. Source: spec 2.2 and 2.1, stored by rows.
    """

    @classmethod
    def lexical(cls) -> Bilinear:
        """Return M01: only q.d, the tf-idf score."""
        none = np.zeros((0, 0), np.float32)
        return cls(none, none)

    def restricted(self, n_words: int) -> Bilinear:
        """Return the model in which words after the ``n_words`` most frequent count only by exact matching (M08)."""
        if n_words < 0:
            raise InputError(f"a restriction to {n_words} words is not possible; give 0 (no learned part) or more")
        U = self.U[:n_words]
        return Bilinear(U, U if self.is_tied else self.V[:n_words], self.identity)


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Score f(q, d) = sum_i w_i q_i d_i: a weight for each word that both texts hold (spec M02).

    Raises
    ------
    InputError
        If a weight is NaN or infinite.
    """

    w: Float32
    """Weight of each word, (D,) float32; all 1 gives the tf-idf score."""

    def __post_init__(self) -> None:
        _check_weights(self.w, 1)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        return inner_products(self._weighted(q_rows), d_rows)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        return _row_sums(self._weighted(q_rows), d_rows)

    def _weighted(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        _check_width(rows, len(self.w), "queries")
        return sp.csr_matrix((rows.data * self.w[rows.indices], rows.indices, rows.indptr), shape=rows.shape)


@dataclass(frozen=True, eq=False)
class DenseWordPairs:
    """Score f(q, d) = q^T W d (spec M03; with a diagonal of zeros M04).

    Raises
    ------
    InputError
        If a weight is NaN or infinite.
    """

    W: Float32
    """Weight of query word i with document word j, (D_q, D_d) float32; the identity gives the tf-idf score."""

    def __post_init__(self) -> None:
        _check_weights(self.W, 2)

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        self._check(q_rows, d_rows)
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for start, stop in _blocks(q_rows.shape[0], self.W.shape[1]):
            out[start:stop] = (d_rows @ (q_rows[start:stop] @ self.W).T).T
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        self._check(q_rows, d_rows)
        check_pairs(q_rows, d_rows)
        scores: Float32 = dense_pairs(self.W, kernel_rows(q_rows), kernel_rows(d_rows))
        return scores

    def _check(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
        _check_width(q_rows, self.W.shape[0], "queries")
        _check_width(d_rows, self.W.shape[1], "documents")


@dataclass(frozen=True, eq=False)
class BlockPairs:
    """Score f(q, d) = sum_p q_p^T W d_p over blocks of columns p, which share W: CFH by its printed equations.

    Rows have k F columns, block p from p F to p F + F - 1. `ordered_map` builds them: block p holds the p-th neighbours
    of the words. Pairs of neighbours of different order do not count, unlike with `correlated_map`.

    Raises
    ------
    InputError
        If a weight is NaN or infinite.
    ShapeMismatch
        If W is not square.

    Source: spec 2.4 (4), SSI equations 6 and 7; M13, A12.
    """

    W: Float32
    """Weight of query feature i with document feature j, (F, F) float32."""

    def __post_init__(self) -> None:
        _check_weights(self.W, 2)
        if self.W.shape[0] != self.W.shape[1]:
            raise ShapeMismatch(f"W of shape {self.W.shape} is not square: both sides have the same features")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        self._check(q_rows, d_rows)
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        n_features, dense = len(self.W), DenseWordPairs(self.W)
        for start in range(0, q_rows.shape[1], n_features):
            block = slice(start, start + n_features)
            out += dense.score_matrix(q_rows[:, block], d_rows[:, block])
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        self._check(q_rows, d_rows)
        check_pairs(q_rows, d_rows)
        scores: Float32 = block_pairs(self.W, kernel_rows(q_rows), kernel_rows(d_rows))
        return scores

    def _check(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
        if q_rows.shape[1] != d_rows.shape[1] or q_rows.shape[1] % len(self.W):
            raise ShapeMismatch(
                f"rows of {q_rows.shape[1]} and {d_rows.shape[1]} columns are not blocks of {len(self.W)} features: "
                f"build both with the same ordered_map"
            )


@dataclass(frozen=True, eq=False)
class HashKernel:
    """Score f(q, d) = sum over word pairs of q_s d_t w[h(s, t)], + a q.d, with h(s, t) = (s P + t) mod H.

    Word pairs share weights at random (spec M09). The diagonal (M10) is added either as a tuned mixture,
    ``Mix((kernel, Bilinear.lexical()), (alpha, 1 - alpha))``, or by ``identity``, which is then part of the training.

    Raises
    ------
    InputError
        If there is no weight, a weight is NaN or infinite, or P is not positive.
    """

    w: Float32
    """The shared weights, (H,) float32."""
    prime: int = PRIME
    """P."""
    identity: float = 0.0
    """a; if it is 0, the two sides may have different vocabularies."""

    def __post_init__(self) -> None:
        _check_weights(self.w, 1)
        if not len(self.w) or not 0 < self.prime < 2**32:
            raise InputError(
                f"a hash kernel of {len(self.w)} weights and P = {self.prime} cannot hash: give at least one weight "
                f"and a prime below 2**32"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        columns, places = np.unique(d_rows.indices, return_inverse=True)
        narrow = sp.csr_matrix((d_rows.data, places, d_rows.indptr), shape=(d_rows.shape[0], len(columns)))
        out = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for start, stop in _blocks(q_rows.shape[0], len(columns)):
            met = hash_expand(kernel_rows(q_rows[start:stop]), columns.astype(np.int64), self.w, self.prime)
            out[start:stop] = (narrow @ met.T).T
        if self.identity:
            out += np.float32(self.identity) * inner_products(q_rows, d_rows)
        return out

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        check_pairs(q_rows, d_rows)
        out: Float32 = hash_pairs(self.w, kernel_rows(q_rows), kernel_rows(d_rows), self.prime)
        if self.identity:
            out += np.float32(self.identity) * _row_sums(q_rows, d_rows)
        return out


def kernel_rows(rows: sp.csr_matrix) -> Rows:
    """Return rows in the form that the kernels need, with ascending words."""
    rows = rows if rows.has_sorted_indices else rows.sorted_indices()
    return Rows(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32, copy=False),
        rows.data.astype(np.float32, copy=False),
    )


def _blocks(n_rows: int, width: int) -> list[tuple[int, int]]:
    """Return (start, stop) of blocks of rows whose dense copies stay below `_BLOCK_VALUES` values."""
    size = max(1, _BLOCK_VALUES // max(width, 1))
    return [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _row_sums(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the inner product of row r of both sides."""
    return pair_products(left, right).astype(np.float32)


def _check_width(rows: sp.csr_matrix, width: int, side: str) -> None:
    if rows.shape[1] != width:
        raise ShapeMismatch(
            f"rows of {rows.shape[1]} words as {side} do not fit weights for {width} words: use the vocabulary of the "
            f"model"
        )


def _check_weights(weights: Float32, n_axes: int) -> None:
    if weights.ndim != n_axes or weights.dtype != np.float32:
        raise ShapeMismatch(
            f"weights of dtype {weights.dtype} and shape {weights.shape} were given; they must be float32 with "
            f"{n_axes} axes: use numpy.asarray(weights, dtype=numpy.float32)"
        )
    if not np.isfinite(weights).all():
        raise InputError("a weight is NaN or infinite; training diverged: train again with a smaller rate")


_ORACLE_WORDS = 200


@dataclass(frozen=True, eq=False)
class Polynomial(VectorScorer):
    """Score f(q, d) = (Uq).c(d) + a q.d with c(d) = E1 d o (1 + E2 d o (1 + E3 d o ...)); o is element by element.

    This equals a q.d plus the sum, over all degrees up to k, of sum_l (Uq)_l (E1 d)_l ... (E_{k-1} d)_l, with
    embeddings shared by all degrees. One factor gives `Bilinear` (degree 2). Two factors, V and Y, give PSI of degree 3
    with shared U and V, c(d) = Vd o (1 + Yd) (M18). More factors are M20.

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If there is no factor, a value is NaN or infinite, or a is negative.

    Source: spec 2.5 (f3_LR and its general degree); A11 for sharing.
    """

    U: Float32
    """Query side, (n_query_words, N) float32, one row per word."""
    factors: tuple[Float32, ...]
    """E1, E2, ...; at least one."""
    identity: float = 1.0
    """a."""

    def __post_init__(self) -> None:
        if not self.factors:
            raise InputError("a polynomial needs at least one document factor: give one (degree 2) or more")
        _check_tables((self.U, *self.factors), self.identity)

    @property
    def degree(self) -> int:
        """k: the number of words in one product."""
        return len(self.factors) + 1

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return Uq of each row, (n, N) float32."""
        return embed_rows(q_rows, self.U)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return c(d) of each row, (n, N) float32."""
        first, *others = (embed_rows(d_rows, factor) for factor in self.factors)
        tail = np.ones_like(first)
        for other in reversed(others):
            tail = 1 + other * tail
        vectors: Float32 = first * tail
        return vectors


@dataclass(frozen=True, eq=False)
class QueryPolynomial(VectorScorer):
    """Score f(q, d) = e(q).(Vd) + a q.d with e(q) = E1 q o (1 + E2 q o (1 + ...)): products of several query words.

    This is `Polynomial` with the sides exchanged. Two factors, U and Y, give the cubic over pairs of query words,
    f = sum_ijk W_ijk q_i q_j d_k + f_2 of low rank. Document vectors are those of `Bilinear`.

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If there is no factor, a value is NaN or infinite, or a is negative.

    Source: PSI, section 2, pairs of words of the query; spec 2.5.
    """

    factors: tuple[Float32, ...]
    """E1, E2, ... of the query, (n_query_words, N) float32 each, one row per word; at least one."""
    V: Float32
    """Document side, (n_document_words, N) float32."""
    identity: float = 1.0
    """a."""

    def __post_init__(self) -> None:
        Polynomial(self.V, self.factors, self.identity)  # raises for tables that do not fit

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return e(q) of each row, (n, N) float32."""
        return Polynomial(self.V, self.factors, self.identity).embed_documents(q_rows)

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return Vd of each row, (n, N) float32."""
        return embed_rows(d_rows, self.V)


@dataclass(frozen=True, eq=False)
class SeparateCubic(VectorScorer):
    """Score f(q, d) = sum_l (Uq)_l (Vd)_l (Yd)_l + (U2 q).(V2 d) + a q.d.

    The cubic and the quadratic part have separate embeddings (spec M19). The document vector is [Vd o Yd, V2 d], of
    length 2 N, and the query vector is [Uq, U2 q].

    Raises
    ------
    ShapeMismatch
        If a table is not a C-contiguous float32 matrix, or their dimensions differ.
    InputError
        If a value is NaN or infinite, or a is negative.

    Source: spec 2.5, the option "separate"; A11.
    """

    U: Float32
    V: Float32
    Y: Float32
    U2: Float32
    V2: Float32
    """Tables of the cubic part (U, V, Y) and of the quadratic part, (n_words, N) float32, one row per word."""
    identity: float = 1.0
    """a."""

    def __post_init__(self) -> None:
        _check_tables((self.U, self.V, self.Y, self.U2, self.V2), self.identity)

    def embed_queries(self, q_rows: sp.csr_matrix) -> Float32:
        """Return [Uq, U2 q] of each row, (n, 2 N) float32."""
        return np.hstack([embed_rows(q_rows, self.U), embed_rows(q_rows, self.U2)])

    def embed_documents(self, d_rows: sp.csr_matrix) -> Float32:
        """Return [Vd o Yd, V2 d] of each row, (n, 2 N) float32."""
        return np.hstack([embed_rows(d_rows, self.V) * embed_rows(d_rows, self.Y), embed_rows(d_rows, self.V2)])


@dataclass(frozen=True, eq=False)
class FullPolynomial:
    """Score f(q, d) = sum_ijk W3_ijk q_i d_j d_k + q^T W2 d, with a weight for each combination of words (M17).

    It is for vocabularies of at most 200 words, as a reference for the low-rank forms.

    Raises
    ------
    InputError
        If the vocabulary is too large or a weight is not finite.
    ShapeMismatch
        If the shapes differ.

    Source: spec 2.5, f2 and f3.
    """

    W2: Float32
    """Weights of degree 2, (D_q, D) float32."""
    W3: Float32 | None = None
    """Weights of degree 3, (D_q, D, D) float32; None for only degree 2."""

    def __post_init__(self) -> None:
        if self.W2.ndim != 2 or max(self.W2.shape) > _ORACLE_WORDS:
            raise InputError(
                f"W2 of shape {self.W2.shape} is too large: a weight for each pair of words is possible for at most "
                f"{_ORACLE_WORDS} words; use Polynomial"
            )
        if self.W3 is not None and self.W3.shape != (*self.W2.shape, self.W2.shape[1]):
            raise ShapeMismatch(
                f"W3 of shape {self.W3.shape} does not fit W2 of {self.W2.shape}: (D_q, D, D) is needed"
            )
        if not np.isfinite(self.W2).all() or (self.W3 is not None and not np.isfinite(self.W3).all()):
            raise InputError("a weight is NaN or infinite; training diverged: train again with a smaller rate")

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        q, d = q_rows.toarray(), d_rows.toarray()
        scores = q @ self.W2 @ d.T
        if self.W3 is not None:
            scores = scores + np.einsum("ijk,ai,bj,bk->ab", self.W3, q, d, d, optimize=True)
        return np.asarray(scores, np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return f of query r with document r, (n_pairs,) float32."""
        check_pairs(q_rows, d_rows)
        q, d = q_rows.toarray(), d_rows.toarray()
        scores = np.einsum("ai,ij,aj->a", q, self.W2, d, optimize=True)
        if self.W3 is not None:
            scores = scores + np.einsum("ijk,ai,aj,ak->a", self.W3, q, d, d, optimize=True)
        return np.asarray(scores, np.float32)


def _check_tables(tables: tuple[Float32, ...], identity: float) -> None:
    """Raise an error if tables do not fit each other, or the weight of exact matching is not usable."""
    for number, table in enumerate(tables):
        check_embedding(table)
        check_finite_rows(table, f"embedding {number}")
    dims = {table.shape[1] for table in tables}
    if len(dims) > 1:
        raise ShapeMismatch(f"embeddings of {sorted(dims)} dimensions cannot be multiplied; all must have the same")
    if not (np.isfinite(identity) and identity >= 0):
        raise InputError(f"identity weight {identity!r} is not usable; it must be finite and not negative")


NO_NEIGHBOUR = -1


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map q' = q M of rows; the result is not normalised."""

    matrix: sp.csr_matrix
    """M, (n_in, n_out) float32; row i is the image of word i."""

    def rows(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return the mapped rows, (n, n_out) float32 with sorted indices.

        Raises
        ------
        ShapeMismatch
            If the rows are not n_in columns wide.
        """
        if rows.shape[1] != self.matrix.shape[0]:
            raise ShapeMismatch(
                f"rows of {rows.shape[1]} columns do not fit a map of {self.matrix.shape[0]} features: build the rows "
                f"with the vocabulary of the map"
            )
        mapped = sp.csr_matrix(rows @ self.matrix, dtype=np.float32)
        mapped.sum_duplicates()
        return mapped


def identity_map(n_words: int) -> FeatureMap:
    """Return the map that leaves rows unchanged."""
    return top_n_map(n_words, n_words)


def top_n_map(n_in: int, n_words: int) -> FeatureMap:
    """Return the map that keeps only the first, most frequent words, (n_in, n_words) (spec M08).

    Raises
    ------
    InputError
        If ``n_words`` is negative or above ``n_in``.
    """
    if not 0 <= n_words <= n_in:
        raise InputError(f"{n_words} of {n_in} words cannot be kept; give 0 to {n_in}")
    return FeatureMap(sp.csr_matrix(sp.eye_array(n_in, n_words, dtype=np.float32, format="csr")))


def dice_neighbours(
    counts_rows: sp.csr_matrix, n_frequent: int, k: int, frequent_rows: sp.csr_matrix | None = None
) -> Int32:
    """Return S_1(i) .. S_k(i): the frequent words with the highest DICE coefficient with word i.

    DICE(i, j) = 2 cooccur(i, j) / (occur(i) + occur(j)), counted in documents, so DICE(i, i) = 1. A frequent word is
    its own first neighbour, even if another word occurs in exactly the same documents. Other ties go to the lower word
    number.

    Parameters
    ----------
    counts_rows : csr_matrix, (n_documents, D)
        Words, or n-grams, of each document; any value other than 0 means present.
    n_frequent : int
        F: neighbours are words 0 to F - 1.
    k : int
        Number of neighbours of a word.
    frequent_rows : csr_matrix, (n_documents, at least F), optional
        Words of the same documents, if ``counts_rows`` are n-grams.

    Returns
    -------
    (D, k) int32
        `NO_NEIGHBOUR` (-1) if a word shares documents with fewer than k frequent words.

    Raises
    ------
    InputError
        If k or F is out of range.
    ShapeMismatch
        If the two matrices have different numbers of documents.

    Source: spec 2.4 (1, 2, 6), M11; A13 for the unit of counting.
    """
    words = counts_rows if frequent_rows is None else frequent_rows
    if words.shape[0] != counts_rows.shape[0]:
        raise ShapeMismatch(
            f"{counts_rows.shape[0]} and {words.shape[0]} documents were given; both must be the same documents"
        )
    if not (1 <= n_frequent <= words.shape[1] and k >= 1):
        raise InputError(
            f"{k} neighbours among {n_frequent} frequent words are not possible for {words.shape[1]} words: give k of "
            f"at least 1 and 1 to {words.shape[1]} frequent words"
        )
    features = sp.csr_matrix(binary(counts_rows).T)
    frequent = sp.csr_matrix(binary(words)[:, :n_frequent])
    frequent_occur = np.asarray(frequent.sum(axis=0), np.float64).ravel()
    neighbours = np.full((counts_rows.shape[1], k), NO_NEIGHBOUR, np.int32)
    joint = features @ np.diff(frequent.indptr).astype(np.float64)  # number of (word, document, frequent word)
    edges = np.flatnonzero(np.diff(np.cumsum(joint) // _BLOCK_VALUES, prepend=0.0)) + 1
    for start, stop in pairwise([0, *edges.tolist(), len(neighbours)]):
        block = features[start:stop]
        occur = np.asarray(block.sum(axis=1), np.float64).ravel()
        shared = sp.csr_matrix(block @ frequent)
        word = np.repeat(np.arange(start, stop), np.diff(shared.indptr))
        dice = 2.0 * shared.data / (occur[word - start] + frequent_occur[shared.indices])
        if frequent_rows is None:
            dice[shared.indices == word] = np.inf
        neighbours[start:stop] = best_columns(shared.indptr, shared.indices, dice, k)
    return neighbours


def correlated_map(neighbours: Int32, n_frequent: int, replaced: Bool | None = None) -> FeatureMap:
    """Return the map q' = sum_i q_i (1/k) sum_p e_{S_p(i)} of correlated feature hashing.

    Words that share a neighbour are summed, so mapped rows are longer than 1: models over them need a smaller rate.

    Parameters
    ----------
    neighbours : (D, k) int32
        Result of `dice_neighbours`; rows may be words followed by n-grams. Entries of -1 are ignored.
    n_frequent : int
        F, the number of features after the map.
    replaced : (D,) bool, optional
        Features to map; others are dropped. Model B of M14 maps the words for which model A has no weights.

    Returns
    -------
    FeatureMap, (D, F)

    Raises
    ------
    InputError
        If a neighbour is F or higher.
    ShapeMismatch
        If ``replaced`` has another length.

    Source: spec 2.4 (5), M12 (k = 1), M13 (k = 5); A12: with k > 1 this includes cross terms of different p.
    """
    n_features, k = neighbours.shape
    if neighbours.max(initial=-1) >= n_frequent:
        raise InputError(f"neighbour {neighbours.max()} is not among {n_frequent} frequent words; give the same F")
    if replaced is not None and replaced.shape != (n_features,):
        raise ShapeMismatch(
            f"a choice of shape {replaced.shape} does not fit {n_features} features: give one bool each"
        )
    taken = neighbours >= 0
    if replaced is not None:
        taken = taken & replaced[:, None]
    word, place = np.nonzero(taken)
    shares = np.full(len(word), 1.0 / k, np.float32)
    matrix = sp.csr_matrix((shares, (word, neighbours[word, place])), shape=(n_features, n_frequent))
    return FeatureMap(matrix)


def ordered_map(neighbours: Int32, n_frequent: int) -> FeatureMap:
    """Return the map of word i to k blocks of F features: 1/sqrt(k) at S_p(i) of block p.

    With `BlockPairs`, both sides together have the factor 1/k of the printed equation.

    Parameters
    ----------
    neighbours : (D, k) int32
        Result of `dice_neighbours`; entries of -1 are ignored.
    n_frequent : int
        F.

    Returns
    -------
    FeatureMap, (D, k F)

    Raises
    ------
    InputError
        If a neighbour is F or higher.

    Source: spec 2.4 (4), SSI equations 6 and 7.
    """
    n_features, k = neighbours.shape
    if neighbours.max(initial=-1) >= n_frequent:
        raise InputError(f"neighbour {neighbours.max()} is not among {n_frequent} frequent words; give the same F")
    word, place = np.nonzero(neighbours >= 0)
    shares = np.full(len(word), 1.0 / np.sqrt(k), np.float32)
    columns = place * n_frequent + neighbours[word, place]
    return FeatureMap(sp.csr_matrix((shares, (word, columns)), shape=(n_features, k * n_frequent)))


def join_columns(*parts: sp.csr_matrix) -> sp.csr_matrix:
    """Return several feature sets, or views of the same queries, as one row each (spec R05, M15, M16, B16)."""
    joined = sp.csr_matrix(sp.hstack(parts, format="csr"), dtype=np.float32)
    joined.sort_indices()
    return joined


@dataclass(frozen=True, eq=False)
class Mapped(ChangedRows):
    """Score f(g(q), g(d)) of another scorer f and a feature map g (spec 2.4: CFH is a map before any model)."""

    scorer: Scorer
    """f, over the mapped rows."""
    feature_map: FeatureMap
    """g."""

    def changed(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return g(q) and g(d)."""
        return self.feature_map.rows(q_rows), self.feature_map.rows(d_rows)


@dataclass(frozen=True, eq=False)
class Mix:
    """The weighted sum of scorers over the same rows.

    Raises
    ------
    InputError
        If there is no part, the numbers of parts and weights differ, or a weight is not finite.
    """

    parts: tuple[Scorer, ...]
    """The scorers, at least one."""
    weights: tuple[float, ...]
    """One finite weight per part. A part with weight 0 is not evaluated.

    (alpha, 1 - alpha) is the mixture of spec B04, B16 and M10; (1, mu) that of M14.
    """

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.weights) or not np.isfinite(self.weights).all():
            raise InputError(
                f"weights {self.weights} do not fit a mixture of {len(self.parts)} scorers: give one finite weight per "
                f"scorer"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        total = np.zeros((q_rows.shape[0], d_rows.shape[0]), np.float32)
        for part, weight in zip(self.parts, self.weights, strict=True):
            if weight:
                total += np.float32(weight) * part.score_matrix(q_rows, d_rows)
        return total

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n_pairs,) float32."""
        total = np.zeros(q_rows.shape[0], np.float32)
        for part, weight in zip(self.parts, self.weights, strict=True):
            if weight:
                total += np.float32(weight) * part.score_pairs(q_rows, d_rows)
        return total
