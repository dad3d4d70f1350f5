"""The bulk loop: every document is stored, superseded, rejected with a reason, or pending at the end. None is lost.

The bulk helpers of both engines' clients lose track of documents: they match responses with requests by position, retry
some classes of failure twice and others never. This loop has one status table (`outcome`). It retries by id, bisects a
request that is rejected as a whole, waits as long as the engine asks, and stops cleanly if waiting cannot help.
Documents that no engine accepts are rejected before they are sent, so that all engines reject them for the same
reasons.

The status table follows measurements on Elasticsearch 8.19 and OpenSearch 2.19. Both return 429 for two different
problems, a full queue and an index blocked because its disk is full, which need different remedies.
"""

from __future__ import annotations

import enum
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from reranker.config import check_ranges
from reranker.deadline import Deadline
from reranker.engines.protocol import Engine, WriteOp, WriteResult, id_fault
from reranker.engines.retry import back_off_s
from reranker.engines.wire import json_bytes
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
    Unsupported,
)
from reranker.progress import Say, no_progress, silent
from reranker.records import StoredDocument

if TYPE_CHECKING:
    import numpy as np


class Action(enum.Enum):
    """Next action of the bulk loop for a document or for a whole request."""

    OK = "ok"
    """The document is stored."""
    SUPERSEDED = "superseded"
    """The index has a newer version (409); nothing to do."""
    BACK_OFF = "back off"
    """The engine is overloaded: wait, then send the same ids in smaller requests."""
    PAUSE = "pause"
    """The index is blocked until somebody frees disk space: notify the user and wait long."""
    RESEND = "resend"
    """No usable response, so the write may or may not have happened: wait, then send the same ids."""
    BISECT = "bisect"
    """Part of the request is not acceptable: halve it until the document is isolated."""
    REJECT = "reject"
    """This document is not acceptable: record it with the reason and continue."""
    STOP = "stop"
    """Waiting cannot help (permissions, missing index, write block): stop and leave all other documents pending."""


_BLOCK = "cluster_block_exception"
_MISSING_INDEX = ("index_not_found_exception", "index_closed_exception", "alias_not_found_exception")
_WHOLE: dict[int, Action] = {401: Action.STOP, 403: Action.STOP, 408: Action.RESEND, 429: Action.BACK_OFF}
_ITEM: dict[int, Action] = {**_WHOLE, 409: Action.SUPERSEDED}
_TOO_LARGE_FOR_QUEUE = re.compile(r"operation_bytes=(\d+).*?max_[a-z_]*bytes=(\d+)")


def outcome(status: int | None, error_type: str = "", reason: str = "", *, whole: bool = False) -> Action:
    """Return the action for one status: ``BISECT`` only for whole requests, ``REJECT`` and ``OK`` only for items.

    Parameters
    ----------
    status
        HTTP status of an item, or of the ``whole`` request; None without a usable response (connection error, timeout,
        truncated response, fewer items than operations).
    error_type
        The engine's name for the error.
    reason
        The engine's message, from which only the byte counts of indexing pressure are read.
    whole
        Whether the status is that of the whole request.
    """
    if error_type == _BLOCK:
        return Action.PAUSE if status == 429 else Action.STOP
    if error_type in _MISSING_INDEX or (whole and status == 404):
        return Action.STOP
    if status is None or status >= 500:
        return Action.RESEND
    if whole and status == 429 and _never_fits(reason):
        return Action.BISECT
    table, good, bad = (_WHOLE, Action.RESEND, Action.BISECT) if whole else (_ITEM, Action.OK, Action.REJECT)
    return table.get(status, good if 200 <= status < 300 else bad)


def error_outcome(error: EngineError) -> Action:
    """Return the action after a whole request failed. A missing permission, index or feature stops any run."""
    if isinstance(error, EngineAuthError | IndexMissing | Unsupported):
        return Action.STOP
    if isinstance(error, EngineRejected) and (error.status is None or error.status < 300):
        # The error is not about the request: another product behind the URL, or an untrusted certificate.
        return Action.STOP
    return outcome(error.status, error.error_type, str(error), whole=True)


def _never_fits(reason: str) -> bool:
    """Return True if a 429 means that this request exceeds the engine's limit by itself: waiting cannot help."""
    sizes = _TOO_LARGE_FOR_QUEUE.search(reason)
    return sizes is not None and int(sizes.group(1)) > int(sizes.group(2))


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """Limits for the size of one request."""

    RANGES: ClassVar[Mapping[str, str]] = {"max_ops": "[1, inf)", "max_bytes": "[1, inf)"}

    max_ops: int = 500
    """Maximum number of documents per request."""
    max_bytes: int = 8_000_000
    """Maximum size of a request in JSON bytes. A larger document is sent by itself. Requests of more than about 5 to
    15 MB are not faster."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When requests are repeated, and when the loop gives up. All times are in seconds."""

    max_calls: int = 6
    """Maximum number of consecutive calls without progress, after which the run stops (it can be resumed)."""
    base_s: float = 0.5
    """First back-off; it doubles each time and is multiplied by a random factor in [0.5, 1)."""
    cap_s: float = 30.0
    """Longest back-off."""
    max_outage_s: float = 300.0
    """Maximum wait for an engine that does not respond. It is polled with a cheap count request."""
    pause_s: float = 5.0
    """First wait while the index is blocked (disk full)."""
    pause_cap_s: float = 60.0
    """Longest wait while the index is blocked."""
    max_pause_s: float = 1800.0
    """Maximum total wait while the index is blocked, and maximum Retry-After that is obeyed."""
    deadline_s: float | None = None
    """Time limit for the whole run; None: no limit."""

    def __post_init__(self) -> None:
        times = ("base_s", "cap_s", "max_outage_s", "pause_s", "pause_cap_s", "max_pause_s")
        check_ranges(self, max_calls="[1, inf)", **dict.fromkeys(times, "[0, inf)"))


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One write with its position in the input."""

    op: WriteOp
    """The write. Its id comes from the source, so that sending it twice stores it once."""
    line: int = 0
    """Line (or row) in the input, from 1; 0 if there is none."""
    offset: int = 0
    """Byte offset of its first byte."""
    end: int = 0
    """Byte offset after its last byte."""


def guarded_write(action: Literal["index", "update"], read: StoredDocument, source: Mapping[str, Any]) -> BulkItem:
    """Return a write that succeeds only if the document still has the version that was read; with its routing."""
    guard = {"if_seq_no": read.seq_no, "if_primary_term": read.primary_term}
    return BulkItem(WriteOp(action, read.id, source, routing=read.routing, **guard))


@dataclass(frozen=True, slots=True)
class BulkEvents:
    """Callbacks of the loop."""

    settled: Callable[[BulkItem, Action, str, str], None] = no_progress
    """``(item, action, reason, error_type)`` when a document is settled as ``OK``, ``SUPERSEDED``, or ``REJECT``.

    ``reason`` is a message for people. ``error_type`` is the engine's name for the error of this document, or "".
    """
    acked: Callable[[BulkItem], None] = no_progress
    """``(item)``: this item and all before it are settled, so a checkpoint can be written."""
    notice: Say = silent
    """``(text)`` when the loop waits for an intervention (blocked index, engine not reachable)."""
    """``(text)`` when the loop waits for somebody (blocked index, engine away)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options that are common to all commands that write documents."""

    reject_path: Path | None = None
    """File for documents that cannot be written, with their reasons."""
    limits: BulkLimits = field(default_factory=BulkLimits)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    seed: int = 0
    """Seed of the jitter."""


@dataclass(slots=True)
class Account:
    """Counts and duration of a run, and the error that ``stopped`` it early."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the error of an early stop as text."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        rounded = {name: round(value, 3) for name, value in values.items() if isinstance(value, float)}
        return {**values, **rounded, "stopped": None if values["stopped"] is None else str(values["stopped"])}


@dataclass(slots=True)
class BulkReport(Account):
    """The account of a run. ``indexed + superseded + rejected + pending == read`` always holds."""

    read: int = 0
    """Items read from the input."""
    indexed: int = 0
    """Items that were stored and acknowledged by the engine."""
    superseded: int = 0
    """Items that were not stored because the index has a newer version (409)."""
    rejected: int = 0
    """Items that were permanently rejected, each with its reason."""
    pending: int = 0
    """Items that were not settled before the run stopped; a resumed run sends them again."""
    calls: int = 0
    waited_s: float = 0.0
    """Time spent in back-off and pauses."""
    stopped: EngineError | None = None


class Stopped(Exception):
    """Ends the run; ``error`` is the engine's error."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(str(error))
        self.error = error


def _reworded(error: EngineError, text: str) -> EngineError:
    return type(error)(text, **error.data)


def _error_of(result: WriteResult) -> EngineError:
    data = {"status": result.status, "error_type": result.error_type}
    text = f"{result.status} {result.error_type}: {result.reason}"
    if result.error_type == _BLOCK:
        remedy = "; the index is blocked for writing: lift the block (index.blocks.*) and run again"
        return (EngineOverloaded if result.status == 429 else EngineRejected)(text + remedy, **data)
    classes: dict[int, type[EngineError]] = {
        401: EngineAuthError,
        403: EngineAuthError,
        404: IndexMissing,
        429: EngineOverloaded,
    }
    return classes.get(result.status, EngineUnavailable if result.status >= 500 else EngineRejected)(text, **data)


ACTION_BYTES = 160
"""Estimated size in bytes of the action line of one operation, without the id."""


def _refusal(op: WriteOp, hard_limit_bytes: int) -> tuple[int, str]:
    """Return (size of an operation in a request in bytes, reason why no engine accepts it or "").

    NaN and infinities cannot be written as JSON, lone surrogates not as UTF-8, and nesting beyond the interpreter's
    limit not at all. Engines differ in which of these they detect, so they are checked here.
    """
    if fault := id_fault(op.id):
        return 0, fault
    try:
        size = len(json_bytes(op.source)) if op.source is not None else 0
    except UnicodeEncodeError:
        return 0, "a text contains a lone surrogate (half of a UTF-16 pair), which cannot be encoded as UTF-8"
    except (ValueError, TypeError) as error:
        return 0, f"the document cannot be written as JSON: {error}"
    size += len(op.id.encode("utf-8")) + ACTION_BYTES
    if size > hard_limit_bytes:
        return size, f"the document has {size} bytes, but the engine accepts requests of at most {hard_limit_bytes}"
    return size, ""


ALONE_TRIES = 3
"""Number of overload errors for a document sent by itself, after which it is rejected if others are accepted."""
_AGAIN = {Action.BACK_OFF, Action.RESEND, Action.PAUSE}


@dataclass(slots=True)
class _Queued:
    """A document that is being sent, with its size and history."""

    item: BulkItem
    n_bytes: int
    tries: int = 0
    alone_refusals: int = 0
    settled_at_refusal: int = -1


class BulkWriter:
    """Sends writes to one index, which it never creates, and accounts for each write; ``rng`` draws the jitter."""

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
        self._rng, self._sleep, self._clock = rng, sleep, clock
        self._run = Deadline(self.policy.deadline_s, clock)
        # Number of waits since the last successful request.
        self._waits = self._pauses = 0
        self._paused_s = 0.0
        self._hard_limit = engine.capabilities().max_bulk_bytes
        self._max_ops, self._max_bytes = self.limits.max_ops, self.limits.max_bytes
        self._suspects: list[tuple[_Queued, str]] = []
        self._stalled = 0
        self._settled_by_engine = 0

    def write(self, items: Iterable[BulkItem]) -> BulkReport:
        """Send all items and return the account; an early stop is in ``stopped``. Errors of the iterator are raised."""
        report = self.report
        try:
            for chunk in self._chunks(items):
                self._send_chunk(chunk)
                if not self._suspects:
                    self.events.acked(chunk[-1].item)
            self._reject_suspects()
        except Stopped as stop:
            done = f"{report.indexed} documents are stored, {report.rejected} rejected"
            text = f"writing to {self.index!r} stopped after {report.calls} calls: {stop.error} ({done}; "
            report.stopped = _reworded(stop.error, f"{text}run the same command again to continue)")
        report.pending = report.read - report.indexed - report.superseded - report.rejected
        return report

    def _chunks(self, items: Iterable[BulkItem]) -> Iterator[list[_Queued]]:
        """Yield chunks within the limits; documents that no engine accepts are rejected here and never sent."""
        chunk: list[_Queued] = []
        n_bytes = 0
        for item in items:
            self.report.read += 1
            size, reason = _refusal(item.op, self._hard_limit)
            if reason:
                self._settle(item, Action.REJECT, reason, by_engine=False)
                continue
            if chunk and (len(chunk) >= self.limits.max_ops or n_bytes + size > self.limits.max_bytes):
                yield chunk
                chunk, n_bytes = [], 0
            chunk.append(_Queued(item, size))
            n_bytes += size
        if chunk:
            yield chunk

    def _send_chunk(self, chunk: list[_Queued]) -> None:
        """Send a chunk in as many requests as the currently learned limits require, at least one document in each."""
        queue = deque(chunk)
        while queue:
            piece = [queue.popleft()]
            n_bytes = piece[0].n_bytes
            while queue and len(piece) < self._max_ops and n_bytes + queue[0].n_bytes <= self._max_bytes:
                n_bytes += queue[0].n_bytes
                piece.append(queue.popleft())
            queue.extendleft(reversed(self._send(piece, len(chunk), queue)))

    def _send(self, piece: list[_Queued], chunk_size: int, queue: deque[_Queued]) -> list[_Queued]:
        """Send ``piece`` and return the documents that must be sent again, in order."""
        if self._ends_within(0.0):
            raise Stopped(EngineUnavailable(f"the deadline of {self.policy.deadline_s:g} s for the run is reached"))
        self.report.calls += 1
        sent = [queued.item.op.id for queued in piece]
        try:
            results = self.engine.bulk(self.index, [queued.item.op for queued in piece])
            if [result.id for result in results] != sent:
                raise EngineUnavailable(
                    f"the bulk response has {len(results)} items that do not match the {len(sent)} operations sent: "
                    "the same ids are sent again"
                )
        except EngineError as error:
            return self._refused_whole(piece, error, chunk_size, queue)
        return self._answered(piece, results)

    def _answered(self, piece: list[_Queued], results: Sequence[WriteResult]) -> list[_Queued]:
        """Settle each item of a response; wait once for those that must be sent again."""
        again: list[_Queued] = []
        worst: tuple[Action, WriteResult] | None = None
        stop: WriteResult | None = None
        settled = self._settled_by_engine
        for queued, result in zip(piece, results, strict=True):
            action = outcome(result.status, result.error_type, result.reason)
            if action is Action.STOP:
                stop = stop or result
            elif action not in _AGAIN:
                reason = f"{result.error_type}: {result.reason}" if result.status >= 300 else ""
                self._settle(queued.item, action, reason, result.error_type)
            elif queued.tries + 1 >= self.policy.max_calls and result.status == 500:
                # Other documents succeed, but the engine fails on this one each time, so the document is the cause.
                reason = f"{result.error_type}: {result.reason}"
                self._settle(queued.item, Action.REJECT, reason, result.error_type)
            else:
                again.append(queued)
                queued.tries += action is not Action.PAUSE
                worst = worst if worst and worst[0] is Action.PAUSE else (action, result)
        if self._settled_by_engine > settled:
            self._count_progress()
        elif worst is not None and worst[0] is not Action.PAUSE:
            self._stalled += 1
        if stop is not None:
            raise Stopped(_error_of(stop))
        if worst is None:
            self._waits = self._pauses = 0
            self._paused_s = 0.0
            self._max_ops = min(self.limits.max_ops, self._max_ops * 2)
            return again
        action, error = worst[0], _error_of(worst[1])
        tries = max(queued.tries for queued in again)
        if action is not Action.PAUSE and max(tries, self._stalled) >= self.policy.max_calls:
            raise Stopped(error)
        self._wait(action, error)
        return again

    def _refused_whole(
        self, piece: list[_Queued], error: EngineError, chunk_size: int, queue: deque[_Queued]
    ) -> list[_Queued]:
        """Handle a failed request without a response for each item; return the documents to send again now."""
        action = error_outcome(error)
        if action is Action.STOP:
            raise Stopped(error)
        if action is Action.PAUSE:
            self._wait(action, error)
            return piece
        self._stalled += 1
        if action is Action.BISECT:
            return self._bisect(piece, error, chunk_size)
        if self._stalled >= self.policy.max_calls:
            raise Stopped(error)
        if action is Action.BACK_OFF:
            if len(piece) == 1:
                self._refused_alone(piece[0], error, queue)
                piece = []
            else:
                self._max_ops = max(1, len(piece) // 4)
        self._wait(action, error)
        return piece

    def _bisect(self, piece: list[_Queued], error: EngineError, chunk_size: int) -> list[_Queued]:
        """Halve a request that is not acceptable; a single document is rejected once others are accepted."""
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
        # One bad document among n is found in log2(n) halvings; after twice as many, the cause is not a document.
        if self._stalled >= max(self.policy.max_calls, 2 * math.ceil(math.log2(max(chunk_size, 2)))):
            raise Stopped(error)
        return rest

    def _refused_alone(self, queued: _Queued, error: EngineError, queue: deque[_Queued]) -> None:
        """Send a single document that got an overload error after the others; reject it if only it keeps failing."""
        if queued.alone_refusals == 0:
            queued.settled_at_refusal = self._settled_by_engine
        queued.alone_refusals += 1
        if queued.alone_refusals >= ALONE_TRIES and self._settled_by_engine > queued.settled_at_refusal:
            self._settle(queued.item, Action.REJECT, f"failed {ALONE_TRIES} times when sent by itself: {error}")
            self._count_progress()
        else:
            queue.append(queued)

    def _count_progress(self) -> None:
        self._stalled = 0
        self._reject_suspects()

    def _reject_suspects(self) -> None:
        """Reject the isolated documents: the engine accepts others, or there are no others."""
        for queued, reason in self._suspects:
            self._settle(queued.item, Action.REJECT, reason, by_engine=False)
        self._suspects.clear()

    def _settle(
        self, item: BulkItem, action: Action, reason: str, error_type: str = "", *, by_engine: bool = True
    ) -> None:
        self._settled_by_engine += by_engine
        if action is Action.OK:
            self.report.indexed += 1
        elif action is Action.SUPERSEDED:
            self.report.superseded += 1
        else:
            self.report.rejected += 1
        self.events.settled(item, action, reason, error_type)

    def _wait(self, action: Action, error: EngineError) -> None:
        """Sleep before the next call, as ``action`` and the engine's Retry-After require."""
        if action is Action.PAUSE:
            self._pause(error)
        elif action is not Action.BISECT:
            self._nap(max(self._back_off(), self._retry_after(error)), error)
            if action is Action.RESEND and (error.status is None or error.status >= 500):
                self._await_engine(error)

    def _ends_within(self, seconds: float) -> bool:
        return self._run.limit_s is not None and self._run.spent_s + seconds > self._run.limit_s

    def _retry_after(self, error: EngineError) -> float:
        """Return the engine's Retry-After in seconds; raise `Stopped` if it exceeds the maximum wait of a run."""
        seconds, limit = error.retry_after_s or 0.0, self.policy.max_pause_s
        if seconds > limit:
            text = f"the engine asks to wait {seconds:.0f} s, but a run waits at most {limit:.0f} s: {error}"
            raise Stopped(_reworded(error, text))
        if seconds > self.policy.cap_s:
            self.events.notice(f"the engine asks to wait {seconds:.0f} s ({error}); no document is lost")
        return seconds

    def _back_off(self) -> float:
        seconds = back_off_s(self._waits, self.policy.base_s, self.policy.cap_s)
        self._waits += 1
        return seconds * (0.5 + 0.5 * float(self._rng.random()))

    def _nap(self, seconds: float, error: EngineError) -> None:
        if self._ends_within(seconds):
            text = f"the deadline of {self.policy.deadline_s:g} s leaves no time for another attempt after: {error}"
            raise Stopped(_reworded(error, text))
        self.report.waited_s += seconds
        self._sleep(seconds)

    def _pause(self, error: EngineError) -> None:
        seconds = back_off_s(self._pauses, self.policy.pause_s, self.policy.pause_cap_s)
        self._pauses += 1
        if self._paused_s + seconds > self.policy.max_pause_s:
            raise Stopped(error)
        self.events.notice(
            f"index {self.index!r} is blocked for writing ({error.error_type or 'disk'}): free disk space on the "
            f"engine or lift the block; next attempt in {seconds:.0f} s, no document is lost"
        )
        self._paused_s += seconds
        self._nap(seconds, error)

    def _await_engine(self, error: EngineError) -> None:
        """Wait until the engine responds to a count request, so that documents are not sent in vain."""
        outage = Deadline(self.policy.max_outage_s, self._clock)
        notice = self.events.notice
        while not self._answers():
            if outage.passed:
                raise Stopped(error)
            notice(f"the engine does not respond ({error}); waiting up to {self.policy.max_outage_s:.0f} s")
            notice = silent
            self._nap(min(self._back_off(), 5.0), error)

    def _answers(self) -> bool:
        """Return True if the engine responds at all, even with an error such as a missing permission to count."""
        try:
            self.engine.count(self.index)
        except EngineError as error:
            return not isinstance(error, EngineUnavailable)
        return True
