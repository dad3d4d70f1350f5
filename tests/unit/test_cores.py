"""Calls on several cores, and a call that runs meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import Future
from functools import partial

import pytest

from reranker.cores import Abandoned, bounds_of, in_parts, meanwhile, on_cores


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_an_error_on_another_core_is_raised_and_leaves_the_cores_free() -> None:
    def nested(number: int) -> float:
        return sum(on_cores([partial(divide, number, 1), partial(divide, number, 2)]))

    def divide(number: int, by: int) -> float:
        return number / by

    for calls in (
        [partial(divide, 1, 1), partial(divide, 1, 0)],
        [partial(divide, 1, 0), partial(divide, 1, 1)],
    ):
        with pytest.raises(ZeroDivisionError):
            on_cores(calls)
    assert on_cores([partial(nested, number) for number in range(5)]) == [0, 1.5, 3, 4.5, 6]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_has_cores_of_its_own() -> None:
    calls = [partial(abs, number) for number in (-1, -2)]
    assert on_cores(calls) == [1, 2]
    context = multiprocessing.get_context("fork")
    with context.Pool(1) as forked:
        assert forked.apply_async(on_cores, (calls,)).get(timeout=20) == [1, 2]


@pytest.mark.parametrize("n_parts", [1, 2, 7])
def test_parts_cover_everything_in_order(n_parts: int) -> None:
    parts = in_parts(lambda first, last: list(range(first, last)), bounds_of(5, n_parts))
    assert [number for part in parts for number in part] == [0, 1, 2, 3, 4]


def test_a_call_runs_meanwhile_on_one_core_and_leaves_the_others_free() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def call() -> list[int | None]:
        begun.set()
        assert goes_on.wait(20)
        return on_cores([threading.get_ident, threading.get_ident])

    with meanwhile(call) as result:
        assert begun.wait(20)
        assert on_cores([partial(abs, -1), partial(abs, -2)]) == [1, 2]
        goes_on.set()
        threads = set(result.result())
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_an_error_stops_the_call_that_runs_meanwhile() -> None:
    begun, n_rounds = threading.Event(), 0

    def long() -> None:
        nonlocal n_rounds
        while n_rounds < 5_000_000:
            on_cores([begun.set])
            n_rounds += 1

    def fails() -> None:
        with meanwhile(long) as result:
            results.append(result)
            assert begun.wait(20)
            raise ZeroDivisionError

    results: list[Future[None]] = []
    with pytest.raises(ZeroDivisionError):
        fails()
    assert n_rounds
    assert isinstance(results[0].exception(), Abandoned)


def test_an_error_of_the_call_that_runs_meanwhile_is_raised_where_its_result_is_asked_for() -> None:
    with meanwhile(partial(int, "no")) as result, pytest.raises(ValueError, match="no"):
        result.result()
