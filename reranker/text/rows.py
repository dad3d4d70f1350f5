"""Words to weighted rows: a vocabulary that numbers words, rows of tf-idf and of BM25 over it, the memory of queries.

The vocabulary is a closed list of learned words by decreasing document frequency, and an open end by hashing. A known
word has its place in the list, 0 to D-1. Any other word has ``HASH_BASE + h mod HASH_SPAN``, with h the first 8 bytes
(little endian) of the BLAKE2b-64 of its UTF-8 form: the same number in every vocabulary and on every machine, so a word
never seen in training still meets itself in the identity part of the score.

Rows over it are those of a ``csr_matrix`` of `N_TERM_IDS` columns, so everything here costs what is stored, whatever
the width: scipy's own stacking, column indexing and products allocate arrays of that width. The learned part of the
score reads rows of tf-idf (`TfIdf`); the lexical part is the inner product of rows of tf-idf, or of BM25 over weighted
fields (`LexicalRows`), of which what a document was judged or clicked relevant for may be one (`QueryMemory`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from reranker.arrays import N_TERM_IDS, AnyArray, AnyInt, Bool, Float32, Float64, Int32, Int64, offsets_of, term_rows
from reranker.errors import ConfigError, InputError, ShapeMismatch
from reranker.text.analyzers import BETWEEN, Analyzer
from reranker.text.view import TextView

HASH_BASE = 2**30
HASH_SPAN = 2**30 - 1
TERM_FREQUENCIES = ("raw", "log")
MIN_BIGRAM_DOCUMENTS = 5
"""Documents that a bigram must stand in to be listed; others are left out of every row."""
_LEFT_OUT = -1
"""Id of a bigram that is not listed."""
_ROW_SHIFT = 31
"""A sortable number of a stored value: row << _ROW_SHIFT | word."""
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
        number = _LEFT_OUT if BETWEEN in word else hashed_id(word)
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
    _bigrams: Bool = field(init=False, repr=False)

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
        object.__setattr__(self, "_bigrams", np.array([*(BETWEEN in word for word in self.words), False]))
        rarest = frequency[-1] if len(frequency) else 1
        unlisted = rarest if rarest < self.n_documents else 1
        object.__setattr__(self, "_frequency", np.append(frequency, unlisted))

    def __len__(self) -> int:
        """Return D, the number of listed words."""
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and 0 <= self._index.get(word, HASH_BASE) < HASH_BASE

    def ids(self, tokens: Sequence[str]) -> Int32:
        """Return the id of each token, ``(n,) int32``: its place in the list, or its hashed id; -1 for a bigram."""
        return np.fromiter(map(self._index.__getitem__, tokens), dtype=np.int32, count=len(tokens))

    def is_bigram(self, ids: AnyInt) -> Bool:
        """Return whether each id is that of a bigram, (n,) bool."""
        return self._bigrams[np.minimum(ids, len(self.words))]

    def idf_of(self, ids: AnyInt) -> Float64:
        """Return ln(n_documents / df) of each id, (n,) float64; unlisted, that of the rarest word, or 1 if it is 0."""
        return self._idf[np.minimum(ids, len(self.words))]

    def frequency_of(self, ids: AnyInt) -> Int64:
        """Return the document frequency of each id, (n,) int64; unlisted, the rarest word's, or 1 if that is all."""
        return self._frequency[np.minimum(ids, len(self.words))]

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the vocabulary as plain arrays, see `from_arrays`.

        ``words`` (n_bytes,) uint8: all words in UTF-8 without separators; ``offsets`` (D+1,) int64: where each begins
        and the last ends; ``document_frequency`` (D,) int64; ``n_documents`` (1,) int64.
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
        """Return the vocabulary that `to_arrays` wrote; `InputError` where arrays lack, misfit or are not UTF-8."""
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

        Bigrams must stand in `MIN_BIGRAM_DOCUMENTS` at least. Ties are ordered by word (code points), so the same
        documents in any order give the same vocabulary. None is no limit; `InputError` for others below 1.
        """
        if min_df < 1 or (max_words is not None and max_words < 1):
            message = f"max_words is {max_words} and min_df {min_df}: both must be at least 1"
            raise InputError(f"{message}; leave max_words out for no limit")
        floor = max(min_df, MIN_BIGRAM_DOCUMENTS)
        counted = (
            (-(entry % _DELTA), word)
            for word, entry in self._counts.items()
            if entry % _DELTA >= (floor if BETWEEN in word else min_df)
        )
        chosen = sorted(counted)[:max_words]
        frequency = np.array([-count for count, _ in chosen], dtype=np.int64)
        return Vocabulary(tuple(word for _, word in chosen), frequency, self.n_documents)

    def _prune(self) -> None:
        entries = np.fromiter(self._counts.values(), dtype=np.int64, count=len(self._counts))
        bounds = entries % _DELTA + entries // _DELTA
        self.max_undercount = int(np.sort(bounds)[len(bounds) // 2])
        kept = (bounds > self.max_undercount).tolist()
        self._counts = {word: entry for (word, entry), keep in zip(self._counts.items(), kept, strict=True) if keep}


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


# --- rows


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
        weights = (tf if self.tf == "raw" else 1.0 + np.log(tf)) * self.vocabulary.idf_of(counts.indices)
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

    ``rows`` are the unit rows of each field; `ShapeMismatch` where numbers of fields, weights or rows differ.
    """
    if not rows or len(rows) != len(weights) or len({field.shape for field in rows}) != 1:
        shapes = [field.shape for field in rows]
        raise ShapeMismatch(
            f"fields of shapes {shapes} with {len(weights)} weights: give equal shapes, one weight each"
        )
    n = rows[0].shape[0]
    if len(rows) == 1:
        return term_rows(rows[0].data * np.float32(weights[0]), rows[0].indices, rows[0].indptr)
    keys = np.concatenate([keys_of(field) for field in rows])
    scaled = [field.data.astype(np.float64) * weight for field, weight in zip(rows, weights, strict=True)]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(np.concatenate(scaled)[order], first) if len(first) else np.zeros(0)
    return rows_of_keys(keys[first], sums.astype(np.float32), n)


def row_of(rows: sp.csr_matrix) -> Int64:
    """Return the row number of each stored value."""
    return np.repeat(np.arange(rows.shape[0], dtype=np.int64), np.diff(rows.indptr))


def keys_of(rows: sp.csr_matrix) -> Int64:
    """Return the sortable number of each stored value."""
    return row_of(rows) << _ROW_SHIFT | rows.indices


def rows_of_keys(keys: Int64, data: Float32, n: int) -> sp.csr_matrix[np.float32]:
    """Return n rows of the values at ascending `keys_of`."""
    indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) << _ROW_SHIFT).astype(np.int32)
    return term_rows(data, (keys & N_TERM_IDS).astype(np.int32), indptr)


def with_data(rows: sp.csr_matrix, data: AnyArray) -> sp.csr_matrix:
    """Return rows with the same words and other values."""
    return sp.csr_matrix((data, rows.indices, rows.indptr), shape=rows.shape)


def keep_values(rows: sp.csr_matrix, kept: Bool) -> sp.csr_matrix:
    """Return the rows with those stored values alone that ``kept``, (nnz,) bool, says."""
    indptr = offsets_of(kept)[rows.indptr].astype(rows.indptr.dtype)
    return sp.csr_matrix((rows.data[kept], rows.indices[kept], indptr), shape=rows.shape)


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


def inner_products(left: sp.csr_matrix, right: sp.csr_matrix) -> Float32:
    """Return the dot products of all rows of both, (n, m) float32; `ShapeMismatch` if their widths differ."""
    if left.shape[1] != right.shape[1]:
        raise ShapeMismatch(
            f"rows of {left.shape[1]} and {right.shape[1]} columns have no dot product; use one vocabulary"
        )
    left, right = compact_columns(left, right)
    products: Float32 = (left @ right.T).toarray()
    return products


def count_rows(vocabulary: Vocabulary, tokens: Sequence[Sequence[str]]) -> sp.csr_matrix[np.float32]:
    """Return how often each word stands in each text, (n, N_TERM_IDS) float32, without bigrams that are not listed."""
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    keys = np.repeat(np.arange(len(tokens), dtype=np.int64) << _ROW_SHIFT, lengths)
    ids = vocabulary.ids(list(chain.from_iterable(tokens)))
    keys = (keys | ids)[ids != _LEFT_OUT]
    keys.sort()
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys)).astype(np.float32)
    return rows_of_keys(keys[first], counts, len(tokens))


def text_counts(
    vocabulary: Vocabulary, analyzer: Analyzer, texts: Sequence[Sequence[str]], n_fields: int
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of ``texts[document][field]``, (n, N_TERM_IDS) a field, those of all bigrams last."""
    flat = [text[field] for field in range(n_fields) for text in texts]
    counts, n = count_rows(vocabulary, analyzer.tokens(flat)), len(texts)
    fields = [counts[field * n : (field + 1) * n] for field in range(n_fields)]
    if not analyzer.config.bigrams:
        return fields
    is_bigram = [vocabulary.is_bigram(field.indices) for field in fields]
    bigrams = [keep_values(field, chosen) for field, chosen in zip(fields, is_bigram, strict=True)]
    words = [keep_values(field, ~chosen) for field, chosen in zip(fields, is_bigram, strict=True)]
    return [*words, combine(bigrams, [1.0] * n_fields)]


def field_counts(
    vocabulary: Vocabulary, view: TextView, analyzer: Analyzer, sources: Sequence[Mapping[str, Any]]
) -> list[sp.csr_matrix[np.float32]]:
    """Return the word counts of each field of the view, in field order, as `text_counts` does."""
    batches = []
    for start in range(0, max(len(sources), 1), _BATCH):
        texts = [view.texts(source) for source in sources[start : start + _BATCH]]
        batches.append(text_counts(vocabulary, analyzer, texts, len(view.fields)))
    return [stack_rows(part) for part in zip(*batches, strict=True)]


def learned_rows(tfidf: TfIdf, counts: Sequence[sp.csr_matrix], weights: Sequence[float]) -> sp.csr_matrix:
    """Return d', the weighted sum of the fields' unit rows, (n, N_TERM_IDS) float32; that of bigrams weighs 1."""
    more = [1.0] * (len(counts) - len(weights))
    return combine([tfidf.rows_of_counts(field) for field in counts], [*weights, *more])


# --- the lexical part of the score

LEXICAL_FORMS: Final = ("tfidf", "bm25")
_QUERY_TF: Final[Mapping[str, Callable[[Float64], Float64]]] = {
    "raw": lambda tf: tf,
    "sqrt": np.sqrt,
    "log": lambda tf: np.log2(1 + tf),
    "once": np.ones_like,
}
QUERY_TF: Final = tuple(_QUERY_TF)
"""How often a word counts that a query holds tf times: tf (as in Lucene), its root, log2(1 + tf), or once."""
_SHORTEST = 1e-6
"""The length factor of an empty field at b = 1: no division by 0."""


@dataclass(frozen=True, slots=True)
class LexicalSettings:
    """Which lexical score, and its parameters; weights and lengths are one a field, in the view's order.

    A model with a memory of queries (`QueryMemory`) has it as its last field, of query weight and coverage 0.
    `ConfigError` is raised for an unknown form or ``query_tf``, numbers of fields that differ, or a value out of range.
    """

    form: str
    """{'tfidf', 'bm25'}."""
    field_weights: tuple[float, ...]
    """At least 0, one above it: beta_k of d = sum_k beta_k d_k (tfidf), w_k of tf = sum_k w_k tf_k / B_k (bm25)."""
    query_weights: tuple[float, ...]
    """The same for the fields of a document that is used as a query; a text is one field of weight 1."""
    k1: float = 1.2
    """Above 0: where the counting of a word levels off (bm25)."""
    b: tuple[float, ...] = ()
    """From 0 to 1: how much the length of each field counts, B_k = 1 - b_k + b_k len_k / mean len_k (bm25)."""
    mean_lengths: tuple[float, ...] = ()
    """Mean number of words of each field, as it was when the settings were chosen (bm25)."""
    query_tf: str = "raw"
    """One of `QUERY_TF` (bm25)."""
    factor: float = 1.0
    """Above 0, of all document rows: one scale for every corpus and every setting."""
    coverage: tuple[float, ...] = ()
    """c_k, at least 0: what a field adds all of whose words the query holds once; empty for none (bm25)."""

    def __post_init__(self) -> None:
        if self.form not in LEXICAL_FORMS:
            raise ConfigError(f"the lexical form is {self.form!r}: choose one of {', '.join(LEXICAL_FORMS)}")
        if self.query_tf not in QUERY_TF:
            raise ConfigError(f"query_tf is {self.query_tf!r}: choose one of {', '.join(QUERY_TF)}")
        self._check_fields()
        if not any(self.field_weights):
            raise ConfigError(f"field_weights is {self.field_weights}: one field at least needs a weight above 0")
        if any(value > 1 for value in self.b):
            raise ConfigError(f"b is {self.b}: each must be between 0 and 1")
        for name, value in {"k1": self.k1, "factor": self.factor}.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} is {value!r}: it must be finite and above 0")

    def _check_fields(self) -> None:
        n_fields = len(self.field_weights)
        values_of = {"field_weights": self.field_weights, "query_weights": self.query_weights}
        if self.form == "bm25":
            values_of |= {"b": self.b, "mean_lengths": self.mean_lengths}
            values_of |= {"coverage": self.coverage} if self.coverage else {}
        for name, values in values_of.items():
            if len(values) != n_fields or not n_fields:
                raise ConfigError(f"{name} has {len(values)} values for {n_fields} fields: give one a field")
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise ConfigError(f"{name} is {values}: each must be finite and at least 0")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a manifest keeps them, the same for equal numbers of any type."""
        numbers = {k: list(map(float, v)) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        if not self.coverage:
            del numbers["coverage"]  # encoders made before there was any keep their ids
        return {**numbers, "k1": float(self.k1), "factor": float(self.factor)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LexicalSettings:
        """Return the settings that a manifest keeps."""
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in kept.items()}
        return cls(**values)


def bm25_idf(n_documents: int, document_frequency: AnyArray) -> Float64:
    """Return ln(1 + (N - df + 1/2) / (df + 1/2)) of each word, (m,) float64."""
    return np.log1p((n_documents - document_frequency + 0.5) / (document_frequency + 0.5))


def length_norms(lengths: Float64, mean_length: float, b: float) -> Float64:
    """Return 1 - b + b len / mean len of each document, (n,) float64, by which its counts are divided."""
    return np.maximum(1 - b + b * (lengths / (mean_length or 1.0)), _SHORTEST)


def bm25_weights(tf: Float64, idf: Float64, k1: float) -> Float64:
    """Return idf (k1 + 1) tf / (k1 + tf), float64, of tf divided by `length_norms` already. Source: spec B20."""
    return idf * (k1 + 1) * tf / (k1 + tf)


def cover_rates(coverage: float, idf_sums: Float64) -> Float32:
    """Return c / `LexicalRows.idf_sums` of a field of each document, (n,) float32; 0 without words that have an idf."""
    return np.divide(coverage, idf_sums, out=np.zeros(len(idf_sums)), where=idf_sums > 0).astype(np.float32)


class LexicalRows:
    """Word counts to the rows whose inner product is the lexical score.

    ======  =====================================================  ============================================
    form    document's weight of word i                            query's weight of word i
    ======  =====================================================  ============================================
    tfidf   sum_k beta_k unit((1 + ln tf_k,i) idf_i)               unit of the same sum over its own fields
    bm25    idf_i ((k1 + 1) tf_i / (k1 + tf_i) + cover_i)          g(tf_i) / sqrt(sum_j (g(tf_j) idf_j)^2)
    ======  =====================================================  ============================================

    idf is ln(N / df) for tfidf, ln(1 + (N - df + 1/2) / (df + 1/2)) for bm25, N documents of which df hold the word.
    cover_i is the sum of c_k / (sum of the idf of the different words of field k) over the fields k that hold word i:
    a query that holds all words of a field once has c_k from it before it is divided, and one that holds some of them
    the same part of it as of their idf. It is 0 without ``coverage``.
    Document rows are multiplied by ``factor``. What a query is divided by depends on the query alone: it changes no
    ranking, and makes the scores of short and long queries alike in size. A word that stands in every document tells
    none apart and is left out.

    ``frequency_of`` returns the document frequencies of word numbers, (n,) -> (n,); counts are (n, any) float32
    matrices of one shape, ids ascending in each row.

    Source: spec B01, B20; Robertson, Zaragoza, Taylor 2004 (one saturation over all fields).
    """

    def __init__(self, settings: LexicalSettings, frequency_of: Callable[[AnyInt], AnyInt], n_documents: int) -> None:
        self.settings = settings
        self._frequency_of = frequency_of
        self._n_documents = n_documents

    def documents(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of documents, (n, N_TERM_IDS) float32, given the word counts of each field."""
        s = self.settings
        if len(counts) != len(s.field_weights):
            raise ShapeMismatch(f"counts of {len(counts)} fields for {len(s.field_weights)} weights: give one a field")
        if s.form == "tfidf":
            rows = combine([self._unit(field) for field in counts], s.field_weights)
            return with_data(rows, rows.data * np.float32(s.factor))
        parts = []
        for part, b, mean in zip(counts, s.b, s.mean_lengths, strict=True):
            norm = length_norms(np.asarray(part.sum(axis=1), dtype=np.float64).ravel(), mean, b)
            parts.append(with_data(part, (part.data / norm[row_of(part)]).astype(np.float32)))
        rows = combine(parts, s.field_weights)
        idf = self.idf_of(rows.indices) * s.factor
        weights = bm25_weights(rows.data.astype(np.float64), idf, s.k1)
        if s.coverage:
            fields = zip(counts, s.coverage, strict=True)
            covers = [with_data(field, cover_rates(c, self.idf_sums(field))[row_of(field)]) for field, c in fields]
            weights += combine(covers, [1.0] * len(covers)).data * idf  # the words of both sums are those of any field
        return _without_zeros(with_data(rows, weights.astype(np.float32)))

    def queries(self, counts: Sequence[sp.csr_matrix]) -> sp.csr_matrix:
        """Return the rows of queries: texts (one matrix), or documents (the counts of each field but a memory)."""
        weights = (1.0,) if len(counts) == 1 else self.settings.query_weights[: len(counts)]
        if self.settings.form == "tfidf":
            return unit_rows(combine([self._unit(field) for field in counts], weights))
        rows = _without_zeros(combine(list(counts), weights))  # a word of fields of weight 0 is not there even once
        g = _QUERY_TF[self.settings.query_tf](rows.data.astype(np.float64))
        idf = self.idf_of(rows.indices)
        length = np.sqrt(np.bincount(row_of(rows), (g * idf) ** 2, minlength=rows.shape[0]))
        length[length == 0] = 1.0
        weighted = np.where(idf > 0, g / length[row_of(rows)], 0.0)
        return _without_zeros(with_data(rows, weighted.astype(np.float32)))

    def single_words(self, ids: AnyInt) -> Float64:
        """Return the weight of each word in a document of it alone, of weight 1, mean length, no coverage, (n,)."""
        return self.settings.factor * (self.idf_of(ids) if self.settings.form == "bm25" else np.ones(len(ids)))

    def squares(self, query_rows: sp.csr_matrix) -> Float32:
        """Return what each value of query rows adds to the squared length by which a query is divided, (nnz,) float32.

        A query of some of a row's words is the row's values divided by the root of the sum of these.
        """
        data = query_rows.data.astype(np.float64)
        if self.settings.form == "bm25":
            data *= self.idf_of(query_rows.indices)
        return (data**2).astype(np.float32)

    def idf_of(self, ids: AnyInt) -> Float64:
        """Return idf of word numbers, (n,) float64; 0 for words that stand in every document."""
        frequency = np.asarray(self._frequency_of(ids), dtype=np.float64)
        if self.settings.form == "tfidf":
            return np.log(self._n_documents / frequency)
        idf = bm25_idf(self._n_documents, frequency)
        idf[frequency >= self._n_documents] = 0.0
        return idf

    def idf_sums(self, counts: sp.csr_matrix) -> Float64:
        """Return the sum of the idf of the different words of each row, (n,) float64."""
        sums = np.bincount(row_of(counts), self.idf_of(counts.indices), minlength=counts.shape[0])
        return sums.astype(np.float64)

    def _unit(self, counts: sp.csr_matrix) -> sp.csr_matrix:
        weights = (1 + np.log(counts.data)) * self.idf_of(counts.indices)
        return unit_rows(_without_zeros(with_data(counts, weights.astype(np.float32))))


def weigh_words(rows: sp.csr_matrix, weights: Float32) -> sp.csr_matrix:
    """Return query rows times the weights of their words, (n_words,) float32; later words have 1. Source: spec M02."""
    known = rows.indices < len(weights)
    data = rows.data.copy()
    data[known] *= weights[rows.indices[known]]
    return with_data(rows, data)


def _without_zeros(rows: sp.csr_matrix) -> sp.csr_matrix:
    return rows if rows.data.all() else keep_values(rows, rows.data != 0)


# --- the memory of queries

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
