"""Hard negatives: the documents that stand highest for each query by the model as it is."""

from __future__ import annotations

import numpy as np

from reranker.arrays import Float32, Int64
from reranker.evaluation.ranking import InnerProducts
from reranker.kernels.rows import embed_rows
from reranker.training.problem import Problem, csr_of

N_NEAREST = 100
"""Documents looked up for a query."""
MAX_QUERIES = 20_000
MAX_DOCUMENTS = 20_000
"""Of more queries or documents a random part is looked at: a look-up costs as much as their product."""
_N_LEXICAL = 300  # beyond these, the lexical score is taken for that of the last one: bound and good enough to find by
_BLOCK = 256


class NearestDocuments:
    """Looks up, for the queries of a problem, documents of its pool that the model puts high and that are not known.

    The lexical part is ranked once, on construction; of documents past a query's first 300 there, it counts as that of
    the 300th. ``rng`` draws queries and documents where there are more than `MAX_QUERIES` and `MAX_DOCUMENTS`. Memory:
    3.6 kB a query.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._n_queries = len(problem.queries.indptr) - 1
        self._queries = _some(np.unique(problem.tuples.query), MAX_QUERIES, rng)
        self._pool = _some(problem.negatives.pool, MAX_DOCUMENTS, rng)
        self._n_nearest = min(N_NEAREST, len(self._pool) - 1)
        lexical, n_columns = problem.lexical, problem.n_columns
        self._asked = csr_of(problem.queries, n_columns)[self._queries]
        place = np.full(len(problem.documents.indptr) - 1, -1, np.int64)
        place[self._pool] = np.arange(len(self._pool))
        known = problem.negatives
        lists = [place[known.known[known.known_indptr[q] : known.known_indptr[q + 1]]] for q in self._queries.tolist()]
        self._known = [columns[columns >= 0] for columns in lists]
        n = min(_N_LEXICAL, len(self._pool))
        self._columns: Int64 = np.empty((len(self._queries), n), np.int64)
        self._values: Float32 = np.empty((len(self._queries), n), np.float32)
        q, d = (
            csr_of(rows._replace(data=values), n_columns)[chosen]
            for rows, values, chosen in (
                (problem.queries, lexical.queries, self._queries),
                (problem.documents, lexical.documents, self._pool),
            )
        )
        products = InnerProducts(query_rows=q, document_rows=d)
        for start in range(0, len(self._queries), _BLOCK):
            scores = products.block(start, min(start + _BLOCK, len(self._queries)))
            columns = np.argpartition(-scores, n - 1, axis=1)[:, :n]
            values = np.take_along_axis(scores, columns, axis=1)
            order = np.lexsort((columns, -values), axis=1)
            self._columns[start : start + _BLOCK] = np.take_along_axis(columns, order, axis=1)
            self._values[start : start + _BLOCK] = np.take_along_axis(values, order, axis=1)

    def look_up(self, U: Float32, vectors: Float32, identity: float) -> Int64:
        """Return the rows of documents by query, (n_queries, n) int64, ascending; -1 where a query was not looked at.

        ``vectors`` (n_documents, N) float32 are Vd, ``identity`` is a.
        """
        found = np.full((self._n_queries, max(self._n_nearest, 1)), -1, np.int64)
        if self._n_nearest < 1:
            return found
        pool_vectors = vectors[self._pool].T
        for start in range(0, len(self._queries), _BLOCK):
            rows = self._queries[start : start + _BLOCK]
            scores = embed_rows(self._asked[start : start + _BLOCK], U) @ pool_vectors
            columns, values = self._columns[start : start + _BLOCK], self._values[start : start + _BLOCK]
            above_last = np.float32(identity) * (values - values[:, -1:])
            np.put_along_axis(scores, columns, np.take_along_axis(scores, columns, axis=1) + above_last, axis=1)
            for row, known in zip(scores, self._known[start : start + _BLOCK], strict=True):
                row[known] = -np.inf
            highest = np.argpartition(-scores, self._n_nearest - 1, axis=1)[:, : self._n_nearest]
            usable = np.isfinite(np.take_along_axis(scores, highest, axis=1)).all(axis=1)
            found[rows[usable]] = np.sort(self._pool[highest[usable]], axis=1)
        return found


def _some(rows: Int64, most: int, rng: np.random.Generator) -> Int64:
    """Return the rows, or ``most`` random ones of them, ascending."""
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
