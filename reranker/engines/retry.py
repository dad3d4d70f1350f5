"""Retries of requests to an engine: which failures pass by themselves, how long to wait, and when to give up.

Commands that run for minutes or hours open their engine with `Retries`. A request that may be sent twice (reads,
refreshes, changes whose second time changes nothing) is then sent again after a connection that was reset, an answer
cut in half, a time-out, a 5xx or a 429. Searches of `ssi serve` have a deadline of about a second and a circuit
breaker; their engine has no retries. Bulk writes have a policy of their own (`indexer.bulk`), which knows documents.
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
"""The engine's name of the error that a scroll or a point in time is gone: the same request never succeeds again."""
_log = logging.getLogger(__name__)


def back_off_s(tries: int, first_s: float, longest_s: float) -> float:
    """Return the longest back-off before the next attempt, in seconds, after ``tries`` earlier ones: it doubles."""
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
    """Answers in a row of status 500, or 200 with unusable content, after which the request counts as their cause."""

    def __post_init__(self) -> None:
        times = ("deadline_s", "first_pause_s", "longest_pause_s")
        check_ranges(self, max_answers="[1, inf)", **dict.fromkeys(times, "[0, inf)"))


class Retries:
    """The retries of one engine's requests, with the clock, the source of jitter and the place of notes.

    Parameters
    ----------
    policy : RequestRetryPolicy, optional
        When a request is sent again.
    rng : random.Random
        Draws each pause between 0 and its upper limit (full jitter), so that many clients do not return at once.
    notice : callable, optional
        Gets one line for each retry; without it, the line is logged. The line contains no text of a query.
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
        """The engine has answered a request. Before that, a refused connection is most likely a wrong address."""
        self.count = 0
        """Number of retries so far."""

    def attempts(self, request: str, *, resumes: bool = False) -> Attempts:
        """Return the attempts at one request; one that ``resumes`` goes on after the loss of the engine's view."""
        return Attempts(self, request, resumes=resumes)


class Attempts:
    """The attempts at one request, named ``request`` in messages; without ``retries``, there is one attempt."""

    def __init__(self, retries: Retries | None, request: str, *, resumes: bool = False) -> None:
        self._retries, self._request, self._resumes = retries, request, resumes
        self.succeeded()

    def succeeded(self) -> None:
        """Begin the count of attempts and the deadline again: a part of the work was done."""
        self._failures = self._answers = 0
        self._slept_s = 0.0
        self._deadline: Deadline | None = None

    def wait(self, error: EngineError) -> None:
        """Sleep before the next attempt; raise the error if another attempt cannot help or the deadline passes."""
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
        # The sum of the pauses ends the attempts even on a machine whose clock stands still.
        spent_s = max(self._deadline.spent_s, self._slept_s)
        if spent_s + pause_s > policy.deadline_s or self._answers >= policy.max_answers:
            raise self._last(error, spent_s) from error
        retries.notice(
            f"{self._request} failed ({error.message}): attempt {self._failures + 1} in {pause_s:.1f} s, "
            f"given up {policy.deadline_s - spent_s:.0f} s from now"
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
        asked = f"; the engine asks to wait {error.retry_after_s:.0f} s" if error.retry_after_s else ""
        message = (
            f"{self._request} failed {self._failures} times in {spent_s:.0f} s, the last time with: {error.message}"
            f"{asked}. Check that the engine runs, then start the same command again: index, revectorize, sync and "
            "retrain go on where they stopped"
        )
        return type(error)(message, **{**error.data, "gave_up": True})


def retried(function: Callable[[], T], attempts: Attempts) -> T:
    """Return what ``function``, which may run twice, returns; it is called again after failures that pass."""
    while True:
        try:
            return function()
        except EngineError as error:
            attempts.wait(error)


def attempts_of(engine: object, request: str) -> Attempts:
    """Return the attempts at one request to an engine; one attempt for an engine that was opened without retries."""
    retries = getattr(engine, "retries", None)
    return Attempts(retries if isinstance(retries, Retries) else None, request)
