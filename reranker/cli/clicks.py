"""``ssi clicks``: the group of commands on click logs."""

from __future__ import annotations

import click

from reranker.cli.groups import LazyGroup

COMMANDS: dict[str, str] = {
    "import": "Bring logs into a click log: one form, no personal data, nothing twice.",
    "forget": "Remove all rows of a person.",
    "expire": "Remove all rows older than a number of days.",
    "doctor": "Say whether it would be sound to learn from a log, and what to mend.",
    "propensities": "How much each rank is looked at.",
    "pairs": "Preference pairs of clicks, to train on.",
    "export": "Judgements of clicks for TREC, LETOR, Search Relevance Workbench and Quepid.",
}
"""Names with the line that ``ssi clicks --help`` shows; each lives in ``reranker/cli/clicks_<name>.py``."""


@click.group(
    "clicks",
    cls=LazyGroup,
    summaries=COMMANDS,
    prefix="clicks_",
    epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson --log clicks/
  ssi clicks forget 3f2a77c0 --log clicks/
""",
)
def command() -> None:
    """Keep click logs without personal data, examine them, and make pairs of them to learn from.

    Every command that reads LOG... takes the folder of a click log or raw log files.
    """
