"""What the service is put through, with figures as results: asserted by tests, printed by benchmarks.

Times are of this machine, clients included: with two cores for service, engine and clients, a busy client sees its own
delays.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reranker.engines.protocol import Engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import Release, update_control
from reranker.rerank import RerankedPage, Reranker, RerankSettings
from tests.live.helpers import ROOT
from tests.live.load import HOST, Client, Reply, Tally, closed_loop, open_loop
from tests.live.service_process import ServiceProcess
from tests.served import Served, model_of

QUERIES = [f"word{a} word{b}" for a in range(12) for b in (3, 11, 29)]
SWAP_SETTINGS = RerankSettings(window=30, deadline_ms=None)
SWAP_OPTIONS = ("--window", "30", "--deadline-ms", "20000")
"""Of the service whose versions are swapped: many small searches, none of which is given up."""
SWAP_POLLS = {"poll_s": 0.1}
"""Settings of the same service that are no options."""
PATIENCE_S = 20.0
"""Seconds that a version may take from its promotion until it answers or is refused."""
HEAD = f"POST /search HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n".encode()


def search_body(number: int, **fields: Any) -> bytes:
    """Return the body of the n-th search."""
    return json.dumps({"query": QUERIES[number % len(QUERIES)], "size": 10, **fields}).encode()


# ---- slow clients -------------------------------------------------------------------------------------------------


def slow_clients(service: ServiceProcess, n_each: int, limit_s: float) -> dict[str, float]:
    """Return what a good client saw while others send a byte a second, and when those were closed."""

    async def run() -> dict[str, float]:
        n_fds = service.process.num_fds()
        before = await closed_loop(service.port, "/search", search_body, clients=1, seconds=3)
        command = [sys.executable, "-m", "tests.live.slow_child", str(service.port), str(n_each), str(limit_s)]
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        ended = asyncio.create_task(child.communicate())
        during, client = Tally(), Client(service.port)
        while not ended.done():
            during.add(await client.ask("/search", search_body(len(during.seconds))))
            await asyncio.sleep(0.01)
        client.close()
        longest = float((await ended)[0])
        await asyncio.sleep(0.5)
        return {
            "connections": 2 * n_each,
            "longest_open_s": longest,
            "good_requests": len(during.seconds),
            "good_failures": len(during.seconds) - during.replies[200],
            "p99_before_s": before.p(99),
            "p99_during_s": during.p(99),
            "fds_left": service.process.num_fds() - n_fds,
        }

    return asyncio.run(run())


# ---- oversize -----------------------------------------------------------------------------------------------------


def _send(service: ServiceProcess, head: bytes, chunks: list[bytes]) -> tuple[int, float]:
    """Send a request raw; return status (0 where the connection broke without one) and seconds."""
    started = time.perf_counter()
    with socket.create_connection((HOST, service.port), timeout=10) as connection:
        answer = b""
        try:
            connection.sendall(head)
            for chunk in chunks:
                connection.sendall(chunk)
        except OSError:
            answer = b""
        try:
            answer = connection.recv(4096)
        except OSError:
            answer = b""
    return (int(answer.split()[1]) if answer.startswith(b"HTTP/1.1") else 0), time.perf_counter() - started


def oversize(service: ServiceProcess, megabytes: int) -> dict[str, dict[str, float]]:
    """Return status, seconds and growth of memory in bytes for each kind of too much."""
    chunk = b"a" * 65536
    n = megabytes * 16
    chunked = f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"
    kinds: dict[str, Callable[[], tuple[int, float]]] = {
        "body with length": lambda: _send(service, HEAD + f"Content-Length: {n * 65536}\r\n\r\n".encode(), [chunk] * n),
        "body in chunks": lambda: _send(service, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", [chunked] * n),
        "gzip bomb": lambda: _send(
            service, HEAD + b"Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n", [b"\x1f\x8b" + b"0" * 8]
        ),
        "JSON 100,000 deep": lambda: _asked(service, "/search", b'{"query": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "1,000,000 candidates": lambda: _asked(
            service, "/v2/rerank", json.dumps({"model": "x", "query": "a", "documents": ["a"] * 1_000_000}).encode()
        ),
        "5,000 digits": lambda: _asked(service, "/search", b'{"query": "a", "size": ' + b"9" * 5000 + b"}"),
        "200,000 words": lambda: _asked(service, "/search", json.dumps({"query": "word1 " * 200_000}).encode()),
        "query of 1 MB": lambda: _asked(service, "/search", json.dumps({"query": "a" * 1_000_000}).encode()),
        "header line of 64 KB": lambda: _send(service, HEAD + b"X-A: " + b"a" * 65536 + b"\r\n\r\n", []),
        "headers of 1 MB": lambda: _send(service, HEAD + b"X-A: " + b"a" * 1_000_000 + b"\r\n\r\n", []),
    }
    rss = service.rss
    found: dict[str, dict[str, float]] = {}
    for name, ask in kinds.items():
        status, seconds = ask()
        found[name] = {"status": status, "seconds": seconds, "grown_bytes": service.rss - rss}
    return found


def _asked(service: ServiceProcess, path: str, body: bytes) -> tuple[int, float]:
    started = time.perf_counter()
    status, _ = service.ask("POST", path, body)
    return status, time.perf_counter() - started


# ---- overload and the end -----------------------------------------------------------------------------------------


def overload(service: ServiceProcess, factor: float, seconds: float, clients: int) -> dict[str, Any]:
    """Return capacity in a closed loop, what an open loop of ``factor`` times that saw, and the time after it."""

    async def run() -> dict[str, Any]:
        await closed_loop(service.port, "/search", search_body, clients=clients, seconds=1)
        normal = await closed_loop(service.port, "/search", search_body, clients=1, seconds=3)
        peak = await closed_loop(service.port, "/search", search_body, clients=clients, seconds=min(seconds, 10.0))
        capacity = len(peak.good_seconds) / min(seconds, 10.0)
        loaded = await open_loop(service.port, "/search", search_body, rate=factor * capacity, seconds=seconds)
        await asyncio.sleep(2.0)
        after = await closed_loop(service.port, "/search", search_body, clients=1, seconds=3)
        return {
            "capacity_per_s": capacity,
            "asked": len(loaded.seconds),
            "replies": dict(loaded.replies),
            "goodput_share": len(loaded.good_seconds) / seconds / capacity,
            "longest_s": max(loaded.seconds),
            "p99_s": float(np.percentile(loaded.seconds, 99)),
            "client_lag_s": loaded.lag_s,
            "without_retry_after": loaded.without_retry_after,
            "p99_normal_s": normal.p(99),
            "p99_after_s": after.p(99),
            "replies_after": dict(after.replies),
        }

    return asyncio.run(run())


def stop_under_load(service: ServiceProcess, clients: int) -> dict[str, Any]:
    """Return exit status, seconds from SIGTERM to the end, and what clients saw of requests sent before it."""
    replies: list[tuple[float, Reply]] = []
    told: dict[str, float] = {}

    async def run() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        stopped = False

        async def one() -> None:
            client, number = Client(service.port), 0
            while not stopped:
                started = time.perf_counter()
                reply = await client.ask("/search", search_body(number))
                replies.append((started, reply))
                number += 1
                if reply.status == 0:
                    return
            client.close()

        tasks = [asyncio.create_task(one()) for _ in range(clients)]
        await asyncio.sleep(2.0)
        told["at"] = time.perf_counter()
        status, seconds = await loop.run_in_executor(None, service.terminate)
        stopped = True
        await asyncio.gather(*tasks)
        return status, seconds

    status, seconds = asyncio.run(run())
    before = [reply for started, reply in replies if started < told["at"]]
    in_flight = [reply for started, reply in replies if started < told["at"] < started + reply.seconds]
    return {
        "exit_status": status,
        "seconds": seconds,
        "answered_before": len(before),
        "in_flight": len(in_flight),
        "in_flight_failed": sum(reply.status not in (200, 429, 503) for reply in in_flight),
    }


# ---- hot swap -----------------------------------------------------------------------------------------------------


def same_encoder(served: Served, seed: int) -> RankingModel:
    """Return a model with the same encoder and another U."""
    model = served.model
    U = model_of(served.documents, seed=seed).U
    return RankingModel(encoder=model.encoder, query_vocabulary=model.query_vocabulary, U=U, identity=1.0)


@dataclass
class Candidates:
    """Model folders to promote: sound ones, damaged ones, and ones made for other vectors."""

    served: Served
    folder: Path
    sound: dict[str, RankingModel] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def add_sound(self, seed: int) -> str:
        """Write a sound model and return its id."""
        model = same_encoder(self.served, seed)
        save_model(model, self.folder / model.model_id[:16])
        self.sound[model.model_id] = model
        return model.model_id

    def add_damaged(self, seed: int) -> str:
        """Write a model with one bit flipped."""
        model = same_encoder(self.served, seed)
        place = self.folder / model.model_id[:16]
        save_model(model, place)
        (file,) = place.glob("tensors-*")
        content = bytearray(file.read_bytes())
        content[(seed * 7919) % len(content)] ^= 1 << (seed % 8)
        file.write_bytes(content)
        self.refused.append(model.model_id)
        return model.model_id

    def add_foreign(self, seed: int) -> str:
        """Write a model of another encoder, whose vectors the index does not have."""
        model = model_of(self.served.documents, seed=seed, n_dims=5)
        save_model(model, self.folder / model.model_id[:16])
        self.refused.append(model.model_id)
        return model.model_id

    def forget(self, model_id: str) -> None:
        """Remove a folder that is no longer wanted."""
        shutil.rmtree(self.folder / model_id[:16], ignore_errors=True)


def promote(engine: Engine, index: str, model_id: str, encoder_id: str) -> None:
    """Make a version live."""
    update_control(engine, index, lambda record: record.with_release(Release(model_id, encoder_id)).with_live(model_id))


def hot_swaps(
    service: ServiceProcess, served: Served, candidates: Candidates, n_swaps: int, connections: int, pause_s: float
) -> dict[str, Any]:
    """Promote one version after the other under load; return what clients saw, and answers that are of no one version.

    Every 4th candidate is damaged, every 5th made for other vectors.
    """
    answers: list[tuple[int, dict[str, Any]]] = []
    rss_before = service.rss
    load: dict[str, Tally] = {}

    def keep(number: int, reply: Reply) -> None:
        if reply.status == 200:
            answers.append((number, reply.value))

    done = threading.Event()

    async def clients() -> None:
        load["steady"] = await closed_loop(service.port, "/search", search_body, clients=connections, seconds=4)
        task = asyncio.create_task(asyncio.to_thread(promotions))
        load["swapping"] = Tally()
        while not task.done():
            part = await closed_loop(
                service.port, "/search", search_body, clients=connections, seconds=2, on_reply=keep
            )
            load["swapping"].replies.update(part.replies)
            load["swapping"].good_seconds.extend(part.good_seconds)
        await task

    def promotions() -> None:
        for number in range(1, n_swaps + 1):
            if number % 4 == 0:
                model_id = candidates.add_damaged(1000 + number)
            elif number % 5 == 0:
                model_id = candidates.add_foreign(2000 + number)
            else:
                model_id = candidates.add_sound(3000 + number)
            looked_at, end = service.figure("ssi_swaps_total"), time.monotonic() + PATIENCE_S
            promote(served.engine, served.index, model_id, served.model.encoder_id)
            while service.figure("ssi_swaps_total") == looked_at and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(pause_s)
        done.set()

    asyncio.run(clients())
    wrong, versions = _check_versions(served, candidates, answers)
    n_fallbacks = sum(answer["fallback"] for _, answer in answers)
    swapping = load["swapping"]
    return {
        "swaps_done": service.figure("ssi_swaps_total"),
        "requests": sum(swapping.replies.values()),
        "replies": dict(swapping.replies),
        "failed": sum(count for status, count in swapping.replies.items() if status != 200),
        "versions_seen": versions,
        "wrong_answers": wrong,
        "fallbacks": n_fallbacks,
        "p99_steady_s": load["steady"].p(99),
        "p99_swapping_s": swapping.p(99),
        "rss_ratio": service.rss / rss_before,
        "finished": done.is_set(),
    }


def _check_versions(
    served: Served, candidates: Candidates, answers: list[tuple[int, dict[str, Any]]]
) -> tuple[int, int]:
    """Return how many answers are not exactly one sound version's, and how many versions answered."""
    known = {served.model.model_id: served.model, **candidates.sound}
    pages: dict[tuple[str, str], RerankedPage] = {}
    wrong = 0
    for number, answer in answers:
        model = known.get(answer["model_id"])
        if model is None:
            wrong += 1
            continue
        if answer["fallback"]:
            # The engine's own order, whole: a deadline passed, or the model could not score.
            ranks = [hit["first_stage_rank"] for hit in answer["hits"]]
            wrong += ranks != list(range(1, len(ranks) + 1))
            continue
        query = QUERIES[number % len(QUERIES)]
        key = (answer["model_id"], query)
        if key not in pages:
            reranker = Reranker(served.engine, served.index, model, settings=SWAP_SETTINGS)
            pages[key] = reranker.search(query, size=10)
        expected = [(hit.id, hit.score, hit.model_score) for hit in pages[key].hits]
        wrong += [(hit["id"], hit["score"], hit["model_score"]) for hit in answer["hits"]] != expected
    return wrong, len({answer["model_id"] for _, answer in answers})


# ---- an engine that stops -----------------------------------------------------------------------------------------


def engine_stops(
    service: ServiceProcess, stop: Callable[[], None], go_on: Callable[[], None], pause_s: float, deadline_s: float
) -> dict[str, Any]:
    """Return what clients saw while the engine stood still, and how soon the first good answer came after it."""

    async def run() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        # More clients than threads: the connections that the service keeps to its engine are all there.
        await closed_loop(service.port, "/search", search_body, clients=12, seconds=3)
        n_fds, n_threads = service.process.num_fds(), service.process.num_threads()
        await loop.run_in_executor(None, stop)
        during = await closed_loop(service.port, "/search", search_body, clients=4, seconds=pause_s)
        failures = service.figure("ssi_engine_failures_total")
        await loop.run_in_executor(None, go_on)
        started, client, first_good = time.perf_counter(), Client(service.port), float("inf")
        while time.perf_counter() - started < 20:
            if (await client.ask("/search", search_body(0))).status == 200:
                first_good = time.perf_counter() - started
                break
            await asyncio.sleep(0.05)
        client.close()
        await closed_loop(service.port, "/search", search_body, clients=4, seconds=2)
        await asyncio.sleep(1.0)
        return {
            "replies": dict(during.replies),
            "longest_s": max(during.seconds),
            "over_deadline_s": max(during.seconds) - deadline_s,
            "slow_answers": sum(seconds > 0.5 * deadline_s for seconds in during.seconds),
            "engine_failures": failures,
            "without_retry_after": during.without_retry_after,
            "first_good_after_s": first_good,
            "threads_left": service.process.num_threads() - n_threads,
            "fds_left": service.process.num_fds() - n_fds,
        }

    return asyncio.run(run())
