"""The memory of queries: the words of queries for which each document was judged or clicked relevant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Float64, Int32, Int64, offsets_of, term_rows
from reranker.errors import InputError, ShapeMismatch
from reranker.text.rows import keys_of, select_columns, stack_rows, used_columns

MEMORY_TYPES: Final[Mapping[str, np.dtype[np.generic]]] = {
    "ids": np.dtype("u1"),
    "id_offsets": np.dtype("<i8"),
    "row_offsets": np.dtype("<i8"),
    "words": np.dtype("<i4"),
    "values": np.dtype("<f4"),
    "added_words": np.dtype("<i4"),
    "added_frequency": np.dtype("<i8"),
}
"""The arrays of `QueryMemory.to_arrays`, and the type of each."""


def memory_rows(
    queries: sp.csr_matrix, pairs: tuple[AnyInt, AnyInt], n_documents: int, weights: Float64 | None = None
) -> sp.csr_matrix:
    """Return m_d(w) = Σ_q v(q, d) c_q(w) / √(number of words of q) of each document, (n_documents, width) float32.

    The sum is over the different pairs (q, d); v(q, d) = min(1, sum of the weights of the pair). So a judged pair, of
    weight 1 whatever its grade, counts once however often it was judged, and a pair that was clicked counts as much as
    its evidence weighs and never more than a judged one: what many people clicked is not a hundred times as relevant.
    The sums are neither damped nor divided by the number of d's queries: the saturation of BM25 over them did better.

    ``queries`` (n_queries, width) float32 are c_q, the counts of the words of each; ``pairs`` (m,) and (m,) int are
    rows of them, and row numbers of documents; ``weights`` (m,) float64, at least 0, are of each pair, 1 if not given.
    A pair of weight 0 is left out.
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


@dataclass(frozen=True, eq=False)
class QueryMemory:
    """The queries that documents were relevant for, in the training of the model: `memory_rows` by document id.

    It is one more field of a document, after those of the view, of the lexical row alone. A word that stands in it and
    not in the document's text finds the document all the same, and is counted as standing in it: df'(w) = df(w) + the
    number of documents that have w in their memory alone. Neither the queries nor the pairs are kept, only word numbers
    and sums. `InputError` is raised where ids, rows, words or counts are not as stated here.

    Source: Xue et al. 2004 (queries as words of the pages that were clicked for them); Robertson, Zaragoza 2009, 3.6
    (streams of a document in BM25F). 1 / √(words) and undamped sums were chosen by measuring.
    """

    ids: tuple[str, ...]
    """Documents that have a memory, ascending."""
    rows: sp.csr_matrix
    """(len(ids), N_TERM_IDS) float32: m_d of each, none of them empty, words ascending, values above 0."""
    added_words: Int32
    """(n_words,) int32, ascending: words that documents have in their memory alone."""
    added_frequency: Int64
    """(n_words,) int64: in how many documents, 1 to len(ids)."""
    _place: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rows, words, counts = self.rows, self.added_words, self.added_frequency
        if rows.shape != (len(self.ids), N_TERM_IDS) or rows.dtype != np.float32 or not np.diff(rows.indptr).all():
            raise InputError(f"a memory of {len(self.ids)} documents has {rows.dtype} rows {rows.shape}, or empty ones")
        if not ("" < min(self.ids, default="a") and all(a < b for a, b in pairwise(self.ids))):
            raise InputError("the ids of a memory must be different and ascend: build it with QueryMemory.of")
        if not (np.all(np.diff(keys_of(rows)) > 0) and np.all((rows.indices >= 0) & (rows.indices < N_TERM_IDS))):
            raise InputError(f"the words of a memory's rows must ascend from 0 to at most {N_TERM_IDS - 1}")
        if not np.all((rows.data > 0) & np.isfinite(rows.data)):
            raise InputError("the values of a memory must be finite and above 0")
        fits = words.shape == counts.shape and np.all((counts > 0) & (counts <= len(self.ids)))
        if not (fits and np.all(np.diff(words) > 0) and np.isin(words, rows.indices).all()):
            raise InputError(
                "the words that a memory adds must ascend, stand in its rows, and each in 1 to all of them"
            )
        object.__setattr__(self, "_place", {identifier: place for place, identifier in enumerate(self.ids)})

    @classmethod
    def of(cls, ids: Sequence[str], rows: sp.csr_matrix, fields: Sequence[sp.csr_matrix]) -> QueryMemory:
        """Return the memory of documents by `memory_rows` and fields' counts; `ShapeMismatch`: not one row an id."""
        if {part.shape for part in (rows, *fields)} != {(len(ids), N_TERM_IDS)}:
            shapes = [part.shape for part in (rows, *fields)]
            raise ShapeMismatch(f"a memory of {len(ids)} ids has rows {shapes[0]}, fields {shapes[1:]}: one row an id")
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
        """Return m_d of ``n`` documents by their ids, (n, N_TERM_IDS) float32; empty rows for others, and for None."""
        places = [] if ids is None else [self._place.get(identifier, -1) for identifier in ids]
        known = [place for place in places if place >= 0]
        rows = self.rows[known] if known else stack_rows([])
        lengths = np.zeros(n, dtype=np.int64)
        lengths[np.flatnonzero(np.array(places, dtype=np.int64) >= 0)] = np.diff(rows.indptr)
        return term_rows(rows.data, rows.indices, offsets_of(lengths).astype(np.int32))

    def frequency_of(self, ids: AnyInt) -> Int64:
        """Return what the memory adds to the document frequency of each word number, (n,) int64."""
        if not len(self.added_words):
            return np.zeros(len(ids), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.added_words, ids), len(self.added_words) - 1)
        return np.where(self.added_words[places] == ids, self.added_frequency[places], 0)

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the memory as plain arrays of `MEMORY_TYPES`, see `from_arrays`.

        ``ids`` (n_bytes,) all ids in UTF-8 without separators, ``id_offsets`` (n + 1,) where each begins and the last
        ends; ``words`` and ``values`` (n_values,) the rows one after the other, ``row_offsets`` (n + 1,) where each
        begins; ``added_words`` and ``added_frequency`` (n_words,).
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
        """Return the memory that `to_arrays` wrote; `InputError` for bytes that are not UTF-8, or a broken rule."""
        id_offsets, row_offsets = arrays["id_offsets"], arrays["row_offsets"]
        data, words, values = arrays["ids"].tobytes(), arrays["words"], arrays["values"]
        for offsets, end in ((id_offsets, len(data)), (row_offsets, len(words)), (row_offsets, len(values))):
            rising = len(offsets) and offsets[0] == 0 and offsets[-1] == end and not np.any(np.diff(offsets) < 0)
            if not rising or len(offsets) != len(id_offsets):
                raise InputError(f"offsets of a memory do not rise from 0 to {end}: the file is damaged; copy it again")
        try:
            ids = tuple(data[a:b].decode("utf-8", "surrogatepass") for a, b in pairwise(id_offsets.tolist()))
        except UnicodeDecodeError as error:
            raise InputError(f"an id of a memory is not UTF-8 ({error}): copy it again") from error
        return cls(
            ids,
            term_rows(values, words, row_offsets.astype(np.int32)),
            arrays["added_words"],
            arrays["added_frequency"],
        )
