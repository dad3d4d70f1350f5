"""Rerank routes in the shapes that clients already speak: Cohere v1 and v2, Jina, text-embeddings-inference.

All score by `reranker.service.scoring`; a request that cannot be ranked (deadline, no model, no vectors) comes back in
the order given, with ``x-ssi-fallback: 1`` and, where the family has a place for it, the reason.

``/v1/rerank`` is Cohere's and Jina's at once: its answer and its errors carry the fields of both, so that no guess of
who asks is needed; only the default of ``return_documents`` follows the model's name (``jina...``: true).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

import reranker
from reranker.artifacts import RankingModel
from reranker.records import SearchAnswer
from reranker.rerank.page import Clock
from reranker.service import rerank_schemas as schemas
from reranker.service.context import RequestContext, context_of, service_of
from reranker.service.errors import KINDS, ErrorShape, ServiceError
from reranker.service.json_route import JsonRoute
from reranker.service.lookup import IndexedDocuments
from reranker.service.metrics import cause_of
from reranker.service.scoring import BATCH, Scoring, items_of, score_items, text_field
from reranker.service.serving import Serving
from reranker.service.state import ServiceState

T = TypeVar("T")
StateOf = Callable[[Request], ServiceState]
IDS_SUFFIX = ":ids"
Documents = Sequence[str | Mapping[str, Any]]


def cohere_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return ``{"message"}``."""
    return {"message": message}


def v1_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return what Cohere's clients (``message``) and Jina's (``detail``) read."""
    return {"message": message, "detail": message}


def texts_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return ``{"error", "error_type"}`` with one of text-embeddings-inference's types."""
    if status == 429 or kind == "overloaded":
        name = "Overloaded"
    elif status == 503:
        name = "Unhealthy"
    else:
        name = "Backend" if status >= 500 else "Validation"
    return {"error": message, "error_type": name}


ERROR_SHAPES: Mapping[str, ErrorShape] = {
    "/v1/rerank": v1_error,
    "/v2/rerank": cohere_error,
    "/rerank": texts_error,
    "/embed": texts_error,
    "/info": texts_error,
}
"""Error shapes by path."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A rerank request of any family."""

    query: str
    documents: Documents
    are_ids: bool
    top_n: int | None
    rank_fields: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Its outcome, and the version that made it."""

    scoring: Scoring
    serving: Serving
    top_n: int | None

    @property
    def places(self) -> list[int]:
        """Places of the request's documents, best first, as many as were asked for."""
        places: list[int] = self.scoring.order[: self.top_n].tolist()
        return places


def _responses(error: type[Any]) -> dict[int | str, dict[str, Any]]:
    statuses = (400, 401, 403, 408, 413, 415, 422, 429, 431, 500, 502, 503)
    return {status: {"model": error, "description": KINDS[status].replace("_", " ")} for status in statuses}


def _json(value: Any, headers: Mapping[str, str]) -> Response:
    """Return an answer; a float is written with a point or an exponent, never as an integer."""
    return Response(msgspec.json.encode(value), 200, dict(headers), "application/json")


def _headers(ranked: _Ranked) -> dict[str, str]:
    return {
        "x-ssi-model": ranked.serving.model_id,
        "x-ssi-fallback": str(int(ranked.scoring.fallback)),
        "x-ssi-unscored": str(ranked.scoring.n_unscored),
    }


def _are_ids(model: str, *said: str | None) -> bool:
    return "ids" in said or (not any(said) and model.endswith(IDS_SUFFIX))


async def _rank(state: ServiceState, context: RequestContext, call: _Call) -> _Ranked:
    """Return scores and order, with the version taken once."""
    limit = state.settings.limits.max_documents
    if len(call.documents) > limit:
        raise ServiceError(413, f"{len(call.documents)} documents, more than the {limit} that a request may have")
    serving = state.serving
    scoring = await state.run(context, lambda: _score(state, serving, context, call))
    _note(state, context, scoring)
    return _Ranked(scoring, serving, call.top_n)


def _score(state: ServiceState, serving: Serving, context: RequestContext, call: _Call) -> Scoring:
    clock = Clock(max(context.deadline.left_ms, 0.001))
    model = serving.model
    if model is None:
        return score_items(None, call.query, [*map(_nothing, call.documents)], clock=clock)
    items = items_of(call.documents, model.encoder.view, are_ids=call.are_ids, rank_fields=call.rank_fields)
    settings = state.settings

    def search(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
        return state.ask_engine(lambda: state.engine.search(settings.index, body, timeout_s=timeout_s))

    indexed = IndexedDocuments(serving.store, search)
    max_unscored = settings.rerank.max_unscored
    return score_items(model, call.query, items, indexed=indexed, clock=clock, max_unscored=max_unscored)


def _nothing(document: object) -> Any:
    """Stand for a document where no model says what it is."""
    return document


def _note(state: ServiceState, context: RequestContext, scoring: Scoring) -> None:
    metrics = state.metrics
    metrics.note_stages(scoring.timings_ms)
    metrics.documents.labels("ids").inc(scoring.n_stored)
    metrics.documents.labels("texts").inc(scoring.n_encoded)
    if scoring.fallback:
        metrics.fallbacks.labels(cause_of(scoring.reason)).inc()
    context.notes |= {"documents": len(scoring.scores), "fallback": scoring.fallback}


def _results(ranked: _Ranked, documents: Documents | None) -> list[dict[str, Any]]:
    scores = ranked.scoring.relevance().tolist()
    if documents is None:
        return [{"index": place, "relevance_score": scores[place]} for place in ranked.places]
    return [
        {"index": place, "relevance_score": scores[place], "document": _as_object(documents[place])}
        for place in ranked.places
    ]


def _as_object(document: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"text": document} if isinstance(document, str) else document


def _answer(ranked: _Ranked, version: str, documents: Documents | None) -> dict[str, Any]:
    scoring = ranked.scoring
    return {
        "id": str(uuid.uuid4()),
        "results": _results(ranked, documents),
        "meta": {
            "api_version": {"version": version, "is_deprecated": False, "is_experimental": False},
            "billed_units": {"search_units": 0},
            "warnings": [scoring.reason, *scoring.warnings] if scoring.reason else list(scoring.warnings),
            "model_id": ranked.serving.model_id,
            "fallback": scoring.fallback,
            "unscored": scoring.n_unscored,
        },
    }


def router(state_of: StateOf = service_of) -> APIRouter:
    """Return the routes ``/v1/rerank``, ``/v2/rerank``, ``/rerank``, ``/embed`` and ``/info``."""
    routes = APIRouter(route_class=JsonRoute)
    _add_cohere(routes, state_of)
    _add_texts(routes, state_of)
    return routes


def _add_cohere(routes: APIRouter, state_of: StateOf) -> None:
    said = Query(None, description="As in the body.")

    async def ranked(
        state: ServiceState, context: RequestContext, body: schemas.RerankRequest, documents_are: str | None
    ) -> _Ranked:
        are_ids = _are_ids(body.model, documents_are, body.documents_are)
        call = _Call(body.query, body.documents, are_ids, body.top_n, body.rank_fields or ())
        return await _rank(state, context, call)

    @routes.post(
        "/v2/rerank",
        tags=["rerank"],
        summary="Rerank documents (Cohere v2)",
        response_model=schemas.RerankAnswer,
        responses=_responses(schemas.CohereError),
    )
    async def rerank_v2(
        body: schemas.RerankRequest,
        state: Annotated[ServiceState, Depends(state_of)],
        context: Annotated[RequestContext, Depends(context_of)],
        documents_are: schemas.DocumentsAre | None = said,
    ) -> Response:
        outcome = await ranked(state, context, body, documents_are)
        shown = body.documents if body.return_documents else None
        return _json(_answer(outcome, "2", shown), _headers(outcome))

    @routes.post(
        "/v1/rerank",
        tags=["rerank"],
        summary="Rerank documents (Cohere v1, Jina)",
        response_model=schemas.RerankAnswerV1,
        responses=_responses(schemas.JinaError),
    )
    async def rerank_v1(
        body: schemas.RerankRequest,
        state: Annotated[ServiceState, Depends(state_of)],
        context: Annotated[RequestContext, Depends(context_of)],
        documents_are: schemas.DocumentsAre | None = said,
    ) -> Response:
        outcome = await ranked(state, context, body, documents_are)
        wanted = body.model.startswith("jina") if body.return_documents is None else body.return_documents
        answer = _answer(outcome, "1", body.documents if wanted else None)
        answer |= {"model": body.model, "object": "list", "usage": {"total_tokens": 0}}
        return _json(answer, _headers(outcome))


def _add_texts(routes: APIRouter, state_of: StateOf) -> None:
    @routes.post(
        "/rerank",
        tags=["rerank"],
        summary="Rerank texts (text-embeddings-inference)",
        response_model=list[schemas.TextResult],
        responses=_responses(schemas.TextsError),
    )
    async def rerank(
        body: schemas.TextsRequest,
        state: Annotated[ServiceState, Depends(state_of)],
        context: Annotated[RequestContext, Depends(context_of)],
        documents_are: schemas.DocumentsAre | None = Query(None, description="As in the body."),
    ) -> Response:
        are_ids = _are_ids(body.model, documents_are, body.documents_are)
        outcome = await _rank(state, context, _Call(body.query, body.texts, are_ids, body.top_n))
        scoring = outcome.scoring
        scores = (scoring.raw() if body.raw_scores else scoring.relevance()).tolist()
        results: list[dict[str, Any]] = [{"index": place, "score": scores[place]} for place in outcome.places]
        if body.return_text:
            for result in results:
                result["text"] = _as_text(body.texts[result["index"]])
        return _json(results, _headers(outcome))

    @routes.post(
        "/embed",
        tags=["rerank"],
        summary="Texts to vectors (text-embeddings-inference)",
        response_model=list[list[float]],
        responses=_responses(schemas.TextsError),
    )
    async def embed(
        body: schemas.EmbedRequest,
        state: Annotated[ServiceState, Depends(state_of)],
        context: Annotated[RequestContext, Depends(context_of)],
    ) -> Response:
        serving = state.serving
        model = _model_of(serving)
        vectors = await state.run(context, lambda: _embedded(model, body, context))
        return _json(vectors.tolist(), {"x-ssi-model": serving.model_id})

    @routes.get(
        "/info",
        tags=["rerank"],
        summary="What is served (text-embeddings-inference)",
        response_model=schemas.InfoAnswer,
        responses=_responses(schemas.TextsError),
    )
    async def info(state: Annotated[ServiceState, Depends(state_of)]) -> Response:
        serving = state.serving
        return _json(_info(state, _model_of(serving), serving), {"x-ssi-model": serving.model_id})


def _as_text(document: str | Mapping[str, Any]) -> str:
    if isinstance(document, str):
        return document
    return str(document.get("text") or document.get("id") or document.get("_id") or "")


def _model_of(serving: Serving) -> RankingModel:
    if serving.model is None:
        raise ServiceError(503, "no model is loaded", kind="model_unavailable", retry_after_s=5.0)
    return serving.model


def _embedded(model: RankingModel, body: schemas.EmbedRequest, context: RequestContext) -> npt.NDArray[np.float32]:
    """Return the vectors of the inputs, (n, N) float32; a zero vector stays one."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    field = text_field(model.encoder.view)
    parts = []
    for start in range(0, len(texts), BATCH):
        if context.deadline.left_s <= 0:
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0)
        part = texts[start : start + BATCH]
        if body.prompt_name == "query":
            parts.append(model.encode_queries(part).vectors)
        else:
            parts.append(model.encoder.encode([{field: text} for text in part]).vectors)
    vectors: npt.NDArray[np.float32] = np.concatenate(parts)
    if body.normalize:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    return vectors


def _info(state: ServiceState, model: RankingModel, serving: Serving) -> dict[str, Any]:
    limits = state.settings.limits
    return {
        "model_id": serving.path.name if serving.path else "ssi",
        "model_sha": serving.model_id,
        "model_dtype": model.encoder.quantisation,
        "model_type": {"reranker": {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}},
        "max_concurrent_requests": limits.workers + limits.max_waiting,
        "max_input_length": model.encoder.view.max_chars,
        "max_client_batch_size": limits.max_documents,
        "auto_truncate": True,
        "version": reranker.__version__,
        "encoder_id": serving.encoder_id,
        "n_dims": model.encoder.n_dims,
    }
