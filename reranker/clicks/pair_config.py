"""What makes pairs out of a click log: the strategy, who is believed, and how much one person can say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reranker.clicks.strategies import DEFAULT_STRATEGY, STRATEGIES
from reranker.config import from_mapping
from reranker.errors import ConfigError

UNIT = 1_000_000
"""Weights are counted in millionths, as integers: sums are then the same in every order of adding."""


@dataclass(frozen=True, slots=True)
class RobotRules:
    """Who is taken for a robot; all of their impressions are left out."""

    session_clicks: int = 100
    """Clicks in one session at most (on different results; repeated clicks on a result count once)."""
    day_clicks: int = 200
    """Clicks of one person in one day of UTC at most."""
    speed_clicks: int = 10
    """From so many clicks with a time in a session on, their mean distance is looked at."""
    min_gap_s: float = 1.5
    """Least mean distance of clicks in seconds."""
    repeat_clicks: int = 20
    """From so many clicks of a person on, their entropy is looked at."""
    min_entropy_bits: float = 1.0
    """Least entropy (of order 2, in bits) of the documents that a person clicked, over all queries; 1 is that of two
    documents clicked equally often."""

    def __post_init__(self) -> None:
        for name in ("session_clicks", "day_clicks", "speed_clicks", "repeat_clicks"):
            _check_whole(name, getattr(self, name), 1)
        for name in ("min_gap_s", "min_entropy_bits"):
            _check_number(name, getattr(self, name), 0.0)


@dataclass(frozen=True, slots=True)
class PairConfig:
    """How a click log becomes pairs.

    A *person* is the user where known, else the session, else the impression alone. Caps of 0 are off.
    """

    strategy: str = DEFAULT_STRATEGY
    """A name of `reranker.clicks.strategies.STRATEGIES`."""
    above_only: bool = False
    """Of clicked-over-unclicked: compare with documents further up only."""
    last_by_time: bool = False
    """Of last-clicked-above-skipped: the last click by the clock instead of the lowest in the list."""
    min_dwell_s: float = 0.0
    """Clicks known to be shorter, in seconds, do not count, and neither does skipping their documents."""
    session_gap_s: float = 1800.0
    """Impressions of a user without session ids belong to one session until there is a pause this long, in seconds."""
    once_a_session: bool = True
    """A session says a pair once, however often it was shown."""
    user_cap: int = 1
    """How often one person can say a pair at most, in sessions."""
    document_cap: int = 10
    """Pairs of one person for one document of a query (as the better or as the worse one) that count in full; more
    share that weight."""
    person_cap: int = 1000
    """Pairs of one person over all queries that count in full; more share that weight."""
    network_cap: int = 5
    """People of one network who prefer one document of a query that count in full; more share that weight."""
    min_users: int = 1
    """People who must have said a pair."""
    propensities: tuple[float, ...] | None = None
    """Probability, in (0, 1], that rank 1, 2, ... is examined; the last one holds for all further ranks. A pair weighs
    1 / propensity of the rank of its better document (inverse propensity scoring); None: 1."""
    clip: float = 10.0
    """The most that one pair of one person may weigh for its propensity."""
    robots: RobotRules | None = field(default_factory=RobotRules)
    """None: everybody is believed."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy is {self.strategy!r}: it must be one of {', '.join(STRATEGIES)}")
        for name in ("user_cap", "document_cap", "person_cap", "network_cap"):
            _check_whole(name, getattr(self, name), 0)
        _check_whole("min_users", self.min_users, 1)
        _check_number("min_dwell_s", self.min_dwell_s, 0.0)
        _check_number("session_gap_s", self.session_gap_s, 0.0)
        _check_number("clip", self.clip, 1.0)
        if self.propensities is not None:
            object.__setattr__(self, "propensities", tuple(map(float, self.propensities)))
            if not self.propensities or not all(0 < one <= 1 for one in self.propensities):
                message = f"propensities are {list(self.propensities)[:5]}: they must be one or more numbers in (0, 1]"
                raise ConfigError(message)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PairConfig:
        """Return the configuration of a table of its fields; raises `ConfigError` for an unknown or illegal one."""
        rules = values.get("robots", RobotRules())
        if isinstance(rules, Mapping):
            rules = from_mapping(RobotRules, rules, "robots")
        return from_mapping(cls, {**values, "robots": rules}, "pairs")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return dataclasses.asdict(self)

    def unprotected(self) -> PairConfig:
        """Return the same strategy believing everybody, as often as they click: what caps and rules are measured by."""
        return dataclasses.replace(
            self, once_a_session=False, user_cap=0, document_cap=0, person_cap=0, network_cap=0, min_users=1,
            robots=None,
        )  # fmt: skip

    def rank_units(self) -> tuple[int, ...]:
        """Return the weight in millionths of a pair whose better document stood at rank 1, 2, ...; the last holds on.

        min(1 / propensity, clip).
        """
        chances = self.propensities or (1.0,)
        return tuple(math.floor(min(1.0 / chance, self.clip) * UNIT + 0.5) for chance in chances)


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number of at least {least}", key=name)


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= least):  # type: ignore[arg-type,operator]
        raise ConfigError(f"{name} is {value!r}: it must be a finite number of at least {least:g}", key=name)
