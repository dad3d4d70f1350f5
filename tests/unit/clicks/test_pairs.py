"""Pairs of small logs by hand: joining, doubtful logs, robots, caps, weights, ranges; and what must not matter."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from reranker.clicks.pairs import (
    HALF_LIFE_DAYS,
    PairConfig,
    Resources,
    RobotRules,
    impression_table,
    impressions,
    make_pairs,
    ratings,
)
from reranker.errors import ConfigError, InputError
from reranker.records import Pair
from reranker.tables import read_pairs
from tests.seeds import seeded_rng
from tests.unit.clicks import random_logs
from tests.unit.clicks.log_files import Log, Row, click, hits_of, write_log

QUICK = Resources(threads=1, memory_mb=400)
NOON = 1_790_000_000_000
HOUR = 3_600_000


def query(query_id: str, text: str = "shoe", **more: Any) -> Row:
    return {"query_id": query_id, "query": text, **more}


def pairs_of(log: Log, config: PairConfig | None = None, **when: int | None) -> dict[str, float]:
    with make_pairs(log, config, resources=QUICK, **when) as table:
        return {f"{one.query}: {one.better}>{one.worse}": one.weight for one in table.pairs()}


def counts_of(log: Log, config: PairConfig | None = None) -> dict[str, int]:
    with make_pairs(log, config, resources=QUICK) as table:
        return {name: n for name, n in table.counts.items() if n}


def shown_of(log: Log) -> dict[str, str]:
    lists = impressions(log, resources=QUICK)
    return {one.query_id: " ".join(f"{s.document}{s.rank}{'*' * s.clicked}" for s in one.shown) for one in lists}


def one_click(user: str, number: int, *, document: str = "c", **more: Any) -> tuple[Row, list[Row], Row]:
    """Return query, hits a b c d and one click of a user's search."""
    name = f"{user}-{number}"
    return query(name, user=user, **more), hits_of(name, *"abcd"), click(name, document, user=user)


def log_of(folder: Path, *searches: tuple[Row, list[Row], Row]) -> Log:
    return write_log(
        folder, [one[0] for one in searches], [hit for one in searches for hit in one[1]], [one[2] for one in searches]
    )


@pytest.mark.usefixtures("by_both")
def test_a_click_on_the_third_result(tmp_path: Path) -> None:
    log = write_log(tmp_path, [query("q1")], hits_of("q1", *"abcd"), [click("q1", "c", ordinal=3)])
    assert pairs_of(log) == {"shoe: c>a": 1.0, "shoe: c>b": 1.0}
    assert counts_of(log) == {"searches": 1, "impressions": 1, "preferences": 2, "votes": 2, "pairs": 2}


@pytest.mark.usefixtures("by_both")
def test_lists_of_impression_events_and_ordinals_from_0_and_from_1(tmp_path: Path) -> None:
    def events(name: str, first: int) -> list[Row]:
        more: Row = {"application": f"from-{first}", "query": "shoe"}
        seen = [
            {"query_id": name, "action": "impression", "document": d, "ordinal": n, **more}
            for n, d in enumerate("abc", start=first)
        ]
        return [*seen, click(name, "c", ordinal=first + 2, **more)]

    log = write_log(tmp_path, events=[*events("zero", 0), *events("one", 1)])
    assert shown_of(log) == {"zero": "a1 b2 c3*", "one": "a1 b2 c3*"}
    assert pairs_of(log) == {"shoe: c>a": 2.0, "shoe: c>b": 2.0}


@pytest.mark.usefixtures("by_both")
def test_a_stray_ordinal_0_of_an_application_that_counts_from_1_is_no_rank(tmp_path: Path) -> None:
    ordinals = [(f"q{n}", d, rank) for n in range(20) for rank, d in enumerate("abc", start=1)] + [("q0", "z", 0)]
    events = [
        {"query_id": name, "action": "impression", "document": d, "ordinal": rank, "query": "shoe"}
        for name, d, rank in ordinals
    ]
    assert shown_of(write_log(tmp_path, events=events))["q0"] == "a1 b2 c3"


@pytest.mark.usefixtures("by_both")
def test_clicks_alone_do_not_tell_what_was_passed_over(tmp_path: Path) -> None:
    log = write_log(tmp_path, [query("q1")], events=[click("q1", "a", ordinal=1), click("q1", "c", ordinal=3)])
    assert pairs_of(log, PairConfig(strategy="clicked-over-unclicked")) == {}
    assert counts_of(log) == {"searches": 1, "no_list": 1}


@pytest.mark.usefixtures("by_both")
def test_documents_that_share_a_rank_are_left_out(tmp_path: Path) -> None:
    """Two answers were logged under one query id: nothing says which of them was on the screen."""
    hits = [*hits_of("q1", *"abcd"), *hits_of("q1", *"axcy")]
    log = write_log(tmp_path, [query("q1", "sho"), query("q1", "shoe")], hits, [click("q1", "c")])
    assert shown_of(log) == {"q1": "a1 c3*"}
    assert pairs_of(log) == {"shoe: c>a": 1.0}


@pytest.mark.usefixtures("by_both")
def test_a_document_returned_twice_counts_where_it_stood_first(tmp_path: Path) -> None:
    log = write_log(tmp_path, [query("q1")], hits_of("q1", *"abac"), [click("q1", "c")])
    assert shown_of(log) == {"q1": "a1 b2 c4*"}


@pytest.mark.usefixtures("by_both")
def test_a_later_page_counts_on_and_a_slip_of_one_does_not(tmp_path: Path) -> None:
    hits = [*hits_of("page", *"abcd"), *hits_of("slip", *"abcd"), *hits_of("mixed", *"abcd")]
    events = [
        click("page", "b", ordinal=12),
        click("slip", "b", ordinal=3),
        click("mixed", "b", ordinal=12),
        click("mixed", "c", ordinal=14),
    ]
    log = write_log(tmp_path, [query(name) for name in ("page", "slip", "mixed")], hits, events)
    expected = {"page": "a11 b12* c13 d14", "slip": "a1 b2* c3 d4", "mixed": "a1 b2* c3* d4"}
    assert shown_of(log) == expected


@pytest.mark.usefixtures("by_both")
def test_the_longest_text_of_a_query_counts(tmp_path: Path) -> None:
    texts = ["s", "sh", "shoe", "sho", ""]
    log = write_log(tmp_path, [query("q1", text) for text in texts], hits_of("q1", "a", "b"), [click("q1", "b")])
    assert pairs_of(log) == {"shoe: b>a": 1.0}


@pytest.mark.usefixtures("by_both")
def test_what_the_query_row_lacks_comes_from_the_events(tmp_path: Path) -> None:
    event = click("q1", "b", query="shoe", session="s", user="u", network="n", application="shop", time=NOON)
    log = write_log(tmp_path, hits=hits_of("q1", "a", "b"), events=[event])
    (one,) = impressions(log, resources=QUICK)
    assert (one.query, one.session, one.user, one.network, one.application, one.time, one.randomised) == (
        "shoe",
        "s",
        "u",
        "n",
        "shop",
        NOON,
        False,
    )
    assert one.shown[1].time == NOON


@pytest.mark.usefixtures("by_both")
def test_queries_that_say_nothing_are_counted_by_reason(tmp_path: Path) -> None:
    queries = [query("text", ""), query("list"), query("click"), query("elsewhere"), query("bot", agent="crawler")]
    hits = [hit for name in ("text", "click", "elsewhere", "bot") for hit in hits_of(name, "a", "b")]
    events = [click(name, "b") for name in ("text", "list", "bot")] + [click("elsewhere", "z"), click("", "b")]
    assert counts_of(write_log(tmp_path, queries, hits, events)) == {
        "searches": 5,
        "no_query_text": 1,
        "robot_agent": 1,
        "no_click": 1,
        "no_list": 1,
        "no_click_in_list": 1,
    }


@pytest.mark.usefixtures("by_both")
def test_a_person_says_a_pair_once(tmp_path: Path) -> None:
    searches = [one_click("u1", n) for n in range(7)] + [one_click("u2", 0), one_click("", 1), one_click("", 2)]
    log = log_of(tmp_path, *searches)
    assert pairs_of(log)["shoe: c>a"] == 4.0  # u1, u2, and two impressions of nobody known
    assert pairs_of(log, PairConfig(min_users=5)) == {}
    assert counts_of(log, PairConfig(min_users=5))["too_few_people"] == 2


@pytest.mark.usefixtures("by_both")
def test_sessions_count_up_to_the_cap_of_a_person(tmp_path: Path) -> None:
    """Without session ids a pause of half an hour begins a new session."""
    times = [NOON, NOON + HOUR // 4, NOON + HOUR // 2, NOON + 2 * HOUR, NOON + 9 * HOUR, None]
    log = log_of(tmp_path, *(one_click("u1", n, time=time) for n, time in enumerate(times)))
    weights = {cap: pairs_of(log, PairConfig(user_cap=cap)).get("shoe: c>a") for cap in (0, 1, 2, 3, 4)}
    assert weights == {0: 3.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 3.0}
    assert pairs_of(log, PairConfig(user_cap=0, once_a_session=False))["shoe: c>a"] == 6.0
    assert pairs_of(log, PairConfig(user_cap=0, session_gap_s=60.0))["shoe: c>a"] == 5.0


@pytest.mark.usefixtures("by_both")
def test_logged_sessions_are_taken_as_they_are(tmp_path: Path) -> None:
    searches = [one_click("u1", n, session=f"s{n % 2}", time=NOON + n) for n in range(6)]
    assert pairs_of(log_of(tmp_path, *searches), PairConfig(user_cap=0))["shoe: c>a"] == 2.0


@pytest.mark.usefixtures("by_both")
def test_documents_share_what_one_person_can_say_of_one(tmp_path: Path) -> None:
    log = write_log(tmp_path, [query("q1", user="u")], hits_of("q1", *"abcdefgh"), [click("q1", "h")])
    found = pairs_of(log, PairConfig(document_cap=2))
    assert found == {f"shoe: h>{one}": pytest.approx(2 / 7, abs=1e-6) for one in "abcdefg"}
    assert set(pairs_of(log, PairConfig(document_cap=0)).values()) == {1.0}
    assert set(pairs_of(log, PairConfig(person_cap=1)).values()) == {0.142857}


@pytest.mark.usefixtures("by_both")
def test_a_document_cannot_be_pushed_down_by_one_person_either(tmp_path: Path) -> None:
    hits = [hit for n in range(4) for hit in hits_of(f"q{n}", "victim", f"d{n}")]
    queries = [query(f"q{n}", user="u") for n in range(4)]
    log = write_log(tmp_path, queries, hits, [click(f"q{n}", f"d{n}") for n in range(4)])
    assert set(pairs_of(log, PairConfig(document_cap=2)).values()) == {0.5}


@pytest.mark.usefixtures("by_both")
def test_people_of_one_network_share_the_weight_of_a_few(tmp_path: Path) -> None:
    crowd = [one_click(f"bot{n}", 0, network="n1") for n in range(20)]
    others = [one_click(f"human{n}", 0, network=f"home{n}") for n in range(3)]
    log = log_of(tmp_path, *crowd, *others)
    assert pairs_of(log)["shoe: c>a"] == pytest.approx(5 + 3)
    assert pairs_of(log, PairConfig(network_cap=1))["shoe: c>a"] == pytest.approx(1 + 3)
    assert pairs_of(log, PairConfig(network_cap=0))["shoe: c>a"] == 23.0


@pytest.mark.usefixtures("by_both")
def test_pairs_weigh_the_inverse_propensity_of_the_better_rank(tmp_path: Path) -> None:
    searches = [one_click("u1", 0), one_click("u2", 0, document="d"), one_click("u3", 0, document="b")]
    log = log_of(tmp_path, *searches)
    config = PairConfig(propensities=(1.0, 0.5, 0.3), clip=3.0)
    assert pairs_of(log, config) == {
        "shoe: b>a": 2.0,
        "shoe: c>a": 3.0,
        "shoe: c>b": 3.0,
        "shoe: d>a": 3.0,
        "shoe: d>b": 3.0,
        "shoe: d>c": 3.0,
    }
    assert pairs_of(log, dataclasses.replace(config, clip=10.0))["shoe: c>a"] == 3.333333


def robots_found(log: Log, **rules: Any) -> dict[str, int]:
    config = PairConfig(robots=RobotRules(**rules)) if rules else PairConfig()
    return {name: n for name, n in counts_of(log, config).items() if name.startswith("robot")}


@pytest.mark.usefixtures("by_both")
def test_robots_are_told_by_what_they_do(tmp_path: Path) -> None:
    def searches(user: str, n: int, gap_s: float, documents: int, **more: Any) -> tuple[list[Row], list[Row]]:
        names = [f"{user}-{number}" for number in range(n)]
        times = [NOON + round(number * gap_s * 1000) for number in range(n)]
        queries = [query(name, user=user, time=t, **more) for name, t in zip(names, times, strict=True)]
        events = [
            click(name, f"{user}{number % documents}", time=times[number], user=user)
            for number, name in enumerate(names)
        ]
        return queries, events

    def in_sessions(rows: tuple[list[Row], list[Row]], length: int) -> tuple[list[Row], list[Row]]:
        return [{**row, "session": f"b{number // length}"} for number, row in enumerate(rows[0])], rows[1]

    kinds = {
        "human": searches("human", 30, 90.0, 12),
        "one_a_second": searches("fast", 30, 1.0, 12, session="f"),
        "one_document": searches("pusher", 30, 7200.0, 1),
        "all_day": in_sessions(searches("busy", 201, 100.0, 50), 50),
        "long_session": searches("long", 101, 60.0, 50, session="l"),
        "kept_session": searches("weeks", 150, 5000.0, 90, session="w"),
        "named": searches("named", 1, 1.0, 1, agent="Googlebot"),
        "named_once": searches("named", 2, 1.0, 1, session="other"),
    }
    log = write_log(
        tmp_path, [q for kind in kinds.values() for q in kind[0]], [], [e for k in kinds.values() for e in k[1]]
    )
    assert robots_found(log) == {
        "robot_agent": 2,
        "robot_session_clicks": 101,
        "robot_speed": 30,
        "robot_day_clicks": 201,
        "robot_one_document": 30,
    }
    assert counts_of(log, PairConfig(robots=None)) == {"searches": 544, "no_list": 544}
    assert robots_found(log, min_gap_s=0.0, min_entropy_bits=0.0, day_clicks=999, session_clicks=999) == {
        "robot_agent": 2
    }


@pytest.mark.parametrize(("gap_ms", "robots"), [(1500, {}), (1499, {"robot_speed": 10})])
@pytest.mark.usefixtures("by_both")
def test_the_speed_is_the_mean_gap_between_clicks(tmp_path: Path, gap_ms: int, robots: dict[str, int]) -> None:
    queries = [query(f"q{n}", session="s") for n in range(10)]
    events = [click(f"q{n}", f"d{n}", time=NOON + n * gap_ms) for n in range(10)]
    assert robots_found(write_log(tmp_path, queries, [], events)) == robots


@pytest.mark.parametrize(
    ("reason", "limit", "allowed"),
    [("session_clicks", 5, 5), ("day_clicks", 5, 5), ("speed_clicks", 5, 4), ("repeat_clicks", 5, 4)],
)
@pytest.mark.usefixtures("by_both")
def test_the_limits_of_robots_hold_to_the_click(tmp_path: Path, reason: str, limit: int, allowed: int) -> None:
    lax = {"session_clicks": allowed + 1, "day_clicks": 99, "speed_clicks": 99, "repeat_clicks": 99}
    codes = {
        "session_clicks": "robot_session_clicks",
        "day_clicks": "robot_day_clicks",
        "speed_clicks": "robot_speed",
        "repeat_clicks": "robot_one_document",
    }
    for n, robots in ((allowed, {}), (allowed + 1, {codes[reason]: allowed + 1})):
        names = [f"q{number}" for number in range(n)]
        log = write_log(
            tmp_path,
            [query(name, user="u", session="s") for name in names],
            [],
            [click(name, "d", time=NOON + number) for number, name in enumerate(names)],
        )
        assert robots_found(log, **{**lax, reason: limit}) == robots


@pytest.mark.parametrize(("clicks", "robots"), [((5, 5), {}), ((6, 5), {"robot_one_document": 11})])
@pytest.mark.usefixtures("by_both")
def test_two_documents_clicked_equally_often_are_the_least_that_is_varied(
    tmp_path: Path, clicks: tuple[int, int], robots: dict[str, int]
) -> None:
    documents = ["a"] * clicks[0] + ["b"] * clicks[1]
    queries = [query(f"q{n}", user="u") for n in range(len(documents))]
    events = [click(f"q{n}", document, time=NOON + n * HOUR) for n, document in enumerate(documents)]
    assert robots_found(write_log(tmp_path, queries, [], events), repeat_clicks=10) == robots


@pytest.mark.usefixtures("by_both")
def test_a_basket_bought_at_one_moment_is_no_robots_speed(tmp_path: Path) -> None:
    bought = [{**click("q", f"d{n}", time=NOON), "action": "purchase"} for n in range(12)]
    clicked = [click("q", f"d{n}", time=NOON - n * 60_000) for n in range(12)]
    assert robots_found(write_log(tmp_path, [query("q", session="s")], [], bought + clicked)) == {}


@pytest.mark.usefixtures("by_both")
def test_a_person_of_two_networks_counts_in_one_of_them(tmp_path: Path) -> None:
    searches = [one_click("u1", 0, network="n1"), one_click("u1", 1, network="n2"), one_click("u2", 0, network="n2")]
    assert pairs_of(log_of(tmp_path, *searches), PairConfig(network_cap=1))["shoe: c>a"] == 1.0


@pytest.mark.usefixtures("by_both")
def test_a_range_of_time_holds_its_beginning_and_not_its_end(tmp_path: Path) -> None:
    searches = [one_click(f"u{n}", 0, time=time) for n, time in enumerate([None, NOON, NOON + 5, NOON + 9])]
    log = log_of(tmp_path, *searches)

    def found(since: int | None, until: int | None) -> list[int | None]:
        weight = pairs_of(log, since=since, until=until).get("shoe: c>a", 0.0)
        lists = list(impressions(log, since=since, until=until, resources=QUICK))
        assert len(lists) == weight
        return [one.time for one in lists]

    assert found(None, None) == [None, NOON, NOON + 5, NOON + 9]
    assert found(NOON, None) == [NOON, NOON + 5, NOON + 9]
    assert found(NOON + 1, NOON + 9) == [NOON + 5]
    assert found(None, NOON + 5) == [None, NOON]


@pytest.mark.usefixtures("by_both")
def test_ratings_are_the_share_of_clicks_among_those_who_looked(tmp_path: Path) -> None:
    searches = [one_click("u1", n) for n in range(3)] + [one_click("u2", 0, document="d"), one_click("u3", 0)]
    log = log_of(tmp_path, *searches)
    config = PairConfig(propensities=(1.0, 0.5, 0.25))
    rated = {one.document: one for one in ratings(log, config, resources=QUICK)}
    assert [(one.people, one.clicks, one.examined) for one in rated.values()] == [
        (3, 0, 3.0),
        (3, 0, 1.5),
        (3, 2, 0.75),
        (3, 1, 0.75),
    ]
    assert [one.share for one in rated.values()] == [0.0, 0.0, 1.0, pytest.approx(4 / 3 - 1 / 3)]


@pytest.mark.usefixtures("by_both")
def test_a_click_counts_half_as_much_a_half_life_later(tmp_path: Path) -> None:
    times = [NOON + days * 86_400_000 for days in (0, 0, HALF_LIFE_DAYS, 2 * HALF_LIFE_DAYS)]
    searches = [one_click(f"u{n}", 0, time=time) for n, time in enumerate(times)]
    log = log_of(tmp_path, *searches, one_click("u9", 0, time=None))
    whole = list(ratings(log, resources=QUICK))
    assert {(one.people, one.examined, one.recent_examined) for one in whole} == {(5, 5.0, 5.0)}
    recent = list(ratings(log, until=times[-1] + 1, resources=QUICK))
    assert {(one.people, one.examined, one.recent_examined) for one in recent} == {(5, 5.0, 1 + 1 + 0.5 + 0.25 + 0.25)}
    assert {one.clicks: one.recent_clicks for one in recent} == {0: 0.0, 5: 3.0}


def shuffled(tables: random_logs.Tables, seed: int) -> random_logs.Tables:
    rng = random.Random(seed)
    return random_logs.Tables(*(rng.sample(rows, len(rows)) for rows in dataclasses.astuple(tables)))


def retimed(tables: random_logs.Tables, time: Any) -> random_logs.Tables:
    rows = ([{**row, "time": time(row["time"])} for row in rows] for rows in (tables.queries, tables.events))
    queries, events = rows
    return random_logs.Tables(queries, tables.hits, events)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.usefixtures("by_both")
def test_order_repeats_lateness_and_clocks_do_not_matter(tmp_path: Path, number: int) -> None:
    """Reliability test 24, first half: the same pairs to the last bit, whatever the transport did to the log."""
    rng = seeded_rng(number)
    choice = random_logs.of_seed(int(rng.integers(2**31)))
    given = random_logs.tables(choice, most=60)
    config = dataclasses.replace(random_logs.config(choice), user_cap=1, robots=RobotRules(speed_clicks=10**6))
    skew = random.Random(number)
    twice = random_logs.Tables(given.queries * 2, given.hits * 2, given.events * 2)
    variants = {
        "shuffled": shuffled(given, number),
        "sent twice": shuffled(twice, number),
        "late": random_logs.Tables(given.queries[::-1], given.hits[::-1], given.events[::-1]),
        "skewed": retimed(given, lambda time: time and time + skew.randint(-48 * HOUR, 48 * HOUR)),
        "skewed and sent twice": retimed(twice, lambda time: time and time + skew.randint(-48 * HOUR, 48 * HOUR)),
        "1970 or 2099": retimed(given, lambda _: None),
    }
    expected = pairs_of(write_log(tmp_path, given.queries, given.hits, given.events), config)
    for name, tables in variants.items():
        log = write_log(tmp_path, tables.queries, tables.hits, tables.events, n_files=3)
        assert pairs_of(log, config) == expected, name


def test_the_file_has_the_columns_in_order_and_is_the_same_every_time(tmp_path: Path) -> None:
    tables = random_logs.tables(random_logs.of_seed(3), most=60)
    written = []
    for number in range(2):
        mixed = shuffled(tables, number)
        log = write_log(tmp_path, mixed.queries, mixed.hits, mixed.events)
        path = tmp_path / f"pairs-{number}.parquet"
        with make_pairs(log, PairConfig(strategy="clicked-over-unclicked"), resources=QUICK) as table:
            assert table.write(path) == len(table) > 10
            expected = list(table.pairs())
        written.append(path.read_bytes())
        assert pq.ParquetFile(path).schema_arrow.names == ["query", "better", "worse", "weight"]
        assert list(read_pairs(path)) == expected
        assert expected == sorted(expected, key=lambda one: (one.query, one.better, one.worse))
        assert path.stat().st_mode & 0o077 == 0
        assert not list(tmp_path.glob(".*"))
    assert written[0] == written[1]


def test_closing_removes_the_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = write_log(tmp_path, [query("q1")], hits_of("q1", "a", "b"), [click("q1", "b")])
    with make_pairs(log, resources=QUICK) as table:
        assert list(table.pairs()) == [Pair("shoe", "b", "a", 1.0)]
        (folder,) = tmp_path.glob("ssi-pairs-*")
        assert folder.stat().st_mode & 0o077 == 0
    assert not list(tmp_path.glob("ssi-*"))


@pytest.mark.usefixtures("by_both")
def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = write_log(tmp_path, [query("q1")], hits_of("q1", "a", "b"), [click("q1", "b")])
    (damaged,) = log.files("hits")
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(InputError, match=damaged.name):
        make_pairs(log, resources=QUICK)
    assert not list(tmp_path.glob("ssi-*"))


def test_a_damaged_file_comes_with_a_remedy(tmp_path: Path) -> None:
    log = write_log(tmp_path, [query("q1")], hits_of("q1", "a", "b"), [click("q1", "b")])
    (damaged,) = log.files("events")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(InputError, match=rf"{damaged.name}.*from a backup, or import the logs again"):
        make_pairs(log, resources=QUICK)


@pytest.mark.parametrize("n_parts", [1, 3])
def test_a_disk_that_fills_is_told_and_nothing_is_left(n_parts: int, tmp_path: Path) -> None:
    tables = random_logs.tables(random_logs.of_seed(1), most=2_000, n_lists=200)
    log = write_log(tmp_path, tables.queries, tables.hits, tables.events)
    program = "import resource, sys; from pathlib import Path; from reranker.clicks import pairs; "
    program += "from tests.unit.clicks.log_files import Log; "
    program += f"pairs.ROWS_PER_MB = {len(tables.hits) / (n_parts - 0.5) / 400}; "
    program += "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400)); "
    paths = {name: list(map(str, files)) for name, files in log.paths.items()}
    program += f"log = Log({{name: list(map(Path, files)) for name, files in {paths!r}.items()}}); "
    program += "pairs.make_pairs(log, resources=pairs.Resources(1, 400))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "InputError: DuckDB failed on the click log" in run.stderr
    assert "free disk space, or name a larger folder by TMPDIR" in run.stderr
    assert not list(tmp_path.glob("ssi-*"))


def test_too_little_memory_says_what_to_do(tmp_path: Path) -> None:
    tables = random_logs.tables(random_logs.of_seed(1), most=20_000, n_lists=2_000)
    log = write_log(tmp_path, tables.queries, tables.hits, tables.events)
    with pytest.raises(ConfigError, match=r"more than the 1 MB .* --memory"):
        make_pairs(log, resources=Resources(threads=1, memory_mb=1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "best"),
        ("user_cap", -1),
        ("user_cap", True),
        ("document_cap", 1.5),
        ("min_users", 0),
        ("min_dwell_s", float("nan")),
        ("clip", 0.5),
        ("clip", None),
        ("propensities", ()),
        ("propensities", (0.0,)),
        ("propensities", (1.1,)),
        ("session_gap_s", -1.0),
    ],
)
def test_values_that_are_not_legal(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        PairConfig(**{name: value})  # type: ignore[arg-type]


def test_a_configuration_survives_json() -> None:
    for number in range(20):
        config = random_logs.config(random_logs.of_seed(number))
        assert PairConfig.from_json(dataclasses.asdict(config)) == config
    with pytest.raises(ConfigError, match="unknown key 'cap'"):
        PairConfig.from_json({"cap": 1})
    with pytest.raises(ConfigError, match="session_clicks"):
        PairConfig.from_json({"robots": {"session_clicks": 0}})


@pytest.mark.parametrize("seed", range(6))
def test_a_table_of_impressions_gives_the_ratings_of_its_log(tmp_path: Path, seed: int) -> None:
    choice = random_logs.of_seed(seed)
    rows, config = random_logs.tables(choice, most=60, n_lists=40), random_logs.config(choice)
    log = write_log(tmp_path, rows.queries, rows.hits, rows.events)
    with impression_table(log, config) as table:
        times, undated = table.click_times()
        shown = [one for one in impressions(log, config) if one.clicked]
        assert times.tolist() == sorted(one.time for one in shown if one.time is not None)
        assert undated == sum(one.time is None for one in shown)
        for until in (None, *times[len(times) // 2 :][:1].tolist()):
            assert list(table.ratings(config, until)) == list(ratings(log, config, until=until))
            assert list(table.lists(since=until)) == list(impressions(log, config, since=until))
            assert list(table.lists(until=until)) == list(impressions(log, config, until=until))
