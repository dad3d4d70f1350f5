"""Settings of a reranked search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from reranker.config import check_ranges
from reranker.errors import ConfigError

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

    RANGES: ClassVar[Mapping[str, str]] = {
        "window": "[1, 10000]",
        "deadline_ms": "(0, inf)",
        "max_unscored": "[0, 1]",
        "keep_top": "[0, inf)",
        "alpha": "[0, 1]",
        "one_request_bytes": "[0, inf)",
        "neighbours": "[1, 10000]",
        "rescore_from": "[1, 10000]",
    }
    """Legal values, see `reranker.config.check_ranges`."""

    window: int = 200
    """Candidates that are reranked; past it the engine's order goes on."""
    deadline_ms: float | None = 1000
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
        check_ranges(self, **self.RANGES)
        if self.retrieve not in RETRIEVALS:
            raise ConfigError(f"retrieve is {self.retrieve!r}; it is one of {', '.join(RETRIEVALS)}")
