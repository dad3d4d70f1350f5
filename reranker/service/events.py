"""``POST /events``: what visitors did with a page, as UBI events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from reranker.service.http import AS_WHOLE, COMMON_RESPONSES, Context, JsonRoute, ServiceError, StrictRequest
from reranker.service.sink import stamp
from reranker.service.state import State

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


router = APIRouter(route_class=JsonRoute, tags=["search"])


@router.post("/events", response_model=Taken, responses=COMMON_RESPONSES, operation_id="events", status_code=202)
async def events(wanted: EventList, context: Context, state: State) -> Taken:
    """Take events: 202 once they wait to be written, 503 where the sink is full (none is taken) or there is none."""
    take = getattr(state.sink, "events", None)
    if take is None:
        raise ServiceError(503, "events are not kept here: start the service with --sink", kind="no_sink")
    context.notes |= {"events": len(wanted.events)}
    if not take([row_of(event, state.settings.application) for event in wanted.events]):
        message = f"none of {len(wanted.events)} events was taken: the sink is full; send them again"
        raise ServiceError(503, message, kind="sink_full", retry_after_s=2.0)
    return Taken(events=len(wanted.events))


def row_of(event: Event, application: str) -> dict[str, Any]:
    """Return the row of ``ubi_events``."""
    row = event.model_dump(exclude_none=True)
    return {**row, "application": application, "timestamp": stamp(datetime.now(UTC))}
