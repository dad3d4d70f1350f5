"""``ssi index``: documents, with their vectors, into an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reranker.cli import common
from reranker.cli.common import FILE

if TYPE_CHECKING:
    from indexer.builds import BuildReport


@click.command("index", epilog="""\b
Examples:
  ssi index docs.jsonl --engine tantivy:./index --index docs
  ssi index docs.jsonl --engine elasticsearch:http://localhost:9200 --index docs --model model/
  ssi index docs.jsonl.gz --engine opensearch:http://localhost:9200 --index docs --model model/ --rebuild
  ssi index docs.parquet --engine tantivy:./index --index docs --model model/ --store default --version-field updated
""")  # fmt: skip
@click.argument("file", type=FILE)
@common.engine_options
@common.model_option(required=False)
@common.write_store_option
@common.routes_option
@click.option("--rebuild", is_flag=True, help="Fill a new index and swap the alias at the end: no downtime.")
@click.option("--version-field", metavar="FIELD",
              help="Whole number or ISO time in this field is the document's version: older never overwrites newer.",
              )  # fmt: skip
@click.option("--rejects", "reject_path", type=FILE,
              help="Where refused lines go, with their reasons.  [default: FILE.rejects.jsonl in this "
                   "folder]")  # fmt: skip
@click.option("--restart", is_flag=True, help="Forget an interrupted run and begin again.")
@common.max_docs_option
@click.option("--max-mb", type=click.FloatRange(0.01), default=8.0, help="Megabytes a request.")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up (resumably) after this time.")
@common.json_option
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    file: Path, engine_spec: str, index: str, model_path: Path | None, store: str | None,
    routes: tuple[str, ...], rebuild: bool, version_field: str | None, reject_path: Path | None, restart: bool,
    max_docs: int, max_mb: float, timeout: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Send the documents of FILE (JSON lines, plain or gzipped, or Parquet) to an index.

    The index is made if it is missing. With a model, each document gets the fields that reranking reads. Interrupted
    runs (also by kill -9) go on where they were; no document is lost or stored twice.
    """
    from indexer.builds import BuildOptions, build_index
    from indexer.bulk import BulkLimits, RetryPolicy
    from indexer.documents import LoadOptions

    engine = common.open_engine_of(engine_spec)
    model = None
    if model_path is not None:
        from reranker.artifacts import load_model

        model = load_model(model_path, engine)
    elif store:
        raise click.UsageError("--store keeps a model's vectors: give --model too")
    rejects = reject_path or Path(f"{file.name}.rejects.jsonl")
    load = LoadOptions(
        version_field=version_field, reject_path=rejects, restart=restart,
        limits=BulkLimits(max_docs, int(max_mb * 1_000_000)), policy=RetryPolicy(deadline_s=timeout),
    )  # fmt: skip
    store_path = common.store_path_of(store, model_path, engine, index)
    options = BuildOptions(routes, store_path, rebuild, load)
    with common.progress(f"indexing {file.name}") as update:
        report = build_index(engine, index, file, model, options, progress=update, notice=common.warn)
    refused = report.load.bulk.rejected + report.load.unreadable
    if not refused:
        rejects.unlink(missing_ok=True)
    if as_json:
        common.print_json(report.to_json())
    else:
        _show(report, rejects, refused, model.model_id if model else "")
    if report.load.bulk.stopped is not None:
        raise report.load.bulk.stopped
    if refused:
        click.get_current_context().exit(common.EXIT_REJECTS)


def _show(report: BuildReport, rejects: Path, refused: int, model_id: str) -> None:
    load = report.load
    console = common.out()
    console.print(
        f"{load.bulk.indexed:,} documents in {report.concrete} (as {report.index}), "
        f"{load.documents_per_s:,.0f} documents/s"
    )
    if load.resumed_at:
        console.print(f"went on at line {load.resumed_at + 1:,} of an interrupted run")
    if load.bulk.superseded:
        console.print(f"{load.bulk.superseded:,} were older than the stored version and left alone")
    if refused:
        console.print(f"{refused:,} lines refused, see {rejects}")
    if report.retired:
        console.print(f"taken from the alias: {', '.join(report.retired)}; `ssi gc` deletes them")
    if report.live:
        console.print("the model is live for this index")
    elif model_id and load.bulk.stopped is None:
        console.print(f"the model is registered, not live; next: ssi promote {model_id[:12]}")
