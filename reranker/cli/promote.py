"""``ssi promote``: make a version live."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli import common
from reranker.cli.releases import force_option, show_live


@click.command(
    "promote",
    epilog="""\b
Examples:
  ssi promote 3f2a9c81d0aa --engine elasticsearch:http://localhost:9200 --index shop
  ssi promote --model model/ --engine elasticsearch:http://localhost:9200 --index shop
  ssi promote 3f2a9c81d0aa --engine tantivy:./index --index docs --json
""",
)
@click.argument("version", default="")
@common.engine_options
@common.model_option(required=False)
@force_option
@common.json_option
def promote_command(
    version: str, engine_spec: str, index: str, model_path: Path | None, force: bool, as_json: bool
) -> None:
    """Make VERSION (a model id, or its first digits; default: that of --model) the live version of an index.

    The command reads every text of the index. If a document has no vector of the version, or has changed since its
    vector was computed, the command refuses and changes nothing. If the version has no calibration for this index, it
    gets the one that it has for a former index behind the same alias; without one, the command prints a warning.
    """
    from indexer.versions import promote
    from reranker.models.manifest import describe_model

    if not version and model_path is None:
        raise click.UsageError("name the version: give VERSION, or the model by --model")
    if not version and model_path is not None:
        version = str(describe_model(model_path)["model_id"])
    engine = common.open_engine_of(engine_spec, retry=True)
    with common.progress(f"texts of {index}") as update:
        record = promote(engine, index, version, force=force, progress=update)
    show_live(engine, record, as_json, "; `ssi rollback` goes back", model_path)
