"""Settings of a reranked search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reranker.config import IMPACT_MODES, ImpactMode, check_ranges
from reranker.errors import ConfigError

RETRIEVALS = ("bm25", "impacts")
"""First stages: ``bm25`` takes the hits of the body, and ``impacts`` adds those with the largest sums of impacts."""


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """Settings that control how a search is reranked.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    RANGES: ClassVar[Mapping[str, str]] = {
        "window": "[1, 10000]",
        "deadline_ms": "(0, inf)",
        "max_unscored": "[0, 1]",
        "alpha": "[0, 1]",
        "one_request_bytes": "[0, inf)",
        "boost": "(0, inf)",
    }
    """Allowed range of each field, see `reranker.config.check_ranges`."""

    window: int = 200
    """Number of candidates that are reranked. Hits after the window keep the engine's order."""
    deadline_ms: float | None = 1000
    """Timeout for a whole search, after which the page falls back to the engine's order. None: no timeout."""
    max_unscored: float = 0.2
    """Maximum share of candidates, 0 to 1, with neither a vector nor a text. Above it, the page falls back to the
    engine's order."""
    alpha: float | None = None
    """Weight of the model, 0 to 1; None: the calibrated weight."""
    one_request_bytes: int = 512 * 1024
    """Limit for fetching the window's documents with the candidates, which saves the second request. It applies to
    bodies that show only ``_source``, and is compared with the expected size of the documents. A second round trip
    costs more than these bytes (see benchmarks/bench_search.py), unless the engine runs in this process and the route
    needs no field. 0: always make two requests."""
    retrieve: str = "bm25"
    """{'bm25', 'impacts'}: First stage. ``impacts`` adds the 100 documents with the largest sums of impacts to the
    hits of the body."""
    mode: ImpactMode = IMPACT_MODES[0]
    """{'find', 'reorder'}: Route *impacts*. ``find``: documents that only the impacts find are hits too; ``reorder``:
    the hits stay those of the body."""
    boost: float | None = None
    """Route *impacts*: weight of the impacts next to the body's own score, above 0; None: the calibrated weight."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)
        if self.retrieve not in RETRIEVALS:
            raise ConfigError(f"retrieve is {self.retrieve!r}: it must be one of {', '.join(RETRIEVALS)}")
        if self.mode not in IMPACT_MODES:
            raise ConfigError(f"mode is {self.mode!r}: it must be one of {', '.join(IMPACT_MODES)}")
