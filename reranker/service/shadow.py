"""Scores searches that were already answered, to see what reranking would have done; never in anyone's way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reranker.errors import RerankerError
from reranker.service.context import Deadline
from reranker.service.modes import SearchCall, rerank
from reranker.service.records import SearchRecord

if TYPE_CHECKING:
    from reranker.service.state import ServiceState

_log = logging.getLogger(__name__)
MAX_WAITING = 32
"""Searches that may wait to be scored; the rest are counted and only logged as shown."""


class Shadow:
    """One thread that reranks what was answered in the engine's order.

    Parameters
    ----------
    state : ServiceState
    on_page : callable
        Told of the model's order: ``on_page(record)`` with ``shadow_ids`` filled, as far as it could be.
    """

    def __init__(self, state: ServiceState, on_page: Callable[[SearchRecord], None]) -> None:
        self._state, self._on_page = state, on_page
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, call: SearchCall, record: SearchRecord) -> None:
        """Score a search later, or log it without where too many wait."""
        with self._lock:
            full = self._waiting >= MAX_WAITING
            if not full:
                self._waiting += 1
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="ssi-shadow")
        if full or self._pool is None:
            self._state.metrics.shadows.labels("skipped").inc()
            self._on_page(record)
            return
        self._pool.submit(self._score, call, record).add_done_callback(partial(self._note_cancelled, record))

    def _note_cancelled(self, record: SearchRecord, scoring: Future[None]) -> None:
        if scoring.cancelled():
            self._on_page(record)

    def _score(self, call: SearchCall, record: SearchRecord) -> None:
        state, result = self._state, "failed"
        try:
            late = replace(call, deadline=Deadline(state.settings.deadline_s), explain=False)
            page = state.ask_engine(lambda: rerank(state, late)).page
            result = "fallback" if page.fallback else "scored"
            record = replace(record, shadow_ids=tuple(hit.id for hit in page.hits))
            moved = sum(a.id != b for a, b in zip(record.hits, record.shadow_ids, strict=False))
            entry = {"query_id": record.query_id, "moved": moved, "of": len(record.hits), "result": result}
            _log.info("shadow", extra={"ssi": entry})
        except RerankerError as error:
            _log.warning("shadow", extra={"ssi": {"query_id": record.query_id, "error": type(error).__name__}})
        finally:
            with self._lock:
                self._waiting -= 1
            state.metrics.shadows.labels(result).inc()
            self._on_page(record)

    def close(self) -> None:
        """Log what waits only as shown."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
