"""The candidates of a search and their model scores: f(q, d) = (Uq).(Vd) + a q.d.

Vectors and words of the candidates come from one of two routes: a local store (`LocalStore`), or fields of the engine's
hits (`StoredFields`). A candidate for which the route has no vector is encoded from its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from msgspec import structs

from reranker.arrays import AnyFloat, Float32, Float64, Int64
from reranker.deadline import Deadline
from reranker.engines.bodies import candidate_body
from reranker.engines.protocol import MAX_HITS, Engine, SearchesDocValues
from reranker.engines.vectors import (
    PACKED_PARTS,
    QueryVectors,
    field_name,
)
from reranker.errors import EncoderMismatch, FallbackError, InputError
from reranker.kernels.rows import score_rows
from reranker.kernels.texts import unpack_texts
from reranker.models.ranking_model import Encoder, RankingModel
from reranker.models.repeated import preferences_of
from reranker.records import Hit, RankedHit, ReasonKind, SearchAnswer
from reranker.rerank.doc_values import DocValueSearch
from reranker.store import VectorStore

Value = TypeVar("Value")


class CandidatePart(NamedTuple):
    """A subset of the candidates with a way to score them."""

    places: Int64
    """(m,) int64: Positions of these candidates in the window."""
    score: Callable[[QueryVectors], Float32]
    """Function that returns f(q, d) of each of them, (m,) float32."""
    terms: Callable[[Sequence[int]], list[sp.csr_matrix]]
    """Function of positions within the subset that returns their lexical rows, (1, 2**31 - 1) each."""
    vectors: Callable[[Sequence[int]], Sequence[Float32 | None]]
    """Function of positions within the subset that returns their vectors Vd, (N,) float32; None for a missing one."""


@dataclass(slots=True)
class CandidateVectors:
    """The vectors of ``n`` candidates, from one or more sources."""

    n: int
    parts: list[CandidatePart] = field(default_factory=list)

    def missing(self) -> Int64:
        """Return the positions of the candidates without a vector, ascending."""
        missing = np.ones(self.n, dtype=bool)
        for part in self.parts:
            missing[part.places] = False
        return np.flatnonzero(missing)

    def score(self, query: QueryVectors) -> Float64:
        """Return f(q, d) of each candidate, (n,) float64; NaN if there is no vector or the score is not finite."""
        scores = np.full(self.n, np.nan)
        for part in self.parts:
            scores[part.places] = part.score(query)
        scores[~np.isfinite(scores)] = np.nan
        return scores

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix | None]:
        """Return the lexical rows of some of the candidates; None for a candidate without one."""
        return self._of_parts(places, lambda part, rows: part.terms(rows))

    def vectors(self, places: Sequence[int]) -> list[Float32 | None]:
        """Return the vectors Vd of some of the candidates, (N,) float32; None for a candidate without one."""
        return self._of_parts(places, lambda part, rows: part.vectors(rows))

    def _of_parts(
        self, places: Sequence[int], read: Callable[[CandidatePart, list[int]], Sequence[Value | None]]
    ) -> list[Value | None]:
        """Return what ``read`` returns of some of the candidates; None for a candidate that is in no part."""
        found: dict[int, Value | None] = {}
        for part in self.parts:
            row_of = {place: row for row, place in enumerate(part.places.tolist())}
            of_part = [place for place in places if place in row_of]
            if of_part:
                found |= dict(zip(of_part, read(part, [row_of[place] for place in of_part]), strict=True))
        return [found.get(place) for place in places]

    def add_arrays(self, places: Int64, vectors: Float32, rows: sp.csr_matrix) -> None:
        """Add candidates by their vectors Vd, (m, N) float32, and their lexical rows."""
        everything = np.arange(len(vectors), dtype=np.int64)

        def score(query: QueryVectors) -> Float32:
            return score_vectors(query, everything, vectors, rows)

        part = CandidatePart(
            places, score, lambda some: [rows[row] for row in some], lambda some: [vectors[row] for row in some]
        )
        self.parts.append(part)

    def add_texts(
        self, model: RankingModel, places: Sequence[int], sources: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> int:
        """Encode the candidates at ``places`` from their text, add them, and return how many had any text.

        ``ids`` are their document ids, which select their memory of queries; an id is empty for a text that is not a
        document. A document whose vector cannot be used is encoded without it, so that the others keep their scores.
        """
        if not len(places):
            return 0
        encoder = model.encoder
        usable = [each if has_usable_vector(encoder, each) else _text_of(encoder, each) for each in sources]
        encoded = encoder.encode(usable, ids)
        kept = np.flatnonzero(encoded.has_text)
        if len(kept):
            vectors = np.ascontiguousarray(encoded.vectors[kept])
            self.add_arrays(np.asarray(places, dtype=np.int64)[kept], vectors, encoded.rows[kept])
        return len(kept)


def has_usable_vector(encoder: Encoder, source: Mapping[str, Any]) -> bool:
    """Return False if the encoder reads vectors, and the document's value is not a vector like those of training."""
    field = encoder.vector_field
    if field is None:
        return True
    try:
        field.check(encoder.view.given_vector(source))
    except InputError:
        return False
    return True


def outdated(encoder: Encoder, sources: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of the documents whose vector was computed from another text than they have.

    ``sources`` are whole documents: a field that is missing there is one that the document does not have. Documents
    without a hash are left out, and so are all documents of an encoder that reads vectors, which an engine may omit
    from ``_source``.
    """
    if encoder.vector_field is not None:
        return []
    name, view = field_name(encoder.encoder_id, "src"), encoder.view
    known = [(place, source) for place, source in enumerate(sources) if name in source]
    return [place for place, source in known if source[name] != view.source_hash(source)]


def _text_of(encoder: Encoder, source: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of a document by the paths of its fields."""
    paths = [spec.path for spec in encoder.view.fields]
    return dict(zip(paths, encoder.view.texts(source), strict=True))


def score_vectors(query: QueryVectors, places: Int64, vectors: Float32, rows: sp.csr_matrix) -> Float32:
    """Return f(q, d) of the documents at ``places`` of a vector matrix and a lexical matrix, (n_places,) float32."""
    head = (query.vector, query.ids, query.weights, query.identity)
    return score_rows(*head, places, vectors, rows.indptr, rows.indices, rows.data)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Route *beside*: the engine returns ids, and the vectors are in a local store."""

    source_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of ``_source`` that the candidates must include; empty: ids are enough."""
    packed_parts: ClassVar[tuple[str, ...]] = ()
    """Parts of the encoder's fields that the candidates must include, some of `PACKED_PARTS`."""
    store: VectorStore

    @property
    def encoder_id(self) -> str:
        """The encoder of the store."""
        return self.store.encoder_id

    def load(self, hits: Sequence[Hit]) -> CandidateVectors:
        """Return the store's vectors for these hits."""
        return self.vectors_of([hit.id for hit in hits])

    def vectors_of(self, ids: Sequence[str]) -> CandidateVectors:
        """Return the store's vectors for the documents with these ids."""
        places, arrays, rows, _ = self.store.get(ids)
        # A document stored without text may have one by now, and cannot be scored without its words. The vector of a
        # text counts words whose lexical weight is 0, too.
        has_words = np.diff(rows.indptr) > 0
        if not has_words.all():
            kept = np.flatnonzero(has_words | arrays.any(axis=1))
            places, arrays, rows = places[kept], arrays[kept], rows[kept]
        vectors = CandidateVectors(len(ids))
        if len(places):
            vectors.add_arrays(places, arrays, rows)
        return vectors


@dataclass(frozen=True, slots=True)
class StoredFields:
    """Route *fetch*: the packed vectors and words come with the hits, in fields whose names contain ``encoder_id``.

    A vector whose length is not ``dims`` counts as missing.
    """

    encoder_id: str
    dims: int
    packed_parts: ClassVar[tuple[str, ...]] = PACKED_PARTS

    @property
    def source_fields(self) -> tuple[str, ...]:
        """Names of the fields with the packed vector and the packed words."""
        return tuple(field_name(self.encoder_id, part) for part in self.packed_parts)

    def load(self, hits: Sequence[Hit]) -> CandidateVectors:
        """Return the vectors that came with these hits; damaged ones count as missing."""
        vec, terms = (_packed(hits, name) for name in self.source_fields)
        vectors = CandidateVectors(len(hits))
        arrays, rows, are_whole = unpack_texts(vec, terms, self.dims)
        places = np.flatnonzero(are_whole)
        if len(places) < len(hits):
            arrays, rows = arrays[places], rows[places]
        if len(places):
            vectors.add_arrays(places, arrays, rows)
        return vectors


def _packed(hits: Sequence[Hit], name: str) -> list[str]:
    """Return of each hit the first doc value of a field, or else its value in ``_source``; "" without a text."""
    values = [hit.fields[name][0] if name in hit.fields else hit.source.get(name) for hit in hits]
    return [value if isinstance(value, str) else "" for value in values]


Route = LocalStore | StoredFields
"""A route to the vectors of the engine's hits."""


def route_of(name: str, model: RankingModel | None, store: VectorStore | None) -> Route | None:
    """Return the route to the vectors, or None if there is no model or no store.

    Raises `EncoderMismatch` if the store contains another encoder's vectors.
    """
    if model is not None and store is not None and store.encoder_id != model.encoder_id:
        raise EncoderMismatch(
            f"the store at {str(store.path)!r} was written by encoder {store.encoder_id[:12]}, but the model has "
            f"encoder {model.encoder_id[:12]}: write a store with this model",
            store=store.encoder_id,
            model=model.encoder_id,
        )
    if model is None:
        return None
    if name == "fetch":
        return StoredFields(model.encoder_id, model.encoder.n_dims)
    return None if store is None else LocalStore(store)


_NEED_STORED_FIELDS: Final = frozenset({"collapse", "search_pipeline", "knn", "retriever", "rank", "sub_searches"})


def needs_no_stored_fields(body: Mapping[str, Any]) -> bool:
    """Return whether the candidates of a body can be read from doc values.

    They cannot if the hits are shown as they are (``_source: false``), grouped, or searched again for inner hits, or if
    a search pipeline processes them. Neither can hits that do not satisfy the query, such as those of ``knn``: the page
    could not confirm their ids.
    """
    if body.get("_source") is False or not _NEED_STORED_FIELDS.isdisjoint(body):
        return False
    return not has_key(body.get("query"), {"inner_hits", "knn", "hybrid"})


def has_key(node: Any, names: set[str]) -> bool:
    """Return whether an object inside a JSON value has a key among ``names``."""
    left = [node]
    while left:
        part = left.pop()
        if isinstance(part, str | int | float):  # most parts; to recognise them as no mapping takes longer
            continue
        if isinstance(part, dict) or isinstance(part, Mapping):
            if not names.isdisjoint(part):
                return True
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
    return False


def check_unscored(n_unscored: int, n: int, allowed: float, remedy: str) -> None:
    """Raise `FallbackError` if the share of candidates without a score is larger than ``allowed``."""
    if n_unscored > allowed * n:
        raise FallbackError(
            ReasonKind.UNSCORED,
            f"{n_unscored} of {n} candidates have neither a vector of this model nor a text, more than the "
            f"{allowed:.0%} allowed: {remedy}",
        )


class EncodedQuery(NamedTuple):
    """A query encoded by the model."""

    vectors: QueryVectors
    """Uq' and the lexical row q."""
    scale: float
    """c(q), by which the engine's scores are divided."""
    n_listed: int
    """Number of words of q in the query vocabulary. Other words count only in q.d, by their hashed ids."""
    preferred: Mapping[str, float] = {}
    """Document id → p(q, d), the preferences of users if the query is a repeated one."""

    @property
    def is_empty(self) -> bool:
        """True if no word of the query is left, so that f is 0 for every document."""
        return len(self.vectors.ids) == 0


def lexical_scale(idf: AnyFloat) -> float:
    """Return c(q), the sum of the idf of the query's distinct words; 1 if the sum is 0.

    The sum is 0 if every word is in every document.

    ``idf`` is ln(N / df) of each distinct word, (n_words,) float.
    """
    total = float(np.sum(idf, dtype=np.float64))
    return total if total > 0 else 1.0


def encode_query(model: RankingModel, query: str) -> EncodedQuery:
    """Return a query text encoded as Uq, q and c(q), with the preferences of users for it."""
    encoded = model.encode_queries([query])
    ids, weights = encoded.rows.indices.astype(np.int32), encoded.rows.data.astype(np.float32)
    filled = weights != 0
    ids, weights = ids[filled], weights[filled]
    vectors = QueryVectors(np.ascontiguousarray(encoded.vectors[0]), ids, weights, float(model.identity))
    idf = model.query_vocabulary.idf_of(ids)
    n_listed = int((ids < len(model.query_vocabulary)).sum())
    return EncodedQuery(vectors, lexical_scale(idf), n_listed, model.preferred(query))


def read_whole(
    search: Callable[[int], SearchAnswer], size: int, enough: Callable[[Sequence[Hit]], bool]
) -> Sequence[Hit]:
    """Return the hits of ``search(size)``, repeated with a larger size as long as that may return more wanted hits.

    An alias may name several indexes that contain the same id, so there may be more documents than ids.
    """
    size = min(size, MAX_HITS)
    while True:
        hits = search(size).hits
        if len(hits) < size or size == MAX_HITS or enough(hits):
            return hits
        size = min(16 * size, MAX_HITS)


def documents_of(
    engine: Engine,
    index: str,
    body: Mapping[str, Any],
    hits: Sequence[Hit | RankedHit],
    *,
    preference: str | None,
    timeout_s: float | None,
) -> dict[tuple[str, str], Hit]:
    """Return (concrete index, id) → document, for those of ``hits`` that still exist.

    ``body`` searches for the documents by their ids; this function sets its size.
    """
    wanted = {(hit.index, hit.id) for hit in hits}
    size = len({name for _, name in wanted}) * len({name for name, _ in wanted})

    def search(size: int) -> SearchAnswer:
        return engine.search(index, {**body, "size": size}, preference=preference, timeout_s=timeout_s)

    documents = read_whole(search, size, lambda answered: wanted <= {(hit.index, hit.id) for hit in answered})
    return {(hit.index, hit.id): hit for hit in documents}


@dataclass(slots=True)
class Window:
    """Candidates in first-stage order with both scores."""

    hits: tuple[Hit, ...]
    lexical: Float64
    """(n,) float64: the engine's scores, NaN if it returned none."""
    model: Float64
    """(n,) float64: f(q, d) + p(q, d), NaN for a candidate without vector and text."""
    vectors: CandidateVectors
    """The vectors from which ``model`` was computed."""
    encoded: frozenset[int] = frozenset()
    """First-stage positions of candidates that were encoded from their text, as far as they had one."""
    n_encoded: int = 0
    """Number of candidates that were encoded from their text."""
    n_unscored: int = 0
    """Number of candidates without vector and text."""

    @property
    def n(self) -> int:
        """Number of candidates."""
        return len(self.hits)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Retrieves candidates from one index (or alias) and scores them by one route.

    ``route`` is None if there is no model or no store. Candidates can then be retrieved, but not scored.
    """

    engine: Engine
    index: str
    route: Route | None
    doc_values: DocValueSearch | None = field(init=False)
    """Search by doc values; None if the engine has none, or if there is no route."""

    def __post_init__(self) -> None:
        route, by_doc_values = self.route, None
        if route is not None and isinstance(self.engine, SearchesDocValues):
            by_doc_values = DocValueSearch(self.engine, self.index, route.encoder_id, route.packed_parts)
        object.__setattr__(self, "doc_values", by_doc_values)

    def search(
        self,
        body: Mapping[str, Any],
        size: int,
        preference: str,
        deadline: Deadline,
        *,
        answers: bool = True,
        with_source: bool = False,
        doc_values: Sequence[Mapping[str, str]] = (),
    ) -> SearchAnswer:
        """Return the engine's first ``size`` hits with the fields that the route needs.

        The hits are read from doc values if the index has them and nothing else is needed of the hits.

        ``doc_values`` are requested in addition, and are in ``fields`` of each hit. ``with_source`` adds the
        ``_source`` that the body shows. ``answers`` keeps the parts of the body that are not about hits (aggregations).
        """
        fields = self.route.source_fields if self.route else ()
        request = candidate_body(body, size, fields, answers=answers)
        if self.doc_values is not None and with_source:
            self.doc_values.skip()
        elif self.doc_values is not None and needs_no_stored_fields(body):
            answer = self.doc_values.search(request, doc_values, preference, deadline)
            if answer is not None:
                return answer
        request["_source"] = self.source_of(body, with_source=with_source)
        if not doc_values:
            return self.engine.search(self.index, request, preference=preference, timeout_s=deadline.timeout_s())
        request["docvalue_fields"] = list(doc_values)
        answer = self.engine.search(self.index, request, preference=preference, timeout_s=deadline.timeout_s())
        # The body did not request these doc values, so they are removed from what is shown.
        shown = ({name: value for name, value in hit.raw.items() if name != "fields"} for hit in answer.hits)
        return replace(answer, hits=tuple(map(lambda hit, raw: structs.replace(hit, raw=raw), answer.hits, shown)))

    def forget_doc_values(self) -> None:
        """Read the next candidates from stored fields: an id among the doc values was not that of its document."""
        if self.doc_values is not None:
            self.doc_values.note_failure()

    def source_of(self, body: Mapping[str, Any], *, with_source: bool) -> bool | list[str]:
        """Return the ``_source`` option with which candidates are requested."""
        fields = self.route.source_fields if self.route else ()
        if not with_source:
            return list(fields) or False
        source = body.get("_source", True)
        return [*source, *fields] if isinstance(source, list) else True

    def score(
        self,
        model: RankingModel,
        query: EncodedQuery,
        hits: Sequence[Hit],
        deadline: Deadline,
        *,
        are_whole: bool = False,
    ) -> Window:
        """Return the candidates with their scores. Candidates without a vector are encoded from their text.

        So are candidates whose vector is of another text, if ``are_whole`` says that their whole documents came with
        them. If they did not, the old vectors are used, because reading the text of the whole window would take a
        second request for every search.

        Raises `FallbackError` if the deadline passes, `EngineError` if the texts cannot be read.
        """
        deadline.check("the engine searched")
        vectors = CandidateVectors(len(hits))
        with deadline.stage("vectors"):
            if self.route:
                vectors = self.route.load(hits)
        missing = vectors.missing().tolist()
        changed = outdated(model.encoder, [hit.source for hit in hits]) if are_whole else []
        stale = sorted({*changed}.difference(missing))
        n_encoded = 0
        if missing or stale:
            with deadline.stage("encode"):
                known = [hits[place] for place in stale]
                n_encoded = vectors.add_texts(model, stale, [hit.source for hit in known], [hit.id for hit in known])
                if missing:
                    n_encoded += self._encode(model, vectors, [hits[place] for place in missing], missing, deadline)
            deadline.check("documents without a vector were encoded")
        with deadline.stage("score"):
            scores = vectors.score(query.vectors)
            if query.preferred:
                scores += preferences_of(query.preferred, [hit.id for hit in hits])
        deadline.check("the candidates were scored")
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in hits], dtype=np.float64)
        encoded = frozenset((*missing, *stale))
        return Window(tuple(hits), lexical, scores, vectors, encoded, n_encoded, int(np.isnan(scores).sum()))

    def _encode(
        self,
        model: RankingModel,
        vectors: CandidateVectors,
        hits: Sequence[Hit],
        places: Sequence[int],
        deadline: Deadline,
    ) -> int:
        """Read the texts of hits without a vector, encode them, and return how many had a text."""
        fields = model.encoder.view.source_fields
        body = {"query": {"ids": {"values": [hit.id for hit in hits]}}, "_source": fields}
        sources = documents_of(self.engine, self.index, body, hits, preference=None, timeout_s=deadline.timeout_s())
        keys = [(hit.index, hit.id) for hit in hits]
        known = [place for place, key in enumerate(keys) if key in sources]
        texts = [sources[keys[place]].source for place in known]
        return vectors.add_texts(model, [places[place] for place in known], texts, [hits[place].id for place in known])
