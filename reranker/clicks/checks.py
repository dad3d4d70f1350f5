"""What the doctor looks at, one function a finding: numbers of a log in, sentence with remedy out.

The numbers are those of `reranker.clicks.doctor.count`. Shares are of what the sentence names. Thresholds: a warning
says that part of the log is lost or bent; unsound means that what is learned would be wrong, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reranker.clicks.diagnosis import Finding, RankRate, Severity

Numbers = Mapping[str, float]

MIN_CLICKS = 200
"""Clicks below which a model learned from them will hardly be better than none."""
_ROBOTS = ("robot_agent", "robot_session_clicks", "robot_speed", "robot_day_clicks", "robot_one_document")
_NOTED = {
    "unreadable_time": "times cannot be read",
    "impossible_time": "times are before the web or in the future",
    "impossible_ordinal": "positions are no ranks",
    "empty_response": "queries were logged with an empty response",
}


def _graded(share: float, warning: float, unsound: float) -> Severity:
    return "unsound" if share > unsound else "warning" if share > warning else "ok"


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def clicks(of: Numbers) -> Finding:
    """Say whether there are clicks, and enough of them, on lists that are known."""
    usable, everything = of["clicks_on_lists"], of["clicks"]
    numbers = {"clicks": everything, "clicks_on_lists": usable}
    if not everything:
        return Finding("clicks", "unsound", "There is no click in the log: check that events are logged with the "
                       "action click and the query_id of their search.", numbers)  # fmt: skip
    if not usable:
        return Finding("clicks", "unsound", f"None of the {everything:,.0f} clicks is on a known result list: log the "
                       "ids of the shown documents with each query, and its query_id with each click.",
                       numbers)  # fmt: skip
    if usable < MIN_CLICKS:
        return Finding("clicks", "warning", f"{usable:,.0f} clicks on known result lists are few: expect little from "
                       f"fewer than {MIN_CLICKS:,}; log for longer.", numbers)  # fmt: skip
    return Finding("clicks", "ok", f"{usable:,.0f} clicks on known result lists.", numbers)


def lists(of: Numbers) -> Finding:
    """Say whether it is known what was shown."""
    without = of["searches_without_list"]
    share = _share(without, of["searches_kept"])
    numbers = {"searches_without_list": without, "searches": of["searches_kept"]}
    if share <= 0.05:
        return Finding("lists", "ok", f"What was shown is known for {1 - share:.1%} of the searches.", numbers)
    sentence = (
        f"For {share:.1%} of the searches nothing says what was shown: log the result ids with the query "
        f"(query_response_hit_ids), or an impression event for each document that was seen."
    )
    return Finding("lists", _graded(share, 0.05, 0.9), sentence, numbers)


def queries(of: Numbers) -> Finding:
    """Say whether clicks find their query."""
    lost, nameless, everything = of["clicks_without_query"], of["events_without_query_id"], of["clicks"]
    share = _share(lost + nameless, everything + nameless)
    numbers = {"clicks_without_query": lost, "events_without_query_id": nameless}
    if share <= 0.01:
        return Finding("queries", "ok", "Clicks find the query that they belong to.", numbers)
    sentence = (
        f"{share:.1%} of the clicks and other events name no query, or one that was not logged: import ubi_queries "
        f"with ubi_events, of the same time, and send query_id with every event."
    )
    return Finding("queries", _graded(share, 0.01, 0.9), sentence, numbers)


def texts(of: Numbers) -> Finding:
    """Say whether it is known what was searched for."""
    without = of.get("no_query_text", 0)
    share = _share(without, of["searches"])
    numbers = {"no_query_text": without, "searches": of["searches"]}
    if share <= 0.05:
        return Finding("texts", "ok", f"The text is known of {1 - share:.1%} of the searches.", numbers)
    sentence = f"{share:.1%} of the searches have no text: log user_query with each query (or with its events)."
    return Finding("texts", _graded(share, 0.05, 0.95), sentence, numbers)


def shown_documents(of: Numbers) -> Finding:
    """Say whether the clicked documents are among those that were shown."""
    there, missing = of["clicks_on_lists"], of["clicks_off_lists"]
    share = _share(missing, there + missing)
    numbers = {"clicks_on_lists": there, "clicks_off_lists": missing}
    if share <= 0.05:
        return Finding("shown_documents", "ok", "Clicked documents are among those that were shown.", numbers)
    sentence = (
        f"{share:.1%} of the clicks are on documents that were not shown by their query: log the same kind of id with "
        f"events (object_id) and results, set object_id_field, and start a new query_id with each search."
    )
    return Finding("shown_documents", _graded(share, 0.05, 0.5), sentence, numbers)


def lucene_ids(of: Numbers) -> Finding:
    """Say whether the result ids are document ids, or numbers that Lucene gives and changes."""
    number_like = _share(of["hits_like_numbers"], of["hits"])
    of_clicks = _share(of["clicks_like_numbers"], of["clicks"])
    on_list = _share(of["clicks_on_lists"], of["clicks_on_lists"] + of["clicks_off_lists"])
    numbers = {"hits_like_numbers": number_like, "clicks_like_numbers": of_clicks}
    remedy = (
        "set object_id_field to the field that holds the document id, and log anew: without it UBI writes Lucene's own "
        "numbers, which change with every merge"
    )
    if number_like < 0.95:
        return Finding("lucene_ids", "ok", "Result ids do not look like Lucene's numbers.", numbers)
    if of["clicks"] and on_list < 0.5:
        sentence = f"Result ids are small whole numbers and clicks name other ids ({of_clicks:.0%} of them numbers)"
        return Finding("lucene_ids", "unsound", f"{sentence}: {remedy}.", numbers)
    if of["clicks_on_lists"] and on_list >= 0.95:
        return Finding("lucene_ids", "ok", "Result ids are whole numbers, and the same as in the clicks.", numbers)
    sentence = "Result ids are small whole numbers, perhaps Lucene's own: check with --engine and --index; if they are"
    return Finding("lucene_ids", "warning", f"{sentence}, {remedy}.", numbers)


def resolving(of: Numbers) -> Finding | None:
    """Say whether the ids exist in the index; None where no engine was asked."""
    asked = of.get("ids_asked", 0)
    if not asked:
        return None
    share = 1 - _share(of["ids_found"], asked)
    numbers = {"ids_asked": asked, "ids_found": of["ids_found"]}
    if share <= 0.05:
        return Finding("resolving", "ok", f"{1 - share:.1%} of the shown ids are documents of the index.", numbers)
    sentence = (
        f"{share:.1%} of the shown ids are no documents of the index: name the index that was searched; if it is, "
        f"log document ids (object_id_field) in place of Lucene's numbers or another field."
    )
    return Finding("resolving", _graded(share, 0.05, 0.5), sentence, numbers)


def ordinals(of: Numbers) -> Finding:
    """Say whether positions in events agree with the places in the result lists."""
    stated, agree = of["positions_stated"], of["positions_agreeing"]
    share = 1 - _share(agree, stated) if stated else 0.0
    from_0 = of["applications_from_0"]
    numbers = {"positions_stated": stated, "positions_agreeing": agree, "applications_from_0": from_0,
               "applications_mixed": of["applications_mixed"]}  # fmt: skip
    if share > 0.1:
        sentence = (
            f"{share:.1%} of the positions in events are not the place of the document in its result list, counted "
            f"from 0 or from 1: log the place on the page in position.ordinal; the result list is believed, not they."
        )
        return Finding("ordinals", "warning", sentence, numbers)
    if of["applications_mixed"]:
        sentence = (
            f"{of['applications_mixed']:,.0f} applications log position 0 now and then: count from 1 everywhere, or "
            f"from 0 everywhere."
        )
        return Finding("ordinals", "warning", sentence, numbers)
    told = "Positions in events count from 1." if not from_0 else (
        f"Positions in events count from 0 in {from_0:,.0f} applications; they were moved up by one."
    )  # fmt: skip
    return Finding("ordinals", "ok", told if stated else "No event states a position.", numbers)


def robots(of: Numbers) -> Finding:
    """Say how much of the log is by robots."""
    found = {name: of[name] for name in _ROBOTS if of.get(name)}
    share = _share(sum(found.values()), of["searches"])
    numbers = {"share": share, **found}
    if share <= 0.1:
        return Finding("robots", "ok", f"{share:.1%} of the searches are by robots; they are left out.", numbers)
    why = ", ".join(f"{name.removeprefix('robot_').replace('_', ' ')} {count:,.0f}" for name, count in found.items())
    sentence = (
        f"{share:.1%} of the searches are by robots ({why}) and are left out: keep crawlers from the search page, and "
        f"check the limits if these are people."
    )
    return Finding("robots", _graded(share, 0.1, 0.95), sentence, numbers)


def people(of: Numbers) -> Finding:
    """Say whether it is known who clicked, so that nobody counts too often."""
    share = _share(of["searches_anonymous"], of["searches"])
    top = of["clicks_of_busiest"]
    numbers = {"anonymous": share, "people": of["people"], "clicks_of_busiest": top}
    if share > 0.5:
        sentence = (
            f"{share:.1%} of the searches name neither user nor session, so that one visitor can count as many: send "
            f"client_id (or session_id) with queries and events."
        )
        return Finding("people", "warning", sentence, numbers)
    if of["clicks_kept"] and top / of["clicks_kept"] > 0.1:
        sentence = (
            f"One person made {top / of['clicks_kept']:.1%} of the clicks: caps limit what they say, and a log of more "
            f"people says more."
        )
        return Finding("people", "warning", sentence, numbers)
    return Finding("people", "ok", f"{of['people']:,.0f} people; none makes more than a tenth of the clicks.", numbers)


def spellings(of: Numbers) -> Finding:
    """Say whether rows were in camelCase."""
    n = of.get("note_camel_case", 0)
    if n:
        sentence = (
            f"{n:,.0f} rows are in camelCase, as Data Prepper writes them: they were read all the same, but dashboards "
            f"and judgement tools of the engine will not find their fields."
        )
        return Finding("spellings", "warning", sentence, {"camel_case": n})
    return Finding("spellings", "ok", "Fields are spelt as UBI says.", {"camel_case": 0})


def values(of: Numbers) -> Finding:
    """Say whether values were unreadable or impossible."""
    found = {name: of[f"note_{name}"] for name in _NOTED if of.get(f"note_{name}")}
    undated = of["searches_undated"]
    rows = of["query_rows"] + of["event_rows"]
    numbers = {**found, "searches_undated": undated}
    if _share(sum(found.values()), rows) <= 0.01 and _share(undated, of["searches"]) <= 0.5:
        return Finding("values", "ok", "Times and positions can be read.", numbers)
    told = [f"{count:,.0f} {_NOTED[name]}" for name, count in found.items()]
    told += [f"{undated:,.0f} searches have no time"] if undated else []
    return Finding("values", "warning", f"{'; '.join(told)}: log ISO 8601 times with a zone (retraining keeps the "
                   "newest searches apart), positions from 1, and queries that were answered.", numbers)  # fmt: skip


def coverage(of: Numbers) -> Finding:
    """Say how many of the queries clicks speak of."""
    asked, clicked = of["distinct_queries"], of["distinct_queries_clicked"]
    share = _share(clicked, asked)
    numbers = {"distinct_queries": asked, "distinct_queries_clicked": clicked}
    sentence = f"{clicked:,.0f} of {asked:,.0f} different queries ({share:.1%}) have a click"
    if asked and share < 0.05:
        return Finding("coverage", "warning", f"{sentence}: check that clicks are logged for every kind of search.",
                       numbers)  # fmt: skip
    return Finding("coverage", "ok", f"{sentence}.", numbers)


def shape(rates: Sequence[RankRate]) -> Finding:
    """Say whether clicks by rank look like people's."""
    enough = [one for one in rates[:10] if one.shown >= 200]
    total = sum(one.clicked for one in enough)
    numbers = {"ranks": float(len(enough)), "clicks": float(total)}
    if len(enough) < 3 or total < MIN_CLICKS:
        return Finding("shape", "ok", "Too few showings to say more of the click rate by rank.", numbers)
    first, best = enough[0], max(enough, key=lambda one: one.rate)
    if best.rank > 1 and first.rate < 0.8 * best.rate:
        sentence = (
            f"Rank 1 is clicked less ({first.rate:.1%}) than rank {best.rank} ({best.rate:.1%}): check that clicks on "
            f"it are logged (an advertisement above the list counts as none), and whether positions are off by one."
        )
        return Finding("shape", "warning", sentence, numbers)
    return Finding("shape", "ok", f"Rank 1 is clicked most ({first.rate:.1%}); the rates fall with the rank.", numbers)


CHECKS: tuple[Callable[[Numbers], Finding | None], ...] = (
    clicks, texts, lists, queries, shown_documents, lucene_ids, resolving, ordinals, robots, people, spellings, values,
    coverage,
)  # fmt: skip
"""The checks of numbers, in the order in which the doctor reports them; `shape` looks at the click rates."""
