"""The retained click log: a folder of Parquet parts. Adding, forgetting, and expiring rows are atomic.

::

    clicks.json                                   the manifest, replaced atomically; the parts it names are complete
    key                                           the key of the hashes, unless it is stored elsewhere
    queries/day=2026-11-20/part-00000001.parquet  rows of one UTC day
    queries/day=undated/…                         rows whose time is missing or impossible
    queries/day=mixed/…                           rows of many days with few rows each, distinguished by their times
    hits/…, events/…, people/…
    seen-….npy                                    documents of an engine's index that were read recently

Files have mode 0600 and folders 0700. A part that the manifest does not name was left over by a killed process. The
next writer removes it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from filelock import FileLock, Timeout

from reranker.arrays import Bool, Int64
from reranker.clicks.privacy import Pseudonymiser, load_key
from reranker.clicks.schema import DAY_MS, TABLES, pyarrow_module
from reranker.errors import ConfigError, InputError
from reranker.files import replacing, sync_folder, write_file

Batch = Mapping[str, Mapping[str, Sequence[Any]]]
"""Table name → column name → values (lists or NumPy arrays of one length); columns of `reranker.clicks.schema`.

A batch may omit tables and columns: missing text is empty, missing flags are false, missing numbers are null.
"""

QUERY_TIME = "query_time"
"""Column added to the files of ``hits``: the time of their query, which decides where they are stored and when they
expire."""

PEOPLE = "people"
"""Table stored in addition to those of the schema: which hashed ids were seen together as one person."""

STORED: dict[str, dict[str, str]] = {
    **{name: dict(columns) for name, columns in TABLES.items()},
    "hits": {**TABLES["hits"], QUERY_TIME: "int64"},
    PEOPLE: {"alias": "string", "user": "string", "time": "int64"},
}
"""Columns of the files: those of `reranker.clicks.schema.TABLES` and the ones that the log itself needs."""

TIME_COLUMN = {"queries": "time", "hits": QUERY_TIME, "events": "time", PEOPLE: "time"}


def _arrow_schema(table: str) -> Any:
    pa = pyarrow_module()
    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    return pa.schema([(name, types[kind]) for name, kind in STORED[table].items()])


def to_tables(batch: Batch) -> dict[str, Any]:
    """Return the Arrow tables of a batch, with the columns of `STORED`; empty tables are omitted.

    Raises `InputError` for unknown tables or columns, columns of different lengths, or values of the wrong type.
    """
    unknown = sorted(set(batch) - set(STORED))
    if unknown:
        raise InputError(f"a batch has the table {unknown[0]!r}: tables are {', '.join(STORED)}", table=unknown[0])
    tables = {name: _arrow_table(name, columns) for name, columns in batch.items()}
    if "hits" in tables and QUERY_TIME not in batch["hits"]:
        tables["hits"] = _with_query_time(tables["hits"], tables.get("queries"))
    return {name: table for name, table in tables.items() if table.num_rows}


def _arrow_table(name: str, columns: Mapping[str, Sequence[Any]]) -> Any:
    pa = pyarrow_module()
    schema = _arrow_schema(name)
    unknown = sorted(set(columns) - set(schema.names))
    if unknown:
        raise InputError(f"the table {name!r} has no column {unknown[0]!r}: columns are {', '.join(schema.names)}")
    n_rows = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            empty = "" if pa.types.is_string(field.type) else False if pa.types.is_boolean(field.type) else None
            arrays.append(pa.repeat(pa.scalar(empty, field.type), n_rows))
            continue
        try:
            array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"column {field.name!r} of {name!r} cannot be {field.type}: {str(error)[:200]}") from error
    if any(len(array) != n_rows for array in arrays):
        raise InputError(f"the columns of {name!r} have different lengths: give one value per row in each column")
    return pa.table(arrays, schema=schema)


def _with_query_time(hits: Any, queries: Any) -> Any:
    """Return hits with the time of their query, if the batch contains the query."""
    if queries is None or not queries.num_rows:
        return hits
    pc = pyarrow_module().compute
    place = pc.index_in(hits["query_id"], value_set=queries["query_id"])
    column = hits.schema.get_field_index(QUERY_TIME)
    return hits.set_column(column, hits.schema.field(column), pc.take(queries["time"], place))


FORMAT: Final = "ssi-click-log"
FORMAT_VERSION: Final = 1
MANIFEST: Final = "clicks.json"
KEY_FILE: Final = "key"
LOCK_FILE: Final = ".lock"
UNDATED, MIXED = "undated", "mixed"
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024


class LogPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet file of the log."""

    path: str
    """Path relative to the folder of the log."""
    table: str
    rows: int
    imported: int
    """Day, since 1970, on which its rows were first stored. No row counts as younger, whatever its time is."""
    first_day: int | None = None
    """Day, since 1970, of its earliest row; None for undated rows."""
    last_day: int | None = None
    """Day, since 1970, of its latest row; None for undated rows."""


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """How far one source has been read.

    A file is identified by its content. An index of an engine, or a source added by a program, is identified by its
    name.
    """

    name: str
    kind: str
    """``file``, ``index``, or ``rows`` (added by a program)."""
    offset: int = 0
    """For a file: number of bytes read (of a gzipped file: decompressed)."""
    digest: str = ""
    """For a file: SHA-256 of its first ``offset`` bytes, in hexadecimal."""
    lines: int = 0
    """For a file: number of lines read."""
    cursor: str = ""
    """For an index: where reading continues, as JSON."""


class LogManifest(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a click log."""

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    key_id: str = ""
    next_part: int = 1
    parts: list[LogPart] = []
    sources: list[Source] = []
    notes: dict[str, int] = {}
    forgotten: dict[str, int] = {}
    forgotten_queries: list[str] = []
    forgotten_sessions: list[str] = []


def read_log_manifest(folder: Path) -> LogManifest:
    """Return the manifest of a click log.

    Raises `InputError` if it is missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise damaged(path, f"it is larger than {MAX_MANIFEST_BYTES:,} bytes")
        manifest = msgspec.json.decode(path.read_bytes(), type=LogManifest)
    except FileNotFoundError:
        message = f"{str(folder)!r} is not a click log: it has no file {MANIFEST}"
        raise InputError(f"{message}. Create one with  ssi clicks import LOG --log DIR", path=str(folder)) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)[:200]) from error
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        format_ = f"{manifest.format} version {manifest.format_version}"
        raise damaged(path, f"its format is {format_}, but this program reads {FORMAT} version {FORMAT_VERSION}")
    for part in manifest.parts:
        names = Path(part.path).parts
        if len(names) != 3 or ".." in names or names[0] != part.table or part.table not in STORED:
            raise damaged(path, f"it names the part {part.path[:100]!r}, which is not a valid path of a part")
    return manifest


def write_log_manifest(folder: Path, manifest: LogManifest) -> None:
    """Replace the manifest atomically. It is on disk when this function returns."""
    write_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1), private=True)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, accessible by their owner only. An existing folder keeps its mode."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def _write_part(path: Path, table: Any) -> None:
    """Write an Arrow table as one Parquet file atomically."""
    make_folder(path.parent)
    with replacing(path, private=True) as file:
        pyarrow_module().parquet.write_table(table, file, compression="zstd", write_statistics=True)


def read_part(path: Path, table: str) -> Any:
    """Return a part as an Arrow table. Raises `InputError` if it is missing or damaged."""
    pa = pyarrow_module()
    try:
        with open(path, "rb") as file:
            return pa.parquet.read_table(file, schema=_arrow_schema(table), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, str(error)[:200]) from error


def _remove_leftovers(folder: Path, manifest: LogManifest) -> None:
    """Remove files that a killed writer left over."""
    named = {folder / part.path for part in manifest.parts}
    leftovers = [path for table in STORED for path in (folder / table).glob("*/*") if path not in named]
    leftovers += folder.glob(".*.tmp")
    known = " ".join(source.cursor for source in manifest.sources)
    leftovers += [path for path in folder.glob("seen-*.npy") if path.name not in known]
    for path in leftovers:
        path.unlink(missing_ok=True)


def damaged(path: Path, reason: str) -> InputError:
    """Return the error for a damaged file of a click log."""
    message = f"the file {str(path)!r} of a click log is damaged ({reason})"
    return InputError(f"{message}: restore the folder from a backup, or import the logs again", path=str(path))


SPILL_ROWS = 100_000
"""Number of rows held in memory before they are written."""
MAX_DAYS, MIN_DAY_ROWS = 62, 64
"""If a write has rows of more than MAX_DAYS days, days with fewer than MIN_DAY_ROWS rows share a file."""


def clock(now_ms: int | None = None) -> int:
    """Return ``now_ms``, or the current time in milliseconds since 1970 if it is None."""
    return int(datetime.now(UTC).timestamp() * 1000) if now_ms is None else now_ms


def _days_of(table: Any, column: str) -> Int64:
    """Return the day of each row, (n,) int64; -1 for rows without a time."""
    times = times_of(table, column)
    return np.where(times < 0, -1, times // DAY_MS)


def times_of(table: Any, column: str) -> Int64:
    """Return the milliseconds of each row, (n,) int64; -1 for rows without a time."""
    times: Int64 = pyarrow_module().compute.fill_null(table[column], -1).to_numpy()
    return times


def _by_day(table: Any, column: str) -> list[tuple[str, int | None, int | None, Any]]:
    """Return (folder, first day, last day, rows) for each part into which a table is split; rows keep their order."""
    days = _days_of(table, column)
    names, counts = np.unique(days, return_counts=True)
    rare = names[(counts < MIN_DAY_ROWS) & (names >= 0)]
    mixed = np.isin(days, rare) & (len(names) > MAX_DAYS)
    parts: list[tuple[str, int | None, int | None, Any]] = []
    if mixed.any():
        parts.append(
            (MIXED, int(days[mixed].min()), int(days[mixed].max()), table.filter(pyarrow_module().array(mixed)))
        )
        table, days = table.filter(pyarrow_module().array(~mixed)), days[~mixed]
    order = np.argsort(days, kind="stable")
    if not (np.diff(order) == 1).all():
        table, days = table.take(order), days[order]
    starts = np.flatnonzero(np.diff(days, prepend=-2)).tolist()
    for start, end in pairwise([*starts, len(days)]):
        day = None if days[start] < 0 else int(days[start])
        label = UNDATED if day is None else (date(1970, 1, 1) + timedelta(days=day)).isoformat()
        parts.append((label, day, day, table.slice(start, end - start)))
    return parts


LOCK_TIMEOUT_S = 10.0
ROWS = "rows"
"""Kind of the sources that are added by programs."""


class ClickLog:
    """A folder that stores queries, hits and events of `reranker.clicks.schema` without personal data.

    Reading needs no lock, because `files` names parts that are complete and never change. Adding, forgetting and
    expiring lock the folder. If a process is killed in between, the log stays as it was before.

    Parameters
    ----------
    folder
        The folder of the log.
    create
        Create an empty log if the folder does not exist or is empty.

    Raises
    ------
    InputError
        If the folder contains no click log, a damaged one, or (with ``create``) something else.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        if create and not (self.folder / MANIFEST).exists():
            _create(self.folder)
        self.manifest = read_log_manifest(self.folder)
        """Content of the log at the time when this object opened it or last changed it."""
        # Parts searched for the clients of forgotten people, so that imports of many files do not read them every time.
        self._searched: frozenset[str] = frozenset()

    def files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table (``queries``, ``hits``, ``events``), oldest import first.

        There is always at least one file, possibly empty, so that readers find the columns. The files of ``hits`` have
        an additional column, ``query_time``.
        """
        if table not in STORED:
            raise ConfigError(f"a click log has no table {table!r}: its tables are {', '.join(STORED)}", value=table)
        return [self.folder / part.path for part in self.manifest.parts if part.table == table]

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        rows = dict.fromkeys(STORED, 0)
        for part in self.manifest.parts:
            rows[part.table] += part.rows
        return rows

    def privacy(self, key_file: str | os.PathLike[str] | None = None) -> Pseudonymiser:
        """Return the hashes of this log, with the key from its folder or from ``key_file``.

        Raises `InputError` if the key is missing, readable by others, or not the one with which the log was made.
        """
        path = Path(key_file) if key_file is not None else self.folder / KEY_FILE
        known = self.manifest.key_id
        privacy = Pseudonymiser(load_key(path, create=not known))
        if known and privacy.key_id != known:
            message = f"the click log {str(self.folder)!r} was made with another key than {str(path)!r}"
            raise InputError(f"{message}: give the right key file with --key", path=str(path))
        return privacy

    def add(self, batches: Iterable[Batch], source: str, *, now_ms: int | None = None) -> dict[str, int]:
        """Add all rows of a source atomically; return the number of rows added by table.

        Nothing is added if a source of this name was added before. Rows of forgotten people are dropped.

        Parameters
        ----------
        batches
            Rows (see `Batch`), whose ids of people must be hashed already.
        source
            Name of the source.
        now_ms
            Current time in milliseconds since 1970, here and in the other methods; None: the clock.
        """
        with self.transaction(now_ms) as transaction:
            if not transaction.sources(ROWS, source):
                for batch in batches:
                    transaction.put(batch)
                transaction.commit(Source(source, ROWS))
            return transaction.added

    @contextmanager
    def transaction(self, now_ms: int | None = None) -> Iterator[LogTransaction]:
        """Lock the log and yield a `LogTransaction`. Rows not committed at the end of the block are discarded.

        Afterwards, rows of forgotten people are removed whose client ids the log can link to them only now.

        Raises `InputError` if another process is changing the log.
        """
        with _locked(self.folder):
            self._look()
            transaction = LogTransaction(self.folder, now_ms)
            try:
                yield transaction
            finally:
                self._look()
            later = _clients_found_later(self, self._searched)
            # A client found now may have rows in any part.
            self._searched = frozenset(() if later else (part.path for part in self.manifest.parts))
            for until_ms, clients in later.items():
                LogTransaction(self.folder, now_ms).forget(_Person(self, clients, set(), until_ms), until_ms)
                self._look()

    def _look(self) -> None:
        """Read the current manifest and remove files that it does not name."""
        self.manifest = read_log_manifest(self.folder)
        _remove_leftovers(self.folder, self.manifest)

    def forget(self, user: str, privacy: Pseudonymiser, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows of a person; return the number of rows removed by table.

        Three kinds of rows are removed: rows with this id; rows with a client id that was seen together with it, or
        with the user of the session if the session belongs to only one user; and rows without any id that belong to a
        query of this person, so that an impression is forgotten as a whole.

        The hash of the id is kept, so that importing an old copy of a log does not bring the person back, under any of
        their client ids. Their later actions are stored again.

        Parameters
        ----------
        user
            The site's user, client, or session id, not hashed.
        privacy
            The hashes of this log.
        now_ms
            As in `add`.
        """
        _check_key(self.folder, self.manifest, privacy)
        with self.transaction(now_ms) as transaction:
            # An empty id has no hash. Rows without ids have empty values too and must not match.
            aliases, sessions = {privacy.of("user", user)} - {""}, {privacy.of("session", user)} - {""}
            users = aliases | _ids(self, "user", lambda table: _among(table, "alias", aliases), (PEOPLE,))
            visitors = _ids(self, "user", lambda table: _among(table, "session", sessions))
            if len(visitors) == 1:
                users |= visitors
            return transaction.forget(_Person(self, users, sessions), transaction.now_ms)

    def expire(self, days: int, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows older than a number of days; return the number removed by table.

        A row of the UTC day D is kept until the end of day D + ``days``. The age of a row whose time is missing, or
        later than its import, is counted from the day of its import. With 0 days only the current day is kept.
        """
        if days < 0:
            raise ConfigError(f"days is {days}: it must be 0 or more", value=days)
        with self.transaction(now_ms) as transaction:
            removed = transaction.replace(_expired_parts(self, transaction.now_ms // DAY_MS - days))
            transaction.commit()
        return removed


class LogTransaction:
    """A write transaction on a locked log, made by `ClickLog.transaction`.

    `put` and `replace` collect changes; `commit` publishes them atomically by replacing the ``manifest`` on disk.
    ``now_ms`` is the current time of the transaction.
    """

    def __init__(self, folder: Path, now_ms: int | None) -> None:
        self.folder, self.now_ms = folder, clock(now_ms)
        self.added = dict.fromkeys(STORED, 0)
        self._put: Counter[str] = Counter()
        self._held: dict[str, list[Any]] = {}
        self._n_held = 0
        self._gone: list[Path] = []
        self._manifest = manifest = read_log_manifest(folder)
        self._forgotten = Forgotten(
            dict(manifest.forgotten), set(manifest.forgotten_queries), set(manifest.forgotten_sessions)
        )

    def sources(self, kind: str, name: str | None = None) -> list[Source]:
        """Return the sources of a kind, optionally only those with a name."""
        return [source for source in self._manifest.sources if source.kind == kind and name in (None, source.name)]

    def use_key(self, privacy: Pseudonymiser) -> None:
        """Set the key of the log with its first commit. Raises `InputError` if the log was made with another key."""
        _check_key(self.folder, self._manifest, privacy)
        self._manifest.key_id = privacy.key_id

    def next_number(self) -> int:
        """Return a number that no file of the log uses yet."""
        self._manifest.next_part += 1
        return self._manifest.next_part - 1

    def note(self, notes: Counter[str]) -> None:
        """Add to the counts of unusual spellings and values in the imported rows."""
        self._manifest.notes = dict(Counter(self._manifest.notes) + notes)

    def put(self, batch: Batch) -> bool:
        """Collect rows; return whether enough are held in memory for a commit."""
        for name, table in self._forgotten.filter(to_tables(batch)).items():
            self._put[name] += table.num_rows
            self._n_held += table.num_rows
            self._held.setdefault(name, []).append(table)
        full = self._n_held >= SPILL_ROWS
        if full:
            self._spill()
        return full

    def _spill(self) -> None:
        """Write all held rows as parts, which the next commit publishes."""
        for name, tables in self._held.items():
            whole, today = pyarrow_module().concat_tables(tables), self.now_ms // DAY_MS
            for label, first, last, rows in _by_day(whole, TIME_COLUMN[name]):
                path = self._write(f"{name}/day={label}", rows)
                self._manifest.parts.append(LogPart(path, name, rows.num_rows, today, first, last))
        self._held, self._n_held = {}, 0

    def _write(self, folder: str, rows: Any) -> str:
        path = f"{folder}/part-{self.next_number():08d}.parquet"
        _write_part(self.folder / path, rows)
        return path

    def commit(self, source: Source | None = None) -> None:
        """Publish all collected changes atomically, together with how far the source was read."""
        self._spill()
        manifest = self._manifest
        if source is not None and not any(known is source for known in manifest.sources):
            manifest.sources.append(source)
        write_log_manifest(self.folder, manifest)
        for name, count in self._put.items():
            self.added[name] += count
        self._put = Counter()
        for path in self._gone:
            path.unlink(missing_ok=True)
        self._gone = []

    def replace(self, parts: Iterable[tuple[LogPart, Any]]) -> dict[str, int]:
        """Replace each part by an Arrow table, or remove it (None); return the number of removed rows by table."""
        removed = dict.fromkeys(STORED, 0)
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

    def forget(self, person: _Person, until_ms: int) -> dict[str, int]:
        """Remove all rows of a person and block their import up to a time; return the number removed by table."""
        removed = self.replace(person.changed_parts())
        manifest, known = self._manifest, self._manifest.forgotten
        known |= {id_: max(until_ms, known.get(id_, until_ms)) for id_ in sorted(person.users | person.sessions)}
        manifest.forgotten_queries = sorted({*manifest.forgotten_queries, *map(_query_hash, person.queries)})
        manifest.forgotten_sessions = sorted({*manifest.forgotten_sessions, *person.named_sessions})
        self.commit()
        return removed


def _check_key(folder: Path, manifest: LogManifest, privacy: Pseudonymiser) -> None:
    if manifest.key_id and privacy.key_id != manifest.key_id:
        raise InputError(f"the click log {str(folder)!r} was made with another key: give its key file with --key")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        held = FileLock(folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S, mode=0o600).acquire()
    except Timeout:
        message = f"another process is changing the click log {str(folder)!r}"
        raise InputError(f"{message}: wait until it has finished", path=str(folder)) from None
    with held:
        yield


def _create(folder: Path) -> None:
    """Create an empty log, with one empty part for each table so that readers find its columns."""
    if folder.is_dir() and (foreign := sorted(path.name for path in folder.iterdir() if not _is_own(path.name))):
        message = f"the folder {str(folder)!r} contains {foreign[0]!r} and is not a click log"
        raise InputError(f"{message}: choose a new folder", path=str(folder))
    make_folder(folder)
    with _locked(folder):
        if (folder / MANIFEST).exists():
            return  # another process has created it in the meantime
        manifest = LogManifest()
        for table in STORED:
            path = f"{table}/day={UNDATED}/part-00000000.parquet"
            _write_part(folder / path, _arrow_schema(table).empty_table())
            manifest.parts.append(LogPart(path, table, 0, 0))
        write_log_manifest(folder, manifest)


def _is_own(name: str) -> bool:
    """Return whether a file of this name may come from the creation of a log, interrupted or still in progress."""
    known = {MANIFEST, LOCK_FILE, KEY_FILE, *STORED}
    return name in known or (name.startswith(f".{MANIFEST}.") and name.endswith(".tmp"))


@dataclass
class Forgotten:
    """People whose rows must not be added to a log."""

    people: dict[str, int]
    """Hashes of users or sessions → time, in milliseconds since 1970, up to which their rows are dropped. Undated rows
    are dropped too. For a session, only rows without a user are dropped, unless it is in ``sessions``."""
    queries: set[str]
    """Hashes (`_query_hash`) of their query ids. Rows of these queries that have no id of a person are dropped."""
    sessions: set[str]
    """Hashes of sessions that were forgotten by their own id, so that all of their rows are dropped."""

    def filter(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Return the Arrow tables of a batch without the rows of forgotten people."""
        if not self.people:
            return tables
        kept = dict(tables)
        for name in kept.keys() & {"queries", "events", PEOPLE}:
            # Keep the links of clients first seen after forgetting: forgetting the person again must find their rows.
            gone = self._until(kept[name], "user") if name == PEOPLE else self._theirs(kept[name])
            kept[name] = kept[name].filter(pyarrow_module().array(~gone))
        if "hits" in kept:
            before, after = (_query_ids(named["queries"]) if "queries" in named else set() for named in (tables, kept))
            gone_ids = (before | self._known(kept["hits"])) - after
            kept["hits"] = kept["hits"].filter(pyarrow_module().array(~_among(kept["hits"], "query_id", gone_ids)))
        return {name: table for name, table in kept.items() if table.num_rows}

    def _theirs(self, table: Any) -> Bool:
        nameless = _nobody(table) & _among(table, "query_id", self._known(table))
        by_session = self._until(table, "session") & (
            _among(table, "user", {""}) | _among(table, "session", self.sessions)
        )
        return self._until(table, "user") | by_session | nameless

    def _known(self, table: Any) -> set[str]:
        """Return the query ids in a table that belong to forgotten people."""
        return {query_id for query_id in _query_ids(table) if _query_hash(query_id) in self.queries}

    def _until(self, table: Any, column: str) -> Bool:
        """Return which rows belong to forgotten people and are not later than the time of forgetting, (n,) bool."""
        limit = np.array([self.people.get(person, -1) for person in table[column].to_pylist()], dtype=np.int64)
        theirs: Bool = (limit >= 0) & (times_of(table, "time") <= limit)
        return theirs


def _query_hash(query_id: str) -> str:
    """Return the hash under which the id of a forgotten query is stored."""
    return blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _clients_found_later(log: ClickLog, searched: Set[str]) -> dict[int, set[str]]:
    """Return clients newly linked to forgotten people: time of forgetting → hashes of the clients.

    Parts (by path) in ``searched`` were examined before and are not read again.
    """
    known = log.manifest.forgotten
    clients: dict[int, set[str]] = {}
    for _, table in _tables(log, (PEOPLE,) if known else (), searched):
        linked = table.filter(pyarrow_module().array(_among(table, "alias", set(known))))
        for alias, client in zip(linked["alias"].to_pylist(), linked["user"].to_pylist(), strict=True):
            if client and client not in known:
                clients.setdefault(known[alias], set()).add(client)
    return clients


class _Person:
    """The ids and the queries of one person in a log. Only one part of the log is in memory at a time.

    All rows of ``sessions`` belong to the person. In other sessions of theirs, the rows without a user do. With
    ``until_ms``, rows of later times are not removed.
    """

    def __init__(self, log: ClickLog, users: set[str], sessions: set[str], until_ms: int | None = None) -> None:
        self._log, self.users, self.named_sessions, self._until_ms = log, users, sessions, until_ms
        self.sessions = sessions | _ids(log, "session", lambda t: _among(t, "user", users) & self._in_time(t))
        # Queries that belong to this person and, according to the log, to nobody else.
        theirs = _ids(log, "query_id", self._named)
        self.queries = theirs - _ids(
            log, "query_id", lambda t: ~self._named(t) & ~_nobody(t) & _among(t, "query_id", theirs)
        )
        # Queries of which no row remains, so that their hits are removed too.
        gone = _ids(log, "query_id", lambda t: self._gone("queries", t), ("queries",))
        self.whole = gone - _ids(
            log, "query_id", lambda t: ~self._gone("queries", t) & _among(t, "query_id", gone), ("queries",)
        )

    def changed_parts(self) -> Iterator[tuple[LogPart, Any]]:
        """Yield the parts that change if the person is removed, with the remaining rows (None if none remain)."""
        for part, table in _tables(self._log):
            gone = self._gone(part.table, table)
            if gone.any():
                yield part, None if gone.all() else table.filter(pyarrow_module().array(~gone))

    def _gone(self, name: str, table: Any) -> Bool:
        if name == "hits":
            return _among(table, "query_id", self.whole)
        if name == PEOPLE:
            linked = _among(table, "alias", self.users) | _among(table, "user", self.users)
            return linked & self._in_time(table)
        nameless = _nobody(table) & _among(table, "query_id", self.queries) & self._in_time(table)
        return self._named(table) | nameless

    def _named(self, table: Any) -> Bool:
        """Return which rows name the person: by user, or by session if the session was given or the user is empty."""
        by_session = _among(table, "session", self.sessions) & _among(table, "user", {""})
        by_session |= _among(table, "session", self.named_sessions)
        return (_among(table, "user", self.users) | by_session) & self._in_time(table)

    def _in_time(self, table: Any) -> Bool:
        """Return which rows are not later than ``until_ms``; with it, undated rows are not included."""
        if self._until_ms is None:
            return np.ones(table.num_rows, dtype=bool)
        early: Bool = times_of(table, "time") <= self._until_ms
        return early


def _expired_parts(log: ClickLog, first_day: int) -> Iterator[tuple[LogPart, Any]]:
    """Yield the parts with rows older than a day (since 1970), and the remaining rows (None if none remain)."""
    for part in log.manifest.parts:
        if not part.rows:
            continue
        if part.imported < first_day or (part.last_day is not None and part.last_day < first_day):
            yield part, None
        elif part.first_day is not None and part.first_day < first_day:
            table = read_part(log.folder / part.path, part.table)
            kept = _days_of(table, TIME_COLUMN[part.table]) >= first_day
            yield part, table.filter(pyarrow_module().array(kept))


def _tables(
    log: ClickLog, names: Sequence[str] = tuple(STORED), without: Set[str] = frozenset()
) -> Iterator[tuple[LogPart, Any]]:
    """Yield the non-empty parts of some tables with their rows, except parts whose path is in ``without``."""
    for part in log.manifest.parts:
        if part.rows and part.table in names and part.path not in without:
            yield part, read_part(log.folder / part.path, part.table)


def _query_ids(table: Any) -> set[str]:
    return set(table["query_id"].to_pylist()) - {""}


def _ids(
    log: ClickLog, column: str, chosen: Callable[[Any], Bool], names: Sequence[str] = ("queries", "events")
) -> set[str]:
    """Return the non-empty values of a column in the chosen rows of some tables."""
    ids: set[str] = set()
    for _, table in _tables(log, names):
        ids.update(table[column].filter(pyarrow_module().array(chosen(table))).to_pylist())
    return ids - {""}


def _among(table: Any, column: str, wanted: Set[str]) -> Bool:
    """Return which rows have one of the wanted values, (n,) bool."""
    pa = pyarrow_module()
    rows: Bool = pa.compute.is_in(table[column], value_set=pa.array(sorted(wanted), pa.string())).to_numpy()
    return rows


def _nobody(table: Any) -> Bool:
    return _among(table, "user", {""}) & _among(table, "session", {""})
