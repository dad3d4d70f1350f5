"""Vectors of indexed documents by their ids, without a search: from the store, or from the engine's own fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reranker.errors import EngineError
from reranker.records import Hit, SearchAnswer
from reranker.rerank.page import Clock
from reranker.rerank.showing import MAX_HITS
from reranker.rerank.vectors import CandidateVectors, Fetch, StoredVectors, Vectors, encode_missing
from reranker.store import VectorStore
from reranker.store.ids import MAX_ID_BYTES

if TYPE_CHECKING:
    from reranker.artifacts import RankingModel

Search = Callable[[Mapping[str, Any], float | None], SearchAnswer]
IDS_A_REQUEST = 1000
_NOTHING = Hit(id="", index="", score=None)


@dataclass(frozen=True, slots=True)
class IndexedDocuments:
    """The documents of an index (or alias) by their ids.

    Parameters
    ----------
    store : VectorStore or None
        Is asked first.
    search : callable or None
        ``search(body, timeout_s)`` asks the engine, for what the store lacks; None: there is no engine.
    """

    store: VectorStore | None = None
    search: Search | None = None

    def vectors(
        self, model: RankingModel, ids: Sequence[str], encodable: npt.NDArray[np.bool_], clock: Clock
    ) -> CandidateVectors:
        """Return the vectors of the documents with these ids; one that has none is encoded from its indexed text.

        Parameters
        ----------
        model : RankingModel
        ids : sequence of str
            An id may stand more than once.
        encodable : (n,) bool
            Which of them may be encoded from their indexed text; False where the caller has the text.
        clock : Clock

        Raises
        ------
        EngineError
            If the engine does not answer and no vector was found without it.
        """
        if self.store is None:
            found = CandidateVectors(len(ids))
            missing = found.missing()
        else:
            found = _stored(self.store, ids)
            missing = found.missing()
            missing = missing[encodable[missing]]
        if not len(missing) or self.search is None:
            return found
        try:
            self._from_engine(self.search, model, ids, missing, encodable, found, clock)
        except EngineError:
            if not found.parts:
                raise
        return found

    def _from_engine(
        self,
        search: Search,
        model: RankingModel,
        ids: Sequence[str],
        missing: npt.NDArray[np.int64],
        encodable: npt.NDArray[np.bool_],
        found: CandidateVectors,
        clock: Clock,
    ) -> None:
        """Read the packed vectors of what is missing; then, of documents without, the text."""
        fetch = Fetch(model.encoder_id, model.encoder.n_dims)
        stored = _read(search, [ids[place] for place in missing.tolist()], fetch.source_fields, clock)
        loaded = fetch.load([stored.get(ids[place], _NOTHING) for place in missing.tolist()])
        found.parts.extend((missing[places], part) for places, part in loaded.parts)
        bare = [place for place in missing[loaded.missing()].tolist() if encodable[place] and ids[place] in stored]
        if not bare:
            return
        texts = [spec.path for spec in model.encoder.view.fields]
        sources = _read(search, [ids[place] for place in bare], texts, clock)
        there = [place for place in bare if ids[place] in sources]
        encode_missing(model.encoder, found, there, [dict(sources[ids[place]].source) for place in there])


def _stored(store: VectorStore, ids: Sequence[str]) -> CandidateVectors:
    """Return the store's vectors of these ids, as route *beside* has them: a document without a word has none."""
    rows = store.rows_of(ids)
    places = np.flatnonzero(rows >= 0)
    places = places[store.has_words(rows[places])]
    parts: list[tuple[npt.NDArray[np.int64], Vectors]] = []
    if len(places):
        parts.append((places, StoredVectors(store, rows[places])))
    return CandidateVectors(len(ids), parts)


def _read(search: Search, ids: Sequence[str], fields: Sequence[str], clock: Clock) -> dict[str, Hit]:
    """Return id → hit of those that exist; of several indexes behind an alias, the first that has the id."""
    wanted = [name for name in dict.fromkeys(ids) if 0 < len(name.encode("utf-8", "replace")) <= MAX_ID_BYTES]
    hits: dict[str, Hit] = {}
    for start in range(0, len(wanted), IDS_A_REQUEST):
        part = wanted[start : start + IDS_A_REQUEST]
        size = len(part)
        while True:
            body = {"query": {"ids": {"values": part}}, "_source": list(fields), "size": size}
            answer = search(body, clock.remaining_s(at_least=0.001))
            for hit in answer.hits:
                hits.setdefault(hit.id, hit)
            if len(answer.hits) < size or size == MAX_HITS or all(name in hits for name in part):
                break
            size = min(16 * size, MAX_HITS)  # an alias of several indexes that hold the same ids
    return hits
