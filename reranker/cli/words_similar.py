"""``ssi words similar``: the words nearest to a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from reranker.cli.common import err, json_option, model_option, out, print_json


@click.command("similar", epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words similar iterator --model model/ --by cosine --n 20 --picture iterator.svg
  ssi words similar 検索 --of queries --model japanese-english/
""")  # fmt: skip
@click.argument("word")
@model_option()
@click.option("--n", type=click.IntRange(1), default=5, show_default=True, help="Neighbours.")
@click.option(
    "--of",
    "side",
    type=click.Choice(["documents", "queries"]),
    default="documents",
    show_default=True,
    help="The vectors the word is looked up in: V (documents) or U (queries).",
)
@click.option(
    "--among",
    type=click.Choice(["documents", "queries"]),
    default="documents",
    show_default=True,
    help="The vectors its neighbours are looked up in.",
)
@click.option(
    "--by",
    "measure",
    type=click.Choice(["distance", "cosine"]),
    default="distance",
    show_default=True,
    help="Euclidean distance, as in the papers' tables, or the cosine, which does not look at lengths.",
)
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Leave rarer words out: little has been learned about them.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the words on a plane: a file .png or .svg.",
)
@json_option
def command(word: str, model_path: Path, picture: Path | None, as_json: bool, **choice: Any) -> None:
    """List the words whose vectors are nearest to that of WORD, nearest first."""
    from reranker.artifacts import load_model
    from reranker.words import similar_words, write_words

    model = load_model(model_path)
    found = similar_words(model, word, **choice)
    if picture is not None:
        spots = [(word, choice["side"]), *((one.word, choice["among"]) for one in found)]
        write_words(model, spots, picture)
        err().print(f"drawn: {picture}", markup=False)
    if as_json:
        print_json([one.to_json() for one in found])
        return
    table = Table("word", choice["measure"], "documents", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        table.add_row(one.word, f"{one.value:.4f}", f"{one.documents:,}")
    out().print(table)
