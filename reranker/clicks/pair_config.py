"""What makes pairs out of a click log: the strategy, who is believed, and how much one person can say.

The SQL steps from logged tables to pairs: their order, and their texts with the numbers of a configuration.

A step is one SELECT in ``reranker/clicks/sql``, the same text for DuckDB and for Spark SQL, and becomes a table or view
of its own name. The steps begin with ``queries``, ``hits`` and ``events`` (`reranker.clicks.schema`; the column
``user``, a keyword of SQL, is called ``account``) and with the small tables ``rank_units`` and ``rank_chances``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from string import Template
from typing import Any, Literal

from reranker.clicks.schema import TABLES
from reranker.clicks.strategies import DEFAULT_STRATEGY, STRATEGIES
from reranker.config import from_mapping
from reranker.errors import ConfigError

UNIT = 1_000_000
"""Weights are counted in millionths, as integers: sums are then the same in every order of adding."""


@dataclass(frozen=True, slots=True)
class RobotRules:
    """Who is taken for a robot; all of their impressions are left out.

    Parameters
    ----------
    session_clicks : int
        Clicks in one session at most (on different results; repeated clicks on a result count once).
    day_clicks : int
        Clicks of one person in one day of UTC at most.
    speed_clicks : int
        From so many clicks with a time in a session on, their mean distance is looked at.
    min_gap_s : float
        Least mean distance of clicks in seconds.
    repeat_clicks : int
        From so many clicks of a person on, their entropy is looked at.
    min_entropy_bits : float
        Least entropy (of order 2, in bits) of the documents that a person clicked, over all queries; 1 is that of two
        documents clicked equally often.
    """

    session_clicks: int = 100
    day_clicks: int = 200
    speed_clicks: int = 10
    min_gap_s: float = 1.5
    repeat_clicks: int = 20
    min_entropy_bits: float = 1.0

    def __post_init__(self) -> None:
        for name in ("session_clicks", "day_clicks", "speed_clicks", "repeat_clicks"):
            _check_whole(name, getattr(self, name), 1)
        for name in ("min_gap_s", "min_entropy_bits"):
            _check_number(name, getattr(self, name), 0.0)


@dataclass(frozen=True, slots=True)
class PairConfig:
    """How a click log becomes pairs.

    A *person* is the user where known, else the session, else the impression alone. Caps of 0 are off.

    Parameters
    ----------
    strategy : str
        A name of `reranker.clicks.strategies.STRATEGIES`.
    above_only : bool
        Of clicked-over-unclicked: compare with documents further up only.
    last_by_time : bool
        Of last-clicked-above-skipped: the last click by the clock instead of the lowest in the list.
    min_dwell_s : float
        Clicks known to be shorter, in seconds, do not count, and neither does skipping their documents.
    session_gap_s : float
        Impressions of a user without session ids belong to one session until there is a pause this long, in seconds.
    once_a_session : bool
        A session says a pair once, however often it was shown.
    user_cap : int
        How often one person can say a pair at most, in sessions.
    document_cap : int
        Pairs of one person for one document of a query (as the better or as the worse one) that count in full; more
        share that weight.
    person_cap : int
        Pairs of one person over all queries that count in full; more share that weight.
    network_cap : int
        People of one network who prefer one document of a query that count in full; more share that weight.
    min_users : int
        People who must have said a pair.
    propensities : tuple of float or None
        Probability, in (0, 1], that rank 1, 2, ... is examined; the last one holds for all further ranks. A pair
        weighs 1 / propensity of the rank of its better document (inverse propensity scoring); None: 1.
    clip : float
        The most that one pair of one person may weigh for its propensity.
    robots : RobotRules or None
        None: everybody is believed.
    """

    strategy: str = DEFAULT_STRATEGY
    above_only: bool = False
    last_by_time: bool = False
    min_dwell_s: float = 0.0
    session_gap_s: float = 1800.0
    once_a_session: bool = True
    user_cap: int = 1
    document_cap: int = 10
    person_cap: int = 1000
    network_cap: int = 5
    min_users: int = 1
    propensities: tuple[float, ...] | None = None
    clip: float = 10.0
    robots: RobotRules | None = field(default_factory=RobotRules)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {self.strategy!r}: it must be one of {', '.join(STRATEGIES)}")
        for name in ("user_cap", "document_cap", "person_cap", "network_cap"):
            _check_whole(name, getattr(self, name), 0)
        _check_whole("min_users", self.min_users, 1)
        _check_number("min_dwell_s", self.min_dwell_s, 0.0)
        _check_number("session_gap_s", self.session_gap_s, 0.0)
        _check_number("clip", self.clip, 1.0)
        if self.propensities is not None:
            object.__setattr__(self, "propensities", tuple(map(float, self.propensities)))
            if not self.propensities or not all(0 < one <= 1 for one in self.propensities):
                message = f"propensities are {list(self.propensities)[:5]}: they must be one or more numbers in (0, 1]"
                raise ConfigError(message)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PairConfig:
        """Return the configuration of a table of its fields; raises `ConfigError` for an unknown or illegal one."""
        rules = values.get("robots", RobotRules())
        if isinstance(rules, Mapping):
            rules = from_mapping(RobotRules, rules, "robots")
        return from_mapping(cls, {**values, "robots": rules}, "pairs")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return dataclasses.asdict(self)

    def unprotected(self) -> PairConfig:
        """Return the same strategy believing everybody, as often as they click: what caps and rules are measured by."""
        return dataclasses.replace(
            self, once_a_session=False, user_cap=0, document_cap=0, person_cap=0, network_cap=0, min_users=1,
            robots=None,
        )  # fmt: skip

    def rank_units(self) -> tuple[int, ...]:
        """Return the weight in millionths of a pair whose better document stood at rank 1, 2, ...; the last holds on.

        min(1 / propensity, clip).
        """
        chances = self.propensities or (1.0,)
        return tuple(math.floor(min(1.0 / chance, self.clip) * UNIT + 0.5) for chance in chances)


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number of at least {least}", key=name)


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= least):  # type: ignore[arg-type,operator]
        raise ConfigError(f"{name} is {value!r}: it must be a finite number of at least {least:g}", key=name)


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
