"""Operators' routes: who may, what they show, and that they do what the command line does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from indexer.versions import promote as promote_version
from indexer.versions import register
from reranker.errors import EngineUnavailable
from reranker.rerank import Calibration, body_hash
from reranker.service.app import all_parts
from reranker.service.auth import new_key
from reranker.service.telemetry import MAX_SHAPES, QUARTER_S, QUARTERS, BodyShapes, DayHistory, Metrics, quantile
from tests.engines.memory import memory_engine
from tests.served import Served
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


def test_only_an_admins_key_shows_the_status(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    for key, status in ((None, 401), ("ssi_wrong", 401), (site.keys["search"][0], 403), (site.keys["events"][0], 403)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert site.client.get("/admin/status", headers=headers).status_code == status


def test_without_keys_nobody_sees_the_status_not_even_on_loopback(served: Served, tmp_path: Path) -> None:
    client = client_of(service_over(served, tmp_path), *all_parts())
    answer = client.get("/admin/status")
    assert answer.status_code == 403 and "--api-keys" in answer.json()["error"]["message"]
    assert client.get("/operate").status_code == 200, "the page says so"


def test_the_versions_are_those_of_the_command_line(served: Served, tmp_path: Path) -> None:
    site = Operated(served, tmp_path)
    part = site.ask("GET", "/admin/status")["versions"]
    rows = part["versions"]
    assert [row["model_id"] for row in rows] == [site.second.model_id, site.first.model_id]
    assert [row["live"] for row in rows] == [False, True] and all(row["is_here"] for row in rows)
    assert rows[0]["with_vector"] == rows[0]["documents"] == len(served.documents)
    assert (part["previous"], part["one_folder"]) == ("", False)
    promote_version(served.engine, served.index, site.second.model_id)
    assert site.watcher.poll()
    status = site.ask("GET", "/admin/status")
    assert status["served"]["model_id"] == site.second.model_id
    assert status["versions"]["previous"] == site.first.model_id


def test_a_service_of_one_model_says_so(served: Served, tmp_path: Path) -> None:
    key, line = new_key("operator", "admin")
    (tmp_path / "keys").write_text(line)
    state = service_over(served, tmp_path, api_keys=tmp_path / "keys")
    register(served.engine, served.index, served.model)
    status = client_of(state, *all_parts()).get("/admin/status", headers={"Authorization": f"Bearer {key}"}).json()
    assert status["versions"]["one_folder"] is True


def test_an_engine_that_is_down_leaves_the_rest_of_the_status(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Operated(served, tmp_path)

    def down(*_: Any, **__: Any) -> Any:
        raise EngineUnavailable("word3 is what was searched")

    monkeypatch.setattr(served.engine, "index_uuids", down)
    status = site.ask("GET", "/admin/status")
    assert "the search engine is unavailable" in status["versions"]["unknown"] and "word3" not in str(status)
    assert status["searches"]["latency"]


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
