"""Search with reranking in two requests: the first retrieves candidates, which are ordered here; the second the page.

The first request (the query phase) runs the team's own body and returns ids, scores and the fields that the route
needs. The second (the fetch phase) returns ``_source``, highlights and inner hits for the page only. It is skipped if
the first has returned everything.

If reranking fails, the page is the engine's own answer to the team's body (a fallback). A part of the time limit is
reserved for asking for it, because the answers to the two requests do not contain it: the first one has no content,
the second one no order.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from reranker.arrays import Bool
from reranker.config import ROUTES, ImpactMode, RouteName
from reranker.deadline import Deadline
from reranker.engines.bodies import (
    PLACE,
    SHOWN_OF_HITS,
    fill_template,
    fill_variables,
    not_by_score,
    page_body,
    window_of,
)
from reranker.engines.impacts import raised, with_impacts
from reranker.engines.protocol import Engine
from reranker.engines.query_syntax import UnreadableQueryError, asked_text
from reranker.engines.vectors import (
    FIELD_PREFIX,
    conditions_of,
    lexical_body,
    unread_conditions,
)
from reranker.engines.wire import request_deadline, while_waiting
from reranker.errors import (
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    FallbackError,
    IndexMissing,
    InputError,
    RerankerError,
)
from reranker.models.impacts import query_words
from reranker.models.ranking_model import RankingModel
from reranker.models.repeated import preferences_of
from reranker.records import Hit, RankedHit, Reason, ReasonKind, SearchAnswer
from reranker.releases import default_store, read_control
from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration.kept import Calibration, ChosenAlpha, Probability, window_scale
from reranker.rerank.candidates import (
    Candidates,
    EncodedQuery,
    Window,
    check_unscored,
    documents_of,
    encode_query,
    has_key,
    outdated,
    route_of,
)
from reranker.rerank.explain import RESERVED, Explanation, explain_impacts, explanations_of
from reranker.rerank.impacts import ServedImpacts
from reranker.rerank.known_bodies import BodyFacts, KnownBodies
from reranker.rerank.ranking import (
    Ranking,
    Request,
    Scored,
    blend,
    default_template,
    final_order,
    kept_in_place,
    notices_of,
    preference_of,
    why_not,
)
from reranker.rerank.settings import RerankSettings
from reranker.rerank.signals import Signal, added
from reranker.store import VectorStore
from reranker.tracing import traced

_log = logging.getLogger(__name__)

NO_STORE: Final = "route beside has no vector store"
"""Default reason for pages of route *beside* that are in the engine's order because there is no store."""
MAX_READ = 200
"""Maximum number of documents that the engine may read to show only some of them, in order to save a second request."""
MAX_BODY_BYTES = 1_000_000
_SHOWING = tuple(name for name in SHOWN_OF_HITS if name != "_source")
"""Parts of a body that request more of a hit than its source."""
_OF_THE_QUERY = ("highlight", "explain", "script_fields")
MAX_KINDS = 64
"""Maximum number of different ``_source`` options for which document sizes are stored."""
SIZED_PAGES = 16
"""Number of pages between two measurements of document sizes."""
RESERVED_SHARE: Final = 1 / 3
"""Share of a search's time limit that is reserved for the engine's own answer, in case reranking fails."""
RESERVED_ANSWERS: Final = 2.0
"""The reserved time is at least the mean time of the engine's own answers, multiplied by this."""
NEWEST_ANSWER: Final = 0.3
"""Weight of the newest answer in that mean."""
MAX_RESCORED_PAGES: Final = 2
"""Times that a page is ordered again because it shows a document that was changed since its vector was computed."""
MIN_ANSWER_SECONDS: Final = 0.05
"""Minimum timeout for the engine's own answer, even if it ends after the deadline: without it there is no page."""


N_BY_IMPACTS: Final = 100
"""Number of documents that a first stage by impacts retrieves."""


@dataclass(slots=True)
class ImpactDocuments:
    """A first stage by impacts, which also finds documents that share no word with the query.

    It retrieves the `N_BY_IMPACTS` documents with the largest sums of impacts that satisfy the filters of the team's
    body.
    """

    engine: Engine
    index: str
    model: RankingModel
    _impacts: ServedImpacts | None = field(init=False, default=None)

    def impacts(self) -> ServedImpacts:
        """Return the impacts of the index. They are looked up once; errors as in `ServedImpacts.of_index`."""
        if self._impacts is None:
            self._impacts = ServedImpacts.of_index(self.engine, self.index, self.model)
        return self._impacts

    def check(self) -> None:
        """Raise the error that would affect every search."""
        self.impacts()

    def explained(self, request: Request, page: Sequence[RankedHit], boost: float) -> tuple[Explanation, ...]:
        """Return explanations of hits by the scores that the engine itself gives to the body and to each word.

        One request is sent for each word. Raises `FallbackError` if less than `RESERVED` of the deadline is left before
        the last one, and `EngineError` if the engine does not answer.
        """
        found = [self._scores(request, request.body, page)]
        clauses = self.impacts().clauses_of_words(request.asked)
        for clause in clauses.values():
            if request.deadline.left_s < RESERVED * (request.deadline.limit_s or 0.0):
                message = (
                    f"explanations were omitted: explaining {len(found) - 1} of {len(clauses)} words took too long"
                )
                raise FallbackError(ReasonKind.DEADLINE, message)
            found.append(self._scores(request, {"query": clause}, page))
        own, *of_words = found
        preferences = raised(self.model.preferred(request.asked))
        return explain_impacts(page, own, dict(zip(clauses, of_words, strict=True)), boost, preferences)

    def _scores(self, request: Request, body: Mapping[str, Any], page: Sequence[RankedHit]) -> list[float]:
        scored = scored_hits(self.engine, self.index, replace(request, body=body), page, source=False)
        scores = {place: hit.score or 0.0 for place, hit in scored.items()}
        return [scores.get((hit.index, hit.id), 0.0) for hit in page]

    def found(self, request: Request) -> list[Hit]:
        """Return the retrieved documents, that of the largest sum first."""
        conditions = conditions_of(request.body)
        clause: dict[str, Any] = {"must": [self.impacts().clause(request.asked)]}
        clause |= {"filter": [conditions]} if conditions else {}
        body = {"query": {"bool": clause}, "size": N_BY_IMPACTS, "_source": False, "track_total_hits": False}
        timeout_s = request.deadline.timeout_s()
        answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        return list(answer.hits)


@dataclass(slots=True)
class AddedCandidates:
    """Candidates that another first stage adds to the engine's own hits."""

    engine: Engine
    index: str
    stage: ImpactDocuments

    def unite(
        self, request: Request, hits: Sequence[Hit], window: int, source: bool | list[str]
    ) -> tuple[Sequence[Hit], int, str]:
        """Return (hits of both stages, number of candidates, notice for the user or "").

        The hits are: the engine's window in its order, then the documents that only the other stage found, then the
        engine's other hits. An added document gets the score of the team's own query, 0 if it shares no word, so that
        all candidates are blended alike. If the other stage fails, only the engine's hits are returned, and the notice
        contains the reason.

        ``hits`` are the engine's own, of which the first ``window`` are candidates. ``source`` is the ``_source``
        option of candidates.
        """
        width = min(window, len(hits))
        if unread := unread_conditions(request.body):
            reason = f"the body excludes documents by {', '.join(unread)}, which a search by their impacts cannot apply"
            return hits, width, f"the first stage searched only by words: {reason}"
        try:
            with request.deadline.stage("first stage"):
                known = {(hit.index, hit.id) for hit in hits[:window]}
                new = [hit for hit in self.stage.found(request) if (hit.index, hit.id) not in known]
                found = scored_hits(self.engine, self.index, request, new, source) if new else {}
                scored = [found[hit.index, hit.id] for hit in new if (hit.index, hit.id) in found]
        except RerankerError as error:
            return hits, width, f"the first stage searched only by words: {error}"
        if not scored:
            return hits, width, ""
        added = {(hit.index, hit.id) for hit in scored}
        rest = [hit for hit in hits[window:] if (hit.index, hit.id) not in added]
        width += len(scored)
        notice = f"{len(scored)} of {width} candidates were found only by their impacts"
        return (*hits[:window], *scored, *rest), width, notice


def scored_hits(
    engine: Engine, index: str, request: Request, hits: Sequence[Hit | RankedHit], source: bool | list[str]
) -> dict[tuple[str, str], Hit]:
    """Return (concrete index, id) → hit with the first-stage score of the body's query, 0 if it does not match.

    Hits that no longer exist are left out.
    """
    ids = list({hit.id: None for hit in hits})
    body: Mapping[str, Any] = lexical_body(request.body, ids, len(hits), source, request.doc_values)
    timeout_s = request.deadline.timeout_s()
    return documents_of(engine, index, body, hits, preference=request.preference, timeout_s=timeout_s)


class Reranker:
    """Reranks the hits of one index (or alias) with one model.

    Within the window, hits are sorted by (-score, first-stage rank). After it they keep the engine's order. If
    reranking fails, the page is the engine's own answer to the body, with ``fallback`` and the reason.

    Pages are the engine's own as well if there is no model (one that could not be loaded), and on route *beside* if
    there is no store (`NO_STORE`). Without fitted alphas in ``calibration``, the
    default alpha is used, and the page contains a notice.

    Raises
    ------
    EncoderMismatch
        If the store holds another encoder's vectors.
    ConfigError
        For an unknown route.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        model: RankingModel | None,
        *,
        route: RouteName = "fetch",
        store: VectorStore | None = None,
        calibration: Calibration | None = None,
        settings: RerankSettings | None = None,
    ) -> None:
        if route not in ROUTES:
            raise ConfigError(f"the route is {route!r}: it must be one of {', '.join(ROUTES)}")
        self.engine, self.index, self.model, self.store, self.route = engine, index, model, store, route
        self.settings = settings or RerankSettings()
        self.calibration = calibration or Calibration()
        self._template = None if model is None else default_template(model.encoder.view)
        self._missing_fields: tuple[str, ...] = ()
        self._sizes, self._bodies = SourceSizes(), KnownBodies()
        self._own_answer_s = 0.0  # moving average of the time that the engine takes for its own answer
        self._candidates = Candidates(engine, index, route_of(route, model, store))
        self._added: AddedCandidates | None = None
        if model is not None and self.settings.retrieve == "impacts":
            by_impacts = ImpactDocuments(engine, index, model)
            self._added = AddedCandidates(engine, index, by_impacts)
        self._impacts: ImpactDocuments | None = None
        if model is not None and route == "impacts":
            self._impacts = ImpactDocuments(engine, index, model)

    def check(self, body: Mapping[str, Any] | None = None) -> None:
        """Raise errors that would affect every search with ``body``, so that callers know before the first search.

        Without a body, later pages contain a notice about text fields of the model that no document has.

        Raises
        ------
        EncoderMismatch, Unsupported
            If the index does not have the fields of the first stage. The message names the command that writes them.
        InputError
            If there is no body and no document has one of the model's text fields.
        EngineError
            If the engine does not answer.
        """
        for stage in (self._impacts, self._added.stage if self._added else None):
            if stage is not None:
                stage.check()
        if body is None and self.model is not None:
            count, fields = self.engine.count, self.model.encoder.view.fields
            paths = [spec.path for spec in fields] if count(self.index) else []
            self._missing_fields = tuple(path for path in paths if not count(self.index, {"exists": {"field": path}}))
            if len(self._missing_fields) == len(fields):
                raise InputError(
                    f"no document of index {self.index!r} has one of the model's text fields "
                    f"({', '.join(self._missing_fields)}), so searches in them find nothing: give a search body of "
                    "your own, or use a model trained on this index's fields"
                )

    def search(
        self,
        query: str,
        body: Mapping[str, Any] | None = None,
        *,
        size: int | None = None,
        from_: int | None = None,
        explain: bool = False,
        preference: str | None = None,
        deadline_ms: float | None = None,
        off: Reason | None = None,
    ) -> RerankedPage:
        """Return one page of hits.

        Parameters
        ----------
        query : str
        body : mapping or None
            The team's search body with the placeholder ``{{query}}``; None: search the model's text fields.
        size, from_ : int or None
            The page; None: the values of the body, else 10 and 0.
        explain : bool
            Also return explanations of the scores.
        preference : str or None
            Selects the shard copies that answer; None: a value derived from the query, the same for all its pages.
        deadline_ms : float or None
            Timeout for this search, if it is shorter than ``settings.deadline_ms``.
        off : Reason or None
            Reason for not reranking this page; None: rerank it.

        Raises
        ------
        EngineError
            If the engine does not answer, or refuses the body.
        ConfigError, InputError
            If the body or the page is invalid.
        """
        request = self._request(query, body, size, from_, preference, deadline_ms)
        by_score = not_by_score if self._impacts else why_not
        reason = off or by_score({**request.body, "size": request.size}) or request.unread
        # Where candidates are added, the engine's order continues after them, not after the engine's own window.
        past = request.first >= self.settings.window and self._added is None and self._impacts is None
        if past and not reason:
            text = f"the page begins after the window of {self.settings.window}, where hits keep the engine's order"
            reason = Reason(ReasonKind.PAST_WINDOW, text)
        attributes: dict[str, str | bool | int | float] = {"ssi.index": self.index, "ssi.route": self.route}
        with traced("search", attributes) as span, _bounding(request.deadline):
            span.note_query(query)
            if reason:
                page = self._engine_page(request, reason)
            elif self._impacts is not None:
                page = self._page_by_impacts(request, self._impacts, explain)
            else:
                page = self._reranked_page(request, explain)
            span.note(_attributes_of(page))
        return page

    def score_window(
        self, query: str, body: Mapping[str, Any] | None = None, signals: tuple[Signal, ...] = ()
    ) -> tuple[Window, EncodedQuery, Bool]:
        """Return the candidates of a query with both scores, the encoded query, and which candidates must not move.

        The hits contain the numbers of ``signals``. Raises `FallbackError` if a search would have fallen back,
        `EngineError` if the engine does not answer.
        """
        if self.model is None:
            raise _no_model()
        request = self._request(query, body)
        request = replace(request, alpha=request.alpha._replace(signals=signals))
        encoded = self._query(request)
        answer = self._candidates.search(
            request.body,
            self.settings.window,
            request.preference,
            request.deadline,
            answers=False,
            doc_values=request.doc_values,
        )
        source = self._candidates.source_of(request.body, with_source=False)
        _, scored, _ = self._window(request, encoded, answer.hits, source)
        return scored, encoded, kept_in_place(scored.hits, request.body)

    def probability(self, body: Mapping[str, Any] | None = None) -> Probability | None:
        """Return the probability of relevance by f, fitted to candidates of ``body``; None if not fitted."""
        template = self._template if body is None else body
        if not self.calibration.probabilities or template is None:
            return None
        key = Calibration.key(self._bodies.facts(template).scoring.hash, self.settings.window)
        return self.calibration.probabilities.get(key)

    def _request(
        self,
        query: str,
        body: Mapping[str, Any] | None,
        size: int | None = None,
        first: int | None = None,
        preference: str | None = None,
        deadline_ms: float | None = None,
    ) -> Request:
        limits = [limit for limit in (self.settings.deadline_ms, deadline_ms) if limit is not None]
        deadline = Deadline(max(min(limits), 0.0) / 1000.0 if limits else None)
        if body is None:
            if self._template is None:
                raise InputError("no model is loaded, so its text fields are unknown: give a search body")
            body = self._template
        of_body = window_of(body)
        first, size = of_body[0] if first is None else first, of_body[1] if size is None else size
        if first < 0 or size < 0:
            raise InputError(f"the page begins at {first} and has size {size}: neither may be negative")
        facts = self._bodies.facts(body)
        filled = fill_template(body, query, facts.places)
        if preference is None:
            preference = preference_of(query)
        alpha, (asked, unread) = self._alpha(facts), _asked(body, query, facts)
        clauses = facts.scoring.clauses
        return Request(query, filled, body, first, size, preference, deadline, alpha, asked, unread, clauses)

    def _engine_page(self, request: Request, reason: Reason, *, fallback: bool = False) -> RerankedPage:
        """Return the engine's own answer to the request's body. Raises `EngineError` if the engine does not answer."""
        body = {**request.body, "from": request.first, "size": request.size}
        timeout_s = request.deadline.timeout_s(at_least=MIN_ANSWER_SECONDS)
        started = time.perf_counter()
        try:
            with request.deadline.stage("engine"):
                answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        finally:
            taken_s = time.perf_counter() - started
            self._own_answer_s += NEWEST_ANSWER * (taken_s - self._own_answer_s)
        ranking = Ranking(answer.hits, offset=request.first)
        hits = tuple(without_own_fields(hit) for hit in ranking.page(0, len(answer.hits)))
        return self._page(request, answer, ranking, hits, reason=reason, fallback=fallback)

    def _reserving(self, request: Request) -> Deadline:
        """Return the request's deadline, less the time that is reserved for the engine's own answer."""
        reserved_s = max(RESERVED_SHARE * (request.deadline.limit_s or 0.0), RESERVED_ANSWERS * self._own_answer_s)
        return request.deadline.reserving(reserved_s)

    def _page_by_impacts(self, request: Request, stage: ImpactDocuments, explain: bool) -> RerankedPage:
        """Return the engine's answer to the body with impacts, or to the body itself with the reason for this fallback.

        The engine is asked once, for the page only: it adds up the impacts itself.
        """
        deadline = self._reserving(request)
        try:
            if not query_words(stage.model, request.asked):
                raise FallbackError(ReasonKind.EMPTY_QUERY, "the query has no word that the model counts")
            mode = self.settings.mode
            boost = self.calibration.boost(request.template, mode, self.settings.boost)
            clause = stage.impacts().clause(request.asked, boost)
            body = _with_impacts(request.body, clause, mode)
            body |= {"from": request.first, "size": request.size}
            with deadline.stage("engine"):
                timeout_s = deadline.timeout_s()
                answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        except EngineError as error:
            if not _may_answer_itself(error):
                raise
            return self._engine_page(request, _reason_of(error), fallback=True)
        except Exception as error:
            # As in `_reranked_page`: a failure must never make the search worse than without impacts.
            return self._engine_page(request, _reason_of(error), fallback=True)
        ranking = Ranking(answer.hits, offset=request.first)
        hits = tuple(without_own_fields(hit) for hit in ranking.page(0, len(answer.hits)))
        explanations: tuple[Explanation, ...] = ()
        if explain and hits:
            explanations = _explained(request, ranking, lambda: stage.explained(request, hits, boost))
        page = self._page(request, answer, ranking, hits, reason=None, explanations=explanations)
        return replace(page, engine_answer=answer.raw)

    def _reranked_page(self, request: Request, explain: bool) -> RerankedPage:
        """Return the page in the model's order, or the engine's own answer with the reason for this fallback."""
        reranked = replace(request, deadline=self._reserving(request))
        try:
            self._check_can_score()
            reranked.deadline.check("the search started")
            answer, ranking, page = self._ordered_page(reranked)
        except _NoCandidates as failed:
            raise failed.error from None
        except Exception as error:
            # A failure of reranking must never make the search worse than without it, so every error is caught.
            return self._engine_page(request, _reason_of(error), fallback=True)
        page = tuple(without_own_fields(hit) for hit in page)
        self._sizes.note(request.body, page)
        explanations: tuple[Explanation, ...] = ()
        if explain and (model := self.model) is not None:
            head = (request.asked, ranking, page, request.deadline)
            explanations = _explained(request, ranking, lambda: explanations_of(model, *head))
        return self._page(request, answer, ranking, page, reason=None, explanations=explanations)

    def _ordered_page(self, request: Request) -> tuple[SearchAnswer, Ranking, tuple[RankedHit, ...]]:
        """Return the engine's response, its ranked hits, and the hits of the page with all that the body shows.

        Raises `EngineError` if the engine does not answer, and `FallbackError` if the hits cannot be scored or a
        document of the page is no longer there.
        """
        answer, ranking, at_once = self._ranked(request)
        if at_once or shows_nothing(request.body):
            return answer, ranking, ranking.page(request.first, request.first + request.size)
        for n_left in range(MAX_RESCORED_PAGES, -1, -1):
            page = ranking.page(request.first, request.first + request.size)
            with request.deadline.stage("page"):
                request.deadline.check("the candidates were ranked")
                full = fetch_page(self.engine, self.index, request, page, confirm=answer.ids_are_values)
            if full is None:
                break
            rescored = self._rescored(request, ranking, full) if n_left else None
            if rescored is None:
                return answer, ranking, full
            ranking = rescored
        if answer.ids_are_values:
            self._candidates.forget_doc_values()
            return self._ordered_page(request)
        raise FallbackError(ReasonKind.DOCUMENTS, "a document of the page was deleted while the search ran")

    def _rescored(self, request: Request, ranking: Ranking, page: Sequence[RankedHit]) -> Ranking | None:
        """Return the ranking with the scores of the page's documents by their text, where a vector is outdated.

        None if no vector is, as far as the page shows whole documents. Only then is their text known.
        """
        scored, model = ranking.scored, self.model
        if scored is None or model is None or request.body.get("_source", True) is not True:
            return None
        window = scored.window
        hits = {int(scored.order[hit.rank - 1]): hit for hit in page if hit.rank <= window.n}
        places = list(hits)
        stale = [places[number] for number in outdated(model.encoder, [hit.source for hit in hits.values()])]
        changed = {place: hits[place] for place in stale if place not in window.encoded}
        if not changed:
            return None
        with request.deadline.stage("encode"):
            sources, ids = [hit.source for hit in changed.values()], [hit.id for hit in changed.values()]
            n_encoded = window.n_encoded + window.vectors.add_texts(model, list(changed), sources, ids)
            scores = window.vectors.score(scored.query.vectors)
            if scored.query.preferred:
                scores += preferences_of(scored.query.preferred, [hit.id for hit in window.hits])
        with request.deadline.stage("order"):
            window = replace(window, model=scores, encoded=window.encoded | changed.keys(), n_encoded=n_encoded)
            ordered = self._ordered(request, scored.query, window)
        before = notices_of(scored.query, request.alpha, scored.window.n_encoded, window.n)
        others = [notice for notice in ranking.notices if notice not in before]
        notices = [*notices_of(scored.query, request.alpha, window.n_encoded, window.n), *others]
        return replace(ranking, scored=ordered, notices=notices)

    def _ranked(self, request: Request) -> tuple[SearchAnswer, Ranking, bool]:
        """Return the engine's response, its ranked hits, and True if these have all that the body shows.

        Raises `FallbackError` and `EngineError` as `_rank`.
        """
        depth = max(self.settings.window, request.first + request.size)
        at_once = self._comes_at_once(request, depth)
        head = (request.body, depth, request.preference, request.deadline)
        encoding = _Encoding(lambda: self._query(request))
        if self.model is not None and self.model.encoder.analyzer.config.kind == "engine":
            with request.deadline.stage("query"):  # not while waiting: encoding sends requests to the engine itself
                encoding.query()
        try:
            with request.deadline.stage("candidates"), encoding.while_waiting():
                answer = self._candidates.search(*head, with_source=at_once, doc_values=request.doc_values)
        except EngineError as error:
            if not _may_answer_itself(error):
                raise _NoCandidates(error) from error
            if isinstance(error, EngineRejected) and request.alpha.signals:
                # The mapping has changed since calibration. The search itself must not fail because of that.
                text = f"the signals could not be read; run `ssi calibrate --signals` again: {error}"
                raise FallbackError(ReasonKind.NOT_RERANKABLE, text) from error
            raise
        source = self._candidates.source_of(request.body, with_source=at_once)
        return answer, self._rank(request, encoding, answer.hits, source), at_once

    def _rank(self, request: Request, encoding: _Encoding, hits: Sequence[Hit], source: bool | list[str]) -> Ranking:
        """Return the hits, including those that the first stage adds, with the final order of the window.

        ``hits`` are in first-stage order with the fields that the route needs. ``source`` is the ``_source`` option
        with which they were requested. Raises `FallbackError` if the candidates cannot be scored in time, or too few of
        them can; `EngineError` if the engine does not answer.
        """
        with request.deadline.stage("query"):
            query = encoding.query()
        if query.is_empty:
            message = "the query has no word that distinguishes documents, so only the engine can rank its hits"
            raise FallbackError(ReasonKind.EMPTY_QUERY, message)
        hits, window, notice = self._window(request, query, hits, source)
        check_unscored(window.n_unscored, len(window.hits), self.settings.max_unscored, "run `ssi sync`")
        alpha = request.alpha
        with request.deadline.stage("order"):
            if alpha.by_window:
                query = query._replace(scale=window_scale(window.lexical, query.scale))
            scored = self._ordered(request, query, window)
        notices = notices_of(query, alpha, window.n_encoded, window.n)
        return Ranking(hits, scored, notices=[*notices, *([notice] if notice else [])])

    def _ordered(self, request: Request, query: EncodedQuery, window: Window) -> Scored:
        """Return the window in final order."""
        kept = kept_in_place(window.hits, request.body)
        signals = added(request.alpha.signals, window.hits)
        scores = blend(window.model, window.lexical, request.alpha.value, query.scale, signals)
        return Scored(window, query, request.alpha, scores, kept, final_order(scores, kept))

    def _window(
        self, request: Request, query: EncodedQuery, hits: Sequence[Hit], source: bool | list[str]
    ) -> tuple[Sequence[Hit], Window, str]:
        """Return all hits, the scored candidates among them, and a notice of the first stage; errors as `_rank`."""
        if self.model is None:
            raise _no_model()
        width, notice = self.settings.window, ""
        if self._added is not None:
            hits, width, notice = self._added.unite(request, hits, width, source)
        head = (self.model, query, hits[:width], request.deadline)
        return hits, self._candidates.score(*head, are_whole=source is True), notice

    def _query(self, request: Request) -> EncodedQuery:
        model = self._check_can_score()
        if request.unread is not None:
            raise FallbackError(request.unread.kind, request.unread.text)
        return encode_query(model, request.asked)

    def _check_can_score(self) -> RankingModel:
        """Return the model; `FallbackError` if there is none, or no route to its vectors."""
        if self.model is None:
            raise _no_model()
        if self._candidates.route is None:
            raise FallbackError(ReasonKind.NO_STORE, NO_STORE)
        return self.model

    def _alpha(self, facts: BodyFacts) -> ChosenAlpha:
        return self.calibration.choose_for(facts.scoring, self.settings.window, self.settings.alpha)

    def _comes_at_once(self, request: Request, depth: int) -> bool:
        """Return True if it costs less to get the shown documents with the candidates than by a second request."""
        by_doc_values = self._candidates.doc_values
        # Reading the stored fields of the window takes longer than a second request for the page.
        if by_doc_values is not None and by_doc_values.is_promising:
            return False
        wants_fields = self._candidates.route is not None and bool(self._candidates.route.source_fields)
        # For an embedded engine, a second request costs less than one additional document.
        if not wants_fields and self.engine.in_process:
            return False
        if not wants_fields and depth > MAX_READ:
            return False
        small = self._sizes.fit(request.body, depth, self.settings.one_request_bytes)
        return small and shows_source_alone(request.body)

    def _page(
        self,
        request: Request,
        answer: SearchAnswer,
        ranking: Ranking,
        page: tuple[RankedHit, ...],
        *,
        reason: Reason | None,
        fallback: bool = False,
        explanations: tuple[Explanation, ...] = (),
    ) -> RerankedPage:
        scored, notices = ranking.scored, list(ranking.notices)
        if answer.timed_out:
            notices.append("the engine ran out of time and returned partial results")
        if self._missing_fields and request.template is self._template:
            names = ", ".join(self._missing_fields)
            notices.append(f"no document has the model's text fields {names}: searches in them find nothing")
        return RerankedPage(
            query=request.query,
            hits=page,
            total=answer.total,
            total_is_exact=answer.total_is_exact,
            reranked=reason is None,
            fallback=fallback,
            reason=reason,
            notices=tuple(notices),
            alpha=scored.alpha.value if scored else None,
            alpha_origin=scored.alpha.origin if scored else "",
            clauses=request.clauses if scored else frozenset(),
            model_id=self.model.model_id if self.model else "",
            n_candidates=scored.window.n if scored else 0,
            n_encoded=scored.window.n_encoded if scored else 0,
            n_unscored=scored.window.n_unscored if scored else 0,
            timings_ms=request.deadline.stages_ms,
            explanations=explanations,
            asked="" if request.asked == request.query else request.asked,
            max_score=scored.max_score if scored else None,
            raw={name: value for name, value in answer.raw.items() if name != "hits"},
            engine_answer=answer.raw if reason else None,
        )


def _with_impacts(body: Mapping[str, Any], clause: Mapping[str, Any], mode: ImpactMode) -> dict[str, Any]:
    """Return `with_impacts`; `FallbackError` for a body that impacts cannot be added to."""
    try:
        return with_impacts(body, clause, mode)
    except ConfigError as error:
        raise FallbackError(ReasonKind.NOT_RERANKABLE, error.message) from error


def _explained(
    request: Request, ranking: Ranking, explain: Callable[[], tuple[Explanation, ...]]
) -> tuple[Explanation, ...]:
    """Return the explanations; none, with a notice in the ranking, if they take too long or the engine fails."""
    try:
        with request.deadline.stage("explain"):
            return explain()
    except FallbackError as late:
        ranking.notices.append(late.message)
    except EngineError:
        ranking.notices.append("explanations were omitted: the engine did not answer a request for them")
    return ()


class _Encoding:
    """The encoding of a query, which needs no answer of the engine and can be done while the engine searches."""

    def __init__(self, encode: Callable[[], EncodedQuery]) -> None:
        self._encode = encode
        self._query: EncodedQuery | None = None

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Encode while the first request of the block waits for its answer, if its connection allows that."""
        token = while_waiting.set(self._try)
        try:
            yield
        finally:
            while_waiting.reset(token)

    def query(self) -> EncodedQuery:
        """Return the encoded query; raises the errors of ``encode``."""
        if self._query is None:
            self._query = self._encode()
        return self._query

    def _try(self) -> None:
        with suppress(Exception):  # the candidates are needed all the same, and `query` raises the error again
            self.query()


def _attributes_of(page: RerankedPage) -> dict[str, str | bool | int | float]:
    """Return the attributes of a search's span. The cause is one of `ReasonKind`: its text could quote the query."""
    noted: dict[str, str | bool | int | float] = {
        "ssi.model": page.model_id[:12],
        "ssi.reranked": page.reranked,
        "ssi.fallback": page.fallback,
        "ssi.candidates": page.n_candidates,
        "ssi.encoded": page.n_encoded,
        "ssi.hits": len(page.hits),
    }
    if page.cause:
        noted["ssi.cause"] = page.cause
    if page.alpha is not None:
        noted |= {"ssi.alpha": page.alpha, "ssi.alpha_origin": page.alpha_origin}
    return noted


def _may_answer_itself(error: EngineError) -> bool:
    """Return whether the engine may answer the body itself though it did not answer the request for the candidates.

    It may if the request took too long, since the body requests fewer hits, was refused, or its answer was cut off. It
    may not if the engine cannot be reached, fails, is overloaded or refuses the caller.
    """
    if isinstance(error, EngineUnavailable):
        return error.timed_out or error.status == 200
    return not isinstance(error, EngineOverloaded | EngineAuthError | IndexMissing)


class _NoCandidates(Exception):
    """The engine did not answer the request for the candidates, and would not answer the body itself either."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _bounding(deadline: Deadline) -> Iterator[None]:
    """Bound all requests of the block that have no timeout of their own, such as the analysis of the query."""
    token = request_deadline.set(None if deadline.limit_s is None else deadline)
    try:
        yield
    finally:
        request_deadline.reset(token)


def _asked(template: Mapping[str, Any], query: str, facts: BodyFacts) -> tuple[str, Reason | None]:
    """Return the words that a query asks for, and None; or "" and why the page must keep the engine's order."""
    try:
        asked = asked_text(template, query, PLACE) if facts.may_have_syntax else query
    except UnreadableQueryError as error:
        text = "the syntax of the query cannot be read with certainty, so the words that it asks for are unknown"
        return "", Reason(ReasonKind.NOT_RERANKABLE, text, str(error))
    if query.strip() and not asked:
        text = "the query asks for no whole word: all of its words are negated, or parts or patterns of words"
        return "", Reason(ReasonKind.NOT_RERANKABLE, text)
    return asked, None


def _no_model() -> FallbackError:
    return FallbackError(ReasonKind.NO_MODEL, "no model is loaded")


def _reason_of(error: Exception) -> Reason:
    """Return the reason to report for an error; an unexpected error is logged."""
    if isinstance(error, FallbackError):
        return error.reason
    if isinstance(error, EngineError):
        if isinstance(error, EngineUnavailable) and error.timed_out:
            return Reason(
                ReasonKind.DEADLINE, "the engine did not answer all requests of reranking in time", str(error)
            )
        return Reason(ReasonKind.DOCUMENTS, "a request to the engine for reranking failed", str(error))
    _log.exception("reranking failed; the engine's order was returned")
    return Reason(ReasonKind.ERROR, f"reranking failed: {type(error).__name__}", detail=str(error))


def shows_nothing(body: Mapping[str, Any]) -> bool:
    """Return True if the body requests only ids and scores, so that the second request can be skipped."""
    return body.get("_source") is False and not any(name in body for name in _SHOWING)


def shows_source_alone(body: Mapping[str, Any]) -> bool:
    """Return True if the body requests only ``_source``, as a whole or by a list of fields."""
    source = body.get("_source", True)
    # An empty list shows all fields, but a list to which the route's fields were added would not.
    listed = isinstance(source, list) and bool(source) and all(isinstance(name, str) for name in source)
    return (source is True or listed) and not any(name in body for name in _SHOWING)


def needs_the_query(body: Mapping[str, Any]) -> bool:
    """Return True if the displayed parts depend on the query: highlights, explanations, inner hits, named clauses."""
    return any(name in body for name in _OF_THE_QUERY) or has_key(body.get("query"), {"inner_hits", "_name"})


class SourceSizes:
    """Mean size of an index's documents as JSON, for each ``_source`` option, measured on every 16th page or so.

    Nothing is known before the first page, which therefore needs two requests.
    """

    def __init__(self) -> None:
        self._mean_bytes: dict[str, float] = {}
        self._pages = 0

    def note(self, body: Mapping[str, Any], hits: Sequence[RankedHit]) -> None:
        """Update the running mean document size, unless the estimate is recent enough."""
        key, self._pages = str(body.get("_source", True)), self._pages + 1
        known = key in self._mean_bytes
        if hits and (self._pages % SIZED_PAGES == 0 if known else len(self._mean_bytes) < MAX_KINDS):
            size = sum(len(json.dumps(hit.source, default=str)) for hit in hits) / len(hits)
            self._mean_bytes[key] = 0.8 * self._mean_bytes.get(key, size) + 0.2 * size

    def fit(self, body: Mapping[str, Any], n_hits: int, limit_bytes: int) -> bool:
        """Return True if ``n_hits`` documents are expected to fit into ``limit_bytes``."""
        mean_bytes = self._mean_bytes.get(str(body.get("_source", True)))
        return mean_bytes is not None and n_hits * mean_bytes <= limit_bytes


def without_own_fields(hit: RankedHit) -> RankedHit:
    """Return the hit without the fields that this project has added to the document."""
    if not any(name.startswith(FIELD_PREFIX) for name in hit.source):
        return hit
    source = {name: value for name, value in hit.source.items() if not name.startswith(FIELD_PREFIX)}
    return structs.replace(hit, source=source)


def fetch_page(
    engine: Engine, index: str, request: Request, page: Sequence[RankedHit], *, confirm: bool = False
) -> tuple[RankedHit, ...] | None:
    """Return the page's hits with the ``_source``, highlights and inner hits that the team's body requests.

    The result is None if a document is missing. With ``confirm``, the ids are only claimed by the hits: the result is
    then also None if a document of these ids does not satisfy the body's query and ``post_filter``. Raises
    `EngineError` if the engine does not answer.
    """
    if not page:
        return ()
    shown = request.body
    conditions = [shown[name] for name in ("query", "post_filter") if confirm and shown.get(name)]
    if not needs_the_query(shown):
        shown = {name: value for name, value in shown.items() if name != "query"}
    # Our own fields are removed here. An exclusion in the request would make the engine parse each document.
    body = page_body(shown, [hit.id for hit in page], conditions)
    timeout_s = request.deadline.timeout_s()
    documents = documents_of(engine, index, body, page, preference=request.preference, timeout_s=timeout_s)
    full = []
    for hit in page:
        document = documents.get((hit.index, hit.id))
        if document is None:
            return None
        full.append(structs.replace(hit, source=document.source, raw=document.raw))
    return tuple(full)


def calibration_of(engine: Engine, index: str, model_id: str) -> Calibration:
    """Return `ControlRecord.calibration` of an index. Raises `EngineError` if the engine does not answer."""
    return Calibration.from_release(read_control(engine, index).calibration(model_id))


def readable_calibration(engine: Engine, index: str, model_id: str) -> Calibration:
    """Return `calibration_of`; empty if the engine does not let this role read it."""
    try:
        return calibration_of(engine, index, model_id)
    except EngineError:
        return Calibration()


def open_reranker(
    engine: Engine,
    index: str,
    model: RankingModel,
    model_path: Path,
    *,
    route: RouteName = "fetch",
    store_path: Path | None = None,
    settings: RerankSettings | None = None,
    body: Mapping[str, Any] | None = None,
) -> Reranker:
    """Return a reranker with the release's calibration and, for route *beside*, the store.

    A role that may not read the control index can still search, with the default alpha and a notice.

    The store is at ``store_path``; None: next to the model, where the indexer writes it. ``body`` is the search body
    that searches will use; None: the default body for the model's text fields.

    Raises
    ------
    ArtifactError
        If route is *beside* and there is no store.
    EncoderMismatch
        If the store belongs to another encoder, or the index does not have the fields of the route or first stage.
    Unsupported
        If the engine does not support these fields.
    InputError
        If there is no body, and no document has one of the model's text fields.
    """
    store = None
    if route == "beside":
        store = VectorStore.open(store_path or default_store(model_path, engine.spec, index), model.encoder_id)
    calibration = readable_calibration(engine, index, model.model_id)
    reranker = Reranker(engine, index, model, route=route, store=store, calibration=calibration, settings=settings)
    reranker.check(body)
    return reranker


def read_body(path: Path, *, as_template: bool = False) -> Mapping[str, Any]:
    """Return the search body of a JSON file, with its variables replaced by their defaults unless ``as_template``.

    Raises `InputError` if the file cannot be read, is too large, or contains no JSON object, and `ConfigError` for a
    variable that is not optional and has no default.
    """
    try:
        content = path.read_bytes()
        if len(content) > MAX_BODY_BYTES:
            raise InputError(f"{str(path)!r} has {len(content)} bytes: a search body may have at most {MAX_BODY_BYTES}")
        body = json.loads(content)
    except OSError as error:
        raise InputError(f"the search body {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"the search body {str(path)!r} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InputError(f"the search body {str(path)!r} is a {type(body).__name__}: it must be a JSON object")
    return body if as_template else fill_variables(body, {})
