"""``ssi clicks pairs``: preference pairs of click logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.cli.click_options import log_arguments, opened
from reranker.cli.common import json_option, out, print_json
from reranker.cli.pair_options import pair_config, pair_options, resources, strategy_lines, time_range

EXAMPLES = """\b
Examples:
  ssi clicks pairs clicks/ --out pairs.parquet
  ssi clicks pairs ubi_queries.ndjson ubi_events.ndjson --strategy clicked-over-next --out pairs.tsv
  ssi clicks pairs clicks/ --propensities propensities.json --min-dwell 10 --min-users 2 --out pairs.parquet
  ssi clicks pairs /data/clicks/ --backend spark --spark-master spark://host:7077 --out pairs.parquet
  ssi train --docs docs.jsonl --pairs pairs.parquet --model model/
"""


@click.command("pairs", epilog=strategy_lines() + "\n" + EXAMPLES)
@log_arguments
@click.option("--out", "target", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Pairs: query, better, worse, weight; TSV if the name ends in .tsv, else Parquet.")  # fmt: skip
@pair_options
@json_option
@click.pass_context
def command(
    context: click.Context, /, logs: tuple[Path, ...], log_format: str, rejects: Path | None, target: Path,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Turn clicks into preference pairs (query, better, worse, weight) to train on.

    The weight counts the people who said it, each at most once unless --user-cap says more. Neither the order of the
    lines nor repeated ones matter.
    """
    from reranker.clicks.exports import write_tsv
    from reranker.clicks.pairs import make_pairs

    config, when = pair_config(context, options), time_range(options)
    with (
        opened(logs, log_format, rejects) as log,
        make_pairs(log, config, backend=options["backend"], resources=resources(options), **when) as table,
    ):
        if target.suffix.lower() == ".tsv":
            write_tsv(table.pairs(), target)
        else:
            table.write(target)
        counts = table.counts
    if as_json:
        print_json({"out": str(target), "strategy": config.strategy, "counts": counts})
        return
    console = out()
    console.print(f"{counts['pairs']:,} pairs of {counts['impressions']:,} impressions, written to {target}")
    left_out = {name: n for name, n in counts.items() if n and (name.startswith(("robot", "no_", "out")))}
    if left_out:
        reasons = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in left_out.items())
        console.print(f"left out of {counts['searches']:,} queries: {reasons}")
    if counts["too_few_people"]:
        console.print(f"{counts['too_few_people']:,} pairs were said by too few people, or weigh nothing")
