"""Options of the commands that read click logs and turn them into preference pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reranker.cli import common
from reranker.cli.common import PATH
from reranker.clicks.pairs import BACKENDS, STRATEGIES, PairConfig, Resources
from reranker.config import default_of, milliseconds
from reranker.errors import ConfigError, InputError

if TYPE_CHECKING:
    from reranker.clicks.log import ClickLog
    from reranker.clicks.propensities import Propensities
    from reranker.formats import RejectLog


# Repeated here so that --help does not import numerical libraries. Tests keep them equal to
# `reranker.clicks.importing.FORMATS` and `reranker.clicks.propensities.METHODS`.
LOG_FORMATS = ("auto", "ubi", "json-lines", "metarank")


METHODS = ("auto", "randomised", "harvest", "em", "rate")


# Options and readers of several commands
format_option = click.option(
    "--format",
    "log_format",
    type=click.Choice(LOG_FORMATS),
    default="auto",
    help="Format of raw log files; auto detects it from their first lines.",
)


rejects_option = click.option(
    "--rejects", type=PATH, metavar="FILE", help="Write position, reason and structure of rejected lines to this file."
)


ubi_indexes_options = common.all_of(
    click.option("--queries-index", default="ubi_queries", metavar="NAME", help="UBI's index of queries."),
    click.option("--events-index", default="ubi_events", metavar="NAME", help="UBI's index of events."),
)


def read_propensities(path: Path | None) -> Propensities | None:
    """Read the propensities that `ssi clicks propensities` wrote; None if ``path`` is None."""
    from reranker.clicks.propensities import Propensities

    if path is None:
        return None
    try:
        return Propensities.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}", path=str(path)) from error


log_arguments = common.all_of(
    click.argument("logs", nargs=-1, required=True, type=PATH, metavar="LOG..."), format_option, rejects_option
)


log_option = click.option(
    "--log", "log_folder", required=True, type=PATH, metavar="DIR", help="Folder of the click log."
)


key_option = click.option(
    "--key",
    "key_file",
    type=PATH,
    metavar="FILE",
    help="File with the key for hashing the ids of people.  [default: the file `key` in the folder of the click log]",
)


@contextmanager
def opened_log(options: dict[str, Any]) -> Iterator[tuple[ClickLog, RejectLog]]:
    """Open the click log of ``LOG...``, with the lines rejected in it, which are summarised on standard error."""
    from reranker.clicks.importing import open_logs
    from reranker.formats import RejectLog

    with RejectLog(options["rejects"]) as sink:
        log = open_logs(options["logs"], format=options["log_format"], rejects=sink)
        if sink.count:
            common.warn(sink.summary())
        yield log, sink


pair_options = common.all_of(
    common.setting(
        PairConfig,
        "strategy",
        type=click.Choice(list(STRATEGIES)),
        help="How clicks become preference pairs, see below.",
    ),
    common.setting(
        PairConfig, "above_only", help="clicked-over-unclicked: compare only with documents at higher ranks."
    ),
    common.setting(
        PairConfig,
        "last_by_time",
        help="last-clicked-above-skipped: the last event is the latest click, cart or purchase if times are known, "
        "instead of the lowest one in the list, which needs no times.",
    ),
    common.setting(
        PairConfig,
        "min_dwell_s",
        "--min-dwell",
        "min_dwell_s",
        metavar="SECONDS",
        help="Minimum dwell time. A click that is known to be shorter does not count, and its document is left out.",
    ),
    common.setting(
        PairConfig,
        "once_a_session",
        "--once-a-session/--every-time",
        help="Count a pair once per session, or every time it was shown.",
    ),
    common.setting(
        PairConfig,
        "user_cap",
        help="Maximum number of sessions of one person that count for a pair; 0: no cap, here and below.",
    ),
    common.setting(
        PairConfig, "document_cap", help="Maximum weight of one person for one document of a query, in pairs."
    ),
    common.setting(PairConfig, "person_cap", help="Maximum weight of one person over all queries, in pairs."),
    common.setting(
        PairConfig,
        "network_cap",
        help="Maximum weight of one network for one document of a query, in people; use 0 on an intranet.",
    ),
    common.setting(PairConfig, "min_users", help="Minimum number of people whose clicks express a pair."),
    click.option(
        "--propensities",
        "propensity_file",
        type=PATH,
        metavar="FILE",
        help="Result of `ssi clicks propensities`: a pair has the weight 1 / propensity of the better document's rank.",
    ),
    common.setting(PairConfig, "clip", help="Maximum of 1 / propensity for one person's pair."),
    click.option(
        "--robots/--no-robots",
        "judge_robots",
        default=True,
        help="Leave out robots, detected by user agent, speed, number of clicks and repeated clicks on one document.",
    ),
    click.option("--since", metavar="TIME", help="Use impressions from this time on (2026-06-01 or ISO 8601)."),
    click.option("--until", metavar="TIME", help="Use impressions before this time. Undated ones count as the oldest."),
    click.option(
        "--backend",
        type=click.Choice(list(BACKENDS)),
        default="duckdb",
        help="; ".join(f"{name}: {backend.summary}" for name, backend in BACKENDS.items()) + ".",
    ),
    click.option(
        "--threads", type=click.IntRange(1), help="Number of threads of duckdb or local spark.  [default: all cores]"
    ),
    click.option(
        "--memory",
        "memory_mb",
        type=click.IntRange(100),
        default=default_of(Resources, "memory_mb"),
        metavar="MB",
        help="Memory limit of duckdb. The process needs about 300 MB more.",
    ),
    click.option("--temporary", type=PATH, metavar="DIR", help="Folder for data that does not fit into memory."),
    click.option("--spark-master", metavar="URL", help="Spark cluster. Other settings come from SPARK_CONF_DIR."),
)


def pair_config(options: dict[str, Any]) -> PairConfig:
    """Return the configuration from the options. Raises `ConfigError` if an option has no effect with the strategy."""
    for name in ("above_only", "last_by_time"):
        given = click.get_current_context().get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
        if given and options[name] and name not in STRATEGIES[options["strategy"]].options:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} has no effect with --strategy {options['strategy']}: leave one of them out")
    values = common.stated(PairConfig, options)
    if not options["judge_robots"]:
        values["robots"] = None
    estimate = read_propensities(options["propensity_file"])
    return PairConfig(**values, propensities=estimate.by_rank if estimate else None)


def computing_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments ``backend``, ``resources``, ``since`` and ``until`` (milliseconds) for computing pairs."""
    since, until = (milliseconds(name, options[name]) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        start, end = options["since"], options["until"]
        raise ConfigError(f"--since {start} is not before --until {end}: the time range is empty")
    resources = Resources(options["threads"], options["memory_mb"], options["temporary"], options["spark_master"])
    return {"backend": options["backend"], "resources": resources, "since": since, "until": until}


def summary_lines(title: str, summaries: dict[str, str], width: int) -> str:
    """Return a section for the end of a help text: one line per name with its summary."""
    return f"\b\n{title}:\n" + "\n".join(f"  {name:<{width}}{text}" for name, text in summaries.items()) + "\n\n"


STRATEGY_LINES = summary_lines(
    "Strategies", {name: strategy.summary for name, strategy in STRATEGIES.items()}, max(map(len, STRATEGIES)) + 2
)
