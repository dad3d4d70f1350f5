"""Settings of a retraining."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reranker.clicks.bias import Propensities
from reranker.clicks.pairs import PairConfig
from reranker.errors import ConfigError
from reranker.retrain.gate_input import GateConfig
from reranker.retrain.slices import Newest
from reranker.training import TrainConfig

STUDY_SHARES = (0.1, 0.25, 0.5, 1.0)
STUDY_EPOCHS = 3


@dataclass(frozen=True)
class RetrainSettings:
    """How an index's model is trained again.

    Parameters
    ----------
    models : Path
        Folder of the model folders, each named by the first 12 digits of its model id.
    base : Path or None
        Model that every retraining starts from; None: the one that the live model started from, or the live model
        itself if no retraining made it.
    train, pairs, gate : TrainConfig, PairConfig, GateConfig
    newest : Newest
        What is kept for the gate.
    since : int or None
        Milliseconds: what is older is not read.
    propensities : Propensities or None
        None: estimated from the impressions learned from.
    click_weight : float
        Weight of the clicks; links weigh 1, and so do judgements.
    query_side_only : bool
        Learn U alone: the vectors of documents stay.
    body : mapping or None
        The team's search body.
    window : int
        Hits that are reranked when served; with the body it names the calibration.
    docs : Path or None
        Documents to train on; None: those of the index.
    routes : tuple of str
        Fields written for a new encoder.
    store : str or None
        ``default`` or a folder: also write the local store of route *beside*.
    max_docs_per_s : float or None
        Speed limit of the writes.
    max_judged : int
        Impressions that the gate looks at; more are sampled.
    study : bool
        Also learn from parts of the preferences.
    allow_unsound : bool
        Learn from a log that the doctor calls unsound.
    dry_run : bool
        Stop before the index or its record is changed.
    """

    models: Path
    base: Path | None = None
    train: TrainConfig = field(default_factory=TrainConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    newest: Newest = field(default_factory=Newest)
    since: int | None = None
    propensities: Propensities | None = None
    click_weight: float = 1.0
    query_side_only: bool = False
    body: Mapping[str, Any] | None = None
    window: int = 200
    docs: Path | None = None
    routes: tuple[str, ...] = ("fetch",)
    store: str | None = None
    max_docs_per_s: float | None = None
    max_judged: int = 20_000
    study: bool = False
    allow_unsound: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.click_weight < math.inf:
            raise ConfigError(f"click_weight is {self.click_weight}: it must be positive")
        if self.max_judged < 1:
            raise ConfigError(f"max_judged is {self.max_judged}: it must be at least 1")

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
