"""``ssi vectorize``: compute the vectors of a large collection in advance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.accounts import InputAccount
from reranker.cli import common
from reranker.cli.common import FILE
from reranker.cli.documents import rejects_option


@click.command(
    "vectorize",
    epilog="""\b
Examples:
  ssi vectorize --docs docs.jsonl --model model/ --out vectors.parquet
  ssi index docs.jsonl --engine tantivy:./index --index docs --model model/ --vectors vectors.parquet
""",
)
@click.option("--docs", "file", required=True, type=FILE, help="Documents: JSON lines (also gz) or Parquet.")
@common.model_option()
@click.option("--out", "target", required=True, type=FILE, help="File of vectors to write (Parquet).")
@common.id_field_option
@rejects_option
@common.json_option
def vectorize_command(file: Path, target: Path, as_json: bool, **options: Any) -> None:
    """Compute the vectors of documents in advance. `ssi index` and `ssi revectorize` read them by --vectors.

    The index gets the same content with and without --vectors. Several machines can vectorize parts of the documents.
    """
    from indexer.vectorizing import vectorize
    from reranker.formats import RejectLog

    rejects = options["reject_path"] or Path(f"{file.name}.rejects.jsonl")
    with common.progress(f"vectorize {file.name}") as update, RejectLog(rejects) as log:
        n_vectors = vectorize(
            file,
            options["model_path"],
            target,
            id_field=options["id_field"],
            rejects=log,
            progress=update,
            notice=common.warn,
        )
    account = InputAccount("documents", n_vectors, log.account().left_out)
    if not log.count:
        rejects.unlink(missing_ok=True)
    if as_json:
        about = {"out": str(target), "documents": n_vectors, "rejects_by_kind": dict(log.kinds)}
        common.print_json({**about, "accounts": [account.to_json()]})
    else:
        common.out().print(f"{n_vectors:,} documents, written to {target}", markup=False)
        if log.count:
            common.out().print(log.summary(), markup=False)
    common.end_with_accounts(account)
