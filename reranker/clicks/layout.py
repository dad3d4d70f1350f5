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

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from reranker.clicks.batches import STORED
from reranker.errors import InputError

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


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a click log.

    Raises
    ------
    InputError
        Where there is none, or it is damaged or of another version.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise _damaged(path, f"it is longer than {MAX_MANIFEST_BYTES:,} bytes")
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        message = f"{str(folder)!r} is no click log ({MANIFEST} is not there)"
        raise InputError(f"{message}: make one with  ssi clicks import LOG --log DIR", path=str(folder)) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)[:200]) from error
    if (manifest.format, manifest.format_version) != (FORMAT, FORMAT_VERSION):
        found = f"{manifest.format} version {manifest.format_version}"
        raise _damaged(path, f"it is of the format {found}, and this program reads {FORMAT} version {FORMAT_VERSION}")
    for part in manifest.parts:
        names = Path(part.path).parts
        if len(names) != 3 or ".." in names or names[0] != part.table or part.table not in STORED:
            raise _damaged(path, f"it names the part {part.path[:100]!r}, which cannot be one")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; it is on disk when this returns."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    with replacing(folder / MANIFEST) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that takes the place of ``path`` when all of it is on disk; on an error nothing changes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that only its owner can enter; one that is there keeps its mode."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
        sync_folder(one.parent)


def write_part(path: Path, table: Any) -> None:
    """Write an Arrow table as one Parquet file, complete or not at all."""
    import pyarrow.parquet as pq

    make_folder(path.parent)
    with replacing(path) as file:
        pq.write_table(table, file, compression="zstd", write_statistics=True)


def read_part(path: Path, table: str) -> Any:
    """Return a part as an Arrow table.

    Raises
    ------
    InputError
        Where it is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from reranker.clicks.batches import arrow_schema

    try:
        with open(path, "rb") as file:
            return pq.read_table(file, schema=arrow_schema(table), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, str(error)[:200]) from error


def remove_leftovers(folder: Path, manifest: Manifest) -> int:
    """Remove files that a killed writer left behind; returns how many."""
    named = {folder / part.path for part in manifest.parts}
    leftovers = [path for table in STORED for path in (folder / table).glob("*/*") if path not in named]
    leftovers += folder.glob(".*.tmp")
    known = " ".join(source.cursor for source in manifest.sources)
    leftovers += [path for path in folder.glob("seen-*.npy") if path.name not in known]
    for path in leftovers:
        path.unlink(missing_ok=True)
    return len(leftovers)


def _damaged(path: Path, reason: str) -> InputError:
    message = f"the file {str(path)!r} of a click log is damaged ({reason})"
    return InputError(f"{message}: bring the folder back from a copy, or import the logs again", path=str(path))
