"""The page that answers a reranked search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from msgspec import structs

from reranker.records import RankedHit, Reason
from reranker.rerank.explain import Explanation


@dataclass(frozen=True, slots=True)
class RerankedPage:
    """The answer to a search: the hits of the page, in final order.

    ``total`` documents match, by the engine's count; a lower bound where not ``total_is_exact``. ``reranked`` is True
    where the model took part in the order of this page, ``fallback`` where it should have and the page is in the
    engine's order instead; ``reason`` is why a page is not reranked, None if it is. ``notices`` are what the reader
    should know: the default alpha was used, words are unknown, vectors are missing. ``alpha`` is the weight of the
    model in the scores, its ``alpha_origin`` is ``calibrated``, ``default`` or ``given``. Of ``n_candidates`` in the
    window, ``n_encoded`` were encoded from their text because they had no vector, and ``n_unscored`` had neither.
    ``timings_ms`` are by step. ``explanations`` are one a hit where asked for, else none; ``raw`` is the engine's first
    answer (aggregations, suggestions), hits aside.
    """

    query: str
    hits: tuple[RankedHit, ...]
    total: int
    total_is_exact: bool
    reranked: bool
    fallback: bool = False
    reason: Reason | None = None
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

    @property
    def cause(self) -> str:
        """Kind of the reason, a `ReasonKind` as a plain string, for metrics and logs; "" if the page is reranked."""
        return "" if self.reason is None else self.reason.kind.value

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values; ``null`` stands for a score that is absent or not finite."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("hits", "explanations", "raw")}
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
