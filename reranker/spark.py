"""Sessions of Spark: a local one, or the cluster that the session at hand, a master or ``SPARK_REMOTE`` names."""

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
    """Yield a session of the active Spark with temporary views of its own, or of a new one that ends with it.

    ``command`` is whose work it does, ``instead`` the backend that needs no Spark. Without ``master`` and
    ``SPARK_REMOTE`` a new Spark is local, of so many ``threads``; None: one a core.

    `ConfigError` where Spark cannot be started, `InputError` where it fails at the work, `MissingExtra` without
    pyspark.
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
                os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the first on the PATH
        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "16"}
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            remedy = f"it needs Java 17 or 21 in JAVA_HOME or on the PATH; or take --backend {instead}"
            raise ConfigError(f"Spark cannot be started ({str(error)[:200]}): {remedy}") from error
    try:
        yield spark.newSession()
    except PySparkException as error:
        raise InputError(f"Spark cannot do the work of `{command}`: {str(error)[:2000]}") from error
    finally:
        if active is None:
            spark.stop()
