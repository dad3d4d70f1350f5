"""What goes to an engine and comes back: JSON (strict out, quick in), names, settings and search bodies. Pure.

Reranking takes two requests: `candidate_body` asks for ids and scores of a whole window, `page_body` for what the
team wants to show of the few hits on the page. Whatever decides *which* documents match stays in the first.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from reranker.errors import ConfigError, EngineRejected, InputError

Json = Any
"""A JSON value: object, array, text, number, bool or None."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_decoder = msgspec.json.Decoder()
_FORBIDDEN = frozenset('\\/*?"<>| ,#:')

PLACE = "{{query}}"
"""Where a body template takes the text of the query."""

_SHOWN_ONLY = frozenset(
    {
        "_source", "fields", "docvalue_fields", "stored_fields", "script_fields", "highlight", "explain", "version",
        "seq_no_primary_term", "from", "size", "track_scores", "profile",
    }
)  # fmt: skip
"""Parts of a body that decide what is shown of a hit, not which hits there are."""

_ANSWERS = frozenset({"aggs", "aggregations", "suggest"})
"""Parts answered over the whole hit set: asked once, with the candidates."""

_PAGE_KEYS = (
    "_source", "fields", "docvalue_fields", "stored_fields", "script_fields", "highlight", "explain", "version",
    "seq_no_primary_term", "runtime_mappings", "derived", "timeout", "ext",
)  # fmt: skip


def encode(value: Json) -> bytes:
    """Return compact JSON in UTF-8.

    `ValueError`: a number that is not finite, a lone surrogate, a loop, or nesting past what the interpreter can
    follow; `TypeError`: a value that is not JSON.
    """
    try:
        return _encoder.encode(value).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deep to be written as JSON") from None


def decode(data: bytes) -> Json:
    """Return the value of a JSON text; `ValueError`: not a whole JSON text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses lone surrogates, which both engines send back when they were indexed; json takes them.
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep to be read as JSON") from None


def check_name(name: str) -> str:
    """Return an index or alias name unchanged if it names exactly one thing.

    `EngineRejected`: patterns, lists, path separators and the other characters that no engine takes.
    """
    wrong = sorted(set(name) & _FORBIDDEN)
    if not name or wrong or name[0] in "-_+" or name in (".", "..") or len(name.encode("utf-8", "replace")) > 255:
        detail = f" (it contains {wrong[0]!r})" if wrong else ""
        message = (
            f"index name {name!r:.80} is not legal{detail}: give one plain name, 1 to 255 bytes, that does not start "
            "with '-', '_' or '+'; patterns and lists are not taken"
        )
        raise EngineRejected(message, status=400, error_type="invalid_index_name_exception")
    return name


def quoted(name: str) -> str:
    """Return a checked index name for a URL path."""
    return quote(check_name(name), safe="")


def flat_settings(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return index settings flat, as engines tell them: ``index.number_of_shards`` → "1"."""
    flat: dict[str, str] = {}

    def walk(value: Mapping[str, Any], prefix: str) -> None:
        for name, child in value.items():
            path = f"{prefix}{name}"
            if isinstance(child, Mapping):
                walk(child, f"{path}.")
            else:
                path = path if path.startswith("index.") else f"index.{path}"
                flat[path] = ("true" if child else "false") if isinstance(child, bool) else str(child)

    walk(settings or {}, "")
    return flat


def default_query_body(query: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the body of a plain BM25 search, summed over fields such as ``title^2``; `InputError` without fields."""
    if not fields:
        raise InputError("no field to search in: name at least one, such as title^2")
    if len(fields) == 1 and "^" not in fields[0]:
        return {"query": {"match": {fields[0]: {"query": query}}}}
    return {"query": {"multi_match": {"query": query, "fields": list(fields), "type": "most_fields"}}}


def fill_template(body: Mapping[str, Any], query: str) -> dict[str, Any]:
    """Return a copy of a body template with every ``{{query}}`` inside its text values replaced by ``query``.

    `ConfigError` if the place for the query is nowhere in it.
    """
    if _filled(body, "") == body:
        raise ConfigError(f"the body template has no place for the query: write {PLACE} where the query's text belongs")
    filled: dict[str, Any] = _filled(body, query)
    return filled


def _filled(value: Any, query: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, query)
    if isinstance(value, Mapping):
        return {name: _filled(item, query) for name, item in value.items()}
    return [_filled(item, query) for item in value] if isinstance(value, list) else value


def window_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return ``from`` and ``size`` of a body, with the engines' defaults 0 and 10."""
    return int(body.get("from", 0)), int(body.get("size", 10))


def not_rerankable(body: Mapping[str, Any]) -> str:
    """Return why the hits of this body keep the engine's order, or an empty string if they may be reranked.

    Not reranked: no hits asked for (``size: 0``), an order other than by ``_score``, and pages taken with
    ``search_after``, whose place in a reranked order is not known.
    """
    if body.get("size", 10) == 0:
        return "the body asks for no hits (size: 0)"
    if body.get("search_after") is not None:
        return "the body pages with search_after, which follows the engine's own order"
    if not _by_score(body.get("sort")):
        return f"the body sorts by {_first_sort(body['sort'])}, not by _score"
    return ""


def _sorts(sort: Any) -> list[Any]:
    return list(sort) if isinstance(sort, (list, tuple)) else [sort]


def _first_sort(sort: Any) -> str:
    first = _sorts(sort)[0]
    return str(next(iter(first))) if isinstance(first, Mapping) and first else str(first)


def _by_score(sort: Any) -> bool:
    """Return True if the first key is the score, best first; further keys only order equal scores."""
    if sort is None or sort == []:
        return True
    first = _sorts(sort)[0]
    if not isinstance(first, Mapping):
        return first in ("_score", "_score:desc")
    order = first.get("_score")
    if isinstance(order, Mapping):
        order = order.get("order", "desc")
    return len(first) == 1 and str(order).lower() == "desc"


def candidate_body(
    body: Mapping[str, Any], window: int, source_fields: Sequence[str] = (), *, answers: bool = True
) -> dict[str, Any]:
    """Return the body that asks for the first ``window`` hits with nothing to show but ``source_fields``.

    Kept: the query and everything else that decides which documents match and in what order (``post_filter``,
    ``collapse``, ``min_score``, ``rescore``, ``knn``, ``retriever``, ``sort``, ...), and what is answered over all
    hits (aggregations, suggestions), but for requests whose answer is not shown (``answers`` is False). Left to
    `page_body`: ``_source``, fields, highlight, inner hits. ``source_fields`` are what of ``_source`` is sent along
    (``ssi_..._vec``, or the text to encode). `InputError` if ``window`` is below 1.
    """
    if window < 1:
        raise InputError(f"window is {window}; it is at least 1")
    dropped = _SHOWN_ONLY if answers else _SHOWN_ONLY | _ANSWERS
    result = {name: copy.deepcopy(value) for name, value in body.items() if name not in dropped}
    collapse = result.get("collapse")
    if isinstance(collapse, dict):
        # Inner hits cost one search a group; they are asked for with the page.
        collapse.pop("inner_hits", None)
    return {**result, "from": 0, "size": window, "_source": list(source_fields) or False}


def page_body(body: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return the body that fetches what the team shows of these documents; the order of its hits means nothing.

    The team's query is kept as an optional clause, so that highlights, inner hits and named queries work while
    every id, an ``_id`` of a hit on the page, comes back, also one found by ``knn`` alone.
    """
    result = {name: copy.deepcopy(body[name]) for name in _PAGE_KEYS if name in body}
    query = copy.deepcopy(body.get("query"))
    wanted = {"ids": {"values": list(ids)}}
    result["query"] = {"bool": {"filter": [wanted], **({"should": [query]} if query else {})}}
    source = result.get("_source", True)
    return {**result, "from": 0, "size": len(ids), "_source": source, "track_total_hits": False}
