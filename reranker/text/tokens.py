"""All documents of a file as word numbers: analyzed once, then counted, stemmed or paired as training needs."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Final

import numpy as np
import scipy.sparse as sp
import Stemmer

from reranker.arrays import Int32, Int64, distinct
from reranker.errors import ConfigError
from reranker.text.analyzers import BETWEEN, Analyzer, AnalyzerConfig, make_analyzer
from reranker.text.rows import _ROW_SHIFT, rows_of_keys, stack_rows
from reranker.text.vocabulary import _LEFT_OUT, MIN_BIGRAM_DOCUMENTS, Vocabulary

_BLOCK = 2**14
"""Number of documents counted at a time; the arrays of one block take some tens of MB."""
_MAX_BIGRAMS = 20_000_000
"""Number of distinct bigrams whose counts are kept, 320 MB; above it the rarer half is dropped (lossy counting)."""
_PAIR_SHIFT = 32
"""Position of the left word in a bigram's key: left word << _PAIR_SHIFT | right word."""


class _Numbers(dict[str, int]):
    """Word numbers by word; a new word gets the next number."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class TokenReader:
    """Collects the words of documents, batch by batch.

    For a configuration with bigrams only single words are collected; `DocumentTokens` forms the bigrams itself.
    """

    def __init__(self, analyzer: Analyzer, n_fields: int) -> None:
        self._analyzer = analyzer
        if analyzer.config.bigrams:
            self._analyzer = make_analyzer(replace(analyzer.config, bigrams=False))
        self._config = analyzer.config
        self._n_fields = n_fields
        self._numbers = _Numbers()
        self._tokens = array("i")
        self._lengths = array("i")
        self.ids: list[str] = []
        """Ids of the documents added so far."""
        self.n_with_words = np.zeros(n_fields, np.int64)
        """Number of documents added so far that have a word in each field, (n_fields,) int64."""

    def add(self, ids: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
        """Add documents; ``texts[document][field]`` is the text of a field."""
        tokens = self._analyzer.tokens([*chain.from_iterable(texts)])
        lengths = [*map(len, tokens)]
        self._tokens.extend(map(self._numbers.__getitem__, chain.from_iterable(tokens)))
        self._lengths.extend(lengths)
        self.n_with_words += np.count_nonzero(np.reshape(lengths, (len(ids), self._n_fields)), axis=0)
        self.ids += ids

    def tokens(self) -> DocumentTokens:
        """Return the words of all documents that were added."""
        offsets = np.zeros(len(self._lengths) + 1, np.int64)
        np.cumsum(np.array(self._lengths, np.int64), out=offsets[1:])
        numbers = np.array(self._tokens, np.int32)
        return DocumentTokens(tuple(self.ids), tuple(self._numbers), numbers, offsets, self._n_fields, self._config)


ENGLISH_ENDINGS: Final[Mapping[str, float]] = MappingProxyType({"ing": 0.005, "ed": 0.005, "ly": 0.001})
"""Endings of English words, and the least share of a collection's words that has each.

All English corpora of the benchmarks have more: the lowest .007, .010 and .0015 (with many names of code), most .08,
.09 and .03. Word lists of 12 other languages, Dutch, German, Danish and Norwegian among them, have less of at least two
endings.
"""
_FEW_WORDS: Final = 3  # words with an ending that a small vocabulary needs


@dataclass(frozen=True, eq=False)
class DocumentTokens:
    """The words of all documents, in text order, as numbers."""

    ids: tuple[str, ...]
    """Document ids in file order."""
    words: tuple[str, ...]
    """Distinct words; a word's number is its position."""
    numbers: Int32
    """Word numbers, (n_tokens,) int32, by document and then by field."""
    offsets: Int64
    """Start of each field's text in ``numbers``, and the end, (n_documents * n_fields + 1,) int64."""
    n_fields: int
    """Number of text fields of a document."""
    config: AnalyzerConfig
    """Analyzer of these words. With ``bigrams``, pairs of neighbours in a text are words as well."""

    def stemmed(self, language: str) -> DocumentTokens:
        """Return the documents with each word replaced by its stem, as an analyzer with this stemmer would return them.

        `ConfigError` is raised if the words are stemmed already, or the analyzer's kind is not ``unicode``.
        """
        if self.config.stemmer is not None or self.config.kind != "unicode":
            raise ConfigError(
                f"words of {self.config} cannot be stemmed: use an analyzer of the kind 'unicode' without a stemmer"
            )
        stems = tuple(Stemmer.Stemmer(language).stemWords(list(self.words)))
        config = replace(self.config, stemmer=language)
        return DocumentTokens(self.ids, stems, self.numbers, self.offsets, self.n_fields, config)._renumbered()

    @property
    def is_english(self) -> bool:
        """True if the words look English: enough of them end in each of `ENGLISH_ENDINGS`.

        Words of at least 5 ASCII letters in 2 documents or more count. No stop words are needed: some collections have
        none.
        """
        frequent = zip(self._word_frequency.tolist(), self.words, strict=True)
        words = [word.lower() for n, word in frequent if n > 1 and len(word) > 4 and word.isascii() and word.isalpha()]
        n_ending = {ending: sum(word.endswith(ending) for word in words) for ending in ENGLISH_ENDINGS}
        return all(n >= max(_FEW_WORDS, ENGLISH_ENDINGS[ending] * len(words)) for ending, n in n_ending.items())

    def with_bigrams(self) -> DocumentTokens:
        """Return the same documents with the bigrams of neighbouring words."""
        config = replace(self.config, bigrams=True)
        return DocumentTokens(self.ids, self.words, self.numbers, self.offsets, self.n_fields, config)

    def vocabulary(self, max_words: int | None = None) -> Vocabulary:
        """Return the words, at most ``max_words``, by decreasing document frequency.

        Ties are ordered by word (code points). Bigrams must occur in at least `MIN_BIGRAM_DOCUMENTS` documents. The
        result equals that of `VocabularyBuilder` for the same documents while its counts are exact.
        """
        counted = [(-n, word) for n, word in zip(self._word_frequency.tolist(), self.words, strict=True) if n]
        if self.config.bigrams:
            keys, counts = self._bigram_frequency
            listed = counts >= MIN_BIGRAM_DOCUMENTS
            counted += zip((-counts[listed]).tolist(), self._bigram_words(keys[listed]), strict=True)
        chosen = sorted(counted)[:max_words]
        frequency = np.array([-count for count, _ in chosen], dtype=np.int64)
        return Vocabulary(tuple(word for _, word in chosen), frequency, len(self.ids))

    def counts(self, vocabulary: Vocabulary) -> list[sp.csr_matrix]:
        """Return the word counts of each field, one (n_documents, N_TERM_IDS) float32 matrix per field.

        With bigrams, one more matrix holds the bigrams of all fields; bigrams that the vocabulary does not list are
        left out. The result equals that of `reranker.text.tfidf.text_counts` for the same texts.
        """
        id_of = vocabulary.ids(self.words).astype(np.int64)
        parts: list[list[sp.csr_matrix]] = []
        for first, last in self._blocks():
            numbers, text = self._block(first, last)
            n = last - first
            rows = (text % self.n_fields) * n + text // self.n_fields
            counted = _count(rows << _ROW_SHIFT | id_of[numbers], n * self.n_fields)
            parts.append([counted[number * n : (number + 1) * n] for number in range(self.n_fields)])
        fields = [stack_rows(field) for field in zip(*parts, strict=True)]
        return [*fields, self._counts_of_bigrams(vocabulary)] if self.config.bigrams else fields

    def _counts_of_bigrams(self, vocabulary: Vocabulary) -> sp.csr_matrix:
        number_of = {word: number for number, word in enumerate(self.words)}
        keys, ids = [], []
        for id_, word in enumerate(vocabulary.words):
            if BETWEEN in word:
                left, right = (number_of.get(part, _LEFT_OUT) for part in word.split(BETWEEN))
                if _LEFT_OUT not in (left, right):
                    keys.append(left << _PAIR_SHIFT | right)
                    ids.append(id_)
        listed = np.array(keys, np.int64)
        order = np.argsort(listed)
        listed, listed_ids = listed[order], np.array(ids, np.int64)[order]
        parts = []
        for first, last in self._blocks():
            pairs, document = self._pairs(first, last)
            places = np.minimum(np.searchsorted(listed, pairs), max(len(listed) - 1, 0))
            known = np.flatnonzero(listed[places] == pairs) if len(listed) else np.zeros(0, np.int64)
            parts.append(_count(document[known] << _ROW_SHIFT | listed_ids[places[known]], last - first))
        return stack_rows(parts)

    @cached_property
    def _word_frequency(self) -> Int64:
        """Number of documents that hold each word, (n_words,) int64."""
        frequency = np.zeros(len(self.words), np.int64)
        for first, last in self._blocks():
            numbers, text = self._block(first, last)
            held = distinct((text // self.n_fields) * len(self.words) + numbers)
            frequency += np.bincount(held % len(self.words), minlength=len(self.words)) if len(held) else 0
        return frequency

    @cached_property
    def _bigram_frequency(self) -> tuple[Int64, Int64]:
        """Keys of the bigrams, ascending, and number of documents that hold each, (n,) and (n,) int64."""
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for first, last in self._blocks():
            pairs, document = self._pairs(first, last)
            found, place = np.unique(pairs, return_inverse=True)
            held = distinct(document * max(len(found), 1) + place)
            of_block = np.bincount(held % max(len(found), 1), minlength=len(found)) if len(held) else counts[:0]
            keys, place = np.unique(np.concatenate([keys, found]), return_inverse=True)
            counts = np.bincount(place, np.concatenate([counts, of_block]), minlength=len(keys)).astype(np.int64)
            if len(keys) > _MAX_BIGRAMS:
                kept = counts > np.median(counts)
                keys, counts = keys[kept], counts[kept]
        return keys, counts

    def _bigram_words(self, keys: Int64) -> list[str]:
        left, right = (keys >> _PAIR_SHIFT).tolist(), (keys & (2**_PAIR_SHIFT - 1)).tolist()
        return [f"{self.words[a]}{BETWEEN}{self.words[b]}" for a, b in zip(left, right, strict=True)]

    def _pairs(self, first: int, last: int) -> tuple[Int64, Int64]:
        """Return the key of each bigram of a block of documents, in text order, and its document within the block."""
        numbers, text = self._block(first, last)
        is_pair = text[1:] == text[:-1]
        pairs = numbers[:-1].astype(np.int64) << _PAIR_SHIFT | numbers[1:]
        return pairs[is_pair], text[1:][is_pair] // self.n_fields

    def _block(self, first: int, last: int) -> tuple[Int32, Int64]:
        """Return the word numbers of a block of documents, and the text of each word: document * n_fields + field."""
        offsets = self.offsets[first * self.n_fields : last * self.n_fields + 1]
        text = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
        return self.numbers[offsets[0] : offsets[-1]], text

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last document (exclusive) of each block; there is at least one block."""
        for first in range(0, max(len(self.ids), 1), _BLOCK):
            yield first, min(first + _BLOCK, len(self.ids))

    def _renumbered(self) -> DocumentTokens:
        """Return the same documents with one number per distinct word."""
        numbers = _Numbers()
        place_of = np.fromiter(map(numbers.__getitem__, self.words), np.int32, len(self.words))
        return DocumentTokens(
            self.ids, tuple(numbers), place_of[self.numbers], self.offsets, self.n_fields, self.config
        )


def _count(keys: Int64, n_rows: int) -> sp.csr_matrix:
    """Return the number of occurrences of each key (row << _ROW_SHIFT | word) as (n_rows, N_TERM_IDS) float32 rows."""
    keys = np.sort(keys)
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return rows_of_keys(keys[first], np.diff(first, append=len(keys)).astype(np.float32), n_rows)
