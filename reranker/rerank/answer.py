"""The page of results that a reranked search returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from msgspec import structs

from reranker.records import RankedHit, Reason
from reranker.rerank.explain import Explanation

_NOT_JSON = frozenset({"asked", "hits", "explanations", "raw", "clauses", "max_score", "engine_answer"})
"""Fields of a page that its JSON does not contain, or contains in another form."""


@dataclass(frozen=True, slots=True)
class RerankedPage:
    """One page of a reranked search."""

    query: str
    hits: tuple[RankedHit, ...]
    """Hits of the page, in final order."""
    total: int
    """Number of matching documents, as counted by the engine."""
    total_is_exact: bool
    """False if ``total`` is a lower bound."""
    reranked: bool
    """True if the model took part in the order of this page."""
    fallback: bool = False
    """True if reranking failed, so that the page is in the engine's order instead."""
    reason: Reason | None = None
    """Why the page is not reranked; None if it is."""
    notices: tuple[str, ...] = ()
    """Notes for the user: the default alpha was used, query words are unknown, vectors are missing."""
    alpha: float | None = None
    """Weight of the model in the scores, 0 to 1."""
    alpha_origin: str = ""
    """Where ``alpha`` comes from: ``given``, ``calibrated``, ``nearest`` (fitted to a similar body) or ``default``."""
    clauses: frozenset[str] = frozenset()
    """Scoring clauses of the search body (`signature_of`); empty if there is no ``alpha``. Not part of the JSON."""
    model_id: str = ""
    n_candidates: int = 0
    """Number of candidates in the window."""
    n_encoded: int = 0
    """Number of candidates that were encoded from their text because they had no vector."""
    n_unscored: int = 0
    """Number of candidates that had neither a vector nor a text."""
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """Duration of each step in milliseconds."""
    explanations: tuple[Explanation, ...] = ()
    """One explanation per hit if requested, otherwise empty."""
    asked: str = ""
    """The words that a query with a syntax asks for, if they are not the whole query. Not part of the JSON."""
    max_score: float | None = None
    """Highest score of the reranked window; None if the page is in the engine's order. Not part of the JSON."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """The engine's first response (aggregations, suggestions), without hits."""
    engine_answer: Mapping[str, Any] | None = None
    """The engine's whole response if the page is in its order, with impacts or without, else None. Not part of the
    JSON."""

    @property
    def cause(self) -> str:
        """Kind of the reason as a plain string, for metrics and logs; "" if the page is reranked."""
        return "" if self.reason is None else self.reason.kind.value

    def part(self, first: int, last: int) -> RerankedPage:
        """Return the page with only its hits at the 0-based positions first, ..., last - 1."""
        hits, engine_answer = slice(first, last), self.engine_answer
        if engine_answer is not None:
            shown = engine_answer["hits"]
            engine_answer = {**engine_answer, "hits": {**shown, "hits": shown["hits"][hits]}}
        return replace(self, hits=self.hits[hits], explanations=self.explanations[hits], engine_answer=engine_answer)

    def to_json(self) -> dict[str, Any]:
        """Return the page as JSON-compatible values. A score that is missing or not finite becomes ``null``."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_JSON}
        values["reason"] = "" if self.reason is None else str(self.reason)
        values["notices"] = list(self.notices)
        values["timings_ms"] = {name: round(value, 3) for name, value in self.timings_ms.items()}
        values["hits"] = [_hit_json(hit) for hit in self.hits]
        for hit, explanation in zip(values["hits"], self.explanations, strict=False):
            hit["explanation"] = asdict(explanation)["contributions"]
        values |= {name: self.raw[name] for name in ("aggregations", "suggest") if name in self.raw}
        return values


def _hit_json(hit: RankedHit) -> dict[str, Any]:
    values = {name: value for name, value in structs.asdict(hit).items() if name not in ("raw", "source")}
    for name in ("first_stage_score", "model_score"):
        if values[name] is not None and not math.isfinite(values[name]):
            values[name] = None
    shown = {name: hit.raw[name] for name in ("highlight", "inner_hits", "fields") if name in hit.raw}
    return {**values, **shown, "source": hit.source}
