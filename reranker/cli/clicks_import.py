"""``ssi clicks import``: raw logs into a click log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reranker.cli.click_options import format_option, key_option, log_option, rejects_option
from reranker.cli.common import EXIT_REJECTS, json_option, open_engine_of, out, print_json, progress
from reranker.errors import ConfigError

if TYPE_CHECKING:
    from reranker.clicks.importing import ImportReport
    from reranker.clicks.log import ClickLog
    from reranker.formats import RejectLog


@click.command("import", epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson.gz --log clicks/
  ssi clicks import clicks.jsonl --log clicks/ --rejects bad.jsonl
  ssi clicks import --engine opensearch:http://localhost:9200 --since 2026-11-01 --log clicks/
""")  # fmt: skip
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path), metavar="[LOG...]")
@log_option
@format_option
@click.option("--engine", "engine_spec", metavar="SPEC",
              help="Read the indexes of UBI from elasticsearch:URL or opensearch:URL instead of files.")  # fmt: skip
@click.option(
    "--queries-index", default="ubi_queries", show_default=True, metavar="NAME", help="UBI's index of queries."
)
@click.option("--events-index", default="ubi_events", show_default=True, metavar="NAME", help="UBI's index of events.")
@click.option(
    "--since",
    metavar="TIME",
    help="With --engine: read from this time on (2026-11-20 or ISO 8601); a log goes on where it ended.",
)
@click.option("--until", metavar="TIME", help="With --engine: read up to this time.")
@key_option
@rejects_option
@json_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    context: click.Context,
    logs: tuple[Path, ...],
    log_folder: Path,
    log_format: str,
    engine_spec: str | None,
    queries_index: str,
    events_index: str,
    since: str | None,
    until: str | None,
    key_file: Path | None,
    rejects: Path | None,
    as_json: bool,
) -> None:
    """Bring log files, or the UBI indexes of an engine, into a click log.

    Reads OpenSearch UBI (JSON lines, bulk files, search answers, Parquet), the project's own JSON lines, and Metarank
    events. Users, sessions and networks become keyed hashes; e-mail addresses, telephone and card numbers in queries
    become marks. Each record is taken once: run it again after a kill, or when a file has grown.
    """
    from reranker.clicks.importing import import_files
    from reranker.clicks.log import ClickLog
    from reranker.formats import RejectLog

    if bool(logs) == bool(engine_spec):
        raise ConfigError("give either LOG... files or --engine, which says where the UBI indexes are")
    if (since or until) and not engine_spec:
        raise ConfigError("--since and --until choose rows of an engine's indexes: give --engine, or leave them out")
    log = ClickLog(log_folder, create=True)
    privacy = log.privacy(key_file)
    with RejectLog(rejects) as sink, progress("import", unit="records") as update:
        if engine_spec:
            from reranker.clicks.importing import LiveSource, import_live

            source = LiveSource(queries_index, events_index, since, until)
            engine = open_engine_of(context, engine_spec)
            report = import_live(log, engine, source, privacy, rejects=sink, progress=update)
        else:
            report = import_files(log, logs, privacy, format=log_format, rejects=sink, progress=update)
    _show(report, log, sink, as_json)
    if sink.count:
        context.exit(EXIT_REJECTS)


def _show(report: ImportReport, log: ClickLog, sink: RejectLog, as_json: bool) -> None:
    if as_json:
        print_json({**report.to_json(), "log": log.counts()})
        return
    console = out()
    console.print("imported " + (", ".join(f"{count:,} {name}" for name, count in report.rows.items()) or "nothing"))
    console.print("holds    " + ", ".join(f"{count:,} {name}" for name, count in log.counts().items()))
    if report.known:
        console.print(f"known    {', '.join(report.known)}: already in the log")
    if report.resumed:
        console.print(f"resumed  {', '.join(report.resumed)}")
    if sink.count:
        console.print(f"rejected {sink.summary()}")
