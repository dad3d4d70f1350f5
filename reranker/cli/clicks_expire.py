"""``ssi clicks expire``: old rows out of a click log."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli.click_options import log_option
from reranker.cli.common import json_option, out, print_json


@click.command("expire", epilog="""\b
Examples:
  ssi clicks expire --days 90 --log clicks/
""")  # fmt: skip
@click.option("--days", required=True, type=click.IntRange(0), help="A row stays for this many days after its own.")
@log_option
@json_option
def command(days: int, log_folder: Path, as_json: bool) -> None:
    """Remove all rows older than a number of days (UTC); run it daily.

    Rows whose time is missing or later than their import count from the day of their import.
    """
    from reranker.clicks.log import ClickLog

    log = ClickLog(log_folder)
    removed = log.expire(days)
    if as_json:
        print_json({"removed": removed, "log": log.counts()})
    else:
        out().print("removed " + ", ".join(f"{count:,} {name}" for name, count in removed.items()))
