"""The rerank routes: documents by text or by id to scores and one order, in the words of three families of clients.

Scores are f(q, d) = (Uq).(Vd) + a q.d. From 0 to 1 they are the probability of relevance, if `ssi calibrate
--probability` has fitted one to the service's body and window (``x-ssi-score: probability``); else they tell the order
alone (``order``): 1 / (1 + e^-f). Both rise strictly with f.

``/v1/rerank`` and ``/v2/rerank`` have the shapes of Cohere and Jina. A request that cannot be ranked (deadline, no
model, no vectors) comes back in the order given, with ``x-ssi-fallback: 1``, ``meta.fallback`` and the reason among
``meta.warnings``. ``/v1/rerank`` is Cohere's and Jina's at once, with the fields of both; only the default of
``return_documents`` follows the model's name (true for ``jina...``).

``/rerank`` (and ``POST /``), ``/embed`` and ``/info`` have the shapes of text-embeddings-inference. An item of
``/rerank``'s answer has no field but ``index``, ``score`` and ``text``: Elasticsearch refuses any further one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from fastapi import APIRouter, Response
from fastapi import Query as UrlParameter
from msgspec import Meta
from pydantic import BaseModel, Field

from reranker.arrays import Bool, Float64, Int64
from reranker.deadline import Deadline
from reranker.engines.vectors import QueryVectors
from reranker.errors import EngineError, FallbackError
from reranker.models.ranking_model import RankingModel
from reranker.models.scorers import unit
from reranker.records import MAX_ID_BYTES, Hit, Reason, ReasonKind, SearchAnswer
from reranker.rerank.calibration import Probability
from reranker.rerank.candidates import (
    CandidateVectors,
    LocalStore,
    StoredFields,
    check_unscored,
    encode_query,
    read_whole,
)
from reranker.service.http import (
    Context,
    ErrorShape,
    JsonRoute,
    RequestBody,
    RequestContext,
    ServiceError,
    body_of,
    error_responses,
)
from reranker.service.serving import Serving
from reranker.service.state import ServiceState, State
from reranker.store import VectorStore
from reranker.text.view import TextView

_log = logging.getLogger(__name__)
T = TypeVar("T")

Search = Callable[[Mapping[str, Any], float | None], SearchAnswer]
IDS_A_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class IndexedDocuments:
    """The documents of an index by their ids: the store is asked first, then the engine; either may be missing."""

    store: VectorStore | None = None
    search: Search | None = None

    def vectors(
        self, model: RankingModel, query: QueryVectors, ids: Sequence[str], encodable: Bool, deadline: Deadline
    ) -> CandidateVectors:
        """Return the vectors of the documents with these ids; one that has none is encoded from its indexed text.

        An id may stand more than once. ``encodable``, (n,) bool, is False where the caller has the text. `EngineError`
        if the engine does not answer and no vector was found without it.
        """
        vectors = CandidateVectors(len(ids)) if self.store is None else LocalStore(self.store).vectors_of(ids)
        missing = vectors.missing()
        if self.store is not None:
            missing = missing[encodable[missing]]
        if len(missing) and self.search is not None:
            try:
                self._add_from_engine(self.search, model, query, ids, missing, encodable, vectors, deadline)
            except EngineError:
                if not vectors.parts:
                    raise
        return vectors

    def _add_from_engine(
        self,
        search: Search,
        model: RankingModel,
        query: QueryVectors,
        ids: Sequence[str],
        missing: Int64,
        encodable: Bool,
        vectors: CandidateVectors,
        deadline: Deadline,
    ) -> None:
        """Read the packed vectors of what is missing; then, of documents without, the text."""
        fields = StoredFields(model.encoder_id, model.encoder.n_dims)
        stored = _read(search, [ids[place] for place in missing.tolist()], fields.source_fields, deadline)
        absent = Hit(id="", index="", score=None)
        loaded = fields.load([stored.get(ids[place], absent) for place in missing.tolist()], query)
        vectors.parts.extend(part._replace(places=missing[part.places]) for part in loaded.parts)
        bare = [place for place in missing[loaded.missing()].tolist() if encodable[place] and ids[place] in stored]
        if bare:
            texts = [spec.path for spec in model.encoder.view.fields]
            sources = _read(search, [ids[place] for place in bare], texts, deadline)
            bare = [place for place in bare if ids[place] in sources]
            names = [ids[place] for place in bare]
            vectors.add_texts(model, bare, [sources[name].source for name in names], names)


def _read(search: Search, ids: Sequence[str], fields: Sequence[str], deadline: Deadline) -> dict[str, Hit]:
    """Return id → hit of those that exist; of several indexes behind an alias, the first that has the id."""
    wanted = [name for name in dict.fromkeys(ids) if 0 < len(name.encode("utf-8", "replace")) <= MAX_ID_BYTES]
    documents: dict[str, Hit] = {}
    for start in range(0, len(wanted), IDS_A_REQUEST):
        part = wanted[start : start + IDS_A_REQUEST]
        body = {"query": {"ids": {"values": part}}, "_source": list(fields)}
        hits = read_whole(
            lambda size, body=body: search({**body, "size": size}, deadline.timeout_s()),  # type: ignore[misc]
            len(part),
            lambda hits, part=part: {hit.id for hit in hits}.issuperset(part),  # type: ignore[misc]
        )
        for hit in hits:
            documents.setdefault(hit.id, hit)
    return documents


TEXT_FIELDS: Final = ("text", "body", "content")
"""Where a plain text belongs, if the model reads such a field."""
ID_FIELDS: Final = ("id", "_id")
BATCH: Final = 100
"""Texts encoded between two checks of the deadline, at most: some 20 ms."""
BATCH_CHARS: Final = 200_000
"""Characters encoded between two checks of the deadline, unless one text has more."""
DIGITS: Final = 12
"""Decimals of a score from 0 to 1: a longer number is one that OpenSearch's ml-commons fails to cast."""


ORDER_ONLY: Final = Probability(1.0, 0.0)
"""What gives scores from 0 to 1 where no probability was fitted."""


class Item(NamedTuple):
    """One document of a request: an indexed one's ``id``, or "" with its text by field, which may stand in."""

    id: str = ""
    source: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of a request's documents, in the order of the request.

    ``scores``, (n,) float64, are f(q, d), NaN for ``n_unscored`` documents and in a fallback. ``order``, (n,) int64,
    are places, best first: by (-score, place), those without a score last; in a fallback the order given, and
    ``reason`` is why, None if the documents are reranked. ``n_stored`` were scored with a stored vector, ``n_encoded``
    encoded for this request.
    """

    scores: Float64
    order: Int64
    n_stored: int = 0
    n_encoded: int = 0
    n_unscored: int = 0
    reason: Reason | None = None
    warnings: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def fallback(self) -> bool:
        """True where the order is the one given."""
        return self.reason is not None

    def relevance(self, probability: Probability = ORDER_ONLY) -> Float64:
        """Return the scores from 0 to 1, (n,) float64, never rising along ``order``.

        Without a score: 0. In a fallback: from .5 down in equal steps, by which the order given can be had again.
        """
        n = len(self.scores)
        if self.fallback:
            return np.round(0.5 * np.arange(n, 0, -1) / max(n, 1), DIGITS)
        return relevance(self.scores, probability)

    def raw(self) -> Float64:
        """Return f(q, d), (n,) float64, never rising along ``order``; where there is none, what `relevance` stands for.

        Without a score: 1 below the least score, and below 0. In a fallback: 0 and down by 1.
        """
        if self.fallback:
            return -np.arange(len(self.scores), dtype=np.float64)
        known = self.scores[~np.isnan(self.scores)]
        floor = min(0.0, float(known.min()) if len(known) else 0.0) - 1.0
        return np.where(np.isnan(self.scores), floor, self.scores)


def relevance(scores: Float64, probability: Probability = ORDER_ONLY) -> Float64:
    """Return the probabilities of f, by default 1 / (1 + e^-f), to `DIGITS` decimals, and 0 for NaN, (n,) float64."""
    values = probability.of(scores)
    values[np.isnan(values)] = 0.0
    return np.round(values, DIGITS)


def text_field(view: TextView) -> str:
    """Return the field of the model that a plain text is put into: one of `TEXT_FIELDS`, else the last."""
    paths = [spec.path for spec in view.fields]
    return next((name for name in TEXT_FIELDS if name in paths), paths[-1])


def items_of(
    documents: Sequence[str | Mapping[str, Any]],
    view: TextView,
    *,
    are_ids: bool = False,
    rank_fields: Sequence[str] = (),
) -> list[Item]:
    """Return what each document of a request is.

    A string is a text, or an id where ``are_ids``. An object with nothing but ``id`` (or ``_id``) is an indexed
    document; so is one with a text, where ``are_ids``; any other is a text by fields. Of objects only ``rank_fields``
    are read; where none are given, all that the model reads, else ``text``, else every text.
    """
    place = text_field(view)

    def item(document: str | Mapping[str, Any]) -> Item:
        if isinstance(document, str):
            return Item(document) if are_ids else Item("", {place: document})
        # An id is a text, or a whole number, which is indexed by its decimal digits; a bool is an int to Python.
        ids = (key for key in ID_FIELDS if isinstance(document.get(key), str | int))
        name = next((key for key in ids if not isinstance(document[key], bool)), "")
        others = {key: value for key, value in document.items() if key not in ID_FIELDS and value is not None}
        if name and (are_ids or not others):
            return Item(str(document[name]), _source(others, view, place, rank_fields) if others else None)
        return Item("", _source(others, view, place, rank_fields))

    return [item(document) for document in documents]


def _source(document: Mapping[str, Any], view: TextView, place: str, rank_fields: Sequence[str]) -> Mapping[str, Any]:
    """Return the text of an object by the fields of the model."""
    if rank_fields:
        document = {name: document[name] for name in rank_fields if name in document}
    if any(view.texts(document)):
        known = {spec.path.partition(".")[0] for spec in view.fields}
        rest = [value for name, value in document.items() if name not in known] if rank_fields else []
        if not rest:
            return document
        return {**document, place: [document.get(place, ""), *rest]}
    return {place: document["text"] if "text" in document else list(document.values())}


def score_items(
    model: RankingModel | None,
    query: str,
    items: Sequence[Item],
    *,
    indexed: IndexedDocuments | None = None,
    deadline: Deadline | None = None,
    max_unscored: float = 0.2,
) -> Scoring:
    """Return the scores and the order of documents; whatever goes wrong, the order given and why."""
    deadline = deadline or Deadline()
    try:
        return _score(model, query, items, indexed, deadline, max_unscored)
    except FallbackError as error:
        reason = error.reason
    except Exception as error:
        # The promise: an order never gets worse because reranking failed, whatever the failure. Its words may repeat
        # a document, so the answer names only its class.
        _log.exception("reranking failed; the order given was returned")
        reason = Reason(ReasonKind.ERROR, f"reranking failed: {type(error).__name__}")
    n = len(items)
    return Scoring(np.full(n, np.nan), np.arange(n, dtype=np.int64), reason=reason, timings_ms=deadline.stages_ms)


def _score(
    model: RankingModel | None,
    query: str,
    items: Sequence[Item],
    indexed: IndexedDocuments | None,
    deadline: Deadline,
    max_unscored: float,
) -> Scoring:
    if model is None:
        raise FallbackError(ReasonKind.NO_MODEL, "no model is loaded")
    encoded = encode_query(model, query)
    if encoded.is_empty:
        message = "the query has no word that tells documents apart, so the order given stays"
        raise FallbackError(ReasonKind.EMPTY_QUERY, message)
    deadline.note_stage("query")
    candidates = CandidateVectors(len(items))
    by_id = np.array([place for place, item in enumerate(items) if item.id], dtype=np.int64)
    warnings: list[str] = []
    if len(by_id):
        warnings = _look_up(candidates, by_id, items, indexed, model, encoded.vectors, deadline)
    n_stored = len(items) - len(candidates.missing())
    n_encoded = _encode_texts(candidates, items, model, deadline)
    scores = candidates.score(encoded.vectors)
    deadline.note_stage("score")
    deadline.check("the documents were scored")
    unknown = np.isnan(scores)
    n_lost = int(unknown[by_id].sum())
    remedy = warnings[0] if warnings else "run `ssi sync`, or send their text"
    check_unscored(n_lost, len(by_id), max_unscored, remedy)
    n_unscored = int(unknown.sum())
    if n_unscored:
        warnings.append(f"{n_unscored} documents have neither a vector of this model nor a text, and come last")
    order = np.argsort(np.where(unknown, np.inf, -scores), kind="stable")
    return Scoring(scores, order, n_stored, n_encoded, n_unscored, None, tuple(warnings), deadline.stages_ms)


def _look_up(
    candidates: CandidateVectors,
    by_id: Int64,
    items: Sequence[Item],
    indexed: IndexedDocuments | None,
    model: RankingModel,
    query: QueryVectors,
    deadline: Deadline,
) -> list[str]:
    """Add the vectors of the documents given by id to ``candidates``, and return what went wrong."""
    if indexed is None:
        return ["this service has no index or store in which ids could be looked up"]
    has_text = np.array([items[place].source is not None for place in by_id.tolist()], dtype=bool)
    ids = [items[place].id for place in by_id.tolist()]
    try:
        vectors = indexed.vectors(model, query, ids, ~has_text, deadline)
    except EngineError as error:
        return [f"the documents could not be read from the engine ({type(error).__name__})"]
    candidates.parts.extend(part._replace(places=by_id[part.places]) for part in vectors.parts)
    deadline.note_stage("vectors")
    deadline.check("the vectors of the documents were read")
    return []


def _encode_texts(candidates: CandidateVectors, items: Sequence[Item], model: RankingModel, deadline: Deadline) -> int:
    """Encode the documents that have a text and no vector yet, and return how many had a word."""
    waiting = ((place, items[place]) for place in candidates.missing().tolist())
    texts = [(place, item.source, item.id) for place, item in waiting if item.source is not None]
    n_encoded = 0
    for batch in batches(texts, [n_chars(source) for _, source, _ in texts]):
        deadline.check("texts were encoded")
        places, sources, ids = zip(*batch, strict=True)
        n_encoded += candidates.add_texts(model, places, sources, ids)
    if texts:
        deadline.note_stage("encode")
    return n_encoded


def n_chars(value: Any) -> int:
    """Return how many characters of text a JSON value holds."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(n_chars, inner))


def batches(items: Sequence[T], sizes: Iterable[int]) -> Iterator[Sequence[T]]:
    """Yield the items in batches of at most `BATCH`, whose sizes add up to at most `BATCH_CHARS`, or of one item."""
    start = size = 0
    for place, added in enumerate(sizes):
        if place > start and (place - start == BATCH or size + added > BATCH_CHARS):
            yield items[start:place]
            start, size = place, 0
        size += added
    if start < len(items):
        yield items[start:]


IDS_SUFFIX = ":ids"
"""At the end of a model's name: the documents are ids. Every client lets its user name the model."""
Documents = Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Its outcome, and the version that made it."""

    scoring: Scoring
    serving: Serving
    top_n: int | None = None
    probability: Probability | None = None

    @property
    def relevance(self) -> list[float]:
        """The scores from 0 to 1, in the order of the request."""
        scores: list[float] = self.scoring.relevance(self.probability or ORDER_ONLY).tolist()
        return scores

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
            "x-ssi-score": "order" if self.probability is None or self.scoring.fallback else "probability",
        }


def json_response(value: Any, headers: Mapping[str, str]) -> Response:
    """Return an answer in JSON; a float is written with a point or an exponent, never as an integer."""
    return Response(msgspec.json.encode(value), 200, dict(headers), "application/json")


async def rank(
    wanted: RerankRequest | TextsRequest,
    documents: Documents,
    state: ServiceState,
    context: RequestContext,
    documents_are: str | None,
) -> Ranked:
    """Return scores and order of a request's documents; ``documents_are`` in the URL goes before the body's word.

    `ServiceError` 413 for more documents than a request may have.
    """
    settings, serving, metrics = state.settings, state.serving, state.metrics
    limit = settings.limits.max_documents
    if len(documents) > limit:
        raise ServiceError(413, f"{len(documents)} documents, more than the {limit} that a request may have")
    said = documents_are or wanted.documents_are
    by_id = wanted.model.endswith(IDS_SUFFIX) if said is None else said == "ids"
    rank_fields = wanted.rank_fields or () if isinstance(wanted, RerankRequest) else ()

    def search(body: Mapping[str, Any], timeout_s: float | None) -> SearchAnswer:
        return state.ask_engine(lambda: state.engine.search(settings.index, body, timeout_s=timeout_s))

    def score() -> Scoring:
        deadline, model = Deadline(max(context.deadline.left_s, 1e-6)), serving.model
        items = [Item()] * len(documents)
        if model is not None:
            items = items_of(documents, model.encoder.view, are_ids=by_id, rank_fields=rank_fields)
        indexed = IndexedDocuments(serving.reranker.store, search)
        max_unscored = settings.rerank.max_unscored
        return score_items(model, wanted.query, items, indexed=indexed, deadline=deadline, max_unscored=max_unscored)

    scoring = await state.run(context, score)
    metrics.note_stages(scoring.timings_ms)
    metrics.documents.labels("ids").inc(scoring.n_stored)
    metrics.documents.labels("texts").inc(scoring.n_encoded)
    context.notes["documents"] = len(scoring.scores)
    if scoring.reason is not None:
        metrics.fallbacks.labels(scoring.reason.kind.value).inc()
        context.notes["cause"] = scoring.reason.kind.value
    context.notes["version"] = serving.model_id[:12]
    top_n = None if wanted.top_n is None else int(wanted.top_n)
    return Ranked(scoring, serving, top_n, serving.reranker.probability(settings.default_body))


MAX_DOCUMENTS = 10_000
"""Documents of a request, in the schema; the service's own limit may be lower."""
MAX_QUERY_CHARS = 10_000

Query = Annotated[str, Meta(max_length=MAX_QUERY_CHARS, description="What was searched for.")]
# To JSON 3.0 is a whole number too, so that it is decoded as a float.
TopN = Annotated[float, Meta(ge=1, multiple_of=1, description="Results wanted; absent or null: all.")]
DocumentsAre = Literal["texts", "ids"]
DocumentsAreField = (
    Annotated[
        str,
        Meta(
            pattern="^(texts|ids)$",
            description="`ids`: strings are ids of indexed documents, whose stored vectors are used. The same as a "
            "model name that ends in `:ids`, and as `?documents_are=ids`.",
        ),
    ]
    | None
)
ModelName = Annotated[
    str, Meta(max_length=200, description="Any name: one model is live. `:ids` at its end: documents are ids.")
]


class RerankRequest(RequestBody):
    """A rerank request as Cohere's (v1 and v2) and Jina's clients send it."""

    query: Query
    documents: Annotated[
        list[str | dict[str, Any]],
        Meta(
            min_length=1,
            max_length=MAX_DOCUMENTS,
            description='Texts, objects of texts by field, or ids of indexed documents: `{"id": "..."}`, or strings '
            "where `documents_are` is `ids`.",
        ),
    ]
    model: ModelName = "ssi"
    top_n: TopN | None = None
    return_documents: Annotated[
        bool | None,
        Meta(description="Repeat each document as it was given. Absent: only for a model name that begins with jina."),
    ] = None
    rank_fields: (
        Annotated[list[str], Meta(max_length=100, description="The only fields of objects that are read.")] | None
    ) = None
    documents_are: DocumentsAreField = None


Texts = Annotated[
    list[str | dict[str, Any]],
    Meta(min_length=1, max_length=MAX_DOCUMENTS, description="As `documents` of the other families."),
]


class TextsRequest(RequestBody):
    """A rerank request as text-embeddings-inference's clients send it; ``documents`` may stand for ``texts``."""

    query: Query
    texts: Texts
    raw_scores: Annotated[bool, Meta(description="f(q, d) itself instead of a score from 0 to 1.")] = False
    return_text: bool = False
    model: ModelName = "ssi"
    top_n: TopN | None = None
    documents_are: DocumentsAreField = None


class TextsAsDocuments(TextsRequest, kw_only=True):
    """A `TextsRequest` whose texts have the name that the other families give them."""

    texts: Texts = msgspec.field(name="documents")


class EmbedRequest(RequestBody):
    """Texts to vectors of the learned part: Vd, or Uq with ``prompt_name`` ``query``."""

    inputs: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    normalize: Annotated[bool, Meta(description="Unit length; false keeps the length that (Uq).(Vd) needs.")] = True
    prompt_name: (
        Annotated[str, Meta(pattern="^(query|document)$", description="Which side of the model; absent: documents.")]
        | None
    ) = None


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
    """One document: its place in the request, and a score from 0 to 1 (`x-ssi-score` says what it means)."""

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
    **dict.fromkeys(("/rerank", "/", "/embed", "/info"), texts_error),
}
"""Error shapes by path: for `reranker.service.app.ServicePart`."""

LARGE = ("/", "/rerank", "/embed", "/v1/rerank", "/v2/rerank")
"""Paths that take documents: their bodies may be large."""

router = APIRouter(route_class=JsonRoute, tags=["rerank"])


@router.post("/", response_model=list[TextResult], responses=error_responses(TextsError), operation_id="rerank_root")
@router.post(
    "/rerank", response_model=list[TextResult], responses=error_responses(TextsError), operation_id="rerank_texts"
)
async def rerank_texts(
    wanted: Annotated[TextsRequest, body_of(TextsRequest, TextsAsDocuments)],
    state: State,
    context: Context,
    documents_are: SaidInUrl = None,
) -> Response:
    """Rerank texts, or indexed documents by their ids (text-embeddings-inference)."""
    ranked = await rank(wanted, wanted.texts, state, context, documents_are)
    if wanted.raw_scores:
        ranked = replace(ranked, probability=None)
    scores = ranked.scoring.raw().tolist() if wanted.raw_scores else ranked.relevance
    results: list[dict[str, Any]] = [{"index": place, "score": scores[place]} for place in ranked.places]
    if wanted.return_text:
        for result in results:
            result["text"] = _as_text(wanted.texts[result["index"]])
    return json_response(results, ranked.headers)


@router.post("/embed", response_model=list[list[float]], responses=error_responses(TextsError), operation_id="embed")
async def embed(wanted: Annotated[EmbedRequest, body_of(EmbedRequest)], state: State, context: Context) -> Response:
    """Turn texts into the vectors of the learned part: Vd, or Uq for queries (text-embeddings-inference).

    Words that are the same on both sides count in f besides: the product of two vectors is f without its identity part.
    """
    serving = state.serving
    model = _model_of(serving)
    vectors = await state.run(context, lambda: _embedded(model, wanted, context))
    return Response(vectors, 200, {"x-ssi-model": serving.model_id}, "application/json")


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
        "max_concurrent_requests": limits.threads + limits.max_waiting,
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


def _embedded(model: RankingModel, wanted: EmbedRequest, context: RequestContext) -> bytes:
    """Return the vectors of the inputs as a JSON list of n lists of N numbers; a zero vector stays one.

    Texts are cut at the length that ``/info`` gives. Vectors become JSON batch by batch: as Python's numbers they take
    many times their bytes.
    """
    view = model.encoder.view
    texts = [wanted.inputs] if isinstance(wanted.inputs, str) else wanted.inputs
    field = text_field(view)
    parts = []
    for batch in batches(texts, (min(len(text), view.max_chars) for text in texts)):
        if context.deadline.left_s <= 0:
            raise ServiceError(503, "the deadline passed", kind="deadline", retry_after_s=1.0)
        if wanted.prompt_name == "query":
            vectors = model.encode_queries([text[: view.max_chars] for text in batch]).vectors
        else:
            vectors = model.encoder.encode([{field: text} for text in batch]).vectors
        parts.append(msgspec.json.encode((unit(vectors) if wanted.normalize else vectors).tolist())[1:-1])
    return b"[%s]" % b",".join(parts)


@router.post(
    "/v2/rerank", response_model=RerankAnswer, responses=error_responses(CohereError), operation_id="rerank_v2"
)
async def rerank_v2(
    wanted: Annotated[RerankRequest, body_of(RerankRequest)],
    state: State,
    context: Context,
    documents_are: SaidInUrl = None,
) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v2)."""
    ranked = await rank(wanted, wanted.documents, state, context, documents_are)
    answer = _answer(ranked, "2", wanted.documents if wanted.return_documents else None)
    return json_response(answer, ranked.headers)


@router.post(
    "/v1/rerank", response_model=RerankAnswerV1, responses=error_responses(JinaError), operation_id="rerank_v1"
)
async def rerank_v1(
    wanted: Annotated[RerankRequest, body_of(RerankRequest)],
    state: State,
    context: Context,
    documents_are: SaidInUrl = None,
) -> Response:
    """Rerank documents, given as texts or by the ids of indexed ones (Cohere v1 and Jina)."""
    ranked = await rank(wanted, wanted.documents, state, context, documents_are)
    shown = wanted.model.startswith("jina") if wanted.return_documents is None else wanted.return_documents
    answer = _answer(ranked, "1", wanted.documents if shown else None)
    answer |= {"model": wanted.model, "object": "list", "usage": {"total_tokens": 0}}
    return json_response(answer, ranked.headers)


def _answer(ranked: Ranked, version: str, documents: Documents | None) -> dict[str, Any]:
    scoring, scores = ranked.scoring, ranked.relevance
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
            "warnings": [*([scoring.reason.text] if scoring.reason else []), *scoring.warnings],
            "model_id": ranked.serving.model_id,
            "fallback": scoring.fallback,
            "unscored": scoring.n_unscored,
        },
    }
