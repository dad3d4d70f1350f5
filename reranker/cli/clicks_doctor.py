"""``ssi clicks doctor``: whether it would be sound to learn from a log."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli.click_options import log_arguments, opened
from reranker.cli.common import json_option, open_engine_of, out, print_json
from reranker.errors import ConfigError, GateRefused

_COLOURS = {"ok": "green", "warning": "yellow", "unsound": "red"}


@click.command("doctor", epilog="""\b
Examples:
  ssi clicks doctor ubi_queries.ndjson ubi_events.ndjson
  ssi clicks doctor clicks/ --engine opensearch:http://localhost:9200 --index products --picture clicks.html
""")  # fmt: skip
@log_arguments
@click.option("--engine", "engine_spec", metavar="SPEC",
              help="Look shown ids up here: tantivy:PATH, elasticsearch:URL or opensearch:URL.")  # fmt: skip
@click.option("--index", metavar="NAME", help="Index (or alias) that was searched; belongs to --engine.")
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the click rate by rank as .png or .svg, or all findings as one page, .html.")  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    logs: tuple[Path, ...],
    log_format: str,
    rejects: Path | None,
    engine_spec: str | None,
    index: str | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Examine a click log: ids, positions, missing rows, robots, coverage, click rate by rank.

    Every finding is ok, a warning, or unsound: what is learned would be wrong, or nothing. Each says what to do about
    it. The exit status is 0 unless something is unsound, then 7.
    """
    from reranker.clicks.doctor import bars, examine, write_picture

    if (engine_spec is None) != (index is None):
        raise ConfigError("--engine and --index belong together: give both, or neither")
    with opened(logs, log_format, rejects) as log:
        engine = open_engine_of(ctx, engine_spec) if engine_spec else None
        diagnosis = examine(log, engine, index)
    if picture is not None:
        write_picture(diagnosis, picture)
    if as_json:
        print_json(diagnosis.to_json())
    else:
        console = out()
        for one in diagnosis.findings:
            console.print(f"[{_COLOURS[one.severity]}]{one.severity:<8}[/] {one.code:<16} ", end="")
            console.print(one.sentence, markup=False)
        console.print("\nclick rate by rank, robots left out")
        for line in bars(diagnosis.rates):
            console.print(line, markup=False)
    if diagnosis.unsound:
        raise GateRefused(
            f"the log is unsound to learn from: {len(diagnosis.unsound)} of {len(diagnosis.findings)} findings say why",
            unsound=diagnosis.unsound,
        )
