"""``ssi interleave``: the group of commands on interleaved searches."""

from __future__ import annotations

import click

from reranker.cli.groups import LazyGroup

COMMANDS: dict[str, str] = {
    "report": "Say which of two interleaved versions visitors prefer.",
}
"""Names with the line that ``ssi interleave --help`` shows; each lives in ``reranker/cli/interleave_<name>.py``."""


@click.group(
    "interleave",
    cls=LazyGroup,
    summaries=COMMANDS,
    prefix="interleave_",
    epilog="""\b
Examples:
  ssi serve --engine opensearch:http://localhost:9200 --index shop --models models/ --interleave 3f2a77c0 --sink engine
  ssi interleave report --engine opensearch:http://localhost:9200
""",
)
def command() -> None:
    """Compare two versions by the clicks of visitors who see both in one list (team-draft interleaving).

    `ssi serve --interleave VERSION` shows the lists.
    """
