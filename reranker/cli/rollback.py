"""``ssi rollback``: the previously live version again."""

from __future__ import annotations

import click

from reranker.cli.common import engine_options, json_option, open_engine_of, out, print_json


@click.command("rollback", epilog="""\b
Examples:
  ssi rollback --engine elasticsearch:http://localhost:9200 --index shop
  ssi rollback --engine tantivy:./index --index docs --json
""")  # fmt: skip
@engine_options
@click.option("--force", is_flag=True, help="Also where documents lack the version's vector.")
@json_option
@click.pass_context
def command(context: click.Context, engine_spec: str, index: str, force: bool, as_json: bool) -> None:
    """Make the version live again that was live before this one. Its fields are still there: one write."""
    from indexer.versions import rollback

    record = rollback(open_engine_of(context, engine_spec), index, force=force)
    if as_json:
        print_json({"index": index, "live": record.live, "previous": list(record.previous)})
    else:
        out().print(f"live for {index}: {(record.live or '')[:12]}")
