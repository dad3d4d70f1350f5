"""n-grams of token lists and their count rows (spec R05); as features they are only ever mapped to words (spec 1.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.sparse as sp

from reranker.text.dice import ngrams


def frequent_ngrams(
    token_lists: Iterable[Sequence[str]], n: int, *, max_ngrams: int | None = None, min_documents: int = 2
) -> tuple[str, ...]:
    """Return the n-grams of at least ``min_documents`` texts, by decreasing document frequency, ties in text order.

    Parameters
    ----------
    token_lists : iterable of sequences of str
        One a text.
    n : int
        Words an n-gram.
    max_ngrams : int, optional
        Keep the first so many.
    min_documents : int
        Rarer ones are left out: nothing can be learned about them.
    """
    frequency: Counter[str] = Counter()
    for tokens in token_lists:
        frequency.update(set(ngrams(tokens, n)))
    listed = sorted(name for name, documents in frequency.items() if documents >= min_documents)
    listed.sort(key=lambda name: -frequency[name])
    return tuple(listed[:max_ngrams])


def ngram_counts(token_lists: Sequence[Sequence[str]], n: int, names: Sequence[str]) -> sp.csr_matrix:
    """Return how often each text holds each listed n-gram, (n_texts, n_names) float32 with sorted indices."""
    column = {name: place for place, name in enumerate(names)}
    counted = [Counter(column[one] for one in ngrams(tokens, n) if one in column) for tokens in token_lists]
    indptr = np.concatenate([[0], np.cumsum([len(one) for one in counted], dtype=np.int64)])
    indices = np.array([place for one in counted for place in sorted(one)], dtype=np.int32)
    counts = np.array([one[place] for one in counted for place in sorted(one)], dtype=np.float32)
    return sp.csr_matrix((counts, indices, indptr), shape=(len(counted), len(column)))
