"""The rows of UBI, as far as they are used, for typed decoding: every key that any version or exporter writes."""

from __future__ import annotations

import msgspec

_Id = str | int | None


class Ordinal(msgspec.Struct, gc=False):
    """``position.ordinal`` as UBI 1.0 has it."""

    index: int | float | str | None = None


class _Position(msgspec.Struct, gc=False):
    ordinal: int | float | str | Ordinal | None = None


class _Object(msgspec.Struct, gc=False):
    object_id: _Id = None
    internal_id: _Id = None


class Attributes(msgspec.Struct, gc=False):
    """``event_attributes``."""

    object: _Object | None = None
    position: _Position | None = None
    session_id: _Id = None
    user_id: _Id = None
    ip: str | None = None
    dwell_time: int | float | str | None = None
    browser: str | None = None
    user_agent: str | None = None
    flat_ordinal: int | float | str | None = msgspec.field(default=None, name="position.ordinal")
    flat_object: _Id = msgspec.field(default=None, name="object.object_id")


class QueryAttributes(msgspec.Struct, gc=False):
    """``query_attributes``."""

    session_id: _Id = None
    user_id: _Id = None
    ip: str | None = None
    browser: str | None = None
    user_agent: str | None = None
    application: _Id = None
    randomised: bool | str | int | None = None
    randomized: bool | str | int | None = None
    ssi_first: int | str | None = None


class _Response(msgspec.Struct, gc=False):
    query_response_hit_ids: list[str | int] | None = None
    query_response_objects_ids: list[str | int] | None = None
    query_response_object_ids: list[str | int] | None = None


class Row(_Response, gc=False):
    """A row of either index, as far as it is used; other keys are read over."""

    action_name: str | None = None
    client_id: _Id = None
    query_id: _Id = None
    timestamp: str | int | float | None = None
    event_attributes: Attributes | None = None
    application: _Id = None
    user_query: str | None = None
    session_id: _Id = None
    user_id: _Id = None
    query_attributes: QueryAttributes | None = None
    query_response: _Response | None = None
    user_agent: str | None = None
    ip: str | None = None


def listed(row: Row) -> list[str | int] | None:
    """Return the ids of the response, by any of its names; None where none is there."""
    for one in (row, row.query_response):
        if one is None:
            continue
        for ids in (one.query_response_hit_ids, one.query_response_objects_ids, one.query_response_object_ids):
            if ids is not None:
                return ids
    return None


def is_true(value: bool | str | int | None) -> bool:
    """Return whether a flag is set, also as text or number."""
    return value in (True, 1) or (isinstance(value, str) and value.lower() in ("true", "1", "yes"))
