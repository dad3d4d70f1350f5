"""Functions shared by the methods: checks, row products, tf-idf, n-grams, and base classes of scorers.

Study rows are ``csr_matrix`` float32 with sorted ids and one column per word; word 0 is the most frequent. n-grams
(spec R05) are used as features only by mapping them to words (spec 1.6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse as sp

from papers.methods.dice import ngrams
from reranker.arrays import Float32, Float64
from reranker.errors import InputError, ShapeMismatch
from reranker.models.scorers import Scorer
from reranker.text.rows import unit_rows, with_data


def check_counts(counts: sp.csr_matrix, name: str) -> sp.csr_matrix:
    """Return the counts as float64 without stored zeros.

    Raises
    ------
    InputError
        For a negative, infinite or NaN count.
    """
    if not (np.isfinite(counts.data).all() and (counts.data >= 0).all()):
        raise InputError(f"{name} holds negative or non-finite values: give the number of occurrences of each word")
    clean = counts.astype(np.float64)
    clean.eliminate_zeros()
    return clean


def check_widths(q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
    """Raise `ShapeMismatch` if queries and documents have different numbers of words."""
    if q_rows.shape[1] != d_rows.shape[1]:
        raise ShapeMismatch(
            f"queries are over {q_rows.shape[1]:,} words and documents over {d_rows.shape[1]:,}: use one vocabulary"
        )


def check_pairs(q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
    """Raise `ShapeMismatch` if there are not as many queries as documents."""
    if q_rows.shape[0] != d_rows.shape[0]:
        raise ShapeMismatch(
            f"{q_rows.shape[0]:,} queries and {d_rows.shape[0]:,} documents are not pairs: give one document per query"
        )


def binary(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return 1 where a value other than 0 is stored, float64."""
    out = rows.astype(np.float64)
    out.eliminate_zeros()
    out.data[:] = 1.0
    return out


def pair_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float64:
    """Return the inner product of row r of both, (n,) float64; errors as in `check_pairs`."""
    check_pairs(left, right)
    return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()


def all_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float64:
    """Return the inner products of all rows of both, (n, m) float64."""
    products: Float64 = (left @ right.T.tocsr()).toarray()
    return products


def idf_of(counts: sp.csr_matrix) -> Float64:
    """Return ln(N_docs / df) of each word, (D,) float64; 0 for a word that no document holds.

    Source: spec 1.1.
    """
    n_documents, n_words = counts.shape
    df = np.bincount(binary(counts).indices, minlength=n_words).astype(np.float64)
    return np.where(df > 0, np.log(max(n_documents, 1) / np.maximum(df, 1.0)), 0.0)


def tfidf_rows(counts: sp.csr_matrix, idf: Float64) -> sp.csr_matrix:
    """Return tf * idf of the counts at unit length, (n, D) float32; an empty row stays empty.

    The course first divides tf by the length of the text; that factor cancels at unit length.

    Raises
    ------
    ShapeMismatch
        If the number of idf values is not the number of words.

    Source: spec 1.1, B01 and B18.
    """
    if len(idf) != counts.shape[1]:
        raise ShapeMismatch(f"{len(idf):,} idf values for {counts.shape[1]:,} words: give one per word")
    # A copy, because removing zeros changes the arrays of indices, which the counts would share otherwise.
    rows = with_data(counts, counts.data * idf[counts.indices]).copy()
    rows.eliminate_zeros()
    return unit_rows(rows)


class ProductScorer(ABC):
    """Score by the inner product, summed in float64, of rows computed from the query and from the document."""

    @abstractmethod
    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the two rows of the product."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        return all_products(*self.sides(q_rows, d_rows)).astype(np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        return pair_products(*self.sides(q_rows, d_rows)).astype(np.float32)


class InnerProduct(ProductScorer):
    """Score by the inner product of the rows as they are."""

    def sides(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the rows themselves."""
        return q_rows, d_rows


class ChangedRows(ABC):
    """Score by another scorer, ``scorer``, on changed rows: mapped, translated, or a part of them."""

    scorer: Scorer

    @abstractmethod
    def changed(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> tuple[sp.csr_matrix, sp.csr_matrix]:
        """Return the rows for the inner scorer."""

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of every query with every document, (n_queries, n_documents) float32."""
        return self.scorer.score_matrix(*self.changed(q_rows, d_rows))

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Float32:
        """Return the score of query r with document r, (n,) float32."""
        return self.scorer.score_pairs(*self.changed(q_rows, d_rows))


def frequent_ngrams(
    token_lists: Iterable[Sequence[str]], n: int, *, max_ngrams: int | None = None, min_documents: int = 2
) -> tuple[str, ...]:
    """Return the n-grams in at least ``min_documents`` texts by decreasing document frequency; ties are alphabetical.

    At most ``max_ngrams`` are returned. Too little can be learned about n-grams in fewer documents.
    """
    frequency: Counter[str] = Counter()
    for tokens in token_lists:
        frequency.update(set(ngrams(tokens, n)))
    listed = sorted(name for name, documents in frequency.items() if documents >= min_documents)
    listed.sort(key=lambda name: -frequency[name])
    return tuple(listed[:max_ngrams])


def ngram_counts(token_lists: Sequence[Sequence[str]], n: int, names: Sequence[str]) -> sp.csr_matrix:
    """Return the count of each listed n-gram in each text, (n_texts, n_names) float32 with sorted indices."""
    column = {name: place for place, name in enumerate(names)}
    counted = [Counter(column[one] for one in ngrams(tokens, n) if one in column) for tokens in token_lists]
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in counted], dtype=np.int64)])
    indices = np.array([place for one in counted for place in sorted(one)], dtype=np.int32)
    counts = np.array([one[place] for one in counted for place in sorted(one)], dtype=np.float32)
    return sp.csr_matrix((counts, indices, indptr), shape=(len(counted), len(column)))
