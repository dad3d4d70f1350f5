"""A first stage by vectors, which finds documents that share no word with the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reranker.engines.base import Engine
from reranker.engines.first_stage import (
    FirstStageFields,
    conditions_of,
    first_stage_fields,
    knn_body,
    lexical_body,
    unread_conditions,
)
from reranker.errors import RerankerError
from reranker.records import Hit
from reranker.rerank.candidates import EncodedQuery, documents_of, fields_of_index
from reranker.rerank.ranking import Request


@dataclass(slots=True)
class NearestDocuments:
    """Finds the ``k`` documents whose vectors are nearest to the query's, under the conditions of the team's body.

    ``encoder_id`` names the field of the vectors.
    """

    engine: Engine
    index: str
    encoder_id: str
    k: int
    _fields: FirstStageFields | None = field(init=False, default=None)

    def fields(self) -> FirstStageFields:
        """Return the field to search; asked for once, errors as `fields_of_index`."""
        if self._fields is None:
            head = (self.engine, self.index, self.encoder_id)
            self._fields = fields_of_index(*head, "first-stage", first_stage_fields)
        return self._fields

    def nearest(self, request: Request, query: EncodedQuery) -> list[Hit]:
        """Return the documents found, nearest first; none for a query whose words the model has no vectors of."""
        vector = query.vectors.vector
        if not vector.any():
            return []
        body = knn_body(self.fields(), vector, self.k, conditions_of(request.body))
        timeout_s = request.deadline.timeout_s()
        answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        return list(answer.hits[: self.k])

    def unite(
        self, request: Request, query: EncodedQuery, hits: Sequence[Hit], window: int, source: bool | list[str]
    ) -> tuple[Sequence[Hit], int, str]:
        """Return the hits of both stages, how many are candidates, and what the reader should know ("" for nothing).

        They are the engine's window in its order, then the documents found by vectors alone, then the engine's other
        hits; the engine's alone, with the reason, where the other stage fails.

        Each document found by its vector alone comes with the score that the team's own query gives it, 0 where it
        shares no word: all candidates are blended alike.

        ``hits`` are the engine's own, of which ``window`` are candidates; ``source`` is the ``_source`` of a candidate.
        """
        width = min(window, len(hits))
        if unread := unread_conditions(request.body):
            reason = f"the body rules documents out by {', '.join(unread)}, which cannot be taken over"
            return hits, width, f"documents were searched by words alone: {reason}"
        try:
            known = {(hit.index, hit.id) for hit in hits[:window]}
            new = [hit for hit in self.nearest(request, query) if (hit.index, hit.id) not in known]
            scored = self._scored(request, new, source) if new else []
        except RerankerError as error:
            return hits, width, f"documents were searched by words alone: {error}"
        finally:
            request.deadline.note_stage("first stage")
        if not scored:
            return hits, width, ""
        added = {(hit.index, hit.id) for hit in scored}
        rest = [hit for hit in hits[window:] if (hit.index, hit.id) not in added]
        width += len(scored)
        notice = f"{len(scored)} of {width} candidates were found by their vectors"
        return (*hits[:window], *scored, *rest), width, notice

    def _scored(self, request: Request, hits: Sequence[Hit], source: bool | list[str]) -> list[Hit]:
        """Return hits with the first-stage score of the team's query."""
        body: Mapping[str, Any] = lexical_body(request.body, list({hit.id: None for hit in hits}), len(hits), source)
        timeout_s = request.deadline.timeout_s()
        scored = documents_of(self.engine, self.index, body, hits, preference=request.preference, timeout_s=timeout_s)
        return [scored[hit.index, hit.id] for hit in hits if (hit.index, hit.id) in scored]
