"""Query likelihood with Jelinek-Mercer smoothing (spec B19)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.study_rows import (
    Doubles,
    Floats,
    all_products,
    binary,
    check_counts,
    check_pairs,
    check_widths,
    pair_products,
    row_of,
    with_data,
)
from reranker.baselines.tuning import TENTHS, Sweep, sweep
from reranker.errors import ConfigError, InputError, TrainingError


@dataclass(frozen=True, eq=False)
class JelinekMercer:
    """Scores log P(q|d) = sum_w x_w^q log p(w|d), p(w|d) = (1 - lam) x_w^d / |d| + lam F_w / |C|.

    Words that the collection does not hold say nothing about any document and are left out. An empty document has the
    first part 0. With lam = 0, a document without some query word has probability 0: its score is -inf.

    Parameters
    ----------
    collection : (D,) float64
        F_w / |C|: how often each word stands in the collection, divided by the number of all its tokens.
    lam : float
        Weight of the collection, 0 to 1; 1 gives all documents the same score.
    per_word : bool
        Score (log P(q|d) - log P(q|C)) / |q| instead, |q| and P(q|C) = prod_w (F_w / |C|)**x_w^q over the known words
        (0 without any): the same order of documents for a query, and comparable between queries, which are short or
        long and of common or rare words.

    Raises
    ------
    ConfigError
        For lam outside of 0 to 1.
    InputError
        If the collection's shares are negative or do not sum to 1.

    Source
    ------
    COURSE, language models (Jelinek-Mercer: a_d = lambda for every document); spec B19. ``per_word`` is ours.
    """

    collection: Doubles
    lam: float = 0.5
    per_word: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.lam <= 1.0:
            raise ConfigError(f"lam is {self.lam!r}: the collection's weight lies between 0 and 1")
        if not ((self.collection >= 0).all() and abs(self.collection.sum() - 1.0) < 1e-6):
            raise InputError(
                "the collection's shares must be at least 0 and sum to 1: make them with fit_language_model"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return log P(q|d) of every query with every document, (n_queries, n_documents) float32; rows are counts."""
        queries, held, missing = self._parts(q_rows, d_rows)
        shift, length = self._normalisation(queries)
        scores = (all_products(queries, held) + (queries @ missing - shift)[:, None]) / length[:, None]
        if self.lam == 0.0:
            words = binary(queries)
            scores[all_products(words, binary(d_rows)) < np.diff(words.indptr)[:, None]] = -np.inf
        return np.asarray(scores, dtype=np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return log P(q|d) of query r with document r, (n,) float32; rows are counts."""
        check_pairs(q_rows, d_rows)
        queries, held, missing = self._parts(q_rows, d_rows)
        shift, length = self._normalisation(queries)
        scores = (pair_products(queries, held) + queries @ missing - shift) / length
        if self.lam == 0.0:
            words = binary(queries)
            scores[pair_products(words, binary(d_rows)) < np.diff(words.indptr)] = -np.inf
        return np.asarray(scores, dtype=np.float32)

    def _normalisation(self, queries: sp.csr_matrix) -> tuple[Doubles, Doubles]:
        """Return log P(q|C) and |q|, or 0 and 1 where scores are not per word; 1 for an empty query."""
        if not self.per_word:
            return np.zeros(queries.shape[0]), np.ones(queries.shape[0])
        log = np.log(self.collection, out=np.zeros(len(self.collection)), where=self.collection > 0)
        length = np.asarray(queries.sum(axis=1), dtype=np.float64).ravel()
        return queries @ log, np.where(length > 0, length, 1.0)

    def _parts(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix, Doubles]:
        """Return the queries' known words, what a held word adds, and log p of a word the document does not hold.

        log p(w|d) = log(lam P_w) + log(1 + (1 - lam) x_w^d / (|d| lam P_w)); the second part is 0 for words not held,
        so the sum over a query is a sparse product. For lam = 0 it is log(x_w^d / |d|), and 0 stands in for -inf.
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
        # A held word outside of the collection meets no query word (those were taken out): any finite value serves.
        ratio = (1.0 - self.lam) * share / np.where(known, background, 1.0)[documents.indices]
        missing = np.log(background, out=np.zeros(len(known)), where=known)
        return queries, with_data(documents, np.log1p(ratio)), missing


def fit_language_model(d_counts: sp.csr_matrix, lam: float = 0.5, per_word: bool = False) -> JelinekMercer:
    """Return the model of a collection.

    Parameters
    ----------
    d_counts : csr_matrix, (n_documents, D)
        Word counts of all documents.
    lam, per_word
        See `JelinekMercer`.

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


def sweep_lambda(
    d_counts: sp.csr_matrix, loss: Callable[[JelinekMercer], float], lambdas: Sequence[float] = TENTHS
) -> Sweep[float, JelinekMercer]:
    """Return the lambda with the least loss on a development set, and what every lambda reached.

    ``loss`` sees -inf scores at lambda = 0: leave 0 out of ``lambdas`` where it cannot rank them.

    Source: spec B19.
    """
    fitted = fit_language_model(d_counts)
    return sweep(lambda lam: JelinekMercer(fitted.collection, lam), loss, lambdas)
