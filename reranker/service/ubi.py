"""Searches and clicks as OpenSearch User Behavior Insights (UBI 1.3) has them: rows and index mappings. Pure.

What UBI has no field for goes into ``query_attributes`` under names that begin with ``ssi_``. They are texts, since
the plugin's mapping makes that object a map of strings; lists are joined by spaces.

Source: UBI schema 1.3.0; the limits of lengths are those of the plugin's mapping.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from reranker.service.records import SearchRecord

QUERIES_INDEX, EVENTS_INDEX = "ubi_queries", "ubi_events"
_ID = {"type": "keyword", "ignore_above": 100}
_LONG = {"type": "keyword", "ignore_above": 256}

QUERIES_MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {
        "timestamp": {"type": "date", "format": "strict_date_time||epoch_millis"},
        "query_id": _ID,
        "query": {"type": "text"},
        "query_response_id": _ID,
        "query_response_hit_ids": {"type": "keyword"},
        "user_query": _LONG,
        "client_id": _ID,
        "session_id": _ID,
        "application": _ID,
    },
}
"""Mapping of ``ubi_queries`` where the plugin has not made it. ``query_attributes`` are kept, not searched."""

EVENTS_MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {
        "timestamp": {"type": "date", "format": "strict_date_time||epoch_millis"},
        "application": _LONG,
        "action_name": _ID,
        "client_id": _ID,
        "session_id": _ID,
        "user_id": _ID,
        "query_id": _ID,
        "user_query": _LONG,
        "message_type": _ID,
        "message": {"type": "keyword", "ignore_above": 1024},
        "event_attributes": {
            "properties": {
                "position": {"properties": {"ordinal": {"type": "integer"}}},
                "object": {"properties": {"object_id": _LONG, "object_id_field": _ID}},
            },
        },
    },
}
"""Mapping of ``ubi_events`` where the plugin has not made it."""


def stamp(time: datetime) -> str:
    """Return a time in the form ``strict_date_time``: UTC, with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def query_row(record: SearchRecord) -> dict[str, Any]:
    """Return the row of ``ubi_queries`` of a search; absent values are left out."""
    attributes: dict[str, str] = {
        "ssi_index": record.index,
        "ssi_model": record.model_id,
        "ssi_encoder": record.encoder_id,
        "ssi_route": record.route,
        "ssi_mode": record.mode,
        "ssi_reranked": _flag(record.reranked),
        "ssi_fallback": _flag(record.fallback),
        "ssi_cause": record.reason,
        "ssi_first": str(record.first) if record.first else "",
        "ssi_total": str(record.total),
        "ssi_first_stage_ranks": " ".join(str(hit.first_stage_rank) for hit in record.hits),
        "ssi_teams": " ".join(hit.team for hit in record.hits if hit.team),
        "ssi_versions": " ".join(record.versions),
        "ssi_took_ms": f"{record.took_ms:.1f}",
        "session_id": record.session_id or "",
    }
    if record.shadow_ids:
        place = {hit.id: number for number, hit in enumerate(record.hits, 1)}
        attributes["ssi_shadow_order"] = " ".join(str(place.get(one, 0)) for one in record.shadow_ids)
    row = {
        "timestamp": stamp(record.time),
        "query_id": record.query_id,
        "user_query": record.query,
        "client_id": record.client_id,
        "session_id": record.session_id,
        "application": record.application,
        "query_response_id": str(uuid.uuid5(uuid.NAMESPACE_OID, record.query_id)),
        "query_response_hit_ids": [hit.id for hit in record.hits],
        "object_id_field": "_id",
        "query_attributes": {name: text for name, text in attributes.items() if text},
    }
    return {name: value for name, value in row.items() if value is not None}


def teams_of(attributes: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return teams in shown order and the two versions, from ``query_attributes``; empty where there are none."""
    teams, versions = attributes.get("ssi_teams", ""), attributes.get("ssi_versions", "")
    return tuple(str(teams).split()), tuple(str(versions).split())


def _flag(value: bool) -> str:
    return "true" if value else "false"
