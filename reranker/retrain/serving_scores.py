"""The ranks that models would give to shown documents if they were served: blended, as `reranker.rerank` blends.

Each distinct query is sent once, as the team's body with a filter on the documents that were shown for it: the scores
are those of the body alone, since a filter adds nothing. Documents are encoded from their stored text, once a
document and encoder, so a model is scored before its vectors are in any index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reranker.engines.base import Engine
from reranker.engines.bodies import candidate_body, fill_template
from reranker.errors import ConfigError
from reranker.records import Hit
from reranker.rerank import blend, default_template
from reranker.rerank.ordering import final_order, kept_in_place, why_not
from reranker.rerank.window import encode_query
from reranker.retrain.encoded import EncodedPool

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

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
        digest = hashlib.blake2b(query.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self.engine.search(self.index, body, preference=f"ssi-{digest}").hits

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
