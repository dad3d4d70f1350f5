"""One result from DuckDB and from the plain definition, on logs with every oddity."""

from __future__ import annotations

import os
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings

from reranker.clicks.pairs import (
    STRATEGIES,
    Computing,
    LogTask,
    PairConfig,
    Resources,
    impressions,
    make_pairs,
    prepared,
    ratings,
    steps,
)
from tests.engines.policy import library
from tests.reference.click_steps import write_result
from tests.reference.strategies import FUNCTIONS
from tests.unit.clicks import random_logs
from tests.unit.clicks.log_files import Log, shown_as, write_log

ONE_THREAD = Resources(threads=1, memory_mb=400)
Range = tuple[int | None, int | None]
EMPTY = random_logs.Tables([], [], [])
SEED = int(os.environ.get("SEED", "20100"))


def results(tables: random_logs.Tables, config: PairConfig, when: Range = (None, None)) -> dict[str, Any]:
    how = Computing(since=when[0], until=when[1], resources=ONE_THREAD)
    with tempfile.TemporaryDirectory() as folder:
        log = write_log(Path(folder), tables.queries, tables.hits, tables.events, n_files=2)
        with make_pairs(log, config, **how) as table:
            pairs, counts = list(table.pairs()), table.counts
        lists = list(impressions(log, config, **how))
        rated = list(ratings(log, config, **how))
    return {"counts": counts, "pairs": pairs, "impressions": lists, "ratings": rated}


def defined(tables: random_logs.Tables, config: PairConfig, when: Range = (None, None)) -> dict[str, Any]:
    """Return the results by the plain definition."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reranker.clicks.pairs._write_result", write_result)
        return results(tables, config, when)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(random_logs.drawn())
@example((EMPTY, PairConfig(), (None, None)))
def test_duckdb_gives_what_is_defined(drawn: tuple[random_logs.Tables, PairConfig, Range]) -> None:
    assert results(*drawn) == defined(*drawn)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("number", range(3))
def test_duckdb_gives_what_is_defined_for_larger_logs(strategy: str, number: int) -> None:
    choice = random_logs.of_seed(SEED + number)
    tables, config = random_logs.tables(choice, most=60), random_logs.config(choice, strategy=strategy)
    when = random_logs.time_range(choice)
    assert results(tables, config, when) == defined(tables, config, when)


@pytest.mark.parametrize("number", range(3))
def test_a_long_log_in_parts_gives_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = random_logs.of_seed(SEED + 50 + number)
    tables, config = random_logs.tables(choice, most=80), random_logs.config(choice)
    whole = defined(tables, config)
    assert len(whole["ratings"]) > 10
    monkeypatch.setattr("reranker.clicks.pairs.ROWS_PER_MB", len(tables.hits) / 3.5 / ONE_THREAD.memory_mb)
    assert results(tables, config) == whole


def test_a_user_of_a_third_of_all_events_changes_nothing_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are by query, and what is told of a person (visits, robots, caps) is told of all of their queries."""
    tables, config = random_logs.tables(random_logs.of_seed(SEED + 60), most=80), PairConfig(person_cap=3, robots=None)
    busy = {row["query_id"] for row in tables.events[::4]}
    for row in (*tables.queries, *tables.events):
        if row["query_id"] in busy:
            row.update(user="busy", session="")
    assert 3 * sum(row["user"] == "busy" for row in tables.events) >= len(tables.events) > 20
    whole = defined(tables, config)
    assert whole["counts"]["votes"] > 3
    monkeypatch.setattr("reranker.clicks.pairs.ROWS_PER_MB", len(tables.hits) / 3.5 / ONE_THREAD.memory_mb)
    assert results(tables, config) == whole


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


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_text_of_a_strategy_on_every_short_list(name: str) -> None:
    lists = [shown_as("".join(marks), query_id=f"q{number}") for number, marks in enumerate(product("-ckp ", repeat=4))]
    columns = ("rank", "document", "clicked", "carted", "purchased", "time")
    rows = [
        {"query_id": one.query_id, **{column: getattr(shown, column) for column in columns}}
        for one in lists
        for shown in one.shown
    ]
    connection = library("duckdb").connect(":memory:")
    connection.register("clicked_impressions", pa.Table.from_pylist(rows))
    task = LogTask(Log({}), PairConfig(name), "pairs")
    text = next(step.text for step in steps(task) if step.name == "preferences")
    found = sorted(connection.sql(f"SELECT query_id, better, worse FROM ({text})").fetchall())  # noqa: S608 - our own
    assert found == sorted((one.query_id, *pair) for one in lists for pair in FUNCTIONS[name](one))
