"""``ssi versions``: list the model versions of an index and show which one is live."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.table import Table

from reranker.cli import common
from reranker.cli.releases import calibration_note
from reranker.releases import read_control

if TYPE_CHECKING:
    from indexer.versions import VersionState


@click.command(
    "versions",
    epilog="""\b
Examples:
  ssi versions --engine elasticsearch:http://localhost:9200 --index shop
  ssi versions --engine tantivy:./index --index docs --json
  ssi versions --engine elasticsearch:http://localhost:9200 --index shop --mapping
""",
)
@common.engine_options
@click.option("--quick", is_flag=True, help="Do not read the texts, and do not count stale vectors.")
@click.option(
    "--mapping",
    is_flag=True,
    help="Print only the fields of the live version as JSON, to copy into the mapping or template of a new index.",
)
@common.json_option
def versions_command(engine_spec: str, index: str, quick: bool, mapping: bool, as_json: bool) -> None:
    """List the versions of an index: which one is live, how many documents have their vectors, how many are stale.

    A vector is stale if the text has changed since it was computed. `ssi sync` computes stale vectors again.
    """
    from indexer.versions import OUTDATED, list_versions, live_mapping

    engine = common.open_engine_of(engine_spec, retry=True)
    if mapping:
        common.print_json(live_mapping(engine, index))
        return
    with common.progress(f"texts of {index}") as update:
        states = list_versions(engine, index, count_stale=not quick, progress=update)
    record = read_control(engine, index).without_leftovers(engine.index_names(index))
    if as_json:
        common.print_json(
            {
                "index": index,
                "live": record.live,
                "versions": [asdict(state) for state in states],
                "retired": record.retired,
                "building": record.building,
            }
        )
        return
    table = Table("", "version", "encoder", "documents with vector", "stale", "calibrated", "registered", "state")
    for state in states:
        table.add_row(
            "live" if state.live else "",
            (state.model_id or "(not registered)")[:16],
            state.encoder_id[:12],
            f"{state.with_vector:,} of {state.documents:,}",
            "?" if state.stale is None else f"{state.stale:,}",
            _calibrated(state),
            state.created,
            state.state,
        )
    common.out().print(
        table if states else f"{index} has no versions: `ssi index --model` or `ssi revectorize` adds one"
    )
    for title, names in (("replaced by a rebuild", record.retired), ("unfinished rebuild", record.building)):
        if names:
            common.out().print(f"{title}: {', '.join(names)}")
    if note := calibration_note(engine, record):
        common.warn(note)
    if any(state.live and state.state == OUTDATED for state in states):
        common.warn(
            "warning: documents were added or changed after the vectors of the live version were computed. Their old "
            f"vectors are used until you run  ssi sync --engine {engine.spec} --index {index} --model MODEL  "
            "(--follow repeats it)"
        )


def _calibrated(state: VersionState) -> str:
    """Return "no", "yes", or the index or model for which a calibration that was carried over was fitted."""
    if state.calibrated_from:
        return f"from {', '.join(state.calibrated_from)}"
    return "yes" if state.calibrated else "no"
