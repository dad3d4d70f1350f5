"""What ``ssi promote`` and ``ssi rollback`` share."""

from __future__ import annotations

import click

from reranker.cli import common
from reranker.releases import ControlRecord

force_option = click.option(
    "--force", is_flag=True, help="At once, also where documents lack the version's vector or have changed since."
)


def show_live(record: ControlRecord, index: str, as_json: bool, hint: str = "") -> None:
    """Print which version is live now, and the hint for what to do next."""
    if as_json:
        common.print_json({"index": index, "live": record.live, "previous": list(record.previous)})
    else:
        common.out().print(f"live for {index}: {(record.live or '')[:12]}{hint}")
