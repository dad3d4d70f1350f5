"""The answer to a search: a page of ranked hits, and why each has its score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from reranker.artifacts import EncodedQueries, RankingModel
from reranker.kernels.packing import quantise_rows
from reranker.records import RankedHit
from reranker.rerank.ranking import Ranking, engine_part
from reranker.text.rows import HASH_BASE, Vocabulary, combine, with_data


@dataclass(frozen=True, slots=True)
class Contribution:
    """One row of an explanation.

    ``identity`` is a word of the query that is also in the document, ``memory`` one of queries that the document was
    relevant for in training, with what that adds to the word's weight in the text; ``learned`` is a pair of words the
    model has learned to relate. ``others``, all pairs not shown, and ``engine``, its own score, have no words and
    weight 0. So has ``learned`` where the text that was encoded is not at hand: then it is the whole learned part,
    (Uq').(Vd'), and what the memory adds is in ``identity``.

    ``weight`` is W_ij: a for identity and memory, U_i . V_j for learned; in the cubic forms and in ``unit`` the learned
    W_ij is that of this document (and query): U_i . (V_j o t(d)), see `reranker.models.scorers`. ``value`` is what the
    row adds to the score: alpha q_i W_ij d_j, of the learned rows for learned and of the lexical rows for identity and
    memory, and for ``engine`` (1 - alpha) BM25 / c(q).
    """

    kind: Literal["identity", "memory", "learned", "others", "engine"]
    query_word: str
    document_word: str
    weight: float
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions to the score of one hit, largest first, then ``others`` and ``engine``.

    Their values sum to ``score`` within 1e-6. ``others`` also holds what rounding of the stored vector adds or takes.
    """

    id: str
    score: float
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class RerankedPage:
    """The answer to a search: the hits of the page, in final order.

    ``total`` documents match, by the engine's count; a lower bound where not ``total_is_exact``. ``reranked`` is True
    where the model took part in the order of this page, ``fallback`` where it should have and the page is in the
    engine's order instead; ``reason`` says why a page is not reranked. ``notices`` are what the reader should know: the
    default alpha was used, words are unknown, vectors are missing. ``alpha`` is the weight of the model in the scores,
    its ``alpha_origin`` is ``calibrated``, ``default`` or ``given``. Of ``n_candidates`` in the window, ``n_encoded``
    were encoded from their text for want of a vector, and ``n_unscored`` had neither. ``timings_ms`` are by step.
    ``explanations`` are one a hit where asked for, else none; ``raw`` is the engine's first answer (aggregations,
    suggestions), hits aside.
    """

    query: str
    hits: tuple[RankedHit, ...]
    total: int
    total_is_exact: bool
    reranked: bool
    fallback: bool = False
    reason: str = ""
    notices: tuple[str, ...] = ()
    alpha: float | None = None
    alpha_origin: str = ""
    model_id: str = ""
    n_candidates: int = 0
    n_encoded: int = 0
    n_unscored: int = 0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values; ``null`` stands for a score that is absent or not finite."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("hits", "explanations", "raw")}
        values["notices"] = list(self.notices)
        values["timings_ms"] = {name: round(value, 3) for name, value in self.timings_ms.items()}
        values["hits"] = [_hit_json(hit) for hit in self.hits]
        for hit, explanation in zip(values["hits"], self.explanations, strict=False):
            hit["explanation"] = asdict(explanation)["contributions"]
        values |= {name: self.raw[name] for name in ("aggregations", "suggest") if name in self.raw}
        return values


def _hit_json(hit: RankedHit) -> dict[str, Any]:
    values = {f.name: getattr(hit, f.name) for f in fields(hit) if f.name not in ("raw", "source")}
    for name in ("first_stage_score", "model_score"):
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    shown = {name: hit.raw[name] for name in ("highlight", "inner_hits", "fields") if name in hit.raw}
    return {**values, **shown, "source": hit.source}


DocumentRows: TypeAlias = tuple[sp.csr_matrix, sp.csr_matrix | None, sp.csr_matrix | None]
"""A hit's lexical row, what of it the memory of queries adds (None: not told apart), and the row that V read (None: not
known), of one row each."""
DEFAULT_PAIRS = 8
_SAME_WEIGHT = 2e-3
"""Relative difference of weights of one text: above the rounding of a sparse field, below that of another text."""


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit]
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score; ``text`` is the query's."""
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    words = model.encode_queries([text])
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    explanations = []
    for hit in page:
        if hit.rank > len(scored.order):
            explanations.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read(list(model.encoder.view.texts(hit.source)), model.encoder.document_vocabulary)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        stored = None if hit.unscored or hit.model_score is None else terms[place]
        document = None if stored is None else _rows(model, stored, hit)
        explanations.append(explain_hit(model, words, document, alpha.value, name, hit, lexical))
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
    model: RankingModel, query: EncodedQueries, document: DocumentRows | None, alpha: float,
    name: Callable[[int, bool], str], hit: RankedHit, engine_part: float, n_pairs: int = DEFAULT_PAIRS,
) -> Explanation:  # fmt: skip
    """Return the explanation of one hit.

    ``query`` is the query alone; ``document`` the hit's rows, None for a hit without a score of the model;
    ``name(word id, True for the query's side)`` returns the word; ``engine_part`` is (1 - alpha) BM25 / c(q), as it was
    added to the score; ``n_pairs`` are shown.

    Without the row that V read no pair of words can be told from another: (Uq').(Vd') is one row of kind ``learned``,
    without words, so that the rows still add up to the score.
    """
    rows, whole = [], []
    if document is not None:
        lexical, memory, learned = document
        rows = _same_words(model, query.rows, lexical, alpha, name, "identity")
        if memory is not None:
            rows += _same_words(model, query.rows, memory, alpha, name, "memory")
        if learned is not None:
            rows += _learned_pairs(model, query.learned_rows, learned, alpha, name, n_pairs)
        elif hit.model_score is not None:
            value = alpha * hit.model_score - math.fsum(row.value for row in rows)
            whole = [Contribution("learned", "", "", 0.0, value)]
    shown = sorted(rows, key=lambda row: -abs(row.value))[:n_pairs]
    rows = sorted([*shown, *whole], key=lambda row: -abs(row.value))
    others = hit.score - engine_part - math.fsum(row.value for row in rows)
    rows += [Contribution("others", "", "", 0.0, others), Contribution("engine", "", "", 0.0, engine_part)]
    return Explanation(hit.id, hit.score, tuple(rows))


def _learned_pairs(
    model: RankingModel, query: sp.csr_matrix, document: sp.csr_matrix, alpha: float,
    name: Callable[[int, bool], str], n_pairs: int,
) -> list[Contribution]:  # fmt: skip
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
    model: RankingModel, query: sp.csr_matrix, document: sp.csr_matrix, alpha: float,
    name: Callable[[int, bool], str], kind: Literal["identity", "memory"],
) -> list[Contribution]:  # fmt: skip
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
