"""Products of tf-idf rows that are 2**31 - 1 columns wide, which scipy's own would allocate in full."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32
from reranker.errors import ShapeMismatch


def inner_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the dot product of every row of ``left`` with every row of ``right``.

    Columns are renumbered to those in use on the left; memory is that of the result and of copies of the rows.

    Parameters
    ----------
    left, right : csr_matrix, (n, n_columns) and (m, n_columns) float32

    Returns
    -------
    (n, m) float32

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
    kept = np.concatenate(([0], np.cumsum(shared)))[right.indptr]
    others = sp.csr_matrix((right.data[shared], places[shared], kept), shape=(right.shape[0], len(columns)))
    products: Float32 = (narrow @ others.T).toarray()
    return products
