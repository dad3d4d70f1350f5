"""``ssi inverted``: an inverted file of documents, built in blocks (BSBI), and Boolean queries over it."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli import common
from reranker.cli.common import FILE, PATH


@click.group(
    "inverted",
    cls=common.CommandGroup,
    variables="SSI_INVERTED",
    epilog="""\b
Examples:
  ssi inverted build --docs docs.jsonl.gz --out inverted/
  ssi inverted search "prog AND lang AND (C OR java)" --file inverted/
""",
)
def command() -> None:
    """Build an inverted file of documents in blocks, and search it by Boolean queries."""


@command.command(
    "build",
    short_help="Build an inverted file in blocks of limited size.",
    epilog="""\b
Examples:
  ssi inverted build --docs docs.jsonl.gz --out inverted/
  ssi inverted build --docs docs.jsonl.gz --out inverted/ --block-entries 100000 --analyzer unicode,stop=english
""",
)
@click.option("--docs", required=True, type=FILE, help="Documents: JSON lines (also gz) or Parquet.")
@click.option("--out", "folder", required=True, type=PATH, metavar="DIR", help="Folder to write; new or empty.")
@click.option("--fields", default="title,text", metavar="LIST", help="Text fields, separated by commas.")
@click.option("--analyzer", default="unicode", metavar="SPEC", help="Analyzer of documents and queries.")
@click.option(
    "--block-entries",
    type=click.IntRange(1),
    default=1_000_000,
    help="Entries (a word in a document) that are sorted in memory at a time.",
)
@common.id_field_option
@common.json_option
def build_inverted_command(
    docs: Path, folder: Path, fields: str, analyzer: str, block_entries: int, id_field: str | None, as_json: bool
) -> None:
    """Build an inverted file by blocked sort-based indexing: sort blocks of entries, write them, and merge them all.

    Memory holds the words, the ids of the documents and one block, but not the texts.
    """
    from papers.methods.inverted_folder import build_inverted_folder
    from reranker.formats import RejectLog

    with RejectLog() as log, common.progress(f"inverted {docs.name}") as update:
        built = build_inverted_folder(
            docs,
            folder,
            fields=[part.strip() for part in fields.split(",") if part.strip()],
            analyzer=analyzer,
            block_entries=block_entries,
            id_field=id_field,
            rejects=log,
            progress=update,
        )
    n_entries = int(built.file.starts[-1])
    if as_json:
        about = {"out": str(folder), "documents": len(built.ids), "words": len(built.words), "entries": n_entries}
        common.print_json({**about, "accounts": [log.account("documents").to_json()]})
    else:
        common.out().print(
            f"{len(built.ids):,} documents, {len(built.words):,} words, {n_entries:,} entries, written to {folder}",
            markup=False,
        )
    if log.count:
        common.warn(f"rejected lines: {log.summary()}")
        click.get_current_context().exit(common.EXIT_REJECTS)


@command.command(
    "search",
    short_help="List the documents that match a Boolean query.",
    epilog="""\b
Examples:
  ssi inverted search "prog AND lang AND (C OR java)" --file inverted/
  ssi inverted search "iterator NOT (input OR output)" --file inverted/ --n 50 --json
""",
)
@click.argument("query")
@click.option("--file", "folder", required=True, type=PATH, metavar="DIR", help="Folder that `build` wrote.")
@click.option("--n", type=click.IntRange(1), default=10, help="Number of documents to list.")
@common.json_option
def search_inverted_command(query: str, folder: Path, n: int, as_json: bool) -> None:
    """List the documents that match QUERY: words, AND, OR, NOT and parentheses.

    NOT binds tighter than AND, and AND tighter than OR; AND can be left out. Operators are recognised in any case; in
    double quotes they are words. A Boolean query has no ranking: documents are listed in the order of the file.
    """
    from papers.methods.inverted_folder import InvertedFolder

    found = InvertedFolder.open(folder).search(query)
    if as_json:
        about = {"documents": list(found.ids[:n]), "matching": len(found.ids), "unknown_words": list(found.unknown)}
        common.print_json(about)
    else:
        for id_ in found.ids[:n]:
            common.out().print(id_, markup=False)
    if found.unknown:
        note = "no document holds a word of the query" if found.only_unknown else "no document holds"
        common.say(f"{note}: {', '.join(found.unknown)}")
    common.say(f"{len(found.ids):,} documents match" + (f"; the first {n:,} are shown" if len(found.ids) > n else ""))
