"""The best columns of sparse rows in numpy: the definition that the compiled kernel must agree with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reranker.arrays import Float64, Int32


def best_columns(indptr: npt.NDArray[np.signedinteger], indices: Int32, values: Float64, k: int) -> Int32:
    """Return the k columns of greatest value in each sparse row, equal values by the lower column.

    Parameters
    ----------
    indptr, indices, values : arrays
        CSR rows; indices in any order.
    k : int
        At least 1.

    Returns
    -------
    (n_rows, k) int32
        -1 after the end of a shorter row.
    """
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((indices, -values, row))
    place = np.arange(len(order)) - np.asarray(indptr)[row]  # the sort leaves rows where they are
    best = np.full((len(indptr) - 1, k), -1, np.int32)
    kept = place < k
    best[row[kept], place[kept]] = indices[order[kept]]
    return best
