"""``ssi promote``: make a version live."""

from __future__ import annotations

import click

from reranker.cli.common import engine_options, json_option, open_engine_of, out, print_json


@click.command("promote", epilog="""\b
Examples:
  ssi promote 3f2a9c81d0aa --engine elasticsearch:http://localhost:9200 --index shop
  ssi promote 3f2a9c81d0aa --engine tantivy:./index --index docs --json
""")  # fmt: skip
@click.argument("version")
@engine_options
@click.option("--force", is_flag=True, help="Also where documents lack the version's vector.")
@json_option
@click.pass_context
def command(context: click.Context, version: str, engine_spec: str, index: str, force: bool, as_json: bool) -> None:
    """Make VERSION (a model id, or its first digits) the live one of an index.

    Refused, and nothing changed, while documents lack its vectors.
    """
    from indexer.versions import promote

    record = promote(open_engine_of(context, engine_spec), index, version, force=force)
    if as_json:
        print_json({"index": index, "live": record.live, "previous": list(record.previous)})
    else:
        out().print(f"live for {index}: {(record.live or '')[:12]}; `ssi rollback` goes back")
