"""The folder of a click log: its manifest, and Parquet parts that are complete before the manifest names them.

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

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from reranker.arrays import Int64
from reranker.clicks.schema import TABLES
from reranker.errors import InputError, MissingExtra
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


def arrow() -> Any:
    """Return the module pyarrow; raises `MissingExtra` where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "clicks") from error
    return pa


def arrow_schema(table: str) -> Any:
    """Return the Arrow schema of a table's files."""
    pa = arrow()
    types = {
        "string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_(),
    }  # fmt: skip
    return pa.schema([(name, types[kind]) for name, kind in STORED[table].items()])


def to_tables(batch: Batch) -> dict[str, Any]:
    """Return the Arrow tables of a batch, in the columns of `STORED`; empty tables are left out.

    `InputError` for unknown tables or columns, columns of different lengths, or values of another type.
    """
    unknown = sorted(set(batch) - set(STORED))
    if unknown:
        raise InputError(f"a batch has the table {unknown[0]!r}: tables are {', '.join(STORED)}", table=unknown[0])
    tables = {name: _table(name, columns) for name, columns in batch.items()}
    if "hits" in tables and QUERY_TIME not in batch["hits"]:
        tables["hits"] = _with_query_time(tables["hits"], tables.get("queries"))
    return {name: table for name, table in tables.items() if table.num_rows}


def _table(name: str, columns: Mapping[str, Sequence[Any]]) -> Any:
    pa = arrow()
    schema = arrow_schema(name)
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
    import pyarrow.compute as pc

    if queries is None or not queries.num_rows:
        return hits
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


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    parts: list[Part] = []
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


def write_part(path: Path, table: Any) -> None:
    """Write an Arrow table as one Parquet file, complete or not at all."""
    import pyarrow.parquet as pq

    make_folder(path.parent)
    with replacing(path, private=True) as file:
        pq.write_table(table, file, compression="zstd", write_statistics=True)


def read_part(path: Path, table: str) -> Any:
    """Return a part as an Arrow table; `InputError` where it is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open(path, "rb") as file:
            return pq.read_table(file, schema=arrow_schema(table), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, str(error)[:200]) from error


def remove_leftovers(folder: Path, manifest: Manifest) -> None:
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


def days_of(table: Any, column: str) -> Int64:
    """Return the day of each row, (n,) int64; -1 for rows without a time."""
    times = times_of(table, column)
    return np.where(times < 0, -1, times // DAY_MS)


def times_of(table: Any, column: str) -> Int64:
    """Return the milliseconds of each row, (n,) int64; -1 for rows without a time."""
    import pyarrow.compute as pc

    times: Int64 = pc.fill_null(table[column], -1).to_numpy()
    return times


def by_day(table: Any, column: str) -> list[tuple[str, int | None, int | None, Any]]:
    """Return (folder, first day, last day, rows) of the parts that a table falls into; rows keep their order."""
    days = days_of(table, column)
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
