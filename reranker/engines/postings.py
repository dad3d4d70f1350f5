"""An inverted index of one text field in memory, scored by BM25 as Lucene does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from reranker.engines.query_tree import Words
from reranker.engines.standard import standard_tokens

K1 = 1.2
B = 0.75
Scores = dict[int, float]
"""Place (number of the write) of a matching document → score."""


def stored_length(length: int) -> int:
    """Return a field length as Lucene keeps it: exact up to 40, then 4 significant bits (SmallFloat.intToByte4)."""
    if length < 40:
        return length
    shifted = length - 24
    drop = max(0, shifted.bit_length() - 4)
    return 24 + ((shifted >> drop) << drop)


class Postings:
    """The inverted index of one text field."""

    def __init__(self) -> None:
        self.words: dict[str, dict[int, int]] = {}
        self.lengths: dict[int, int] = {}
        self.total_length = 0

    def add(self, place: int, texts: Sequence[str]) -> None:
        """Index the texts of one document."""
        counts = Counter(word for text in texts for word in standard_tokens(text))
        length = sum(counts.values())
        if not length:
            return
        for word, times in counts.items():
            self.words.setdefault(word, {})[place] = times
        self.lengths[place] = stored_length(length)
        self.total_length += length

    def remove(self, place: int, texts: Sequence[str]) -> None:
        """Take the texts of one document out again."""
        words = [word for text in texts for word in standard_tokens(text)]
        for word in set(words):
            places = self.words[word]
            del places[place]
            if not places:
                del self.words[word]
        if words:
            del self.lengths[place]
            self.total_length -= len(words)

    def score(self, node: Words) -> Scores:
        """Return the BM25 scores of the documents with enough of the words."""
        scores: Scores = {}
        matched: Counter[int] = Counter()
        mean = self.total_length / len(self.lengths) if self.lengths else 1.0
        for word, times in node.words:
            places = self.words.get(word, {})
            idf = math.log(1 + (len(self.lengths) - len(places) + 0.5) / (len(places) + 0.5))
            weight = node.boost * times * idf * (K1 + 1)
            for place, frequency in places.items():
                norm = K1 * (1 - B + B * self.lengths[place] / mean)
                scores[place] = scores.get(place, 0.0) + weight * frequency / (frequency + norm)
                matched[place] += times
        if node.minimum > 1:
            return {place: score for place, score in scores.items() if matched[place] >= node.minimum}
        return scores
