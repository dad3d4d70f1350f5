"""The doctor: says of a click log whether learning from it would be sound, and what to mend.

A warning says that part of the log is lost or bent; unsound means that what is learned would be wrong, or nothing.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import PairConfig, Resources, Task, prepared, sql_text
from reranker.clicks.propensities import MIN_RANDOMISED_CLICKS, MIN_SHOWN
from reranker.clicks.schema import arrow
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

Severity = Literal["ok", "warning", "unsound"]
SEVERITIES: tuple[Severity, ...] = ("ok", "warning", "unsound")
"""From harmless to fatal: what is learned from an unsound log would be wrong, or nothing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at (``code``), what was found and what to do about it, and the numbers it rests on."""

    code: str
    severity: Severity
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankRate:
    """Showings and clicks of one rank (from 1)."""

    rank: int
    shown: int
    clicked: int

    @property
    def rate(self) -> float:
        """Clicks / showings."""
        return self.clicked / self.shown if self.shown else 0.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of a click log: ``numbers`` count rows, lists, clicks, people; ``rates`` leave robots out."""

    findings: tuple[Finding, ...]
    numbers: Mapping[str, float]
    rates: tuple[RankRate, ...]

    def sentences(self, severity: Severity) -> tuple[str, ...]:
        """Return what the findings of one severity say."""
        return tuple(finding.sentence for finding in self.findings if finding.severity == severity)

    @property
    def severity(self) -> Severity:
        """The worst severity of all findings."""
        return max((finding.severity for finding in self.findings), key=SEVERITIES.index, default="ok")

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON has it."""
        return {
            "severity": self.severity,
            "findings": [asdict(finding) for finding in self.findings],
            "numbers": dict(self.numbers),
            "click_rate_by_rank": [{**asdict(rate), "rate": rate.rate} for rate in self.rates],
        }


Numbers = Mapping[str, float]
Said = tuple[Severity, str, Numbers]
"""What a check says: severity, sentence, and the numbers it rests on."""

MIN_CLICKS = 200
"""Clicks below which a model learned from them will hardly be better than none."""
_ROBOTS = ("robot_agent", "robot_session_clicks", "robot_speed", "robot_day_clicks", "robot_one_document")
_NOTED = {
    "unreadable_time": "times cannot be read",
    "impossible_time": "times are before the web or in the future",
    "impossible_ordinal": "positions are no ranks",
    "empty_response": "queries were logged with an empty response",
}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_share(share: float, limits: tuple[float, float], numbers: Numbers, well: str, otherwise: str) -> Said:
    """Return what is said of a share of what should not be: above the first limit a warning, above the second unsound.

    Of the sentences, for a small share and for another, ``{share}`` is filled in, and ``{rest}``, what is left of 1.
    """
    severity = SEVERITIES[sum(share > limit for limit in limits)]
    sentence = (well if severity == "ok" else otherwise).format(share=f"{share:.1%}", rest=f"{1 - share:.1%}")
    return severity, sentence, numbers


def _clicks(of: Numbers) -> Said:
    usable, everything = of["clicks_on_lists"], of["clicks"]
    numbers = {"clicks": everything, "clicks_on_lists": usable}
    if not everything:
        return (
            "unsound",
            (
                "There is no click in the log: check that events are logged with the action click and the "
                "query_id of their search."
            ),
            numbers,
        )
    if not usable:
        return (
            "unsound",
            (
                f"None of the {everything:,.0f} clicks is on a known result list: log the ids of the shown "
                "documents with each query, and its query_id with each click."
            ),
            numbers,
        )
    if usable < MIN_CLICKS:
        return (
            "warning",
            (
                f"{usable:,.0f} clicks on known result lists are few: expect little from fewer than "
                f"{MIN_CLICKS:,}; log for longer."
            ),
            numbers,
        )
    return "ok", f"{usable:,.0f} clicks on known result lists.", numbers


def _lists(of: Numbers) -> Said:
    without, searches = of["searches_without_list"], of["searches_kept"]
    return _by_share(
        _share(without, searches),
        (0.05, 0.9),
        {"searches_without_list": without, "searches": searches},
        "What was shown is known for {rest} of the searches.",
        "For {share} of the searches nothing says what was shown: log the result ids with the query "
        "(query_response_hit_ids), or an impression event for each document that was seen.",
    )


def _queries(of: Numbers) -> Said:
    lost, nameless = of["clicks_without_query"], of["events_without_query_id"]
    return _by_share(
        _share(lost + nameless, of["clicks"] + nameless),
        (0.01, 0.9),
        {"clicks_without_query": lost, "events_without_query_id": nameless},
        "Clicks find the query that they belong to.",
        "{share} of the clicks and other events name no query, or one that was not logged: import ubi_queries with "
        "ubi_events, of the same time, and send query_id with every event.",
    )


def _texts(of: Numbers) -> Said:
    without, searches = of.get("no_query_text", 0), of["searches"]
    return _by_share(
        _share(without, searches),
        (0.05, 0.95),
        {"no_query_text": without, "searches": searches},
        "The text is known of {rest} of the searches.",
        "{share} of the searches have no text: log user_query with each query (or with its events).",
    )


def _shown_documents(of: Numbers) -> Said:
    there, missing = of["clicks_on_lists"], of["clicks_off_lists"]
    return _by_share(
        _share(missing, there + missing),
        (0.05, 0.5),
        {"clicks_on_lists": there, "clicks_off_lists": missing},
        "Clicked documents are among those that were shown.",
        "{share} of the clicks are on documents that were not shown by their query: log the same kind of id with "
        "events (object_id) and results, set object_id_field, and start a new query_id with each search.",
    )


def _lucene_ids(of: Numbers) -> Said:
    number_like = _share(of["hits_like_numbers"], of["hits"])
    of_clicks = _share(of["clicks_like_numbers"], of["clicks"])
    on_list = _share(of["clicks_on_lists"], of["clicks_on_lists"] + of["clicks_off_lists"])
    numbers = {"hits_like_numbers": number_like, "clicks_like_numbers": of_clicks}
    remedy = (
        "set object_id_field to the field that holds the document id, and log anew: without it UBI writes Lucene's own "
        "numbers, which change with every merge"
    )
    if number_like < 0.95:
        return "ok", "Result ids do not look like Lucene's numbers.", numbers
    if of["clicks"] and on_list < 0.5:
        sentence = f"Result ids are small whole numbers and clicks name other ids ({of_clicks:.0%} of them numbers)"
        return "unsound", f"{sentence}: {remedy}.", numbers
    if of["clicks_on_lists"] and on_list >= 0.95:
        return "ok", "Result ids are whole numbers, and the same as in the clicks.", numbers
    sentence = "Result ids are small whole numbers, perhaps Lucene's own: check with --engine and --index; if they are"
    return "warning", f"{sentence}, {remedy}.", numbers


def _resolving(of: Numbers) -> Said:
    asked, there = of["ids_asked"], of["ids_found"]
    return _by_share(
        _share(asked - there, asked),
        (0.05, 0.5),
        {"ids_asked": asked, "ids_found": there},
        "{rest} of the shown ids are documents of the index.",
        "{share} of the shown ids are no documents of the index: name the index that was searched; if it is, log "
        "document ids (object_id_field) in place of Lucene's numbers or another field.",
    )


def _ordinals(of: Numbers) -> Said:
    names = ("positions_stated", "positions_agreeing", "applications_from_0", "applications_mixed")
    stated, agree, from_0, mixed = (of[name] for name in names)
    numbers = {name: of[name] for name in names}
    share = 1 - agree / stated if stated else 0.0
    if share > 0.1:
        return (
            "warning",
            (
                f"{share:.1%} of the positions in events are not the place of the document in its result list, "
                "counted from 0 or from 1: log the place on the page in position.ordinal; the result list is "
                "believed, not they."
            ),
            numbers,
        )
    if mixed:
        return (
            "warning",
            (f"{mixed:,.0f} applications log position 0 now and then: count from 1 everywhere, or from 0 everywhere."),
            numbers,
        )
    if not stated:
        return "ok", "No event states a position.", numbers
    moved = f"Positions in events count from 0 in {from_0:,.0f} applications; they were moved up by one."
    return "ok", moved if from_0 else "Positions in events count from 1.", numbers


def _robots(of: Numbers) -> Said:
    by_reason = {name: of[name] for name in _ROBOTS if of.get(name)}
    share = _share(sum(by_reason.values()), of["searches"])
    why = ", ".join(f"{name.removeprefix('robot_').replace('_', ' ')} {n:,.0f}" for name, n in by_reason.items())
    return _by_share(
        share,
        (0.1, 0.95),
        {"share": share, **by_reason},
        "{share} of the searches are by robots; they are left out.",
        f"{{share}} of the searches are by robots ({why}) and are left out: keep crawlers from the search page, and "
        "check the limits if these are people.",
    )


def _people(of: Numbers) -> Said:
    share, top = _share(of["searches_anonymous"], of["searches"]), of["clicks_of_busiest"]
    numbers = {"anonymous": share, "people": of["people"], "clicks_of_busiest": top}
    if share > 0.5:
        return (
            "warning",
            (
                f"{share:.1%} of the searches name neither user nor session, so that one visitor can count "
                "as many: send client_id (or session_id) with queries and events."
            ),
            numbers,
        )
    if _share(top, of["clicks_kept"]) > 0.1:
        return (
            "warning",
            (
                f"One person made {top / of['clicks_kept']:.1%} of the clicks: caps limit what they say, "
                "and a log of more people says more."
            ),
            numbers,
        )
    return "ok", f"{of['people']:,.0f} people; none makes more than a tenth of the clicks.", numbers


def _spellings(of: Numbers) -> Said:
    n = of.get("note_camel_case", 0)
    if not n:
        return "ok", "Fields are spelt as UBI says.", {"camel_case": 0}
    return (
        "warning",
        (
            f"{n:,.0f} rows are in camelCase, as Data Prepper writes them: they were read all the same, but dashboards "
            f"and judgement tools of the engine will not find their fields."
        ),
        {"camel_case": n},
    )


def _values(of: Numbers) -> Said:
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
            f"{'; '.join(faults)}: log ISO 8601 times with a zone (retraining keeps the newest searches "
            "apart), positions from 1, and queries that were answered."
        ),
        numbers,
    )


def _coverage(of: Numbers) -> Said:
    asked, clicked = of["distinct_queries"], of["distinct_queries_clicked"]
    share = _share(clicked, asked)
    numbers = {"distinct_queries": asked, "distinct_queries_clicked": clicked}
    sentence = f"{clicked:,.0f} of {asked:,.0f} different queries ({share:.1%}) have a click"
    if asked and share < 0.05:
        return "warning", f"{sentence}: check that clicks are logged for every kind of search.", numbers
    return "ok", f"{sentence}.", numbers


def _shape(rates: Sequence[RankRate]) -> Said:
    enough = [rate for rate in rates[:10] if rate.shown >= 200]
    total = sum(rate.clicked for rate in enough)
    numbers = {"ranks": float(len(enough)), "clicks": float(total)}
    if len(enough) < 3 or total < MIN_CLICKS:
        return "ok", "Too few showings to say more of the click rate by rank.", numbers
    first, best = enough[0], max(enough, key=lambda rate: rate.rate)
    if best.rank > 1 and first.rate < 0.8 * best.rate:
        return (
            "warning",
            (
                f"Rank 1 is clicked less ({first.rate:.1%}) than rank {best.rank} ({best.rate:.1%}): check that "
                "clicks on it are logged (an advertisement above the list counts as none), and whether positions are "
                "off by one."
            ),
            numbers,
        )
    return "ok", f"Rank 1 is clicked most ({first.rate:.1%}); the rates fall with the rank.", numbers


def _exploration(of: Numbers) -> Said:
    lists, clicks = of["searches_randomised"], of.get("randomised_clicks_of_rarest_rank", 0)
    numbers = {"searches_randomised": lists, "clicks_of_rarest_rank": clicks}
    if not lists:
        return (
            "ok",
            (
                "No list was shuffled: how often each rank is looked at is inferred from orders that changed; "
                "`ssi serve --explore 1` measures it."
            ),
            numbers,
        )
    if clicks >= MIN_RANDOMISED_CLICKS:
        return "ok", f"{lists:,.0f} shuffled lists are enough to measure how often each rank is looked at.", numbers
    more = f"about {lists * (MIN_RANDOMISED_CLICKS / clicks - 1):,.0f} more such lists are" if clicks else "more are"
    return (
        "ok",
        (
            f"{lists:,.0f} lists were shuffled, with {clicks:,.0f} clicks at the rank that has the fewest: "
            f"{more} needed for {MIN_RANDOMISED_CLICKS} clicks at each."
        ),
        numbers,
    )


CHECKS: dict[str, Callable[[Numbers], Said]] = {
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
"""The checks of numbers by code, in the order in which the doctor reports them, before the one of the click rates;
``resolving`` only where shown ids were looked up."""


IDS_ASKED = 1_000
"""Shown ids that are looked up in the index, drawn by their hash."""
MAX_RANKS = 50

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
    """Return what is wrong with a click log, and the click rate by rank.

    With ``engine`` and ``index`` up to 1,000 of the shown ids are looked up there; ``config`` says who is a robot.

    `MissingExtra` without DuckDB; `EngineError` if the engine cannot be asked.
    """
    task = Task(log, config or PairConfig(), "impressions")
    with prepared(task, resources or Resources()) as connection:
        numbers: dict[str, float] = {}
        for text in sql_text("doctor_numbers", least=MIN_SHOWN).split(";"):
            answer = connection.execute(text)
            columns = zip((column[0] for column in answer.description), answer.fetchone() or (), strict=True)
            numbers |= {name: value for name, value in columns if value is not None}  # NULL: an undated log's time
        numbers |= {str(status): n for status, n in connection.execute(_STATUSES).fetchall()}
        rates = tuple(RankRate(*row) for row in connection.execute(_RATES.format(ranks=MAX_RANKS)).fetchall())
        ids = []
        if engine is not None and index is not None:
            ids = [row[0] for row in connection.execute(_IDS.format(n=IDS_ASKED)).fetchall()]
            documents = engine.get(index, ids, source=False)
            numbers |= {"ids_asked": len(ids), "ids_found": sum(document is not None for document in documents)}
    numbers |= {f"note_{name}": n for name, n in log.manifest.notes.items()}
    findings = [Finding(code, *check(numbers)) for code, check in CHECKS.items() if code != "resolving" or ids]
    findings.append(Finding("shape", *_shape(rates)))
    return Diagnosis(tuple(findings), numbers, rates)


LEAST_PEOPLE = 5
"""People who must have asked a query before its text is shown to whoever operates the search."""


@dataclass(frozen=True, slots=True)
class QueryLoss:
    """What came of a query; ``lost`` is the sum over clicks of 1 / the engine's rank - 1 / the shown one."""

    query: str
    people: int
    searches: int
    without_click: int
    lost: float


def query_losses(
    log: ClickLog, engine_ranks: Sequence[tuple[str, str, int]], *, resources: Resources | None = None
) -> list[QueryLoss]:
    """Return what came of the queries that `LEAST_PEOPLE` asked, by their text; robots are left out.

    ``engine_ranks`` are (query id, document, rank in the engine's order). A search that names neither user nor session
    counts for nobody: it may be the same person again.

    `MissingExtra` without DuckDB.
    """
    columns = zip(*engine_ranks, strict=True) if engine_ranks else ([], [], [])
    pa = arrow()
    types = (pa.string(), pa.string(), pa.int64())
    ranks = pa.table(
        [pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)],
        names=["query_id", "document", "rank"],
    )
    with prepared(Task(log, PairConfig(), "impressions"), resources or Resources()) as connection:
        connection.register("engine_ranks", ranks)
        return [QueryLoss(*row) for row in connection.execute(sql_text("query_losses", least=LEAST_PEOPLE)).fetchall()]


FORMATS = (".png", ".svg", ".html")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bars(rates: Sequence[RankRate], width: int = 40, limit: int = 20) -> list[str]:
    """Return one line a rank: rank, bar, rate, clicks and showings; the longest bar is the highest rate."""
    kept = rates[:limit]
    top = max((rate.rate for rate in kept), default=0.0)
    lines = []
    for rate in kept:
        eighths = round(8 * width * rate.rate / top) if top else 0
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{rate.rank:>4}  {bar:<{width}}  {rate.rate:6.2%}  {rate.clicked:,} of {rate.shown:,}")
    return lines


def write_picture(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Write the rates as ``.png``, ``.svg``, or all as ``.html``; `ConfigError` for others, `MissingExtra`."""
    target = Path(path)
    kind = picture_kind(target, FORMATS)
    with new_figure(8, 4, extra="clicks", style=STYLE) as figure:
        _draw(figure.add_subplot(), diagnosis.rates)
        if kind == ".html":
            content = _page(diagnosis, inline_svg(figure, "rates")).encode("utf-8")
        else:
            content = picture_bytes(figure, kind[1:], dpi=120)
    with replacing(target, private=True) as file:
        file.write(content)


def _draw(axes: Any, rates: Sequence[RankRate]) -> None:
    axes.bar([rate.rank for rate in rates], [100 * rate.rate for rate in rates], color=BLUE, label="clicks / showings")
    axes.set_xlabel("rank")
    axes.set_ylabel("click rate, %")
    axes.set_title("Click rate by rank, robots left out")
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
