"""Requests and answers of the rerank routes, in the words of the three families whose clients speak to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from reranker.service.json_route import AS_WHOLE

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


class _Request(BaseModel):
    """Fields that are not named here are ignored: other clients of a family send more."""

    model_config = ConfigDict(strict=True, extra="ignore")


class RerankRequest(_Request):
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


class TextsRequest(_Request):
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


class EmbedRequest(_Request):
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
