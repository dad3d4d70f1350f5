"""What `ssi clicks pairs` and `ssi clicks export` share: how a log becomes pairs, and where that is computed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from reranker.clicks.backends import BACKENDS, Resources
from reranker.clicks.pair_config import PairConfig
from reranker.clicks.strategies import DEFAULT_STRATEGY, STRATEGIES
from reranker.errors import ConfigError, InputError

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)
_CAP = click.IntRange(0)
_DEFAULT = PairConfig()

_OPTIONS = (
    click.option("--strategy", type=click.Choice(list(STRATEGIES)), default=DEFAULT_STRATEGY, show_default=True,
                 help="How clicks become preferences, see below."),
    click.option("--above-only", is_flag=True, help="clicked-over-unclicked: compare with documents further up only."),
    click.option("--last-by-time", is_flag=True,
                 help="last-clicked-above-skipped: the latest click instead of the lowest one."),
    click.option("--min-dwell", "min_dwell_s", type=click.FloatRange(0), default=0.0, show_default=True,
                 metavar="SECONDS", help="Clicks known to be shorter do not count; their documents take no part."),
    click.option("--once-a-session/--every-time", default=True, show_default=True,
                 help="A session says a pair once, however often it was shown."),
    click.option("--user-cap", type=_CAP, default=_DEFAULT.user_cap, show_default=True,
                 help="How often one person can say a pair at most, in sessions; 0: no cap, here and below."),
    click.option("--document-cap", type=_CAP, default=_DEFAULT.document_cap, show_default=True,
                 help="Pairs of one person for one document of a query that count in full."),
    click.option("--person-cap", type=_CAP, default=_DEFAULT.person_cap, show_default=True,
                 help="Pairs of one person over all queries that count in full."),
    click.option("--network-cap", type=_CAP, default=_DEFAULT.network_cap, show_default=True,
                 help="People of one network for one document of a query that count in full; 0 on an intranet."),
    click.option("--min-users", type=click.IntRange(1), default=1, show_default=True,
                 help="People who must have said a pair."),
    click.option("--propensities", "propensity_file", type=_FILE, metavar="FILE",
                 help="Of `ssi clicks propensities`: pairs weigh 1 / propensity of the better document's rank."),
    click.option("--clip", type=click.FloatRange(1), default=_DEFAULT.clip, show_default=True,
                 help="The most that one person's pair may weigh for it."),
    click.option("--robots/--no-robots", "judge_robots", default=True, show_default=True,
                 help="Leave out robots: agent, speed, number of clicks, one document over and over."),
    click.option("--since", metavar="TIME", help="Impressions from then on (2026-06-01 or ISO 8601)."),
    click.option("--until", metavar="TIME", help="Impressions before then; undated ones count as the oldest."),
    click.option("--backend", type=click.Choice(list(BACKENDS)), default="duckdb", show_default=True,
                 help="; ".join(f"{name}: {backend.summary}" for name, backend in BACKENDS.items()) + "."),
    click.option("--threads", type=click.IntRange(1), help="Threads of duckdb or local spark.  [default: all cores]"),
    click.option("--memory", "memory_mb", type=click.IntRange(100), default=Resources().memory_mb, show_default=True,
                 metavar="MB", help="Rows that duckdb keeps in memory; the process needs some 300 MB more."),
    click.option("--temporary", type=_FILE, metavar="DIR", help="Folder for what does not fit into memory."),
    click.option("--spark-master", metavar="URL", help="Cluster of spark; other settings: SPARK_CONF_DIR."),
)  # fmt: skip


def pair_options(function: F) -> F:
    """Add the options; the command gets all of them as keywords for `pair_config`, `resources` and `time_range`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def strategy_lines() -> str:
    """Return the strategies for the end of a help text."""
    width = max(map(len, STRATEGIES)) + 2
    lines = "\n".join(f"  {name:<{width}}{strategy.summary}" for name, strategy in STRATEGIES.items())
    return f"\b\nStrategies:\n{lines}\n"


def pair_config(context: click.Context, options: dict[str, Any]) -> PairConfig:
    """Return the configuration that the options state; an option without effect under the strategy is refused."""
    takes = STRATEGIES[options["strategy"]].options
    for name in ("above_only", "last_by_time"):
        given = context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
        if given and options[name] and name not in takes:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} has no effect with --strategy {options['strategy']}: leave one of them out")
    names = ("strategy", "above_only", "last_by_time", "min_dwell_s", "once_a_session", "user_cap", "document_cap",
             "person_cap", "network_cap", "min_users", "clip")  # fmt: skip
    values = {name: options[name] for name in names}
    if not options["judge_robots"]:
        values["robots"] = None
    return PairConfig(**values, propensities=_propensities(options["propensity_file"]))


def resources(options: dict[str, Any]) -> Resources:
    """Return what the backend may use."""
    return Resources(options["threads"], options["memory_mb"], options["temporary"], options["spark_master"])


def time_range(options: dict[str, Any]) -> dict[str, int | None]:
    """Return ``since`` and ``until`` in milliseconds."""
    since, until = (_milliseconds(name, options[name]) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--since {options['since']} is not before --until {options['until']}: nothing lies between")
    return {"since": since, "until": until}


def _milliseconds(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        example = "2026-06-01 or 2026-06-01T12:00:00+02:00"
        raise ConfigError(f"--{name} {text!r} is not a time: write {example}") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _propensities(path: Path | None) -> tuple[float, ...] | None:
    import json

    from reranker.clicks.propensities import Propensities

    if path is None:
        return None
    try:
        return Propensities.from_json(json.loads(path.read_text(encoding="utf-8"))).by_rank
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}", path=str(path)) from error
