"""The retained click log: a folder of Parquet parts; rows are added, forgotten and expired, never half a step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from reranker.arrays import Bool
from reranker.clicks import storage
from reranker.clicks.privacy import Pseudonymiser, load_key
from reranker.errors import ConfigError, InputError

LOCK_TIMEOUT_S = 10.0
ROWS = "rows"
"""Kind of the sources that programs add."""


class ClickLog:
    """A folder that keeps queries, hits and events of `reranker.clicks.schema` without personal data.

    Reading needs no lock: `files` names parts that are complete and never change. Adding, forgetting and expiring
    lock the folder against each other; a process killed in between leaves the log as it was before.

    `InputError` where the folder holds no click log, a damaged one, or (with ``create``) something else.

    Parameters
    ----------
    create : bool
        Make the folder where it is not there.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        if create and not (self.folder / storage.MANIFEST).exists():
            _create(self.folder)
        self.manifest = storage.read_manifest(self.folder)
        """What the log holds, as it was when it was opened or last changed by this object."""
        self._keep: object = None
        # Parts without a forgotten person's client: a log of many files would be read anew after each.
        self._searched: frozenset[str] = frozenset()

    def files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table (``queries``, ``hits``, ``events``), oldest import first.

        There is at least one, so that readers find the columns; it may be empty. The files of ``hits`` have a column
        more, ``query_time``.
        """
        if table not in storage.STORED:
            raise ConfigError(
                f"a click log has no table {table!r}: its tables are {', '.join(storage.STORED)}", value=table
            )
        return [self.folder / part.path for part in self.manifest.parts if part.table == table]

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        rows = dict.fromkeys(storage.STORED, 0)
        for part in self.manifest.parts:
            rows[part.table] += part.rows
        return rows

    def privacy(self, key_file: str | os.PathLike[str] | None = None) -> Pseudonymiser:
        """Return the hashes of this log, with the key in its folder or in ``key_file``.

        `InputError` where the key is missing, readable by others, or not the one that the log was made with.
        """
        path = Path(key_file) if key_file is not None else self.folder / storage.KEY_FILE
        known = self.manifest.key_id
        privacy = Pseudonymiser(load_key(path, create=not known))
        if known and privacy.key_id != known:
            message = f"the key {str(path)!r} is not the one that the click log {str(self.folder)!r} was made with"
            raise InputError(f"{message}: name that one with --key", path=str(path))
        return privacy

    def add(self, batches: Iterable[storage.Batch], source: str, *, now_ms: int | None = None) -> dict[str, int]:
        """Add all rows of a source, or none; return the number of rows added by table.

        A source of this name that was added before is not added again. Rows of forgotten people are left out.

        Ids of people in the batches (`reranker.clicks.storage.Batch`) must be hashed already. ``now_ms`` is the time it
        is said to be, here and in the other methods; None asks the clock.
        """
        with self.transaction(now_ms) as transaction:
            if not transaction.sources(ROWS, source):
                for batch in batches:
                    transaction.put(batch)
                transaction.commit(storage.Source(source, ROWS))
            return transaction.added

    @contextmanager
    def transaction(self, now_ms: int | None = None) -> Iterator[LogTransaction]:
        """Yield a `LogTransaction` with the log locked; what is not committed when the block ends is dropped.

        Then rows go that a forgotten person left under client ids which the log links to them only now.

        `InputError` where another process changes the log.
        """
        with _locked(self.folder):
            self._look()
            transaction = LogTransaction(self.folder, now_ms)
            try:
                yield transaction
            finally:
                self._look()
            later = _clients_found_later(self, self._searched)
            # One found now may be linked in any part.
            self._searched = frozenset(() if later else (part.path for part in self.manifest.parts))
            for until_ms, clients in later.items():
                forgotten, replaced = _Person(self, clients, set(), until_ms).without(self, until_ms)
                more = LogTransaction(self.folder, now_ms)
                more.replace(replaced)
                more.remember(forgotten)
                more.commit()
                self._look()

    def _look(self) -> None:
        """Read what the log holds now; what no manifest names goes."""
        self.manifest = storage.read_manifest(self.folder)
        storage.remove_leftovers(self.folder, self.manifest)

    def forget(self, user: str, privacy: Pseudonymiser, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows of a person (the site's user, client or session id); return the number removed by table.

        Removed are the rows with this id; those of every client id that was seen together with it, and of the user
        that a session is of, where it is of one alone; and rows without any id that belong to a query of theirs: an
        impression is forgotten as a whole. The hash of the id is kept, so that an old copy of a log does not bring the
        person back, under whichever client id; what they do later is kept again.
        """
        _check_key(self.folder, self.manifest, privacy)
        with self.transaction(now_ms) as transaction:
            forgotten, replaced = _parts_without(self, user, privacy, transaction.now_ms)
            removed = transaction.replace(replaced)
            transaction.remember(forgotten)
            transaction.commit()
        return removed

    def expire(self, days: int, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows older than a number of days; return the number removed by table.

        A row of the UTC day D is there until the end of day D + ``days``. A row whose time is missing, or later than
        its import, counts from the day of its import. With 0 days only the current day stays.
        """
        if days < 0:
            raise ConfigError(f"days is {days}: it is 0 or more", value=days)
        with self.transaction(now_ms) as transaction:
            removed = transaction.replace(_expired_parts(self, transaction.now_ms // storage.DAY_MS - days))
            transaction.commit()
        return removed


class LogTransaction:
    """What one process does to a locked log: rows put and parts replaced, which one commit makes part of it.

    Made by `ClickLog.transaction`. Each `commit` replaces the ``manifest`` on disk; ``now_ms`` is the time it is said
    to be.
    """

    def __init__(self, folder: Path, now_ms: int | None) -> None:
        self.folder, self.now_ms = folder, storage.clock(now_ms)
        self.added = dict.fromkeys(storage.STORED, 0)
        self._put: Counter[str] = Counter()
        self._held: dict[str, list[Any]] = {}
        self._n_held = 0
        self._gone: list[Path] = []
        self._manifest = manifest = storage.read_manifest(folder)
        self._forgotten = Forgotten(
            dict(manifest.forgotten), set(manifest.forgotten_queries), set(manifest.forgotten_sessions)
        )

    def sources(self, kind: str, name: str | None = None) -> list[storage.Source]:
        """Return what has been read of the sources of a kind (and name)."""
        return [source for source in self._manifest.sources if source.kind == kind and name in (None, source.name)]

    def use_key(self, privacy: Pseudonymiser) -> None:
        """Let the log be of this key from its first commit on; `InputError` where it is of another."""
        _check_key(self.folder, self._manifest, privacy)
        self._manifest.key_id = privacy.key_id

    def next_number(self) -> int:
        """Return a number that no file of the log has yet."""
        self._manifest.next_part += 1
        return self._manifest.next_part - 1

    def note(self, notes: Counter[str]) -> None:
        """Count spellings and oddities of the rows that are put."""
        self._manifest.notes = dict(Counter(self._manifest.notes) + notes)

    def put(self, batch: storage.Batch) -> bool:
        """Take rows; return whether so many are held that they should be committed."""
        for name, table in self._forgotten.filter(storage.to_tables(batch)).items():
            self._put[name] += table.num_rows
            self._n_held += table.num_rows
            self._held.setdefault(name, []).append(table)
        full = self._n_held >= storage.SPILL_ROWS
        if full:
            self._spill()
        return full

    def _spill(self) -> None:
        """Write all rows held, as parts that the next commit names."""
        for name, tables in self._held.items():
            whole, today = storage.arrow().concat_tables(tables), self.now_ms // storage.DAY_MS
            for label, first, last, rows in storage.by_day(whole, storage.TIME_COLUMN[name]):
                path = self._write(f"{name}/day={label}", rows)
                self._manifest.parts.append(storage.Part(path, name, rows.num_rows, today, first, last))
        self._held, self._n_held = {}, 0

    def _write(self, folder: str, rows: Any) -> str:
        path = f"{folder}/part-{self.next_number():08d}.parquet"
        storage.write_part(self.folder / path, rows)
        return path

    def commit(self, source: storage.Source | None = None) -> None:
        """Make all that was put part of the log, in one step, together with how far the source was read."""
        self._spill()
        manifest = self._manifest
        if source is not None and not any(known is source for known in manifest.sources):
            manifest.sources.append(source)
        storage.write_manifest(self.folder, manifest)
        for name, count in self._put.items():
            self.added[name] += count
        self._put = Counter()
        for path in self._gone:
            path.unlink(missing_ok=True)
        self._gone = []

    def replace(self, parts: Iterable[tuple[storage.Part, Any]]) -> dict[str, int]:
        """Put new rows, an Arrow table or None, in the place of parts; return the number of rows fewer by table."""
        removed = dict.fromkeys(storage.STORED, 0)
        for part, rows in parts:
            kept = rows.num_rows if rows is not None else 0
            removed[part.table] += part.rows - kept
            place = self._manifest.parts.index(part)
            if kept:
                path = self._write(part.path.rpartition("/")[0], rows)
                self._manifest.parts[place] = msgspec.structs.replace(part, path=path, rows=kept)
            else:
                del self._manifest.parts[place]
            self._gone.append(self.folder / part.path)
        return removed

    def remember(self, forgotten: Forgotten) -> None:
        """Keep out the forgotten from now on."""
        manifest, known = self._manifest, self._manifest.forgotten
        known |= {person: max(until, known.get(person, until)) for person, until in forgotten.people.items()}
        manifest.forgotten_queries = sorted({*manifest.forgotten_queries, *forgotten.queries})
        manifest.forgotten_sessions = sorted({*manifest.forgotten_sessions, *forgotten.sessions})


def _check_key(folder: Path, manifest: storage.Manifest, privacy: Pseudonymiser) -> None:
    """Raise `InputError` where a log is of another key."""
    if manifest.key_id and privacy.key_id != manifest.key_id:
        raise InputError(f"the click log {str(folder)!r} was made with another key: name that one with --key")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a log's folder."""
    try:
        held = FileLock(folder / storage.LOCK_FILE, timeout=LOCK_TIMEOUT_S, mode=0o600).acquire()
    except Timeout:
        message = f"the click log {str(folder)!r} is being changed by another process"
        raise InputError(f"{message}: wait until it has ended", path=str(folder)) from None
    with held:
        yield


def _create(folder: Path) -> None:
    """Make an empty log, with an empty part a table that shows its columns."""
    if folder.is_dir() and (foreign := sorted(path.name for path in folder.iterdir() if not _is_own(path.name))):
        message = f"the folder {str(folder)!r} holds {foreign[0]!r} and no click log"
        raise InputError(f"{message}: name a new folder", path=str(folder))
    storage.make_folder(folder)
    with _locked(folder):
        if (folder / storage.MANIFEST).exists():
            return  # Made by another process meanwhile.
        manifest = storage.Manifest()
        for table in storage.STORED:
            path = f"{table}/day={storage.UNDATED}/part-00000000.parquet"
            storage.write_part(folder / path, storage.arrow_schema(table).empty_table())
            manifest.parts.append(storage.Part(path, table, 0, 0))
        storage.write_manifest(folder, manifest)


def _is_own(name: str) -> bool:
    """Return whether a creation, killed or still at work, can have left a file of this name."""
    known = {storage.MANIFEST, storage.LOCK_FILE, storage.KEY_FILE, *storage.STORED}
    return name in known or (name.startswith(f".{storage.MANIFEST}.") and name.endswith(".tmp"))


@dataclass
class Forgotten:
    """Whose rows are kept out of a log.

    ``people`` are hashes of users or sessions → milliseconds until which their rows are kept out, undated ones too;
    ``queries`` are hashes (`_query_hash`) of their query ids: rows of these queries that name nobody are kept out.
    Of a session, rows that name no user are kept out; all rows of those among ``sessions``, forgotten by their own id.
    """

    people: dict[str, int]
    queries: set[str]
    sessions: set[str]

    def filter(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Return the Arrow tables of a batch without the rows of the forgotten."""
        if not self.people:
            return tables
        pa = storage.arrow()
        kept = dict(tables)
        for name in kept.keys() & {"queries", "events", storage.PEOPLE}:
            # A client first met after its person was forgotten stays linked: forgetting them again must find its rows.
            gone = self._until(kept[name], "user") if name == storage.PEOPLE else self._theirs(kept[name])
            kept[name] = kept[name].filter(pa.array(~gone))
        if "hits" in kept:
            before, after = (_all(named["queries"]) if "queries" in named else set() for named in (tables, kept))
            gone_ids = (before | self._known(kept["hits"])) - after
            kept["hits"] = kept["hits"].filter(pa.array(~_among(kept["hits"], "query_id", gone_ids)))
        return {name: table for name, table in kept.items() if table.num_rows}

    def _theirs(self, table: Any) -> Bool:
        nameless = _nobody(table) & _among(table, "query_id", self._known(table))
        by_session = self._until(table, "session") & (
            _among(table, "user", {""}) | _among(table, "session", self.sessions)
        )
        return self._until(table, "user") | by_session | nameless

    def _known(self, table: Any) -> set[str]:
        """Return the query ids of a table that are of the forgotten."""
        return {query_id for query_id in _all(table) if _query_hash(query_id) in self.queries}

    def _until(self, table: Any, column: str) -> Bool:
        """Return which rows are of the forgotten, and not of later."""
        pa = storage.arrow()
        import pyarrow.compute as pc

        names = pa.array(sorted(self.people), pa.string())
        limits = pa.array([self.people[person] for person in sorted(self.people)], pa.int64())
        limit = pc.fill_null(pc.take(limits, pc.index_in(table[column], value_set=names)), -1).to_numpy()
        theirs: Bool = (limit >= 0) & (storage.times_of(table, "time") <= limit)
        return theirs


def _query_hash(query_id: str) -> str:
    """Return what is remembered of a forgotten query's id."""
    return blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _parts_without(
    log: ClickLog, user: str, privacy: Pseudonymiser, now_ms: int
) -> tuple[Forgotten, list[tuple[storage.Part, Any]]]:
    """Return who is forgotten until now, and the parts that change, with the rows that remain (None for none)."""
    # An empty id has no hash, and rows that name nobody have none either.
    aliases, sessions = {privacy.of("user", user)} - {""}, {privacy.of("session", user)} - {""}
    users = aliases | _ids(log, "user", lambda table: _among(table, "alias", aliases), (storage.PEOPLE,))
    visitors = _ids(log, "user", lambda table: _among(table, "session", sessions))
    if len(visitors) == 1:
        users |= visitors
    return _Person(log, users, sessions).without(log, now_ms)


def _clients_found_later(log: ClickLog, searched: Set[str]) -> dict[int, set[str]]:
    """Return the clients that a log links to forgotten people only since then: time of forgetting → clients.

    Parts (by path) that were ``searched`` before are not read again.
    """
    known = log.manifest.forgotten
    clients: dict[int, set[str]] = {}
    for part in log.manifest.parts if known else ():
        if part.table != storage.PEOPLE or not part.rows or part.path in searched:
            continue
        table = storage.read_part(log.folder / part.path, part.table)
        linked = table.filter(storage.arrow().array(_among(table, "alias", set(known))))
        for alias, client in zip(linked["alias"].to_pylist(), linked["user"].to_pylist(), strict=True):
            if client and client not in known:
                clients.setdefault(known[alias], set()).add(client)
    return clients


class _Person:
    """The ids and the queries of one person in a log; holds one part of the log at a time.

    All rows of ``sessions`` are theirs; of other sessions of theirs, rows that name no user. With ``until_ms`` rows of
    later times are not theirs to be removed.
    """

    def __init__(self, log: ClickLog, users: set[str], sessions: set[str], until_ms: int | None = None) -> None:
        self.users, self.named_sessions, self._until_ms = users, sessions, until_ms
        self.sessions = sessions | _ids(log, "session", lambda t: _among(t, "user", users) & self._in_time(t))
        # Queries that are theirs and, as far as the log says, nobody else's.
        theirs = _ids(log, "query_id", self._named)
        self.queries = theirs - _ids(
            log, "query_id", lambda t: ~self._named(t) & ~_nobody(t) & _among(t, "query_id", theirs)
        )
        # Those of which no row remains, so that their hits go too.
        gone = _ids(log, "query_id", lambda t: self._gone("queries", t), ("queries",))
        self.whole = gone - _ids(
            log, "query_id", lambda t: ~self._gone("queries", t) & _among(t, "query_id", gone), ("queries",)
        )

    def without(self, log: ClickLog, until_ms: int) -> tuple[Forgotten, list[tuple[storage.Part, Any]]]:
        """Return whom to forget until a moment, and the parts that change, with the rows that remain (None: none)."""
        changed: list[tuple[storage.Part, Any]] = []
        for part, table in _tables(log):
            gone = self._gone(part.table, table)
            if gone.any():
                changed.append((part, None if gone.all() else table.filter(storage.arrow().array(~gone))))
        hashes = {_query_hash(query_id) for query_id in self.queries}
        people = dict.fromkeys(sorted(self.users | self.sessions), until_ms)
        return Forgotten(people, hashes, self.named_sessions), changed

    def _gone(self, name: str, table: Any) -> Bool:
        if name == "hits":
            return _among(table, "query_id", self.whole)
        if name == storage.PEOPLE:
            linked = _among(table, "alias", self.users) | _among(table, "user", self.users)
            return linked & self._in_time(table)
        nameless = _nobody(table) & _among(table, "query_id", self.queries) & self._in_time(table)
        return self._named(table) | nameless

    def _named(self, table: Any) -> Bool:
        """Return which rows name the person: by user, or by session where the session is given or no user is beside."""
        by_session = _among(table, "session", self.sessions) & _among(table, "user", {""})
        by_session |= _among(table, "session", self.named_sessions)
        return (_among(table, "user", self.users) | by_session) & self._in_time(table)

    def _in_time(self, table: Any) -> Bool:
        """Return which rows are not of later times; those without a time are not."""
        if self._until_ms is None:
            return np.ones(table.num_rows, dtype=bool)
        early: Bool = storage.times_of(table, "time") <= self._until_ms
        return early


def _expired_parts(log: ClickLog, first_day: int) -> Iterator[tuple[storage.Part, Any]]:
    """Yield the parts with rows older than a day (since 1970), and the rows that remain (None for none)."""
    for part in log.manifest.parts:
        if not part.rows:
            continue
        if part.imported < first_day or (part.last_day is not None and part.last_day < first_day):
            yield part, None
        elif part.first_day is not None and part.first_day < first_day:
            table = storage.read_part(log.folder / part.path, part.table)
            kept = storage.days_of(table, storage.TIME_COLUMN[part.table]) >= first_day
            yield part, table.filter(storage.arrow().array(kept))


def _tables(log: ClickLog, names: Sequence[str] = tuple(storage.STORED)) -> Iterator[tuple[storage.Part, Any]]:
    """Yield the parts of some tables that have rows, with the rows."""
    for part in log.manifest.parts:
        if part.rows and part.table in names:
            yield part, storage.read_part(log.folder / part.path, part.table)


def _all(table: Any) -> set[str]:
    return set(table["query_id"].to_pylist()) - {""}


def _ids(
    log: ClickLog, column: str, chosen: Callable[[Any], Bool], names: Sequence[str] = ("queries", "events")
) -> set[str]:
    """Return the values, but the empty one, of the chosen rows of some tables."""
    ids: set[str] = set()
    for _, table in _tables(log, names):
        ids.update(table[column].filter(storage.arrow().array(chosen(table))).to_pylist())
    return ids - {""}


def _among(table: Any, column: str, wanted: Set[str]) -> Bool:
    """Return which rows have one of the values, (n,) bool."""
    pa = storage.arrow()
    import pyarrow.compute as pc

    rows: Bool = pc.is_in(table[column], value_set=pa.array(sorted(wanted), pa.string())).to_numpy()
    return rows


def _nobody(table: Any) -> Bool:
    return _among(table, "user", {""}) & _among(table, "session", {""})
