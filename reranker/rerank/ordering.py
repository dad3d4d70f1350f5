"""The final order of the candidates, and which of them do not move.

Candidates turned into ranked hits, in their final order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from reranker.engines.bodies import not_rerankable
from reranker.records import Hit, RankedHit
from reranker.rerank.blend import ChosenAlpha, Float64s
from reranker.rerank.candidates import EncodedQuery, Window
from reranker.rerank.explain import Explanation, Parts, WordNames, explain_hit

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel


PINNED_SCORE: Final = 1e30
"""A ``_score`` above this is no similarity: a pinned query puts its documents at 1.7e38 and above."""


def final_order(scores: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the candidates' places in final order: by (-score, first-stage rank), kept ones where they were.

    The first-stage rank settles every tie, so ids never have to.

    Parameters
    ----------
    scores : (n,) float64
        In first-stage order. A score that is not a number keeps its candidate in place too.
    kept : (n,) bool
        Candidates that must stay at their place.

    Returns
    -------
    (n,) int64
        A permutation: element r is the first-stage place of the candidate at final place r.
    """
    order = np.arange(len(scores), dtype=np.int64)
    free = np.flatnonzero(~(kept | np.isnan(scores)))
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order


def why_not(body: Mapping[str, Any]) -> str:
    """Return why the hits of a body all keep the engine's order, or an empty string.

    Besides what `not_rerankable` names: ``collapse``, where a hit stands for a group that the engine chose and ranked.
    """
    if body.get("collapse") is not None:
        return "the body collapses hits into groups, which keep the engine's order"
    return not_rerankable(body)


def pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids that a ``pinned`` query anywhere in the body puts on top (``ids``, ``docs`` or ``documents``)."""
    return frozenset(_pinned(body.get("query")) | _pinned(body.get("retriever")))


def _pinned(node: Any) -> set[str]:
    found: set[str] = set()
    for name, value in _entries(node):
        if name == "pinned" and isinstance(value, Mapping):
            found |= {str(one) for one in value.get("ids") or ()}
            for one in [*(value.get("docs") or ()), *(value.get("documents") or ())]:
                if isinstance(one, Mapping) and "_id" in one:
                    found.add(str(one["_id"]))
        found |= _pinned(value)
    return found


def _entries(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from (("", item) for item in node)


def kept_in_place(hits: Sequence[Hit], body: Mapping[str, Any], keep_top: int) -> npt.NDArray[np.bool_]:
    """Return which hits must not move, (n,) bool.

    Recognised: the documents of a ``pinned`` query, any hit with a pinned query's score (also when a rule of the
    engine applied it), and the first ``keep_top`` hits, for teams that keep their own on top.
    """
    pinned = pinned_ids(body)
    kept = [
        place < keep_top or hit.id in pinned or (hit.score is not None and hit.score >= PINNED_SCORE)
        for place, hit in enumerate(hits)
    ]
    return np.array(kept, dtype=bool)


@dataclass(frozen=True, slots=True)
class Scored:
    """What the order of a window was made of.

    Parameters
    ----------
    window : Window
    query : EncodedQuery
    alpha : ChosenAlpha
    scores : (n,) float64
        Blended scores in first-stage order; NaN where there is none.
    kept : (n,) bool
        Candidates that must not move.
    order : (n,) int64
        Element r is the first-stage place of the hit at final place r.
    """

    window: Window
    query: EncodedQuery
    alpha: ChosenAlpha
    scores: Float64s
    kept: npt.NDArray[np.bool_]
    order: npt.NDArray[np.int64]

    def hit(self, rank: int) -> RankedHit:
        """Return the hit at a 1-based place of the final order; without a blended score it shows the engine's part."""
        place = int(self.order[rank - 1])
        hit, score, model_score = self.window.hits[place], float(self.scores[place]), float(self.window.model[place])
        unscored = math.isnan(score)
        if unscored:
            score = engine_part(float(self.window.lexical[place]), self.alpha.value, self.query.scale)
        return RankedHit(
            id=hit.id,
            index=hit.index,
            rank=rank,
            score=score,
            first_stage_rank=place + 1 if self.window.ranks_known else 0,
            first_stage_score=hit.score,
            model_score=None if math.isnan(model_score) else model_score,
            unscored=unscored,
            kept=bool(self.kept[place]),
            source=hit.source,
            raw=hit.raw,
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """The engine's hits with the final order of their window; ranked hits are made for the page alone.

    Parameters
    ----------
    hits : sequence of Hit
        In first-stage order; those past the window stay in it.
    scored : Scored or None
        None for a ranking that is the engine's own throughout.
    offset : int
        Hits of the engine that stand before these.
    notices : list of str
    """

    hits: Sequence[Hit]
    scored: Scored | None = None
    offset: int = 0
    notices: list[str] = field(default_factory=list)

    def page(self, first: int, last: int) -> tuple[RankedHit, ...]:
        """Return the hits at the 0-based places first, ..., last - 1 of the final order, as far as there are any."""
        n_reranked = len(self.scored.order) if self.scored else 0
        found = []
        for place in range(first, min(last, len(self.hits))):
            if self.scored is not None and place < n_reranked:
                found.append(self.scored.hit(place + 1))
            else:
                found.append(_as_the_engine_has_it(self.hits[place], place + 1 + self.offset))
        return tuple(found)


def _number(score: float | None) -> float:
    """Return a score that JSON can hold: 0 for one that is absent or not finite."""
    return score if score is not None and math.isfinite(score) else 0.0


def _as_the_engine_has_it(hit: Hit, rank: int) -> RankedHit:
    """Return a hit at the engine's own rank with the engine's own score."""
    return RankedHit(
        id=hit.id,
        index=hit.index,
        rank=rank,
        score=_number(hit.score),
        first_stage_rank=rank,
        first_stage_score=hit.score,
        source=hit.source,
        raw=hit.raw,
    )


def engine_part(lexical: float, alpha: float, scale: float) -> float:
    """Return (1 - alpha) BM25 / c(q), 0 where the engine gave no score or it does not count."""
    return 0.0 if alpha == 1.0 or not math.isfinite(lexical) else (1.0 - alpha) * (lexical / scale)


def explanations_of(
    model: RankingModel, text: str, ranking: Ranking, page: Sequence[RankedHit]
) -> tuple[Explanation, ...]:
    """Return why each hit of the page has its score."""
    if ranking.scored is None:
        return ()
    scored = ranking.scored
    window, query, alpha = scored.window, scored.query, scored.alpha
    name = WordNames(model, text)
    places = [int(scored.order[hit.rank - 1]) for hit in page if hit.rank <= len(scored.order)]
    terms = dict(zip(places, window.vectors.terms(places), strict=True))
    found = []
    for hit in page:
        if hit.rank > len(scored.order):
            found.append(Explanation(hit.id, hit.score, ()))
            continue
        place = int(scored.order[hit.rank - 1])
        name.read_source(hit.source)
        lexical = engine_part(float(window.lexical[place]), alpha.value, query.scale)
        model_score = None if hit.unscored else hit.model_score
        parts = Parts(hit.score, model_score, lexical, alpha.value)
        words = (query.vectors.ids, query.vectors.weights)
        found.append(explain_hit(model, words, terms[place], parts, name, hit.id))
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
