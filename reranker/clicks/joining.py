"""From logged rows to impressions in plain Python: the definition of what the SQL steps up to ``shown`` must give.

Rows may come in any order and any number of times: every value is taken by a rule that does not look at either (the
largest, the smallest, the longest), never "the last one".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reranker.clicks.pair_config import PairConfig
from reranker.clicks.schema import CART, CLICK, IMPRESSION, PURCHASE, Impression, Shown

Row = Mapping[str, Any]
Touches = dict[str, dict[str, "Touch"]]
_ACTIONS = (IMPRESSION, CLICK, CART, PURCHASE)
_TEXTS = ("session", "user", "network", "application", "agent")


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of one query id; ``person`` and ``visit`` say who searched, and when in one go."""

    query_id: str
    query: str
    session: str
    user: str
    network: str
    application: str
    agent: str
    time: int | None
    randomised: bool = False
    person: str = ""
    visit: str = ""


@dataclass(frozen=True, slots=True)
class Touch:
    """What was done with one document of a query; ``ordinal`` is the smallest one logged."""

    seen: bool
    clicked: bool
    carted: bool
    purchased: bool
    ordinal: int | None
    time: int | None
    dwell: float | None


def join_searches(queries: Iterable[Row], events: Iterable[Row], gap_ms: int) -> dict[str, Search]:
    """Return all query ids of the log: the query's own row first, its events where that is silent."""
    own, told = _by_query_id(queries), _by_query_id(events)
    known = []
    for query_id in own.keys() | told.keys():
        rows = own.get(query_id, [])
        first, second = _merged(query_id, rows), _merged(query_id, told.get(query_id, []))
        texts = {name: getattr(first, name) or getattr(second, name) for name in ("query", *_TEXTS)}
        time = second.time if first.time is None else first.time
        known.append(Search(query_id, **texts, time=time, randomised=any(row["randomised"] for row in rows)))
    return {one.query_id: one for one in _in_visits(known, gap_ms)}


def join_touches(events: Iterable[Row]) -> Touches:
    """Return what was done with each document of each query, by query id and document."""
    groups: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in events:
        if row["query_id"] and row["document"] and row["action"] in _ACTIONS:
            groups[row["query_id"]][row["document"]].append(row)
    return {query_id: {name: _touch(rows) for name, rows in found.items()} for query_id, found in groups.items()}


def first_ordinals(searches: Mapping[str, Search], touches: Touches) -> dict[str, int]:
    """Return where each application begins to count: from 0 if one in fifty of its ordinals is 0, else from 1."""
    total: Counter[str] = Counter()
    zeros: Counter[str] = Counter()
    for query_id, found in touches.items():
        application = searches[query_id].application
        ordinals = [touch.ordinal for touch in found.values() if touch.ordinal is not None]
        total[application] += len(ordinals)
        zeros[application] += ordinals.count(0)
    return {name: int(50 * zeros[name] < n) for name, n in total.items() if n}


def join_hits(hits: Iterable[Row], wanted: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the position of each returned document, by query id; one returned twice counts where it stood first."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in hits:
        query_id, document, position = row["query_id"], row["document"], row["position"]
        if query_id in wanted and document and position is not None and position >= 1:
            found[query_id][document] = min(position, found[query_id].get(document, position))
    return found


def shown_list(positions: Mapping[str, int], touched: Mapping[str, Touch], first_ordinal: int) -> tuple[Shown, ...]:
    """Return the list of a query, by rank; empty where it is not known what was shown.

    Parameters
    ----------
    positions : mapping of str to int
        Positions of the returned documents; empty where none were logged. Then the list is made of the documents with
        an impression or a click that states a rank, if any has an impression: clicks alone do not tell what was
        passed over.
    touched : mapping of str to Touch
        What was done, by document.
    first_ordinal : int
        What the application's ordinals begin with.

    Notes
    -----
    Documents that share a rank are left out. Positions of a later page begin at 1 while ordinals count on: where all
    events of the list are further down by one and the same distance, and that is at least the list's length, it is
    added to the ranks.
    """
    stated = {name: touch.ordinal + 1 - first_ordinal for name, touch in touched.items() if touch.ordinal is not None}
    ranks = dict(positions)
    if not ranks and any(touch.seen for touch in touched.values()):
        ranks = {name: rank for name, rank in stated.items() if rank >= 1}
    distances = {stated[name] - rank for name, rank in ranks.items() if name in stated}
    before = distances.pop() if len(distances) == 1 else 0
    before = before if before >= len(ranks) else 0
    holders = Counter(ranks.values())
    return tuple(
        _shown(name, rank + before, touched.get(name))
        for name, rank in sorted(ranks.items(), key=lambda item: item[1])
        if holders[rank] == 1
    )


def impression_of(search: Search, shown: tuple[Shown, ...]) -> Impression:
    """Return the impression of a query and its list."""
    return Impression(
        search.query_id, search.query, shown, search.session, search.user, search.network, search.time,
        search.application, search.randomised,
    )  # fmt: skip


def _by_query_id(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["query_id"]:
            groups[row["query_id"]].append(row)
    return groups


def _merged(query_id: str, rows: list[Row]) -> Search:
    """Return one search of several rows: the longest text, the first time, else the largest value."""
    text = max((row["query"] for row in rows), key=lambda query: (len(query), query), default="")
    values: dict[str, Any] = {name: max((row[name] for row in rows), default="") for name in _TEXTS}
    return Search(query_id, text, **values, time=_least(row["time"] for row in rows))


def _in_visits(known: list[Search], gap_ms: int) -> Iterator[Search]:
    """Yield the searches with person and visit: the session, else a user's queries until a pause."""
    alone: dict[str, list[Search]] = defaultdict(list)
    for one in known:
        if one.session or not one.user:
            person = f"u{one.user}" if one.user else f"s{one.session}" if one.session else f"q{one.query_id}"
            yield replace(one, person=person, visit=f"s{one.session}" if one.session else f"q{one.query_id}")
        else:
            alone[one.user].append(one)
    for user, searches in alone.items():
        number, last = 0, None
        for one in sorted(searches, key=lambda s: (s.time is not None, s.time or 0, s.query_id)):
            number += one.time is not None and last is not None and one.time - last > gap_ms
            last = one.time
            yield replace(one, person=f"u{user}", visit=f"u{user}/{number}")


def _touch(rows: list[Row]) -> Touch:
    actions = {row["action"] for row in rows}
    placed = [row["ordinal"] for row in rows if row["action"] in (IMPRESSION, CLICK) and row["ordinal"] is not None]
    clicks = [row for row in rows if row["action"] == CLICK]
    return Touch(
        seen=IMPRESSION in actions,
        clicked=bool(actions - {IMPRESSION}),
        carted=CART in actions,
        purchased=PURCHASE in actions,
        ordinal=_least(ordinal for ordinal in placed if ordinal >= 0),
        time=max((row["time"] for row in clicks if row["time"] is not None), default=None),
        dwell=max((row["dwell"] for row in clicks if row["dwell"] is not None), default=None),
    )


def _shown(document: str, rank: int, touch: Touch | None) -> Shown:
    if touch is None:
        return Shown(document, rank)
    return Shown(document, rank, touch.clicked, touch.carted, touch.purchased, touch.time, touch.dwell)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def judge_searches(
    searches: Mapping[str, Search], touches: Touches, robots: Mapping[str, str], config: PairConfig,
    since: int | None, until: int | None, clicked_only: bool,
) -> dict[str, str]:  # fmt: skip
    """Return what becomes of each query: ``kept``, or the first reason why not (`pair_config.STATUSES`)."""
    statuses = {}
    for query_id, one in searches.items():
        status = "kept"
        if not one.query:
            status = "no_query_text"
        elif query_id in robots:
            status = robots[query_id]
        elif not _in_range(one.time, since, until):
            status = "out_of_range"
        elif clicked_only and not any(touch.clicked for touch in touches.get(query_id, {}).values()):
            status = "no_click"
        statuses[query_id] = status
    return statuses


def _in_range(time: int | None, since: int | None, until: int | None) -> bool:
    if time is None:
        return since is None
    return (since is None or time >= since) and (until is None or time < until)
