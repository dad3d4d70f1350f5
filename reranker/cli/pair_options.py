"""Options of the commands that read click logs and turn them into preference pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.common import PATH
from reranker.clicks.pairs import STRATEGIES, Computing, PairConfig, Resources
from reranker.config import milliseconds
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


def read_propensities(path: Path | None) -> Propensities | None:
    """Read the propensities that `ssi clicks propensities` wrote; None if ``path`` is None."""
    from reranker.clicks.propensities import Propensities

    if path is None:
        return None
    try:
        return Propensities.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}", path=str(path)) from error


log_arguments = click.argument("logs", nargs=-1, required=True, type=PATH, metavar="LOG...")


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
def opened_log(logs: Sequence[Path]) -> Iterator[tuple[ClickLog, RejectLog]]:
    """Open the click log of ``LOG...``, with the lines rejected in it, which are summarised on standard error."""
    from reranker.clicks.importing import open_logs
    from reranker.formats import RejectLog

    with RejectLog() as sink:
        log = open_logs(logs, rejects=sink)
        if sink.count:
            common.warn(sink.summary())
        yield log, sink


impression_options = common.all_of(
    click.option(
        "--propensities",
        "propensity_file",
        type=PATH,
        metavar="FILE",
        help="Result of `ssi clicks propensities`: a click counts as 1 / propensity of its rank.",
    ),
    click.option("--since", metavar="TIME", help="Use impressions from this time on (2026-06-01 or ISO 8601)."),
    click.option("--until", metavar="TIME", help="Use impressions before this time. Undated ones count as the oldest."),
)


pair_options = common.all_of(
    common.setting(
        PairConfig,
        "strategy",
        type=click.Choice(list(STRATEGIES)),
        help="How clicks become preference pairs, see below.",
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
        "network_cap",
        help="Maximum weight of one network for one document of a query, in people; 0, for an intranet: no maximum.",
    ),
    common.setting(PairConfig, "min_users", help="Minimum number of people whose clicks express a pair."),
    impression_options,
    common.setting(
        Resources,
        "memory_mb",
        "--memory",
        "memory_mb",
        metavar="MB",
        help="Memory limit for data of the log. The process needs about 300 MB more. Data that does not fit is written "
        "to the folder TMPDIR.",
    ),
)


def pair_config(options: dict[str, Any]) -> PairConfig:
    """Return the configuration from the options."""
    estimate = read_propensities(options["propensity_file"])
    return PairConfig(**common.stated(PairConfig, options), propensities=estimate.by_rank if estimate else None)


def time_range(options: dict[str, Any]) -> Computing:
    """Return the arguments ``since`` and ``until`` (milliseconds) for reading impressions."""
    since, until = (milliseconds(name, options[name]) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        start, end = options["since"], options["until"]
        raise ConfigError(f"--since {start} is not before --until {end}: the time range is empty")
    return {"since": since, "until": until}


def summary_lines(title: str, summaries: dict[str, str], width: int) -> str:
    """Return a section for the end of a help text: one line per name with its summary."""
    return f"\b\n{title}:\n" + "\n".join(f"  {name:<{width}}{text}" for name, text in summaries.items()) + "\n\n"


STRATEGY_LINES = summary_lines("Strategies", STRATEGIES, max(map(len, STRATEGIES)) + 2)
