"""Rerank routes: score and order documents given by text or id, in the formats of three API families.

Scores are f(q, d) = (Uq).(Vd) + a q.d. Scores from 0 to 1 are probabilities of relevance if `ssi calibrate
--probability` has fitted a calibration for the service's body and window (``x-ssi-score: probability``). Otherwise they
are 1 / (1 + e^-f), and only their order is meaningful (``x-ssi-score: order``). Both increase strictly with f.

``/v1/rerank`` and ``/v2/rerank`` have the formats of Cohere and Jina. If the documents cannot be ranked (deadline, no
model, no vectors), they are returned in the given order with ``x-ssi-fallback: 1``, ``meta.fallback`` and the reason in
``meta.warnings``. ``/v1/rerank`` serves clients of both Cohere and Jina and returns the fields of both; only the
default of ``return_documents`` depends on the model name (true for ``jina...``).

``/rerank`` (and ``POST /``), ``/embed`` and ``/info`` have the formats of text-embeddings-inference. An item in the
answer of ``/rerank`` has no fields except ``index``, ``score`` and ``text``: Elasticsearch refuses any other.
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
from reranker.models.repeated import preferences_of
from reranker.models.scorers import unit
from reranker.records import MAX_ID_BYTES, Hit, Reason, ReasonKind, SearchAnswer
from reranker.rerank.calibration.kept import Probability
from reranker.rerank.candidates import (
    CandidateVectors,
    LocalStore,
    StoredFields,
    check_unscored,
    encode_query,
    has_usable_vector,
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
from reranker.tracing import traced

_log = logging.getLogger(__name__)
T = TypeVar("T")

Search = Callable[[Mapping[str, Any], float | None], SearchAnswer]
IDS_A_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class IndexedDocuments:
    """The documents of an index, read by id from the local store first, then from the engine. Either may be None."""

    store: VectorStore | None = None
    search: Search | None = None

    def vectors(
        self, model: RankingModel, query: QueryVectors, ids: Sequence[str], encodable: Bool, deadline: Deadline
    ) -> CandidateVectors:
        """Return the vectors of documents; a document without one is encoded from its indexed text.

        Parameters
        ----------
        model : RankingModel
            Model whose vectors are read.
        query : QueryVectors
            The encoded query.
        ids : Sequence[str]
            n document ids; an id may occur more than once.
        encodable : numpy.ndarray
            (n,) bool: whether a missing document may be encoded from its indexed text. False if the request has its
            text.
        deadline : Deadline
            Bounds the requests to the engine.

        Raises
        ------
        EngineError
            If the engine fails and no vector was found without it.
        """
        vectors = CandidateVectors(len(ids)) if self.store is None else LocalStore(self.store).vectors_of(ids)
        missing = vectors.missing()
        if self.store is not None:
            missing = missing[encodable[missing]]
        if len(missing) and self.search is not None:
            try:
                self._add_from_engine(self.search, model, ids, missing, encodable, vectors, deadline)
            except EngineError:
                if not vectors.parts:
                    raise
        return vectors

    def _add_from_engine(
        self,
        search: Search,
        model: RankingModel,
        ids: Sequence[str],
        missing: Int64,
        encodable: Bool,
        vectors: CandidateVectors,
        deadline: Deadline,
    ) -> None:
        """Read the packed vectors of missing documents, and encode the text of those that have none."""
        fields = StoredFields(model.encoder_id, model.encoder.n_dims)
        stored = _read(search, [ids[place] for place in missing.tolist()], fields.source_fields, deadline)
        absent = Hit(id="", index="", score=None)
        loaded = fields.load([stored.get(ids[place], absent) for place in missing.tolist()])
        vectors.parts.extend(part._replace(places=missing[part.places]) for part in loaded.parts)
        bare = [place for place in missing[loaded.missing()].tolist() if encodable[place] and ids[place] in stored]
        if bare:
            texts = model.encoder.view.source_fields
            sources = _read(search, [ids[place] for place in bare], texts, deadline)
            bare = [place for place in bare if ids[place] in sources]
            names = [ids[place] for place in bare]
            vectors.add_texts(model, bare, [sources[name].source for name in names], names)


def _read(search: Search, ids: Sequence[str], fields: Sequence[str], deadline: Deadline) -> dict[str, Hit]:
    """Return id → hit of the documents that exist; if an alias covers several indexes, the first hit of an id."""
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
"""Names of fields that take a plain text, in order of preference, if the model reads them."""
ID_FIELDS: Final = ("id", "_id")
BATCH: Final = 100
"""Largest number of texts encoded between two checks of the deadline: about 20 ms."""
BATCH_CHARS: Final = 200_000
"""Largest number of characters encoded between two checks of the deadline; a single longer text is encoded whole."""
DIGITS: Final = 12
"""Decimals of scores from 0 to 1. OpenSearch's ml-commons fails to cast longer numbers."""


ORDER_ONLY: Final = Probability(1.0, 0.0)
"""Map from f to scores from 0 to 1 when no probability was fitted: the logistic function."""


class Item(NamedTuple):
    """One document of a request."""

    id: str = ""
    """Id of an indexed document; "" for a document given by its text."""
    source: Mapping[str, Any] | None = None
    """Text by field. For an indexed document it is used if no vector is found."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scores of a request's n documents, in the order of the request."""

    scores: Float64
    """(n,) float64: f(q, d). NaN for documents without a score, and for all of them in a fallback."""
    order: Int64
    """(n,) int64: indices of documents, best first, by (-score, index); documents without a score are last.

    In a fallback the order of the request.
    """
    n_stored: int = 0
    """Documents scored with a stored vector."""
    n_encoded: int = 0
    """Documents encoded for this request."""
    n_unscored: int = 0
    """Documents without a score."""
    reason: Reason | None = None
    """Reason of the fallback; None if the documents were reranked."""
    warnings: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """Stage -> milliseconds."""

    @property
    def fallback(self) -> bool:
        """Whether the documents are in the given order."""
        return self.reason is not None

    def relevance(self, probability: Probability = ORDER_ONLY) -> Float64:
        """Return scores from 0 to 1, (n,) float64, that never increase along ``order``.

        Documents without a score get 0. In a fallback the scores decrease from .5 in equal steps, so that sorting by
        score restores the given order.
        """
        n = len(self.scores)
        if self.fallback:
            return np.round(0.5 * np.arange(n, 0, -1) / max(n, 1), DIGITS)
        return relevance(self.scores, probability)

    def raw(self) -> Float64:
        """Return f(q, d), (n,) float64, never increasing along ``order``.

        Documents without a score get a value 1 below the least score and below 0. In a fallback the values are 0, -1,
        -2, …
        """
        if self.fallback:
            return -np.arange(len(self.scores), dtype=np.float64)
        known = self.scores[~np.isnan(self.scores)]
        floor = min(0.0, float(known.min()) if len(known) else 0.0) - 1.0
        return np.where(np.isnan(self.scores), floor, self.scores)


def relevance(scores: Float64, probability: Probability = ORDER_ONLY) -> Float64:
    """Return the probabilities of f, (n,) float64, by default 1 / (1 + e^-f), rounded to `DIGITS`; 0 for NaN."""
    values = probability.of(scores)
    values[np.isnan(values)] = 0.0
    return np.round(values, DIGITS)


def text_field(view: TextView) -> str:
    """Return the model's field for a plain text: the first of `TEXT_FIELDS` that it reads, else its last field."""
    paths = [spec.path for spec in view.fields]
    return next((name for name in TEXT_FIELDS if name in paths), paths[-1])


def items_of(
    documents: Sequence[str | Mapping[str, Any]],
    view: TextView,
    *,
    are_ids: bool = False,
    rank_fields: Sequence[str] = (),
) -> list[Item]:
    """Return one `Item` for each document of a request.

    A string is a text, or an id if ``are_ids``. An object with only ``id`` (or ``_id``) is an indexed document; with
    ``are_ids`` also an object with an id and texts. Any other object is a text by field. If ``rank_fields`` are given,
    only these fields of objects are read. Otherwise the fields that the model reads are used; if the object has none
    of them, its ``text``, else all its values. A vector that a text encoder has computed of the document is no text: it
    is kept in the field in which the model reads it.
    """
    place = text_field(view)

    def item(document: str | Mapping[str, Any]) -> Item:
        if isinstance(document, str):
            return Item(document) if are_ids else Item("", {place: document})
        # An id is a string or an integer, which is indexed as its decimal digits. In Python a bool is an int as well.
        ids = (key for key in ID_FIELDS if isinstance(document.get(key), str | int))
        name = next((key for key in ids if not isinstance(document[key], bool)), "")
        others = {key: value for key, value in document.items() if key not in ID_FIELDS and value is not None}
        if name and (are_ids or not others):
            return Item(str(document[name]), _source(others, view, place, rank_fields) if others else None)
        return Item("", _source(others, view, place, rank_fields))

    return [item(document) for document in documents]


def _source(document: Mapping[str, Any], view: TextView, place: str, rank_fields: Sequence[str]) -> Mapping[str, Any]:
    """Return the text of an object by field of the model, and its vector if the model reads one."""
    of_vector = view.vector.partition(".")[0]
    if rank_fields:
        document = {name: document[name] for name in rank_fields if name in document}
    if any(view.texts(document)):
        known = {of_vector, *(spec.path.partition(".")[0] for spec in view.fields)}
        rest = [value for name, value in document.items() if name not in known] if rank_fields else []
        if not rest:
            return document
        return {**document, place: [document.get(place, ""), *rest]}
    kept = {name: value for name, value in document.items() if name == of_vector}
    texts = [value for name, value in document.items() if name not in kept]
    return {**kept, place: document["text"] if "text" in document else texts}


def score_items(
    model: RankingModel | None,
    query: str,
    items: Sequence[Item],
    *,
    indexed: IndexedDocuments | None = None,
    deadline: Deadline | None = None,
    max_unscored: float = 0.2,
) -> Scoring:
    """Return the scores and order of documents. Any failure returns the given order and the reason."""
    deadline = deadline or Deadline()
    try:
        with traced("rerank", {"ssi.documents": len(items)}) as span:
            span.note_query(query)
            return _score(model, query, items, indexed, deadline, max_unscored)
    except FallbackError as error:
        reason = error.reason
    except Exception as error:
        # Guarantee: a failure of reranking never makes an order worse. The message of an error may quote a document,
        # so the answer names only the error's class.
        _log.exception("reranking failed; the given order was returned")
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
    with deadline.stage("query"):
        encoded = encode_query(model, query)
    if encoded.is_empty:
        message = "the query has no word that distinguishes documents, so the given order is kept"
        raise FallbackError(ReasonKind.EMPTY_QUERY, message)
    candidates = CandidateVectors(len(items))
    by_id = np.array([place for place, item in enumerate(items) if item.id], dtype=np.int64)
    warnings: list[str] = []
    if len(by_id):
        warnings = _look_up(candidates, by_id, items, indexed, model, encoded.vectors, deadline)
    n_stored = len(items) - len(candidates.missing())
    sent = [item.source for item in items if item.source is not None]
    if n_unusable := sum(not has_usable_vector(model.encoder, source) for source in sent):
        warnings.append(
            f"{n_unusable} documents have a value in {model.encoder.view.vector!r} that is not a vector like those of "
            "training, and are ranked by their text"
        )
    n_encoded = _encode_texts(candidates, items, model, deadline)
    with deadline.stage("score"):
        scores = candidates.score(encoded.vectors)
        if encoded.preferred:
            scores += preferences_of(encoded.preferred, [item.id or "" for item in items])
    deadline.check("the documents were scored")
    unknown = np.isnan(scores)
    n_lost = int(unknown[by_id].sum())
    remedy = warnings[0] if warnings else "run `ssi sync`, or send their text"
    check_unscored(n_lost, len(by_id), max_unscored, remedy)
    n_unscored = int(unknown.sum())
    if n_unscored:
        warnings.append(f"{n_unscored} documents have neither a vector of this model nor a text, and are ranked last")
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
    """Add the vectors of the documents given by id to ``candidates``; return warnings about failures."""
    if indexed is None:
        return ["this service has no index or local store in which ids could be looked up"]
    has_text = np.array([items[place].source is not None for place in by_id.tolist()], dtype=bool)
    ids = [items[place].id for place in by_id.tolist()]
    try:
        with deadline.stage("vectors"):
            vectors = indexed.vectors(model, query, ids, ~has_text, deadline)
    except EngineError as error:
        return [f"the documents could not be read from the engine ({type(error).__name__})"]
    candidates.parts.extend(part._replace(places=by_id[part.places]) for part in vectors.parts)
    deadline.check("the vectors of the documents were read")
    return []


def _encode_texts(candidates: CandidateVectors, items: Sequence[Item], model: RankingModel, deadline: Deadline) -> int:
    """Encode the documents that have a text but no vector yet; return the number with at least one known word."""
    waiting = ((place, items[place]) for place in candidates.missing().tolist())
    texts = [(place, item.source, item.id) for place, item in waiting if item.source is not None]
    n_encoded = 0
    if not texts:
        return 0
    with deadline.stage("encode"):
        for batch in batches(texts, [n_chars(source) for _, source, _ in texts]):
            deadline.check("texts were encoded")
            places, sources, ids = zip(*batch, strict=True)
            n_encoded += candidates.add_texts(model, places, sources, ids)
    return n_encoded


def n_chars(value: Any) -> int:
    """Return the number of characters in all strings of a JSON value."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(n_chars, inner))


def batches(items: Sequence[T], sizes: Iterable[int]) -> Iterator[Sequence[T]]:
    """Yield batches of at most `BATCH` items and `BATCH_CHARS` in total size; a larger item is a batch by itself."""
    start = size = 0
    for place, added in enumerate(sizes):
        if place > start and (place - start == BATCH or size + added > BATCH_CHARS):
            yield items[start:place]
            start, size = place, 0
        size += added
    if start < len(items):
        yield items[start:]


IDS_SUFFIX = ":ids"
"""Suffix of a model name: the documents are ids. Every client of these APIs lets its user set the model name."""
Documents = Sequence[str | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The result of a rerank request."""

    scoring: Scoring
    serving: Serving
    """The version that scored the documents."""
    top_n: int | None = None
    """Number of results requested; None returns all."""
    probability: Probability | None = None
    """Calibration of scores to probabilities; None if there is none for the service's body."""

    @property
    def relevance(self) -> list[float]:
        """Scores from 0 to 1, in the order of the request."""
        scores: list[float] = self.scoring.relevance(self.probability or ORDER_ONLY).tolist()
        return scores

    @property
    def places(self) -> list[int]:
        """Indices of the request's documents, best first, at most ``top_n``."""
        places: list[int] = self.scoring.order[: self.top_n].tolist()
        return places

    @property
    def headers(self) -> dict[str, str]:
        """Response headers of all API families: version, fallback, unscored documents and meaning of the score."""
        return {
            "x-ssi-model": self.serving.model_id,
            "x-ssi-fallback": str(int(self.scoring.fallback)),
            "x-ssi-unscored": str(self.scoring.n_unscored),
            "x-ssi-score": "order" if self.probability is None or self.scoring.fallback else "probability",
        }


def json_response(value: Any, headers: Mapping[str, str]) -> Response:
    """Return a JSON response. Floats are written with a decimal point or an exponent, never as integers."""
    return Response(msgspec.json.encode(value), 200, dict(headers), "application/json")


async def rank(
    wanted: RerankRequest | TextsRequest,
    documents: Documents,
    state: ServiceState,
    context: RequestContext,
    documents_are: str | None,
) -> Ranked:
    """Return scores and order of a request's documents.

    ``documents_are`` is the URL parameter, which overrides the body's field. Raises `ServiceError` 413 if the request
    has too many documents.
    """
    settings, serving, metrics = state.settings, state.serving, state.metrics
    limit = settings.limits.max_documents
    if len(documents) > limit:
        raise ServiceError(413, f"the request has {len(documents)} documents; at most {limit} are allowed")
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

    if by_id:
        scoring = await state.run(context.deadline, score, len(documents))
    else:
        scoring = await state.work.in_thread(context.deadline, score)  # texts are encoded here
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
"""Largest number of documents in the schema of a request; the service's configured limit may be lower."""
MAX_QUERY_CHARS = 10_000

Query = Annotated[str, Meta(max_length=MAX_QUERY_CHARS, description="Text of the search query.")]
# Decoded as a float, because 3.0 is an integer in JSON as well.
TopN = Annotated[float, Meta(ge=1, multiple_of=1, description="Number of results to return; absent or null: all.")]
DocumentsAre = Literal["texts", "ids"]
DocumentsAreField = (
    Annotated[
        str,
        Meta(
            pattern="^(texts|ids)$",
            description="`ids`: strings are ids of indexed documents, whose stored vectors are used. Equivalent to a "
            "model name that ends in `:ids` and to `?documents_are=ids`.",
        ),
    ]
    | None
)
ModelName = Annotated[
    str,
    Meta(max_length=200, description="Any name: the live model answers. With the suffix `:ids`, documents are ids."),
]


class RerankRequest(RequestBody):
    """A rerank request in the format of Cohere (v1 and v2) and Jina."""

    query: Query
    documents: Annotated[
        list[str | dict[str, Any]],
        Meta(
            min_length=1,
            max_length=MAX_DOCUMENTS,
            description='Texts, objects of texts by field, or ids of indexed documents: `{"id": "..."}`, or strings '
            "if `documents_are` is `ids`.",
        ),
    ]
    model: ModelName = "ssi"
    top_n: TopN | None = None
    return_documents: Annotated[
        bool | None,
        Meta(description="Return each document as it was sent. Absent: only if the model name begins with jina."),
    ] = None
    rank_fields: (
        Annotated[list[str], Meta(max_length=100, description="The only fields of objects that are read.")] | None
    ) = None
    documents_are: DocumentsAreField = None


Texts = Annotated[
    list[str | dict[str, Any]],
    Meta(min_length=1, max_length=MAX_DOCUMENTS, description="Same as `documents` of the other rerank routes."),
]


class TextsRequest(RequestBody):
    """A rerank request in the format of text-embeddings-inference; ``documents`` is accepted instead of ``texts``."""

    query: Query
    texts: Texts
    raw_scores: Annotated[bool, Meta(description="Return f(q, d) instead of a score from 0 to 1.")] = False
    return_text: bool = False
    model: ModelName = "ssi"
    top_n: TopN | None = None
    documents_are: DocumentsAreField = None


class TextsAsDocuments(TextsRequest, kw_only=True):
    """A `TextsRequest` whose texts are in the field ``documents``, as in the other formats."""

    texts: Texts = msgspec.field(name="documents")


class EmbedRequest(RequestBody):
    """Texts to encode as vectors of the learned part: Vd, or Uq if ``prompt_name`` is ``query``."""

    inputs: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    normalize: Annotated[
        bool, Meta(description="Scale vectors to unit length; false keeps the length that (Uq).(Vd) needs.")
    ] = True
    prompt_name: (
        Annotated[
            str, Meta(pattern="^(query|document)$", description="Side of the model that encodes; absent: documents.")
        ]
        | None
    ) = None


class ApiVersion(BaseModel):
    """API version in the format of Cohere."""

    version: str
    is_deprecated: bool = False
    is_experimental: bool = False


class RerankMeta(BaseModel):
    """Metadata of a rerank answer."""

    api_version: ApiVersion
    billed_units: dict[str, int]
    warnings: list[str]
    model_id: str = Field(description="The version that scored; empty if none was loaded.")
    fallback: bool = Field(description="True: the documents are in the given order; `warnings` has the reason.")
    unscored: int = Field(description="Documents with neither a vector nor a text.")


class RerankResult(BaseModel):
    """One document: its index in the request, and a score from 0 to 1 (the header `x-ssi-score` gives its meaning)."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = Field(None, description="The document as it was sent, only if requested.")


class RerankAnswer(BaseModel):
    """Results, best first (Cohere v2)."""

    id: str
    results: list[RerankResult]
    meta: RerankMeta


class Usage(BaseModel):
    """Tokens used: always 0, since the service does not count tokens."""

    total_tokens: int


class RerankAnswerV1(RerankAnswer):
    """Results, best first, with the fields of both Cohere v1 and Jina."""

    model: str
    object: Literal["list"]
    usage: Usage


class TextResult(BaseModel):
    """One text: its index in the request, and its score."""

    index: int
    score: float
    text: str | None = Field(None, description="The text as it was sent, only if requested.")


class ModelType(BaseModel):
    """Task of the model."""

    reranker: dict[str, dict[str, Any]]


class InfoAnswer(BaseModel):
    """The served model, in the format of text-embeddings-inference."""

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
    """An error in the format of Cohere."""

    message: str


class JinaError(CohereError):
    """An error in the formats of both Cohere and Jina."""

    detail: str


class TextsError(BaseModel):
    """An error in the format of text-embeddings-inference."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


SaidInUrl = Annotated[
    DocumentsAre | None, UrlParameter(description="Same as the field of the body, which it overrides.")
]


def texts_error(status: int, kind: str, message: str) -> Mapping[str, Any]:
    """Return ``{"error", "error_type"}`` with one of text-embeddings-inference's error types."""
    if status == 429 or kind == "overloaded":
        name = "Overloaded"
    elif status == 503:
        name = "Unhealthy"
    else:
        name = "Backend" if status >= 500 else "Validation"
    return {"error": message, "error_type": name}


ERROR_SHAPES: Mapping[str, ErrorShape] = {
    # Clients of Cohere read ``message``, those of Jina ``detail``.
    "/v1/rerank": lambda status, kind, message: {"message": message, "detail": message},
    "/v2/rerank": lambda status, kind, message: {"message": message},
    **dict.fromkeys(("/rerank", "/", "/embed", "/info"), texts_error),
}
"""Path -> error format, for `reranker.service.app.ServicePart`."""

LARGE = ("/", "/rerank", "/embed", "/v1/rerank", "/v2/rerank")
"""Paths whose requests contain documents: their bodies may be large."""

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
    """Encode texts as vectors of the learned part: Vd, or Uq for queries (text-embeddings-inference).

    The inner product of two of these vectors is only the learned part of f. The lexical part a q.d is not included.
    """
    serving = state.serving
    model = _model_of(serving)
    vectors = await state.work.in_thread(context.deadline, lambda: _embedded(model, wanted, context))
    return Response(vectors, 200, {"x-ssi-model": serving.model_id}, "application/json")


@router.get("/info", response_model=InfoAnswer, responses=error_responses(TextsError), operation_id="info")
async def info(state: State) -> Response:
    """Describe the served model (text-embeddings-inference)."""
    serving = state.serving
    model, limits = _model_of(serving), state.settings.limits
    answer = {
        "model_id": serving.path.name if serving.path else "ssi",
        "model_sha": serving.model_id,
        "model_dtype": model.encoder.quantisation,
        "model_type": {"reranker": {"id2label": {"0": "relevant"}, "label2id": {"relevant": 0}}},
        "max_concurrent_requests": limits.at_once + limits.max_waiting,
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
    """Return the n vectors of the inputs as a JSON list of n lists of N numbers; a zero vector is not normalised.

    Texts are truncated to the length that ``/info`` reports. Vectors are converted to JSON batch by batch, because
    Python floats need many times the memory.
    """
    view = model.encoder.view
    texts = [wanted.inputs] if isinstance(wanted.inputs, str) else wanted.inputs
    field = text_field(view)
    parts = []
    for batch in batches(texts, (min(len(text), view.max_chars) for text in texts)):
        if context.deadline.left_s <= 0:
            raise ServiceError(503, "the deadline has passed", kind="deadline", retry_after_s=1.0)
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
    """Rerank documents given as texts, or as ids of indexed documents (Cohere v2)."""
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
    """Rerank documents given as texts, or as ids of indexed documents (Cohere v1 and Jina)."""
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
