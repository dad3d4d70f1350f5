"""Rows of words as matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from reranker.arrays import MOST_COPIED, N_TERM_IDS, term_rows


@pytest.mark.parametrize("n", [0, 1, 3, MOST_COPIED, MOST_COPIED + 1])
def test_rows_equal_those_of_scipy_and_share_nothing(n: int) -> None:
    rng = np.random.default_rng(n)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 4, n))]).astype(np.int32)
    words = [np.sort(rng.choice(1000, size, replace=False)) for size in np.diff(indptr)]
    indices = np.concatenate([np.zeros(0), *words]).astype(np.int32)
    data = rng.random(len(indices)).astype(np.float32)
    rows, other = term_rows(data, indices, indptr), term_rows(2 * data, indices, indptr)
    expected = sp.csr_matrix((data, indices, indptr), shape=(n, N_TERM_IDS))
    assert rows.shape == expected.shape
    assert rows.dtype == expected.dtype
    assert rows.has_sorted_indices
    assert rows.has_canonical_format
    assert abs(rows - expected).nnz == 0
    np.testing.assert_array_equal(other.data, 2 * rows.data)
