"""The interface of a search engine, in Elasticsearch's terms: its operations, their arguments and results.

A request body is an Elasticsearch/OpenSearch search body. The embedded engine supports a documented subset of it and
refuses everything else with `reranker.errors.Unsupported`; it never ignores a part silently. No method retries: the
caller decides (`indexer.bulk` for writes, `reranker.engines.retry` for long commands, the deadline for searches).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from reranker.errors import EngineAuthError, EngineRejected, Unsupported
from reranker.records import MAX_ID_BYTES, SearchAnswer, StoredDocument

if TYPE_CHECKING:
    from reranker.engines.connections import HttpConnections

MAX_HITS = 10_000
"""Largest number of hits (``index.max_result_window``)."""


SourceFilter = bool | Sequence[str]
"""``_source`` option of a read: True (all), False (none), or a list of field paths."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of the connected engine, found by querying it, never derived from its name only."""

    kind: str
    """Name of the engine, for messages: ``elasticsearch``, ``opensearch`` or ``tantivy``."""
    version: str = ""
    """Version number reported by the engine; "" if unknown."""
    sparse_terms: str = ""
    """Mapping type for words with weights (``sparse_vector``, ``rank_features``); "" if there is none."""
    words_in_source: bool = True
    """Whether words with weights stand in ``_source``; otherwise an update of other fields keeps them all the same."""
    doc_value_hits: bool = False
    """Whether a search can return hits from doc values only, without reading stored fields (`SearchesDocValues`)."""
    max_bulk_bytes: int = 100 * 1024 * 1024
    """Largest request body accepted (``http.max_content_length``)."""
    product: str = ""
    """Header ``X-Elastic-Product`` of successful answers, which the vendor's clients check; "" if there is none."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version such as ``8.19.2-SNAPSHOT`` as a comparable tuple (8, 19, 2)."""
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
    """Condition on the stored document: if its numbers differ, the result has status 409."""
    version: int | None = None
    """External version: the write succeeds only if it is greater than the stored one, else status 409."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of one `WriteOp`."""

    id: str
    status: int
    """HTTP status: 200 or 201 if stored."""
    error_type: str = ""
    reason: str = ""
    """Reason of the error."""
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
    """Flat index settings (``index.number_of_shards`` → text)."""
    aliases: tuple[str, ...] = ()
    """Aliases that point to it."""
    data_stream: str | None = None
    """The data stream that it belongs to, if any."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk space used by an index, and available to it."""

    index_bytes: int
    """Size including replicas."""
    free_bytes: int | None
    """Free space of the fullest data node; None if unknown."""
    total_bytes: int | None
    """Total space of that node; None if unknown."""


@runtime_checkable
class ReportsDisk(Protocol):
    """An engine that reports the disk space of an index. Not every engine does."""

    def disk_usage(self, index: str) -> DiskUsage:
        """Return the disk space used by an index."""


@runtime_checkable
class ReadsByWrites(Protocol):
    """An engine whose documents can be read in the order of their last writes, from any sequence number on."""

    def scan_writes(
        self, index: str, seq_no: int, *, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield the documents of one snapshot whose last write has at least this sequence number, in that order."""


@runtime_checkable
class TakesRequests(Protocol):
    """An engine reached over HTTP that accepts any request of its own API."""

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that answers a request; an error status raises an `EngineError`."""


def requests_of(engine: Engine) -> TakesRequests:
    """Return the engine as one that accepts any request of its API. `Unsupported` for an embedded engine."""
    if not isinstance(engine, TakesRequests):
        kind = engine.capabilities().kind
        raise Unsupported(
            f"{kind} does not accept API requests (as for proxied searches): use Elasticsearch or OpenSearch",
            engine=kind,
        )
    return engine


@runtime_checkable
class HasConnections(Protocol):
    """An engine reached over HTTP, to which requests of others can be passed on."""

    @property
    def connections(self) -> HttpConnections:
        """The connections to the engine."""

    @property
    def is_awaitable(self) -> bool:
        """Whether an event loop can send its requests (`reranker.engines.event_loop`)."""


@runtime_checkable
class SearchesDocValues(Protocol):
    """An engine that can return hits from doc values, without reading stored fields such as ``_id`` and ``_source``."""

    def search_doc_values(
        self,
        index: str,
        body: Mapping[str, Any],
        id_field: str,
        *,
        preference: str | None = None,
        timeout_s: float | None = None,
    ) -> SearchAnswer:
        """Run a search body whose hits have only doc values: those of ``id_field`` and of its ``docvalue_fields``.

        The id of a hit is its value of ``id_field``; "" if the document has no such value.
        """

    def field_mappings(
        self, index: str, prefix: str, *, timeout_s: float | None = None
    ) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Return concrete index → name → mapping of the top-level fields whose names begin with ``prefix``.

        An index without such a field has an empty entry.
        """


@runtime_checkable
class Engine(Protocol):
    """A search engine. On failure, all methods raise subclasses of `reranker.errors.EngineError` and nothing else."""

    @property
    def spec(self) -> str:
        """The engine spec without credentials, safe for messages: ``elasticsearch:http://127.0.0.1:9200``."""

    @property
    def in_process(self) -> bool:
        """True for an embedded engine, False for a server that others may use too; needs no request."""

    def capabilities(self) -> Capabilities:
        """Return the capabilities of this engine. They are queried once and cached."""

    def index_names(self, name: str) -> tuple[str, ...]:
        """Return the concrete indexes behind an index or alias name, sorted; empty if the name does not exist."""

    def index_uuids(self, name: str) -> dict[str, str]:
        """Return concrete index → uuid for `index_names`; a recreated index has another uuid."""

    def create_index(self, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
        """Create an index with a ``mappings`` object. `EngineRejected` if it exists."""

    def delete_index(self, index: str) -> None:
        """Delete a concrete index. `IndexMissing` if it does not exist."""

    def index_info(self, index: str) -> IndexInfo:
        """Return mapping, settings and aliases of one concrete index."""

    def put_properties(self, index: str, properties: Mapping[str, Any]) -> None:
        """Add fields to a mapping; existing fields are never changed, except the path of a field alias."""

    def swap_alias(self, alias: str, add: str, remove: Sequence[str] = ()) -> None:
        """Point ``alias`` to ``add`` and remove it from ``remove`` atomically."""

    def refresh(self, index: str) -> None:
        """Make all acknowledged writes visible to search."""

    def count(self, index: str, query: Mapping[str, Any] | None = None) -> int:
        """Return the number of documents that match ``query`` (None: of all documents)."""

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Send one bulk request and return one result per operation, in order.

        Raises `EngineUnavailable` if the answer is missing, incomplete, or has another length than the request. Never
        creates a missing index: it raises `IndexMissing`, or returns a result with status 404 per operation.
        """

    def get(self, index: str, ids: Sequence[str], *, source: SourceFilter = True) -> list[StoredDocument | None]:
        """Return the stored documents in the order of ``ids``, None for each missing one (realtime read)."""

    def scan(
        self, index: str, *, query: Mapping[str, Any] | None = None, source: SourceFilter = True, batch_size: int = 500
    ) -> Iterator[list[StoredDocument]]:
        """Yield batches of the documents that match ``query`` (None: all), from one snapshot if the engine has them."""

    def search(
        self, index: str, body: Mapping[str, Any], *, preference: str | None = None, timeout_s: float | None = None
    ) -> SearchAnswer:
        """Run a search body; ``timeout_s`` bounds the whole call (`EngineUnavailable` after it)."""

    def analyze(self, index: str, field: str, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text according to the engine's own analysis chain of ``field``."""

    def close(self) -> None:
        """Release connections and files; the engine must not be used afterwards."""


def refresh_if_allowed(engine: Engine, index: str) -> None:
    """Refresh before reading. Without the right to refresh, reads see the last periodic refresh, about a second old."""
    try:
        engine.refresh(index)
    except EngineAuthError as error:
        if error.status != 403:
            raise


def ensure_index(engine: Engine, index: str, mapping: Mapping[str, Any], settings: Mapping[str, Any] | None) -> None:
    """Create an index if it is missing. It is no error if another process creates it at the same time."""
    if engine.index_names(index):
        return
    try:
        engine.create_index(index, mapping, settings)
    except EngineRejected:
        # Any other cause of the error shows up again at the first write.
        if not engine.index_names(index):
            raise


def refusal(op: WriteOp) -> WriteResult | None:
    """Return status 400 for an operation that no engine accepts, else None.

    Such an operation would make both engines refuse the whole bulk request.
    """
    reason = id_fault(op.id) or _option_fault(op)
    return None if reason is None else WriteResult(op.id, 400, "illegal_argument_exception", reason)


def id_fault(identifier: str) -> str | None:
    """Return why an id is invalid, or None. One invalid id makes both engines refuse the whole bulk request."""
    if not isinstance(identifier, str):
        return f"id {identifier!r:.80} is not a string: give ids as strings"
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        return f"id {identifier!a:.80} contains a lone surrogate, which UTF-8 cannot encode: use another id"
    if size == 0:
        return f"the id is empty; it must have 1 to {MAX_ID_BYTES} bytes of UTF-8"
    if size > MAX_ID_BYTES:
        return f"id {identifier!r:.40}... has {size} bytes; at most {MAX_ID_BYTES} are allowed: shorten or hash it"
    return None


def _option_fault(op: WriteOp) -> str | None:
    by_seq_no = op.if_seq_no is not None or op.if_primary_term is not None
    if op.version is not None and (op.action in ("create", "update") or by_seq_no):
        return f"an external version ({op.version}) is only valid for 'index' and 'delete', and without if_seq_no"
    if (op.if_seq_no is None) != (op.if_primary_term is None):
        return "if_seq_no and if_primary_term must be given together"
    if by_seq_no and op.action == "create":
        return "'create' must not have if_seq_no: the document must not exist yet"
    if (op.source is None) != (op.action == "delete"):
        return f"'{op.action}' {'must not have' if op.action == 'delete' else 'needs'} a source"
    return None
