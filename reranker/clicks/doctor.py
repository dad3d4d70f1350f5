"""The doctor: says of a click log whether learning from it would be sound, and what to mend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reranker.clicks.backends import Resources, Task
from reranker.clicks.backends.duckdb_backend import prepared
from reranker.clicks.checks import CHECKS, shape
from reranker.clicks.diagnosis import Diagnosis, Finding, RankRate
from reranker.clicks.pair_config import PairConfig

if TYPE_CHECKING:
    from reranker.engines.base import Engine

__all__ = ["Diagnosis", "Finding", "RankRate", "examine"]

IDS_ASKED = 1_000
"""Shown ids that are looked up in the index, drawn by their hash."""
MAX_RANKS = 50
_BATCH = 200

# Each query gives one row; its columns are numbers by name. Tables are those of `reranker.clicks.steps`.
_COUNTS = (
    "SELECT COUNT(*) AS query_rows FROM queries",
    """SELECT COUNT(*) AS hits, COUNT(*) FILTER (regexp_full_match(document, '[0-9]{1,10}')) AS hits_like_numbers
    FROM hits""",
    """SELECT COUNT(*) AS event_rows,
        COUNT(*) FILTER (query_id = '' AND action IN ('click', 'add_to_cart', 'purchase')) AS events_without_query_id
    FROM events""",
    """SELECT COUNT(*) AS searches, COUNT(*) FILTER (account = '' AND session = '') AS searches_anonymous,
        COUNT(*) FILTER (time IS NULL) AS searches_undated, COUNT(*) FILTER (randomised) AS searches_randomised,
        COUNT(DISTINCT person) AS people, MIN(time) AS first_time, MAX(time) AS last_time
    FROM searches""",
    """SELECT COUNT(*) AS clicks,
        COUNT(*) FILTER (regexp_full_match(t.document, '[0-9]{1,10}')) AS clicks_like_numbers,
        COUNT(*) FILTER (s.query_id IS NULL) AS clicks_without_query
    FROM touched AS t LEFT JOIN searched AS s ON s.query_id = t.query_id WHERE t.clicked""",
    """SELECT COUNT(*) AS searches_kept, COUNT(*) FILTER (l.query_id IS NULL) AS searches_without_list,
        COUNT(DISTINCT k.query) AS distinct_queries
    FROM kept AS k LEFT JOIN (SELECT DISTINCT query_id FROM listed) AS l ON l.query_id = k.query_id""",
    """SELECT COUNT(DISTINCT k.query) AS distinct_queries_clicked
    FROM kept AS k JOIN shown AS s ON s.query_id = k.query_id WHERE s.clicked""",
    """SELECT COUNT(*) AS clicks_kept, COUNT(*) FILTER (l.document IS NOT NULL) AS clicks_on_lists,
        COUNT(*) FILTER (l.document IS NULL AND w.query_id IS NOT NULL) AS clicks_off_lists
    FROM acts AS a
    LEFT JOIN listed AS l ON l.query_id = a.query_id AND l.document = a.document
    LEFT JOIN (SELECT DISTINCT query_id FROM listed) AS w ON w.query_id = a.query_id
    WHERE a.clicked""",
    """SELECT COALESCE(MAX(n), 0) AS clicks_of_busiest FROM (
        SELECT COUNT(*) AS n FROM acts AS a JOIN kept AS k ON k.query_id = a.query_id WHERE a.clicked GROUP BY k.person
    )""",
    """SELECT COUNT(*) AS positions_stated,
        COUNT(*) FILTER (l.event_rank = l.rank + COALESCE(p.ranks_before, 0)) AS positions_agreeing
    FROM listed AS l
    JOIN (SELECT DISTINCT query_id FROM found) AS f ON f.query_id = l.query_id
    LEFT JOIN pages AS p ON p.query_id = l.query_id
    WHERE l.event_rank IS NOT NULL""",
    """SELECT COUNT(*) FILTER (base = 0) AS applications_from_0,
        COUNT(*) FILTER (base = 1 AND zeros > 0) AS applications_mixed
    FROM bases JOIN (
        SELECT s.application, COUNT(*) FILTER (t.ordinal = 0) AS zeros
        FROM touched AS t JOIN searches AS s ON s.query_id = t.query_id GROUP BY s.application
    ) AS z ON z.application = bases.application""",
)
_STATUSES = "SELECT status, COUNT(*) FROM judged GROUP BY status"
_RATES = """SELECT rank, COUNT(*), COUNT(*) FILTER (clicked) FROM shown WHERE rank BETWEEN 1 AND {ranks}
    GROUP BY rank ORDER BY rank"""
_IDS = "SELECT document FROM (SELECT DISTINCT document FROM listed) ORDER BY hash(document), document LIMIT {n}"


class Log(Protocol):
    """What is examined: a `reranker.clicks.log.ClickLog`."""

    def files(self, table: str) -> list[Path]:
        """Return the Parquet files of a table."""
        ...

    @property
    def notes(self) -> dict[str, int]:
        """How often the readers met each spelling or oddity."""
        ...


def examine(
    log: Log,
    engine: Engine | None = None,
    index: str | None = None,
    *,
    config: PairConfig | None = None,
    resources: Resources | None = None,
) -> Diagnosis:
    """Return what is wrong with a click log, and the click rate by rank.

    Parameters
    ----------
    log : ClickLog
    engine, index : optional
        Also look up to 1,000 of the shown ids up there.
    config : PairConfig, optional
        Who counts as a robot.
    resources : Resources, optional
        Threads, memory and temporary folder of DuckDB.

    Raises
    ------
    MissingExtra
        Without DuckDB.
    EngineError
        If the engine cannot be asked.
    """
    task = Task(log, config or PairConfig(), "impressions")
    with prepared(task, resources or Resources()) as connection:
        numbers = count(connection)
        rates = tuple(RankRate(*row) for row in connection.execute(_RATES.format(ranks=MAX_RANKS)).fetchall())
        ids = []
        if engine is not None and index is not None:
            ids = [row[0] for row in connection.execute(_IDS.format(n=IDS_ASKED)).fetchall()]
    if engine is not None and index is not None:
        numbers |= {"ids_asked": len(ids), "ids_found": _found(engine, index, ids)}
    numbers |= {f"note_{name}": n for name, n in log.notes.items()}
    findings = [finding for check in CHECKS if (finding := check(numbers)) is not None]
    return Diagnosis((*findings, shape(rates)), numbers, rates)


def count(connection: Any) -> dict[str, float]:
    """Return the numbers that the checks look at, by name; NULL (the time of an undated log) is left out."""
    numbers: dict[str, float] = {}
    for text in _COUNTS:
        answer = connection.execute(text)
        names = [column[0] for column in answer.description]
        row = answer.fetchone() or ()
        numbers |= {name: value for name, value in zip(names, row, strict=True) if value is not None}
    numbers |= {str(status): n for status, n in connection.execute(_STATUSES).fetchall()}
    return numbers


def _found(engine: Engine, index: str, ids: Sequence[str]) -> int:
    """Return how many of the ids are documents of the index."""
    return sum(
        found is not None
        for start in range(0, len(ids), _BATCH)
        for found in engine.get(index, ids[start : start + _BATCH], source=False)
    )
