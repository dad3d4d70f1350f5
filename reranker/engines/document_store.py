"""Documents of one embedded index in SQLite: the truth from which the search index can always be made again.

WAL with ``synchronous=FULL``: what a bulk request acknowledged is on the disk, readers never wait for a writer, and a
reader sees one consistent state for as long as its transaction lasts. One writer at a time, across processes.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from reranker.engines.wire import decode, encode
from reranker.engines.writes import Stored
from reranker.errors import EngineOverloaded, EngineRejected, EngineUnavailable

FORMAT = 1
"""Layout of the files; a higher one was written by a later version."""
BUSY_S = 30.0
"""Seconds a writer waits for another one."""
_CHUNK = 500
_TABLES = """
CREATE TABLE documents (
    id TEXT PRIMARY KEY, seq_no INTEGER NOT NULL, version INTEGER NOT NULL, routing TEXT, source BLOB
) WITHOUT ROWID;
CREATE UNIQUE INDEX by_seq_no ON documents (seq_no);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "id, seq_no, version, routing, source"


@contextmanager
def engine_errors(place: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system into the project's own."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            message = f"{place} is being written by another process for more than {BUSY_S:g} s: wait for it, or stop it"
            raise EngineOverloaded(message, engine="tantivy", error_type="locked") from error
        raise EngineUnavailable(f"{place}: {text}: free space or mend the folder's rights", engine="tantivy") from error
    except sqlite3.DatabaseError as error:
        raise EngineRejected(
            f"{place} is damaged ({error}): restore it from a backup, or index the documents again", engine="tantivy"
        ) from error
    except OSError as error:
        message = f"{place}: {error}: free space or mend the folder's rights"
        raise EngineUnavailable(message, engine="tantivy") from error


def connect(path: Path, *, create: str | None = None) -> sqlite3.Connection:
    """Return a connection to a database of this format; with ``create`` (its tables) it may be a new one."""
    place = f"{path.absolute().as_uri()}?mode={'rwc' if create is not None else 'rw'}"
    connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and create is not None:
            _create(connection, create)
        elif version != FORMAT:
            message = f"{path} has format {version}, this version reads format {FORMAT}: use the version that wrote it"
            raise EngineRejected(message, engine="tantivy")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection, tables: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker.
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in filter(str.strip, tables.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


class Connections:
    """One connection a thread to one database, all closed together; without ``tables`` it must exist already."""

    def __init__(self, path: Path, tables: str | None = None) -> None:
        self.path = path
        self._local = threading.local()
        self._every: list[sqlite3.Connection] = []
        with engine_errors(path):
            self._local.connection = connect(path, create=tables)
        self._every.append(self._local.connection)

    def get(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self.path)
            self._every.append(connection)
        return connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with engine_errors(self.path):
            return self.get().execute(statement, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the one write transaction: committed at the end, rolled back on an error."""
        with engine_errors(self.path):
            connection = self.get()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close every thread's connection."""
        for connection in self._every:
            connection.close()
        self._every.clear()


class DocumentStore(Connections):
    """States of documents by id, and a few named values (``meta``), of one index; ``create`` may make the file."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        super().__init__(path, _TABLES if create else None)

    def meta(self) -> dict[str, Any]:
        """Return all named values."""
        return {key: json.loads(value) for key, value in self.rows("SELECT key, value FROM meta")}

    def set_meta(self, **values: Any) -> None:
        """Store named values, inside a transaction where one is open."""
        pairs = [(key, json.dumps(value)) for key, value in values.items()]
        with engine_errors(self.path):
            self.get().executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", pairs)

    def changes(self) -> int:
        """Return the counter that `meta` is watched by (0: not set yet)."""
        rows = self.rows("SELECT value FROM meta WHERE key = 'changes'")
        return int(rows[0][0]) if rows else 0

    def n_live(self, seq_no: int) -> int:
        """Return how many documents there are, their last write at most ``seq_no``."""
        statement = "SELECT count(*) FROM documents WHERE source IS NOT NULL AND seq_no <= ?"
        return int(self.rows(statement, seq_no)[0][0])

    def states(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the states of the ids that have one."""
        with engine_errors(self.path):
            return _states(self.get(), ids)

    def save(self, states: Sequence[Stored]) -> None:
        """Store states, inside a transaction."""
        sources = [None if state.source is None else encode(state.source) for state in states]
        rows = [
            (state.id, state.seq_no, state.version, state.routing, source)
            for state, source in zip(states, sources, strict=True)
        ]
        self.get().executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)", rows)

    def newest(self) -> int:
        """Return the number of the last write, -1 before the first."""
        number = self.rows("SELECT max(seq_no) FROM documents")[0][0]
        return -1 if number is None else int(number)

    def since(self, seq_no: int, until: int, batch_size: int = 1000) -> Iterator[list[Stored]]:
        """Yield the states written after a number, up to another, deletions included, in order of writing."""
        statement = f"SELECT {_COLUMNS} FROM documents WHERE seq_no > ? AND seq_no <= ? ORDER BY seq_no LIMIT ?"  # noqa: S608
        while rows := self.rows(statement, seq_no, until, batch_size):
            yield [_state(row) for row in rows]
            seq_no = rows[-1][1]

    def stream(self, ids: Sequence[str] | None, batch_size: int) -> Iterator[list[Stored]]:
        """Yield live documents of one moment: those of ``ids`` in their order, or all in order of writing."""
        with engine_errors(self.path):
            with closing(connect(self.path)) as connection:
                connection.execute("BEGIN")
                if ids is None:
                    statement = f"SELECT {_COLUMNS} FROM documents WHERE source IS NOT NULL ORDER BY seq_no"  # noqa: S608
                    cursor = connection.execute(statement)
                    while rows := cursor.fetchmany(batch_size):
                        yield [_state(row) for row in rows]
                    return
                for start in range(0, len(ids), batch_size):
                    part = ids[start : start + batch_size]
                    states = _states(connection, part)
                    stored = [states[identifier] for identifier in part if identifier in states]
                    yield [state for state in stored if state.source is not None]


def _states(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Stored]:
    states: dict[str, Stored] = {}
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        marks = ",".join("?" * len(part))
        rows = connection.execute(f"SELECT {_COLUMNS} FROM documents WHERE id IN ({marks})", tuple(part))  # noqa: S608
        states |= {row[0]: _state(row) for row in rows}
    return states


def _state(row: tuple[str, int, int, str | None, bytes | None]) -> Stored:
    identifier, seq_no, version, routing, source = row
    value: Mapping[str, Any] | None = None if source is None else decode(source)
    return Stored(identifier, value, seq_no, version, routing)
