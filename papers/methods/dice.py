"""Words that occur in the same documents as a word or an n-gram (spec 2.4, T11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from reranker.errors import ConfigError, InputError
from reranker.text.vocabulary import Vocabulary
from reranker.words import spelled_alike

MAX_FREQUENT_WORDS = 30_000
"""F: number of most frequent words that are considered as neighbours."""


@dataclass(frozen=True, slots=True)
class DiceNeighbour:
    """A frequent word that occurs in the same documents as a term."""

    word: str
    value: float
    """DICE coefficient, 2 together / (documents of the term + documents), 0 to 1."""
    together: int
    """Number of documents with both."""
    documents: int
    """Number of documents with the word."""


def ngrams(tokens: Sequence[str], n: int) -> list[str]:
    """Return all runs of n consecutive tokens, joined by spaces, in order. Raises `InputError` if n is below 1."""
    if n < 1:
        raise InputError(f"{n}-grams do not exist; give n of at least 1")
    return [" ".join(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


class DiceCounter:
    """Counts in one pass over the texts which words occur in the same documents as some terms.

    A term is a word or the words of an n-gram. The memory depends on the number of terms and on ``max_words`` (F), the
    number of most frequent words that are counted. The vocabulary must be of the same texts, because it provides the
    document frequencies. Raises `ConfigError` if there is no term, if a term has no words, or if F is below 1.
    """

    def __init__(
        self, terms: Sequence[Sequence[str]], vocabulary: Vocabulary, max_words: int = MAX_FREQUENT_WORDS
    ) -> None:
        if not terms or not all(terms) or max_words < 1:
            raise ConfigError(
                f"{[' '.join(term) for term in terms]} among {max_words} words cannot be counted: give terms of one "
                f"word or more, and 1 frequent word or more"
            )
        self._terms = tuple(" ".join(term) for term in terms)
        self._sizes = sorted({len(term) for term in terms})
        self._words = {word: place for place, word in enumerate(vocabulary.words[:max_words])}
        self._frequency = np.asarray(vocabulary.document_frequency[:max_words], dtype=np.int64)
        self._together = {term: np.zeros(len(self._words), dtype=np.int64) for term in self._terms}
        self._documents = dict.fromkeys(self._terms, 0)

    @property
    def documents(self) -> dict[str, int]:
        """Term → number of documents with the term."""
        return dict(self._documents)

    def add(self, token_lists: Iterable[Sequence[str]]) -> None:
        """Count the words of a batch of texts."""
        for tokens in token_lists:
            held = {name for size in self._sizes for name in ngrams(tokens, size)}
            terms = [term for term in self._together if term in held]
            if not terms:
                continue
            places = [self._words[word] for word in set(tokens) if word in self._words]
            for term in terms:
                self._documents[term] += 1
                self._together[term][places] += 1

    def neighbours(self, term: str, n: int = 5) -> list[DiceNeighbour]:
        """Return the ``n`` frequent words with the highest DICE coefficient for a term. Ties are sorted by frequency.

        DICE(i, j) = 2 cooccur(i, j) / (occur(i) + occur(j)), where all numbers count documents (A13). Therefore a
        frequent word is its own nearest neighbour. Raises `InputError`, with similar spellings, if no document contains
        the term, or it was not counted.

        Source: SSI, Tables 1 and 2; spec 2.4 (1).
        """
        if term not in self._together:
            raise InputError(f"{term!r} was not counted: ask for one of {', '.join(self._together)}")
        occurs = self._documents[term]
        if not occurs:
            raise InputError(f"no document holds {term!r}{spelled_alike(term, list(self._words))}")
        together = self._together[term]
        values = 2.0 * together / (occurs + self._frequency)
        other = np.ones(len(values), dtype=bool)
        if term in self._words:
            other[self._words[term]] = False
        order = np.lexsort((other, -values))[
            : max(n, 0)
        ]  # the word itself is before others in exactly the same documents
        words = tuple(self._words)
        return [
            DiceNeighbour(words[place], float(values[place]), int(together[place]), int(self._frequency[place]))
            for place in order.tolist()
            if together[place]
        ]
