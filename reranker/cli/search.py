"""``ssi search``: run one search and rerank its hits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from rich.markup import escape

from reranker.cli import common
from reranker.config import DEFAULT_ROUTE
from reranker.engines import Engine
from reranker.engines.bodies import searched_fields
from reranker.records import RankedHit
from reranker.rerank.settings import RerankSettings

if TYPE_CHECKING:
    from reranker.models.ranking_model import RankingModel
    from reranker.rerank import Explanation, RerankedPage


TITLE_LENGTH = 60
DEADLINE_MS: Final = 5000.0
"""Timeout, after which the engine's own order is shown: a search by hand may take longer than one of the service."""


@click.command(
    "search",
    epilog="""\b
Examples:
  ssi search "vector iterator" --engine tantivy:./index --index docs --model model/
  ssi search "red shoes" --engine elasticsearch:http://localhost:9200 --index shop --model model/ --explain
  ssi search "red shoes" --engine opensearch:http://localhost:9200 --index shop --model model/ \\
             --body body.json --route beside --window 100 --from 10 --json
A body is your own search body, with {{query}} in the place of the query text:
  {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"]}}, "_source": ["title"]}
""",
)
@click.argument("query")
@common.engine_options
@common.model_option()
@common.body_option
@click.option(
    "--route",
    type=common.ROUTE,
    default=DEFAULT_ROUTE,
    help="Where scores are computed. `beside`: here, with vectors of a local store; `fetch`: here, with vectors from "
    "the engine's response; `impacts`: when documents are written, and the engine adds up words.",
)
@common.setting(
    RerankSettings,
    "retrieve",
    type=common.RETRIEVE,
    help="Candidates: only the engine's own hits, or also the documents with the largest sums of impacts, which need "
    "not contain the query's words.",
)
@common.mode_option
@common.boost_option
@common.read_store_option
@common.window_option
@click.option("--size", type=click.IntRange(0), help="Number of hits to show.  [default: the body's size, or 10]")
@click.option(
    "--from", "first", type=click.IntRange(0), help="Number of hits to skip.  [default: the body's from, or 0]"
)
@common.alpha_option
@click.option("--explain", is_flag=True, help="Show the pairs of words that contribute to each score.")
@common.json_option
def search_command(query: str, explain: bool, as_json: bool, **options: Any) -> None:
    """Search for QUERY and rerank the engine's hits with the model.

    Hits are sorted by score, and hits with equal scores by the engine's own rank. Hits after the window keep the
    engine's order. After five seconds, the engine's own order is shown.
    """
    from reranker.models.model_folder import load_model
    from reranker.rerank.search import open_reranker, read_body

    body = read_body(options["body_path"]) if options["body_path"] else None
    engine = common.open_engine_of(options["engine_spec"])
    model = load_model(options["model_path"], engine)
    reranker = open_reranker(
        engine,
        options["index"],
        model,
        options["model_path"],
        route=options["route"],
        store_path=options["store_path"],
        settings=RerankSettings(deadline_ms=DEADLINE_MS, **common.stated(RerankSettings, options)),
        body=body,
    )
    page = reranker.search(query, body, size=options["size"], from_=options["first"], explain=explain)
    if as_json:
        common.print_json(page.to_json())
    else:
        _show(page, model)
    if not page.total and body is not None:
        for hint in _unknown_fields(engine, options["index"], body):
            common.warn(f"note: {hint}")


def _unknown_fields(engine: Engine, index: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a hint for each field that a body searches and the index does not have: its clause finds nothing."""
    from reranker.text.view import nearest_paths

    known = {path for name in engine.index_names(index) for path in _paths(engine.index_info(name).properties)}
    for field in dict.fromkeys(searched_fields(body.get("query"))):
        if field not in known:
            yield (
                f"the body searches the field {field!r}, which index {index!r} does not have: did you mean "
                f"{nearest_paths(field, known)}?"
            )


def _paths(properties: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a mapping, those of objects and multi-fields too."""
    for name, definition in properties.items():
        yield f"{prefix}{name}"
        for inner in ("properties", "fields"):
            yield from _paths(definition.get(inner, {}), f"{prefix}{name}.")


def _show(page: RerankedPage, model: RankingModel) -> None:
    """Print the hits as a table, the explanations, and notes such as the reason of a fallback."""
    table = common.plain_table("rank", "id", "title", "score", "was", numbers=(0, 3, 4))
    for hit in page.hits:
        mark = " unscored" if hit.unscored else " kept" if hit.kept else ""
        was = f"{hit.first_stage_rank}{mark}"
        table.add_row(str(hit.rank), escape(hit.id), escape(_title(hit, model)), f"{hit.score:.4f}", was)
    console = common.out()
    console.print(table if page.hits else "no hits")
    for explanation in page.explanations:
        _show_explanation(explanation)
    one = page.total == 1 and page.total_is_exact
    count = "1 document matches" if one else f"{page.total:,}{'' if page.total_is_exact else '+'} documents match"
    console.print(f"{count}; alpha {page.alpha:g} ({page.alpha_origin})" if page.alpha is not None else count)
    if page.reason:
        common.warn(f"not reranked{' (fallback)' if page.fallback else ''}: {page.reason}")
    for notice in page.notices:
        common.warn(f"note: {notice}")


def _title(hit: RankedHit, model: RankingModel) -> str:
    text = next((text for text in model.encoder.view.texts(hit.source) if text.strip()), "")
    line = " ".join(text.split())
    return line if len(line) <= TITLE_LENGTH else f"{line[: TITLE_LENGTH - 1]}…"


_WITHOUT_WORDS = {
    "learned": "all learned pairs",
    "preference": "what users preferred for this query",
    "others": "all others",
    "engine": "the engine's score",
}


_SAME_WORD = {"identity": "= the same word", "memory": "= in queries it was relevant for"}


def _show_explanation(explanation: Explanation) -> None:
    table = common.plain_table("adds", "query word", "document word", "weight", numbers=(0, 3))
    for row in explanation.contributions:
        if row.kind == "signal":
            table.add_row(f"{row.value:+.4f}", "its number in", escape(row.document_word), f"{row.weight:.3f}")
            continue
        if not row.query_word:
            table.add_row(f"{row.value:+.4f}", _WITHOUT_WORDS[row.kind], "", "")
            continue
        other = _SAME_WORD.get(row.kind) or escape(row.document_word)
        if row.kind == "vector":
            other = f"the vector near {other}"
        if row.kind == "impact":
            other = f"its impact, times {row.value / row.weight:g}"
        table.add_row(f"{row.value:+.4f}", escape(row.query_word), other, f"{row.weight:.3f}")
    console = common.out()
    console.print(f"\n{escape(explanation.id)}: {explanation.score:.4f}")
    console.print(table)
