"""The fields of a version: whether an index can take them, made of its documents, with the same rows in a local store.

Adding fields to a stored document means that the engine writes the whole document anew from its ``_source``. Wherever
that is not the document its owner sent, or wherever a write has side effects, `preflight` refuses the index with the
remedy, before the first write.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reranker.engines.protocol import Capabilities, DiskUsage, Engine, IndexInfo, ReportsDisk
from reranker.engines.vectors import (
    FIELD_PREFIX,
    NATIVE_ROUTES,
    FieldWriter,
    field_name,
    native_parts,
    native_settings,
    version_fields,
)
from reranker.engines.wire import json_bytes
from reranker.errors import ConfigError, EngineAuthError, EngineRejected, PreflightRefused
from reranker.models.ranking_model import EncodedDocuments, Encoder
from reranker.store import MANIFEST, StoreWriter, VectorStore

ENCODE_BATCH = 256
"""Documents encoded at once: enough to keep the vector code busy, little enough to hold in memory."""


class VersionEncoder:
    """Encodes documents for one index: the version's fields, and its rows in the store of route *beside*.

    The store, where a path to it is given, is open while the encoder is used as a context manager. ``capabilities``, of
    the engine written to, are needed for routes `inside` and `first-stage`, whose fields differ between engines.

    `ConfigError` if they are needed and not given. `Unsupported` if the engine cannot carry a route.
    """

    def __init__(
        self,
        encoder: Encoder,
        routes: tuple[str, ...] = ("fetch",),
        store_path: Path | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.encoder, self.routes, self.store_path = encoder, routes, store_path
        self.encoder_id = encoder.encoder_id
        # Fields of the text view; the field that holds the hash of the text a vector was made from; and what to read of
        # a document to know whether its fields are current, and to renew them.
        self.text_paths = [spec.path for spec in encoder.view.fields]
        self.src_field = field_name(encoder.encoder_id, "src")
        self.read_fields = [*self.text_paths, self.src_field]
        # What `_src` of a document with this text would be.
        self.source_hash = encoder.view.source_hash
        # Index settings that the routes need, which cannot be changed later.
        self.settings = native_settings(routes, capabilities) if capabilities else {}
        native: tuple[str, ...] = ()
        norm = 1.0
        if set(NATIVE_ROUTES) & set(routes):
            if capabilities is None:
                raise ConfigError(f"routes {', '.join(routes)}: name the engine's capabilities, fields differ")
            native, norm = native_parts(routes, capabilities), encoder.norm_bound
        self._sparse = field_name(encoder.encoder_id, "terms_sparse")
        if "terms_sparse" in native:
            self.read_fields.append(self._sparse)
        self._writer = FieldWriter(encoder.encoder_id, encoder.quantisation, routes, native, norm)
        self._store: StoreWriter | None = None
        self._published: VectorStore | None = None
        # Documents on their way to the engine, by key: id, and the row of a batch.
        self._waiting: dict[Hashable, tuple[str, EncodedDocuments, int]] = {}

    def __enter__(self) -> VersionEncoder:
        if self.store_path is not None:
            encoder = self.encoder
            store = StoreWriter(self.store_path, encoder.encoder_id, encoder.n_dims, quantisation=encoder.quantisation)
            self._store = store.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._store is not None:
            self._store.__exit__(*error)

    @property
    def has_store(self) -> bool:
        """True where a local store is written too."""
        return self._store is not None

    @property
    def store_exists(self) -> bool:
        """True where the local store has been published once."""
        return self._store is not None and (self._store.path / MANIFEST).exists()

    def properties(self, engine_capabilities: Capabilities) -> dict[str, Any]:
        """Return the mapping of the version's fields."""
        n_dims, norm = self.encoder.n_dims, self._writer.norm
        return version_fields(self.encoder_id, n_dims, engine_capabilities, self.routes, norm=norm)

    def fields(
        self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]], keys: Sequence[Hashable] | None = None
    ) -> list[dict[str, Any]]:
        """Return the version's fields of each document; rows for the store wait for `stored`.

        They wait under ``keys``, by which documents of one id are told apart; None: under the ids.
        """
        encoded = self.encoder.encode(sources, ids)
        if self._store is not None:
            pairs = zip(ids if keys is None else keys, ids, strict=True)
            self._waiting.update((key, (identifier, encoded, row)) for row, (key, identifier) in enumerate(pairs))
        return list(self._writer.fields(encoded.vectors, encoded.rows, encoded.source_hashes, encoded.has_text))

    def update_fields(self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the fields for a partial update: as `fields`, with null for those that a renewed document loses.

        A document whose text was emptied keeps no vector of the text it had.
        """
        parts = ("src", *(("vec", "terms") if "fetch" in self.routes else ()), *self._writer.native)
        names = [field_name(self.encoder_id, part) for part in parts]
        updates = []
        for source, values in zip(sources, self.fields(ids, sources), strict=True):
            renewed = source.get(self.src_field) is not None
            updates.append({**({name: nothing(name) for name in names} if renewed else {}), **values})
        return updates

    def must_clear(self, source: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the update that must come before another one, or None.

        A partial update merges objects: new words would join the old ones in ``terms_sparse``. So they go first.
        """
        return {self._sparse: nothing(self._sparse), self.src_field: ""} if source.get(self._sparse) else None

    def stored(self, keys: Sequence[Hashable]) -> None:
        """Put the rows of documents that the engine took into the local store; forget them.

        Of documents of one id, the last counts.
        """
        if self._store is None:
            return
        last: dict[str, tuple[EncodedDocuments, int]] = {}
        for key in keys:
            identifier, encoded, row = self._waiting.pop(key, ("", None, 0))
            if encoded is not None:
                last[identifier] = (encoded, row)
        groups: dict[int, tuple[EncodedDocuments, dict[str, int]]] = {}
        for identifier, (encoded, row) in last.items():
            groups.setdefault(id(encoded), (encoded, {}))[1][identifier] = row
        for encoded, rows in groups.values():
            places = list(rows.values())
            hashes = [encoded.source_hashes[row] for row in places]
            self._store.add(list(rows), encoded.vectors[places], encoded.rows[places], hashes)

    def dropped(self, key: Hashable) -> None:
        """Forget the rows of a document that the engine did not take."""
        self._waiting.pop(key, None)

    def delete(self, ids: Sequence[str]) -> None:
        """Take documents out of the local store."""
        if self._store is not None and ids:
            self._store.delete(ids)

    def unknown_to_store(self, ids: Sequence[str], hashes: Sequence[str]) -> list[int]:
        """Return the places of ids that the published store lacks, or holds with another text."""
        if self._store is None:
            return []
        if self._published is None:
            self._published = VectorStore.open(self._store.path) if self.store_exists else None
        if self._published is None:
            return list(range(len(ids)))
        self._published = self._published.refreshed()
        rows = self._published.rows_of(ids)
        known = np.flatnonzero(rows >= 0)
        stored = dict(zip(known.tolist(), self._published.source_hashes(rows[known]), strict=True))
        return [place for place in range(len(ids)) if stored.get(place) != hashes[place]]

    def store_only(self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> None:
        """Put documents into the local store whose fields in the engine are current already."""
        if self._store is not None and ids:
            encoded = self.encoder.encode(sources, ids)
            self._store.add(list(ids), encoded.vectors, encoded.rows, encoded.source_hashes)

    def publish(self) -> None:
        """Make the store's rows visible and durable."""
        if self._store is not None:
            self._store.publish()


def nothing(name: str) -> Any:
    """Return what takes a field's value away in a partial update: null, or [] where ``sparse_vector`` refuses null."""
    return [] if name.endswith("_terms_sparse") else None


def present_routes(properties: Mapping[str, Any], encoder_id: str) -> tuple[str, ...]:
    """Return the routes whose fields of an encoder a mapping has; those must be kept up together."""
    parts = ("vec", "terms_long", "terms_sparse", "vec_unit", "vec_dense")
    vec, long, sparse, unit, dense = (properties.get(field_name(encoder_id, part)) or {} for part in parts)
    present = {
        "fetch": bool(vec),
        "inside": bool(long or sparse),
        "first-stage": (unit.get("index_options") or {}).get("type") == "hnsw" or "method" in dense,
    }
    return tuple(route for route, is_there in present.items() if is_there)


SAMPLE = 100
"""Documents looked at for sizes and versions."""
MIN_FREE_SHARE = 0.10
"""Share of a disk that must stay free: engines stop placing shards at 10 % and block writes at 5 %."""
DEFAULT_FIELD_LIMIT = 1000
_FALSE = (False, "false")
PIPELINES = ("index.default_pipeline", "index.final_pipeline")
_BLOCKS = ("index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete")


@dataclass(frozen=True, slots=True)
class Plan:
    """What re-vectorising an index means."""

    index: str
    concrete: tuple[str, ...]
    """The indexes behind it."""
    documents: int
    """Documents in them; each is rewritten once."""
    added_bytes: int
    """JSON bytes the new fields add, estimated from a sample."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Properties that are added."""
    reasons: tuple[str, ...] = ()
    """Why it is refused; empty if it is not."""
    notes: tuple[str, ...] = ()
    """What to know, none of it a reason to stop."""

    def check(self) -> None:
        """Raise `PreflightRefused` if there is a reason to stop."""
        if self.reasons:
            raise PreflightRefused(self.index, self.reasons)


def preflight(engine: Engine, index: str, version: VersionEncoder) -> Plan:
    """Return the plan of writing a version's fields into an index; nothing is written.

    `EngineRejected` where the index does not exist. `Unsupported` where the engine lacks a field type of the routes
    wanted.
    """
    names = engine.index_names(index)
    if not names:
        raise EngineRejected(f"there is no index {index!r} on {engine.spec}: make it with `ssi index`", status=404)
    properties = version.properties(engine.capabilities())
    reasons: list[str] = []
    notes = ["every document is rewritten once, with its own routing and only if nobody changed it meanwhile"]
    documents = added = 0
    for name in names:
        info = engine.index_info(name)
        reasons += mapping_reasons(info, properties)
        notes += mapping_notes(info)
        n_documents = engine.count(name)
        documents += n_documents
        n_bytes = _added_bytes(engine, name, version) * n_documents if not reasons else 0
        added += n_bytes
        reasons += version_reasons(engine, name)
        if isinstance(engine, ReportsDisk):
            try:
                reasons += disk_reasons(engine.disk_usage(name), n_bytes)
            except (EngineAuthError, EngineRejected) as error:
                notes.append(f"{name}: free disk space is unknown ({error})")
    return Plan(index, names, documents, added, properties, tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(notes)))


def mapping_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> list[str]:
    """Return why the mapping or the settings of an index forbid to write the properties of a version (pure)."""
    return [*_index_reasons(info), *_field_reasons(info, wanted), *first_stage_reasons(info, wanted)]


def first_stage_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> list[str]:
    """Return why vectors that OpenSearch is to search by cannot be added to an index (pure)."""
    off = str(info.settings.get("index.knn", "false")) != "true"
    for name, definition in wanted.items():
        present = info.properties.get(name, {})
        if "method" in definition and (off or (present and "method" not in present)):
            return [
                f"{info.name}: its vectors cannot be searched by (index.knn is {'off' if off else 'on'}, which never "
                "changes): make a new index with `ssi index --rebuild --routes first-stage` and the routes in use"
            ]
    return []


def _index_reasons(info: IndexInfo) -> Iterator[str]:
    source = info.mapping.get("_source") or {}
    mode = source.get("mode") or info.settings.get("index.mapping.source.mode", "stored")
    if source.get("enabled", True) in _FALSE or mode == "disabled":
        yield (
            f"{info.name}: _source is disabled, so neither the text nor the document can be read back: fill an index "
            "with `ssi index` from the original documents"
        )
    elif mode == "synthetic":
        yield (
            f"{info.name}: _source is synthetic, a rewrite would not give back the document its owner sent: use the "
            "route beside with `ssi index --store`, or a new index with stored _source"
        )
    if source.get("includes") or source.get("excludes"):
        yield (
            f"{info.name}: _source leaves fields out (includes/excludes), which a rewrite would lose: fill a new index "
            "with `ssi index` from the original documents"
        )
    if info.data_stream:
        yield (
            f"{info.name} backs the data stream {info.data_stream!r}, which is append-only: copy the documents into an "
            "ordinary index with `ssi index`"
        )
    blocks = [name for name in _BLOCKS if str(info.settings.get(name, "false")) == "true"]
    if blocks:
        yield f"{info.name} is blocked for writing ({', '.join(blocks)}): lift the block first"


def _field_reasons(info: IndexInfo, wanted: Mapping[str, Any]) -> Iterator[str]:
    new = {name: definition for name, definition in wanted.items() if name not in info.properties}
    limit = int(info.settings.get("index.mapping.total_fields.limit", DEFAULT_FIELD_LIMIT))
    needed = n_fields(info.properties) + n_fields(new)
    if new and needed > limit:
        yield (
            f"{info.name}: {needed} fields with the {len(new)} new ones, the limit is {limit}: raise "
            f"index.mapping.total_fields.limit to {needed} or empty old versions by a rebuild"
        )
    for name, definition in wanted.items():
        present = info.properties.get(name)
        if present is not None and present.get("type") != definition.get("type"):
            yield (
                f"{info.name}: the field {name!r} exists as {present.get('type')!r}, not {definition.get('type')!r}: "
                "an index template or another program made it; rebuild the index"
            )


def mapping_notes(info: IndexInfo) -> list[str]:
    """Return what to know about an index that is no reason to refuse it (pure)."""
    notes = []
    dynamic = str(info.mapping.get("dynamic", "true")).lower()
    if dynamic != "true":
        notes.append(f"{info.name}: dynamic is {dynamic}; the new fields are added by name, which is fine")
    if (info.mapping.get("_routing") or {}).get("required"):
        notes.append(f"{info.name}: routing is required; each write carries its document's own")
    for setting in PIPELINES:
        pipeline = info.settings.get(setting, "_none")
        if pipeline != "_none":
            notes.append(
                f"{info.name}: {setting.removeprefix('index.')} is {pipeline!r}; partial updates do not run it. "
                f"It must not remove fields that begin with {FIELD_PREFIX!r} from documents it processes"
            )
    return notes


def version_reasons(engine: Engine, name: str) -> list[str]:
    """Return a reason if the documents carry external versions: a partial update would raise them by one.

    An internal version counts the writes of a document, and each took one sequence number of its shard, so it is at
    most ``_seq_no + 1``. A greater one came from outside.
    """
    if engine.in_process:
        return []
    body = {"size": SAMPLE, "_source": False, "version": True, "seq_no_primary_term": True}
    for hit in engine.search(name, body).hits:
        version, seq_no = int(hit.raw.get("_version", 1)), hit.raw.get("_seq_no")
        if seq_no is not None and version > int(seq_no) + 1:
            return [
                f"{name}: its documents carry external versions ({hit.id!r:.60} has {version}), which a rewrite would "
                "raise, so that its owner's next write could be refused as stale: build a new index with "
                "`ssi index --version-field`, or use the route beside"
            ]
    return []


def _added_bytes(engine: Engine, name: str, version: VersionEncoder) -> int:
    """Return the mean JSON bytes of the new fields over a sample; 0 for an empty index.

    The store of ``version`` is not open yet: no row waits for it.
    """
    batch = next(iter(engine.scan(name, source=version.text_paths, batch_size=SAMPLE)), [])
    if not batch:
        return 0
    sizes = [len(json_bytes(fields)) for fields in version.fields([d.id for d in batch], [d.source for d in batch])]
    return sum(sizes) // len(sizes)


def n_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields a mapping counts against ``index.mapping.total_fields.limit``: leaves, objects, copies."""
    inner = [definition.get(part) for definition in properties.values() for part in ("properties", "fields")]
    return len(properties) + sum(n_fields(children) for children in inner if isinstance(children, Mapping))


def disk_reasons(usage: DiskUsage, added_bytes: int) -> list[str]:
    """Return a reason if the disk may run full: until segments merge, the old documents lie beside the new (pure)."""
    if usage.free_bytes is None or not usage.total_bytes:
        return []
    left = usage.free_bytes - usage.index_bytes - added_bytes
    if left >= MIN_FREE_SHARE * usage.total_bytes:
        return []
    need = usage.index_bytes + added_bytes
    return [
        f"the rewrite needs up to {need / 1e9:,.2f} GB until old segments are merged away; "
        f"{usage.free_bytes / 1e9:,.2f} GB are free and {MIN_FREE_SHARE:.0%} of the disk must stay so: free space first"
    ]
