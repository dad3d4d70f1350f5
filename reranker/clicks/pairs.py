"""Preference pairs, impressions and ratings from a click log, computed in SQL by DuckDB.

A strategy derives preferences from a shown list. It is the SQL text of the same name in ``reranker/clicks/sql``. From
each list with a click it selects (better, worse) document ids, each pair of a list once. Clicks too short to count
(`PairConfig.min_dwell_s`) are removed from the list first, together with their documents. Users click only on documents
that they have seen, so a click says most about the results above it. Strategies that compare with results further down
reproduce the order in which the results were shown.

A step is one SELECT statement in ``reranker/clicks/sql``, whose result becomes a table or view of the step's name. The
first steps read ``queries``, ``hits`` and ``events`` (`reranker.clicks.schema`; the column ``user``, an SQL keyword, is
called ``account``) and the small tables ``rank_units`` and ``rank_chances``. The expected results are
defined in plain Python in ``tests/reference``.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources as package_files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypedDict, Unpack

from reranker.clicks.schema import DAY_MS, TABLES, Impression, ShownDocument, pyarrow_module
from reranker.config import check_ranges, from_mapping
from reranker.errors import ConfigError, InputError
from reranker.files import replacing
from reranker.records import Pair
from reranker.text.query_keys import query_key_sql

if TYPE_CHECKING:
    from reranker.arrays import AnyArray, Int64

UNIT = 1_000_000
"""Weights are integers in millionths, so that sums do not depend on the order of addition."""


HALF_LIFE_DAYS: Final = 90
"""Days after which a click counts half in what users prefer now."""

DEFAULT_STRATEGY = "last-clicked-above-skipped"

STRATEGIES: dict[str, str] = {
    DEFAULT_STRATEGY: "the last clicked document over the unclicked ones above it",
    "clicked-over-unclicked": "every clicked document over every unclicked one",
    "clicked-over-previous": "each clicked document over the unclicked one directly above it",
    "clicked-over-next": "each clicked document over the unclicked one directly below it",
    "ssi-position-one": "the document at rank 1: over the unclicked ones if clicked, under the clicked ones if skipped",
    "purchase-over-click": "bought documents over those in the cart, both over those only clicked",
}
"""Ways to derive preferences from clicks: name → one line for ``--help``."""


@dataclass(frozen=True, slots=True)
class RobotRules:
    """Rules by which a person or session is classified as a robot; all of their impressions are excluded."""

    session_clicks: int = 100
    """Maximum number of clicks in one session on one UTC day (on different results; repeated clicks on a result count
    once). Some sites keep a session for weeks, in which busy people click more often."""
    day_clicks: int = 200
    """Maximum number of clicks of one person in one UTC day."""
    speed_clicks: int = 10
    """Minimum number of clicks with a time in a session for applying the speed rule."""
    min_gap_s: float = 1.5
    """Speed rule: minimum mean interval between clicks, in seconds."""
    repeat_clicks: int = 20
    """Minimum number of clicks of a person for applying the entropy rule."""
    min_entropy_bits: float = 1.0
    """Entropy rule: minimum entropy (of order 2, in bits) of the documents that a person clicked, over all queries. Two
    documents clicked equally often have an entropy of 1."""

    def __post_init__(self) -> None:
        at_least_one = dict.fromkeys(("session_clicks", "day_clicks", "speed_clicks", "repeat_clicks"), "[1, inf)")
        check_ranges(self, **at_least_one, min_gap_s="[0, inf)", min_entropy_bits="[0, inf)")


@dataclass(frozen=True, slots=True)
class PairConfig:
    """Parameters for converting a click log to pairs.

    A *person* is the user if known, else the session, else the single impression. A cap of 0 is disabled.
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
    min_dwell_s: float = 0.0
    """Minimum dwell time in seconds. Clicks known to be shorter do not count, and their documents do not count as
    skipped."""
    session_gap_s: float = 1800.0
    """Pause in seconds after which a new session begins, for the impressions of a user without session ids."""
    once_a_session: bool = True
    """Count a pair once per session, however often it was shown."""
    user_cap: int = 1
    """Maximum number of sessions in which one person's pair counts."""
    document_cap: int = 10
    """Number of pairs of one person for one document of a query (as the better or the worse one) that count in full. A
    larger number of pairs shares this weight."""
    person_cap: int = 1000
    """Number of pairs of one person over all queries that count in full; a larger number shares this weight."""
    network_cap: int = 5
    """Number of people in one network, preferring the same document of a query, who count in full; a larger number
    shares this weight."""
    min_users: int = 1
    """Minimum number of people who must have stated a pair."""
    propensities: tuple[float, ...] | None = None
    """Probabilities, in (0, 1], that rank 1, 2, ... is examined; the last one applies to all further ranks. The weight
    of a pair is 1 / propensity of the rank of its better document (inverse propensity scoring). None: the weight is
    1."""
    clip: float = 10.0
    """Maximum weight that a propensity can give to one pair of one person."""
    robots: RobotRules | None = field(default_factory=RobotRules)
    """Rules for excluding robots; None: nobody is excluded."""

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
        """Return the configuration with the given fields. Raises `ConfigError` for unknown fields or invalid values."""
        rules = values.get("robots", RobotRules())
        if isinstance(rules, Mapping):
            rules = from_mapping(RobotRules, rules, "robots")
        return from_mapping(cls, {**values, "robots": rules}, "pairs")

    def unprotected(self) -> PairConfig:
        """Return the strategy without per-user caps and robot filters: the baseline for measuring their effect."""
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
        """Return the weight of a pair by the rank (from 1) of its better document: min(1 / propensity, clip).

        Weights are in millionths; the last one applies to all further ranks.
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
"""Reasons for excluding queries before their lists are built, in the order of the checks (``statuses.sql``)."""


class LogFiles(Protocol):
    """A click log, as far as it is read here: Parquet files for each table of `reranker.clicks.schema.TABLES`."""

    def files(self, table: str) -> list[Path]:
        """Return the files of a table; the list may be empty."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that DuckDB may use. Temporary files are in the folder of the system (``TMPDIR``)."""

    RANGES: ClassVar[Mapping[str, str]] = {"memory_mb": "[100, inf)"}

    threads: int | None = None
    """Number of threads; None: one per core."""
    memory_mb: int = 1200
    """Memory in MB before data is written to disk. The process itself needs about 300 MB more."""


@dataclass(frozen=True, slots=True)
class LogTask:
    """A computation on a click log."""

    log: LogFiles
    config: PairConfig
    goal: Goal
    """The kind of rows to compute."""
    since: int | None = None
    """Start of the time range, inclusive, in milliseconds since 1970; None: unbounded."""
    until: int | None = None
    """End of the time range, exclusive, in milliseconds since 1970; None: unbounded."""


@dataclass(frozen=True, slots=True)
class LogStep:
    """One SQL step of a computation."""

    name: str
    """Name of the resulting table or view."""
    text: str
    """Its SELECT statement."""
    kept: bool
    """Whether its rows are used more than once, so that they are materialized."""
    part_by: str | None = None
    """Column (``query_id`` or ``query``) by whose values the step can run in partitions: its rows for a value depend
    only on the input rows with that value and on small tables. None: it needs all rows at once."""


_KEPT = {
    "joined_queries",
    "searches",
    "spellings",
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
    "spellings",
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


def steps(task: LogTask) -> list[LogStep]:
    """Return the steps of a task in order. The last step gives the result, sorted."""
    values = _values(task.config, task.goal, task.since, task.until)
    texts = {name: name for name in (*_TO_LISTS, *_AFTER_LISTS[task.goal])}
    if "preferences" in texts:
        texts["preferences"] = task.config.strategy.replace("-", "_")
    return [LogStep(name, sql_text(file, **values), name in _KEPT, _PART_BY.get(name)) for name, file in texts.items()]


def _count_texts(task: LogTask) -> tuple[str, str]:
    """Return the SQL texts that count queries, votes, and pairs as (name, n), after the steps of the goal "pairs".

    The first counts rows that are partitioned by query, so that the counts of partitions add up. The second counts the
    rest.
    """
    values = _values(task.config, task.goal)
    return sql_text("list_counts", **values), sql_text("counts", **values)


_SQL_TYPES = {"string": "string", "int32": "int", "int64": "bigint", "double": "double", "bool": "boolean"}


def _input_text(table: str) -> str:
    """Return the SELECT for the input of the steps from ``logged_queries``, ``logged_hits`` or ``logged_events``."""
    columns = ("t.user AS account" if name == "user" else f"t.{name}" for name in TABLES[table])
    return f"SELECT {', '.join(columns)} FROM logged_{table} AS t"  # noqa: S608 - names of our own schema


def _rank_tables(config: PairConfig) -> dict[str, str]:
    """Return the SELECTs of the tables (rank, units): pair weight and examination probability, in millionths."""
    chances = [math.floor(chance * UNIT + 0.5) for chance in config.propensities or (1.0,)]
    texts = {}
    for name, units in (("rank_units", config.rank_units()), ("rank_chances", chances)):
        rows = ", ".join(f"({rank}, CAST({value} AS BIGINT))" for rank, value in enumerate(units, start=1))
        texts[name] = f"SELECT * FROM (VALUES {rows}) AS t(rank, units)"  # noqa: S608 - numbers of our own
    return texts


def read_text(name: str) -> str:
    """Return the SQL text of a step, with its placeholders."""
    return package_files.files("reranker.clicks").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def sql_text(name: str, **values: str | int) -> str:
    """Return an SQL text of the folder with its placeholders replaced by values."""
    return Template(read_text(name)).substitute(values)


def _values(config: PairConfig, goal: Goal, since: int | None = None, until: int | None = None) -> dict[str, str]:
    """Return the values of a task for the placeholders of the SQL texts."""
    rules = config.robots or RobotRules()
    flags = {
        "judge_robots": config.robots is not None,
        "clicked_only": goal == "pairs",
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
        "since": _OLDEST if since is None else since,
        "until": _NEWEST if until is None else until,
        "fresh_at": _OLDEST if until is None else until,
        "last_rank": len(config.propensities or (1.0,)),
        "min_users": config.min_users,
    }
    caps = ("user_cap", "document_cap", "person_cap", "network_cap")
    numbers = {
        **{name: getattr(config, name) or _OFF for name in caps},
        "min_dwell_s": config.min_dwell_s,
        "half_life_ms": HALF_LIFE_DAYS * DAY_MS,
        # The largest probability that two clicks of a person are on one document: 2^-(entropy of order 2).
        "max_collision": float(2.0**-rules.min_entropy_bits),
    }
    texts = {name: str(value).upper() for name, value in flags.items()}
    texts["query_key"] = query_key_sql("query")
    texts |= {name: f"CAST({value} AS BIGINT)" for name, value in whole.items()}
    # Without the cast, "10.0" would be a DECIMAL.
    return texts | {name: f"CAST({float(value)!r} AS DOUBLE)" for name, value in numbers.items()}


# DuckDB: one process, all cores; data that does not fit into memory is written to disk.
#
# The tables of a short log are held in memory. Those of a long log become Parquet files in the temporary folder. DuckDB
# keeps modified pages of its own tables in memory until it must write them, which leaves too little memory for sorting
# and grouping. A database file would compress the tables better, but this costs as much time as everything else.
#
# DuckDB keeps text in joins and aggregations in memory, whatever the limit, and its time per row grows with the number
# of rows. So most steps of a long log run in partitions by query id or query text, one after another. The input rows
# are written once, to one folder per partition. Each partition runs in a schema of its own, in which the steps find its
# rows under the names of the whole tables.

ROWS_PER_MB = 4_000
"""Maximum number of hits in a partition for each MB of memory."""
_SPLIT = {
    "queries_from_log": ("queries", "hits", "events"),
    "statuses": ("searches",),
    "votes": ("stated_preferences",),
    "ratings": ("examinations",),
}
"""By the first step of a partitioned sequence: the tables whose rows are written to one folder per partition before."""
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
"""Tables of a partition that are needed after it is done; if the goal is lists, their tables are needed too."""


@contextlib.contextmanager
def prepared(task: LogTask, resources: Resources) -> Iterator[Any]:
    """Yield a DuckDB connection with the tables and views of all steps but the last, for custom queries."""
    with _database(resources) as database:
        database.run(task, resources, all_tables=True)
        yield database.connection


def _write_result(task: LogTask, resources: Resources, folder: Path) -> tuple[tuple[Path, ...], dict[str, int]]:
    """Write the result of a task into a folder.

    Return the Parquet files in order, and for the goal "pairs" the counts of queries, preferences, votes and pairs.
    """
    path = folder / f"{task.goal}.parquet"
    with _database(resources) as database:
        last, counts = database.run(task, resources)
        database.connection.sql(last).write_parquet(str(path))
        if task.goal == "pairs":
            counts.update(dict(database.connection.execute(_count_texts(task)[1]).fetchall()))
    return (path,), dict(counts)


@contextlib.contextmanager
def _database(resources: Resources) -> Iterator[_Database]:
    """Yield an empty database with a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="ssi-clicks-") as folder:
        settings: dict[str, Any] = {
            "memory_limit": f"{resources.memory_mb}MB",
            "temp_directory": folder,
            # Results are sorted explicitly where order matters. Otherwise, preserving the order only costs time.
            "preserve_insertion_order": False,
        }
        if resources.threads:
            settings["threads"] = resources.threads
        with _connection(settings, resources) as connection:
            yield _Database(connection, Path(folder))


@contextlib.contextmanager
def _connection(settings: Mapping[str, Any], resources: Resources) -> Iterator[Any]:
    """Yield a connection to an empty database; its errors name the remedy."""
    import duckdb

    connection = duckdb.connect(":memory:", config=dict(settings))
    try:
        yield connection
    except duckdb.OutOfMemoryException as error:
        message = f"a step on the click log needs more than the {resources.memory_mb} MB that DuckDB may use"
        raise ConfigError(f"{message}: raise --memory ({str(error).splitlines()[0][:300]})") from error
    except duckdb.Error as error:
        remedy = "restore a damaged file from a backup, or import the logs again"
        if "Could not write" in str(error):
            remedy = "free disk space, or name a larger folder by TMPDIR"
        raise InputError(f"DuckDB failed on the click log: {str(error)[:1000]}: {remedy}") from error
    finally:
        connection.close()


class _Database(NamedTuple):
    """An open DuckDB database."""

    connection: Any
    folder: Path
    """Folder for its files."""

    def run(self, task: LogTask, resources: Resources, all_tables: bool = False) -> tuple[str, Counter[str]]:
        """Run all steps but the last; return the SQL text of the last step, and counts of the lists.

        ``all_tables``: keep the tables of every partitioned step, not only those that the goal needs.
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
        self, task: LogTask, in_order: Sequence[LogStep], n_parts: int, all_tables: bool
    ) -> tuple[str, Counter[str]]:
        """Like `run`, with most steps run in partitions of the log, one after another."""
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
        """Write the rows of a table to one folder per partition, by the hash of a column."""
        folder = self.folder / "split" / column / table
        folder.mkdir(parents=True)
        rows = f"SELECT *, hash({column}) % {n_parts} AS part FROM {table}"  # noqa: S608 - our own names and number
        self.connection.execute(f"COPY ({rows}) TO $to (FORMAT parquet, PARTITION_BY (part))", {"to": str(folder)})

    def _carry_out_part(
        self, task: LogTask, some: Sequence[LogStep], part_by: str, part: int, handed_on: Collection[str]
    ) -> Counter[str]:
        """Run steps for one partition, keep the tables in ``handed_on``, and return the counts of its lists."""
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
        """Make one partition of a table available under the name of the whole table. It may have no files."""
        if list(self.folder.glob(f"{files}.parquet")):
            self._open_files(f"part.{table}", files)
        else:
            self.connection.execute(f"CREATE VIEW part.{table} AS SELECT * FROM main.{table} WHERE FALSE")  # noqa: S608

    def _carry_out(self, some: Iterable[LogStep]) -> None:
        """Run steps: write the rows of a kept step to a file, and create a view of the file or of the step's text."""
        for step in some:
            if step.kept:
                self._write(step, self.folder)
                self._open_files(step.name, step.name)
            else:
                self.connection.execute(f"CREATE VIEW {step.name} AS {step.text}")

    def _write(self, step: LogStep, folder: Path) -> None:
        file = str(folder / f"{step.name}.parquet")
        self.connection.execute(f"COPY ({step.text}) TO $file (FORMAT parquet)", {"file": file})

    def _open_files(self, name: str, files: str) -> None:
        path = str(self.folder / f"{files}.parquet").replace("'", "''")
        self.connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}', hive_partitioning=false)")  # noqa: S608

    def _list_counts(self, task: LogTask) -> Counter[str]:
        """Return the number of lists and of preferences, if the goal is pairs."""
        if task.goal != "pairs":
            return Counter()
        return Counter(dict(self.connection.execute(_count_texts(task)[0]).fetchall()))

    def _number_of_parts(self, task: LogTask, resources: Resources) -> int:
        """Return the number of partitions for building the lists, by the row count of the largest input table."""
        n_rows = 0
        for table in ("hits", "events"):
            files = [str(path) for path in task.log.files(table)]
            if files:
                text = "SELECT SUM(num_rows) FROM parquet_file_metadata($files)"
                n_rows = max(n_rows, int(self.connection.execute(text, {"files": files}).fetchall()[0][0]))
        return max(1, math.ceil(n_rows / (ROWS_PER_MB * resources.memory_mb)))

    def _open_table(self, table: str, task: LogTask) -> None:
        # DuckDB estimates the row count from the first file and orders joins by it, so the largest file comes first.
        files = sorted(map(str, task.log.files(table)), key=lambda path: (-os.path.getsize(path), path))
        if files:
            self.connection.read_parquet(files, hive_partitioning=False).create_view(f"logged_{table}")
        else:
            columns = ", ".join(f'"{name}" {_SQL_TYPES[kind]}' for name, kind in TABLES[table].items())
            self.connection.execute(f"CREATE TABLE logged_{table} ({columns})")
        self.connection.execute(f"CREATE VIEW {table} AS {_input_text(table)}")


class Computing(TypedDict, total=False):
    """Options of a computation; every key may be omitted."""

    since: int | None
    """Start of the time range of impressions, inclusive, in milliseconds since 1970. Undated impressions count as the
    oldest. The whole log is used for recognising robots."""
    until: int | None
    """End of the time range, exclusive, in milliseconds since 1970."""
    resources: Resources | None
    """Threads and memory; None: the defaults."""


def _compute(
    goal: Goal, log: LogFiles, config: PairConfig | None, how: Computing
) -> tuple[tempfile.TemporaryDirectory[str], tuple[Path, ...], dict[str, int]]:
    """Return a folder to be removed by the caller, the Parquet files of the result in it, and the counts."""
    task = LogTask(log, config or PairConfig(), goal, how.get("since"), how.get("until"))
    folder = tempfile.TemporaryDirectory(prefix="ssi-pairs-")
    try:
        return folder, *_write_result(task, how.get("resources") or Resources(), Path(folder.name))
    except BaseException:
        folder.cleanup()
        raise


def _batches(files: Iterable[Path]) -> Iterator[Any]:
    for path in files:
        with pyarrow_module().parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)


def _rows(goal: Goal, log: LogFiles, config: PairConfig | None, how: Computing) -> Iterator[tuple[Any, ...]]:
    folder, files, _ = _compute(goal, log, config, how)
    with folder:
        for batch in _batches(files):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass
class PairTable(contextlib.AbstractContextManager["PairTable"]):
    """Pairs in Parquet files of a temporary folder, sorted by query, better and worse, without duplicates."""

    files: tuple[Path, ...]
    """Files in row order, with the columns query, better, worse (strings) and weight (double, above 0)."""
    counts: dict[str, int]
    """Counts by name: ``searches``, the excluded queries by reason, ``impressions`` that were used, ``preferences``
    that they stated, ``votes`` (a person and a pair), and ``pairs``."""
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)

    def __len__(self) -> int:
        return self.counts["pairs"]

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs in order."""
        for batch in _batches(self.files):
            columns = [batch.column(name).to_pylist() for name in PAIR_COLUMNS]
            yield from map(Pair, *columns)

    def write(self, path: str | os.PathLike[str]) -> int:
        """Write one Parquet file atomically, readable by its owner only; return the number of pairs."""
        pa = pyarrow_module()
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
    """Return weighted preference pairs from the clicks of a log.

    The weight of (query, better, worse) is a sum over the people who stated it: 1 each, or the inverse propensity of
    the rank of ``better``, reduced if a cap of `PairConfig` is exceeded. The result depends neither on the order of the
    log nor on repeated lines. If sessions are logged, it does not depend on times either, except for the speed rule for
    robots and the time range.

    Parameters
    ----------
    log
        A `reranker.clicks.log.ClickLog`, or any object with its method ``files``.
    config
        Strategy, caps, and robot rules; None: the defaults.
    **how
        See `Computing`.

    Raises
    ------
    ConfigError
        If a step needs more memory than it may use.
    InputError
        If the files cannot be read.
    """
    folder, files, counts = _compute("pairs", log, config, how)
    return PairTable(files, _named_counts(counts), folder)


@dataclass
class ImpressionTable(contextlib.AbstractContextManager["ImpressionTable"]):
    """The shown lists of a log in Parquet files of a temporary folder, computed once and read as often as needed."""

    files: tuple[Path, ...]
    """Files with a row for each shown document, sorted by time (undated first), query id and rank."""
    _folder: tempfile.TemporaryDirectory[str] = field(repr=False)
    _resources: Resources = field(default_factory=Resources)

    def lists(self, since: int | None = None, until: int | None = None) -> Iterator[Impression]:
        """Yield the lists of a time range as in `Computing`, sorted by time (undated first) and query id."""
        rows = (row for batch in _batches(self.files) for row in _rows_between(batch, since, until))
        for _, group in groupby(rows, key=lambda row: row[0]):
            of_list = list(group)
            query_id, query, session, user, network, time, application, randomised = of_list[0][:8]
            shown = tuple(ShownDocument(*row[8:]) for row in of_list)
            yield Impression(query_id, query, shown, session, user, network, time, application, randomised)

    def click_times(self) -> tuple[Int64, int]:
        """Return the times of the lists with a click, ascending (n,) int64, and the number of those without a time."""
        # Late, because `ssi clicks --help` reads the strategies of this module.
        import numpy as np

        times = self._query("click_times")["time"]
        dated = np.ma.compressed(np.ma.asarray(times)).astype(np.int64)
        return dated, len(times) - len(dated)

    def click_counts(self, until: int | None = None) -> dict[str, AnyArray]:
        """Return item, rank, shown, clicked and randomised of `reranker.clicks.propensities.ClickCounts`."""
        return self._query("click_counts", until=_NEWEST if until is None else until)

    def ratings(self, config: PairConfig | None = None, until: int | None = None) -> Iterator[Rating]:
        """Yield the ratings of the lists before a time, as the function `ratings` does for a whole log."""
        config = config or PairConfig()
        values = _values(config, "ratings", until=until)
        with self._opened() as connection:
            connection.execute(f"CREATE TABLE rank_chances AS {_rank_tables(config)['rank_chances']}")
            for name, text in _RATINGS_OF_ROWS.items():
                connection.execute(f"CREATE VIEW {name} AS {sql_text(text, **values)}")
            rows = connection.execute(sql_text("ratings", **values))
            while batch := rows.fetchmany(_BATCH_ROWS):
                yield from map(_rating, batch)

    def _query(self, name: str, **values: int) -> dict[str, AnyArray]:
        """Return the columns of an SQL text over the rows."""
        with self._opened() as connection:
            columns: dict[str, AnyArray] = connection.execute(sql_text(name, **values)).fetchnumpy()
        return columns

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Yield a connection with the view ``impression_rows``."""
        settings = {"memory_limit": f"{self._resources.memory_mb}MB", "temp_directory": self._folder.name}
        with _connection(settings, self._resources) as connection:
            connection.read_parquet([str(path) for path in self.files]).create_view("impression_rows")
            yield connection

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


_RATINGS_OF_ROWS: Mapping[str, str] = {
    "kept": "kept_of_rows",
    "impressions": "impressions_of_rows",
    "counted_impressions": "counted_impressions",
    "examinations": "examinations",
}
"""Views, in order, that the step "ratings" needs, with the texts that make them of impression rows."""


def _rows_between(batch: Any, since: int | None, until: int | None) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a batch in a time range; those without a time count as the oldest."""
    pc = pyarrow_module().compute
    time = pc.fill_null(batch.column("time"), _OLDEST)
    for bound, compare in ((since, pc.greater_equal), (until, pc.less)):
        if bound is not None:
            batch, time = (part.filter(compare(time, bound)) for part in (batch, time))
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def impression_table(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> ImpressionTable:
    """Return the shown lists of a log with their clicks, without robots.

    Of the configuration only ``robots`` and ``session_gap_s`` are used.
    """
    folder, files, _ = _compute("impressions", log, config, how)
    return ImpressionTable(files, folder, how.get("resources") or Resources())


def impressions(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> Iterator[Impression]:
    """Yield the lists of an `impression_table`."""
    with impression_table(log, config, **how) as table:
        yield from table.lists()


@dataclass(frozen=True, slots=True)
class Rating:
    """Click statistics of one document for one query."""

    query: str
    document: str
    people: int
    """Number of people to whom the document was shown."""
    clicks: int
    """Number of these people who clicked it."""
    examined: float
    """Expected number of people who examined it, by the propensities of its ranks; ``people`` without propensities."""
    recent_clicks: float
    """Like ``clicks``, but each person counts half for every `HALF_LIFE_DAYS` between the list and the end of the time
    range. Equal to ``clicks`` if the range has no end."""
    recent_examined: float
    """Like ``examined``, with people who count less in the same way."""

    @property
    def share(self) -> float:
        """Share of clicks among examinations, 0 to 1.

        With P(click) = P(rank is examined) P(document attracts) this estimates the second factor. If the propensities
        of its ranks are below a millionth, so that nobody examined it, the share is 1 with any click.
        """
        return min(1.0, self.clicks / self.examined) if self.examined else float(self.clicks > 0)


def ratings(log: LogFiles, config: PairConfig | None = None, **how: Unpack[Computing]) -> Iterator[Rating]:
    """Yield the ratings of all shown documents, sorted by query and document; each person counts once per document.

    Strategy and caps are not used.
    """
    yield from map(_rating, _rows("ratings", log, config, how))


def _rating(row: tuple[Any, ...]) -> Rating:
    query, document, people, clicks, examined, recent_clicks, recent_examined = row
    recent = int(recent_clicks) / (1000 * UNIT), int(recent_examined) / (1000 * UNIT)
    return Rating(query, document, int(people), int(clicks), int(examined) / UNIT, *recent)


def _named_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts under the names and in the order documented in `PairTable`."""
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
