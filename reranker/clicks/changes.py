"""What one process does to a locked click log: rows put and parts replaced, which one commit makes part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reranker.clicks.batches import STORED, Batch, to_tables
from reranker.clicks.erasure import Forgotten
from reranker.clicks.layout import Manifest, Part, Source, write_manifest
from reranker.clicks.parts import PartWriter, day_of
from reranker.clicks.privacy import Pseudonymiser
from reranker.errors import InputError


def check_key(folder: Path, manifest: Manifest, privacy: Pseudonymiser) -> None:
    """Raise `InputError` where a log is of another key."""
    if manifest.key_id and privacy.key_id != manifest.key_id:
        raise InputError(f"the click log {str(folder)!r} was made with another key: name that one with --key")


class Change:
    """What one process does to a locked log; made by `ClickLog.changing`.

    Parameters
    ----------
    folder : Path
    manifest : Manifest
        Of the log, as it is; replaced on disk by each `commit`.
    now_ms : int
        The time it is said to be.
    """

    def __init__(self, folder: Path, manifest: Manifest, now_ms: int) -> None:
        self.folder, self.now_ms = folder, now_ms
        self.added = {name: 0 for name in STORED}
        self._put: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._manifest = manifest
        self._forgotten = Forgotten.of(manifest)
        self._gone: list[Path] = []
        self._writer = PartWriter(folder, manifest.next_part, day_of(now_ms))

    def sources(self, kind: str, name: str | None = None) -> list[Source]:
        """Return what has been read of the sources of a kind (and name)."""
        return [one for one in self._manifest.sources if one.kind == kind and name in (None, one.name)]

    def use_key(self, privacy: Pseudonymiser) -> None:
        """Let the log be of this key from its first commit on.

        Raises
        ------
        InputError
            Where it is of another key.
        """
        check_key(self.folder, self._manifest, privacy)
        self._manifest.key_id = privacy.key_id

    def next_number(self) -> int:
        """Return a number that no file of the log has yet."""
        self._writer.next_part += 1
        return self._writer.next_part - 1

    def note(self, notes: Counter[str]) -> None:
        """Count spellings and oddities of the rows that are put."""
        self._notes += notes

    def put(self, batch: Batch) -> bool:
        """Take rows; return whether so many are held that they should be committed."""
        tables = self._forgotten.filter(to_tables(batch))
        for name, table in tables.items():
            self._put[name] += table.num_rows
        full = self._writer.put(tables)
        if full:
            self._writer.spill()
        return full

    def commit(self, source: Source | None = None) -> None:
        """Make all that was put part of the log, in one step, together with how far the source was read."""
        self._writer.spill()
        manifest = self._manifest
        manifest.parts += self._writer.written
        manifest.next_part = self._writer.next_part
        self._writer.written = []
        if source is not None and not any(one is source for one in manifest.sources):
            manifest.sources.append(source)
        for name, count in self._notes.items():
            manifest.notes[name] = manifest.notes.get(name, 0) + count
        write_manifest(self.folder, manifest)
        for name, count in self._put.items():
            self.added[name] += count
        self._notes, self._put = Counter(), Counter()
        for path in self._gone:
            path.unlink(missing_ok=True)
        self._gone = []

    def replace(self, parts: Iterable[tuple[Part, Any]]) -> dict[str, int]:
        """Put new rows, an Arrow table or None, in the place of parts; return the number of rows fewer by table."""
        removed = {name: 0 for name in STORED}
        for part, rows in parts:
            kept = rows.num_rows if rows is not None else 0
            removed[part.table] += part.rows - kept
            place = self._manifest.parts.index(part)
            if kept:
                self._manifest.parts[place] = self._writer.rewrite(part, rows)
            else:
                del self._manifest.parts[place]
            self._gone.append(self.folder / part.path)
        return removed

    def remember(self, found: Forgotten) -> None:
        """Keep out the forgotten from now on."""
        known = self._manifest.forgotten
        known |= {one: max(until, known.get(one, until)) for one, until in found.people.items()}
        self._manifest.forgotten_queries = sorted({*self._manifest.forgotten_queries, *found.queries})
