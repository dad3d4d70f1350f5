"""``ssi clicks``: store click logs without personal data, check them, and turn them into pairs and judgments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from reranker.cli import common
from reranker.cli.common import FILE, PATH
from reranker.cli.pair_options import (
    LOG_FORMATS,
    METHODS,
    STRATEGY_LINES,
    impression_options,
    key_option,
    log_arguments,
    log_option,
    opened_log,
    pair_config,
    pair_options,
    summary_lines,
    time_range,
)
from reranker.clicks.exports import EXPORTS
from reranker.clicks.pairs import Computing, Resources
from reranker.config import SIMULATED_IMPRESSIONS
from reranker.errors import ConfigError, GateRefused, InputError, UnknownPerson

if TYPE_CHECKING:
    from reranker.clicks.doctor import FailedQuery
    from reranker.clicks.importing import ImportReport
    from reranker.clicks.log import ClickLog
    from reranker.engines import Engine
    from reranker.formats import RejectLog


@click.group(
    "clicks",
    cls=common.CommandGroup,
    variables="SSI_CLICKS",
    epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson --log clicks/
  ssi clicks forget 3f2a77c0 --log clicks/
""",
)
def clicks() -> None:
    """Store click logs without personal data, check them, and turn them into preference pairs for training.

    LOG... is the folder of a click log, or raw log files, in every command that reads it.
    """


@clicks.command(
    "import",
    short_help="Import logs into a click log: one format, no personal data, no duplicates.",
    epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson.gz --log clicks/
  ssi clicks import clicks.jsonl --log clicks/ --rejects bad.jsonl
  ssi clicks import --engine opensearch:http://localhost:9200 --since 2026-11-01 --log clicks/
""",
)
@click.argument("logs", nargs=-1, type=PATH, metavar="[LOG...]")
@log_option
@click.option(
    "--format",
    "log_format",
    type=click.Choice(LOG_FORMATS),
    default="auto",
    help="Format of raw log files; auto detects it from their first lines.",
)
@click.option(
    "--engine",
    "engine_spec",
    metavar="SPEC",
    help="Read the UBI indexes of elasticsearch:URL or opensearch:URL instead of files.",
)
@click.option("--queries-index", default="ubi_queries", metavar="NAME", help="UBI's index of queries.")
@click.option("--events-index", default="ubi_events", metavar="NAME", help="UBI's index of events.")
@click.option(
    "--since",
    metavar="TIME",
    help="With --engine: read rows from this time on (2026-11-20 or ISO 8601).  [default: where the last import ended]",
)
@click.option("--until", metavar="TIME", help="With --engine: read rows up to this time.")
@key_option
@click.option(
    "--rejects", type=PATH, metavar="FILE", help="Write position, reason and structure of rejected lines to this file."
)
@common.json_option
def import_logs(logs: tuple[Path, ...], engine_spec: str | None, as_json: bool, **options: Any) -> None:
    """Import log files, or the UBI indexes of an engine, into a click log.

    Accepted formats are OpenSearch UBI (JSON lines, bulk files, search responses, Parquet), the project's own JSON
    lines, and Metarank events. Ids of users, sessions and networks are replaced by keyed hashes. E-mail addresses,
    telephone numbers and card numbers in queries are masked. Each record is imported once, so you can run the command
    again after an interruption or when a file has grown.
    """
    from reranker.clicks.importing import LiveSource, import_files, import_live
    from reranker.clicks.log import ClickLog
    from reranker.formats import RejectLog

    if bool(logs) == bool(engine_spec):
        raise ConfigError("give either LOG... files, or --engine to read its UBI indexes")
    if (options["since"] or options["until"]) and not engine_spec:
        raise ConfigError("--since and --until select rows of an engine's indexes: give --engine, or leave them out")
    log = ClickLog(options["log_folder"], create=True)
    privacy = log.privacy(options["key_file"])
    with RejectLog(options["rejects"]) as sink, common.progress("import", unit="records") as update:
        if engine_spec:
            source = LiveSource(options["queries_index"], options["events_index"], options["since"], options["until"])
            engine = common.open_engine_of(engine_spec, retry=True)
            report = import_live(log, engine, source, privacy, rejects=sink, progress=update)
        else:
            report = import_files(log, logs, privacy, format=options["log_format"], rejects=sink, progress=update)
    _show_import(report, log, sink, as_json)
    common.end_with_accounts(sink.account())


def _counted(rows: dict[str, int]) -> str:
    """Return the numbers of rows by table as text. Rows of ``people`` link a user to a client."""
    names = {"people": "links of a user to a client"}
    return ", ".join(f"{count:,} {names.get(name, name)}" for name, count in rows.items())


def _show_import(report: ImportReport, log: ClickLog, sink: RejectLog, as_json: bool) -> None:
    if as_json:
        common.print_json({**report.to_json(), "log": log.counts()})
        return
    console = common.out()
    console.print(f"imported {_counted(report.rows) or 'nothing'}")
    console.print(f"holds    {_counted(log.counts())}")
    if report.known:
        console.print(f"known    {', '.join(report.known)}: already in the log")
    if report.resumed:
        console.print(f"resumed  {', '.join(report.resumed)}")
    if sink.count:
        console.print(f"rejected {sink.summary()}")


@clicks.command(
    "forget",
    short_help="Remove all rows of a person.",
    epilog="""\b
Examples:
  ssi clicks forget 3f2a77c0-9a41 --log clicks/
  ssi clicks forget customer-812 --log clicks/ --key /etc/ssi/clicks.key --json
""",
)
@click.argument("user")
@log_option
@key_option
@click.option(
    "--models",
    type=PATH,
    default=Path("models"),
    metavar="DIR",
    help="Folder of the model folders of `ssi retrain`. The command names models in it that remember queries.",
)
@common.json_option
def forget(user: str, log_folder: Path, key_file: Path | None, models: Path, as_json: bool) -> None:
    """Remove all rows of a person from a click log. USER is the user, client or session id that the site uses.

    If USER is a session with exactly one user, all rows of that user are removed too. If the log has no row of USER,
    the exit status is 9. In both cases, later imports skip rows of USER.

    Retrain afterwards, because models that learned from the rows keep what they learned until they are replaced. The
    command names the models that remember queries together with the documents clicked for them, or that contain hashes
    of their training queries. The next `ssi retrain` rebuilds both, and `ssi gc --keep 0` then removes the old memory
    from the index. Raw log files and the engine's
    own indexes are not changed. Importing an old copy of them does not restore the rows.
    """
    from reranker.clicks.log import ClickLog
    from reranker.retrain.loop import models_that_remember

    log = ClickLog(log_folder)
    privacy = log.privacy(key_file)
    hashes = {privacy.of("user", user), privacy.of("session", user)}
    forgotten_before = not hashes.isdisjoint(log.manifest.forgotten)
    removed = log.forget(user, privacy)
    known = any(removed.values()) or forgotten_before
    remembering = models_that_remember(models) if known else []
    _show_removed(removed, log, as_json, remembering)
    if not known:
        # The message leaves the id out because shells and schedulers log it.
        message = f"the click log {str(log_folder)!r} has no row of the given user, client or session id"
        raise UnknownPerson(f"{message}: give the id as the site logs it")


@clicks.command(
    "expire",
    short_help="Remove all rows older than a number of days.",
    epilog="""\b
Examples:
  ssi clicks expire --days 90 --log clicks/
  # from a timer, where nobody can answer
  ssi clicks expire --days 90 --log clicks/ --yes
""",
)
@click.option("--days", required=True, type=click.IntRange(0), help="Number of days to keep a row after its own day.")
@log_option
@click.option("--yes", is_flag=True, help="Remove the rows without asking.")
@common.json_option
def expire(days: int, log_folder: Path, yes: bool, as_json: bool) -> None:
    """Remove all rows older than a number of days (UTC), after a question. Run it daily.

    If the time of a row is missing or later than its import, its age is counted from the day of the import.
    """
    from reranker.clicks.log import ClickLog

    log = ClickLog(log_folder)
    if not yes:
        common.confirm(f"Remove all rows of {str(log_folder)!r} older than {days} days? They cannot be restored.")
    _show_removed(log.expire(days), log, as_json)


def _show_removed(
    removed: dict[str, int], log: ClickLog, as_json: bool, remembering: Sequence[str] | None = None
) -> None:
    if as_json:
        more = {} if remembering is None else {"remembering": list(remembering)}
        common.print_json({"removed": removed, "log": log.counts(), **more})
        return
    common.out().print(f"removed {_counted(removed)}")
    if remembering:
        names = ", ".join(model_id[:12] for model_id in remembering)
        common.warn(
            f"the models {names} may still remember removed queries: run `ssi retrain` to train a model without them, "
            "then delete the folders of these models and run `ssi gc --keep 0`"
        )


@clicks.command(
    "doctor",
    short_help="Check whether a click log is fit for training, and what to repair.",
    epilog="""\b
Examples:
  ssi clicks doctor ubi_queries.ndjson ubi_events.ndjson
  ssi clicks doctor clicks/ --engine opensearch:http://localhost:9200 --index products --picture clicks.html
""",
)
@log_arguments
@click.option(
    "--engine",
    "engine_spec",
    metavar="SPEC",
    help="Check that shown document ids exist in this engine: tantivy:PATH, elasticsearch:URL or opensearch:URL.",
)
@click.option("--index", metavar="NAME", help="Index (or alias) that was searched; requires --engine.")
@click.option(
    "--picture",
    type=PATH,
    metavar="FILE",
    help="Write a plot of the click rate by rank (.png or .svg), or a page with all findings (.html).",
)
@common.model_option(required=False)
@common.json_option
def doctor(
    logs: tuple[Path, ...],
    engine_spec: str | None,
    index: str | None,
    picture: Path | None,
    model_path: Path | None,
    as_json: bool,
) -> None:
    """Check a click log: ids, positions, missing rows, robots, coverage, click rate by rank, queries without success.

    Queries of at least 5 people that find nothing or get no click are listed with the nearest words: of the index, by
    the U and V of --model, or without a model those of clicked queries that are spelled alike.

    Every finding is `ok`, a `warning`, or `unsound`, and says what to do. Unsound means that a model would learn wrong
    preferences from the log, or none. The exit status is 7 if a finding is unsound, otherwise 0.
    """
    from reranker.clicks.doctor import bars, examine, write_picture
    from reranker.retrain.history import propensity_finding

    if (engine_spec is None) != (index is None):
        raise ConfigError("--engine and --index belong together: give both, or neither")
    with opened_log(logs) as (log, sink):
        engine = common.open_engine_of(engine_spec) if engine_spec else None
        diagnosis = examine(log, engine, index)
        if diagnosis.severity != "unsound":
            diagnosis = replace(diagnosis, findings=(*diagnosis.findings, propensity_finding(log)))
    if model_path is not None:
        diagnosis = replace(diagnosis, failed=_with_index_words(diagnosis.failed, model_path, engine))
    if picture is not None:
        write_picture(diagnosis, picture)
    if as_json:
        common.print_json(diagnosis.to_json())
    else:
        console = common.out()
        colours = {"ok": "green", "warning": "yellow", "unsound": "red"}
        for finding in diagnosis.findings:
            console.print(f"[{colours[finding.severity]}]{finding.severity:<8}[/] {finding.code:<16} ", end="")
            console.print(finding.sentence, markup=False)
        console.print("\nclick rate by rank, robots left out")
        for line in bars(diagnosis.rates):
            console.print(line, markup=False)
        _show_failed(diagnosis.failed)
    if unsound := diagnosis.sentences("unsound"):
        raise GateRefused(
            f"the log is unsound: {len(unsound)} of {len(diagnosis.findings)} checks failed; see the findings above",
            unsound=unsound,
        )
    common.end_with_accounts(sink.account())


def _with_index_words(
    failed: Sequence[FailedQuery], model_path: Path, engine: Engine | None
) -> tuple[FailedQuery, ...]:
    """Return the queries with the nearest words of the index by a model."""
    from reranker.models.model_folder import load_model
    from reranker.words import nearest_index_words

    model = load_model(model_path, engine)
    return tuple(replace(query, nearest=tuple(nearest_index_words(model, query.query))) for query in failed)


def _show_failed(failed: Sequence[FailedQuery]) -> None:
    for title, has_results in (("queries without results", False), ("queries without a click", True)):
        chosen = [query for query in failed if query.has_results == has_results]
        if not chosen:
            continue
        table = common.plain_table(title, "people", "searches", "nearest words", numbers=(1, 2))
        for query in chosen:
            table.add_row(escape(query.query), f"{query.people:,}", f"{query.searches:,}", ", ".join(query.nearest))
        common.out().print(table)


@clicks.command(
    "propensities",
    short_help="Estimate how often users examine each rank.",
    epilog="""\b
Examples:
  ssi clicks propensities clicks/ --out propensities.json
  ssi clicks propensities clicks/ --method rate
""",
)
@log_arguments
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    help="randomised: from lists logged as shuffled. harvest: from documents shown at several ranks. em: like harvest, "
    "by expectation maximisation, for documents shown often. rate: the click rate itself. auto: randomised if there "
    "are enough shuffled lists, else harvest, else rate.",
)
@click.option(
    "--out",
    "target",
    type=PATH,
    metavar="FILE",
    help="Write the propensities as JSON, for --propensities of `ssi clicks pairs`.",
)
@common.json_option
def propensities(logs: tuple[Path, ...], method: str, target: Path | None, as_json: bool) -> None:
    """Estimate the propensity of each rank: how often users examine it, relative to the rank examined most often.

    A click at a rank that is rarely examined is stronger evidence, so the weight of its pairs is 1 / propensity.
    """
    from reranker.clicks.propensities import count_log, estimate_propensities
    from reranker.files import write_file

    with opened_log(logs) as (log, sink):
        counts = count_log(log)
    estimate = estimate_propensities(counts, method)
    if target is not None:
        write_file(target, (json.dumps(estimate.to_json(), indent=1) + "\n").encode("utf-8"), private=True)
    if as_json:
        common.print_json(estimate.to_json())
        common.end_with_accounts(sink.account())
        return
    console = common.out()
    console.print(f"by {estimate.method}, from {estimate.n:,} result lists")
    rested_on = counts.only(counts.randomised) if estimate.method == "randomised" else counts
    shown, clicked = rested_on.by_rank()
    for rank, propensity in enumerate(estimate.by_rank, start=1):
        console.print(f"{rank:>4}  {propensity:.4f}  clicked {clicked[rank - 1]:,} of {shown[rank - 1]:,}")
    common.end_with_accounts(sink.account())


@clicks.command(
    "pairs",
    short_help="Turn clicks into preference pairs for training.",
    epilog=STRATEGY_LINES
    + """\b
Examples:
  ssi clicks pairs clicks/ --out pairs.parquet
  ssi clicks pairs ubi_queries.ndjson ubi_events.ndjson --strategy clicked-over-next --out pairs.tsv
  ssi clicks pairs clicks/ --propensities propensities.json --min-dwell 10 --min-users 2 --out pairs.parquet
  ssi train --docs docs.jsonl --pairs pairs.parquet --model model/
""",
)
@log_arguments
@click.option(
    "--out",
    "target",
    required=True,
    type=FILE,
    help="File for the pairs (query, better, worse, weight): TSV if the name ends in .tsv, otherwise Parquet.",
)
@pair_options
@common.json_option
def pairs(logs: tuple[Path, ...], target: Path, as_json: bool, **options: Any) -> None:
    """Turn clicks into preference pairs (query, better, worse, weight) for training.

    The weight is the number of people whose clicks express the preference. Each person counts at most once. Robots are
    left out: they are detected by user agent, speed, number of clicks and repeated clicks on one document. The order of
    the log lines and repeated lines make no difference.
    """
    from reranker.clicks.exports import write_tsv
    from reranker.clicks.pairs import make_pairs

    config, between = pair_config(options), time_range(options)
    how: Computing = {"resources": Resources(memory_mb=options["memory_mb"]), **between}
    with opened_log(logs) as (log, sink), make_pairs(log, config, **how) as table:
        if target.suffix.lower() == ".tsv":
            write_tsv(table.pairs(), target)
        else:
            table.write(target)
        counts = table.counts
    if as_json:
        common.print_json({"out": str(target), "strategy": config.strategy, "counts": counts})
        common.end_with_accounts(sink.account())
        return
    console = common.out()
    console.print(f"{counts['pairs']:,} pairs of {counts['impressions']:,} impressions, written to {target}")
    left_out = {name: n for name, n in counts.items() if n and name.startswith(("robot", "no_", "out"))}
    if left_out:
        reasons = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in left_out.items())
        console.print(f"left out of {counts['searches']:,} queries: {reasons}")
    if counts["too_few_people"]:
        console.print(f"{counts['too_few_people']:,} pairs were left out: too few people, or weight 0")
    common.end_with_accounts(sink.account())


@clicks.command(
    "export",
    short_help="Export clicks as judgments for TREC, LETOR, Search Relevance Workbench and Quepid.",
    epilog=summary_lines("Forms", {name: export.summary for name, export in EXPORTS.items()}, 9)
    + """\b
Examples:
  ssi clicks export clicks/ --to trec --out clicks.qrels
  ssi clicks export clicks/ --to srw --min-people 5 --propensities propensities.json --out judgements.json
  ssi clicks export ubi_queries.ndjson ubi_events.ndjson --to quepid --out ratings.csv
""",
)
@log_arguments
@click.option(
    "--to", "form", required=True, type=common.RemovingChoice(list(EXPORTS)), help="Format to write, see below."
)
@click.option(
    "--out",
    "target",
    required=True,
    type=FILE,
    help="File to write. trec also writes FILE.queries.tsv with the query texts.",
)
@click.option(
    "--min-people",
    type=click.IntRange(1),
    default=1,
    help="Number of people to whom a document must have been shown.",
)
@impression_options
@common.json_option
def export(logs: tuple[Path, ...], form: str, target: Path, min_people: int, as_json: bool, **options: Any) -> None:
    """Export clicks as judgments for other tools.

    The judgment of a document is the number of people who clicked it, divided by the number of people who examined it.
    With --propensities, a person to whom it was shown at rank r counts as the propensity of r in the divisor. The grade
    is this share times the highest grade.
    """
    from reranker.clicks.exports import judgements_of_ratings, write_judgements
    from reranker.clicks.pairs import ratings

    config, between = pair_config(options), time_range(options)
    queries = target.with_name(target.name + ".queries.tsv") if EXPORTS[form].query_file else None
    with opened_log(logs) as (log, sink):
        judgements = judgements_of_ratings(ratings(log, config, **between), min_people)
        count = write_judgements(judgements, target, form, queries=queries)
    if as_json:
        common.print_json({"out": str(target), "to": form, "rows": count, "queries": queries and str(queries)})
    else:
        query_texts = f", query texts to {queries}" if queries else ""
        common.out().print(f"{count:,} rows written to {target}{query_texts}")
    common.end_with_accounts(sink.account())


N_SHOWN = 10
"""Number of documents of a simulated result page."""


@clicks.command(
    "simulate",
    short_help="Simulate the clicks of a week, to see what they would teach before you log any.",
    epilog="""\b
Examples:
  ssi clicks simulate --engine opensearch:http://localhost:9200 --index shop --body body.json \\
      --query-file queries.tsv --log simulated/
  ssi clicks simulate --engine tantivy:./index --index docs --model model/ --query-file queries.tsv \\
      --qrels judgments.tsv --impressions 20000 --truth truth.tsv --log simulated/
""",
)
@common.engine_options
@common.model_option(required=False)
@common.body_option
@click.option(
    "--query-file",
    required=True,
    type=PATH,
    metavar="FILE",
    help="Queries that people ask: query id TAB text, the most frequent first.",
)
@click.option(
    "--qrels",
    type=PATH,
    metavar="FILE",
    help="Judgments: query id TAB document id TAB grade. Somebody who looks at a document clicks it with probability "
    ".8 if it has the highest grade, .05 if it has no grade above 0, and in proportion between them.  [default: each "
    "document has a random appeal, drawn from Beta(.8, 2.5), that no text tells]",
)
@click.option(
    "--impressions",
    type=click.IntRange(1, 1_000_000),
    default=SIMULATED_IMPRESSIONS,
    help="Number of result pages that people see.",
)
@click.option("--people", type=click.IntRange(1), help="Number of people.  [default: a quarter of --impressions]")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of all random choices: equal seeds, equal rows.")
@click.option(
    "--log", "log_folder", required=True, type=PATH, metavar="DIR", help="Folder of the click log, which is created."
)
@click.option(
    "--truth",
    type=FILE,
    metavar="FILE",
    help="Write the attraction of each shown document as a judgment: query id TAB document id TAB probability.",
)
@common.json_option
def simulate_clicks(as_json: bool, **options: Any) -> None:
    """Simulate the clicks of a week on your own queries and index, to see what they would teach before you log any.

    Each query is searched once. People are shown its first 10 documents in the order of --model, or of the engine if no
    model is given; a tenth of the pages is shown in random order. They look at rank k with probability k^-0.8. Without
    --body, the text fields of the model are searched, or `title` and `text`. A query is asked
    the more often, the earlier it stands in --query-file. The times of the log begin on 2026-01-01.

    nDCG@10 says how good the shown order is by the true attraction, each query as often as it was asked. Use the log
    only for trials: never add real clicks to it, and never promote a model that was trained on it.
    """
    import numpy as np

    from reranker.clicks.log import ClickLog
    from reranker.clicks.schema import DAY_MS
    from reranker.clicks.simulator import (
        DAYS,
        START_MS,
        STEEPNESS,
        PositionBased,
        ResultPages,
        simulate,
        tables_of,
        week_of,
    )
    from reranker.files import write_file
    from reranker.formats import RejectLog

    _refuse_rows(options["log_folder"])
    engine = common.open_engine_of(options["engine_spec"], retry=True)
    with RejectLog() as rejects:
        ids = _queries_to_ask(options["query_file"], rejects)
        grades = _grades_of(options["qrels"], ids, rejects)
        lists = ResultPages.of(_shown_lists(engine, list(ids), options))
    seed, n = options["seed"], options["impressions"]
    if grades is None:
        attraction = lists.drawn_attraction(np.random.default_rng([seed, 0]))
    else:
        attraction = lists.attraction_of_grades(grades)
    plan = week_of(n, options["people"] or max(n // 4, 1))
    users = PositionBased.power(lists.rankings.shape[1], STEEPNESS)
    simulated = simulate(lists.rankings, attraction, users, plan, np.random.default_rng([seed, 1]))
    log = ClickLog(options["log_folder"], create=True)
    # The day of the import is stored, too: with a fixed one, equal seeds give equal bytes.
    log.add([tables_of(simulated, lists.queries, lists.documents)], "simulated", now_ms=START_MS + (DAYS + 1) * DAY_MS)
    if options["truth"] is not None:
        names = list(ids.values())
        judged = lists.judgements(attraction)
        lines = [f"{names[query]}\t{document}\t{grade:g}\n" for query, document, grade in judged]
        write_file(options["truth"], "".join(lines).encode("utf-8"))
    asked = np.bincount(simulated.query, minlength=len(ids))
    without = int((lists.rankings[:, 0] < 0).sum())
    result = {
        "log": str(options["log_folder"]),
        "impressions": n,
        "shuffled": int(simulated.randomised.sum()),
        "clicks": int(simulated.clicked.sum()),
        "people": len(np.unique(simulated.user)),
        "days": DAYS,
        "queries": {"given": len(ids), "asked": int((asked > 0).sum()), "without_documents": without},
        "click_rate_by_rank": [round(rate, 4) for rate in simulated.click_rates.tolist()],
        "nDCG@10": round(lists.true_ndcg(attraction, asked), 4),
        "truth": None if options["truth"] is None else str(options["truth"]),
        "commands": _commands_after(options),
    }
    if as_json:
        common.print_json(result)
    else:
        _show_simulated(result)
    common.end_with_accounts(rejects.account())


def _refuse_rows(folder: Path) -> None:
    """Raise `GateRefused` if a folder is a click log with rows."""
    from reranker.clicks.log import MANIFEST, ClickLog

    rows = ClickLog(folder).counts() if (folder / MANIFEST).exists() else {}
    if any(rows.values()):
        raise GateRefused(
            f"the click log {str(folder)!r} holds {_counted(rows)}: simulated clicks must not be mixed with others; "
            "give a new folder with --log"
        )


def _queries_to_ask(path: Path, rejects: RejectLog) -> dict[str, str]:
    """Return query text, as a click log keeps it -> query id. Of equal texts, the first one counts."""
    from reranker.clicks.privacy import redact
    from reranker.tables import at_least_one, read_queries

    ids: dict[str, str] = {}
    for query in at_least_one("queries", path, rejects, lambda: list(read_queries(path, rejects=rejects))):
        if text := redact(query.text):
            ids.setdefault(text, query.id)
    if not ids:
        raise InputError(f"{str(path)!r} holds no query: write at least one line, query id TAB text", path=str(path))
    return ids


def _grades_of(path: Path | None, ids: Mapping[str, str], rejects: RejectLog) -> dict[str, dict[str, float]] | None:
    """Return query text -> document id -> grade; None without a file of judgments."""
    from reranker.tables import at_least_one, read_judgements

    if path is None:
        return None
    judged = at_least_one("judgments", path, rejects, lambda: read_judgements(path, rejects))
    grades = {text: judged[id_] for text, id_ in ids.items() if id_ in judged}
    if not grades:
        raise InputError(
            f"no judgment of {str(path)!r} is of a query of --query-file: give the file of queries that were judged",
            path=str(path),
        )
    return grades


def _shown_lists(engine: Engine, queries: Sequence[str], options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return query -> ids of the first `N_SHOWN` documents, in the order of the model, or of the engine without one.

    Raises `InputError` if the index does not exist, or no query finds a document.
    """
    from indexer.versions import existing_indexes
    from reranker.models.model_folder import load_model
    from reranker.rerank import Reranker, RerankSettings, default_template
    from reranker.rerank.search import open_reranker, read_body
    from reranker.text.view import TextView

    index, model_path = options["index"], options["model_path"]
    existing_indexes(engine, index)
    body = read_body(options["body_path"]) if options["body_path"] else None
    settings = RerankSettings(deadline_ms=None)
    if model_path is None:
        reranker, view = Reranker(engine, index, None, settings=settings), TextView()
    else:
        model = load_model(model_path, engine)
        reranker = open_reranker(engine, index, model, model_path, settings=settings, body=body)
        view = model.encoder.view
    shown = {**(body or default_template(view)), "_source": False}
    with common.progress("searching", total=len(queries), unit="queries") as update:
        pages = []
        for number, query in enumerate(queries):
            pages.append(reranker.search(query, shown, size=N_SHOWN, from_=0))
            update(number + 1, len(queries))
    lists = {page.query: list(dict.fromkeys(hit.id for hit in page.hits)) for page in pages}
    if not any(lists.values()):
        fields = ", ".join(spec.path for spec in view.fields)
        searched = f"the body {str(options['body_path'])!r}" if body else f"a search in the fields {fields}"
        raise InputError(
            f"none of the {len(queries):,} queries finds a document of index {index!r} by {searched}: give a body that "
            "searches its fields with --body, or queries with words of its documents",
            index=index,
        )
    if model_path is not None and not any(page.reranked for page in pages):
        common.warn(f"no list is reranked, so that the order is the engine's own: {pages[0].reason}")
    return lists


def _commands_after(options: Mapping[str, Any]) -> list[str]:
    """Return the commands that show what the simulated clicks teach."""
    folder = str(options["log_folder"])
    retrain = ["ssi", "retrain", "--engine", options["engine_spec"], "--index", options["index"], "--clicks", folder]
    for option, path in (("--warm-start", options["model_path"]), ("--body", options["body_path"])):
        retrain += [] if path is None else [option, str(path)]
    return [shlex.join(["ssi", "clicks", "doctor", folder]), shlex.join([*retrain, "--dry-run"])]


def _show_simulated(result: Mapping[str, Any]) -> None:
    console, queries = common.out(), result["queries"]
    found_nothing = f", {queries['without_documents']:,} of which find nothing" if queries["without_documents"] else ""
    lines = [
        f"{result['impressions']:,} impressions with {result['clicks']:,} clicks of {result['people']:,} people in "
        f"{result['days']:,} days, written to {result['log']}",
        f"{queries['asked']:,} of {queries['given']:,} queries were asked{found_nothing}; {result['shuffled']:,} pages "
        "are in random order",
        f"click rate by rank: {', '.join(f'{rate:.3f}' for rate in result['click_rate_by_rank'])}",
        f"nDCG@10 of the shown order by the true attraction: {result['nDCG@10']:.4f}",
    ]
    if result["truth"] is not None:
        lines.append(f"true attractions written to {result['truth']}")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    console.print("\nNext, type:", style="bold")
    for command in result["commands"]:
        click.echo(f"  {command}")
