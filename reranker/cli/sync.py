"""``ssi sync``: documents whose vector is missing or stale."""

from __future__ import annotations

from typing import Any

import click

from reranker.cli.common import err, json_option, progress
from reranker.cli.renewals import end_with, renew_options_of, renewal_options, show_outcome, target_of


@click.command("sync", epilog="""\b
Examples:
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/
  ssi sync --engine elasticsearch:http://localhost:9200 --index shop --model model/ --updated-field modified
  ssi sync --engine opensearch:http://localhost:9200 --index shop --model model/ --follow --interval 30
""")  # fmt: skip
@renewal_options
@click.option(
    "--updated-field",
    metavar="FIELD",
    help="Date field set on every change: read only what changed since the last sync.",
)
@click.option("--verify", is_flag=True, help="Read every text, also with --updated-field.")
@click.option("--follow", is_flag=True, help="Go on for ever.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two rounds of --follow.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, /, updated_field: str | None, verify: bool, follow: bool, interval: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Renew the vectors of documents that are new or whose text changed.

    Without --updated-field every text is read and compared with the hash stored beside its vector.
    """
    from indexer import renewal

    target = target_of(context, options)
    console = err()

    def once() -> renewal.Outcome:
        with progress(f"sync {target.index}") as update:
            return renewal.sync(
                target, renew_options_of(options), updated_field=updated_field, verify=verify, progress=update,
                notice=lambda text: console.print(text, style="yellow"),
            )  # fmt: skip

    if not follow:
        end_with(context, once(), options, as_json, "")
        return
    for outcome in renewal.follow(once, interval):
        if outcome.error is not None:
            console.print(f"{outcome.error}; next try in {interval:g} s", style="yellow", markup=False)
        else:
            show_outcome(outcome, options, as_json)
