"""The bulk loop: every document ends up stored, superseded, rejected with a reason, or pending; none is lost.

Both engines' own bulk helpers leave documents unaccounted (they pair answers with requests by position, retry some
classes of failure twice and others never). This loop has one status table (`outcome`), resends by id, halves what is
refused as a whole, waits as the engine asks, and stops cleanly where waiting cannot help. What no engine takes is
refused before it travels, so that every engine refuses the same documents for the same reasons.

The status table follows what was measured on Elasticsearch 8.19 and OpenSearch 2.19; both send 429 for two different
things (a full queue, and an index blocked because its disk is full), which need different remedies.
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
    """What the bulk loop does next with a document, or with a whole request."""

    OK = "ok"
    """Stored."""
    SUPERSEDED = "superseded"
    """A newer version is there already (409): nothing to do."""
    BACK_OFF = "back off"
    """The engine is overloaded: wait, send less at once, same ids."""
    PAUSE = "pause"
    """The index is blocked until somebody frees disk space: wait long, say so."""
    RESEND = "resend"
    """No usable answer: the write may or may not have happened; wait and send the same ids."""
    BISECT = "bisect"
    """Something in the request is not acceptable: halve it until the culprit is alone."""
    REJECT = "reject"
    """This document is not acceptable: keep it apart with its reason and go on."""
    STOP = "stop"
    """Nothing that waiting helps against (rights, missing index, write block): stop, everything else stays pending."""


_BLOCK = "cluster_block_exception"
_MISSING_INDEX = ("index_not_found_exception", "index_closed_exception", "alias_not_found_exception")
_WHOLE: dict[int, Action] = {401: Action.STOP, 403: Action.STOP, 408: Action.RESEND, 429: Action.BACK_OFF}
_ITEM: dict[int, Action] = {**_WHOLE, 409: Action.SUPERSEDED}
_TOO_LARGE_FOR_QUEUE = re.compile(r"operation_bytes=(\d+).*?max_[a-z_]*bytes=(\d+)")


def outcome(status: int | None, error_type: str = "", reason: str = "", *, whole: bool = False) -> Action:
    """Return what to do about one status: ``BISECT`` only for whole requests, ``REJECT`` and ``OK`` only for items.

    ``status`` is the HTTP status of an item, or of the ``whole`` request; None where no usable answer came (connection,
    time-out, answer cut in half, fewer items than operations). ``error_type`` is the engine's own name of the error;
    ``reason``, its words, is read only for the byte counts of indexing pressure.
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
    """Return what to do after a whole request failed; lack of rights, of the index or of the feature stops any run."""
    if isinstance(error, EngineAuthError | IndexMissing | Unsupported):
        return Action.STOP
    if isinstance(error, EngineRejected) and (error.status is None or error.status < 300):
        # Not the engine's verdict on the request: a wrong product behind the URL, a certificate nobody trusts.
        return Action.STOP
    return outcome(error.status, error.error_type, str(error), whole=True)


def _never_fits(reason: str) -> bool:
    """Return True where a 429 says that this request alone is above the engine's limit: waiting cannot help."""
    sizes = _TOO_LARGE_FOR_QUEUE.search(reason)
    return sizes is not None and int(sizes.group(1)) > int(sizes.group(2))


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """How much goes into one request."""

    RANGES: ClassVar[Mapping[str, str]] = {"max_ops": "[1, inf)", "max_bytes": "[1, inf)"}

    max_ops: int = 500
    """Documents a request, at most."""
    max_bytes: int = 8_000_000
    """JSON bytes a request, at most; a larger document travels alone. Past some 5 to 15 MB nothing is gained."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a request is sent again, and when the loop gives up; all times in seconds."""

    max_calls: int = 6
    """Calls in a row without one document settled, after which the run stops (resumable)."""
    base_s: float = 0.5
    cap_s: float = 30.0
    """First and longest back-off; doubled each time, times a random factor in [0.5, 1)."""
    max_outage_s: float = 300.0
    """How long an engine that does not answer is waited for (asked by a cheap count, not by the documents)."""
    pause_s: float = 5.0
    pause_cap_s: float = 60.0
    max_pause_s: float = 1800.0
    """First and longest wait while the index is blocked (disk full), and how long in all, also by a Retry-After."""
    deadline_s: float | None = None
    """Limit of the whole run."""

    def __post_init__(self) -> None:
        times = ("base_s", "cap_s", "max_outage_s", "pause_s", "pause_cap_s", "max_pause_s")
        check_ranges(self, max_calls="[1, inf)", **dict.fromkeys(times, "[0, inf)"))


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One write and where it came from."""

    op: WriteOp
    """The write; its id is given by the source, so that sending it twice stores it once."""
    line: int = 0
    """1-based line (or row) in the input, 0 where there is none."""
    offset: int = 0
    end: int = 0
    """Byte offsets of its first byte and of the one behind its last."""


def guarded_write(action: Literal["index", "update"], read: StoredDocument, source: Mapping[str, Any]) -> BulkItem:
    """Return the write over exactly the version of a document that was read, with its routing."""
    guard = {"if_seq_no": read.seq_no, "if_primary_term": read.primary_term}
    return BulkItem(WriteOp(action, read.id, source, routing=read.routing, **guard))


@dataclass(frozen=True, slots=True)
class BulkEvents:
    """Callbacks of the loop."""

    settled: Callable[[BulkItem, Action, str, str], None] = no_progress
    """``(item, action, reason, error_type)`` at each document's end: ``OK``, ``SUPERSEDED``, or ``REJECT``.

    ``reason`` is text for people; ``error_type`` is the engine's own name of the error of this document, or "".
    """
    acked: Callable[[BulkItem], None] = no_progress
    """``(item)``: this item and all before it are settled; the place for a checkpoint."""
    notice: Say = silent
    """``(text)`` when the loop waits for somebody (blocked index, engine away)."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How documents are written, whatever is written."""

    reject_path: Path | None = None
    """Where documents go that cannot be written, with the reason."""
    limits: BulkLimits = field(default_factory=BulkLimits)
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    seed: int = 0
    """Of the jitter."""


@dataclass(slots=True)
class Account:
    """Counts of a run, seconds, and why it ``stopped`` before its end."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the reason of a stop as text."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        rounded = {name: round(value, 3) for name, value in values.items() if isinstance(value, float)}
        return {**values, **rounded, "stopped": None if values["stopped"] is None else str(values["stopped"])}


@dataclass(slots=True)
class BulkReport(Account):
    """The account of a run: ``indexed + superseded + rejected + pending == read``, always."""

    read: int = 0
    """Items taken from the input."""
    indexed: int = 0
    """Stored and acknowledged by the engine."""
    superseded: int = 0
    """Not stored because a newer version was there (409)."""
    rejected: int = 0
    """Refused for good, each with its reason."""
    pending: int = 0
    """Neither: the run stopped before they were settled; a resumed run sends them again."""
    calls: int = 0
    waited_s: float = 0.0
    """Time spent in back-off and pauses."""
    stopped: EngineError | None = None


class Stopped(Exception):
    """The run ends here; ``error`` is the engine's own."""

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
"""Room for the action line of one operation, besides the id."""


def _refusal(op: WriteOp, hard_limit_bytes: int) -> tuple[int, str]:
    """Return the size of an operation in a request, bytes, and why no engine takes it ("" where one may).

    NaN and infinities have no JSON form; lone surrogates have no UTF-8 form; nesting past the interpreter's limit
    cannot be written. Engines differ in which of these they notice, hence the check here.
    """
    if fault := id_fault(op.id):
        return 0, fault
    try:
        size = len(json_bytes(op.source)) if op.source is not None else 0
    except UnicodeEncodeError:
        return 0, "a text holds a lone surrogate (half of a UTF-16 pair), which is not UTF-8"
    except (ValueError, TypeError) as error:
        return 0, f"not writable as JSON: {error}"
    size += len(op.id.encode("utf-8")) + ACTION_BYTES
    if size > hard_limit_bytes:
        return size, f"the document has {size} bytes, the engine takes requests of at most {hard_limit_bytes}"
    return size, ""


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
    """Sends writes to one index, which it never creates, and accounts for each; ``rng`` is the source of the jitter."""

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
        # Waits since a request went well.
        self._waits = self._pauses = 0
        self._paused_s = 0.0
        self._hard_limit = engine.capabilities().max_bulk_bytes
        self._max_ops, self._max_bytes = self.limits.max_ops, self.limits.max_bytes
        self._suspects: list[tuple[_Queued, str]] = []
        self._stalled = 0
        self._settled_by_engine = 0

    def write(self, items: Iterable[BulkItem]) -> BulkReport:
        """Return the account of sending all items, with a stop in ``stopped``; errors of the iterator are raised."""
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
            report.stopped = _reworded(stop.error, f"{text}run the same command again to go on)")
        report.pending = report.read - report.indexed - report.superseded - report.rejected
        return report

    def _chunks(self, items: Iterable[BulkItem]) -> Iterator[list[_Queued]]:
        """Yield chunks within the limits; what no engine takes is rejected here and never travels."""
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
        """Send a chunk by as many requests as the limits learnt so far make of it, at least one document in each."""
        queue = deque(chunk)
        while queue:
            piece = [queue.popleft()]
            n_bytes = piece[0].n_bytes
            while queue and len(piece) < self._max_ops and n_bytes + queue[0].n_bytes <= self._max_bytes:
                n_bytes += queue[0].n_bytes
                piece.append(queue.popleft())
            queue.extendleft(reversed(self._send(piece, len(chunk), queue)))

    def _send(self, piece: list[_Queued], chunk_size: int, queue: deque[_Queued]) -> list[_Queued]:
        """Return the documents of ``piece`` that must go again, in order."""
        if self._ends_within(0.0):
            raise Stopped(EngineUnavailable(f"the deadline of {self.policy.deadline_s:g} s for the run is reached"))
        self.report.calls += 1
        sent = [queued.item.op.id for queued in piece]
        try:
            results = self.engine.bulk(self.index, [queued.item.op for queued in piece])
            if [result.id for result in results] != sent:
                raise EngineUnavailable(
                    f"the bulk answer has {len(results)} items that do not match the {len(sent)} operations sent; "
                    "the same ids are sent again"
                )
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
                reason = f"{result.error_type}: {result.reason}" if result.status >= 300 else ""
                self._settle(queued.item, action, reason, result.error_type)
            elif queued.tries + 1 >= self.policy.max_calls and result.status == 500:
                # Others are answered, this one makes the engine fail each time: the document is the cause.
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
        """Act on a request without per-item answer; return what must go again now."""
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
            raise Stopped(error)
        return rest

    def _refused_alone(self, queued: _Queued, error: EngineError, queue: deque[_Queued]) -> None:
        """Send a lone overloaded document behind the others, or reject it where only it is refused."""
        if queued.alone_refusals == 0:
            queued.settled_at_refusal = self._settled_by_engine
        queued.alone_refusals += 1
        if queued.alone_refusals >= ALONE_TRIES and self._settled_by_engine > queued.settled_at_refusal:
            self._settle(queued.item, Action.REJECT, f"refused alone {ALONE_TRIES} times: {error}")
            self._count_progress()
        else:
            queue.append(queued)

    def _count_progress(self) -> None:
        self._stalled = 0
        self._reject_suspects()

    def _reject_suspects(self) -> None:
        """Reject the documents refused alone: the engine takes others, or there are no others."""
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
        """Sleep before the next call, as ``action`` and the engine's Retry-After ask."""
        if action is Action.PAUSE:
            self._pause(error)
        elif action is not Action.BISECT:
            self._nap(max(self._back_off(), self._retry_after(error)), error)
            if action is Action.RESEND and (error.status is None or error.status >= 500):
                self._await_engine(error)

    def _ends_within(self, seconds: float) -> bool:
        return self._run.limit_s is not None and self._run.spent_s + seconds > self._run.limit_s

    def _retry_after(self, error: EngineError) -> float:
        """Return the seconds of the engine's Retry-After; raise `Stopped` where a run never waits so long."""
        seconds, limit = error.retry_after_s or 0.0, self.policy.max_pause_s
        if seconds > limit:
            text = f"the engine asks to wait {seconds:.0f} s, and a run waits {limit:.0f} s at most: {error}"
            raise Stopped(_reworded(error, text))
        if seconds > self.policy.cap_s:
            self.events.notice(f"the engine asks to wait {seconds:.0f} s ({error}); nothing is lost")
        return seconds

    def _back_off(self) -> float:
        seconds = back_off_s(self._waits, self.policy.base_s, self.policy.cap_s)
        self._waits += 1
        return seconds * (0.5 + 0.5 * float(self._rng.random()))

    def _nap(self, seconds: float, error: EngineError) -> None:
        if self._ends_within(seconds):
            text = f"the deadline of {self.policy.deadline_s:g} s leaves no time for another try after: {error}"
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
            f"engine or lift the block; next try in {seconds:.0f} s, nothing is lost"
        )
        self._paused_s += seconds
        self._nap(seconds, error)

    def _await_engine(self, error: EngineError) -> None:
        """Return once the engine answers a count; documents are not sent into a void."""
        outage = Deadline(self.policy.max_outage_s, self._clock)
        notice = self.events.notice
        while not self._answers():
            if outage.passed:
                raise Stopped(error)
            notice(f"the engine does not answer ({error}); waiting up to {self.policy.max_outage_s:.0f} s")
            notice = silent
            self._nap(min(self._back_off(), 5.0), error)

    def _answers(self) -> bool:
        """Return True if the engine says anything at all, be it that we may not count."""
        try:
            self.engine.count(self.index)
        except EngineError as error:
            return not isinstance(error, EngineUnavailable)
        return True
