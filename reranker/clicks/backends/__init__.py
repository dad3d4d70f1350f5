"""Where the steps from log to pairs run: DuckDB, Spark SQL, and plain Python, which defines the result."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from reranker.clicks.pair_config import Goal, PairConfig
from reranker.errors import ConfigError

BACKENDS: dict[str, str] = {
    "duckdb": "one process; what does not fit into memory goes to disk",
    "spark": "Spark SQL, local or on a cluster",
    "plain": "Python, all in memory; the definition that the others are tested against",
}
"""The backends by name, as ``--backend`` takes them."""


class LogFiles(Protocol):
    """A click log: Parquet files of each table of `reranker.clicks.schema.TABLES`."""

    def files(self, table: str) -> list[Path]:
        """Return the files of a table; there may be none."""
        ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What a backend may use.

    Parameters
    ----------
    threads : int or None
        Threads of DuckDB, or of a local Spark; None: one a core.
    memory_mb : int
        Memory that DuckDB holds rows in before it writes them to disk; the process needs some 300 MB more.
    folder : Path or None
        Where temporary files go; None: the system's folder for them.
    spark_master : str or None
        None: ``local[threads]``, or the master of the session that is there.
    spark_settings : mapping of str to str
        Configuration of Spark.
    """

    threads: int | None = None
    memory_mb: int = 1200
    folder: Path | None = None
    spark_master: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """What to compute: the goal, of which log, how and from what range of time (milliseconds)."""

    log: LogFiles
    config: PairConfig
    goal: Goal
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A result: Parquet files that hold its rows in order, and the counts by name (only of pairs)."""

    files: tuple[Path, ...]
    counts: dict[str, int]


class Backend(Protocol):
    """Computes tables; what they hold does not depend on the backend."""

    def rows(self, task: Task, resources: Resources, batch_rows: int) -> Iterator[Any]:
        """Yield the result as `pyarrow.RecordBatch` of its columns, in order."""
        ...

    def write(self, task: Task, resources: Resources, folder: Path) -> Table:
        """Write the result into a folder."""
        ...


def open_backend(name: str) -> Backend:
    """Return the backend of a name; raises `ConfigError` for an unknown one."""
    if name not in BACKENDS:
        raise ConfigError(f"backend is {name!r}: it must be one of {', '.join(BACKENDS)}")
    return cast(Backend, importlib.import_module(f"reranker.clicks.backends.{name}_backend"))
