"""A first stage by vectors beside the engine's own: documents that share no word with the query become candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from reranker.errors import EncoderMismatch, RerankerError, Unsupported
from reranker.records import Hit
from reranker.rerank.inside import missing_fields
from reranker.rerank.page import Request
from reranker.rerank.showing import documents_of
from reranker.rerank.window import EncodedQuery


@dataclass(frozen=True, slots=True)
class United:
    """Hits of both first stages.

    Parameters
    ----------
    hits : tuple of Hit
        The engine's window in its order, then the documents found by vectors alone, then the engine's other hits.
    width : int
        How many of them are candidates.
    notice : str
        What the reader should know; may be empty.
    """

    hits: tuple[Hit, ...]
    width: int
    notice: str = ""


@dataclass(slots=True)
class NearestDocuments:
    """Finds the documents whose vectors are nearest to the query's, under the conditions of the team's body.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias.
    encoder_id : str
        Names the field.
    k : int
        Documents asked for.
    """

    engine: Engine
    index: str
    encoder_id: str
    k: int
    _fields: FirstStageFields | None = field(init=False, default=None)

    def fields(self) -> FirstStageFields:
        """Return the field to search; asked for once.

        Raises
        ------
        EncoderMismatch
            If the index has none of this encoder; the message names the command that writes it.
        Unsupported
            If the engine cannot search by vectors.
        EngineError
            If it does not answer.
        """
        if self._fields is None:
            self._fields = self._ask_fields()
        return self._fields

    def _ask_fields(self) -> FirstStageFields:
        capabilities = self.engine.capabilities()
        if capabilities.kind not in ("elasticsearch", "opensearch"):
            raise Unsupported(
                f"{capabilities.kind} cannot search by vectors: use --retrieve bm25", engine=capabilities.kind
            )
        found: set[FirstStageFields] = set()
        for name in self.engine.index_names(self.index):
            fields = first_stage_fields(self.engine.index_info(name).properties, self.encoder_id, capabilities)
            if fields is None:
                raise missing_fields(self.engine, self.index, name, self.encoder_id, "first-stage")
            found.add(fields)
        if len(found) != 1:
            raise EncoderMismatch(f"the indexes behind {self.index!r} have different fields to search, or none")
        return found.pop()

    def nearest(self, request: Request, query: EncodedQuery) -> list[Hit]:
        """Return the documents found, nearest first; none for a query whose words the model has no vectors of."""
        vector = query.vectors.vector
        if not vector.any():
            return []
        body = knn_body(self.fields(), vector, self.k, conditions_of(request.body))
        timeout_s = request.clock.remaining_s(at_least=0.001)
        answer = self.engine.search(self.index, body, preference=request.preference, timeout_s=timeout_s)
        return list(answer.hits[: self.k])

    def unite(
        self,
        request: Request,
        query: EncodedQuery,
        hits: Sequence[Hit],
        window: int,
        source: bool | list[str],
    ) -> United:
        """Return the hits of both stages; the engine's alone, with the reason, where the other one fails.

        Each document found by its vector alone comes with the score that the team's own query gives it, 0 where it
        shares no word: all candidates are blended alike.

        Parameters
        ----------
        request : Request
        query : EncodedQuery
        hits : sequence of Hit
            The engine's own.
        window : int
            How many of them are candidates.
        source : bool or list of str
            ``_source`` of a candidate.
        """
        alone = United(tuple(hits), min(window, len(hits)))
        if unread := unread_conditions(request.body):
            reason = f"the body rules documents out by {', '.join(unread)}, which cannot be taken over"
            return replace(alone, notice=f"documents were searched by words alone: {reason}")
        try:
            there = {(hit.index, hit.id) for hit in hits[:window]}
            new = [hit for hit in self.nearest(request, query) if (hit.index, hit.id) not in there]
            scored = self._scored(request, new, source) if new else []
        except RerankerError as error:
            return replace(alone, notice=f"documents were searched by words alone: {error}")
        finally:
            request.clock.lap("first stage")
        if not scored:
            return alone
        added = {(hit.index, hit.id) for hit in scored}
        rest = [hit for hit in hits[window:] if (hit.index, hit.id) not in added]
        width = min(window, len(hits)) + len(scored)
        notice = f"{len(scored)} of {width} candidates were found by their vectors"
        return United((*hits[:window], *scored, *rest), width, notice)

    def _scored(self, request: Request, hits: Sequence[Hit], source: bool | list[str]) -> list[Hit]:
        """Return hits with the first-stage score of the team's query."""
        body: Mapping[str, Any] = lexical_body(request.body, list({hit.id: None for hit in hits}), len(hits), source)
        timeout_s = request.clock.remaining_s(at_least=0.001)
        found = documents_of(
            self.engine, self.index, body, hits, preference=request.preference, timeout_s=timeout_s
        )  # fmt: skip
        return [found[hit.index, hit.id] for hit in hits if (hit.index, hit.id) in found]
