"""What the bulk loop takes and returns: limits, retry policy, one write with its place in the input, the account."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from indexer.status import Action
from reranker.engines.base import WriteOp
from reranker.errors import ConfigError, EngineError


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
