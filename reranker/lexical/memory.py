"""The memory of documents: words of the queries that each was relevant to, or of the pages that link to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Float64, Int32, Int64, offsets_of, term_rows
from reranker.errors import InputError, ShapeMismatch
from reranker.text.rows import keys_of, row_of, select_columns, stack_rows, used_columns

MEMORY_TYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "ids": np.dtype("u1"),
    "id_offsets": np.dtype("<i8"),
    "row_offsets": np.dtype("<i8"),
    "words": np.dtype("<i4"),
    "values": np.dtype("<f4"),
    "added_words": np.dtype("<i4"),
    "added_frequency": np.dtype("<i8"),
}
"""Name and type of each array of `QueryMemory.to_arrays`."""


def memory_rows(
    queries: sp.csr_matrix, pairs: tuple[AnyInt, AnyInt], n_documents: int, weights: Float64 | None = None
) -> sp.csr_matrix:
    """Return m_d(w) = Σ_q v(q, d) c_q(w) / √(number of words of q) of each document, (n_documents, width) float32.

    The sum is over the distinct pairs (q, d), with v(q, d) = min(1, sum of the weights of the pair). A judged pair has
    weight 1 for every grade; it counts once even if it was judged several times. A clicked pair counts by the weight of
    its evidence, but at most as much as a judged pair: a hundred clicks do not make a document a hundred times as
    relevant. The sums are not damped and not divided by the number of queries of d: BM25's saturation of the plain sums
    measured better.

    Parameters
    ----------
    queries : csr_matrix
        c_q, the word counts of each query, (n_queries, width) float32.
    pairs : tuple of arrays
        Rows of ``queries``, (m,) int, and row numbers of documents, (m,) int.
    n_documents : int
        Number of documents.
    weights : array, optional
        Weight of each pair, (m,) float64, at least 0; 1 if not given. Pairs of weight 0 are left out.
    """
    q, d = (np.asarray(part, dtype=np.int64) for part in pairs)
    keys, pair_of = np.unique(d * queries.shape[0] + q, return_inverse=True)
    values = np.minimum(np.bincount(pair_of, weights, minlength=len(keys)), 1.0)
    keys, values = keys[values > 0], values[values > 0]
    d, q = np.divmod(keys, max(queries.shape[0], 1))
    n_words = np.asarray(queries.sum(axis=1), dtype=np.float64).ravel()
    values /= np.sqrt(np.maximum(n_words, 1))[q]
    of_pairs = sp.csr_matrix((values, (d, q)), shape=(n_documents, queries.shape[0]))
    columns = used_columns([queries])
    sums = (of_pairs @ select_columns(queries, columns)).tocsr()
    sums.sort_indices()
    parts = (sums.data.astype(np.float32), columns[sums.indices].astype(np.int32), sums.indptr)
    return sp.csr_matrix(parts, shape=(n_documents, queries.shape[1]))


class WordRarity(NamedTuple):
    """How rare the words of queries are: ln(1 + n / n(w)) of each word w that n(w) of n queries hold."""

    words: Int64
    """Word numbers, (m,) int64, ascending."""
    values: Float64
    """(m,) float64."""

    @classmethod
    def of(cls, queries: sp.csr_matrix) -> WordRarity:
        """Return the rarity of the words of queries, given their word counts, (n, width)."""
        words = used_columns([queries])
        frequency = np.bincount(np.searchsorted(words, queries.indices), minlength=len(words))
        return cls(words, np.log1p(queries.shape[0] / frequency))


def largest_words(rows: sp.csr_matrix, rarity: WordRarity, n_words: int) -> sp.csr_matrix[np.float32]:
    """Return rows of a memory that keep at most ``n_words`` words each, those of the largest m_d(w) times rarity.

    Of equals the lower word number is kept.
    """
    worth = rows.data * rarity.values[np.searchsorted(rarity.words, rows.indices)]
    row = row_of(rows)
    order = np.lexsort((-worth, row))
    is_kept = np.zeros(rows.nnz, bool)
    is_kept[order[np.arange(rows.nnz) - rows.indptr[:-1].astype(np.int64)[row] < n_words]] = True
    return term_rows(rows.data[is_kept], rows.indices[is_kept], offsets_of(is_kept)[rows.indptr].astype(np.int32))


@dataclass(frozen=True, eq=False)
class QueryMemory:
    """The memory m_d of documents by id: the queries for which they were relevant in training, see `memory_rows`.

    The memory is one more field of a document, after the fields of the view; only the lexical row uses it. A query word
    that occurs in the memory but not in the text of a document still finds the document. Such a word counts towards the
    document frequency: df'(w) = df(w) + the number of documents that hold w only in their memory. Queries and pairs are
    not stored, only word numbers and sums.

    Raises
    ------
    InputError
        If ids, rows, words or counts break a rule stated at the field.

    Notes
    -----
    Sources: Xue et al. 2004 (queries as words of the pages clicked for them); Robertson, Zaragoza 2009, 3.6 (streams of
    a document in BM25F). The factor 1 / √(words) and the undamped sums were chosen by measurement.
    """

    ids: tuple[str, ...]
    """Ids of the documents that have a memory, ascending."""
    rows: sp.csr_matrix
    """m_d of each document, (len(ids), N_TERM_IDS) float32; no row is empty, words ascend, values are above 0."""
    added_words: Int32
    """Words that some documents hold only in their memory, (n_words,) int32, ascending."""
    added_frequency: Int64
    """Number of documents that hold each of ``added_words`` only in their memory, (n_words,) int64, 1 to len(ids)."""
    _place: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows, words, counts = self.rows, self.added_words, self.added_frequency
        if rows.shape != (len(self.ids), N_TERM_IDS) or rows.dtype != np.float32 or not np.diff(rows.indptr).all():
            raise InputError(
                f"a memory of {len(self.ids)} documents has {rows.dtype} rows of shape {rows.shape}, or empty rows: "
                f"give one float32 row with words per document"
            )
        if not ("" < min(self.ids, default="a") and all(a < b for a, b in pairwise(self.ids))):
            raise InputError("the ids of a memory must be distinct and ascending: build it with QueryMemory.of")
        if not (np.all(np.diff(keys_of(rows)) > 0) and np.all((rows.indices >= 0) & (rows.indices < N_TERM_IDS))):
            raise InputError(f"the words of a memory's rows must be ascending and between 0 and {N_TERM_IDS - 1}")
        if not np.all((rows.data > 0) & np.isfinite(rows.data)):
            raise InputError("the values of a memory must be finite and above 0")
        fits = words.shape == counts.shape and np.all((counts > 0) & (counts <= len(self.ids)))
        if not (fits and np.all(np.diff(words) > 0) and np.isin(words, rows.indices).all()):
            raise InputError(
                "added_words of a memory must be ascending, occur in its rows, and have counts from 1 to its documents"
            )
        object.__setattr__(self, "_place", {identifier: place for place, identifier in enumerate(self.ids)})

    @classmethod
    def of(cls, ids: Sequence[str], rows: sp.csr_matrix, fields: Sequence[sp.csr_matrix]) -> QueryMemory:
        """Return the memory of documents from their `memory_rows` and the word counts of each field.

        Raises `ShapeMismatch` if a matrix does not have one row per id.
        """
        if {part.shape for part in (rows, *fields)} != {(len(ids), N_TERM_IDS)}:
            shapes = [part.shape for part in (rows, *fields)]
            raise ShapeMismatch(
                f"a memory of {len(ids)} ids has rows {shapes[0]} and fields {shapes[1:]}: give one row per id"
            )
        filled = np.flatnonzero(np.diff(rows.indptr))
        of_memory, *texts = (keys_of(part[filled]) for part in (rows, *fields))
        alone = of_memory[~np.isin(of_memory, np.concatenate(texts))] & N_TERM_IDS
        words, counts = np.unique(alone, return_counts=True)
        places = sorted(filled.tolist(), key=ids.__getitem__)
        kept = tuple(ids[place] for place in places)
        return cls(kept, rows[places], words.astype(np.int32), counts.astype(np.int64))

    def __len__(self) -> int:
        """Return the number of documents that have a memory."""
        return len(self.ids)

    def counts(self, ids: Sequence[str] | None, n: int) -> sp.csr_matrix:
        """Return m_d of ``n`` documents, (n, N_TERM_IDS) float32.

        Rows of documents without a memory are empty; all rows are if ``ids`` is None.
        """
        places = [] if ids is None else [self._place.get(identifier, -1) for identifier in ids]
        known = [place for place in places if place >= 0]
        rows = self.rows[known] if known else stack_rows([])
        lengths = np.zeros(n, dtype=np.int64)
        lengths[np.flatnonzero(np.array(places, dtype=np.int64) >= 0)] = np.diff(rows.indptr)
        return term_rows(rows.data, rows.indices, offsets_of(lengths).astype(np.int32))

    def frequency_of(self, ids: AnyInt) -> Int64:
        """Return the number of documents that hold each word only in their memory, (n,) int64."""
        if not len(self.added_words):
            return np.zeros(len(ids), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.added_words, ids), len(self.added_words) - 1)
        return np.where(self.added_words[places] == ids, self.added_frequency[places], 0)

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the memory as plain arrays of `MEMORY_TYPES`; `from_arrays` reads them.

        Returns
        -------
        dict
            ``ids`` (n_bytes,): all ids in UTF-8, without separators.
            ``id_offsets`` (n + 1,): the start of each id, and the end of the last.
            ``words``, ``values`` (n_values,): the rows one after the other.
            ``row_offsets`` (n + 1,): the start of each row, and the end of the last.
            ``added_words``, ``added_frequency`` (n_words,): the fields of those names.
        """
        encoded = [identifier.encode("utf-8", "surrogatepass") for identifier in self.ids]
        arrays = (
            np.frombuffer(b"".join(encoded), dtype=np.uint8),
            offsets_of([len(data) for data in encoded]),
            self.rows.indptr,
            self.rows.indices,
            self.rows.data,
            self.added_words,
            self.added_frequency,
        )
        return {name: np.array(array, kind) for (name, kind), array in zip(MEMORY_TYPES.items(), arrays, strict=True)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> QueryMemory:
        """Return the memory that `to_arrays` wrote; raises `InputError` if bytes are not UTF-8 or a rule is broken."""
        id_offsets, row_offsets = arrays["id_offsets"], arrays["row_offsets"]
        data, words, values = arrays["ids"].tobytes(), arrays["words"], arrays["values"]
        for offsets, end in ((id_offsets, len(data)), (row_offsets, len(words)), (row_offsets, len(values))):
            rising = len(offsets) and offsets[0] == 0 and offsets[-1] == end and not np.any(np.diff(offsets) < 0)
            if not rising or len(offsets) != len(id_offsets):
                raise InputError(f"offsets of a memory do not rise from 0 to {end}: the file is damaged; copy it again")
        try:
            ids = tuple(data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(id_offsets.tolist()))
        except UnicodeDecodeError as error:
            raise InputError(f"an id of a memory is not UTF-8 ({error}): the file is damaged; copy it again") from error
        return cls(
            ids,
            term_rows(values, words, row_offsets.astype(np.int32)),
            arrays["added_words"],
            arrays["added_frequency"],
        )
