"""``ssi scripts remove``: takes scripts, pipelines and endpoints out of an engine."""

from __future__ import annotations

from typing import Any

import click

from reranker.cli.common import json_option, print_json
from reranker.cli.script_options import script_options, setup_of, show_done


@click.command("remove", epilog="""\b
Examples:
  ssi scripts remove --engine opensearch:http://localhost:9200 --model model/
  ssi scripts remove --engine elasticsearch:http://localhost:9200 --service http://ssi:8080
""")  # fmt: skip
@script_options
@json_option
@click.pass_context
def command(context: click.Context, /, as_json: bool, **options: Any) -> None:
    """Take out what `ssi scripts install` has put in; what is not there is passed over.

    With --model: the stored scripts of its encoder. With --service: the endpoint or the pipeline of --name. Connector
    and remote model stay, their ids are the engine's own.
    """
    from reranker.engines.scripts import carry_out, remove_steps

    engine, _, setup = setup_of(context, options, secret=False)
    done = carry_out(engine, remove_steps(setup, engine.capabilities()))
    if as_json:
        print_json([one.to_json() for one in done])
    else:
        show_done(done)
    if any(one.state == "refused" for one in done):
        context.exit(4)
