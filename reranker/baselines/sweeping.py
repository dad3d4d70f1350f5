"""One setting of a method chosen by trying values on a development set (lambda, alpha, beta, weights)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from reranker.errors import ConfigError, InputError

S = TypeVar("S")
T = TypeVar("T")

TENTHS: tuple[float, ...] = tuple(step / 10 for step in range(11))
"""0, 0.1, ..., 1."""


@dataclass(frozen=True)
class Sweep(Generic[T, S]):
    """What was tried and what was best.

    Parameters
    ----------
    best : float, or what was tried
        The value with the least loss; the first of equals, in the order tried.
    scorer : object
        What was built with it.
    losses : tuple of (value, loss)
        In the order tried.
    """

    best: T
    scorer: S
    losses: tuple[tuple[T, float], ...]


def sweep(build: Callable[[T], S], loss: Callable[[S], float], values: Sequence[T]) -> Sweep[T, S]:
    """Return the value whose scorer has the least loss.

    Parameters
    ----------
    build : callable
        Makes the scorer of a value.
    loss : callable
        Lower is better, such as the rank loss on validation tuples; for a measure such as AP, give its negative.
    values : sequence
        To try: numbers, such as `TENTHS`, or tuples of weights.

    Raises
    ------
    ConfigError
        If there is no value.
    InputError
        If a loss is NaN.

    Source: spec B19 (sweep of lambda), B04, B16 and M10 (weights tuned on validation).
    """
    losses: list[tuple[T, float]] = []
    best: tuple[float, T, S] | None = None
    for value in values:
        scorer = build(value)
        reached = float(loss(scorer))
        if np.isnan(reached):
            raise InputError(f"the loss at {value} is NaN: losses must be comparable; check the development set")
        losses.append((value, reached))
        if best is None or reached < best[0]:
            best = reached, value, scorer
    if best is None:
        raise ConfigError("there is no value to try: give at least one")
    return Sweep(best[1], best[2], tuple(losses))
