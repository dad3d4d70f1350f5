"""``ssi impacts``: print the search body in which the engine adds up learned words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reranker.cli import common


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
@common.mode_option
@common.boost_option
def impacts_command(
    query: str, engine_spec: str, index: str, model_path: Path, body_path: Path | None, **options: Any
) -> None:
    """Print the search body in which the engine adds up the impacts of the words of QUERY.

    Without QUERY, print a template with {{query}} in it. The engine's own analyzer then splits the query, which is
    right only on Elasticsearch, for a model with the analyzer of a field (--analyzer engine:INDEX/FIELD).

    Without --boost, the boost is the one that `ssi calibrate --route impacts` fitted to this body and mode.
    """
    from reranker.engines.bodies import fill_template
    from reranker.engines.impacts import with_impacts
    from reranker.models.model_folder import load_model
    from reranker.rerank.impacts import ServedImpacts
    from reranker.rerank.ranking import default_template
    from reranker.rerank.search import read_body, readable_calibration
    from reranker.rerank.settings import RerankSettings

    settings = RerankSettings(**common.stated(RerankSettings, options))
    engine = common.open_engine_of(engine_spec)
    model = load_model(model_path, engine)
    impacts = ServedImpacts.of_index(engine, index, model)
    body = read_body(body_path) if body_path else default_template(model.encoder.view)
    boost = readable_calibration(engine, index, model.model_id).boost(body, settings.mode, settings.boost)
    if query:
        body, clause = fill_template(body, query), impacts.clause(query, boost)
    else:
        clause = impacts.template_clause(engine, index, boost)
    common.print_json(with_impacts(body, clause, settings.mode))
