"""What is known of a request besides its content: when it must be answered, who sent it, and where the state is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fastapi import Request

if TYPE_CHECKING:
    from reranker.service.state import ServiceState

CONTEXT_KEY = "ssi.context"
"""Where the guard puts the context into the ASGI scope."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request must be answered, by the monotonic clock.

    Parameters
    ----------
    limit_s : float
        Seconds from the creation.
    now : callable
    """

    limit_s: float
    now: Callable[[], float] = time.perf_counter
    started: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.now())

    @property
    def left_s(self) -> float:
        """Seconds left, 0 or more."""
        return max(self.limit_s - self.spent_s, 0.0)

    @property
    def left_ms(self) -> float:
        """Milliseconds left, 0 or more."""
        return self.left_s * 1000.0

    @property
    def spent_s(self) -> float:
        """Seconds since the request came."""
        return self.now() - self.started


@dataclass(slots=True)
class RequestContext:
    """One request, as the guard saw it.

    Parameters
    ----------
    request_id : str
        Sent back as ``X-Request-Id`` and written into the log.
    deadline : Deadline
    key_name : str
        Name of the API key, "" where none is asked for.
    notes : dict
        What the access log adds; short values of a bounded kind, never a query or a document.
    """

    request_id: str
    deadline: Deadline
    key_name: str = ""
    notes: dict[str, str | int | float | bool] = field(default_factory=dict)


async def context_of(request: Request) -> RequestContext:
    """Return the context of a request (a FastAPI dependency; `async` spares it a thread)."""
    return cast("RequestContext", request.scope[CONTEXT_KEY])


async def service_of(request: Request) -> ServiceState:
    """Return the state of the service (a FastAPI dependency, and the ``state_getter`` of every router)."""
    return cast("ServiceState", request.app.state.service)
