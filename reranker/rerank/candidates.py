"""One window of candidates: asked for, given vectors, scored, ordered.

Where the candidates' vectors come from: the store beside, the engine's own fields, or their text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.deadline import Deadline
from reranker.engines.base import Engine
from reranker.engines.bodies import candidate_body
from reranker.engines.fields import field_name
from reranker.errors import FallbackError, InputError
from reranker.kernels.packing import from_text, unpack_terms, unpack_vectors
from reranker.kernels.serving import score_rows
from reranker.records import Hit, SearchAnswer
from reranker.rerank.blend import lexical_scale
from reranker.rerank.fetch_phase import documents_of, source_with
from reranker.store import QueryVectors, VectorStore

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel
    from reranker.encoder import Encoder


Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]


class Vectors(Protocol):
    """Vectors and words of some documents, in a fixed order."""

    def score(self, query: QueryVectors) -> Float32s:
        """Return f(q, d) of all documents, (n,) float32."""
        ...

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix]:
        """Return the tf-idf rows of some of the documents, (1, 2**31 - 1) each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredVectors:
    """Rows of a store."""

    store: VectorStore
    rows: Int64s

    def score(self, query: QueryVectors) -> Float32s:
        """Return f(q, d) of all documents, (n,) float32."""
        return self.store.score(query, self.rows)

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix]:
        """Return the tf-idf rows of some of the documents."""
        return [self.store.terms(self.rows[place : place + 1]) for place in places]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVectors:
    """Arrays at hand: Vd (n, N) float32 and the tf-idf rows."""

    vectors: Float32s
    rows: sp.csr_matrix

    def score(self, query: QueryVectors) -> Float32s:
        """Return f(q, d) of all documents, (n,) float32."""
        places = np.arange(len(self.vectors), dtype=np.int64)
        head = (query.vector, query.ids, query.weights, query.identity)
        return score_rows(*head, places, self.vectors, self.rows.indptr, self.rows.indices, self.rows.data)

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix]:
        """Return the tf-idf rows of some of the documents."""
        return [self.rows[place] for place in places]


@dataclass(slots=True)
class CandidateVectors:
    """The vectors of a window of candidates, gathered from one or more places.

    Parameters
    ----------
    n : int
        Candidates.
    parts : list of (places, vectors)
        Which candidates, (m,) int64, and their vectors in the same order.
    """

    n: int
    parts: list[tuple[Int64s, Vectors]] = field(default_factory=list)

    def missing(self) -> Int64s:
        """Return the places of the candidates without a vector, ascending."""
        there = np.zeros(self.n, dtype=bool)
        for places, _ in self.parts:
            there[places] = True
        return np.flatnonzero(~there)

    def score(self, query: QueryVectors) -> npt.NDArray[np.float64]:
        """Return f(q, d) of each candidate, (n,) float64; NaN where there is no vector, or its score is not finite."""
        scores = np.full(self.n, np.nan)
        for places, vectors in self.parts:
            scores[places] = vectors.score(query)
        scores[~np.isfinite(scores)] = np.nan
        return scores

    def terms(self, places: Sequence[int]) -> list[sp.csr_matrix | None]:
        """Return the tf-idf rows of some of the candidates, None for one that has none."""
        found: dict[int, sp.csr_matrix] = {}
        for there, vectors in self.parts:
            row_of = {place: row for row, place in enumerate(there.tolist())}
            mine = [place for place in places if place in row_of]
            if mine:
                found |= dict(zip(mine, vectors.terms([row_of[place] for place in mine]), strict=True))
        return [found.get(place) for place in places]


class Route(Protocol):
    """A way to the vectors of the engine's hits."""

    @property
    def source_fields(self) -> tuple[str, ...]:
        """Fields of ``_source`` that the candidates must come with."""
        ...

    def load(
        self, hits: Sequence[Hit], query: QueryVectors | None = None, timeout_s: float | None = None
    ) -> CandidateVectors:
        """Return the vectors the route has for these hits.

        Parameters
        ----------
        hits : sequence of Hit
        query : QueryVectors or None
            What they will be scored with: a route that asks the engine for scores needs it.
        timeout_s : float or None
            Time for such a request.

        Raises
        ------
        RerankerError
            If the engine does not answer, or the index lacks the fields.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beside:
    """Route *beside*: the engine returns ids, the vectors lie in a store next to the reranker."""

    store: VectorStore

    @property
    def source_fields(self) -> tuple[str, ...]:
        """None: ids are enough."""
        return ()

    def load(
        self, hits: Sequence[Hit], query: QueryVectors | None = None, timeout_s: float | None = None
    ) -> CandidateVectors:
        """Return the store's vectors of these hits."""
        rows = self.store.rows_of([hit.id for hit in hits])
        places = np.flatnonzero(rows >= 0)
        # A document stored without text may have one by now, and cannot be scored without.
        places = places[self.store.has_words(rows[places])]
        found = CandidateVectors(len(hits))
        if len(places):
            found.parts.append((places, StoredVectors(self.store, rows[places])))
        return found


@dataclass(frozen=True, slots=True)
class Fetch:
    """Route *fetch*: the packed vectors and words come with the hits.

    Parameters
    ----------
    encoder_id : str
        Names the fields.
    dims : int
        N; a vector of another length is as good as none.
    """

    encoder_id: str
    dims: int

    @property
    def source_fields(self) -> tuple[str, ...]:
        """The packed vector and the packed words."""
        return field_name(self.encoder_id, "vec"), field_name(self.encoder_id, "terms")

    def load(
        self, hits: Sequence[Hit], query: QueryVectors | None = None, timeout_s: float | None = None
    ) -> CandidateVectors:
        """Return the vectors that came with these hits; damaged ones count as missing."""
        vec, terms = self.source_fields
        texts = [(place, hit.source.get(vec), hit.source.get(terms)) for place, hit in enumerate(hits)]
        whole = [(place, a, b) for place, a, b in texts if isinstance(a, str) and isinstance(b, str)]
        found = CandidateVectors(len(hits))
        if not whole:
            return found
        try:
            found.parts.append(self._unpack(whole))
        except InputError:
            # One bad document must not cost the others their vectors: find out which are whole.
            found.parts.extend(part for one in whole for part in self._unpack_one(one))
        return found

    def _unpack(self, texts: Sequence[tuple[int, str, str]]) -> tuple[Int64s, Vectors]:
        vectors = unpack_vectors([from_text(vector) for _, vector, _ in texts], self.dims)
        rows = unpack_terms([from_text(terms) for _, _, terms in texts])
        return np.array([place for place, _, _ in texts], dtype=np.int64), LoadedVectors(vectors, rows)

    def _unpack_one(self, text: tuple[int, str, str]) -> list[tuple[Int64s, Vectors]]:
        try:
            return [self._unpack([text])]
        except InputError:
            return []


def encode_missing(
    encoder: Encoder, found: CandidateVectors, places: Sequence[int], sources: Sequence[dict[str, Any]]
) -> int:
    """Encode documents from their text, add them to ``found``, and return how many had any text."""
    if not len(places):
        return 0
    encoded = encoder.encode(sources)
    kept = np.flatnonzero(encoded.has_text)
    if len(kept):
        vectors = LoadedVectors(np.ascontiguousarray(encoded.vectors[kept]), encoded.rows[kept])
        found.parts.append((np.asarray(places, dtype=np.int64)[kept], vectors))
    return len(kept)


Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """A query as the model sees it.

    Parameters
    ----------
    vectors : QueryVectors
        Uq and the words of q.
    scale : float
        c(q), what the engine's scores are divided by.
    n_listed : int
        Words of q that are in the query vocabulary; the others count by their hashed ids in q.d alone.
    """

    vectors: QueryVectors
    scale: float
    n_listed: int

    @property
    def is_empty(self) -> bool:
        """True where nothing of the query is left: f is 0 for every document."""
        return len(self.vectors.ids) == 0


def encode_query(model: RankingModel, query: str) -> EncodedQuery:
    """Return Uq, q and c(q) of a query text."""
    encoded = model.encode_queries([query])
    ids, weights = encoded.rows.indices.astype(np.int32), encoded.rows.data.astype(np.float32)
    filled = weights != 0
    ids, weights = ids[filled], weights[filled]
    vectors = QueryVectors(np.ascontiguousarray(encoded.vectors[0]), ids, weights, float(model.identity))
    idf = model.query_vocabulary.idf_of(ids)
    return EncodedQuery(vectors, lexical_scale(idf), int((ids < len(model.query_vocabulary)).sum()))


@dataclass(slots=True)
class Window:
    """Candidates in first-stage order with both scores.

    Parameters
    ----------
    hits : tuple of Hit
    lexical : (n,) float64
        The engine's scores; NaN where it gave none.
    model : (n,) float64
        f(q, d); NaN where the candidate could not be scored.
    vectors : CandidateVectors
        What they were scored with.
    n_encoded, n_unscored : int
        Candidates encoded from their text; candidates without vector and text.
    n_found : int or None
        Candidates in all, where ``hits`` are not all of them.
    ranks_known : bool
        False where the hits are in another order than the first stage's, which is not known.
    """

    hits: tuple[Hit, ...]
    lexical: Float64s
    model: Float64s
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
    """Asks one engine for candidates and scores them by one route.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias.
    route : Route or None
        None where there is no model or no store: candidates can be asked for, not scored.
    """

    engine: Engine
    index: str
    route: Route | None

    def ask(
        self,
        body: Mapping[str, Any],
        size: int,
        preference: str,
        deadline: Deadline,
        *,
        answers: bool = True,
        with_source: bool = False,
    ) -> SearchAnswer:
        """Return the engine's first ``size`` hits with what the route needs of them.

        ``with_source`` adds the ``_source`` that the body shows; without it, and without ``answers`` (aggregations),
        there is nothing to show.
        """
        fields = self.route.source_fields if self.route else ()
        request = candidate_body(body, size, fields, answers=answers)
        request["_source"] = self.source_of(body, with_source=with_source)
        return self.engine.search(self.index, request, preference=preference, timeout_s=deadline.timeout_s())

    def source_of(self, body: Mapping[str, Any], *, with_source: bool) -> bool | list[str]:
        """Return the ``_source`` that candidates come with."""
        fields = self.route.source_fields if self.route else ()
        return source_with(body, fields) if with_source else list(fields) or False

    def score(self, model: RankingModel, query: EncodedQuery, hits: Sequence[Hit], deadline: Deadline) -> Window:
        """Return the candidates' scores; those without a vector are encoded from their text.

        Raises
        ------
        FallbackError
            If the deadline passes.
        EngineError
            If the texts cannot be read.
        """
        deadline.check("the engine searched")
        vectors = CandidateVectors(len(hits))
        if self.route:
            vectors = self.route.load(hits, query.vectors, deadline.timeout_s())
        deadline.note_stage("vectors")
        missing = vectors.missing()
        n_encoded = 0
        if len(missing):
            n_encoded = self._encode(model, vectors, [hits[place] for place in missing], missing, deadline)
            deadline.note_stage("encode")
            deadline.check("documents without a vector were encoded")
        scores = vectors.score(query.vectors)
        deadline.note_stage("score")
        deadline.check("the candidates were scored")
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in hits], dtype=np.float64)
        n_unscored = int(np.isnan(scores).sum())
        return Window(tuple(hits), lexical, scores, vectors, n_encoded, n_unscored)

    def _encode(
        self,
        model: RankingModel,
        vectors: CandidateVectors,
        hits: Sequence[Hit],
        places: npt.NDArray[np.int64],
        deadline: Deadline,
    ) -> int:
        """Read the texts of hits without a vector, encode them, and return how many had one."""
        encoder = model.encoder
        body = {
            "query": {"ids": {"values": [hit.id for hit in hits]}},
            "_source": [spec.path for spec in encoder.view.fields],
        }
        timeout_s = deadline.timeout_s()
        sources = documents_of(self.engine, self.index, body, hits, preference=None, timeout_s=timeout_s)
        found = [
            (int(place), dict(sources[hit.index, hit.id].source))
            for place, hit in zip(places, hits, strict=True)
            if (hit.index, hit.id) in sources
        ]
        return encode_missing(encoder, vectors, [place for place, _ in found], [source for _, source in found])


def check_share(window: Window, max_unscored: float) -> None:
    """Raise `FallbackError` if more candidates are without a score than may be."""
    n = len(window.hits)
    if n and window.n_unscored > max_unscored * n:
        raise FallbackError(
            f"{window.n_unscored} of {n} candidates have neither a vector of this model nor a text, more than the "
            f"{max_unscored:.0%} allowed: run `ssi sync`"
        )
