"""What the compiled kernels of the plain SGD share: options of numba, products of a dense vector with sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

OPTIONS: dict[str, Any] = {  # no nnan or ninf: a NaN must stay visible
    "fastmath": {"reassoc", "nsz", "contract", "arcp"},
    "cache": True,
    "nogil": True,
    "boundscheck": False,
}
ZERO = np.float32(0)
ONE = np.float32(1)


@njit(**OPTIONS)
def width(rows):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the greatest word number + 1."""
    top = -1
    for p in range(rows.indices.shape[0]):
        top = max(top, rows.indices[p])
    return top + 1


@njit(**OPTIONS)
def scatter(dense, rows, row, factor):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Set dense[i] = factor * weight of the row's words."""
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        dense[rows.indices[p]] = factor * rows.data[p]


@njit(**OPTIONS)
def gather(dense, rows, row):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return the dot product of a dense vector and a row."""
    total = ZERO
    for p in range(rows.indptr[row], rows.indptr[row + 1]):
        total += dense[rows.indices[p]] * rows.data[p]
    return total
