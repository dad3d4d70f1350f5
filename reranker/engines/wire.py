"""Helpers for the HTTP API of both engines: JSON, index names, flat index settings, and forwarded headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

import msgspec

from reranker.deadline import Deadline
from reranker.errors import EngineRejected

PASSED_HEADERS = ("x-opaque-id", "traceparent", "tracestate")
"""Headers of a client's request that are forwarded to the engine, to correlate logs and traces."""


passed_headers: ContextVar[Mapping[str, str] | None] = ContextVar("passed_headers", default=None)
"""Forwarded headers of the request that is handled in this context."""


caller_rights: ContextVar[Mapping[str, str] | None] = ContextVar("caller_rights", default=None)
"""Headers with the credentials of the caller for whom the requests of this context are made; may be empty.

Requests then carry these and nothing of the program's own credentials. None: the program asks for itself.
"""


@contextmanager
def own_rights() -> Iterator[None]:
    """Send the requests of this context with the program's own credentials, for any caller.

    For what the program must know to answer anybody, and what tells a caller nothing: names, mappings, words of a text.
    """
    token = caller_rights.set(None)
    try:
        yield
    finally:
        caller_rights.reset(token)


while_waiting: ContextVar[Callable[[], None] | None] = ContextVar("while_waiting", default=None)
"""Function that is called once a request of this context is on its way. It must not raise errors.

Requests that it sends itself do not call it again.
"""


request_deadline: ContextVar[Deadline | None] = ContextVar("request_deadline", default=None)
"""Deadline of the user's request that is handled in this context.

It bounds every request to the engine that has no timeout of its own, and such a request is not repeated.
"""


Json = Any
"""A JSON value: object, array, string, number, boolean or None."""


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


_decoder = msgspec.json.Decoder()


_FORBIDDEN = frozenset('\\/*?"<>| ,#:')


def json_bytes(value: Json, *, escape: bool = False) -> bytes:
    r"""Return compact JSON in UTF-8. `ValueError` (NaN, lone surrogate, loop, too deep) or `TypeError` (not JSON).

    With ``escape``, lone surrogates are escaped (``\ud83d``), as clients send half an emoji in a query.
    """
    try:
        text = _encoder.encode(value)
        # What UTF-8 cannot encode stands in strings only, where an escape means the same.
        return text.encode("utf-8", "backslashreplace" if escape else "strict")
    except RecursionError:
        raise ValueError("nested too deeply to be encoded as JSON") from None


def json_value(data: bytes) -> Json:
    """Return the value of a JSON text. `ValueError` if it is not a complete JSON text."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        # msgspec refuses lone surrogates, which both engines return if they were indexed; json accepts them.
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply to be decoded as JSON") from None


def changed_texts(value: Json, change: Callable[[str], str], *, names: bool = False) -> Json:
    """Return a copy of a JSON value with every string changed; with ``names``, keys of objects as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict) or isinstance(value, Mapping):  # a dict is recognised much faster than a mapping
        return {change(n) if names else n: changed_texts(item, change, names=names) for n, item in value.items()}
    return [changed_texts(item, change, names=names) for item in value] if isinstance(value, list) else value


def copied(value: Json) -> Json:
    """Return a deep copy of a JSON value, several times as fast as `copy.deepcopy`, which copies any object."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def check_name(name: str) -> str:
    """Return an index or alias name unchanged. `EngineRejected` for patterns, lists and invalid names."""
    wrong = sorted(set(name) & _FORBIDDEN)
    if not name or wrong or name[0] in "-_+" or name in (".", "..") or len(name.encode("utf-8", "replace")) > 255:
        detail = f" (it contains {wrong[0]!r})" if wrong else ""
        message = (
            f"index name {name!r:.80} is invalid{detail}: give one plain name of 1 to 255 bytes that does not start "
            "with '-', '_' or '+'; patterns and lists are not allowed"
        )
        raise EngineRejected(message, status=400, error_type="invalid_index_name_exception")
    return name


def quoted(name: str) -> str:
    """Check an index name and return it quoted for a URL path."""
    return quote(check_name(name), safe="")


def flat_settings(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return index settings flat, as engines report them: ``index.number_of_shards`` → "1"."""
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


def failed_shards(answer: Mapping[str, Any]) -> int:
    """Return the number of failed shards in an answer."""
    shards = answer.get("_shards")
    return int(shards.get("failed", 0)) if isinstance(shards, Mapping) else 0
