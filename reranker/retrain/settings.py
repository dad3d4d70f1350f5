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
    """How much of the log the newest slice is: a share of the dated impressions, or days up to the last of them.

    `ConfigError` where the share does not lie between 0 and 1, or the days are not positive.
    """

    share: float = 0.2
    days: float | None = None

    def __post_init__(self) -> None:
        if self.days is not None and not 0 < self.days < math.inf:
            raise ConfigError(f"the newest slice is {self.days:g} days long: it must be more than 0")
        if self.days is None and not 0 < self.share < 1:
            raise ConfigError(f"the newest slice is {self.share:g} of the log: it must lie between 0 and 1")

    @classmethod
    def parse(cls, text: str) -> Newest:
        """Return the slice that ``0.2`` (a fifth of the impressions) or ``3d`` (three days) says."""
        days = _DAYS.fullmatch(text.strip())
        if days:
            return cls(days=float(days[1]))
        try:
            return cls(share=float(text))
        except ValueError as error:
            raise ConfigError(
                f"the newest slice {text!r} is not legal: write a share such as 0.2, or days such as 3d"
            ) from error


@dataclass(frozen=True, slots=True)
class GateConfig:
    """What a model must show to go live."""

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
    """The lower bound of the difference (candidate - live) in nDCG must be above it."""
    confidence: float = 0.95
    """Of each one-sided bound."""
    tolerance: float = 0.01
    """How far the clicks' reciprocal rank (its lower bound) and the nDCG of judged queries (its mean) may fall."""
    max_weight: float = 10.0
    """Most that a click may count, in clicks at the best examined rank."""
    min_clusters: float = 30.0
    """Least effective number of people (or sessions), or of judged queries where there are no clicks."""
    measured_weights: bool = False
    """The propensities come from lists shown in random order. Only then may the live order be no better than random."""
    resamples: int = 1_999
    n_changes: int = 20
    """Queries listed that lost most, and that gained most."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)


@dataclass(frozen=True)
class RetrainSettings:
    """How an index's model is trained again."""

    RANGES: ClassVar[Mapping[str, str]] = {
        "click_weight": "(0, inf)",
        "window": RerankSettings.RANGES["window"],
        "max_judged": "[1, inf)",
        "max_docs_per_s": "(0, inf)",
    }

    models: Path
    """Folder of the model folders, each named by the first 12 digits of its model id."""
    base: Path | None = None
    """Model that every retraining starts from; None: the one that the live model started from, or the live model itself
    if no retraining made it."""
    train: TrainConfig = field(default_factory=TrainConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    newest: Newest = field(default_factory=Newest)
    """What is kept for the gate."""
    since: int | None = None
    """Milliseconds: what is older is not read."""
    propensities: Propensities | None = None
    """None: estimated from the impressions learned from."""
    click_weight: float = 1.0
    """Weight of the clicks; links weigh 1, and so do judgements."""
    query_side_only: bool = False
    """Learn U alone: the vectors of documents stay."""
    body: Mapping[str, Any] | None = None
    """The team's search body."""
    window: int = default_of(RerankSettings, "window")
    """Hits that are reranked when served; with the body it names the calibration."""
    docs: Path | None = None
    """Documents to train on; None: those of the index."""
    id_field: str | None = None
    """Where their ids stand, see `reranker.formats.read_documents`."""
    routes: tuple[str, ...] = (DEFAULT_ROUTE,)
    """Fields written for a new encoder."""
    store: str | None = None
    """``default`` or a folder: also write the local store of route *beside*."""
    max_docs_per_s: float | None = None
    """Speed limit of the writes."""
    max_judged: int = 20_000
    """Impressions that the gate looks at; more are sampled."""
    study: bool = False
    """Also learn from parts of the preferences."""
    allow_unsound: bool = False
    """Learn from a log that the doctor calls unsound."""
    dry_run: bool = False
    """Stop before the index or its record is changed."""

    def __post_init__(self) -> None:
        check_ranges(self, **self.RANGES)

    def shown(self) -> dict[str, Any]:
        """Return what the report says of the settings."""
        newest = f"{self.newest.days:g} days" if self.newest.days is not None else f"{self.newest.share:.0%}"
        return {
            "strategy": self.pairs.strategy,
            "newest slice": newest,
            "margin": self.gate.margin,
            "confidence": self.gate.confidence,
            "weight of the clicks": self.click_weight,
            "query side only": "yes" if self.query_side_only else "no",
            "window": self.window,
            "seed": self.train.seed,
        }
