"""Small things that every baseline over study rows needs: checks, binary rows, raw tf-idf, products row by row.

Study rows are ``csr_matrix`` float32 with sorted ids and as many columns as there are words, word 0 the most frequent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import InputError, ShapeMismatch
from reranker.text.rows import unit_rows, with_data

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def check_counts(counts: sp.csr_matrix, name: str) -> sp.csr_matrix:
    """Return the counts as float64 without stored zeros; refuse values that cannot be counts.

    Raises
    ------
    InputError
        For a negative, infinite or NaN count.
    """
    if not (np.isfinite(counts.data).all() and (counts.data >= 0).all()):
        raise InputError(f"{name} holds negative or non-finite counts: counts say how often a word stands in a text")
    clean = counts.astype(np.float64)
    clean.eliminate_zeros()
    return clean


def check_widths(q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
    """Refuse queries and documents over different numbers of words.

    Raises
    ------
    ShapeMismatch
        If the widths differ.
    """
    if q_rows.shape[1] != d_rows.shape[1]:
        raise ShapeMismatch(
            f"queries are over {q_rows.shape[1]:,} words and documents over {d_rows.shape[1]:,}: use one vocabulary"
        )


def check_pairs(q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> None:
    """Refuse pairs whose sides differ in number.

    Raises
    ------
    ShapeMismatch
        If the numbers of rows differ.
    """
    if q_rows.shape[0] != d_rows.shape[0]:
        raise ShapeMismatch(
            f"{q_rows.shape[0]:,} queries and {d_rows.shape[0]:,} documents are not pairs: give one document a query"
        )


def binary(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return 1 where a value other than 0 is stored, float64."""
    out = rows.astype(np.float64)
    out.eliminate_zeros()
    out.data[:] = 1.0
    return out


def pair_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Doubles:
    """Return the dot product of row r with row r, (n,) float64."""
    return np.asarray(left.multiply(right).sum(axis=1), dtype=np.float64).ravel()


def all_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Doubles:
    """Return the dot product of every row on the left with every row on the right, (n, m) float64."""
    products: Doubles = (left @ right.T.tocsr()).toarray()
    return products


def idf_of(counts: sp.csr_matrix) -> Doubles:
    """Return ln(N_docs / df) of each word, 0 for a word of no document (nothing is known of it), (D,) float64.

    Source: spec 1.1.
    """
    n_documents, n_words = counts.shape
    df = np.bincount(binary(counts).indices, minlength=n_words).astype(np.float64)
    return np.where(df > 0, np.log(max(n_documents, 1) / np.maximum(df, 1.0)), 0.0)


def tfidf_rows(counts: sp.csr_matrix, idf: Doubles) -> sp.csr_matrix:
    """Return tf * idf of the counts, each row made unit length, (n, D) float32; an empty row stays empty.

    The course divides tf by the length of the text first; unit length takes that factor out again.

    Raises
    ------
    ShapeMismatch
        If there is not one idf a word.

    Source: spec 1.1, B01 and B18.
    """
    if len(idf) != counts.shape[1]:
        raise ShapeMismatch(f"{len(idf):,} idf values for {counts.shape[1]:,} words: give one a word")
    # A copy: taking zeros out moves the word numbers, which the counts would share otherwise.
    rows = with_data(counts, counts.data * idf[counts.indices]).copy()
    rows.eliminate_zeros()
    return unit_rows(rows)
