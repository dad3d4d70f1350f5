"""Every scripted fault of an engine, once and for ever, through both clients: no document is unaccounted."""

from __future__ import annotations

import pytest

from indexer.bulk import BulkItem, BulkReport, BulkWriter, RetryPolicy
from reranker.engines import EngineSettings, WriteOp, open_engine
from reranker.errors import EngineAuthError, EngineError, EngineUnavailable, IndexMissing
from tests.engines.scripted import FAULTS, ScriptedServer
from tests.seeds import seeded_rng

IDS = [f"d{k}" for k in range(6)]
STOPPING: dict[str, type[EngineError]] = {
    "all_401": EngineAuthError,
    "all_403": EngineAuthError,
    "all_404": IndexMissing,
    "item_403": EngineAuthError,
    "missing_product": EngineError,
}
"""Faults that end a run at once."""
REJECTING = {"item_400": 2}
"""Faults that refuse documents for good, and how many of six."""
SETTLING = {"item_400", "item_409", "item_503", "item_mix"}
"""Faults that settle a part of the documents each time, so that the rest shrinks."""


@pytest.fixture(params=["elasticsearch", "opensearch"])
def product(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(server: ScriptedServer, naps: list[float]) -> tuple[BulkReport, int]:
    """Send six documents; return the account and the number of bulk calls."""
    engine = open_engine(server.spec, EngineSettings(read_timeout_s=0.7, connect_timeout_s=0.7))
    policy = RetryPolicy(pause_s=5, max_pause_s=60, max_outage_s=30)
    writer = BulkWriter(engine, "docs", rng=seeded_rng(), policy=policy, sleep=naps.append)
    report = writer.write(BulkItem(WriteOp("index", name, {"n": k}), k + 1) for k, name in enumerate(IDS))
    engine.close()
    assert report.pending >= 0 and report.read == len(IDS)
    return report, server.calls("_bulk")


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_then_health(fault: str, product: str) -> None:
    with ScriptedServer(product, hang_s=1.0) as server:
        server.script("_bulk", FAULTS[fault])
        naps: list[float] = []
        report, calls = run(server, naps)
        if fault in STOPPING and not (fault == "missing_product" and product == "opensearch"):
            assert isinstance(report.stopped, STOPPING[fault])
            assert calls == 1
            assert report.rejected == 0
            return
        assert report.stopped is None
        assert report.pending == 0
        assert report.rejected == REJECTING.get(fault, 0)
        assert report.indexed + report.superseded == len(IDS) - report.rejected
        if fault != "item_409":
            assert len(server.stored) == report.indexed
        if fault == "all_429_retry_after":
            assert naps[0] >= 1.0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays(fault: str, product: str) -> None:
    with ScriptedServer(product, hang_s=1.0) as server:
        server.script("_bulk", *[FAULTS[fault]] * 40)
        report, calls = run(server, [])
        blocked = "block" in fault
        assert calls <= (10 if blocked else 6)
        assert report.rejected == REJECTING.get(fault, 0)
        if fault in SETTLING or (fault == "missing_product" and product == "opensearch"):
            assert report.pending == 0
            return
        assert report.stopped is not None
        assert report.pending == len(IDS) - report.indexed - report.superseded
        assert report.pending > 0
        if fault in ("hang", "reset_at_once", "cut_json", "missing_items", "drip"):
            assert isinstance(report.stopped, EngineUnavailable)


def test_an_engine_that_is_not_there_is_told_before_anything_is_read() -> None:
    with ScriptedServer() as server:
        spec = server.spec
    engine = open_engine(spec, EngineSettings(connect_timeout_s=0.3))
    with pytest.raises(EngineUnavailable):
        BulkWriter(engine, "docs", rng=seeded_rng())
