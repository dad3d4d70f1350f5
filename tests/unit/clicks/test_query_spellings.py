"""Spellings of one query that differ in case or white space are counted as one query, wherever clicks are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reranker.clicks.doctor import examine
from reranker.clicks.exports import query_id
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import Computing, PairConfig, Resources, impressions, make_pairs, ratings
from reranker.clicks.propensities import count_log
from reranker.clicks.schema import TABLES
from tests.reference.click_steps import count_clicks
from tests.unit.clicks.log_files import Log, Row, click, hits_of, write_log

QUICK = Resources(threads=1, memory_mb=400)
SPELLINGS = ["Red Boot", "red boot", "RED BOOT", "red boot", "red  boot", " red boot "]
"""What six people typed. The most frequent one is "red boot"."""
DAY = 86_400_000


def rows_of(texts: list[str], clicked: str = "b") -> tuple[list[Row], list[Row], list[Row]]:
    """Return queries, hits a b c, and clicks: one search by one person for each text, a day after the other."""
    named = list(enumerate(texts))
    queries: list[Row] = [{"query_id": f"q{n}", "query": text, "user": f"u{n}", "time": n * DAY} for n, text in named]
    hits = [hit for n, _ in named for hit in hits_of(f"q{n}", *"abc")]
    events = [click(f"q{n}", clicked, user=f"u{n}", time=n * DAY) for n, _ in named] if clicked else []
    return queries, hits, events


def log_of(folder: Path, texts: list[str]) -> Log:
    return write_log(folder, *rows_of(texts))


def stored_log(folder: Path, texts: list[str], clicked: str = "b") -> ClickLog:
    """Return a stored log as an earlier version wrote it, texts unchanged."""
    log = ClickLog(folder / "clicks", create=True)
    tables = {}
    for name, rows in zip(TABLES, rows_of(texts, clicked), strict=True):
        empty = {"string": "", "bool": False}
        tables[name] = {
            column: [row.get(column, empty.get(kind)) for row in rows] for column, kind in TABLES[name].items()
        }
    log.add([tables], "test")
    return log


@pytest.mark.usefixtures("by_both")
def test_pairs_are_added_under_the_most_frequent_spelling(tmp_path: Path) -> None:
    log = log_of(tmp_path, SPELLINGS)
    with make_pairs(log, PairConfig(min_users=6), resources=QUICK) as table:
        pairs = [(pair.query, pair.better, pair.worse, pair.weight) for pair in table.pairs()]
    assert pairs == [("red boot", "b", "a", 6.0)]


@pytest.mark.usefixtures("by_both")
def test_of_equally_frequent_spellings_the_smallest_is_shown(tmp_path: Path) -> None:
    log = log_of(tmp_path, ["boot", "BOOT", "Boot", "Shoe", "shoe", "shoe"])
    assert [rating.query for rating in ratings(log) if rating.document == "a"] == ["BOOT", "shoe"]


@pytest.mark.usefixtures("by_both")
def test_all_goals_and_ranges_of_a_log_have_the_same_spelling(tmp_path: Path) -> None:
    log = log_of(tmp_path, SPELLINGS)
    for first in range(len(SPELLINGS)):
        how = Computing(since=first * DAY, until=(first + 1) * DAY)
        with make_pairs(log, **how) as table:
            found = {pair.query for pair in table.pairs()}
        found |= {rating.query for rating in ratings(log, **how)}
        found |= {one.query for one in impressions(log, **how)}
        assert found == {"red boot"}


@pytest.mark.usefixtures("by_both")
def test_a_cap_for_documents_of_a_query_counts_all_spellings(tmp_path: Path) -> None:
    """Ten pairs of one person for one document, with two spellings: five each would be below the cap."""
    rows = [("Boot", "abcdef"), ("boot", "ghijkf")]
    queries = [{"query_id": text, "query": text, "user": "u", "session": text} for text, _ in rows]
    hits = [hit for text, shown in rows for hit in hits_of(text, *shown)]
    log = write_log(tmp_path, queries, hits, [click(text, "f", user="u", session=text) for text, _ in rows])
    with make_pairs(log, PairConfig(document_cap=5, robots=None)) as table:
        assert [pair.weight for pair in table.pairs()] == [0.5] * 10


@pytest.mark.usefixtures("by_both")
def test_ratings_count_a_person_once_for_all_spellings(tmp_path: Path) -> None:
    queries = [{"query_id": text, "query": text, "user": "u"} for text in ("Boot", "boot", "BOOT ")]
    hits = [hit for row in queries for hit in hits_of(str(row["query_id"]), "a")]
    (rating,) = ratings(write_log(tmp_path, queries, hits, [click("boot", "a", user="u")]))
    assert (rating.people, rating.clicks) == (1, 1)


def test_propensities_compare_ranks_of_all_spellings(tmp_path: Path) -> None:
    log = log_of(tmp_path, SPELLINGS)
    counted, told = count_log(log), count_clicks(impressions(log))
    for counts in (counted, told):
        assert len(counts) == 3 and counts.shown.tolist() == [6, 6, 6]
    np.testing.assert_array_equal(np.sort(counted.clicked), np.sort(told.clicked))


def test_the_doctor_counts_people_of_all_spellings(tmp_path: Path) -> None:
    diagnosis = examine(stored_log(tmp_path, SPELLINGS, clicked=""))
    assert [(one.query, one.people, one.searches) for one in diagnosis.failed] == [("red boot", 6, 6)]
    assert diagnosis.numbers["distinct_queries"] == 1


def test_the_id_of_an_exported_query_stays_if_another_spelling_becomes_the_most_frequent() -> None:
    assert {query_id(text) for text in SPELLINGS} == {query_id("red boot")}
