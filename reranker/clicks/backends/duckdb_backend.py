"""The steps in DuckDB: one process, all cores; tables go to disk where they do not fit into memory.

The database is one in memory: its tables move to the temporary folder when the limit is reached, as they are. In a
database file they would be compressed first, which costs as much time as all the rest.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reranker.clicks import steps as sql
from reranker.clicks.backends import Resources, Table, Task
from reranker.clicks.schema import TABLES
from reranker.errors import ConfigError, InputError, MissingExtra

_TYPES = {"string": "VARCHAR", "int32": "INTEGER", "int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN"}


def rows(task: Task, resources: Resources, batch_rows: int) -> Iterator[Any]:
    """Yield the result as record batches, in order; the tables of the steps are dropped at the end."""
    with _database(resources) as connection:
        last = _run(connection, task)
        yield from connection.sql(last.text).to_arrow_reader(batch_rows)


def write(task: Task, resources: Resources, folder: Path) -> Table:
    """Write the result as one Parquet file, and count what became of the queries."""
    path = folder / f"{task.goal}.parquet"
    with _database(resources) as connection:
        last = _run(connection, task)
        connection.sql(last.text).write_parquet(str(path))
        counts = {}
        if task.goal == "pairs":
            counts = dict(connection.execute(sql.count_step(task.config).text).fetchall())
    return Table((path,), counts)


@contextlib.contextmanager
def prepared(task: Task, resources: Resources) -> Iterator[Any]:
    """Yield a connection that has the tables and views of all steps but the last, for questions of one's own."""
    with _database(resources) as connection:
        _run(connection, task)
        yield connection


@contextlib.contextmanager
def _database(resources: Resources) -> Iterator[Any]:
    """Yield a connection to an empty database, with a temporary folder beside it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("duckdb", "clicks") from error
    with tempfile.TemporaryDirectory(prefix="ssi-clicks-", dir=resources.folder) as folder:
        settings: dict[str, Any] = {
            "memory_limit": f"{resources.memory_mb}MB",
            "temp_directory": folder,
            # Results are ordered where it matters; else rows need not wait for each other.
            "preserve_insertion_order": False,
        }
        if resources.threads:
            settings["threads"] = resources.threads
        connection = duckdb.connect(":memory:", config=settings)
        try:
            yield connection
        except duckdb.OutOfMemoryException as error:
            message = f"DuckDB needs more than {resources.memory_mb} MB for a step of the click log"
            raise ConfigError(f"{message}: allow it more with --memory ({str(error)[:300]})") from error
        except duckdb.Error as error:
            raise InputError(f"DuckDB cannot work on the click log: {str(error)[:1000]}") from error
        finally:
            connection.close()


def _run(connection: Any, task: Task) -> sql.Step:
    """Carry out all steps but the last, which is returned."""
    for table in TABLES:
        _open_table(connection, table, task)
    for name, text in sql.rank_tables(task.config).items():
        connection.execute(f"CREATE TABLE {name} AS {text}")
    *before, last = sql.steps(task.config, task.goal, task.since, task.until)
    for step in before:
        connection.execute(f"CREATE {'TABLE' if step.kept else 'VIEW'} {step.name} AS {step.text}")
    return last


def _open_table(connection: Any, table: str, task: Task) -> None:
    """Make a view of a logged table."""
    files = [str(path) for path in task.log.files(table)]
    if files:
        connection.read_parquet(files, hive_partitioning=False).create_view(f"logged_{table}")
    else:
        columns = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in TABLES[table].items())
        connection.execute(f"CREATE TABLE logged_{table} ({columns})")
    connection.execute(f"CREATE VIEW {table} AS {sql.input_text(table)}")
