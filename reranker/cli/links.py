"""``ssi links``: compute fields of documents from the links between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from reranker.accounts import InputAccount
from reranker.cli import common
from reranker.cli.common import FILE

if TYPE_CHECKING:
    from reranker.links import LinkedFile


@click.group(
    "links",
    cls=common.CommandGroup,
    variables="SSI_LINKS",
    epilog="""\b
Examples:
  ssi links pagerank --docs docs.jsonl.gz --links links.tsv.gz --out docs-ranked.jsonl.gz
  ssi links anchors --docs docs.jsonl.gz --links links.tsv.gz --out docs-anchors.jsonl.gz
""",
)
def command() -> None:
    """Compute fields of documents from the links between them: PageRank, and the texts of linking documents."""


linked_options = common.all_of(
    click.option("--docs", required=True, type=FILE, help="Documents: JSON lines (also gz) or Parquet."),
    click.option("--links", required=True, type=FILE, help="Links: source id TAB target id, no header."),
    click.option(
        "--out", required=True, type=FILE, help="File of JSON lines to write, with gzip if its name ends in .gz."
    ),
    common.id_field_option,
    common.partial_option("links"),
    common.json_option,
)


@command.command(
    "pagerank",
    short_help="Add the PageRank of each document as a field.",
    epilog="""\b
Examples:
  ssi links pagerank --docs docs.jsonl.gz --links links.tsv.gz --out docs-ranked.jsonl.gz
  ssi index docs-ranked.jsonl.gz --engine tantivy:./index --index docs --model model/
  ssi calibrate --engine tantivy:./index --index docs --model model/ \\
                --qrels qrels.tsv --query-file queries.tsv --signals pagerank
""",
)
@linked_options
@click.option("--field", default="pagerank", metavar="FIELD", help="Field to add.")
@click.option(
    "--damping",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.85,
    help="Probability of following a link instead of jumping to a random document.",
)
def pagerank_command(field: str, damping: float, as_json: bool, **options: Any) -> None:
    """Write the documents again with their PageRank: the probability that a random surfer is at the document.

    PageRanks sum to 1. A document without links leads to every document with the same probability. Cycles are allowed.
    Repeated links count once, and links of a document to itself do not count.

    The new field is a signal for `ssi calibrate --signals`, which measures whether it improves the order.
    """
    from reranker.formats import RejectLog
    from reranker.links import pagerank

    file, check, accounts = _linked(options)
    with RejectLog() as log, common.progress(f"pagerank {file.docs.name}") as update:
        rows, links = file.graph(log, check)
        ranks = pagerank(links, damping)
        n_written = file.write(options["out"], field, ranks.tolist(), update)
    n_dangling = int((links.sum(axis=1) == 0).sum())
    highest = [
        {"id": id_, field: float(ranks[row])} for id_, row in sorted(rows.items(), key=lambda r: -ranks[r[1]])[:5]
    ]
    if as_json:
        about = {"out": str(options["out"]), "documents": n_written, "links": links.nnz, "without_links": n_dangling}
        common.print_json({**about, "highest": highest, "accounts": [one.to_json() for one in accounts]})
    else:
        common.out().print(
            f"{n_written:,} documents with {links.nnz:,} links, written to {options['out']}; {n_dangling:,} documents "
            f"link to no other",
            markup=False,
        )
        table = common.plain_table("highest", field, numbers=(1,))
        for one in highest:
            table.add_row(str(one["id"]), f"{one[field]:.6f}")
        common.out().print(table)
        if log.count:
            common.out().print(log.summary(), markup=False)
    common.end_with_accounts(*accounts)


@command.command(
    "anchors",
    short_help="Add the texts of the documents that link to a document as a field.",
    epilog="""\b
Examples:
  ssi links anchors --docs docs.jsonl.gz --links links.tsv.gz --out docs-anchors.jsonl.gz
  ssi train --docs docs-anchors.jsonl.gz --fields title,text,anchors --qrels qrels.tsv --query-file queries.tsv \\
            --model model/
""",
)
@linked_options
@click.option("--field", default="anchors", metavar="FIELD", help="Field to add.")
@click.option(
    "--fields", default="title", metavar="LIST", help="Fields of the linking documents, whose texts are joined."
)
def anchors_command(field: str, fields: str, as_json: bool, **options: Any) -> None:
    """Write the documents again with the texts of the documents that link to them, as further index terms.

    A document that no other links to gets no such field. Use only links that you do not test on: with --links of
    `ssi train`, the field would contain the answers.
    """
    from reranker.formats import RejectLog
    from reranker.links import anchor_texts

    file, check, accounts = _linked(options)
    with RejectLog() as log, common.progress(f"anchors {file.docs.name}") as update:
        _, links = file.graph(log, check)
        texts = anchor_texts(file.texts([part.strip() for part in fields.split(",") if part.strip()]), links)
        n_written = file.write(options["out"], field, texts, update)
    n_without = sum(text is None for text in texts)
    if as_json:
        about = {"out": str(options["out"]), "documents": n_written, "links": links.nnz, "without_field": n_without}
        common.print_json({**about, "accounts": [one.to_json() for one in accounts]})
    else:
        common.out().print(
            f"{n_written:,} documents with {links.nnz:,} links, written to {options['out']}; {n_without:,} documents "
            f"have no text of a linking document",
            markup=False,
        )
        if log.count:
            common.out().print(log.summary(), markup=False)
    common.end_with_accounts(*accounts)


def _linked(options: dict[str, Any]) -> tuple[LinkedFile, Callable[[InputAccount], None], list[InputAccount]]:
    """Return the files of a command, the check of its links, and the list that the check adds their account to."""
    from reranker.links import LinkedFile

    accounts: list[InputAccount] = []

    def check(account: InputAccount) -> None:
        common.check_ids(account, options)
        accounts.append(account)

    return LinkedFile(options["docs"], options["links"], options["id_field"]), check, accounts
