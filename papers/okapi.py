"""BM25 as a scorer of count rows, for documents and queries of any selection (spec B20)."""

from __future__ import annotations

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
from reranker.errors import ConfigError, ShapeMismatch, TrainingError


@dataclass(frozen=True, eq=False)
class Okapi:
    """Scores sum over query words of qtf * idf * tf (k1 + 1) / (tf + k1 (1 - b + b len / mean len)).

    `Bm25Baseline` is the same over the fields of a whole corpus; this one scores the count rows it is handed.

    Parameters
    ----------
    idf : (D,) float64
        ln(1 + (N_docs - df + 1/2) / (df + 1/2)).
    mean_length : float
        Mean number of tokens of the collection's documents, above 0.
    k1 : float
        Where the counting of a word levels off, at least 0.
    b : float
        How much length counts, 0 to 1.

    Raises
    ------
    ConfigError
        For values outside of these ranges.

    Source: spec B20.
    """

    idf: Doubles
    mean_length: float
    k1: float = 1.2
    b: float = 0.75

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1 and self.mean_length > 0):
            raise ConfigError(
                f"k1 is {self.k1!r}, b {self.b!r} and the mean length {self.mean_length!r}: k1 is at least 0, b from "
                f"0 to 1, and the mean length above 0"
            )

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return BM25 of every query with every document, (n_queries, n_documents) float32; rows are counts."""
        queries, weights = self._parts(q_rows, d_rows)
        return all_products(queries, weights).astype(np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return BM25 of query r with document r, (n,) float32; rows are counts."""
        check_pairs(q_rows, d_rows)
        return pair_products(*self._parts(q_rows, d_rows)).astype(np.float32)

    def _parts(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the queries' counts and the weight of each word in each document."""
        check_widths(q_rows, d_rows)
        if d_rows.shape[1] != len(self.idf):
            raise ShapeMismatch(
                f"rows are over {d_rows.shape[1]:,} words, idf over {len(self.idf):,}: use one vocabulary"
            )
        documents = check_counts(d_rows, "d_rows")
        lengths = np.asarray(documents.sum(axis=1), dtype=np.float64).ravel()
        norm = self.k1 * (1 - self.b + self.b * lengths / self.mean_length)
        tf = documents.data
        weights = self.idf[documents.indices] * (self.k1 + 1) * tf / (tf + norm[row_of(documents)])
        return check_counts(q_rows, "q_rows"), with_data(documents, weights)


def fit_okapi(d_counts: sp.csr_matrix, k1: float = 1.2, b: float = 0.75) -> Okapi:
    """Return BM25 with the idf and the mean length of a collection.

    Parameters
    ----------
    d_counts : csr_matrix, (n_documents, D)
        Word counts of all documents.
    k1, b : float
        See `Okapi`.

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
    return Okapi(np.log1p((n_documents - df + 0.5) / (df + 0.5)), float(counts.sum()) / n_documents, k1, b)
