"""``ssi clicks propensities``: how much each rank is looked at."""

from __future__ import annotations

import json
from pathlib import Path

import click

from reranker.cli.click_options import log_arguments, opened
from reranker.cli.common import json_option, out, print_json

# Spelled out, so that --help needs no numerical library; a test keeps them equal to
# `reranker.clicks.propensities.METHODS`.
METHODS = ("auto", "randomised", "harvest", "em", "rate")


@click.command("propensities", epilog="""\b
Examples:
  ssi clicks propensities clicks/ --out propensities.json
  ssi clicks propensities clicks/ --method rate
""")  # fmt: skip
@log_arguments
@click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True,
              help="randomised: from lists logged as shuffled. harvest: from documents seen at several ranks. "
                   "em: the same by expectation maximisation, for documents seen often. rate: the click rate itself. "
                   "auto: randomised where there are many such lists, else harvest, else rate.")  # fmt: skip
@click.option("--out", "target", type=click.Path(path_type=Path), metavar="FILE",
              help="Write them as JSON, for --propensities of `ssi clicks pairs`.")  # fmt: skip
@json_option
def command(
    logs: tuple[Path, ...], log_format: str, rejects: Path | None, method: str, target: Path | None, as_json: bool
) -> None:
    """Find how much each rank of the result lists is looked at, relative to the rank looked at most.

    A click at a rank that few look at says more: pairs weigh 1 / propensity of the rank of the click.
    """
    from reranker.clicks.propensities import count_log, estimate_propensities
    from reranker.files import replacing

    with opened(logs, log_format, rejects) as log:
        counts = count_log(log)
    found = estimate_propensities(counts, method)
    if target is not None:
        with replacing(target, private=True) as file:
            file.write((json.dumps(found.to_json(), indent=1) + "\n").encode("utf-8"))
    if as_json:
        print_json(found.to_json())
        return
    console = out()
    console.print(f"by {found.method}, from {found.n:,} result lists")
    shown, clicked = counts.by_rank()
    for rank, p in enumerate(found.by_rank, start=1):
        console.print(f"{rank:>4}  {p:.4f}  clicked {clicked[rank - 1]:,} of {shown[rank - 1]:,}")
