"""Requests that synchronous code makes and an event loop sends.

A search is synchronous code. In a service it runs in a greenlet on the service's event loop (`in_greenlet`): while it
waits for an answer of the engine, the loop serves other requests, and no thread is needed. Elsewhere, in a command or
an application, an event loop in a thread of its own sends the requests, and the calling thread waits.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

T = TypeVar("T")


class _OnLoop(greenlet):
    """Synchronous code on an event loop. Its parent awaits whatever is switched to it."""


async def in_greenlet(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which runs in a copy of the context and does not block the event loop.

    `result_of` and `in_thread` let the loop go on until they have a result. All other code of ``function`` occupies the
    loop. If this coroutine is cancelled, the error is raised where ``function`` waits.
    """
    code = _OnLoop(function, getcurrent())
    code.gr_context = contextvars.copy_context()
    result: Any = code.switch()
    while not code.dead:
        try:
            answer = await result
        except BaseException as error:
            result = code.throw(error)
        else:
            result = code.switch(answer)
    return cast("T", result)


def is_on_loop() -> bool:
    """Return whether the calling code runs in `in_greenlet`."""
    return isinstance(getcurrent(), _OnLoop)


def _awaited(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, for which the event loop of this greenlet waits."""
    parent = getcurrent().parent
    return cast("T", parent.switch(awaitable) if parent is not None else None)


def result_of(coroutine: Coroutine[Any, Any, T], meanwhile: Callable[[], None] | None = None) -> T:
    """Return the result of a coroutine that waits for a request.

    ``meanwhile`` is called once the request is on its way; it must not raise errors.
    """
    if is_on_loop():
        if meanwhile is None:
            return _awaited(coroutine)
        task = _awaited(_begun(coroutine))
        meanwhile()
        return _awaited(task)
    future = asyncio.run_coroutine_threadsafe(coroutine, _background_loop())
    try:
        if meanwhile is not None:
            meanwhile()
        return future.result()
    except BaseException:  # an interrupted caller no longer needs the answer
        future.cancel()
        raise


async def _begun(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return the task of a coroutine that has had two turns of the loop: to get a connection, and to send."""
    task = asyncio.create_task(coroutine)
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    except BaseException:
        task.cancel()
        raise
    return task


def in_thread(function: Callable[[], T]) -> T:
    """Return the result of ``function``, which runs in a thread if it would occupy an event loop for too long.

    It has a context of its own, so that its requests to an engine are the program's and not those of a caller.
    """
    if not is_on_loop():
        return function()
    return _awaited(asyncio.get_running_loop().run_in_executor(None, contextvars.Context().run, function))


_lock = threading.Lock()
_background: tuple[int, asyncio.AbstractEventLoop] | None = None
"""Process and event loop. A child process needs its own, because threads do not survive a fork."""


def _background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that sends the requests of code that runs on no loop; it ends with the process."""
    global _background  # noqa: PLW0603 - one thread for all engines of a process
    with _lock:
        if _background is None or _background[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="ssi-requests", daemon=True).start()
            _background = os.getpid(), loop
        return _background[1]
