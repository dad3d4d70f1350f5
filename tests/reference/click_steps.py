"""The readable definition of the steps from a click log to pairs, impressions and ratings, all in memory.

The SQL steps (`reranker.clicks.pairs`) must give the same on DuckDB. Rows may come in any order and any
number of times: every value is taken by a rule that does not look at either (the largest, the smallest, the longest),
never "the last one".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reranker.clicks.log import read_part
from reranker.clicks.pairs import HALF_LIFE_DAYS, UNIT, LogTask, PairConfig, Resources, RobotRules
from reranker.clicks.propensities import ClickCounts
from reranker.clicks.schema import CART, CLICK, IMPRESSION, PURCHASE, TABLES, Impression, ShownDocument
from reranker.text.query_keys import query_key
from tests.reference.strategies import FUNCTIONS

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
    click_time: int | None
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


def most_frequent_spellings(texts: Iterable[str]) -> dict[str, str]:
    """Return for each query text its most frequent spelling; of equally frequent ones the smallest."""
    numbers = Counter(text for text in texts if text)
    most_frequent: dict[str, str] = {}
    for text in sorted(numbers, key=lambda text: (-numbers[text], text)):
        most_frequent.setdefault(query_key(text), text)
    return {text: most_frequent[query_key(text)] for text in numbers}


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


def shown_list(
    positions: Mapping[str, int], touched: Mapping[str, Touch], first_ordinal: int
) -> tuple[ShownDocument, ...]:
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


def impression_of(search: Search, shown: tuple[ShownDocument, ...]) -> Impression:
    """Return the impression of a query and its list."""
    return Impression(
        search.query_id,
        search.query,
        shown,
        search.session,
        search.user,
        search.network,
        search.time,
        search.application,
        search.randomised,
    )


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
    acted = [row for row in rows if row["action"] != IMPRESSION]
    times, click_times = ([row["time"] for row in some if row["time"] is not None] for some in (acted, clicks))
    return Touch(
        seen=IMPRESSION in actions,
        clicked=bool(actions - {IMPRESSION}),
        carted=CART in actions,
        purchased=PURCHASE in actions,
        ordinal=_least(ordinal for ordinal in placed if ordinal >= 0),
        time=max(times, default=None),
        click_time=max(click_times, default=None),
        dwell=max((row["dwell"] for row in clicks if row["dwell"] is not None), default=None),
    )


def _shown(document: str, rank: int, touch: Touch | None) -> ShownDocument:
    if touch is None:
        return ShownDocument(document, rank)
    return ShownDocument(document, rank, touch.clicked, touch.carted, touch.purchased, touch.time, touch.dwell)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def judge_searches(
    searches: Mapping[str, Search],
    touches: Touches,
    robots: Mapping[str, str],
    config: PairConfig,
    since: int | None,
    until: int | None,
    clicked_only: bool,
) -> dict[str, str]:
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


# Robots

_DAY_MS = 86_400_000


def find_robots(searches: Mapping[str, Search], touches: Touches, rules: RobotRules | None) -> dict[str, str]:
    """Return the reason of each query of a robot: an agent's name, or clicks as people do not make them.

    A visit with too many or too fast clicks is left out alone; a robot's agent, too many clicks a day, and one
    document clicked over and over (whatever was searched) speak against the person.
    """
    if rules is None:
        return {}
    visits = _visit_reasons(searches, touches, rules)
    agents = {one.person for one in searches.values() if one.agent}
    busy, repeating = _busy_people(searches, touches, rules), _repeating_people(searches, touches, rules)
    found = {}
    for query_id, one in searches.items():
        if one.person in agents:
            found[query_id] = "robot_agent"
        elif one.visit in visits:
            found[query_id] = visits[one.visit]
        elif one.person in busy:
            found[query_id] = "robot_day_clicks"
        elif one.person in repeating:
            found[query_id] = "robot_one_document"
    return found


def _visit_reasons(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> dict[str, str]:
    times: dict[str, list[int | None]] = defaultdict(list)
    of_days: dict[str, Counter[int | None]] = defaultdict(Counter)
    for query_id, found in touches.items():
        one, clicks = searches[query_id], [touch.click_time for touch in found.values() if touch.clicked]
        times[one.visit] += clicks
        of_days[one.visit][None if one.time is None else one.time // _DAY_MS] += len(clicks)
    reasons = {}
    for visit, all_times in times.items():
        timed = [time for time in all_times if time is not None]
        if max(of_days[visit].values()) > rules.session_clicks:
            reasons[visit] = "robot_session_clicks"
        elif len(timed) >= rules.speed_clicks:
            if max(timed) - min(timed) < round(rules.min_gap_s * 1000) * (len(timed) - 1):
                reasons[visit] = "robot_speed"
    return reasons


def _busy_people(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> set[str]:
    clicks: Counter[tuple[str, int | None]] = Counter()
    for query_id, found in touches.items():
        one = searches[query_id]
        day = None if one.time is None else one.time // _DAY_MS
        clicks[one.person, day] += sum(touch.clicked for touch in found.values())
    return {person for (person, _), n in clicks.items() if n > rules.day_clicks}


def _repeating_people(searches: Mapping[str, Search], touches: Touches, rules: RobotRules) -> set[str]:
    clicks: dict[str, Counter[str]] = defaultdict(Counter)
    for query_id, found in touches.items():
        clicks[searches[query_id].person].update(name for name, touch in found.items() if touch.clicked)
    repeating = set()
    for person, counts in clicks.items():
        n = counts.total()
        collisions = sum(count * count for count in counts.values())
        if n >= rules.repeat_clicks and float(collisions) > 2.0**-rules.min_entropy_bits * n * n:
            repeating.add(person)
    return repeating


# Votes

Key = tuple[str, str, str]
"""Query, better and worse document."""


@dataclass(slots=True)
class _Said:
    """How often, with which weights, in which visits and from which network a person stated a pair."""

    units: int = 0
    times: int = 0
    visits: set[str] = field(default_factory=set)
    network: str = ""


@dataclass(frozen=True, slots=True)
class Votes:
    """Weights in millionths by pair and person, each person's network, and the number of stated preferences."""

    units: dict[tuple[Key, str], int]
    networks: dict[tuple[Key, str], str]
    preferences: int


def preferences_of(impression: Impression, config: PairConfig) -> list[tuple[str, str]]:
    """Return what the configured strategy reads from one list."""
    return FUNCTIONS[config.strategy](impression)


def count_votes(lists: Iterable[Impression], searches: Mapping[str, Search], config: PairConfig) -> Votes:
    """Return each person's word on each pair.

    The weight is the mean over the impressions that state it, times the number of sessions with one, of which
    `PairConfig.user_cap` count at most.
    """
    said: dict[tuple[Key, str], _Said] = defaultdict(_Said)
    by_rank = config.rank_units()
    n_preferences = 0
    for one in lists:
        search = searches[one.query_id]
        ranks = {shown.document: shown.rank for shown in one.shown}
        for better, worse in preferences_of(one, config):
            vote = said[(one.query, better, worse), search.person]
            vote.units += by_rank[min(ranks[better], len(by_rank)) - 1]
            vote.times += 1
            vote.visits.add(search.visit)
            vote.network = max(vote.network, search.network)
            n_preferences += 1
    cap = float(config.user_cap or math.inf)
    units = {}
    for key, vote in said.items():
        sessions = len(vote.visits) if config.once_a_session else vote.times
        units[key] = math.floor(vote.units * min(float(sessions), cap) / vote.times)
    return Votes(units, {key: vote.network for key, vote in said.items()}, n_preferences)


def without_short_clicks(impression: Impression, min_dwell_s: float) -> Impression:
    """Return the impression without the documents whose click was left sooner than ``min_dwell_s`` seconds.

    Such a click is neither a recommendation nor a refusal at sight. Clicks without a dwell time, and documents that
    were bought or put into the cart, stay. Ranks are kept.
    """
    kept = tuple(one for one in impression.shown if not _is_short(one, min_dwell_s))
    if len(kept) == len(impression.shown):
        return impression
    return Impression(
        impression.query_id,
        impression.query,
        kept,
        impression.session,
        impression.user,
        impression.network,
        impression.time,
        impression.application,
        impression.randomised,
    )


def _is_short(one: ShownDocument, min_dwell_s: float) -> bool:
    return one.clicked and not (one.carted or one.purchased) and one.dwell is not None and one.dwell < min_dwell_s


def cap_votes(votes: Votes, config: PairConfig) -> dict[tuple[Key, str], int]:
    """Return the votes after the caps: above a cap, votes share its weight."""
    for_better = Counter((person, query, better) for (query, better, _), person in votes.units)
    for_worse = Counter((person, query, worse) for (query, _, worse), person in votes.units)
    of_person = Counter(person for _, person in votes.units)
    people: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for ((query, better, _), person), network in votes.networks.items():
        people[query, better, network].add(person)
    capped = {}
    for ((query, better, worse), person), units in votes.units.items():
        network = votes.networks[(query, better, worse), person]
        most = max(for_better[person, query, better], for_worse[person, query, worse])
        weight = units * _factor(config.document_cap, most) * _factor(config.person_cap, of_person[person])
        if network:
            weight *= _factor(config.network_cap, len(people[query, better, network]))
        capped[(query, better, worse), person] = math.floor(weight + 0.5)
    return capped


def sum_votes(capped: Mapping[tuple[Key, str], int]) -> dict[Key, tuple[int, int]]:
    """Return (people, weight in millionths) of each pair."""
    sums: dict[Key, tuple[int, int]] = {}
    for (key, _), units in capped.items():
        people, total = sums.get(key, (0, 0))
        sums[key] = (people + 1, total + units)
    return sums


class Rated(NamedTuple):
    """Numbers of a query and document: clicks and examinations also weighed by how recent they are."""

    people: int
    clicks: int
    examined: int
    """In millionths."""
    recent_clicks: int
    recent_examined: int
    """Both in billionths."""


def rate_lists(
    lists: Iterable[Impression], searches: Mapping[str, Search], config: PairConfig, until: int | None
) -> dict[tuple[str, str], Rated]:
    """Return the rating of each query and document before a time; each person counts once."""
    chances = [math.floor(one * UNIT + 0.5) for one in config.propensities or (1.0,)]
    seen: dict[tuple[str, str, str], Rated] = {}
    for one in lists:
        age_ms = 0 if one.time is None or until is None else until - one.time
        freshness = math.floor(1000 * 0.5 ** (age_ms / (HALF_LIFE_DAYS * _DAY_MS)) + 0.5)
        for shown in one.shown:
            units = chances[min(shown.rank, len(chances)) - 1]
            new = Rated(1, int(shown.clicked), units, shown.clicked * UNIT * freshness, units * freshness)
            key = (one.query, shown.document, searches[one.query_id].person)
            seen[key] = Rated(*map(max, seen.get(key, new), new))
    rated: dict[tuple[str, str], Rated] = {}
    for (query, document, _), of_person in seen.items():
        before = rated.get((query, document), Rated(0, 0, 0, 0, 0))
        rated[query, document] = Rated(*map(sum, zip(before, of_person, strict=True)))
    return rated


def _factor(cap: int, n: int) -> float:
    return min(1.0, float(cap) / n) if cap else 1.0


# Files

_PAIRS = ("query", "better", "worse", "weight")
_RATINGS = ("query", "document", *Rated._fields)
_IMPRESSIONS = (
    "query_id",
    "query",
    "session",
    "user",
    "network",
    "time",
    "application",
    "randomised",
    "document",
    "rank",
    "clicked",
    "carted",
    "purchased",
    "click_time",
    "dwell",
)


def write_result(task: LogTask, resources: Resources, folder: Path) -> tuple[tuple[Path, ...], dict[str, int]]:
    """Write the result as one Parquet file, and count what became of the queries."""
    import pyarrow.parquet as pq

    del resources
    table, counts = _compute(task)
    path = folder / f"{task.goal}.parquet"
    pq.write_table(table, path)
    return (path,), counts


def _compute(task: LogTask) -> tuple[Any, dict[str, int]]:
    """Return the result as an Arrow table, and the counts."""
    searches, statuses, lists = _impressions(task)
    if task.goal == "impressions":
        return _table(_IMPRESSIONS, _impression_rows(lists)), {}
    counted = [without_short_clicks(one, task.config.min_dwell_s) for one in lists]
    if task.goal == "ratings":
        rated = rate_lists(counted, searches, task.config, task.until)
        return _table(_RATINGS, [(*key, *rated[key]) for key in sorted(rated)]), {}
    used = [one for one in counted if one.clicked]
    votes = count_votes(used, searches, task.config)
    sums = sum_votes(cap_votes(votes, task.config))
    pairs = [
        (*key, units / 1e6)
        for key, (people, units) in sorted(sums.items())
        if people >= task.config.min_users and units > 0
    ]
    counts = Counter(statuses.values()) + Counter(
        listed=len(lists),
        impressions=len(used),
        preferences=votes.preferences,
        votes=len(votes.units),
        stated=len(sums),
        pairs=len(pairs),
    )
    return _table(_PAIRS, pairs), dict(counts)


def _impressions(task: LogTask) -> tuple[dict[str, Search], dict[str, str], list[Impression]]:
    """Return the searches, what became of each, and the lists of those kept, by time and query id."""
    config = task.config
    queries, hits, events = (_read(task, table) for table in TABLES)
    searches = join_searches(queries, events, round(config.session_gap_s * 1000))
    touches = join_touches(events)
    robots = find_robots(searches, touches, config.robots)
    statuses = judge_searches(searches, touches, robots, config, task.since, task.until, task.goal == "pairs")
    spelling = most_frequent_spellings(one.query for one in searches.values())
    searches = {name: replace(one, query=spelling.get(one.query, one.query)) for name, one in searches.items()}
    kept = [one for one in searches.values() if statuses[one.query_id] == "kept"]
    positions = join_hits(hits, {one.query_id for one in kept})
    first = first_ordinals(searches, touches)
    lists = []
    for one in sorted(kept, key=lambda s: (s.time is not None, s.time or 0, s.query_id)):
        begin = first.get(one.application, 1)
        shown = shown_list(positions.get(one.query_id, {}), touches.get(one.query_id, {}), begin)
        if shown:
            lists.append(impression_of(one, shown))
    return searches, statuses, lists


def _read(task: LogTask, table: str) -> list[Row]:
    return [row for path in task.log.files(table) for row in read_part(path, table).to_pylist()]


def _impression_rows(lists: list[Impression]) -> list[tuple[Any, ...]]:
    return [
        (
            one.query_id,
            one.query,
            one.session,
            one.user,
            one.network,
            one.time,
            one.application,
            one.randomised,
            shown.document,
            shown.rank,
            shown.clicked,
            shown.carted,
            shown.purchased,
            shown.time,
            shown.dwell,
        )
        for one in lists
        for shown in one.shown
    ]


def _table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    types = {"weight": pa.float64(), "dwell": pa.float64()} | dict.fromkeys(
        ("time", "rank", "click_time", *Rated._fields), pa.int64()
    )
    types |= dict.fromkeys(("randomised", "clicked", "carted", "purchased"), pa.bool_())
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    arrays = [pa.array(list(column), types.get(name, pa.string())) for name, column in zip(names, columns, strict=True)]
    return pa.table(arrays, names=list(names))


def count_clicks(impressions: Iterable[Impression]) -> ClickCounts:
    """Return the counts of result lists, from which all propensities are estimated."""
    counts: dict[tuple[str, str, int, bool], list[int]] = {}
    for impression in impressions:
        for shown in impression.shown:
            entry = counts.setdefault((impression.query, shown.document, shown.rank, impression.randomised), [0, 0])
            entry[0] += 1
            entry[1] += shown.clicked
    items: dict[tuple[str, str], int] = {}
    numbers = [items.setdefault(key[:2], len(items)) for key in counts]
    values = np.array(list(counts.values()), dtype=np.int64).reshape(-1, 2)
    return ClickCounts(
        np.array(numbers, dtype=np.int64),
        np.array([key[2] for key in counts], dtype=np.int64),
        values[:, 0],
        values[:, 1],
        np.array([key[3] for key in counts], dtype=bool),
    )
