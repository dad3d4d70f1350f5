"""The request of a reranked search, the blended score that orders its hits, and the resulting page.

The score is alpha f + (1 - alpha) BM25 / c(q), plus the contributions of signals, which are numbers of the document
(`reranker.rerank.signals`). BM25 grows with the number and the rarity of the query's words, while f (of unit rows) does
not. Dividing by c(q) removes this growth, so that one alpha works for short and long queries. c depends only on the
query, so the blend is linear in BM25 ::

    c(q) = sum over the distinct words i of q of idf_i

c(q) is BM25's own upper bound for one field, because tf / (tf + k1 (...)) is below 1, up to a constant factor. The
factor differs between engines (OpenSearch omits k1 + 1 since 3.0, the others keep it), and alpha absorbs it. The
highest BM25 of the response was not chosen, because it depends on the documents: adding one document would reorder the
others, and consecutive pages would not fit together.

An alpha and its signals belong to a query body and a window; `fit_alpha` fits them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.deadline import Deadline
from reranker.engines.bodies import default_query_body, not_rerankable
from reranker.records import Hit, RankedHit, Reason, ReasonKind
from reranker.rerank.calibration.kept import DEFAULT, PINNED_SCORE, ChosenAlpha
from reranker.rerank.candidates import EncodedQuery, Window, has_key
from reranker.text.view import TextView


@dataclass(frozen=True, slots=True)
class Request:
    """One search request."""

    query: str
    body: Mapping[str, Any]
    """The search body with the query text filled in."""
    template: Mapping[str, Any]
    """The search body with its ``{{query}}`` placeholder."""
    first: int
    """Position of the first hit of the page, from 0."""
    size: int
    """Number of hits of the page."""
    preference: str
    """Selects the shard copies that answer."""
    deadline: Deadline
    alpha: ChosenAlpha = DEFAULT
    """The weight by which the scores are blended."""
    asked: str = ""
    """The words that the query asks for: the query itself, unless the body reads it by a syntax."""
    unread: Reason | None = None
    """Why these words are unknown, or why there are none though the query is not empty; None if they are known."""
    clauses: frozenset[str] = frozenset()
    """Scoring clauses of the template (`signature_of`)."""

    @property
    def doc_values(self) -> list[dict[str, str]]:
        """``docvalue_fields`` of the candidates, from which the signals are computed."""
        return [signal.request() for signal in self.alpha.signals]


def preference_of(query: str) -> str:
    """Return the preference of a query's requests: one copy of each shard, because copies score differently."""
    return f"ssi-{hashlib.blake2b(query.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def blend(
    model_scores: Float64, lexical_scores: Float64, alpha: float, scale: float, signals: Float64 | None = None
) -> Float64:
    """Return alpha f + (1 - alpha) BM25 / c(q) + signals, (n,) float64; NaN if a part with weight is not finite.

    Parameters
    ----------
    model_scores
        (n,) float64: f(q, d). Ignored if ``alpha`` is 0.
    lexical_scores
        (n,) float64: the engine's ``_score``. Ignored if ``alpha`` is 1.
    alpha
        Weight of the model, 0 to 1.
    scale
        c(q) > 0.
    signals
        (n,) float64: sum of the signals' contributions; None: 0.
    """
    scores = np.zeros(len(model_scores)) if signals is None else signals.copy()
    if alpha > 0.0:
        scores += alpha * model_scores
    if alpha < 1.0:
        scores += (1.0 - alpha) * (lexical_scores / scale)
    scores[~np.isfinite(scores)] = np.nan
    return scores


def final_order(scores: Float64, kept: Bool) -> Int64:
    """Return the candidates' positions in final order: sorted by (-score, first-stage rank), kept ones in place.

    The first-stage rank breaks every tie, so ids are never needed. ``scores``, (n,) float64, are in first-stage order.
    A candidate with NaN keeps its place, and so does one in ``kept``, (n,) bool.

    Returns
    -------
    (n,) int64
        A permutation: element r is the first-stage position of the candidate at final position r.
    """
    order = np.arange(len(scores), dtype=np.int64)
    free = np.flatnonzero(~(kept | np.isnan(scores)))
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order


def why_not(body: Mapping[str, Any]) -> Reason | None:
    """Return why all hits of a body must keep the engine's order, or None if they may be reranked.

    In addition to the reasons of `not_rerankable`, this is ``collapse``, where a hit represents a group that the engine
    chose and ranked.
    """
    if body.get("collapse") is not None:
        text = "the body collapses hits into groups, which keep the engine's order"
        return Reason(ReasonKind.NOT_RERANKABLE, text)
    return not_rerankable(body)


def pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids that ``pinned`` queries in the body put on top (``ids``, ``docs`` or ``documents``)."""
    searched = [body.get("query"), body.get("retriever")]
    return frozenset(_pinned(searched)) if has_key(searched, {"pinned"}) else frozenset()


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


def kept_in_place(hits: Sequence[Hit], body: Mapping[str, Any]) -> Bool:
    """Return which hits must not move, (n,) bool.

    These are the documents of a ``pinned`` query, and any hit with a pinned query's score (also if a rule of the engine
    applied it).
    """
    pinned = pinned_ids(body)
    kept = [hit.id in pinned or (hit.score is not None and hit.score >= PINNED_SCORE) for hit in hits]
    return np.array(kept, dtype=bool)


def default_template(view: TextView) -> dict[str, Any]:
    """Return the default body template: BM25 over the model's text fields with their weights."""
    weights = view.weights
    fields = [
        spec.path if weight == 1.0 else f"{spec.path}^{weight:g}"
        for spec, weight in zip(view.fields, weights, strict=True)
        if weight > 0
    ]
    return default_query_body("{{query}}", fields or [spec.path for spec in view.fields])


@dataclass(frozen=True, slots=True)
class Scored:
    """A scored window, with all values from which its final order was computed."""

    window: Window
    query: EncodedQuery
    alpha: ChosenAlpha
    scores: Float64
    """(n,) float64: blended scores in first-stage order, NaN if there is none."""
    kept: Bool
    """(n,) bool: hits that must not move."""
    order: Int64
    """(n,) int64: element r is the first-stage position of the hit at final position r."""

    @property
    def max_score(self) -> float | None:
        """Highest score of the window's hits, the same for all its pages; None without hits."""
        unscored = np.isnan(self.scores)
        values = [self._score(place) for place in np.flatnonzero(unscored).tolist()]
        if not unscored.all():
            values.append(float(np.nanmax(self.scores)))
        return max(values, default=None)

    def _score(self, place: int) -> float:
        """Return the blended score of a hit at a first-stage position, or only the engine's part without one."""
        score = float(self.scores[place])
        if not math.isnan(score):
            return score
        return engine_part(float(self.window.lexical[place]), self.alpha.value, self.query.scale)

    def hit(self, rank: int) -> RankedHit:
        """Return the hit at a final rank, from 1. Without a blended score it has only the engine's part."""
        place = int(self.order[rank - 1])
        hit, model_score = self.window.hits[place], float(self.window.model[place])
        return RankedHit(
            id=hit.id,
            index=hit.index,
            rank=rank,
            score=self._score(place),
            first_stage_rank=place + 1,
            first_stage_score=hit.score,
            model_score=None if math.isnan(model_score) else model_score,
            unscored=math.isnan(self.scores[place]),
            kept=bool(self.kept[place]),
            source=hit.source,
            raw=hit.raw,
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """The engine's hits with the final order of their window. `RankedHit` objects are created only for the page."""

    hits: Sequence[Hit]
    """Hits in first-stage order, which those after the window keep."""
    scored: Scored | None = None
    """The scored window; None if all hits keep the first-stage order."""
    offset: int = 0
    """Number of the engine's hits before ``hits``."""
    notices: list[str] = field(default_factory=list)

    def page(self, first: int, last: int) -> tuple[RankedHit, ...]:
        """Return the hits at the 0-based final positions first, ..., last - 1, as far as they exist."""
        return tuple(self._hit(place) for place in range(first, min(last, len(self.hits))))

    def _hit(self, place: int) -> RankedHit:
        if self.scored is not None and place < len(self.scored.order):
            return self.scored.hit(place + 1)
        hit, rank = self.hits[place], place + 1 + self.offset
        score = hit.score if hit.score is not None and math.isfinite(hit.score) else 0.0  # JSON cannot hold NaN
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
    """Return (1 - alpha) BM25 / c(q); 0 if the engine returned no score or its weight is 0."""
    return 0.0 if alpha == 1.0 or not math.isfinite(lexical) else (1.0 - alpha) * (lexical / scale)


def notices_of(query: EncodedQuery, alpha: ChosenAlpha, n_encoded: int, n: int) -> list[str]:
    """Return notices for the user of a reranked page about how its scores were computed."""
    notices = []
    if alpha.origin == "default":
        notices.append(
            f"alpha = {alpha.value:g} is the default, not fitted to this index, body and window: run `ssi calibrate`"
        )
    if alpha.origin == "nearest":
        notices.append(
            f"alpha = {alpha.value:g} was fitted to a similar body or another window: run `ssi calibrate` with this "
            "body and window"
        )
    if query.n_listed == 0:
        notices.append("no word of the query is in the model's vocabulary, so it ranks only by exact words")
    if n_encoded:
        notices.append(
            f"{n_encoded} of {n} candidates had no vector of this model, or one of an older text, and were encoded "
            "from their text: run `ssi sync`"
        )
    return notices
