"""The project's own JSON lines, Metarank, Parquet, whole JSON documents, and telling them apart."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reranker.cli.pair_options import LOG_FORMATS
from reranker.clicks.importing import FORMATS
from reranker.errors import ConfigError, InputError
from tests.engines.policy import library
from tests.unit.clicks.reading import NOON, NOON_MS, PRIVACY, Read, event, query, read_log, write_lines

OWN = {
    "query_id": "s1i1",
    "query": "civil war  causes",
    "session": "2013-1",
    "user": None,
    "time": "99.396003",
    "results": ["d1", 2],
    "clicks": [{"doc": "d1", "rank": 1, "time": "143.512957", "end_time": "152.601789"}],
    "qid": "t1q1",
}
RANKING = {
    "event": "ranking",
    "id": "r1",
    "timestamp": str(NOON_MS),
    "user": "u",
    "session": "s",
    "fields": [{"name": "query", "value": "jeans"}, {"name": "source", "value": 3}],
    "items": [{"id": "a", "fields": []}, {"id": "b", "label": 1}],
}
INTERACTION = {
    "event": "interaction",
    "id": "i1",
    "ranking": "r1",
    "timestamp": NOON_MS,
    "user": "u",
    "session": "s",
    "type": "click",
    "item": "b",
    "fields": [],
}


def test_the_projects_own_form(tmp_path: Path) -> None:
    read = Read(write_lines(tmp_path / "log", [OWN]))
    (row,) = read.queries
    assert (row["query_id"], row["query"], row["time"], row["user"]) == ("s1i1", "civil war causes", None, "")
    assert row["session"] == PRIVACY.of("session", "2013-1")
    assert read.shown == [("s1i1", 1, "d1"), ("s1i1", 2, "2")]
    (click,) = read.events
    assert (click["action"], click["document"], click["ordinal"], click["time"]) == ("click", "d1", 1, None)
    assert click["dwell"] == pytest.approx(152.601789 - 143.512957)
    assert read.counts.notes["relative_time"] == 2


def test_the_projects_own_form_in_full(tmp_path: Path) -> None:
    act = {"doc": "d1", "rank": 1, "time": NOON, "end_time": NOON_MS / 1000 + 30}
    line = {
        **OWN,
        "time": NOON,
        "clicks": [act],
        "add_to_cart": [act],
        "purchases": [{"doc": "d1"}],
        "user": "u",
        "randomised": True,
        "application": "shop",
        "ip": "192.0.2.1",
        "user_agent": "curl/8.0",
    }
    read = Read(write_lines(tmp_path / "log", [line]))
    (row,) = read.queries
    assert (row["time"], row["randomised"], row["agent"] != "") == (NOON_MS, True, True)
    assert [one["action"] for one in read.events] == ["click", "add_to_cart", "purchase"]
    assert [one["dwell"] for one in read.events] == [30.0, 30.0, None]
    assert {one["network"] for one in [row, *read.events]} == {PRIVACY.of("network", "192.0.2.1")}


@pytest.mark.parametrize(("mark", "marked"), [(True, True), ("true", True), (False, False), (None, False)])
def test_the_own_form_takes_the_mark_of_shuffled_lists_as_ubi_writes_it(
    tmp_path: Path, mark: Any, marked: bool
) -> None:
    read = Read(write_lines(tmp_path / "log", [{**OWN, "query_attributes": {"randomised": mark, "shop": 3}}]))
    assert [row["randomised"] for row in read.queries] == [marked]


@pytest.mark.parametrize(
    "line",
    [
        {**OWN, "query_id": ""},
        {**OWN, "results": ["d1", ""]},
        {**OWN, "clicks": [{"rank": 1}]},
        {**OWN, "clicks": {}},
        {**OWN, "query": 5},
        {"results": []},
        b"{",
    ],
)
def test_bad_lines_of_the_own_form_leave_nothing(tmp_path: Path, line: Any) -> None:
    read = Read(write_lines(tmp_path / "log", [line]), format="json-lines")
    assert (read.counts.bad, read.queries, read.hits, read.events) == (1, [], [], [])


def test_real_sessions(ssi_data: Path) -> None:
    path = ssi_data / "trec_session_2013" / "clicks.jsonl.gz"
    read = Read(path)
    with gzip.open(path) as lines:
        rows = [json.loads(line) for line in lines]
    assert [row["query_id"] for row in read.queries] == [row["query_id"] for row in rows]
    assert read.shown == [(r["query_id"], n, d) for r in rows for n, d in enumerate(r["results"], start=1)]
    assert [(e["document"], e["ordinal"]) for e in read.events] == [
        (c["doc"], c["rank"]) for r in rows for c in r["clicks"]
    ]
    assert len({row["session"] for row in read.queries}) == 133


def test_metarank(tmp_path: Path) -> None:
    lines = [RANKING, INTERACTION, {"event": "item", "id": "x", "item": "a"}, {"event": "user", "id": "y"}]
    read = Read(write_lines(tmp_path / "log", lines))
    (row,) = read.queries
    assert (row["query_id"], row["query"], row["time"]) == ("r1", "jeans", NOON_MS)
    assert read.shown == [("r1", 1, "a"), ("r1", 2, "b")]
    (click,) = read.events
    assert (click["query_id"], click["action"], click["document"], click["ordinal"]) == ("r1", "click", "b", None)
    assert row["user"] == click["user"] == PRIVACY.of("user", "u")
    assert (read.counts.good, read.counts.skipped) == (2, 2)


@pytest.mark.parametrize(
    "line",
    [{"event": "view"}, {**RANKING, "id": None}, {**INTERACTION, "item": None}, {"id": "x"}, {**RANKING, "items": 1}],
)
def test_bad_events_of_metarank(tmp_path: Path, line: Any) -> None:
    read = Read(write_lines(tmp_path / "log", [line]), format="metarank")
    assert (read.counts.bad, read.queries, read.hits, read.events) == (1, [], [], [])


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_one_json_document(tmp_path: Path, indent: int | None, packed: bool) -> None:
    rows = [query(), {"bad": 1}, event(), {"_source": event("purchase")}]
    answer = {"took": 1, "hits": {"total": 4, "hits": [{"_id": "1", "_source": row} for row in rows[:3]] + [rows[3]]}}
    for name, document in (("array", rows), ("answer", answer)):
        path = tmp_path / name
        data = json.dumps(document, indent=indent).encode()
        path.write_bytes(gzip.compress(data) if packed else data)
        read = Read(path)
        assert (len(read.queries), [row["action"] for row in read.events]) == (1, ["click", "purchase"])
        assert (read.counts.good, read.counts.bad) == (3, 1)


def test_parquet_of_ubi_and_of_the_own_form(tmp_path: Path) -> None:
    pa, pq = library("pyarrow"), library("pyarrow.parquet")
    tables = {
        "events": [event(), event("purchase", timestamp=None)],
        "queries": [query(), query("q2", "blue", query_response_hit_ids=None)],
        "own": [{**OWN, "time": NOON, "results": ["d1", "d2"]}],
        "text": [{**event(), "event_attributes": json.dumps(event()["event_attributes"])}],
    }
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    events, queries, own, text = (Read(tmp_path / name) for name in tables)
    assert [(row["document"], row["ordinal"], row["time"]) for row in events.events] == [
        ("d1", 2, NOON_MS),
        ("d1", 2, None),
    ]
    assert [row["query"] for row in queries.queries] == ["red shoes", "blue"]
    assert queries.shown == [("q1", 1, "d1"), ("q1", 2, "d2")]
    assert own.shown == [("s1i1", 1, "d1"), ("s1i1", 2, "d2")]
    assert [row["ordinal"] for row in own.events] == [1]
    assert text.events == events.events[:1]
    assert all(read.counts.bad == 0 for read in (events, queries, text))


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        ([b"garbage", b"[1", OWN], "queries"),
        ([{"index": {}}, {"foo": 1}, RANKING], "queries"),
        ([{"event": "item", "id": "1"}, INTERACTION], "events"),
        ([b"\xef\xbb\xbf" + json.dumps(OWN).encode()], "queries"),
        ([b"ubi_events\t" + json.dumps(event()).encode()], "events"),
    ],
)
def test_the_form_is_told_by_the_first_lines_that_say_it(tmp_path: Path, lines: list[Any], counted: str) -> None:
    read = Read(write_lines(tmp_path / "log", lines))
    assert len(read.tables[counted]) == 1


def test_an_unknown_format_and_a_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of auto, ubi, json-lines, metarank"):
        Read(tmp_path / "log", format="csv")
    with pytest.raises(InputError, match="does not exist"):
        Read(tmp_path / "log")
    assert LOG_FORMATS == FORMATS


def test_without_a_sink_the_first_bad_line_raises(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", [event(), b'{"client_id": "alice"', event()])
    with pytest.raises(InputError, match="line 2") as caught:
        list(read_log([path], PRIVACY))
    assert "alice" not in str(caught.value.data)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    for data in (b"", b"\n \n\r\n", b"\xef\xbb\xbf", gzip.compress(b"")):
        (tmp_path / "log").write_bytes(data)
        read = Read(tmp_path / "log")
        assert read.counts.total == 0
