"""The second step of a search: what the team shows of the hits on the page, and when it can be left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reranker.engines.base import Engine
from reranker.engines.bodies import page_body
from reranker.records import Hit, RankedHit
from reranker.rerank.request import Request

VERSION_PREFIX = "ssi_"
_SHOWING = (
    "fields", "docvalue_fields", "stored_fields", "script_fields", "highlight", "explain", "version",
    "seq_no_primary_term",
)  # fmt: skip
_OF_THE_QUERY = ("highlight", "explain", "script_fields")
MAX_HITS = 10_000
"""Largest answer that engines give without being told to (``index.max_result_window``)."""
MAX_KINDS = 64
"""Different ``_source`` options whose sizes are remembered."""
SIZED_PAGES = 16
"""Pages from one look at the sizes to the next."""
MIN_PAGE_SECONDS = 0.05
"""Time for the page's documents when the deadline is nearly over: a page without them helps nobody."""


def shows_nothing(body: Mapping[str, Any]) -> bool:
    """Return True where the body asks for ids and scores alone, so that the second request can be left out."""
    return body.get("_source") is False and not any(name in body for name in _SHOWING)


def shows_source_alone(body: Mapping[str, Any]) -> bool:
    """Return True where the body asks for ``_source``, whole or by a list of fields, and nothing else."""
    source = body.get("_source", True)
    # An empty list shows all, which a list with the route's fields in it would not.
    listed = isinstance(source, list) and bool(source) and all(isinstance(name, str) for name in source)
    return (source is True or listed) and not any(name in body for name in _SHOWING)


def needs_the_query(body: Mapping[str, Any]) -> bool:
    """Return True where what is shown depends on the query: highlights, explanations, inner hits, named clauses."""
    return any(name in body for name in _OF_THE_QUERY) or _has_key(body.get("query"), {"inner_hits", "_name"})


def _has_key(node: Any, names: set[str]) -> bool:
    if isinstance(node, Mapping):
        return any(name in names or _has_key(value, names) for name, value in node.items())
    return isinstance(node, (list, tuple)) and any(_has_key(item, names) for item in node)


def source_with(body: Mapping[str, Any], route_fields: Sequence[str]) -> bool | list[str]:
    """Return the ``_source`` of a first request that also brings what the team shows."""
    source = body.get("_source", True)
    return [*source, *route_fields] if isinstance(source, list) else True


class SourceSizes:
    """How large the documents of an index are as JSON, by what of ``_source`` is shown: from every 16th page or so.

    Nothing is known before the first page, which therefore takes two requests.
    """

    def __init__(self) -> None:
        self._mean_bytes: dict[str, float] = {}
        self._pages = 0

    def note(self, body: Mapping[str, Any], hits: Sequence[RankedHit]) -> None:
        """Take a page's documents into the mean, unless it is known well enough for now."""
        key, self._pages = str(body.get("_source", True)), self._pages + 1
        known = key in self._mean_bytes
        if hits and (self._pages % SIZED_PAGES == 0 if known else len(self._mean_bytes) < MAX_KINDS):
            size = sum(len(json.dumps(hit.source, default=str)) for hit in hits) / len(hits)
            self._mean_bytes[key] = 0.8 * self._mean_bytes.get(key, size) + 0.2 * size

    def fit(self, body: Mapping[str, Any], n_hits: int, limit_bytes: int) -> bool:
        """Return True where ``n_hits`` documents are expected to stay within ``limit_bytes``."""
        mean_bytes = self._mean_bytes.get(str(body.get("_source", True)))
        return mean_bytes is not None and n_hits * mean_bytes <= limit_bytes


def shown(hit: RankedHit) -> RankedHit:
    """Return the hit without this project's own fields."""
    source = {name: value for name, value in hit.source.items() if not name.startswith(VERSION_PREFIX)}
    return replace(hit, source=source)


def documents_of(
    engine: Engine,
    index: str,
    body: Mapping[str, Any],
    hits: Sequence[Hit | RankedHit],
    *,
    preference: str | None,
    timeout_s: float | None,
) -> dict[tuple[str, str], Hit]:
    """Return (concrete index, id) → the document, for those of ``hits`` that are still there.

    An alias may stand for several indexes that hold the same id: more documents are asked for than hits, and more
    again if that was not enough.

    Parameters
    ----------
    body : mapping
        Finds the documents by their ids; its size is set here.
    """
    wanted = {(hit.index, hit.id) for hit in hits}
    size = min(len({name for _, name in wanted}) * len({place for place, _ in wanted}), MAX_HITS)
    while True:
        answer = engine.search(index, {**body, "size": size}, preference=preference, timeout_s=timeout_s)
        found = {(hit.index, hit.id): hit for hit in answer.hits}
        if wanted <= found.keys() or len(answer.hits) < size or size == MAX_HITS:
            return found
        size = min(16 * size, MAX_HITS)


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
    shown_of = request.body
    if not needs_the_query(shown_of):
        shown_of = {name: value for name, value in shown_of.items() if name != "query"}
    # Our own fields are left out here, not by an exclusion in the request: that makes the engine parse each document.
    body = page_body(shown_of, [hit.id for hit in page])
    timeout_s = request.deadline.timeout_s(at_least=MIN_PAGE_SECONDS)
    found = documents_of(engine, index, body, page, preference=request.preference, timeout_s=timeout_s)
    full = []
    for hit in page:
        document = found.get((hit.index, hit.id))
        full.append(hit if document is None else replace(hit, source=document.source, raw=document.raw))
    return tuple(full)
