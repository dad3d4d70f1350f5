"""The part of the search body that the embedded engines speak, parsed into a small frozen tree.

Body: ``query``, ``from``, ``size``, ``_source``, ``fields``, ``track_total_hits`` and ``sort`` by ``_score``.
Queries: ``match``, ``multi_match`` (``best_fields``, ``most_fields``, boosts as ``title^2``), ``bool``, ``ids``,
``term``, ``terms``, ``exists``, ``match_all``, ``match_none``. The rest is refused by name, never ignored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from re import Pattern, compile
from typing import Any

from reranker.engines.mapping import FieldTable, FieldType, exact_value, standard_tokens
from reranker.engines.wire import Json
from reranker.errors import EngineRejected, Unsupported

BODY_KEYS = ("query", "from", "size", "_source", "fields", "track_total_hits", "sort")
MAX_NESTING = 30
"""Deepest nesting of queries, as in both engines."""
MAX_WINDOW = 10_000
"""Largest ``from`` + ``size`` (``index.max_result_window``)."""
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class MatchAll:
    """Every document, scored ``boost``."""

    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class MatchNone:
    """No document."""


@dataclass(frozen=True, slots=True)
class Words:
    """BM25 over one text field: (word, times in the query), of which ``minimum`` times must match."""

    field: str
    words: tuple[tuple[str, int], ...]
    minimum: int = 1
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Exact:
    """Any of these whole values (of a text field: words), scored ``boost``."""

    field: str
    values: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Ids:
    """These documents, scored ``boost``."""

    ids: tuple[str, ...]
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Exists:
    """Documents with a value in a searchable field, scored ``boost``."""

    field: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class DisMax:
    """The best child's score plus ``tie`` times the others'."""

    children: tuple[Node, ...]
    tie: float = 0.0
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Bool:
    """All of ``must`` and ``filter``, ``minimum`` of ``should``, none of ``must_not``; must and should are summed."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    filter: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()
    minimum: int = 0
    boost: float = 1.0


Node = MatchAll | MatchNone | Words | Exact | Ids | Exists | DisMax | Bool


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed ``_source`` option: patterns to keep (empty = all) and to drop; ``nothing`` for ``_source: false``."""

    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    nothing: bool = False

    @classmethod
    def parse(cls, option: Json) -> Selection:
        """Return the selection of a ``_source`` option: a bool, a pattern, a list, or includes and excludes."""
        if option is None or isinstance(option, bool):
            return cls(nothing=option is False)
        if isinstance(option, Mapping) and set(option) <= {"include", "includes", "exclude", "excludes"}:
            includes = option.get("includes", option.get("include", ()))
            excludes = option.get("excludes", option.get("exclude", ()))
            return cls(includes=_patterns(includes), excludes=_patterns(excludes))
        if isinstance(option, Sequence):
            return cls(includes=_patterns(option))
        raise EngineRejected(f"_source is {option!r}; it takes true, false, field paths, or includes and excludes")

    def apply(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the selected part; the source itself where all of it is."""
        if self.nothing:
            return {}
        if not self.includes and not self.excludes:
            return source
        return self._filter(source, "", not self.includes)

    def _filter(self, value: Mapping[str, Any], prefix: str, kept: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, child in value.items():
            path = f"{prefix}{name}"
            if not _matches(path, self.excludes):
                picked = self._pick(child, path, kept or _matches(path, self.includes))
                if picked is not _ABSENT:
                    result[name] = picked
        return result

    def _pick(self, child: Json, path: str, kept: bool) -> Json:
        if isinstance(child, Mapping):
            part = self._filter(child, f"{path}.", kept)
            return part if part or kept else _ABSENT
        if isinstance(child, list) and any(isinstance(item, Mapping) for item in child):
            parts = [part for item in child if (part := self._pick(item, path, kept)) is not _ABSENT]
            return parts if parts or kept else _ABSENT
        return child if kept else _ABSENT


def _patterns(value: Json) -> tuple[str, ...]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(item, str) for item in values):
        raise EngineRejected(f"_source names {values!r}; field paths are strings")
    return values


@lru_cache(maxsize=1024)
def _pattern(path: str) -> Pattern[str]:
    return compile(translate(path.replace("[", "[[]").replace("?", "[?]")))


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == item or ("*" in item and _pattern(item).match(path) is not None) for item in patterns)


def values_at(source: Mapping[str, Any], path: str) -> list[Any]:
    """Return all values under a dotted path, arrays flattened; a key that itself has dots is found too."""
    return list(_values(source, path))


def _values(value: Json, path: str) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        if value is not None:
            yield value
    elif isinstance(value, Mapping):
        if path in value:
            yield from _values(value[path], "")
        cut = path.find(".")
        while cut > 0:
            if path[:cut] in value:
                yield from _values(value[path[:cut]], path[cut + 1 :])
            cut = path.find(".", cut + 1)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A parsed body. ``track_total`` is True, False or the number up to which hits are counted."""

    query: Node
    from_: int
    size: int
    source: Selection
    fields: tuple[str, ...]
    track_total: bool | int


def parse_body(body: Mapping[str, Any], table: FieldTable) -> SearchRequest:
    """Return the parsed search body.

    Raises
    ------
    Unsupported
        A part outside the subset above; the message lists the parts known.
    EngineRejected
        A part of the subset that is malformed.
    """
    for key in body:
        if key not in BODY_KEYS:
            raise _unknown("body part", key, BODY_KEYS)
    _check_sort(body.get("sort", "_score"))
    from_, size = _count("from", body.get("from", 0)), _count("size", body.get("size", 10))
    if from_ + size > MAX_WINDOW:
        raise _malformed(f"from + size is {from_ + size}; the largest result window is {MAX_WINDOW}")
    track = body.get("track_total_hits", True)
    if not isinstance(track, (bool, int)):
        raise _malformed(f"track_total_hits is {track!r}; it takes true, false or a number")
    query = parse_query(body.get("query", {"match_all": {}}), table)
    source = Selection.parse(body.get("_source", True))
    fields = tuple(_field_of(item) for item in _list("fields", body.get("fields", ())))
    return SearchRequest(query, from_, size, source, fields, track)


def parse_query(query: Json, table: FieldTable, depth: int = 0) -> Node:
    """Return one query clause as a tree; errors as in `parse_body`."""
    if depth > MAX_NESTING:
        raise _malformed(f"the query is nested deeper than {MAX_NESTING} levels")
    name, value = _single(query, "a query")
    parse = _CLAUSES.get(name)
    if parse is None:
        raise _unknown("query clause", name, tuple(_CLAUSES))
    return parse(value, table, depth)


def _match_all(value: Json, table: FieldTable, depth: int) -> Node:
    return MatchAll(_boost(_options("match_all", value, {"boost"})))


def _match_none(value: Json, table: FieldTable, depth: int) -> Node:
    return MatchNone()


def _match(value: Json, table: FieldTable, depth: int) -> Node:
    path, options = _field_options("match", value, "query", {"operator", "minimum_should_match", "analyzer"})
    return _field_match(path, options, table, _boost(options))


def _multi_match(value: Json, table: FieldTable, depth: int) -> Node:
    allowed = {"query", "fields", "type", "operator", "minimum_should_match", "boost", "tie_breaker", "analyzer"}
    options = _options("multi_match", value, allowed)
    kind = options.get("type", "best_fields")
    if kind not in ("best_fields", "most_fields"):
        raise _unknown("multi_match type", str(kind), ("best_fields", "most_fields"))
    names = options.get("fields")
    if not names or not isinstance(names, (list, tuple)):
        raise _malformed("multi_match needs 'fields', a list of field names such as title^2")
    children = tuple(_weighted_match(str(name), options, table) for name in names)
    tie = _number("tie_breaker", options, 1.0 if kind == "most_fields" else 0.0)
    return children[0] if len(children) == 1 and _boost(options) == 1.0 else DisMax(children, tie, _boost(options))


def _weighted_match(name: str, options: Mapping[str, Any], table: FieldTable) -> Node:
    path, _, weight = name.partition("^")
    if "*" in path:
        raise Unsupported(f"multi_match field {name!r} is a pattern; the embedded engine wants names", status=400)
    return _field_match(path, options, table, _boost({"boost": weight} if weight else {}))


def _field_match(path: str, options: Mapping[str, Any], table: FieldTable, boost: float) -> Node:
    if options.get("analyzer", "standard") != "standard":
        raise _unknown("analyzer", str(options["analyzer"]), ("standard",))
    text = options.get("query")
    if text is None or isinstance(text, (list, Mapping)):
        raise _malformed(f"match on {path!r} needs a text as 'query', not {text!r}")
    operator = str(options.get("operator", "or")).lower()
    if operator not in ("or", "and"):
        raise _unknown("operator", operator, ("or", "and"))
    leaf = table.searchable(path)
    if leaf is None or not (leaf.is_text or leaf.is_exact):
        return MatchNone()
    if leaf.is_exact:
        return _exact(leaf, [text], boost)
    words = standard_tokens(text if isinstance(text, str) else exact_value("keyword", text))
    if not words:
        return MatchNone()
    least = len(words) if operator == "and" else _minimum(options.get("minimum_should_match"), len(words), 1)
    return Words(path, tuple(Counter(words).items()), max(1, least), boost)


def _bool(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("bool", value, {"must", "should", "filter", "must_not", "minimum_should_match", "boost"})

    def clauses(name: str) -> tuple[Node, ...]:
        part = options.get(name, [])
        return tuple(parse_query(item, table, depth + 1) for item in (part if isinstance(part, list) else [part]))

    must, should, filters, never = (clauses(name) for name in ("must", "should", "filter", "must_not"))
    if not (must or should or filters or never):
        return MatchAll(_boost(options))
    default = 1 if should and not must and not filters else 0
    least = _minimum(options.get("minimum_should_match"), len(should), default)
    return Bool(must, should, filters, never, least, _boost(options))


def _ids(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("ids", value, {"values", "boost"})
    values = options.get("values", [])
    listed = [values] if isinstance(values, str) else _list("values of ids", values)
    return Ids(tuple(str(item) for item in listed), _boost(options))


def _term(value: Json, table: FieldTable, depth: int) -> Node:
    path, options = _field_options("term", value, "value", set())
    leaf = table.searchable(path)
    if leaf is not None and leaf.is_text:
        return Words(path, ((str(options.get("value")), 1),), 1, _boost(options))
    return MatchNone() if leaf is None or not leaf.is_exact else _exact(leaf, [options.get("value")], _boost(options))


def _terms(value: Json, table: FieldTable, depth: int) -> Node:
    if not isinstance(value, Mapping):
        raise _malformed(f"terms takes an object, not {value!r:.80}")
    path, values = _single({name: item for name, item in value.items() if name != "boost"}, "terms")
    if not isinstance(values, (list, tuple)):
        raise Unsupported(f"terms on {path!r} takes a list of values; a lookup is not supported", status=400)
    leaf = table.searchable(path)
    if leaf is None or not (leaf.is_text or leaf.is_exact):
        return MatchNone()
    return _exact(leaf, list(values), _boost(value))


def _exists(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("exists", value, {"field", "boost"})
    return Exists(str(options.get("field")), _boost(options))


def _exact(leaf: FieldType, values: list[Any], boost: float) -> Node:
    try:
        return Exact(leaf.path, tuple(dict.fromkeys(exact_value(leaf.type, value) for value in values)), boost)
    except (ValueError, TypeError):
        raise _malformed(f"field {leaf.path!r} of type {leaf.type} cannot be {values!r:.120}") from None


_CLAUSES: dict[str, Callable[[Any, FieldTable, int], Node]] = {
    "match": _match,
    "multi_match": _multi_match,
    "bool": _bool,
    "ids": _ids,
    "term": _term,
    "terms": _terms,
    "exists": _exists,
    "match_all": _match_all,
    "match_none": _match_none,
}


def _single(value: Json, what: str) -> tuple[str, Any]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise _malformed(f"{what} takes an object with exactly one name, not {value!r:.120}")
    ((name, inner),) = value.items()
    return str(name), inner


def _field_options(clause: str, value: Json, main: str, others: set[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the field of a clause and its options; a value alone is the option ``main``."""
    path, options = _single(value, clause)
    given = options if isinstance(options, Mapping) else {main: options}
    return path, _options(clause, given, {main, "boost", *others})


def _options(clause: str, value: Json, allowed: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(f"{clause} takes an object, not {value!r:.120}")
    for name in value:
        if name not in allowed:
            raise _unknown(f"option of {clause}", str(name), tuple(sorted(allowed)))
    return value


def _boost(options: Mapping[str, Any]) -> float:
    return _number("boost", options, 1.0)


def _number(name: str, options: Mapping[str, Any], default: float) -> float:
    try:
        number = float(options.get(name, default))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise _malformed(f"{name} is {options[name]!r:.80}; it is a number not below 0")
    return number


def _list(name: str, value: Json) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _malformed(f"{name} is {value!r:.80}; it is a list")
    return value


def _field_of(item: Json) -> str:
    if isinstance(item, Mapping) and "field" not in item:
        raise _malformed(f"fields names {item!r:.80}; an object there has the key 'field'")
    return str(item["field"] if isinstance(item, Mapping) else item)


def _count(name: str, value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _malformed(f"{name} is {value!r}; it is a whole number not below 0")
    return value


def _minimum(rule: Json, clauses: int, default: int) -> int:
    """Return how many clauses must match: 2, "-1", "75%", "-25%" or "2<75%"."""
    if rule is None:
        return default
    text = str(rule).strip()
    try:
        if "<" in text:
            bound, _, text = text.partition("<")
            if clauses <= int(bound):
                return clauses
        share = text.endswith("%")
        number = int(text.rstrip("%"))
    except ValueError:
        raise _unknown("minimum_should_match", str(rule), ("2", "-1", "75%", "-25%", "2<75%")) from None
    least = int(clauses * abs(number) / 100) * (1 if number >= 0 else -1) if share else number
    return max(0, least + clauses if number < 0 else least)


def _check_sort(sort: Json) -> None:
    if sort not in ("_score", ["_score"], [{"_score": "desc"}], [{"_score": {"order": "desc"}}]):
        raise Unsupported(f"sort is {sort!r:.120}; the embedded engine sorts by '_score' alone", status=400)


def _unknown(what: str, value: str, known: tuple[str, ...]) -> Unsupported:
    message = f"the embedded engine does not know the {what} {value!r}; it knows: {', '.join(known)}"
    return Unsupported(message, status=400, error_type="parsing_exception")


def _malformed(message: str) -> EngineRejected:
    return EngineRejected(message, status=400, error_type="parsing_exception")
