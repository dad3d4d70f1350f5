"""``ssi index``: send documents with their vectors to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from indexer.bulk import BulkLimits
from reranker.cli import common
from reranker.cli.common import FILE
from reranker.cli.documents import end_with, max_docs_option, model_of, rejects_option, vectors_option
from reranker.cli.releases import calibration_note
from reranker.config import default_of
from reranker.releases import read_control

if TYPE_CHECKING:
    from indexer.build import BuildReport


@click.command(
    "index",
    epilog="""\b
Examples:
  ssi index docs.jsonl --engine tantivy:./index --index docs
  ssi index docs.jsonl --engine elasticsearch:http://localhost:9200 --index docs --model model/
  ssi index docs.jsonl.gz --engine opensearch:http://localhost:9200 --index docs --model model/ --rebuild
  ssi index docs.parquet --engine tantivy:./index --index docs --model model/ --write-store default \\
            --version-field updated
""",
)
@click.argument("file", type=FILE)
@common.engine_options
@common.model_option(required=False)
@vectors_option
@common.write_store_option
@common.routes_option
@click.option("--rebuild", is_flag=True, help="Fill a new index and switch the alias at the end, without downtime.")
@click.option(
    "--version-field",
    metavar="FIELD",
    help="Field with the version of a document (integer or ISO time). An older version never overwrites a newer one.",
)
@common.id_field_option
@rejects_option
@click.option("--restart", is_flag=True, help="Discard the state of an interrupted run and start from the beginning.")
@max_docs_option
@click.option(
    "--max-mb",
    type=click.FloatRange(0.01),
    default=default_of(BulkLimits, "max_bytes") / 1e6,
    help="Maximum megabytes per request.",
)
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time; the run can be resumed."
)
@common.json_option
def index_command(file: Path, index: str, model_path: Path | None, as_json: bool, **options: Any) -> None:
    """Send the documents of FILE (JSON lines, plain or gzipped, or Parquet) to an index.

    The index is created if it does not exist. With a model, each document gets the fields that reranking reads. If a
    run is interrupted (even by kill -9), run the command again to continue. No document is lost or stored twice.
    """
    from indexer.build import BuildOptions, build_index
    from indexer.bulk import RetryPolicy
    from indexer.load import LoadOptions

    engine = common.open_engine_of(options["engine_spec"], retry=True)
    model = None
    if model_path is not None:
        model = model_of(model_path, engine, options["vectors_path"])
    elif options["store"] or options["vectors_path"]:
        name = "write-store" if options["store"] else "vectors"
        raise click.UsageError(f"--{name} stores the vectors of a model: give --model too")
    rejects = options["reject_path"] or Path(f"{file.name}.rejects.jsonl")
    load = LoadOptions(
        version_field=options["version_field"],
        id_field=options["id_field"],
        reject_path=rejects,
        restart=options["restart"],
        limits=BulkLimits(options["max_docs"], int(options["max_mb"] * 1_000_000)),
        policy=RetryPolicy(deadline_s=options["timeout"]),
    )
    store_path = common.store_path_of(options["store"], model_path, engine, index)
    build = BuildOptions(options["routes"], store_path, options["rebuild"], load)
    with common.progress(f"indexing {file.name}") as update:
        report = build_index(engine, index, file, model, build, progress=update, notice=common.warn)
    refused = report.load.bulk.rejected + report.load.unreadable
    if not refused:
        rejects.unlink(missing_ok=True)
    if as_json:
        common.print_json(report.to_json())
    else:
        _show(report, rejects, refused, model.model_id if model else "")
    if report.live and report.retired and (note := calibration_note(engine, read_control(engine, index), model_path)):
        common.warn(note)
    account = report.load.account
    (common.warn if account.left_out else common.say)(account.sentence)
    end_with(report.load.bulk.stopped, refused)


def _show(report: BuildReport, rejects: Path, refused: int, model_id: str) -> None:
    load = report.load
    console = common.out()
    console.print(
        f"{load.bulk.indexed:,} documents in {report.concrete} (as {report.index}), "
        f"{load.documents_per_s:,.0f} documents/s"
    )
    if load.resumed_at:
        console.print(f"continued an interrupted run at line {load.resumed_at + 1:,}")
    if load.bulk.superseded:
        console.print(f"{load.bulk.superseded:,} documents were older than the stored version and not written")
    if refused:
        console.print(f"{refused:,} lines rejected, see {rejects}")
    if report.retired:
        console.print(f"no longer behind the alias: {', '.join(report.retired)}; `ssi gc` deletes them")
    if report.live:
        console.print("the model is live for this index")
    elif model_id and load.bulk.stopped is None:
        console.print(f"the model is registered, not live; next: ssi promote {model_id[:12]}")
