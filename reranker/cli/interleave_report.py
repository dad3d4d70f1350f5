"""``ssi interleave report``: the verdict of the clicks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from reranker.cli.common import json_option, open_engine_of, out, print_json
from reranker.errors import ConfigError, InputError

if TYPE_CHECKING:
    from reranker.engines.base import Engine
    from reranker.service.interleave import Verdict


@click.command("report", epilog="""\b
Examples:
  ssi interleave report impressions.ndjson
  ssi interleave report --engine opensearch:http://localhost:9200
  ssi interleave report impressions.ndjson --json
""")  # fmt: skip
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path), metavar="[LOG...]")
@click.option("--engine", "engine_spec", metavar="SPEC", help="Read the engine's UBI indexes instead of files.")
@click.option("--queries-index", default="ubi_queries", show_default=True, metavar="NAME", help="Index of queries.")
@click.option("--events-index", default="ubi_events", show_default=True, metavar="NAME", help="Index of events.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the resampling.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    engine_spec: str | None,
    queries_index: str,
    events_index: str,
    seed: int,
    as_json: bool,
) -> None:
    """Say which of two interleaved versions visitors prefer, by what they clicked.

    LOG... are files that `ssi serve --sink FILE` wrote, or UBI's rows as JSON lines. A click counts for the version
    that put the document into the list. Sessions are counted, not clicks: the exact sign test gives p, resampling of
    sessions the interval.
    """
    import numpy as np

    from reranker.service.interleave import clicks_of, team_lists, verdicts

    if bool(logs) == (engine_spec is not None):
        raise ConfigError("give log files, or --engine to read its UBI indexes; one of the two")
    if engine_spec is not None:
        engine = open_engine_of(ctx, engine_spec)
        lists, clicks = team_lists(_stored(engine, queries_index)), clicks_of(_stored(engine, events_index))
    else:
        lists, clicks = team_lists(_lines(logs)), clicks_of(_lines(logs))
    if not lists:
        raise InputError("no interleaved search is logged there: start the service with --interleave and --sink")
    found = verdicts(lists, clicks, np.random.default_rng(seed))
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        _show(found)


def _lines(paths: tuple[Path, ...]) -> Iterator[Mapping[str, Any]]:
    from reranker.formats import RejectLog, parse_json, read_records

    for path in paths:
        with RejectLog(None) as rejects:
            yield from read_records(path, lambda line: parse_json(line.data), rejects=rejects)


def _stored(engine: Engine, index: str) -> Iterator[Mapping[str, Any]]:
    engine.refresh(index)
    for batch in engine.scan(index):
        for document in batch:
            yield document.source


def _show(found: list[Verdict]) -> None:
    console = out()
    for one in found:
        table = Table("", "live", "challenger", box=None, pad_edge=False)
        table.add_row("version", one.live[:12], one.challenger[:12])
        table.add_row("sessions won", str(one.wins_live), str(one.wins_challenger))
        table.add_row("clicks", str(one.clicks_live), str(one.clicks_challenger))
        console.print(table)
        console.print(f"{one.lists:,} lists, {one.clicked_lists:,} with a click. {one.sentence()}", soft_wrap=True)
