"""Why a document has its score: the word pairs that count most, and two rows for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from reranker.arrays import Float32, Int32
from reranker.artifacts import RankingModel
from reranker.records import RankedHit
from reranker.rerank.ranking import Ranking, engine_part
from reranker.rerank.request import Contribution, Explanation
from reranker.text.tfidf import HASH_BASE, Vocabulary

DEFAULT_PAIRS = 8


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit]
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score; ``text`` is the query's."""
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    explanations = []
    for hit in page:
        if hit.rank > len(scored.order):
            explanations.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read_source(hit.source)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        document = None if hit.unscored or hit.model_score is None else terms[place]
        words = (query.vectors.ids, query.vectors.weights)
        explanations.append(explain_hit(model, words, document, alpha.value, name, hit, lexical))
    return tuple(explanations)


def explain_hit(
    model: RankingModel, query: tuple[Int32, Float32], document: sp.csr_matrix | None, alpha: float,
    name: Callable[[int, bool], str], hit: RankedHit, engine_part: float, n_pairs: int = DEFAULT_PAIRS,
) -> Explanation:  # fmt: skip
    """Return the explanation of one hit.

    ``query`` is (ids, weights) of its row; ``document`` the document's row, None for a hit without a score of the
    model; ``name(word id, True for the query's side)`` returns the word; ``engine_part`` is (1 - alpha) BM25 / c(q),
    as it was added to the score; ``n_pairs`` are shown.
    """
    rows = [] if document is None else _largest_pairs(model, query, document, alpha, name, n_pairs)
    others = hit.score - engine_part - math.fsum(row.value for row in rows)
    rows += [Contribution("others", "", "", 0.0, others), Contribution("engine", "", "", 0.0, engine_part)]
    return Explanation(hit.id, hit.score, tuple(rows))


def _largest_pairs(
    model: RankingModel, query: tuple[Int32, Float32], document: sp.csr_matrix, alpha: float,
    name: Callable[[int, bool], str], n_pairs: int,
) -> list[Contribution]:  # fmt: skip
    """Return the ``n_pairs`` non-zero contributions of single pairs of largest magnitude, largest first."""
    (q_ids, q_weights), (d_ids, d_weights) = query, (document.indices, document.data)
    pairs: list[Contribution] = []
    q_row = sp.csr_matrix((q_weights, q_ids, [0, len(q_ids)]), shape=(1, document.shape[1]))
    # In this document: where the model's form is not linear, a pair's weight depends on the words beside it.
    learned = model.pair_weights(q_row, document)
    values = alpha * q_weights.astype(np.float64)[:, None] * learned * d_weights.astype(np.float64)[None, :]
    # Naming a word costs more than computing its pair: name only what can be shown.
    for at in np.argsort(-np.abs(values), axis=None, kind="stable")[:n_pairs].tolist():
        i, j = divmod(at, len(d_ids))
        if values[i, j] != 0.0:
            words = name(int(q_ids[i]), True), name(int(d_ids[j]), False)
            pairs.append(Contribution("learned", *words, float(learned[i, j]), float(values[i, j])))
    _, in_query, in_document = np.intersect1d(q_ids, d_ids, assume_unique=True, return_indices=True)
    for i, j in zip(in_query.tolist(), in_document.tolist(), strict=True):
        value = alpha * model.identity * float(q_weights[i]) * float(d_weights[j])
        if value != 0.0:
            words = name(int(q_ids[i]), True), name(int(d_ids[j]), False)
            pairs.append(Contribution("identity", *words, float(model.identity), value))
    return sorted(pairs, key=lambda row: -abs(row.value))[:n_pairs]


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

    def read_source(self, source: Mapping[str, Any]) -> None:
        """Remember the unlisted words of a document."""
        self.read(list(self._model.encoder.view.texts(source)), self._model.encoder.document_vocabulary)

    def __call__(self, word_id: int, of_query: bool) -> str:
        """Return the word, or a stand-in where no text at hand has it."""
        vocabulary = self._model.query_vocabulary if of_query else self._model.encoder.document_vocabulary
        if word_id < len(vocabulary.words):
            return vocabulary.words[word_id]
        return self._unlisted.get(word_id, f"(unlisted word {word_id - HASH_BASE})")
