"""Reading from an engine over HTTP: search answers, documents by id, and whole indexes over one view.

Bulk requests as bytes, and their answers checked item by item. Pure.

Both official helpers pair operations and answers with `zip`, so that documents vanish when items are missing; here an
answer that does not name every operation, in order, is no answer at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reranker.engines.base import SourceFilter, WriteOp, WriteResult
from reranker.engines.rest_client import RestClient, unusable
from reranker.engines.wire import encode, quoted
from reranker.engines.writes import refusal
from reranker.errors import EngineAuthError, EngineError, EngineRejected, IndexMissing
from reranker.records import Hit, SearchAnswer, StoredDocument

KEEP_ALIVE = "10m"
"""How long an engine keeps a view between two batches: a throttled reader is slow."""
GET_BATCH = 1000
"""Ids a request when reading by id."""


def source_option(source: SourceFilter) -> bool | list[str]:
    """Return ``_source`` for a request body."""
    return source if isinstance(source, bool) else list(source)


def parse_search(answer: dict[str, Any], kind: str, request: str) -> SearchAnswer:
    """Return a search answer as a record.

    Raises
    ------
    EngineUnavailable
        No list of hits, or hits without an id.
    """
    part = answer.get("hits")
    raw_hits = part.get("hits") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(raw_hits, list):
        raise unusable(kind, request, "no list of hits")
    try:
        hits = tuple(_hit(raw) for raw in raw_hits)
    except (KeyError, TypeError, AttributeError):
        raise unusable(kind, request, "a hit without _id or _index") from None
    total = part.get("total")
    counted = isinstance(total, dict)
    return SearchAnswer(
        hits,
        int(total["value"]) if isinstance(total, dict) else len(hits),
        counted and total.get("relation") == "eq" if isinstance(total, dict) else False,
        bool(answer.get("timed_out")) or failed_shards(answer) > 0,
        answer,
    )


def failed_shards(answer: Mapping[str, Any]) -> int:
    """Return how many shards did not answer."""
    shards = answer.get("_shards")
    return int(shards.get("failed", 0)) if isinstance(shards, Mapping) else 0


def _hit(raw: dict[str, Any]) -> Hit:
    return Hit(raw["_id"], raw["_index"], raw.get("_score"), raw.get("_source") or {}, raw.get("fields") or {}, raw)


def _stored(raw: dict[str, Any]) -> StoredDocument:
    return StoredDocument(
        raw["_id"],
        raw["_index"],
        raw.get("_source") or {},
        raw.get("_seq_no", -1),
        raw.get("_primary_term", -1),
        raw.get("_routing"),
    )


class Getter:
    """Reads documents by id, also those stored under a routing that the caller does not know."""

    def __init__(self, client: RestClient, index: str, source: SourceFilter) -> None:
        self._client = client
        self._index = quoted(index)
        self._source = source_option(source)

    def get(self, ids: Sequence[str]) -> list[StoredDocument | None]:
        """Return the documents in the order of the ids."""
        found: dict[str, StoredDocument] = {}
        unique = list(dict.fromkeys(identifier for identifier in ids if identifier))
        for start in range(0, len(unique), GET_BATCH):
            part = unique[start : start + GET_BATCH]
            found |= self._mget([{"_id": identifier} for identifier in part])
            missing = [identifier for identifier in part if identifier not in found]
            routed = self._routings(missing) if missing else {}
            if routed:
                found |= self._mget([{"_id": name, "routing": routing} for name, routing in routed.items()])
        return [found.get(identifier) for identifier in ids]

    def _mget(self, docs: list[dict[str, Any]]) -> dict[str, StoredDocument]:
        request = f"POST /{self._index}/_mget"
        wanted = [{**doc, "_source": self._source} for doc in docs]
        answer = self._client.call("POST", f"/{self._index}/_mget", {"docs": wanted})
        told = answer.get("docs")
        if not isinstance(told, list) or [doc.get("_id") for doc in told] != [doc["_id"] for doc in docs]:
            raise unusable(self._client.dialect.kind, request, "it does not name the documents asked for")
        for doc in told:
            self._check(doc)
        return {doc["_id"]: _stored(doc) for doc in told if doc.get("found")}

    def _check(self, doc: Mapping[str, Any]) -> None:
        error = doc.get("error")
        if not isinstance(error, Mapping) or error.get("type") == "routing_missing_exception":
            return
        kind, reason = str(error.get("type")), str(error.get("reason"))
        missing = kind == "index_not_found_exception"
        cls, status = (IndexMissing, 404) if missing else (EngineRejected, 400)
        message = f"document {doc.get('_id')!r:.60} cannot be read: {reason}; check the index's name"
        raise cls(message, engine=self._client.dialect.kind, status=status, error_type=kind)

    def _routings(self, ids: list[str]) -> dict[str, str]:
        """Return id → routing of documents that only a search over all shards finds."""
        body = {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": False}
        answer = self._client.call("POST", f"/{self._index}/_search", body)
        hits = parse_search(answer, self._client.dialect.kind, f"POST /{self._index}/_search").hits
        return {hit.id: hit.raw["_routing"] for hit in hits if "_routing" in hit.raw}


class Scanner:
    """Reads a whole index over one view: a point in time where its order is total, else a scroll."""

    def __init__(self, client: RestClient, index: str, body: dict[str, Any]) -> None:
        self._client = client
        self._index = quoted(index)
        self._body = {**body, "seq_no_primary_term": True, "track_total_hits": True}

    def batches(self) -> Iterator[list[StoredDocument]]:
        """Yield batches until every document of the view was seen.

        Raises
        ------
        EngineUnavailable
            The view was lost, a shard did not answer, or the documents do not add up.
        """
        pages = self._pages_of_view()
        seen = 0
        total = 0
        for answer in pages:
            if failed_shards(answer) or answer.get("timed_out"):
                raise unusable(self._client.dialect.kind, "a scan", "a shard did not answer")
            total = int(answer["hits"]["total"]["value"])
            batch = [_stored(raw) for raw in answer["hits"]["hits"]]
            seen += len(batch)
            if batch:
                yield batch
        if seen != total:
            raise unusable(self._client.dialect.kind, "a scan", f"{seen} documents of {total}")

    def _pages_of_view(self) -> Iterator[dict[str, Any]]:
        if not self._client.dialect.shard_doc_pit:
            return self._scroll()
        try:
            opened = self._client.call("POST", f"/{self._index}/_pit", params={"keep_alive": KEEP_ALIVE})
        except IndexMissing:
            raise
        except (EngineAuthError, EngineRejected) as error:
            if error.status not in (400, 403, 404, 405):
                raise
            # A role without the right to a point in time may scroll.
            return self._scroll()
        return self._point_in_time(str(opened["id"]))

    def _point_in_time(self, view: str) -> Iterator[dict[str, Any]]:
        after: list[Any] | None = None
        try:
            while True:
                place = {} if after is None else {"search_after": after}
                pit = {"id": view, "keep_alive": KEEP_ALIVE}
                body = {**self._body, **place, "pit": pit, "sort": [{"_shard_doc": "asc"}]}
                answer = self._client.call("POST", "/_search", body)
                yield answer
                view = str(answer.get("pit_id", view))
                hits = answer["hits"]["hits"]
                if len(hits) < self._body["size"]:
                    return
                after = hits[-1]["sort"]
        finally:
            self._forget("/_pit", {"id": view})

    def _scroll(self) -> Iterator[dict[str, Any]]:
        body = {**self._body, "sort": ["_doc"]}
        answer = self._client.call("POST", f"/{self._index}/_search", body, params={"scroll": KEEP_ALIVE})
        view = str(answer["_scroll_id"])
        try:
            while answer["hits"]["hits"]:
                yield answer
                answer = self._client.call("POST", "/_search/scroll", {"scroll_id": view, "scroll": KEEP_ALIVE})
                view = str(answer.get("_scroll_id", view))
            yield answer
        finally:
            self._forget("/_search/scroll", {"scroll_id": view})

    def _forget(self, path: str, body: dict[str, Any]) -> None:
        """Free the view; it expires by itself where that fails."""
        try:
            self._client.call("DELETE", path, body)
        except EngineError:
            return


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
