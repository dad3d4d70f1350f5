"""``ssi rollback``: make the previously live version live again."""

from __future__ import annotations

import click

from reranker.cli import common
from reranker.cli.releases import force_option, show_live


@click.command(
    "rollback",
    epilog="""\b
Examples:
  ssi rollback --engine elasticsearch:http://localhost:9200 --index shop
  ssi rollback --engine tantivy:./index --index docs --json
""",
)
@common.engine_options
@force_option
@common.json_option
def rollback_command(engine_spec: str, index: str, force: bool, as_json: bool) -> None:
    """Make the previously live version live again, after the same check as `ssi promote`.

    The fields of that version are still in the index, so the command only writes the record of versions. With --force,
    it reads no documents.
    """
    from indexer.versions import rollback

    engine = common.open_engine_of(engine_spec, retry=True)
    with common.progress(f"texts of {index}") as update:
        record = rollback(engine, index, force=force, progress=update)
    show_live(engine, record, as_json)
