"""``ssi revectorize``: add the vectors of a model to the documents of an existing index."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from reranker.cli import common
from reranker.cli.documents import end_with, vectors_option
from reranker.cli.renewing import renewal_options, show_plan, show_report, target_of


@click.command(
    "revectorize",
    epilog="""\b
Examples:
  ssi revectorize --engine elasticsearch:http://localhost:9200 --index shop --model model/ --dry-run
  ssi revectorize --engine opensearch:http://localhost:9200 --index shop --model model/ --max-docs-per-second 500
  ssi promote VERSION --engine opensearch:http://localhost:9200 --index shop
""",
)
@renewal_options
@vectors_option
@click.option("--dry-run", is_flag=True, help="Print the plan and the reasons against it; write nothing.")
@common.json_option
def revectorize_command(dry_run: bool, as_json: bool, **options: Any) -> None:
    """Add the vectors of a new version to an existing index, which other programs may keep writing to.

    The command first checks that this is safe, and otherwise refuses with the reasons. It writes only its own fields
    (ssi_...). Each write is conditional: if a document was changed after it was read, its vector is computed again.
    After an interruption, run the command again; documents with a current vector are skipped. The new version does not
    go live before `ssi promote`.
    """
    from indexer.preflight import preflight
    from indexer.renewal import sync

    target, renewal = target_of(options)
    plan = preflight(target.engine, target.index, target.version())
    show_plan(plan)
    if dry_run:
        if as_json:
            common.print_json(asdict(plan))
        plan.check()
        return
    with common.progress(f"revectorize {target.index}") as update:
        report = sync(target, renewal, progress=update, notice=common.warn)
    next_step = f"ssi promote {target.model.model_id[:12]} --engine {target.engine.spec} --index {target.index}"
    show_report(report, renewal, as_json, next_step)
    end_with(report.stopped, report.rejected)
