"""Explanations: the pairs of words, the signals and the engine's part that add up to the score of a hit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from reranker.deadline import Deadline
from reranker.errors import FallbackError
from reranker.kernels.packing import quantise_rows
from reranker.models.ranking_model import EncodedQueries, RankingModel
from reranker.records import RankedHit, ReasonKind
from reranker.rerank.ranking import Ranking, engine_part
from reranker.rerank.signals import added
from reranker.text.rows import combine, with_data
from reranker.text.vocabulary import HASH_BASE, Vocabulary


@dataclass(frozen=True, slots=True)
class Contribution:
    """One row of an explanation.

    ``identity`` is a word of the query that is also in the document, ``memory`` one of queries that the document was
    relevant for in training, with what that adds to the word's weight in the text; ``learned`` is a pair of words the
    model has learned to relate. ``signal`` is a number of the document: ``document_word`` is its field, ``weight`` its
    w. ``others``, all pairs not shown, and ``engine``, its own score, have no words and weight 0. So has ``learned``
    where the text that was encoded is not at hand: then it is the whole learned part, (Uq').(Vd'), and what the memory
    adds is in ``identity``.

    ``weight`` of a pair is W_ij: a for identity and memory, U_i . V_j for learned; in the cubic forms and in ``unit``
    the learned W_ij is that of this document (and query): U_i . (V_j o t(d)), see `reranker.models.scorers`. ``value``
    is what the row adds to the score: alpha q_i W_ij d_j, of the learned rows for learned and of the lexical rows for
    identity and memory; w s(x) for ``signal``, and for ``engine`` (1 - alpha) BM25 / c(q).
    """

    kind: Literal["identity", "memory", "learned", "others", "signal", "engine"]
    query_word: str
    document_word: str
    weight: float
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions to the score of one hit, largest first, then ``others``, the signals and ``engine``.

    Their values sum to ``score`` within 1e-6. ``others`` also holds what rounding of the stored vector adds or takes.
    """

    id: str
    score: float
    contributions: tuple[Contribution, ...]


DocumentRows: TypeAlias = tuple[sp.csr_matrix, sp.csr_matrix | None, sp.csr_matrix | None]
"""A hit's lexical row, what of it the memory of queries adds (None: not told apart), and the row that V read (None: not
known), of one row each."""


DEFAULT_PAIRS = 8


MAX_PAIRS = 1_000_000
"""Pairs of words of one hit whose learned weights are computed: some 50 ms."""


RESERVED = 0.1
"""Share of the deadline that explaining leaves to sending the page."""


_SAME_WEIGHT = 2e-3
"""Relative difference of weights of one text: above the rounding of a sparse field, below that of another text."""


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit], deadline: Deadline
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score; ``text`` is the query's.

    `FallbackError` if less than `RESERVED` of the deadline is left before all hits are explained: the page is worth
    more in time, without explanations.
    """
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    words = model.encode_queries([text])
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    explanations: list[Explanation] = []
    for hit in page:
        if deadline.left_s < RESERVED * (deadline.limit_s or 0.0):
            message = f"explanations were left out: {len(explanations)} of {len(page)} hits took too long"
            raise FallbackError(ReasonKind.DEADLINE, message)
        if hit.rank > len(scored.order):
            explanations.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read(list(model.encoder.view.texts(hit.source)), model.encoder.document_vocabulary)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        stored = None if hit.unscored or hit.model_score is None else terms[place]
        document = None if stored is None else _rows(model, stored, hit)
        signals = () if hit.unscored else alpha.signals  # without a blended score it shows the engine's part alone
        numbers = [(signal, float(added([signal], [window.hits[place]])[0])) for signal in signals]
        beside = [Contribution("signal", "", signal.field, signal.weight, value) for signal, value in numbers]
        beside.append(Contribution("engine", "", "", 0.0, lexical))
        explanations.append(explain_hit(model, words, document, alpha.value, name, hit, beside))
    return tuple(explanations)


def _rows(model: RankingModel, stored: sp.csr_matrix, hit: RankedHit) -> DocumentRows:
    """Return the rows of a hit whose lexical row is stored; None for what is not known of them.

    With lexical settings d' is not stored (only Vd' is): it is that of the text that came with the hit, unless this is
    another text than was encoded, in part or since changed, so that it gives another lexical row than the stored one.
    What the memory of queries adds is the stored row without that of the text alone, in the words of the memory.
    """
    encoder = model.encoder
    if encoder.lexical is None:
        return stored, None, stored
    encoded = quantise_rows(encoder.rows([hit.source], [hit.id]), encoder.quantisation)
    (ids, weights), (stored_ids, stored_weights) = (
        (row.indices[row.data != 0], row.data[row.data != 0]) for row in (encoded, stored)
    )
    same = np.array_equal(ids, stored_ids) and np.allclose(weights, stored_weights, rtol=_SAME_WEIGHT, atol=0)
    if not same:
        return stored, None, None
    learned = encoder.learned_rows([hit.source])
    if encoder.memory is None:
        return stored, None, learned
    remembered = encoder.memory.counts([hit.id], 1).indices
    of_text = quantise_rows(encoder.rows([hit.source]), encoder.quantisation)
    with_memory, without = (
        with_data(row, np.where(np.isin(row.indices, remembered), row.data, 0)) for row in (stored, of_text)
    )
    added = combine([with_memory, without], [1.0, -1.0])
    return combine([stored, added], [1.0, -1.0]), added, learned


def explain_hit(
    model: RankingModel,
    query: EncodedQueries,
    document: DocumentRows | None,
    alpha: float,
    name: Callable[[int, bool], str],
    hit: RankedHit,
    beside: Sequence[Contribution],
    n_pairs: int = DEFAULT_PAIRS,
) -> Explanation:
    """Return the explanation of one hit.

    ``query`` is the query alone; ``document`` the hit's rows, None for a hit without a score of the model;
    ``name(word id, True for the query's side)`` returns the word; ``beside`` are the rows of the signals and of the
    engine, as they were added to the score; ``n_pairs`` are shown.

    Without the row that V read no pair of words can be told from another, and the weights of more than `MAX_PAIRS`
    pairs take too long to compute. (Uq').(Vd') is then one row of kind ``learned``, without words, so that the rows
    still add up to the score.
    """
    rows, whole = [], []
    if document is not None:
        lexical, memory, learned = document
        rows = _same_words(model, query.rows, lexical, alpha, name, "identity")
        if memory is not None:
            rows += _same_words(model, query.rows, memory, alpha, name, "memory")
        if learned is not None and query.learned_rows.nnz * learned.nnz <= MAX_PAIRS:
            rows += _learned_pairs(model, query.learned_rows, learned, alpha, name, n_pairs)
        elif hit.model_score is not None:
            value = alpha * hit.model_score - math.fsum(row.value for row in rows)
            whole = [Contribution("learned", "", "", 0.0, value)]
    shown = sorted(rows, key=lambda row: -abs(row.value))[:n_pairs]
    rows = sorted([*shown, *whole], key=lambda row: -abs(row.value))
    others = hit.score - math.fsum(row.value for row in (*rows, *beside))
    rows += [Contribution("others", "", "", 0.0, others), *beside]
    return Explanation(hit.id, hit.score, tuple(rows))


def _learned_pairs(
    model: RankingModel,
    query: sp.csr_matrix,
    document: sp.csr_matrix,
    alpha: float,
    name: Callable[[int, bool], str],
    n_pairs: int,
) -> list[Contribution]:
    """Return the ``n_pairs`` non-zero contributions of pairs of words of largest magnitude, largest first."""
    pairs: list[Contribution] = []
    # In this document: where the model's form is not linear, a pair's weight depends on the words beside it.
    learned = model.pair_weights(query, document)
    values = alpha * query.data.astype(np.float64)[:, None] * learned * document.data.astype(np.float64)[None, :]
    # Naming a word costs more than computing its pair: name only what can be shown.
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
    """Return the non-zero contributions of the words that both lexical rows have."""
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
    """The words behind ids: from the vocabularies, and for unlisted words from the texts at hand."""

    def __init__(self, model: RankingModel, query: str) -> None:
        self._model = model
        self._unlisted: dict[int, str] = {}
        self.read([query], model.query_vocabulary)

    def read(self, texts: list[str], vocabulary: Vocabulary) -> None:
        """Remember the unlisted words of some texts."""
        for tokens in self._model.encoder.analyzer.tokens(texts):
            ids = vocabulary.ids(tokens).tolist()
            self._unlisted.update({i: word for i, word in zip(ids, tokens, strict=True) if i >= HASH_BASE})

    def __call__(self, word_id: int, of_query: bool) -> str:
        """Return the word, or a stand-in where no text at hand has it."""
        vocabulary = self._model.query_vocabulary if of_query else self._model.encoder.document_vocabulary
        if word_id < len(vocabulary.words):
            return vocabulary.words[word_id]
        return self._unlisted.get(word_id, f"(unlisted word {word_id - HASH_BASE})")
