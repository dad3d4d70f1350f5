"""What ``ssi revectorize`` and ``ssi sync`` share: the target, the options, and how an outcome is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reranker.cli.common import EXIT_REJECTS, engine_options, err, model_option, open_engine_of, out, print_json
from reranker.cli.stores import store_path_of

if TYPE_CHECKING:
    from indexer.preflight import Plan
    from indexer.renewal import Outcome, Target
    from indexer.revectorize import RenewOptions

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    engine_options,
    model_option(),
    click.option("--routes", type=click.Choice(["beside", "fetch", "inside", "first-stage"]), multiple=True,
                 default=("fetch",), show_default=True,
                 help="Fields stored for the model; may be given several times."),
    click.option("--store", metavar="DIR",
                 help="Also write the local store of route `beside`: a folder, or `default`."),
    click.option("--max-docs-per-second", "rate", type=click.FloatRange(0, min_open=True), metavar="N",
                 help="Speed limit, so that the engine keeps answering searches."),
    click.option("--max-docs", type=click.IntRange(1), default=500, show_default=True, help="Documents a request."),
    click.option("--rejects", "reject_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Where documents go that the engine refuses to update.  [default: INDEX.rejects.jsonl]"),
)  # fmt: skip


def renewal_options(function: F) -> F:
    """Add the options of both commands."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def target_of(context: click.Context, options: dict[str, Any]) -> Target:
    """Return the target that the options name."""
    from indexer.renewal import Target
    from reranker.artifacts import load_model

    engine = open_engine_of(context, options["engine_spec"])
    model = load_model(options["model_path"], engine)
    store_path = store_path_of(options["store"], options["model_path"], engine, options["index"])
    return Target(engine, options["index"], model, tuple(options["routes"]), store_path)


def renew_options_of(options: dict[str, Any]) -> RenewOptions:
    """Return how the options want documents renewed."""
    from indexer.bulk import BulkLimits
    from indexer.revectorize import RenewOptions

    return RenewOptions(
        max_docs_per_s=options["rate"], reject_path=reject_path_of(options), limits=BulkLimits(options["max_docs"])
    )


def reject_path_of(options: dict[str, Any]) -> Path:
    """Return the reject file."""
    return options["reject_path"] or Path(f"{options['index']}.rejects.jsonl")


def show_plan(plan: Plan) -> None:
    """Print a plan on standard error: plan and cost, before anything is written."""
    console = err()
    console.print(
        f"{plan.index}: {plan.documents:,} documents in {', '.join(plan.concrete)}; each is rewritten once, "
        f"about {plan.added_bytes / 1e6:,.1f} MB are added ({len(plan.fields)} fields)"
    )
    for note in plan.notes:
        console.print(f"  note: {note}", markup=False)
    for reason in plan.reasons:
        console.print(f"  refused: {reason}", markup=False, style="red")


def end_with(context: click.Context, outcome: Outcome, options: dict[str, Any], as_json: bool, then: str) -> None:
    """Print an outcome; raise what stopped it; set the exit status where documents were refused."""
    show_outcome(outcome, options, as_json, then)
    if outcome.error is not None:
        raise outcome.error
    if outcome.report.rejected:
        context.exit(EXIT_REJECTS)


def show_outcome(outcome: Outcome, options: dict[str, Any], as_json: bool, then: str = "") -> None:
    """Print an outcome; a reject file without entries goes."""
    report = outcome.report
    rejects = reject_path_of(options)
    if not report.rejected:
        rejects.unlink(missing_ok=True)
    if as_json:
        print_json(report.to_json())
    else:
        console = out()
        console.print(
            f"{report.documents:,} documents read, {report.written:,} written, {report.conflicts:,} changed meanwhile "
            f"and read again, {report.gone:,} deleted meanwhile, {report.seconds:,.1f} s"
        )
        if report.stored_only:
            console.print(f"{report.stored_only:,} documents added to the local store alone")
        if report.rejected:
            console.print(f"{report.rejected:,} documents refused by the engine, see {rejects}")
        if report.stale:
            console.print(f"{report.stale:,} documents are stale: they change faster than they are renewed")
        if then and outcome.error is None:
            console.print(f"next: {then}")
