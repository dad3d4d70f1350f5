"""``ssi calibrate``: fit the weights of the model, the engine's score and the signals to judged queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from rich.markup import escape

from reranker.accounts import InputAccount
from reranker.cli import common
from reranker.cli.common import FILE
from reranker.config import DEFAULT_ROUTE, IMPACT_BOOST
from reranker.releases import read_control

if TYPE_CHECKING:
    from reranker.engines.stored_ids import FindIds
    from reranker.formats import RejectLog
    from reranker.models.ranking_model import Encoder, RankingModel
    from reranker.rerank import Reranker
    from reranker.rerank.calibration.alpha import Fit
    from reranker.rerank.calibration.boost import BoostFit
    from reranker.rerank.calibration.comparison import OrderComparison
    from reranker.rerank.calibration.cross_validation import Gain
    from reranker.rerank.calibration.topics import FittingTopics, Topic
    from reranker.rerank.signals import Signal

MAX_QUERIES: Final = 1000
"""Maximum number of queries to which weights are fitted; a random sample is drawn from more."""


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  ssi calibrate --engine elasticsearch:http://localhost:9200 --index shop --model model/ \\
                --qrels other-qrels.tsv --query-file other-queries.tsv --body body.json
  ssi calibrate --engine tantivy:./index --index docs --model model/ --links links.tsv --docs docs.jsonl
  ssi calibrate --engine elasticsearch:http://localhost:9200 --index shop --model model/ --body body.json \\
                --qrels other-qrels.tsv --query-file other-queries.tsv --signals popularity,price:lower,released
  # the boost of the impacts, for searches without a service
  ssi calibrate --engine elasticsearch:http://localhost:9200 --index shop --model model/ --body body.json \\
                --qrels other-qrels.tsv --query-file other-queries.tsv --route impacts --mode reorder
""",
)
@common.engine_options
@common.model_option()
@common.body_option
@click.option("--qrels", type=FILE, help="Judgments: query id, document id, grade (or TREC).")
@click.option("--query-file", type=FILE, help="Queries: query id, text.")
@click.option("--links", type=FILE, help="Links: source id, target id; needs --docs.")
@click.option("--docs", type=FILE, help="Documents that contain the sources of the links.")
@common.id_field_option
@click.option(
    "--queries",
    default="title",
    metavar="title|keywords:K",
    help="With --links: how a document is turned into a query.",
)
@click.option(
    "--signals",
    "signals_text",
    metavar="FIELD[:lower],...",
    help="Document fields (numbers, dates or booleans) to use as signals. Higher values are better; with :lower, lower "
    "ones.",
)
@click.option(
    "--probability",
    is_flag=True,
    help="With --qrels: also fit the probability of relevance, which the rerank APIs then return as score.",
)
@common.window_option
@click.option(
    "--route",
    type=common.ROUTE,
    default=DEFAULT_ROUTE,
    help="Where scores are computed. All routes give the same alpha; for `impacts`, their boost is fitted instead.",
)
@common.mode_option
@common.read_store_option
@common.partial_option("links or judgments")
@click.option("--seed", type=click.IntRange(0), default=0)
@click.option("--dry-run", is_flag=True, help="Fit and print, but do not change the release.")
@common.json_option
def calibrate_command(index: str, window: int, seed: int, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Fit alpha, the weight of the model relative to the engine's score, on queries with known relevant documents.

    Give either --qrels and --query-file, or --links and --docs. The fitted alpha is valid for this index, search body
    and window. It is stored in the model's release, where `ssi search` and `ssi serve` find it.

    Queries that the model was trained on are left out, because alpha and the gain would be too high on them. If fewer
    than 30 others remain, all are used, and the output says that the gain is too high. Models of earlier
    versions do not contain their training queries; the output then says that this is unknown. Of more than 1,000
    queries, a random sample is used.

    With --signals, weights of document signals (popularity, date, price, rating, stock, click rate) are fitted and
    stored together with alpha. A signal that gains no more than two standard errors gets the weight 0.

    With --route impacts, the boost of the impacts is fitted for the body and the --mode, by one search of the engine
    for each query and boost. `ssi impacts`, and the route of `ssi search` and `ssi serve`, then use it.

    The output contains a search body with the field weights of the model's tuned lexical score, which works without
    `ssi serve`. On the same queries, it compares the engine with your body, the engine with that body, the model's word
    matches without its learned part, and the model. If the model reduces words to stems and the analyzers of the
    searched fields do not, the output says how much of the gain an analyzer with stems would give without the model.
    """
    from indexer.versions import existing_indexes
    from reranker.engines.stored_ids import stored_ids
    from reranker.formats import RejectLog
    from reranker.models.model_folder import load_model
    from reranker.rerank import RerankSettings
    from reranker.rerank.calibration.topics import sample, topics_to_fit
    from reranker.rerank.search import open_reranker, read_body
    from reranker.rerank.signals import parse_signals, typed

    _check_options(options)
    signals = () if options["signals_text"] is None else parse_signals(options["signals_text"])
    body = read_body(options["body_path"]) if options["body_path"] else None
    engine = common.open_engine_of(options["engine_spec"], retry=True)
    model = load_model(options["model_path"], engine)
    existing_indexes(engine, index)
    signals = typed(signals, engine, index) if signals else ()
    reranker = open_reranker(
        engine,
        index,
        model,
        options["model_path"],
        route=options["route"],
        store_path=options["store_path"],
        settings=RerankSettings(window=window, deadline_ms=None, mode=options["mode"]),
        body=body,
    )
    rejects = RejectLog()
    found, account = _topics(model.encoder, seed, rejects, partial(stored_ids, engine, index), **options)
    chosen = topics_to_fit(found, model.training_queries)
    topics = sample(chosen.topics, MAX_QUERIES, seed)
    if rejects.count:
        common.warn(f"rejected lines: {rejects.summary()}")
    if not dry_run:
        read_control(engine, index).release(model.model_id)  # fails before the searches, not after them
    measure = "AP" if options["links"] else "nDCG@10"
    accounts = (rejects.account(), account)
    task = CalibrationTask(reranker, model, body, chosen, topics, measure, seed, accounts, not dry_run)
    if options["route"] == "impacts":
        _calibrate_boost(task, as_json)
    else:
        _calibrate_alpha(task, signals, options["probability"], as_json)
    common.end_with_accounts(*accounts)


def _check_options(options: Mapping[str, Any]) -> None:
    if options["probability"] and not options["qrels"]:
        raise click.UsageError("--probability needs judgements: give --qrels and --query-file")
    if options["route"] == "impacts" and (options["probability"] or options["signals_text"] is not None):
        raise click.UsageError(
            "--route impacts fits only the boost of the impacts: leave --signals and --probability out, or give "
            "another route"
        )


class CalibrationTask(NamedTuple):
    """The searches to which a weight is fitted, and how to report the result."""

    reranker: Reranker
    model: RankingModel
    body: Mapping[str, Any] | None
    """The search body template; None: the default one."""
    chosen: FittingTopics
    topics: Sequence[Topic]
    """The sample of the chosen topics."""
    measure: str
    seed: int
    accounts: tuple[InputAccount, ...]
    keeps: bool
    """Whether the result is stored in the release."""

    @property
    def template(self) -> Mapping[str, Any]:
        """The search body template."""
        from reranker.rerank import default_template

        return self.body or default_template(self.model.encoder.view)

    def warnings(self, of_fit: Sequence[str]) -> list[str]:
        """Return all warnings, given those of the fit."""
        return [*([] if self.chosen.held_out else [self.chosen.sentence()]), *of_fit]

    def print_json(self, fit: Fit | BoostFit, warnings: Sequence[str], **others: Any) -> None:
        """Print a fit as JSON."""
        from reranker.rerank import body_hash

        common.print_json(
            {
                "index": self.reranker.index,
                "body": body_hash(self.template),
                "window": self.reranker.settings.window,
                "kept": self.keeps,
                **fit.to_json(),
                **others,
                "queries_given": self.chosen.n_given,
                "queries_of_training": self.chosen.n_learned,
                "warnings": warnings,
                "accounts": [account.to_json() for account in self.accounts],
            }
        )

    def show_warnings(self, warnings: Sequence[str]) -> None:
        """Print which queries were used, and the warnings."""
        if self.chosen.held_out:
            common.out().print(self.chosen.sentence())
        for warning in warnings:
            common.warn(f"warning: {warning}")


def _calibrate_alpha(task: CalibrationTask, signals: tuple[Signal, ...], probability: bool, as_json: bool) -> None:
    """Fit alpha, and store and print the result."""
    from reranker.rerank.calibration.alpha import fit_alpha, keep_in_release
    from reranker.rerank.calibration.fit_warnings import warnings_of

    reranker, model, topics = task.reranker, task.model, task.topics
    with common.progress("searching", total=len(topics), unit="queries") as update:
        fit = fit_alpha(
            reranker,
            topics,
            task.measure,
            task.body,
            seed=task.seed,
            progress=update,
            signals=signals,
            probability=probability,
        )
    compared = _compare(task, fit)
    fit = replace(fit, held_out_from_training=task.chosen.held_out)
    warnings = task.warnings(warnings_of(fit, task.body))
    if task.keeps:
        window = reranker.settings.window
        keep_in_release(reranker.engine, reranker.index, model.model_id, task.template, window, fit)
    if as_json:
        task.print_json(
            fit,
            warnings,
            weighted_body=compared and compared.weighted,
            comparison=compared and compared.orders.to_json(),
            stems=compared and (compared.stems or None),
        )
        return
    _show_fit(fit, kept=task.keeps)
    if compared is not None:
        _show_comparison(compared)
    task.show_warnings(warnings)


def _calibrate_boost(task: CalibrationTask, as_json: bool) -> None:
    """Fit the boost of impacts, and store and print the result."""
    from reranker.rerank.calibration.boost import fit_boost, keep_boost
    from reranker.rerank.calibration.fit_warnings import warnings_of_boost

    reranker, topics = task.reranker, task.topics
    with common.progress("searching", total=len(topics), unit="queries") as update:
        fit = fit_boost(reranker, topics, task.measure, task.template, seed=task.seed, progress=update)
    fit = replace(fit, held_out_from_training=task.chosen.held_out)
    warnings = task.warnings(warnings_of_boost(fit))
    if task.keeps:
        keep_boost(reranker.engine, reranker.index, task.model.model_id, task.template, fit)
    if as_json:
        task.print_json(fit, warnings)
        return
    _show_boost(fit, kept=task.keeps)
    task.show_warnings(warnings)


class Comparison(NamedTuple):
    """The engine's order compared with the body that has the model's field weights, and with the model."""

    weighted: Mapping[str, Any]
    """The search body with the field weights of the model."""
    orders: OrderComparison
    stems: str
    """A sentence on the gain that stems in the index would give; "" if the index has the stems of the model."""


def _compare(task: CalibrationTask, fit: Fit) -> Comparison | None:
    """Return the comparison on the topics of a fit; None if the model has no body with field weights."""
    from reranker.rerank.calibration.comparison import OrderComparison
    from reranker.rerank.calibration.rankings import engine_run

    reranker, topics = task.reranker, task.topics
    weighted = _accepted_weights(reranker, task.model.encoder, task.body, topics[0])
    if weighted is None:
        return None
    with common.progress("searching with the field weights", total=len(topics), unit="queries") as update:
        orders = OrderComparison.of(fit, topics, engine_run(reranker, topics, weighted, update))
    return Comparison(weighted, orders, _stems(task, orders))


def _accepted_weights(
    reranker: Reranker, encoder: Encoder, body: Mapping[str, Any] | None, topic: Topic
) -> dict[str, Any] | None:
    """Return the first body with the model's field weights that the engine accepts for a topic; None without one."""
    from reranker.errors import EngineRejected
    from reranker.rerank.calibration.rankings import engine_run
    from reranker.rerank.weighted_template import WEIGHTED_KINDS, weighted_template

    for kind in WEIGHTED_KINDS:
        weighted = weighted_template(encoder, body, kind)
        if weighted is None:
            return None
        try:
            engine_run(reranker, [topic], weighted)
        except EngineRejected:
            continue
        return weighted
    return None


def _stems(task: CalibrationTask, orders: OrderComparison) -> str:
    """Return what stems in the index would give, or why this is unknown; "" if the index has the model's stems."""
    from reranker.errors import EngineError
    from reranker.rerank.stems import stems_sentence, unstemmed_fields

    engine, index, encoder = task.reranker.engine, task.reranker.index, task.model.encoder
    try:
        fields = unstemmed_fields(engine, index, encoder, task.template)
    except EngineError as error:
        return f"it is unknown whether the analyzers of index {index!r} reduce words to stems: {error}"
    return stems_sentence(fields, orders, task.measure, encoder) if fields else ""


def _topics(
    encoder: Encoder, seed: int, rejects: RejectLog, find: FindIds, **options: Any
) -> tuple[list[Topic], InputAccount]:
    """Return the topics of the given files, and the account of the links or judgments."""
    from reranker.engines.stored_ids import IdCheck
    from reranker.rerank.calibration.topics import topics_of_links, topics_of_qrels

    qrels, query_file, links, docs = (options[name] for name in ("qrels", "query_file", "links", "docs"))
    accounts: list[InputAccount] = []

    def receive(account: InputAccount) -> None:
        common.check_ids(account, options)
        accounts.append(account)

    check = IdCheck(receive, find)
    if qrels and query_file and not (links or docs):
        topics = topics_of_qrels(qrels, query_file, rejects, check)
        common.say_relevant(topic.grades for topic in topics)
        return topics, accounts[0]
    if links and docs and not (qrels or query_file):
        id_field = options["id_field"]
        given = (links, docs, encoder, options["queries"], seed, rejects, id_field)
        return topics_of_links(*given, check), accounts[0]
    raise click.UsageError("give either --qrels and --query-file, or --links and --docs")


def _gain(gain: Gain, n: int) -> str:
    from reranker.evaluation import half_interval

    return f"{gain.mean:+.4f} ± {half_interval(gain.error, n):.4f} (p = {gain.p:.2g})"


def _kind_of_queries(fit: Fit | BoostFit, weight: str) -> str:
    """Return the name of the cross-validated value: held-out only if the model was not trained on the queries."""
    if fit.held_out_from_training:
        return "on held-out queries (5-fold cross-validation)"
    kind = "" if fit.held_out_from_training is None else ", on training queries"
    return f"5-fold cross-validation of {weight}{kind}"


def _show_fit(fit: Fit, *, kept: bool) -> None:
    from reranker.evaluation import half_interval

    table = common.plain_table("", f"mean {fit.measure}", numbers=(1,))
    table.add_row("engine only (alpha 0)", f"{fit.engine:.4f}")
    table.add_row("model only (alpha 1)", f"{fit.model:.4f}")
    chosen = f"alpha {fit.alpha:.4f}{' with the signals' if fit.signals else ''}"
    table.add_row(f"{chosen}, on the queries used for fitting", f"{fit.fitted:.4f}")
    n = fit.n_queries
    table.add_row(_kind_of_queries(fit, "alpha"), f"{fit.held_out:.4f} ± {half_interval(fit.held_out_error, n):.4f}")
    table.add_row("  gain over the engine", _gain(fit.gain_over_engine(), n))
    if fit.signals_gain is not None:
        table.add_row("  gain from all signals", _gain(fit.signals_gain, n))
    for found in fit.signals:
        way = " (lower is better)" if found.signal.lower else ""
        table.add_row(
            f"  signal {escape(found.signal.field)}{way}, weight {found.signal.weight:g}", _gain(found.gain, n)
        )
    table.add_row("ideal order of the window", f"{fit.ceiling:.4f}")
    console = common.out()
    console.print(table)
    console.print(
        f"{n:,} queries; ± is a 95 % confidence interval; q·d = 0 for {fit.zero_share:.1%} of the engine's hits"
    )
    if (logistic := fit.probability) is not None:
        slope, offset = logistic.probability
        console.print(
            f"{logistic.share:.1%} of the candidates are relevant. Probability of relevance: 1 / (1 + e^-({slope:.4g} "
            f"f {offset:+.4g})), mean error {logistic.error:.3f} in cross-validation"
        )
    console.print(f"{chosen} {'was stored in the release' if kept else 'was not stored (--dry-run)'}")


def _show_boost(fit: BoostFit, *, kept: bool) -> None:
    from reranker.evaluation import half_interval

    n = fit.n_queries
    table = common.plain_table("", f"mean {fit.measure}", numbers=(1,))
    table.add_row("engine only (no impacts)", f"{fit.engine:.4f}")
    for boost, mean in fit.curve:
        table.add_row(f"boost {boost:g}{' (default)' if boost == IMPACT_BOOST else ''}", f"{mean:.4f}")
    table.add_row(f"boost {fit.boost:g}, on the queries used for fitting", f"{fit.fitted:.4f}")
    table.add_row(
        _kind_of_queries(fit, "the boost"), f"{fit.held_out:.4f} ± {half_interval(fit.held_out_error, n):.4f}"
    )
    table.add_row("  gain over the engine", _gain(fit.gain, n))
    table.add_row(f"  gain over the default boost {IMPACT_BOOST:g}", _gain(fit.gain_over_default, n))
    console = common.out()
    console.print(table)
    console.print(f"{n:,} queries; ± is a 95 % confidence interval")
    console.print(
        f"boost {fit.boost:g} for the mode {fit.mode} "
        f"{'was stored in the release' if kept else 'was not stored (--dry-run)'}"
    )


def _show_comparison(compared: Comparison) -> None:
    labels = {
        "engine": "engine",
        "weights": "engine with the field weights",
        "words": "model's word matches",
        "model": "model (cross-validated)",
    }
    measures = ("MAP" if measure == "AP" else measure for measure in compared.orders.means["engine"])
    table = common.plain_table("", *measures, numbers=(1, 2))
    for order, label in labels.items():
        table.add_row(label, *(f"{mean:.4f}" for mean in compared.orders.means[order].values()))
    for (first, second), tests in compared.orders.differences.items():
        cells = (f"{test.difference:+.4f} ± {test.interval:.4f}" for test in tests.values())
        table.add_row(f"  {labels[first]} − {labels[second]}", *cells)
    common.out().print(table)
    # click instead of rich, because a body for copying must not be wrapped.
    click.echo(f"search body with the model's field weights: {json.dumps(compared.weighted, ensure_ascii=False)}")
    if compared.stems:
        common.out().print(escape(compared.stems))
