"""Linear maps of rows to other features: the first words, neighbours by co-occurrence (spec M08, M11 to M16)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from papers.row_best import best_columns
from reranker.errors import InputError, ShapeMismatch

Int32 = npt.NDArray[np.int32]
NO_NEIGHBOUR = -1
_BLOCK_VALUES = 2**24


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The map q' = q M of rows; nothing is made unit length again.

    Parameters
    ----------
    matrix : csr_matrix, (n_in, n_out) float32
        Row i says what word i becomes.
    """

    matrix: sp.csr_matrix

    def rows(self, rows: sp.csr_matrix) -> sp.csr_matrix:
        """Return the mapped rows, (n, n_out) float32 with sorted indices.

        Raises
        ------
        ShapeMismatch
            If the rows are not n_in columns wide.
        """
        if rows.shape[1] != self.matrix.shape[0]:
            raise ShapeMismatch(
                f"rows of {rows.shape[1]} columns do not fit a map of {self.matrix.shape[0]} features: make rows with "
                f"the vocabulary that the map was made with"
            )
        mapped = sp.csr_matrix(rows @ self.matrix, dtype=np.float32)
        mapped.sum_duplicates()
        return mapped

    def word_table(self, table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the embedding of each unmapped word, (n_in, N) float32, for a table of the mapped features.

        Features past the last row of ``table`` have no learned part.
        """
        rows: npt.NDArray[np.float32] = np.ascontiguousarray(self.matrix[:, : len(table)] @ table, dtype=np.float32)
        return rows


def identity_map(n_words: int) -> FeatureMap:
    """Return the map that changes nothing."""
    return top_n_map(n_words, n_words)


def top_n_map(n_in: int, n_words: int) -> FeatureMap:
    """Return the map that keeps the first, most frequent, words alone: (n_in, n_words) (spec M08).

    Raises
    ------
    InputError
        If ``n_words`` is negative or above ``n_in``.
    """
    if not 0 <= n_words <= n_in:
        raise InputError(f"{n_words} of {n_in} words cannot be kept; give 0 to {n_in}")
    return FeatureMap(sp.csr_matrix(sp.eye_array(n_in, n_words, dtype=np.float32, format="csr")))


def dice_neighbours(
    counts_rows: sp.csr_matrix, n_frequent: int, k: int, frequent_rows: sp.csr_matrix | None = None
) -> Int32:
    """Return S_1(i) .. S_k(i): the frequent words that share documents with word i most, by DICE.

    DICE(i, j) = 2 cooccur(i, j) / (occur(i) + occur(j)), all counted in documents, so DICE(i, i) = 1. A frequent word
    is its own first neighbour, also before another word of exactly its documents; other equal values go by the lower
    word.

    Parameters
    ----------
    counts_rows : csr_matrix, (n_documents, D)
        Words, or n-grams, of each document; a value that is not 0 counts as present.
    n_frequent : int
        F: neighbours are among words 0..F-1.
    k : int
        Neighbours a word.
    frequent_rows : csr_matrix, (n_documents, at least F), optional
        The words of the same documents where ``counts_rows`` are n-grams.

    Returns
    -------
    (D, k) int32
        `NO_NEIGHBOUR` (-1) where a word shares documents with fewer than k frequent words.

    Raises
    ------
    InputError
        If k or F is not in reach.
    ShapeMismatch
        If the two sides are not of the same documents.

    Notes
    -----
    Source: spec 2.4 (1, 2, 6), M11; A13 for the unit of counting.
    """
    words = counts_rows if frequent_rows is None else frequent_rows
    if words.shape[0] != counts_rows.shape[0]:
        raise ShapeMismatch(
            f"{counts_rows.shape[0]} and {words.shape[0]} documents were given; both sides must be of the same ones"
        )
    if not (1 <= n_frequent <= words.shape[1] and k >= 1):
        raise InputError(
            f"{k} neighbours among {n_frequent} frequent words cannot be had of {words.shape[1]} words: give k of at "
            f"least 1 and 1 to {words.shape[1]} frequent words"
        )
    features = sp.csr_matrix(_present(counts_rows).T)
    frequent = sp.csr_matrix(_present(words)[:, :n_frequent])
    frequent_occur = np.asarray(frequent.sum(axis=0), np.float64).ravel()
    found = np.full((counts_rows.shape[1], k), NO_NEIGHBOUR, np.int32)
    joint = features @ np.diff(frequent.indptr).astype(np.float64)  # (word, document, frequent word) to go through
    edges = np.flatnonzero(np.diff(np.cumsum(joint) // _BLOCK_VALUES, prepend=0.0)) + 1
    for start, stop in pairwise([0, *edges.tolist(), len(found)]):
        block = features[start:stop]
        occur = np.asarray(block.sum(axis=1), np.float64).ravel()
        shared = sp.csr_matrix(block @ frequent)
        word = np.repeat(np.arange(start, stop), np.diff(shared.indptr))
        dice = 2.0 * shared.data / (occur[word - start] + frequent_occur[shared.indices])
        if frequent_rows is None:
            dice[shared.indices == word] = np.inf
        found[start:stop] = best_columns(shared.indptr, shared.indices, dice, k)
    return found


def _present(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return 1 where a row holds a word."""
    present = sp.csr_matrix((rows.data != 0, rows.indices, rows.indptr), shape=rows.shape, dtype=np.float64)
    present.eliminate_zeros()
    return present


def correlated_map(neighbours: Int32, n_frequent: int, replaced: npt.NDArray[np.bool_] | None = None) -> FeatureMap:
    """Return the map q' = sum_i q_i (1/k) sum_p e_{S_p(i)} of correlated feature hashing.

    Words that share a neighbour add up, so mapped rows are longer than a unit: models over them need a smaller rate.

    Parameters
    ----------
    neighbours : (D, k) int32
        From `dice_neighbours`; rows may be words and n-grams one after the other. Entries of -1 add nothing.
    n_frequent : int
        F, the features after the map.
    replaced : (D,) bool, optional
        Features that take part; the others vanish. Model B of M14 takes the words that model A has no weights for.

    Returns
    -------
    FeatureMap, (D, F)

    Raises
    ------
    InputError
        If a neighbour is F or above.
    ShapeMismatch
        If ``replaced`` has another length.

    Notes
    -----
    Source: spec 2.4 (5), M12 (k = 1), M13 (k = 5); A12: with k > 1 this holds cross terms of different p.
    """
    n_features, k = neighbours.shape
    if neighbours.max(initial=-1) >= n_frequent:
        raise InputError(f"neighbour {neighbours.max()} is not among {n_frequent} frequent words; give the same F")
    if replaced is not None and replaced.shape != (n_features,):
        raise ShapeMismatch(
            f"a choice of shape {replaced.shape} does not fit {n_features} features: give one bool each"
        )
    taken = neighbours >= 0
    if replaced is not None:
        taken = taken & replaced[:, None]
    word, place = np.nonzero(taken)
    shares = np.full(len(word), 1.0 / k, np.float32)
    matrix = sp.csr_matrix((shares, (word, neighbours[word, place])), shape=(n_features, n_frequent))
    return FeatureMap(matrix)


def join_columns(*parts: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows of several feature sets side by side: words, then 2-grams, ... (spec R05, M15, M16)."""
    joined = sp.csr_matrix(sp.hstack(parts, format="csr"), dtype=np.float32)
    joined.sort_indices()
    return joined
