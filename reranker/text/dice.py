"""Words that share documents with a word or an n-gram most regularly, by DICE (spec 2.4, T11)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from reranker.errors import ConfigError, InputError
from reranker.text.rows import Vocabulary

MAX_WORDS = 30_000
"""F: neighbours are among so many of the most frequent words."""


@dataclass(frozen=True, slots=True)
class DiceNeighbour:
    """A frequent word that shares documents with a term.

    ``value`` is 2 n_both / (n_term + n_word), 0 to 1; ``together`` documents hold both, ``documents`` the word.
    """

    word: str
    value: float
    together: int
    documents: int


def ngrams(tokens: Sequence[str], n: int) -> list[str]:
    """Return the runs of n neighbouring tokens in order, each joined by spaces; [] for shorter texts.

    `InputError` is raised if n is below 1.
    """
    if n < 1:
        raise InputError(f"{n}-grams do not exist; give n of at least 1")
    return [" ".join(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


class DiceCounter:
    """Counts, in one pass over the texts, which words stand in the documents of a few terms.

    Memory is bounded by the terms and the frequent words, not by the texts.

    A term is one word, or the words of an n-gram in order. The vocabulary is of the same texts: its first ``max_words``
    words are the most frequent ones, and its document frequencies are used. `ConfigError` is raised if there is no
    term, a term without words, or F is below 1.
    """

    def __init__(self, terms: Sequence[Sequence[str]], vocabulary: Vocabulary, max_words: int = MAX_WORDS) -> None:
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
        """Documents that hold each term."""
        return dict(self._documents)

    def add(self, token_lists: Iterable[Sequence[str]]) -> None:
        """Count the words of some texts."""
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
        """Return the ``n`` frequent words of the greatest DICE with a term, equal ones by frequency.

        DICE(i, j) = 2 cooccur(i, j) / (occur(i) + occur(j)), all counted in documents (A13), so a frequent word is its
        own nearest. `InputError` is raised if the term was not counted, or no document holds it; names frequent words
        of like spelling.

        Source: SSI, Tables 1 and 2; spec 2.4 (1).
        """
        if term not in self._together:
            raise InputError(f"{term!r} was not counted: ask for one of {', '.join(self._together)}")
        occurs = self._documents[term]
        if not occurs:
            close = get_close_matches(term, list(self._words), n=3)
            hint = f"; spelled alike: {', '.join(close)}" if close else ""
            raise InputError(f"no document holds {term!r}{hint}")
        together = self._together[term]
        values = 2.0 * together / (occurs + self._frequency)
        other = np.ones(len(values), dtype=bool)
        if term in self._words:
            other[self._words[term]] = False
        order = np.lexsort((other, -values))[: max(n, 0)]  # the word itself before others of exactly its documents
        words = tuple(self._words)
        return [
            DiceNeighbour(words[place], float(values[place]), int(together[place]), int(self._frequency[place]))
            for place in order.tolist()
            if together[place]
        ]
