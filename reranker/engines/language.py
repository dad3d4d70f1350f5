"""The subset of Elasticsearch that the embedded engine supports: mappings, search bodies and rules of writes. Pure.

Mappings: ``text`` (standard analyzer), ``keyword``, numbers, ``boolean``, ``date`` (searchable by its exact spelling),
``binary`` (stored only), ``rank_features`` (words with weights), objects and multi-fields, with ``dynamic`` true, false
or strict. There is no date detection.

Bodies: ``query``, ``from``, ``size``, ``_source``, ``fields``, ``docvalue_fields`` (dates as ``epoch_millis``),
``track_total_hits`` and ``sort`` by ``_score``.

Queries: ``match``, ``multi_match`` (``best_fields``, ``most_fields``, boosts as ``title^2``), ``bool``, ``ids``,
``term``, ``terms``, ``exists``, ``match_all``, ``match_none``, ``rank_feature`` (``linear``, of a word in a field
``rank_features``). They are parsed into a small immutable tree.

Everything else is refused by name; nothing is ignored silently.

Texts are split as by Lucene's `standard` analyzer (Unicode text segmentation, lower case). These rules of Unicode
Standard Annex 29 are implemented: letters, digits, marks and underscores form words; an apostrophe, full stop, colon or
middle dot between two letters joins them; a full stop, comma, semicolon or apostrophe between two digits joins them;
every ideograph and hiragana is a word of its own; katakana form words, and so do the scripts of South East Asia. Words
longer than 255 characters are split, as in Lucene. Not implemented: Lucene treats emoji as words, and splits Hebrew
words at an apostrophe.
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
"""Type → number of bits without the sign."""
NUMBERS = frozenset({*WHOLE_NUMBERS, "double", "float", "half_float"})
WEIGHTED_WORDS = "rank_features"
TYPES = frozenset({"text", "keyword", "binary", "boolean", "date", "object", WEIGHTED_WORDS}) | NUMBERS
METADATA_FIELDS = frozenset(
    {"_field_names", "_id", "_ignored", "_index", "_nested_path", "_routing", "_seq_no", "_source", "_version"}
)
"""Names that the engines keep for themselves at the top level of a document."""
MAX_KEYWORD_BYTES = 32766
"""Size of the longest term that Lucene indexes."""
MAX_WEIGHTED_WORD_BYTES = 32_000
"""Size of the longest word with a weight. tantivy drops terms of more than 65,530 bytes, and escapes may double it."""
LEAST_WEIGHT, LARGEST_WEIGHT = 2.0**-126, 2.0**128 - 2.0**104
"""Bounds of the normal 32-bit numbers, which are the weights that the real engines accept."""
_HARMLESS = frozenset(
    {"type", "doc_values", "store", "meta", "eager_global_ordinals", "term_vector", "coerce", "format"}
)
_PARAMETERS = {
    "text": _HARMLESS | {"index", "fields", "analyzer", "search_analyzer"},
    "keyword": _HARMLESS | {"index", "fields", "ignore_above"},
    "object": frozenset({"type", "properties"}),
    WEIGHTED_WORDS: frozenset({"type", "meta"}),
}
_TOP_LEVEL = frozenset({"properties", "dynamic", "_meta", "_source", "_routing", "date_detection", "numeric_detection"})


class DocumentRefusedError(Exception):
    """A document that does not fit the mapping: reason and ``error_type`` of a write result with status 400."""

    def __init__(self, reason: str, error_type: str = "document_parsing_exception") -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_type = error_type


def property_type(definition: Mapping[str, Any]) -> str:
    """Return the type of a property, by default ``object``."""
    return str(definition.get("type", "object"))


def mapped_leaves(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (path, definition) of the fields of a mapping, except fields of nested objects.

    A nested object has its own values, which do not belong to the document as a whole.
    """
    for name, definition in properties.items():
        path = f"{prefix}{name}"
        if definition.get("type") == "nested":
            continue
        if "properties" in definition:
            yield from mapped_leaves(definition["properties"], f"{path}.")
        else:
            yield path, definition


def merge_properties(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``old`` with the fields of ``new`` added. `EngineRejected` if a field would change its type."""
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
    """Return properties given by dotted path as nested ``properties`` objects."""
    nested: dict[str, Any] = {}
    for path, definition in flat.items():
        *parents, last = path.split(".")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {"properties": {}})["properties"]
        level[last] = definition
    return nested


def exact_value(kind: str, item: Json) -> str:
    """Return the canonical text of a value, so that equal values compare equal.

    Raises `ValueError` if the type does not accept the value.
    """
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
    """One leaf field of a mapping."""

    path: str
    type: str
    index: bool = True
    ignore_above: int | None = None
    """Largest number of characters of an indexed value."""
    copies: tuple[FieldType, ...] = ()
    """Its multi-fields, which index the same values."""

    @property
    def is_text(self) -> bool:
        """Whether the field is analysed and searchable."""
        return self.type == "text" and self.index

    @property
    def is_exact(self) -> bool:
        """Whether the field is searchable by whole values."""
        return self.type not in ("text", "binary", "object", WEIGHTED_WORDS) and self.index


@dataclass(slots=True)
class Extracted:
    """The searchable part of a document."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """Path of an analysed field → its texts."""
    exact: dict[str, list[str]] = field(default_factory=dict)
    """Path of any other field → its canonical values (`exact_value`)."""
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    """Path of a field of weighted words → word → weight."""
    added: dict[str, Any] = field(default_factory=dict)
    """Dotted path → property that dynamic mapping adds for this document."""

    def add(self, leaf: FieldType, item: Json) -> None:
        """Add a value of a field. `DocumentRefusedError` if the field does not accept it."""
        if leaf.type == "binary":
            if not isinstance(item, str):
                raise DocumentRefusedError(f"binary field {leaf.path!r} accepts only base64 text")
        elif leaf.is_text:
            self.texts.setdefault(leaf.path, []).append(item if isinstance(item, str) else exact_value("keyword", item))
        elif leaf.type != "text":
            text = _checked_value(leaf, item)
            if leaf.index and not (leaf.ignore_above is not None and len(text) > leaf.ignore_above):
                self.exact.setdefault(leaf.path, []).append(text)

    def add_weights(self, path: str, items: Iterator[Any]) -> None:
        """Add the maps of a field of weighted words. `DocumentRefusedError` for anything else, or a word twice."""
        weights = self.weights.setdefault(path, {})
        for words in items:
            if not isinstance(words, Mapping):
                raise DocumentRefusedError(
                    f"field {path!r} of type [{WEIGHTED_WORDS}] holds {words!r:.80}: give a map of words to weights, "
                    "or a list of one map"
                )
            for word, weight in words.items():
                if word in weights:
                    raise DocumentRefusedError(f"field {path!r} has two weights of the word {word!r:.80}: give one")
                # As in the real engines, a word whose weight is null is a word that the document does not have.
                if weight is not None:
                    weights[word] = _checked_weight(path, word, weight)


class FieldTable:
    """The fields of a ``mappings`` object by path. `Unsupported` for types or parameters outside of the subset."""

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
        """Return the field or multi-field with this path, or None if it is not mapped."""
        leaf = self.leaves.get(path)
        if leaf is None and "." in path:
            parent = self.leaves.get(path.rpartition(".")[0])
            leaf = next((copy for copy in parent.copies if copy.path == path), None) if parent else None
        return leaf

    def word_paths(self) -> list[str]:
        """Return the paths of all fields indexed by words, in mapping order: analysed ones, and weighted words."""
        every = [field for leaf in self.leaves.values() for field in (leaf, *leaf.copies)]
        return [field.path for field in every if field.is_text or field.type == WEIGHTED_WORDS]

    def weighted_words_at(self, path: str) -> str | None:
        """Return the path of a field of weighted words that is at ``path`` or in the object there; None without one."""
        weighted = (leaf.path for leaf in self.leaves.values() if leaf.type == WEIGHTED_WORDS)
        return next((name for name in weighted if name == path or name.startswith(f"{path}.")), None)

    def extract(self, source: Mapping[str, Any], *, depth_limit: int = 20) -> Extracted:
        """Return the searchable part of a document. `DocumentRefusedError` if it does not fit or is nested too deep."""
        if reserved := sorted(METADATA_FIELDS.intersection(source)):
            raise DocumentRefusedError(
                f"Field [{reserved[0]}] is a metadata field and cannot be added inside a document. Use another name"
            )
        extracted = Extracted()
        self._walk(source, "", extracted, depth_limit)
        return extracted

    def _walk(self, value: Mapping[str, Any], prefix: str, extracted: Extracted, depth_left: int) -> None:
        if depth_left <= 0:
            raise DocumentRefusedError(f"the document is nested too deeply, at {prefix!r}")
        for name, child in value.items():
            path = f"{prefix}.{name}" if prefix else str(name)
            if not name or any(not part.strip() for part in path.split(".")):
                raise DocumentRefusedError(f"field name {path!r} has an empty part")
            if path in self.leaves and self.leaves[path].type == WEIGHTED_WORDS:
                extracted.add_weights(path, _items(child, depth_left))
                continue
            for item in _items(child, depth_left):
                if not isinstance(item, Mapping):
                    self._add(path, item, extracted)
                elif path in self.leaves or path in extracted.added:
                    raise DocumentRefusedError(f"field {path!r} holds a value, so it cannot hold an object")
                else:
                    self._walk(item, path, extracted, depth_left - 1)

    def _add(self, path: str, item: Json, extracted: Extracted) -> None:
        if isinstance(item, float) and not math.isfinite(item):
            raise DocumentRefusedError(f"field {path!r} is {item!r}, which JSON cannot represent")
        if item is None:
            return
        if not isinstance(item, (str, bool, int, float)):
            raise DocumentRefusedError(f"field {path!r} holds a {type(item).__name__}, which is not a JSON value")
        leaf = self.leaves.get(path) or self._dynamic_leaf(path, item, extracted)
        for target in (leaf, *leaf.copies) if leaf is not None else ():
            extracted.add(target, item)

    def _dynamic_leaf(self, path: str, item: Json, extracted: Extracted) -> FieldType | None:
        if path in self.objects or any(name.startswith(f"{path}.") for name in (*extracted.added, *self.leaves)):
            raise DocumentRefusedError(f"object field {path!r} cannot hold {item!r:.80}")
        if value := next((parent for parent in _parents(path) if parent in self.leaves), None):
            raise DocumentRefusedError(f"field {value!r} holds a value, so it cannot hold the field {path!r}")
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


def _parents(path: str) -> Iterator[str]:
    """Yield the paths of the objects that a field is in."""
    cut = path.find(".")
    while cut > 0:
        yield path[:cut]
        cut = path.find(".", cut + 1)


def _dynamic_property(value: Json) -> dict[str, Any]:
    """Return the property that dynamic mapping creates for a value, by Elasticsearch's rules without date detection."""
    kind = {bool: "boolean", int: "long", float: "float"}.get(type(value))
    return {"type": kind} if kind else {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def _fields(properties: Mapping[str, Any], prefix: str) -> Iterator[FieldType]:
    """Yield objects and leaf fields, each object before its children."""
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
    for copy in copies:
        if copy.type == WEIGHTED_WORDS:
            raise _unsupported(f"type {copy.type!r} of the multi-field {copy.path!r}", sorted(TYPES - {copy.type}))
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
    message = f"the embedded engine does not support {what}; supported: {', '.join(known)}"
    return Unsupported(message, status=400, **data)


def _items(value: Json, depth_left: int) -> Iterator[Any]:
    """Yield the values of a field; nested arrays are flattened."""
    if isinstance(value, (list, tuple)):
        if depth_left <= 0:
            raise DocumentRefusedError("arrays are nested too deeply")
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


def _checked_weight(path: str, word: str, weight: Json) -> float:
    if not word or (len(word) > MAX_WEIGHTED_WORD_BYTES // 4 and len(word.encode()) > MAX_WEIGHTED_WORD_BYTES):
        raise DocumentRefusedError(
            f"field {path!r} of type [{WEIGHTED_WORDS}] has the word {word!r:.40}: a word must have 1 to "
            f"{MAX_WEIGHTED_WORD_BYTES:,} bytes of UTF-8; leave it out"
        )
    try:
        number = math.nan if isinstance(weight, bool) else float(weight)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not LEAST_WEIGHT <= number <= LARGEST_WEIGHT:
        raise DocumentRefusedError(
            f"field {path!r} of type [{WEIGHTED_WORDS}] has the weight {weight!r:.80} for the word {word!r:.80}: a "
            f"weight must be finite and above 0 ({LEAST_WEIGHT:.2e} to {LARGEST_WEIGHT:.2e}); leave other words out"
        )
    return number


# --- words

MAX_WORD_CHARS = 255
"""Length, in characters, at which Lucene's standard tokenizer splits a word."""

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
"""Code points above are only ideographs and format characters."""


def standard_tokens(text: str) -> list[str]:
    """Return the lower-cased words of ``text`` in order, including repeated ones."""
    # An underscore joins words, but is not a word by itself.
    words = [word for word in _runs(text.lower()) if word.strip("_")]
    if any(len(word) > MAX_WORD_CHARS for word in words):
        words = [word[i : i + MAX_WORD_CHARS] for word in words for i in range(0, len(word), MAX_WORD_CHARS)]
    return words


def _runs(text: str) -> list[str]:
    """Return the runs of word characters. The slow Unicode pattern is applied only to parts that are not ASCII."""
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
    """Return the pattern for any text. It is built on first use, because `re` has no Unicode categories."""
    extend = _ranges({"Mn", "Mc", "Me", "Cf"})
    digit = _ranges({"Nd"})
    # Some characters that Python's \w matches are not letters: other numbers (superscripts, circled digits).
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
    """Return the inside of a character class with every character of these categories."""
    return character_class(p for p in range(_LAST_ASSIGNED + 1) if unicodedata.category(chr(p)) in categories)


# --- search bodies

BODY_KEYS = ("query", "from", "size", "_source", "fields", "docvalue_fields", "track_total_hits", "sort")
MAX_NESTING = 30
"""Deepest nesting of queries, as in the real engines."""
_ABSENT = object()
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""No stored word has one, and tantivy does not accept it."""


class _Scored(msgspec.Struct, frozen=True, kw_only=True):
    boost: float = 1.0


class MatchAll(_Scored, frozen=True):
    """Matches every document, scored ``boost``."""


class MatchNone(msgspec.Struct, frozen=True):
    """Matches no document."""


class Words(_Scored, frozen=True):
    """BM25 over one text field."""

    field: str
    words: tuple[tuple[str, int], ...]
    """(word, number of occurrences in the query)."""
    minimum: int = 1
    """Number of the query's occurrences that must match."""


class Exact(_Scored, frozen=True):
    """Matches documents with any of these whole values (in a text field: words), scored ``boost``."""

    field: str
    values: tuple[str, ...]


class Ids(_Scored, frozen=True):
    """Matches the documents with these ids, scored ``boost``."""

    ids: tuple[str, ...]


class Exists(_Scored, frozen=True):
    """Matches documents with a value in a searchable field, scored ``boost``."""

    field: str


class Weight(_Scored, frozen=True):
    """Matches documents with a weight of a word in a field of weighted words, scored ``boost`` times the weight."""

    field: str
    word: str


class DisMax(_Scored, frozen=True):
    """Scores the best child plus ``tie`` times the others."""

    children: tuple[Node, ...]
    tie: float = 0.0


class Bool(_Scored, frozen=True):
    """Boolean combination; the scores of ``must`` and ``should`` are added."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    filter: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()
    minimum: int = 0
    """Number of ``should`` clauses that must match."""


Node = MatchAll | MatchNone | Words | Exact | Ids | Exists | Weight | DisMax | Bool


@dataclass(frozen=True, slots=True)
class Selection:
    """A parsed ``_source`` option."""

    includes: tuple[str, ...] = ()
    """Patterns of paths to keep; empty keeps all."""
    excludes: tuple[str, ...] = ()
    """Patterns of paths to drop."""
    nothing: bool = False
    """Whether the option is ``_source: false``."""

    @classmethod
    def parse(cls, option: Json) -> Selection:
        """Parse a ``_source`` option: a boolean, a pattern, a list of patterns, or includes and excludes."""
        if option is None or isinstance(option, bool):
            return cls(nothing=option is False)
        if isinstance(option, Mapping) and set(option) <= {"include", "includes", "exclude", "excludes"}:
            includes = option.get("includes", option.get("include", ()))
            excludes = option.get("excludes", option.get("exclude", ()))
            return cls(includes=_patterns(includes), excludes=_patterns(excludes))
        if isinstance(option, Sequence):
            return cls(includes=_patterns(option))
        raise EngineRejected(f"_source is {option!r}; it must be true, false, field paths, or includes and excludes")

    def apply(self, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the selected part of a source; the source itself if everything is selected."""
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
        raise EngineRejected(f"_source contains {values!r}; field paths must be strings")
    return values


@lru_cache(maxsize=1024)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(translate(path.replace("[", "[[]").replace("?", "[?]")))


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(path == item or ("*" in item and _pattern(item).match(path) is not None) for item in patterns)


def values_at(value: Json, path: str) -> Iterator[Any]:
    """Yield all values at a dotted path, arrays flattened. Keys that contain dots themselves are found too."""
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
class ParsedSearch:
    """A parsed search body."""

    query: Node
    from_: int
    size: int
    source: Selection
    fields: tuple[str, ...]
    doc_values: tuple[tuple[str, str], ...]
    """(path, type) of the fields in ``docvalue_fields``."""
    track_total: bool | int
    """True, False, or the number up to which hits are counted exactly."""


def parse_body(body: Mapping[str, Any], table: FieldTable) -> ParsedSearch:
    """Parse a body. `Unsupported` for parts outside of the subset, `EngineRejected` for malformed ones."""
    for key in body:
        if key not in BODY_KEYS:
            raise _unknown("body part", key, BODY_KEYS)
    sort = body.get("sort", "_score")
    if sort not in ("_score", ["_score"], [{"_score": "desc"}], [{"_score": {"order": "desc"}}]):
        raise Unsupported(f"sort is {sort!r:.120}; the embedded engine only sorts by '_score'", status=400)
    from_, size = _count("from", body.get("from", 0)), _count("size", body.get("size", 10))
    if from_ + size > MAX_HITS:
        raise _malformed(f"from + size is {from_ + size}; the largest result window is {MAX_HITS}")
    track = body.get("track_total_hits", True)
    if not isinstance(track, (bool, int)):
        raise _malformed(f"track_total_hits is {track!r}; it must be true, false or a number")
    query = parse_query(body.get("query", {"match_all": {}}), table)
    source = Selection.parse(body.get("_source", True))
    fields = tuple(_field_of(item) for item in _list("fields", body.get("fields", ())))
    listed = (_doc_value_of(item, table) for item in _list("docvalue_fields", body.get("docvalue_fields", ())))
    return ParsedSearch(query, from_, size, source, fields, tuple(pair for pair in listed if pair), track)


def parse_query(query: Json, table: FieldTable, depth: int = 0) -> Node:
    """Parse one query clause into a tree; raises the errors of `parse_body`."""
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
        raise Unsupported(f"multi_match field {name!r} is a pattern; the embedded engine needs field names", status=400)
    return _field_match(path, options, table, _boost({"boost": weight} if weight else {}))


def _field_match(path: str, options: Mapping[str, Any], table: FieldTable, boost: float) -> Node:
    if options.get("analyzer", "standard") != "standard":
        raise _unknown("analyzer", str(options["analyzer"]), ("standard",))
    text = options.get("query")
    if text is None or isinstance(text, (list, Mapping)):
        raise _malformed(f"match on {path!r} needs a text as 'query'; it is {text!r}")
    operator = str(options.get("operator", "or")).lower()
    if operator not in ("or", "and"):
        raise _unknown("operator", operator, ("or", "and"))
    leaf = _leaf_of("match", path, table)
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
    leaf = _leaf_of("term", path, table)
    if leaf is not None and leaf.is_text:
        return Words(path, ((str(options.get("value")), 1),), boost=_boost(options))
    return MatchNone() if leaf is None or not leaf.is_exact else _exact(leaf, [options.get("value")], _boost(options))


def _terms(value: Json, table: FieldTable, depth: int) -> Node:
    if not isinstance(value, Mapping):
        raise _malformed(f"terms is {value!r:.80}; it must be an object")
    path, values = _single({name: item for name, item in value.items() if name != "boost"}, "terms")
    if not isinstance(values, (list, tuple)):
        raise Unsupported(f"terms on {path!r} needs a list of values; a lookup is not supported", status=400)
    leaf = _leaf_of("terms", path, table)
    if leaf is None or not (leaf.is_text or leaf.is_exact):
        return MatchNone()
    return _exact(leaf, list(values), _boost(value))


def _exists(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("exists", value, {"field", "boost"})
    path = str(options.get("field"))
    if weighted := table.weighted_words_at(path):
        raise _unsupported(f"exists on field {weighted!r} of type {WEIGHTED_WORDS}", ["rank_feature"])
    return Exists(path, boost=_boost(options))


def _rank_feature(value: Json, table: FieldTable, depth: int) -> Node:
    options = _options("rank_feature", value, {"field", "boost", "linear"})
    name = options.get("field")
    if not isinstance(name, str):
        raise _malformed(f"rank_feature has the field {name!r:.80}; it must be FIELD.WORD")
    if "linear" not in options:
        raise _unsupported("rank_feature without a function, which means saturation", ["linear: {}"])
    _options("linear", options["linear"], set())
    boost = _boost(options)
    mapped = table.searchable(name)
    if mapped is not None:
        raise _malformed(
            f"rank_feature on {name!r} of type {mapped.type} names no word of a field of type {WEIGHTED_WORDS}; the "
            "field of the clause must be FIELD.WORD"
        )
    # Split at the last dot, as in the real engines: a word with a dot is not found.
    path, _, word = name.rpartition(".")
    leaf = table.leaves.get(path)
    if leaf is None or leaf.type != WEIGHTED_WORDS or _LONE_SURROGATE.search(word):
        return MatchNone()
    return Weight(path, word, boost=boost)


def _leaf_of(clause: str, path: str, table: FieldTable) -> FieldType | None:
    """Return the field of a clause. `Unsupported` if it has words with weights, which only ``rank_feature`` reads."""
    leaf = table.searchable(path)
    if leaf is not None and leaf.type == WEIGHTED_WORDS:
        raise _unsupported(f"{clause} on field {path!r} of type {WEIGHTED_WORDS}", ["rank_feature"])
    return leaf


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
    "rank_feature": _rank_feature,
    "match_all": _match_all,
    "match_none": lambda value, table, depth: MatchNone(),
}


def _single(value: Json, what: str) -> tuple[str, Any]:
    if not isinstance(value, Mapping) or len(value) != 1:
        raise _malformed(f"{what} is {value!r:.120}; it must be an object with exactly one name")
    ((name, inner),) = value.items()
    return str(name), inner


def _field_options(clause: str, value: Json, main: str, others: set[str]) -> tuple[str, Mapping[str, Any]]:
    """Return the field of a clause and its options; a plain value is the option ``main``."""
    path, options = _single(value, clause)
    given = options if isinstance(options, Mapping) else {main: options}
    return path, _options(clause, given, {main, "boost", *others})


def _options(clause: str, value: Json, allowed: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(f"{clause} is {value!r:.120}; it must be an object")
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
        raise _malformed(f"{name} is {options[name]!r:.80}; it must be a number, 0 or more")
    return number


def _list(name: str, value: Json) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _malformed(f"{name} is {value!r:.80}; it must be a list")
    return value


def _field_of(item: Json) -> str:
    if isinstance(item, Mapping) and "field" not in item:
        raise _malformed(f"fields contains {item!r:.80}; an object there needs the key 'field'")
    return str(item["field"] if isinstance(item, Mapping) else item)


def _doc_value_of(item: Json, table: FieldTable) -> tuple[str, str] | None:
    """Return (path, type) of a field with doc values; None if it is not mapped, as in the real engines."""
    path = _field_of(item)
    leaf = table.leaves.get(path)
    if leaf is None:
        return None
    if leaf.type in ("text", "binary", WEIGHTED_WORDS):
        raise _malformed(f"field {path!r} has type {leaf.type!r}, which has no doc values; name a number or a date")
    wanted = item.get("format") if isinstance(item, Mapping) else None
    if leaf.type == "date" and wanted != "epoch_millis":
        raise _unsupported(f"docvalue_fields format {wanted!r} of the date {path!r}", ["epoch_millis"])
    return path, leaf.type


def doc_values(source: Mapping[str, Any], path: str, kind: str) -> list[Any]:
    """Return the doc values of a field of a document in ascending order, in the format of the real engines.

    Dates are texts of milliseconds since 1970. A value of another type, or a date that is not in ISO 8601, is omitted.
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
    # A year, or a year and a month, stands for its first day.
    moment = datetime.fromisoformat(item + {4: "-01-01", 7: "-01"}.get(len(item), ""))
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _count(name: str, value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _malformed(f"{name} is {value!r}; it must be an integer, 0 or more")
    return value


def _minimum(rule: Json, clauses: int, default: int) -> int:
    """Return how many clauses must match for a rule such as 2, "-1", "75%", "-25%" or "2<75%"."""
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
    """The stored state of one document id."""

    id: str
    source: Mapping[str, Any] | None
    """The document; None for the tombstone of a deleted one."""
    seq_no: int
    version: int
    routing: str | None = None
    primary_term: int = 1


def apply_write(op: WriteOp, current: Stored | None, seq_no: int) -> tuple[Stored | None, WriteResult]:
    """Apply a write to the state of its id; return (new state, or None if unchanged; result).

    ``seq_no`` is the sequence number of the write.
    """
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
    # Compared as JSON texts, because Python treats 1, 1.0 and True as equal and an engine does not.
    if json_bytes(merged) == json_bytes(alive.source):
        return None, WriteResult(op.id, 200, "", "", alive.seq_no, 1)
    state = replace(alive, source=merged, seq_no=seq_no, version=alive.version + 1)
    return state, WriteResult(op.id, 200, "", "", seq_no, 1)


def merge_documents(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``old`` with ``new`` merged in: objects recursively, all other values replaced."""
    merged = dict(old)
    for name, value in new.items():
        known = merged.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[name] = merge_documents(known, value) if both else value  # type: ignore[arg-type]
    return merged
