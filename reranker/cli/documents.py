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
    help="Send the vectors of this file, written by `ssi vectorize`, in place of encoding. Documents that it "
    "does not hold, or holds with another text, are encoded here, and counted.",
)

rejects_option = click.option(
    "--rejects",
    "reject_path",
    type=FILE,
    help="Where refused lines go, with their reasons.  [default: FILE.rejects.jsonl in this folder]",
)

max_docs_option = common.setting(BulkLimits, "max_ops", "--max-docs", "max_docs", help="Documents a request.")


def model_of(model_path: Path, engine: Engine, vectors_path: Path | None) -> RankingModel:
    """Return the model of a folder, with the vectors of ``--vectors``; at the end it is said how many these lacked."""
    from reranker.models.model_folder import load_model

    model = load_model(model_path, engine)
    if vectors_path is None:
        return model
    from indexer.vectorizing import with_vectors

    model, vectors = with_vectors(model, vectors_path)

    def say_missing() -> None:
        if vectors.missing:
            common.warn(f"{vectors.missing:,} documents had no vector of their text in {vectors_path}: encoded here")

    click.get_current_context().call_on_close(say_missing)
    return model


def end_with(stopped: EngineError | None, n_refused: int) -> None:
    """Raise what stopped the writing; set the exit status where documents were refused."""
    if stopped is not None:
        raise stopped
    if n_refused:
        click.get_current_context().exit(common.EXIT_REJECTS)
