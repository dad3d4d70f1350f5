"""What to do about an answer of the engine: the one status table of the bulk loop, as a pure function.

Source: the rules follow what was measured on Elasticsearch 8.19 and OpenSearch 2.19; both send 429 for two different
things (a full queue, and an index blocked because its disk is full), which need different remedies.
"""

from __future__ import annotations

import enum
import re

from reranker.errors import EngineAuthError, EngineError, EngineRejected, IndexMissing, Unsupported


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
