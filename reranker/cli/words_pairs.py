"""``ssi words pairs``: the words of documents that a query's words stand for."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from reranker.cli.common import json_option, model_option, out, print_json


@click.command("pairs", epilog="""\b
Examples:
  ssi words pairs --query "read a file line by line" --model model/
  ssi words pairs --query sort --model model/ --n 30 --json
""")  # fmt: skip
@click.option("--query", required=True, metavar="TEXT", help="The query.")
@model_option()
@click.option("--n", type=click.IntRange(1), default=10, show_default=True, help="Pairs.")
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Leave rarer words of documents out, except the query's own.",
)
@json_option
def command(query: str, model_path: Path, n: int, min_documents: int, as_json: bool) -> None:  # fmt: skip
    """List the words of documents that raise the score of a query most, each with the query's word it comes from.

    The weight is what the pair adds to the score of a document in which the word has weight 1.
    """
    from reranker.artifacts import load_model
    from reranker.words import related_words

    found = related_words(load_model(model_path), query, n=n, min_documents=min_documents)
    if as_json:
        print_json([one.to_json() for one in found])
        return
    table = Table("query", "document", "weight", "", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for one in found:
        table.add_row(one.query_word, one.document_word, f"{one.weight:.4f}", "same word" if one.same else "")
    out().print(table)
