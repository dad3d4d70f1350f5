"""An engine whose requests an event loop sends, for tests of synchronous code."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from reranker.engines.event_loop import in_greenlet


class OnLoop:
    """Calls every method of an engine in a greenlet on an event loop, as a service does."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._runner = asyncio.Runner()

    def __enter__(self) -> OnLoop:
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._engine.connections.close_own())
        self._runner.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._engine, name)

        def call(*given: Any, **named: Any) -> Any:
            code = in_greenlet(lambda: method(*given, **named))
            return self._runner.run(code, context=contextvars.copy_context())

        return call
