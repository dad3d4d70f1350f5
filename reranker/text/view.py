"""The text view: the fields of a document that the model reads, their weights, and their text without HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from hashlib import blake2b
from html import unescape
from typing import Any

import numpy as np

from reranker.arrays import Float32
from reranker.errors import ConfigError, InputError

_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]*)")
_QUOTE_OR_END = re.compile(r"[\"'>]")
_DROPPED = frozenset({"script", "style", "template", "noscript"})
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd mark nobr q s samp small span strike strong "
    "sub sup time tt u var wbr".split()
)


def strip_html(text: str) -> str:
    """Return the text of an HTML fragment; a text without ``<`` and ``&`` is returned unchanged.

    Tags, comments and declarations are removed, and so is the content of script, style, template and noscript. An
    inline tag (``b``, ``span``) joins the text on both sides; any other tag is replaced by a line break. Entities are
    decoded once. A ``<`` that opens no tag, comment or declaration stays as text, and so does a tag that is never
    closed. An unclosed comment, script or style hides the rest, as in a browser.
    """
    if "<" not in text:
        return unescape(text)
    parts: list[str] = []
    position, closed = 0, text.rfind(">")
    while (start := text.find("<", position)) >= 0:
        parts.append(text[position:start])
        end, replacement = _markup_at(text, start, closed)
        parts.append(replacement)
        position = end
    parts.append(text[position:])
    return unescape("".join(parts))


def _markup_at(text: str, start: int, closed: int) -> tuple[int, str]:
    """Return the end of the markup at ``start`` and its replacement; ``closed`` is the position of the last ``>``."""
    if text.startswith("<!--", start):
        end = text.find("-->", start + 4)
        return (end + 3, "\n") if end >= 0 else (len(text), "\n")
    tag = _TAG.match(text, start)
    if tag is None:
        declaration = text[start + 1 : start + 2] in ("!", "?") and start < closed
        return (text.index(">", start) + 1, "\n") if declaration else (start + 1, "<")
    end = _tag_end(text, tag.end(), closed)
    if end < 0:
        return start + 1, "<"
    name = tag[1].lower()
    if name in _DROPPED and text[start + 1] != "/" and text[end - 2] != "/":
        closing = re.compile(rf"</{name}\b[^>]*>?", re.IGNORECASE).search(text, end)
        return closing.end() if closing else len(text), "\n"
    return end, "" if name in _INLINE else "\n"


def _tag_end(text: str, position: int, closed: int) -> int:
    """Return the position after a tag's ``>``, skipping quoted values, or -1 if the tag is never closed."""
    if position > closed:
        return -1
    here = position
    while (match := _QUOTE_OR_END.search(text, here)) is not None:
        if match[0] == ">":
            return match.end()
        # Only a quote that opens an attribute value hides ">"; a stray one (<a title=it's>) does not.
        opens_value = text[position : match.start()].rstrip()[-1:] == "=" if match.start() - position < 4096 else False
        close = text.find(match[0], match.end()) if opens_value else match.start()
        if close < 0:
            break
        here = close + 1
    return text.find(">", position) + 1 or -1


DEFAULT_MAX_CHARS = 20_000
MAX_VECTOR_DIMS = 16_384
"""Largest number of values of a vector; text encoders have at most 4,096."""
_MAX_DEPTH = 64  # nesting of arrays and objects below a path; deeper values are ignored
_WORD_BACK = 255  # how many characters a cut moves back so that it does not split a word


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a text view.

    `ConfigError` is raised for an empty path or path part, or a weight that is not a finite number above 0.
    """

    path: str
    """Field name, with dots for nested objects (``details.maker``); arrays on the way are read item by item."""
    weight: float | None = None
    """Factor above 0 of the field's unit row; None if training chooses it (1 until then)."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not all(self.path.split(".")):
            raise ConfigError(f"the field path {self.path!r} is invalid: write names joined by single dots")
        weight = self.weight
        if weight is None:
            return
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            message = f"the weight of field {self.path!r} is {weight!r}: it must be a finite number above 0"
            raise ConfigError(f"{message}; leave a field out to give it no weight", path=self.path, value=weight)


@dataclass(frozen=True, slots=True)
class TextView:
    """The fields read from a document, and how their text is prepared for analysis.

    `ConfigError` is raised if there is no field, a path occurs twice, or ``max_chars`` is below 1.
    """

    fields: tuple[FieldSpec, ...] = (FieldSpec("title"), FieldSpec("text"))
    strip_html: bool = False
    """Whether HTML is first turned into plain text (`strip_html`)."""
    max_chars: int = DEFAULT_MAX_CHARS
    """Largest number of characters of a field's text, after HTML is stripped; longer text is cut between words."""
    vector: str = ""
    """Path of the field with the vector that a text encoder has computed of the document; empty: none is read."""

    def __post_init__(self) -> None:
        if not isinstance(self.fields, tuple) or not self.fields:
            raise ConfigError("a text view needs at least one field: write for example title^2 text")
        paths = [spec.path for spec in self.fields]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ConfigError(f"the field {twice[0]!r} is given twice: name each field once", path=twice[0])
        if not isinstance(self.strip_html, bool):
            raise ConfigError(f"strip_html is {self.strip_html!r}: it must be true or false", value=self.strip_html)
        if isinstance(self.max_chars, bool) or not isinstance(self.max_chars, int) or self.max_chars < 1:
            raise ConfigError(f"max_chars is {self.max_chars!r}: it must be a whole number of at least 1")
        if not isinstance(self.vector, str) or (self.vector and not all(self.vector.split("."))):
            raise ConfigError(f"the field of vectors {self.vector!r} is invalid: write names joined by single dots")
        if self.vector in paths:
            raise ConfigError(f"the field {self.vector!r} is read as text and as a vector: name it once")

    @classmethod
    def parse(cls, specs: Sequence[str], *, strip_html: bool = False, max_chars: int = DEFAULT_MAX_CHARS) -> TextView:
        """Return the view written as ``["title^2", "text"]``; raises `ConfigError` for an invalid weight."""
        return cls(tuple(map(_parse_field, specs)), strip_html, max_chars)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each field; 1 if none is set."""
        return tuple(1.0 if spec.weight is None else float(spec.weight) for spec in self.fields)

    @property
    def is_default(self) -> bool:
        """Whether these are the default fields; a document may have only some of them."""
        return [spec.path for spec in self.fields] == [spec.path for spec in TextView().fields]

    @property
    def source_fields(self) -> list[str]:
        """The fields of a document that are read: those of the texts, then that of the vector if there is one."""
        return [spec.path for spec in self.fields] + [self.vector] * bool(self.vector)

    def with_weights(self, weights: Sequence[float]) -> TextView:
        """Return the view with these weights in field order; raises `ConfigError` unless each field has a valid one."""
        if len(weights) != len(self.fields):
            raise ConfigError(f"{len(weights)} weights for {len(self.fields)} fields: give one per field, in order")
        pairs = zip(self.fields, weights, strict=True)
        return replace(self, fields=tuple(FieldSpec(spec.path, float(weight)) for spec, weight in pairs))

    def texts(self, source: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the text of each field, in field order; empty if the field is missing or holds no text.

        Several values (arrays, arrays of objects) are joined by line breaks in document order. Strings are unchanged,
        numbers are written as by Python (``2022``, ``6.5``), booleans as ``true`` and ``false``; null and NaN are
        ignored. The path of an object reads all values in it, in sorted order of the keys. A key that itself contains
        dots (``{"a.b": 1}``) is found as well as its nested form.
        """
        return tuple(self._text(source, spec.path) for spec in self.fields)

    def given_vector(self, source: Mapping[str, Any]) -> Float32 | None:
        """Return the vector of a document, (E,) float32; None if it is missing, null or all zeros.

        `InputError` is raised if the field holds anything but a list of finite numbers that fit float32.
        """
        value: Any = source.get(self.vector)
        if value is None and "." in self.vector:
            value = source
            for name in self.vector.split("."):
                value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else _vector_of(value, self.vector)

    def source_hash(self, source: Mapping[str, Any]) -> str:
        """Return 16 hex digits of BLAKE2b over all that is read of a document (``_src`` of a version).

        They are those of the texts, each preceded by its length. The bytes of the vector follow if the view reads one.
        """
        return source_hash(self, self.texts(source), self.given_vector(source) if self.vector else None)

    def to_json(self) -> dict[str, Any]:
        """Return the view as a JSON object for `from_json`."""
        fields = [{"path": spec.path, "weight": spec.weight} for spec in self.fields]
        kept = {"fields": fields, "strip_html": self.strip_html, "max_chars": self.max_chars}
        return {**kept, "vector": self.vector} if self.vector else kept

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TextView:
        """Return the view of a JSON object; raises `ConfigError` for missing or unknown keys and invalid values."""
        try:
            fields = tuple(FieldSpec(**spec) for spec in value["fields"])
            return cls(**{**value, "fields": fields})
        except (TypeError, KeyError) as error:
            message = "a text view must be an object with fields (a list of path and weight), strip_html and max_chars"
            raise ConfigError(f"{message}, not {str(value)[:200]!r}: {error}") from error

    def _text(self, source: Mapping[str, Any], path: str) -> str:
        value = source.get(path)
        if not isinstance(value, str):  # the common case needs no traversal
            value = "\n".join(filter(None, _leaves(source, path.split("."), 0)))
        if self.strip_html:
            value = strip_html(value)
        return value if len(value) <= self.max_chars else _cut(value, self.max_chars)


def paths_of(value: object, depth: int = 0) -> Iterator[str]:
    """Yield the paths of a document's fields; those of nested objects follow their parent, arrays are read by item."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield str(name)
            yield from (f"{name}.{path}" for path in paths_of(below, depth + 1))
    elif isinstance(value, list):
        for item in value:
            yield from paths_of(item, depth + 1)


def nearest_paths(path: str, paths: Collection[str]) -> str:
    """Return the existing paths that are most similar to an unknown one, or the first few, comma-separated."""
    return ", ".join(get_close_matches(path, sorted(paths)) or sorted(paths)[:5])


def source_hash(view: TextView, texts: Sequence[str], vector: Float32 | None = None) -> str:
    """Return `TextView.source_hash` of texts and a vector that were read already."""
    digest = blake2b(digest_size=8)
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    if view.vector:
        parts.append(b"" if vector is None else vector.astype("<f4").tobytes())
    for data in parts:
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _vector_of(value: object, path: str) -> Float32 | None:
    """Return the vector that a field holds; None if it is all zeros."""
    vector = None
    if isinstance(value, list | tuple | np.ndarray) and not any(isinstance(each, bool | str) for each in value):
        try:
            with np.errstate(over="ignore"):
                vector = np.array(value, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            vector = None  # a list of anything else
    if vector is None or vector.ndim != 1 or not 1 <= len(vector) <= MAX_VECTOR_DIMS or not np.isfinite(vector).all():
        raise InputError(
            f"the field {path!r} is {str(value)[:60]!r}: a vector is a list of 1 to {MAX_VECTOR_DIMS:,} finite "
            "numbers; name a field of vectors, or correct the document",
            path=path,
        )
    return vector if vector.any() else None


def _parse_field(spec: str) -> FieldSpec:
    path, caret, weight = spec.partition("^")
    try:
        return FieldSpec(path, float(weight) if caret else None)
    except ValueError:
        message = f"the weight in field {spec!r} is not a number: write PATH^NUMBER, as in title^2"
        raise ConfigError(message, value=spec) from None


def _cut(text: str, max_chars: int) -> str:
    """Return the first ``max_chars`` characters without a partial last word (unless it is longer than any word)."""
    head = text[:max_chars]
    if not (head[-1].isalnum() and text[max_chars].isalnum()):
        return head
    back = max_chars
    while back > max(0, max_chars - _WORD_BACK) and not head[back - 1].isspace():
        back -= 1
    return head[:back] if back and head[back - 1].isspace() else head


def _leaves(value: object, parts: Sequence[str], depth: int) -> Iterator[str]:
    """Yield the texts found below ``value`` at the path ``parts``, in document order."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        if parts:
            for n in range(1, len(parts) + 1):
                child = value.get(".".join(parts[:n]))
                if child is not None:
                    yield from _leaves(child, parts[n:], depth + 1)
        else:
            for key in sorted(value, key=str):
                yield from _leaves(value[key], (), depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, parts, depth + 1)
    elif not parts:
        yield _leaf_text(value)


def _leaf_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    # Python refuses to write integers of more than 4,300 digits, and nobody searches for them.
    return "" if isinstance(value, int) and value.bit_length() > 4096 else str(value)
