"""What `ssi serve` offers besides `reranker.service.app.own_parts`, and where impressions go."""

from __future__ import annotations

from reranker.engines.base import Engine
from reranker.errors import ConfigError
from reranker.service.app import Part
from reranker.service.records import RecordSink


def all_parts() -> tuple[Part, ...]:
    """Return every part that `ssi serve` offers."""
    return ()


def open_sink(spec: str, engine: Engine) -> RecordSink | None:
    """Return the sink of ``engine``, a file's name, or ``none``."""
    if spec == "none":
        return None
    raise ConfigError(f"sink {spec!r:.80} is not one of engine, FILE, none")
