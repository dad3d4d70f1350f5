"""From candidates to an order: scores by the route, the blend, the stable sort; or the engine's own rescoring.

A first stage by vectors beside the engine's own: documents that share no word with the query become candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reranker.engines.base import Engine
from reranker.engines.first_stage import (
    FirstStageFields,
    conditions_of,
    first_stage_fields,
    knn_body,
    lexical_body,
    unread_conditions,
)
from reranker.errors import EncoderMismatch, FallbackError, RerankerError, Unsupported
from reranker.records import Hit, SearchAnswer
from reranker.rerank.blend import Calibration, ChosenAlpha, blend, body_hash
from reranker.rerank.candidates import Beside, Candidates, EncodedQuery, Fetch, Route, Window, check_share, encode_query
from reranker.rerank.fetch_phase import documents_of
from reranker.rerank.inside import Inside, Rescorer, missing_fields
from reranker.rerank.ordering import Ranking, Scored, final_order, kept_in_place, notices_of
from reranker.rerank.request import Request, RerankSettings, RouteName
from reranker.store import VectorStore

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel


@dataclass(frozen=True, slots=True)
class United:
    """Hits of both first stages.

    Parameters
    ----------
    hits : tuple of Hit
        The engine's window in its order, then the documents found by vectors alone, then the engine's other hits.
    width : int
        How many of them are candidates.
    notice : str
        What the reader should know; may be empty.
    """

    hits: tuple[Hit, ...]
    width: int
    notice: str = ""


@dataclass(slots=True)
class NearestDocuments:
    """Finds the documents whose vectors are nearest to the query's, under the conditions of the team's body.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias.
    encoder_id : str
        Names the field.
    k : int
        Documents asked for.
    """

    engine: Engine
    index: str
    encoder_id: str
    k: int
    _fields: FirstStageFields | None = field(init=False, default=None)

    def fields(self) -> FirstStageFields:
        """Return the field to search; asked for once.

        Raises
        ------
        EncoderMismatch
            If the index has none of this encoder; the message names the command that writes it.
        Unsupported
            If the engine cannot search by vectors.
        EngineError
            If it does not answer.
        """
        if self._fields is None:
            self._fields = self._ask_fields()
        return self._fields

    def _ask_fields(self) -> FirstStageFields:
        capabilities = self.engine.capabilities()
        if not capabilities.hnsw:
            raise Unsupported(
                f"{capabilities.kind} cannot search by vectors: use --retrieve bm25", engine=capabilities.kind
            )
        found: set[FirstStageFields] = set()
        for name in self.engine.index_names(self.index):
            fields = first_stage_fields(self.engine.index_info(name).properties, self.encoder_id, capabilities)
            if fields is None:
                raise missing_fields(self.engine, self.index, name, self.encoder_id, "first-stage")
            found.add(fields)
        if len(found) != 1:
            raise EncoderMismatch(f"the indexes behind {self.index!r} have different fields to search, or none")
        return found.pop()

    def nearest(self, request: Request, query: EncodedQuery) -> list[Hit]:
        """Return the documents found, nearest first; none for a query whose words the model has no vectors of."""
        vector = query.vectors.vector
        if not vector.any():
            return []
        body = knn_body(self.fields(), vector, self.k, conditions_of(request.body))
        timeout_s = request.deadline.timeout_s()
        answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        return list(answer.hits[: self.k])

    def unite(
        self,
        request: Request,
        query: EncodedQuery,
        hits: Sequence[Hit],
        window: int,
        source: bool | list[str],
    ) -> United:
        """Return the hits of both stages; the engine's alone, with the reason, where the other one fails.

        Each document found by its vector alone comes with the score that the team's own query gives it, 0 where it
        shares no word: all candidates are blended alike.

        Parameters
        ----------
        request : Request
        query : EncodedQuery
        hits : sequence of Hit
            The engine's own.
        window : int
            How many of them are candidates.
        source : bool or list of str
            ``_source`` of a candidate.
        """
        alone = United(tuple(hits), min(window, len(hits)))
        if unread := unread_conditions(request.body):
            reason = f"the body rules documents out by {', '.join(unread)}, which cannot be taken over"
            return replace(alone, notice=f"documents were searched by words alone: {reason}")
        try:
            there = {(hit.index, hit.id) for hit in hits[:window]}
            new = [hit for hit in self.nearest(request, query) if (hit.index, hit.id) not in there]
            scored = self._scored(request, new, source) if new else []
        except RerankerError as error:
            return replace(alone, notice=f"documents were searched by words alone: {error}")
        finally:
            request.deadline.note_stage("first stage")
        if not scored:
            return alone
        added = {(hit.index, hit.id) for hit in scored}
        rest = [hit for hit in hits[window:] if (hit.index, hit.id) not in added]
        width = min(window, len(hits)) + len(scored)
        notice = f"{len(scored)} of {width} candidates were found by their vectors"
        return United((*hits[:window], *scored, *rest), width, notice)

    def _scored(self, request: Request, hits: Sequence[Hit], source: bool | list[str]) -> list[Hit]:
        """Return hits with the first-stage score of the team's query."""
        body: Mapping[str, Any] = lexical_body(request.body, list({hit.id: None for hit in hits}), len(hits), source)
        timeout_s = request.deadline.timeout_s()
        found = documents_of(
            self.engine, self.index, body, hits, preference=request.preference, timeout_s=timeout_s
        )  # fmt: skip
        return [found[hit.index, hit.id] for hit in hits if (hit.index, hit.id) in found]


_log = logging.getLogger(__name__)


def route_of(
    name: RouteName, model: RankingModel | None, store: VectorStore | None, engine: Engine, index: str
) -> Route | None:
    """Return the way to the vectors, or None where there is no model or no store.

    Raises
    ------
    EncoderMismatch
        If the store holds another encoder's vectors.
    """
    if model is not None and store is not None and store.encoder_id != model.encoder_id:
        raise EncoderMismatch(
            f"the store at {str(store.path)!r} is of encoder {store.encoder_id[:12]}, the model needs "
            f"{model.encoder_id[:12]}: write a store with this model",
            store=store.encoder_id,
            model=model.encoder_id,
        )
    if model is None:
        return None
    if name == "inside":
        return Inside(engine, index, model.encoder_id)
    if name == "fetch":
        return Fetch(model.encoder_id, model.encoder.n_dims)
    return None if store is None else Beside(store)


@dataclass(slots=True)
class Ranker:
    """Orders the candidates of one index by one model and one route.

    Parameters
    ----------
    model : RankingModel or None
    candidates : Candidates
        With the route.
    calibration : Calibration
    settings : RerankSettings
    """

    model: RankingModel | None
    candidates: Candidates
    calibration: Calibration
    settings: RerankSettings
    _nearest: NearestDocuments | None = field(init=False, default=None)
    _rescorer: Rescorer | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        candidates, settings = self.candidates, self.settings
        if self.model is not None and settings.retrieve == "hybrid":
            head = (candidates.engine, candidates.index, self.model.encoder_id)
            self._nearest = NearestDocuments(*head, settings.neighbours)
        if isinstance(candidates.route, Inside):
            self._rescorer = Rescorer(candidates.route, candidates, settings)

    @property
    def widens(self) -> bool:
        """True where candidates are added to the engine's own."""
        return self._nearest is not None

    def check(self) -> None:
        """Raise what would make every search fall back: fields that the route or the first stage needs are missing.

        Raises
        ------
        EncoderMismatch, Unsupported, EngineError
            See `Inside.fields` and `NearestDocuments.fields`.
        """
        if isinstance(self.candidates.route, Inside):
            self.candidates.route.fields()
        if self._nearest is not None:
            self._nearest.fields()

    def order_inside(self, request: Request, *, with_source: bool) -> tuple[SearchAnswer, Ranking] | None:
        """Return the page's hits as the engine itself has ordered them; None where that is done here."""
        if self._rescorer is None:
            return None
        try:
            if not self._rescorer.suits(request):
                return None
            query = self._query(request)
            alpha = self._alpha(request)
            found = self._rescorer.order(request, query, alpha, with_source=with_source)
        except RerankerError as error:
            _log.debug("the engine could not rescore: %s", error)
            return None
        if found is None:
            return None
        answer, scored = found
        return answer, Ranking(scored.window.hits, scored, notices=notices_of(query, alpha, 0, scored.window.n))

    def rank(self, request: Request, hits: Sequence[Hit], source: bool | list[str] = False) -> Ranking:
        """Return the hits, and those that the first stage adds, with the final order of the window.

        Parameters
        ----------
        request : Request
        hits : sequence of Hit
            In first-stage order, with what the route needs.
        source : bool or list of str
            ``_source`` that candidates come with.

        Raises
        ------
        FallbackError
            If the candidates cannot be scored in time, or too few of them can.
        EngineError
            If the engine does not answer.
        """
        query = self._query(request)
        if query.is_empty:
            raise FallbackError("the query has no word that tells documents apart, so only the engine can rank for it")
        request.deadline.note_stage("query")
        hits, window, notice = self.window(request, query, hits, source)
        check_share(window, self.settings.max_unscored)
        alpha = self._alpha(request)
        kept = kept_in_place(window.hits, request.body, self.settings.keep_top)
        scores = blend(window.model, window.lexical, alpha.value, query.scale)
        scored = Scored(window, query, alpha, scores, kept, final_order(scores, kept))
        request.deadline.note_stage("order")
        notices = notices_of(query, alpha, window.n_encoded, window.n)
        return Ranking(hits, scored, notices=[*notices, *([notice] if notice else [])])

    def window(
        self, request: Request, query: EncodedQuery, hits: Sequence[Hit], source: bool | list[str] = False
    ) -> tuple[Sequence[Hit], Window, str]:
        """Return all hits, the scored candidates among them, and what to say of the first stage; errors as `rank`."""
        if self.model is None:
            raise FallbackError("no model is loaded")
        width, notice = self.settings.window, ""
        if self._nearest is not None:
            united = self._nearest.unite(request, query, hits, width, source)
            hits, width, notice = united.hits, united.width, united.notice
        return hits, self.candidates.score(self.model, query, hits[:width], request.deadline), notice

    def _query(self, request: Request) -> EncodedQuery:
        if self.model is None or self.candidates.route is None:
            raise FallbackError("no model is loaded" if self.model is None else "route beside has no vector store")
        return encode_query(self.model, request.query)

    def _alpha(self, request: Request) -> ChosenAlpha:
        fitted = bool(self.calibration.alphas) and self.settings.alpha is None
        template = body_hash(request.template) if fitted else ""
        return self.calibration.choose(template, self.settings.window, self.settings.alpha)
