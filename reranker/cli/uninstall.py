"""``ssi uninstall``: remove everything that ssi added to an index."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

import click

from reranker.cli import common
from reranker.engines import Engine


@click.command(
    "uninstall",
    epilog="""\b
Examples:
  ssi uninstall --engine elasticsearch:http://localhost:9200 --index shop --dry-run
  ssi uninstall --engine elasticsearch:http://localhost:9200 --index shop
""",
)
@common.engine_options
@click.option("--dry-run", is_flag=True, help="Print what would be removed; write nothing.")
@common.json_option
def uninstall_command(engine_spec: str, index: str, dry_run: bool, as_json: bool) -> None:
    """Remove everything that ssi added to an index: vectors of all versions, stored scripts, the record of versions.

    Each document is written again without these fields. If a document changes meanwhile, it is first read again. All
    other fields and the click logs (ubi_*) stay. The mapping entries remain, because no engine can remove a field from
    a mapping.
    """
    import numpy as np

    from indexer.garbage import former_indexes, plan_collection, remaining_note, uninstall

    engine = common.open_engine_of(engine_spec, retry=True)
    plan = plan_collection(engine, index, everything=True)
    if dry_run:
        common.print_json(asdict(plan)) if as_json else common.out().print(
            f"would remove {len(plan.drop)} versions ({', '.join(plan.drop) or 'none'}) from {plan.documents:,} "
            f"documents, and delete {', '.join(plan.indexes) or 'no index'}"
        )
        return
    with common.progress(f"uninstall {index}", total=plan.documents) as update:
        report = uninstall(engine, plan, rng=np.random.default_rng(), progress=update, notice=common.warn)
    _remove_scripts(engine, plan.drop)
    former = former_indexes(engine, index)
    if as_json:
        common.print_json({**report.to_json(), "former": former})
    else:
        common.out().print(
            f"removed {len(plan.drop)} versions from {report.emptied:,} documents, deleted "
            f"{', '.join(report.deleted) or 'no index'}"
        )
        if note := remaining_note(plan):
            common.out().print(note)
        for name in former:
            common.out().print(
                f"{name} was behind {index} before, and still has vectors: ssi uninstall --index {name}", soft_wrap=True
            )
    if report.error is not None:
        raise report.error


def _remove_scripts(engine: Engine, heads: Sequence[str]) -> None:
    """Remove the scripts that earlier releases of ssi stored in an engine for some versions, as far as it has any."""
    from reranker.engines.protocol import TakesRequests
    from reranker.engines.vectors import field_prefix
    from reranker.errors import EngineError

    if isinstance(engine, TakesRequests):
        for head in heads:
            for part in ("model", "blend"):
                with suppress(EngineError):  # there is none, or the role may not remove it
                    engine.request("DELETE", f"/_scripts/{field_prefix(head)}{part}")
