"""``ssi gc``: old versions out of an index."""

from __future__ import annotations

import click
import numpy as np

from reranker.cli.common import engine_options, err, json_option, open_engine_of, out, print_json, progress


@click.command("gc", epilog="""\b
Examples:
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --dry-run
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --keep 2
""")  # fmt: skip
@engine_options
@click.option(
    "--keep",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="How many earlier live versions stay, for a rollback.",
)
@click.option("--unfinished", is_flag=True, help="Also delete the indexes of interrupted rebuilds.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed; write nothing.")
@json_option
@click.pass_context
def command(
    context: click.Context, engine_spec: str, index: str, keep: int, unfinished: bool, dry_run: bool, as_json: bool
) -> None:
    """Empty the fields of versions that are neither live, nor newer, nor kept, and delete retired indexes.

    Each document is written anew without them, over exactly the version read. Mapping entries remain.
    """
    from indexer.gc import collect, plan_collection, remaining_note

    engine = open_engine_of(context, engine_spec)
    plan = plan_collection(engine, index, keep=keep, unfinished=unfinished)
    if dry_run:
        if as_json:
            print_json(plan.to_json())
        else:
            out().print(f"would empty {len(plan.drop)} versions ({', '.join(plan.drop) or 'none'}) in "
                        f"{plan.documents:,} documents and delete {', '.join(plan.indexes) or 'no index'}")  # fmt: skip
        return
    console = err()
    with progress(f"gc {index}", total=plan.documents) as update:
        report = collect(engine, plan, rng=np.random.default_rng(), progress=update,
                         notice=lambda text: console.print(text, style="yellow"))  # fmt: skip
    if as_json:
        print_json(report.to_json())
    else:
        out().print(f"emptied {len(plan.drop)} versions in {report.emptied:,} documents, deleted "
                    f"{', '.join(report.deleted) or 'no index'}")  # fmt: skip
        if plan.unfinished:
            out().print(f"left alone: unfinished rebuild {', '.join(plan.unfinished)} (finish it, or --unfinished)")
        if remaining_note(plan):
            out().print(remaining_note(plan))
    if report.error is not None:
        raise report.error
