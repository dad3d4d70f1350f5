"""Documents of an engine over HTTP: found by a search, read by id, read all over one view, written in bulk.

Both official helpers pair operations and answers with `zip`, so that documents vanish when items are missing; here an
answer that does not name every operation, in order, is no answer at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reranker.engines.base import SourceFilter, WriteOp, WriteResult
from reranker.engines.rest_client import RestClient
from reranker.engines.wire import encode, quoted
from reranker.engines.writes import refusal
from reranker.errors import EngineAuthError, EngineError, EngineRejected, IndexMissing
from reranker.records import Hit, SearchAnswer, StoredDocument

KEEP_ALIVE = "10m"
"""How long an engine keeps a view between two batches: a throttled reader is slow."""
GET_BATCH = 1000
"""Ids a request when reading by id."""
BULK_FILTER = (
    "took,errors,error,status,items.*._id,items.*.status,items.*._seq_no,items.*._primary_term,"
    "items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
"""Parts of a bulk answer that are read: the rest need not be sent."""


def parse_search(client: RestClient, request: str, answer: dict[str, Any]) -> SearchAnswer:
    """Return a search answer as a record; `EngineUnavailable` where it has no list of hits, or hits without an id."""
    part = answer.get("hits")
    raw_hits = part.get("hits") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(raw_hits, list):
        raise client.unusable(request, "no list of hits")
    try:
        hits = tuple(_hit(raw) for raw in raw_hits)
    except (KeyError, TypeError, AttributeError):
        raise client.unusable(request, "a hit without _id or _index") from None
    total = part.get("total")
    n_hits, exact = len(hits), False
    if isinstance(total, dict):
        n_hits, exact = int(total["value"]), total.get("relation") == "eq"
    return SearchAnswer(hits, n_hits, exact, bool(answer.get("timed_out")) or failed_shards(answer) > 0, answer)


def failed_shards(answer: Mapping[str, Any]) -> int:
    """Return how many shards did not answer."""
    shards = answer.get("_shards")
    return int(shards.get("failed", 0)) if isinstance(shards, Mapping) else 0


def _hit(raw: dict[str, Any]) -> Hit:
    return Hit(raw["_id"], raw["_index"], raw.get("_score"), raw.get("_source") or {}, raw.get("fields") or {}, raw)


def _stored(raw: dict[str, Any]) -> StoredDocument:
    source, seq_no, primary_term = raw.get("_source") or {}, raw.get("_seq_no", -1), raw.get("_primary_term", -1)
    return StoredDocument(raw["_id"], raw["_index"], source, seq_no, primary_term, raw.get("_routing"))


def _source_option(client: RestClient, source: SourceFilter) -> bool | list[str]:
    option = client.dialect.whole_source if source is True else source
    return option if isinstance(option, bool) else list(option)


def get_documents(
    client: RestClient, index: str, ids: Sequence[str], source: SourceFilter
) -> list[StoredDocument | None]:
    """Return the documents in the order of the ids, also those stored under a routing that the caller does not know."""
    path = f"/{quoted(index)}"
    documents: dict[str, StoredDocument] = {}
    unique = list(dict.fromkeys(identifier for identifier in ids if identifier))
    for start in range(0, len(unique), GET_BATCH):
        part = unique[start : start + GET_BATCH]
        documents |= _multi_get(client, path, [{"_id": identifier} for identifier in part], source)
        missing = [identifier for identifier in part if identifier not in documents]
        routings = _routings(client, path, missing) if missing else {}
        if routings:
            routed = [{"_id": identifier, "routing": routing} for identifier, routing in routings.items()]
            documents |= _multi_get(client, path, routed, source)
    return [documents.get(identifier) for identifier in ids]


def _multi_get(
    client: RestClient, path: str, wanted: list[dict[str, Any]], source: SourceFilter
) -> dict[str, StoredDocument]:
    option = _source_option(client, source)
    answer = client.call("POST", f"{path}/_mget", {"docs": [{**doc, "_source": option} for doc in wanted]})
    docs = answer.get("docs")
    if not isinstance(docs, list) or [doc.get("_id") for doc in docs] != [doc["_id"] for doc in wanted]:
        raise client.unusable(f"POST {path}/_mget", "it does not name the documents asked for")
    for doc in docs:
        _check_read(client, doc)
    return {doc["_id"]: _stored(doc) for doc in docs if doc.get("found")}


def _check_read(client: RestClient, doc: Mapping[str, Any]) -> None:
    error = doc.get("error")
    if not isinstance(error, Mapping) or error.get("type") == "routing_missing_exception":
        return
    error_type, reason = str(error.get("type")), str(error.get("reason"))
    cls, status = (IndexMissing, 404) if error_type == "index_not_found_exception" else (EngineRejected, 400)
    message = f"document {doc.get('_id')!r:.60} cannot be read: {reason}; check the index's name"
    raise cls(message, engine=client.kind, status=status, error_type=error_type)


def _routings(client: RestClient, path: str, ids: list[str]) -> dict[str, str]:
    """Return id → routing of documents that only a search over all shards finds."""
    body = {"query": {"ids": {"values": ids}}, "size": len(ids), "_source": False}
    hits = parse_search(client, f"POST {path}/_search", client.call("POST", f"{path}/_search", body)).hits
    return {hit.id: hit.raw["_routing"] for hit in hits if "_routing" in hit.raw}


def scan_documents(
    client: RestClient, path: str, query: Mapping[str, Any] | None, source: SourceFilter, batch_size: int
) -> Iterator[list[StoredDocument]]:
    """Yield batches until every document of one view was seen.

    Raises
    ------
    EngineUnavailable
        The view was lost, a shard did not answer, or the documents do not add up.
    """
    body: dict[str, Any] = {
        "size": batch_size,
        "_source": _source_option(client, source),
        **({} if query is None else {"query": query}),
        "seq_no_primary_term": True,
        "track_total_hits": True,
    }
    seen = total = 0
    for answer in _pages(client, path, body):
        if failed_shards(answer) or answer.get("timed_out"):
            raise client.unusable("a scan", "a shard did not answer")
        total = int(answer["hits"]["total"]["value"])
        batch = [_stored(raw) for raw in answer["hits"]["hits"]]
        seen += len(batch)
        if batch:
            yield batch
    if seen != total:
        raise client.unusable("a scan", f"{seen} documents of {total}")


def _pages(client: RestClient, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the answers over one view: a point in time where its order is total, else a scroll."""
    if not client.dialect.shard_doc_pit:
        return _scroll(client, path, body)
    try:
        opened = client.call("POST", f"{path}/_pit", params={"keep_alive": KEEP_ALIVE})
    except IndexMissing:
        raise
    except (EngineAuthError, EngineRejected) as error:
        if error.status not in (400, 403, 404, 405):
            raise
        # A role without the right to a point in time may scroll.
        return _scroll(client, path, body)
    return _point_in_time(client, str(opened["id"]), body)


def _point_in_time(client: RestClient, view: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    page = {**body, "sort": [{"_shard_doc": "asc"}]}
    try:
        while True:
            answer = client.call("POST", "/_search", {**page, "pit": {"id": view, "keep_alive": KEEP_ALIVE}})
            yield answer
            view = str(answer.get("pit_id", view))
            hits = answer["hits"]["hits"]
            if len(hits) < body["size"]:
                return
            page["search_after"] = hits[-1]["sort"]
    finally:
        _forget(client, "/_pit", {"id": view})


def _scroll(client: RestClient, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    answer = client.call("POST", f"{path}/_search", {**body, "sort": ["_doc"]}, params={"scroll": KEEP_ALIVE})
    view = str(answer["_scroll_id"])
    try:
        while answer["hits"]["hits"]:
            yield answer
            answer = client.call("POST", "/_search/scroll", {"scroll_id": view, "scroll": KEEP_ALIVE})
            view = str(answer.get("_scroll_id", view))
        yield answer
    finally:
        _forget(client, "/_search/scroll", {"scroll_id": view})


def _forget(client: RestClient, path: str, body: dict[str, Any]) -> None:
    """Free a view; it expires by itself where that fails."""
    try:
        client.call("DELETE", path, body)
    except EngineError:
        return


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
            pair = [encode(_action_line(op))]
            if op.source is not None:
                pair.append(encode({"doc": op.source} if op.action == "update" else op.source))
        except (ValueError, TypeError) as error:
            reason = f"not writable as JSON: {error}"
            refused[place] = WriteResult(op.id, 400, "document_parsing_exception", reason)
            continue
        lines += pair
        sent.append(place)
    return (b"\n".join(lines) + b"\n" if lines else b""), sent, refused


def _action_line(op: WriteOp) -> dict[str, Any]:
    meta: dict[str, Any] = {"_id": op.id}
    if op.routing is not None:
        meta["routing"] = op.routing
    if op.if_seq_no is not None:
        meta |= {"if_seq_no": op.if_seq_no, "if_primary_term": op.if_primary_term}
    if op.version is not None:
        meta |= {"version": op.version, "version_type": "external"}
    return {op.action: meta}


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
    value = item[op.action]
    status = value.get("status") if isinstance(value, dict) else None
    if not isinstance(status, int) or value.get("_id") != op.id:
        raise ValueError(f"item {value!r:.80} where the answer to document {op.id!r:.40} belongs")
    error = value.get("error") or {}
    if not isinstance(error, dict):
        error = {"reason": str(error)}
    cause = (error.get("caused_by") or {}).get("reason")
    reason = str(error.get("reason") or "") + (f" ({cause})" if cause else "")
    error_type = str(error.get("type") or "")
    seq_no, primary_term = int(value.get("_seq_no", -1)), int(value.get("_primary_term", -1))
    return WriteResult(op.id, status, error_type, reason, seq_no, primary_term)
