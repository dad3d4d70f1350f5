"""The retained click log: a folder of Parquet parts; rows are added, forgotten and expired, never half a step.

::

    clicks.json                                   the manifest, replaced in one rename: what it names is complete
    key                                           the key of the hashes, unless it is kept elsewhere
    queries/day=2026-11-20/part-00000001.parquet  rows of one UTC day
    queries/day=undated/…                         rows whose time is missing or cannot be true
    queries/day=mixed/…                           rows of many days with few rows each, told apart by their times
    hits/…, events/…, people/…
    seen-….npy                                    documents of an engine's index that were read lately

Files have mode 0600 and folders 0700. A part that the manifest does not name is left over from a killed process and
is removed by the next writer.
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
from reranker.clicks.schema import TABLES, arrow
from reranker.errors import ConfigError, InputError
from reranker.files import replacing, sync_folder, write_file

Batch = Mapping[str, Mapping[str, Sequence[Any]]]
"""Table name → column name → values (lists or NumPy arrays of one length); columns of `reranker.clicks.schema`.

A batch may leave tables and columns out: missing text is empty, missing flags are false, missing numbers null.
"""

QUERY_TIME = "query_time"
"""Column added to the files of ``hits``: the time of their query, by which they are kept and expire."""

PEOPLE = "people"
"""Table kept beside those of the schema: which hashed ids were seen together as one person."""

STORED: dict[str, dict[str, str]] = {
    **{name: dict(columns) for name, columns in TABLES.items()},
    "hits": {**TABLES["hits"], QUERY_TIME: "int64"},
    PEOPLE: {"alias": "string", "user": "string", "time": "int64"},
}
"""Columns of the files: those of `reranker.clicks.schema.TABLES` and what the log itself needs."""

TIME_COLUMN = {"queries": "time", "hits": QUERY_TIME, "events": "time", PEOPLE: "time"}


def _arrow_schema(table: str) -> Any:
    pa = arrow()
    types = {
        "string": pa.string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    return pa.schema([(name, types[kind]) for name, kind in STORED[table].items()])


def to_tables(batch: Batch) -> dict[str, Any]:
    """Return the Arrow tables of a batch, in the columns of `STORED`; empty tables are left out.

    `InputError` for unknown tables or columns, columns of different lengths, or values of another type.
    """
    unknown = sorted(set(batch) - set(STORED))
    if unknown:
        raise InputError(f"a batch has the table {unknown[0]!r}: tables are {', '.join(STORED)}", table=unknown[0])
    tables = {name: _arrow_table(name, columns) for name, columns in batch.items()}
    if "hits" in tables and QUERY_TIME not in batch["hits"]:
        tables["hits"] = _with_query_time(tables["hits"], tables.get("queries"))
    return {name: table for name, table in tables.items() if table.num_rows}


def _arrow_table(name: str, columns: Mapping[str, Sequence[Any]]) -> Any:
    pa = arrow()
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
        raise InputError(f"the columns of {name!r} have different lengths: give one value a row in each")
    return pa.table(arrays, schema=schema)


def _with_query_time(hits: Any, queries: Any) -> Any:
    """Return hits with the time of their query, where the batch holds it."""
    if queries is None or not queries.num_rows:
        return hits
    pc = arrow().compute
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
    """One Parquet file: where it is, its rows, and the days (since 1970) of the first and the last of them.

    ``imported`` is the day it was written first: no row can be younger, whatever its time says.
    """

    path: str
    table: str
    rows: int
    imported: int
    first_day: int | None = None
    last_day: int | None = None


class Source(msgspec.Struct, forbid_unknown_fields=True):
    """What has been read of one source.

    A file is known by its content: ``digest`` is the BLAKE2b hash of its first ``offset`` bytes, decompressed. An
    index of an engine, or a source made by a program, is known by its ``name``; ``cursor`` is where reading goes on.
    """

    name: str
    kind: str
    offset: int = 0
    digest: str = ""
    lines: int = 0
    cursor: str = ""


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
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


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a click log; `InputError` where there is none, or a damaged one or another version."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise damaged(path, f"it is longer than {MAX_MANIFEST_BYTES:,} bytes")
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        message = f"{str(folder)!r} is no click log ({MANIFEST} is not there)"
        raise InputError(f"{message}: make one with  ssi clicks import LOG --log DIR", path=str(folder)) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)[:200]) from error
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        format_ = f"{manifest.format} version {manifest.format_version}"
        raise damaged(path, f"it is of the format {format_}, and this program reads {FORMAT} version {FORMAT_VERSION}")
    for part in manifest.parts:
        names = Path(part.path).parts
        if len(names) != 3 or ".." in names or names[0] != part.table or part.table not in STORED:
            raise damaged(path, f"it names the part {part.path[:100]!r}, which cannot be one")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; it is on disk when this returns."""
    write_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1), private=True)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that only its owner can enter; one that is there keeps its mode."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def _write_part(path: Path, table: Any) -> None:
    """Write an Arrow table as one Parquet file, complete or not at all."""
    make_folder(path.parent)
    with replacing(path, private=True) as file:
        arrow().parquet.write_table(table, file, compression="zstd", write_statistics=True)


def read_part(path: Path, table: str) -> Any:
    """Return a part as an Arrow table; `InputError` where it is missing or damaged."""
    pa = arrow()
    try:
        with open(path, "rb") as file:
            return pa.parquet.read_table(file, schema=_arrow_schema(table), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, str(error)[:200]) from error


def _remove_leftovers(folder: Path, manifest: Manifest) -> None:
    """Remove files that a killed writer left behind."""
    named = {folder / part.path for part in manifest.parts}
    leftovers = [path for table in STORED for path in (folder / table).glob("*/*") if path not in named]
    leftovers += folder.glob(".*.tmp")
    known = " ".join(source.cursor for source in manifest.sources)
    leftovers += [path for path in folder.glob("seen-*.npy") if path.name not in known]
    for path in leftovers:
        path.unlink(missing_ok=True)


def damaged(path: Path, reason: str) -> InputError:
    """Return the error for a file of a click log that cannot be read."""
    message = f"the file {str(path)!r} of a click log is damaged ({reason})"
    return InputError(f"{message}: bring the folder back from a copy, or import the logs again", path=str(path))


DAY_MS = 86_400_000
SPILL_ROWS = 100_000
"""Rows held before they are written."""
MAX_DAYS, MIN_DAY_ROWS = 62, 64
"""Beyond this many days at once, a day with fewer rows than this gets no file of its own."""


def clock(now_ms: int | None = None) -> int:
    """Return ``now_ms``, or the milliseconds since 1970 that the clock shows."""
    return int(datetime.now(UTC).timestamp() * 1000) if now_ms is None else now_ms


def _days_of(table: Any, column: str) -> Int64:
    """Return the day of each row, (n,) int64; -1 for rows without a time."""
    times = times_of(table, column)
    return np.where(times < 0, -1, times // DAY_MS)


def times_of(table: Any, column: str) -> Int64:
    """Return the milliseconds of each row, (n,) int64; -1 for rows without a time."""
    times: Int64 = arrow().compute.fill_null(table[column], -1).to_numpy()
    return times


def _by_day(table: Any, column: str) -> list[tuple[str, int | None, int | None, Any]]:
    """Return (folder, first day, last day, rows) of the parts that a table falls into; rows keep their order."""
    days = _days_of(table, column)
    names, counts = np.unique(days, return_counts=True)
    rare = names[(counts < MIN_DAY_ROWS) & (names >= 0)]
    mixed = np.isin(days, rare) & (len(names) > MAX_DAYS)
    parts: list[tuple[str, int | None, int | None, Any]] = []
    if mixed.any():
        parts.append((MIXED, int(days[mixed].min()), int(days[mixed].max()), table.filter(arrow().array(mixed))))
        table, days = table.filter(arrow().array(~mixed)), days[~mixed]
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
"""Kind of the sources that programs add."""


class ClickLog:
    """A folder that keeps queries, hits and events of `reranker.clicks.schema` without personal data.

    Reading needs no lock: `files` names parts that are complete and never change. Adding, forgetting and expiring
    lock the folder against each other; a process killed in between leaves the log as it was before.

    `InputError` where the folder holds no click log, a damaged one, or (with ``create``, which makes one where none is)
    something else.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        if create and not (self.folder / MANIFEST).exists():
            _create(self.folder)
        self.manifest = read_manifest(self.folder)
        """What the log holds, as it was when it was opened or last changed by this object."""
        # Parts without a forgotten person's client: a log of many files would be read anew after each.
        self._searched: frozenset[str] = frozenset()

    def files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table (``queries``, ``hits``, ``events``), oldest import first.

        There is at least one, so that readers find the columns; it may be empty. The files of ``hits`` have a column
        more, ``query_time``.
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
        """Return the hashes of this log, with the key in its folder or in ``key_file``.

        `InputError` where the key is missing, readable by others, or not the one that the log was made with.
        """
        path = Path(key_file) if key_file is not None else self.folder / KEY_FILE
        known = self.manifest.key_id
        privacy = Pseudonymiser(load_key(path, create=not known))
        if known and privacy.key_id != known:
            message = f"the key {str(path)!r} is not the one that the click log {str(self.folder)!r} was made with"
            raise InputError(f"{message}: name that one with --key", path=str(path))
        return privacy

    def add(self, batches: Iterable[Batch], source: str, *, now_ms: int | None = None) -> dict[str, int]:
        """Add all rows of a source, or none; return the number of rows added by table.

        A source of this name that was added before is not added again. Rows of forgotten people are left out.

        Ids of people in the batches (`Batch`) must be hashed already. ``now_ms`` is the time it
        is said to be, here and in the other methods; None asks the clock.
        """
        with self.transaction(now_ms) as transaction:
            if not transaction.sources(ROWS, source):
                for batch in batches:
                    transaction.put(batch)
                transaction.commit(Source(source, ROWS))
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
                LogTransaction(self.folder, now_ms).forget(_Person(self, clients, set(), until_ms), until_ms)
                self._look()

    def _look(self) -> None:
        """Read what the log holds now; what no manifest names goes."""
        self.manifest = read_manifest(self.folder)
        _remove_leftovers(self.folder, self.manifest)

    def forget(self, user: str, privacy: Pseudonymiser, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows of a person (the site's user, client or session id); return the number removed by table.

        Removed are the rows with this id; those of every client id that was seen together with it, and of the user
        that a session is of, where it is of one alone; and rows without any id that belong to a query of theirs: an
        impression is forgotten as a whole. The hash of the id is kept, so that an old copy of a log does not bring the
        person back, under whichever client id; what they do later is kept again.
        """
        _check_key(self.folder, self.manifest, privacy)
        with self.transaction(now_ms) as transaction:
            # An empty id has no hash, and rows that name nobody have none either.
            aliases, sessions = {privacy.of("user", user)} - {""}, {privacy.of("session", user)} - {""}
            users = aliases | _ids(self, "user", lambda table: _among(table, "alias", aliases), (PEOPLE,))
            visitors = _ids(self, "user", lambda table: _among(table, "session", sessions))
            if len(visitors) == 1:
                users |= visitors
            return transaction.forget(_Person(self, users, sessions), transaction.now_ms)

    def expire(self, days: int, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows older than a number of days; return the number removed by table.

        A row of the UTC day D is there until the end of day D + ``days``. A row whose time is missing, or later than
        its import, counts from the day of its import. With 0 days only the current day stays.
        """
        if days < 0:
            raise ConfigError(f"days is {days}: it is 0 or more", value=days)
        with self.transaction(now_ms) as transaction:
            removed = transaction.replace(_expired_parts(self, transaction.now_ms // DAY_MS - days))
            transaction.commit()
        return removed


class LogTransaction:
    """What one process does to a locked log: rows put and parts replaced, which one commit makes part of it.

    Made by `ClickLog.transaction`. Each `commit` replaces the ``manifest`` on disk; ``now_ms`` is the time it is said
    to be.
    """

    def __init__(self, folder: Path, now_ms: int | None) -> None:
        self.folder, self.now_ms = folder, clock(now_ms)
        self.added = dict.fromkeys(STORED, 0)
        self._put: Counter[str] = Counter()
        self._held: dict[str, list[Any]] = {}
        self._n_held = 0
        self._gone: list[Path] = []
        self._manifest = manifest = read_manifest(folder)
        self._forgotten = Forgotten(
            dict(manifest.forgotten), set(manifest.forgotten_queries), set(manifest.forgotten_sessions)
        )

    def sources(self, kind: str, name: str | None = None) -> list[Source]:
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

    def put(self, batch: Batch) -> bool:
        """Take rows; return whether so many are held that they should be committed."""
        for name, table in self._forgotten.filter(to_tables(batch)).items():
            self._put[name] += table.num_rows
            self._n_held += table.num_rows
            self._held.setdefault(name, []).append(table)
        full = self._n_held >= SPILL_ROWS
        if full:
            self._spill()
        return full

    def _spill(self) -> None:
        """Write all rows held, as parts that the next commit names."""
        for name, tables in self._held.items():
            whole, today = arrow().concat_tables(tables), self.now_ms // DAY_MS
            for label, first, last, rows in _by_day(whole, TIME_COLUMN[name]):
                path = self._write(f"{name}/day={label}", rows)
                self._manifest.parts.append(LogPart(path, name, rows.num_rows, today, first, last))
        self._held, self._n_held = {}, 0

    def _write(self, folder: str, rows: Any) -> str:
        path = f"{folder}/part-{self.next_number():08d}.parquet"
        _write_part(self.folder / path, rows)
        return path

    def commit(self, source: Source | None = None) -> None:
        """Make all that was put part of the log, in one step, together with how far the source was read."""
        self._spill()
        manifest = self._manifest
        if source is not None and not any(known is source for known in manifest.sources):
            manifest.sources.append(source)
        write_manifest(self.folder, manifest)
        for name, count in self._put.items():
            self.added[name] += count
        self._put = Counter()
        for path in self._gone:
            path.unlink(missing_ok=True)
        self._gone = []

    def replace(self, parts: Iterable[tuple[LogPart, Any]]) -> dict[str, int]:
        """Put new rows, an Arrow table or None, in the place of parts; return the number of rows fewer by table."""
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
        """Remove all rows of a person, keep out those until a moment; return the number removed by table."""
        removed = self.replace(person.changed_parts())
        manifest, known = self._manifest, self._manifest.forgotten
        known |= {id_: max(until_ms, known.get(id_, until_ms)) for id_ in sorted(person.users | person.sessions)}
        manifest.forgotten_queries = sorted({*manifest.forgotten_queries, *map(_query_hash, person.queries)})
        manifest.forgotten_sessions = sorted({*manifest.forgotten_sessions, *person.named_sessions})
        self.commit()
        return removed


def _check_key(folder: Path, manifest: Manifest, privacy: Pseudonymiser) -> None:
    if manifest.key_id and privacy.key_id != manifest.key_id:
        raise InputError(f"the click log {str(folder)!r} was made with another key: name that one with --key")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        held = FileLock(folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S, mode=0o600).acquire()
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
    make_folder(folder)
    with _locked(folder):
        if (folder / MANIFEST).exists():
            return  # Made by another process meanwhile.
        manifest = Manifest()
        for table in STORED:
            path = f"{table}/day={UNDATED}/part-00000000.parquet"
            _write_part(folder / path, _arrow_schema(table).empty_table())
            manifest.parts.append(LogPart(path, table, 0, 0))
        write_manifest(folder, manifest)


def _is_own(name: str) -> bool:
    """Return whether a creation, killed or still at work, can have left a file of this name."""
    known = {MANIFEST, LOCK_FILE, KEY_FILE, *STORED}
    return name in known or (name.startswith(f".{MANIFEST}.") and name.endswith(".tmp"))


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
        kept = dict(tables)
        for name in kept.keys() & {"queries", "events", PEOPLE}:
            # A client first met after its person was forgotten stays linked: forgetting them again must find its rows.
            gone = self._until(kept[name], "user") if name == PEOPLE else self._theirs(kept[name])
            kept[name] = kept[name].filter(arrow().array(~gone))
        if "hits" in kept:
            before, after = (_query_ids(named["queries"]) if "queries" in named else set() for named in (tables, kept))
            gone_ids = (before | self._known(kept["hits"])) - after
            kept["hits"] = kept["hits"].filter(arrow().array(~_among(kept["hits"], "query_id", gone_ids)))
        return {name: table for name, table in kept.items() if table.num_rows}

    def _theirs(self, table: Any) -> Bool:
        nameless = _nobody(table) & _among(table, "query_id", self._known(table))
        by_session = self._until(table, "session") & (
            _among(table, "user", {""}) | _among(table, "session", self.sessions)
        )
        return self._until(table, "user") | by_session | nameless

    def _known(self, table: Any) -> set[str]:
        """Return the query ids of a table that are of the forgotten."""
        return {query_id for query_id in _query_ids(table) if _query_hash(query_id) in self.queries}

    def _until(self, table: Any, column: str) -> Bool:
        """Return which rows are of the forgotten, and not of later."""
        limit = np.array([self.people.get(person, -1) for person in table[column].to_pylist()], dtype=np.int64)
        theirs: Bool = (limit >= 0) & (times_of(table, "time") <= limit)
        return theirs


def _query_hash(query_id: str) -> str:
    """Return what is remembered of a forgotten query's id."""
    return blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _clients_found_later(log: ClickLog, searched: Set[str]) -> dict[int, set[str]]:
    """Return the clients that a log links to forgotten people only since then: time of forgetting → clients.

    Parts (by path) that were ``searched`` before are not read again.
    """
    known = log.manifest.forgotten
    clients: dict[int, set[str]] = {}
    for _, table in _tables(log, (PEOPLE,) if known else (), searched):
        linked = table.filter(arrow().array(_among(table, "alias", set(known))))
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
        self._log, self.users, self.named_sessions, self._until_ms = log, users, sessions, until_ms
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

    def changed_parts(self) -> Iterator[tuple[LogPart, Any]]:
        """Yield the parts that change without the person, with the rows that remain (None: none)."""
        for part, table in _tables(self._log):
            gone = self._gone(part.table, table)
            if gone.any():
                yield part, None if gone.all() else table.filter(arrow().array(~gone))

    def _gone(self, name: str, table: Any) -> Bool:
        if name == "hits":
            return _among(table, "query_id", self.whole)
        if name == PEOPLE:
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
        early: Bool = times_of(table, "time") <= self._until_ms
        return early


def _expired_parts(log: ClickLog, first_day: int) -> Iterator[tuple[LogPart, Any]]:
    """Yield the parts with rows older than a day (since 1970), and the rows that remain (None for none)."""
    for part in log.manifest.parts:
        if not part.rows:
            continue
        if part.imported < first_day or (part.last_day is not None and part.last_day < first_day):
            yield part, None
        elif part.first_day is not None and part.first_day < first_day:
            table = read_part(log.folder / part.path, part.table)
            kept = _days_of(table, TIME_COLUMN[part.table]) >= first_day
            yield part, table.filter(arrow().array(kept))


def _tables(
    log: ClickLog, names: Sequence[str] = tuple(STORED), without: Set[str] = frozenset()
) -> Iterator[tuple[LogPart, Any]]:
    """Yield the parts of some tables that have rows, but those of some paths, with the rows."""
    for part in log.manifest.parts:
        if part.rows and part.table in names and part.path not in without:
            yield part, read_part(log.folder / part.path, part.table)


def _query_ids(table: Any) -> set[str]:
    return set(table["query_id"].to_pylist()) - {""}


def _ids(
    log: ClickLog, column: str, chosen: Callable[[Any], Bool], names: Sequence[str] = ("queries", "events")
) -> set[str]:
    """Return the values, but the empty one, of the chosen rows of some tables."""
    ids: set[str] = set()
    for _, table in _tables(log, names):
        ids.update(table[column].filter(arrow().array(chosen(table))).to_pylist())
    return ids - {""}


def _among(table: Any, column: str, wanted: Set[str]) -> Bool:
    """Return which rows have one of the values, (n,) bool."""
    pa = arrow()
    rows: Bool = pa.compute.is_in(table[column], value_set=pa.array(sorted(wanted), pa.string())).to_numpy()
    return rows


def _nobody(table: Any) -> Bool:
    return _among(table, "user", {""}) & _among(table, "session", {""})
