"""The best columns of sparse rows: by hand, and compiled against the definition."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from papers import plain_kernels as row_best_compiled
from tests.reference import row_best as row_best_reference
from tests.seeds import seeded_rng

BOTH = pytest.mark.parametrize("kernels", [row_best_reference, row_best_compiled], ids=["reference", "compiled"])


@BOTH
def test_best_by_value_then_by_the_lower_column(kernels: ModuleType) -> None:
    indptr = np.array([0, 4, 4, 5], np.int32)
    indices = np.array([7, 2, 5, 0, 3], np.int32)
    values = np.array([0.5, 0.5, 0.9, 0.1, 0.2])
    assert kernels.best_columns(indptr, indices, values, 2).tolist() == [[5, 2], [-1, -1], [3, -1]]
    assert kernels.best_columns(indptr, indices, values, 3).tolist() == [[5, 2, 7], [-1, -1, -1], [3, -1, -1]]
    assert kernels.best_columns(indptr[:1], indices[:0], values[:0], 2).shape == (0, 2)


@pytest.mark.parametrize("k", [1, 2, 5, 50])
def test_compiled_is_the_definition(k: int) -> None:
    rng = seeded_rng(k)
    lengths = rng.integers(0, 30, 200)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.concatenate([rng.permutation(40)[:n] for n in lengths]).astype(np.int32)
    values = rng.integers(0, 6, indptr[-1]) / 4.0  # many ties
    expected = row_best_reference.best_columns(indptr, indices, values, k)
    np.testing.assert_array_equal(row_best_compiled.best_columns(indptr, indices, values, k), expected)
