"""``ssi scripts show``: what would be put into an engine, and how a search uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.cli.common import err, json_option, out, print_json
from reranker.cli.script_options import script_options, setup_of

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel
    from reranker.engines.base import Capabilities
    from reranker.engines.scripts import Step


@click.command("show", epilog="""\b
Examples:
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/ --query "red shoes" --window 1000
  ssi scripts show --engine elasticsearch:http://localhost:9200 --service http://ssi:8080 --field title
""")  # fmt: skip
@script_options
@click.option("--query", help="Also print a whole search for this text that the engine reranks by the stored script.")
@click.option(
    "--body", "body_path", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Search body (JSON) with {{query}} in it.  [default: BM25 over the model's text fields]",
)  # fmt: skip
@click.option("--window", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Hits reranked.")
@click.option("--alpha", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Weight of the model.")
@json_option
@click.pass_context
def command(
    context: click.Context, /, query: str | None, body_path: Path | None, window: int, alpha: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Print what would be put in and what the engine cannot take; nothing is changed."""
    from reranker.engines.scripts import example_search, install_steps, licence_of

    if query is not None and options["model_path"] is None:
        raise click.UsageError("--query needs the query's side of a model: give --model too")
    engine, model, setup = setup_of(context, options, secret=False)
    able, licence = engine.capabilities(), licence_of(engine)
    steps = install_steps(setup, able, licence)
    searches: dict[str, Any] = {}
    if setup.service is not None:
        searches["reranked by the service"] = example_search(setup, able)
    if query is not None and model is not None:
        searches["reranked by the stored script"] = _search(model, able, query, body_path, window, alpha)
    if as_json:
        about = {"engine": able.kind, "version": able.version, "licence": licence}
        print_json({**about, "steps": [step.to_json() for step in steps], "searches": searches})
        return
    out().print(f"{able.kind} {able.version}{f', licence {licence}' if licence else ''}", highlight=False)
    for step in steps:
        _show(step)
    for name, body in searches.items():
        click.echo(f"\n# a search {name}\n{json.dumps(body, indent=2, ensure_ascii=False)}")


def _show(step: Step) -> None:
    """Print a step as it would be sent, and what speaks against it."""
    params = "&".join(f"{name}={value}" for name, value in (step.params or {}).items())
    click.echo(f"\n# {step.what}\n{step.method} {step.path}{f'?{params}' if params else ''}")
    if step.body is not None:
        click.echo(json.dumps(step.body, indent=2, ensure_ascii=False))
    for text in (f"not possible: {step.why_not}" if step.why_not else "", step.note):
        if text:
            err().print(f"{step.what}: {text}", style="yellow", markup=False)


def _search(
    model: RankingModel, able: Capabilities, query: str, body_path: Path | None, window: int, alpha: float
) -> dict[str, Any]:
    """Return the team's body with a rescore by the stored script."""
    from reranker.engines.bodies import fill_template
    from reranker.engines.inside import Blending, rescore_body, script_fields, why_not_rescored
    from reranker.engines.scripts import script_ids
    from reranker.errors import InputError
    from reranker.rerank import default_template
    from reranker.rerank.candidates import encode_query, model_query
    from reranker.rerank.reranker import read_body

    body = fill_template(read_body(body_path) if body_path else default_template(model.encoder.view), query)
    fields, encoded = script_fields(model.encoder_id, able), encode_query(model, query)
    if reason := why_not_rescored(body, fields):
        raise InputError(f"the engine cannot rescore this body: {reason}; use `ssi search --route inside`")
    blending = Blending(alpha, (1.0 - alpha) / encoded.scale, window)
    stored = script_ids(model.encoder_id)["blend"]
    return rescore_body(body, fields, model_query(encoded.vectors), blending, stored=stored)
