"""An engine in a folder: documents in SQLite, BM25 by tantivy; no server.

``PATH/catalogue.sqlite`` holds the names of indexes and aliases; each index has a folder of its own with
``documents.sqlite`` (the truth) and ``search-N`` (the tantivy index, a copy). A bulk request is durable when it
returns and visible to `search` after `refresh`, as in the big engines; `get` and `scan` see it at once. A copy that
fell behind, because a process was killed between the two, is mended when the index is next opened.
Several processes may read and write: writers take turns, a reader sees one state.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reranker.engines.base import Capabilities
from reranker.engines.document_store import Connections, engine_errors
from reranker.engines.local import LocalEngine
from reranker.engines.local_base import Catalogue, LocalIndex
from reranker.engines.tantivy_index import TantivyIndex
from reranker.engines.tantivy_search import load_tantivy
from reranker.errors import EngineRejected, IndexMissing

_ORPHAN_S = 3600
_TABLES = """
CREATE TABLE indexes (name TEXT PRIMARY KEY, folder TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE aliases (alias TEXT, name TEXT, PRIMARY KEY (alias, name)) WITHOUT ROWID;
"""


class TantivyCatalogue(Catalogue):
    """The folder of an engine; nothing is created before the first index is.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connections: Connections | None = None
        self._opened: dict[str, tuple[str, TantivyIndex]] = {}

    def _database(self, create: bool = False) -> Connections | None:
        with self._lock:
            file = self._path / "catalogue.sqlite"
            if self._connections is None and (create or file.exists()):
                with engine_errors(self._path):
                    self._path.mkdir(parents=True, exist_ok=True)
                self._connections = Connections(file, _TABLES)
            return self._connections

    def _rows(self, statement: str, *values: str) -> list[tuple[str, str]]:
        database = self._database()
        if database is None:
            return []
        with engine_errors(self._path):
            return database.get().execute(statement, values).fetchall()

    def names(self) -> list[str]:
        """Return the indexes."""
        return [name for name, _ in self._rows("SELECT name, folder FROM indexes ORDER BY name")]

    def aliases(self) -> dict[str, set[str]]:
        """Return the aliases."""
        found: dict[str, set[str]] = {}
        for alias, name in self._rows("SELECT alias, name FROM aliases"):
            found.setdefault(alias, set()).add(name)
        return found

    def open(self, name: str) -> LocalIndex:
        """Return one index, opened once."""
        rows = self._rows("SELECT name, folder FROM indexes WHERE name = ?", name)
        if not rows:
            raise IndexMissing(f"index {name!r} was deleted meanwhile: name another", status=404, engine="tantivy")
        folder = rows[0][1]
        with self._lock:
            known = self._opened.get(name)
            if known is None or known[0] != folder:
                known = self._opened[name] = (folder, TantivyIndex(name, self._path / folder))
            return known[1]

    def create(self, name: str, mapping: Mapping[str, Any], settings: dict[str, str]) -> None:
        """Create an index: its folder first, then its name."""
        load_tantivy()
        database = self._database(create=True)
        if database is None:
            raise EngineRejected(f"{self._path} cannot hold an engine", engine="tantivy")
        folder = f"{name}.{uuid.uuid4().hex[:8]}"
        TantivyIndex.make(self._path / folder, mapping, settings)
        with database.writing() as connection:
            taken = connection.execute("SELECT 1 FROM indexes WHERE name = ?", (name,)).fetchone()
            if taken:
                raise EngineRejected(
                    f"index {name!r} was created by another process meanwhile; choose another name",
                    status=400,
                    error_type="resource_already_exists_exception",
                )
            connection.execute("INSERT INTO indexes VALUES (?, ?)", (name, folder))
        self._sweep()

    def delete(self, name: str) -> None:
        """Delete an index: its name first, then its folder."""
        database = self._database()
        if database is None:
            return
        with database.writing() as connection:
            row = connection.execute("SELECT folder FROM indexes WHERE name = ?", (name,)).fetchone()
            connection.execute("DELETE FROM indexes WHERE name = ?", (name,))
            connection.execute("DELETE FROM aliases WHERE name = ?", (name,))
        with self._lock:
            known = self._opened.pop(name, None)
        if known is not None:
            known[1].close()
        if row is not None:
            shutil.rmtree(self._path / row[0], ignore_errors=True)

    def swap(self, alias: str, add: str, remove: Sequence[str]) -> None:
        """Change one alias in one transaction."""
        database = self._database()
        if database is None:
            return
        with database.writing() as connection:
            connection.executemany("DELETE FROM aliases WHERE alias = ? AND name = ?", [(alias, one) for one in remove])
            connection.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", (alias, add))

    def close(self) -> None:
        """Release all files."""
        with self._lock:
            for _, index in self._opened.values():
                index.close()
            self._opened.clear()
            if self._connections is not None:
                self._connections.close()
                self._connections = None

    def _sweep(self) -> None:
        """Remove folders without a name, left by a process that was killed, once they are an hour old."""
        named = {folder for _, folder in self._rows("SELECT name, folder FROM indexes")}
        for file in self._path.glob("*/documents.sqlite"):
            if file.parent.name not in named and time.time() - file.stat().st_mtime > _ORPHAN_S:
                shutil.rmtree(file.parent, ignore_errors=True)


def tantivy_engine(path: str) -> LocalEngine:
    """Return the engine of a folder, which need not exist yet.

    Raises
    ------
    MissingExtra
        tantivy is not installed.
    """
    load_tantivy()
    return LocalEngine(f"tantivy:{path}", TantivyCatalogue(Path(path).expanduser()), Capabilities("tantivy"))
