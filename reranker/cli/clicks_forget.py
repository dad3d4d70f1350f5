"""``ssi clicks forget``: a person out of a click log."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli.click_options import key_option, log_option
from reranker.cli.common import json_option, out, print_json


@click.command("forget", epilog="""\b
Examples:
  ssi clicks forget 3f2a77c0-9a41 --log clicks/
  ssi clicks forget customer-812 --log clicks/ --key /etc/ssi/clicks.key --json
""")  # fmt: skip
@click.argument("user")
@log_option
@key_option
@json_option
def command(user: str, log_folder: Path, key_file: Path | None, as_json: bool) -> None:
    """Remove all rows of a person from a click log: USER is the user, client or session id as the site knows it.

    Retrain afterwards: models that learned from the rows keep what they learned until they are replaced. Raw log files
    and the engine's own indexes are not touched; importing an old copy of them does not bring the person back.
    """
    from reranker.clicks.log import ClickLog

    log = ClickLog(log_folder)
    removed = log.forget(user, log.privacy(key_file))
    if as_json:
        print_json({"removed": removed, "log": log.counts()})
    else:
        out().print("removed " + ", ".join(f"{count:,} {name}" for name, count in removed.items()))
