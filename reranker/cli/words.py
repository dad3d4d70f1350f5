"""``ssi words``: the group of commands that show what a model has learned about words."""

from __future__ import annotations

import click

from reranker.cli.groups import LazyGroup

COMMANDS: dict[str, str] = {
    "similar": "List the words nearest to a word.",
    "dice": "List the words that share documents with a word or an n-gram most.",
    "pairs": "List the words of documents that a query's words stand for.",
}
"""Names with the line that ``ssi words --help`` shows; each lives in ``reranker/cli/words_<name>.py``."""


@click.group(
    "words",
    cls=LazyGroup,
    summaries=COMMANDS,
    prefix="words_",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words pairs --query "read a file line by line" --model model/
  ssi words dice iterator "smart pointer" --documents docs.jsonl.gz
""",
)
def command() -> None:
    """Look into a model: which words it takes for near, and which words of documents it relates to a query."""
