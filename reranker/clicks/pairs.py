"""From a click log to preference pairs, impressions and ratings: in SQL, by DuckDB or Spark, with the same result.

What a shown list states is said by a strategy, the SQL text of the same name in ``reranker/clicks/sql``: from the
lists with a click it takes (better, worse) document ids, no pair of a list twice. Clicks too short to count
(`PairConfig.min_dwell_s`) are taken out of the list before, with their documents. Nobody clicks what was not seen, so a
click says most about the results above it, and strategies that compare with results further down repeat the order in
which they were shown.

A step is one SELECT in ``reranker/clicks/sql``, the same text for both, and becomes a table or view of its own name.
The steps begin with ``queries``, ``hits`` and ``events`` (`reranker.clicks.schema`; the column ``user``, a keyword of
SQL, is called ``account``) and with the small tables ``rank_units`` and ``rank_chances``. What they must give is
defined in plain Python in ``tests/reference``.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources as package_files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, Unpack

from reranker.clicks.schema import TABLES, Impression, ShownDocument, arrow
from reranker.config import check_ranges, from_mapping
from reranker.errors import ConfigError, InputError, MissingExtra
from reranker.files import replacing
from reranker.records import Pair
from reranker.spark import spark_session

UNIT = 1_000_000
"""Weights are counted in millionths, as integers: sums are then the same in every order of adding."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to read preferences from clicks: a line for ``--help``, and the `PairConfig` fields that its text takes."""

    summary: str
    options: tuple[str, ...] = ()


DEFAULT_STRATEGY = "last-clicked-above-skipped"

STRATEGIES: dict[str, Strategy] = {
    DEFAULT_STRATEGY: Strategy("the last clicked document over the unclicked ones above it", ("last_by_time",)),
    "clicked-over-unclicked": Strategy(
        "every clicked document over every unclicked one (--above-only: those above it)", ("above_only",)
    ),
    "clicked-over-previous": Strategy("each clicked document over the unclicked one directly above it"),
    "clicked-over-next": Strategy("each clicked document over the unclicked one directly below it"),
    "ssi-position-one": Strategy(
        "the document at rank 1: over the unclicked ones if clicked, under the clicked ones if skipped"
    ),
    "purchase-over-click": Strategy("bought documents over those in the cart, both over those only clicked"),
}
"""The strategies by name: what the command line, the configuration and the documentation offer."""


@dataclass(frozen=True, slots=True)
class RobotRules:
    """Who is taken for a robot; all of their impressions are left out."""

    session_clicks: int = 100
    """Clicks in one session at most (on different results; repeated clicks on a result count once)."""
    day_clicks: int = 200
    """Clicks of one person in one day of UTC at most."""
    speed_clicks: int = 10
    """From so many clicks with a time in a session on, their mean distance is looked at."""
    min_gap_s: float = 1.5
    """Least mean distance of clicks in seconds."""
    repeat_clicks: int = 20
    """From so many clicks of a person on, their entropy is looked at."""
    min_entropy_bits: float = 1.0
    """Least entropy (of order 2, in bits) of the documents that a person clicked, over all queries; 1 is that of two
    documents clicked equally often."""

    def __post_init__(self) -> None:
        at_least_one = dict.fromkeys(("session_clicks", "day_clicks", "speed_clicks", "repeat_clicks"), "[1, inf)")
        check_ranges(self, **at_least_one, min_gap_s="[0, inf)", min_entropy_bits="[0, inf)")


@dataclass(frozen=True, slots=True)
class PairConfig:
    """How a click log becomes pairs.

    A *person* is the user where known, else the session, else the impression alone. Caps of 0 are off.
    """

    RANGES: ClassVar[Mapping[str, str]] = {
        "user_cap": "[0, inf)",
        "document_cap": "[0, inf)",
        "person_cap": "[0, inf)",
        "network_cap": "[0, inf)",
        "min_dwell_s": "[0, inf)",
        "session_gap_s": "[0, inf)",
        "min_users": "[1, inf)",
        "clip": "[1, inf)",
    }

    strategy: str = DEFAULT_STRATEGY
    """A name of `STRATEGIES`."""
    above_only: bool = False
    """Of clicked-over-unclicked: compare with documents further up only."""
    last_by_time: bool = False
    """Of last-clicked-above-skipped: the last click, cart or purchase by the clock instead of the lowest click in
    the list."""
    min_dwell_s: float = 0.0
    """Clicks known to be shorter, in seconds, do not count, and neither does skipping their documents."""
    session_gap_s: float = 1800.0
    """Impressions of a user without session ids belong to one session until there is a pause this long, in seconds."""
    once_a_session: bool = True
    """A session says a pair once, however often it was shown."""
    user_cap: int = 1
    """How often one person can say a pair at most, in sessions."""
    document_cap: int = 10
    """Pairs of one person for one document of a query (as the better or as the worse one) that count in full; more
    share that weight."""
    person_cap: int = 1000
    """Pairs of one person over all queries that count in full; more share that weight."""
    network_cap: int = 5
    """People of one network who prefer one document of a query that count in full; more share that weight."""
    min_users: int = 1
    """People who must have said a pair."""
    propensities: tuple[float, ...] | None = None
    """Probability, in (0, 1], that rank 1, 2, ... is examined; the last one holds for all further ranks. A pair weighs
    1 / propensity of the rank of its better document (inverse propensity scoring); None: 1."""
    clip: float = 10.0
    """The most that one pair of one person may weigh for its propensity."""
    robots: RobotRules | None = field(default_factory=RobotRules)
    """None: everybody is believed."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {self.strategy!r}: it must be one of {', '.join(STRATEGIES)}")
        check_ranges(self, **self.RANGES)
        if self.propensities is not None:
            object.__setattr__(self, "propensities", tuple(map(float, self.propensities)))
            if not self.propensities or not all(0 < chance <= 1 for chance in self.propensities):
                message = f"propensities are {list(self.propensities)[:5]}: they must be one or more numbers in (0, 1]"
                raise ConfigError(message)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PairConfig:
        """Return the configuration of a table of its fields; raises `ConfigError` for an unknown or illegal one."""
        rules = values.get("robots", RobotRules())
        if isinstance(rules, Mapping):
            rules = from_mapping(RobotRules, rules, "robots")
        return from_mapping(cls, {**values, "robots": rules}, "pairs")

    def unprotected(self) -> PairConfig:
        """Return the same strategy believing everybody, as often as they click: what caps and rules are measured by."""
        return replace(
            self,
            once_a_session=False,
            user_cap=0,
            document_cap=0,
            person_cap=0,
            network_cap=0,
            min_users=1,
            robots=None,
        )

    def rank_units(self) -> tuple[int, ...]:
        """Return the weight in millionths of a pair whose better document stood at rank 1, 2, ...; the last holds on.

        min(1 / propensity, clip).
        """
        chances = self.propensities or (1.0,)
        return tuple(math.floor(min(1.0 / chance, self.clip) * UNIT + 0.5) for chance in chances)


Goal = Literal["pairs", "impressions", "ratings"]
PAIR_COLUMNS = ("query", "better", "worse", "weight")
_BATCH_ROWS = 8192
_OLDEST = -(2**63) + 1
_NEWEST = 2**63 - 1
_OFF = 1e300

STATUSES = (
    "no_query_text",
    "robot_agent",
    "robot_session_clicks",
    "robot_speed",
    "robot_day_clicks",
    "robot_one_document",
    "out_of_range",
    "no_click",
)
"""Why queries are left out before their lists are built, in the order of the checks (``statuses.sql``)."""


class LogFiles(Protocol):
    """A click log: Parquet files of each table of `reranker.clicks.schema.TABLES`."""

    def files(self, table: str) -> list[Path]:
        """Return the files of a table; there may be none."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a backend may use."""

    threads: int | None = None
    """Threads of DuckDB, or of a local Spark; None: one a core."""
    memory_mb: int = 1200
    """Memory that DuckDB holds rows in before it writes them to disk; the process needs some 300 MB more."""
    folder: Path | None = None
    """Where temporary files go; None: the system's folder for them."""
    spark_master: str | None = None
    """None: ``local[threads]``, or the master of the session that is there."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to compute: the goal, of which log, how and from what range of time (milliseconds)."""

    log: LogFiles
    config: PairConfig
    goal: Goal
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the way to pairs: the name of its table and its SELECT.

    ``kept``: its rows are needed more than once. ``part_by``: the column, ``query_id`` or ``query``, by whose values it
    can be carried out, for some of them after the others: its rows of a value follow from the rows of that value alone
    (and from tables of a few rows). None: it needs all rows.
    """

    name: str
    text: str
    kept: bool
    part_by: str | None = None


_KEPT = {
    "joined_queries",
    "searches",
    "document_events",
    "first_ordinals",
    "robots",
    "statuses",
    "kept",
    "actions",
    "results",
    "result_lists",
    "impressions",
    "clicked_impressions",
    "preferences",
    "votes",
    "person_votes",
    "summed_votes",
}
_TO_LISTS = (
    "queries_from_log",
    "queries_from_events",
    "joined_queries",
    "document_events",
    "searches",
    "first_ordinals",
    "clicks",
    "robots",
    "statuses",
    "kept",
    "actions",
    "results",
    "result_lists",
    "page_offsets",
    "impressions",
    "counted_impressions",
)
_PART_BY = {
    **dict.fromkeys(
        (
            "queries_from_log",
            "queries_from_events",
            "joined_queries",
            "document_events",
            "statuses",
            "kept",
            "actions",
            "results",
            "result_lists",
            "page_offsets",
            "impressions",
            "counted_impressions",
            "clicked_impressions",
            "preferences",
            "stated_preferences",
            "examinations",
        ),
        "query_id",
    ),
    **dict.fromkeys(("votes", "capped_votes", "summed_votes", "ratings"), "query"),
}
_AFTER_LISTS: dict[Goal, tuple[str, ...]] = {
    "pairs": (
        "clicked_impressions",
        "preferences",
        "stated_preferences",
        "votes",
        "person_votes",
        "capped_votes",
        "summed_votes",
        "pairs",
    ),
    "impressions": ("impression_rows",),
    "ratings": ("examinations", "ratings"),
}


def steps(task: Task) -> list[Step]:
    """Return the steps of a task in order; the last one is the result, in its order."""
    values = _values(task)
    texts = {name: name for name in (*_TO_LISTS, *_AFTER_LISTS[task.goal])}
    if "preferences" in texts:
        texts["preferences"] = task.config.strategy.replace("-", "_")
    return [Step(name, sql_text(file, **values), name in _KEPT, _PART_BY.get(name)) for name, file in texts.items()]


def _count_texts(task: Task) -> tuple[str, str]:
    """Return the texts that count what became of the queries, (name, n), after the steps of the goal "pairs".

    The first counts rows of steps by query, so that the counts of parts add up; the second the rest.
    """
    values = _values(replace(task, since=None, until=None))
    return sql_text("list_counts", **values), sql_text("counts", **values)


_SQL_TYPES = {"string": "string", "int32": "int", "int64": "bigint", "double": "double", "bool": "boolean"}


def _input_text(table: str) -> str:
    """Return the text that makes the input of the steps from ``logged_queries``, ``logged_hits``, ``logged_events``."""
    columns = ("t.user AS account" if name == "user" else f"t.{name}" for name in TABLES[table])
    return f"SELECT {', '.join(columns)} FROM logged_{table} AS t"  # noqa: S608 - names of our own schema


def _rank_tables(config: PairConfig) -> dict[str, str]:
    """Return the texts of the tables (rank, units): weight of a pair, and probability to be examined, in millionths."""
    chances = [math.floor(chance * UNIT + 0.5) for chance in config.propensities or (1.0,)]
    texts = {}
    for name, units in (("rank_units", config.rank_units()), ("rank_chances", chances)):
        rows = ", ".join(f"({rank}, CAST({value} AS BIGINT))" for rank, value in enumerate(units, start=1))
        texts[name] = f"SELECT * FROM (VALUES {rows}) AS t(rank, units)"  # noqa: S608 - numbers of our own
    return texts


def read_text(name: str) -> str:
    """Return the SQL text of a step as it is stored."""
    return package_files.files("reranker.clicks").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def sql_text(name: str, **values: str | int) -> str:
    """Return the SQL text of a step, or another one of the same folder, with its numbers in their places."""
    return Template(read_text(name)).substitute(values)


def _values(task: Task) -> dict[str, str]:
    """Return the numbers of a task by their names in the texts."""
    config = task.config
    rules = config.robots or RobotRules()
    flags = {
        "judge_robots": config.robots is not None,
        "clicked_only": task.goal == "pairs",
        "above_only": config.above_only,
        "last_by_time": config.last_by_time,
        "once_a_session": config.once_a_session,
    }
    whole = {
        "session_gap_ms": round(config.session_gap_s * 1000),
        "session_clicks": rules.session_clicks,
        "day_clicks": rules.day_clicks,
        "speed_clicks": rules.speed_clicks,
        "min_gap_ms": round(rules.min_gap_s * 1000),
        "repeat_clicks": rules.repeat_clicks,
        "oldest": _OLDEST,
        "since": _OLDEST if task.since is None else task.since,
        "until": _NEWEST if task.until is None else task.until,
        "last_rank": len(config.propensities or (1.0,)),
        "min_users": config.min_users,
    }
    caps = ("user_cap", "document_cap", "person_cap", "network_cap")
    numbers = {
        **{name: getattr(config, name) or _OFF for name in caps},
        "min_dwell_s": config.min_dwell_s,
        # The largest probability that two clicks of a person are on one document: 2^-(entropy of order 2).
        "max_collision": float(2.0**-rules.min_entropy_bits),
    }
    texts = {name: str(value).upper() for name, value in flags.items()}
    texts |= {name: f"CAST({value} AS BIGINT)" for name, value in whole.items()}
    # "10.0" would be a decimal number in both dialects, with rounding of its own.
    return texts | {name: f"CAST({float(value)!r} AS DOUBLE)" for name, value in numbers.items()}


# DuckDB: one process, all cores; what does not fit into memory goes to disk.
#
# The tables of a short log are held in memory. Those of a long log become Parquet files in the temporary folder: DuckDB
# keeps changed pages of its own tables in memory until it must write them, and then has too little left for its sorting
# and grouping. In a database file they would be compressed harder, which costs as much time as all the rest.
#
# What DuckDB joins or adds up stays in memory where it holds texts, whatever the limit, and takes longer a row the more
# there are. So most steps of a long log are carried out for some query ids, or query texts, after the others. The rows
# that they need are written to a folder a part, once; each part is carried out in a schema of its own, where the steps
# find these rows under the names of the whole tables.

ROWS_PER_MB = 4_000
"""Hits that a part may have for each MB of memory."""
_SPLIT = {
    "queries_from_log": ("queries", "hits", "events"),
    "statuses": ("searches",),
    "votes": ("stated_preferences",),
    "ratings": ("examinations",),
}
"""By the first of some steps by parts: the tables whose rows are then written to a folder a part."""
_HANDED_ON = {
    "joined_queries",
    "document_events",
    "statuses",
    "kept",
    "stated_preferences",
    "examinations",
    "votes",
    "summed_votes",
    "ratings",
}
"""The tables of a part that are needed when it is done; where lists are asked for, these are, too."""


@contextlib.contextmanager
def prepared(task: Task, resources: Resources) -> Iterator[Any]:
    """Yield a DuckDB connection that has the tables and views of all steps but the last, for questions of one's own."""
    with _database(resources) as database:
        database.run(task, resources, all_tables=True)
        yield database.connection


def _duckdb_write(task: Task, resources: Resources, folder: Path) -> tuple[tuple[Path, ...], dict[str, int]]:
    path = folder / f"{task.goal}.parquet"
    with _database(resources) as database:
        last, counts = database.run(task, resources)
        database.connection.sql(last).write_parquet(str(path))
        if task.goal == "pairs":
            counts.update(dict(database.connection.execute(_count_texts(task)[1]).fetchall()))
    return (path,), dict(counts)


@contextlib.contextmanager
def _database(resources: Resources) -> Iterator[_Database]:
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
            yield _Database(connection, Path(folder))
        except duckdb.OutOfMemoryException as error:
            message = f"DuckDB needs more than {resources.memory_mb} MB for a step of the click log"
            raise ConfigError(f"{message}: allow it more with --memory ({str(error).splitlines()[0][:300]})") from error
        except duckdb.Error as error:
            remedy = "bring a damaged file back from a copy, or import the logs again"
            if "Could not write" in str(error):
                remedy = "make room for it, or name a larger folder with --temporary"
            raise InputError(f"DuckDB cannot work on the click log: {str(error)[:1000]}: {remedy}") from error
        finally:
            connection.close()


class _Database(NamedTuple):
    """An open database of DuckDB, and the folder for its files."""

    connection: Any
    folder: Path

    def run(self, task: Task, resources: Resources, all_tables: bool = False) -> tuple[str, Counter[str]]:
        """Carry out all steps but the last; return its text, and counts of the lists.

        ``all_tables``: keep what the parts made of every step, not only what the goal needs.
        """
        n_parts = self._number_of_parts(task, resources)
        for table in TABLES:
            self._open_table(table, task)
        for name, text in _rank_tables(task.config).items():
            self.connection.execute(f"CREATE TABLE {name} AS {text}")
        in_order = steps(task)
        last = in_order[-1]
        if n_parts == 1:
            for step in in_order[:-1]:
                kind = "TABLE" if step.kept else "VIEW"
                self.connection.execute(f"CREATE {kind} {step.name} AS {step.text}")
            return last.text, self._list_counts(task)
        return self._run_in_parts(task, in_order, n_parts, all_tables)

    def _run_in_parts(
        self, task: Task, in_order: Sequence[Step], n_parts: int, all_tables: bool
    ) -> tuple[str, Counter[str]]:
        """Do what `run` does, most steps for a part of the log after the other."""
        last, counts = in_order[-1], Counter[str]()
        handed_on = {step.name for step in in_order if step.name in _HANDED_ON or (all_tables and step.kept)}
        if task.goal == "impressions":
            handed_on.add(task.goal)
        for part_by, of_kind in groupby(in_order, lambda step: step.part_by):
            some = list(of_kind)
            if part_by is None:
                self._carry_out(step for step in some if step is not last)
                continue
            for table in _SPLIT.get(some[0].name, ()):
                self._split(table, part_by, n_parts)
            for part in range(n_parts):
                counts.update(self._carry_out_part(task, some, part_by, part, handed_on))
            for step in some:
                if step.name in handed_on:
                    self._open_files(step.name, f"{part_by}-*/{step.name}")
                elif all_tables:
                    self.connection.execute(f"CREATE VIEW {step.name} AS {step.text}")
        if last.part_by:
            return f"SELECT * FROM {last.name} ORDER BY ALL", counts  # noqa: S608 - a name of our own
        return last.text, counts

    def _split(self, table: str, column: str, n_parts: int) -> None:
        """Write the rows of a table to a folder a part, by the values of a column."""
        folder = self.folder / "split" / column / table
        folder.mkdir(parents=True)
        rows = f"SELECT *, hash({column}) % {n_parts} AS part FROM {table}"  # noqa: S608 - our own names and number
        self.connection.execute(f"COPY ({rows}) TO $to (FORMAT parquet, PARTITION_BY (part))", {"to": str(folder)})

    def _carry_out_part(
        self, task: Task, some: Sequence[Step], part_by: str, part: int, handed_on: Collection[str]
    ) -> Counter[str]:
        """Carry out steps for a part, keep the tables that are handed on, and return the counts of its lists."""
        folder = self.folder / f"{part_by}-{part}"
        folder.mkdir(exist_ok=True)
        self.connection.execute("CREATE SCHEMA part")
        self.connection.execute("SET search_path = 'part,main'")
        for of_table in sorted((self.folder / "split" / part_by).iterdir()):
            self._open_part(of_table.name, f"split/{part_by}/{of_table.name}/part={part}/*")
        for file in sorted(folder.iterdir()):
            self._open_part(file.stem, f"{folder.name}/{file.stem}")
        for step in some:
            if step.name in handed_on:
                self._write(step, folder)
                self._open_part(step.name, f"{folder.name}/{step.name}")
            else:
                kind = "TABLE" if step.kept else "VIEW"
                self.connection.execute(f"CREATE {kind} part.{step.name} AS {step.text}")
        counts = self._list_counts(task) if some[-1].name == "stated_preferences" else Counter[str]()
        self.connection.execute("SET search_path = 'main'")
        self.connection.execute("DROP SCHEMA part CASCADE")
        return counts

    def _open_part(self, table: str, files: str) -> None:
        """Make a table of a part known under the name of the whole; there may be no file of it."""
        if list(self.folder.glob(f"{files}.parquet")):
            self._open_files(f"part.{table}", files)
        else:
            self.connection.execute(f"CREATE VIEW part.{table} AS SELECT * FROM main.{table} WHERE FALSE")  # noqa: S608

    def _carry_out(self, some: Iterable[Step]) -> None:
        """Make a file of each step whose rows are kept, and a view of it or of the step's text."""
        for step in some:
            if step.kept:
                self._write(step, self.folder)
                self._open_files(step.name, step.name)
            else:
                self.connection.execute(f"CREATE VIEW {step.name} AS {step.text}")

    def _write(self, step: Step, folder: Path) -> None:
        file = str(folder / f"{step.name}.parquet")
        self.connection.execute(f"COPY ({step.text}) TO $file (FORMAT parquet)", {"file": file})

    def _open_files(self, name: str, files: str) -> None:
        path = str(self.folder / f"{files}.parquet").replace("'", "''")
        self.connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}', hive_partitioning=false)")  # noqa: S608

    def _list_counts(self, task: Task) -> Counter[str]:
        """Return how many lists there are and what they prefer, for pairs."""
        if task.goal != "pairs":
            return Counter()
        return Counter(dict(self.connection.execute(_count_texts(task)[0]).fetchall()))

    def _number_of_parts(self, task: Task, resources: Resources) -> int:
        """Return in how many parts the lists are built, by the rows of the largest table that they come of."""
        n_rows = 0
        for table in ("hits", "events"):
            files = [str(path) for path in task.log.files(table)]
            if files:
                text = "SELECT SUM(num_rows) FROM parquet_file_metadata($files)"
                n_rows = max(n_rows, int(self.connection.execute(text, {"files": files}).fetchall()[0][0]))
        return max(1, math.ceil(n_rows / (ROWS_PER_MB * resources.memory_mb)))

    def _open_table(self, table: str, task: Task) -> None:
        # DuckDB takes the rows of the first file for those of all, and joins in an order by that: the largest is first.
        files = sorted(map(str, task.log.files(table)), key=lambda path: (-os.path.getsize(path), path))
        if files:
            self.connection.read_parquet(files, hive_partitioning=False).create_view(f"logged_{table}")
        else:
            columns = ", ".join(f'"{name}" {_SQL_TYPES[kind]}' for name, kind in TABLES[table].items())
            self.connection.execute(f"CREATE TABLE logged_{table} ({columns})")
        self.connection.execute(f"CREATE VIEW {table} AS {_input_text(table)}")


# Spark SQL: a local Spark, or the cluster that the session, the master or the environment names. Files are read, and
# results written, by path: on a cluster, log and temporary folder must be on storage that all of its machines see.


def _spark_write(task: Task, resources: Resources, folder: Path) -> tuple[tuple[Path, ...], dict[str, int]]:
    target = folder / task.goal
    session = spark_session(
        "ssi clicks pairs", master=resources.spark_master, threads=resources.threads, instead="duckdb"
    )
    with session as spark, tempfile.TemporaryDirectory(prefix="steps-", dir=folder) as kept:
        last = _run_in_spark(spark, task, Path(kept))
        spark.sql(last.text).write.parquet(str(target))
        counts = {}
        if task.goal == "pairs":
            counts = {row["name"]: row["n"] for text in _count_texts(task) for row in spark.sql(text).collect()}
    return tuple(sorted(target.glob("part-*.parquet"))), counts


def _run_in_spark(spark: Any, task: Task, folder: Path) -> Step:
    """Carry out all steps but the last, which is returned."""
    for table, columns in TABLES.items():
        schema = ", ".join(f"`{name}` {_SQL_TYPES[kind]}" for name, kind in columns.items())
        files = [str(path.absolute()) for path in task.log.files(table)]
        frame = spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)
        frame.createOrReplaceTempView(f"logged_{table}")
        spark.sql(_input_text(table)).createOrReplaceTempView(table)
    for name, text in _rank_tables(task.config).items():
        spark.sql(text).createOrReplaceTempView(name)
    *before, last = steps(task)
    for step in before:
        frame = spark.sql(step.text)
        if step.kept:
            # Through files, not the cache: a plan that holds the plans of all steps before it grows without bound.
            frame.write.parquet(str(folder / step.name))
            frame = spark.read.schema(frame.schema).parquet(str(folder / step.name))
        frame.createOrReplaceTempView(step.name)
    return last


class Backend(NamedTuple):
    """Where the steps run, with a line for ``--help``; what they give does not depend on it.

    ``write(task, resources, folder)`` writes the result into a folder and returns its Parquet files in order, and what
    became of the queries and preferences by name (only of pairs).
    """

    summary: str
    write: Callable[[Task, Resources, Path], tuple[tuple[Path, ...], dict[str, int]]]


BACKENDS: dict[str, Backend] = {
    "duckdb": Backend("one process; what does not fit into memory goes to disk", _duckdb_write),
    "spark": Backend("Spark SQL, local or on a cluster", _spark_write),
}
"""The backends by name, as ``--backend`` takes them."""


class Computing(TypedDict, total=False):
    """Which part of a log counts, and what computes the result; every key may be left out."""

    since: int | None
    until: int | None
    """Milliseconds: impressions from ``since`` on and before ``until``; undated ones count as the oldest. Robots are
    told by the whole log."""
    backend: str
    """``duckdb`` (the default) or ``spark``; the result is the same."""
    resources: Resources | None
    """Threads, memory, temporary folder, Spark."""


def _compute(
    goal: Goal, log: LogFiles, config: PairConfig | None, how: Computing
) -> tuple[tempfile.TemporaryDirectory[str], tuple[Path, ...], dict[str, int]]:
    """Return a folder to be removed, the Parquet files of the result in it, and the counts."""
    arrow()  # before hours of work, not after them
    backend, resources = how.get("backend", "duckdb"), how.get("resources") or Resources()
    if backend not in BACKENDS:
        raise ConfigError(f"backend is {backend!r}: it must be one of {', '.join(BACKENDS)}")
    task = Task(log, config or PairConfig(), goal, how.get("since"), how.get("until"))
    folder = tempfile.TemporaryDirectory(prefix="ssi-pairs-", dir=resources.folder)
    try:
        return folder, *BACKENDS[backend].write(task, resources, Path(folder.name))
    except BaseException:
        folder.cleanup()
        raise


def _batches(files: Iterable[Path]) -> Iterator[Any]:
    for path in files:
        with arrow().parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)


def _rows(goal: Goal, log: LogFiles, config: PairConfig | None, how: Computing) -> Iterator[tuple[Any, ...]]:
    folder, files, _ = _compute(goal, log, config, how)
    with folder:
        for batch in _batches(files):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass
class PairTable(contextlib.AbstractContextManager["PairTable"]):
    """Pairs in Parquet files of a temporary folder, sorted by query, better and worse, none of them twice."""

    files: tuple[Path, ...]
    """The rows in order: the columns query, better, worse (strings) and weight (double, above 0)."""
    counts: dict[str, int]
    """What became of the queries (``searches``; why left out, by reason; ``impressions`` that were used), of the
    ``preferences`` they stated, the ``votes`` (a person and a pair) and the ``pairs``."""
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)

    def __len__(self) -> int:
        return self.counts["pairs"]

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        for batch in _batches(self.files):
            columns = [batch.column(name).to_pylist() for name in PAIR_COLUMNS]
            yield from map(Pair, *columns)

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write one Parquet file, readable by its owner, whole or not at all; return the number of pairs."""
        pa = arrow()
        types = [pa.string()] * 3 + [pa.float64()]
        schema = pa.schema([pa.field(*column, nullable=False) for column in zip(PAIR_COLUMNS, types, strict=True)])
        with replacing(Path(path), private=True) as file:
            with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in _batches(self.files):
                    writer.write_table(pa.Table.from_batches([batch]).cast(schema))
        return len(self)

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def make_pairs(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> PairTable:
    """Return the pairs that the clicks of a log state, with weights.

    The weight of (query, better, worse) is the sum over people who stated it: 1 each, or the inverse propensity of the
    rank of ``better``, reduced where a cap of `PairConfig` is passed. Neither the order of the log nor repeated lines
    change the result, and, where sessions are logged, neither do clocks, except that robots are told by speed and the
    range is by time. ``log`` is a `reranker.clicks.log.ClickLog`, or anything with its ``files``.

    `ConfigError` for an unknown backend; `InputError` if the files cannot be read; `MissingExtra` without the backend's
    library.
    """
    folder, files, counts = _compute("pairs", log, config, how)
    return PairTable(files, _named_counts(counts), folder)


def impressions(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> Iterator[Impression]:
    """Yield the shown lists of a log with what was clicked, robots left out, by time (undated first) and query id.

    Of the configuration only ``robots`` and ``session_gap_s`` matter here.
    """
    rows = _rows("impressions", log, config, how)
    for _, group in groupby(rows, key=lambda row: row[0]):
        of_list = list(group)
        query_id, query, session, user, network, time, application, randomised = of_list[0][:8]
        shown = tuple(ShownDocument(*row[8:]) for row in of_list)
        yield Impression(query_id, query, shown, session, user, network, time, application, randomised)


@dataclass(frozen=True, slots=True)
class Rating:
    """How well a document served a query: the ``people`` to whom it was shown, and how many of them clicked it.

    ``examined`` is how many looked at it, by the propensities of the ranks where it stood (``people`` without any).
    """

    query: str
    document: str
    people: int
    clicks: int
    examined: float

    @property
    def share(self) -> float:
        """Clicks of those who looked: 0 to 1.

        With P(click) = P(rank is examined) P(document attracts) this estimates the second factor. Where the ranks have
        propensities of less than a millionth, nobody looked, and any click is a share of 1.
        """
        return min(1.0, self.clicks / self.examined) if self.examined else float(self.clicks > 0)


def ratings(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> Iterator[Rating]:
    """Yield the ratings of all shown documents, by query and document; each person counts once a document.

    Strategy and caps do not matter here.
    """
    for query, document, people, clicks, units in _rows("ratings", log, config, how):
        yield Rating(query, document, int(people), int(clicks), int(units) / 1e6)


def _named_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts under the names and in the order that `PairTable` states."""
    names = (*STATUSES, "kept", "listed", "impressions", "preferences", "votes", "stated", "pairs")
    of = {name: int(counts.get(name, 0)) for name in names}
    return {
        "searches": sum(of[name] for name in (*STATUSES, "kept")),
        **{name: of[name] for name in STATUSES},
        "no_list": of["kept"] - of["listed"],
        "no_click_in_list": of["listed"] - of["impressions"],
        "impressions": of["impressions"],
        "preferences": of["preferences"],
        "votes": of["votes"],
        "too_few_people": of["stated"] - of["pairs"],
        "pairs": of["pairs"],
    }
