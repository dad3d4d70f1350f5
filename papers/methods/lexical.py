"""Lexical baselines: BM25, query likelihood, query expansion and mixtures of scorers (spec B02 to B20)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.methods.rows import (
    ChangedRows,
    ProductScorer,
    all_products,
    binary,
    check_counts,
    check_widths,
    pair_products,
)
from papers.methods.word_pairs import Mix
from reranker.arrays import Float32, Float64
from reranker.errors import ConfigError, InputError, ShapeMismatch, TrainingError
from reranker.lexical.bm25 import bm25_idf, bm25_weights, length_norms
from reranker.models.scorers import Scorer
from reranker.text.rows import row_of, with_data

_BLOCK_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Okapi(ProductScorer):
    """Score sum over query words of qtf * idf * tf (k1 + 1) / (tf + k1 (1 - b + b len / mean len)); rows are counts.

    `LexicalRows` computes the same over weighted fields; this scorer takes count rows.

    Raises
    ------
    ConfigError
        If a value is out of range.

    Source: spec B20.
    """

    idf: Float64
    """ln(1 + (N_docs - df + 1/2) / (df + 1/2)), (D,) float64."""
    mean_length: float
    """Mean number of tokens of the collection's documents, above 0."""
    k1: float = 1.2
    """Saturation of the word frequency, at least 0."""
    b: float = 0.75
    """Length normalization, 0 to 1."""

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1 and self.mean_length > 0):
            raise ConfigError(
                f"k1 is {self.k1!r}, b {self.b!r} and the mean length {self.mean_length!r}: k1 must be at least 0, "
                f"b from 0 to 1, and the mean length above 0"
            )

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the queries' counts and the weight of each word in each document."""
        if d_rows.shape[1] != len(self.idf):
            raise ShapeMismatch(
                f"rows are over {d_rows.shape[1]:,} words, idf over {len(self.idf):,}: use one vocabulary"
            )
        documents = check_counts(d_rows, "d_rows")
        lengths = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        tf = documents.data / length_norms(lengths, self.mean_length, self.b)[row_of(documents)]
        weights = bm25_weights(tf, self.idf[documents.indices], self.k1)
        return check_counts(q_rows, "q_rows"), with_data(documents, weights)


def fit_okapi(d_counts: sp.csr_matrix, k1: float = 1.2, b: float = 0.75) -> Okapi:
    """Return BM25 with the idf and the mean length of a collection of count rows, (n_documents, D).

    Raises
    ------
    TrainingError
        If the collection has no word.
    """
    counts = check_counts(d_counts, "d_counts")
    if not counts.nnz:
        raise TrainingError("the collection has no word: BM25 needs at least one document with a word")
    n_documents, n_words = counts.shape
    df = np.bincount(binary(counts).indices, minlength=n_words)
    return Okapi(bm25_idf(n_documents, df), float(counts.sum()) / n_documents, k1, b)


@dataclass(frozen=True, eq=False)
class JelinekMercer:
    """Score log P(q|d) = sum_w x_w^q log p(w|d), p(w|d) = (1 - lam) x_w^d / |d| + lam F_w / |C|.

    Words that do not occur in the collection are left out. In an empty document the first term is 0. With lam = 0, a
    document that misses a query word has probability 0: its score is -inf.

    Raises
    ------
    ConfigError
        If lam is outside of 0 to 1.
    InputError
        If the collection's shares are negative or do not sum to 1.

    Source: COURSE, language models (Jelinek-Mercer: a_d = lambda for every document); spec B19. ``per_word`` is ours.
    """

    collection: Float64
    """F_w / |C|: the share of each word in the tokens of the collection, (D,) float64."""
    lam: float = 0.5
    """Weight of the collection, 0 to 1; with 1 all documents have the same score."""
    per_word: bool = False
    """Whether the score is (log P(q|d) - log P(q|C)) / |q| instead, over the known words; 0 if there are none.

    P(q|C) = prod_w (F_w / |C|)**x_w^q. The ranking of a query's documents is the same, and scores become comparable
    between short and long queries, and between common and rare words.
    """

    def __post_init__(self) -> None:
        if not 0.0 <= self.lam <= 1.0:
            raise ConfigError(f"lam is {self.lam!r}: the collection's weight must be between 0 and 1")
        if not ((self.collection >= 0).all() and abs(self.collection.sum() - 1.0) < 1e-6):
            raise InputError(
                "the collection's shares must be at least 0 and sum to 1: build the model with fit_language_model"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return log P(q|d) of every query with every document, (n_queries, n_documents) float32; rows are counts."""
        queries, held, missing = self._parts(q_rows, d_rows)
        shift, length = self._normalisation(queries)
        scores = (all_products(queries, held) + (queries @ missing - shift)[:, None]) / length[:, None]
        if self.lam == 0.0:
            words = binary(queries)
            scores[all_products(words, binary(d_rows)) < np.diff(words.indptr)[:, None]] = -np.inf
        return np.asarray(scores, dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return log P(q|d) of query r with document r, (n,) float32; rows are counts."""
        queries, held, missing = self._parts(q_rows, d_rows)
        shift, length = self._normalisation(queries)
        scores = (pair_products(queries, held) + queries @ missing - shift) / length
        if self.lam == 0.0:
            words = binary(queries)
            scores[pair_products(words, binary(d_rows)) < np.diff(words.indptr)] = -np.inf
        return np.asarray(scores, dtype=np.float32)

    def _normalisation(self, queries: sp.csr_matrix) -> tuple[Float64, Float64]:
        """Return log P(q|C) and |q| (1 for an empty query), or 0 and 1 if scores are not per word."""
        if not self.per_word:
            return np.zeros(queries.shape[0]), np.ones(queries.shape[0])
        log = np.log(self.collection, out=np.zeros(len(self.collection)), where=self.collection > 0)
        length = np.asarray(queries.sum(axis=1), dtype=np.float64).ravel()
        return queries @ log, np.where(length > 0, length, 1.0)

    def _parts(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix, Float64]:
        """Return the queries' known words, the contribution of a held word, and log p of a word that is not held.

        log p(w|d) = log(lam P_w) + log(1 + (1 - lam) x_w^d / (|d| lam P_w)). The second part is 0 for words not held,
        so the sum over a query is a sparse product. With lam = 0 it is log(x_w^d / |d|), and 0 replaces -inf.
        """
        check_widths(q_rows, d_rows)
        check_widths(q_rows, sp.csr_matrix((0, len(self.collection))))
        queries = check_counts(q_rows, "q_rows")
        known = self.collection > 0
        queries.data *= known[queries.indices]
        queries.eliminate_zeros()
        documents = check_counts(d_rows, "d_rows")
        lengths = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        share = documents.data / lengths[row_of(documents)]
        background = self.lam * self.collection
        if self.lam == 0.0:
            return queries, with_data(documents, np.log(share)), np.zeros(len(known))
        # A held word outside of the collection matches no query word, as those were removed: any finite value will do.
        ratio = (1.0 - self.lam) * share / np.where(known, background, 1.0)[documents.indices]
        missing = np.log(background, out=np.zeros(len(known)), where=known)
        return queries, with_data(documents, np.log1p(ratio)), missing


def fit_language_model(d_counts: sp.csr_matrix, lam: float = 0.5, per_word: bool = False) -> JelinekMercer:
    """Return the model of a collection of count rows, (n_documents, D).

    Raises
    ------
    TrainingError
        If the collection has no word.
    """
    counts = check_counts(d_counts, "d_counts")
    times = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    if not times.sum():
        raise TrainingError("the collection has no word: a language model needs at least one document with a word")
    return JelinekMercer(times / times.sum(), lam, per_word)


@dataclass(frozen=True, eq=False)
class QueryExpansion(ProductScorer):
    """Score q'.d with q' = q + beta * (1/E) * sum_{i=1..E} d_{r_i}, where r_1..r_E are the pool's best for q.

    With beta = 0 this is TF-IDF. Documents that share no word with the query are not used as feedback; if there are
    fewer than E others, the sum is over those and still divided by E. Ties go to the lower document number. q' is not
    normalised, which would not change any ranking.

    Raises
    ------
    ConfigError
        If beta or E is out of range.

    Source: SSI, section on query expansion; spec B02 and A23 (mean, not sum; the same pool in both passes).
    """

    pool: sp.csr_matrix
    """Unit tf-idf rows of the documents of the first pass, (n_pool, D) float32; the papers then rank the same ones."""
    beta: float = 0.5
    """Weight of the feedback, at least 0."""
    n_feedback: int = 5
    """E, at least 1."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.beta) and self.beta >= 0):
            raise ConfigError(f"beta is {self.beta!r}: the weight of the feedback must be finite and at least 0")
        if self.n_feedback < 1:
            raise ConfigError(f"n_feedback is {self.n_feedback}: expansion needs at least 1 document")

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return q' and d in float64."""
        return self.expanded(q_rows), d_rows.astype(np.float64)

    def expanded(self, q_rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return q' of every query, (n_queries, D) float64."""
        check_widths(q_rows, self.pool)
        queries = q_rows.astype(np.float64)
        if not self.beta or not self.pool.shape[0] or not queries.shape[0]:
            return queries
        step = max(1, _BLOCK_BYTES // (8 * self.pool.shape[0]))
        blocks = [self._feedback(queries[start : start + step]) for start in range(0, queries.shape[0], step)]
        chosen = sp.vstack(blocks, format="csr")
        out: sp.csr_matrix = (queries + (self.beta / self.n_feedback) * (chosen @ self.pool.astype(np.float64))).tocsr()
        out.sort_indices()
        return out

    def _feedback(self, queries: sp.csr_matrix) -> sp.csr_matrix:
        """Return 1 where a pool document is among the E best of a query, (n, n_pool) float64."""
        scores = all_products(queries, self.pool.astype(np.float64))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.n_feedback]
        row = np.repeat(np.arange(len(scores)), best.shape[1])
        kept = scores[row, best.ravel()] > 0
        shape = (len(scores), self.pool.shape[0])
        return sp.csr_matrix((np.ones(int(kept.sum())), (row[kept], best.ravel()[kept])), shape=shape)


def mixture(first: Scorer, second: Scorer, alpha: float) -> Mix:
    """Return alpha * f(q, d) + (1 - alpha) * g(q, d), for alpha from 0 (only g) to 1 (only f).

    Both use the same rows (`OnView` gives each its own part of the query), and scores are mixed without scaling.

    Raises
    ------
    ConfigError
        If alpha is outside of 0 to 1.

    Source: PSI, Tables 1, 2 and 6; spec B04, B16.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha!r}: the first scorer's share must be between 0 and 1")
    return Mix((first, second), (alpha, 1.0 - alpha))


@dataclass(frozen=True, eq=False)
class OnView(ChangedRows):
    """Score with some of the query's columns, so that one row can hold a query in several languages.

    ``join_columns(japanese, translated)`` builds such rows. PSI(JapEng) then reads columns 0 to D_J - 1 and
    TFIDF(EngEng) the others, and `mixture` combines them (B16).

    Raises
    ------
    ConfigError
        If the range is empty or starts below 0.
    """

    scorer: Scorer
    """Scorer of the columns."""
    start: int
    stop: int
    """First column of the range, and the column after its last."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ConfigError(
                f"columns {self.start} to {self.stop} are not a range: start must be at least 0 and below stop"
            )

    def changed(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the columns of the range, and the unchanged documents."""
        if self.stop > q_rows.shape[1]:
            raise ShapeMismatch(
                f"columns {self.start} to {self.stop - 1} of a query of {q_rows.shape[1]:,}: build the rows with "
                f"join_columns, in the order in which the parts were numbered"
            )
        return q_rows[:, self.start : self.stop].tocsr(), d_rows
