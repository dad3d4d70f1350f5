"""Code shared by ``ssi promote`` and ``ssi rollback``."""

from __future__ import annotations

import click

from reranker.cli import common
from reranker.releases import ControlRecord

force_option = click.option(
    "--force", is_flag=True, help="Skip the check for documents whose vector of the version is missing or stale."
)


def show_live(record: ControlRecord, index: str, as_json: bool, hint: str = "") -> None:
    """Print the live version and a hint for the next step."""
    if as_json:
        common.print_json({"index": index, "live": record.live, "previous": list(record.previous)})
    else:
        common.out().print(f"live for {index}: {(record.live or '')[:12]}{hint}")
