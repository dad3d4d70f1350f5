"""Pairs of documents of unequal grades within a query, and their weights in RSVM-IR (spec B24, B25)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reranker.errors import InputError, ShapeMismatch
from reranker.evaluation.measures import ndcg_gain

Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PreferencePairs:
    """Rows i preferred to rows j.

    Parameters
    ----------
    better, worse : (n_pairs,) int64
        Row numbers, in the order of the queries, then of the better and the worse row.
    """

    better: Ids
    worse: Ids

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.better)


def preference_pairs(grades: Doubles, queries: Ids) -> PreferencePairs:
    """Return every pair of rows of one query in which the first has the greater grade.

    Parameters
    ----------
    grades : (n,) float64
        Greater is better.
    queries : (n,) int64
        Query of each row, in any order.

    Raises
    ------
    ShapeMismatch
        If there is not one query a grade.
    InputError
        If a grade is not finite.

    Source: spec B24; A26 (+1 when the first is preferred).
    """
    if grades.shape != queries.shape or grades.ndim != 1:
        raise ShapeMismatch(f"{grades.shape} grades and {queries.shape} queries: give one of each a pair")
    if not np.isfinite(grades).all():
        raise InputError("a grade is NaN or infinite: grades must be comparable; leave unjudged documents out")
    none = np.empty(0, np.int64)
    better, worse = [none], [none]
    for rows in _groups(queries):
        first, second = np.nonzero(grades[rows][:, None] > grades[rows][None, :])
        better.append(rows[first])
        worse.append(rows[second])
    return PreferencePairs(np.concatenate(better), np.concatenate(worse))


def pair_weights(pairs: PreferencePairs, grades: Doubles, queries: Ids) -> Doubles:
    """Return tau * mu of each pair, (n_pairs,) float64.

    mu of a query is the greatest number of pairs of any query divided by its own, so that every query weighs the same.
    tau of two grades a > b is what NDCG@1 loses, on average over the queries with both grades, when a document of
    grade a and one of grade b change places in the best possible order. Only the document in front counts: where a is
    the query's best grade and m documents have it, the one drawn stands in front with the chance 1/m and the loss is
    (1 - G(b) / G(a)) / m, with the gain G(g) = 2**g - 1; where a is not the best grade, nothing is lost.

    Raises
    ------
    InputError
        If the lower grade of a pair has a gain below 0, or none has a gain above it.

    Source: spec B25 (values are not printed; tau and mu as its common-knowledge reading). The average over draws is
    computed exactly.
    """
    if grades.size and grades.min() < 0:
        raise InputError(f"grade {grades.min():g} is below 0: gains 2**grade - 1 start at grade 0")
    tau: dict[tuple[float, float], list[float]] = {}
    for rows in _groups(queries):
        held, times = np.unique(grades[rows], return_counts=True)
        for high in range(1, len(held)):
            for low in range(high):
                best = high == len(held) - 1
                loss = (1.0 - ndcg_gain(held[low]) / ndcg_gain(held[high])) / times[high] if best else 0.0
                tau.setdefault((float(held[high]), float(held[low])), []).append(loss)
    mean = {grades_: float(np.mean(losses)) for grades_, losses in tau.items()}
    named = zip(grades[pairs.better].tolist(), grades[pairs.worse].tolist(), strict=True)
    by_type = np.array([mean[one] for one in named], dtype=np.float64)
    _, query, n_pairs = np.unique(queries[pairs.better], return_inverse=True, return_counts=True)
    mu = n_pairs.max(initial=0) / n_pairs[query]
    return np.asarray(by_type * mu, dtype=np.float64)


def _groups(queries: Ids) -> list[Ids]:
    """Return the rows of each query, ascending; queries ascending."""
    order = np.argsort(queries, kind="stable")
    _, starts = np.unique(queries[order], return_index=True)
    return [part for part in np.split(order, starts[1:]) if len(part)]
