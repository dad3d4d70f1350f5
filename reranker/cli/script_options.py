"""What ``ssi scripts show``, ``install`` and ``remove`` share: the options and how a list of steps is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.markup import escape
from rich.table import Table

from reranker.cli.common import model_option, open_engine_of, out

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel
    from reranker.engines.base import Engine
    from reranker.engines.scripts import Done, Setup

F = TypeVar("F", bound=Callable[..., Any])
KEY_VARIABLE = "SSI_SERVICE_API_KEY"

_OPTIONS = (
    click.option("--engine", "engine_spec", required=True, metavar="SPEC",
                 help="elasticsearch:URL or opensearch:URL."),
    model_option(required=False),
    click.option("--service", metavar="URL",
                 help=f"Address of `ssi serve` as the engine sees it; its key comes from {KEY_VARIABLE}."),
    click.option("--name", default="ssi", show_default=True, help="Of endpoint and pipeline."),
    click.option("--field", "text_field", default="text", show_default=True,
                 help="Field whose text the engine sends to the service."),
    click.option("--id-field", metavar="FIELD",
                 help="Field with the document's id, sent instead of the text: stored vectors are used."),
)  # fmt: skip


def script_options(function: F) -> F:
    """Add the options of the three commands."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def setup_of(
    context: click.Context, options: dict[str, Any], *, secret: bool
) -> tuple[Engine, RankingModel | None, Setup]:
    """Return engine, model and what is wanted; the service's key is left out unless it is to be sent."""
    from reranker.artifacts import load_model
    from reranker.engines.scripts import Setup, requests_of, trusted_of

    if options["model_path"] is None and options["service"] is None:
        raise click.UsageError("give --model for stored scripts, --service for the engine's own reranking, or both")
    engine = open_engine_of(context, options["engine_spec"])
    requests_of(engine)
    path: Path | None = options["model_path"]
    model = load_model(path, engine) if path else None
    key = os.environ.get(KEY_VARIABLE, "none") if secret else "(the service's key)"
    setup = Setup(
        model.encoder_id if model else None, options["service"], options["name"], options["text_field"],
        options["id_field"], key, trusted_of(engine) if options["service"] else (),
    )  # fmt: skip
    return engine, model, setup


def show_done(done: Sequence[Done]) -> None:
    """Print what became of each step."""
    table = Table("what", "state", "detail", box=None, pad_edge=False)
    for one in done:
        detail = "; ".join(part for part in (one.detail, one.step.note) if part)
        table.add_row(escape(one.step.what), one.state, escape(detail))
    out().print(table)
