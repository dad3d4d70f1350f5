"""Strict JSON, one object a line: what both engines accept, and nothing that they would read differently."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from reranker.formats.lines import MAX_LINE_BYTES, read_lines
from reranker.formats.rejects import RecordError, RejectSink, StrictSink

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects accepted in one line."""


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One JSON object of a file with its place; see `reranker.formats.lines.Line`."""

    value: dict[str, Any]
    number: int
    offset: int
    end_offset: int


def parse_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a line holds.

    Stricter than the standard library: refuses NaN and Infinity, numbers too large for a double, integers of more
    than 4,300 digits, a key given twice in one object (engines refuse it or keep either), lone surrogate escapes,
    nesting deeper than `MAX_DEPTH`, and any value but an object. The standard library's parser is used for its hooks;
    faster ones (orjson, msgspec) keep the last of two equal keys silently.

    Parameters
    ----------
    data : bytes
        UTF-8 without byte order mark.

    Raises
    ------
    RecordError
        Naming the rule broken.
    """
    try:
        value = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise RecordError("not_utf8", f"{byte}, which is not UTF-8 there ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise RecordError("not_json", f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise RecordError("too_deep", f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise RecordError("number_too_long", "an integer has more than 4,300 digits: write it as a string") from None
    if not isinstance(value, dict):
        raise RecordError("not_object", f"a {type(value).__name__} at the top: each line must be one JSON object")
    # As many brackets as levels are needed at least, so most lines need no walk.
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise RecordError("too_deep", f"nested deeper than {MAX_DEPTH} levels")
    if b"\\ud" in data or b"\\uD" in data:
        _refuse_surrogates(value)
    return value


def read_json_lines(
    path: str | os.PathLike[str],
    *,
    rejects: RejectSink | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    start_offset: int = 0,
    start_line: int = 0,
) -> Iterator[JsonLine]:
    """Yield the JSON objects of a file, one a line, with their places.

    Parameters
    ----------
    path, rejects, max_line_bytes, start_offset, start_line
        As in `reranker.formats.lines.read_lines`; lines that `parse_json` refuses go to ``rejects`` too.

    Raises
    ------
    InputError
        As `reranker.formats.lines.read_lines`.
    """
    sink = rejects or StrictSink(path)
    lines = read_lines(
        path, rejects=sink, max_line_bytes=max_line_bytes, start_offset=start_offset, start_line=start_line
    )
    for line in lines:
        try:
            value = parse_json(line.data)
        except RecordError as error:
            sink.reject(line.number, line.offset, error.message, line.data[:800], kind=error.kind)
            continue
        yield JsonLine(value, line.number, line.offset, line.end_offset)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RecordError("duplicate_key", f"the key {twice[:100]!r} is given twice in one object: keep one")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise RecordError("not_finite", f"{name} is not JSON: leave the value out or write null")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RecordError("not_finite", f"the number {text[:40]} does not fit a double: write it as a string")
    return value


def _is_deeper(value: object, limit: int) -> bool:
    """Return whether arrays and objects nest deeper than ``limit``; walks level by level, so no recursion."""
    level: list[Any] = [value]
    for _ in range(limit):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return False
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, dict | list) for item in level)


def _refuse_surrogates(value: dict[str, Any]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = f"\\u{ord(error.object[error.start]):04x}"
        raise RecordError("lone_surrogate", f"the lone surrogate {found} is no character: remove it") from None


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)
