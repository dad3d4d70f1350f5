"""``ssi clicks export``: judgements and pairs of click logs for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.cli.click_options import log_arguments, opened
from reranker.cli.common import json_option, out, print_json
from reranker.cli.pair_options import pair_config, pair_options, resources, time_range
from reranker.clicks.exports import EXPORTS
from reranker.errors import ConfigError

FORMS = {
    **{name: export.summary for name, export in EXPORTS.items()},
    "parquet": "pairs: query, better, worse, weight",
    "tsv": "pairs as tab-separated text, with a header",
}
"""What ``--to`` takes."""

FORM_LINES = "\b\nForms:\n" + "\n".join(f"  {name:<9}{summary}" for name, summary in FORMS.items()) + "\n"

EXAMPLES = """\b
Examples:
  ssi clicks export clicks/ --to trec --out clicks.qrels
  ssi clicks export clicks/ --to srw --min-people 5 --propensities propensities.json --out judgements.json
  ssi clicks export ubi_queries.ndjson ubi_events.ndjson --to quepid --by pairs --out ratings.csv
"""


@click.command("export", epilog=FORM_LINES + "\n" + EXAMPLES)
@log_arguments
@click.option("--to", "form", required=True, type=click.Choice(list(FORMS)), help="What to write, see below.")
@click.option("--out", "target", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File to write; trec also writes the queries' texts, FILE.queries.tsv.")  # fmt: skip
@click.option("--by", "basis", type=click.Choice(["clicks", "pairs"]), default="clicks", show_default=True,
              help="What judges: the share of clicks among those who looked, or of the pairs' weight that was won.",
              )  # fmt: skip
@click.option("--min-people", type=click.IntRange(1), default=1, show_default=True,
              help="By clicks: people to whom a document must have been shown.")  # fmt: skip
@click.option("--max-grade", type=click.IntRange(1), help="The highest grade.  [default: by the form]")
@pair_options
@json_option
@click.pass_context
def command(
    context: click.Context, /, logs: tuple[Path, ...], log_format: str, rejects: Path | None, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Write clicks as judgements for other tools, or as pairs.

    A document's judgement is the share of people who clicked it among those who looked at it: with --propensities,
    those who saw it at rank r count as the propensity of r. Grades are that share times the highest grade.
    """
    config = pair_config(context, options)
    if options["form"] in ("parquet", "tsv") and options["max_grade"] is not None:
        raise ConfigError(f"--max-grade has no effect with --to {options['form']}: pairs have weights; leave it out")
    with opened(logs, log_format, rejects) as log:
        work = {"backend": options["backend"], "resources": resources(options), **time_range(options)}
        count, queries = _write(log, config, work, options)
    if as_json:
        print_json({"out": str(options["target"]), "to": options["form"], "rows": count, "queries": queries})
    else:
        beside = f", query texts to {queries}" if queries else ""
        out().print(f"{count:,} rows written to {options['target']}{beside}")


def _write(log: Any, config: Any, work: dict[str, Any], options: dict[str, Any]) -> tuple[int, str | None]:
    """Write the file; return the number of rows and the file of query texts, if there is one."""
    from reranker.clicks import exports
    from reranker.clicks.pairs import make_pairs, ratings

    form, target = options["form"], options["target"]
    if form in EXPORTS and options["basis"] == "clicks":
        judgements = exports.judgements_of_ratings(ratings(log, config, **work), options["min_people"])
        return _write_judgements(judgements, options)
    with make_pairs(log, config, **work) as table:
        if form == "parquet":
            return table.write(target), None
        if form == "tsv":
            return exports.write_tsv(table.pairs(), target), None
        return _write_judgements(exports.judgements_of_pairs(table.pairs()), options)


def _write_judgements(judgements: Any, options: dict[str, Any]) -> tuple[int, str | None]:
    from reranker.clicks.exports import write_judgements

    target, form = options["target"], options["form"]
    queries = target.with_name(target.name + ".queries.tsv") if EXPORTS[form].query_file else None
    count = write_judgements(judgements, target, form, max_grade=options["max_grade"], queries=queries)
    return count, None if queries is None else str(queries)
