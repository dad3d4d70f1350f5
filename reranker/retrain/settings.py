"""Settings of a retraining, and which impressions it judges a new model by: the newest ones are never learned from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reranker.arrays import Int64
from reranker.clicks.pair_config import PairConfig
from reranker.clicks.propensities import Propensities
from reranker.clicks.storage import DAY_MS
from reranker.errors import ConfigError, NothingToLearn
from reranker.retrain.gate import GateConfig
from reranker.training import TrainConfig

_DAYS = re.compile(r"(\d+(?:\.\d+)?)d")


@dataclass(frozen=True, slots=True)
class Newest:
    """How much of the log the newest slice is: a share of the dated impressions, or days up to the last of them.

    Raises
    ------
    ConfigError
        Where the share does not lie between 0 and 1, or the days are not positive.
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
        found = _DAYS.fullmatch(text.strip())
        if found:
            return cls(days=float(found[1]))
        try:
            return cls(share=float(text))
        except ValueError as error:
            raise ConfigError(
                f"the newest slice {text!r} is not legal: write a share such as 0.2, or days such as 3d"
            ) from error


def cutoff_of(times: Int64, newest: Newest) -> int:
    """Return the time that parts the log: what is as late or later is the newest slice, the rest is learned from.

    Impressions of one moment stay together, so the slice may hold more than its share. Impressions without a time
    have no place in the order and are learned from.

    Parameters
    ----------
    times : (n,) int64
        Milliseconds of the dated impressions, in any order.

    Raises
    ------
    NothingToLearn
        Where no impression has a time, or none is older than the slice.
    """
    if not len(times):
        raise NothingToLearn(
            "no impression of the log has a time, so there is no newest slice to judge a new model by: import logs "
            "whose queries carry a timestamp"
        )
    ordered = np.sort(times)
    if newest.days is not None:
        cutoff = int(ordered[-1]) - round(newest.days * DAY_MS) + 1
    else:
        cutoff = int(ordered[len(ordered) - max(1, math.ceil(newest.share * len(ordered)))])
    if cutoff <= ordered[0]:
        raise NothingToLearn(
            f"all {len(times):,} dated impressions lie within the newest slice, so nothing is left to learn from: "
            "give a smaller --newest, or a log of a longer time"
        )
    return cutoff


@dataclass(frozen=True)
class RetrainSettings:
    """How an index's model is trained again."""

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
    window: int = 200
    """Hits that are reranked when served; with the body it names the calibration."""
    docs: Path | None = None
    """Documents to train on; None: those of the index."""
    routes: tuple[str, ...] = ("fetch",)
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
