"""Relations of words: in a model (nearest words, related pairs, a plot), and in texts (DICE coefficient)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

import numpy as np

from reranker.arrays import Float32, Float64
from reranker.errors import ConfigError, InputError
from reranker.models.ranking_model import RankingModel
from reranker.models.scorers import pair_weights
from reranker.text.analyzers import BETWEEN
from reranker.text.vocabulary import Vocabulary

Side = Literal["documents", "queries"]
Measure = Literal["distance", "cosine"]
SIDES: tuple[Side, ...] = ("documents", "queries")
MEASURES: tuple[Measure, ...] = ("distance", "cosine")
FORMATS = (".png", ".svg")
Spot = tuple[str, Side]
MAX_QUERY_WORDS = 1_000
MAX_DOCUMENT_WORDS = 20_000
MIN_QUERIES = 2
MIN_DOCUMENTS = 3
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour of a word in the vector space of a model."""

    word: str
    value: float
    """Euclidean distance (lower is nearer) or cosine (higher is nearer)."""
    documents: int
    """Number of documents of the training corpus with the word."""


@dataclass(frozen=True, slots=True)
class RelatedWord:
    """A document word that raises (or lowers) the score for a query, with its query word."""

    query_word: str
    document_word: str
    weight: float
    """Contribution of the pair to f(q, d) for a document with only this word: q_i (U_i . V_j + a if i = j) with
    d_j = 1, or q'_i U_i . V_j + a q_i d_i if the model has lexical settings."""
    same: bool
    """Whether the document word is a word of the query."""


@dataclass(frozen=True, slots=True)
class WordPair:
    """A pair of query word and document word in two models."""

    query_word: str
    document_word: str
    weight: float
    """U_i . V_j in the new model."""
    before: float
    """U_i . V_j in the other model; 0 if it does not know a word."""


def embedding_of(model: RankingModel, side: Side) -> tuple[Vocabulary, Float32]:
    """Return the vocabulary and the word vectors, (n_rows, N) float32, of a side: V for documents, U for queries."""
    if side == "documents":
        return model.encoder.document_vocabulary, model.encoder.V
    return model.query_vocabulary, model.query_side(1)


def row_of_word(model: RankingModel, word: str, side: Side) -> int:
    """Return the row of a word. Raises `InputError`, with similar spellings, if the word has no learned vector."""
    vocabulary, table = embedding_of(model, side)
    tokens = model.encoder.analyzer.tokens([word])[0]
    if len(tokens) == 3 and BETWEEN in tokens[-1]:
        tokens = tokens[-1:]  # the bigram, in a model with bigrams
    if len(tokens) != 1:
        raise InputError(f"{word!r} is read as {len(tokens)} words ({', '.join(tokens)}): give one")
    number = int(vocabulary.ids(tokens)[0])
    if 0 <= number < len(table):
        return number
    if 0 <= number < len(vocabulary):
        raise InputError(f"{tokens[0]!r} has no learned vector: only the {len(table):,} most frequent words have one")
    hint = spelled_alike(tokens[0], vocabulary.words[: len(table)])
    raise InputError(f"{tokens[0]!r} is not among the {len(vocabulary):,} words of the model's {side}{hint}")


def spelled_alike(word: str, words: Sequence[str]) -> str:
    """Return the end of a message about an unknown word: words with a similar spelling; empty if there are none."""
    close = get_close_matches(word, words, n=3)
    return f"; spelled alike: {', '.join(close)}" if close else ""


def similar_words(
    model: RankingModel,
    word: str | int,
    *,
    n: int = 5,
    side: Side = "documents",
    among: Side = "documents",
    measure: Measure = "distance",
    min_documents: int = 3,
) -> list[Neighbour]:
    """Return the ``n`` words whose vectors are nearest to that of a word, nearest first. Ties are sorted by frequency.

    The word is analyzed by the model's analyzer; a number is the row of a word. ``side`` is the matrix of the word's
    vector, and ``among`` that of its neighbours: V (documents) or U (queries). With two vocabularies,
    ``side="queries"`` finds words in the language of the documents for a word in the language of the queries.
    ``distance`` is the measure of the paper. It prefers vectors of similar length, which means words of similar
    frequency. ``cosine`` ignores the lengths. Words in fewer than ``min_documents`` documents are left out, because
    little has been learned about them.

    Raises `InputError` as `row_of_word`, and `ConfigError` for an unknown side or measure.

    Source: Polynomial Semantic Indexing, table 5 (spec T10).
    """
    for value, legal in ((side, SIDES), (among, SIDES), (measure, MEASURES)):
        if value not in legal:
            raise ConfigError(f"{value!r} is not one of {', '.join(legal)}", value=value)
    number = word if isinstance(word, int) else row_of_word(model, word, side)
    vector = np.asarray(embedding_of(model, side)[1][number], dtype=np.float64)
    vocabulary, table = embedding_of(model, among)
    values = nearness(table, vector, measure)
    frequency = np.asarray(vocabulary.document_frequency[: len(table)])
    taken = frequency >= min_documents
    if vocabulary is embedding_of(model, side)[0]:
        taken[number] = False
    places = np.flatnonzero(taken)
    key = values[places] if measure == "distance" else -values[places]
    order = places[np.argsort(key, kind="stable")[: max(n, 0)]]
    return [Neighbour(vocabulary.words[i], float(values[i]), int(frequency[i])) for i in order.tolist()]


def nearness(table: Float32, vector: Float64, measure: Measure) -> Float64:
    """Return the Euclidean distance, or the cosine (0 for a row of zeros), of each row of ``table`` to ``vector``."""
    rows = np.asarray(table, dtype=np.float64)
    if measure == "distance":
        return np.asarray(np.linalg.norm(rows - vector, axis=1), dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
    cosines: Float64 = np.divide(rows @ vector, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    return cosines


def related_words(model: RankingModel, query: str, *, n: int = 10, min_documents: int = 3) -> list[RelatedWord]:
    """Return the pairs (query word, document word) with the largest weights, largest first. Ties: by frequency.

    Each document word occurs once, with the query word that gives it the largest weight. Words in fewer than
    ``min_documents`` documents are left out, except words of the query.

    Raises `InputError` if the query has no word that the model knows.
    """
    encoded = model.encode_queries([query])
    q_ids, q_weights = encoded.learned_rows.indices, encoded.learned_rows.data.astype(np.float64)
    vocabulary, V = model.encoder.document_vocabulary, model.encoder.V
    known = q_ids < max(len(model.U), len(vocabulary) if model.has_shared_vocabulary else 0)
    if not known.any():
        raise InputError(f"the model knows no word of the query {query[:80]!r}")
    q_ids, q_weights = q_ids[known], q_weights[known]
    n_columns = max(len(V), int(q_ids.max()) + 1) if model.has_shared_vocabulary else len(V)
    U = model.query_side(encoded.learned_rows.nnz)
    pairs = q_weights[:, None] * pair_weights(U, V, q_ids, np.arange(n_columns))
    own = np.zeros(n_columns, dtype=bool)
    if model.has_shared_vocabulary:
        # a q_i d_i of each word of the query's lexical row, where d is the row of a document with only this word
        rows = model.asked_words(encoded)
        parts: Float64 = model.identity * rows.data.astype(np.float64)
        encoder = model.encoder
        weights_of = encoder.short_rows if model.uses_short_rows(encoded.learned_rows.nnz) else encoder.lexical_rows
        if weights_of is not None:
            parts *= weights_of.single_words(rows.indices)
        same_word = dict(zip(rows.indices.tolist(), parts.tolist(), strict=True))
        pairs[np.arange(len(q_ids)), q_ids] += [same_word.get(i, 0.0) for i in q_ids.tolist()]
        own[q_ids] = True
    best = pairs.argmax(axis=0)
    weights = pairs[best, np.arange(n_columns)]
    places = np.flatnonzero(own | (np.asarray(vocabulary.document_frequency[:n_columns]) >= min_documents))
    order = places[np.argsort(-weights[places], kind="stable")[: max(n, 0)]]
    words = model.query_vocabulary.words
    return [
        RelatedWord(
            words[q_ids[best[j]]],
            vocabulary.words[j],
            float(weights[j]),
            bool(model.has_shared_vocabulary and q_ids[best[j]] == j),
        )
        for j in order.tolist()
    ]


def nearest_index_words(model: RankingModel, query: str, n: int = 3) -> list[str]:
    """Return the ``n`` document words, not of the query, that U and V relate most to a query.

    If the model knows no word of the query, these are document words of a similar spelling.
    """
    tokens = [token for token in model.encoder.analyzer.tokens([query])[0] if BETWEEN not in token]
    try:
        pairs = related_words(model, query, n=n + len(tokens))
    except InputError:  # no word is known
        words = model.encoder.document_vocabulary.words
        near = [match for token in tokens for match in get_close_matches(token, words, n=n)]
        return list(dict.fromkeys(near))[:n]
    return [pair.document_word for pair in pairs if pair.weight > 0 and pair.document_word not in tokens][:n]


def strongest_pairs(
    model: RankingModel, before: RankingModel | None, queries: Iterable[str], n: int = 20
) -> tuple[list[WordPair], list[WordPair]]:
    """Return the ``n`` pairs with the largest weights, and the ``n`` with the largest changes, both largest first.

    Candidates are the 1,000 most frequent query words (in at least two queries, if there are any) and the 20,000 most
    frequent document words in at least three documents. Pairs of a word with itself are left out. If ``before`` is
    None, all earlier weights are 0.
    """
    words = model.encode_queries(sorted(set(queries))).learned_rows.indices.tolist()
    counts = {word: n for word, n in Counter(words).items() if word < len(model.U)}
    repeated = {word: count for word, count in counts.items() if count >= MIN_QUERIES} or counts
    chosen = sorted(repeated, key=lambda word: (-repeated[word], word))[:MAX_QUERY_WORDS]
    frequent = model.encoder.document_vocabulary.document_frequency >= MIN_DOCUMENTS
    d_ids = np.flatnonzero(frequent[: min(MAX_DOCUMENT_WORDS, len(model.encoder.V))]).astype(np.int32)
    if not chosen or not len(d_ids) or n < 1:
        return [], []
    q_ids = np.array(sorted(chosen), dtype=np.int32)
    # (sort key, query word, document word, weight now, weight before)
    weights: list[tuple[float, int, int, float, float]] = []
    changes: list[tuple[float, int, int, float, float]] = []
    query_words, document_words = model.query_vocabulary.words, model.encoder.document_vocabulary.words
    if before is not None:  # the same words in the other model's vocabulary
        before_q = before.query_vocabulary.ids([query_words[i] for i in q_ids.tolist()])
        before_d = before.encoder.document_vocabulary.ids([document_words[i] for i in d_ids.tolist()])
    for first in range(0, len(q_ids), _BLOCK):
        block = q_ids[first : first + _BLOCK]
        new = pair_weights(model.query_side(1), model.encoder.V, block, d_ids)
        old = np.zeros_like(new)
        if before is not None:
            old = pair_weights(before.query_side(1), before.encoder.V, before_q[first : first + len(block)], before_d)
        same = block[:, None] == d_ids[None, :]
        for largest, values in ((weights, new), (changes, np.abs(new - old))):
            flat = np.where(same, -np.inf, values).ravel()
            for place in np.argpartition(-flat, min(n, len(flat)) - 1)[:n].tolist():
                i, j = divmod(place, len(d_ids))
                if flat[place] > 0:
                    ids = int(block[i]), int(d_ids[j])
                    largest.append((float(flat[place]), *ids, float(new[i, j]), float(old[i, j])))
            largest.sort(key=lambda pair: (-pair[0], *pair[1:3]))
            del largest[n:]
    strongest, changed = (
        [WordPair(query_words[i], document_words[j], new, old) for _, i, j, new, old in largest]
        for largest in (weights, changes)
    )
    return strongest, changed
