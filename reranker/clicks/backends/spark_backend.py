"""The steps in Spark SQL: a local Spark, or the cluster that the session, the master or the environment names.

Files are read, and results written, by path: on a cluster, log and temporary folder must be on storage that all of
its machines see under that path.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reranker.clicks import pair_config as sql
from reranker.clicks.backends import Resources, Table, Task
from reranker.clicks.schema import TABLES
from reranker.errors import ConfigError, InputError, MissingExtra

_TYPES = {"string": "string", "int32": "int", "int64": "bigint", "double": "double", "bool": "boolean"}


def rows(task: Task, resources: Resources, batch_rows: int) -> Iterator[Any]:
    """Yield the result as record batches, in order; it goes over files, so that the driver need not hold it."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="ssi-clicks-", dir=resources.folder) as folder:
        for path in write(task, resources, Path(folder)).files:
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=batch_rows, use_threads=False)


def write(task: Task, resources: Resources, folder: Path) -> Table:
    """Write the result as Parquet files that hold its rows in the order of their names; count the queries."""
    target = folder / task.goal
    with _session(resources) as spark, tempfile.TemporaryDirectory(prefix="steps-", dir=folder) as kept:
        last = _run(spark, task, Path(kept))
        spark.sql(last.text).write.parquet(str(target))
        counts = {}
        if task.goal == "pairs":
            steps = sql.count_steps(task.config)
            counts = {row["name"]: row["n"] for step in steps for row in spark.sql(step.text).collect()}
    return Table(tuple(sorted(target.glob("part-*.parquet"))), counts)


@contextlib.contextmanager
def _session(resources: Resources) -> Iterator[Any]:
    """Yield a session of the active Spark with temporary views of its own, or of a new one that ends with it."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "spark") from error
    active = SparkSession.getActiveSession()
    spark = active or _new_session(resources)
    try:
        yield spark.newSession()
    except PySparkException as error:
        raise InputError(f"Spark cannot make pairs of the click log: {str(error)[:2000]}") from error
    finally:
        if active is None:
            spark.stop()


def _new_session(resources: Resources) -> Any:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("ssi clicks pairs")
    if resources.spark_master or not os.environ.get("SPARK_REMOTE"):
        builder = builder.master(resources.spark_master or f"local[{resources.threads or '*'}]")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "16", **resources.spark_settings}
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        remedy = "it needs Java 17 or 21 in JAVA_HOME or on the PATH; or take --backend duckdb"
        raise ConfigError(f"Spark cannot be started ({str(error)[:200]}): {remedy}") from error


def _run(spark: Any, task: Task, folder: Path) -> sql.Step:
    """Carry out all steps but the last, which is returned."""
    for table in TABLES:
        _open_table(spark, table, task)
    for name, text in sql.rank_tables(task.config).items():
        spark.sql(text).createOrReplaceTempView(name)
    *before, last = sql.steps(task.config, task.goal, task.since, task.until)
    for step in before:
        frame = spark.sql(step.text)
        if step.kept:
            # Through files, not the cache: a plan that holds the plans of all steps before it grows without bound.
            frame.write.parquet(str(folder / step.name))
            frame = spark.read.schema(frame.schema).parquet(str(folder / step.name))
        frame.createOrReplaceTempView(step.name)
    return last


def _open_table(spark: Any, table: str, task: Task) -> None:
    """Make a view of a logged table."""
    columns = TABLES[table]
    schema = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in columns.items())
    files = [str(path.absolute()) for path in task.log.files(table)]
    frame = spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
    frame.createOrReplaceTempView(f"logged_{table}")
    spark.sql(sql.input_text(table)).createOrReplaceTempView(table)
