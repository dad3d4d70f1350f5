"""Waiting and stopping of the bulk loop: back-off with jitter, pauses, outages, the deadline, the final error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from indexer.bulk_records import BulkReport, RetryPolicy
from indexer.status import Action
from reranker.engines.base import Engine, WriteResult
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
)


class Stopped(Exception):
    """The run ends here; ``error`` says why."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(str(error))
        self.error = error


class Waiter:
    """Sleeps as the policy and the engine ask, and raises `Stopped` where a limit is passed.

    Parameters
    ----------
    engine, index : Engine, str
        Asked by a cheap count whether the engine answers again.
    policy : RetryPolicy
        Limits, seconds.
    report : BulkReport
        Its ``waited_s`` is kept up.
    rng : numpy.random.Generator
        Jitter.
    notice : callable or None
        Told in words about pauses and outages.
    sleep, clock : callable
        Time.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        policy: RetryPolicy,
        report: BulkReport,
        rng: np.random.Generator,
        notice: Callable[[str], None] | None,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._engine, self._index, self._policy, self._report = engine, index, policy, report
        self._rng, self._notice, self._sleep, self._clock = rng, notice, sleep, clock
        self._end = None if policy.deadline_s is None else clock() + policy.deadline_s
        self._waits = 0
        self._pauses = 0
        self._paused_s = 0.0

    def reset(self) -> None:
        """Forget the waits so far: a whole request went well."""
        self._waits = self._pauses = 0
        self._paused_s = 0.0

    def check_deadline(self, ahead_s: float = 0.0) -> None:
        """Raise `Stopped` if the deadline lies less than ``ahead_s`` seconds ahead."""
        if self._end is not None and self._clock() + ahead_s > self._end:
            error = EngineUnavailable(f"the deadline of {self._policy.deadline_s:g} s for the run is reached")
            raise Stopped(stop_error(self._index, self._report, error))

    def wait(self, action: Action, error: EngineError) -> None:
        """Sleep before the next call, as ``action`` and the engine's Retry-After ask."""
        if action is Action.BISECT:
            return
        if action is Action.PAUSE:
            self._pause(error)
            return
        self._nap(max(self._back_off(), self._asked(error)), error)
        if action is Action.RESEND and (error.status is None or error.status >= 500):
            self._await_engine(error)

    def _asked(self, error: EngineError) -> float:
        """Return the seconds of the engine's Retry-After; raise `Stopped` where a run never waits so long."""
        seconds, limit = error.retry_after_s or 0.0, self._policy.max_pause_s
        if seconds > limit:
            text = f"the engine asks to wait {seconds:.0f} s, and a run waits {limit:.0f} s at most: {error}"
            raise Stopped(stop_error(self._index, self._report, type(error)(text, **error.data)))
        if seconds > self._policy.cap_s:
            self._tell(f"the engine asks to wait {seconds:.0f} s ({error}); nothing is lost")
        return seconds

    def _back_off(self) -> float:
        seconds = min(self._policy.base_s * 2.0**self._waits, self._policy.cap_s)
        self._waits += 1
        return seconds * (0.5 + 0.5 * float(self._rng.random()))

    def _nap(self, seconds: float, error: EngineError) -> None:
        if self._end is not None and self._clock() + seconds > self._end:
            text = f"the deadline of {self._policy.deadline_s:g} s leaves no time for another try after: {error}"
            raise Stopped(stop_error(self._index, self._report, type(error)(text, **error.data)))
        self._report.waited_s += seconds
        self._sleep(seconds)

    def _pause(self, error: EngineError) -> None:
        seconds = min(self._policy.pause_s * 2.0**self._pauses, self._policy.pause_cap_s)
        self._pauses += 1
        if self._paused_s + seconds > self._policy.max_pause_s:
            raise Stopped(stop_error(self._index, self._report, error))
        self._tell(
            f"index {self._index!r} is blocked for writing ({error.error_type or 'disk'}): free disk space on the "
            f"engine or lift the block; next try in {seconds:.0f} s, nothing is lost"
        )
        self._paused_s += seconds
        self._nap(seconds, error)

    def _await_engine(self, error: EngineError) -> None:
        """Return once the engine answers a count; documents are not sent into a void."""
        end = self._clock() + self._policy.max_outage_s
        told = False
        while not self._answers():
            if self._clock() >= end:
                raise Stopped(stop_error(self._index, self._report, error))
            if not told:
                self._tell(f"the engine does not answer ({error}); waiting up to {self._policy.max_outage_s:.0f} s")
                told = True
            self._nap(min(self._back_off(), 5.0), error)

    def _answers(self) -> bool:
        """Return True if the engine says anything at all, be it that we may not count."""
        try:
            self._engine.count(self._index)
        except EngineUnavailable:
            return False
        except EngineError:
            return True
        return True

    def _tell(self, text: str) -> None:
        if self._notice:
            self._notice(text)


def stop_error(index: str, report: BulkReport, error: EngineError) -> EngineError:
    """Return the error that ends a run: the engine's own, with what was done so far and what to do next."""
    text = (
        f"writing to {index!r} stopped after {report.calls} calls: {error} "
        f"({report.indexed} documents are stored, {report.rejected} rejected; run the same command again to go on)"
    )
    return type(error)(text, **error.data)


def error_of(result: WriteResult) -> EngineError:
    """Return the typed error of an item's status."""
    data = {"status": result.status, "error_type": result.error_type}
    text = f"{result.status} {result.error_type}: {result.reason}"
    if result.error_type == "cluster_block_exception":
        remedy = "; the index is blocked for writing: lift the block (index.blocks.*) and run again"
        return (EngineOverloaded if result.status == 429 else EngineRejected)(text + remedy, **data)
    classes: dict[int, type[EngineError]] = {
        401: EngineAuthError, 403: EngineAuthError, 404: IndexMissing, 429: EngineOverloaded,
    }  # fmt: skip
    return classes.get(result.status, EngineUnavailable if result.status >= 500 else EngineRejected)(text, **data)
