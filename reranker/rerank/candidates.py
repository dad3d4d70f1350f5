"""The candidates of a search and their model scores: f(q, d) = (Uq).(Vd) + a q.d.

Vectors and words of the candidates come by one of three routes: a store on this machine (`LocalStore`), the fields that
come with the engine's hits (`StoredFields`), or not at all, since a script in the engine computes f (`EngineScript`).
A candidate that a route has nothing for is encoded from its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from msgspec import structs

from reranker.arrays import N_TERM_IDS, AnyFloat, Float32, Float64, Int64
from reranker.deadline import Deadline
from reranker.engines.bodies import candidate_body
from reranker.engines.protocol import MAX_HITS, Capabilities, Engine
from reranker.engines.vectors import (
    ID_DIGITS,
    InsideFields,
    QueryVectors,
    field_name,
    inside_fields,
    model_scores,
    score_body,
    unpacked_terms,
)
from reranker.errors import EncoderMismatch, FallbackError, InputError, Unsupported
from reranker.kernels.packing import from_texts, unpack_terms, unpack_vectors
from reranker.kernels.rows import score_rows
from reranker.models.ranking_model import RankingModel
from reranker.records import Hit, RankedHit, ReasonKind, SearchAnswer
from reranker.store import VectorStore

Fields = TypeVar("Fields")


class CandidatePart(NamedTuple):
    """Some of the candidates, at ``places`` (m,) int64, and how they are scored.

    ``score`` gives f(q, d) of each of them, (m,) float32; ``terms``, of places within the part, the lexical rows of
    these documents, (1, 2**31 - 1) each.
    """

    places: Int64
    score: Callable[[QueryVectors], Float32]
    terms: Callable[[Sequence[int]], list[sp.csr_matrix]]


@dataclass(slots=True)
class CandidateVectors:
    """The vectors of ``n`` candidates, gathered from one or more places."""

    n: int
    parts: list[CandidatePart] = field(default_factory=list)

    def missing(self) -> Int64:
        """Return the places of the candidates without a vector, ascending."""
        missing = np.ones(self.n, dtype=bool)
        for part in self.parts:
            missing[part.places] = False
        return np.flatnonzero(missing)

    def score(self, query: QueryVectors) -> Float64:
        """Return f(q, d) of each candidate, (n,) float64; NaN where there is no vector, or its score is not finite."""
        scores = np.full(self.n, np.nan)
        for part in self.parts:
            scores[part.places] = part.score(query)
        scores[~np.isfinite(scores)] = np.nan
        return scores

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix | None]:
        """Return the lexical rows of some of the candidates, None for one that has none."""
        rows: dict[int, sp.csr_matrix] = {}
        for part in self.parts:
            row_of = {place: row for row, place in enumerate(part.places.tolist())}
            of_part = [place for place in places if place in row_of]
            if of_part:
                rows |= dict(zip(of_part, part.terms([row_of[place] for place in of_part]), strict=True))
        return [rows.get(place) for place in places]

    def add_arrays(self, places: Int64, vectors: Float32, rows: sp.csr_matrix) -> None:
        """Add candidates by Vd, (m, N) float32, and their lexical rows."""
        everything = np.arange(len(vectors), dtype=np.int64)

        def score(query: QueryVectors) -> Float32:
            return score_vectors(query, everything, vectors, rows)

        self.parts.append(CandidatePart(places, score, lambda some: [rows[row] for row in some]))

    def add_texts(
        self, model: RankingModel, places: Sequence[int], sources: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> int:
        """Add the candidates at ``places``, encoded from their text, and return how many had any text.

        ``ids`` are theirs, by which they have a memory; empty for a text that is no document.
        """
        if not len(places):
            return 0
        encoded = model.encoder.encode(sources, ids)
        kept = np.flatnonzero(encoded.has_text)
        if len(kept):
            vectors = np.ascontiguousarray(encoded.vectors[kept])
            self.add_arrays(np.asarray(places, dtype=np.int64)[kept], vectors, encoded.rows[kept])
        return len(kept)


def score_vectors(query: QueryVectors, places: Int64, vectors: Float32, rows: sp.csr_matrix) -> Float32:
    """Return f(q, d) of some documents of a matrix of vectors and one of lexical rows, (n_places,) float32."""
    head = (query.vector, query.ids, query.weights, query.identity)
    return score_rows(*head, places, vectors, rows.indptr, rows.indices, rows.data)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Route *beside*: the engine returns ids, the vectors lie in a store on this machine."""

    source_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of ``_source`` that the candidates must come with. None: ids are enough."""
    store: VectorStore

    def load(self, hits: Sequence[Hit], query: QueryVectors, timeout_s: float | None = None) -> CandidateVectors:
        """Return the store's vectors of these hits."""
        return self.vectors_of([hit.id for hit in hits])

    def vectors_of(self, ids: Sequence[str]) -> CandidateVectors:
        """Return the store's vectors of the documents with these ids."""
        rows = self.store.rows_of(ids)
        places = np.flatnonzero(rows >= 0)
        # A document stored without text may have one by now, and cannot be scored without.
        places = places[self.store.has_words(rows[places])]
        rows = rows[places]
        vectors = CandidateVectors(len(ids))
        if len(places):
            part = CandidatePart(
                places,
                lambda query: self.store.score(query, rows),
                lambda some: [self.store.terms(rows[row : row + 1]) for row in some],
            )
            vectors.parts.append(part)
        return vectors


@dataclass(frozen=True, slots=True)
class StoredFields:
    """Route *fetch*: the packed vectors and words come with the hits, in fields that ``encoder_id`` names.

    A vector of another length than ``dims`` is as good as none.
    """

    encoder_id: str
    dims: int

    @property
    def source_fields(self) -> tuple[str, ...]:
        """The packed vector and the packed words."""
        return field_name(self.encoder_id, "vec"), field_name(self.encoder_id, "terms")

    def load(self, hits: Sequence[Hit], query: QueryVectors, timeout_s: float | None = None) -> CandidateVectors:
        """Return the vectors that came with these hits; damaged ones count as missing."""
        vec, terms = self.source_fields
        whole = [
            (place, a, b)
            for place, hit in enumerate(hits)
            if isinstance(a := hit.source.get(vec), str) and isinstance(b := hit.source.get(terms), str)
        ]
        vectors = CandidateVectors(len(hits))
        if not self._unpack(whole, vectors):
            # One bad document must not cost the others their vectors: find out which are whole.
            for text in whole:
                self._unpack([text], vectors)
        return vectors

    def _unpack(self, texts: Sequence[tuple[int, str, str]], vectors: CandidateVectors) -> bool:
        """Add the documents to ``vectors`` and return True, or False where one of them is damaged."""
        if not texts:
            return True
        try:
            arrays = unpack_vectors(from_texts([vector for _, vector, _ in texts]), self.dims)
            rows = unpack_terms(from_texts([terms for _, _, terms in texts]))
        except InputError:
            return False
        vectors.add_arrays(np.array([place for place, _, _ in texts], dtype=np.int64), arrays, rows)
        return True


@dataclass(slots=True)
class EngineScript:
    """Route *inside*: the engine is asked a second time, for f of the candidates' ids.

    All indexes behind ``index`` must have the fields that ``encoder_id`` names.
    """

    engine: Engine
    index: str
    encoder_id: str
    _fields: InsideFields | None = field(init=False, default=None)
    source_fields: ClassVar[tuple[str, ...]] = ()

    def fields(self) -> InsideFields:
        """Return the fields that the engine computes with; asked for once, errors as `fields_of_index`."""
        if self._fields is None:
            self._fields = fields_of_index(self.engine, self.index, self.encoder_id, "inside", inside_fields)
        return self._fields

    def load(self, hits: Sequence[Hit], query: QueryVectors, timeout_s: float | None = None) -> CandidateVectors:
        """Return the engine's scores of these hits; a document without a vector has none. Another query asks again."""
        vectors = CandidateVectors(len(hits))
        scores = self._scores(hits, query, timeout_s)
        places = np.flatnonzero(~np.isnan(scores))
        if len(places):
            scored, known = [hits[place] for place in places.tolist()], scores[places]
            part = CandidatePart(
                places.astype(np.int64),
                lambda other: known if other is query else self._scores(scored, other, timeout_s),
                lambda some: self._words([scored[row] for row in some]),
            )
            vectors.parts.append(part)
        return vectors

    def _scores(self, hits: Sequence[Hit], query: QueryVectors, timeout_s: float | None) -> Float32:
        """Return f of the hits, (n,) float32, NaN for those that the engine could not score."""
        fields = self.fields()
        scores = np.full(len(hits), np.nan, dtype=np.float32)
        # An alias may stand for several indexes that hold the same id.
        n_indexes = len({hit.index for hit in hits})
        step = MAX_HITS // max(n_indexes, 1)
        for start in range(0, len(hits), step):
            part = hits[start : start + step]
            body = score_body(fields, query, list(dict.fromkeys(hit.id for hit in part)), len(part) * n_indexes)
            answer = self.engine.search(self.index, body, timeout_s=timeout_s)
            values = model_scores(fields, query, [np.nan if hit.score is None else hit.score for hit in answer.hits])
            known = {(hit.index, hit.id): f for hit, f in zip(answer.hits, values.tolist(), strict=True)}
            scores[start : start + len(part)] = [known.get((hit.index, hit.id), np.nan) for hit in part]
        return scores

    def _words(self, hits: Sequence[Hit]) -> list[sp.csr_matrix]:
        """Return the lexical rows that the engine has of some documents; an empty one where it has gone meanwhile."""
        terms = self.fields().terms
        body = {"query": {"ids": {"values": list(dict.fromkeys(hit.id for hit in hits))}}, "_source": [terms]}
        stored = documents_of(self.engine, self.index, body, hits, preference=None, timeout_s=None)
        rows = []
        for hit in hits:
            document = stored.get((hit.index, hit.id))
            ids, weights = unpacked_terms((document.source.get(terms) if document else None) or [])
            rows.append(sp.csr_matrix((weights, ids, [0, len(ids)]), shape=(1, N_TERM_IDS)))
        return rows


Route = LocalStore | StoredFields | EngineScript
"""A way to the vectors of the engine's hits."""


def route_of(
    name: str, model: RankingModel | None, store: VectorStore | None, engine: Engine, index: str
) -> Route | None:
    """Return the way to the vectors, or None where there is no model or no store.

    `EncoderMismatch` if the store holds another encoder's vectors.
    """
    if model is not None and store is not None and store.encoder_id != model.encoder_id:
        raise EncoderMismatch(
            f"the store at {str(store.path)!r} is of encoder {store.encoder_id[:12]}, the model needs "
            f"{model.encoder_id[:12]}: write a store with this model",
            store=store.encoder_id,
            model=model.encoder_id,
        )
    if model is None:
        return None
    if name == "inside":
        return EngineScript(engine, index, model.encoder_id)
    if name == "fetch":
        return StoredFields(model.encoder_id, model.encoder.n_dims)
    return None if store is None else LocalStore(store)


def fields_of_index(
    engine: Engine,
    index: str,
    encoder_id: str,
    route: str,
    read: Callable[[Mapping[str, Any], str, Capabilities], Fields | None],
) -> Fields:
    """Return what all indexes behind a name have of an encoder for route *inside*, or *first-stage*.

    ``read(properties of a mapping, encoder id, capabilities)`` returns the fields, None where one is missing.
    `EncoderMismatch` if an index has none of this encoder; the message names the command that writes them;
    `Unsupported` if the engine has no such fields at all; `EngineError` if it does not answer.
    """
    capabilities = engine.capabilities()
    first_stage = route == "first-stage"
    if not (capabilities.hnsw if first_stage else capabilities.vector_product):
        remedy = "search by vectors: use --retrieve bm25"
        if not first_stage:
            remedy = "compute scores by itself: use --route fetch or beside"
        raise Unsupported(f"{capabilities.kind} cannot {remedy}", engine=capabilities.kind)
    kinds: list[Fields] = []
    for name in engine.index_names(index):
        fields = read(engine.index_info(name).properties, encoder_id, capabilities)
        if fields is None:
            raise EncoderMismatch(
                f"index {name!r} has no fields of encoder {encoder_id[:ID_DIGITS]} for {route}: write them with  "
                f"ssi revectorize --engine {engine.spec} --index {index} --model DIR --routes {route}",
                index=name,
                encoder=encoder_id,
            )
        if fields not in kinds:
            kinds.append(fields)
    if not kinds:
        raise EncoderMismatch(f"there is no index {index!r} on {engine.spec}: make it with `ssi index`")
    if len(kinds) > 1:
        raise EncoderMismatch(
            f"the indexes behind {index!r} have different fields of encoder {encoder_id[:ID_DIGITS]}: write one of "
            f"them again with `ssi index --rebuild --routes {route}`"
        )
    return kinds[0]


def check_unscored(n_unscored: int, n: int, allowed: float, remedy: str) -> None:
    """Raise `FallbackError` if more of ``n`` candidates are without a score than the share that may be."""
    if n_unscored > allowed * n:
        raise FallbackError(
            ReasonKind.UNSCORED,
            f"{n_unscored} of {n} candidates have neither a vector of this model nor a text, more than the "
            f"{allowed:.0%} allowed: {remedy}",
        )


class EncodedQuery(NamedTuple):
    """A query as the model sees it: Uq', the lexical row q, and c(q), the ``scale`` that divides the engine's scores.

    ``n_listed`` words of q are in the query vocabulary; the others count by their hashed ids in q.d alone.
    """

    vectors: QueryVectors
    scale: float
    n_listed: int

    @property
    def is_empty(self) -> bool:
        """True where nothing of the query is left: f is 0 for every document."""
        return len(self.vectors.ids) == 0


def lexical_scale(idf: AnyFloat) -> float:
    """Return c(q), the sum of the idf of the query's distinct words; 1 where it would be 0 (no word tells apart).

    ``idf`` is ln(N / df) of each distinct word, (n_words,) float.
    """
    total = float(np.sum(idf, dtype=np.float64))
    return total if total > 0 else 1.0


def encode_query(model: RankingModel, query: str) -> EncodedQuery:
    """Return Uq, q and c(q) of a query text."""
    encoded = model.encode_queries([query])
    ids, weights = encoded.rows.indices.astype(np.int32), encoded.rows.data.astype(np.float32)
    filled = weights != 0
    ids, weights = ids[filled], weights[filled]
    vectors = QueryVectors(np.ascontiguousarray(encoded.vectors[0]), ids, weights, float(model.identity))
    idf = model.query_vocabulary.idf_of(ids)
    return EncodedQuery(vectors, lexical_scale(idf), int((ids < len(model.query_vocabulary)).sum()))


def read_whole(
    search: Callable[[int], SearchAnswer], size: int, enough: Callable[[Sequence[Hit]], bool]
) -> Sequence[Hit]:
    """Return the hits of ``search(size)``, asked again with a larger size while that may bring more that are wanted.

    An alias may stand for several indexes that hold the same id: there may be more documents than ids.
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
    """Return (concrete index, id) → the document, for those of ``hits`` that are still there.

    ``body`` finds the documents by their ids; its size is set here.
    """
    wanted = {(hit.index, hit.id) for hit in hits}
    size = len({name for _, name in wanted}) * len({name for name, _ in wanted})

    def search(size: int) -> SearchAnswer:
        return engine.search(index, {**body, "size": size}, preference=preference, timeout_s=timeout_s)

    documents = read_whole(search, size, lambda answered: wanted <= {(hit.index, hit.id) for hit in answered})
    return {(hit.index, hit.id): hit for hit in documents}


@dataclass(slots=True)
class Window:
    """Candidates in first-stage order with both scores, (n,) float64, and the vectors they were scored with.

    ``lexical`` are the engine's scores, NaN where it gave none; ``model`` are f(q, d), NaN for ``n_unscored``
    candidates without vector and text; ``n_encoded`` were encoded from their text. ``n_found`` counts all candidates
    where ``hits`` are not all; ``ranks_known`` is False where these stand in another order than the first stage's.
    """

    hits: tuple[Hit, ...]
    lexical: Float64
    model: Float64
    vectors: CandidateVectors
    n_encoded: int = 0
    n_unscored: int = 0
    n_found: int | None = None
    ranks_known: bool = True

    @property
    def n(self) -> int:
        """Candidates in all."""
        return len(self.hits) if self.n_found is None else self.n_found


@dataclass(frozen=True, slots=True)
class Candidates:
    """Asks one index (or alias) for candidates and scores them by one route.

    ``route`` is None where there is no model or no store: candidates can be asked for, not scored.
    """

    engine: Engine
    index: str
    route: Route | None

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
        """Return the engine's first ``size`` hits with what the route needs of them, and in ``fields`` the doc values.

        ``with_source`` adds the ``_source`` that the body shows; without it, and without ``answers`` (aggregations),
        there is nothing to show.
        """
        fields = self.route.source_fields if self.route else ()
        request = candidate_body(body, size, fields, answers=answers)
        request["_source"] = self.source_of(body, with_source=with_source)
        if not doc_values:
            return self.engine.search(self.index, request, preference=preference, timeout_s=deadline.timeout_s())
        request["docvalue_fields"] = list(doc_values)
        answer = self.engine.search(self.index, request, preference=preference, timeout_s=deadline.timeout_s())
        # The body did not ask for them: they are not shown.
        shown = ({name: value for name, value in hit.raw.items() if name != "fields"} for hit in answer.hits)
        return replace(answer, hits=tuple(map(lambda hit, raw: structs.replace(hit, raw=raw), answer.hits, shown)))

    def source_of(self, body: Mapping[str, Any], *, with_source: bool) -> bool | list[str]:
        """Return the ``_source`` that candidates come with."""
        fields = self.route.source_fields if self.route else ()
        if not with_source:
            return list(fields) or False
        source = body.get("_source", True)
        return [*source, *fields] if isinstance(source, list) else True

    def score(self, model: RankingModel, query: EncodedQuery, hits: Sequence[Hit], deadline: Deadline) -> Window:
        """Return the candidates' scores; those without a vector are encoded from their text.

        `FallbackError` if the deadline passes; `EngineError` if the texts cannot be read.
        """
        deadline.check("the engine searched")
        vectors = CandidateVectors(len(hits))
        if self.route:
            vectors = self.route.load(hits, query.vectors, deadline.timeout_s())
        deadline.note_stage("vectors")
        missing = vectors.missing().tolist()
        n_encoded = 0
        if missing:
            n_encoded = self._encode(model, vectors, [hits[place] for place in missing], missing, deadline)
            deadline.note_stage("encode")
            deadline.check("documents without a vector were encoded")
        scores = vectors.score(query.vectors)
        deadline.note_stage("score")
        deadline.check("the candidates were scored")
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in hits], dtype=np.float64)
        return Window(tuple(hits), lexical, scores, vectors, n_encoded, int(np.isnan(scores).sum()))

    def _encode(
        self,
        model: RankingModel,
        vectors: CandidateVectors,
        hits: Sequence[Hit],
        places: Sequence[int],
        deadline: Deadline,
    ) -> int:
        """Read the texts of hits without a vector, encode them, and return how many had one."""
        fields = [spec.path for spec in model.encoder.view.fields]
        body = {"query": {"ids": {"values": [hit.id for hit in hits]}}, "_source": fields}
        sources = documents_of(self.engine, self.index, body, hits, preference=None, timeout_s=deadline.timeout_s())
        keys = [(hit.index, hit.id) for hit in hits]
        known = [place for place, key in enumerate(keys) if key in sources]
        texts = [sources[keys[place]].source for place in known]
        return vectors.add_texts(model, [places[place] for place in known], texts, [hits[place].id for place in known])
