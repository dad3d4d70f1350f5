"""Breaker, work, keys, deadlines, settings, log lines: the parts that know nothing of search."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reranker.deadline import Deadline
from reranker.engines import open_engine
from reranker.errors import ConfigError, EngineRejected, EngineUnavailable, FallbackError, InputError
from reranker.records import Reason, ReasonKind
from reranker.rerank import RerankSettings
from reranker.service.auth import ApiKeys, may, new_key, presented_key
from reranker.service.http import ServiceError, retry_after
from reranker.service.modes import EXPLORE_SALT, MODES, SearchCall, Shadow, in_share, mode_of
from reranker.service.settings import Limits, ServiceSettings
from reranker.service.state import Breaker
from reranker.service.telemetry import JsonFormatter, Metrics, configure_logs
from reranker.service.work import Work
from tests.engines.scripted import ScriptedServer, whole


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fails() -> None:
    raise EngineUnavailable("no answer")


def rejects() -> None:
    raise EngineRejected("bad body")


def test_the_breaker_opens_after_its_number_of_failures_in_a_row_and_tries_again_with_one_call() -> None:
    clock, calls = Clock(), list[int]()
    breaker = Breaker(3, 2.0, clock, lambda: calls.append(1))
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="no answer"):
            breaker.call(fails)
    assert breaker.call(lambda: 7) == 7
    for _ in range(3):
        with pytest.raises(EngineUnavailable, match="no answer"):
            breaker.call(fails)
    assert breaker.is_open and len(calls) == 5
    clock.now += 1.5
    with pytest.raises(EngineUnavailable, match="no requests are sent to it") as told:
        breaker.call(lambda: 7)
    assert told.value.retry_after_s == pytest.approx(0.5)
    assert len(calls) == 5
    clock.now += 0.6
    inner: list[str] = []

    def probe() -> int:
        with pytest.raises(EngineUnavailable, match="no requests are sent to it"):
            breaker.call(lambda: 8)
        inner.append("refused")
        return 9

    assert breaker.call(probe) == 9
    assert inner == ["refused"] and not breaker.is_open


def test_a_probe_that_does_not_end_is_not_waited_for() -> None:
    clock = Clock()
    breaker = Breaker(1, 2.0, clock)
    with pytest.raises(EngineUnavailable):
        breaker.call(fails)
    clock.now += 2.1

    def probe() -> int:
        clock.now += 2.1
        return breaker.call(lambda: 7)

    assert breaker.call(probe) == 7 and not breaker.is_open


def test_a_probe_that_fails_begins_the_pause_anew() -> None:
    clock = Clock()
    breaker = Breaker(1, 2.0, clock)
    with pytest.raises(EngineUnavailable):
        breaker.call(fails)
    clock.now += 2.1
    with pytest.raises(EngineUnavailable, match="no answer"):
        breaker.call(fails)
    clock.now += 1.0
    with pytest.raises(EngineUnavailable, match="no requests are sent to it"):
        breaker.check()
    clock.now += 1.1
    breaker.check()


@pytest.mark.parametrize("data", [{"timed_out": True}, {"status": 500, "error_type": "x"}, {"status": 503}])
def test_what_a_caller_can_bring_about_opens_no_breaker_but_raises_a_doubt(data: dict[str, Any]) -> None:
    failed, doubted, clock = list[int](), list[int](), Clock()
    breaker = Breaker(1, 2.0, clock, lambda: failed.append(1), lambda: doubted.append(1))

    def slow() -> None:
        raise EngineUnavailable("too slow", **data)

    for n in range(1, 4):
        with pytest.raises(EngineUnavailable, match="too slow"):
            breaker.call(slow)
        assert len(doubted) == n
    assert not breaker.is_open and not failed
    with pytest.raises(EngineUnavailable, match="too slow"):
        breaker.call(slow, probe=True)
    assert breaker.is_open and failed == [1], "the service's own search is known to be good"


def test_two_searches_of_the_services_own_in_a_row_open_a_breaker() -> None:
    breaker = Breaker(5, 2.0, Clock())

    def slow() -> None:
        raise EngineUnavailable("too slow", timed_out=True)

    for probes, is_open in ((1, False), (2, True)):
        with pytest.raises(EngineUnavailable, match="too slow"):
            breaker.call(slow, probe=True)
        assert breaker.is_open == is_open, probes


def test_a_callers_slow_search_neither_opens_nor_closes_a_breaker_that_is_half_open() -> None:
    clock = Clock()
    breaker = Breaker(1, 2.0, clock)

    def slow() -> None:
        raise EngineUnavailable("too slow", timed_out=True)

    with pytest.raises(EngineUnavailable):
        breaker.call(fails)
    clock.now += 2.1
    with pytest.raises(EngineUnavailable, match="too slow"):
        breaker.call(slow)
    assert breaker.is_open
    breaker.check()  # the next one may try at once
    breaker.call(lambda: None)
    assert not breaker.is_open


def test_an_engine_that_refuses_a_request_is_there() -> None:
    breaker = Breaker(2, 1.0, Clock())
    for function in (fails, rejects, fails, rejects):
        with pytest.raises((EngineUnavailable, EngineRejected)):
            breaker.call(function)
    assert not breaker.is_open


def test_a_call_that_never_asked_the_engine_says_nothing_of_it() -> None:
    clock = Clock()
    breaker = Breaker(2, 1.0, clock)

    def unasked() -> int:
        raise InputError("no such version")

    for _ in range(2):
        with pytest.raises(InputError):
            breaker.call(unasked)
        with pytest.raises(EngineUnavailable):
            breaker.call(fails)
    assert breaker.is_open
    clock.now += 1.5
    with pytest.raises(InputError):
        breaker.call(unasked)
    assert breaker.is_open
    assert breaker.call(lambda: 3) == 3 and not breaker.is_open


def test_a_programming_error_in_the_probe_does_not_leave_the_breaker_half_open() -> None:
    clock = Clock()
    breaker = Breaker(1, 1.0, clock)
    with pytest.raises(EngineUnavailable):
        breaker.call(fails)
    clock.now += 1.5
    with pytest.raises(ZeroDivisionError):
        breaker.call(lambda: 1 // 0)
    assert breaker.call(lambda: 3) == 3


def test_work_waits_for_a_thread_and_gives_up_in_time() -> None:
    async def scenario() -> tuple[Any, ...]:
        work, release = Work(1), threading.Event()
        first = asyncio.create_task(work.in_thread(Deadline(5.0), lambda: release.wait(5)))
        await asyncio.sleep(0.05)
        started = time.perf_counter()
        with pytest.raises(ServiceError) as late:
            await work.in_thread(Deadline(0.2), lambda: 1)
        waited = time.perf_counter() - started
        second = asyncio.create_task(work.in_thread(Deadline(5.0), lambda: 2))
        await asyncio.sleep(0.05)
        state = (work.busy, work.waiting)
        release.set()
        results = (await first, await second)
        await asyncio.sleep(0.01)
        work.close()
        return late.value, waited, state, results, work.busy, work.waiting

    error, waited, state, results, busy, waiting = asyncio.run(scenario())
    assert error.status_code == 503 and error.kind == "overloaded" and error.headers["Retry-After"] == "1"
    assert 0.05 < waited < 2.0
    assert state == (1, 1) and results == (True, 2) and (busy, waiting) == (0, 0)


def test_work_that_does_not_end_is_left_and_keeps_its_thread() -> None:
    async def scenario() -> tuple[ServiceError, int, int]:
        work, release = Work(1), threading.Event()
        with pytest.raises(ServiceError) as late:
            await work.in_thread(Deadline(0.1), lambda: release.wait(5))
        busy = work.busy
        release.set()
        value = await work.in_thread(Deadline(5.0), lambda: 4)
        work.close()
        return late.value, busy, value

    error, busy, value = asyncio.run(scenario())
    assert error.status_code == 503 and error.kind == "deadline"
    assert busy == 1 and value == 4


def test_work_that_cannot_begin_keeps_no_thread() -> None:
    async def scenario() -> tuple[ServiceError, int, int]:
        work = Work(1)
        work.close()
        for _ in range(3):
            with pytest.raises(ServiceError) as refused:
                await work.in_thread(Deadline(0.2), lambda: 1)
        return refused.value, work.busy, work.waiting

    error, busy, waiting = asyncio.run(scenario())
    assert (error.status_code, error.kind, busy, waiting) == (503, "stopping", 0, 0)


def test_errors_of_work_arrive_as_they_are() -> None:
    async def scenario() -> None:
        work = Work(1)
        with pytest.raises(EngineRejected):
            await work.in_thread(Deadline(1.0), rejects)
        assert await work.in_thread(Deadline(1.0), lambda: 1) == 1
        work.close()

    asyncio.run(scenario())


def test_a_key_is_found_by_its_hash_alone(tmp_path: Path) -> None:
    (key, line), (other, second) = new_key("shop", "search"), new_key("ops", "admin")
    assert key != other and key not in line
    file = tmp_path / "keys"
    file.write_text(f"# keys of the shop\n{line}\n\n{second}  # operators\n")
    keys = ApiKeys.read(file)
    found = keys.find(key)
    assert found is not None and (found.name, found.role) == ("shop", "search")
    assert keys.find(key[:-1]) is None and keys.find("") is None and keys.find(key + "x") is None


@pytest.mark.parametrize(
    "line",
    ["shop search 00", "shop boss sha256:" + "0" * 64, "sha256:" + "0" * 64, "a b search sha256:" + "0" * 64, ""],
)
def test_a_bad_key_file_is_refused_without_showing_it(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError) as told:
        ApiKeys.read(file)
    assert "0" * 64 not in str(told.value)


def test_a_key_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ApiKeys.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({b"authorization": b"Bearer abc"}, "abc"),
        ({b"authorization": b"bearer  abc "}, "abc"),
        ({b"x-api-key": b"abc"}, "abc"),
        ({b"authorization": b"Basic abc"}, None),
        ({b"authorization": b"Bearer "}, None),
        ({b"authorization": b"Bearer " + b"a" * 500}, None),
        ({}, None),
    ],
)
def test_where_a_key_is_read_from(headers: dict[bytes, bytes], key: str | None) -> None:
    assert presented_key(headers) == key


@pytest.mark.parametrize(
    ("role", "opens", "closed"),
    [
        ("search", ["/search", "/v2/rerank", "/events", "/metrics"], ["/admin/reload"]),
        ("events", ["/events"], ["/search", "/admin/reload", "/eventsx", "/metrics"]),
        ("admin", ["/search", "/events", "/admin/reload"], []),
    ],
)
def test_what_a_role_opens(role: str, opens: list[str], closed: list[str]) -> None:
    assert all(may(role, path) for path in opens)
    assert not any(may(role, path) for path in closed)


@pytest.mark.parametrize(
    "change",
    [
        {"percent": 100.1},
        {"percent": -1.0},
        {"poll_s": 0.0},
        {"breaker_failures": 0},
        {"tls_cert": Path("a")},
        {"host": "0.0.0.0"},
        {"host": "shop.example"},
        {"rerank": RerankSettings(deadline_ms=None)},
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServiceSettings(index="docs", **change)


@pytest.mark.parametrize("change", [{"host": "::1"}, {"host": "0.0.0.0", "without_keys": True}, {"host": "localhost"}])
def test_hosts_that_need_no_keys(change: dict[str, Any]) -> None:
    assert ServiceSettings(index="docs", **change).deadline_s == 1.0


@pytest.mark.parametrize("change", [{"at_once": 0}, {"max_body_bytes": -1}, {"max_buffered_bytes": 10}])
def test_limits_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**change)


def test_sessions_are_drawn_in_the_share_asked_for_and_stay_drawn() -> None:
    sessions = [f"s{number}" for number in range(4000)]
    drawn = {one for one in sessions if in_share(one, 30.0)}
    assert 0.27 < len(drawn) / len(sessions) < 0.33
    assert drawn == {one for one in sessions if in_share(one, 30.0)}
    assert drawn < {one for one in sessions if in_share(one, 60.0)}
    assert not any(in_share(one, 0.0) for one in sessions) and all(in_share(one, 100.0) for one in sessions)
    assert drawn != {one for one in sessions if in_share(one, 30.0, EXPLORE_SALT)}


def test_a_session_stays_in_its_group_in_every_version() -> None:
    assert [number for number in range(20) if in_share(f"s{number}", 30.0)] == [5, 16, 17, 18]
    explored = [number for number in range(20) if in_share(f"s{number}", 30.0, EXPLORE_SALT)]
    assert explored == [4, 6, 10, 11, 12, 14, 15, 16, 17, 18]


def test_searches_without_a_session_are_in_the_same_group_for_every_spelling() -> None:
    settings = ServiceSettings("idx", percent=50.0)
    modes = [
        {
            mode_of(settings, MODES, SearchCall(text, None, None, None, False, None, None, None, False, Deadline(1.0)))
            for text in (f"Boot {number}", f" boot  {number}")
        }
        for number in range(50)
    ]
    assert {"control"} in modes and {"rerank"} in modes and all(len(of_query) == 1 for of_query in modes)


def test_every_kind_of_reason_is_shown_from_the_start_at_0() -> None:
    metrics = Metrics()
    assert metrics.counts(metrics.fallbacks) == {kind.value: 0 for kind in ReasonKind}
    assert {kind.value for kind in ReasonKind} == {
        "deadline",
        "no_model",
        "no_store",
        "empty_query",
        "unscored",
        "documents",
        "past_window",
        "switched_off",
        "control",
        "shadow",
        "error",
        "not_rerankable",
    }


def test_a_copied_error_has_its_reason() -> None:
    error = copy.copy(FallbackError(ReasonKind.DEADLINE, "too late"))
    assert error.reason == Reason(ReasonKind.DEADLINE, "too late") and str(error.reason) == "too late"


def test_figures_are_made_once_for_equal_labels() -> None:
    metrics = Metrics()
    assert metrics.child(metrics.refused, "a") is metrics.child(metrics.refused, "a")
    metrics.child(metrics.refused, "a").inc(2)
    assert b'ssi_refused_total{cause="a"} 2.0' in metrics.text()


@pytest.mark.parametrize(("seconds", "value"), [(0.0, "1"), (0.2, "1"), (1.2, "2"), (59.5, "60")])
def test_retry_after_is_in_whole_seconds(seconds: float, value: str) -> None:
    assert retry_after(seconds) == value


@pytest.fixture
def logged() -> Iterator[Callable[[], list[str]]]:
    stream, logger = io.StringIO(), logging.getLogger("reranker.test")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel("INFO")
    logger.propagate = False
    yield lambda: stream.getvalue().splitlines()
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.fixture
def configured() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    stream, root, own = io.StringIO(), logging.getLogger(), logging.getLogger("reranker")
    before = (list(root.handlers), root.level, own.level)
    configure_logs(stream, "DEBUG")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def test_libraries_log_no_more_than_warnings_without_values(configured: Callable[[], list[dict[str, Any]]]) -> None:
    with ScriptedServer() as server:
        engine = open_engine(server.spec)
        server.script("_search", whole(400, "canary_4711"))
        with pytest.raises(EngineRejected):
            engine.search("canary-4711", {"query": {"match": {"text": "canary-4711"}}})
    library = logging.getLogger("urllib3.connectionpool")
    library.debug("%s %s", "POST", "canary-4711")
    library.warning("Connection pool is full, discarding connection: %s", "canary-4711")
    library.error("Task exception was never retrieved: canary-4711")
    logging.getLogger("reranker.test").debug("own")
    assert "canary" not in json.dumps(configured())
    assert [line["event"] for line in configured()] == [
        "Connection pool is full, discarding connection: %s",
        "urllib3.connectionpool",
        "own",
    ]


def test_a_log_line_is_one_json_object_without_control_characters(logged: Callable[[], list[str]]) -> None:
    logger = logging.getLogger("reranker.test")
    logger.info("one\r\ntwo\x1b[31m", extra={"ssi": {"version": "a\nb"}})
    try:
        raise ValueError("canary@example.org")
    except ValueError:
        logger.exception("it failed")
    lines = logged()
    assert len(lines) == 2
    assert all(" " <= character < "\x7f" for line in lines for character in line)
    assert json.loads(lines[0])["event"] == "one\r\ntwo\x1b[31m" and json.loads(lines[0])["version"] == "a\nb"
    told = json.loads(lines[1])
    assert told["error"] == "ValueError" and told["at"][0].startswith("test_small_parts.py:")
    assert "canary" not in lines[1]


def test_searches_that_wait_for_the_shadow_at_the_end_are_logged_as_shown() -> None:
    begun, logged = asyncio.Event(), list[Any]()

    async def search(_: SearchCall) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        shadow = Shadow(search, 1.0, Metrics(), logged.append)
        call = SearchCall("q", None, None, None, False, None, None, None, False, Deadline(1.0))
        for number in range(5):
            shadow.submit(call, {"query_id": str(number)})
        await begun.wait()
        shadow.close()

    asyncio.run(scenario())
    assert [row["query_id"] for row in logged] == ["0", "1", "2", "3", "4"]


def test_a_search_that_the_shadow_cannot_score_is_logged_as_shown() -> None:
    logged = list[Any]()

    async def scenario(error: Exception) -> None:
        async def search(_: SearchCall) -> Any:
            raise error

        shadow = Shadow(search, 1.0, Metrics(), logged.append)
        call = SearchCall("q", None, None, None, False, None, None, None, False, Deadline(1.0))
        shadow.submit(call, {"query_id": type(error).__name__})
        while not logged:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    for error in (EngineUnavailable("gone"), ServiceError(503, "busy"), ZeroDivisionError()):
        logged.clear()
        asyncio.run(scenario(error))
        assert [row["query_id"] for row in logged] == [type(error).__name__]
