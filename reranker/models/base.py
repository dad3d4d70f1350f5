"""The one thing that every model can do; `tests/contract/test_scorers.py` is the rest of the contract."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Scores = npt.NDArray[np.float32]


@runtime_checkable
class Scorer(Protocol):
    """A function f(q, d) over tf-idf rows; greater is better. Immutable: equal inputs give equal scores.

    Rows are ``scipy.sparse.csr_matrix`` float32 with strictly increasing ids in each row, 2**31 - 1 columns wide.
    """

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of every query with every document, (n_queries, n_documents) float32."""
        ...

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Scores:
        """Return f of query r with document r, (n_pairs,) float32."""
        ...
