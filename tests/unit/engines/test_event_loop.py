"""Synchronous code on an event loop: what it waits for, its context, and how it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import threading

import pytest

from reranker.engines.event_loop import in_greenlet, in_thread, is_on_loop, result_of

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def later(value: int, event: asyncio.Event | None = None) -> int:
    if event is not None:
        await event.wait()
    await asyncio.sleep(0)
    return value


def test_code_waits_and_the_loop_goes_on() -> None:
    async def scenario() -> tuple[int, list[str]]:
        event, order = asyncio.Event(), list[str]()

        def code() -> int:
            order.append("asks")
            value = result_of(later(3, event))
            order.append("answered")
            return value + result_of(later(4))

        task = asyncio.create_task(in_greenlet(code))
        await asyncio.sleep(0)
        order.append("loop")
        event.set()
        return await task, order

    assert asyncio.run(scenario()) == (7, ["asks", "loop", "answered"])


def test_many_wait_at_the_same_time_each_in_its_own_context() -> None:
    async def scenario() -> list[str]:
        event = asyncio.Event()

        def code() -> str:
            before = who.get()
            token = who.set(f"{before}!")
            result_of(later(1, event))
            said = who.get()
            who.reset(token)
            return f"{said} {who.get()}"

        async def ask(name: str) -> str:
            who.set(name)
            return await in_greenlet(code)

        tasks = [asyncio.create_task(ask(f"caller {number}")) for number in range(5)]
        await asyncio.sleep(0)
        event.set()
        return list(await asyncio.gather(*tasks))

    assert asyncio.run(scenario()) == [f"caller {number}! caller {number}" for number in range(5)]


def test_errors_go_both_ways() -> None:
    async def fails() -> int:
        raise KeyError("answer")

    def caught() -> str:
        try:
            return str(result_of(fails()))
        except KeyError:
            return "caught"

    assert asyncio.run(in_greenlet(caught)) == "caught"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_greenlet(lambda: 1 // 0))
    with pytest.raises(KeyError, match="answer"):
        asyncio.run(in_greenlet(lambda: result_of(fails())))


def test_code_that_is_cancelled_cleans_up_where_it_waits() -> None:
    async def scenario() -> list[str]:
        left, never = list[str](), asyncio.Event()

        def code() -> None:
            try:
                result_of(later(1, never))
            finally:
                left.append("cleaned up")

        task = asyncio.create_task(in_greenlet(code))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return left

    assert asyncio.run(scenario()) == ["cleaned up"]


def test_work_in_the_meantime_is_done_after_the_request_is_sent() -> None:
    order = list[str]()

    async def request() -> int:
        order.append("sent")
        await asyncio.sleep(0.01)
        order.append("answered")
        return 5

    def code() -> int:
        return result_of(request(), lambda: order.append("worked"))

    assert asyncio.run(in_greenlet(code)) == 5 and order == ["sent", "worked", "answered"]
    assert result_of(request(), lambda: None) == 5, "the same in a command"


def test_a_request_that_is_cancelled_during_the_work_is_not_left_running() -> None:
    async def scenario() -> bool:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def request() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(in_greenlet(lambda: result_of(request(), lambda: None)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 10.0)
        return True

    assert asyncio.run(scenario())


def test_long_work_leaves_the_loop_and_has_no_rights_of_the_caller() -> None:
    async def scenario() -> tuple[str, bool, bool]:
        who.set("caller")
        return await in_greenlet(lambda: in_thread(seen))

    def seen() -> tuple[str, bool, bool]:
        return who.get(), is_on_loop(), threading.current_thread() is threading.main_thread()

    assert asyncio.run(scenario()) == ("nobody", False, False)
    assert in_thread(is_on_loop) is False, "elsewhere it is called at once"


def _ask() -> None:
    assert result_of(later(6)) == 6


def test_a_forked_process_asks_by_a_loop_of_its_own() -> None:
    assert result_of(later(6)) == 6
    child = multiprocessing.get_context("fork").Process(target=_ask)
    child.start()
    child.join(30.0)
    assert child.exitcode == 0
