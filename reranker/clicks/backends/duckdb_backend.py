"""The steps in DuckDB: one process, all cores; what does not fit into memory goes to disk.

The tables of a short log are held in memory. Those of a long log become Parquet files in the temporary folder: DuckDB
keeps changed pages of its own tables in memory until it must write them, and then has too little left for its sorting
and grouping. In a database file they would be compressed harder, which costs as much time as all the rest.

What DuckDB adds up in groups stays in memory where it holds texts, whatever the limit. So the lists of a long log,
which are ten times as many rows as its queries, are built for some query texts after the others: each part in a schema
of its own, where the steps find a ``kept`` with the part's queries alone and the rest under the same names as ever.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from reranker.clicks import pair_config as sql
from reranker.clicks.backends import Resources, Table, Task
from reranker.clicks.schema import TABLES
from reranker.errors import ConfigError, InputError, MissingExtra

_TYPES = {"string": "VARCHAR", "int32": "INTEGER", "int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN"}
ROWS_PER_MB = 12_000
"""Hits that a part may have for each MB of memory."""


def rows(task: Task, resources: Resources, batch_rows: int) -> Iterator[Any]:
    """Yield the result as record batches, in order; the tables of the steps are dropped at the end."""
    with _database(resources) as work:
        last, _ = _run(work, task, _number_of_parts(work, task, resources))
        yield from work.connection.sql(last).to_arrow_reader(batch_rows)


def write(task: Task, resources: Resources, folder: Path) -> Table:
    """Write the result as one Parquet file, and count what became of the queries."""
    path = folder / f"{task.goal}.parquet"
    with _database(resources) as work:
        last, counts = _run(work, task, _number_of_parts(work, task, resources))
        work.connection.sql(last).write_parquet(str(path))
        if task.goal == "pairs":
            _, rest = sql.count_steps(task.config)
            counts.update(dict(work.connection.execute(rest.text).fetchall()))
    return Table((path,), dict(counts))


@contextlib.contextmanager
def prepared(task: Task, resources: Resources) -> Iterator[Any]:
    """Yield a connection that has the tables and views of all steps but the last, for questions of one's own."""
    with _database(resources) as work:
        _run(work, task, _number_of_parts(work, task, resources), all_tables=True)
        yield work.connection


class _Work(NamedTuple):
    """An open database, and the folder for its files."""

    connection: Any
    folder: Path


@contextlib.contextmanager
def _database(resources: Resources) -> Iterator[_Work]:
    """Yield an empty database, with a temporary folder beside it."""
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
            yield _Work(connection, Path(folder))
        except duckdb.OutOfMemoryException as error:
            message = f"DuckDB needs more than {resources.memory_mb} MB for a step of the click log"
            raise ConfigError(f"{message}: allow it more with --memory ({str(error).splitlines()[0][:300]})") from error
        except duckdb.Error as error:
            raise InputError(f"DuckDB cannot work on the click log: {str(error)[:1000]}") from error
        finally:
            connection.close()


_HANDED_ON = {"pairs": ("votes",), "impressions": ("shown",), "ratings": ("ratings",)}
"""The tables by query that are needed after the parts, by goal."""


def _run(work: _Work, task: Task, n_parts: int, all_tables: bool = False) -> tuple[str, Counter[str]]:
    """Carry out all steps but the last; return its text, and counts of the lists.

    ``all_tables``: keep what the parts made of every step, not only what the goal needs.
    """
    for table in TABLES:
        _open_table(work.connection, table, task)
    for name, text in sql.rank_tables(task.config).items():
        work.connection.execute(f"CREATE TABLE {name} AS {text}")
    steps = sql.steps(task.config, task.goal, task.since, task.until)
    by_query = [step for step in steps if step.by_query]
    start, last = steps.index(by_query[0]), steps[-1]
    stop = start + len(by_query)
    if n_parts == 1:
        for step in steps[:-1]:
            kind = "TABLE" if step.kept else "VIEW"
            work.connection.execute(f"CREATE {kind} {step.name} AS {step.text}")
        return last.text, _list_counts(work, task)
    _carry_out(work, steps[:start])
    kept = [step.name for step in by_query if step.kept] if all_tables else _HANDED_ON[task.goal]
    counts = _in_parts(work, task, by_query, n_parts, kept)
    _carry_out(work, [step for step in by_query if all_tables and not (step.kept or step is last)])
    _carry_out(work, steps[stop:-1])
    if last.name in kept:
        return f"SELECT * FROM {last.name} ORDER BY ALL", counts  # noqa: S608 - a name of our own
    return last.text, counts


def _in_parts(work: _Work, task: Task, steps: Sequence[sql.Step], n_parts: int, kept: Collection[str]) -> Counter[str]:
    """Carry out steps for some query texts after the others, keep the wanted tables, and return the summed counts."""
    steps = [replace(step, kept=step.kept or step.name in kept) for step in steps]
    counts: Counter[str] = Counter()
    for part in range(n_parts):
        here = _Work(work.connection, work.folder / f"part-{part}")
        work.connection.execute("CREATE SCHEMA part")
        work.connection.execute("SET search_path = 'part,main'")
        chosen = f"SELECT * FROM main.kept WHERE hash(query) % {n_parts} = {part}"  # noqa: S608 - numbers of our own
        _carry_out(here, [sql.Step("kept", chosen, kept=True), *steps], "part.")
        counts.update(_list_counts(work, task))
        work.connection.execute("SET search_path = 'main'")
        work.connection.execute("DROP SCHEMA part CASCADE")
        for file in here.folder.iterdir():
            if file.stem not in kept:
                file.unlink()
    for name in kept:
        _open_files(work, name, f"part-*/{name}")
    return counts


def _carry_out(work: _Work, steps: Iterable[sql.Step], schema: str = "") -> None:
    """Make a file of each step whose rows are kept, and a view of it or of the step's text."""
    work.folder.mkdir(exist_ok=True)
    for step in steps:
        if step.kept:
            file = str(work.folder / f"{step.name}.parquet")
            work.connection.execute(f"COPY ({step.text}) TO $file (FORMAT parquet)", {"file": file})
            _open_files(work, schema + step.name, step.name)
        else:
            work.connection.execute(f"CREATE VIEW {schema}{step.name} AS {step.text}")


def _open_files(work: _Work, name: str, files: str) -> None:
    """Make a view of the files of a step."""
    path = str(work.folder / f"{files}.parquet").replace("'", "''")
    work.connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")  # noqa: S608 - our own


def _list_counts(work: _Work, task: Task) -> Counter[str]:
    """Return how many lists there are and what they prefer, for pairs."""
    if task.goal != "pairs":
        return Counter()
    of_lists, _ = sql.count_steps(task.config)
    return Counter(dict(work.connection.execute(of_lists.text).fetchall()))


def _number_of_parts(work: _Work, task: Task, resources: Resources) -> int:
    """Return in how many parts the lists are built, by the rows of the largest table that they come of."""
    n_rows = 0
    for table in ("hits", "events"):
        files = [str(path) for path in task.log.files(table)]
        if files:
            text = "SELECT SUM(num_rows) FROM parquet_file_metadata($files)"
            n_rows = max(n_rows, int(work.connection.execute(text, {"files": files}).fetchall()[0][0]))
    return max(1, math.ceil(n_rows / (ROWS_PER_MB * resources.memory_mb)))


def _open_table(connection: Any, table: str, task: Task) -> None:
    """Make a view of a logged table."""
    # DuckDB takes the rows of the first file for those of all, and joins in an order by that: the largest comes first.
    files = sorted(map(str, task.log.files(table)), key=lambda path: (-os.path.getsize(path), path))
    if files:
        connection.read_parquet(files, hive_partitioning=False).create_view(f"logged_{table}")
    else:
        columns = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in TABLES[table].items())
        connection.execute(f"CREATE TABLE logged_{table} ({columns})")
    connection.execute(f"CREATE VIEW {table} AS {sql.input_text(table)}")
