"""``ssi gc``: remove the fields of versions that are no longer needed."""

from __future__ import annotations

from dataclasses import asdict

import click

from reranker.cli import common


@click.command(
    "gc",
    epilog="""\b
Examples:
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --dry-run
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --keep 2
""",
)
@common.engine_options
@click.option(
    "--keep", type=click.IntRange(0), default=1, help="Number of earlier live versions to keep for a rollback."
)
@click.option(
    "--unfinished", is_flag=True, help="Also delete the indexes of interrupted rebuilds and half-written versions."
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; write nothing.")
@common.json_option
def gc_command(engine_spec: str, index: str, keep: int, unfinished: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the fields of versions that are no longer needed from the documents, and delete retired indexes.

    The live version, newer versions and the last --keep earlier live versions stay. A version also stays if it is live
    or kept under another alias of the same index, or if `ssi revectorize` is writing it. Each document is written again
    without the removed fields. If a document changes meanwhile, it is first read again. Mapping entries remain.
    """
    import numpy as np

    from indexer.garbage import collect, plan_collection, remaining_note

    engine = common.open_engine_of(engine_spec, retry=True)
    plan = plan_collection(engine, index, keep=keep, unfinished=unfinished)
    if dry_run:
        if as_json:
            common.print_json(asdict(plan))
        else:
            common.out().print(
                f"would remove {len(plan.drop)} versions ({', '.join(plan.drop) or 'none'}) from "
                f"{plan.documents:,} documents and delete {', '.join(plan.indexes) or 'no index'}"
            )
        return
    with common.progress(f"gc {index}", total=plan.documents) as update:
        report = collect(engine, plan, rng=np.random.default_rng(), progress=update, notice=common.warn)
    if as_json:
        common.print_json(report.to_json())
    else:
        common.out().print(
            f"removed {len(plan.drop)} versions from {report.emptied:,} documents, deleted "
            f"{', '.join(report.deleted) or 'no index'}"
        )
        if plan.unfinished:
            common.out().print(
                f"kept: unfinished {', '.join(plan.unfinished)} (finish it, or delete it with --unfinished)"
            )
        if note := remaining_note(plan):
            common.out().print(note)
    if report.error is not None:
        raise report.error
