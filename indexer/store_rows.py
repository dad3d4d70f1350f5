"""The rows of a load that go into the local store: those of the documents that the engine holds."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.bulk_records import BulkItem
from indexer.encoding import VersionEncoder
from indexer.status import Action
from reranker.engines.base import Engine


class StoreRows:
    """Keeps apart what became of each line, since a file may hold several versions of a document.

    Parameters
    ----------
    engine, index : Engine, str
        Where the documents go.
    version : VersionEncoder or None
        Entered already, its rows waiting by line; None: there is no store.
    """

    def __init__(self, engine: Engine, index: str, version: VersionEncoder | None) -> None:
        self._engine, self._index = engine, index
        self._version = version if version is not None and version.has_store else None
        self._stored: list[int] = []
        self._superseded: list[BulkItem] = []

    def settled(self, item: BulkItem, action: Action) -> None:
        """Note what became of a write."""
        if self._version is None:
            return
        if action is Action.OK:
            self._stored.append(item.line)
        elif action is Action.SUPERSEDED:
            self._superseded.append(item)
        else:
            self._version.dropped(item.line)

    def fill(self) -> None:
        """Put into the store what the engine holds of the writes settled since the last time.

        Raises
        ------
        EngineError
            Where the engine does not tell what superseded a write.
        """
        if self._version is None:
            return
        held = _held_by_engine(self._engine, self._index, self._version, self._superseded)
        self._version.stored([*self._stored, *(item.line for item in held)])
        for item in self._superseded:
            self._version.dropped(item.line)
        self._stored, self._superseded = [], []


def _held_by_engine(engine: Engine, index: str, version: VersionEncoder, items: Sequence[BulkItem]) -> list[BulkItem]:
    """Return which of the writes that were superseded have the text that the engine holds.

    A write that goes again, because its answer was lost or the process was killed, is superseded by itself.
    """
    if not items:
        return []
    held = engine.get(index, [item.op.id for item in items], source=version.text_paths)
    return [
        item
        for item, document in zip(items, held, strict=True)
        if document is not None and version.source_hash(document.source) == version.source_hash(item.op.source or {})
    ]
