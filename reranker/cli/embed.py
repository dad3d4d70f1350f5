"""``ssi embed``: compute the vectors of documents by a text encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from reranker.accounts import InputAccount
from reranker.cli import common
from reranker.cli.common import FILE, PATH
from reranker.cli.documents import rejects_option

MAX_WORDS = 160
"""Words of a document that the encoder reads."""
BATCH = 256
"""Documents that are written together. An interrupted run continues after the last ones."""


@click.command(
    "embed",
    epilog="""\b
Examples:
  hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir minilm
  ssi embed --docs docs.jsonl --encoder minilm --out docs-vectors.jsonl.gz
  ssi train --docs docs-vectors.jsonl.gz --vector-field vector --model model/
""",
)
@click.option("--docs", "file", required=True, type=FILE, help="Documents: JSON lines (also gz) or Parquet.")
@click.option(
    "--encoder",
    "encoder_path",
    required=True,
    type=PATH,
    metavar="DIR",
    help="Folder of the text encoder: model.onnx and tokenizer.json, or a model2vec model. Nothing is downloaded.",
)
@click.option(
    "--out",
    "target",
    required=True,
    type=FILE,
    help="File to write: JSON lines, with gzip if its name ends in .gz, or Parquet if it ends in .parquet.",
)
@click.option("--vector-field", default="vector", metavar="FIELD", help="Field to add.")
@click.option("--fields", default="title,text", metavar="LIST", help="Field paths, whose texts are joined.")
@click.option("--html", is_flag=True, help="Strip HTML from the fields.")
@click.option("--max-words", type=click.IntRange(1), default=MAX_WORDS, help="Words of a document that are read.")
@common.id_field_option
@rejects_option
@common.json_option
def command(file: Path, encoder_path: Path, target: Path, as_json: bool, **options: Any) -> None:
    """Compute the vectors of documents by a text encoder, for `ssi train --vector-field`.

    The output has the same documents with one more field. A document without text has no vector. If a run is
    interrupted, run the command again to continue after the last batch. Queries never need the encoder.
    """
    from indexer.embedding import EmbeddingJob, embed_documents
    from reranker.encoders import open_encoder
    from reranker.formats import RejectLog
    from reranker.text.view import TextView

    fields = [part.strip() for part in options["fields"].split(",") if part.strip()]
    view = replace(TextView.parse(fields, strip_html=options["html"]), vector=options["vector_field"])
    job = EmbeddingJob(file, target, view, options["max_words"], BATCH, options["id_field"])
    encoder = open_encoder(encoder_path)
    rejects = options["reject_path"] or Path(f"{file.name}.rejects.jsonl")
    with common.progress(f"embed {file.name}") as update, RejectLog(rejects) as log:
        written = embed_documents(job, encoder, rejects=log, progress=update, say=common.say)
    account = InputAccount("documents", written.n_documents, log.account().left_out)
    if not log.count:
        rejects.unlink(missing_ok=True)
    if as_json:
        about = {
            "out": str(target),
            "encoder": encoder.name,
            "documents": written.n_documents,
            "without_text": written.n_without_text,
            "earlier": written.n_earlier,
        }
        common.print_json({**about, "accounts": [account.to_json()]})
    else:
        common.out().print(f"{written.n_documents:,} documents, written to {target}", markup=False)
        if written.n_without_text:
            common.out().print(f"{written.n_without_text:,} of them have no text, and no vector", markup=False)
        if log.count:
            common.out().print(log.summary(), markup=False)
    common.end_with_accounts(account)
