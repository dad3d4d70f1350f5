"""The second step of a search: what the team shows of the hits on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reranker.engines.base import Engine
from reranker.engines.bodies import page_body
from reranker.records import RankedHit
from reranker.rerank.page import Request

VERSION_PREFIX = "ssi_"
_SHOWING = ("fields", "docvalue_fields", "stored_fields", "script_fields", "highlight", "explain", "version")
MIN_PAGE_SECONDS = 0.05
"""Time for the page's documents when the deadline is nearly over: a page without them helps nobody."""


def shows_nothing(body: Mapping[str, Any]) -> bool:
    """Return True where the body asks for ids and scores alone, so that the second request can be left out."""
    return body.get("_source") is False and not any(name in body for name in _SHOWING)


def shown(hit: RankedHit) -> RankedHit:
    """Return the hit without this project's own fields."""
    source = {name: value for name, value in hit.source.items() if not name.startswith(VERSION_PREFIX)}
    return replace(hit, source=source)


def fetch_page(engine: Engine, index: str, request: Request, page: Sequence[RankedHit]) -> tuple[RankedHit, ...]:
    """Return the page's hits with the ``_source``, highlights and inner hits that the team's body asks for.

    A document deleted since the first request keeps its place with an empty source.

    Raises
    ------
    EngineError
        If the engine does not answer.
    """
    if not page:
        return ()
    body = page_body(request.body, [hit.id for hit in page], hidden=(f"{VERSION_PREFIX}*",))
    answer = engine.search(
        index,
        body,
        preference=request.preference,
        timeout_s=request.clock.remaining_s(at_least=MIN_PAGE_SECONDS),
    )
    found = {(hit.index, hit.id): hit for hit in answer.hits}
    full = []
    for hit in page:
        document = found.get((hit.index, hit.id))
        full.append(hit if document is None else replace(hit, source=document.source, raw=document.raw))
    return tuple(shown(hit) for hit in full)
