"""JSON to and from engines: strict out (no NaN, no lone surrogate), quick in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from reranker.errors import EngineRejected

Json = Any
"""A JSON value: object, array, text, number, bool or None."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_decoder = msgspec.json.Decoder()
_FORBIDDEN = frozenset('\\/*?"<>| ,#:')


def encode(value: Json) -> bytes:
    """Return compact JSON in UTF-8.

    Raises
    ------
    ValueError
        A number that is not finite, a lone surrogate, a loop, or nesting past what the interpreter can follow.
    TypeError
        A value that is not JSON.
    """
    try:
        return _encoder.encode(value).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deep to be written as JSON") from None


def decode(data: bytes) -> Json:
    """Return the value of a JSON text.

    Raises
    ------
    ValueError
        Not a whole JSON text.
    """
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

    Raises
    ------
    EngineRejected
        Patterns, lists, path separators and the other characters that no engine takes.
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
