"""The best columns of sparse rows.

The best columns of sparse rows compiled by numba: same results as `row_best_reference`, without a sort.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def best_columns(indptr, indices, values, k):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return what `row_best_reference.best_columns` does: each row is gone through once, its k best kept in order."""
    n_rows = indptr.shape[0] - 1
    best = np.full((n_rows, k), -1, np.int32)
    kept = np.empty(k, np.float64)
    for row in range(n_rows):
        n = 0
        for p in range(indptr[row], indptr[row + 1]):
            column, value = indices[p], values[p]
            if n == k and (value < kept[k - 1] or (value == kept[k - 1] and column > best[row, k - 1])):
                continue
            place = n if n < k else k - 1
            while place > 0 and (
                value > kept[place - 1] or (value == kept[place - 1] and column < best[row, place - 1])
            ):
                kept[place], best[row, place] = kept[place - 1], best[row, place - 1]
                place -= 1
            kept[place], best[row, place] = value, column
            n = min(n + 1, k)
    return best
