"""Work on several cores: calls at the same time, and a call that runs meanwhile. No result depends on their number."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

import numpy as np

_Result = TypeVar("_Result")


class Abandoned(Exception):
    """The call was abandoned before it ended."""


class _ThisThread(threading.local):
    """State of the current thread."""

    is_one_of_several = False
    """True while other cores have work of their own: nested calls then stay in this thread."""
    stopped: threading.Event | None = None
    """Set when nobody waits for the result of this thread any more."""


_this_thread = _ThisThread()


def n_cores() -> int:
    """Return the number of cores."""
    return os.cpu_count() or 1


@cache
def _other_cores() -> ThreadPoolExecutor:
    """Return threads for all cores but that of the caller."""
    return ThreadPoolExecutor(max(n_cores() - 1, 1), thread_name_prefix="ssi-core")


# The threads do not exist in a process that is forked from this one.
os.register_at_fork(after_in_child=_other_cores.cache_clear)


def on_cores(calls: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Return the results of calls that do not depend on one another, in order.

    The caller's thread makes some of the calls, and the threads of the other cores make the rest.
    """
    if _this_thread.stopped is not None and _this_thread.stopped.is_set():
        raise Abandoned
    if len(calls) < 2 or _this_thread.is_one_of_several or n_cores() < 2:
        return [call() for call in calls]
    n_threads = min(n_cores(), len(calls))

    def some(first: int) -> list[_Result]:
        return _as_one_of_several(lambda: [call() for call in calls[first::n_threads]], None)

    others = [_other_cores().submit(some, first) for first in range(1, n_threads)]
    parts = [some(0), *(other.result() for other in others)]
    return [parts[number % n_threads][number // n_threads] for number in range(len(calls))]


def in_parts(part: Callable[[int, int], _Result], bounds: Sequence[int]) -> list[_Result]:
    """Return the results of the parts between the bounds, in order."""
    return on_cores([partial(part, *each) for each in itertools.pairwise(bounds)])


def bounds_of(n: int, n_parts: int) -> list[int]:
    """Return the bounds of parts of about the same size."""
    return [0, *np.linspace(0, n, 1 + n_parts)[1:-1].astype(int).tolist(), n] if n_parts > 1 else [0, n]


@contextmanager
def meanwhile(call: Callable[[], _Result]) -> Iterator[Future[_Result]]:
    """Make a call in a thread of its own while the context lasts, which is given its result.

    The call uses one core. If the context ends with an error, it is stopped at the next `on_cores`.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="ssi-meanwhile") as thread:
        try:
            yield thread.submit(_as_one_of_several, call, stopped)
        finally:
            stopped.set()


def _as_one_of_several(call: Callable[[], _Result], stopped: threading.Event | None) -> _Result:
    before = _this_thread.is_one_of_several, _this_thread.stopped
    _this_thread.is_one_of_several, _this_thread.stopped = True, stopped
    try:
        return call()
    finally:
        _this_thread.is_one_of_several, _this_thread.stopped = before
