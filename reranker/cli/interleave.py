"""``ssi interleave``: compare two model versions by clicks on interleaved result lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.common import PATH
from reranker.engines import Engine
from reranker.engines.protocol import refresh_if_allowed
from reranker.errors import ConfigError, InputError

if TYPE_CHECKING:
    from reranker.formats import RejectLog


@click.group(
    "interleave",
    cls=common.CommandGroup,
    variables="SSI_INTERLEAVE",
    epilog="""\b
Examples:
  ssi serve --engine opensearch:http://localhost:9200 --index shop --models models/ --interleave 3f2a77c0 --sink engine
  ssi interleave report --engine opensearch:http://localhost:9200
""",
)
def interleave() -> None:
    """Compare two model versions by clicks on lists that mix the results of both (team-draft interleaving).

    `ssi serve --interleave VERSION` serves such lists.
    """


@interleave.command(
    "report",
    short_help="Report which of two interleaved versions visitors prefer.",
    epilog="""\b
Examples:
  ssi interleave report impressions.ndjson
  ssi interleave report --engine opensearch:http://localhost:9200
  ssi interleave report impressions.ndjson --json
""",
)
@click.argument("logs", nargs=-1, type=PATH, metavar="[LOG...]")
@click.option("--engine", "engine_spec", metavar="SPEC", help="Read the engine's UBI indexes instead of files.")
@click.option("--queries-index", default="ubi_queries", metavar="NAME", help="Index of queries.")
@click.option("--events-index", default="ubi_events", metavar="NAME", help="Index of events.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the bootstrap.")
@common.json_option
def interleaving_report(
    logs: tuple[Path, ...], engine_spec: str | None, seed: int, as_json: bool, **options: str
) -> None:
    """Report which of two interleaved versions visitors prefer, judged by their clicks.

    LOG... are files that `ssi serve --sink FILE` wrote, or rows of UBI as JSON lines. A click is credited to the
    version that contributed the document to the list. Each session counts once. The p-value is that of the exact sign
    test over sessions, and the confidence interval comes from a bootstrap over sessions.
    """
    import numpy as np

    from reranker.formats import RejectLog
    from reranker.service.modes import clicks_of, team_lists, verdicts

    if bool(logs) == (engine_spec is not None):
        raise ConfigError("give either log files, or --engine to read its UBI indexes")
    rejects = RejectLog()
    if engine_spec is not None:
        engine = common.open_engine_of(engine_spec)
        queries, events = (_stored_rows(engine, options[name]) for name in ("queries_index", "events_index"))
        lists, clicks = team_lists(queries), clicks_of(events)
    else:
        lists = team_lists(_rows_of_files(logs, rejects))
        clicks = clicks_of(_rows_of_files(logs, RejectLog()))  # rejected lines were counted by the first pass
    if not lists:
        raise InputError("the log contains no interleaved search: start `ssi serve` with --interleave and --sink")
    results = verdicts(lists, clicks, np.random.default_rng(seed))
    if as_json:
        common.print_json([verdict.to_json() for verdict in results])
        common.end_with_accounts(rejects.account("rows"))
        return
    console = common.out()
    for verdict in results:
        table = common.plain_table("", "live", "challenger")
        table.add_row("version", verdict.live[:12], verdict.challenger[:12])
        table.add_row("sessions won", str(verdict.wins_live), str(verdict.wins_challenger))
        table.add_row("clicks", str(verdict.clicks_live), str(verdict.clicks_challenger))
        console.print(table)
        counts = f"{verdict.lists:,} lists, {verdict.clicked_lists:,} with a click."
        console.print(f"{counts} {verdict.sentence()}", soft_wrap=True)
    common.end_with_accounts(rejects.account("rows"))


def _rows_of_files(paths: tuple[Path, ...], rejects: RejectLog) -> Iterator[Mapping[str, Any]]:
    from reranker.formats import parse_json, read_records

    for path in paths:
        yield from read_records(path, lambda line: parse_json(line.data), rejects=rejects)


def _stored_rows(engine: Engine, index: str) -> Iterator[Mapping[str, Any]]:
    refresh_if_allowed(engine, index)
    for batch in engine.scan(index):
        for document in batch:
            yield document.source
