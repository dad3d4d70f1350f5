"""Models and stores are renamed over the folders that ``ssi serve`` serves, again and again, while it is asked.

``SSI_REPLACEMENTS`` is how often. The service is a process of its own over the embedded engine: no server is needed.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reranker.engines import open_engine
from reranker.models.model_folder import save_model
from reranker.models.ranking_model import RankingModel
from tests.engines.memory import memory_engine
from tests.live.service_process import ServiceProcess
from tests.served import model_of, random_documents, serve

pytestmark = [pytest.mark.live, pytest.mark.slow]
N_REPLACEMENTS = int(os.environ.get("SSI_REPLACEMENTS", "10"))
N_CLIENTS = 3
POLL_S = 0.05
"""Seconds between two polls for what was replaced."""
SWAP_S = 30.0
"""Seconds until the newest version must answer."""
REQUEST = {"query": "word3 word11 word20", "size": 30}


class Source:
    """Two versions, each with its model and store: another U, and other vectors of the same documents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        documents = random_documents(300)
        engine = open_engine(f"tantivy:{path}/index")
        self.first = model_of(documents)
        served = serve(engine, "docs", path / "first", documents, self.first)
        engine.close()
        shutil.move(served.store_path, path / "first-store")
        # The same ids with other texts: other vectors under the same encoder, in a store of the same generation.
        other = serve(memory_engine(), "docs", path / "second", random_documents(300, seed=9), self.first)
        other.engine.close()
        shutil.move(other.store_path, path / "second-store")
        U = model_of(documents, seed=7).U
        self.second = RankingModel(encoder=self.first.encoder, query_vocabulary=self.first.query_vocabulary, U=U)
        save_model(self.first, path / "first-model")
        save_model(self.second, path / "second-model")

    def options(self, served: Path) -> list[str]:
        return [
            "--engine",
            f"tantivy:{self.path}/index",
            "--index",
            "docs",
            "--model",
            str(served / "model"),
            "--route",
            "beside",
            "--store",
            str(served / "store"),
            "--deadline-ms",
            "20000",
        ]

    def replace(self, part: str, version: str, served: Path) -> None:
        """Replace a served model or store as documented: copy the new folder next to it, then rename both."""
        served.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=served))
        shutil.copytree(self.path / f"{version}-{part}", work / "next")
        if (served / part).exists():
            (served / part).rename(work / "old")
        (work / "next").rename(served / part)
        shutil.rmtree(work)


class Clients:
    """Threads that ask for searches until they are stopped, and count what they were answered."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._stop = threading.Event()
        self.answers: Counter[tuple[Any, ...]] = Counter()
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(N_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                status, value = self._service.ask("POST", "/search", REQUEST, timeout=30.0)
                answer = order_of(status, value)
            except Exception as error:
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}")
                continue
            with self._lock:
                self.answers[answer] += 1

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def polling(service: ServiceProcess, workers: int) -> Iterator[None]:
    """Make all processes of a service poll every `POLL_S`, by SIGHUP, as soon as all are listening."""
    end = time.monotonic() + SWAP_S
    while service.log.count('"event": "listening"') < workers and time.monotonic() < end:
        time.sleep(0.05)
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(POLL_S):
            service.process.send_signal(signal.SIGHUP)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def order_of(status: int, value: Any) -> tuple[Any, ...]:
    return (status, value.get("reranked"), value.get("model_id"), tuple(hit["id"] for hit in value.get("hits", ())))


def answered(service: ServiceProcess) -> tuple[Any, ...]:
    return order_of(*service.ask("POST", "/search", REQUEST, timeout=30.0))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def expected(source: Source, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return the right answer of each model over each store, that of a service of its own."""
    answers = {}
    for model in ("first", "second"):
        for store in ("first", "second"):
            served = tmp_path_factory.mktemp(f"{model}-{store}")
            source.replace("model", model, served)
            source.replace("store", store, served)
            with ServiceProcess(*source.options(served)) as service:
                answers[model, store] = answered(service)
    assert len(set(answers.values())) == 4 and all(answer[:2] == (200, True) for answer in answers.values())
    return answers


@pytest.mark.parametrize("workers", [1, 2])
def test_replacing_what_is_served_hurts_nobody(
    source: Source,
    expected: dict[tuple[str, str], tuple[Any, ...]],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    workers: int,
) -> None:
    served = tmp_path / "served"
    source.replace("model", "first", served)
    source.replace("store", "first", served)
    with ServiceProcess(*source.options(served), "--workers", str(workers)) as service:
        processes = [service.process, *(service.process.children() if workers > 1 else ())]
        clients = Clients(service)
        with polling(service, workers):
            for number in range(N_REPLACEMENTS):
                # The same version again, then the other one, now the model and now the store.
                version = "second" if number % 4 in (1, 2) else "first"
                source.replace(("model", "store")[number % 2], version, served)
                source.replace(("store", "model")[number % 2], version, served)
                time.sleep(0.02 * (number % 10))
            for part in ("model", "store"):
                source.replace(part, "second", served)
            end = time.monotonic() + SWAP_S
            newest = 0
            while newest < 20 * workers and time.monotonic() < end:
                newest = newest + 1 if answered(service) == expected["second", "second"] else 0
        clients.end()
        counts = {f"answers_{'_'.join(of)}": clients.answers[answer] for of, answer in expected.items()}
        for name, count in {"replacements": N_REPLACEMENTS, "workers": workers, **counts}.items():
            record_property(name, count)
        assert newest, f"the newest version does not answer:\n{service.log[-3000:]}"
        assert not clients.failures and all(process.is_running() for process in processes)
        assert "process ended" not in service.log
        wrong = set(clients.answers) - set(expected.values())
        assert not wrong, f"{len(wrong)} wrong answers, such as {next(iter(wrong))}"
        assert service.terminate()[0] == 0
