"""``POST /search``, by the team's own body in the served version's order; ``POST /events``: what visitors did then."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from reranker.engines.base import fill_variables
from reranker.errors import InputError
from reranker.service.http import (
    AS_WHOLE,
    COMMON_RESPONSES,
    Context,
    JsonRoute,
    RequestContext,
    ServiceError,
    StrictRequest,
)
from reranker.service.modes import SearchCall, SearchOutcome, mode_of
from reranker.service.sink import query_row, stamp
from reranker.service.state import ServiceState, State
from reranker.service.telemetry import cause_of

MAX_QUERY_CHARS = 10_000
MAX_FROM = 10_000
MAX_SIZE = 1_000
PageSize = Annotated[int, Field(ge=0, le=MAX_SIZE), AS_WHOLE]
PageStart = Annotated[int, Field(ge=0, le=MAX_FROM), AS_WHOLE]


class SearchRequest(StrictRequest):
    """One search. Fields not listed here are ignored."""

    query: Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="What was typed.")]
    body: Annotated[
        dict[str, Any] | str | None,
        Field(description="Search body with {{query}} where the text belongs, or the name of one that the service has; "
                          "absent: the service's own."),
    ] = None  # fmt: skip
    variables: Annotated[
        dict[str, Any] | None, Field(description="Values of variables of the service's body, by name.")
    ] = None
    size: Annotated[PageSize | None, Field(description="Hits of the page.")] = None
    first: Annotated[PageStart | None, Field(alias="from", description="Hits before the page.")] = None
    session: Annotated[str | None, Field(max_length=100, description="Draws the group; logged.")] = None
    client_id: Annotated[str | None, Field(max_length=100, description="Logged with the impression.")] = None
    explain: Annotated[bool, Field(description="Also return which pairs of words made each score.")] = False
    rerank: Annotated[StrictBool | Literal["on", "off"], Field(description="false or off: the engine's order.")] = True
    version: Annotated[
        str | None, Field(pattern="^[0-9a-f]{6,64}$", description="A version other than the live one.")
    ] = None


class Hit(BaseModel):
    """One hit of the page, with what the body shows of it (``highlight``, ``inner_hits``, ``fields``)."""

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
    """A page of hits; ``aggregations`` and ``suggest`` are the engine's own."""

    model_config = ConfigDict(extra="allow")

    query_id: str
    hits: list[Hit]
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
async def search(wanted: SearchRequest, context: Context, state: State) -> Response:
    """Search the index; the hits come in the order of the served version.

    Whatever goes wrong after the engine's first answer, that answer comes back in its own order with ``fallback`` and
    the reason. 503 with ``Retry-After`` where the engine does not answer in time.
    """
    query_id = str(uuid.uuid4())
    outcome, name = await carry_out(state, context, call_of(state, wanted, context), query_id)
    return Response(encode(answer_of(state, outcome, name, query_id)), media_type="application/json")


async def carry_out(
    state: ServiceState, context: RequestContext, call: SearchCall, query_id: str
) -> tuple[SearchOutcome, str]:  # fmt: skip
    """Return what came of a search, and its mode; it is counted, and logged as the impression ``query_id``."""
    name = mode_of(state.settings, state.modes, call)
    waited_s = context.deadline.spent_s
    search = state.modes[name]
    outcome = await state.run(
        context, lambda: state.ask_engine(lambda: search(state.versions, call), context.deadline)
    )  # fmt: skip
    state.answered += 1
    note(state, context, outcome, name, waited_s)
    if state.sink is not None or name == "shadow":
        row = query_row(call, outcome, name, query_id, state.settings, context.deadline.spent_s * 1000.0)
        if name == "shadow":
            state.shadow.submit(call, row)
        else:
            state.record(row)
    return outcome, name


def call_of(state: ServiceState, wanted: SearchRequest, context: RequestContext) -> SearchCall:
    """Return the search that is wanted; `ServiceError` 422 for a body or variables that do not fit, 403 for any."""
    settings, wished = state.settings, wanted.body
    body: Mapping[str, Any] | None
    if isinstance(wished, dict):
        if settings.fixed_body:
            raise ServiceError(403, "body: this service takes none, it has its own", kind="body_forbidden")
        if "{{query}}" not in json.dumps(wished):
            raise ServiceError(422, "body: must hold {{query}} where the query's text belongs", kind="invalid")
        if wanted.variables:
            raise ServiceError(422, "variables: fill those of your own body before you send it", kind="invalid")
        body = wished
    else:
        if wished is not None and wished not in settings.bodies:
            raise ServiceError(422, f"body: its names are {', '.join(settings.bodies) or 'none'}", kind="invalid")
        template = settings.body if wished is None else settings.bodies[wished]
        try:
            body = fill_variables(template or {}, wanted.variables or {}) or None
        except InputError as error:
            raise ServiceError(422, f"variables: {error}", kind="invalid") from error
    return SearchCall(
        wanted.query, body, wanted.size, wanted.first, wanted.explain, wanted.session, wanted.client_id,
        wanted.version, wanted.rerank in (False, "off"), context.deadline,
    )  # fmt: skip


def answer_of(state: ServiceState, outcome: SearchOutcome, mode: str, query_id: str) -> dict[str, Any]:
    """Return the answer as JSON values."""
    values = outcome.page.to_json()
    # Neither the query nor an error's own words go back: both end in other people's logs.
    del values["query"]
    if cause_of(outcome.page.reason) == "error":
        values["reason"] = ":".join(outcome.page.reason.split(":")[:2])
    values |= {"query_id": query_id, "mode": mode, "route": state.settings.route}
    values["encoder_id"] = outcome.serving.encoder_id
    if outcome.teams:
        values["versions"] = list(outcome.versions)
        for hit, team in zip(values["hits"], outcome.teams, strict=True):
            hit["team"] = team
    return values


def note(state: ServiceState, context: RequestContext, outcome: SearchOutcome, mode: str, waited_s: float) -> None:
    """Take a search into the figures and the log."""
    page, cause = outcome.page, cause_of(outcome.page.reason)
    state.metrics.searches.labels(mode).inc()
    state.metrics.note_stages({"wait": waited_s * 1000.0, **page.timings_ms})
    if page.fallback:
        state.metrics.fallbacks.labels(cause).inc()
    context.notes |= {"mode": mode, "version": outcome.serving.model_id[:12], "hits": len(page.hits)}
    if cause:
        context.notes["cause"] = cause


def encode(values: Mapping[str, Any]) -> bytes:
    """Return JSON in UTF-8; what UTF-8 cannot hold is escaped, as the engine sent it."""
    try:
        return msgspec.json.encode(values)
    except (UnicodeEncodeError, TypeError):
        return json.dumps(values, ensure_ascii=True, default=str).encode("ascii")


MAX_EVENTS = 100
Id = Annotated[str, Field(max_length=100)]


class Position(StrictRequest):
    """Where the document stood: ``ordinal`` counts from 1 over all pages."""

    ordinal: Annotated[int, Field(ge=1, le=1_000_000), AS_WHOLE]


class Thing(StrictRequest):
    """The document that the event is about."""

    object_id: Annotated[str, Field(min_length=1, max_length=512)]
    object_id_field: Annotated[str, Field(max_length=100)] = "_id"


class EventAttributes(StrictRequest):
    """What and where."""

    object: Thing
    position: Position | None = None
    dwell_time: Annotated[float | None, Field(ge=0, le=1e7, description="Seconds.")] = None


class Event(StrictRequest):
    """One event; its time is when the service gets it, since visitors' clocks cannot be trusted."""

    action_name: Annotated[str, Field(min_length=1, max_length=100, description="click, add_to_cart, purchase, ...")]
    query_id: Annotated[str, Field(min_length=1, max_length=100, description="Of the answer to /search.")]
    event_attributes: EventAttributes
    client_id: Id | None = None
    session_id: Id | None = None
    user_id: Id | None = None
    user_query: Annotated[str | None, Field(max_length=1000)] = None


class EventList(StrictRequest):
    """Events of one visitor, oldest first."""

    events: Annotated[list[Event], Field(min_length=1, max_length=MAX_EVENTS)]


class Taken(BaseModel):
    """The events wait to be written; nothing was lost so far."""

    status: Literal["taken"] = "taken"
    events: int


events_router = APIRouter(route_class=JsonRoute, tags=["search"])


@events_router.post("/events", response_model=Taken, responses=COMMON_RESPONSES, operation_id="events", status_code=202)
async def events(wanted: EventList, context: Context, state: State) -> Taken:
    """Take events: 202 once they wait to be written, 503 where the sink is full (none is taken) or there is none."""
    if state.sink is None:
        raise ServiceError(503, "events are not kept here: start the service with --sink", kind="no_sink")
    context.notes |= {"events": len(wanted.events)}
    if not state.sink.events([row_of(event, state.settings.application) for event in wanted.events]):
        message = f"none of {len(wanted.events)} events was taken: the sink is full; send them again"
        raise ServiceError(503, message, kind="sink_full", retry_after_s=2.0)
    return Taken(events=len(wanted.events))


def row_of(event: Event, application: str) -> dict[str, Any]:
    """Return the row of ``ubi_events``."""
    row = event.model_dump(exclude_none=True)
    return {**row, "application": application, "timestamp": stamp(datetime.now(UTC))}
