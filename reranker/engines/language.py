"""The part of Elasticsearch that the embedded engines play: mappings, search bodies and the rules of writes. Pure.

Mappings: ``text`` (standard analysis), ``keyword``, numbers, ``boolean``, ``date`` (searchable by its exact spelling),
``binary`` (stored only), objects and multi-fields, with ``dynamic`` true, false or strict. No dates are detected.

Bodies: ``query``, ``from``, ``size``, ``_source``, ``fields``, ``docvalue_fields`` (of dates as ``epoch_millis``),
``track_total_hits`` and ``sort`` by ``_score``.
Queries: ``match``, ``multi_match`` (``best_fields``, ``most_fields``, boosts as ``title^2``), ``bool``, ``ids``,
``term``, ``terms``, ``exists``, ``match_all``, ``match_none``. They are parsed into a small frozen tree.

Everything else is refused by name, never ignored.

Words are those of Lucene's `standard` analyzer (Unicode text segmentation, lower-cased). The rules kept of Unicode
Standard Annex 29: letters, digits, marks and underscores run together; an apostrophe, full stop, colon or middle dot
joins two letters, a full stop, comma, semicolon or apostrophe joins two digits; ideographs and hiragana stand alone;
katakana runs, and so do the scripts of South East Asia. Words longer than 255 characters are cut, as Lucene cuts them.
Not kept: Lucene makes words of emoji, and halves of a word at an apostrophe in Hebrew.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import translate
from functools import cache, lru_cache
from typing import Any

import msgspec

from reranker.engines.protocol import MAX_HITS, WriteOp, WriteResult
from reranker.engines.wire import Json, json_bytes
from reranker.errors import EngineRejected, Unsupported
from reranker.text.analyzers import character_class

WHOLE_NUMBERS = {"long": 63, "integer": 31, "short": 15, "byte": 7}
"""Type → bits besides the sign."""
NUMBERS = frozenset({*WHOLE_NUMBERS, "double", "float", "half_float"})
TYPES = frozenset({"text", "keyword", "binary", "boolean", "date", "object"}) | NUMBERS
MAX_KEYWORD_BYTES = 32766
"""Longest term Lucene indexes."""
_HARMLESS = frozenset(
    {"type", "doc_values", "store", "meta", "eager_global_ordinals", "term_vector", "coerce", "format"}
)
_PARAMETERS = {
    "text": _HARMLESS | {"index", "fields", "analyzer", "search_analyzer"},
    "keyword": _HARMLESS | {"index", "fields", "ignore_above"},
    "object": frozenset({"type", "properties"}),
}
_TOP_LEVEL = frozenset({"properties", "dynamic", "_meta", "_source", "_routing", "date_detection", "numeric_detection"})


class DocumentRefusedError(Exception):
    """A document the mapping does not take: the reason and ``error_type`` of a write result with status 400."""

    def __init__(self, reason: str, error_type: str = "document_parsing_exception") -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_type = error_type


def property_type(definition: Mapping[str, Any]) -> str:
    """Return the type of a property; an object may leave it out."""
    return str(definition.get("type", "object"))


def merge_properties(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``old`` with new fields added, old ones kept; `EngineRejected` for one of another type than it has."""
    merged = dict(old)
    for name, added in new.items():
        known = merged.get(name)
        path = f"{prefix}{name}"
        if known is None:
            merged[name] = dict(added)
        elif "properties" in added and "properties" in known:
            inner = merge_properties(known["properties"], added["properties"], f"{path}.")
            merged[name] = {**known, "properties": inner}
        elif property_type(known) != property_type(added):
            message = (
                f"field {path!r} has type {property_type(known)!r} and cannot become {property_type(added)!r}: "
                "a field's type never changes; use another name or a new index"
            )
            raise EngineRejected(message, status=400, error_type="illegal_argument_exception")
    return merged


def nest_properties(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties by dotted path as nested ``properties`` objects."""
    nested: dict[str, Any] = {}
    for path, definition in flat.items():
        *parents, last = path.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {"properties": {}})["properties"]
        level[last] = definition
    return nested


def exact_value(kind: str, item: Json) -> str:
    """Return the one spelling by which equal values of a type are found; `ValueError` where the type takes it not."""
    if kind in NUMBERS:
        return _spelt_number(kind, item)
    if isinstance(item, bool):
        return "true" if item else "false"
    if kind == "boolean":
        if item in ("true", "false", ""):
            return item or "false"
        raise ValueError(item)
    return item if isinstance(item, str) else repr(item)


def _spelt_number(kind: str, item: Json) -> str:
    if isinstance(item, bool):
        raise ValueError(item)
    try:
        number = float(item)
    except OverflowError:
        raise ValueError(item) from None
    if not math.isfinite(number):
        raise ValueError(item)
    if kind not in WHOLE_NUMBERS:
        return repr(number)
    whole = item if isinstance(item, int) else int(number)
    if not -(2 ** WHOLE_NUMBERS[kind]) <= whole < 2 ** WHOLE_NUMBERS[kind]:
        raise ValueError(item)
    return str(whole)


@dataclass(frozen=True, slots=True)
class FieldType:
    """One leaf of a mapping; ``copies`` are the multi-fields that take the same values."""

    path: str
    type: str
    index: bool = True
    ignore_above: int | None = None
    copies: tuple[FieldType, ...] = ()

    @property
    def is_text(self) -> bool:
        """True for an analysed, searchable field."""
        return self.type == "text" and self.index

    @property
    def is_exact(self) -> bool:
        """True for a field searchable by whole values."""
        return self.type not in ("text", "binary", "object") and self.index


@dataclass(slots=True)
class Extracted:
    """The searchable part of a document: texts and exact values by field path, and the properties it adds."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    exact: dict[str, list[str]] = field(default_factory=dict)
    added: dict[str, Any] = field(default_factory=dict)

    def add(self, leaf: FieldType, item: Json) -> None:
        """Add a value of a field; `DocumentRefusedError` where it does not fit."""
        if leaf.type == "binary":
            if not isinstance(item, str):
                raise DocumentRefusedError(f"binary field {leaf.path!r} takes base64 text")
        elif leaf.is_text:
            self.texts.setdefault(leaf.path, []).append(item if isinstance(item, str) else exact_value("keyword", item))
        elif leaf.type != "text":
            text = _checked_value(leaf, item)
            if leaf.index and not (leaf.ignore_above is not None and len(text) > leaf.ignore_above):
                self.exact.setdefault(leaf.path, []).append(text)


class FieldTable:
    """The fields of one ``mappings`` object, flat; `Unsupported` for a type or parameter not described above."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        unknown = sorted(set(mapping) - _TOP_LEVEL)
        if unknown:
            raise _unsupported(f"mapping part {unknown[0]!r}", sorted(_TOP_LEVEL))
        if mapping.get("_source", {}).get("enabled", True) is not True:
            raise _unsupported("mapping part '_source.enabled: false'", ["_source.enabled: true"])
        self.dynamic = str(mapping.get("dynamic", True)).lower()
        if self.dynamic not in ("true", "false", "strict"):
            raise _unsupported(f"mapping value dynamic={self.dynamic!r}", ["true", "false", "strict"])
        self.routing_required = bool(mapping.get("_routing", {}).get("required", False))
        fields = list(_fields(mapping.get("properties", {}), ""))
        self.leaves = {leaf.path: leaf for leaf in fields if leaf.type != "object"}
        self.objects = {leaf.path for leaf in fields if leaf.type == "object"}

    def searchable(self, path: str) -> FieldType | None:
        """Return the field of this path, multi-fields included, or None where it is unmapped."""
        leaf = self.leaves.get(path)
        if leaf is None and "." in path:
            parent = self.leaves.get(path.rpartition(".")[0])
            leaf = next((copy for copy in parent.copies if copy.path == path), None) if parent else None
        return leaf

    def text_paths(self) -> list[str]:
        """Return the paths of all analysed fields, multi-fields included, in mapping order."""
        every = [field for leaf in self.leaves.values() for field in (leaf, *leaf.copies)]
        return [field.path for field in every if field.is_text]

    def extract(self, source: Mapping[str, Any], *, depth_limit: int = 20) -> Extracted:
        """Return what is searchable of a document; `DocumentRefusedError` if it misfits the mapping or is too deep."""
        extracted = Extracted()
        self._walk(source, "", extracted, depth_limit)
        return extracted

    def _walk(self, value: Mapping[str, Any], prefix: str, extracted: Extracted, depth_left: int) -> None:
        if depth_left <= 0:
            raise DocumentRefusedError(f"the document is nested too deep, at {prefix!r}")
        for name, child in value.items():
            path = f"{prefix}.{name}" if prefix else str(name)
            if not name or any(not part.strip() for part in path.split(".")):
                raise DocumentRefusedError(f"field name {path!r} has an empty part")
            for item in _items(child, depth_left):
                if not isinstance(item, Mapping):
                    self._add(path, item, extracted)
                elif path in self.leaves or path in extracted.added:
                    raise DocumentRefusedError(f"field {path!r} holds a value, so it cannot hold an object")
                else:
                    self._walk(item, path, extracted, depth_left - 1)

    def _add(self, path: str, item: Json, extracted: Extracted) -> None:
        if isinstance(item, float) and not math.isfinite(item):
            raise DocumentRefusedError(f"field {path!r} is {item!r}; JSON has no such number")
        if item is None:
            return
        if not isinstance(item, (str, bool, int, float)):
            raise DocumentRefusedError(f"field {path!r} holds a {type(item).__name__}: no JSON")
        leaf = self.leaves.get(path) or self._dynamic_leaf(path, item, extracted)
        for target in (leaf, *leaf.copies) if leaf is not None else ():
            extracted.add(target, item)

    def _dynamic_leaf(self, path: str, item: Json, extracted: Extracted) -> FieldType | None:
        if path in self.objects or any(name.startswith(f"{path}.") for name in (*extracted.added, *self.leaves)):
            raise DocumentRefusedError(f"object field {path!r} cannot hold {item!r:.80}")
        if self.dynamic == "strict":
            reason = f"the mapping is strict and has no field {path!r}"
            raise DocumentRefusedError(reason, "strict_dynamic_mapping_exception")
        if self.dynamic == "false":
            return None
        made = _dynamic_property(item)
        known = extracted.added.setdefault(path, made)
        if known != made:
            reason = f"new field {path!r} is {known['type']} and {made['type']} at once"
            raise DocumentRefusedError(reason, "illegal_argument_exception")
        return _leaf(made, path)


def _dynamic_property(value: Json) -> dict[str, Any]:
    """Return the property that dynamic mapping makes for a value: Elasticsearch's rules, without date detection."""
    kind = {bool: "boolean", int: "long", float: "float"}.get(type(value))
    return {"type": kind} if kind else {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def _fields(properties: Mapping[str, Any], prefix: str) -> Iterator[FieldType]:
    """Yield objects and leaves, each object before what lies in it."""
    for name, definition in properties.items():
        path = f"{prefix}{name}"
        if property_type(definition) == "object":
            _check_parameters(definition, path, "object")
            yield FieldType(path, "object")
            yield from _fields(definition.get("properties", {}), f"{path}.")
        else:
            yield _leaf(definition, path)


def _leaf(definition: Mapping[str, Any], path: str) -> FieldType:
    kind = property_type(definition)
    if kind not in TYPES or kind == "object":
        raise _unsupported(f"type {kind!r} of field {path!r}", sorted(TYPES))
    _check_parameters(definition, path, kind)
    copies = tuple(_leaf(copy, f"{path}.{name}") for name, copy in definition.get("fields", {}).items())
    return FieldType(path, kind, bool(definition.get("index", True)), definition.get("ignore_above"), copies)


def _check_parameters(definition: Mapping[str, Any], path: str, kind: str) -> None:
    allowed = _PARAMETERS.get(kind, _HARMLESS | {"index", "fields"})
    unknown = sorted(set(definition) - allowed)
    if unknown:
        raise _unsupported(f"mapping parameter {unknown[0]!r} of field {path!r}", sorted(allowed))
    for name in ("analyzer", "search_analyzer"):
        if definition.get(name, "standard") != "standard":
            raise _unsupported(f"{name} {definition[name]!r} of field {path!r}", ["standard"])


def _unsupported(what: str, known: Sequence[str], **data: str) -> Unsupported:
    message = f"the embedded engine does not know {what}; it knows: {', '.join(known)}"
    return Unsupported(message, status=400, **data)


def _items(value: Json, depth_left: int) -> Iterator[Any]:
    """Yield the values of a field: arrays of any nesting count as one flat list."""
    if isinstance(value, (list, tuple)):
        if depth_left <= 0:
            raise DocumentRefusedError("arrays are nested too deep")
        for item in value:
            yield from _items(item, depth_left - 1)
    else:
        yield value


def _checked_value(leaf: FieldType, item: Json) -> str:
    try:
        text = exact_value(leaf.type, item)
    except ValueError:
        reason = f"failed to parse field {leaf.path!r} of type [{leaf.type}]: {item!r:.80}"
        raise DocumentRefusedError(reason) from None
    too_long = leaf.ignore_above is None and len(text) > MAX_KEYWORD_BYTES // 4
    if too_long and len(text.encode("utf-8", "surrogatepass")) > MAX_KEYWORD_BYTES:
        raise DocumentRefusedError(f"keyword field {leaf.path!r} is longer than {MAX_KEYWORD_BYTES} bytes")
    return text


# --- words

MAX_WORD_CHARS = 255
"""Length at which Lucene's standard tokenizer cuts a word."""

_ASCII = re.compile(r"[0-9A-Za-z_]+(?:(?:(?<=[A-Za-z])[.:'](?=[A-Za-z])|(?<=[0-9])[.,;'](?=[0-9]))[0-9A-Za-z_]+)*")
_NOT_ASCII = re.compile(r"\S*[^\x00-\x7f]\S*")
_ALONE = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_MIDDLE_LETTER = ".:'\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
_MIDDLE_DIGIT = (
    ".,;'\u037e\u0589\u060c\u060d\u066c\u07f8\u2018\u2019\u2024\u2044"
    "\ufe10\ufe14\ufe50\ufe52\ufe54\uff07\uff0c\uff0e\uff1b"
)
_SOUTH_EAST_ASIAN = (
    "\u0e01-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u1950-\u19c9"
    "\u1a20-\u1a5e\uaa60-\uaadf"
)
_LAST_ASSIGNED = 0x1FFFF
"""Past the supplementary multilingual plane there are only ideographs and format characters."""


def standard_tokens(text: str) -> list[str]:
    """Return the lower-cased words of ``text``, in order, repeats kept."""
    # Underscores join words; alone they are none.
    words = [word for word in _runs(text.lower()) if word.strip("_")]
    if any(len(word) > MAX_WORD_CHARS for word in words):
        words = [word[i : i + MAX_WORD_CHARS] for word in words for i in range(0, len(word), MAX_WORD_CHARS)]
    return words


def _runs(text: str) -> list[str]:
    """Return the runs of word characters; the slow pattern only sees stretches that are not ASCII."""
    if text.isascii():
        return _ASCII.findall(text)
    runs: list[str] = []
    done = 0
    for stretch in _NOT_ASCII.finditer(text):
        runs += _ASCII.findall(text, done, stretch.start())
        runs += _unicode_pattern().findall(stretch.group())
        done = stretch.end()
    return runs + _ASCII.findall(text, done)


@cache
def _unicode_pattern() -> re.Pattern[str]:
    """Return the pattern for any text, made on first use: `re` knows no Unicode categories."""
    extend = _ranges({"Mn", "Mc", "Me", "Cf"})
    digit = _ranges({"Nd"})
    # Of the characters Python calls words, the other numbers (superscripts, circled digits) are no letters.
    one_letter = rf"[^\W\d_{_ALONE}{_KATAKANA}{_SOUTH_EAST_ASIAN}{_ranges({'No'})}]"
    letter = rf"{one_letter}[{extend}]*"
    number = rf"[{digit}][{extend}]*"
    kana = rf"[{_KATAKANA}][{extend}]*"
    unit = rf"(?:{letter}|{number}|_[{extend}]*)"
    before_letter, before_digit = rf"(?={one_letter})", rf"(?=[{digit}])"
    by_letters = rf"{letter}(?:[{_MIDDLE_LETTER}][{extend}]*{before_letter})?"
    by_digits = rf"{number}(?:[{_MIDDLE_DIGIT}][{extend}]*{before_digit})?"
    run = rf"(?:{by_letters}|{by_digits}|_[{extend}]*)"
    kana_run = rf"(?:{kana}|_[{extend}]*)*{kana}(?:{kana}|_[{extend}]*)*"
    asian = rf"[{_SOUTH_EAST_ASIAN}][{_SOUTH_EAST_ASIAN}{extend}]*"
    return re.compile(rf"{kana_run}|{asian}|[{_ALONE}][{extend}]*|{run}*{unit}")


def _ranges(categories: set[str]) -> str:
    """Return the inside of a character class that holds every character of these categories."""
    return character_class(p for p in range(_LAST_ASSIGNED + 1) if unicodedata.category(chr(p)) in categories)


# --- search bodies

BODY_KEYS = ("query", "from", "size", "_source", "fields", "docvalue_fields", "track_total_hits", "sort")
MAX_NESTING = 30
"""Deepest nesting of queries, as in both engines."""
_ABSENT = object()


class _Scored(msgspec.Struct, frozen=True, kw_only=True):
    boost: float = 1.0


class MatchAll(_Scored, frozen=True):
    """Every document, scored ``boost``."""


class MatchNone(msgspec.Struct, frozen=True):
    """No document."""


class Words(_Scored, frozen=True):
    """BM25 over one text field: (word, times in the query), of which ``minimum`` times must match."""

    field: str
    words: tuple[tuple[str, int], ...]
    minimum: int = 1


class Exact(_Scored, frozen=True):
    """Any of these whole values (of a text field: words), scored ``boost``."""

    field: str
    values: tuple[str, ...]


class Ids(_Scored, frozen=True):
    """These documents, scored ``boost``."""

    ids: tuple[str, ...]


class Exists(_Scored, frozen=True):
    """Documents with a value in a searchable field, scored ``boost``."""

    field: str


class DisMax(_Scored, frozen=True):
    """The best child's score plus ``tie`` times the others'."""

    children: tuple[Node, ...]
    tie: float = 0.0


class Bool(_Scored, frozen=True):
    """All of ``must`` and ``filter``, ``minimum`` of ``should``, none of ``must_not``; must and should are summed."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    filter: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()
    minimum: int = 0


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
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(translate(path.replace("[", "[[]").replace("?", "[?]")))


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == item or ("*" in item and _pattern(item).match(path) is not None) for item in patterns)


def values_at(value: Json, path: str) -> Iterator[Any]:
    """Yield all values under a dotted path, arrays flattened; a key that itself has dots is found too."""
    if isinstance(value, list):
        for item in value:
            yield from values_at(item, path)
    elif not path:
        if value is not None:
            yield value
    elif isinstance(value, Mapping):
        if path in value:
            yield from values_at(value[path], "")
        cut = path.find(".")
        while cut > 0:
            if path[:cut] in value:
                yield from values_at(value[path[:cut]], path[cut + 1 :])
            cut = path.find(".", cut + 1)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A parsed body. ``track_total`` is True, False or the number up to which hits are counted."""

    query: Node
    from_: int
    size: int
    source: Selection
    fields: tuple[str, ...]
    doc_values: tuple[tuple[str, str], ...]
    """Path and type of the fields whose doc values are wanted."""
    track_total: bool | int


def parse_body(body: Mapping[str, Any], table: FieldTable) -> SearchRequest:
    """Return the parsed body; `Unsupported` for a part outside of the subset, `EngineRejected` for a malformed one."""
    for key in body:
        if key not in BODY_KEYS:
            raise _unknown("body part", key, BODY_KEYS)
    sort = body.get("sort", "_score")
    if sort not in ("_score", ["_score"], [{"_score": "desc"}], [{"_score": {"order": "desc"}}]):
        raise Unsupported(f"sort is {sort!r:.120}; the embedded engine sorts by '_score' alone", status=400)
    from_, size = _count("from", body.get("from", 0)), _count("size", body.get("size", 10))
    if from_ + size > MAX_HITS:
        raise _malformed(f"from + size is {from_ + size}; the largest result window is {MAX_HITS}")
    track = body.get("track_total_hits", True)
    if not isinstance(track, (bool, int)):
        raise _malformed(f"track_total_hits is {track!r}; it takes true, false or a number")
    query = parse_query(body.get("query", {"match_all": {}}), table)
    source = Selection.parse(body.get("_source", True))
    fields = tuple(_field_of(item) for item in _list("fields", body.get("fields", ())))
    listed = (_doc_value_of(item, table) for item in _list("docvalue_fields", body.get("docvalue_fields", ())))
    return SearchRequest(query, from_, size, source, fields, tuple(pair for pair in listed if pair), track)


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
    return MatchAll(boost=_boost(_options("match_all", value, {"boost"})))


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
    boost = _boost(options)
    return children[0] if len(children) == 1 and boost == 1.0 else DisMax(children, tie, boost=boost)


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
    return Words(path, tuple(Counter(words).items()), max(1, least), boost=boost)


def _bool(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("bool", value, {"must", "should", "filter", "must_not", "minimum_should_match", "boost"})

    def clauses(name: str) -> tuple[Node, ...]:
        part = options.get(name, [])
        return tuple(parse_query(item, table, depth + 1) for item in (part if isinstance(part, list) else [part]))

    must, should, filters, never = (clauses(name) for name in ("must", "should", "filter", "must_not"))
    if not (must or should or filters or never):
        return MatchAll(boost=_boost(options))
    default = 1 if should and not must and not filters else 0
    least = _minimum(options.get("minimum_should_match"), len(should), default)
    return Bool(must, should, filters, never, least, boost=_boost(options))


def _ids(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("ids", value, {"values", "boost"})
    values = options.get("values", [])
    listed = [values] if isinstance(values, str) else _list("values of ids", values)
    return Ids(tuple(str(item) for item in listed), boost=_boost(options))


def _term(value: Json, table: FieldTable, depth: int) -> Node:
    path, options = _field_options("term", value, "value", set())
    leaf = table.searchable(path)
    if leaf is not None and leaf.is_text:
        return Words(path, ((str(options.get("value")), 1),), boost=_boost(options))
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
    return Exists(str(options.get("field")), boost=_boost(options))


def _exact(leaf: FieldType, values: list[Any], boost: float) -> Node:
    try:
        spelt = tuple(dict.fromkeys(exact_value(leaf.type, value) for value in values))
    except (ValueError, TypeError):
        raise _malformed(f"field {leaf.path!r} of type {leaf.type} cannot be {values!r:.120}") from None
    return Exact(leaf.path, spelt, boost=boost)


_CLAUSES: dict[str, Callable[[Any, FieldTable, int], Node]] = {
    "match": _match,
    "multi_match": _multi_match,
    "bool": _bool,
    "ids": _ids,
    "term": _term,
    "terms": _terms,
    "exists": _exists,
    "match_all": _match_all,
    "match_none": lambda value, table, depth: MatchNone(),
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


def _doc_value_of(item: Json, table: FieldTable) -> tuple[str, str] | None:
    """Return path and type of a field with doc values; None for one that is not mapped, as in the big engines."""
    path = _field_of(item)
    leaf = table.leaves.get(path)
    if leaf is None:
        return None
    if leaf.type in ("text", "binary"):
        raise _malformed(f"field {path!r} is of type {leaf.type!r}, which has no doc values; name a number or a date")
    wanted = item.get("format") if isinstance(item, Mapping) else None
    if leaf.type == "date" and wanted != "epoch_millis":
        raise _unsupported(f"docvalue_fields format {wanted!r} of the date {path!r}", ["epoch_millis"])
    return path, leaf.type


def doc_values(source: Mapping[str, Any], path: str, kind: str) -> list[Any]:
    """Return the doc values of a field of a document, ascending, as the big engines give them.

    Dates are texts of ms since 1970; a value not of the field's type, or a date not of ISO 8601, has none.
    """
    values: list[Any] = []
    for item in values_at(source, path):
        with suppress(ValueError):
            values.append(_doc_value(kind, item))
    return [str(value) for value in sorted(values)] if kind == "date" else sorted(values)


def _doc_value(kind: str, item: Json) -> Any:
    if kind == "date":
        return _milliseconds(item)
    text = exact_value(kind, item)
    if kind in NUMBERS:
        return int(text) if kind in WHOLE_NUMBERS else float(text)
    return text == "true" if kind == "boolean" else text


def _milliseconds(item: Json) -> int:
    if isinstance(item, int | float) or re.fullmatch(r"-?\d{5,}", item):
        return int(item)
    # A year, or a year and a month, is its first day.
    moment = datetime.fromisoformat(item + {4: "-01-01", 7: "-01"}.get(len(item), ""))
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


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


def _unknown(what: str, value: str, known: tuple[str, ...]) -> Unsupported:
    return _unsupported(f"the {what} {value!r}", known, error_type="parsing_exception")


def _malformed(message: str) -> EngineRejected:
    return EngineRejected(message, status=400, error_type="parsing_exception")


# --- writes

CONFLICT = "version_conflict_engine_exception"


@dataclass(frozen=True, slots=True)
class Stored:
    """The state of one id: its document, or (``source`` None) the trace of a deleted one."""

    id: str
    source: Mapping[str, Any] | None
    seq_no: int
    version: int
    routing: str | None = None
    primary_term: int = 1


def apply_write(op: WriteOp, current: Stored | None, seq_no: int) -> tuple[Stored | None, WriteResult]:
    """Return the new state of the id (None: unchanged), ``seq_no`` its number, and the result of a write."""
    alive = current if current is not None and current.source is not None else None
    conflict = _conflict(op, current, alive)
    if conflict:
        return None, WriteResult(op.id, 409, CONFLICT, f"[{op.id}]: version conflict, {conflict}")
    version = op.version if op.version is not None else (current.version + 1 if current else 1)
    if op.action == "delete":
        if alive is None:
            trace = Stored(op.id, None, seq_no, version) if op.version is not None else None
            return trace, WriteResult(op.id, 404, "", "not_found", seq_no, 1)
        return Stored(op.id, None, seq_no, version), WriteResult(op.id, 200, "", "", seq_no, 1)
    if op.action == "update":
        return _update(op, alive, seq_no)
    state = Stored(op.id, dict(op.source or {}), seq_no, version, op.routing)
    return state, WriteResult(op.id, 201 if alive is None else 200, "", "", seq_no, 1)


def _conflict(op: WriteOp, current: Stored | None, alive: Stored | None) -> str:
    """Return why the write conflicts, or an empty string."""
    if op.if_seq_no is not None and not (op.action == "update" and alive is None):
        if alive is None:
            return f"required seqNo [{op.if_seq_no}], but no document was found"
        if (alive.seq_no, alive.primary_term) != (op.if_seq_no, op.if_primary_term):
            return f"required seqNo [{op.if_seq_no}], current document has seqNo [{alive.seq_no}]"
    if op.version is not None and current is not None and current.version >= op.version:
        return f"current version [{current.version}] is higher or equal to the one provided [{op.version}]"
    if op.action == "create" and alive is not None:
        return f"document already exists (current version [{alive.version}])"
    return ""


def _update(op: WriteOp, alive: Stored | None, seq_no: int) -> tuple[Stored | None, WriteResult]:
    if alive is None or alive.source is None:
        return None, WriteResult(op.id, 404, "document_missing_exception", f"[{op.id}]: document missing")
    merged = merge_documents(alive.source, op.source or {})
    # As JSON texts: Python holds 1, 1.0 and True for equal, an engine does not.
    if json_bytes(merged) == json_bytes(alive.source):
        return None, WriteResult(op.id, 200, "", "", alive.seq_no, 1)
    state = replace(alive, source=merged, seq_no=seq_no, version=alive.version + 1)
    return state, WriteResult(op.id, 200, "", "", seq_no, 1)


def merge_documents(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``old`` with ``new`` merged in: objects deeply, everything else replaced."""
    merged = dict(old)
    for name, value in new.items():
        known = merged.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[name] = merge_documents(known, value) if both else value  # type: ignore[arg-type]
    return merged
