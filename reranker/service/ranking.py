"""What all rerank routes share: a request of any family to scores and one order, by the version that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Response

from reranker.records import SearchAnswer
from reranker.rerank.page import Clock
from reranker.service.context import RequestContext
from reranker.service.errors import KINDS, ServiceError
from reranker.service.lookup import IndexedDocuments
from reranker.service.metrics import cause_of
from reranker.service.scoring import Item, Scoring, items_of, score_items
from reranker.service.serving import Serving
from reranker.service.state import ServiceState

IDS_SUFFIX = ":ids"
"""At the end of a model's name: the documents are ids. Every client lets its user name the model."""
Documents = Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RankCall:
    """A rerank request of any family.

    Parameters
    ----------
    query : str
    documents : sequence of str or mapping
        As `reranker.service.scoring.items_of` takes them.
    are_ids : bool
    top_n : int or None
        Results wanted; None: all.
    rank_fields : sequence of str
    """

    query: str
    documents: Documents
    are_ids: bool = False
    top_n: int | None = None
    rank_fields: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Ranked:
    """Its outcome, and the version that made it."""

    scoring: Scoring
    serving: Serving
    top_n: int | None = None

    @property
    def places(self) -> list[int]:
        """Places of the request's documents, best first, as many as were asked for."""
        places: list[int] = self.scoring.order[: self.top_n].tolist()
        return places

    @property
    def headers(self) -> dict[str, str]:
        """What every family's answer says of the version, and of documents that were not ranked."""
        return {
            "x-ssi-model": self.serving.model_id,
            "x-ssi-fallback": str(int(self.scoring.fallback)),
            "x-ssi-unscored": str(self.scoring.n_unscored),
        }


def are_ids(model: str, *said: str | None) -> bool:
    """Return whether the documents are ids: what was said first counts, then the model's name."""
    first = next((one for one in said if one is not None), None)
    return model.endswith(IDS_SUFFIX) if first is None else first == "ids"


def error_responses(error: type[Any]) -> dict[int | str, dict[str, Any]]:
    """Return what a route may answer besides success, in a family's own shape, for its OpenAPI description."""
    statuses = (400, 401, 403, 408, 413, 415, 422, 429, 431, 500, 502, 503)
    return {status: {"model": error, "description": KINDS[status].replace("_", " ")} for status in statuses}


def json_response(value: Any, headers: Mapping[str, str]) -> Response:
    """Return an answer in JSON; a float is written with a point or an exponent, never as an integer."""
    return Response(msgspec.json.encode(value), 200, dict(headers), "application/json")


async def rank(state: ServiceState, context: RequestContext, call: RankCall) -> Ranked:
    """Return scores and order of a request's documents.

    Raises
    ------
    ServiceError
        413 for more documents than a request may have.
    """
    limit = state.settings.limits.max_documents
    if len(call.documents) > limit:
        raise ServiceError(413, f"{len(call.documents)} documents, more than the {limit} that a request may have")
    serving = state.serving
    scoring = await state.run(context, lambda: _score(state, serving, context, call))
    _note(state, context, scoring)
    context.notes["version"] = serving.model_id[:12]
    return Ranked(scoring, serving, call.top_n)


def _score(state: ServiceState, serving: Serving, context: RequestContext, call: RankCall) -> Scoring:
    clock = Clock(max(context.deadline.left_ms, 0.001))
    model, settings = serving.model, state.settings
    if model is None:
        return score_items(None, call.query, [Item()] * len(call.documents), clock=clock)
    items = items_of(call.documents, model.encoder.view, are_ids=call.are_ids, rank_fields=call.rank_fields)

    def search(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
        return state.ask_engine(lambda: state.engine.search(settings.index, body, timeout_s=timeout_s))

    indexed = IndexedDocuments(serving.store, search)
    max_unscored = settings.rerank.max_unscored
    return score_items(model, call.query, items, indexed=indexed, clock=clock, max_unscored=max_unscored)


def _note(state: ServiceState, context: RequestContext, scoring: Scoring) -> None:
    metrics = state.metrics
    metrics.note_stages(scoring.timings_ms)
    metrics.documents.labels("ids").inc(scoring.n_stored)
    metrics.documents.labels("texts").inc(scoring.n_encoded)
    context.notes["documents"] = len(scoring.scores)
    if scoring.fallback:
        metrics.fallbacks.labels(cause_of(scoring.reason)).inc()
        context.notes["cause"] = cause_of(scoring.reason)
