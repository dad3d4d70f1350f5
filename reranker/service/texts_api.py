"""``/rerank``, ``/embed`` and ``/info``: the shapes of text-embeddings-inference.

An item of ``/rerank``'s answer has exactly ``index``, ``score`` and, where asked for, ``text``: Elasticsearch refuses
any further field. Whether the order is the one given stands in the header ``x-ssi-fallback``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Query, Response

from reranker.artifacts import RankingModel
from reranker.models.projection import unit
from reranker.service.context import RequestContext, context_of, service_of
from reranker.service.errors import ServiceError
from reranker.service.json_route import JsonRoute
from reranker.service.ranking import RankCall, are_ids, error_responses, json_response, rank
from reranker.service.rerank_schemas import (
    DocumentsAre,
    EmbedRequest,
    InfoAnswer,
    TextResult,
    TextsError,
    TextsRequest,
)
from reranker.service.scoring import BATCH, text_field
from reranker.service.serving import Serving
from reranker.service.state import ServiceState

PATHS = ("/rerank", "/embed", "/info")
State = Annotated[ServiceState, Depends(service_of)]
Context = Annotated[RequestContext, Depends(context_of)]
SaidInUrl = Annotated[DocumentsAre | None, Query(description="As in the body, which it goes before.")]

router = APIRouter(route_class=JsonRoute)


def texts_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return ``{"error", "error_type"}`` with one of text-embeddings-inference's types."""
    if status == 429 or kind == "overloaded":
        name = "Overloaded"
    elif status == 503:
        name = "Unhealthy"
    else:
        name = "Backend" if status >= 500 else "Validation"
    return {"error": message, "error_type": name}


@router.post(
    "/rerank", response_model=list[TextResult], responses=error_responses(TextsError), operation_id="rerank_texts"
)
async def rerank_texts(
    wanted: TextsRequest, state: State, context: Context, documents_are: SaidInUrl = None
) -> Response:
    """Rerank texts, or indexed documents by their ids (text-embeddings-inference)."""
    ids = are_ids(wanted.model, documents_are, wanted.documents_are)
    ranked = await rank(state, context, RankCall(wanted.query, wanted.texts, ids, wanted.top_n))
    scores = (ranked.scoring.raw() if wanted.raw_scores else ranked.scoring.relevance()).tolist()
    results: list[dict[str, Any]] = [{"index": place, "score": scores[place]} for place in ranked.places]
    if wanted.return_text:
        for result in results:
            result["text"] = _as_text(wanted.texts[result["index"]])
    return json_response(results, ranked.headers)


@router.post("/embed", response_model=list[list[float]], responses=error_responses(TextsError), operation_id="embed")
async def embed(wanted: EmbedRequest, state: State, context: Context) -> Response:
    """Turn texts into the vectors of the learned part: Vd, or Uq for queries (text-embeddings-inference).

    Words that are the same on both sides count in f besides: the product of two vectors is f without its identity part.
    """
    serving = state.serving
    model = _model_of(serving)
    vectors = await state.run(context, lambda: _embedded(model, wanted, context))
    return json_response(vectors.tolist(), {"x-ssi-model": serving.model_id})


@router.get("/info", response_model=InfoAnswer, responses=error_responses(TextsError), operation_id="info")
async def info(state: State) -> Response:
    """Say what is served (text-embeddings-inference)."""
    serving = state.serving
    model, limits = _model_of(serving), state.settings.limits
    answer = {
        "model_id": serving.path.name if serving.path else "ssi",
        "model_sha": serving.model_id,
        "model_dtype": model.encoder.quantisation,
        "model_type": {"reranker": {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}},
        "max_concurrent_requests": limits.workers + limits.max_waiting,
        "max_input_length": model.encoder.view.max_chars,
        "max_client_batch_size": limits.max_documents,
        "auto_truncate": True,
        "version": metadata.version("ssi-reranker"),
        "encoder_id": serving.encoder_id,
        "n_dims": model.encoder.n_dims,
    }
    return json_response(answer, {"x-ssi-model": serving.model_id})


def _as_text(document: str | Mapping[str, Any]) -> str:
    if isinstance(document, str):
        return document
    return str(document.get("text") or document.get("id") or document.get("_id") or "")


def _model_of(serving: Serving) -> RankingModel:
    if serving.model is None:
        raise ServiceError(503, "no model is loaded", kind="model_unavailable", retry_after_s=5.0)
    return serving.model


def _embedded(model: RankingModel, wanted: EmbedRequest, context: RequestContext) -> npt.NDArray[np.float32]:
    """Return the vectors of the inputs, (n, N) float32; a zero vector stays one."""
    texts = [wanted.inputs] if isinstance(wanted.inputs, str) else wanted.inputs
    field = text_field(model.encoder.view)
    parts = []
    for start in range(0, len(texts), BATCH):
        if context.deadline.left_s <= 0:
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0)
        part = texts[start : start + BATCH]
        if wanted.prompt_name == "query":
            parts.append(model.encode_queries(part).vectors)
        else:
            parts.append(model.encoder.encode([{field: text} for text in part]).vectors)
    vectors: npt.NDArray[np.float32] = np.concatenate(parts)
    return unit(vectors) if wanted.normalize else vectors
