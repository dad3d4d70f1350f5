"""Vectors that the text encoder of the documents' vectors gives single words: a prior for the word vectors learned.

Words are matched to those of the vocabulary by the analyzer: the vector of a stem is the mean of the vectors of the
words that have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from reranker.arrays import Float32, Float64, Int64
from reranker.encoders import SentenceEncoder
from reranker.errors import InputError
from reranker.text.analyzers import Analyzer
from reranker.text.vocabulary import Vocabulary

MAX_WORDS: Final = 100_000
"""Words that have vectors, the most frequent ones."""
_BATCH = 4_096


class PriorWords(NamedTuple):
    """Vectors of some words of a vocabulary."""

    rows: Int64
    """Rows of the words, (m,) int64, ascending."""
    vectors: Float32
    """(m, P) float32, of the encoder that computed the documents' vectors."""


@dataclass(frozen=True, eq=False)
class WantedWords:
    """The words that need vectors, and how a text is matched to them."""

    vocabulary: Vocabulary
    """The words of the model; the first `MAX_WORDS` have vectors."""
    analyzer: Analyzer
    spellings: Vocabulary
    """Words of the documents before they are stemmed, by decreasing document frequency."""

    def rows_of(self, words: Sequence[str]) -> Int64:
        """Return the row of each word, (n,) int64; -1 for one that is not exactly one word with a vector."""
        tokens, get = self.analyzer.tokens(words), self._row_of.get
        return np.array([get(found[0], -1) if len(found) == 1 else -1 for found in tokens], np.int64)

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.vocabulary.words[:MAX_WORDS])}


class _Means:
    """Weighted means of the vectors that belong to the same row."""

    def __init__(self, n_rows: int, n_dims: int) -> None:
        self._sums = np.zeros((n_rows, n_dims), np.float32)
        self._weights: Float64 = np.zeros(n_rows)

    def add(self, row: int, vector: Float32, weight: float = 1.0) -> None:
        self._sums[row] += np.float32(weight) * vector
        self._weights[row] += weight

    def words(self) -> PriorWords:
        rows = np.flatnonzero(self._weights)
        weights = self._weights[rows].astype(np.float32)
        return PriorWords(rows, self._sums[rows] / weights[:, None])


def encoded_words(encoder: SentenceEncoder | None, wanted: WantedWords) -> PriorWords | None:
    """Return the vectors that the text encoder of the documents' vectors gives single words; None without one.

    The vector of a stem is the mean of those of its words, weighed by the number of documents that hold each.
    """
    if encoder is None:
        return None
    words, counts = wanted.spellings.words, wanted.spellings.document_frequency
    means: _Means | None = None
    for start in range(0, len(words), _BATCH):
        rows = wanted.rows_of(words[start : start + _BATCH])
        places = np.flatnonzero(rows >= 0)
        vectors = encoder.encode([words[start + place] for place in places.tolist()])
        if means is None and len(places):
            means = _Means(min(len(wanted.vocabulary), MAX_WORDS), vectors.shape[1])
        for place, vector in zip(places.tolist(), vectors, strict=True):
            if means is not None and vector.any():
                means.add(int(rows[place]), vector, float(counts[start + place]))
    if means is None:
        raise InputError("no word of the documents can be given to the text encoder: check --fields and --analyzer")
    return means.words()
