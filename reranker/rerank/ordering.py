"""The final order of the candidates, and which of them do not move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from reranker.engines.bodies import not_rerankable
from reranker.records import Hit

PINNED_SCORE: Final = 1e30
"""A ``_score`` above this is no similarity: a pinned query puts its documents at 1.7e38 and above."""


def final_order(scores: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the candidates' places in final order: by (-score, first-stage rank), kept ones where they were.

    The first-stage rank settles every tie, so ids never have to.

    Parameters
    ----------
    scores : (n,) float64
        In first-stage order. A score that is not a number keeps its candidate in place too.
    kept : (n,) bool
        Candidates that must stay at their place.

    Returns
    -------
    (n,) int64
        A permutation: element r is the first-stage place of the candidate at final place r.
    """
    order = np.arange(len(scores), dtype=np.int64)
    free = np.flatnonzero(~(kept | np.isnan(scores)))
    order[free] = free[np.argsort(-scores[free], kind="stable")]
    return order


def why_not(body: Mapping[str, Any]) -> str:
    """Return why the hits of a body all keep the engine's order, or an empty string.

    Besides what `not_rerankable` names: ``collapse``, where a hit stands for a group that the engine chose and ranked.
    """
    if body.get("collapse") is not None:
        return "the body collapses hits into groups, which keep the engine's order"
    return not_rerankable(body)


def pinned_ids(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids that a ``pinned`` query anywhere in the body puts on top (``ids``, ``docs`` or ``documents``)."""
    return frozenset(_pinned(body.get("query")) | _pinned(body.get("retriever")))


def _pinned(node: Any) -> set[str]:
    found: set[str] = set()
    for name, value in _entries(node):
        if name == "pinned" and isinstance(value, Mapping):
            found |= {str(one) for one in value.get("ids") or ()}
            for one in [*(value.get("docs") or ()), *(value.get("documents") or ())]:
                if isinstance(one, Mapping) and "_id" in one:
                    found.add(str(one["_id"]))
        found |= _pinned(value)
    return found


def _entries(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, (list, tuple)):
        yield from (("", item) for item in node)


def kept_in_place(hits: Sequence[Hit], body: Mapping[str, Any], keep_top: int) -> npt.NDArray[np.bool_]:
    """Return which hits must not move, (n,) bool.

    Recognised: the documents of a ``pinned`` query, any hit with a pinned query's score (also when a rule of the
    engine applied it), and the first ``keep_top`` hits, for teams that keep their own on top.
    """
    pinned = pinned_ids(body)
    kept = [
        place < keep_top or hit.id in pinned or (hit.score is not None and hit.score >= PINNED_SCORE)
        for place, hit in enumerate(hits)
    ]
    return np.array(kept, dtype=bool)
