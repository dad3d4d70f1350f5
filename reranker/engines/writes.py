"""What one write does to one document: Elasticsearch's version rules as a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reranker.engines.base import WriteOp, WriteResult
from reranker.engines.wire import encode
from reranker.records import MAX_ID_BYTES

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


def refusal(op: WriteOp) -> WriteResult | None:
    """Return the 400 of an operation that no engine takes, or None: asked before a request is sent.

    One malformed action line or a too long id fails the whole bulk request on both engines, so it never travels.
    """
    reason = id_fault(op.id) or _option_fault(op)
    return None if reason is None else WriteResult(op.id, 400, "illegal_argument_exception", reason)


def id_fault(identifier: str) -> str | None:
    """Return why an id is not usable, None where it is: one such id fails a whole bulk request on both engines."""
    if not isinstance(identifier, str):
        return f"id {identifier!r:.80} is not a string: give ids as strings"
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        return f"id {identifier!a:.80} holds a lone surrogate, which is not UTF-8; give the document another id"
    if size == 0:
        return "the id is empty; it takes 1 to 512 bytes of UTF-8"
    if size > MAX_ID_BYTES:
        return f"id {identifier!r:.40}... has {size} bytes; it takes at most {MAX_ID_BYTES}: shorten or hash it"
    return None


def _option_fault(op: WriteOp) -> str | None:
    by_seq_no = op.if_seq_no is not None or op.if_primary_term is not None
    if op.version is not None and (op.action in ("create", "update") or by_seq_no):
        return f"an external version ({op.version}) goes with 'index' and 'delete' only, and not with if_seq_no"
    if (op.if_seq_no is None) != (op.if_primary_term is None):
        return "if_seq_no and if_primary_term belong together"
    if by_seq_no and op.action == "create":
        return "'create' takes no if_seq_no: the document must not exist"
    if (op.source is None) != (op.action == "delete"):
        return f"'{op.action}' {'takes no' if op.action == 'delete' else 'needs a'} source"
    return None


def apply(op: WriteOp, current: Stored | None, seq_no: int) -> tuple[Stored | None, WriteResult]:
    """Return the new state of the id (None: nothing changes) and the result of a write that `refusal` let pass.

    ``seq_no`` is the number the write gets if it changes anything.
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
    merged = merge(alive.source, op.source or {})
    # As JSON texts: Python holds 1, 1.0 and True for equal, an engine does not.
    if encode(merged) == encode(alive.source):
        return None, WriteResult(op.id, 200, "", "", alive.seq_no, 1)
    state = replace(alive, source=merged, seq_no=seq_no, version=alive.version + 1)
    return state, WriteResult(op.id, 200, "", "", seq_no, 1)


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``old`` with ``new`` merged in: objects deeply, everything else replaced."""
    merged = dict(old)
    for name, value in new.items():
        known = merged.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        merged[name] = merge(known, value) if both else value  # type: ignore[arg-type]
    return merged
