"""Routes ``POST /search``, a search whose hits the served version reranks, and ``POST /events``, clicks on the hits."""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta
from pydantic import BaseModel, ConfigDict

from reranker.engines.bodies import fill_variables
from reranker.errors import InputError
from reranker.rerank.answer import RerankedPage
from reranker.service.http import (
    COMMON_RESPONSES,
    Context,
    JsonRoute,
    RequestBody,
    RequestContext,
    ServiceError,
    body_of,
)
from reranker.service.modes import SearchCall, SearchOutcome, mode_of
from reranker.service.sink import query_row, stamp
from reranker.service.state import ServiceState, State

_log = logging.getLogger(__name__)
MAX_QUERY_CHARS = 10_000
MAX_FROM = 10_000
MAX_SIZE = 1_000
Id = Annotated[str, Meta(max_length=100)]
# Decoded as floats, because 3.0 is an integer in JSON as well.
PageSize = Annotated[float, Meta(ge=0, le=MAX_SIZE, multiple_of=1, description="Hits on the page.")]
PageStart = Annotated[float, Meta(ge=0, le=MAX_FROM, multiple_of=1, description="Hits to skip before the page.")]
Ordinal = Annotated[float, Meta(ge=1, le=1_000_000, multiple_of=1)]


class SearchRequest(RequestBody):
    """One search request. Unknown fields are ignored."""

    query: Annotated[str, Meta(max_length=MAX_QUERY_CHARS, description="The query text that the user entered.")]
    body: Annotated[str | None, Meta(description="Name of one of the service's bodies; absent: its default body.")] = (
        None
    )
    variables: (
        Annotated[dict[str, Any], Meta(description="Values for the variables of the service's body, by name.")] | None
    ) = None
    size: PageSize | None = None
    first: PageStart | None = msgspec.field(name="from", default=None)
    session: Annotated[str, Meta(max_length=100, description="Session id: decides the group; logged.")] | None = None
    client_id: Annotated[str, Meta(max_length=100, description="Client id, logged with the impression.")] | None = None
    explain: Annotated[bool, Meta(description="Also return the pairs of words that contribute to each score.")] = False
    rerank: Annotated[
        bool | Annotated[str, Meta(pattern="^(on|off)$")], Meta(description="false or off: the engine's order.")
    ] = True
    version: (
        Annotated[
            str, Meta(pattern="^[0-9a-f]{6,64}$", description="Id of the version to use instead of the live one.")
        ]
        | None
    ) = None

    @property
    def page(self) -> tuple[int | None, int | None]:
        """(hits on the page, hits to skip); None uses the body's value."""
        size, first = (None if value is None else int(value) for value in (self.size, self.first))
        return size, first


class SearchHit(BaseModel):
    """One hit of the page. It also has what the engine returned for it (``highlight``, ``inner_hits``, ``fields``)."""

    model_config = ConfigDict(extra="allow")

    id: str
    index: str
    rank: int
    score: float
    first_stage_rank: int
    first_stage_score: float | None = None
    model_score: float | None = None
    unscored: bool = False
    kept: bool = False
    source: dict[str, Any] = {}


class SearchResponse(BaseModel):
    """A page of hits. ``aggregations`` and ``suggest`` are passed through from the engine."""

    model_config = ConfigDict(extra="allow")

    query_id: str
    hits: list[SearchHit]
    total: int
    total_is_exact: bool
    reranked: bool
    fallback: bool
    reason: str
    mode: str
    route: str
    model_id: str
    encoder_id: str
    notices: list[str]
    timings_ms: dict[str, float]


router = APIRouter(route_class=JsonRoute, tags=["search"])


@router.post("/search", response_model=SearchResponse, responses=COMMON_RESPONSES, operation_id="search")
async def search_index(
    wanted: Annotated[SearchRequest, body_of(SearchRequest)], context: Context, state: State
) -> Response:
    """Search the index; hits are returned in the order of the served version.

    If anything fails after the first stage has answered, its hits are returned in the engine's order with ``fallback``
    and the reason. 503 with ``Retry-After`` if the engine does not answer in time.
    """
    query_id = str(uuid.uuid4())
    call = call_of(state, wanted, context)

    def work() -> tuple[bytes, Searched]:
        searched = carry_out_search(state, context, call, query_id)
        return encode(answer_of(state, searched.outcome, searched.mode, query_id)), searched

    answer, searched = await state.run(context.deadline, work, state.depth(*call.page))
    keep(state, context, searched)
    return Response(answer, media_type="application/json")


class Searched(NamedTuple):
    """A completed search, before `keep` counts and logs it."""

    call: SearchCall
    outcome: SearchOutcome
    mode: str
    waited_s: float
    """Seconds that the request waited for others."""
    row: Mapping[str, Any] | None
    """The impression as a row of ``ubi_queries``; None if impressions are not logged."""


def carry_out_search(state: ServiceState, context: RequestContext, call: SearchCall, query_id: str) -> Searched:
    """Run a search in the mode that applies to it; ``query_id`` identifies the impression."""
    name = mode_of(state.settings, state.modes, call)
    waited_s = context.deadline.spent_s
    outcome = state.ask_engine(lambda: state.modes[name](state.versions, call))
    row = None
    if state.sink is not None or name == "shadow":
        row = query_row(call, outcome, name, query_id, state.settings, context.deadline.spent_s * 1000.0)
    return Searched(call, outcome, name, waited_s, row)


def keep(state: ServiceState, context: RequestContext, searched: Searched) -> None:
    """Count an answered search and log its impression. Not called if the answer came too late to be sent."""
    state.answered += 1
    state.metrics.day.note_search(context.deadline.spent_s, fallback=searched.outcome.page.fallback)
    note(state, context, searched.outcome, searched.mode, searched.waited_s)
    if searched.row is not None and searched.mode == "shadow":
        state.shadow.submit(searched.call, searched.row)
    elif searched.row is not None:
        state.record(searched.row)


def call_of(state: ServiceState, wanted: SearchRequest, context: RequestContext) -> SearchCall:
    """Return the search described by a request.

    Raises `ServiceError` 422 for an unknown body or invalid variables.
    """
    settings, name = state.settings, wanted.body
    if name is not None and name not in settings.bodies:
        raise ServiceError(
            422, f"body: unknown name; the service has {', '.join(settings.bodies) or 'none'}", kind="invalid"
        )
    template = settings.body if name is None else settings.bodies[name]
    try:
        filled = fill_variables(template or {}, wanted.variables or {})
    except InputError as error:
        raise ServiceError(422, f"variables: {error}", kind="invalid") from error
    size, first = wanted.page
    return SearchCall(
        wanted.query,
        filled or None,
        size,
        first,
        wanted.explain,
        wanted.session,
        wanted.client_id,
        wanted.version,
        wanted.rerank in (False, "off"),
        context.deadline,
    )


def answer_of(state: ServiceState, outcome: SearchOutcome, mode: str, query_id: str) -> dict[str, Any]:
    """Return the answer as JSON values."""
    values, reason = outcome.page.to_json(), outcome.page.reason
    # The answer contains neither the query nor an error's message, because answers end up in other systems' logs.
    del values["query"]
    values["reason"] = "" if reason is None else reason.text
    values |= {"query_id": query_id, "mode": mode, "route": state.settings.route}
    values["encoder_id"] = outcome.serving.encoder_id
    if outcome.teams:
        values["versions"] = list(outcome.versions)
        for hit, team in zip(values["hits"], outcome.teams, strict=True):
            hit["team"] = team
    return values


def note(state: ServiceState, context: RequestContext, outcome: SearchOutcome, mode: str, waited_s: float) -> None:
    """Add a search to the metrics and to the request's log entry."""
    page, cause, metrics = outcome.page, outcome.page.cause, state.metrics
    metrics.child(metrics.searches, mode).inc()
    metrics.note_stages({"wait": waited_s * 1000.0, **page.timings_ms})
    if page.fallback:
        metrics.child(metrics.fallbacks, cause).inc()
    if page.n_encoded:
        metrics.encoded.inc(page.n_encoded)
    context.notes |= {"mode": mode, "version": outcome.serving.model_id[:12], "hits": len(page.hits)}
    if page.alpha_origin:
        metrics.child(metrics.alphas, page.alpha_origin).inc()
        context.notes["alpha"] = page.alpha_origin
        note_shape(state, page)
    if cause:
        context.notes["cause"] = cause


def note_shape(state: ServiceState, page: RerankedPage) -> None:
    """Count the shape of a search body; log a warning if it is the first time that it has no calibration of its own."""
    shape = state.shapes_seen.note(page.clauses, page.alpha_origin)
    if shape is None:
        return
    settings = state.settings
    rest = f"--index {settings.index} --window {settings.rerank.window} --qrels QRELS --query-file QUERIES"
    entry = {
        "shape": shape.name,
        "clauses": shape.clauses,
        "alpha": page.alpha_origin,
        "remedy": f"ssi calibrate --engine ENGINE --model FOLDER --body FILE {rest}",
    }
    _log.warning("searches with this body shape have no calibration of their own", extra={"ssi": entry})


def encode(values: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8. Text that UTF-8 cannot encode is escaped, as it was in the engine's answer."""
    try:
        return msgspec.json.encode(values)
    except (UnicodeEncodeError, TypeError):
        return json.dumps(values, ensure_ascii=True, default=str).encode("ascii")


MAX_EVENTS = 100


class Position(RequestBody):
    """Rank of the document when it was shown; ``ordinal`` counts from 1 across pages."""

    ordinal: Ordinal


class Thing(RequestBody):
    """The document that the event is about."""

    object_id: Annotated[str, Meta(min_length=1, max_length=512)]
    object_id_field: Id = "_id"


class EventAttributes(RequestBody):
    """The document, its rank and the time spent on it."""

    object: Thing
    position: Position | None = None
    dwell_time: Annotated[float, Meta(ge=0, le=1e7, description="Seconds.")] | None = None


class Event(RequestBody):
    """One event. Its time is when the service receives it, since clients' clocks are unreliable."""

    action_name: Annotated[str, Meta(min_length=1, max_length=100, description="click, add_to_cart, purchase, ...")]
    query_id: Annotated[str, Meta(min_length=1, max_length=100, description="query_id in the answer of /search.")]
    event_attributes: EventAttributes
    client_id: Id | None = None
    session_id: Id | None = None
    user_id: Id | None = None
    user_query: Annotated[str, Meta(max_length=1000)] | None = None


class EventList(RequestBody):
    """Events of one visitor, oldest first."""

    events: Annotated[list[Event], Meta(min_length=1, max_length=MAX_EVENTS)]


class Taken(BaseModel):
    """The events are queued for writing."""

    status: Literal["taken"] = "taken"
    events: int


events_router = APIRouter(route_class=JsonRoute, tags=["search"])


@events_router.post("/events", response_model=Taken, responses=COMMON_RESPONSES, operation_id="events", status_code=202)
async def events(
    wanted: Annotated[EventList, body_of(EventList)], context: Context, state: State, request: Request
) -> Taken:
    """Queue events for writing.

    202 if they are queued, 503 if the sink is full or the service has none, 429 if an address or a session sends more
    events than the service accepts per second. In case of an error none of the events is queued.
    """
    if state.sink is None:
        raise ServiceError(503, "this service does not log events: start it with --sink", kind="no_sink")
    address = request.client.host if request.client else ""
    sessions = Counter(event.session_id or event.client_id or "" for event in wanted.events)
    wait_s = state.event_rates.wait_s(address, sessions)
    if wait_s > 0:
        state.refuse("too_many_events")
        message = "too many events from one address or session; none was queued"
        raise ServiceError(429, message, kind="too_many_events", retry_after_s=wait_s)
    context.notes |= {"events": len(wanted.events)}
    if not state.sink.events([event_row(event, state.settings.application) for event in wanted.events]):
        message = f"the sink is full; none of the {len(wanted.events)} events was queued: send them again"
        raise ServiceError(503, message, kind="sink_full", retry_after_s=2.0)
    state.metrics.day.note_clicks(sum(event.action_name == "click" for event in wanted.events))
    return Taken(events=len(wanted.events))


def event_row(event: Event, application: str) -> dict[str, Any]:
    """Return the row of ``ubi_events`` for an event; null fields are omitted."""
    row: dict[str, Any] = without_nulls(msgspec.to_builtins(event))
    if "position" in row["event_attributes"]:
        row["event_attributes"]["position"]["ordinal"] = int(event.event_attributes.position.ordinal)  # type: ignore[union-attr]
    return {**row, "application": application, "timestamp": stamp(datetime.now(UTC))}


def without_nulls(value: Any) -> Any:
    """Return a JSON value without null fields."""
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(part) for name, part in value.items() if part is not None}
