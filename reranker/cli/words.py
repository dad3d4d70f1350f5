"""``ssi words``: show what a model has learned about words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from reranker.cli import common

_SIDE = click.Choice(["documents", "queries"])


@click.group(
    "words",
    cls=common.CommandGroup,
    variables="SSI_WORDS",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words pairs --query "read a file line by line" --model model/
""",
)
def words_group() -> None:
    """Inspect a model: nearest words, and document words related to a query."""


@words_group.command(
    "similar",
    short_help="List the words nearest to a word.",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words similar iterator --model model/ --by cosine --n 20
  ssi words similar 検索 --of queries --model japanese-english/
""",
)
@click.argument("word")
@common.model_option()
@click.option("--n", type=click.IntRange(1), default=5, help="Number of neighbours.")
@click.option(
    "--of",
    "side",
    type=_SIDE,
    default="documents",
    help="Matrix that the vector of the word is taken from: V (documents) or U (queries).",
)
@click.option("--among", type=_SIDE, default="documents", help="Matrix whose vectors are searched for neighbours.")
@click.option(
    "--by",
    "measure",
    type=click.Choice(["distance", "cosine"]),
    default="distance",
    help="Euclidean distance, as in the tables of the papers, or cosine similarity, which ignores the lengths.",
)
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    help="Leave out words in fewer documents, because little has been learned about them.",
)
@common.json_option
def similar(word: str, model_path: Path, as_json: bool, **choice: Any) -> None:
    """List the words whose vectors are nearest to that of WORD, nearest first."""
    from reranker.models.model_folder import load_model
    from reranker.words import similar_words

    model = load_model(model_path)
    neighbours = similar_words(model, word, **choice)
    if as_json:
        common.print_json([asdict(neighbour) for neighbour in neighbours])
        return
    table = common.plain_table("word", choice["measure"], "documents", numbers=(1, 2))
    for neighbour in neighbours:
        table.add_row(neighbour.word, f"{neighbour.value:.4f}", f"{neighbour.documents:,}")
    common.out().print(table)


@words_group.command(
    "pairs",
    short_help="List the document words that a model relates to the words of a query.",
    epilog="""\b
Examples:
  ssi words pairs --query "read a file line by line" --model model/
  ssi words pairs --query sort --model model/ --n 30 --json
""",
)
@click.option("--query", required=True, metavar="TEXT", help="The query.")
@common.model_option()
@click.option("--n", type=click.IntRange(1), default=10, help="Number of pairs.")
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    help="Leave out document words in fewer documents, except words of the query.",
)
@common.json_option
def word_pairs(query: str, model_path: Path, n: int, min_documents: int, as_json: bool) -> None:
    """List the document words that raise the score for a query most, each with the query word that it is paired with.

    The weight is the contribution of the pair to the score of a document in which the word has weight 1.
    """
    from reranker.models.model_folder import load_model
    from reranker.words import related_words

    model = load_model(model_path)
    word_pairs = related_words(model, query, n=n, min_documents=min_documents)
    if model.encoder.memory is not None:
        said = f"{len(model.encoder.memory):,} documents have a memory of queries, which also counts in the score"
        common.err().print(f"{said}: see `ssi search --explain`", soft_wrap=True)
    if as_json:
        common.print_json([asdict(pair) for pair in word_pairs])
        return
    table = common.plain_table("query", "document", "weight", "", numbers=(2,))
    for pair in word_pairs:
        table.add_row(pair.query_word, pair.document_word, f"{pair.weight:.4f}", "same word" if pair.same else "")
    common.out().print(table)
