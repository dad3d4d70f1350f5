"""The embedded engine: names and aliases, rules of writes, and answers in Elasticsearch's format.

`reranker.engines.language` defines the supported subset; `reranker.engines.tantivy` stores and searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reranker.engines.language import (
    WEIGHTED_WORDS,
    DocumentRefusedError,
    Extracted,
    FieldTable,
    Node,
    ParsedSearch,
    Selection,
    Stored,
    apply_write,
    doc_values,
    merge_properties,
    nest_properties,
    parse_body,
    parse_query,
    standard_tokens,
    values_at,
)
from reranker.engines.protocol import Capabilities, IndexInfo, SourceFilter, WriteOp, WriteResult, refusal
from reranker.engines.tantivy import Change, Match, TantivyCatalogue, TantivyIndex
from reranker.engines.wire import check_name, flat_settings, json_bytes, json_value
from reranker.errors import EngineRejected, IndexMissing, Unsupported
from reranker.records import Hit, SearchAnswer, StoredDocument

_DEPTH_LIMIT = "index.mapping.depth.limit"
_FIELDS_LIMIT = "index.mapping.total_fields.limit"
_UNSUPPORTED_SETTINGS = tuple(
    f"index.{name}" for name in ("analysis.", "similarity.", "default_pipeline", "final_pipeline", "sort.")
)


class _BulkRun:
    """One bulk request to one index, with the results so far and a mapping that dynamic fields may extend."""

    def __init__(self, target: TantivyIndex) -> None:
        self._target = target
        self._table = target.table()
        self._mapping: dict[str, Any] | None = None
        self._depth = int(target.settings.get(_DEPTH_LIMIT, "20"))

    def run(self, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Store the operations that succeed and return all results in order."""
        refusals = [refusal(op) for op in ops]
        states = self._target.read([op.id for op, refused in zip(ops, refusals, strict=True) if refused is None])
        seq_no = self._target.next_seq_no()
        changes: dict[str, Change] = {}
        results = []
        for op, refused in zip(ops, refusals, strict=True):
            change, result = (None, refused) if refused else self._write(op, states.get(op.id), seq_no)
            results.append(result)
            if change is not None:
                states[op.id] = change[0]
                # Removed first, because the last write of an id decides its order among equal scores.
                changes.pop(op.id, None)
                changes[op.id] = change
                seq_no += 1
        self._target.save(list(changes.values()), self._mapping)
        return results

    def _write(self, op: WriteOp, current: Stored | None, seq_no: int) -> tuple[Change | None, WriteResult]:
        if self._table.routing_required and op.routing is None:
            reason = f"routing is required for [{self._target.name}]/[{op.id}]"
            return None, WriteResult(op.id, 400, "routing_missing_exception", reason)
        try:
            plain = op if op.source is None else replace(op, source=_plain(op.source))
            state, result = apply_write(plain, current, seq_no)
            if state is None:
                return None, result
            return (state, None if state.source is None else self._extract(state.source)), result
        except DocumentRefusedError as error:
            return None, WriteResult(op.id, 400, error.error_type, error.reason)

    def _extract(self, source: Mapping[str, Any]) -> Extracted:
        extracted = self._table.extract(source, depth_limit=self._depth)
        if extracted.added:
            mapping = self._mapping or self._target.mapping()
            properties = merge_properties(mapping.get("properties", {}), nest_properties(extracted.added))
            mapping = {**mapping, "properties": properties}
            if reason := _too_many_fields(self._target, mapping):
                raise DocumentRefusedError(reason, "illegal_argument_exception")
            self._mapping, self._table = mapping, FieldTable(mapping)
        return extracted


def _plain(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source as it would be read back from JSON, sharing no objects with the caller."""
    try:
        return dict(json_value(json_bytes(source)))
    except (ValueError, TypeError) as error:
        raise DocumentRefusedError(f"cannot be encoded as JSON: {error}") from None


def _too_many_fields(target: TantivyIndex, mapping: Mapping[str, Any]) -> str:
    """Return an error text if a mapping has more fields than the index allows, else an empty string."""
    limit = int(target.settings.get(_FIELDS_LIMIT, "1000"))
    table = FieldTable(mapping)
    n_fields = len(table.objects) + sum(1 + len(leaf.copies) for leaf in table.leaves.values())
    return f"Limit of total fields [{limit}] has been exceeded ({n_fields})" if n_fields > limit else ""


class LocalEngine:
    """An embedded engine over a catalogue of indexes. `reranker.engines.protocol.Engine` documents the methods."""

    in_process = True

    def __init__(self, spec: str, catalogue: TantivyCatalogue, capabilities: Capabilities) -> None:
        self.spec = spec
        self._catalogue = catalogue
        self._capabilities = capabilities

    def capabilities(self) -> Capabilities:
        """Return the capabilities of this engine."""
        return self._capabilities

    def close(self) -> None:
        """Release memory, files and locks."""
        self._catalogue.close()

    def index_names(self, name: str) -> tuple[str, ...]:
        """Return the concrete indexes behind a name, sorted."""
        check_name(name)
        if name in self._catalogue.names():
            return (name,)
        return tuple(sorted(self._catalogue.aliases().get(name, ())))

    def index_uuids(self, name: str) -> dict[str, str]:
        """Return concrete index → uuid for all indexes behind a name, sorted; a recreated index has another uuid."""
        return {index: self._catalogue.open(index).uuid for index in self.index_names(name)}

    def create_index(self, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Create an index."""
        check_name(index)
        if index != index.lower():
            raise EngineRejected(
                f"index name {index!r} has capital letters; index names must be lower-case", status=400
            )
        if self.index_names(index):
            message = f"index or alias {index!r} already exists: choose another name, or delete it first"
            raise EngineRejected(message, status=400, error_type="resource_already_exists_exception")
        FieldTable(mapping)
        flat = flat_settings(settings)
        for name in flat:
            if name.startswith(_UNSUPPORTED_SETTINGS):
                raise Unsupported(f"the embedded engine does not support index setting {name!r}: remove it", status=400)
        self._catalogue.create(index, json_value(json_bytes(mapping)), {"index.number_of_shards": "1", **flat})

    def delete_index(self, index: str) -> None:
        """Delete a concrete index."""
        check_name(index)
        if index in self._catalogue.aliases():
            raise EngineRejected(
                f"{index!r} is an alias of {', '.join(self.index_names(index))}: name the index itself", status=400
            )
        self._catalogue.delete(self._one(index).name)

    def index_info(self, index: str) -> IndexInfo:
        """Return mapping, settings and aliases of one index."""
        target = self._one(index)
        mapping = target.mapping()
        aliases = tuple(sorted(a for a, names in self._catalogue.aliases().items() if target.name in names))
        return IndexInfo(target.name, mapping.get("properties", {}), mapping, dict(target.settings), aliases)

    def put_properties(self, index: str, properties: Mapping[str, Any]) -> None:
        """Add fields to a mapping."""
        for target in self._all(index):
            mapping = target.mapping()
            merged = {**mapping, "properties": merge_properties(mapping.get("properties", {}), properties)}
            if reason := _too_many_fields(target, merged):
                raise EngineRejected(f"{reason}: raise {_FIELDS_LIMIT} or use fewer fields", status=400)
            target.set_mapping(merged)

    def swap_alias(self, alias: str, add: str, remove: Sequence[str] = ()) -> None:
        """Change one alias atomically."""
        check_name(alias)
        names = self._catalogue.names()
        for index in (add, *remove):
            if index not in names:
                raise _missing(index)
        if alias in names:
            raise EngineRejected(f"{alias!r} is the name of an index: choose another name for the alias", status=400)
        holders = self._catalogue.aliases().get(alias, set())
        lost = [index for index in remove if index not in holders]
        if lost:
            message = f"alias {alias!r} does not point to {lost[0]!r}; nothing was changed"
            raise EngineRejected(message, status=404, error_type="aliases_not_found_exception")
        self._catalogue.swap(alias, add, [index for index in remove if index != add])

    def refresh(self, index: str) -> None:
        """Make all acknowledged writes visible to search."""
        for target in self._all(index):
            target.refresh()

    def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of matching documents."""
        wanted = query or {"match_all": {}}
        return sum(target.find(parse_query(wanted, target.table()), 0)[1] for target in self._all(index))

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Apply writes in order; all that succeed are made durable together."""
        target = self._one(index, writing=True)
        with target.writing():
            return _BulkRun(target).run(ops)

    def get(self, index: str, ids: Sequence[str], *, source: SourceFilter = True) -> list[StoredDocument | None]:
        """Return stored documents by id."""
        target = self._one(index)
        selection = Selection.parse(source if isinstance(source, bool) else list(source))
        states = target.read(ids)
        return [_stored(target.name, states.get(identifier), selection) for identifier in ids]

    def scan(
        self, index: str, *, query: Mapping[str, Any] | None = None, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all matching documents, from one consistent snapshot of each index."""
        if batch_size < 1:
            raise EngineRejected(f"batch_size is {batch_size}; it must be at least 1", status=400)
        selection = Selection.parse(source if isinstance(source, bool) else list(source))
        targets = self._all(index)
        nodes = [None if query is None else parse_query(query, target.table()) for target in targets]
        return self._scan(targets, nodes, selection, batch_size)

    def _scan(
        self, targets: list[TantivyIndex], nodes: Sequence[Node | None], selection: Selection, batch_size: int
    ) -> Iterator[list[StoredDocument]]:
        for target, node in zip(targets, nodes, strict=True):
            ids = None if node is None else [match.id for match in target.find(node, None)[0]]
            for states in target.stream(ids, batch_size):
                documents = (_stored(target.name, state, selection) for state in states)
                yield [document for document in documents if document is not None]

    def search(
        self, index: str, body: Mapping[str, Any], *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        """Run a search body. Equal scores are ordered by age of the last write. It never waits, so never times out."""
        ranked: list[tuple[Match, TantivyIndex]] = []
        total = 0
        requests = [(target, parse_body(body, target.table())) for target in self._all(index)]
        for target, request in requests:
            matches, n_matches = target.find(request.query, request.from_ + request.size)
            ranked.extend((match, target) for match in matches)
            total += n_matches
        ranked.sort(key=lambda pair: (-pair[0].score, pair[1].name, pair[0].place))
        best = ranked[0][0].score if ranked else None
        return _answer(ranked[request.from_ : request.from_ + request.size], total, best, request)

    def analyze(self, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text as ``field`` is analysed."""
        leaf = self._one(index).table().searchable(field)
        if leaf is None or leaf.type == WEIGHTED_WORDS:
            raise EngineRejected(
                f"index {index!r} has no field {field!r} for analysis: check the name against its mapping", status=400
            )
        return [standard_tokens(text) if leaf.type == "text" else [text] for text in texts]

    def _all(self, index: str) -> list[TantivyIndex]:
        names = self.index_names(index)
        if not names:
            raise _missing(index)
        return [self._catalogue.open(name) for name in names]

    def _one(self, index: str, writing: bool = False) -> TantivyIndex:
        targets = self._all(index)
        if len(targets) > 1:
            what = "has no single write index" if writing else "stands for several indexes"
            raise EngineRejected(
                f"alias {index!r} {what} ({', '.join(target.name for target in targets)}): name one of them", status=400
            )
        return targets[0]


def _missing(index: str) -> IndexMissing:
    message = f"there is no index or alias {index!r}: check the name, or create it first"
    return IndexMissing(message, status=404, error_type="index_not_found_exception")


def _stored(index: str, state: Stored | None, selection: Selection) -> StoredDocument | None:
    if state is None or state.source is None:
        return None
    source = selection.apply(state.source)
    return StoredDocument(state.id, index, source, state.seq_no, state.primary_term, state.routing)


def _answer(
    ranked: Sequence[tuple[Match, TantivyIndex]], total: int, best: float | None, request: ParsedSearch
) -> SearchAnswer:
    """Return the answer; its ``raw`` body has the format of the real engines."""
    ids: dict[TantivyIndex, list[str]] = {}
    for match, target in ranked:
        ids.setdefault(target, []).append(match.id)
    shown = not request.source.nothing or bool(request.fields) or bool(request.doc_values)
    states = {target: target.read(wanted) if shown else {} for target, wanted in ids.items()}
    hits = [_hit(match, target.name, states[target].get(match.id), request) for match, target in ranked]
    limit = request.track_total
    more = not isinstance(limit, bool) and total > limit
    value = limit if more else total
    raw = {
        "took": 0,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {
            "total": {"value": value, "relation": "gte" if more else "eq"},
            "max_score": best,
            "hits": [hit.raw for hit in hits],
        },
    }
    return SearchAnswer(tuple(hits), int(value), not more, False, raw)


def _hit(match: Match, index: str, state: Stored | None, request: ParsedSearch) -> Hit:
    source = state.source if state is not None and state.source is not None else {}
    picked = request.source.apply(source)
    fields = {path: values for path in request.fields if (values := list(values_at(source, path)))}
    fields |= {path: values for path, kind in request.doc_values if (values := doc_values(source, path, kind))}
    raw: dict[str, Any] = {"_index": index, "_id": match.id, "_score": match.score}
    if not request.source.nothing:
        raw["_source"] = picked
    if fields:
        raw["fields"] = fields
    return Hit(match.id, index, match.score, picked, fields, raw)
