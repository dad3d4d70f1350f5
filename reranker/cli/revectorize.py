"""``ssi revectorize``: a model's vectors beside the documents of an existing index."""

from __future__ import annotations

from typing import Any

import click

from reranker.cli.common import err, json_option, print_json, progress
from reranker.cli.renewals import end_with, renew_options_of, renewal_options, show_plan, target_of


@click.command("revectorize", epilog="""\b
Examples:
  ssi revectorize --engine elasticsearch:http://localhost:9200 --index shop --model model/ --dry-run
  ssi revectorize --engine opensearch:http://localhost:9200 --index shop --model model/ --max-docs-per-second 500
  ssi promote VERSION --engine opensearch:http://localhost:9200 --index shop
""")  # fmt: skip
@renewal_options
@click.option("--dry-run", is_flag=True, help="Print the plan and what speaks against it; write nothing.")
@json_option
@click.pass_context
def command(context: click.Context, /, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Write a version beside the live one, into an index that may be somebody else's.

    First looks for whatever makes that unsafe, and refuses with the reasons. Then writes only its own fields
    (ssi_...), each over exactly the document it was made for, while others go on writing. Run it again after an
    interruption: what is current is skipped. The new version is not live before `ssi promote`.
    """
    from indexer.renewal import plan_revectorize, revectorize

    target = target_of(context, options)
    plan = plan_revectorize(target)
    show_plan(plan)
    if dry_run:
        if as_json:
            print_json(plan.to_json())
        plan.check()
        return
    console = err()
    with progress(f"revectorize {target.index}") as update:
        outcome = revectorize(target, renew_options_of(options), progress=update,
                              notice=lambda text: console.print(text, style="yellow"))  # fmt: skip
    then = f"ssi promote {target.model.model_id[:12]} --engine {target.engine.spec} --index {target.index}"
    end_with(context, outcome, options, as_json, then)
