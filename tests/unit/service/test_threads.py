"""The threads of the service: fair among clients, however slow the work of one of them is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from reranker.deadline import Deadline
from reranker.service.http import ServiceError
from reranker.service.threads import OWN, RECENT_S, SLOW, Threads


class Scene:
    """Threads on a clock that a test moves, with work that ends when the test says so."""

    def __init__(self, n: int) -> None:
        self.now = 100.0
        self.threads = Threads(n, lambda: self.now)
        self.began: list[str] = []
        self.ends: dict[str, list[threading.Event]] = {}
        self.tasks: list[asyncio.Task[Any]] = []

    async def ask(self, client: str, number: int = 1, limit_s: float = 20.0) -> None:
        for _ in range(number):
            end = threading.Event()
            self.ends.setdefault(client, []).append(end)
            self.tasks.append(asyncio.create_task(self.threads.run(Deadline(limit_s), self._work(client, end), client)))
        await self.settle()

    def _work(self, client: str, end: threading.Event) -> Callable[[], bool]:
        def work() -> bool:
            self.began.append(client)
            return end.wait(10)

        return work

    async def end(self, client: str) -> None:
        """End the oldest work of a client."""
        self.ends[client].pop(0).set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0.01)

    def running(self, client: str) -> int:
        known = self.threads._clients.get(client)
        return known.running if known else 0

    async def close(self) -> None:
        for end in (end for ends in self.ends.values() for end in ends):
            end.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.threads.close()


def played(n: int, play: Callable[[Scene], Any]) -> None:
    async def scenario() -> None:
        scene = Scene(n)
        try:
            await play(scene)
        finally:
            await scene.close()
        assert scene.threads.busy == 0 and scene.threads.waiting == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("n", "most"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_a_client_that_is_alone_gets_nearly_all_threads(n: int, most: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("a", n + 2)
        assert scene.running("a") == most == scene.threads.busy and scene.threads.waiting == n + 2 - most

    played(n, play)


def test_another_client_finds_a_thread_at_once_and_half_of_them_soon() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("slow", 20)
        await scene.ask("quick")
        assert scene.running("quick") == 1
        await scene.ask("quick", 3)
        for _ in range(4):
            await scene.end("slow")
        assert scene.running("quick") == 4 and scene.running("slow") == 4
        await scene.end("quick")
        assert scene.running("slow") == 4, "half of the threads are for those that have asked lately"
        scene.now += RECENT_S + 0.1
        for _ in range(3):
            await scene.end("quick")
        await scene.end("slow")
        assert scene.running("slow") == 7, "nobody else is there any more"

    played(8, play)


def test_a_slow_client_gets_an_equal_share_while_others_are_there() -> None:
    async def play(scene: Scene) -> None:
        for name in ("slow", "b", "c"):
            await scene.ask(name)
        slow = scene.threads._clients["slow"]
        slow.weighted_s = SLOW * 20.0 * 0.9
        assert scene.threads._most(slow) == 4
        slow.weighted_s = SLOW * 20.0 * 1.1
        assert scene.threads._most(slow) == 3, "8 threads among three"
        for name in ("d", "e", "f", "g"):
            await scene.ask(name)
        assert scene.threads._most(slow) == 2, "a quarter at least"
        assert scene.threads._most(scene.threads._clients["b"]) == 4, "quick ones keep their half"
        scene.now += RECENT_S + 0.1
        for name in "bcdefg":
            await scene.end(name)
        assert scene.threads._most(slow) == 7, "nobody else is there any more"

    played(8, play)


def test_quick_requests_do_not_hide_slow_ones() -> None:
    async def scenario() -> tuple[float, float]:
        threads = Threads(1)
        for _ in range(3):
            await threads.run(Deadline(60), lambda: time.sleep(0.3), "a")
            for _ in range(20):
                await threads.run(Deadline(60), lambda: None, "a")
        threads.close()
        client = threads._clients["a"]
        return client.mean_s, client.weighted_s

    mean_s, weighted_s = asyncio.run(scenario())
    assert mean_s < weighted_s / 2 and weighted_s > 0.05


def test_work_that_was_given_up_counts_for_a_while() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("b")
        with pytest.raises(ServiceError):
            await scene.threads.run(Deadline(0.1), lambda: time.sleep(0.2), "slow")
        await asyncio.sleep(0.1)
        slow = scene.threads._clients["slow"]
        slow.weighted_s = 0.0
        assert (slow.running, slow.lingering, scene.threads._most(slow)) == (0, 1, 3)
        await asyncio.sleep(0.5)
        assert (slow.lingering, scene.threads._most(slow)) == (0, 4)
        slow.lingering = 4
        await scene.ask("slow")
        assert scene.running("slow") == 0 and scene.threads.expected_wait_s("slow") >= 0.0
        for _ in range(4):
            scene.threads._forget(slow)
        await scene.settle()
        assert scene.running("slow") == 1

    played(8, play)


def test_the_services_own_searches_are_no_other_client() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask(OWN)
        await scene.end(OWN)
        await scene.ask("a", 9)
        assert scene.running("a") == 7
        await scene.ask(OWN)
        assert scene.running(OWN) == 1

    played(8, play)


def test_a_free_thread_goes_to_the_client_that_holds_the_fewest_and_waited_longest() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("a", 2)
        await scene.ask("b", 2)
        await scene.ask("c", 2)
        await scene.ask("a", 3)
        assert scene.began == ["a", "a", "b", "b"], "two of four each"
        await scene.end("a")
        assert scene.began[4:] == ["c"]
        await scene.end("b")
        assert scene.began[5:] == ["a"], "a and c hold one each, and c was served after a"

    played(4, play)


def test_a_client_with_fewer_threads_goes_before_one_that_waited_longer() -> None:
    async def play(scene: Scene) -> None:
        for name, number in (("c", 4), ("a", 3), ("b", 1), ("a", 1), ("b", 1)):
            await scene.ask(name, number)
        await scene.end("c")
        assert (scene.running("a"), scene.running("b")) == (3, 2)

    played(8, play)


def test_who_waits_in_vain_leaves_the_queue() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("a", 2)
        with pytest.raises(ServiceError) as late:
            await scene.threads.run(Deadline(0.1), lambda: 1, "b")
        assert late.value.kind == "overloaded" and scene.threads.waiting == 0
        gone = asyncio.create_task(scene.threads.run(Deadline(20.0), lambda: 1, "b"))
        await scene.settle()
        assert scene.threads.waiting == 1
        gone.cancel()
        await scene.settle()
        assert scene.threads.waiting == 0
        await scene.end("a")
        assert scene.threads.busy == 1, "the thread was not given to somebody who had left"

    played(2, play)


def test_a_client_that_leaves_as_its_turn_comes_gives_the_thread_back() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("a", 2)
        gone = asyncio.create_task(scene.threads.run(Deadline(20.0), lambda: 1, "b"))
        await scene.settle()
        client = scene.threads._clients["a"]
        # Both in one turn of the loop: the thread is granted, and the request is cancelled before it knows.
        scene.threads._n += 1
        scene.threads._start()
        gone.cancel()
        await scene.settle()
        assert gone.cancelled() and scene.threads.busy == client.running == 2

    played(2, play)


def test_the_expected_wait_is_of_the_clients_own_queue() -> None:
    async def play(scene: Scene) -> None:
        threads = scene.threads
        await scene.ask("slow", 12)
        await scene.ask("quick", 5)
        threads._clients["slow"].mean_s, threads._clients["quick"].mean_s = 2.0, 0.1
        assert (scene.running("slow"), scene.running("quick")) == (3, 1) and threads.waiting == 13
        # 9 of 2 s each for half of the threads; of the other client 4 x 2 s go first, and 4 x .1 s of its own.
        assert threads.expected_wait_s("slow") == pytest.approx(9 * 2.0 / 2)
        assert threads.expected_wait_s("quick") == pytest.approx((4 * 2.0 + 4 * 0.1) / 4)
        assert threads.expected_wait_s("new") == 0.0

    played(4, play)


def test_clients_that_have_gone_are_forgotten() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask("stays")
        for number in range(50):
            await scene.threads.run(Deadline(5.0), lambda: 1, f"client {number}")
        assert len(scene.threads._clients) == 51
        scene.now += 2 * RECENT_S
        await scene.threads.run(Deadline(5.0), lambda: 1, "last")
        assert set(scene.threads._clients) == {"stays", "last"}

    played(4, play)
