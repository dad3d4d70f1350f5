"""``ssi sync``: find documents whose vector is missing or stale, and compute it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.documents import end_with
from reranker.cli.renewing import renewal_options, show_report, target_of

if TYPE_CHECKING:
    from indexer.renewal import RenewReport, Target


@click.command(
    "sync",
    epilog="""\b
Examples:
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/ --updated-field modified
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/ --dry-run
  ssi sync --engine opensearch:http://localhost:9200 --index shop --model model/ --follow --interval 30
""",
)
@renewal_options
@click.option(
    "--updated-field",
    metavar="FIELD",
    help="Date field that is set on every change. Only documents with a later date than the largest one of the last "
    "sync, and those without a date or a vector, are read.",
)
@click.option("--verify", is_flag=True, help="Read every text, even with --updated-field.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Read every text, and print how many documents would be written and what prevents it; write nothing.",
)
@click.option("--follow", is_flag=True, help="Repeat until stopped. Rounds without changes are not reported.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=60.0,
    metavar="SECONDS",
    help="Pause between two rounds of --follow.",
)
@common.json_option
def sync_command(
    updated_field: str | None, verify: bool, dry_run: bool, follow: bool, interval: float, as_json: bool, **options: Any
) -> None:
    """Compute the vectors of documents that are new or whose text has changed.

    Without --updated-field, every text is read and compared with the hash that is stored with its vector. The command
    refuses a model if none of its fields has text, and prints a note if its vocabulary does not fit the texts.
    """
    from indexer import renewal as renewing

    if dry_run and follow:
        raise click.UsageError("--dry-run writes nothing, so that --follow would repeat itself: give one of them")
    target, renewal = target_of(options)
    if dry_run:
        _show_outdated(target, updated_field, as_json)
        return
    advice: set[str] = set()

    def advise(note: str) -> None:
        """Print a note, but not again in each round of ``--follow``."""
        if note not in advice:
            common.warn(f"note: {note}")
        advice.add(note)

    def once() -> RenewReport:
        with common.progress(f"sync {target.index}") as update:
            return renewing.sync(
                target,
                renewal,
                updated_field=updated_field,
                verify=verify,
                progress=update,
                notice=common.warn,
                advise=advise,
            )

    if not follow:
        report = once()
        show_report(report, renewal, as_json)
        end_with(report.stopped, report.rejected)
        return
    for number, report in enumerate(renewing.follow(once, interval)):
        if report.stopped is not None:
            common.warn(f"{report.stopped}; next attempt in {interval:g} s")
        elif number == 0 or not report.idle:
            show_report(report, renewal, as_json)


def _show_outdated(target: Target, updated_field: str | None, as_json: bool) -> None:
    """Print how many documents a run would write; raise the reasons against it."""
    from indexer.preflight import preflight
    from indexer.renewal import check_updated_field, outdated_documents

    if updated_field is not None:
        check_updated_field(target.engine, target.index, updated_field)
    plan = preflight(target.engine, target.index, target.version())
    plan.check()
    with common.progress(f"reading {target.index}") as update:
        outdated = outdated_documents(target, update)
    if as_json:
        common.print_json({"index": target.index, "documents": plan.documents, **outdated})
        return
    common.out().print(
        f"would write {sum(outdated.values()):,} of {plan.documents:,} documents: {outdated['missing']:,} without a "
        f"vector of this version, {outdated['stale']:,} whose text has changed since"
    )
