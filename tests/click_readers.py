"""A simulated log as counts of shown and clicked documents."""

from __future__ import annotations

import numpy as np

from reranker.clicks.propensities import ClickCounts
from reranker.clicks.simulator import EMPTY, SimulatedLog


def counts_of(log: SimulatedLog) -> ClickCounts:
    """Return how often each document of each query was shown at each rank and clicked."""
    rows, ranks = np.nonzero(log.shown != EMPTY)
    document = log.shown[rows, ranks]
    item = log.query[rows] * (int(document.max()) + 1) + document
    key = (item * log.shown.shape[1] + ranks) * 2 + log.randomised[rows]
    keys, number = np.unique(key, return_inverse=True)
    clicked = np.bincount(number, log.clicked[rows, ranks]).astype(np.int64)
    cell = keys // 2
    return ClickCounts(
        cell // log.shown.shape[1], cell % log.shown.shape[1] + 1, np.bincount(number), clicked, keys % 2 == 1
    )
