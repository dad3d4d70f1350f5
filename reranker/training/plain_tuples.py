"""What the papers' plain SGD learns from, and its tuples (q, d+, d-) (spec 2.1, R09)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.errors import ConfigError, ShapeMismatch, TrainingError
from reranker.kernels.plain_sgd_types import Triples
from reranker.models.feature_map import FeatureMap

Int64 = npt.NDArray[np.int64]
_REDRAWS = 64


@dataclass(frozen=True, eq=False)
class PlainData:
    """Texts, and which documents belong to which query.

    Parameters
    ----------
    q_rows : csr_matrix, (n_queries, D_q) float32
        Queries; sorted indices.
    d_rows : csr_matrix, (n_documents, D_d) float32
        Documents.
    relevant : csr_matrix, (n_queries, n_documents)
        Not 0 where the document belongs to the query: the links to learn from.
    own : (n_queries,) int64
        Row of the query's own text among the documents, never drawn; -1 where it is none of them.
    known : csr_matrix, (n_queries, n_documents), optional
        Further documents that are never drawn as negatives: links of validation and test (spec A17).
    keywords : int, optional
        Cut each query, anew at each step, to so many of its words, drawn without replacement, of unit length (A21).
    query_map, document_map : FeatureMap, optional
        What rows become before the model sees them.

    Raises
    ------
    ShapeMismatch
        If the sizes do not fit each other.
    ConfigError
        If ``keywords`` is below 1.
    """

    q_rows: sp.csr_matrix
    d_rows: sp.csr_matrix
    relevant: sp.csr_matrix
    own: Int64
    known: sp.csr_matrix | None = None
    keywords: int | None = None
    query_map: FeatureMap | None = None
    document_map: FeatureMap | None = None

    def __post_init__(self) -> None:
        shape = (self.q_rows.shape[0], self.d_rows.shape[0])
        for name, matrix in (("relevant", self.relevant), ("known", self.known)):
            if matrix is not None and matrix.shape != shape:
                raise ShapeMismatch(
                    f"{name} has the shape {matrix.shape} for {shape[0]} queries and {shape[1]} documents: give one "
                    f"row a query and one column a document"
                )
        if self.own.shape != shape[:1] or self.own.max(initial=-1) >= shape[1]:
            raise ShapeMismatch(
                f"own texts of shape {self.own.shape} up to {self.own.max(initial=-1)} do not fit {shape[0]} queries "
                f"and {shape[1]} documents: give each query a document's row, or -1"
            )
        if self.keywords is not None and self.keywords < 1:
            raise ConfigError(f"queries of {self.keywords} keywords cannot be made; give 1 or more, or None")

    def mapped(self, query_map: FeatureMap, document_map: FeatureMap) -> PlainData:
        """Return the same data for a model over mapped rows."""
        return replace(self, query_map=query_map, document_map=document_map)

    def query_features(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return query rows as the model sees them."""
        return rows if self.query_map is None else self.query_map.rows(rows)

    def document_features(self) -> sp.csr_matrix:
        """Return the documents' rows as the model sees them."""
        return self.d_rows if self.document_map is None else self.document_map.rows(self.d_rows)

    @property
    def widths(self) -> tuple[int, int]:
        """Features of queries and of documents, after the maps."""
        query = self.q_rows.shape[1] if self.query_map is None else self.query_map.matrix.shape[1]
        document = self.d_rows.shape[1] if self.document_map is None else self.document_map.matrix.shape[1]
        return int(query), int(document)


class TripleSampler:
    """Draws tuples (query, relevant document, other document).

    The negative is uniform over the documents that are neither related to the query nor its own text. Links of queries
    for which no document is left are never drawn.

    Parameters
    ----------
    data : PlainData
        Links.

    Raises
    ------
    TrainingError
        If no tuple can be drawn.

    Notes
    -----
    Source: spec R09, A17.
    """

    def __init__(self, data: PlainData) -> None:
        self._n_documents = data.d_rows.shape[0]
        links = sp.coo_matrix(data.relevant)
        excluded = [_keys(data.relevant, self._n_documents)]
        if data.known is not None:
            excluded.append(_keys(data.known, self._n_documents))
        has_own = np.flatnonzero(data.own >= 0)
        excluded.append(has_own * np.int64(self._n_documents) + data.own[has_own])
        self._excluded: Int64 = np.unique(np.concatenate(excluded))
        taken = np.bincount(self._excluded // max(self._n_documents, 1), minlength=data.q_rows.shape[0])
        usable = (links.data != 0) & (taken[links.row] < self._n_documents)
        order = np.lexsort((links.col[usable], links.row[usable]))
        self._query: Int64 = links.row[usable][order].astype(np.int64)
        self._document: Int64 = links.col[usable][order].astype(np.int64)
        if not len(self._query):
            raise TrainingError(
                f"no tuple can be drawn from {links.nnz} links: a query needs a relevant document and another one that "
                f"is neither relevant nor its own text"
            )

    @property
    def n_links(self) -> int:
        """Links that tuples are drawn from."""
        return len(self._query)

    def draw(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n tuples for training, uniform over links."""
        return self._with_negatives(rng.integers(self.n_links, size=n), rng)

    def draw_by_query(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n tuples for a test, uniform over queries with links, then over the query's links."""
        queries, first, counts = np.unique(self._query, return_index=True, return_counts=True)
        chosen = rng.integers(len(queries), size=n)
        return self._with_negatives(first[chosen] + rng.integers(counts[chosen]), rng)

    def _with_negatives(self, links: Int64, rng: np.random.Generator) -> Triples:
        query = self._query[links]
        negative = rng.integers(self._n_documents, size=len(query))
        again = np.flatnonzero(self._is_excluded(query, negative))
        for _ in range(_REDRAWS):
            if not len(again):
                break
            negative[again] = rng.integers(self._n_documents, size=len(again))
            again = again[self._is_excluded(query[again], negative[again])]
        for place in again:  # nearly every document belongs to the query: list the others
            first = int(query[place]) * self._n_documents
            low, high = np.searchsorted(self._excluded, [first, first + self._n_documents])
            left = np.setdiff1d(np.arange(self._n_documents), self._excluded[low:high] - first, assume_unique=True)
            negative[place] = rng.choice(left)
        return Triples(query, self._document[links], negative)

    def _is_excluded(self, query: Int64, document: Int64) -> npt.NDArray[np.bool_]:
        keys = query * np.int64(self._n_documents) + document
        places = np.minimum(np.searchsorted(self._excluded, keys), len(self._excluded) - 1)
        found: npt.NDArray[np.bool_] = self._excluded[places] == keys
        return found


class Sampler(Protocol):
    """Draws tuples for training."""

    def draw(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n tuples."""
        ...


@dataclass(frozen=True, eq=False)
class PreferenceSampler:
    """Draws given tuples: a document that was judged or clicked over another one, for the same query.

    Parameters
    ----------
    pairs : Triples
        Query, better and worse document of each.
    weights : (n_pairs,) float64, optional
        Each is drawn in proportion to it; all alike if not given.

    Raises
    ------
    TrainingError
        If there is no pair, or none with a weight above 0.
    ShapeMismatch
        If there is not one weight a pair.

    Notes
    -----
    Source: spec 2.1 (tuples), 2.7 and T14 (preferences within a query).
    """

    pairs: Triples
    weights: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        n_pairs = len(self.pairs.query)
        if self.weights is not None and self.weights.shape != (n_pairs,):
            raise ShapeMismatch(f"{self.weights.shape} weights for {n_pairs:,} pairs: give one a pair")
        total = float(n_pairs) if self.weights is None else float(self.weights.sum())
        if not (total > 0 and np.isfinite(total)) or (self.weights is not None and self.weights.min() < 0):
            raise TrainingError(
                f"{n_pairs:,} pairs of a weight of {total:g} together: training needs a pair with a finite weight "
                f"above 0, and none below 0"
            )

    def draw(self, n: int, rng: np.random.Generator) -> Triples:
        """Return n of the tuples."""
        if self.weights is None:
            chosen = rng.integers(len(self.pairs.query), size=n)
        else:
            upto = np.cumsum(self.weights)
            # "right": a draw at the border of two pairs is the second one's, so a weight of 0 is never drawn.
            chosen = np.searchsorted(upto, rng.random(n) * upto[-1], side="right")
            chosen = np.minimum(chosen, np.flatnonzero(self.weights)[-1])  # where the product was rounded up
        return Triples(*(part[chosen] for part in self.pairs))


def cut_to_keywords(rows: sp.csr_matrix, n_words: int, rng: np.random.Generator) -> sp.csr_matrix:
    """Return each row with ``n_words`` of its words, uniform without replacement (all if fewer), at unit length.

    Source: spec T3, A21.
    """
    row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    order = np.lexsort((rng.random(rows.nnz), row))
    place = np.arange(rows.nnz) - rows.indptr[row]  # the sort leaves rows where they are
    kept = np.sort(order[place < n_words])
    cut = np.concatenate([[0], np.cumsum(np.minimum(np.diff(rows.indptr), n_words))])
    data = rows.data[kept]
    length = np.sqrt(np.bincount(row[kept], data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    return sp.csr_matrix(((data / length[row[kept]]).astype(np.float32), rows.indices[kept], cut), shape=rows.shape)


def _keys(matrix: sp.csr_matrix, n_documents: int) -> Int64:
    """Return query * n_documents + document of the values that are not 0."""
    query, document = matrix.nonzero()
    keys: Int64 = query.astype(np.int64) * np.int64(n_documents) + document
    return keys
