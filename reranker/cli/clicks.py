"""``ssi clicks`` and ``ssi retrain``: click logs without personal data, what they say, and a better model of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reranker.cli import common
from reranker.cli.common import FILE, PATH
from reranker.clicks.exports import EXPORTS
from reranker.clicks.pairs import BACKENDS, DEFAULT_STRATEGY, STRATEGIES, PairConfig, Resources
from reranker.config import milliseconds
from reranker.engines import Engine
from reranker.errors import ConfigError, GateRefused, InputError, UnknownPerson

if TYPE_CHECKING:
    from reranker.clicks.importing import ImportReport
    from reranker.clicks.log import ClickLog
    from reranker.clicks.propensities import Propensities
    from reranker.formats import RejectLog
    from reranker.retrain.learning import RetrainResult, RetrainSettings


# Spelled out, so that --help needs no reader and no numerical library; tests keep them equal to
# `reranker.clicks.importing.FORMATS` and `reranker.clicks.propensities.METHODS`.
LOG_FORMATS = ("auto", "ubi", "json-lines", "metarank")
METHODS = ("auto", "randomised", "harvest", "em", "rate")

EXPORT_FORMS = {
    **{name: export.summary for name, export in EXPORTS.items()},
    "parquet": "pairs: query, better, worse, weight",
    "tsv": "pairs as tab-separated text, with a header",
}
"""What ``--to`` of ``ssi clicks export`` takes."""


@click.group("clicks", cls=common.CommandGroup, variables="SSI_CLICKS", epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson --log clicks/
  ssi clicks forget 3f2a77c0 --log clicks/
""")  # fmt: skip
def clicks() -> None:
    """Keep click logs without personal data, examine them, and make pairs of them to learn from.

    Every command that reads LOG... takes the folder of a click log or raw log files.
    """


# Options and readers of several commands

_format_option = click.option("--format", "log_format", type=click.Choice(LOG_FORMATS), default="auto",
                             help="Form of raw log files; auto looks at their first lines.")  # fmt: skip
_rejects_option = click.option(
    "--rejects", type=PATH, metavar="FILE", help="Keep the place, reason and shape of bad lines here."
)
_ubi_indexes_options = common.all_of(
    click.option("--queries-index", default="ubi_queries", metavar="NAME", help="UBI's index of queries."),
    click.option("--events-index", default="ubi_events", metavar="NAME", help="UBI's index of events."),
)


def _read_propensities(path: Path | None) -> Propensities | None:
    from reranker.clicks.propensities import Propensities

    if path is None:
        return None
    try:
        return Propensities.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not JSON: {error}", path=str(path)) from error


# Logs that are read, and the log that is kept

_log_arguments = common.all_of(
    click.argument("logs", nargs=-1, required=True, type=PATH, metavar="LOG..."), _format_option, _rejects_option
)
_log_option = click.option(
    "--log", "log_folder", required=True, type=PATH, metavar="DIR", help="Folder of the click log."
)
_key_option = click.option(
    "--key", "key_file", type=PATH, metavar="FILE",
    help="Key of the hashes of people's ids; without it, the file key in the click log's folder.",
)  # fmt: skip


@contextmanager
def _opened(options: dict[str, Any]) -> Iterator[ClickLog]:
    """Yield the click log of ``LOG...``, and say on standard error what could not be read."""
    from reranker.clicks.importing import open_logs
    from reranker.formats import RejectLog

    with RejectLog(options["rejects"]) as sink:
        log = open_logs(options["logs"], format=options["log_format"], rejects=sink)
        if sink.count:
            common.warn(sink.summary())
        yield log


@clicks.command("import", short_help="Bring logs into a click log: one form, no personal data, nothing twice.",
                epilog="""\b
Examples:
  ssi clicks import ubi_queries.ndjson ubi_events.ndjson.gz --log clicks/
  ssi clicks import clicks.jsonl --log clicks/ --rejects bad.jsonl
  ssi clicks import --engine opensearch:http://localhost:9200 --since 2026-11-01 --log clicks/
""")  # fmt: skip
@click.argument("logs", nargs=-1, type=PATH, metavar="[LOG...]")
@_log_option
@_format_option
@click.option("--engine", "engine_spec", metavar="SPEC",
              help="Read the indexes of UBI from elasticsearch:URL or opensearch:URL instead of files.")  # fmt: skip
@_ubi_indexes_options
@click.option("--since", metavar="TIME",
              help="With --engine: read from this time on (2026-11-20 or ISO 8601); a log goes on where it ended.",
              )  # fmt: skip
@click.option("--until", metavar="TIME", help="With --engine: read up to this time.")
@_key_option
@_rejects_option
@common.json_option
def import_logs(logs: tuple[Path, ...], engine_spec: str | None, as_json: bool, **options: Any) -> None:
    """Bring log files, or the UBI indexes of an engine, into a click log.

    Reads OpenSearch UBI (JSON lines, bulk files, search answers, Parquet), the project's own JSON lines, and Metarank
    events. Users, sessions and networks become keyed hashes; e-mail addresses, telephone and card numbers in queries
    become marks. Each record is taken once: run it again after a kill, or when a file has grown.
    """
    from reranker.clicks.importing import LiveSource, import_files, import_live
    from reranker.clicks.log import ClickLog
    from reranker.formats import RejectLog

    if bool(logs) == bool(engine_spec):
        raise ConfigError("give either LOG... files or --engine, which says where the UBI indexes are")
    if (options["since"] or options["until"]) and not engine_spec:
        raise ConfigError("--since and --until choose rows of an engine's indexes: give --engine, or leave them out")
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
    if sink.count:
        click.get_current_context().exit(common.EXIT_REJECTS)


def _counted(rows: dict[str, int]) -> str:
    """Return the numbers of rows by table: those of ``people`` say which client a user was seen with."""
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


@clicks.command("forget", short_help="Remove all rows of a person.", epilog="""\b
Examples:
  ssi clicks forget 3f2a77c0-9a41 --log clicks/
  ssi clicks forget customer-812 --log clicks/ --key /etc/ssi/clicks.key --json
""")  # fmt: skip
@click.argument("user")
@_log_option
@_key_option
@click.option("--models", type=PATH, default=Path("models"), metavar="DIR",
              help="Folder of the model folders of `ssi retrain`: those that remember queries are named.")  # fmt: skip
@common.json_option
def forget(user: str, log_folder: Path, key_file: Path | None, models: Path, as_json: bool) -> None:
    """Remove all rows of a person from a click log: USER is the user, client or session id as the site knows it.

    Of a session, its user is forgotten too where it has one alone. Where no row is of USER the exit status is 9; old
    copies are kept out all the same.

    Retrain afterwards: models that learned from the rows keep what they learned until they are replaced. Those that
    remember queries with the documents clicked for them are named: the next `ssi retrain` makes the memory anew, and
    `ssi gc --keep 0` then takes the old one out of the index. Raw log files and the engine's own indexes are not
    touched; importing an old copy of them does not bring the person back.
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
        # Without the id: what is printed here is kept in logs of shells and schedulers.
        message = f"no row of the click log {str(log_folder)!r} is of the user, client or session id given"
        raise UnknownPerson(f"{message}: give the id as the site logs it")


@clicks.command("expire", short_help="Remove all rows older than a number of days.", epilog="""\b
Examples:
  ssi clicks expire --days 90 --log clicks/
""")  # fmt: skip
@click.option("--days", required=True, type=click.IntRange(0), help="A row stays for this many days after its own.")
@_log_option
@common.json_option
def expire(days: int, log_folder: Path, as_json: bool) -> None:
    """Remove all rows older than a number of days (UTC); run it daily.

    Rows whose time is missing or later than their import count from the day of their import.
    """
    from reranker.clicks.log import ClickLog

    log = ClickLog(log_folder)
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
            f"queries from before may be remembered by {names}: `ssi retrain` makes the memory anew; delete their "
            "folders then, and run `ssi gc --keep 0`"
        )


@clicks.command("doctor", short_help="Say whether it would be sound to learn from a log, and what to mend.",
                epilog="""\b
Examples:
  ssi clicks doctor ubi_queries.ndjson ubi_events.ndjson
  ssi clicks doctor clicks/ --engine opensearch:http://localhost:9200 --index products --picture clicks.html
""")  # fmt: skip
@_log_arguments
@click.option("--engine", "engine_spec", metavar="SPEC",
              help="Look shown ids up here: tantivy:PATH, elasticsearch:URL or opensearch:URL.")  # fmt: skip
@click.option("--index", metavar="NAME", help="Index (or alias) that was searched; belongs to --engine.")
@click.option("--picture", type=PATH, metavar="FILE",
              help="Write the click rate by rank as .png or .svg, or all findings as one page, .html.")  # fmt: skip
@common.json_option
def doctor(engine_spec: str | None, index: str | None, picture: Path | None, as_json: bool, **options: Any) -> None:
    """Examine a click log: ids, positions, missing rows, robots, coverage, click rate by rank.

    Every finding is ok, a warning, or unsound: what is learned would be wrong, or nothing. Each says what to do about
    it. The exit status is 0 unless something is unsound, then 7.
    """
    from reranker.clicks.doctor import bars, examine, write_picture
    from reranker.retrain.learning import propensity_finding

    if (engine_spec is None) != (index is None):
        raise ConfigError("--engine and --index belong together: give both, or neither")
    with _opened(options) as log:
        engine = common.open_engine_of(engine_spec) if engine_spec else None
        diagnosis = examine(log, engine, index)
        if diagnosis.severity != "unsound":
            diagnosis = replace(diagnosis, findings=(*diagnosis.findings, propensity_finding(log)))
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
    if unsound := diagnosis.sentences("unsound"):
        raise GateRefused(
            f"the log is unsound to learn from: {len(unsound)} of {len(diagnosis.findings)} findings say why",
            unsound=unsound,
        )


@clicks.command("propensities", short_help="How much each rank is looked at.", epilog="""\b
Examples:
  ssi clicks propensities clicks/ --out propensities.json
  ssi clicks propensities clicks/ --method rate
""")  # fmt: skip
@_log_arguments
@click.option("--method", type=click.Choice(METHODS), default="auto",
              help="randomised: from lists logged as shuffled. harvest: from documents seen at several ranks. em: the "
                   "same by expectation maximisation, for documents seen often. rate: the click rate itself. auto: "
                   "randomised where there are many such lists, else harvest, else rate.")  # fmt: skip
@click.option("--out", "target", type=PATH, metavar="FILE",
              help="Write them as JSON, for --propensities of `ssi clicks pairs`.")  # fmt: skip
@common.json_option
def propensities(method: str, target: Path | None, as_json: bool, **options: Any) -> None:
    """Find how much each rank of the result lists is looked at, relative to the rank looked at most.

    A click at a rank that few look at says more: pairs weigh 1 / propensity of the rank of the click.
    """
    from reranker.clicks.propensities import count_log, estimate_propensities
    from reranker.files import write_file

    with _opened(options) as log:
        counts = count_log(log)
    estimate = estimate_propensities(counts, method)
    if target is not None:
        write_file(target, (json.dumps(estimate.to_json(), indent=1) + "\n").encode("utf-8"), private=True)
    if as_json:
        common.print_json(estimate.to_json())
        return
    console = common.out()
    console.print(f"by {estimate.method}, from {estimate.n:,} result lists")
    # The lists that the estimate rests on.
    rested_on = counts.only(counts.randomised) if estimate.method == "randomised" else counts
    shown, clicked = rested_on.by_rank()
    for rank, propensity in enumerate(estimate.by_rank, start=1):
        console.print(f"{rank:>4}  {propensity:.4f}  clicked {clicked[rank - 1]:,} of {shown[rank - 1]:,}")


# Pairs: how a log becomes pairs, and where that is computed

_DEFAULT = PairConfig()
_CAP = click.IntRange(0)

_pair_options = common.all_of(
    click.option("--strategy", type=click.Choice(list(STRATEGIES)), default=DEFAULT_STRATEGY,
                 help="How clicks become preferences, see below."),
    click.option("--above-only", is_flag=True, help="clicked-over-unclicked: compare with documents further up only."),
    click.option("--last-by-time", is_flag=True,
                 help="last-clicked-above-skipped: the latest click, cart or purchase where times are known, instead "
                      "of the lowest in the list, which needs no clock."),
    click.option("--min-dwell", "min_dwell_s", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
                 help="Clicks known to be shorter do not count; their documents take no part."),
    click.option("--once-a-session/--every-time", default=True,
                 help="A session says a pair once, however often it was shown."),
    click.option("--user-cap", type=_CAP, default=_DEFAULT.user_cap,
                 help="How often one person can say a pair at most, in sessions; 0: no cap, here and below."),
    click.option("--document-cap", type=_CAP, default=_DEFAULT.document_cap,
                 help="Pairs of one person for one document of a query that count in full."),
    click.option("--person-cap", type=_CAP, default=_DEFAULT.person_cap,
                 help="Pairs of one person over all queries that count in full."),
    click.option("--network-cap", type=_CAP, default=_DEFAULT.network_cap,
                 help="People of one network for one document of a query that count in full; 0 on an intranet."),
    click.option("--min-users", type=click.IntRange(1), default=1, help="People who must have said a pair."),
    click.option("--propensities", "propensity_file", type=PATH, metavar="FILE",
                 help="Of `ssi clicks propensities`: pairs weigh 1 / propensity of the better document's rank."),
    click.option("--clip", type=click.FloatRange(1), default=_DEFAULT.clip,
                 help="The most that one person's pair may weigh for it."),
    click.option("--robots/--no-robots", "judge_robots", default=True,
                 help="Leave out robots: agent, speed, number of clicks, one document over and over."),
    click.option("--since", metavar="TIME", help="Impressions from then on (2026-06-01 or ISO 8601)."),
    click.option("--until", metavar="TIME", help="Impressions before then; undated ones count as the oldest."),
    click.option("--backend", type=click.Choice(list(BACKENDS)), default="duckdb",
                 help="; ".join(f"{name}: {backend.summary}" for name, backend in BACKENDS.items()) + "."),
    click.option("--threads", type=click.IntRange(1), help="Threads of duckdb or local spark.  [default: all cores]"),
    click.option("--memory", "memory_mb", type=click.IntRange(100), default=Resources().memory_mb, metavar="MB",
                 help="Rows that duckdb keeps in memory; the process needs some 300 MB more."),
    click.option("--temporary", type=PATH, metavar="DIR", help="Folder for what does not fit into memory."),
    click.option("--spark-master", metavar="URL", help="Cluster of spark; other settings: SPARK_CONF_DIR."),
)  # fmt: skip


def _pair_config(options: dict[str, Any]) -> PairConfig:
    """Return the configuration that the options state; an option without effect under the strategy is refused."""
    for name in ("above_only", "last_by_time"):
        given = click.get_current_context().get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
        if given and options[name] and name not in STRATEGIES[options["strategy"]].options:
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} has no effect with --strategy {options['strategy']}: leave one of them out")
    values = common.stated(PairConfig, options)
    if not options["judge_robots"]:
        values["robots"] = None
    estimate = _read_propensities(options["propensity_file"])
    return PairConfig(**values, propensities=estimate.by_rank if estimate else None)


def _computing(options: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the log that counts, ``since`` and ``until`` in milliseconds, and what computes the pairs."""
    since, until = (milliseconds(name, options[name]) for name in ("since", "until"))
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--since {options['since']} is not before --until {options['until']}: nothing lies between")
    resources = Resources(options["threads"], options["memory_mb"], options["temporary"], options["spark_master"])
    return {"backend": options["backend"], "resources": resources, "since": since, "until": until}


def _lines(title: str, summaries: dict[str, str], width: int) -> str:
    """Return names and their summaries for the end of a help text."""
    return f"\b\n{title}:\n" + "\n".join(f"  {name:<{width}}{text}" for name, text in summaries.items()) + "\n\n"


_STRATEGY_LINES = _lines(
    "Strategies", {name: strategy.summary for name, strategy in STRATEGIES.items()}, max(map(len, STRATEGIES)) + 2
)


@clicks.command("pairs", short_help="Preference pairs of clicks, to train on.", epilog=_STRATEGY_LINES + """\b
Examples:
  ssi clicks pairs clicks/ --out pairs.parquet
  ssi clicks pairs ubi_queries.ndjson ubi_events.ndjson --strategy clicked-over-next --out pairs.tsv
  ssi clicks pairs clicks/ --propensities propensities.json --min-dwell 10 --min-users 2 --out pairs.parquet
  ssi clicks pairs /data/clicks/ --backend spark --spark-master spark://host:7077 --out pairs.parquet
  ssi train --docs docs.jsonl --pairs pairs.parquet --model model/
""")  # fmt: skip
@_log_arguments
@click.option("--out", "target", required=True, type=FILE,
              help="Pairs: query, better, worse, weight; TSV if the name ends in .tsv, else Parquet.")  # fmt: skip
@_pair_options
@common.json_option
def pairs(target: Path, as_json: bool, **options: Any) -> None:
    """Turn clicks into preference pairs (query, better, worse, weight) to train on.

    The weight counts the people who said it, each at most once unless --user-cap says more. Neither the order of the
    lines nor repeated ones matter.
    """
    from reranker.clicks.exports import write_tsv
    from reranker.clicks.pairs import make_pairs

    config, computing = _pair_config(options), _computing(options)
    with _opened(options) as log, make_pairs(log, config, **computing) as table:
        if target.suffix.lower() == ".tsv":
            write_tsv(table.pairs(), target)
        else:
            table.write(target)
        counts = table.counts
    if as_json:
        common.print_json({"out": str(target), "strategy": config.strategy, "counts": counts})
        return
    console = common.out()
    console.print(f"{counts['pairs']:,} pairs of {counts['impressions']:,} impressions, written to {target}")
    left_out = {name: n for name, n in counts.items() if n and name.startswith(("robot", "no_", "out"))}
    if left_out:
        reasons = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in left_out.items())
        console.print(f"left out of {counts['searches']:,} queries: {reasons}")
    if counts["too_few_people"]:
        console.print(f"{counts['too_few_people']:,} pairs were said by too few people, or weigh nothing")


@clicks.command("export", short_help="Judgements of clicks for TREC, LETOR, Search Relevance Workbench and Quepid.",
                epilog=_lines("Forms", EXPORT_FORMS, 9) + """\b
Examples:
  ssi clicks export clicks/ --to trec --out clicks.qrels
  ssi clicks export clicks/ --to srw --min-people 5 --propensities propensities.json --out judgements.json
  ssi clicks export ubi_queries.ndjson ubi_events.ndjson --to quepid --by pairs --out ratings.csv
""")  # fmt: skip
@_log_arguments
@click.option("--to", "form", required=True, type=click.Choice(list(EXPORT_FORMS)), help="What to write, see below.")
@click.option("--out", "target", required=True, type=FILE,
              help="File to write; trec also writes the queries' texts, FILE.queries.tsv.")  # fmt: skip
@click.option("--by", "basis", type=click.Choice(["clicks", "pairs"]), default="clicks",
              help="What judges: the share of clicks among those who looked, or of the pairs' weight that was "
                   "won.")  # fmt: skip
@click.option("--min-people", type=click.IntRange(1), default=1,
              help="By clicks: people to whom a document must have been shown.")  # fmt: skip
@click.option("--max-grade", type=click.IntRange(1), help="The highest grade.  [default: by the form]")
@_pair_options
@common.json_option
def export(as_json: bool, **options: Any) -> None:
    """Write clicks as judgements for other tools, or as pairs.

    A document's judgement is the share of people who clicked it among those who looked at it: with --propensities,
    those who saw it at rank r count as the propensity of r. Grades are that share times the highest grade.
    """
    config, form, target = _pair_config(options), options["form"], options["target"]
    if form not in EXPORTS and options["max_grade"] is not None:
        raise ConfigError(f"--max-grade has no effect with --to {form}: pairs have weights; leave it out")
    queries = target.with_name(target.name + ".queries.tsv") if form in EXPORTS and EXPORTS[form].query_file else None
    with _opened(options) as log:
        count = _write_export(log, config, queries, options)
    if as_json:
        common.print_json({"out": str(target), "to": form, "rows": count, "queries": queries and str(queries)})
    else:
        query_texts = f", query texts to {queries}" if queries else ""
        common.out().print(f"{count:,} rows written to {target}{query_texts}")


def _write_export(log: ClickLog, config: PairConfig, queries: Path | None, options: dict[str, Any]) -> int:
    """Write the file, and that of the query texts where the form has one; return the number of rows."""
    from reranker.clicks import exports
    from reranker.clicks.pairs import make_pairs, ratings

    form, target, computing = options["form"], options["target"], _computing(options)
    if form in EXPORTS and options["basis"] == "clicks":
        judgements = exports.judgements_of_ratings(ratings(log, config, **computing), options["min_people"])
        return exports.write_judgements(judgements, target, form, max_grade=options["max_grade"], queries=queries)
    with make_pairs(log, config, **computing) as table:
        if form == "parquet":
            return table.write(target)
        if form == "tsv":
            return exports.write_tsv(table.pairs(), target)
        judgements = exports.judgements_of_pairs(table.pairs())
        return exports.write_judgements(judgements, target, form, max_grade=options["max_grade"], queries=queries)


# Retraining: from a click log to a better model, or a refusal with its reason

_RETRAIN_EXAMPLES = """\b
Examples:
  ssi retrain --engine opensearch:http://localhost:9200 --index shop --clicks clicks/ --report report.html
  ssi retrain --engine opensearch:http://localhost:9200 --index shop --from-index --clicks clicks/
  ssi retrain --engine elasticsearch:http://localhost:9200 --index shop --clicks clicks/ --query-side-only
  ssi retrain --engine tantivy:./index --index docs --clicks log.jsonl --base model/ --links links.tsv --dry-run
Exit status: 0 promoted (or would be, with --dry-run), 7 refused, 9 nothing to learn from.
"""

_retrain_options = common.all_of(
    common.engine_options,
    click.option("--clicks", "clicks", type=PATH, multiple=True, metavar="LOG",
                 help="Folder of a click log (`ssi clicks import`), or raw log files; may be given several times."),
    click.option("--from-index", is_flag=True,
                 help="Read the UBI indexes of the engine; with --clicks DIR they are added to that click log."),
    _ubi_indexes_options,
    _format_option,
    click.option("--since", metavar="TIME", help="Leave out what is older (ISO 8601, UTC unless it says otherwise)."),
    click.option("--models", type=PATH, default=Path("models"), metavar="DIR",
                 help="Folder of the model folders; the live model must be there, and the new one is saved there."),
    click.option("--base", type=PATH, metavar="DIR",
                 help="Model to start from, of links or judgements only.  [default: the one that the live model was "
                      "started from, else the live model]"),
    click.option("--links", type=PATH, metavar="FILE", help="Also learn from links: source id TAB target id."),
    click.option("--judgments", type=PATH, metavar="FILE",
                 help="Judgements: query id TAB document id TAB grade. Half of the queries is learned from, the other "
                      "half, always the same, is for the gate."),
    click.option("--query-file", type=PATH, metavar="FILE", help="Queries of --judgments: query id TAB text."),
    click.option("--click-weight", type=click.FloatRange(0, min_open=True), default=1.0,
                 help="Share of the training that clicks get; links get 1, judgements 1."),
    click.option("--query-side-only", is_flag=True,
                 help="Learn what words mean in queries only: no document's vector changes."),
    click.option("--strategy", metavar="NAME", help="How clicks become preferences, see `ssi clicks pairs --help`."),
    click.option("--propensities", type=PATH, metavar="FILE",
                 help="Of `ssi clicks propensities`.  [default: found from the log]"),
    click.option("--newest", default="0.2", metavar="SHARE|DAYSd",
                 help="The newest part of the log, kept for the gate: a share of the impressions, or days (3d)."),
    click.option("--margin", type=click.FloatRange(0, 1, max_open=True), default=0.0,
                 help="By how much nDCG of the clicks must be better, at the lower bound of its interval."),
    click.option("--confidence", type=click.FloatRange(0.5, 1, max_open=True), default=0.95, help="Of that bound."),
    click.option("--min-people", type=click.FloatRange(2), default=30.0,
                 help="Least number of people (that weigh the same) in the newest slice."),
    common.body_option,
    click.option("--window", type=click.IntRange(1, 10_000), default=200,
                 help="Hits reranked when served; with the body it names the calibration."),
    click.option("--docs", type=PATH, metavar="FILE", help="Documents to train on.  [default: those of the index]"),
    common.id_field_option,
    click.option("--epochs", type=click.IntRange(1), help="Passes over the preferences.  [default: by the data]"),
    click.option("--rate", type=click.FloatRange(0, min_open=True), help="Learning rate.  [default: by the data]"),
    click.option("--seed", type=click.IntRange(0), default=0, help="Of all random numbers."),
    common.write_store_option,
    click.option("--max-docs-per-second", "rate_limit", type=click.FloatRange(0, min_open=True), metavar="N",
                 help="Speed limit of the writes, so that the engine keeps answering searches."),
    click.option("--max-judged", type=click.IntRange(1), default=20_000,
                 help="Impressions that the gate looks at; more are sampled."),
    click.option("--size-study", is_flag=True, help="Also learn from parts of the log, for the report."),
    click.option("--report", type=PATH, metavar="FILE", help="Write an HTML report, which works offline."),
    _rejects_option,
    click.option("--allow-unsound", is_flag=True, help="Learn even from a log that `ssi clicks doctor` calls unsound."),
    click.option("--dry-run", is_flag=True, help="Train and compare, but leave the index and its record as they are."),
    common.json_option,
)  # fmt: skip


@click.command("retrain", epilog=_RETRAIN_EXAMPLES)
@_retrain_options
def retrain(**options: Any) -> None:
    """Retrain the model of an index from clicks, and make it live only if it is better.

    The older part of the log becomes preferences; with links and judgements they train a new model, which starts
    from the base model and never from last night's. The gate then ranks what was shown in the newest part, which the
    model has not seen, as the live and as the new model would be served. Better at the lower bound of the interval:
    vectors are written beside the live ones and the new version goes live. Not better: nothing changes.

    A run that was killed leaves the live version live, and goes on when it is started again.
    """
    from reranker.formats import RejectLog
    from reranker.retrain.learning import read_links_and_judgements
    from reranker.retrain.loop import Retraining
    from reranker.training import Listener

    settings = _retrain_settings(options)
    engine = common.open_engine_of(options["engine_spec"], retry=True)
    with RejectLog(options["rejects"]) as rejects:
        beside_clicks = read_links_and_judgements(
            options["links"], options["judgments"], options["query_file"], rejects
        )
        log = _clicks_of(options, engine, rejects)
        if rejects.count:
            common.warn(f"refused lines: {rejects.summary()}")
        with common.stage_progress() as update:
            listener = Listener(common.say, update)
            result = Retraining(
                engine, options["index"], log, settings, beside_clicks, listener, options["report"]
            ).run()
    _show_retraining(result, options["as_json"])
    if result.exit_code:
        click.get_current_context().exit(result.exit_code)


def _retrain_settings(options: dict[str, Any]) -> RetrainSettings:
    from reranker.clicks.pairs import PairConfig
    from reranker.rerank.search import read_body
    from reranker.retrain.gate import GateConfig
    from reranker.retrain.learning import Newest, RetrainSettings
    from reranker.training import TrainConfig

    common.check_id_field(options)
    if not (options["clicks"] or options["from_index"]):
        raise ConfigError("say where the clicks are: --clicks LOG or --from-index")
    if options["from_index"] and len(options["clicks"]) > 1:
        raise ConfigError("with --from-index, --clicks names one click log, to which the rows of the indexes are added")
    if bool(options["judgments"]) != bool(options["query_file"]):
        raise ConfigError("--judgments names queries by id, and --query-file holds their texts: give both or neither")
    strategy = {"strategy": options["strategy"]} if options["strategy"] else {}
    same = ("models", "base", "click_weight", "query_side_only", "window", "docs", "id_field", "store",
            "max_judged", "allow_unsound", "dry_run")  # fmt: skip
    return RetrainSettings(
        train=TrainConfig(epochs=options["epochs"], rate=options["rate"], seed=options["seed"]),
        pairs=PairConfig(**strategy),
        gate=GateConfig(options["margin"], options["confidence"], min_clusters=options["min_people"]),
        newest=Newest.parse(options["newest"]),
        since=milliseconds("since", options["since"]),
        propensities=_read_propensities(options["propensities"]),
        body=read_body(options["body_path"]) if options["body_path"] else None,
        max_docs_per_s=options["rate_limit"],
        study=options["size_study"],
        **{name: options[name] for name in same},
    )


def _clicks_of(options: dict[str, Any], engine: Engine, rejects: RejectLog) -> ClickLog:
    from reranker.clicks.importing import LiveSource, import_live, open_logs
    from reranker.clicks.log import ClickLog
    from reranker.clicks.privacy import Pseudonymiser

    if not options["from_index"]:
        return open_logs(options["clicks"], format=options["log_format"], rejects=rejects)
    if options["clicks"]:
        log = ClickLog(options["clicks"][0], create=True)
        privacy = log.privacy()
    else:
        folder = tempfile.TemporaryDirectory(prefix="ssi-clicks-")
        click.get_current_context().call_on_close(folder.cleanup)
        log = ClickLog(Path(folder.name) / "log", create=True)
        # The log is gone at the end; the same rows give the same model.
        privacy = Pseudonymiser.repeatable()
    source = LiveSource(options["queries_index"], options["events_index"], options["since"], None)
    with common.progress("reading the UBI indexes", unit="records") as update:
        import_live(log, engine, source, privacy, rejects=rejects, progress=update)
    return log


def _show_retraining(result: RetrainResult, as_json: bool) -> None:
    if as_json:
        common.print_json(result.to_json())
        return
    console = common.out()
    style = "red" if result.outcome == "refused" else "green"
    console.print(f"[{style}]{result.outcome}[/{style}]  {result.candidate[:12]} for {result.index}")
    console.print(result.reason, markup=False)
    orders = ("live", "new", "random")
    table = common.plain_table("", *orders, "difference", "at least", numbers=(1, 2, 3, 4, 5))
    for measure in result.verdict["measured"]:
        change = measure["difference"]
        values = dict(zip(measure["compared"], (measure["live"], measure["candidate"]), strict=True))
        table.add_row(measure["name"], *(f"{values[order]:.4f}" if order in values else "" for order in orders),
                      f"{change['estimate']:+.4f}", f"{change['lower']:+.4f}")  # fmt: skip
    console.print(table)
    _show_queries("lost most", result.verdict["losers"][:5])
    _show_queries("gained most", result.verdict["winners"][:5])
    data = result.data
    console.print(
        f"{data['pairs']:,} preferences of {data['learned']:,} impressions; compared on {data['judged']:,} newer ones "
        f"of {data['people']:,} people; {result.documents_written:,} documents written"
    )
    console.print(f"model  {result.model_path}", markup=False, soft_wrap=True)
    if result.report is not None:
        console.print(f"report {result.report}", markup=False, soft_wrap=True)


def _show_queries(title: str, changes: Sequence[dict[str, Any]]) -> None:
    if changes:
        text = ", ".join(f"{each['query'][:40]!r} ({each['live']:.2f} to {each['candidate']:.2f})" for each in changes)
        common.out().print(f"{title}: {text}", markup=False)
