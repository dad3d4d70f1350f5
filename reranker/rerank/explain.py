"""Explanations: the word pairs, signals and engine score that add up to the score of a hit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32
from reranker.deadline import Deadline
from reranker.errors import FallbackError
from reranker.kernels.packing import quantise_rows
from reranker.models.ranking_model import EncodedQueries, RankingModel
from reranker.records import RankedHit, ReasonKind
from reranker.rerank.candidates import CandidateVectors
from reranker.rerank.ranking import Ranking, engine_part
from reranker.rerank.signals import added
from reranker.text.rows import combine, with_data
from reranker.text.vocabulary import HASH_BASE, Vocabulary


@dataclass(frozen=True, slots=True)
class Contribution:
    """One term of a score, with the formula of its ``value`` depending on ``kind``.

    - ``identity``: a query word that is also in the document; alpha q_i W_ij d_j of the lexical rows with W_ij = a.
    - ``memory``: a word of queries for which the document was relevant in training, or of pages that link to it. The
      value is what the memory adds to the word's weight in the text; W_ij = a.
    - ``learned``: a pair of words that the model has learned to relate; alpha q_i W_ij d_j of the learned rows with
      W_ij = U_i . V_j. If the encoded text is not available, there is only one
      ``learned`` row, without words and with weight 0: the whole learned part (Uq').(Vd'). What the memory adds is then
      part of ``identity``.
    - ``vector``: a query word and the vector that a text encoder has computed of the document. The value is
      alpha s q_i (U_i . v) / |sum_i q_i U_i| of the word vectors U_i and the stored vector v of the document;
      W_ij = s (U_i . v) / |sum_i q_i U_i|. The document word is a list: the `N_NEAREST` words whose vectors are nearest
      to v, as a description of the document's vector.
    - ``preference``: what users preferred for the query, which is a repeated one; alpha p(q, d).
    - ``others``: all pairs that are not shown.
    - ``signal``: a number of the document; w s(x).
    - ``engine``: the engine's own score; (1 - alpha) BM25 / c(q).
    - ``impact``: with route *impacts*, a query word and its impact in the document, as the engine has stored it; boost
      times the impact. ``engine`` is then the score of the body itself.
    """

    kind: Literal["identity", "memory", "learned", "vector", "preference", "others", "signal", "engine", "impact"]
    query_word: str
    """The query's word; empty for ``preference``, ``others``, ``signal``, and ``engine``."""
    document_word: str
    """The document's word; for ``signal`` the name of its field, for ``vector`` words joined by commas; empty for
    ``preference``, ``others`` and ``engine``."""
    weight: float
    """W_ij of a pair, w of a signal, p of a preference, the impact of a word; 0 for ``others`` and ``engine``."""
    value: float
    """Amount that is added to the score."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions to the score of a hit: word pairs, largest first, ``others``, preference, signals, ``engine``.

    Their values sum to ``score`` within 1e-6. ``others`` also contains the rounding error of the stored vector.
    """

    id: str
    score: float
    contributions: tuple[Contribution, ...]


class DocumentRows(NamedTuple):
    """Rows of a hit, one row each."""

    lexical: sp.csr_matrix
    """The lexical row, without the memory's part if that is known."""
    memory: sp.csr_matrix | None
    """The part of the lexical row that the memory of queries adds; None: unknown."""
    learned: sp.csr_matrix | None
    """The row from which V computed the vector; None: unknown."""
    of_vector: Sequence[Contribution] = ()
    """The contributions of kind ``vector``."""


DEFAULT_PAIRS = 8


MAX_PAIRS = 1_000_000
"""Maximum number of word pairs of one hit whose learned weights are computed, which takes about 50 ms."""


N_NEAREST = 3
"""Number of words that describe the vector of a document."""
LEAST_FREQUENCY = 3
"""Minimum number of documents with a word that describes a vector. Rarer words have learned the vector of one text."""


RESERVED = 0.1
"""Share of the deadline that is reserved for sending the page after explaining."""


_SAME_WEIGHT = 2e-3
"""Maximum relative difference of weights of the same text: above the rounding of a sparse field, below the difference
between two texts."""


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit], deadline: Deadline
) -> tuple[Explanation, ...]:
    """Return an explanation for each hit of the page; ``text`` is the query text.

    Raises `FallbackError` if less than `RESERVED` of the deadline is left before all hits are explained, because a page
    in time without explanations is more useful than a late one.
    """
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    words = model.encode_queries([text])
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    given = _given_rows(model, words.learned_rows, places, window.vectors, alpha.value, name)
    explanations: list[Explanation] = []
    for hit in page:
        if deadline.left_s < RESERVED * (deadline.limit_s or 0.0):
            message = f"explanations were omitted: explaining {len(explanations)} of {len(page)} hits took too long"
            raise FallbackError(ReasonKind.DEADLINE, message)
        if hit.rank > len(scored.order):
            explanations.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read(list(model.encoder.view.texts(hit.source)), model.encoder.document_vocabulary)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        stored = None if hit.unscored or hit.model_score is None else terms[place]
        document = None if stored is None else _rows(model, words, stored, hit)._replace(of_vector=given.get(place, ()))
        signals = () if hit.unscored else alpha.signals  # a hit without a blended score shows only the engine's score
        numbers = [(signal, float(added([signal], [window.hits[place]])[0])) for signal in signals]
        additional = [Contribution("signal", "", signal.field, signal.weight, value) for signal, value in numbers]
        preference = query.preferred.get(hit.id, 0.0)
        if preference and document is not None:
            additional.insert(0, Contribution("preference", "", "", preference, alpha.value * preference))
        additional.append(Contribution("engine", "", "", 0.0, lexical))
        explanations.append(explain_hit(model, words, document, alpha.value, name, hit, additional))
    return tuple(explanations)


def explain_impacts(
    page: Sequence[RankedHit],
    own: Sequence[float],
    impacts: Mapping[str, Sequence[float]],
    boost: float,
    preferences: Mapping[str, float],
    n_words: int = DEFAULT_PAIRS,
) -> tuple[Explanation, ...]:
    """Return an explanation for each hit of a page of route *impacts*.

    Parameters
    ----------
    page
        The hits.
    own
        Score of the body itself for each hit.
    impacts
        Stored impact by query word for each hit, 0 if the document has none.
    boost
        Weight of the impacts, and of the preferences.
    preferences
        What the clause adds for the preferences of users, by document id.
    n_words
        Number of words to show.
    """
    explanations = []
    for place, hit in enumerate(page):
        stored = {word: values[place] for word, values in impacts.items() if values[place]}
        rows = [Contribution("impact", word, word, value, boost * value) for word, value in stored.items()]
        shown = sorted(rows, key=lambda row: -row.value)[:n_words]
        additional = [Contribution("engine", "", "", 0.0, own[place])]
        if weight := preferences.get(hit.id, 0.0):
            additional.insert(0, Contribution("preference", "", "", weight, boost * weight))
        others = hit.score - math.fsum(row.value for row in (*shown, *additional))
        additional.insert(0, Contribution("others", "", "", 0.0, others))
        explanations.append(Explanation(hit.id, hit.score, (*shown, *additional)))
    return tuple(explanations)


def _given_rows(
    model: RankingModel,
    query: sp.csr_matrix,
    places: Sequence[int],
    candidates: CandidateVectors,
    alpha: float,
    name: Callable[[int, bool], str],
) -> dict[int, list[Contribution]]:
    """Return the rows of kind ``vector`` by the place of a candidate; none for one without a given vector."""
    words, field = model.word_encoder, model.encoder.vector_field
    if words is None or field is None or not places:
        return {}
    listed = query.indices < len(words.U)
    ids, parts = query.indices[listed], query.data[listed].astype(np.float64)[:, None] * words.U[query.indices[listed]]
    length = float(np.linalg.norm(parts.sum(axis=0)))
    stored = zip(places, candidates.vectors(places), strict=True)
    given = {place: each[-field.n_dims :] for place, each in stored if each is not None and each[-field.n_dims :].any()}
    if not length or not given:
        return {}
    near = nearest_words(model, np.stack(list(given.values())))
    rows: dict[int, list[Contribution]] = {}
    for (place, vector), described in zip(given.items(), near, strict=True):
        shares = (parts @ vector.astype(np.float64) * (words.weight / length)).tolist()
        weights = query.data[listed].tolist()
        rows[place] = [
            Contribution("vector", name(int(i), True), ", ".join(described), share / weight, alpha * share)
            for i, share, weight in zip(ids.tolist(), shares, weights, strict=True)
            if share != 0.0
        ]
    return rows


def nearest_words(model: RankingModel, vectors: Float32) -> list[list[str]]:
    """Return the words whose vectors have the largest cosines with each of some stored vectors, (n, K) float32.

    Words of fewer than `LEAST_FREQUENCY` documents are left out, unless hardly a word has more.
    """
    encoder, vocabulary = model.word_encoder, model.query_vocabulary
    if encoder is None or not len(encoder.U):
        return [[] for _ in vectors]
    lengths = encoder.lengths
    frequent = vocabulary.document_frequency[: len(lengths)] >= LEAST_FREQUENCY
    usable = (lengths > 0) & frequent if int(((lengths > 0) & frequent).sum()) >= N_NEAREST else lengths > 0
    distances = vectors @ encoder.U.T
    distances /= -np.where(usable, lengths, 1.0)
    distances[:, ~usable] = np.inf
    n = min(N_NEAREST, distances.shape[1])
    described = []
    for of_vector in distances:
        nearest = np.argpartition(of_vector, n - 1)[:n]  # sorting all words takes ten times as long
        ordered = nearest[np.argsort(of_vector[nearest], kind="stable")].tolist()
        described.append([vocabulary.words[word] for word in ordered if usable[word]])
    return described


def _rows(model: RankingModel, query: EncodedQueries, stored: sp.csr_matrix, hit: RankedHit) -> DocumentRows:
    """Return the rows of a hit whose lexical row is stored, by word numbers; None for rows that are unknown.

    With lexical settings d' is not stored (only Vd' is). It is computed from the text that came with the hit, unless
    that text is only a part of the encoded text or has changed since, which shows in a lexical row other than the
    stored one. The memory's part is the stored row minus the row of the text, restricted to the words of the memory.
    """
    encoder = model.encoder
    if encoder.lexical is None:
        return DocumentRows(stored, None, stored)

    def by_word(rows: sp.csr_matrix) -> sp.csr_matrix:
        return model.by_word(query, rows)

    stored = by_word(stored)
    encoded = by_word(quantise_rows(encoder.rows([hit.source], [hit.id]), encoder.quantisation))
    (ids, weights), (stored_ids, stored_weights) = (
        (row.indices[row.data != 0], row.data[row.data != 0]) for row in (encoded, stored)
    )
    same = np.array_equal(ids, stored_ids) and np.allclose(weights, stored_weights, rtol=_SAME_WEIGHT, atol=0)
    if not same:
        return DocumentRows(stored, None, None)
    learned = encoder.learned_rows([hit.source])
    if encoder.memory is None or not model.uses_memory(query.learned_rows.nnz):
        return DocumentRows(stored, None, learned)
    remembered = encoder.memory.counts([hit.id], 1).indices
    of_text = by_word(quantise_rows(encoder.rows([hit.source]), encoder.quantisation))
    with_memory, without = (
        with_data(row, np.where(np.isin(row.indices, remembered), row.data, 0)) for row in (stored, of_text)
    )
    added = combine([with_memory, without], [1.0, -1.0])
    return DocumentRows(combine([stored, added], [1.0, -1.0]), added, learned)


def explain_hit(
    model: RankingModel,
    query: EncodedQueries,
    document: DocumentRows | None,
    alpha: float,
    name: Callable[[int, bool], str],
    hit: RankedHit,
    additional: Sequence[Contribution],
    n_pairs: int = DEFAULT_PAIRS,
) -> Explanation:
    """Return the explanation of one hit.

    If the row that V read is unknown, word pairs cannot be separated, and the weights of more than `MAX_PAIRS` pairs
    take too long to compute. In both cases (Uq').(Vd') becomes one row of kind ``learned`` without words, so that the
    rows still add up to the score.

    Parameters
    ----------
    model
        The model.
    query
        The encoded query, one row.
    document
        The hit's rows; None for a hit without a model score.
    alpha
        Weight of the model.
    name
        Function of (word id, True for the query's side) that returns the word.
    hit
        The hit.
    additional
        The rows of the preference, of the signals and of the engine, as they were added to the score.
    n_pairs
        Number of word pairs to show.
    """
    rows, whole = [], []
    if document is not None:
        lexical, memory, learned, of_vector = document
        asked = model.asked_words(query)
        rows = _same_words(model, asked, lexical, alpha, name, "identity")
        if memory is not None:
            rows += _same_words(model, asked, memory, alpha, name, "memory")
        rows += of_vector
        if learned is not None and query.learned_rows.nnz * learned.nnz <= MAX_PAIRS:
            rows += _learned_pairs(model, query.learned_rows, learned, alpha, name, n_pairs)
        elif hit.model_score is not None:
            preferences = [row.value for row in additional if row.kind == "preference"]
            value = alpha * hit.model_score - math.fsum([*preferences, *(row.value for row in rows)])
            whole = [Contribution("learned", "", "", 0.0, value)]
    shown = sorted(rows, key=lambda row: -abs(row.value))[:n_pairs]
    rows = sorted([*shown, *whole], key=lambda row: -abs(row.value))
    others = hit.score - math.fsum(row.value for row in (*rows, *additional))
    rows += [Contribution("others", "", "", 0.0, others), *additional]
    return Explanation(hit.id, hit.score, tuple(rows))


def _learned_pairs(
    model: RankingModel,
    query: sp.csr_matrix,
    document: sp.csr_matrix,
    alpha: float,
    name: Callable[[int, bool], str],
    n_pairs: int,
) -> list[Contribution]:
    """Return the ``n_pairs`` non-zero contributions of word pairs with the largest magnitude, largest first."""
    pairs: list[Contribution] = []
    learned = model.pair_weights(query, document)
    values = alpha * query.data.astype(np.float64)[:, None] * learned * document.data.astype(np.float64)[None, :]
    # Looking up a word costs more than computing its pair, so only the shown words are looked up.
    for at in np.argsort(-np.abs(values), axis=None, kind="stable")[:n_pairs].tolist():
        i, j = divmod(at, len(document.indices))
        if values[i, j] != 0.0:
            words = name(int(query.indices[i]), True), name(int(document.indices[j]), False)
            pairs.append(Contribution("learned", *words, float(learned[i, j]), float(values[i, j])))
    return pairs


def _same_words(
    model: RankingModel,
    query: sp.csr_matrix,
    document: sp.csr_matrix,
    alpha: float,
    name: Callable[[int, bool], str],
    kind: Literal["identity", "memory"],
) -> list[Contribution]:
    """Return the non-zero contributions of the words that occur in both lexical rows."""
    pairs: list[Contribution] = []
    ids, in_query, in_document = np.intersect1d(
        query.indices, document.indices, assume_unique=True, return_indices=True
    )
    for word, i, j in zip(ids.tolist(), in_query.tolist(), in_document.tolist(), strict=True):
        value = alpha * model.identity * float(query.data[i]) * float(document.data[j])
        if value != 0.0:
            pairs.append(Contribution(kind, name(word, True), name(word, False), float(model.identity), value))
    return pairs


class WordNames:
    """Words by id: from the vocabularies, and for unlisted words from the available texts."""

    def __init__(self, model: RankingModel, query: str) -> None:
        self._model = model
        self._unlisted: dict[int, str] = {}
        self.read([query], model.query_vocabulary)

    def read(self, texts: list[str], vocabulary: Vocabulary) -> None:
        """Store the unlisted words of some texts."""
        for tokens in self._model.encoder.analyzer.tokens(texts):
            ids = vocabulary.ids(tokens).tolist()
            self._unlisted.update({i: word for i, word in zip(ids, tokens, strict=True) if i >= HASH_BASE})

    def __call__(self, word_id: int, of_query: bool) -> str:
        """Return the word, or a placeholder if no available text contains it."""
        vocabulary = self._model.query_vocabulary if of_query else self._model.encoder.document_vocabulary
        if word_id < len(vocabulary.words):
            return vocabulary.words[word_id]
        return self._unlisted.get(word_id, f"(unlisted word {word_id - HASH_BASE})")
