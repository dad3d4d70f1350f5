"""``ssi words``: show what a model has learned about words, and which words occur in the same documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import click

from reranker.cli import common
from reranker.cli.common import FILE
from reranker.errors import ConfigError

_BATCH = 1_000
_DOCUMENTS = click.Path(exists=True, dir_okay=False, path_type=Path)
_SIDE = click.Choice(["documents", "queries"])


@click.group(
    "words",
    cls=common.CommandGroup,
    variables="SSI_WORDS",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words pairs --query "read a file line by line" --model model/
  ssi words dice iterator "smart pointer" --docs docs.jsonl.gz
""",
)
def words_group() -> None:
    """Inspect a model: the nearest words of a word, and the document words that it relates to a query."""


@words_group.command(
    "similar",
    short_help="List the words nearest to a word.",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words similar iterator --model model/ --by cosine --n 20 --picture iterator.svg
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
@click.option("--picture", type=FILE, help="Draw the words on a plane and write the plot to this .png or .svg file.")
@common.json_option
def similar(word: str, model_path: Path, picture: Path | None, as_json: bool, **choice: Any) -> None:
    """List the words whose vectors are nearest to that of WORD, nearest first."""
    from reranker.models.model_folder import load_model
    from reranker.words import similar_words, write_words

    model = load_model(model_path)
    neighbours = similar_words(model, word, **choice)
    if picture is not None:
        spots = [(word, choice["side"]), *((neighbour.word, choice["among"]) for neighbour in neighbours)]
        write_words(model, spots, picture)
        common.say(f"drawn: {picture}")
    if as_json:
        common.print_json([asdict(neighbour) for neighbour in neighbours])
        return
    table = common.plain_table("word", choice["measure"], "documents", numbers=(1, 2))
    for neighbour in neighbours:
        table.add_row(neighbour.word, f"{neighbour.value:.4f}", f"{neighbour.documents:,}")
    common.out().print(table)


@words_group.command(
    "dice",
    short_help="List the words that most often occur in the same documents as a word or an n-gram.",
    epilog="""\b
Examples:
  ssi words dice iterator "smart pointer" --docs docs.jsonl.gz
  ssi words dice 検索 --docs docs_ja.jsonl.gz --analyzer japanese --n 20 --json
  ssi words dice iterator --docs docs.jsonl.gz --model model/
""",
)
@click.argument("terms", nargs=-1, required=True, metavar="TERM...")
@click.option(
    "--docs",
    "path",
    required=True,
    type=_DOCUMENTS,
    metavar="FILE",
    help="Documents to count in: JSON lines (may be gzipped) or Parquet.",
)
@common.renamed_option("--documents", "--docs", kind=_DOCUMENTS)
@common.id_field_option
@common.model_option(required=False)
@click.option(
    "--analyzer",
    "analyzer_text",
    metavar="SPEC",
    help="Analyzer, as in `ssi train`.  [default: that of --model, else unicode]",
)
@click.option(
    "--fields", metavar="FIELDS", help="Text fields, separated by commas.  [default: those of --model, else title,text]"
)
@click.option("--n", type=click.IntRange(1), default=5, help="Number of neighbours.")
@click.option(
    "--max-words",
    type=click.IntRange(1),
    default=30_000,
    help="Number of most frequent words that are considered as neighbours.",
)
@common.json_option
def dice(terms: tuple[str, ...], n: int, max_words: int, as_json: bool, **options: Any) -> None:
    """List the frequent words with the highest DICE coefficient for each TERM: a word, or consecutive words in quotes.

    DICE is twice the number of documents with both, divided by the sum of the numbers of documents with each. A
    frequent word is its own nearest neighbour. No model is needed.
    """
    from reranker.formats import read_documents
    from reranker.models.model_folder import load_model
    from reranker.text.analyzers import make_analyzer, parse_analyzer
    from reranker.text.view import TextView
    from reranker.text.vocabulary import VocabularyBuilder
    from reranker.words import DiceCounter

    model_path, analyzer_text, fields = (options[name] for name in ("model_path", "analyzer_text", "fields"))
    if model_path is not None and (analyzer_text or fields):
        raise ConfigError(
            "--model determines the analyzer and the fields: leave out --analyzer and --fields, or --model"
        )
    if model_path is None:
        analyzer = make_analyzer(parse_analyzer(analyzer_text or "unicode"))
        view = TextView.parse((fields or "title,text").split(","))
    else:
        encoder = load_model(model_path).encoder
        analyzer, view = encoder.analyzer, encoder.view

    def batches() -> Iterator[list[list[str]]]:
        """Yield the words of the documents in batches of `_BATCH`; the fields of a document are joined."""
        documents = read_documents(options["path"], id_field=options["id_field"])
        n_read = 0
        with common.progress("reading") as update:
            while batch := list(islice(documents, _BATCH)):
                yield analyzer.tokens(["\n".join(view.texts(document.source)) for document in batch])
                n_read += len(batch)
                update(n_read, None)

    builder = VocabularyBuilder()
    for tokens in batches():
        builder.add(tokens)
    cut_terms = [term for term in analyzer.tokens(terms) if term]
    counter = DiceCounter(cut_terms, builder.build(max_words), max_words)
    for tokens in batches():
        counter.add(tokens)
    neighbours_of = {" ".join(term): counter.neighbours(" ".join(term), n) for term in cut_terms}
    if as_json:
        common.print_json({term: list(map(asdict, neighbours)) for term, neighbours in neighbours_of.items()})
        return
    table = common.plain_table("term", "word", "DICE", "together", "documents", numbers=(2, 3, 4))
    for term, neighbours in neighbours_of.items():
        for place, neighbour in enumerate(neighbours):
            counts = (f"{neighbour.value:.4f}", f"{neighbour.together:,}", f"{neighbour.documents:,}")
            table.add_row(term if place == 0 else "", neighbour.word, *counts)
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
