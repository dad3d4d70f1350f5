"""The pairs of words that a model relates most strongly, and those whose relation changed most against another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reranker.models.bilinear import pair_weights

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

MAX_QUERY_WORDS = 1_000
MAX_DOCUMENT_WORDS = 20_000
MIN_QUERIES = 2
MIN_DOCUMENTS = 3
_BLOCK = 64
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WordPair:
    """How a model relates a word of a query to another word of a document.

    Parameters
    ----------
    query_word, document_word : str
    weight, before : float
        U_i . V_j in the new model and in the other one (0 where it does not know a word).
    """

    query_word: str
    document_word: str
    weight: float
    before: float

    def to_json(self) -> dict[str, Any]:
        """Return the pair as JSON has it."""
        return asdict(self)


def query_word_counts(model: RankingModel, queries: Iterable[str]) -> Mapping[int, int]:
    """Return in how many of some distinct queries each listed word of the model's vocabulary stands."""
    rows = model.encode_queries(sorted(set(queries))).rows
    counts = Counter(rows.indices.tolist())
    return {word: n for word, n in counts.items() if word < len(model.U)}


def strongest_pairs(
    model: RankingModel, before: RankingModel | None, queries: Iterable[str], n: int = 20
) -> tuple[list[WordPair], list[WordPair]]:
    """Return the ``n`` pairs of largest weight, and the ``n`` whose weight changed most, both largest first.

    Looked at are the 1,000 most frequent words of the queries (of those in at least two of them, if there are any)
    and the 20,000 most frequent words of the documents that stand in at least three. A word with itself is left out.

    Parameters
    ----------
    model, before : RankingModel
        ``before`` None: nothing is known of the words.
    queries : iterable of str
        Whose words are shown.
    n : int
    """
    counts = query_word_counts(model, queries)
    repeated = {word: count for word, count in counts.items() if count >= MIN_QUERIES} or counts
    chosen = sorted(repeated, key=lambda word: (-repeated[word], word))[:MAX_QUERY_WORDS]
    frequent = model.encoder.document_vocabulary.document_frequency >= MIN_DOCUMENTS
    d_ids = np.flatnonzero(frequent[: min(MAX_DOCUMENT_WORDS, len(model.encoder.V))]).astype(np.int32)
    if not chosen or not len(d_ids) or n < 1:
        return [], []
    q_ids = np.array(sorted(chosen), dtype=np.int32)
    weights, changes = _Largest(n), _Largest(n)
    other = None if before is None else _Translated(model, before, q_ids, d_ids)
    for first in range(0, len(q_ids), _BLOCK):
        block = q_ids[first : first + _BLOCK]
        new = pair_weights(model.U, model.encoder.V, block, d_ids)
        old = np.zeros_like(new) if other is None else other.weights(first, first + len(block))
        same = block[:, None] == d_ids[None, :]
        weights.offer(np.where(same, -np.inf, new), new, old, block, d_ids)
        changes.offer(np.where(same, -np.inf, np.abs(new - old)), new, old, block, d_ids)
    return weights.pairs(model), changes.pairs(model)


class _Translated:
    """The same words in another model's vocabulary."""

    def __init__(self, model: RankingModel, other: RankingModel, q_ids: Int32s, d_ids: Int32s) -> None:
        queries, documents = model.query_vocabulary.words, model.encoder.document_vocabulary.words
        self._other = other
        self._q = other.query_vocabulary.ids([queries[i] for i in q_ids.tolist()])
        self._d = other.encoder.document_vocabulary.ids([documents[i] for i in d_ids.tolist()])

    def weights(self, first: int, last: int) -> npt.NDArray[np.float64]:
        return pair_weights(self._other.U, self._other.encoder.V, self._q[first:last], self._d)


class _Largest:
    """The largest offers so far."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._kept: list[tuple[float, int, int, float, float]] = []

    def offer(
        self,
        key: npt.NDArray[np.float64],
        new: npt.NDArray[np.float64],
        old: npt.NDArray[np.float64],
        q_ids: Int32s,
        d_ids: Int32s,
    ) -> None:
        flat = key.ravel()
        places = np.argpartition(-flat, min(self._n, len(flat)) - 1)[: self._n]
        for place in places.tolist():
            i, j = divmod(place, len(d_ids))
            if flat[place] > 0:
                value = (float(flat[place]), int(q_ids[i]), int(d_ids[j]), float(new[i, j]), float(old[i, j]))
                self._kept.append(value)
        self._kept.sort(key=lambda one: (-one[0], one[1], one[2]))
        del self._kept[self._n :]

    def pairs(self, model: RankingModel) -> list[WordPair]:
        queries, documents = model.query_vocabulary.words, model.encoder.document_vocabulary.words
        return [WordPair(queries[i], documents[j], new, old) for _, i, j, new, old in self._kept]
