"""``ssi impacts``: print the search body with which the engine alone serves the learned score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.cli import common
from reranker.engines.impacts import MODES


@click.command(
    "impacts",
    epilog="""\b
Examples:
  ssi impacts --engine elasticsearch:http://localhost:9200 --index shop --model model/ --body body.json
  ssi impacts "red shoes" --engine opensearch:http://localhost:9200 --index shop --model model/
  # only reorder the hits of the body, with more weight
  ssi impacts "red shoes" --engine elasticsearch:http://localhost:9200 --index shop --model model/ --body body.json \\
              --mode reorder --boost 4
Store the impacts first:
  ssi revectorize --routes impacts --engine elasticsearch:http://localhost:9200 --index shop --model model/
""",
)
@click.argument("query", default="")
@common.engine_options
@common.model_option()
@common.body_option
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=MODES[0],
    help="`find`: documents that only the impacts find are hits too; `reorder`: the hits stay those of the body.",
)
@click.option(
    "--boost",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    help="Weight of the impacts next to the body's own score.",
)
def impacts_command(query: str, engine_spec: str, index: str, model_path: Path, **options: Any) -> None:
    """Print the search body in which the engine adds up the impacts of the words of QUERY.

    Without QUERY, print a template with {{query}} in it. The engine's own analyzer then splits the query, which is
    right only on Elasticsearch, for a model with the analyzer of a field (--analyzer engine:INDEX/FIELD).
    """
    from reranker.engines.bodies import fill_template
    from reranker.engines.impacts import with_impacts
    from reranker.models.model_folder import load_model
    from reranker.rerank.impacts import ServedImpacts
    from reranker.rerank.ranking import default_template
    from reranker.rerank.search import read_body

    engine = common.open_engine_of(engine_spec)
    model = load_model(model_path, engine)
    impacts = ServedImpacts.of_index(engine, index, model)
    body = read_body(options["body_path"]) if options["body_path"] else default_template(model.encoder.view)
    if query:
        body, clause = fill_template(body, query), impacts.clause(query, options["boost"])
    else:
        clause = impacts.template_clause(engine, index, options["boost"])
    common.print_json(with_impacts(body, clause, options["mode"]))
