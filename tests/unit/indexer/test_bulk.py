"""The bulk loop: accounting, retries, halving, waiting, stopping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.bulk import ACTION_BYTES, Action, BulkEvents, BulkItem, BulkLimits, BulkReport, BulkWriter, RetryPolicy
from reranker.engines.protocol import Capabilities, Engine, WriteOp, WriteResult
from reranker.errors import (
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
)
from tests.seeds import seeded_rng
from tests.unit.indexer.stand_ins import BulkScript, FakeTime, ScriptedEngine


def items_of(n: int, **source: Any) -> list[BulkItem]:
    return [BulkItem(WriteOp("index", f"d{k}", {"n": k, **source}), k + 1, k * 10, k * 10 + 10) for k in range(n)]


def raising(error: EngineError) -> BulkScript:
    def script(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        raise error

    return script


def statuses(*codes: int, kind: str = "some_exception") -> BulkScript:
    """Answer item by item, codes repeated; good ones are stored."""

    def script(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        results = []
        for place, op in enumerate(ops):
            code = codes[place % len(codes)]
            results.append(
                engine.bulk(index, [op])[0] if code < 300 else WriteResult(op.id, code, kind, f"scripted {code}")
            )
        return results

    return script


def refusing(bad: set[str], error: EngineError) -> BulkScript:
    """Refuse any request as a whole that holds one of the bad ids."""

    def script(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if bad & {op.id for op in ops}:
            raise error
        return engine.bulk(index, ops)

    return script


class Run:
    """One run of the loop over a scripted engine."""

    def __init__(
        self,
        items: Sequence[BulkItem],
        *scripts: BulkScript,
        steady: BulkScript | None = None,
        limits: BulkLimits | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.engine = ScriptedEngine(*scripts, steady=steady)
        self.engine.create_index("docs", {"properties": {}})
        self.time = FakeTime()
        self.settled: list[tuple[str, Action, str]] = []
        self.acked: list[int] = []
        self.notices: list[str] = []
        events = BulkEvents(
            lambda item, action, reason, _: self.settled.append((item.op.id, action, reason)),
            lambda item: self.acked.append(item.end),
            self.notices.append,
        )
        writer = BulkWriter(
            self.engine,
            "docs",
            rng=seeded_rng(),
            limits=limits,
            policy=policy,
            events=events,
            sleep=self.time.sleep,
            clock=self.time.clock,
        )
        self.report: BulkReport = writer.write(iter(items))
        assert self.report.pending >= 0
        assert len({name for name, _, _ in self.settled}) == len(self.settled)

    @property
    def calls(self) -> int:
        return len(self.engine.sent)

    def ids(self, action: Action) -> list[str]:
        return [name for name, what, _ in self.settled if what is action]

    def stored(self) -> set[str]:
        return {document.id for batch in self.engine.scan("docs") for document in batch}


def test_chunks_by_count_and_by_bytes() -> None:
    run = Run(items_of(10), limits=BulkLimits(max_ops=4))
    assert [len(sent) for sent in run.engine.sent] == [4, 4, 2]
    assert run.acked == [40, 80, 100]
    run = Run(items_of(10, text="x" * 1000), limits=BulkLimits(max_bytes=2600))
    assert [len(sent) for sent in run.engine.sent] == [2] * 5
    run = Run(items_of(3, text="x" * 5000), limits=BulkLimits(max_bytes=100))
    assert [len(sent) for sent in run.engine.sent] == [1] * 3


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (WriteOp("index", "", {}), "empty"),
        (WriteOp("index", "x" * 513, {}), "513 bytes"),
        (WriteOp("index", "ü" * 257, {}), "514 bytes"),
        (WriteOp("index", "\ud800", {}), "surrogate"),
        (WriteOp("index", "nan", {"x": math.nan}), "JSON"),
        (WriteOp("index", "inf", {"x": [{"y": -math.inf}]}), "JSON"),
        (WriteOp("index", "half", {"x": "\udfff"}), "surrogate"),
        (WriteOp("index", "set", {"x": {1, 2}}), "JSON"),
    ],
)
def test_what_no_engine_takes_never_travels(op: WriteOp, words: str) -> None:
    run = Run([*items_of(2), BulkItem(op, 7, 70, 80)])
    assert (run.report.indexed, run.report.rejected) == (2, 1)
    assert words in run.settled[-1][2] or words in run.settled[0][2]
    assert all(op.id not in sent for sent in run.engine.sent)


def test_ids_of_512_bytes_travel() -> None:
    assert (
        Run([BulkItem(WriteOp("index", "x" * 512, {})), BulkItem(WriteOp("index", "ü" * 256, {}))]).report.indexed == 2
    )


def test_items_refused_for_now_go_again_alone() -> None:
    run = Run(items_of(6), statuses(429, 201, 503))
    assert run.engine.sent[1] == ["d0", "d2", "d3", "d5"]
    assert (run.report.indexed, run.report.pending) == (6, 0)
    assert run.acked == [60]
    assert len(run.time.naps) == 1


def test_item_refusals_are_rejected_with_the_engines_reason_and_conflicts_are_not_errors() -> None:
    run = Run(items_of(4), statuses(201, 400, 409))
    assert run.ids(Action.REJECT) == ["d1"]
    assert run.ids(Action.SUPERSEDED) == ["d2"]
    assert dict((n, r) for n, _, r in run.settled)["d1"] == "some_exception: scripted 400"
    assert run.report.stopped is None


def test_retry_after_is_kept_and_back_off_has_jitter() -> None:
    error = EngineOverloaded("busy", status=429, retry_after_s=7.0)
    run = Run(items_of(2), raising(error))
    assert run.time.naps[0] >= 7.0
    run = Run(items_of(2), *[raising(EngineOverloaded("busy", status=429))] * 3)
    for nap, full in zip(run.time.naps, (0.5, 1.0, 2.0), strict=True):
        assert full / 2 <= nap < full


def test_a_retry_after_of_a_day_ends_the_run_and_one_of_minutes_is_told() -> None:
    run = Run(items_of(2), raising(EngineOverloaded("busy", status=429, retry_after_s=86_400.0)))
    assert run.time.naps == [] and (run.report.indexed, run.report.pending) == (0, 2)
    assert isinstance(run.report.stopped, EngineOverloaded)
    assert "asks to wait 86400 s, but a run waits at most 1800 s: busy" in str(run.report.stopped)
    run = Run(items_of(2), raising(EngineOverloaded("busy", status=429, retry_after_s=120.0)))
    assert run.time.naps == [120.0] and run.report.indexed == 2
    assert run.notices == ["the engine asks to wait 120 s (busy); no document is lost"]


STEADY: dict[str, tuple[BulkScript, type[EngineError]]] = {
    "429": (raising(EngineOverloaded("busy", status=429)), EngineOverloaded),
    "503": (raising(EngineUnavailable("away", status=503)), EngineUnavailable),
    "no answer": (raising(EngineUnavailable("away", status=None)), EngineUnavailable),
    "item 429": (statuses(429), EngineOverloaded),
    "item 503": (statuses(503), EngineUnavailable),
    "item 429 and 503": (statuses(429, 503), EngineError),
    "400": (raising(EngineRejected("bad", status=400)), EngineRejected),
    "413": (raising(RequestTooLarge("big", status=413)), RequestTooLarge),
    "missing items": (lambda engine, index, ops: [WriteResult(ops[0].id, 201)], EngineUnavailable),
    "wrong order": (lambda e, i, ops: [WriteResult(op.id, 201) for op in reversed(ops)], EngineUnavailable),
}


@pytest.mark.parametrize("fault", STEADY)
def test_a_steady_fault_stops_after_six_calls_with_all_pending(fault: str) -> None:
    script, error = STEADY[fault]
    run = Run(items_of(6), steady=script)
    assert run.calls <= 6
    assert isinstance(run.report.stopped, error)
    assert "run the same command again" in str(run.report.stopped)
    assert (run.report.indexed, run.report.rejected, run.report.pending) == (0, 0, 6)
    assert run.acked == []


@pytest.mark.parametrize(
    "error", [EngineAuthError("no", status=403), EngineAuthError("who", status=401), IndexMissing("gone", status=404)]
)
def test_what_waiting_cannot_mend_stops_at_once(error: EngineError) -> None:
    run = Run(items_of(3), raising(error))
    assert run.calls == 1
    assert run.time.naps == []
    assert type(run.report.stopped) is type(error)
    assert run.report.pending == 3


def test_an_item_that_stops_is_not_put_off_by_others_that_go_again() -> None:
    run = Run(items_of(4), statuses(403, 429))
    assert (run.calls, run.report.pending) == (1, 4)
    assert isinstance(run.report.stopped, EngineAuthError)


def test_a_document_above_the_engines_limit_never_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine()
    engine.create_index("docs", {"properties": {}})
    monkeypatch.setattr(engine.real, "capabilities", lambda: Capabilities("memory", max_bulk_bytes=1000))
    sizes = [1000 - ACTION_BYTES - len('{"t":""}') - 1 + more for more in (0, 1)]
    items = [BulkItem(WriteOp("index", str(k), {"t": "x" * size})) for k, size in enumerate(sizes)]
    report = BulkWriter(engine, "docs", rng=seeded_rng()).write(items)
    assert (report.indexed, report.rejected, engine.sent) == (1, 1, [["0"]])


def test_an_item_that_stops_leaves_what_was_stored_stored() -> None:
    run = Run(items_of(4), statuses(201, 403))
    assert (run.report.indexed, run.report.rejected, run.report.pending) == (2, 0, 2)
    assert isinstance(run.report.stopped, EngineAuthError)
    run = Run(items_of(4), statuses(201, 403, kind="cluster_block_exception"))
    assert isinstance(run.report.stopped, EngineRejected)
    assert "index.blocks" in str(run.report.stopped)


@pytest.mark.parametrize("bad", [set(), {"d0"}, {"d37"}, {"d99"}, {"d3", "d4", "d80"}])
def test_halving_finds_exactly_the_documents_that_spoil_a_request(bad: set[str]) -> None:
    run = Run(items_of(100), steady=refusing(bad, EngineRejected("malformed", status=400)))
    assert set(run.ids(Action.REJECT)) == bad
    assert run.report.indexed == 100 - len(bad)
    assert run.stored() == {f"d{k}" for k in range(100)} - bad
    assert run.report.stopped is None


def test_a_lone_bad_document_is_rejected_even_if_there_is_no_other() -> None:
    run = Run(items_of(1), steady=raising(EngineRejected("malformed", status=400)))
    assert (run.report.rejected, run.report.stopped) == (1, None)


def test_nothing_is_acknowledged_while_a_document_waits_for_its_verdict() -> None:
    """A checkpoint behind it would lose it: until the engine takes another, it may be the engine's fault."""
    refusal = EngineRejected("malformed", status=400)
    run = Run(items_of(3), steady=refusing({"d0"}, refusal), limits=BulkLimits(1))
    assert run.acked == [20, 30]
    assert [name for name, _, _ in run.settled] == ["d1", "d0", "d2"]
    run = Run(items_of(2), raising(refusal), raising(EngineAuthError("no", status=403)), limits=BulkLimits(1))
    assert (run.acked, run.report.pending, run.report.rejected) == ([], 2, 0)


def test_an_overloaded_engine_is_not_held_against_a_document_that_is_alone() -> None:
    for n in (1, 2):
        run = Run(items_of(n), steady=raising(EngineOverloaded("busy", status=429)), policy=RetryPolicy(max_calls=30))
        assert (run.report.rejected, run.report.pending) == (0, n)
        assert isinstance(run.report.stopped, EngineOverloaded)


def test_a_size_limit_is_learnt_and_kept() -> None:
    def limited(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if sum(len(str(op.source)) for op in ops) > 5000:
            raise RequestTooLarge("413", status=413)
        return engine.bulk(index, ops)

    items = items_of(60, text="x" * 1000)
    items[30] = BulkItem(WriteOp("index", "huge", {"text": "x" * 9000}), 31)
    run = Run(items, steady=limited)
    assert run.ids(Action.REJECT) == ["huge"]
    assert run.report.indexed == 59
    assert run.calls < 60


def test_overload_shrinks_requests_until_they_fit_and_they_grow_again() -> None:
    room = 40

    def pressed(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        if len(ops) > room:
            raise EngineOverloaded("busy", status=429)
        return engine.bulk(index, ops)

    run = Run(items_of(1000), steady=pressed)
    assert (run.report.indexed, run.report.stopped) == (1000, None)
    assert max(len(sent) for sent in run.engine.sent[4:]) > 20
    run = Run(items_of(1000), *[pressed] * 4)
    assert max(len(sent) for sent in run.engine.sent[4:]) > 100


def test_a_document_that_alone_overloads_the_engine_is_rejected_after_three_tries() -> None:
    run = Run(items_of(20), steady=refusing({"d5"}, EngineOverloaded("busy", status=429)), limits=BulkLimits(4))
    assert run.ids(Action.REJECT) == ["d5"]
    assert sum("d5" in sent for sent in run.engine.sent) <= 8
    assert (run.report.indexed, run.report.stopped) == (19, None)


def test_a_document_larger_than_the_queue_limit_is_rejected_without_waiting() -> None:
    words = "coordinating_operation_bytes=90000, max_coordinating_and_primary_bytes=20480"
    run = Run(items_of(3), steady=refusing({"d2"}, EngineOverloaded(words, status=429)))
    assert run.ids(Action.REJECT) == ["d2"]
    assert run.time.naps == []


def test_a_document_that_crashes_the_engine_each_time_is_rejected() -> None:
    def crashing(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        return [
            WriteResult(op.id, 500, "exception", "boom") if op.id == "d1" else engine.bulk(index, [op])[0] for op in ops
        ]

    run = Run(items_of(3), steady=crashing)
    assert run.ids(Action.REJECT) == ["d1"]
    assert run.report.stopped is None
    assert run.calls <= 6


def test_a_blocked_index_is_waited_for_with_a_notice() -> None:
    block = statuses(429, kind="cluster_block_exception")
    run = Run(items_of(3), *[block] * 8)
    assert (run.report.indexed, run.report.rejected) == (3, 0)
    assert run.time.naps == [5, 10, 20, 40, 60, 60, 60, 60]
    assert "free disk space" in run.notices[0]
    # Pauses are no tries: afterwards the engine may be overloaded as often as ever.
    assert Run(items_of(3), *[block] * 8, statuses(201, 503)).report.indexed == 3
    stopped = Run(items_of(3), steady=block, policy=RetryPolicy(max_pause_s=100))
    assert sum(stopped.time.naps) <= 100
    assert isinstance(stopped.report.stopped, EngineOverloaded)
    assert stopped.report.pending == 3


def test_an_outage_is_waited_for_by_asking_not_by_sending() -> None:
    engine_away = EngineUnavailable("refused")
    run_calls = 0

    class Away(ScriptedEngine):
        def count(self, index: str, query: object = None) -> int:
            nonlocal run_calls
            run_calls += 1
            if run_calls <= 20:
                raise engine_away
            return 0

    engine = Away(raising(engine_away))
    engine.real.create_index("docs", {"properties": {}})
    time = FakeTime()
    notices: list[str] = []
    writer = BulkWriter(
        engine,
        "docs",
        rng=np.random.default_rng(0),
        events=BulkEvents(notice=notices.append),
        sleep=time.sleep,
        clock=time.clock,
    )
    report = writer.write(items_of(3))
    assert (report.indexed, len(engine.sent)) == (3, 2)
    assert sum(time.naps) > 60
    assert len(notices) == 1


def test_an_outage_has_a_limit() -> None:
    class Away(ScriptedEngine):
        def count(self, index: str, query: object = None) -> int:
            raise EngineUnavailable("refused")

    engine, time = Away(steady=raising(EngineUnavailable("refused"))), FakeTime()
    writer = BulkWriter(engine, "docs", rng=np.random.default_rng(0), sleep=time.sleep, clock=time.clock)
    report = writer.write(items_of(3))
    assert isinstance(report.stopped, EngineUnavailable)
    assert 300 <= sum(time.naps) <= 320
    assert len(engine.sent) == 1


def test_the_deadline_is_kept() -> None:
    run = Run(items_of(6), steady=statuses(503, 201), policy=RetryPolicy(deadline_s=0.6, max_calls=50, base_s=0.5))
    assert run.time.now - 1000 <= 0.6
    assert run.report.stopped is None or "deadline" in str(run.report.stopped)
    run = Run(items_of(6), steady=raising(EngineUnavailable("x", status=503)), policy=RetryPolicy(deadline_s=5))
    assert run.time.now - 1000 <= 5
    assert "deadline" in str(run.report.stopped)


def test_illegal_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        BulkLimits(0)
    with pytest.raises(ConfigError, match="max_calls is 0: it must be a whole number of at least 1"):
        RetryPolicy(max_calls=0)
    with pytest.raises(ConfigError, match="base_s"):
        RetryPolicy(base_s=-1)


FAULTS = st.sampled_from(["ok", "429", "503", "cut", "item", "short", "lost"])


@settings(max_examples=150)
@given(st.integers(1, 40), st.lists(FAULTS, max_size=12), st.integers(1, 10))
def test_no_document_is_ever_unaccounted(n: int, faults: list[str], max_ops: int) -> None:
    """Any sequence of faults: the account adds up, and what is called stored is stored."""

    def lost(engine: Engine, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        engine.bulk(index, ops)
        raise EngineUnavailable("cut", status=200, error_type="unusable_answer")

    scripts: dict[str, BulkScript] = {
        "ok": statuses(201),
        "429": raising(EngineOverloaded("busy", status=429)),
        "cut": lost,
        "503": raising(EngineUnavailable("away", status=503)),
        "item": statuses(429, 201, 400, 503),
        "short": lambda engine, index, ops: engine.bulk(index, ops)[:-1],
        "lost": raising(EngineUnavailable("rst")),
    }
    run = Run(items_of(n), *[scripts[fault] for fault in faults], limits=BulkLimits(max_ops))
    stored = run.stored()
    assert set(run.ids(Action.OK)) <= stored
    if run.report.stopped is None:
        assert run.report.pending == 0
        assert stored >= {f"d{k}" for k in range(n)} - set(run.ids(Action.REJECT))
