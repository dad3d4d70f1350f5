"""Which impressions a new model learns from and which it is judged by: the newest ones are never learned from."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError, NothingToLearn

DAY_MS = 86_400_000
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


def cutoff_of(times: npt.NDArray[np.int64], newest: Newest) -> int:
    """Return the time that parts the log: what is as late or later is the newest slice, the rest is learned from.

    Impressions of one moment stay together, so the slice may hold more than its share. Impressions without a time
    have no place in the order and are learned from.

    Parameters
    ----------
    times : (n,) int64
        Milliseconds of the dated impressions, in any order.
    newest : Newest

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
