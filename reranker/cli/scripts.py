"""``ssi scripts``: stored scripts, pipelines and endpoints with which the engine reranks without the service."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from reranker.cli import common
from reranker.engines import Engine

if TYPE_CHECKING:
    from reranker.engines.scripts import Done, InstallStep, Setup
    from reranker.models.ranking_model import RankingModel

KEY_VARIABLE = "SSI_SERVICE_API_KEY"

_script_options = common.all_of(
    click.option("--engine", "engine_spec", required=True, metavar="SPEC", help="elasticsearch:URL or opensearch:URL."),
    common.model_option(required=False),
    click.option(
        "--service",
        metavar="URL",
        help=f"URL of `ssi serve` as the engine reaches it. The API key comes from {KEY_VARIABLE}.",
    ),
    click.option("--name", default="ssi", help="Name of the endpoint or the pipeline."),
    click.option(
        "--field", "text_field", default="text", help="Field with the text that the engine sends to the service."
    ),
    click.option(
        "--id-field",
        metavar="FIELD",
        help="Field with the document's id. The engine sends the id instead of the text, and the service uses stored "
        "vectors.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.IntRange(1),
        default=2,
        help="Seconds after which OpenSearch stops waiting for the service and keeps the first-stage order.",
    ),
)


@click.group(
    "scripts",
    cls=common.CommandGroup,
    variables="SSI_SCRIPTS",
    epilog="""\b
Examples:
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/ --index shop --query "red shoes"
  ssi scripts install --engine opensearch:http://localhost:9200 --model model/
  ssi scripts install --engine elasticsearch:http://localhost:9200 --service http://ssi:8080 --field title
""",
)
def scripts() -> None:
    """Rerank inside the engine: stored scripts, search pipelines, inference endpoints.

    The commands read the version, the modules and the licence of the engine. Steps that the project's tests cannot run
    are marked 'written from the documentation, never run on this engine version'.
    """


def _setup(options: dict[str, Any], *, secret: bool) -> tuple[Engine, RankingModel | None, Setup]:
    """Return the engine, the model and the setup. Only with ``secret`` does the setup contain the service's key."""
    from reranker.engines.protocol import requests_of
    from reranker.engines.scripts import Installed, Setup, installed_in
    from reranker.models.model_folder import load_model

    if options["model_path"] is None and options["service"] is None:
        raise click.UsageError("give --model for stored scripts, --service for the engine's own reranker, or both")
    engine = common.open_engine_of(options["engine_spec"])
    requests_of(engine)
    model = load_model(options["model_path"], engine) if options["model_path"] else None
    key = os.environ.get(KEY_VARIABLE, "none") if secret else "(the service's key)"
    setup = Setup(
        model.encoder_id if model else None,
        options["service"],
        options["name"],
        options["text_field"],
        options["id_field"],
        key,
        options["timeout_s"],
        installed_in(engine, options["name"]) if options["service"] else Installed(),
    )
    return engine, model, setup


@scripts.command(
    "show",
    short_help="Print what would be installed, what the engine does not support, and how to search with it.",
    epilog="""\b
Examples:
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/
  ssi scripts show --engine opensearch:http://localhost:9200 --model model/ --index shop --query "red shoes" \\
                   --body body.json --window 1000
  ssi scripts show --engine elasticsearch:http://localhost:9200 --service http://ssi:8080 --field title
""",
)
@_script_options
@click.option(
    "--query",
    help="Also print a complete search request for this text in --index that the engine reranks by the stored script, "
    "in the order that the service gives now.",
)
@click.option(
    "--index", metavar="NAME", help="Index (or alias) for --query: its calibrated alpha, fields and shards are used."
)
@common.body_option
@common.window_option
@common.alpha_option
@common.json_option
def show(query: str | None, index: str | None, as_json: bool, **options: Any) -> None:
    """Print what `ssi scripts install` would do and what the engine does not support. Nothing is changed."""
    from reranker.engines.scripts import example_search, install_steps, licence_of

    if query is not None and (options["model_path"] is None or index is None):
        raise click.UsageError("--query needs a model and an index: give --model and --index too")
    engine, model, setup = _setup(options, secret=False)
    capabilities, licence = engine.capabilities(), licence_of(engine)
    steps = install_steps(setup, capabilities, licence)
    searches: dict[str, Any] = {}
    addresses: dict[str, str] = {}
    if setup.service is not None:
        searches["reranked by the service"] = example_search(setup, capabilities)
    if query is not None and model is not None and index is not None:
        name = "reranked by the stored script"
        addresses[name], searches[name] = _search_body(engine, model, index, query, options)
    if as_json:
        about = {"engine": capabilities.kind, "version": capabilities.version, "licence": licence}
        common.print_json({**about, "steps": [step.to_json() for step in steps], "searches": searches})
        return
    stated_licence = f", licence {licence}" if licence else ""
    common.out().print(f"{capabilities.kind} {capabilities.version}{stated_licence}", highlight=False)
    for step in steps:
        _show_step(step)
    for name, body in searches.items():
        click.echo(f"\n# a search {name}\n{addresses.get(name, '')}{json.dumps(body, indent=2, ensure_ascii=False)}")


def _show_step(step: InstallStep) -> None:
    params = "&".join(f"{name}={value}" for name, value in (step.params or {}).items())
    click.echo(f"\n# {step.what}\n{step.method} {step.path}{f'?{params}' if params else ''}")
    if step.body is not None:
        click.echo(json.dumps(step.body, indent=2, ensure_ascii=False))
    for text in (f"not possible: {step.why_not}" if step.why_not else "", step.note):
        if text:
            common.warn(f"{step.what}: {text}")


def _search_body(
    engine: Engine, model: RankingModel, index: str, query: str, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the request line of a search, and the user's search body with a rescore by the stored script."""
    from reranker.engines.scripts import script_ids
    from reranker.rerank import Reranker, RerankSettings
    from reranker.rerank.ranking import preference_of
    from reranker.rerank.search import calibration_of, read_body

    settings = RerankSettings(window=options["window"], alpha=options["alpha"], deadline_ms=None)
    calibration = calibration_of(engine, index, model.model_id)
    reranker = Reranker(engine, index, model, route="inside", calibration=calibration, settings=settings)
    template = read_body(options["body_path"]) if options["body_path"] else None
    body, chosen = reranker.engine_body(query, template, stored=script_ids(model.encoder_id)["blend"])
    if chosen.origin == "default":
        common.warn(f"alpha = {chosen.value:g} is the default, not fitted to this index, body and window")
    if chosen.signals:
        common.warn(
            "this body uses signals, which a stored script of a version without signals would ignore: run `ssi scripts "
            "install` again"
        )
    return f"POST /{index}/_search?preference={preference_of(query)}\n", body


@scripts.command(
    "install",
    short_help="Install stored scripts, and with --service an endpoint or pipeline that calls the service.",
    epilog="""\b
Examples:
  ssi scripts install --engine opensearch:http://localhost:9200 --model model/
  ssi scripts install --engine opensearch:http://localhost:9200 --service http://ssi:8080 --id-field sku
""",
)
@_script_options
@common.json_option
def install(as_json: bool, **options: Any) -> None:
    """Install what the engine supports, and report why the rest is not possible.

    With --model, the command installs the stored scripts that score by the fields of `--routes inside`. With --service,
    it sets up the engine's own reranker to call `ssi serve` (an inference endpoint, or a connector with a search
    pipeline). In OpenSearch, it then removes the models and connectors of earlier installations by the same --name, and
    sends a test request through the engine to the service.
    """
    from reranker.engines.scripts import carry_out_steps, install_steps, licence_of

    engine, _, setup = _setup(options, secret=True)
    done = carry_out_steps(engine, install_steps(setup, engine.capabilities(), licence_of(engine)))
    _show_done(done, as_json)
    if all(outcome.state != "done" for outcome in done):
        click.get_current_context().exit(7)


@scripts.command(
    "remove",
    short_help="Remove what `ssi scripts install` installed.",
    epilog="""\b
Examples:
  ssi scripts remove --engine opensearch:http://localhost:9200 --model model/
  ssi scripts remove --engine elasticsearch:http://localhost:9200 --service http://ssi:8080
""",
)
@_script_options
@common.json_option
def remove(as_json: bool, **options: Any) -> None:
    """Remove what `ssi scripts install` installed. Parts that do not exist are skipped.

    With --model, the command removes the stored scripts of its encoder. With --service, it removes the endpoint, or the
    pipeline, the remote models and the connectors of --name. The address of the service stays among the trusted ones.
    """
    from reranker.engines.scripts import carry_out_steps, remove_steps

    engine, _, setup = _setup(options, secret=False)
    _show_done(carry_out_steps(engine, remove_steps(setup, engine.capabilities())), as_json)


def _show_done(done: Sequence[Done], as_json: bool) -> None:
    """Print the result of each step. The command exits with status 4 if the engine refused one."""
    if as_json:
        common.print_json([outcome.to_json() for outcome in done])
    else:
        table = common.plain_table("what", "state", "detail")
        for outcome in done:
            detail = "; ".join(part for part in (outcome.detail, outcome.step.note) if part)
            table.add_row(escape(outcome.step.what), outcome.state, escape(detail))
        common.out().print(table)
    if any(outcome.state == "refused" for outcome in done):
        click.get_current_context().exit(4)
