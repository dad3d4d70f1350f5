"""One bulk request on an embedded engine: the write rules, the mapping, and what is stored at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reranker.engines.base import WriteOp, WriteResult
from reranker.engines.local_base import Batch, Change, LocalIndex
from reranker.engines.mapping import DocumentRefusedError, Extracted, FieldTable
from reranker.engines.properties import merge_properties, nest_properties
from reranker.engines.wire import decode, encode
from reranker.engines.writes import Stored, apply, refusal
from reranker.errors import EngineRejected

_DEPTH_LIMIT = "index.mapping.depth.limit"
_FIELDS_LIMIT = "index.mapping.total_fields.limit"


class BulkRun:
    """One bulk request over one index: states so far, changes to store, a mapping that may grow."""

    def __init__(self, target: LocalIndex, batch: Batch) -> None:
        self._target = target
        self._batch = batch
        self._table = target.table()
        self._mapping: dict[str, Any] | None = None
        self._depth = int(target.settings.get(_DEPTH_LIMIT, "20"))

    def run(self, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Return the results, in order, after storing what succeeded."""
        refusals = [refusal(op) for op in ops]
        states = self._batch.load([op.id for op, refused in zip(ops, refusals, strict=True) if refused is None])
        seq_no = self._batch.next_seq_no()
        changes: dict[str, Change] = {}
        results = []
        for op, refused in zip(ops, refusals, strict=True):
            state, extracted, result = (None, None, refused) if refused else self._one(op, states.get(op.id), seq_no)
            results.append(result)
            if state is not None:
                states[op.id] = state
                # Taken out first: the last write of an id decides its place among equals.
                changes.pop(op.id, None)
                changes[op.id] = Change(state, extracted)
                seq_no += 1
        self._batch.save(list(changes.values()), self._mapping)
        return results

    def _one(
        self, op: WriteOp, current: Stored | None, seq_no: int
    ) -> tuple[Stored | None, Extracted | None, WriteResult]:
        if self._table.routing_required and op.routing is None:
            reason = f"routing is required for [{self._target.name}]/[{op.id}]"
            return None, None, WriteResult(op.id, 400, "routing_missing_exception", reason)
        try:
            plain = op if op.source is None else replace(op, source=_plain(op.source))
            state, result = apply(plain, current, seq_no)
            if state is None or state.source is None:
                return state, None, result
            return state, self._extract(state.source), result
        except DocumentRefusedError as error:
            return None, None, WriteResult(op.id, 400, error.error_type, error.reason)

    def _extract(self, source: Mapping[str, Any]) -> Extracted:
        extracted = self._table.extract(source, depth_limit=self._depth)
        if extracted.added:
            mapping = self._mapping or self._target.mapping()
            properties = merge_properties(mapping.get("properties", {}), nest_properties(extracted.added))
            mapping = {**mapping, "properties": properties}
            check_field_count(self._target, mapping, DocumentRefusedError)
            self._mapping, self._table = mapping, FieldTable(mapping)
        return extracted


def _plain(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source as it reads back from JSON, sharing nothing with the caller."""
    try:
        value = decode(encode(source))
    except (ValueError, TypeError) as error:
        raise DocumentRefusedError("document_parsing_exception", f"not writable as JSON: {error}") from None
    return dict(value)


def check_field_count(
    target: LocalIndex, mapping: Mapping[str, Any], refuse: type[DocumentRefusedError] | None = None
) -> None:
    """Refuse a mapping with more fields than the index allows; ``refuse`` makes it the fault of one document."""
    limit = int(target.settings.get(_FIELDS_LIMIT, "1000"))
    table = FieldTable(mapping)
    fields = len(table.objects) + sum(1 + len(leaf.copies) for leaf in table.leaves.values())
    if fields > limit:
        reason = f"Limit of total fields [{limit}] has been exceeded ({fields})"
        if refuse is not None:
            raise refuse("illegal_argument_exception", reason)
        raise EngineRejected(f"{reason}: raise {_FIELDS_LIMIT} or use fewer fields", status=400)
