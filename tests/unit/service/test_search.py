"""``POST /search``: what passes through, who is reranked, what is logged, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import structs

from reranker.deadline import Deadline
from reranker.engines import EngineSettings
from reranker.engines.connections import HttpConnections
from reranker.engines.event_loop import is_on_loop
from reranker.engines.protocol import Engine
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
)
from reranker.models.model_folder import save_model
from reranker.records import SearchAnswer
from reranker.rerank import Reranker, RerankSettings
from reranker.rerank.calibration.kept import PINNED_SCORE
from reranker.service.http import ServiceError
from reranker.service.modes import MAX_SHUFFLED, SearchCall, SearchOutcome, rerank
from reranker.service.serving import Versions
from reranker.service.settings import Limits, ServiceSettings
from reranker.service.state import ServiceState, open_state
from tests.engines.memory import memory_engine
from tests.served import Served, model_of, serve
from tests.services import PATIENT, TEMPLATE, client_of, promote, service_over, small_index
from tests.unit.rerank.test_reranker import Spy

QUERY = "word3 word11"
CANARY = "canary@example.org"


class ListSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.waiting = self.dropped = 0

    def record(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def close(self, timeout_s: float) -> None:
        self.waiting = 0


class Failing(Spy):
    """An engine whose searches fail with ``error``, after ``seconds``, while that is set."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.error: Exception | None = None
        self.seconds = 0.0
        self.calls = 0

    def search(self, index: str, body: Any, **options: Any) -> SearchAnswer:
        self.calls += 1
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return super().search(index, body, **options)


class Pinning(Spy):
    """An engine that pins its first hit, as a rule of the engine does."""

    def search(self, index: str, body: Any, **options: Any) -> SearchAnswer:
        answer = super().search(index, body, **options)
        first, *others = answer.hits
        return replace(answer, hits=(structs.replace(first, score=PINNED_SCORE), *others))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine())
    yield served
    served.engine.close()


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
def state(served: Served, sink: ListSink, tmp_path: Path) -> ServiceState:
    return service_over(served, tmp_path, sink=sink)


def failing(served: Served, path: Path, **settings: Any) -> tuple[Failing, ServiceState]:
    engine: Any = Failing(served.engine)
    return engine, service_over(
        Served(engine, served.index, served.model, served.documents, served.store_path), path, **settings
    )


def ask(state: ServiceState, **fields: Any) -> Any:
    answer = client_of(state).post("/search", json={"query": QUERY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_answer_is_the_rerankers_own(state: ServiceState, served: Served) -> None:
    reranker = Reranker(served.engine, "docs", served.model, settings=PATIENT)
    page = reranker.search(QUERY, TEMPLATE, size=7, from_=2, explain=True)
    answer = ask(state, size=7, explain=True, **{"from": 2})
    assert [(h["id"], h["score"], h["rank"]) for h in answer["hits"]] == [(h.id, h.score, h.rank) for h in page.hits]
    assert answer["reranked"] and answer["mode"] == "rerank" and answer["route"] == "fetch"
    assert answer["model_id"] == served.model.model_id and answer["encoder_id"] == served.model.encoder_id
    assert answer["total"] == page.total and answer["hits"][0]["source"] == page.hits[0].source
    assert sum(row["value"] for row in answer["hits"][0]["explanation"]) == pytest.approx(page.hits[0].score, abs=1e-6)
    assert "query" not in answer


def test_without_a_body_the_services_own_is_used_and_without_that_the_models_fields(
    served: Served, tmp_path: Path
) -> None:
    body = {"query": {"match": {"text": "{{query}}"}}, "size": 3, "_source": ["tag"]}
    own = service_over(served, tmp_path, body=body)
    answer = ask(own)
    assert len(answer["hits"]) == 3 and set(answer["hits"][0]["source"]) == {"tag"}
    assert len(ask(service_over(served, tmp_path, body=None))["hits"]) == 10


def test_variables_of_the_services_bodies_take_the_requests_values(served: Served, tmp_path: Path) -> None:
    match = {"match": {"text": "{{query}}"}}
    body = {"query": {"bool": {"must": match, "filter": [{"term": {"tag": "{{tag?}}"}}]}}, "size": "{{size=3}}"}
    state = service_over(served, tmp_path, body=body, bodies={"titles": {"query": {"match": {"title": "{{query}}"}}}})
    plain = ask(state)
    assert len(plain["hits"]) == 3
    tag = plain["hits"][0]["source"]["tag"]
    one = ask(state, variables={"tag": tag, "size": 50})
    assert {hit["source"]["tag"] for hit in one["hits"]} == {tag} and 0 < one["total"] < plain["total"]
    # Filters decide neither alpha nor scores: what remains keeps its score and its order.
    scores = {hit["id"]: hit["score"] for hit in ask(state, variables={"size": 50})["hits"]}
    assert all(scores.get(hit["id"], hit["score"]) == hit["score"] for hit in one["hits"])
    titles = ask(service_over(served, tmp_path, body={"query": {"match": {"title": "{{query}}"}}}))
    assert [hit["id"] for hit in ask(state, body="titles")["hits"]] == [hit["id"] for hit in titles["hits"]]
    client = client_of(state)
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"variables": {"tagg": "x"}}, "size, tag"),
        ({"variables": {"size": "3"}}, "has type text; it must be a number"),
        ({"variables": {"tag": {"match_all": {}}}}, "has type object; it must be"),
        ({"body": "title"}, "titles"),
    ]
    for wrong, said in wrongs:
        answer = client.post("/search", json={"query": QUERY, **wrong})
        assert answer.status_code == 422 and said in answer.json()["error"]["message"], answer.text


def test_a_request_cannot_bring_a_body(state: ServiceState) -> None:
    answer = client_of(state).post("/search", json={"query": QUERY, "body": TEMPLATE})
    assert answer.status_code == 422 and "body" in answer.json()["error"]["message"]


@pytest.mark.parametrize("off", [False, "off"])
def test_a_request_can_switch_reranking_off(state: ServiceState, sink: ListSink, off: Any) -> None:
    answer = ask(state, rerank=off)
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    assert not answer["reranked"] and not answer["fallback"] and answer["mode"] == "off"
    assert "switched off" in answer["reason"] and answer["model_id"]
    attributes = sink.rows[0]["query_attributes"]
    assert (attributes["ssi_mode"], attributes["ssi_cause"]) == ("off", "switched_off")
    assert ask(state, rerank=True)["reranked"] and ask(state, rerank="on")["reranked"]


def test_a_share_of_sessions_is_reranked_and_each_keeps_its_group(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, percent=50.0)
    first = {f"s{k}": ask(state, session=f"s{k}", size=1)["mode"] for k in range(60)}
    assert {"rerank", "control"} == set(first.values())
    assert first == {session: ask(state, session=session, size=1, **{"from": 1})["mode"] for session in first}
    control = next(session for session, mode in first.items() if mode == "control")
    answer = ask(state, session=control)
    assert not answer["fallback"] and "control group" in answer["reason"]
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))


def test_an_explored_share_of_sessions_sees_first_pages_shuffled(
    served: Served, sink: ListSink, tmp_path: Path
) -> None:
    state = service_over(served, tmp_path, sink=sink, explore=50.0)
    first = {f"s{k}": ask(state, session=f"s{k}") for k in range(80)}
    shown = {session: [hit["id"] for hit in answer["hits"]] for session, answer in first.items()}
    explored = [session for session, answer in first.items() if answer["mode"] == "explore"]
    assert 20 <= len(explored) <= 60
    in_order = shown[next(session for session in first if session not in explored)]
    assert all((shown[session] == in_order) == (session not in explored) for session in first)
    # The same documents, each at any rank, and the ranks count from 1: nothing but the order is another.
    assert all(sorted(ids) == sorted(in_order) for ids in shown.values())
    assert {shown[session].index(in_order[0]) for session in explored} >= set(range(0, 10, 2))
    assert all([hit["rank"] for hit in answer["hits"]] == list(range(1, 11)) for answer in first.values())
    marked = {row["session_id"] for row in sink.rows if row["query_attributes"].get("randomised") == "true"}
    assert marked == set(explored)
    # The same list for the same session; the explanations go with their hits.
    again = ask(state, session=explored[0], explain=True)
    assert [hit["id"] for hit in again["hits"]] == shown[explored[0]]
    for hit in again["hits"]:
        assert sum(row["value"] for row in hit["explanation"]) == pytest.approx(hit["score"], abs=1e-6)


@pytest.mark.parametrize(
    ("unlike", "pins"),
    [
        ({"from": 10}, False),
        ({"size": MAX_SHUFFLED + 1}, False),
        ({"session": None}, False),
        ({"rerank": False}, False),
        ({}, True),
    ],
)
def test_what_cannot_be_shuffled_as_a_whole_comes_in_order_and_unmarked(
    served: Served, sink: ListSink, tmp_path: Path, unlike: dict[str, Any], pins: bool
) -> None:
    engine: Any = Pinning(served.engine) if pins else served.engine
    served = replace(served, engine=engine)
    asked = {"session": "s1", **unlike}
    answer = ask(service_over(served, tmp_path, sink=sink, explore=100.0), **asked)
    plain = ask(service_over(served, tmp_path), **asked)
    assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in plain["hits"]]
    assert ["randomised" in row["query_attributes"] for row in sink.rows] == [False]


def test_the_shadow_scores_and_logs_but_shows_the_engines_order(served: Served, sink: ListSink, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, sink=sink, shadow=True)
    with client_of(state) as client:
        shown = client.post("/search", json={"query": QUERY}).json()
        assert shown["mode"] == "shadow" and not shown["reranked"]
        assert [hit["first_stage_rank"] for hit in shown["hits"]] == list(range(1, 11))
        end = time.monotonic() + 60
        while not sink.rows and time.monotonic() < end:
            time.sleep(0.01)
    (row,) = sink.rows
    ids = row["query_response_hit_ids"]
    assert ids == [hit["id"] for hit in shown["hits"]]
    by_model = [hit["id"] for hit in ask(service_over(served, tmp_path))["hits"]]
    assert by_model != ids
    places = [ids.index(name) + 1 if name in ids else 0 for name in by_model]
    assert row["query_attributes"]["ssi_shadow_order"] == " ".join(map(str, places))
    assert b'ssi_shadows_total{result="scored"} 1.0' in state.metrics.text()


def test_no_impression_is_made_where_none_is_kept(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.service.search.query_row", None)
    kept, unkept = (
        client_of(service_over(served, tmp_path / str(n), sink=s)) for n, s in enumerate((ListSink(), None))
    )
    assert unkept.post("/search", json={"query": "word3"}).status_code == 200
    assert kept.post("/search", json={"query": "word3"}).status_code == 500


def test_the_impression_says_what_was_shown(state: ServiceState, sink: ListSink, served: Served) -> None:
    answer = ask(state, session="s1", client_id="c1", size=3, **{"from": 2})
    (row,) = sink.rows
    attributes = row["query_attributes"]
    assert row["query_id"] == answer["query_id"] and row["user_query"] == QUERY
    assert (row["session_id"], row["client_id"], attributes["ssi_index"], attributes["ssi_first"]) == (
        "s1",
        "c1",
        "docs",
        "2",
    )
    assert row["query_response_hit_ids"] == [hit["id"] for hit in answer["hits"]]
    assert attributes["ssi_first_stage_ranks"].split() == [str(hit["first_stage_rank"]) for hit in answer["hits"]]
    assert "ssi_teams" not in attributes
    assert attributes["ssi_model"] == served.model.model_id
    assert (attributes["ssi_reranked"], attributes["ssi_mode"]) == ("true", "rerank")
    assert float(attributes["ssi_took_ms"]) > 0 and attributes["ssi_total"] == str(answer["total"])
    assert abs(datetime.fromisoformat(row["timestamp"]) - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_mode_of_another_part_takes_over(state: ServiceState, sink: ListSink) -> None:
    def mode(versions: Versions, call: SearchCall) -> SearchOutcome:
        outcome = rerank(versions, call)
        teams = tuple("ab"[place % 2] for place in range(len(outcome.page.hits)))
        return SearchOutcome(outcome.page, outcome.serving, teams, ("1" * 64, "2" * 64))

    state.modes["interleave"] = mode
    answer = ask(state, size=4)
    assert answer["mode"] == "interleave" and [hit["team"] for hit in answer["hits"]] == ["a", "b", "a", "b"]
    assert answer["versions"] == ["1" * 64, "2" * 64]
    assert sink.rows[0]["query_attributes"]["ssi_teams"] == "a b a b"
    assert ask(state, rerank=False)["mode"] == "off"


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry"),
    [
        (EngineUnavailable(f"cut {CANARY}", retry_after_s=3.0), 503, "engine_unavailable", "3"),
        (EngineUnavailable(CANARY), 503, "engine_unavailable", "1"),
        (EngineRejected(f"parse {CANARY}", error_type="parsing_exception"), 400, "body_refused", None),
        (EngineRejected(f"parse {CANARY}", error_type=CANARY), 400, "body_refused", None),
        (IndexMissing(CANARY), 503, "index_missing", "5"),
        (EngineAuthError(CANARY, status=401), 502, "engine_credentials", None),
        (EngineError(CANARY), 502, "engine_error", None),
        (ZeroDivisionError(CANARY), 500, "internal", None),
    ],
)
def test_an_engine_that_fails_is_told_without_its_words(
    served: Served, tmp_path: Path, error: Exception, status: int, kind: str, retry: str | None
) -> None:
    engine, state = failing(served, tmp_path)
    engine.error = error
    answer = client_of(state).post("/search", json={"query": CANARY})
    assert answer.status_code == status and answer.json()["error"]["type"] == kind
    assert answer.headers.get("retry-after") == retry
    assert CANARY not in answer.text and CANARY not in state.metrics.text().decode()


def test_an_engine_that_is_down_is_asked_five_times_and_then_left_alone(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path, breaker_pause_s=60.0)
    client = client_of(state)
    engine.error, engine.calls = EngineUnavailable("down"), 0
    answers = [client.post("/search", json={"query": QUERY}) for _ in range(12)]
    assert [answer.status_code for answer in answers] == [503] * 12 and engine.calls == 5
    assert all("retry-after" in answer.headers for answer in answers)
    ready = client.get("/ready")
    assert ready.status_code == 503 and ready.json()["error"]["type"] == "engine_unavailable"
    engine.error = None
    assert state.breaker._opened is not None
    state.breaker._opened -= 60.0
    assert client.post("/search", json={"query": QUERY}).status_code == 200
    assert client.get("/ready").status_code == 200 and client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (IndexMissing("gone"), "index_missing"),
        (EngineAuthError("no", status=401), "engine_credentials"),
        (EngineUnavailable("down"), "engine_unavailable"),
        (EngineRejected("bad body", error_type="parsing_exception"), "body_refused"),
    ],
)
def test_ready_says_no_while_searches_cannot_be_answered(
    served: Served, tmp_path: Path, error: Exception, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine, state = failing(served, tmp_path)
    client = client_of(state)
    assert client.get("/ready").status_code == 200 and b"ssi_searchable 1.0" in state.metrics.text()
    engine.error = error
    asyncio.run(state.check_searches())
    ready = client.get("/ready")
    assert ready.status_code == 503 and ready.json()["error"]["type"] == kind
    assert b"ssi_searchable 0.0" in state.metrics.text()
    engine.error = None
    asyncio.run(state.check_searches())
    assert client.get("/ready").status_code == 200 and b"ssi_searchable 1.0" in state.metrics.text()
    lines = [vars(record)["ssi"] for record in caplog.records if record.msg == "searches"]
    assert lines == [{"answered": False, "cause": kind}, {"answered": True}]


def test_a_service_over_an_index_that_is_not_there_is_not_ready(served: Served, tmp_path: Path) -> None:
    for body in (None, TEMPLATE):
        state = service_over(replace(served, index="nope"), tmp_path, body=body)
        ready = client_of(state).get("/ready")
        assert ready.status_code == 503 and ready.json()["error"]["type"] == "index_missing"


def test_where_others_searches_are_answered_the_service_asks_nothing(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path)
    client_of(state).post("/search", json={"query": QUERY})
    engine.calls = 0
    asyncio.run(state.check_searches())
    assert engine.calls == 0
    asyncio.run(state.check_searches())
    assert engine.calls > 0


@pytest.mark.parametrize(
    ("body_size", "asked", "on_loop"),
    [(10, {}, True), (1001, {}, False), (1001, {"size": 10}, True), (10, {"from": 995}, False)],
)
def test_a_page_of_many_hits_is_read_in_a_thread(
    served: Served, tmp_path: Path, body_size: int, asked: dict[str, int], on_loop: bool
) -> None:
    class Awaitable(Failing):
        """An engine whose requests an event loop may send; notes where it was asked."""

        connections, is_awaitable = HttpConnections("http://127.0.0.1:9", EngineSettings()), True
        on_loop: ClassVar[list[bool]] = []

        def search(self, *given: Any, **named: Any) -> Any:
            self.on_loop.append(is_on_loop())
            return super().search(*given, **named)

    engine: Any = Awaitable(served.engine)
    of_engine = Served(engine, served.index, served.model, served.documents, served.store_path)
    state = service_over(of_engine, tmp_path, body={**TEMPLATE, "size": body_size})
    Awaitable.on_loop.clear()
    ask(state, **asked)
    assert set(Awaitable.on_loop) == {on_loop}


def test_threads_that_never_end_are_noticed(served: Served, tmp_path: Path) -> None:
    engine, state = failing(
        served, tmp_path, rerank=RerankSettings(deadline_ms=200.0), limits=Limits(at_once=1), poll_s=0.05
    )

    async def scenario() -> None:
        engine.seconds = 1.0
        with pytest.raises(ServiceError):
            await state.work.in_thread(Deadline(0.1), lambda: engine.search("docs", {}))
        looking = asyncio.create_task(state.keep_checking())
        await asyncio.sleep(0.6)
        looking.cancel()

    asyncio.run(scenario())
    assert state.problem is not None and state.problem.kind == "overloaded"


def test_an_engine_slower_than_the_deadline_is_not_waited_for(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path, rerank=RerankSettings(deadline_ms=200.0))
    engine.seconds = 0.6
    started = time.perf_counter()
    answer = client_of(state).post("/search", json={"query": QUERY})
    assert time.perf_counter() - started < 0.5
    assert answer.status_code == 503 and answer.json()["error"]["type"] == "deadline"
    assert answer.headers["retry-after"] == "1"


def test_bodies_that_the_engine_is_too_slow_for_keep_nobody_out(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path, breaker_failures=1)
    client = client_of(state)
    for error, status, kind in (
        (EngineUnavailable("late", timed_out=True), 503, "engine_unavailable"),
        (EngineUnavailable("boost", status=500, error_type="query_shard_exception"), 502, "engine_failed"),
        (EngineOverloaded("heap", status=429, error_type="circuit_breaking_exception"), 429, "engine_overloaded"),
    ):
        engine.error = error
        answer = client.post("/search", json={"query": QUERY})
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        engine.error = None
        assert client.post("/search", json={"query": QUERY}).status_code == 200
        assert client.get("/ready").status_code == 200


def test_a_failed_search_makes_the_service_look_at_once(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path, breaker_failures=2, poll_s=60.0)

    async def scenario() -> None:
        looking = asyncio.create_task(state.keep_checking())
        await asyncio.sleep(0.05)
        engine.error = EngineUnavailable("down", status=502)
        with pytest.raises(EngineUnavailable):
            await asyncio.to_thread(state.ask_engine, lambda: engine.search("docs", {}))
        end = time.monotonic() + 10
        while state.problem is None and time.monotonic() < end:
            await asyncio.sleep(0.05)
        looking.cancel()

    asyncio.run(scenario())
    assert state.problem is not None and state.problem.kind == "engine_unavailable"


def test_past_the_deadline_after_the_first_answer_the_engines_order_comes(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reranker.service.work.GRACE_S", 10.0)  # the answer is on its way, however slow this machine
    settings = RerankSettings(deadline_ms=300.0)
    engine, state = failing(served, tmp_path, rerank=settings, body={**TEMPLATE, "_source": False})
    engine.seconds = 0.305
    answer = client_of(state).post("/search", json={"query": QUERY}).json()
    assert answer["fallback"] and "deadline" in answer["reason"]
    assert [hit["first_stage_rank"] for hit in answer["hits"]] == list(range(1, 11))
    assert b'ssi_fallbacks_total{cause="deadline"} 1.0' in state.metrics.text()


def test_without_a_model_the_engines_order_comes_and_says_so(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path)
    bare = service_over(served, tmp_path, body=None).settings
    (tmp_path / "broken").mkdir()
    state = open_state(served.engine, state.settings, model=tmp_path / "broken")
    client = client_of(state)
    answer = client.post("/search", json={"query": QUERY}).json()
    assert answer["fallback"] and answer["reason"] == "no model is loaded" and answer["model_id"] == ""
    assert "manifest" in client.get("/ready").json()["degraded"]
    client = client_of(open_state(served.engine, bare, model=tmp_path / "broken"))
    assert client.post("/search", json={"query": QUERY}).status_code in (422, 503), "nothing names the text fields"


def test_without_a_store_the_engines_order_comes_and_says_so(served: Served, tmp_path: Path) -> None:
    save_model(served.model, tmp_path / "model")
    settings = ServiceSettings(index="docs", route="beside")
    state = open_state(served.engine, settings, model=tmp_path / "model", store=tmp_path / "none")
    answer = ask(state)
    assert answer["fallback"] and "no vector store" in answer["reason"]
    beside = service_over(served, tmp_path, route="beside")
    assert ask(beside)["reranked"]


def test_another_version_can_be_asked_for(served: Served, tmp_path: Path, state: ServiceState) -> None:
    assert ask(state, version=served.model.model_id[:8])["model_id"] == served.model.model_id
    answer = client_of(state).post("/search", json={"query": QUERY, "version": "abcdef12"})
    assert answer.status_code == 404 and answer.json()["error"]["type"] == "no_version"


@pytest.mark.parametrize(
    "fields",
    [
        {"query": None},
        {"query": 3},
        {"query": "x" * 10_001},
        {"size": -1},
        {"size": 1001},
        {"size": 10**30},
        {"size": "3"},
        {"from": -1},
        {"from": 10_001},
        {"body": []},
        {"body": {}},
        {"body": {"query": {}}},
        {"session": "x" * 101},
        {"rerank": "maybe"},
        {"rerank": None},
        {"explain": "yes"},
        {"version": "../x"},
    ],
)
def test_fields_out_of_range_are_refused_and_not_repeated(state: ServiceState, fields: dict[str, Any]) -> None:
    answer = client_of(state).post("/search", json={"query": CANARY, **fields})
    assert answer.status_code == 422, answer.text
    assert CANARY not in answer.text and "x" * 50 not in answer.text


def test_fields_that_are_not_known_are_ignored(state: ServiceState) -> None:
    assert ask(state, colour="red", size=2)["reranked"]


@pytest.mark.parametrize(
    "query", ["", " ", "\0", "zzzunknown", "été", "e\u0301te\u0301", "שלום", "a\u200db", "\U0001f600" * 3]
)
def test_odd_queries_are_answered(state: ServiceState, query: str) -> None:
    answer = client_of(state).post("/search", json={"query": query})
    assert answer.status_code == 200 and answer.json() == answer.json()


def test_sources_that_utf8_cannot_hold_arrive_as_the_engine_sent_them(tmp_path: Path) -> None:
    documents = {"a": {"title": "word1 word2", "text": "word1"}, "b": {"title": "word1", "text": "word2 \ud83d"}}
    engine = memory_engine()
    served = serve(engine, "docs", tmp_path, {"a": documents["a"]}, model_of({"a": documents["a"]}))
    spy: Any = Failing(engine)
    state = service_over(Served(spy, "docs", served.model, documents, served.store_path), tmp_path)
    odd = [
        {**hit.source, "text": documents["b"]["text"]}
        for hit in engine.search("docs", {"query": {"match_all": {}}}).hits
    ]
    assert odd

    def search(index: str, body: Any, **options: Any) -> SearchAnswer:
        answer = engine.search(index, body, **options)
        hits = tuple(type(hit)(hit.id, hit.index, hit.score, {**hit.source, "odd": "\ud83d"}) for hit in answer.hits)
        return SearchAnswer(hits, answer.total)

    spy.search = search
    answer = client_of(state).post("/search", json={"query": "word1"})
    assert answer.status_code == 200 and json.loads(answer.content)["hits"][0]["source"]["odd"] == "\ud83d"


@pytest.mark.parametrize(
    ("calibration", "alpha", "expected"),
    [({}, None, False), ({f"{'0' * 16}:200": {"alpha": 0.9}}, None, True), ({}, 0.4, True)],
)
def test_ready_says_whether_the_version_is_calibrated(
    tmp_path: Path, calibration: dict[str, Any], alpha: float | None, expected: bool
) -> None:
    served = small_index(tmp_path)
    promote(served, served.model.model_id, calibration)
    with closing(service_over(served, tmp_path, rerank=replace(PATIENT, alpha=alpha))) as state:
        assert client_of(state).get("/ready").json()["calibrated"] is expected
