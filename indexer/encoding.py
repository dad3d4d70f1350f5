"""The fields of a version, made of documents: for the engine, and the same rows for a local store."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reranker.engines.protocol import Capabilities
from reranker.engines.vectors import (
    NATIVE_ROUTES,
    FieldWriter,
    field_name,
    native_parts,
    native_settings,
    version_fields,
)
from reranker.errors import ConfigError
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
