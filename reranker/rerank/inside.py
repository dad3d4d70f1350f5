"""Route *inside*: the engine computes f from the version's own fields; of a document only its score leaves it.

Route *inside*, large windows: the engine scores, blends and orders the window itself and returns the page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.engines.base import Engine
from reranker.engines.fields import ID_DIGITS, unpacked_terms
from reranker.engines.inside import (
    LOST,
    MAX_CANDIDATES,
    Blending,
    InsideFields,
    ModelQuery,
    floor_body,
    inside_fields,
    model_scores,
    rescore_body,
    score_body,
    unmapped,
    why_not_rescored,
)
from reranker.errors import ConfigError, EncoderMismatch, Unsupported
from reranker.records import Hit, SearchAnswer
from reranker.rerank.blend import ChosenAlpha
from reranker.rerank.candidates import Candidates, CandidateVectors, EncodedQuery, Window
from reranker.rerank.fetch_phase import documents_of
from reranker.rerank.ordering import Scored, pinned_ids
from reranker.rerank.request import Request, RerankSettings
from reranker.store import QueryVectors
from reranker.text.vocabulary import N_TERM_IDS

Float32s = npt.NDArray[np.float32]


def model_query(query: QueryVectors) -> ModelQuery:
    """Return a query as request bodies take it."""
    return ModelQuery(query.vector, query.ids, query.weights, query.identity)


@dataclass(frozen=True, slots=True, eq=False)
class EngineScores:
    """Documents that the engine has scored; another query asks it again.

    Parameters
    ----------
    query : QueryVectors
        What ``scores`` answer.
    scores : (n,) float32
    ask : callable
        Query → the scores of the same documents.
    words : callable
        Places → the tf-idf rows of these documents.
    """

    query: QueryVectors
    scores: Float32s
    ask: Callable[[QueryVectors], Float32s]
    words: Callable[[Sequence[int]], list[sp.csr_matrix]]

    def score(self, query: QueryVectors) -> Float32s:
        """Return f(q, d) of all documents, (n,) float32."""
        return self.scores if query is self.query else self.ask(query)

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix]:
        """Return the tf-idf rows of some of the documents, read from the engine."""
        return self.words(places)


@dataclass(slots=True)
class Inside:
    """Route *inside*: the engine is asked a second time, for f of the candidates' ids.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias; all indexes behind it must have the fields.
    encoder_id : str
        Names the fields.
    """

    engine: Engine
    index: str
    encoder_id: str
    _fields: InsideFields | None = field(init=False, default=None)

    @property
    def source_fields(self) -> tuple[str, ...]:
        """None: ids are enough."""
        return ()

    def fields(self) -> InsideFields:
        """Return the fields that the engine computes with; asked for once.

        Raises
        ------
        EncoderMismatch
            If the index has none of this encoder; the message names the command that writes them.
        Unsupported
            If the engine has no such fields at all.
        EngineError
            If it does not answer.
        """
        if self._fields is None:
            self._fields = fields_of_index(self.engine, self.index, self.encoder_id)
        return self._fields

    def load(
        self, hits: Sequence[Hit], query: QueryVectors | None = None, timeout_s: float | None = None
    ) -> CandidateVectors:
        """Return the engine's scores of these hits; a document without a vector has none."""
        if query is None:
            raise ConfigError("route inside scores a query's hits: it has no vectors of documents to hand out")
        found = CandidateVectors(len(hits))
        scores = self._scores(hits, query, timeout_s)
        places = np.flatnonzero(~np.isnan(scores))
        if len(places):
            scored = [hits[place] for place in places.tolist()]
            part = EngineScores(
                query,
                scores[places],
                lambda other: self._scores(scored, other, timeout_s),
                lambda some: self._words([scored[place] for place in some]),
            )
            found.parts.append((places.astype(np.int64), part))
        return found

    def _scores(self, hits: Sequence[Hit], query: QueryVectors, timeout_s: float | None) -> Float32s:
        """Return f of the hits, (n,) float32, NaN for those that the engine could not score."""
        fields, asked = self.fields(), model_query(query)
        scores = np.full(len(hits), np.nan, dtype=np.float32)
        # An alias may stand for several indexes that hold the same id.
        n_indexes = len({hit.index for hit in hits})
        step = MAX_CANDIDATES // max(n_indexes, 1)
        for start in range(0, len(hits), step):
            part = hits[start : start + step]
            body = score_body(fields, asked, list(dict.fromkeys(hit.id for hit in part)), len(part) * n_indexes)
            answer = self.engine.search(self.index, body, timeout_s=timeout_s)
            told = model_scores(fields, asked, [np.nan if hit.score is None else hit.score for hit in answer.hits])
            known = {(hit.index, hit.id): f for hit, f in zip(answer.hits, told.tolist(), strict=True)}
            scores[start : start + len(part)] = [known.get((hit.index, hit.id), np.nan) for hit in part]
        return scores

    def _words(self, hits: Sequence[Hit]) -> list[sp.csr_matrix]:
        """Return the tf-idf rows that the engine has of some documents; an empty one where it has gone meanwhile."""
        terms = self.fields().terms
        body = {"query": {"ids": {"values": list(dict.fromkeys(hit.id for hit in hits))}}, "_source": [terms]}
        stored = documents_of(self.engine, self.index, body, hits, preference=None, timeout_s=None)
        rows = []
        for hit in hits:
            document = stored.get((hit.index, hit.id))
            ids, weights = unpacked_terms((document.source.get(terms) if document else None) or [])
            rows.append(sp.csr_matrix((weights, ids, [0, len(ids)]), shape=(1, N_TERM_IDS)))
        return rows


def fields_of_index(engine: Engine, index: str, encoder_id: str) -> InsideFields:
    """Return what all indexes behind a name have of an encoder for route *inside*; errors as `Inside.fields`."""
    capabilities = engine.capabilities()
    if not capabilities.vector_product:
        raise Unsupported(
            f"{capabilities.kind} cannot compute scores by itself: use --route fetch or beside",
            engine=capabilities.kind,
        )
    found: set[InsideFields] = set()
    for name in engine.index_names(index):
        fields = inside_fields(engine.index_info(name).properties, encoder_id, capabilities)
        if fields is None:
            raise missing_fields(engine, index, name, encoder_id, "inside")
        found.add(fields)
    if len(found) != 1:
        raise EncoderMismatch(
            f"the indexes behind {index!r} have different fields of encoder {encoder_id[:ID_DIGITS]}: write one of "
            "them again with `ssi index --rebuild --routes inside`"
            if found
            else f"there is no index {index!r} on {engine.spec}: make it with `ssi index`"
        )
    return found.pop()


def missing_fields(engine: Engine, index: str, name: str, encoder_id: str, route: str) -> EncoderMismatch:
    """Return the error for an index without the fields of a route."""
    return EncoderMismatch(
        f"index {name!r} has no fields of encoder {encoder_id[:ID_DIGITS]} for {route}: write them with  "
        f"ssi revectorize --engine {engine.spec} --index {index} --model DIR --routes {route}",
        index=name,
        encoder=encoder_id,
    )


@dataclass(slots=True)
class Rescorer:
    """Asks for a page in final order: one request on an index of one shard, else one more for the window's end.

    What it cannot tell: the first-stage ranks of the hits (0 stands for them).

    Parameters
    ----------
    inside : Inside
    candidates : Candidates
    settings : RerankSettings
    """

    inside: Inside
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
            and not why_not_rescored(request.body, self.inside.fields())
        )

    def order(
        self, request: Request, query: EncodedQuery, alpha: ChosenAlpha, *, with_source: bool
    ) -> tuple[SearchAnswer, Scored] | None:
        """Return the first hits up to the end of the page in final order, and what it was made of.

        None where a document of the window has no vector: it scores highest, to be seen here, and must be encoded
        from its text, which the engine cannot do.
        """
        blending = Blending(alpha.value, (1.0 - alpha.value) / query.scale, self.settings.window)
        answer = self._ask(request, query, blending, with_source=with_source, floor=None)
        if answer is None or any(hit.score is None or hit.score >= LOST / 10 for hit in answer.hits):
            return None
        request.deadline.note_stage("candidates")
        return answer, self._scored(request, query, alpha, blending, answer)

    def _ask(
        self, request: Request, query: EncodedQuery, blending: Blending, *, with_source: bool, floor: float | None
    ) -> SearchAnswer | None:
        if not self._one_shard and floor is None:
            floor = self._floor(request)
        fields, asked = self.inside.fields(), model_query(query.vectors)
        body = rescore_body(request.body, fields, asked, blending, floor)
        last = request.first + request.size
        answer = self.candidates.ask(body, last, request.preference, request.deadline, with_source=with_source)
        shards = answer.raw.get("_shards") or {}
        if self._one_shard and int(shards.get("total", 1)) > 1:
            # Every shard has rescored a window of its own: ask again with the end of the whole window known.
            self._one_shard = False
            return self._ask(request, query, blending, with_source=with_source, floor=None)
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
        timeout_s = request.deadline.timeout_s()
        of_page = self.inside.load(answer.hits[first:], query.vectors, timeout_s)
        vectors = CandidateVectors(n, [(places + first, part) for places, part in of_page.parts])
        model = vectors.score(query.vectors)
        lexical = np.full(n, np.nan)
        if blending.lexical > 0:
            lexical = np.maximum((scores - alpha.value * model) / blending.lexical, 0.0)
        hits = tuple(
            replace(hit, score=None if np.isnan(bm25) else float(bm25))
            for hit, bm25 in zip(answer.hits, lexical.tolist(), strict=True)
        )
        window = Window(hits, lexical, model, vectors, n_found=min(answer.total, blending.window), ranks_known=False)
        order = np.arange(n, dtype=np.int64)
        request.deadline.note_stage("score")
        return Scored(window, query, alpha, scores, np.zeros(n, dtype=bool), order)
