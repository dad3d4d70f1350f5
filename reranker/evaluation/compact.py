"""Columns of very wide sparse rows, renumbered to those in use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Ids = npt.NDArray[np.int64]

NARROW = 1_000_000
"""Columns that scipy's work arrays may have: a few MB."""


def used_columns(matrices: Sequence[sp.csr_matrix]) -> Ids:
    """Return the sorted distinct column ids that hold a stored value in any of the matrices.

    Parameters
    ----------
    matrices : sequence of csr_matrix
        Any number of rows, any width (rows of open vocabularies are 2**31 - 1 columns wide).

    Returns
    -------
    (m,) int64
        Ascending.
    """
    if not matrices:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.concatenate([np.unique(matrix.indices) for matrix in matrices])).astype(np.int64)


def select_columns(matrix: sp.csr_matrix, columns: Ids) -> sp.csr_matrix:
    """Return the matrix restricted to ``columns`` and renumbered: new column j is old column ``columns[j]``.

    The cost is that of the stored values, whatever the width: scipy's own column indexing and its products allocate
    arrays as long as the matrix is wide, which at 2**31 - 1 columns is not possible.

    Parameters
    ----------
    matrix : csr_matrix, (n, any)
        Not changed.
    columns : (m,) int64
        Ascending and distinct, as `used_columns` returns them. Values in other columns are left out.

    Returns
    -------
    csr_matrix, (n, m) float32
        Sorted indices if the input's were sorted.
    """
    if len(columns) == 0:
        nothing = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int32)
        return sp.csr_matrix((*nothing, np.zeros(matrix.shape[0] + 1, dtype=np.int64)), shape=(matrix.shape[0], 0))
    places = np.searchsorted(columns, matrix.indices)
    known = columns[np.minimum(places, len(columns) - 1)] == matrix.indices
    kept = np.concatenate([[0], np.cumsum(known, dtype=np.int64)])
    return sp.csr_matrix(
        (matrix.data[known].astype(np.float32), places[known].astype(np.int32), kept[matrix.indptr]),
        shape=(matrix.shape[0], len(columns)),
    )


def compact_columns(*matrices: sp.csr_matrix) -> list[sp.csr_matrix]:
    """Return the matrices with their columns renumbered to those in use in any of them, in the same order.

    Inner products between rows are unchanged: compact(A) compact(B)^T = A B^T. Matrices narrow enough to be worked
    with as they are (at most `NARROW` columns) are returned unchanged.
    """
    if all(matrix.shape[1] <= NARROW for matrix in matrices):
        return list(matrices)
    columns = used_columns(matrices)
    return [select_columns(matrix, columns) for matrix in matrices]
