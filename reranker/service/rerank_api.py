"""``/v1/rerank`` and ``/v2/rerank``: the shapes of Cohere and Jina. The part of the service with all rerank routes.

A request that cannot be ranked (deadline, no model, no vectors) comes back in the order given, with
``x-ssi-fallback: 1``, ``meta.fallback`` and the reason among ``meta.warnings``.

``/v1/rerank`` is Cohere's and Jina's at once: its answers and errors carry the fields of both, so that nobody has to
guess who asks; only the default of ``return_documents`` follows the model's name (``jina...``: true).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from reranker.service import texts_api
from reranker.service.context import RequestContext, context_of, service_of
from reranker.service.errors import ErrorShape
from reranker.service.json_route import JsonRoute
from reranker.service.ranking import Documents, RankCall, Ranked, are_ids, error_responses, json_response, rank
from reranker.service.rerank_schemas import (
    CohereError,
    DocumentsAre,
    JinaError,
    RerankAnswer,
    RerankAnswerV1,
    RerankRequest,
)
from reranker.service.state import ServiceState

State = Annotated[ServiceState, Depends(service_of)]
Context = Annotated[RequestContext, Depends(context_of)]
SaidInUrl = Annotated[DocumentsAre | None, Query(description="As in the body, which it goes before.")]


def cohere_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return ``{"message"}``."""
    return {"message": message}


def v1_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return what Cohere's clients (``message``) and Jina's (``detail``) read."""
    return {"message": message, "detail": message}


ERROR_SHAPES: Mapping[str, ErrorShape] = {
    "/v1/rerank": v1_error,
    "/v2/rerank": cohere_error,
    **dict.fromkeys(texts_api.PATHS, texts_api.texts_error),
}
"""Error shapes by path: for `reranker.service.app.Part`."""

router = APIRouter(route_class=JsonRoute, tags=["rerank"])
router.include_router(texts_api.router)


@router.post(
    "/v2/rerank", response_model=RerankAnswer, responses=error_responses(CohereError), operation_id="rerank_v2"
)
async def rerank_v2(wanted: RerankRequest, state: State, context: Context, documents_are: SaidInUrl = None) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v2)."""
    ranked = await rank(state, context, _call(wanted, documents_are))
    answer = _answer(ranked, "2", wanted.documents if wanted.return_documents else None)
    return json_response(answer, ranked.headers)


@router.post(
    "/v1/rerank", response_model=RerankAnswerV1, responses=error_responses(JinaError), operation_id="rerank_v1"
)
async def rerank_v1(wanted: RerankRequest, state: State, context: Context, documents_are: SaidInUrl = None) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v1 and Jina)."""
    ranked = await rank(state, context, _call(wanted, documents_are))
    shown = wanted.model.startswith("jina") if wanted.return_documents is None else wanted.return_documents
    answer = _answer(ranked, "1", wanted.documents if shown else None)
    answer |= {"model": wanted.model, "object": "list", "usage": {"total_tokens": 0}}
    return json_response(answer, ranked.headers)


def _call(wanted: RerankRequest, documents_are: str | None) -> RankCall:
    ids = are_ids(wanted.model, documents_are, wanted.documents_are)
    return RankCall(wanted.query, wanted.documents, ids, wanted.top_n, wanted.rank_fields or ())


def _answer(ranked: Ranked, version: str, documents: Documents | None) -> dict[str, Any]:
    """Return the answer with or without the documents as they were given."""
    scoring, scores = ranked.scoring, ranked.scoring.relevance().tolist()
    results: list[dict[str, Any]] = [{"index": place, "relevance_score": scores[place]} for place in ranked.places]
    if documents is not None:
        for result in results:
            document = documents[result["index"]]
            result["document"] = {"text": document} if isinstance(document, str) else document
    return {
        "id": str(uuid.uuid4()),
        "results": results,
        "meta": {
            "api_version": {"version": version, "is_deprecated": False, "is_experimental": False},
            "billed_units": {"search_units": 0},
            "warnings": [scoring.reason, *scoring.warnings] if scoring.fallback else list(scoring.warnings),
            "model_id": ranked.serving.model_id,
            "fallback": scoring.fallback,
            "unscored": scoring.n_unscored,
        },
    }
