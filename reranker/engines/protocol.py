"""The protocol of a search engine, in Elasticsearch's own terms: the operations, what goes in and what comes out.

A request body is the Elasticsearch/OpenSearch search body. The embedded engine accepts a stated subset of it and
refuses the rest with `reranker.errors.Unsupported`; it never ignores a part silently. No method retries by itself: the
caller decides (`indexer.bulk` for writes, `reranker.engines.retry` for long commands, the deadline of a search).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from reranker.errors import EngineAuthError, EngineRejected
from reranker.records import MAX_ID_BYTES, SearchAnswer, StoredDocument

MAX_HITS = 10_000
"""Largest answer of an engine (``index.max_result_window``), and largest ``num_candidates`` and rescore window."""


SourceFilter = bool | Sequence[str]
"""``_source`` of a read: True (all), False (none) or the field paths wanted."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine at hand can do, found by asking it, never by its name alone."""

    kind: str
    """Name of the engine, for messages: ``elasticsearch``, ``opensearch`` or ``tantivy``."""
    version: str = ""
    """Version number as the engine tells it, or "" where it does not."""
    dense_vector: str = ""
    """Mapping type for a stored vector (``dense_vector``, ``knn_vector``), or "" where there is none."""
    sparse_terms: str = ""
    """Mapping type for words with weights (``sparse_vector``, ``rank_features``), or ""."""
    painless: bool = False
    """Scripts can be run in a query: the language is there and the cluster's settings allow it."""
    vector_product: str = ""
    """Painless for the inner product of ``params.u`` and the stored vector ``@VECTOR@``; "" where there is none."""
    hnsw: bool = False
    """A search can find documents by their vectors."""
    rescore_script: bool = False
    """A ``rescore`` may be a script, which sees the first-stage score."""
    max_bulk_bytes: int = 100 * 1024 * 1024
    """Largest request body accepted (``http.max_content_length``)."""
    max_dims: int = 4096
    """Largest number of dimensions of a vector field."""
    product: str = ""
    """What good answers carry as ``X-Elastic-Product``, for which the vendor's clients look; "": nothing."""
    modules: frozenset[str] | None = None
    """Names of modules and plugins; None where the engine did not tell."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return ``8.19.2-SNAPSHOT`` as (8, 19, 2), to compare by."""
    return tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())


@dataclass(frozen=True, slots=True)
class WriteOp:
    """One document write of a bulk request."""

    action: Literal["index", "create", "update", "delete"]
    id: str
    source: Mapping[str, Any] | None = None
    """The document, or the part that ``update`` merges into the stored one; None for ``delete``."""
    routing: str | None = None
    """Shard routing of the document."""
    if_seq_no: int | None = None
    if_primary_term: int | None = None
    """Write only over exactly this version, else the result has status 409."""
    version: int | None = None
    """External version: written only if greater than the stored one, else status 409."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The engine's word on one `WriteOp`: HTTP-like ``status`` (200/201 stored), or the error's type and reason."""

    id: str
    status: int
    error_type: str = ""
    reason: str = ""
    seq_no: int = -1
    primary_term: int = -1


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """A concrete index."""

    name: str
    properties: Mapping[str, Any]
    mapping: Mapping[str, Any] = field(default_factory=dict)
    """The whole ``mappings`` object: ``properties``, ``_source``, ``dynamic``, ``_routing``, ``_meta``."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Flat index settings (``index.number_of_shards`` → str)."""
    aliases: tuple[str, ...] = ()
    """Aliases that point to it."""
    data_stream: str | None = None
    """The data stream it backs, if any."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Size of an index, copies included, and space of the fullest data node; None where the engine does not tell."""

    index_bytes: int
    free_bytes: int | None
    total_bytes: int | None


@runtime_checkable
class ReportsDisk(Protocol):
    """An engine that tells how much disk an index takes; not part of every engine."""

    def disk_usage(self, index: str) -> DiskUsage:
        """Return the disk space behind an index."""


@runtime_checkable
class ReadsByWrites(Protocol):
    """An engine whose documents can be read in the order of their last writes, from any of them on."""

    def scan_writes(
        self, index: str, seq_no: int, *, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all documents of one view whose last write has this number or a greater one, in that order."""


@runtime_checkable
class TakesRequests(Protocol):
    """An engine reached over HTTP, to which any request of its own API can be sent: scripts, pipelines, licences."""

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request; an error status raises an `EngineError`."""


@runtime_checkable
class Engine(Protocol):
    """A search engine. All methods raise subclasses of `reranker.errors.EngineError`, and nothing else, on failure."""

    @property
    def spec(self) -> str:
        """The engine spec without credentials, fit for messages: ``elasticsearch:http://127.0.0.1:9200``."""

    @property
    def in_process(self) -> bool:
        """True for an embedded engine, False for a server that others may use too; known without asking it."""

    def capabilities(self) -> Capabilities:
        """Return what this engine can do; asked once, then remembered."""

    def index_names(self, name: str) -> tuple[str, ...]:
        """Return the concrete indexes behind an index or alias name, sorted; empty where it does not exist."""

    def index_uuids(self, name: str) -> dict[str, str]:
        """Return `index_names` with what tells each index from another that had its name before."""

    def create_index(self, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Create an index with a ``mappings`` object; `EngineRejected` where it exists."""

    def delete_index(self, index: str) -> None:
        """Delete a concrete index; `IndexMissing` where it is not there."""

    def index_info(self, index: str) -> IndexInfo:
        """Return mapping, settings and aliases of one concrete index."""

    def put_properties(self, index: str, properties: Mapping[str, Any]) -> None:
        """Add fields to a mapping; never changes an existing one."""

    def swap_alias(self, alias: str, add: str, remove: Sequence[str] = ()) -> None:
        """Point ``alias`` to ``add`` and take it from ``remove`` in one atomic step."""

    def refresh(self, index: str) -> None:
        """Make all acknowledged writes visible to search."""

    def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of documents (that match ``query``)."""

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Send one bulk request and return one result an operation, in order.

        Raises `EngineUnavailable` when the answer is missing, cut or of another length than the request, and never
        creates an index that does not exist (`IndexMissing` instead, or a result with status 404 an operation).
        """

    def get(self, index: str, ids: Sequence[str], *, source: SourceFilter = True) -> list[StoredDocument | None]:
        """Return the stored documents in the order of ``ids``, None for each that is not there (realtime read)."""

    def scan(
        self, index: str, *, query: Mapping[str, Any] | None = None, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield all documents (that match ``query``) in batches, over one consistent view where the engine has it."""

    def search(
        self, index: str, body: Mapping[str, Any], *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        """Run a search body; ``timeout_s`` bounds the whole call (`EngineUnavailable` past it)."""

    def analyze(self, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens that the engine's own analysis chain of ``field`` makes of each text."""

    def close(self) -> None:
        """Release connections and files; the engine is not used afterwards."""


def refresh_if_allowed(engine: Engine, index: str) -> None:
    """Refresh before reading; a role that may not reads what the last refresh, about a second ago, left."""
    try:
        engine.refresh(index)
    except EngineAuthError as error:
        if error.status != 403:
            raise


def ensure_index(engine: Engine, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None) -> None:
    """Create an index where it is missing; that somebody else made it meanwhile is no error."""
    if engine.index_names(index):
        return
    try:
        engine.create_index(index, mapping, settings)
    except EngineRejected:
        # Anything but that shows again with the first write.
        if not engine.index_names(index):
            raise


def refusal(op: WriteOp) -> WriteResult | None:
    """Return the 400 of an operation that no engine takes, or None: one such fails a whole bulk request on both."""
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
