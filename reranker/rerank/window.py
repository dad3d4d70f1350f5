"""One window of candidates: asked for, given vectors, scored, ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reranker.engines.base import Engine
from reranker.engines.bodies import candidate_body
from reranker.records import Hit, SearchAnswer
from reranker.rerank.blend import lexical_scale
from reranker.rerank.page import Clock, FallbackError
from reranker.rerank.showing import documents_of, source_with
from reranker.rerank.vectors import CandidateVectors, Route, encode_missing
from reranker.store import QueryVectors

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

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
        clock: Clock,
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
        return self.engine.search(
            self.index, request, preference=preference, timeout_s=clock.remaining_s(at_least=0.001)
        )

    def source_of(self, body: Mapping[str, Any], *, with_source: bool) -> bool | list[str]:
        """Return the ``_source`` that candidates come with."""
        fields = self.route.source_fields if self.route else ()
        return source_with(body, fields) if with_source else list(fields) or False

    def score(self, model: RankingModel, query: EncodedQuery, hits: Sequence[Hit], clock: Clock) -> Window:
        """Return the candidates' scores; those without a vector are encoded from their text.

        Raises
        ------
        FallbackError
            If the deadline passes.
        EngineError
            If the texts cannot be read.
        """
        clock.check("the engine searched")
        vectors = CandidateVectors(len(hits))
        if self.route:
            vectors = self.route.load(hits, query.vectors, clock.remaining_s(at_least=0.001))
        clock.lap("vectors")
        missing = vectors.missing()
        n_encoded = 0
        if len(missing):
            n_encoded = self._encode(model, vectors, [hits[place] for place in missing], missing, clock)
            clock.lap("encode")
            clock.check("documents without a vector were encoded")
        scores = vectors.score(query.vectors)
        clock.lap("score")
        clock.check("the candidates were scored")
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in hits], dtype=np.float64)
        n_unscored = int(np.isnan(scores).sum())
        return Window(tuple(hits), lexical, scores, vectors, n_encoded, n_unscored)

    def _encode(
        self,
        model: RankingModel,
        vectors: CandidateVectors,
        hits: Sequence[Hit],
        places: npt.NDArray[np.int64],
        clock: Clock,
    ) -> int:
        """Read the texts of hits without a vector, encode them, and return how many had one."""
        encoder = model.encoder
        body = {
            "query": {"ids": {"values": [hit.id for hit in hits]}},
            "_source": [spec.path for spec in encoder.view.fields],
        }
        timeout_s = clock.remaining_s(at_least=0.001)
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
