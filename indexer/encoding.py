"""Computes the fields of a version from documents: for the engine, and the same rows for a local store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reranker.engines.impacts import digest_of_words, field_value, stored_words
from reranker.engines.protocol import Capabilities
from reranker.engines.vectors import (
    FieldWriter,
    field_name,
    impacts_mapping,
    version_fields,
)
from reranker.errors import ConfigError
from reranker.models.impacts import Impacts
from reranker.models.ranking_model import EncodedDocuments, Encoder, RankingModel
from reranker.records import StoredDocument
from reranker.store import StoreWriter, VectorStore

ENCODE_BATCH = 256
"""Number of documents encoded at once: large enough for fast vector code, small enough for memory."""


class VersionEncoder:
    """Encodes documents for one index: the version's fields, and its rows in the store of route *beside*.

    Parameters
    ----------
    encoder
        The encoder of the version.
    routes
        Routes whose fields are written.
    store_path
        Local store, which is open while this object is used as a context manager; None: none.
    capabilities
        Of the engine written to. Required for `impacts`, whose fields differ between engines.
    impacts
        Computes the impacts of documents; required for route `impacts`.

    Raises
    ------
    ConfigError
        If capabilities are required and missing.
    Unsupported
        If the engine does not support a route.
    """

    def __init__(
        self,
        encoder: Encoder,
        routes: tuple[str, ...] = ("fetch",),
        store_path: Path | None = None,
        capabilities: Capabilities | None = None,
        impacts: Impacts | None = None,
    ) -> None:
        self.encoder, self.routes, self.store_path = encoder, routes, store_path
        self.encoder_id = encoder.encoder_id
        # Fields of the text view; the field with the hash of the text from which the vector was computed; and the
        # fields to read of a document for deciding whether it is current, and for renewing it.
        self.text_paths = [spec.path for spec in encoder.view.fields]
        # Field with the vectors that the documents have already; "" if the encoder reads none.
        self.vector_path = encoder.view.vector
        self.src_field = field_name(encoder.encoder_id, "src")
        self.read_fields = [*encoder.view.source_fields, self.src_field]
        # Function that returns the value of `_src` for a document's text.
        self.source_hash = encoder.view.source_hash
        if "impacts" in routes and capabilities is None:
            raise ConfigError("route impacts needs the engine's capabilities: the types of its fields differ by engine")
        self._impacts = impacts if "impacts" in routes else None
        if "impacts" in routes and impacts is None:
            raise ConfigError("route impacts needs the impacts of a model, and only its document side was given")
        self._impacts_type = impacts_mapping(capabilities)["type"] if self._impacts and capabilities else ""
        self._impacts_field = field_name(encoder.encoder_id, "impacts")
        self._impacts_hash = field_name(encoder.encoder_id, "impacts_hash")
        if self._impacts is not None:
            self.read_fields.append(self._impacts_hash)
        with_ids = capabilities is not None and capabilities.doc_value_hits
        self._id_field = field_name(encoder.encoder_id, "id")
        if with_ids:
            self.read_fields.append(self._id_field)
        self._writer = FieldWriter(encoder.encoder_id, encoder.quantisation, routes, with_ids)
        # True if all documents with impacts have those of this model, so that only missing ones are computed.
        self.has_these_impacts = False
        self._store: StoreWriter | None = None
        self._published: VectorStore | None = None
        # Documents that were encoded but not acknowledged, by key: id, batch, and row of the batch.
        self._waiting: dict[Hashable, tuple[str, EncodedDocuments, int]] = {}

    @classmethod
    def of_model(
        cls, model: RankingModel, routes: tuple[str, ...], store_path: Path | None, capabilities: Capabilities
    ) -> VersionEncoder:
        """Return the encoder of a model's version; it also computes impacts if the routes include them."""
        impacts = Impacts(model) if "impacts" in routes else None
        return cls(model.encoder, routes, store_path, capabilities, impacts)

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
        """True if a local store is written too."""
        return self._store is not None

    @property
    def store_exists(self) -> bool:
        """True if the local store has been published at least once."""
        return self._store is not None and self._store.is_published

    def properties(self, engine_capabilities: Capabilities) -> dict[str, Any]:
        """Return the mapping of the version's fields."""
        return version_fields(self.encoder_id, engine_capabilities, self.routes)

    def fields(
        self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]], keys: Sequence[Hashable] | None = None
    ) -> list[dict[str, Any]]:
        """Return the version's fields of each document; its row for the store is kept until `stored` is called.

        Rows are kept under ``keys``, which distinguish documents with the same id; None: under the ids.
        """
        encoded = self.encoder.encode(sources, ids)
        if self._store is not None:
            pairs = zip(ids if keys is None else keys, ids, strict=True)
            self._waiting.update((key, (identifier, encoded, row)) for row, (key, identifier) in enumerate(pairs))
        written = self._writer.fields(ids, encoded.vectors, encoded.rows, encoded.source_hashes, encoded.has_text)
        if self._impacts is None:
            return list(written)
        return [values | more for values, more in zip(written, self._impact_fields(encoded, sources), strict=True)]

    def _impact_fields(
        self, encoded: EncodedDocuments, sources: Sequence[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yield the impacts of each document, with their hash; without impacts only the hash."""
        if self._impacts is None:
            return
        for words in self._impacts.by_word(encoded, sources):
            stored = stored_words(words, self._impacts_type)
            more = {self._impacts_field: field_value(stored)} if stored else {}
            yield {self._impacts_hash: digest_of_words(stored), **more}

    def changed_impacts(self, documents: Sequence[StoredDocument]) -> list[int]:
        """Return the positions of documents whose impacts are others than those stored; their texts are current.

        Nothing is computed if every document has the impacts of this model (`has_these_impacts`).
        """
        if self._impacts is None or not documents:
            return []
        if self.has_these_impacts:
            return [place for place, each in enumerate(documents) if self._impacts_hash not in each.source]
        encoded = self.encoder.encode([each.source for each in documents], [each.id for each in documents])
        hashes = [values[self._impacts_hash] for values in self._impact_fields(encoded, [d.source for d in documents])]
        stored = [document.source.get(self._impacts_hash) for document in documents]
        return [place for place in range(len(documents)) if stored[place] != hashes[place]]

    def update_fields(self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the fields for a partial update: as `fields`, with null for fields that the document loses.

        A document whose text was emptied must not keep the vector of its old text.
        """
        names = [field_name(self.encoder_id, part) for part in self._writer.parts]
        if self._impacts is not None:
            names += [self._impacts_field, self._impacts_hash]
        updates = []
        for source, values in zip(sources, self.fields(ids, sources), strict=True):
            renewed = source.get(self.src_field) is not None
            updates.append({**({name: nothing(name) for name in names} if renewed else {}), **values})
        return updates

    def is_current(self, document: StoredDocument, source_hash: str) -> bool:
        """Return whether a document has the fields of a text with this hash, and not those of another document.

        A copy of a document under another id has the id of its original.
        """
        copied_from = document.source.get(self._id_field, document.id)
        return document.source.get(self.src_field) == source_hash and copied_from == document.id

    def stored(self, keys: Sequence[Hashable]) -> None:
        """Write the rows of documents that the engine accepted to the local store.

        Of several documents with one id, the last one is written.
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
        """Discard the row of a document that the engine did not accept."""
        self._waiting.pop(key, None)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove documents from the local store."""
        if self._store is not None and ids:
            self._store.delete(ids)

    def unknown_to_store(self, ids: Sequence[str], hashes: Sequence[str]) -> list[int]:
        """Return the positions of ids that are missing in the published store, or stored with another text."""
        if self._store is None:
            return []
        if self._published is None:
            self._published = VectorStore.open(self._store.path) if self.store_exists else None
        if self._published is None:
            return list(range(len(ids)))
        self._published = self._published.refreshed()
        found = self._published.get(ids)
        stored = dict(zip(found.places.tolist(), found.source_hashes, strict=True))
        return [place for place in range(len(ids)) if stored.get(place) != hashes[place]]

    def store_only(self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> None:
        """Write documents to the local store whose fields in the engine are current already."""
        if self._store is not None and ids:
            encoded = self.encoder.encode(sources, ids)
            self._store.add(list(ids), encoded.vectors, encoded.rows, encoded.source_hashes)

    def publish(self) -> None:
        """Publish the store's rows, durably."""
        if self._store is not None:
            self._store.publish()


def nothing(name: str) -> Any:
    """Return the value that removes a field in a partial update: null, or [] where words have weights.

    Earlier releases wrote the part ``terms_sparse``.
    """
    return [] if name.endswith(("_terms_sparse", "_impacts")) else None


def present_routes(properties: Mapping[str, Any], encoder_id: str) -> tuple[str, ...]:
    """Return the routes of an encoder whose fields are in a mapping; they must be updated together."""
    parts = {"fetch": "vec", "impacts": "impacts"}
    return tuple(route for route, part in parts.items() if properties.get(field_name(encoder_id, part)))
