"""Word vectors that somebody else has computed: a prior for those that are learned from documents and their vectors.

They come from a file (word2vec text, GloVe text, fastText .vec, gzip too), or from anything that computes vectors of
texts, which is given single words (`reranker.encoders`). Their words are matched to those of the vocabulary by the
analyzer: the vector of a stem is the mean of the vectors of the words that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from reranker.arrays import Float32, Float64, Int64
from reranker.encoders import SentenceEncoder
from reranker.errors import InputError
from reranker.formats import Line, RecordError, RejectSink, StrictSink, decoded, read_lines
from reranker.text.analyzers import Analyzer
from reranker.text.view import MAX_VECTOR_DIMS
from reranker.text.vocabulary import Vocabulary

MAX_WORDS: Final = 100_000
"""Words that have vectors, the most frequent ones."""
_BATCH = 4_096
_SHOWN = 3


class PriorWords(NamedTuple):
    """Vectors of some words of a vocabulary."""

    rows: Int64
    """Rows of the words, (m,) int64, ascending."""
    vectors: Float32
    """(m, P) float32."""
    is_same_space: bool = False
    """True if the encoder of the documents' vectors computed them; False: they may be of any space."""


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


class WordSource(Protocol):
    """Where word vectors come from."""

    def vectors(self, wanted: WantedWords, rejects: RejectSink | None) -> PriorWords:
        """Return the vectors of those words of the vocabulary that are known."""
        ...


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


@dataclass(frozen=True)
class WordVectorFile:
    """A text file with a word and its numbers in each line, separated by blanks.

    A first line of two whole numbers (words and dimensions, as in word2vec's and fastText's files) is optional.
    """

    path: Path

    def vectors(self, wanted: WantedWords, rejects: RejectSink | None) -> PriorWords:
        """Return the vectors of the vocabulary's words; only these are in memory.

        A line is rejected if it has another number of numbers, is not UTF-8, or holds anything but finite numbers.

        Raises
        ------
        InputError
            If the file is empty or cut short, or has no word of the vocabulary.
        """
        sink = rejects or StrictSink(self.path)
        lines = read_lines(self.path, rejects=sink)
        first = next(lines, None)
        if first is None:
            raise InputError(f"the file of word vectors {str(self.path)!r} is empty: give one with words and numbers")
        n_words, n_dims = self._shape(first)
        means = _Means(min(len(wanted.vocabulary), MAX_WORDS), n_dims)
        rest = lines if n_words is not None else _chained(first, lines)
        n_lines, shown = 0, list[str]()
        while batch := list(islice(rest, _BATCH)):
            n_lines = batch[-1].number - (n_words is not None)
            parsed = [one for line in batch if (one := _divided(line, n_dims, sink)) is not None]
            shown += [word for _, word, _ in parsed[: _SHOWN - len(shown)]]
            rows = wanted.rows_of([word for _, word, _ in parsed]).tolist()
            for (line, _, numbers), row in zip(parsed, rows, strict=True):
                if row >= 0 and (vector := _vector(line, numbers, sink)) is not None:
                    means.add(row, vector)
        if n_words is not None and n_lines < n_words:
            raise InputError(
                f"the file of word vectors {str(self.path)!r} has {n_lines:,} words, and its first line announces "
                f"{n_words:,}: it is cut short; fetch or write it again"
            )
        found = means.words()
        if not len(found.rows):
            raise InputError(
                f"no word of the file of word vectors {str(self.path)!r} is one of the documents' (its words are such "
                f"as {', '.join(map(repr, shown)) or 'none'}, theirs {', '.join(wanted.vocabulary.words[:_SHOWN])}): "
                "give word vectors of the documents' language"
            )
        return found

    def _shape(self, first: Line) -> tuple[int | None, int]:
        """Return the number of words, None if it is not announced, and that of dimensions."""
        parts = first.data.split()
        if len(parts) == 2 and all(part.isdigit() for part in parts):
            n_words, n_dims = (int(part[:18]) for part in parts)
        else:
            n_words, n_dims = None, len(parts) - 1
        if not 1 <= n_dims <= MAX_VECTOR_DIMS:
            raise InputError(
                f"{str(self.path)!r}, line {first.number}: word vectors of {n_dims:,} numbers: give 1 to "
                f"{MAX_VECTOR_DIMS:,} numbers after each word, separated by blanks"
            )
        return n_words, n_dims


def _chained(first: Line, rest: Iterator[Line]) -> Iterator[Line]:
    yield first
    yield from rest


def _divided(line: Line, n_dims: int, sink: RejectSink) -> tuple[Line, str, list[bytes]] | None:
    """Return a line's word and its numbers as they are written; None if the line was rejected.

    A word may hold blanks, as some of GloVe's do: the last numbers of a line are the vector.
    """
    parts = line.data.rsplit(None, n_dims)
    try:
        n_more = sum(1 for part in parts[0].split()[1:] if _is_number(part)) if len(parts) > n_dims else 0
        if len(parts) <= n_dims or n_more:
            raise RecordError(
                "wrong_length",
                f"a word with {len(parts) - 1 + n_more} numbers: the lines before it have {n_dims}; correct the line",
            )
        return line, decoded(parts[0]), parts[1:]
    except RecordError as error:
        _reject(line, error, sink)
        return None


def _vector(line: Line, numbers: Sequence[bytes], sink: RejectSink) -> Float32 | None:
    """Return the vector of a line; None if it is all zeros, or the line was rejected."""
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(number) for number in numbers]).astype(np.float32)
        if not np.isfinite(vector).all():
            raise ValueError
    except ValueError:
        shown = next(number for number in numbers if not _is_number(number))[:40].decode("utf-8", "replace")
        rule = f"{shown!r} is no finite number that fits float32: correct the line, or remove it"
        _reject(line, RecordError("not_a_number", rule), sink)
        return None
    return vector if vector.any() else None


def _is_number(text: bytes) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(text))))
    except ValueError:
        return False


def _reject(line: Line, error: RecordError, sink: RejectSink) -> None:
    sink.reject(line.number, line.offset, error.message, line.data[:800], kind=error.kind)


@dataclass(frozen=True, eq=False)
class EncodedWords:
    """The vectors that the text encoder of the documents' vectors gives single words.

    The vector of a stem is the mean of those of its words, weighed by the number of documents that hold each.
    """

    encoder: SentenceEncoder

    def vectors(self, wanted: WantedWords, rejects: RejectSink | None) -> PriorWords:
        """Return the vectors of the vocabulary's words; nothing is rejected."""
        words, counts = wanted.spellings.words, wanted.spellings.document_frequency
        means: _Means | None = None
        for start in range(0, len(words), _BATCH):
            rows = wanted.rows_of(words[start : start + _BATCH])
            places = np.flatnonzero(rows >= 0)
            vectors = self.encoder.encode([words[start + place] for place in places.tolist()])
            if means is None and len(places):
                means = _Means(min(len(wanted.vocabulary), MAX_WORDS), vectors.shape[1])
            for place, vector in zip(places.tolist(), vectors, strict=True):
                if means is not None and vector.any():
                    means.add(int(rows[place]), vector, float(counts[start + place]))
        if means is None:
            raise InputError("no word of the documents can be given to the text encoder: check --fields and --analyzer")
        return means.words()._replace(is_same_space=True)
