"""Searches for candidates that read doc values instead of stored fields, which the engine would have to decompress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reranker.deadline import Deadline
from reranker.engines.protocol import SearchesDocValues
from reranker.engines.vectors import DocValueFields, doc_value_fields, field_prefix
from reranker.engines.wire import failed_shards
from reranker.errors import EngineError
from reranker.records import Hit, SearchAnswer

READ_AGAIN_S: Final = 60.0
"""Seconds until the mapping is read again, if it did not have the fields."""
LONGEST_PAUSE: Final = 1024
"""Largest number of searches by stored fields after one by doc values that had to be repeated."""
_REPEATED_STATUS = frozenset({400, 500})
"""Status of requests that are repeated: a part of the body does not work without stored fields."""


class DocValueSearch:
    """Searches one index or alias for candidates by doc values, if all indexes behind the name have the fields.

    A search is repeated by stored fields (`search` returns None) if a hit has no id among its doc values, because
    nobody has encoded the document yet, or if the engine refuses the request. So it is if the page does not confirm an
    id (`note_failure`): a copy of a document has the id of its original, which the query may exclude.

    Then the mapping is read again before the next attempt. After such a repetition, the next search is by stored
    fields; after two in a row the next 2, then 4, and so on, so that an index where many documents have no id costs
    nearly no additional requests.

    Threads may share an instance: its state decides only which of two equal ways is tried.

    Parameters
    ----------
    engine
        The engine.
    index
        The index or alias.
    encoder_id
        The encoder.
    packed_parts
        Parts that the route needs besides the id.
    now
        Clock, in seconds.
    """

    def __init__(
        self,
        engine: SearchesDocValues,
        index: str,
        encoder_id: str,
        packed_parts: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.n_repeated = 0
        """Number of searches that were repeated by stored fields."""
        self._engine, self._index, self._encoder_id = engine, index, encoder_id
        self._packed_parts, self._now = tuple(packed_parts), now
        self._fields: DocValueFields | None = None
        self._read_at: float | None = None
        self._pause = self._left = 0

    @property
    def is_promising(self) -> bool:
        """Whether the next search is by doc values, as far as the mapping is known."""
        return self._left == 0 and (self._fields is not None or self._is_unread())

    def skip(self) -> None:
        """Count a search that was by stored fields."""
        self._left = max(self._left - 1, 0)

    def search(
        self, body: Mapping[str, Any], doc_values: Sequence[Mapping[str, str]], preference: str, deadline: Deadline
    ) -> SearchAnswer | None:
        """Return the answer to a body of `candidate_body`; None if it must be asked for by stored fields.

        Packed vectors and words, and ``doc_values``, are in ``fields`` of each hit. Raises `EngineError` if the engine
        does not answer.
        """
        if self._left > 0:
            self.skip()
            return None
        fields = self._known_fields(deadline)
        if fields is None:
            return None
        request = {**body, "docvalue_fields": [*fields.packed, *doc_values]}
        try:
            answer = self._engine.search_doc_values(
                self._index, request, fields.id, preference=preference, timeout_s=deadline.timeout_s()
            )
        except EngineError as error:
            if error.status not in _REPEATED_STATUS:
                raise
            self.note_failure()
            return None
        if failed_shards(answer.raw) or not _are_identified(answer.hits):
            self.note_failure()
            return None
        self._pause = 0
        return answer

    def note_failure(self) -> None:
        """Count a search whose answer cannot be used; the next ones are by stored fields."""
        self.n_repeated += 1
        self._read_at = None
        self._pause = self._left = min(max(2 * self._pause, 1), LONGEST_PAUSE)

    def _known_fields(self, deadline: Deadline) -> DocValueFields | None:
        """Return the fields if every index has them; they are read again after a repetition, or if some are missing."""
        if self._is_unread():
            # Noted first, so that other threads do not read the mapping too, nor again at once if it cannot be read.
            self._read_at = self._now()
            self._fields = self._read(deadline)
        return self._fields

    def _is_unread(self) -> bool:
        """Return whether the mapping must be read before the next search by doc values."""
        read_at = self._read_at
        return read_at is None or (self._fields is None and self._now() - read_at >= READ_AGAIN_S)

    def _read(self, deadline: Deadline) -> DocValueFields | None:
        prefix = field_prefix(self._encoder_id)
        try:
            mappings = self._engine.field_mappings(self._index, prefix, timeout_s=deadline.timeout_s())
        except EngineError:
            # Without the right to read the mapping, the fields are unknown. Another failure meets the search itself.
            return None
        found = [doc_value_fields(each, self._encoder_id, self._packed_parts) for each in mappings.values()]
        return found[0] if found and all(found) else None


def _are_identified(hits: Sequence[Hit]) -> bool:
    """Return whether every hit has an id of its own.

    Documents copied with our fields to another id have the id of the original, which may be among the hits.
    """
    ids = [hit.id for hit in hits]
    if not all(ids):
        return False
    # Only several indexes behind the name can have the same id twice, which is rare.
    return len(set(ids)) == len(ids) or len({(hit.index, hit.id) for hit in hits}) == len(hits)
