"""Vocabularies: ids and document frequencies of words. Words that are not listed get hashed ids."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from reranker.arrays import AnyArray, AnyInt, Bool, Float64, Int32, Int64, offsets_of
from reranker.errors import InputError
from reranker.text.analyzers import BETWEEN

HASH_BASE = 2**30
"""First id of words that are not listed."""


HASH_SPAN = 2**30 - 1
"""Number of hashed ids."""


MIN_BIGRAM_DOCUMENTS = 5
"""Number of documents in which a bigram must occur to be listed; other bigrams are left out of every row."""


_LEFT_OUT = -1
"""Id of a bigram that is not listed."""


_MAX_CACHED = 200_000  # unlisted words cached with their ids, about 30 MB; the cache is emptied when it is full


_DELTA = 2**32  # an entry holds a count in its lower 32 bits, and by how much it may be too small in its upper 32


def hashed_id(word: str) -> int:
    """Return the id of a word that is not listed: ``HASH_BASE + BLAKE2b-64(word) mod HASH_SPAN``."""
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return HASH_BASE + int.from_bytes(digest, "little") % HASH_SPAN


class _WordIndex(dict[str, int]):
    """Ids by word; the hashed id of an unlisted word is computed when it is first requested, and cached."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__((word, i) for i, word in enumerate(words))
        self._cached: list[str] = []

    def __missing__(self, word: str) -> int:
        number = _LEFT_OUT if BETWEEN in word else hashed_id(word)
        if len(self._cached) >= _MAX_CACHED:
            # Threads may race here; each removal is atomic, and a lost entry is only computed again.
            old, self._cached = self._cached, []
            for cached in old:
                self.pop(cached, None)
        self[word] = number
        self._cached.append(word)
        return number


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The listed words, which have learned rows, with their document frequencies; other words have hashed ids.

    `InputError` is raised if a rule stated at a field is broken.
    """

    words: tuple[str, ...]
    """D distinct words by decreasing document frequency (spec 1.4); `VocabularyBuilder` orders ties by word."""
    document_frequency: Int64
    """Number of documents that hold each word, (D,) int64, from 1 to ``n_documents``, never increasing."""
    n_documents: int
    """Number of documents of the corpus."""
    _index: _WordIndex = field(init=False, repr=False)
    _idf: Float64 = field(init=False, repr=False)
    _frequency: Int64 = field(init=False, repr=False)
    _bigrams: Bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        frequency = np.ascontiguousarray(self.document_frequency, dtype=np.int64)
        _check_counts(self.words, frequency, self.n_documents)
        index = _WordIndex(self.words)
        if len(index) != len(self.words):
            raise InputError("a vocabulary lists a word twice: list every word once; build the vocabulary again")
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
        """Return the id of each token, ``(n,) int32``: its position, or its hashed id; -1 for an unlisted bigram."""
        return np.fromiter(map(self._index.__getitem__, tokens), dtype=np.int32, count=len(tokens))

    def counts(self, tokens: Sequence[str]) -> dict[int, int]:
        """Return how often each id is among those of the tokens; bigrams that are not listed are left out."""
        counts = Counter(map(self._index.__getitem__, tokens))
        counts.pop(_LEFT_OUT, None)
        return counts

    def is_bigram(self, ids: AnyInt) -> Bool:
        """Return whether each id belongs to a bigram, (n,) bool."""
        return self._bigrams[np.minimum(ids, len(self.words))]

    def idf_of(self, ids: AnyInt) -> Float64:
        """Return ln(n_documents / df) of each id, (n,) float64.

        Unlisted words have the idf of the rarest listed word, or 1 if that is 0.
        """
        return self._idf[np.minimum(ids, len(self.words))]

    def frequency_of(self, ids: AnyInt) -> Int64:
        """Return the document frequency of each id, (n,) int64.

        Unlisted words have the frequency of the rarest listed word, or 1 if that word occurs in all documents.
        """
        return self._frequency[np.minimum(ids, len(self.words))]

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the vocabulary as plain arrays; `from_arrays` reads them.

        Returns
        -------
        dict
            ``words`` (n_bytes,) uint8: all words in UTF-8, without separators.
            ``offsets`` (D + 1,) int64: the start of each word, and the end of the last.
            ``document_frequency`` (D,) int64.
            ``n_documents`` (1,) int64.
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

        `InputError` is raised if arrays are missing, do not fit each other, or are not UTF-8.
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
    """Counts document frequencies of words over a stream of documents, in bounded memory.

    All counts are exact, and independent of the order of documents, while at most ``max_entries`` distinct words have
    occurred (2 million take about 250 MB). Above that the rarer half is dropped (lossy counting, Manku and Motwani
    2002). A dropped word that occurs again is counted from then on, and a new word may have been dropped before.

    `max_undercount` is the largest amount by which a count can be too small (0 if all are exact). Every word in more
    documents than that is listed. It is at most 2 n / ``max_entries``, where n is the sum of all document frequencies.
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
        """Count the tokens of documents; a document without tokens counts as a document."""
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

        Bigrams must occur in at least `MIN_BIGRAM_DOCUMENTS` documents. Ties are ordered by word (code points), so the
        same documents in any order give the same vocabulary. ``max_words`` None means no limit. `InputError` is raised
        if a value is below 1.
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
        raise InputError(f"{len(words)} words with counts of shape {frequency.shape}: give one count per word")
    if isinstance(n_documents, bool) or not isinstance(n_documents, int | np.integer) or n_documents < 0:
        raise InputError(f"n_documents is {n_documents!r}: it must be a whole number of at least 0")
    if len(words) >= HASH_BASE:
        raise InputError(f"{len(words)} words: at most {HASH_BASE - 1} fit; set max_words")
    if len(words) and not (frequency[-1] >= 1 and frequency[0] <= n_documents and np.all(np.diff(frequency) <= 0)):
        message = f"document frequencies must not increase, and be from {n_documents} (all documents) to at least 1"
        raise InputError(f"{message}; build the vocabulary with VocabularyBuilder")


def _idf_table(frequency: Int64, n_documents: int) -> Float64:
    """Return the idf of the D listed words and, as entry D, of all others."""
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
