"""An engine that is short of memory for requests, and one that is killed: nothing lost, doubled or rejected.

Each engine is started for this file alone, with room for 20 KB of indexing requests at a time. ``SSI_ENGINE_KILLS``
sets how often it is killed (default 1).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from indexer.bulk import BulkItem, BulkLimits, BulkReport, BulkWriter, RetryPolicy
from reranker.engines import EngineSettings, WriteOp, open_engine
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.recipes import EngineKind
from tests.live.helpers import contents, digest
from tests.seeds import seeded_rng

ENGINE_KILLS = int(os.environ.get("SSI_ENGINE_KILLS", "1"))
LIMIT = "20kb"


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def process(request: pytest.FixtureRequest, launchable: Callable[[EngineKind], None]) -> Iterator[EngineProcess]:
    kind: EngineKind = request.param
    launchable(kind)
    settings = {"indexing_pressure.memory.limit": LIMIT}
    with EngineProcess(kind, heap="512m", java_options=QUICK_START, settings=settings) as engine:
        yield engine


def documents_of(who: str, n: int, length: int = 300) -> dict[str, dict[str, object]]:
    return {f"{who}-{k}": {"n": k, "text": "x" * length} for k in range(n)}


def write(
    process: EngineProcess, index: str, documents: Iterable[tuple[str, dict[str, object]]], seed: int
) -> BulkReport:
    engine = open_engine(f"{process.kind}:{process.url}", EngineSettings(read_timeout_s=30, connect_timeout_s=2))
    policy = RetryPolicy(base_s=0.1, cap_s=3.0, max_calls=30, deadline_s=240)
    writer = BulkWriter(engine, index, rng=seeded_rng(seed), limits=BulkLimits(60), policy=policy)
    report = writer.write(BulkItem(WriteOp("index", key, source)) for key, source in documents)
    engine.close()
    return report


def test_real_back_pressure(process: EngineProcess) -> None:
    """Six writers, chunks above the limit: halved until they fit; the one document above it is rejected."""
    engine = open_engine(f"{process.kind}:{process.url}")
    engine.create_index("pressed", {"properties": {"text": {"type": "keyword", "index": False, "doc_values": False}}})
    reports: dict[int, BulkReport] = {}
    documents: dict[str, dict[str, object]] = {}

    def run(number: int) -> None:
        own = documents_of(f"w{number}", 300)
        documents.update(own)
        if number == 0:
            own = {**own, "giant": {"text": "y" * 60_000}, **documents_of("after", 20)}
        reports[number] = write(process, "pressed", own.items(), number)

    started = time.monotonic()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    seconds = time.monotonic() - started
    print(f"{process.kind}: {seconds:.1f} s, calls {[report.calls for report in reports.values()]}")  # noqa: T201
    for number, report in reports.items():
        assert report.stopped is None
        assert report.pending >= 0
        assert report.rejected == (1 if number == 0 else 0)
    assert sum(report.calls for report in reports.values()) > 6 * 300 / 60, "no request was ever refused"
    assert digest(contents(engine, "pressed")) == digest({**documents, **documents_of("after", 20)})
    engine.close()


def test_killing_the_engine_loses_no_acknowledged_document(process: EngineProcess) -> None:
    """The writer goes on until the last kill is over, however fast the engine is."""
    engine = open_engine(f"{process.kind}:{process.url}", EngineSettings(connect_timeout_s=2))
    engine.create_index("killed", {"properties": {"text": {"type": "keyword"}}})
    documents: dict[str, dict[str, object]] = {}
    kills_over = threading.Event()
    reports: list[BulkReport] = []

    def until_the_last_kill() -> Iterator[tuple[str, dict[str, object]]]:
        for number in range(100_000):
            if kills_over.is_set() and number >= 3000:
                return
            documents[f"d-{number}"] = {"n": number, "text": "x" * 300}
            yield f"d-{number}", documents[f"d-{number}"]

    writing = threading.Thread(target=lambda: reports.append(write(process, "killed", until_the_last_kill(), 7)))
    writing.start()
    try:
        for _ in range(ENGINE_KILLS):
            time.sleep(float(seeded_rng(8).uniform(0.3, 0.8)))
            assert writing.is_alive(), "the engine was killed after the last write"
            process.kill()
            process.start()
    finally:
        kills_over.set()
        writing.join(300)
    assert not writing.is_alive()
    report = reports[0]
    assert report.stopped is None
    assert (report.rejected, report.pending) == (0, 0)
    assert report.indexed + report.superseded == len(documents)
    assert digest(contents(engine, "killed")) == digest(documents)
    engine.close()
