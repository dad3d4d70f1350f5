"""From documents to the fields of a version: batches through the encoder, and the same rows into the local store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from reranker.encoder import EncodedDocuments, Encoder
from reranker.engines.bodies import version_fields
from reranker.engines.fields import FieldWriter, field_prefix
from reranker.store import StoreWriter

ENCODE_BATCH = 256
"""Documents encoded at once: enough to keep the vector code busy, little enough to hold in memory."""


@dataclass(slots=True)
class VersionEncoder:
    """Encodes documents for one index: the version's fields, and its rows in the store of route *beside*.

    Parameters
    ----------
    encoder : Encoder
        Document side of the model.
    routes : tuple of str
        Which fields are written, see `reranker.engines.fields.version_fields`.
    store_path : Path or None
        Folder of the local store; None writes none.
    """

    encoder: Encoder
    routes: tuple[str, ...] = ("fetch",)
    store_path: Path | None = None
    _writer: FieldWriter = field(init=False)
    _store: StoreWriter | None = field(init=False, default=None)
    _waiting: dict[str, tuple[EncodedDocuments, int]] = field(init=False, default_factory=dict)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._writer = FieldWriter(self.encoder.encoder_id, self.encoder.quantisation, self.routes)

    def __enter__(self) -> VersionEncoder:
        if self.store_path is not None:
            self._store = self._stack.enter_context(
                StoreWriter(
                    self.store_path, self.encoder.encoder_id, self.encoder.n_dims,
                    quantisation=self.encoder.quantisation,
                )
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def encoder_id(self) -> str:
        """Encoder whose fields are written."""
        return self.encoder.encoder_id

    @property
    def has_store(self) -> bool:
        """True where a local store is written too."""
        return self._store is not None

    @property
    def prefix(self) -> str:
        """What all field names of the version begin with."""
        return field_prefix(self.encoder.encoder_id)

    def properties(self, engine_capabilities: Any) -> dict[str, Any]:  # noqa: ANN401 - Capabilities
        """Return the mapping of the version's fields."""
        return version_fields(self.encoder.encoder_id, self.encoder.n_dims, engine_capabilities, self.routes)

    def fields(self, ids: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the version's fields of each document; rows for the store wait for `stored`."""
        encoded = self.encoder.encode(sources)
        if self._store is not None:
            self._waiting.update((identifier, (encoded, row)) for row, identifier in enumerate(ids))
        return list(self._writer.fields(encoded.vectors, encoded.rows, encoded.source_hashes, encoded.has_text))

    def source_hash(self, source: Mapping[str, Any]) -> str:
        """Return what `_src` of a document with this text would be."""
        return self.encoder.view.source_hash(source)

    def stored(self, ids: Sequence[str]) -> None:
        """Put the rows of documents that the engine took into the local store; forget them."""
        if self._store is None:
            return
        groups: dict[int, tuple[EncodedDocuments, dict[str, int]]] = {}
        for identifier in ids:
            encoded, row = self._waiting.pop(identifier, (None, 0))
            if encoded is not None:
                groups.setdefault(id(encoded), (encoded, {}))[1][identifier] = row
        for encoded, rows in groups.values():
            places = list(rows.values())
            hashes = [encoded.source_hashes[row] for row in places]
            self._store.add(list(rows), encoded.vectors[places], encoded.rows[places], hashes)

    def dropped(self, identifier: str) -> None:
        """Forget the rows of a document that the engine did not take."""
        self._waiting.pop(identifier, None)

    def delete(self, ids: Sequence[str]) -> None:
        """Take documents out of the local store."""
        if self._store is not None and ids:
            self._store.delete(ids)

    def publish(self) -> None:
        """Make the store's rows visible and durable."""
        if self._store is not None:
            self._store.publish()
