"""Where the candidates' vectors come from: the store beside, the engine's own fields, or their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.engines.fields import field_name
from reranker.errors import InputError
from reranker.kernels import score_rows
from reranker.kernels.packing import from_text, unpack_terms, unpack_vectors
from reranker.records import Hit
from reranker.store import QueryVectors, VectorStore

if TYPE_CHECKING:
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
