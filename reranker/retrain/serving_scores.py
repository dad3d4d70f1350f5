"""The ranks that models would give to shown documents if they were served: blended, as `reranker.rerank` blends.

Each distinct query is sent once, as the team's body with a filter on the documents that were shown for it: the scores
are those of the body alone, since a filter adds nothing. Documents are encoded from their stored text, once a
document and encoder, so a model is scored before its vectors are in any index.

Documents encoded once by one encoder, to be scored for many queries.

What another model changes of the lists that people saw: how many, how far, and examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from reranker.engines.base import Engine
from reranker.engines.bodies import candidate_body, fill_template
from reranker.errors import ConfigError
from reranker.records import Hit
from reranker.rerank.blend import blend, default_template, final_order, kept_in_place, why_not
from reranker.rerank.candidates import encode_query, score_vectors
from reranker.rerank.request import preference_of
from reranker.store import QueryVectors
from reranker.text.rows import stack_rows

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel
    from reranker.encoder import Encoder


BATCH = 512


class EncodedPool:
    """Vectors and words of documents by id; about 4 N bytes and 8 bytes a word each.

    Parameters
    ----------
    encoder : Encoder
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._row_of: dict[str, int] = {}
        self._waiting: list[Mapping[str, Any]] = []
        self._parts: list[tuple[npt.NDArray[np.float32], sp.csr_matrix, npt.NDArray[np.bool_]]] = []
        self._vectors = np.zeros((0, encoder.n_dims), np.float32)
        self._rows: sp.csr_matrix | None = None
        self._has_text = np.zeros(0, bool)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._row_of)

    def add(self, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Take over (id, source) of documents; those known already are passed over."""
        for identifier, source in documents:
            if identifier not in self._row_of:
                self._row_of[identifier] = len(self._row_of)
                self._waiting.append(source)
        if len(self._waiting) >= BATCH:
            self._encode()

    def _encode(self) -> None:
        encoded = self._encoder.encode(self._waiting)
        self._parts.append((encoded.vectors, encoded.rows, encoded.has_text))
        self._waiting = []

    def finish(self) -> None:
        """Encode what waits and put all together; to be called before `score`."""
        if self._waiting:
            self._encode()
        if not self._parts:
            return
        before = [] if self._rows is None else [(self._vectors, self._rows, self._has_text)]
        parts = [*before, *self._parts]
        self._vectors = np.ascontiguousarray(np.concatenate([part[0] for part in parts]))
        self._rows = stack_rows([part[1] for part in parts])
        self._has_text = np.concatenate([part[2] for part in parts])
        self._parts = []

    def score(self, query: QueryVectors, documents: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return f(q, d) of some documents, (n,) float64; NaN for one without text."""
        scores = np.full(len(documents), np.nan)
        if self._rows is None:
            return scores
        places = np.array([self._row_of[one] for one in documents], dtype=np.int64)
        known = np.flatnonzero(self._has_text[places])
        scores[known] = score_vectors(query, places[known], self._vectors, self._rows)
        scores[~np.isfinite(scores)] = np.nan
        return scores


MAX_IDS = 1_000
"""Documents of one request; a query shown with more of them takes several."""
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Ranker:
    """What is or would be served: a model with its weight beside the engine's score.

    Parameters
    ----------
    model : RankingModel or None
        None: the engine's own order.
    alpha : float
        Weight of the model, as its release has it.
    """

    model: RankingModel | None
    alpha: float = 0.0


@dataclass(frozen=True, slots=True)
class RankedList:
    """The documents of one query that the engine still finds, and their ranks.

    Parameters
    ----------
    documents : tuple of str
        In first-stage order.
    ranks : (n_rankers, n) int64
        1-based rank of each document in each ranker's order of just these documents.
    """

    documents: tuple[str, ...]
    ranks: npt.NDArray[np.int64]


@dataclass
class _Found:
    """What the engine answered for a query: ids in its order, its scores, and what must not move."""

    ids: tuple[str, ...]
    lexical: npt.NDArray[np.float64]
    kept: npt.NDArray[np.bool_]


@dataclass
class ServingScores:
    """Ranks documents as some rankers would, over one index.

    Parameters
    ----------
    engine : Engine
    index : str
        Index or alias.
    rankers : sequence of Ranker
        At least one has a model; all are searched by one body, so their text fields must be the same where none is
        given.
    body : mapping or None
        The team's search body with ``{{query}}`` in it; None searches the models' own text fields.

    Raises
    ------
    ConfigError
        If the body's hits are not reranked, or are found by other means than its ``query``.
    """

    engine: Engine
    index: str
    rankers: Sequence[Ranker]
    body: Mapping[str, Any] | None = None
    pools: dict[str, EncodedPool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        models = [ranker.model for ranker in self.rankers if ranker.model is not None]
        self.template = dict(self.body) if self.body is not None else default_template(models[-1].encoder.view)
        check_body(self.template)
        for model in models:
            self.pools.setdefault(model.encoder_id, EncodedPool(model.encoder))
        self._fields = sorted({spec.path for model in models for spec in model.encoder.view.fields})

    def rank_shown(
        self, asked: Mapping[str, Iterable[str]], progress: Progress = lambda _done, _total: None
    ) -> dict[str, RankedList]:
        """Return, for each query, the shown documents that the body still finds, ranked by all rankers.

        Parameters
        ----------
        asked : mapping of query text to the ids of documents shown for it
        progress : callable
            Receives (queries done, queries).

        Raises
        ------
        EngineError
            If the engine does not answer.
        """
        found = {}
        for number, (query, documents) in enumerate(asked.items()):
            found[query] = self._find(query, list(dict.fromkeys(documents)))
            progress(number + 1, len(asked))
        return self._ranked(found)

    def rank_window(
        self, queries: Iterable[str], window: int, progress: Progress = lambda _done, _total: None
    ) -> dict[str, RankedList]:
        """Return, for each query, the engine's first ``window`` documents, ranked by all rankers."""
        texts = list(dict.fromkeys(queries))
        found = {}
        for number, query in enumerate(texts):
            found[query] = self._found(query, self._search(self.template, query, window))
            progress(number + 1, len(texts))
        return self._ranked(found)

    def _find(self, query: str, documents: list[str]) -> _Found:
        """Return what the body finds among some documents."""
        hits: list[Hit] = []
        for first in range(0, len(documents), MAX_IDS):
            part = documents[first : first + MAX_IDS]
            hits += self._search(among(self.template, part), query, len(part))
        if len(documents) > MAX_IDS:
            hits.sort(key=lambda hit: -(hit.score or 0.0))
        return self._found(query, hits)

    def _search(self, template: Mapping[str, Any], query: str, size: int) -> tuple[Hit, ...]:
        body = candidate_body(fill_template(template, query), size, self._fields, answers=False)
        # The same shard copies as a search for this text: scores differ a little between copies.
        return self.engine.search(self.index, body, preference=preference_of(query)).hits

    def _found(self, query: str, hits: Sequence[Hit]) -> _Found:
        first = {hit.id: hit for hit in reversed(hits)}
        kept_hits = [hit for hit in hits if first[hit.id] is hit]
        for pool in self.pools.values():
            pool.add([(hit.id, hit.source) for hit in kept_hits])
        lexical = np.array([np.nan if hit.score is None else hit.score for hit in kept_hits], dtype=np.float64)
        kept = kept_in_place(kept_hits, fill_template(self.template, query), 0)
        return _Found(tuple(hit.id for hit in kept_hits), lexical, kept)

    def _ranked(self, found: Mapping[str, _Found]) -> dict[str, RankedList]:
        for pool in self.pools.values():
            pool.finish()
        lists = {}
        for query, one in found.items():
            ranks = [self._ranks(ranker, query, one) for ranker in self.rankers]
            lists[query] = RankedList(one.ids, np.stack(ranks))
        return lists

    def _ranks(self, ranker: Ranker, query: str, found: _Found) -> npt.NDArray[np.int64]:
        """Return the 1-based rank of each document in one ranker's order."""
        n = len(found.ids)
        order = np.arange(n, dtype=np.int64)
        model = ranker.model
        if model is not None and n:
            encoded = encode_query(model, query)
            if not encoded.is_empty:
                scores = self.pools[model.encoder_id].score(encoded.vectors, found.ids)
                order = final_order(blend(scores, found.lexical, ranker.alpha, encoded.scale), found.kept)
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.arange(1, n + 1)
        return ranks


def among(template: Mapping[str, Any], documents: Sequence[str]) -> dict[str, Any]:
    """Return the body restricted to some documents; the scores stay those of its query (pure)."""
    query = template.get("query") or {"match_all": {}}
    return {**template, "query": {"bool": {"must": [query], "filter": [{"ids": {"values": list(documents)}}]}}}


def check_body(template: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a body whose shown documents cannot be scored one by one."""
    reason = why_not(template)
    if reason:
        raise ConfigError(f"{reason}: such a search is not reranked, so there is no model to retrain for it")
    others = sorted({"knn", "retriever", "rank"} & set(template))
    if others:
        raise ConfigError(
            f"the body finds documents by {', '.join(others)}: retraining scores the shown documents by the body's "
            "`query` alone; give a body with a `query` only (--body)"
        )


TOP = 3
LIVE, NEW = 0, 1
"""Places of the rankers in a `RankedList`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How the new model's order differs from the live one's, over the distinct queries of the newest slice.

    Parameters
    ----------
    queries : int
        With at least two documents.
    reordered, new_first : float
        Share of them in which any document moves, and in which another one is first.
    mean_overlap : float
        Mean share of the first three documents that stay among the first three.
    """

    queries: int
    reordered: float
    new_first: float
    mean_overlap: float

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self)


def changes_of(lists: Mapping[str, RankedList]) -> Changes:
    """Return what changes between the first two rankers of some lists."""
    compared = [one for one in lists.values() if len(one.documents) > 1]
    if not compared:
        return Changes(0, 0.0, 0.0, 1.0)
    reordered = [bool((one.ranks[LIVE] != one.ranks[NEW]).any()) for one in compared]
    first = [int(one.ranks[LIVE].argmin()) != int(one.ranks[NEW].argmin()) for one in compared]
    overlap = []
    for one in compared:
        depth = min(TOP, len(one.documents))
        tops = [set(top(one, ranker, depth)) for ranker in (LIVE, NEW)]
        overlap.append(len(tops[0] & tops[1]) / depth)
    return Changes(len(compared), float(np.mean(reordered)), float(np.mean(first)), float(np.mean(overlap)))


def top(ranked: RankedList, ranker: int, depth: int = TOP) -> Sequence[str]:
    """Return the first documents of one ranker's order."""
    order = np.argsort(ranked.ranks[ranker])[:depth]
    return [ranked.documents[place] for place in order.tolist()]
