"""Elasticsearch and OpenSearch behind the `Engine` protocol: one implementation, since both have the same HTTP API.

The official bulk helpers pair operations and answers with `zip`, so that documents are lost without notice if items are
missing. Here an answer that does not contain every operation, in order, is treated as no answer.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reranker.engines.clients import EngineClient
from reranker.engines.connections import HttpConnections
from reranker.engines.language import property_type
from reranker.engines.protocol import (
    Capabilities,
    DiskUsage,
    IndexInfo,
    SourceFilter,
    WriteOp,
    WriteResult,
    refusal,
    version_numbers,
)
from reranker.engines.retry import VIEW_LOST, Attempts
from reranker.engines.wire import check_name, failed_shards, json_bytes, own_rights, quoted
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
)
from reranker.records import Hit, SearchAnswer, StoredDocument

KEEP_ALIVE = "10m"
"""How long an engine keeps a snapshot between two batches; long, because a throttled reader is slow."""
GET_BATCH = 1000
"""Ids per request when reading by id."""
BULK_FILTER = (
    "took,errors,error,status,items.*._id,items.*.status,items.*._seq_no,items.*._primary_term,"
    "items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
"""Parts of a bulk answer that are used; the others are not transferred."""
BATCH_UNITS = 9_000
"""UTF-16 units per analysis request: an engine returns at most 10,000 tokens (``index.analyze.max_token_count``)."""
_NOTHING: Mapping[str, Any] = {}
_NODE_PARTS = "nodes.*.version,nodes.*.modules.name,nodes.*.plugins.name,nodes.*.http.max_content_length_in_bytes"


class RestEngine:
    """An engine reached over HTTP. `reranker.engines.protocol.Engine` documents the methods.

    Equal scores are in the engine's order (by shard, then by age within a segment). It is stable between requests only
    on the same copy of each shard: give all searches of one user the same ``preference``.
    """

    in_process = False

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.spec = client.spec
        self.retries = client.retries
        self._capabilities: Capabilities | None = None
        self._kinds: dict[str, Literal["index", "alias", "unknown"]] = {}

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the engine; they are queried once.

        Tried in turn until one is allowed and exists: ``_nodes/_local`` (version, modules, limits), ``_cluster/stats``
        (version), ``/`` (version; last, because some builds have no such route). For a role that may use none of them,
        the least capabilities are assumed: no version, no native vectors, no scripts. Searching and writing need none.
        """
        if self._capabilities is None:
            with own_rights():
                self._capabilities = self._ask_capabilities()
        return self._capabilities

    def _ask_capabilities(self) -> Capabilities:
        for ask in (_from_nodes, _from_stats, _from_root):
            try:
                return ask(self._client)
            except (EngineAuthError, EngineRejected) as error:
                if error.status == 401 or error.error_type in ("unsupported_product", "tls"):
                    raise
        return self._client.dialect.least

    @property
    def connections(self) -> HttpConnections:
        """The connections to the engine."""
        return self._client.connections

    @property
    def is_awaitable(self) -> bool:
        """Whether an event loop can send its requests."""
        return self._client.is_awaitable

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    @own_rights()
    def index_names(self, name: str) -> tuple[str, ...]:
        """Return the concrete indexes behind a name, sorted."""
        return tuple(self.index_uuids(name))

    def index_uuids(self, name: str) -> dict[str, str]:
        """Return concrete index → ``index.uuid`` for all indexes behind a name, sorted."""
        try:
            answer = self._client.call("GET", f"/{quoted(name)}/_settings/index.uuid", params={"flat_settings": "true"})
        except IndexMissing:
            return {}
        return {index: str(_at(answer[index], "settings", "index.uuid")) for index in sorted(answer)}

    def create_index(self, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Create an index."""
        body = {"mappings": mapping, **({"settings": settings} if settings else {})}
        fields = set(mapping.get("properties") or {})
        self._acknowledged(
            "PUT", f"/{quoted(index)}", body, lambda: bool(self.index_names(index)) and fields <= self._fields(index)
        )

    def delete_index(self, index: str) -> None:
        """Delete a concrete index."""
        self._kinds.pop(index, None)
        self._acknowledged("DELETE", f"/{quoted(index)}", None, lambda: not self.index_names(index))

    def _fields(self, index: str) -> set[str]:
        return set(self.index_info(index).properties)

    @own_rights()
    def index_info(self, index: str) -> IndexInfo:
        """Return mapping, settings and aliases of one index."""
        answer = self._client.call("GET", f"/{quoted(index)}", params={"flat_settings": "true"})
        if len(answer) != 1:
            message = f"{index!r} refers to {len(answer)} indexes ({', '.join(sorted(answer)[:5])}): name one of them"
            raise EngineRejected(message, engine=self._client.kind, status=400)
        ((name, about),) = answer.items()
        mapping = about.get("mappings") or {}
        settings = {key: str(value) for key, value in about["settings"].items()}
        aliases = tuple(sorted(about.get("aliases") or {}))
        return IndexInfo(name, mapping.get("properties") or {}, mapping, settings, aliases, about.get("data_stream"))

    def disk_usage(self, index: str) -> DiskUsage:
        """Return the size of an index and the space of the fullest data node, whose disk triggers write blocks."""
        stats = self._client.call("GET", f"/{quoted(index)}/_stats/store")
        index_bytes = int(_at(stats, "_all", "total", "store", "size_in_bytes"))
        nodes = self._client.call("GET", "/_nodes/stats/fs").get("nodes") or {}
        spaces = [
            (int(_at(node, "fs", "total", "available_in_bytes")), int(_at(node, "fs", "total", "total_in_bytes")))
            for node in nodes.values()
            if "data" in node.get("roles", ["data"])
        ]
        spaces = [space for space in spaces if space[1] > 0]
        if not spaces:
            return DiskUsage(index_bytes, None, None)
        return DiskUsage(index_bytes, *min(spaces, key=lambda space: space[0] / space[1]))

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the answer to any request of the engine's API (`reranker.engines.protocol.TakesRequests`)."""
        return self._client.call(method, path, body, params=params, timeout_s=timeout_s)

    def put_properties(self, index: str, properties: Mapping[str, Any]) -> None:
        """Add fields to a mapping; existing fields of the same type are not changed, except the path of an alias."""
        for name in self._names(index):
            known = self.index_info(name).properties
            for field, definition in properties.items():
                if field in known and property_type(known[field]) != property_type(definition):
                    raise EngineRejected(
                        f"field {field!r} of index {name!r} has type {property_type(known[field])!r} and cannot become "
                        f"{property_type(definition)!r}: use another name or a new index",
                        engine=self._client.kind,
                        status=400,
                        error_type="illegal_argument_exception",
                    )
            added = {
                field: definition
                for field, definition in properties.items()
                if field not in known or (property_type(definition) == "alias" and definition != known[field])
            }
            if added:
                self._acknowledged("PUT", f"/{quoted(name)}/_mapping", {"properties": added})

    def swap_alias(self, alias: str, add: str, remove: Sequence[str] = ()) -> None:
        """Change one alias atomically."""
        # Without must_exist, a missing alias is skipped silently and the other actions are executed.
        removals = [
            {"remove": {"index": check_name(index), "alias": alias, "must_exist": True}}
            for index in remove
            if index != add
        ]
        addition = {"add": {"index": check_name(add), "alias": check_name(alias)}}
        self._kinds.pop(alias, None)

        def swapped() -> bool:
            names = set(self.index_names(alias))
            return add in names and not names & (set(remove) - {add})

        self._acknowledged("POST", "/_aliases", {"actions": [*removals, addition]}, swapped)

    def refresh(self, index: str) -> None:
        """Make all acknowledged writes visible to search."""
        self._whole("POST", f"/{quoted(index)}/_refresh", None)

    def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of matching documents."""
        body = None if query is None else {"query": query}
        return int(self._whole("POST", f"/{quoted(index)}/_count", body)["count"])

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Send one bulk request; operations that no engine accepts get status 400 without being sent."""
        data, sent, results = bulk_body(ops)
        params = {**self._must_exist(index), "filter_path": BULK_FILTER}
        if sent:
            path = f"/{quoted(index)}/_bulk"
            answer = self._client.call("POST", path, data, params=params)
            try:
                answered = bulk_results([ops[place] for place in sent], answer)
            except ValueError as error:
                raise self._client.unusable(f"POST {path}", str(error)) from None
            if all(result.error_type == "index_not_found_exception" for result in answered):
                self._kinds.pop(index, None)
                raise self._missing(index)
            results |= dict(zip(sent, answered, strict=True))
        return [results[place] for place in range(len(ops))]

    def get(self, index: str, ids: Sequence[str], *, source: SourceFilter = True) -> list[StoredDocument | None]:
        """Return stored documents by id, including those stored with a routing that the caller does not know."""
        path = f"/{quoted(index)}"
        documents: dict[str, StoredDocument] = {}
        unique = list(dict.fromkeys(identifier for identifier in ids if identifier))
        for start in range(0, len(unique), GET_BATCH):
            part = unique[start : start + GET_BATCH]
            documents |= self._multi_get(path, [{"_id": identifier} for identifier in part], source)
            missing = [identifier for identifier in part if identifier not in documents]
            if missing:
                # Documents with a custom routing are found by a search over all shards.
                found = {"query": {"ids": {"values": missing}}, "size": len(missing), "_source": False}
                hits = [hit for hit in self.search(index, found).hits if "_routing" in hit.raw]
                routed = [{"_id": hit.id, "routing": hit.raw["_routing"]} for hit in hits]
                documents |= self._multi_get(path, routed, source) if routed else {}
        return [documents.get(identifier) for identifier in ids]

    def _multi_get(self, path: str, wanted: list[dict[str, Any]], source: SourceFilter) -> dict[str, StoredDocument]:
        option = self._source_option(source)
        body = {"docs": [{**doc, "_source": option} for doc in wanted]}
        answer = self._client.call("POST", f"{path}/_mget", body, repeatable=True)
        docs = answer.get("docs")
        if not isinstance(docs, list) or [doc.get("_id") for doc in docs] != [doc["_id"] for doc in wanted]:
            raise self._client.unusable(f"POST {path}/_mget", "it does not have the requested documents in order")
        for doc in docs:
            error = doc.get("error")
            if isinstance(error, Mapping) and error.get("type") != "routing_missing_exception":
                error_type, reason = str(error.get("type")), str(error.get("reason"))
                missing = error_type == "index_not_found_exception"
                cls, status = (IndexMissing, 404) if missing else (EngineRejected, 400)
                message = f"document {doc.get('_id')!r:.60} cannot be read: {reason}; check the name of the index"
                raise cls(message, engine=self._client.kind, status=status, error_type=error_type)
        return {doc["_id"]: _stored(doc) for doc in docs if doc.get("found")}

    def _source_option(self, source: SourceFilter) -> bool | list[str]:
        option = self._client.dialect.whole_source if source is True else source
        return option if isinstance(option, bool) else list(option)

    def scan(
        self, index: str, *, query: Mapping[str, Any] | None = None, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all matching documents of one snapshot. `EngineUnavailable` if it, a shard or a document is lost."""
        return self._scan(index, query, source, batch_size, None)

    def scan_writes(
        self, index: str, seq_no: int, *, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield documents as `scan` does, but only those last written at ``seq_no`` or later, in order of writing.

        Sequence numbers are counted per shard; documents of different shards with equal numbers are in any order.
        """
        query = {"range": {"_seq_no": {"gte": seq_no}}} if seq_no > 0 else None
        return self._scan(index, query, source, batch_size, "_seq_no")

    def _scan(
        self, index: str, query: Mapping[str, Any] | None, source: SourceFilter, batch_size: int, order: str | None
    ) -> Iterator[list[StoredDocument]]:
        if not 1 <= batch_size <= 10_000:
            raise EngineRejected(f"batch_size is {batch_size}; it must be from 1 to 10,000", status=400)
        body: dict[str, Any] = {
            "size": batch_size,
            "_source": self._source_option(source),
            **({} if query is None else {"query": query}),
            "seq_no_primary_term": True,
            "track_total_hits": True,
        }
        if order is not None:
            body["sort"] = [{order: "asc"}]
        if self.retries is not None:
            return self._resuming(index, body)
        return self._documents(f"/{quoted(index)}", body)

    def _resuming(self, index: str, body: dict[str, Any]) -> Iterator[list[StoredDocument]]:
        """Yield the documents of a scan that continues in a new snapshot if the current one, or a page of it, is lost.

        A page of a scroll cannot be requested again, because the engine has moved on even if its answer was lost. The
        first snapshot is read in its own order, which is fastest but meaningless in another snapshot. All later ones
        are read in the order of last writes (``_seq_no``), each from the last number read. Documents that were already
        yielded are skipped, even if they have been changed since and now have a greater number.

        The error is raised if the name now refers to other indexes, or this role may not check that.
        """
        attempts = Attempts(self.retries, f"{self._client.kind}: the scan of {index!r}", resumes=True)
        path, identity = f"/{quoted(index)}", self._identity(index)
        yielded, last = _Yielded(), 0
        page = dict(body)
        while True:
            try:
                for batch in self._documents(path, page):
                    before = last
                    if "sort" in page:
                        last = batch[-1].seq_no
                    fresh = yielded.without_known(batch)
                    if fresh or last > before:
                        attempts.succeeded()
                    if fresh:
                        yield fresh
                return
            except (EngineUnavailable, EngineOverloaded) as error:
                attempts.wait(error)
                if identity is None or self._identity(index) != identity:
                    raise
            yielded.view_lost()
            since = {"range": {"_seq_no": {"gte": last}}}
            page["query"] = {"bool": {"filter": [since, *([body["query"]] if "query" in body else [])]}}
            page["sort"] = [{"_seq_no": "asc"}]

    def _identity(self, index: str) -> dict[str, str] | None:
        """Return index → uuid of the indexes behind a name; None if the role may not query them."""
        try:
            return self.index_uuids(index)
        except EngineAuthError as error:
            if error.status == 401:
                raise
            return None

    def _documents(self, path: str, body: dict[str, Any]) -> Iterator[list[StoredDocument]]:
        """Yield the documents of one snapshot."""
        seen, total = 0, None
        try:
            for answer in self._pages(path, body):
                if total is None:
                    total = int(answer["hits"]["total"]["value"])
                batch = [_stored(raw) for raw in answer["hits"]["hits"]]
                seen += len(batch)
                if batch:
                    yield batch
        except KeyError as error:
            raise self._client.unusable("a scan", f"it has no {error}") from error
        if seen != total:
            raise self._client.unusable("a scan", f"it returned {seen} documents of {total}")

    def _pages(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the pages of one snapshot: a point in time if it can be read in a total order, else a scroll."""
        if not self._client.dialect.shard_doc_pit:
            return self._scroll(path, body)
        try:
            opened = self._client.call("POST", f"{path}/_pit", params={"keep_alive": KEEP_ALIVE}, repeatable=True)
        except IndexMissing:
            raise
        except (EngineAuthError, EngineRejected) as error:
            if error.status not in (400, 403, 404, 405):
                raise
            # A role that may not open a point in time may still use a scroll.
            return self._scroll(path, body)
        return self._point_in_time(str(opened["id"]), body)

    def _point_in_time(self, view: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        # With another sort, the engine breaks ties by _shard_doc itself.
        page = {"sort": [{"_shard_doc": "asc"}], **body}
        try:
            while True:
                pit = {"id": view, "keep_alive": KEEP_ALIVE}
                answer = self._whole("POST", "/_search", {**page, "pit": pit})
                yield answer
                view = str(answer.get("pit_id", view))
                hits = answer["hits"]["hits"]
                if len(hits) < body["size"]:
                    return
                page |= {"search_after": hits[-1]["sort"], "track_total_hits": False}
        finally:
            self._forget("/_pit", {"id": view})

    def _scroll(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        params = {"scroll": KEEP_ALIVE}
        first = {"sort": ["_doc"], **body}
        answer = self._client.call("POST", f"{path}/_search", first, params=params, repeatable=True)
        view = str(answer["_scroll_id"])
        try:
            self._check_shards(answer, "a scan")
            while answer["hits"]["hits"]:
                yield answer
                # Not repeatable: each request advances the scroll.
                answer = self._client.call("POST", "/_search/scroll", {"scroll_id": view, "scroll": KEEP_ALIVE})
                view = str(answer.get("_scroll_id", view))
                self._check_shards(answer, "a scan")
            yield answer
        finally:
            self._forget("/_search/scroll", {"scroll_id": view})

    def _forget(self, path: str, body: dict[str, Any]) -> None:
        """Release a snapshot; if that fails, it expires by itself."""
        with suppress(EngineError):
            self._client.call("DELETE", path, body)

    def search(
        self, index: str, body: Mapping[str, Any], *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        """Run a search body; the ``index`` is ignored for a body with its own ``pit``, which determines the indexes."""
        return self._search(index, body, _hits, preference, timeout_s)

    def search_doc_values(
        self,
        index: str,
        body: Mapping[str, Any],
        id_field: str,
        *,
        preference: str | None = None,
        timeout_s: float | None = None,
    ) -> SearchAnswer:
        """Run a search body without stored fields; the id of a hit is its doc value of ``id_field``, "" without one."""
        request = {
            **body,
            "_source": False,
            "stored_fields": "_none_",
            "docvalue_fields": [id_field, *body.get("docvalue_fields", ())],
        }
        answer = self._search(index, request, lambda raw: _hits_of_values(raw, id_field), preference, timeout_s)
        return replace(answer, ids_are_values=True)

    @own_rights()
    def field_mappings(
        self, index: str, prefix: str, *, timeout_s: float | None = None
    ) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Return concrete index → name → mapping of the top-level fields whose names begin with ``prefix``."""
        # Not _mapping/field, because that needs another privilege.
        answer = self._client.call("GET", f"/{quoted(index)}/_mapping", timeout_s=timeout_s)
        properties = {name: (about.get("mappings") or {}).get("properties") or {} for name, about in answer.items()}
        return {
            name: {field: how for field, how in fields.items() if field.startswith(prefix)}
            for name, fields in properties.items()
        }

    def _search(
        self,
        index: str,
        body: Mapping[str, Any],
        hits_of: Callable[[list[dict[str, Any]]], list[Hit]],
        preference: str | None,
        timeout_s: float | None,
    ) -> SearchAnswer:
        path = "/_search" if "pit" in body else f"/{quoted(index)}/_search"
        params = {"preference": preference} if preference is not None and "pit" not in body else None
        answer = self._client.call("POST", path, body, params=params, timeout_s=timeout_s, repeatable=True)
        part = answer.get("hits")
        raw_hits = part.get("hits") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(raw_hits, list):
            raise self._client.unusable(f"POST {path}", "no list of hits")
        try:
            hits = tuple(hits_of(raw_hits))
        except (KeyError, TypeError, AttributeError):
            raise self._client.unusable(f"POST {path}", "a hit without _id or _index") from None
        total = part.get("total")
        n_hits, exact = len(hits), False
        if isinstance(total, dict):
            n_hits, exact = int(total["value"]), total.get("relation") == "eq"
        return SearchAnswer(hits, n_hits, exact, bool(answer.get("timed_out")) or failed_shards(answer) > 0, answer)

    @own_rights()
    def analyze(self, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text according to the analysis chain of ``field``, in order.

        For several texts an engine returns one flat list of tokens. Their offsets continue from text to text, with a
        gap of one unit, and show which text a token belongs to. Long texts are split at white space to stay below the
        engine's limit.
        """
        name = self._names(index)[0]
        mappings = self._client.call("GET", f"/{quoted(name)}/_mapping/field/{quoted(field)}")
        if not any(about.get("mappings") for about in mappings.values()):
            # The engine would use its default analyzer silently.
            message = f"index {name!r} has no field {field!r} for analysis: check the name against its mapping"
            raise EngineRejected(message, engine=self._client.kind, status=400)
        tokens: list[list[str]] = [[] for _ in texts]
        for group in _groups(texts):
            answers = _tokens(self._client, name, field, [piece for _, piece in group])
            for (place, _), part in zip(group, answers, strict=True):
                tokens[place] += part
        return tokens

    def _names(self, index: str) -> tuple[str, ...]:
        names = self.index_names(index)
        if not names:
            raise self._missing(index)
        return names

    def _missing(self, index: str) -> IndexMissing:
        message = f"there is no index or alias {index!r} at {self.spec}: check the name, or create it first"
        return IndexMissing(message, engine=self._client.kind, status=404, error_type="index_not_found_exception")

    def _must_exist(self, index: str) -> dict[str, str]:
        """Return the parameters that keep a bulk request from creating the index, or check that the index exists.

        ``require_alias`` protects an alias. There is no such parameter for an index, so that its existence is checked
        before each request. This costs a millisecond, but both engines silently create an index for a mistyped name.
        """
        kind = self._kinds.get(index)
        if kind is None:
            kind = self._kinds[index] = self._kind(index)
        elif kind == "index" and not self._client.exists(f"/{quoted(index)}"):
            self._kinds.pop(index, None)
            raise self._missing(index)
        return {"require_alias": "true"} if kind == "alias" else {}

    def _kind(self, index: str) -> Literal["index", "alias", "unknown"]:
        try:
            names = self._names(index)
        except EngineAuthError as error:
            if error.status == 401:
                raise
            # A role that may write but not read settings may not create indexes either.
            return "unknown"
        if names == (index,):
            return "index"
        # require_alias would refuse a data stream, although its name differs from those of its backing indexes.
        return "unknown" if any(name.startswith(".ds-") for name in names) else "alias"

    def _acknowledged(
        self, method: str, path: str, body: Mapping[str, Any] | None, is_done: Callable[[], bool] = lambda: False
    ) -> None:
        """Make a change; it is no error if a retry is refused because an earlier attempt was executed.

        ``is_done`` returns whether the change is in place. It is called only after an attempt whose answer was lost.
        """
        attempts = Attempts(self.retries, f"{self._client.kind}: {method} {path}")
        may_be_done = False
        while True:
            try:
                answer = self._client.call(method, path, body)
                if answer.get("acknowledged") is True:
                    return
                raise self._client.unusable(f"{method} {path}", "not acknowledged by all nodes within the time limit")
            except (EngineRejected, IndexMissing):
                if may_be_done and is_done():
                    return
                raise
            except EngineError as error:
                attempts.wait(error)
                may_be_done = True

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the answer of all shards to a repeatable request."""

        def ask() -> dict[str, Any]:
            answer = self._client.call(method, path, body)
            self._check_shards(answer, f"{method} {path}")
            return answer

        return self._client.retried(f"{method} {path}", ask)

    def _check_shards(self, answer: Mapping[str, Any], request: str) -> None:
        """Raise `EngineUnavailable` if a shard failed; its ``error_type`` shows whether a snapshot was lost."""
        if not (failed := failed_shards(answer)) and not answer.get("timed_out"):
            return
        error = self._client.unusable(request, f"shards did not answer ({failed} failed)")
        reasons = [failure.get("reason") or {} for failure in answer.get("_shards", {}).get("failures") or ()]
        if any(reason.get("type") == VIEW_LOST for reason in reasons):
            error.data["error_type"] = VIEW_LOST
        raise error


def _from_nodes(client: EngineClient) -> Capabilities:
    answer = client.call("GET", "/_nodes/_local", params={"filter_path": _NODE_PARTS})
    nodes = list(answer.get("nodes", {}).values())
    if not nodes:
        raise EngineRejected("the engine did not report any node", status=404)
    node = nodes[0]
    modules = {item["name"] for part in ("modules", "plugins") for item in node.get(part, [])}
    limit = node.get("http", {}).get("max_content_length_in_bytes")
    return client.dialect.capabilities(str(node.get("version", "")), modules, limit)


def _from_stats(client: EngineClient) -> Capabilities:
    answer = client.call("GET", "/_cluster/stats", params={"filter_path": "nodes.versions,nodes.plugins.name"})
    versions = answer.get("nodes", {}).get("versions", [])
    # The oldest node limits the capabilities of the cluster.
    return client.dialect.capabilities(min(versions, key=version_numbers, default=""))


def _from_root(client: EngineClient) -> Capabilities:
    answer = client.call("GET", "/")
    return client.dialect.capabilities(str(answer.get("version", {}).get("number", "")))


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value or 0


def units(text: str) -> int:
    """Return the length of a text in UTF-16 units, the units of the engines' offsets."""
    return len(text) + sum(char > "\uffff" for char in text)


def _groups(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield groups of (index of the text, piece) with at most `BATCH_UNITS` units each."""
    group: list[tuple[int, str]] = []
    size = 0
    for place, text in enumerate(texts):
        for piece in pieces(text):
            length = units(piece) + 1
            if group and size + length > BATCH_UNITS:
                yield group
                group, size = [], 0
            group.append((place, piece))
            size += length
    if group:
        yield group


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of about half a batch at most, split at white space if possible."""
    most = BATCH_UNITS // 2
    start = 0
    while len(text) - start > most:
        cut = max(text.rfind(" ", start + 1, start + most), text.rfind("\n", start + 1, start + most))
        end = cut if cut > start else start + most
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _tokens(client: EngineClient, index: str, field: str, texts: list[str]) -> list[list[str]]:
    path = f"/{quoted(index)}/_analyze"
    tokens = client.call("POST", path, {"field": field, "text": texts}, repeatable=True).get("tokens")
    if not isinstance(tokens, list):
        raise client.unusable(f"POST /{index}/_analyze", "no list of tokens")
    split = _by_offset(texts, tokens)
    if split is not None:
        return split
    # Some token filters change offsets so that they cannot be assigned to texts: send one text per request.
    answers = [client.call("POST", path, {"field": field, "text": text}, repeatable=True) for text in texts]
    return [[str(token["token"]) for token in answer["tokens"]] for answer in answers]


def _by_offset(texts: list[str], tokens: list[dict[str, Any]]) -> list[list[str]] | None:
    """Return the tokens of each text; None if the offsets of a token are outside of all texts or span two."""
    starts = list(accumulate((units(text) + 1 for text in texts), initial=0))
    split: list[list[str]] = [[] for _ in texts]
    place = 0
    for token in tokens:
        before, place = place, bisect_right(starts, int(token["start_offset"])) - 1
        if place < before or place == len(texts) or int(token["end_offset"]) >= starts[place + 1]:
            return None
        split[place].append(str(token["token"]))
    return split


class _Yielded:
    """The documents that a scan has yielded, as 64-bit hashes: 8 bytes per document."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.uint64]] = []
        self._known: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def without_known(self, batch: list[StoredDocument]) -> list[StoredDocument]:
        """Return the documents that were not yielded from an earlier snapshot, and remember them."""
        keys = np.array([_hash_of(document) for document in batch], np.uint64)
        if self._known.size:
            is_new = ~np.isin(keys, self._known)
            batch, keys = [document for document, new in zip(batch, is_new, strict=True) if new], keys[is_new]
        self._parts.append(keys)
        return batch

    def view_lost(self) -> None:
        """Start a new snapshot: from now on, skip all documents yielded so far."""
        self._known = np.unique(np.concatenate([self._known, *self._parts]))
        self._parts = []


def _hash_of(document: StoredDocument) -> int:
    key = "\0".join((document.index, document.routing or "", document.id)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def _hits(raw_hits: list[dict[str, Any]]) -> list[Hit]:
    return [
        Hit(raw["_id"], raw["_index"], raw.get("_score"), raw.get("_source") or {}, raw.get("fields") or {}, raw)
        for raw in raw_hits
    ]


def _hits_of_values(raw_hits: list[dict[str, Any]], id_field: str) -> list[Hit]:
    """Return hits without stored fields; their ``raw`` has the id in the usual place, and no doc values."""
    hits = []
    for raw in raw_hits:
        fields = raw.pop("fields", None) or _NOTHING
        raw["_id"] = identifier = fields[id_field][0] if id_field in fields else ""
        hits.append(Hit(identifier, raw["_index"], raw.get("_score"), _NOTHING, fields, raw))
    return hits


def _stored(raw: dict[str, Any]) -> StoredDocument:
    source, seq_no, primary_term = raw.get("_source") or {}, raw.get("_seq_no", -1), raw.get("_primary_term", -1)
    return StoredDocument(raw["_id"], raw["_index"], source, seq_no, primary_term, raw.get("_routing"))


def bulk_body(ops: Sequence[WriteOp]) -> tuple[bytes, list[int], dict[int, WriteResult]]:
    """Return the body of a bulk request, the indices of the operations in it, and the results of the others.

    Operations that would fail the whole request (empty or too long ids) or cannot be encoded as JSON (NaN, lone
    surrogates) are not part of the body; their results have status 400 and are keyed by index.
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
            pair = [json_bytes(_action_line(op))]
            if op.source is not None:
                pair.append(json_bytes({"doc": op.source} if op.action == "update" else op.source))
        except (ValueError, TypeError) as error:
            reason = f"cannot be encoded as JSON: {error}"
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
    """Return one result per operation, in order. `ValueError` if items are missing, surplus, misplaced or malformed."""
    items = answer.get("items")
    if not isinstance(items, list):
        raise ValueError("no list of items")
    if len(items) != len(ops):
        raise ValueError(f"{len(items)} items for {len(ops)} operations")
    return [_result(op, item) for op, item in zip(ops, items, strict=True)]


def _result(op: WriteOp, item: Any) -> WriteResult:
    if not isinstance(item, dict) or list(item) != [op.action]:
        raise ValueError(f"item {item!r:.80} in place of the answer to {op.action} {op.id!r:.40}")
    value = item[op.action]
    status = value.get("status") if isinstance(value, dict) else None
    if not isinstance(status, int) or value.get("_id") != op.id:
        raise ValueError(f"item {value!r:.80} in place of the answer to document {op.id!r:.40}")
    error = value.get("error") or {}
    if not isinstance(error, dict):
        error = {"reason": str(error)}
    cause = (error.get("caused_by") or {}).get("reason")
    reason = str(error.get("reason") or "") + (f" ({cause})" if cause else "")
    error_type = str(error.get("type") or "")
    seq_no, primary_term = int(value.get("_seq_no", -1)), int(value.get("_primary_term", -1))
    return WriteResult(op.id, status, error_type, reason, seq_no, primary_term)
