"""What an HTTP answer of an engine means: one table from status to error class, for both engines and all calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from reranker.engines.transport import NoReplyError, Reply
from reranker.engines.wire import decode
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    RequestTooLarge,
    VersionConflict,
)

_LONGEST_REASON = 600

STATUS_CLASSES: dict[int, tuple[type[EngineError], str]] = {
    401: (EngineAuthError, "set SSI_ENGINE_USER and SSI_ENGINE_PASSWORD, or SSI_ENGINE_API_KEY, to valid credentials"),
    403: (EngineAuthError, "use credentials whose role may do this"),
    404: (EngineRejected, "check the name and the engine's version"),
    408: (EngineUnavailable, "try again, or allow more time"),
    409: (VersionConflict, "read the document again and decide anew"),
    413: (RequestTooLarge, "send less in one request"),
    429: (EngineOverloaded, "send less, or later"),
}
"""Status → class and remedy. Not listed: 5xx is `EngineUnavailable`, everything else `EngineRejected`."""

BLOCKED = "cluster_block_exception"
"""An index closed for writing: with status 403 by its owner, with 429 because the disk is nearly full."""


def error_of(reply: Reply, engine: str, request: str) -> EngineError:
    """Return the error that an answer of status 300 and above stands for.

    Parameters
    ----------
    reply : Reply
    engine : str
        Kind of engine, for the message and ``data``.
    request : str
        Method and path, for the message.
    """
    kind, reason = _told(reply)
    cls, remedy = _class(reply.status, kind)
    told = f"{kind}: {reason}" if kind and reason else kind or reason or "no reason given"
    return cls(
        f"{engine} answered {reply.status} to {request}: {told[:_LONGEST_REASON]}; {remedy}",
        engine=engine,
        status=reply.status,
        error_type=kind,
        retry_after_s=retry_after_s(reply.headers),
    )


def _class(status: int, kind: str) -> tuple[type[EngineError], str]:
    if kind == "index_not_found_exception":
        return IndexMissing, "check the index or alias name, or create it first"
    if kind == "search_context_missing_exception":
        return EngineUnavailable, "the engine dropped the view it was reading from: start again"
    if kind == BLOCKED and status == 403:
        return EngineRejected, "the index is closed for this by its owner: lift its index.blocks.* settings"
    if kind == BLOCKED and status == 429:
        return (
            EngineOverloaded,
            "the engine closed the index for writing, most likely for want of disk space: free some",
        )
    if status >= 500:
        return EngineUnavailable, "try again later, or see the engine's log"
    return STATUS_CLASSES.get(status, (EngineRejected, "change the request"))


def _told(reply: Reply) -> tuple[str, str]:
    """Return the engine's own name of the error and its reason, or parts of a body that is no JSON."""
    try:
        body = decode(reply.body)
    except ValueError:
        return "", reply.body[:200].decode("utf-8", "replace").strip()
    error: Any = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return "", str(error)
    causes = error.get("root_cause") or [error]
    cause = causes[0] if isinstance(causes, list) and isinstance(causes[0], Mapping) else error
    kind = str(error.get("type") or "")
    # "all shards failed" and "validation failed" tell nothing; the root cause does.
    reason = str(cause.get("reason") or error.get("reason") or "")
    if kind == "search_phase_execution_exception" and cause.get("type"):
        kind = str(cause["type"])
    return kind, reason


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header (seconds or an HTTP date), or None."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def no_reply(error: NoReplyError, spec: str, engine: str, request: str, timeout_s: float) -> EngineError:
    """Return the error for an exchange without a whole answer."""
    data = {"engine": engine, "status": None, "timed_out": error.timed_out}
    if error.tls:
        return EngineRejected(
            f"no secure connection to {spec} ({error.reason}): set SSI_ENGINE_CA_FILE to the certificate that signs it",
            error_type="tls",
            **data,
        )
    if error.timed_out:
        message = f"{spec} did not answer {request} within {timeout_s:g} s: allow more time, or ask for less"
    else:
        message = f"no answer from {spec} to {request} ({error.reason}): check that it runs and that the URL is right"
    return EngineUnavailable(message, **data)


def unusable(engine: str, request: str, why: str, **data: object) -> EngineUnavailable:
    """Return the error for an answer with a good status that cannot be trusted."""
    return EngineUnavailable(
        f"{engine} answered {request} with something unusable ({why}): what was sent may or may not have been done; "
        "send it again",
        engine=engine,
        status=200,
        error_type="unusable_answer",
        **data,
    )
