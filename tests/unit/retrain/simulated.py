"""Click logs of known truth: position-based clicks on the live model's order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.retrain.gate import ShownLists

Values = npt.NDArray[np.float64]
N_SHOWN = 10
LOOKED_AT = 1.0 / np.arange(1, N_SHOWN + 1)
"""Chance that a person looks at a rank."""
RELEVANT, OTHER = 0.6, 0.03
"""Chance that a document looked at is clicked."""


@dataclass(frozen=True)
class Site:
    """Result lists of 10, a fifth of whose documents are relevant, in an order that only randomness relates to that.

    ``relevant`` (n, 10) bool; ``common`` (n, 10) what every model sees of it, relevance with errors.
    """

    relevant: npt.NDArray[np.bool_]
    common: Values
    people: npt.NDArray[np.int64]

    def model(self, rng: np.random.Generator, error: float) -> Values:
        """Return the scores of a model: what all see, with errors of its own."""
        return self.common + error * rng.standard_normal(self.common.shape)


def site(rng: np.random.Generator, n_people: int = 500, searches: float = 2.0) -> Site:
    """Return a site whose people search unequally often; every search is another query."""
    people = np.repeat(np.arange(n_people), rng.geometric(1 / searches, n_people))
    relevant = rng.random((len(people), N_SHOWN)) < 0.2
    return Site(relevant, 2.0 * relevant + rng.standard_normal(relevant.shape), people)


def ranks(scores: Values) -> npt.NDArray[np.int64]:
    """Return the 1-based rank of each document of each row."""
    places = np.argsort(-scores, axis=1, kind="stable")
    found = np.empty_like(places)
    np.put_along_axis(found, places, np.arange(1, scores.shape[1] + 1)[None, :], axis=1)
    return found


def log_of(
    there: Site, live: Values, candidate: Values, rng: np.random.Generator, looked_at: Values = LOOKED_AT
) -> ShownLists:
    """Return what the gate sees of one log: lists in the live order, clicked where looked at and attractive."""
    rank = ranks(live)
    attractive = np.where(there.relevant, RELEVANT, OTHER)
    clicked = rng.random(rank.shape) < attractive * looked_at[rank - 1]
    n = len(rank)
    return ShownLists(
        np.arange(0, N_SHOWN * n + 1, N_SHOWN, dtype=np.int64),
        rank.ravel(),
        clicked.ravel(),
        live.ravel(),
        candidate.ravel(),
        tuple(f"query {i}" for i in range(n)),
        tuple(f"user {person}" for person in there.people),
    )


def true_ndcg(there: Site, scores: Values) -> float:
    """Return the nDCG that the model would have by the chances of a click, known here, over all impressions."""
    discount = 1.0 / np.log2(1.0 + np.arange(1, N_SHOWN + 1))
    gain = np.where(there.relevant, RELEVANT, OTHER)
    ideal = -np.sort(-gain, axis=1) @ discount
    return float((gain * discount[ranks(scores) - 1]).sum() / ideal.sum())
