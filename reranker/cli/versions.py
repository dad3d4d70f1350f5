"""``ssi versions``: the versions of an index."""

from __future__ import annotations

import click
from rich.table import Table

from reranker.cli.common import engine_options, json_option, open_engine_of, out, print_json


@click.command("versions", epilog="""\b
Examples:
  ssi versions --engine elasticsearch:http://localhost:9200 --index shop
  ssi versions --engine tantivy:./index --index docs --json
""")  # fmt: skip
@engine_options
@json_option
@click.pass_context
def command(context: click.Context, engine_spec: str, index: str, as_json: bool) -> None:
    """List the versions of an index, which one is live, and how many documents carry their vectors."""
    from indexer.versions import list_versions
    from reranker.releases import read_control

    engine = open_engine_of(context, engine_spec)
    states = list_versions(engine, index)
    record = read_control(engine, index).with_indexes_live(engine.index_names(index))
    if as_json:
        print_json(
            {
                "index": index,
                "live": record.live,
                "versions": [state.to_json() for state in states],
                "retired": list(record.retired),
                "building": list(record.building),
            }
        )
        return
    table = Table("", "version", "encoder", "documents with vector", "calibrated", "registered", "state")
    for state in states:
        table.add_row(
            "live" if state.live else "", (state.model_id or "(not registered)")[:16], state.encoder_id[:12],
            f"{state.with_vector:,} of {state.documents:,}", "yes" if state.calibrated else "no", state.created,
            state.state,
        )  # fmt: skip
    out().print(table if states else f"{index} has no versions: ssi index or ssi revectorize makes one")
    for title, names in (("replaced by a rebuild", record.retired), ("unfinished rebuild", record.building)):
        if names:
            out().print(f"{title}: {', '.join(names)}")
