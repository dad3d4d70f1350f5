"""``ssi index``, ``vectorize``, ``revectorize`` and ``sync``: documents, with their vectors, into an engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.common import FILE

if TYPE_CHECKING:
    from indexer.build import BuildReport
    from indexer.preflight import Plan
    from indexer.renewal import RenewOptions, RenewReport, Target
    from reranker.engines import Engine
    from reranker.errors import EngineError
    from reranker.models.ranking_model import RankingModel

_vectors_option = click.option(
    "--vectors", "vectors_path", type=FILE,
    help="Send the vectors of this file, written by `ssi vectorize`, in place of encoding. What it lacks, or has of "
         "another text, is encoded here, and counted.",
)  # fmt: skip
_rejects_option = click.option("--rejects", "reject_path", type=FILE,
                               help="Where refused lines go, with their reasons.  [default: FILE.rejects.jsonl in this "
                                    "folder]")  # fmt: skip


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
@_vectors_option
@common.write_store_option
@common.routes_option
@click.option("--rebuild", is_flag=True, help="Fill a new index and swap the alias at the end: no downtime.")
@click.option("--version-field", metavar="FIELD",
              help="Whole number or ISO time in this field is the document's version: older never overwrites newer.",
              )  # fmt: skip
@common.id_field_option
@_rejects_option
@click.option("--restart", is_flag=True, help="Forget an interrupted run and begin again.")
@common.max_docs_option
@click.option("--max-mb", type=click.FloatRange(0.01), default=8.0, help="Megabytes a request.")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up (resumably) after this time.")
@common.json_option
def index_command(file: Path, index: str, model_path: Path | None, as_json: bool, **options: Any) -> None:
    """Send the documents of FILE (JSON lines, plain or gzipped, or Parquet) to an index.

    The index is made if it is missing. With a model, each document gets the fields that reranking reads. Interrupted
    runs (also by kill -9) go on where they were; no document is lost or stored twice.
    """
    from indexer.build import BuildOptions, build_index
    from indexer.bulk import BulkLimits, RetryPolicy
    from indexer.load import LoadOptions

    engine = common.open_engine_of(options["engine_spec"], retry=True)
    model = None
    if model_path is not None:
        model = _model_of(model_path, engine, options["vectors_path"])
    elif options["store"] or options["vectors_path"]:
        name = "store" if options["store"] else "vectors"
        raise click.UsageError(f"--{name} keeps a model's vectors: give --model too")
    rejects = options["reject_path"] or Path(f"{file.name}.rejects.jsonl")
    load = LoadOptions(
        version_field=options["version_field"], id_field=options["id_field"], reject_path=rejects,
        restart=options["restart"],
        limits=BulkLimits(options["max_docs"], int(options["max_mb"] * 1_000_000)),
        policy=RetryPolicy(deadline_s=options["timeout"]),
    )  # fmt: skip
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
    _end_with(report.load.bulk.stopped, refused)


def _model_of(model_path: Path, engine: Engine, vectors_path: Path | None) -> RankingModel:
    """Return the model of a folder, with the vectors of ``--vectors``; at the end it is said how many these lacked."""
    from reranker.models.model_folder import load_model

    model = load_model(model_path, engine)
    if vectors_path is None:
        return model
    from indexer.vectorizing import with_vectors

    model, vectors = with_vectors(model, vectors_path)

    def say_missing() -> None:
        if vectors.missing:
            common.warn(f"{vectors.missing:,} documents had no vector of their text in {vectors_path}: encoded here")

    click.get_current_context().call_on_close(say_missing)
    return model


@click.command("vectorize", epilog="""\b
Examples:
  ssi vectorize --docs docs.jsonl --model model/ --out vectors.parquet
  ssi vectorize --docs /data/docs.parquet --model /data/model/ --out /data/vectors.parquet --backend spark
  ssi index docs.jsonl --engine tantivy:./index --index docs --model model/ --vectors vectors.parquet
""")  # fmt: skip
@click.option("--docs", "file", required=True, type=FILE, help="Documents: JSON lines (also gz) or Parquet.")
@common.model_option()
@click.option("--out", "target", required=True, type=FILE, help="File of vectors to write (Parquet).")
@click.option("--backend", type=click.Choice(["local", "spark"]), default="local",
              help="local: this process; spark: a local Spark or a cluster, whose machines see documents, model and "
                   "target under the same paths.")  # fmt: skip
@click.option(
    "--spark-master", metavar="URL", help="Cluster of spark; else SPARK_REMOTE, or all cores of this machine."
)
@common.id_field_option
@_rejects_option
@common.json_option
def vectorize_command(file: Path, target: Path, as_json: bool, **options: Any) -> None:
    """Compute the vectors of documents ahead of `ssi index` or `ssi revectorize`, which take them by --vectors.

    The rows are the same from both backends, and what the index gets is the same with and without them. Gzipped files
    and row groups of Parquet are not split.
    """
    from indexer.vectorizing import Job, vectorize
    from reranker.formats import RejectLog

    rejects = options["reject_path"] or Path(f"{file.name}.rejects.jsonl")
    job = Job(file, options["model_path"], target, options["id_field"], options["spark_master"])
    with common.progress(f"vectorize {file.name}") as update, RejectLog(rejects) as log:
        n_vectors = vectorize(job, options["backend"], rejects=log, progress=update)
    if not log.count:
        rejects.unlink(missing_ok=True)
    if as_json:
        common.print_json({"out": str(target), "documents": n_vectors, "rejects_by_kind": dict(log.kinds)})
    else:
        common.out().print(f"{n_vectors:,} documents, written to {target}", markup=False)
        if log.count:
            common.out().print(log.summary(), markup=False)
    _end_with(None, log.count)


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


_renewal_options = common.all_of(
    common.engine_options,
    common.model_option(),
    common.routes_option,
    common.write_store_option,
    click.option("--max-docs-per-second", "rate", type=click.FloatRange(0, min_open=True), metavar="N",
                 help="Speed limit, so that the engine keeps answering searches."),
    common.max_docs_option,
    click.option("--rejects", "reject_path", type=FILE,
                 help="Where documents go that the engine refuses to update.  [default: INDEX.rejects.jsonl]"),
)  # fmt: skip


@click.command("revectorize", epilog="""\b
Examples:
  ssi revectorize --engine elasticsearch:http://localhost:9200 --index shop --model model/ --dry-run
  ssi revectorize --engine opensearch:http://localhost:9200 --index shop --model model/ --max-docs-per-second 500
  ssi promote VERSION --engine opensearch:http://localhost:9200 --index shop
""")  # fmt: skip
@_renewal_options
@_vectors_option
@click.option("--dry-run", is_flag=True, help="Print the plan and what speaks against it; write nothing.")
@common.json_option
def revectorize_command(dry_run: bool, as_json: bool, **options: Any) -> None:
    """Write a version beside the live one, into an index that may be somebody else's.

    First looks for whatever makes that unsafe, and refuses with the reasons. Then writes only its own fields
    (ssi_...), each over exactly the document it was made for, while others go on writing. Run it again after an
    interruption: what is current is skipped. The new version is not live before `ssi promote`.
    """
    from indexer.preflight import preflight
    from indexer.renewal import sync

    target, renewal = _target_of(options)
    plan = preflight(target.engine, target.index, target.version())
    _show_plan(plan)
    if dry_run:
        if as_json:
            common.print_json(asdict(plan))
        plan.check()
        return
    with common.progress(f"revectorize {target.index}") as update:
        report = sync(target, renewal, progress=update, notice=common.warn)
    next_step = f"ssi promote {target.model.model_id[:12]} --engine {target.engine.spec} --index {target.index}"
    _show_report(report, renewal, as_json, next_step)
    _end_with(report.stopped, report.rejected)


@click.command("sync", epilog="""\b
Examples:
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/ --updated-field modified
  ssi sync --engine opensearch:http://localhost:9200 --index shop --model model/ --follow --interval 30
""")  # fmt: skip
@_renewal_options
@click.option("--updated-field", metavar="FIELD",
              help="Date field set on every change: read only what changed since the last sync.")  # fmt: skip
@click.option("--verify", is_flag=True, help="Read every text, also with --updated-field.")
@click.option("--follow", is_flag=True, help="Go on for ever; rounds with nothing to do are not told.")
@click.option("--interval", type=click.FloatRange(0), default=60.0, metavar="SECONDS",
              help="Pause between two rounds of --follow.")  # fmt: skip
@common.json_option
def sync_command(
    updated_field: str | None, verify: bool, follow: bool, interval: float, as_json: bool, **options: Any
) -> None:
    """Renew the vectors of documents that are new or whose text changed.

    Without --updated-field every text is read and compared with the hash stored beside its vector.
    """
    from indexer import renewal as renewing

    target, renewal = _target_of(options)

    def once() -> RenewReport:
        with common.progress(f"sync {target.index}") as update:
            return renewing.sync(target, renewal, updated_field=updated_field, verify=verify, progress=update,
                                 notice=common.warn)  # fmt: skip

    if not follow:
        report = once()
        _show_report(report, renewal, as_json)
        _end_with(report.stopped, report.rejected)
        return
    for number, report in enumerate(renewing.follow(once, interval)):
        if report.stopped is not None:
            common.warn(f"{report.stopped}; next try in {interval:g} s")
        elif number == 0 or not report.idle:
            _show_report(report, renewal, as_json)


def _target_of(options: dict[str, Any]) -> tuple[Target, RenewOptions]:
    from indexer.bulk import BulkLimits
    from indexer.renewal import RenewOptions, Target

    engine, index = common.open_engine_of(options["engine_spec"], retry=True), options["index"]
    model = _model_of(options["model_path"], engine, options.get("vectors_path"))
    store_path = common.store_path_of(options["store"], options["model_path"], engine, index)
    rejects = options["reject_path"] or Path(f"{index}.rejects.jsonl")
    renewal = RenewOptions(max_docs_per_s=options["rate"], reject_path=rejects, limits=BulkLimits(options["max_docs"]))
    return Target(engine, index, model, tuple(options["routes"]), store_path), renewal


def _show_plan(plan: Plan) -> None:
    console = common.err()
    console.print(
        f"{plan.index}: {plan.documents:,} documents in {', '.join(plan.concrete)}; each is rewritten once, "
        f"about {plan.added_bytes / 1e6:,.1f} MB are added ({len(plan.fields)} fields)"
    )
    for note in plan.notes:
        console.print(f"  note: {note}", markup=False)
    for reason in plan.reasons:
        console.print(f"  refused: {reason}", markup=False, style="red")


def _show_report(report: RenewReport, renewal: RenewOptions, as_json: bool, next_step: str = "") -> None:
    """Print what was done; a reject file without entries goes."""
    if not report.rejected and renewal.reject_path is not None:
        renewal.reject_path.unlink(missing_ok=True)
    if as_json:
        common.print_json(report.to_json())
        return
    console = common.out()
    console.print(
        f"{report.documents:,} documents read, {report.written:,} written, {report.conflicts:,} changed meanwhile "
        f"and read again, {report.gone:,} deleted meanwhile, {report.seconds:,.1f} s"
    )
    if report.stored_only:
        console.print(f"{report.stored_only:,} documents added to the local store alone")
    if report.rejected:
        console.print(f"{report.rejected:,} documents refused by the engine, see {renewal.reject_path}")
    if report.stale:
        console.print(f"{report.stale:,} documents are stale: they change faster than they are renewed")
    if next_step and report.stopped is None:
        console.print(f"next: {next_step}")


def _end_with(stopped: EngineError | None, n_refused: int) -> None:
    """Raise what stopped the writing; set the exit status where documents were refused."""
    if stopped is not None:
        raise stopped
    if n_refused:
        click.get_current_context().exit(common.EXIT_REJECTS)
