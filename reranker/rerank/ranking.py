"""The order of a search's hits: made here of blended scores, or by the engine's own rescoring.

`Ranking` holds it; `Rescorer` lets the engine order a large window of route *inside*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.engines.inside import LOST, Blending, floor_body, rescore_body, unmapped, why_not_rescored
from reranker.records import Hit, RankedHit, SearchAnswer
from reranker.rerank.blend import ChosenAlpha, pinned_ids
from reranker.rerank.candidates import Candidates, CandidateVectors, EncodedQuery, EngineScript, Window
from reranker.rerank.request import Request, RerankSettings


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
            id=hit.id, index=hit.index, rank=rank, score=score,
            first_stage_rank=place + 1 if self.window.ranks_known else 0, first_stage_score=hit.score,
            model_score=None if math.isnan(model_score) else model_score,
            unscored=unscored, kept=bool(self.kept[place]), source=hit.source, raw=hit.raw,
        )  # fmt: skip


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
            id=hit.id, index=hit.index, rank=rank, score=score, first_stage_rank=rank, first_stage_score=hit.score,
            source=hit.source, raw=hit.raw,
        )  # fmt: skip


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


@dataclass(slots=True)
class Rescorer:
    """Asks for a page in final order: one request on an index of one shard, else one more for the window's end.

    What it cannot tell: the first-stage ranks of the hits (0 stands for them).
    """

    script: EngineScript
    candidates: Candidates
    settings: RerankSettings
    _one_shard: bool = field(init=False, default=True)

    def suits(self, request: Request) -> bool:
        """Return True where the engine can order this page: no hit must stay in place, the page is in the window."""
        settings = self.settings
        inside_window = request.first + request.size <= settings.window and request.size > 0
        return (
            settings.rescore_from is not None
            and settings.window >= settings.rescore_from
            and settings.retrieve == "bm25"
            and settings.keep_top == 0
            and inside_window
            and not pinned_ids(request.body)
            and not why_not_rescored(request.body, self.script.fields())
        )

    def order(
        self, request: Request, query: EncodedQuery, alpha: ChosenAlpha, *, with_source: bool
    ) -> tuple[SearchAnswer, Scored] | None:
        """Return the first hits up to the end of the page in final order, and what it was made of.

        None where a document of the window has no vector: it scores highest, to be seen here, and must be encoded
        from its text, which the engine cannot do.
        """
        blending = Blending(alpha.value, (1.0 - alpha.value) / query.scale, self.settings.window)
        answer = self._ask(request, query, blending, with_source)
        if any(hit.score is None or hit.score >= LOST / 10 for hit in answer.hits):
            return None
        request.deadline.note_stage("candidates")
        return answer, self._scored(request, query, alpha, blending, answer)

    def _ask(self, request: Request, query: EncodedQuery, blending: Blending, with_source: bool) -> SearchAnswer:
        one_shard, last = self._one_shard, request.first + request.size
        floor = None if one_shard else self._floor(request)
        body = rescore_body(request.body, self.script.fields(), query.vectors, blending, floor)
        answer = self.candidates.search(body, last, request.preference, request.deadline, with_source=with_source)
        shards = answer.raw.get("_shards") or {}
        if one_shard and int(shards.get("total", 1)) > 1:
            # Every shard has rescored a window of its own: ask again with the end of the whole window known.
            self._one_shard = False
            return self._ask(request, query, blending, with_source)
        return answer

    def _floor(self, request: Request) -> float | None:
        """Return the score of the window's last hit; None where fewer documents match."""
        body = floor_body(request.body, self.settings.window)
        timeout_s = request.deadline.timeout_s()
        engine, index = self.candidates.engine, self.candidates.index
        hits = engine.search(index, body, preference=request.preference, timeout_s=timeout_s).hits
        return hits[0].score if hits else None

    def _scored(
        self, request: Request, query: EncodedQuery, alpha: ChosenAlpha, blending: Blending, answer: SearchAnswer
    ) -> Scored:
        """Return the hits with their scores taken apart: f is asked for those of the page."""
        scores = unmapped(np.array([hit.score for hit in answer.hits], dtype=np.float64))
        n, first = len(answer.hits), request.first
        of_page = self.script.load(answer.hits[first:], query.vectors, request.deadline.timeout_s())
        vectors = CandidateVectors(n, [part._replace(places=part.places + first) for part in of_page.parts])
        model = vectors.score(query.vectors)
        lexical = np.full(n, np.nan)
        if blending.lexical > 0:
            lexical = np.maximum((scores - alpha.value * model) / blending.lexical, 0.0)
        hits = tuple(
            replace(hit, score=None if np.isnan(bm25) else float(bm25))
            for hit, bm25 in zip(answer.hits, lexical.tolist(), strict=True)
        )
        window = Window(hits, lexical, model, vectors, n_found=min(answer.total, blending.window), ranks_known=False)
        request.deadline.note_stage("score")
        return Scored(window, query, alpha, scores, np.zeros(n, dtype=bool), np.arange(n, dtype=np.int64))
