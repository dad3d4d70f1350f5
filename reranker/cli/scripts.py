"""``ssi scripts``: what is put into an engine so that it reranks by itself."""

from __future__ import annotations

import click

from reranker.cli.groups import LazyGroup

COMMANDS: dict[str, str] = {
    "show": "Print what would be put in, what the engine cannot take, and how to search with it.",
    "install": "Put in stored scripts, and with --service the engine's own reranking by the service.",
    "remove": "Take it out again.",
}
"""Names with the line that ``ssi scripts --help`` shows; each lives in ``reranker/cli/scripts_<name>.py``."""


@click.group(
    "scripts",
    cls=LazyGroup,
    summaries=COMMANDS,
    prefix="scripts_",
    epilog="""\b
Examples:
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/ --query "red shoes" --body body.json
  ssi scripts install --engine opensearch:http://localhost:9200 --model model/
  ssi scripts install --engine elasticsearch:http://localhost:9200 --service http://ssi:8080 --field title
""",
)
def command() -> None:
    """Let an engine rerank by itself: stored scripts, search pipelines, inference endpoints.

    The engine is asked for its version, its modules and its licence. What the project's tests cannot run is marked
    'checked against recorded shapes, not run'.
    """
