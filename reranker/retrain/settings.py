"""Settings of a retraining and of its gate."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from reranker.clicks.pairs import PairConfig
from reranker.config import DEFAULT_ROUTE, check_ranges, default_of
from reranker.errors import ConfigError
from reranker.rerank.settings import RerankSettings
from reranker.training.config import TrainConfig

if TYPE_CHECKING:
    from reranker.clicks.propensities import Propensities

_DAYS = re.compile(r"(\d+(?:\.\d+)?)d")


@dataclass(frozen=True, slots=True)
class Newest:
    """Size of the newest slice: a share of the dated impressions, or a number of days before the last one.

    Raises `ConfigError` if the share is not between 0 and 1, or the days are not positive.
    """

    share: float = 0.2
    days: float | None = None

    def __post_init__(self) -> None:
        if self.days is not None and not 0 < self.days < math.inf:
            raise ConfigError(f"the newest slice is {self.days:g} days long: it must be longer than 0")
        if self.days is None and not 0 < self.share < 1:
            raise ConfigError(f"the newest slice is {self.share:g} of the log: the share must be between 0 and 1")

    @classmethod
    def parse(cls, text: str) -> Newest:
        """Return the slice written as ``0.2`` (a fifth of the impressions) or ``3d`` (three days)."""
        days = _DAYS.fullmatch(text.strip())
        if days:
            return cls(days=float(days[1]))
        try:
            return cls(share=float(text))
        except ValueError as error:
            raise ConfigError(
                f"the newest slice {text!r} is invalid: write a share such as 0.2, or days such as 3d"
            ) from error


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
    }

    models: Path
    """Folder of the model folders, each named by the first 12 digits of its model id."""
    base: Path | None = None
    """Model from which every retraining starts; None: the base of the live model, or the live model itself if it is not
    the result of a retraining."""
    train: TrainConfig = field(default_factory=TrainConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    newest: Newest = field(default_factory=Newest)
    """Size of the slice that is kept for the gate."""
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
        newest = f"{self.newest.days:g} days" if self.newest.days is not None else f"{self.newest.share:.0%}"
        return {
            "strategy": self.pairs.strategy,
            "newest slice": newest,
            "margin": self.gate.margin,
            "confidence": self.gate.confidence,
            "query side only": "yes" if self.query_side_only else "no",
            "window": self.window,
            "seed": self.train.seed,
        }
