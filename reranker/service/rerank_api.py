"""The rerank routes, in the words of the three families whose clients speak to them.

``/v1/rerank`` and ``/v2/rerank`` have the shapes of Cohere and Jina. A request that cannot be ranked (deadline, no
model, no vectors) comes back in the order given, with ``x-ssi-fallback: 1``, ``meta.fallback`` and the reason among
``meta.warnings``. ``/v1/rerank`` is Cohere's and Jina's at once: its answers and errors carry the fields of both, so
that nobody has to guess who asks; only the default of ``return_documents`` follows the model's name (true for
``jina...``).

``/rerank``, ``/embed`` and ``/info`` have the shapes of text-embeddings-inference. An item of ``/rerank``'s answer has
exactly ``index``, ``score`` and, where asked for, ``text``: Elasticsearch refuses any further field. Whether the order
is the one given stands in the header ``x-ssi-fallback``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Response
from fastapi import Query as UrlParameter
from pydantic import AliasChoices, BaseModel, Field

from reranker.artifacts import RankingModel
from reranker.deadline import Deadline
from reranker.models.projection import unit
from reranker.records import SearchAnswer
from reranker.service.http import (
    AS_WHOLE,
    Context,
    ErrorShape,
    JsonRoute,
    RequestContext,
    ServiceError,
    StrictRequest,
    error_responses,
)
from reranker.service.scoring import BATCH, IndexedDocuments, Item, Scoring, items_of, score_items, text_field
from reranker.service.serving import Serving
from reranker.service.state import ServiceState, State
from reranker.service.telemetry import cause_of

IDS_SUFFIX = ":ids"
"""At the end of a model's name: the documents are ids. Every client lets its user name the model."""
Documents = Sequence[str | Mapping[str, Any]]


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


def are_ids(model: str, in_url: str | None, in_body: str | None) -> bool:
    """Return whether the documents are ids: the URL goes before the body, and that before the model's name."""
    documents_are = in_body if in_url is None else in_url
    return model.endswith(IDS_SUFFIX) if documents_are is None else documents_are == "ids"


def json_response(value: Any, headers: Mapping[str, str]) -> Response:
    """Return an answer in JSON; a float is written with a point or an exponent, never as an integer."""
    return Response(msgspec.json.encode(value), 200, dict(headers), "application/json")


async def rank(
    state: ServiceState, context: RequestContext, query: str, documents: Documents, *, by_id: bool, top_n: int | None,
    rank_fields: Sequence[str] = (),
) -> Ranked:  # fmt: skip
    """Return scores and order of a request's documents, as `reranker.service.scoring.items_of` takes them.

    Raises
    ------
    ServiceError
        413 for more documents than a request may have.
    """
    settings, serving, metrics = state.settings, state.serving, state.metrics
    limit = settings.limits.max_documents
    if len(documents) > limit:
        raise ServiceError(413, f"{len(documents)} documents, more than the {limit} that a request may have")

    def search(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
        return state.ask_engine(lambda: state.engine.search(settings.index, body, timeout_s=timeout_s))

    def score() -> Scoring:
        deadline, model = Deadline(max(context.deadline.left_s, 1e-6)), serving.model
        items = [Item()] * len(documents)
        if model is not None:
            items = items_of(documents, model.encoder.view, are_ids=by_id, rank_fields=rank_fields)
        indexed = IndexedDocuments(serving.reranker.store, search)
        max_unscored = settings.rerank.max_unscored
        return score_items(model, query, items, indexed=indexed, deadline=deadline, max_unscored=max_unscored)

    scoring = await state.run(context, score)
    metrics.note_stages(scoring.timings_ms)
    metrics.documents.labels("ids").inc(scoring.n_stored)
    metrics.documents.labels("texts").inc(scoring.n_encoded)
    context.notes["documents"] = len(scoring.scores)
    if scoring.fallback:
        metrics.fallbacks.labels(cause_of(scoring.reason)).inc()
        context.notes["cause"] = cause_of(scoring.reason)
    context.notes["version"] = serving.model_id[:12]
    return Ranked(scoring, serving, top_n)


MAX_DOCUMENTS = 10_000
"""Documents of a request, in the schema; the service's own limit may be lower."""
MAX_QUERY_CHARS = 10_000

Query = Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="What was searched for.")]
TopN = Annotated[int, Field(ge=1), AS_WHOLE]
DocumentsAre = Literal["texts", "ids"]
DocumentsAreField = Annotated[
    DocumentsAre | None,
    Field(
        description="`ids`: strings are ids of indexed documents, whose stored vectors are used. The same as a model "
        "name that ends in `:ids`, and as `?documents_are=ids`."
    ),
]


class RerankRequest(StrictRequest):
    """A rerank request as Cohere's (v1 and v2) and Jina's clients send it."""

    query: Query
    documents: Annotated[
        list[str | dict[str, Any]],
        Field(
            min_length=1,
            max_length=MAX_DOCUMENTS,
            description='Texts, objects of texts by field, or ids of indexed documents: `{"id": "..."}`, or strings '
            "where `documents_are` is `ids`.",
        ),
    ]
    model: Annotated[
        str, Field(max_length=200, description="Any name: one model is live. `:ids` at its end: documents are ids.")
    ] = "ssi"
    top_n: Annotated[TopN | None, Field(description="Results wanted; absent or null: all.")] = None
    return_documents: Annotated[
        bool | None,
        Field(description="Repeat each document as it was given. Absent: only for a model name that begins with jina."),
    ] = None
    rank_fields: Annotated[
        list[str] | None, Field(max_length=100, description="The only fields of objects that are read.")
    ] = None
    documents_are: DocumentsAreField = None


class TextsRequest(StrictRequest):
    """A rerank request as text-embeddings-inference's clients send it."""

    query: Query
    texts: Annotated[
        list[str | dict[str, Any]],
        Field(
            min_length=1,
            max_length=MAX_DOCUMENTS,
            validation_alias=AliasChoices("texts", "documents"),
            description="As `documents` of the other families, by which name they are taken too.",
        ),
    ]
    raw_scores: Annotated[bool, Field(description="f(q, d) itself instead of its logistic function.")] = False
    return_text: bool = False
    model: Annotated[str, Field(max_length=200)] = "ssi"
    top_n: Annotated[TopN | None, Field(description="Results wanted; absent or null: all.")] = None
    documents_are: DocumentsAreField = None


class EmbedRequest(StrictRequest):
    """Texts to vectors of the learned part: Vd, or Uq with ``prompt_name`` ``query``."""

    inputs: Annotated[str, Field()] | Annotated[list[str], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    normalize: Annotated[bool, Field(description="Unit length; false keeps the length that (Uq).(Vd) needs.")] = True
    prompt_name: Annotated[
        Literal["query", "document"] | None, Field(description="Which side of the model; absent: documents.")
    ] = None


class ApiVersion(BaseModel):
    """As Cohere's clients expect it."""

    version: str
    is_deprecated: bool = False
    is_experimental: bool = False


class RerankMeta(BaseModel):
    """What is known of an answer besides the results."""

    api_version: ApiVersion
    billed_units: dict[str, int]
    warnings: list[str]
    model_id: str = Field(description="The version that scored; empty where none was loaded.")
    fallback: bool = Field(description="True: the documents stand in the order given; `warnings` says why.")
    unscored: int = Field(description="Documents with neither vector nor text.")


class RerankResult(BaseModel):
    """One document: its place in the request, and a score from 0 to 1."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = Field(None, description="As it was given; only where it was asked for.")


class RerankAnswer(BaseModel):
    """Results, best first (Cohere v2)."""

    id: str
    results: list[RerankResult]
    meta: RerankMeta


class Usage(BaseModel):
    """Tokens that were counted: none."""

    total_tokens: int


class RerankAnswerV1(RerankAnswer):
    """Results, best first: what Cohere's v1 and Jina's clients read, together."""

    model: str
    object: Literal["list"]
    usage: Usage


class TextResult(BaseModel):
    """One text: its place in the request, and its score."""

    index: int
    score: float
    text: str | None = Field(None, description="As it was given; only where it was asked for.")


class ModelType(BaseModel):
    """What the model is for."""

    reranker: dict[str, dict[str, Any]]


class InfoAnswer(BaseModel):
    """What is served, as text-embeddings-inference tells it."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str
    encoder_id: str
    n_dims: int


class CohereError(BaseModel):
    """An error as Cohere's clients read it."""

    message: str


class JinaError(CohereError):
    """An error as both Cohere's and Jina's clients read it."""

    detail: str


class TextsError(BaseModel):
    """An error as text-embeddings-inference's clients read it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


SaidInUrl = Annotated[DocumentsAre | None, UrlParameter(description="As in the body, which it goes before.")]


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
    # Cohere's clients read ``message``, Jina's ``detail``.
    "/v1/rerank": lambda status, kind, message: {"message": message, "detail": message},
    "/v2/rerank": lambda status, kind, message: {"message": message},
    **dict.fromkeys(("/rerank", "/embed", "/info"), texts_error),
}
"""Error shapes by path: for `reranker.service.app.Part`."""

router = APIRouter(route_class=JsonRoute, tags=["rerank"])


@router.post(
    "/rerank", response_model=list[TextResult], responses=error_responses(TextsError), operation_id="rerank_texts"
)
async def rerank_texts(
    wanted: TextsRequest, state: State, context: Context, documents_are: SaidInUrl = None
) -> Response:
    """Rerank texts, or indexed documents by their ids (text-embeddings-inference)."""
    by_id = are_ids(wanted.model, documents_are, wanted.documents_are)
    ranked = await rank(state, context, wanted.query, wanted.texts, by_id=by_id, top_n=wanted.top_n)
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


@router.post(
    "/v2/rerank", response_model=RerankAnswer, responses=error_responses(CohereError), operation_id="rerank_v2"
)
async def rerank_v2(wanted: RerankRequest, state: State, context: Context, documents_are: SaidInUrl = None) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v2)."""
    ranked = await rank_documents(wanted, state, context, documents_are)
    answer = _answer(ranked, "2", wanted.documents if wanted.return_documents else None)
    return json_response(answer, ranked.headers)


@router.post(
    "/v1/rerank", response_model=RerankAnswerV1, responses=error_responses(JinaError), operation_id="rerank_v1"
)
async def rerank_v1(wanted: RerankRequest, state: State, context: Context, documents_are: SaidInUrl = None) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v1 and Jina)."""
    ranked = await rank_documents(wanted, state, context, documents_are)
    shown = wanted.model.startswith("jina") if wanted.return_documents is None else wanted.return_documents
    answer = _answer(ranked, "1", wanted.documents if shown else None)
    answer |= {"model": wanted.model, "object": "list", "usage": {"total_tokens": 0}}
    return json_response(answer, ranked.headers)


async def rank_documents(
    wanted: RerankRequest, state: ServiceState, context: RequestContext, documents_are: str | None
) -> Ranked:
    """Return scores and order of a request of Cohere's or Jina's clients."""
    by_id = are_ids(wanted.model, documents_are, wanted.documents_are)
    rank_fields = wanted.rank_fields or ()
    return await rank(
        state, context, wanted.query, wanted.documents, by_id=by_id, top_n=wanted.top_n, rank_fields=rank_fields
    )


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
