"""The settings of a reranked search, its request and its result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from reranker.deadline import Deadline
from reranker.errors import ConfigError
from reranker.records import RankedHit
from reranker.rerank.ranking import check_alpha

RouteName = Literal["beside", "fetch", "inside"]
ROUTES: tuple[RouteName, ...] = ("beside", "fetch", "inside")
"""Routes this package serves: vectors in a store beside the reranker, in the engine's answer, or used inside of it."""
RETRIEVALS = ("bm25", "hybrid")
"""First stages: the body's own hits, or these united with the documents whose vectors are nearest to the query's."""


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """How a search is reranked.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    window: int = 200
    """Candidates that are reranked; past it the engine's order goes on."""
    deadline_ms: float | None = 1000.0
    """Time for a whole search; past it the engine's order comes back. None: no limit."""
    max_unscored: float = 0.2
    """Share of candidates, 0 to 1, that may have neither a vector nor a text; past it the engine's order comes back."""
    keep_top: int = 0
    """First hits of the engine that never move (a team that puts its own on top)."""
    alpha: float | None = None
    """Weight of the model, 0 to 1; None takes the calibrated one."""
    one_request_bytes: int = 512 * 1024
    """Where a body shows nothing but ``_source`` and the window's documents are expected to have no more bytes than
    this together, they come with the candidates and the second request is spared: its round trip costs more (see
    benchmarks/bench_search.py), unless the engine is in this process and the route wants no field. 0: always two
    requests."""
    retrieve: str = "bm25"
    """{'bm25', 'hybrid'}: The first stage: the body's own hits, or these and the ``neighbours`` documents of nearest
    vectors."""
    neighbours: int = 100
    """Documents that ``hybrid`` asks for."""
    rescore_from: int | None = 500
    """Route *inside* with scripts: from this window on, the engine orders the hits itself and sends the page alone (see
    benchmarks/bench_routes.py); below, or with None, it sends the candidates' ids and scores, and with them their
    first-stage ranks."""

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 10_000:
            raise ConfigError(f"window is {self.window}; it lies between 1 and 10000")
        if self.deadline_ms is not None and not self.deadline_ms > 0:
            raise ConfigError(f"deadline_ms is {self.deadline_ms}; it is above 0, or absent for no limit")
        if not 0.0 <= self.max_unscored <= 1.0:
            raise ConfigError(f"max_unscored is {self.max_unscored}; it is a share, 0 to 1")
        if self.keep_top < 0:
            raise ConfigError(f"keep_top is {self.keep_top}; it is 0 or more")
        if self.one_request_bytes < 0:
            raise ConfigError(f"one_request_bytes is {self.one_request_bytes}; it is 0 or more")
        if self.alpha is not None:
            check_alpha(self.alpha)
        if self.retrieve not in RETRIEVALS:
            raise ConfigError(f"retrieve is {self.retrieve!r}; it is one of {', '.join(RETRIEVALS)}")
        for name in ("neighbours", "rescore_from"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 10_000:
                raise ConfigError(f"{name} is {value}; it lies between 1 and 10000")


@dataclass(frozen=True, slots=True)
class Request:
    """One search, as all its steps need it.

    ``body`` is the search body with the query's text in its place, ``template`` without; ``first`` and ``size`` are the
    page; ``preference`` says which shard copies answer.
    """

    query: str
    body: Mapping[str, Any]
    template: Mapping[str, Any]
    first: int
    size: int
    preference: str
    deadline: Deadline


def preference_of(query: str) -> str:
    """Return the preference of a query's requests: one copy of each shard, since scores of copies differ."""
    return f"ssi-{hashlib.blake2b(query.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Contribution:
    """One row of an explanation.

    ``identity`` is a word of the query that is also in the document, ``learned`` a pair of words the model has learned
    to relate; ``others``, all pairs not shown, and ``engine``, its own score, have no words and weight 0. So has
    ``learned`` where the text that was encoded is not at hand: then it is the whole learned part, (Uq').(Vd').

    ``weight`` is W_ij: a for identity, U_i . V_j for learned; in the cubic forms and in ``unit`` the learned W_ij is
    that of this document (and query): U_i . (V_j o t(d)), see `reranker.models.scorers`. ``value`` is what the row adds
    to the score: alpha q_i W_ij d_j, of the lexical rows for identity and of the learned rows for learned, and for
    ``engine`` (1 - alpha) BM25 / c(q).
    """

    kind: Literal["identity", "learned", "others", "engine"]
    query_word: str
    document_word: str
    weight: float
    value: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The contributions to the score of one hit, largest first, then ``others`` and ``engine``.

    Their values sum to ``score`` within 1e-6. ``others`` also holds what rounding of the stored vector adds or takes.
    """

    id: str
    score: float
    contributions: tuple[Contribution, ...]


@dataclass(frozen=True, slots=True)
class RerankedPage:
    """The answer to a search: the hits of the page, in final order.

    ``total`` documents match, by the engine's count; a lower bound where not ``total_is_exact``. ``reranked`` is True
    where the model took part in the order of this page, ``fallback`` where it should have and the page is in the
    engine's order instead; ``reason`` says why a page is not reranked. ``notices`` are what the reader should know: the
    default alpha was used, words are unknown, vectors are missing. ``alpha`` is the weight of the model in the scores,
    its ``alpha_origin`` is ``calibrated``, ``default`` or ``given``. Of ``n_candidates`` in the window, ``n_encoded``
    were encoded from their text for want of a vector, and ``n_unscored`` had neither. ``timings_ms`` are by step.
    ``explanations`` are one a hit where asked for, else none; ``raw`` is the engine's first answer (aggregations,
    suggestions), hits aside.
    """

    query: str
    hits: tuple[RankedHit, ...]
    total: int
    total_is_exact: bool
    reranked: bool
    fallback: bool = False
    reason: str = ""
    notices: tuple[str, ...] = ()
    alpha: float | None = None
    alpha_origin: str = ""
    model_id: str = ""
    n_candidates: int = 0
    n_encoded: int = 0
    n_unscored: int = 0
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values; ``null`` stands for a score that is absent or not finite."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("hits", "explanations", "raw")}
        values["notices"] = list(self.notices)
        values["timings_ms"] = {name: round(value, 3) for name, value in self.timings_ms.items()}
        values["hits"] = [_hit_json(hit) for hit in self.hits]
        for hit, explanation in zip(values["hits"], self.explanations, strict=False):
            hit["explanation"] = asdict(explanation)["contributions"]
        values |= {name: self.raw[name] for name in ("aggregations", "suggest") if name in self.raw}
        return values


def _hit_json(hit: RankedHit) -> dict[str, Any]:
    values = {f.name: getattr(hit, f.name) for f in fields(hit) if f.name not in ("raw", "source")}
    for name in ("first_stage_score", "model_score"):
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    shown = {name: hit.raw[name] for name in ("highlight", "inner_hits", "fields") if name in hit.raw}
    return {**values, **shown, "source": hit.source}
