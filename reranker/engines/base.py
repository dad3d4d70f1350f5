"""What a search engine is to this project: one protocol, spoken in Elasticsearch's own terms.

A request body is the Elasticsearch/OpenSearch search body. The embedded engines accept a stated subset of it and
refuse the rest with `reranker.errors.Unsupported`; they never ignore a part silently. No method retries: whoever
calls decides (the bulk loop of `indexer.bulk` for writes, the deadline of `reranker.rerank` for searches).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from reranker.config import reject_unknown
from reranker.errors import ConfigError, EngineAuthError
from reranker.records import SearchAnswer, StoredDocument

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
    """Painless for the inner product of ``params.u`` and the stored vector ``@VECTOR@``; "" where the engine cannot
    compute scores by itself."""
    hnsw: bool = False
    """A search can find documents by their vectors."""
    rescore_script: bool = False
    """A ``rescore`` may be a script, which sees the first-stage score."""
    external_versions: bool = True
    """``version_type=external`` is honoured by `Engine.bulk`."""
    point_in_time: bool = True
    """`Engine.scan` reads one consistent view."""
    max_bulk_bytes: int = 100 * 1024 * 1024
    """Largest request body accepted (``http.max_content_length``)."""
    max_dims: int = 4096
    """Largest number of dimensions of a vector field."""
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
class TakesRequests(Protocol):
    """An engine reached over HTTP, to which any request of its own API can be sent: scripts, pipelines, licences."""

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
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


_ENVIRONMENT = {
    "user": "SSI_ENGINE_USER",
    "password": "SSI_ENGINE_PASSWORD",
    "api_key": "SSI_ENGINE_API_KEY",
    "ca_file": "SSI_ENGINE_CA_FILE",
}
_TIMES = {"connect_timeout_s": "SSI_ENGINE_CONNECT_TIMEOUT", "read_timeout_s": "SSI_ENGINE_READ_TIMEOUT"}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Time limits and credentials of an engine reached over HTTP. Secrets never show in ``repr``.

    Raises
    ------
    ConfigError
        A user without password (or the reverse), both kinds of credentials, a time not above 0, no such CA file.
    """

    connect_timeout_s: float = 5.0
    """Seconds allowed for opening a connection."""
    read_timeout_s: float = 60.0
    """Seconds allowed for a whole answer, where the call sets no limit of its own."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    """HTTP basic authentication; both or neither."""
    api_key: str | None = field(default=None, repr=False)
    """The encoded API key (``id:key`` in base64), in place of user and password."""
    ca_file: str | None = None
    """Certificates (PEM) that sign the engine's own; None uses the usual ones."""
    verify: bool = True
    """False accepts any certificate: for trials only."""
    connections: int = 16
    """Most connections kept open at once."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ConfigError(
                "user and password of the engine belong together, only one is set: "
                "set both SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or neither"
            )
        if self.api_key is not None and self.user is not None:
            raise ConfigError(
                "both an API key and a user are set for the engine, it takes one kind of credentials: "
                "unset SSI_ENGINE_API_KEY, or SSI_ENGINE_USER and SSI_ENGINE_PASSWORD"
            )
        for name in _TIMES:
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a number of seconds above 0")
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigError(f"CA file {self.ca_file!r} is not a file: set SSI_ENGINE_CA_FILE to a PEM file")

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Return the legal keys of the ``[engine]`` table of a configuration file."""
        return tuple(cls.__dataclass_fields__)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] | None = None, table: Mapping[str, Any] | None = None
    ) -> EngineSettings:
        """Return the settings that the SSI_ENGINE_* variables describe; an empty variable counts as unset.

        They win over the values of a configuration file (``table``).

        Raises
        ------
        ConfigError
            A key or a value that is not legal; the message never contains a secret.
        """
        variables = os.environ if environ is None else environ
        values = dict(table or {})
        reject_unknown(values.keys(), cls.keys(), "engine settings")
        for name, value in values.items():
            _check_type(name, value)
        values |= {name: variables[key] for name, key in _ENVIRONMENT.items() if variables.get(key)}
        values |= {name: _seconds(key, variables[key]) for name, key in _TIMES.items() if variables.get(key)}
        if variables.get("SSI_ENGINE_VERIFY"):
            values["verify"] = variables["SSI_ENGINE_VERIFY"].lower() not in ("0", "false", "no")
        return cls(**values)


def _check_type(name: str, value: Any) -> None:
    """Refuse a value that is not of its key's type, without repeating it."""
    types: type | tuple[type, ...] = str
    wanted = "a text in quotes"
    if name == "verify":
        types, wanted = bool, "true or false"
    elif name in (*_TIMES, "connections"):
        types, wanted = (int, float), "a number"
    if not isinstance(value, types) or (isinstance(value, bool) and name != "verify"):
        raise ConfigError(f"engine setting {name!r} is of type {type(value).__name__}; give {wanted}", key=name)


def _seconds(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key}={text!r} is not a number of seconds; give one such as 30") from None
