"""Operators' routes: who may, what they show, and that they do what the command line does."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.versions import register
from reranker.clicks.doctor import LEAST_PEOPLE
from reranker.releases import GateNote, note_gate, read_control
from reranker.rerank import Calibration, body_hash
from reranker.service import operate
from reranker.service.app import all_parts
from reranker.service.auth import new_key
from reranker.service.operate import _report_path
from reranker.service.sink import FileWriter, ImpressionSink, open_sink
from reranker.service.state import ServiceState
from reranker.service.telemetry import MAX_SHAPES, QUARTER_S, QUARTERS, BodyShapes, DayHistory, Metrics, quantile
from tests.engines.memory import memory_engine
from tests.engines.policy import library
from tests.served import Served, model_of, random_documents, serve
from tests.services import PATIENT, Site, client_of, promote, service_over, small_index

WAIT_S = 30.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = small_index(tmp_path / "index", memory_engine())
    yield served
    served.engine.close()


class Operated(Site):
    """A site with both versions registered, and a client that shows an admin's key."""

    def __init__(self, served: Served, path: Path, **settings: Any) -> None:
        self.keys = {role: new_key(role, role) for role in ("admin", "search", "events")}
        (path / "keys").write_text("\n".join(line for _, line in self.keys.values()))
        super().__init__(served, path, api_keys=path / "keys", **settings)
        register(served.engine, served.index, self.first, promote=True)
        register(served.engine, served.index, self.second, promote=False)
        self.client = client_of(self.state, *all_parts())
        self.as_admin = {"Authorization": f"Bearer {self.keys['admin'][0]}"}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return an answer that was no error."""
        answer = self.client.request(method, path, json=body, headers=self.as_admin)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def status_when(self, condition: Callable[[Any], Any]) -> Any:
        """Return the status once a condition holds of it."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if condition(status := self.ask("GET", "/admin/status")):
                return status
            time.sleep(0.05)
        raise AssertionError(status)

    def after_change(self) -> Any:
        """Return how the change ended that was begun."""
        return self.status_when(lambda status: status["change"]["ended"] and not status["change"]["working"])["change"]


ROUTES: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/admin/status", None),
    ("POST", "/admin/promote", {"version": "a" * 12}),
    ("POST", "/admin/rollback", {}),
    ("POST", "/admin/drift", None),
    ("GET", f"/admin/report/{'a' * 12}", None),
)


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_only_an_admins_key_opens_the_routes(served: Served, tmp_path: Path, method: str, path: str, body: Any) -> None:
    site = Operated(served, tmp_path)
    before = read_control(served.engine, served.index)
    for key, status in ((None, 401), ("ssi_wrong", 401), (site.keys["search"][0], 403), (site.keys["events"][0], 403)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert site.client.request(method, path, json=body, headers=headers).status_code == status
    assert read_control(served.engine, served.index) == before


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_without_keys_nobody_operates_not_even_on_loopback(
    served: Served, tmp_path: Path, method: str, path: str, body: Any
) -> None:
    client = client_of(service_over(served, tmp_path), *all_parts())
    answer = client.request(method, path, json=body)
    assert answer.status_code == 403 and "--api-keys" in answer.json()["error"]["message"]
    assert client.get("/operate").status_code == 200, "the page says so"


def test_promote_and_roll_back_are_those_of_the_command_line(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    rows = site.ask("GET", "/admin/status")["versions"]["versions"]
    assert [row["model_id"] for row in rows] == [site.second.model_id, site.first.model_id]
    assert [row["live"] for row in rows] == [False, True] and all(row["is_here"] for row in rows)
    assert rows[0]["with_vector"] == rows[0]["documents"] == len(served.documents)
    site.ask("POST", "/admin/promote", {"version": site.second.model_id[:12]})
    assert site.after_change() | {"ended": ""} == {
        "working": False,
        "ended": "",
        "live": site.second.model_id,
        "problem": "",
    }
    record = read_control(served.engine, served.index)
    assert (record.live, record.previous) == (site.second.model_id, (site.first.model_id,))
    assert site.watcher._wake.is_set(), "the service looks at once"
    assert site.watcher.poll()
    status = site.ask("GET", "/admin/status")
    assert status["served"]["model_id"] == site.second.model_id
    assert (status["served"]["process"], status["served"]["processes"]) == (os.getpid(), 1)
    assert status["versions"]["previous"] == site.first.model_id
    site.ask("POST", "/admin/rollback", {})
    site.status_when(lambda status: status["change"]["live"] == site.first.model_id)
    assert read_control(served.engine, served.index).live == site.first.model_id


def test_a_change_that_ends_while_the_status_is_read_is_reported_as_running(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Operated(served, tmp_path)
    may_end, read_versions = threading.Event(), operate._versions
    site.state.jobs["version"].start(lambda: may_end.wait(WAIT_S) and site.second.model_id)

    def versions_before_the_change(state: ServiceState) -> dict[str, Any]:
        versions = read_versions(state)
        may_end.set()
        while state.jobs["version"].is_running:
            time.sleep(0.01)
        return versions

    monkeypatch.setattr(operate, "_versions", versions_before_the_change)
    status = site.ask("GET", "/admin/status")
    assert status["change"]["working"], "the versions shown are those of before the change"
    assert site.after_change()["live"] == site.second.model_id


def test_a_version_without_vectors_is_refused_with_the_reason_and_can_be_forced(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    served.put({"new": {"title": "word1", "text": "word2"}}, vectors=False)
    site.ask("POST", "/admin/promote", {"version": site.second.model_id})
    change = site.after_change()
    assert "1 of 81 documents" in change["problem"] and "ssi sync" in change["problem"]
    assert read_control(served.engine, served.index).live == site.first.model_id
    site.ask("POST", "/admin/promote", {"version": site.second.model_id, "force": True})
    site.status_when(lambda status: status["change"]["live"] == site.second.model_id)


@pytest.mark.parametrize(("body", "problem"), [({"version": "f" * 12}, "copy the model there")])
def test_what_nobody_could_answer_with_is_not_promoted(
    served: Served, tmp_path: Path, body: dict[str, Any], problem: str
) -> None:
    site = Operated(served, tmp_path)
    site.ask("POST", "/admin/promote", body)
    assert problem in site.after_change()["problem"]
    site.ask("POST", "/admin/rollback", {})
    assert (
        "no earlier live version"
        in site.status_when(lambda now: "earlier" in now["change"]["problem"])["change"]["problem"]
    )
    for wrong in ({}, {"version": "short"}, {"version": 7}, {"version": "A" * 12}):
        answer = site.client.post("/admin/promote", json=wrong, headers=site.as_admin)
        assert answer.status_code == 422


def test_one_change_at_a_time(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Operated(served, tmp_path)
    job = site.state.jobs["version"]
    monkeypatch.setattr(job, "is_running", True)
    answer = site.client.post("/admin/rollback", json={}, headers=site.as_admin)
    assert answer.status_code == 409 and "already running" in answer.json()["error"]["message"]


def test_a_service_of_one_model_says_why_it_changes_nothing(served: Served, tmp_path: Path) -> None:
    key, line = new_key("operator", "admin")
    (tmp_path / "keys").write_text(line)
    state = service_over(served, tmp_path, api_keys=tmp_path / "keys")
    register(served.engine, served.index, served.model)
    client = client_of(state, *all_parts())
    headers = {"Authorization": f"Bearer {key}"}
    status = client.get("/admin/status", headers=headers).json()
    assert "--models" in status["versions"]["fixed"] and "--models" in status["gates"]["unknown"]
    assert "--sink" in status["clicks"]["unknown"] and "--sink" in status["queries"]["unknown"]
    answer = client.post("/admin/rollback", json={}, headers=headers)
    assert answer.status_code == 409 and "--models" in answer.json()["error"]["message"]


def test_an_engine_that_is_down_leaves_the_rest_of_the_status(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reranker.errors import EngineUnavailable

    site = Operated(served, tmp_path)

    def down(*_: Any, **__: Any) -> Any:
        raise EngineUnavailable("word3 is what was searched")

    monkeypatch.setattr(served.engine, "index_uuids", down)
    status = site.ask("GET", "/admin/status")
    assert "the search engine is unavailable" in status["versions"]["unknown"] and "word3" not in str(status)
    assert status["searches"]["latency"]


def test_drift_is_measured_when_it_is_asked_for(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    assert "start a measurement" in site.ask("GET", "/admin/status")["drift"]["unknown"]
    served.put({"new": {"title": "zebra", "text": "zebra"}})
    site.ask("POST", "/admin/drift")
    drift = site.status_when(lambda status: status["drift"].get("advice"))["drift"]
    assert drift["documents"] == 81 and drift["model_id"] == site.first.model_id
    assert drift["unknown_words"] == [{"word": "zebra", "documents": 1}]


# Body shapes


def test_body_shapes_are_counted_by_origin_and_logged_once(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"query": {"match": {"title": {"query": "{{query}}"}}}}
    site = Operated(served, tmp_path, bodies={"titles": body})
    asked = [{"query": "word3"}, {"query": "word5"}, {"query": "word3", "body": "titles"}]
    with caplog.at_level("WARNING", "reranker"):
        for wanted in asked:
            site.ask("POST", "/search", wanted)
        key = Calibration.key(body_hash(body), PATIENT.window)
        promote(served, site.first.model_id, {key: {"alpha": 0.25}})
        assert site.watcher.poll()
        site.ask("POST", "/search", asked[-1])
    part = site.ask("GET", "/admin/status")["shapes"]
    assert [(row["clauses"], row["searches"], row["origins"]) for row in part["shapes"]] in (
        [
            ("multi_match:text, multi_match:title", 2, {"default": 2}),
            ("match:title", 2, {"default": 1, "calibrated": 1}),
        ],
        [
            ("match:title", 2, {"default": 1, "calibrated": 1}),
            ("multi_match:text, multi_match:title", 2, {"default": 2}),
        ],
    )
    assert part["others"] == 0 and part["window"] == PATIENT.window
    warned = [record.__dict__["ssi"] for record in caplog.records if "body shape" in record.getMessage()]
    assert [entry["clauses"] for entry in warned] == ["multi_match:text, multi_match:title", "match:title"]
    assert {entry["shape"] for entry in warned} == {row["shape"] for row in part["shapes"]}
    for entry in warned:
        assert entry["alpha"] == "default" and "word" not in str(entry)
        assert entry["remedy"].startswith("ssi calibrate ") and f"--window {PATIENT.window}" in entry["remedy"]


def test_the_number_of_body_shapes_kept_is_bounded() -> None:
    shapes = BodyShapes()
    first = [shapes.note(frozenset([f"match:field{number}"]), "nearest") for number in range(MAX_SHAPES + 50)]
    assert all(first[:MAX_SHAPES]) and not any(first[MAX_SHAPES:])
    assert shapes.note(frozenset(["match:field0"]), "default") is None, "one warning for each shape"
    assert shapes.note(frozenset(["match:field200"]), "nearest") is None
    assert (len(shapes.to_json()["shapes"]), shapes.to_json()["others"]) == (MAX_SHAPES, 51)


def test_a_body_shape_shows_neither_text_nor_endless_lists() -> None:
    shapes = BodyShapes()
    shape = shapes.note(frozenset(["match:a secret text", "match:title"]), "nearest")
    assert shape is not None and shape.clauses == "?, match:title"
    many = shapes.note(frozenset(f"match:{'f' * 50}{number}" for number in range(1000)), "nearest")
    assert many is not None and many.clauses.endswith(" and 992 more") and len(many.clauses) < 1000
    assert shapes.note(frozenset(["match:calibrated"]), "calibrated") is None
    assert shapes.note(frozenset(["match:calibrated"]), "nearest") is not None, "calibrated before, for another window"


# Figures


def test_a_quantile_lies_evenly_within_its_bucket() -> None:
    buckets = [(1.0, 10.0), (2.0, 20.0), (4.0, 20.0), (float("inf"), 40.0)]
    assert quantile(buckets, 0.25) == 1.0
    assert quantile(buckets, 0.375) == 1.5
    assert quantile(buckets, 0.1) == pytest.approx(0.4)
    assert quantile(buckets, 0.95) is None, "above the last finite bound"
    assert quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None


def test_latencies_and_fallbacks_are_those_of_the_metrics(served: Served, tmp_path: Path) -> None:
    metrics = Metrics()
    for value in range(1, 101):
        metrics.note_stages({"score": value / 10})
    (score,) = (one for one in metrics.latencies() if one.stage == "score")
    assert score == ("score", 100, 5.0, 9.5, 9.9), "there are few, so that these are of the samples themselves"
    for _ in range(101):
        metrics.note_stages({"order": 2.0})
        metrics.note_stages({"order": 2.0})
    (order,) = (one for one in metrics.latencies() if one.stage == "order")
    assert order == ("order", 202, 1.75, 2.425, 2.485)  # of 1 to 2.5 ms, where all of them lie
    metrics.stages.labels("query").observe(0.002)  # by another process
    (encoded,) = (one for one in metrics.latencies() if one.stage == "query")
    assert encoded == ("query", 1, 1.75, 2.425, 2.485)
    site = Operated(served, tmp_path)
    for query in ("word3", "nothingknown"):
        site.ask("POST", "/search", {"query": query})
    searches = site.ask("GET", "/admin/status")["searches"]
    assert searches["searches"] == 2 and searches["fallbacks"] in ({}, {"empty_query": 1})
    assert {one["stage"]: one["n"] for one in searches["latency"]}["/search"] == 2


def test_the_day_is_kept_by_quarter_hours_in_bounded_memory() -> None:
    now = 5000.0
    day = DayHistory(lambda: now)
    day.note_search(0.010, fallback=False)
    day.note_search(0.030, fallback=True)
    now += QUARTER_S
    day.note_clicks(2)
    assert day.to_json() == [
        {"ago": 1, "searches": 2, "fallbacks": 1, "clicks": 0, "p50_ms": 10.0, "p95_ms": 30.0},
        {"ago": 0, "searches": 0, "fallbacks": 0, "clicks": 2, "p50_ms": None, "p95_ms": None},
    ]
    for _ in range(3 * QUARTERS):
        now += QUARTER_S
        day.note_search(0.010, fallback=False)
    assert [one["ago"] for one in day.to_json()] == [*range(QUARTERS - 1, -1, -1)]
    now += 24 * 3600.0
    assert day.to_json() == []


def test_searches_and_clicks_of_the_day_are_in_the_status(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    site.ask("POST", "/search", {"query": "word3"})
    (quarter,) = site.ask("GET", "/admin/status")["searches"]["day"]
    assert (quarter["ago"], quarter["searches"], quarter["fallbacks"], quarter["clicks"]) == (0, 1, 0, 0)
    assert 0 < quarter["p50_ms"] == quarter["p95_ms"]


# Gate


def note(finished: str, **more: Any) -> GateNote:
    values: dict[str, Any] = {"outcome": "refused", "reason": "Too few.", "candidate": "c" * 64}
    return GateNote("docs", finished, **(values | more))


def test_the_last_gates_are_shown_and_only_reports_within_the_models_folder(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    assert "ssi retrain" in site.ask("GET", "/admin/status")["gates"]["unknown"]
    inside, outside = site.models / "reports" / "r.html", tmp_path / "outside.html"
    inside.parent.mkdir()
    inside.write_text("<p>why</p>")
    outside.write_text("<p>secret</p>")
    (site.models / "link.html").symlink_to(outside)
    (site.models / "keys.txt").write_text("secret")
    work = site.models / ".retrain" / "docs-1"
    reports = {"a": inside, "b": outside, "d": site.models / "link.html", "e": site.models / "keys.txt"}
    for day, (name, path) in enumerate(reports.items(), 1):
        note_gate(work, note(f"2026-11-0{day}T03:00:00+00:00", candidate=name * 64, report=str(path)))
    note_gate(work, note("2026-11-09T03:00:00+00:00", measured=({"name": "clicks nDCG", "live": 0.5},)))
    for report in ("a\0b.html", "x" * 10_000 + ".html", f"{site.models / 'loop.html'}", ""):
        (site.models / "loop.html").unlink(missing_ok=True)
        (site.models / "loop.html").symlink_to("loop.html")
        assert _report_path(site.models, report) is None
    gates = site.ask("GET", "/admin/status")["gates"]["gates"]
    assert [gate["report"] for gate in gates] == [False, False, False, False, True], "newest first"
    assert gates[0]["measured"] == [{"name": "clicks nDCG", "live": 0.5}]
    answer = site.client.get(f"/admin/report/{'a' * 64}", headers=site.as_admin)
    assert answer.text == "<p>why</p>" and answer.headers["content-disposition"] == "attachment"
    for name in ("b", "c", "d", "e", "f"):
        answer = site.client.get(f"/admin/report/{name * 64}", headers=site.as_admin)
        assert answer.status_code == 404 and "secret" not in answer.text
    (work / "gates.json").write_text("[{")
    assert "delete it" in site.ask("GET", "/admin/status")["gates"]["unknown"]


# Clicks


def logged(path: Path, people: int, *, query: str = "red lamp", sessions: bool = True, moved: bool = True) -> None:
    """Write searches of some people as the service logs them; each clicks the second document, the engine's first."""
    with path.open("a", encoding="utf-8") as file:
        for n in range(people):
            query_id = f"{query}-{n}"
            who = {"session_id": f"s{n}"} if sessions else {}
            ranks = "2 1 3" if moved else "1 2 3"
            search = {
                "query_id": query_id,
                "user_query": query,
                "timestamp": f"2026-05-01T10:00:{n:02}.000Z",
                "query_response_hit_ids": ["a", "b", "c"],
                **who,
                "query_attributes": {"ssi_first_stage_ranks": ranks},
            }
            click = {
                "action_name": "click",
                "query_id": query_id,
                "timestamp": f"2026-05-01T10:01:{n:02}.000Z",
                **who,
                "event_attributes": {"object": {"object_id": "b"}, "position": {"ordinal": 2}},
            }
            file.write(json.dumps(search) + "\n" + (json.dumps(click) + "\n" if n % 2 else ""))


def with_log(served: Served, path: Path) -> Operated:
    site = Operated(served, path)
    site.state.sink = ImpressionSink(FileWriter(path / "ubi.ndjson"))
    return site


def test_clicks_by_rank_and_the_queries_that_lose_most(served: Served, tmp_path: Path) -> None:
    library("duckdb")
    logged(tmp_path / "ubi.ndjson", 8)
    logged(tmp_path / "ubi.ndjson", LEAST_PEOPLE - 1, query="my own name")
    logged(tmp_path / "ubi.ndjson", 20, query="nameless", sessions=False)
    logged(tmp_path / "ubi.ndjson", 6, query="blue lamp", moved=False)
    with (tmp_path / "ubi.ndjson").open("a") as file:
        file.write('{"query_id": "cut')
    site = with_log(served, tmp_path)
    status = site.status_when(lambda status: status["clicks"].get("rates"))
    # 8 + 4 + 20 + 6 searches; every other one clicked the second document.
    assert status["clicks"]["searches"] == 38
    rates = {rate["rank"]: (rate["shown"], rate["clicked"]) for rate in status["clicks"]["rates"]}
    assert rates == {1: (38, 0), 2: (38, 19), 3: (38, 0)}
    queries = status["queries"]
    assert [one["query"] for one in queries["unclicked"]] == ["red lamp", "blue lamp"]
    assert queries["unclicked"][0] == {
        "query": "red lamp",
        "people": 8,
        "searches": 8,
        "without_click": 4,
        "lost": 2.0,  # 4 clicks × (1/1 - 1/2)
    }
    assert [one["query"] for one in queries["moved"]] == ["red lamp"]
    assert "my own name" not in json.dumps(status) and "nameless" not in json.dumps(status)


def test_a_log_without_searches_says_so(served: Served, tmp_path: Path) -> None:
    site = with_log(served, tmp_path)
    status = site.status_when(lambda status: status["clicks"].get("unknown"))
    assert "no search has been logged yet" in status["clicks"]["unknown"] == status["queries"]["unknown"]


def test_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.service.sink.NEWEST_BYTES", 25)
    writer = FileWriter(tmp_path / "ubi.ndjson")
    writer.write([("ubi_queries", {"query_id": f"q{n}"}) for n in range(5)])
    assert writer.newest() == b'{"query_id":"q4"}\n'
    writer.close()


def test_a_click_whose_search_lies_before_the_end_that_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.service.sink.NEWEST_BYTES", 130)
    writer = FileWriter(tmp_path / "ubi.ndjson")
    click = {"action_name": "click"}
    rows = [{"query_id": "old"}, {"query_id": "new"}, {**click, "query_id": "old"}, {**click, "query_id": "new"}]
    writer.write([("ubi_queries", {"query_id": "long" * 40}), *(("", row) for row in rows[1:])])
    assert [json.loads(line)["query_id"] for line in writer.newest().splitlines()] == ["new", "new"]
    writer.close()


def test_the_services_own_log_is_not_accused_of_what_it_does_right(tmp_path: Path) -> None:
    """Ids that are numbers, searches that find nothing, and no click yet."""
    library("duckdb")
    documents = {str(n): source for n, source in enumerate(random_documents(40).values(), 1)}
    served = serve(memory_engine(), "docs", tmp_path, documents, model_of(documents))
    state = service_over(served, tmp_path, sink=open_sink(str(tmp_path / "ubi.ndjson"), served.engine))
    with client_of(state, *all_parts()) as client:
        for visitor in range(20):
            for query in ("word3", "word5 word2", "nosuchword"):
                client.post("/search", json={"query": query, "session": f"s{visitor}"})
        assert state.sink is not None
        state.sink.close(10.0)
    rows = (tmp_path / "ubi.ndjson").read_bytes()
    clicks = operate._read_clicks(rows)["clicks"]
    said = " ".join(one["sentence"] for one in clicks["findings"])
    assert (clicks["searches"], clicks["without_hits"]) == (60, 20)
    assert "no clicks" in said, "which is true"
    assert "Lucene" not in said and "unknown which documents" not in said and "empty response" not in said
    foreign = rows.replace(b"ssi_mode", b"other_mode")
    said = " ".join(one["sentence"] for one in operate._read_clicks(foreign)["clicks"]["findings"])
    assert "Lucene" in said and "unknown which documents" in said, "another program's log may have these faults"


def test_clicks_are_read_back_from_an_engine(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    sink = site.state.sink = open_sink("engine", served.engine)
    assert sink is not None and sink.newest() == b""
    answer = site.ask("POST", "/search", {"query": "word3", "session": "s1"})
    clicked = answer["hits"][1]["id"]
    event = {
        "action_name": "click",
        "query_id": answer["query_id"],
        "session_id": "s1",
        "event_attributes": {"object": {"object_id": clicked}, "position": {"ordinal": 2}},
    }
    site.ask("POST", "/events", {"events": [event]})
    end = time.monotonic() + WAIT_S
    while sink.waiting and time.monotonic() < end:
        time.sleep(0.02)
    served.engine.refresh("ubi_queries")
    served.engine.refresh("ubi_events")
    rows = [json.loads(line) for line in sink.newest().splitlines()]
    assert [row.get("action_name") for row in rows] == [None, "click"]
    status = site.status_when(lambda status: status["clicks"].get("rates"))
    assert [rate["clicked"] for rate in status["clicks"]["rates"]][:3] == [0, 1, 0]
    assert "searched by 5 people" in status["queries"]["unknown"]


def test_a_job_that_fails_is_a_sentence_and_can_be_begun_again() -> None:
    from reranker.service.state import BackgroundJob

    job = BackgroundJob()
    for work, value, problem in ((lambda: 1 // 0, None, "internal error"), (lambda: 3, 3, "")):
        assert job.start(work)
        while job.is_running:
            time.sleep(0.01)
        assert (job.value, job.problem) == (value, problem)
