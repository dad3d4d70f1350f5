"""Bulk requests as bytes, and their answers checked item by item. Pure.

Both official helpers pair operations and answers with `zip`, so that documents vanish when items are missing; here an
answer that does not name every operation, in order, is no answer at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reranker.engines.base import WriteOp, WriteResult
from reranker.engines.wire import encode
from reranker.engines.writes import refusal

FILTER = (
    "took,errors,error,status,items.*._id,items.*.status,items.*._seq_no,items.*._primary_term,"
    "items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
"""Parts of the answer that are read: the rest need not be sent."""


def action_line(op: WriteOp) -> dict[str, Any]:
    """Return the action line of an operation."""
    meta: dict[str, Any] = {"_id": op.id}
    if op.routing is not None:
        meta["routing"] = op.routing
    if op.if_seq_no is not None:
        meta |= {"if_seq_no": op.if_seq_no, "if_primary_term": op.if_primary_term}
    if op.version is not None:
        meta |= {"version": op.version, "version_type": "external"}
    return {op.action: meta}


def bulk_body(ops: Sequence[WriteOp]) -> tuple[bytes, list[int], dict[int, WriteResult]]:
    """Return the body of a bulk request, the places of the operations in it, and the results of those left out.

    Left out, with a result of status 400 by place, are operations that would fail the whole request (ids that are
    empty or too long) and those that cannot be written as JSON (NaN, lone surrogates).
    """
    lines: list[bytes] = []
    sent: list[int] = []
    refused: dict[int, WriteResult] = {}
    for place, op in enumerate(ops):
        fault = refusal(op)
        if fault is not None:
            refused[place] = fault
            continue
        try:
            pair = [encode(action_line(op))]
            if op.source is not None:
                pair.append(encode({"doc": op.source} if op.action == "update" else op.source))
        except (ValueError, TypeError) as error:
            reason = f"not writable as JSON: {error}"
            refused[place] = WriteResult(op.id, 400, "document_parsing_exception", reason)
            continue
        lines += pair
        sent.append(place)
    return (b"\n".join(lines) + b"\n" if lines else b""), sent, refused


def bulk_results(ops: Sequence[WriteOp], answer: dict[str, Any]) -> list[WriteResult]:
    """Return one result an operation, in order.

    Raises
    ------
    ValueError
        Items missing, too many, out of order or malformed; the text says which.
    """
    items = answer.get("items")
    if not isinstance(items, list):
        raise ValueError("no list of items")
    if len(items) != len(ops):
        raise ValueError(f"{len(items)} items for {len(ops)} operations")
    return [_result(op, item) for op, item in zip(ops, items, strict=True)]


def _result(op: WriteOp, item: Any) -> WriteResult:
    if not isinstance(item, dict) or list(item) != [op.action]:
        raise ValueError(f"item {item!r:.80} where the answer to {op.action} {op.id!r:.40} belongs")
    told = item[op.action]
    status = told.get("status") if isinstance(told, dict) else None
    if not isinstance(status, int) or told.get("_id") != op.id:
        raise ValueError(f"item {told!r:.80} where the answer to document {op.id!r:.40} belongs")
    error = told.get("error") or {}
    if not isinstance(error, dict):
        error = {"reason": str(error)}
    cause = (error.get("caused_by") or {}).get("reason")
    reason = str(error.get("reason") or "") + (f" ({cause})" if cause else "")
    kind = str(error.get("type") or "")
    return WriteResult(op.id, status, kind, reason, int(told.get("_seq_no", -1)), int(told.get("_primary_term", -1)))
