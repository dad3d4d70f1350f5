"""The retained log: added to in one step, forgotten from, expired, and safe from what others do to it."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from reranker.clicks.importing import open_logs
from reranker.clicks.log import MANIFEST, Batch, ClickLog, read_log_manifest, read_part, to_tables
from reranker.clicks.schema import DAY_MS, TABLES
from reranker.errors import ConfigError, InputError
from tests.engines.policy import library
from tests.unit.clicks.reading import NOW_MS, PRIVACY, event, query, write_lines

DAY = NOW_MS // DAY_MS
ALICE, BOB = PRIVACY.of("user", "alice"), PRIVACY.of("user", "bob")


def at(days_ago: int) -> int:
    return (DAY - days_ago) * DAY_MS + 5


def batch(*rows: tuple[str, str, int | None], events: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return queries (id, user, time) with a hit each, and events."""
    found: dict[str, Any] = {
        "queries": {
            "query_id": [row[0] for row in rows],
            "query": ["red"] * len(rows),
            "user": [row[1] for row in rows],
            "time": [row[2] for row in rows],
        },
        "hits": {
            "query_id": [row[0] for row in rows],
            "position": [1] * len(rows),
            "document": [f"d-{row[0]}" for row in rows],
        },
    }
    if events:
        names = {name for one in events for name in one}
        found["events"] = {name: [one.get(name, "") for one in events] for name in names}
    return found


def rows_of(log: ClickLog, table: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of a log with how often each is there."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in log.files(table):
        with open(path, "rb") as file:
            columns = pq.read_table(file).to_pydict()
        found.update(zip(*(columns[name] for name in TABLES[table]), strict=True))
    return found


def ids(log: ClickLog, table: str = "queries") -> list[str]:
    return sorted(row[0] for row in rows_of(log, table).elements())


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return ClickLog(tmp_path / "log", create=True)


def test_what_is_added_is_there_by_day_and_owned_by_its_owner(log: ClickLog) -> None:
    added = log.add([batch(("q1", ALICE, at(3)), ("q2", BOB, None)), batch(("q3", BOB, at(3)))], "test", now_ms=NOW_MS)
    assert added == {"queries": 3, "hits": 3, "events": 0, "people": 0} == log.counts()
    assert ids(log) == ids(log, "hits") == ["q1", "q2", "q3"]
    assert ids(ClickLog(log.folder)) == ["q1", "q2", "q3"]
    days = {path.parent.name for path in log.files("hits")}
    assert days == {"day=2026-05-25", "day=undated"}
    for path in log.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(log.folder.stat().st_mode) == 0o700


def test_an_empty_log_shows_its_columns(log: ClickLog) -> None:
    for table, columns in TABLES.items():
        (path,) = log.files(table)
        names = pq.ParquetFile(path).schema_arrow.names
        assert names[: len(columns)] == list(columns)
    with pytest.raises(ConfigError, match="its tables are queries, hits, events"):
        log.files("clicks")


def test_duckdb_reads_the_files_of_many_days(log: ClickLog) -> None:
    duckdb = library("duckdb")
    log.add([batch(*((f"q{n}", ALICE, at(n) if n else None) for n in range(5)))], "test", now_ms=NOW_MS)
    names = [str(path) for path in log.files("hits")]
    assert duckdb.sql(f"SELECT COUNT(*), COUNT(query_time) FROM read_parquet({names})").fetchall() == [(5, 4)]  # noqa: S608


def test_a_source_is_added_once(log: ClickLog) -> None:
    log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)
    assert log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)["queries"] == 0
    log.add([batch(("q1", ALICE, None))], "two", now_ms=NOW_MS)
    assert ids(log) == ["q1", "q1"]


def test_a_source_that_fails_leaves_nothing(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.clicks.log.SPILL_ROWS", 2)

    def failing() -> Iterator[Batch]:
        yield batch(("q1", ALICE, None), ("q2", ALICE, None))
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError):
        log.add(failing(), "one", now_ms=NOW_MS)
    assert log.counts()["queries"] == ClickLog(log.folder).counts()["queries"] == 0
    assert {path.name for path in log.folder.rglob("*.parquet")} == {"part-00000000.parquet"}
    assert log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)["queries"] == 1


def test_a_log_that_was_killed_while_it_was_made_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    left = folder / f".{MANIFEST}.123.tmp"
    left.write_bytes(b"{")
    log = ClickLog(folder, create=True)
    assert log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)["queries"] == 1
    assert not left.exists()


def test_a_log_that_another_process_makes_meanwhile_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"

    def make_folder_late(path: Path) -> None:
        monkeypatch.undo()
        ClickLog(path, create=True).add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)

    monkeypatch.setattr("reranker.clicks.log.make_folder", make_folder_late)
    assert ids(ClickLog(folder, create=True)) == ["q1"]


def test_what_a_killed_writer_left_is_not_read_and_goes_with_the_next_change(log: ClickLog) -> None:
    log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)
    (last,) = [path for path in log.files("queries") if pq.ParquetFile(path).metadata.num_rows]
    left = last.with_name("part-00000077.parquet")
    left.write_bytes(last.read_bytes())
    (last.parent / ".part-00000078.parquet.1.tmp").write_bytes(b"PAR1")
    assert ids(ClickLog(log.folder)) == ["q1"]
    log.add([batch(("q2", ALICE, None))], "two", now_ms=NOW_MS)
    assert not left.exists()
    assert [path.name for path in last.parent.iterdir() if path.suffix == ".tmp"] == []
    assert ids(log) == ["q1", "q2"]


def test_two_writers_take_turns(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.clicks.log.LOCK_TIMEOUT_S", 0.05)
    with FileLock(log.folder / ".lock"), pytest.raises(InputError, match="another process is changing the click log"):
        log.add([batch(("q1", ALICE, None))], "one")
    assert log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)["queries"] == 1


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"clicks": {}}, "the table 'clicks'"),
        ({"queries": {"query_id": ["a"], "who": ["b"]}}, "no column 'who'"),
        ({"queries": {"query_id": ["a", "b"], "query": ["c"]}}, "different lengths"),
        ({"hits": {"query_id": ["a"], "position": ["first"], "document": ["d"]}}, "cannot be int32"),
    ],
)
def test_a_batch_of_another_form_is_refused(log: ClickLog, rows: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        log.add([rows], "one")
    assert log.counts()["queries"] == 0


def test_what_a_batch_leaves_out_is_empty() -> None:
    tables = to_tables({"events": {"query_id": ["q"], "action": ["click"]}, "queries": {"query_id": []}})
    assert list(tables) == ["events"]
    (row,) = tables["events"].to_pylist()
    assert row == {
        "query_id": "q",
        "action": "click",
        "document": "",
        "ordinal": None,
        "time": None,
        "dwell": None,
        "session": "",
        "user": "",
        "network": "",
        "query": "",
        "application": "",
        "agent": "",
    }


def test_rows_of_many_rare_days_share_a_file_and_expire_by_their_own_day(log: ClickLog) -> None:
    log.add([batch(*((f"q{n}", ALICE, at(n)) for n in range(100)))], "one", now_ms=NOW_MS)
    assert [path.parent.name for path in log.files("hits")][1:] == ["day=mixed"]
    removed = log.expire(30, now_ms=NOW_MS)
    assert removed == {"queries": 69, "hits": 69, "events": 0, "people": 0}
    assert ids(log) == ids(log, "hits") == sorted(f"q{n}" for n in range(31))
    assert log.expire(30, now_ms=NOW_MS)["queries"] == 0


class TestExpire:
    def test_a_row_stays_to_the_end_of_its_last_day(self, log: ClickLog) -> None:
        log.add([batch(("q10", ALICE, at(10)), ("q9", ALICE, at(9)))], "one", now_ms=at(9))
        end_of_day = (DAY + 1) * DAY_MS - 1
        assert log.expire(10, now_ms=end_of_day)["queries"] == 0
        assert log.expire(10, now_ms=end_of_day + 1) == {"queries": 1, "hits": 1, "events": 0, "people": 0}
        assert ids(log) == ids(log, "hits") == ["q9"]
        assert log.expire(10, now_ms=end_of_day + 1 + DAY_MS)["queries"] == 1

    def test_undated_and_future_rows_go_by_their_import(self, log: ClickLog) -> None:
        log.add([batch(("undated", ALICE, None), ("ahead", ALICE, at(-2)))], "one", now_ms=NOW_MS)
        log.add([batch(("later", ALICE, None))], "two", now_ms=NOW_MS + DAY_MS)
        assert log.expire(7, now_ms=NOW_MS + 7 * DAY_MS)["queries"] == 0
        assert log.expire(7, now_ms=NOW_MS + 8 * DAY_MS)["queries"] == 2
        assert ids(log) == ids(log, "hits") == ["later"]

    def test_the_files_are_gone_from_the_disk(self, log: ClickLog) -> None:
        log.add([batch(("secret-id", ALICE, at(40)))], "one", now_ms=at(40))
        log.expire(0, now_ms=NOW_MS)
        assert not [path for path in log.folder.rglob("*") if path.is_file() and b"secret-id" in path.read_bytes()]
        assert [path.parent.name for path in log.files("queries")] == ["day=undated"]

    def test_days_are_not_negative(self, log: ClickLog) -> None:
        with pytest.raises(ConfigError, match="0 or more"):
            log.expire(-1)


def rows_with_client(query_id: str, client: str) -> dict[str, Any]:
    """Return a query of a client that was seen together with alice."""
    rows = batch((query_id, client, at(1)))
    rows["people"] = {"alias": [ALICE], "user": [client], "time": [at(1)]}
    return rows


class TestForget:
    def rows(self, *people: str) -> dict[str, Any]:
        """Return an impression of each person, and events that name nobody, the person or another."""
        queries = [(f"q-{name}", PRIVACY.of("user", name), at(1)) for name in people]
        clicks = [
            {"query_id": q, "action": "click", "document": f"d-{q}", "user": user, "time": at(1)}
            for q, user, _ in queries
        ]
        anonymous = [{**one, "user": ""} for one in clicks]
        return batch(
            *queries, events=[{**one, "session": "", "ordinal": 1, "dwell": 2.0} for one in clicks + anonymous]
        )

    def test_the_rest_is_as_if_they_had_never_been_seen(self, log: ClickLog, tmp_path: Path) -> None:
        log.add([self.rows("alice", "bob"), self.rows("carol")], "one", now_ms=NOW_MS)
        other = ClickLog(tmp_path / "other", create=True)
        other.add([self.rows("bob"), self.rows("carol")], "one", now_ms=NOW_MS)
        assert log.forget("alice", PRIVACY, now_ms=NOW_MS) == {"queries": 1, "hits": 1, "events": 2, "people": 0}
        for table in TABLES:
            assert rows_of(log, table) == rows_of(other, table)
        for path in log.folder.rglob("*.parquet"):
            assert b"q-alice" not in path.read_bytes()

    def test_twice_is_as_once_and_nobody_is_nobody(self, log: ClickLog) -> None:
        log.add([self.rows("alice", "bob")], "one", now_ms=NOW_MS)
        assert sum(log.forget("zoe", PRIVACY).values()) == sum(log.forget("", PRIVACY).values()) == 0
        log.forget("alice", PRIVACY)
        assert sum(log.forget("alice", PRIVACY).values()) == 0
        assert log.add([batch(("q1", "", at(1)))], "two", now_ms=NOW_MS)["queries"] == 1

    def test_an_old_copy_does_not_bring_them_back_but_later_rows_count(self, log: ClickLog) -> None:
        log.add([self.rows("alice", "bob")], "one", now_ms=NOW_MS)
        log.forget("alice", PRIVACY, now_ms=NOW_MS)
        log.add([self.rows("alice", "carol")], "copy", now_ms=NOW_MS)
        assert ids(log) == ids(log, "hits") == ["q-bob", "q-carol"]
        assert ids(log, "events") == ["q-bob", "q-bob", "q-carol", "q-carol"]
        log.add([batch(("new", ALICE, NOW_MS + 1), ("undated", ALICE, None))], "later", now_ms=NOW_MS + DAY_MS)
        assert ids(log) == ids(log, "hits") == ["new", "q-bob", "q-carol"]

    def test_by_session(self, log: ClickLog) -> None:
        rows = {
            "queries": {"query_id": ["a", "b"], "session": [PRIVACY.of("session", "s1"), PRIVACY.of("session", "s2")]}
        }
        log.add([rows], "one", now_ms=NOW_MS)
        assert log.forget("s1", PRIVACY)["queries"] == 1
        assert ids(log) == ["b"]

    def test_by_a_session_in_which_a_user_is_named(self, log: ClickLog) -> None:
        def rows(*people: tuple[str, str]) -> dict[str, Any]:
            queries = batch(*((f"q{n}", user, at(1)) for n, (_, user) in enumerate(people)))
            queries["queries"]["session"] = [PRIVACY.of("session", session) for session, _ in people]
            return queries

        visits = ("s1", ALICE), ("s1", ""), ("s2", ALICE), ("s3", BOB), ("s3", "carol"), ("s4", BOB)
        log.add([rows(*visits)], "one", now_ms=NOW_MS)
        assert log.forget("s1", PRIVACY, now_ms=NOW_MS) == {"queries": 3, "hits": 3, "events": 0, "people": 0}
        assert ids(log) == ids(log, "hits") == ["q3", "q4", "q5"], "s1 is alice's alone, so s2 goes too"
        assert log.forget("s3", PRIVACY, now_ms=NOW_MS)["queries"] == 2
        assert ids(log) == ["q5"], "several people's session does not tell whom else to forget"
        log.forget("s5", PRIVACY, now_ms=NOW_MS)
        log.add([rows(*visits, ("s5", BOB))], "copy", now_ms=NOW_MS)
        assert ids(log) == ids(log, "hits") == ["q5", "q5"], "not even where the log did not know the session"

    def test_what_was_done_at_the_very_moment_of_forgetting(self, log: ClickLog) -> None:
        log.forget("alice", PRIVACY, now_ms=NOW_MS)
        events = [{"query_id": "", "action": "click", "user": ALICE, "time": NOW_MS + more} for more in (-1, 0, 1)]
        log.add([batch(events=[{**one, "ordinal": 1, "dwell": None} for one in events])], "copy", now_ms=NOW_MS)
        assert [row[4] for row in rows_of(log, "events")] == [NOW_MS + 1]
        laptop = PRIVACY.of("user", "laptop")
        log.add([batch(*((f"q{more}", laptop, NOW_MS + more) for more in (-1, 0, 1)))], "two", now_ms=NOW_MS)
        log.add([rows_with_client("q5", laptop)], "three", now_ms=NOW_MS + 2)
        assert ids(log) == ids(log, "hits") == ["q1"]

    def test_rows_of_their_sessions_that_name_no_user(self, log: ClickLog) -> None:
        sessions = ["s1", "s1", "s2", ""]
        rows = {
            "events": {
                "query_id": ["a", "", "c", ""],
                "action": ["click"] * 4,
                "session": sessions,
                "user": [ALICE, "", "", ""],
            }
        }
        log.add([rows], "one", now_ms=NOW_MS)
        assert log.forget("alice", PRIVACY)["events"] == 2
        assert ids(log, "events") == ["", "c"]

    def test_later_imports_keep_what_others_did_in_their_session(self, log: ClickLog) -> None:
        def rows(*users: str) -> dict[str, Any]:
            queries = {
                "query_id": [f"q{n}" for n in range(len(users))],
                "user": list(users),
                "time": [at(1)] * len(users),
            }
            return {"queries": {**queries, "session": ["shared"] * len(users)}}

        log.add([rows(ALICE, BOB, "")], "one", now_ms=NOW_MS)
        assert log.forget("alice", PRIVACY, now_ms=NOW_MS)["queries"] == 2
        assert log.add([rows(ALICE, BOB, "")], "copy", now_ms=NOW_MS)["queries"] == 1
        assert ids(log) == ["q1", "q1"]

    def test_all_clients_of_a_person_who_logged_in(self, log: ClickLog) -> None:
        phone, laptop = PRIVACY.of("user", "phone"), PRIVACY.of("user", "laptop")
        rows = batch(("q1", phone, at(1)), ("q2", laptop, at(1)), ("q3", BOB, at(1)))
        rows["people"] = {"alias": [ALICE, ALICE], "user": [phone, laptop], "time": [at(1)] * 2}
        log.add([rows], "one", now_ms=NOW_MS)
        assert log.forget("alice", PRIVACY) == {"queries": 2, "hits": 2, "events": 0, "people": 2}
        assert ids(log) == ids(log, "hits") == ["q3"]

    def test_who_is_forgotten_is_noted_in_the_order_of_the_hashes(self, log: ClickLog) -> None:
        clients = [PRIVACY.of("user", f"client{number}") for number in range(8)]
        rows = batch(*((f"q{number}", client, at(1)) for number, client in enumerate(clients)))
        rows["queries"]["session"] = [PRIVACY.of("session", f"visit{number}") for number in range(8)]
        rows["people"] = {"alias": [ALICE] * 8, "user": clients, "time": [at(1)] * 8}
        log.add([rows], "one", now_ms=NOW_MS)
        log.forget("alice", PRIVACY, now_ms=NOW_MS)
        noted = list(read_log_manifest(log.folder).forgotten)
        assert len(noted) == 18
        assert noted == sorted(noted)

    def test_a_client_first_met_in_a_later_import_is_forgotten_too(self, log: ClickLog) -> None:
        phone, laptop = PRIVACY.of("user", "phone"), PRIVACY.of("user", "laptop")
        log.add([rows_with_client("q1", phone)], "one", now_ms=NOW_MS)
        assert log.forget("alice", PRIVACY, now_ms=NOW_MS) == {"queries": 1, "hits": 1, "events": 0, "people": 1}
        # The client alone, whose rows nobody knows to be hers; later a row that says so, after new ones.
        log.add([batch(("q2", laptop, at(1)), ("q3", laptop, NOW_MS + 1), ("q4", BOB, at(1)))], "two", now_ms=NOW_MS)
        assert ids(log) == ["q2", "q3", "q4"]
        log.add([rows_with_client("q5", laptop)], "three", now_ms=NOW_MS + 2)
        assert ids(log) == ids(log, "hits") == ["q3", "q4"], "what came after she was forgotten stays"
        assert log.manifest.forgotten[laptop] == NOW_MS
        log.add([rows_with_client("q6", laptop)], "four", now_ms=NOW_MS + 3)
        assert ids(log) == ["q3", "q4"]
        assert log.counts()["people"] == 0

    def test_a_client_linked_by_an_import_that_was_killed_is_forgotten_by_the_next_change(self, log: ClickLog) -> None:
        laptop = PRIVACY.of("user", "laptop")
        log.forget("alice", PRIVACY, now_ms=NOW_MS)

        def stopped() -> None:
            with log.transaction(NOW_MS) as transaction:
                transaction.put(rows_with_client("q1", laptop))
                transaction.commit()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            stopped()
        assert ids(log) == ["q1"]
        log.expire(10_000, now_ms=NOW_MS)
        assert ids(log) == ids(log, "hits") == [] and log.counts()["people"] == 0

    def test_each_part_is_searched_for_their_clients_once(self, log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
        log.forget("alice", PRIVACY, now_ms=NOW_MS)
        read: list[str] = []

        def counted(path: Path, table: str) -> Any:
            read.append(str(path))
            return read_part(path, table)

        monkeypatch.setattr("reranker.clicks.log.read_part", counted)
        for number in range(5):
            rows = batch((f"q{number}", f"client{number}", at(1)))
            rows["people"] = {"alias": [BOB], "user": [f"client{number}"], "time": [at(1)]}
            log.add([rows], str(number), now_ms=NOW_MS)
        assert len(read) == len(set(read)) == 5
        log.add([rows_with_client("q9", "client0")], "late", now_ms=NOW_MS)
        assert ids(log) == [f"q{number}" for number in range(1, 5)], "also rows of a part that was searched before"

    def test_what_others_did_in_their_list_and_they_in_others(self, log: ClickLog) -> None:
        rows = batch(
            ("q-alice", ALICE, at(1)),
            ("q-bob", BOB, at(1)),
            events=[
                {"query_id": "q-bob", "action": "click", "user": ALICE, "document": "spam"},
                {"query_id": "q-alice", "action": "click", "user": BOB, "document": "x"},
                {"query_id": "q-bob", "action": "click", "user": "", "document": "whose?"},
            ],
        )
        for name, kind in (("ordinal", None), ("time", None), ("dwell", None)):
            rows["events"][name] = [kind] * 3
        log.add([rows], "one", now_ms=NOW_MS)
        log.forget("alice", PRIVACY)
        assert ids(log) == ids(log, "hits") == ["q-bob"]
        assert sorted(row[2] for row in rows_of(log, "events")) == ["whose?", "x"]

    def test_another_key_is_refused(self, tmp_path: Path) -> None:
        log = ClickLog(tmp_path / "log", create=True)
        with log.transaction() as transaction:
            transaction.use_key(PRIVACY)
            transaction.commit()
        with pytest.raises(InputError, match="made with another key"):
            log.forget("alice", type(PRIVACY)(bytes(32)))
        with pytest.raises(InputError, match="does not exist"):
            log.privacy()


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q1", "q2", "q3"]),
            st.sampled_from(["", ALICE, BOB]),
            st.one_of(st.none(), st.integers(0, 40).map(at)),
        ),
        max_size=12,
    ),
    st.lists(st.tuples(st.sampled_from(["q1", "q2", "q4"]), st.sampled_from(["", ALICE, BOB])), max_size=12),
    st.integers(0, 45),
)
def test_whatever_was_logged_nothing_of_a_forgotten_person_or_an_old_day_is_left(
    tmp_path_factory: pytest.TempPathFactory,
    queries: list[tuple[str, str, int | None]],
    events: list[tuple[str, str]],
    days: int,
) -> None:
    log = ClickLog(tmp_path_factory.mktemp("any") / "log", create=True)
    rows = batch(*queries)
    rows["events"] = {"query_id": [one[0] for one in events], "user": [one[1] for one in events]}
    log.add([rows], "one", now_ms=NOW_MS)
    before = {table: rows_of(log, table) for table in TABLES}
    log.forget("alice", PRIVACY, now_ms=NOW_MS)
    after = {table: rows_of(log, table) for table in TABLES}
    assert all(after[table] <= before[table] for table in TABLES)
    assert ALICE not in {row[3] for row in after["queries"]} | {row[7] for row in after["events"]}
    # Bob's rows stay, and each list that stays has its query.
    assert sum(n for row, n in after["queries"].items() if row[3] == BOB) == sum(one[1] == BOB for one in queries)
    assert sum(n for row, n in after["events"].items() if row[7] == BOB) == sum(one[1] == BOB for one in events)
    assert {row[0] for row in after["hits"]} <= {row[0] for row in after["queries"]}
    log.expire(days, now_ms=NOW_MS)
    times = [row[5] for row in rows_of(log, "queries")]
    assert all(time is None or time // DAY_MS >= DAY - days for time in times)
    kept = [row for row in after["queries"].elements() if row[5] is None or row[5] // DAY_MS >= DAY - days]
    assert sorted(rows_of(log, "queries").elements(), key=repr) == sorted(kept, key=repr)


class TestOpening:
    def test_a_folder_is_opened_as_it_is(self, log: ClickLog) -> None:
        log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)
        assert open_logs([log.folder]).counts()["queries"] == 1

    def test_raw_files_go_through_a_temporary_log_that_is_removed(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "raw", [query(), event(), event()])
        found = open_logs([path, write_lines(tmp_path / "more", [query("q2")])])
        folder = found.folder
        assert found.counts() == {"queries": 2, "hits": 4, "events": 2, "people": 0}
        assert not (folder / "key").exists()
        other = open_logs([path])
        assert rows_of(other, "queries") < rows_of(found, "queries")
        del found
        assert not folder.exists()

    def test_what_cannot_be_opened_is_told(self, log: ClickLog, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for paths, reason in (
            ([tmp_path / "absent"], "does not exist"),
            ([tmp_path / "empty"], "is not a click log"),
            ([log.folder, tmp_path / "absent"], "give one click log, or raw files"),
            ([], "no log was given"),
        ):
            with pytest.raises(InputError, match=reason):
                open_logs(paths)

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "damaged"),
            (b"{", "damaged"),
            (b"[" * 100_000, "damaged"),
            (b'{"format": "x"}', "its format is x"),
            (b'{"format": "ssi-click-log", "format_version": 2}', "version 2"),
            (
                b'{"parts": [{"path": "../../etc/x.parquet", "table": "..", "rows": 1, "imported": 1}]}',
                "not a valid path",
            ),
            (b'{"parts": [{"path": "/etc/a/b", "table": "queries", "rows": 1, "imported": 1}]}', "not a valid path"),
            (b'{"surprise": 1}', "damaged"),
        ],
    )
    def test_a_damaged_manifest_is_refused(self, log: ClickLog, data: bytes, reason: str) -> None:
        (log.folder / MANIFEST).write_bytes(data)
        with pytest.raises(InputError, match=reason):
            read_log_manifest(log.folder)

    def test_a_damaged_part_is_told(self, log: ClickLog) -> None:
        log.add([batch(("q1", ALICE, None))], "one", now_ms=NOW_MS)
        log.files("queries")[-1].write_bytes(b"PAR1 no more")
        with pytest.raises(InputError, match="damaged"):
            log.forget("alice", PRIVACY)

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(InputError, match=r"contains 'notes\.txt' and is not a click log"):
            ClickLog(tmp_path, create=True)
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
