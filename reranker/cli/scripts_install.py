"""``ssi scripts install``: puts scripts, pipelines and endpoints into an engine."""

from __future__ import annotations

from typing import Any

import click

from reranker.cli.common import json_option, print_json
from reranker.cli.script_options import script_options, setup_of, show_done


@click.command("install", epilog="""\b
Examples:
  ssi scripts install --engine opensearch:http://localhost:9200 --model model/
  ssi scripts install --engine opensearch:http://localhost:9200 --service http://ssi:8080 --id-field sku
""")  # fmt: skip
@script_options
@json_option
@click.pass_context
def command(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Put in what the engine can take, and say of the rest why not.

    With --model: the stored scripts that score by the fields of `--routes inside`. With --service: the engine's own
    reranking by `ssi serve` (an inference endpoint, or a connector with a search pipeline).
    """
    from reranker.engines.scripts import carry_out, install_steps, licence_of

    engine, _, setup = setup_of(context, options, secret=True)
    done = carry_out(engine, install_steps(setup, engine.capabilities(), licence_of(engine)))
    if as_json:
        print_json([one.to_json() for one in done])
    else:
        show_done(done)
    if any(one.state == "refused" for one in done):
        context.exit(4)
    if all(one.state != "done" for one in done):
        context.exit(7)
