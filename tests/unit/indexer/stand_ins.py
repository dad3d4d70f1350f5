"""Time that passes when it is slept, and an engine in memory whose bulk answers can be scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reranker.engines.protocol import Engine, WriteOp, WriteResult
from tests.engines.memory import memory_engine

BulkScript = Callable[[Engine, str, Sequence[WriteOp]], list[WriteResult]]


class FakeTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


class ScriptedEngine:
    """A memory engine that answers bulk calls by a script first; everything else is the real thing.

    Parameters
    ----------
    *scripts : callable
        One a bulk call: ``(engine, index, ops) -> results``, or raises.
    steady : callable or None
        Answers all calls after the scripts; None lets the engine answer.
    """

    def __init__(self, *scripts: BulkScript, steady: BulkScript | None = None) -> None:
        self.real = memory_engine()
        self.scripts = list(scripts)
        self.steady = steady
        self.sent: list[list[str]] = []

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        self.sent.append([op.id for op in ops])
        script = self.scripts.pop(0) if self.scripts else self.steady
        return script(self.real, index, ops) if script else self.real.bulk(index, ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
