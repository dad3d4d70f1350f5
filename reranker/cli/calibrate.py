"""``ssi calibrate``: how much the model counts beside the engine's own score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reranker.cli import common
from reranker.cli.common import FILE
from reranker.releases import read_control

if TYPE_CHECKING:
    from reranker.artifacts import Encoder
    from reranker.rerank.calibrate import Fit, Topic
    from reranker.rerank.ranking import RouteName


@click.command("calibrate", epilog="""\b
Examples:
  ssi calibrate --engine elasticsearch:http://localhost:9200 --index shop --model model/ \\
                --qrels qrels.tsv --query-file queries.tsv --body body.json
  ssi calibrate --engine tantivy:./index --index docs --model model/ --links links.tsv --docs docs.jsonl
Fit on queries that the model was not trained on, if you can: those it knows flatter it.
""")  # fmt: skip
@common.engine_options
@common.model_option()
@common.body_option
@click.option("--qrels", type=FILE, help="Judgements: query id, document id, grade (or TREC).")
@click.option("--query-file", type=FILE, help="Queries: query id, text.")
@click.option("--links", type=FILE, help="Links: source id, target id; needs --docs.")
@click.option("--docs", type=FILE, help="The documents the links start from.")
@click.option("--queries", default="title", metavar="title|keywords:K",
              help="With --links: the query that a document becomes.")  # fmt: skip
@common.window_option
@click.option("--route", type=common.ROUTES, default="fetch",
              help="Where scores are computed; all give the same alpha.")  # fmt: skip
@common.read_store_option
@click.option("--max-queries", type=click.IntRange(10), default=1000, help="Draw at most so many queries.")
@click.option("--seed", type=click.IntRange(0), default=0)
@click.option("--dry-run", is_flag=True, help="Fit and print, but keep the release as it is.")
@common.json_option
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    engine_spec: str, index: str, model_path: Path, body_path: Path | None,
    qrels: Path | None, query_file: Path | None, links: Path | None, docs: Path | None, queries: str, window: int,
    route: RouteName, store_path: Path | None, max_queries: int, seed: int, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fit alpha, the weight of the model beside the engine's score, on queries with known answers.

    Needs either --qrels and --query-file or --links and --docs. The alpha belongs to this index, body and window and
    is kept in the model's release, where `ssi search` finds it.
    """
    from indexer.versions import existing_indexes
    from reranker.artifacts import load_model
    from reranker.rerank import RerankSettings, body_hash, default_template
    from reranker.rerank.calibrate import fit_alpha, keep_in_release, sample, warnings_of
    from reranker.rerank.reranker import open_reranker, read_body

    body = read_body(body_path) if body_path else None
    engine = common.open_engine_of(engine_spec)
    model = load_model(model_path, engine)
    existing_indexes(engine, index)
    topics = sample(_topics(qrels, query_file, links, docs, model.encoder, queries, seed), max_queries, seed)
    reranker = open_reranker(
        engine, index, model, model_path, route=route, store_path=store_path,
        settings=RerankSettings(window=window, deadline_ms=None), body=body,
    )  # fmt: skip
    if not dry_run:
        read_control(engine, index).release(model.model_id)  # raises before the searches, not after them
    with common.progress("searching", total=len(topics), unit="queries") as update:
        fit = fit_alpha(reranker, topics, "AP" if links else "nDCG@10", body, seed=seed, progress=update)
    template = body_hash(body or default_template(model.encoder.view))
    if not dry_run:
        keep_in_release(engine, index, model.model_id, template, window, fit)
    if as_json:
        common.print_json({"index": index, "body": template, "window": window, "kept": not dry_run, **fit.to_json(),
                    "warnings": warnings_of(fit)})  # fmt: skip
        return
    _show(fit, kept=not dry_run)
    for warning in warnings_of(fit):
        common.warn(f"warning: {warning}")


def _topics(
    qrels: Path | None, query_file: Path | None, links: Path | None, docs: Path | None,
    encoder: Encoder, queries: str, seed: int,
) -> list[Topic]:  # fmt: skip
    """Return the topics of the files given; counted bad lines go to standard error."""
    from reranker.formats import RejectLog
    from reranker.rerank.calibrate import topics_of_links, topics_of_qrels

    with RejectLog() as rejects:
        if qrels and query_file and not (links or docs):
            topics = topics_of_qrels(qrels, query_file, rejects)
        elif links and docs and not (qrels or query_file):
            topics = topics_of_links(links, docs, encoder, queries, seed, rejects)
        else:
            raise click.UsageError("give either --qrels and --query-file, or --links and --docs")
        if rejects.count:
            common.warn(f"refused: {rejects.summary()}")
    return topics


def _show(fit: Fit, *, kept: bool) -> None:
    table = common.plain_table("", f"mean {fit.measure}", numbers=(1,))
    table.add_row("the engine alone (alpha 0)", f"{fit.engine:.4f}")
    table.add_row("the model alone (alpha 1)", f"{fit.model:.4f}")
    table.add_row(f"alpha {fit.alpha:.4f}, on the queries it was chosen on", f"{fit.fitted:.4f}")
    table.add_row("on queries it was not chosen on (5-fold)", f"{fit.held_out:.4f} ± {fit.held_out_error:.4f}")
    table.add_row("  of that, above the engine", f"{fit.gain:+.4f} ± {fit.gain_error:.4f} (p = {fit.gain_p:.2g})")
    table.add_row("the window in perfect order", f"{fit.ceiling:.4f}")
    console = common.out()
    console.print(table)
    console.print(f"{fit.n_queries:,} queries; q·d = 0 for {fit.zero_share:.1%} of the engine's hits")
    console.print(f"alpha {fit.alpha:.4f} {'is kept in the release' if kept else 'was not kept (--dry-run)'}")
