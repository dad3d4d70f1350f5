"""The bulk loop: every document ends up stored, superseded, rejected with a reason, or pending; none is lost.

Both engines' own bulk helpers leave documents unaccounted (they pair answers with requests by position, retry some
classes of failure twice and others never). This loop has one status table (`indexer.bulk`), resends by id, halves
what is refused as a whole, waits as the engine asks, and stops cleanly where waiting cannot help.

What to do about an answer of the engine: the one status table of the bulk loop, as a pure function.

Source: the rules follow what was measured on Elasticsearch 8.19 and OpenSearch 2.19; both send 429 for two different
things (a full queue, and an index blocked because its disk is full), which need different remedies.

What the bulk loop takes and returns: limits, retry policy, one write with its place in the input, the account.

Waiting and stopping of the bulk loop: back-off with jitter, pauses, outages, the deadline, the final error.

What is refused before it travels, so that every engine refuses the same documents for the same reasons.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from reranker.engines.base import Engine, WriteOp, WriteResult
from reranker.engines.wire import encode
from reranker.errors import (
    ConfigError,
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    InputError,
    RequestTooLarge,
    Unsupported,
)


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
    """Return what to do about one status.

    Parameters
    ----------
    status : int or None
        HTTP status of the item or of the whole request; None where no usable answer came (connection, time-out,
        answer cut in half, fewer items than operations).
    error_type : str
        The engine's own name of the error.
    reason : str
        The engine's own words; read only for the byte counts of indexing pressure.
    whole : bool
        True for the status of a whole request, False for that of one item in it.

    Returns
    -------
    Action
        ``BISECT`` only for whole requests, ``REJECT`` and ``OK`` only for items.
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
    """Return what to do about a whole request that failed with ``error``.

    Missing rights, a missing index and what the engine cannot do at all stop the run whatever their status.
    """
    if isinstance(error, EngineAuthError | IndexMissing | Unsupported):
        return Action.STOP
    if isinstance(error, EngineRejected) and (error.status is None or error.status < 300):
        # Not the engine's verdict on the request: a wrong product behind the URL, a certificate nobody trusts.
        return Action.STOP
    return outcome(error.status, error.error_type, str(error), whole=True)


def _never_fits(reason: str) -> bool:
    """Return True where a 429 says that this request alone is above the engine's limit: waiting cannot help."""
    found = _TOO_LARGE_FOR_QUEUE.search(reason)
    return found is not None and int(found.group(1)) > int(found.group(2))


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """How much goes into one request.

    Parameters
    ----------
    max_ops : int
        Documents a request, at most.
    max_bytes : int
        JSON bytes a request, at most; a larger document travels alone. Servers refuse 100 MiB and more, and gain
        nothing past some 5 to 15 MB.
    """

    max_ops: int = 500
    max_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.max_ops < 1 or self.max_bytes < 1:
            raise ConfigError(f"bulk limits {self.max_ops} documents, {self.max_bytes} bytes: both must be at least 1")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a request is sent again, and when the loop gives up; all times in seconds.

    Parameters
    ----------
    max_calls : int
        Calls in a row without one document settled, after which the run stops (resumable).
    base_s, cap_s : float
        First and longest back-off; doubled each time, times a random factor in [0.5, 1).
    max_outage_s : float
        How long an engine that does not answer is waited for (asked by a cheap count, not by the documents).
    pause_s, pause_cap_s, max_pause_s : float
        First and longest wait while the index is blocked (disk full), and how long in all; a Retry-After beyond that
        ends the run.
    deadline_s : float or None
        Limit of the whole run.
    """

    max_calls: int = 6
    base_s: float = 0.5
    cap_s: float = 30.0
    max_outage_s: float = 300.0
    pause_s: float = 5.0
    pause_cap_s: float = 60.0
    max_pause_s: float = 1800.0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_calls < 1:
            raise ConfigError(f"max_calls is {self.max_calls}: at least 1 call is needed")
        for name in ("base_s", "cap_s", "max_outage_s", "pause_s", "pause_cap_s", "max_pause_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: seconds, 0 or more")


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One write and where it came from.

    Parameters
    ----------
    op : WriteOp
        The write; its id is given by the source, so that sending it twice stores it once.
    line : int
        1-based line (or row) in the input, 0 where there is none.
    offset, end : int
        Byte offsets of its first byte and of the one behind its last.
    """

    op: WriteOp
    line: int = 0
    offset: int = 0
    end: int = 0


Settled = Callable[[BulkItem, Action, str], None]
"""Told of each document's end: ``OK``, ``SUPERSEDED`` or ``REJECT`` with the reason."""


@dataclass(frozen=True, slots=True)
class BulkEvents:
    """Callbacks of the loop; each may be None.

    Parameters
    ----------
    settled : callable or None
        ``(item, action, reason)`` when a document is stored, superseded or rejected.
    acked : callable or None
        ``(item)``: this item and all before it are settled; the place for a checkpoint.
    notice : callable or None
        ``(text)`` when the loop waits for somebody (blocked index, engine away).
    """

    settled: Settled | None = None
    acked: Callable[[BulkItem], None] | None = None
    notice: Callable[[str], None] | None = None


@dataclass(slots=True)
class BulkReport:
    """The account of a run: ``indexed + superseded + rejected + pending == read``, always.

    Parameters
    ----------
    read : int
        Items taken from the input.
    indexed : int
        Stored and acknowledged by the engine.
    superseded : int
        Not stored because a newer version was there (409).
    rejected : int
        Refused for good, each with its reason.
    pending : int
        Neither: the run stopped before they were settled; a resumed run sends them again.
    calls : int
        Bulk requests sent.
    waited_s : float
        Time spent in back-off and pauses.
    stopped : EngineError or None
        Why the run stopped before its end.
    """

    read: int = 0
    indexed: int = 0
    superseded: int = 0
    rejected: int = 0
    pending: int = 0
    calls: int = 0
    waited_s: float = 0.0
    stopped: EngineError | None = None

    @property
    def accounted(self) -> int:
        """Documents whose fate is known: must equal ``read``."""
        return self.indexed + self.superseded + self.rejected + self.pending

    def to_json(self) -> dict[str, Any]:
        """Return the counts, and the reason of a stop as text."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["waited_s"] = round(self.waited_s, 3)
        values["stopped"] = None if self.stopped is None else str(self.stopped)
        return values


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


MAX_ID_BYTES = 512
"""Longest ``_id`` of Elasticsearch and OpenSearch, in UTF-8 bytes."""
ACTION_BYTES = 160
"""Room for the action line of one operation, besides the id."""


def id_fault(identifier: str) -> str:
    """Return why an id is not usable, or an empty string.

    One id that is empty, too long or not UTF-8 fails a whole bulk request on both engines.
    """
    if not isinstance(identifier, str):
        return f"id {identifier!r:.80} is not a string: give ids as strings"
    try:
        size = len(identifier.encode("utf-8"))
    except UnicodeEncodeError:
        return f"id {identifier!a:.80} holds a lone surrogate, which is not UTF-8: give the document another id"
    if size == 0:
        return "the id is empty: an id has 1 to 512 bytes of UTF-8"
    if size > MAX_ID_BYTES:
        return f"id {identifier[:40]!r}... has {size} bytes, at most {MAX_ID_BYTES} are legal: shorten or hash it"
    return ""


def refusal_reason(op: WriteOp, hard_limit_bytes: int) -> tuple[int, str]:
    """Return the size of an operation in a request, bytes, and why no engine takes it ("" where one may).

    Parameters
    ----------
    op : WriteOp
        The operation.
    hard_limit_bytes : int
        Largest request body of the engine.

    Notes
    -----
    NaN and infinities have no JSON form; lone surrogates have no UTF-8 form; nesting past the interpreter's limit
    cannot be written. Engines differ in which of these they notice, hence the check here.
    """
    fault = id_fault(op.id)
    if fault:
        return 0, fault
    try:
        size = len(encode(op.source)) if op.source is not None else 0
    except UnicodeEncodeError:
        return 0, "a text holds a lone surrogate (half of a UTF-16 pair), which is not UTF-8"
    except (ValueError, TypeError) as error:
        return 0, f"not writable as JSON: {error}"
    size += len(op.id.encode("utf-8")) + ACTION_BYTES
    if size > hard_limit_bytes:
        return size, f"the document has {size} bytes, the engine takes requests of at most {hard_limit_bytes}"
    return size, ""


def external_version(source: Mapping[str, Any], name: str) -> int:
    """Return a document's external version: a whole number of at least 0, or a time as milliseconds since 1970.

    Raises
    ------
    InputError
        Where the field is missing or is neither.
    """
    value: Any = source
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            when = None
        if when is not None:
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            return max(0, round(when.timestamp() * 1000))
    raise InputError(
        f"version field {name!r} is {value!r:.60}: give a whole number of at least 0 or an ISO 8601 time in it",
        field=name,
    )


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
