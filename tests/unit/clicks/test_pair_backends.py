"""One result from DuckDB, from Spark SQL and from the plain definition, on logs with every oddity."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from reranker.clicks.pairs import (
    STRATEGIES,
    LogTask,
    PairConfig,
    Resources,
    RobotRules,
    impressions,
    make_pairs,
    prepared,
    ratings,
    steps,
)
from tests.engines.policy import library
from tests.reference.strategies import FUNCTIONS
from tests.unit.clicks import random_logs
from tests.unit.clicks.log_files import Log, shown_as, write_log

ONE_THREAD = Resources(threads=1, memory_mb=400)
LOCAL_SPARK = Resources(threads=2)
SPARK_CONFIG = PairConfig(
    min_dwell_s=2.0,
    document_cap=2,
    person_cap=20,
    network_cap=1,
    propensities=(1.0, 0.7, 1 / 3),
    robots=RobotRules(session_clicks=20, day_clicks=20, speed_clicks=3, repeat_clicks=4),
)
Range = tuple[int | None, int | None]
EMPTY = random_logs.Tables([], [], [])
SEED = int(os.environ.get("SEED", "20100"))


def results(
    backend: str, resources: Resources, tables: random_logs.Tables, config: PairConfig, when: Range
) -> dict[str, Any]:
    since, until = when
    with tempfile.TemporaryDirectory() as folder:
        log = write_log(Path(folder), tables.queries, tables.hits, tables.events, n_files=2)
        with make_pairs(log, config, backend=backend, since=since, until=until, resources=resources) as table:
            pairs, counts = list(table.pairs()), table.counts
        lists = list(impressions(log, config, backend=backend, since=since, until=until, resources=resources))
        rated = list(ratings(log, config, backend=backend, since=since, until=until, resources=resources))
    return {"counts": counts, "pairs": pairs, "impressions": lists, "ratings": rated}


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(random_logs.drawn())
@example((EMPTY, PairConfig(), (None, None)))
def test_duckdb_gives_what_is_defined(drawn: tuple[random_logs.Tables, PairConfig, Range]) -> None:
    assert results("duckdb", ONE_THREAD, *drawn) == results("plain", ONE_THREAD, *drawn)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("number", range(3))
def test_duckdb_gives_what_is_defined_for_larger_logs(strategy: str, number: int) -> None:
    choice = random_logs.of_seed(SEED + number)
    tables, config = random_logs.tables(choice, most=60), random_logs.config(choice, strategy=strategy)
    when = random_logs.time_range(choice)
    assert results("duckdb", ONE_THREAD, tables, config, when) == results("plain", ONE_THREAD, tables, config, when)


@pytest.mark.parametrize("number", range(3))
def test_a_long_log_in_parts_gives_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random_logs.of_seed(SEED + 50 + number)
    tables, config = random_logs.tables(choice, most=80), random_logs.config(choice)
    whole = results("plain", ONE_THREAD, tables, config, (None, None))
    assert len(whole["ratings"]) > 10
    monkeypatch.setattr("reranker.clicks.pairs.ROWS_PER_MB", len(tables.hits) / 3.5 / ONE_THREAD.memory_mb)
    assert results("duckdb", ONE_THREAD, tables, config, (None, None)) == whole


def test_a_user_of_a_third_of_all_events_changes_nothing_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are by query, and what is told of a person (visits, robots, caps) is told of all of their queries."""
    tables, config = random_logs.tables(random_logs.of_seed(SEED + 60), most=80), PairConfig(person_cap=3, robots=None)
    busy = {row["query_id"] for row in tables.events[::4]}
    for row in (*tables.queries, *tables.events):
        if row["query_id"] in busy:
            row.update(user="busy", session="")
    assert 3 * sum(row["user"] == "busy" for row in tables.events) >= len(tables.events) > 20
    whole = results("plain", ONE_THREAD, tables, config, (None, None))
    assert whole["counts"]["votes"] > 3
    monkeypatch.setattr("reranker.clicks.pairs.ROWS_PER_MB", len(tables.hits) / 3.5 / ONE_THREAD.memory_mb)
    assert results("duckdb", ONE_THREAD, tables, config, (None, None)) == whole


@pytest.mark.parametrize("n_parts", [1, 3])
def test_questions_find_all_tables_however_many_parts(
    n_parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = random_logs.tables(random_logs.of_seed(SEED), most=80)
    log = write_log(tmp_path, tables.queries, tables.hits, tables.events)
    monkeypatch.setattr("reranker.clicks.pairs.ROWS_PER_MB", len(tables.hits) / (n_parts - 0.5) / ONE_THREAD.memory_mb)
    task = LogTask(log, PairConfig(), "impressions")
    questions = """SELECT (SELECT COUNT(*) FROM actions), (SELECT COUNT(*) FROM result_lists),
        (SELECT COUNT(*) FROM counted_impressions)"""
    with prepared(task, ONE_THREAD) as connection:
        answers = connection.execute(questions).fetchone()
        schemas = connection.execute("SELECT COUNT(*) FROM duckdb_schemas() WHERE schema_name = 'part'").fetchone()
    with monkeypatch.context() as whole:
        whole.setattr("reranker.clicks.pairs.ROWS_PER_MB", 1e9)
        with prepared(task, ONE_THREAD) as connection:
            assert connection.execute(questions).fetchone() == answers
    assert schemas == (0,)
    assert min(answers) > 0


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Start one Spark for the module, made for short work; the backend uses the active one."""
    pyspark_sql = library("pyspark.sql")
    builder = pyspark_sql.SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_gives_what_is_defined() -> None:
    """All results of one large log instead of many small ones: a run takes seconds."""
    choice = random_logs.of_seed(SEED)
    tables, config = random_logs.tables(choice, most=200, n_lists=100), SPARK_CONFIG
    expected = results("plain", ONE_THREAD, tables, config, (None, None))
    assert len(expected["pairs"]) > 10
    assert results("spark", LOCAL_SPARK, tables, config, (None, None)) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_spark_takes_an_empty_log(tmp_path: Path) -> None:
    with make_pairs(write_log(tmp_path), backend="spark") as table:
        assert (list(table.pairs()), table.counts["searches"]) == ([], 0)


@pytest.mark.slow
def test_every_strategy_in_spark(spark: Any) -> None:
    """The texts of the strategies on one table of lists, each against its function."""
    lists = [shown_as("".join(marks), query_id=f"q{number}") for number, marks in enumerate(product("-ckp ", repeat=4))]
    rows = [
        (one.query_id, shown.rank, shown.document, shown.clicked, shown.carted, shown.purchased, shown.time)
        for one in lists
        for shown in one.shown
    ]
    columns = "query_id string, rank int, document string, clicked boolean, carted boolean, purchased boolean"
    spark.createDataFrame(rows, f"{columns}, time bigint").createOrReplaceTempView("clicked_impressions")
    for name in STRATEGIES:
        task = LogTask(Log({}), PairConfig(name), "pairs")
        text = next(step.text for step in steps(task) if step.name == "preferences")
        found = sorted((row["query_id"], row["better"], row["worse"]) for row in spark.sql(text).collect())
        expected = [(one.query_id, *pair) for one in lists for pair in FUNCTIONS[name](one)]
        assert found == sorted(expected), name
