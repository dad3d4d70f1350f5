"""What a reranked search is asked, the order of its hits by one score, and the page that answers, with its reasons.

The score is alpha f + (1 - alpha) BM25 / c(q), and what the signals add, where there are any: numbers of the document
(`reranker.rerank.signals`). BM25 grows with the number and the rarity of the query's words, f (unit
rows) does not: c(q) takes that growth out, so that one alpha serves short and long queries. c depends on the query
alone, so the blend is linear in BM25 and every route, also one inside the engine, can compute it. ::

    c(q) = sum over the distinct words i of q of idf_i

is BM25's own upper bound of one field, up to a constant factor that differs between engines (OpenSearch leaves k1 + 1
out since 3.0, the others keep it) and that alpha absorbs: tf / (tf + k1 (...)) is below 1. It was chosen over the
highest BM25 of the answer, which depends on the documents: adding one document would reorder the others, and pages
would not fit.

An alpha, and the signals beside it, belong to a query body and a window; `reranker.rerank.calibrate` fits them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.deadline import Deadline
from reranker.engines.bodies import default_query_body, not_rerankable
from reranker.records import Hit, RankedHit, Reason, ReasonKind
from reranker.rerank.calibration import DEFAULT, ChosenAlpha
from reranker.rerank.candidates import EncodedQuery, Window
from reranker.text.view import TextView

PINNED_SCORE: Final = 1e30
"""A ``_score`` above this is no similarity: a pinned query puts its documents at 1.7e38 and above."""


@dataclass(frozen=True, slots=True)
class Request:
    """One search, as all its steps need it.

    ``body`` is the search body with the query's text in its place, ``template`` without; ``first`` and ``size`` are the
    page; ``preference`` says which shard copies answer; by ``alpha`` the scores are blended.
    """

    query: str
    body: Mapping[str, Any]
    template: Mapping[str, Any]
    first: int
    size: int
    preference: str
    deadline: Deadline
    alpha: ChosenAlpha = DEFAULT

    @property
    def doc_values(self) -> list[dict[str, str]]:
        """What candidates come with for the signals: ``docvalue_fields`` of a body."""
        return [signal.request() for signal in self.alpha.signals]


def preference_of(query: str) -> str:
    """Return the preference of a query's requests: one copy of each shard, since scores of copies differ."""
    return f"ssi-{hashlib.blake2b(query.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def blend(
    model_scores: Float64, lexical_scores: Float64, alpha: float, scale: float, signals: Float64 | None = None
) -> Float64:
    """Return alpha f + (1 - alpha) BM25 / c(q) + signals, (n,) float64; NaN where a part that counts is not finite.

    Both scores, f(q, d) and the engine's ``_score``, are (n,) float64; one of weight 0 may be anything. ``scale`` is
    c(q) > 0; ``signals``, (n,) float64, are what they add together, None for nothing.
    """
    scores = np.zeros(len(model_scores)) if signals is None else signals.copy()
    if alpha > 0.0:
        scores += alpha * model_scores
    if alpha < 1.0:
        scores += (1.0 - alpha) * (lexical_scores / scale)
    scores[~np.isfinite(scores)] = np.nan
    return scores


def final_order(scores: Float64, kept: Bool) -> Int64:
    """Return the candidates' places in final order: by (-score, first-stage rank), kept ones where they were.

    The first-stage rank settles every tie, so ids never have to. ``scores``, (n,) float64, are in first-stage order;
    NaN keeps a candidate in place, as ``kept``, (n,) bool, does.

    Returns
    -------
    (n,) int64
        A permutation: element r is the first-stage place of the candidate at final place r.
    """
    order = np.arange(len(scores), dtype=np.int64)
    free = np.flatnonzero(~(kept | np.isnan(scores)))
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order


def why_not(body: Mapping[str, Any]) -> Reason | None:
    """Return why the hits of a body all keep the engine's order, or None if they may be reranked.

    Besides what `not_rerankable` names: ``collapse``, where a hit stands for a group that the engine chose and ranked.
    """
    if body.get("collapse") is not None:
        text = "the body collapses hits into groups, which keep the engine's order"
        return Reason(ReasonKind.NOT_RERANKABLE, text)
    return not_rerankable(body)


def pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids that a ``pinned`` query anywhere in the body puts on top (``ids``, ``docs`` or ``documents``)."""
    return frozenset(_pinned(body.get("query")) | _pinned(body.get("retriever")))


def _pinned(node: Any) -> set[str]:
    ids: set[str] = set()
    unnamed = (("", item) for item in node) if isinstance(node, (list, tuple)) else ()
    for name, value in node.items() if isinstance(node, Mapping) else unnamed:
        if name == "pinned" and isinstance(value, Mapping):
            ids |= {str(document_id) for document_id in value.get("ids") or ()}
            documents = [*(value.get("docs") or ()), *(value.get("documents") or ())]
            ids |= {
                str(document["_id"]) for document in documents if isinstance(document, Mapping) and "_id" in document
            }
        ids |= _pinned(value)
    return ids


def kept_in_place(hits: Sequence[Hit], body: Mapping[str, Any], keep_top: int) -> Bool:
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


def default_template(view: TextView) -> dict[str, Any]:
    """Return the body template used where the team gives none: BM25 over the model's text fields with its weights."""
    weights = view.weights
    fields = [
        spec.path if weight == 1.0 else f"{spec.path}^{weight:g}"
        for spec, weight in zip(view.fields, weights, strict=True)
        if weight > 0
    ]
    return default_query_body("{{query}}", fields or [spec.path for spec in view.fields])


@dataclass(frozen=True, slots=True)
class Scored:
    """What the order of a window was made of.

    ``scores``, (n,) float64, are blended, in first-stage order, NaN where there is none; ``kept``, (n,) bool, must not
    move; element r of ``order``, (n,) int64, is the first-stage place of the hit at final place r.
    """

    window: Window
    query: EncodedQuery
    alpha: ChosenAlpha
    scores: Float64
    kept: Bool
    order: Int64

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

    ``hits`` are in first-stage order, and those past the window stay in it; ``scored`` is None where all do. ``offset``
    hits of the engine stand before these.
    """

    hits: Sequence[Hit]
    scored: Scored | None = None
    offset: int = 0
    notices: list[str] = field(default_factory=list)

    def page(self, first: int, last: int) -> tuple[RankedHit, ...]:
        """Return the hits at the 0-based places first, ..., last - 1 of the final order, as far as there are any."""
        return tuple(self._hit(place) for place in range(first, min(last, len(self.hits))))

    def _hit(self, place: int) -> RankedHit:
        if self.scored is not None and place < len(self.scored.order):
            return self.scored.hit(place + 1)
        hit, rank = self.hits[place], place + 1 + self.offset
        score = hit.score if hit.score is not None and math.isfinite(hit.score) else 0.0  # what JSON can hold
        return RankedHit(
            id=hit.id,
            index=hit.index,
            rank=rank,
            score=score,
            first_stage_rank=rank,
            first_stage_score=hit.score,
            source=hit.source,
            raw=hit.raw,
        )


def engine_part(lexical: float, alpha: float, scale: float) -> float:
    """Return (1 - alpha) BM25 / c(q), 0 where the engine gave no score or it does not count."""
    return 0.0 if alpha == 1.0 or not math.isfinite(lexical) else (1.0 - alpha) * (lexical / scale)


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
