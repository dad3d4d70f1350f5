"""From candidates to an order: scores by the route, the blend, the stable sort; or the engine's own rescoring."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reranker.engines.base import Engine
from reranker.errors import EncoderMismatch, RerankerError
from reranker.records import Hit, SearchAnswer
from reranker.rerank.blend import blend
from reranker.rerank.calibration import Calibration, ChosenAlpha, body_hash
from reranker.rerank.first_stage import NearestDocuments
from reranker.rerank.inside import Inside
from reranker.rerank.ordering import final_order, kept_in_place
from reranker.rerank.page import FallbackError, Request, RerankSettings, RouteName
from reranker.rerank.rescoring import Rescorer
from reranker.rerank.results import Ranking, Scored, notices_of
from reranker.rerank.vectors import Beside, Fetch, Route
from reranker.rerank.window import Candidates, EncodedQuery, Window, check_share, encode_query
from reranker.store import VectorStore

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

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
        request.clock.lap("query")
        hits, window, notice = self.window(request, query, hits, source)
        check_share(window, self.settings.max_unscored)
        alpha = self._alpha(request)
        kept = kept_in_place(window.hits, request.body, self.settings.keep_top)
        scores = blend(window.model, window.lexical, alpha.value, query.scale)
        scored = Scored(window, query, alpha, scores, kept, final_order(scores, kept))
        request.clock.lap("order")
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
        return hits, self.candidates.score(self.model, query, hits[:width], request.clock), notice

    def _query(self, request: Request) -> EncodedQuery:
        if self.model is None or self.candidates.route is None:
            raise FallbackError("no model is loaded" if self.model is None else "route beside has no vector store")
        return encode_query(self.model, request.query)

    def _alpha(self, request: Request) -> ChosenAlpha:
        fitted = bool(self.calibration.alphas) and self.settings.alpha is None
        template = body_hash(request.template) if fitted else ""
        return self.calibration.choose(template, self.settings.window, self.settings.alpha)
