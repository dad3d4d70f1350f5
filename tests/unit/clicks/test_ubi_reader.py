"""UBI in every spelling that is met, and lines that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reranker.clicks.privacy import shape
from tests.unit.clicks.reading import NOON_MS, PRIVACY, Read, event, query, write_lines

EVENT_ROW = {
    "query_id": "q1",
    "action": "click",
    "document": "d1",
    "ordinal": 2,
    "time": NOON_MS,
    "dwell": None,
    "session": PRIVACY.of("session", "session"),
    "user": PRIVACY.of("user", "client"),
    "network": "",
    "query": "",
    "application": "shop",
    "agent": "",
}
QUERY_ROW = {
    "query_id": "q1",
    "query": "red shoes",
    "session": "",
    "user": PRIVACY.of("user", "client"),
    "network": "",
    "time": NOON_MS,
    "application": "shop",
    "agent": "",
    "randomised": False,
}
THING, PLACE = {"object_id": "d1"}, {"ordinal": 2}


def attributes(**more: Any) -> dict[str, Any]:
    return {"event_attributes": {"object": THING, "position": PLACE, **more}}


def camel(value: dict[str, Any]) -> dict[str, Any]:
    """Return a row as a Java bean is written."""
    found = {}
    for key, item in value.items():
        first, *rest = key.split("_")
        name = first + "".join(part.title() for part in rest)
        found[name] = camel(item) if isinstance(item, dict) else item
    return found


EVENT_SPELLINGS: dict[str, Any] = {
    "1.3": event(),
    "1.0": event(**attributes(position={"ordinal": {"index": 2}, "page_depth": 3})),
    "ordinal as text": event(**attributes(position={"ordinal": "2"})),
    "ordinal as a float": event(**attributes(position={"ordinal": 2.0})),
    "flat ordinal": event(event_attributes={"object": THING, "position.ordinal": 2, "position.x": 4}),
    "flat object": event(event_attributes={"object.object_id": "d1", "position": PLACE}),
    "all flat": {
        **{key: item for key, item in event().items() if key != "event_attributes"},
        "event_attributes.position.ordinal": 2,
        "event_attributes.object.object_id": "d1",
    },
    "internal id": event(**attributes(object={"internal_id": "d1", "object_id_field": "ean"})),
    "session inside": event(session_id=None, **attributes(session_id="session")),
    "camelCase": camel(event()),
    "camelCase outside": {camel({key: 0}).popitem()[0]: item for key, item in event().items()},
    "wrapped": {"_index": "ubi_events", "_id": "x", "_source": event()},
    "search answer": {"took": 3, "hits": {"total": {"value": 1}, "hits": [{"_id": "x", "_source": event()}]}},
    "before a tab": b"ubi_events\t" + json.dumps(event()).encode(),
    "carriage return": json.dumps(event()).encode() + b"\r",
    "epoch milliseconds": event(timestamp=NOON_MS),
    "epoch milliseconds as text": event(timestamp=str(NOON_MS)),
    "epoch seconds": event(timestamp=NOON_MS / 1000),
    "other zone": event(timestamp="2026-03-01T14:00:00.250+02:00"),
    "nanoseconds": event(timestamp="2026-03-01T12:00:00.250000000Z"),
    "other action name": event("Item-Click"),
    "unknown keys": event(message="m", message_type="INFO", extra={"a": [1, {"b": None}]}),
    "nulls": event(user_id=None, user_query=None, ip=None),
}
QUERY_SPELLINGS: dict[str, Any] = {
    "words of a query with a syntax": query(user_query="red shoes -boots", query_attributes={"ssi_words": "red shoes"}),
    "1.3": query(),
    "objects ids": {**query(query_response_hit_ids=None), "query_response_objects_ids": ["d1", "d2"]},
    "object ids": {**query(query_response_hit_ids=None), "query_response_object_ids": ["d1", "d2"]},
    "inside query_response": {
        **query(query_response_hit_ids=None),
        "query_response": {"query_response_hit_ids": ["d1", "d2"]},
    },
    "Data Prepper": {
        **camel({key: item for key, item in query().items() if not key.startswith("query_response")}),
        "queryResponse": {"queryResponseId": "r1", "queryResponseObjectsIds": ["d1", "d2"]},
    },
    "camelCase": camel(query()),
    "wrapped": {"_index": "ubi_queries", "_source": query()},
    "application inside": query(application=None, query_attributes={"application": "shop"}),
    "raw search beside it": query(query=json.dumps({"query": {"match": {"title": "red shoes"}}})),
    "white space": query(text="  red\t shoes "),
}


@pytest.mark.parametrize("name", EVENT_SPELLINGS)
def test_every_spelling_of_an_event_gives_the_same_row(tmp_path: Path, name: str) -> None:
    read = Read(write_lines(tmp_path / "log", [query("q0"), EVENT_SPELLINGS[name]]))
    assert read.events == [EVENT_ROW]
    assert (read.counts.good, read.counts.bad) == (2, 0)


@pytest.mark.parametrize("name", QUERY_SPELLINGS)
def test_every_spelling_of_a_query_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    read = Read(write_lines(tmp_path / "log", [QUERY_SPELLINGS[name]]), format="ubi")
    assert read.queries == [QUERY_ROW]
    assert read.shown == [("q1", 1, "d1"), ("q1", 2, "d2")]
    assert read.counts.total == read.counts.good == 1


def test_spellings_are_noted(tmp_path: Path) -> None:
    names = ("1.0", "camelCase", "wrapped", "search answer", "before a tab", "epoch seconds")
    lines = [EVENT_SPELLINGS[name] for name in names]
    notes = Read(write_lines(tmp_path / "log", [query(), *lines, lines[1]])).counts.notes
    assert notes["camel_case"] == 2
    assert notes["ordinal_object"] == notes["tab_separated"] == notes["epoch_time"] == 1
    assert notes["wrapped"] == 2


def test_what_is_in_the_columns(tmp_path: Path) -> None:
    row = event(
        "purchase",
        77,
        user_query="Me@Example.com  RED",
        ip="192.0.2.9",
        user_agent="Mozilla/5.0 (compatible; Googlebot/2.1)",
        **attributes(object={"object_id": 77}, dwell_time="12.5"),
    )
    (found,) = Read(write_lines(tmp_path / "log", [row])).events
    assert found["document"] == "77"
    assert found["query"] == "<email> RED"
    assert (found["dwell"], found["agent"]) == (12.5, "Googlebot")
    assert found["network"] == PRIVACY.of("network", "192.0.2.200")


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("click", "click"),
        ("item_click", "click"),
        ("Add To Cart", "add_to_cart"),
        ("addToCart", "add_to_cart"),
        ("purchase", "purchase"),
        ("impression", "impression"),
        ("watch", "watch"),
        ("view", "view"),
        ("mail me@ex.de", "mail <email>"),
    ],
)
def test_actions_are_brought_to_one_spelling(tmp_path: Path, name: str, action: str) -> None:
    (found,) = Read(write_lines(tmp_path / "log", [event(name)])).events
    assert found["action"] == action


def test_a_client_is_the_user_and_who_is_logged_in_is_kept_beside(tmp_path: Path) -> None:
    lines = [event(user_id="alice"), event(client_id=None, user_id="alice"), event(user_id="")]
    read = Read(write_lines(tmp_path / "log", lines))
    client, alice = PRIVACY.of("user", "client"), PRIVACY.of("user", "alice")
    assert [row["user"] for row in read.events] == [client, alice, client]
    assert read.tables["people"] == [{"alias": alice, "user": client, "time": NOON_MS}]


@pytest.mark.parametrize(
    "line", [b'{"index": {"_index": "ubi_events", "_id": "1"}}', b'{"create":{}}', b'{"delete":{}}']
)
def test_actions_of_the_bulk_api_are_passed_over(tmp_path: Path, line: bytes) -> None:
    read = Read(write_lines(tmp_path / "log", [line, event()]))
    assert (read.counts.skipped, read.counts.good, read.counts.bad) == (1, 1, 0)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("1970-01-01T00:00:00Z", None),
        ("2099-01-01T00:00:00Z", None),
        (0, None),
        (99.4, None),
        ("99.4", None),
        ("yesterday", None),
        (None, None),
        (-5, None),
        (10**30, None),
        ("2026-05-29T00:00:00Z", 1_780_012_800_000),
        (NOON_MS * 1000, NOON_MS),
        (NOON_MS * 10**6, NOON_MS),
        ("0001-01-01T00:00:00+14:00", None),
        ("2026-03-01T12:00:00.250", NOON_MS),
    ],
)
def test_times_that_cannot_be_true_are_none(tmp_path: Path, time: Any, expected: int | None) -> None:
    (found,) = Read(write_lines(tmp_path / "log", [event(timestamp=time)])).events
    assert found["time"] == expected


@pytest.mark.parametrize(
    ("ordinal", "expected"),
    [(0, 0), (1, 1), (-1, None), (10**12, None), (2.5, None), ("x", None), ("٣", None), (None, None), ({}, None)],
)
def test_ordinals_are_whole_numbers_or_none(tmp_path: Path, ordinal: Any, expected: int | None) -> None:
    (found,) = Read(write_lines(tmp_path / "log", [event(**attributes(position={"ordinal": ordinal}))])).events
    assert found["ordinal"] == expected


BAD: dict[str, tuple[Any, str]] = {
    "an array": ([event()], "wrong_type"),
    "a number": (17, "wrong_type"),
    "cut": (b'{"action_name": "click', "not_json"),
    "nan": (b'{"action_name": "click", "event_attributes": {"dwell_time": NaN}}', "not_json"),
    "not utf-8": (b'{"action_name": "cl\xffck", "event_attributes": {}}', "not_utf8"),
    "a lone surrogate": (b'{"action_name": "click\\ud800", "event_attributes": {}}', "not_json"),
    "attributes of another type": (event(event_attributes=[1]), "wrong_type"),
    "an object as id": (event(query_id={"a": 1}), "wrong_type"),
    "neither": ({"timestamp": 1, "client_id": "c"}, "not_ubi"),
    "an empty object": ({}, "not_ubi"),
    "a query without id": (query(query_id=None), "no_query_id"),
    "a query with an empty id": (query(query_id=""), "no_query_id"),
    "an empty hit": (query(query_response_hit_ids=["d1", ""]), "id_empty"),
    "a null hit": (query(query_response_hit_ids=["d1", None]), "wrong_type"),
    "a long id": (event(document="d" * 513), "id_too_long"),
    "a line end in an id": (event(document="d\r\n1"), "id_control"),
    "an escape in a query id": (event(query_id="\x1b[31mq"), "id_control"),
    "a long query": (query(text="x" * 2001), "query_too_long"),
    "deep": (b'{"action_name": "click", "extra": ' + b"[" * 100_000, "too_deep"),
    "one bad of two": ({"hits": {"hits": [{"_source": event()}, {"_source": {}}]}}, "not_ubi"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_refused_with_its_place_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    line, kind = BAD[name]
    path = write_lines(tmp_path / "log", [event(), line, query()])
    read = Read(path)
    (entry,) = read.sink.entries
    assert entry.kind == kind
    assert (entry.line, entry.offset) == (2, len(json.dumps(event())) + 1)
    assert entry.reason
    assert (read.counts.good, read.counts.bad) == (2, 1)
    assert len(read.queries) == 1


def test_a_refused_line_shows_its_shape_and_none_of_its_values() -> None:
    line = b'{"client_id": "alice@ex.de", "timestamp": 1234, "note": "secret", "event_attributes": {"ip": "1.2.3.4"}'
    shown = shape(line)
    assert '"client_id":' in shown and '"event_attributes":' in shown
    assert not any(part in shown for part in ("alice", "ex.de", "1234", "note", "secret", "1.2.3.4"))
    assert shape(b"\x1b[31m\r\n alice") == ".[...   ....."


@pytest.mark.parametrize(
    ("file", "queries", "events", "skipped"),
    [
        ("chorus_ubi_queries_events.ndjson.gz", 473, 3448, 3921),
        ("dashboards_ubi_events.json.gz", 0, 3563, 0),
        ("dashboards_ubi_queries.json.gz", 477, 0, 0),
    ],
)
def test_real_logs_are_read_whole(ssi_data: Path, file: str, queries: int, events: int, skipped: int) -> None:
    path = ssi_data / "ubi_chorus" / "original" / file
    read = Read(path)
    assert (len(read.queries), len(read.events)) == (queries, events)
    assert (read.counts.skipped, read.counts.bad) == (skipped, 0)
    with gzip.open(path) as lines:
        rows = [json.loads(line) for line in lines]
    found = [row for row in rows if "action_name" in row]
    assert [row["query_id"] for row in read.events] == [row.get("query_id") or "" for row in found]
    ids = [((row.get("event_attributes") or {}).get("object") or {}).get("object_id") for row in found]
    assert [row["document"] for row in read.events] == ["" if one is None else str(one) for one in ids]
    assert sum(len(row.get("query_response_hit_ids") or ()) for row in rows) == len(read.hits)


def test_the_old_dump_with_index_names_is_read_whole(ssi_data: Path, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(ssi_data / "ubi_chorus" / "original" / "log_events.zip") as archive:
        (name,) = archive.namelist()
        head = archive.read(name).splitlines()[:2000]
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(head))
    read = Read(path)
    assert len(read.queries) == sum(line.startswith(b"ubi_queries") for line in head)
    assert len(read.events) == sum(line.startswith(b"ubi_events") for line in head)
    assert read.counts.bad == 0
    assert read.counts.notes["tab_separated"] == 2000
