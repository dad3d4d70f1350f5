"""How readers look at result lists and click, vectorised over lists.

- `PositionBased`: looks at rank k with probability p_k, whatever stands there (Richardson, Dominowska, Ragno 2007).
- `Cascade`: goes down the list and stops at the first click (Craswell, Zoeter, Taylor, Ramsey 2008).
- `DynamicBayesian`: goes down the list, may be satisfied by what was clicked, and may give up at any rank (Chapelle,
  Zhang 2009).

In all of them a document is clicked if it is looked at and attracts: P(click | looked at) = its attraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reranker.errors import ConfigError, ShapeMismatch

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class ClickModel(Protocol):
    """How a reader looks at and clicks a result list."""

    def examine(self, attraction: Floats, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Return (looked at, clicked), both (n, k), of n lists of k documents; ``attraction`` is P(click | looked)."""


@dataclass(frozen=True)
class PositionBased:
    """Looks at rank k with probability ``examination[k - 1]``, independently of everything else.

    Raises
    ------
    ConfigError
        For a probability outside of (0, 1].
    """

    examination: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.examination or not all(0 < p <= 1 for p in self.examination):
            raise ConfigError(f"examination is {self.examination}: give one probability above 0 and at most 1 a rank")

    @classmethod
    def power(cls, n_ranks: int, eta: float) -> PositionBased:
        """Return p_k = k**-eta, the law of Joachims, Swaminathan, Schnabel 2017; eta = 0 is no bias, 2 a strong one."""
        return cls(tuple(float(rank) ** -eta for rank in range(1, n_ranks + 1)))

    def examine(self, attraction: Floats, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Return (looked at, clicked), both (n, k)."""
        n, k = attraction.shape
        if k > len(self.examination):
            raise ShapeMismatch(f"lists of {k} documents and examination for {len(self.examination)} ranks: give {k}")
        looked = rng.random((n, k)) < np.array(self.examination[:k])
        return looked, looked & (rng.random((n, k)) < attraction)


@dataclass(frozen=True)
class Cascade:
    """Looks at one document after the other and stops at the first click."""

    def examine(self, attraction: Floats, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Return (looked at, clicked), both (n, k); at most one click a list."""
        return DynamicBayesian(satisfaction=1.0, continuation=1.0).examine(attraction, rng)


@dataclass(frozen=True)
class DynamicBayesian:
    """Goes down the list: after a click stops with ``satisfaction``, else goes on with ``continuation``.

    Satisfaction 1 and continuation 1 make it the cascade.

    Raises
    ------
    ConfigError
        For a probability outside of 0 to 1.
    """

    satisfaction: float = 0.5
    continuation: float = 0.9

    def __post_init__(self) -> None:
        for name in ("satisfaction", "continuation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be a probability from 0 to 1")

    def examine(self, attraction: Floats, rng: np.random.Generator) -> tuple[Bools, Bools]:
        """Return (looked at, clicked), both (n, k)."""
        n, k = attraction.shape
        looked, clicked = np.zeros((n, k), dtype=bool), np.zeros((n, k), dtype=bool)
        going = np.ones(n, dtype=bool)
        for rank in range(k):
            looked[:, rank] = going
            clicked[:, rank] = going & (rng.random(n) < attraction[:, rank])
            satisfied = clicked[:, rank] & (rng.random(n) < self.satisfaction)
            going = going & ~satisfied & (rng.random(n) < self.continuation)
        return looked, clicked
