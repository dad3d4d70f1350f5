"""Diagnosis of a click log: whether learning from it would be sound, and what to fix.

Findings are graded. A warning means that part of the log is lost or biased. Unsound means that a model learned from the
log would be wrong or would learn nothing.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import LogTask, PairConfig, Resources, prepared, sql_text
from reranker.clicks.propensities import MIN_RANDOMISED_CLICKS, MIN_SHOWN
from reranker.engines.protocol import Engine
from reranker.figures import (
    BLUE,
    STYLE,
    inline_svg,
    new_figure,
    picture_bytes,
    picture_kind,
    report_head,
    whole_numbers,
)
from reranker.files import replacing
from reranker.text.analyzers import normalised, words

Severity = Literal["ok", "warning", "unsound"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warning", "unsound")
"""Severities in ascending order. A model learned from an unsound log would be wrong or would learn nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    code: str
    """Name of the check, a key of `CHECKS` or ``shape``."""
    severity: Severity
    sentence: str
    """The result and the remedy."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Measurements on which the finding is based, by name."""


@dataclass(frozen=True, slots=True)
class RankRate:
    """Impressions and clicks of one rank."""

    rank: int
    """Displayed rank, from 1."""
    shown: int
    """Number of impressions at this rank."""
    clicked: int
    """Number of clicked impressions at this rank."""

    @property
    def rate(self) -> float:
        """Click-through rate: clicks / impressions, 0 without impressions."""
        return self.clicked / self.shown if self.shown else 0.0


@dataclass(frozen=True, slots=True)
class FailedQuery:
    """A query text without a single result or click, asked by at least `LEAST_PEOPLE` people."""

    query: str
    people: int
    """Number of people who asked it."""
    searches: int
    has_results: bool
    """False if no search of it has a known result list: it found nothing, or its lists were not logged."""
    nearest: tuple[str, ...]
    """Words that find something and are near to its words, nearest first; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings about a click log, with the measurements on which they are based."""

    findings: tuple[Finding, ...]
    numbers: Mapping[str, float]
    """Counts of rows, result lists, clicks, and people by name."""
    rates: tuple[RankRate, ...]
    """Impressions and clicks by rank, without those of robots."""
    failed: tuple[FailedQuery, ...] = ()
    """Queries that find nothing or get no click, the most frequent first; at most `MAX_FAILED`."""

    def sentences(self, severity: Severity) -> tuple[str, ...]:
        """Return the sentences of the findings of one severity."""
        return tuple(finding.sentence for finding in self.findings if finding.severity == severity)

    @property
    def severity(self) -> Severity:
        """The worst severity of all findings; ``ok`` without findings."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON-compatible values."""
        return {
            "severity": self.severity,
            "findings": [asdict(finding) for finding in self.findings],
            "numbers": dict(self.numbers),
            "click_rate_by_rank": [{**asdict(rate), "rate": rate.rate} for rate in self.rates],
            "failed_queries": [asdict(query) for query in self.failed],
        }


Numbers = Mapping[str, float]
CheckResult = tuple[Severity, str, Numbers]
"""Result of a check: severity, sentence, and the numbers on which it is based."""

MIN_CLICKS = 200
"""Clicks below which a model learned from them will hardly be better than no model."""
_ROBOTS = ("robot_agent", "robot_session_clicks", "robot_speed", "robot_day_clicks", "robot_one_document")
_NOTED = {
    "unreadable_time": "times cannot be read",
    "impossible_time": "times are before the web or in the future",
    "impossible_ordinal": "positions are not ranks",
    "empty_response": "queries were logged with an empty response",
}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_share(share: float, limits: tuple[float, float], numbers: Numbers, well: str, otherwise: str) -> CheckResult:
    """Return the finding for a share of invalid records, given the limits above which it is a warning or unsound.

    ``well`` is the sentence for an acceptable share, ``otherwise`` the one for a share above a limit. In both,
    ``{share}`` and ``{rest}`` (1 - share) are filled in as percentages.
    """
    severity = SEVERITIES[sum(share > limit for limit in limits)]
    sentence = (well if severity == "ok" else otherwise).format(share=f"{share:.1%}", rest=f"{1 - share:.1%}")
    return severity, sentence, numbers


def _clicks(of: Numbers) -> CheckResult:
    usable, everything = of["clicks_on_lists"], of["clicks"]
    numbers = {"clicks": everything, "clicks_on_lists": usable}
    if not everything:
        return (
            "unsound",
            (
                "The log contains no clicks. Check that events are logged with the action 'click' and with the "
                "query_id of their search."
            ),
            numbers,
        )
    if not usable:
        return (
            "unsound",
            (
                f"None of the {everything:,.0f} clicks is on a known result list. Log the ids of the shown "
                "documents with each query, and the query_id with each click."
            ),
            numbers,
        )
    if usable < MIN_CLICKS:
        return (
            "warning",
            (
                f"Only {usable:,.0f} clicks are on known result lists. Fewer than {MIN_CLICKS:,} teach a model "
                f"little; log for longer."
            ),
            numbers,
        )
    return "ok", f"{usable:,.0f} clicks are on known result lists.", numbers


def _lists(of: Numbers) -> CheckResult:
    without, searches = of["searches_without_list"], of["searches_kept"]
    return _by_share(
        _share(without, searches),
        (0.05, 0.9),
        {"searches_without_list": without, "searches": searches},
        "The shown documents are known for {rest} of the searches.",
        "For {share} of the searches it is unknown which documents were shown. Log the result ids with the "
        "query (query_response_hit_ids), or an impression event for each document that was seen.",
    )


def _queries(of: Numbers) -> CheckResult:
    lost, nameless = of["clicks_without_query"], of["events_without_query_id"]
    return _by_share(
        _share(lost + nameless, of["clicks"] + nameless),
        (0.01, 0.9),
        {"clicks_without_query": lost, "events_without_query_id": nameless},
        "Clicks can be joined with their queries.",
        "{share} of the clicks and other events have no query_id, or one whose query was not logged. Import "
        "ubi_queries and ubi_events of the same period, and send query_id with every event.",
    )


def _texts(of: Numbers) -> CheckResult:
    without, searches = of.get("no_query_text", 0), of["searches"]
    return _by_share(
        _share(without, searches),
        (0.05, 0.95),
        {"no_query_text": without, "searches": searches},
        "The query text is known for {rest} of the searches.",
        "{share} of the searches have no query text. Log user_query with each query (or with its events).",
    )


def _shown_documents(of: Numbers) -> CheckResult:
    there, missing = of["clicks_on_lists"], of["clicks_off_lists"]
    return _by_share(
        _share(missing, there + missing),
        (0.05, 0.5),
        {"clicks_on_lists": there, "clicks_off_lists": missing},
        "Clicked documents are among those that were shown.",
        "{share} of the clicks are on documents that their query did not show. Use the same kind of id in "
        "events (object_id) and in results, set object_id_field, and start a new query_id with each search.",
    )


def _lucene_ids(of: Numbers) -> CheckResult:
    number_like = _share(of["hits_like_numbers"], of["hits"])
    of_clicks = _share(of["clicks_like_numbers"], of["clicks"])
    on_list = _share(of["clicks_on_lists"], of["clicks_on_lists"] + of["clicks_off_lists"])
    numbers = {"hits_like_numbers": number_like, "clicks_like_numbers": of_clicks}
    remedy = (
        "set object_id_field to the field that holds the document id, and start a new log. Without it, UBI writes "
        "Lucene's internal document numbers, which change with every merge"
    )
    if number_like < 0.95:
        return "ok", "Result ids do not look like Lucene's internal document numbers.", numbers
    if of["clicks"] and on_list < 0.5:
        sentence = f"Result ids are small integers, but clicks use other ids ({of_clicks:.0%} of them are numbers)"
        return "unsound", f"{sentence}: {remedy}.", numbers
    if of["clicks_on_lists"] and on_list >= 0.95:
        return "ok", "Result ids are integers and match the ids in the clicks.", numbers
    sentence = "Result ids are small integers, perhaps Lucene's own numbers. Check with --engine and --index; if so"
    return "warning", f"{sentence}, {remedy}.", numbers


def _resolving(of: Numbers) -> CheckResult:
    asked, there = of["ids_asked"], of["ids_found"]
    return _by_share(
        _share(asked - there, asked),
        (0.05, 0.5),
        {"ids_asked": asked, "ids_found": there},
        "{rest} of the shown ids are documents of the index.",
        "{share} of the shown ids are not documents of the index. Check that --index names the index that was "
        "searched. If so, log document ids (object_id_field) instead of Lucene's internal numbers or another field.",
    )


def _ordinals(of: Numbers) -> CheckResult:
    names = ("positions_stated", "positions_agreeing", "applications_from_0", "applications_mixed")
    stated, agree, from_0, mixed = (of[name] for name in names)
    numbers = {name: of[name] for name in names}
    share = 1 - agree / stated if stated else 0.0
    if share > 0.1:
        return (
            "warning",
            (
                f"{share:.1%} of the positions in events differ from the place of the document in its result list, "
                "counted from 0 or from 1. Log the displayed rank in position.ordinal. Where the two differ, the "
                "result list is used."
            ),
            numbers,
        )
    if mixed:
        return (
            "warning",
            (f"{mixed:,.0f} applications sometimes log position 0. Count from 1 everywhere, or from 0 everywhere."),
            numbers,
        )
    if not stated:
        return "ok", "No event has a position.", numbers
    moved = f"Positions in events count from 0 in {from_0:,.0f} applications; they were increased by one."
    return "ok", moved if from_0 else "Positions in events count from 1.", numbers


def _robots(of: Numbers) -> CheckResult:
    by_reason = {name: of[name] for name in _ROBOTS if of.get(name)}
    share = _share(sum(by_reason.values()), of["searches"])
    why = ", ".join(f"{name.removeprefix('robot_').replace('_', ' ')} {n:,.0f}" for name, n in by_reason.items())
    return _by_share(
        share,
        (0.1, 0.95),
        {"share": share, **by_reason},
        "{share} of the searches come from robots and are excluded.",
        f"{{share}} of the searches come from robots ({why}) and are excluded. Keep crawlers away from the search "
        "page, and check the limits if these visitors are people.",
    )


def _people(of: Numbers) -> CheckResult:
    share, top = _share(of["searches_anonymous"], of["searches"]), of["clicks_of_busiest"]
    numbers = {"anonymous": share, "people": of["people"], "clicks_of_busiest": top}
    if share > 0.5:
        return (
            "warning",
            (
                f"{share:.1%} of the searches have neither a user nor a session id, so one visitor can count "
                "as many. Send client_id (or session_id) with queries and events."
            ),
            numbers,
        )
    if _share(top, of["clicks_kept"]) > 0.1:
        return (
            "warning",
            (
                f"One person made {top / of['clicks_kept']:.1%} of the clicks. Caps limit their influence; "
                "a log with more people is more reliable."
            ),
            numbers,
        )
    return "ok", f"{of['people']:,.0f} people; nobody made more than a tenth of the clicks.", numbers


def _spellings(of: Numbers) -> CheckResult:
    n = of.get("note_camel_case", 0)
    if not n:
        return "ok", "Field names are spelt as in the UBI schema.", {"camel_case": 0}
    return (
        "warning",
        (
            f"{n:,.0f} rows use camelCase names, as Data Prepper writes them. They were imported, but dashboards "
            f"and judgment tools of the engine will not find their fields."
        ),
        {"camel_case": n},
    )


def _values(of: Numbers) -> CheckResult:
    rows_by_fault = {name: of[f"note_{name}"] for name in _NOTED if of.get(f"note_{name}")}
    undated = of["searches_undated"]
    rows = of["query_rows"] + of["event_rows"]
    numbers = {**rows_by_fault, "searches_undated": undated}
    if _share(sum(rows_by_fault.values()), rows) <= 0.01 and _share(undated, of["searches"]) <= 0.5:
        return "ok", "Times and positions can be read.", numbers
    faults = [f"{count:,.0f} {_NOTED[name]}" for name, count in rows_by_fault.items()]
    faults += [f"{undated:,.0f} searches have no time"] if undated else []
    return (
        "warning",
        (
            f"{'; '.join(faults)}. Log ISO 8601 times with a time zone (retraining uses the newest searches as a "
            "holdout), positions from 1, and only queries that were answered."
        ),
        numbers,
    )


def _coverage(of: Numbers) -> CheckResult:
    asked, clicked = of["distinct_queries"], of["distinct_queries_clicked"]
    share = _share(clicked, asked)
    numbers = {"distinct_queries": asked, "distinct_queries_clicked": clicked}
    sentence = f"{clicked:,.0f} of {asked:,.0f} distinct queries ({share:.1%}) have a click"
    if asked and share < 0.05:
        return "warning", f"{sentence}. Check that clicks are logged for every kind of search.", numbers
    return "ok", f"{sentence}.", numbers


def _shape(rates: Sequence[RankRate]) -> CheckResult:
    enough = [rate for rate in rates[:10] if rate.shown >= 200]
    total = sum(rate.clicked for rate in enough)
    numbers = {"ranks": float(len(enough)), "clicks": float(total)}
    if len(enough) < 3 or total < MIN_CLICKS:
        return "ok", "Too few impressions to judge the click rate by rank.", numbers
    first, best = enough[0], max(enough, key=lambda rate: rate.rate)
    if best.rank > 1 and first.rate < 0.8 * best.rate:
        return (
            "warning",
            (
                f"Rank 1 is clicked less ({first.rate:.1%}) than rank {best.rank} ({best.rate:.1%}). Check that "
                "clicks on it are logged (clicks on an advertisement above the list are not clicks on rank 1), and "
                "whether positions are off by one."
            ),
            numbers,
        )
    return "ok", f"Rank 1 has the highest click rate ({first.rate:.1%}); the rates fall with the rank.", numbers


def _exploration(of: Numbers) -> CheckResult:
    lists, clicks = of["searches_randomised"], of.get("randomised_clicks_of_rarest_rank", 0)
    numbers = {"searches_randomised": lists, "clicks_of_rarest_rank": clicks}
    if not lists:
        return (
            "ok",
            (
                "No list was shuffled. Examination by rank is estimated from result orders that changed; "
                "`ssi serve --explore 1` measures it directly."
            ),
            numbers,
        )
    if clicks >= MIN_RANDOMISED_CLICKS:
        return "ok", f"{lists:,.0f} shuffled lists are enough to measure how often each rank is examined.", numbers
    more = f"about {lists * (MIN_RANDOMISED_CLICKS / clicks - 1):,.0f} more such lists are" if clicks else "more are"
    return (
        "ok",
        (
            f"{lists:,.0f} lists were shuffled, with {clicks:,.0f} clicks at the rank that has the fewest; "
            f"{more} needed for {MIN_RANDOMISED_CLICKS} clicks at each rank."
        ),
        numbers,
    )


CHECKS: dict[str, Callable[[Numbers], CheckResult]] = {
    "clicks": _clicks,
    "texts": _texts,
    "lists": _lists,
    "queries": _queries,
    "shown_documents": _shown_documents,
    "lucene_ids": _lucene_ids,
    "resolving": _resolving,
    "ordinals": _ordinals,
    "robots": _robots,
    "people": _people,
    "spellings": _spellings,
    "values": _values,
    "coverage": _coverage,
    "exploration": _exploration,
}
"""Checks of the numbers by code, in the order in which the doctor reports them.

``resolving`` runs only if shown ids were looked up in an index. The check of the click rates (``shape``) comes last.
"""


IDS_ASKED = 1_000
"""Maximum number of shown ids that are looked up in the index. They are sampled by their hash."""
MAX_RANKS = 50
MAX_FAILED = 50
"""Maximum number of queries without results or clicks that are reported."""
LEAST_PEOPLE = 5
"""Minimum number of people who must have asked a query before its text is shown to the operators of the search."""

_STATUSES = "SELECT status, COUNT(*) FROM statuses GROUP BY status"
_RATES = """SELECT rank, COUNT(*), COUNT(*) FILTER (clicked) FROM impressions WHERE rank BETWEEN 1 AND {ranks}
    GROUP BY rank ORDER BY rank"""
_IDS = "SELECT document FROM (SELECT DISTINCT document FROM result_lists) ORDER BY hash(document), document LIMIT {n}"


def examine(
    log: ClickLog,
    engine: Engine | None = None,
    index: str | None = None,
    *,
    config: PairConfig | None = None,
    resources: Resources | None = None,
) -> Diagnosis:
    """Return the diagnosis of a click log.

    Parameters
    ----------
    log
        The click log.
    engine, index
        If both are given, up to `IDS_ASKED` of the shown ids are looked up in this index.
    config
        Its ``robots`` rules decide whose searches are excluded.
    resources
        Threads, memory, and temporary folder for DuckDB.

    Raises
    ------
    EngineError
        If the lookup of shown ids fails.
    """
    task = LogTask(log, config or PairConfig(), "impressions")
    with prepared(task, resources or Resources()) as connection:
        numbers: dict[str, float] = {}
        for text in sql_text("doctor_numbers", least=MIN_SHOWN).split(";"):
            answer = connection.execute(text)
            columns = zip((column[0] for column in answer.description), answer.fetchone() or (), strict=True)
            numbers |= {name: value for name, value in columns if value is not None}  # NULL: an undated log's time
        numbers |= {str(status): n for status, n in connection.execute(_STATUSES).fetchall()}
        rates = tuple(RankRate(*row) for row in connection.execute(_RATES.format(ranks=MAX_RANKS)).fetchall())
        failed = _failed(connection.execute(sql_text("answered_queries", least=LEAST_PEOPLE)).fetchall())
        ids = []
        if engine is not None and index is not None:
            ids = [row[0] for row in connection.execute(_IDS.format(n=IDS_ASKED)).fetchall()]
            documents = engine.get(index, ids, source=False)
            numbers |= {"ids_asked": len(ids), "ids_found": sum(document is not None for document in documents)}
    numbers |= {f"note_{name}": n for name, n in log.manifest.notes.items()}
    findings = [Finding(code, *check(numbers)) for code, check in CHECKS.items() if code != "resolving" or ids]
    findings.append(Finding("shape", *_shape(rates)))
    return Diagnosis(tuple(findings), numbers, rates, failed)


def _failed(rows: Sequence[tuple[str, int, int, int, int]]) -> tuple[FailedQuery, ...]:
    """Return the queries without results or clicks. Near words are those of clicked queries that are spelled alike."""
    clicked = " ".join(query for query, *_, n_clicked in rows if n_clicked)
    known = sorted(set(words(normalised(clicked))))
    failed: list[FailedQuery] = []
    for query, people, searches, n_listed, n_clicked in rows:
        if not n_clicked and len(failed) < MAX_FAILED:
            unknown = [word for word in words(normalised(query)) if word not in known]
            near = [match for word in unknown for match in get_close_matches(word, known, n=3)]
            failed.append(FailedQuery(query, people, searches, n_listed > 0, tuple(dict.fromkeys(near))))
    return tuple(failed)


FORMATS = (".png", ".svg", ".html")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bars(rates: Sequence[RankRate], width: int = 40, limit: int = 20) -> list[str]:
    """Return one line for each rank: rank, bar, rate, clicks, and impressions; the highest rate has the longest bar."""
    kept = rates[:limit]
    top = max((rate.rate for rate in kept), default=0.0)
    lines = []
    for rate in kept:
        eighths = round(8 * width * rate.rate / top) if top else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{rate.rank:>4}  {bar:<{width}}  {rate.rate:6.2%}  {rate.clicked:,} of {rate.shown:,}")
    return lines


def write_picture(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write the click rates as ``.png`` or ``.svg``, or the whole diagnosis as ``.html``.

    Raises
    ------
    ConfigError
        If the file name has another ending.
    """
    target = Path(path)
    kind = picture_kind(target, FORMATS)
    with new_figure(8, 4, style=STYLE) as figure:
        _draw(figure.add_subplot(), diagnosis.rates)
        if kind == ".html":
            content = _page(diagnosis, inline_svg(figure, "rates")).encode("utf-8")
        else:
            content = picture_bytes(figure, kind[1:], dpi=120)
    with replacing(target, private=True) as file:
        file.write(content)


def _draw(axes: Any, rates: Sequence[RankRate]) -> None:
    axes.bar(
        [rate.rank for rate in rates], [100 * rate.rate for rate in rates], color=BLUE, label="clicks / impressions"
    )
    axes.set_xlabel("rank")
    axes.set_ylabel("click rate, %")
    axes.set_title("Click rate by rank, without robots")
    if rates:
        whole_numbers(axes)
        axes.legend()


def _page(diagnosis: Diagnosis, svg: str) -> str:
    items = "".join(
        f'<li class="{finding.severity}"><b>{finding.severity}</b> {html.escape(finding.sentence)}</li>'
        for finding in diagnosis.findings
    )
    rows = "".join(
        f'<tr><td class="n">{rate.rank}</td><td class="n">{rate.shown:,}</td><td class="n">{rate.clicked:,}</td>'
        f'<td class="n">{rate.rate:.2%}</td></tr>'
        for rate in diagnosis.rates
    )
    heads = "".join(f'<th class="n" scope="col">{name}</th>' for name in ("rank", "shown", "clicked", "rate"))
    return (
        f'{report_head("Click log")}<body><main class="report">'
        f'<header class="page {"refused" if diagnosis.severity == "unsound" else ""}">'
        f'<h1>Click log: {diagnosis.severity}</h1></header><section><h2>Findings</h2><ul class="findings">{items}</ul>'
        f'</section><section><h2>Click rate by rank</h2><div class="two"><figure>{svg}</figure>'
        f"<div><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div></section>"
        f"</main></body></html>\n"
    )
