"""The bulk loop: every document ends up stored, superseded, rejected with a reason, or pending; none is lost.

Both engines' own bulk helpers leave documents unaccounted (they pair answers with requests by position, retry some
classes of failure twice and others never). This loop has one status table (`indexer.status`), resends by id, halves
what is refused as a whole, waits as the engine asks, and stops cleanly where waiting cannot help.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from indexer.bulk_records import BulkEvents, BulkItem, BulkLimits, BulkReport, RetryPolicy
from indexer.checks import refusal_reason
from indexer.status import Action, error_outcome, outcome
from indexer.waiting import Stopped, Waiter, error_of, stop_error
from reranker.engines.base import Engine, WriteResult
from reranker.errors import EngineError, EngineUnavailable, RequestTooLarge

ALONE_TRIES = 3
"""Refusals for overload of a document that travels alone, after which it is rejected if others get through."""
_AGAIN = {Action.BACK_OFF, Action.RESEND, Action.PAUSE}


@dataclass(slots=True)
class _Queued:
    """A document on its way: its size and its history."""

    item: BulkItem
    n_bytes: int
    tries: int = 0
    alone_refusals: int = 0
    settled_at_refusal: int = -1


class BulkWriter:
    """Sends writes to one index and accounts for each.

    Parameters
    ----------
    engine : Engine
        Where to.
    index : str
        Index (or alias with one write index); never created by this loop.
    rng : numpy.random.Generator
        Source of the jitter.
    limits, policy : BulkLimits, RetryPolicy
        Sizes and patience.
    events : BulkEvents
        Callbacks.
    sleep, clock : callable
        Time; tests bring their own.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        *,
        rng: np.random.Generator,
        limits: BulkLimits | None = None,
        policy: RetryPolicy | None = None,
        events: BulkEvents | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.index = engine, index
        self.limits, self.policy = limits or BulkLimits(), policy or RetryPolicy()
        self.events = events or BulkEvents()
        self.report = BulkReport()
        self._waiter = Waiter(engine, index, self.policy, self.report, rng, self.events.notice, sleep, clock)
        self._hard_limit = engine.capabilities().max_bulk_bytes
        self._max_ops, self._max_bytes = self.limits.max_ops, self.limits.max_bytes
        self._suspects: list[tuple[_Queued, str]] = []
        self._stalled = 0
        self._settled_by_engine = 0

    def write(self, items: Iterable[BulkItem]) -> BulkReport:
        """Return the account of sending all items; a stop is told by ``report.stopped``, never raised.

        Errors of the input iterator itself are raised.
        """
        try:
            for chunk in self._chunks(items):
                self._send_chunk(chunk)
                if not self._suspects and self.events.acked:
                    self.events.acked(chunk[-1].item)
            self._reject_suspects()
        except Stopped as stop:
            self.report.stopped = stop.error
        report = self.report
        report.pending = report.read - report.indexed - report.superseded - report.rejected
        return report

    def _chunks(self, items: Iterable[BulkItem]) -> Iterator[list[_Queued]]:
        """Yield chunks within the limits; what no engine takes is rejected here and never travels."""
        chunk: list[_Queued] = []
        n_bytes = 0
        for item in items:
            self.report.read += 1
            size, reason = refusal_reason(item.op, self._hard_limit)
            if reason:
                self._settle(item, Action.REJECT, reason)
                continue
            if chunk and (len(chunk) >= self.limits.max_ops or n_bytes + size > self.limits.max_bytes):
                yield chunk
                chunk, n_bytes = [], 0
            chunk.append(_Queued(item, size))
            n_bytes += size
        if chunk:
            yield chunk

    def _send_chunk(self, chunk: list[_Queued]) -> None:
        queue = deque(chunk)
        while queue:
            piece = self._take(queue)
            queue.extendleft(reversed(self._send(piece, len(chunk), queue)))

    def _take(self, queue: deque[_Queued]) -> list[_Queued]:
        """Return the first documents of the queue that fit the limits learnt so far: at least one."""
        piece = [queue.popleft()]
        n_bytes = piece[0].n_bytes
        while queue and len(piece) < self._max_ops and n_bytes + queue[0].n_bytes <= self._max_bytes:
            n_bytes += queue[0].n_bytes
            piece.append(queue.popleft())
        return piece

    def _send(self, piece: list[_Queued], chunk_size: int, queue: deque[_Queued]) -> list[_Queued]:
        """Return the documents of ``piece`` that must go again, in order."""
        self._waiter.check_deadline()
        self.report.calls += 1
        try:
            results = self.engine.bulk(self.index, [queued.item.op for queued in piece])
            _check_answer(piece, results)
        except EngineError as error:
            return self._refused_whole(piece, error, chunk_size, queue)
        return self._answered(piece, results)

    def _answered(self, piece: list[_Queued], results: Sequence[WriteResult]) -> list[_Queued]:
        """Settle each item of an answer; wait once for those that must go again."""
        again: list[_Queued] = []
        worst: tuple[Action, WriteResult] | None = None
        stop: WriteResult | None = None
        settled = self._settled_by_engine
        for queued, result in zip(piece, results, strict=True):
            action = outcome(result.status, result.error_type, result.reason)
            if action is Action.STOP:
                stop = stop or result
            elif action not in _AGAIN:
                self._settle_by_engine(queued.item, action, _reason(result))
            elif queued.tries + 1 >= self.policy.max_calls and result.status == 500:
                # Others are answered, this one makes the engine fail each time: the document is the cause.
                self._settle_by_engine(queued.item, Action.REJECT, _reason(result))
            else:
                again.append(queued)
                queued.tries += action is not Action.PAUSE
                worst = worst if worst and worst[0] is Action.PAUSE else (action, result)
        if self._settled_by_engine > settled:
            self._count_progress()
        elif worst is not None and worst[0] is not Action.PAUSE:
            self._stalled += 1
        if stop is not None:
            raise Stopped(stop_error(self.index, self.report, error_of(stop)))
        if worst is None:
            self._waiter.reset()
            self._max_ops = min(self.limits.max_ops, self._max_ops * 2)
            return again
        self._wait_for_items(*worst, tries=max(queued.tries for queued in again))
        return again

    def _wait_for_items(self, action: Action, result: WriteResult, tries: int) -> None:
        """Wait before items go again; stop where the same ones were sent too often or nothing moves."""
        if action is not Action.PAUSE and max(tries, self._stalled) >= self.policy.max_calls:
            raise Stopped(stop_error(self.index, self.report, error_of(result)))
        self._waiter.wait(action, error_of(result))

    def _refused_whole(
        self, piece: list[_Queued], error: EngineError, chunk_size: int, queue: deque[_Queued]
    ) -> list[_Queued]:
        """Act on a request without per-item answer; return what must go again now."""
        action = error_outcome(error)
        if action is Action.STOP:
            raise Stopped(stop_error(self.index, self.report, error))
        if action is Action.PAUSE:
            self._waiter.wait(action, error)
            return piece
        self._stalled += 1
        if action is Action.BISECT:
            return self._bisect(piece, error, chunk_size)
        if self._stalled >= self.policy.max_calls:
            raise Stopped(stop_error(self.index, self.report, error))
        if action is Action.BACK_OFF:
            if len(piece) == 1:
                self._refused_alone(piece[0], error, queue)
                piece = []
            else:
                self._max_ops = max(1, len(piece) // 4)
        self._waiter.wait(action, error)
        return piece

    def _bisect(self, piece: list[_Queued], error: EngineError, chunk_size: int) -> list[_Queued]:
        """Halve a request that is not acceptable; a document alone is the culprit once others get through."""
        if len(piece) == 1:
            self._suspects.append((piece[0], str(error)))
            if self._settled_by_engine:
                self._count_progress()
            rest = []
        else:
            self._max_ops = max(1, len(piece) // 2)
            if isinstance(error, RequestTooLarge) or error.status == 429:
                self._max_bytes = max(1, sum(queued.n_bytes for queued in piece) // 2)
            rest = piece
        # One bad document among n is found in log2(n) halvings; past twice that, the fault is not a document's.
        if self._stalled >= max(self.policy.max_calls, 2 * math.ceil(math.log2(max(chunk_size, 2)))):
            raise Stopped(stop_error(self.index, self.report, error))
        return rest

    def _refused_alone(self, queued: _Queued, error: EngineError, queue: deque[_Queued]) -> None:
        """Send a lone overloaded document behind the others, or reject it where only it is refused."""
        if queued.alone_refusals == 0:
            queued.settled_at_refusal = self._settled_by_engine
        queued.alone_refusals += 1
        if queued.alone_refusals >= ALONE_TRIES and self._settled_by_engine > queued.settled_at_refusal:
            self._settle_by_engine(queued.item, Action.REJECT, f"refused alone {ALONE_TRIES} times: {error}")
            self._count_progress()
        else:
            queue.append(queued)

    def _count_progress(self) -> None:
        self._stalled = 0
        self._reject_suspects()

    def _reject_suspects(self) -> None:
        """Reject the documents refused alone: the engine takes others, or there are no others."""
        for queued, reason in self._suspects:
            self._settle(queued.item, Action.REJECT, reason)
        self._suspects.clear()

    def _settle_by_engine(self, item: BulkItem, action: Action, reason: str) -> None:
        self._settled_by_engine += 1
        self._settle(item, action, reason)

    def _settle(self, item: BulkItem, action: Action, reason: str) -> None:
        if action is Action.OK:
            self.report.indexed += 1
        elif action is Action.SUPERSEDED:
            self.report.superseded += 1
        else:
            self.report.rejected += 1
        if self.events.settled:
            self.events.settled(item, action, reason)


def _reason(result: WriteResult) -> str:
    """Return the engine's words on an item, empty for a stored one."""
    return f"{result.error_type}: {result.reason}" if result.status >= 300 else ""


def _check_answer(piece: Sequence[_Queued], results: Sequence[WriteResult]) -> None:
    """Raise `EngineUnavailable` unless the answer names the operations sent, one by one and in order."""
    sent = [queued.item.op.id for queued in piece]
    if [result.id for result in results] != sent:
        raise EngineUnavailable(
            f"the bulk answer has {len(results)} items that do not match the {len(sent)} operations sent; "
            "the same ids are sent again",
        )
