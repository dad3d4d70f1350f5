"""Candidates turned into ranked hits, in their final order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from reranker.records import Hit, RankedHit
from reranker.rerank.blend import Float64s
from reranker.rerank.calibration import ChosenAlpha
from reranker.rerank.explain import Explanation, Parts, WordNames, explain_hit
from reranker.rerank.window import EncodedQuery, Window

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hits in final order; see `RerankedPage` for the counts.

    ``window``, ``query`` and ``alpha`` are None for a ranking in the engine's own order.
    """

    hits: tuple[RankedHit, ...]
    window: Window | None = None
    query: EncodedQuery | None = None
    alpha: ChosenAlpha | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def n_candidates(self) -> int:
        """Candidates that were scored."""
        return len(self.window.hits) if self.window else 0

    @property
    def n_encoded(self) -> int:
        """Candidates encoded from their text."""
        return self.window.n_encoded if self.window else 0

    @property
    def n_unscored(self) -> int:
        """Candidates without a score."""
        return self.window.n_unscored if self.window else 0

    def followed_by(self, rest: Sequence[Hit]) -> Ranking:
        """Return the ranking with the engine's further hits behind it, in their order."""
        tail = first_stage_ranking(rest, offset=len(self.hits)).hits
        return replace(self, hits=(*self.hits, *tail))


def _number(score: float | None) -> float:
    """Return a score that JSON can hold: 0 for one that is absent or not finite."""
    return score if score is not None and math.isfinite(score) else 0.0


def first_stage_ranking(hits: Sequence[Hit], offset: int = 0) -> Ranking:
    """Return hits in the engine's order, their score the engine's own; ``offset`` hits stand before them."""
    return Ranking(
        tuple(
            RankedHit(
                id=hit.id,
                index=hit.index,
                rank=rank,
                score=_number(hit.score),
                first_stage_rank=rank,
                first_stage_score=hit.score,
                source=hit.source,
                raw=hit.raw,
            )
            for rank, hit in enumerate(hits, 1 + offset)
        )
    )


def engine_part(lexical: float, alpha: float, scale: float) -> float:
    """Return (1 - alpha) BM25 / c(q), 0 where the engine gave no score or it does not count."""
    return 0.0 if alpha == 1.0 or not math.isfinite(lexical) else (1.0 - alpha) * (lexical / scale)


def reranked(
    window: Window,
    query: EncodedQuery,
    scores: Float64s,
    alpha: ChosenAlpha,
    kept: npt.NDArray[np.bool_],
    order: npt.NDArray[np.int64],
) -> Ranking:
    """Return the window's hits in their final order.

    A hit without a blended score shows the engine's part alone.
    """
    hits = []
    for rank, place in enumerate(order.tolist(), 1):
        hit, score, model_score = window.hits[place], float(scores[place]), float(window.model[place])
        unscored = math.isnan(score)
        if not math.isfinite(score):
            score = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        hits.append(
            RankedHit(
                id=hit.id,
                index=hit.index,
                rank=rank,
                score=score,
                first_stage_rank=place + 1,
                first_stage_score=hit.score,
                model_score=None if math.isnan(model_score) else model_score,
                unscored=unscored,
                kept=bool(kept[place]),
            )
        )
    return Ranking(tuple(hits), window, query, alpha)


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit]
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score."""
    window, query, alpha = ranking.window, ranking.query, ranking.alpha
    if window is None or query is None or alpha is None:
        return ()
    name = WordNames(model, text)
    found = []
    for hit in page:
        place = hit.first_stage_rank - 1
        if place >= len(window.hits):
            found.append(Explanation(hit.id, hit.score, ()))
            continue
        name.read_source(hit.source)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        model_score = None if hit.unscored else hit.model_score
        parts = Parts(hit.score, model_score, lexical, alpha.value)
        words = (query.vectors.ids, query.vectors.weights)
        found.append(explain_hit(model, words, window.vectors.terms(place), parts, name, hit.id))
    return tuple(found)


def notices_of(query: EncodedQuery, alpha: ChosenAlpha, n_encoded: int, n: int) -> list[str]:
    """Return what the reader of a reranked page should know about how its scores came to be."""
    notices = []
    if alpha.origin == "default":
        notices.append(
            f"alpha = {alpha.value:g} is the default, not fitted to this index, body and window: run `ssi calibrate`"
        )
    if query.n_listed == 0:
        notices.append("no word of the query is in the model's vocabulary: it ranks by exact words alone")
    if n_encoded:
        notices.append(
            f"{n_encoded} of {n} candidates had no vector of this model and were encoded from their text: "
            "run `ssi sync`"
        )
    return notices
