"""Spark sessions: local, or on the cluster of the active session, of a master URL, or of ``SPARK_REMOTE``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from reranker.errors import ConfigError, InputError, MissingExtra


@contextlib.contextmanager
def spark_session(
    command: str, *, master: str | None = None, threads: int | None = None, instead: str
) -> Iterator[Any]:
    """Yield a Spark session with its own temporary views.

    If Spark is active, the session belongs to it. Otherwise Spark is started, and stopped at the end of the block.

    Parameters
    ----------
    command : str
        Command that uses the session, for messages.
    master : str, optional
        URL of the cluster. Without it and without ``SPARK_REMOTE``, Spark is started locally.
    threads : int, optional
        Number of threads of a local Spark; None: one per core.
    instead : str
        Backend that needs no Spark, for messages.

    Raises
    ------
    ConfigError
        If Spark cannot be started.
    InputError
        If Spark fails within the block.
    MissingExtra
        If pyspark is not installed.
    """
    try:
        from pyspark.errors import PySparkException, PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("pyspark", "spark") from error
    active = spark = SparkSession.getActiveSession()
    if spark is None:
        builder = SparkSession.builder.appName(command)
        if master or not os.environ.get("SPARK_REMOTE"):
            master = master or f"local[{threads or '*'}]"
            builder = builder.master(master)
            if master.startswith("local"):
                os.environ.setdefault(
                    "PYSPARK_PYTHON", sys.executable
                )  # otherwise workers use the first Python on the PATH
        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "16"}
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            remedy = f"it needs Java 17 or 21 in JAVA_HOME or on the PATH; or use --backend {instead}"
            raise ConfigError(f"Spark cannot be started ({str(error)[:200]}): {remedy}") from error
    try:
        yield spark.newSession()
    except PySparkException as error:
        raise InputError(f"Spark failed in `{command}`: {str(error)[:2000]}") from error
    finally:
        if active is None:
            spark.stop()
