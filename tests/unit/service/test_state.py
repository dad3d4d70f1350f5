"""Signals between threads and the loop, the service's own searches, and what of a search is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reranker.deadline import Deadline
from reranker.errors import EngineUnavailable
from reranker.service.http import RequestContext, ServiceError
from reranker.service.search import Event, SearchRequest, call_of, carry_out_search, event_row, keep, without_nulls
from reranker.service.state import WakeSignal
from tests.engines.memory import memory_engine
from tests.served import Served
from tests.services import TEMPLATE, service_over, small_index
from tests.unit.service.test_search import ListSink, failing


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = small_index(tmp_path_factory.mktemp("index"), memory_engine(), n=30)
    yield served
    served.engine.close()


# --- signals


def test_a_signal_is_seen_once_however_often_and_whenever_it_is_set() -> None:
    signal = WakeSignal()
    signal.set()
    signal.set()

    async def scenario() -> list[bool]:
        seen = [await signal.wait(5.0), await signal.wait(0.01)]
        signal.set()
        seen += [await signal.wait(5.0), await signal.wait(0.01)]
        threading.Timer(0.02, signal.set).start()
        return [*seen, await signal.wait(10.0)]

    assert asyncio.run(scenario()) == [True, False, True, False, True]
    signal.set()  # the loop is closed: the next one is told
    assert asyncio.run(signal.wait(0.01))


def test_a_thread_wakes_the_one_that_waits_at_once() -> None:
    signal = WakeSignal()

    async def scenario() -> tuple[bool, float]:
        threading.Timer(0.05, signal.set).start()
        started = time.monotonic()
        return await signal.wait(30.0), time.monotonic() - started

    woken, seconds = asyncio.run(scenario())
    assert woken and seconds < 15.0


@pytest.mark.parametrize(
    ("problem", "doubts", "waits"),
    [
        (None, [True], ["wait 7", "sleep 0.2"]),
        (None, [False], ["wait 7"]),
        (ServiceError(503, "x"), [False], ["wait 1"]),
    ],
)
def test_the_service_looks_again_at_its_pace_or_where_there_is_doubt(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Any, doubts: list[bool], waits: list[str]
) -> None:
    """With a problem it checks each second; any number of doubts causes a single check after a pause."""
    state = service_over(served, tmp_path, poll_s=7.0)
    done: list[str] = []

    async def wait(timeout_s: float) -> bool:
        done.append(f"wait {timeout_s:g}")
        if not doubts:
            raise asyncio.CancelledError
        return doubts.pop(0)

    async def sleep(seconds: float) -> None:
        done.append(f"sleep {seconds:g}")

    async def check() -> None:
        done.append("check")
        state.problem = None

    monkeypatch.setattr(state.doubt, "wait", wait)
    monkeypatch.setattr(state, "check_searches", check)
    monkeypatch.setattr("reranker.service.state.asyncio.sleep", sleep)
    state.problem = problem

    async def scenario() -> None:
        with pytest.raises(asyncio.CancelledError):
            await state.keep_checking()

    asyncio.run(scenario())
    assert done == [*waits, "check", "wait 7"]


def test_a_shorter_poll_is_kept_while_there_is_a_problem(served: Served, tmp_path: Path) -> None:
    state = service_over(served, tmp_path, poll_s=0.25)
    state.problem = ServiceError(503, "x")
    asked: list[float] = []

    async def wait(timeout_s: float) -> bool:
        asked.append(timeout_s)
        raise asyncio.CancelledError

    state.doubt.wait = wait  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(state.keep_checking())
    assert asked == [0.25]


def test_a_search_of_its_own_that_times_out_opens_the_breaker(served: Served, tmp_path: Path) -> None:
    engine, state = failing(served, tmp_path, breaker_failures=2)
    engine.error = EngineUnavailable("late", timed_out=True)
    asyncio.run(state.check_searches())
    assert not state.breaker.is_open and state.problem is not None and state.problem.kind == "engine_unavailable"
    asyncio.run(state.check_searches())
    assert state.breaker.is_open


# --- searches from outside


@pytest.mark.parametrize(
    ("fields", "status", "kind", "said"),
    [
        ({"body": "titels"}, 422, "invalid", "titles"),
        ({"variables": {"sise": 3}}, 422, "invalid", "variables"),
    ],
)
def test_what_a_search_may_not_bring(
    served: Served, tmp_path: Path, fields: dict[str, Any], status: int, kind: str, said: str
) -> None:
    own = {**TEMPLATE, "size": "{{size=4}}"}
    state = service_over(served, tmp_path, body=own, bodies={"titles": TEMPLATE})
    with pytest.raises(ServiceError, match=said) as error:
        call_of(state, SearchRequest("red shoes", **fields), RequestContext("r", Deadline()))
    assert (error.value.status_code, error.value.kind) == (status, kind)
    assert "red shoes" not in error.value.message


def test_what_a_search_brings_and_what_the_service_adds(served: Served, tmp_path: Path) -> None:
    own = {**TEMPLATE, "size": "{{size=4}}", "script_fields": {"a": {"script": "1"}}}
    state = service_over(served, tmp_path, body=own, bodies={"titles": TEMPLATE})
    context = RequestContext("r", Deadline(3.0))

    def call(**fields: Any) -> Any:
        return call_of(state, SearchRequest("red shoes", **fields), context)

    assert call().body == {**own, "size": 4}, "the operator's own body may hold anything"
    assert call(variables={"size": 9}).body["size"] == 9
    assert call(body="titles").body == TEMPLATE
    page = call(size=3.0, first=2.0)
    assert (page.size, page.first) == (3, 2)
    assert [call(rerank=value).off for value in (True, "on", False, "off")] == [False, False, True, True]
    assert call().deadline is context.deadline
    assert call_of(service_over(served, tmp_path, body=None), SearchRequest("a"), context).body is None


# --- what is kept


@pytest.mark.parametrize("shadow", [False, True])
def test_an_answered_search_is_counted_and_logged_once(served: Served, tmp_path: Path, shadow: bool) -> None:
    sink = ListSink()
    state = service_over(served, tmp_path, sink=sink, shadow=shadow)
    submitted: list[Any] = []
    state.shadow.submit = lambda call, row: submitted.append(row)  # type: ignore[method-assign]
    context = RequestContext("r", Deadline(20.0))
    searched = carry_out_search(state, context, call_of(state, SearchRequest("word3"), context), "q1")
    assert (state.answered, sink.rows, context.notes) == (0, [], {}), "nothing before the answer is sure to be sent"
    keep(state, context, searched)
    assert state.answered == 1 and context.notes["mode"] == ("shadow" if shadow else "rerank")
    assert [row["query_id"] for row in (submitted if shadow else sink.rows)] == ["q1"]
    assert (sink.rows if shadow else submitted) == []
    value = state.metrics.registry.get_sample_value("ssi_searches_total", {"mode": context.notes["mode"]})
    assert value == 1.0


def test_the_row_of_an_event_leaves_out_what_is_null_and_counts_in_whole_numbers() -> None:
    decoder = msgspec.json.Decoder(Event)
    event = decoder.decode(
        b'{"action_name": "click", "query_id": "q", "client_id": null, "event_attributes":'
        b' {"object": {"object_id": "d"}, "position": {"ordinal": 3.0}, "dwell_time": null}}'
    )
    row = event_row(event, "shop")
    assert row.pop("timestamp").endswith("Z")
    assert row == {
        "action_name": "click",
        "query_id": "q",
        "application": "shop",
        "event_attributes": {"object": {"object_id": "d", "object_id_field": "_id"}, "position": {"ordinal": 3}},
    }
    assert type(row["event_attributes"]["position"]["ordinal"]) is int
    bare = decoder.decode(b'{"action_name": "a", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}')
    assert "position" not in event_row(bare, "shop")["event_attributes"]
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}, "e": [None], "f": ""}) == {
        "b": {"d": 0},
        "e": [None],
        "f": "",
    }
