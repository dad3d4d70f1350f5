"""One JSON object a line on standard error: no query, no document, no key, no control character."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO, Any

from reranker.service.context import RequestContext

_access = logging.getLogger("reranker.service.access")


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON line; of an exception, its class and where it was raised, not what it says."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry.update(getattr(record, "ssi", {}))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            frames = traceback.extract_tb(error.__traceback__)[-8:]
            entry["error"] = type(error).__name__
            entry["at"] = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
        return json.dumps(entry, ensure_ascii=True, default=str)


def configure_logs(stream: IO[str] | None = None, level: str = "INFO") -> None:
    """Send all log records, as JSON lines, to a stream (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def log_request(context: RequestContext, route: str, method: str, status: int, seconds: float) -> None:
    """Log an answered request."""
    if not _access.isEnabledFor(logging.INFO):
        return
    entry: dict[str, Any] = {
        "request_id": context.request_id,
        "route": route,
        "method": method,
        "status": status,
        "ms": round(seconds * 1000.0, 2),
        **context.notes,
    }
    if context.key_name:
        entry["key"] = context.key_name
    _access.info("request", extra={"ssi": entry})
