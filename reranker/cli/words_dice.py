"""``ssi words dice``: the words that share documents with a word or an n-gram most."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from reranker.cli.common import json_option, model_option, out, print_json, progress

if TYPE_CHECKING:
    from reranker.text.dice import DiceNeighbour
    from reranker.text.view import TextView

_BATCH = 1_000


@click.command("dice", epilog="""\b
Examples:
  ssi words dice iterator "smart pointer" --documents docs.jsonl.gz
  ssi words dice 検索 --documents docs_ja.jsonl.gz --analyzer japanese --n 20 --json
  ssi words dice iterator --documents docs.jsonl.gz --model model/
""")  # fmt: skip
@click.argument("terms", nargs=-1, required=True, metavar="TERM...")
@click.option(
    "--documents",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Documents to count in: JSON lines (may be gzipped) or Parquet.",
)
@model_option(required=False)
@click.option("--analyzer", "analyzer_text", metavar="SPEC", help="How words are cut; the model's where one is given.")
@click.option("--fields", metavar="FIELDS", help="Fields with the texts, by commas; the model's, else title,text.")
@click.option("--n", type=click.IntRange(1), default=5, show_default=True, help="Neighbours.")
@click.option(
    "--max-words",
    type=click.IntRange(1),
    default=30_000,
    show_default=True,
    help="Neighbours are among so many of the most frequent words.",
)
@json_option
def command(  # one parameter an option
    terms: tuple[str, ...],
    path: Path,
    model_path: Path | None,
    analyzer_text: str | None,
    fields: str | None,
    n: int,
    max_words: int,
    as_json: bool,
) -> None:
    """List the frequent words that share documents with each TERM most regularly: a word, or words in a row in quotes.

    DICE is twice the number of documents with both, divided by the sum of those with each. A frequent word is its own
    nearest. No model is needed.
    """
    from reranker.artifacts import load_model
    from reranker.errors import ConfigError
    from reranker.text.analyzers import make_analyzer, parse_analyzer
    from reranker.text.dice import DiceCounter
    from reranker.text.view import TextView
    from reranker.text.vocabulary import VocabularyBuilder

    if model_path is not None and (analyzer_text or fields):
        raise ConfigError("--model says how words are cut: leave out --analyzer and --fields, or the model")
    if model_path is None:
        analyzer = make_analyzer(parse_analyzer(analyzer_text or "unicode"))
        view = TextView.parse((fields or "title,text").split(","))
    else:
        encoder = load_model(model_path).encoder
        analyzer, view = encoder.analyzer, encoder.view

    def batches() -> Iterator[list[list[str]]]:
        with progress("reading", None) as show:
            done = 0
            for texts in _texts(path, view):
                yield analyzer.tokens(texts)
                done += len(texts)
                show(done, None)

    builder = VocabularyBuilder()
    for tokens in batches():
        builder.add(tokens)
    asked = [term for term in analyzer.tokens(terms) if term]
    counter = DiceCounter(asked, builder.build(max_words), max_words)
    for tokens in batches():
        counter.add(tokens)
    found = {" ".join(term): counter.neighbours(" ".join(term), n) for term in asked}
    if as_json:
        print_json({term: [one.to_json() for one in neighbours] for term, neighbours in found.items()})
        return
    out().print(_table(found))


def _table(found: dict[str, list[DiceNeighbour]]) -> Table:
    """Return the neighbours of all terms, the term beside its first one."""
    table = Table("term", "word", "DICE", "together", "documents", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for term, neighbours in found.items():
        for place, one in enumerate(neighbours):
            shown = term if place == 0 else ""
            table.add_row(shown, one.word, f"{one.value:.4f}", f"{one.together:,}", f"{one.documents:,}")
    return table


def _texts(path: Path, view: TextView) -> Iterator[list[str]]:
    """Yield the texts of documents, all fields joined, some at a time."""
    from reranker.formats import read_documents

    documents = read_documents(path)
    while batch := list(islice(documents, _BATCH)):
        yield ["\n".join(view.texts(one.source)) for one in batch]
