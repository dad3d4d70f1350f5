"""Writing rows of a click log to parts, one UTC day each as far as that makes sense."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from reranker.clicks.batches import TIME_COLUMN, arrow
from reranker.clicks.layout import MIXED, UNDATED, Part, write_part

DAY_MS = 86_400_000
SPILL_ROWS = 100_000
"""Rows held before they are written."""
MAX_DAYS, MIN_DAY_ROWS = 62, 64
"""Beyond this many days at once, a day with fewer rows than this gets no file of its own."""
_EPOCH = date(1970, 1, 1)


def day_of(time_ms: int) -> int:
    """Return the number of the UTC day since 1970."""
    return time_ms // DAY_MS


def day_name(day: int | None) -> str:
    """Return the day as ``2026-11-20``, or ``undated``."""
    return UNDATED if day is None else (_EPOCH + timedelta(days=day)).isoformat()


def clock(now_ms: int | None = None) -> int:
    """Return ``now_ms``, or the milliseconds since 1970 that the clock shows."""
    return int(datetime.now(UTC).timestamp() * 1000) if now_ms is None else now_ms


class PartWriter:
    """Collects Arrow tables and writes them as parts; the manifest of the log names them later.

    Parameters
    ----------
    folder : Path
        The click log.
    next_part : int
        Number of the first part.
    imported : int
        The day the parts are said to be written.
    """

    def __init__(self, folder: Path, next_part: int, imported: int) -> None:
        self.folder = folder
        self.next_part = next_part
        self.imported = imported
        self.written: list[Part] = []
        self._held: dict[str, list[Any]] = {}
        self._n_held = 0

    def put(self, tables: dict[str, Any]) -> bool:
        """Take tables by name; return whether enough is held to be written."""
        for name, table in tables.items():
            self._held.setdefault(name, []).append(table)
            self._n_held += table.num_rows
        return self._n_held >= SPILL_ROWS

    def spill(self) -> None:
        """Write all rows held; what was written is in ``written``."""
        pa = arrow()
        for name, tables in self._held.items():
            table = pa.concat_tables(tables)
            for label, first, last, rows in _by_day(table, TIME_COLUMN[name]):
                self._write(name, label, first, last, rows)
        self._held, self._n_held = {}, 0

    def rewrite(self, part: Part, rows: Any) -> Part:
        """Write the rows that remain of a part under a new name, and return what takes its place."""
        path = f"{part.path.rpartition('/')[0]}/part-{self.next_part:08d}.parquet"
        self.next_part += 1
        write_part(self.folder / path, rows)
        return msgspec.structs.replace(part, path=path, rows=rows.num_rows)

    def _write(self, name: str, label: str, first: int | None, last: int | None, rows: Any) -> None:
        path = f"{name}/day={label}/part-{self.next_part:08d}.parquet"
        self.next_part += 1
        write_part(self.folder / path, rows)
        self.written.append(Part(path, name, rows.num_rows, self.imported, first, last))


def days_of(table: Any, column: str) -> npt.NDArray[np.int64]:
    """Return the day of each row, (n,) int64; -1 for rows without a time."""
    times = times_of(table, column)
    return np.where(times < 0, -1, times // DAY_MS)


def times_of(table: Any, column: str) -> npt.NDArray[np.int64]:
    """Return the milliseconds of each row, (n,) int64; -1 for rows without a time."""
    arrow()
    import pyarrow.compute as pc

    times: npt.NDArray[np.int64] = pc.fill_null(table[column], -1).to_numpy()
    return times


def _by_day(table: Any, column: str) -> list[tuple[str, int | None, int | None, Any]]:
    """Return (folder, first day, last day, rows) of the parts that a table falls into; rows keep their order."""
    days = days_of(table, column)
    mixed = _rare(days)
    found: list[tuple[str, int | None, int | None, Any]] = []
    if mixed.any():
        found.append((MIXED, int(days[mixed].min()), int(days[mixed].max()), table.filter(arrow().array(mixed))))
        table, days = table.filter(arrow().array(~mixed)), days[~mixed]
    order = np.argsort(days, kind="stable")
    if not (np.diff(order) == 1).all():
        table, days = table.take(order), days[order]
    starts = np.flatnonzero(np.diff(days, prepend=-2)).tolist()
    for start, end in pairwise([*starts, len(days)]):
        day = None if days[start] < 0 else int(days[start])
        found.append((day_name(day), day, day, table.slice(start, end - start)))
    return found


def _rare(days: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which rows are of days with too few of them for a file, where there are many days."""
    names, counts = np.unique(days, return_counts=True)
    rare = names[(counts < MIN_DAY_ROWS) & (names >= 0)]
    return np.isin(days, rare) & (len(names) > MAX_DAYS)
