"""The SQL steps from logged tables to pairs: their order, and their texts with the numbers of a configuration.

A step is one SELECT in ``reranker/clicks/sql``, the same text for DuckDB and for Spark SQL, and becomes a table or view
of its own name. The steps begin with ``queries``, ``hits`` and ``events`` (`reranker.clicks.schema`; the column
``user``, a keyword of SQL, is called ``account``) and with the small tables ``rank_units`` and ``rank_chances``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Literal

from reranker.clicks.pair_config import UNIT, PairConfig, RobotRules
from reranker.clicks.schema import TABLES
from reranker.clicks.strategies import STRATEGIES

Goal = Literal["pairs", "impressions", "ratings"]
_OLDEST = -(2**63) + 1
_NEWEST = 2**63 - 1
_OFF = 1e300
RENAMED = {"user": "account"}
"""Columns that the steps call by another name than the schema."""

STATUSES = (
    "no_query_text", "robot_agent", "robot_session_clicks", "robot_speed", "robot_day_clicks", "robot_one_document",
    "out_of_range", "no_click",
)  # fmt: skip
"""Why queries are left out before their lists are built, in the order of the checks (``judged.sql``)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the way to pairs.

    Parameters
    ----------
    name : str
        Of its table.
    text : str
        Its SELECT.
    kept : bool
        Its rows are needed more than once.
    by_query : bool
        Its rows about one query text follow from the rows of ``kept`` with that text (and from the logged tables)
        alone, so it can be carried out for some texts after the others.
    """

    name: str
    text: str
    kept: bool
    by_query: bool = False


_KEPT = {
    "known", "searches", "touched", "judged", "kept", "acts", "found", "listed", "shown", "lists", "preferences",
    "votes", "summed",
}  # fmt: skip
_LISTS = (
    "searched", "told", "known", "searches", "touched", "bases", "clicks", "robots", "judged", "kept", "acts", "found",
    "listed", "pages", "shown", "counted",
)  # fmt: skip
_BY_QUERY = {
    "acts", "found", "listed", "pages", "shown", "counted", "lists", "preferences", "votes", "ratings",
}  # fmt: skip
_PAIRS = ("lists", "preferences", "votes", "capped", "summed", "pairs")
_RESULTS: dict[Goal, tuple[str, ...]] = {
    "pairs": (*_LISTS, *_PAIRS),
    "impressions": (*_LISTS, "impressions"),
    "ratings": (*_LISTS, "ratings"),
}


def steps(config: PairConfig, goal: Goal, since: int | None = None, until: int | None = None) -> list[Step]:
    """Return the steps of a goal in order; the last one is the result, in its order.

    Parameters
    ----------
    config : PairConfig
        Gives the numbers in the texts.
    goal : {"pairs", "impressions", "ratings"}
        What the last step holds.
    since, until : int or None
        Milliseconds; impressions from ``since`` on and before ``until``. Undated ones count as the oldest.
    """
    values = _values(config, goal, since, until)
    texts = {name: name for name in _RESULTS[goal]}
    if "preferences" in texts:
        texts["preferences"] = STRATEGIES[config.strategy].sql
    return [Step(name, _text(file, values), name in _KEPT, name in _BY_QUERY) for name, file in texts.items()]


def count_steps(config: PairConfig) -> tuple[Step, Step]:
    """Return the steps that count what became of the queries, (name, n), after the steps of the goal "pairs".

    The first counts rows of steps by query, so that the counts of parts add up; the second the rest.
    """
    values = _values(config, "pairs", None, None)
    of_lists, rest = (_text(name, values) for name in ("list_counts", "counts"))
    return Step("list_counts", of_lists, False, by_query=True), Step("counts", rest, False)


def input_text(table: str) -> str:
    """Return the text that makes the input of the steps from ``logged_queries``, ``logged_hits``, ``logged_events``."""
    columns = (f"t.{name} AS {RENAMED[name]}" if name in RENAMED else f"t.{name}" for name in TABLES[table])
    return f"SELECT {', '.join(columns)} FROM logged_{table} AS t"  # noqa: S608 - names of our own schema


def rank_tables(config: PairConfig) -> dict[str, str]:
    """Return the texts of the tables (rank, units): weight of a pair, and probability to be examined, in millionths."""
    chances = [math.floor(one * UNIT + 0.5) for one in config.propensities or (1.0,)]
    return {"rank_units": _by_rank(config.rank_units()), "rank_chances": _by_rank(chances)}


def read_text(name: str) -> str:
    """Return the SQL text of a step as it is stored."""
    return resources.files("reranker.clicks").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def _text(name: str, values: dict[str, str]) -> str:
    return Template(read_text(name)).substitute(values)


def _by_rank(units: tuple[int, ...] | list[int]) -> str:
    rows = ", ".join(f"({rank}, CAST({value} AS BIGINT))" for rank, value in enumerate(units, start=1))
    return f"SELECT * FROM (VALUES {rows}) AS t(rank, units)"  # noqa: S608 - numbers of our own


def _values(config: PairConfig, goal: Goal, since: int | None, until: int | None) -> dict[str, str]:
    rules = config.robots or RobotRules()
    flags = {
        "judge_robots": config.robots is not None,
        "clicked_only": goal == "pairs",
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
        "since": _OLDEST if since is None else since,
        "until": _NEWEST if until is None else until,
        "last_rank": len(config.propensities or (1.0,)),
        "min_users": config.min_users,
    }
    caps = ("user_cap", "document_cap", "person_cap", "network_cap")
    numbers = {
        **{name: getattr(config, name) or _OFF for name in caps},
        "min_dwell_s": config.min_dwell_s,
        "max_collision": max_collision(rules),
    }
    texts = {name: str(value).upper() for name, value in flags.items()}
    texts |= {name: f"CAST({value} AS BIGINT)" for name, value in whole.items()}
    # "10.0" would be a decimal number in both dialects, with rounding of its own.
    return texts | {name: f"CAST({float(value)!r} AS DOUBLE)" for name, value in numbers.items()}


def max_collision(rules: RobotRules) -> float:
    """Return the largest probability that two clicks of a person are on one document: 2^-(entropy of order 2)."""
    return float(2.0**-rules.min_entropy_bits)
