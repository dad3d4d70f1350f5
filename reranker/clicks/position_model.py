"""Examination by rank from lists whose order has changed: two fits of P(click) = theta_rank * gamma_item.

`fit_harvest` is consistent however rarely an item was shown; `fit_expectation_maximisation` is the usual maximum
likelihood, which needs many showings an item. Both return theta (n_ranks,) up to a common factor.
"""

from __future__ import annotations

import numpy as np

from reranker.clicks.click_counts import ClickCounts, Floats

_PRIOR_IMPRESSIONS = 0.1
_MAX_ITERATIONS = 2_000
_TOLERANCE = 1e-6


def fit_harvest(counts: ClickCounts, n_ranks: int) -> Floats:
    """Return theta (n_ranks,) by proportional fitting: each rank's clicks over its expected ones, in turn."""
    _, item = np.unique(counts.item, return_inverse=True)
    clicks_of_item = np.bincount(item, counts.clicked)
    useful = clicks_of_item[item] > 0
    item, rank, shown = item[useful], counts.rank[useful] - 1, counts.shown[useful].astype(np.float64)
    clicks_of_rank = np.maximum(np.bincount(rank, counts.clicked[useful], minlength=n_ranks), 0.5)
    theta = np.ones(n_ranks)
    for _ in range(_MAX_ITERATIONS):
        liking = clicks_of_item / np.maximum(np.bincount(item, shown * theta[rank], len(clicks_of_item)), 1e-12)
        expected = np.bincount(rank, shown * liking[item], minlength=n_ranks)
        new = clicks_of_rank / np.maximum(expected, 1e-12)
        new /= new[0]
        done = _settled(theta, new)
        theta = new
        if done:
            break
    return theta


def fit_expectation_maximisation(counts: ClickCounts, n_ranks: int) -> Floats:
    """Return theta (n_ranks,) of P(click) = theta_rank * gamma_item."""
    _, item = np.unique(counts.item, return_inverse=True)
    rank = counts.rank - 1
    shown, clicked = counts.shown.astype(np.float64), counts.clicked.astype(np.float64)
    missed = shown - clicked
    of_item = np.bincount(item, shown)
    of_rank = np.bincount(rank, shown, minlength=n_ranks)
    clicks_of_item, clicks_of_rank = np.bincount(item, clicked), np.bincount(rank, clicked, minlength=n_ranks)
    theta = np.maximum(clicks_of_rank, 0.5) / of_rank
    theta = theta / theta.max() * 0.9
    gamma = np.full(len(of_item), 0.5)
    for _ in range(_MAX_ITERATIONS):
        t, g = theta[rank], gamma[item]
        nothing = np.maximum(1 - t * g, 1e-12)
        # Of the showings without a click: looked at but not liked, and liked but not looked at.
        looked = clicks_of_rank + np.bincount(rank, missed * t * (1 - g) / nothing, minlength=n_ranks)
        liked = clicks_of_item + np.bincount(item, missed * g * (1 - t) / nothing)
        mean = float(liked.sum() / of_item.sum())
        gamma = (liked + _PRIOR_IMPRESSIONS * mean) / (of_item + _PRIOR_IMPRESSIONS)
        new = np.maximum(looked / of_rank, 1e-9)
        done = _settled(theta / theta[0], new / new[0])
        theta = new
        if done:
            break
    return theta


def _settled(before: Floats, after: Floats) -> bool:
    return bool((np.abs(after - before) < _TOLERANCE * before).all())
