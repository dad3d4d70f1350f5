"""Embeddings and products of tf-idf rows, 2**31 - 1 columns wide; scipy's products would allocate them in full."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, offsets_of
from reranker.errors import ShapeMismatch
from reranker.kernels.serving import embed, row_dots


def embed_rows(rows: sp.csr_matrix, E: Float32) -> Float32:
    """Return the embedding of each row, (n_rows, N) float32."""
    return embed(rows.indptr, rows.indices, rows.data, E)


def dots(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the dot product of row r of both, (n_rows,) float32."""
    return row_dots((left.indptr, left.indices, left.data), (right.indptr, right.indices, right.data))


def inner_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the dot product of every row of ``left`` with every row of ``right``, (n, m) float32.

    Columns are renumbered to those in use on the left; memory is that of the result and of copies of the rows.

    Raises
    ------
    ShapeMismatch
        If the widths differ.
    """
    if left.shape[1] != right.shape[1]:
        raise ShapeMismatch(
            f"rows of {left.shape[1]} and {right.shape[1]} columns have no dot product; use one vocabulary"
        )
    columns, compact = np.unique(left.indices, return_inverse=True)
    if not len(columns):
        return np.zeros((left.shape[0], right.shape[0]), np.float32)
    narrow = sp.csr_matrix((left.data, compact, left.indptr), shape=(left.shape[0], len(columns)))
    places = np.minimum(np.searchsorted(columns, right.indices), len(columns) - 1)
    shared = columns[places] == right.indices
    kept = offsets_of(shared)[right.indptr]
    others = sp.csr_matrix((right.data[shared], places[shared], kept), shape=(right.shape[0], len(columns)))
    products: Float32 = (narrow @ others.T).toarray()
    return products
