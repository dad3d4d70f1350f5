"""A large window of route *inside*, ordered by the engine's own rescoring."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reranker.engines.inside import LOST, Blending, floor_body, rescore_body, unmapped, why_not_rescored
from reranker.records import SearchAnswer
from reranker.rerank.candidates import Candidates, CandidateVectors, EncodedQuery, EngineScript, Window
from reranker.rerank.ranking import ChosenAlpha, Request, RerankSettings, Scored, pinned_ids


@dataclass(slots=True)
class Rescorer:
    """Asks for a page in final order: one request on an index of one shard, else one more for the window's end.

    What it cannot tell: the first-stage ranks of the hits (0 stands for them).
    """

    script: EngineScript
    candidates: Candidates
    settings: RerankSettings
    _one_shard: bool = field(init=False, default=True)

    def why_not(self, request: Request) -> str:
        """Return why the engine cannot order the hits of a body by itself, or an empty string."""
        if pinned_ids(request.body):
            return "it pins hits, which must not move"
        return why_not_rescored(request.body, self.script.fields())

    def body(self, request: Request, query: EncodedQuery, alpha: ChosenAlpha, stored: str) -> dict[str, Any]:
        """Return the body by which the engine itself, by its stored script, gives the order that is served now."""
        floor = self._floor(request)  # which says how many shards there are
        floor = None if self._one_shard else floor
        blending = self._blending(query, alpha)
        return rescore_body(request.body, self.script.fields(), query.vectors, blending, floor, stored=stored)

    def _blending(self, query: EncodedQuery, alpha: ChosenAlpha) -> Blending:
        return Blending(alpha.value, (1.0 - alpha.value) / query.scale, self.settings.window)

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
            and not self.why_not(request)
        )

    def order(
        self, request: Request, query: EncodedQuery, alpha: ChosenAlpha, *, with_source: bool
    ) -> tuple[SearchAnswer, Scored] | None:
        """Return the first hits up to the end of the page in final order, and what it was made of.

        None where a document of the window has no vector: it scores highest, to be seen here, and must be encoded
        from its text, which the engine cannot do.
        """
        blending = self._blending(query, alpha)
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
        self._count_shards(answer)
        if one_shard and not self._one_shard:
            # Every shard has rescored a window of its own: ask again with the end of the whole window known.
            return self._ask(request, query, blending, with_source)
        return answer

    def _count_shards(self, answer: SearchAnswer) -> None:
        self._one_shard &= int((answer.raw.get("_shards") or {}).get("total", 1)) == 1

    def _floor(self, request: Request) -> float | None:
        """Return the score of the window's last hit; None where fewer documents match."""
        body = floor_body(request.body, self.settings.window)
        timeout_s = request.deadline.timeout_s()
        engine, index = self.candidates.engine, self.candidates.index
        answer = engine.search(index, body, preference=request.preference, timeout_s=timeout_s)
        self._count_shards(answer)
        return answer.hits[0].score if answer.hits else None

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
