"""An inverted index of one text field in memory, scored by BM25 as Lucene does.

Documents that were written lately stand in dictionaries, where they are cheap to change; when there are many they are
merged with the earlier ones into an `InvertedFile`, whose postings are arrays. A document that is removed from that is
only noted, and left out at the next merge, as in Lucene's segments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reranker.engines.query_tree import Words
from reranker.engines.standard import standard_tokens
from reranker.text.inverted_file import InvertedFile, grouped, sorted_pairs

K1 = 1.2
B = 0.75
MERGE_ENTRIES = 100_000
"""Entries in dictionaries at which they are merged, at least; and not before they are half of what is merged."""
Scores = dict[int, float]
"""Place (number of the write) of a matching document → score."""


def stored_length(length: int) -> int:
    """Return a field length as Lucene keeps it: exact up to 40, then 4 significant bits (SmallFloat.intToByte4)."""
    if length < 40:
        return length
    shifted = length - 24
    drop = max(0, shifted.bit_length() - 4)
    return 24 + ((shifted >> drop) << drop)


class _Segment(NamedTuple):
    """Merged documents: ``numbers`` of words in the file, ascending ``places`` and stored lengths of its documents."""

    numbers: dict[str, int]
    file: InvertedFile
    places: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]

    def postings(self, word: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the documents that hold a word, as numbers in the file, and how often."""
        number = self.numbers.get(word)
        if number is None:
            return np.empty(0, np.int32), np.empty(0, np.float64)
        documents, counts = self.file.postings(number)
        return documents, counts.astype(np.float64)


class Postings:
    """The inverted index of one text field. Places must ascend from one `add` to the next."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.total_length = 0
        self._recent: dict[str, dict[int, int]] = {}
        self._n_recent = 0
        self._segment: _Segment | None = None
        self._removed: set[int] = set()
        # Removed documents of the segment that held the word.
        self._gone: Counter[str] = Counter()

    def add(self, place: int, texts: Sequence[str]) -> None:
        """Index the texts of one document."""
        counts = Counter(word for text in texts for word in standard_tokens(text))
        length = sum(counts.values())
        if not length:
            return
        for word, times in counts.items():
            self._recent.setdefault(word, {})[place] = times
        self.lengths[place] = stored_length(length)
        self.total_length += length
        self._n_recent += len(counts)
        if self._n_recent >= MERGE_ENTRIES and (
            self._segment is None or 2 * self._n_recent >= len(self._segment.file.documents)
        ):
            self._merge()

    def remove(self, place: int, texts: Sequence[str]) -> None:
        """Take the texts of one document out again."""
        words = [word for text in texts for word in standard_tokens(text)]
        if not words:
            return
        if self._segment is not None and place <= self._segment.places[-1]:
            self._removed.add(place)
            self._gone.update(set(words))
        else:
            for word in set(words):
                places = self._recent[word]
                del places[place]
                if not places:
                    del self._recent[word]
            self._n_recent -= len(set(words))
        del self.lengths[place]
        self.total_length -= len(words)

    def places(self, word: str) -> Iterator[int]:
        """Yield the places of the documents that hold a word."""
        yield from self._recent.get(word, ())
        if self._segment is not None:
            documents, _ = self._segment.postings(word)
            yield from (one for one in self._segment.places[documents].tolist() if one not in self._removed)

    def score(self, node: Words) -> Scores:
        """Return the BM25 scores of the documents with enough of the words."""
        mean = self.total_length / len(self.lengths) if self.lengths else 1.0
        weights = {word: node.boost * times * self._idf(word) * (K1 + 1) for word, times in node.words}
        scores = self._segment_scores(node, weights, mean)
        matched: Counter[int] = Counter()
        for word, times in node.words:
            for place, frequency in self._recent.get(word, {}).items():
                norm = K1 * (1 - B + B * self.lengths[place] / mean)
                scores[place] = scores.get(place, 0.0) + weights[word] * frequency / (frequency + norm)
                matched[place] += times
        if node.minimum > 1:
            few = [place for place, times in matched.items() if times < node.minimum]
            for place in few:
                del scores[place]
        return scores

    def _idf(self, word: str) -> float:
        df = len(self._recent.get(word, ())) - self._gone[word]
        if self._segment is not None:
            df += len(self._segment.postings(word)[0])
        return math.log(1 + (len(self.lengths) - df + 0.5) / (df + 0.5))

    def _segment_scores(self, node: Words, weights: dict[str, float], mean: float) -> Scores:
        """Return the scores of the merged documents."""
        segment = self._segment
        if segment is None:
            return {}
        norms = K1 * (1 - B + B * segment.lengths / mean)
        scores, matched = np.zeros(len(norms)), np.zeros(len(norms), np.int64)
        for word, times in node.words:
            documents, counts = segment.postings(word)
            scores[documents] += weights[word] * counts / (counts + norms[documents])
            matched[documents] += times
        found = np.flatnonzero(matched >= max(node.minimum, 1))
        pairs = zip(segment.places[found].tolist(), scores[found].tolist(), strict=True)
        return {place: score for place, score in pairs if place not in self._removed}

    def _merge(self) -> None:
        """Make one segment of the earlier one and of all recent documents."""
        places = np.array(sorted(self.lengths), dtype=np.int64)
        lengths = np.array([self.lengths[place] for place in places.tolist()], dtype=np.float64)
        old = self._segment
        names = list(dict.fromkeys([*(old.numbers if old is not None else ()), *self._recent]))
        numbers = {word: number for number, word in enumerate(names)}
        recent = [(numbers[word], place, n) for word, one in self._recent.items() for place, n in one.items()]
        entries = np.array(recent, dtype=np.int64).reshape(-1, 3)
        if old is not None:
            # Its words keep their numbers.
            word = np.repeat(np.arange(old.file.n_words), old.file.document_frequency)
            earlier = np.column_stack([word, old.places[old.file.documents], old.file.values.astype(np.int64)])
            gone = np.fromiter(self._removed, np.int64, len(self._removed))
            entries = np.concatenate([earlier[~np.isin(earlier[:, 1], gone)], entries])
        documents = np.searchsorted(places, entries[:, 1]).astype(np.int32)
        pairs = sorted_pairs(entries[:, 0].astype(np.int32), documents, entries[:, 2].astype(np.float32))
        self._segment = _Segment(numbers, grouped(pairs, len(numbers), len(places)), places, lengths)
        self._recent, self._n_recent, self._removed, self._gone = {}, 0, set(), Counter()
