"""The documents of a rerank request, by text or by id, to scores and one order; nothing of HTTP.

Scores are f(q, d) = (Uq).(Vd) + a q.d. Where scores from 0 to 1 are wanted, they are the logistic function of it,
1 / (1 + e^-f): strictly increasing, .5 where query and document share nothing that the model knows of, and undone by
ln(r / (1 - r)).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from reranker.arrays import Bool, Float64, Int64
from reranker.artifacts import RankingModel
from reranker.deadline import Deadline
from reranker.engines.inside import QueryVectors
from reranker.errors import EngineError, FallbackError
from reranker.records import MAX_ID_BYTES, Hit, SearchAnswer
from reranker.rerank.candidates import (
    CandidateVectors,
    LocalStore,
    StoredFields,
    check_unscored,
    encode_query,
    read_whole,
)
from reranker.store.store import VectorStore
from reranker.text.view import TextView

Search = Callable[[Mapping[str, Any], float | None], SearchAnswer]
IDS_A_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class IndexedDocuments:
    """The documents of an index (or alias) by their ids.

    The store is asked first, then the engine by ``search(body, timeout_s)`` for what the store lacks; either may be
    missing.
    """

    store: VectorStore | None = None
    search: Search | None = None

    def vectors(
        self, model: RankingModel, query: QueryVectors, ids: Sequence[str], encodable: Bool, deadline: Deadline
    ) -> CandidateVectors:
        """Return the vectors of the documents with these ids; one that has none is encoded from its indexed text.

        An id may stand more than once. ``encodable``, (n,) bool, is False where the caller has the text.

        Raises
        ------
        EngineError
            If the engine does not answer and no vector was found without it.
        """
        if self.store is None:
            vectors = CandidateVectors(len(ids))
            missing = vectors.missing()
        else:
            vectors = LocalStore(self.store).vectors_of(ids)
            missing = vectors.missing()
            missing = missing[encodable[missing]]
        if len(missing) and self.search is not None:
            try:
                self._add_from_engine(self.search, model, query, ids, missing, encodable, vectors, deadline)
            except EngineError:
                if not vectors.parts:
                    raise
        return vectors

    def _add_from_engine(
        self, search: Search, model: RankingModel, query: QueryVectors, ids: Sequence[str], missing: Int64,
        encodable: Bool, vectors: CandidateVectors, deadline: Deadline,
    ) -> None:  # fmt: skip
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


_log = logging.getLogger(__name__)

TEXT_FIELDS: Final = ("text", "body", "content")
"""Where a plain text belongs, if the model reads such a field."""
ID_FIELDS: Final = ("id", "_id")
BATCH: Final = 100
"""Texts encoded between two looks at the deadline: some 20 ms."""
DIGITS: Final = 12
"""Decimals of a score from 0 to 1. A longer number becomes a ``BigDecimal`` in OpenSearch's ml-commons, which then
fails to cast it; float32 scores up to f = 10 stay distinct."""


class Item(NamedTuple):
    """One document of a request.

    ``id`` is that of an indexed document whose stored vector is wanted, "" where the text is to be scored; ``source``
    is the text by field, beside an id what is scored if there is no such vector.
    """

    id: str = ""
    source: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of a request's documents, in the order of the request.

    ``scores``, (n,) float64, are f(q, d), NaN where a document has neither a vector nor a text, and in a fallback.
    ``order``, (n,) int64, are places, best first: by (-score, place), those without a score last; in a fallback the
    order given, and ``reason`` says why. ``n_stored`` were scored with a stored vector, ``n_encoded`` encoded for this
    request, ``n_unscored`` neither; ``timings_ms`` are by step.
    """

    scores: Float64
    order: Int64
    n_stored: int = 0
    n_encoded: int = 0
    n_unscored: int = 0
    reason: str = ""
    warnings: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def fallback(self) -> bool:
        """True where the order is the one given."""
        return bool(self.reason)

    def relevance(self) -> Float64:
        """Return the scores from 0 to 1, (n,) float64, never rising along ``order``.

        Without a score: 0. In a fallback: from .5 down in equal steps above 0, so that whoever sorts by them again
        gets the order given.
        """
        n = len(self.scores)
        if self.fallback:
            return np.round(0.5 * np.arange(n, 0, -1) / max(n, 1), DIGITS)
        return relevance(self.scores)

    def raw(self) -> Float64:
        """Return f(q, d), (n,) float64, never rising along ``order``; where there is none, what `relevance` stands for.

        Without a score: 1 below the least score, and below 0. In a fallback: 0 and down by 1.
        """
        if self.fallback:
            return -np.arange(len(self.scores), dtype=np.float64)
        known = self.scores[~np.isnan(self.scores)]
        floor = min(0.0, float(known.min()) if len(known) else 0.0) - 1.0
        return np.where(np.isnan(self.scores), floor, self.scores)


def relevance(scores: Float64) -> Float64:
    """Return 1 / (1 + e^-f) rounded to `DIGITS` decimals, and 0 for NaN, (n,) float64."""
    with np.errstate(over="ignore"):
        values = 1.0 / (1.0 + np.exp(-scores))
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
    document; so is one with a text, where ``are_ids``, and the text stands in for a missing vector. Any other object
    is a text by fields.

    Of objects only ``rank_fields`` are read; where none are given, all that the model reads, else ``text``, else every
    text.
    """
    place = text_field(view)

    def item(document: str | Mapping[str, Any]) -> Item:
        if isinstance(document, str):
            return Item(document) if are_ids else Item("", {place: document})
        name = next((key for key in ID_FIELDS if _is_id(document.get(key))), "")
        others = {key: value for key, value in document.items() if key not in ID_FIELDS and value is not None}
        if name and (are_ids or not others):
            return Item(str(document[name]), _source(others, view, place, rank_fields) if others else None)
        return Item("", _source(others, view, place, rank_fields))

    return [item(document) for document in documents]


def _is_id(value: Any) -> bool:
    """Return whether a value is an id: a text, or a whole number, which is indexed by its decimal digits."""
    return isinstance(value, str | int) and not isinstance(value, bool)


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
    model: RankingModel | None, query: str, items: Sequence[Item], *, indexed: IndexedDocuments | None = None,
    deadline: Deadline | None = None, max_unscored: float = 0.2,
) -> Scoring:  # fmt: skip
    """Return the scores and the order of documents for a query; whatever goes wrong, the order given and why.

    Ids are looked up in ``indexed``; None: no id is known. ``max_unscored`` is the share of the documents given by id,
    0 to 1, that may have neither vector nor text.
    """
    deadline = deadline or Deadline()
    try:
        return _score(model, query, items, indexed, deadline, max_unscored)
    except FallbackError as error:
        reason = error.message
    except Exception as error:
        # The promise: an order never gets worse because reranking failed, whatever the failure. Its words may repeat
        # a document, so the answer names only its class.
        _log.exception("reranking failed; the order given was returned")
        reason = f"reranking failed: {type(error).__name__}"
    n = len(items)
    return Scoring(np.full(n, np.nan), np.arange(n, dtype=np.int64), reason=reason, timings_ms=deadline.stages_ms)


def _score(
    model: RankingModel | None, query: str, items: Sequence[Item], indexed: IndexedDocuments | None,
    deadline: Deadline, max_unscored: float,
) -> Scoring:  # fmt: skip
    if model is None:
        raise FallbackError("no model is loaded")
    encoded = encode_query(model, query)
    if encoded.is_empty:
        raise FallbackError("the query has no word that tells documents apart, so the order given stays")
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
    return Scoring(scores, order, n_stored, n_encoded, n_unscored, "", tuple(warnings), deadline.stages_ms)


def _look_up(
    candidates: CandidateVectors, by_id: Int64, items: Sequence[Item], indexed: IndexedDocuments | None,
    model: RankingModel, query: QueryVectors, deadline: Deadline,
) -> list[str]:  # fmt: skip
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
    for start in range(0, len(texts), BATCH):
        deadline.check("texts were encoded")
        places, sources, ids = zip(*texts[start : start + BATCH], strict=True)
        n_encoded += candidates.add_texts(model, places, sources, ids)
    if texts:
        deadline.note_stage("encode")
    return n_encoded
