"""Pure functions on search bodies: filling templates, and building the two requests of a reranked search.

Reranking sends two requests. `candidate_body` asks for ids and scores of a whole window. `page_body` asks for whatever
the original body shows of hits, only for the few hits on the page. Everything that decides *which* documents match
stays in the first request. The bodies share parts with the original, so that nobody may change these.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from reranker.engines.wire import changed_texts
from reranker.errors import ConfigError, InputError
from reranker.records import Reason, ReasonKind

# --- search bodies


PLACE = "{{query}}"
"""Placeholder for the query text in a body template."""
SCORING_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "bool": ("must", "should"),
    "boosting": ("positive",),
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "pinned": ("organic",),
    "standard": ("query",),
    "rrf": ("retrievers",),
}
"""Clauses and retrievers that contain others -> those of their parts that contribute to the score."""
TEXT_CLAUSES = frozenset(
    {
        "match",
        "match_phrase",
        "match_phrase_prefix",
        "match_bool_prefix",
        "multi_match",
        "combined_fields",
        "query_string",
        "simple_query_string",
    }
)
"""Clauses that search for a text."""


SHOWN_OF_HITS = (
    "_source",
    "fields",
    "docvalue_fields",
    "stored_fields",
    "script_fields",
    "highlight",
    "explain",
    "version",
    "seq_no_primary_term",
)


_SHOWN_ONLY = frozenset({*SHOWN_OF_HITS, "from", "size", "track_scores", "profile"})
"""Parts of a body that affect what is returned for each hit, but not which hits there are."""


_ANSWERS = frozenset({"aggs", "aggregations", "suggest"})
"""Parts computed over all matching documents: requested once, with the candidates."""


_PAGE_KEYS = (*SHOWN_OF_HITS, "runtime_mappings", "derived", "timeout", "ext")


def default_query_body(query: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the body of a BM25 search summed over fields such as ``title^2``. `InputError` if ``fields`` is empty."""
    if not fields:
        raise InputError("no field to search: name at least one, such as title^2")
    if len(fields) == 1 and "^" not in fields[0]:
        return {"query": {"match": {fields[0]: {"query": query}}}}
    return {"query": {"multi_match": {"query": query, "fields": list(fields), "type": "most_fields"}}}


Places = Mapping[Any, Any]
"""The places of ``{{query}}`` in a JSON value: key or position → the places in that part; empty for a text."""


def places_of(value: Any) -> Places | None:
    """Return the places of ``{{query}}`` in a body template or a part of it; None if there is none."""
    if isinstance(value, str):
        return {} if PLACE in value else None
    named = isinstance(value, dict) or isinstance(value, Mapping)  # a dict is recognised much faster than a mapping
    parts = value.items() if named else enumerate(value) if isinstance(value, list) else ()
    found = {key: inside for key, part in parts if (inside := places_of(part)) is not None}
    return found or None


def fill_template(body: Mapping[str, Any], query: str, places: Places | None = None) -> dict[str, Any]:
    """Return a body template with ``query`` for ``{{query}}``, in a copy that shares all other parts with the template.

    ``places`` are the `places_of` the template, if they are known. Raises `ConfigError` if there are none.
    """
    places = places_of(body) if places is None else places
    if places is None:
        raise ConfigError(
            f"the body template has no placeholder for the query: write {PLACE} in place of the query text"
        )
    return _filled(body, places, query)  # type: ignore[no-any-return]


def _filled(value: Any, places: Places, query: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, query)
    changed: Any = list(value) if isinstance(value, list) else dict(value)
    for key, inside in places.items():
        changed[key] = _filled(value[key], inside, query)
    return changed


Scalar = str | int | float | bool


_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_RULE = rf" in (?:({_NUMBER})\.\.({_NUMBER})|(\[[^\]]*\]))"
_VARIABLE = re.compile(rf"\{{\{{([A-Za-z_]\w*)(\?|=((?:[^}}]|}}(?!}}))*?))((?:{_RULE})?)\}}\}}")
"""Name, ``?`` or ``=``, default, rule with a number from and to, or a list."""


class _Rule(NamedTuple):
    """The values that a variable may have."""

    low: float = -math.inf
    high: float = math.inf
    allowed: tuple[Scalar, ...] | None = None
    """None: any."""

    @classmethod
    def of(cls, name: str, written: str) -> _Rule:
        """Return the rule `` in LOW..HIGH`` or `` in [VALUE, ...]`` of a variable; any value for an empty one."""
        found = re.fullmatch(_RULE, written)
        if found is None:
            return cls()
        if found[3] is None:
            return cls(float(found[1]), float(found[2]))
        try:
            allowed = json.loads(found[3])
        except ValueError:
            raise ConfigError(f"the list of {name!r} in the body is not JSON: {written.strip():.60}") from None
        return cls(allowed=tuple(allowed))

    def check(self, name: str, value: Any) -> None:
        """Raise `InputError` if a value, or an item of a list, is not allowed."""
        for one in value if isinstance(value, list) else [value]:
            if self.allowed is not None and one not in self.allowed:
                listed = ", ".join(map(str, self.allowed))
                raise InputError(f"variable {name!r} of the search body must be one of {listed:.200}")
            in_range = isinstance(one, int | float) and not isinstance(one, bool) and self.low <= one <= self.high
            if not in_range and self != _Rule(allowed=self.allowed):
                raise InputError(
                    f"variable {name!r} of the search body must be a number from {self.low:g} to {self.high:g}"
                )


class _Absent(Exception):
    """The variable at this position has no value."""


def variables_of(template: Mapping[str, Any]) -> dict[str, Scalar | list[Any] | None]:
    """Return the variables of a body template with their defaults; the default of an optional ``{{name?}}`` is None.

    The default of ``{{name=DEFAULT}}`` is JSON (``{{size=10}}``), or a text if it is not valid JSON. Raises
    `ConfigError` for ``{{name}}`` with neither ``?`` nor a default, for two defaults of one name, and for a default
    that is an object, or that the variable's own rule does not allow.
    """
    return {name: default for name, (default, _) in _declared(template).items()}


def _declared(template: Mapping[str, Any]) -> dict[str, tuple[Scalar | list[Any] | None, _Rule]]:
    """Return the variables of a body template with their defaults and the rules of their values.

    A rule follows `` in ``: a range of numbers (``{{size=10 in 1..100}}``), or a list of the allowed values
    (``{{order=price in ["price", "date"]}}``).
    """
    found: dict[str, tuple[Scalar | list[Any] | None, _Rule]] = {}

    def note(text: str) -> str:
        for match in _VARIABLE.finditer(text):
            name, how, written, rule = match[1], match[2], match[3], match[4]
            declared = None if how == "?" else _default(name, written), _Rule.of(name, rule)
            if name in found and found[name] != declared:
                raise ConfigError(
                    f"the variable {name!r} of the body has two defaults or rules: write the same ones everywhere"
                )
            try:
                if declared[0] is not None:
                    declared[1].check(name, declared[0])
            except InputError as error:
                raise ConfigError(f"the default of the {error}") from None
            found[name] = declared
        if rest := re.search(r"\{\{(?!query\}\}).*?\}\}", _VARIABLE.sub("", text)):
            raise ConfigError(
                f"{rest[0]:.60} in the body is not a variable: write {{{{name?}}}} or {{{{name=DEFAULT}}}}"
            )
        return text

    changed_texts(dict(template), note)
    return found


def _default(name: str, written: str) -> Scalar | list[Any]:
    if re.search(r" in [\[0-9-]", written):
        raise ConfigError(
            f"the rule of {name!r} in the body is {written:.60}: write a range as 1..100, or a list as [1, 2]"
        )
    try:
        value: Any = json.loads(written)
    except ValueError:
        value = None if written.startswith("{") else written
    if not _is_value(value):
        raise ConfigError(
            f"the default of {name!r} in the body is {written:.60}: write a text, number, boolean or list"
        )
    return value  # type: ignore[no-any-return]


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
    )


def fill_variables(template: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a body template with its variables filled; ``{{query}}`` is kept.

    A text that consists of a single variable is replaced by the value itself, which may be a number or a list. If a
    variable has neither a value nor a default, the innermost list element that contains it (such as a clause of
    ``filter``) is removed, or else the whole top-level part of the body.

    Raises
    ------
    InputError
        If a value has no variable in the body, has another JSON type than the default, is not a text, number, boolean
        or a list of these, or is not allowed by the variable's rule.
    """
    declared = _declared(template)
    defaults = {name: default for name, (default, _) in declared.items()}
    if unknown := sorted(values.keys() - defaults.keys()):
        legal = ", ".join(sorted(defaults)) or "none"
        raise InputError(f"variable {unknown[0]!r:.60} is not in the search body (variables: {legal})")
    for name, value in values.items():
        default = defaults[name]
        if not _is_value(value) or (default is not None and _json_type(value) != _json_type(default)):
            wanted = "text, number, boolean or list of these" if default is None else _json_type(default)
            raise InputError(
                f"variable {name!r} of the search body has type {_json_type(value)}; it must be a {wanted}"
            )
        declared[name][1].check(name, value)
    given = {**defaults, **values}

    def text_of(match: re.Match[str]) -> str:
        value = _present(given[match[1]])
        return value if isinstance(value, str) else json.dumps(value)

    def filled(node: Any) -> Any:
        if isinstance(node, str):
            whole = _VARIABLE.fullmatch(node)
            return _present(given[whole[1]]) if whole else _VARIABLE.sub(text_of, node)
        if isinstance(node, Mapping):
            return {name: filled(item) for name, item in node.items()}
        return list(kept(node)) if isinstance(node, list) else node

    def kept(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            with suppress(_Absent):
                yield filled(item)

    # Each top-level part is treated as a list of one element, so that it can be removed as a whole.
    return {name: part for name, value in template.items() for part in kept([value])}


def _present(value: Any) -> Any:
    if value is None:
        raise _Absent
    return value


def _json_type(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list"}
    return names.get(type(value), "null" if value is None else "object")


def window_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return ``from`` and ``size`` of a body, with the engines' defaults 0 and 10."""
    return int(body.get("from", 0)), int(body.get("size", 10))


def not_rerankable(body: Mapping[str, Any]) -> Reason | None:
    """Return why the hits of this body must keep the engine's order, or None if they may be reranked.

    Not rerankable are bodies that request no hits (``size: 0``) or a ``profile``, that sort by anything but ``_score``,
    or that page with ``search_after``, whose position in a reranked order is unknown.
    """
    if body.get("size", 10) == 0:
        return Reason(ReasonKind.NOT_RERANKABLE, "the body requests no hits (size: 0)")
    if body.get("search_after") is not None:
        text = "the body pages with search_after, which follows the engine's own order"
        return Reason(ReasonKind.NOT_RERANKABLE, text)
    if body.get("profile"):
        text = "the body asks for a profile, which the engine can only give of its own search (profile)"
        return Reason(ReasonKind.NOT_RERANKABLE, text)
    return not_by_score(body)


def not_by_score(body: Mapping[str, Any]) -> Reason | None:
    """Return the reason if the body sorts by anything but ``_score``, so that scores do not decide its order."""
    sort = "_score" if body.get("sort") in (None, []) else body["sort"]
    # Further sort keys only break ties.
    first = sort[0] if isinstance(sort, (list, tuple)) else sort
    if not _by_score(first):
        name = next(iter(first)) if isinstance(first, Mapping) and first else first
        return Reason(ReasonKind.NOT_RERANKABLE, f"the body sorts by {name}, not by _score")
    return None


def _by_score(first: Any) -> bool:
    """Return whether the first sort key is the score, in descending order."""
    if not isinstance(first, Mapping):
        return first in ("_score", "_score:desc")
    order = first.get("_score")
    if isinstance(order, Mapping):
        order = order.get("order", "desc")
    return len(first) == 1 and str(order).lower() == "desc"


def candidate_body(
    body: Mapping[str, Any], window: int, source_fields: Sequence[str] = (), *, answers: bool = True
) -> dict[str, Any]:
    """Return the body that requests the first ``window`` hits with no content except ``source_fields``.

    It keeps the query and everything else that decides which documents match and in what order (``post_filter``,
    ``collapse``, ``min_score``, ``rescore``, ``knn``, ``retriever``, ``sort``, ...). ``_source``, fields, highlights
    and inner hits are left to `page_body`.

    Parameters
    ----------
    body : Mapping
        The original search body.
    window : int
        Number of candidates, at least 1.
    source_fields : Sequence[str]
        Fields of ``_source`` to return (``ssi_..._vec``, or the text to encode).
    answers : bool
        Whether to keep aggregations and suggestions.

    Raises
    ------
    InputError
        If ``window`` is below 1.
    """
    if window < 1:
        raise InputError(f"window is {window}; it must be at least 1")
    dropped = _SHOWN_ONLY if answers else _SHOWN_ONLY | _ANSWERS
    result = {name: value for name, value in body.items() if name not in dropped}
    collapse = result.get("collapse")
    if isinstance(collapse, Mapping):
        # Inner hits cost one search per group, so they are only requested for the page.
        result["collapse"] = {name: value for name, value in collapse.items() if name != "inner_hits"}
    return {**result, "from": 0, "size": window, "_source": list(source_fields) or False}


def text_clauses(query: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, options) of the clauses of a query or retriever that search for a text and contribute to scores."""
    for node in query if isinstance(query, list) else [query]:
        for name, part in node.items() if isinstance(node, dict) else ():
            if not isinstance(part, dict):
                continue
            if name in TEXT_CLAUSES:
                yield name, part
            for inner in SCORING_PARTS.get(name, ()):
                yield from text_clauses(part.get(inner))


def searched_fields(query: Any) -> Iterator[str]:
    """Yield the fields that the scoring clauses of a query search for a text, without boosts; patterns are left out."""
    for _, part in text_clauses(query):
        listed = part.get("fields", () if isinstance(part.get("query"), str) else part)
        fields = [listed] if isinstance(listed, str) else list(listed)
        yield from (path for path in (field.partition("^")[0] for field in fields) if "*" not in path)


def page_body(
    body: Mapping[str, Any], ids: Sequence[str], conditions: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the body that fetches the content of these documents; the order of its hits has no meaning.

    ``ids`` are the ``_id`` of the hits on the page. The original query is an optional clause, so that highlights, inner
    hits and named queries work while every id is returned, even if it was found only by ``knn``. Documents that do not
    satisfy the ``conditions``, which are queries, are not returned.
    """
    result = {name: body[name] for name in _PAGE_KEYS if name in body}
    query = query_of_ids(body, ids)
    query["bool"]["filter"] += conditions
    result["query"] = query
    source = result.get("_source", True)
    return {**result, "from": 0, "size": len(ids), "_source": source, "track_total_hits": False}


def query_of_ids(body: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return a query for documents with these ids, scored by the query of ``body``; 0 if a document does not match."""
    query = body.get("query")
    return {"bool": {"filter": [{"ids": {"values": list(ids)}}], **({"should": [query]} if query else {})}}
