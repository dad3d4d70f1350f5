"""What embedded engines make of a document: the fields of its index's mapping, their values, and the words of texts.

A small, honest part of Elasticsearch's mappings: ``text`` (standard analysis), ``keyword``, numbers, ``boolean``,
``date`` (searchable by its exact spelling), ``binary`` (stored only), objects and multi-fields, with ``dynamic``
true, false or strict. Everything else is refused by name. Unlike Elasticsearch, dynamic mapping detects no dates.

Words are those of Lucene's `standard` analyzer (Unicode text segmentation, lower-cased). The rules kept of Unicode
Standard Annex 29: letters, digits, marks and underscores run together; an apostrophe, full stop, colon or middle dot
joins two letters, a full stop, comma, semicolon or apostrophe joins two digits; ideographs and hiragana stand alone;
katakana runs, and so do the scripts of South East Asia. Words longer than 255 characters are cut, as Lucene cuts them.
Not kept: Lucene makes words of emoji, and halves of a word at an apostrophe in Hebrew.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from reranker.engines.wire import Json
from reranker.errors import EngineRejected, Unsupported

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
    """Return ``old`` with the fields of ``new`` added; a field that is there keeps its definition.

    `EngineRejected`: a field given another type than it has.
    """
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
        return _number(kind, item)
    if isinstance(item, bool):
        return "true" if item else "false"
    if kind == "boolean":
        if item in ("true", "false", ""):
            return item or "false"
        raise ValueError(item)
    return item if isinstance(item, str) else repr(item)


def _number(kind: str, item: Json) -> str:
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

    def has(self, path: str) -> bool:
        """Return whether a field, or one inside it, has a value."""
        return any(name == path or name.startswith(f"{path}.") for name in (*self.texts, *self.exact))

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
    """The fields of one ``mappings`` object, flat.

    `Unsupported`: a type or parameter outside the part described above, named.
    """

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
        """Return what of a document is searchable.

        `DocumentRefusedError`: a value that does not fit its field, an unknown field under ``dynamic: strict``, too
        deep a document.
        """
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
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "long"}
    if isinstance(value, float):
        return {"type": "float"}
    return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


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


def _unsupported(what: str, legal: list[str]) -> Unsupported:
    return Unsupported(f"the embedded engine does not know {what}; it knows: {', '.join(legal)}", status=400)


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
    runs: list[list[int]] = []
    for point in range(min(sys.maxunicode, _LAST_ASSIGNED) + 1):
        if unicodedata.category(chr(point)) in categories:
            if runs and runs[-1][1] == point - 1:
                runs[-1][1] = point
            else:
                runs.append([point, point])
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in runs)
