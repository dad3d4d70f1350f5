"""Options of the commands that read documents from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from indexer.bulk import BulkLimits
from reranker.cli import common
from reranker.cli.common import FILE
from reranker.engines import Engine
from reranker.errors import EngineError

if TYPE_CHECKING:
    from reranker.models.ranking_model import RankingModel

vectors_option = click.option(
    "--vectors",
    "vectors_path",
    type=FILE,
    help="Use the vectors of this file, which `ssi vectorize` wrote, instead of encoding documents. A document is "
    "encoded, and counted, if its vector is missing or was computed from another text.",
)

rejects_option = click.option(
    "--rejects",
    "reject_path",
    type=FILE,
    help="File for rejected lines, with their reasons.  [default: FILE.rejects.jsonl in this folder]",
)

max_docs_option = common.setting(
    BulkLimits, "max_ops", "--max-docs", "max_docs", help="Number of documents per request."
)


def model_of(model_path: Path, engine: Engine, vectors_path: Path | None) -> RankingModel:
    """Load the model, with the vectors of ``--vectors`` if given. On exit, a warning gives the number missing there."""
    from reranker.models.model_folder import changed_analyzer, load_model

    model = load_model(model_path, engine)
    if warning := changed_analyzer(model, engine):
        common.warn(f"warning: {warning}")
    if vectors_path is None:
        return model
    from indexer.vectorizing import with_vectors

    model, vectors = with_vectors(model, vectors_path)

    def say_missing() -> None:
        if vectors.missing:
            common.warn(f"{vectors.missing:,} documents had no current vector in {vectors_path} and were encoded here")

    click.get_current_context().call_on_close(say_missing)
    return model


def end_with(stopped: EngineError | None, n_refused: int) -> None:
    """Raise the error that stopped the writing, if any. Exit with status 8 if documents were rejected."""
    if stopped is not None:
        raise stopped
    if n_refused:
        click.get_current_context().exit(common.EXIT_REJECTS)
