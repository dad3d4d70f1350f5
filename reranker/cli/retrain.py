"""``ssi retrain``: train a new model on clicks, and make it live only if it is better."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reranker.accounts import InputAccount
from reranker.cli import common
from reranker.cli.common import PATH
from reranker.cli.pair_options import read_propensities
from reranker.config import milliseconds
from reranker.errors import ConfigError
from reranker.retrain.settings import GateConfig, RetrainSettings
from reranker.training.config import TrainConfig

if TYPE_CHECKING:
    from reranker.retrain.result import RetrainResult


_RETRAIN_EXAMPLES = """\b
Examples:
  ssi retrain --engine opensearch:http://localhost:9200 --index shop --clicks clicks/ --report report.html
  ssi retrain --engine elasticsearch:http://localhost:9200 --index shop --clicks clicks/ --query-side-only
  ssi retrain --engine tantivy:./index --index docs --clicks log.jsonl --warm-start model/ --links links.tsv --dry-run
Exit status: 0 promoted (or would be, with --dry-run), 7 refused, 8 promoted, but input lines were rejected,
9 nothing to learn from.
"""


_retrain_options = common.all_of(
    common.engine_options,
    click.option(
        "--clicks",
        "clicks",
        type=PATH,
        multiple=True,
        required=True,
        metavar="LOG",
        help="Folder of a click log (`ssi clicks import`), or a raw log file; can be repeated.",
    ),
    click.option("--since", metavar="TIME", help="Ignore older clicks (ISO 8601; UTC if no zone is given)."),
    click.option(
        "--models",
        type=PATH,
        default=Path("models"),
        metavar="DIR",
        help="Folder of the model folders. It must contain the live model, and the new model is saved in it.",
    ),
    common.setting(
        RetrainSettings,
        "base",
        "--warm-start",
        "base",
        type=PATH,
        metavar="DIR",
        help="Base model to start from, trained on links or judgments only.  [default: the base model of the live "
        "model, else the live model]",
    ),
    common.renamed_option("--base", "--warm-start", kind=PATH),
    click.option("--links", type=PATH, metavar="FILE", help="Also learn from links: source id TAB target id."),
    click.option(
        "--qrels",
        type=PATH,
        metavar="FILE",
        help="Judgments: query id TAB document id TAB grade. Half of the queries are used for training. The other "
        "half, which is the same in every run, is used by the gate.",
    ),
    common.renamed_option("--judgments", "--qrels", kind=PATH),
    common.renamed_option("--judgements", "--qrels", kind=PATH),
    click.option("--query-file", type=PATH, metavar="FILE", help="Queries of --qrels: query id TAB text."),
    common.partial_option("links or judgments"),
    common.setting(
        RetrainSettings,
        "query_side_only",
        help="Train only the query side (U). The vectors of documents do not change.",
    ),
    common.setting(
        RetrainSettings,
        "words_only",
        help="Learn only what words mean. Otherwise the model also remembers which documents users preferred for "
        "queries that several people asked.",
    ),
    click.option(
        "--propensities",
        type=PATH,
        metavar="FILE",
        help="Result of `ssi clicks propensities`.  [default: estimated from the log]",
    ),
    common.setting(
        GateConfig, "margin", help="Minimum gain in nDCG of the clicks, at the lower bound of its confidence interval."
    ),
    common.body_option,
    common.setting(
        RetrainSettings,
        "window",
        help="Number of hits reranked in service. The window and the body identify the calibration.",
    ),
    common.setting(TrainConfig, "seed", help="Seed of all random numbers."),
    common.write_store_option,
    common.setting(
        RetrainSettings,
        "max_docs_per_s",
        "--max-docs-per-second",
        "rate_limit",
        metavar="N",
        help="Maximum write rate, so that the engine keeps answering searches.",
    ),
    click.option("--report", type=PATH, metavar="FILE", help="Write an HTML report that needs no network access."),
    common.setting(
        RetrainSettings, "dry_run", help="Train and compare, but do not change the index and its record of versions."
    ),
    common.json_option,
)


@click.command("retrain", epilog=_RETRAIN_EXAMPLES)
@_retrain_options
def retrain(**options: Any) -> None:
    """Retrain the model of an index from clicks, and make it live only if it is better.

    The older part of the log is turned into preference pairs. With links and judgments, they train a new model. It
    starts from the base model, never from the result of the last retraining. The gate then reranks the impressions of
    the newest part, which the model has not seen, once with the live model and once with the new one. If the new model
    is better at the lower bound of the confidence interval, its vectors are added to the index and it goes live.
    Otherwise nothing changes.

    If a run is interrupted, the live version stays live. Run the command again to continue.
    """
    from reranker.clicks.importing import open_logs
    from reranker.engines.stored_ids import stored_ids
    from reranker.formats import RejectLog
    from reranker.heap import share_arenas
    from reranker.retrain.learner import read_links_and_judgements
    from reranker.retrain.loop import Retraining
    from reranker.training import Listener

    share_arenas(1)
    settings = _retrain_settings(options)
    engine = common.open_engine_of(options["engine_spec"], retry=True)
    with RejectLog() as rejects:
        accounts: list[InputAccount] = []

        def check(account: InputAccount) -> None:
            common.check_ids(account, options)
            accounts.append(account)

        in_index = partial(stored_ids, engine, options["index"])
        other_evidence = read_links_and_judgements(
            options["links"], options["qrels"], options["query_file"], rejects, check, in_index
        )
        if options["qrels"]:
            trained = (judged for part in other_evidence.evidence for judged in part.grades.values())
            common.say_relevant(chain(trained, other_evidence.judged.values()))
        log = open_logs(options["clicks"], rejects=rejects)
        if rejects.count:
            common.warn(f"rejected lines: {rejects.summary()}")
        with common.stage_progress() as update:
            listener = Listener(common.say, update)
            result = Retraining(
                engine, options["index"], log, settings, other_evidence, listener, options["report"]
            ).run()
        accounts.insert(0, rejects.account())
    if options["as_json"]:
        parts = {
            "next": commands_of_a_vote(result, engine.spec),
            "accounts": [account.to_json() for account in accounts],
        }
        common.print_json({**result.to_json(), **parts})
    else:
        _show_retraining(result)
        for step in commands_of_a_vote(result, engine.spec):
            common.out().print(step, markup=False, soft_wrap=True)
    if result.exit_code:
        for account in accounts:
            if account.given:
                common.say(account.sentence)
        click.get_current_context().exit(result.exit_code)
    common.end_with_accounts(*accounts)


def _retrain_settings(options: dict[str, Any]) -> RetrainSettings:
    from reranker.rerank.search import read_body

    if bool(options["qrels"]) != bool(options["query_file"]):
        raise ConfigError("--qrels holds query ids and --query-file their texts: give both, or neither")
    same = (
        "models",
        "base",
        "query_side_only",
        "words_only",
        "window",
        "store",
        "dry_run",
    )
    return RetrainSettings(
        train=TrainConfig(seed=options["seed"]),
        gate=GateConfig(options["margin"]),
        since=milliseconds("since", options["since"]),
        propensities=read_propensities(options["propensities"]),
        body=read_body(options["body_path"]) if options["body_path"] else None,
        max_docs_per_s=options["rate_limit"],
        **{name: options[name] for name in same},
    )


def commands_of_a_vote(result: RetrainResult, engine: str) -> list[str]:
    """Return the commands that let people decide about a refused model which the clicks do not show to be worse."""
    gain = next((one for one in result.verdict["measured"] if one["name"] == "clicks nDCG"), None)
    if result.outcome != "refused" or gain is None or gain["difference"]["estimate"] <= 0:
        return []
    where, name = f"--engine {engine} --index {result.index}", result.candidate[:12]
    return [
        "next, to let people choose between both orders:",
        f"  ssi revectorize {where} --model {result.model_path}",
        f"  ssi serve {where} --models {result.model_path.parent} --interleave {name} --sink engine",
        f"  ssi interleave report --engine {engine}",
    ]


def _show_retraining(result: RetrainResult) -> None:
    console = common.out()
    style = "red" if result.outcome == "refused" else "green"
    console.print(f"[{style}]{result.outcome}[/{style}]  {result.candidate[:12]} for {result.index}")
    console.print(result.reason, markup=False)
    orders = ("live", "new", "random")
    table = common.plain_table("", *orders, "difference", "at least", numbers=(1, 2, 3, 4, 5))
    for measure in result.verdict["measured"]:
        change = measure["difference"]
        values = dict(zip(measure["compared"], (measure["live"], measure["candidate"]), strict=True))
        table.add_row(
            measure["name"],
            *(f"{values[order]:.4f}" if order in values else "" for order in orders),
            f"{change['estimate']:+.4f}",
            f"{change['lower']:+.4f}",
        )
    console.print(table)
    _show_queries("lost most", result.verdict["losers"][:5])
    _show_queries("gained most", result.verdict["winners"][:5])
    data = result.data
    console.print(
        f"{data['pairs']:,} preference pairs of {data['learned']:,} impressions; compared on {data['judged']:,} newer "
        f"impressions of {data['people']:,} people; {result.documents_written:,} documents written"
    )
    console.print(f"model  {result.model_path}", markup=False, soft_wrap=True)
    if result.report is not None:
        console.print(f"report {result.report}", markup=False, soft_wrap=True)


def _show_queries(title: str, changes: Sequence[dict[str, Any]]) -> None:
    if changes:
        text = ", ".join(f"{each['query'][:40]!r} ({each['live']:.2f} to {each['candidate']:.2f})" for each in changes)
        common.out().print(f"{title}: {text}", markup=False)
