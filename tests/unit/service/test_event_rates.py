"""Rates of events: token buckets of addresses and sessions, with known answers by a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reranker.service import search
from reranker.service import sink as sinks
from reranker.service.app import ServicePart
from reranker.service.sink import BURST_S, LEAST_BURST, SESSION_SHARE, EventRates
from tests.engines.memory import memory_engine
from tests.services import client_of, service_over, small_index
from tests.unit.service.test_small_parts import Clock


def test_an_address_may_send_a_burst_and_then_its_rate() -> None:
    clock = Clock()
    rates = EventRates(100.0, clock)  # 1,000 at once
    assert rates.wait_s("a", {"": 1000}) == 0.0
    assert rates.wait_s("a", {"": 1}) == pytest.approx(0.01)
    assert rates.wait_s("a", {"": 50}) == pytest.approx(0.5), "what was refused took nothing"
    assert rates.wait_s("b", {"": 1000}) == 0.0, "another address has its own"
    clock.now += 0.5
    assert rates.wait_s("a", {"": 50}) == 0.0
    assert rates.wait_s("a", {"": 1}) == pytest.approx(0.01)
    clock.now += 10_000.0
    assert rates.wait_s("a", {"": 1001}) == pytest.approx(0.01), "it saves up no more than a burst"
    assert rates.wait_s("a", {"": 1000}) == 0.0


def test_a_low_rate_lets_one_full_request_pass() -> None:
    clock = Clock()
    rates = EventRates(0.5, clock)
    assert rates.wait_s("a", {"s": 100}) == 0.0
    assert rates.wait_s("a", {"": 1}) == pytest.approx(2.0)
    assert rates.wait_s("b", {"s": 1}) == pytest.approx(20.0), "a tenth of the rate, from whichever address"
    clock.now += 20.0
    assert rates.wait_s("b", {"s": 1}) == 0.0
    assert rates.wait_s("b", {"s": 1}) == pytest.approx(20.0)


def test_a_session_has_a_share_of_the_rate_and_hinders_no_other() -> None:
    clock = Clock()
    rates = EventRates(200.0, clock)  # 2,000 of an address, 200 of a session
    assert rates.wait_s("a", {"s": 200}) == 0.0
    assert rates.wait_s("a", {"s": 1}) == pytest.approx(0.05)
    assert rates.wait_s("a", {"t": 200, "s": 1}) == pytest.approx(0.05), "none of either is taken"
    assert rates.wait_s("a", {"t": 200}) == 0.0
    assert rates.wait_s("a", {"": 1600}) == 0.0, "events without a session count for the address"
    assert rates.wait_s("a", {"u": 1}) == pytest.approx(0.005)
    clock.now += 0.051
    assert rates.wait_s("a", {"s": 1}) == 0.0


def test_the_longest_wait_counts() -> None:
    rates = EventRates(100.0, Clock())
    assert rates.wait_s("a", {"s": 100, "": 890}) == 0.0
    assert rates.wait_s("a", {"s": 1, "": 19}) == pytest.approx(0.1)
    assert rates.wait_s("a", {"s": 3, "": 17}) == pytest.approx(0.3)


def test_no_rate_is_no_limit_and_keeps_nothing() -> None:
    rates = EventRates(0.0, Clock())
    assert rates.wait_s("a", {"s": 10**9}) == 0.0
    assert not rates._buckets


def test_what_was_quiet_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "KEPT_RATES", 3)
    rates = EventRates(100.0, Clock())
    for address in "abc":
        assert rates.wait_s(address, {"": 1000}) == 0.0
    assert rates.wait_s("a", {"": 0}) == 0.0  # heard again, with nothing
    assert rates.wait_s("d", {"": 1}) == 0.0
    assert [name for _, name in rates._buckets] == ["c", "a", "d"]
    assert rates.wait_s("c", {"": 1}) > 0 and rates.wait_s("a", {"": 1}) > 0, "a refusal forgets nobody"
    assert rates.wait_s("b", {"": 1000}) == 0.0
    assert len(rates._buckets) == 3


STEPS = st.lists(
    st.tuples(
        st.floats(0, 5),
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from(["", "s", "t"]), st.integers(1, 100), min_size=1),
    ),
    max_size=40,
)


@given(STEPS, st.floats(0.5, 50))
def test_no_more_is_taken_than_burst_and_rate_and_what_waits_long_enough_is_taken(steps: Any, rate: float) -> None:
    clock = Clock()
    rates, begun = EventRates(rate, clock), clock.now
    taken: Counter[tuple[str, str]] = Counter()
    for pause, address, sessions in steps:
        clock.now += pause
        wait_s = rates.wait_s(address, sessions)
        possible = sum(sessions.values()) <= LEAST_BURST and all(n <= LEAST_BURST for n in sessions.values())
        if wait_s > 0 and possible:
            clock.now += wait_s * (1 + 1e-9) + 1e-6
            wait_s = rates.wait_s(address, sessions)
            assert wait_s == 0.0
        if wait_s == 0.0:
            taken["address", address] += sum(sessions.values())
            taken.update({("session", name): n for name, n in sessions.items() if name})
        for (kind, _), number in taken.items():
            own = rate * (SESSION_SHARE if kind == "session" else 1.0)
            assert number <= max(own * BURST_S, LEAST_BURST) + own * (clock.now - begun) + 1e-3


def test_a_route_that_has_taken_enough_says_when_to_come_again(tmp_path: Path) -> None:
    written = tmp_path / "ubi.ndjson"
    served = small_index(tmp_path / "index", memory_engine(), n=10)
    state = service_over(served, tmp_path, sink=sinks.ImpressionSink(sinks.FileWriter(written)), events_per_second=20.0)
    state.event_rates = EventRates(20.0, Clock())
    click = {"action_name": "click", "query_id": "q", "event_attributes": {"object": {"object_id": "d"}}}
    client = client_of(state, ServicePart(search.events_router))

    def send(number: int, **who: str) -> Any:
        return client.post("/events", json={"events": [{**click, **who}] * number})

    assert send(100, session_id="s", client_id="c").status_code == send(100, client_id="c").status_code == 202
    for who in ({"session_id": "s"}, {"client_id": "c"}):
        refused = send(10, **who)
        assert refused.status_code == 429 and refused.json()["error"]["type"] == "too_many_events"
        assert refused.headers["retry-after"] == "5"
    assert send(1).headers["retry-after"] == "1", "the address waits less"
    value = state.metrics.registry.get_sample_value("ssi_refused_total", {"cause": "too_many_events"})
    assert value == 3.0
    state.close()
    assert len(written.read_text().splitlines()) == 200
    served.engine.close()
