"""Code shared by ``ssi revectorize`` and ``ssi sync``: options, the plan, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.common import FILE
from reranker.cli.documents import max_docs_option, model_of

if TYPE_CHECKING:
    from indexer.preflight import Plan
    from indexer.renewal import RenewOptions, RenewReport, Target


renewal_options = common.all_of(
    common.engine_options,
    common.model_option(),
    common.routes_option,
    common.write_store_option,
    click.option(
        "--max-docs-per-second",
        "rate",
        type=click.FloatRange(0, min_open=True),
        metavar="N",
        help="Maximum write rate, so that the engine keeps answering searches.",
    ),
    max_docs_option,
    click.option(
        "--rejects",
        "reject_path",
        type=FILE,
        help="File for documents that the engine refuses to update.  [default: INDEX.rejects.jsonl]",
    ),
)


def target_of(options: dict[str, Any]) -> tuple[Target, RenewOptions]:
    """Return the target (engine, index, model, routes, store) and the run options from the options of a command."""
    from indexer.bulk import BulkLimits
    from indexer.renewal import RenewOptions, Target

    engine, index = common.open_engine_of(options["engine_spec"], retry=True), options["index"]
    model = model_of(options["model_path"], engine, options.get("vectors_path"))
    store_path = common.store_path_of(options["store"], options["model_path"], engine, index)
    rejects = options["reject_path"] or Path(f"{index}.rejects.jsonl")
    renewal = RenewOptions(max_docs_per_s=options["rate"], reject_path=rejects, limits=BulkLimits(options["max_docs"]))
    return Target(engine, index, model, tuple(options["routes"]), store_path), renewal


def show_plan(plan: Plan) -> None:
    """Print what a run will write, with its cost, and the reasons against it."""
    console = common.err()
    console.print(
        f"{plan.index}: {plan.documents:,} documents in {', '.join(plan.concrete)}; each is rewritten once, and "
        f"about {plan.added_bytes / 1e6:,.1f} MB are added ({len(plan.fields)} fields)"
    )
    for note in plan.notes:
        console.print(f"  note: {note}", markup=False)
    for reason in plan.reasons:
        console.print(f"  refused: {reason}", markup=False, style="red")


def show_report(report: RenewReport, renewal: RenewOptions, as_json: bool, next_step: str = "") -> None:
    """Print the result of a run. An empty reject file is deleted."""
    if not report.rejected and renewal.reject_path is not None:
        renewal.reject_path.unlink(missing_ok=True)
    if as_json:
        common.print_json(report.to_json())
        return
    console = common.out()
    console.print(
        f"{report.documents:,} documents read, {report.written:,} written, {report.conflicts:,} changed meanwhile "
        f"and read again, {report.gone:,} deleted meanwhile, in {report.seconds:,.1f} s"
    )
    if report.stored_only:
        console.print(f"{report.stored_only:,} documents added to the local store only")
    if report.rejected:
        console.print(f"{report.rejected:,} documents rejected by the engine, see {renewal.reject_path}")
    if report.stale:
        console.print(f"{report.stale:,} documents are still stale: they change faster than their vectors are renewed")
    if next_step and report.stopped is None:
        console.print(f"next: {next_step}")
