"""One index of the embedded engine: SQLite holds the documents, tantivy a copy of them to search in."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from reranker.engines import query_tree as tree
from reranker.engines.document_store import BUSY_S, DocumentStore, engine_errors
from reranker.engines.local_base import Batch, Change, Found, LocalIndex
from reranker.engines.mapping import DocumentRefusedError, Extracted, FieldTable
from reranker.engines.tantivy_search import SearchIndex
from reranker.engines.writes import Stored
from reranker.errors import EngineOverloaded

FIRST_CAPACITY = 16
"""Slots for text fields of a new index; doubled, with one rebuild, when they run out."""


@dataclass(frozen=True, slots=True)
class _Meta:
    """What an index knows of itself; ``indexed`` is the last write that the search copy holds."""

    changes: int
    mapping: dict[str, Any]
    settings: dict[str, str]
    slots: dict[str, int]
    wanted_capacity: int
    capacity: int
    generation: int
    indexed: int


class TantivyIndex(LocalIndex):
    """One index in its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._lock = threading.RLock()
        self._store = DocumentStore(folder / "documents.sqlite")
        self._known: _Meta | None = None
        self._table: FieldTable | None = None
        self._search: SearchIndex | None = None
        self._search_state = (-1, -1)
        self.settings = self._meta().settings
        self._mend()

    @staticmethod
    def make(folder: Path, mapping: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Write a new, empty index into a folder."""
        with engine_errors(folder):
            folder.mkdir(parents=True)
        store = DocumentStore(folder / "documents.sqlite", create=True)
        slots = {path: slot for slot, path in enumerate(FieldTable(mapping).text_paths())}
        capacity = _capacity(len(slots))
        values = {"mapping": mapping, "settings": settings, "slots": slots, "wanted_capacity": capacity}
        with store.writing():
            store.set_meta(changes=1, capacity=capacity, generation=1, indexed=-1, **values)
        store.close()

    def close(self) -> None:
        """Release files."""
        with self._lock:
            self._search = None
            self._store.close()

    def mapping(self) -> dict[str, Any]:
        """Return the mapping."""
        return self._meta().mapping

    def table(self) -> FieldTable:
        """Return the fields."""
        with self._lock:
            meta = self._meta()
            if self._table is None:
                self._table = FieldTable(meta.mapping)
            return self._table

    def set_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Store a changed mapping."""
        with self._changing():
            self.save_mapping(mapping)

    def save_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Store a changed mapping inside a transaction; new text fields take the next slots."""
        meta = self._meta()
        slots = dict(meta.slots)
        for path in FieldTable(mapping).text_paths():
            slots.setdefault(path, len(slots))
        self._change(mapping=mapping, slots=slots, wanted_capacity=_capacity(len(slots), meta.wanted_capacity))

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Hold the index for one bulk request, against all processes."""
        with self._changing():
            yield _TantivyBatch(self, self._store, self._store.newest())

    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return states by id."""
        return self._store.states(ids)

    def stream(self, ids: Sequence[str] | None, batch_size: int) -> Iterator[list[Stored]]:
        """Yield documents of one moment."""
        return self._store.stream(ids, batch_size)

    def find(self, node: tree.Node, limit: int | None) -> tuple[list[Found], int]:
        """Return matches by (-score, age)."""
        with self._lock:
            meta = self._meta()
            search = self._opened(meta)
        slots = {path: slot for path, slot in meta.slots.items() if slot < search.capacity}
        return search.find(node, limit, slots)

    def refresh(self) -> None:
        """Bring the search copy up to date."""
        self._copy(BUSY_S)

    def _copy(self, wait_s: float) -> None:
        """Copy what was written since the last time; one process at a time."""
        try:
            with FileLock(str(self._folder / "refresh.lock"), timeout=wait_s):
                self._copy_locked()
        except Timeout:
            raise EngineOverloaded(
                f"index {self.name!r} is being refreshed by another process for more than {wait_s:g} s: "
                "wait for it, or stop it",
                engine="tantivy",
                error_type="locked",
            ) from None

    def _copy_locked(self) -> None:
        # Searches go on meanwhile: the lock of this object is held for moments only. What is written from here on
        # waits for the next copy: it may have fields that the mapping read now does not know.
        until = self._store.newest()
        self._forget()
        meta = self._meta()
        grown = meta.wanted_capacity != meta.capacity
        generation = meta.generation + 1 if grown else meta.generation
        done = -1 if grown else meta.indexed
        if grown:
            shutil.rmtree(self._search_folder(generation), ignore_errors=True)
        with self._lock:
            target = SearchIndex(self._search_folder(generation), meta.wanted_capacity) if grown else self._opened(meta)
        newest = self._write(target, meta, done, until)
        if newest > done or grown:
            with self._changing():
                self._change(indexed=newest, generation=generation, capacity=meta.wanted_capacity)
        if grown:
            shutil.rmtree(self._search_folder(meta.generation), ignore_errors=True)

    def _write(self, target: SearchIndex, meta: _Meta, done: int, until: int) -> int:
        """Copy the writes past ``done`` up to ``until``; return the number of the last."""
        writer = None
        table, slots = FieldTable(meta.mapping), meta.slots
        for states in self._store.since(done, until):
            writer = writer or target.writer()
            for state in states:
                writer.delete(state.id)
                if state.source is not None:
                    writer.add(state.id, state.seq_no, _extract(table, state.source), slots)
            done = states[-1].seq_no
        if writer is not None:
            with engine_errors(self._folder):
                writer.commit()
            target.reload()
        return done

    def _mend(self) -> None:
        """Bring the copy up to date if a process died before it did, or if the copy was lost."""
        meta = self._meta()
        try:
            self._copy(0.0)
            meta = self._meta()
            if self._opened(meta).n_documents() != self._store.n_live(meta.indexed):
                with self._changing():
                    self._change(indexed=-1)
                self._copy(0.0)
        except EngineOverloaded:
            # Another process is at it right now.
            return

    def _opened(self, meta: _Meta) -> SearchIndex:
        """Return the search copy that ``meta`` speaks of, with its newest commit."""
        generation, indexed = self._search_state
        if self._search is None or generation != meta.generation:
            with engine_errors(self._folder):
                self._search = SearchIndex(self._search_folder(meta.generation), meta.capacity)
        elif indexed != meta.indexed:
            self._search.reload()
        self._search_state = (meta.generation, meta.indexed)
        return self._search

    def _search_folder(self, generation: int) -> Path:
        return self._folder / f"search-{generation}"

    def _meta(self) -> _Meta:
        """Return the named values, read again only when another process changed them."""
        with self._lock:
            changes = self._store.changes()
            if self._known is None or self._known.changes != changes:
                self._known = _Meta(**self._store.meta())
                self._table = None
            return self._known

    def _forget(self) -> None:
        with self._lock:
            self._known = None

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Hold the write transaction; what was remembered of a state that is rolled back is forgotten."""
        try:
            with self._store.writing() as connection:
                yield connection
        except BaseException:
            self._forget()
            raise

    def _change(self, **values: Any) -> None:
        self._store.set_meta(changes=self._store.changes() + 1, **values)
        self._forget()


class _TantivyBatch(Batch):
    def __init__(self, index: TantivyIndex, store: DocumentStore, newest: int) -> None:
        self._index = index
        self._store = store
        self._newest = newest

    def load(self, ids: Sequence[str]) -> dict[str, Stored]:
        return self._store.states(ids)

    def next_seq_no(self) -> int:
        return self._newest + 1

    def save(self, changes: Sequence[Change], mapping: Mapping[str, Any] | None) -> None:
        if mapping is not None:
            self._index.save_mapping(mapping)
        self._store.save([change.state for change in changes])


def _capacity(n_fields: int, capacity: int = FIRST_CAPACITY) -> int:
    """Return ``capacity``, doubled until it holds so many fields."""
    while capacity < n_fields:
        capacity *= 2
    return capacity


def _extract(table: FieldTable, source: Mapping[str, Any]) -> Extracted:
    """Return what is searchable; nothing where a field added later does not fit the document."""
    try:
        return table.extract(source, depth_limit=1000)
    except DocumentRefusedError:
        # Stored before the mapping got that field; the big engines do not index such a document anew either.
        return Extracted()
