"""Words to weighted rows: a vocabulary that numbers words, tf-idf rows over it, and what is done with such rows.

The vocabulary is a closed list of learned words by decreasing document frequency, and an open end by hashing. A known
word has its place in the list, 0 to D-1. Any other word has ``HASH_BASE + h mod HASH_SPAN``, with h the first 8 bytes
(little endian) of the BLAKE2b-64 of its UTF-8 form: the same number in every vocabulary and on every machine, so a word
never seen in training still meets itself in the identity part of the score.

Rows over it are those of a ``csr_matrix`` of `N_TERM_IDS` columns, so everything here costs what is stored, whatever
the width: scipy's own stacking, column indexing and products allocate arrays of that width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Float32, Float64, Int32, Int64, offsets_of, term_rows
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.text.analyzers import Analyzer
from reranker.text.view import TextView

HASH_BASE = 2**30
HASH_SPAN = 2**30 - 1
TERM_FREQUENCIES = ("raw", "log")
ROW_SHIFT = 31
"""A sortable number of a stored value: row << ROW_SHIFT | term id."""
NARROW = 1_000_000
"""Columns that scipy's work arrays may have: a few MB."""

_BATCH = 2_048
_MAX_CACHED = 200_000  # unknown words remembered with their ids, about 30 MB; then the memory starts afresh
_DELTA = 2**32  # an entry counts documents in its lower half and, in its upper, how many it may have missed


def hashed_id(word: str) -> int:
    """Return the id of a word that no vocabulary lists: ``HASH_BASE + BLAKE2b-64(word) mod HASH_SPAN``."""
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return HASH_BASE + int.from_bytes(digest, "little") % HASH_SPAN


class _WordIndex(dict[str, int]):
    """Word to id; a word looked up for the first time gets its hashed id, kept while there is room."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__((word, i) for i, word in enumerate(words))
        self._cached: list[str] = []

    def __missing__(self, word: str) -> int:
        number = hashed_id(word)
        if len(self._cached) >= _MAX_CACHED:
            # Threads may race here; each removal is atomic and a lost entry is only computed again.
            old, self._cached = self._cached, []
            for cached in old:
                self.pop(cached, None)
        self[word] = number
        self._cached.append(word)
        return number


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words with learned rows and their document frequencies; every other word by its hash.

    ``words`` are D different words by decreasing document frequency (spec 1.4); `VocabularyBuilder` orders ties by
    word. ``document_frequency`` (D,) int64 are the documents that hold the word, 1 to ``n_documents``, never
    increasing. `InputError` is raised where one of these rules is broken.
    """

    words: tuple[str, ...]
    document_frequency: Int64
    n_documents: int
    _index: _WordIndex = field(init=False, repr=False)
    _idf: Float64 = field(init=False, repr=False)
    _frequency: Int64 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        frequency = np.ascontiguousarray(self.document_frequency, dtype=np.int64)
        _check_counts(self.words, frequency, self.n_documents)
        index = _WordIndex(self.words)
        if len(index) != len(self.words):
            raise InputError("a vocabulary lists a word twice: every word must have one place; build it again")
        frequency.setflags(write=False)
        object.__setattr__(self, "document_frequency", frequency)
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "_idf", _idf_table(frequency, self.n_documents))
        rarest = frequency[-1] if len(frequency) else 1
        unlisted = rarest if rarest < self.n_documents else 1
        object.__setattr__(self, "_frequency", np.append(frequency, unlisted))

    def __len__(self) -> int:
        """Return D, the number of listed words."""
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        """Return whether the word is listed."""
        return isinstance(word, str) and self._index.get(word, HASH_BASE) < HASH_BASE

    def ids(self, tokens: Sequence[str]) -> Int32:
        """Return the id of each token, ``(n,) int32``: its place in the list, or its hashed id."""
        return np.fromiter(map(self._index.__getitem__, tokens), dtype=np.int32, count=len(tokens))

    def idf_of(self, ids: AnyInt) -> Float32:
        """Return ln(n_documents / df) of each id, ``(n,) float32``; an unlisted word has that of the rarest listed.

        Where no listed word tells documents apart (an empty list, or all words in all documents), unlisted words
        have 1, so that they can be found at all.
        """
        return self.exact_idf_of(ids).astype(np.float32)

    def exact_idf_of(self, ids: AnyInt) -> Float64:
        """Return `idf_of` in double precision."""
        return self._idf[np.minimum(ids, len(self.words))]

    def frequency_of(self, ids: AnyInt) -> Int64:
        """Return the document frequency of each id, ``(n,) int64``; an unlisted word has that of the rarest listed.

        Where no listed word tells documents apart, unlisted words count as standing in one document.
        """
        return self._frequency[np.minimum(ids, len(self.words))]

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the vocabulary as plain arrays, see `from_arrays`.

        Returns
        -------
        dict
            ``words`` (n_bytes,) uint8: all words in UTF-8 without separators; ``offsets`` (D+1,) int64: where each
            begins and the last ends; ``document_frequency`` (D,) int64; ``n_documents`` (1,) int64.
        """
        encoded = [word.encode("utf-8", "surrogatepass") for word in self.words]
        return {
            "words": np.frombuffer(b"".join(encoded), dtype=np.uint8).copy(),
            "offsets": offsets_of([len(data) for data in encoded]),
            "document_frequency": np.array(self.document_frequency),
            "n_documents": np.array([self.n_documents], dtype=np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> Vocabulary:
        """Return the vocabulary that `to_arrays` wrote.

        `InputError` is raised for a missing array, a wrong type or shape, offsets that do not fit, or bytes that are
        not UTF-8.
        """
        offsets, counts = _vector(arrays, "offsets", np.int64), _vector(arrays, "document_frequency", np.int64)
        total, blob = _vector(arrays, "n_documents", np.int64), _vector(arrays, "words", np.uint8)
        fits = len(offsets) == len(counts) + 1 and offsets[0] == 0 and offsets[-1] == len(blob)
        if not fits or len(total) != 1 or np.any(np.diff(offsets) < 0):
            message = f"{len(offsets)} word offsets over {len(blob)} bytes for {len(counts)} counts do not fit"
            raise InputError(f"{message}: offsets must rise from 0 to the number of bytes, one more than words")
        data, bounds = blob.tobytes(), offsets.tolist()
        try:
            words = tuple(data[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(bounds))
        except UnicodeDecodeError as error:
            raise InputError(f"a word is not UTF-8 ({error}): the file is damaged; copy it again") from error
        return cls(words, counts, int(total[0]))


class VocabularyBuilder:
    """Counts in how many documents each word stands, over a stream, in bounded memory.

    While at most ``max_entries`` different words have been met (2 million take about 250 MB), all counts are exact and
    the order of documents does not matter. Past it the rarer half of them is dropped (lossy counting, Manku and Motwani
    2002): a word that comes back is counted from then on, and a word met for the first time may have been dropped
    before. `max_undercount` tells by how much a count can be too small (0 where all are exact); every word in more
    documents than that is listed. It is at most 2 n / ``max_entries``, n being the sum of all document frequencies.
    """

    def __init__(self, max_entries: int = 2_000_000) -> None:
        if max_entries < 1:
            raise InputError(f"max_entries is {max_entries}: at least 1 word must fit")
        self._max_entries = max_entries
        self._counts: dict[str, int] = {}
        self.n_documents = 0
        self.n_tokens = 0
        self.max_undercount = 0

    def add(self, documents: Iterable[Sequence[str]]) -> None:
        """Count the tokens of some documents; a document without tokens counts as a document."""
        for tokens in documents:
            counts, get, unseen = self._counts, self._counts.get, self.max_undercount * _DELTA
            for word in set(tokens):
                counts[word] = get(word, unseen) + 1
            self.n_documents += 1
            self.n_tokens += len(tokens)
            if len(counts) > self._max_entries:
                self._prune()

    def build(self, max_words: int | None = None, min_df: int = 1) -> Vocabulary:
        """Return the words in at least ``min_df`` documents, at most ``max_words`` of them, by decreasing frequency.

        Ties are ordered by word (code points), so the same documents in any order give the same vocabulary. None is no
        limit. `InputError` is raised for a limit or a floor below 1.
        """
        if min_df < 1 or (max_words is not None and max_words < 1):
            message = f"max_words is {max_words} and min_df {min_df}: both must be at least 1"
            raise InputError(f"{message}; leave max_words out for no limit")
        counted = ((-(entry % _DELTA), word) for word, entry in self._counts.items() if entry % _DELTA >= min_df)
        chosen = sorted(counted)[:max_words]
        frequency = np.array([-count for count, _ in chosen], dtype=np.int64)
        return Vocabulary(tuple(word for _, word in chosen), frequency, self.n_documents)

    def _prune(self) -> None:
        entries = np.fromiter(self._counts.values(), dtype=np.int64, count=len(self._counts))
        bounds = entries % _DELTA + entries // _DELTA
        self.max_undercount = int(np.sort(bounds)[len(bounds) // 2])
        kept = (bounds > self.max_undercount).tolist()
        self._counts = {word: entry for (word, entry), keep in zip(self._counts.items(), kept, strict=True) if keep}


class TfIdf:
    """Turns tokens into rows w_i = g(tf_i) ln(N_docs / df_i), divided by their length.

    g is the identity (``raw``, the papers' term frequency) or 1 + ln (``log``, which measures better). A word that
    stands in every document has idf 0 and is left out. A text without words, or with no other words than those, has an
    empty row: its score is 0 with everything. `ConfigError` is raised for another ``tf``.

    Source: spec 1.1; rows are sorted by id as in spec 1.8.
    """

    def __init__(self, vocabulary: Vocabulary, tf: str = "log") -> None:
        if tf not in TERM_FREQUENCIES:
            raise ConfigError(f"tf is {tf!r}: choose one of {', '.join(TERM_FREQUENCIES)}", value=tf)
        self.vocabulary = vocabulary
        self.tf = tf

    def rows(self, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix[np.float32]:
        """Return one unit row a text, ``(n, N_TERM_IDS) float32``, ids ascending in each row."""
        return self.rows_of_counts(count_rows(self.vocabulary, tokens))

    def rows_of_counts(self, counts: sp.csr_matrix) -> sp.csr_matrix[np.float32]:
        """Return `rows` of texts whose words are counted (`count_rows`)."""
        tf = counts.data.astype(np.float64)
        weights = (tf if self.tf == "raw" else 1.0 + np.log(tf)) * self.vocabulary.exact_idf_of(counts.indices)
        terms, row = counts.indices, row_of(counts)
        if not weights.all():
            used = weights != 0
            terms, row, weights = terms[used], row[used], weights[used]
        n = counts.shape[0]
        length = np.sqrt(np.bincount(row, weights * weights, minlength=n))
        weights /= length[row]
        indptr = offsets_of(np.bincount(row, minlength=n)).astype(np.int32)
        return term_rows(weights.astype(np.float32), terms, indptr)


def combine(rows: Sequence[sp.csr_matrix[np.float32]], weights: Sequence[float]) -> sp.csr_matrix[np.float32]:
    """Return d = Σ_k weight_k · row_k, ``(n, N_TERM_IDS) float32``, not normalised again.

    ``rows`` are the unit rows of each field, of that shape, and the weights finite, one a field. `ShapeMismatch` is
    raised where numbers of fields, weights or rows differ.
    """
    if not rows or len(rows) != len(weights) or len({field.shape for field in rows}) != 1:
        shapes = [field.shape for field in rows]
        raise ShapeMismatch(
            f"fields of shapes {shapes} with {len(weights)} weights: give equal shapes, one weight each"
        )
    n = rows[0].shape[0]
    if len(rows) == 1:
        return term_rows(rows[0].data * np.float32(weights[0]), rows[0].indices, rows[0].indptr)
    keys = np.concatenate([row_of(field) << ROW_SHIFT | field.indices for field in rows])
    scaled = [field.data.astype(np.float64) * weight for field, weight in zip(rows, weights, strict=True)]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(np.concatenate(scaled)[order], first) if len(first) else np.zeros(0)
    keys = keys[first]
    indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) << ROW_SHIFT).astype(np.int32)
    return term_rows(sums.astype(np.float32), (keys & N_TERM_IDS).astype(np.int32), indptr)


def row_of(rows: sp.csr_matrix) -> Int64:
    """Return the row number of each stored value."""
    return np.repeat(np.arange(rows.shape[0], dtype=np.int64), np.diff(rows.indptr))


def with_data(rows: sp.csr_matrix, data: AnyArray) -> sp.csr_matrix:
    """Return rows with the same words and other values."""
    return sp.csr_matrix((data, rows.indices, rows.indptr), shape=rows.shape)


def unit_rows(rows: sp.csr_matrix) -> sp.csr_matrix:
    """Return the rows divided by their Euclidean lengths, float32; an empty row stays empty."""
    row = row_of(rows)
    length = np.sqrt(np.bincount(row, rows.data.astype(np.float64) ** 2, minlength=rows.shape[0]))
    length[length == 0] = 1.0
    return with_data(rows, (rows.data / length[row]).astype(np.float32))


def stack_rows(parts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
    """Return the matrices one below the other."""
    if not parts:
        return sp.csr_matrix((0, N_TERM_IDS), dtype=np.float32)  # type: ignore[arg-type]
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    data, indices = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return sp.csr_matrix((data, indices, offsets_of(lengths)), shape=(len(lengths), parts[0].shape[1]))


def used_columns(matrices: Sequence[sp.csr_matrix]) -> Int64:
    """Return the sorted distinct columns that hold a stored value in any of the matrices, (m,) int64."""
    if not matrices:
        return np.empty(0, dtype=np.int64)
    return np.unique(np.concatenate([np.unique(matrix.indices) for matrix in matrices])).astype(np.int64)


def select_columns(matrix: sp.csr_matrix, columns: Int64) -> sp.csr_matrix:
    """Return the matrix restricted to ``columns`` and renumbered: new column j is old column ``columns[j]``.

    ``columns`` ascend and are distinct, as `used_columns` returns them; values in others are left out. The result is
    float32, with sorted indices if the input's were.
    """
    if len(columns) == 0:
        return sp.csr_matrix(np.empty((matrix.shape[0], 0), dtype=np.float32))
    places = np.searchsorted(columns, matrix.indices)
    known = columns[np.minimum(places, len(columns) - 1)] == matrix.indices
    return sp.csr_matrix(
        (matrix.data[known].astype(np.float32), places[known].astype(np.int32), offsets_of(known)[matrix.indptr]),
        shape=(matrix.shape[0], len(columns)),
    )


def compact_columns(*matrices: sp.csr_matrix) -> list[sp.csr_matrix]:
    """Return the matrices with their columns renumbered to those in use in any of them, in the same order.

    Inner products between rows are unchanged: compact(A) compact(B)^T = A B^T. Matrices narrow enough to be worked
    with as they are (at most `NARROW` columns) are returned unchanged.
    """
    if all(matrix.shape[1] <= NARROW for matrix in matrices):
        return list(matrices)
    columns = used_columns(matrices)
    return [select_columns(matrix, columns) for matrix in matrices]


def count_rows(vocabulary: Vocabulary, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix[np.float32]:
    """Return how often each word stands in each text, (n, N_TERM_IDS) float32, ids ascending in each row.

    Words that the vocabulary does not list have hashed ids and are counted, too.
    """
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    keys = np.repeat(np.arange(len(tokens), dtype=np.int64) << ROW_SHIFT, lengths)
    keys |= vocabulary.ids(list(chain.from_iterable(tokens)))
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys)).astype(np.float32)
    keys = keys[first]
    indptr = np.searchsorted(keys, np.arange(len(tokens) + 1, dtype=np.int64) << ROW_SHIFT).astype(np.int32)
    return term_rows(counts, (keys & N_TERM_IDS).astype(np.int32), indptr)


def text_counts(
    vocabulary: Vocabulary, analyzer: Analyzer, texts: Sequence[Sequence[str]], n_fields: int
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of ``texts[document][field]``: one (n, N_TERM_IDS) matrix a field."""
    flat = [text[field] for field in range(n_fields) for text in texts]
    counts, n = count_rows(vocabulary, analyzer.tokens(flat)), len(texts)
    return [counts[field * n : (field + 1) * n] for field in range(n_fields)]


def field_counts(
    vocabulary: Vocabulary, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of each field of the view: one (n, N_TERM_IDS) matrix a field, in field order."""
    parts: list[list[sp.csr_matrix]] = [[] for _ in view.fields]
    for start in range(0, len(sources), _BATCH):
        texts = [view.texts(source) for source in sources[start : start + _BATCH]]
        for part, counts in zip(parts, text_counts(vocabulary, analyzer, texts, len(parts)), strict=True):
            part.append(counts)
    return [stack_rows(part) for part in parts]


def _check_counts(words: object, frequency: Int64, n_documents: object) -> None:
    if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
        raise InputError(f"the words of a vocabulary are {type(words).__name__}: they must be a tuple of str")
    if frequency.shape != (len(words),):
        raise InputError(f"{len(words)} words with counts of shape {frequency.shape}: there must be one count a word")
    if isinstance(n_documents, bool) or not isinstance(n_documents, int | np.integer) or n_documents < 0:
        raise InputError(f"n_documents is {n_documents!r}: it must be a whole number of at least 0")
    if len(words) >= HASH_BASE:
        raise InputError(f"{len(words)} words: at most {HASH_BASE - 1} fit; set max_words")
    if len(words) and not (frequency[-1] >= 1 and frequency[0] <= n_documents and np.all(np.diff(frequency) <= 0)):
        message = f"document frequencies must fall from at most {n_documents} (all documents) to at least 1"
        raise InputError(f"{message}; build the vocabulary with VocabularyBuilder")


def _idf_table(frequency: Int64, n_documents: int) -> Float64:
    """Return idf of the D listed words and, as entry D, of all others."""
    table = np.empty(len(frequency) + 1)
    table[:-1] = np.log(n_documents / frequency) if len(frequency) else 0.0
    table[-1] = table[-2] if len(frequency) and table[-2] > 0 else 1.0
    if not len(frequency) and n_documents > 1:
        table[-1] = math.log(n_documents)
    table.setflags(write=False)
    return table


def _vector(arrays: Mapping[str, AnyArray], name: str, dtype: type[np.generic]) -> AnyArray:
    array = arrays.get(name)
    if array is None or array.ndim != 1 or array.dtype != dtype:
        shape = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise InputError(f"the vocabulary's array {name!r} is {shape}: it must be one-dimensional {np.dtype(dtype)}")
    return array
