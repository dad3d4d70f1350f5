"""The definition in plain Python, all in memory: what the other backends are tested against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reranker.clicks.backends import Resources, Table, Task
from reranker.clicks.joining import (
    Row,
    Search,
    first_ordinals,
    impression_of,
    join_hits,
    join_searches,
    join_touches,
    judge_searches,
    shown_list,
)
from reranker.clicks.robots import find_robots
from reranker.clicks.schema import TABLES, Impression
from reranker.clicks.storage import read_part
from reranker.clicks.strategies import without_short_clicks
from reranker.clicks.voting import cap_votes, count_votes, rate_lists, sum_votes

_PAIRS = ("query", "better", "worse", "weight")
_RATINGS = ("query", "document", "people", "clicks", "examined")
_IMPRESSIONS = ("query_id", "query", "session", "user", "network", "time", "application", "randomised", "document",
                "rank", "clicked", "carted", "purchased", "click_time", "dwell")  # fmt: skip


def rows(task: Task, resources: Resources, batch_rows: int) -> Iterator[Any]:
    """Yield the result as record batches, in order."""
    del resources
    yield from _compute(task)[0].to_batches(max_chunksize=batch_rows)


def write(task: Task, resources: Resources, folder: Path) -> Table:
    """Write the result as one Parquet file, and count what became of the queries."""
    import pyarrow.parquet as pq

    del resources
    table, counts = _compute(task)
    path = folder / f"{task.goal}.parquet"
    pq.write_table(table, path)
    return Table((path,), counts)


def _compute(task: Task) -> tuple[Any, dict[str, int]]:
    """Return the result as an Arrow table, and the counts."""
    searches, statuses, lists = _impressions(task)
    if task.goal == "impressions":
        return _table(_IMPRESSIONS, _impression_rows(lists)), {}
    counted = [without_short_clicks(one, task.config.min_dwell_s) for one in lists]
    if task.goal == "ratings":
        rated = rate_lists(counted, searches, task.config)
        return _table(_RATINGS, [(*key, *rated[key]) for key in sorted(rated)]), {}
    used = [one for one in counted if one.clicked]
    votes = count_votes(used, searches, task.config)
    sums = sum_votes(cap_votes(votes, task.config))
    pairs = [
        (*key, units / 1e6) for key, (people, units) in sorted(sums.items())
        if people >= task.config.min_users and units > 0
    ]  # fmt: skip
    counts = Counter(statuses.values()) + Counter(
        listed=len(lists), impressions=len(used), preferences=votes.preferences, votes=len(votes.units),
        said=len(sums), pairs=len(pairs),
    )  # fmt: skip
    return _table(_PAIRS, pairs), dict(counts)


def _impressions(task: Task) -> tuple[dict[str, Search], dict[str, str], list[Impression]]:
    """Return the searches, what became of each, and the lists of those kept, by time and query id."""
    config = task.config
    queries, hits, events = (_read(task, table) for table in TABLES)
    searches = join_searches(queries, events, round(config.session_gap_s * 1000))
    touches = join_touches(events)
    robots = find_robots(searches, touches, config.robots)
    statuses = judge_searches(searches, touches, robots, config, task.since, task.until, task.goal == "pairs")
    kept = [one for one in searches.values() if statuses[one.query_id] == "kept"]
    positions = join_hits(hits, {one.query_id for one in kept})
    first = first_ordinals(searches, touches)
    lists = []
    for one in sorted(kept, key=lambda s: (s.time is not None, s.time or 0, s.query_id)):
        begin = first.get(one.application, 1)
        shown = shown_list(positions.get(one.query_id, {}), touches.get(one.query_id, {}), begin)
        if shown:
            lists.append(impression_of(one, shown))
    return searches, statuses, lists


def _read(task: Task, table: str) -> list[Row]:
    return [row for path in task.log.files(table) for row in read_part(path, table).to_pylist()]


def _impression_rows(lists: list[Impression]) -> list[tuple[Any, ...]]:
    return [
        (
            one.query_id, one.query, one.session, one.user, one.network, one.time, one.application, one.randomised,
            shown.document, shown.rank, shown.clicked, shown.carted, shown.purchased, shown.time, shown.dwell,
        )
        for one in lists for shown in one.shown
    ]  # fmt: skip


def _table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    types = {"weight": pa.float64(), "dwell": pa.float64()} | dict.fromkeys(
        ("time", "rank", "click_time", "people", "clicks", "examined"), pa.int64()
    )
    types |= dict.fromkeys(("randomised", "clicked", "carted", "purchased"), pa.bool_())
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [pa.array(list(column), types.get(name, pa.string())) for name, column in zip(names, columns, strict=True)]
    return pa.table(arrays, names=list(names))
