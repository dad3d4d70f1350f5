"""Settings of a retraining and of its gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from reranker.clicks.pairs import PairConfig
from reranker.config import DEFAULT_ROUTE, check_ranges, default_of
from reranker.rerank.settings import RerankSettings
from reranker.training.config import TrainConfig

if TYPE_CHECKING:
    from reranker.clicks.propensities import Propensities


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Conditions that a model must meet for promotion."""

    RANGES: ClassVar[Mapping[str, str]] = {
        "margin": "[0, 1)",
        "confidence": "[0.5, 1)",
        "tolerance": "[0, 1)",
        "max_weight": "[1, inf)",
        "min_clusters": "[2, inf)",
        "resamples": "[100, inf)",
        "n_changes": "[0, inf)",
    }

    margin: float = 0.0
    """The lower bound of the difference (candidate - live) in nDCG must be above this value."""
    confidence: float = 0.95
    """Confidence of each one-sided bound."""
    tolerance: float = 0.01
    """Maximum drop of the clicks' reciprocal rank (its lower bound) and of the nDCG of judged queries (its mean)."""
    max_weight: float = 10.0
    """Maximum weight of a click, relative to a click at the most examined rank."""
    min_clusters: float = 30.0
    """Minimum effective number of people (or sessions), or of judged queries if there are no clicks."""
    measured_weights: bool = False
    """True if the propensities come from lists shown in random order. Then the live order need not be better than
    random, only not worse."""
    resamples: int = 1_999
    """Number of bootstrap resamples."""
    n_changes: int = 20
    """Number of queries listed with the largest losses, and with the largest gains."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)


@dataclass(frozen=True)
class RetrainSettings:
    """Settings for retraining the model of an index."""

    RANGES: ClassVar[Mapping[str, str]] = {
        "window": RerankSettings.RANGES["window"],
        "max_docs_per_s": "(0, inf)",
        "newest": "(0, 1)",
    }

    models: Path
    """Folder of the model folders, each named by the first 12 digits of its model id."""
    base: Path | None = None
    """Model from which every retraining starts; None: the base of the live model, or the live model itself if it is not
    the result of a retraining."""
    train: TrainConfig = field(default_factory=TrainConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    newest: float = 0.2
    """Share of the dated impressions, the newest ones, that is kept for the gate."""
    since: int | None = None
    """Start of the used part of the log, in milliseconds since 1970; None: everything."""
    propensities: Propensities | None = None
    """None: estimated from the training impressions."""
    query_side_only: bool = False
    """Train only U, so that the vectors of documents stay unchanged."""
    words_only: bool = False
    """Learn only what words mean, and keep no preferences for repeated queries."""
    body: Mapping[str, Any] | None = None
    """The team's search body."""
    window: int = default_of(RerankSettings, "window")
    """Number of hits that are reranked when served; together with the body it identifies the calibration."""
    routes: tuple[str, ...] = (DEFAULT_ROUTE,)
    """Routes whose fields are written for a new encoder."""
    store: str | None = None
    """``default`` or a folder: also write the local store of route *beside*."""
    max_docs_per_s: float | None = None
    """Rate limit of writes, in documents per second; None: no limit."""
    dry_run: bool = False
    """Stop before the index or its record is changed."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)

    def shown(self) -> dict[str, Any]:
        """Return the settings as shown in the report."""
        return {
            "strategy": self.pairs.strategy,
            "newest slice": f"{self.newest:.0%}",
            "margin": self.gate.margin,
            "confidence": self.gate.confidence,
            "query side only": "yes" if self.query_side_only else "no",
            "window": self.window,
            "seed": self.train.seed,
        }
