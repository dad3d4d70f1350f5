"""The retained click log: a folder of Parquet parts; rows are added, forgotten and expired, never half a step."""

from __future__ import annotations

import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from reranker.clicks.batches import STORED, Batch, arrow_schema
from reranker.clicks.changes import Change, check_key
from reranker.clicks.erasure import clients_found_later, expired_parts, parts_without, parts_without_clients
from reranker.clicks.layout import (
    KEY_FILE,
    LOCK_FILE,
    MANIFEST,
    UNDATED,
    Manifest,
    Part,
    Source,
    make_folder,
    read_manifest,
    remove_leftovers,
    write_manifest,
    write_part,
)
from reranker.clicks.parts import clock, day_of
from reranker.clicks.privacy import Pseudonymiser, load_key
from reranker.errors import ConfigError, InputError

if TYPE_CHECKING:
    import os

    from reranker.formats import RejectSink

LOCK_TIMEOUT_S = 10.0
ROWS = "rows"
"""Kind of the sources that programs add."""


class ClickLog:
    """A folder that keeps queries, hits and events of `reranker.clicks.schema` without personal data.

    Reading needs no lock: `files` names parts that are complete and never change. Adding, forgetting and expiring
    lock the folder against each other; a process killed in between leaves the log as it was before.

    Parameters
    ----------
    folder : path-like
    create : bool
        Make the folder where it is not there.

    Raises
    ------
    InputError
        Where the folder holds no click log, a damaged one, or (with ``create``) something else.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        if create and not (self.folder / MANIFEST).exists():
            _create(self.folder)
        self._manifest = read_manifest(self.folder)
        self._keep: object = None
        # Parts without a forgotten person's client: a log of many files would be read anew after each.
        self._searched: frozenset[str] = frozenset()

    @property
    def manifest(self) -> Manifest:
        """What the log holds, as it was when it was opened or last changed by this object."""
        return self._manifest

    def files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table (``queries``, ``hits``, ``events``), oldest import first.

        There is at least one, so that readers find the columns; it may be empty. The files of ``hits`` have a column
        more, ``query_time``.
        """
        if table not in STORED:
            raise ConfigError(f"a click log has no table {table!r}: its tables are {', '.join(STORED)}", value=table)
        return [self.folder / part.path for part in self._manifest.parts if part.table == table]

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        rows: Counter[str] = Counter({name: 0 for name in STORED})
        for part in self._manifest.parts:
            rows[part.table] += part.rows
        return dict(rows)

    @property
    def notes(self) -> dict[str, int]:
        """How often the readers met each spelling or oddity (``camel_case``), over all imports."""
        return dict(self._manifest.notes)

    def privacy(self, key_file: str | os.PathLike[str] | None = None) -> Pseudonymiser:
        """Return the hashes of this log, with the key in its folder or in ``key_file``.

        Raises
        ------
        InputError
            Where the key is missing, readable by others, or not the one that the log was made with.
        """
        path = Path(key_file) if key_file is not None else self.folder / KEY_FILE
        known = self._manifest.key_id
        privacy = Pseudonymiser(load_key(path, create=not known))
        if known and privacy.key_id != known:
            message = f"the key {str(path)!r} is not the one that the click log {str(self.folder)!r} was made with"
            raise InputError(f"{message}: name that one with --key", path=str(path))
        return privacy

    def add(self, batches: Iterable[Batch], source: str, *, now_ms: int | None = None) -> dict[str, int]:
        """Add all rows of a source, or none; return the number of rows added by table.

        A source of this name that was added before is not added again. Rows of forgotten people are left out.

        Parameters
        ----------
        batches : iterable of mappings
            Table → column → values, see `reranker.clicks.batches.Batch`; ids of people must be hashed already.
        source : str
            What the rows are called in the manifest.
        now_ms : int or None
            The time it is said to be; None asks the clock.
        """
        with self.changing(now_ms) as change:
            if not change.sources(ROWS, source):
                for batch in batches:
                    change.put(batch)
                change.commit(Source(source, ROWS))
            return change.added

    @contextmanager
    def changing(self, now_ms: int | None = None) -> Iterator[Change]:
        """Yield a `Change` with the log locked; what is not committed when the block ends is dropped.

        Then rows go that a forgotten person left under client ids which the log links to them only now.

        Raises
        ------
        InputError
            Where another process changes the log.
        """
        with _locked(self.folder):
            self._look()
            change = self._change(now_ms)
            try:
                yield change
            finally:
                self._look()
            later = clients_found_later(self, self._searched)
            # One found now may be linked in any part.
            self._searched = frozenset(() if later else (part.path for part in self._manifest.parts))
            for until_ms, clients in later.items():
                found, replaced = parts_without_clients(self, clients, until_ms)
                more = self._change(now_ms)
                more.replace(replaced)
                more.remember(found)
                more.commit()
                self._look()

    def _change(self, now_ms: int | None) -> Change:
        return Change(self.folder, read_manifest(self.folder), clock(now_ms))

    def _look(self) -> None:
        """Read what the log holds now; what no manifest names goes."""
        self._manifest = read_manifest(self.folder)
        remove_leftovers(self.folder, self._manifest)

    def forget(self, user: str, privacy: Pseudonymiser, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows of a person; return the number removed by table.

        Parameters
        ----------
        user : str
            The user, client or session id as the site knows it.
        privacy : Pseudonymiser
            The hashes of this log (`privacy`).

        Notes
        -----
        Removed are the rows with this id; those of every client id that was seen together with it; and rows without
        any id that belong to a query of theirs: an impression is forgotten as a whole. The hash of the id is kept, so
        that an old copy of a log does not bring the person back, under whichever client id; what they do later is kept
        again.
        """
        check_key(self.folder, self._manifest, privacy)
        with self.changing(now_ms) as change:
            found, replaced = parts_without(self, user, privacy, change.now_ms)
            removed = change.replace(replaced)
            change.remember(found)
            change.commit()
        return removed

    def expire(self, days: int, *, now_ms: int | None = None) -> dict[str, int]:
        """Remove all rows older than a number of days; return the number removed by table.

        A row of the UTC day D is there until the end of day D + ``days``. A row whose time is missing, or later than
        its import, counts from the day of its import.

        Parameters
        ----------
        days : int
            At least 0: only the current day stays.
        now_ms : int or None
            The time it is said to be; None asks the clock.
        """
        if days < 0:
            raise ConfigError(f"days is {days}: it is 0 or more", value=days)
        with self.changing(now_ms) as change:
            removed = change.replace(expired_parts(self, day_of(clock(now_ms)) - days))
            change.commit()
        return removed


def open_logs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    format: str = "auto",
    rejects: RejectSink | None = None,
) -> ClickLog:
    """Return a click log: the folder of one as it is, or raw files brought into a temporary one.

    The temporary log can be entered by its owner only and is removed when the object is. Its hashes are the same
    every time (`Pseudonymiser.repeatable`), so that the same files give the same results to the last bit.

    Parameters
    ----------
    paths : sequence of path-like
        One folder, or files of any format that `reranker.clicks.readers.read_log` reads.
    format : str
        Of the files.
    rejects : RejectSink or None
        Gets bad lines; None raises at the first.

    Raises
    ------
    InputError
        Where a file cannot be read, or a folder and files are named together.
    """
    places = [Path(path) for path in paths]
    folders = [place for place in places if place.is_dir()]
    if folders and len(places) > 1:
        raise InputError(f"{str(folders[0])!r} is a folder: name one click log, or raw files", path=str(folders[0]))
    if folders:
        return ClickLog(folders[0])
    if not places:
        raise InputError("no log was named: give the folder of a click log, or raw log files")
    from reranker.clicks.importing import import_files

    temporary = tempfile.TemporaryDirectory(prefix="ssi-clicks-")
    log = ClickLog(Path(temporary.name) / "log", create=True)
    log._keep = temporary
    weakref.finalize(log, temporary.cleanup)
    import_files(log, places, Pseudonymiser.repeatable(), format=format, rejects=rejects)
    return log


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a log's folder."""
    lock = FileLock(folder / LOCK_FILE, timeout=LOCK_TIMEOUT_S, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        message = f"the click log {str(folder)!r} is being changed by another process"
        raise InputError(f"{message}: wait until it has ended", path=str(folder)) from None
    try:
        yield
    finally:
        lock.release()


def _create(folder: Path) -> None:
    """Make an empty log, with an empty part a table that shows its columns."""
    if folder.is_dir() and (foreign := sorted(one.name for one in folder.iterdir() if not _is_own(one.name))):
        message = f"the folder {str(folder)!r} holds {foreign[0]!r} and no click log"
        raise InputError(f"{message}: name a new folder", path=str(folder))
    make_folder(folder)
    with _locked(folder):
        if (folder / MANIFEST).exists():
            return  # Made by another process meanwhile.
        manifest = Manifest()
        for table in STORED:
            path = f"{table}/day={UNDATED}/part-00000000.parquet"
            write_part(folder / path, arrow_schema(table).empty_table())
            manifest.parts.append(Part(path, table, 0, 0))
        write_manifest(folder, manifest)


def _is_own(name: str) -> bool:
    """Return whether a creation, killed or still at work, can have left a file of this name."""
    return name in {MANIFEST, LOCK_FILE, KEY_FILE, *STORED} or (
        name.startswith(f".{MANIFEST}.") and name.endswith(".tmp")
    )
