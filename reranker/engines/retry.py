"""Retries of requests to an engine: which failures are temporary, how long to wait, and when to give up.

Commands that run for minutes or hours open their engine with `Retries`. A repeatable request (reads, refreshes, and
changes that are idempotent) is then sent again after a connection reset, an incomplete answer, a timeout, a 5xx or a
429. The engine of `ssi serve` has no retries: its searches have a deadline of about a second and a circuit breaker.
Bulk writes have their own retry policy (`indexer.bulk`), which works per document.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from reranker.config import check_ranges
from reranker.deadline import Deadline
from reranker.errors import EngineError, EngineOverloaded, EngineUnavailable
from reranker.progress import Say

T = TypeVar("T")

VIEW_LOST = "search_context_missing_exception"
"""Error type for a missing scroll or point in time: the same request can never succeed again."""
_log = logging.getLogger(__name__)


def back_off_s(tries: int, first_s: float, longest_s: float) -> float:
    """Return the upper limit of the pause before the next attempt, in seconds; it doubles with each earlier attempt."""
    return min(first_s * 2.0 ** min(tries, 60), longest_s)


@dataclass(frozen=True, slots=True)
class RequestRetryPolicy:
    """When a request is sent again."""

    deadline_s: float = 300.0
    """Seconds after a request's first failure during which it is sent again."""
    first_pause_s: float = 0.5
    """Longest pause before the second attempt, in seconds. It doubles with each attempt."""
    longest_pause_s: float = 30.0
    """Upper limit of the doubled pause, in seconds. A longer Retry-After of the engine is honoured."""
    max_answers: int = 10
    """Consecutive answers with status 500, or with 200 and unusable content, after which the request is blamed."""

    def __post_init__(self) -> None:
        times = ("deadline_s", "first_pause_s", "longest_pause_s")
        check_ranges(self, max_answers="[1, inf)", **dict.fromkeys(times, "[0, inf)"))


class Retries:
    """Retries of one engine's requests: policy, clock, source of jitter and receiver of notices.

    Parameters
    ----------
    policy : RequestRetryPolicy, optional
        When a request is sent again.
    rng : random.Random
        Draws each pause between 0 and its upper limit (full jitter), so that many clients do not return at once.
    notice : callable, optional
        Called with one line for each retry; by default, the line is logged. It never contains query text.
    sleep, clock : callable
        `time.sleep` and a clock that never goes back.
    """

    def __init__(
        self,
        policy: RequestRetryPolicy | None = None,
        *,
        rng: random.Random,
        notice: Say = _log.warning,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy or RequestRetryPolicy()
        self.rng, self.notice, self.sleep, self.clock = rng, notice, sleep, clock
        self.answered = False
        """Whether the engine has answered any request. Before that, a refused connection suggests a wrong address."""
        self.count = 0
        """Number of retries so far."""

    def attempts(self, request: str, *, resumes: bool = False) -> Attempts:
        """Return the attempts at one request; with ``resumes``, it can continue after the loss of a snapshot."""
        return Attempts(self, request, resumes=resumes)


class Attempts:
    """The attempts at one request, which messages call ``request``; only one attempt if ``retries`` is None."""

    def __init__(self, retries: Retries | None, request: str, *, resumes: bool = False) -> None:
        self._retries, self._request, self._resumes = retries, request, resumes
        self.succeeded()

    def succeeded(self) -> None:
        """Reset the count of attempts and the deadline, because part of the work was done."""
        self._failures = self._answers = 0
        self._slept_s = 0.0
        self._deadline: Deadline | None = None

    def wait(self, error: EngineError) -> None:
        """Sleep before the next attempt; raise the error if a retry cannot help or the deadline would pass."""
        retries = self._retries
        if retries is None or not self._may_pass(error, retries):
            raise error
        policy = retries.policy
        if self._deadline is None:
            self._deadline = Deadline(policy.deadline_s, retries.clock)
        self._failures += 1
        self._answers = self._answers + 1 if error.status in (200, 500) else 0
        pause_s = back_off_s(self._failures - 1, policy.first_pause_s, policy.longest_pause_s) * retries.rng.random()
        pause_s = max(pause_s, error.retry_after_s or 0.0)
        # The sum of the pauses limits the attempts even if the clock of the machine does not advance.
        spent_s = max(self._deadline.spent_s, self._slept_s)
        if spent_s + pause_s > policy.deadline_s or self._answers >= policy.max_answers:
            raise self._last(error, spent_s) from error
        retries.notice(
            f"{self._request} failed ({error.message}): attempt {self._failures + 1} in {pause_s:.1f} s, "
            f"giving up in {policy.deadline_s - spent_s:.0f} s"
        )
        retries.count += 1
        self._slept_s += pause_s
        retries.sleep(pause_s)

    def _may_pass(self, error: EngineError, retries: Retries) -> bool:
        if not isinstance(error, EngineUnavailable | EngineOverloaded) or error.data.get("gave_up"):
            return False
        if error.data.get("unreached") and not retries.answered:
            return False
        return self._resumes or error.error_type != VIEW_LOST

    def _last(self, error: EngineError, spent_s: float) -> EngineError:
        asked = f"; the engine requests a pause of {error.retry_after_s:.0f} s" if error.retry_after_s else ""
        message = (
            f"{self._request} failed {self._failures} times in {spent_s:.0f} s, the last time with: {error.message}"
            f"{asked}. Check that the engine is running, then start the same command again: index, revectorize, sync "
            "and retrain continue where they stopped"
        )
        return type(error)(message, **{**error.data, "gave_up": True})


def retried(function: Callable[[], T], attempts: Attempts) -> T:
    """Return the result of ``function``, which may be called again after temporary failures."""
    while True:
        try:
            return function()
        except EngineError as error:
            attempts.wait(error)


def attempts_of(engine: object, request: str) -> Attempts:
    """Return the attempts at one request to an engine; a single one if the engine was opened without retries."""
    retries = getattr(engine, "retries", None)
    return Attempts(retries if isinstance(retries, Retries) else None, request)
