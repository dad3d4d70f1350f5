"""Query expansion by blind feedback: the best documents of a first pass are added to the query (spec B02)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from papers.study_rows import Doubles, Floats, all_products, check_pairs, check_widths, pair_products
from reranker.errors import ConfigError

_BLOCK_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class QueryExpansion:
    """Scores q'.d with q' = q + beta * (1/E) * sum_{i=1..E} d_{r_i}, r_1..r_E the pool's best for q.

    beta = 0 is TF-IDF. Documents that share no word with the query are no feedback: with fewer than E others, the sum
    is over those, still divided by E. Equal scores go to the lower document number. q' is not made unit length, which
    would not change any order of documents.

    Parameters
    ----------
    pool : csr_matrix, (n_pool, D) float32
        Unit tf-idf rows of the documents of the first pass; the papers take those that are ranked afterwards, too.
    beta : float
        >= 0.
    n_feedback : int
        E >= 1.

    Raises
    ------
    ConfigError
        For a beta or an E outside of these ranges.

    Source
    ------
    SSI, section on query expansion; spec B02 and A23 (mean, not sum; the same pool in both passes).
    """

    pool: sp.csr_matrix
    beta: float = 0.5
    n_feedback: int = 5

    def __post_init__(self) -> None:
        if not (np.isfinite(self.beta) and self.beta >= 0):
            raise ConfigError(f"beta is {self.beta!r}: the weight of the feedback is finite and at least 0")
        if self.n_feedback < 1:
            raise ConfigError(f"n_feedback is {self.n_feedback}: expansion needs at least 1 document")

    def expanded(self, q_rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return q' of every query, (n_queries, D) float64."""
        check_widths(q_rows, self.pool)
        queries = q_rows.astype(np.float64)
        if not self.beta or not self.pool.shape[0] or not queries.shape[0]:
            return queries
        step = max(1, _BLOCK_BYTES // (8 * self.pool.shape[0]))
        blocks = [self._feedback(queries[start : start + step]) for start in range(0, queries.shape[0], step)]
        chosen = sp.vstack(blocks, format="csr")
        out: sp.csr_matrix = (queries + (self.beta / self.n_feedback) * (chosen @ self.pool.astype(np.float64))).tocsr()
        out.sort_indices()
        return out

    def score_matrix(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return q'.d of every query with every document, (n_queries, n_documents) float32."""
        check_widths(q_rows, d_rows)
        return all_products(self.expanded(q_rows), d_rows.astype(np.float64)).astype(np.float32)

    def score_pairs(self, q_rows: sp.csr_matrix, d_rows: sp.csr_matrix) -> Floats:
        """Return q'.d of query r with document r, (n,) float32."""
        check_widths(q_rows, d_rows)
        check_pairs(q_rows, d_rows)
        return pair_products(self.expanded(q_rows), d_rows.astype(np.float64)).astype(np.float32)

    def _feedback(self, queries: sp.csr_matrix) -> sp.csr_matrix:
        """Return 1 where a pool document is among the E best of a query, (n, n_pool) float64."""
        scores = all_products(queries, self.pool.astype(np.float64))
        best = _best(scores, self.n_feedback)
        row = np.repeat(np.arange(len(scores)), best.shape[1])
        found = scores[row, best.ravel()] > 0
        shape = (len(scores), self.pool.shape[0])
        return sp.csr_matrix((np.ones(int(found.sum())), (row[found], best.ravel()[found])), shape=shape)


def _best(scores: Doubles, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.intp]]:
    """Return the columns of the n greatest scores of each row, best first, equal ones by lower column."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :n]
