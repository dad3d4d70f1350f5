"""What another model changes of the lists that people saw: how many, how far, and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reranker.retrain.serving_scores import RankedList

TOP = 3
LIVE, NEW = 0, 1
"""Places of the rankers in a `RankedList`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How the new model's order differs from the live one's, over the distinct queries of the newest slice.

    Parameters
    ----------
    queries : int
        With at least two documents.
    reordered, new_first : float
        Share of them in which any document moves, and in which another one is first.
    mean_overlap : float
        Mean share of the first three documents that stay among the first three.
    """

    queries: int
    reordered: float
    new_first: float
    mean_overlap: float

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON has them."""
        return asdict(self)


def changes_of(lists: Mapping[str, RankedList]) -> Changes:
    """Return what changes between the first two rankers of some lists."""
    compared = [one for one in lists.values() if len(one.documents) > 1]
    if not compared:
        return Changes(0, 0.0, 0.0, 1.0)
    reordered = [bool((one.ranks[LIVE] != one.ranks[NEW]).any()) for one in compared]
    first = [int(one.ranks[LIVE].argmin()) != int(one.ranks[NEW].argmin()) for one in compared]
    overlap = []
    for one in compared:
        depth = min(TOP, len(one.documents))
        tops = [set(top(one, ranker, depth)) for ranker in (LIVE, NEW)]
        overlap.append(len(tops[0] & tops[1]) / depth)
    return Changes(len(compared), float(np.mean(reordered)), float(np.mean(first)), float(np.mean(overlap)))


def top(ranked: RankedList, ranker: int, depth: int = TOP) -> Sequence[str]:
    """Return the first documents of one ranker's order."""
    order = np.argsort(ranked.ranks[ranker])[:depth]
    return [ranked.documents[place] for place in order.tolist()]
