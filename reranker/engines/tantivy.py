r"""An embedded engine in a folder: documents in SQLite, BM25 by tantivy; no server.

``PATH/catalogue.sqlite`` holds the names of indexes and aliases. Each index has its own folder with
``documents.sqlite`` (the source of truth) and ``search-N`` (the tantivy index, a copy that can always be rebuilt). A
bulk request is durable when it returns. `search` sees it after `refresh`, as in the real engines; `get` and `scan` see
it at once. A copy that is behind, because a process was killed in between, is repaired when the index is next opened.
Several processes may read and write. Writers take turns; a reader never waits for a writer, and sees one state for the
duration of its transaction (WAL with ``synchronous=FULL``).

In tantivy, text fields are numbered slots, so that a new field does not need a new tantivy index. Texts are split into
words by `reranker.engines.language` and passed to tantivy joined by spaces, so that `analyze` and the search index
agree on every word. Whole values are stored in a single field as ``path\0value``. Words with weights have a slot too;
`reranker.engines.weight_bits` writes the weights as words.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tantivy
from filelock import FileLock, Timeout
from tantivy import Occur, Query

from reranker.engines import language as tree
from reranker.engines.language import DocumentRefusedError, Extracted, FieldTable, Stored, standard_tokens
from reranker.engines.weight_bits import scored_words, text_of_weights
from reranker.engines.wire import json_bytes, json_value
from reranker.errors import EngineOverloaded, EngineRejected, EngineUnavailable, IndexMissing

FORMAT = 1
"""Version of the layout of the SQLite files. A greater number was written by a later version of this project."""
BUSY_S = 30.0
"""Seconds that a writer waits for another one."""
WRITER_BYTES = 64_000_000
"""Memory that the index writer uses before it writes a segment."""
FIRST_CAPACITY = 16
"""Slots for fields of words in a new index. When they run out, their number is doubled and the search copy rebuilt."""
_CATALOGUE_TABLES = """
CREATE TABLE indexes (name TEXT PRIMARY KEY, folder TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE aliases (alias TEXT, name TEXT, PRIMARY KEY (alias, name)) WITHOUT ROWID;
"""
_DOCUMENT_TABLES = """
CREATE TABLE documents (
    id TEXT PRIMARY KEY, seq_no INTEGER NOT NULL, version INTEGER NOT NULL, routing TEXT, source BLOB
) WITHOUT ROWID;
CREATE UNIQUE INDEX by_seq_no ON documents (seq_no);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "id, seq_no, version, routing, source"
_CHUNK = 500
_TOKENIZER = "ssi_words"
_MOST_TIES = 10_000
"""Largest number of hits that are read beyond the wanted ones to order equal scores by age."""
_ORPHAN_S = 3600
_FILE_FAULTS = re.compile("IO error|IoError|io::Error|Lockfile")
"""Parts of tantivy's messages (all its errors are ValueErrors) for a full disk, missing permissions, and the lock that
a writer still holds after such an error."""


class Match(NamedTuple):
    """A matching document."""

    id: str
    score: float
    place: int
    """Orders equal scores; the smaller number comes first."""


Change = tuple[Stored, Extracted | None]
"""A state to store, and its searchable part (None for a deletion)."""


@contextmanager
def engine_errors(place: Path) -> Iterator[None]:
    """Convert errors of SQLite and the file system, including those that tantivy reports, into the project's errors."""
    try:
        yield
    except sqlite3.OperationalError as error:
        # Extended codes, such as SQLITE_BUSY_SNAPSHOT, have the primary code in their low byte.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            message = f"{place} has been locked by another process for more than {BUSY_S:g} s: wait for it, or stop it"
            raise EngineOverloaded(message, engine="tantivy", error_type="locked") from error
        raise EngineUnavailable(
            f"{place}: {error}: free disk space, or fix the permissions of the folder", engine="tantivy"
        ) from error
    except sqlite3.DatabaseError as error:
        raise EngineRejected(
            f"{place} is damaged ({error}): restore it from a backup, or index the documents again", engine="tantivy"
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not _FILE_FAULTS.search(str(error)):
            raise
        message = f"{place}: {error}: free disk space, or fix the permissions of the folder"
        raise EngineUnavailable(message, engine="tantivy") from error


def connect(path: Path, *, create: str | None = None) -> sqlite3.Connection:
    """Return a connection to a database of this format; with ``create`` (its tables) it is created if missing."""
    place = f"{path.absolute().as_uri()}?mode={'rwc' if create is not None else 'rw'}"
    connection = sqlite3.connect(place, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and create is not None:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                # Another process may have created it first.
                if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                    for statement in filter(str.strip, create.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
        elif version != FORMAT:
            message = (
                f"{path} has format {version}, but this version reads format {FORMAT}: use the version that wrote it"
            )
            raise EngineRejected(message, engine="tantivy")
    except BaseException:
        connection.close()
        raise
    return connection


class Connections:
    """One connection per thread to a database. Without ``tables`` the database must exist already."""

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
        """Hold the only write transaction; it is committed at the end, and rolled back on an error."""
        with engine_errors(self.path), self.get() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in self._every:
            connection.close()
        self._every.clear()


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
    value: Mapping[str, Any] | None = None if source is None else json_value(source)
    return Stored(identifier, value, seq_no, version, routing)


def _remove(folder: Path) -> None:
    """Remove a folder that tantivy's readers, here or in other processes, may still use; it may be missing.

    A reader that loads a commit writes a lock file into the folder, by the name under which it was opened. So the
    folder is renamed before its files are deleted: the name is free at once, and no lock file can get in between.
    """
    removed = folder.with_name(f"removed-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


class _SearchIndex:
    """One tantivy index in a folder, with ``capacity`` slots for fields of words."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.capacity = capacity
        self._schema = _schema(capacity)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._index = self._open(folder)
        except ValueError:
            # Damaged, or written by another version of tantivy. It is only a copy, so it can be rebuilt.
            _remove(folder)
            folder.mkdir(exist_ok=True)
            self._index = self._open(folder)

    def _open(self, folder: Path) -> Any:
        index = tantivy.Index(self._schema, path=str(folder))
        words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
        index.register_tokenizer(_TOKENIZER, words)
        return index

    def n_documents(self) -> int:
        return int(self._index.searcher().num_docs)

    def reload(self) -> None:
        """Make commits visible, including those of other processes."""
        self._index.reload()

    def writer(self) -> Any:
        """Return a writer. There can be only one at a time, and nothing is visible before its ``commit``."""
        # With one thread, segments hold documents in order of writing, so that runs are reproducible.
        return self._index.writer(WRITER_BYTES, 1)

    def find(self, node: tree.Node, limit: int | None, slots: Mapping[str, int]) -> tuple[list[Match], int]:
        """Return the best matches by (-score, age of the last write), and the number of all matches."""
        query = _Queries(self._schema, slots).make(node)
        searcher = self._index.searcher()
        wanted = searcher.num_docs if limit is None else min(limit, searcher.num_docs)
        score = _constant_score(node)
        if score is not None:
            # All scores are equal, so the order is by age, by which tantivy can sort itself.
            result = searcher.search(query, max(1, wanted), order_by_field="seq_no", order=tantivy.Order.Asc)
            hits = [(score, address) for _, address in result.hits]
        else:
            result = _search_past_ties(searcher, query, wanted)
            hits = result.hits
        places = searcher.fast_field_values("seq_no", [address for _, address in hits]) if hits else []
        ranks = sorted(range(len(hits)), key=lambda rank: (-hits[rank][0], places[rank]))[:wanted]
        matches = [
            Match(searcher.doc(hits[rank][1]).get_first("id"), float(hits[rank][0]), int(places[rank]))
            for rank in ranks
        ]
        return matches, int(result.count)


def _schema(capacity: int) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("seq_no", indexed=False, fast=True)
    builder.add_text_field("exact", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("has", tokenizer_name="raw", index_option="basic")
    for slot in range(capacity):
        builder.add_text_field(f"text{slot}", tokenizer_name=_TOKENIZER, index_option="freq")
    return builder.build()


def _search_past_ties(searcher: Any, query: Any, wanted: int) -> Any:
    """Return the wanted hits and all others with the last one's score, since tantivy does not order ties by age."""
    n = wanted + 1
    while True:
        result = searcher.search(query, n)
        hits = result.hits
        open_end = len(hits) == n and wanted > 0 and hits[-1][0] == hits[wanted - 1][0]
        if not open_end or n >= _MOST_TIES:
            return result
        n *= 4


def _constant_score(node: tree.Node) -> float | None:
    """Return the score that all matches share, or None if scores may differ."""
    if isinstance(node, (tree.Words, tree.Weight, tree.DisMax)):
        return None
    if isinstance(node, tree.Bool):
        return None if node.must or node.should or node.minimum else 0.0
    return 0.0 if isinstance(node, tree.MatchNone) else node.boost


def _document(state: Stored, table: FieldTable, slots: Mapping[str, int]) -> Any:
    """Return the searchable document of a state; only its id if a field that was added later does not accept it."""
    extracted = Extracted()
    # Stored before the mapping had that field. The real engines do not reindex such a document either.
    with suppress(DocumentRefusedError):
        extracted = table.extract(state.source or {}, depth_limit=1000)
    document = tantivy.Document()
    document.add_text("id", state.id)
    document.add_unsigned("seq_no", state.seq_no)
    for path, values in extracted.exact.items():
        for value in dict.fromkeys(values):
            document.add_text("exact", f"{path}\0{value}")
    for path in _with_parents((*extracted.texts, *extracted.exact)):
        document.add_text("has", path)
    for path, texts in extracted.texts.items():
        words = " ".join(word for text in texts for word in standard_tokens(text))
        if path in slots and words:
            document.add_text(f"text{slots[path]}", words)
    for path, weights in extracted.weights.items():
        if path in slots and weights:
            document.add_text(f"text{slots[path]}", text_of_weights(weights))
    return document


def _with_parents(paths: Sequence[str]) -> dict[str, None]:
    """Return the paths and those of all their parent objects, since ``a.b`` exists wherever ``a.b.c`` has a value."""
    every: dict[str, None] = {}
    for path in paths:
        parts = path.split(".")
        every |= {".".join(parts[: length + 1]): None for length in range(len(parts))}
    return every


class _Queries:
    """Converts query trees to tantivy's queries."""

    def __init__(self, schema: Any, slots: Mapping[str, int]) -> None:
        self._schema = schema
        self._slots = slots

    def make(self, node: tree.Node) -> Any:
        match node:
            case tree.Words():
                return self._words(node)
            case tree.Weight():
                return Query.boolean_query(self._bits(node), 1)
            case tree.DisMax(children, tie):
                best = Query.disjunction_max_query([self.make(child) for child in children], tie)
                return Query.boost_query(best, node.boost)
            case tree.Bool():
                return self._bool(node)
            case tree.MatchNone():
                return Query.empty_query()
            case _:
                return Query.const_score_query(self._filter(node), node.boost)

    def _filter(self, node: tree.MatchAll | tree.Exact | tree.Ids | tree.Exists) -> Any:
        match node:
            case tree.MatchAll():
                return Query.all_query()
            case tree.Ids(ids):
                return self._any_of("id", ids)
            case tree.Exists(path):
                return self._any_of("has", (path,))
            case tree.Exact(path, values) if path in self._slots:
                return self._any_of(f"text{self._slots[path]}", values)
            case tree.Exact(path, values):
                return self._any_of("exact", tuple(f"{path}\0{value}" for value in values))

    def _any_of(self, field: str, values: Sequence[str]) -> Any:
        if not values:
            return Query.empty_query()
        return Query.term_set_query(self._schema, field, list(values))

    def _words(self, node: tree.Words) -> Any:
        slot = self._slots.get(node.field)
        if slot is None:
            return Query.empty_query()
        terms = [
            (Occur.Should, Query.term_query(self._schema, f"text{slot}", word, "freq"))
            for word, times in node.words
            for _ in range(times)
        ]
        if node.minimum > len(terms):
            return Query.empty_query()
        return Query.boost_query(Query.boolean_query(terms, node.minimum), node.boost)

    def _bits(self, node: tree.Weight) -> list[tuple[Occur, Any]]:
        """Return optional clauses whose scores add up to the weight times the boost."""
        slot = self._slots.get(node.field)
        if slot is None:
            return []
        bits = [
            (Query.term_query(self._schema, f"text{slot}", word, "freq"), value)
            for word, value in scored_words(node.word)
        ]
        return [(Occur.Should, Query.const_score_query(bit, node.boost * value)) for bit, value in bits]

    def _bool(self, node: tree.Bool) -> Any:
        if node.minimum > len(node.should):
            return Query.empty_query()
        must, should, never = Occur.Must, Occur.Should, Occur.MustNot
        clauses = [(must, self.make(child)) for child in node.must]
        clauses += [(must, Query.const_score_query(self.make(child), 0.0)) for child in node.filter]
        if not clauses and (node.minimum == 0 and not node.should):
            clauses = [(must, Query.const_score_query(Query.all_query(), 0.0))]
        least = node.minimum or int(not node.must and not node.filter and bool(node.should))
        for child in node.should:
            # The bits of weights need no query of their own, which would be slower, if no clauses are counted.
            if isinstance(child, tree.Weight) and least <= 1:
                clauses += self._bits(child)
            else:
                clauses.append((should, self.make(child)))
        clauses += [(never, self.make(child)) for child in node.must_not]
        return Query.boost_query(Query.boolean_query(clauses, least), node.boost)


@dataclass(frozen=True, slots=True)
class _Meta:
    """Metadata of an index, stored in its database."""

    changes: int
    """Counter that increases with every change of the metadata."""
    mapping: dict[str, Any]
    settings: dict[str, str]
    slots: dict[str, int]
    """Path of a field of words → its slot."""
    wanted_capacity: int
    """Slots that the next search copy will have."""
    capacity: int
    """Slots of the current search copy."""
    generation: int
    """Number of the search copy's folder."""
    indexed: int
    """Sequence number of the last write in the search copy."""


class TantivyIndex(Connections):
    """One index in its folder, identified by its ``uuid``: states of documents, metadata, and the search copy."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(folder / "documents.sqlite")
        self.name = name
        self.uuid = folder.name
        self._folder = folder
        self._lock = threading.RLock()
        self._known: _Meta | None = None
        self._table: FieldTable | None = None
        self._search: _SearchIndex | None = None
        self._search_state = (-1, -1)
        self.settings = self._meta().settings
        self._mend()

    @staticmethod
    def make(folder: Path, mapping: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        """Create an empty index in a folder that does not exist yet."""
        with engine_errors(folder):
            folder.mkdir(parents=True)
        store = Connections(folder / "documents.sqlite", _DOCUMENT_TABLES)
        slots = {path: slot for slot, path in enumerate(FieldTable(mapping).word_paths())}
        capacity = _capacity(len(slots))
        values = {"mapping": mapping, "settings": settings, "slots": slots, "wanted_capacity": capacity}
        with store.writing() as connection:
            _set_meta(connection, changes=1, capacity=capacity, generation=1, indexed=-1, **values)
        store.close()

    def close(self) -> None:
        """Release files."""
        with self._lock:
            self._search = None
            super().close()

    def mapping(self) -> dict[str, Any]:
        """Return the ``mappings`` object."""
        return self._meta().mapping

    def table(self) -> FieldTable:
        """Return the fields of the mapping."""
        with self._lock:
            meta = self._meta()
            if self._table is None:
                self._table = FieldTable(meta.mapping)
            return self._table

    def set_mapping(self, mapping: Mapping[str, Any]) -> None:
        """Store a changed mapping; existing documents are not reindexed, as in the real engines."""
        with self.writing():
            self.save((), mapping)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Lock the index for one bulk request, against all processes. Call `next_seq_no` and `save` inside."""
        try:
            with super().writing() as connection:
                yield connection
        except BaseException:
            # The cached metadata may contain changes that are now rolled back.
            self._forget()
            raise

    def next_seq_no(self) -> int:
        """Return the sequence number of the next write; the first is 0."""
        number = self.rows("SELECT max(seq_no) FROM documents")[0][0]
        return 0 if number is None else int(number) + 1

    def save(self, changes: Sequence[Change], mapping: Mapping[str, Any] | None) -> None:
        """Store the changes and, if given, a new mapping; its new fields of words get the next free slots."""
        if mapping is not None:
            meta = self._meta()
            slots = dict(meta.slots)
            for path in FieldTable(mapping).word_paths():
                slots.setdefault(path, len(slots))
            capacity = _capacity(len(slots), meta.wanted_capacity)
            self._change(self.get(), mapping=mapping, slots=slots, wanted_capacity=capacity)
        rows = []
        for state, _ in changes:
            source = None if state.source is None else json_bytes(state.source)
            rows.append((state.id, state.seq_no, state.version, state.routing, source))
        self.get().executemany("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)", rows)

    def read(self, ids: Sequence[str]) -> dict[str, Stored]:
        """Return the newest states of the ids that have one, including tombstones of deletions."""
        with engine_errors(self.path):
            return _states(self.get(), ids)

    def since(self, seq_no: int, until: int) -> Iterator[list[Stored]]:
        """Yield the states, including deletions, written after ``seq_no`` up to ``until``, in order of writing."""
        statement = f"SELECT {_COLUMNS} FROM documents WHERE seq_no > ? AND seq_no <= ? ORDER BY seq_no LIMIT 1000"  # noqa: S608
        while rows := self.rows(statement, seq_no, until):
            yield [_state(row) for row in rows]
            seq_no = rows[-1][1]

    def stream(self, ids: Sequence[str] | None, batch_size: int) -> Iterator[list[Stored]]:
        """Yield the live documents of one snapshot: those of ``ids`` in their order, or all in order of writing."""
        with engine_errors(self.path), closing(connect(self.path)) as connection:
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

    def find(self, node: tree.Node, limit: int | None) -> tuple[list[Match], int]:
        """Return the best ``limit`` matches (None: all) by (-score, place), and the number of all matches."""
        with self._lock:
            meta = self._meta()
            search = self._opened(meta)
        slots = {path: slot for path, slot in meta.slots.items() if slot < search.capacity}
        return search.find(node, limit, slots)

    def refresh(self, wait_s: float = BUSY_S) -> None:
        """Make acknowledged writes visible to search by copying the new ones; one process at a time."""
        with engine_errors(self._folder):
            try:
                with FileLock(str(self._folder / "refresh.lock"), timeout=wait_s):
                    self._copy_locked()
            except Timeout:
                message = (
                    f"index {self.name!r} has been refreshed by another process for more than {wait_s:g} s: "
                    "wait for it, or stop it"
                )
                raise EngineOverloaded(message, engine="tantivy", error_type="locked") from None

    def _copy_locked(self) -> None:
        # Searches continue meanwhile, because the lock of this object is only held briefly. Writes from here on are
        # left to the next copy: they may have fields that are missing in the mapping read now.
        until = self.next_seq_no() - 1
        self._forget()
        meta = self._meta()
        grown = meta.wanted_capacity != meta.capacity
        generation = meta.generation + 1 if grown else meta.generation
        done = -1 if grown else meta.indexed
        if grown:
            _remove(self._search_folder(generation))
            target = _SearchIndex(self._search_folder(generation), meta.wanted_capacity)
        else:
            with self._lock:
                target = self._opened(meta)
        newest = self._write(target, meta, done, until)
        if newest > done or grown:
            with self.writing() as connection:
                self._change(connection, indexed=newest, generation=generation, capacity=meta.wanted_capacity)
        if grown:
            _remove(self._search_folder(meta.generation))

    def _write(self, target: _SearchIndex, meta: _Meta, done: int, until: int) -> int:
        """Copy the writes after ``done`` up to ``until``; return the sequence number of the last one."""
        writer = None
        table, slots = FieldTable(meta.mapping), meta.slots
        for states in self.since(done, until):
            writer = writer or target.writer()
            for state in states:
                writer.delete_documents_by_term("id", state.id)
                if state.source is not None:
                    writer.add_document(_document(state, table, slots))
            done = states[-1].seq_no
        if writer is not None:
            writer.commit()
            writer.wait_merging_threads()
            target.reload()
        return done

    def _mend(self) -> None:
        """Update the search copy if a process died before it did, or rebuild it if it was lost."""
        try:
            self.refresh(0.0)
            meta = self._meta()
            live = "SELECT count(*) FROM documents WHERE source IS NOT NULL AND seq_no <= ?"
            if self._opened(meta).n_documents() != self.rows(live, meta.indexed)[0][0]:
                with self.writing() as connection:
                    self._change(connection, indexed=-1)
                self.refresh(0.0)
        except EngineOverloaded:
            # Another process is repairing it right now.
            return

    def _opened(self, meta: _Meta) -> _SearchIndex:
        """Return the search copy described by ``meta``, with its newest commit."""
        generation, indexed = self._search_state
        if self._search is None or generation != meta.generation:
            with engine_errors(self._folder):
                self._search = _SearchIndex(self._search_folder(meta.generation), meta.capacity)
        elif indexed != meta.indexed:
            self._search.reload()
        self._search_state = (meta.generation, meta.indexed)
        return self._search

    def _search_folder(self, generation: int) -> Path:
        return self._folder / f"search-{generation}"

    def _meta(self) -> _Meta:
        """Return the metadata; they are read again only if another process has changed them."""
        with self._lock:
            changes = int(self.rows("SELECT value FROM meta WHERE key = 'changes'")[0][0])
            if self._known is None or self._known.changes != changes:
                values = self.rows("SELECT key, value FROM meta")
                self._known = _Meta(**{key: json.loads(value) for key, value in values})
                self._table = None
            return self._known

    def _forget(self) -> None:
        with self._lock:
            self._known = None

    def _change(self, connection: sqlite3.Connection, **values: Any) -> None:
        _set_meta(connection, changes=self._meta().changes + 1, **values)
        self._forget()


def _set_meta(connection: sqlite3.Connection, **values: Any) -> None:
    pairs = [(key, json.dumps(value)) for key, value in values.items()]
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", pairs)


def _capacity(n_fields: int, capacity: int = FIRST_CAPACITY) -> int:
    """Return ``capacity``, doubled until it is at least ``n_fields``."""
    while capacity < n_fields:
        capacity *= 2
    return capacity


class TantivyCatalogue:
    """The folder of an embedded engine. Nothing is created before the first index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connections: Connections | None = None
        self._opened: dict[str, tuple[str, TantivyIndex]] = {}

    def _database(self) -> Connections:
        with self._lock:
            if self._connections is None:
                with engine_errors(self._path):
                    self._path.mkdir(parents=True, exist_ok=True)
                self._connections = Connections(self._path / "catalogue.sqlite", _CATALOGUE_TABLES)
            return self._connections

    def _rows(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        if self._connections is None and not (self._path / "catalogue.sqlite").exists():
            return []
        return self._database().rows(statement, *values)

    def names(self) -> list[str]:
        """Return all concrete indexes."""
        return [name for name, _ in self._rows("SELECT name, folder FROM indexes ORDER BY name")]

    def aliases(self) -> dict[str, set[str]]:
        """Return alias → indexes."""
        aliases: dict[str, set[str]] = {}
        for alias, name in self._rows("SELECT alias, name FROM aliases"):
            aliases.setdefault(alias, set()).add(name)
        return aliases

    def open(self, name: str) -> TantivyIndex:
        """Return a concrete index."""
        rows = self._rows("SELECT name, folder FROM indexes WHERE name = ?", name)
        if not rows:
            raise IndexMissing(f"index {name!r} has just been deleted: name another", status=404, engine="tantivy")
        folder = rows[0][1]
        with self._lock:
            known = self._opened.get(name)
            if known is None or known[0] != folder:
                known = self._opened[name] = (folder, TantivyIndex(name, self._path / folder))
            return known[1]

    def create(self, name: str, mapping: Mapping[str, Any], settings: dict[str, str]) -> None:
        """Create an index whose name is free; its folder is written before its name."""
        database = self._database()
        folder = f"{name}.{uuid.uuid4().hex[:8]}"
        TantivyIndex.make(self._path / folder, mapping, settings)
        with database.writing() as connection:
            taken = connection.execute("SELECT 1 FROM indexes WHERE name = ?", (name,)).fetchone()
            if taken:
                message = f"index {name!r} has just been created by another process: choose another name"
                raise EngineRejected(message, status=400, error_type="resource_already_exists_exception")
            connection.execute("INSERT INTO indexes VALUES (?, ?)", (name, folder))
        self._sweep()

    def delete(self, name: str) -> None:
        """Delete an index and its entries in aliases; its name is removed before its folder."""
        with self._database().writing() as connection:
            row = connection.execute("SELECT folder FROM indexes WHERE name = ?", (name,)).fetchone()
            connection.execute("DELETE FROM indexes WHERE name = ?", (name,))
            connection.execute("DELETE FROM aliases WHERE name = ?", (name,))
        with self._lock:
            known = self._opened.pop(name, None)
        if known is not None:
            known[1].close()
        if row is not None:
            # The index is gone with its name; a folder that cannot be removed now is left to the next sweep.
            with suppress(OSError):
                _remove(self._path / row[0])

    def swap(self, alias: str, add: str, remove: Sequence[str]) -> None:
        """Change one alias atomically."""
        with self._database().writing() as connection:
            connection.executemany("DELETE FROM aliases WHERE alias = ? AND name = ?", [(alias, old) for old in remove])
            connection.execute("INSERT OR REPLACE INTO aliases VALUES (?, ?)", (alias, add))

    def close(self) -> None:
        """Close all indexes and the catalogue."""
        with self._lock:
            for _, index in self._opened.values():
                index.close()
            self._opened.clear()
            if self._connections is not None:
                self._connections.close()
                self._connections = None

    def _sweep(self) -> None:
        """Remove folders without a name, left behind by a killed process, once they are an hour old."""
        named = {folder for _, folder in self._rows("SELECT name, folder FROM indexes")}
        for file in self._path.glob("*/documents.sqlite"):
            if file.parent.name not in named and time.time() - file.stat().st_mtime > _ORPHAN_S:
                with suppress(OSError):
                    _remove(file.parent)
