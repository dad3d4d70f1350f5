"""What is refused before it travels, so that every engine refuses the same documents for the same reasons."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from reranker.engines.base import WriteOp
from reranker.engines.wire import encode
from reranker.errors import InputError

MAX_ID_BYTES = 512
"""Longest ``_id`` of Elasticsearch and OpenSearch, in UTF-8 bytes."""
ACTION_BYTES = 160
"""Room for the action line of one operation, besides the id."""


def id_fault(identifier: str) -> str:
    """Return why an id is not usable, or an empty string.

    One id that is empty, too long or not UTF-8 fails a whole bulk request on both engines.
    """
    if not isinstance(identifier, str):
        return f"id {identifier!r:.80} is not a string: give ids as strings"
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        return f"id {identifier!a:.80} holds a lone surrogate, which is not UTF-8: give the document another id"
    if size == 0:
        return "the id is empty: an id has 1 to 512 bytes of UTF-8"
    if size > MAX_ID_BYTES:
        return f"id {identifier[:40]!r}... has {size} bytes, at most {MAX_ID_BYTES} are legal: shorten or hash it"
    return ""


def refusal_reason(op: WriteOp, hard_limit_bytes: int) -> tuple[int, str]:
    """Return the size of an operation in a request, bytes, and why no engine takes it ("" where one may).

    Parameters
    ----------
    op : WriteOp
        The operation.
    hard_limit_bytes : int
        Largest request body of the engine.

    Notes
    -----
    NaN and infinities have no JSON form; lone surrogates have no UTF-8 form; nesting past the interpreter's limit
    cannot be written. Engines differ in which of these they notice, hence the check here.
    """
    fault = id_fault(op.id)
    if fault:
        return 0, fault
    try:
        size = len(encode(op.source)) if op.source is not None else 0
    except UnicodeEncodeError:
        return 0, "a text holds a lone surrogate (half of a UTF-16 pair), which is not UTF-8"
    except (ValueError, TypeError) as error:
        return 0, f"not writable as JSON: {error}"
    size += len(op.id.encode("utf-8")) + ACTION_BYTES
    if size > hard_limit_bytes:
        return size, f"the document has {size} bytes, the engine takes requests of at most {hard_limit_bytes}"
    return size, ""


def external_version(source: Mapping[str, Any], name: str) -> int:
    """Return a document's external version: a whole number of at least 0, or a time as milliseconds since 1970.

    Raises
    ------
    InputError
        Where the field is missing or is neither.
    """
    value: Any = source
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            when = None
        if when is not None:
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            return max(0, round(when.timestamp() * 1000))
    raise InputError(
        f"version field {name!r} is {value!r:.60}: give a whole number of at least 0 or an ISO 8601 time in it",
        field=name,
    )
